"""Run algorithms over MPI; needs mpi4py.

Ranks are those of an MPI communicator, and data are MPI messages, see :mod:`tacos.runtime.carriers.mpi`.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from tacos.runtime.carriers.mpi import Mpi
from tacos.runtime.communicator import Communicator

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

__all__ = ["all_reduce", "connect", "end_job_at_exit"]

_OPS = {
    "sum": MPI.SUM, "product": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX, "avg": MPI.SUM,
    "band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR,
}  # fmt: skip


def connect(comm: MPI.Intracomm | None = None, *, timeout: float = 300.0) -> Communicator:
    """Run algorithms over MPI; all ranks of the communicator must call this together.

    Args:
        comm: An mpi4py communicator. Default: the world. It is duplicated, so that messages do not
            mix with the caller's.
        timeout: Seconds without progress after which a call fails.

    >>> import numpy as np, tacos
    >>> with connect() as ranks:  # doctest: +SKIP
    ...     topo = tacos.topology.ring(ranks.size)
    ...     ring = tacos.synthesize(topo, tacos.collective.all_reduce(topo, "1MB", chunks=1))
    ...     ranks.prepare(ring).run(np.arange(4.0))
    array([0., 1., 2., 3.])
    """
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout} s; it must be positive")
    carrier = Mpi(MPI.COMM_WORLD if comm is None else comm, timeout=timeout)
    return Communicator(carrier.rendezvous, timeout=timeout, carrier="mpi", opened={"mpi": carrier})


def end_job_at_exit(code: int) -> None:
    """End all processes when this one ends, since one that hangs would keep them in MPI_Finalize."""
    atexit.register(MPI.COMM_WORLD.Abort, code)


def all_reduce(
    communicator: Communicator, array: np.ndarray[Any, Any], op: str
) -> Callable[[], None] | None:
    """Return MPI's own all-reduce of an array, in place, for comparison; None if MPI does not support the type."""
    carrier = communicator.open("mpi")
    assert isinstance(carrier, Mpi)
    data = carrier.data

    def run() -> None:
        data.Allreduce(MPI.IN_PLACE, array, _OPS[op])

    try:
        run()
    except (MPI.Exception, KeyError):  # by MPI, and by mpi4py
        return None
    return run
