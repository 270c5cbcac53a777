"""Reading, checking and simulating a workload: GPT-3 on 32 ranks, 129,536 nodes, against 0.3 s.

The trace has the graph that STG, the generator of ASTRA-sim's traces, makes of GPT-3 with 4-way data and 8-way tensor
parallelism (96 layers, batch 32, sequence 2,048). ASTRA-sim's own binary gives the times in EXPECTED on a ring of
32 NPUs with 50 GiB/s and 500 ns, collectives in 4 parts. ``--json`` prints the rows for scripts. Times are
processor time of one core, the best of five runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tacos
from tacos.simulate.astra import AstraSystem, run
from tacos.workload import COLL, COMP, from_nodes

TARGET_S = 0.3
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = 0, 2, 7
EXPECTED = {  # (links are shared, roofline): finish in ns
    (True, False): 13_941_454_124,
    (False, False): 4_049_581_484,
    (True, True): 14_662_017_350,
    (False, True): 4_770_144_710,
}
STRIDE = 86
"""Number of ids per layer."""


def gpt(layers, dp, tp, batch, sequence, hidden, ffn, vocabulary):
    """Return the workload of one training step; ranks are numbered along data parallelism first."""
    tokens = batch * sequence // dp  # of one replica
    part = tokens // tp  # of one rank between the collectives
    heads, wide = hidden // tp, ffn // tp
    nodes = {}

    def comp(id, size, flops, *deps):
        nodes[id] = (COMP, size, flops, 0, "", deps)

    def coll(id, kind, size, group, *deps):
        nodes[id] = (COLL, size, 0, kind, group, deps)

    end = STRIDE * layers + 2
    for layer in range(layers):
        at = STRIDE * layer
        before = end if layer == 0 else at - 12  # the residual that enters
        after = end + 8 if layer == layers - 1 else at + 90  # its gradient, from above
        for norm, source in ((2, before), (49, 44 + at)):
            comp(norm + at, part * hidden, 5 * part * hidden, source)
        comp(3 + at, part * hidden, part * hidden, 31 + at, 51 + at)
        comp(4 + at, part * hidden, 5 * part * hidden, 3 + at)
        comp(7 + at, 3 * tokens * heads, 3 * tokens * hidden * heads, 8 + at)
        for gather, source in (
            (8, 2 + at),
            (19, 51 + at),
            (28, 2 + at),
            (56, 49 + at),
            (67, 49 + at),
        ):
            coll(gather + at, ALL_GATHER, part * hidden, "tp", source)
        for head in (9, 10, 11):
            comp(head + at, tokens * heads, tokens * heads, 7 + at)
        comp(14 + at, tokens * hidden, tokens * heads * hidden, 37 + at)
        for scatter, source in ((16, 14), (31, 29), (60, 58), (71, 69)):
            coll(scatter + at, REDUCE_SCATTER, tokens * hidden, "tp", source + at)
        comp(20 + at, tokens * heads, tokens * heads * hidden, 19 + at)
        comp(21 + at, heads * hidden, tokens * heads * hidden, 19 + at, 37 + at)
        comp(25 + at, 2 * tokens * heads, 2 * tokens * heads, 40 + at, 41 + at)
        comp(26 + at, 3 * tokens * heads, 3 * tokens * heads, 25 + at, 39 + at)
        comp(27 + at, 3 * hidden * heads, 3 * tokens * hidden * heads, 26 + at, 28 + at)
        comp(29 + at, tokens * hidden, 3 * tokens * hidden * heads, 26 + at)
        comp(37 + at, tokens * heads, 3 * tokens * heads, 9 + at, 10 + at, 11 + at)
        for head in (39, 40, 41):
            comp(head + at, tokens * heads, 6 * tokens * heads, 20 + at)
        comp(44 + at, part * hidden, part * hidden, 16 + at, before)
        comp(50 + at, part * hidden, part * hidden, 71 + at, after)
        comp(51 + at, part * hidden, 5 * part * hidden, 50 + at)
        product = tokens * hidden * wide
        comp(57 + at, tokens * wide, product, 56 + at)
        comp(58 + at, tokens * hidden, product, 57 + at)
        coll(63 + at, ALL_GATHER, part * hidden, "tp", after)
        comp(64 + at, wide * hidden, product, 57 + at, 63 + at)
        comp(65 + at, tokens * wide, product, 63 + at)
        comp(68 + at, wide * hidden, product, 65 + at, 67 + at)
        comp(69 + at, tokens * hidden, product, 65 + at)
        comp(74 + at, part * hidden, part * hidden, 44 + at, 60 + at)
        weights = (4 * hidden * hidden + 2 * hidden * ffn) // tp
        coll(80 + at, ALL_REDUCE, weights, "dp", 21 + at, 27 + at, 64 + at, 68 + at)
        comp(end + 12 + layer, weights, weights, 80 + at)
        comp(end + 18 + layers + layer, weights, weights, end + 12 + layer)
    last = STRIDE * layers - 12
    table, product = vocabulary * hidden, part * vocabulary * hidden
    comp(end, part * hidden, product)
    comp(end + 2, table, product, 4)
    comp(end + 3, part * vocabulary, product, 4)
    comp(end + 5, part * vocabulary, product, last)
    comp(end + 7, table, product, last, end + 11)
    comp(end + 8, part * hidden, product, end + 11)
    comp(end + 10, part * hidden, 5 * part * hidden, end + 5)
    comp(end + 11, part * hidden, 5 * part * hidden, end + 10)
    grads = end + 12 + layers
    comp(grads, table, table, end + 2)
    comp(grads + 1, table, table, end + 7)
    tail = grads + 6 + layers
    for embedding, grad in ((tail, grads), (tail + 3, grads + 1)):
        comp(embedding, table, table, embedding + 2)
        coll(embedding + 1, ALL_REDUCE, table, "dp", grad)
        coll(embedding + 2, ALL_REDUCE, table, "tp", embedding + 1)
    return _ranks(nodes, dp, tp)


def _ranks(nodes, dp, tp):
    ids = sorted(nodes)
    place = {id: row for row, id in enumerate(ids)}
    kind, size, flops, comm, group, deps = zip(*(nodes[id] for id in ids), strict=True)
    ranks = np.arange(dp * tp)
    number = {"": 0 * ranks, "dp": 1 + ranks // dp, "tp": 1 + tp + ranks % dp}
    rows = [place[dep] for some in deps for dep in some]
    groups = {1 + i: list(range(i * dp, (i + 1) * dp)) for i in range(tp)}
    groups |= {1 + tp + i: list(range(i, dp * tp, dp)) for i in range(dp)}

    def tiled(values):
        return np.tile(np.array(values), dp * tp)

    return from_nodes(
        dp * tp,
        rank=np.repeat(ranks, len(ids)),
        id=tiled(ids),
        kind=tiled(kind),
        bytes=tiled(size),
        flops=tiled(flops),
        comm=tiled(comm),
        group=np.stack([number[name] for name in group], axis=1).ravel(),
        dep_begin=np.concatenate(([0], np.cumsum(tiled([len(some) for some in deps])))),
        dep=tiled(rows) + np.repeat(ranks * len(ids), len(rows)),
        groups=groups,
    )


def best(function, runs=5):
    times = []
    for _ in range(runs):
        begin = time.process_time()
        result = function()
        times.append(time.process_time() - begin)
    return min(times), result


def main():
    made = gpt(96, 4, 8, batch=32, sequence=2048, hidden=12288, ffn=49152, vocabulary=50304)
    counts = np.bincount(made.kind, minlength=6)
    rows = [
        {"what": "nodes", "count": made.nodes, "comp": int(counts[COMP]), "coll": int(counts[COLL])}
    ]
    network = tacos.topology.ring(32, bandwidth="50GiB/s", latency="500ns")
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "gpt3")
        tacos.workload.save(made, prefix)
        reading, workload = best(lambda: tacos.workload.load(prefix))
    checking, report = best(lambda: tacos.verify(workload))
    rows.append({"what": "read", "seconds": reading})
    rows.append({"what": "verify", "seconds": checking, "ok": report.ok})
    for (aware, roofline), expected in EXPECTED.items():
        system = AstraSystem(splits=4, roofline=roofline, peak_flops=9e14)
        taken, result = best(
            lambda aware=aware, system=system: run(
                workload, network, aware=aware, as_custom=False, system=system, record=False
            )
        )
        rows.append(
            {
                "what": f"{'aware' if aware else 'unaware'}{', roofline' if roofline else ''}",
                "seconds": taken,
                "with_reading": taken + reading,
                "finish_ns": result.time_ns,
                "expected_ns": expected,
                "ok": result.time_ns == expected,
            }
        )
    if "--json" in sys.argv:
        print(json.dumps(rows))
        return
    print(
        f"{made.nodes:,} nodes of {made.npus} ranks: {counts[COMP]:,} comp, {counts[COLL]:,} coll"
    )
    print(f"{'':20}{'seconds':>10}{'of ' + str(TARGET_S):>10}{'finish, ns':>18}{'':>10}")
    for row in rows[1:]:
        whole = row.get("with_reading", row["seconds"])
        finish = f"{row['finish_ns']:,}" if "finish_ns" in row else ""
        exact = {True: "equal", False: "DIFFERS"}.get(row.get("ok"), "")
        print(
            f"{row['what']:20}{row['seconds']:10.3f}{whole / TARGET_S:10.0%}{finish:>18}{exact:>10}"
        )


if __name__ == "__main__":
    main()
