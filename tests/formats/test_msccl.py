"""Writing MSCCL files: packing, round trips, and what the format cannot express."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import formats
from tacos import topology as tp
from tacos._core import keep_order, pack, stuck
from tacos.errors import FormatError
from tacos.formats import msccl
from tacos.program import STEP_OPS, describe, facts_in, lower
from tests.support import program_oracle
from tests.support.msccl_files import loaded, saved
from tests.support.strategies import lowered, topologies

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


def ops(program):
    return Counter(STEP_OPS[op] for op in program.op.tolist())


def saved_text(obj, folder, **options):
    path = Path(folder) / "some.xml"
    tacos.save(obj, path, **options)
    return path.read_text()


def scheduled(spec, kind, engine="auto", chunks=1):
    topology = tp.parse(spec)
    return tacos.synthesize(
        topology, co.named(kind, topology, "64MB", chunks=chunks), engine=engine
    )


@pytest.fixture
def exchange(tmp_path):
    return partial(loaded, tmp_path)


@given(network=topologies(), data=st.data())
@settings(max_examples=15)
def test_programs_survive_the_file(network, data, tmp_path_factory):
    kind = data.draw(st.sampled_from([*NAMES, "gather", "scatter"]))
    chunks = data.draw(st.integers(1, 3))
    collective = co.named(kind, network, 8 * network.npus * chunks, chunks=chunks)
    engine = data.draw(st.sampled_from(tacos.engines(network, collective)))
    schedule = tacos.synthesize(network, collective, engine=engine)
    assume(not schedule.routes.kinds.any())
    program = lower(schedule, in_place=kind != "all_to_all" and data.draw(st.booleans()))
    rooted = kind in ("gather", "scatter")
    options = {
        "dialect": "azure" if rooted else data.draw(st.sampled_from(["msccl", "azure"])),
        "instances": data.draw(st.integers(1, 3)),
    }
    folder = tmp_path_factory.mktemp("written")
    try:
        found = saved(program, folder, **options)
    except FormatError as error:  # slow links may need many messages in flight
        assume("would wait forever" not in str(error))
        raise
    assert found.collective.kind == kind
    assert found.in_place == program.in_place
    assert tacos.verify(found).ok
    assert msccl.exceeded(found, options["dialect"]) == []
    assert program_oracle.run(found, data.draw(st.randoms(use_true_random=False))) == []
    # A second round trip changes nothing.
    assert saved(found, folder) == found


@given(order=lowered(), data=st.data())
@settings(max_examples=60)
def test_packed_programs_do_the_same(order, data):
    """Any collective and group, also those that MSCCL files cannot express, under tight limits."""
    _, program = order
    limits = {
        "fusing_channels": data.draw(st.integers(1, 8)),
        "steps": data.draw(st.sampled_from([12, 256])),
        "count": data.draw(st.integers(1, 4)),
        "unit": data.draw(st.integers(0, 3)),
    }
    try:
        packed = pack(program, channels=10**6, **limits)
    except ValueError as error:
        if limits["steps"] == 12 and "a step waits for more than 12 others" in str(error):
            reject()  # every dependency takes a step
        raise
    assert tacos.verify(packed).ok
    assert program_oracle.run(packed, data.draw(st.randoms(use_true_random=False))) == []
    rows = np.maximum(1, np.diff(packed.dep_begin))
    total = np.concatenate([[0], np.cumsum(rows)])
    assert (np.diff(total[packed.thread_begin]) <= limits["steps"]).all()
    fused = [STEP_OPS.index(o) for o in ("recv_send", "recv_reduce_forward", "recv_reduce_send")]
    moves = packed.count[packed.op == STEP_OPS.index("send")].sum()
    moves += packed.count[np.isin(packed.op, fused)].sum()
    assert moves == program.count[program.op == STEP_OPS.index("send")].sum()


def test_a_ring_all_reduce_is_the_hand_written_one(tmp_path):
    """One threadblock per GPU: a send, six sums passed on, the last kept as well, six results passed on, a receive."""
    found = saved(scheduled("ring:8", "all_reduce", "ring"), tmp_path, in_place=True)
    assert found.threads == 8
    assert [STEP_OPS[op] for op in found.op[:15]] == (
        ["send"] + 6 * ["recv_reduce_forward"] + ["recv_reduce_send"] + 6 * ["recv_send"] + ["recv"]
    )
    assert found.scratch_slots.max() == 0
    assert not found.dep.size


def test_neighbouring_chunks_travel_together(tmp_path):
    schedule = scheduled("fc:4", "all_to_all", "direct", chunks=8)
    found = saved(schedule, tmp_path)
    assert ops(found) == {"copy": 4, "send": 12, "recv": 12}
    assert set(found.count.tolist()) == {8}
    # Each of the two instances moves half of every block.
    copies = saved(schedule, tmp_path, instances=2)
    assert copies.collective.parts[0].chunks == 16
    assert set(copies.count.tolist()) == {8}
    assert sorted(set(copies.src_slot.tolist())) == [-1, *range(0, 64, 8)]


def test_more_dependencies_become_nops_before_the_step(tmp_path):
    """No step has more than one dependency; a nop and the step after it have exactly one each."""
    found = saved(scheduled("dgx-h100-plain:2", "all_reduce", "greedy"), tmp_path)
    waits, nop = np.diff(found.dep_begin), found.op == 0
    assert nop.any()
    assert waits.max() == 1
    assert (waits[nop] == 1).all()
    assert (waits[np.flatnonzero(nop) + 1] == 1).all()


def test_the_dialects_differ_in_words(tmp_path):
    path = tmp_path / "rs.xml"
    schedule = scheduled("ring:4", "reduce_scatter")
    tacos.save(schedule, path, name='a "b"', protocol="LL128", min_bytes="1KB", max_bytes="2MiB")
    head = path.read_text().splitlines()[0]
    assert head.startswith('<algo name=\'a "b"\' proto="LL128" nchannels=')
    assert head.endswith('coll="reduce_scatter" inplace="0" minBytes="1000" maxBytes="2097152">')
    assert tacos.load(path).provenance["name"] == 'a "b"'
    tacos.save(schedule, path, dialect="azure")
    assert (
        path.read_text()
        .splitlines()[0]
        .endswith('coll="reducescatter" inplace="0" outofplace="1" minBytes="0" maxBytes="0">')
    )


def test_long_threads_are_split_over_channels(tmp_path):
    """300 chunks from one GPU to the other in steps of one chunk; a thread has at most 256 steps."""
    topology = tp.ring(2)
    schedule = tacos.synthesize(
        topology, co.broadcast(topology, "1MB", chunks=300), engine="greedy"
    )
    program = lower(schedule)
    packed = pack(program, channels=32, fusing_channels=8, steps=256, count=1)
    assert np.diff(packed.thread_begin).max() <= 256
    assert packed.thread_channel.max() == 1
    with pytest.raises(
        ValueError,
        match="needs more than 1 channels: chunks overtake each other",
    ):
        pack(program, channels=1, fusing_channels=1, steps=256, count=1)
    assert set(saved(schedule, tmp_path).count[1:].tolist()) <= set(range(1, 72))


def test_messages_that_fill_the_buffers_are_found():
    """Two ranks that each send three messages before they receive any need room for three."""
    goal = co.all_to_all(2, 6, chunks=3)
    kinds = [STEP_OPS.index(o) for o in ["copy"] + 3 * ["send"] + 3 * ["recv"]]
    none = (3, -1)
    sides = []
    for rank in range(2):
        other = 1 - rank
        sides += [((0, 3 * rank), (1, 3 * rank))]
        sides += [((0, 3 * other + k), none) for k in range(3)]
        sides += [(none, (1, 3 * other + k)) for k in range(3)]
    program = tacos.Program(
        collective=goal,
        in_place=False,
        scratch_slots=np.zeros(2, np.int32),
        thread_rank=np.array([0, 1], np.int32),
        thread_channel=np.zeros(2, np.int32),
        thread_send_peer=np.array([1, 0], np.int32),
        thread_recv_peer=np.array([1, 0], np.int32),
        thread_begin=np.array([0, 7, 14]),
        op=np.array(2 * kinds, np.uint8),
        src_buffer=np.array([s[0] for s, _ in sides], np.uint8),
        src_slot=np.array([s[1] for s, _ in sides], np.int32),
        dst_buffer=np.array([d[0] for _, d in sides], np.uint8),
        dst_slot=np.array([d[1] for _, d in sides], np.int32),
        count=np.array(2 * [3, 1, 1, 1, 1, 1, 1], np.int32),
        peer=np.full(14, -1, np.int32),
        comes_from=np.array([-1] * 4 + [8, 9, 10] + [-1] * 4 + [1, 2, 3], np.int32),
        dep_begin=np.zeros(15, np.int64),
        dep=np.zeros(0, np.int32),
        format="msccl",
    )
    assert tacos.verify(program).ok
    assert stuck(program, 3) == -1
    assert stuck(program, 2) == 3
    with pytest.raises(FormatError, match=r"gpu 0, tb 0, step 3 would wait forever"):
        tacos.save(program, "never.xml")
    assert not Path("never.xml").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dialect": "nccl"}, 'dialect must be one of "msccl", "azure"; got "nccl"'),
        ({"protocol": "ll"}, 'protocol must be one of "Simple", "LL", "LL128"; got "ll"'),
        ({"channels": 0}, "channels must be 1 to 32; got 0"),
        ({"channels": 9, "instances": 4}, "channels must be 1 to 8 with 4 instances; got 9"),
        ({"instances": 33}, "instances must be 1 to 32; got 33"),
        ({"name": 64 * "x"}, "name must be at most 63 bytes of printable characters"),
        ({"name": "a\nb"}, "name must be at most 63 bytes of printable characters"),
        ({"min_bytes": "2MB", "max_bytes": "1MB"}, "min_bytes is 2000000, but max_bytes is 1000000"),
        ({"gpus": 3}, 'the format msccl has no option "gpus"; its options are dialect, protocol, channels'),
    ],
)  # fmt: skip
def test_wrong_options(options, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        tacos.save(scheduled("ring:4", "all_gather"), tmp_path / "x.xml", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: co.all_gather(4, "4MB", group=[0, 1, 2], chunks=1),
         "MSCCL files are for all ranks in order, but this"),
        (lambda: co.all_to_all_v(4, np.ones((4, 4), int), chunks=1),
         "MSCCL files of the dialect msccl hold one of all-reduce, all-gather"),
        (lambda: co.gather(4, "4MB", chunks=1), "not gather"),
        (lambda: co.together(co.all_gather(4, "4B", chunks=1), co.all_gather(4, "4B", chunks=1)),
         "hold one of"),
    ],
)  # fmt: skip
def test_what_the_files_cannot_say(make, message, tmp_path):
    schedule = tacos.synthesize(tp.fully_connected(4), make(), engine="greedy")
    with pytest.raises(ValueError, match=re.escape(message)):
        tacos.save(schedule, tmp_path / "x.xml")


def test_many_peers_are_split_over_channels(tmp_path):
    """40 GPUs, all to all: 39 peers over several channels, one threadblock per peer and direction, one for the copy."""
    found = saved(scheduled("fc:40", "all_to_all", "direct"), tmp_path)
    assert 1 <= found.thread_channel.max() <= 3
    assert msccl.exceeded(found) == []
    assert tacos.verify(found).ok
    assert np.bincount(found.thread_rank).tolist() == 40 * [2 * 39 + 1]


def test_threadblocks_send_and_receive_where_there_would_be_too_many(tmp_path):
    schedule = scheduled("fc:120", "all_to_all", "direct")
    found = saved(schedule, tmp_path)
    assert tacos.verify(found).ok
    assert np.bincount(found.thread_rank).max() <= 216
    more = saved(schedule, tmp_path, dialect="azure")
    assert np.bincount(more.thread_rank).tolist() == 120 * [2 * 119 + 1]
    with pytest.raises(
        FormatError, match=r"some.xml: gpu 0 has \d+ threadblocks; the limit is 216"
    ):
        saved(schedule, tmp_path, instances=2)


def test_a_program_with_threadblocks_keeps_them(exchange, tmp_path):
    program = exchange()
    with pytest.raises(
        ValueError, match="channels is 2, but a program with threadblocks keeps its"
    ):
        tacos.save(program, tmp_path / "x.xml", channels=2)
    with pytest.raises(ValueError, match="in_place is False, but the program was made with True"):
        tacos.save(program, tmp_path / "x.xml", in_place=False)


def test_the_command_names_the_executors_limits(tmp_path, capsys):
    """A correct algorithm in a threadblock of 257 steps: more than any executor accepts."""
    from tacos.cli import main

    steps = "".join(
        f'<step s="{i}" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" '
        'deps="-1" hasdep="0"/>'
        for i in range(257)
    )
    file = tmp_path / "long.xml"
    file.write_text(
        '<algo name="x" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="1" coll="allreduce" '
        'inplace="0"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0">'
        f'<tb id="0" send="-1" recv="-1" chan="0">{steps}</tb></gpu></algo>'
    )
    assert main(["verify", str(file)]) == 1
    assert "limit: gpu 0, tb 0 has 257 steps; the limit is 256" in capsys.readouterr().err


BOTH = """<algo name="own" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="1" coll="allreduce"
    inplace="1" outofplace="1" minBytes="0" maxBytes="0"><gpu id="0" i_chunks="2" o_chunks="2" s_chunks="2">
    <tb id="0" send="-1" recv="-1" chan="0">%s</tb></gpu></algo>"""
STEP = (
    '<step s="%d" type="cpy" srcbuf="%s" srcoff="%d" dstbuf="%s" dstoff="%d" cnt="%d" depid="-1" '
    'deps="-1" hasdep="0"/>'
)


TREE = """<algo name="tree" proto="LL" nchannels="1" nchunksperloop="1" ngpus="3" coll="allreduce" inplace="1">
<gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="1" recv="1" chan="0">
<step s="0" type="rrc" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
</tb></gpu>
<gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="0" recv="2" chan="0">
<step s="0" type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1"/>
</tb><tb id="1" send="2" recv="0" chan="0">
<step s="0" type="rcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="0" deps="0" hasdep="0"/>
</tb></gpu>
<gpu id="2" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="1" recv="1" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
</tb></gpu></algo>"""


def test_an_all_reduce_in_fewer_chunks_than_gpus(tmp_path):
    """Three GPUs pass the whole buffer of 3 MB along the line and back: 4 hops, each 500 ns and 3 MB / 50 GB/s = 60 us.

    Sending only the first of three chunks would take a third of that and lose the rest."""
    path = tmp_path / "tree.xml"
    path.write_text(TREE)
    program = tacos.load(path)
    assert tacos.verify(program).ok
    network = tp.mesh(3, bandwidth="50GB/s", latency="500ns")
    schedule = tacos.lift(program, network, "3MB")
    assert tacos.verify(schedule).ok
    assert schedule.transfers == 12
    assert schedule.time_s == pytest.approx(60e-6 + 3 * 20e-6 + 4 * 0.5e-6)  # 3 chunks, pipelined
    tacos.save(program, tmp_path / "tree.et", size="3MB", topology=network)
    traced = tacos.load(tmp_path / "tree.et")
    assert tacos.verify(traced).ok
    simulated = tacos.simulate(program, network, profile="astra-sim-aware", size="3MB")
    assert simulated.time_s > 4 * 60e-6
    tacos.save(program, tmp_path / "tree.json")
    assert tacos.verify(tacos.lift(tacos.load(tmp_path / "tree.json"), network)).ok


@pytest.mark.parametrize("chunks", [2, 4, 5, 6, 7])
def test_any_number_of_chunks_can_be_lifted(chunks, tmp_path):
    """The file above with more chunks in every step."""
    path = tmp_path / "tree.xml"
    text = TREE.replace('nchunksperloop="1"', f'nchunksperloop="{chunks}"')
    path.write_text(
        text.replace('_chunks="1"', f'_chunks="{chunks}"').replace('cnt="1"', f'cnt="{chunks}"')
    )
    program = tacos.load(path)
    assert tacos.verify(program).ok
    schedule = tacos.lift(program, size="1MB")
    assert tacos.verify(schedule).ok
    assert int(schedule.collective.chunks) == np.lcm(chunks, 3)
    assert tacos.verify(saved(schedule, tmp_path)).ok
    assert describe(program)["total_chunks"] == chunks
    assert tacos.verify(saved(program, tmp_path, instances=3)).ok


def test_a_small_file_cannot_fill_the_memory(tmp_path):
    """A thousand GPUs in 70 KB, each with 64,800 chunks that no step touches."""
    gpus = "".join(
        f'<gpu id="{i}" i_chunks="32" o_chunks="32000" s_chunks="32768"/>' for i in range(1000)
    )
    path = tmp_path / "empty.xml"
    path.write_text(
        '<algo name="x" proto="Simple" nchannels="1" nchunksperloop="32000" ngpus="1000" '
        f'coll="allgather" inplace="0">{gpus}</algo>'
    )
    with pytest.raises(
        FormatError, match="add up to 64800000, but 0 steps can use at most 1048576"
    ):
        tacos.load(path)


def test_a_file_for_both_is_checked_in_place_and_out_of_place(tmp_path, capsys):
    """Moving a chunk through another chunk's output slot is correct unless input and output share memory."""
    path = tmp_path / "both.xml"
    path.write_text(BOTH % (STEP % (0, "i", 0, "o", 0, 2)))
    assert tacos.verify(tacos.load(path)).ok
    assert 'outofplace="1"' in saved_text(tacos.load(path), tmp_path)
    by_way = [(0, "i", 0, "o", 1, 1), (1, "o", 1, "o", 0, 1), (2, "i", 1, "o", 1, 1)]
    path.write_text(BOTH % "".join(STEP % step for step in by_way))
    report = tacos.verify(tacos.load(path))
    assert (report.ok, report.subject) == (False, "program in place")
    from tacos.cli import main

    assert main(["verify", str(path)]) == 1
    assert "the program in place is not valid: 1 violation" in capsys.readouterr().err
    path.write_text((BOTH % (STEP % (0, "i", 0, "o", 0, 2))).replace("allreduce", "alltoall"))
    with pytest.raises(
        FormatError, match="inplace is 1, but programs cannot express an alltoall in place"
    ):
        tacos.load(path)


