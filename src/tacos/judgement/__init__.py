"""Is my bandwidth good? Compare measurements of a cluster with what its network allows.

:func:`judge` reads the output of a benchmark and says for every size which share of the bound was reached, what limits it,
what stock NCCL and the best algorithm should reach, and what may be wrong.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos import collective as collectives
from tacos import formats, units
from tacos._core import Topology
from tacos.bound import bound
from tacos.errors import TacosError
from tacos.judgement.logs import Log, read_log
from tacos.reorder import reorder
from tacos.reorder.sources import costs_of
from tacos.search.synthesis import synthesize
from tacos.synth.baselines.nccl.boxes import layout
from tacos.synth.baselines.nccl.channels import network_of, rings
from tacos.synth.baselines.nccl.tuner import estimate

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from tacos._core import Collective
    from tacos.bound import Bound

__all__ = ["Judgement", "RingVerdict", "Verdict", "judge"]

_SEARCHED = 32
"""Sizes of a log for which the best algorithm is searched, as each takes about two seconds (chosen)."""
_LARGE = 16 << 20
"""From this size bandwidth decides (chosen)."""
_SMALL = 64 << 10
"""Up to this size latency decides (chosen)."""
_GOOD, _FLAT, _NEAR = 0.85, 0.1, 0.12
"""Thresholds for a good share of NCCL's model, a flat curve, and closeness to a fraction (chosen)."""
_SLOW_START = 3.0
"""Small buffers that take more than this many times NCCL's modelled time get a cause of their own (chosen)."""


@dataclass(frozen=True)
class Verdict:
    """One size.

    Attributes:
        size_bytes: As nccl-tests counts it.
        time_s: What was measured.
        busbw_Bps: The same as nccl-tests' busbw.
        bound_s: A time that nothing beats.
        efficiency: The share of the bound that was reached: bound / measured.
        why: What binds, in words.
        nccl_s: What stock NCCL should take, by its model (:func:`tacos.nccl.estimate`); None where NCCL has no such collective.
        best_s: The executed time of what :func:`~tacos.search.synthesis.synthesize` returns; None if it was not searched, as in logs of more than
            32 sizes, or not found.
        best: Its engine.
        nccl: Which NCCL that is on a network with faults: ``"nccl"``, which searched again, or ``"nccl-unaware"``, which does not know
            of them; the faster of both. Empty where `nccl_s` is None.
    """

    size_bytes: int
    time_s: float
    busbw_Bps: float
    bound_s: float
    efficiency: float
    why: str
    nccl_s: float | None
    best_s: float | None
    best: str
    nccl: str = ""


@dataclass(frozen=True)
class RingVerdict:
    """NCCL's rings, and those that the network suggests.

    Attributes:
        rings: The NPUs of each ring that NCCL chose.
        busbw_Bps: What these rings carry together.
        suggested: The rings that the model of NCCL would choose.
        suggested_Bps: What those carry together.
    """

    rings: tuple[tuple[int, ...], ...]
    busbw_Bps: float
    suggested: tuple[tuple[int, ...], ...]
    suggested_Bps: float


