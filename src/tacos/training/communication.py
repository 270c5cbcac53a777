"""Communication: what the collectives of a step cost on a network.

All groups of a kind communicate at the same time, and links that several of them use are shared. A group stands for all groups
that are laid out on boxes alike; the rings of all of them are laid on the network, and the link that they load most decides how
much slower each group is than it would be alone.

A cost is computed for sizes that are powers of two (of four if algorithms are synthesized), once, and interpolated between them.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from math import ceil, exp, floor, log, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.collective import all_gather, all_reduce, all_to_all, reduce_scatter
from tacos.execution import execution
from tacos.library import Plans, fingerprint
from tacos.program import lower
from tacos.schedule import routes
from tacos.search.synthesis import check_engine, synthesize
from tacos.synth.baselines.nccl import parameters as p
from tacos.synth.baselines.nccl.channels import network_of
from tacos.synth.baselines.nccl.tuner import Group, choose
from tacos.topology.edits import reweighted, subset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Schedule, Topology

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
"""The same for the largest size."""
LAUNCH_S = 4e-6
"""Seconds that a collective takes besides what NCCL's tuner counts: a kernel's start on the device (chosen)."""


class Communication:
    """What collectives and messages cost on a topology.

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
        """Seconds before the first byte of each message arrives, and bytes per second from then on."""
        topology, label = self.topology, self.network.label
        table = routes(topology, pairs=(sources, targets))
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
        """Return the network with what messages reach on its links, for simulations of all transfers."""
        topology, label = self.topology, self.network.label
        inside = label[topology.link_src] == label[topology.link_dst]
        one = self.of(np.arange(topology.npus, dtype=np.int32)[None]).group.generation
        return _reached(topology, inside, one.link_efficiency, np.ones(topology.links))


