"""The command that predicts training steps: train."""

from __future__ import annotations

import json
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tacos import formats, training
from tacos._core import Topology
from tacos.cli.app import Json, Network, Quiet, app, check_folder, warn
from tacos.console import print_table, progress
from tacos.training import Parallelism, Step, Transformer
from tacos.training.devices import DEVICES
from tacos.view import checked, save, step_picture, step_table, sweep_table, write_steps

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
    batch: Annotated[int | None, Parameter(help="Sequences per step.")] = None,
    microbatch: Annotated[int | None, Parameter(help="Sequences per pass.")] = None,
    recompute: Annotated[str | None, Parameter(help="none, selective or full.")] = None,
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
            help=f"{', '.join(DEVICES)}; by default the device that the network's name implies."
        ),
    ] = None,
    dtype: Annotated[str, Parameter(help="Type of matrix products: bf16, fp8, …")] = "bf16",
    software: Annotated[str, Parameter(help=f"{', '.join(training.SOFTWARE)}.")] = "current",
    collectives: Annotated[
        str,
        Parameter(
            help="What to compare, separated by commas: nccl, auto (synthesized), an engine, a directory of tuned "
            "algorithms, free (no time at all)."
        ),
    ] = _COLLECTIVES,
    fidelity: Annotated[
        str,
        Parameter(help="folded, or exact: every NPU and every transfer, for small jobs."),
    ] = "folded",
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
        checked(chart)
    if top < 1:
        raise ValueError(f"--top must be a positive number; got {top}")
    wanted = training.model(model)
    network = formats.network(topology)
    on = device or _device_of(topology)
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
    how: dict[str, Any] = {"device": on, "dtype": dtype, "software": software}
    silent = quiet or as_json
    ranking = None
    if sweep or search:
        ranking = _ranked(wanted, network, batch, given, sweep or [], search, names[0], how, silent)
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
            where, what = training.changed(network, on, change)
            label = f"{name}, {change}" if change else name
            steps[label] = training.step(
                wanted, split, where, **how | {"device": what}, collectives=name, oversubscribe=oversubscribe, fidelity=fidelity,
            )  # fmt: skip
            report((done + 1) / len(tasks))
    if csv is not None:
        write_steps(csv, steps if ranking is None else ranking.steps)
    if chart is not None:
        save(step_picture(steps, f"{wanted.name} on {topology}, batch {split.batch}"), chart)
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
        print_table(sweep_table(ranking.steps, f"{wanted.name} on {topology}", limit=top))
        fits = f"{len(ranking):,} of {ranking.tried:,} parallelisms fit into memory"
        print(f"{fits}; the fastest, with other collectives:\n")
    print_table(step_table(steps, f"{wanted.name} on {topology}: {_words(split)}, {on}, {dtype}"))
    print(_verdict(steps))
    if device is None:
        warn(f"assuming {on} (--device)")
    return 0


def _device_of(spec: str) -> str:
    """The device that a network's name says."""
    text = spec.lower()
    stems = {"nvl72": "gb200"} | {name.partition("-")[0]: name for name in DEVICES}
    for stem in sorted(stems, key=len, reverse=True):
        if stem in text:
            return stems[stem]
    raise ValueError(
        f"--device is missing, and {spec} does not imply one; use one of {', '.join(DEVICES)}"
    )


def _split(
    model: training.Model, npus: int, given: dict[str, Any], batch: int | None
) -> Parallelism:
    """The parallelism that was asked for, with the defaults of the command."""
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


def _ranked(
    model: training.Model,
    network: Topology,
    batch: int | None,
    given: dict[str, Any],
    sweep: list[str],
    everything: bool,
    collectives: str,
    how: dict[str, Any],
    silent: bool,
) -> training.Ranking:
    if batch is None:
        raise ValueError("--batch is missing: a sweep compares steps of one batch")
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
        if len(tried) < _MANY:
            return training.search(model, network, **how, **ask)
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            return training.search(model, network, **how, **ask, executor=pool)


def _swept(text: str) -> tuple[str, list[Any]]:
    name, sign, values = text.partition("=")
    known = {one.name: one.type for one in fields(Parallelism)}
    if not sign or name not in known or not values:
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
    """How many times as fast each step is as the first."""
    first = next(iter(steps.values()))
    return {name: first.time_s / one.time_s for name, one in steps.items()}


def _verdict(steps: dict[str, Step]) -> str:
    """What the collectives matter, in a sentence or two."""
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
