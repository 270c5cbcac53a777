"""A reader of the viewer's pages, independent of the pages' own code."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct

_FORMATS = {"u8": "B", "u32": "I", "i32": "i", "f32": "f", "f64": "d"}


def taken_apart(text):
    """For each run of a page, its facts and its columns as lists."""
    found: list[tuple[dict, dict]] = []
    for k, run in enumerate(json.loads(_element(text, "runs"))):
        facts, columns = run["facts"], _columns(run["layout"], _element(text, f"columns-{k}"))
        if "base" in run:  # it holds only the differences
            facts, columns = found[run["base"]][0] | facts, found[run["base"]][1] | columns
        found.append((facts, columns))
    return found


def views(text):
    """Return the views of a page, which shows one at a time."""
    return json.loads(_element(text, "views"))


def timelines(text):
    """For each timeline of a page, its facts and its columns as lists."""
    return [
        (one["facts"], _columns(one["layout"], _element(text, f"timeline-{k}")))
        for k, one in enumerate(json.loads(_element(text, "timelines")))
    ]


def _element(text, name):
    (found,) = re.findall(f'<script type="[a-z/]+" id="{name}">(.*?)</script>', text, re.DOTALL)
    return found


def _columns(layout, packed):
    data = gzip.decompress(base64.b64decode(packed))
    columns, at = {}, 0
    for name, kind, count, growing in layout:
        letter = _FORMATS[kind]
        size = struct.calcsize(letter)
        planes = [data[at + k * count : at + (k + 1) * count] for k in range(size)]
        at += size * count
        joined = b"".join(bytes(parts) for parts in zip(*planes, strict=True))
        values = list(struct.unpack(f"<{count}{letter}", joined))
        if growing:
            for i in range(1, count):
                values[i] = (values[i] + values[i - 1]) % 2**32
            if kind == "i32":
                values = [v - 2**32 if v >= 2**31 else v for v in values]
        columns[name] = values
    assert at == len(data)
    return columns
