"""Chakra traces that tacos writes: their content, round trips, and simulated times."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.formats import astra_inputs
from tacos.program import STEP_OPS, lower
from tacos.simulate.astra import run
from tacos.workload import from_program
from tacos.workload import load as load_workload
from tests.support import program_oracle
from tests.support.chakra_files import (
    COLL,
    COMP,
    RECV,
    SEND,
    decoded,
    ring_all_gather,
)
from tests.support.programs import INPUT, NONE, OUTPUT, SCRATCH, changed, made, one_sided
from tests.support.strategies import collectives, topologies

# --- writing --------------------------------------------------------------------------------------


def test_an_exchange_of_two_ranks_by_hand(tmp_path):
    """Both send their part and receive the other's: a copy, a send and a receive; no fence, since
    nothing waits for a send."""
    topology = tp.fully_connected(2)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "2KB", chunks=1), engine="greedy")
    tacos.save(schedule, tmp_path / "ag", format="chakra")
    nodes = decoded(tmp_path / "ag.1.et")
    assert [n["type"] for n in nodes] == [COMP, SEND, RECV]
    assert [n["id"] for n in nodes] == [0, 1, 2]
    send, recv = nodes[1]["attrs"], nodes[2]["attrs"]
    for attrs, src, dst, chunk in ((send, 1, 0, 1), (recv, 0, 1, 0)):
        assert attrs["comm_src"] == ("int32", src)
        assert attrs["comm_dst"] == ("int32", dst)
        assert attrs["comm_size"] == ("int64", 1000)
        assert attrs["comm_tag"] == ("int32", 0)
        assert attrs["is_cpu_op"] == ("bool", 0)
        assert attrs["total_chunk_cnt"] == ("int64", 2)
        assert attrs["msg_chunk_cnt"] == ("int64", 1)
        assert attrs["msg_chunk_idx"] == ("int64", chunk)


def test_sends_of_one_thread_leave_in_order_behind_fences(tmp_path):
    """Two chunks to the same peer: the fence has the dependencies of the first send, and the second send
    waits for the fence, not for the first to arrive."""
    topology = tp.fully_connected(2)
    schedule = tacos.synthesize(
        topology, co.broadcast(topology, "2KB", chunks=2, root=0), engine="greedy"
    )
    tacos.save(schedule, tmp_path / "b", format="chakra")
    nodes = decoded(tmp_path / "b.0.et")
    sends = [n for n in nodes if n["type"] == SEND]
    (fence,) = [n for n in nodes if "tacos_of" in n["attrs"]]
    assert fence["attrs"]["tacos_of"] == ("uint64", sends[0]["id"])
    assert (fence["type"], fence["duration"]) == (COMP, 0)
    assert fence["deps"] == sends[0]["deps"]
    assert sends[1]["deps"] == [fence["id"]]
    assert [n["attrs"]["comm_tag"][1] for n in sends] == [0, 1]


def test_sums_take_the_time_that_the_reduce_bandwidth_says(tmp_path):
    """1 MB at 100 GB/s takes 10 µs; without a bandwidth the duration is 0, which stands for 1 ns."""
    topology = tp.fully_connected(2)
    schedule = tacos.synthesize(topology, co.reduce(topology, "1MB", chunks=1, root=0))
    for speed, duration in (("100GB/s", 10), (None, 0)):
        tacos.save(schedule, tmp_path / "r", format="chakra", reduce_bandwidth=speed)
        (total,) = [n for n in decoded(tmp_path / "r.0.et") if "tacos_of" in n["attrs"]]
        assert (total["type"], total["duration"]) == (COMP, duration)


def test_idle_ranks_have_something_to_do(tmp_path):
    topology = tp.fully_connected(3)
    schedule = tacos.synthesize(topology, co.send_recv(topology, [(0, 1, "1KB")], chunks=1))
    tacos.save(schedule, tmp_path / "p", format="chakra")
    assert [n["type"] for n in decoded(tmp_path / "p.2.et")] == [COMP]
    assert tacos.load(tmp_path / "p") == lower(schedule)


def test_what_astra_sim_needs_lies_beside(tmp_path):
    tacos.save(ring_all_gather(), tmp_path / "ag", format="chakra")
    system = json.loads((tmp_path / "ag.system.json").read_text())
    assert system["all-gather-implementation-custom"] == [str(tmp_path / "ag")]
    assert system["preferred-dataset-splits"] == 1
    memory = json.loads((tmp_path / "ag.memory.json").read_text())
    assert memory == {"memory-type": "NO_MEMORY_EXPANSION"}
    (only,) = decoded(tmp_path / "ag.workload.3.et")
    assert only["type"] == COLL
    assert only["attrs"]["comm_type"] == ("int64", 2)
    assert only["attrs"]["comm_size"] == ("int64", 2**20)  # for an all-gather, one rank's part
    assert (tmp_path / "ag.network.yml").read_text().startswith("topology: [Ring]\n")


@pytest.mark.parametrize(
    ("topology", "first_line"),
    [
        (tp.switch(4), "topology: [Switch]"),
        (tp.ring(2), "topology: [FullyConnected]"),
        # Only neighbours with equal links communicate: exact on a clique, which the congestion-aware backend accepts.
        (tp.torus(3, 3), "topology: [FullyConnected]"),
        (tp.mesh(3, 2), "topology: [FullyConnected]"),
        (tp.product(tp.ring(3), tp.switch(2, bandwidth="10GB/s")), "topology: [Ring, Switch]"),
        (tp.dgx1(), None),
    ],
)
def test_networks_that_astra_sim_can_say(topology, first_line):
    schedule = tacos.synthesize(topology, co.all_gather(topology, "1MB", chunks=1))
    text = astra_inputs.network(topology, lower(schedule))
    assert (text and text.splitlines()[0]) == first_line


def test_all_files_appear_or_none(tmp_path):
    (tmp_path / "ag.network.yml").mkdir()  # so the last file cannot be written
    with pytest.raises(tacos.FormatError, match="not a regular file; refusing to overwrite it"):
        tacos.save(ring_all_gather(), tmp_path / "ag", format="chakra")
    assert [p.name for p in tmp_path.iterdir()] == ["ag.network.yml"]


def test_files_of_more_ranks_are_not_mixed_up(tmp_path):
    tacos.save(ring_all_gather(5), tmp_path / "ag", format="chakra")
    with pytest.raises(
        tacos.FormatError, match=r"ag\.4\.et: the file exists, but there are only 4"
    ):
        tacos.save(ring_all_gather(4), tmp_path / "ag", format="chakra")


def test_a_program_needs_a_size(tmp_path):
    program = lower(ring_all_gather()).with_facts(size_bytes=0)
    with pytest.raises(ValueError, match="does not know its size; give the size"):
        tacos.save(program, tmp_path / "ag", format="chakra")
    with pytest.raises(ValueError, match="size is 3 B, which is too small for 4 chunks"):
        tacos.save(program, tmp_path / "ag", format="chakra", size=3)
    tacos.save(program, tmp_path / "ag", format="chakra", size="8MiB")
    again = tacos.load(tmp_path / "ag.2.et")
    assert again == program
    assert again.size_bytes == again.provenance["size_bytes"] == 8 * 2**20
    tacos.save(again, tmp_path / "again", format="chakra")  # the file gave its size
    assert (tmp_path / "ag.1.et").read_bytes() == (tmp_path / "again.1.et").read_bytes()


def pair(*threads, collective=None):
    return made(collective or co.broadcast(2, 1, chunks=1, root=0), list(threads), scratch=1)


@pytest.mark.parametrize(
    ("threads", "sentence"),
    [
        ([(0, 1, -1, [("send", INPUT, 0)])], "sends a message that no rank receives"),
        ([(1, -1, 0, [("recv", NONE, -1, OUTPUT, 0)])], "receives a message that no rank sends"),
        (
            [(0, 1, -1, [("send", SCRATCH, 0)]), (1, -1, 0, [("recv", NONE, -1, OUTPUT, 0, 0)])],
            "reads a slot that nothing has been written to",
        ),
        (
            [
                (0, 1, 1, [("recv", NONE, -1, SCRATCH, 0, 3), ("send", INPUT, 0)]),
                (1, 0, 0, [("recv", NONE, -1, OUTPUT, 0, 1), ("send", OUTPUT, 0)]),
            ],
            "the program deadlocks: rank 0, thread 0, step 0 never starts",
        ),
    ],
)
def test_programs_that_a_trace_cannot_say(tmp_path, threads, sentence):
    with pytest.raises(ValueError, match=sentence):
        tacos.save(pair(*threads), tmp_path / "x", format="chakra", size=8)
    assert list(tmp_path.iterdir()) == []


def test_one_sided_steps_become_messages(tmp_path):
    program = one_sided(["put", "signal"])
    tacos.save(program, tmp_path / "x", format="chakra", size="1KB")
    assert from_program(program, "1KB").kind.tolist() == load_workload(tmp_path / "x").kind.tolist()
    again = tacos.load(tmp_path / "x")
    assert {STEP_OPS[op] for op in again.op} == {"copy", "recv", "send"}
    assert tacos.verify(again).ok
    assert again.collective == program.collective


def test_in_place_or_not(tmp_path):
    tacos.save(ring_all_gather(), tmp_path / "x", format="chakra", in_place=True)
    program = tacos.load(tmp_path / "x")
    assert program == lower(ring_all_gather(), in_place=True)
    with pytest.raises(ValueError, match="in_place is False, but the program's is True"):
        tacos.save(program, tmp_path / "y", format="chakra", in_place=False)


def test_the_command_converts_and_verifies_traces(tmp_path):
    tacos.save(ring_all_gather(), tmp_path / "ag.tacos")
    prefix = str(tmp_path / "ag")
    assert main(["convert", str(tmp_path / "ag.tacos"), prefix, "--to", "chakra", "--quiet"]) == 0
    assert main(["verify", prefix, "--quiet"]) == 0
    assert main(["convert", f"{prefix}.0.et", f"{prefix}.xml", "--quiet"]) == 0
    assert main(["convert", f"{prefix}.xml", f"{prefix}2.et", "--size", "4MiB", "--quiet"]) == 0
    assert tacos.verify(tacos.load(f"{prefix}2")).ok


def test_fused_steps_come_back(tmp_path):
    """An all-reduce along the chain 0 -> 1 -> 2 and back, in fused steps."""
    collective = co.all_reduce(3, 3, chunks=1)
    send = ("send", INPUT, 0)
    program = made(
        collective,
        [
            (0, 1, 1, [send, ("recv", NONE, -1, OUTPUT, 0, 3)]),
            (1, 2, 0, [("recv_reduce_forward", INPUT, 0, NONE, -1, 0)]),
            (1, 0, 2, [("recv_send", NONE, -1, OUTPUT, 0, 4)]),
            (2, 1, 1, [("recv_reduce_send", INPUT, 0, OUTPUT, 0, 2)]),
        ],
    )
    tacos.save(program, tmp_path / "f", format="chakra", size="3KB")
    assert tacos.load(tmp_path / "f") == program
    assert [n["type"] for n in decoded(tmp_path / "f.2.et")] == [RECV, COMP, SEND]
    assert [n["type"] for n in decoded(tmp_path / "f.1.et")] == [RECV, COMP, SEND, RECV, SEND]


@given(network=topologies(), data=st.data())
@settings(max_examples=60)
def test_programs_come_back_as_they_were(network, data, tmp_path_factory):
    collective = data.draw(collectives(network.npus, max_chunks=3))
    engine = data.draw(st.sampled_from(tacos.engines(network, collective)))
    schedule = tacos.synthesize(network, collective, engine=engine)
    assume(not schedule.routes.kinds.any() and all(schedule.collective.chunk_bytes()))
    folder = tmp_path_factory.mktemp("round")
    tacos.save(schedule, folder / "x", format="chakra")
    program = tacos.load(folder / "x")
    assert program == lower(schedule)
    assert program_oracle.run(program, random.Random(0)) == []
    if data.draw(st.booleans()):
        in_place = lower(schedule, in_place=True)
        sized = in_place.with_provenance(program.provenance)
        tacos.save(sized, folder / "y", format="chakra")
        assert tacos.load(folder / "y") == in_place


@given(network=topologies(), data=st.data())
@settings(max_examples=30)
def test_messages_have_the_sizes_of_their_chunks(network, data, tmp_path_factory):
    """Messages have the bytes of the schedule's transfers, also where chunks differ in size."""
    collective = data.draw(collectives(network.npus, max_chunks=3))
    schedule = tacos.synthesize(network, collective, engine="auto")
    assume(not schedule.routes.kinds.any() and all(schedule.collective.chunk_bytes()))
    folder = tmp_path_factory.mktemp("sizes")
    tacos.save(schedule, folder / "x", format="chakra")
    workload = load_workload(folder / "x")
    rows = schedule.expand().rows()
    for kind, end, other in ((0, "src", "dst"), (1, "dst", "src")):
        mine = workload.kind == kind
        found = sorted(zip(workload.rank[mine], workload.peer[mine], workload.bytes[mine],
                           strict=True))  # fmt: skip
        assert found == sorted(zip(rows[end], rows[other], rows["bytes"], strict=True))


