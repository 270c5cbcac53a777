"""Tables of the best algorithm by size, and their files."""

from __future__ import annotations

import csv
import itertools
import json
import re
from importlib import import_module

import pytest

import tacos
from tacos.cli import main
from tacos.execution import at_size, execution
from tacos.library import Plans
from tacos.search import tuned_files as files
from tacos.search import watch
from tests.support.work import Clock

pytestmark = pytest.mark.unsanitized

RING = tacos.topology.ring(4, bandwidth="50GB/s", latency="500ns")


# One worker runs all tests of the table, so that it is made once.
with_table = pytest.mark.xdist_group("table")


@pytest.fixture(scope="module")
def table():
    return tacos.tune(RING, "all_reduce", "1KB:4MB", effort="fast")


@with_table
def test_the_ranges_have_no_gaps_and_cover_what_was_asked(table):
    assert table.ranges[0].min_bytes == 1000
    assert table.ranges[-1].max_bytes == 4_000_000
    for one, after in zip(table.ranges, table.ranges[1:], strict=False):
        assert one.max_bytes + 1 == after.min_bytes
        assert (one.engine, one.chunks) != (after.engine, after.chunks)
    for one in table.ranges:
        assert tacos.verify(one.schedule).ok
        assert one.min_bytes <= one.schedule.collective.size_bytes <= one.max_bytes
        assert one.schedule.efficiency is not None
        assert 0 < one.efficiency <= one.schedule.efficiency <= 1


@with_table
def test_no_size_is_served_much_worse_than_possible(table):
    for one in table.ranges:
        for size, time_s, bound_s in one.figures:
            wanted = tacos.collective.all_reduce(RING, size)
            best = tacos.synthesize(RING, wanted, effort="fast", refine=False)
            assert bound_s <= time_s <= 1.021 * best.time_s


def test_the_crossover_is_where_one_becomes_faster_than_the_other():
    """On a clique of 4, with 1 us and 1 GB/s: an exchange takes 1 us + S, others 2 us + S/4 (1 + 1/c).

    With c chunks they are even at S = 1000 / (1 - (1 + 1/c) / 4), between the samples 1024 and 4096.
    """
    clique = tacos.topology.fully_connected(4, bandwidth="1GB/s", latency="1us")
    table = tacos.tune(clique, "all_reduce", "1024B:4096B", tolerance=0, effort="fast")
    small, large = table.ranges
    assert small.schedule.time_s == 1e-6 + small.schedule.collective.size_bytes / 1e9
    even = 1000 / (1 - (1 + 1 / large.chunks) / 4)
    assert small.max_bytes == pytest.approx(even, rel=0.05)


def test_a_larger_tolerance_gives_fewer_ranges():
    def ranges(tolerance):
        found = tacos.tune(RING, "all_gather", "1KB:256KB", effort="fast", tolerance=tolerance)
        return len(found.ranges)

    assert ranges(0.9) < ranges(0)


@with_table
def test_a_plan_directory_serves_every_size(table, tmp_path):
    assert table.save(tmp_path, to=("msccl", "mscclpp")) == []
    plans = Plans.load(tmp_path)
    plans.check()
    for size in (1, 1000, 30_000, 1_000_000, 10**10):
        chosen = plans.choose("all_reduce", range(4), size).plan
        assert chosen is not None
        span = [r for r in table.ranges if r.min_bytes <= size <= r.max_bytes]
        if span:
            assert chosen.size_bytes == span[0].schedule.collective.size_bytes
    xml = sorted(tmp_path.glob("*.xml"))
    assert len(xml) == len(table.ranges) == len(list(tmp_path.glob("all_reduce*.json")))
    for path in [*xml, *tmp_path.glob("all_reduce*.json")]:
        assert tacos.verify(tacos.load(path)).ok


def test_each_range_has_its_own_size():
    """If chunks cut a size unevenly, the nearest size that they cut evenly may be in another range."""
    table = tacos.tune(RING, "reduce_scatter", "1001B:1001B", effort="fast")
    for one in table.ranges:
        assert one.min_bytes <= one.schedule.collective.size_bytes <= one.max_bytes


