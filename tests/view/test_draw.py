"""Pictures of topologies: layouts, links, sizes, labels and files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given

import tacos
import tacos.topology as build
from tacos.errors import TacosError
from tacos.view import draw
from tacos.view.curves import LINE, curves
from tacos.view.excerpt import excerpt
from tacos.view.layout import place
from tests.support.strategies import topologies

if TYPE_CHECKING:
    from tacos._core import Topology

pytestmark = pytest.mark.unsanitized

SPECS = [
    *("ring:2", "ring:9", "mesh:40", "mesh:5x4", "torus:4x4x4", "hypercube:6", "fc:6", "switch:8"),
    *("ring:4*fc:3*switch:2", "switch:4*torus:3x3", "fat-tree:4x4", "fat-tree:3x2x4", "rail:4x8"),
    *("dragonfly:5x4", "dragonfly+:4x2x4", "dgx-1:2", "dgx-2:2", "ndv2:2", "dgx-h100-plain:1"),
    *("dgx-h100-plain:4", "dgx-h100-plain:40", "nvl72-plain:2", "mi250:2", "mi300x:2"),
]


def shapes(svg: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


def lines(svg: str) -> list[str]:
    """The tooltips of all links."""
    return [str(path[0].text) for path in shapes(svg, "path") if len(path)]


def arrows(svg: str) -> int:
    return max(len(shapes(svg, "polygon")) - 1, 0)  # one is in the legend


def texts(svg: str) -> list[str]:
    return [str(text.text) for text in shapes(svg, "text")]


# Layouts.


@pytest.mark.parametrize("spec", SPECS)
def test_no_two_nodes_coincide_whatever_the_family(spec):
    layout = place(build.parse(spec))
    xy = layout.xy
    assert np.isfinite(xy).all()
    apart = np.hypot(*(xy[:, None] - xy[None]).transpose(2, 0, 1))
    assert apart[~np.eye(len(xy), dtype=bool)].min() > 0.1


@given(topology=topologies())
def test_any_topology_is_drawn_and_always_the_same(topology):
    svg = draw(topology)
    assert "nan" not in svg
    assert len(shapes(svg, "circle")) == topology.npus + 1  # one is in the legend
    assert draw(topology) == svg


def test_a_ring_is_a_circle_and_a_mesh_a_grid():
    ring = place(build.ring(12)).xy
    assert np.allclose(np.hypot(*ring.T), np.hypot(*ring[0]))
    assert place(build.mesh(3, 2)).xy.tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]


def test_boxes_hold_their_nodes_and_the_fabric_is_above_them():
    topology = build.dgx_h100(3, nvls=False)
    layout = place(topology)
    for b, frame in enumerate(layout.frames):
        nodes = [*range(8 * b, 8 * b + 8), 24 + b]  # eight GPUs and their NVSwitch
        assert (layout.xy[nodes] > (frame.left, frame.top)).all()
        assert (layout.xy[nodes] < (frame.right, frame.bottom)).all()
    assert layout.xy[27, 1] < min(frame.top for frame in layout.frames)


def test_boxes_of_a_network_without_dims_are_found_by_bandwidth():
    known = build.dgx_h100(2, nvls=False)
    unknown = build.drop_npus(known, 3)
    assert unknown.dims == []
    assert len(place(unknown).frames) == len(place(known).frames) == 2


def test_a_mesh_without_dims_still_looks_like_one():
    """Stress majorization recovers the grid: neighbours one apart, diagonals about √2."""
    mesh = build.mesh(5, 4)
    xy = place(build.from_links(20, _rows(mesh))).xy
    length = np.hypot(*(xy[mesh.link_src] - xy[mesh.link_dst]).T)
    assert 0.8 < length.min() <= length.max() < 1.3
    assert np.hypot(*(xy[0] - xy[6])) == pytest.approx(2**0.5, rel=0.2)


def _rows(topology: Topology) -> list[tuple[int, int, float, float]]:
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    return [(a, b, 1e9, 0.0) for a, b in ends]


@pytest.mark.parametrize("dims", [[("", 6)], [("box", 2), ("?", 3)], [("ring", 1), ("line", 6)]])
def test_odd_hints_are_no_reason_to_fail(dims):
    ends = [(i, (i + 1) % 8) for i in range(8)]
    rows = [(a, b, 1e9, 0.0) for a, b in ends]
    assert draw(build.from_links(6, rows, switches=2, dims=dims, family="<odd>"))


# Links.


def test_a_link_and_its_twin_are_one_line():
    svg = draw(build.ring(4, bandwidth="50GB/s", latency="500ns"))
    assert sorted(lines(svg)) == [
        f"NPU {a} ↔ NPU {b}: 50 GB/s, 500 ns" for a, b in ((0, 1), (0, 3), (1, 2), (2, 3))
    ]
    assert arrows(svg) == 0


def test_one_way_and_unequal_links_have_arrow_heads():
    assert arrows(draw(build.ring(5, bidirectional=False))) == 5
    svg = draw(build.degrade(build.ring(5), (3, 2), factor=0.5))
    assert arrows(svg) == 2
    assert "NPU 2 → NPU 3: 50 GB/s, 500 ns" in lines(svg)
    assert "NPU 3 → NPU 2: 25 GB/s, 500 ns" in lines(svg)
    assert "one way, or its twin differs" in texts(svg)


def test_a_few_parallel_links_are_lines_and_many_are_a_number():
    def pair(count: int) -> str:
        return draw(build.from_links(2, [(0, 1, 1e9, 0), (1, 0, 1e9, 0)] * count))

    assert len(lines(pair(3))) == 3
    assert lines(pair(9)) == ["NPU 0 ↔ NPU 1: 1 GB/s, 0 s ×9"]
    assert "×9" in texts(pair(9))


def test_the_legend_counts_links_by_class():
    svg = draw(build.torus(4, 2, bandwidth=("50GB/s", "25GB/s")))
    assert "50 GB/s, 500 ns (16 links)" in texts(svg)
    assert "25 GB/s, 500 ns (8 links)" in texts(svg)


def test_many_classes_become_ranges():
    rows = [(i, (i + 1) % 20, (i + 1) * 1e9, 0) for i in range(20)]
    legend = [text for text in texts(draw(build.from_links(20, rows))) if text.endswith("links)")]
    assert 2 < len(legend) <= 6
    assert "18 GB/s to 20 GB/s (3 links)" in legend
    assert sum(int(text.split("(")[1].split()[0]) for text in legend) == 20


def test_wrap_links_bend_around_the_nodes_between():
    paths = [path for path in shapes(draw(build.torus(4, 1)), "path") if len(path)]
    bent = {str(path[0].text).split(":")[0] for path in paths if "C" in path.attrib["d"]}
    assert bent == set()  # a ring is a circle
    paths = [path for path in shapes(draw(build.torus(4, 3)), "path") if len(path)]
    bent = {str(path[0].text).split(":")[0] for path in paths if "C" in path.attrib["d"]}
    assert {"NPU 0 ↔ NPU 3", "NPU 4 ↔ NPU 7", "NPU 8 ↔ NPU 11", "NPU 0 ↔ NPU 8"} <= bent
    assert len(bent) == 3 + 4


# Sizes.


def test_a_large_network_is_drawn_as_an_excerpt_that_says_so():
    whole = build.torus(200, 200)
    part = excerpt(whole)
    assert part.topology.npus == 256
    assert {0, 7, 192, 199, 39_999} <= set(part.nodes.tolist())
    svg = draw(whole)
    assert any(text.startswith("Excerpt:") and "16×16 of 200×200" in text for text in texts(svg))
    assert "50 GB/s, 500 ns (160,000 links)" in texts(svg)
    assert "39999" in texts(svg)
    assert "NPU 0 ↔ NPU 199: 50 GB/s, 500 ns" in lines(svg)


def test_an_excerpt_keeps_the_switches_between_its_npus():
    part = excerpt(build.dgx_h100(800, nvls=False))
    assert part.topology.npus <= 256
    assert part.topology.unreachable_pair() is None
    assert excerpt(build.switch(10_000)).topology.switches == 1


def test_thousands_of_nodes_have_no_labels_and_few_shapes():
    svg = draw(build.torus(32, 32))
    assert len(shapes(svg, "circle")) == 1025
    assert "17" not in texts(svg)
    assert len(svg) < 300_000


def test_too_many_lines_are_thinned_out_and_counted():
    svg = draw(build.fully_connected(210))
    assert "20,000 of 21,945 lines are drawn, evenly chosen." in texts(svg)


# Labels and files.


def test_names_are_labels_and_are_escaped():
    rows = [(0, 1, 1e9, 0), (1, 0, 1e9, 0)]
    names = ["<&>", "\x01"]
    assert {"<&>", "\ufffd"} <= set(texts(draw(build.from_links(2, rows, names=names))))
    long = build.from_links(2, rows, names=["a name too long for a node", "b"])
    assert "a name too long for a node" in texts(draw(long))  # below the node
    endless = build.from_links(2, rows, names=["a name" * 30, "b"])
    assert {"0", "1"} <= set(texts(draw(endless)))
    assert "a name too long for a node" in texts(draw(long, labels="names"))
    assert "0" not in texts(draw(long, labels="none"))


def test_pictures_are_written_whole(tmp_path):
    topology = build.ring(3)
    svg = draw(topology, tmp_path / "ring.svg")
    assert (tmp_path / "ring.svg").read_text() == svg
    draw(topology, tmp_path / "ring.PNG", width=300)
    assert (tmp_path / "ring.PNG").read_bytes().startswith(b"\x89PNG")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ring.PNG", "ring.svg"]


def test_a_pdf_keeps_vectors_and_is_the_same_every_time(tmp_path):
    pytest.importorskip("svglib")
    for name in ("a.pdf", "b.pdf"):
        draw(build.ring(3), tmp_path / name, width=300)
    data = (tmp_path / "a.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert b"/MediaBox [ 0 0 " in data
    assert b"/Image" not in data.replace(b"/ImageB", b"").replace(b"/ImageC", b"").replace(
        b"/ImageI", b""
    )
    assert data == (tmp_path / "b.pdf").read_bytes()


def test_png_without_the_extra_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(TacosError, match=r"pip install 'tacos-ccl\[plot\]'"):
        draw(build.ring(3), tmp_path / "ring.png")
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_named():
    ring = build.ring(3)
    with pytest.raises(ValueError, match=r"labels must be one of .*; got 'all'"):
        draw(ring, labels="all")
    with pytest.raises(ValueError, match="width must be between 100 and 20000 pixels; got 5"):
        draw(ring, width=5)
    with pytest.raises(ValueError, match=r'path must end in .svg, .png or .pdf; got "ring.gif"'):
        draw(ring, "ring.gif")


# Names, and lines that stay clear of boxes and switches.

LAB = """
tacos: 1
npus: [a/gpu0, a/gpu1, b/gpu0, b/gpu1, c/gpu0]
switches: [tor, a/pcie, b/pcie]
defaults: {bandwidth: 12.5GB/s, latency: 2us}
links:
  - {src: "a/gpu*", dst: a/pcie, bandwidth: 32GB/s}
  - {src: "b/gpu*", dst: b/pcie, bandwidth: 32GB/s}
  - {src: a/pcie, dst: tor}
  - {src: b/pcie, dst: tor}
  - {src: c/gpu0, dst: tor, bandwidth: 1.25GB/s}
