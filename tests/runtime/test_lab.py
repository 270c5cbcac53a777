"""The lab network: its plan, its real behaviour, and that it leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from ipaddress import IPv4Interface
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import tacos
from tacos.cli import main
from tacos.errors import LabError
from tacos.runtime.lab import Lab, keeper, scaled, unavailable
from tacos.runtime.lab.network import blueprint, cables
from tacos.schedule import paths
from tests.support.conditions import PATIENCE_S, until
from tests.support.strategies import random_topologies, topologies

pytestmark = pytest.mark.unsanitized

STREAMS = str(Path(__file__).parents[1] / "support" / "streams.py")
MBIT = 125_000

_reason = unavailable()
in_lab = pytest.mark.skipif(bool(_reason), reason=_reason)


def network(npus, *rows, switches=0):
    """Links (src, dst, Mbit/s)."""
    links = [(src, dst, rate * MBIT, 0) for src, dst, rate in rows]
    return tacos.topology.from_links(npus, links, switches=switches)


def both_ways(*rows):
    return [way for a, b, rate in rows for way in ((a, b, rate), (b, a, rate))]


TWO_BOXES = network(
    4, *both_ways((0, 4, 40), (1, 4, 40), (2, 5, 40), (3, 5, 40), (4, 5, 20)), switches=2
)
PARALLEL = network(2, *both_ways((0, 1, 40), (0, 1, 20)))
RAILS = network(
    2,
    *both_ways((0, 2, 40), (1, 2, 40), (0, 3, 40), (1, 3, 40), (0, 3, 40), (0, 4, 9), (1, 4, 9)),
    switches=3,
)


# --- the plan -----------------------------------------------------------------------------------


class Tables:
    """A planned network, read back from the lines for `ip`, forwarding packets one by one."""

    def __init__(self, topology):
        self.network = blueprint(topology)
        self.node: dict[str, int] = {}  # address -> node
        self.ends: dict = {}  # (node, device) -> (node, device) at the cable's other end
        self.own: dict = {}  # (node, device) -> address
        nodes = range(topology.nodes)
        self.main: list[dict] = [{} for _ in nodes]
        self.tables: list[dict] = [{} for _ in nodes]
        self.rules: list[dict] = [{} for _ in nodes]
        for where, program, lines in self.network.script:
            for line in lines if program == "ip" else ():
                self.read(where - 1, line.split())
        for cable, other in self.ends.items():
            own, peer = (IPv4Interface(f"{self.own[end]}/31") for end in (cable, other))
            assert own.network == peer.network

    def read(self, node, words):
        match words:
            case ["link", "add", "name", here, _, _, "netns", a, *_, there, _, _, "netns", b]:
                one, two = (int(a[4:-2]) - 1, here), (int(b[4:-2]) - 1, there)
                self.ends |= {one: two, two: one}
            case ["addr", "add", interface, "dev", device]:
                address, _, width = interface.partition("/")
                assert address not in self.node
                self.node[address] = node
                if width == "31":
                    self.own[node, device] = address
            case ["route", "add", "default", "via", via, "dev", device, "table", table]:
                self.tables[node][table] = via, device
            case ["route", "add", dst, "via", via, "dev", device, *_]:
                assert dst not in self.main[node]
                self.main[node][dst] = via, device
            case ["rule", "add", "from", src, "to", dst, "lookup", table]:
                self.rules[node][src, dst] = table

    def neighbour(self, node, address):
        """The device of a node whose cable ends at an address."""
        for (at, device), other in self.ends.items():
            if at == node and self.own[other] == address:
                return device
        return None

    def path(self, src, dst):
        """Nodes and devices that a packet between two addresses takes."""
        node, taken = self.node[src], list[tuple[int, str]]()
        while self.node[dst] != node:
            assert len(taken) < 50
            if (src, dst) in self.rules[node]:
                via, device = self.tables[node][self.rules[node][src, dst]]
            else:
                device = self.neighbour(node, dst)
                via, device = (dst, device) if device else self.main[node][dst]
            assert self.neighbour(node, via) == device
            taken.append((node, device))
            node = self.ends[node, device][0]
        return taken


@given(topologies())
def test_every_link_is_in_one_cable_and_goes_its_way(topology):
    seen = []
    for cable in cables(topology):
        for link, ends in ((cable.there, cable[:2]), (cable.back, cable[1::-1])):
            if link >= 0:
                seen.append(link)
                assert (topology.link_src[link], topology.link_dst[link]) == ends
    assert sorted(seen) == list(range(topology.links))


def assert_packets_take_the_routes_of_the_package(topology):
    tables = Tables(topology)
    for src in range(topology.npus):
        for dst in range(topology.npus):
            if src == dst:
                continue
            route = paths(topology, ([src], [dst])).links
            taken = tables.path(tables.network.npu[src], tables.network.npu[dst])
            assert [node for node, _ in taken] == topology.link_src[route].tolist()


@settings(max_examples=50)
@given(random_topologies())
def test_packets_take_the_routes_of_the_package(topology):
    assert_packets_take_the_routes_of_the_package(topology)


@pytest.mark.parametrize("spec", ["ring:5", "mesh:3x3", "torus:2x4", "hypercube:3", "switch:4"])
def test_packets_take_the_routes_of_the_package_on_regular_networks(spec):
    assert_packets_take_the_routes_of_the_package(tacos.topology.parse(spec))


def test_neighbours_meet_at_the_ends_of_their_link():
    net = blueprint(tacos.topology.ring(3))
    assert net.reach[0] == {1: ["10.0.0.1"], 2: ["10.0.0.4"]}
    assert net.reach[2] == {0: ["10.0.0.5"], 1: ["10.0.0.2"]}


def test_parallel_links_have_addresses_of_their_own():
    """Cable 0 is 10.0.0.0 and .1, cable 1 is .2 and .3."""
    assert blueprint(PARALLEL).reach == [
        {1: ["10.0.0.1", "10.0.0.3"]},
        {0: ["10.0.0.0", "10.0.0.2"]},
    ]


def test_ports_of_an_npu_are_reached_over_different_switches():
    """NPU 0 has a port at switch 2 and two at switch 3, NPU 1 has one at each; switch 4 is slower."""
    tables = Tables(RAILS)
    ways = tables.network.reach[0][1]
    first = [tables.path(tables.network.npu[0], way) for way in ways]
    assert [[node for node, _ in path] for path in first] == [[0, 2], [0, 3]]
    back = [tables.path(tables.network.npu[1], way) for way in tables.network.reach[1][0]]
    assert [path[1] for path in back] == [(2, "to0"), (3, "to0"), (3, "to0.1")]


def test_a_way_back_that_is_no_link_carries_acknowledgements_only():
    net = blueprint(network(3, (0, 1, 100), (1, 2, 100), (2, 0, 100)))
    rates = {
        (where - 1, line.split()[3]): int(line.split("rate ")[1].split("bit")[0])
        for where, program, lines in net.script
        if program == "tc"
        for line in lines
    }
    assert rates[0, "to1"] == 101_200_000
    assert rates[1, "to0"] == 5_060_000
    tables = Tables(network(3, (0, 1, 100), (1, 2, 100), (2, 0, 100)))
    assert tables.path(net.npu[1], net.npu[0]) == [(1, "to2"), (2, "to0")]


def test_delays_are_planned_where_the_kernel_has_them():
    topology = tacos.topology.ring(3, bandwidth="100Mbit/s", latency="2ms")
    lines = [
        line
        for _, program, some in blueprint(topology, delays=True).script
        for line in some
        if program == "tc"
    ]
    assert lines[0].startswith("qdisc add dev to1 root handle 1: tbf rate 101200000bit")
    assert lines[1] == "qdisc add dev to1 parent 1:1 netem delay 2000us limit 100000"


def test_speeds_are_scaled_to_what_the_machine_carries():
    given = tacos.topology.ring(4, bandwidth="50GB/s", latency="500ns")
    slow = scaled(given)
    total = slow.link_bandwidth_Bps.sum() * 8
    assert total == pytest.approx((os.cpu_count() or 1) * 1e9, rel=1e-6)
    slower = tacos.topology.scale(slow, bandwidth=0.5)
    assert scaled(slower) == slower
    assert scaled(given, scale=1e-3).link_bandwidth_Bps[0] == 50_000_000
    assert scaled(given, scale=1e-3).link_latency_ps[0] == 500_000_000
    assert scaled(given, scale=1e-3, delays=False).link_latency_ps[0] == 150_000_000
    assert scaled(given, delays=False).symmetric
    assert len(np.unique(scaled(TWO_BOXES, fastest="8Mbit/s").link_bandwidth_Bps)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fastest": "1Mbit/s", "scale": 0.5}, "fastest and scale exclude each other; give one"),
        ({"scale": 0.0}, "scale is 0.0; it must be a positive factor"),
        ({"fastest": "fast"}, "fastest 'fast' is not understood"),
    ],
)
def test_wrong_speeds_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Lab(tacos.topology.ring(3), **arguments)


def test_a_network_of_too_many_nodes_is_refused():
    with pytest.raises(ValueError, match="1,001 nodes"):
        blueprint(tacos.topology.ring(1001))


# --- refusals -----------------------------------------------------------------------------------


def test_without_privileges_the_refusal_says_what_is_missing(monkeypatch):
    def refuse(name, *_):
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(keeper, "_call", refuse)
    monkeypatch.setattr(keeper, "_limit", lambda name: "0" if "max_user" in name else "")
    with pytest.raises(
        keeper.Refused,
        match=r"root with CAP_SYS_ADMIN, or user namespaces.*max_user_namespaces is 0",
    ):
        keeper.leave_the_machine()


def test_a_lab_that_is_not_open_runs_nothing():
    with pytest.raises(LabError, match="not open"):
        Lab(tacos.topology.ring(3)).run(["true"])


def test_the_command_is_needed(capsys):
    assert main(["lab", "ring:3"]) == 2
    assert "COMMAND is missing" in capsys.readouterr().err


# --- the network --------------------------------------------------------------------------------


def stream(lab, size, *flows):
    """When each stream began and ended, and the bytes that each device of each rank has carried."""
    run = lab.run(
        [sys.executable, STREAMS, str(size), *flows], output="returned", time_limit=PATIENCE_S
    )
    assert run.code == 0, run.stderr
    lines = [[json.loads(line) for line in text.splitlines()] for text in run.stdout]
    times = {number: span for some in lines for number, *span in some[:-1]}
    return np.array([times[i] for i in range(len(flows))]), [some[-1] for some in lines]


def holds(lab, size, flows, expected, slack=0.1):
    """Check that streams are never faster than their links, and as fast if nothing keeps the machine busy."""
    expected = np.array(expected)

    def as_fast():
        """Return what was carried if all streams were as fast as their links."""
        times, carried = stream(lab, size, *flows)
        rates = size / MBIT / (times[:, 1] - times[:, 0])
        assert (rates < expected * (1 + slack)).all(), rates
        return carried if (rates > expected * (1 - slack)).all() else None

    return until(as_fast, f"streams of {expected} Mbit/s")


def share(lab, size, flows, limit, slack=0.1):
    """Check that two streams together are never faster than the link that they share."""

    def together():
        """Return whether the streams ran at the same time for most of theirs."""
        times, _ = stream(lab, size, *flows)
        begin, end = times[:, 0], times[:, 1]
        rate = len(flows) * size / MBIT / (end.max() - begin.min())
        assert rate < limit * (1 + slack), rate
        return end.min() - begin.max() > 0.8 * (end.max() - begin.min())

    until(together, "streams at the same time")


@pytest.fixture(scope="module")
def ring():
    with Lab(tacos.topology.ring(4), fastest="40Mbit/s") as lab:
        yield lab


@in_lab
def test_a_stream_is_as_fast_as_its_link(ring):
    holds(ring, 1_000_000, ["0>1"], [40])


@in_lab
def test_both_directions_are_as_fast(ring):
    holds(ring, 1_000_000, ["0>1", "1>0"], [40, 40])


@in_lab
def test_two_streams_share_a_link(ring):
    share(ring, 1_000_000, ["0>1", "0>1@npu"], 40)


@in_lab
def test_others_are_reached_through_those_between(ring):
    """From 0 to 2, tacos routes over 1; nothing passes through 3."""
    _, before = stream(ring, 1, "0>2")
    after = holds(ring, 500_000, ["0>2"], [40])
    assert after[1]["to2"] - before[1]["to2"] >= 500_000
    assert after[0]["to3"] - before[0]["to3"] < 100_000


@in_lab
def test_boxes_are_joined_by_a_thin_link():
    """40 Mbit/s within a box; 20 between them, which two streams share."""
    with Lab(TWO_BOXES, scale=1) as lab:
        holds(lab, 500_000, ["0>1", "2>3"], [40, 40])
        holds(lab, 500_000, ["0>2"], [20])
        share(lab, 500_000, ["0>2", "1>3"], 20)


@in_lab
def test_parallel_links_have_their_own_speeds():
    with Lab(PARALLEL, scale=1) as lab:
        holds(lab, 500_000, ["0>1@0", "0>1@1"], [40, 20])


@in_lab
def test_one_way_links_work():
    with Lab(network(3, (0, 1, 40), (1, 2, 40), (2, 0, 20)), scale=1) as lab:
        holds(lab, 500_000, ["0>1"], [40])
        holds(lab, 500_000, ["1>0"], [20])  # over 2


@in_lab
def test_the_ranks_know_who_they_are_and_what_is_enforced(ring):
    code = (
        "import os, socket, tacos; t = tacos.load(os.environ['TACOS_TOPOLOGY']); "
        "print(socket.gethostname(), os.environ['RANK'], os.environ['WORLD_SIZE'], "
        "socket.gethostbyname(socket.gethostname()) == os.environ['TACOS_HOST'], "
        "t.link_bandwidth_Bps[0], t == tacos.load(os.environ['TACOS_TOPOLOGY']))"
    )
    run = ring.run([sys.executable, "-c", code], output="returned")
    assert run.stdout == [f"npu{r} {r} 4 True 5000000 True\n" for r in range(4)]


ALL_REDUCE = f"""
import os
import numpy as np
import tacos
from tacos.runtime import connect

