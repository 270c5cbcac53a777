"""Tables and charts of comparisons, in the layout of nccl-tests, with the bound."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from tacos import nccl
from tacos._support.files import replacing
from tacos.errors import TacosError
from tacos.search.comparison import Sweep
from tacos.synth import ENGINES, references
from tacos.units import format_size, format_time
from tacos.view.axes import Axis
from tacos.view.charts import Series, bars, lines, stack

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from tacos.search.comparison import Candidate, Comparison

__all__ = ["comparison_tables", "picture", "remarks", "write_csv"]

_NAN = float("nan")
_COLUMNS = (
    "collective", "size_bytes", "engine", "ok", "wrong", "consistent", "found_by", "executed_s", "ideal_s", "algbw_Bps", "busbw_Bps", "bound_s",
    "efficiency", "chunks", "total_chunks", "transfers", "utilisation", "synthesis_s", "cut_short", "note", "slowdown",
)  # fmt: skip


def comparison_tables(
    result: Comparison | Sweep, name: str = "", width: int = 80, *, brief: bool = False
) -> list[Table]:
    """Return the tables that ``tacos compare`` prints: a row per engine, or per size for a sweep.

    Args:
        result: The result of :func:`tacos.search.compare.compare`.
        name: Name of the network.
        width: Characters per line; wider tables are split into several.
        brief: Show only the fastest engines, the reference (NCCL), and failures; otherwise all engines.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> result = tacos.compare(topo, tacos.collective.all_gather(topo, "4MB"), engines=["ring"])
    >>> [table] = comparison_tables(result)
    >>> [column.header.split()[0] for column in table.columns][:4]
    ['engine', 'executed', 'busbw', 'of']
    """
    if not isinstance(result, Sweep):
        return [_engines_table(result, name, brief)]
    most = max(1, (width - 12) // 11)
    shown = _fastest(result) if brief else result.engines
    parts = [shown[i : i + most] for i in range(0, len(shown), most)]
    return [_sizes_table(result, name), *(_busbw_table(result, part) for part in parts)]


def remarks(result: Comparison | Sweep, *, brief: bool = False) -> list[str]:
    """Return sentences: the verdict, failures, and engines that do not apply.

    Args:
        result: The result of :func:`tacos.search.compare.compare`.
        brief: Name all engines that do not apply in one sentence, without their requirements.

    >>> import tacos
    >>> topo = tacos.topology.mesh(2, 2)
    >>> result = tacos.compare(topo, tacos.collective.all_gather(topo, "4MB"))
    >>> "one-shot does not apply: it needs all-reduce, not all-gather." in remarks(result)
    True
    """
    comparisons = result.comparisons if isinstance(result, Sweep) else (result,)
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for one in comparisons:
        size = one.collective.size_bytes
        for candidate in one.candidates:
            if candidate.wrong:
                found.setdefault((candidate.engine, "was wrong"), []).append((size, candidate.note))
            elif not candidate.ok:
                needs = candidate.note.removeprefix(f"{candidate.engine} needs ")
                what, why = "failed", candidate.note
                if needs != why:
                    what, why = "does not apply", f"it needs {needs}"
                found.setdefault((candidate.engine, what), []).append((size, why))
            elif not candidate.consistent:
                found.setdefault((candidate.engine, "is not for floating-point sums"), []).append(
                    (size, candidate.note)
                )
            elif candidate.figures and candidate.figures.cut_short:
                reason = "more time may find better"
                found.setdefault((candidate.engine, "was cut short"), []).append((size, reason))
        for engine, needs in () if brief else one.left_out:
            found.setdefault((engine, "does not apply"), []).append((size, f"it needs {needs}"))
    words = [result.verdict()]
    for (engine, what), cases in found.items():
        sizes = [format_size(size) for size, _ in cases]
        at = "" if len(cases) == len(comparisons) else f" at {', '.join(sizes)}"
        words.append(f"{engine} {what}{at}: {cases[0][1]}.")
    words += _slowdown(result) + _without_sums(result)
    words += _references(result, 1 if brief else None)
    return [*words, *_left_out(result)] if brief else words


def _slowdown(result: Comparison | Sweep) -> list[str]:
    """Return why an engine's schedule takes much longer when it is executed: the best one's, or else the one that loses most."""
    if isinstance(result, Sweep):
        return []
    slow = [one for one in result.solved if one.figures and one.figures.slowdown]
    first = [one for one in slow if one is result.solved[0]]
    slow.sort(key=lambda one: -one.figures.counted_s / one.figures.ideal_s if one.figures else 0.0)
    return [f"{one.name}: {one.figures.slowdown}." for one in [*first, *slow][:1] if one.figures]


def _without_sums(result: Comparison | Sweep) -> list[str]:
    """Return a sentence about sums in switches that the target cannot express, where they would lower the bound."""
    comparisons = result.comparisons if isinstance(result, Sweep) else (result,)
    gains = [
        (one.collective.size_bytes, one.bound_s, one.in_switch_bound_s)
        for one in comparisons
        if one.in_switch_bound_s is not None
    ]
    if not gains:
        return []
    size, plain_s, summed_s = max(gains, key=lambda gain: gain[1] / max(gain[2], 1e-15))
    at = "" if len(comparisons) == 1 else f" of {format_size(size)}"
    times = f"from {format_time(plain_s)} to {format_time(summed_s)}"
    return [
        f"Sums in switches, which the target cannot express, would lower the bound{at} {times}."
    ]


def _references(result: Comparison | Sweep, most: int | None) -> list[str]:
    """Return what the references are on a network with faults, with their rings; all of them if `most` is None."""
    comparisons = result.comparisons if isinstance(result, Sweep) else (result,)
    if not comparisons or result.topology.faults is None:
        return []
    compared = {one.engine: one for each in comparisons for one in each.candidates}
    words = []
    for engine, aware, what in (
        ("nccl", True, "searched again"),
        ("nccl-unaware", False, "does not know of the faults"),
    ):
        if engine not in compared or not 2 < result.topology.npus <= _RINGED:
            continue
        try:
            found = nccl.rings(result.topology, aware=aware)
        except (TacosError, ValueError):  # no ring passes through all members
            continue
        shown = "; ".join("-".join(map(str, _shortened(ring))) for ring in found[:most])
        count = f"{len(found)} ring{'s' * (len(found) != 1)}"
        note = compared[engine].note if compared[engine].ok else ""
        words.append(
            f"{engine} {what}: {count}, {'such as ' if len(found) > 1 and most else ''}{shown}."
            + (f" {note[0].upper()}{note[1:]}." if note else "")
        )
    return words


def _shortened(ring: Sequence[int]) -> list[int | str]:
    return [*ring] if len(ring) <= _RING else [*ring[: _RING // 2], "…", *ring[-_RING // 2 :]]


def _left_out(result: Comparison | Sweep) -> list[str]:
    """Return one sentence about everything that a brief output omits."""
    comparisons = result.comparisons if isinstance(result, Sweep) else (result,)
    parts = []
    if isinstance(result, Sweep):
        slower = len(result.engines) - len(_fastest(result))
    else:
        slower = len(result.candidates) - len(_brief(result))
    if slower:
        parts.append(f"{slower} slower engine{'s are' if slower > 1 else ' is'} not shown")
    names = dict.fromkeys(engine for one in comparisons for engine, _ in one.left_out)
    if names:
        at = "" if len(comparisons) == 1 else " at some sizes"
        parts.append(f"{', '.join(names)} {'do' if len(names) > 1 else 'does'} not apply{at}")
    return [f"{'; '.join(parts)} (--verbose)."] if parts else []


_RINGED = 256
"""Most NPUs of a network for which NCCL's rings are found again."""
_RING = 16
"""Most NPUs of a ring that are named."""
_SHOWN = 6
"""Engines in a brief table, in addition to the reference (NCCL) and failures."""


