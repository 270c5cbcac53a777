"""Profiles of ASTRA-sim: whatever is simulated, the nodes are those of the Chakra files.

The reference is always the longest way: files that `save` or the command has written, read by
`workload.load`, run by `astra.run`, which is compared with ASTRA-sim's own runs in `test_astra`.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.program import lower
from tacos.simulate.astra import run
from tacos.workload import from_program, from_schedule, load
from tests.support.chakra_files import COMP, RECV, SEND, field, message, node, put, trace
from tests.support.strategies import collectives, lowered

AWARE = {"astra-sim-aware": True, "astra-sim-unaware": False}
SPEED = {"bandwidth": "50GiB/s", "latency": "500ns"}


def written(obj, folder, **options):
    """The workload of the files that `save` writes."""
    tacos.save(obj, folder / "x", format="chakra", **options)
    return load(folder / "x")


def assert_same_nodes(found, expected):
    for name, column in expected.rows().items():
        np.testing.assert_array_equal(getattr(found, name), column, name)
    assert found == expected  # dependencies and names, too


def finishes(simulated, *what, **options):
    """When ranks are done and messages arrive in ns, or why the network cannot be simulated."""
    try:
        result = simulated(*what, **options)
    except ValueError as error:
        return str(error)
    if isinstance(result, tacos.Trace):
        return (result.npu_finish_ps // 1000).tolist(), sorted(result.arrival_ps // 1000)
    return result.npu_finish_ns.tolist(), sorted(result.arrive_ns)


@st.composite
def networks(draw):
    """What both profiles take: products of blocks, each with its own speed."""
    sums = draw(st.sampled_from([None, "1MB/s", "1GB/s"]))
    blocks = st.sampled_from([tp.ring, tp.fully_connected, tp.switch])
    factors = [
        block(
            draw(st.integers(2, 4)),
            bandwidth=f"{draw(st.sampled_from([1, 50, 333]))}GiB/s",
            latency=f"{draw(st.sampled_from([0, 1, 936]))}ns",
            **({} if sums is None else {"reduce_bandwidth": sums}),
        )
        for block in draw(st.lists(blocks, min_size=1, max_size=2))
    ]
    return tp.product(*factors)


@given(made=lowered())
@settings(max_examples=40)
def test_a_schedule_has_the_nodes_of_its_files(made, tmp_path_factory):
    """Every engine and collective, in place or not; where a profile refuses a network, both ways say so."""
    schedule, program = made
    folder, options = tmp_path_factory.mktemp("nodes"), {"in_place": program.in_place}
    assert_same_nodes(from_schedule(schedule, **options), written(schedule, folder, **options))
    assert_same_nodes(
        from_program(program, None, schedule.topology),
        written(program, folder, topology=schedule.topology),
    )
    workload = written(schedule, folder)
    for profile, aware in AWARE.items():
        expected = finishes(run, workload, schedule.topology, aware=aware)
        assert finishes(tacos.simulate, schedule, profile=profile) == expected


@given(network=networks(), data=st.data())
@settings(max_examples=60)
def test_a_profile_times_what_save_writes(network, data, tmp_path_factory):
    """Engines x collectives x networks: schedule, program, and file of traces, on any such network."""
    collective = data.draw(collectives(network.npus, max_chunks=3))
    assume(all(collective.chunk_bytes()))
    engine = data.draw(st.sampled_from(tacos.engines(network, collective)))
    schedule = tacos.synthesize(network, collective, engine=engine)
    folder = tmp_path_factory.mktemp("times")
    workload = written(schedule, folder)
    program = lower(schedule)
    as_program = written(program, folder, topology=network)
    tacos.save(schedule, folder / "x", format="chakra")
    for profile, aware in AWARE.items():
        expected = finishes(run, workload, network, aware=aware)
        assert not isinstance(expected, str)
        for what in (schedule, folder / "x"):
            assert finishes(tacos.simulate, what, network, profile=profile) == expected
        expected = finishes(run, as_program, network, aware=aware)
        assert finishes(tacos.simulate, program, network, profile=profile) == expected


def test_a_program_of_several_collectives_keeps_their_sizes(tmp_path):
    """Halves of 4 MB and of 8 MB, on two pairs of a ring."""
    network = tp.ring(4)
    pairs = [co.all_gather(network, size, group=group, chunks=1)
             for size, group in (("4MB", [0, 1]), ("8MB", [2, 3]))]  # fmt: skip
    schedule = tacos.synthesize(network, co.together(*pairs), engine="greedy")
    for workload in (from_program(lower(schedule)), written(lower(schedule), tmp_path)):
        assert set(workload.bytes[workload.kind == 0].tolist()) == {2_000_000, 4_000_000}


def sim(capsys, *words):
    """Return the command's figures of a run."""
    assert main(["sim", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce", "all_to_all"])
@pytest.mark.parametrize("spec", ["mesh:3x3", "ring:5", "switch:4", "torus:2x3"])
def test_the_command_times_what_convert_writes(spec, kind, tmp_path, capsys, monkeypatch):
    """Schedules, traces, MSCCL and MSCCL++ programs take as long as the traces that convert makes of
    them, on the network that it writes with them."""
    monkeypatch.chdir(tmp_path)
    network = tp.parse(f"{spec}@50GiB/s,500ns")
    root = {"root": 2} if kind == "reduce" else {}
    collective = co.named(kind, network, "9MiB", chunks=2, **root)
    tacos.save(tacos.synthesize(network, collective, effort="fast"), "x.tacos")
    made = [["x.tacos"]]
    for file in ("x.xml", "x.json") if kind == "all_reduce" else ():
        assert main(["convert", "x.tacos", file, "--quiet"]) == 0
        made.append([file, "--size", "9MiB", "--topology", f"{spec}@50GiB/s,500ns"])
    for words in made:
        assert main(["convert", *words, "y.et", "--quiet"]) == 0
        workload, beside = load("y"), tacos.load("y.network.yml")
        for profile, aware in AWARE.items():
            expected = run(workload, beside, aware=aware).time_ns
            traces = sim(capsys, "y.0.et", "--topology", "y.network.yml", "--profile", profile)
            assert round(traces["time_s"] * 1e9) == expected
            found = sim(capsys, *words, "--profile", profile)
            assert round(found["time_s"] * 1e9) == expected
            assert found["transfers"] == traces["transfers"]


def shipped_ring(folder, ranks=8, shard=2**17):
    """The all-reduce that comes with ASTRA-sim, node by node: around a ring, sums take 7 us."""
    files = []
    for rank in range(ranks):
        nodes: list[bytes] = []
        before: list[int] = []
        for step in range(2 * (ranks - 1)):
            ends = {"size": shard, "tag": step}
            nodes.append(message(SEND, (rank + 1) % ranks, id=len(nodes), deps=before, **ends))
            nodes.append(message(RECV, (rank - 1) % ranks, id=len(nodes), **ends))
            before = [len(nodes) - 1]
            if step < ranks - 1:
                nodes.append(node(len(nodes), COMP, deps=before, extra=field(7, 7)))
                before = [len(nodes) - 1]
        files.append(trace(*nodes))
    return put(folder, *files)


@pytest.mark.parametrize("profile", AWARE)
def test_traces_of_others_keep_their_sizes_and_durations(profile, tmp_path, capsys):
    """ASTRA-sim reports 90174 ns for its own ring: 14 hops of 2941 ns, 7 sums of 7 us."""
    prefix = shipped_ring(tmp_path)
    network = tp.ring(8, **SPEED)
    trace = tacos.simulate(prefix, network, profile=profile)
    assert (trace.npu_finish_ps == 90_174_000).all()
    for file in (f"{prefix}.0.et", prefix):
        found = sim(capsys, file, "--topology", "ring:8@50GiB/s,500ns", "--profile", profile)
        assert found["time_s"] == 90174e-9


def test_the_command_says_what_it_assumes_of_traces_and_programs(tmp_path, capsys):
    network = tp.ring(4, **SPEED)
    schedule = tacos.synthesize(network, co.all_gather(network, "4MiB", chunks=1), engine="ring")
    tacos.save(schedule, tmp_path / "x.et")
    tacos.save(schedule, tmp_path / "x.xml")
    profile = ["--profile", "astra-sim-aware"]
    assert main(["sim", str(tmp_path / "x.0.et"), *profile]) == 0
    shown = capsys.readouterr()
    network_line = "tacos: assuming a fully connected network of 4 NPUs; set it with --topology\n"
    assert network_line in shown.err
    assert "--size" not in shown.err
    assert "assuming" not in shown.out
    assert main(["sim", str(tmp_path / "x.xml"), *profile]) == 0
    shown = capsys.readouterr()
    assert "tacos: assuming 1 MB; set it with --size\n" in shown.err
    assert network_line in shown.err
    assert "assuming" not in shown.out


def test_own_traces_may_be_run_with_another_size(tmp_path, capsys):
    """4 MiB take 3 hops of 20031 ns, 8 MiB 3 of 39562 ns; traces of other tools have a fixed size."""
    network = tp.ring(4, bidirectional=False, **SPEED)
    schedule = tacos.synthesize(network, co.all_gather(network, "4MiB", chunks=1), engine="ring")
    tacos.save(schedule, tmp_path / "x.et")
    words = ["--topology", "ring:4@50GiB/s,500ns", "--profile", "astra-sim-aware"]
    assert sim(capsys, tmp_path / "x.0.et", *words)["time_s"] == 60093e-9
    assert sim(capsys, tmp_path / "x.0.et", *words, "--size", "8MiB")["time_s"] == 118686e-9
    prefix = shipped_ring(tmp_path)
    words[1] = "ring:8"
    assert main(["sim", str(prefix), *words, "--size", "8MiB"]) == 2
    assert "send-recv has sizes of its own" in capsys.readouterr().err


def test_a_size_is_for_programs(tmp_path):
    prefix = shipped_ring(tmp_path)
    with pytest.raises(ValueError, match="size is 1MB, but only a program takes a size"):
        tacos.simulate(prefix, tp.ring(8), size="1MB", profile="astra-sim-aware")
