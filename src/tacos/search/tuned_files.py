"""The files of a tuning: a plan directory, and what other executors and NCCL's tuner read."""

from __future__ import annotations

from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacos import formats, library
from tacos.errors import FormatError, TacosError
from tacos.search.synthesis import with_chunks
from tacos.units import format_size

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from tacos.search.tune import Range, Tuning

__all__ = ["tuner_csv", "write"]

_TUNER = "tuner.csv"

_HEAD = (
    "# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n"
)


def write(
    tuning: Tuning, folder: str | os.PathLike[str], to: Collection[str], options: dict[str, object]
) -> list[str]:
    """Write the files; see :meth:`tacos.search.tune.Tuning.save`."""
    beside: dict[str, bytes] = {}
    if tuning.nccl:
        beside[_TUNER] = _with_others(tuner_csv(tuning), Path(folder, _TUNER)).encode()
    left_out = []
    limits = _open_ended(tuning)
    kind, calls = tuning.ranges[0].schedule.collective.kind, _calls(tuning)
    for name in to:
        for one, (low, high) in zip(tuning.ranges, limits, strict=True):
            size = format_size(max(low, 1)).replace(" ", "")
            file = f"{kind}-{size}-{calls}{_ending(name)}"
            try:
                beside[file] = _exported(one, name, low, high, options)
            except (TacosError, ValueError) as error:
                words = f"{format_size(one.min_bytes)} to {format_size(one.max_bytes)}"
                left_out.append(f"there is no {name} file for {words}: {error}")
    served = [(one.schedule, *limit) for one, limit in zip(tuning.ranges, limits, strict=True)]
    library.replace(folder, served, beside=beside)
    # Remove old files; otherwise an executor that reads all files would find two for some sizes.
    for name in to:
        for old in Path(folder).glob(f"{kind}-*-{calls}{_ending(name)}"):
            if old.name not in beside:
                old.unlink(missing_ok=True)
    return left_out


def _ending(name: str) -> str:
    """Return the extension of a format's files."""
    return formats.FORMATS[name].written[0]


def _calls(tuning: Tuning) -> str:
    """Return a short key for the calls that a table serves: network, group and root, but not the size."""
    plan = library.describe(tuning.ranges[0].schedule, "")
    return sha256(repr((plan.topology, plan.group, plan.root)).encode()).hexdigest()[:8]


def _with_others(csv: str, path: Path) -> str:
    """Return a tuner's table, and the lines that a file has for other collectives and numbers of ranks."""

    def serves(line: str) -> tuple[str, ...]:
        fields = line.split(",")
        return (fields[0], *fields[7:8])

    mine = {serves(line) for line in csv.splitlines()}  # its head is among them
    try:
        old = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        old = []
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not a text in UTF-8") from None
    return csv + "".join(f"{line}\n" for line in old if line and serves(line) not in mine)


def tuner_csv(tuning: Tuning) -> str:
    """Return the table that NCCL's example tuner plugin reads (NCCL_TUNER_CONFIG_FILE); empty if it knows no such collective.

    NCCL runs only its own algorithms, so the table chooses among these, by our model of trees, rings and
    protocols on this network.

    >>> import tacos
    >>> table = tacos.tune(tacos.topology.ring(4), "all_gather", "4KB:64MB", effort="fast")
    >>> tuner_csv(table).splitlines()[-1]
    'allgather,2133334,64000000,ring,simple,-1,-1,4,-1,-1'
    """
    if not tuning.nccl:
        return ""
    kind = tuning.ranges[0].schedule.collective.kind.replace("_", "")
    ranks = tuning.topology.npus
    lines = [
        f"{kind},{low},{high},{algorithm},{protocol},-1,-1,{ranks},-1,-1\n"
        for low, high, algorithm, protocol in tuning.nccl
    ]
    return _HEAD + "".join(lines)


def _open_ended(tuning: Tuning) -> list[tuple[int, int | None]]:
    """Return the ranges for executors: the first and the last algorithm also serve the sizes beyond."""
    lows = [0, *(one.min_bytes for one in tuning.ranges[1:])]
    highs = [*(one.max_bytes for one in tuning.ranges[:-1]), None]
    return list(zip(lows, highs, strict=True))


def _exported(
    one: Range, name: str, low: int, high: int | None, options: dict[str, object]
) -> bytes:
    """Return a range's file, with fewer chunks if the format cannot hold them all."""
    limits: dict[str, Any] = {}
    if high is not None:
        executor = formats.FORMATS[name].executor
        assert executor is not None, "check_formats() has refused the others"
        limits["max_bytes"] = high + executor.below_max_bytes
    if low:
        limits["min_bytes"] = low
    chunks, first = one.chunks, None
    while True:
        data = BytesIO()
        try:
            schedule = with_chunks(one.schedule, chunks)
            formats.save(schedule, data, format=name, **limits, **options)
            return data.getvalue()
        except (TacosError, ValueError) as error:
            first = first or error
        if chunks == 1:
            raise first
        chunks //= 2
