"""The command line application, and the arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

import tacos
from tacos import formats
from tacos._core import Program, Schedule, Topology
from tacos.errors import FormatError

app = App(
    name="tacos",
    help="Collective communication algorithms that fit the network they run on.",
    version=tacos.__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # main() says that nothing was written
)

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for scripts.")]
Quiet = Annotated[bool, Parameter(negative="", help="Print nothing but errors.")]
Network = Annotated[
    str,
    Parameter(
        help="A spec such as torus:4x4@50GB/s,500ns or dgx-h100:2, or a file; node.xml:4 or "
        "node.xml:4:rail are four machines that NCCL has described."
    ),
]
Kind = Annotated[str, Parameter(help="all-reduce, all-gather, reduce-scatter, all-to-all, …")]
Size = Annotated[str, Parameter(help="Size of the buffer as nccl-tests counts it, such as 64MB.")]
Chunks = Annotated[
    str, Parameter(help="Pieces per NPU's part: a number, or auto to search the best.")
]
Group = Annotated[
    str | None, Parameter(help="NPUs that take part, in rank order: 0,2,4 or 0-7. All by default.")
]
Algorithm = Annotated[Path, Parameter(help="A schedule or a program, in any format that is read.")]
Format = Annotated[
    str | None, Parameter(help="The file's format, if ending and content do not say it.")
]
Root = Annotated[int | None, Parameter(help="Root of a broadcast, reduce, gather or scatter.")]


def load_algorithm(path: Path, format: str | None = None) -> Schedule | Program:
    """The schedule or program in a file."""
    loaded: Schedule | Program | Topology = formats.load(path, format=format)
    if isinstance(loaded, Topology):
        raise FormatError(f"{path} holds a topology, not a schedule or a program")
    return loaded
