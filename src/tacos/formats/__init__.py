"""Files: `save` and `load` choose the format by the file's extension and content.

================  ==================================  ===============================================
``tacos``         ``.tacos``                          a complete schedule
``yaml``          ``.yaml`` ``.yml``                  a topology, as people write it
``json``          ``.json``                           a topology, with the same fields
``graphml``       ``.graphml``, read also ``.xml``    a topology, for graph tools
``csv``           ``.csv``                            a topology as a list of links
``astra-sim``     ``.astra.yml``, read also ``.yml``  a network of ASTRA-sim's analytical back end
``msccl``         ``.xml``                            a program, as MSCCL's executors run it
``mscclpp``       ``.json``                           a program, as MSCCL++'s executor runs it
``sccl``          ``.json``                           a result of SCCL or TACCL; only read
``te-ccl``        ``.json``                           a result of TE-CCL; only read
``forestcoll``    ``.xml``                            a result of ForestColl; only read
``nccl``          ``.xml``                            a machine as NCCL and RCCL dump it; only read
``chakra``        ``.et``, or a prefix                a program or a workload, as Chakra traces of all ranks
``astra-layers``  ``.txt``                            a workload of ASTRA-sim 1.0; only read
``libra``         ``.txt``                            a workload of LIBRA; only read
``nvidia-smi``    ``.txt``                            what ``nvidia-smi topo -m`` prints; only read
``ns3``           ``.txt`` ``.topo``                  a topology of ASTRA-sim's ns-3; only read
``taccl``         ``.json``                           a topology of TACCL, with a sketch; only read
``teccl``         ``.json``                           an input of TE-CCL; only read
================  ==================================  ===============================================

`save` also writes traces, in their own formats (`tacos.simulate.Trace.save`).

Both functions take binary file objects instead of paths. Writing then needs the name of the format, and so does
reading a format that cannot be recognized by its content:

>>> import io, tacos
>>> data = io.BytesIO()
>>> save(tacos.topology.ring(4), data, format="yaml")
>>> load(io.BytesIO(data.getvalue()), format="yaml")
<tacos.Topology ring: 4 NPUs, 0 switches, 8 links>

A format is a module with ``read(path)`` and ``write(object, path)``, and a :class:`Format` in `FORMATS`. Formats are
independent of each other, and imported when they are used. `load` passes further arguments to ``read``, and `save` to ``write``.
"""

from __future__ import annotations

import inspect
import io
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
    runtime_checkable,
)

from tacos._core import Program, Schedule, Topology, Workload
from tacos._support.deferred import Later
from tacos._support.files import Location, Stream, replacing
from tacos._support.plugins import Table
from tacos.errors import FormatError, SpecError
from tacos.formats.source import beginning
from tacos.schedule import uses_switches
from tacos.topology import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tacos._core import Collective

_Kind = TypeVar("_Kind", Topology, Schedule, Program, Workload)
BinaryFile: TypeAlias = BinaryIO | io.BufferedIOBase

__all__ = [
    "FORMATS",
    "Executor",
    "Format",
    "UnknownFormatError",
    "WritesItself",
    "exceeded",
    "executor_of",
    "holds_switch_sums",
    "load",
    "lost",
    "name_of",
    "network",
    "options_of",
    "replacing",
    "save",
    "takes",
]


class Executor(NamedTuple):
    """The executor of a format's files: a target of searches, and of the files that ``tune`` writes.

    The format's ``write`` takes ``min_bytes`` and ``max_bytes``, the sizes that a file serves.
    """

    below_max_bytes: bool = False
    """Whether ``max_bytes`` is exclusive."""
    exceeded: Callable[[Program], list[str]] | None = None
    """Returns the limits that a program exceeds, one sentence each."""
    obstacle: Callable[[Collective], str] | None = None
    """Returns why a file cannot hold a collective, with what it holds; empty if it can."""
    switch_sums: bool = False
    """Whether its programs can multicast and reduce in switches."""


