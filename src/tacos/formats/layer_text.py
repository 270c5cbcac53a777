"""Workloads of ASTRA-sim 1.0 and of LIBRA as text, one line per layer; only read.

A line has twelve columns: a name, a number that is ignored, then computation in nanoseconds, collective and bytes of
the forward pass, of the input gradient and of the weight gradient, and the time to update the weights::

    DATA
    54
    conv1  -1  13003 NONE 0  12864 NONE 0  32291 ALLREDUCE 37632  3229

Files of ASTRA-sim begin with a parallelism, which determines which dimensions of the network the collectives use and
what waits for them, and the number of layers. Files of LIBRA have only layers, and nothing overlaps. A second file lists,
for the forward pass and both gradients, how many NPUs of each dimension take part; -1 means none::

    Forward: [4, 2, -1]
    InputGrad: [4, 2, -1]
    WeightGrad: [-1, 2, 8]

All ranks have the same nodes. As in all workloads, the size of an all-gather is one rank's part, and that of other
collectives the whole buffer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from tacos._core import Workload
from tacos.formats import markup
from tacos.formats.source import about, fields_of, quoted, text_of

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tacos._support.files import Location

__all__ = ["looks_like_astra", "looks_like_libra", "read_astra", "read_libra"]

_COMP, _COLL = 2, 3
_COMMS = {"allreduce": 0, "allgather": 2, "alltoall": 6, "reducescatter": 7}
"""Collectives by name, with their numbers in Chakra."""
_PARALLELISMS = (
    "MICRO",
    "DATA",
    "MODEL",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_TRANSFORMER",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "HYBRID_CUSTOMIZED",
    "DISTRIBUTED_INFERENCE",
)
_MOST_NODES = 10**8
_Dims = frozenset[int]
"""Dimensions that a collective uses; none if there is no collective."""


@dataclass(frozen=True)
class _LayerPass:
    """A computation and the collective after it."""

    time_ps: int
    comm: int | None
    bytes: int


@dataclass(frozen=True)
class _Layer:
    name: str
    forward: _LayerPass
    input_grad: _LayerPass
    weight_grad: _LayerPass
    update_ps: int
    parallelism: str = ""


class _Communicators(Struct):
    """LIBRA's file: number of NPUs of each dimension that take part, or -1."""

    Forward: list[int]
    InputGrad: list[int]
    WeightGrad: list[int]


def looks_like_astra(head: str) -> bool:
    """Return whether a text begins with a parallelism of ASTRA-sim 1.0.

    >>> looks_like_astra("DATA\\n54\\nconv1 -1"), looks_like_astra("DATE 1")
    (True, False)
    """
    words = head.split(None, 1)
    return bool(words) and words[0] in _PARALLELISMS


def looks_like_libra(head: str) -> bool:
    """Return whether the first line of a text is a layer.

    >>> looks_like_libra("embed -1 1000 ALLTOALL 8 300 NONE 0 10 ALLREDUCE 8 10")
    True
    """
    words = head.partition("\n")[0].split()
    return len(words) == 12 and words[3].lower() in (*_COMMS, "none")


def read_astra(path: Location, *, dims: Sequence[int] | None = None, passes: int = 1) -> Workload:
    """Read a workload of ASTRA-sim 1.0.

    Dependencies follow its training loop: collectives of the forward pass block; those of gradients overlap with the next
    computations. The weight gradient's collective must be complete, and the weights updated, before the layer begins
    another pass.

    Args:
        path: The file.
        dims: NPUs of each dimension of the network, which the file does not contain; the first varies fastest.
        passes: Number of training steps.

    Raises:
        FormatError: The file is not such a workload; the message names line and column.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mlp.txt")
    ...     _ = file.write_text("DATA\\n1\\nfc -1 500 NONE 0 500 NONE 0 900 ALLREDUCE 4096 10\\n")
    ...     read_astra(file, dims=[8])
    <tacos.Workload: 8 ranks, 32 nodes>
    """
    with about(path):
        if not 1 <= passes <= 10**6:
            raise ValueError(f"passes is {passes}; it must be 1 to 10^6")
        sizes = _checked(dims)
        lines = text_of(path).splitlines()
        header = lines[0].split() if lines else []
        if not header or header[0] not in _PARALLELISMS:
            word = quoted(header[0]) if header else "nothing"
            raise ValueError(
                f"line 1: the parallelism is {word}; it must be one of {', '.join(_PARALLELISMS)}"
            )
        count = _whole(lines[1] if len(lines) > 1 else "", "line 2: the number of layers")
        layers = _layers(lines[2:], 3, last=header[0] == "HYBRID_CUSTOMIZED")
        if len(layers) != count:
            raise ValueError(f"there are {len(layers)} layers, but line 2 says {count}")
        loop = _Loop(header, layers, sizes)
        for _ in range(passes):
            loop.run()
        return loop.workload()