# --- simulating -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("npus", "build", "aware_ns", "unaware_ns"),
    [
        (4, tp.ring, 60093, 60093),
        (4, tp.fully_connected, 60093, 60093),
        (4, tp.switch, 120186, 61593),
        (8, tp.ring, 140217, 140217),
        (8, tp.fully_connected, 140217, 140217),
        (8, tp.switch, 280434, 143717),
    ],
)
def test_an_exported_ring_takes_as_long_as_astra_sim_says(
    tmp_path, npus, build, aware_ns, unaware_ns
):
    """Recorded runs of ASTRA-sim: 1 MiB from each rank, 50 GiB/s, 500 ns."""
    path = tp.ring(npus, bidirectional=False, bandwidth="50GiB/s", latency="500ns")
    schedule = tacos.synthesize(path, co.all_gather(path, npus * 2**20, chunks=1), engine="ring")
    tacos.save(schedule, tmp_path / "ag", format="chakra")
    network = build(npus, bandwidth="50GiB/s", latency="500ns")
    for profile, expected in (("astra-sim-aware", aware_ns), ("astra-sim-unaware", unaware_ns)):
        for what in (str(tmp_path / "ag"), tacos.load(tmp_path / "ag")):
            trace = tacos.simulate(what, network, profile=profile)
            assert round(trace.time_s * 1e9) == expected


