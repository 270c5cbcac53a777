"""Traces: what every link and every NPU did in a simulation, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tacos import units
from tacos._core import to_html
from tacos._support import frames
from tacos._support.columns import column
from tacos.nodes import link_name
from tacos.simulate.faults import outages

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray
    from pandas import DataFrame
    from pyarrow import Table

    from tacos._core import Topology
    from tacos.simulate.faults import Fault, Straggler

__all__ = ["Trace"]

_BATCH = 1 << 20
_INTERVALS: dict[str, type[np.integer[Any]]] = {
    "begin_ps": np.int64,
    "end_ps": np.int64,
    "link": np.int32,
    "transfer": np.int32,
}
_ARRIVALS: dict[str, type[np.integer[Any]]] = {
    "arrival_ps": np.int64,
    "arrival_npu": np.int32,
    "arrival_bytes": np.int64,
    "arrival_transfer": np.int32,
}
RECORDED = _INTERVALS | _ARRIVALS
"""Columns that a recorded trace has, with their types."""


_RULES = {
    "first-come": "a transfer is ready when its data have arrived; every link serves first come, first "
    "served, and the schedule's times do not count",
    "order": "every link serves its transfers one after another in the schedule's order, each when its "
    "data have arrived",
    "schedule": "every transfer starts at the time that the schedule gives it",
    "shared": "each connection sends one message at a time, and concurrent messages share links fairly",
}
_NO_CONGESTION = "a transfer starts when its data have arrived; links are never busy"
_IMITATED = {
    "astra-sim-aware": "as ASTRA-sim's congestion-aware network: messages queue at every link",
    "astra-sim-unaware": "as ASTRA-sim's congestion-unaware network: messages do not wait for links",
}


def _rule(provenance: Mapping[str, Any]) -> str | None:
    """Return how transfers were served, in words; None where that is not known."""
    if provenance.get("congestion") is False and provenance.get("timing") == "first-come":
        return _NO_CONGESTION
    return _RULES.get(provenance.get("timing", "")) or _IMITATED.get(
        provenance.get("simulator", "")
    )


class Trace:
    """When every link was busy with which transfer, and what arrived when at which NPU.

    Immutable; the attributes from `link` to `chunk` are read-only columns. Times are whole
    picoseconds. A run that was not recorded has no columns of intervals, arrivals and causes: its trace
    tells only when each NPU finished and how long each link was busy. Access to other columns is an error.

    Attributes:
        topology: The network of the run.
        link: The link of each busy interval, in the order in which they begin.
        begin_ps: When it begins.
        end_ps: When it ends.
        transfer: The transfer of each busy interval.
        arrival_npu: The NPU of each arrival (a chunk complete and in its place), in order of time.
        arrival_ps: Time of each arrival.
        arrival_bytes: Bytes of each arrival.
        arrival_transfer: Transfer of each arrival.
        npu_finish_ps: When each NPU finished.
        link_busy_ps: Total busy time of each link.
        cause: For each transfer, the one that it waited for last (for its data or for a link), or -1; None if
            it was not recorded.
        chunk: Chunk of each transfer; None if it was not recorded.
        simulator: ``"tacos"``, or the profile of another simulator; empty if unknown.
        timing: The rule by which our own simulator served transfers; empty for others.
        clean_time_ps: The time of the undisturbed run; None if there was none.
        schedule_time_ps: The schedule's own time; None if there was no schedule.
        disturbed: Whether the run had faults, stragglers, jitter or another network.
        faults: The faults of the run.
        stragglers: Its stragglers.
        jitter_ps: The longest random delay of a delivery.
        provenance: How the trace was made, for people.

    >>> import tacos
    >>> topo = tacos.topology.mesh(2, bandwidth="1GB/s", latency="1us")
    >>> trace = Trace(
    ...     topo, link=[0], begin_ps=[0], end_ps=[10**6], transfer=[0], arrival_npu=[1],
    ...     arrival_ps=[2 * 10**6], arrival_bytes=[1000], arrival_transfer=[0],
    ...     npu_finish_ps=[0, 2 * 10**6], provenance={},
    ... )
    >>> trace.time_s, trace.link_utilisation().tolist()
    (2e-06, [0.5, 0.0])
    """

    __slots__ = (
        "arrival_bytes",
        "arrival_npu",
        "arrival_ps",
        "arrival_transfer",
        "begin_ps",
        "cause",
        "chunk",
        "clean_time_ps",
        "disturbed",
        "end_ps",
        "faults",
        "jitter_ps",
        "link",
        "link_busy_ps",
        "npu_finish_ps",
        "provenance",
        "schedule_time_ps",
        "simulator",
        "stragglers",
        "timing",
        "topology",
        "transfer",
    )

    topology: Topology
    link: NDArray[np.int32]
    begin_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    transfer: NDArray[np.int32]
    arrival_npu: NDArray[np.int32]
    arrival_ps: NDArray[np.int64]
    arrival_bytes: NDArray[np.int64]
    arrival_transfer: NDArray[np.int32]
    npu_finish_ps: NDArray[np.int64]
    link_busy_ps: NDArray[np.int64]
    cause: NDArray[np.int32] | None
    chunk: NDArray[np.uint32] | None
    simulator: str
    timing: str
    clean_time_ps: int | None
    schedule_time_ps: int | None
    disturbed: bool
    faults: tuple[Fault, ...]
    stragglers: tuple[Straggler, ...]
    jitter_ps: int
    provenance: dict[str, Any]

    def __init__(
        self,
        topology: Topology,
        *,
        npu_finish_ps: ArrayLike,
        provenance: Mapping[str, Any],
        link_busy_ps: ArrayLike | None = None,
        cause: ArrayLike | None = None,
        chunk: ArrayLike | None = None,
        simulator: str = "",
        timing: str = "",
        clean_time_ps: int | None = None,
        schedule_time_ps: int | None = None,
        disturbed: bool = False,
        faults: Iterable[Fault] = (),
        stragglers: Iterable[Straggler] = (),
        jitter_ps: int = 0,
        **recorded: ArrayLike,
    ) -> None:
        """Check that the columns fit together, and bring them into the order of time.

        `recorded` are the columns of intervals and arrivals, all of them or none; without them
        `link_busy_ps` has to be given.

        Raises:
            ValueError: The columns do not fit together; the message names one.
        """
        columns = {"npu_finish_ps": column("npu_finish_ps", npu_finish_ps, np.int64)}
        if recorded:
            columns |= _checked_record(topology, recorded)
        if link_busy_ps is None and recorded:
            busy = np.zeros(topology.links, np.int64)
            np.add.at(busy, columns["link"], columns["end_ps"] - columns["begin_ps"])
            link_busy_ps = busy
        columns["link_busy_ps"] = column("link_busy_ps", _or_none(link_busy_ps), np.int64)
        for name, count, what in (
            ("npu_finish_ps", topology.npus, "NPUs"),
            ("link_busy_ps", topology.links, "links"),
        ):
            if len(columns[name]) != count:
                raise ValueError(f"{name} has {len(columns[name])} entries for {count} {what}")
        for name, values in columns.items():
            object.__setattr__(self, name, _read_only(values))
        causes = None if cause is None else _read_only(column("cause", cause, np.int32))
        object.__setattr__(self, "cause", causes)
        chunks = None if chunk is None else _read_only(column("chunk", chunk, np.uint32))
        object.__setattr__(self, "chunk", chunks)
        object.__setattr__(self, "topology", topology)
        for name, value in (
            ("simulator", simulator),
            ("timing", timing),
            ("clean_time_ps", clean_time_ps),
            ("schedule_time_ps", schedule_time_ps),
            ("disturbed", disturbed),
            ("faults", tuple(faults)),
            ("stragglers", tuple(stragglers)),
            ("jitter_ps", jitter_ps),
        ):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "provenance", dict(provenance))

    def __getattr__(self, name: str) -> NoReturn:
        if name in RECORDED:
            raise AttributeError(f"this trace has no {name}: the run was not recorded")
        raise AttributeError(f"a trace has no {name}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a trace is immutable; {name} cannot be set")

    def __repr__(self) -> str:
        what = "not recorded,"
        if self.recorded:
            what = f"{len(self.link)} busy interval{'s' * (len(self.link) != 1)} in"
        return f"<tacos.Trace: {what} {units.format_time(self.time_s)}>"

    # --- figures ----------------------------------------------------------------------------------

    @property
    def recorded(self) -> bool:
        """Whether the trace has intervals and arrivals."""
        return hasattr(self, "link")

    @property
    def time_ps(self) -> int:
        """When the last NPU finished, in picoseconds."""
        return int(self.npu_finish_ps.max(initial=0))

    @property
    def time_s(self) -> float:
        """When the last NPU finished, in seconds."""
        return self.time_ps * 1e-12

    @property
    def loss(self) -> float | None:
        """How much longer the run took than the undisturbed one: 0.1 means 10 %.

        None if there was no undisturbed run.
        """
        clean = self.clean_time_ps
        return self.time_ps / clean - 1 if clean else None

    @property
    def rule(self) -> str:
        """How transfers were served, in words; empty if that is not known."""
        return _rule(self.provenance) or ""

    def busy_ps(self) -> NDArray[np.int64]:
        """Return the total busy time of each link."""
        return self.link_busy_ps

    def link_utilisation(self) -> NDArray[np.float64]:
        """Return the share of the time that each link was busy."""
        share: NDArray[np.float64] = self.busy_ps() / max(1, self.time_ps)
        return share

    def utilisation_over_time(
        self, bins: int = 100
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how busy every link was in equal parts of the time.

        A link that is down is not busy, even if a transfer waits on it.

        Returns:
            The bins + 1 edges in seconds, and a share per link (row) and bin (column). Without
            congestion a link may carry several transfers at once, so the share may exceed 1.
        """
        edges = self._edges(bins)
        inside = np.zeros((self.topology.links, bins), np.int64)
        covered = np.zeros((self.topology.links, bins + 1), np.int64)  # changes of full coverage
        links, begins, ends = self._moving()
        for part in _batches(len(links)):
            link, begin, end = links[part], begins[part], ends[part]
            begin, end = np.minimum(begin, edges[-1]), np.minimum(end, edges[-1])
            first = np.minimum(np.searchsorted(edges, begin, side="right") - 1, bins - 1)
            last = np.maximum(np.searchsorted(edges, end, side="left") - 1, first)
            np.add.at(inside, (link, first), edges[first + 1] - begin)
            np.add.at(inside, (link, last), end - edges[last + 1])
            np.add.at(covered, (link, first + 1), 1)
            np.add.at(covered, (link, last + 1), -1)
        width = np.diff(edges)
        inside += np.cumsum(covered[:, :-1], axis=1) * width
        return _seconds(edges), inside / np.maximum(width, 1)

    def _moving(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return the busy intervals, cut where their links are down."""
        link, begin, end = self.link, self.begin_ps, self.end_ps
        for broken, down, up in outages(self.topology, self.faults):
            last = self.time_ps if up is None else up
            hit = np.flatnonzero((link == broken) & (begin < last) & (end > down))
            after = hit[end[hit] > last]
            rest = np.maximum(begin[after], last), end[after]
            begin, end = begin.copy(), end.copy()
            end[hit] = np.maximum(np.minimum(end[hit], down), begin[hit])
            link = np.append(link, link[after])
            begin, end = np.append(begin, rest[0]), np.append(end, rest[1])
        return link, begin, end

    def npu_progress(self, bins: int = 100) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return how much had arrived at every NPU by the end of equal parts of the time.

        Returns:
            The bins + 1 edges in seconds, and bytes per NPU (row) and bin (column).
        """
        edges = self._edges(bins)
        arrived = np.zeros((self.topology.npus, bins), np.int64)
        for part in _batches(len(self.arrival_npu)):
            when = np.searchsorted(edges[1:], self.arrival_ps[part], side="left")
            where = (self.arrival_npu[part], np.minimum(when, bins - 1))
            np.add.at(arrived, where, self.arrival_bytes[part])
        return _seconds(edges), np.cumsum(arrived, axis=1)

    def critical_path(self) -> dict[str, NDArray[Any]]:
        """Return the chain of transfers that determines the end, first to last.

        Each waited for the one before it, for its data or for a link.

        Returns:
            Columns ``transfer``, ``begin_ps`` (when it took its first link), ``arrival_ps`` (its
            last).

        Raises:
            ValueError: The trace does not record which transfer waited for which.
        """
        if self.cause is None:
            raise ValueError("this trace does not record which transfer waited for which")
        # The legs of two transfers may wait for each other in turn: each transfer appears once.
        chain: dict[int, None] = {}
        if len(self.arrival_ps):
            at = int(self.arrival_transfer[-1])
            while at >= 0 and at not in chain:
                chain[at] = None
                at = int(self.cause[at])
        begin = np.full(len(self.cause), np.iinfo(np.int64).max)
        np.minimum.at(begin, self.transfer, self.begin_ps)
        arrival = np.zeros(len(self.cause), np.int64)
        np.maximum.at(arrival, self.arrival_transfer, self.arrival_ps)
        transfers = np.array(list(chain)[::-1], np.int32)
        return {
            "transfer": transfers,
            "begin_ps": begin[transfers],
            "arrival_ps": arrival[transfers],
        }

    def summary(self) -> dict[str, Any]:
        """Summarize the trace in plain values, for JSON; the names give the units.

        ``rule`` describes how transfers were served. ``slower_than_ideal`` compares the time with the
        schedule's own. ``clean_time_s`` and ``loss`` are present if something disturbed the run: the time of the
        undisturbed run, and how much longer this one took.
        """
        used = self.link_utilisation()
        provenance, topology = self.provenance, self.topology
        facts: dict[str, Any] = {
            "topology": repr(topology)[len("<tacos.Topology ") : -1],
        }
        for name in ("simulator", "timing", "congestion", "transfers"):
            if name in provenance:
                facts[name] = provenance[name]
        if rule := _rule(provenance):
            facts["rule"] = rule
        facts["time_s"] = self.time_s
        if promised := self.schedule_time_ps:
            facts["ideal_s"] = promised * 1e-12
            facts["slower_than_ideal"] = self.time_ps / promised - 1
        clean = self.time_ps if self.clean_time_ps is None else self.clean_time_ps
        if self.disturbed or clean != self.time_ps:
            facts |= {"clean_time_s": clean * 1e-12, "loss": self.loss}
        facts["utilisation_mean"] = float(used.mean()) if used.size else 0.0
        facts["utilisation_max"] = float(used.max(initial=0))
        if used.size:
            facts["busiest_link"] = link_name(topology, int(used.argmax()))
        facts["first_npu_done_s"] = int(self.npu_finish_ps.min()) * 1e-12
        facts["last_npu"] = topology.node_name(int(self.npu_finish_ps.argmax()))
        if self.cause is not None:
            facts["critical_path_transfers"] = len(self.critical_path()["transfer"])
        return facts

    def rows(self) -> dict[str, NDArray[Any]]:
        """Return the busy intervals as columns, with the ends of their links."""
        return {
            "transfer": self.transfer,
            "link": self.link,
            "src": self.topology.link_src[self.link],
            "dst": self.topology.link_dst[self.link],
            "begin_ps": self.begin_ps,
            "end_ps": self.end_ps,
        }

    def _repr_html_(self) -> str:
        return to_html(self)

    def to_pandas(self) -> DataFrame:
        """Return the busy intervals as a pandas DataFrame with the columns of `rows` and the nodes' names; needs pandas."""
        return frames.to_pandas(self.rows(), topology=self.topology)

    def to_arrow(self) -> Table:
        """Return the busy intervals as a pyarrow Table with the columns of `rows`; needs the extra ``arrow``."""
        return frames.to_arrow(self.rows())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the busy intervals for any library that supports the Arrow PyCapsule interface."""
        return frames.arrow_stream(self.rows())

    def save(self, path: str | os.PathLike[str], *, format: str | None = None) -> None:
        """Write the trace to a file atomically; `tacos.save` does the same.

        The extension selects the format: ``.pftrace`` for Perfetto (open it at ui.perfetto.dev),
        ``.json`` for Perfetto and Chrome (ten times as slow, twice as large), ``.csv``, ``.parquet``
        (needs the extra ``arrow``). A further ``.gz`` compresses all but the last.

        Raises:
            FormatError: The extension is unknown, or the file cannot be written.
        """
        from tacos.simulate import trace_export

        trace_export.write(self, path, format=format)

    def _edges(self, bins: Any) -> NDArray[np.int64]:
        if not isinstance(bins, int | np.integer) or not 1 <= bins <= 2**20:
            raise ValueError(f"bins must be 1 to 2^20; got {bins!r}")
        time = self.time_ps
        return np.array([time * i // bins for i in range(bins + 1)], np.int64)


def _seconds(picoseconds: NDArray[np.int64]) -> NDArray[np.float64]:
    return picoseconds.astype(np.float64) * 1e-12


def _batches(count: int) -> Iterator[slice]:
    """Yield parts of a column, so that temporary arrays stay small."""
    for begin in range(0, count, _BATCH):
        yield slice(begin, begin + _BATCH)


def _checked_record(
    topology: Topology, recorded: Mapping[str, ArrayLike]
) -> dict[str, NDArray[Any]]:
    """Return the columns of intervals and of arrivals, both in order of time."""
    if wrong := sorted(recorded.keys() - RECORDED.keys()):
        raise ValueError(
            f"{wrong[0]} is not a column of a trace; expected one of {', '.join(RECORDED)}"
        )
    if wrong := sorted(RECORDED.keys() - recorded.keys()):
        raise ValueError(f"{wrong[0]} is missing; a trace has all of {', '.join(RECORDED)} or none")
    intervals, arrivals = (
        {name: column(name, recorded[name], dtype) for name, dtype in kind.items()}
        for kind in (_INTERVALS, _ARRIVALS)
    )
    for columns in (intervals, arrivals):
        _check_lengths(columns)
    _check_range("link", intervals["link"], topology.links)
    _check_range("arrival_npu", arrivals["arrival_npu"], topology.npus)
    if (intervals["end_ps"] < intervals["begin_ps"]).any():
        raise ValueError("end_ps has an interval that ends before it begins")
    return _in_order(intervals, "begin_ps") | _in_order(arrivals, "arrival_ps")


def _or_none(values: ArrayLike | None) -> ArrayLike:
    return np.zeros(0, np.int64) if values is None else values


def _check_lengths(columns: Mapping[str, NDArray[Any]]) -> None:
    (first, values), *others = columns.items()
    for name, other in others:
        if len(other) != len(values):
            raise ValueError(f"{name} has {len(other)} entries, {first} has {len(values)}")


def _check_range(name: str, values: NDArray[Any], count: int) -> None:
    for value in (int(values.min(initial=0)), int(values.max(initial=0))):
        if len(values) and not 0 <= value < count:
            raise ValueError(f"{name} has {value}; values must be 0 to {count - 1}")


def _in_order(columns: dict[str, NDArray[Any]], by: str) -> dict[str, NDArray[Any]]:
    if (columns[by][1:] >= columns[by][:-1]).all():
        return columns
    order = np.argsort(columns[by], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    view = values.view()
    view.flags.writeable = False
    return view