def read_libra(
    path: Location,
    *,
    dims: Sequence[int] | None = None,
    groups: str | os.PathLike[str] | None = None,
) -> Workload:
    """Read a workload of LIBRA.

    Args:
        path: The file.
        dims: NPUs of each dimension of the network; by default taken from the communicators.
        groups: LIBRA's file of communicators; by default ``communicator.yml`` in the workload's directory, if it exists.
            Otherwise all NPUs take part in every collective.

    Raises:
        FormatError: A file is malformed; the message names line or field.
    """
    beside = Path(str(path)).parent / "communicator.yml"
    file = Path(groups) if groups is not None else beside if beside.is_file() else None
    used: list[_Dims] | None = None
    if file is not None:
        with about(file):
            said = fields_of(markup.load(file), _Communicators)
            dims, used = _communicators(said, dims)
    with about(path):
        sizes = _checked(dims)
        everything = frozenset(range(len(sizes)))
        forward, input_grad, weight_grad = used or [everything] * 3
        layers = _layers(text_of(path).splitlines(), 1)
        if not layers:
            raise ValueError("there is no layer")
        graph = _RankGraph(sizes)
        point: list[int] = []
        for layer in layers:
            point = graph.step(f"{layer.name} forward", layer.forward, forward, point)
        for layer in reversed(layers):
            point = graph.step(f"{layer.name} input grad", layer.input_grad, input_grad, point)
            point = graph.step(f"{layer.name} weight grad", layer.weight_grad, weight_grad, point)
        return graph.workload()


def _communicators(
    said: _Communicators, dims: Sequence[int] | None
) -> tuple[list[int], list[_Dims]]:
    rows = {name: getattr(said, name) for name in said.__struct_fields__}
    count = len(said.Forward)
    sizes = [0] * count
    for name, row in rows.items():
        if len(row) != count:
            raise ValueError(f"{name} has {len(row)} dimensions, but Forward has {count}")
        for dim, size in enumerate(row):
            if size > 0 and sizes[dim] not in (0, size):
                raise ValueError(
                    f"{name}[{dim}] is {size}, but another communicator has {sizes[dim]}"
                )
            sizes[dim] = max(sizes[dim], size)
    if dims is not None:
        if len(dims) != count or any(s not in (0, d) for s, d in zip(sizes, dims, strict=True)):
            raise ValueError(
                f"the communicators are for {sizes} NPUs, but the network has {list(dims)}"
            )
        sizes = list(dims)
    if 0 in sizes:
        raise ValueError(
            f"no communicator says how many NPUs dimension {sizes.index(0)} has; give dims"
        )
    return sizes, [
        frozenset(dim for dim, size in enumerate(row) if size > 0) for row in rows.values()
    ]


def _checked(dims: Sequence[int] | None) -> tuple[int, ...]:
    if dims is None:
        raise ValueError("the file does not say how many NPUs there are; give dims, such as 4x2x8")
    if not dims or any(d < 1 for d in dims) or prod(dims) >= 2**31:
        raise ValueError(f"dims is {list(dims)}; it must list positive numbers of NPUs")
    return tuple(dims)


