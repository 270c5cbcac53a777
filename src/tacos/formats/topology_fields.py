"""The fields of a topology file: their types, the JSON Schema made from them, and errors in their values."""

from __future__ import annotations

import difflib
import json
import re
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

__all__ = [
    "VERSION",
    "Boxes",
    "Choices",
    "Defaults",
    "Degrade",
    "Edit",
    "Faults",
    "File",
    "Link",
    "Quantity",
    "Racks",
    "Scale",
    "Slow",
    "Switch",
    "decoded",
    "schema",
]

VERSION = 1

Quantity: TypeAlias = Annotated[
    int | float | str, Meta(description='Such as "50GB/s" or "500ns"; numbers are SI units.')
]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Nodes: TypeAlias = Annotated[
    int | str | list[int | str],
    Meta(
        description='A number, a name, a range "0..7", a pattern "box*/npu0", or a list of these.'
    ),
]


class Switch(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A switch and what it can do."""

    name: str | None = None
    multicast: bool = False
    reduce: bool = False


class Link(Struct, forbid_unknown_fields=True):
    """Links from each src to dst (pairwise if both are lists), or between all nodes of a group."""

    src: Nodes | None = None
    dst: Nodes | None = None
    among: Nodes | None = None
    bandwidth: Quantity | None = None
    latency: Quantity | None = None
    both: Annotated[bool, Meta(description="Also the links back.")] = True
    count: Annotated[int, Meta(ge=1, description="Parallel links.")] = 1


class Defaults(Struct, forbid_unknown_fields=True, frozen=True):
    """Defaults of links."""

    bandwidth: Quantity | None = None
    latency: Quantity | None = None


class Boxes(Struct, forbid_unknown_fields=True):
    """Equal boxes; their nodes are called box0/npu0, box0/switch0, and so on."""

    count: Count
    npus: Annotated[int, Meta(ge=0)] | list[str] = 0
    name: Annotated[str, Meta(min_length=1, description="In place of box, such as a100.")] = "box"
    machine: (
        Annotated[
            str, Meta(description='A short name such as "dgx-h100", in place of npus and links.')
        ]
        | None
    ) = None
    switches: Annotated[int, Meta(ge=0)] | list[str | Switch] = 0
    links: Annotated[list[Link], Meta(description="Inside one box, with its own names.")] = []


class Racks(Struct, forbid_unknown_fields=True):
    """Racks of boxes: a switch in each, to which all its NPUs have a link, and a spine that joins them."""

    boxes: Annotated[int, Meta(ge=1, description="Boxes in each rack.")]
    bandwidth: (
        Annotated[Quantity, Meta(description="Bandwidth of an NPU's link to its rack.")] | None
    ) = None
    latency: Quantity | None = None
    oversubscription: Annotated[
        float, Meta(gt=0, description="Bandwidth from a rack's NPUs over that to the spine.")
    ] = 1


Choices = list[int | str | tuple[int | str, int | str]]
"""Links: numbers, pairs of nodes, or pairs as text such as ``box0/npu0-fabric``."""


class Degrade(Struct, forbid_unknown_fields=True):
    """Slower links: a factor on the bandwidth, another latency, or both."""

    links: Choices
    factor: int | float = 1
    latency: Quantity | None = None


class Scale(Struct, forbid_unknown_fields=True):
    """All bandwidths and latencies multiplied."""

    bandwidth: int | float = 1
    latency: int | float = 1


class Edit(Struct, forbid_unknown_fields=True):
    """One change to the base: exactly one of drop_links, drop_npus, degrade, scale, subset."""

    drop_links: Choices | None = None
    drop_npus: list[int | str] | None = None
    subset: Annotated[list[int | str], Meta(description="The NPUs to keep.")] | None = None
    degrade: Degrade | None = None
    scale: Scale | None = None
    both: Annotated[bool, Meta(description="Links in both directions.")] = True


class Slow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Links that are slow, with the speed that they have now."""

    links: Choices
    bandwidth: Quantity | None = None
    latency: Quantity | None = None


class Faults(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is wrong with the network that the other fields describe; links are numbered as in that network."""

    dead: Annotated[Choices, Meta(description="Links, each in one direction.")] = []
    slow: list[Slow] = []
    dropped: Annotated[
        list[int | str], Meta(description="NPUs, and switches that lead nowhere without them.")
    ] = []
    symmetric: Annotated[
        bool, Meta(description="Whether it is as symmetric as before, with all links slow.")
    ] = False


class File(Struct, forbid_unknown_fields=True):
    """A topology: either a base with edits, or npus, boxes, switches, links and directed."""

    tacos: Annotated[int, Meta(ge=1, le=VERSION, description="Version of the format.")]
    name: str | None = None
    link_model: str | None = None
    forwarding: str | None = None
    routing: (
        Annotated[
            str,
            Meta(
                description='Of several equal paths through switches, a message takes all ("spread"), one chosen '
                'by its destination ("destination") or the first ("first").'
            ),
        ]
        | None
    ) = None
    reduce_bandwidth: Quantity | None = None
    base: (
        Annotated[
            str, Meta(description='A spec such as "dgx-h100:4", or a file, relative to this one.')
        ]
        | None
    ) = None
    edits: list[Edit] = []
    faults: Faults | None = None
    npus: Annotated[int, Meta(ge=0)] | list[str] = 0
    boxes: (
        Annotated[Boxes | list[Boxes], Meta(description="Boxes of one kind, or of several kinds.")]
        | None
    ) = None
    racks: Racks | None = None
    switches: Annotated[int, Meta(ge=0)] | list[str | Switch] = 0
    defaults: Defaults = Defaults()
    links: list[Link] = []
    directed: Annotated[
        list[list[int | float | str]],
        Meta(description="One directed link per row: [src, dst, bandwidth, latency]."),
    ] = []
    dims: Annotated[
        list[tuple[str, Count]], Meta(description="Kind and size; the first varies fastest.")
    ] = []
    symmetric: bool = False
    connected: Annotated[bool, Meta(description="Every NPU must be able to reach every other.")] = (
        True
    )


def schema() -> dict[str, Any]:
    """Return the JSON Schema of topology files, for editors and other programs.

    >>> schema()["$ref"]
    '#/$defs/File'
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "TACOS topology file",
        **msgspec.json.schema(File),
    }


_PLACE = re.compile(r"(.*) - at `(?:key in )?\$(.*)`", re.DOTALL)


def decoded(data: object) -> File:
    """Return the typed fields of a file's values.

    Raises:
        ValueError: A field is missing, unknown or wrong; the message names it with its value.

    >>> decoded({"tacos": 1, "npus": "two"})
    Traceback (most recent call last):
    ValueError: npus is "two": expected a whole number or a list, got text
    """
    if not isinstance(data, dict):
        raise ValueError("the file must be a mapping of fields, such as tacos: 1")  # noqa: TRY004
    version = data.get("tacos")
    if version is None:
        raise ValueError(f"the field tacos is missing; it must be tacos: {VERSION}")
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"tacos is {version}; this version of tacos reads format version {VERSION}"
        )
    try:
        return msgspec.convert(data, File)
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        message, place = (match[1], match[2]) if match else (str(error), "")
        place = place.removeprefix(".")
        subject = f"{place}{_found(data, place)}: " if place else ""
        raise ValueError(f"{subject}{_reworded(message)}") from None


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "|": "or",
}
"""What msgspec's names of types mean to the author of a file."""


