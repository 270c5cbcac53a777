"""Search: which parallelism trains a model fastest on a network.

Every combination of degrees that fits the model and the network is predicted with
:func:`tacos.training.step.step`; those that do not fit into memory are counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from tacos.nodes import Network, topology_of
from tacos.synth.baselines.nccl.channels import network_of
from tacos.training.models import Transformer
from tacos.training.parallelism import RECOMPUTE, Parallelism
from tacos.training.step import MemoryExceededError, Step, step
from tacos.workers import Dispatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from tacos._core import Topology
    from tacos.training.devices import Device, Software
    from tacos.training.models import Model

__all__ = ["Choices", "Ranking", "parallelisms", "search"]

_MICROBATCHES = (1, 2, 4, 8)
_LEAST_TOKENS = 2048
"""Tokens of a sequence that an NPU keeps: shorter pieces make context parallelism slower than what it replaces."""
_MOST_VIRTUAL_STAGES = 8


_Whole: TypeAlias = int | Iterable[int]
_Word: TypeAlias = str | Iterable[str]
_Switch: TypeAlias = bool | Iterable[bool]


class Choices(TypedDict, total=False):
    """The fields of :class:`~tacos.training.parallelism.Parallelism` but `batch`, each with its value or the values to try."""

    tp: _Whole
    pp: _Whole
    dp: _Whole
    cp: _Whole
    ep: _Whole
    vp: _Whole
    microbatch: _Whole
    recompute: _Word
    sequence_parallel: _Switch
    zero: _Whole
    prefetch: _Whole
    schedule: _Word
    overlap_gradients: _Switch
    overlap_parameters: _Switch
    overlap_tensor: _Switch
    overlap_experts: _Switch
    buckets: _Whole
    order: _Word
    layers: Iterable[tuple[int, ...]]
    count_embedding: _Switch


@dataclass(frozen=True)
class Ranking(Sequence[Step]):
    """The steps of a search, the fastest first.

    Attributes:
        steps: Those that fit into memory, without their passes; predict one again for its workload.
        tried: Parallelisms that were predicted.
        too_large: Those of them that do not fit into memory.
        refused: Why the last of these does not fit; empty if all do.
    """

    steps: tuple[Step, ...]
    tried: int
    too_large: int
    refused: str = ""

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    @overload
    def __getitem__(self, place: int) -> Step: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Step, ...]: ...

    def __getitem__(self, place: int | slice) -> Step | tuple[Step, ...]:
        """Return the step at a position, 0 for the fastest."""
        return self.steps[place]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary per step, for tables and files."""
        return [one.summary() for one in self.steps]


def parallelisms(
    model: Model,
    topology: Network,
    *,
    batch: int,
    **choices: Unpack[Choices],
) -> list[Parallelism]:
    """Return the parallelisms that fit a model and a network.

    Args:
        model: What is trained.
        topology: The network.
        batch: Sequences per step.
        choices: Fields of :class:`~tacos.training.parallelism.Parallelism`, each with its value or the values to try. The
            degrees, `vp`, `microbatch`, `recompute` and `zero` are varied by default: `tp` within a box, `cp` for long sequences,
            `ep` for models with experts, `zero` 3 only without a pipeline.

    Raises:
        ValueError: A field that does not exist, or no combination fits the model, the network and the batch.

    >>> import tacos
    >>> from tacos import training
    >>> found = parallelisms(training.model("llama3-8b"), tacos.topology.dgx_h100(1), batch=16, recompute="none")
    >>> sorted({one.tp for one in found}), {one.npus for one in found}
    ([1, 2, 4, 8], {8})
    """
    topology = topology_of(topology)
    known = {one.name for one in fields(Parallelism)}
    for name in choices:
        if name not in known:
            raise ValueError(f"{name!r} is not a field of Parallelism; see its documentation")
    npus = topology.npus
    given: dict[str, list[Any]] = {name: _values(value) for name, value in choices.items()}
    found: list[Parallelism] = []
    reason = ""
    for tp, cp, pp in product(
        given.get("tp", _tensor(model, topology)),
        given.get("cp", _context(model, npus)),
        given.get("pp", [one for one in _divisors(npus) if one <= model.layers]),
    ):
        if npus % (tp * cp * pp):
            reason = f"tp · cp · pp = {tp} · {cp} · {pp} does not divide {npus} NPUs"
            continue
        dp = npus // (tp * cp * pp)
        varied = {
            "ep": given.get("ep", _experts(model, dp * cp)),
            "vp": given.get("vp", _virtual(model, pp)),
            "microbatch": given.get("microbatch", _MICROBATCHES),
            "recompute": given.get("recompute", RECOMPUTE),
            "zero": given.get("zero", (1, 3) if pp == 1 else (1,)),
            **{
                name: values
                for name, values in given.items()
                if name
                not in (
                    "tp",
                    "cp",
                    "pp",
                    "dp",
                    "ep",
                    "vp",
                    "microbatch",
                    "recompute",
                    "zero",
                    "batch",
                )
            },
        }
        varied.setdefault("sequence_parallel", [tp > 1])
        varied.setdefault("overlap_gradients", [True])
        varied.setdefault("overlap_parameters", [True])
        if "dp" in given and dp not in given["dp"]:
            reason = f"dp would be {dp}"
            continue
        for values in product(*varied.values()):
            one = dict(zip(varied, values, strict=True))
            try:
                parallel = Parallelism(tp=tp, cp=cp, pp=pp, dp=dp, batch=batch, **one)
                parallel.check(model)
                parallel.stage_layers(model.layers)
            except ValueError as error:
                reason = str(error)
                continue
            found.append(parallel)
    if not found:
        raise ValueError(
            f"no parallelism fits {model.name}, {npus} NPUs and a batch of {batch}: {reason}"
        )
    return found