def test_no_limit_stays_no_limit_in_the_other_dialect(tmp_path):
    """A maxBytes of 0 means no limit in the dialect azure, but no bytes at all in the dialect msccl."""
    path = tmp_path / "both.xml"
    path.write_text(BOTH % (STEP % (0, "i", 0, "o", 0, 2)))
    assert 'maxBytes="0"' in saved_text(tacos.load(path), tmp_path)
    assert 'maxBytes="1099511627776"' in saved_text(tacos.load(path), tmp_path, dialect="msccl")


def test_a_file_that_fills_its_connections_is_reported(tmp_path, capsys):
    """Both GPUs send three messages before their first receive. With Simple, a connection holds two messages,
    with LL eight."""
    from tacos.cli import main

    step = (
        '<step s="%d" type="%s" srcbuf="i" srcoff="%d" dstbuf="o" dstoff="%d" cnt="1" depid="-1" '
        'deps="-1" hasdep="0"/>'
    )
    gpus = "".join(
        f'<gpu id="{gpu}" i_chunks="6" o_chunks="6" s_chunks="0">'
        f'<tb id="0" send="{1 - gpu}" recv="{1 - gpu}" chan="0">'
        + "".join(step % (k, "s", 3 * (1 - gpu) + k, 0) for k in range(3))
        + "".join(step % (3 + k, "r", 0, 3 * (1 - gpu) + k) for k in range(3))
        + step.replace('cnt="1"', 'cnt="3"') % (6, "cpy", 3 * gpu, 3 * gpu)
        + "</tb></gpu>"
        for gpu in range(2)
    )
    text = (
        '<algo name="full" proto="Simple" nchannels="1" nchunksperloop="6" ngpus="2" coll="alltoall" '
        f'inplace="0">{gpus}</algo>'
    )
    path = tmp_path / "full.xml"
    path.write_text(text)
    assert tacos.verify(tacos.load(path)).ok
    assert main(["verify", str(path)]) == 1
    said = (
        "limit: gpu 0, tb 0, step 2 would wait forever, since a connection of the executors holds 2"
    )
    assert said in capsys.readouterr().err
    path.write_text(text.replace("Simple", "LL"))
    assert main(["verify", str(path)]) == 0
    assert saved(tacos.load(path), tmp_path) == tacos.load(path)
    with pytest.raises(FormatError, match="would wait forever"):
        saved(tacos.load(path), tmp_path, protocol="Simple")


