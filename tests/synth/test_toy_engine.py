"""A new engine is one record: searches, comparisons, the command and the fuzzer find it in the table."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

import tacos
from tacos import synth
from tacos.cli import main
from tacos.synth.engine import Engine
from tests import fuzz

RUNS: list[tuple[int, bool]] = []


def line(topology, collective, *, backwards=False, memory=None, progress=None):
    """Every NPU passes every chunk of a broadcast on to the next one."""
    TOY.check(topology, collective)
    wanted = collective if collective.resolved else collective.with_chunks(1)
    RUNS.append((wanted.chunks, memory is not None))
    order = np.arange(topology.npus)[:: -1 if backwards else 1]
    table = tacos.routes(topology, pairs=(order[:-1], order[1:]))
    hop, chunk = np.divmod(np.arange((topology.npus - 1) * wanted.chunks), wanted.chunks)
    facts = {"engine": TOY.name}
    return tacos.retime(
        wanted, table, route=hop, chunk=chunk, step=hop, provenance=facts, progress=progress
    )


def obstacle(topology, collective):
    if [part.kind for part in collective.parts] != ["broadcast"]:
        return "a broadcast"
    return "" if len(collective.parts[0].group) == topology.npus else "all NPUs"


TOY = Engine(
    name="toy-line",
    solve=line,
    obstacle=obstacle,
    lists=False,  # so that it is asked first
    chunk_counts=lambda _topology, _collective, counts, _memory: (*counts, 2 * counts[-1]),
)


@pytest.fixture
def problem(monkeypatch):
    """The table with the toy in it, and a problem that suits it: a chain."""
    monkeypatch.setitem(synth.ENGINES, TOY.name, TOY)
    RUNS.clear()
    chain = tacos.topology.mesh(8, bandwidth="1GB/s", latency="0s")
    return chain, tacos.collective.broadcast(chain, "8MB")


def test_synthesize_searches_its_chunk_counts(problem):
    chain, wanted = problem
    found = tacos.synthesize(chain, wanted, engine="toy-line")
    assert found.provenance["engine"] == "toy-line"
    assert tacos.verify(found).ok
    assert found.provenance["chunk_counts_tried"] == [2**k for k in range(13)]
    assert [(2**k, True) for k in range(13)] == RUNS
    assert found.efficiency == pytest.approx(1, abs=0.02)
    with pytest.raises(ValueError, match=r"^toy-line needs a broadcast$"):
        tacos.synthesize(chain, tacos.collective.reduce(chain, "8MB"), engine="toy-line")


def test_auto_asks_it(problem):
    chain, wanted = problem
    assert "toy-line" in tacos.engines(chain, wanted)
    best = tacos.synthesize(chain, wanted.with_chunks(64), refine=False)
    assert best.provenance["engine"] == "toy-line"  # others are as fast, and later
    assert "greedy" in best.provenance["best_of"]


def test_a_comparison_lists_it_and_says_what_it_needs(problem):
    chain, wanted = problem
    result = tacos.compare(chain, wanted.with_chunks(4), engines=["ring", "toy-line"])
    assert {c.engine for c in result.candidates if c.ok} == {"ring", "toy-line"}
    gather = tacos.collective.all_gather(chain, "8MB", chunks=1)
    assert dict(tacos.compare(chain, gather).left_out)["toy-line"] == "a broadcast"


def test_its_options_are_its_keywords(problem):
    assert TOY.options == ["backwards"]
    synth.check_options("toy-line", ["backwards"])
    with pytest.raises(TypeError, match="did you mean 'backwards'"):
        synth.check_options("toy-line", ["backward"])
    with pytest.raises(ValueError, match="backwards is for toy-line"):
        synth.check_options("auto", ["backwards"])
    with pytest.raises(ValueError, match='did you mean "toy-line"'):
        tacos.synthesize(*problem, engine="toy-lin")


def test_the_command_knows_it(problem, capsys):
    call = ["mesh:8", "broadcast", "8MB", "--chunks", "8"]
    assert main(["synth", *call, "--engine", "toy-line", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "toy-line"
    assert main(["compare", *call, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert "toy-line" in json.dumps(rows)


def test_the_fuzzer_examines_it(problem, tmp_path):
    assert fuzz.chosen("toy-line") == {}
    chain, wanted = problem
    case = fuzz.Case(0, tiny=True)
    object.__setattr__(case.problem, "topology", chain)
    object.__setattr__(case.problem, "collective", wanted.with_chunks(2))
    assert fuzz.check(case, "toy-line", Random(1), tmp_path) == "right"
