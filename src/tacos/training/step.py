"""Training steps: how long a step takes, and where the time goes.

:func:`step` predicts one with the fidelity ``"folded"`` (``tacos/training/folded.py``) or ``"exact"``
(:mod:`tacos.training.exact`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tacos import units
from tacos._support import frames
from tacos.nodes import Network, topology_of
from tacos.training.communication import communication
from tacos.training.devices import DTYPES
from tacos.training.devices import device as device_named
from tacos.training.devices import software as software_named
from tacos.training.folded import Folded, MemoryExceededError
from tacos.training.graph import graph
from tacos.training.models import Transformer
from tacos.training.parallelism import Parallelism
from tacos.training.what_if import disturbed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pandas import DataFrame

    from tacos._core import PipelineTimes, Workload
    from tacos.simulate import Fault
    from tacos.simulate.timeline import Timeline
    from tacos.training.devices import Device, Software
    from tacos.training.memory import Memory
    from tacos.training.models import Model

__all__ = ["FIDELITIES", "MemoryExceededError", "Step", "step"]

FIDELITIES = ("folded", "exact", "astra")
"""How a step may be simulated."""

_DEGREES = ("tp", "pp", "dp", "cp", "ep", "vp", "microbatch", "batch")


@dataclass(frozen=True)
class Step:
    """How long a training step takes, and where the time goes.

    The parts are means over all pipeline stages: `compute_s`, `exposed_s`, `bubble_s` and `idle_s` add up to `time_s`.

    Attributes:
        model: The model that is trained.
        parallel: How the model is split over NPUs.
        device: The device it runs on.
        dtype: Type of matrix products.
        collectives: The collectives that were used, such as ``"nccl"`` or ``"auto"``.
        time_s: Duration of a step in seconds.
        compute_s: Time that the NPU computes, including the optimizer.
        exposed: Time that the NPU waits for communication, by group and kind, such as ``"tp all-reduce"``.
        bubble_s: Time that a stage waits for other stages, including the end of the step.
        idle_s: Time that the NPU waits for its host.
        memory: Memory of the NPU that stores the most, by use.
        communication_s: Time of all communication, exposed or not, by group and kind.
        passes: When each stage runs each pass; None for a step of a search, which keeps figures only.
        message_bytes: Size of a message from one stage to the next.
        folded: The folded step that the workload is built from.
        fidelity: ``"folded"``, ``"exact"`` or ``"astra"``.
        ran: When every node of the workload ran, if all ranks were simulated.
    """

    model: Model
    parallel: Parallelism
    device: Device
    dtype: str
    collectives: str
    time_s: float
    compute_s: float
    exposed: Mapping[str, float]
    bubble_s: float
    idle_s: float
    memory: Memory
    communication_s: Mapping[str, float]
    passes: PipelineTimes | None = field(repr=False)
    message_bytes: float = 0.0
    folded: Folded | None = field(repr=False, compare=False, default=None)
    fidelity: str = "folded"
    ran: Timeline | None = field(repr=False, compare=False, default=None)

    @property
    def exposed_s(self) -> float:
        """Time that the NPU waits for communication, in seconds."""
        return sum(self.exposed.values())

    @property
    def memory_bytes(self) -> int:
        """Memory of the NPU that stores the most, in bytes."""
        return self.memory.total

    @property
    def samples_per_s(self) -> float:
        """Samples (such as sequences or images) per second."""
        return self.parallel.batch / self.time_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second on all NPUs; samples for models without tokens."""
        tokens = self.model.sequence if isinstance(self.model, Transformer) else 1
        return self.samples_per_s * tokens

    @property
    def flops(self) -> float:
        """Model FLOPs of a step on all NPUs, without recomputation."""
        return self.model.flops_per_sample * self.parallel.batch

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the peak of all devices."""
        return self.flops / (self.time_s * self.parallel.npus * self.device.peak[self.dtype])

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the step in seconds, which add up to `time_s`."""
        return {
            "compute": self.compute_s,
            **dict(self.exposed),
            "bubble": self.bubble_s,
            "idle": self.idle_s,
        }

    def summary(self) -> dict[str, Any]:
        """Return the figures by name, for tables and files.

        >>> import tacos
        >>> from tacos import training
        >>> found = training.step(training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=16), tacos.topology.dgx_h100(1))
        >>> list(found.summary())[:4]
        ['model', 'npus', 'device', 'dtype']
        """
        usual = Parallelism()
        split = {
            one.name: getattr(self.parallel, one.name)
            for one in fields(Parallelism)
            if one.name in _DEGREES or getattr(self.parallel, one.name) != getattr(usual, one.name)
        }
        return {
            "model": self.model.name,
            "npus": self.parallel.npus,
            "device": self.device.name,
            "dtype": self.dtype,
            "collectives": self.collectives,
            "parallelism": split,
            "time_s": self.time_s,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "memory_bytes": self.memory_bytes,
            "compute_s": self.compute_s,
            "exposed_s": self.exposed_s,
            "bubble_s": self.bubble_s,
            "idle_s": self.idle_s,
            "exposed": dict(self.exposed),
            "communication": dict(self.communication_s),
            "memory": self.memory.terms,
        }

    def __str__(self) -> str:
        """Return a line for people."""
        return (
            f"{self.model.name} on {self.parallel.npus:,} {self.device.name}: "
            f"{units.format_time(self.time_s)} per step, MFU {100 * self.mfu:.1f} %, "
            f"{units.format_size(self.memory_bytes)} per NPU"
        )

    def to_pandas(self) -> DataFrame:
        """Return the parts of the step as a pandas DataFrame, a row per part; needs pandas.

        The columns are part, time_s (they add up to the step's time), share, and communication_s: how long the
        communication itself takes, overlapped or not.

        >>> import tacos
        >>> from tacos import training
        >>> found = training.step(training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=16), "dgx-h100:1")
        >>> found.to_pandas()["part"].iloc[0]
        'compute'
        """
        names = dict.fromkeys((*self.parts, *self.communication_s))
        return frames.from_rows(
            [
                {
                    "part": name,
                    "time_s": (took := self.parts.get(name, 0.0)),
                    "share": took / self.time_s,
                    "communication_s": self.communication_s.get(name, 0.0),
                }
                for name in names
            ]
        )

    @cached_property
    def workload(self) -> Workload:
        """What every rank computes and communicates, as a graph."""
        if self.ran is not None:
            return self.ran.workload
        if self.folded is None or self.passes is None:
            raise ValueError("a step of a search has no workload: predict it again with step()")
        return graph(self.folded, self.passes)

    @cached_property
    def timeline(self) -> Timeline:
        """The timeline of the step: ranks and their streams, for Perfetto (``timeline.save("step.json")``), CSV and the viewer.

        With the fidelities ``"exact"`` and ``"astra"`` it has every node of `workload` on every rank. With ``"folded"`` a rank stands
        for a pipeline stage, and its nodes are whole passes, sums of gradients, updates, and gathers of parameters.

        >>> import tacos
        >>> from tacos import training
        >>> split = training.Parallelism(tp=4, pp=2, batch=4)
        >>> line = training.step(training.model("mpt-125m"), split, tacos.topology.dgx_h100(1)).timeline
        >>> line.workload.npus, line.label(0)
        (2, 'forward 0')
        """
        if self.ran is not None:
            return self.ran
        if self.folded is None or self.passes is None:
            raise ValueError("a step of a search has no timeline: predict it again with step()")
        return self.folded.timeline(self.passes)