@lru_cache(maxsize=64)
def communication(topology: Topology, collectives: str = "nccl") -> Communication:
    """Return the costs on a topology, with what was found before.

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
        # Synthesis takes longer than NCCL's formulas, so that fewer sizes are looked up.
        step = 1 if self.costs.collectives == "nccl" else 2
        place = min(max(log2(size), _SMALLEST), _LARGEST) / step
        low, high = step * floor(place), step * ceil(place)
        first = self._at(kind, low)
        if low == high:
            return first
        part = (place * step - low) / step
        return exp(log(first) + part * (log(self._at(kind, high)) - log(first)))

    def _at(self, kind: str, power: int) -> float:
        key = kind, power
        if key not in self._known:
            size, costs = 1 << power, self.costs
            time_s = self.nccl(kind, size)
            # Stock NCCL is there as well, so that no other choice costs more.
            if costs.plans is not None:
                time_s = min(self.tuned(kind, size, costs.plans) or time_s, time_s)
            elif costs.collectives != "nccl":
                time_s = min(self.synthesized(kind, size, costs.collectives), time_s)
            self._known[key] = time_s
        return self._known[key]

    @cached_property
    def first(self) -> NDArray[np.int32]:
        """The group with members in the most boxes, which stands for all: it is the slowest."""
        label = np.sort(self.costs.network.label[self.groups], axis=1)
        spans = (np.diff(label, axis=1) > 0).sum(axis=1)
        found: NDArray[np.int32] = self.groups[int(np.argmax(spans))]
        return found

    @cached_property
    def group(self) -> Group:
        """The channels of the first group."""
        return Group(self.costs.network, self._part("all_reduce", 1 << 20))

    def _part(self, kind: str, size: int) -> Any:
        build = KINDS[kind]
        return build(self.topology, size, group=self.first.tolist()).parts[0]

    def nccl(self, kind: str, size: int) -> float:
        """Seconds that stock NCCL takes."""
        group = self.group.of(self._part(kind, size))
        best = choose(group).candidates[0]
        how = "pairs" if best.algorithm == "direct" else "ring"
        return LAUNCH_S + best.steps_s + best.bytes_s * self._share(how)

    def _share(self, how: str) -> float:
        """How much longer the bytes take because other groups use the same links."""
        if how not in self._shares:
            load = self._load(how)
            used = load > 0
            if not used.any() or len(self.groups) == 1:
                self._shares[how] = 1.0
            else:
                speed = self.group._speeds
                alone = self._load(how, alone=True)
                busy = alone > 0
                own = float((speed[busy] / alone[busy]).min())
                self._shares[how] = max(1.0, own / float((speed[used] / load[used]).min()))
        return self._shares[how]

    def _load(self, how: str, *, alone: bool = False) -> NDArray[np.float64]:
        """The share of a group's bytes that each link carries, added up over all groups or for the first alone."""
        key = f"{how}{alone}"
        if key not in self._loads:
            groups = self.first[None] if alone else self.groups
            if how == "ring":
                place = {npu: i for i, npu in enumerate(self.first.tolist())}
                orders = np.array([[place[npu] for npu in ring] for ring in self.group.rings])
                weight = 1.0 / len(orders)
                source = groups[:, orders]
                target = groups[:, np.roll(orders, -1, axis=1)]
            else:
                n = groups.shape[1]
                i, j = np.divmod(np.arange(n * n), n)
                i, j = i[i != j], j[i != j]
                weight = 1.0 / n
                source, target = groups[:, i], groups[:, j]
            table = routes(self.topology, pairs=(source.ravel(), target.ravel()))
            count = np.bincount(table.links, minlength=self.topology.links)
            self._loads[key] = weight * count.astype(np.float64)
        return self._loads[key]

    def synthesized(self, kind: str, size: int, engine: str) -> float:
        """Seconds that a synthesized algorithm takes on the links that are left to one group."""
        return LAUNCH_S + _executed_s(self.schedule(kind, size, engine))

    def algorithm(self, kind: str, size: int) -> Schedule:
        """The algorithm that each group uses: the one that was asked for, or NCCL's where that is faster."""
        engine = self.costs.collectives
        if engine != "nccl" and self.nccl(kind, size) < self.synthesized(kind, size, engine):
            engine = "nccl"
        return self.schedule(kind, size, engine)

    def schedule(self, kind: str, size: int, engine: str) -> Schedule:
        """A synthesized algorithm for the links that are left to one group."""
        network = self._own()
        return synthesize(network, KINDS[kind](network, size), engine=engine, effort="fast", seed=0)

    def tuned(self, kind: str, size: int, plans: Plans) -> float | None:
        """Seconds that the tuned algorithm for the group takes; None where there is none."""
        members = self.first.tolist()
        for network, group in (
            (fingerprint(self.topology), members),
            (fingerprint(subset(self.topology, members)), list(range(len(members)))),
        ):
            fitting = Plans(plans.folder, [one for one in plans.plans if one.topology == network])
            plan = fitting.choose(kind, group, size).plan
            if plan is not None:
                schedule = fitting.schedule(plan)
                found = execution(lower(schedule), schedule.topology, size=size)
                time_s = (
                    found.time_ps() * 1e-12 if found else schedule.time_s * size / plan.size_bytes
                )
                return LAUNCH_S + time_s * self._share("ring")
        return None

    def _own(self) -> Topology:
        """The network of the first group: its NPUs, and of each link what other groups leave.

        Links carry what NCCL's channels reach on them, and a message takes at least as long to start as with NCCL's Simple protocol.
        """
        if self._network is None:
            topology, one = self.topology, self.group.generation
            used, own = self._load("ring"), self._load("ring", alone=True)
            shared = np.where(own > 0, np.maximum(used / np.maximum(own, 1e-12), 1.0), 1.0)
            changed = _reached(topology, self.group.inside, one.link_efficiency, shared)
            self._network = subset(changed, self.first.tolist())
        return self._network


def _reached(
    topology: Topology,
    inside: NDArray[np.bool_],
    efficiency: float,
    shared: NDArray[np.float64],
) -> Topology:
    """The network with the bandwidths that NCCL's channels reach, and the latencies of its Simple protocol."""
    share = np.where(inside, efficiency, p.NIC_EFFICIENCY) / shared
    leaves = topology.link_src < topology.npus
    least = np.where(inside, p.BOX_HOP_US["ring"][2], p.NET_HOP_US["ring"][2]) * 1e6
    latency = np.where(
        leaves, np.maximum(topology.link_latency_ps, least), topology.link_latency_ps
    )
    return reweighted(
        topology,
        bandwidth_Bps=np.maximum(topology.link_bandwidth_Bps * share, 1).astype(np.int64),
        latency_ps=latency.astype(np.int64),
    )


def _executed_s(schedule: Schedule) -> float:
    """How long a schedule takes when it is executed, in seconds."""
    found = execution(schedule)
    return schedule.time_s if found is None else found.time_ps() * 1e-12
