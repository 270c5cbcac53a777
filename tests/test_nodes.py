"""Nodes and links can be named wherever a number is accepted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.formats.sketch_file import read as read_sketch
from tacos.nodes import Nodes, link_of
from tacos.simulate import Fault, Straggler

pytestmark = pytest.mark.unsanitized

NAMES = ["a/gpu-0", "a/gpu-1", "b/gpu-0", "tor"]


@pytest.fixture
def named():
    """Three NPUs at a switch; a/gpu-0 has two parallel links to it, both ways."""
    cables = [(0, 3), (0, 3), (1, 3), (2, 3)]
    rows = [(a, b, "1GB/s", "1us") for pair in cables for a, b in (pair, pair[::-1])]
    return tp.from_links(3, rows, switches=1, names=NAMES)


def test_names_and_numbers_mean_the_same_in_edits(named):
    cut = tp.drop_links(tp.torus(2, 2), "npu 0-npu 1", ("npu 1", 0))
    assert cut == tp.drop_links(tp.torus(2, 2), (0, 1), both=True)
    ring = tp.from_links(3, [(a, b, 1e9, 0) for a in range(3) for b in range(3) if a != b], names=NAMES[:3])  # fmt: skip
    assert tp.drop_links(ring, ("a/gpu-0", "b/gpu-0")) == tp.drop_links(ring, (0, 2))
    assert tp.drop_links(ring, "a/gpu-0->b/gpu-0") == tp.drop_links(ring, "a/gpu-0-b/gpu-0")
    assert tp.degrade(named, ("tor", 2), factor=0.5) == tp.degrade(named, 7, factor=0.5)
    assert tp.drop_npus(named, "b/gpu-0") == tp.drop_npus(named, 2)
    assert tp.subset(named, ["b/gpu-0", 0]) == tp.subset(named, [2, 0])
    order = ["b/gpu-0", "a/gpu-0", "a/gpu-1"]
    assert tp.renumber(named, order) == tp.renumber(named, [2, 0, 1])


def test_drop_links_both_of_a_number_takes_its_own_link_back(named):
    """Links 0 and 1 are one cable, 2 and 3 the other one between the same nodes."""
    nodes = Nodes(named)
    assert nodes.links(2, both=True).tolist() == [2, 3]
    assert nodes.links("0", both=True).tolist() == [0, 1]
    one_way = tp.from_links(2, [(0, 1, 1e9, 0), (0, 1, 1e9, 0), (1, 0, 1e9, 0)])
    with pytest.raises(ValueError, match="link is 1, but it has no link back"):
        Nodes(one_way).links(1, both=True)


def test_names_in_collectives(named):
    assert co.all_gather(named, 10, group=["b/gpu-0", "a/gpu-0"]) == co.all_gather(
        named, 10, group=[2, 0]
    )
    assert co.all_gather(named, 10, group="a/*") == co.all_gather(named, 10, group=[0, 1])
    assert co.broadcast(named, 10, root="a/gpu-1") == co.broadcast(named, 10, root=1)
    assert co.send_recv(named, [("a/gpu-0", 2, 5)]) == co.send_recv(named, [(0, 2, 5)])
    assert co.custom(named, [5], [["a/gpu-0"]], [[1, "b/gpu-0"]]) == co.custom(
        named, [5], [[0]], [[1, 2]]
    )


def test_names_in_engine_options(named):
    reduce = co.all_reduce(named, 3000, chunks=1)
    for engine, by_name, by_number in (
        ("ring", {"order": ["b/gpu-0", "a/gpu-0", "a/gpu-1"]}, {"order": [2, 0, 1]}),
        ("parameter-server", {"servers": ["a/gpu-1"]}, {"servers": [1]}),
        ("multitree", {"roots": ["b/gpu-0"]}, {"roots": [2]}),
    ):
        one, other = (
            tacos.synthesize(named, reduce, engine=engine, **options).rows()
            for options in (by_name, by_number)
        )
        assert all((one[column] == other[column]).all() for column in one)


def test_names_in_faults_stragglers_and_views(named):
    gather = co.all_gather(named, "3MB", chunks=1)
    schedule = tacos.synthesize(named, gather, engine="direct")
    window = {"begin": "10us", "end": "500us"}

    def time(*, stragglers=(), **fault):
        faults = [Fault(**fault, **window)] if fault else []
        return tacos.simulate(schedule, faults=faults, stragglers=stragglers).time_ps

    assert time(link=("a/gpu-1", "tor")) == time(link="a/gpu-1->tor") == time(link=4) > time()
    assert time(npu="b/gpu-0") == time(npu=2)
    assert time(stragglers=[Straggler(npu="a/gpu-0", late="1ms")]) == time(
        stragglers=[Straggler(npu=0, late="1ms")]
    )
    assert (schedule.rows(npu="a/gpu-1")["src"] == schedule.rows(npu=1)["src"]).all()
    assert (schedule.rows(link=("tor", 2))["chunk"] == schedule.rows(link=7)["chunk"]).all()
    with pytest.raises(ValueError, match=r"which stands for 2 links; choose one: 0, 2"):
        schedule.rows(link="a/gpu-0-tor")


def test_a_fault_of_a_pair_slows_all_parallel_links_and_with_both_those_back(named):
    def slowed(**link):
        from tacos.simulate.faults import disturbances

        return np.unique(disturbances(named, [Fault(**link)], [])["slow_link"]).tolist()

    assert slowed(link=("a/gpu-0", "tor")) == [0, 2]
    assert slowed(link=(0, 3), both=True) == [0, 1, 2, 3]
    assert slowed(link=2) == [2]
    assert slowed(link=2, both=True) == [2, 3]
    assert Fault.parse("link=a/gpu-0-tor,end=1us,both=yes") == Fault(
        link="a/gpu-0-tor", end="1us", both=True
    )


def test_names_in_sketches(named, tmp_path):
    file = tmp_path / "sketch.yaml"
    file.write_text("sketch: 1\ndrop: [[a/gpu-0, tor], 'tor-b/gpu-0', 4]\nrelays: [b/gpu-0, 1]\n")
    sketch = read_sketch(file, 3)
    links = sketch.restrict(named)[1]
    assert set(range(8)) - set(links.tolist()) == {0, 2, 4, 7}
    assert sketch.numbered(named).relays == [2, 1]
    with pytest.raises(ValueError, match="relays is 'b/gpu-9', but there is no such NPU; did you"):
        tacos.Sketch(relays=["b/gpu-9"]).numbered(named)


@pytest.fixture
def files(named, tmp_path):
    network, schedule = tmp_path / "net.yaml", tmp_path / "s.tacos"
    tacos.save(named, network)
    gather = co.all_gather(named, "3MB", chunks=1)
    tacos.save(tacos.synthesize(named, gather, engine="direct"), schedule)
    return str(network), str(schedule)


def test_names_on_the_command_line(files, capsys):
    network, schedule = files

    def shown(*words):
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert shown("info", schedule, "--npu", "a/gpu-1") == shown("info", schedule, "--npu", "1")
    assert shown("info", schedule, "--link", "tor-b/gpu-0") == shown(
        "info", schedule, "--link", "7"
    )
    call = ("synth", network, "broadcast", "3KB", "--engine", "ring")
    members, root = ("--group", "a/*,b/gpu-0"), ("--root", "a/gpu-1")
    one, other = (
        shown(*call, *options) for options in ((*members, *root), ("--group", "0-2", "--root", "1"))
    )
    assert one["executed_s"] == other["executed_s"]
    fault = "link={},begin=10us,end=500us,both=yes"
    one, other = (
        shown("sim", schedule, "--fault", fault.format(link)) for link in ("a/gpu-1-tor", "1-3")
    )
    assert one["time_s"] == other["time_s"]
    assert shown("sim", schedule, "--straggler", "npu=b/gpu-0,late=1ms")["loss"] > 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            ["--npu", "99"],
            (
                "--npu is '99', but there is no such NPU; the NPUs are 0 to 2, or by name "
                "a/gpu-0, a/gpu-1, b/gpu-0"
            ),
        ),
        (
            ["--npu", "a/gpu0"],
            "--npu is 'a/gpu0', but there is no such NPU; did you mean 'a/gpu-0'?",
        ),
        (["--npu", "tor"], "--npu is 'tor', which is a switch, not an NPU"),
        (
            ["--link", "a/gpu-0-torr"],
            ("--link is 'a/gpu-0-torr', but there is no node 'torr'; did you mean 'tor'?"),
        ),
        (["--link", "99"], "--link is '99', but there is no such link; the links are 0 to 7"),
        (["--link", "0-1"], "there is no link from a/gpu-0 to a/gpu-1; a/gpu-0 has links to tor"),
        (
            ["--link", "nonsense"],
            (
                "--link is 'nonsense'; it must be a link's number, or two nodes as in "
                "0-1 or box0/npu0-fabric"
            ),
        ),
    ],
)
def test_unknown_nodes_and_links_get_one_sentence(files, capsys, more, sentence):
    assert main(["info", files[1], *more]) == 2
    assert capsys.readouterr().err == f"tacos: {sentence}\n"


def test_dashes_in_names_are_told_apart_or_refused():
    """ "x-y-z" is x to y-z or x-y to z; it is accepted if only one of these links exists."""
    both_ways = [(0, 1), (2, 3), (0, 2), (1, 3)]
    rows = [(a, b, "1GB/s", "1us") for pair in both_ways for a, b in (pair, pair[::-1])]
    names = ["x", "y-z", "x-y", "z"]
    network = tp.from_links(4, rows, names=names)
    with pytest.raises(ValueError, match=r'read in two ways; write "x->y-z" or "x-y->z"'):
        Nodes(network).links("x-y-z")
    assert Nodes(network).links("x->y-z").tolist() == [0]
    assert Nodes(network).links("x-y->z").tolist() == [2]
    single = tp.drop_links(network, ("x", "y-z"), both=True)
    assert link_of(single, "x-y-z") == 0  # the only one that exists


def test_a_name_that_is_another_nodes_number_is_refused():
    network = tp.from_links(2, [(0, 1, 1e9, 0), (1, 0, 1e9, 0)], names=["1", "2"])
    nodes = Nodes(network)
    assert nodes.npu(1) == nodes.npu("2") == nodes.npu("#1") == 1
    with pytest.raises(ValueError, match='the name of node 0 and the number of node 1; write "#0"'):
        nodes.npu("1")


def test_how_nodes_are_printed_is_how_they_can_be_given():
    network = tp.dgx_h100(2, nvls=False)
    nodes = Nodes(network)
    assert [nodes.node(network.node_name(i)) for i in range(network.nodes)] == [
        *range(network.nodes)
    ]


@given(st.lists(st.text(st.sampled_from("ab-/>"), min_size=1, max_size=4), min_size=2, max_size=4, unique=True))  # fmt: skip
@settings(max_examples=200)
def test_every_text_is_the_right_link_or_a_sentence(names):
    """Text never stands for a link between other nodes, whatever the names; plain names stand for their link."""
    n = len(names)
    plain = not any(set(name) & set("->") for name in names)
    rows = [(a, b, "1GB/s", "1us") for a in range(n) for b in range(n) if a != b]
    network = tp.from_links(n, rows, names=names)
    nodes = Nodes(network)
    for link in range(network.links):
        src, dst = int(network.link_src[link]), int(network.link_dst[link])
        for joint in ("-", "->", " -> "):
            text = f"{names[src]}{joint}{names[dst]}"
            try:
                found = nodes.links(text).tolist()
            except ValueError:
                assert not plain
                continue
            assert found == [link] or not plain
            for one in found if found != [link] else ():
                # Then the text can also be read as the names of this link's nodes, or as its number.
                ends = [names[int(c[one])] for c in (network.link_src, network.link_dst)]
                squeezed = text.replace(" ", "")
                assert squeezed == str(one) or any(
                    squeezed == f"{ends[0]}{j}{ends[1]}".replace(" ", "") for j in ("-", "->")
                )
