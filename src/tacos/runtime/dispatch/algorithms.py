"""Choose the algorithm for a call: one of a plan, one synthesized for the network, or a default.

:class:`Settings` is what the environment says, the same on all ranks (:func:`agree`);
:class:`Algorithms` finds, prepares and keeps the algorithms of one communicator.

The variables are those of ``tacos._support.variables``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from _tacos import __version__
from tacos import collective as collectives
from tacos import formats, topology
from tacos._core import RankExecutor
from tacos._support.log import LOG, Once, set_level
from tacos._support.variables import cache_folder, read
from tacos.errors import TacosError, VerificationError
from tacos.library import Plans, described, difference, fingerprint, unpacked
from tacos.program import lower
from tacos.reorder import reorder
from tacos.runtime import carriers
from tacos.runtime.dispatch.cache import kept
from tacos.runtime.dispatch.placement import here, ordered, place, renumbered, rerouted
from tacos.runtime.measure.probe import probe
from tacos.search.synthesis import synthesize
from tacos.synth import ENGINES
from tacos.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tacos._core import Program, Schedule, Topology
    from tacos.library import Plan
    from tacos.runtime.algorithm import Algorithm
    from tacos.runtime.communicator import Communicator
    from tacos.runtime.rendezvous import Rendezvous

__all__ = ["Algorithms", "Settings", "agree", "default", "order_matters", "probed"]

_LOG = LOG.getChild("dispatch")

_KEPT = 4096
"""Largest number of remembered calls of different sizes; then the memory is cleared."""
_SMALL = 256 << 10
_FEW = 8
_LEAST_CLASS = 1 << 10


@dataclass(frozen=True)
class Settings:
    """What the environment says about algorithms."""

    plans: Plans | None = None
    topology: Topology | None = None
    engine: str = "auto"
    cache: Path = Path()
    placement: str | None = None
    order: str | None = None
    probe: bool = False
    places: tuple[int, ...] = ()
    """The place of each rank in that order, once known; empty: rank order."""

    @classmethod
    def from_environment(cls, world: int, variables: Mapping[str, str] | None = None) -> Settings:
        """Read and check what the variables name, for a job with this number of ranks.

        Raises:
            ValueError: A variable has a value that is not allowed.
            FormatError: A plan or a topology is broken, or for another job.

        >>> Settings.from_environment(4, {"TACOS_ENGINE": "ring"}).engine
        'ring'
        """
        set_level(read("TACOS_DEBUG", variables))
        engine = read("TACOS_ENGINE", variables) or "auto"
        if engine not in (names := ["auto", *ENGINES]):
            raise ValueError(
                f"unknown engine {engine!r} in TACOS_ENGINE; expected one of {', '.join(names)}"
            )
        named = read("TACOS_TOPOLOGY", variables)
        network = formats.network(named) if named else None
        folder = read("TACOS_PLANS", variables)
        plans = None
        if folder:
            plans = Plans.load(folder)
            plans = plans.for_npus(world) if network is None else plans.on(network)
            plans.check()
        return cls(
            plans,
            network,
            engine,
            Path() if network is None else cache_folder(variables),
            read("TACOS_PLACEMENT", variables) or None,
            read("TACOS_ORDER", variables) or None,
            read("TACOS_PROBE", variables) == "1",
        )

    @property
    def network(self) -> Topology | None:
        """The network of the ranks' NPUs, if the environment names one."""
        if self.topology is None and self.plans is not None and self.plans.plans:
            return self.plans.schedule(self.plans.plans[0]).topology
        return self.topology

    @property
    def digest(self) -> str:
        """A digest of everything that must be equal on all ranks."""
        plans = self.plans.digest if self.plans else ""
        network = fingerprint(self.topology) if self.topology else ""
        return f"{plans} {network} {self.engine} {self.probe}"


class _Greeting(msgspec.Struct):
    """What the ranks exchange before the first call."""

    rank: int
    where: str
    digest: str = ""
    npus: list[int] = []
    places: list[int] = []
    error: str = ""


