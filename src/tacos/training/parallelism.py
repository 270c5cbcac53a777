"""Parallelism: how a model and a batch are split over the NPUs of a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tacos.training.models import Stack, Transformer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos.training.models import Model

__all__ = ["ORDER", "RECOMPUTE", "SCHEDULES", "Groups", "Parallelism"]

RECOMPUTE = ("none", "selective", "alternate", "full")
"""What the backward pass computes again: nothing, attention, every second matrix product, or whole layers."""

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
"""Orders of the passes of a pipeline."""

ORDER = "tp-cp-ep-dp-pp"
"""The default order of NPUs: neighbours share tensors, and the most distant NPUs are pipeline stages."""


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How a training step is split.

    The degrees `tp`, `cp`, `dp` and `pp` multiply to the number of NPUs. Experts are spread over `ep` of the `cp` · `dp` NPUs that
    hold the same layers.

    >>> parallel = Parallelism(tp=8, pp=8, dp=16, cp=2, vp=8, batch=1152)
    >>> parallel.npus, parallel.microbatches
    (2048, 72)

    Attributes:
        tp: Tensor parallelism: NPUs that share each layer's matrices.
        pp: Pipeline stages.
        dp: Replicas of the model; if 0, computed from the other degrees and the number of NPUs.
        cp: Context parallelism: NPUs that share each sequence.
        ep: Expert parallelism: NPUs that share the experts of a layer.
        vp: Virtual stages per stage of an interleaved pipeline.
        microbatch: Sequences per replica and pass.
        batch: Sequences per step, in all replicas; one micro-batch for each replica if it is 0.
        recompute: ``"none"``, ``"selective"`` (attention, as Megatron does), ``"alternate"`` (every second matrix product and
            what is not one, as torchtitan's per-operator choice does) or ``"full"`` (whole layers).
        sequence_parallel: Whether tensor parallelism also splits norms and dropout along the sequence, so that an all-gather and a
            reduce-scatter take the place of each all-reduce.
        zero: What replicas share instead of holding copies: nothing (0), optimizer states (1), and gradients (2), and parameters
            (3, also called FSDP).
        prefetch: With `zero` 3, how many layers ahead parameters are gathered.
        schedule: ``"1f1b"``, ``"gpipe"``, ``"interleaved"`` or ``"zero-bubble"``; with `vp` above 1 ``"1f1b"`` is interleaved.
        overlap_gradients: Whether gradients are summed while the backward pass is still running.
        overlap_parameters: Whether updated parameters are gathered while the next forward pass is running (`zero` 1 and 2).
        overlap_tensor: Whether tensor-parallel communication is cut into pieces that overlap with matrix products.
        overlap_experts: Whether exchanges with experts overlap with the computation of another micro-batch.
        buckets: Number of pieces into which gradients and parameters of a stage are cut for overlap; 0: one per layer.
        order: The order in which NPUs are assigned, fastest-varying dimension first.
        layers: Layers of each virtual stage, in the order in which a micro-batch passes them; even by default.
        count_embedding: Whether embedding and output count as a layer each when layers are assigned to stages.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 0
    cp: int = 1
    ep: int = 1
    vp: int = 1
    microbatch: int = 1
    batch: int = 0
    recompute: str = "none"
    sequence_parallel: bool = False
    zero: int = 0
    prefetch: int = 1
    schedule: str = "1f1b"
    overlap_gradients: bool = False
    overlap_parameters: bool = False
    overlap_tensor: bool = False
    overlap_experts: bool = False
    buckets: int = 0
    order: str = ORDER
    layers: tuple[int, ...] = ()
    count_embedding: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for name in ("tp", "pp", "cp", "ep", "vp", "microbatch"):
            _whole(name, getattr(self, name), 1)
        for name in ("dp", "batch", "prefetch", "buckets"):
            _whole(name, getattr(self, name), 0)
        for name, allowed in (("recompute", RECOMPUTE), ("schedule", SCHEDULES)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}"
                )
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero must be one of 0, 1, 2, 3; got {self.zero!r}")
        if sorted(self.order.split("-")) != sorted(ORDER.split("-")):
            raise ValueError(f"order must name each of {ORDER} once; got {self.order!r}")
        if self.vp > 1 and self.pp == 1:
            raise ValueError(f"vp must be 1 without a pipeline; got {self.vp}")
        if self.vp > 1 and self.schedule in ("gpipe", "zero-bubble"):
            raise ValueError(f"vp must be 1 with the schedule {self.schedule!r}; got {self.vp}")
        if self.zero == 3 and self.pp > 1 and self.vp > 1 and self.schedule == "gpipe":
            raise ValueError("zero=3 cannot be combined with the schedule gpipe")
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.layers and len(self.layers) != self.pp * self.vp:
            raise ValueError(
                f"layers must have an entry for each of {self.pp * self.vp} virtual stages; got {len(self.layers)}"
            )
        if self.dp:
            if not self.batch:
                object.__setattr__(self, "batch", self.dp * self.microbatch)
            each = self.dp * self.microbatch
            if self.batch % each:
                raise ValueError(
                    f"batch must be a multiple of dp · microbatch = {self.dp} · {self.microbatch} = {each}; got {self.batch}"
                )
            if (self.dp * self.cp) % self.ep:
                raise ValueError(f"ep must divide dp · cp = {self.dp * self.cp}; got {self.ep}")

    @property
    def npus(self) -> int:
        """NPUs that take part."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def microbatches(self) -> int:
        """Micro-batches that each replica takes per step."""
        return self.batch // (self.dp * self.microbatch)

    def on(self, npus: int) -> Parallelism:
        """Return the parallelism with `dp` filled in for this number of NPUs.

        >>> Parallelism(tp=8, pp=4).on(64).dp
        2

        Raises:
            ValueError: The degrees do not multiply to the number of NPUs.
        """
        others = self.tp * self.cp * self.pp
        if self.dp and self.npus == npus:
            return self
        degrees = f"tp · cp · pp = {self.tp} · {self.cp} · {self.pp} = {others}"
        if self.dp:
            raise ValueError(
                f"tp · cp · pp · dp = {self.tp} · {self.cp} · {self.pp} · {self.dp} = {self.npus},"
                f" but the network has {npus} NPUs; change a degree or the network"
            )
        if npus % others:
            raise ValueError(
                f"{degrees} does not divide the network's {npus} NPUs; change a degree or the network"
            )
        return replace(self, dp=npus // others)

    def check(self, model: Model) -> None:
        """Refuse a parallelism that does not fit a model.

        Raises:
            ValueError: A degree does not divide what it splits; the message names both.

        >>> import tacos.training
        >>> Parallelism(tp=3).check(tacos.training.model("llama3-8b"))
        Traceback (most recent call last):
        ...
        ValueError: tp must divide the 32 heads of llama3-8b; got 3
        """
        if isinstance(model, Stack):
            for name in ("tp", "cp", "ep"):
                if getattr(self, name) > 1:
                    raise ValueError(
                        f"{name} must be 1 for {model.name}, which is not a transformer"
                    )
        else:
            self._check_transformer(model)
        stages = self.pp * self.vp
        layers = model.layers + (2 if self.count_embedding else 0)
        if stages > layers:
            counted = " and its embedding and output" if self.count_embedding else ""
            raise ValueError(
                f"pp · vp = {stages} must be at most the {model.layers} layers of {model.name}{counted}"
            )
        if self.layers and sum(self.layers) != model.layers:
            raise ValueError(
                f"layers must add up to the {model.layers} layers of {model.name}; got {sum(self.layers)}"
            )

    def _check_transformer(self, model: Transformer) -> None:
        if model.heads % self.tp:
            raise ValueError(
                f"tp must divide the {model.heads} heads of {model.name}; got {self.tp}"
            )
        if model.ffn % self.tp:
            raise ValueError(
                f"tp must divide the feed-forward width {model.ffn} of {model.name}; got {self.tp}"
            )
        if model.sequence % (self.cp * (self.tp if self.sequence_parallel else 1)):
            what = "cp · tp" if self.sequence_parallel else "cp"
            raise ValueError(
                f"{what} must divide the sequence length {model.sequence} of {model.name}"
            )
        if self.ep > 1 and model.experts is None:
            raise ValueError(f"ep must be 1 for {model.name}, which has no experts; got {self.ep}")
        if model.experts is not None and model.experts.count % self.ep:
            raise ValueError(
                f"ep must divide the {model.experts.count} experts of {model.name}; got {self.ep}"
            )

    def stage_layers(self, layers: int) -> tuple[int, ...]:
        """Return how many layers each virtual stage has, in the order in which a micro-batch passes them.

        With `count_embedding`, embedding and output take the place of a layer in the first and the last stage. Layers that
        do not divide evenly go to the stages in the middle.

        >>> Parallelism(pp=8, vp=8, count_embedding=True).stage_layers(126)[:3]
        (1, 2, 2)
        >>> Parallelism(pp=4).stage_layers(10)
        (2, 3, 3, 2)
        """
        if self.layers:
            return self.layers
        stages = self.pp * self.vp
        extra = 2 if self.count_embedding else 0
        each, left = divmod(layers + extra, stages)
        found = [each] * stages
        first = (stages - left) // 2
        for stage in range(first, first + left):
            found[stage] += 1
        if extra:
            if stages == 1:
                found[0] -= 2
            else:
                found[0] -= 1
                found[-1] -= 1
        if min(found) < 0:
            raise ValueError(
                f"{layers} layers do not suffice for {stages} virtual stages with embedding and output counted"
            )
        return tuple(found)

    def groups(self) -> Groups:
        """Return the groups of NPUs that communicate.

        >>> Parallelism(tp=2, dp=2, pp=2).groups().tp.tolist()
        [[0, 1], [2, 3], [4, 5], [6, 7]]
        """
        return Groups.of(self)


@dataclass(frozen=True)
class Groups:
    """Groups of NPUs, one row each; all rows of a kind communicate at the same time.

    Attributes:
        tp: Groups that share tensors.
        cp: Groups that share sequences.
        ep: Groups that share experts.
        dp: Groups that hold the same parameters: replicas and parts of sequences.
        edp: Groups that hold the same experts.
        pp: The stages of each pipeline, in order.
    """

    tp: NDArray[np.int32]
    cp: NDArray[np.int32]
    ep: NDArray[np.int32]
    dp: NDArray[np.int32]
    edp: NDArray[np.int32]
    pp: NDArray[np.int32]

    @staticmethod
    def of(parallel: Parallelism) -> Groups:
        """Assign NPUs in a parallelism's order."""
        names = [name for name in parallel.order.split("-") if name != "ep"]
        degrees = {name: getattr(parallel, name) for name in names}
        grid = np.arange(parallel.npus, dtype=np.int32)
        # The first name changes fastest, so it is the last axis.
        grid = grid.reshape([degrees[name] for name in reversed(names)])
        axis = {name: len(names) - 1 - i for i, name in enumerate(names)}

        def along(*kept: str) -> NDArray[np.int32]:
            last = [axis[name] for name in kept]
            size = int(np.prod([degrees[name] for name in kept]))
            moved = np.moveaxis(grid, last, range(grid.ndim - len(last), grid.ndim))
            return np.ascontiguousarray(moved.reshape(-1, size))

        # Of replicas and parts of sequences, neighbours first.
        near_first = sorted(("dp", "cp"), key=lambda name: axis[name])
        dense = along(*near_first)
        folded = dense.reshape(-1, dense.shape[1] // parallel.ep, parallel.ep)
        return Groups(
            tp=along("tp"),
            cp=along("cp"),
            ep=np.ascontiguousarray(folded.reshape(-1, parallel.ep)),
            dp=dense,
            edp=np.ascontiguousarray(folded.swapaxes(1, 2).reshape(-1, folded.shape[1])),
            pp=along("pp"),
        )


def _whole(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        what = "a positive number" if least else "a whole number"
        raise ValueError(f"{name} must be {what}; got {value!r}")