def test_each_algorithm_is_what_synthesize_returns():
    """The exact engine's answers too, which are limited by columns and nodes: a second is more work on one machine than on another."""
    slow = [(2, 0, 1e9, 1.3e-6), (1, 2, 1e9, 1.3e-6), (2, 0, 333333333, 5e-7)]
    fast = [(1, 2, 1e9, 1e-12), (0, 1, 1e9, 0), (1, 2, 25e9, 0), (2, 1, 25e9, 1e-12)]
    network = tacos.topology.from_links(3, slow + fast, link_model="blocking")
    table = tacos.tune(network, "all_reduce", "1000B:2000B")
    assert "milp" in {one.engine for one in table.ranges}
    for one in table.ranges:
        goal = tacos.collective.all_reduce(network, one.schedule.collective.size_bytes)
        best = tacos.synthesize(network, goal)
        assert one.schedule == best
        assert one.schedule.executed_ps == best.executed_ps


@pytest.mark.parametrize("target", [None, "schedule", "tcp", "msccl"])
def test_an_algorithm_keeps_its_order_at_other_sizes(target):
    """A ring of four, in order: three steps of 1 us and a quarter of the bytes at 1 GB/s; and the schedule verifies at each size."""
    ring = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    goal = tacos.collective.all_gather(ring, "4KB", chunks=1)
    found = tacos.synthesize(ring, goal, engine="ring", order="rank", target=target)
    for size in (1000, 4000, 64_000):
        other = at_size(found, size)
        assert tacos.verify(other).ok
        assert other.collective.size_bytes == size
        assert other.executed_s == pytest.approx(3 * (1e-6 + size / 4 / 1e9))
    boxes = tacos.topology.parse("fat-tree:2x2")
    best = tacos.synthesize(
        boxes, tacos.collective.all_reduce(boxes, "1MB"), effort="fast", target=target
    )
    assert at_size(best, "1MB") is best
    assert tacos.verify(at_size(best, "3MB")).ok


@with_table
def test_a_new_table_takes_the_place_of_the_old_one(table, tmp_path):
    table.save(tmp_path)
    gather = tacos.tune(RING, "all_gather", "1KB:4KB", effort="fast")
    gather.save(tmp_path)
    short = tacos.tune(RING, "all_reduce", "1MB:4MB", effort="fast")
    short.save(tmp_path)
    plans = Plans.load(tmp_path).plans
    kinds = [plan.collective for plan in plans]
    assert kinds.count("all_gather") == len(gather.ranges)
    assert kinds.count("all_reduce") == len(short.ranges)


@with_table
def test_the_tuner_table_is_what_nccl_reads(table, tmp_path):
    table.save(tmp_path)
    lines = (tmp_path / "tuner.csv").read_text().splitlines()
    rows = list(csv.reader(line for line in lines if not line.startswith("#")))
    assert int(rows[0][1]) == 1000
    assert int(rows[-1][2]) == 4_000_000
    for row, after in itertools.pairwise(rows):
        assert int(row[2]) + 1 == int(after[1])
    for row in rows:
        assert (row[0], row[7], len(row)) == ("allreduce", "4", 10)
        assert row[3] in ("tree", "ring")
        assert row[4] in ("ll", "ll128", "simple")
    assert files.tuner_csv(tacos.tune(RING, "all_to_all", "1KB:2KB", effort="fast")) == ""


@with_table
def test_other_collectives_stay_in_the_tuner_table(table, tmp_path):
    def kinds():
        lines = (tmp_path / "tuner.csv").read_text().splitlines()
        assert sum(line.startswith("#") for line in lines) == 1
        return [line.split(",")[0] for line in lines[1:]]

    table.save(tmp_path)
    gather = tacos.tune(RING, "all_gather", "1KB:4KB", effort="fast")
    for _ in range(2):
        gather.save(tmp_path)
        assert kinds().count("allreduce") == len(table.nccl)
        assert kinds().count("allgather") == len(gather.nccl)
    (tmp_path / "tuner.csv").write_bytes(b"\xff")
    with pytest.raises(tacos.FormatError, match=r"tuner\.csv: not a text in UTF-8"):
        gather.save(tmp_path)


@with_table
def test_msccl_files_serve_every_size_once(table, tmp_path):
    """The executors use an algorithm for minBytes <= size < maxBytes."""
    table.save(tmp_path, to=("msccl",))
    short = tacos.tune(RING, "all_reduce", "64KB:4MB", effort="fast")
    short.save(tmp_path, to=("msccl",))
    heads = [path.read_text().splitlines()[0] for path in tmp_path.glob("all_reduce*.xml")]
    fields = [dict(re.findall(r'(\w+)="(\d+)"', head)) for head in heads]
    limits = sorted((int(one["minBytes"]), int(one["maxBytes"])) for one in fields)
    assert len(limits) == len(short.ranges)
    assert limits[0][0] == 0
    for (_, high), (low, _) in itertools.pairwise(limits):
        assert high == low


