"""Workloads, networks and options that ASTRA-sim's simulation refuses, and what it says."""

from __future__ import annotations

import pytest

import tacos
from tacos import topology as tp
from tacos.simulate.astra import AstraSystem, run, trace
from tacos.workload import (
    COLL,
    COMP,
    LOAD,
    RECV,
    SEND,
    collective,
    from_nodes,
    from_schedule,
    ring_all_gather,
)
from tests.support.astra_runs import HOP, MIB, SPEED, messages, native, time_of

# --- bad input -----------------------------------------------------------------------------------


PAIR = {"rank": [0, 1], "kind": [SEND, RECV], "peer": [1, 0], "bytes": 8}


@pytest.mark.parametrize("as_custom", [True, False])
@pytest.mark.parametrize("rendezvous", [True, False])
@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        (PAIR | {"bytes": [8, 9]}, ["recv node 0 of rank 1 (from rank 0, tag 0, 9 B)"]),
        (PAIR | {"tag": [1, 2]}, ["recv node 0 of rank 1 (from rank 0, tag 2, 8 B)"]),
        (PAIR | {"kind": [SEND, COMP]}, ["send node 0 of rank 0 (to rank 1, tag 0, 8 B)"]),
        (PAIR | {"kind": [COMP, RECV]}, ["recv node 0 of rank 1 (from rank 0, tag 0, 8 B)"]),
        (
            {"rank": [0, 0, 1, 1], "kind": [RECV, SEND] * 2, "peer": [1, 1, 0, 0], "bytes": 8}
            | {"dep_begin": [0, 0, 1, 1, 2], "dep": [0, 2]},
            ["recv node 0 of rank 0", "recv node 0 of rank 1"],
        ),
    ],
)
def test_names_nodes_without_a_partner(nodes, names, rendezvous, as_custom):
    options = {"as_custom": as_custom, "rendezvous": rendezvous}
    with pytest.raises(ValueError, match="the workload never finishes") as error:
        run(from_nodes(2, **nodes), tp.ring(2), aware=True, **options)
    for name in names:
        assert name in str(error.value)


def test_names_collectives_that_others_do_not_join():
    nodes = {"rank": [0, 1], "kind": [COLL, COMP], "bytes": 64}
    with pytest.raises(ValueError, match="no partner comes for coll node 0 of rank 0"):
        run(from_nodes(2, **nodes), tp.ring(2), aware=True, as_custom=False)


def test_equal_links_between_all_ends_are_those_of_a_clique():
    """One direction of a ring is not a building block; each of two steps takes one hop."""
    network = tp.ring(3, bidirectional=False, **SPEED)
    assert time_of(ring_all_gather(3, MIB), network, aware=False) == 2 * HOP
    assert time_of(ring_all_gather(3, MIB), tp.fully_connected(3, **SPEED), aware=False) == 2 * HOP


@pytest.mark.parametrize(
    ("topology", "aware", "message"),
    [
        (tp.mesh(3), False, "needs a product of rings, cliques and switches .* this mesh"),
        (tp.degrade(tp.ring(3), 0, factor=0.5), False, "one speed per dimension"),
        (tp.from_links(3, [(0, 1, 1, 0), (1, 2, 1, 0), (2, 0, 2, 0)]), False, "equal links only"),
        (
            tp.from_links(3, [(0, 1, 1, 0)] * 2 + [(1, 2, 1, 0), (2, 0, 1, 0)]),
            True,
            "npu 0 to npu 1",
        ),
        (tp.ring(4), True, "the workload has 3 ranks, but the topology has 4 NPUs"),
    ],
)
def test_refuses_topologies(topology, aware, message):
    with pytest.raises(ValueError, match=message):
        run(ring_all_gather(3, MIB), topology, aware=aware)


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ({"splits": 0}, "splits is 0"),
        ({"policy": "random"}, 'policy is "random"'),
        ({"endpoint_delay": "1ps"}, "endpoint_delay '1ps' must be a whole number of nanoseconds"),
        ({"implementations": {"gather": ["ring"]}}, "implementations has 'gather'"),
        ({"implementations": {"all_reduce": ["star"]}}, 'implementation is "star"'),
        ({"implementations": {"all_reduce": ["direct0"]}}, 'implementation is "direct0"'),
        ({"implementations": {"all_reduce": ["halvingDoubling"]}}, "dimension 0 has 6 ranks"),
        ({"implementations": {"all_reduce": ["ring", "ring"]}}, "here 2 for 1"),
        ({"algorithms": {"all_reduce": ring_all_gather(4, 8)}}, "its algorithm is for 4"),
        (
            {"algorithms": {"all_reduce": collective(6, "all_reduce", 8)}},
            "inside a custom collective",
        ),
    ],
)
def test_refuses_systems(system, message):
    with pytest.raises(ValueError, match=message):
        native(tp.ring(6), "all_reduce", **system)


