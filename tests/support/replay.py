"""Replay: the results of a fixed list of problems, as digests and times.

A refactoring must leave every figure of ``tests/golden/replay.json`` unchanged. The figures cover schedules, programs,
exported files and simulated times. They leave out messages, provenance and drawings, which may change freely. Every
figure is an integer or a digest of integers, so it is the same on every machine and for every number of threads.

If results change on purpose, renew the file in a separate commit::

    .venv/bin/python -m tests.support.replay            # all problems
    .venv/bin/python -m tests.support.replay milp tune  # the problems whose names contain one of these words

Only public names are used here, so that a private module can be renamed without an edit of this one.
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.execution import execution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

GOLDEN = Path(__file__).parents[1] / "golden" / "replay.json"
REFUSED = "refused"
"""Stands where an export, a simulation or a lowering raises an error that is meant for users."""
SOLVER = "highspy"
"""The package that solves linear programs: another version may find another optimum of the same value."""

Figures = dict[str, Any]

NETWORKS: dict[str, Callable[[], tacos.Topology]] = {
    "ring-4": lambda: tp.ring(4),
    "one-way-ring-5": lambda: tp.ring(5, bidirectional=False),
    "mesh-3x3": lambda: tp.mesh(3, 3),
    "torus-4x4": lambda: tp.torus(4, 4),
    "torus-two-speeds": lambda: tp.torus(
        4, 3, bandwidth=("50GB/s", "20GB/s"), latency=("500ns", "1us")
    ),
    "torus-damaged": lambda: tp.degrade(
        tp.drop_links(tp.torus(3, 3), (0, 1), both=True), (4, 5), factor=0.5
    ),
    "hypercube-3": lambda: tp.hypercube(3),
    "clique-6": lambda: tp.fully_connected(6),
    "switch-6": lambda: tp.switch(6),
    "switch-nvls": lambda: tp.switch(4, multicast=True, reduce=True),
    "switch-uneven": lambda: tp.from_links(
        3,
        [
            *((0, 3, "50GB/s", "1us"), (1, 3, "50GB/s", "1us"), (2, 3, "20GB/s", "1us")),
            *((3, 0, "20GB/s", "1us"), (3, 1, "50GB/s", "1us"), (3, 2, "50GB/s", "1us")),
        ],
        switches=1,
    ),
    "product-mixed": lambda: tp.product(
        tp.ring(3, bandwidth="100GB/s", latency="350ns"),
        tp.switch(2, bandwidth="25GB/s", latency="1.3us"),
    ),
    "fat-tree": lambda: tp.fat_tree(2, 3, oversubscription=2),
    "rail-2x4": lambda: tp.rail(2, 4),
    "dragonfly": lambda: tp.dragonfly(3, 3),
    "dgx1": tp.dgx1,
    "a100-2": lambda: tp.dgx_a100(2),
    "h100-nvls": lambda: tp.dgx_h100(1),
    "blocking-mesh": lambda: tp.mesh(2, 3, link_model="blocking"),
    "store-and-forward": lambda: tp.fat_tree(2, 3, forwarding="store_and_forward"),
    "slow-sums": lambda: tp.ring(4, reduce_bandwidth="100GB/s"),
}

COLLECTIVES: dict[str, Callable[[tacos.Topology], tacos.Collective]] = {
    **{
        kind: partial(co.named, kind, size="1MB", chunks=2)
        for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    },
    **{
        kind: partial(co.named, kind, size="1MB", chunks=2, root=1)
        for kind in ("broadcast", "reduce", "gather", "scatter")
    },
    "all_reduce-open": lambda topo: co.all_reduce(topo, 3000),
    "all_gather-open": lambda topo: co.all_gather(topo, 3000),
    "all_reduce-small": lambda topo: co.all_reduce(topo, 1000, chunks=1),
    "all_gather-small": lambda topo: co.all_gather(topo, 1000, chunks=1),
    "all_gather-one": lambda topo: co.all_gather(topo, "4MB", chunks=1),
    "all_reduce-one": lambda topo: co.all_reduce(topo, "4MB", chunks=1),
    "all_reduce-group": lambda topo: co.all_reduce(topo, 99_991, group=[3, 0, 2], chunks=1),
    "broadcast-group": lambda topo: co.broadcast(topo, "1MB", root=2, group=[0, 2, 3], chunks=4),
    "all_to_all_v": lambda topo: co.all_to_all_v(
        topo,
        [[(a * 7 + b * 3) % 5 * 40_000 + 1 for b in range(topo.npus)] for a in range(topo.npus)],
        chunks=1,
    ),
    "send_recv": lambda topo: co.send_recv(
        topo, [(0, 2, "1MB"), (2, 0, 1000), (1, 3, "300KB"), (0, 3, 7)], chunks=2
    ),
    "custom": lambda topo: co.custom(
        topo,
        ["1MB", 500_000, 77],
        before=[[0], [1, 2], [0, 1, 3]],
        after=[[1, 2, 3], [0, 3], [2]],
        reduces=[False, True, True],
    ),
    "together": lambda topo: co.together(
        co.all_gather(topo, "1MB", chunks=1), co.reduce_scatter(topo, "500KB", chunks=1)
    ),
}

# Engine, collective and network of each problem.
_ASKED = """
symmetric all_gather torus-4x4
symmetric all_reduce hypercube-3
symmetric all_to_all ring-4
symmetric all_reduce rail-2x4
forest all_gather dgx1
forest all_reduce fat-tree
forest broadcast torus-damaged
forest reduce_scatter switch-uneven
forest all_reduce-open torus-damaged
balanced all_to_all_v a100-2
balanced send_recv switch-6
greedy all_gather torus-two-speeds
greedy all_reduce mesh-3x3
greedy reduce_scatter dragonfly
greedy all_to_all_v store-and-forward
greedy custom mesh-3x3
greedy send_recv blocking-mesh
greedy together product-mixed
greedy gather blocking-mesh
greedy scatter store-and-forward
greedy reduce switch-6
greedy all_gather switch-nvls
greedy all_reduce-group torus-two-speeds
greedy broadcast-group dgx1
exchange all_reduce-small dgx1
exchange all_reduce-small torus-4x4
leaders all_reduce-small mesh-3x3
leaders all_gather-small dgx1
owners all_reduce mesh-3x3
steiner all_reduce-group mesh-3x3
steiner broadcast-group torus-damaged
milp all_gather-one dgx1
milp broadcast-group ring-4
milp all_reduce-one switch-uneven
nccl all_reduce a100-2
nccl all_gather dgx1
nccl all_to_all rail-2x4
nccl all_reduce h100-nvls
ring all_reduce torus-4x4
ring reduce_scatter one-way-ring-5
bidirectional-ring all_gather ring-4
bidirectional-ring all_reduce slow-sums
direct all_to_all clique-6
direct send_recv switch-6
one-shot all_reduce-small switch-6
one-shot all_reduce clique-6
halving-doubling all_reduce hypercube-3
halving-doubling all_gather product-mixed
double-binary-tree all_reduce clique-6
double-binary-tree broadcast dragonfly
c-cube all_reduce dgx1
c-cube reduce mesh-3x3
bruck all_to_all switch-6
bruck all_gather one-way-ring-5
2d-ring all_reduce torus-two-speeds
2d-ring all_reduce mesh-3x3
hierarchical all_reduce a100-2
hierarchical all_gather rail-2x4
swing all_reduce torus-4x4
swing all_gather hypercube-3
themis all_reduce torus-two-speeds
themis reduce_scatter product-mixed
multitree all_reduce torus-damaged
multitree all_gather fat-tree
parameter-server all_reduce switch-6
parameter-server all_reduce-group mesh-3x3
in-network all_reduce h100-nvls
auto all_reduce mesh-3x3
auto all_reduce-open ring-4
auto all_gather-open switch-6
auto all_reduce-small fat-tree
auto gather product-mixed
auto custom ring-4
"""

_OPTIONS: dict[str, dict[str, Any]] = {
    "auto": {"effort": "fast"},
    "milp": {"nodes": 200, "time_limit": 600.0},
}


def problems() -> dict[str, Callable[[], Figures]]:
    """Return a function for each problem, by name, that computes the figures.

    >>> "ring all_reduce torus-4x4" in problems()
    True
    """
    asked = {line: partial(_answer, *line.split()) for line in _ASKED.split("\n") if line}
    return {**asked, **_SPECIAL}


def needs_solver(name: str) -> bool:
    """Return whether a problem's schedule comes from the solver of linear programs.

    >>> needs_solver("milp all_gather dgx1"), needs_solver("greedy all_gather dgx1")
    (True, False)
    """
    return any(word in name for word in ("milp", "auto", "pareto", "tune", "uneven"))


def changes(name: str, was: Figures, now: Figures, *, same_solver: bool = True) -> list[str]:
    """Return one line for each figure that changed.

    With another version of the solver, only the times of what it found are compared.

    >>> changes("greedy x y", {"time_ps": 1, "program": "a"}, {"time_ps": 2, "program": "a"})
    ['greedy x y: time_ps was 1, is 2']
    """
    fields = list(dict.fromkeys([*was, *now]))
    if needs_solver(name) and not same_solver:
        fields = ["time_ps"]
    return [
        f"{name}: {field} was {was.get(field)}, is {now.get(field)}"
        for field in fields
        if was.get(field) != now.get(field)
    ]


def digest(*values: Any) -> str:
    """Return 16 hexadecimal digits for integers, texts, bytes and arrays of integers, whatever their width.

    >>> digest(np.array([1, 2], np.int32)) == digest(np.array([1, 2], np.uint8))
    True
    >>> digest([1], [2]) == digest([1, 2])
    False
    """
    state = hashlib.sha256()
    for value in values:
        if isinstance(value, str | bytes):
            data, shape = value.encode() if isinstance(value, str) else value, "text"
        else:
            column = np.asarray(value)
            if column.dtype.kind not in "iub" and column.size:
                raise TypeError(f"a digest takes integers, not {column.dtype}")
            data, shape = column.astype("<i8").tobytes(), str(column.shape)
        state.update(f"{shape} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()[:16]


def of_topology(topology: tacos.Topology) -> str:
    """Return the digest of a network."""
    return digest(
        topology.npus,
        topology.switch_capabilities,
        topology.link_src,
        topology.link_dst,
        topology.link_latency_ps,
        topology.link_bandwidth_Bps,
        topology.link_model,
        topology.forwarding,
        topology.reduce_bandwidth_Bps,
        "\n".join(topology.names),
    )


def of_collective(collective: tacos.Collective) -> str:
    """Return the digest of a collective."""
    values: list[Any] = [collective.npus, collective.chunks]
    for part in collective.parts:
        values += [part.kind, part.size, part.chunks, part.root, part.group, part.bytes]
        values += [part.inputs, part.outputs, part.input_begin, part.output_begin, part.reduces]
    return digest(*values)


def of_schedule(schedule: tacos.Schedule) -> str:
    """Return the digest of a schedule with its network, collective and routes."""
    routes = schedule.routes
    return digest(
        of_topology(schedule.topology),
        of_collective(schedule.collective),
        *(routes.kinds, routes.link_begin, routes.links),
        *(schedule.lane_route, schedule.lane_op, schedule.lane_reads, schedule.lane_begin),
        *(schedule.chunk, schedule.start, schedule.quantum_ps),
        *(schedule.orders, schedule.node_image, schedule.link_image),
    )


def of_program(program: tacos.Program) -> str:
    """Return the digest of a program."""
    return digest(
        of_collective(program.collective),
        *(program.in_place, program.ranks, program.scratch_slots),
        *(program.thread_rank, program.thread_channel, program.thread_begin),
        *(program.thread_send_peer, program.thread_recv_peer),
        *(program.op, program.count, program.peer, program.comes_from),
        *(program.src_buffer, program.src_slot, program.dst_buffer, program.dst_slot),
        *(program.dep_begin, program.dep),
    )


def _or_refused(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (tacos.TacosError, ValueError):
        return REFUSED


def _answer(engine: str, collective: str, network: str) -> Figures:
    """Synthesize, and follow the schedule through everything that takes one."""
    topology = NETWORKS[network]()
    goal = COLLECTIVES[collective](topology)
    schedule = tacos.synthesize(topology, goal, engine=engine, seed=1, **_OPTIONS.get(engine, {}))
    figures = _of_answer(schedule)
    if engine not in ("milp", "auto"):
        figures |= {"bound_ps": tacos.bound(topology, schedule.collective).time_ps}
    return figures


def _of_answer(schedule: tacos.Schedule) -> Figures:
    return {
        "time_ps": schedule.time_ps,
        "transfers": schedule.transfers,
        "schedule": of_schedule(schedule),
        **_simulated(schedule),
        **_lowered(schedule),
        **_exported(schedule),
    }


def _simulated(schedule: tacos.Schedule) -> Figures:
    """The times under each rule, undisturbed and disturbed, and when each NPU is done."""
    disturbed: dict[str, Any] = {
        "faults": [tacos.Fault(link=0, begin="2us", end="12us"), tacos.Fault(npu=1, slowdown=3)],
        "stragglers": [tacos.Straggler(npu=0, late="3us", slowdown=1.5)],
        "jitter": "200ns",
        "seed": 3,
    }
    runs: dict[str, dict[str, Any]] = {
        "order": {"timing": "order"},
        "dependencies": {"timing": "first-come"},
        "shared": {"timing": "shared"},
        "faults_order": {"timing": "order", **disturbed},
        "faults": {"timing": "first-come", **disturbed},
        "aware": {"profile": "astra-sim-aware"},
        "unaware": {"profile": "astra-sim-unaware"},
    }
    found: Figures = {}
    details: list[Any] = []
    for name, options in runs.items():
        trace = _or_refused(partial(tacos.simulate, schedule, **options))
        found[f"{name}_ps"] = trace if trace == REFUSED else trace.time_ps
        if trace != REFUSED:
            details += [name, trace.npu_finish_ps, trace.link_busy_ps]
    executed = execution(schedule)
    if executed is not None:
        times = (executed.order_ps, executed.first_come_ps, executed.shared_ps)
        found["executed_ps"] = [int(time) for time in times]
    return {**found, "traces": digest(*details)}


def _lowered(schedule: tacos.Schedule) -> Figures:
    """The program, its times under each rule, and the schedule that it is lifted to."""
    program = _or_refused(partial(tacos.lower, schedule))
    if program == REFUSED:
        return {"program": REFUSED}
    rules: tuple[Any, ...] = ("order", "first-come", "shared")
    times = [
        tacos.simulate(program, schedule.topology, timing=rule, record=False).time_ps
        for rule in rules
    ]
    lifted = _or_refused(lambda: of_schedule(tacos.lift(program, schedule.topology)))
    in_place = tacos.lower(schedule, in_place=True, window=1)
    return {
        "program": of_program(program),
        "in_place": of_program(in_place),
        "program_ps": times,
        "lifted": lifted,
    }


def _exported(schedule: tacos.Schedule) -> Figures:
    """The files of each format without provenance, and what they are read as."""
    with TemporaryDirectory() as folder:
        base = Path(folder)
        found: Figures = {}
        for format in ("tacos", "msccl", "mscclpp", "chakra"):
            # Without a name, an algorithm is named after the engine in the provenance.
            options = {"name": "replay"} if format in ("msccl", "mscclpp") else {}
            path = base / format / "replay"
            path.parent.mkdir()
            save = partial(tacos.save, schedule, path, format=format, **options)
            if _or_refused(save) == REFUSED:
                found[format] = REFUSED
                continue
            files = sorted(path.parent.iterdir())
            found[format] = digest(*(item for file in files for item in _content(file, base)))
            back = tacos.load(path, format=format)
            read = of_schedule(back) if isinstance(back, tacos.Schedule) else of_program(back)
            found[f"{format}_read"] = read
    return found


def _content(file: Path, base: Path) -> Iterator[Any]:
    """A file's name and its bytes without provenance, version numbers and the directory it lies in."""
    yield file.name
    data = file.read_bytes()
    if data.startswith(b"\x89TCS"):
        yield from _native_content(data)
    elif file.suffix == ".et" and b'"provenance"' in data:
        length, begin = _varint(data)
        note = json.loads(
            data[data.index(b"{", begin) : data.rindex(b"}", begin, begin + length) + 1]
        )
        del note["program"]["provenance"]
        yield json.dumps(note, sort_keys=True)
        yield data[begin + length :]
    else:
        yield data.replace(str(base).encode(), b"")


