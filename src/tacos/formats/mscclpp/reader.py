"""Read MSCCL++ execution plans: the head here, the GPUs and their operations in the core.

``cpp/formats/mscclpp_plan.cpp`` parses the text into columns, ``mscclpp_program.cpp`` turns operations into steps, and
``mscclpp_meetings.cpp`` turns signals, semaphores and barriers into the order of steps.
"""

from __future__ import annotations

import json
import re
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
    """Return whether a JSON text is an execution plan, judged by its beginning.

    >>> looks_like('{"name": "x", "collective": "allreduce", "inplace": true, "gpus": ['), looks_like("{}")
    (True, False)
    """
    return all(word in head for word in ('"collective"', '"inplace"', '"gpus"'))


def read(path: Location) -> Program:
    """Read a plan; provenance keeps its name, protocol, range of sizes and threads per block.

    Threadblocks that share the work of an operation cut its chunks, so the program may have more and
    smaller chunks than the plan. A pipeline is read as one of its rounds; the other rounds do the same
    with other bytes.

    Raises:
        FormatError: The file is not a plan that the executor takes; the message names GPU,
            threadblock, operation and field.
        OSError: The file cannot be opened.

    >>> read(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tacos.errors.FormatError: ...reader.py: not an execution plan: the file must hold a JSON object
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
    except msgspec.ValidationError as error:
        raise ValueError(_sentence(content, str(error))) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON in UTF-8: {error}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not a plan: it nests too deeply") from None


_MUST_BE = {
    "protocol": "Simple or LL",
    "inplace": "true or false",
    "reuse_resources": "true or false",
    "use_double_scratch_buffer": "true or false",
    "num_threads_per_block": "a positive whole number",
    "buffer_alignment": "a positive whole number",
    "min_message_size": "a number of bytes",
    "max_message_size": "a number of bytes",
}


def _sentence(content: bytes, error: str) -> str:
    """Return msgspec's error in our words, with the field's value."""
    if missing := re.search(r"missing required field `(\w+)`", error):
        return f"the field {missing[1]} is missing"
    if wrong := re.search(r"at `\$\.(\w+)`", error):
        value = json.dumps(msgspec.json.decode(content)[wrong[1]])
        shown = value if len(value) <= 40 else f"{value[:40]}…"
        return f"the field {wrong[1]} is {shown}; it must be {_MUST_BE.get(wrong[1], 'a string')}"
    return "not an execution plan: the file must hold a JSON object"


def _kind(plan: ExecutionPlan) -> str:
    kind = _KINDS.get(plan.collective)
    if kind is None:
        raise ValueError(
            f'the field collective is "{plan.collective[:40]}"; it must be one of {", ".join(_KINDS)}'
        )
    if KINDS[kind].per_pair and plan.inplace:
        raise ValueError(
            "the field inplace is true, but programs cannot express an alltoall in place"
        )
    return kind
