"""Choosing engines and chunk counts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import tacos
from tacos.cli import main
from tacos.search import watch
from tacos.search.synthesis import obstacles
from tacos.synth import ENGINES, concerned
from tests.support.work import Clock

NETWORKS = {
    "torus": tacos.topology.torus(4, 4),
    "mesh": tacos.topology.mesh(2, 3),
    "switch": tacos.topology.switch(5),
    "box": tacos.topology.dgx1(),
    "lame": tacos.topology.drop_links(tacos.topology.torus(3, 3), (0, 1)),
}


@pytest.mark.unsanitized
@pytest.mark.parametrize("size", [1000, pytest.param(1 << 20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all", "broadcast"])
@pytest.mark.parametrize("network", NETWORKS)
def test_auto_is_as_good_as_the_best_engine(network, kind, size):
    topology = NETWORKS[network]
    collective = tacos.collective.named(kind, topology, size, chunks=2)
    best = tacos.synthesize(topology, collective)
    assert tacos.verify(best).ok
    each = tacos.compare(topology, collective)
    assert best.time_ps <= 1.001 * each.best.time_ps


def test_auto_says_who_won_and_by_how_much():
    topology = tacos.topology.dgx1()
    collective = tacos.collective.all_to_all(topology, "8MB", chunks=1)
    best = tacos.synthesize(topology, collective)
    times = best.provenance["best_of"]
    assert next(iter(times)) == best.provenance["engine"]
    assert times[best.provenance["engine"]] == best.time_s
    assert list(times.values()) == sorted(times.values())
    ends = best.provenance["ends"]
    assert sorted(ends) == sorted(concerned(topology))
    needs = obstacles(topology, collective)
    for name, told in ends.items():
        assert told.startswith("does not apply: it needs ") == (name in needs), (name, told)
        assert "\n" not in told


def test_auto_stops_at_the_bound():
    """A ring's all-gather in both directions is optimal: no other engine needs to run."""
    topology = tacos.topology.ring(64, latency="0s")
    best = tacos.synthesize(topology, tacos.collective.all_gather(topology, "64MB", chunks=2))
    assert best.efficiency == 1
    assert len(best.provenance["best_of"]) < 4
    assert best.provenance["ends"]["greedy"] == "not needed"


@pytest.mark.unsanitized
def test_auto_cuts_what_its_effort_does_not_allow():
    """Growing trees on 64 NPUs that are not alike takes more than half of the normal work."""
    topology = tacos.topology.mi250(4)
    collective = tacos.collective.all_reduce(topology, "1MB", chunks=1)
    fast = tacos.synthesize(topology, collective, effort="fast")
    assert fast.engine != "forest"
    assert "cut" in fast.provenance["ends"]["forest"]
    assert fast == tacos.synthesize(topology, collective, effort="fast")


def test_auto_asks_the_exact_engine_where_the_problem_is_small():
    topology = tacos.topology.dgx1(latency="0s")
    best = tacos.synthesize(topology, tacos.collective.all_gather(topology, "8MB", chunks=1))
    assert best.provenance["engine"] == "milp"
    assert best.provenance["proven"]
    assert best.time_s == pytest.approx(60e-6)  # three steps of 1 MB over 50 GB/s


def test_auto_goes_on_where_an_engine_gives_up(monkeypatch):
    topology = tacos.topology.mesh(2, 2)
    collective = tacos.collective.all_gather(topology, "1MB", chunks=1)

    def fail(*_, **__):
        raise tacos.TacosError("too large")

    for name in ("ring", "greedy"):
        monkeypatch.setitem(ENGINES, name, replace(ENGINES[name], solve=fail))
    best = tacos.synthesize(topology, collective)
    assert not {"ring", "greedy"} & set(best.provenance["best_of"])
    for name in ENGINES:
        monkeypatch.setitem(ENGINES, name, replace(ENGINES[name], solve=fail))
    with pytest.raises(tacos.TacosError, match="too large"):
        tacos.synthesize(topology, collective)


