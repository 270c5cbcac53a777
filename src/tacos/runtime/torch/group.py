"""torch's process group: translates its methods to collectives on tensors.

:mod:`tacos.runtime.dispatch.algorithms` chooses the algorithms of collectives. Sends, receives and
reductions that the carriers do not support go to gloo, messages between GPUs to NCCL.
"""

from __future__ import annotations

import atexit
import os
import weakref
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import ProcessGroup, ReduceOp

from tacos._support.log import LOG
from tacos._support.variables import read
from tacos.runtime.aggregation.sums import from_environment
from tacos.runtime.backend import gloo
from tacos.runtime.carriers import Unavailable, chosen
from tacos.runtime.carriers.nccl import Nccl
from tacos.runtime.communicator import Communicator
from tacos.runtime.dispatch.algorithms import Algorithms, Settings, agree, probed
from tacos.runtime.healing.calls import Healer
from tacos.runtime.rendezvous.store import StoreRendezvous
from tacos.runtime.torch.messages import Messages
from tacos.runtime.torch.pending import Joined, Task, TaskThread, profiled
from tacos.runtime.torch.tensors import Tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.distributed import Work

    from tacos.runtime.carriers import CarrierKind

__all__ = ["Options", "TacosGroup"]

_OPS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
_FAREWELL = 5.0
"""Seconds that running calls get when the program ends."""
_OPEN: weakref.WeakSet[TacosGroup] = weakref.WeakSet()


_world_places: tuple[int, ...] = ()
"""The order that TACOS_PROBE=1 has found for all ranks; smaller groups follow it."""


def _with_probe(
    settings: Settings, communicator: Communicator, members: list[int], world: int
) -> Settings:
    """Return the settings; with TACOS_PROBE=1, measure the network and add the fastest order."""
    global _world_places  # noqa: PLW0603, one network for all groups of the process
    if not settings.probe or settings.order is not None or len(members) < 2:
        return settings
    if len(members) == world:
        _world_places = probed(communicator)
    if len(_world_places) != world:
        return settings
    inside = sorted(members, key=lambda rank: _world_places[rank])
    return replace(settings, places=tuple(inside.index(rank) for rank in members))


