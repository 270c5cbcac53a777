"""Comparisons: winners, executors, engines that do not apply, verdicts and pictures."""

from __future__ import annotations

import csv
import json
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings

import tacos
from tacos import collective as co
from tacos import view
from tacos.cli import main
from tacos.search import watch
from tests.support.conditions import PATIENCE_S
from tests.support.programs import changed
from tests.support.strategies import orders, topologies
from tests.support.work import Clock

pytestmark = pytest.mark.unsanitized

RING = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")


def gathers(*sizes):
    return [tacos.collective.all_gather(RING, size) for size in sizes]


def without_seconds(result):
    return [
        {name: value for name, value in row.items() if name != "synthesis_s"}
        for row in result.rows()
    ]


# Results.


def test_figures_are_those_of_nccl_tests():
    """A ring of 4 gathers 4 MB in 3 hops of 1 MB: 3 ms and 3 us; busbw is 3/4 of algbw, and the
    bound is two hops to the NPU opposite."""
    coll = tacos.collective.all_gather(RING, "4MB", chunks=1)
    result = tacos.compare(RING, coll, engines=["ring"])
    (row,) = result.rows()
    assert row["executed_s"] == pytest.approx(3.003e-3)
    assert row["algbw_Bps"] == pytest.approx(4e6 / 3.003e-3)
    assert row["busbw_Bps"] == pytest.approx(3e6 / 3.003e-3)
    assert row["bound_s"] == result.bound_s == pytest.approx(2.002e-3)
    assert row["efficiency"] == pytest.approx(2 / 3)
    assert row["size_bytes"] == 4_000_000
    assert not row["cut_short"]


def test_a_sweep_is_the_comparisons_of_its_sizes():
    problems = gathers("4KB", "4MB")
    sweep = tacos.compare(RING, problems)
    assert isinstance(sweep, tacos.Sweep)
    for problem, one in zip(problems, sweep.comparisons, strict=True):
        alone = tacos.compare(RING, problem)
        assert without_seconds(alone) == without_seconds(one)
        assert alone.best == one.best
        assert sum(c.schedule is not None for c in one.candidates) == 1


def won_by(engine, size):
    figures = tacos.Figures(1.0, 1.0, size, size, 1, 1, 1.0, cut_short=False)
    winner = tacos.Candidate(engine, None, True, "", 0.0, figures)
    failed = tacos.Candidate("swing", None, False, "no torus", 0.0)
    return tacos.Comparison(RING, gathers(size)[0], (winner, failed), bound_s=0.5)


def test_winners_are_ranges_of_sizes():
    row = ["direct", "direct", "ring", "direct", "ring", "ring"]
    sweep = tacos.Sweep(RING, tuple(won_by(name, 4**k) for k, name in enumerate(row)))
    assert sweep.winners() == [
        (1, 4, "direct"),
        (16, 16, "ring"),
        (64, 64, "direct"),
        (256, 1024, "ring"),
    ]
    assert sweep.engines == ("direct", "ring")
    assert sweep.verdict() == (
        "The fastest: direct at 1 B to 4 B, ring at 16 B, direct at 64 B, ring at 256 B to 1 KiB."
    )
    assert view.remarks(sweep)[1:] == ["swing failed: no torus."]


def test_a_named_engine_that_does_not_apply_says_so():
    result = tacos.compare(RING, tacos.collective.all_reduce(RING, "1MB"), engines=["balanced"])
    assert view.remarks(result)[1:] == [
        "balanced does not apply: it needs all-to-all-v or send-recv, not all-reduce."
    ]


def test_the_same_collective_twice_is_two_rows():
    (one,) = gathers("4KB")
    sweep = tacos.compare(RING, [one, one], engines=["ring"])
    assert [len(each.candidates) for each in sweep.comparisons] == [1, 1]


def test_engines_that_do_not_apply_say_what_they_need():
    result = tacos.compare(RING, gathers("4MB")[0])
    needs = dict(result.left_out)
    assert needs["one-shot"] == "all-reduce, not all-gather"
    asked = [c.engine for c in result.candidates if c.engine != "auto"]
    assert set(needs).isdisjoint(asked)
    assert set(needs) | set(asked) == set(tacos.synth.concerned(RING))


