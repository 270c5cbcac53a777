"""The backend of torch.distributed: everything compared with gloo, on 4 and 8 processes."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from unittest.mock import Mock

import pytest

import tacos
from tacos import library
from tacos.runtime.aggregation import Switch
from tests.support import expressions
from tests.support.conditions import PATIENCE_S, until
from tests.support.torch_ranks import Ranks

if importlib.util.find_spec("torch") is None:
    pytest.skip(
        "torch is not installed: make torch, or pip install 'tacos-ccl[torch]'",
        allow_module_level=True,
    )


pytestmark = [
    pytest.mark.unsanitized,
    pytest.mark.xdist_group("torch"),  # on one worker: the ranks are started once
]


@pytest.fixture(scope="module")
def started():
    """Started ranks by the size of their group, kept from test to test."""
    found: dict[int, Ranks] = {}
    yield found
    for ranks in found.values():
        ranks.close()
        assert ranks.alive() == []


@pytest.fixture(
    params=[4, pytest.param(8, marks=pytest.mark.slow)], ids=lambda size: f"{size} ranks"
)
def ranks(started, request):
    size = request.param
    if size in started and started[size].broken:
        started.pop(size).close()
    if size not in started:
        started[size] = Ranks(size)
    return started[size]


@pytest.mark.parametrize(
    "job",
    [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "skewed",
        "profiled",
        "rooted",
        "shapes",
        "everything_else",
        "messages_in_groups",
        "asynchronous",
        "sub_groups",
        "ddp",
        "chained_hook",
        "overlap",
        "fsdp",
        "zero",
        "hybrid",
    ],
)
def test_the_result_is_gloos(ranks, job):
    ranks.run(job)


@pytest.mark.parametrize(("kind", "sizes"), [("all_gather", (8, 32)), ("reduce_scatter", (32, 8))])
def test_memory_of_the_host_is_large_enough_for_either_tensor(monkeypatch, kind, sizes):
    """In place, the smaller of a GPU's tensors is the beginning of the larger."""
    import torch

    from tacos.runtime.torch import tensors

    seen = []

    class Recorded(tensors.Tensors):
        def __init__(self):
            pass

        def run(self, _kind, source, target, *_rest):
            seen.append((source.numel(), target.numel()))

    monkeypatch.setattr(tensors, "_pinned", lambda tensor: torch.empty(tensor.shape))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Mock())
    whole = torch.zeros(32)
    Recorded()._staged(kind, whole[: sizes[0]], whole[: sizes[1]], 32, "sum", -1)
    assert seen == [sizes]


# The algorithms.


def plan(folder, topology, *kinds, size="1MB", engine="ring", **options):
    for kind in kinds:
        wanted = tacos.collective.named(kind, topology, size, chunks=1)
        library.add(folder, tacos.synthesize(topology, wanted, engine=engine, **options))
    return str(folder)


FOUR = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.mark.slow
def test_gloos_order_of_sums_gives_gloos_bits(started, tmp_path):
    """gloo's ring runs in descending order of ranks; in that order, sums and training are equal to the last bit."""
    for size in (4, 8):
        topo = tacos.topology.fully_connected(size)
        left = plan(tmp_path / str(size), topo, "all_reduce", order=list(range(size))[::-1])
        ranks = Ranks(size, TACOS_PLANS=left)
        try:
            ranks.run("order_of_sums", sizes=[16, 4096, 1 << 20])
            ranks.run("ddp", exact=True)
        finally:
            ranks.close()


def test_plans_serve_the_whole_and_groups_in_any_order(ranks, tmp_path):
    n = ranks.size
    ring = tacos.topology.ring(n)
    folder = plan(tmp_path, ring, *FOUR, engine="bidirectional-ring")
    ranks.run("planned", variables={"TACOS_PLANS": folder})
    turned = ",".join(str((3 * i + 1) % n if n % 3 else i) for i in range(n))
    ranks.run("planned", variables={"TACOS_PLANS": folder, "TACOS_PLACEMENT": turned})
    ranks.run("planned", variables={"TACOS_PLANS": folder}, members=[0, 1, n - 1])


