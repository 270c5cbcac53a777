"""All ranks end with identical bits: the verifier, lowering, the executor and exporters."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.library import add
from tacos.program import STEP_OPS, lift, lower
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, retime, routes
from tests.support import expressions
from tests.support.memory_driver import Machine
from tests.support.programs import INPUT, OUTPUT, SCRATCH, made
from tests.support.ranks import Ranks
from tests.support.schedules import links_under, orbit
from tests.support.strategies import has_trees, lowered, orders

NETWORKS = [
    "ring:4", "ring:5", "fc:3", "fc:5", "switch:4", "switch:6", "torus:3x3", "mesh:2x3", "hypercube:3",
    "dgx-h100-plain:1", "ring:2*fc:4",
]  # fmt: skip


def scheduled(npus, rows):
    """A schedule of one chunk that all NPUs sum up."""
    everybody = list(range(npus))
    goal = co.custom(npus, [1000], [everybody], [everybody], reduces=[True])
    return expressions.scheduled(goal, rows)


TWO_ORDERS = expressions.two_orders(3)
ONE_SHOT = [(a, b, REDUCE, READ_INPUT) for a in range(3) for b in range(3) if a != b]


# --- the verifier --------------------------------------------------------------------------------


def test_a_schedule_with_two_orders_by_hand():
    """NPUs 1 and 2 end with (x1 + x2) + x0, NPU 0 with the sum of x0, x1 and x2 at once."""
    report = tacos.verify(scheduled(3, TWO_ORDERS))
    assert report.ok
    assert not report.consistent
    assert report.difference == "npu 0 and npu 1 add up chunk 0 in different orders"
    report.raise_if_failed()


def test_operands_that_arrive_between_two_reads_are_one_sum():
    report = tacos.verify(scheduled(3, ONE_SHOT))
    assert (report.ok, report.consistent, report.difference) == (True, True, "")


def test_pairs_that_exchange_their_sums_agree():
    """(x0 + x1) + (x2 + x3) and (x2 + x3) + (x0 + x1) have the same bits."""
    pairs = [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0), (1, 3), (3, 1)]
    network = tp.fully_connected(4)
    everybody = list(range(4))
    ends = list(zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True))
    schedule = retime(
        co.custom(4, [1000], [everybody], [everybody], reduces=[True]),
        routes(network, links=[[ends.index(pair)] for pair in pairs]),
        route=list(range(8)),
        chunk=[0] * 8,
        step=[0] * 4 + [1] * 4,
        op=[REDUCE] * 8,
        reads=[READ_ACC] * 8,
    )
    report = tacos.verify(schedule)
    assert report.ok
    assert report.consistent


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_collectives_without_common_sums_are_consistent(kind):
    network = tp.ring(4)
    schedule = tacos.synthesize(network, co.named(kind, network, "1MB", chunks=1))
    assert tacos.verify(schedule).consistent
    assert tacos.verify(lower(schedule)).consistent


@pytest.mark.parametrize(("inputs", "consistent"), [(2, True), (3, False)])
def test_two_sums_of_one_switch_may_differ(inputs, consistent):
    """Two NPUs let the switch add up the same inputs; two operands have only one order."""
    npus = inputs + 2
    switch = npus
    links = [(a, switch) for a in range(npus)] + [(switch, a) for a in range(npus)]
    network = tacos.Topology(
        npus=npus,
        switch_capabilities=np.array([2], np.uint8),
        link_src=np.array([a for a, _ in links], np.int32),
        link_dst=np.array([b for _, b in links], np.int32),
        link_latency_ps=np.full(len(links), 1000),
        link_bandwidth_Bps=np.full(len(links), 10**9),
    )
    up, down = list(range(inputs)), [npus + inputs, npus + inputs + 1]
    goal = co.custom(npus, [1000], [list(range(inputs))], [[inputs, inputs + 1]], reduces=[True])
    schedule = retime(
        goal,
        routes(network, links=[[*up, down[0]], [*up, down[1]]], kinds=["reduce", "reduce"]),
        route=[0, 1],
        chunk=[0, 0],
        step=[0, 1],
        op=[REDUCE, REDUCE],
        reads=[READ_INPUT, READ_INPUT],
    )
    report = tacos.verify(schedule)
    assert report.ok
    assert report.consistent is consistent
    ends = expressions.of_schedule(schedule)
    assert expressions.agree(ends, schedule.collective) is consistent


def test_a_program_fixes_the_order_of_all_additions():
    """Rank 1 computes (x0 + x1) + x2; rank 0 computes the same, or (x0 + x2) + x1."""
    collective = co.custom(3, [1], [[0, 1, 2]], [[0, 1]], reduces=[True])

    def program(first, second):
        return made(
            collective,
            [
                (0, 1, 1, [
                    ("recv", None, None, SCRATCH, 0, 6),
                    ("send", INPUT, 0),
                ]),
                (0, -1, 2, [
                    ("recv", None, None, SCRATCH, 1, 10),
                    ("copy", INPUT, 0, OUTPUT, 0),
                    ("reduce", SCRATCH, first, OUTPUT, 0, None, [0]),
                    ("reduce", SCRATCH, second, OUTPUT, 0, None, [0]),
                ]),
                (1, 0, 0, [
                    ("send", INPUT, 0),
                    ("recv_reduce", INPUT, 0, OUTPUT, 0, 1),
                ]),
                (1, -1, 2, [
                    ("recv_reduce", OUTPUT, 0, OUTPUT, 0, 9, [7]),
                ]),
                (2, 1, -1, [("send", INPUT, 0)]),
                (2, 0, -1, [("send", INPUT, 0)]),
            ],
            scratch=2,
        )  # fmt: skip

    same, other = tacos.verify(program(0, 1)), tacos.verify(program(1, 0))
    assert [report.violations for report in (same, other)] == [(), ()]
    assert same.consistent
    assert not other.consistent
    assert other.difference == "ranks 0 and 1 add up chunk 0 in different orders"


@st.composite
def any_sums(draw):
    """Draw rows for `scheduled`: correct sums of three to five NPUs, mostly in different orders."""
    npus = draw(st.integers(3, 5))
    random = Random(draw(st.integers(0, 2**32 - 1)))
    acc = [{npu} for npu in range(npus)]
    rows = []
    while any(len(held) < npus for held in acc):
        src, dst = random.sample(range(npus), 2)
        if len(acc[src]) == npus > len(acc[dst]) and random.random() < 0.2:
            rows.append((src, dst, COPY, READ_ACC))
            acc[dst] = acc[src]
        elif not acc[src] & acc[dst] and random.random() < 0.7:
            rows.append((src, dst, REDUCE, READ_ACC))
            acc[dst] = acc[dst] | acc[src]
        elif src not in acc[dst]:
            rows.append((src, dst, REDUCE, READ_INPUT))
            acc[dst] = acc[dst] | {src}
    return npus, rows


@given(case=any_sums())
@example(case=(3, TWO_ORDERS))
@example(case=(3, ONE_SHOT))
@settings(max_examples=200)
def test_the_verifier_and_the_oracle_agree_about_any_sums(case):
    schedule = scheduled(*case)
    report = tacos.verify(schedule, allow_unneeded=True)
    assert report.ok
    truth = expressions.agree(expressions.of_schedule(schedule), schedule.collective)
    assert report.consistent is truth
    for in_place in (False, True):
        program = lower(schedule, in_place=in_place)
        found = tacos.verify(program)
        assert found.ok
        assert found.consistent is expressions.agree(
            expressions.of_program(program), program.collective
        )
        assert found.consistent or not truth


@given(order=orders())
def test_the_verifier_and_the_oracle_agree_about_trees_and_switches(order):
    schedule = order.retimed()
    truth = expressions.agree(expressions.of_schedule(schedule), schedule.collective)
    assert tacos.verify(schedule, allow_unneeded=True).consistent is truth
    if not has_trees(schedule) and all(schedule.collective.chunk_bytes()):
        assert tacos.verify(lower(schedule)).consistent or not truth


@given(order=lowered())
@settings(max_examples=60)
def test_what_the_checker_says_of_programs_is_true(order):
    schedule, program = order
    ends = expressions.of_program(program)
    assert tacos.verify(program).consistent is expressions.agree(ends, program.collective)
    assert tacos.verify(schedule).consistent
    assert tacos.verify(program).consistent


@pytest.mark.parametrize("spec", ["torus:3x3", "ring:5", "fc:4", "switch:4", "hypercube:3"])
def test_an_orbit_is_as_consistent_as_the_whole(spec):
    """Compare the proof from one NPU's chunks with all chunks written out."""
    network = tp.parse(spec)
    goal = co.all_reduce(network, 1000 * network.npus, chunks=1)
    schedule = tacos.synthesize(network, goal, engine="symmetric")
    assert schedule.form == "orbit"
    whole = schedule.expand()
    assert expressions.agree(expressions.of_schedule(whole), whole.collective)
    assert tacos.verify(schedule).consistent
    assert tacos.verify(whole).consistent