def _whole(text: str, what: str, most: int = 2**62) -> int:
    words = text.split()
    if len(words) != 1 or not re.fullmatch(r"[0-9]{1,19}", words[0]) or int(words[0]) > most:
        raise ValueError(
            f"{what} is {quoted(text.strip())}; it must be a whole number of at least 0"
        )
    return int(words[0])


def _layers(lines: list[str], first: int, *, last: bool = False) -> list[_Layer]:
    found = []
    wanted = 13 if last else 12
    for number, line in enumerate(lines, first):
        words = line.split()
        if not words:
            continue
        if len(words) != wanted:
            raise ValueError(f"line {number}: there are {len(words)} columns; a layer has {wanted}")
        forward, input_grad, weight_grad = (
            _step(words[at : at + 3], f"line {number}, column {at + 1}") for at in (2, 5, 8)
        )
        update = 1000 * _whole(words[11], f"line {number}, column 12", 10**15)
        own = words[12] if last else ""
        found.append(_Layer(words[0], forward, input_grad, weight_grad, update, own))
    return found


def _step(words: list[str], place: str) -> _LayerPass:
    time = 1000 * _whole(words[0], f"{place}: the time", 10**15)
    name = words[1].lower().replace("_", "").replace("-", "")
    if name != "none" and name not in _COMMS:
        allowed = ", ".join(["NONE", *(comm.upper() for comm in _COMMS)])
        raise ValueError(
            f"{place}: the collective is {quoted(words[1])}; it must be one of {allowed}"
        )
    return _LayerPass(time, _COMMS.get(name), _whole(words[2], f"{place}: the size"))


@dataclass
class _RankGraph:
    """The nodes of one rank; all ranks have the same nodes with different groups."""

    dims: tuple[int, ...]
    kind: list[int] = field(default_factory=list)
    time_ps: list[int] = field(default_factory=list)
    comm: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    used: list[_Dims] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    deps: list[list[int]] = field(default_factory=list)

    def compute(self, name: str, time_ps: int, after: list[int]) -> list[int]:
        """Add a computation; return the nodes that the next node waits for."""
        if not time_ps:
            return after
        return self._add(_COMP, name, after, time_ps=time_ps)

    def collective(self, name: str, step: _LayerPass, used: _Dims, after: list[int]) -> list[int]:
        """Add the collective of a step, if it has one with more than one member."""
        if step.comm is None or not step.bytes or prod(self.dims[d] for d in used) < 2:
            return after
        return self._add(_COLL, name, after, comm=step.comm, bytes=step.bytes, used=used)

    def step(self, name: str, step: _LayerPass, used: _Dims, after: list[int]) -> list[int]:
        """Add a computation and its collective, which blocks."""
        return self.collective(name, step, used, self.compute(name, step.time_ps, after))

    def _add(
        self,
        kind: int,
        name: str,
        after: list[int],
        *,
        time_ps: int = 0,
        comm: int = 0,
        bytes: int = 0,
        used: _Dims = frozenset(),
    ) -> list[int]:
        self.kind.append(kind)
        self.names.append(name)
        self.deps.append(sorted(set(after)))
        self.time_ps.append(time_ps)
        self.comm.append(comm)
        self.bytes.append(bytes)
        self.used.append(used)
        if len(self.kind) * prod(self.dims) > _MOST_NODES:
            raise ValueError(
                f"the workload has more than {_MOST_NODES:,} nodes; give fewer NPUs or passes"
            )
        return [len(self.kind) - 1]

    def workload(self) -> Workload:
        """Return the workload of all ranks."""
        if not self.kind:
            raise ValueError("no layer computes or communicates anything")
        ranks, rows = prod(self.dims), len(self.kind)
        groups: list[tuple[int, list[int]]] = []
        number: dict[_Dims, np.ndarray[Any, Any]] = {frozenset(): np.zeros(ranks, np.int32)}
        for used in dict.fromkeys(self.used):
            if used not in number:
                number[used] = self._groups(used, groups)
        texts = list(dict.fromkeys(self.names))
        place = {text: i for i, text in enumerate(texts)}

        def tiled(values: list[int], dtype: Any) -> np.ndarray[Any, Any]:
            return np.tile(np.array(values, dtype), ranks)

        counts = tiled([len(deps) for deps in self.deps], np.int64)
        flat = np.array([dep for deps in self.deps for dep in deps], np.int64)
        first = np.repeat(np.arange(ranks) * rows, len(flat))
        return Workload(
            npus=ranks,
            rank=np.repeat(np.arange(ranks, dtype=np.int32), rows),
            kind=tiled(self.kind, np.uint8),
            bytes=tiled(self.bytes, np.int64),
            duration_ps=tiled(self.time_ps, np.int64),
            comm=tiled(self.comm, np.uint8),
            group=np.stack([number[used] for used in self.used], axis=1).ravel().astype(np.int32),
            name=tiled([place[text] for text in self.names], np.int32),
            names=texts,
            dep_begin=np.concatenate(([0], np.cumsum(counts))),
            dep=np.tile(flat, ranks) + first,
            groups=groups,
        )

    def _groups(self, used: _Dims, groups: list[tuple[int, list[int]]]) -> np.ndarray[Any, Any]:
        """Return, for each rank, the group whose members differ in the given dimensions; add new groups to the list."""
        ranks = np.arange(prod(self.dims))
        line = np.zeros_like(ranks)  # the coordinates in all other dimensions
        stride, width = 1, 1
        for dim, size in enumerate(self.dims):
            if dim not in used:
                line += ranks // stride % size * width
                width *= size
            stride *= size
        if width == 1:
            return np.zeros(len(ranks), np.int32)  # all ranks
        first = len(groups) + 1
        order = np.argsort(line, kind="stable").reshape(width, -1)
        groups += [(first + i, members.tolist()) for i, members in enumerate(order)]
        return (line + first).astype(np.int32)


