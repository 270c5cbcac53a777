"""Collectives on torch tensors, one at a time, over a communicator.

What is here knows tensors and algorithms and nothing of process groups: :mod:`tacos.runtime.torch.group`
decides when each call runs. Tensors that are not contiguous are copied on the way. What is on GPUs
goes from GPU to GPU through NCCL or, where ranks share a GPU, through pinned memory of the host.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from tacos.collective import KINDS
from tacos.errors import CommunicationError, TacosError
from tacos.runtime.carriers.nccl import GpuAlgorithm
from tacos.runtime.dispatch.algorithms import order_matters
from tacos.runtime.rendezvous import pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacos.runtime.communicator import Algorithm
    from tacos.runtime.dispatch.algorithms import Algorithms

__all__ = ["DTYPES", "CollectiveError", "Tensors", "can_reduce"]

DTYPES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.bool: "bool",
}
"""What can be reduced, and how the executor calls it; whatever only moves goes as bytes."""
_NOT_ON_GPUS = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""What torch cannot add up there."""
_BITWISE = frozenset({"band", "bor", "bxor"})
"""What torch calls with one tensor, which is input and output."""
_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_LOOK_S = 0.1
"""How often a rank that waits for its GPU looks after its peers."""
_GRACE_S = 5.0
"""For a peer's last messages to arrive, after it has left."""
_PADDING = 2
"""An uneven all-to-all is padded to an even one if that moves at most so many times the bytes."""


def _one_buffer(kind: str) -> bool:
    """Whether input and output are the whole buffer, which torch passes once."""
    traits = KINDS[kind]
    return traits.spreads and traits.whole_input and traits.whole_output


def can_reduce(dtype: torch.dtype, op: str) -> bool:
    """Whether the executor reduces this.

    >>> can_reduce(torch.float16, "sum"), can_reduce(torch.float32, "band")
    (True, False)
    """
    if dtype == torch.bool and op == "avg":
        return False
    return dtype in DTYPES and not (op in _BITWISE and dtype.is_floating_point)


class CollectiveError(CommunicationError, dist.DistBackendError):
    """A collective failed, or the ranks did not ask for the same one; the message says which."""


class _Uneven(NamedTuple):
    """Who sends how many elements to whom, by rank of sender and receiver."""

    sizes: list[list[int]]

    @property
    def block(self) -> int:
        """The largest."""
        return max(max(row) for row in self.sizes)

    @property
    def wasteful(self) -> bool:
        """Whether padding every block to the largest would move too much."""
        total = sum(sum(row) for row in self.sizes)
        return self.block * len(self.sizes) ** 2 > _PADDING * total