"""


@pytest.fixture
def lab(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(LAB)
    return tacos.load(path)


def test_boxes_have_frames_with_their_names_and_nodes_keep_theirs(lab):
    layout = place(lab)
    assert [frame.label for frame in layout.frames] == ["a", "b", "c"]
    names = dict(zip(lab.names, layout.box.tolist(), strict=True))
    assert (names["a/gpu1"], names["a/pcie"], names["c/gpu0"], names["tor"]) == (0, 0, 2, -1)
    for frame, box in zip(layout.frames, range(3), strict=True):
        xy = layout.xy[layout.box == box]
        assert (xy >= (frame.left, frame.top)).all()
        assert (xy <= (frame.right, frame.bottom)).all()
    words = texts(draw(lab))
    for name in ("a", "b", "c", "tor", "pcie", "gpu0", "gpu1"):
        assert name in words


def test_boxes_of_pcie_have_frames():
    assert len(place(build.parse("ndv2:2")).frames) == 2
    assert place(build.parse("fat-tree:4x4")).frames == []  # leaf switches are not boxes


@pytest.mark.parametrize("spec", SPECS)
def test_labels_are_readable(spec):
    sizes = [float(text.get("font-size")) for text in shapes(draw(build.parse(spec)), "text")]
    assert min(sizes) >= 10


def crossing(way, low, high):
    """Whether any straight part of a path enters a rectangle."""
    steps = np.linspace(0, 1, 60)[:, None, None]
    points = (way[:-1] * (1 - steps) + way[1:] * steps).reshape(-1, 2)
    return bool(((points > low) & (points < high)).all(axis=1).any())


@pytest.mark.parametrize(
    "spec", ["lab", "rail:4x8", "rail:8x4", "dgx-h100-plain:4", "ndv2:2", "fat-tree:3x2x4", "dragonfly+:4x2x4"]
)  # fmt: skip
def test_lines_do_not_run_through_other_boxes_and_switches(spec, lab):
    topology = lab if spec == "lab" else build.parse(spec)
    layout = place(topology)
    found = curves(topology, layout)
    for link in range(topology.links):
        ends = {int(topology.link_src[link]), int(topology.link_dst[link])}
        way = found.points[link].astype(float)
        if found.kind[link] == LINE:
            way = way[[0, 3]]
        homes = {layout.names[layout.box[node]] for node in ends if layout.box[node] >= 0}
        for frame in layout.frames:
            if frame.label not in homes:
                assert not crossing(way, (frame.left, frame.top), (frame.right, frame.bottom))
        for bar in np.flatnonzero(layout.half > 0).tolist():
            if bar not in ends:
                reach = np.array([layout.half[bar], 0.09])
                assert not crossing(way, layout.xy[bar] - reach, layout.xy[bar] + reach)


def test_an_npu_without_a_box_stands_beside_boxes_with_names(tmp_path):
    path = tmp_path / "lone.yaml"
    direct = "  - {src: a/gpu0, dst: a/gpu1}\n  - {src: gateway, dst: tor}\n"
    path.write_text(
        LAB.replace("a/gpu1, b", "a/gpu1, a/gpu2, b").replace("c/gpu0", "gateway") + direct
    )
    layout = place(tacos.load(path))
    assert [frame.label for frame in layout.frames] == ["a", "b"]
    # Of three NPUs in a circle, none is above another.
    assert len(set(layout.xy[:3, 0].round(6).tolist())) == 3


MIXED = """
tacos: 1
defaults: {bandwidth: 50GB/s, latency: 1us}
npus: [m0/gpu0, m0/gpu1, m0/gpu2, m0/gpu3, s0/gpu0, s0/gpu1, s0/gpu2, s0/gpu3]
switches: [tor, s0/switch]
links:
  - {src: "m0/gpu0", dst: "m0/gpu1"}
  - {src: "m0/gpu1", dst: "m0/gpu2"}
  - {src: "m0/gpu2", dst: "m0/gpu3"}
  - {src: "s0/gpu*", dst: s0/switch}
  - {src: "*/gpu*", dst: tor}
