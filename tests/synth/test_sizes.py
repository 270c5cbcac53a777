"""Problems that do not fit into memory are refused before a search starts."""

from __future__ import annotations

import pytest

import tacos
from tacos.cli import main
from tacos.synth import sizes

DRAGONFLY = tacos.topology.dragonfly(9, 8)
EXCHANGE = tacos.collective.all_to_all(DRAGONFLY, "64MB", chunks=1)


@pytest.fixture
def memory(monkeypatch):
    """Set the memory of the machine, and let no search start."""

    def search(*_args, **_options):
        raise AssertionError("a search has started")

    def given(present, *, searches=False):
        monkeypatch.setattr(sizes, "_present", lambda: present)
        if not searches:
            for name in ("Question", "Auto", "named", "matched_ports"):
                monkeypatch.setattr(f"tacos.search.synthesis.{name}", search)

    return given


def test_a_problem_too_large_for_memory_is_refused_before_the_search(memory):
    """72 NPUs send 72 × 71 = 5112 blocks, each of which needs 350 B at least: 1,789,200 B, 90 % of 1,988,000 B."""
    memory(1_988_000)
    sizes.check_fits(DRAGONFLY, EXCHANGE)
    memory(1_987_999)
    for options in ({}, {"engine": "greedy"}, {"ports": "matched"}, {"target": "mscclpp"}):
        with pytest.raises(tacos.TacosError) as error:
            tacos.synthesize(DRAGONFLY, EXCHANGE, **options)
        assert str(error.value) == (
            "all-to-all among 72 NPUs takes at least 5.1e+03 transfers, which need about 0.0 GiB, more than 90 % of "
            "this machine's 0.0 GiB; choose fewer NPUs or a machine with more memory"
        )


def test_chunks_that_were_asked_for_count(memory):
    memory(1_988_000)
    with pytest.raises(tacos.TacosError, match="choose fewer chunks, fewer NPUs or"):
        tacos.synthesize(DRAGONFLY, tacos.collective.all_to_all(DRAGONFLY, "64MB", chunks=2))
    sizes.check_fits(DRAGONFLY, tacos.collective.all_to_all(DRAGONFLY, "64MB"))


def test_the_command_refuses_it_in_one_sentence(memory, capsys):
    memory(1_000_000)
    assert main(["synth", "dragonfly:9x8", "all-to-all", "64MB"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tacos: all-to-all among 72 NPUs takes at least")
    assert said.count("\n") == 1


def test_an_engine_that_stores_one_npu_and_a_symmetry_is_not_refused(memory):
    memory(100_000, searches=True)
    torus = tacos.topology.torus(8, 8)
    exchange = tacos.collective.all_to_all(torus, "64MiB", chunks=1)
    for engine in ("auto", "symmetric"):
        sizes.check_fits(torus, exchange, engine)
    assert tacos.synthesize(torus, exchange, engine="symmetric").form == "orbit"
    with pytest.raises(tacos.TacosError, match=r"takes at least 4\.0e"):
        sizes.check_fits(torus, exchange, "greedy")


def test_an_all_gather_in_steps_needs_less(memory):
    """64 × 63 = 4032 transfers with 45 B need 181,440 B, and with 9 B 36,288 B."""
    memory(100_000)
    grid = tacos.topology.mesh(8, 8, link_model="blocking")
    gather = tacos.collective.all_gather(grid, "64MB", chunks=1)
    sizes.check_fits(grid, gather, "greedy")
    for other in ("reduce_scatter", "all_reduce"):
        with pytest.raises(tacos.TacosError, match="NPUs takes at least"):
            sizes.check_fits(grid, tacos.collective.named(other, grid, "64MB", chunks=1), "greedy")
    memory(40_000)
    with pytest.raises(tacos.TacosError, match=r"takes at least 4\.0e"):
        sizes.check_fits(grid, gather, "greedy")
