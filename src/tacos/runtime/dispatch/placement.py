"""The NPU of each rank, and programs renumbered from NPUs to ranks.

Topologies and plans speak of NPUs, a running job of ranks. :func:`place` finds the NPU of each rank,
:func:`renumbered` turns a program among some NPUs into one among ranks 0, 1, 2, …, and :func:`rerouted` gives a program for
what is left of a network the channels of the whole.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Collective, CollectivePart, Program, channel_routes
from tacos._support.variables import read
from tacos.collective import kind_of
from tacos.errors import FormatError
from tacos.program import FACTS, replaced
from tacos.runtime.rendezvous.addresses import is_interface
from tacos.schedule import paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["here", "ordered", "place", "renumbered", "rerouted"]

_BUFFERS = (0, 1)  # input and output
_LOCAL_RANKS = ("TACOS_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                "SLURM_LOCALID")  # fmt: skip


def here(variables: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the host of this process and its number on the host, by which NPUs are named.

    The host is ``TACOS_HOST``, unless that is an interface; otherwise it is the machine's host name. The number is empty
    if no launcher provides it.

    >>> here({"TACOS_HOST": "node7", "LOCAL_RANK": "3"})
    ('node7', '3')
    """
    environ = os.environ if variables is None else variables
    host = read("TACOS_HOST", environ)
    if not host or is_interface(host):
        host = socket.gethostname()
    return host, next((environ[name] for name in _LOCAL_RANKS if name in environ), "")


def place(
    where: Mapping[int, str],
    world: int,
    npus: int,
    names: Sequence[str] = (),
    given: str | None = None,
) -> list[int]:
    """Return the NPU of each of some ranks.

    Args:
        where: The ranks and where each runs, as ``"host:local_rank"``.
        world: Number of ranks of the job.
        npus: Number of NPUs of the network.
        names: Names of the NPUs. If some are names of ranks, all ranks must be among them; otherwise
            rank i is NPU i.
        given: The user's placement instead: NPUs or names by rank, separated by commas or as a
            JSON list, or the path of a file with such a list.

    Raises:
        ValueError: A rank has no NPU, or two ranks have the same one.
        FormatError: The file of `given` cannot be read.

    >>> place({0: "a:0", 1: "a:1", 2: "b:0"}, 3, 3)
    [0, 1, 2]
    >>> place({0: "a:0", 1: "a:1", 2: "b:0"}, 3, 3, names=["b:0", "a:0", "a:1"])
    [1, 2, 0]
    >>> place({1: "a:1"}, 2, 2, given="1,0")
    [0]
    """
    by_name = {name: npu for npu, name in enumerate(names[:npus])}
    if given is not None:
        of_all = _given(_items(given), world, npus, by_name)
        return [of_all[rank] for rank in where]
    known = [rank for rank in where if where[rank] in by_name]
    for rank, place in where.items() if known else ():
        if place not in by_name:
            raise ValueError(
                f'rank {rank} runs at "{place}", which the topology does not name, though it '
                f'names "{where[known[0]]}" of rank {known[0]}'
            )
    if known:
        return _distinct([by_name[place] for place in where.values()], "the ranks' hosts")
    if world != npus:
        raise ValueError(
            f"the topology has {npus} NPUs and the job {world} ranks, and no NPU is named after a "
            f'rank such as "{next(iter(where.values()))}": name them, or set TACOS_PLACEMENT'
        )
    return list(where)


def ordered(where: Mapping[int, str], given: str) -> list[int]:
    """Return the place of each of some ranks in an order of all ranks.

    Args:
        where: The ranks and where each runs, as ``"host:local_rank"``.
        given: Hosts or ranks in order, separated by commas or as a JSON list, or the path of a file with one per line, as
            ``tacos reorder`` writes it.

    Raises:
        ValueError: A rank is not named, or named twice.
        FormatError: The file cannot be read.

    >>> ordered({0: "a:0", 1: "a:1", 2: "b:0"}, "b,a")
    [1, 2, 0]
    >>> ordered({0: "a:0", 2: "b:0"}, "2,1,0")
    [1, 0]
    """
    items = [str(item) for item in _items(given, "TACOS_ORDER")]
    hosts = {rank: place.rpartition(":")[0] for rank, place in where.items()}
    by_host = any(host in items for host in hosts.values())
    names = {rank: hosts[rank] if by_host else str(rank) for rank in where}
    for rank, name in names.items():
        if items.count(name) != 1:
            times = "twice" if name in items else "not"
            what = f"host {name}, where rank {rank} runs," if by_host else f"rank {rank}"
            raise ValueError(f"TACOS_ORDER must name {what} once, and does {times}")
    inside = sorted(where, key=lambda rank: (items.index(names[rank]), rank))
    return [inside.index(rank) for rank in where]


