"""Flight records: the files in which ranks keep their last collectives, written by `tacos.runtime.flight`.

They are read without the runtime that wrote them.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, TypedDict

from tacos.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["FORMAT", "load", "records"]

FORMAT = "tacos-flight"
"""The name of the format, with which a record begins."""


def _is_record(path: Path) -> bool:
    """Return whether a file begins like a flight record."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return f'"{FORMAT}"'.encode() in file.read(64)
    return False


def records(paths: Sequence[Path]) -> list[Path]:
    """Return the flight records among files and in directories; empty if the first path has none.

    Files in a directory are recognized by their names, so that `load` reports a damaged one.
    """
    found: list[Path] = []
    for path in paths:
        held = sorted(path.glob("*.flight.json")) if path.is_dir() else [path]
        if not found and held == [path] and not (path.suffix == ".json" and _is_record(path)):
            return []
        found += held
    return found


class _Call(TypedDict):
    seq: int
    kind: str
    algorithm: str
    bytes: int
    dtype: str
    op: str
    begin_s: float
    end_s: float
    state: str
    error: str
    waited_s: dict[int, float]
    needs: list[tuple[int, str]]


class _Group(TypedDict):
    rank: int
    members: list[int]
    calls: list[_Call]


class _Record(TypedDict):
    rank: int
    host: str
    why: str
    clock_offset_s: float
    groups: list[_Group]


def load(path: Path) -> dict[str, Any]:
    """Read a flight record.

    Raises:
        FormatError: The file is not a flight record, or is damaged.
    """
    import msgspec

    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if content["format"] != FORMAT or content["version"] != 1:
            raise FormatError(
                f"{path} is a flight record of version {content.get('version')!r}, not of 1"
            )
        for group in msgspec.convert(content, _Record, str_keys=True)["groups"]:
            _check_ranks(group)
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            what = "it is not JSON"
        raise FormatError(f"{path} is not a whole flight record: {what}") from None
    return content


def _check_ranks(group: _Group) -> None:
    size = len(group["members"])
    named = {group["rank"]}
    for call in group["calls"]:
        named.update(call["waited_s"], (peer for peer, _ in call["needs"]))
    if strange := named.difference(range(size)):
        raise ValueError(f"it names rank {min(strange)} of a group of {size}")
