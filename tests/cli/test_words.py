"""Answers to common mistakes: one sentence that says what to write instead."""

from __future__ import annotations

import re

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.synth import ENGINES

pytestmark = pytest.mark.unsanitized

RING = tp.ring(4)
GATHER = co.all_gather(RING, "4MB", chunks=1)

KEYWORDS = {
    "torus() has no argument 'bandwith'; did you mean 'bandwidth'?": lambda: tp.torus(
        4, 4, bandwith="50GB/s"
    ),
    "dgx_h100() has no argument 'nic_bandwith'; did you mean 'nic_bandwidth'?": lambda: tp.dgx_h100(
        2, nic_bandwith="50GB/s"
    ),
    "fat_tree() has no argument 'oversubscribtion'; did you mean 'oversubscription'?": (
        lambda: tp.fat_tree(4, 8, oversubscribtion=2)
    ),
    "from_links() has no argument 'switchs'; did you mean 'switches'?": lambda: tp.from_links(
        2, [], switchs=1
    ),
    "degrade() has no argument 'faktor'; did you mean 'factor'?": lambda: tp.degrade(
        RING, (0, 1), faktor=0.5
    ),
    "drop_links() has no argument 'boht'; did you mean 'both'?": lambda: tp.drop_links(
        RING, (0, 1), boht=True
    ),
    "ring() has no argument 'colour'; it takes n, bidirectional, bandwidth, latency, link_model, "
    "forwarding, routing, reduce_bandwidth": lambda: tp.ring(4, colour="red"),
    "all_reduce() has no argument 'gruop'; did you mean 'group'?": lambda: co.all_reduce(
        RING, "1MB", gruop=[0]
    ),
    "synthesize() has no argument 'engin'; did you mean 'engine'?": lambda: tacos.synthesize(
        RING, GATHER, engin="ring"
    ),
    "synthesize() has no argument 'time_limt'; did you mean 'time_limit'?": lambda: (
        tacos.synthesize(RING, GATHER, engine="ring", time_limt=3)
    ),
    "the engine \"ring\" has no option 'ordr'; did you mean 'order'?": lambda: tacos.synthesize(
        RING, GATHER, engine="ring", ordr="rank"
    ),
    "the engine \"ring\" has no option 'servers'; its options are order": lambda: tacos.synthesize(
        RING, GATHER, engine="ring", servers=2
    ),
    "the engine \"direct\" has no option 'servers'; it takes none": lambda: tacos.synthesize(
        RING, GATHER, engine="direct", servers=2
    ),
    "synthesize() has no argument 'colour', and no engine has such an option": (
        lambda: tacos.synthesize(RING, GATHER, colour="red")
    ),
}


@pytest.mark.parametrize(("sentence", "call"), KEYWORDS.items(), ids=range(len(KEYWORDS)))
def test_a_misspelt_argument_gets_the_one_that_was_meant(sentence, call):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == sentence


def test_options_need_a_named_engine():
    message = "options need a named engine, not auto: servers is for parameter-server"
    with pytest.raises(ValueError, match=message):
        tacos.synthesize(RING, GATHER, servers=2)


def test_the_options_of_every_engine_are_taken():
    """The options that the manual's table lists, and greedy's trials, an argument of synthesize() itself."""
    reduce = co.all_reduce(RING, "4KB", chunks=1)
    for engine, options in {
        "ring": {"order": "rank"}, "greedy": {"trials": 2, "threads": 1}, "multitree": {"roots": [0]},
        "parameter-server": {"servers": 2}, "hierarchical": {"dims": [("ring", 4)]},
        "milp": {"symmetry": False, "epoch": "1us"},
    }.items():  # fmt: skip
        assert engine in ENGINES
        assert tacos.verify(tacos.synthesize(RING, reduce, engine=engine, **options)).ok


def test_compare_takes_one_engine_by_name():
    alone = tacos.compare(RING, GATHER, engines="ring")
    assert [c.engine for c in alone.candidates] == ["ring"]
    both = tacos.compare(RING, GATHER, engines="ring,direct")
    assert {candidate.engine for candidate in both.candidates} == {"ring", "direct"}


def test_simulate_takes_the_path_of_a_schedule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schedule = tacos.synthesize(RING, GATHER, engine="ring")
    tacos.save(schedule, "ag.tacos")
    assert tacos.simulate("ag.tacos").time_ps == tacos.simulate(schedule).time_ps
    assert tacos.simulate(tmp_path / "ag.tacos", timing="order").time_ps == schedule.time_ps
    tacos.save(RING, "ring.yaml")
    with pytest.raises(
        ValueError, match=r"ring.yaml holds a topology; simulate\(\) needs a schedule"
    ):
        tacos.simulate("ring.yaml")
    with pytest.raises(tacos.FormatError, match=r"^gone.tacos"):
        tacos.simulate("gone.tacos")


def test_lists_of_wrong_types_are_named():
    with pytest.raises(TypeError, match=r"group must be a list of NPUs; got 5"):
        co.all_reduce(RING, "4MB", group=5)
    schedule = tacos.synthesize(RING, GATHER, engine="ring")
    for wrong in ("link=0-1", [3], 3, tacos.Fault(link=(0, 1), end="1us")):
        with pytest.raises(TypeError, match=r"faults must be a list of tacos.Fault; got "):
            tacos.simulate(schedule, faults=wrong)


def test_a_size_is_a_whole_number_of_bytes():
    with pytest.raises(ValueError, match=r"size 64.5 must be a whole number of bytes"):
        co.all_reduce(RING, 64.5)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (["synth", "ring:4", "all-reduce", "64M"], "size '64M' is not understood; did you mean \"64MB\"?"),
        (["synth", "ring:4@50", "all-reduce", "64MB"], "bandwidth '50' needs a unit"),
        (["bound", "ring:4", "broadcast", "1MB", "--root", "9"], "--root is '9', but there is no such NPU"),
    ],
)  # fmt: skip
def test_mistakes_on_the_command_line(call, sentence, capsys):
    assert main(call) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert re.fullmatch(r"tacos: [^\n]+\n", error)