def _items(given: str, variable: str = "TACOS_PLACEMENT") -> list[str | int]:
    """Return the entries of a list, which may be in a file."""
    text = given.strip()
    path = Path(text)
    if "," not in text and not text.startswith("[") and not text.isdecimal():
        try:
            text = path.read_text().strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FormatError(f"{variable} is {given}, a file that fails: {reason}") from None
    if not text.startswith("["):
        return [item.strip() for item in text.replace("\n", ",").split(",") if item.strip()]
    try:
        items = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{variable} is {given}: not JSON: {error}") from None
    return list(items)


def _given(items: list[str | int], ranks: int, npus: int, names: dict[str, int]) -> list[int]:
    if len(items) != ranks:
        raise ValueError(f"TACOS_PLACEMENT has {len(items)} entries for {ranks} ranks")
    chosen: list[int] = []
    for item in items:
        npu = names.get(str(item), int(item) if str(item).isdecimal() else -1)
        if not 0 <= npu < npus:
            raise ValueError(
                f"TACOS_PLACEMENT has {item!r}; use the NPUs 0 to {npus - 1} or their names"
            )
        chosen.append(npu)
    return _distinct(chosen, "TACOS_PLACEMENT")


def _distinct(npus: list[int], what: str) -> list[int]:
    for npu in npus:
        if npus.count(npu) > 1:
            raise ValueError(f"{what} give NPU {npu} to two ranks, {_both(npus, npu)}")
    return npus


def _both(npus: list[int], npu: int) -> str:
    first = npus.index(npu)
    return f"{first} and {npus.index(npu, first + 1)}"


def renumbered(program: Program, npus: Sequence[int]) -> Program:
    """Return the program with rank i in place of NPU ``npus[i]``; buffers are in rank order.

    Raises:
        ValueError: Another NPU takes part, or slots that a step moves at once are not adjacent in rank
            order.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> whole = tacos.collective.all_gather(topo, "4MB", chunks=1)
    >>> turned = renumbered(tacos.lower(tacos.synthesize(topo, whole)), [2, 3, 0, 1])
    >>> tacos.verify(turned).ok
    True
    """
    order = np.asarray(npus, np.int64)
    if order.tolist() == list(range(program.ranks)):
        return program
    (part,) = program.collective.parts
    rank_of = np.full(program.ranks, -1, np.int32)
    rank_of[order] = np.arange(len(order), dtype=np.int32)
    for npu in np.unique(program.thread_rank).tolist():
        if rank_of[npu] < 0:
            raise ValueError(f"it relays through NPU {npu}, which is not in the group")
    if sorted(part.group.tolist()) != sorted(order.tolist()):
        raise ValueError("it is for another group")
    changed = _renumbered(program, order, rank_of)
    moved = _moved_chunks(part, rank_of)
    if (moved == np.arange(moved.size)).all():
        return Program(**changed)
    draft = Program(**changed)
    for rank, npu in enumerate(order.tolist()):
        mine = np.repeat(draft.thread_rank, np.diff(draft.thread_begin)) == rank
        before = (program.input_chunks(npu), program.output_chunks(npu))
        after = (draft.input_chunks(rank), draft.output_chunks(rank))
        for buffer in _BUFFERS:
            slots = np.searchsorted(after[buffer], moved[before[buffer]]).astype(np.int32)
            for side in ("src", "dst"):
                steps = np.flatnonzero(mine & (changed[f"{side}_buffer"] == buffer))
                _move(changed[f"{side}_slot"], steps, changed["count"], slots)
    return Program(**changed)


