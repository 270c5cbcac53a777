"""The command that predicts training steps: train."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tacos import formats, training, units
from tacos._core import Topology
from tacos.cli.app import Json, Network, On, Quiet, app, check_folder, warn, workers_on
from tacos.cli.viewing import check_page
from tacos.cli.workloads import check_timeline
from tacos.console import print_table, progress, width
from tacos.nodes import Nodes
from tacos.simulate import Straggler
from tacos.training import Parallelism, Step, Transformer
from tacos.training.astra import described
from tacos.training.devices import DEVICES
from tacos.view import (
    checked,
    save,
    scaling_picture,
    scaling_table,
    step_picture,
    step_table,
    sweep_table,
    write_step_page,
    write_steps,
)

_MANY = 200
"""Parallelisms beyond which a search starts a process per core."""
_COLLECTIVES = "nccl,auto,free"
_Flag = Annotated[bool | None, Parameter(show_default=False)]


@app.command
def train(
    model: Annotated[
        str,
        Parameter(help="A name such as llama3-405b, a YAML file, or a Hugging Face config.json."),
    ],
    topology: Network,
    /,
    *,
    tp: Annotated[int | None, Parameter(help="Tensor parallelism.")] = None,
    pp: Annotated[int | None, Parameter(help="Pipeline stages.")] = None,
    dp: Annotated[
        int | None, Parameter(help="Replicas; follows from the others by default.")
    ] = None,
    cp: Annotated[int | None, Parameter(help="Context parallelism.")] = None,
    ep: Annotated[int | None, Parameter(help="Expert parallelism.")] = None,
    vp: Annotated[int | None, Parameter(help="Virtual stages per pipeline stage.")] = None,
    batch: Annotated[
        int | None,
        Parameter(
            help="Sequences per step; by default one micro-batch per replica. Required with --search and --sweep."
        ),
    ] = None,
    microbatch: Annotated[int | None, Parameter(help="Sequences per pass.")] = None,
    recompute: Annotated[str | None, Parameter(help="none, selective, alternate or full.")] = None,
    zero: Annotated[
        int | None, Parameter(help="ZeRO stage 0 to 3; 3 is FSDP. 1 by default.")
    ] = None,
    schedule: Annotated[
        str | None, Parameter(help="1f1b, gpipe, interleaved or zero-bubble.")
    ] = None,
    order: Annotated[
        str | None,
        Parameter(help=f"Order in which NPUs are assigned to groups; {training.ORDER} by default."),
    ] = None,
    sequence_parallel: Annotated[
        _Flag, Parameter(help="Split norms along the sequence; with tensor parallelism by default.")
    ] = None,
    overlap_gradients: Annotated[
        _Flag, Parameter(help="Sum gradients during the backward pass; the default.")
    ] = None,
    overlap_parameters: Annotated[
        _Flag, Parameter(help="Gather parameters during the next forward pass; the default.")
    ] = None,
    overlap_tensor: Annotated[
        _Flag, Parameter(help="Cut tensor-parallel communication into pieces that overlap.")
    ] = None,
    device: Annotated[
        str | None,
        Parameter(
            help=f"{', '.join(DEVICES)}, or a file that tacos probe --device wrote; by default the device that the network's name implies."
        ),
    ] = None,
    dtype: Annotated[str, Parameter(help="Type of matrix products: bf16, fp8, …")] = "bf16",
    software: Annotated[
        str, Parameter(help=f"Software stack to model: {', '.join(training.SOFTWARE)}.")
    ] = "current",
    collectives: Annotated[
        str,
        Parameter(
            help="What to compare, separated by commas: nccl, auto (synthesized), an engine, a directory of tuned "
            "algorithms, free (no time at all)."
        ),
    ] = _COLLECTIVES,
    fidelity: Annotated[
        str,
        Parameter(
            help="folded: one NPU of each pipeline stage; exact: every NPU and every transfer, for small jobs; astra: the same "
            "under ASTRA-sim's rules."
        ),
    ] = "folded",
    fault: Annotated[
        tuple[str, ...],
        Parameter(
            help="A dead link, or a slow one with slowdown=: link=0-1,slowdown=4. Names work too, both=yes takes both directions, "
            "npu=3 all links of an NPU, nic=3 its links out of the box. May be repeated.",
            negative="",
            show_default=False,
        ),
    ] = (),
    straggler: Annotated[
        tuple[str, ...],
        Parameter(
            help="An NPU that computes more slowly: npu=3,slowdown=1.5. May be repeated.",
            negative="",
            show_default=False,
        ),
    ] = (),
    jitter: Annotated[
        float, Parameter(help="Standard deviation of the duration of passes, as a share: 0.05.")
    ] = 0.0,
    seed: Annotated[int, Parameter(help="Random seed of the jitter.")] = 0,
    sweep: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=True,
            negative="",
            help="Values to try, such as tp=1,2,4,8 pp=1,2,4; the fastest come first.",
        ),
    ] = None,
    search: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Try all parallelisms that fit; the fastest come first.",
        ),
    ] = False,
    top: Annotated[int, Parameter(help="Rows to print of a sweep or a search.")] = 10,
    scaling: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=True,
            negative="",
            help="Further networks, such as dgx-h100:2 dgx-h100:4: the same job with more replicas, as a table and with --chart as "
            "curves.",
        ),
    ] = None,
    weak: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="With --scaling, let the batch grow with the number of NPUs.",
        ),
    ] = False,
    what_if: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="Also predict the step on a changed network or device: nic=2x, box=2x, links=2x, latency=0.5x, compute=2x, "
            "memory=2x, a-b=0.1x, device=h200; separate several changes by commas. May be repeated.",
        ),
    ] = None,
    oversubscribe: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Accept steps that do not fit into memory."
        ),
    ] = False,
    chart: Annotated[
        Path | None, Parameter(help="Draw where the time goes, as .svg, .png or .pdf.")
    ] = None,
    csv: Annotated[Path | None, Parameter(help="Write all figures as a table.")] = None,
    timeline: Annotated[
        Path | None,
        Parameter(
            help="Write when each rank computes and communicates: .json for Perfetto, .json.gz or .csv. Shows the first of --collectives."
        ),
    ] = None,
    export: Annotated[
        str | None,
        Parameter(
            help="Write the step for ASTRA-sim, with its algorithms, to files with this prefix: the synthesized one (auto) if "
            "--collectives has it, else the first."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        Parameter(
            help="Write a page that shows the step over time, ranks and their streams, and its collectives."
        ),
    ] = None,
    on: On = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Predict a training step: how long it takes, where the time goes, and what better collectives gain.

    Example: tacos train llama3-405b dgx-h100:256 --tp 8 --pp 8 --vp 8 --cp 2 --batch 1152
    """
    for option, path in (("--chart", chart), ("--csv", csv)):
        if path is not None:
            check_folder(option, path)
    if chart is not None:
        checked(chart, what="--chart")
    if timeline is not None:
        check_timeline("--timeline", timeline)
    if export is not None:
        check_folder("--export", Path(export))
    if html is not None:
        check_page("--html", html)
    if top < 1:
        raise ValueError(f"--top must be a positive number; got {top}")
    wanted = training.model(model)
    network = formats.network(topology)
    chosen = device or _device_of(topology)
    names = [name for name in collectives.split(",") if name]
    if not names:
        raise ValueError("--collectives must name at least one, such as nccl")
    given = {
        name: value
        for name, value in {
            "tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "vp": vp, "microbatch": microbatch, "recompute": recompute,
            "zero": zero, "schedule": schedule, "order": order, "sequence_parallel": sequence_parallel,
            "overlap_gradients": overlap_gradients, "overlap_parameters": overlap_parameters, "overlap_tensor": overlap_tensor,
        }.items()
        if value is not None
    }  # fmt: skip
    how: dict[str, Any] = {"device": chosen, "dtype": dtype, "software": software}
    network = training.disturbed(network, fault) if fault else network
    if export is not None:
        described(network)  # before the work
    trouble = {"stragglers": _stragglers(network, straggler), "jitter": jitter, "seed": seed}
    silent = quiet or as_json
    if scaling:
        if sweep or search or what_if or timeline or export or fault or straggler:
            raise ValueError(
                "--scaling goes with one job on several networks: leave out --sweep, --search, --what-if, --fault, --straggler, "
                "--timeline and --export"
            )
        how |= {
            "oversubscribe": oversubscribe,
            "fidelity": fidelity,
            "jitter": jitter,
            "seed": seed,
        }
        curves = _curves(wanted, [topology, *scaling], given, batch, weak, names, how, silent)
        return _show_scaling(wanted.name, [topology, *scaling], curves, chart, csv, as_json, quiet)
    if weak:
        raise ValueError("--weak needs --scaling")
    ranking = None
    if on is not None and not (sweep or search):
        raise ValueError("--on is for --sweep and --search; one step takes milliseconds")
    if sweep or search:
        ranking = _ranked(
            wanted, network, batch, given, sweep or [], search, names[0], how, on, silent
        )
        if not ranking.steps:
            raise ValueError(f"none of {ranking.tried:,} parallelisms fits: {ranking.refused}")
        split = ranking[0].parallel
    else:
        split = _split(wanted, network.npus, given, batch)
    steps: dict[str, Step] = {}
    tasks = [(name, "") for name in names]
    tasks += [(name, change) for change in what_if or [] for name in names if name != "free"]
    with progress("predicting", silent) as report:
        for done, (name, change) in enumerate(tasks):
            where, what = training.changed(network, chosen, change)
            label = f"{name}, {change}" if change else name
            steps[label] = training.step(
                wanted, split, where, **how | trouble | {"device": what}, collectives=name, oversubscribe=oversubscribe,
                fidelity=fidelity,
            )  # fmt: skip
            report((done + 1) / len(tasks))
    if csv is not None:
        write_steps(csv, steps if ranking is None else ranking.steps)
    if chart is not None:
        save(step_picture(steps, f"{wanted.name} on {topology}, batch {split.batch}"), chart)
    if timeline is not None:
        steps[names[0]].timeline.save(timeline)
    said = []
    if export is not None:
        said = training.export(steps["auto" if "auto" in steps else names[0]], export)
    if html is not None:
        with progress("drawing", silent) as report:
            name, one = next(iter(steps.items()))
            title = f"step of {wanted.name} on {topology}, {name}"
            write_step_page(html, one, title=title, progress=report)
    if as_json:
        found = {label: one.summary() for label, one in steps.items()}
        facts: dict[str, Any] = {"steps": found, "gain": _gain(steps)}
        if ranking is not None:
            facts |= {"tried": ranking.tried, "too_large": ranking.too_large}
            facts["ranking"] = ranking.rows()[:top]
        print(json.dumps(facts, indent=2))
        return 0
    if quiet:
        return 0
    if ranking is not None:
        shown = f"{wanted.name} on {topology}"
        print_table(sweep_table(ranking.steps, shown, limit=top, width=width()))
        fits = f"{len(ranking):,} of {ranking.tried:,} parallelisms fit into memory"
        print(f"{fits}; the fastest one:\n")
    print_table(
        step_table(steps, f"{wanted.name} on {topology}: {_words(split)}, {chosen}, {dtype}")
    )
    print(_verdict(steps))
    if export is not None:
        print(f"written for ASTRA-sim to {export}.*")
    for sentence in said:
        warn(sentence)
    if device is None:
        warn(f"assuming {chosen} (--device)")
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


