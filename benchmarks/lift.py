"""Programs: seconds of CPU time to lower a schedule, to verify the program, and to lift it again.

The last column is the lifted schedule's time over that of the schedule it came from.
"""

from __future__ import annotations

import time

import tacos

PROBLEMS = [
    ("torus:8x16", "all_reduce", 1, "ring"),
    ("torus:8x16", "all_reduce", 4, "ring"),
    ("torus:8x16", "all_reduce", 1, "greedy"),
    ("fc:128", "all_reduce", 1, "direct"),
    ("fc:128", "all_to_all", 1, "direct"),
    ("torus:32x32", "all_gather", 1, "greedy"),
]


def seconds(work):
    begin = time.process_time()
    result = work()
    return result, time.process_time() - begin


def main():
    print(f"{'problem':40} {'transfers':>10} {'lower':>8} {'verify':>8} {'lift':>8} {'time':>7}")
    for spec, kind, chunks, engine in PROBLEMS:
        topology = tacos.topology.parse(spec)
        collective = tacos.collective.named(kind, topology, "128MB", chunks=chunks)
        schedule = tacos.synthesize(topology, collective, engine=engine)
        program, lowering = seconds(lambda: tacos.lower(schedule))  # noqa: B023
        report, verifying = seconds(lambda: tacos.verify(program))  # noqa: B023
        lifted, lifting = seconds(lambda: tacos.lift(program, topology))  # noqa: B023
        assert report.ok
        assert tacos.verify(lifted).ok
        name = f"{engine} {kind} {spec}, {chunks} chunks"
        print(
            f"{name:40} {schedule.transfers:10,} {lowering:7.2f}s {verifying:7.2f}s "
            f"{lifting:7.2f}s {lifted.time_s / schedule.time_s:7.3f}"
        )


if __name__ == "__main__":
    main()
