"""Communication: what the collectives of a step cost on a network.

All groups of a kind communicate at the same time and share links. One group represents all groups that are laid out on boxes in
the same way. The rings of all groups are placed on the network, and the most loaded link determines how much slower each group
is than it would be alone.

A cost is computed for sizes that are powers of two, once, and interpolated between them. An algorithm is synthesized for sizes that
are powers of 16 (of four if its engine is named), and executed with the others.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property, lru_cache
from math import ceil, exp, floor, log, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.collective import all_gather, all_reduce, all_to_all, reduce_scatter
from tacos.errors import InfeasibleError
from tacos.execution import at_size, execution
from tacos.library import Plans, fingerprint
from tacos.program import lower
from tacos.program_nodes import nodes as program_nodes
from tacos.schedule import paths
from tacos.search.synthesis import check_engine, synthesize
from tacos.synth import ENGINES
from tacos.synth.baselines.nccl import parameters as p
from tacos.synth.baselines.nccl.channels import network_of
from tacos.synth.baselines.nccl.group import Group
from tacos.synth.baselines.nccl.knowledge import has_faults, known_networks
from tacos.synth.baselines.nccl.tuner import choose
from tacos.topology.edits import reweighted, subset
from tacos.topology.faults import broken, repaired
from tacos.topology.links import from_links

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Collective, ProgramNodes, Schedule, Topology

__all__ = ["KINDS", "LAUNCH_S", "Communication", "Family", "communication"]

KINDS = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
}
"""Collectives of training steps. The size is that of the whole buffer, as in :mod:`tacos.collective`."""

_SMALLEST = 10
"""Binary logarithm of the smallest size that is looked up, in bytes."""
_LARGEST = 36
"""Binary logarithm of the largest size that is looked up, in bytes."""
LAUNCH_S = 4e-6
"""Seconds that a collective takes in addition to NCCL's tuner's estimate: a kernel's start on the device (chosen)."""


