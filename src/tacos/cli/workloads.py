"""Workloads in several commands: how they are read, simulated and shown."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import tacos
from tacos import formats, units
from tacos._core import Topology
from tacos.cli.app import assumed_network, check_folder, warn
from tacos.console import progress, show
from tacos.errors import FormatError
from tacos.simulate import astra
from tacos.simulate.astra_files import load_system
from tacos.simulate.timeline import ENDINGS, Timeline
from tacos.workload import COMP, Workload

Groups = Annotated[
    Path | None,
    Parameter(
        help="JSON file with the ranks of each group that a workload's collectives name; by default the "
        "file PREFIX.json, if there is one."
    ),
]
System = Annotated[
    Path | None,
    Parameter(help="ASTRA-sim's system file (.json), for a workload: how ranks compute and run collectives."),
]  # fmt: skip
Memory = Annotated[
    Path | None,
    Parameter(help="ASTRA-sim's remote memory file (.json), for the loads and stores of a workload."),
]  # fmt: skip
Queues = Annotated[
    int | None,
    Parameter(name="--num-queues-per-dim", help="Queues of each dimension, as in ASTRA-sim."),
]
Rendezvous = Annotated[
    bool,
    Parameter(
        name="--rendezvous-protocol",
        negative="",
        show_default=False,
        help="A receiver sends a message before data moves, as in ASTRA-sim.",
    ),
]
Dims = Annotated[
    str | None,
    Parameter(
        help="NPUs of each dimension of the network, such as 16 or 4x2x8, for a workload by layers (.txt)."
    ),
]
DEFAULT_PROFILE = "astra-sim-aware"


def run_workload(
    workload: Workload,
    network: Topology | None,
    *,
    profile: str | None,
    system: Path | None,
    memory: Path | None,
    queues: int | None,
    rendezvous: bool,
    silent: bool,
) -> astra.AstraResult:
    """Simulate a workload; print what was assumed."""
    if memory is not None and system is None:
        raise ValueError(f"--memory is {memory}, but it needs --system")
    if queues is not None and queues < 1:
        raise ValueError(f"--num-queues-per-dim must be positive; got {queues}")
    if network is None:
        network = assumed_network(workload.npus, silent)
    if system is None:
        rules = astra.AstraSystem(queues=queues or 1)
    else:
        rules = load_system(system, memory, queues=queues or 1)
    if not silent:
        for sentence in _assumptions(workload, profile, system):
            warn(sentence)
    with progress("simulating", silent) as report:
        return astra.run(
            workload,
            network,
            aware=astra.PROFILES[profile or DEFAULT_PROFILE],
            as_custom=False,
            system=rules,
            rendezvous=rendezvous,
            record=False,
            progress=report,
        )


def _assumptions(workload: Workload, profile: str | None, system: Path | None) -> list[str]:
    said = []
    if profile is None:
        said.append(f"assuming ASTRA-sim's rules (--profile {DEFAULT_PROFILE})")
    comps = workload.kind == COMP
    untimed = comps & (workload.flops > 0) & (workload.duration_ps == 0)
    if system is None and untimed.any():
        said.append(
            f"{int(untimed.sum()):,} computations say what they compute but not how long it takes: 1 ns each "
            "(--system with roofline-enabled gives them a time)"
        )
    return said


def figures(workload: Workload, result: astra.AstraResult, as_json: bool) -> dict[str, Any]:
    """Return the times of a run: one entry per rank in JSON, the last and the extremes for people."""
    finish, exposed = result.npu_finish_ns, result.npu_exposed_ns
    facts: dict[str, Any] = {
        "simulator": result.profile,
        "time_s": result.time_ns / 1e9,
        "ranks": workload.npus,
        "nodes": workload.nodes,
    }
    if as_json:
        return facts | {
            "finish_ns": finish.tolist(),
            "compute_ns": result.npu_compute_ns.tolist(),
            "exposed_ns": exposed.tolist(),
        }
    last = int(finish.argmax())

    def spread(values: Any) -> str:
        low, high = (units.format_time(int(v) / 1e9) for v in (values.min(), values.max()))
        return low if low == high else f"{low} to {high}"

    return facts | {
        "last_rank": last,
        "finish": spread(finish),
        "compute": spread(result.npu_compute_ns),
        "exposed_communication": spread(exposed),
    }


def show_workload(path: Path, workload: Workload, as_json: bool, quiet: bool) -> None:
    """Print what a workload consists of."""
    facts = tacos.workload.summary(workload)
    if not as_json and "collectives" in facts:
        rows = facts.pop("collectives")
        for row in rows:
            kind = row["kind"].replace("_", "-")
            name = f"{kind} of {row['ranks']:,} ranks"
            size = units.format_size(row["bytes"] / row["nodes"])
            many = f" in {row['groups']:,} groups" if row["groups"] > 1 else ""
            facts[name] = f"{row['nodes']:,} nodes{many}, {size} each on average"
    show(facts, str(path), as_json, quiet)


def save_timeline(
    workload: Workload, result: astra.AstraResult, path: Path, pages: tuple[str, ...] = ()
) -> None:
    """Write when each node ran: as a page where the name ends in one of `pages`, else for Perfetto or as CSV."""
    line = Timeline(workload, result.node_begin_ns * 1000, result.node_end_ns * 1000)
    if not path.name.lower().endswith(pages or "\0"):
        line.save(path)
        return
    from tacos import view

    summary = [(name, str(words)) for name, words in figures(workload, result, False).items()]
    view.write_timeline_page(path, line, title=f"timeline of {path.stem}", summary=summary)


def check_timeline(option: str, path: Path, pages: tuple[str, ...] = ()) -> None:
    """Refuse a name that no timeline goes into, before the work."""
    if not path.name.lower().endswith(ENDINGS + pages):
        raise ValueError(
            f"{option} is {path}; the timeline of a workload goes into {', '.join(ENDINGS + pages)}"
        )
    check_folder(option, path)


def flight_in(file: Path, others: Sequence[Path]) -> list[Path]:
    """The flight records that paths are or hold, or nothing; refuses a directory without."""
    from tacos.runtime.flight import records

    found = records([file, *others])
    if not found and file.is_dir() and not Path(f"{file}.0.et").exists():  # a prefix of traces
        raise FormatError(
            f"{file}: a directory without flight records (*.flight.json); expected a file"
        )
    return found


def loaded_from(
    file: Path,
    format: str | None,
    groups: Path | None,
    dims: str | None,
    network: Topology | None = None,
    *,
    mapped: bool = False,
) -> Any:
    """Return what a file holds; groups and dimensions make it a workload.

    A workload by layers that runs on a network has the dimensions of the network. What is only looked at once may be mapped: it
    stays in its file, if that is large and of a format that can.
    """
    sizes = None if dims is None else _sizes(dims)
    by_layers = formats.FORMATS[formats.name_of(file, format=format)].kind is Workload
    if network is not None and sizes is None and by_layers:
        sizes = [size for _, size in network.dims]
        sizes = sizes if sizes and prod(sizes) == network.npus else [network.npus]
    if groups is None and sizes is None:
        can = mapped and "mapped" in formats.options_of(file, format=format)
        return formats.load(file, format=format, **({"mapped": True} if can else {}))
    return tacos.workload.load(file, groups=groups, dims=sizes, format=format)


def _sizes(dims: str) -> list[int]:
    words = dims.split("x")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"--dims must be numbers of NPUs such as 16 or 4x2x8; got {dims!r}")
    return [int(word) for word in words]
