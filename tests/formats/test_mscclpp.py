"""MSCCL++ execution plans: ours and those of other tools verify when they are read.

Real files are read from the directory that TACOS_TEST_DATA names; without it, that test is skipped.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import FormatError
from tacos import collective as co
from tacos import topology as tp
from tacos.formats.mscclpp.execution_plan import COLLECTIVES, MOST_OPS
from tacos.program import STEP_OPS
from tests.support.mscclpp_plans import SIGNAL, WAIT, away, local, proven, saved, two_gpus
from tests.support.real_files import real_files
from tests.support.strategies import topologies


def plan_of(path):
    return json.loads(Path(path).read_text())


def ops(plan):
    return [
        op
        for gpu in plan["gpus"]
        for block in gpu["threadblocks"]
        for outer in block["ops"]
        for op in (outer, *outer.get("ops", ()))
    ]


def schedule(spec, kind, chunks=1, **options):
    topology = tp.parse(spec)
    return tacos.synthesize(topology, co.named(kind, topology, "1MB", chunks=chunks), **options)


@pytest.mark.slow
@given(network=topologies(), data=st.data())
@settings(max_examples=20)
def test_what_is_written_is_right_when_read_back(tmp_path_factory, network, data):
    kind = data.draw(st.sampled_from(sorted(COLLECTIVES)))
    goal = co.named(kind, network, "1KB", chunks=data.draw(st.integers(1, 3)))
    engine = data.draw(st.sampled_from(tacos.engines(network, goal)))
    made = tacos.synthesize(network, goal, engine=engine)
    assume(not made.routes.kinds.any())
    in_place = kind != "all_to_all" and data.draw(st.booleans())
    channel = data.draw(st.sampled_from(["memory", "port"]))
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    tacos.save(made, path, in_place=in_place, channel=channel, threadblocks=512)
    program = proven(tacos.load(path))
    assert (program.collective.kind, program.in_place) == (kind, in_place)
    assert program.collective.chunks == made.collective.chunks
    # A plan that was read can be written, and verifies again.
    tacos.save(program, path, threadblocks=512)
    proven(tacos.load(path))


@pytest.mark.parametrize("kind", sorted(COLLECTIVES))
@pytest.mark.parametrize(
    "options", [{"channel": "port"}, {"box": 2}, {"pipeline": "64KiB"}], ids=str
)
def test_options_keep_the_algorithm(tmp_path, kind, options):
    tacos.save(schedule("ring:4", kind, chunks=2), tmp_path / "plan.json", **options)
    proven(tacos.load(tmp_path / "plan.json"))


def test_an_all_gather_between_two(tmp_path):
    """By hand: each GPU signals that it has started, puts its chunk into the other's output, and signals."""
    path = tmp_path / "plan.json"
    tacos.save(
        schedule("ring:2", "all_gather"), path, name="two", min_bytes="1KiB", max_bytes="1GiB"
    )
    plan = plan_of(path)
    assert plan["min_message_size"] == 1024
    assert plan["max_message_size"] == 2**30
    gpu = plan["gpus"][1]
    assert (gpu["input_chunks"], gpu["output_chunks"], gpu["scratch_chunks"]) == (1, 2, 0)
    assert gpu["remote_buffers"] == [{"rank": 0, "type": "o", "access_channel_types": ["memory"]}]
    assert gpu["channels"] == [{"channel_type": "memory", "connected_to": [0, 0]}]
    local, receives, sends = gpu["threadblocks"]
    assert [op["name"] for op in local["ops"]] == ["copy"]
    assert [op["name"] for op in receives["ops"]] == ["rlxsignal", "wait"]
    assert [op["name"] for op in sends["ops"]] == ["rlxwait", "nop", "put", "nop", "signal"]
    put = sends["ops"][2]
    assert put["src_buff"] == [{"type": "i", "index": 0, "size": 1}]
    assert put["dst_buff"] == [{"buffer_id": 0, "index": 1, "size": 1}]


def test_port_channels_put_signal_and_flush(tmp_path):
    tacos.save(schedule("ring:3", "all_reduce"), tmp_path / "plan.json", channel="port")
    plan = plan_of(tmp_path / "plan.json")
    names = {op["name"] for op in ops(plan)}
    assert "pwsf" in names
    assert not names & {"put", "pws", "signal"}
    assert {c["channel_type"] for gpu in plan["gpus"] for c in gpu["channels"]} == {"port"}