class Format(NamedTuple):
    """How files of a format are recognised, read and written."""

    kind: type | tuple[type, ...]
    """The class that ``read`` returns, and further classes that ``write`` takes, such as schedules to be lowered."""
    read: Callable[..., Topology | Schedule | Program | Workload]
    """``read(path, **options)``, where the path may be a stream (`tacos._support.files`)."""
    endings: tuple[str, ...]
    """Extensions of files that can be read."""
    is_one: Callable[[str], bool] | None = None
    """Returns whether a text has this format, judged by its beginning; None if the extension decides."""
    write: Callable[..., None] | None = None
    """``write(object, path, **options)``; None for formats that are only read."""
    written: tuple[str, ...] = ()
    """Extensions of files that can be written."""
    several: bool = False
    """Whether a path is the prefix of several files; streams are then refused."""
    executor: Executor | None = None
    """The executor of its files, if there is one."""
    keeps_faults: bool = False
    """Whether files of topologies say which links and nodes are broken, and so keep the healthy network."""


def _in_xml(root: str) -> Callable[[str], bool]:
    """Return a test whether a text is XML with this root element."""

    def is_one(head: str) -> bool:
        from tacos.formats.xml_events import root_of

        return root_of(head) == root

    return is_one


def _obstacle(_name: str, given: Format) -> str:
    """Return what is wrong with a plug-in's record."""
    kinds = given.kind if isinstance(given.kind, tuple) else (given.kind,)
    if not kinds or not {*kinds} <= {Topology, Schedule, Program, Workload}:
        return f"kind is {given.kind!r}; it must be Topology, Schedule, Program or Workload, or several of them"
    fields: dict[str, object] = {"endings": given.endings, "written": given.written}
    for name, endings in fields.items():
        if not isinstance(endings, tuple) or not all(str(one).startswith(".") for one in endings):
            return f'{name} is {endings!r}; it must be a tuple of extensions such as (".yaml",)'
    return ""


def _of(name: str) -> Callable[..., Any]:
    """Return a function of a module of this package; the module is imported when the function is called."""
    return Later(f"tacos.formats.{name}")


# Of the formats that share an extension, the first that recognises the text is used.
_BUILT_IN: dict[str, Format] = {
    "tacos": Format(
        Schedule,
        _of("native.read"),
        (".tacos",),
        _of("native.looks_like"),
        _of("native.write"),
        (".tacos",),
    ),
    "astra-sim": Format(
        Topology,
        _of("astra_network.read"),
        (".yaml", ".yml"),
        _of("astra_network.looks_like"),
        _of("astra_network.write"),
        (".astra.yml", ".astra.yaml"),
    ),
    "mscclpp": Format(
        (Program, Schedule),
        _of("mscclpp.read"),
        (".json",),
        _of("mscclpp.looks_like"),
        _of("mscclpp.write"),
        (".json",),
        executor=Executor(obstacle=_of("mscclpp.obstacle")),
    ),
    "sccl": Format(Schedule, _of("peers.sccl.read"), (".json",), lambda head: 'sccl_type"' in head),
    "te-ccl": Format(
        Schedule, _of("peers.teccl.read"), (".json",), lambda head: "-Epoch_Duration" in head
    ),
    "taccl": Format(Topology, _of("taccl.read"), (".json",), _of("taccl.looks_like")),
    "teccl": Format(Topology, _of("teccl.read"), (".json",), _of("teccl.looks_like")),
    "yaml": Format(
        Topology,
        _of("topology_file.read"),
        (".yaml", ".yml"),
        None,
        _of("topology_file.write"),
        (".yaml", ".yml"),
        keeps_faults=True,
    ),
    "json": Format(
        Topology,
        _of("topology_file.read"),
        (".json",),
        None,
        _of("topology_file.write"),
        (".json",),
        keeps_faults=True,
    ),
    "nccl": Format(Topology, _of("nccl_topo.read"), (".xml",), _in_xml("system")),
    "msccl": Format(
        (Program, Schedule),
        _of("msccl.read"),
        (".xml",),
        _in_xml("algo"),
        _of("msccl.write"),
        (".xml",),
        executor=Executor(
            below_max_bytes=True, exceeded=_of("msccl.exceeded"), obstacle=_of("msccl.obstacle")
        ),
    ),
    "chakra": Format(
        (Program, Schedule, Workload),
        _of("chakra.read"),
        (".et",),
        None,
        _of("chakra.write"),
        (".et",),
        several=True,
    ),
    "forestcoll": Format(Schedule, _of("peers.forestcoll.read"), (".xml",), _in_xml("Algo")),
    "graphml": Format(
        Topology,
        _of("graphml.read"),
        (".graphml", ".xml"),
        _in_xml("graphml"),
        _of("graphml.write"),
        (".graphml",),
    ),
    "csv": Format(
        Topology, _of("edge_csv.read"), (".csv",), None, _of("edge_csv.write"), (".csv",)
    ),
    "nvidia-smi": Format(
        Topology, _of("nvidia_smi.read"), (".txt", ".log"), _of("nvidia_smi.looks_like")
    ),
    "astra-layers": Format(
        Workload, _of("layer_text.read_astra"), (".txt",), _of("layer_text.looks_like_astra")
    ),
    "libra": Format(
        Workload, _of("layer_text.read_libra"), (".txt",), _of("layer_text.looks_like_libra")
    ),
    "ns3": Format(
        Topology,
        _of("astra_network.read_ns3"),
        (".txt", ".topo"),
        _of("astra_network.looks_like_ns3"),
    ),
}
FORMATS = Table("tacos.formats", Format, _BUILT_IN, _obstacle)
"""The formats by name: those of this package, and then those of installed plug-ins."""
_SAME_AS = {"yml": "yaml"}


