"""Runs executions of all ranks in one process: messages wait in lists and arrive in a random order.

A signal does not overtake a put from the same rank, as on a connection.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from typing import Any

import numpy as np

from tacos._core import RankExecutor
from tacos.program import STEP_OPS


class Machine:
    """The executions of all ranks of a program, and the messages between them."""

    def __init__(self, program):
        self.program = program
        self.executions = [RankExecutor(program, rank) for rank in range(program.ranks)]

    def run(self, sources, targets, count, op, random):
        """Run one call; raise AssertionError if the ranks stop before the end."""
        dtype = targets[0].dtype.name
        sends: deque[Any] = deque()
        receives: dict[Any, Any] = {}
        sent: Any = defaultdict(deque)  # messages by sender, receiver and tag
        puts: Any = defaultdict(set)  # on their way, by sender and receiver
        behind: dict[Any, set[int]] = {}  # the puts that were on their way when a signal left
        for execution, source, target in zip(self.executions, sources, targets, strict=True):
            execution.start(source.ctypes.data, target.ctypes.data, count, dtype, op)
            self._note(execution, sends, receives)
        while sends or receives:
            able = [
                key for key in receives if sent[key] and not behind.get(key, set()) & puts[key[:2]]
            ]
            assert able or sends, f"no rank can go on: {sorted(receives)}"
            if sends and (not able or random.random() < 0.5):
                index = random.randrange(len(sends))
                rank, step, peer, tag, bytes_ = sends[index]
                del sends[index]
                execution = self.executions[rank]
                data = b"".join(ctypes.string_at(a, n) for a, n in execution.outgoing(step))
                assert len(data) == bytes_
                sent[rank, peer, tag].append(data)
                if STEP_OPS[self.program.op[tag]] == "put":
                    puts[rank, peer].add(tag)
                elif STEP_OPS[self.program.op[tag]] == "signal":
                    behind[rank, peer, tag] = puts[rank, peer].copy()
                execution.sent(step)
            else:
                key = random.choice(able)
                step, bytes_ = receives.pop(key)
                puts[key[:2]].discard(key[2])
                execution = self.executions[key[1]]
                arrived = np.frombuffer(sent[key].popleft(), np.uint8).copy()
                assert len(arrived) == bytes_
                cut = random.randrange(len(arrived) + 1) // 8 * 8
                for piece in (arrived[:cut], arrived[cut:]):
                    execution.take(step, piece.ctypes.data, len(piece))
                execution.received(step)
                if STEP_OPS[self.program.op[key[2]]] == "put":
                    self.executions[key[0]].stored(key[1])
                    self._note(self.executions[key[0]], sends, receives)
            self._note(execution, sends, receives)
        for execution in self.executions:
            assert execution.finished
            execution.finish()

    def _note(self, execution, sends, receives):
        for receive, step, peer, _, tag, bytes_ in zip(
            *(column.tolist() for column in execution.ready()), strict=True
        ):
            if receive:
                receives[peer, execution.rank, tag] = (step, bytes_)
            else:
                sends.append((execution.rank, step, peer, tag, bytes_))