@pytest.mark.unsanitized
def test_the_chunk_search_pays_off_and_is_recorded():
    """A broadcast down a chain of 8: one chunk takes 7 hops in sequence, many chunks overlap."""
    topology = tacos.topology.mesh(8, bandwidth="1GB/s", latency="1us")
    one = tacos.synthesize(
        topology, tacos.collective.broadcast(topology, "8MB", chunks=1), engine="ring"
    )
    found = tacos.synthesize(topology, tacos.collective.broadcast(topology, "8MB"), engine="ring")
    assert found.time_ps < one.time_ps / 4
    assert found.collective.chunks in found.provenance["chunk_counts_tried"]
    finer = tacos.collective.broadcast(topology, "8MB", chunks=2 * found.collective.chunks)
    assert tacos.synthesize(topology, finer, engine="ring").time_ps > 0.99 * found.time_ps


def test_small_sizes_get_few_chunks():
    topology = tacos.topology.ring(4)
    small = tacos.synthesize(topology, tacos.collective.all_gather(topology, 64), engine="ring")
    assert small.collective.chunks == 4  # one per NPU: latency is all that counts


def test_every_candidate_is_verified_and_failures_are_told():
    topology = tacos.topology.fully_connected(5)
    collective = tacos.collective.all_reduce(topology, "1MB")
    result = tacos.compare(topology, collective, engines=["swing", "ring"])
    ring, swing = result.candidates
    assert (ring.engine, ring.ok, ring.note) == ("ring", True, "")
    assert (swing.engine, swing.ok) == ("swing", False)
    assert "swing" in swing.note
    assert result.best == ring.schedule
    assert {row["engine"] for row in result.rows()} == {"ring", "swing"}


def test_no_answer_is_an_error():
    topology = tacos.topology.fully_connected(5)
    collective = tacos.collective.all_reduce(topology, "1MB")
    with pytest.raises(tacos.InfeasibleError, match="no engine solved"):
        _ = tacos.compare(topology, collective, engines=["swing"]).best


def test_the_provenance_has_engine_and_seed():
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "1MB", chunks=1)
    schedule = tacos.synthesize(topology, collective, engine="ring", seed=7)
    assert schedule.provenance["engine"] == "ring"
    assert schedule.provenance["seed"] == 7


def test_wrong_calls():
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(5, "1MB", chunks=1)
    with pytest.raises(ValueError, match="for 5 NPUs, but the topology has 4"):
        tacos.synthesize(topology, collective)
    mine = tacos.collective.all_gather(topology, "1MB", chunks=1)
    with pytest.raises(ValueError, match='unknown engine "rink"'):
        tacos.synthesize(topology, mine, engine="rink")
    with pytest.raises(TypeError, match=r"^engine must be a str; got 3$"):
        tacos.synthesize(topology, mine, engine=3)
    with pytest.raises(ValueError, match="need a named engine"):
        tacos.synthesize(topology, mine, order="rank")


