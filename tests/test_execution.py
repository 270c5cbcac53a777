"""Programs run on real data in one process, with messages in any order, and compute their collective.

Real files come from the directory TACOS_TEST_DATA; tests that need them are skipped without it.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.program import lower
from tests.support.memory_driver import Machine
from tests.support.programs import INPUT, OUTPUT, made, put_and_passed_on
from tests.support.rank_jobs import OPS, expected, shared
from tests.support.real_files import real_files
from tests.support.strategies import lowered

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32",
          "int64", "uint64", "bool"]  # fmt: skip


def check(program, count, dtype="int64", op="sum", in_place=False, random=None):
    """Run a program of one named collective and compare with NumPy."""
    machine = Machine(program)
    [part] = program.collective.parts
    rows = [expected(part, rank, count, dtype, op, 0) for rank in range(program.ranks)]
    sources = [source.copy() for source, _ in rows]
    targets = [np.full(len(want), 77).astype(dtype) for _, want in rows]
    if in_place:
        pairs = zip(sources, targets, strict=True)
        both = [shared(part, rank, count, *pair) for rank, pair in enumerate(pairs)]
        sources, targets = [pair[0] for pair in both], [pair[1] for pair in both]
    machine.run(sources, targets, count, op, random or Random(0))
    for rank, (source, want) in enumerate(rows):
        np.testing.assert_array_equal(targets[rank], want, f"rank {rank}")
        if not in_place:
            np.testing.assert_array_equal(
                sources[rank], source, f"rank {rank}: the source was changed"
            )


def whole(collective, rank, values):
    """Return a rank's input and output; it brings values[rank][c] to a sum, values[-1][c] otherwise."""
    brings = [c for c in range(collective.chunks) if rank in collective.inputs(c)]
    needs = [c for c in range(collective.chunks) if rank in collective.outputs(c)]
    empty = np.empty(0, np.int64)
    source = [values[rank if collective.reduces(c) else -1][c] for c in brings]
    target = []
    for c in needs:
        shares = [values[r][c] for r in collective.inputs(c)]
        target.append(sum(shares) if collective.reduces(c) else values[-1][c])
    return np.concatenate([*source, empty]), np.concatenate([*target, empty])


@given(order=lowered(), data=st.data())
@settings(max_examples=60)
def test_any_collective_of_any_engine(order, data):
    """Chunks of all sizes, including all-to-all-v, custom and process groups, at the schedule's size."""
    schedule, program = order
    ranks = program.ranks
    sizes = schedule.collective.chunk_bytes().tolist()
    generator = np.random.default_rng(0)
    values = [[generator.integers(0, 9, n) for n in sizes] for _ in range(ranks + 1)]
    rows = [whole(schedule.collective, rank, values) for rank in range(ranks)]
    targets = [np.full(len(want), 77) for _, want in rows]
    random = data.draw(st.randoms(use_true_random=False))
    count = schedule.collective.size_bytes
    Machine(program).run([source for source, _ in rows], targets, count, "sum", random)
    for rank, (_, want) in enumerate(rows):
        np.testing.assert_array_equal(targets[rank], want, f"rank {rank}")


@given(
    spec=st.sampled_from(["ring:4", "mesh:2x3", "switch:5", "fc:3", "torus:2x2"]),
    kind=st.sampled_from(
        ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
         "scatter"]
    ),
    chunks=st.integers(1, 3),
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    lowered_in_place=st.booleans(),
    in_place=st.booleans(),
    random=st.randoms(use_true_random=False),
)  # fmt: skip
@settings(max_examples=80)
def test_a_program_serves_every_size(
    spec, kind, chunks, counts, lowered_in_place, in_place, random
):
    """Fewer elements than chunks, no elements, and in-place calls of programs lowered otherwise."""
    network = tp.parse(spec)
    root = {"root": 1} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    collective = co.named(kind, network, "1MB", chunks=chunks, **root)
    schedule = tacos.synthesize(network, collective, effort="fast")
    program = lower(schedule, in_place=lowered_in_place)
    for count in counts:
        check(program, count, in_place=in_place, random=random)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_type_and_operation(dtype, op):
    network = tp.ring(3)
    program = lower(tacos.synthesize(network, co.all_reduce(network, "1MB", chunks=2)))
    if dtype.startswith("float") and op in ("band", "bor", "bxor"):
        data = [np.ones(5, dtype)] * 3
        with pytest.raises(ValueError, match=f'op is "{op}", which {dtype} does not have; use'):
            Machine(program).run(data, data, 5, op, Random(0))
        return
    if dtype == "bool" and op == "avg":
        return  # truth values have no average
    check(program, 101, dtype, op)