def agree(
    rendezvous: Rendezvous, rank: int, world: int, variables: Mapping[str, str] | None = None
) -> tuple[Settings, list[int]]:
    """Return the settings and the NPU of each rank; if anything is wrong, all ranks raise the same error.

    Args:
        rendezvous: The rendezvous of the ranks that will work together.
        rank: This rank's number in the whole job.
        world: Number of ranks of the job.
        variables: The environment.

    Raises:
        ValueError: The message of the first rank with an error.
    """
    settings = Settings()
    host, number = here(variables)
    mine = _Greeting(rank, f"{host}:{number or 0}")
    try:
        settings = Settings.from_environment(world, variables)
        mine.digest = settings.digest
    except (TacosError, ValueError, OSError) as error:
        mine.error = " ".join(str(error).split())
    greetings = _exchanged(rendezvous, "settings", mine)
    for one in greetings:
        if one.digest != greetings[0].digest:
            raise ValueError(
                f"ranks {greetings[0].rank} and {one.rank} have different plans, topologies or "
                "engines: TACOS_PLANS, TACOS_TOPOLOGY and TACOS_ENGINE must mean the same everywhere"
            )
    network = settings.network
    if network is None and settings.order is None:
        return settings, list(range(len(greetings)))
    where = {one.rank: one.where for one in greetings}
    mine.npus = list(range(len(greetings)))
    try:
        if network is not None:
            mine.npus = place(where, world, network.npus, network.names, settings.placement)
        if settings.order is not None:
            mine.places = ordered(where, settings.order)
    except (TacosError, ValueError, OSError) as error:
        mine.error = " ".join(str(error).split())
    greetings = _exchanged(rendezvous, "places", mine)
    for one in greetings:
        if one.npus != greetings[0].npus:
            raise ValueError(
                f"ranks {greetings[0].rank} and {one.rank} have different places for the ranks: "
                "TACOS_PLACEMENT must mean the same everywhere"
            )
        if one.places != greetings[0].places:
            raise ValueError(
                f"ranks {greetings[0].rank} and {one.rank} have different orders of the ranks: "
                "TACOS_ORDER must mean the same everywhere"
            )
    return replace(settings, places=tuple(mine.places)), mine.npus


def probed(communicator: Communicator) -> tuple[int, ...]:
    """Measure the network and return each rank's place in the fastest order of a ring; all ranks call this together."""
    network = probe(communicator).topology()
    mine = b""
    if communicator.rank == 0:
        # Ranks of one host have names host:number there, so they stay together.
        try:
            mine = msgspec.json.encode(reorder(network).order)
        except ValueError:  # all ranks are on one host
            mine = msgspec.json.encode(list(range(communicator.size)))
    order = msgspec.json.decode(communicator.exchange("order", mine)[0], type=list[int])
    return tuple(order.index(rank) for rank in range(communicator.size))


def _exchanged(rendezvous: Rendezvous, name: str, mine: _Greeting) -> list[_Greeting]:
    """Exchange greetings; an error on one rank is raised on all."""
    answers = rendezvous.exchange(name, msgspec.json.encode(mine))
    greetings = [msgspec.json.decode(answer, type=_Greeting) for answer in answers]
    for one in greetings:
        if one.error:
            raise ValueError(f"rank {one.rank}: {one.error}")
    return greetings


class _Call(NamedTuple):
    """The requirements of a call."""

    kind: str
    size_bytes: int
    in_place: bool
    root: int  # rank in the communicator, or -1
    ordered: bool  # whether the order of summation changes the result
    carrier: str

    @property
    def label(self) -> str:
        """A description for messages."""
        root = f" with root {self.root}" if self.root >= 0 else ""
        return f"{collectives.parse(self.kind).label} of {self.size_bytes} bytes{root}"


class _Candidate(NamedTuple):
    """An algorithm, with a name that is the same on all ranks and a function that makes its program."""

    name: str
    program: Callable[[], Program]