TOPOLOGY = tacos.topology.ring(4)
THREE: Any = 3
COLLECTIVE = tacos.collective.all_gather(TOPOLOGY, "1MB", chunks=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tacos.synthesize(4, COLLECTIVE), "topology must be a Topology, a spec .*; got 4"),
        (lambda: tacos.synthesize(TOPOLOGY, "x"), "collective must be a Collective; got 'x'"),
        (lambda: tacos.bound(TOPOLOGY, "x"), "collective must be a Collective; got 'x'"),
        (lambda: tacos.bound(None, COLLECTIVE), "topology must be a Topology, a spec .*; got None"),
        (
            lambda: tacos.compare(TOPOLOGY, THREE),
            "collective must be a Collective or Sequence; got 3",
        ),
        (lambda: tacos.compare(TOPOLOGY, ["x"]), "collective must be a Collective; got 'x'"),
        (
            lambda: tacos.verify(None),
            "schedule must be a Schedule or Program or Workload; got None",
        ),
        (lambda: tacos.lower(TOPOLOGY), "schedule must be a Schedule; got <.*>"),
        (lambda: tacos.lift(3), "program must be a Program; got 3"),
        (
            lambda: tacos.simulate(3),
            "schedule must be a Schedule or .* or str or PathLike; got 3",
        ),
    ],
)
def test_wrong_types_get_one_sentence(call, message):
    with pytest.raises(TypeError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_progress_reaches_the_callback_and_its_errors_pass_through():
    topology = tacos.topology.ring(1024)
    collective = tacos.collective.all_gather(topology, "1GB", chunks=1)

    class Stop(Exception):
        pass

    def report(share):
        raise Stop(share)

    def work():
        for _ in range(10):  # reports come every 50 ms
            tacos.synthesize(topology, collective, engine="ring", progress=report)

    with pytest.raises(Stop):
        work()


def test_the_bound_is_in_the_provenance():
    topology = tacos.topology.switch(6)
    for chunks in ("auto", 2):
        collective = tacos.collective.all_reduce(topology, "64MB", chunks=chunks)
        schedule = tacos.synthesize(topology, collective, effort="fast")
        best = tacos.bound(topology, collective)
        assert schedule.provenance["bound_s"] == best.time_s
        assert schedule.efficiency == pytest.approx(best.time_s / schedule.executed_s)


def test_the_bound_counts_the_smallest_blocks():
    """5 B for 3 NPUs are blocks of 2, 2 and 1: the last NPU gets 1 B over each of its slow links."""
    links = [(a, b, 1e9 if b == 2 else 1e12, 0) for a in range(3) for b in range(3) if a != b]
    topology = tacos.topology.from_links(3, links)
    schedule = tacos.synthesize(topology, tacos.collective.all_to_all(topology, 5, chunks=1))
    assert schedule.time_ps == 1000
    assert schedule.efficiency == pytest.approx(1)


def test_effort_is_the_number_of_trials():
    topology = tacos.topology.mi250(1)
    collective = tacos.collective.all_gather(topology, "16MB", chunks=4)
    each = [
        tacos.synthesize(topology, collective, engine="greedy", seed=seed).time_ps
        for seed in range(32)
    ]
    for effort, trials in (("fast", 1), ("normal", 1), (3, 2), ("high", 32)):
        schedule = tacos.synthesize(topology, collective, engine="greedy", effort=effort)
        assert schedule.time_ps == min(each[:trials])
        assert schedule.provenance["effort"] == effort


def test_a_time_limit_returns_the_best_so_far_or_says_that_there_is_none(monkeypatch):
    topology = tacos.topology.torus(16, 16)
    collective = tacos.collective.all_gather(topology, "256MB", chunks=1)
    enough = tacos.synthesize(topology, collective, time_limit=1000)
    assert "cut_short" not in enough.provenance
    small = tacos.topology.torus(3, 3)
    few = tacos.collective.all_gather(small, "9MB", chunks=1)
    with monkeypatch.context() as patch:
        patch.setattr(watch, "time", Clock())
        many = tacos.synthesize(small, few, engine="greedy", effort=10**9, time_limit=100)
    assert many.provenance["cut_short"]
    assert tacos.verify(many).ok
    with pytest.raises(tacos.TacosError, match="time_limit is 1e-09 s, which is too short"):
        tacos.synthesize(topology, collective, engine="greedy", time_limit=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"effort": "huge"},
        {"effort": 0},
        {"effort": [1]},
        {"seed": "1"},
        {"time_limit": 0},
        {"time_limit": -1},
        {"time_limit": "1s"},
    ],
)
def test_wrong_budgets(wrong):
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "1MB", chunks=1)
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        tacos.synthesize(topology, collective, **wrong)