@pytest.mark.parametrize(
    "provenance",
    [
        {"format": "msccl"},
        {"format": "msccl", "dialect": "azure", "protocol": 7, "name": ["x"]},
        {"format": 1, "dialect": {}, "min_bytes": "1", "max_bytes": [2], "inplace": "no"},
        {"protocol": None, "engine": 5, "dialect": "klingon", "threads_per_block": "many"},
    ],
)
def test_a_provenance_may_hold_anything(provenance, tmp_path):
    program = lower(scheduled("fc:3", "all_gather")).with_provenance(provenance)
    program = program.with_facts(**facts_in(provenance))
    assert tacos.verify(saved(program, tmp_path)).ok
    assert formats.exceeded(program) == []
    tacos.save(program, tmp_path / "plan.json")
    assert tacos.verify(tacos.load(tmp_path / "plan.json")).ok


def test_a_program_that_was_lifted_gets_new_threadblocks(exchange, tmp_path):
    """The file's name and sizes are kept; whether the program is in place is not."""
    schedule = tacos.lift(exchange(), size="1MB")
    found = saved(schedule, tmp_path)
    assert tacos.verify(found).ok
    assert not found.in_place
    assert ops(found) == {"send": 2, "recv_reduce_send": 2, "recv": 2}
    assert found.provenance["max_bytes"] == 1024
    assert saved(tacos.lower(schedule), tmp_path) == found
    assert saved(schedule, tmp_path, in_place=True).in_place
    assert formats.exceeded(tacos.lower(schedule)) == []


