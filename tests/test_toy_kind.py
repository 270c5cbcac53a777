"""Engines, checks, files and the command accept a kind of collective that they know only by its registration."""

from __future__ import annotations

import json
import pickle

import pytest

import tacos
from tacos import collective as co
from tacos.cli import main
from tacos.collective import KINDS, Kind, Row


def half_gather(members, size, root):
    """Every other member ends with all parts."""
    part = size // len(members)
    return [Row(part, [npu], members[::2]) for npu in members]


def pair_sum(members, size, root):
    """Neighbours end with the sum of their buffers, and the root with all sums."""
    pairs = zip(members[::2], members[1::2], strict=True)
    return [Row(size, pair, [*pair, *({root} - set(pair))], sums=True) for pair in pairs]


@pytest.fixture(autouse=True)
def kinds():
    toys = [
        co.register(Kind(name="half_gather", rows=half_gather)),
        co.register(Kind(name="pair_sum", rows=pair_sum, rooted=True, reduces=True)),
    ]
    yield
    for toy in toys:
        KINDS.pop(toy.name, None)


@pytest.fixture(params=["half-gather", "pair_sum"])
def problem(request):
    topology = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    return topology, co.named(request.param, topology, "4MB", chunks=2)


def test_it_is_made_by_name():
    wanted = co.named("half-gather", 6, "6KB", group=[0, 2, 3, 5], chunks=3)
    assert wanted == co.named("half_gather", 6, "6KB", group=[0, 2, 3, 5], chunks=3)
    assert (wanted.kind, wanted.label, wanted.size_bytes) == ("half_gather", "half-gather", 6000)
    assert wanted.chunks == 4 * 3
    assert wanted.chunk_bytes().tolist() == [500] * 12
    assert (wanted.inputs(5), wanted.outputs(5)) == (
        [2],
        [0, 3],
    )  # the last piece of member 1's part
    with pytest.raises(ValueError, match="half-gather has no root"):
        co.named("half-gather", 4, "1MB", root=2)


def test_it_may_have_a_root_and_sums():
    wanted = co.named("pair-sum", 4, "1KB", root=3, chunks=1)
    assert [wanted.outputs(chunk) for chunk in range(2)] == [[0, 1, 3], [2, 3]]
    assert [wanted.reduces(chunk) for chunk in range(2)] == [True, True]
    assert wanted.parts[0].sums


@pytest.mark.parametrize("engine", ["greedy", "direct", "milp", "auto"])
def test_engines_that_take_any_collective_serve_it(problem, engine):
    topology, wanted = problem
    options = {"time_limit": 5.0} if engine == "milp" else {}
    schedule = tacos.synthesize(topology, wanted, engine=engine, **options)
    assert schedule.collective == wanted
    assert tacos.verify(schedule).ok
    assert schedule.time_ps >= tacos.bound(topology, wanted).time_ps > 0
    assert tacos.simulate(schedule).time_ps == schedule.time_ps


def test_the_number_of_chunks_is_searched():
    topology = tacos.topology.ring(4)
    open_ = co.named("half-gather", topology, "64MB")
    assert not open_.resolved
    found = tacos.synthesize(topology, open_, engine="greedy")
    chunks = co.chunks_per_part(found.collective)
    assert chunks is not None
    assert chunks > 1
    assert found.time_ps < tacos.synthesize(topology, open_.with_chunks(1), engine="greedy").time_ps


def test_it_is_lowered_and_lifted(problem):
    topology, wanted = problem
    schedule = tacos.synthesize(topology, wanted, engine="greedy")
    program = tacos.lower(schedule)
    assert tacos.verify(program).ok
    assert program.collective.kind == wanted.kind
    assert tacos.verify(tacos.lift(program, topology)).ok


