"""The baselines: correct on any network, and as fast as their formulas on the network they are for."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import Meter
from tacos.errors import WorkIsUp
from tacos.synth import ENGINES, applicable
from tacos.synth.baselines import block_trees
from tacos.synth.baselines.ring_order import hamiltonian_cycle, ring_cost, ring_order
from tacos.synth.moves import named_part
from tests.support.strategies import ROOTED, collectives, quick_topologies, topologies

US = 10**6  # picoseconds
SPEED: dict[str, Any] = {
    "bandwidth": "1GB/s",
    "latency": "1us",
}  # 1 KB takes 1 us to send and 1 us to arrive
NO_LATENCY: dict[str, Any] = {"bandwidth": "1GB/s", "latency": 0}


def time_us(name, topology, kind, size, *, chunks=1, **options):
    """Verify the schedule of a baseline, and return its time in microseconds."""
    collective = co.named(kind, topology, size, chunks=chunks)
    schedule = ENGINES[name](topology, collective, **options)
    tacos.verify(schedule).raise_if_failed()
    return schedule.time_ps / US


def test_paths_that_nobody_may_list_are_not_followed():
    """In a ring of 64 places, the longest of 4,032 paths has 63 moves; those of an all-to-all are 129,024 moves."""
    part = co.all_to_all(64, "1MB", chunks=1).parts[0]
    trees = block_trees.one_way_ring(64)
    whole = len(named_part(part, trees).route)
    assert whole == 64 * 63 * 64 // 2
    allowed = Meter(limit=int(whole * Meter.TRANSFER))
    assert len(named_part(part, trees, progress=allowed).route) == whole
    assert allowed.used == 0  # the caller counts the moves that it lists
    stopped = Meter(limit=int(10_000 * Meter.TRANSFER))
    with pytest.raises(WorkIsUp):
        named_part(part, trees, progress=stopped)
    assert 10_000 < stopped.wanted / Meter.TRANSFER <= 10_000 + 64 * 63


def check(topology, collective):
    """Check that every baseline that applies gives a correct schedule, and every other one refuses."""
    names = applicable(topology, collective)
    baselines = {name: engine for name, engine in ENGINES.items() if engine.baseline}
    assert len(baselines) == 17
    for name, engine in baselines.items():
        if name not in names:
            with pytest.raises(ValueError, match=f"^{name} needs "):
                engine(topology, collective)
            continue
        schedule = engine(topology, collective)
        report = tacos.verify(schedule)
        assert report.ok, (name, report.violations[0].message)
        assert schedule.provenance["engine"] == name


# --- right everywhere ---------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data())
def test_right_on_any_network(data):
    """Any kind, any group in any order, several at once, uneven and empty chunks, relays."""
    topology = data.draw(quick_topologies() | topologies().filter(lambda t: t.npus <= 9))
    parts = data.draw(st.lists(collectives(topology.npus), min_size=1, max_size=2))
    check(topology, co.together(*parts))


@settings(max_examples=40)
@given(st.data())
def test_right_on_any_grid(data):
    """All NPUs in any order, so that hierarchical and swing apply as well."""
    size = st.sampled_from([1, 2, 3, 4])
    build = data.draw(st.sampled_from([tp.torus, tp.mesh]))
    topology = build(*data.draw(st.lists(size, min_size=1, max_size=3)))
    kind = data.draw(st.sampled_from([*co.NAMED]))
    group = data.draw(st.permutations(range(topology.npus)))
    bytes_ = data.draw(st.sampled_from([1, 7, 1001]))
    chunks = data.draw(st.integers(1, 3))
    check(topology, co.named(kind, topology, bytes_, group=group, chunks=chunks))


@pytest.mark.parametrize("n", range(1, 18))
def test_right_for_every_group_size(n):
    topology = tp.fully_connected(n)
    for kind in co.NAMED:
        root = n - 1 if kind in ROOTED else None
        check(topology, co.named(kind, topology, 1000, chunks=2, root=root))


@pytest.mark.parametrize("sizes", [(2,), (16,), (32,), (64,), (4, 4), (8, 2), (2, 4, 8)])
def test_swing_reaches_every_npu_once(sizes):
    """Each way doubles the holders of a block in every step until all have it, once each."""
    n = int(np.prod(sizes))
    for trees in block_trees.swing(sizes):
        moves = trees(np.arange(n, dtype=np.int32), False)
        assert moves.steps == n.bit_length() - 1
        reached = moves.chunk.astype(np.int64) * n + moves.pairs[1][moves.route]
        assert len(np.unique(reached)) == len(reached) == n * (n - 1)


def test_a_group_in_the_middle_relays_through_others():
    topology = tp.mesh(3, 3)
    check(topology, co.all_reduce(topology, 999, group=[8, 0, 4], chunks=2))


def test_open_chunk_counts_become_one():
    topology = tp.ring(4)
    schedule = ENGINES["ring"](topology, co.all_gather(topology, "1MB"))
    assert schedule.collective.chunks == 4


def test_many_pieces_are_columns():
    """100,000 pieces of each block, taking turns between two ways round; one more takes the first.

    Three pieces of four blocks: pieces 0 and 2 go two places ahead and one back, piece 1 one and two.
    """
    topology = tp.ring(4, **NO_LATENCY)
    collective = co.all_gather(topology, "4MB", chunks=100_001)
    assert ENGINES["bidirectional-ring"](topology, collective).transfers == 12 * 100_001
    part = co.all_gather(4, 1200, chunks=3).parts[0]
    moves = named_part(part, block_trees.two_way_ring(4))
    ahead = (moves.pairs[1] - moves.pairs[0])[moves.route] % 4 == 1
    assert [int(ahead[moves.chunk % 3 == piece].sum()) for piece in range(3)] == [8, 4, 8]


# --- as fast as they should be ------------------------------------------------------------------


@pytest.mark.parametrize("link_model", ["pipelined", "blocking"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_ring_on_a_ring(link_model, bidirectional):
    """Six NPUs, blocks of 1 KB: 5 steps of 1 us + 1 us; an all-reduce has twice as many.

    On a ring of one direction this holds only if sums travel forward too.
    """
    topology = tp.ring(6, bidirectional=bidirectional, link_model=link_model, **SPEED)
    assert time_us("ring", topology, "all_gather", "6KB") == 10
    assert time_us("ring", topology, "reduce_scatter", "6KB") == 10
    assert time_us("ring", topology, "all_reduce", "6KB") == 20
    # One chunk goes 5 hops; with two, the second half follows 0.5 us behind: 5 * 1.5 + 0.5.
    assert time_us("ring", topology, "broadcast", "1KB") == 10
    if link_model == "pipelined":
        assert time_us("ring", topology, "broadcast", "1KB", chunks=2) == 8


def test_bidirectional_ring_on_a_ring():
    """Five NPUs: two hops either way, 2 (1 us + 1 us). Four: two hops one way, one the other.

    Four NPUs, two pieces of 0.5 KB, no latency: each link carries three pieces per block, 1.5 us.
    """
    assert time_us("bidirectional-ring", tp.ring(5, **SPEED), "all_gather", "5KB") == 4
    assert time_us("bidirectional-ring", tp.ring(5, **SPEED), "all_reduce", "5KB") == 8
    assert time_us("bidirectional-ring", tp.ring(4, **SPEED), "all_gather", "4KB") == 4
    fluid = tp.ring(4, **NO_LATENCY)
    assert time_us("bidirectional-ring", fluid, "all_gather", "4KB") == 2
    assert time_us("bidirectional-ring", fluid, "all_gather", "4KB", chunks=2) == 1.5


def test_direct_with_links_between_all():
    """One block of 1 KB on each link: 1 us + 1 us, for an all-reduce twice."""
    topology = tp.fully_connected(5, **SPEED)
    for kind in ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"):
        assert time_us("direct", topology, kind, "5KB") == 2
    assert time_us("direct", topology, "all_reduce", "5KB") == 4
    assert time_us("direct", topology, "broadcast", "1KB") == 2


def test_direct_through_one_port():
    """Five NPUs: four blocks of 1 KB leave each port one after the other, 4 us + 2 latencies.

    At each moment every NPU sends to a different one, so none waits for a port.
    """
    topology = tp.switch(5, **SPEED)
    for kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert time_us("direct", topology, kind, "5KB") == 6
    assert time_us("direct", topology, "all_reduce", "5KB") == 12


def test_one_shot():
    """4 KB of every NPU to all others: 1 us + 4 us; through one port 2 us + 3 * 4 us."""
    assert time_us("one-shot", tp.fully_connected(4, **SPEED), "all_reduce", "4KB") == 5
    assert time_us("one-shot", tp.switch(4, **SPEED), "all_reduce", "4KB") == 14


@pytest.mark.parametrize(
    "build", [tp.hypercube, lambda d, **speed: tp.fully_connected(2**d, **speed)]
)
def test_halving_doubling_with_a_link_to_each_partner(build):
    """Every block crosses up to 3 links, 2 us each; if steps waited, it would be lg 8 α + 7 Sβ/8 = 10 us.

    The link to the nearest partner carries four blocks: one at 0, two that arrived at 2 us,
    and one that has been under way for two steps and leaves at 4 us.
    """
    topology = build(3, **SPEED)
    assert time_us("halving-doubling", topology, "all_gather", "8KB") == 6
    assert time_us("halving-doubling", topology, "broadcast", "1KB") == 6
    assert time_us("halving-doubling", topology, "reduce", "1KB") == 6
    assert 12 <= time_us("halving-doubling", topology, "all_reduce", "8KB") <= 20
    assert time_us("halving-doubling", build(3, **NO_LATENCY), "all_gather", "8KB") == 4


def test_halving_doubling_through_one_port():
    """Four NPUs without latency: three blocks of 1 KB through each port, one after the other."""
    topology = tp.switch(4, **NO_LATENCY)
    assert time_us("halving-doubling", topology, "all_gather", "4KB") == 3
    assert time_us("halving-doubling", topology, "reduce_scatter", "4KB") == 3


def test_halving_doubling_folds():
    """Three NPUs: 2 gives its block to 0, 0 and 1 exchange, 0 gives 2 the rest: three hops.

    The link 0 → 1 carries block 0 at 0 us and block 2 at 2 us; 0 → 2 carries block 0 at 0 us and
    block 1, which came at 2 us. Block 2 arrives at 1 at 4 us, block 1 at 2 at 4 us.
    """
    topology = tp.fully_connected(3, **SPEED)
    assert time_us("halving-doubling", topology, "all_gather", "3KB") == 4
    assert block_trees.halving_doubling(3)[0](np.arange(3, dtype=np.int32), False).steps == 3


def test_bruck():
    """Five NPUs: distances 1, 2, 4 in three steps; distance 3 = 1 + 2 is the longest way, 4 us.

    All-to-all: a block at distance d makes a hop per one bit of d: 1 + 1 + 2 + 1 per NPU.
    """
    topology = tp.fully_connected(5, **SPEED)
    assert time_us("bruck", topology, "all_gather", "5KB") == 4
    collective = co.all_to_all(topology, "5KB", chunks=1)
    assert ENGINES["bruck"](topology, collective).transfers == 5 * (1 + 1 + 2 + 1)
    assert 4 <= time_us("bruck", topology, "all_reduce", "5KB") <= 2 * (3 * 1 + 4 * 1)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 16, 31])
def test_double_binary_tree_shape(n):
    """Every NPU is a leaf of one tree and inner in the other (if n is odd, one is inner twice)."""
    moves = block_trees.double_tree(n, rooted=False)[0](np.arange(2, dtype=np.int32), False)
    parents = [moves.pairs[0][moves.route[moves.chunk == tree]] for tree in (0, 1)]
    assert set(parents[0]) | set(parents[1]) == set(range(n))
    assert len(set(parents[0]) & set(parents[1])) == n % 2
    assert max(np.bincount(tree).max() for tree in parents) <= 2
    assert moves.steps <= 2 * (n - 1).bit_length()


def test_double_binary_tree():
    """Four NPUs from 0: trees 0 → 2 → {1, 3} and 0 → 3 → 1 → 2; the longest way has 3 hops.

    Many chunks through one port: an inner NPU sends everything once, so at least S bytes; the
    pipeline fills in lg n chunks. An all-reduce does it twice, and its sums, which all leaves could
    send at once, queue first come, first served.
    """
    clique = tp.fully_connected(4, **SPEED)
    assert time_us("double-binary-tree", clique, "broadcast", "2KB", chunks=2) == 6
    assert time_us("double-binary-tree", clique, "reduce", "2KB", chunks=2) == 6
    port = tp.switch(8, **NO_LATENCY)
    assert 64 <= time_us("double-binary-tree", port, "broadcast", "64KB", chunks=64) <= 64 * 1.2
    assert time_us("double-binary-tree", port, "all_reduce", "64KB", chunks=8) <= 2 * 64 * 1.3


def test_hierarchical_on_a_torus():
    """3 x 3, 9 KB. Sums: along a row three blocks each way, 1 + 3 us; along a column 1 + 1 us.

    That is 6 us for a reduce-scatter and 12 us for an all-reduce if the dimensions wait for each
    other; the row's links alone are busy for 2 * 3 us.
    """
    topology = tp.torus(3, 3, **SPEED)
    assert 4 <= time_us("hierarchical", topology, "reduce_scatter", "9KB") <= 6
    assert 8 <= time_us("hierarchical", topology, "all_reduce", "9KB") <= 12


def test_hierarchical_keeps_off_the_slow_dimension():
    """4 x 2 with the second side ten times slower: it should carry a quarter of the data.

    Each slow link carries one block of 1 KB per 8 KB: 10 us. The other order sends four: 40 us.
    """
    topology = tp.torus(4, 2, bandwidth=("1GB/s", "100MB/s"), latency=0)
    assert time_us("hierarchical", topology, "reduce_scatter", "8KB") <= 10 + 4
    assert time_us("hierarchical", topology, "reduce_scatter", "8KB", order=[1, 0]) >= 40


def test_hierarchical_takes_dimensions_of_your_own():
    topology = tp.fully_connected(6)
    collective = co.all_reduce(topology, "6KB", chunks=1)
    schedule = ENGINES["hierarchical"](topology, collective, dims=[("clique", 3), ("line", 2)])
    assert tacos.verify(schedule).ok
    assert schedule.provenance["dims"] == [["clique", 3], ["line", 2]]


def test_swing_on_a_ring():
    """Eight NPUs: partners 1, 1, 3 hops away. Without data that is 5 us, halving-doubling 7 us.

    The last step is the nearest: partners of 0 in an all-gather are 3, 7 (-1) and 1.
    """
    topology = tp.ring(8, bandwidth="1GB/s", latency="1us")
    # 8 B take 1 ns a block; waiting for a link costs a few of them.
    assert 10 < time_us("swing", topology, "all_reduce", 8) < 10.1
    assert 14 < time_us("halving-doubling", topology, "all_reduce", 8) < 14.1
    large = tp.ring(8, **NO_LATENCY)
    swing = time_us("swing", large, "all_reduce", "80KB", chunks=2)
    assert swing < time_us("halving-doubling", large, "all_reduce", "80KB", chunks=2)


@pytest.mark.parametrize(
    ("sizes", "hops"), [((8,), 1 / 2 + 1 / 4 + 3 / 8), ((8, 8), 3 / 4 + 3 / 16 + 9 / 64)]
)
def test_swing_loads_all_links_alike(sizes, hops):
    """Partners are 1, 1, 3 hops away with 1/2, 1/4, … of the buffer; two dimensions take turns.

    With a piece for each dimension and direction, these hops are spread evenly over all links, and
    a link never waits: the time is its load.
    """
    topology = tp.torus(*sizes, **NO_LATENCY)
    pieces = 2 * len(sizes)
    size = 1000 * pieces * topology.npus
    collective = co.all_reduce(topology, size, chunks=pieces)
    schedule = ENGINES["swing"](topology, collective)
    load = 2 * size * hops / pieces
    assert set(schedule.link_bytes().tolist()) == {load}
    assert schedule.time_ps >= load * 1000
    if len(sizes) == 2:
        assert schedule.time_ps <= 1.1 * load * 1000


def test_hierarchical_dimensions_overlap():
    """4 x 4, S = 128 KB: the first dimension takes 3/4 S at 2 GB/s, there and back; the second, with
    a quarter of the data, is done meanwhile, but for the first chunk and the last.
    """
    topology = tp.torus(4, 4, **NO_LATENCY)
    assert time_us("hierarchical", topology, "all_reduce", "128KB", chunks=8) == 96
    assert time_us("hierarchical", topology, "all_reduce", "128KB", chunks=1) > 96


def test_2d_ring():
    """3 x 3, 36 KB in blocks of 1 KB: 2/3 of it twice along each dimension, over four links, 24 us.

    9 B: every block makes four hops, each 1 us and 1 ns, and some wait for others.
    """
    topology = tp.torus(3, 3, **NO_LATENCY)
    assert 24 <= time_us("2d-ring", topology, "all_reduce", "36KB", chunks=4) <= 27
    collective = co.all_reduce(topology, "36KB", chunks=4)
    assert ENGINES["2d-ring"](topology, collective).link_bytes().sum() == 36 * 24000
    assert 4 < time_us("2d-ring", tp.torus(3, 3, **SPEED), "all_reduce", 9) < 4.02


@pytest.mark.parametrize("spec", ["torus:4x4", "torus:6x6", "torus:8x8", "torus:4x6"])
@pytest.mark.parametrize("size", ["4KB", "64KB", "1MB"])
def test_2d_ring_on_even_tori(spec, size):
    topology = tp.parse(spec)
    for chunks in (1, 2, 4):
        schedule = ENGINES["2d-ring"](topology, co.all_reduce(topology, size, chunks=chunks))
        assert tacos.verify(schedule).ok


def test_a_central_server():
    """Four workers, chunks of 1 KB. On one of them: three times 4 KB in, the last chunk thrice out.

    On a fifth NPU: 16 KB in, the last chunk four times out. On two servers: 8 KB into each.
    """
    switch = tp.switch(4, **NO_LATENCY)
    assert time_us("parameter-server", switch, "all_reduce", "4KB") == 12 + 3
    wider = tp.switch(6, **NO_LATENCY)
    for servers, expected in (([4], 16 + 4), ([5, 4], 8 + 4)):
        collective = co.all_reduce(wider, "4KB", group=[3, 1, 0, 2], chunks=1)
        schedule = ENGINES["parameter-server"](wider, collective, servers=servers)
        assert tacos.verify(schedule).ok
        assert schedule.time_ps == expected * US


def test_sharded_servers():
    """All four serve a chunk: 3 KB in and 3 KB out, as in the direct algorithm. Two: twice that."""
    switch = tp.switch(4, **NO_LATENCY)
    assert time_us("parameter-server", switch, "all_reduce", "4KB", servers=4) == 6
    assert time_us("parameter-server", switch, "all_reduce", "4KB", servers=2) <= 12


@given(st.data())
def test_servers_anywhere(data):
    topology = data.draw(quick_topologies())
    npus = range(topology.npus)
    group = data.draw(st.lists(st.sampled_from(npus), min_size=1, unique=True))
    servers = data.draw(st.lists(st.sampled_from(npus), min_size=1, unique=True))
    chunks = data.draw(st.integers(1, 3))
    collective = co.all_reduce(topology, 1001, group=group, chunks=chunks)
    for choice in (servers, 1, len(group)):
        schedule = ENGINES["parameter-server"](topology, collective, servers=choice)
        assert tacos.verify(schedule).ok


# --- the order of a ring ------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["ring", "line", "clique", "switch"]), st.integers(1, 5)),
        min_size=1,
        max_size=4,
    )
)
def test_hamiltonian_cycle_visits_neighbours(dims):
    """Consecutive NPUs differ by one along one dimension; None only where no cycle exists."""
    cycle = hamiltonian_cycle(dims)
    real = [(kind, size) for kind, size in dims if size > 1]
    if cycle is None:
        only_lines = all(kind == "line" for kind, _ in real)
        odd = all(size % 2 for _, size in real)
        assert only_lines
        assert odd or len(real) == 1
        return
    sizes = [size for _, size in dims]
    assert sorted(cycle) == list(range(int(np.prod(sizes))))
    coordinates = np.stack(np.unravel_index(cycle, sizes[::-1]))[::-1].T
    for a, b in pairwise([*coordinates, coordinates[0]]):
        (side,) = np.flatnonzero(a != b)
        step = abs(int(a[side]) - int(b[side]))
        assert step == 1 or (dims[side][0] != "line" and step == dims[side][1] - 1)


@given(st.data())
def test_searching_is_never_worse_than_rank_order(data):
    topology = data.draw(quick_topologies())
    group = np.array(data.draw(st.permutations(range(topology.npus))), np.int32)
    bytes_ = data.draw(st.sampled_from([0, 1000, 10**9]))
    found, _ = ring_order(topology, group, block_bytes=bytes_)
    assert sorted(found) == sorted(group)
    assert ring_cost(topology, found, block_bytes=bytes_) <= ring_cost(
        topology, group, block_bytes=bytes_
    )


def test_search_repairs_a_shuffled_ring():
    """Twelve NPUs on a ring, numbered at random: the search finds the ring again."""
    shuffled = np.random.default_rng(1).permutation(12)
    topology = tp.renumber(tp.ring(12, **SPEED), shuffled.tolist())
    npus, _ = ring_order(topology, np.arange(12, dtype=np.int32), block_bytes=1000)
    assert ring_cost(topology, npus, block_bytes=1000) == (2 * US, 24 * US)


def test_the_order_may_be_given():
    """0, 2, 1, 3 on a ring of four has two hops of two links, which share links with others."""
    topology = tp.ring(4, **SPEED)
    collective = co.all_gather(topology, "4KB", chunks=1)
    given_order = ENGINES["ring"](topology, collective, order=[0, 2, 1, 3])
    assert tacos.verify(given_order).ok
    assert given_order.provenance == {"engine": "ring", "order": "given"}
    assert given_order.time_ps > ENGINES["ring"](topology, collective).time_ps
    for order in ([0, 1, 2], [0, 0, 1, 2], "best"):
        with pytest.raises(ValueError, match=r"^order (is|must be) "):
            ENGINES["ring"](topology, collective, order=order)


# --- refusals -----------------------------------------------------------------------------------


def test_refusals_name_what_is_missing():
    ring, mesh = tp.ring(6), tp.mesh(2, 2)
    with pytest.raises(ValueError, match="swing needs a torus whose sizes are powers of two"):
        ENGINES["swing"](ring, co.all_reduce(ring, "1MB"))
    with pytest.raises(ValueError, match="swing needs a torus"):
        ENGINES["swing"](mesh, co.all_reduce(mesh, "1MB"))
    with pytest.raises(ValueError, match="hierarchical needs all 6 NPUs, not a group of 3"):
        ENGINES["hierarchical"](ring, co.all_reduce(ring, "1MB", group=[0, 1, 2]))
    with pytest.raises(ValueError, match="hierarchical needs dimensions"):
        ENGINES["hierarchical"](ring, co.all_reduce(ring, "1MB"), dims=[("ring", 4)])
    with pytest.raises(ValueError, match=r"hierarchical needs dimensions .*cycle"):
        ENGINES["hierarchical"](ring, co.all_reduce(ring, "1MB"), dims=[("cycle", 6)])
    with pytest.raises(ValueError, match=r"order is \[0, 0\]"):
        ENGINES["hierarchical"](mesh, co.all_reduce(mesh, "1MB"), order=[0, 0])
    with pytest.raises(
        ValueError, match="double-binary-tree needs all-reduce or broadcast or redu"
    ):
        ENGINES["double-binary-tree"](ring, co.all_gather(ring, "1MB"))
    with pytest.raises(ValueError, match=r"swing needs .*, not switch 2 x switch 4"):
        ENGINES["swing"](tp.product(tp.switch(2), tp.switch(4)), co.all_reduce(8, "1MB"))
    with pytest.raises(ValueError, match="bruck needs a collective of a group, not send-recv"):
        ENGINES["bruck"](ring, co.send_recv(ring, [(0, 1, 5)]))
    with pytest.raises(ValueError, match="2d-ring needs a torus or mesh of two dimensions, not"):
        ENGINES["2d-ring"](ring, co.all_reduce(ring, "1MB"))
    server = ENGINES["parameter-server"]
    with pytest.raises(ValueError, match="servers must be 1 to 6 "):
        server(ring, co.all_reduce(ring, "1MB"), servers=7)
    with pytest.raises(
        ValueError, match=r"servers\[0\] is 6, but there is no such NPU; the NPUs are 0 to 5"
    ):
        server(ring, co.all_reduce(ring, "1MB"), servers=[6])
    large = tp.torus(32, 32)
    with pytest.raises(
        ValueError, match="parameter-server needs an all-reduce of fewer NPUs: 1024"
    ):
        server(large, co.all_reduce(large, "1MB"))
    with pytest.raises(ValueError, match="the collective is for 8 NPUs, but the topology has 6"):
        ENGINES["direct"](ring, co.all_gather(8, "1MB"))


def test_one_shot_is_refused_before_it_fills_the_memory():
    topology = tacos.topology.torus(32, 32)
    collective = tacos.collective.all_reduce(topology, "1GB")
    assert "one-shot" not in tacos.engines(topology, collective)
    with pytest.raises(ValueError, match=r"one-shot needs an all-reduce of fewer NPUs: 1024 take"):
        tacos.synthesize(topology, collective, engine="one-shot")


def test_hierarchical_goes_by_the_names_of_boxes():
    """Two boxes of two, on a switch each, and a slow fabric: as fast as with dimensions, and valid."""
    names = ["a/g0", "a/g1", "b/g0", "b/g1", "a/sw", "b/sw", "fabric"]
    cables = [(npu, 4 + npu // 2, "100GB/s", "1us") for npu in range(4)]
    cables += [(npu, 6, "10GB/s", "2us") for npu in range(4)]
    rows = [row for a, b, *speed in cables for row in ((a, b, *speed), (b, a, *speed))]
    network = tacos.topology.from_links(4, rows, switches=3, names=names)
    assert not network.dims
    collective = tacos.collective.all_reduce(network, "4MB", chunks=1)
    found = tacos.synthesize(network, collective, engine="hierarchical")
    assert tacos.verify(found).ok
    told = tacos.synthesize(
        network, collective, engine="hierarchical", dims=[("box", 2), ("switch", 2)]
    )
    assert found.time_ps == told.time_ps
    mixed = tacos.topology.from_links(
        4, rows, switches=3, names=["a/g0", "b/g0", "a/g1", "b/g1", *names[4:]]
    )
    with pytest.raises(ValueError, match="dimensions"):
        tacos.synthesize(mixed, collective, engine="hierarchical")
