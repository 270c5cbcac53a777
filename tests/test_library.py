"""Plan directories, the placement of ranks, and renumbered programs."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import library
from tacos.cli import main
from tacos.errors import FormatError
from tacos.library import Plans, add, fingerprint
from tacos.runtime.dispatch.algorithms import agree
from tacos.runtime.dispatch.placement import place, renumbered
from tests.support.conditions import PATIENCE_S

pytestmark = pytest.mark.unsanitized


def made(topo, kind="all_reduce", size="1MB", engine="ring", **options):
    wanted = tacos.collective.named(kind, topo, size, **options)
    return tacos.synthesize(topo, wanted, engine=engine)


@pytest.fixture
def folder(tmp_path):
    topo = tacos.topology.ring(4)
    add(tmp_path, made(topo, size="1KB", engine="one-shot"), max_bytes=10_000)
    add(tmp_path, made(topo, size="1MB"))
    add(tmp_path, made(topo, size="64MB", engine="bidirectional-ring"), in_place=True)
    add(tmp_path, made(topo, "broadcast", root=2))
    add(tmp_path, made(topo, "all_gather", group=[0, 2, 1], engine="direct"))
    return tmp_path


def rewrite(folder, change):
    file = folder / library.FILE
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


# Choosing.


@pytest.mark.parametrize(
    ("call", "start"),
    [
        (("all_reduce", range(4), 500), "all_reduce-1kB"),
        (("all_reduce", range(4), 10_000), "all_reduce-1kB"),
        (("all_reduce", range(4), 10_001), "all_reduce-1MB"),
        (("all_reduce", range(4), 10**8), "all_reduce-1MB"),  # the large one is in place only
        (("all_reduce", range(4), 10**8, True), "all_reduce-64MB"),
        (("all_reduce", range(4), 7_000_000, True), "all_reduce-1MB"),  # 8 MB is the geometric mean
        (("all_reduce", range(4), 9_000_000, True), "all_reduce-64MB"),
        (("all_reduce", (3, 1, 2, 0), 0), "all_reduce-1kB"),
        (("broadcast", range(4), 5, False, 2), "broadcast-1MB"),
        (("all_gather", (0, 2, 1), 5), "all_gather-1MB"),
    ],
)
def test_the_plan_made_for_the_nearest_size_serves(folder, call, start):
    choice = Plans.load(folder).choose(*call)
    assert choice.plan is not None
    assert choice.plan.file.startswith(start)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (("all_to_all", range(4), 5), "only plans for other collectives"),
        (("all_reduce", range(3), 5), "only plans for another group"),
        (("broadcast", range(4), 5, False, 1), "with root 1: there are plans with other roots"),
    ],
)
def test_no_plan_has_a_reason(folder, call, why):
    plan, reason = Plans.load(folder).choose(*call)
    assert plan is None
    assert why in reason


def test_out_of_range_and_in_place_are_reasons(tmp_path):
    topo = tacos.topology.ring(4)
    add(tmp_path, made(topo), min_bytes=10, max_bytes=20, in_place=True)
    found = Plans.load(tmp_path)
    assert (
        "there are plans for 10 B to 20 B" in found.choose("all_reduce", range(4), 9, True).reason
    )
    assert "there are only plans in place" in found.choose("all_reduce", range(4), 15).reason
    assert found.choose("all_reduce", range(4), 20, True).plan is not None


# Writing and reading.


def test_a_plan_for_the_same_thing_is_replaced(folder):
    before = Plans.load(folder).plans
    add(folder, made(tacos.topology.ring(4), size="1MB", engine="greedy"), min_bytes=7)
    after = Plans.load(folder).plans
    assert len(after) == len(before)
    assert after[-1].min_bytes == 7
    assert len(list(folder.glob("*.tacos"))) == len(after)


def test_the_file_follows_the_schema(folder):
    jsonschema.Draft202012Validator(library.schema()).validate(
        json.loads((folder / library.FILE).read_text())
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda data: data.update(tacos_plans=2),
            "tacos_plans is 2; this version of tacos reads 1",
        ),
        (lambda data: data.pop("tacos_plans"), "the field tacos_plans is missing"),
        (lambda data: data["plans"][0].update(size=3), r"plans\[0\]: .*unknown field `size`"),
        (lambda data: data["plans"][1].update(npus="x"), r"plans\[1\].npus: Expected `int`"),
        (lambda data: data["plans"][0].update(file="../x"), "must be a name in the same directory"),
        (
            lambda data: data["plans"][0].update(file="gone.tacos"),
            "gone.tacos, which does not exist",
        ),
        (
            lambda data: data["plans"][0].update(collective="sum"),
            "collective is 'sum'; it must be one of",
        ),
    ],
)
def test_a_broken_file_is_one_sentence(folder, change, why):
    rewrite(folder, change)
    with pytest.raises(FormatError, match=why):
        Plans.load(folder)


def test_a_file_that_is_no_json_or_missing_is_one_sentence(folder, tmp_path):
    (folder / library.FILE).write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        Plans.load(folder)
    with pytest.raises(FormatError, match="No such file"):
        Plans.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"npus": 5}, r"all_reduce-.*\.tacos: npus is 4, not 5 as plans.json says"),
        ({"collective": "all_gather"}, "collective is 'all_reduce', not 'all_gather'"),
        ({"topology": "00"}, "topology is '.*', not '00'"),
        ({"members": [0, 1]}, r"group is \(0, 1, 2, 3\), not \(0, 1\)"),
        ({"size_bytes": 999}, "size_bytes is 1000, not 999"),
        ({"root": 1}, "root is None, not 1"),
    ],
)
def test_a_schedule_that_is_something_else_is_refused(folder, change, why):
    rewrite(folder, lambda data: data["plans"][0].update(change))
    with pytest.raises(FormatError, match=why):
        Plans.load(folder).check()


def test_a_corrupt_schedule_is_refused(folder):
    file = next(folder.glob("all_reduce-1MB*"))
    content = bytearray(file.read_bytes())
    content[-70] ^= 1
    file.write_bytes(content)
    with pytest.raises(FormatError, match=file.name):
        Plans.load(folder).check()


def test_plans_for_other_networks_are_refused(folder):
    found = Plans.load(folder)
    assert len(found.for_npus(4).plans) == 5
    with pytest.raises(FormatError, match="the plans are for 4 NPUs, not for 8"):
        found.for_npus(8)
    assert len(found.on(tacos.topology.ring(4)).plans) == 5
    with pytest.raises(FormatError, match="the plans are for the network"):
        found.on(tacos.topology.ring(4, bandwidth="1GB/s"))


def test_plans_of_two_networks_need_the_name_of_one(folder):
    """A number means a different NPU in each network."""
    ring, slow = tacos.topology.ring(4), tacos.topology.ring(4, bandwidth="1GB/s")
    add(folder, made(slow))
    message = r"plans\.json: the plans are for 2 networks of 4 NPUs \([0-9a-f]{16}, [0-9a-f]{16}\); set TACOS_T"
    with pytest.raises(FormatError, match=message):
        Plans.load(folder).for_npus(4)
    assert len(Plans.load(folder).on(ring).plans) == 5
    assert len(Plans.load(folder).on(slow).plans) == 1


def test_the_digest_sees_every_byte(folder):
    before = Plans.load(folder).digest
    assert Plans.load(folder).digest == before
    file = next(folder.glob("broadcast*"))
    file.write_bytes(file.read_bytes() + b" ")
    assert Plans.load(folder).digest != before


def test_the_fingerprint_sees_every_property_but_names():
    ring = tacos.topology.ring(4)
    others = [
        tacos.topology.ring(4, bandwidth="51GB/s"),
        tacos.topology.ring(4, latency="1us"),
        tacos.topology.ring(4, link_model="blocking"),
        tacos.topology.ring(4, bidirectional=False),
    ]
    assert fingerprint(ring) not in {fingerprint(other) for other in others}


def test_an_unnamed_collective_is_no_plan(tmp_path):
    topo = tacos.topology.ring(4)
    shift = tacos.collective.send_recv(topo, [(0, 1, "1MB")])
    with pytest.raises(ValueError, match="a plan must be for one of"):
        add(tmp_path, tacos.synthesize(topo, shift))


def test_the_command_adds_a_plan(tmp_path, capsys):
    folder = tmp_path / "plans"
    for size, least in (("1KB", "0B"), ("1MB", "100KB")):
        call = ["synth", "ring:4", "all-reduce", size, "--plan", str(folder)]
        assert main([*call, "--min-bytes", least]) == 0
    found = Plans.load(folder)
    found.check()
    assert [plan.min_bytes for plan in found.plans] == [0, 100_000]
    assert main(["synth", "ring:4", "all-reduce", "1MB", "--min-bytes", "5B"]) == 2
    wrong = ["--plan", str(folder), "--min-bytes", "5B", "--max-bytes", "4B"]
    assert main(["synth", "ring:4", "all-reduce", "1MB", *wrong]) == 2
    assert "--max-bytes is 4B, below --min-bytes" in capsys.readouterr().err


# Placement of ranks.

WHERE = {0: "a:0", 1: "a:1", 2: "b:0", 3: "b:1"}


def test_places_by_name_by_order_and_by_list(tmp_path):
    names = ["b:1", "b:0", "a:1", "a:0"]
    assert place(WHERE, 4, 4) == [0, 1, 2, 3]
    assert place(WHERE, 4, 4, names) == [3, 2, 1, 0]
    assert place({3: "b:1", 1: "a:1"}, 4, 4, names) == [0, 2]
    assert place({3: "b:1", 1: "a:1"}, 4, 4) == [3, 1]
    assert place(WHERE, 4, 6, [*names, "c:0", "c:1"]) == [3, 2, 1, 0]
    assert place(WHERE, 4, 4, names, "b:0,0,3,2") == [1, 0, 3, 2]
    file = tmp_path / "places.json"
    file.write_text('["a:0", 0, 1, 2]')
    assert place(WHERE, 4, 4, names, str(file)) == [3, 0, 1, 2]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"npus": 5}, "has 5 NPUs and the job 4 ranks"),
        ({"names": ["a:0", "x", "y", "z"]}, 'rank 1 runs at "a:1", which the topology does not'),
        ({"given": "0,1"}, "TACOS_PLACEMENT has 2 entries for 4 ranks"),
        ({"given": "0,1,2,4"}, "TACOS_PLACEMENT has '4'; use the NPUs 0 to 3"),
        ({"given": "0,1,2,0"}, "TACOS_PLACEMENT give NPU 0 to two ranks, 0 and 3"),
        ({"given": "nowhere.json"}, "TACOS_PLACEMENT is nowhere.json, a file that fails"),
        ({"given": "[1, 2"}, "not JSON"),
    ],
)
def test_a_place_that_is_none_is_one_sentence(options, why):
    with pytest.raises((ValueError, FormatError), match=why):
        place(WHERE, 4, **{"npus": 4, **options})


def test_two_ranks_at_one_place_are_refused():
    with pytest.raises(ValueError, match="give NPU 1 to two ranks, 0 and 1"):
        place({0: "a:0", 1: "a:0"}, 2, 2, ["b:0", "a:0"])


# Renumbered programs.


@settings(max_examples=60)
@given(
    kind=st.sampled_from(tacos.collective.NAMED),
    order=st.permutations(range(5)),
    chunks=st.integers(1, 2),
    in_place=st.booleans(),
    root=st.integers(0, 4),
)
def test_a_renumbered_program_does_the_same_for_other_ranks(kind, order, chunks, in_place, root):
    topo = tacos.topology.fully_connected(5)
    rooted = {"root": root} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    wanted = tacos.collective.named(kind, topo, "1MB", chunks=chunks, **rooted)
    program = tacos.lower(tacos.synthesize(topo, wanted, engine="ring"), in_place=in_place)
    turned = renumbered(program, order)
    assert tacos.verify(turned).ok
    assert turned.steps == program.steps
    if rooted:
        (part,) = turned.collective.parts
        assert part.root == list(order).index(root)


def test_a_group_becomes_ranks_of_its_own():
    topo = tacos.topology.fully_connected(6)
    wanted = tacos.collective.all_to_all(topo, "1MB", group=[5, 1, 3], chunks=1)
    program = tacos.lower(tacos.synthesize(topo, wanted, engine="direct"))
    own = renumbered(program, [5, 1, 3])
    assert own.ranks == 3
    assert tacos.verify(own).ok
    assert np.array_equal(own.input_chunks(1), [3, 4, 5])


def test_relays_and_other_groups_are_refused():
    topo = tacos.topology.ring(4)
    wanted = tacos.collective.all_gather(topo, "1MB", group=[0, 2], chunks=1)
    program = tacos.lower(tacos.synthesize(topo, wanted, engine="greedy"))
    with pytest.raises(ValueError, match=r"relays through NPU \d, which is not in the group"):
        renumbered(program, [0, 2])
    whole = tacos.lower(made(topo))
    with pytest.raises(ValueError, match="relays through NPU 3"):
        renumbered(whole, [0, 1, 2])


class Meeting:
    """A rendezvous of threads."""

    def __init__(self, size):
        self.barrier, self.values = threading.Barrier(size, timeout=PATIENCE_S), {}

    def of(self, rank):
        def exchange(name, value):
            self.values[name, rank] = value
            self.barrier.wait()
            return [self.values[name, r] for r in range(self.barrier.parties)]

        return SimpleNamespace(exchange=exchange)


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        (["1,0", "1,0"], ""),
        (["1,0", "0,1"], "ranks 0 and 1 have different places for the ranks"),
        (["1,0", "0,7"], "rank 1: "),
    ],
)
def test_what_is_wrong_with_one_ranks_placement_all_ranks_hear(placements, message):
    meeting = Meeting(2)

    def join(rank):
        variables = {"TACOS_TOPOLOGY": "ring:2", "TACOS_PLACEMENT": placements[rank]}
        try:
            return agree(meeting.of(rank), rank, 2, variables)[1]
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        heard = list(threads.map(join, range(2)))
    if not message:
        assert heard == [[1, 0], [1, 0]]
    else:
        assert all(isinstance(h, str) and h.startswith(message) for h in heard)


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "plans.json").write_text('{"tacos_plans": 1, "plans": ' + "[" * 100_000)
    with pytest.raises(FormatError, match=r"plans\.json: the file is nested too deeply"):
        Plans.load(tmp_path)
