"""Carriers move the messages of a program between ranks.

``CARRIERS`` has one record per carrier. A communicator opens a carrier when an algorithm first needs
it, :meth:`Carrier.prepare` turns this rank's share of a program into a :class:`Prepared`, and
:meth:`Prepared.run` makes one call on two addresses. A carrier hides how it moves data: sockets,
MPI requests, streams of a GPU, batches.

The core's ``RankExecutor`` lists the messages that may move and their data. A carrier of host memory need not
keep messages in order, because every message is identified by the step that sends it.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tacos._support.plugins import Table
from tacos._support.variables import read
from tacos.collective import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tacos._core import Collective, Program, RankExecutor
    from tacos.runtime.rendezvous import Rendezvous

__all__ = [
    "CARRIERS",
    "Call",
    "Carrier",
    "CarrierKind",
    "Meeting",
    "Prepared",
    "Unavailable",
    "chosen",
    "described",
    "named",
]

DTYPES = frozenset(
    {
        "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    }
)  # fmt: skip
"""The types that the core can add up."""
OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_BITWISE = frozenset({"band", "bor", "bxor"})


class Unavailable(ValueError):
    """A carrier cannot serve these ranks; the message gives the reason and is the same on all of them."""


class Call(NamedTuple):
    """The data of one call of a prepared algorithm."""

    source: int
    """Address of the input, in memory that the carrier serves."""
    target: int
    """Address of the output."""
    elements: int
    """Elements of the whole buffer, as nccl-tests counts them."""
    dtype: str
    """NumPy's name, or ``bfloat16``."""
    op: str
    """The reduction; ``sum`` if nothing is reduced."""


class Prepared(Protocol):
    """A program that a carrier can run."""

    def run(self, call: Call) -> None:
        """Run one call; all ranks do so together, and the result is complete on return.

        Raises:
            ValueError: The call is not possible here. The carrier can still be used.
            CommunicationError: A rank failed, or called with something else. The carrier has failed.
        """


class Carrier(ABC):
    """An open carrier: this rank's connections to its peers.

    Only :meth:`prepare` must be implemented. The other methods report failures; the defaults suit
    a carrier that cannot detect any.
    """

    on_news: Callable[[int], None] | None = None
    """Called at the end of a call in which a carrier that watches its links has observed something (1), or all ranks
    have learned that they are to meet (2), or both (3)."""

    records: bool = False
    """Whether the carrier records its last calls itself, as ``calls`` and ``count`` of its figures; otherwise the
    communicator does."""

    def figures(self) -> dict[str, Any]:
        """Return ``links``, ``peers``, ``calls``, ``count`` and ``away_s``, or nothing; may be called from any thread."""
        return {}

    def hide(self, number: int) -> None:  # noqa: B027, a default that does nothing
        """Exclude calls of this algorithm from ``count``, since they are not collectives of the job."""

    @property
    def broken(self) -> tuple[int, int] | None:
        """The dead link that has ended a call on all ranks, which may repeat it without the link; or None."""
        return None

    @property
    def failure(self) -> str | None:
        """Why the carrier can no longer be used, or None."""
        return None

    @abstractmethod
    def prepare(self, share: RankExecutor, number: int) -> Prepared:
        """Prepare a program that all ranks agree on; all ranks call this together.

        Args:
            share: This rank's share of the program; ``share.program`` is the whole.
            number: The algorithm's number, the same on all ranks.

        Raises:
            ValueError: The carrier cannot run the program.
        """

    def watch(self, number: int, doing: str) -> str:  # noqa: ARG002
        """Return, between calls, why some rank will not prepare this algorithm, or an empty string.

        ``doing`` describes what this rank does meanwhile, for the message. Raises CommunicationError if a rank
        has failed.
        """
        return ""

    def interrupt(self, why: str) -> None:  # noqa: B027, a default that does nothing
        """End the current call and all later ones; may be called from any thread."""

    def abort(self, why: str) -> None:  # noqa: B027
        """Tell the peers that this rank gives up; no call may be running here."""

    def close(self) -> None:  # noqa: B027
        """Close the connections to the peers."""

    def address(self, peer: int, channel: int = 0) -> str:
        """Return the host at which this rank reaches another.

        Raises:
            ValueError: The carrier does not know it.
        """
        raise ValueError(
            f"channel {channel} to rank {peer} has no address: {type(self).__name__} tells none"
        )