def test_defaults_follow_an_order(ranks, tmp_path):
    """The order is given as ranks, or as hosts in a file; groups of some ranks follow it too."""
    n = ranks.size
    backwards = ",".join(str(rank) for rank in reversed(range(n)))
    ranks.run("planned", variables={"TACOS_ORDER": backwards})
    ranks.run("planned", variables={"TACOS_ORDER": backwards}, members=[0, 1, n - 1])
    (tmp_path / "order.txt").write_text(f"elsewhere\n{socket.gethostname()}\n")
    ranks.run("planned", variables={"TACOS_ORDER": str(tmp_path / "order.txt")})


@pytest.mark.slow
def test_the_network_is_probed_for_an_order(started):
    """Two ranks: measuring all pairs of four takes half a minute on a machine with few cores."""
    if 2 not in started:
        started[2] = Ranks(2)
    started[2].run("planned", variables={"TACOS_PROBE": "1"})


@pytest.mark.parametrize(
    "spec", ["ring:4", *(pytest.param(s, marks=pytest.mark.slow) for s in ("fc:4", "switch:4"))]
)
def test_all_ranks_get_identical_bits(started, tmp_path, spec):
    """With tuned plans, in which ranks exchange small buffers and each adds them up."""
    if 4 not in started:
        started[4] = Ranks(4)
    table = tacos.tune(tacos.topology.parse(spec), "all_reduce", "1KB:256KB", effort="fast")
    table.save(tmp_path)
    variables = {"TACOS_PLANS": str(tmp_path)}
    started[4].run("identical_bits", variables=variables)
    started[4].run("replicas", variables=variables)


def test_a_plan_with_several_orders_does_not_serve_floats(started, tmp_path):
    if 4 not in started:
        started[4] = Ranks(4)
    goal = tacos.collective.all_reduce(4, "4KB", chunks=1)
    library.add(tmp_path, expressions.scheduled(goal, expressions.two_orders(4)))
    started[4].run("identical_bits", variables={"TACOS_PLANS": str(tmp_path)}, calls=10)


def test_a_topology_is_enough(ranks, tmp_path):
    """Schedules are made on first use and kept; a broken file is made again."""
    n = ranks.size
    file, cache = tmp_path / "net.yaml", tmp_path / "cache"
    tacos.save(tacos.topology.ring(n, bandwidth="1GB/s", latency="20us"), file)
    variables = {"TACOS_TOPOLOGY": str(file), "TACOS_CACHE": str(cache), "TACOS_ENGINE": "greedy"}
    ranks.run("planned", variables=variables)
    made = sorted(cache.glob("*.tacos"))
    assert {file.name.split("-")[1] for file in made} == set(FOUR)
    made[0].write_bytes(made[0].read_bytes()[:-9])
    ranks.run("planned", variables=variables)
    tacos.load(made[0])
    ranks.run("planned", variables=variables, members=[0, 2])  # not connected: the default serves


def test_a_group_heals_where_its_options_say_so(ranks, tmp_path):
    file = tmp_path / "net.yaml"
    tacos.save(tacos.topology.ring(ranks.size, bandwidth="1GB/s", latency="20us"), file)
    variables = {
        "TACOS_TOPOLOGY": str(file),
        "TACOS_CACHE": str(tmp_path),
        "TACOS_ENGINE": "greedy",
    }
    found = ranks.run("adaptive", variables=variables)
    assert found == [(True, False, False)] * ranks.size


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"TACOS_PLANS": "nowhere"}, r"plans.json: No such file"),
        ({"TACOS_PLANS": "other"}, r"the plans are for 6 NPUs, not for \d"),
        ({"TACOS_PLANS": "broken"}, r"all_reduce.*\.tacos"),
        ({"TACOS_TOPOLOGY": "other.yaml"}, r"the topology has 6 NPUs and the job \d ranks"),
        ({"TACOS_TOPOLOGY": "bad.yaml"}, "bad.yaml: "),
        ({"TACOS_PLANS": "good", "TACOS_PLACEMENT": "0,0"}, "TACOS_PLACEMENT has 2 entries"),
        ({"TACOS_ORDER": "0,2"}, "TACOS_ORDER must name rank 1 once, and does not"),
        ({"TACOS_PROBE": "yes"}, "TACOS_PROBE must be one of 0, 1; got 'yes'"),
        ({"TACOS_ENGINE": "foo"}, "unknown engine 'foo' in TACOS_ENGINE; expected one of auto"),
        ({"TACOS_DEBUG": "yes"}, "TACOS_DEBUG must be one of off, info, debug; got"),
    ],
)
def test_wrong_settings_are_errors_on_all_ranks(ranks, tmp_path, variables, why):
    other = tacos.topology.ring(6)
    plan(tmp_path / "other", other, "all_reduce")
    plan(tmp_path / "good", tacos.topology.ring(ranks.size), "all_reduce")
    plan(tmp_path / "broken", tacos.topology.ring(ranks.size), "all_reduce")
    for file in (tmp_path / "broken").glob("*.tacos"):
        file.write_bytes(file.read_bytes()[:-100])
    tacos.save(other, tmp_path / "other.yaml")
    (tmp_path / "bad.yaml").write_text("tacos: 7")
    paths = ("TACOS_PLANS", "TACOS_TOPOLOGY")
    given = {k: str(tmp_path / v) if k in paths else v for k, v in variables.items()}
    for sentence in ranks.fail("planned", variables=given):
        assert re.search(why, sentence), sentence
    ranks.run("one_call")


