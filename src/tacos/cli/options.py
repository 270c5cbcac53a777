"""The options that several verbs share: their words of help, and records of options that belong together.

A record is flattened into the verbs that take it, checks itself, and knows what its options mean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from cyclopts import Parameter

from tacos import collective as collectives
from tacos import console, formats, topology
from tacos._core import Collective, Topology
from tacos.nodes import Nodes


def _nothing() -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Values:
    """What shells offer for an argument, read from the tables of the package when a completion script is written."""

    words: Callable[[], Iterable[str]] = _nothing
    files: Callable[[], Iterable[str]] = _nothing
    """Extensions of files; ``*`` stands for all files, ``/`` for directories."""
    separator: str = ""
    """What separates several values in one word."""


def offered(*found: str, separator: str = "", files: tuple[str, ...] = ()) -> Values:
    """Offer words that are known here, and files with some extensions."""
    return Values(lambda: found, lambda: files, separator)


def endings(*classes: str, written: bool = False) -> Callable[[], Iterable[str]]:
    """Return a function that returns the extensions of files that hold objects of classes.

    >>> ".graphml" in endings("Topology")(), ".graphml" in endings("Schedule", "Program")()
    (True, False)
    """

    def found() -> Iterable[str]:
        known: dict[str, None] = {}
        for one in formats.FORMATS.values():
            kinds = one.kind if isinstance(one.kind, tuple) else (one.kind,)
            if any(kind.__name__ in classes for kind in kinds):
                known |= dict.fromkeys(one.written if written else one.endings)
        return known

    return found


def _specs() -> Iterable[str]:
    return [re.split(r"[\[:]", spec)[0] + ":" for spec in topology.specs()]


def _engines() -> Iterable[str]:
    from tacos.synth import ENGINES

    return ["auto", *ENGINES]


NETWORKS = Values(_specs, endings("Topology"), "*")
ENGINES = Values(_engines)
PICTURES = offered(files=(".svg", ".png", ".pdf"))
DIRECTORIES = offered(files=("/",))
Network = Annotated[
    str,
    NETWORKS,
    Parameter(
        help="A spec such as torus:4x4@50GB/s,500ns or dgx-h100:2 (tacos topo lists them), or a "
        "topology file. node.xml:4 or node.xml:4:rail means four copies of the machine in an NCCL topology file."
    ),
]
Kind = Annotated[
    str, Values(collectives.labels), Parameter(help=f"{', '.join(collectives.labels())}.")
]
Size = Annotated[str, Parameter(help="Buffer size as nccl-tests counts it, such as 64MB.")]
Chunks = Annotated[
    str,
    offered("auto"),
    Parameter(help="Number of chunks per part, or auto to search for the best number."),
]
Algorithm = Annotated[
    Path,
    Values(files=endings("Schedule", "Program", "Workload")),
    Parameter(help="A schedule, a program or a workload in any readable format."),
]
FORMATS = Values(lambda: formats.FORMATS)
Format = Annotated[
    str | None,
    FORMATS,
    Parameter(help="Format of the file; by default recognized by its extension and content."),
]
Seed = Annotated[
    int,
    Parameter(help="Random seed; other seeds may give different, equally good results."),
]
Effort = Annotated[
    str,
    offered("fast", "normal", "high"),
    Parameter(help="Work for each size: fast, normal (about 2 s), high, or a multiple of normal."),
]
On = Annotated[
    str | None,
    offered("processes", "processes:", "dask://", "mpi"),
    Parameter(
        name="--on",
        help="Where to run the work: processes, processes:8, dask://scheduler:8786, or mpi under mpiexec. This process by default.",
    ),
]
PLAIN = Parameter(negative="", show_default=False)
"""An option whose default needs no words: a flag that is off, or what may be given several times."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    """What is printed: tables for people, JSON for scripts, or nothing."""

    as_json: Annotated[bool, PLAIN, Parameter(name="--json", help="Print JSON for scripts.")] = (
        False
    )
    quiet: Annotated[bool, PLAIN, Parameter(help="Print errors only.")] = False

    @property
    def silent(self) -> bool:
        """Whether progress and remarks are left out."""
        return self.as_json or self.quiet

    def show(self, facts: dict[str, Any], title: str) -> None:
        """Print named values."""
        console.show(facts, title, self.as_json, self.quiet)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Members:
    """The NPUs that take part in a collective."""

    group: Annotated[
        str | None,
        Parameter(help="NPUs that take part, in rank order: 0,2,4-7, or names. All by default."),
    ] = None
    root: Annotated[
        str | None,
        Parameter(help="Root of a broadcast, reduce, gather or scatter: number or name."),
    ] = None

    def collective(
        self, network: Topology, kind: str, size: str | int, chunks: str = "auto"
    ) -> Collective:
        """Return the collective that the arguments describe."""
        if chunks != "auto" and not chunks.isdecimal():
            raise ValueError(f"--chunks must be auto or a positive number; got {chunks!r}")
        count: int | Literal["auto"] = "auto" if chunks == "auto" else int(chunks)
        return collectives.named(
            kind,
            network,
            size,
            group=self.members(network),
            chunks=count,
            root=self.head(network),
        )

    def members(self, network: Topology) -> list[int] | None:
        """Return the NPUs of the group, if one was given."""
        return None if self.group is None else Nodes(network).members(self.group, what="--group")

    def head(self, network: Topology) -> int | None:
        """Return the root, if one was given."""
        return None if self.root is None else Nodes(network).npu(self.root, what="--root")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Figures:
    """Files with the figures of a result: a table and a chart."""

    csv: Annotated[
        Path | None, offered(files=(".csv",)), Parameter(help="Write all figures to this file.")
    ] = None
    # The names in these annotations are looked up where a record is derived from this one: PICTURES would be unknown there.
    output: Annotated[
        Path | None,
        offered(files=(".svg", ".png", ".pdf")),
        Parameter(name=["-o", "--output"], help="Draw a chart as .svg, .png or .pdf."),
    ] = None

    def __post_init__(self) -> None:
        """Refuse files that cannot be written, before the work."""
        if self.csv is not None:
            check_folder("--csv", self.csv)
        if self.output is not None:
            from tacos import view

            check_folder("--output", self.output)
            view.checked(self.output, what="--output")


def chosen(*records: Any) -> list[str]:
    """Return the options of records that differ from their defaults.

    >>> chosen(Output(quiet=True), Members(root="3"))
    ['--quiet', '--root']
    """
    found = []
    for record in records:
        hints = get_type_hints(type(record), include_extras=True)
        for field in fields(record):
            if getattr(record, field.name) != field.default:
                no = "no-" if field.default is True else ""
                names = [
                    name
                    for one in hints[field.name].__metadata__
                    if isinstance(one, Parameter)
                    for name in one.name or ()
                    if name.startswith("--")
                ]
                found.append(names[0] if names else f"--{no}{field.name.replace('_', '-')}")
    return found


def effort_of(given: str) -> str | int:
    """Return an effort as searches take it: a word, or a multiple of normal.

    >>> effort_of("high"), effort_of("4")
    ('high', 4)
    """
    return int(given) if given.isdecimal() else given


def check_folder(option: str, path: Path, *, directory: bool = False) -> None:
    """Refuse a path that nothing can be written to, before the work begins; it is one of a file, or of a directory to fill."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option} is {path}, but there is no directory {path.parent}")
    if path.exists() and path.is_dir() != directory:
        found = "not a directory" if directory else "a directory"
        raise ValueError(f"{option} is {path}, which is {found}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"{option} is {path}, but {path.absolute().parent} cannot be written to")