def _reworded(message: str) -> str:
    """Reword a message of msgspec."""
    if missing := re.fullmatch("Object missing required field `(.*)`", message, re.DOTALL):
        return f"the field {missing[1]} is missing"
    unknown = re.fullmatch("Object contains unknown field `(.*)`", message, re.DOTALL)
    if unknown is None:
        words = message[0].lower() + message[1:].replace("`", "").replace("int | float", "float")
        return re.sub(r"\w+|\|", lambda word: _WORDS.get(word[0], word[0]), words)
    fields = {
        f
        for struct in (File, Boxes, Racks, Link, Switch, Edit, Faults, Slow)
        for f in struct.__struct_fields__
    }
    close = difflib.get_close_matches(unknown[1], sorted(fields), n=1)
    hint = f", did you mean {close[0]}?" if close else ""
    return f"there is no field {json.dumps(unknown[1], ensure_ascii=False)}{hint}"


def _found(data: Any, place: str) -> str:
    """Return the value at a place, if it is short enough to quote."""
    for step in re.findall(r"\[(\d+)\]|([^.\[\]]+)", place):
        try:
            data = data[int(step[0])] if step[0] else data[step[1]]
        except (LookupError, TypeError):
            return ""
    return (
        f" is {json.dumps(data, ensure_ascii=False)[:60]}"
        if isinstance(data, str | int | float)
        else ""
    )
