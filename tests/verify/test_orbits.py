"""All rules on orbits, and that the symmetry that an orbit claims is one."""

from __future__ import annotations

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, REDUCE, routes
from tests.support import oracle
from tests.support.schedules import (
    US,
    broken_rules,
    links_under,
    messages,
    orbit,
)


def ring_all_gather(n, *, size=None, gap=2 * US, topology=None, chunks=1, **changes):
    """Chunk 0 travels once around; rotating NPUs and chunks gives the others."""
    topology = topology or tp.ring(n, bidirectional=False, bandwidth="1GB/s", latency="1us")
    collective = co.all_gather(topology, size or n * 1000, chunks=chunks)
    table = routes(topology, links=[[i] for i in range(n)])
    image = [(i + 1) % n for i in range(n)]
    values = {
        "rows": [(i, 0, COPY, READ_ACC, i * gap) for i in range(n - 1)],
        "orders": [n],
        "node_image": image,
        "link_image": image,
    } | changes
    return orbit(collective, table, **values)


def agrees_with_expansion(schedule):
    """Return the verdict, which must be the same for the orbit and its expansion."""
    whole = schedule.expand()
    assert whole.form == "packed"
    assert whole.transfers == schedule.transfers
    short, long = tacos.verify(schedule).ok, tacos.verify(whole).ok
    assert long == (not oracle.examine(whole))
    assert short == long
    return short


@pytest.mark.parametrize("n", [4, 5, 6])
def test_a_rotated_ring_is_right(n):
    schedule = ring_all_gather(n)
    assert schedule.form == "orbit"
    assert (schedule.stored_transfers, schedule.transfers) == (n - 1, n * (n - 1))
    assert agrees_with_expansion(schedule)


