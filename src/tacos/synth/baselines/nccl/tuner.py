"""NCCL's choice of algorithm, protocol and channels, and the time that nccl-tests would report.

NCCL's tuner gives every algorithm and protocol a latency and a bandwidth and takes the smallest
latency + bytes / bandwidth (``src/graph/tuning.cc`` of NCCL 2.30.7). :func:`estimate` does the same with bandwidths
of the channels that were found on the topology. The *cost* of a candidate is what the tuner computes; its *time* is
what a measurement should show. They differ in effects that the tuner ignores:

- NCCL does not know the latencies of links. Where they are longer than those of its tables, they count.
- A ring ends with a step that copies a chunk out of its buffer and sends nothing. It lasts a third of a step, so n
  GPUs reach (n-1) / (n-1 + 1/3) of the bandwidth in an all-gather. One parameter explains why H100 boxes reach
  268, 325 and 345 GB/s of bus bandwidth with 2, 4 and 8 GPUs, and A100 boxes 206, 228 and 234.
- With NVLS every byte of the result leaves a switch once, and 1/n of it enters as the owner's sum: S (1 + 1/n)
  bytes per port and direction.
- In a box whose device was measured, :mod:`tacos.synth.baselines.nccl.software` has the time. Elsewhere nccl-tests adds
  the time between two kernels.
- One host thread for all GPUs of a box cannot launch collectives faster than it can start a kernel on each of them.

:mod:`tacos.synth.baselines.nccl.parameters` has all constants. NCCL's PAT algorithm (boxes of one GPU), symmetric kernels and
user-registered buffers are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.collective import kind_of
from tacos.errors import InfeasibleError
from tacos.synth.baselines.nccl import parameters as p
from tacos.synth.baselines.nccl import software as sw
from tacos.synth.baselines.nccl.group import Group
from tacos.synth.baselines.nccl.knowledge import known_networks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Topology
    from tacos.synth.baselines.nccl.group import Seconds
    from tacos.synth.baselines.nccl.parameters import Generation

__all__ = [
    "ALGORITHMS",
    "SWITCHED",
    "Candidate",
    "Estimate",
    "choose",
    "estimate",
    "generation_named",
    "in_doubt",
]

SWITCHED = ("nvls", "nvls-tree", "collnet")
"""Algorithms that sum in switches."""
ALGORITHMS = ("ring", "tree", "nvls", "nvls-tree", "collnet", "direct")
"""NCCL's algorithms; all-to-all, gather, scatter and send-receive are always direct."""

LAUNCHES = ("process", "thread", "loop")
"""Ways to launch: a process or thread per GPU, or one thread for all GPUs of a box in turn."""

DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int32", "uint32", "int64", "uint64",
    "int8", "uint8", "float8_e4m3", "float8_e5m2",
)  # fmt: skip
"""NCCL's types."""

_ONE_BYTE = DTYPES[-4:]

VERSION = "2.29"
"""The version of NCCL that is meant if none is named."""

