"""Targets: what executes a schedule, by which rule for links it is judged, and what its programs can express.

A target is the schedule itself, any program of messages, a carrier that moves messages directly, or a format whose files an
executor reads. Where programs cannot express sums in switches, a search uses such switches only to forward
(:func:`usable`), and the bound beside its answer is the bound of that network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tacos.bound import bound
from tacos.nodes import Network, topology_of
from tacos.topology.edits import forwarding_only

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Topology
    from tacos.bound import Bound

__all__ = [
    "RULES",
    "Rule",
    "Target",
    "bound_for",
    "check_held",
    "check_target",
    "in_switch_bound",
    "target_of",
    "targets",
    "usable",
]

Rule = Literal["order", "first-come", "shared"]
RULES: tuple[Rule, ...] = ("order", "first-come", "shared")
"""How links serve messages: in the schedule's order; first come, first served; shared fairly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What executes schedules.

    Attributes:
        name: Its name; empty if nothing in particular was named.
        rules: The rules for links by which schedules are judged; the slowest counts.
        format: The format of its files; empty if it takes schedules directly.
        switch_sums: Whether it can multicast and reduce in switches.
    """

    name: str = ""
    rules: tuple[Rule, ...] = ("shared",)
    format: str = ""
    switch_sums: bool = False

    def obstacle(self, collective: Collective) -> str:
        """Return why its programs cannot hold a collective; empty if they can.

        >>> import tacos
        >>> target_of("mscclpp").obstacle(tacos.collective.broadcast(4, "1MB"))
        'execution plans hold one of all-reduce, all-gather, reduce-scatter, all-to-all, not broadcast'
        """
        from tacos.formats import FORMATS

        executor = FORMATS[self.format].executor if self.format else None
        return executor.obstacle(collective) if executor and executor.obstacle else ""


_ANY = Target(rules=RULES, switch_sums=True)
_WITHOUT_FILES = {
    one.name: one
    for one in (
        Target(name="schedule", rules=("order",), switch_sums=True),
        Target(name="program", rules=RULES),
        Target(name="tcp"),
        Target(name="nccl"),
    )
}
"""Targets that take schedules directly, without a file."""


def targets() -> list[str]:
    """Return the names that ``target=`` takes: everything that can execute a schedule.

    These are the schedule itself, programs in general, the carriers that move a schedule's messages directly, and all
    formats that have an executor.

    >>> targets()
    ['schedule', 'program', 'tcp', 'nccl', 'msccl', 'mscclpp']
    """
    from tacos.formats import FORMATS

    return [*_WITHOUT_FILES, *sorted(name for name, format in FORMATS.items() if format.executor)]


def check_target(target: str | None) -> None:
    """Raise a ValueError if there is no such target.

    >>> check_target("gloo")
    Traceback (most recent call last):
    ValueError: target must be one of schedule, program, tcp, nccl, msccl, mscclpp; got 'gloo'
    """
    if target is not None and target not in _WITHOUT_FILES and target not in targets():
        raise ValueError(f"target must be one of {', '.join(targets())}; got {target!r}")


def target_of(target: str | None) -> Target:
    """Return the target of a name; without a name, the slowest of all rules counts and nothing is ruled out.

    Raises:
        ValueError: There is no such target.

    >>> target_of("mscclpp").rules, target_of(None).rules
    (('shared',), ('order', 'first-come', 'shared'))
    """
    check_target(target)
    if target is None:
        return _ANY
    if target in _WITHOUT_FILES:
        return _WITHOUT_FILES[target]
    from tacos.formats import FORMATS

    executor = FORMATS[target].executor
    return Target(
        name=target, format=target, switch_sums=executor is not None and executor.switch_sums
    )


def usable(topology: Network, target: str | None) -> Topology:
    """Return what a target's programs can use of a network: the network itself, or one whose switches only forward.

    The result has the same nodes and links, and is the same object if nothing is ruled out.

    >>> import tacos
    >>> box = tacos.topology.switch(4, multicast=True, reduce=True)
    >>> usable(box, "schedule") is box, usable(box, "tcp") == tacos.topology.switch(4)
    (True, True)
    """
    topology = topology_of(topology)
    return topology if target_of(target).switch_sums else forwarding_only(topology)


def bound_for(
    topology: Network,
    collective: Collective,
    target: str | None,
    *,
    progress: Callable[[float], object] | None = None,
) -> Bound:
    """Return a time that no schedule for a target beats, with the bound that sums in switches would have.

    >>> import tacos
    >>> boxes = tacos.topology.switch(8, multicast=True, reduce=True)
    >>> found = bound_for(boxes, tacos.collective.all_reduce(boxes, "1GB"), "mscclpp")
    >>> found.time_ps > found.in_switch_ps
    True
    """
    topology = topology_of(topology)
    found = bound(usable(topology, target), collective, progress=progress)
    return replace(found, in_switch_ps=in_switch_bound(topology, collective, target, found.time_ps))


def in_switch_bound(
    topology: Topology, collective: Collective, target: str | None, bound_ps: int
) -> int | None:
    """Return the bound with sums in switches, in picoseconds, if it is below the bound of a target without them; else None."""
    if usable(topology, target) is topology:
        return None
    whole = bound(topology, collective).time_ps
    return whole if whole < bound_ps else None


def check_held(collective: Collective, target: str | None, what: str = "") -> None:
    """Refuse a collective that a target's programs cannot hold.

    Args:
        collective: The collective.
        target: The target.
        what: What asks for the target, such as an option and its value; by default the target itself.

    Raises:
        ValueError: The target cannot hold it, or there is no such target.

    >>> import tacos
    >>> check_held(tacos.collective.gather(4, "1MB"), "msccl")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: target is "msccl", but MSCCL files of the dialect msccl hold one of ..., not gather; use another target: ...
    """
    if why := target_of(target).obstacle(collective):
        if what:
            raise ValueError(f"{what}, but {why}")
        *able, last = [name for name in targets() if not target_of(name).obstacle(collective)]
        others = f"{', '.join(able)} or {last}"
        raise ValueError(f'target is "{target}", but {why}; use another target: {others}')
