"""The compiled core of tacos; use it through the package tacos."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy
import numpy.typing
from numpy.typing import NDArray
import pandas
import pyarrow


class TacosError(Exception):
    pass

class InfeasibleError(TacosError):
    pass

class CommunicationError(TacosError, RuntimeError):
    pass

class WorkIsUp(Exception):
    pass

class Meter:
    """
    A counter of work, and a report of progress: what functions of the core take as ``progress``.

    A unit of work is about a nanosecond of one core. The count is a function of the problem alone: the same on any
    machine and for any number of threads. Call a meter with the share of the work that is done.

    Args:
        limit: Units after which :class:`tacos.errors.WorkIsUp` is raised; None for no limit.
        report: Called with the share done, at most every 50 ms; an exception that it raises ends the work.

    >>> from tacos._core import Meter
    >>> meter = Meter(limit=100)
    >>> meter.spend(60)
    >>> meter.used, meter.left
    (60, 40)
    >>> meter.part(0.5, 1.0).spend(60)
    Traceback (most recent call last):
    tacos._core.WorkIsUp: the allowance of work is used up
    """

    def __init__(self, *, limit: int | None = None, report: object | None = None) -> None: ...

    @staticmethod
    def of(progress: Callable[[float], object] | None) -> Meter:
        """
        A meter as it is; of a callback, or None, a meter without a limit that reports to it.
        """

    def __call__(self, share: float) -> None:
        """Report the share of the work that is done."""

    def spend(self, units: float) -> None:
        """Count work; raise WorkIsUp if the counter is then beyond the limit."""

    def reserve(self, units: float) -> None:
        """
        Count work that is still to be done; raise WorkIsUp, and count nothing, if it would pass the limit.
        """

    def part(self, begin: float, end: float) -> Meter:
        """A meter with the same counter that reports a part of the work."""

    @property
    def used(self) -> int:
        """Units counted so far."""

    @property
    def wanted(self) -> int:
        """
        Units that the work is known to need at least: more than the limit if it was stopped.
        """

    @property
    def limit(self) -> int | None:
        """Units after which the work ends, or None."""

    @property
    def left(self) -> int | None:
        """Units until the work ends, or None without a limit."""

    TRANSFER: float = 150.0

    CELL: float = 1.0

    STEP: float = 250.0

class Faults:
    """
    What is wrong with a network: the columns that its healthy network differs in.

    Nodes and links have their numbers in the healthy network, whose other nodes and links are all present, in the
    same order. A topology checks its faults. The functions of tacos.topology make them.
    """

    def __init__(self, *, link: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dead: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], latency_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], bandwidth_Bps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dropped: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], capabilities: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], names: Sequence[str], npus: int, dims: Sequence[tuple[str, int]], symmetric: bool) -> None: ...

    @property
    def link(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Links that are dead or slow, ascending."""

    @property
    def dead(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """
        Per entry of `link`: 1 if it is dead, 0 if it is present at another speed.
        """

    @property
    def src(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Node that each of these links leaves."""

    @property
    def dst(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Node that each of these links enters."""

    @property
    def latency_ps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Their healthy latencies in picoseconds."""

    @property
    def bandwidth_Bps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Their healthy bandwidths in bytes per second."""

    @property
    def dropped(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """
        NPUs that are gone, and switches that lead nowhere without them, ascending.
        """

    @property
    def capabilities(self) -> numpy.typing.NDArray[numpy.uint8]:
        """Bits of each dropped switch."""

    @property
    def names(self) -> list[str]:
        """Names of the dropped nodes, or an empty list."""

    @property
    def npus(self) -> int:
        """Number of NPUs of the healthy network."""

    @property
    def dims(self) -> list[tuple[str, int]]:
        """Its dimensions."""

    @property
    def symmetric(self) -> bool:
        """Whether it is symmetric."""

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __repr__(self) -> str: ...

class Topology:
    """
    A network: NPUs, switches and directed links.

    Nodes 0 … npus-1 are NPUs, the others are switches. The functions of tacos.topology make topologies.
    They are immutable; the columns are read-only NumPy arrays with one entry per link or switch.
    """

    def __init__(self, *, npus: int, switch_capabilities: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], link_src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], link_dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], link_latency_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], link_bandwidth_Bps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], link_model: str = 'pipelined', forwarding: str = 'cut_through', routing: str = 'spread', reduce_bandwidth_Bps: int = 0, family: str = '', dims: Sequence[tuple[str, int]] = [], symmetric: bool = False, names: Sequence[str] = [], faults: Faults | None = None, given_away: bool = False) -> None:
        """
        Check that the columns are consistent.

        With given_away=True, the links' columns are used without copying; do not write to them.
        """

    @property
    def npus(self) -> int:
        """Number of NPUs."""

    @property
    def switches(self) -> int:
        """Number of switches."""

    @property
    def nodes(self) -> int:
        """Number of NPUs and switches."""

    @property
    def links(self) -> int:
        """Number of directed links."""

    @property
    def switch_capabilities(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Bits per switch: 1 multicast, 2 reduce."""

    @property
    def link_src(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Node each link leaves."""

    @property
    def link_dst(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Node each link enters."""

    @property
    def link_latency_ps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Latency of each link in picoseconds."""

    @property
    def link_bandwidth_Bps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Bandwidth of each link in bytes per second."""

    @property
    def link_model(self) -> str:
        """"pipelined": a link is busy m/B; "blocking": latency + m/B."""

    @property
    def forwarding(self) -> str:
        """How switches forward data: "cut_through" or "store_and_forward"."""

    @property
    def routing(self) -> str:
        """
        Which of several equal paths through switches messages take: "spread" (all of them, evenly), "destination" (one chosen by the destination) or "first".
        """

    @property
    def reduce_bandwidth_Bps(self) -> int:
        """Bytes per second that an NPU reduces; 0: reducing takes no time."""

    @property
    def family(self) -> str:
        """Name that the builder gave it, such as "torus"."""

    @property
    def dims(self) -> list[tuple[str, int]]:
        """
        Kind and size of each dimension, the fastest-running first; empty if there are none.
        """

    @property
    def symmetric(self) -> bool:
        """
        Whether translating the coordinates of all nodes maps the network to itself.
        """

    @property
    def names(self) -> list[str]:
        """Names of all nodes, or an empty list."""

    @property
    def faults(self) -> Faults | None:
        """
        What edits broke: dead and slow links, and dropped nodes; None if nothing.
        """

    def healthy(self) -> Topology:
        """
        Return the network without its faults, the same topology if it has none.
        """

    def node_name(self, node: int) -> str:
        """The node's name, or a default such as "npu 3"."""

    def unreachable_pair(self) -> tuple[int, int] | None:
        """
        Two NPUs, the first of which cannot reach the second; None if there are none.
        """

    def diameter(self, samples: int = 256) -> int:
        """
        Hops of the longest shortest path between NPUs, seen from up to `samples` of them.
        """

    def reversed(self) -> Topology:
        """
        Return the topology with all links reversed, and multicast and reduce exchanged; link ids stay.
        """

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def to_pandas(self) -> pandas.DataFrame:
        """
        The links as a pandas DataFrame, one row per link; needs pandas.

        The columns are link, src, dst, src_name, dst_name, latency_ps and bandwidth_Bps.
        """

    def __repr__(self) -> str: ...

def collective_kinds() -> list[dict[str, Any]]:
    """
    The records of the kinds that are stored without a list of chunks; see tacos.collective.KINDS.
    """

class CollectivePart:
    """One of the collectives that run at once."""

    def __init__(self, kind: str, size: int, chunks: int = 0, root: int = -1, group: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, inputs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, outputs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, input_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, output_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, reduces: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None: ...

    @property
    def kind(self) -> str: ...

    @property
    def label(self) -> str:
        """The kind as people write it, such as "all-reduce"."""

    @property
    def sums(self) -> bool:
        """Whether the value of any chunk is a sum."""

    @property
    def bus_factor(self) -> float:
        """busbw / algbw as in nccl-tests; 0 where undefined."""

    @property
    def size(self) -> int: ...

    @property
    def chunks(self) -> int:
        """Pieces per unit; 0: not chosen yet."""

    @property
    def root(self) -> int:
        """Position of the root in the group, or -1."""

    @property
    def group(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def bytes(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def inputs(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def outputs(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def input_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def output_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def reduces(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

class Collective:
    """
    The chunks that each NPU holds at the start, and those that it must hold at the end.

    Made by the functions of tacos.collective. Named collectives are stored symbolically; the
    pre- and postcondition columns are generated on demand.
    """

    def __init__(self, npus: int, parts: Sequence[CollectivePart]) -> None: ...

    @property
    def npus(self) -> int:
        """Number of NPUs of the network."""

    @property
    def parts(self) -> list[CollectivePart]:
        """The collectives that run at once."""

    @property
    def resolved(self) -> bool:
        """Whether the number of chunks is chosen."""

    @property
    def kind(self) -> str:
        """Kind of the parts, or "mixed"."""

    @property
    def label(self) -> str:
        """The kind as people write it, such as "all-reduce"."""

    @property
    def chunks(self) -> int:
        """Number of chunks in all parts."""

    @property
    def size_bytes(self) -> int:
        """Size as nccl-tests counts it: the parts' common size, or their sum."""

    @property
    def bus_factor(self) -> float:
        """busbw / algbw as in nccl-tests; 0 where undefined."""

    def with_chunks(self, chunks: int) -> Collective:
        """Return the same collective with all unset chunk counts set."""

    def resized(self, size_bytes: int) -> Collective:
        """Return the same collective scaled to this size; sizes are rounded up."""

    def chunk_bytes(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Size of every chunk in bytes."""

    def reduces(self, chunk: int) -> bool:
        """Whether the chunk's value is the sum of its inputs."""

    def inputs(self, chunk: int) -> list[int]:
        """NPUs that hold the chunk, or a contribution to it, at the start."""

    def outputs(self, chunk: int) -> list[int]:
        """NPUs that must hold the chunk at the end."""

    def precondition(self) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int32]]:
        """Columns (chunk, NPU): the chunks that each NPU holds at the start."""

    def postcondition(self) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int32]]:
        """Columns (chunk, NPU): the chunks that each NPU must hold at the end."""

    def reversed(self) -> Collective:
        """
        Return the collective with inputs and outputs exchanged: all-gather <-> reduce-scatter, and so on.
        """

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __repr__(self) -> str: ...

class Routes:
    """
    A table of routes that transfers refer to.

    Route r uses the links links[link_begin[r]:link_begin[r + 1]]; kinds[r] is 0 for a path, 1 for a
    multicast tree, 2 for a reduce tree and 3 for a spread route, over whose paths a chunk divides evenly.
    """

    def __init__(self, topology: Topology, kinds: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], link_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], links: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def count(self) -> int:
        """Number of routes."""

    @property
    def kinds(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def link_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def links(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def shares(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        Per entry of `links`: the share of a chunk that crosses it, less than 1 in spread routes only.
        """

    def sources(self, route: int) -> list[int]:
        """Nodes at which the route begins."""

    def destinations(self, route: int) -> list[int]:
        """Nodes at which the route ends."""

    def __reduce__(self) -> tuple[Any, ...]: ...

def shortest_routes(topology: Topology, src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], progress: object | None = None) -> Routes:
    """
    Paths for algorithms that do not know the topology, one per pair of NPUs.
    """

def port_routes(routes: Routes) -> Routes:
    """
    Return the table with each path through switches replaced by the route that switches choose between its ports.
    """

def message_routes(routes: Routes, progress: object | None = None) -> Routes:
    """
    Return the table with each route between two NPUs replaced by the one that a program's messages take.
    """

def channel_routes(topology: Topology, src: int, dst: int) -> list[list[int]]:
    """
    Return the routes that the channels between two NPUs take in turn, each a list of links.

    They are the parallel links between the two or, where both plug into several switches, the two links through each of the
    fastest. The list is empty if there are fewer than two of them; then all channels take the route of :func:`shortest_routes`.
    """

class Schedule:
    """
    All transfers of a collective, with their times.

    Immutable. Transfers that share route, operation and what they read form a lane; a transfer is a
    chunk and a start in units of `quantum_ps`. An orbit stores the transfers of representatives and a
    symmetry instead of all transfers; expand() writes them out.
    """

    def __init__(self, *, collective: Collective, routes: Routes, lane_route: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], lane_op: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], lane_reads: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], lane_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], chunk: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], start: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], quantum_ps: int, orders: Sequence[int] = [], node_image: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, link_image: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, provenance: str = '{}', engine: str = '', bound_ps: int | None = None, in_switch_bound_ps: int | None = None, consistent: bool = True, cut_short: bool = False, matched_ports: bool = False, rejected: Sequence[str] = [], name: str = '', dialect: str = '', protocol: str = '', min_bytes: int = 0, max_bytes: int = 0, threads_per_block: int = 0, executed_ps: int | None = None, target: str | None = None, given_away: bool = False) -> None:
        """
        Check that the columns are consistent.

        Columns must have the same types as the properties of the same names; nothing is converted.
        With given_away=True, `chunk` and `start` are used without copying; do not write to them.
        """

    @property
    def topology(self) -> Topology: ...

    @property
    def collective(self) -> Collective: ...

    @property
    def routes(self) -> Routes: ...

    @property
    def form(self) -> str:
        """"packed" or "orbit"."""

    @property
    def lane_route(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Route of each lane."""

    @property
    def lane_op(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Per lane: 0 copy, 1 reduce."""

    @property
    def lane_reads(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Per lane: 0 reads the source's input, 1 its acc."""

    @property
    def lane_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """First transfer of each lane, then the number of transfers."""

    @property
    def chunk(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]:
        """Chunk of each stored transfer."""

    @property
    def start(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]:
        """
        Starts in units of quantum_ps: per lane those of leg 0, then of leg 1, …
        """

    @property
    def quantum_ps(self) -> int:
        """Unit of the starts in picoseconds."""

    @property
    def orders(self) -> list[int]:
        """Orders of the symmetry's generators; empty for a packed schedule."""

    @property
    def node_image(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Image of each node under each generator, generator by generator."""

    @property
    def link_image(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Image of each link under each generator, generator by generator."""

    @property
    def transfers(self) -> int:
        """Number of transfers."""

    @property
    def stored_transfers(self) -> int:
        """Number of stored transfers; an orbit stores only its representatives."""

    @property
    def memory_bytes(self) -> int:
        """Bytes the columns take."""

    @property
    def expanded_bytes(self) -> int:
        """Bytes that expand() will take."""

    @property
    def time_ps(self) -> int:
        """
        Arrival of the last chunk in picoseconds, if every link keeps the schedule's order.
        """

    @property
    def time_s(self) -> float:
        """
        Arrival of the last chunk in seconds, if every link keeps the schedule's order.
        """

    @property
    def executed_s(self) -> float:
        """
        How long the schedule takes in seconds when its target executes it, see
        tacos.execution; computed on first use. This is the time that all commands print.
        """

    @property
    def executed_ps(self) -> int | None:
        """`executed_s` in picoseconds; None: not computed yet."""

    @property
    def target(self) -> str | None:
        """
        What the executed time is for, one of tacos.execution.targets(); None: the slowest of three rules for links counts.
        """

    def with_executed(self, executed_ps: int | None, target: str | None) -> Schedule:
        """
        Return the same schedule with its executed time for a target; None computes the time on first use.
        """

    @property
    def algbw_Bps(self) -> float:
        """Size / executed time, as nccl-tests defines it."""

    @property
    def busbw_Bps(self) -> float:
        """
        algbw times nccl-tests' factor for the collective; 0 where it defines none.
        """

    @property
    def efficiency(self) -> float | None:
        """Bound / executed time, or None where the bound was not computed."""

    @property
    def provenance(self) -> dict[str, Any]:
        """How the schedule was made: engine, seed, options, bound."""

    def with_provenance(self, provenance: dict[str, Any]) -> Schedule:
        """Return the same schedule with a different provenance."""

    @property
    def engine(self) -> str:
        """Name of the engine that made the schedule, or an empty string."""

    @property
    def bound_ps(self) -> int | None:
        """
        Lower bound on the time of any schedule of this problem, in picoseconds; None: not computed.
        """

    @property
    def in_switch_bound_ps(self) -> int | None:
        """
        The bound that sums in switches would have, in picoseconds, if the schedule is for a target without them; else None.
        """

    @property
    def consistent(self) -> bool:
        """False if NPUs are known to end with different bits of a sum."""

    @property
    def cut_short(self) -> bool:
        """Whether a time limit ended the search for the schedule."""

    @property
    def matched_ports(self) -> bool:
        """
        Whether each port of a switch between boxes has one peer in the schedule.
        """

    @property
    def rejected(self) -> list[str]:
        """Why the search rejected other answers, one sentence each."""

    @property
    def name(self) -> str:
        """
        Name in the file that the schedule was lifted from, or an empty string.
        """

    @property
    def dialect(self) -> str:
        """Dialect of that file, or an empty string."""

    @property
    def protocol(self) -> str:
        """
        Protocol that the file names, or that NCCL would use; or an empty string.
        """

    @property
    def min_bytes(self) -> int:
        """Smallest size that the file is for."""

    @property
    def max_bytes(self) -> int:
        """Largest size that the file is for; 0: no limit."""

    @property
    def threads_per_block(self) -> int:
        """Threads per block that the file names; 0: none."""

    def with_facts(self, *, engine: str | None = None, bound_ps: int | None = None, in_switch_bound_ps: int | None = None, consistent: bool | None = None, cut_short: bool | None = None, matched_ports: bool | None = None, rejected: Sequence[str] | None = None, name: str | None = None, dialect: str | None = None, protocol: str | None = None, min_bytes: int | None = None, max_bytes: int | None = None, threads_per_block: int | None = None) -> Schedule:
        """
        Return the same schedule with other values of these fields; None keeps a field.
        """

    def rows(self, *, npu: int | str | None = None, link: int | str | tuple[int | str, int | str] | None = None) -> dict[str, numpy.typing.NDArray[Any]]:
        """
        Transfers as columns ordered by start: all, one NPU's, or one link's.

        An NPU is a number or a name, a link a number or a pair of nodes.
        Without an NPU and a link, an orbit returns its stored transfers. The rows of an NPU or a link are those
        of the whole schedule; their `transfer` and `route` name the stored ones that they are images of.
        """

    def to_pandas(self) -> pandas.DataFrame:
        """
        The transfers as a pandas DataFrame with the columns of `rows`; needs pandas.

        `op` and `reads` are names ("copy" or "reduce", "input" or "acc"), and `src_name` and `dst_name` are
        added.
        """

    def to_arrow(self) -> pyarrow.Table:
        """
        The transfers as a pyarrow Table with the columns of `rows`; needs the extra ``arrow``.

        Polars, DuckDB and others accept the schedule itself, without a copy and without pyarrow.
        """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """
        The transfers for any library that supports the Arrow PyCapsule interface.
        """

    def link_bytes(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Bytes that each link carries."""

    def link_utilisation(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,), writable=False)]:
        """Share of the schedule's time that each link is busy."""

    def dependencies(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        Columns (begin, writer): transfer t reads the data that transfers writer[begin[t]:begin[t + 1]] wrote.

        Each reader of a sum of n arrivals lists all n of them.
        """

    def expand(self) -> Schedule:
        """Return the packed form with all transfers; expanded_bytes is its size."""

    def reverse(self, progress: object | None = None) -> Schedule:
        """
        Return a schedule of the reversed collective on the reversed topology: the same transfers backwards.
        """

    def then(self, second: Schedule, collective: Collective, progress: object | None = None) -> Schedule:
        """
        Return this schedule followed by `second`, for `collective`; each chunk continues as soon as it is ready.
        """

    def __eq__(self, other: object | None) -> bool:
        """Equal topology, collective and transfers; provenance may differ."""

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __repr__(self) -> str: ...

def retime(collective: Collective, routes: Routes, route: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], chunk: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], step: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], op: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], reads: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], provenance: str = '{}', progress: object | None = None, sweep: bool | None = None) -> Schedule:
    """
    Earliest start times of an ordered list of transfers; see tacos.schedule.retime. `sweep`
    forces one sweep over the list (True) or the event loop (False).
    """

def synthesize_symmetric(topology: Topology, collective: Collective, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """
    Solve a collective for one NPU of a symmetric network; see tacos.synth.symmetric.
    """

def translations(topology: Topology) -> tuple[list[int], numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int32]]:
    """
    The translations by one along each dimension: orders, node_image and link_image of a schedule.
    """

class Violation:
    """One error in a schedule, a program or a workload."""

    @property
    def rule(self) -> str:
        """The violated rule, as listed at tacos.verify."""

    @property
    def transfer(self) -> int:
        """Stored transfer, step of a program, row of a workload, or -1."""

    @property
    def time_ps(self) -> int:
        """Time in picoseconds, or -1."""

    @property
    def chunk(self) -> int:
        """Chunk, or -1."""

    @property
    def link(self) -> int:
        """Link, or -1."""

    @property
    def message(self) -> str:
        """One sentence that says what is wrong."""

    def __repr__(self) -> str: ...

class VerifyReport:
    """The result of the verifier."""

    @property
    def checked(self) -> int:
        """Number of stored transfers, or steps, that were checked."""

    @property
    def found(self) -> int:
        """Number of violations, including those beyond the limit."""

    @property
    def violations(self) -> list[Violation]:
        """The violations, up to the limit."""

    @property
    def consistent(self) -> bool:
        """Whether all NPUs that end with a sum add it up in the same order."""

    @property
    def difference(self) -> str:
        """A sentence that names two NPUs which do not, or an empty string."""

def verify(schedule: Schedule, *, allow_unneeded: bool = False, limit: int = 100, threads: int = 0, block_transfers: int = 0, progress: object | None = None) -> VerifyReport:
    """Check a schedule; see tacos.verify."""

def verify_program(program: Program, *, limit: int = 100, progress: object | None = None) -> VerifyReport:
    """Check a program; see tacos.verify."""

def verify_workload(workload: Workload, *, limit: int = 100) -> VerifyReport:
    """Check a workload; see tacos.verify."""

class Bottleneck:
    """A set of nodes and the bytes that must cross its boundary."""

    @property
    def nodes(self) -> list[int]:
        """The nodes of the set; of several sets, those of the first."""

    @property
    def leaving(self) -> bool:
        """Whether its outgoing links are the limit, or its incoming links."""

    @property
    def sets(self) -> int:
        """Number of disjoint sets of this kind that limit the time together."""

    @property
    def set_of(self) -> list[int]:
        """
        The set of each node, -1 if none; empty if there is one set, or if all are images of the first.
        """

    @property
    def bytes(self) -> float:
        """Bytes that must pass."""

    @property
    def links(self) -> int:
        """Number of these links."""

    @property
    def bandwidth_Bps(self) -> float:
        """Total bandwidth of these links."""

class BoundReport:
    """The result of a search for lower bounds."""

    @property
    def time_ps(self) -> int:
        """The largest bound."""

    @property
    def latency_ps(self) -> int:
        """The time of the longest path that a chunk needs."""

    @property
    def src(self) -> int:
        """Start of that path, or -1."""

    @property
    def dst(self) -> int:
        """End of that path, or -1."""

    @property
    def all_distances(self) -> bool:
        """Whether all distances were computed."""

    @property
    def bandwidth_s(self) -> float:
        """Time of the narrowest cut for a fluid, without latencies and chunks."""

    @property
    def bottleneck(self) -> Bottleneck:
        """The narrowest cut; without nodes if there is none."""

    @property
    def timed_ps(self) -> int:
        """The bound by latencies and bandwidths together."""

    @property
    def timed_nodes(self) -> list[int]:
        """The nodes of the cut of that bound."""

    @property
    def timed_leaving(self) -> bool:
        """
        Whether the links out of these nodes are the limit, or those into them.
        """

    @property
    def in_chunks(self) -> bool:
        """Whether the bound counts whole chunks."""

    @property
    def all_cuts(self) -> bool:
        """Whether every NPU's cuts were searched."""

    @property
    def lines(self) -> bool:
        """Whether traffic between all pairs was counted along the dimensions."""

    @property
    def line_s(self) -> float:
        """Time for all pairs in the busiest dimension."""

    @property
    def line(self) -> int:
        """That dimension, or -1."""

    @property
    def even_lines(self) -> bool:
        """Whether all links of each dimension have one speed."""

    @property
    def two_halves(self) -> bool:
        """
        Whether a reduce-scatter and an all-gather reach an all-reduce's bound.
        """

def bound(topology: Topology, collective: Collective, progress: object | None = None) -> BoundReport:
    """See tacos.bound."""

def distance_sum(topology: Topology, collective: Collective, length: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], progress: object | None = None) -> float:
    """
    Sum of bytes times distance over all pairs, for given lengths of the links.
    """

def rising_lengths(topology: Topology, collective: Collective, rounds: int, progress: object | None = None) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
    """Lengths of the links that rise with the load of all pairs' bytes."""

def simulate(schedule: Schedule, routes: Routes, *, timing: str, congestion: bool, record: bool, slow_link: numpy.typing.NDArray[numpy.int32], slow_time_ps: numpy.typing.NDArray[numpy.int64], slowdown: numpy.typing.NDArray[numpy.int64], late_ps: numpy.typing.NDArray[numpy.int64], reduce_slowdown: numpy.typing.NDArray[numpy.int64], jitter_ps: int, seed: int, progress: object | None = None, shortcut: bool | None = None) -> dict[str, numpy.typing.NDArray[Any]]:
    """
    Simulate a packed schedule over routes, one per lane; see tacos.simulate.

    Rows (slow_link, slow_time_ps, slowdown) make links slower from a time on, in units of 1 / 2**20; 0 is
    down. `shortcut` forces a shortcut (True) or the event loop (False).
    """

def unchanged_run(schedule: Schedule, routes: Routes, progress: object | None = None) -> dict[str, numpy.typing.NDArray[Any]] | None:
    """
    Return the result of simulate without a record, if a quick check shows that an undisturbed run equals the schedule; otherwise None.
    """

def run_program(program: Program, chunk_bytes: numpy.typing.NDArray[numpy.int64], topology: Topology, *, timing: str, record: bool, limit: int, link_begin: numpy.typing.NDArray[numpy.int64], links: numpy.typing.NDArray[numpy.int32], position: numpy.typing.NDArray[numpy.int64], progress: object | None = None) -> dict[str, numpy.typing.NDArray[Any]]:
    """Simulate a program thread by thread; see tacos.simulate."""

def lower_paced(schedule: Schedule, *, in_place: bool = False, timed: bool = False, limit: int | None = None, progress: object | None = None) -> tuple[Program, int, int, int, int]:
    """
    The program of a schedule with the window that runs fastest, that window, the program's times with
    links that serve first come, first served, and with shared links (-1: not run), and the number of
    simulations. If no window is below the limit, both times are at or above it.
    """

def paced_by_orbit(schedule: Schedule, *, limit: int | None = None, progress: object | None = None) -> tuple[int, int, int] | None:
    """
    The times of an orbit's program and the number of simulations, as lower_paced; None if it cannot be executed by orbit.
    """

def folded(schedule: Schedule, progress: object | None = None) -> Schedule | None:
    """
    The orbit that a packed schedule expands, in chunks of the size of the largest one; None without a symmetry.
    """

def departures(schedule: Schedule) -> dict[str, numpy.typing.NDArray[Any]]:
    """
    The channel of every transfer in the program of a schedule, by (src, dst, start).
    """

class OrderProblem:
    """
    Messages between places, and their costs between hosts; see tacos.reorder.
    """

    def __init__(self, hosts: int, *, src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], term_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], size_class: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], weight: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ring: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], latency_counts: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], latency: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], bytes: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]], route_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], route_links: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], link_bytes: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]]) -> None: ...

    def cost(self, order: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
        """Cost of an order in picoseconds."""

    def exact(self, start: numpy.typing.NDArray[numpy.int32], *, fixed: bool, nodes: int, progress: object | None = None) -> tuple[numpy.typing.NDArray[numpy.int32], int, bool]:
        """The cheapest order, its cost, and whether that is proven."""

    def place_search(self, pair: Sequence[numpy.typing.NDArray[numpy.int64]], start: numpy.typing.NDArray[numpy.int32], *, seed: int, work: int, progress: object | None = None) -> numpy.typing.NDArray[numpy.int32]:
        """A cheaper order, by swaps of two hosts."""

def tour_search(hop: numpy.typing.NDArray[numpy.int64], start: numpy.typing.NDArray[numpy.int32], *, seed: int, work: int, progress: object | None = None) -> numpy.typing.NDArray[numpy.int32]:
    """A short closed tour, by local search."""

def one_tree_bound(hop: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], hosts: int, *, upper: int, rounds: int, progress: object | None = None) -> float:
    """A lower bound on the length of closed tours, by one-trees with prices."""