class TacosGroup(ProcessGroup):
    """A process group whose collectives run on synthesized algorithms.

    It overrides every method that torch's C++ code may call, under its old and its new name: the base
    class would call gloo while holding the GIL, which gloo's threads need.
    """

    def __init__(
        self, options: c10d._DistributedBackendOptions, _backend_options: object = None
    ) -> None:
        super().__init__(options.group_rank, options.group_size)
        rank, size, timeout = options.group_rank, options.group_size, options.timeout
        members = list(options.global_ranks_in_group) or list(range(size))
        world = dist.get_world_size() if dist.is_initialized() else size
        # torchrun's store outlives the processes that it restarts, and keeps their values.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"tacos-attempt-{attempt}", options.store)
        rendezvous = StoreRendezvous(store, rank, size, timeout=timeout.total_seconds())
        settings, npus = agree(rendezvous, members[rank], world)
        self._communicator = Communicator(
            rendezvous, timeout=timeout.total_seconds(), members=members
        )
        settings = _with_probe(settings, self._communicator, members, world)
        self._nccl: Any = None
        self._messages: Messages | None = None
        on_gpus = self._connect_gpus(report=rank == 0)
        algorithms = Algorithms(self._communicator, settings, npus)
        self._healer = Healer(algorithms) if _adapts(_backend_options) and size > 1 else None
        self._tensors = Tensors(
            algorithms, on_gpus, from_environment(self._communicator), self._healer
        )
        self._thread = TaskThread(f"tacos {options.group_id}", self._end)
        self._together: list[Work] | None = None
        self._aborted = ""
        self._gloo = gloo(dist.PrefixStore("tacos-gloo", store), rank, size, timeout)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, self._gloo)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        if self._nccl is not None:
            self._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, self._nccl)
        _OPEN.add(self)

    def _connect_gpus(self, *, report: bool) -> CarrierKind | None:
        """Open the carrier for GPU tensors; None if it cannot serve these ranks."""
        kind = chosen("cuda")
        try:
            carrier = self._communicator.open(kind.name)
        except Unavailable as why:
            if report and torch.cuda.is_available():
                LOG.info("GPU tensors go through the host's memory: %s", why)
            return None
        if isinstance(carrier, Nccl):
            self._nccl = carrier.backend
            if carrier.all_chosen:
                # Batches need a communicator of all ranks, even if only two of them ever communicate.
                self._messages = Messages(carrier.another("tacos-messages"))
        return kind

    def getBackendName(self) -> str:  # torch's name
        """Return the name of the backend."""
        return "tacos"

    # Collectives.

    def allreduce(
        self, tensors: Tensor | Sequence[Tensor], opts: object = None, **_: object
    ) -> Work:
        """Reduce the tensors of all ranks in place."""
        some = _listed(tensors)
        how = _options(c10d.AllreduceOptions, opts, reduceOp=opts)
        if not self._reduces(some, how):
            plain = _options(c10d.AllreduceOptions, None, reduceOp=how.reduceOp)
            works = [self._by_gloo("allreduce", plain, [one], [one]) for one in some]
            return works[0] if len(works) == 1 else Joined(works, some)
        _check_strided(some)
        run = partial(self._tensors.all_reduce, some, _op(how))
        return self._submit("all_reduce", run, some, some, how)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: object = None) -> Work:
        """Reduce many tensors at once."""
        return self.allreduce(tensors, opts or c10d.AllreduceCoalescedOptions())

    def broadcast(
        self, tensors: Tensor | Sequence[Tensor], opts: object = None, **_: object
    ) -> Work:
        """Copy the root's tensor to all ranks."""
        some = _listed(tensors)
        how = _options(c10d.BroadcastOptions, opts, rootRank=opts)
        _check_strided(some)
        run = partial(self._tensors.broadcast, some[how.rootTensor], how.rootRank)
        return self._submit("broadcast", run, some, some, how)

    def reduce(
        self,
        tensors: Tensor | Sequence[Tensor],
        opts: object = None,
        op: object = None,
        **_: object,
    ) -> Work:
        """Reduce the tensors of all ranks on the root."""
        some = _listed(tensors)
        how = _options(c10d.ReduceOptions, opts, rootRank=opts, reduceOp=op)
        if not self._reduces(some, how):
            return self._by_gloo("reduce", how, some, some)
        _check_strided(some)
        run = partial(self._tensors.reduce, some[how.rootTensor], _op(how), how.rootRank)
        return self._submit("reduce", run, some, some, how)

    def allgather(
        self, outputs: Sequence[Any], inputs: Tensor | Sequence[Tensor], opts: object = None
    ) -> Work:
        """Gather the tensors of all ranks on all ranks, into one tensor per rank."""
        (given,) = _listed(inputs)
        targets = _of_ranks("output_tensors", outputs, self.size())
        _check_same_dtype(given, targets)
        how = _options(c10d.AllgatherOptions, opts)
        run = partial(self._tensors.all_gather, targets, given)
        return self._submit("all_gather", run, targets, [given], how)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: object = None) -> Work:
        """Gather the tensors of all ranks on all ranks, into one tensor."""
        self._check_whole("output", output, given)
        how = _options(c10d.AllgatherOptions, opts)
        run = partial(self._tensors.all_gather, [output], given)
        return self._submit("all_gather", run, [output], [given], how)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: object = None
    ) -> Work:
        """The same for many tensors at once."""
        for output, given in zip(outputs, inputs, strict=True):
            self._check_whole("output", output, given)

        def run() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                self._tensors.all_gather([output], given)

        how = _options(c10d.AllgatherOptions, opts)
        return self._submit("all_gather", run, outputs, inputs, how)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: object = None
    ) -> Work:
        """Make several all-gathers at once: ``outputs[rank][i]`` is rank's ``inputs[i]``."""
        columns = [[row[i] for row in outputs] for i in range(len(inputs))]

        def run() -> None:
            for targets, given in zip(columns, inputs, strict=True):
                self._tensors.all_gather(targets, given)

        flat = [one for row in outputs for one in row]
        how = _options(c10d.AllgatherOptions, opts)
        return self._submit("all_gather", run, flat, inputs, how)

    def reduce_scatter(
        self, outputs: Tensor | Sequence[Tensor], inputs: Sequence[Any], opts: object = None
    ) -> Work:
        """Return this rank's part of the sum, from one input tensor per rank."""
        (output,) = _listed(outputs)
        parts = _of_ranks("input_tensors", inputs, self.size())
        how = _options(c10d.ReduceScatterOptions, opts, reduceOp=opts)
        if not self._reduces(parts, how):
            return self._by_gloo("reduce_scatter", how, [output], [output], [parts])
        for part in parts:
            if part.numel() != output.numel():
                raise ValueError(
                    f"input_tensors has one of {part.numel()} elements, the output has "
                    f"{output.numel()}: they must be equal"
                )
        _check_same_dtype(output, parts)
        run = partial(self._tensors.reduce_scatter, output, parts, _op(how))
        return self._submit("reduce_scatter", run, [output], parts, how)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: object = None) -> Work:
        """Return this rank's part of the sum, from one input tensor."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: object = None
    ) -> Work:
        """The same for many tensors at once."""
        how = _options(c10d.ReduceScatterOptions, opts, reduceOp=opts)
        for output, given in zip(outputs, inputs, strict=True):
            self._check_whole("input", given, output)
        if not self._reduces(inputs, how):
            return Joined(
                [
                    self._by_gloo("_reduce_scatter_base", how, [output], output, given)
                    for output, given in zip(outputs, inputs, strict=True)
                ],
                outputs,
            )

        def run() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                self._tensors.reduce_scatter(output, [given], _op(how))

        return self._submit("reduce_scatter", run, outputs, inputs, how)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: object = None,
    ) -> Work:
        """Send block j of each rank's tensor to rank j; blocks have any sizes if split sizes are given."""
        how = _options(c10d.AllToAllOptions, opts)
        if not (output_split_sizes or input_split_sizes):
            _check_same_dtype(output, [given])
            for name, tensor in (("input", given), ("output", output)):
                if tensor.numel() != output.numel() or tensor.numel() % self.size():
                    raise ValueError(
                        f"{name} has {tensor.numel()} elements: without split sizes, input and "
                        f"output must have the same number, a multiple of {self.size()}"
                    )
            run = partial(self._tensors.all_to_all, output, given)
            return self._submit("all_to_all", run, [output], [given], how)
        targets = _split("output", output, output_split_sizes, self.size())
        parts = _split("input", given, input_split_sizes, self.size())
        return self._uneven(targets, parts, [output], how)

    def alltoall(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: object = None
    ) -> Work:
        """Send tensor j of each rank's list to rank j."""
        targets = _of_ranks("output_tensors", [outputs], self.size())
        parts = _of_ranks("input_tensors", [inputs], self.size())
        return self._uneven(targets, parts, outputs, _options(c10d.AllToAllOptions, opts))

    def gather(
        self,
        outputs: Sequence[Any],
        inputs: Tensor | Sequence[Tensor],
        opts: object = None,
        **_: object,
    ) -> Work:
        """Gather the tensors of all ranks on the root, into one tensor per rank."""
        (given,) = _listed(inputs)
        how = _options(c10d.GatherOptions, opts, rootRank=opts)
        root = how.rootRank == self.rank()
        targets = _of_ranks("gather_list", outputs, self.size()) if root else []
        for target in targets:
            if target.numel() != given.numel():
                raise ValueError(
                    f"gather_list has one of {target.numel()} elements, the tensor has "
                    f"{given.numel()}: they must be equal"
                )
        _check_same_dtype(given, targets)
        run = partial(self._tensors.gather, targets, given, how.rootRank)
        return self._submit("gather", run, targets, [given], how)

    def scatter(
        self,
        outputs: Tensor | Sequence[Tensor],
        inputs: Sequence[Any],
        opts: object = None,
        **_: object,
    ) -> Work:
        """Send tensor j of the root's list to rank j."""
        (output,) = _listed(outputs)
        how = _options(c10d.ScatterOptions, opts, rootRank=opts)
        root = how.rootRank == self.rank()
        parts = _of_ranks("scatter_list", inputs, self.size()) if root else []
        for part in parts:
            if part.numel() != output.numel():
                raise ValueError(
                    f"scatter_list has one of {part.numel()} elements, the tensor has "
                    f"{output.numel()}: they must be equal"
                )
        _check_same_dtype(output, parts)
        run = partial(self._tensors.scatter, output, parts, how.rootRank)
        return self._submit("scatter", run, [output], [output, *parts], how)

    def barrier(self, opts: object = None, **_: object) -> Work:
        """Wait for all ranks."""
        how = _options(c10d.BarrierOptions, opts)
        return self._submit("barrier", self._tensors.barrier, [], [], how)

    # The names that torch used before 2.13.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Operations of gloo and NCCL.

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> Work:
        """Send a tensor to a rank."""
        if tensors[0].is_cuda and self._messages is not None:
            return self._noted(self._messages.add(True, tensors, dst, tag))
        return self._noted(self._peer(tensors).send(tensors, dst, tag))

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank."""
        if tensors[0].is_cuda and self._messages is not None:
            return self._noted(self._messages.add(False, tensors, src, tag))
        return self._noted(self._peer(tensors).recv(tensors, src, tag))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> Work:
        """Receive a tensor from any rank."""
        return self._noted(self._peer(tensors).recv_anysource(tensors, tag))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all ranks; an error names the ranks that are missing."""
        limit = timedelta(milliseconds=-1) if timeout is None else timeout  # gloo's "as always"

        def run() -> None:
            self._gloo.monitored_barrier(limit, wait_all_ranks)

        self._thread.submit(Task(run, []), now=True).wait()

    # Many calls as one.

    def _start_coalescing(self, _device: object) -> None:
        self._together = []

    def _end_coalescing(self, _device: object) -> Work:
        parts, self._together = self._together or [], None
        if self._messages is not None:
            self._messages.start()
        return Joined(parts)

    # The end.

    def shutdown(self) -> None:
        """End the group after running calls have completed."""
        self._thread.close("the process group was destroyed")

    def abort(self) -> None:
        """End the group now; running calls fail, here and on the other ranks."""
        why = self._aborted = "the process group was aborted"
        self._communicator.interrupt(why)
        for backend in self._on_gpus():
            backend.abort()
        # A call of gloo cannot be interrupted, so after a while the thread is left to end by itself.
        self._thread.close(why, _FAREWELL)

    def _end(self) -> None:
        """Close everything; called by the thread when no task runs any more."""
        _OPEN.discard(self)
        if self._healer is not None:
            self._healer.close()
        if self._aborted:
            self._communicator.abort(self._aborted)
        elif self._tensors.switched is not None:
            self._tensors.switched.close()
        self._communicator.close()
        if self._messages is not None:
            self._messages.close()
            self._messages.backend.shutdown()
        self._gloo.shutdown()

    def _on_gpus(self) -> list[Any]:
        found = [self._nccl, self._messages.backend if self._messages else None]
        return [backend for backend in found if backend is not None]

    # How calls are made.

    def _submit(
        self,
        name: str,
        run: Callable[[], None],
        result: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any,
    ) -> Work:
        if self._messages is not None:
            self._messages.start()
        if result and result[0].is_cuda:
            run = _after(torch.cuda.current_stream(result[0].device).record_event(), run)
        now = getattr(opts, "asyncOp", True) is False and self._together is None
        return self._noted(self._thread.submit(Task(run, result, profiled(name, inputs)), now=now))

    def _noted(self, work: Work) -> Work:
        """Add the work to the coalesced ones, if callers wait for many at once."""
        if self._together is not None:
            self._together.append(work)
        return work

    def _by_gloo(self, name: str, opts: Any, result: Sequence[Tensor], *tensors: Any) -> Work:
        """Run a collective of gloo in order, since its calls must have the same order on all ranks."""
        call = getattr(self._gloo, name)
        return self._submit(
            name.strip("_"), lambda: call(*tensors, opts).wait(), result, result, opts
        )

    def _uneven(
        self, targets: list[Tensor], parts: list[Tensor], result: Sequence[Tensor], opts: Any
    ) -> Work:
        _check_same_dtype(targets[0], parts)

        def run() -> None:
            uneven = self._tensors.uneven(
                [part.numel() for part in parts], [target.numel() for target in targets]
            )
            if not uneven.wasteful or targets[0].is_cuda:  # gloo has none for GPUs
                self._tensors.all_to_all_padded(targets, parts, uneven)
                return
            # As bytes, because gloo does not support all types.
            given = torch.cat([_bytes(part) for part in parts])
            output = given.new_empty(sum(target.nbytes for target in targets))
            sizes = ([one.nbytes for one in targets], [one.nbytes for one in parts])
            self._gloo.alltoall_base(output, given, *sizes, opts).wait()
            for target, part in zip(targets, output.split(sizes[0]), strict=True):
                target.copy_(part.view(target.dtype).view(target.shape))

        return self._submit("all_to_all", run, result, parts, opts)

    def _reduces(self, tensors: Sequence[Tensor], opts: Any) -> bool:
        """Return whether the executor supports the reduction; otherwise gloo is used."""
        op = _op(opts)
        return bool(op) and all(
            one.layout == torch.strided and self._tensors.can_reduce(one.dtype, op)
            for one in tensors
        )

    def _check_whole(self, name: str, whole: Tensor, part: Tensor) -> None:
        if whole.numel() != part.numel() * self.size():
            raise ValueError(
                f"{name} has {whole.numel()} elements; it must have {self.size()} times the "
                f"{part.numel()} of the other tensor"
            )
        _check_same_dtype(whole, [part])

    def _peer(self, tensors: Sequence[Tensor]) -> Any:
        if not tensors[0].is_cuda:
            return self._gloo
        if self._nccl is None:
            raise RuntimeError("messages between GPUs need NCCL and a GPU for every rank")
        return self._nccl


