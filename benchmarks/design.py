"""Network design: seconds for the bandwidths of four dimensions, and for a search over the shapes of 4,096 NPUs.

The jobs are LIBRA's: two layers of GPT-3 and of MSFT-1T, Turing-NLG and ResNet-50. Times are the best of five, in one process
and after a first call that loads the solver.
"""

from __future__ import annotations

import time

from tacos import units
from tacos.design import optimize, shapes
from tests.design.published import JOBS, NETWORKS, ROWS


def best_of(count, function):
    seconds, result = [], None
    for _ in range(count):
        begin = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - begin)
    return result, min(seconds)


def bandwidths():
    print("bandwidths of four dimensions for four jobs (goal: 50 ms)")
    jobs = [*JOBS.values()]
    optimize(NETWORKS["4D"], jobs, budget="500GB/s")
    for objective in ("time", "time*cost"):
        for overlap in ("none", "background"):
            found, took = best_of(
                5,
                lambda objective=objective, overlap=overlap: optimize(
                    NETWORKS["4D"], jobs, budget="500GB/s", objective=objective, overlap=overlap
                ),
            )
            print(f"  {objective:10} {overlap:11} {1e3 * took:6.1f} ms   gap {found.gap:.1e}")


def published():
    print("\nLIBRA's published cases: time, and gain in time times cost")
    for name, network, total, *_ in ROWS:
        fast, took = best_of(
            1, lambda n=name, w=network, b=total: optimize(NETWORKS[w], JOBS[n], budget=f"{b}GB/s")
        )
        good, longer = best_of(
            1,
            lambda n=name, w=network, b=total: optimize(
                NETWORKS[w], JOBS[n], budget=f"{b}GB/s", objective="time*cost"
            ),
        )
        print(
            f"  {name:10}{network} {total:5} GB/s  {1e3 * fast.time_s:9.3f} ms  {fast.speed_up:6.3f}   "
            f"{1e3 * good.time_s:9.3f} ms  {good.gain:7.3f}   in {1e3 * took:.0f} and {1e3 * longer:.0f} ms"
        )


def search():
    print("\nshapes of 4,096 NPUs, 13 budgets up to $20M (goal: a minute on two cores)")
    jobs = [JOBS["GPT-3"], JOBS["MSFT-1T"]]
    for what, arguments in {
        "16 ports, radix 64": {"ports": 16, "radix": 64},
        "no limits": {},
        "5 dimensions": {"max_dims": 5, "ports": 16, "radix": 64},
        "3 finalists": {"ports": 16, "radix": 64, "finalists": 3},
    }.items():
        front, took = best_of(1, lambda a=arguments: shapes(4096, jobs, budget="$20M", **a))
        last = front.points[-1]
        print(
            f"  {what:20} {front.shapes:8,} shapes  {front.solved:4} solved  {took:6.2f} s   "
            f"{units.format_time(last.time_s)}  {last.label}"
        )


if __name__ == "__main__":
    bandwidths()
    published()
    search()
