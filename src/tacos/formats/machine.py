"""A machine as devices and cables, and the topology of one or several such machines.

Descriptions of real machines (`nccl_topo`, `nvidia_smi`) list GPUs, NICs, PCIe bridges and CPUs. GPUs
become NPUs; everything else between them becomes a switch. Dead ends are left out: NICs of a single machine,
ports far slower than the fastest (management ports), and bridges with nothing behind them. A bridge that only
forwards is part of its link.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacos.topology.links import Links, assemble, check_count, raise_if_disconnected, whole_number

if TYPE_CHECKING:
    from tacos._core import Topology

__all__ = ["Cable", "Machine"]

_MANAGEMENT = 4  # a NIC this many times slower than the fastest is not part of the fabric


class Cable(NamedTuple):
    """Two directed links between devices, equal in both directions."""

    a: int
    b: int
    bandwidth_Bps: int
    latency_ps: int


@dataclass
class Machine:
    """Devices by number, in the order they were added, and the cables between them.

    >>> box = Machine()
    >>> a, b = box.add("gpu", "gpu0"), box.add("gpu", "gpu1")
    >>> cpu, nic = box.add("cpu", "cpu0"), box.add("nic", "mlx5_0", 25 * 10**9)
    >>> for device in (a, b, nic):
    ...     box.join(device, cpu, 12 * 10**9, 250_000)
    >>> box.topology()
    <tacos.Topology machine: 2 NPUs, 1 switch, 4 links>
    >>> box.topology(boxes=4).names[-3:]
    ['box3/cpu0', 'box3/mlx5_0', 'fabric']
    """

    kinds: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    cables: list[Cable] = field(default_factory=list)
    nic_Bps: dict[int, int] = field(default_factory=dict)
    """Bandwidth of each NIC's link to the fabric."""

    def add(self, kind: str, name: str, bandwidth_Bps: int = 0) -> int:
        """Add a device (``"gpu"``, ``"nic"``, ``"bridge"``, ``"cpu"`` or ``"switch"``) and return its number."""
        self.kinds.append(kind)
        self.names.append(name)
        device = len(self.kinds) - 1
        if kind == "nic":
            self.nic_Bps[device] = bandwidth_Bps
        return device

    def join(self, a: int, b: int, bandwidth_Bps: int, latency_ps: int) -> None:
        """Add a cable between two devices."""
        self.cables.append(Cable(a, b, bandwidth_Bps, latency_ps))

    def without_pcie(self) -> Machine:
        """Return the same machine without bridges and CPUs: every GPU has a link to the NIC nearest to it.

        GPUs then reach each other over their own cables only, as communication libraries do if there are such cables. Of
        equally near NICs, the one with the fewest GPUs so far is chosen.
        """
        kept = [
            device for device, kind in enumerate(self.kinds) if kind in ("gpu", "nic", "switch")
        ]
        number = {device: i for i, device in enumerate(kept)}
        plain = Machine(
            [self.kinds[device] for device in kept],
            [self.names[device] for device in kept],
            [
                cable._replace(a=number[cable.a], b=number[cable.b])
                for cable in self.cables
                if cable.a in number and cable.b in number
            ],
            {number[nic]: speed for nic, speed in self.nic_Bps.items()},
        )
        users = dict.fromkeys(self._useful_nics(), 0)
        at: list[list[Cable]] = [[] for _ in self.kinds]
        for cable in self.cables:
            at[cable.a].append(cable)
            at[cable.b].append(cable)
        for gpu in kept:
            ways = self._ways_to_nics(gpu, at) if self.kinds[gpu] == "gpu" else []
            ways = [way for way in ways if way[1].b in users]
            if ways:
                _, way = min(ways, key=lambda one: (one[0], users[one[1].b], one[1].b))
                users[way.b] += 1
                plain.cables.append(way._replace(a=number[gpu], b=number[way.b]))
        return plain

    def _ways_to_nics(self, gpu: int, at: list[list[Cable]]) -> list[tuple[int, Cable]]:
        """Return, for every NIC, the number of links on the path from a GPU, and the path as one cable."""
        reached = {gpu: (0, Cable(gpu, gpu, 2**62, 0))}
        queue = [gpu]
        for device in queue:
            if device != gpu and self.kinds[device] in ("gpu", "nic", "switch"):
                continue
            hops, way = reached[device]
            for cable in at[device]:
                other = cable.b if cable.a == device else cable.a
                if other not in reached:
                    speed = min(way.bandwidth_Bps, cable.bandwidth_Bps)
                    wait = max(way.latency_ps, cable.latency_ps)
                    reached[other] = hops + 1, Cable(gpu, other, speed, wait)
                    queue.append(other)
        return [found for device, found in reached.items() if self.kinds[device] == "nic"]

    def topology(
        self, *, boxes: int = 1, fabric: str = "switch", nic_latency_ps: int = 1_300_000
    ) -> Topology:
        """Return the machine alone, or `boxes` copies whose NICs are joined by one switch, or one switch per rail.

        GPUs keep the order in which they were added. A rail joins the NICs at one position in all boxes.

        Raises:
            ValueError: There are no GPUs, no NICs to join boxes with, or no path between two GPUs.
        """
        if fabric not in ("switch", "rail"):
            raise ValueError(f'fabric must be "switch" or "rail"; got {fabric!r}')
        whole_number("boxes", boxes)
        gpus = [device for device, kind in enumerate(self.kinds) if kind == "gpu"]
        if not gpus:
            raise ValueError("there are no GPUs")
        nics = self._useful_nics() if boxes > 1 else []
        if boxes > 1 and not nics:
            raise ValueError(f"boxes is {boxes}, but the machine has no NIC to join them with")
        alive, cables = self._reduced(set(gpus) | set(nics))
        inner = [device for device in sorted(alive) if self.kinds[device] != "gpu"]
        check_count(boxes * 2 * (len(cables) + len(nics)))
        place = {device: i for i, device in enumerate([*gpus, *inner])}
        blocks, n = [], boxes * len(gpus)
        box = np.arange(boxes)[:, None]

        def numbered(devices: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
            local = np.array([place[device] for device in devices], np.int64)
            of_gpu = box * len(gpus) + local
            of_switch = n + box * len(inner) + local - len(gpus)
            return np.where(local < len(gpus), of_gpu, of_switch).ravel()

        if cables:
            a, b = numbered([c.a for c in cables]), numbered([c.b for c in cables])
            speed = (
                np.tile(np.array([c.bandwidth_Bps for c in cables], np.int64), boxes),
                np.tile(np.array([c.latency_ps for c in cables], np.int64), boxes),
            )
            blocks += [Links(a, b, *speed), Links(b, a, *speed)]
        rails = len(nics) if fabric == "rail" else min(len(nics), 1)
        if nics:
            port = numbered(nics)
            rail = n + boxes * len(inner) + np.tile(np.arange(len(nics)) % rails, boxes)
            fast = np.tile(np.array([self.nic_Bps[nic] for nic in nics], np.int64), boxes)
            blocks += [
                Links(port, rail, fast, nic_latency_ps),
                Links(rail, port, fast, nic_latency_ps),
            ]
        of_box = [f"box{b}/" for b in range(boxes)] if boxes > 1 else [""]
        names = [b + self.names[gpu] for b in of_box for gpu in gpus]
        names += [b + self.names[device] for b in of_box for device in inner]
        names += [f"rail{r}" for r in range(rails)] if fabric == "rail" else ["fabric"] * rails
        topology = assemble(
            n,
            blocks,
            capabilities=[0] * (boxes * len(inner) + rails),
            family="machine",
            dims=[("box", len(gpus)), *([("switch", boxes)] if boxes > 1 else [])],
            names=names,
        )
        return raise_if_disconnected(topology)

    def _useful_nics(self) -> list[int]:
        fastest = max(self.nic_Bps.values(), default=0)
        return [nic for nic, speed in self.nic_Bps.items() if speed * _MANAGEMENT > fastest]

    def _reduced(self, ends: set[int]) -> tuple[set[int], list[Cable]]:
        """Return the devices and cables without dead ends and without bridges that only forward."""
        cables = dict(enumerate(self.cables))
        at: list[set[int]] = [set() for _ in self.kinds]
        for i, cable in cables.items():
            at[cable.a].add(i)
            at[cable.b].add(i)
        alive, number = set(range(len(self.kinds))), count(len(cables))
        waiting = sorted(alive - ends, reverse=True)
        while waiting:
            device = waiting.pop()
            if device not in alive or device in ends:
                continue
            mine = [(i, cables[i]) for i in sorted(at[device])]
            others = [cable.b if cable.a == device else cable.a for _, cable in mine]
            leads_on = len(set(others)) > 1
            # A bridge with two cables is replaced by one cable.
            is_link = (
                self.kinds[device] == "bridge" and len(mine) == 2 and not ends.issuperset(others)
            )
            if leads_on and not is_link:
                continue
            alive.discard(device)
            for (i, _), other in zip(mine, others, strict=True):
                del cables[i]
                at[other].discard(i)
                waiting.append(other)
            if leads_on:
                new = next(number)
                bandwidth = min(cable.bandwidth_Bps for _, cable in mine)
                latency = max(cable.latency_ps for _, cable in mine)
                cables[new] = Cable(others[0], others[1], bandwidth, latency)
                for other in others:
                    at[other].add(new)
        return alive, [cables[i] for i in sorted(cables)]