@pytest.mark.parametrize("network", ["mesh:4x4@50GB/s,500ns", "mesh:5x5@50GB/s,500ns", "mi250:1"])
def test_relayed_messages_do_not_wait_for_each_other_for_ever(network, tmp_path):
    """Where scratch slots are reused, receives could wait for sends and deadlock with two messages per connection: files use fresh ones."""
    topology = tp.parse(network)
    schedule = tacos.synthesize(topology, co.all_to_all(topology, "1MB", chunks=4), engine="greedy")
    fresh = lower(schedule, reuse_scratch=False)
    assert stuck(fresh, 2) < 0
    assert tacos.verify(fresh).ok
    assert fresh.scratch_slots.max() > lower(schedule).scratch_slots.max()
    tacos.save(schedule, tmp_path / "it.xml")
    program = tacos.load(tmp_path / "it.xml")
    assert tacos.verify(program).ok
    for rule in ("first-come", "shared"):
        run = tacos.simulate(program, topology, size="1MB", timing=rule, record=False)
        assert run.time_s <= 1.001 * schedule.time_s


def test_threads_that_send_and_receive_at_one_time_become_one(tmp_path):
    """Steps wait for 142 threads of each rank, but a dependency can name only 128."""
    topology = tp.nvl72(1, nvls=False)
    schedule = tacos.synthesize(topology, co.all_reduce(topology, "1GB", chunks=1), engine="forest")
    tacos.save(schedule, tmp_path / "it.xml")
    program = tacos.load(tmp_path / "it.xml")
    assert np.bincount(program.thread_rank).max() < 128
    assert tacos.verify(program).ok
    run = tacos.simulate(program, topology, size="1GB", timing="shared", record=False)
    assert run.time_s <= 1.001 * schedule.time_s


