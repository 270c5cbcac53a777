"""MSCCL++ plans by hand: all-reduces of two GPUs with two chunks each."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import tacos
from tests.support import program_oracle


def proven(program):
    tacos.verify(program).raise_if_failed()
    assert program_oracle.run(program, random.Random(0)) == []
    return program


def local(kind, index, size=1):
    return {"type": kind, "index": index, "size": size}


def away(index, size=1, buffer=0):
    return {"buffer_id": buffer, "index": index, "size": size}


def two_gpus(ops_of, *, inplace=True, scratch=0, buffers="i", semaphores=(), switch="", **fields):
    """A plan in which GPU r has threadblocks ``ops_of(r)``, all with one channel to the other GPU.

    Args:
        ops_of: Operations by threadblock.
        inplace: Whether input and output are the same memory.
        scratch: Scratch chunks of each GPU.
        buffers: Letters of the other GPU's buffers, which operations name by their position here.
        semaphores: Initial values.
        switch: The letter of the buffers behind a switch channel, if there is one.
        fields: Further fields of the plan.
    """
    channels: list[dict[str, Any]] = [{"channel_type": "memory", "connected_to": None}]
    in_block = [{"channel_type": "memory", "channel_ids": [0]}]
    if switch:
        group = {"size": 2, "ranks": [0, 1]}
        channels.append({"channel_type": "switch", "buffer_type": switch, "rank_groups": [group]})
        in_block.append({"channel_type": "switch", "channel_ids": [0]})
    gpus = []
    for rank in range(2):
        here = copy.deepcopy(channels)
        here[0]["connected_to"] = [1 - rank]
        gpus.append(
            {
                "id": rank,
                "input_chunks": 2,
                "output_chunks": 2,
                "scratch_chunks": scratch,
                "channels": here,
                "remote_buffers": [
                    {"rank": 1 - rank, "type": letter, "access_channel_types": ["memory"]}
                    for letter in buffers
                ],
                "semaphores": [{"init_value": value} for value in semaphores],
                "threadblocks": [
                    {
                        "id": t,
                        "ops": block,
                        "channels": in_block,
                        "remote_buffer_refs": [
                            {
                                "access_channel_type": "memory",
                                "remote_buffer_ids": list(range(len(buffers))),
                            }
                        ],
                    }
                    for t, block in enumerate(ops_of(rank))
                ],
            }
        )
    plan = {"name": "two", "collective": "allreduce", "protocol": "Simple", "inplace": inplace}
    return json.loads(json.dumps(plan | {"gpus": gpus} | fields))  # parts share no object


def saved(plan, tmp_path):
    path = tmp_path / "hand.json"
    path.write_text(json.dumps(plan))
    return path


SIGNAL, WAIT = (
    {"name": name, "channel_ids": [0], "channel_type": "memory"} for name in ("signal", "wait")
)
