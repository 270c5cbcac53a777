"""Parameter servers: all NPUs push to a server, which sums and sends back the result.

A central server receives n·S bytes and sends n·S, which overlap chunk by chunk; k servers share the
load. Servers may be members of the group (colocated) or any other NPUs (dedicated): with dedicated
ones a worker's port carries S bytes each way, less than the 2(n-1)/n S of a ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.nodes import Node, Nodes
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, routes
from tacos.synth import requirements
from tacos.synth.engine import Engine
from tacos.synth.moves import Moves, by_parts, check_memory, concatenate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Schedule, Topology

__all__ = ["PARAMETER_SERVER", "parameter_server"]


def parameter_server(
    topology: Topology,
    collective: Collective,
    *,
    servers: int | Sequence[Node] = 1,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """All-reduce through servers: chunks go to them in turn, are summed there and sent back.

    Args:
        topology: Any network.
        collective: All-reduces.
        servers: 1 for a central server, the first member; a number for that many members,
            evenly spread; or the NPUs that serve, which need not be members.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> topo = tacos.topology.switch(5, bandwidth="1GB/s", latency=0)
    >>> coll = tacos.collective.all_reduce(topo, "4KB", group=[0, 1, 2, 3], chunks=1)
    >>> parameter_server(topo, coll, servers=[4]).time_ps // 10**6   # 16 KB in, the last 4 KB out
    20
    """
    if not isinstance(servers, int):
        chosen = Nodes(topology).npus(servers, what="servers")
        if not chosen:
            raise ValueError("servers is empty; it must name at least one NPU")
        servers = chosen
    given: int | list[int] = servers

    def moves(part: CollectivePart) -> Moves:
        return _push_and_pull(part, _servers(part, given))

    return by_parts(PARAMETER_SERVER, topology, collective, moves, progress, servers=servers)


def _obstacle(topology: Topology, collective: Collective) -> str:
    for part in collective.parts:
        if needed := requirements.kind(part, lambda kind: kind.two_phases):
            return needed
        if needed := requirements.few_hops(part, _hops(topology, part)):
            return needed
    return ""


def _hops(topology: Topology, part: CollectivePart) -> int:
    """Return the total number of hops if the first member is the server."""
    n = len(part.group)
    if n < 2:
        return 0
    paths = routes(topology, pairs=(part.group[1:], np.repeat(part.group[:1], n - 1)))
    return 2 * n * max(part.chunks, 1) * len(paths.links)


def _servers(part: CollectivePart, servers: int | Sequence[int]) -> NDArray[Any]:
    if not isinstance(servers, int):
        return np.array(servers, np.int32)
    members = len(part.group)
    if not 1 <= servers <= members:
        raise ValueError(f"servers must be 1 to {members} (the group's size); got {servers}")
    return part.group[np.arange(servers) * members // servers]


def _push_and_pull(part: CollectivePart, servers: NDArray[Any]) -> Moves:
    """Return the moves of chunk i to server i mod k and back, ordered so that workers visit servers in turn."""
    n, k = len(part.group), len(servers)
    chunks = np.arange(n * part.chunks)
    check_memory(2 * n * len(chunks))
    worker = np.tile(np.arange(n), len(chunks))
    chunk = np.repeat(chunks, n)
    order = np.lexsort((chunk, (chunk - worker) % n, chunk // k))
    worker, chunk = worker[order], chunk[order]
    # Servers keep their own contributions, and a single worker needs no server.
    others = (part.group[worker] != servers[chunk % k]) & (n > 1)
    worker, chunk = worker[others], chunk[others]
    pairs = np.repeat(part.group, k), np.tile(servers, n)
    route = worker * k + chunk % k
    push = Moves.of(pairs, route, chunk, 0, op=REDUCE, reads=READ_INPUT)
    pull = Moves.of(pairs[::-1], route, chunk, 1, op=COPY, reads=READ_ACC)
    return concatenate([push, pull])


PARAMETER_SERVER = Engine(
    name="parameter-server", solve=parameter_server, baseline=True, obstacle=_obstacle
)
