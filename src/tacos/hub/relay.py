"""Hubs of several racks that train one job: each sums its rack, and they exchange the sums by an all-reduce.

Only sums cross racks, once per hub and not once per worker. The algorithm is synthesized for the network between the
hubs and runs over the package's own runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos import collective, topology
from tacos.runtime.communicator import Communicator
from tacos.runtime.rendezvous import TcpRendezvous
from tacos.search.synthesis import synthesize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tacos._core import Hub, Topology

__all__ = ["Relay"]

_POLL_S = 0.5
_BUCKET_BYTES = 256 << 10


class Relay:
    """The exchange with hubs of other racks.

    Args:
        rank: Number of this hub.
        racks: Number of hubs.
        meeting: ``host:port`` at which hub 0 listens and to which the others connect.
        network: The network between the hubs; by default all are connected equally.
        timeout: Seconds without progress after which the exchange fails.
        token: A secret that all hubs share.
        members: The hubs' numbers among the ranks that ``TACOS_ADDRESSES`` lists, as in a lab.
    """

    def __init__(
        self,
        rank: int,
        racks: int,
        meeting: str,
        *,
        network: Topology | None = None,
        timeout: float = 60.0,
        token: str = "",
        members: Sequence[int] | None = None,
    ) -> None:
        host, _, port = meeting.rpartition(":")
        if racks < 2 or not 0 <= rank < racks:
            raise ValueError(f"rack must be 0 to {racks - 1} of at least 2; got {rank}/{racks}")
        if not host or not port.isdecimal():
            raise ValueError(f"meeting point must be host:port; got {meeting!r}")
        if network is not None and network.npus != racks:
            raise ValueError(f"the network between {racks} hubs has {network.npus} NPUs")
        self.rank, self.racks = rank, racks
        self._network = network or topology.fully_connected(racks)
        self._where = host, int(port)
        self._timeout, self._token, self._members = timeout, token, members

    def run(self, hub: Hub, job: int, ended: Callable[[], bool]) -> None:
        """Exchange the sums of a job, bucket after bucket, until it ends.

        All hubs take the buckets in the same order, from the last: gradients of the last layers come first.
        """
        meeting = TcpRendezvous(
            self.rank, self.racks, *self._where, timeout=self._timeout, token=self._token
        )
        buckets = range(hub.buckets(job) - 1, -1, -1)
        with Communicator(meeting, timeout=self._timeout, members=self._members) as comm:
            demand = collective.all_reduce(self._network, _BUCKET_BYTES)
            algorithm = comm.prepare(synthesize(self._network, demand))
            while not ended():
                for bucket in buckets:
                    while not hub.wait_for_sums(job, bucket, _POLL_S):
                        if ended():
                            return
                    sums = hub.sums(job, bucket)
                    algorithm.run(sums, sums)
                    hub.deliver(job, bucket)
