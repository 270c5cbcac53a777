"""Engines: algorithms that produce schedules.

:data:`ENGINES` is the table of their records (:class:`~tacos.synth.engine.Engine`) by name: first the synthesizers, which fit a
schedule to the network, then the baselines, which are known algorithms, then those of plug-ins. :func:`applicable` lists those that apply to a network
and a collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos._support.deferred import Records
from tacos._support.plugins import Table
from tacos.errors import nearest
from tacos.synth.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tacos._core import Collective, Topology

__all__ = [
    "ENGINES",
    "applicable",
    "check_options",
    "concerned",
    "obstacle",
    "references",
    "with_unaware",
]

_OWN: Records[Engine] = Records(
    {
        name: f"tacos.synth.{record}"
        for name, record in {
            "symmetric": "symmetric.ENGINE",
            "balanced": "balanced.ENGINE",
            "forest": "forest.ENGINE",
            "greedy": "greedy.ENGINE",
            "owners": "owners.ENGINE",
            "steiner": "steiner.ENGINE",
            "exchange": "exchange.ENGINE",
            "leaders": "leaders.ENGINE",
            "milp": "milp.ENGINE",
            "nccl": "baselines.nccl.NCCL",
            "nccl-unaware": "baselines.nccl.unaware.NCCL_UNAWARE",
            "ring": "baselines.rings.RING",
            "bidirectional-ring": "baselines.rings.BIDIRECTIONAL_RING",
            "direct": "baselines.direct.DIRECT",
            "one-shot": "baselines.direct.ONE_SHOT",
            "halving-doubling": "baselines.doubling.HALVING_DOUBLING",
            "double-binary-tree": "baselines.trees.DOUBLE_BINARY_TREE",
            "c-cube": "baselines.trees.C_CUBE",
            "bruck": "baselines.doubling.BRUCK",
            "2d-ring": "baselines.grids.TWO_D_RING",
            "hierarchical": "baselines.grids.HIERARCHICAL",
            "swing": "baselines.grids.SWING",
            "themis": "baselines.themis.THEMIS",
            "multitree": "baselines.multitree.MULTITREE",
            "parameter-server": "baselines.servers.PARAMETER_SERVER",
            "in-network": "baselines.in_network.IN_NETWORK",
        }.items()
    }
)


def _obstacle(name: str, record: Engine) -> str:
    """Return what is wrong with a plug-in's record, whose schedules name the engine."""
    if name == "auto" or "," in name:
        return f'an engine cannot be named "{name}"'
    return "" if record.name == name else f'its record is named "{record.name}"'


ENGINES = Table("tacos.engines", Engine, _OWN, _obstacle)
"""All engines by name, in the order in which they are listed; an engine's module is imported when the engine is used."""


def applicable(topology: Topology, collective: Collective) -> list[str]:
    """Return the names of the engines that apply, synthesizers first, without those that must be requested by name.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(5)
    >>> applicable(topo, tacos.collective.send_recv(topo, [(0, 1, "1KB")]))
    ['balanced', 'greedy', 'nccl', 'direct']
    """
    return [name for name, one in concerned(topology).items() if one.applies(topology, collective)]


def concerned(topology: Topology) -> dict[str, Engine]:
    """Return the engines that a network concerns: without those that do not know of faults if it has none.

    >>> from tacos.topology import degrade, ring
    >>> sorted(concerned(degrade(ring(4), 0, factor=0.5)).keys() - concerned(ring(4)).keys())
    ['nccl-unaware']
    """
    healthy = topology.faults is None
    return {name: one for name, one in ENGINES.items() if not (healthy and one.unaware)}


def obstacle(engine: str, topology: Topology, collective: Collective) -> str:
    """Return the requirement of an engine that is not met; empty if all are met.

    >>> import tacos
    >>> topo = tacos.topology.mesh(3, 3)
    >>> obstacle("one-shot", topo, tacos.collective.broadcast(topo, "1KB"))
    'all-reduce, not broadcast'
    """
    record = ENGINES[engine]
    return record.obstacle(topology, collective) or record.only_if_named


def references() -> list[str]:
    """Return the names of the reference engines, beginning with what users run today.

    >>> references()
    ['nccl', 'nccl-unaware', 'ring']
    """
    found = [engine for engine in ENGINES.values() if engine.reference]
    return [engine.name for engine in sorted(found, key=lambda engine: engine.reference)]


def with_unaware(engines: Iterable[str], topology: Topology) -> list[str]:
    """Return the names of engines, each followed by the engine that gives its answer without knowledge of the network's faults.

    >>> from tacos.topology import degrade, ring
    >>> with_unaware(["nccl", "ring"], ring(4)), with_unaware(["nccl"], degrade(ring(4), 0, factor=0.5))
    (['nccl', 'ring'], ['nccl', 'nccl-unaware'])
    """
    if topology.faults is None:
        return list(engines)
    records = [record for record in ENGINES.values() if record.unaware]
    return list(
        dict.fromkeys(
            name
            for engine in engines
            for name in (engine, *(one.name for one in records if one.unaware == engine))
        )
    )


def check_options(engine: str, options: Iterable[str], own: Collection[str] = ()) -> None:
    """Refuse options that an engine does not take; `own` are the arguments of the function called.

    Raises:
        TypeError: An option is unknown; the message suggests the nearest one.
        ValueError: Options were given for ``"auto"``, which takes none.

    >>> check_options("ring", ["ordr"])
    Traceback (most recent call last):
    TypeError: the engine "ring" has no option 'ordr'; did you mean 'order'?
    """
    record = None if engine == "auto" else ENGINES[engine]
    for name in options:
        known = record.options if record else []
        if name in known or (record and record.takes_any_option):
            continue
        if close := nearest(name, [*own, *known]):
            whose = (
                "synthesize() has no argument"
                if close in own
                else f'the engine "{engine}" has no option'
            )
            raise TypeError(f"{whose} {name!r}; did you mean {close!r}?")
        taking = [other.name for other in ENGINES.values() if name in other.options]
        if record is None and taking:
            raise ValueError(
                f"options need a named engine, not auto: {name} is for {', '.join(taking)}"
            )
        if record is None:
            raise TypeError(
                f"synthesize() has no argument {name!r}, and no engine has such an option"
            )
        allowed = f"its options are {', '.join(known)}" if known else "it takes none"
        raise TypeError(f'the engine "{engine}" has no option {name!r}; {allowed}')
