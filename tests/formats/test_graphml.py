"""Reading GraphML in rows of elements gives the same result, or the same error, as reading it element by element."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import FormatError, formats
from tacos import topology as tp
from tacos.formats import graphml_graph

pytestmark = pytest.mark.unsanitized

KEYS = (
    '<key id="d0" for="edge" attr.name="bandwidth"/>'
    '<key id="d1" for="edge" attr.name="latency"><default>1us</default></key>'
    '<key id="d2" for="node" attr.name="kind"/>'
)
NAMES = st.sampled_from(["a", "b", "c", "n 1", "&lt;", "é"])
DATA = [
    '<data key="d0">{0}GB/s</data>',
    '\n  <data key="d1"> 2us </data>',
    '<data key="x">y</data>',
]


@st.composite
def elements(draw):
    """Mostly regular edges; the others are text that a scan for rows could misread."""
    source, target, end = draw(NAMES), draw(NAMES), draw(st.sampled_from(["/>", " />", ""]))
    if not end:
        data = "".join(draw(st.lists(st.sampled_from(DATA), max_size=3)))
        end = f">{data.format(draw(st.integers(1, 3)))}</edge>"
    edge = f'<edge source="{source}" target="{target}"{end}'
    return draw(
        st.sampled_from(
            [
                edge,
                edge,
                edge,
                f'<node id="{source}"/>',
                f'<node id="{source}"><data key="d2">switch</data></node>',
                f'<edge target="{target}" source="{source}"{end}',
                f"<edge source='{source}' target='{target}'{end}",
                edge.replace("<edge", '<edge id="e"'),
                edge.replace("<edge", '<edge directed="false"'),
                f"<!-- {edge} -->",
                f'<data key="x"><![CDATA[{edge}]]></data>',
                f"<desc>{edge}</desc>",
                "<?tacos-here?>",
                "<?tacos-here",
                "\n",
                edge[:-3],
            ]
        )
    )


def outcome(path, **options):
    try:
        found = formats.load(path, **options)
    except FormatError as error:
        return str(error)
    columns = (found.link_src, found.link_dst, found.link_bandwidth_Bps, found.link_latency_ps)
    return found.npus, found.names, [column.tolist() for column in columns]


def by_elements(path, **options):
    with mock.patch("tacos.formats.graphml.scan", side_effect=ValueError):
        return outcome(path, **options)


@given(
    inside=st.lists(elements(), max_size=5),
    late=st.booleans(),
    kind=st.sampled_from(["directed", "undirected"]),
    window=st.sampled_from([1, 60, 200, 1 << 17]),
    encoding=st.sampled_from(["utf-8", "utf-16", "latin-1"]),
)
@settings(max_examples=300, deadline=None)
def test_rows_and_elements_agree(tmp_path_factory, inside, late, kind, window, encoding):
    nodes = [f'<node id="{name}"/>' for name in ("a", "b", "c", "n 1", "&lt;", "é")]
    links = [f'<edge source="a" target="{n}"/><edge source="{n}" target="a"/>'
             for n in ("b", "c", "n 1", "&lt;", "é")]  # fmt: skip
    rows = [*inside, *nodes, *links] if late else [*nodes, *links, *inside]
    text = (
        f'<?xml version="1.0" encoding="{encoding}"?><graphml>{KEYS}'
        f'<graph edgedefault="{kind}">{"".join(rows)}</graph></graphml>'
    )
    path = tmp_path_factory.getbasetemp() / "rows.graphml"
    path.write_bytes(text.encode(encoding))
    options = {"bandwidth": "1GB/s"}
    with mock.patch.object(graphml_graph, "_WINDOW", window):
        assert outcome(path, **options) == by_elements(path, **options)


@pytest.mark.parametrize(
    "network", [tp.torus(5, 7), tp.switch(6, multicast=True), tp.dgx_h100(2, nvls=False)], ids=repr
)
def test_own_files_are_read_by_rows(tmp_path, network):
    tacos.save(network, tmp_path / "net.graphml")
    graph = graphml_graph.scan((tmp_path / "net.graphml").read_bytes())
    assert len(graph.speeds) == network.links
    assert graph.topology(None, None).links == network.links


def test_a_row_within_a_comment_is_refused():
    edge = b'<edge source="a" target="b"/>'
    text = b'<graphml><graph><node id="a"/><node id="b"/>%s<!-- %s --></graph></graphml>'
    with pytest.raises(ValueError, match="elements where none should be"):
        graphml_graph.scan(text % (edge, edge))
    assert len(graphml_graph.scan(text % (edge, b"no edge")).speeds) == 1


def test_white_space_costs_no_more_than_its_length():
    """A search that restarts at every blank would take hours."""
    graphml_graph.scan(b"<graphml><graph>" + b" " * 4_000_000 + b'<node id="a"/></graph></graphml>')
