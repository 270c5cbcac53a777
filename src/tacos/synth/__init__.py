"""Engines: ways to make a schedule.

``ENGINES`` holds them by name: the symmetric, forest, greedy and milp synthesizers, and the baselines, the
algorithms everybody knows. :func:`applicable` says which of them suit a network and a collective.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

from tacos.errors import nearest
from tacos.synth import baselines
from tacos.synth.baselines import BASELINES
from tacos.synth.forest import forest
from tacos.synth.forest import obstacle as forest_obstacle
from tacos.synth.greedy import greedy
from tacos.synth.milp import milp
from tacos.synth.milp import obstacle as milp_obstacle
from tacos.synth.symmetric import obstacle as symmetric_obstacle
from tacos.synth.symmetric import symmetric

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tacos._core import Collective, Schedule, Topology

__all__ = ["BASELINES", "ENGINES", "applicable", "check_options", "obstacle"]

ENGINES: dict[str, Callable[..., Schedule]] = {
    "symmetric": symmetric,
    "forest": forest,
    "greedy": greedy,
    "milp": milp,
    **BASELINES,
}


def applicable(topology: Topology, collective: Collective) -> list[str]:
    """Names of the engines that apply, the synthesizers first; without milp, which has to be named.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(5)
    >>> applicable(topo, tacos.collective.send_recv(topo, [(0, 1, "1KB")]))
    ['greedy', 'nccl', 'direct']
    """
    return [name for name in ENGINES if not obstacle(name, topology, collective)]


def obstacle(engine: str, topology: Topology, collective: Collective) -> str:
    """What an engine needs and does not find, or nothing.

    >>> import tacos
    >>> topo = tacos.topology.mesh(3, 3)
    >>> obstacle("one-shot", topo, tacos.collective.broadcast(topo, "1KB"))
    'all-reduce, not broadcast'
    """
    if engine == "symmetric":
        return symmetric_obstacle(topology, collective)
    if engine == "forest":
        return forest_obstacle(topology, collective)
    if engine == "milp":
        # Nobody wants to wait for it without having asked.
        return milp_obstacle(topology, collective) or "to be named: it takes all the time it gets"
    if engine in BASELINES:
        return baselines.obstacle(engine, topology, collective)
    return ""


def check_options(engine: str, options: Iterable[str], own: Collection[str] = ()) -> None:
    """Refuse options that an engine does not take; `own` are the arguments of the function called.

    Raises:
        TypeError: An unknown option; the message suggests the one that was meant.
        ValueError: Options for ``"auto"``, which passes none on.

    >>> check_options("ring", ["ordr"])
    Traceback (most recent call last):
    TypeError: the engine "ring" has no option 'ordr'; did you mean 'order'?
    """
    for name in options:
        known = [] if engine == "auto" else _options(engine)
        if name in known or (engine != "auto" and _takes_anything(engine)):
            continue
        if close := nearest(name, [*own, *known]):
            whose = (
                "synthesize() has no argument"
                if close in own
                else f'the engine "{engine}" has no option'
            )
            raise TypeError(f"{whose} {name!r}; did you mean {close!r}?")
        taking = [other for other in ENGINES if name in _options(other)]
        if engine == "auto" and taking:
            raise ValueError(
                f"options need a named engine, not auto: {name} is for {', '.join(taking)}"
            )
        if engine == "auto":
            raise TypeError(
                f"synthesize() has no argument {name!r}, and no engine has such an option"
            )
        allowed = f"its options are {', '.join(known)}" if known else "it takes none"
        raise TypeError(f'the engine "{engine}" has no option {name!r}; {allowed}')


def _takes_anything(engine: str) -> bool:
    parameters = signature(ENGINES[engine]).parameters.values()
    return any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)


def _options(engine: str) -> list[str]:
    """What can be given to an engine beside the problem; some arguments are set by the caller."""
    found = [
        name
        for name, parameter in signature(ENGINES[engine]).parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY and name not in ("progress", "packed", "within")
    ]
    return [*found, "trials"] if engine == "greedy" else found