def rotated(npus, rows):
    """Return an orbit: rows (src, dst, op, reads) move chunk 0 one after the other, rotations give the other chunks."""
    network = tp.fully_connected(npus, bandwidth="1GB/s", latency="1us")
    ends = list(zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True))
    table = routes(network, links=[[ends.index((src, dst))] for src, dst, *_ in rows])
    image = [(npu + 1) % npus for npu in range(npus)]
    return orbit(
        co.all_reduce(network, 1000 * npus, chunks=1),
        table,
        [(i, 0, op, reads, i * 2_000_000) for i, (_, _, op, reads) in enumerate(rows)],
        [npus],
        image,
        links_under(network, image),
    )


def steps_of(program, rank):
    """Return the steps of a rank, in all its threads."""
    columns = ("op", "src_buffer", "src_slot", "dst_buffer", "dst_slot")
    mine = np.repeat(program.thread_rank, np.diff(program.thread_begin)) == rank
    return sorted(zip(*(getattr(program, name)[mine].tolist() for name in columns), strict=True))


@given(case=any_sums(), rank=st.integers(0, 2))
@example(case=(3, TWO_ORDERS), rank=0)
@example(case=(3, ONE_SHOT), rank=1)
def test_orbits_of_any_sums_are_as_consistent_as_the_whole(case, rank):
    schedule = rotated(*case)
    whole = schedule.expand()
    report = tacos.verify(schedule, allow_unneeded=True)
    truth = expressions.agree(expressions.of_schedule(whole), whole.collective)
    assert (report.ok, report.consistent) == (True, truth)
    assert tacos.verify(whole, allow_unneeded=True).consistent is truth
    program = lower(schedule)
    assert tacos.verify(program).consistent or not truth
    assert steps_of(lower(schedule, rank=rank), rank) == steps_of(program, rank)


