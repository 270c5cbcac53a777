"""ASTRA-sim's own files: read its system and remote memory JSON as an :class:`AstraSystem`.

Keys that ASTRA-sim reads but that do not change a result here, such as ``trace-enabled``, are accepted. So are
keys of its former versions that its current version ignores, such as ``boost-mode``. Any other key is an error;
ASTRA-sim would ignore it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tacos import workload as workloads
from tacos.errors import FormatError, nearest
from tacos.formats import markup
from tacos.formats.source import about, fields_of, quoted, text_of
from tacos.simulate.astra import AstraSystem, RemoteMemory

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

__all__ = ["load_memory", "load_system"]

_Number = int | float
_GIGA = 10**9
_TERA = 10**12
_COMMS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}
_FORMER_KEYS = (
    "boost-mode",
    "comm-scale",
    "inter-dimension-scheduling",
    "intra-dimension-scheduling",
    "packet-routing",
    "seprate-log",
)
"""Keys of files for earlier versions of ASTRA-sim, which the current one ignores."""
_SHARED_BY: dict[str, Literal["none", "npu", "node", "pool"]] = {
    "NO_MEMORY_EXPANSION": "none",
    "PER_NPU_MEMORY_EXPANSION": "npu",
    "PER_NODE_MEMORY_EXPANSION": "node",
    "MEMORY_POOL": "pool",
}


def _key(name: str) -> str:
    return name.replace("_", "-")


class _System(msgspec.Struct, rename=_key):
    """The keys of a system file that ASTRA-sim reads; as there, numbers may have fractions."""

    scheduling_policy: Literal["LIFO", "FIFO", "EXPLICIT"] = "LIFO"
    collective_optimization: Literal["baseline", "localBWAware"] = "baseline"
    endpoint_delay: _Number = 10
    active_chunks_per_dimension: _Number = 1
    preferred_dataset_splits: _Number = 1
    local_mem_bw: _Number = 0
    peak_perf: _Number = 0
    roofline_enabled: _Number = 0
    replay_only: _Number = 0
    model_shared_bus: _Number = 0
    all_reduce_implementation: list[str] = []
    all_gather_implementation: list[str] = []
    reduce_scatter_implementation: list[str] = []
    all_to_all_implementation: list[str] = []
    all_reduce_implementation_custom: list[str] = []
    all_gather_implementation_custom: list[str] = []
    reduce_scatter_implementation_custom: list[str] = []
    all_to_all_implementation_custom: list[str] = []
    per_node_custom_implementation: str = ""
    # ASTRA-sim reads these; they affect times only if the bus is shared.
    local_reduction_delay: _Number = 1
    L: _Number = 0
    o: _Number = 0
    g: _Number = 0
    G: _Number = 0
    trace_enabled: _Number = 0
    track_local_mem: _Number = 0
    local_mem_trace_filename: str = ""


class _Memory(msgspec.Struct, rename=_key):
    """The keys of a remote memory file."""

    memory_type: str
    num_nodes: _Number = 0
    num_npus_per_node: _Number = 0
    remote_mem_latency: _Number = 0
    remote_mem_bw: _Number = 0


def load_system(
    system: str | os.PathLike[str],
    memory: str | os.PathLike[str] | None = None,
    *,
    queues: int = 1,
) -> AstraSystem:
    """Read ASTRA-sim's system file, and the file of its remote memory.

    Args:
        system: The JSON file that ASTRA-sim takes as ``--system-configuration``. Custom collectives that it
            names are read too; their paths are relative to the working directory, or else to the file.
        memory: The JSON file that ASTRA-sim takes as ``--remote-memory-configuration``; without one, NPUs have
            no memory beyond their own.
        queues: Queues of each dimension (``--num-queues-per-dim``).

    Raises:
        FormatError: A file is missing or damaged, or a key is unknown or has a wrong value; the message
            names file, key and value.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "system.json")
    ...     _ = file.write_text('{"scheduling-policy": "FIFO", "peak-perf": 900, "roofline-enabled": 1}')
    ...     found = load_system(file)
    >>> found.policy, found.peak_flops, found.roofline
    ('fifo', 900000000000000.0, True)
    """
    read = _decoded(system, _System, ignored=_FORMER_KEYS)
    with about(system):
        if read.model_shared_bus == 1:
            raise ValueError(
                "model-shared-bus is 1, but this simulation has no shared bus between NPU and network; "
                "set it to 0"
            )
        return AstraSystem(
            endpoint_delay=f"{_whole('endpoint-delay', read.endpoint_delay)}ns",
            memory_bandwidth=f"{_whole('local-mem-bw', read.local_mem_bw * _GIGA)}B/s"
            if read.local_mem_bw
            else None,
            splits=_whole("preferred-dataset-splits", read.preferred_dataset_splits, least=1),
            active_chunks=_whole(
                "active-chunks-per-dimension", read.active_chunks_per_dimension, least=1
            ),
            queues=queues,
            policy=read.scheduling_policy.lower(),
            local_bandwidth_aware=read.collective_optimization == "localBWAware",
            roofline=read.roofline_enabled != 0,
            peak_flops=_finite("peak-perf", read.peak_perf) * _TERA,
            replay_only=read.replay_only != 0,
            remote_memory=RemoteMemory() if memory is None else load_memory(memory),
            implementations={
                comm: tuple(getattr(read, f"{comm}_implementation")) for comm in _COMMS
            },
            algorithms=_algorithms(Path(system), read),
        )


def load_memory(path: str | os.PathLike[str]) -> RemoteMemory:
    """Read ASTRA-sim's file of a remote memory.

    Raises:
        FormatError: As in :func:`load_system`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "memory.json")
    ...     _ = file.write_text('{"memory-type": "MEMORY_POOL", "remote-mem-latency": 100, "remote-mem-bw": 10}')
    ...     load_memory(file)
    RemoteMemory(shared_by='pool', latency='100ns', bandwidth='10000000000B/s', npus_per_node=0, nodes=0)
    """
    read = _decoded(path, _Memory)
    with about(path):
        if read.memory_type not in _SHARED_BY:
            raise ValueError(
                f"memory-type is {quoted(read.memory_type)}; it must be one of {', '.join(_SHARED_BY)}"
            )
        shared_by = _SHARED_BY[read.memory_type]
        if shared_by == "none":
            return RemoteMemory()
        by_node = shared_by == "node"
        return RemoteMemory(
            shared_by=shared_by,
            latency=f"{_whole('remote-mem-latency', read.remote_mem_latency)}ns",
            bandwidth=f"{_whole('remote-mem-bw', read.remote_mem_bw, least=1) * _GIGA}B/s",
            npus_per_node=_whole("num-npus-per-node", read.num_npus_per_node, 1) if by_node else 0,
            nodes=_whole("num-nodes", read.num_nodes, 1) if by_node else 0,
        )


def _decoded(path: str | os.PathLike[str], kind: Any, ignored: Iterable[str] = ()) -> Any:
    """Return the fields of a JSON file."""
    try:
        with about(path):
            if Path(path).suffix.lower() != ".json":
                raise ValueError("the file must be JSON, with a name that ends in .json")
            data = markup.load(path)
            if not isinstance(data, dict):
                raise ValueError(  # noqa: TRY004, the type is right, the file is not
                    f"it must hold a JSON object; got {quoted(data)}"
                )
            known = [field.encode_name for field in msgspec.structs.fields(kind)]
            for key in sorted(set(data) - set(known) - set(ignored)):
                close = nearest(key, known)
                hint = (
                    f"did you mean {close!r}?" if close else f"it must be one of {', '.join(known)}"
                )
                raise ValueError(f"unknown key {quoted(key)}; {hint}")
            return fields_of(data, kind)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None


def _finite(key: str, value: float) -> float:
    if not 0 <= value < 2**60:
        raise ValueError(f"{key} is {value}; it must be a number of at least 0")
    return float(value)


def _whole(key: str, value: float, least: int = 0) -> int:
    """Return a number as ASTRA-sim stores it: truncated."""
    if not least <= value < 2**60:
        raise ValueError(f"{key} is {value}; it must be a number of at least {least}")
    return int(value)


def _algorithms(system: Path, read: _System) -> dict[str | int, workloads.Workload]:
    """Return the custom collectives by kind, and by node id."""
    found: dict[str | int, workloads.Workload] = {}
    known: dict[str, workloads.Workload] = {}  # many nodes share a collective

    def loaded(prefix: str) -> workloads.Workload:
        if prefix not in known:
            known[prefix] = workloads.load(_beside(system, prefix))
        return known[prefix]

    for comm, label in _COMMS.items():
        prefixes = getattr(read, f"{comm}_implementation_custom")
        if len(prefixes) > 1:
            raise ValueError(
                f"{label}-implementation-custom has {len(prefixes)} entries; it must have one"
            )
        if prefixes:
            found[comm] = loaded(prefixes[0])
    if read.per_node_custom_implementation:
        listed = _beside(system, read.per_node_custom_implementation)
        with about(listed):
            for number, line in enumerate(text_of(listed).splitlines(), 1):
                entry = re.fullmatch(r"\s*([0-9]{1,18})\s*:\s*([^\s#].*?)\s*(#.*)?", line)
                if entry is not None:
                    found[int(entry[1])] = loaded(entry[2].strip("'\""))
                elif re.fullmatch(r"\s*(#.*|---)?", line) is None:
                    raise ValueError(
                        f"line {number}: {quoted(line)} must be a node's id, a colon and a prefix"
                    )
    return found


def _beside(system: Path, name: str) -> Path:
    """Resolve a path relative to the working directory, as ASTRA-sim does, or else to the file that names it."""
    here = Path(name)
    there = system.parent / name
    known = here.exists() or Path(f"{name}.0.et").exists()
    return here if known or here.is_absolute() else there