def test_boxes_use_memory_within_and_ports_between(tmp_path):
    tacos.save(schedule("fc:4", "all_to_all"), tmp_path / "plan.json", box=2)
    for gpu in plan_of(tmp_path / "plan.json")["gpus"]:
        for channel in gpu["channels"]:
            near = {peer // 2 == gpu["id"] // 2 for peer in channel["connected_to"]}
            assert near == {channel["channel_type"] == "memory"}


def test_messages_land_where_they_are_wanted(tmp_path):
    """On a ring, the result arrives after a GPU has sent its part, so only partial sums need scratch."""
    tacos.save(
        schedule("ring:6", "all_reduce", engine="ring"), tmp_path / "plan.json", in_place=True
    )
    plan = plan_of(tmp_path / "plan.json")
    assert [gpu["scratch_chunks"] for gpu in plan["gpus"]] == [5] * 6
    assert "copy" not in {op["name"] for op in ops(plan)}


@pytest.mark.slow
def test_long_threads_go_on_in_further_threadblocks(tmp_path):
    path = tmp_path / "plan.json"
    tacos.save(schedule("ring:8", "all_reduce", chunks=8, engine="ring"), path)
    plan = plan_of(path)
    counts = [len(block["ops"]) for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    assert max(counts) <= MOST_OPS < sum(counts) / 8
    assert plan["gpus"][0]["semaphores"]
    proven(tacos.load(path))
    with pytest.raises(
        ValueError, match=r"rank 0 needs \d+ threadblocks of 64 operations; the limit is 2"
    ):
        tacos.save(schedule("ring:8", "all_reduce", chunks=8), path, threadblocks=2)


def test_a_pipeline_wraps_what_is_ordered(tmp_path):
    tacos.save(schedule("ring:3", "all_gather"), tmp_path / "plan.json", pipeline="1MiB")
    copies, *talks = plan_of(tmp_path / "plan.json")["gpus"][0]["threadblocks"]
    assert [op["name"] for op in copies["ops"]] == ["copy"]
    looped = set()
    for block in talks:
        loop = block["ops"][-1]
        assert loop["iter_context"] == {"unit_size": 2**20, "num_chunks": 1}
        looped |= {op["name"] for op in loop["ops"]}
        assert not {op["name"] for op in block["ops"][:-1]} & {"put", "signal", "wait"}
    assert looped >= {"put", "nop", "signal", "wait"}


def test_data_and_signals_are_kept_apart_by_nops(tmp_path):
    """Few GPU threads wait and signal, but all move data, so a nop separates the two in either order."""
    tacos.save(schedule("torus:3x3", "all_reduce", chunks=2), tmp_path / "plan.json")
    for gpu in plan_of(tmp_path / "plan.json")["gpus"]:
        for block in gpu["threadblocks"]:
            names = [op["name"] for op in block["ops"]]
            for first, second in pairwise(names):
                if first in ("wait", "rlxwait", "sem_acquire"):
                    assert second in ("nop", "wait", "rlxwait", "sem_acquire")
                if first in ("put", "copy", "re"):
                    assert second not in ("signal", "sem_release")


def test_offsets_stay_below_four_gibibytes(tmp_path):
    tacos.save(schedule("ring:4", "all_reduce", engine="ring"), tmp_path / "plan.json")
    plan = plan_of(tmp_path / "plan.json")
    slots = max(4, *(gpu["scratch_chunks"] for gpu in plan["gpus"]))
    assert plan["max_message_size"] // 4 * slots < 2**32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channel": "pcie"}, 'channel must be memory or port; got "pcie"'),
        ({"threadblocks": 0}, "threadblocks must be a positive number; got 0"),
        ({"box": 3}, "box must divide the 2 GPUs; got 3"),
        ({"pipeline": "100B"}, "pipeline is 100 B; it must be a multiple of 16"),
        (
            {"min_bytes": "2MB", "max_bytes": "1MB"},
            "min_bytes is 2000000; it must be below max_bytes, which is 1000000",
        ),
        (
            {"colour": "red"},
            'the format mscclpp has no option "colour"; its options are channel, box',
        ),
    ],
)
def test_wrong_options(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tacos.save(
            schedule("ring:2", "all_gather"), tmp_path / "plan.json", format="mscclpp", **options
        )
    assert not (tmp_path / "plan.json").exists()


def test_what_a_plan_cannot_say(tmp_path):
    with pytest.raises(
        ValueError,
        match="execution plans hold one of all-reduce, all-gather, reduce-scatter, all-to-all, not broadcast",
    ):
        tacos.save(schedule("ring:3", "broadcast"), tmp_path / "plan.json")
    topology = tp.ring(4)
    some = tacos.synthesize(topology, co.all_gather(topology, "1MB", group=[0, 2], chunks=1))
    with pytest.raises(ValueError, match="its own group"):
        tacos.save(some, tmp_path / "plan.json")


# --- plans of other tools -------------------------------------------------------------------------


@pytest.mark.parametrize("path", real_files("mscclpp-json/*.json"))
def test_plans_of_others_are_right(path, tmp_path):
    program = proven(tacos.load(path))
    tacos.save(program, tmp_path / "again.json")
    proven(tacos.load(tmp_path / "again.json"))


def exchange(rank):
    """Sum the GPU's own half with that in the other's memory, and put the sum back."""
    return {
        "name": "rres",
        "src_buff": [local("i", rank), away(rank)],
        "dst_buff": [local("i", rank), away(rank)],
        "channel_type": "memory",
    }


def test_reading_by_hand(tmp_path):
    path = saved(two_gpus(lambda r: [[SIGNAL, WAIT, exchange(r), SIGNAL, WAIT]]), tmp_path)
    program = proven(tacos.load(path))
    words = [STEP_OPS[op] for op in program.op[:6]]
    assert words == ["signal", "wait", "get_reduce", "put", "signal", "wait"]
    assert program.comes_from[:6].tolist() == [-1, 6, -1, -1, -1, 10]


def test_a_missing_signal_is_found(tmp_path):
    path = saved(
        two_gpus(lambda r: [[SIGNAL, WAIT, exchange(r), *([SIGNAL] if r else []), WAIT]]), tmp_path
    )
    found = tacos.verify(tacos.load(path))
    assert {violation.rule for violation in found.violations} >= {"unmatched"}


def test_packets_are_read_after_they_are_written(tmp_path):
    def blocks(rank):
        first = {
            "name": "ppkt",
            "src_buff": [local("i", 1 - rank)],
            "dst_buff": [away(0)],
            "channel_type": "memory",
        }
        second = {
            "name": "respkt",
            "src_buff": [local("i", rank), local("s", 0)],
            "dst_buff": [local("i", rank), away(1)],
            "channel_type": "memory",
        }
        third = {"name": "upkt", "src_buff": [local("s", 1)], "dst_buff": [local("i", 1 - rank)]}
        return [[first, second], [third]]

    plan = two_gpus(blocks, scratch=2, buffers="s", protocol="LL")
    proven(tacos.load(saved(plan, tmp_path)))
    plan["gpus"][0]["threadblocks"][0]["ops"].pop(0)
    with pytest.raises(
        FormatError, match="gpu 1, threadblock 0, op 1: reads packets that are never written"
    ):
        tacos.load(saved(plan, tmp_path))


def test_a_switch_sums_and_stores(tmp_path):
    def blocks(rank):
        piece = {"switch_channel_id": 0, "index": rank, "size": 1}
        sums = {"name": "glres", "src_buff": [piece], "dst_buff": [piece], "channel_type": "switch"}
        return [[SIGNAL, WAIT, sums, SIGNAL, WAIT]]

    proven(tacos.load(saved(two_gpus(blocks, switch="i"), tmp_path)))


def test_groups_of_threadblocks_share_an_operation(tmp_path):
    def blocks(rank, parts=2):
        half = [{**exchange(rank), "tbg_info": {"tb_id": t, "tbg_size": 2}} for t in range(parts)]
        barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
        return [
            [SIGNAL, WAIT, barrier, half[0], barrier, SIGNAL, WAIT],
            [barrier, half[1], barrier],
        ]

    program = proven(tacos.load(saved(two_gpus(blocks), tmp_path)))
    assert program.collective.chunks == 4  # twice as many as in the file
    plan = two_gpus(blocks)
    plan["gpus"][1]["threadblocks"][1]["ops"].pop()
    with pytest.raises(
        FormatError, match="num_threadblocks is 2, but 1 threadblocks enter barrier 0"
    ):
        tacos.load(saved(plan, tmp_path))


def test_semaphores_order_threadblocks(tmp_path):
    def blocks(rank):
        acquire, release = (
            {"name": f"sem_{n}", "semaphore_ids": [0]} for n in ("acquire", "release")
        )
        memory = {"channel_type": "memory"}
        get = {"name": "get", "src_buff": [away(rank)], "dst_buff": [local("s", 0)], **memory}
        add = {"src_buff": [local("i", rank), local("s", 0)], "dst_buff": [local("i", rank)]}
        put = {"name": "put", "src_buff": [local("i", rank)], "dst_buff": [away(rank)], **memory}
        return [[get, release], [acquire, {"name": "re", **add}, put, SIGNAL, WAIT]]

    plan = two_gpus(blocks, scratch=1, semaphores=[0])
    proven(tacos.load(saved(plan, tmp_path)))
    plan["gpus"][0]["semaphores"][0]["init_value"] = 1  # so the second block need not wait
    assert not tacos.verify(tacos.load(saved(plan, tmp_path))).ok
    plan["gpus"][0]["semaphores"][0]["init_value"] = 0
    plan["gpus"][0]["threadblocks"][0]["ops"].pop()
    with pytest.raises(
        FormatError, match="gpu 0: semaphore 0 is acquired 1 times, but starts at 0"
    ):
        tacos.load(saved(plan, tmp_path))


# --- damage ---------------------------------------------------------------------------------------


def broken(change):
    plan = two_gpus(lambda r: [[SIGNAL, WAIT, exchange(r), SIGNAL, WAIT]])
    change(plan["gpus"][1], plan["gpus"][1]["threadblocks"][0])
    return plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g, b: b["ops"][2].update(name="rss"), 'gpu 1, threadblock 0, op 2: the field name is "rss"'),
        (lambda g, b: b["ops"][2].pop("src_buff"), "gpu 1, threadblock 0, op 2: the fields src_buff and"),
        (lambda g, b: b["ops"][2].update(src_buff=3), "gpu 1, threadblock 0, op 2: the field src_buff is 3; it must be a list"),
        (lambda g, b: b["ops"][0].update(channel_ids=[1]), "op 0: the field channel_ids has the entry 1; the threadblock has 1 channels"),
        (lambda g, b: b["ops"].extend([SIGNAL] * 64), "gpu 1, threadblock 0: 69 operations; the executor takes at most 64"),
        (lambda g, b: b.update(id=1), "gpu 1, threadblock 0: the field id is 1; it must be 0, its position in threadblocks"),
        (lambda g, b: g.update(id=0), "gpu 1: the field id is 0; it must be 1, its position in gpus"),
        (lambda g, b: g.update(input_chunks=3), "the field input_chunks is 2; it must be 0 or 3"),
        (lambda g, b: g.update(scratch_chunks=10**9), "far more than the operations can fill"),
        (lambda g, b: g["channels"][0].update(connected_to=[1]), "gpu 1: the field connected_to has the entry 1; it must be another"),
        (lambda g, b: b["ops"][2]["dst_buff"][0].update(index=9), "op 2: the field index is 9 and the size 1; the input buffer of gpu 1 has 2 chunks"),
        (lambda g, b: b["ops"][2]["dst_buff"][0].update(index=10**18), "op 2: the field index is 1000000000000000000; it must be"),
        (lambda g, b: b["ops"][2]["dst_buff"][0].update(index=int("9" * 400)), "op 2: the field index is 9999"),
        (lambda g, b: g.pop("threadblocks"), "gpu 1: the field threadblocks is missing"),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path, change, message):
    path = saved(broken(change), tmp_path)
    with pytest.raises(FormatError, match=message) as caught:
        tacos.load(path, format="mscclpp")
    assert str(caught.value).startswith(str(path))