# --- lowering ------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("spec", NETWORKS)
def test_programs_of_all_engines_are_consistent(spec, in_place):
    network = tp.parse(spec)
    for size in ("1KB", "1MB"):
        goal = co.all_reduce(network, size, chunks=1)
        for engine in tacos.engines(network, goal):
            schedule = tacos.synthesize(network, goal, engine=engine)
            assert tacos.verify(schedule).consistent, engine
            program = lower(schedule, in_place=in_place)
            report = tacos.verify(program)
            assert (report.ok, report.consistent) == (True, True), (engine, report)


def test_a_one_shot_adds_in_the_order_of_the_ranks():
    program = lower(scheduled(3, ONE_SHOT))
    [ends] = expressions.of_program(program)
    # ((x0 + x1) + x2), whatever arrives first.
    assert set(ends.values()) == {expressions.total([(0, 1), 2])}


def test_sums_that_one_npu_makes_stay_as_they_were():
    """Rings and trees to one root add on arrival: no scratch, no separate reduce steps."""
    for spec, engine in [("ring:6", "ring"), ("fc:6", "direct"), ("fc:6", "double-binary-tree")]:
        network = tp.parse(spec)
        goal = co.all_reduce(network, "1MB", chunks=1)
        program = lower(tacos.synthesize(network, goal, engine=engine), in_place=True)
        assert {STEP_OPS[op] for op in program.op.tolist()} <= {"send", "recv", "recv_reduce"}
        assert not program.scratch_slots.any()


@pytest.mark.parametrize("engine", ["symmetric", "one-shot"])
def test_one_rank_is_lowered_as_in_the_whole(engine):
    network = tp.parse("switch:4")
    schedule = tacos.synthesize(network, co.all_reduce(network, "4KB", chunks=1), engine=engine)
    whole = lower(schedule)
    for rank in range(4):
        alone = lower(schedule, rank=rank)
        assert steps_of(alone, rank) == steps_of(whole, rank)
        assert alone.scratch_slots[rank] == whole.scratch_slots[rank]


@pytest.mark.parametrize(("spec", "engine"), [("ring:4", "one-shot"), ("switch:5", "forest")])
def test_lifting_finds_the_sums_again(spec, engine):
    """Messages that are equally urgent may be served in another order, which changes the time a little."""
    network = tp.parse(spec)
    schedule = tacos.synthesize(network, co.all_reduce(network, "1KB", chunks=1), engine=engine)
    again = lift(lower(schedule), network)
    assert again.transfers == schedule.transfers
    assert again.time_ps <= 1.01 * schedule.time_ps
    assert tacos.verify(again).consistent
    assert tacos.verify(lower(again)).consistent


