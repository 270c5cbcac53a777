"""Files: `save` and `load` choose the format by the ending of the file's name and what it holds.

===============  ==================================  ===============================================
``tacos``        ``.tacos``                          a schedule with all that belongs to it
``yaml``         ``.yaml`` ``.yml``                  a topology, as people write it
``json``         ``.json``                           the same
``graphml``      ``.graphml``, read also ``.xml``    a topology, for graph tools
``csv``          ``.csv``                            a topology as a list of links
``astra-sim``    ``.astra.yml``, read also ``.yml``  a network of ASTRA-sim's analytical back end
``msccl``        ``.xml``                            a program, as MSCCL's executors run it
``mscclpp``      ``.json``                           a program, as MSCCL++'s executor runs it
``sccl``         ``.json``                           a result of SCCL or TACCL; only read
``te-ccl``       ``.json``                           a result of TE-CCL; only read
``forestcoll``   ``.xml``                            a result of ForestColl; only read
``nccl``         ``.xml``                            a machine as NCCL and RCCL dump it; only read
``chakra``       ``.et``, or a prefix                a program, as Chakra traces of all ranks
``nvidia-smi``   ``.txt``                            what ``nvidia-smi topo -m`` prints; only read
``ns3``          ``.txt`` ``.topo``                  a topology of ASTRA-sim's ns-3; only read
``taccl``        ``.json``                           a topology of TACCL, with a sketch; only read
``teccl``        ``.json``                           an input of TE-CCL; only read
===============  ==================================  ===============================================

A trace is written too, by its own formats (`tacos.simulate.Trace.save`).

A format is a module with ``read(path)`` and ``write(object, path)``; they do not know each other.
Further arguments of ``read`` can be given to `load`, those of ``write`` to `save`.
"""

from __future__ import annotations

import inspect
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from tacos._core import Program, Schedule, Topology
from tacos.errors import FormatError
from tacos.formats import (
    astra_network,
    chakra,
    edge_csv,
    graphml,
    msccl,
    mscclpp,
    native,
    nccl_topo,
    nvidia_smi,
    peers,
    taccl,
    teccl,
    topology_file,
    xml_events,
)
from tacos.formats.source import beginning
from tacos.program import noted
from tacos.topology import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["WritesItself", "exceeded", "load", "name_of", "network", "save", "takes"]


class _Format(NamedTuple):
    """What a format's files hold, how they end where they are read, and where they are written."""

    kind: type | tuple[type, ...]
    """What ``read`` returns; several where ``write`` takes more, such as schedules to be lowered."""
    read: Callable[..., Any]
    endings: tuple[str, ...]
    is_one: Callable[[str], bool] | None = None
    """Tells by the beginning of a text whether it is one; None: whatever ends like this."""
    write: Callable[..., None] | None = None
    written: tuple[str, ...] = ()


# Of the formats that share an ending, the first that recognises the text is taken.
_FORMATS: dict[str, _Format] = {
    "tacos": _Format(Schedule, native.read, (".tacos",), None, native.write, (".tacos",)),
    "astra-sim": _Format(
        Topology,
        astra_network.read,
        (".yaml", ".yml"),
        astra_network.looks_like,
        astra_network.write,
        (".astra.yml", ".astra.yaml"),
    ),
    "mscclpp": _Format(
        (Program, Schedule),
        mscclpp.read,
        (".json",),
        mscclpp.looks_like,
        mscclpp.write,
        (".json",),
    ),
    "sccl": _Format(Schedule, peers.sccl.read, (".json",), lambda head: 'sccl_type"' in head),
    "te-ccl": _Format(
        Schedule, peers.teccl.read, (".json",), lambda head: "-Epoch_Duration" in head
    ),
    "taccl": _Format(Topology, taccl.read, (".json",), taccl.looks_like),
    "teccl": _Format(Topology, teccl.read, (".json",), teccl.looks_like),
    "yaml": _Format(
        Topology,
        topology_file.read,
        (".yaml", ".yml"),
        None,
        topology_file.write,
        (".yaml", ".yml"),
    ),
    "json": _Format(
        Topology, topology_file.read, (".json",), None, topology_file.write, (".json",)
    ),
    "nccl": _Format(
        Topology, nccl_topo.read, (".xml",), lambda head: xml_events.root_of(head) == "system"
    ),
    "msccl": _Format(
        (Program, Schedule),
        msccl.read,
        (".xml",),
        lambda head: xml_events.root_of(head) == "algo",
        msccl.write,
        (".xml",),
    ),
    "chakra": _Format((Program, Schedule), chakra.read, (".et",), None, chakra.write, (".et",)),
    "forestcoll": _Format(
        Schedule,
        peers.forestcoll.read,
        (".xml",),
        lambda head: xml_events.root_of(head) == "Algo",
    ),
    "graphml": _Format(
        Topology,
        graphml.read,
        (".graphml", ".xml"),
        lambda head: xml_events.root_of(head) == "graphml",
        graphml.write,
        (".graphml",),
    ),
    "csv": _Format(Topology, edge_csv.read, (".csv",), None, edge_csv.write, (".csv",)),
    "nvidia-smi": _Format(Topology, nvidia_smi.read, (".txt", ".log"), nvidia_smi.looks_like),
    "ns3": _Format(
        Topology, astra_network.read_ns3, (".txt", ".topo"), astra_network.looks_like_ns3
    ),
}
_SAME_AS = {"yml": "yaml"}