def _brief(result: Comparison) -> list[Candidate]:
    """Return the fastest candidates, the reference (NCCL), and those that failed."""
    kept = {candidate.engine for candidate in result.solved[:_SHOWN]} | set(references())
    return [c for c in result.candidates if c.engine in kept or c.wrong or not c.ok]


def _fastest(result: Sweep) -> tuple[str, ...]:
    """Return the engines that win at some size, the reference (NCCL), and then the first others."""
    first = [*dict.fromkeys(name for _, _, name in result.winners()), *references()]
    names = [name for name in dict.fromkeys(first) if name in result.engines]
    more = [name for name in result.engines if name not in names]
    return tuple(names + more[: max(0, _SHOWN - len(names))])


def picture(result: Comparison | Sweep, name: str = "") -> str:
    """Draw a comparison as SVG text: busbw as bars or, for a sweep, time and busbw over size.

    The bound is drawn as a line that no schedule crosses.

    Raises:
        ValueError: No engine has solved the problem.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "4MB")
    >>> "bound" in picture(tacos.compare(topo, coll, engines=["ring"]), "ring:4")
    True
    """
    comparisons = result.comparisons if isinstance(result, Sweep) else (result,)
    if not any(one.solved for one in comparisons):
        raise ValueError("there is nothing to draw: no engine solved the problem")
    if not isinstance(result, Sweep):
        return _bars(result, name)
    sizes = [one.collective.size_bytes for one in comparisons]
    size = Axis("size", "size", log=True)
    speed = Axis(_bandwidth(result), "bandwidth")
    times, speeds = [], []
    # Engines that never solved the problem are in the legend, crossed out.
    asked = [c.engine for one in comparisons for c in one.candidates]
    for engine in dict.fromkeys([*result.engines, *asked]):
        record = ENGINES.get(engine)
        role: Any = "plain" if record is not None and record.baseline else "strong"
        mine = [_of(one, engine) for one in comparisons]
        seconds = [c.figures.counted_s if c and c.figures else _NAN for c in mine]
        away = _rejected(comparisons, engine)
        late = [(at, c.figures.counted_s if c.figures else _NAN, why) for at, c, why in away]
        slow = [(at, _speed(c) if c.figures else _NAN, why) for at, c, why in away]
        times.append(Series(engine, [s or _NAN for s in seconds], sizes, role, late))
        speeds.append(Series(engine, [_speed(c) if c else _NAN for c in mine], sizes, role, slow))
    limits = [(_least_s(one) or _NAN, _bound_speed(one) or _NAN) for one in comparisons]
    if any(one.bound_s for one in comparisons):
        times.append(Series("bound", [limit for limit, _ in limits], sizes, "floor"))
        speeds.append(Series("bound", [limit for _, limit in limits], sizes, "ceiling"))
    top = lines(times, size, Axis("time", "time", log=True), title=_title(comparisons[0], name))
    below = _below(result)
    if len({one.role for one in speeds if not one.limit}) > 1:
        below.insert(0, "Thick curves are engines that search; thin ones are known algorithms.")
    return stack([top, lines(speeds, size, speed, remarks=below)])