def test_a_program_is_simulated_with_the_size_that_is_given():
    program = lower(ring_all_gather())
    network = tp.ring(4, bandwidth="50GiB/s", latency="500ns")
    workload = from_program(program, "8MiB")
    assert set(workload.bytes[workload.kind < 2].tolist()) == {2 * 2**20}
    trace = tacos.simulate(program, network, size="4MiB", profile="astra-sim-aware")
    assert trace.time_s > 0


def test_a_wrong_program_stays_wrong_in_the_same_way(tmp_path):
    """The last receive of rank 0 overwrites the chunk of the first: the file is written, but verifying
    it fails."""
    program = lower(ring_all_gather())
    first, _, last = np.flatnonzero(program.op == STEP_OPS.index("recv"))[:3]

    def overwrite(slots):
        slots[last] = slots[first]
        return slots

    broken = changed(program, dst_slot=overwrite)
    tacos.save(broken, tmp_path / "x", format="chakra", size="4MiB")
    again = tacos.load(tmp_path / "x")
    assert again == broken
    assert not tacos.verify(again).ok


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "all_reduce"])
def test_sends_into_a_switch_keep_the_order_of_the_schedule(tmp_path, kind):
    """An NPU has one port for all peers; ASTRA-sim itself would start its sends in the order of a hash set."""
    network = tp.switch(8, bandwidth="50GiB/s", latency="500ns")
    schedule = tacos.synthesize(network, co.named(kind, network, "8MiB", chunks=2), effort="fast")
    tacos.save(schedule, tmp_path / "x", format="chakra")
    assert tacos.load(tmp_path / "x") == lower(schedule)
    result = run(load_workload(tmp_path / "x"), network, aware=True)
    rows = schedule.expand().rows()
    for npu in range(8):
        mine, sent = rows["src"] == npu, result.src == npu
        planned = rows["dst"][mine][np.argsort(rows["start_ps"][mine])]
        assert result.dst[sent][np.argsort(result.send_ns[sent])].tolist() == planned.tolist()
