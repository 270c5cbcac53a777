"""Traces in files: for Perfetto, for Chrome, as CSV, and as Parquet.

Files are written in batches, so writing a long trace takes little memory.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tacos._core import write_perfetto
from tacos._support.files import replacing
from tacos.errors import FormatError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tacos.simulate.trace import Trace

__all__ = ["format_of", "write"]

_BATCH = 1 << 16
_ALL_FLOWS = 100_000
"""Largest number of intervals for which all dependencies are shown; otherwise only those of the critical path (chosen)."""
_COUNTER_BINS = 500
_PS_PER_US = 10**6


def write(trace: Trace, path: str | os.PathLike[str], *, format: str | None = None) -> None:
    """Write a trace in the format given by the name's extension, or by `format`."""
    chosen = format_of(path, format)
    with replacing(path) as out, _compressed(out, chosen.endswith(".gz")) as stream:
        _writers()[chosen](trace, stream)


def format_of(
    path: str | os.PathLike[str], format: str | None = None, *, pictures: Sequence[str] = ()
) -> str:
    """Return the format given by a name's extension, or by `format`.

    `pictures` are further extensions that the caller handles, for the error message.

    >>> format_of("run.perfetto.json.gz")
    'json.gz'
    >>> format_of("trace.png")
    Traceback (most recent call last):
    tacos.errors.FormatError: trace.png: a trace must have one of the extensions .pftrace, .pftrace.gz, .json, .json.gz, .csv, .csv.gz, .parquet
    >>> format_of("trace.gif", pictures=[".svg", ".png"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tacos.errors.FormatError: trace.gif: a trace must have one of the extensions ..., .parquet, or .svg, .png for a picture or a page
    """
    name = Path(path).name.lower()
    chosen = format or next((ending for ending in _writers() if name.endswith(f".{ending}")), "")
    if chosen not in _writers():
        allowed = ", ".join(f".{ending}" for ending in _writers())
        drawn = f", or {', '.join(pictures)} for a picture or a page" if pictures else ""
        raise FormatError(f"{path}: a trace must have one of the extensions {allowed}{drawn}")
    return chosen


def _writers() -> dict[str, Callable[[Trace, IO[bytes]], None]]:
    return {
        "pftrace": _write_perfetto,
        "pftrace.gz": _write_perfetto,
        "json": _write_chrome,
        "json.gz": _write_chrome,
        "csv": _write_csv,
        "csv.gz": _write_csv,
        "parquet": _write_parquet,
    }


@contextmanager
def _compressed(out: IO[bytes], wanted: bool) -> Iterator[IO[bytes]]:
    if not wanted:
        yield out
        return
    import gzip

    # The file holds no name or time of creation, so equal traces give equal files.
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=5, mtime=0) as stream:
        yield stream  # type: ignore[misc]


# --- tables -------------------------------------------------------------------------------------

_COLUMNS = ("event", "transfer", "link", "src", "dst", "begin_ps", "end_ps", "bytes")


