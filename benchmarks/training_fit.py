"""Fit the constants of devices and software to measured training steps, and check them on rows that were left out.

    python -m benchmarks.training_fit --data DIRECTORY --sources "vTrain,SC'21" \
        device:a100-80gb.share.fp16 software:megatron-2021.dispatch_s

A coordinate search multiplies and divides each constant in turn by ever smaller factors. With ``--halves N`` the search
runs on N random halves of the rows and reports the error on the other half.
"""

from __future__ import annotations

import argparse
import os
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks.training import GOALS, Case, cases, known_devices
from tacos.training import SOFTWARE

if TYPE_CHECKING:
    from collections.abc import Sequence

Tables = tuple[dict[str, Any], dict[str, Any]]


def read(tables: Tables, path: str) -> float:
    """Return the value of a constant such as ``device:h100.share.fp8``."""
    kind, _, rest = path.partition(":")
    name, field, *key = rest.rsplit(".", 2) if ".share." in rest else rest.rsplit(".", 1)
    value = getattr(tables[kind == "software"][name], field)
    return float(value[key[0]] if key else value)


def written(tables: Tables, path: str, value: float) -> Tables:
    """Return the tables with another value of a constant; ``share.fp16`` sets bf16 as well."""
    kind, _, rest = path.partition(":")
    name, field, *key = rest.rsplit(".", 2) if ".share." in rest else rest.rsplit(".", 1)
    place = int(kind == "software")
    changed = dict(tables[place])
    one = changed[name]
    new: Any = value
    if key:
        types = ("fp16", "bf16") if key[0] in ("fp16", "bf16") else (key[0],)
        new = dict(getattr(one, field)) | dict.fromkeys(types, value)
    changed[name] = replace(one, **{field: new})
    return (tables[0], changed) if place else (changed, tables[1])


def error(chosen: Sequence[Case], tables: Tables) -> dict[str, float]:
    """Return the mean absolute error by source."""
    found: dict[str, list[float]] = {}
    for case in chosen:
        time_s = case.predict(*tables).time_s
        found.setdefault(case.source, []).append(abs(time_s / case.measured_s - 1))
    return {source: mean(values) for source, values in found.items()}


def loss(chosen: Sequence[Case], tables: Tables) -> float:
    """Return the mean cube of all sources' errors over their goals, which weights large errors most."""
    return mean((value / GOALS[source]) ** 3 for source, value in error(chosen, tables).items())


def fit(chosen: Sequence[Case], tables: Tables, paths: Sequence[str], rounds: int) -> Tables:
    """Search for the constants with the smallest loss."""
    best = loss(chosen, tables)
    factors = dict.fromkeys(paths, 1.25)
    for _ in range(rounds):
        for path in paths:
            moved = False
            for factor in (factors[path], 1 / factors[path]):
                other = written(tables, path, read(tables, path) * factor)
                value = loss(chosen, other)
                if value < best - 1e-6:
                    best, tables, moved = value, other, True
                    break
            factors[path] = factors[path] ** (1.2 if moved else 0.5)
    return tables


def main() -> None:
    """Read the command line, fit, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--data", default=os.environ.get("TACOS_TEST_DATA"))
    parser.add_argument("--sources", required=True, help="parts of source names, with commas")
    parser.add_argument("--where", default="", help="a part of the names of rows")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--most", type=int, default=150, help="most rows of a source to use")
    parser.add_argument("--halves", type=int, default=0)
    arguments = parser.parse_args()
    wanted = arguments.sources.split(",")
    rows: dict[str, list[Case]] = {}
    for case in cases(Path(arguments.data)):
        if any(part in case.source for part in wanted) and arguments.where in case.name:
            rows.setdefault(case.source, []).append(case)
    chance = random.Random(0)
    start: Tables = (known_devices(), dict(SOFTWARE))
    chosen = [
        case
        for listed in rows.values()
        for case in (
            chance.sample(listed, arguments.most) if len(listed) > arguments.most else listed
        )
    ]
    print("before:", {k: f"{v:.1%}" for k, v in error(chosen, start).items()})
    found = fit(chosen, start, arguments.paths, arguments.rounds)
    print("after: ", {k: f"{v:.1%}" for k, v in error(chosen, found).items()})
    for path in arguments.paths:
        print(f"  {path} = {read(found, path):.4g}  (was {read(start, path):.4g})")
    for half in range(arguments.halves):
        one, other = [], []
        for listed in rows.values():
            mixed = chance.sample(listed, len(listed))
            one += mixed[: len(mixed) // 2][: arguments.most]
            other += mixed[len(mixed) // 2 :]
        fitted = fit(one, start, arguments.paths, arguments.rounds)
        print(
            f"half {half}: fitted {mean(error(one, fitted).values()):.1%},",
            "left out", {k: f"{v:.1%}" for k, v in error(other, fitted).items()},
        )  # fmt: skip


if __name__ == "__main__":
    main()