class UnknownFormatError(FormatError):
    """A file's content does not match any known format."""


@runtime_checkable
class WritesItself(Protocol):
    """An object that writes itself, such as a trace: its formats belong to a higher layer."""

    def save(self, path: str | os.PathLike[str], *, format: str | None = None) -> None: ...


def save(
    obj: Schedule | Program | Topology | Workload | WritesItself,
    path: str | os.PathLike[str] | BinaryFile,
    *,
    format: str | None = None,
    **options: object,
) -> None:
    """Write a schedule, a program, a topology, a workload or a trace to a file, atomically.

    Args:
        obj: The object to write. Formats of programs also take schedules, and lower them.
        path: The file, which is replaced if it exists; or a binary file object.
        format: One of the names above, if the extension does not identify it.
        options: Arguments of the format's ``write``.

    Raises:
        FormatError: The extension is unknown or does not suit the object, or the file cannot be written.
        ValueError: The format has no such option.

    >>> import tacos
    >>> save(tacos.topology.ring(4), "ring.tacos")
    Traceback (most recent call last):
    tacos.errors.FormatError: ring.tacos: a .tacos file holds a schedule, not a topology
    >>> save(tacos.topology.ring(4), "ring.yaml", protocol="LL")
    Traceback (most recent call last):
    ValueError: the format yaml has no option "protocol"; it takes none
    """
    if isinstance(obj, WritesItself):
        if not isinstance(path, str | os.PathLike):
            raise FormatError(f"a {type(obj).__name__} is written to a path, not to a file object")
        obj.save(path, format=format)
        return
    where = _place(path, format, written=True)
    name = _given(format) or _by_ending(where, type(obj))
    _check_single(name, where)
    write = FORMATS[name].write
    if write is None:
        raise FormatError(f"{where}: files of the format {name} can only be read")
    if not isinstance(obj, FORMATS[name].kind):
        held = " or ".join(map(_a, _kinds(name)))
        ending = Path(str(where)).suffix or f".{name}"
        raise FormatError(f"{where}: a {ending} file holds {held}, not {_a(type(obj))}")
    _check_options(name, write, 2, options)
    if isinstance(obj, Schedule):
        _check_switches(name, where, obj)
    with _system_errors(where):
        write(obj, where, **options)


