"""Costs of messages between hosts, from matrices and topologies."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.schedule import paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["Costs"]

_SHOWN = 5
_RANK = re.compile(r"(.+):(\d+)")


@dataclass(frozen=True)
class Costs:
    """The costs of messages between hosts.

    Attributes:
        names: The hosts.
        ranks: The ranks (or NPUs) of each host, in their order.
        latency_s: Seconds of an empty message, from host to host.
        byte_s: Seconds per byte; None if only latencies are known.
        network: The topology whose links the messages share, if known.
        npus: The NPU that represents each host in that topology.
        source: Where the costs come from, for messages.
    """

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    latency_s: NDArray[np.float64]
    byte_s: NDArray[np.float64] | None = None
    network: Topology | None = None
    npus: tuple[int, ...] = ()
    source: str = "the matrix"

    def only(self, hosts: Sequence[str], source: str = "hosts") -> Costs:
        """Return the costs between some of the hosts, in the given order.

        >>> from tacos.reorder.sources import costs_of
        >>> three = costs_of(np.array([[0, 1, 2], [1, 0, 3], [2, 3, 0]]))
        >>> three.only(["2", "0"]).latency_s.tolist()
        [[0.0, 2.0], [2.0, 0.0]]
        """
        at = {name: i for i, name in enumerate(self.names)}
        unknown = [name for name in hosts if name not in at]
        if unknown:
            raise ValueError(f"{source} names {_list(unknown)}, which {self.source} does not have")
        twice = [name for name, count in Counter(hosts).items() if count > 1]
        if twice:
            raise ValueError(f"{source} names {_list(twice)} more than once")
        chosen = [at[name] for name in hosts]
        if len(chosen) < 2:
            raise ValueError(f"an order needs at least two hosts; {source} names {len(chosen)}")
        both = np.ix_(chosen, chosen)
        return replace(
            self,
            names=tuple(hosts),
            ranks=tuple(self.ranks[i] for i in chosen),
            latency_s=self.latency_s[both],
            byte_s=None if self.byte_s is None else self.byte_s[both],
            npus=tuple(self.npus[i] for i in chosen) if self.npus else (),
        )


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def refuse(wrong: NDArray[np.bool_], names: Sequence[str], what: str, how: str) -> None:
    """Raise an error that names the pairs of hosts that are wrong, if there are any."""
    src, dst = np.nonzero(wrong & ~np.eye(len(names), dtype=bool))
    if len(src):
        pairs = [
            f"{names[i]} to {names[j]}" for i, j in zip(src.tolist(), dst.tolist(), strict=True)
        ]
        raise ValueError(f"{what} {how} {_list(pairs)}")


def square(matrix: NDArray[np.float64], names: Sequence[str] | None, what: str) -> Any:
    """Return the matrix with zeros on its diagonal; refuse it if it is not square or has gaps."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        shape = " x ".join(map(str, matrix.shape)) or "a single number"
        raise ValueError(f"{what} is {shape}; it must be square, a row and a column for every host")
    if len(matrix) < 2:
        raise ValueError(f"an order needs at least two hosts; {what} has {len(matrix)}")
    names = names or [str(i) for i in range(len(matrix))]
    refuse(~np.isfinite(matrix), names, what, "has no value for")
    refuse(matrix < 0, names, what, "is negative for")
    return np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)


def grouped(
    names: Sequence[str],
    latency: NDArray[np.float64],
    byte_s: NDArray[np.float64] | None,
    source: str,
) -> Costs:
    """Convert costs between ranks to costs between their hosts: the median over pairs of ranks."""
    matches = [_RANK.fullmatch(name) for name in names]
    if not all(matches):
        alone = tuple((i,) for i in range(len(names)))
        return Costs(tuple(names), alone, latency, byte_s, source=source)
    members: dict[str, list[int]] = {}
    for rank, match in enumerate(matches):
        assert match is not None
        members.setdefault(match[1], []).append(rank)
    hosts = list(members)
    if len(hosts) < 2:
        raise ValueError(f"{source} has one host only, {hosts[0]}; an order needs at least two")

    def between(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        result = np.zeros((len(hosts), len(hosts)))
        for i, a in enumerate(hosts):
            for j, b in enumerate(hosts):
                if i != j:
                    result[i, j] = np.median(matrix[np.ix_(members[a], members[b])])
        return result

    ranks = tuple(tuple(some) for some in members.values())
    return Costs(
        tuple(hosts),
        ranks,
        between(latency),
        None if byte_s is None else between(byte_s),
        source=source,
    )


def of_topology(network: Topology, source: str, npus_per_host: int | None = None) -> Costs:
    """Return the costs of routes between the first NPUs of all hosts; names host:number define the hosts."""
    names = list(network.names[: network.npus]) or [str(i) for i in range(network.npus)]
    if npus_per_host is not None:
        if npus_per_host < 1 or network.npus % npus_per_host:
            raise ValueError(
                f"npus_per_host must divide the {network.npus} NPUs of {source}; got {npus_per_host}"
            )
        names = [f"host{i // npus_per_host}:{i % npus_per_host}" for i in range(network.npus)]
    if network.npus < 2:
        raise ValueError(f"an order needs at least two hosts; {source} has one NPU")
    zero = np.zeros((network.npus, network.npus))
    hosts = grouped(names, zero, None, source)
    npus = np.array([some[0] for some in hosts.ranks], np.int32)
    n = len(npus)
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    table = paths(network, (npus[i], npus[j]))
    first = table.link_begin[:-1]
    latency, byte_s = np.zeros((n, n)), np.zeros((n, n))
    latency[i, j] = np.add.reduceat(network.link_latency_ps[table.links], first) / 1e12
    byte_s[i, j] = np.maximum.reduceat(
        1 / network.link_bandwidth_Bps[table.links].astype(float), first
    )
    return Costs(hosts.names, hosts.ranks, latency, byte_s, network, tuple(npus.tolist()), source)
