"""Algorithms that ranks have prepared: a call on arrays, or on the memory at two addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tacos.collective import kind_of
from tacos.runtime.carriers import Call

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tacos._core import Collective, RankExecutor
    from tacos.runtime.carriers import CarrierKind, Prepared
    from tacos.runtime.communicator import Communicator

__all__ = ["Algorithm"]


class Algorithm:
    """An algorithm that all ranks of a communicator have prepared with Communicator.prepare.

    Attributes:
        carrier: The carrier that moves its data.
        difference: A sentence about two ranks that add up a chunk in different orders, so that floating-point sums may
            differ in the last bits; empty if there are none, or if the algorithm was not verified.
    """

    def __init__(
        self,
        communicator: Communicator,
        carrier: CarrierKind,
        number: int,
        share: RankExecutor,
        prepared: Prepared,
        difference: str = "",
        *,
        recorded: bool = False,
    ) -> None:
        self.difference = difference
        self.communicator = communicator
        self.carrier = carrier
        self.number = number
        self.program = share.program
        self.prepared = prepared
        self._share = share
        self._recorded = recorded  # by the carrier

    @property
    def collective(self) -> Collective:
        """The algorithm's collective; only the proportions of its sizes matter."""
        return self.program.collective

    def __repr__(self) -> str:
        kind = self.collective.label
        return f"<tacos.Algorithm {self.number}: {kind}, {self.program.ranks} ranks>"

    def buffer_elements(self, count: int) -> tuple[int, int]:
        """Return the elements of this rank's input and output buffers, for a collective of count elements."""
        return self._share.buffer_elements(count)

    def run(
        self, source: object, target: object = None, op: str = "sum", *, count: int | None = None
    ) -> np.ndarray[Any, Any]:
        """Run the collective on arrays; all ranks must call this together.

        Args:
            source: This rank's input: a contiguous array, or an object that NumPy can view as one. A rank
                without input may pass anything.
            target: The array for the result. The call is in place if it shares memory with the source as in NCCL.
                Default: a new array.
            op: ``sum``, ``product``, ``min``, ``max``, ``avg``, or ``band``, ``bor``, ``bxor`` for integers.
            count: Elements of the whole buffer, as nccl-tests counts them, if they do not follow from the arrays.

        Returns:
            The target.

        Raises:
            ValueError: The arrays do not fit the collective.
            CommunicationError: A rank failed, hangs, or made a different call.
        """
        if self.carrier.memory != "host":
            raise ValueError(
                f"run takes arrays of the host, and the carrier {self.carrier.name} moves memory of "
                "GPUs; use run_at, with addresses there"
            )
        given = None if source is None else _array(source, "source")
        result = None if target is None else _array(target, "target")
        if given is None and result is None:
            raise ValueError("source and target are both missing")
        first = given if given is not None else result
        assert first is not None
        if count is None:
            count = self._count(given, result)
        inputs, outputs = self.buffer_elements(count)
        if result is None:
            result = np.empty(outputs, first.dtype)
        _check(given, "source", inputs, result.dtype)
        _check(result, "target", outputs, result.dtype)
        if outputs and not result.flags.writeable:
            raise ValueError("target cannot be written to")
        self.run_at(
            0 if given is None or not inputs else given.ctypes.data,
            result.ctypes.data if outputs else 0,
            count,
            result.dtype.name,
            op,
        )
        return result

    def run_at(self, source: int, target: int, count: int, dtype: str, op: str = "sum") -> None:
        """Run the collective on the memory at two addresses, without the GIL.

        The memory is the host's or a GPU's, depending on the carrier (``algorithm.carrier.memory``).
        ``buffer_elements(count)`` returns the sizes of both buffers; ``count`` is the size of the whole buffer, as
        nccl-tests counts it. ``dtype`` is NumPy's name of the type, or ``bfloat16``.
        """
        call, flight = Call(source, target, count, dtype, op), self.communicator.flight
        with self.communicator.lock:
            entry = None if self._recorded else flight.begin(self.number, call)
            try:
                self.prepared.run(call)
            except BaseException as error:
                flight.fail(self.number, call, error, entry)
                raise
            if entry is not None:
                flight.end(entry)

    def _count(
        self, source: np.ndarray[Any, Any] | None, target: np.ndarray[Any, Any] | None
    ) -> int:
        """Return the elements of the whole buffer, derived from this rank's arrays."""
        collective = self.collective
        sizes = (None if source is None else source.size, None if target is None else target.size)
        if len(collective.parts) == 1:
            part = collective.parts[0]
            n = len(part.group)
            root = part.root >= 0 and int(part.group[part.root]) == self.communicator.rank
            kind = kind_of(part)
            held = (kind.whole_input, kind.whole_output)
            if kind.even:
                # Only the root has the whole buffer of a gather or scatter.
                everywhere = all(held) or not kind.rooted
                sides = list(zip(sizes, held, strict=True))
                # All ranks have the output, but not all have the input.
                if kind.spreads and not kind.reduces:
                    sides.reverse()
                for size, whole in sides:
                    if size is not None and whole and (root or everywhere):
                        return size
                for size, whole in sides:
                    if size is not None and not whole:
                        return size * n
        raise ValueError(
            f"count must be given: the arrays of a {collective.label} do not tell it here"
        )


def _array(value: object, name: str) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__array_interface__") or not hasattr(value, "__dlpack__"):
        try:
            array = np.asarray(memoryview(cast("Buffer", value)))
        except TypeError:
            raise ValueError(f"{name} is a {type(value).__name__}; it must be an array") from None
    else:
        array = np.from_dlpack(value)
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(f"{name} is not contiguous in memory")
    return array


def _check(
    array: np.ndarray[Any, Any] | None, name: str, elements: int, dtype: np.dtype[Any]
) -> None:
    if elements == 0:
        return
    if array is None:
        raise ValueError(f"{name} is missing, this rank needs {elements} elements of it")
    if array.size != elements:
        raise ValueError(f"{name} has {array.size} elements, this rank needs {elements}")
    if array.dtype != dtype:
        raise ValueError(f"{name} is of {array.dtype.name}, but target of {dtype.name}")
