"""The bound of messages between pairs: the linear program, lengths that rise with the load, and cuts agree."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import distance_sum, rising_lengths
from tests.support import strategies

GB = 10**9


@pytest.mark.parametrize(
    "spec",
    ["ring:5", "torus:4x4", "torus:2x6", "fc:5", "switch:5", "ring:3*switch:3", "fc:3*switch:1"],
)
def test_linear_program_agrees_with_dimensions(spec):
    """A renumbered network is not known to be symmetric, and is solved by the linear program."""
    network = tp.parse(spec)
    plain = tp.renumber(network, range(network.npus))
    assert network.symmetric
    assert not plain.symmetric
    size = 1000 * network.npus
    lines = tacos.bound(network, co.all_to_all(network, size))
    program = tacos.bound(plain, co.all_to_all(plain, size))
    assert program.bandwidth_s == pytest.approx(lines.bandwidth_s, rel=1e-6)
    assert lines.exact
    assert program.exact


def test_pairs_beyond_the_linear_program(monkeypatch):
    """The bytes of 8·8 pairs leave a box over NICs of 400 GB/s; cuts and distances find this too."""
    monkeypatch.setattr(import_module("tacos.bound.pairs"), "_LP_COLUMNS", 0)
    network = tp.dgx_h100(2, nvls=False)
    best = tacos.bound(network, co.all_to_all(network, 16 * GB))
    assert best.bandwidth_s == pytest.approx(64 / 400)
    assert not best.exact
    assert "the network is too large for a linear program" in best.why


def test_uneven_pairs():
    """Only NPU 0 sends, 3 GB to NPU 1, both ways round a ring of three."""
    network = tp.renumber(tp.ring(3, bandwidth="1GB/s", latency=0), range(3))
    best = tacos.bound(network, co.all_to_all_v(3, [[0, 3 * GB, 0], [0, 0, 0], [0, 0, 0]]))
    assert best.bandwidth_s == pytest.approx(1.5)
    assert best.exact


def test_speeds_nine_orders_apart_do_not_mislead_the_linear_program():
    """0 -> 1 carries 11 B at 1 B/s: 2 + 2 + 1 from 0, 4 from 3 and 2 from 2."""
    links = [(0, 1, 1, 1), (1, 2, 1, 1), (2, 3, 1, 1), (3, 0, 10**9, 1)]
    network = tp.from_links(4, links)
    found = tacos.bound(network, co.all_to_all(network, 7, chunks=1))
    assert found.bandwidth_s == pytest.approx(11)
    assert found.exact

    # A fast ring, and two links too slow to be of use: 3 -> 0 carries 2 B each to 0 from 1, 2 and 3, to 1 from 3,
    # and to 2 from 1 and 3.
    ring = [(0, 2, 10**9, 0), (2, 1, 10**9, 0), (1, 3, 10**9, 0), (3, 0, 10**9, 0)]
    network = tp.from_links(4, [*ring, (0, 2, 1, 0), (0, 1, 1, 0)])
    found = tacos.bound(network, co.all_to_all(network, 7, chunks=1))
    assert found.bandwidth_s == pytest.approx(12e-9)


def test_the_fullest_box_binds_where_sizes_differ():
    """Eight boxes of eight; 8 GB enter box 5, which is neither the first nor narrower than the others, over 8 NICs of 50 GB/s."""
    boxes = tp.dgx_h100(8, nvls=False, nic_bandwidth="50GB/s")
    sizes = np.full((64, 64), 1000)
    sizes[:40, 43] = GB // 5
    entering = int(np.delete(sizes, range(40, 48), axis=0)[:, 40:48].sum())
    best = tacos.bound(boxes, co.all_to_all_v(boxes, sizes))
    assert best.bandwidth_s == pytest.approx(entering / 400e9)
    assert best.why.startswith("8 GB must enter box 5 over 8 NICs")


def test_lengths_that_rise_with_the_load_come_near_the_linear_program():
    """For any lengths, bytes times distance over length times bandwidth is a bound; the linear program finds the best."""
    mesh = tp.mesh(4, 4)
    coll = co.all_to_all(mesh, "1MB", group=[0, 3, 5, 6, 10, 15])
    exact = tacos.bound(mesh, coll)
    assert exact.exact
    lengths = rising_lengths(mesh, coll, 150)
    capacity = float(lengths.astype(float) @ mesh.link_bandwidth_Bps)
    found_s = distance_sum(mesh, coll, lengths) / capacity
    assert 0.95 * exact.bandwidth_s < found_s <= exact.bandwidth_s * (1 + 1e-9)


def test_lengths_that_rise_with_the_load_exceed_cuts():
    """Scattered members of a large torus: the links between them are loaded unevenly, which cuts do not see."""
    torus = tp.torus(8, 8, 8)
    members = np.random.default_rng(0).permutation(torus.npus)[:64].tolist()
    coll = co.all_to_all(torus, "64MB", group=members)
    found = tacos.bound(torus, coll)
    ports_s = 63e6 / 300e9
    assert found.bandwidth_s > 1.1 * ports_s
    assert "busiest links" in found.why


@given(strategies.topologies().filter(lambda network: network.npus > 1), st.integers(1, 10**7))
@settings(max_examples=40, deadline=None)
def test_a_quick_bound_is_at_most_the_exact_one(network, size):
    coll = co.all_to_all(network, size)
    assert tacos.bound(network, coll, quick=True).time_ps <= tacos.bound(network, coll).time_ps