def _stragglers(network: Topology, given: tuple[str, ...]) -> dict[int, float]:
    found = {}
    for text in given:
        one = Straggler.parse(text)
        if units.time_ps(one.late):
            raise ValueError(f"--straggler takes npu and slowdown in a training step; got {text!r}")
        found[Nodes(network).npu(one.npu)] = one.slowdown
    return found


def _split(
    model: training.Model, npus: int, given: dict[str, Any], batch: int | None
) -> Parallelism:
    """Return the parallelism that was asked for, with the defaults of the command."""
    usual: dict[str, Any] = {
        "zero": 1,
        "sequence_parallel": given.get("tp", 1) > 1 and isinstance(model, Transformer),
        "overlap_gradients": True,
        "overlap_parameters": True,
    }
    stages = given.get("pp", 1) * given.get("vp", 1)
    if model.layers % stages and not (model.layers + 2) % stages:
        usual["count_embedding"] = True  # as Llama 3.1 405B: 126 layers and 2 in 64 virtual stages
    return Parallelism(**usual | given | ({} if batch is None else {"batch": batch})).on(npus)


def _curves(
    model: training.Model,
    specs: list[str],
    given: dict[str, Any],
    batch: int | None,
    weak: bool,
    names: list[str],
    how: dict[str, Any],
    silent: bool,
) -> dict[str, list[Step]]:
    """Return the step on each network, for each way to run its collectives."""
    networks = [formats.network(spec) for spec in specs]
    first = _split(model, networks[0].npus, given, batch)
    curves: dict[str, list[Step]] = {name: [] for name in names}
    free = {name: value for name, value in given.items() if name != "dp"}
    with progress("predicting", silent) as report:
        for done, (spec, network) in enumerate(zip(specs, networks, strict=True)):
            # Parts of a batch are for the check to refuse.
            size = first.batch * network.npus // first.npus if weak else first.batch
            try:
                split = _split(model, network.npus, free if done else given, size)
                for name in names:
                    curves[name].append(
                        training.step(model, split, network, **how, collectives=name)
                    )
            except ValueError as error:
                raise ValueError(f"{spec}: {error}") from None
            report((done + 1) / len(specs))
    return curves


