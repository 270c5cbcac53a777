"""Every operation of a plan, in an all-reduce that is correct with it and wrong without it.

Of two GPUs, GPU r sums chunk r in place and sends the sum to the other. An operation that is dropped, or
whose chunk index is off by one, must be detected.
"""

from __future__ import annotations

import pytest

import tacos
from tacos import FormatError
from tests.support.mscclpp_plans import SIGNAL, WAIT, away, local, proven, saved, two_gpus

INPUT, SCRATCH = 0, 1  # ids of the other GPU's buffers


def op(name, sources, targets, **fields):
    channel = {"channel_type": "memory", "channel_ids": [0]}
    return {"name": name, "src_buff": sources, "dst_buff": targets} | channel | fields


def send(r, name="put", **fields):
    """Send the chunk that the other GPU sums to its scratch buffer."""
    return op(name, [local("i", 1 - r)], [away(0, buffer=SCRATCH)], **fields)


def add(r, scratch=0):
    return op("re", [local("i", r), local("s", scratch)], [local("i", r)])


def give(r, name="put", **fields):
    """Send the sum to the other GPU."""
    return op(name, [local("i", r)], [away(r, buffer=INPUT)], **fields)


def relaxed(order):
    return {**order, "name": f"rlx{order['name']}"}


def loop(*ops):
    return {"name": "pipeline", "iter_context": {"unit_size": 1024, "num_chunks": 1}, "ops": ops}


NOP, FLUSH = {"name": "nop"}, op("flush", [], [])
MEET = [SIGNAL, WAIT]


def through_switch(name, source, chunk, buffer="i"):
    piece = {"switch_channel_id": 0, "index": chunk, "size": 1}
    return op(name, [source or piece], [piece], channel_type="switch", channel_ids=[])


PLANS = {
    "put": lambda r: [[send(r), *MEET, add(r), give(r), *MEET]],
    "pws": lambda r: [[send(r, "pws"), WAIT, add(r), give(r, "pws"), WAIT]],
    "pwsf": lambda r: [[send(r, "pwsf"), WAIT, add(r), give(r, "pwsf"), WAIT]],
    "get": lambda r: [
        [op("get", [away(r)], [local("s", 0)]), add(r), give(r), *MEET]
    ],
    "copy": lambda r: [
        [send(r), *MEET, op("copy", [local("s", 0)], [local("s", 1)]), add(r, 1), give(r), *MEET]
    ],
    "re": lambda r: [[send(r), NOP, *MEET, NOP, add(r), FLUSH, give(r), *MEET]],
    "rre": lambda r: [
        [op("rre", [local("i", r), away(r)], [local("i", r)]), give(r), *MEET]
    ],
    "rres": lambda r: [
        [op("rres", [local("i", r), away(r)], [local("i", r), away(r)]), *MEET]
    ],
    "res": lambda r: [
        [
            send(r),
            *MEET,
            op("res", [local("i", r), local("s", 0)], [local("i", r), away(r)]),
            *MEET,
        ]
    ],
    "rlxsignal": lambda r: [
        [send(r), relaxed(SIGNAL), relaxed(WAIT), add(r), give(r), relaxed(SIGNAL), relaxed(WAIT)]
    ],
    "pipeline": lambda r: [[loop(send(r), *MEET, add(r), give(r), *MEET)]],
    "ppkt": lambda r: [
        [
            send(r, "ppkt"),
            op("repkt", [local("i", r), local("s", 0)], [local("i", r)]),
            give(r),
            *MEET,
        ]
    ],
    "cpkt": lambda r: [
        [
            op("cpkt", [local("i", 1 - r)], [local("s", 1)]),
            op("rppkt", [local("s", 1)], [away(0, buffer=SCRATCH)]),
            op("repkt", [local("i", r), local("s", 0)], [local("i", r)]),
            give(r),
            *MEET,
        ]
    ],
    "respkt": lambda r: [
        [
            send(r, "ppkt"),
            op(
                "respkt",
                [local("i", r), local("s", 0)],
                [local("i", r), away(1, buffer=SCRATCH)],
            ),
        ],
        [op("upkt", [local("s", 1)], [local("i", 1 - r)])],
    ],
    "recpkt": lambda r: [
        [
            send(r, "ppkt"),
            op("recpkt", [local("i", r), local("s", 0)], [local("i", r), local("s", 1)]),
        ],
        [op("rppkt", [local("s", 1)], [away(2, buffer=SCRATCH)])],
        [op("upkt", [local("s", 2)], [local("i", 1 - r)])],
    ],
    "recspkt": lambda r: [
        [
            send(r, "ppkt"),
            op(
                "recspkt",
                [local("i", r), local("s", 0)],
                [local("i", r), local("s", 1), away(2, buffer=SCRATCH)],
            ),
        ],
        [op("upkt", [local("s", 2)], [local("i", 1 - r)])],
    ],
    "glres": lambda r: [[*MEET, through_switch("glres", None, r), *MEET]],
    "gstore": lambda r: [
        [send(r), *MEET, add(r), through_switch("gstore", local("i", r), r), *MEET]
    ],
    "gstorepkt": lambda r: [
        [
            send(r, "ppkt"),
            op("recpkt", [local("i", r), local("s", 0)], [local("i", r), local("s", 1)]),
        ],
        [through_switch("gstorepkt", local("s", 1), 2 + r)],
        [op("upkt", [local("s", 3 - r)], [local("i", 1 - r)])],
    ],
}  # fmt: skip
WITHOUT_EFFECT = {"nop", "flush", "pipeline"}


def plan_of(name):
    switch = "s" if name == "gstorepkt" else "i" if name in ("glres", "gstore") else ""
    return two_gpus(PLANS[name], scratch=4, buffers="is", switch=switch)