def lost(topology: Topology, path: str | os.PathLike[str], *, format: str | None = None) -> str:
    """Return what a file of this name does not keep of a topology, in a sentence; empty if it keeps all that counts.

    Raises:
        FormatError: The extension is unknown.

    >>> import tacos
    >>> worn = tacos.topology.drop_links(tacos.topology.ring(4), (0, 1))
    >>> print(lost(worn, "worn.csv"), lost(worn, "worn.yaml"), sep="|")
    worn.csv does not keep faults (link npu 0-npu 1 dead), so the healthy network is unknown to its readers; .yaml and .json keep them|
    """
    from tacos.topology.faults import said

    name = _given(format) or _by_ending(path, Topology)
    if topology.faults is None or FORMATS[name].keeps_faults:
        return ""
    return (
        f"{path} does not keep faults ({'; '.join(said(topology))}), so the healthy network is unknown to its "
        "readers; .yaml and .json keep them"
    )


def holds_switch_sums(path: str | os.PathLike[str], *, format: str | None = None) -> bool:
    """Return whether a file of this name, written from a schedule, can express sums in switches.

    Raises:
        FormatError: The extension is unknown.

    >>> holds_switch_sums("ar.tacos"), holds_switch_sums("ar.xml")
    (True, False)
    """
    chosen = FORMATS[_given(format) or _by_ending(path, Schedule)]
    programs = isinstance(chosen.kind, tuple) and Program in chosen.kind
    return not programs or (chosen.executor is not None and chosen.executor.switch_sums)


def executor_of(path: str | os.PathLike[str], *, format: str | None = None) -> str | None:
    """Return the target that executes a file of this name, written from a schedule; None if no executor reads its format.

    Raises:
        FormatError: The extension is unknown.

    >>> executor_of("ar.xml"), executor_of("ar.tacos")
    ('msccl', None)
    """
    name = _given(format) or _by_ending(path, Schedule)
    return name if FORMATS[name].executor is not None else None


def _check_switches(name: str, where: Location, schedule: Schedule) -> None:
    """Refuse a schedule with sums in switches, if files of the format cannot express them."""
    if holds_switch_sums(str(where), format=name) or not uses_switches(schedule):
        return
    target = name if FORMATS[name].executor else "program"
    raise ValueError(
        f"{where}: the schedule multicasts or reduces in switches, which {name} files cannot express; "
        f"find one that does not with tacos synth --target {target}"
    )


def takes(kind: type, path: str | os.PathLike[str], *, format: str | None = None) -> bool:
    """Return whether `save` writes objects of a class to a file of this name.

    Raises:
        FormatError: The extension is unknown.

    >>> takes(Topology, "ring.yaml"), takes(Topology, "ring.tacos")
    (True, False)
    """
    chosen = FORMATS[_given(format) or _by_ending(path, kind)]
    return chosen.write is not None and issubclass(kind, chosen.kind)


@overload
def load(
    path: str | os.PathLike[str] | BinaryFile,
    *,
    kind: type[_Kind],
    format: str | None = None,
    **options: object,
) -> _Kind: ...


@overload
def load(
    path: str | os.PathLike[str] | BinaryFile,
    *,
    kind: None = None,
    format: str | None = None,
    **options: object,
) -> Topology | Schedule | Program | Workload: ...


def load(
    path: str | os.PathLike[str] | BinaryFile,
    *,
    kind: type[object] | None = None,
    format: str | None = None,
    **options: object,
) -> Topology | Schedule | Program | Workload:
    """Read a file and return its object; see above.

    Args:
        path: The file, or a binary file object.
        kind: The class of the object, if the caller needs a certain one, such as ``tacos.Schedule``.
        format: One of the names above, if extension and content do not identify it.
        options: Arguments of the format's ``read``, such as ``boxes=4, fabric="rail"`` for a machine.

    Raises:
        FormatError: The file is missing, is not in the format of its extension, or holds an object of another class;
            the message names it.
        ValueError: The format has no such option.

    >>> load("missing.tacos")
    Traceback (most recent call last):
    tacos.errors.FormatError: missing.tacos: No such file or directory
    """
    where = _place(path, format)
    with _system_errors(where):
        name = _given(format) or _by_content(where)
        _check_single(name, where)
        read = FORMATS[name].read
        _check_options(name, read, 1, options)
        if isinstance(where, Stream) and not where.suffix:  # readers identify dialects by it
            where.name += FORMATS[name].endings[0]
        found = read(where, **options)
    if kind is not None and not isinstance(found, kind):
        raise FormatError(f"{where}: holds {_a(type(found))}, not {_a(kind)}")
    return found