_GB = 1e9
_US = 1e-6


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the time of candidates depends on beside the group.

    Attributes:
        share: Share of the bandwidth that remains with fewer channels than NCCL would use.
        software: Costs of the library on the device; None if they were not measured.
        loop: Whether one thread launches on all GPUs of a box.
        sums: Whether switches sum the type (specified: NCCL's ``ncclNvlsSupported``).
    """

    share: float
    software: sw.Software | None
    loop: bool
    sums: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination that the tuner weighs.

    Attributes:
        algorithm: One of ``ALGORITHMS``.
        protocol: ``"LL"``, ``"LL128"`` or ``"Simple"``.
        cost_s: What NCCL's tuner expects, in seconds; the smallest is chosen.
        time_s: What nccl-tests would measure, in seconds.
        latency_s: The part of the cost that does not depend on the size.
        algbw_Bps: Size divided by the rest of the cost, in bytes per second.
        bytes_s: The part of the time that grows with the size, in seconds.
        steps_s: The part of the time that messages take to start and to travel, in seconds.
        fails: Why it fails if NCCL does not know of the network's faults; its times are infinite then.
    """

    algorithm: str
    protocol: str
    cost_s: float
    time_s: float
    latency_s: float
    algbw_Bps: float
    bytes_s: float
    steps_s: float
    fails: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """NCCL's choice for a collective, and its time.

    Attributes:
        algorithm: NCCL's choice, one of ``ALGORITHMS``.
        protocol: NCCL's choice.
        channels: Number of channels that it uses.
        time_s: What nccl-tests would measure, in seconds.
        algbw_Bps: Size over time, in bytes per second.
        busbw_Bps: Bus bandwidth, as in nccl-tests; 0 if undefined.
        generation: The GPU generation whose parameters were used.
        boxes: Number of boxes that the group spans.
        candidates: All candidates that the tuner weighed, the cheapest first.
        engine: What NCCL knows, as the engine of this name: ``"nccl"`` searched again after the network's faults,
            ``"nccl-unaware"`` does not know of them.
        fails: Why NCCL's choice fails; empty if it does not.
    """

    algorithm: str
    protocol: str
    channels: int
    time_s: float
    algbw_Bps: float
    busbw_Bps: float
    generation: str
    boxes: int
    candidates: tuple[Candidate, ...]
    engine: str = "nccl"
    fails: str = ""


def estimate(
    topology: Topology,
    collective: Collective,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    channels: int | None = None,
    generation: str | Generation | None = None,
    aware: bool | None = None,
    version: str = VERSION,
    launch: str = "process",
    dtype: str = "float16",
) -> Estimate:
    """Estimate the time that nccl-tests would report for stock NCCL on a network.

    On a network with faults, this is the faster of NCCL that searched again and NCCL that does not know of the faults. Of several collectives at once, each is estimated as if it had the network to itself, and the slowest counts.

    Args:
        topology: The network. Boxes, NICs and channels are found from its links.
        collective: Any collective but a custom one.
        algorithm: One of ``ALGORITHMS`` instead of NCCL's choice.
        protocol: ``"LL"``, ``"LL128"`` or ``"Simple"`` instead of NCCL's choice.
        channels: Upper limit on the number of channels.
        generation: A name in ``GENERATIONS`` or parameters of your own; inferred from the bandwidth of an NPU's links
            if not given.
        aware: Whether NCCL searched with knowledge of the network's faults; by default, the faster of both counts.
        version: NCCL's version. Costs of software are those of the newest measured version that is not newer.
        launch: ``"process"`` or ``"thread"`` for a process or thread per GPU, or ``"loop"`` for one thread that launches on
            all GPUs of a box in turn, as nccl-tests does with ``-g 8``.
        dtype: One of ``DTYPES``; switches do not sum types of one byte.

    Raises:
        ValueError: NCCL does not have the collective, or the algorithm does not apply.
        InfeasibleError: NCCL does not know of a dead link, would send over it, and fail.

    >>> import tacos
    >>> topo = tacos.topology.dgx_h100()
    >>> found = estimate(topo, tacos.collective.all_reduce(topo, 2**30))
    >>> found.algorithm, found.protocol, round(found.algbw_Bps / 1e9)       # measured: 267 GB/s
    ('nvls', 'Simple', 264)
    """
    if collective.npus != topology.npus:
        raise ValueError(
            f"the collective is for {collective.npus} NPUs, but the topology has {topology.npus}"
        )
    given = generation_named(generation)
    answers = []
    for network in known_networks(topology, aware=aware):
        groups = [Group(network, part, given) for part in collective.parts]
        found = [
            choose(
                group, algorithm, protocol, channels, version=version, launch=launch, dtype=dtype
            )
            for group in groups
        ]
        slowest = max(found, key=lambda one: one.time_s)
        if len(found) > 1:
            algbw = collective.size_bytes / slowest.time_s
            busbw = algbw * collective.bus_factor
            slowest = replace(slowest, algbw_Bps=algbw, busbw_Bps=busbw)
        answers.append(slowest)
    best = min(answers, key=lambda one: one.time_s)
    if best.fails:
        raise InfeasibleError(best.fails)
    return best


def generation_named(generation: str | Generation | None) -> Generation | None:
    """Return the parameters of a generation by name; parameters are returned unchanged.

    >>> generation_named("A100").port_GBps
    300.0
    """
    if isinstance(generation, str):
        if generation not in p.GENERATIONS:
            names = ", ".join(p.GENERATIONS)
            raise ValueError(f"generation must be one of {names}; got {generation!r}")
        return p.GENERATIONS[generation]
    return generation


def choose(
    group: Group,
    algorithm: str | None = None,
    protocol: str | None = None,
    channels: int | None = None,
    *,
    version: str = VERSION,
    launch: str = "process",
    dtype: str = "float16",
) -> Estimate:
    """Return NCCL's choice for one collective on a group, or the given choice with its times.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.channels import network_of
    >>> topo = tacos.topology.dgx_a100()
    >>> part = tacos.collective.all_gather(topo, "1KB").parts[0]
    >>> choose(Group(network_of(topo), part)).protocol
    'LL'
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}; got {algorithm!r}")
    if protocol is not None and protocol not in p.PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(p.PROTOCOLS)}; got {protocol!r}")
    if channels is not None and (type(channels) is not int or channels < 1):
        raise ValueError(f"channels must be a positive number; got {channels!r}")
    if launch not in LAUNCHES:
        raise ValueError(f"launch must be one of {', '.join(LAUNCHES)}; got {launch!r}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    setting = _Setting(
        _share(group, channels),
        sw.of(_device(group), version, max(map(len, group.layout.boxes))),
        launch == "loop",
        dtype not in _ONE_BYTE,
    )
    weighed = (_timed(make, group) for make in _candidates(group, setting))
    found = sorted(weighed, key=lambda one: one.cost_s)
    allowed = [one for one in found if algorithm in (None, one.algorithm)]
    if not allowed:
        there = ", ".join(dict.fromkeys(one.algorithm for one in found))
        kind = group.part.label
        raise ValueError(
            f"algorithm {algorithm!r} does not apply to this {kind} and network; NCCL weighs {there}"
        )
    allowed = [one for one in allowed if protocol in (None, one.protocol)]
    if not allowed:
        raise ValueError(
            f"algorithm {algorithm or found[0].algorithm!r} has no protocol {protocol!r}"
        )
    best, size = allowed[0], _size(group.part)
    algbw = size / best.time_s if best.time_s else 0.0
    return Estimate(
        best.algorithm,
        best.protocol,
        _channels(group, best, channels),
        best.time_s,
        algbw,
        algbw * _bus_factor(group.part),
        _device(group),
        group.boxes,
        tuple(found),
        group.network.name,
        best.fails,
    )


def _timed(make: Callable[[Group], Candidate], group: Group) -> Candidate:
    """Return a candidate with NCCL's cost, and its time on the links as they are."""
    known, executed = make(group), group.executed
    if executed is group:
        return known
    try:
        if known.algorithm in SWITCHED:
            _ = executed.box_switches, executed.rail_switches  # over links that are not dead
        now = make(executed)
    except InfeasibleError as error:
        return replace(known, time_s=inf, bytes_s=inf, steps_s=inf, fails=str(error))
    return replace(known, time_s=now.time_s, bytes_s=now.bytes_s, steps_s=now.steps_s)


def _device(group: Group) -> str:
    """Return the device: the generation's name, or GB200 for a B200 that was inferred in a box of more GPUs than a host has.

    Both have the same constants in NCCL's tuner and differ in the costs of software.
    """
    name, network = group.generation.name, group.network
    if group.given is None and name == "B200":
        largest = np.bincount(network.label[: network.topology.npus]).max()
        if largest > p.HOST_GPUS:
            return "GB200"
    return name


def in_doubt(found: Estimate) -> list[str]:
    """Return the algorithms that NCCL might choose: those whose costs are close to the smallest, cheapest first.

    >>> import tacos
    >>> topo = tacos.topology.dgx_h100()
    >>> in_doubt(estimate(topo, tacos.collective.all_reduce(topo, "1MB")))
    ['ring', 'nvls']
    """
    most = p.DOUBT * found.candidates[0].cost_s
    return list(dict.fromkeys(one.algorithm for one in found.candidates if one.cost_s <= most))


def _size(part: CollectivePart) -> int:
    if part.kind == "send_recv":
        return int(part.bytes.sum())
    return int(part.size)


def _bus_factor(part: CollectivePart) -> float:
    """Return the ratio of bus to algorithm bandwidth; 0 for send-recv, whose size here is the total of all messages."""
    return 0.0 if kind_of(part).listed else part.bus_factor


def _channels(group: Group, best: Candidate, most: int | None) -> int:
    """Return NCCL's number of channels, reduced if a thread would have too few bytes."""
    if best.algorithm in ("nvls", "nvls-tree"):
        count = p.NVLS_CHANNELS
    elif group.boxes > 1 or len(group.rings) > 1:
        count = min(2 * len(group.rings), 32)
    else:
        count = group.generation.channels
    count = count if most is None else min(count, most)
    if best.algorithm in ("ring", "tree"):
        k = p.PROTOCOLS.index(best.protocol)
        threshold = p.THREADS[k] * p.THREAD_BYTES[k]
        if best.algorithm == "ring" and best.protocol == "LL":
            threshold *= group.n
        count = max(1, min(count, _size(group.part) // threshold))
    return count


def _candidates(group: Group, setting: _Setting) -> Iterator[Callable[[Group], Candidate]]:
    """Yield what weighs each algorithm and protocol that NCCL has for the collective."""
    kind, size = kind_of(group.part), _size(group.part)
    if group.n == 1:
        yield partial(
            _candidate,
            setting=setting,
            algorithm="direct",
            protocol=2,
            latency_s=np.zeros(2),
            bandwidth_s=0.0,
            measured_s=0.0,
        )
        return
    if not kind.spreads:
        yield partial(_direct, setting=setting)
        return
    for k in range(3):
        yield partial(_ring, k=k, setting=setting)
        if kind.two_phases:
            yield partial(_tree, k=k, setting=setting)
    sums = kind.two_phases and group.rail_switches if group.boxes > 1 else not kind.rooted
    sums = sums and (kind.two_phases or group.n <= p.NVLS_ARITY)
    summed = setting.sums or not kind.reduces
    if sums and summed and group.hopper and group.nvls:
        yield partial(_nvls, setting=setting)
    if kind.two_phases and summed and group.hopper and group.nvls and group.boxes > 1:
        yield partial(_nvls_tree, setting=setting)
    if kind.two_phases and group.rail_switches:
        yield partial(_collnet, size=size, setting=setting)


def _share(group: Group, most: int | None) -> float:
    """Return the share of the bandwidth that remains with fewer channels than NCCL would use."""
    if most is None:
        return 1.0
    whole = len(group.rings)
    return min(1.0, most / (whole if whole > 1 or group.boxes > 1 else group.generation.channels))


def _candidate(
    group: Group,
    setting: _Setting,
    algorithm: str,
    protocol: int,
    latency_s: Seconds,
    bandwidth_s: float,
    measured_s: float,
    latency_factor: float = 1.0,
    measured: tuple[sw.Number, sw.Number] | None = None,
) -> Candidate:
    """Return a candidate from the two parts of its cost and the part of its time that grows with the size.

    Where the software was measured, `measured` has the microseconds of latencies and of bytes; these replace the latter.
    """
    known_s, steps_s = (latency_s * latency_factor).tolist()
    one, size = group.generation, _size(group.part)
    start_s = one.overhead_us * _US
    if measured is not None and setting.software is not None:
        start_s = setting.software.ll.base_us * _US
        steps_s, measured_s = float(measured[0]) * _US - start_s, float(measured[1]) * _US
    time_s = start_s + steps_s + measured_s
    launch_s = 0.0
    if setting.loop:
        launch_s = one.launch_us * _US * min(p.HOST_GPUS, max(map(len, group.layout.boxes)))
    return Candidate(
        algorithm=algorithm,
        protocol=p.PROTOCOLS[protocol],
        cost_s=known_s + bandwidth_s,
        time_s=max(time_s, launch_s),
        latency_s=float(latency_s[0]),
        algbw_Bps=size / bandwidth_s if bandwidth_s else 0.0,
        bytes_s=measured_s,
        steps_s=steps_s,
    )


def _ring(group: Group, k: int, setting: _Setting) -> Candidate:
    """Blocks go round rings; broadcasts and reductions go down them."""
    one, kind, n, size = group.generation, kind_of(group.part), group.n, group.part.size
    phases = 2 if kind.two_phases else 1
    steps = n if kind.rooted else phases * (n - 1)
    bus = group.ring_Bps * setting.share * p.RING_PAYLOAD[k]
    if k == 0:
        most = one.ll_GBps if group.boxes == 1 else p.NET_LL_GBps[group.bucket]
        bus = min(bus, most * _GB)
    wide = setting.software is not None and setting.software.wide and group.boxes == 1
    if k == 1 and not wide:
        bus = min(bus, _count(group, len(group.rings)) * setting.share * one.ring_ll128_GBps * _GB)
    bytes_s = size * steps / (n * bus)
    base = p.BASE_US["ring"][k] * _US
    if kind.rooted:
        hop = "tree" if k == 2 else "ring"
        latency = base + steps * group.hop_s(hop, k, inside=group.boxes == 1)
        measured = _ring_us(group, k, setting, steps)
        return _candidate(group, setting, "ring", k, latency, bytes_s, bytes_s, measured=measured)
    between = 0 if group.boxes == 1 else (group.boxes - 1) * phases
    inside_s = group.hop_s("ring", k, inside=True)
    if group.boxes > 1:
        inside_s = np.maximum(inside_s, p.NET_POST_US[k] * _US)
    hop = "tree" if group.n == group.boxes else "ring"
    latency = base + (steps - between) * inside_s + between * group.hop_s(hop, k, inside=False)
    large = k == 2 and kind.two_phases and group.boxes > 1 and size >= 64 * n * len(group.rings)
    copies = 1 + one.copy_share / steps if group.boxes == 1 else 1.0
    return _candidate(
        group,
        setting,
        "ring",
        k,
        latency,
        bytes_s,
        bytes_s * copies,
        one.plateau if large else 1.0,
        _ring_us(group, k, setting, steps),
    )


def _ring_us(
    group: Group, k: int, setting: _Setting, steps: int
) -> tuple[sw.Number, sw.Number] | None:
    """Return the measured microseconds of a ring in a box."""
    software = setting.software
    if software is None or group.boxes > 1:
        return None
    one = (software.ll, software.ll128, software.simple)[k]
    rate = group.ring_Bps * setting.share * _US
    return one.us(group.n, steps, group.part.size, rate, group.latency_s[True] / _US)


def _count(group: Group, rails: int) -> float:
    """Return the number of channels that NCCL's search ends with; it doubles them if they are fast enough."""
    if group.boxes == 1:
        return group.generation.channels / 2 if rails == 1 else rails
    each = group.nic_Bps * p.NIC_EFFICIENCY / _GB
    fast = each >= p.DOUBLED_GBps[0 if rails <= p.FEW_CHANNELS or not group.hopper else 1]
    return 2 * rails if fast else rails


def _tree(group: Group, k: int, setting: _Setting) -> Candidate:
    """Sums go up double binary trees over boxes, with chains inside, and results down."""
    one, size, at = group.generation, group.part.size, group.bucket
    rails, nic = len(group.chains), group.nic_Bps * p.NIC_EFFICIENCY
    count, bus = _count(group, rails), group.ring_Bps
    if group.boxes > 1:
        # In two boxes each NIC carries sums of one tree and results of the other.
        bus = min(nic * (count if group.boxes == 2 else rails), group.chain_Bps)
    bus = min(bus * p.TREE_EFFICIENCY, count * one.tree_GBps[at] * _GB) * setting.share
    if k == 0:
        most = one.ll_GBps if group.boxes == 1 else p.NET_LL_GBps[at]
        bus = min(bus * p.TREE_LL, most * _GB)
    if k == 1:
        bus = min(bus * p.TREE_LL128[group.boxes > 1], count * one.tree_ll128_GBps[at] * _GB)
    bus *= p.TREE_PATTERN
    power = (size >> 6).bit_length() - 1
    if 0 <= power < 23:
        bus *= p.TREE_BY_SIZE[k][power]
    depth = group.boxes.bit_length() - 1
    latency = p.BASE_US["tree"][k] * _US + 2 * (
        (int(group.per_box) - 1) * group.hop_s("tree", k, inside=True)
        + depth * group.hop_s("tree", k, inside=False)
    )
    bytes_s = 2 * size / bus
    return _candidate(group, setting, "tree", k, latency, bytes_s, bytes_s)


def _nvls(group: Group, setting: _Setting) -> Candidate:
    """Switches in boxes sum and multicast; over several boxes, switches between them do as well."""
    size, n = group.part.size, group.per_box
    full = group.box_Bps * group.generation.nvls_efficiency * setting.share
    if kind_of(group.part).two_phases:
        bytes_s, measured_s = size / full, size * (1 + 1 / n) / full
    else:
        bytes_s = measured_s = size / (full * ((n - 1) / n) ** 2)
    latency = group.hop_s("nvls", 2, inside=True)
    if group.boxes > 1:
        latency += group.hop_s("nvls", 2, inside=False)
        between_s = size / group.net_Bps
        bytes_s, measured_s = max(bytes_s, between_s), max(measured_s, between_s)
    measured = None
    if setting.software is not None and setting.software.switched is not None and group.boxes == 1:
        rate = group.box_Bps * setting.share * _US
        phases = 2 if kind_of(group.part).two_phases else 1
        measured = setting.software.switched.us(group.n, phases, size, rate)
    return _candidate(group, setting, "nvls", 2, latency, bytes_s, measured_s, measured=measured)


def _nvls_tree(group: Group, setting: _Setting) -> Candidate:
    """Switches in boxes sum and multicast, double binary trees join the boxes."""
    size, n, at = group.part.size, group.per_box, group.bucket
    full = group.box_Bps * group.generation.nvls_efficiency * setting.share
    most = p.NVLS_CHANNELS * group.generation.nvls_tree_GBps[at] * _GB / 2
    # A box in the middle of a tree receives from two boxes below and from one above; with only two
    # boxes, every byte crosses once in each direction.
    rail = group.used.rails * group.nic_Bps * p.NVLS_NIC_EFFICIENCY
    between = rail if group.boxes == 2 else rail / 2
    bytes_s = size / min(full, between, most)
    measured_s = max(size * (1 + 1 / n) / full, size / min(between, most))
    depth = group.boxes.bit_length() - 1
    latency = group.hop_s("nvls-tree", 2, inside=True)
    latency += 2 * depth * group.hop_s("nvls-tree", 2, inside=False)
    measured = None
    if setting.software is not None and setting.software.switched is not None and n > 1:
        # Inside boxes the tree is NVLS; the trees' hops and the network come on top.
        rate = group.box_Bps * setting.share * _US
        inside_us, sent_us = setting.software.switched.us(n, 2, size, rate)
        hops_us = 2 * depth * group.hop_s("nvls-tree", 2, inside=False)[1] / _US
        between_us = size / min(between, most) / _US
        measured = (inside_us + hops_us, max(float(sent_us), between_us))
    return _candidate(
        group, setting, "nvls-tree", 2, latency, bytes_s, measured_s, measured=measured
    )


def _collnet(group: Group, size: int, setting: _Setting) -> Candidate:
    """Members send to the heads of their box, switches between boxes sum and multicast."""
    n = group.per_box
    inside = group.box_Bps * n / (2 * (n - 1)) if n > 1 else np.inf
    speed = min(group.net_Bps, inside) * setting.share
    if group.hopper:
        speed *= p.COLLNET_HOPPER
    latency = group.hop_s("collnet-direct", 2, inside=False)
    if n > 1:
        latency += 2 * (group.hop_s("collnet-direct", 2, inside=True) + (n - 1) * p.ARITY_US * _US)
    return _candidate(group, setting, "collnet", 2, latency, size / speed, size / speed)


def _direct(group: Group, setting: _Setting) -> Candidate:
    """Every block goes directly from its source to its destination, all at once; the busiest link decides."""
    one, network = group.generation, group.network
    latency_us = p.PAIRS_BOX_US if group.hopper else p.BASE_US["ring"][2]
    nic = 1.0
    if group.boxes > 1:
        count, points = group.boxes, p.PAIRS_US
        latency_us = float(np.interp(count, [x for x, _ in points], [y for _, y in points]))
        latency_us *= max(1.0, count / points[-1][0])
        nic = p.NIC_EFFICIENCY * (1 - p.PAIRS_NIC_LOSS / count)
    src, dst, count_bytes = _pairs(group)
    table = network.table(src, dst, group.report)
    per_link = np.repeat(count_bytes, np.diff(table.link_begin)) * table.shares
    load = np.bincount(table.links, per_link, network.topology.links)
    speed = network.topology.link_bandwidth_Bps * np.where(group.inside, one.pairs_efficiency, nic)
    bytes_s = float((load / speed).max(initial=0.0))
    latency = np.array([latency_us * _US, max(latency_us * _US, *group.latency_s.values())])
    measured = None
    if setting.software is not None and group.boxes == 1:
        sent_us = float((load / network.topology.link_bandwidth_Bps).max(initial=0.0)) / _US
        peers = int(max(np.bincount(src).max(initial=1), np.bincount(dst).max(initial=1)))
        message = float(count_bytes.max(initial=0.0))
        hop_us = group.latency_s[True] / _US
        measured = setting.software.pairs.us(peers, message, sent_us, hop_us)
    return _candidate(group, setting, "direct", 2, latency, bytes_s, bytes_s, measured=measured)


def _pairs(group: Group) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[Any]]:
    """Return the source, destination and bytes of every message."""
    part, n = group.part, group.n
    members = part.group
    if part.kind == "send_recv":
        return part.inputs, part.outputs, part.bytes
    src, dst = np.repeat(members, n), np.tile(members, n)
    kind = kind_of(part)
    each = np.full(n * n, part.size / n) if kind.even else part.bytes
    kept = src != dst
    if kind.rooted:
        kept &= (dst if kind.whole_output else src) == members[part.root]
    return src[kept], dst[kept], each[kept]