def _tables(trace: Trace) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Yield the batches of one table: busy intervals (without bytes), then arrivals (without link and src)."""
    src, dst = trace.topology.link_src, trace.topology.link_dst
    for begin in range(0, len(trace.link), _BATCH):
        part = slice(begin, begin + _BATCH)
        link = trace.link[part]
        yield (
            "busy",
            {
                "transfer": trace.transfer[part],
                "link": link,
                "src": src[link],
                "dst": dst[link],
                "begin_ps": trace.begin_ps[part],
                "end_ps": trace.end_ps[part],
            },
        )
    for begin in range(0, len(trace.arrival_npu), _BATCH):
        part = slice(begin, begin + _BATCH)
        yield (
            "arrival",
            {
                "transfer": trace.arrival_transfer[part],
                "dst": trace.arrival_npu[part],
                "begin_ps": trace.arrival_ps[part],
                "end_ps": trace.arrival_ps[part],
                "bytes": trace.arrival_bytes[part],
            },
        )


def _write_csv(trace: Trace, out: IO[bytes]) -> None:
    out.write((",".join(_COLUMNS) + "\n").encode())
    for event, columns in _tables(trace):
        cells: list[Iterable[Any]] = [
            columns[name].tolist() if name in columns else [""] * len(columns["transfer"])
            for name in _COLUMNS[1:]
        ]
        lines = [f"{event},{','.join(map(str, row))}\n" for row in zip(*cells, strict=True)]
        out.write("".join(lines).encode())


def _write_parquet(trace: Trace, out: IO[bytes]) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise FormatError("Parquet needs pyarrow: pip install 'tacos-ccl[arrow]'") from None
    types = {"transfer": pa.int32(), "link": pa.int32(), "src": pa.int32(), "dst": pa.int32()}
    event_type = pa.dictionary(pa.int8(), pa.string())
    names = pa.array(["busy", "arrival"])
    schema = pa.schema(
        [("event", event_type), *((name, types.get(name, pa.int64())) for name in _COLUMNS[1:])]
    )
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for event, columns in _tables(trace):
            count = len(columns["transfer"])
            codes = pa.array(np.full(count, int(event == "arrival"), np.int8))
            arrays = [pa.DictionaryArray.from_arrays(codes, names)]
            for field in list(schema)[1:]:
                if field.name in columns:
                    arrays.append(pa.array(np.asarray(columns[field.name])))
                else:
                    arrays.append(pa.nulls(count, field.type))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


# --- Perfetto -----------------------------------------------------------------------------------


def _write_perfetto(trace: Trace, out: IO[bytes]) -> None:
    """Write Perfetto's protobuf: one track per link and per NPU, counters, and flows along causes."""
    edges, busy = _busy_links(trace)
    links = np.maximum(trace.topology.links, 1)
    arrived, received = trace.npu_progress(len(edges) - 1)
    total = received.sum(axis=0)
    cause = np.zeros(0, np.int32)
    if trace.cause is not None:
        cause = np.full(len(trace.cause), -1, np.int32)
        waiting = _waiting(trace)
        cause[waiting] = trace.cause[waiting]
    write_perfetto(
        trace.topology,
        link=trace.link,
        begin_ps=trace.begin_ps,
        end_ps=trace.end_ps,
        transfer=trace.transfer,
        arrival_npu=trace.arrival_npu,
        arrival_ps=trace.arrival_ps,
        arrival_bytes=trace.arrival_bytes,
        arrival_transfer=trace.arrival_transfer,
        cause=cause,
        chunk=np.zeros(0, np.uint32) if trace.chunk is None else trace.chunk,
        counters=[
            ("busy links", "links", _picoseconds(edges), busy),
            ("busy share of all links", "%", _picoseconds(edges), 100 * busy / links),
            ("received", "bytes", _picoseconds(arrived[1:]), total.astype(np.float64)),
        ],
        about=json.dumps(trace.provenance, default=str),
        sink=out.write,
    )


def _picoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1e12).astype(np.int64)


# --- Chrome -------------------------------------------------------------------------------------

_LINKS, _NPUS = 1, 2  # the two groups of tracks


def _write_chrome(trace: Trace, out: IO[bytes]) -> None:
    """Write Chrome's trace events: one track per link and per NPU, counters, and arrows along causes."""
    out.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    for batch in _events(trace):
        out.write(",\n".join(batch).encode() + b",\n")
    facts = json.dumps({"provenance": trace.provenance}, default=str)
    out.write(b'{"ph":"M","pid":1,"name":"trace_done","args":{}}\n],"otherData":')
    out.write(facts.encode() + b"}\n")