# Wrong calls and failures.


@pytest.mark.parametrize(
    ("what", "why"),
    {
        "gathered size": r"output has \d+ elements; it must have \d times the 4 of the other tensor",
        "types": r"tensors of type torch\.int32 and torch\.float32 in one call",
        "blocks": r"input has \d+ elements: without split sizes, .* must have the same number",
        "splits": r"input_split_sizes is \[2, .*\]: it must have \d entries, with the sum \d",
        "splits of two": r"all_to_all: rank 0 sends 2 elements to rank \d, which expects 1",
        "list": r"output_tensors has \d tensors, the group has \d ranks",
    }.items(),
)
def test_a_wrong_argument_is_refused_and_harms_nothing(ranks, what, why):
    for sentence in ranks.fail("wrong_argument", what=what):
        assert re.fullmatch(f"ValueError: {why}.*", sentence), sentence
    ranks.run("one_call")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("size", r"do not agree .* rank 1 runs all-reduce of 101 elements of float32"),
        pytest.param(
            "dtype",
            r"do not agree .* rank 1 runs all-reduce of 100 elements of int32",
            marks=pytest.mark.slow,
        ),
        ("op", r"do not agree .* rank 1 runs all-reduce of 100 elements of float32 \(max\)"),
        pytest.param(
            "size class",
            r"do not agree on call 3: rank . runs all-reduce of \d+ elements .*, rank . runs all-reduce of",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "root",
            r"rank 1 prepares broadcast of \d+ bytes with root \d, rank 0 prepares broadcast of \d+ bytes with root",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "collective",
            r"rank \d runs all-reduce of .*, rank 1 prepares broadcast of \d+ bytes with root",
            marks=pytest.mark.slow,
        ),
        (
            "first use",
            r"rank \d exchanges 'schedule .*-all_gather-|rank 0 'schedule .*-all_gather-",
        ),
    ],
)
def test_different_calls_are_errors_on_all_ranks(what, why, tmp_path):
    """The error comes long before the timeout."""
    network = {"TACOS_TOPOLOGY": "ring:4", "TACOS_CACHE": str(tmp_path), "TACOS_ENGINE": "ring"}
    ranks = Ranks(4, seconds=4 * PATIENCE_S, **(network if what == "first use" else {}))
    try:
        for size in (100, 1_000_000):
            ranks.run("one_call", size=size)
        sentences = ranks.fail("different", what=what)
        assert any(re.search(why, sentence) for sentence in sentences), sentences
        assert all("CollectiveError" in sentence for sentence in sentences), sentences
        if what == "root":  # detected before any data moved
            ranks.run("one_call")
        else:  # the group is dead, and says why
            assert all("CollectiveError" in sentence for sentence in ranks.fail("one_call"))
    finally:
        ranks.close()
    assert ranks.alive() == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)],
    ids=["killed", "stopped"],
)
def test_a_rank_that_dies_or_hangs_is_named_by_all_others(number):
    ranks = Ranks(4, seconds=15.0)
    others = (0, 1, 3)
    try:
        ranks.run("one_call")
        ranks.kill(2, number)
        ranks.start("one_call", *others)
        for answer in ranks.finish(*others):
            sentence = str(answer).strip().splitlines()[-1]
            assert "CollectiveError: " in sentence
            assert "rank 2" in sentence
        ranks.start("one_call", *others)
        for answer in ranks.finish(*others):
            assert "rank 2" in str(answer)
    finally:
        ranks.kill(2)
        ranks.close()
    assert ranks.alive() == []


