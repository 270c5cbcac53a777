"""Collectives on torch tensors, one at a time, over a communicator.

This module handles tensors and algorithms; :mod:`tacos.runtime.torch.group`
decides when each call runs. Tensors that are not contiguous are copied. GPU tensors
use a carrier of GPU memory or, if ranks share a GPU, go through pinned host memory.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from tacos.collective import KINDS
from tacos.errors import CommunicationError, TacosError
from tacos.runtime.carriers import named
from tacos.runtime.dispatch.algorithms import order_matters
from tacos.runtime.healing.calls import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacos.runtime.aggregation.sums import SwitchedSums
    from tacos.runtime.carriers import CarrierKind
    from tacos.runtime.dispatch.algorithms import Algorithms
    from tacos.runtime.healing.calls import Healer

__all__ = ["DTYPES", "CollectiveError", "Tensors"]

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
"""The types that can be reduced, with their names in the executor; other data are moved as bytes."""
_PADDING = 2
"""An uneven all-to-all is padded to an even one if that moves at most this many times the bytes (chosen)."""


def _one_buffer(kind: str) -> bool:
    """Return whether input and output are the same whole buffer, which torch passes once."""
    traits = KINDS[kind]
    return traits.spreads and traits.whole_input and traits.whole_output


class CollectiveError(CommunicationError, dist.DistBackendError):
    """A collective failed, or the ranks made different calls; the message explains it."""


class _Uneven(NamedTuple):
    """The number of elements that each rank sends to each other rank, by sender and receiver."""

    sizes: list[list[int]]

    @property
    def block(self) -> int:
        """The largest number of elements of a pair."""
        return max(max(row) for row in self.sizes)

    @property
    def wasteful(self) -> bool:
        """Whether padding every block to the largest would move too many bytes."""
        total = sum(sum(row) for row in self.sizes)
        return self.block * len(self.sizes) ** 2 > _PADDING * total


class Tensors:
    """The collectives of one communicator, each complete when its function returns.

    Args:
        algorithms: Chooses the algorithm of each call.
        on_gpus: The carrier of GPU memory, if it can serve these ranks.
        switched: An aggregating switch, for all-reduces of host memory.
        healer: Makes the calls on host memory, if they must survive slow and dead links.
    """

    def __init__(
        self,
        algorithms: Algorithms,
        on_gpus: CarrierKind | None = None,
        switched: SwitchedSums | None = None,
        healer: Healer | None = None,
    ) -> None:
        self.healer = healer
        self.algorithms = algorithms
        self.switched = switched
        self._on_gpus = on_gpus
        communicator = algorithms.communicator
        self._on_host = named(communicator.carrier)
        self.rank, self.size = communicator.rank, communicator.size

    def can_reduce(self, dtype: torch.dtype, op: str) -> bool:
        """Return whether the carrier of host memory, the fallback of other carriers, supports this reduction."""
        return self._on_host.reduces(DTYPES.get(dtype, ""), op)

    def all_reduce(self, tensors: Sequence[Tensor], op: str) -> None:
        """Reduce over all ranks in place, with all tensors of one type at once."""
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
        """Reduce on the root; the tensors of other ranks are unchanged."""
        flat = _flat([tensor])
        self.run("reduce", flat, flat, flat.numel(), op, root)
        if self.rank == root:
            _spread(flat, [tensor])

    def all_gather(self, outputs: Sequence[Tensor], given: Tensor) -> None:
        """Gather the tensors of all ranks into one tensor, or into one per rank; these may differ in size."""
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
        """Return this rank's part of the sum of all inputs, given as one tensor or as one per rank."""
        source, target = _flat(parts), _flat([output], filled=False)
        self.run("reduce_scatter", source, target, source.numel(), op)
        _spread(target, [output])

    def gather(self, outputs: Sequence[Tensor], given: Tensor, root: int) -> None:
        """Gather the tensors of all ranks on the root; `outputs` is empty on other ranks."""
        part = _flat([given])
        target = _flat(outputs, filled=False) if self.rank == root else None
        self.run("gather", part, target, part.numel() * self.size, root=root)
        if target is not None:
            _spread(target, outputs)

    def scatter(self, output: Tensor, parts: Sequence[Tensor], root: int) -> None:
        """Return this rank's part of the root's data; `parts` is empty on other ranks."""
        source = _flat(parts) if self.rank == root else None
        target = _flat([output], filled=False)
        self.run("scatter", source, target, target.numel() * self.size, root=root)
        _spread(target, [output])

    def all_to_all(self, output: Tensor, given: Tensor) -> None:
        """Send block j of every rank's tensor to rank j; all blocks have one size."""
        source, target = _flat([given]), _flat([output], filled=False)
        self.run("all_to_all", source, target, source.numel())
        _spread(target, [output])

    def uneven(self, sent: Sequence[int], received: Sequence[int]) -> _Uneven:
        """Return how many elements each rank sends to each other rank.

        Raises:
            ValueError: Two ranks disagree; raised on all ranks.
        """
        mine = torch.tensor([*sent, *received])
        of_all = mine.new_empty(2 * self.size * self.size)
        self.run("all_gather", mine, of_all, of_all.numel())
        rows = of_all.view(self.size, 2, self.size).tolist()
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
        """Make an :meth:`all_to_all` with blocks of different sizes, by padding."""
        block = uneven.block
        source = torch.cat([_padded(part.reshape(-1), block) for part in parts])
        target = torch.empty_like(source)
        self.run("all_to_all", source, target, source.numel())
        for rank, output in enumerate(outputs):
            _spread(target[rank * block : rank * block + output.numel()], [output])

    def barrier(self) -> None:
        """Wait for all ranks."""
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
        """Run a collective on flat tensors.

        Args:
            kind: Kind of the collective, such as ``"all_reduce"``.
            source: This rank's input, or None.
            target: The tensor for this rank's result, or None.
            count: Elements of the whole buffer, as nccl-tests counts them.
            op: The reduction; empty if nothing is reduced.
            root: Rank of the root, or -1.
        """
        some = source if source is not None else target
        if count == 0 or some is None:
            return
        if self.size == 1:
            if source is not None and target is not None and source is not target:
                target.copy_(source)
            return
        dtype = DTYPES[some.dtype] if op else "uint8"
        carrier = self._on_gpus if some.is_cuda else self._on_host
        if carrier is None or (some.is_cuda and op and not carrier.reduces(dtype, op)):
            self._staged(kind, source, target, count, op, root)
            return
        what = f"{kind} of {count} elements of {str(some.dtype).removeprefix('torch.')}"
        if root >= 0:
            what += f" with root {root}"
        if not op:  # without arithmetic, move plain bytes
            count *= some.element_size()
        size_bytes = count * some.element_size() if op else count

        def ordinary() -> None:
            ordered = order_matters(dtype, op)
            if self.healer is not None and carrier is self._on_host:
                addresses = _address(source), _address(target)
                call = (kind, size_bytes, _one_buffer(kind), root, ordered, *addresses)
                self.healer.run(Request(*call, count, dtype, op or "sum"))
                return
            algorithm = self.algorithms.get(
                kind, size_bytes, _one_buffer(kind), root, ordered, carrier.name
            )
            with torch.cuda.device(some.device) if some.is_cuda else contextlib.nullcontext():
                algorithm.run_at(_address(source), _address(target), count, dtype, op or "sum")

        by_switch = kind == "all_reduce" and not some.is_cuda and self.switched
        try:
            if by_switch and by_switch.serves(size_bytes, dtype, op):
                by_switch.run_at(_address(source), _address(target), count, dtype, op, ordinary)
            else:
                ordinary()
        except (TacosError, TimeoutError, ValueError) as error:
            raise CollectiveError(f"rank {self.rank}, {what}: {error}") from None

    def _staged(
        self,
        kind: str,
        source: Tensor | None,
        target: Tensor | None,
        count: int,
        op: str,
        root: int,
    ) -> None:
        """Run the collective in host memory, for tensors on a GPU."""
        host_source = None if source is None else _pinned(source)
        if host_source is not None and source is not None:
            host_source.copy_(source)
        # If one is a part of the other, which NCCL calls in place too, each gets its own memory.
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
    """Return one flat tensor: a view if there is a single contiguous one, otherwise a copy."""
    first = tensors[0].detach()
    if len(tensors) == 1 and first.is_contiguous():
        return first.view(-1)
    if filled:
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return first.new_empty(sum(tensor.numel() for tensor in tensors))


def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a flat tensor back to the original ones, unless it is a view of them."""
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
