"""Synthesize a schedule: choose the engine and the number of chunks.

:func:`synthesize` is the main entry point. It runs one engine or all of them (``tacos.search.auto``), searches the number of
chunks if the collective leaves it open (``tacos.search.task``), and returns one schedule, whose provenance records
how it was made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from tacos._core import Collective, Topology
from tacos._cuda import check_device
from tacos.bound import Bound, bound
from tacos.collective import kind_of
from tacos.errors import InfeasibleError, TacosError, VerificationError, check_type, nearest
from tacos.execution import for_target
from tacos.nodes import Network, topology_of
from tacos.schedule import moved
from tacos.search.auto import Auto, named
from tacos.search.effort import Effort
from tacos.search.judging import Judge, inconsistent, violation
from tacos.search.known import KNOWN, key
from tacos.search.question import Question
from tacos.search.variants import on_whole_network
from tacos.search.watch import TimeIsUp, Watch
from tacos.sketch import Sketch
from tacos.synth import ENGINES, applicable, check_options, concerned, obstacle
from tacos.synth.matched_ports import matched_ports
from tacos.synth.sizes import check_fits
from tacos.targets import check_held, in_switch_bound, usable
from tacos.verify import verify as verify_schedule

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from tacos._core import Schedule
    from tacos.synth.engine import Options

__all__ = ["check_engine", "check_sizes", "engines", "obstacles", "synthesize", "with_chunks"]

_PORTS = ("auto", "any", "matched")


def engines(topology: Network, collective: Collective) -> list[str]:
    """Return the names of the engines that apply to a problem.

    >>> import tacos
    >>> topo = tacos.topology.hypercube(3)
    >>> "halving-doubling" in engines(topo, tacos.collective.all_reduce(topo, "1MB"))
    True
    """
    topology = topology_of(topology)
    return applicable(topology, collective)


def obstacles(topology: Network, collective: Collective) -> dict[str, str]:
    """Return the engines that do not apply to a problem, each with what it needs.

    >>> import tacos
    >>> topo = tacos.topology.mesh(3, 3)
    >>> obstacles(topo, tacos.collective.all_gather(topo, "1MB"))["one-shot"]
    'all-reduce, not all-gather'
    """
    topology = topology_of(topology)
    found = {name: obstacle(name, topology, collective) for name in concerned(topology)}
    return {name: needed for name, needed in found.items() if needed}


def synthesize(
    topology: Network,
    collective: Collective,
    *,
    engine: str = "auto",
    seed: int = 0,
    effort: str | int = "normal",
    time_limit: float | None = None,
    progress: Callable[[float], object] | None = None,
    known_bound: Bound | None = None,
    refine: bool = True,
    sketch: Sketch | str | os.PathLike[str] | None = None,
    verify: bool = True,
    target: str | None = None,
    consistent: bool = True,
    ports: str = "auto",
    device: str = "cpu",
    **options: Unpack[Options],
) -> Schedule:
    """Find a schedule of a collective on a network, and verify it.

    The result depends only on the arguments, unless a time limit ends the search early. The same question, asked again in this process,
    is not searched again: ``compare``, ``tune``, ``judge`` and training ask here too, and have the same answers.

    ``Schedule.executed_s`` of the answer is the time that counts: how long the schedule takes when the target executes it.

    Every answer passes :func:`tacos.verify` before it is returned. A schedule that fails is a bug in its engine: it is
    reported as a :class:`~tacos.errors.WrongScheduleWarning` that says how to reproduce it, and the next best schedule
    is returned, with the failure in its field ``rejected``. The same holds for an engine that applies but
    raises a ValueError while ``"auto"`` runs it.

    Args:
        topology: The network.
        collective: The collective. If its number of chunks is ``"auto"``, 1, 2, 4, … are tried and the best is
            used.
        engine: A name from :func:`engines`, or ``"auto"`` for the best of all that apply.
            ``"auto"`` is never slower than an engine that answers within the same effort, unless it is within 0.1 % of the bound (0.5 % on more than 64 NPUs),
            where it stops. Otherwise it stops when the work that the effort allows is done. ``"best_of"`` in the provenance has the
            executed times of the engines whose schedules were executed, the fastest first, and ``"ends"`` says how each engine ended; ``"halves"`` marks an
            all-reduce that is an all-gather backwards and then forwards. Small problems that are
            still 1 % or more above the bound go to the exact engine as well.
        seed: Random seed of engines that use one; stored in the provenance.
        effort: How much work each engine may do: ``"normal"`` (for ``"auto"``, up to 4 s on up to 64 NPUs), a
            multiple of it, of which the largest power of two counts and is the number of greedy's random starts, ``"high"`` (32), or
            ``"fast"`` (half). Work is counted, not timed, so results do not depend on the machine.
        time_limit: Seconds after which the best schedule so far is returned, with ``"cut_short"`` in its
            provenance.
        progress: Called from time to time with the share of the work done.
        known_bound: The problem's bound, for callers that have it already.
        refine: Whether ``"auto"`` spends the remaining work on refining its best schedules (:func:`tacos.search.refine.refine`).
        sketch: A sketch that restricts what the schedule may use, or a file with one.
        verify: Whether to verify the answer. If not, its provenance has ``"unverified"``.
        target: What will execute the schedule: ``"tcp"``, ``"msccl"``, ``"mscclpp"`` or ``"nccl"``, whose messages share
            links; ``"schedule"``, which keeps the order on every link; or ``"program"``, any of these. Schedules are compared by
            their executed time under the target's rule; without a target and for programs, by the slowest of the three rules
            (:func:`tacos.execution.execution`). If switches can multicast or reduce and the target cannot express that,
            the schedule only forwards through them, its bound is that of such schedules, and its field
            ``in_switch_bound_ps`` is the bound that sums in switches would have, if that is lower.
        consistent: Whether ``"auto"`` returns only schedules in which all NPUs add up each chunk in the same order, so
            that they end with identical bits (``Report.consistent`` of :func:`tacos.verify`). False suffices for integers
            and for simulation. A schedule without this property has ``"consistent": False`` in its provenance.
        ports: ``"matched"`` gives each port of a switch between boxes one peer, so that no two messages share it
            (``tacos.synth.matched_ports``); ``"any"`` lets NPUs send to every NPU that a port reaches. By default, the
            engine ``"auto"`` tries both, and a named engine uses ``"any"``. The provenance says ``"ports": "matched"``.
        device: ``"cuda"`` runs the matching of the greedy engine on an NVIDIA GPU; ``"auto"`` does so if a GPU is present and
            suits the problem. The schedule is the same. The verifier then uses the GPU as well, where it can.
        options: Passed on to the engine, such as ``order="rank"`` for rings; ``trials=`` sets the
            number of greedy's random starts directly.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached.
        TacosError: The time limit passed before any schedule was found, or the engine's schedule violates
            the sketch; or the machine has too little memory to list the schedule's transfers.
        TypeError: The engine does not take an option.
        VerificationError: Every schedule that was found is wrong.
        ValueError: The engine is unknown, or does not apply to this problem; no ports can be matched; or the target cannot hold
            the collective.

    >>> import tacos
    >>> topo = tacos.topology.ring(8, bandwidth="50GB/s", latency="500ns")
    >>> coll = tacos.collective.all_reduce(topo, "64MB")
    >>> best = synthesize(topo, coll)
    >>> best.efficiency > 0.999
    True
    """
    topology = topology_of(topology)
    check_sizes(topology, collective)
    check_held(collective, target)
    watch = Watch(time_limit, progress)
    settings: dict[str, Any] = {
        "engine": engine,
        "seed": seed,
        "effort": effort,
        "refine": refine,
        "sketch": sketch,
        "verify": verify,
        "target": target,
        "consistent": consistent,
        "ports": ports,
        "device": device,
    }
    # A sketch may be a file, which may change.
    facts = settings | {"options": options, "engines": list(ENGINES)}
    asked = key(topology, collective, facts) if sketch is None else None
    known = KNOWN.answer(asked)
    if known is not None and (known_bound is None or known_bound.time_ps == known.bound_ps):
        return known
    found = _searched(topology, collective, watch, known_bound, options, **settings)
    KNOWN.keep(asked, found)
    return found


_OWN_ARGUMENTS = tuple(synthesize.__kwdefaults__ or ())


def _searched(
    topology: Topology,
    collective: Collective,
    watch: Watch,
    known_bound: Bound | None,
    options: Options,
    **settings: Any,
) -> Schedule:
    """Return the answer of a search on what the target can use of the network."""
    target = settings["target"]
    network = usable(topology, target)
    found = _found(network, collective, watch, known_bound, options, **settings)
    if network is topology:
        return found
    return _with_all_switches(found, topology, collective, target, known_bound)


def _found(
    topology: Topology,
    collective: Collective,
    watch: Watch,
    known_bound: Bound | None,
    options: Options,
    *,
    engine: str,
    seed: int,
    effort: str | int,
    refine: bool,
    sketch: Sketch | str | os.PathLike[str] | None,
    verify: bool,
    target: str | None,
    consistent: bool,
    ports: str,
    device: str,
) -> Schedule:
    """Check the arguments of :func:`synthesize`, and search."""
    check_type("engine", engine, str)  # before it is searched for commas
    if "," in engine:
        raise ValueError(
            f"synth takes one engine; compare several with tacos compare --engines {engine}"
        )
    if engine != "auto":
        check_engine(engine, "auto")
    given = dict(options)
    check_options(engine, given, _OWN_ARGUMENTS)
    if ports not in _PORTS:
        raise ValueError(f"ports must be one of {', '.join(_PORTS)}; got {ports!r}")
    check_device(device)
    if device == "cuda" and (engine == "auto" or "device" not in ENGINES[engine].options):
        raise ValueError(
            f'device "cuda" works only with the engine greedy, not with {engine!r}; use greedy, or device "auto"'
        )
    check_fits(topology, collective, engine)
    question = Question(
        topology,
        collective,
        seed=seed,
        effort=Effort.of(effort),
        watch=watch,
        known_bound=known_bound,
        device=device,
    )
    same_bits = consistent and engine == "auto"
    if sketch is not None and ports == "matched":
        raise ValueError('ports="matched" cannot be combined with a sketch; use one of the two')
    if sketch is not None:
        found = _sketched(question, sketch, engine, given, verify=verify, target=target)
        if same_bits and not found.consistent:
            raise TacosError(inconsistent(found, verify_schedule(found).difference))
        return for_target(found, target)
    matching = matched_ports(topology) if ports == "matched" else None
    if ports == "matched" and matching is None:
        raise ValueError(
            'ports is "matched", but no switch of this network joins equal boxes by slower ports: leave ports out'
        )
    if matching is not None:
        question = replace(question, topology=matching.topology, known_bound=question.bound)
    judge = Judge(question, target=target, verifies=verify, consistent=same_bits)
    found = _answer(judge, engine, given, refine=refine, matches=ports == "auto")
    return for_target(found if matching is None else on_whole_network(matching, found), target)


def with_chunks(schedule: Schedule, chunks: int) -> Schedule:
    """Synthesize a schedule's problem again with the same engine and another number of chunks.

    Args:
        schedule: A schedule of a single named collective, made by :func:`synthesize`.
        chunks: Chunks per part.

    Raises:
        TacosError: The schedule does not say which engine made it, or the new schedule might leave ranks
            with different bits although the given one does not.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> many = synthesize(ring, tacos.collective.all_gather(ring, "4MB", chunks=8), engine="ring")
    >>> with_chunks(many, 2).transfers, many.transfers
    (24, 96)
    """
    part, engine = schedule.collective.parts[0], schedule.engine
    if chunks == part.chunks:
        return schedule
    if engine not in ENGINES or len(schedule.collective.parts) > 1 or kind_of(part).listed:
        raise TacosError(
            "only a schedule of one collective and a known engine can be synthesized with other chunks"
        )
    wanted = Collective(
        schedule.topology.npus,
        [type(part)(part.kind, part.size, chunks=chunks, group=part.group, root=part.root)],
    )
    ports = "matched" if schedule.matched_ports else "any"
    found = synthesize(schedule.topology, wanted, engine=engine, ports=ports)
    consistent = [one.consistent for one in (schedule, found)]
    if consistent == [True, False]:
        raise TacosError(f"{engine} in {chunks} chunks may leave ranks with different bits")
    return found


def _answer(
    judge: Judge,
    engine: str,
    options: dict[str, Any],
    *,
    refine: bool = False,
    matches: bool = False,
) -> Schedule:
    """Run the engine, or all of them, and record in the provenance how the search went."""
    question = judge.question
    try:
        if engine == "auto":
            answer = Auto(judge).answer(refines=refine, matches=matches)
        else:
            answer = named(judge, ENGINES[engine], options)
    except TimeIsUp:
        message = (
            f"time_limit is {question.watch.time_limit} s, which is too short to find a schedule"
        )
        raise TacosError(message) from None
    schedule = answer.schedule
    if answer.executed:
        schedule = schedule.with_executed(answer.time_ps, judge.target)
    facts: dict[str, Any] = {"seed": question.seed, "effort": question.effort.given}
    facts |= {"bound_s": question.bound.time_s, "bottleneck": question.bound.why}
    if question.watch.cut_short:
        facts["cut_short"] = True
    if judge.rejected:
        facts["rejected"] = judge.rejected
    if not judge.verifies:
        facts["unverified"] = True
    return schedule.with_provenance(facts | schedule.provenance).with_facts(
        bound_ps=question.bound.time_ps,
        cut_short=question.watch.cut_short,
        rejected=judge.rejected,
    )


def _with_all_switches(
    found: Schedule,
    topology: Topology,
    collective: Collective,
    target: str | None,
    known_bound: Bound | None,
) -> Schedule:
    """Return a schedule for a target without sums in switches on the whole network, with the bound that these would have."""
    schedule, bound_ps, least = moved(found, topology), found.bound_ps, None
    if known_bound is not None:
        least = known_bound.in_switch_ps
    elif bound_ps is not None:
        least = in_switch_bound(topology, collective, target, bound_ps)
    return schedule if least is None else schedule.with_facts(in_switch_bound_ps=least)


def _sketched(
    question: Question,
    sketch: Sketch | str | os.PathLike[str],
    engine: str,
    options: dict[str, Any],
    *,
    verify: bool,
    target: str | None,
) -> Schedule:
    """Synthesize on the links that a sketch allows, and return the schedule on the whole network."""
    topology, collective = question.topology, question.collective
    if not isinstance(sketch, Sketch):
        from tacos.formats import sketch_file

        sketch = sketch_file.read(sketch, topology.npus)
    sketch = sketch.numbered(topology)
    sketch.check(topology.npus)
    if not collective.resolved and sketch.chunks is not None:
        collective = collective.with_chunks(sketch.chunks)
    network, links = sketch.restrict(topology)
    inner = replace(
        question, topology=network, collective=collective, known_bound=None, sketch=sketch
    )
    # The schedule is verified once it is on the whole network. Refinement does not support sketches.
    judge = Judge(inner, target=target, verifies=False)
    try:
        found = _answer(judge, engine, options)
    except InfeasibleError as error:
        raise InfeasibleError(f"with the links that the sketch allows, {error}") from None
    judge.check_sketch(found)
    schedule = sketch.returned(found, topology, links)
    full = question.known_bound or bound(topology, schedule.collective)
    facts = schedule.provenance | {"bound_s": full.time_s, "bottleneck": full.why, "sketch": True}
    if verify:
        del facts["unverified"]
        report = verify_schedule(
            schedule, device=question.checks_on, progress=lambda _: question.watch.repeat()
        )
        if not report.ok:
            raise VerificationError(violation(schedule, report, question.seed))
        if not report.consistent:
            facts["consistent"] = False
            schedule = schedule.with_facts(consistent=False)
    return schedule.with_provenance(facts).with_facts(bound_ps=full.time_ps)


def check_sizes(topology: Topology, collective: Collective) -> None:
    """Raise a TypeError for other types, and a ValueError if the numbers of NPUs differ."""
    check_type("topology", topology, Topology)
    check_type("collective", collective, Collective)
    if collective.npus != topology.npus:
        raise ValueError(
            f"the collective is for {collective.npus} NPUs, but the topology has {topology.npus}"
        )


def check_engine(name: str, *others: str) -> None:
    """Raise a ValueError if there is no engine of that name; `others` are further names that are accepted."""
    check_type("engine", name, str)
    if name not in ENGINES:
        known = [*others, *ENGINES]
        close = nearest(name, known)
        hint = f'did you mean "{close}"? It must be' if close else "expected"
        raise ValueError(f'unknown engine "{name}"; {hint} one of {", ".join(known)}')