class _Loop:
    """The training loop of ASTRA-sim 1.0, pass by pass."""

    def __init__(self, header: list[str], layers: list[_Layer], dims: tuple[int, ...]) -> None:
        self.parallelism = header[0]
        self.layers = layers
        self.checkpoints: set[int] = set()
        self.recompute: set[int] = set()
        self.bottom = -1
        if self.parallelism.startswith("HYBRID_TRANSFORMER"):
            dims = self._read_transformer(header[1:], prod(dims))
        elif self.parallelism.startswith("HYBRID_DLRM"):
            self.bottom = _whole(
                header[1] if len(header) > 1 else "",
                "line 1: the last bottom layer",
                len(layers) - 1,
            )
        self.graph = _RankGraph(dims)
        self.point: list[int] = []
        self.updated: list[list[int]] = [[] for _ in layers]

    def _read_transformer(self, words: list[str], npus: int) -> tuple[int, ...]:
        """Read a header such as ``model_parallel_NPU_group: 4 checkpoints: 2 2 11 checkpoint_initiates: 2 19 10``."""
        lists: dict[str, list[int]] = {}
        for word in words:
            if word.endswith(":"):
                lists[word] = []
            elif lists:
                lists[next(reversed(lists))].append(_whole(word, "line 1: an entry"))
        size = next(iter(lists.get("model_parallel_NPU_group:", [])), 0)
        if size < 1 or npus % size:
            raise ValueError(
                f"line 1: model_parallel_NPU_group is {size}, which does not divide {npus} NPUs"
            )
        self.checkpoints = set(lists.get("checkpoints:", [])[1:])
        self.recompute = set(lists.get("checkpoint_initiates:", [])[1:])
        for layer in self.recompute:
            if layer >= len(self.layers) or not any(c <= layer for c in self.checkpoints):
                raise ValueError(
                    f"line 1: layer {layer} is recomputed, but there is no checkpoint before it"
                )
        return size, npus // size

    def workload(self) -> Workload:
        return self.graph.workload()

    def run(self) -> None:
        if self.parallelism == "MICRO":
            for layer in self.layers:
                self.graph.collective(layer.name, layer.weight_grad, self._dims(layer, 2), [])
            return
        forward_comm: dict[int, list[int]] = {}
        for i, layer in enumerate(self.layers):
            done = self.graph.compute(
                f"{layer.name} forward", layer.forward.time_ps, self.point + self.updated[i]
            )
            if self.bottom < 0:
                done = self._collective(layer, "forward", 0, done)
            else:
                forward_comm[i] = self._collective(layer, "forward", 0, done)
                if i == self.bottom:
                    done = done + forward_comm[0]
            self.point = done
        if self.parallelism == "DISTRIBUTED_INFERENCE":
            return
        if self.bottom >= 0:
            self._backward_dlrm()
        elif self.parallelism == "DATA":
            self._backward_data()
        else:
            self._backward()

    def _backward_data(self) -> None:
        for i in reversed(range(len(self.layers))):
            self.point = self._weight_grad(i, self.point)
            if i > 0:
                self.point = self._input_compute(i, self.point)

    def _backward_dlrm(self) -> None:
        exchange: list[int] = []
        for i in reversed(range(len(self.layers))):
            self.point = self._weight_grad(i, self.point)
            if i > 0:
                self.point = self._input_compute(i, self.point)
            if i == self.bottom + 1:
                exchange = self._collective(self.layers[0], "input grad", 1, self.point)
        if self.parallelism == "HYBRID_DLRM":
            self.point = self.point + exchange

    def _backward(self) -> None:
        for i in reversed(range(len(self.layers))):
            if i in self.recompute:
                start = max(c for c in self.checkpoints if c <= i)
                for layer in self.layers[start:i]:
                    done = self.graph.compute(
                        f"{layer.name} again", layer.forward.time_ps, self.point
                    )
                    self.point = self._collective(layer, "again", 0, done)
            layer = self.layers[i]
            done = self._input_compute(i, self.point)
            exchange = done
            if i > 0 or self.parallelism != "MODEL":
                exchange = self._collective(layer, "input grad", 1, done)
            self.point = self._weight_grad(i, done) + exchange

    def _input_compute(self, i: int, after: list[int]) -> list[int]:
        layer = self.layers[i]
        return self.graph.compute(f"{layer.name} input grad", layer.input_grad.time_ps, after)

    def _weight_grad(self, i: int, after: list[int]) -> list[int]:
        """Add the weight gradient; only the layer's next pass waits for its collective and update."""
        layer = self.layers[i]
        done = self.graph.compute(f"{layer.name} weight grad", layer.weight_grad.time_ps, after)
        summed = self._collective(layer, "weight grad", 2, done)
        self.updated[i] = self.graph.compute(f"{layer.name} update", layer.update_ps, summed)
        return done

    def _collective(self, layer: _Layer, what: str, which: int, after: list[int]) -> list[int]:
        step = (layer.forward, layer.input_grad, layer.weight_grad)[which]
        return self.graph.collective(f"{layer.name} {what}", step, self._dims(layer, which), after)

    def _dims(self, layer: _Layer, which: int) -> _Dims:
        """Return the dimensions that a collective of a layer uses: 0 forward, 1 input gradient, 2 weight gradient."""
        parallelism = layer.parallelism or self.parallelism
        count = len(self.graph.dims)
        everything, first = frozenset(range(count)), frozenset({0})
        model, data = everything, frozenset[int]()
        if parallelism in ("DATA", "MICRO") or (self.bottom >= 0 and layer is not self.layers[0]):
            model, data = data, everything
        elif self.bottom >= 0:
            data = everything
        elif parallelism == "HYBRID_MODEL_DATA":
            model, data = everything - first, first
        elif parallelism == "HYBRID_DATA_MODEL" or parallelism.startswith("HYBRID_TRANSFORMER"):
            model, data = first, everything - first
        elif parallelism not in ("MODEL", "DISTRIBUTED_INFERENCE"):
            raise ValueError(
                f"layer {quoted(layer.name)}: unknown parallelism {quoted(parallelism)}"
            )
        return data if which == 2 else model