@pytest.mark.slow
def test_sends_keep_less_of_their_order_where_too_many_threads_are_awaited(tmp_path):
    """Each send waits for the previous send of the rank's port, so 142 threads are awaited. Joined threads deadlock
    or delay each other. A wide window over 128 awaited threads costs little time."""
    topology = tp.nvl72(1, nvls=False)
    goal = co.all_reduce(topology, "1MB", chunks=1)
    schedule = tacos.synthesize(topology, goal, engine="themis")
    tacos.save(schedule, tmp_path / "it.xml")
    program = tacos.load(tmp_path / "it.xml")
    assert msccl.exceeded(program) == []
    assert tacos.verify(program).ok
    for rule in ("first-come", "shared"):
        run = tacos.simulate(program, topology, size="1MB", timing=rule, record=False)
        assert run.time_s <= 1.15 * schedule.time_s


@given(lowered(), st.integers(0, 2), st.integers(1, 4))
@settings(max_examples=30)
def test_few_threads_are_awaited(pair, window, awaited):
    """Only dependencies of sends on sends are relaxed; threads that other steps wait for stay awaited."""
    schedule, _ = pair
    program = lower(schedule, window=window)
    few = keep_order(program, channels=32, steps=10**6, peers=32, awaited=awaited)
    assert tacos.verify(few).ok == tacos.verify(program).ok
    assert stuck(few, few.steps + 1) == stuck(program, program.steps + 1)

    def awaited_of(kept, rank, by_all):
        owner = np.repeat(np.arange(kept.threads), np.diff(kept.thread_begin))
        waits = np.repeat(np.arange(kept.steps), np.diff(kept.dep_begin))
        sends = kept.op == STEP_OPS.index("send")
        chosen = by_all | ~(sends[waits] & sends[kept.dep])
        threads = owner[kept.dep[chosen]]
        return len(set(threads[kept.thread_rank[threads] == rank].tolist()))

    for rank in range(few.ranks):
        least = awaited_of(program, rank, by_all=False)
        assert awaited_of(few, rank, by_all=True) <= max(awaited, least)


def receives_in_order(program):
    """Return whether each thread receives in the order of the sends: a sum that takes long may be overtaken."""
    begin = program.thread_begin.tolist()
    sent = [program.comes_from[a:b] for a, b in pairwise(begin)]
    return all((np.diff(one[one >= 0]) > 0).all() for one in sent)


@given(lowered())
def test_joined_threads_do_the_same(pair):
    _, program = pair
    if not receives_in_order(program):
        with pytest.raises(ValueError, match="receives out of the order of the sends"):
            keep_order(program, channels=32, steps=256, peers=32)
        return
    apart, joined = (
        keep_order(program, channels=32, steps=256, peers=32, join=join) for join in (False, True)
    )
    assert joined.steps == apart.steps
    assert joined.threads <= apart.threads
    assert tacos.verify(joined).ok == tacos.verify(program).ok