def name_of(path: str | os.PathLike[str], *, format: str | None = None) -> str:
    """Return the name of the format in which `load` would read a file.

    Raises:
        FormatError: The file is missing, or its extension and content do not match any format.

    >>> name_of("all-gather.3.et")
    'chakra'
    """
    with _system_errors(path):
        return _given(format) or _by_content(path)


def options_of(path: str | os.PathLike[str], *, format: str | None = None) -> list[str]:
    """Return the options that `load` takes for a file.

    Raises:
        FormatError: The file is missing, or its extension and content do not match any format.

    >>> options_of("ag.tacos", format="tacos")
    ['mapped']
    """
    read = FORMATS[name_of(path, format=format)].read
    return list(inspect.signature(read).parameters)[1:]


def exceeded(program: Program) -> list[str]:
    """Return the executor limits that a file exceeds, one sentence each.

    Programs that were not read from a file have none.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> exceeded(tacos.lower(tacos.synthesize(ring, tacos.collective.all_gather(ring, "4MB"))))
    []
    """
    executor = FORMATS[program.format].executor if program.format in FORMATS else None
    return executor.exceeded(program) if executor and executor.exceeded else []


_LONGEST_NAME = 4095  # Linux's limit for a path
_BOXES = re.compile(r"(.+\.\w+):([0-9]{1,9})(?::(switch|rail))?")


def network(text: str) -> Topology:
    """Return the topology of a file or a spec, as the command takes them.

    The name of a machine's file may be followed by the number of boxes and their fabric: ``node.xml:4``,
    ``node.xml:4:rail``. A schedule's file stands for the schedule's topology.

    Raises:
        FormatError: The file cannot be read.
        SpecError: There is no such file, and it is not a valid spec.

    >>> network("torus:4x4").npus
    16
    """
    if len(text) > _LONGEST_NAME:
        raise SpecError(
            f"the network has {len(text)} characters, beginning with {text[:40]!r}; a file name or a spec "
            f"has at most {_LONGEST_NAME}"
        )
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
        try:
            return parse(text)
        except SpecError:
            if path.is_dir():
                raise FormatError(
                    f"{path}: is a directory; expected a topology file or a spec"
                ) from None
            raise
    loaded = load(path, **options)
    if isinstance(loaded, Program | Workload):
        held = type(loaded).__name__.lower()
        raise FormatError(f"{path}: holds a {held}, which has no topology")
    return loaded.topology if isinstance(loaded, Schedule) else loaded


def _place(
    path: str | os.PathLike[str] | BinaryFile, format: str | None, *, written: bool = False
) -> str | os.PathLike[str] | Stream:
    """Return the path, or the file object with a name that has its format's extension."""
    if isinstance(path, str | os.PathLike):
        return path
    if not hasattr(path, "write" if written else "read"):
        raise TypeError(f"path must be a path or a binary file object; got {type(path).__name__}")
    name = getattr(path, "name", None)
    chosen = None if format is None else FORMATS[_given(format) or ""]
    if isinstance(name, str):
        return Stream(cast("BinaryIO", path), name)
    if chosen is None and written:
        raise FormatError("a file object without a name needs the argument format")
    endings = () if chosen is None else chosen.written if written else chosen.endings
    return Stream(cast("BinaryIO", path), "data" + (endings[0] if endings else ""))


def _ends_like_a_file(text: str) -> bool:
    return any(text.lower().endswith(e) for chosen in FORMATS.values() for e in chosen.endings)


def _given(format: str | None) -> str | None:
    if format is None:
        return None
    name = _SAME_AS.get(format, format)
    if name not in FORMATS:
        raise ValueError(f'format must be one of {", ".join(FORMATS)}; got "{format}"')
    return name


def _check_single(name: str, where: Location) -> None:
    """Refuse a file object for a format of several files."""
    if isinstance(where, Stream) and FORMATS[name].several:
        raise FormatError(
            f"the format {name} needs several files, but a file object is one: "
            "pass the prefix of their names as a path"
        )