def assignment_bound(hop: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], hosts: int, *, progress: object | None = None) -> int:
    """A lower bound on the length of closed tours, by linear assignment."""

def greedy(topology: Topology, collective: Collective, *, seed: int = 0, threads: int = 0, steps: bool = True, backwards: bool = False, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """A schedule of a collective without sums; see tacos.synth.greedy."""

def steiner_schedule(topology: Topology, collective: Collective, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """A schedule over trees through any NPUs; see tacos.synth.steiner."""

def balanced(collective: Collective, routes: Routes, *, hop: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], box: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], chunk: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], least_s: float, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """
    A schedule of messages between pairs, through relays in their boxes; see tacos.synth.balanced.
    """

def multitree(topology: Topology, roots: numpy.typing.NDArray[numpy.int32], member_begin: numpy.typing.NDArray[numpy.int64], members: numpy.typing.NDArray[numpy.int32], progress: object | None = None) -> tuple[Routes, numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int32]]:
    """
    Trees that grow together: routes, and of each edge its tree, step and route; see tacos.synth.baselines.multitree.
    """

def lay_out_trees(parent: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], place: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], routes: Routes, weight: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, fixed_root: bool, trials: int, progress: object | None = None) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
    """
    An assignment of ranks to the places of trees whose edges share few links; see tacos.synth.baselines.trees.
    """