topology = tacos.load(os.environ["TACOS_TOPOLOGY"])
wanted = tacos.collective.all_reduce(topology, "1MB", chunks=4)
with connect(timeout={PATIENCE_S}) as comm:
    data = np.full(25_000, 1 + comm.rank, np.int32)
    comm.prepare(tacos.synthesize(topology, wanted, engine="greedy")).run(data, data)
    assert (data == 10).all()
"""


@in_lab
@pytest.mark.parametrize("topology", [tacos.topology.ring(4), TWO_BOXES], ids=["links", "switches"])
def test_an_algorithm_runs_over_the_links(topology):
    with Lab(topology, fastest="40Mbit/s") as lab:
        run = lab.run([sys.executable, "-c", ALL_REDUCE], output="returned", time_limit=PATIENCE_S)
        assert run.code == 0, run.stderr


@in_lab
def test_the_runner_is_a_rank_of_the_lab(ring, tmp_path):
    topology = tacos.topology.ring(4)
    wanted = tacos.collective.all_reduce(topology, "1MB", chunks=1)
    tacos.save(tacos.synthesize(topology, wanted, engine="ring"), tmp_path / "ring.tacos")
    options = ["--size", "64KB", "--iters", "1", "--warmup", "0", "--against", "none", "--json"]
    command = [sys.executable, "-m", "tacos", "run", str(tmp_path / "ring.tacos"), *options]
    run = ring.run(command, output="returned", time_limit=PATIENCE_S)
    assert run.code == 0, run.stderr
    assert [len(text) > 0 for text in run.stdout] == [True, False, False, False]


GLOO = """
import torch
from torch import distributed

