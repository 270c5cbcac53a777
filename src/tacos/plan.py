"""From a question to an answer: which engine, how many chunks, and how the candidates compare.

:func:`synthesize` is what most people call. It runs an engine, searches the number of chunks where
the collective leaves it open, and returns one schedule that says how it was made. :func:`compare`
runs several engines on one problem and checks each answer with the verifier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.errors import InfeasibleError, TacosError
from tacos.synth import ENGINES, applicable
from tacos.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tacos._core import Collective, CollectivePart, Schedule, Topology

__all__ = ["Candidate", "Comparison", "compare", "engines", "synthesize"]

_CHUNK_COUNTS = tuple(2**k for k in range(10))
_SEARCH_TRANSFERS = 300_000
"""The chunk search stops before schedules of more transfers than this: they take seconds each."""
_GOOD_ENOUGH = 1.005
_GOOD_AS_PERFECT = 0.99
"""Where an engine comes this close to the bound, the others are not worth the wait."""


def engines(topology: Topology, collective: Collective) -> list[str]:
    """Names of the engines that apply to a problem.

    >>> import tacos
    >>> topo = tacos.topology.hypercube(3)
    >>> "halving-doubling" in engines(topo, tacos.collective.all_reduce(topo, "1MB"))
    True
    """
    return applicable(topology, collective)


def synthesize(
    topology: Topology,
    collective: Collective,
    *,
    engine: str = "auto",
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
    **options: Any,
) -> Schedule:
    """Find a schedule of a collective on a network.

    Args:
        topology: The network.
        collective: What is to be achieved. Where its number of chunks is ``"auto"``, the best of
            1, 2, 4, … is searched.
        engine: A name from :func:`engines`, or ``"auto"`` for the best of all that apply.
        seed: For engines that draw at random; goes into the provenance.
        progress: Called with the share done, now and then.
        options: Passed on to the engine, such as ``order="rank"`` for rings.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached.
        ValueError: The engine is unknown, or does not apply to this problem.

    >>> import tacos
    >>> topo = tacos.topology.ring(8, bandwidth="50GB/s", latency="500ns")
    >>> coll = tacos.collective.all_reduce(topo, "64MB")
    >>> best = synthesize(topo, coll)
    >>> best.provenance["engine"]
    'symmetric'
    """
    _check_sizes(topology, collective)
    if engine == "auto":
        return _best_of_all(topology, collective, seed, progress, options)
    _check_engine(engine)
    if engine == "greedy":
        options |= {"seed": seed}
    if collective.resolved:
        schedule = _run(topology, collective, engine, progress, options)
    else:
        schedule = _best_chunks(topology, collective, engine, progress, options)
    facts = {"seed": seed, "bound_s": _port_bound(topology, collective)}
    return schedule.with_provenance(facts | schedule.provenance)


def _port_bound(topology: Topology, collective: Collective) -> float:
    """A time that no schedule beats: what each NPU must send and receive, over its links.

    Sums are counted as the least that any algorithm moves: every contribution leaves its NPU once,
    every result arrives once, and an all-reduce of n buffers moves 2·(n - 1) of them in all, unless
    switches reduce or multicast.
    """
    out, into = np.zeros(topology.npus), np.zeros(topology.npus)
    everything = 0.0
    for part in collective.parts:
        send, receive = _least_traffic(part)
        np.add.at(out, part.group if len(part.group) else part.inputs, send)
        np.add.at(into, part.group if len(part.group) else part.outputs, receive)
        if part.kind == "all_reduce" and not topology.switch_capabilities.any():
            everything += 2 * (len(part.group) - 1) * part.size
    bandwidth = topology.link_bandwidth_Bps.astype(float)
    rates = [
        np.bincount(ends, bandwidth, topology.nodes)[: topology.npus]
        for ends in (topology.link_src, topology.link_dst)
    ]
    times = [
        float(np.max(np.divide(load, rate, out=np.zeros_like(load), where=rate > 0)))
        for load, rate in zip((out, into), rates, strict=True)
    ]
    if rates[0].sum() > 0:
        times.append(everything / float(rates[0].sum()))
    return max(times)


def _least_traffic(part: CollectivePart) -> tuple[Any, Any]:
    """Bytes that the members (or the rows' ends) send and receive at least."""
    n, size = len(part.group), part.size
    share, rest = size // max(n, 1), size - -(-size // max(n, 1))
    if part.kind in ("send_recv", "custom"):
        # A custom chunk may be held or wanted by several: only what is certain counts.
        return (part.bytes, part.bytes) if part.kind == "send_recv" else (0, 0)
    if n < 2:
        return 0, 0
    if part.kind == "all_to_all_v":
        matrix = part.bytes.reshape(n, n)
        own = np.diagonal(matrix)
        return matrix.sum(axis=1) - own, matrix.sum(axis=0) - own
    if part.kind in ("broadcast", "reduce", "gather", "scatter"):
        at_root = np.arange(n) == part.root
        one_way = {
            "broadcast": (at_root * size, ~at_root * size),
            "reduce": (~at_root * size, at_root * size),
            "gather": (~at_root * share, at_root * rest),
            "scatter": (at_root * rest, ~at_root * share),
        }
        return one_way[part.kind]
    return {
        "all_gather": (share, rest),
        "reduce_scatter": (rest, share),
        "all_to_all": (rest, rest),
        "all_reduce": (size, size),
    }[part.kind]


def _check_sizes(topology: Topology, collective: Collective) -> None:
    if collective.npus != topology.npus:
        raise ValueError(
            f"the collective is for {collective.npus} NPUs, the topology has {topology.npus}"
        )


def _check_engine(name: str) -> None:
    if name not in ENGINES:
        raise ValueError(f'unknown engine "{name}", known are auto, {", ".join(ENGINES)}')


def _run(
    topology: Topology,
    collective: Collective,
    engine: str,
    progress: Callable[[float], object] | None,
    options: dict[str, Any],
) -> Schedule:
    schedule: Schedule = ENGINES[engine](topology, collective, progress=progress, **options)
    return schedule


def _best_chunks(
    topology: Topology,
    collective: Collective,
    engine: str,
    progress: Callable[[float], object] | None,
    options: dict[str, Any],
) -> Schedule:
    """The fewest chunks whose time is as good as the best, to half a percent.

    More chunks pipeline better until latencies outweigh it, so the search ends after two counts
    that did not help. What the model does not count (the work per transfer) speaks for few.
    """
    applies = engine in applicable(topology, collective)  # not if only by its options
    found: list[Schedule] = []
    fastest, failures = 0, 0
    for chunks in _CHUNK_COUNTS:
        cut = collective.with_chunks(chunks)
        if applies and engine not in applicable(topology, cut):
            break
        found.append(_run(topology, cut, engine, progress, options))
        if found[-1].time_ps < found[fastest].time_ps:
            fastest, failures = len(found) - 1, 0
        elif chunks > 1:
            failures += 1
        if failures == 2 or 2 * found[-1].stored_transfers > _SEARCH_TRANSFERS:
            break
    enough = found[fastest].time_ps * _GOOD_ENOUGH
    best = next(schedule for schedule in found if schedule.time_ps <= enough)
    tried = list(_CHUNK_COUNTS[: len(found)])
    return best.with_provenance(best.provenance | {"chunk_counts_tried": tried})


def _best_of_all(
    topology: Topology,
    collective: Collective,
    seed: int,
    progress: Callable[[float], object] | None,
    options: dict[str, Any],
) -> Schedule:
    if options:
        raise ValueError(f"options {', '.join(options)} need a named engine, not auto")
    names = engines(topology, collective)
    best: Schedule | None = None
    tried = []
    for i, name in enumerate(names):

        def report(share: float, done: int = i) -> None:
            if progress is not None:
                progress((done + share) / len(names))

        schedule = synthesize(topology, collective, engine=name, seed=seed, progress=report)
        tried.append(name)
        if best is None or schedule.time_ps < best.time_ps:
            best = schedule
        if (best.efficiency or 0) > _GOOD_AS_PERFECT:
            break
    if best is None:
        raise InfeasibleError(f"no engine applies to {collective!r} on {topology!r}")
    return best.with_provenance(best.provenance | {"best_of": tried})


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine's answer in a comparison.

    Attributes:
        engine: Its name.
        schedule: What it returned, or None if it failed.
        ok: Whether the verifier found nothing wrong.
        note: Why there is no schedule, or the first violation; empty if all is well.
        seconds: How long the synthesis took.
    """

    engine: str
    schedule: Schedule | None
    ok: bool
    note: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Engines side by side on one problem, the fastest schedule first."""

    topology: Topology
    collective: Collective
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Schedule:
        """The fastest schedule that the verifier accepts."""
        for candidate in self.candidates:
            if candidate.ok and candidate.schedule is not None:
                return candidate.schedule
        raise InfeasibleError(f"no engine solved {self.collective!r}")

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per candidate, for tables and JSON."""
        return [_row(candidate) for candidate in self.candidates]


def _row(candidate: Candidate) -> dict[str, Any]:
    schedule = candidate.schedule
    row: dict[str, Any] = {"engine": candidate.engine, "ok": candidate.ok, "note": candidate.note}
    row["synthesis_s"] = candidate.seconds
    if schedule is not None:
        used = schedule.link_utilisation()
        row |= {
            "time_s": schedule.time_s,
            "algbw_Bps": schedule.algbw_Bps,
            "busbw_Bps": schedule.busbw_Bps,
            "efficiency": schedule.efficiency,
            "chunks": schedule.collective.chunks,
            "transfers": schedule.transfers,
            "utilisation": float(used.mean()) if len(used) else 0.0,
        }
    return row


def compare(
    topology: Topology,
    collective: Collective,
    *,
    engines: Iterable[str] | None = None,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> Comparison:
    """Run several engines on one problem and check each answer with the verifier.

    Args:
        topology: The network.
        collective: What is to be achieved.
        engines: Names; all that apply where none are given.
        seed: For engines that draw at random.
        progress: Called with the share done, now and then.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "4MB")
    >>> [c.engine for c in compare(topo, coll, engines=["ring", "bidirectional-ring"]).candidates]
    ['bidirectional-ring', 'ring']
    """
    names = list(engines) if engines is not None else applicable(topology, collective)
    _check_sizes(topology, collective)
    for name in names:
        _check_engine(name)
    candidates = []
    for i, name in enumerate(names):

        def report(share: float, done: int = i) -> None:
            if progress is not None:
                progress((done + share) / len(names))

        begin = time.perf_counter()
        try:
            schedule = synthesize(topology, collective, engine=name, seed=seed, progress=report)
        except (TacosError, ValueError, MemoryError) as error:
            took = time.perf_counter() - begin
            note = str(error) or "not enough memory"
            candidates.append(Candidate(name, None, False, note, took))
            continue
        took = time.perf_counter() - begin
        check = verify(schedule, progress=lambda _: report(1.0))
        note = "" if check.ok else check.violations[0].message
        candidates.append(Candidate(name, schedule, check.ok, note, took))
    candidates.sort(key=lambda c: (not c.ok, c.schedule.time_ps if c.schedule else 0, c.engine))
    return Comparison(topology, collective, tuple(candidates))
