"""When each node of a simulated workload ran: ranks and their streams, for Perfetto and as CSV.

A rank has four streams: computations; sends, collectives, loads and stores; receives; and computations of its CPU.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from tacos._support.files import replacing
from tacos.errors import FormatError
from tacos.workload import COLL, COMMS, COMP, RECV, Workload

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["ENDINGS", "STREAMS", "Timeline"]

STREAMS = ("compute", "communication", "receive", "cpu")
"""The streams of a rank, by number."""
ENDINGS = (".json", ".json.gz", ".csv")
"""Files that a timeline can be written to."""
_KINDS = ("send", "recv", "comp", "coll", "load", "store")
_BATCH = 1 << 16


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each node of a workload began and ended, in picoseconds.

    Attributes:
        workload: The nodes.
        begin_ps: When each node began.
        end_ps: When it ended.

    >>> from tacos.workload import from_nodes
    >>> one = from_nodes(1, rank=[0], kind=COMP, duration_ps=5000)
    >>> Timeline(one, np.array([0]), np.array([5000])).stream.tolist()
    [0]
    """

    workload: Workload
    begin_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]

    @property
    def stream(self) -> NDArray[np.uint8]:
        """Number of each node's stream in `STREAMS`."""
        kind = self.workload.kind
        found = np.where(kind == COMP, np.where(self.workload.on_cpu, 3, 0), 1)
        return np.where(kind == RECV, 2, found).astype(np.uint8)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline: ``.json`` (or ``.json.gz``) for Perfetto and Chrome, ``.csv`` as a table.

        Raises:
            FormatError: The extension is unknown, or the file cannot be written.

        >>> from tacos.workload import from_nodes
        >>> line = Timeline(from_nodes(1, rank=[0], kind=COMP), np.array([0]), np.array([1000]))
        >>> line.save("line.png")
        Traceback (most recent call last):
        tacos.errors.FormatError: line.png: a timeline must have one of the extensions .json, .json.gz, .csv
        """
        name = Path(path).name.lower()
        if not name.endswith(ENDINGS):
            raise FormatError(
                f"{path}: a timeline must have one of the extensions {', '.join(ENDINGS)}"
            )
        write = _write_csv if name.endswith(".csv") else _write_chrome
        try:
            with replacing(path) as out:
                if not name.endswith(".gz"):
                    write(self, out)
                    return
                import gzip

                # The file holds no name or time of creation, so equal timelines give equal files.
                with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as stream:
                    write(self, stream)  # type: ignore[arg-type]
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror or error}") from None

    def label(self, row: int) -> str:
        """Return a short name of a node: its own, or its kind."""
        w = self.workload
        own: str = w.names[w.name[row]]
        if own:
            return own
        kind = int(w.kind[row])
        return list(COMMS)[w.comm[row]] if kind == COLL else _KINDS[kind]


def _write_csv(line: Timeline, out: IO[bytes]) -> None:
    w = line.workload
    out.write(b"rank,stream,id,kind,begin_ps,end_ps,bytes,flops,peer,group\n")
    columns = (w.rank, line.stream, w.id, w.kind, line.begin_ps, line.end_ps, w.bytes, w.flops, w.peer,
               w.group)  # fmt: skip
    for first in range(0, w.nodes, _BATCH):
        part = slice(first, first + _BATCH)
        rows = zip(*(column[part].tolist() for column in columns), strict=True)
        text = "".join(
            f"{rank},{STREAMS[stream]},{node},{_KINDS[kind]},{','.join(map(str, rest))}\n"
            for rank, stream, node, kind, *rest in rows
        )
        out.write(text.encode())


def _write_chrome(line: Timeline, out: IO[bytes]) -> None:
    """Write Chrome's trace events: a process per rank, a thread per stream."""
    out.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    for number, text in enumerate(_events(line)):
        out.write((",\n" if number else "").encode() + text.encode())
    out.write(b"\n]}\n")


def _events(line: Timeline) -> Iterator[str]:
    w = line.workload
    streams = line.stream
    used = sorted(set(zip(w.rank.tolist(), streams.tolist(), strict=True)))
    for rank in range(w.npus):
        yield f'{{"ph":"M","pid":{rank},"name":"process_name","args":{{"name":"rank {rank}"}}}}'
    for rank, stream in used:
        yield (
            f'{{"ph":"M","pid":{rank},"tid":{stream},"name":"thread_name",'
            f'"args":{{"name":"{STREAMS[stream]}"}}}}'
        )
    for row in range(w.nodes):
        begin, end = int(line.begin_ps[row]), int(line.end_ps[row])
        yield (
            f'{{"ph":"X","pid":{w.rank[row]},"tid":{streams[row]},"ts":{begin / 1e6},"dur":{(end - begin) / 1e6},'
            f'"name":{json.dumps(line.label(row))},"cat":"{_KINDS[w.kind[row]]}",'
            f'"args":{{"id":{w.id[row]},"bytes":{w.bytes[row]},"flops":{w.flops[row]},"group":{w.group[row]}}}}}'
        )
