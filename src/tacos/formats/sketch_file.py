"""Sketches from files: our own YAML or JSON, and TACCL's.

::

    sketch: 1                    # version of the format
    box: 8                       # NPUs per box
    drop: [[0, 1], 17]           # links that must not be used: pairs of nodes, or numbers
    within: [[0, 1, 2, 3], [4, 5, 6, 7]]    # places of a box that communicate with one another
    between: {"0": [1]}          # sender: receivers in other boxes; or direct-map, none
    relays: [0, box0/npu1]       # NPUs that may forward chunks of others
    senders: {"0": [0, 1, 2]}    # sender: places whose chunks leave the box through it
    symmetry: [[8, 16]]          # rotations: offset, size
    chunks: 2                    # chunks per part
    own_first: true
    connections: uc-min          # or uc-max

All fields but the first are optional; see :class:`tacos.Sketch`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from tacos.formats import markup, taccl
from tacos.formats.source import about, fields_of
from tacos.sketch import Sketch

if TYPE_CHECKING:
    import os

__all__ = ["read"]


class _Fields(Struct, forbid_unknown_fields=True):
    sketch: Literal[1]
    box: int = 0
    drop: list[int | str | tuple[int | str, int | str]] = []
    within: list[list[int]] | None = None
    between: dict[str, list[int]] | Literal["fully-connected", "direct-map", "none"] | None = None
    relays: list[int | str] | None = None
    senders: dict[str, list[int]] = {}
    symmetry: list[tuple[int, int]] = []
    chunks: int | None = None
    own_first: bool = False
    connections: Literal["uc-min", "uc-max"] | None = None


def read(path: str | os.PathLike[str], npus: int) -> Sketch:
    """Read a sketch for a network of `npus` NPUs.

    Raises:
        FormatError: The file is not a sketch, or does not fit the network; the message names the field.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "sketch.yaml")
    ...     _ = file.write_text('sketch: 1\\nbox: 8\\nbetween: {"0": [1]}\\n')
    ...     read(file, 16).between
    {0: [1]}
    """
    with about(path):
        data = markup.load(Path(path))
        if isinstance(data, dict) and "intranode_sketch" in data:
            return _of_taccl(fields_of(data, taccl.TacclSketch), npus)
        if not isinstance(data, dict) or "sketch" not in data:
            raise ValueError('not a sketch: it has neither "sketch" nor "intranode_sketch"')
        fields: _Fields = fields_of(data, _Fields)
        between = fields.between
        sketch = Sketch(
            box=fields.box,
            drop=fields.drop,
            within=fields.within,
            between=_numbered("between", between) if isinstance(between, dict) else between,
            relays=fields.relays,
            senders=_numbered("senders", fields.senders),
            symmetry=fields.symmetry,
            chunks=fields.chunks,
            own_first=fields.own_first,
            connections=fields.connections,
        )
        sketch.check(npus)
        return sketch


def _of_taccl(given: taccl.TacclSketch, npus: int) -> Sketch:
    """Convert TACCL's fields: the sets of switches, the receivers of each sender, and the GPUs whose data it sends."""
    nodes, inner, outer = given.nnodes, given.intranode_sketch, given.internode_sketch
    if nodes < 1 or npus % nodes:
        raise ValueError(f"nnodes is {nodes}, but the network has {npus} NPUs")
    between = "none" if outer is None else outer.internode_conn
    policies = inner.switch_hyperedge_strategy
    sketch = Sketch(
        box=npus // nodes,
        within=inner.switches if inner.strategy == "switch" else None,
        between=_numbered("internode_conn", between) if isinstance(between, dict) else between,
        senders=_numbered("gpus_to_sender_rev_map", outer.gpus_to_sender_rev_map) if outer else {},
        symmetry=given.symmetry_offsets,
        chunks=given.hyperparameters.get("input_chunkup"),
        own_first=outer is not None and outer.enforce_ordering,
        connections=policies[0] if policies else None,
    )
    sketch.check(npus)
    return sketch


def _numbered(field: str, table: dict[str, list[int]]) -> dict[int, list[int]]:
    for key in table:
        if not key.isdecimal():
            raise ValueError(f"{field} has the sender {key!r}; it must be a number")
    return {int(key): places for key, places in table.items()}