class Communication:
    """The costs of collectives and messages on a topology.

    >>> import tacos, numpy as np
    >>> costs = Communication(tacos.topology.dgx_h100(2), "nccl")
    >>> one, rails = np.arange(16).reshape(1, 16), np.arange(16).reshape(2, 8).T.copy()
    >>> costs.of(one).seconds("all_reduce", 2**30) > costs.of(rails).seconds("all_reduce", 2**27)
    True

    Args:
        topology: The network.
        collectives: ``"nccl"``, ``"auto"``, the name of an engine, a directory of tuned algorithms, or ``"free"``.
    """

    def __init__(self, topology: Topology, collectives: str = "nccl") -> None:
        self.topology, self.collectives = topology, collectives
        self.plans = Plans.load(collectives) if Path(collectives).is_dir() else None
        if self.plans is None and collectives not in ("nccl", "auto", "free"):
            check_engine(collectives)
        self.network = network_of(topology)
        self.families: dict[tuple[bytes, int], Family] = {}
        self.pairs: dict[tuple[bytes, bytes], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def of(self, groups: NDArray[np.int32]) -> Family:
        """Return the costs of collectives that all groups run at once, one group per row."""
        key = groups.tobytes(), groups.shape[1]
        if key not in self.families:
            self.families[key] = Family(self, groups)
        return self.families[key]

    def messages(
        self, sources: NDArray[np.int32], targets: NDArray[np.int32], size: float
    ) -> NDArray[np.float64]:
        """Return how long each message of `size` bytes takes if all sources send to their targets at once."""
        if not len(sources) or size <= 0 or self.collectives == "free":
            return np.zeros(len(sources))
        key = sources.tobytes(), targets.tobytes()
        if key not in self.pairs:
            self.pairs[key] = self._pair_costs(sources, targets)
        latency, rate = self.pairs[key]
        return latency + size / rate

    def _pair_costs(
        self, sources: NDArray[np.int32], targets: NDArray[np.int32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the seconds until the first byte of each message arrives, and the bytes per second from then on."""
        topology, label = self.topology, self.network.label
        table = paths(topology, (sources, targets))
        load = np.maximum(np.bincount(table.links, minlength=topology.links), 1)
        inside = label[topology.link_src] == label[topology.link_dst]
        first = self.of(np.stack([sources, targets], axis=1)[:1])
        share = np.where(inside, first.group.generation.link_efficiency, p.NIC_EFFICIENCY)
        speed = (topology.link_bandwidth_Bps * share / load)[table.links]
        begin = table.link_begin[:-1]
        hop_s = np.add.reduceat(topology.link_latency_ps[table.links], begin) * 1e-12
        between = label[sources] != label[targets]
        least = np.where(between, p.NET_HOP_US["ring"][2], p.BOX_HOP_US["ring"][2]) * 1e-6
        return LAUNCH_S + np.maximum(hop_s, least), np.minimum.reduceat(speed, begin)

    def physical(self) -> Topology:
        """Return the network with the bandwidths that messages reach, for simulations of all transfers."""
        topology, label = self.topology, self.network.label
        one = self.of(np.arange(topology.npus, dtype=np.int32)[None]).group.generation
        return _reached(topology, label, one.link_efficiency, np.ones(topology.links))


@lru_cache(maxsize=64)
def communication(topology: Topology, collectives: str = "nccl") -> Communication:
    """Return the costs on a topology, with cached results.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> communication(topo) is communication(topo)
    True
    """
    return Communication(topology, collectives)


class Family:
    """Groups that run the same collective at once."""

    def __init__(self, costs: Communication, groups: NDArray[np.int32]) -> None:
        self.costs, self.groups = costs, groups
        self.topology = costs.topology
        self._known: dict[tuple[str, int], float] = {}
        self._shares: dict[str, float] = {}
        self._loads: dict[str, NDArray[np.float64]] = {}
        self._network: Topology | None = None

    def seconds(self, kind: str, size: float) -> float:
        """Return how long a collective of `size` bytes takes."""
        if self.groups.shape[1] < 2 or size <= 0 or self.costs.collectives == "free":
            return 0.0
        place = min(max(log2(size), _SMALLEST), _LARGEST)
        low, high = floor(place), ceil(place)
        first = self._at(kind, low)
        if low == high:
            return first
        return exp(log(first) + (place - low) * (log(self._at(kind, high)) - log(first)))

    def _at(self, kind: str, power: int) -> float:
        key = kind, power
        if key not in self._known:
            size, costs = 1 << power, self.costs
            time_s = self.nccl(kind, size)
            # Stock NCCL is always available, so no other choice costs more.
            if costs.plans is not None:
                time_s = min(self.tuned(kind, size, costs.plans) or time_s, time_s)
            elif costs.collectives != "nccl":
                time_s = min(self.synthesized(kind, size, costs.collectives), time_s)
            self._known[key] = time_s
        return self._known[key]

    @cached_property
    def first(self) -> NDArray[np.int32]:
        """The group that represents all because it is the slowest: members in the most boxes, then the slowest links."""
        topology, groups = self.topology, self.groups
        label = np.sort(self.costs.network.label[groups], axis=1)
        spans = (np.diff(label, axis=1) > 0).sum(axis=1)
        widest = np.flatnonzero(spans == spans.max())
        alike = np.ptp(topology.link_bandwidth_Bps[topology.link_src < topology.npus]) == 0
        if len(widest) > 1 and groups.shape[1] > 1 and not alike:
            rows = groups[widest]
            pairs = rows.ravel(), np.roll(rows, -1, axis=1).ravel()
            table = paths(topology, pairs)
            load = np.maximum(np.bincount(table.links, minlength=topology.links), 1)
            speed = (topology.link_bandwidth_Bps / load)[table.links]
            slowest = np.minimum.reduceat(speed, table.link_begin[:-1])
            widest = widest[[int(np.argmin(slowest.reshape(rows.shape).min(axis=1)))]]
        found: NDArray[np.int32] = groups[int(widest[0])]
        return found

    @cached_property
    def known(self) -> list[Group]:
        """The channels of the first group: those of NCCL that knows the network's faults, and those of NCCL that does not."""
        part = self._part("all_reduce", 1 << 20)
        return [Group(network, part) for network in known_networks(self.topology)]

    @property
    def group(self) -> Group:
        """The channels of the first group, on the network as it is."""
        return self.known[0]

    def _part(self, kind: str, size: int) -> Any:
        build = KINDS[kind]
        return build(self.topology, size, group=self.first.tolist()).parts[0]

    def nccl(self, kind: str, size: int) -> float:
        """Return the seconds that stock NCCL takes; on a network with faults, the faster of both that it may do."""
        return self.reference(kind, size)[0]

    def reference(self, kind: str, size: int) -> tuple[float, str]:
        """Return the seconds that stock NCCL takes, and the engine that does what it does."""
        found = []
        for group in self.known:
            best = choose(group.of(self._part(kind, size))).candidates[0]
            how = "pairs" if best.algorithm == "direct" else "ring"
            with suppress(InfeasibleError):  # it would send over a dead link
                share = self._share(how, group)
                found.append((LAUNCH_S + best.steps_s + best.bytes_s * share, group.network.name))
        return min(found)

    def _share(self, how: str, group: Group) -> float:
        """Return the slowdown caused by other groups on the same links."""
        key = f"{group.network.name} {how}"
        if key not in self._shares:
            load = self._load(how, group)
            used = load > 0
            if not used.any() or len(self.groups) == 1:
                self._shares[key] = 1.0
            else:
                speed = group.executed.speeds
                alone = self._load(how, group, alone=True)
                busy = alone > 0
                own = float((speed[busy] / alone[busy]).min())
                self._shares[key] = max(1.0, own / float((speed[used] / load[used]).min()))
        return self._shares[key]

    def _load(self, how: str, group: Group, *, alone: bool = False) -> NDArray[np.float64]:
        """Return the share of a group's bytes on each link, summed over all groups, or for the first group alone."""
        key = f"{group.network.name} {how} {alone}"
        if key not in self._loads:
            groups = self.first[None] if alone else self.groups
            if how == "ring":
                place = {npu: i for i, npu in enumerate(self.first.tolist())}
                orders = np.array([[place[npu] for npu in ring] for ring in group.rings])
                weight = 1.0 / len(orders)
                source = groups[:, orders]
                target = groups[:, np.roll(orders, -1, axis=1)]
            else:
                n = groups.shape[1]
                i, j = np.divmod(np.arange(n * n), n)
                i, j = i[i != j], j[i != j]
                weight = 1.0 / n
                source, target = groups[:, i], groups[:, j]
            table = group.executed.network.table(source.ravel(), target.ravel())
            load = np.bincount(table.links, table.shares, self.topology.links)
            self._loads[key] = weight * load.astype(np.float64)
        return self._loads[key]

    def synthesized(self, kind: str, size: int, engine: str) -> float:
        """Return the seconds that a synthesized algorithm takes on one group's share of the links."""
        return LAUNCH_S + _synthesized_s(self._own(), kind, size, engine)

    def algorithm(self, kind: str, size: int) -> tuple[ProgramNodes, Collective]:
        """Return the nodes of each group's algorithm: the requested one, or NCCL's if that is faster."""
        used = self._used(kind, size)
        if isinstance(used, str):
            return _sized(self._own(), kind, size, used)
        return program_nodes(lower(used), size=size, topology=used.topology)

    def schedule(self, kind: str, size: int) -> Schedule:
        """Return the schedule of each group's algorithm; a synthesized one may be for a nearby size."""
        used = self._used(kind, size)
        return (
            used
            if not isinstance(used, str)
            else _synthesized(self._own(), kind, _near(size, used), used)
        )

    def _used(self, kind: str, size: int) -> Schedule | str:
        """Return the tuned schedule that each group uses, or the engine that synthesizes one."""
        engine, plans = self.costs.collectives, self.costs.plans
        time_s, stock = self.reference(kind, size)
        if not has_faults(self._own()):
            stock = self.group.network.name
        if plans is not None:
            tuned = self._plan(kind, size, plans)
            if tuned is not None and tuned.topology.npus == self.groups.shape[1]:
                tuned_s = self.tuned(kind, size, plans)
                if tuned_s is not None and tuned_s <= time_s:
                    return tuned
            return stock
        if engine == "nccl" or time_s < self.synthesized(kind, size, engine):
            return stock
        return engine

    def tuned(self, kind: str, size: int, plans: Plans) -> float | None:
        """Return the seconds that the group's tuned algorithm takes; None if there is none."""
        schedule = self._plan(kind, size, plans)
        if schedule is None:
            return None
        found = execution(lower(schedule), schedule.topology, size=size)
        whole = schedule.time_s * size / schedule.collective.size_bytes
        time_s = found.time_ps() * 1e-12 if found else whole
        return LAUNCH_S + time_s * self._share("ring", self.group)

    def _plan(self, kind: str, size: int, plans: Plans) -> Schedule | None:
        """Return the tuned algorithm for the group, on the whole network or on the group's part of it."""
        members = self.first.tolist()
        networks = [(fingerprint(self.topology), members)]
        with suppress(ValueError):  # a part that is not connected has none
            part = fingerprint(subset(self.topology, members))
            networks.append((part, list(range(len(members)))))
        for network, group in networks:
            fitting = Plans(plans.folder, [one for one in plans.plans if one.topology == network])
            plan = fitting.choose(kind, group, size).plan
            if plan is not None:
                return fitting.schedule(plan)
        return None

    def _own(self) -> Topology:
        """Return the network of the first group: its NPUs, and each link's bandwidth that other groups leave.

        Links have the bandwidth that NCCL's channels reach, and messages at least the latency of NCCL's Simple protocol.
        """
        if self._network is None:
            topology, one = self.topology, self.group.generation
            used, own = (self._load("ring", self.group, alone=alone) for alone in (False, True))
            shared = np.where(own > 0, np.maximum(used / np.maximum(own, 1e-12), 1.0), 1.0)
            changed = _reached(topology, self.costs.network.label, one.link_efficiency, shared)
            members = self.first.tolist()
            try:
                self._network = subset(changed, members)
            except ValueError:  # they reach each other only through other NPUs
                self._network = _relayed(changed, members)
        return self._network


@lru_cache(maxsize=256)
def _synthesized(network: Topology, kind: str, size: int, engine: str) -> Schedule:
    """Return a schedule for a group, reused where groups of other families or networks are connected in the same way."""
    return synthesize(network, KINDS[kind](network, size), engine=engine, effort="fast", seed=0)


def _near(size: int, engine: str) -> int:
    """Round `size` to one for which an algorithm is synthesized, since synthesis is slow."""
    if engine != "auto" and ENGINES[engine].reference == 1:
        return size
    step = 4 if engine == "auto" else 2
    return 1 << min(max(step * round(log2(max(size, 1)) / step), _SMALLEST), _LARGEST)


def _sized(network: Topology, kind: str, size: int, engine: str) -> tuple[ProgramNodes, Collective]:
    """Return the nodes of a synthesized algorithm for a size."""
    schedule = _synthesized(network, kind, _near(size, engine), engine)
    try:
        return program_nodes(lower(schedule), size=size, topology=network)
    except ValueError:  # some chunks would be empty
        return program_nodes(_synthesized(network, kind, size, engine))


@lru_cache(maxsize=1 << 16)
def _synthesized_s(network: Topology, kind: str, size: int, engine: str) -> float:
    """Return how long a synthesized algorithm takes when it is executed, in seconds."""
    schedule = _synthesized(network, kind, _near(size, engine), engine)
    if size != schedule.collective.size_bytes:
        try:
            schedule = at_size(schedule, size)
        except ValueError:  # some chunks would be empty
            schedule = _synthesized(network, kind, size, engine)
    return schedule.executed_s


def _relayed(topology: Topology, members: list[int]) -> Topology:
    """Return a network for NPUs that are not connected directly: a link stands for a path through others.

    There is a link for each path that passes no other member; paths share their common links.
    """
    n = len(members)
    i, j = np.divmod(np.arange(n * n), n)
    i, j = i[i != j], j[i != j]
    npus = np.array(members)
    table = paths(topology, (npus[i], npus[j]))
    begin, lengths = table.link_begin[:-1], np.diff(table.link_begin)
    inside = np.isin(topology.link_dst[table.links], npus)
    inside[begin + lengths - 1] = False  # where it ends
    kept = np.add.reduceat(inside, begin) == 0
    load = np.bincount(table.links[np.repeat(kept, lengths)], minlength=topology.links)
    speed = (topology.link_bandwidth_Bps / np.maximum(load, 1))[table.links]
    wait = np.add.reduceat(topology.link_latency_ps[table.links], begin)
    return from_links(
        n,
        (
            i[kept],
            j[kept],
            np.maximum(np.minimum.reduceat(speed, begin)[kept], 1).astype(np.int64),
            wait[kept] * 1e-12,
        ),
    )


def _reached(
    topology: Topology,
    label: NDArray[np.int64],
    efficiency: float,
    shared: NDArray[np.float64],
) -> Topology:
    """Return the network with the bandwidths that NCCL's channels reach, and the latencies of its Simple protocol.

    It keeps the faults of its links, whose healthy speeds change alike.
    """
    found = reweighted(topology, **_speeds(topology, label, efficiency, shared))
    if not has_faults(topology):
        return found
    healthy, now = repaired(topology)
    left = np.flatnonzero(now >= 0)
    before = np.ones(healthy.links)
    before[left] = shared
    return broken(
        reweighted(healthy, **_speeds(healthy, label, efficiency, before)),
        np.arange(topology.nodes),
        left,
        bandwidth_Bps=found.link_bandwidth_Bps,
        latency_ps=found.link_latency_ps,
    )


def _speeds(
    topology: Topology,
    label: NDArray[np.int64],
    efficiency: float,
    shared: NDArray[np.float64],
) -> dict[str, NDArray[np.int64]]:
    """Return the bandwidths that NCCL's channels reach on links, and the latencies of its Simple protocol."""
    inside = label[topology.link_src] == label[topology.link_dst]
    share = np.where(inside, efficiency, p.NIC_EFFICIENCY) / shared
    leaves = topology.link_src < topology.npus
    least = np.where(inside, p.BOX_HOP_US["ring"][2], p.NET_HOP_US["ring"][2]) * 1e6
    latency = np.where(
        leaves, np.maximum(topology.link_latency_ps, least), topology.link_latency_ps
    )
    return {
        "bandwidth_Bps": np.maximum(topology.link_bandwidth_Bps * share, 1).astype(np.int64),
        "latency_ps": latency.astype(np.int64),
    }