"""


def test_only_boxes_with_links_between_npus_are_circles(tmp_path):
    path = tmp_path / "mixed.yaml"
    path.write_text(MIXED)
    xy = place(tacos.load(path)).xy
    assert len(set(xy[:4, 1].round(6).tolist())) == 4  # a circle, turned
    assert len(set(xy[4:8, 1].round(6).tolist())) == 2  # two rows


def test_two_switches_of_the_same_npus_are_on_both_sides():
    """Otherwise the lines to one would run through the other."""
    rows = [(a, b, 50e9, 1e-6) for npu in (0, 1) for s in (2, 3) for a, b in ((npu, s), (s, npu))]
    layout = place(build.from_links(2, rows, switches=2))
    heights = layout.xy[2:, 1] - layout.xy[0, 1]
    assert heights.min() < 0 < heights.max()


def test_names_that_would_overlap_give_way_to_numbers():
    """Names below NPUs fit side by side, but not in a small circle."""
    names = [f"accelerator{k}" for k in range(40)]
    rows = [(k, (k + 1) % 40, 1e9, 1e-6) for k in range(40)]
    circle = build.from_links(40, rows, names=names)
    words = texts(draw(circle, width=500))
    assert not set(names) & set(words)
    assert texts(draw(circle, width=500, labels="names")).count("accelerator7") == 1


def test_dead_links_are_drawn_and_faults_are_said():
    whole = build.dgx_h100(2, nvls=False)
    slow = build.degrade(whole, (3, 18), factor=0.5, both=True)
    svg = draw(build.drop_links(slow, (5, 18), both=True))
    assert "dead (2 links)" in texts(svg)
    assert {
        "Fault: link npu 5-switch 2 dead both ways.",
        "Fault: link npu 3-switch 2 at 25 of 50 GB/s both ways.",
    } <= set(texts(svg))
    assert svg.count("stroke-dasharray") == 2  # the link and the legend
    assert svg.count("5 ↔ switch 2: dead<") == 1
    assert "stroke-dasharray" not in draw(whole)


def test_a_network_with_a_dropped_npu_is_drawn():
    svg = draw(build.drop_npus(build.drop_links(build.mesh(3, 3), (0, 1), both=True), 8))
    assert len(shapes(svg, "circle")) == 8 + 1
    assert "Fault: npu 8 dropped." in texts(svg)
