"""Sketches: every engine keeps to what they allow, milp also to what they ask for."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.errors import FormatError, InfeasibleError, TacosError
from tacos.formats.sketch_file import read
from tacos.sketch import Sketch
from tacos.synth.milp.symmetry import rotation
from tests.support.conditions import PATIENCE_S

# The fields of sketches that TACCL ships: a relay 0 -> 1 between two NDv2, and odd to even GPUs of DGX-2.
SK1_NDV2_N2 = {
    "nnodes": 2,
    "intranode_sketch": {"strategy": "none"},
    "internode_sketch": {
        "strategy": "relay",
        "internode_conn": {"0": [1]},
        "gpus_to_sender_rev_map": {"0": list(range(8))},
        "enforce_ordering": True,
    },
    "symmetry_offsets": [[8, 16]],
    "hyperparameters": {"input_chunkup": 1},
}
SK1_DGX2_N2 = {
    "nnodes": 2,
    "intranode_sketch": {
        "strategy": "switch",
        "switches": [list(range(16))],
        "switch_hyperedge_strategy": ["uc-min"],
    },
    "internode_sketch": {
        "strategy": "relay",
        "internode_conn": {str(i): [i - 1] for i in range(1, 16, 2)},
        "gpus_to_sender_rev_map": {str(i): [i - 1, i] for i in range(1, 16, 2)},
        "enforce_ordering": True,
    },
    "symmetry_offsets": [[2, 16], [16, 32]],
    "hyperparameters": {"input_chunkup": 2},
}


@pytest.fixture
def file(tmp_path):
    def write(content, name="sketch.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_taccls_relay_between_two_ndv2(file):
    """One sender and one receiver per box: 2 x 7 links to the NICs and 2 x 7 from them are not used."""
    sketch = read(file(SK1_NDV2_N2), 16)
    assert sketch.between == {0: [1]}
    assert sketch.senders == {0: list(range(8))}
    assert (sketch.box, sketch.chunks, sketch.own_first) == (8, 1, True)
    assert sketch.symmetry == [(8, 16)]
    two = tp.ndv2(2)
    network, links = sketch.restrict(two)
    assert two.links - network.links == 28
    assert (two.link_src[links] == network.link_src).all()


def test_taccls_sketch_of_dgx2(file):
    sketch = read(file(SK1_DGX2_N2), 32)
    assert sketch.connections == "uc-min"
    pairs = sketch.pairs(32)
    assert pairs[:16, :16].all()
    assert pairs[:16, 16:].sum() == 8
    assert pairs[1, 16]
    assert pairs[19, 2]


@pytest.mark.parametrize("engine", ["greedy", "auto", "ring", "direct"])
def test_every_engine_keeps_to_the_links(engine):
    two = tp.ndv2(2)
    sketch = Sketch(box=8, between={0: [1]}, drop=[(2, 3), (3, 2)])
    for kind in ("all_gather", "all_reduce"):
        schedule = tacos.synthesize(
            two, co.named(kind, two, "16MB", chunks=1), engine=engine, sketch=sketch
        )
        assert schedule.topology == two
        assert tacos.verify(schedule).ok
        assert sketch.violation(schedule) == ""
        used = np.flatnonzero(schedule.link_bytes())
        ends = set(zip(two.link_src[used].tolist(), two.link_dst[used].tolist(), strict=True))
        assert (2, 3) not in ends
        # Only 0 and 8 send into a switch, only 1 and 9 receive from one.
        assert {a for a, b in ends if a < 16 <= b} == {0, 8}
        assert {b for a, b in ends if b < 16 <= a} == {1, 9}
        assert schedule.efficiency is not None
        assert schedule.efficiency < 1


def test_the_milp_engine_does_what_a_sketch_asks_for():
    """Two boxes of three in a row, joined at both ends: swapping them maps each transfer to a transfer."""
    speed = (1e9, 0)
    joined = [(0, 1), (1, 2), (3, 4), (4, 5), (2, 3), (5, 0)]
    links = [(*ends, *speed) for a, b in joined for ends in ((a, b), (b, a))]
    topology = tp.from_links(6, links)
    sketch = Sketch(box=3, symmetry=[(3, 6)], own_first=True, chunks=1)
    schedule = tacos.synthesize(
        topology, co.all_gather(topology, 6000), engine="milp", sketch=sketch, time_limit=PATIENCE_S
    )
    assert tacos.verify(schedule).ok
    assert "note" not in schedule.provenance
    rows = schedule.rows()
    sent = set(zip(rows["src"].tolist(), rows["dst"].tolist(), rows["chunk"].tolist(), strict=True))
    swap = [3, 4, 5, 0, 1, 2]
    assert {(swap[a], swap[b], swap[c]) for a, b, c in sent} == sent
    for a, b in ((2, 3), (3, 2), (5, 0), (0, 5)):
        across = (rows["src"] == a) & (rows["dst"] == b)
        chunks = rows["chunk"][across][np.argsort(rows["start_ps"][across], kind="stable")]
        assert a not in chunks[1:]


@pytest.mark.parametrize(("wish", "pairs"), [("uc-min", 3), ("uc-max", 6)])
def test_connections_through_a_switch(wish, pairs):
    """Three NPUs: a ring of three connections, or all six; both take two epochs."""
    switch = tp.switch(3, bandwidth="1GB/s", latency="0s")
    schedule = tacos.synthesize(
        switch,
        co.all_gather(switch, 3000, chunks=1),
        engine="milp",
        sketch=Sketch(connections=wish),
        time_limit=PATIENCE_S,
    )
    rows = schedule.rows()
    assert schedule.time_s == pytest.approx(2e-6)
    assert len(set(zip(rows["src"].tolist(), rows["dst"].tolist(), strict=True))) == pairs


def test_relays_and_senders():
    """A line 0 - 1 - 2 with a way round over 3: an NPU that is not a relay forwards nothing."""
    ends = [(0, 1), (1, 2), (0, 3), (3, 2)]
    topology = tp.from_links(4, [(a, b, 1e9, 0) for x, y in ends for a, b in ((x, y), (y, x))])
    message = co.send_recv(topology, [(0, 2, 1000)], chunks=1)
    schedule = tacos.synthesize(topology, message, engine="milp", sketch=Sketch(relays=[3]))
    assert schedule.rows()["dst"].tolist() == [3, 2]
    ring = tp.ring(4)
    gather = co.all_gather(ring, "4KB", chunks=1)
    with pytest.raises(TacosError, match="forwards chunk 0, but is not a relay; milp does"):
        tacos.synthesize(ring, gather, engine="ring", sketch=Sketch(relays=[0, 2]))
    boxes = Sketch(box=2, senders={0: [0, 1]})
    with pytest.raises(TacosError, match="leaves its box through npu"):
        tacos.synthesize(ring, gather, engine="bidirectional-ring", sketch=boxes)
    found = tacos.synthesize(ring, gather, engine="milp", sketch=boxes)
    assert tacos.verify(found).ok
    assert boxes.violation(found) == ""


def test_auto_keeps_to_relays_that_other_engines_ignore():
    """On a ring, messages between opposite NPUs may pass only 0 and 1; forest's trees pass all."""
    ring, sketch = tacos.topology.ring(4), tacos.Sketch(relays=[0, 1])
    coll = tacos.collective.all_gather(ring, "4KB", chunks=1)
    with pytest.raises(tacos.TacosError, match=r"forest does not keep to the sketch.*; milp does"):
        tacos.synthesize(ring, coll, engine="forest", sketch=sketch)
    found = tacos.synthesize(ring, coll, sketch=sketch)
    assert tacos.verify(found).ok
    assert sketch.violation(found) == ""