distributed.init_process_group("gloo")
tensor = torch.ones(100)
distributed.all_reduce(tensor)
assert (tensor == 2).all()
distributed.destroy_process_group()
"""


@in_lab
@pytest.mark.slow
def test_a_script_for_torchrun_runs_unchanged():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    with Lab(network(2, *both_ways((0, 1, 100))), scale=1) as lab:
        run = lab.run([sys.executable, "-c", GLOO], output="returned", time_limit=PATIENCE_S)
        assert run.code == 0, run.stderr


# --- how it ends --------------------------------------------------------------------------------


def assert_nothing_sleeps(lab):
    """The processes of the run before were killed; on a busy machine it takes them a moment to end."""
    look = "while ps ax -o args | grep -q '[s]leep 1000'; do sleep 0.01; done"
    assert lab.run(["sh", "-c", look], time_limit=PATIENCE_S).code == 0


@in_lab
def test_the_first_failure_ends_all_and_gives_the_code(ring, capfd):
    script = "echo out; echo err >&2; test $RANK != 2 || exit 7; sleep 1000"
    run = ring.run(["sh", "-c", script])
    assert (run.code, run.why) == (7, "rank 2 ended with exit code 7")
    assert run.time_s < PATIENCE_S
    out, err = capfd.readouterr()
    assert "[2] out\n" in out
    assert "[2] err\n" in err


@in_lab
def test_a_killed_rank_is_told_by_its_signal(ring):
    run = ring.run(["sh", "-c", "test $RANK != 1 || kill -SEGV $$; sleep 1000"])
    assert (run.code, run.why) == (139, "rank 1 was killed by SIGSEGV")


@in_lab
def test_the_time_limit_ends_all_even_who_does_not_want_to(ring, monkeypatch):
    monkeypatch.setattr("tacos.runtime.lab._GRACE_S", 0.2)
    stubborn = "trap '' TERM; sleep 1000 & wait; sleep 1000"
    run = ring.run(["sh", "-c", stubborn], time_limit=0.2)
    assert run.code == 124
    assert run.why == "ranks 0, 1, 2, 3 took more than 0.2 s"
    assert_nothing_sleeps(ring)


@in_lab
def test_only_rank_0_is_shown_and_what_others_complain_about(ring, capfd):
    ring.run(["sh", "-c", "echo $RANK; test $RANK != 3 || printf oh >&2"], output="first")
    assert capfd.readouterr() == ("0\n", "[3] oh\n")


@in_lab
def test_a_program_that_is_not_there(ring):
    run = ring.run(["no-such-program"], output="returned")
    assert run.code == 127
    assert run.stderr == ["no-such-program: No such file or directory\n"] * 4


WAITING = """
import sys, tacos
from tacos.runtime import lab
from tacos.runtime.lab import Lab
lab._GRACE_S = 1000.0
with Lab(tacos.topology.ring(3), fastest="10Mbit/s") as lab:
    lab.run(["sh", "-c", "{begin}readlink /proc/self/ns/net; echo $TACOS_TOPOLOGY; {end}"])