def test_files_of_another_root_stay(tmp_path):
    for root in (0, 2):
        found = tacos.tune(RING, "broadcast", "1KB:4KB", effort="fast", root=root)
        assert found.save(tmp_path, to=("msccl",)) == []
    roots = [path.read_text().split('root="')[1][0] for path in tmp_path.glob("broadcast*.xml")]
    assert sorted(set(roots)) == ["0", "2"]


def test_what_a_format_cannot_hold_is_told(tmp_path):
    table = tacos.tune(RING, "broadcast", "1KB:4KB", effort="fast", root=2)
    (sentence,) = table.save(tmp_path, to=("mscclpp",))
    assert "no mscclpp file for 1 kB to 4 kB" in sentence
    assert Plans.load(tmp_path).choose("broadcast", range(4), 2000, root=2).plan is not None


def test_a_broken_directory_is_told_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tacos, "tune", lambda *_, **__: pytest.fail("the work has begun"))
    (tmp_path / "plans.json").write_text("{")
    assert main(["tune", "ring:4", "all-reduce", "-o", str(tmp_path)]) == 2
    assert "plans.json: not JSON" in capsys.readouterr().err


@with_table
def test_nothing_is_left_where_writing_fails(table, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_exported", broken)
    with pytest.raises(KeyboardInterrupt):
        table.save(tmp_path / "plans", to=("msccl",))
    assert not (tmp_path / "plans").exists()


def test_a_time_limit_ends_the_search(monkeypatch):
    """The clock goes on by a second each time that it is looked at: after the first of 20 sizes, before the last."""
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(import_module("tacos.search.tune"), "time", clock)
    table = tacos.tune(RING, "all_reduce", "1KB:1GB:2", time_limit=100)
    assert table.cut_short
    assert table.ranges[-1].max_bytes == 10**9


def test_a_group_is_tuned_as_a_group():
    table = tacos.tune(RING, "all_gather", "1KB:4KB", group=[0, 2, 3], effort="fast")
    assert table.ranges[0].schedule.collective.parts[0].group.tolist() == [0, 2, 3]
    assert table.nccl == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": "1KB"}, "sizes '1KB' is not understood"),
        ({"kind": "all_sum"}, 'unknown collective "all_sum"'),
        ({"tolerance": -1}, "tolerance must be between 0 and 1; got -1"),
        ({"time_limit": 0}, "time_limit must be positive; got 0"),
    ],
)
def test_wrong_calls(wrong, message):
    with pytest.raises(ValueError, match=message):
        tacos.tune(**{"topology": RING, "kind": "all_reduce", "sizes": "1KB:2KB"} | wrong)


def test_the_command(tmp_path, capsys):
    call = ["tune", "ring:4", "all-gather", "--sizes", "1KB:64KB", "--effort", "fast"]
    folder = tmp_path / "plans"
    assert main([*call, "-o", str(folder), "--to", "msccl", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ranges"][0]["min_bytes"] == 1000
    assert len(list(folder.glob("*.xml"))) == len(told["ranges"])
    assert main(call) == 0
    assert "least" in capsys.readouterr().out
    assert main([*call, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    for wrong, word in ((["--to", "msccl"], "--output"), (["-o", "x", "--to", "y"], '"y"')):
        assert main([*call, *wrong]) == 2
        assert word in capsys.readouterr().err


@pytest.mark.slow
def test_algorithms_are_compared_by_their_executed_times():
    """Between two H100 boxes, trees are shorter on paper and slower when executed than what tune chooses."""
    topology = tacos.topology.dgx_h100(2, nvls=False)
    table = tacos.tune(topology, "all_gather", "64MB:64MB", effort="fast", target="tcp")
    [row] = table.ranges
    found = execution(row.schedule)
    assert found is not None
    [(size, seconds, _)] = row.figures
    assert size == 64_000_000
    assert seconds >= 0.99 * found.time_ps("tcp") * 1e-12
    assert found.time_ps("tcp") <= 1.02 * row.schedule.time_ps
