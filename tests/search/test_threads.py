"""Answers are the same for any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unsanitized

PROGRAM = """
import hashlib
import os
import sys

if hasattr(os, "sched_setaffinity"):  # the core starts a thread for each core that it may use
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
import tacos

torus = tacos.topology.drop_links(tacos.topology.torus(4, 4), (0, 1), both=True)
for network in (torus, tacos.topology.dgx_a100(2)):
    for kind in ("all_reduce", "all_to_all"):
        goal = tacos.collective.named(kind, network, "1MB")
        found = tacos.synthesize(network, goal, effort="fast")
        columns = [found.lane_route, found.lane_begin, found.chunk, found.start]
        digest = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
        print(found.engine, found.executed_ps, digest, found.provenance["ends"])
"""


def test_answers_and_ends_are_the_same_for_any_number_of_threads():
    told = []
    for threads in ("1", "2"):
        limited = os.environ | {"OMP_NUM_THREADS": threads}
        words = [sys.executable, "-c", PROGRAM, threads]
        told.append(
            subprocess.run(words, env=limited, check=True, capture_output=True, text=True).stdout
        )
    assert len(told[0].splitlines()) == 4
    assert told[0] == told[1]
