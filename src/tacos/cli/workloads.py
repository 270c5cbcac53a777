"""Workloads in several commands: how they are read, simulated and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

import tacos
from tacos import formats, units
from tacos._core import Topology, Workload
from tacos.cli.app import assumed_network, warn
from tacos.cli.options import NETWORKS, PLAIN, Output, check_folder, chosen, offered
from tacos.console import progress
from tacos.errors import FormatError
from tacos.simulate.timeline import ENDINGS, Timeline
from tacos.workload import COMP

if TYPE_CHECKING:
    from tacos.simulate.astra import AstraResult

_WORKLOADS = Group("Workloads", sort_key=5)
DEFAULT_PROFILE = "astra-sim-aware"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Place:
    """The network and the size that a file does not say, or another network to run on."""

    topology: Annotated[
        str | None,
        NETWORKS,
        Parameter(help="Network of a program or a workload, or another one: a spec or a file."),
    ] = None
    size: Annotated[str | None, Parameter(help="Buffer size of a program, such as 64MB.")] = None

    @cached_property
    def network(self) -> Topology | None:
        """The network, if one was named."""
        return None if self.topology is None else formats.network(self.topology)


@Parameter(name="*", group=_WORKLOADS)
@dataclass(frozen=True, kw_only=True)
class Layers:
    """What a workload's own files leave out."""

    groups: Annotated[
        Path | None,
        offered(files=(".json",)),
        Parameter(
            help="JSON file with the ranks of each group that a workload's collectives name; by default the "
            "file PREFIX.json, if there is one."
        ),
    ] = None
    dims: Annotated[
        str | None,
        Parameter(
            help="NPUs of each dimension of the network, such as 16 or 4x2x8, for a workload by layers (.txt)."
        ),
    ] = None

    @property
    def sizes(self) -> list[int] | None:
        """The dimensions, if they were given."""
        if self.dims is None:
            return None
        words = self.dims.split("x")
        if not all(word.isdecimal() and int(word) > 0 for word in words):
            raise ValueError(
                f"--dims must be numbers of NPUs such as 16 or 4x2x8; got {self.dims!r}"
            )
        return [int(word) for word in words]

    def load(
        self,
        file: Path,
        format: str | None = None,
        network: Topology | None = None,
        *,
        mapped: bool = False,
    ) -> Any:
        """Return what a file holds; groups and dimensions make it a workload.

        A workload by layers that runs on a network has the dimensions of the network. What is only looked at once may be mapped: it
        stays in its file, if that is large and of a format that can.
        """
        sizes = self.sizes
        by_layers = formats.FORMATS[formats.name_of(file, format=format)].kind is Workload
        if network is not None and sizes is None and by_layers:
            sizes = [size for _, size in network.dims]
            sizes = sizes if sizes and prod(sizes) == network.npus else [network.npus]
        if self.groups is None and sizes is None:
            can = mapped and "mapped" in formats.options_of(file, format=format)
            options: dict[str, Any] = {"mapped": True} if can else {}
            return formats.load(file, format=format, **options)
        return tacos.workload.load(file, groups=self.groups, dims=sizes, format=format)


@Parameter(name="*", group=_WORKLOADS)
@dataclass(frozen=True, kw_only=True)
class System:
    """ASTRA-sim's rules for a workload."""

    system: Annotated[
        Path | None,
        offered(files=(".json",)),
        Parameter(
            help="ASTRA-sim's system file (.json), for a workload: how ranks compute and run collectives."
        ),
    ] = None
    memory: Annotated[
        Path | None,
        offered(files=(".json",)),
        Parameter(
            help="ASTRA-sim's remote memory file (.json), for the loads and stores of a workload."
        ),
    ] = None
    queues: Annotated[
        int | None,
        Parameter(name="--num-queues-per-dim", help="Queues of each dimension, as in ASTRA-sim."),
    ] = None
    rendezvous: Annotated[
        bool,
        PLAIN,
        Parameter(
            name="--rendezvous-protocol",
            help="A receiver sends a message before data moves, as in ASTRA-sim.",
        ),
    ] = False

    def __post_init__(self) -> None:
        """Refuse options that miss another one or are out of range."""
        if self.memory is not None and self.system is None:
            raise ValueError(f"--memory is {self.memory}, but it needs --system")
        if self.queues is not None and self.queues < 1:
            raise ValueError(f"--num-queues-per-dim must be positive; got {self.queues}")

    def refuse(self, file: Path) -> None:
        """Refuse all options; the file holds a schedule or a program."""
        for option in chosen(self):
            raise ValueError(f"{option} is for workloads; {file} holds a schedule or a program")

    def run(
        self, workload: Workload, network: Topology | None, profile: str | None, out: Output
    ) -> AstraResult:
        """Simulate a workload; print what was assumed."""
        from tacos.simulate import astra

        if network is None:
            network = assumed_network(workload.npus, out.silent)
        if self.system is None:
            rules = astra.AstraSystem(queues=self.queues or 1)
        else:
            from tacos.simulate.astra_files import load_system

            rules = load_system(self.system, self.memory, queues=self.queues or 1)
        if not out.silent:
            for sentence in _assumptions(workload, profile, self.system):
                warn(sentence)
        with progress("simulating", out.silent) as report:
            return astra.run(
                workload,
                network,
                aware=astra.PROFILES[profile or DEFAULT_PROFILE],
                as_custom=False,
                system=rules,
                rendezvous=self.rendezvous,
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


def figures(workload: Workload, result: AstraResult, as_json: bool) -> dict[str, Any]:
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


def show_workload(path: Path, workload: Workload, out: Output) -> None:
    """Print what a workload consists of."""
    facts = tacos.workload.summary(workload)
    if not out.as_json and "collectives" in facts:
        rows = facts.pop("collectives")
        for row in rows:
            kind = row["kind"].replace("_", "-")
            name = f"{kind} of {row['ranks']:,} ranks"
            size = units.format_size(row["bytes"] / row["nodes"])
            many = f" in {row['groups']:,} groups" if row["groups"] > 1 else ""
            facts[name] = f"{row['nodes']:,} nodes{many}, {size} each on average"
    out.show(facts, str(path))


def save_timeline(
    workload: Workload, result: AstraResult, path: Path, pages: tuple[str, ...] = ()
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
    from tacos.formats.flight_record import records

    found = records([file, *others])
    if not found and file.is_dir() and not Path(f"{file}.0.et").exists():  # a prefix of traces
        raise FormatError(
            f"{file}: a directory without flight records (*.flight.json); expected a file"
        )
    return found