"""


def outside():
    """What a lab could leave behind: devices, named namespaces."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    named = Path("/run/netns")
    return links, sorted(named.iterdir()) if named.is_dir() else []


def namespaces():
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.add(str((process / "ns/net").readlink()))
    return found


class Started:
    """A lab in another process, whose ranks have printed their namespaces."""

    def __init__(self, end, begin="", **options):
        code = WAITING.format(begin=begin, end=end)
        self.before = outside()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().split()[1] for _ in range(6)]
        self.spaces = {line for line in lines if line.startswith("net:")}
        self.folder = Path(next(line for line in lines if line.startswith("/"))).parent
        assert len(self.spaces) == 3

    def assert_nothing_is_left(self):
        self.process.communicate(timeout=PATIENCE_S)
        until(lambda: not self.spaces & namespaces(), "the namespaces are gone")
        until(lambda: not self.folder.exists(), "the directory is gone")
        assert outside() == self.before


@in_lab
@pytest.mark.parametrize("code", [0, 3])
def test_nothing_is_left_after_a_run(code, tmp_path):
    """A rank that fails ends the others, so none ends before all have told their namespaces."""
    all_told = (
        f"touch {tmp_path}/$RANK; while [ $(ls {tmp_path} | wc -l) -lt 3 ]; do sleep 0.01; done"
    )
    Started(f"{all_told}; exit {code}").assert_nothing_is_left()