@runtime_checkable
class WritesItself(Protocol):
    """A trace, for one: its formats belong to the layer that made it."""

    def save(self, path: str | os.PathLike[str], *, format: str | None = None) -> None: ...


def save(
    obj: Schedule | Program | Topology | WritesItself,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    **options: Any,
) -> None:
    """Write a schedule, a program, a topology or a trace to a file, whole or not at all.

    Args:
        obj: What to write. Formats of programs take schedules, too, and lower them.
        path: Where; a file that is there is replaced.
        format: One of the names above, if the name's ending does not say it.
        options: Arguments of the format's ``write``.

    Raises:
        FormatError: The ending is unknown or does not suit the object, or the disk refuses.
        ValueError: The format has no such option.

    >>> import tacos
    >>> save(tacos.topology.ring(4), "ring.tacos")
    Traceback (most recent call last):
    tacos.errors.FormatError: ring.tacos: a .tacos file holds a Schedule, not a Topology
    >>> save(tacos.topology.ring(4), "ring.yaml", protocol="LL")
    Traceback (most recent call last):
    ValueError: the format yaml has no option "protocol", there are none
    """
    if isinstance(obj, WritesItself):
        obj.save(path, format=format)
        return
    name = _given(format) or _by_ending(path, type(obj))
    write = _FORMATS[name].write
    if write is None:
        raise FormatError(f"{path}: files of the format {name} are read, not written")
    if not isinstance(obj, _FORMATS[name].kind):
        held, found = " or a ".join(kind.__name__ for kind in _kinds(name)), type(obj).__name__
        raise FormatError(f"{path}: a .{name} file holds a {held}, not a {found}")
    _check_options(name, write, 2, options)
    with _system_errors(path):
        write(obj, path, **options)


def takes(kind: type, path: str | os.PathLike[str], *, format: str | None = None) -> bool:
    """Whether `save` writes objects of a class to a file of this name.

    Raises:
        FormatError: The ending says no format.

    >>> takes(Topology, "ring.yaml"), takes(Topology, "ring.tacos")
    (True, False)
    """
    chosen = _FORMATS[_given(format) or _by_ending(path, kind)]
    return chosen.write is not None and issubclass(kind, chosen.kind)


