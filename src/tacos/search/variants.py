"""Changed questions whose answers are answers to the question asked: halves of an all-reduce, matched ports, split switches.

Engines do not know variants. A variant has a network and a collective of its own, and lifts the schedules that engines find
there back to the question. Variants combine: an all-reduce may be searched in halves on matched ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import Meter
from tacos.errors import TacosError
from tacos.search.effort import LIMITS
from tacos.search.halves import all_gather_of, both_halves, turning
from tacos.synth.matched_ports import matched_ports
from tacos.synth.owners import alike
from tacos.synth.sizes import least_transfers
from tacos.synth.split_switches import split_switches

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Schedule, Topology
    from tacos.search.question import Question
    from tacos.search.watch import Watch
    from tacos.synth.matched_ports import MatchedPorts
    from tacos.synth.split_switches import SplitSwitches

__all__ = ["Variant", "as_asked", "listing_work", "on_whole_network", "variants"]


_IN_ORDER = 5000
"""Units of work to move a transfer from split switches to the whole network (measured)."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed question.

    Attributes:
        name: Its name; empty for the question as it was asked.
        topology, collective: What engines are given; the number of chunks may be open.
        lift: Returns an answer to the question, given a schedule of the variant and a counter of the work that this takes.
        times: How often the engine's time passes in the answer.
    """

    name: str
    topology: Topology
    collective: Collective
    lift: Callable[[Schedule, Meter], Schedule]
    times: int = 1


def as_asked(topology: Topology, collective: Collective) -> Variant:
    """Return the question itself as a variant."""
    return Variant("", topology, collective, lambda found, _: found)


def variants(question: Question, *, matches: bool) -> list[Variant]:
    """Return the variants of a question; none with a sketch, which is for its own network.

    >>> import tacos
    >>> from tacos.search.question import Question
    >>> boxes = tacos.topology.mi300x(2)
    >>> question = Question(boxes, tacos.collective.all_reduce(boxes, "64MB"))
    >>> [one.name for one in variants(question, matches=True)]
    ['halves', 'matched ports', 'halves on matched ports']
    >>> broken = tacos.topology.drop_links(boxes, "npu 0-switch 0", both=True)
    >>> question = Question(broken, tacos.collective.all_reduce(broken, "64MB"))
    >>> [one.name for one in variants(question, matches=True)]
    ['halves', 'split switches']
    """
    topology, collective = question.topology, question.collective
    if question.sketch is not None:
        return []
    gather = _gather(question)
    found = _in_halves(question.watch, topology, collective, gather)
    bound = question.bound
    latent = bound.bandwidth_s < LIMITS.latent * bound.latency_s
    matching = matched_ports(topology) if matches and not latent else None
    if matching is not None:
        boxes = topology.dims[-1][1] if topology.dims else 0
        plain = as_asked(matching.topology, collective)
        halves = _in_halves(question.watch, matching.topology, collective, gather, boxes)
        found += [_matched(matching, inner) for inner in (plain, *halves)]
    # Between equal boxes, matched ports lose nothing.
    same = (
        matching is not None
        and (alike(topology, np.arange(topology.npus, dtype=np.int32)) == 0).all()
    )
    if matches and not latent and not same and (splitting := split_switches(topology)):
        found.append(_split("split switches", splitting, collective))
        if splitting.shared and (apart := split_switches(topology, shared=False)) is not None:
            found.append(_split("switches split port by port", apart, collective))
    return found


def listing_work(question: Question) -> int:
    """Return the least work of listing a schedule of the question, as variants do."""
    collective = question.collective
    listed = collective if collective.resolved else collective.with_chunks(1)
    return int(Meter.TRANSFER * least_transfers(question.topology, listed))


def _gather(question: Question) -> Collective | None:
    """Return the all-gather of an all-reduce, if searching for its halves pays off."""
    # The halves of a symmetric network are symmetric, and joining them would list what symmetry describes.
    if question.topology.symmetric or question.bound.bandwidth_s <= question.bound.latency_s:
        return None
    return all_gather_of(question.collective)


def _in_halves(
    watch: Watch, topology: Topology, whole: Collective, gather: Collective | None, boxes: int = 0
) -> list[Variant]:
    """Return the variant of an all-reduce that is an all-gather backwards and then forwards, if the network can be turned round."""
    if gather is None or (turned := turning(topology, boxes)) is None:
        return []

    def lift(found: Schedule, meter: Meter) -> Schedule:
        # Half of them are listed, then turned round, and both halves are joined.
        watch.afford(int(4 * Meter.TRANSFER * found.transfers))
        try:
            both = both_halves(found, whole, turned, meter)
        except ValueError as error:  # such as trees, which cannot be turned round
            raise TacosError(str(error)) from None
        return both.with_provenance(found.provenance | {"halves": True})

    return [Variant("halves", topology, gather, lift, times=2)]


def _matched(matching: MatchedPorts, inner: Variant) -> Variant:
    """Return a variant of the network with matched ports as one of the whole network."""

    def lift(found: Schedule, meter: Meter) -> Schedule:
        both = inner.lift(found, meter)
        meter.spend(Meter.TRANSFER * both.stored_transfers)
        return on_whole_network(matching, both)

    name = f"{inner.name} on matched ports" if inner.name else "matched ports"
    return Variant(name, inner.topology, inner.collective, lift, inner.times)


def _split(name: str, splitting: SplitSwitches, collective: Collective) -> Variant:
    """Return the question on a network without switches as a variant."""

    def lift(found: Schedule, meter: Meter) -> Schedule:
        meter.spend((_IN_ORDER if splitting.shared else Meter.TRANSFER) * found.transfers)
        back = splitting.returned(found)
        return back.with_provenance(found.provenance | {"ports": "split"})

    return Variant(name, splitting.topology, collective, lift)


def on_whole_network(matching: MatchedPorts, schedule: Schedule) -> Schedule:
    """Convert a schedule with matched ports to the whole network."""
    found = matching.returned(schedule)
    facts = found.provenance | {"ports": "matched"}
    return found.with_provenance(facts).with_facts(bound_ps=schedule.bound_ps, matched_ports=True)
