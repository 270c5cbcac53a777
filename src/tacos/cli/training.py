"""The commands that predict training steps: train, and its commands search, sweep and scaling."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from tacos import formats, training, units
from tacos._core import Topology
from tacos.cli.app import verb, warn, workers_on
from tacos.cli.options import (
    ENGINES,
    NETWORKS,
    PLAIN,
    Figures,
    Network,
    On,
    Output,
    Seed,
    Values,
    check_folder,
    offered,
)
from tacos.cli.viewing import check_page
from tacos.cli.workloads import check_timeline
from tacos.console import print_table, progress, width
from tacos.nodes import Nodes
from tacos.simulate import Straggler
from tacos.training import Parallelism, Transformer
from tacos.training.devices import DEVICES
from tacos.training.parallelism import RECOMPUTE, SCHEDULES

if TYPE_CHECKING:
    from tacos.training import Step

train = verb("train")

_DISTURBANCES = Group("Disturbances", sort_key=3)
_MANY = 200
"""Parallelisms beyond which a search starts a process per core."""
_Degree = int | None
_Flag = Annotated[bool | None, Parameter(show_default=False)]
_Model = Annotated[
    str,
    Values(lambda: training.MODELS, lambda: (".yaml", ".yml", ".json")),
    Parameter(help="A name such as llama3-405b, a YAML file, or a Hugging Face config.json."),
]
_Oversubscribe = Annotated[bool, PLAIN, Parameter(help="Accept steps that do not fit into memory.")]
_Faults = Annotated[
    tuple[str, ...],
    PLAIN,
    Parameter(
        help="A dead link, or a slow one with slowdown=: link=0-1,slowdown=4. Names work too, both=yes takes both directions, "
        "npu=3 all links of an NPU, nic=3 its links out of the box. May be repeated.",
    ),
]


@Parameter(name="*", group=Group("Parallelism", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class Split:
    """How the model and the batch are split."""

    tp: Annotated[_Degree, Parameter(help="Tensor parallelism.")] = None
    pp: Annotated[_Degree, Parameter(help="Pipeline stages.")] = None
    dp: Annotated[_Degree, Parameter(help="Replicas; follows from the others by default.")] = None
    cp: Annotated[_Degree, Parameter(help="Context parallelism.")] = None
    ep: Annotated[_Degree, Parameter(help="Expert parallelism.")] = None
    vp: Annotated[_Degree, Parameter(help="Virtual stages per pipeline stage.")] = None
    batch: Annotated[
        int | None, Parameter(help="Sequences per step; one micro-batch per replica by default.")
    ] = None
    microbatch: Annotated[int | None, Parameter(help="Sequences per pass.")] = None
    recompute: Annotated[
        str | None, offered(*RECOMPUTE), Parameter(help=f"{', '.join(RECOMPUTE)}.")
    ] = None
    zero: Annotated[
        int | None,
        offered("0", "1", "2", "3"),
        Parameter(help="ZeRO stage 0 to 3; 3 is FSDP. 1 by default."),
    ] = None
    schedule: Annotated[
        str | None, offered(*SCHEDULES), Parameter(help=f"{', '.join(SCHEDULES)}.")
    ] = None
    order: Annotated[
        str | None,
        Parameter(help=f"Order in which NPUs are assigned to groups; {training.ORDER} by default."),
    ] = None
    sequence_parallel: Annotated[
        _Flag, Parameter(help="Split norms along the sequence; with tensor parallelism by default.")
    ] = None
    overlap_gradients: Annotated[
        _Flag, Parameter(help="Sum gradients during the backward pass; the default.")
    ] = None
    overlap_parameters: Annotated[
        _Flag, Parameter(help="Gather parameters during the next forward pass; the default.")
    ] = None
    overlap_tensor: Annotated[
        _Flag, Parameter(help="Cut tensor-parallel communication into pieces that overlap.")
    ] = None

    def given(self, *without: str) -> dict[str, Any]:
        """Return the options that were given, by their names in a parallelism."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {k: v for k, v in named.items() if v is not None and k not in without}

    def on(self, model: training.Model, npus: int, **instead: Any) -> Parallelism:
        """Return the parallelism that was asked for, with the defaults of the command."""
        given = self.given(*instead) | {k: v for k, v in instead.items() if v is not None}
        usual: dict[str, Any] = {
            "zero": 1,
            "sequence_parallel": given.get("tp", 1) > 1 and isinstance(model, Transformer),
            "overlap_gradients": True,
            "overlap_parameters": True,
        }
        stages = given.get("pp", 1) * given.get("vp", 1)
        if model.layers % stages and not (model.layers + 2) % stages:
            usual["count_embedding"] = (
                True  # as Llama 3.1 405B: 126 layers and 2 in 64 virtual stages
            )
        return Parallelism(**usual | given).on(npus)