@dataclass(frozen=True)
class Judgement:
    """The comparison of a log with a network.

    Attributes:
        source: The log.
        tool: What wrote it.
        collective: The collective in words.
        ranks: How many ranks took part.
        rows: A verdict for every size.
        causes: What may explain a gap, the likeliest first.
        rings: NCCL's rings, if the log has them.
    """

    source: str
    tool: str
    collective: str
    ranks: int
    rows: tuple[Verdict, ...]
    causes: tuple[str, ...]
    rings: RingVerdict | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the judgement as plain values."""
        return asdict(self)


def judge(
    log: str | os.PathLike[str] | Log,
    network: str | Topology,
    *,
    collective: str | None = None,
    nccl_log: str | os.PathLike[str] | Log | None = None,
    effort: str | int = "normal",
    progress: Callable[[float], object] | None = None,
) -> Judgement:
    """Compare measured times with what a network allows, and name likely problems.

    Args:
        log: Output of nccl-tests, rccl-tests, an OSU benchmark or ``tacos run``; lines of ``NCCL_DEBUG=INFO`` in it count too.
        network: The topology, a file or a spec. Rank i is NPU i.
        collective: What was measured, if the log does not say.
        nccl_log: A log of ``NCCL_DEBUG=INFO`` or a file of ``NCCL_GRAPH_DUMP_FILE`` beside it.
        effort: Work of the search for each size, as for :func:`~tacos.search.synthesis.synthesize`.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: The log has another number of ranks than the network, or its collective is unknown.
        FormatError: The log has no results.

    >>> from tacos.judgement.logs import Measured
    >>> fast = Log("a.log", "nccl-tests", "all_reduce", (Measured(10**9, 0.0038),))
    >>> found = judge(fast, "dgx-h100:2")
    >>> f"{found.rows[0].efficiency:.0%}", found.rows[0].best, found.causes
    ('66%', 'nccl', ())
    """
    known = log if isinstance(log, Log) else read_log(log)
    topology = network if isinstance(network, Topology) else formats.network(network)
    inside = known
    if nccl_log is not None:
        inside = nccl_log if isinstance(nccl_log, Log) else read_log(nccl_log)
    ranks = known.ranks or (0 if inside.local else inside.ranks) or topology.npus
    if ranks != topology.npus:
        raise ValueError(
            f"{known.source} is of {ranks} ranks, but the network has {topology.npus} NPUs; "
            "describe the NPUs that took part, with tacos.topology.subset or a spec of that size"
        )
    kind = _kind(known, collective, topology.npus) if known.rows else ""
    if kind == "all_reduce":
        _check_factor(known, topology.npus)
    rows = _rows(known, kind, topology, effort, progress)
    verdict = _rings(inside, topology)
    return Judgement(
        known.source,
        known.tool,
        collectives.parse(kind).label if kind else "",
        ranks,
        rows,
        tuple(_causes(rows, inside, verdict, topology)),
        verdict,
    )


def _kind(log: Log, given: str | None, ranks: int) -> str:
    """Return the collective: given, named by the log, or inferred from busbw / algbw."""
    if given is not None:
        return collectives.parse(given).name
    if log.kind:
        return log.kind
    share = (ranks - 1) / ranks
    if log.bus_factor and abs(log.bus_factor - 2 * share) < 0.02 * share:
        return "all_reduce"
    if log.bus_factor and log.reduces and abs(log.bus_factor - share) < 0.02 * share:
        return "reduce_scatter"
    raise ValueError(
        f"{log.source} does not say which collective was measured; set --collective (collective= in Python)"
    )


def _check_factor(log: Log, npus: int) -> None:
    """Raise a ValueError if busbw / algbw of an all-reduce is that of another number of ranks."""
    factor, expected = log.bus_factor, 2 * (npus - 1) / npus
    if 1 <= factor < 2 and abs(factor - expected) > 0.01 * expected:
        raise ValueError(
            f"{log.source}: busbw / algbw is {factor:.3f}, which means {round(2 / (2 - factor))} ranks, "
            f"but the network has {npus} NPUs; name a network of that size"
        )


def _collective(kind: str, topology: Topology, size: int) -> Collective:
    rooted = collectives.parse(kind).rooted
    return collectives.named(kind, topology, size, chunks="auto", root=0 if rooted else None)


def _rows(
    log: Log,
    kind: str,
    topology: Topology,
    effort: str | int,
    progress: Callable[[float], object] | None,
) -> tuple[Verdict, ...]:
    if not log.rows:
        return ()
    scale = topology.npus if log.per_rank else 1
    rows = [(row.size_bytes * scale, row.time_s) for row in log.rows]
    searched = _searched([size for size, _ in rows])
    found = []
    for number, (size, time_s) in enumerate(rows):
        if progress is not None:
            progress(number / len(rows))
        nccl_s: float | None
        collective = _collective(kind, topology, size)
        limit = bound(topology, collective)
        best_s, best = None, ""
        if size in searched:
            best_s, best = _best(topology, collective, limit, effort)
        try:
            model = estimate(topology, collective)
            nccl_s, nccl = model.time_s, model.engine
        except (TacosError, ValueError):
            nccl_s, nccl = None, ""
        found.append(
            Verdict(
                size,
                time_s,
                size / time_s * (collective.bus_factor or 1),
                limit.time_s,
                limit.time_s / time_s,
                limit.why,
                nccl_s,
                best_s,
                best,
                nccl,
            )
        )
    return tuple(found)


def _searched(sizes: list[int]) -> set[int]:
    """Return the sizes for which the best algorithm is searched: all of them, or some of many, with both ends."""
    distinct = sorted(set(sizes))
    if len(distinct) <= _SEARCHED:
        return set(distinct)
    return {distinct[i] for i in np.linspace(0, len(distinct) - 1, _SEARCHED).round().astype(int)}


def _best(
    topology: Topology, collective: Collective, limit: Bound, effort: str | int
) -> tuple[float | None, str]:
    """Return the executed time and the engine of what ``synthesize`` returns; None if no engine can solve it."""
    try:
        found = synthesize(topology, collective, effort=effort, known_bound=limit)
    except TacosError:
        return None, ""
    return found.executed_s, found.engine


# --- rings ----------------------------------------------------------------------------------------


def _rings(log: Log, topology: Topology) -> RingVerdict | None:
    """NCCL's rings, those that its model suggests, and the loads of both on the network's links."""
    if not log.rings:
        return None
    members = np.arange(topology.npus, dtype=np.int32)
    if log.local:
        members = np.array(layout(topology, members).boxes[0], np.int32)
    size = len(log.rings[0])
    if size != len(members):
        where = "a box of the network has" if log.local else "the network has"
        raise ValueError(f"{log.source} has rings of {size} ranks, but {where} {len(members)} NPUs")
    chosen = [tuple(int(members[rank]) for rank in ring) for ring in log.rings]
    model = network_of(topology)
    suggested = rings(model, layout(topology, members))
    return RingVerdict(
        tuple(chosen), model.bandwidth(chosen), tuple(suggested), model.bandwidth(suggested)
    )


# --- causes ---------------------------------------------------------------------------------------


def _causes(
    rows: tuple[Verdict, ...], log: Log, verdict: RingVerdict | None, topology: Topology
) -> list[str]:
    """Return possible explanations of a gap: first from the log, then from the curve."""
    causes = []
    boxes = layout(topology, np.arange(topology.npus, dtype=np.int32))
    nics = log.nics_found or (boxes.rails if len(boxes.boxes) > 1 else 0)
    few = bool(log.nics and nics and log.nics < nics)
    if few:
        causes.append(
            f"NCCL used {log.nics} of {nics} NICs: check NCCL_IB_HCA, the PCIe paths (nvidia-smi topo -m), and that "
            "all ports are up"
        )
    if verdict is not None and verdict.busbw_Bps < _GOOD * verdict.suggested_Bps:
        has, could = (units.format_bandwidth(b) for b in (verdict.busbw_Bps, verdict.suggested_Bps))
        causes.append(
            f"NCCL's {_count(len(verdict.rings), 'ring')} can carry {has} over these links, where "
            f"{_count(len(verdict.suggested), 'ring')} could carry {could}: check NCCL_TOPO_FILE and NCCL_GRAPH_FILE"
        )
    causes += _order_cause(topology, len(boxes.boxes))
    large = [row for row in rows if row.size_bytes >= _LARGE and row.nccl_s is not None]
    if large and not few:
        causes += _curve_causes(large, nics)
    small = [row for row in rows if row.size_bytes <= _SMALL and row.nccl_s is not None]
    if small:
        slow = float(np.median([row.time_s / (row.nccl_s or 1) for row in small]))
        if slow > _SLOW_START:
            causes.append(
                f"small buffers take {slow:.1f} times as long as NCCL's model says: look for a slow start of messages, such "
                "as TCP instead of RDMA, or processes that are not bound to cores near their NICs"
            )
    if not large and not causes:
        slow = max((row.time_s / row.nccl_s for row in rows if row.nccl_s), default=0.0)
        if slow > _SLOW_START:
            more = "" if small else f"up to {units.format_size(_SMALL)} and "
            causes.append(
                f"buffers take up to {slow:.1f} times as long as NCCL's model says: to tell bandwidth from latency, also measure "
                f"buffers {more}from {units.format_size(_LARGE)} on"
            )
    return causes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _order_cause(topology: Topology, boxes: int) -> list[str]:
    """Return whether another order of the hosts would make NCCL's rings faster."""
    if boxes < 3 or topology.npus % boxes:
        return []
    try:
        hosts = costs_of(topology, npus_per_host=topology.npus // boxes)
        found = reorder(hosts, size="bandwidth", effort=0.1)
    except (TacosError, ValueError):
        return []
    if found.speedup < 1 / _GOOD:
        return []
    words = f"rings in another order are {found.speedup:.2f} times as fast; see tacos reorder"
    return [f"the order of the hosts costs bandwidth: {words}"]


def _curve_causes(large: list[Verdict], nics: int) -> list[str]:
    """Return what the bandwidth at large sizes suggests."""
    last = large[-1]
    share = float(last.nccl_s or 0) / last.time_s
    if share >= _GOOD:
        return []
    rates = [row.busbw_Bps for row in large]
    if len(large) > 1 and rates[-1] > (1 + _FLAT) * rates[-2]:
        return ["the bandwidth still grows at the largest size: measure larger buffers"]
    fractions = [k for k in range(1, nics) if abs(share * nics / k - 1) < _NEAR]
    if fractions:
        k = min(fractions, key=lambda k: abs(share * nics / k - 1))
        words = f"as if {k} of {nics} NICs carried the data; NCCL_DEBUG=INFO shows which are used"
        return [f"large buffers reach {100 * share:.0f} % of what NCCL should: {words}"]
    has = units.format_bandwidth(last.busbw_Bps)
    whole = units.format_bandwidth(last.busbw_Bps / share)
    words = (
        f"one link at {100 * share:.0f} % of its speed on the rings' path would explain the curve"
    )
    return [
        f"large buffers stay at {has} where NCCL should reach {whole}: {words}; tacos probe finds it"
    ]