@given(data=st.data())
@settings(max_examples=100)
def test_damaged_files_are_refused_in_words(tmp_path_factory, data):
    text = json.dumps(broken(lambda g, b: None)).encode()
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 6))
    put = data.draw(
        st.sampled_from([b"", b"0", b"-1", b"99999999999", b'"', b"[", b"}", b"null", b"1e9"])
    )
    path = tmp_path_factory.mktemp("damage") / "plan.json"
    path.write_bytes(text[:at] + put + text[at + length :])
    with suppress(FormatError):
        tacos.verify(tacos.load(path, format="mscclpp"))


def test_a_plan_is_recognized_by_its_content(tmp_path):
    tacos.save(schedule("ring:3", "all_gather"), tmp_path / "one.json")
    assert isinstance(tacos.load(tmp_path / "one.json"), tacos.Program)
    tacos.save(tp.ring(3), tmp_path / "two.json")
    assert isinstance(tacos.load(tmp_path / "two.json"), tacos.Topology)
    assert np.array_equal(tacos.load(tmp_path / "two.json").link_src, tp.ring(3).link_src)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "LL2"}, 'the field protocol is "LL2"; it must be Simple or LL'),
        ({"inplace": 3}, "the field inplace is 3; it must be true or false"),
        (
            {"num_threads_per_block": 0},
            "the field num_threads_per_block is 0; it must be a positive",
        ),
        ({"name": None}, "the field name is null; it must be a string"),
    ],
)
def test_a_wrong_field_of_the_head_is_named_with_its_value(tmp_path, change, message):
    path = saved(broken(lambda gpu, block: None) | change, tmp_path)
    with pytest.raises(FormatError, match=message):
        tacos.load(path, format="mscclpp")


def test_a_missing_field_of_the_head_is_named(tmp_path):
    plan = broken(lambda gpu, block: None)
    del plan["protocol"]
    with pytest.raises(FormatError, match="the field protocol is missing"):
        tacos.load(saved(plan, tmp_path), format="mscclpp")
