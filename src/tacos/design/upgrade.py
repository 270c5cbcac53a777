"""Which links of a network to upgrade first, for a job: any topology, from cuts and dual values.

A collective takes at least ``need / (w @ b)`` for the link bandwidths b, for every cut and for every way to price links
(:func:`tacos.bound.binding`). The upgrade minimises the job's time under all such limits that bind on the way: those that hold
at the present bandwidths are a start; limits that the new bandwidths violate are added until none is violated. The
problem is that of :mod:`tacos.design.convex` with the capacity of each cut in the place of a dimension.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tacos import units
from tacos.bound import binding
from tacos.collective import named, send_recv, together
from tacos.design.constraints import dollars
from tacos.design.convex import LeastTime, Timing
from tacos.design.jobs import Ranks, TrainingJob, elapsed
from tacos.design.models import ModelJob
from tacos.design.workloads import job
from tacos.errors import check_type
from tacos.nodes import Network, topology_of
from tacos.search.synthesis import synthesize
from tacos.topology.links import assemble, columns_of, model_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tacos._core import Collective, Topology
    from tacos.bound import Binding
    from tacos.design.jobs import Call
    from tacos.design.workloads import Work

    Floats: TypeAlias = NDArray[np.float64]

__all__ = ["LinkKind", "Upgrade", "upgrade"]

_ROUNDS = 40
"""Largest number of rounds that add violated cuts (chosen; a few suffice)."""
_MOST_CABLES = 512
"""Largest number of cables to upgrade one by one (chosen; takes a minute)."""
_SAME = 1e-9
_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class LinkKind:
    """Links that are upgraded together.

    Attributes:
        name: Their ends, without numbers, and their bandwidth.
        links: How many there are.
        bandwidth_Bps: Present bandwidth of each link.
        upgraded_Bps: Bandwidth of each link after the upgrade.
        spent: What the upgrade of all of them costs.
        saved_s_per_GBps: Seconds of the job's bound that the first GB/s more in all of them saves.
        saved_s_per_dollar: The same for the first dollar.
    """

    name: str
    links: int
    bandwidth_Bps: float
    upgraded_Bps: float
    spent: float
    saved_s_per_GBps: float
    saved_s_per_dollar: float


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Where to spend on a network.

    Attributes:
        kinds: Links, the most worthwhile upgrade first.
        topology: The upgraded network.
        spent: What the upgrade costs.
        bound_before_s: Lower bound on the job's time before the upgrade. An all-reduce counts as a reduce-scatter
            and an all-gather, unless switches reduce.
        bound_after_s: The same after it.
        lower_bound_s: No upgrade of this price brings the bound below this.
        synthesized_before_s: The job with the executed times of synthesized collectives; None if not asked for.
        synthesized_after_s: The same after the upgrade.
    """

    kinds: tuple[LinkKind, ...]
    topology: Topology
    spent: float
    bound_before_s: float
    bound_after_s: float
    lower_bound_s: float
    synthesized_before_s: float | None = None
    synthesized_after_s: float | None = None

    @property
    def gap(self) -> float:
        """By how much the proven limit is below the bound after the upgrade."""
        return max(1 - self.lower_bound_s / self.bound_after_s, 0.0) if self.bound_after_s else 0.0

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of plain values per kind of links, for tables, CSV and JSON."""
        return [
            {name: getattr(kind, name) for name in LinkKind.__dataclass_fields__}
            for kind in self.kinds
        ]


def upgrade(
    topology: Network,
    work: Work,
    *,
    spend: str = "10%",
    prices: Mapping[str, float] | None = None,
    per: Literal["kind", "cable"] = "kind",
    synthesized: bool = False,
    progress: Callable[[float], object] | None = None,
) -> Upgrade:
    """Find which links of a network to make faster for a job.

    Args:
        topology: Any network.
        work: A job or a job file; its groups are sizes with strides, all at once, or lists of ranks.
        spend: A share of what all links cost now, such as ``"10%"``, or dollars, such as ``"$5000"``.
        prices: Dollars per GB/s of a link in one direction, by pattern of the links' names; 1 for links that none matches.
        per: ``"kind"`` upgrades links with the same ends (but for numbers), bandwidth and latency together; ``"cable"`` each by
            itself, both directions together.
        synthesized: Whether to synthesize the job's collectives before and after.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: An argument is wrong, or the job does not fit the network.

    >>> import tacos
    >>> from tacos.design import Call, TrainingJob
    >>> boxes = tacos.topology.dgx_h100(4)
    >>> best = upgrade(boxes, TrainingJob((Call("all-reduce", 10**9),)), spend="5%")
    >>> best.kinds[0].name, round(best.bound_before_s / best.bound_after_s, 2)
    ('npu-switch 50GB/s', 1.5)
    """
    topology = topology_of(topology)
    task = job(work)
    if isinstance(task, ModelJob):
        task = task.on(topology.npus)
    if not isinstance(task, TrainingJob):
        raise ValueError("an upgrade needs a job with collectives and groups, such as a job file")  # noqa: TRY004
    if per not in ("kind", "cable"):
        raise ValueError(f'per must be "kind" or "cable"; got {per!r}')
    which, names = _kinds(topology, per)
    if per == "cable" and len(names) > _MOST_CABLES:
        raise ValueError(
            f"the network has {len(names):,} cables; upgrade kinds of links (per kind) beyond {_MOST_CABLES}"
        )
    check_type("spend", spend, str)
    search = _Search(topology, task, which, names, _prices(names, prices), per)
    budget = _spend(spend, search.price @ (search.count * search.now))
    report = progress or (lambda _: None)
    before = search.solve(0.0, lambda share: report(0.2 * share))
    after = search.solve(budget, lambda share: report(0.2 + (0.3 if synthesized else 0.8) * share))
    better = search.network(after.bandwidths)
    times: list[float | None] = [None, None]
    if synthesized:
        times = []
        for i, network in enumerate((topology, better)):
            times.append(_synthesized(network, task))
            report(0.75 + 0.25 * i)
    spent = search.price * search.count * (after.bandwidths - search.now)
    kinds = [
        LinkKind(
            names[k],
            int(search.count[k]),
            float(search.now[k]),
            float(after.bandwidths[k]),
            float(spent[k]),
            float(before.worth[k] * 1e9),
            float(before.worth[k] / (search.price[k] * search.count[k]))
            if search.price[k]
            else math.inf,
        )
        for k in range(len(names))
    ]
    kinds.sort(
        key=lambda kind: (kind.spent <= 1e-9 * budget, -kind.saved_s_per_dollar, -kind.spent)
    )
    return Upgrade(
        tuple(kinds),
        better,
        float(spent.sum()),
        before.time_s,
        after.time_s,
        after.lower_s,
        *times,
    )


def _spend(text: str, present: float) -> float:
    share = _SHARE.fullmatch(text)
    if share is not None and float(share[1]) > 0:
        return present * float(share[1]) / 100
    if text.strip().startswith("$"):
        return dollars(text, what="spend")
    raise ValueError(
        f'spend must be a share such as "10%" or dollars such as "$5000"; got {text!r}'
    )


def _prices(names: Sequence[str], given: Mapping[str, float] | None) -> Floats:
    found = np.ones(len(names))
    for pattern, price in (given or {}).items():
        at = [
            k
            for k, name in enumerate(names)
            if fnmatchcase(name, pattern) or fnmatchcase(name.split(" ")[0], pattern)
        ]
        if not at:
            raise ValueError(
                f"no link matches the price {pattern!r}; the links are {', '.join(names[:6])}"
            )
        if not 0 < price < math.inf:
            raise ValueError(f"the price {pattern!r} must be positive; got {price!r}")
        found[at] = price
    return found / 1e9


def _kinds(topology: Topology, per: str) -> tuple[NDArray[np.intp], list[str]]:
    """Return the kind of each link, and the names of the kinds."""
    src, dst = topology.link_src.tolist(), topology.link_dst.tolist()
    labels: dict[Any, int] = {}
    names: list[str] = []
    which = np.zeros(topology.links, np.intp)
    plain = [topology.node_name(node) for node in range(topology.nodes)]
    bare = [re.sub(r" ?[0-9]+", "*" if topology.names else "", name) for name in plain]
    for link, (a, b) in enumerate(zip(src, dst, strict=True)):
        speed, wait = int(topology.link_bandwidth_Bps[link]), int(topology.link_latency_ps[link])
        first, last = (a, b) if a <= b else (b, a)
        ends = (plain[first], plain[last]) if per == "cable" else (bare[first], bare[last])
        key = (*ends, speed, wait)
        if key not in labels:
            labels[key] = len(names)
            name = f"{ends[0]}-{ends[1]}".replace(" ", "")
            names.append(f"{name} {units.bandwidth_text(speed)}")
        which[link] = labels[key]
    for k, name in enumerate(names):  # kinds that differ in the latency only
        if names.index(name) != k:
            names[k] = f"{name} ({k})"
    return which, names


@dataclass(frozen=True, slots=True)
class _Found:
    bandwidths: Floats
    time_s: float
    lower_s: float
    worth: Floats


class _Search:
    """The upgrade of one network for one job."""

    def __init__(
        self,
        topology: Topology,
        task: TrainingJob,
        which: NDArray[np.intp],
        names: Sequence[str],
        price: Floats,
        per: str,
    ) -> None:
        self.topology, self.task, self.which, self.price = topology, task, which, price
        self.count = np.bincount(which, minlength=len(names)).astype(float)
        self.now = np.array(
            [
                float(topology.link_bandwidth_Bps[np.flatnonzero(which == k)[0]])
                for k in range(len(names))
            ]
        )
        if not names:
            raise ValueError("the topology has no links to upgrade")
        distinct: dict[Any, int] = {}
        self.calls: list[Collective] = []
        self.often: list[float] = []
        for call in task.calls:
            for half in self._halves(call):
                key = (half.collective, half.size_bytes, half.group)
                k = distinct.setdefault(key, len(self.calls))
                if k == len(self.calls):
                    self.calls.append(collective_of(topology, half, task.name))
                    self.often.append(0.0)
                self.often[k] += half.count
        if not self.calls:
            raise ValueError(f"{task.name} has no collectives, so no link makes it faster")
        # Cuts found so far, with the call each belongs to: bytes, and the weight of each kind of links.
        self.cuts: list[tuple[int, float, Floats]] = []
        self.latency = np.zeros(len(self.calls))
        if per == "cable":
            self._cut_each_npu()

    def _halves(self, call: Call) -> list[Call]:
        """Return an all-reduce as a reduce-scatter and an all-gather, unless switches reduce."""
        if call.collective != "all-reduce" or (self.topology.switch_capabilities & 2).any():
            return [call]
        return [replace(call, collective=half) for half in ("reduce-scatter", "all-gather")]

    def _cut_each_npu(self) -> None:
        """Begin with the cuts around single NPUs, which a search would find one by one."""
        for k, collective in enumerate(self.calls):
            ways = {"reduce_scatter": self.topology.link_src, "all_gather": self.topology.link_dst}
            for part in collective.parts:
                for npu in part.group.tolist() if part.kind in ways else ():
                    weights = np.bincount(
                        self.which[ways[part.kind] == npu], minlength=len(self.now)
                    ).astype(float)
                    n = len(part.group)
                    self.cuts.append((k, part.size * (n - 1) / n, weights))

    def network(self, bandwidths: Floats) -> Topology:
        """Return the topology with other bandwidths."""
        columns = columns_of(self.topology)
        rates = np.maximum(np.rint(bandwidths[self.which]), 1).astype(np.int64)
        return assemble(
            self.topology.npus,
            [columns._replace(bandwidth_Bps=rates)],
            capabilities=self.topology.switch_capabilities,
            family=self.topology.family,
            dims=self.topology.dims,
            names=self.topology.names,
            **model_of(self.topology),
        )

    def solve(self, budget: float, progress: Callable[[float], object]) -> _Found:
        bandwidths, lower, worth = self.now, 0.0, np.zeros(len(self.now))
        for round_ in range(_ROUNDS):
            time_s, broken = self._judge(bandwidths)
            if round_ and not broken:
                break
            program = self._program(budget)
            found = program.solve()
            bandwidths = np.maximum(found.bandwidths[: len(self.now)], self.now)
            lower = self.task.compute_s + found.lower_s
            worth = np.zeros(len(self.now))
            for at, (_, _, weights) in enumerate(self.cuts, len(self.now)):
                worth += found.worth[at] * weights
            progress(1 - 0.5 ** (round_ + 1))
        return _Found(bandwidths, time_s, min(lower, time_s), worth)

    def _judge(self, bandwidths: Floats) -> tuple[float, bool]:
        """Return the job's bound at some bandwidths; cuts that were not known are added."""
        network, total, broken = self.network(bandwidths), self.task.compute_s, False
        rates = network.link_bandwidth_Bps.astype(float)
        for k, collective in enumerate(self.calls):
            found: Binding = binding(network, collective)
            self.latency[k] = found.latency_s
            capacity = float(found.weights @ rates)
            seconds = found.bytes / capacity if capacity else 0.0
            known = max(
                (need / float(w @ bandwidths) for call, need, w in self.cuts if call == k),
                default=0.0,
            )
            if seconds > max(known, found.latency_s) * (1 + _SAME) or not any(
                c[0] == k for c in self.cuts
            ):
                weights = np.bincount(self.which, found.weights, len(self.now)).astype(float)
                self.cuts.append((k, found.bytes, weights))
                broken = True
            total += self.often[k] * max(seconds, found.latency_s)
        return total, broken

    def _program(self, budget: float) -> LeastTime:
        """Return the bandwidths of the kinds and the capacities of the cuts, relative to the present ones, and 1."""
        kinds, cuts = len(self.now), len(self.cuts)
        columns = kinds + cuts + 1
        messages = np.zeros((len(self.calls), columns))
        messages[:, -1] = self.latency
        rows, low, high = [], [], []
        for at, (k, need, weights) in enumerate(self.cuts, kinds):
            messages[k, at] = need
            row = np.zeros(columns)
            row[:kinds], row[at] = -weights, 1.0
            rows.append(row)
            low.append(0.0)
            high.append(0.0)
        rows.append(np.eye(columns)[-1])
        low.append(1.0)
        high.append(1.0)
        spent = np.zeros(columns)
        spent[:kinds] = self.price * self.count
        rows.append(spent)
        low.append(-math.inf)
        high.append(float(spent[:kinds] @ self.now) + budget)
        for k in range(kinds):
            rows.append(np.eye(columns)[k])
            low.append(float(self.now[k]))
            high.append(math.inf)
        start = np.concatenate([self.now, [float(w @ self.now) for _, _, w in self.cuts], [1.0]])
        timing = Timing(messages, np.zeros(1), np.array([self.often]))
        return LeastTime([timing], np.array(rows), np.array(low), np.array(high), start)