def _collectives() -> list[str]:
    """Return the ways to run collectives."""
    return ["free", *ENGINES.words()]


@Parameter(name="*", group=Group("Device and software", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class Machine:
    """What computes and communicates, and how closely that is modelled."""

    device: Annotated[
        str | None,
        offered(*DEVICES, files=(".yaml", ".yml", ".json")),
        Parameter(
            help=f"{', '.join(DEVICES)}, or a file that tacos probe device wrote; by default the device that the network's name implies."
        ),
    ] = None
    dtype: Annotated[
        str,
        offered(*training.DTYPES),
        Parameter(help="Type of matrix products: bf16, fp8, …"),
    ] = "bf16"
    software: Annotated[
        str,
        offered(*training.SOFTWARE),
        Parameter(help=f"Software stack to model: {', '.join(training.SOFTWARE)}."),
    ] = "current"
    collectives: Annotated[
        str,
        Values(_collectives, separator=","),
        Parameter(
            help="What to compare, separated by commas: nccl, auto (synthesized), an engine, a directory of tuned "
            "algorithms, free (no time at all)."
        ),
    ] = "nccl,auto,free"
    fidelity: Annotated[
        str,
        offered("folded", "exact", "astra"),
        Parameter(
            help="folded: one NPU of each pipeline stage; exact: every NPU and every transfer, for small jobs; astra: the same "
            "under ASTRA-sim's rules."
        ),
    ] = "folded"

    @property
    def names(self) -> list[str]:
        """The ways to run collectives."""
        found = [name for name in self.collectives.split(",") if name]
        if not found:
            raise ValueError("--collectives must name at least one, such as nccl")
        return found

    def arguments(self, spec: str) -> dict[str, Any]:
        """Return the arguments of every prediction on a network with this name."""
        device = self.device or _device_of(spec)
        return {"device": device, "dtype": self.dtype, "software": self.software}


@Parameter(name="*", group=_DISTURBANCES)
@dataclass(frozen=True, kw_only=True)
class Jitter:
    """Passes whose durations vary."""

    jitter: Annotated[
        float, Parameter(help="Standard deviation of the duration of passes, as a share: 0.05.")
    ] = 0.0
    seed: Seed = 0


@Parameter(name="*", group=_DISTURBANCES)
@dataclass(frozen=True, kw_only=True)
class Disturbances(Jitter):
    """What is slow or broken during the step."""

    fault: _Faults = ()
    straggler: Annotated[
        tuple[str, ...],
        PLAIN,
        Parameter(help="An NPU that computes more slowly: npu=3,slowdown=1.5. May be repeated."),
    ] = ()

    def arguments(self, network: Topology) -> dict[str, Any]:
        """Return the arguments of a prediction; faults are part of the network."""
        slow = {}
        for text in self.straggler:
            one = Straggler.parse(text)
            if units.time_ps(one.late):
                raise ValueError(
                    f"--straggler takes npu and slowdown in a training step; got {text!r}"
                )
            slow[Nodes(network).npu(one.npu)] = one.slowdown
        return {"stragglers": slow, "jitter": self.jitter, "seed": self.seed}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Files(Figures):
    """Files that show one step."""

    timeline: Annotated[
        Path | None,
        offered(files=(".json", ".json.gz", ".csv")),
        Parameter(
            help="Write when each rank computes and communicates: .json for Perfetto, .json.gz or .csv. Shows the first of --collectives."
        ),
    ] = None
    export: Annotated[
        str | None,
        Parameter(
            help="Write the step for ASTRA-sim, with its algorithms, to files with this prefix: the synthesized one (auto) if "
            "--collectives has it, else the first."
        ),
    ] = None
    html: Annotated[
        Path | None,
        offered(files=(".html",)),
        Parameter(
            help="Write a page that shows the step over time, ranks and their streams, and its collectives."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse files that cannot be written, before the work."""
        super().__post_init__()
        if self.timeline is not None:
            check_timeline("--timeline", self.timeline)
        if self.export is not None:
            check_folder("--export", Path(self.export))
        if self.html is not None:
            check_page("--html", self.html)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Table:
    """How parallelisms are tried, and how many of them are printed."""

    top: Annotated[int, Parameter(help="Rows to print.")] = 10
    on: On = None

    def __post_init__(self) -> None:
        """Refuse a table without rows."""
        if self.top < 1:
            raise ValueError(f"--top must be a positive number; got {self.top}")


@dataclass(frozen=True)
class _Job:
    """A model on a network, and how its steps are predicted."""

    model: training.Model
    spec: str
    network: Topology
    machine: Machine
    arguments: dict[str, Any]

    @classmethod
    def of(cls, model: str, spec: str, machine: Machine, faults: tuple[str, ...] = ()) -> _Job:
        wanted = training.model(model)
        network = formats.network(spec)
        arguments = machine.arguments(spec)
        if faults:
            network = training.disturbed(network, faults)
        return cls(wanted, spec, network, machine, arguments)

    @property
    def title(self) -> str:
        return f"{self.model.name} on {self.spec}"

    def steps(
        self, split: Parallelism, out: Output, *, changes: tuple[str, ...] = (), **more: Any
    ) -> dict[str, Step]:
        """Return the step for each way to run its collectives, as it is and changed."""
        names = self.machine.names
        tasks = [(name, "") for name in names]
        tasks += [(name, change) for change in changes for name in names if name != "free"]
        steps = {}
        with progress("predicting", out.silent) as report:
            for done, (name, change) in enumerate(tasks):
                where, device = training.changed(self.network, self.arguments["device"], change)
                steps[f"{name}, {change}" if change else name] = training.step(
                    self.model,
                    split,
                    where,
                    **self.arguments | more | {"device": device},
                    collectives=name,
                    fidelity=self.machine.fidelity,
                )
                report((done + 1) / len(tasks))
        return steps

    def show(self, steps: dict[str, Step], split: Parallelism) -> None:
        """Print where the time goes, and what better collectives gain."""
        from tacos import view

        how = f"{self.arguments['device']}, {self.machine.dtype}"
        print_table(view.step_table(steps, f"{self.title}: {_words(split)}, {how}"))
        print(_verdict(steps))

    def remark(self) -> None:
        """Say which device was assumed."""
        if self.machine.device is None:
            warn(f"assuming {self.arguments['device']} (--device)")


@train.default
def step(
    model: _Model,
    topology: Network,
    /,
    *,
    what_if: Annotated[
        tuple[str, ...],
        PLAIN,
        Parameter(
            help="Also predict the step on a changed network or device: nic=2x, box=2x, links=2x, latency=0.5x, compute=2x, "
            "memory=2x, a-b=0.1x, device=h200; separate several changes by commas. May be repeated.",
        ),
    ] = (),
    oversubscribe: _Oversubscribe = False,
    files: Files = Files(),
    split: Split = Split(),
    machine: Machine = Machine(),
    disturbances: Disturbances = Disturbances(),
    out: Output = Output(),
) -> int:
    """Predict a training step: how long it takes, where the time goes, and what better collectives gain.

    Example: tacos train llama3-405b dgx-h100:256 --tp 8 --pp 8 --vp 8 --cp 2 --batch 1152
    """
    job = _Job.of(model, topology, machine, disturbances.fault)
    if files.export is not None:
        from tacos.training.astra import described

        described(job.network)  # before the work
    parallel = split.on(job.model, job.network.npus)
    steps = job.steps(
        parallel,
        out,
        changes=what_if,
        oversubscribe=oversubscribe,
        **disturbances.arguments(job.network),
    )
    said = _written(files, job, steps, out)
    if out.as_json:
        found = {label: one.summary() for label, one in steps.items()}
        print(json.dumps({"steps": found, "gain": _gain(steps)}, indent=2))
    elif not out.quiet:
        job.show(steps, parallel)
        if files.export is not None:
            print(f"written for ASTRA-sim to {files.export}.*")
        for sentence in said:
            warn(sentence)
        job.remark()
    return 0


def _written(files: Files, job: _Job, steps: dict[str, Step], out: Output) -> list[str]:
    """Write the files of a step; return what to say about those for ASTRA-sim."""
    from tacos import view

    name, first = next(iter(steps.items()))
    if files.csv is not None:
        view.write_steps(files.csv, steps)
    if files.output is not None:
        title = f"{job.title}, batch {first.parallel.batch}"
        view.save(view.step_picture(steps, title), files.output)
    if files.timeline is not None:
        first.timeline.save(files.timeline)
    said = []
    if files.export is not None:
        said = training.export(steps.get("auto", first), files.export)
    if files.html is not None:
        with progress("drawing", out.silent) as report:
            title = f"step of {job.title}, {name}"
            view.write_step_page(files.html, first, title=title, progress=report)
    return said


_Restricted = Annotated[
    str,
    Values(lambda: [f"{one.name}=" for one in fields(Split) if one.name != "batch"]),
    Parameter(help="Values to try, such as tp=1,2,4,8 pp=1,2,4."),
]


@train.command
def search(
    model: _Model,
    topology: Network,
    /,
    *values: _Restricted,
    fault: _Faults = (),
    table: Table = Table(),
    figures: Figures = Figures(),
    split: Split = Split(),
    machine: Machine = Machine(),
    out: Output = Output(),
) -> int:
    """Try all parallelisms that suit the model and the network; the fastest that fit into memory come first.

    Options and VALUES restrict the search. --batch is required.

    Example: tacos train search llama3-70b dgx-h100:8 --batch 256 --tp 8
    """
    job = _Job.of(model, topology, machine, fault)
    return _ranked(job, split, split.given("batch") | _choices(values), table, figures, out)


@train.command
def sweep(
    model: _Model,
    topology: Network,
    /,
    *values: _Restricted,
    fault: _Faults = (),
    table: Table = Table(),
    figures: Figures = Figures(),
    split: Split = Split(),
    machine: Machine = Machine(),
    out: Output = Output(),
) -> int:
    """Try the parallelisms that VALUES list; the fastest that fit into memory come first.

    What is neither listed nor given as an option has its default. --batch is required.

    Example: tacos train sweep llama3-8b dgx-h100:2 tp=1,2,4,8 pp=1,2 --batch 64
    """
    if not values:
        raise ValueError("VALUES is missing: list what to try, such as tp=1,2,4 pp=1,2")
    job = _Job.of(model, topology, machine, fault)
    usual: dict[str, Any] = dict.fromkeys(("tp", "pp", "cp", "ep", "vp", "microbatch"), 1)
    usual |= {"recompute": "none", "zero": 1}
    choices = usual | split.given("batch") | _choices(values)
    return _ranked(job, split, choices, table, figures, out)


def _ranked(
    job: _Job,
    split: Split,
    choices: dict[str, Any],
    table: Table,
    figures: Figures,
    out: Output,
) -> int:
    """Try parallelisms, and show the fastest ones and where the time of the fastest goes."""
    from tacos import view

    if split.batch is None:
        raise ValueError("--batch is missing: a search over parallelisms needs it")
    names = job.machine.names
    tried = training.parallelisms(job.model, job.network, batch=split.batch, **choices)
    where = "processes" if table.on is None and len(tried) >= _MANY else table.on
    with (
        progress(f"{len(tried):,} parallelisms", out.silent) as report,
        workers_on(where) as executor,
    ):
        ranking = training.search(
            job.model,
            job.network,
            batch=split.batch,
            candidates=tried,
            collectives=names[0],
            executor=executor,
            progress=report,
            **job.arguments,
        )
    if not ranking.steps:
        raise ValueError(f"none of {ranking.tried:,} parallelisms fits: {ranking.refused}")
    best = ranking[0].parallel
    steps = job.steps(best, out)
    if figures.csv is not None:
        view.write_steps(figures.csv, ranking.steps)
    if figures.output is not None:
        title = f"{job.title}, batch {split.batch}"
        view.save(view.step_picture(steps, title), figures.output)
    if out.as_json:
        found = {label: one.summary() for label, one in steps.items()}
        facts = {"steps": found, "gain": _gain(steps), "tried": ranking.tried}
        facts |= {"too_large": ranking.too_large, "ranking": ranking.rows()[: table.top]}
        print(json.dumps(facts, indent=2))
    elif not out.quiet:
        print_table(view.sweep_table(ranking.steps, job.title, limit=table.top, width=width()))
        fits = f"{len(ranking):,} of {ranking.tried:,} parallelisms fit into memory"
        print(f"{fits}; the fastest one:\n")
        job.show(steps, best)
        job.remark()
    return 0


def _choices(words: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return the values to try of each field of a parallelism."""
    return dict(_choice(word) for word in words)


def _choice(text: str) -> tuple[str, list[Any]]:
    name, sign, values = text.partition("=")
    known = {one.name: one.type for one in fields(Split) if one.name != "batch"}
    if sign and name not in known:
        raise ValueError(f"VALUES has the unknown name {name!r}; use one of {', '.join(known)}")
    if not sign or not values:
        raise ValueError(f"VALUES takes name=value,value such as tp=1,2,4; got {text!r}")
    usual = getattr(Parallelism(), name)
    return name, [_value(name, word, type(usual)) for word in values.split(",")]


def _value(name: str, word: str, kind: type) -> Any:
    if kind is bool:
        if word not in ("yes", "no"):
            raise ValueError(f"VALUES takes yes or no for {name}; got {word!r}")
        return word == "yes"
    if kind is int and not re.fullmatch(r"\d+", word):
        raise ValueError(f"VALUES takes whole numbers for {name}; got {word!r}")
    return kind(word)


@train.command
def scaling(
    model: _Model,
    topology: Network,
    /,
    *others: Annotated[
        str, NETWORKS, Parameter(help="Further networks, such as dgx-h100:4 dgx-h100:8.")
    ],
    weak: Annotated[
        bool, PLAIN, Parameter(help="Let the batch grow with the number of NPUs.")
    ] = False,
    oversubscribe: _Oversubscribe = False,
    figures: Figures = Figures(),
    split: Split = Split(),
    machine: Machine = Machine(),
    jitter: Jitter = Jitter(),
    out: Output = Output(),
) -> int:
    """Predict the same job with more replicas on several networks, as a table and with -o as curves.

    Example: tacos train scaling llama3-8b dgx-h100:2 dgx-h100:4 dgx-h100:8 --tp 2 --batch 512
    """
    if not others:
        raise ValueError("OTHERS is missing: give at least two networks")
    from tacos import view

    first = _Job.of(model, topology, machine)
    alike = replace(machine, device=first.arguments["device"])
    jobs = [first, *(_Job.of(model, spec, alike) for spec in others)]
    parallel = split.on(first.model, first.network.npus)
    more: dict[str, Any] = {
        "oversubscribe": oversubscribe,
        "jitter": jitter.jitter,
        "seed": jitter.seed,
    }
    curves: dict[str, list[Step]] = {name: [] for name in machine.names}
    quietly = replace(out, quiet=True)
    with progress("predicting", out.silent) as report:
        for done, job in enumerate(jobs):
            npus = job.network.npus
            # Parts of a batch are for the check to refuse.
            batch = parallel.batch * npus // parallel.npus if weak else parallel.batch
            free = {"dp": None} if done else {}
            try:
                steps = job.steps(split.on(job.model, npus, batch=batch, **free), quietly, **more)
            except ValueError as error:
                raise ValueError(f"{job.spec}: {error}") from None
            for name, one in steps.items():
                curves[name].append(one)
            report((done + 1) / len(jobs))
    flat = {
        f"{how}, {job.spec}": one
        for how, steps_of in curves.items()
        for job, one in zip(jobs, steps_of, strict=True)
    }
    name = first.model.name
    if figures.csv is not None:
        view.write_steps(figures.csv, flat)
    if figures.output is not None:
        view.save(view.scaling_picture(curves, f"{name}: {_words(parallel)}"), figures.output)
    if out.as_json:
        found = {label: one.summary() for label, one in flat.items()}
        print(json.dumps({"scaling": found}, indent=2))
    elif not out.quiet:
        title = f"{name}: step, and speed per NPU against the first network"
        print_table(view.scaling_table([job.spec for job in jobs], curves, title))
        first.remark()
    return 0


def _device_of(spec: str) -> str:
    """Return the device that a network's name implies."""
    text = spec.lower()
    stems = {"nvl72": "gb200"} | {name.partition("-")[0]: name for name in DEVICES}
    for stem in sorted(stems, key=len, reverse=True):
        if stem in text:
            return stems[stem]
    raise ValueError(
        f"--device is missing, and {spec} does not imply one; use one of {', '.join(DEVICES)}"
    )


def _words(split: Parallelism) -> str:
    degrees = {name: getattr(split, name) for name in ("tp", "cp", "ep", "pp", "vp", "dp")}
    said = [f"{name} {value}" for name, value in degrees.items() if value > 1]
    return ", ".join([*said, f"batch {split.batch}", f"micro-batch {split.microbatch}"])


def _gain(steps: dict[str, Step]) -> dict[str, float]:
    """Return how many times as fast each step is as the first."""
    first = next(iter(steps.values()))
    return {name: first.time_s / one.time_s for name, one in steps.items()}


def _verdict(steps: dict[str, Step]) -> str:
    """Say in a sentence or two how much the collectives matter."""
    names = list(steps)
    first = steps[names[0]]
    said = f"With {names[0]}, {100 * first.exposed_s / first.time_s:.1f} % of the step waits for communication."
    if "auto" in steps and names[0] != "auto":
        saved = 1 - steps["auto"].time_s / first.time_s
        said += f" Synthesized collectives save {100 * saved:.1f} % of the step"
        if "free" in steps:
            most = 1 - steps["free"].time_s / first.time_s
            said += f"; no collective can save more than {100 * most:.1f} %"
        said += "."
    return said