@in_lab
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_caller_is_killed(number):
    lab = Started("sleep 1000")
    assert lab.folder.exists()
    assert lab.spaces <= namespaces()
    lab.process.send_signal(number)
    lab.assert_nothing_is_left()


@in_lab
def test_ctrl_c_reaches_the_ranks_and_nothing_is_left(tmp_path):
    trap = f"trap 'echo > {tmp_path}/$RANK; exit' INT; "
    lab = Started("while :; do sleep 0.01; done", begin=trap, stderr=subprocess.DEVNULL)
    lab.process.send_signal(signal.SIGINT)
    lab.assert_nothing_is_left()
    assert lab.process.returncode == -signal.SIGINT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


@in_lab
def test_a_lab_goes_on_after_an_interrupted_run(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with Lab(tacos.topology.ring(3), fastest="10Mbit/s") as lab:
        with monkeypatch.context() as patch:
            patch.setattr("tacos.runtime.lab._GRACE_S", 0.0)
            patch.setattr(lab, "_exits", interrupt)
            with pytest.raises(KeyboardInterrupt):
                lab.run(["sh", "-c", "test $RANK = 0 || sleep 1000"])
        assert_nothing_sleeps(lab)


@in_lab
def test_a_lab_whose_keeper_is_killed_says_so():
    with Lab(tacos.topology.ring(3), fastest="10Mbit/s") as lab:
        assert lab._keeper is not None
        lab._keeper.kill()
        lab._keeper.wait()
        with pytest.raises(LabError, match="its process was killed"):
            lab.run(["true"])


@in_lab
def test_it_works_without_root():
    """Root without administrative capabilities is like any other user: it needs a user namespace."""
    if os.geteuid() != 0:
        pytest.skip("these tests are not run by root: all of them work without")
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv to give up rights with")
    given_up = "-sys_admin,-net_admin,-sys_ptrace,-dac_override"
    rights = ["setpriv", "--bounding-set", given_up, "--inh-caps", given_up]
    code = "from tacos.runtime.lab import unavailable; print('why:', unavailable())"
    done = subprocess.run(
        [*rights, sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    if "user namespaces, which are refused" in done.stdout:
        pytest.skip(done.stdout)
    assert done.stdout == "why: \n", done.stderr


@in_lab
def test_the_command_runs_a_lab(capfd):
    arguments = ["lab", "ring:3", "--fastest", "10Mbit/s", "--", "sh", "-c", "exit $RANK"]
    assert main(arguments) in (1, 2)
    err = capfd.readouterr().err
    assert "lab of 3 NPUs: 6 links of 10 Mbit/s" in err
    assert "ended with exit code" in err
    assert main(["lab", "ring:3", "--quiet", "--output", "first", "--", "echo", "-n", "--hi"]) == 0
    assert capfd.readouterr().out == "--hi\n"


# Switches that reduce.


def racks():
    """Two racks of two NPUs, 0 to 3, with switches 4 and 5, under the core switch 6."""
    cables = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (5, 6)]
    rows = [(a, b, 6_250_000, 0) for one in cables for a, b in (one, one[::-1])]
    return tacos.topology.from_links(4, rows, switches=[("multicast", "reduce")] * 3)


def test_switches_that_reduce_are_a_star_or_a_tree():
    star = tacos.topology.switch(3, reduce=True)
    net = blueprint(star)
    assert net.aggregators == [(3, [0, 1, 2], "")]
    assert net.aggregator == ["10.0.0.1", "10.0.0.3", "10.0.0.5"]  # the far ends of the cables
    assert blueprint(tacos.topology.switch(3)).aggregators == []
    net = blueprint(racks())
    assert net.aggregators == [(6, [], ""), (4, [0, 1], "10.0.0.9"), (5, [2, 3], "10.0.0.11")]
    for wrong, word in (({"mtu": 100}, "mtu must be"), ({"loss": 1.0}, "loss must be")):
        with pytest.raises(ValueError, match=word):
            Lab(star, **wrong)


_SUMS = f"""
import os, numpy as np
from tacos.runtime import connect
from tacos.runtime.aggregation.sums import from_environment
with connect(timeout={PATIENCE_S}) as comm:
    sums = from_environment(comm)
    data = np.full(20000, 1.0 + comm.rank, np.float32)
    sums.run_at(data.ctypes.data, data.ctypes.data, data.size, "float32", "sum", lambda: 1 / 0)
    print(sorted(set(data.tolist())), sums.sums)
    comm.barrier("end")
    sums.close()
"""


@in_lab
@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.05])
@pytest.mark.parametrize("network", ["star", "racks"])
def test_sums_through_the_switches_of_a_lab(network, loss):
    topology = tacos.topology.switch(4, reduce=True) if network == "star" else racks()
    with Lab(topology, fastest="50Mbit/s", mtu=1500, loss=loss) as lab:
        run = lab.run([sys.executable, "-c", _SUMS], output="returned", time_limit=PATIENCE_S)
    assert run.code == 0, run.stderr
    assert [text.split()[:2] for text in run.stdout] == [["[10.0]", "1"]] * 4