def write_csv(result: Comparison | Sweep, path: str | os.PathLike[str]) -> None:
    """Write the figures of a comparison as a table with one line per size and engine.

    >>> import tacos, tempfile, pathlib
    >>> topo = tacos.topology.ring(4)
    >>> result = tacos.compare(topo, tacos.collective.all_gather(topo, "4MB"), engines=["ring"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "figures.csv")
    ...     write_csv(result, file)
    ...     file.read_text().splitlines()[1].split(",")[:4]
    ['all-gather', '4000000', 'ring', 'True']
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    writer.writerows(result.rows())
    with replacing(path) as out:
        out.write(text.getvalue().encode())


def _bars(result: Comparison, name: str) -> str:
    speeds = [_speed(candidate) for candidate in result.solved]
    shares = [result.efficiency(candidate) for candidate in result.solved]
    limit = _bound_speed(result)
    return bars(
        [candidate.name for candidate in result.solved],
        [Series("speed", speeds)],
        Axis(_bandwidth(result), "bandwidth"),
        title=_title(result, name, size=True),
        mark=(limit, "bound") if limit else None,
        notes=[
            format_time(c.figures.counted_s)
            + (f", {100 * share:.1f} % of the bound" if share else "")
            for c, share in zip(result.solved, shares, strict=True)
            if c.figures
        ],
        remarks=_below(result),
    )


def _rejected(comparisons: Sequence[Comparison], engine: str) -> list[tuple[int, Candidate, str]]:
    """Return the sizes at which an engine's answer is rejected, with the answer and the reason."""
    found = []
    for one in comparisons:
        for candidate in one.candidates:
            if candidate.engine != engine or (candidate.ok and candidate.consistent):
                continue
            reason = "wrong" if candidate.wrong else "failed"
            if candidate.ok:
                reason = "not for floating-point sums"
            why = f"{reason}: {candidate.note}" if candidate.note else reason
            found.append((one.collective.size_bytes, candidate, why))
    return found


def _below(result: Comparison | Sweep) -> list[str]:
    """Return remarks on engines that a picture does not draw at all sizes: failed ones by name, others together."""
    said = remarks(result)[1:]
    apart = [words for words in said if " does not apply" in words]
    named = [words for words in said if words not in apart and " was cut short" not in words]
    comparisons = result.comparisons if isinstance(result, Sweep) else (result,)
    drawn = {candidate.engine for one in comparisons for candidate in one.solved}
    engines = dict.fromkeys(words.partition(" ")[0] for words in apart)
    if some := [engine for engine in engines if engine in drawn]:
        named.append(f"Drawn only at the sizes to which they apply: {', '.join(some)}.")
    if none := [engine for engine in engines if engine not in drawn]:
        named.append(f"Not drawn, because they do not apply: {', '.join(none)}.")
    return named


def _of(one: Comparison, engine: str) -> Candidate | None:
    return next((candidate for candidate in one.solved if candidate.engine == engine), None)