class Algorithms:
    """The algorithms of one communicator, prepared when a call first needs them.

    Preparing is collective: all ranks must request the same algorithms in the same order, which they
    do if they make the same calls. Programs are made for buffers in place; the executor copies
    the data if a call is not in place, which may differ between ranks.
    """

    def __init__(
        self,
        communicator: Communicator,
        settings: Settings | None = None,
        npus: Sequence[int] | None = None,
    ) -> None:
        self.communicator = communicator
        self.settings = self._given = settings or Settings()
        self.npus = list(range(communicator.size)) if npus is None else list(npus)
        self._links: Sequence[int] = ()
        self._no_way: Callable[[int, int, int], bool] | None = None
        self._of_call: dict[_Call, tuple[Algorithm, str]] = {}
        self._prepared: dict[tuple[str, str], Algorithm] = {}  # by name and carrier
        self._log_once = Once(_LOG)

    def get(
        self,
        kind: str,
        size_bytes: int,
        in_place: bool = False,
        root: int = -1,
        ordered: bool = False,
        carrier: str | None = None,
    ) -> Algorithm:
        """Return the prepared algorithm for a call.

        Args:
            kind: Kind of the collective, such as ``"all_reduce"``.
            size_bytes: Size as nccl-tests counts it.
            in_place: Whether to choose plans for use in place.
            root: Rank of the root in this communicator; -1 if the collective has none.
            ordered: Whether the order of summation changes the result, as for floating-point numbers (see
                :func:`order_matters`). Then algorithms with different orders on different ranks are skipped.
            carrier: The name of the carrier; by default the communicator's.
        """
        carrier = carrier or self.communicator.carrier
        call = _Call(kind, size_bytes, in_place, root, ordered, carrier)
        found = self._of_call.get(call)
        if found is None:
            if len(self._of_call) >= _KEPT:
                self._of_call.clear()
            found = self._of_call[call] = self._find(call)
        if self.communicator.rank == 0 and _LOG.isEnabledFor(logging.INFO):
            place = " in place" if in_place else ""
            what = (
                f"{collectives.parse(kind).label} of {format_size(size_bytes)}{place}: {found[1]}"
            )
            if not self._log_once(logging.INFO, what):
                _LOG.debug("%s", what)
        return found[0]

    def serve(
        self,
        network: Topology,
        links: Sequence[int] = (),
        no_way: Callable[[int, int, int], bool] | None = None,
    ) -> None:
        """From now on, choose algorithms for this network; all ranks must do so between the same calls.

        Plans are for the network that the settings name. Algorithms that were already prepared are kept.

        Args:
            network: What to synthesize for.
            links: Of what is left of the settings' network, the number that each link has there.
            no_way: Whether a rank reaches another on a channel only over a link that is gone or avoided, around which the
                network forwards nothing. Where an algorithm needs such a way, one that moves data between neighbours alone
                takes its place.
        """
        self._links, self._no_way = links, no_way
        given = self._given
        if network is given.topology:
            self.settings = given
        else:
            # Training waits, so use the engine that is quick on any network where many engines would take seconds.
            quick = given.engine == "auto" and network.npus > _FEW
            engine = "greedy" if quick else given.engine
            self.settings = replace(given, topology=network, plans=None, engine=engine)
        self._of_call.clear()

    def forget(self, carrier: str) -> None:
        """Forget the algorithms of a carrier that was reopened; they are prepared again when needed."""
        self._of_call.clear()
        self._prepared = {key: one for key, one in self._prepared.items() if key[1] != carrier}

    def _find(self, call: _Call) -> tuple[Algorithm, str]:
        reasons: list[str] = []
        for source in (self._planned, self._synthesized, self._default):
            candidate = source(call, reasons)
            if candidate is None:
                continue
            name, key = candidate.name, (candidate.name, call.carrier)
            if key not in self._prepared:
                try:
                    program = candidate.program()
                except ValueError as error:  # it cannot be lowered, or it relays through other NPUs
                    reasons.append(f"{name} does not serve: {error}")
                    continue
                self._prepared[key] = self.communicator.prepare(
                    program, carrier=call.carrier, label=call.label
                )
            if call.ordered and (difference := self._prepared[key].difference):
                reasons.append(f"{name} is not for floating-point sums: {difference}")
                if self.communicator.rank == 0:
                    self._log_once(logging.WARNING, f"{reasons[-1]}; another algorithm serves them")
                continue
            return self._prepared[key], "; ".join([name, *reasons])
        raise TacosError(f"no algorithm serves {call.kind}: {'; '.join(reasons)}")

    def _planned(self, call: _Call, reasons: list[str]) -> _Candidate | None:
        plans = self.settings.plans
        if plans is None:
            return None
        root = None if call.root < 0 else self.npus[call.root]
        choice = plans.choose(call.kind, self.npus, call.size_bytes, call.in_place, root)
        if choice.plan is None:
            reasons.append(choice.reason)
            return None
        schedule = plans.schedule(choice.plan)
        return _Candidate(
            f"plan {choice.reason}",
            lambda: renumbered(lower(schedule, in_place=True), self.npus),
        )

    def _synthesized(self, call: _Call, reasons: list[str]) -> _Candidate | None:
        whole = self.settings.topology
        if whole is None:
            return None
        try:
            all_npus = self.npus == list(range(whole.npus))
            network = whole if all_npus else topology.subset(whole, self.npus)
        except ValueError as error:
            reasons.append(f"TACOS_TOPOLOGY does not serve this group: {error}")
            return None
        size = _size_class(call.size_bytes)
        root = f"-root{call.root}" if call.root >= 0 else ""
        engine, target = self.settings.engine, carriers.named(call.carrier).target
        around, no_way = "-around" if self._no_way else "", self._no_way
        given, links = self._given.topology, self._links if network is whole else ()
        name = f"{fingerprint(network)}-{call.kind}{root}-{size}-{engine}-{target}{around}-{__version__}"

        def lowered(schedule: Schedule) -> Program:
            program = lower(schedule, in_place=True)
            return rerouted(program, network, given, links) if given and links else program

        def program() -> Program:
            wanted = collectives.named(
                call.kind, network, size, root=call.root if call.root >= 0 else None
            )

            def made() -> Schedule:
                found = synthesize(network, wanted, engine=engine, effort="fast", target=target)
                if no_way is None:
                    return found
                try:
                    if not any(no_way(*way) for way in _connections(lowered(found))):
                        return found
                except ValueError:  # it cannot be lowered, and the defaults may have no way either
                    pass
                return synthesize(network, wanted, engine="greedy", effort="fast", target=target)

            schedule = self._shared(described(wanted, network, f"{name}.tacos"), made)
            return lowered(schedule)

        return _Candidate(f"{engine} for TACOS_TOPOLOGY ({name})", program)

    def _shared(self, plan: Plan, make: Callable[[], Schedule]) -> Schedule:
        """Send rank 0's schedule to all ranks: from its cache, or made now; rank 0 has verified it.

        Raises:
            ValueError: There is no such algorithm, or the ranks need different algorithms.
        """
        mine = b""
        if self.communicator.rank == 0:
            try:
                mine = b"+" + kept(self.settings.cache, plan, make)
            except VerificationError as error:  # a bug of an engine, which must be reported
                _LOG.error("the engine %s failed: %s", self.settings.engine, error)
                mine = b"-" + str(error).encode()
            except (TacosError, ValueError) as error:
                mine = b"-" + str(error).encode()
        name = plan.file.removesuffix(".tacos")
        answer = self.communicator.exchange(f"schedule {name} {len(self._prepared)}", mine)[0]
        if answer[:1] != b"+":
            raise ValueError(answer[1:].decode())
        schedule = unpacked(answer[1:])
        if other := difference(schedule, plan):
            raise ValueError(f"rank 0 sent another schedule: {other}")
        return schedule

    def _default(self, call: _Call, _reasons: list[str]) -> _Candidate:
        ranks = self.communicator.size
        engine, chunks = default(call.kind, call.size_bytes)
        places = self.settings.places

        def program() -> Program:
            network = topology.fully_connected(ranks)
            root = call.root if call.root >= 0 else None
            root = places[root] if places and root is not None else root
            wanted = collectives.named(call.kind, network, 1 << 20, chunks=chunks, root=root)
            options = ENGINES[engine].blind_options
            plain = lower(synthesize(network, wanted, engine=engine, **options), in_place=True)
            try:
                return renumbered(plain, places) if places else plain
            except ValueError:  # its steps move slots that are not adjacent in this order
                return plain

        root = f" from rank {call.root}" if call.root >= 0 else ""
        kind = collectives.parse(call.kind).label
        along = " in the given order" if places else ""
        return _Candidate(f"default {engine}, {chunks} chunks, {kind}{root}{along}", program)