def test_an_aborted_group_fails_on_all_ranks():
    """One rank does not enter a call, and aborts the group while the others wait for it."""
    ranks = Ranks(4)
    try:
        ranks.run("one_call")
        for rank, sentence in enumerate(ranks.fail("abort")):
            why = "the process group was aborted"
            assert sentence.endswith(f"Error: {why}" if rank == 1 else f"rank 1 gave up: {why}")
    finally:
        ranks.close()
    assert ranks.alive() == []


@pytest.mark.slow
def test_a_group_can_be_aborted_wherever_it_waits(tmp_path):
    """In a call of another thread, while ranks agree on an algorithm, and in a call that gloo serves."""
    ranks = Ranks(2, seconds=4 * PATIENCE_S)
    try:
        for where in ("thread", "rendezvous", "gloo"):
            ranks.run("abort_in", where=where, aborted=str(tmp_path / where))
    finally:
        ranks.close()
    assert ranks.alive() == []


def test_a_destroyed_group_leaves_no_connection_open(ranks):
    ranks.run("leaves_nothing_open")


def test_a_destroyed_group_says_so(ranks):
    for sentence in ranks.fail("after_destruction"):
        assert sentence == "RuntimeError: the process group was destroyed"
    ranks.run("one_call")


SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("tacos")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(8, 8))
model(torch.ones(2, 8)).sum().backward()
total = torch.ones(3)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(total.tolist(), dist.get_backend(), flush=True)
"""


@pytest.mark.slow
def test_torchrun_runs_a_script_that_does_not_know_us(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script)]
    env = os.environ | {"TACOS_DEBUG": "info", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[2.0, 2.0, 2.0] tacos\n"
    assert (
        "tacos: all-reduce of 12 B in place: default halving-doubling, 1 chunks, all-reduce"
        in done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tacos.runtime.torch", "tacos.runtime.carriers.nccl", "torch"])
def test_the_backend_is_there_in_any_order_of_imports(module):
    code = f"import {module}; from torch import distributed; print(distributed.Backend.TACOS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("tacos\n", "")


def test_importing_tacos_does_not_import_torch():
    code = "import sys, tacos, tacos.cli, tacos.runtime; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_training_through_a_switch(ranks):
    """The final loss is within 1 % of that with float sums, and all sums went through the switch."""
    with Switch(token="secret") as switch:
        rows = ranks.run("through_a_switch", address=switch.address, token="secret", steps=20)
        assert switch.stats()["results"] > 0
    for switched, plain, sums, ended in rows:
        assert switched == pytest.approx(plain, rel=0.01)
        assert sums >= 20
        assert ended == ""


@pytest.mark.slow
def test_training_survives_the_death_of_the_switch(ranks, tmp_path):
    """The switch is killed during training: on all ranks, the final loss is within 1 % of an undisturbed run."""
    switch, gone = Switch(token="secret"), tmp_path / "gone"
    switch.start()
    ranks.start(
        "through_a_switch", address=switch.address, token="secret", steps=400, gone=str(gone)
    )
    until(lambda: switch.stats()["results"] >= 200, "two hundred sums")
    switch.close()
    del switch._core  # its port is closed now
    gone.touch()
    rows = ranks.finish()
    for switched, plain, sums, ended in rows:
        assert switched == pytest.approx(plain, rel=0.01)
        assert 0 < sums < 400
        assert "the switch has ended" in ended


@pytest.mark.slow
def test_restarts_of_torchrun_go_on(tmp_path):
    """torchrun's store outlives the processes and keeps their entries. Sends and receives, which use gloo, work too."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('tacos')\n"
        "rank, total, text = dist.get_rank(), torch.ones(4), torch.ones(3)\n"
        "dist.all_reduce(total)\n"
        "dist.send(text, 1) if rank == 0 else dist.recv(text, 0)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and rank == 1: os._exit(3)\n"
        "dist.all_reduce(total)\n"
        "os.write(1, f'ended with {total.tolist()}\\n'.encode())  # in one piece\n"
        "dist.destroy_process_group()\n"
    )
    words = [
        "torch.distributed.run",
        "--standalone",
        "--max-restarts",
        "1",
        "--nproc-per-node",
        "2",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", *words, str(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("ended with [4.0, 4.0, 4.0, 4.0]") == 2