def test_progress_never_goes_back():
    topology = tacos.topology.torus(8, 8)
    collective = tacos.collective.all_to_all(topology, "64MB")
    shares: list[float] = []
    tacos.synthesize(topology, collective, progress=shares.append)
    assert shares
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)


def _one_transfer(topology, collective, *, engine="ring", **_):
    """An engine that moves a single chunk and calls it a schedule."""
    table = tacos.routes(topology, pairs=([0], [1]))
    facts = {"engine": engine}
    return tacos.retime(collective, table, route=[0], chunk=0, step=0, provenance=facts)


def test_a_wrong_answer_of_the_only_engine_is_an_error(monkeypatch):
    monkeypatch.setitem(ENGINES, "ring", replace(ENGINES["ring"], solve=_one_transfer))
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "4MB", chunks=1)
    with (
        pytest.warns(tacos.errors.WrongScheduleWarning),
        pytest.raises(tacos.VerificationError, match=r"engine ring returned a wrong .* bug"),
    ):
        tacos.synthesize(topology, collective, engine="ring", seed=3)


def test_auto_returns_the_next_best_answer_and_reports_the_wrong_one(monkeypatch):
    """The wrong schedule beats the bound, so that believing it would end the search."""
    monkeypatch.setitem(
        ENGINES,
        "symmetric",
        replace(ENGINES["symmetric"], solve=partial(_one_transfer, engine="symmetric")),
    )
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "4MB", chunks=1)
    with pytest.warns(tacos.errors.WrongScheduleWarning, match=r"engine symmetric .* seed 3"):
        best = tacos.synthesize(topology, collective, seed=3)
    assert tacos.verify(best).ok
    assert "symmetric" not in best.provenance["best_of"]
    assert len(best.provenance["rejected"]) == 1


def _fails(*_, **__):
    """An engine that builds what the core refuses."""
    raise ValueError("route 0 is not a tree: it reaches switch 3 twice")


@pytest.mark.parametrize("chunks", [1, "auto"])
def test_auto_goes_on_after_an_engine_that_fails(monkeypatch, chunks):
    monkeypatch.setitem(ENGINES, "symmetric", replace(ENGINES["symmetric"], solve=_fails))
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "4MB", chunks=chunks)
    told = r"engine symmetric failed on .*all_gather.* on .*ring: 4 NPUs.* seed 3: route 0 is not a tree"
    with pytest.warns(tacos.errors.WrongScheduleWarning, match=told):
        best = tacos.synthesize(topology, collective, seed=3)
    assert tacos.verify(best).ok
    assert "symmetric" not in best.provenance["best_of"]
    (sentence,) = best.provenance["rejected"]
    assert "it reaches switch 3 twice; this is a bug" in sentence


def test_auto_says_so_if_every_engine_fails(monkeypatch):
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "4MB", chunks=1)
    for name in tacos.engines(topology, collective):
        monkeypatch.setitem(ENGINES, name, replace(ENGINES[name], solve=_fails))
    with (
        pytest.warns(tacos.errors.WrongScheduleWarning),
        pytest.raises(tacos.VerificationError, match=r"failed on .* route 0 is not a tree"),
    ):
        tacos.synthesize(topology, collective)


@pytest.mark.parametrize("chunks", [1, "auto"])
def test_times_beyond_what_can_be_counted_are_no_bug_of_an_engine(chunks):
    """A quarter of a terabyte at 1 kB/s takes eight years, however it is cut."""
    topology = tacos.topology.ring(4, bandwidth="1KB/s")
    collective = tacos.collective.all_gather(topology, "1TB", chunks=chunks)
    with pytest.raises(ValueError, match=r"^a transfer of 250000000000 B .* takes over 40 hours$"):
        tacos.synthesize(topology, collective)


def test_what_a_progress_callback_raises_is_no_bug_of_an_engine():
    def stop(_):
        raise ValueError("enough")

    topology = tacos.topology.ring(4)
    with pytest.raises(ValueError, match=r"^enough$"):
        tacos.synthesize(topology, tacos.collective.all_gather(topology, "4MB"), progress=stop)