def _show_scaling(
    name: str,
    specs: list[str],
    curves: dict[str, list[Step]],
    chart: Path | None,
    csv: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    flat = {
        f"{how}, {spec}": one
        for how, steps in curves.items()
        for spec, one in zip(specs, steps, strict=True)
    }
    if csv is not None:
        write_steps(csv, flat)
    if chart is not None:
        save(
            scaling_picture(curves, f"{name}: {_words(curves[next(iter(curves))][0].parallel)}"),
            chart,
        )
    if as_json:
        print(
            json.dumps({"scaling": {label: one.summary() for label, one in flat.items()}}, indent=2)
        )
    elif not quiet:
        print_table(
            scaling_table(
                specs, curves, f"{name}: step, and speed per NPU against the first network"
            )
        )
    return 0


def _ranked(
    model: training.Model,
    network: Topology,
    batch: int | None,
    given: dict[str, Any],
    sweep: list[str],
    everything: bool,
    collectives: str,
    how: dict[str, Any],
    on: str | None,
    silent: bool,
) -> training.Ranking:
    if batch is None:
        raise ValueError("--batch is missing; --search and --sweep need it")
    choices: dict[str, Any] = dict(given)
    for one in sweep:
        name, values = _swept(one)
        choices[name] = values
    if not everything:  # a sweep varies what it names
        usual = {
            "tp": 1,
            "pp": 1,
            "cp": 1,
            "ep": 1,
            "vp": 1,
            "microbatch": 1,
            "recompute": "none",
            "zero": 1,
        }
        choices = usual | choices
        if "dp" in choices and "tp" not in given:
            del choices["dp"]
    tried = training.parallelisms(model, network, batch=batch, **choices)
    with progress(f"{len(tried):,} parallelisms", silent) as report:
        ask: dict[str, Any] = {
            "batch": batch,
            "candidates": tried,
            "progress": report,
            "collectives": collectives,
        }
        where = "processes" if on is None and len(tried) >= _MANY else on
        with workers_on(where) as executor:
            return training.search(model, network, **how, **ask, executor=executor)


def _swept(text: str) -> tuple[str, list[Any]]:
    name, sign, values = text.partition("=")
    known = {one.name: one.type for one in fields(Parallelism)}
    if sign and name not in known:
        raise ValueError(f"unknown --sweep name {name!r}; use one of {', '.join(known)}")
    if not sign or not values:
        raise ValueError(f"--sweep takes name=value,value such as tp=1,2,4; got {text!r}")
    words = values.split(",")
    if known[name] == "int":
        wrong = [word for word in words if not re.fullmatch(r"\d+", word)]
        if wrong:
            raise ValueError(f"--sweep {name} takes whole numbers; got {wrong[0]!r}")
        return name, [int(word) for word in words]
    if known[name] == "bool":
        return name, [word in ("yes", "true", "on", "1") for word in words]
    return name, words


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
