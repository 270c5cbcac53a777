"""ASTRA-sim's analytical network simulation, per rank to the nanosecond.

ASTRA-sim has two analytical backends. The congestion-aware one stores and forwards whole messages
over links that serve first come, first served; the congestion-unaware one delays every message as if it
were alone. Both count whole nanoseconds and round every delay down. This module computes what they would
report, without their files and about a hundred times faster: :func:`run` for workloads, :func:`trace` for
schedules and programs too.

A bandwidth of 50 in an ASTRA-sim file means 50 GiB/s: write ``bandwidth="50GiB/s"`` here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacos import workload as workloads
from tacos._core import Program, Schedule, astra_simulate
from tacos.nodes import Network, topology_of
from tacos.simulate.trace import Trace
from tacos.topology import fully_connected, product, ring, switch
from tacos.units import Quantity, bandwidth_Bps, time_ps
from tacos.workload import COLL, COMMS, SEND, Workload, collective

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["PROFILES", "AstraResult", "AstraSystem", "RemoteMemory", "run", "trace"]

PROFILES = {"astra-sim-aware": True, "astra-sim-unaware": False}
"""The backends by name, and whether messages share links there."""

_BLOCKS = {"ring": ring, "clique": fully_connected, "switch": switch}
_MOST_PARTS = 10**7
"""Limit for the collectives of all ranks together: a few gigabytes of memory (chosen)."""
_NATIVE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
Implementations = Mapping[str, Sequence[str]]
"""By kind of collective, one name per dimension."""
Algorithms = Mapping[str | int, Workload]
"""By kind of collective, or by node id."""
_Dimension = tuple[int, int, int, int]  # block, size, bytes per second, picoseconds


@dataclass(frozen=True, kw_only=True)
class RemoteMemory:
    """A memory outside of the NPUs, which the loads and stores of a workload use.

    Attributes:
        shared_by: "none" if there is no such memory; "npu" if each NPU has its own; "node" if the NPUs of a node
            share one, and "pool" if all NPUs do. A shared memory serves one request at a time.
        latency: Time of any access, in whole nanoseconds.
        bandwidth: Bandwidth after the latency.
        npus_per_node: NPUs that share a memory; only for "node".
        nodes: Number of memories; only for "node".
    """

    shared_by: Literal["none", "npu", "node", "pool"] = "none"
    latency: Quantity = "0ns"
    bandwidth: Quantity = "1GB/s"
    npus_per_node: int = 0
    nodes: int = 0

    def __post_init__(self) -> None:
        for name in ("npus_per_node", "nodes"):
            value = getattr(self, name)
            least = 1 if self.shared_by == "node" else 0
            if not isinstance(value, int) or not least <= value < 2**31:
                raise ValueError(
                    f"{name} is {value!r}; it must be a whole number of at least {least}"
                )


@dataclass(frozen=True, kw_only=True)
class AstraSystem:
    """How ranks compute and run collectives: ASTRA-sim's system file, with readable names.

    :func:`tacos.simulate.astra_files.load_system` reads one from ASTRA-sim's files.

    Attributes:
        endpoint_delay: Time for data to get from the NPU to the network, or back.
        memory_bandwidth: Bandwidth of the local memory, which reductions use; None if it is not known.
        splits: Number of chunks of a collective (preferred-dataset-splits).
        active_chunks: Number of chunks that one dimension works on at a time.
        queues: Number of queues of each dimension (num-queues-per-dim).
        policy: Which collective goes first, "lifo", "fifo" or "explicit" (by the nodes' priority).
        local_bandwidth_aware: Whether an all-reduce over several dimensions scatters on the way up
            and gathers on the way down, or sums whole buffers in each.
        implementations: For "all_reduce", "all_gather", "reduce_scatter" and "all_to_all", one name
            per dimension: "ring", "direct", "direct4" (a window of 4), "halvingDoubling",
            "doubleBinaryTree", or "oneRing", … over all ranks at once. By default ring on rings,
            direct on cliques, and on switches halving-doubling where it applies, else direct.
        algorithms: Workloads that serve as custom collectives, by kind, or by node id.
        roofline: Whether a computation takes the time that its operations and bytes need, instead of its duration.
        peak_flops: Operations per second of an NPU, for the roofline.
        replay_only: Whether every node takes its duration, messages and collectives too.
        remote_memory: The memory of loads and stores.
    """

    endpoint_delay: Quantity = "10ns"
    memory_bandwidth: Quantity | None = "1600GB/s"
    splits: int = 1
    active_chunks: int = 1
    queues: int = 1
    policy: str = "lifo"
    local_bandwidth_aware: bool = True
    implementations: Implementations = field(default_factory=dict)
    algorithms: Algorithms = field(default_factory=dict)
    roofline: bool = False
    peak_flops: float = 0.0
    replay_only: bool = False
    remote_memory: RemoteMemory = RemoteMemory()

    def __post_init__(self) -> None:
        for name in ("splits", "active_chunks", "queues"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value < 2**31:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
        for what, known in (
            ("implementations", self.implementations),
            ("algorithms", self.algorithms),
        ):
            for key in known:
                if key not in _NATIVE and not (what == "algorithms" and isinstance(key, int)):
                    raise ValueError(f"{what} has {key!r}; use one of {', '.join(_NATIVE)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class AstraResult:
    """The result of a run; times in nanoseconds, one entry per rank, message or hop.

    Attributes:
        topology: The network.
        aware: Whether links were shared.
        npu_finish_ns: When each rank finished.
        npu_compute_ns: How long each rank computed.
        node_begin_ns: When each node of the workload began; empty with `as_custom`, whose nodes are not the workload's.
        node_end_ns: When each node ended.
        src: Sender of each message. Messages are ordered by when the first of their two sides was ready;
            handshakes of the rendezvous protocol are messages too.
        dst: Receiver of each message.
        bytes: Size of each message.
        tag: Tag of each message.
        send_ns: When each message was sent.
        arrive_ns: When it arrived.
        send_node: Row of the send, in the workload or, with `as_custom`, in the collective; -1 for
            messages that the system made.
        hop_link: Link of each busy interval; empty if links are not shared.
        hop_message: Message of each busy interval.
        hop_begin_ns: Start of each busy interval.
        hop_end_ns: End of each busy interval.
    """

    topology: Topology
    aware: bool
    npu_finish_ns: NDArray[np.int64]
    npu_compute_ns: NDArray[np.int64]
    node_begin_ns: NDArray[np.int64]
    node_end_ns: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bytes: NDArray[np.int64]
    tag: NDArray[np.int32]
    send_ns: NDArray[np.int64]
    arrive_ns: NDArray[np.int64]
    send_node: NDArray[np.int64]
    hop_link: NDArray[np.int32]
    hop_message: NDArray[np.int32]
    hop_begin_ns: NDArray[np.int64]
    hop_end_ns: NDArray[np.int64]

    @property
    def profile(self) -> str:
        """Name of the backend, in `PROFILES`."""
        return next(name for name, aware in PROFILES.items() if aware == self.aware)

    @property
    def time_ns(self) -> int:
        """When the last rank finished."""
        return int(self.npu_finish_ns.max())

    @property
    def npu_exposed_ns(self) -> NDArray[np.int64]:
        """Time during which each rank did not compute: ASTRA-sim's exposed communication.

        Under `replay_only` all nodes count as computations, so it may be negative if they overlap.
        """
        exposed: NDArray[np.int64] = self.npu_finish_ns - self.npu_compute_ns
        return exposed

    def trace(self, schedule: Mapping[str, Any] | None = None) -> Trace:
        """Return busy links, arrivals and ends as a trace, in picoseconds.

        Args:
            schedule: Provenance of the schedule that was run, if there is one.
        """
        return Trace(
            self.topology,
            simulator=self.profile,
            clean_time_ps=self.time_ns * 1000,
            provenance={
                "simulator": self.profile,
                "transfers": len(self.src),
                "clean_time_ps": self.time_ns * 1000,
                "schedule": dict(schedule or {}),
            },
            link=self.hop_link,
            begin_ps=self.hop_begin_ns * 1000,
            end_ps=self.hop_end_ns * 1000,
            transfer=self.hop_message,
            arrival_npu=self.dst,
            arrival_ps=self.arrive_ns * 1000,
            arrival_bytes=self.bytes,
            arrival_transfer=np.arange(len(self.src), dtype=np.int32),
            npu_finish_ps=self.npu_finish_ns * 1000,
        )


def run(
    workload: Workload,
    topology: Network,
    *,
    aware: bool,
    as_custom: bool = True,
    system: AstraSystem | None = None,
    rendezvous: bool = False,
    record: bool = True,
    progress: Callable[[float], object] | None = None,
) -> AstraResult:
    """Simulate a workload as ASTRA-sim's analytical backends do.

    The topology's link model, forwarding and reduce bandwidth are ignored; the backends have their own.

    Args:
        workload: What the ranks do; the topology must have one NPU per rank.
        topology: Congestion-unaware: a product of rings, cliques and switches with one speed per
            dimension; the first dimension in which a message's ends differ sets its time. Or one with
            equal links between the ends of all messages, which is treated as a clique. Congestion-aware:
            such a product, with dimension-ordered routes, or any links at all, with routes of the
            fewest hops.
        aware: Whether messages share links.
        as_custom: Whether the nodes are one custom collective, in which every ready node starts at once, or
            a workload, in which a rank has one send or collective in flight at a time.
        system: How collectives are run; `AstraSystem()` by default.
        rendezvous: Whether 8 KiB from the receiver must have arrived before data is sent.
        record: Whether the result has every message and hop. If not, it has the times of ranks and nodes only, and
            the run takes less time and memory.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: The topology does not fit, or ranks wait forever; the message names the nodes.

    >>> from tacos.workload import ring_all_gather
    >>> network = ring(4, bandwidth="50GiB/s", latency="500ns")
    >>> run(ring_all_gather(4, "1MiB"), network, aware=True).npu_finish_ns.tolist()
    [60093, 60093, 60093, 60093]
    """
    topology = topology_of(topology)
    if workload.npus != topology.npus:
        raise ValueError(
            f"the workload has {workload.npus} ranks, but the topology has {topology.npus} NPUs"
        )
    dims = _dimensions(topology, aware, workload)
    system = system or AstraSystem()
    if as_custom:
        if (workload.kind == COLL).any():
            raise ValueError(
                "the workload has collectives, which only a simulated system can run: use "
                "tacos.simulate.astra.run with as_custom=False"
            )
        algorithms = [workload]
        workload = collective(workload.npus, "all_gather", 1)
        algorithm_of = np.zeros(workload.nodes, np.int32)
    else:
        _check_parts(workload, system)
        algorithms, algorithm_of = _algorithms(workload, system)
    remote = system.remote_memory
    columns = astra_simulate(
        topology,
        dims,
        aware,
        workload,
        algorithms,
        algorithm_of,
        endpoint_delay_ns=_nanoseconds(system.endpoint_delay),
        memory_Bps=0
        if system.memory_bandwidth is None
        else bandwidth_Bps(system.memory_bandwidth, what="memory_bandwidth"),
        splits=1 if as_custom else system.splits,
        active_chunks=system.active_chunks,
        queues=system.queues,
        policy=system.policy,
        local_bandwidth_aware=system.local_bandwidth_aware,
        rendezvous=rendezvous,
        implementations=[
            list(system.implementations.get(comm, _defaults(comm, dims))) for comm in _NATIVE
        ],
        roofline=system.roofline,
        peak_flops=system.peak_flops,
        replay_only=system.replay_only,
        remote=(
            remote.shared_by,
            _nanoseconds(remote.latency, "latency"),
            bandwidth_Bps(remote.bandwidth, what="bandwidth"),
            remote.npus_per_node,
            remote.nodes,
        ),
        record=record,
        progress=progress,
    )
    if as_custom:
        columns |= {name: np.empty(0, np.int64) for name in ("node_begin_ns", "node_end_ns")}
    return AstraResult(topology=topology, aware=aware, **columns)


def trace(
    what: Workload | Schedule | Program | str | os.PathLike[str],
    topology: Network | None = None,
    *,
    profile: str,
    size: Quantity | None = None,
    progress: Callable[[float], object] | None = None,
) -> Trace:
    """Run a schedule, a program or a workload as one custom collective and return its trace.

    A schedule or a program runs as the nodes that its Chakra export writes.

    Args:
        what: What to run, or the path of a file that holds it, such as the prefix of Chakra traces.
        topology: The network; a schedule has its own.
        profile: A name in `PROFILES`.
        size: Size of a program's collective, if the program does not have one.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: An argument is missing or does not fit, or as in :func:`run`.

    >>> import tacos
    >>> topo = ring(4, bandwidth="50GiB/s", latency="500ns", bidirectional=False)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MiB", chunks=1))
    >>> trace(schedule, profile="astra-sim-aware").time_s
    6.0093e-05
    """
    if topology is not None:
        topology = topology_of(topology)
    if profile not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(PROFILES)}; got {profile!r}")
    if isinstance(what, str | os.PathLike):
        what = _loaded(what)
    if size is not None and not isinstance(what, Program):
        raise ValueError(f"size is {size}, but only a program takes a size")
    made: Mapping[str, Any] = {}
    if isinstance(what, Schedule):
        topology, made = topology or what.topology, what.provenance
        workload = workloads.from_schedule(what)
    elif isinstance(what, Program):
        workload = workloads.from_program(what, size, topology)
    else:
        workload = what
    if topology is None:
        raise ValueError("a workload needs a topology to run on")
    return run(workload, topology, aware=PROFILES[profile], progress=progress).trace(made)


def _loaded(path: str | os.PathLike[str]) -> Workload | Schedule | Program:
    from tacos import formats

    if formats.name_of(path) == "chakra":
        return workloads.load(path)
    found = formats.load(path)
    if not isinstance(found, Schedule | Program):
        raise ValueError(  # noqa: TRY004, the type is right, the file is not
            f"{path} holds a topology, not a schedule, a program or a workload"
        )
    return found


def _check_parts(workload: Workload, system: AstraSystem) -> None:
    parts = int((workload.kind == COLL).sum()) * system.splits
    if parts > _MOST_PARTS:
        raise ValueError(
            f"splits is {system.splits}, which cuts the workload's collectives into {parts:,} parts; "
            f"the limit is {_MOST_PARTS:,}"
        )


def _nanoseconds(delay: Quantity, what: str = "endpoint_delay") -> int:
    exact = time_ps(delay, what=what)
    if exact % 1000:
        raise ValueError(f"{what} {delay!r} must be a whole number of nanoseconds")
    return exact // 1000


def _dimensions(topology: Topology, aware: bool, workload: Workload) -> list[_Dimension]:
    """Return the network's dimensions, or one block of all NPUs over any links."""
    if topology.npus < 2:
        raise ValueError("ASTRA-sim needs at least 2 NPUs, but the topology has 1")
    found = _blocks(topology)
    if found:
        return found
    clique = list(_BLOCKS).index("clique")
    if not aware:
        if not _between_equal_neighbours(workload, topology):
            raise ValueError(
                f"astra-sim-unaware needs a product of rings, cliques and switches with one speed per "
                f"dimension, which this {topology.family or 'custom'} topology is not, or messages "
                "over equal links only"
            )
        speed = int(topology.link_bandwidth_Bps[0]), int(topology.link_latency_ps[0])
        return [(clique, topology.npus, *speed)]
    ends = topology.link_src.astype(np.int64) * topology.nodes + topology.link_dst
    _, first, count = np.unique(ends, return_index=True, return_counts=True)
    if (count > 1).any():
        link = int(first[np.argmax(count > 1)])
        src, dst = (
            topology.node_name(int(c[link])) for c in (topology.link_src, topology.link_dst)
        )
        raise ValueError(
            f"astra-sim-aware allows one link from a node to another, but there are several "
            f"from {src} to {dst}"
        )
    return [(clique, topology.npus, 1, 0)]


def _between_equal_neighbours(workload: Workload, topology: Topology) -> bool:
    """Return whether every message takes one link, and all links are equal."""
    if not topology.links or (workload.kind == COLL).any():
        return False
    if any(np.ptp(c) for c in (topology.link_bandwidth_Bps, topology.link_latency_ps)):
        return False
    sends = workload.kind == SEND
    pairs = workload.rank[sends].astype(np.int64) * topology.nodes + workload.peer[sends]
    links = topology.link_src.astype(np.int64) * topology.nodes + topology.link_dst
    return bool(np.isin(pairs, links).all())


def _blocks(topology: Topology) -> list[_Dimension] | None:
    dims = [(kind, size) for kind, size in topology.dims if size > 1]
    if any(kind not in _BLOCKS for kind, _ in dims) or prod(n for _, n in dims) != topology.npus:
        return None
    factors = [_BLOCKS[kind](size) for kind, size in dims]
    regular = product(*factors)
    if not all(
        np.array_equal(getattr(topology, name), getattr(regular, name))
        for name in ("link_src", "link_dst")
    ):
        return None
    found, begin = [], 0
    for (kind, size), factor in zip(dims, factors, strict=True):
        links = slice(begin, begin := begin + topology.npus // size * factor.links)
        speeds = topology.link_bandwidth_Bps[links], topology.link_latency_ps[links]
        if any((speed != speed[0]).any() for speed in speeds):
            return None
        found.append((list(_BLOCKS).index(kind), size, int(speeds[0][0]), int(speeds[1][0])))
    return found


def _algorithms(
    workload: Workload, system: AstraSystem
) -> tuple[list[Workload], NDArray[np.int32]]:
    """Return the custom collectives, and each node's index into them, or -1. A node's own collective overrides its kind's."""
    algorithms = list({id(one): one for one in system.algorithms.values()}.values())
    place = {id(one): number for number, one in enumerate(algorithms)}
    which = np.full(workload.nodes, -1, np.int32)
    rows = np.flatnonzero(workload.kind == COLL)
    comm, number = workload.comm[rows], workload.id[rows]
    for key, one in system.algorithms.items():
        if isinstance(key, str):
            which[rows[comm == COMMS[key]]] = place[id(one)]
    own = {key: place[id(one)] for key, one in system.algorithms.items() if isinstance(key, int)}
    if own:  # a training step may name thousands of nodes
        keys = np.array(sorted(own), np.int64)
        found = np.minimum(np.searchsorted(keys, number), len(keys) - 1)
        meant = keys[found] == number
        chosen = np.array([own[key] for key in keys.tolist()], np.int32)
        which[rows[meant]] = chosen[found[meant]]
    return algorithms, which


def _defaults(comm: str, dims: list[_Dimension]) -> list[str]:
    names = []
    for block, size, _, _ in dims:
        halving = comm != "all_to_all" and size & (size - 1) == 0
        names.append(("ring", "direct", "halvingDoubling" if halving else "direct")[block])
    return names