@pytest.mark.parametrize("engine", ["greedy", "milp"])
def test_who_cannot_be_reached_is_named(engine):
    two = tp.dgx_h100(2, nvls=False)
    sketch = Sketch(box=8, between="none")
    message = "with the links that the sketch allows, npu 0 cannot reach npu 8"
    with pytest.raises(InfeasibleError, match=message):
        tacos.synthesize(two, co.all_gather(two, "1MB", chunks=1), engine=engine, sketch=sketch)


def test_contradictory_symmetry_is_refused():
    ring = tp.ring(4)
    gather = co.all_gather(ring, "4KB", chunks=1)
    line = tp.mesh(4)
    with pytest.raises(ValueError, match=r"symmetry \[1, 2\] does not hold: there is no link"):
        tacos.synthesize(line, gather, engine="milp", sketch=Sketch(symmetry=[(1, 2)]))
    root = co.broadcast(ring, "4KB", chunks=1)
    with pytest.raises(ValueError, match=r"symmetry \[1, 4\] does not hold: there is no chunk"):
        tacos.synthesize(ring, root, engine="milp", sketch=Sketch(symmetry=[(1, 4)]))
    with pytest.raises(ValueError, match=r"symmetry \[1, 4\] contradicts the relays or senders"):
        tacos.synthesize(ring, gather, engine="milp", sketch=Sketch(symmetry=[(1, 4)], relays=[0]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"box": 3}, "box is 3, which does not divide the 4 NPUs"),
        ({"relays": [4]}, "relays is 4, but there is no such NPU; the NPUs are 0 to 3"),
        ({"between": {0: [9]}, "box": 2}, "between has 9; the places in a box are 0 to 1"),
        ({"within": [[0, 7]]}, "within has 7; the places in a box are 0 to 3"),
        ({"senders": {0: [5]}, "box": 2}, "senders has 5; the places in a box are 0 to 1"),
        ({"symmetry": [(1, 3)]}, "symmetry has the size 3, which does not divide the 4 NPUs"),
        ({"drop": [(0, 2)]}, "there is no link from npu 0 to npu 2"),
    ],
)
def test_sketches_that_do_not_fit(fields, message):
    ring = tp.ring(4)
    with pytest.raises(ValueError, match=message):
        tacos.synthesize(ring, co.all_gather(ring, "4KB"), sketch=Sketch(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chunks": 0}, "chunks must be a whole number of at least 1; got 0"),
        ({"connections": "few"}, "connections must be uc-min or uc-max; got 'few'"),
        (
            {"between": "ring"},
            "between must be one of fully-connected, direct-map, none; got 'ring'",
        ),
    ],
)
def test_wrong_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        Sketch(**fields)