# --- real data -----------------------------------------------------------------------------------


def bits(generator, count, dtype):
    """Numbers of very different sizes, so that almost every order of summation rounds differently."""
    values = generator.standard_normal(count) * 2.0 ** generator.integers(-6, 7, count)
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


class Typed:
    """An array whose type NumPy does not know."""

    def __init__(self, array, name):
        self.ctypes, self.dtype = array.ctypes, type("", (), {"name": name})


def results(program, dtype, op="sum", count=257):
    """Return the ranks' results as bytes."""
    generator, random = np.random.default_rng(0), Random(0)
    sources = [bits(generator, count, dtype) for _ in range(program.ranks)]
    targets = [np.zeros_like(source) for source in sources]
    given_targets = [Typed(target, dtype) for target in targets]
    Machine(program).run(sources, given_targets, count, op, random)
    return [target.tobytes() for target in targets]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("spec", ["ring:4", "fc:5", "switch:6", "mesh:2x3", "ring:2*fc:4"])
def test_all_ranks_end_with_identical_bits(spec, dtype):
    network = tp.parse(spec)
    for size in ("1KB", "1MB"):
        goal = co.all_reduce(network, size, chunks=2)
        for engine in tacos.engines(network, goal):
            program = lower(tacos.synthesize(network, goal, engine=engine), in_place=True)
            for op in ("sum", "avg"):
                assert len(set(results(program, dtype, op))) == 1, engine


def test_a_program_that_is_not_consistent_really_differs():
    """Shows that the test above can fail."""
    program = lower(scheduled(3, TWO_ORDERS))
    assert not tacos.verify(program).consistent
    first, second, third = results(program, "bfloat16")
    assert first != second == third


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all.xml", "all.json"])
@pytest.mark.parametrize(
    ("spec", "engine"),
    [
        ("fc:4", "one-shot"),
        ("switch:8", "forest"),
        ("torus:3x3", "2d-ring"),
        ("ring:2*fc:4", "forest"),
    ],
)
def test_files_keep_the_order(spec, engine, name, tmp_path):
    network = tp.parse(spec)
    schedule = tacos.synthesize(network, co.all_reduce(network, "8KB", chunks=2), engine=engine)
    format = "msccl" if name.endswith("xml") else "mscclpp"
    tacos.save(schedule, tmp_path / name, format=format)
    program = tacos.load(tmp_path / name, format=format)
    report = tacos.verify(program)
    assert (report.ok, report.consistent) == (True, True)
    assert expressions.agree(expressions.of_program(program), program.collective)
    assert len(set(results(program, "float16"))) == 1


def test_sums_of_neighbouring_chunks_become_one_step(tmp_path):
    """Eight ranks add up eight operands of eight chunks each, all chunks at once."""
    network = tp.parse("switch:8")
    schedule = tacos.synthesize(network, co.all_reduce(network, "8KB", chunks=1), engine="one-shot")
    tacos.save(schedule, tmp_path / "all.xml")
    program = tacos.load(tmp_path / "all.xml")
    names = [STEP_OPS[op] for op in program.op.tolist()]
    assert names.count("reduce") + names.count("recv_reduce") == 7 * 8


@given(case=any_sums())
@settings(max_examples=30)
def test_chakra_traces_keep_the_order(case, tmp_path_factory):
    schedule = scheduled(*case)
    assume(tacos.verify(schedule).consistent)
    prefix = tmp_path_factory.mktemp("traces") / "sums"
    tacos.save(schedule, prefix, format="chakra")
    assert tacos.verify(tacos.load(prefix, format="chakra")).consistent


# --- searches that require it --------------------------------------------------------------------


def unruly(topology, collective, **_):
    """An engine that is faster than all others and adds in two orders."""
    found = expressions.scheduled(collective, expressions.two_orders(topology.npus))
    network = tp.fully_connected(topology.npus, bandwidth="1GB/s", latency="1us")
    assert topology == network
    return found.with_provenance({"engine": "direct"})


@pytest.fixture
def with_two_orders(monkeypatch):
    """Return a network on which only direct and ring apply; direct adds in two orders."""
    from tacos.search import auto
    from tacos.synth import ENGINES

    monkeypatch.setitem(ENGINES, "direct", replace(ENGINES["direct"], solve=unruly))
    monkeypatch.setattr(auto, "ENGINES", {name: ENGINES[name] for name in ("direct", "ring")})
    return tp.fully_connected(4, bandwidth="1GB/s", latency="1us")