def step(
    model: Model,
    parallel: Parallelism,
    topology: Network,
    *,
    device: str | Device = "h100",
    dtype: str = "bf16",
    collectives: str = "nccl",
    software: str | Software = "current",
    faults: Iterable[Fault | str] = (),
    stragglers: Mapping[int, float] | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    oversubscribe: bool = False,
    fidelity: str = "folded",
    progress: Callable[[float], object] | None = None,
) -> Step:
    """Predict how long a training step takes.

    Args:
        model: The model to train.
        parallel: How it is split over NPUs; the product of the degrees must be the number of NPUs.
        topology: The network.
        device: A name in ``DEVICES``, or your own table.
        dtype: Type of matrix products.
        collectives: ``"nccl"`` (what stock NCCL would do; on a network with faults, the faster of NCCL that searched again and NCCL
            that does not know of them), ``"auto"`` (synthesized), the name of an engine, a directory of tuned algorithms, or ``"free"``: communication takes no time, which bounds what better collectives can gain.
        software: A name in ``SOFTWARE``, or your own record.
        faults: Slow and dead links, such as ``"link=0-1,slowdown=4"`` or ``"nic=3"``; see :func:`~tacos.training.what_if.disturbed`.
        stragglers: Factors by which some NPUs compute longer, by NPU number. ``"folded"`` slows their whole pipeline stage down.
        jitter: Standard deviation of the duration of passes, as a share. ``"folded"`` has one value for all NPUs of a stage, the
            other fidelities one for each.
        seed: Random seed of the jitter.
        oversubscribe: Whether to accept a step that does not fit into memory.
        fidelity: ``"folded"`` simulates one NPU of each pipeline stage, and takes milliseconds for thousands of NPUs;
            ``"exact"`` every NPU and every transfer over shared links, up to about a thousand NPUs. Both agree within 2 %
            where communication does not dominate. ``"astra"`` follows ASTRA-sim's rules to the nanosecond
            (:mod:`tacos.training.astra`): links carry their full bandwidth, whole messages are forwarded, and a rank has one
            send or collective in flight at a time.
        progress: Called from time to time with the share of the work done, where all NPUs are simulated.

    Raises:
        ValueError: The degrees do not fit the model or the network.
        MemoryExceededError: The step does not fit into memory.
        SpecError: The device or the software is unknown.

    >>> import tacos
    >>> from tacos import training
    >>> found = training.step(training.model("llama3-8b"), training.Parallelism(tp=2, zero=1, batch=64),
    ...                       tacos.topology.dgx_h100(2), device="h100")
    >>> 0.2 < found.mfu < 0.7
    True
    """
    topology = topology_of(topology)
    if fidelity not in FIDELITIES:
        raise ValueError(f"fidelity must be one of {', '.join(FIDELITIES)}; got {fidelity!r}")
    table, stack = device_named(device), software_named(software)
    if dtype not in DTYPES or dtype not in table.peak:
        raise ValueError(
            f"dtype must be one of {', '.join(table.peak)} on {table.name}; got {dtype!r}"
        )
    if not 0 <= jitter < math.inf:
        raise ValueError(f"jitter must be a number of at least 0; got {jitter!r}")
    split = parallel.on(topology.npus)
    split.check(model)
    if faults:
        topology = disturbed(topology, faults)
    folded = Folded(
        model, split, topology, table, dtype, stack, communication(topology, collectives)
    )
    figures = folded.run(stragglers or {}, jitter, seed, oversubscribe)
    found = Step(model, split, table, dtype, collectives, folded=folded, **figures)
    if fidelity == "folded":
        return found
    if fidelity == "astra":
        from tacos.training.astra import astra

        return astra(found, progress=progress)
    from tacos.training.exact import exact

    return exact(found, progress=progress)
