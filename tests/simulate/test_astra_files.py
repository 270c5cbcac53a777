"""ASTRA-sim's own files: golden runs of the real binary, roofline, remote memory, and bad files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import tacos
from tacos import topology as tp
from tacos.cli import main
from tacos.errors import FormatError
from tacos.simulate.astra import AstraSystem, RemoteMemory, run
from tacos.simulate.astra_files import load_memory, load_system
from tacos.simulate.timeline import Timeline
from tacos.workload import COLL, COMP, LOAD, RECV, SEND, STORE, from_nodes

DATA = Path(os.environ.get("TACOS_TEST_DATA", "missing"), "astra-golden")
RUNS = [
    pytest.param(file.parent, variant, id=f"{file.parent.name}-{variant}")
    for file in sorted(DATA.glob("*/expected.json"))
    for variant in json.loads(file.read_text())["runs"]
] or [pytest.param(None, "", marks=pytest.mark.skip(reason="TACOS_TEST_DATA has no astra-golden"))]
QUEUES = "--num-queues-per-dim="


def expected_of(folder, variant):
    found = json.loads((folder / "expected.json").read_text())["runs"][variant]
    queues = [int(a.removeprefix(QUEUES)) for a in found["arguments"] if a.startswith(QUEUES)]
    assert len(found["arguments"]) == len(queues)
    groups = folder / "groups.json"
    return found, queues[0] if queues else 1, groups if groups.is_file() else None


@pytest.mark.parametrize(("folder", "variant"), RUNS)
def test_equals_runs_of_the_real_binary(folder, variant):
    expected, queues, groups = expected_of(folder, variant)
    result = run(
        tacos.workload.load(folder / "workload", groups=groups),
        tacos.load(folder / f"{variant}.network.yml"),
        aware=expected["backend"] == "congestion-aware",
        as_custom=False,
        system=load_system(
            folder / f"{variant}.system.json", folder / f"{variant}.memory.json", queues=queues
        ),
    )
    assert result.npu_finish_ns.tolist() == expected["finish_cycles"]
    assert result.npu_exposed_ns.tolist() == expected["exposed_communication_cycles"]


@pytest.mark.parametrize(("folder", "variant"), RUNS)
def test_the_command_equals_runs_of_the_real_binary(folder, variant, capsys):
    expected, queues, groups = expected_of(folder, variant)
    files = {"--system": "system.json", "--topology": "network.yml", "--memory": "memory.json"}
    options = [
        word for name, end in files.items() for word in (name, f"{folder / variant}.{end}")
    ] + ["--profile", f"astra-sim-{expected['backend'].removeprefix('congestion-')}"]
    options += ["--groups", str(groups)] if groups else []
    options += [f"{QUEUES}{queues}"] if queues > 1 else []
    assert main(["sim", str(folder / "workload"), *options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["finish_ns"] == expected["finish_cycles"]
    assert printed["exposed_ns"] == expected["exposed_communication_cycles"]


# --- computed by hand --------------------------------------------------------------------------------

ROOF = AstraSystem(roofline=True, peak_flops=1e12, memory_bandwidth="100GB/s")
PAIR = tp.fully_connected(2, bandwidth="50GiB/s", latency="500ns")


def simulated(workload, network=PAIR, *, aware=True, system=ROOF):
    return run(workload, network, aware=aware, as_custom=False, system=system)


def test_roofline_takes_the_slower_of_operations_and_bytes():
    """1e6 operations at 1e12/s: 1 us. Over 1 MB at 100 GB/s: 10 us. 1.9 ns become 1."""
    workload = from_nodes(
        2, rank=[0, 0, 1], kind=COMP, flops=[10**6, 1900, 10**6], bytes=[10**3, 1, 10**6],
        duration_ps=10**9,
    )  # fmt: skip
    result = simulated(workload)
    assert result.npu_finish_ns.tolist() == [1001, 10000]
    assert result.npu_exposed_ns.tolist() == [0, 0]
    assert result.node_begin_ns.tolist() == [0, 1000, 0]
    assert result.node_end_ns.tolist() == [1000, 1001, 10000]


def test_without_a_roofline_durations_count_in_whole_nanoseconds():
    """5,999 ps are 5 ns, 0 ps are 1 ns; computing on the CPU leaves the NPU free, and is not its work."""
    workload = from_nodes(
        2, rank=[0, 0, 0, 1], kind=COMP, flops=10**9, bytes=8, on_cpu=[0, 0, 1, 0],
        duration_ps=[5999, 0, 7000, 0],
    )  # fmt: skip
    result = simulated(workload, system=AstraSystem())
    assert result.npu_finish_ns.tolist() == [7, 1]
    assert result.npu_compute_ns.tolist() == [6, 1]


def test_a_computation_without_bytes_wakes_its_children_at_the_next_event():
    """Node 0 ends at 0 without an event; node 1 (2 us) is the next. Node 2, which waits for node 0, starts then."""
    chain = {"dep_begin": [0, 0, 0, 1, 1], "dep": [0]}
    workload = from_nodes(
        2, rank=[0, 0, 0, 1], kind=COMP, flops=2 * 10**6, bytes=[0, 1, 1, 1], **chain
    )
    result = simulated(workload)
    assert result.node_begin_ns.tolist() == [0, 0, 2000, 0]
    assert result.npu_finish_ns.tolist() == [4000, 2000]
    # A rank with nothing else to do ends at once.
    empty = from_nodes(2, rank=[0, 1], kind=COMP, flops=10**6, bytes=[0, 1])
    assert simulated(empty).npu_finish_ns.tolist() == [0, 1000]


MEMORY = {"latency": "100ns", "bandwidth": "10GB/s"}


@pytest.mark.parametrize(
    ("memory", "finish"),
    [
        # 100 ns + 1000 B / 10 B/ns = 200 ns; a rank has one load or store in flight.
        (RemoteMemory(shared_by="npu", **MEMORY), [400, 200, 200, 200]),
        # Ranks 0 and 1 share a memory: rank 0 is served, then 1, then 0 again.
        (RemoteMemory(shared_by="node", npus_per_node=2, nodes=2, **MEMORY), [600, 400, 200, 400]),
        (RemoteMemory(shared_by="pool", **MEMORY), [1000, 400, 600, 800]),
    ],
)
def test_loads_and_stores_queue_at_a_shared_memory(memory, finish):
    workload = from_nodes(
        4, rank=[0, 0, 1, 2, 3], kind=[LOAD, STORE, LOAD, LOAD, STORE], bytes=1000
    )
    network = tp.fully_connected(4)
    result = simulated(workload, network, system=AstraSystem(remote_memory=memory))
    assert result.npu_finish_ns.tolist() == finish
    assert result.npu_exposed_ns.tolist() == finish


def test_replay_gives_every_node_its_duration():
    """Nothing is sent: the collective takes 3 us, the send 1 ns; all of it counts as computing."""
    workload = from_nodes(
        2, rank=[0, 0, 1], kind=[COLL, SEND, COMP], bytes=8, peer=[-1, 1, -1],
        duration_ps=[3_000_000, 0, 0], dep_begin=[0, 0, 1, 1], dep=[0],
    )  # fmt: skip
    result = simulated(workload, system=AstraSystem(replay_only=True))
    assert result.npu_finish_ns.tolist() == [3001, 1]
    assert result.npu_exposed_ns.tolist() == [0, 0]


def test_computing_overlaps_a_message():
    """2^20 bytes take 20,031 ns; the receiver computes 30 us meanwhile and is not exposed."""
    workload = from_nodes(
        2, rank=[0, 1, 1], kind=[SEND, RECV, COMP], peer=[1, 0, -1], bytes=2**20, flops=3 * 10**7,
    )  # fmt: skip
    result = simulated(workload)
    assert result.npu_finish_ns.tolist() == [20031, 30000]
    assert result.npu_exposed_ns.tolist() == [20031, 0]


@pytest.mark.parametrize(
    ("nodes", "system", "message"),
    [
        ({"flops": 0, "bytes": 1}, ROOF, "comp node 0 of rank 0, comp node 0 of rank 1 never end, since"),
        ({"flops": 1, "bytes": 1}, AstraSystem(roofline=True), "the roofline divides by zero"),
        ({"flops": 1, "bytes": 1}, ROOF, "comp node 0 of rank 0 takes less than 1 ns"),
        ({"flops": 10**6, "bytes": [0, 1, 1], "rank": [0, 0, 1], "dep_begin": [0, 0, 1, 1], "dep": [0]},
         ROOF, "never finishes: nothing starts comp node 1 of rank 0; .* tensor_size of 0 is none"),
        ({"kind": LOAD, "bytes": 8}, AstraSystem(
            remote_memory=RemoteMemory(shared_by="node", npus_per_node=1, nodes=1)),
         "load node 0 of rank 1 belongs to none of the 1 nodes of 1 NPUs"),
        ({"kind": COLL, "bytes": 8}, AstraSystem(implementations={"all_reduce": ()}),
         "the system has no implementation of this collective"),
        ({"kind": COLL, "bytes": 8}, AstraSystem(memory_bandwidth=None),
         "sums in a local memory whose bandwidth is not given"),
    ],
)  # fmt: skip
def test_names_what_never_finishes(nodes, system, message):
    columns = {"rank": [0, 1], "kind": COMP} | nodes
    with pytest.raises(ValueError, match=message):
        simulated(from_nodes(2, **columns), system=system)


# --- files -------------------------------------------------------------------------------------------


def test_reads_every_key(tmp_path):
    keys = {
        "scheduling-policy": "EXPLICIT", "endpoint-delay": 25, "active-chunks-per-dimension": 2.9,
        "preferred-dataset-splits": 4, "collective-optimization": "localBWAware", "local-mem-bw": 1.5,
        "peak-perf": 0.5, "roofline-enabled": 1, "replay-only": 0, "boost-mode": 0, "L": 1, "G": 0.5,
        "trace-enabled": 1, "all-reduce-implementation": ["ring", "direct4"],
    }  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps(keys))
    found = load_system(tmp_path / "s.json", queues=3)
    assert (found.policy, found.endpoint_delay, found.active_chunks) == ("explicit", "25ns", 2)
    assert (found.splits, found.queues, found.local_bandwidth_aware) == (4, 3, True)
    assert (found.memory_bandwidth, found.peak_flops) == ("1500000000B/s", 5e11)
    assert (found.roofline, found.replay_only) == (True, False)
    assert found.implementations["all_reduce"] == ("ring", "direct4")
    assert found.implementations["all_gather"] == ()
    assert found.remote_memory.shared_by == "none"


def test_reads_custom_collectives_beside_the_file(tmp_path, monkeypatch):
    ring = tp.ring(4, bandwidth="50GiB/s", latency="500ns")
    tacos.workload.save(tacos.workload.ring_all_gather(4, 2**20), tmp_path / "ag")
    (tmp_path / "nodes.yml").write_text("3: ag\n")
    keys = {
        "all-gather-implementation-custom": ["ag"],
        "per-node-custom-implementation": "nodes.yml",
    }
    (tmp_path / "s.json").write_text(json.dumps(keys))
    system = load_system(tmp_path / "s.json")
    assert list(system.algorithms) == ["all_gather", 3]
    once = tacos.workload.collective(4, "all_gather", 7)
    assert simulated(once, ring, system=system).time_ns == 60093
    monkeypatch.chdir(tmp_path)
    assert load_system("s.json").algorithms == system.algorithms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"peak-pref": 1}', r"s.json: unknown key 'peak-pref'; did you mean 'peak-perf'\?"),
        ('{"xyz": 1}', "unknown key 'xyz'; it must be one of scheduling-policy, "),
        ('{"peak-perf": "900"}', "s.json: peak-perf: expected int | float, got str"),
        ('{"roofline-enabled": true}', "roofline-enabled: expected int | float, got bool"),
        ('{"preferred-dataset-splits": 0}', "preferred-dataset-splits is 0; it must be a number"),
        ('{"endpoint-delay": -1}', "endpoint-delay is -1; it must be a number of at least 0"),
        ('{"peak-perf": -2}', "peak-perf is -2; it must be a number of at least 0"),
        ('{"scheduling-policy": "RANDOM"}', "scheduling-policy: invalid enum value 'RANDOM'"),
        ('{"model-shared-bus": 1}', "model-shared-bus is 1, but this simulation has no shared bus"),
        ('{"all-reduce-implementation": "ring"}', "all-reduce-implementation: expected array"),
        ('{"all-gather-implementation-custom": ["a", "b"]}', "custom has 2 entries; it must have one"),
        ('{"all-gather-implementation-custom": ["a"]}', "a.0.et: No such file or directory"),
        ("[1]", r"s.json: it must hold a JSON object; got \[1\]"),
        ("{", "s.json: line 1: not JSON"),
        ("", "s.json: the file is empty"),
        (None, "s.json: No such file or directory"),
    ],
)  # fmt: skip
def test_refuses_system_files(text, message, tmp_path):
    if text is not None:
        (tmp_path / "s.json").write_text(text)
    with pytest.raises(FormatError, match=message) as error:
        load_system(tmp_path / "s.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "m.json: object missing required field memory-type"),
        ('{"memory-type": "RAM"}', "memory-type is 'RAM'; it must be one of NO_MEMORY_EXPANSION"),
        ('{"memory-type": "MEMORY_POOL"}', "remote-mem-bw is 0; it must be a number of at least 1"),
        (
            '{"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-bw": 1}',
            "num-npus-per-node is 0; it must be",
        ),
        ('{"memory-type": "MEMORY_POOL", "bandwidth": 1}', "unknown key 'bandwidth'"),
    ],
)
def test_refuses_memory_files(text, message, tmp_path):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        load_memory(tmp_path / "m.json")


# --- timelines ---------------------------------------------------------------------------------------


def test_a_timeline_has_streams_for_perfetto(tmp_path):
    workload = from_nodes(
        2, rank=[0, 0, 1, 1], kind=[SEND, COMP, RECV, COMP], peer=[1, -1, 0, -1], bytes=2**20,
        flops=10**6, on_cpu=[0, 0, 0, 1], names=["out", "gemm", "", "load data"],
    )  # fmt: skip
    result = simulated(workload)
    line = Timeline(workload, result.node_begin_ns * 1000, result.node_end_ns * 1000)
    assert line.stream.tolist() == [1, 0, 2, 3]
    line.save(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    slices = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (0, 1, "out", 0, 20.031), (0, 0, "gemm", 0, 10.485), (1, 2, "recv", 0, 20.031),
        (1, 3, "load data", 0, 0.001),
    ]  # fmt: skip
    line.save(tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[1] == "0,communication,0,send,0,20031000,1048576,1000000,1,0"
    assert len(lines) == 5
    line.save(tmp_path / "t.json.gz")
    assert np.array_equal(line.end_ps, result.node_end_ns * 1000)