@pytest.mark.parametrize("target", [None, "tcp"])
def test_the_row_of_auto_is_what_synthesize_returns(target):
    """A slow NIC of one of two boxes: executed times, schedules and the verdict agree to the last digit."""
    boxes = tacos.topology.parse("fat-tree:2x2@50GB/s,500ns")
    broken = tacos.topology.degrade(boxes, (0, 4), factor=0.5, both=True)
    wanted = tacos.collective.all_reduce(broken, "1MB")
    result = tacos.compare(broken, wanted, target=target)
    alone = tacos.synthesize(broken, wanted, target=target)
    (auto,) = [one for one in result.candidates if one.engine == "auto"]
    assert auto.schedule == alone
    assert auto.figures.executed_s == alone.executed_s
    assert auto.figures.busbw_Bps == alone.busbw_Bps
    assert result.efficiency(auto) == alone.efficiency
    assert auto.found_by == alone.engine
    assert result.candidates[0] is auto
    assert result.verdict().startswith(f"auto ({alone.engine}) is the fastest: ")
    assert len(result.candidates) > 5


# The same on every executor.


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_results_do_not_depend_on_the_number_of_threads(threads):
    topology = tacos.topology.parse("fat-tree:2x2@50GB/s,500ns")
    problems = [tacos.collective.all_reduce(topology, size) for size in ("16KB", "1MB")]
    with ThreadPoolExecutor(threads) as pool:
        there = tacos.compare(topology, problems, executor=pool)
    assert without_seconds(there) == without_seconds(tacos.compare(topology, problems))


def test_another_process_can_do_the_work():
    problems = gathers("4KB", "4MB")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = tacos.compare(RING, problems, executor=pool)
    here = tacos.compare(RING, problems)
    assert without_seconds(there) == without_seconds(here)
    assert [one.best for one in there.comparisons] == [one.best for one in here.comparisons]


@given(topology=topologies())
@settings(max_examples=40)
def test_topologies_can_be_pickled(topology):
    assert pickle.loads(pickle.dumps(topology)) == topology


@given(order=orders())
@settings(max_examples=40)
def test_schedules_can_be_pickled(order):
    schedule = order.retimed().with_provenance({"engine": "mine", "bound_s": float("inf")})
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert again.provenance == schedule.provenance
    assert pickle.loads(pickle.dumps(schedule.collective)) == schedule.collective


def test_programs_can_be_pickled():
    program = tacos.lower(tacos.synthesize(RING, *gathers("4MB")))
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    assert again.provenance == program.provenance


def test_orbits_can_be_pickled():
    topology = tacos.topology.torus(4, 4)
    schedule = tacos.synthesize(
        topology, tacos.collective.all_gather(topology, "16MB"), engine="symmetric"
    )
    assert schedule.form == "orbit"
    assert pickle.loads(pickle.dumps(schedule)) == schedule


# Budgets, progress and Ctrl-C.


def test_an_engine_that_is_too_slow_is_not_asked_again(monkeypatch):
    """The only thread asks greedy first, which takes all its time, and then ring, which waits until that is known."""
    asked = []
    now = 0.0
    known = threading.Event()
    module = import_module("tacos.search.compare")
    synthesize = module.synthesize

    def slow(topology, collective, *, engine, time_limit, **others):
        nonlocal now
        asked.append((engine, collective.size_bytes))
        if engine == "greedy":
            now += time_limit
            raise tacos.TacosError("time_limit passed")
        assert known.wait(PATIENCE_S)
        return synthesize(topology, collective, engine=engine, **others)

    def heed(share):
        if share >= 1 / 2:  # the three tasks of greedy are done or cancelled
            known.set()

    monkeypatch.setattr(module, "synthesize", slow)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))
    with ThreadPoolExecutor(1) as pool:
        sweep = tacos.compare(
            RING,
            gathers("4KB", "8KB", "16KB"),
            engines=["greedy", "ring"],
            time_limit=1,
            executor=pool,
            progress=heed,
        )
    notes = [[c.note for c in one.candidates if not c.ok] for one in sweep.comparisons]
    skipped = ["not tried: found nothing in 1 s at 4 kB"]
    assert notes == [["time_limit passed"], skipped, skipped]
    assert [size for engine, size in asked if engine == "greedy"] == [4000]
    assert all(one.solved[0].engine == "ring" for one in sweep.comparisons)


