"""Workloads: the validating constructor, files, tables and pickles."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos.errors import FormatError
from tacos.simulate.astra import AstraSystem, run
from tacos.workload import (
    COLL,
    COMMS,
    COMP,
    LOAD,
    RECV,
    SEND,
    STORE,
    collective,
    from_nodes,
    load,
    save,
)

PAIR = {"rank": [0, 1], "kind": [SEND, RECV], "peer": [1, 0], "bytes": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": [SEND, 9]}, "node 0 of rank 1: kind is 9"),
        ({"peer": [0, 0]}, "node 0 of rank 0: peer is 0"),
        ({"peer": [1, 2]}, "node 0 of rank 1: peer is 2"),
        ({"tag": [-1, 0]}, "node 0 of rank 0: tag is -1"),
        ({"bytes": -1}, "node 0 of rank 0: bytes is -1; it must be at least 0"),
        ({"flops": -1}, "node 0 of rank 0: flops is -1; it must be at least 0"),
        ({"kind": LOAD, "bytes": -8}, "node 0 of rank 0: bytes is -8"),
        ({"duration_ps": -1}, "node 0 of rank 0: duration_ps is -1"),
        ({"kind": COLL, "comm": 10}, "node 0 of rank 0: comm is 10"),
        ({"kind": COLL, "group": 1}, "group 1 is not defined"),
        ({"kind": COLL, "group": 1, "groups": {1: [1, 0]}}, "group 1 must list its ranks"),
        ({"kind": COLL, "group": 1, "groups": {1: [1]}}, "node 0 of rank 0: group 1 does not hold"),
        ({"groups": {0: [0, 1]}}, "group 0: groups are numbered from 1"),
        ({"groups": {1: []}}, "group 1 has no ranks"),
        ({"groups": {1: [0, 2]}}, "group 1 names rank 2, but the ranks are 0 to 1"),
        ({"names": ["a"]}, "name has 1 entries for 2 nodes"),
        ({"id": [-1, 0]}, "node -1 of rank 0: id is negative"),
        ({"rank": [0, 2]}, "rank is 2 in row 1; it must be from 0 to 1"),
        ({"rank": [0, 0], "peer": 1}, "rank 1 has no node"),
        ({"bytes": [1, 2, 3]}, "bytes has 3 entries for 2 nodes"),
        ({"dep_begin": [0, 1, 1], "dep": [1]}, "node 0 of rank 0: it depends on row 1"),
        ({"dep_begin": [0, 2, 1], "dep": [1]}, "dep_begin must ascend"),
        ({"kind": [0.5, 1]}, "kind must be whole numbers"),
    ],
)
def test_refuses_nodes(changes, message):
    with pytest.raises(ValueError, match=message):
        from_nodes(2, **PAIR | changes)


def test_refuses_ids_that_come_twice():
    with pytest.raises(ValueError, match="two nodes of rank 0 have the id 3"):
        from_nodes(1, rank=[0, 0], kind=COMP, id=[3, 3])


def test_names_nodes_that_wait_for_each_other():
    cycle = {"dep_begin": [0, 0, 1, 2, 3], "dep": [2, 3, 1]}
    with pytest.raises(ValueError, match="nodes 1, 2, 3 of rank 0 wait for each other"):
        from_nodes(1, rank=[0] * 4, kind=COMP, **cycle)


def test_a_group_may_have_one_rank():
    """STG defines a group for each dimension of parallelism, even if it has only one rank."""
    workload = from_nodes(2, rank=[0, 1], kind=COMP, groups={7: [1], 3: [0, 1]})
    assert workload.groups == [(3, [0, 1]), (7, [1])]


@st.composite
def workloads(draw):
    """Draw nodes with any names, groups, fractions of microseconds and gaps between ids."""
    npus = draw(st.integers(1, 4))
    groups = draw(
        st.dictionaries(
            st.integers(1, 99),
            st.sets(st.integers(0, npus - 1), min_size=1).map(sorted),
            max_size=3,
        )
    )
    rows: list[dict[str, object]] = []
    begin, dep = [0], []
    for rank in range(npus):
        first = len(rows)
        mine = [0, *(number for number, members in groups.items() if rank in members)]
        count = draw(st.integers(1, 5))
        ids = draw(st.lists(st.integers(0, 2**62), min_size=count, max_size=count, unique=True))
        for number in sorted(ids):  # dependencies are read in the order of ids
            kinds = [COMP, COLL, LOAD, STORE] + ([SEND, RECV] if npus > 1 else [])
            kind = draw(st.sampled_from(kinds))
            message, whole, comp = kind in (SEND, RECV), kind == COLL, kind == COMP
            others = [other for other in range(npus) if other != rank]
            rows.append(
                {
                    "rank": rank,
                    "id": number,
                    "kind": kind,
                    "peer": draw(st.sampled_from(others)) if message else -1,
                    "bytes": draw(st.integers(0, 2**40)),
                    "tag": draw(st.integers(0, 9)) if message else 0,
                    "duration_ps": draw(st.integers(0, 10**18)) if comp else 0,
                    "flops": draw(st.integers(0, 2**62)) if comp else 0,
                    "comm": draw(st.sampled_from(list(COMMS.values()))) if whole else 0,
                    "group": draw(st.sampled_from(mine)) if whole else 0,
                    "priority": draw(st.integers(-9, 9)) if whole else 0,
                    "dims": draw(st.integers(0, 255)) if whole else 255,
                    "on_cpu": draw(st.integers(0, 1)) if comp else 0,
                    "names": draw(st.sampled_from(["", "mlp", "läuft"])),
                }
            )
            past = (
                st.sampled_from(range(first, len(rows) - 1))
                if len(rows) - 1 > first
                else st.nothing()
            )
            dep += sorted(draw(st.sets(past, max_size=2)) if len(rows) - 1 > first else [])
            begin.append(len(dep))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return from_nodes(npus, **columns, dep_begin=begin, dep=dep, groups=groups)


@given(workload=workloads())
@settings(max_examples=40)
def test_files_and_pickles_keep_every_node(workload, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("w") / "step"
    save(workload, prefix)
    assert load(prefix) == workload
    assert load(f"{prefix}.0.et") == workload
    assert pickle.loads(pickle.dumps(workload)) == workload
    assert len({workload, pickle.loads(pickle.dumps(workload))}) == 1


def test_workloads_differ_by_any_column():
    pair = from_nodes(2, **PAIR)
    changed: list[dict[str, object]] = [
        {"tag": 1}, {"bytes": 9}, {"id": [1, 0]}, {"names": "x"}, {"groups": {1: [0]}},
        {"kind": COMP, "flops": 1}, {"kind": COMP, "duration_ps": 1}, {"priority": 1},
    ]  # fmt: skip
    for change in changed:
        assert from_nodes(2, **PAIR | change) != pair
    assert pair != "a workload"


def test_columns_cannot_be_written_to():
    workload = from_nodes(1, rank=[0, 0], kind=COMP, dep_begin=[0, 0, 1], dep=[0])
    for column in (*workload.rows().values(), workload.dep, workload.dep_begin):
        with pytest.raises(ValueError, match="read-only"):
            column[...] = 0


def test_tables_have_one_row_per_node():
    workload = from_nodes(2, rank=[1, 0], kind=[RECV, SEND], peer=[0, 1], bytes=8, names=["b", "a"])
    assert workload.to_arrow().column("rank").to_pylist() == [0, 1]
    frame = pytest.importorskip("pandas") and workload.to_pandas()
    assert frame["bytes"].tolist() == [8, 8]
    assert [workload.names[name] for name in workload.name] == ["a", "b"]


def test_nodes_in_words():
    workload = from_nodes(2, **PAIR, id=[4, 5], tag=7)
    assert workload.describe(0) == "send node 4 of rank 0 (to rank 1, tag 7, 8 B)"
    with pytest.raises(IndexError, match="row 2 is not one of 0 to 1"):
        workload.describe(2)


# --- files -------------------------------------------------------------------------------------------


def test_groups_come_from_the_file_beside_or_a_named_one(tmp_path):
    workload = from_nodes(4, rank=range(4), kind=COLL, bytes=8, group=[1, 1, 2, 2],
                          groups={1: [0, 1], 2: [2, 3]})  # fmt: skip
    save(workload, tmp_path / "w")
    assert json.loads((tmp_path / "w.json").read_text()) == {"1": [0, 1], "2": [2, 3]}
    (tmp_path / "w.json").rename(tmp_path / "groups.json")
    with pytest.raises(FormatError, match="w: group 1 is not defined"):
        load(tmp_path / "w")
    assert load(tmp_path / "w", groups=tmp_path / "groups.json") == workload
    assert load(tmp_path / "w", groups={1: [0, 1], 2: [2, 3]}) == workload


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"1": [0, "x"]}', "groups.json: Expected `int`"),
        ('{"1": [0, 1}', "groups.json: JSON is malformed"),
        ("", "groups.json: the file is empty"),
        ('{"1": [1, 0]}', "group 1 must list its ranks in ascending order"),
        (None, "groups.json: No such file or directory"),
    ],
)
def test_refuses_groups(text, message, tmp_path):
    save(collective(2, "all_reduce", "1KB"), tmp_path / "w")
    if text is not None:
        (tmp_path / "groups.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        load(tmp_path / "w", groups=tmp_path / "groups.json")


def test_durations_between_microseconds_are_rounded_for_others(tmp_path):
    """1.4999 us and 1.5 us: protobuf field 7 is 1 and 2; the exact time stands in an attribute."""
    workload = from_nodes(
        1, rank=[0, 0, 0], kind=COMP, duration_ps=[1_499_900, 1_500_000, 3_000_000]
    )
    save(workload, tmp_path / "w")
    data = (tmp_path / "w.0.et").read_bytes()
    assert [data.count(bytes([7 << 3, us])) for us in (1, 2, 3)] == [1, 1, 1]
    assert data.count(b"tacos_duration_ps") == 2
    assert load(tmp_path / "w") == workload


def test_leaves_no_files_of_a_larger_workload(tmp_path):
    save(collective(3, "all_reduce", "1KB"), tmp_path / "w")
    with pytest.raises(FormatError, match=r"w\.2\.et: the file exists, but .* 2 ranks"):
        save(collective(2, "all_reduce", "1KB"), tmp_path / "w")


def test_traces_with_work_load_as_workloads_and_messages_as_programs(tmp_path):
    for kind, more in ((COLL, {}), (STORE, {}), (COMP, {"flops": 1}), (COMP, {})):
        workload = from_nodes(2, rank=[0, 1], kind=kind, bytes=8, **more)
        save(workload, tmp_path / "w")
        assert tacos.load(tmp_path / "w.0.et") == workload
    save(from_nodes(2, **PAIR), tmp_path / "w")
    assert isinstance(tacos.load(tmp_path / "w"), tacos.Program)
    assert isinstance(tacos.load(tmp_path / "w", groups={1: [0]}), tacos.Workload)


# --- files of others ---------------------------------------------------------------------------------

DATA = Path(os.environ.get("TACOS_TEST_DATA", "/nonexistent"), "astra-golden")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="TACOS_TEST_DATA has no astra-golden")


@needs_data
@pytest.mark.parametrize(
    ("case", "ranks", "kinds"),
    [
        ("1_data_parallel_ring8", 8, {COMP, COLL}),
        ("4_remote_memory_3d", 16, {COMP, COLL, LOAD, STORE}),
        ("5_remote_memory_only4", 4, {COMP, LOAD}),
        ("6_roofline_rounding13", 13, {COMP}),
        ("7_stg_gpt_dp2_tp2", 4, {COMP, COLL}),
    ],
)
def test_reads_traces_of_others(case, ranks, kinds, tmp_path):
    groups = DATA / case / "groups.json"
    workload = load(DATA / case / "workload", groups=groups if groups.is_file() else None)
    assert workload.npus == ranks
    assert set(workload.kind.tolist()) == kinds
    assert (workload.flops[workload.kind == COMP] > 0).any()
    save(workload, tmp_path / "again")
    assert load(tmp_path / "again") == workload


@needs_data
def test_runs_traces_of_others():
    """Collectives over chosen dimensions and computations of 1 ns, as ASTRA-sim's own binary ran them."""
    folder = DATA / "2_hybrid_fc4_switch4"
    expected = json.loads((folder / "expected.json").read_text())["runs"]["unaware_replay"]
    halving = ["direct", "halvingDoubling"]
    implementations = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), halving)
    result = run(
        load(folder / "workload"),
        tacos.load(folder / "unaware_replay.network.yml"),
        aware=False,
        as_custom=False,
        system=AstraSystem(
            splits=2, implementations={**implementations, "all_to_all": ["direct", "direct"]}
        ),
    )
    assert result.npu_finish_ns.tolist() == expected["finish_cycles"]
    assert result.npu_exposed_ns.tolist() == expected["exposed_communication_cycles"]


@needs_data
def test_memory_nodes_are_refused_by_name():
    workload = load(DATA / "5_remote_memory_only4" / "workload")
    with pytest.raises(ValueError, match=r"(load|store) node \d+ of rank 0 needs a memory outside"):
        run(workload, tacos.topology.ring(4), aware=True, as_custom=False)


def test_another_json_file_of_the_prefix_is_not_taken_for_groups(tmp_path):
    """`tacos.save` writes MSCCL++ plans and Chakra traces of one name into one directory."""
    topology = tacos.topology.ring(4)
    schedule = tacos.synthesize(topology, tacos.collective.all_gather(topology, "4MiB", chunks=1))
    tacos.save(schedule, tmp_path / "ag.json")
    tacos.save(schedule, tmp_path / "ag.et")
    assert tacos.workload.load(tmp_path / "ag").nodes > 0
    assert tacos.load(tmp_path / "ag.0.et").ranks == 4