def works(plan, tmp_path):
    try:
        return tacos.verify(tacos.load(saved(plan, tmp_path))).ok
    except FormatError:
        return False


def rows(plan):
    """The lists of operations of GPU 0."""
    for block in plan["gpus"][0]["threadblocks"]:
        yield block["ops"]
        yield from (one["ops"] for one in block["ops"] if "ops" in one)


@pytest.mark.parametrize("name", PLANS)
def test_each_operation_does_what_it_says(name, tmp_path):
    proven(tacos.load(saved(plan_of(name), tmp_path)))


@pytest.mark.parametrize("name", PLANS)
def test_each_operation_is_needed(name, tmp_path):
    for i, ops in enumerate(rows(plan_of(name))):
        for at, one in enumerate(ops):
            if one["name"] in WITHOUT_EFFECT:
                continue
            plan = plan_of(name)
            list(rows(plan))[i].pop(at)
            assert not works(plan, tmp_path), one


@pytest.mark.parametrize("name", PLANS)
def test_each_operation_is_looked_at(name, tmp_path):
    for i, ops in enumerate(rows(plan_of(name))):
        for at, one in enumerate(ops):
            for side in ("src_buff", "dst_buff"):
                for k in range(len(one.get(side, ()))):
                    plan = plan_of(name)
                    piece = list(rows(plan))[i][at][side][k]
                    piece["index"] = (piece["index"] + 1) % (2 if piece.get("type") == "i" else 4)
                    assert not works(plan, tmp_path), (one, side, k)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("put", lambda o: o[0].update(channel_type="switch"), "op 0: the field channel_type is switch; it must be memory or port"),
        ("put", lambda o: o[0]["src_buff"][0].pop("type"), "op 0: an entry of src_buff needs the field type"),
        ("put", lambda o: o[0]["dst_buff"][0].pop("buffer_id"), "op 0: an entry of dst_buff needs the field buffer_id"),
        ("put", lambda o: o[0]["dst_buff"][0].update(buffer_id=2), "op 0: the field buffer_id is 2; the threadblock has 2 remote buffers"),
        ("put", lambda o: o[0]["dst_buff"][0].update(size=2), "op 0: the field size is 1 in src_buff and 2 in dst_buff; they must be equal"),
        ("put", lambda o: o[0]["dst_buff"].pop(), "op 0: the fields src_buff and dst_buff have 1 and 0 entries"),
        ("put", lambda o: o[1].update(channel_ids=[0] * 9), "op 1: the field channel_ids has 9 entries; the executor takes at most 8"),
        ("put", lambda o: o[0].update(tbg_info={"tb_id": 2, "tbg_size": 2}), "op 0: the field tb_id is 2; it must be below tbg_size, 2"),
        ("put", lambda o: o[0].update(tbg_info={"tb_id": 0, "tbg_size": 65}), "the fields tbg_size cut a chunk into 65 or more parts"),
        ("put", lambda o: o[0].update(tbg_info={"tb_id": 0}), "op 0: the field tbg_info has no field tbg_size"),
        ("pws", lambda o: o[0].update(channel_ids=[]), "op 0: the field channel_ids has 0 entries; the operation needs 1"),
        ("re", lambda o: o[5]["src_buff"].pop(), "op 5: the fields src_buff and dst_buff have 1 and 1 entries; they must have 2 and 1"),
        ("re", lambda o: o[5]["src_buff"][0].update(size=2), "op 5: the field size is 1 in one buffer of a reduction and 2 in another; all must be equal"),
        ("cpkt", lambda o: o[1]["src_buff"].append(local("s", 2)), "op 1: the field src_buff has 2 entries; it must have 1"),
        ("pipeline", lambda o: o[0].pop("iter_context"), "op 0: a pipeline needs the field iter_context"),
        ("pipeline", lambda o: o[0]["iter_context"].update(num_chunks=2), "op 0: an operation of the pipeline has size 1; it must be the pipeline's num_chunks, 2"),
        ("pipeline", lambda o: o[0]["ops"].append({"name": "pipeline", "ops": [NOP]}), "op 0, inner op 7: a pipeline must not contain another pipeline"),
        ("glres", lambda o: o[2]["src_buff"][0].pop("switch_channel_id"), "op 2: a buffer behind a switch needs the field switch_channel_id"),
        ("glres", lambda o: o[2]["src_buff"][0].update(switch_channel_id=1), "op 2: the field switch_channel_id is 1; the threadblock has 1 switch channels"),
        ("put", lambda o: o.append({"name": "barrier"}), "op 7: a barrier needs the fields barrier_id and num_threadblocks"),
        ("put", lambda o: o.append({"name": "barrier", "barrier_id": 16}), "op 7: the field barrier_id is 16; it must be 0 to 15"),
        ("put", lambda o: o.append({"name": "sem_acquire", "semaphore_ids": [0]}), "op 7: the field semaphore_ids has the entry 0; the gpu has 0 semaphores"),
        ("put", lambda o: o.append({"name": "sem_acquire", "semaphore_ids": [0] * 17}), "op 7: the field semaphore_ids has 17 entries"),
        ("put", lambda o: o.append({"name": 3}), "op 7: the field name is 3; it must be a string"),
        ("put", lambda o: o.append({}), "op 7: the field name is missing"),
    ],
)  # fmt: skip
def test_wrong_operations_are_named(name, change, message, tmp_path):
    plan = plan_of(name)
    change(plan["gpus"][0]["threadblocks"][0]["ops"])
    with pytest.raises(FormatError) as caught:
        tacos.load(saved(plan, tmp_path))
    assert message in str(caught.value)