def test_auto_passes_over_schedules_with_several_orders(with_two_orders):
    network = with_two_orders
    goal = co.all_reduce(network, "64B", chunks=1)
    named = tacos.synthesize(network, goal, engine="direct")
    assert named.provenance["consistent"] is False
    ring = tacos.synthesize(network, goal, engine="ring")
    assert "consistent" not in ring.provenance
    assert named.time_ps < ring.time_ps
    assert tacos.synthesize(network, goal, effort="fast").provenance["engine"] == "ring"
    any_order = tacos.synthesize(network, goal, effort="fast", consistent=False)
    assert any_order.provenance["engine"] == "direct"
    assert any_order.provenance["consistent"] is False


def test_a_comparison_marks_several_orders(with_two_orders):
    network = with_two_orders
    goal = co.all_reduce(network, "64B", chunks=1)
    strict = tacos.compare(network, goal, engines=["direct", "ring"])
    assert [(c.engine, c.ok, c.consistent) for c in strict.candidates] == [
        ("ring", True, True),
        ("direct", True, False),
    ]
    assert strict.candidates[1].note == "ranks may end with different bits"
    loose = tacos.compare(network, goal, engines=["direct", "ring"], consistent=False)
    assert [c.engine for c in loose.candidates] == ["direct", "ring"]


def test_programs_of_others_are_compared_as_they_are():
    """An algorithm from elsewhere that adds in two orders is marked, and comes after all others."""
    network = tp.fully_connected(3)
    goal = co.all_reduce(network, "3KB", chunks=1)
    program = lower(expressions.scheduled(goal, expressions.two_orders(3)))
    found = tacos.compare(network, goal, engines=["ring"], beside={"theirs": program})
    assert {c.engine: (c.ok, c.consistent) for c in found.candidates} == {
        "ring": (True, True),
        "theirs": (True, False),
    }
    assert found.candidates[0].engine == "ring"


def test_tuning_asks_for_one_order(with_two_orders):
    network = with_two_orders
    engines = [
        {
            one.engine
            for one in tacos.tune(
                network, "all_reduce", "64B:1KB", effort="fast", consistent=c
            ).ranges
        }
        for c in (True, False)
    ]
    assert engines == [{"ring"}, {"direct"}]


def test_the_command_says_that_bits_may_differ(tmp_path, capsys):
    from tacos.cli import main

    network = tp.fully_connected(4)
    rows = expressions.two_orders(4)
    file = tmp_path / "two.tacos"
    tacos.save(expressions.scheduled(co.all_reduce(network, "4KB", chunks=1), rows), file)
    sentence = "npu 0 and npu 2 add up chunk 0 in different orders"
    assert main(["verify", str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("ok: ")
    assert printed.err == f"tacos: ranks may end with different bits: {sentence}\n"
    assert main(["verify", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["consistent"], found["difference"]) == (True, False, sentence)
    assert main(["convert", str(file), str(tmp_path / "two.xml")]) == 0
    assert "ranks may end with different bits" in capsys.readouterr().err
    assert main(["synth", "fc:4", "all-reduce", "1KB", "--any-order", "--json"]) == 0


# --- the runtime ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as started:
        yield started


def test_floating_point_sums_pass_over_plans_with_several_orders(ranks, tmp_path):
    """Integers and maxima take the plan, sums of floats the default."""
    network = tp.fully_connected(4)
    goal = co.all_reduce(network, "4KB", chunks=1)
    add(tmp_path, expressions.scheduled(goal, expressions.two_orders(4)))
    for floats, integers, log in ranks.run(4, "choose_algorithms", str(tmp_path)):
        assert floats == ""
        assert integers.startswith("ranks 0 and 2 add up chunk 0 in different orders")
        lines = log.splitlines()
        if lines:
            assert len(lines) == 1
            assert "is not for floating-point sums" in lines[0]


def test_a_measurement_says_that_bits_may_differ(ranks):
    program = lower(
        expressions.scheduled(co.all_reduce(4, "4KB", chunks=1), expressions.two_orders(4))
    )
    logs = ranks.run(4, "measure_and_log", program)
    assert logs[0] == (
        "tacos: ranks may end with different bits: ranks 0 and 2 add up chunk 0 in different orders\n"
    )
    assert logs[1:] == [""] * 3
