"""Faults of a network: links and NPUs that are slow, down or late."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf, isinf
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.nodes import LinkChoice, Node, Nodes
from tacos.units import Quantity, format_time, time_ps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["Fault", "Straggler", "fault_links", "fault_words", "outages", "straggler_words"]

_NORMAL = 2**20  # the core's unit of slowdowns
_SLOWEST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A period in which a link, or all links of an NPU, are down or slow.

    Bytes on such a link progress at 1/slowdown of its speed; on a link that is down they stop, and continue
    afterwards. The slowdowns of simultaneous faults of a link multiply.

    Attributes:
        link: A link's number, or a pair (src, dst) of nodes (numbers or names), which stands for all
            parallel links from one to the other; also as text, such as ``"box0/npu0-fabric"``.
        npu: Instead of a link: an NPU's number or name, for all links to and from it.
        begin: When it begins.
        end: When it is over; None means never.
        slowdown: Factor by which it is slower; ``inf``, the default, means down.
        both: Whether the links back are affected too, as with a cable.

    Raises:
        ValueError: It ends before it begins, or a field is out of range.

    >>> Fault(link=(0, 1), begin="10us", end="20us", slowdown=4).slowdown
    4
    >>> Fault(npu=2, begin="2us", end="1us")
    Traceback (most recent call last):
    ValueError: a fault begins at '2us' and ends at '1us'; it must end later
    """

    link: LinkChoice | None = None
    npu: Node | None = None
    begin: Quantity = 0
    end: Quantity | None = None
    slowdown: float = inf
    both: bool = False

    def __post_init__(self) -> None:
        if (self.link is None) == (self.npu is None):
            raise ValueError("a fault needs either a link or an npu")
        if self.both and self.link is None:
            raise ValueError("both is for a link; a fault of an npu affects all its links")
        _check_slowdown("a fault", self.slowdown)
        begin, end = self.window_ps()
        if end is not None and end <= begin:
            raise ValueError(
                f"a fault begins at {self.begin!r} and ends at {self.end!r}; it must end later"
            )

    def window_ps(self) -> tuple[int, int | None]:
        """Return when it begins and ends, in picoseconds; None means never."""
        never = self.end is None or self.end == inf
        end = None if never else time_ps(self.end or 0, what="end", bare=False)
        return time_ps(self.begin, what="begin", bare=False), end

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse a fault in the command's notation.

        >>> Fault.parse("link=0-1,begin=10us,end=20us,slowdown=4")
        Fault(link=(0, 1), npu=None, begin='10us', end='20us', slowdown=4.0, both=False)
        >>> Fault.parse("link=box0/npu0-fabric,end=1ms,both=yes").link
        'box0/npu0-fabric'
        """
        fields = _fields("fault", text, ("link", "npu", "begin", "end", "slowdown", "both"))
        if "link" in fields:
            ends = fields["link"].split("-")
            if all(end.isdecimal() for end in ends) and len(ends) <= 2:
                fields["link"] = int(ends[0]) if len(ends) == 1 else (int(ends[0]), int(ends[1]))
        if (both := fields.pop("both", "no")) not in ("yes", "no"):
            raise ValueError(f"both must be one of yes, no; got {both!r}")
        return cls(**_numbers(fields), both=both == "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """An NPU that starts late or is slower than the others.

    Attributes:
        npu: Its number or name.
        late: Time before which the NPU sends nothing.
        slowdown: Factor by which sending, and reducing where it takes time, is slower.

    >>> Straggler(npu=3, late="20us").late
    '20us'
    """

    npu: Node
    late: Quantity = 0
    slowdown: float = 1

    def __post_init__(self) -> None:
        time_ps(self.late, what="late", bare=False)
        _check_slowdown("a straggler", self.slowdown)
        if isinf(self.slowdown):
            raise ValueError(
                "a straggler's slowdown is inf, so it would never send; use a number, or drop the NPU"
            )

    @classmethod
    def parse(cls, text: str) -> Straggler:
        """Parse a straggler in the command's notation.

        >>> Straggler.parse("npu=3,late=20us,slowdown=1.5")
        Straggler(npu=3, late='20us', slowdown=1.5)
        """
        fields = _fields("straggler", text, ("npu", "late", "slowdown"))
        if "npu" not in fields:
            raise ValueError(f"straggler {text!r} needs an npu, as in npu=3,late=20us")
        if len(fields) == 1:
            raise ValueError(
                f"straggler {text!r} changes nothing; add late= or slowdown=, as in {text},late=20us"
            )
        return cls(**_numbers(fields))


def _check_slowdown(what: str, slowdown: Any) -> None:
    number = isinstance(slowdown, int | float) and not isinstance(slowdown, bool)
    if not number or not (1 <= slowdown <= _SLOWEST or slowdown == inf):
        raise ValueError(f"{what}'s slowdown must be between 1 and 10^9, or inf; got {slowdown!r}")


def _fields(what: str, text: str, allowed: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals or name not in allowed or name in fields:
            raise ValueError(
                f"{what} {text!r}: unexpected {item!r}; use name=value with each of {', '.join(allowed)} at most once"
            )
        fields[name] = value
    return fields


def _numbers(fields: dict[str, Any]) -> dict[str, Any]:
    if fields.get("npu", "").isdecimal():
        fields["npu"] = int(fields["npu"])
    if "slowdown" in fields:
        try:
            fields["slowdown"] = float(fields["slowdown"])
        except ValueError:
            raise ValueError(f"slowdown is {fields['slowdown']!r}; it must be a number") from None
    return fields


# --- for people ---------------------------------------------------------------------------------


def fault_links(topology: Topology, fault: Fault) -> list[int]:
    """Return the links that a fault affects.

    >>> import tacos
    >>> fault_links(tacos.topology.mesh(2), Fault(link=(0, 1), both=True))
    [0, 1]
    """
    nodes = Nodes(topology)
    if fault.npu is None:
        found: list[int] = nodes.links(fault.link, both=fault.both).tolist()
        return found
    npu = nodes.npu(fault.npu)
    return np.flatnonzero((topology.link_src == npu) | (topology.link_dst == npu)).tolist()


def fault_words(topology: Topology, fault: Fault) -> str:
    """Return a fault in words.

    >>> import tacos
    >>> fault_words(tacos.topology.mesh(2), Fault(link=(0, 1), begin="1ms", end="3ms"))
    'link npu 0 → npu 1 down 1 to 3 ms'
    >>> fault_words(tacos.topology.mesh(2), Fault(npu=1, begin="10us", slowdown=4))
    'all links of npu 1 4 times slower from 10 us on'
    """
    nodes = Nodes(topology)
    if fault.npu is not None:
        what = f"all links of {topology.node_name(nodes.npu(fault.npu))}"
    else:
        first = int(nodes.links(fault.link)[0])
        ends = (int(topology.link_src[first]), int(topology.link_dst[first]))
        what = "link " + (" ↔ " if fault.both else " → ").join(map(topology.node_name, ends))
    how = "down" if isinf(fault.slowdown) else f"{fault.slowdown:g} times slower"
    begin, end = fault.window_ps()
    if end is None:
        return f"{what} {how}" + (f" from {format_time(begin * 1e-12)} on" if begin else "")
    (low, unit), (high, last) = (format_time(ps * 1e-12).split(" ") for ps in (begin, end))
    return f"{what} {how} {low if unit == last or not begin else f'{low} {unit}'} to {high} {last}"


def straggler_words(topology: Topology, straggler: Straggler) -> str:
    """Return a straggler in words.

    >>> import tacos
    >>> straggler_words(tacos.topology.mesh(2), Straggler(npu=1, late="20us", slowdown=2))
    'npu 1 starts 20 us late and sends 2 times slower'
    """
    late = time_ps(straggler.late, what="late", bare=False)
    parts = [f"starts {format_time(late * 1e-12)} late"] if late else []
    if straggler.slowdown > 1:
        parts.append(f"sends {straggler.slowdown:g} times slower")
    return f"{topology.node_name(Nodes(topology).npu(straggler.npu))} {' and '.join(parts)}"


def outages(topology: Topology, faults: Iterable[Fault]) -> list[tuple[int, int, int | None]]:
    """Return link, begin and end (in picoseconds) of every outage of a link; an end of None means forever.

    >>> import tacos
    >>> outages(tacos.topology.mesh(2), [Fault(link=(0, 1), begin="1us", end="2us")])
    [(0, 1000000, 2000000)]
    """
    return [
        (link, *fault.window_ps())
        for fault in faults
        if isinf(fault.slowdown)
        for link in fault_links(topology, fault)
    ]


# --- for the core -------------------------------------------------------------------------------


def disturbances(
    topology: Topology, faults: Iterable[Fault], stragglers: Iterable[Straggler]
) -> dict[str, NDArray[Any]]:
    """Return the columns that the core takes: how slow each link is from which time on, and how late each NPU is."""
    nodes = Nodes(topology)
    windows: dict[int, list[tuple[int, int | None, float]]] = defaultdict(list)
    for fault in faults:
        for link in fault_links(topology, fault):
            windows[link].append((*fault.window_ps(), fault.slowdown))
    late = np.zeros(topology.npus, np.int64)
    reduce_slowdown = np.ones(topology.npus)
    for straggler in stragglers:
        npu = nodes.npu(straggler.npu)
        late[npu] = max(late[npu], time_ps(straggler.late))
        reduce_slowdown[npu] *= straggler.slowdown
        if straggler.slowdown > 1:
            for link in np.flatnonzero(topology.link_src == npu).tolist():
                windows[link].append((0, None, straggler.slowdown))
    rows = [(link, *change) for link in sorted(windows) for change in _changes(windows[link])]
    changes = np.array(rows, np.int64).reshape(-1, 3)
    slow = (reduce_slowdown > 1).any()
    return {
        "slow_link": changes[:, 0].astype(np.int32),
        "slow_time_ps": changes[:, 1].copy(),
        "slowdown": changes[:, 2].copy(),
        "late_ps": late if late.any() else late[:0],
        "reduce_slowdown": np.array([_parts(s) for s in reduce_slowdown if slow], np.int64),
    }


def _changes(windows: list[tuple[int, int | None, float]]) -> list[tuple[int, int]]:
    """Return rows (time, slowdown from then on), beginning at 0."""
    times = {0} | {t for begin, end, _ in windows for t in (begin, end) if t is not None}
    changes = []
    for time in sorted(times):
        slowdown = 1.0
        for begin, end, factor in windows:
            if begin <= time and (end is None or time < end):
                slowdown *= factor
        changes.append((time, _parts(slowdown)))
    return changes


def _parts(slowdown: float) -> int:
    return 0 if isinf(slowdown) else round(min(slowdown, _SLOWEST) * _NORMAL)
