"""What an engine is: a function that makes schedules, and what a search must know to use it.

Each engine's :class:`Engine` record is in the file of its code; :data:`tacos.synth.ENGINES` lists the records. Searches,
comparisons, the command and the tests read the records, so that a new engine needs no change anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeAlias

from tacos.synth.estimates import per_transfer

if TYPE_CHECKING:
    from tacos._core import Collective, Schedule, Topology

__all__ = ["Engine", "Exact"]

ChunkCounts: TypeAlias = Callable[
    ["Topology", "Collective", tuple[int, ...], dict[str, Any]], Iterable[int]
]

_FROM_THE_SEARCH = ("progress", "seed", "time_limit", "within", "memory", "device")
"""Keywords that a search fills in for the engines that have them."""
_HIDDEN = ("progress", "within", "memory")
"""Those that no caller of :func:`tacos.search.synthesis.synthesize` can give."""


@dataclass(frozen=True, slots=True)
class Exact:
    """How ``"auto"`` may ask an engine that finds optimal schedules of small problems.

    Attributes:
        fits: Whether a problem whose chunks are chosen is small enough.
        limits: Options that limit the engine's work to a multiple of normal effort, on any machine the same.
    """

    fits: Callable[[Topology, Collective], bool]
    limits: Callable[[float], dict[str, Any]]


_WORK = per_transfer(0.4)
"""The usual work: microseconds per transfer and hop (measured)."""


def _no_obstacle(_topology: Topology, _collective: Collective) -> str:
    return ""


def _no_limit(_topology: Topology, _collective: Collective, _memory: dict[str, Any]) -> float:
    return 0.0


def _as_given(
    _topology: Topology,
    _collective: Collective,
    counts: tuple[int, ...],
    _memory: dict[str, Any],
) -> Iterable[int]:
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine: its function, when it applies, what it costs, and how to search with it.

    Only `name` and `solve` are required. A search passes `solve` those of the following keywords that it has:
    ``progress``, a function to call with the share done; ``seed``; ``time_limit``, in seconds; ``within``, the sketch that
    the schedule must keep to; ``memory``, a dictionary for what is worth keeping between the chunk
    counts of one problem; and ``device``, ``"cpu"``, ``"cuda"`` or ``"auto"``. Its other keywords are the engine's options.

    Attributes:
        name: What users call it.
        solve: Makes a schedule of a topology and a collective. A collective whose number of chunks is open gets one
            that the engine chooses.
        obstacle: What the engine needs and does not find, or nothing. It may take some of the options.
        only_if_named: Why ``"auto"`` and comparisons leave it out unless it is named; empty if they do not.
        baseline: Whether it is a known algorithm. ``"auto"`` asks synthesizers first.
        work: About how many microseconds of one slow core it takes for a collective whose chunks are chosen. The last
            argument says whether it has solved the problem with another chunk count before.
        chunk_counts: The chunk counts to search, given the problem, those that are searched otherwise, and the memory.
            The next one is asked for after the engine has run with the last.
        limit_s: The seconds that schedules of many chunks approach, given the problem and the memory of a run; 0 if
            unknown.
        patience: The chunk search ends after this many counts in a row that hardly helped.
        patience_if_large: The same where bandwidth decides the time and not latency; `patience` if 0.
        random_starts: Whether to run it with several seeds, and keep the best schedule; it then has the option ``trials``.
        exact: How ``"auto"`` may ask it although it must be named.
        reference: Comparisons measure against the engine with the lowest positive number that solved the problem.
        nccl_names: What NCCL's tuner calls this algorithm, by collective kind.
        blind_options: The options for a network of which nothing is known.

    >>> import tacos
    >>> from tacos.synth import ENGINES
    >>> ring = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> ENGINES["ring"](ring, tacos.collective.all_gather(ring, "4KB"), order="rank").time_s
    6e-06
    >>> ENGINES["ring"].options
    ['order']
    """

    name: str
    solve: Callable[..., Schedule]
    obstacle: Callable[..., str] = _no_obstacle
    only_if_named: str = ""
    baseline: bool = False
    work: Callable[[Topology, Collective, bool], float] = _WORK
    chunk_counts: ChunkCounts = _as_given
    limit_s: Callable[[Topology, Collective, dict[str, Any]], float] = _no_limit
    patience: int = 2
    patience_if_large: int = 0
    random_starts: bool = False
    exact: Exact | None = None
    reference: int = 0
    nccl_names: Mapping[str, str] = field(default_factory=dict)
    blind_options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, topology: Topology, collective: Collective, **options: Any) -> Schedule:
        """Make a schedule; the arguments are those of `solve`."""
        return self.solve(topology, collective, **options).with_facts(engine=self.name)

    def check(self, topology: Topology, collective: Collective, **options: Any) -> None:
        """Refuse a problem that the engine cannot solve; of the options, its obstacle gets those that it takes.

        Raises:
            ValueError: One sentence that says what is missing.

        >>> import tacos
        >>> from tacos.synth import ENGINES
        >>> ENGINES["bruck"].check(tacos.topology.ring(6), tacos.collective.all_gather(8, "1MB"))
        Traceback (most recent call last):
            ...
        ValueError: the collective is for 8 NPUs, the topology has 6
        """
        if collective.npus != topology.npus:
            raise ValueError(
                f"the collective is for {collective.npus} NPUs, the topology has {topology.npus}"
            )
        asked = {
            name: options[name] for name in signature(self.obstacle).parameters if name in options
        }
        if needed := self.obstacle(topology, collective, **asked):
            raise ValueError(f"{self.name} needs {needed}")

    def applies(self, topology: Topology, collective: Collective) -> bool:
        """Whether ``"auto"`` and comparisons ask the engine for this problem."""
        return not self.only_if_named and not self.obstacle(topology, collective)

    @property
    def keeps_sketches(self) -> bool:
        """Whether it can be told what a schedule may use; other engines' schedules are only checked."""
        return "within" in self._keywords()

    @property
    def options(self) -> list[str]:
        """The names of the options that users can give."""
        found = [name for name in self._keywords() if name not in _HIDDEN]
        return [*found, "trials"] if self.random_starts else found

    @property
    def takes_any_option(self) -> bool:
        """Whether `solve` takes keywords that it does not name."""
        parameters = signature(self.solve).parameters.values()
        return any(parameter.kind == Parameter.VAR_KEYWORD for parameter in parameters)

    def supplied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values, by keyword, that a search passes on to `solve`.

        >>> from tacos.synth import ENGINES
        >>> ENGINES["greedy"].supplied({"seed": 3, "memory": {}})
        {'seed': 3}
        """
        known = self._keywords()
        return {name: values[name] for name in _FROM_THE_SEARCH if name in values and name in known}

    def _keywords(self) -> list[str]:
        parameters = signature(self.solve).parameters
        return [name for name, one in parameters.items() if one.kind == Parameter.KEYWORD_ONLY]