def load(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> Any:
    """Read a file: what its format holds, see above.

    Args:
        path: The file.
        format: One of the names above, if ending and content do not say it.
        options: Arguments of the format's ``read``, such as ``boxes=4, fabric="rail"`` for a machine.

    Raises:
        FormatError: The file is missing or not what its name says; the message names it.
        ValueError: The format has no such option.

    >>> load("missing.tacos")
    Traceback (most recent call last):
    tacos.errors.FormatError: missing.tacos: No such file or directory
    """
    with _system_errors(path):
        name = name_of(path, format=format)
        read = _FORMATS[name].read
        _check_options(name, read, 1, options)
        return read(path, **options)


def name_of(path: str | os.PathLike[str], *, format: str | None = None) -> str:
    """The name of the format in which `load` would read a file.

    Raises:
        FormatError: The file is missing, or its ending and content belong to no format.

    >>> name_of("all-gather.3.et")
    'chakra'
    """
    with _system_errors(path):
        return _given(format) or _by_content(path)


def exceeded(program: Program) -> list[str]:
    """Which limits of the executor that a file was written for it exceeds, one sentence each.

    Programs that no file brought along have none.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> exceeded(tacos.lower(tacos.synthesize(ring, tacos.collective.all_gather(ring, "4MB"))))
    []
    """
    dialect = noted(program, "dialect", str)
    if noted(program, "format", str) != "msccl" or dialect not in msccl.DIALECTS:
        return []
    return msccl.exceeded(program, dialect)


_BOXES = re.compile(r"(.+\.\w+):([0-9]{1,9})(?::(switch|rail))?")


def network(text: str) -> Topology:
    """The topology that a file holds or a short name stands for, as the command takes them.

    A machine's file may be followed by the number of boxes and their fabric: ``node.xml:4``,
    ``node.xml:4:rail``. The topology of a schedule's file is the one it runs on.

    Raises:
        FormatError: The file cannot be read.
        SpecError: There is no such file, and the short name is wrong.

    >>> network("torus:4x4").npus
    16
    """
    path = Path(text)
    options: dict[str, Any] = {}
    machine = _BOXES.fullmatch(text)
    if (
        machine
        and not path.exists()
        and (Path(machine[1]).exists() or _ends_like_a_file(machine[1]))
    ):
        path, options = (
            Path(machine[1]),
            {"boxes": int(machine[2]), "fabric": machine[3] or "switch"},
        )
    if not path.is_file() and not _ends_like_a_file(str(path)):
        return parse(text)
    loaded = load(path, **options)
    if isinstance(loaded, Program):
        raise FormatError(f"{path}: this is a program, which names no topology")
    return loaded.topology if isinstance(loaded, Schedule) else loaded


def _ends_like_a_file(text: str) -> bool:
    return any(text.lower().endswith(e) for chosen in _FORMATS.values() for e in chosen.endings)


def _given(format: str | None) -> str | None:
    if format is None:
        return None
    name = _SAME_AS.get(format, format)
    if name not in _FORMATS:
        raise ValueError(f'format must be one of {", ".join(_FORMATS)}; got "{format}"')
    return name


def _kinds(name: str) -> tuple[type, ...]:
    kind = _FORMATS[name].kind
    return kind if isinstance(kind, tuple) else (kind,)


def _check_options(
    name: str, function: Callable[..., Any], given: int, options: dict[str, Any]
) -> None:
    """Refuses what a format's `function` does not know; its first `given` arguments are ours."""
    known = list(inspect.signature(function).parameters)[given:]
    for option in options:
        if option not in known:
            allowed = f"its options are {', '.join(known)}" if known else "it takes none"
            raise ValueError(f'the format {name} has no option "{option}"; {allowed}')


def _by_ending(path: str | os.PathLike[str], kind: type) -> str:
    """The format to write, by the longest ending that fits; of several, one that takes the class."""
    file = Path(path).name.lower()
    endings = [(ending, name) for name, chosen in _FORMATS.items() for ending in chosen.written]
    fitting = [(ending, name) for ending, name in endings if file.endswith(ending)]
    if not fitting:
        allowed = ", ".join(dict.fromkeys(ending for ending, _ in endings))
        raise FormatError(f"{path}: unknown file extension; use one of {allowed}")
    return max(fitting, key=lambda fit: (issubclass(kind, _FORMATS[fit[1]].kind), len(fit[0])))[1]


def _by_content(path: str | os.PathLike[str]) -> str:
    """The format to read: by the ending, and by how the text begins where that does not say it."""
    file = Path(path).name.lower()
    fitting = [name for name, chosen in _FORMATS.items() if file.endswith(chosen.endings)]
    if len(fitting) == 1 or (fitting and not Path(path).exists()):
        return fitting[0]  # a file that is not there will be missed by any of them
    if not fitting and Path(f"{os.fspath(path)}.0.et").exists():  # the prefix of traces
        return "chakra"
    if not Path(path).exists():
        raise FormatError(f"{path}: No such file or directory, nor {Path(path).name}.0.et")
    if not Path(path).is_file():
        raise FormatError(f"{path}: this is no file")
    head = beginning(path)
    for name in fitting or _FORMATS:
        is_one = _FORMATS[name].is_one
        if is_one(head) if is_one is not None else fitting:
            return name
    if fitting:
        raise FormatError(f"{path}: the file is none of {', '.join(fitting)} by its content")
    endings = dict.fromkeys(ending for chosen in _FORMATS.values() for ending in chosen.endings)
    raise FormatError(f"{path}: unknown file extension; use one of {', '.join(endings)}")


@contextmanager
def _system_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the system refuses, in a sentence about the file that was asked for."""
    try:
        yield
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
