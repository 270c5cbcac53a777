"""What the results of synthesizers have in common: hops of chunks, in steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tacos import collective as collectives
from tacos import topology as topologies
from tacos import units
from tacos.errors import FormatError, TacosError
from tacos.schedule import COPY, REDUCE, retime, routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacos._core import Collective, Schedule, Topology
    from tacos._support.files import Location
    from tacos.units import Quantity

__all__ = ["Result", "reading"]

_BANDWIDTH, _LATENCY = "50GB/s", "500ns"
_CHUNK_BYTES = 1 << 20


@dataclass
class Result:
    """The NPUs that have each chunk before and after, and the hops that move it.

    Attributes:
        npus: Number of NPUs.
        before: For each chunk, the NPUs that contribute to it or hold it.
        after: For each chunk, the NPUs that must have it.
        sums: Whether chunks with several holders are summed; otherwise the holders have copies.
        hops: Rows (step, chunk, src, dst, switches on the way); steps may be of any ordered type, and switches
            are numbered from 0.
    """

    npus: int
    before: list[set[int]]
    after: list[set[int]]
    sums: bool = True
    hops: list[tuple[Any, int, int, int, tuple[int, ...]]] = field(default_factory=list)

    def schedule(
        self,
        topology: Topology | None,
        size: Quantity | None,
        *,
        engine: str,
        name: str = "",
        **facts: object,
    ) -> Schedule:
        """Return the hops as a schedule, on the given topology or on the links that they use.

        Other arguments are stored in the provenance.

        Raises:
            ValueError: There are no hops, or the topology does not fit.
        """
        if not self.hops:
            raise ValueError("the result moves no chunk")
        if topology is not None and topology.npus != self.npus:
            raise ValueError(
                f"the result is for {self.npus} NPUs, but the topology has {topology.npus}"
            )
        self.hops.sort(key=lambda hop: hop[0])
        goal, chunk = self._collective(size)
        ways = list(dict.fromkeys((src, *via, dst) for _, _, src, dst, via in self._nodes()))
        number = {way: i for i, way in enumerate(ways)}
        if topology is None:
            topology, links = self._implied(ways)
            table = routes(topology, links=links)
            facts["topology"] = "the links that the result uses"
        else:
            table = routes(topology, pairs=([w[0] for w in ways], [w[-1] for w in ways]))
        return retime(
            goal,
            table,
            route=[number[src, *via, dst] for _, _, src, dst, via in self._nodes()],
            chunk=[chunk[c] for _, c, _, _, _ in self.hops],
            step=self._steps(),
            op=self._ops(),
            provenance={"engine": engine} | ({"name": name} if name else {}) | facts,
        ).with_facts(engine=engine, name=name)

    def _nodes(self) -> Iterator[tuple[Any, int, int, int, tuple[int, ...]]]:
        for step, chunk, src, dst, via in self.hops:
            yield step, chunk, src, dst, tuple(self.npus + switch for switch in via)

    def _steps(self) -> list[int]:
        number = {step: i for i, step in enumerate(dict.fromkeys(hop[0] for hop in self.hops))}
        return [number[hop[0]] for hop in self.hops]

    def _implied(self, ways: list[tuple[int, ...]]) -> tuple[Topology, list[list[int]]]:
        links = list(dict.fromkeys(link for way in ways for link in pairwise(way)))
        number = {link: i for i, link in enumerate(links)}
        nodes = max(max(link) for link in links) + 1
        topology = topologies.from_links(
            self.npus,
            [(src, dst, _BANDWIDTH, _LATENCY) for src, dst in links],
            switches=max(nodes - self.npus, 0),
            connected=False,
        )
        return topology, [[number[link] for link in pairwise(w)] for w in ways]

    def _ops(self) -> list[int]:
        """Return the op of each hop: it adds if the destination holds something that the arriving value does not contain."""
        held: list[dict[int, int]] = [{npu: 1 << npu for npu in npus} for npus in self.before]
        ops: list[int] = []
        now: Any = None
        pending: list[tuple[int, int, int]] = []
        for step, chunk, src, dst, _ in self.hops:
            if step != now:
                for c, npu, value in pending:
                    held[c][npu] = held[c].get(npu, 0) | value
                now, pending = step, []
            brings, has = held[chunk].get(src, 0), held[chunk].get(dst, 0)
            adds = self.sums and len(self.before[chunk]) > 1 and bool(has & ~brings)
            ops.append(REDUCE if adds else COPY)
            pending.append((chunk, dst, brings))
        return ops

    def _collective(self, size: Quantity | None) -> tuple[Collective, list[int]]:
        """Return the named collective that this is, if any, and the number of each chunk in it."""
        n, chunks = self.npus, len(self.before)
        total = units.size_bytes(size) if size is not None else chunks * _CHUNK_BYTES
        everyone = set(range(n))
        sources, sinks = self.before, self.after
        parts: list[Any] = []
        kind = ""
        if all(len(s) == 1 for s in sources) and all(t | s == everyone for s, t in self._ends()):
            kind, parts = "all_gather", [min(s) for s in sources]
        elif (
            self.sums and all(s == everyone for s in sources) and all(t == everyone for t in sinks)
        ):
            kind, parts = "all_reduce", [c % n for c in range(chunks)]
        elif self.sums and all(s == everyone for s in sources) and all(len(t) == 1 for t in sinks):
            kind, parts = "reduce_scatter", [min(t) for t in sinks]
        elif all(len(s) == 1 == len(t) for s, t in self._ends()):
            kind, parts = "all_to_all", [(min(s), min(t)) for s, t in self._ends()]
            for npu in range(n):  # results leave out chunks that stay where they are
                missing = max(Counter(parts).values()) - parts.count((npu, npu))
                parts += [(npu, npu)] * missing
        wanted = n * n if kind == "all_to_all" else n
        counts = Counter(parts)
        if kind and len(counts) == wanted and len(set(counts.values())) == 1:
            each = counts[parts[0]]
            if size is None and kind == "all_to_all":  # whose size is one NPU's buffer
                total = n * each * _CHUNK_BYTES
            seen: dict[Any, int] = defaultdict(int)
            ids = []
            for part in parts[:chunks]:
                first = part[0] * n + part[1] if kind == "all_to_all" else part
                ids.append(first * each + seen[part])
                seen[part] += 1
            return collectives.named(kind, n, total, chunks=each), ids
        share = [max(total // chunks, 1)] * chunks
        sums = [self.sums and len(s) > 1 for s in sources]
        goal = collectives.custom(
            n, share, [sorted(s) for s in sources], [sorted(t) for t in sinks], reduces=sums
        )
        return goal, list(range(chunks))

    def _ends(self) -> Iterator[tuple[set[int], set[int]]]:
        return zip(self.before, self.after, strict=True)


@contextmanager
def reading(path: Location) -> Iterator[None]:
    """Turn a ValueError into a FormatError that names the file."""
    try:
        yield
    except FormatError:
        raise
    except (ValueError, OverflowError, RecursionError, TacosError) as error:
        raise FormatError(f"{path}: {error}") from None