class Tensors:
    """The collectives of one communicator, each complete when its function returns.

    Args:
        algorithms: Which algorithm serves which call.
        nccl: The backend that carries messages between GPUs, if every rank has one of its own.
    """

    def __init__(self, algorithms: Algorithms, nccl: Any = None) -> None:
        self.algorithms = algorithms
        self._nccl = nccl
        self._on_gpus: dict[int, GpuAlgorithm] = {}  # by the algorithm's number
        self._communicator = algorithms.communicator
        self.rank, self.size = self._communicator.rank, self._communicator.size
        self._notes = algorithms.of_bytes("all_gather") if nccl and self.size > 1 else None

    def all_reduce(self, tensors: Sequence[Tensor], op: str) -> None:
        """Sums (or whatever `op` says) over all ranks, in place; tensors of one type at once."""
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for some in by_dtype.values():
            flat = _flat(some)
            self.run("all_reduce", flat, flat, flat.numel(), op)
            _spread(flat, some)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """The root's tensor on all ranks."""
        flat = _flat([tensor])
        self.run("broadcast", flat, flat, flat.numel(), root=root)
        if self.rank != root:
            _spread(flat, [tensor])

    def reduce(self, tensor: Tensor, op: str, root: int) -> None:
        """The sum on the root; other ranks keep what they have."""
        flat = _flat([tensor])
        self.run("reduce", flat, flat, flat.numel(), op, root)
        if self.rank == root:
            _spread(flat, [tensor])

    def all_gather(self, outputs: Sequence[Tensor], given: Tensor) -> None:
        """All ranks' tensors, into one tensor or into one per rank; these may differ in size."""
        part = _flat([given])
        if len(outputs) == 1 or all(output.numel() == part.numel() for output in outputs):
            target = _flat(outputs, filled=False)
            self.run("all_gather", part, target, target.numel())
            _spread(target, outputs)
            return
        most = max(output.numel() for output in outputs)
        target = part.new_empty(self.size * most)
        self.run("all_gather", _padded(part, most), target, target.numel())
        for rank, output in enumerate(outputs):
            _spread(target[rank * most : rank * most + output.numel()], [output])

    def reduce_scatter(self, output: Tensor, parts: Sequence[Tensor], op: str) -> None:
        """This rank's part of the sum of all inputs, given as one tensor or as one per rank."""
        source, target = _flat(parts), _flat([output], filled=False)
        self.run("reduce_scatter", source, target, source.numel(), op)
        _spread(target, [output])

    def gather(self, outputs: Sequence[Tensor], given: Tensor, root: int) -> None:
        """All ranks' tensors on the root; `outputs` is empty elsewhere."""
        part = _flat([given])
        target = _flat(outputs, filled=False) if self.rank == root else None
        self.run("gather", part, target, part.numel() * self.size, root=root)
        if target is not None:
            _spread(target, outputs)

    def scatter(self, output: Tensor, parts: Sequence[Tensor], root: int) -> None:
        """This rank's part of what the root has; `parts` is empty elsewhere."""
        source = _flat(parts) if self.rank == root else None
        target = _flat([output], filled=False)
        self.run("scatter", source, target, target.numel() * self.size, root=root)
        _spread(target, [output])

    def all_to_all(self, output: Tensor, given: Tensor) -> None:
        """Block j of every rank's tensor to rank j; all blocks have one size."""
        source, target = _flat([given]), _flat([output], filled=False)
        self.run("all_to_all", source, target, source.numel())
        _spread(target, [output])

    def uneven(self, sent: Sequence[int], received: Sequence[int]) -> _Uneven:
        """What all ranks send to whom, in elements.

        Raises:
            ValueError: Two ranks do not agree, on all ranks.
        """
        mine = torch.tensor([*sent, *received])
        everybody = mine.new_empty(2 * self.size * self.size)
        self.run("all_gather", mine, everybody, everybody.numel())
        rows = everybody.view(self.size, 2, self.size).tolist()
        for i, (out, _) in enumerate(rows):
            for j, (_, into) in enumerate(rows):
                if out[j] != into[i]:
                    raise ValueError(
                        f"all_to_all: rank {i} sends {out[j]} elements to rank {j}, which expects "
                        f"{into[i]}"
                    )
        return _Uneven([out for out, _ in rows])

    def all_to_all_padded(
        self, outputs: Sequence[Tensor], parts: Sequence[Tensor], uneven: _Uneven
    ) -> None:
        """Like :meth:`all_to_all` with blocks of different sizes."""
        block = uneven.block
        source = torch.cat([_padded(part.reshape(-1), block) for part in parts])
        target = torch.empty_like(source)
        self.run("all_to_all", source, target, source.numel())
        for rank, output in enumerate(outputs):
            _spread(target[rank * block : rank * block + output.numel()], [output])

    def barrier(self) -> None:
        """Returns when all ranks have come."""
        token = torch.zeros(1, dtype=torch.uint8)
        self.run("all_reduce", token, token, 1, "max")

    def run(
        self,
        kind: str,
        source: Tensor | None,
        target: Tensor | None,
        count: int,
        op: str = "",
        root: int = -1,
    ) -> None:
        """One collective on flat tensors.

        Args:
            kind: Such as ``"all_reduce"``.
            source: What this rank brings; None where it brings nothing.
            target: Where the result goes; None where there is none for this rank.
            count: Elements of the whole, as nccl-tests counts the size.
            op: How to reduce, empty where nothing is reduced.
            root: Rank of the root, or -1.
        """
        some = source if source is not None else target
        if count == 0 or some is None:
            return
        if self.size == 1:
            if source is not None and target is not None and source is not target:
                target.copy_(source)
            return
        if some.is_cuda and (self._nccl is None or (op and some.dtype in _NOT_ON_GPUS)):
            self._staged(kind, source, target, count, op, root)
            return
        dtype = DTYPES[some.dtype] if op else "uint8"
        if not op:  # what only moves goes as bytes
            count *= some.element_size()
        size_bytes = count * some.element_size() if op else count
        try:
            ordered = order_matters(dtype, op)
            algorithm = self.algorithms.get(kind, size_bytes, _one_buffer(kind), root, ordered)
            if some.is_cuda:
                self._on_gpu(algorithm, source, target, count, op)
            else:
                algorithm.run_at(_address(source), _address(target), count, dtype, op or "sum")
        except (TacosError, TimeoutError, ValueError) as error:
            what = f"{kind} of {count} elements of {dtype}"
            raise CollectiveError(f"rank {self.rank}, {what}: {error}") from None

    def _on_gpu(
        self,
        algorithm: Algorithm,
        source: Tensor | None,
        target: Tensor | None,
        count: int,
        op: str,
    ) -> None:
        """The algorithm's program on GPUs, with NCCL's messages."""
        gpu = self._on_gpus.get(algorithm.number)
        if gpu is None:
            gpu = self._on_gpus[algorithm.number] = GpuAlgorithm(algorithm.program, self._nccl)
        some = source if source is not None else target
        assert some is not None
        given, result = (some.new_empty(0) if one is None else one for one in (source, target))
        if not op:
            given, result = given.view(torch.uint8), result.view(torch.uint8)
        self._compare(algorithm.number, count, given.dtype, op or "sum")
        try:
            one, other = self._in_one_buffer(algorithm.collective.kind, given, result)
            gpu.run([one], [other], count, op or "sum")
            if other.data_ptr() != result.data_ptr():
                result.copy_(other)
            self._await(torch.cuda.current_stream(some.device).record_event())
        except (RuntimeError, TacosError) as error:  # NCCL's errors are the former
            self._communicator.carrier.abort(f"rank {self.rank} failed: {error}")
            self._nccl.abort()  # its messages to and from ranks that will not come
            raise CommunicationError(str(error)) from None

    def _compare(self, number: int, count: int, dtype: torch.dtype, op: str) -> None:
        """Compare notes with all ranks: NCCL would hang, or write past the end, if calls differed.

        A rank that has failed is found here, too.
        """
        assert self._notes is not None
        mine = torch.tensor([number, count, list(DTYPES).index(dtype), _OPS.index(op)])
        everybody = mine.new_empty(len(mine) * self.size)
        size = 8 * everybody.numel()
        self._notes.run_at(mine.data_ptr(), everybody.data_ptr(), size, "uint8")
        rows = everybody.view(self.size, -1).tolist()
        said = [
            f"algorithm {number} on {count} elements of {list(DTYPES.values())[dtype]} ({_OPS[op]})"
            for number, count, dtype, op in rows
        ]
        for rank, theirs in enumerate(said):
            if theirs != said[0]:
                raise CommunicationError(
                    f"the ranks do not agree: rank {rank} runs {theirs}, rank 0 {said[0]}"
                )

    def _await(self, event: torch.cuda.Event) -> None:
        """Wait for the GPU, with an eye on the peers: NCCL does not see that one has died."""
        begin = looked = time.monotonic()
        left: tuple[float, str] | None = None
        rounds = 0
        while not event.query():
            rounds += 1
            pause(rounds)
            now = time.monotonic()
            if now - looked < _LOOK_S:
                continue
            looked = now
            why = self._communicator.watch()
            if why and left is None:
                left = (now, why)  # perhaps because it is through
            if left is not None and now - left[0] > _GRACE_S:
                raise CommunicationError(left[1])
            if now - begin > self._communicator.timeout:
                raise CommunicationError(
                    f"the GPU of rank {self.rank} waits for more than "
                    f"{self._communicator.timeout:g} s"
                )

    def _in_one_buffer(self, kind: str, given: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
        """The two with what programs in place share in one memory, copied there if need be."""
        if _one_buffer(kind) or not given.numel() or not result.numel():
            return given, result
        whole, part = (result, given) if result.numel() >= given.numel() else (given, result)
        pairs = KINDS[kind].per_pair
        share = len(given) // self.size if pairs else len(part)
        mine = slice(self.rank * share, (self.rank + 1) * share)
        if whole[mine].data_ptr() == part.data_ptr():
            return given, result
        if pairs:
            result[mine] = given[mine]
            return given, result
        if whole is given:  # sums begin in the output
            whole = given.clone()
            return whole, whole[mine]
        whole[mine] = given
        return whole[mine], whole

    def _staged(
        self,
        kind: str,
        source: Tensor | None,
        target: Tensor | None,
        count: int,
        op: str,
        root: int,
    ) -> None:
        """The same on the host's memory, for tensors on a GPU."""
        host_source = None if source is None else _pinned(source)
        if host_source is not None and source is not None:
            host_source.copy_(source)
        # Where one is a part of the other, which NCCL calls in place too, each gets memory of its own.
        one = (
            source is not None
            and target is not None
            and source.data_ptr() == target.data_ptr()
            and source.numel() == target.numel()
        )
        host_target = host_source if one else None if target is None else _pinned(target)
        self.run(kind, host_source, host_target, count, op, root)
        if target is not None and host_target is not None:
            target.copy_(host_target)
            torch.cuda.current_stream(target.device).synchronize()


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else int(tensor.data_ptr())


def _flat(tensors: Sequence[Tensor], *, filled: bool = True) -> Tensor:
    """One flat tensor: a view of the only one where it is contiguous, else a new one."""
    first = tensors[0].detach()
    if len(tensors) == 1 and first.is_contiguous():
        return first.view(-1)
    if filled:
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return first.new_empty(sum(tensor.numel() for tensor in tensors))


def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Puts a flat tensor into those it stands for, unless it is a view of them."""
    begin = 0
    for tensor in tensors:
        target, size = tensor.detach(), tensor.numel()
        if size and not (target.is_contiguous() and target.data_ptr() == flat.data_ptr()):
            target.copy_(flat[begin : begin + size].view(target.shape))
        begin += size


def _padded(flat: Tensor, size: int) -> Tensor:
    if flat.numel() == size:
        return flat
    longer = flat.new_zeros(size)
    longer[: flat.numel()] = flat
    return longer