@pytest.mark.parametrize("n", [4, 6])
def test_half_a_rotation_needs_two_representatives(n):
    """The rotation by two has two orbits of NPUs; 0 and 1 represent them."""
    image = [(i + 2) % n for i in range(n)]
    both = [((i + c) % n, c, COPY, READ_ACC, i * 2 * US) for c in (0, 1) for i in range(n - 1)]
    options = {"orders": [n // 2], "node_image": image, "link_image": image}
    assert agrees_with_expansion(ring_all_gather(n, rows=both, **options))
    missing = ring_all_gather(n, rows=both[: n - 1], **options)
    assert broken_rules(missing) == {"postcondition"}
    assert not agrees_with_expansion(missing)


def test_a_bidirectional_ring_in_both_directions_is_right():
    topology = tp.ring(5, bandwidth="1GB/s", latency="1us")
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    image = [(i + 1) % 5 for i in range(5)]
    hops = [(0, 1), (1, 2), (0, 4), (4, 3)]
    table = routes(topology, links=[[ends.index(hop)] for hop in hops])
    rows = [(i, 0, COPY, READ_ACC, i % 2 * 2 * US) for i in range(4)]
    collective = co.all_gather(topology, 5000, chunks=1)
    schedule = orbit(collective, table, rows, [5], image, links_under(topology, image))
    assert agrees_with_expansion(schedule)


def torus_3x4(**changes):
    """Chunk 0 goes around y from its owner first, then along x in every row."""
    topology = tp.torus(3, 4, bandwidth="1GB/s", latency="1us")
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    right = [(v + 1) % 3 + v // 3 * 3 for v in range(12)]
    up = [(v + 3) % 12 for v in range(12)]
    hops, starts = [], []
    for y in range(3):
        hops.append((3 * y, 3 * y + 3))
        starts.append(2 * y * US)
    for y in range(4):
        for x in range(2):
            hops.append((3 * y + x, 3 * y + x + 1))
            starts.append((6 + 2 * y + 10 * x) * US)
    table = routes(topology, links=[[ends.index(hop)] for hop in hops])
    rows = [(i, 0, COPY, READ_ACC, start) for i, start in enumerate(starts)]
    values = {
        "orders": [3, 4],
        "node_image": [right, up],
        "link_image": [links_under(topology, right), links_under(topology, up)],
    } | changes
    return orbit(co.all_gather(topology, 12_000, chunks=1), table, rows, **values)


def test_translations_of_a_torus_are_right():
    schedule = torus_3x4()
    assert schedule.transfers == 12 * 11
    assert agrees_with_expansion(schedule)


def test_rotations_of_a_switch_are_right():
    """All-to-all: NPU 0 sends to 1, 2, 3 one after the other, so no port is used twice."""
    topology = tp.switch(4, bandwidth="1GB/s", latency="1us")
    image = [1, 2, 3, 0, 4]
    collective = co.all_to_all(topology, 4000, chunks=1)
    table = routes(topology, pairs=([0, 0, 0], [1, 2, 3]))

    def sent_at(starts):
        rows = [(i, i + 1, COPY, READ_ACC, start * US) for i, start in enumerate(starts)]
        return orbit(collective, table, rows, [4], image, links_under(topology, image))

    assert agrees_with_expansion(sent_at([0, 1, 2]))
    assert broken_rules(sent_at([0, 1, 1])) == {"capacity"}
    assert not agrees_with_expansion(sent_at([0, 1, 1]))


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce"])
def test_rotated_reductions_are_right(kind):
    n = 4
    topology = tp.ring(n, bidirectional=False, bandwidth="1GB/s", latency="1us")
    collective = co.named(kind, topology, n * 1000, chunks=1)
    table = routes(topology, links=[[i] for i in range(n)])
    image = [(i + 1) % n for i in range(n)]
    rows = [((i + 1) % n, 0, REDUCE, READ_ACC, i * 2 * US) for i in range(n - 1)]
    if kind == "all_reduce":
        rows += [(i, 0, COPY, READ_ACC, (n - 1 + i) * 2 * US) for i in range(n - 1)]
    schedule = orbit(collective, table, rows, [n], image, image)
    assert agrees_with_expansion(schedule)
    rows[0] = (*rows[0][:4], 1)
    assert not agrees_with_expansion(orbit(collective, table, rows, [n], image, image))


def test_images_must_not_overlap_on_a_link():
    """Every stored transfer has an image on every link, so their starts must be 1 us apart."""
    assert broken_rules(ring_all_gather(4, gap=2 * US)) == set()
    rows = [(0, 0, COPY, READ_ACC, 0), (1, 0, COPY, READ_ACC, 2 * US), (2, 0, COPY, READ_ACC, 0)]
    found = tacos.verify(ring_all_gather(4, rows=rows))
    assert "capacity" in {v.rule for v in found.violations}
    assert broken_rules(ring_all_gather(4, gap=1 * US - 1)) == {"causality", "capacity"}


def test_a_link_that_the_symmetry_fixes_is_used_by_all_images_at_once():
    """Two switches in a row: exchanging the NPUs of each side does not move the link between them."""
    links = [(0, 4, 1e9, 0), (1, 4, 1e9, 0), (4, 5, 1e9, 0), (5, 2, 1e9, 0), (5, 3, 1e9, 0)]
    back = [(b, a, bw, lat) for a, b, bw, lat in links]
    topology = tp.from_links(4, links + back, switches=2)
    image = [1, 0, 3, 2, 4, 5]
    collective = co.all_to_all(topology, 4000, chunks=1)
    table = routes(topology, pairs=([0], [2]))
    schedule = orbit(
        collective, table, [(0, 2, COPY, READ_ACC, 0)], [2], image, links_under(topology, image)
    )
    assert (
        "the symmetry fixes link 2 (switch 0 -> switch 1), "
        "so images of one transfer use it at the same time"
    ) in messages(schedule)


def refused(schedule):
    (violation,) = tacos.verify(schedule).violations
    assert violation.rule == "symmetry"
    return violation.message


def test_a_link_must_go_where_its_ends_go():
    image = [1, 2, 3, 0]
    assert refused(ring_all_gather(4, link_image=[2, 3, 0, 1])) == (
        "generator 0 takes link 0 (npu 0 -> npu 1) to link 2 (npu 2 -> npu 3), "
        "which is not its image"
    )
    assert tacos.verify(ring_all_gather(4, link_image=image)).ok


def test_a_generator_must_have_its_order():
    two = [2, 3, 0, 1]
    assert refused(ring_all_gather(4, orders=[3])) == "generator 0 does not have order 3"
    # A rotation by two has order 2, which divides 4: then it does not act freely.
    assert refused(ring_all_gather(4, node_image=two, link_image=two)) == (
        "the group does not act freely on the orbit of npu 0 within the process group"
    )


def test_a_generator_must_be_a_permutation():
    links = [(0, 1, 1e9, 0), (1, 0, 1e9, 0)]
    topology = tp.from_links(2, links)
    collective = co.all_gather(topology, 2000, chunks=1)
    table = routes(topology, links=[[0]])
    same = orbit(collective, table, [(0, 0, COPY, READ_ACC, 0)], [2], [0, 0], [0, 0])
    assert "is not its image" in refused(same)
    double = tp.from_links(2, [*links, *links])
    table = routes(double, links=[[0]])
    rows = [(0, 0, COPY, READ_ACC, 0)]
    folded = orbit(collective, table, rows, [2], [1, 0], [1, 0, 1, 0])
    assert refused(folded) == "generator 0 does not have order 2"


def test_a_generator_must_preserve_speeds():
    """On a ring with one slow link no rotation is a symmetry."""
    links = [(i, (i + 1) % 4, "1GB/s" if i else "0.5GB/s", "1us") for i in range(4)]
    schedule = ring_all_gather(4, topology=tp.from_links(4, links), gap=3 * US)
    assert refused(schedule) == (
        "generator 0 takes link 0 (npu 0 -> npu 1) to link 1 (npu 1 -> npu 2), "
        "which is not its image"
    )
    links = [(i, (i + 1) % 4, "1GB/s", "1us" if i else "2us") for i in range(4)]
    schedule = ring_all_gather(4, topology=tp.from_links(4, links), gap=3 * US)
    assert "is not its image" in refused(schedule)


@pytest.mark.parametrize("can", [["multicast", ""], ["reduce", ""], ["multicast", "reduce"]])
def test_a_generator_must_preserve_what_nodes_can_do(can):
    links = [(a, b, 1e9, 0) for i in (2, 3) for j in (0, 1) for a, b in ((j, i), (i, j))]
    topology = tp.from_links(2, links, switches=can)
    collective = co.all_gather(topology, 2000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, COPY, READ_ACC, 0)]
    image = [1, 0, 3, 2]
    schedule = orbit(collective, table, rows, [2], image, links_under(topology, image))
    assert refused(schedule) == "generator 0 takes switch 0 to a node of another kind"
    image = [1, 0, 2, 3]
    assert agrees_with_expansion(
        orbit(collective, table, rows, [2], image, links_under(topology, image))
    )


def test_a_generator_must_not_take_npus_to_switches():
    """Around a ring of two NPUs and two switches: 0 and 1 change places with their neighbours."""
    ends = [(0, 2), (2, 1), (1, 3), (3, 0), (2, 0), (1, 2), (3, 1), (0, 3)]
    topology = tp.from_links(2, [(a, b, 1e9, 0) for a, b in ends], switches=2)
    collective = co.all_gather(topology, 2000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    image = [2, 3, 0, 1]
    rows = [(0, 0, COPY, READ_ACC, 0)]
    schedule = orbit(collective, table, rows, [2], image, links_under(topology, image))
    assert refused(schedule) == "generator 0 takes npu 0 to a node of another kind"


def test_both_ends_of_a_link_must_go_with_it():
    """Two links into one node exchange their images: their destinations fit, their sources do not."""
    topology = tp.fully_connected(4)
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    image = [1, 2, 3, 0]
    links = links_under(topology, image)
    a, b = ends.index((0, 2)), ends.index((1, 2))
    links[a], links[b] = links[b], links[a]
    table = routes(topology, pairs=([0, 0, 0], [1, 2, 3]))
    rows = [(i, 0, COPY, READ_ACC, 0) for i in range(3)]
    collective = co.all_gather(topology, 4000, chunks=1)
    message = refused(orbit(collective, table, rows, [4], image, links))
    assert message.endswith("(npu 1 -> npu 3), which is not its image")


def test_generators_must_commute():
    """A clique has all permutations: a rotation of three of six NPUs and a swap do not commute."""
    topology = tp.fully_connected(6)
    turn, swap = [1, 2, 0, 4, 5, 3], [3, 5, 4, 0, 2, 1]
    collective = co.all_gather(topology, 6000, chunks=1)
    table = routes(topology, pairs=([0] * 5, [1, 2, 3, 4, 5]))
    rows = [(i, 0, COPY, READ_ACC, 0) for i in range(5)]

    def under(second):
        images = [turn, second]
        return orbit(
            collective, table, rows, [3, 2], images, [links_under(topology, i) for i in images]
        )

    assert refused(under(swap)) == "generator 1 and generator 0 do not commute"
    assert agrees_with_expansion(under([3, 4, 5, 0, 1, 2]))


def test_the_group_must_act_freely_on_the_members():
    topology = tp.ring(4, bidirectional=False, bandwidth="1GB/s", latency="1us")
    collective = co.all_gather(topology, 3000, chunks=1, group=[0, 1, 2])
    table = routes(topology, links=[[0], [1]])
    rows = [(0, 0, COPY, READ_ACC, 0), (1, 0, COPY, READ_ACC, 2 * US)]
    image = [1, 2, 3, 0]
    assert "does not act freely" in refused(orbit(collective, table, rows, [4], image, image))


def test_any_image_of_a_transfer_may_be_stored():
    """One NPU's program: NPU 0 sends what came from NPUs 0, 3 and 2; or a mixture of images."""
    sent_by_0 = [(0, (4 - i) % 4, COPY, READ_ACC, i * 2 * US) for i in range(3)]
    assert agrees_with_expansion(ring_all_gather(4, rows=sent_by_0))
    mixed = [(0, 0, COPY, READ_ACC, 0), (3, 2, COPY, READ_ACC, 2 * US), sent_by_0[2]]
    assert agrees_with_expansion(ring_all_gather(4, rows=mixed))
    early = [*sent_by_0[:2], (*sent_by_0[2][:4], 4 * US - 1)]
    assert not agrees_with_expansion(ring_all_gather(4, rows=early))
    assert messages(ring_all_gather(4, rows=early)) == [
        "transfer 2 sends chunk 0 from npu 2 at 3.999 us, where it arrives only at 4.000 us"
    ]


def test_a_transfer_and_its_image_are_one_too_many():
    """Chunk 0 from 0 to 1 and chunk 1 from 1 to 2 are images: with both, each link is used twice."""
    rows = [(i, 0, COPY, READ_ACC, i * 2 * US) for i in range(3)]
    twice = ring_all_gather(4, rows=[*rows, (1, 1, COPY, READ_ACC, 0)])
    assert broken_rules(twice) == {"capacity", "unneeded"}
    assert not agrees_with_expansion(twice)
    later = ring_all_gather(4, rows=[*rows, (1, 1, COPY, READ_ACC, 6 * US)])
    assert broken_rules(later) == {"unneeded"}
    assert not agrees_with_expansion(later)


def test_a_stored_transfer_may_end_at_a_switch_that_the_group_fixes():
    """NPU 1 sends to the switch, which sends on to 0, then to 2: the switch is not a free orbit."""
    topology = tp.switch(3, multicast=True, bandwidth="1GB/s", latency="1us")
    collective = co.all_gather(topology, 3000, chunks=1)
    table = routes(topology, links=[[1], [3], [5]])
    image = [1, 2, 0, 3]

    def sent_on_at(first, second):
        starts = [0, first, second]
        rows = [(i, 1, COPY, READ_ACC, start) for i, start in enumerate(starts)]
        return orbit(collective, table, rows, [3], image, links_under(topology, image))

    assert agrees_with_expansion(sent_on_at(2 * US, 3 * US))
    assert not agrees_with_expansion(sent_on_at(2 * US - 1, 3 * US))
    assert "causality" in broken_rules(sent_on_at(2 * US - 1, 3 * US))
    assert broken_rules(sent_on_at(2 * US, 3 * US - 1)) == {"capacity"}


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_images_of_a_chunk_may_differ_by_a_byte(extra):
    """The last arrival is that of the largest image, whichever is stored."""
    gap = 2 * US + 1000
    uneven = ring_all_gather(4, size=4000 + extra, gap=gap)
    assert agrees_with_expansion(uneven)
    assert uneven.time_ps == uneven.expand().time_ps == 3 * gap
    sent_by_0 = [(0, (4 - i) % 4, COPY, READ_ACC, i * gap) for i in range(3)]
    stored = ring_all_gather(4, size=4000 + extra, rows=sent_by_0)
    assert agrees_with_expansion(stored)
    assert stored.time_ps == stored.expand().time_ps == 3 * gap


def test_the_largest_image_must_arrive_in_time():
    """The chunk of NPU 0 has 1001 bytes, and arrives 1 ns later than the others."""
    rows = [
        (3, 3, COPY, READ_ACC, 0),
        (0, 3, COPY, READ_ACC, 2 * US),
        (1, 3, COPY, READ_ACC, 5 * US),
    ]
    assert agrees_with_expansion(ring_all_gather(4, size=4000, rows=rows))
    late = ring_all_gather(4, size=4001, rows=rows)
    assert broken_rules(late) == {"causality"}
    assert not agrees_with_expansion(late)


def test_the_largest_image_must_leave_a_link_in_time():
    """Pieces of 1001 or 1000 bytes, then of 1000."""

    def second_at(start):
        rows = [
            (i, piece, COPY, READ_ACC, i * 4 * US + piece * start)
            for i in range(3)
            for piece in (0, 1)
        ]
        return ring_all_gather(4, size=8001, chunks=2, rows=rows)

    assert agrees_with_expansion(second_at(1001 * 1000))
    assert broken_rules(second_at(1000 * 1000)) == {"capacity"}
    assert not agrees_with_expansion(second_at(1000 * 1000))


def test_the_smallest_image_must_not_arrive_before_a_read():
    """Two NPUs exchange what they hold. Chunk 1 has 1000 bytes, and reaches an NPU that has not sent its own contribution yet."""
    topology = tp.fully_connected(2, bandwidth="1GB/s", latency="1us")
    table = routes(topology, links=[[0], [1]])
    image = [1, 0]

    def second_at(start):
        rows = [(0, 0, REDUCE, READ_ACC, 0), (1, 0, REDUCE, READ_ACC, start)]
        collective = co.all_reduce(topology, 2001, chunks=1)
        return orbit(collective, table, rows, [2], image, links_under(topology, image))

    assert agrees_with_expansion(second_at(2 * US - 1))
    assert broken_rules(second_at(2 * US + 500)) == {"contribution"}
    assert not agrees_with_expansion(second_at(2 * US + 500))


def test_an_orbit_needs_a_byte_for_each_chunk():
    assert refused(ring_all_gather(4, size=3)) == (
        "chunk 3 has no bytes; an orbit needs a byte for each chunk"
    )


def test_an_orbit_needs_a_symmetric_collective():
    topology = tp.ring(4, bidirectional=False)
    table = routes(topology, links=[[0]])
    image = [1, 2, 3, 0]
    wanted = "an orbit describes an all-gather, reduce-scatter, all-reduce or all-to-all"
    for collective in (
        co.broadcast(topology, 1000, chunks=1),
        co.together(*[co.all_gather(topology, 4000, chunks=1)] * 2),
    ):
        schedule = orbit(collective, table, [(0, 0, COPY, READ_ACC, 0)], [4], image, image)
        assert refused(schedule) == wanted