def refine(schedule: Schedule, *, seed: int = 0, hops: int, goal_ps: int = 0, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """
    The schedule after local search over what spreads finished values; see tacos.refine.
    """

def justify(schedule: Schedule, *, progress: object | None = None) -> Schedule:
    """The schedule after its transfers were moved in time; see tacos.refine."""

def meet_at_leaders(topology: Topology, collective: Collective, choices: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int], bool]], *, seed: int = 0, hops: int, goal_ps: int = 0, most_ps: int = 0, first: int = 0, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """
    An all-reduce that meets at some of these sets of leaders: NPUs, the sizes of the groups of their stages, and receivers; see tacos.synth.leaders.
    """

def greedy_stepwise(topology: Topology, collective: Collective) -> bool:
    """Whether greedy works step by step, with 9 bytes per transfer."""

def greedy_step_problem(topology: Topology, collective: Collective, seed: int = 0) -> dict[str, Any]:
    """
    The input of the step-by-step matching, as flat columns; see cpp/synth/greedy_steps.hpp.
    """

class Forest:
    """Trees that span a group, with weights; see tacos.synth.forest."""

    @property
    def routes(self) -> Routes: ...

    @property
    def root(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Root of each tree."""

    @property
    def weight(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Weight of each tree."""

    @property
    def hop_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """The first hop of each tree, then their number."""

    @property
    def hop(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """
        The routes of all trees; the route into a node precedes those out of it.
        """

    @property
    def depth(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Hops from the root to the end of each hop."""

    @property
    def node_image(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """
        Image of each node under each generator of the symmetry; empty without one.
        """

    @property
    def link_image(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def demand_weight(self) -> int:
        """Total weight of the trees of a root with a demand of 1."""

    @property
    def unit_Bps(self) -> int: ...

    @property
    def unit_parts(self) -> int:
        """
        A tree of weight w carries w * unit_Bps / unit_parts * rate bytes per second.
        """

    @property
    def rate(self) -> float:
        """Share of the rate that the cuts allow; below 1 if the trees miss it."""

    @property
    def tolerance(self) -> float:
        """Relative error by which bandwidths were rounded down."""

def pack_forest(topology: Topology, members: numpy.typing.NDArray[numpy.int32], roots: numpy.typing.NDArray[numpy.int32], amounts: numpy.typing.NDArray[numpy.int64], slack: float = 0.0, progress: object | None = None) -> Forest:
    """
    Trees from roots to all members, as fast as the cuts allow; see tacos.synth.forest.
    """

def narrowest_cut(topology: Topology, members: numpy.typing.NDArray[numpy.int32], roots: numpy.typing.NDArray[numpy.int32], amounts: numpy.typing.NDArray[numpy.int64], progress: object | None = None) -> tuple[numpy.typing.NDArray[numpy.uint8], int, int]:
    """
    The nodes of the cut that limits the rates of roots most, the demands in it, and its bandwidth; see tacos.synth.owners.
    """

def reroute_forest(forest: Forest, topology: Topology, begin: numpy.typing.NDArray[numpy.int64], links: numpy.typing.NDArray[numpy.int32]) -> Forest:
    """
    Trees whose links are replaced by paths of another network; see tacos.synth.forest.logical.
    """

def schedule_forest(forest: Forest, holder: numpy.typing.NDArray[numpy.int32], collective: Collective, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """
    A schedule that sends chunks from their holders down the trees; see tacos.synth.forest.
    """

def pack_two_way(topology: Topology, members: numpy.typing.NDArray[numpy.int32], count: int, progress: object | None = None) -> tuple[Forest, Forest] | None:
    """Trees that carry sums up and results down; see tacos.synth.forest."""

def schedule_all_reduce(up: Forest, down: Forest, holder: numpy.typing.NDArray[numpy.int32], collective: Collective, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """
    A schedule that sends sums up to their holders and results down; see tacos.synth.forest.
    """

def team_exchange(topology: Topology, members: numpy.typing.NDArray[numpy.int32], team: int, collective: Collective, provenance: str = '{}', progress: object | None = None) -> Schedule | None:
    """
    An all-reduce of few bytes, whose sums cross between teams once; see tacos.synth.forest.
    """

def pack_orbits(topology: Topology, progress: object | None = None) -> Forest | None:
    """
    The trees of some NPUs; those of the others are images of them; see tacos.synth.forest.
    """

def schedule_orbits(topology: Topology, collective: Collective, forward: Forest | None = None, backward: Forest | None = None, provenance: str = '{}', progress: object | None = None) -> Schedule | None:
    """
    A schedule from the trees of some NPUs and their images; see tacos.synth.forest.
    """

def all_alike(topology: Topology) -> bool:
    """
    Whether translations along the dimensions map the network to itself and move every link.
    """

class Program:
    """
    A collective algorithm as the ranks run it.

    Ranks have threads, and threads have steps, which move slots of an input, an output and a scratch
    buffer. A program has no sizes and no times. tacos.lower and tacos.load make programs. They are
    immutable; the columns are read-only NumPy arrays.
    """

    def __init__(self, *, collective: Collective, in_place: bool, scratch_slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], thread_rank: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], thread_channel: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], thread_send_peer: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], thread_recv_peer: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], thread_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], op: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], src_buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], src_slot: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst_buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dst_slot: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], count: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], peer: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], comes_from: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dep_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dep: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], provenance: str = '{}', size_bytes: int = 0, part_bytes: Sequence[int] = [], window: int = 0, engine: str = '', name: str = '', format: str = '', dialect: str = '', protocol: str = '', min_bytes: int = 0, max_bytes: int = 0, threads_per_block: int = 0, either_place: bool = False) -> None:
        """
        Check that the columns are consistent.

        Columns must have the same types as the properties of the same names; nothing is converted.
        """

    @property
    def collective(self) -> Collective:
        """The program's collective; only the proportions of its sizes matter."""

    @property
    def in_place(self) -> bool:
        """Whether the input and output slot of a chunk are the same memory."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""

    @property
    def threads(self) -> int:
        """Number of threads of all ranks."""

    @property
    def steps(self) -> int:
        """Number of steps of all ranks."""

    @property
    def scratch_slots(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Scratch slots of each rank."""

    @property
    def thread_rank(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Rank of each thread, ascending."""

    @property
    def thread_channel(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Channel of each thread."""

    @property
    def thread_send_peer(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """The rank that a thread sends to, or -1."""

    @property
    def thread_recv_peer(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """The rank that a thread receives from, or -1."""

    @property
    def thread_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """First step of each thread, then the number of steps."""

    @property
    def op(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Operation of each step: an index into STEP_OPS."""

    @property
    def src_buffer(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """0 input, 1 output, 2 scratch, 3 none."""

    @property
    def src_slot(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """First slot that a step reads, or -1."""

    @property
    def dst_buffer(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """0 input, 1 output, 2 scratch, 3 none."""

    @property
    def dst_slot(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """First slot that a step writes, or -1."""

    @property
    def count(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Number of slots that a step moves."""

    @property
    def peer(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """The other rank of a one-sided step, a signal or a wait; else -1."""

    @property
    def comes_from(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """
        The step that sends or signals what a step receives or waits for, or -1.
        """

    @property
    def dep_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """First dependency of each step, then their number."""

    @property
    def dep(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Steps of the same rank that must be complete first."""

    def input_chunks(self, rank: int) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]:
        """The chunk in each slot of a rank's input buffer."""

    def output_chunks(self, rank: int) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]:
        """The chunk that each slot of a rank's output buffer must end with."""

    def describe(self, step: int) -> str:
        """Rank, thread and number of a step, for messages."""

    @property
    def provenance(self) -> dict[str, Any]:
        """Name, protocol, limits, and how the program was made."""

    def with_provenance(self, provenance: dict[str, Any]) -> Program:
        """Return the same program with a different provenance."""

    @property
    def size_bytes(self) -> int:
        """Original size of the collective in bytes; 0: unknown."""

    @property
    def part_bytes(self) -> list[int]:
        """Sizes of the parts, if there are several and they are known."""

    @property
    def window(self) -> int:
        """
        Most messages of a rank that cross a limiting link at once; 0: any number.
        """

    @property
    def engine(self) -> str:
        """
        Engine of the schedule that the program was lowered from, or an empty string.
        """

    @property
    def name(self) -> str:
        """Name in the file that the program was read from, or an empty string."""

    @property
    def format(self) -> str:
        """Format of the file that the program was read from, or an empty string."""

    @property
    def dialect(self) -> str:
        """Dialect of that file, or an empty string."""

    @property
    def protocol(self) -> str:
        """Protocol that the file names, or an empty string."""

    @property
    def min_bytes(self) -> int:
        """Smallest size that the file is for."""

    @property
    def max_bytes(self) -> int:
        """Largest size that the file is for; 0: no limit."""

    @property
    def threads_per_block(self) -> int:
        """Threads per block that the file names; 0: none."""

    @property
    def either_place(self) -> bool:
        """Whether the file is for calls both in place and out of place."""

    def with_facts(self, *, size_bytes: int | None = None, part_bytes: Sequence[int] | None = None, window: int | None = None, engine: str | None = None, name: str | None = None, format: str | None = None, dialect: str | None = None, protocol: str | None = None, min_bytes: int | None = None, max_bytes: int | None = None, threads_per_block: int | None = None, either_place: bool | None = None) -> Program:
        """
        Return the same program with other values of these fields; None keeps a field.
        """

    def with_in_place(self, in_place: bool) -> Program:
        """
        Return the same steps with input and output in the same memory, or in different memory.
        """

    def __eq__(self, other: object | None) -> bool:
        """Equal collective, threads and steps; provenance may differ."""

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __repr__(self) -> str: ...

def lower(schedule: Schedule, *, in_place: bool = False, rank: int | None = None, window: int = 0, reuse_scratch: bool = True, progress: object | None = None) -> Program:
    """The program of a schedule; see tacos.lower."""

def lift(program: Program, topology: Topology, size_bytes: int, *, provenance: str = '{}', progress: object | None = None) -> Schedule:
    """The schedule of a program; see tacos.lift."""

class Workload:
    """
    The computations, messages and memory accesses of each rank, with their dependencies.

    One row per node, ordered by rank. The functions of tacos.workload make workloads. They are immutable;
    the columns are read-only NumPy arrays.
    """

    def __init__(self, *, npus: int, rank: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], kind: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], peer: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, tag: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, duration_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, flops: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, comm: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, id: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, on_cpu: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, group: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, priority: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, dims: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, name: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, dep_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, dep: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, groups: Sequence[tuple[int, Sequence[int]]] = [], names: Sequence[str] = []) -> None:
        """
        Check that the columns are consistent.

        Columns must have the same types as the properties of the same names; nothing is converted. Omitted
        columns have defaults; tacos.workload.from_nodes converts, broadcasts and sorts.
        """

    @property
    def npus(self) -> int:
        """Number of ranks."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def rank(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Rank of each node, ascending."""

    @property
    def kind(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """0 send, 1 recv, 2 comp, 3 coll, 4 load, 5 store."""

    @property
    def peer(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """The other rank of a send or recv, otherwise -1."""

    @property
    def bytes(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """
        Size of a message or collective, or the bytes that a comp, load or store moves in memory.
        """

    @property
    def tag(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Tag of a send or recv."""

    @property
    def duration_ps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Duration of a comp in picoseconds; 0 if unknown."""

    @property
    def flops(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Floating-point operations of a comp; 0 if unknown."""

    @property
    def comm(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Kind of a collective: an index into tacos.workload.COMMS."""

    @property
    def id(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Number of the node within its rank."""

    @property
    def on_cpu(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """1 for a comp that does not occupy the NPU."""

    @property
    def group(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Group of a collective, 0 for all ranks."""

    @property
    def priority(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Priority of a collective."""

    @property
    def dims(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Dimensions that a collective uses, as bits."""

    @property
    def name(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Name of each node: an index into `names`."""

    @property
    def dep_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Offset of each node's dependencies in `dep`, then their number."""

    @property
    def dep(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Rows that nodes wait for."""

    @property
    def groups(self) -> list[tuple[int, list[int]]]:
        """Numbers and ranks of the groups, by number."""

    @property
    def names(self) -> list[str]:
        """The distinct names of nodes."""

    def rows(self) -> dict[str, numpy.typing.NDArray[Any]]:
        """All columns except the dependencies, by name."""

    def to_pandas(self) -> pandas.DataFrame:
        """
        The nodes as a pandas DataFrame with the columns of `rows`; needs pandas.

        `kind` and `comm` are names such as "send" and "all_reduce".
        """

    def to_arrow(self) -> pyarrow.Table:
        """
        The nodes as a pyarrow Table with the columns of `rows`; needs the extra ``arrow``.

        Polars, DuckDB and others accept the workload itself, without a copy and without pyarrow.
        """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The nodes for any library that supports the Arrow PyCapsule interface."""

    def describe(self, row: int) -> str:
        """A node in words, for messages."""

    def __eq__(self, other: object | None) -> bool:
        """Equal ranks, nodes, groups and names."""

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __repr__(self) -> str: ...

class ProgramNodes:
    """The nodes of a program, and the step that each belongs to."""

    @property
    def program(self) -> Program:
        """The program."""

    @property
    def workload(self) -> Workload:
        """The nodes that carry out the program."""

def program_nodes(program: Program, chunk_bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, reduce_Bps: int, src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], chunk: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], link: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], progress: object | None = None) -> ProgramNodes:
    """
    The nodes that carry out a program; see tacos.program_nodes.

    On each link, messages leave in the order of the rows (src, dst, chunk, link).
    """

def chakra_file(workload: Workload, rank: int) -> bytes:
    """The Chakra trace of a rank."""

def chakra_program_file(nodes: ProgramNodes, rank: int, about: str) -> bytes:
    """
    The Chakra trace of a rank, with the steps of the program and a note in the metadata.
    """

class ChakraTraces:
    """Chakra traces as columns: one row per node, by rank."""

    def __init__(self, chain_streams: bool = True) -> None: ...

    def add(self, file: bytes) -> None:
        """Read the trace of the next rank."""

    def check_peers(self) -> None:
        """Refuse messages with a rank that has no trace."""

    @property
    def is_program(self) -> bool:
        """Whether the traces are an algorithm and not a workload."""

    @property
    def ranks(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def about(self) -> list[bytes]:
        """The note of tacos in each rank's metadata."""

    @property
    def rank(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def group_names(self) -> list[bytes]:
        """Names of groups that are not numbers."""

    @property
    def process_groups(self) -> list[bytes]:
        """The texts of metadata nodes."""

    def workload(self, groups: Sequence[tuple[int, Sequence[int]]], named: Sequence[int]) -> Workload:
        """Move all nodes into a workload; the traces are empty afterwards."""

    def restored(self, *, collective: Collective, in_place: bool, scratch_slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], thread_rank: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], send_peer: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], recv_peer: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], channel: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], provenance: str) -> Program:
        """The program that tacos wrote."""

    def derived(self, provenance: str) -> Program:
        """A program of the messages in the traces."""

def astra_simulate(topology: Topology, dims: Sequence[tuple[int, int, int, int]], aware: bool, workload: Workload, algorithms: Sequence[Workload], algorithm_of: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], *, endpoint_delay_ns: int, memory_Bps: int, splits: int, active_chunks: int, queues: int, policy: str, local_bandwidth_aware: bool, rendezvous: bool, implementations: Sequence[Sequence[str]], roofline: bool, peak_flops: float, replay_only: bool, remote: tuple[str, int, int, int, int], record: bool, progress: object | None = None) -> dict[str, Any]:
    """ASTRA-sim's analytical simulation; see tacos.simulate.astra."""

def hash_set_order(keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], reference: bool = False) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]:
    """
    Distinct keys in the order of libstdc++'s hash set: ours, or that of this build's library.
    """

def pack(program: Program, *, channels: int, fusing_channels: int, steps: int, count: int, peers: int = 32, few_threads: bool = False, unit: int = 0, progress: object | None = None) -> Program:
    """
    The same algorithm in fewer, larger steps: neighbours merged, receives fused with sends.
    """

def keep_order(program: Program, *, channels: int, steps: int, peers: int, awaited: int = 2147483647, join: bool = False) -> Program:
    """
    The same threads within an executor's limits: one per connection and direction, in order.
    """

def stuck(program: Program, depth: int) -> int:
    """
    A step that never runs if a connection holds at most `depth` messages, or -1.
    """

def read_mscclpp(gpus: bytes, *, collective: str, in_place: bool, provenance: str) -> Program:
    """
    The program of an MSCCL++ plan, from the JSON text of its list of GPUs.
    """

MSCCLPP_MOST_OPS: int = 64

MSCCLPP_MOST_CHANNELS: int = 16

MSCCLPP_MOST_CHANNELS_PER_OP: int = 8

MSCCLPP_MOST_SEMAPHORES_PER_OP: int = 16

def write_perfetto(topology: Topology, *, link: numpy.typing.NDArray[numpy.int32], begin_ps: numpy.typing.NDArray[numpy.int64], end_ps: numpy.typing.NDArray[numpy.int64], transfer: numpy.typing.NDArray[numpy.int32], arrival_npu: numpy.typing.NDArray[numpy.int32], arrival_ps: numpy.typing.NDArray[numpy.int64], arrival_bytes: numpy.typing.NDArray[numpy.int64], arrival_transfer: numpy.typing.NDArray[numpy.int32], cause: numpy.typing.NDArray[numpy.int32], chunk: numpy.typing.NDArray[numpy.uint32], counters: list[tuple[str, str, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float64]]], about: str, sink: Callable[[bytes], object], progress: object | None = None) -> None:
    """
    Write a trace as Perfetto's protobuf, block by block; see tacos.simulate.trace_export.
    """

def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """
    Return the CRC-32 of data, as zlib.crc32 does; `before` is the checksum of the preceding bytes.
    """

def run_workload(routes: Routes, *, rank: numpy.typing.NDArray[numpy.int32], kind: numpy.typing.NDArray[numpy.uint8], duration_ps: numpy.typing.NDArray[numpy.int64], message: numpy.typing.NDArray[numpy.int32], dep_begin: numpy.typing.NDArray[numpy.int64], dep: numpy.typing.NDArray[numpy.int64], bytes: numpy.typing.NDArray[numpy.int64], connection: numpy.typing.NDArray[numpy.int32], connection_route: numpy.typing.NDArray[numpy.int32], progress: object | None = None) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    Start and end of each node of a workload, in picoseconds; see cpp/simulate/run_workload.hpp.
    """

class PipelineTimes:
    """When each stage of a pipeline runs each pass."""

    @property
    def stage(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Per pass, its stage; the passes of a stage follow each other in order."""

    @property
    def chunk(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Per pass, which part of the stage's layers."""

    @property
    def microbatch(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Per pass, its micro-batch."""

    @property
    def kind(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Per pass: 0 forward, 1 backward, 2 gradients of weights alone."""

    @property
    def start_ps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Per pass, when it starts, in picoseconds."""

    @property
    def end_ps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Per pass, when it ends, in picoseconds."""

    @property
    def in_flight(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Per stage, the most forward passes whose backward pass has not run."""

def pipeline(rule: int, stages: int, chunks: int, microbatches: int, blocking: bool, forward: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], backward: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], weight: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], send_forward: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], send_backward: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ready_start: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ready_end: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stretch_ppm: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> PipelineTimes:
    """
    Simulates a training pipeline; durations are in picoseconds, by stage and chunk.
    """

class RankExecutor:
    """
    One rank's share of a program, and the state of the current call.

    Endpoint.run drives it over TCP. Another driver calls start, carries out the sends and receives that
    ready() lists, and reports them with sent() and received() until finished.
    """

    def __init__(self, program: Program, rank: int) -> None:
        """Compile the share of a rank."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def program(self) -> Program:
        """The program of all ranks."""

    @property
    def sends_to(self) -> list[tuple[int, int]]:
        """Peer and channel of every connection on which data leave."""

    @property
    def receives_from(self) -> list[tuple[int, int]]:
        """Peer and channel of every connection on which data arrive."""

    def buffer_elements(self, count: int) -> tuple[int, int]:
        """
        Elements of this rank's input and output buffers, for a collective of count elements.
        """

    def start(self, source: int, target: int, count: int, dtype: str, op: str) -> None:
        """Begin a call on the memory at these addresses."""

    def ready(self) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]]:
        """
        The messages to carry that were not listed before, as columns:
        receives (1) or sends (0), step, peer, channel, tag, bytes.
        """

    def outgoing(self, step: int) -> list[tuple[int, int]]:
        """The memory ranges (address, bytes) that a step sends."""

    def reduces(self, step: int) -> bool:
        """
        Whether data that arrive for a step are added up, and must be passed to take().
        """

    def incoming(self, step: int) -> list[tuple[int, int]]:
        """
        The memory ranges (address, bytes) for the data of a step that does not reduce.
        """

    def take(self, step: int, data: int, bytes: int) -> None:
        """Store or add data that arrived for a step: whole elements, in order."""

    def sent(self, step: int) -> None:
        """Report that all data of a step were sent."""

    def received(self, step: int) -> None:
        """
        Report that all data of a step were passed to take() or stored at incoming().
        """

    def stored(self, peer: int) -> None:
        """Report that a peer has stored the data of a put."""

    def waiting(self) -> list[tuple[int, str]]:
        """The rank that each started step waits for, and the reason in words."""

    @property
    def finished(self) -> bool:
        """Whether all steps are complete."""

    def finish(self) -> None:
        """
        End a call: divide averages, and copy results back to the caller's buffers.
        """

class LinkWatch:
    """The speed of one link, message by message."""

    def __init__(self) -> None: ...

    def expect(self, rate: float, known: bool) -> None:
        """
        Set the expected speed in bytes per second and reset the watch. known: report a higher speed too; otherwise it is the least speed.
        """

    def add(self, algorithm: int, bytes: float, seconds: float, now: float) -> bool:
        """
        Record that bytes took some seconds, until now; return whether the state has changed.
        """

    def doubt(self) -> None:
        """Restart the trend: a message had arrived before the rank looked."""

    @property
    def state(self) -> str:
        """usual, slow or fast."""

    @property
    def rate(self) -> float:
        """Speed of the latest messages, in bytes per second."""

    @property
    def usual(self) -> float:
        """The speed to compare with; 0: not known yet."""

class RankWatch:
    """Time that ranks spend outside of calls."""

    def __init__(self) -> None: ...

    def start(self, away: float, now: float) -> None:
        """
        Record how many seconds this rank was outside of calls before the call that starts now.
        """

    def hear(self, peer: int, away: float) -> None:
        """Record the same for a peer, as it reported."""

    def judge(self, now: float) -> bool:
        """
        At the end of a call: return whether a peer has become slow or has recovered.
        """

    @property
    def slow(self) -> list[int]:
        """The slow ranks, which others wait for."""

class Endpoint:
    """A rank's TCP connections, and the calls that run over them."""

    def __init__(self, rank: int, size: int, timeout_s: float, report_s: float = 30.0, waiting: Callable[[int, str, float], None] | None = None) -> None:
        """
        timeout_s: how long a call may make no progress. waiting: called with a rank that is not in the call, the collective and the seconds, first after report_s and then at growing intervals.
        """

    def describe(self, algorithm: int, name: str) -> None:
        """Set the name of an algorithm in messages."""

    def hide(self, algorithm: int) -> None:
        """Exclude calls of an algorithm from the job's collectives."""

    def add(self, peer: int, channel: int, socket: int) -> None:
        """Take ownership of a connected socket, given by its descriptor."""

    def has(self, peer: int, channel: int) -> bool:
        """Whether there is such a connection."""

    def run(self, executor: RankExecutor, algorithm: int, source: int, target: int, count: int, dtype: str, op: str, joint: bool = False) -> int:
        """
        Run one call on the memory at these addresses. joint: each rank's result depends on the data of every rank. Return 1 if this rank observed something new, plus 2 if the ranks are to meet.
        """

    def heal(self) -> None:
        """
        From now on, a dead link ends a call, so that it can be repeated; a slow link calls a meeting.
        """

    def watch_links(self, whether: bool) -> None:
        """
        Whether to observe links and ranks; on by default, off to measure its cost.
        """

    def call_meeting(self) -> None:
        """All ranks are to meet after the next joint call; from any thread."""

    @property
    def broken(self) -> tuple[int, int]:
        """The dead link that ended a call, from one rank to another; -1: none."""

    def expect(self, peer: int, channel: int, outgoing: bool, rate: float, known: bool) -> None:
        """
        Set the expected speed of the link from or to a peer, in bytes per second; known: report a higher speed too.
        """

    def links(self) -> list[dict[str, Any]]:
        """
        Observations of each connection in both directions; call it from any thread.
        """

    def peers(self) -> list[dict[str, Any]]:
        """
        How long each peer was outside of calls, and whether that is longer than the others; call it between calls.
        """

    @property
    def away_s(self) -> float:
        """Seconds that this rank was outside of calls."""

    def calls(self) -> list[dict[str, Any]]:
        """
        The last calls, oldest first, by the steady clock; call it from any thread.
        """

    @property
    def listed(self) -> int:
        """Number of the job's collectives that were begun."""

    def watch(self, algorithm: int, doing: str) -> str:
        """
        Between calls: a message about a rank that will not take part, or an empty string.
        """

    def interrupt(self, why: str) -> None:
        """End the current call and all later ones; call it from any thread."""

    def abort(self, why: str) -> None:
        """Tell all peers that this rank gives up."""

    @property
    def failure(self) -> str:
        """Why the endpoint cannot be used, or empty."""

    def close(self) -> None:
        """Close all connections."""

class Waves:
    """A program divided into waves of messages."""

    @property
    def count(self) -> int:
        """Number of waves; the first has no messages."""

    @property
    def receive(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Per step, the wave in which its message arrives, or -1."""

    @property
    def store(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Per step, the wave in which the message is stored or added, or -1."""

    @property
    def aside(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Per step, whether the message must be staged until it is stored."""

    @property
    def act(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """Per step, the wave in which it sends, or does its local work."""

    @property
    def order(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """
        Local work of steps in order: 2 i where step i stores, 2 i + 1 where it acts.
        """

def waves(program: Program) -> Waves:
    """
    Divide a program of sends and receives into waves, in which messages move together.
    """

class RankLayout:
    """The positions of one rank's data, in elements."""

    @property
    def first_step(self) -> int:
        """First of the rank's steps."""

    @property
    def padded(self) -> bool:
        """Whether all slots have the same size, unlike the caller's."""

    @property
    def scratch_elements(self) -> int:
        """Size of the scratch buffer in elements."""

    @property
    def input_offset(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Offset of each input slot, then the total size."""

    @property
    def output_offset(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Offset of each output slot, then the total size."""

    @property
    def given_input(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Offset of each slot in the caller's input."""

    @property
    def given_output(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Offset of each slot in the caller's output."""

    @property
    def begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """First segment of each step, then their number."""

    @property
    def src_buffer(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Per segment, the buffer it is read from."""

    @property
    def src_offset(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Per segment, the offset at which it is read."""

    @property
    def dst_buffer(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Per segment, the buffer it is written to."""

    @property
    def dst_offset(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Per segment, the offset at which it is written."""

    @property
    def elements(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """Per segment, its elements."""

def lay_out(program: Program, rank: int, count: int) -> RankLayout:
    """The positions of a rank's data in a buffer of this many elements."""

class AggregationSwitch:
    """
    A switch that sums the workers' packets: the state machine, without I/O.
    """

    def __init__(self, tokens: Sequence[bytes], seed: int, slots: int = 8192, packet_elements: int = 2232, jobs: int = 64) -> None:
        """
        tokens: digests of 16 bytes. seed: for the random numbers of generations.
        """

    def set_parent(self, parent: int, members: int) -> None:
        """Make this the switch of a rack; members has one bit per worker."""

    def receive(self, source: int, packet: bytes, now_us: int) -> list[tuple[int, bytes]]:
        """
        Handle a packet; return the packets to send, as pairs of address and packet.
        """

    def expire(self, now_us: int) -> None:
        """Forget jobs that have been idle for too long."""

    @property
    def counters(self) -> dict[str, int]:
        """Counters of packets."""

    def generation(self, job: str) -> int:
        """The job's generation, or 0."""

class AggregationWorker:
    """A worker of a switch: the state machine, without I/O."""

    def __init__(self, token: bytes, job: str, worker: int, workers: int, pool: int, packet_elements: int, incarnation: int, timer_s: float = 0.02, least_timer_s: float = 0.001, silence_s: float = 3.0, timeout_s: float = 60.0) -> None:
        """token: a digest of 16 bytes."""

    def start(self, source: int, target: int, elements: int, dtype: str, average: bool, now_us: int) -> list[bytes]:
        """
        Begin an operation on the memory at these addresses, which must not overlap.
        """

    def receive(self, packet: bytes, now_us: int) -> list[bytes]:
        """Handle a packet of the switch; return the packets to send."""

    def poll(self, now_us: int) -> list[bytes]:
        """Return the packets to retransmit."""

    def leave(self) -> list[bytes]:
        """Leave the job; return the packets to send."""

    @property
    def deadline_us(self) -> int:
        """When to poll next."""

    @property
    def state(self) -> str:
        """idle, joining, running, closing or failed."""

    @property
    def failure(self) -> str:
        """Why it failed, or empty."""

    @property
    def lost(self) -> bool:
        """Whether it failed because the switch is gone."""

    @property
    def has_results(self) -> bool:
        """
        Whether all results of the last operation arrived, even if it failed afterwards.
        """

    @property
    def non_finite(self) -> bool:
        """Whether some block of the last operation was not finite."""

    @property
    def packets(self) -> int:
        """Packets of the last operation, each counted once."""

    @property
    def operation(self) -> int:
        """Number of the next operation, or of the one that runs."""

    @operation.setter
    def operation(self, arg: int, /) -> None: ...

    @property
    def counters(self) -> dict[str, int]:
        """Counters of packets sent and received."""

class UdpSwitch:
    """A switch over UDP, with a thread per core."""

    def __init__(self, host: str, port: int, cores: int, tokens: Sequence[bytes], slots: int, packet_elements: int, jobs: int, parent_host: str, parent_port: int, members: int, loss_in: float, loss_out: float, seed: int, echo: bool) -> None:
        """Open the ports; parent_host is empty without a parent."""

    @property
    def port(self) -> int:
        """The first port."""

    def use_kernel(self, interface: str, jobs: int, slots: int, counters: int, tallies: int, most_jobs: int, most_slots: int, processors: int) -> None:
        """
        Leave aggregation to the kernel programs at an interface; call before start.
        """

    def start(self) -> None:
        """Start the threads."""

    def stop(self) -> None:
        """End the threads."""

    @property
    def failure(self) -> str:
        """Why a thread ended early, or empty."""

    def stats(self) -> str:
        """Counters and jobs as JSON."""

    @property
    def busy_s(self) -> float:
        """Processor time of the threads, in seconds."""

class UdpWorker:
    """A worker of a switch over UDP."""

    def __init__(self, host: str, port: int, bind: str, token: bytes, job: str, worker: int, workers: int, pool: int, packet_elements: int, incarnation: int, timer_s: float, least_timer_s: float, silence_s: float, timeout_s: float) -> None:
        """bind: the address to send from, or empty."""

    def all_reduce(self, source: int, target: int, elements: int, dtype: str, average: bool) -> None:
        """Sum the elements of all workers."""

    def restore(self) -> None:
        """Restore the inputs of the last operation, if it ran in place."""

    def leave(self) -> None:
        """Leave the job."""

    @property
    def lost(self) -> bool:
        """Whether it failed because the switch is gone."""

    @property
    def failure(self) -> str:
        """Why it failed, or empty."""

    @property
    def has_results(self) -> bool:
        """
        Whether all results of the last operation arrived, even if it failed afterwards.
        """

    @property
    def non_finite(self) -> bool:
        """Whether some block of the last operation was not finite."""

    @property
    def operation(self) -> int:
        """Number of the next operation."""

    @operation.setter
    def operation(self, arg: int, /) -> None: ...

    @property
    def packets(self) -> int:
        """Packets of the last operation, each counted once."""

    @property
    def counters(self) -> dict[str, int]:
        """Counters of packets sent and received."""

def aggregation_pump(socket: int, host: str, port: int, job: int, generation: int, workers: int, pool: int, elements: int, uses: int) -> float:
    """Seconds that a switch or an echo takes for this many uses of slots."""

def aggregation_encodes(dtype: str) -> bool:
    """Whether a switch can add elements of this type."""

def hub_cut(sizes: Sequence[int], cores: int) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)], list[int]]:
    """
    Chunks of parameters (key, core, first element, elements, offset) and the elements of each core.
    """

def hub_aggregate(tall: bool, threads: int, workers: int, sizes: Sequence[int], rounds: int) -> float:
    """Seconds per round of sums and updates, chunk-owned or key at a time."""

class HubGroup:
    """Hyperparameters of a parameter group, with torch's names."""

    def __init__(self, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, nesterov: bool = False, maximize: bool = False, amsgrad: bool = False) -> None: ...

class HubSnapshot:
    """All values of a job at one version."""

    @staticmethod
    def of(version: int, arrays: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]], updates: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], versions: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> HubSnapshot:
        """A snapshot from arrays, which are copied."""

    @property
    def version(self) -> int:
        """Steps that were complete."""

    @property
    def arrays(self) -> list[numpy.typing.NDArray[numpy.float32]]:
        """Weights, then optimizer state, in the order of the chunks."""

    @property
    def updates(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]:
        """Updates of each chunk."""

    @property
    def versions(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]:
        """Version of each chunk."""

class HubAdmission:
    """The data that a worker needs to connect."""

    @property
    def slot(self) -> int: ...

    @property
    def serial(self) -> int: ...

    @property
    def key(self) -> bytes: ...

    @property
    def first_step(self) -> int: ...

    @property
    def memory(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

class Hub:
    """Jobs and members of an optimizer service."""

    @property
    def cores(self) -> int:
        """Number of cores."""

    def create(self, *, name: str, tenant: int = 0, optimizer: str, mode: str = 'sync', deterministic: bool = False, average: bool = True, elastic: bool = False, relay: bool = False, staleness: int = 0, timeout_s: float = 60.0, rate_Bps: float = 0.0, groups: Sequence[HubGroup], sizes: Sequence[int], groups_of: Sequence[int], resumed: HubSnapshot | None = None) -> int:
        """Add a job and return its number."""

    def drop(self, job: int, why: str) -> None:
        """Remove a job; its workers receive the reason."""

    def failure(self, job: int) -> str:
        """Why a job has failed, or an empty string."""

    def bytes(self, job: int) -> int:
        """Memory of a job's arrays."""

    def join(self, job: int, name: str, rank: int, share: bool = False) -> HubAdmission:
        """Admit a worker from the next step that no chunk has begun."""

    def leave(self, job: int, slot: int, serial: int) -> None:
        """Remove a worker that leaves between steps."""

    def lose(self, job: int, slot: int, serial: int, why: str) -> None:
        """Remove a worker that is lost."""

    def next_step(self, job: int) -> int:
        """The first step that no chunk has begun."""

    def snapshot(self, job: int, version: int | None, patience_s: float) -> HubSnapshot:
        """
        All values at one version, or None if the job does not reach it in time.
        """

    def buckets(self, job: int) -> int:
        """Parts whose sums a relay exchanges together."""

    def wait_for_sums(self, job: int, bucket: int, patience_s: float) -> bool:
        """Wait for the sums of a bucket."""

    def sums(self, job: int, bucket: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        The sums of a bucket, without a copy; do not use them after the job is dropped.
        """

    def deliver(self, job: int, bucket: int) -> None:
        """
        Report that the sums of a bucket are complete: run the optimizer and answer.
        """

    def take_losses(self) -> list[tuple[int, int, int, str]]:
        """Workers that were lost since the last call: job, slot, serial, why."""

    def counters(self) -> dict[str, int]:
        """Totals since the start."""

class ManualHub(Hub):
    """A hub for tests, which moves bytes only when it is told to."""

    def __init__(self, cores: int) -> None: ...

    def open(self, core: int) -> int:
        """Open a connection to a core and return its number."""

    def feed(self, core: int, connection: int, bytes: bytes) -> bool:
        """Pass bytes to a connection; return False if the core has ended it."""

    def take(self, core: int, connection: int, most: int = 1099511627776) -> bytes:
        """Bytes that a connection sends."""

    def ended(self, core: int, connection: int) -> bool:
        """Whether the core has ended a connection."""

    def close(self, core: int, connection: int, why: str) -> None:
        """Report that a connection is closed."""

    def tick(self, now_ms: int) -> None:
        """Set the time."""

class SocketHub(Hub):
    """A hub on sockets, with a thread for each core."""

    def __init__(self, listening: Sequence[int], pin: bool = False) -> None:
        """Take ownership of listening sockets, one per core."""

    def stop(self) -> None:
        """End all threads and close all sockets."""

class HubClient:
    """A worker's connections to a hub."""

    def __init__(self, sizes: Sequence[int], sockets: Sequence[int], job: int, slot: int, key: bytes, wire: str = 'float32', memory: int = -1) -> None:
        """
        Take ownership of connected sockets, one per core, and of a descriptor of shared memory.
        """

    def push(self, key: int, source: int, target: int, step: int, rate: float) -> int:
        """
        Push the gradient at an address (0: none); the new weights go to the target (0: none). Return a timestamp.
        """

    def pull(self, key: int, target: int, step: int = 0, slot: int = 0) -> int:
        """
        Pull values of at least that version; slot 0: weights. Return a timestamp.
        """

    def put(self, key: int, source: int, updates: float = -1.0, slot: int = 0) -> int:
        """
        Set values, and the number of updates unless it is negative. Return a timestamp.
        """

    def wait(self, timestamp: int, patience_s: float) -> bool:
        """Wait for a request; return whether it is complete."""

    @property
    def version(self) -> int:
        """The version of the values received last."""

    @property
    def sent(self) -> int:
        """Bytes sent to the hub's cores, with frames."""

    @property
    def received(self) -> int:
        """Bytes received from them, with frames."""

    @property
    def updates(self) -> int:
        """The number of updates that the last pull returned."""

    @property
    def failure(self) -> str:
        """Why the connection cannot be used, or an empty string."""

    @property
    def shares(self) -> bool:
        """Whether gradients go through shared memory."""

    def close(self) -> None:
        """Close the connections."""

def arrow_stream(names: Sequence[str], columns: Sequence[numpy.typing.NDArray[Any]]) -> object:
    """
    Columns as a stream of record batches, through the Arrow C data interface, not copied.
    """

def connect(*, find_npu: Callable[[Topology, Any], int], find_link: Callable[[Topology, Any], int], find_network: Callable[[str], Topology], executed_ps: Callable[[Schedule], int | None], to_pandas: Callable[[Any], Any], to_arrow: Callable[[dict[str, Any]], Any], to_html: Callable[[Any], str], from_json: Callable[[str], Any], to_json: Callable[[Any], str]) -> None:
    """
    Connect the functions of the package that methods of these classes call.
    """

def find_network(text: str) -> Topology:
    """The topology of a spec or of a file."""

def to_html(item: object) -> str:
    """An object as HTML, for notebooks."""

def fields(item: object) -> dict[str, Any]:
    """The constructor arguments that recreate an object of this module."""