def _has_busbw(result: Comparison | Sweep) -> bool:
    """Return whether nccl-tests defines a factor for the collective."""
    comparisons = result.comparisons if isinstance(result, Sweep) else (result,)
    return any(c.figures and c.figures.busbw_Bps for one in comparisons for c in one.solved)


def _bandwidth(result: Comparison | Sweep) -> str:
    return "busbw" if _has_busbw(result) else "algbw"


def _speed(candidate: Candidate) -> float:
    """Return busbw, or algbw if that is undefined."""
    figures = candidate.figures
    return _NAN if figures is None else figures.busbw_Bps or figures.algbw_Bps


def _least_s(one: Comparison) -> float:
    """Return the bound that no candidate beats: with sums in switches if one of them uses those."""
    return min((one.bound_of(candidate) for candidate in one.solved), default=one.bound_s)


def _bound_speed(one: Comparison) -> float:
    """Return that bound as a bandwidth; 0 if there is none."""
    figures = one.solved[0].figures if one.solved else None
    if figures is None or not one.bound_s:
        return 0.0
    factor = figures.busbw_Bps / figures.algbw_Bps if figures.algbw_Bps else 0.0
    return one.collective.size_bytes / _least_s(one) * (factor or 1.0)


def _title(one: Comparison, name: str, *, size: bool = False) -> str:
    kind = one.collective.label
    of = f" of {format_size(one.collective.size_bytes)}" if size else ""
    where = name or one.topology.family.replace("_", "-") or "a custom topology"
    return f"{kind}{of} on {where}, {one.topology.npus} NPUs"


# Tables.


def _engines_table(result: Comparison, name: str, brief: bool) -> Table:
    table = _table(_title(result, name, size=True), ["engine"])
    for title in (
        "executed\nus",
        f"{_bandwidth(result)}\nGB/s",
        "of the\nbound",
        "ideal\nus",
        "chunks",
        "synthesis",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    shown = _brief(result) if brief else result.candidates
    doubtful = not all(candidate.ok for candidate in shown)  # a column of "yes" says nothing
    if doubtful:
        table.add_column("ok")
    for candidate in shown:
        figures = candidate.figures
        best = " *" if candidate is next(iter(result.solved), None) else ""
        cells = ["-"] * 5
        if figures:
            chunks = "-" if figures.chunks is None else f"{figures.chunks:,}"
            cells = [*_cells(result, candidate), chunks]
        took = format_time(float(f"{candidate.seconds:.2g}"))
        ok = ["yes" if candidate.ok else "NO" if figures else "-"] if doubtful else []
        table.add_row(candidate.name + best, *cells, took, *ok)
    return table


def _sizes_table(result: Sweep, name: str) -> Table:
    table = _table(_title(result.comparisons[0], name), [])
    for title in (
        "size\nB",
        "executed\nus",
        f"{_bandwidth(result)}\nGB/s",
        "of the\nbound",
        "ideal\nus",
        f"{result.compared_with}'s\ntime",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("fastest", no_wrap=True)
    for one, factor in zip(result.comparisons, result.speed_ups(), strict=True):
        size = f"{one.collective.size_bytes:,}"
        if not one.solved:
            table.add_row(size, *["-"] * 6)
            continue
        against = f"{factor:.2f}×" if factor else "-"
        table.add_row(size, *_cells(one, one.solved[0]), against, one.solved[0].name)
    return table


def _busbw_table(result: Sweep, engines: tuple[str, ...]) -> Table:
    what = _bandwidth(result)
    table = _table(f"{what} in GB/s (* the fastest)", [])
    table.add_column("size\nB", justify="right", no_wrap=True)
    for engine in engines:
        table.add_column(engine.replace("-", "-\n"), justify="right", no_wrap=True)
    for one in result.comparisons:
        cells = []
        for candidate in (_of(one, engine) for engine in engines):
            best = "*" if candidate is not None and candidate is one.solved[0] else " "
            cells.append(f"{_speed(candidate) / 1e9:.2f}{best}" if candidate else "- ")
        table.add_row(f"{one.collective.size_bytes:,}", *cells)
    return table


def _cells(one: Comparison, candidate: Candidate) -> Iterator[str]:
    """Return the executed time, busbw (algbw if undefined) and share of the bound from it, and the schedule's own time."""
    if candidate.figures is None:
        return
    yield f"{candidate.figures.counted_s * 1e6:.2f}"
    yield f"{_speed(candidate) / 1e9:.2f}"
    share = one.efficiency(candidate)
    yield f"{100 * share:.1f} %" if share else "-"
    yield f"{candidate.figures.ideal_s * 1e6:.2f}"


def _table(title: str, columns: list[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, style="bold", no_wrap=True)
    return table