def collective_of(topology: Topology, call: Call, name: str) -> Collective:
    """Return a call as a collective on a network, all of its groups at once.

    Raises:
        ValueError: The groups do not fit the network.
    """
    npus, group = topology.npus, call.group
    if isinstance(group, tuple):
        what = "a topology needs its size and stride, or its ranks"
        raise ValueError(f"{name}: a group is given by dimensions; {what}")  # noqa: TRY004
    if call.collective == "send":
        pair = group.members if isinstance(group, Ranks) else ()
        if len(pair) != 2:
            raise ValueError(f"{name}: a send needs a group of two ranks")
        return send_recv(topology, [(pair[0], pair[1], call.size_bytes)])
    if isinstance(group, Ranks):
        if max(group.members) >= npus or min(group.members) < 0:
            raise ValueError(
                f"{name}: a group has rank {max(group.members)}, the network {npus} NPUs"
            )
        return named(call.collective, topology, call.size_bytes, group=list(group.members))
    if group is None:
        return named(call.collective, topology, call.size_bytes)
    block = group.size * group.stride
    if npus % block:
        raise ValueError(
            f"{name}: groups of {group.size} ranks, {group.stride} apart, do not divide {npus} NPUs"
        )
    return together(
        *(
            named(
                call.collective,
                topology,
                call.size_bytes,
                group=(first + offset + group.ranks()).tolist(),
            )
            for first in range(0, npus, block)
            for offset in range(group.stride)
        )
    )


def _synthesized(topology: Topology, task: TrainingJob) -> float:
    """Return the executed time of a job with synthesized collectives that run one after another."""
    known: dict[Any, float] = {}
    seconds = []
    for call in task.calls:
        key = (call.collective, call.size_bytes, call.group)
        if key not in known:
            found = synthesize(topology, collective_of(topology, call, task.name), effort="fast")
            known[key] = found.executed_s
        seconds.append(known[key])
    return elapsed(task.steps, seconds, "none")
