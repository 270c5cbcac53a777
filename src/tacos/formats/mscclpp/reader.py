"""Reading execution plans: the head here, the GPUs and what they do in the core.

``cpp/formats/mscclpp_plan.cpp`` turns the text into columns, ``mscclpp_program.cpp`` operations into steps, and
``mscclpp_meetings.cpp`` what synchronizes them into their order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from tacos._core import read_mscclpp
from tacos.collective import KINDS
from tacos.errors import FormatError
from tacos.formats.mscclpp.execution_plan import COLLECTIVES, ExecutionPlan
from tacos.formats.source import about, bytes_of
from tacos.program import facts_in

if TYPE_CHECKING:
    from tacos._support.files import Location
    from tacos.program import Program

__all__ = ["looks_like", "read"]

_KINDS = {name: kind for kind, name in COLLECTIVES.items()}


def looks_like(head: str) -> bool:
    """Whether a JSON text is an execution plan, by how it begins.

    >>> looks_like('{"name": "x", "collective": "allreduce", "inplace": true, "gpus": ['), looks_like("{}")
    (True, False)
    """
    return all(word in head for word in ('"collective"', '"inplace"', '"gpus"'))


def read(path: Location) -> Program:
    """Read a plan; provenance keeps its name, protocol, range of sizes and threads per block.

    Threadblocks that share the work of an operation cut its chunks, so the program may have more and
    smaller ones than the plan. A pipeline is read as one of its rounds: the others do the same to
    other bytes.

    Raises:
        FormatError: The file is not a plan that the executor takes; the message names GPU,
            threadblock, operation and field.
        OSError: The file cannot be opened.

    >>> read(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tacos.errors.FormatError: ...reader.py: Expected `object`, got `str`
    """
    with about(path):
        content = bytes_of(path)
    try:
        plan = _decoded(content)
        provenance = {
            "format": "mscclpp",
            "name": plan.name,
            "protocol": plan.protocol,
            "min_bytes": plan.min_message_size,
            "max_bytes": plan.max_message_size,
            "threads_per_block": plan.num_threads_per_block,
        }
        program = read_mscclpp(
            bytes(plan.gpus),
            collective=_kind(plan),
            in_place=plan.inplace,
            provenance=json.dumps(provenance),
        )
        return program.with_facts(**facts_in(provenance))
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{path}: {error}") from None


def _decoded(content: bytes) -> ExecutionPlan:
    try:
        return msgspec.json.decode(content, type=ExecutionPlan)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ValueError(
            str(error).replace(" - at `$.", ", field `").replace(" - at `$`", "")
        ) from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not a plan: it nests too deeply") from None


def _kind(plan: ExecutionPlan) -> str:
    kind = _KINDS.get(plan.collective)
    if kind is None:
        raise ValueError(
            f'the field collective is "{plan.collective[:40]}"; it must be one of {", ".join(_KINDS)}'
        )
    if KINDS[kind].per_pair and plan.inplace:
        raise ValueError("the field inplace is true, which programs cannot express for an alltoall")
    return kind