def _a(kind: type) -> str:
    """Return the name of a class for people, with its article."""
    name = kind.__name__.lower()
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _kinds(name: str) -> tuple[type, ...]:
    kind = FORMATS[name].kind
    return kind if isinstance(kind, tuple) else (kind,)


def _check_options(
    name: str, function: Callable[..., object], given: int, options: dict[str, object]
) -> None:
    """Refuse options that a format's `function` does not take; its first `given` arguments are not options."""
    known = list(inspect.signature(function).parameters)[given:]
    for option in options:
        if option not in known:
            allowed = f"its options are {', '.join(known)}" if known else "it takes none"
            raise ValueError(f'the format {name} has no option "{option}"; {allowed}')


def _by_ending(path: Location, kind: type) -> str:
    """Return the format to write, by the longest matching extension; of several formats, one that takes the class."""
    file = Path(str(path)).name.lower()
    endings = [(ending, name) for name, chosen in FORMATS.items() for ending in chosen.written]
    fitting = [(ending, name) for ending, name in endings if file.endswith(ending)]
    if not fitting and not isinstance(path, Stream) and Path(path).is_dir():
        example = Path(path, "net.yaml" if issubclass(kind, Topology) else "ar.tacos")
        raise FormatError(f"{path} is a directory; name a file, such as {example}")
    if not fitting:
        held = [ending for ending, name in endings if issubclass(kind, FORMATS[name].kind)]
        allowed = ", ".join(dict.fromkeys(held))
        hint = (
            "" if "." in file else f' (such as {file}.et for the prefix "{file}" of Chakra traces)'
        )
        raise FormatError(f"{path}: unknown file extension; use one of {allowed}{hint}")
    return max(fitting, key=lambda fit: (issubclass(kind, FORMATS[fit[1]].kind), len(fit[0])))[1]


def _by_content(path: Location) -> str:
    """Return the format to read, by the extension, or else by the beginning of the text."""
    file = Path(str(path)).name.lower()
    fitting = [name for name, chosen in FORMATS.items() if file.endswith(chosen.endings)]
    if isinstance(path, Stream):
        return _by_head(path, fitting)
    traces = Path(f"{os.fspath(path)}.0.et").exists()  # the path is their prefix
    if Path(path).is_dir() and not traces:
        raise FormatError(f"{path}: is a directory; expected a file")
    if len(fitting) == 1 or (fitting and not Path(path).exists()):
        return fitting[0]  # any of them will report the missing file
    if not fitting and traces:
        return "chakra"
    if not Path(path).exists():
        raise FormatError(f"{path}: No such file or directory, nor {Path(path).name}.0.et")
    if not Path(path).is_file():
        raise FormatError(f"{path}: not a regular file")
    return _by_head(path, fitting)


def _by_head(path: Location, fitting: list[str]) -> str:
    """Return the format that recognises the beginning of the text, of those with this extension, or of all."""
    head = beginning(path)
    if not head.strip():
        raise FormatError(f"{path}: the file is empty")
    # A format that recognizes its text goes before one that is known by its extension alone.
    for name in sorted(fitting or FORMATS, key=lambda name: FORMATS[name].is_one is None):
        is_one = FORMATS[name].is_one
        if is_one(head) if is_one is not None else fitting:
            return name
    if fitting:
        hint = (
            "; tacos reorder reads times between hosts" if Path(str(path)).suffix == ".txt" else ""
        )
        raise UnknownFormatError(
            f"{path}: the content does not match any of the formats {', '.join(fitting)}{hint}"
        )
    if isinstance(path, Stream):
        raise FormatError(
            f"{path}: cannot recognize the format of the content; give the argument format"
        )
    endings = dict.fromkeys(ending for chosen in FORMATS.values() for ending in chosen.endings)
    raise UnknownFormatError(f"{path}: unknown file extension; use one of {', '.join(endings)}")


@contextmanager
def _system_errors(path: Location) -> Iterator[None]:
    """Turn system errors into a FormatError that names the requested file."""
    try:
        yield
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