def sum_of_two(a, b, dtype):
    """Return the sum of two arrays of bits, computed by an all-reduce of two ranks."""
    network = tp.ring(2)
    program = lower(tacos.synthesize(network, co.all_reduce(network, "1MB", chunks=1)))
    machine = Machine(program)
    inputs, outputs = [a.copy(), b.copy()], [np.zeros_like(a), np.zeros_like(a)]

    class Typed:
        def __init__(self, array):
            self.ctypes, self.dtype = array.ctypes, type("", (), {"name": dtype})

    machine.run(inputs, [Typed(out) for out in outputs], len(a), "sum", Random(0))
    np.testing.assert_array_equal(*outputs)
    return outputs[0]


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_half_precision_rounds_as_numpy_does():
    """Add a few numbers, among them zeros, subnormals and infinity, to each of all 65,536."""
    every = np.arange(65536, dtype=np.uint16)
    for other in (0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0xBC01, 0x7BFF, 0x7C00, 0x1234):
        a, b = every.view(np.float16), np.full(65536, other, np.uint16).view(np.float16)
        got = sum_of_two(every, b.view(np.uint16), "float16").view(np.float16)
        np.testing.assert_array_equal(got, a + b)


def test_bfloat16_rounds_to_even():
    """By hand: 1 + 2⁻⁸, halfway between 1 and 1 + 2⁻⁷, rounds to the even 1; 1 + 3·2⁻⁸ rounds up."""

    def bits(*values):
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)

    a = bits(1.0, 1.0 + 2**-7, 3.0, np.inf, np.nan, 2**127 * 1.5)
    b = bits(2**-8, 2**-8, 4.0, -np.inf, 1.0, 2**127 * 1.5)
    got = (sum_of_two(a, b, "bfloat16").astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(got, [1.0, 1.0 + 2**-6, 7.0, np.nan, np.nan, np.inf])


@pytest.mark.parametrize("path", real_files("msccl-xml/*.xml", "mscclpp-json/*.json"))
def test_programs_of_other_tools(path):
    program = tacos.load(path)
    for count in (0, 1, 1000, program.collective.chunks * 3):
        for in_place in (False, True):
            check(program, count, in_place=in_place)


def pair(threads, **options):
    """A program of two ranks that swap their chunks: an all-gather."""
    return made(co.all_gather(2, "2B", chunks=1), threads, **options)


@pytest.mark.parametrize("count", [2, 3])
def test_a_chunk_in_another_ones_slot_needs_slots_of_one_size(count):
    """Rank 1 first receives chunk 0 into the slot of chunk 1. Of 3 elements, chunk 0 has two and the
    slot one; the memory next to it must not be overwritten."""
    program = pair(
        [
            (0, 1, 1, [("copy", INPUT, 0, OUTPUT, 0), ("send", INPUT, 0), ("recv", None, None, OUTPUT, 1, 7)]),
            (1, 0, 0, [
                ("recv", None, None, OUTPUT, 1, 1),
                ("copy", OUTPUT, 1, OUTPUT, 0),
                ("copy", INPUT, 0, OUTPUT, 1),
                ("nop",),
                ("send", INPUT, 0),
            ]),
        ]
    )  # fmt: skip
    tacos.verify(program).raise_if_failed()
    check(program, count)


def test_a_third_rank_learns_of_a_put_only_when_it_is_there():
    program = put_and_passed_on()
    tacos.verify(program).raise_if_failed()
    for seed in range(50):
        check(program, 5, random=Random(seed))