@pytest.mark.parametrize("ending", [".tacos", ".et"])
def test_files_keep_it(problem, tmp_path, ending):
    topology, wanted = problem
    schedule = tacos.synthesize(topology, wanted, engine="greedy")
    path = tmp_path / f"toy{ending}"
    tacos.save(schedule if ending == ".tacos" else tacos.lower(schedule), path)
    back = tacos.load(path)
    assert back.collective.kind == wanted.kind
    assert back.collective.parts[0].inputs.tolist() == wanted.parts[0].inputs.tolist()
    assert tacos.verify(back).ok
    assert pickle.loads(pickle.dumps(back)) == back


def test_a_file_of_a_kind_that_is_not_installed_is_read(problem, tmp_path):
    topology, wanted = problem
    path = tmp_path / "toy.tacos"
    tacos.save(tacos.synthesize(topology, wanted, engine="greedy"), path)
    del KINDS[wanted.kind]
    back = tacos.load(path)
    assert back.collective == wanted
    assert co.kind_of(back.collective.parts[0]).listed
    assert tacos.verify(back).ok


def test_what_does_not_know_it_says_so(problem, tmp_path):
    topology, wanted = problem
    schedule = tacos.synthesize(topology, wanted, engine="direct")
    with pytest.raises(ValueError, match=f"MSCCL files .* hold one of .*, not {wanted.label}"):
        tacos.save(schedule, tmp_path / "toy.xml")
    with pytest.raises(ValueError, match=f"plans hold one of .*, not {wanted.label}"):
        tacos.save(schedule, tmp_path / "toy.json", format="mscclpp")
    for engine, needed in [("ring", "a collective of a group"), ("nccl", "a collective that NCCL")]:
        with pytest.raises(ValueError, match=f"{needed}.*, not {wanted.label}"):
            tacos.synthesize(topology, wanted, engine=engine)


def test_the_command_knows_it(tmp_path, capsys):
    path = tmp_path / "toy.tacos"
    call = ["synth", "ring:4", "half-gather", "4MB", "--chunks", "2", "-o", str(path), "--json"]
    assert main(call) == 0
    assert json.loads(capsys.readouterr().out)["collective"] == "half-gather"
    assert main(["verify", str(path)]) == 0
    assert main(["info", str(path)]) == 0
    assert "half-gather" in capsys.readouterr().out
    assert main(["synth", "ring:4", "half-gathr", "4MB"]) == 2
    assert 'did you mean "half-gather"?' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Kind(name="All-reduce", rows=half_gather), "lowercase letters"),
        (Kind(name="all_reduce", rows=half_gather), "the kind all_reduce exists already"),
        (Kind(name="halfgather", rows=half_gather), "already"),
        (Kind(name="empty"), "needs rows"),
    ],
)
def test_what_cannot_be_registered_is_refused(kind, wrong):
    known = dict(KINDS)
    with pytest.raises(ValueError, match=wrong):
        co.register(kind)
    assert known == KINDS


def test_every_kind_of_the_core_is_described_alike():
    """The flags follow from the inputs and outputs of the chunks of a small collective."""
    for kind in KINDS.values():
        if not kind.even:
            continue
        root = {"root": 1} if kind.rooted else {}
        wanted = co.named(kind.name, 3, "9KB", chunks=1, **root)
        chunks = range(wanted.chunks)
        assert kind.reduces == all(map(wanted.reduces, chunks)) == wanted.parts[0].sums
        ends = [(wanted.inputs(chunk), wanted.outputs(chunk)) for chunk in chunks]
        whole = [[len(side) == 3 for side in pair] for pair in ends]
        assert kind.spreads == all(any(pair) for pair in whole)
        assert kind.two_phases == all(all(pair) for pair in whole)
        assert kind.per_pair == (wanted.chunks == 9)
        assert kind.rooted == any(all(pair[side] == [1] for pair in ends) for side in (0, 1))
        assert wanted.reversed().kind == kind.reverse
        for side, is_whole in enumerate((kind.whole_input, kind.whole_output)):
            held = sum(int(wanted.chunk_bytes()[c]) for c in chunks if 1 in ends[c][side])
            assert (held == 9000) == is_whole
