"""Faults: a broken network remembers the healthy one, through edits, files, pickles and reversal."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos.topology.edits import renamed, reweighted
from tacos.topology.faults import repaired, said
from tests.support.strategies import topologies


@dataclass
class Known:
    """An independent record of a broken network: its healthy network as dictionaries, and what is wrong with it."""

    healthy: tp.Topology
    npus: list[int] = field(
        default_factory=list
    )  # per NPU of the broken network: its healthy number
    links: list[list[int]] = field(default_factory=list)  # rows (healthy link, bandwidth, latency)

    @classmethod
    def of(cls, topology):
        speeds = zip(
            topology.link_bandwidth_Bps.tolist(), topology.link_latency_ps.tolist(), strict=True
        )
        rows = [[i, *speed] for i, speed in enumerate(speeds)]
        return cls(topology, list(range(topology.npus)), rows)


@st.composite
def broken(draw, networks=None, most=4):
    """A network after some edits that break it, with what they did by hand."""
    topology = draw(topologies() if networks is None else networks)
    known = Known.of(topology)
    for _ in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(["drop_links", "degrade", "latency", "drop_npus"]))
        if kind == "drop_npus":
            assume(topology.npus > 1)
            gone = draw(st.integers(0, topology.npus - 1))
            try:
                after = tp.drop_npus(topology, gone)
            except ValueError:  # no longer connected
                continue
            del known.npus[gone]
            whole, dropped = known.healthy, after.faults.dropped.tolist()
            known.links = [
                row
                for row in known.links
                if not {int(whole.link_src[row[0]]), int(whole.link_dst[row[0]])} & {*dropped}
            ]
            topology = after
            continue
        if not topology.links:
            continue
        link = draw(st.integers(0, topology.links - 1))
        if kind == "drop_links":
            try:
                topology = tp.drop_links(topology, link)
            except ValueError:
                continue
            del known.links[link]
        elif kind == "degrade":
            factor = draw(st.sampled_from([0.5, 0.25, 1.0]))
            topology = tp.degrade(topology, link, factor=factor)
            known.links[link][1] = max(int(np.rint(known.links[link][1] * factor)), 1)
        else:
            topology = tp.degrade(topology, link, latency="9us")
            known.links[link][2] = 9_000_000
    return topology, known


@given(broken())
def test_healthy_is_the_network_before_the_edits(case):
    topology, known = case
    assert topology.healthy() == known.healthy
    speeds = np.stack([topology.link_bandwidth_Bps, topology.link_latency_ps], axis=1)
    assert speeds.tolist() == [row[1:] for row in known.links]
    faults = topology.faults
    if faults is None:
        assert topology.links == known.healthy.links
        assert topology.npus == known.healthy.npus
        return
    left = [row[0] for row in known.links]
    assert faults.link[faults.dead != 0].tolist() == sorted(
        set(range(known.healthy.links)) - set(left)
    )
    changed = [
        row[0]
        for row in known.links
        if (row[1], row[2])
        != (
            known.healthy.link_bandwidth_Bps[row[0]],
            known.healthy.link_latency_ps[row[0]],
        )
    ]
    assert faults.link[faults.dead == 0].tolist() == changed
    gone = sorted(set(range(known.healthy.npus)) - set(known.npus))
    assert faults.dropped[faults.dropped < faults.npus].tolist() == gone


@given(broken())
def test_files_and_pickles_keep_faults(tmp_path_factory, case):
    topology, _ = case
    assert pickle.loads(pickle.dumps(topology)) == topology
    assert pickle.loads(pickle.dumps(topology.faults)) == topology.faults
    folder = tmp_path_factory.mktemp("faults")
    for ending in (".yaml", ".json"):
        tacos.save(topology, folder / f"net{ending}")
        assert tacos.load(folder / f"net{ending}") == topology


@given(broken())
def test_schedules_keep_the_faults_of_their_network(tmp_path_factory, case):
    topology, _ = case
    assume(topology.npus > 1)
    coll = tacos.collective.all_gather(topology, topology.npus, chunks=1)
    schedule = tacos.synthesize(topology, coll, engine="direct")
    path = tmp_path_factory.mktemp("faults") / "one.tacos"
    tacos.save(schedule, path)
    assert tacos.load(path) == schedule
    assert tacos.load(path).topology.faults == topology.faults


@given(broken())
def test_reversing_twice_keeps_faults(case):
    topology, _ = case
    assert topology.reversed().healthy() == topology.healthy().reversed()
    assert topology.reversed().reversed() == topology


@given(broken(), st.randoms(use_true_random=False))
def test_other_edits_change_the_healthy_network_alike(case, random):
    topology, _ = case
    whole = topology.healthy()
    assert tp.scale(topology, bandwidth=2).healthy() == tp.scale(whole, bandwidth=2)
    assert tp.forwarding_only(topology).healthy() == tp.forwarding_only(whole)
    assert renamed(topology, "mine").healthy() == renamed(whole, "mine")
    order = list(range(topology.npus))
    random.shuffle(order)
    turned = tp.renumber(topology, order)
    back = tp.renumber(turned, np.argsort(order).tolist())
    # Renumbering forgets dimensions.
    same = tp.renumber(topology, range(topology.npus))
    assert back == same
    assert (turned.faults is None) == (topology.faults is None)
    if topology.faults is not None:
        assert turned.healthy().npus == whole.npus
        slow = topology.faults.dead == 0
        assert np.array_equal(topology.faults.link, turned.faults.link)
        assert np.array_equal(slow, turned.faults.dead == 0)
    assert (
        reweighted(
            topology,
            bandwidth_Bps=topology.link_bandwidth_Bps,
            latency_ps=topology.link_latency_ps,
        ).faults
        is None
    )


def test_edits_compose():
    box = tp.ring(4, bandwidth="40GB/s")
    worn = tp.degrade(tp.degrade(box, (0, 1), factor=0.5), (0, 1), factor=0.5)
    assert worn.link_bandwidth_Bps[0] == 10 * 10**9
    assert worn.faults.bandwidth_Bps.tolist() == [40 * 10**9]
    gone = tp.drop_links(worn, (0, 1))
    assert gone.faults.dead.tolist() == [1]
    assert gone.healthy() == box
    assert tp.degrade(box, (0, 1), factor=1).faults is None
    assert tp.drop_links(box).faults is None


def test_a_subset_keeps_only_the_faults_of_its_links():
    mesh = tp.mesh(4, 4)
    worn = tp.degrade(tp.drop_links(mesh, (0, 1), both=True), (14, 15), factor=0.5)
    part = tp.subset(worn, range(8))
    assert part.faults.link.size == 2
    assert part.healthy() == tp.subset(mesh, range(8))
    assert tp.subset(worn, [4, 5, 8, 9]).faults is None
    after = tp.subset(tp.drop_npus(mesh, 15), range(8))
    assert after.faults is None, "an NPU outside the job is not a fault of the job's network"


def test_equality_includes_faults_but_plans_do_not():
    from tacos.library import fingerprint

    left = tp.drop_links(tp.ring(4), (0, 1))
    same = reweighted(left, bandwidth_Bps=left.link_bandwidth_Bps, latency_ps=left.link_latency_ps)
    assert left != same
    assert fingerprint(left) == fingerprint(same)


def test_repaired_knows_dropped_npus_only():
    worn = tp.drop_links(tp.drop_npus(tp.fully_connected(5), 2), (0, 1), (2, 3))
    known, now = repaired(worn)
    assert known == tp.drop_npus(tp.fully_connected(5), 2)
    assert (now < 0).sum() == 2
    for kind in ("link_src", "link_dst", "link_bandwidth_Bps"):
        assert np.array_equal(getattr(known, kind)[now >= 0], getattr(worn, kind)[now[now >= 0]])


def test_memory_is_proportional_to_faults():
    worn = tp.drop_links(tp.torus(64, 64), (0, 1), both=True)
    assert worn.faults.link.size == 2
    assert worn.faults.dropped.size == 0


def test_faults_in_words():
    box = tp.dgx_h100(2, nvls=False)
    assert said(box) == []
    worn = tp.degrade(box, (3, 18), factor=0.5, both=True)
    assert said(worn) == [f"link {box.node_name(3)}-{box.node_name(18)} at 25 of 50 GB/s both ways"]
    many = tp.drop_links(tp.torus(8, 8), *[(8 * i, 8 * i + 1) for i in range(6)])
    assert said(many)[3:] == ["link npu 24-npu 25 dead", "2 more links dead"]
    assert said(tp.drop_npus(tp.mesh(3, 3), 0)) == ["npu 0 dropped"]
    later = said(tp.degrade(tp.ring(4, latency="1us"), 0, latency="5us"))
    assert later == ["link npu 0-npu 1 5 us instead of 1 us"]


def _arguments(faults, **changed):
    from tacos._core import Faults

    names = (
        "link dead src dst latency_ps bandwidth_Bps dropped capabilities names npus dims symmetric"
    )
    given = {name: getattr(faults, name) for name in names.split()}
    return Faults(**given | changed)


def _with_faults(topology, faults):
    from tacos._core import fields

    return tp.Topology(**fields(topology) | {"faults": faults})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"link": np.array([9, 1], np.int32)},
            "faults name link 9; they must ascend and be 0 to 7",
        ),
        ({"link": np.array([1, 0], np.int32)}, "faults name link 0; they must ascend"),
        ({"dead": np.array([1], np.uint8)}, "the columns of faults differ in length"),
        ({"npus": 5}, "the healthy network has 5 NPUs, but 4 are left and 0 dropped"),
        ({"src": np.array([0, 3], np.int32)}, "with other ends than link"),
        ({"names": ["x"]}, "1 names for 0 dropped nodes"),
        ({"capabilities": np.zeros(2, np.uint8)}, "2 capabilities for 0 dropped switches"),
        ({"dropped": np.array([7], np.int32)}, "faults name node 7"),
        ({"bandwidth_Bps": np.array([1, -1])}, "it must be positive"),
    ],
)
def test_wrong_faults_are_refused(changed, message):
    worn = tp.degrade(tp.drop_links(tp.ring(4), 0), 0, factor=0.5)
    assert _with_faults(worn, _arguments(worn.faults)) == worn
    with pytest.raises(ValueError, match=message):
        _with_faults(worn, _arguments(worn.faults, **changed))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("faults: {ded: []}", 'there is no field "ded", did you mean dead?'),
        ("faults: {dead: [99]}", "faults.dead"),
        ("faults: {dead: [[npu0, npu9]]}", r"faults.dead\[0\].dst is \"npu9\""),
        ("faults: {slow: [{links: [0], bandwidth: 0GB/s}]}", r"faults.slow\[0\].bandwidth"),
        (
            "faults: {slow: [{links: [0], bandwidth: 51GB/s}]}",
            "above the 50 GB/s of the healthy link 0",
        ),
        ("faults: {slow: [{links: [0]}]}", r"faults.slow\[0\] needs the bandwidth or the latency"),
        ("faults: {dead: [0], slow: [{links: [0], latency: 1us}]}", "link 0, which is dead"),
        (
            "faults: {slow: [{links: [0], bandwidth: 25GB/s}, {links: [1, 0], latency: 1us}]}",
            r"faults.slow\[1\].links names link 0, which faults.slow\[0\] describes already",
        ),
        ("faults: {dropped: [0..3]}", "names all NPUs"),
        ("faults: {dead: [0, 1, 6, 7]}", "not connected"),
        ("faults: [0]", "faults"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    file = tmp_path / "net.yaml"
    file.write_text(f"tacos: 1\nbase: ring:4\n{text}\n")
    with pytest.raises(tacos.FormatError, match=message) as caught:
        tacos.load(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_says_what_is_wrong_with_a_machine(tmp_path):
    file = tmp_path / "net.yaml"
    file.write_text(
        "tacos: 1\nbase: dgx-h100:2\n"
        "faults: {dead: [[3, 18]], slow: [{links: [[4, 18]], bandwidth: 25GB/s}]}\n"
    )
    found = tacos.load(file)
    whole = tp.parse("dgx-h100:2")
    assert found == tp.degrade(tp.drop_links(whole, (3, 18)), (4, 18), factor=0.5)


def test_summaries_say_what_is_wrong():
    worn = tp.drop_links(tp.torus(4, 4), (0, 1))
    assert tp.describe(worn)["faults"] == ["link npu 0-npu 1 dead"]
    assert tp.describe(worn.healthy())["faults"] == []