def search(
    model: Model,
    topology: Network,
    *,
    batch: int,
    device: str | Device = "h100",
    dtype: str = "bf16",
    collectives: str = "nccl",
    software: str | Software = "current",
    executor: Executor | None = None,
    progress: Callable[[float], object] | None = None,
    candidates: Iterable[Parallelism] | None = None,
    **choices: Unpack[Choices],
) -> Ranking:
    """Predict all parallelisms that fit a model and a network, and rank those that fit into memory.

    Args:
        model: What is trained.
        topology: The network.
        batch: Sequences per step.
        device, dtype, collectives, software: As for :func:`tacos.training.step.step`.
        executor: Where to work: what :func:`tacos.workers.opened` opens by name, or any executor; here, one after another, by default.
        progress: Called from time to time with the share of the work done.
        candidates: The parallelisms to try instead of those that :func:`parallelisms` finds.
        choices: Values to try, as for :func:`parallelisms`.

    Raises:
        ValueError: No parallelism fits the model, the network and the batch.

    >>> import tacos
    >>> from tacos import training
    >>> best = search(training.model("llama3-8b"), tacos.topology.dgx_h100(1), batch=32, tp=(1, 8), vp=1, recompute="none")
    >>> best[0].parallel.tp, best[0].time_s <= best[-1].time_s
    (1, True)
    """
    topology = topology_of(topology)
    tried = (
        parallelisms(model, topology, batch=batch, **choices)
        if candidates is None
        else list(candidates)
    )
    how = {"device": device, "dtype": dtype, "collectives": collectives, "software": software}
    tasks = [_Task(model, topology, one, how) for one in tried]
    outcomes: list[Step | str] = []
    if executor is None:
        for task in tasks:
            outcomes.append(_predict(task))
            if progress is not None:
                progress(len(outcomes) / len(tried))
    else:
        shared = (model, topology, how)
        work = Dispatch(executor, _predict, tasks, shared=shared, progress=progress)
        outcomes = work.in_order()
    steps = [one for one in outcomes if isinstance(one, Step)]
    refused = [one for one in outcomes if isinstance(one, str)]
    # Equal times are ranked by memory, then in the order in which they were tried.
    order = sorted(range(len(steps)), key=lambda i: (steps[i].time_s, steps[i].memory_bytes, i))
    ranked = tuple(steps[i] for i in order)
    return Ranking(ranked, len(tried), len(refused), refused[-1] if refused else "")


class _Task(NamedTuple):
    """One parallelism, with everything that another process needs."""

    model: Model
    topology: Topology
    parallel: Parallelism
    how: Mapping[str, Any]


def _predict(task: _Task) -> Step | str:
    """Return the step of a parallelism, or why it does not fit into memory."""
    try:
        # Thousands of steps with all their passes would take gigabytes.
        one = step(task.model, task.parallel, task.topology, **task.how)
        return replace(one, passes=None, folded=None)
    except MemoryExceededError as error:
        return str(error)


def _values(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, int)) else list(value)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _tensor(model: Model, topology: Topology) -> list[int]:
    """Return the possible degrees: those that fit into a box, or up to 64 if there are no boxes."""
    if not isinstance(model, Transformer):
        return [1]
    box = int(np.bincount(network_of(topology).label[: topology.npus]).max())
    most = box if 1 < box < topology.npus else min(64, topology.npus)
    return [one for one in _divisors(topology.npus) if one <= most and model.heads % one == 0]


def _context(model: Model, npus: int) -> list[int]:
    if not isinstance(model, Transformer):
        return [1]
    most = max(1, model.sequence // (2 * _LEAST_TOKENS))
    return [one for one in _divisors(npus) if one <= most and model.sequence % (2 * one) == 0]


def _experts(model: Model, replicas: int) -> list[int]:
    if not isinstance(model, Transformer) or model.experts is None:
        return [1]
    return [one for one in _divisors(replicas) if model.experts.count % one == 0]


def _virtual(model: Model, pp: int) -> list[int]:
    if pp == 1:
        return [1]
    most = min(_MOST_VIRTUAL_STAGES, model.layers // pp)
    return [one for one in range(1, most + 1) if (model.layers % (pp * one) == 0) or one == 1]