def _connections(program: Program) -> set[tuple[int, int, int]]:
    """Which ranks send to which on which channels."""
    return {
        (rank, peer, channel)
        for rank in range(program.ranks)
        for peer, channel in RankExecutor(program, rank).sends_to
    }


def order_matters(dtype: str, op: str) -> bool:
    """Return whether a reduction's result depends on the order of its operands.

    >>> order_matters("bfloat16", "sum"), order_matters("int32", "sum"), order_matters("float32", "max")
    (True, False, False)
    """
    return "float" in dtype and op in ("sum", "avg", "product")


def default(kind: str, size_bytes: int) -> tuple[str, int]:
    """Return the engine and number of chunks to use if nothing is known about the network.

    Small messages take few hops; large ones go around rings, which load no link more than
    other algorithms would.

    >>> default("all_reduce", 1024), default("all_reduce", 1 << 26)
    (('halving-doubling', 1), ('bidirectional-ring', 1))
    """
    traits = collectives.parse(kind)
    if not traits.spreads:
        return "direct", 1
    small = size_bytes <= _SMALL
    if traits.rooted:
        return "double-binary-tree", 1 if small else 16
    return ("halving-doubling", 1) if small else ("bidirectional-ring", 1)


def _size_class(size_bytes: int) -> int:
    """Return the size that a schedule is made for: the next power of four, to make few schedules.

    >>> _size_class(5000), _size_class(16384)
    (16384, 16384)
    """
    size = _LEAST_CLASS
    while size < size_bytes:
        size *= 4
    return size