def test_refuses_what_astra_sim_lacks():
    ring = tp.ring(4)
    with pytest.raises(ValueError, match="no reduce, gather, scatter or barrier"):
        native(ring, "barrier")
    with pytest.raises(ValueError, match="with as_custom=False"):
        run(collective(4, "all_reduce", MIB), ring, aware=True)
    small, split = collective(4, "all_gather", 3), AstraSystem(splits=4)
    with pytest.raises(ValueError, match="fewer bytes than the 4 parts"):
        run(small, ring, aware=True, as_custom=False, system=split)
    with pytest.raises(ValueError, match="comm is 'sum'; it must be one of all_reduce"):
        collective(4, "sum", MIB)
    with pytest.raises(ValueError, match="over 26 days"):
        run(messages(2, [(0, 1)], size=2**62), tp.ring(2, bandwidth="1B/s"), aware=True)


def test_progress_may_stop_a_run():
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(ring_all_gather(512, 8), tp.ring(512), aware=True, progress=stop)


@pytest.mark.parametrize(
    ("spec", "profile", "time_ns"),
    [
        ("ring:4", "astra-sim-aware", 60093),
        ("ring:8", "astra-sim-unaware", 140217),
        ("switch:4", "astra-sim-aware", 120186),
        ("switch:8", "astra-sim-unaware", 143717),
    ],
)
def test_simulate_takes_the_profiles_by_name(spec, profile, time_ns):
    """A ring all-gather of 1 MiB shards, from our own schedule; `test_astra` has ASTRA-sim's runs."""
    topology = tacos.topology.parse(f"{spec}@50GiB/s,500ns")
    size = topology.npus * 2**20
    collective = tacos.collective.all_gather(topology, size, chunks=1)
    schedule = tacos.synthesize(topology, collective, engine="ring")
    trace = tacos.simulate(schedule, profile=profile)
    assert trace.npu_finish_ps.tolist() == [1000 * time_ns] * topology.npus
    assert trace.simulator == trace.provenance["simulator"] == profile


def test_profiles_want_a_topology_and_nothing_that_disturbs():
    ring = tacos.topology.ring(4)
    schedule = tacos.synthesize(ring, tacos.collective.all_gather(ring, "4KB", chunks=1))
    with pytest.raises(
        ValueError, match="does not take timing, congestion, record or disturbances"
    ):
        tacos.simulate(schedule, profile="astra-sim-aware", jitter="1us")
    with pytest.raises(ValueError, match="a workload needs a topology"):
        trace(ring_all_gather(4, "1KiB"), profile="astra-sim-aware")
    with pytest.raises(TypeError, match=r"tacos\.simulate\.astra\.run"):
        tacos.simulate(ring_all_gather(4, "1KiB"), ring)
    with pytest.raises(
        ValueError, match="profile must be one of astra-sim-aware, astra-sim-unaware"
    ):
        trace(ring_all_gather(4, "1KiB"), ring, profile="astra")


def test_a_trace_of_whatever_has_nodes(tmp_path):
    """A workload, its files, and the program and schedule that it came from take the same time."""
    ring = tacos.topology.ring(4, **SPEED)
    schedule = tacos.synthesize(ring, tacos.collective.all_gather(ring, "4KB", chunks=1))
    tacos.workload.save(from_schedule(schedule), tmp_path / "w")
    tacos.save(schedule, tmp_path / "s.tacos")
    program = tacos.lower(schedule)
    whats = (from_schedule(schedule), tmp_path / "w", program, schedule, str(tmp_path / "s.tacos"))
    size = {"size": "4KB"}
    times = {
        trace(what, ring, profile="astra-sim-aware", **(size if what is program else {})).time_ps
        for what in whats
    }
    assert len(times) == 1


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            {"kind": COLL, "group": 1, "groups": {1: [0]}, "bytes": 8},
            "coll node 0 of rank 0 is one of",
        ),
        ({"kind": LOAD, "bytes": 8}, "load node 0 of rank 0 needs a memory outside of the NPU"),
        ({"kind": COLL}, "coll node 0 of rank 0: bytes is 0, ASTRA-sim needs at least 1"),
    ],
)
def test_what_astra_sim_never_finishes_is_refused(nodes, message):
    first = {"rank": [0, 1], **nodes}
    if first.get("group"):
        first |= {"kind": [COLL, COMP], "group": [1, 0]}
    with pytest.raises(ValueError, match=message):
        run(from_nodes(2, **first), tacos.topology.ring(2), aware=False, as_custom=False)


def test_more_parts_than_memory_holds():
    options = {"aware": True, "as_custom": False, "system": AstraSystem(splits=10**9)}
    with pytest.raises(
        ValueError, match=r"splits is 1000000000, which cuts .* 4,000,000,000 parts"
    ):
        run(collective(4, "all_reduce", "1MB"), tp.ring(4), **options)