def _native_content(data: bytes) -> Iterator[Any]:
    """The parts of a ``.tacos`` file, see ``docs/guide/file-format.md``: what the header says, then the sections."""
    length = 16 + int.from_bytes(data[12:16], "little")
    header = json.loads(data[16:length])
    times = {name: header["schedule"][name] for name in ("quantum_ps", "orders", "time_ps")}
    kept = [header["topology"], header["collective"], times, header["sections"]]
    yield json.dumps(kept, sort_keys=True)
    yield data[-(-(length + 4) // 64) * 64 :]


def _varint(data: bytes) -> tuple[int, int]:
    """The number at the beginning of protobuf data, and where the bytes after it begin."""
    value = 0
    for i, byte in enumerate(data):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, i + 1
    raise ValueError("a number without an end")


def _refined() -> Figures:
    topology = NETWORKS["mesh-3x3"]()
    first = tacos.synthesize(topology, COLLECTIVES["all_gather"](topology), engine="greedy", seed=1)
    return _of_answer(tacos.refine(first, hops=200_000, seed=1))


def _sketched(engine: str, relays: list[int] | None) -> Figures:
    topology = NETWORKS["dgx1"]()
    sketch = tacos.Sketch(drop=[(0, 1), (1, 0)], relays=relays, chunks=1)
    goal = co.all_gather(topology, "8MB")
    options = _OPTIONS.get(engine, {})
    schedule = tacos.synthesize(topology, goal, engine=engine, sketch=sketch, seed=1, **options)
    return _of_answer(schedule)


def _targeted(target: str) -> Figures:
    topology = NETWORKS["product-mixed"]()
    goal = COLLECTIVES["all_reduce-one"](topology)
    return _of_answer(tacos.synthesize(topology, goal, effort="fast", target=target))


def _front() -> Figures:
    topology = NETWORKS["ring-4"]()
    front = tacos.pareto(topology, co.all_gather(topology, "1MB"), max_chunks=4, time_limit=600.0)
    points = front.points
    return {
        "time_ps": [point.schedule.time_ps for point in points],
        "steps": [point.steps for point in points],
        "rounds": [point.rounds for point in points],
        "chunks": [point.chunks for point in points],
        "schedules": digest(*(of_schedule(point.schedule) for point in points)),
    }


def _tuned() -> Figures:
    table = tacos.tune(tp.ring(3), "all_reduce", "1KB:64KB:64", effort="fast")
    ranges = table.ranges
    return {
        "time_ps": [one.schedule.time_ps for one in ranges],
        "max_bytes": [one.max_bytes for one in ranges],
        "engines": [one.engine for one in ranges],
        "chunks": [one.chunks for one in ranges],
        "nccl": [list(row) for row in table.nccl],
        "schedules": digest(*(of_schedule(one.schedule) for one in ranges)),
    }


def _compared() -> Figures:
    topology = NETWORKS["fat-tree"]()
    goal = COLLECTIVES["all_reduce-one"](topology)
    rows = tacos.compare(
        topology, goal, engines=["forest", "ring", "direct", "multitree"], time_limit=None
    )
    found = [one for one in rows.candidates if one.schedule is not None]
    return {
        "engines": [one.engine for one in found],
        "time_ps": [one.schedule.time_ps for one in found if one.schedule],
        "schedules": digest(*(of_schedule(one.schedule) for one in found if one.schedule)),
    }


def _nccl() -> Figures:
    """What stock NCCL would choose for several sizes; its times in picoseconds."""
    topology = NETWORKS["a100-2"]()
    goals = [co.all_reduce(topology, 10**power) for power in range(3, 10)]
    found = [tacos.nccl.estimate(topology, goal) for goal in goals]
    return {
        "time_ps": [round(one.time_s * 1e12) for one in found],
        "choices": [f"{one.algorithm} {one.protocol} {one.channels}" for one in found],
    }


def _retimed() -> Figures:
    """A round trip through a file: the program of an MSCCL file, run on another network and lifted there."""
    topology = NETWORKS["switch-6"]()
    goal = COLLECTIVES["all_gather"](topology)
    with TemporaryDirectory() as folder:
        path = Path(folder, "bruck.xml")
        tacos.save(tacos.synthesize(topology, goal, engine="bruck"), path)
        program = tacos.load(path)
    other = NETWORKS["fat-tree"]()
    lifted = tacos.lift(program, other, "2MB")
    return {
        "program": of_program(program),
        **_of_answer(lifted),
        "lowered_again": of_program(tacos.lower(lifted)),
    }


_SPECIAL: dict[str, Callable[[], Figures]] = {
    "refine all_gather mesh-3x3": _refined,
    "sketch all_gather dgx1 greedy": partial(_sketched, "greedy", None),
    "sketch all_gather dgx1 milp": partial(_sketched, "milp", [0, 1, 2, 3, 4, 5]),
    "target=mscclpp auto all_reduce product-mixed": partial(_targeted, "mscclpp"),
    "target=tcp auto all_reduce product-mixed": partial(_targeted, "tcp"),
    "pareto all_gather ring-4": _front,
    "tune all_reduce ring-3": _tuned,
    "compare all_reduce fat-tree": _compared,
    "nccl estimate a100-2": _nccl,
    "lift all_gather switch-6 fat-tree": _retimed,
}


def golden() -> dict[str, Any]:
    """Return what the file says: the solver's version, and the figures of each problem by name."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


def renew(words: Iterable[str] = ()) -> list[str]:
    """Compute the figures of all problems, or of those whose names contain a word, and write the file.

    Returns:
        One line for each figure that changed.
    """
    words = list(words)
    old: dict[str, Figures] = golden()["problems"] if GOLDEN.exists() else {}
    new: dict[str, Figures] = {}
    lines: list[str] = []
    for name, figures in problems().items():
        if name in old and words and not any(word in name for word in words):
            new[name] = old[name]
            continue
        new[name] = json.loads(json.dumps(figures()))
        lines += changes(name, old.get(name, {}), new[name])
    lines += [f"{name}: removed" for name in old if name not in new]
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(new[name])}" for name in new)
    text = f'{{"{SOLVER}": {json.dumps(version(SOLVER))}, "problems": {{\n{rows}\n}}}}\n'
    GOLDEN.write_text(text, encoding="utf-8")
    return lines


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in renew(sys.argv[1:])) or "nothing changed\n")