class Meeting(Protocol):
    """The argument of opening a carrier: connected ranks. A communicator is one."""

    timeout: float
    """Seconds without progress after which a call fails."""
    members: Sequence[int] | None
    """The ranks' numbers in the whole job, if they are only a part of it."""
    rendezvous: Rendezvous

    @property
    def rank(self) -> int:
        """This process's number, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """Exchange small values and return those of all ranks, in rank order."""

    def on_host(self, program: Program) -> Prepared:
        """Prepare a correct program on a carrier of host memory, for control messages between ranks."""

    def watch(self) -> str:
        """Return, between calls, which peer has left, or an empty string; raise CommunicationError if one has failed."""

    def give_up(self, why: str) -> None:
        """Tell all peers, over every open carrier, that this rank gives up."""


@dataclass(frozen=True, slots=True)
class CarrierKind:
    """A carrier before it is opened: its name, its module, and its capabilities."""

    name: str
    module: str
    """Imported when the carrier is opened; its ``open_carrier(meeting)`` returns a :class:`Carrier`."""
    memory: Literal["host", "cuda"] = "host"
    """The memory of the buffers of calls."""
    label: str = ""
    """Its name for people."""
    adds: frozenset[str] = DTYPES
    """The types that it can reduce; data of any type can be moved as bytes."""
    package: str = ""
    """The package that it needs, or an empty string."""
    extra: str = ""
    """The extra of tacos-ccl that installs it."""
    reference: Literal["", "gloo", "mpi"] = ""
    """The all-reduce to compare with, which its users already have."""
    target: str = "tcp"
    """The target for synthesizing its schedules, one of :func:`tacos.targets.targets`."""
    launcher: str = ""
    """The command that must start its ranks; empty if any launcher, or none, will do."""
    job: str = ""
    """Module of a carrier whose ranks know each other without ``tacos.runtime.connect``: its ``connect(timeout=…)``
    returns a communicator, and its ``end_job_at_exit(code)`` ends all ranks when this one exits."""

    def reduces(self, dtype: str, op: str) -> bool:
        """Return whether it reduces data of this type with this operation.

        >>> named("tcp").reduces("float16", "sum"), named("tcp").reduces("float32", "band")
        (True, False)
        """
        if (dtype, op) == ("bool", "avg"):
            return False
        return dtype in self.adds and op in OPS and not (op in _BITWISE and "float" in dtype)

    def open(self, meeting: Meeting) -> Carrier:
        """Open the carrier; all ranks must do so together.

        Raises:
            ValueError: A package is missing, or a setting is wrong.
            Unavailable: It cannot serve these ranks.
        """
        self.check_installed()
        carrier: Carrier = importlib.import_module(self.module).open_carrier(meeting)
        return carrier

    def check_installed(self) -> None:
        """Raise a ValueError if its package is missing."""
        if self.package and importlib.util.find_spec(self.package) is None:
            raise ValueError(
                f"the carrier {self.name} needs {self.package}: pip install 'tacos-ccl[{self.extra}]'"
            )


_UNSIGNED = frozenset({"uint16", "uint32", "uint64"})

_BUILT_IN: dict[str, CarrierKind] = {
    kind.name: kind
    for kind in (
        CarrierKind("tcp", "tacos.runtime.carriers.tcp", label="TCP", reference="gloo"),
        CarrierKind(
            "mpi",
            "tacos.runtime.carriers.mpi",
            label="MPI",
            package="mpi4py",
            extra="mpi",
            reference="mpi",
            launcher="mpiexec",
            job="tacos.runtime.mpi",
        ),
        CarrierKind(
            "nccl",
            "tacos.runtime.carriers.nccl",
            memory="cuda",
            label="NCCL",
            adds=DTYPES - _UNSIGNED,  # torch cannot add the others on a GPU
            package="torch",
            extra="torch",
            target="nccl",
        ),
    )
}


def _obstacle(name: str, kind: CarrierKind) -> str:
    """Return what is wrong with a plug-in's record."""
    return "" if kind.name == name else f"its record has another name, {kind.name!r}"


CARRIERS = Table("tacos.carriers", CarrierKind, _BUILT_IN, _obstacle)
"""The carriers by name. The first of each kind of memory is the default for it. Installed packages add theirs with entry
points of the group ``tacos.carriers``."""


def described(collective: Collective) -> str:
    """Return the name of a collective in messages.

    >>> import tacos
    >>> described(tacos.collective.broadcast(4, "1MB", root=2))
    'broadcast from rank 2'
    """
    label = collective.label
    roots = [int(part.group[part.root]) for part in collective.parts if part.root >= 0]
    if len(roots) != 1:
        return label
    return f"{label} {'from' if kind_of(collective.parts[0]).whole_input else 'to'} rank {roots[0]}"


def named(name: str) -> CarrierKind:
    """Return the carrier with this name.

    >>> named("nccl").memory
    'cuda'
    >>> named("rng")
    Traceback (most recent call last):
    ValueError: unknown carrier 'rng'; expected one of tcp, mpi, nccl
    """
    if name not in CARRIERS:
        raise ValueError(f"unknown carrier {name!r}; expected one of {', '.join(CARRIERS)}")
    return CARRIERS[name]


def chosen(
    memory: Literal["host", "cuda"] | None = None, environ: Mapping[str, str] | None = None
) -> CarrierKind:
    """Return the carrier that ``TACOS_CARRIER`` names if it serves this memory, otherwise the default for it.

    >>> chosen("host", {}).name, chosen("cuda", {"TACOS_CARRIER": "mpi"}).name
    ('tcp', 'nccl')
    >>> chosen(environ={"TACOS_CARRIER": "mpi"}).name
    'mpi'
    """
    name = read("TACOS_CARRIER", environ)
    if name and name not in CARRIERS:
        raise ValueError(f"TACOS_CARRIER is {name!r}; expected one of {', '.join(CARRIERS)}")
    if name and memory in (None, CARRIERS[name].memory):
        return CARRIERS[name]
    return next(kind for kind in CARRIERS.values() if kind.memory == (memory or "host"))