def test_a_search_that_the_limit_cut_short_says_so(monkeypatch):
    """There is time for a few of a million trials."""
    monkeypatch.setattr(watch, "time", Clock())
    topology = tacos.topology.torus(3, 3)
    collective = tacos.collective.all_gather(topology, "9MB", chunks=1)
    result = tacos.compare(topology, collective, engines=["greedy"], effort=10**6, time_limit=100)
    (row,) = result.rows()
    assert row["cut_short"]
    assert "greedy was cut short: more time may find better." in view.remarks(result)


def test_progress_goes_up_to_one():
    shares: list[float] = []
    tacos.compare(RING, gathers("4KB", "4MB"), progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_what_progress_raises_stops_all_threads():
    topology = tacos.topology.ring(512)
    problems = [tacos.collective.all_reduce(topology, "512MB", chunks=1) for _ in range(4)]

    def interrupt(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacos.compare(topology, problems, engines=["greedy", "ring"], progress=interrupt)
    assert [t for t in threading.enumerate() if "ThreadPool" in t.name] == []


# Algorithms made elsewhere.


def test_a_program_is_put_on_the_network_at_each_size():
    """The ring's program, made for 1 MB on a faster network, takes as long here as the ring."""
    fast = tacos.topology.ring(4)
    goal, *wanted = (co.all_gather(RING, size, chunks=1) for size in ("1MB", "4KB", "4MB"))
    program = tacos.lower(tacos.synthesize(fast, goal, engine="ring"))
    sweep = tacos.compare(RING, wanted, engines=["ring"], beside={"theirs": program})
    for one in sweep.comparisons:
        times = {row["engine"]: row["executed_s"] for row in one.rows()}
        assert times["theirs"] == times["ring"]
        assert all(candidate.ok for candidate in one.candidates)


def test_a_schedule_for_this_very_problem_is_taken_as_it_is():
    (problem,) = gathers("4MB")
    made = tacos.synthesize(RING, problem, engine="ring")
    one = tacos.compare(RING, problem, engines=["bidirectional-ring"], beside={"mine": made})
    assert {c.engine: c.schedule for c in one.candidates}["mine"] == made
    other = tacos.topology.ring(4, bandwidth="2GB/s", latency="1us")
    there = tacos.compare(other, problem, engines=["ring"], beside={"mine": made})
    assert there.candidates[0].figures.ideal_s == there.candidates[1].figures.ideal_s


def test_another_process_compares_programs():
    (problem,) = gathers("4MB")
    program = tacos.lower(tacos.synthesize(RING, problem, engine="ring"))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        one = tacos.compare(RING, problem, engines=[], beside={"p": program}, executor=pool)
    assert [(c.engine, c.ok) for c in one.candidates] == [("p", True)]


def test_a_wrong_program_fails_in_words():
    (problem,) = gathers("4MB")
    program = tacos.lower(tacos.synthesize(RING, problem, engine="ring"))
    slot = program.dst_slot.copy()
    received = np.flatnonzero(program.comes_from >= 0)[:2]
    slot[received] = slot[received[::-1]]
    wrong = changed(program, dst_slot=slot)
    (candidate,) = tacos.compare(RING, problem, engines=[], beside={"w": wrong}).candidates
    assert not candidate.ok
    assert candidate.note.startswith("the program is wrong: ")


def test_the_command_puts_files_beside_our_engines(capsys, tmp_path):
    made = tacos.synthesize(RING, *gathers("4MB"), engine="ring")
    for name in ("ag.xml", "ag.json", "ag.et"):
        tacos.save(made, tmp_path / name)
    files = [f"--with={tmp_path / name}" for name in ("ag.xml", "ag.json", "ag")]
    spec = "ring:4@1GB/s,1us"
    assert main(["compare", spec, "all-gather", "4MB", "--engines=ring", *files, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["engine"] for row in rows} == {"ring", "ag.xml", "ag.json", "ag"}
    assert len({row["executed_s"] for row in rows}) == 1
    assert main(["compare", spec, "all-reduce", "4MB", files[0]]) == 2
    assert "ag.xml is for all_gather of 4 on 4 NPUs" in capsys.readouterr().err


def test_the_command_sorts_sizes_and_drops_duplicates(capsys):
    words = ["1MB", "3KB", "1000B", "--sweep", "1KB:4KB", "--engines=ring", "--json"]
    assert main(["compare", "ring:4", "all-gather", *words]) == 0
    sizes = [row["size_bytes"] for row in json.loads(capsys.readouterr().out)]
    assert sizes == [1000, 2000, 3000, 4000, 1_000_000]


# Wrong calls.


@pytest.mark.parametrize(
    ("collectives", "options", "message"),
    [
        ([], {}, "empty list"),
        (gathers("4KB"), {"engines": ["rink"]}, 'unknown engine "rink"'),
        (gathers("4KB"), {"time_limit": 0}, "time_limit must be positive; got 0"),
        ([tacos.collective.all_gather(5, "1KB")], {}, "for 5 NPUs, but the topology has 4"),
        (
            [*gathers("4KB"), tacos.collective.all_reduce(RING, "4KB")],
            {},
            "all-gather and all-reduce; a comparison takes one kind",
        ),
    ],
)
def test_wrong_calls_are_named(collectives, options, message):
    with pytest.raises(ValueError, match=message):
        tacos.compare(RING, collectives, **options)


# Verdicts and pictures.


def test_the_verdict_names_the_winner_and_its_lead():
    coll = tacos.collective.all_gather(RING, "4MB", chunks=2)
    result = tacos.compare(RING, coll, engines=["ring", "bidirectional-ring"])
    assert result.speed_up() == pytest.approx(2, rel=0.01)
    assert result.verdict().startswith("bidirectional-ring is the fastest: 1.50")
    assert "times as fast as ring." in result.verdict()


def test_nothing_solved_is_said():
    topology = tacos.topology.fully_connected(5)
    collective = tacos.collective.all_reduce(topology, "1MB")
    result = tacos.compare(topology, collective, engines=["swing"])
    assert result.verdict() == "No engine solved the all-reduce of 1 MB."
    assert view.comparison_tables(result)
    with pytest.raises(ValueError, match="no engine solved"):
        view.picture(result)
    sweep = tacos.compare(topology, [collective], engines=["swing"])
    assert sweep.verdict() == "No engine solved any of the sizes."


def names(svg):
    return {text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


def test_a_picture_has_all_engines_and_the_bound():
    sweep = tacos.compare(RING, gathers("4KB", "4MB"))
    assert {*sweep.engines, "bound", "time", "busbw", "size"} <= names(view.picture(sweep, "mine"))
    assert "all-gather on mine, 4 NPUs" in names(view.picture(sweep, "mine"))
    one = sweep.comparisons[1]
    assert {c.name for c in one.solved} <= names(view.picture(one))


def test_a_collective_without_busbw_is_drawn_by_algbw():
    coll = tacos.collective.custom(RING, ["1KB"], [[0]], [[1, 2]])
    result = tacos.compare(RING, [coll, coll])
    assert "algbw" in names(view.picture(result))
    assert "algbw" in names(view.picture(result.comparisons[0]))


# The command.


def test_the_command_takes_sizes_and_a_sweep(capsys, tmp_path):
    table, drawn = tmp_path / "figures.csv", tmp_path / "figures.svg"
    call = ["compare", "ring:4", "all-gather", "4KB", "--sweep", "8KB:40KB", "--engines"]
    assert main([*call, "ring,direct", "--csv", str(table), "-o", str(drawn), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["size_bytes"] for row in rows[::2]] == [4000, 8000, 16000, 32000, 40000]
    with table.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["engine"] for row in written] == [row["engine"] for row in rows]
    assert [float(row["executed_s"]) for row in written] == [row["executed_s"] for row in rows]
    assert drawn.read_text().startswith("<svg ")
    assert main([*call, "ring,direct"]) == 0
    shown = capsys.readouterr().out
    assert "The fastest: " in shown
    assert "16,000" in shown


@pytest.mark.parametrize("width", [80, 100, 120])
def test_tables_fit_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["compare", "torus:2x2", "all-reduce", "1KB", "1MB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)


def test_one_size_shows_all_engines_and_why_others_do_not_apply(capsys):
    assert main(["compare", "mesh:2x2", "all-reduce", "1MB", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert " *  " in shown
    assert "is the fastest" in shown
    assert "swing does not apply: it needs a torus" in shown
    assert main(["compare", "mesh:2x2", "all-reduce", "1MB", "--engines", "swing"]) == 1
