"""Checkpoints of jobs: one file each, written atomically."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import HubSnapshot
from tacos._support.files import replacing
from tacos.errors import FormatError
from tacos.hub.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["load", "save"]

_MAGIC = b"TACOSHUB"
_HEADER = struct.Struct("<8sII")  # magic, format version, bytes of the description
_FORMAT = 1


def save(path: Path, job: Job, snapshot: HubSnapshot) -> None:
    """Write a checkpoint, which takes the place of an older one once it is on disk.

    >>> import tempfile
    >>> from tacos.hub.job import Job, optimizer
    >>> job = Job("j", {"w": 3}, "sgd", [optimizer("sgd", lr=0.1)])
    >>> ones = np.ones(32, np.float32), np.zeros(1, np.uint64), np.full(1, 7, np.uint64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Path(folder) / "j.hub", job, HubSnapshot.of(7, [ones[0]], ones[1], ones[2]))
    ...     loaded, snapshot = load(Path(folder) / "j.hub")
    >>> loaded == job, snapshot.version
    (True, 7)
    """
    arrays = snapshot.arrays
    head = {
        "job": job.to_json(),
        "version": snapshot.version,
        "arrays": [len(array) for array in arrays],
        "chunks": len(snapshot.updates),
    }
    text = json.dumps(head).encode()
    digest = 0
    with replacing(path) as out:
        for part in _parts(text, snapshot):
            out.write(part)
            digest = zlib.crc32(part, digest)
        out.write(struct.pack("<I", digest))
        out.flush()
        os.fsync(out.fileno())


def _parts(text: bytes, snapshot: HubSnapshot) -> Iterator[bytes | memoryview]:
    yield _HEADER.pack(_MAGIC, _FORMAT, len(text))
    yield text
    yield snapshot.updates.tobytes()
    yield snapshot.versions.tobytes()
    for array in snapshot.arrays:
        yield array.view(np.uint8).data


def load(path: Path) -> tuple[Job, HubSnapshot]:
    """Read a checkpoint: the job, and its values.

    Raises:
        FormatError: The file is damaged or not a checkpoint; the message begins with its name.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    if len(data) < _HEADER.size + 4 or data[:8] != _MAGIC:
        raise FormatError(f"{path}: not a checkpoint of an optimizer service")
    _, version, length = _HEADER.unpack_from(data)
    if version != _FORMAT:
        raise FormatError(f"{path}: format {version} is not known; this version reads {_FORMAT}")
    if zlib.crc32(memoryview(data)[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise FormatError(f"{path}: the checksum is wrong; the file is damaged")
    head = json.loads(data[_HEADER.size : _HEADER.size + length])
    place = _HEADER.size + length

    def take(dtype: type[np.generic], count: int) -> np.ndarray:
        nonlocal place
        values = np.frombuffer(data, dtype, count, place)
        place += values.nbytes
        return values

    updates, versions = take(np.uint64, head["chunks"]), take(np.uint64, head["chunks"])
    arrays = [take(np.float32, count) for count in head["arrays"]]
    return Job.from_json(head["job"]), HubSnapshot.of(head["version"], arrays, updates, versions)