def test_what_is_not_verified_is_marked(monkeypatch):
    monkeypatch.setitem(ENGINES, "ring", replace(ENGINES["ring"], solve=_one_transfer))
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "4MB", chunks=1)
    wrong = tacos.synthesize(topology, collective, engine="ring", verify=False)
    assert wrong.provenance["unverified"]
    assert not tacos.verify(wrong).ok
    assert "unverified" not in tacos.synthesize(topology, collective, engine="greedy").provenance


def test_a_comparison_fails_where_an_engine_is_wrong(monkeypatch, capsys):
    monkeypatch.setitem(ENGINES, "ring", replace(ENGINES["ring"], solve=_one_transfer))
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "4MB", chunks=1)
    result = tacos.compare(topology, collective, engines=["ring", "greedy"])
    assert [(c.engine, c.ok, c.wrong) for c in result.candidates] == [
        ("greedy", True, False),
        ("ring", False, True),
    ]
    call = ["compare", "ring:4", "all-gather", "4MB", "--chunks", "1", "--engines"]
    assert main([*call, "greedy"]) == 0
    assert main([*call, "ring,greedy"]) == 1
    assert "ring was wrong: " in capsys.readouterr().out


def test_the_command_reports_a_rejected_schedule_and_succeeds(monkeypatch, capsys):
    monkeypatch.setitem(
        ENGINES,
        "symmetric",
        replace(ENGINES["symmetric"], solve=partial(_one_transfer, engine="symmetric")),
    )
    call = ["synth", "ring:4", "all-gather", "4MB", "--chunks", "1", "--json"]
    assert main(call) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verified"] is True
    assert "the engine symmetric returned a wrong schedule" in err
    assert main([*call, "--engine", "symmetric"]) == 1


@pytest.mark.parametrize("engine", ["ring", "greedy", "forest", "symmetric", "double-binary-tree"])
def test_the_printed_number_of_chunks_can_be_given_back(engine, capsys):
    """`chunks` counts chunks per part, in the output and in the option."""
    call = ["synth", "torus:4x2", "all-reduce", "8MB", "--engine", engine, "--json"]
    assert main(call) == 0
    searched = json.loads(capsys.readouterr().out)
    assert main([*call, "--chunks", str(searched["chunks"])]) == 0
    fixed = json.loads(capsys.readouterr().out)
    bound = {"efficiency", "bottleneck"}  # the bound knows the chunks then
    same = searched.keys() - {"synthesis_s"} - bound
    assert {name: searched[name] for name in same} == {name: fixed[name] for name in same}
    topo = tacos.topology.torus(4, 2)
    size = {"size": "8MB", "chunks": searched["chunks"]}
    given = tacos.synthesize(topo, tacos.collective.all_reduce(topo, **size), engine=engine)
    open_ = tacos.synthesize(topo, tacos.collective.all_reduce(topo, "8MB"), engine=engine)
    assert tacos.collective.chunks_per_part(open_.collective) == searched["chunks"]
    one, other = open_.rows(), given.rows()
    assert all((one[column] == other[column]).all() for column in one)
    row = tacos.compare(topo, tacos.collective.all_reduce(topo, "8MB"), engines=[engine]).rows()[0]
    assert (row["chunks"], row["total_chunks"]) == (searched["chunks"], searched["total_chunks"])


def test_a_refined_algorithm_is_not_what_stock_nccl_runs():
    ring = tacos.topology.ring(4, bandwidth="50GB/s", latency="500ns")
    stock = tacos.synthesize(ring, tacos.collective.all_gather(ring, "4MB"), engine="nccl")
    assert "nccl_tests_s" in tacos.schedule.summary(stock)
    refined = stock.with_provenance(stock.provenance | {"refined_from_s": 2 * stock.time_s})
    assert "nccl_tests_s" not in tacos.schedule.summary(refined)
