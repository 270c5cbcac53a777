"""Collectives: how chunks are numbered and cut, which NPUs hold them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacos import collective as co
from tacos import topology as tp
from tacos._core import Collective, CollectivePart
from tacos.errors import InfeasibleError
from tests.support.strategies import ROOTED, UNROOTED, collectives

NAMED = [*ROOTED, *UNROOTED]
GROUP = [4, 1, 3]
SUMS = {"reduce", "reduce_scatter", "all_reduce"}


def ends(collective):
    return [
        (collective.inputs(chunk), collective.outputs(chunk)) for chunk in range(collective.chunks)
    ]


# --- numbering ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_gather", [([4], GROUP)] * 2 + [([1], GROUP)] * 2 + [([3], GROUP)] * 2),
        ("reduce_scatter", [(GROUP, [4])] * 2 + [(GROUP, [1])] * 2 + [(GROUP, [3])] * 2),
        ("all_reduce", [(GROUP, GROUP)] * 6),
        ("broadcast", [([3], GROUP)] * 2),
        ("reduce", [(GROUP, [3])] * 2),
        ("gather", [([4], [3])] * 2 + [([1], [3])] * 2 + [([3], [3])] * 2),
        ("scatter", [([3], [4])] * 2 + [([3], [1])] * 2 + [([3], [3])] * 2),
        ("all_to_all", [([i], [j]) for i in GROUP for j in GROUP for _ in range(2)]),
    ],
)
def test_who_holds_and_who_gets_each_chunk(kind, expected):
    root = 3 if kind in ROOTED else None
    collective = co.named(kind, 6, 6000, group=GROUP, chunks=2, root=root)
    assert ends(collective) == expected
    assert [collective.reduces(c) for c in range(collective.chunks)] == [kind in SUMS] * len(
        expected
    )


@pytest.mark.parametrize("kind", NAMED)
def test_names_with_hyphens_and_functions_are_the_same(kind):
    by_name = co.named(kind.replace("_", "-"), 4, "1KB", chunks=1)
    assert by_name == getattr(co, kind)(4, 1000, chunks=1)
    assert by_name.kind == kind
    assert by_name.size_bytes == 1000


def test_a_topology_stands_for_its_npus():
    assert co.all_gather(tp.switch(5), 1000) == co.all_gather(5, 1000)


def test_the_root_is_the_first_member_unless_named():
    assert co.broadcast(6, 1000, group=GROUP, chunks=1).inputs(0) == [4]
    assert co.broadcast(6, 1000, group=GROUP, root=1, chunks=1).inputs(0) == [1]


# --- sizes --------------------------------------------------------------------------------------


def cut(total, pieces):
    """The first pieces take the remainder."""
    return [total // pieces + (i < total % pieces) for i in range(pieces)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_gather", [*cut(4, 2), *cut(3, 2), *cut(3, 2)]),  # 10 B over 3: 4, 3, 3
        ("reduce_scatter", [2, 2, 2, 1, 2, 1]),
        ("gather", [2, 2, 2, 1, 2, 1]),
        ("scatter", [2, 2, 2, 1, 2, 1]),
        ("all_reduce", [2, 2, 2, 2, 1, 1]),
        ("broadcast", [5, 5]),
        ("reduce", [5, 5]),
        ("all_to_all", [2, 2, 2, 1, 2, 1] * 3),
    ],
)
def test_remainders_go_to_the_first_pieces(kind, expected):
    assert co.named(kind, 3, 10, chunks=2).chunk_bytes().tolist() == expected


@given(st.sampled_from(NAMED), st.integers(1, 6), st.integers(1, 10**12), st.integers(1, 5))
def test_the_pieces_make_up_the_whole(kind, n, size, chunks):
    collective = co.named(kind, n, size, chunks=chunks)
    pieces = collective.chunk_bytes()
    buffers = n if kind == "all_to_all" else 1
    assert pieces.sum() == size * buffers
    assert pieces.min() >= 0
    assert collective.chunks == len(pieces)


@given(st.integers(1, 5).flatmap(collectives))
def test_a_chunk_without_bytes_asks_for_nothing(collective):
    sizes = collective.chunk_bytes()
    for chunk, (inputs, outputs) in enumerate(ends(collective)):
        assert bool(inputs) == (sizes[chunk] > 0)
        assert sizes[chunk] > 0 or not outputs


@given(st.integers(1, 5).flatmap(collectives))
def test_the_columns_list_inputs_and_outputs(collective):
    for side, columns in ((0, collective.precondition()), (1, collective.postcondition())):
        rows = [(chunk, npu) for chunk, both in enumerate(ends(collective)) for npu in both[side]]
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows


# --- the other kinds ----------------------------------------------------------------------------


def test_all_to_all_v():
    sizes = [[0, 5, 1], [2, 0, 0], [7, 0, 3]]
    collective = co.all_to_all_v(5, sizes, group=GROUP, chunks=2)
    assert collective.chunk_bytes().tolist() == [
        piece for row in sizes for size in row for piece in cut(size, 2)
    ]
    assert ends(collective)[2:4] == [([4], [1]), ([4], [1])]  # 5 B from member 0 to member 1
    assert ends(collective)[4:6] == [([4], [3]), ([], [])]  # 1 B in two pieces
    assert collective.size_bytes == 10


def test_send_recv():
    collective = co.send_recv(4, [(0, 3, "1KB"), (2, 1, 5)], chunks=2)
    assert collective.chunk_bytes().tolist() == [500, 500, 3, 2]
    assert ends(collective) == [([0], [3])] * 2 + [([2], [1])] * 2
    assert collective.size_bytes == 1000


def test_custom():
    collective = co.custom(
        4, [10, "1KB", 7], [[0], [2, 1], [3]], [[1, 0], [3], []], reduces=[False, True, False]
    )
    assert ends(collective) == [([0], [0, 1]), ([1, 2], [3]), ([3], [])]
    assert [collective.reduces(chunk) for chunk in range(3)] == [False, True, False]
    assert collective.chunk_bytes().tolist() == [10, 1000, 7]
    assert collective.size_bytes == 1017
    assert all(co.custom(2, [1, 1], [[0]] * 2, [[1]] * 2, reduces=True).reduces(c) for c in (0, 1))


def test_together_numbers_the_parts_one_after_the_other():
    first = co.all_gather(6, 4, group=[0, 1], chunks=2)
    second = co.broadcast(6, 9, root=5, group=[4, 5], chunks=1)
    both = co.together(first, second)
    assert both.chunks == 5
    assert ends(both) == ends(first) + ends(second)
    assert both.chunk_bytes().tolist() == [1, 1, 1, 1, 9]
    assert (both.kind, both.size_bytes, len(both.parts)) == ("mixed", 13, 2)


def test_equal_parts_have_one_size():
    halves = [co.all_reduce(8, 1000, group=g, chunks=1) for g in ([0, 1, 2, 3], [4, 5, 6, 7])]
    both = co.together(*halves)
    assert (both.kind, both.size_bytes, both.bus_factor) == ("all_reduce", 1000, 1.5)
    uneven = co.together(halves[0], co.all_reduce(8, 1000, group=[4, 5], chunks=1))
    assert uneven.bus_factor == 0


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1),
        ("reduce", 1),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(kind, factor):
    assert co.named(kind, 9, 1000, group=[1, 3, 5, 7]).bus_factor == factor


def test_bus_factors_of_the_others():
    assert co.send_recv(2, [(0, 1, 5)]).bus_factor == 1
    assert co.all_to_all_v(2, [[0, 1], [1, 0]]).bus_factor == 0
    assert co.custom(2, [1], [[0]], [[1]]).bus_factor == 0


# --- open chunk counts --------------------------------------------------------------------------


def test_auto_leaves_the_chunk_count_open():
    collective = co.all_gather(4, 1000)
    assert not collective.resolved
    for ask in (
        lambda: collective.chunks,
        lambda: collective.inputs(0),
        collective.chunk_bytes,
        collective.precondition,
    ):
        with pytest.raises(ValueError, match="not chosen yet: call with_chunks"):
            ask()
    chosen = collective.with_chunks(3)
    assert chosen.resolved
    assert chosen == co.all_gather(4, 1000, chunks=3)


def test_with_chunks_changes_only_what_is_open():
    both = co.together(co.all_gather(4, 1000), co.all_gather(4, 1000, chunks=2))
    assert both.with_chunks(5).chunks == 4 * 5 + 4 * 2
    with pytest.raises(ValueError, match="chunks is 0; it must be positive"):
        both.with_chunks(0)


# --- reversed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("all_gather", "reduce_scatter"),
        ("broadcast", "reduce"),
        ("gather", "scatter"),
        ("all_reduce", "all_reduce"),
    ],
)
def test_reversed_exchanges_inputs_and_outputs(kind, other):
    collective = co.named(kind, 6, 1001, group=GROUP, chunks=2)
    back = collective.reversed()
    assert back.kind == other
    assert ends(back) == [(outputs, inputs) for inputs, outputs in ends(collective)]
    assert back.chunk_bytes().tolist() == collective.chunk_bytes().tolist()
    assert back.reversed() == collective


def test_reversed_messages():
    assert co.all_to_all(3, 9, chunks=1).reversed() == co.all_to_all(3, 9, chunks=1)
    uneven = co.all_to_all_v(2, [[1, 2], [3, 4]], chunks=1)
    assert uneven.reversed().chunk_bytes().tolist() == [1, 3, 2, 4]
    there = co.send_recv(3, [(0, 1, 5), (1, 2, 6)], chunks=1)
    assert there.reversed() == co.send_recv(3, [(1, 0, 5), (2, 1, 6)], chunks=1)


def test_reversed_custom():
    """The reverse of a chunk for several NPUs is the sum of one input from each."""
    collective = co.custom(4, [1, 2], [[0], [1]], [[1, 2], [3]])
    back = collective.reversed()
    assert ends(back) == [([1, 2], [0]), ([3], [1])]
    assert back.reduces(0)
    with pytest.raises(InfeasibleError, match="a custom collective that reduces has no reverse"):
        back.reversed()
    with pytest.raises(InfeasibleError, match="with replicated inputs has no reverse"):
        co.custom(4, [1], [[0, 1]], [[2]]).reversed()


# --- equality, columns, names -------------------------------------------------------------------


def test_equality_and_hash():
    collective = co.all_gather(4, 1000, chunks=2)
    assert collective == co.all_gather(4, "1KB", chunks=2, group=range(4))
    assert hash(collective) == hash(co.all_gather(4, 1000, chunks=2))
    others = [
        co.all_gather(4, 1000, chunks=1),
        co.all_gather(4, 1001, chunks=2),
        co.all_gather(5, 1000, chunks=2, group=range(4)),
        co.all_gather(4, 1000, chunks=2, group=[1, 0, 2, 3]),
        co.reduce_scatter(4, 1000, chunks=2),
        None,
    ]
    assert all(collective != other for other in others)


def test_columns_are_read_only():
    part = co.all_gather(4, 1000, chunks=1).parts[0]
    with pytest.raises(ValueError, match="read-only"):
        part.group[0] = 3


def test_repr():
    assert repr(co.all_gather(8, "1MB", group=GROUP)) == (
        "<tacos.Collective all_gather of 1000000 B on 3 NPUs>"
    )
    assert repr(co.together(*[co.broadcast(2, 5, chunks=1)] * 3)) == (
        "<tacos.Collective broadcast and 2 more of 5 B on 2 NPUs, 3 chunks>"
    )


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: co.named("all-redice", 4, 1),
            'unknown collective "all-redice"; did you mean "all-reduce"',
        ),
        (lambda: co.all_gather(4, 0), "must be positive"),
        (lambda: co.all_gather(4, -5), "must be positive"),
        (lambda: co.all_gather(0, 5), "npus must be a topology, a spec or a number of NPUs; got 0"),
        (lambda: co.all_gather(4, 5, group=[]), "all_gather: the group has no NPU"),
        (lambda: co.all_gather(4, 5, group=[1, 2, 1]), "NPU 1 is twice in the group"),
        (
            lambda: co.all_gather(4, 5, group=[4]),
            "group has 4, but there is no such NPU; the NPUs are 0 to 3",
        ),
        (lambda: co.all_gather(4, 5, group=[-1]), "group has -1, but"),
        (lambda: co.all_gather(4, 5, group=[0.5]), "group must be whole numbers, not "),
        (lambda: co.all_gather(4, 5, chunks=0), 'chunks must be "auto" or a whole number'),
        (lambda: co.all_gather(4, 5, chunks=-1), "chunks must be .*; got -1"),
        (lambda: co.all_gather(4, 5, chunks=True), "chunks must be .*; got True"),
        (lambda: co.all_gather(4, 5, chunks=2**31), "chunks must be .*; got 2147483648"),
        (lambda: co.all_gather(4, 5, chunks=2**30), "a collective has fewer than 2\\^32"),
        (lambda: co.all_to_all(70_000, 5, chunks=2**31 - 1), "a collective has fewer than 2\\^32"),
        (
            lambda: co.broadcast(4, 5, root=7),
            "root is 7, but there is no such NPU; the NPUs are 0 to 3",
        ),
        (lambda: co.broadcast(4, 5, root=0, group=[1]), "root is 0, which is not in the group"),
        (
            lambda: co.named("all-gather", 4, 5, root=0),
            r"all-gather has no root; omit root \(got 0\)",
        ),
        (
            lambda: co.all_to_all_v(2, [[1, 2]]),
            r"sizes has the shape \(1, 2\); the group needs \(2, 2\)",
        ),
        (lambda: co.all_to_all_v(2, [[1, -2], [0, 0]]), "sizes has the negative entry -2"),
        (lambda: co.all_to_all_v(2, [[0, 0], [0, 0]]), "sizes has no positive entry"),
        (lambda: co.all_to_all_v(2, [[0.5, 0], [0, 0]]), "sizes must be whole numbers"),
        (lambda: co.send_recv(2, []), "messages is empty"),
        (lambda: co.send_recv(2, [(1, 1, 5)]), "NPU 1 sends a message to itself"),
        (
            lambda: co.send_recv(2, [(0, 2, 5)]),
            r"messages\[0\] is 2, but there is no such NPU; the NPUs are 0 to 1",
        ),
        (lambda: co.send_recv(2, [(0, 1, 0)]), "must be positive"),
        (lambda: co.custom(2, [], [], []), "sizes is empty"),
        (lambda: co.custom(2, [1], [[0], [1]], [[1]]), "before has 2 entries for 1 chunks"),
        (lambda: co.custom(2, [1], [[0]], []), "after has 0 entries for 1 chunks"),
        (lambda: co.custom(2, [1], [[0]], [[1]], reduces=[]), "reduces has 0 entries"),
        (lambda: co.custom(2, [1], [[]], [[1]]), "chunk 0 is not held by any NPU at the start"),
        (lambda: co.custom(2, [1], [[0, 0]], [[1]]), "chunk 0 lists NPU 0 twice as an input"),
        (lambda: co.custom(2, [1], [[0]], [[1, 1]]), "chunk 0 lists NPU 1 twice as an output"),
        (lambda: co.custom(2, [1], [[0]], [[2]]), "NPU 2 is not one of 0 to 1"),
        (co.together, "together\\(\\) needs at least one collective"),
        (
            lambda: co.together(co.all_gather(2, 1), co.all_gather(3, 1)),
            r"networks of different sizes: \[2, 3\]",
        ),
    ],
)
def test_wrong_arguments_get_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"kind": "gossip"}, 'unknown collective "gossip"'),
        ({"size": 0}, "all_gather: size is 0 B; it must be positive"),
        ({"chunks": -1}, "all_gather: chunks is -1; it must be positive"),
        ({"kind": "broadcast"}, "broadcast: the root is not in the group"),
        ({"kind": "broadcast", "root": 2}, "broadcast: the root is not in the group"),
        ({"kind": "all_to_all_v"}, "the size matrix must have one row and column per member"),
        ({"bytes": np.array([-1])}, "a message of -1 B"),
        ({"kind": "send_recv", "bytes": np.array([1])}, "the columns differ in length"),
        ({"kind": "custom", "bytes": np.array([1])}, "do not describe the same number of chunks"),
    ],
)
def test_wrong_parts_get_a_sentence(part, sentence):
    options = {"kind": "all_gather", "size": 5, "chunks": 1, "group": np.arange(2, dtype=np.int32)}
    with pytest.raises(ValueError, match=sentence):
        Collective(2, [CollectivePart(**(options | part))])


def test_wrong_questions_get_a_sentence():
    collective = co.all_gather(4, 1000, chunks=1)
    for chunk in (-1, 4):
        with pytest.raises(IndexError, match=f"chunk {chunk} is not one of 0 to 3"):
            collective.inputs(chunk)
    with pytest.raises(ValueError, match="a collective needs at least one part"):
        Collective(2, [])