def _events(trace: Trace) -> Iterator[list[str]]:
    chunk = trace.chunk

    def name(transfer: int) -> str:
        return f"transfer {transfer}" if chunk is None else f"chunk {chunk[transfer]}"

    yield from _names(trace)
    for begin in range(0, len(trace.link), _BATCH):
        part = slice(begin, begin + _BATCH)
        columns = (trace.link, trace.transfer, trace.begin_ps, trace.end_ps - trace.begin_ps)
        yield [
            f'{{"ph":"X","pid":{_LINKS},"tid":{link},"ts":{_us(at)},"dur":{_us(long)},'
            f'"name":"{name(transfer)}","args":{{"transfer":{transfer}}}}}'
            for link, transfer, at, long in zip(*(c[part].tolist() for c in columns), strict=True)
        ]
    for begin in range(0, len(trace.arrival_npu), _BATCH):
        part = slice(begin, begin + _BATCH)
        arrivals = (
            trace.arrival_npu,
            trace.arrival_transfer,
            trace.arrival_ps,
            trace.arrival_bytes,
        )
        yield [
            f'{{"ph":"i","s":"t","pid":{_NPUS},"tid":{npu},"ts":{_us(at)},'
            f'"name":"{name(transfer)}","args":{{"transfer":{transfer},"bytes":{size}}}}}'
            for npu, transfer, at, size in zip(*(c[part].tolist() for c in arrivals), strict=True)
        ]
    yield _counters(trace)
    yield from _flows(trace)


def _names(trace: Trace) -> Iterator[list[str]]:
    def named(what: str, pid: int, tid: int, name: str) -> str:
        return (
            f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{what}",'
            f'"args":{{"name":{json.dumps(name)}}}}}'
        )

    topology = trace.topology
    yield [named("process_name", _LINKS, 0, "links"), named("process_name", _NPUS, 0, "NPUs")]
    for begin in range(0, topology.links, _BATCH):
        links = range(begin, min(begin + _BATCH, topology.links))
        ends = [
            [topology.node_name(node) for node in column[begin : begin + _BATCH].tolist()]
            for column in (topology.link_src, topology.link_dst)
        ]
        yield [
            named("thread_name", _LINKS, link, f"link {link}: {src} -> {dst}")
            for link, src, dst in zip(links, *ends, strict=True)
        ]
    yield [named("thread_name", _NPUS, i, topology.node_name(i)) for i in range(topology.npus)]


def _counters(trace: Trace) -> list[str]:
    """Return how many links are busy, over time."""
    edges, busy = _busy_links(trace)
    return [
        f'{{"ph":"C","pid":{_LINKS},"ts":{at * 1e6:.6f},"name":"busy links",'
        f'"args":{{"links":{value:.3f}}}}}'
        for at, value in zip(edges.tolist(), busy.tolist(), strict=True)
    ]


def _busy_links(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how many links are busy on average from each moment to the next; none after the last."""
    bins = min(_COUNTER_BINS, max(1, trace.time_ps))
    edges, share = trace.utilisation_over_time(bins)
    return edges, np.append(share.sum(axis=0), 0.0)


def _flows(trace: Trace) -> Iterator[list[str]]:
    """Yield arrows from the transfer that was waited for to the one that waited."""
    if trace.cause is None or not len(trace.link):
        return
    waiting = _waiting(trace)
    # The first interval of each transfer: in the reversed assignment, the last write wins.
    first = np.zeros(len(trace.cause), np.int64)
    first[trace.transfer[::-1]] = np.arange(len(trace.link))[::-1]
    for begin in range(0, len(waiting), _BATCH):
        late = waiting[begin : begin + _BATCH]
        source, target = first[trace.cause[late]], first[late]
        events = []
        columns = (
            late,
            trace.link[source],
            trace.begin_ps[source],
            trace.link[target],
            trace.begin_ps[target],
        )
        for number, a, at, b, to in zip(*(c.tolist() for c in columns), strict=True):
            same = f'"pid":{_LINKS},"id":{number},"cat":"cause","name":"waits for"'
            events.append(f'{{"ph":"s",{same},"tid":{a},"ts":{_us(at)}}}')
            events.append(f'{{"ph":"f","bp":"e",{same},"tid":{b},"ts":{_us(to)}}}')
        yield events


def _waiting(trace: Trace) -> NDArray[Any]:
    """Return the transfers that arrows point to: all that waited, or those of the critical path."""
    if trace.cause is not None and len(trace.link) <= _ALL_FLOWS:
        return np.flatnonzero(trace.cause >= 0)
    return trace.critical_path()["transfer"][1:]


def _us(picoseconds: int) -> str:
    return f"{picoseconds // _PS_PER_US}.{picoseconds % _PS_PER_US:06d}"
