"""Schedules that tests write transfer by transfer, correct or not, without an engine and without retiming."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, Schedule, routes
from tests.support import oracle

US = 1_000_000  # picoseconds


def packed(collective, table, rows, quantum=1):
    """A schedule from rows (route, chunk, op, reads, starts of the legs), not checked by retime.

    Rows that share route, op and reads become one lane where their legs keep one order.
    """
    lanes: dict[tuple[int, ...], list] = {}
    for route, chunk, op, reads, starts in sorted(rows, key=lambda row: row[4]):
        lane = lanes.setdefault((route, op, reads), [])
        if lane and any(a < b for a, b in zip(starts, lane[-1][1], strict=True)):
            lane = lanes.setdefault((route, op, reads, len(lanes)), [])
        lane.append((chunk, starts))
    keys = list(lanes)
    start = [
        row[1][leg] for lane in lanes.values() for leg in range(len(lane[0][1])) for row in lane
    ]
    return Schedule(
        collective=collective,
        routes=table,
        lane_route=np.array([key[0] for key in keys], np.int32),
        lane_op=np.array([key[1] for key in keys], np.uint8),
        lane_reads=np.array([key[2] for key in keys], np.uint8),
        lane_begin=np.cumsum([0, *map(len, lanes.values())], dtype=np.int64),
        chunk=np.array([row[0] for lane in lanes.values() for row in lane], np.uint32),
        start=np.array(start, np.uint32),
        quantum_ps=quantum,
    )


def rows_of(schedule):
    """The rows that `packed` takes."""
    routes_of = np.repeat(schedule.lane_route, np.diff(schedule.lane_begin)).tolist()
    return [
        (route, t.chunk, t.op, t.reads, [start // schedule.quantum_ps for start in t.starts])
        for route, t in zip(routes_of, oracle.transfers_of(schedule), strict=True)
    ]


def mutate(draw, schedule):
    """The schedule with a few rows changed, doubled or left out."""
    rows = rows_of(schedule)
    sizes = schedule.collective.chunk_bytes()
    full = [chunk for chunk in range(schedule.collective.chunks) if sizes[chunk] > 0]
    legs = [
        len(oracle.cross(schedule.topology, int(kind), links, 1).leg_ends)
        for kind, links in zip(
            schedule.routes.kinds, oracle.route_links(schedule.routes), strict=True
        )
    ]
    for _ in range(draw(st.integers(0, 3))):
        if not rows:
            break
        i = draw(st.integers(0, len(rows) - 1))
        route, chunk, op, reads, starts = rows[i]
        shift = draw(st.sampled_from([-(10**7), -1000, -1, 1, 1000, 10**7]))
        what = draw(
            st.sampled_from(["move", "leg", "chunk", "drop", "double", "op", "reads", "route"])
        )
        if what in ("move", "leg"):
            first = 0 if what == "move" else draw(st.integers(0, len(starts) - 1))
            starts = [*starts[:first], *(max(0, t + shift) for t in starts[first:])]
        elif what == "chunk":
            chunk = draw(st.sampled_from(full))
        elif what == "drop":
            del rows[i]
            continue
        elif what == "double":
            rows.append((route, chunk, op, reads, [t + abs(shift) for t in starts]))
        elif what == "op":
            op = 1 - op
        elif what == "reads":
            reads = 1 - reads
        else:
            route = draw(st.sampled_from([r for r, n in enumerate(legs) if n == len(starts)]))
        rows[i] = (route, chunk, op, reads, starts)
    return packed(schedule.collective, schedule.routes, rows, schedule.quantum_ps)


def broken_rules(schedule, **options):
    return {violation.rule for violation in tacos.verify(schedule, **options).violations}


def messages(schedule, **options):
    return [violation.message for violation in tacos.verify(schedule, **options).violations]


def line(n=3, **options):
    """NPU 0 -> 1 -> … -> n-1 and back: 1 GB/s and 1 us, so that 1000 B take 1 us + 1 us."""
    return tp.mesh(n, bandwidth="1GB/s", latency="1us", **options)


def relay(second_start, *, topology=None, kind="broadcast"):
    """A chunk from NPU 0 over NPU 1 to NPU 2; it reaches NPU 1 after 2 us."""
    topology = topology or line()
    if kind == "broadcast":
        collective = co.broadcast(topology, 1000, chunks=1)
    else:
        collective = co.send_recv(topology, [(0, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    return packed(
        collective,
        table,
        [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [second_start])],
    )


def orbit(collective, table, rows, orders, node_image, link_image):
    """An orbit from the rows (route, chunk, op, reads, start) of its representatives."""
    plain = packed(collective, table, [(*row[:4], [row[4]]) for row in rows])
    return Schedule(
        collective=collective,
        routes=table,
        lane_route=plain.lane_route,
        lane_op=plain.lane_op,
        lane_reads=plain.lane_reads,
        lane_begin=plain.lane_begin,
        chunk=plain.chunk,
        start=plain.start,
        quantum_ps=1,
        orders=orders,
        node_image=np.ravel(node_image).astype(np.int32),
        link_image=np.ravel(link_image).astype(np.int32),
    )


def links_under(topology, node_image):
    """Return the image of each link under an image of the nodes; every link must have one."""
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    return [ends.index((int(node_image[a]), int(node_image[b]))) for a, b in ends]
