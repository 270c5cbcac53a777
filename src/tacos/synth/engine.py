"""The record of an engine: a function that produces schedules, and what a search must know to use it.

Each engine's :class:`Engine` record is in the file of its code; :data:`tacos.synth.ENGINES` lists the records. Searches,
comparisons, the command and the tests read the records, so a new engine needs no change anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from tacos._core import Meter

if TYPE_CHECKING:
    from tacos._core import Collective, Schedule, Topology
    from tacos.nodes import Node
    from tacos.synth.baselines.nccl.parameters import Generation
    from tacos.synth.requirements import Dims
    from tacos.units import Quantity

__all__ = ["Engine", "Exact", "Meter", "Options"]

ChunkCounts: TypeAlias = Callable[
    ["Topology", "Collective", tuple[int, ...], dict[str, Any]], Iterable[int]
]

_FROM_THE_SEARCH = (
    *("progress", "seed", "time_limit", "within", "memory", "device"),
    "most_transfers",
)
"""Keywords that a search fills in for the engines that have them."""
_HIDDEN = ("progress", "within", "memory", "most_transfers")
"""Keywords that callers of :func:`tacos.search.synthesis.synthesize` cannot pass."""


class Options(TypedDict, total=False):
    """The options of all engines, as :func:`tacos.search.synthesis.synthesize` takes them; each engine has some of them."""

    algorithm: str | None
    channels: int | None
    columns: int
    dims: Dims | None
    dtype: str
    epoch: Quantity | None
    generation: str | Generation | None
    mtu: int
    nodes: int | None
    order: str | Sequence[Node] | None
    pool: int
    protocol: str | None
    roots: Sequence[Node] | None
    scheduling: str
    servers: int | Sequence[Node]
    symmetry: bool
    threads: int
    trials: int


@dataclass(frozen=True, slots=True)
class Exact:
    """How ``"auto"`` may use an engine that finds optimal schedules of small problems.

    Attributes:
        fits: Whether a problem whose chunks are chosen is small enough.
        limits: Options that limit the engine's work to a multiple of the normal effort, independent of the machine.
    """

    fits: Callable[[Topology, Collective], bool]
    limits: Callable[[float], dict[str, Any]]


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
    """An engine: its function, its requirements, its cost, and how to search with it.

    Only `name` and `solve` are required. A search passes those of the following keywords that `solve` accepts:
    ``progress``, a function to call with the share done; ``seed``; ``time_limit``, in seconds; ``within``, the sketch that
    the schedule must obey; ``memory``, a dictionary of results to reuse for other chunk
    counts of the same problem; ``device``, ``"cpu"``, ``"cuda"`` or ``"auto"``; and ``most_transfers``, beyond which a schedule
    could not be judged. Its other keywords are the engine's options.

    Attributes:
        name: The engine's name.
        solve: Returns a schedule for a topology and a collective. If the collective's number of chunks is open, the
            engine chooses it.
        obstacle: Returns a requirement that is not met, or an empty string. It may take some of the options.
        only_if_named: Why ``"auto"`` and comparisons use the engine only if it is named; empty if they always use it.
        baseline: Whether it is a known algorithm. ``"auto"`` runs synthesizers first.
        chunk_counts: Yields the chunk counts to search, given the problem, the default counts, and the memory. The next
            count is requested after the engine has run with the previous one.
        limit_s: Returns the time in seconds that schedules of many chunks approach, given the problem and the memory; 0
            if it is unknown.
        patience: The chunk search ends after this many consecutive counts that hardly helped.
        random_starts: Whether to run it with several seeds, and keep the best schedule; it then has the option ``trials``.
        exact: How ``"auto"`` may use it although it must be named otherwise.
        lists: Whether its schedules list every transfer, which is the least work that they take; those of other engines may store
            the transfers of one NPU and a symmetry.
        reference: Comparisons measure against the engine with the lowest positive number that solved the problem, the fastest
            if there are several.
        unaware: The engine whose answer this one gives without knowledge of a network's faults. It is run wherever that engine is named,
            and mentioned only on networks that have faults.
        nccl_names: NCCL's name of this algorithm, by collective kind.
        blind_options: The options for an unknown network.

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
    chunk_counts: ChunkCounts = _as_given
    limit_s: Callable[[Topology, Collective, dict[str, Any]], float] = _no_limit
    patience: int = 2
    random_starts: bool = False
    exact: Exact | None = None
    lists: bool = True
    reference: int = 0
    unaware: str = ""
    nccl_names: Mapping[str, str] = field(default_factory=dict)
    blind_options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, topology: Topology, collective: Collective, **options: object) -> Schedule:
        """Return a schedule; the arguments are those of `solve`."""
        return self.solve(topology, collective, **options).with_facts(engine=self.name)

    def check(self, topology: Topology, collective: Collective, **options: object) -> None:
        """Refuse a problem that the engine cannot solve; `obstacle` receives those options that it takes.

        Raises:
            ValueError: A requirement is not met; the message names it.

        >>> import tacos
        >>> from tacos.synth import ENGINES
        >>> ENGINES["bruck"].check(tacos.topology.ring(6), tacos.collective.all_gather(8, "1MB"))
        Traceback (most recent call last):
            ...
        ValueError: the collective is for 8 NPUs, but the topology has 6
        """
        if collective.npus != topology.npus:
            raise ValueError(
                f"the collective is for {collective.npus} NPUs, but the topology has {topology.npus}"
            )
        asked = {
            name: options[name] for name in signature(self.obstacle).parameters if name in options
        }
        if needed := self.obstacle(topology, collective, **asked):
            raise ValueError(f"{self.name} needs {needed}")

    def applies(self, topology: Topology, collective: Collective) -> bool:
        """Return whether ``"auto"`` and comparisons use the engine for this problem."""
        return not self.only_if_named and not self.obstacle(topology, collective)

    @property
    def keeps_sketches(self) -> bool:
        """Whether the engine obeys sketches by itself; other engines' schedules are only checked."""
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
        """Return the keyword arguments that a search passes to `solve`.

        >>> from tacos.synth import ENGINES
        >>> ENGINES["greedy"].supplied({"seed": 3, "memory": {}})
        {'seed': 3}
        """
        known = self._keywords()
        return {name: values[name] for name in _FROM_THE_SEARCH if name in values and name in known}

    def _keywords(self) -> tuple[str, ...]:
        return _keywords(self.solve)


@cache
def _keywords(solve: Callable[..., Schedule]) -> tuple[str, ...]:
    """Return the keywords of a function, which a search asks for in every step."""
    parameters = signature(solve).parameters
    return tuple(name for name, one in parameters.items() if one.kind == Parameter.KEYWORD_ONLY)