def rerouted(program: Program, network: Topology, whole: Topology, links: Sequence[int]) -> Program:
    """The same program with channels that lead over the same links when all links of a network are counted.

    Channels take the routes between two NPUs in turn. A program for what is left of a network counts only the routes that
    are left, but the addresses of the channels are those of the whole network.

    Args:
        program: For what is left of the network.
        network: What is left.
        whole: The whole network, with the same NPUs.
        links: The number that each link of `network` has in the whole.

    >>> import tacos
    >>> ways = [(h, s) for h in (0, 1) for s in (2, 3)]
    >>> both = [(*way, "1GB/s", "1us") for src, dst in ways for way in ((src, dst), (dst, src))]
    >>> whole = tacos.topology.from_links(2, both, switches=2)
    >>> left = tacos.topology.drop_links(whole, 0)
    >>> program = tacos.lower(tacos.synthesize(left, tacos.collective.all_gather(left, "2MB", chunks=1)))
    >>> rerouted(program, left, whole, range(1, 8)).thread_channel[program.thread_send_peer == 1].tolist()
    [1]
    """
    src = np.where(program.thread_send_peer >= 0, program.thread_rank, program.thread_recv_peer)
    dst = np.where(program.thread_send_peer >= 0, program.thread_send_peer, program.thread_rank)
    kept = set(links)
    connections = list(
        zip(src.tolist(), dst.tolist(), program.thread_channel.tolist(), strict=True)
    )
    new: dict[tuple[int, int, int], int] = {}
    taken: set[tuple[int, int, int]] = set()
    for s, d, channel in sorted({one for one in connections if min(one) >= 0}):
        number = channel
        if ways := channel_routes(whole, s, d):
            now = channel_routes(network, s, d)
            now = now or [paths(network, ([s], [d])).links.tolist()]
            route = [links[link] for link in now[channel % len(now)]]
            # A route that no channel takes in the whole network: over one that is left, if there is any.
            good = [i for i, way in enumerate(ways) if kept.issuperset(way)] or [channel]
            number = ways.index(route) if route in ways else good[channel % len(good)] % len(ways)
            while (s, d, number) in taken:
                number += len(ways)
            taken.add((s, d, number))
        new[s, d, channel] = number
    return replaced(program, thread_channel=[new.get(one, one[2]) for one in connections])


def _renumbered(
    program: Program, order: NDArray[np.int64], rank_of: NDArray[np.int32]
) -> dict[str, Any]:
    """Return the columns with threads and steps in the order of the new ranks; slots are unchanged."""
    (part,) = program.collective.parts
    threads = np.argsort(rank_of[program.thread_rank], kind="stable")
    lengths = np.diff(program.thread_begin)[threads]
    begin = np.zeros(len(threads) + 1, np.int64)
    np.cumsum(lengths, out=begin[1:])
    first = program.thread_begin[:-1][threads]
    steps = np.repeat(first - begin[:-1], lengths) + np.arange(begin[-1])
    new_step = np.empty(len(steps) + 1, np.int32)
    new_step[steps] = np.arange(len(steps), dtype=np.int32)
    new_step[-1] = -1  # maps -1 to itself
    deps = np.diff(program.dep_begin)[steps]
    dep_begin = np.zeros(len(steps) + 1, np.int64)
    np.cumsum(deps, out=dep_begin[1:])
    entries = np.repeat(program.dep_begin[:-1][steps] - dep_begin[:-1], deps)
    ranks = np.append(rank_of, np.int32(-1))
    group = np.arange(len(order), dtype=np.int32)
    root = -1 if part.root < 0 else int(rank_of[part.group[part.root]])
    return (
        {
            "collective": Collective(
                len(order),
                [CollectivePart(part.kind, part.size, chunks=part.chunks, root=root, group=group)],
            ),
            "in_place": program.in_place,
            "scratch_slots": program.scratch_slots[order],
            "thread_rank": ranks[program.thread_rank][threads],
            "thread_channel": program.thread_channel[threads],
            "thread_send_peer": ranks[program.thread_send_peer][threads],
            "thread_recv_peer": ranks[program.thread_recv_peer][threads],
            "thread_begin": begin,
            "peer": ranks[program.peer][steps],
            "comes_from": new_step[program.comes_from][steps],
            "dep_begin": dep_begin,
            "dep": new_step[program.dep[entries + np.arange(dep_begin[-1])]],
            "provenance": json.dumps(program.provenance),
        }
        | {name: getattr(program, name) for name in FACTS}
        | {
            name: np.array(getattr(program, name)[steps])
            for name in ("op", "src_buffer", "src_slot", "dst_buffer", "dst_slot", "count")
        }
    )


def _moved_chunks(part: CollectivePart, rank_of: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the new id of each chunk: ids that follow the order of members follow the new order."""
    members = rank_of[part.group].astype(np.int64)
    n, pieces = len(members), part.chunks
    unit = kind_of(part).unit
    if unit == "member":
        units = members
    elif unit == "pair":
        units = (members[:, None] * n + members[None, :]).ravel()
    else:
        units = np.arange(n if unit == "share" else 1)
    return (units[:, None] * pieces + np.arange(pieces)).ravel()


def _move(
    slot: NDArray[np.int32],
    steps: NDArray[np.int64],
    count: NDArray[np.int32],
    slots: NDArray[np.int32],
) -> None:
    """Write a buffer's new slots into the column; slots that a step moves at once must stay adjacent."""
    old = slot[steps]
    breaks = np.concatenate(([0], np.cumsum(np.diff(slots) != 1)))
    if (breaks[old + count[steps] - 1] != breaks[old]).any():
        raise ValueError("its steps move the parts of several members at once, in another order")
    slot[steps] = slots[old]