def _after(event: torch.cuda.Event, run: Callable[[], None]) -> Callable[[], None]:
    """Return a function that waits for the GPU's event before it runs."""

    def run_then() -> None:
        event.synchronize()
        run()

    return run_then


@dataclass(frozen=True)
class Options:
    """Options of one group: ``dist.new_group(backend="tacos", pg_options=Options(adapt=True))``."""

    adapt: bool | None = None
    """Whether to route around links that become slow or dead; by default ``TACOS_ADAPT``."""


def _adapts(options: object) -> bool:
    said = read("TACOS_ADAPT")
    if isinstance(options, Options) and options.adapt is not None:
        return options.adapt
    return said == "1"


# Arguments of callers.


def _op(opts: Any) -> str:
    return _OPS.get(opts.reduceOp.op, "")


def _options(kind: type, given: Any, **fields: Any) -> Any:
    """Return the given options, or new ones with the fields that are not None."""
    if hasattr(given, "timeout"):
        return given
    opts = kind()
    for name, value in fields.items():
        if value is not None:
            setattr(opts, name, value)
    return opts


def _listed(tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _of_ranks(name: str, tensors: Sequence[Any], size: int) -> list[Tensor]:
    """Return one tensor per rank, from a list or a nested list."""
    some: list[Tensor] = list(
        tensors[0] if len(tensors) and not _is_tensor(tensors[0]) else tensors
    )
    if len(some) != size:
        raise ValueError(f"{name} has {len(some)} tensors, the group has {size} ranks")
    return some


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _split(name: str, tensor: Tensor, sizes: Sequence[int], ranks: int) -> list[Tensor]:
    """Return a tensor's rows by rank."""
    rows = tensor.size(0) if tensor.dim() else 0
    if not sizes:
        if rows % ranks:
            raise ValueError(f"{name} has {rows} rows, not a multiple of the {ranks} ranks")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise ValueError(
            f"{name}_split_sizes is {list(sizes)}: it must have {ranks} entries, with the sum {rows}"
        )
    return list(tensor.split(list(sizes)))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def _check_same_dtype(one: Tensor, others: Sequence[Tensor]) -> None:
    for other in others:
        if other.dtype != one.dtype:
            raise ValueError(f"tensors of type {one.dtype} and {other.dtype} in one call")


def _check_strided(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.layout != torch.strided:
            raise ValueError(f"a tensor has the layout {tensor.layout}; it must be dense")


@atexit.register
def _at_exit() -> None:
    """End groups that were not destroyed, so that no thread outlives the interpreter."""
    for group in list(_OPEN):
        group._communicator.interrupt("the program has ended")
        group._thread.close("the program has ended", timeout=_FAREWELL)


os.register_at_fork(after_in_child=_OPEN.clear)  # they are the parent's