def test_our_own_file_and_the_command(file, capsys):
    yaml = "sketch: 1\nbox: 8\nbetween: {'0': [1]}\ndrop: [[2, 3], 0]\nchunks: 2\n"
    path = file(yaml, "sketch.yaml")
    assert read(path, 16) == Sketch(
        box=8, between={0: [1]}, drop=[(2, 3), 0], symmetry=[], chunks=2
    )
    arguments = [
        "synth",
        "ndv2:2",
        "all-gather",
        "16MB",
        "--engine",
        "greedy",
        "--sketch",
        str(path),
    ]
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["chunks"], facts["total_chunks"]) == (2, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sketch: 2\n", "sketch: invalid enum value 2"),
        ("sketch: 1\nboxes: 8\n", "object contains unknown field boxes"),
        ("chunks: 2\n", "not a sketch"),
        ("sketch: 1\nbetween: {a: [1]}\n", "between has the sender 'a'; it must be a number"),
        ("sketch: 1\nbox: 5\n", "box is 5, which does not divide the 16 NPUs"),
        (SK1_NDV2_N2 | {"nnodes": 3}, "nnodes is 3, but the network has 16 NPUs"),
    ],
)
def test_broken_files(file, content, message):
    path = file(content, "sketch.json" if isinstance(content, dict) else "sketch.yaml")
    with pytest.raises(FormatError, match=message):
        read(path, 16)


@pytest.mark.parametrize(
    ("network", "size", "content", "limit"),
    [(tp.ndv2, "16MB", SK1_NDV2_N2, 1.10), (tp.dgx2, "64MB", SK1_DGX2_N2, 1.12)],
    ids=["ndv2", "dgx2"],
)
def test_taccls_whole_sketches_are_solved_as_given(file, network, size, content, limit):
    """Relays, senders, symmetry and order, even where no integer program is solved (`columns`)."""
    two = network(2)
    sketch = read(file(content), two.npus)
    found = tacos.synthesize(two, co.all_gather(two, size), engine="milp", sketch=sketch, columns=1)
    inside, _ = sketch.restrict(two)
    assert found.time_s <= limit * tacos.bound(inside, found.collective).time_s
    rows = found.rows()
    moves = set(zip(*(np.asarray(rows[name]).tolist() for name in ("chunk", "src", "dst", "start_ps")), strict=True))  # fmt: skip
    each = found.collective.parts[0].chunks
    for offset, size_ in sketch.symmetry:
        turned = rotation(two.npus, offset, size_)
        assert moves == {
            (turned[chunk // each] * each + chunk % each, turned[src], turned[dst], start)
            for chunk, src, dst, start in moves
        }
    for sender, receiver in {(s, d) for _, s, d, _ in moves if s // sketch.box != d // sketch.box}:
        over = sorted((t, c) for c, s, d, t in moves if (s, d) == (sender, receiver))
        assert [c // each for _, c in over[:each]] == [sender] * each
