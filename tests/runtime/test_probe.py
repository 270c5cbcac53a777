"""Measuring networks: between processes of this machine, and in a lab of known links."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import tacos
from tacos import topology as tp
from tacos.cli import main
from tacos.runtime import TcpRendezvous, connect, launch
from tacos.runtime.lab import Lab, unavailable
from tacos.runtime.measure.probe import probe, report
from tacos.runtime.measure.wiring import Pair, Port, Shared, Spread, Switch, Wiring
from tests.support.conditions import PATIENCE_S
from tests.support.ranks import MPI_SETTINGS, mpiexec

pytestmark = pytest.mark.unsanitized

PROBE = [sys.executable, "-m", "tacos", "probe"]


@pytest.mark.slow
def test_a_topology_of_local_ranks_is_written_and_read(tmp_path):
    """Their speeds, and what they share, depend on this machine and are not checked."""
    path, plain = tmp_path / "network.yaml", tmp_path / "network.json"
    script = f"""
import json, pathlib
from tacos import formats
from tacos.runtime import connect
from tacos.runtime.measure.probe import probe
with connect(timeout={PATIENCE_S}) as comm:
    wiring = probe(comm, seconds=0.2)
    if comm.rank == 0:
        formats.save(wiring.topology(), {str(path)!r})
        pathlib.Path({str(plain)!r}).write_text(json.dumps(wiring.to_json()))
"""
    with launch([sys.executable, "-c", script], 3) as job:
        assert job.wait(timeout=PATIENCE_S) == 0
    network = tacos.load(path)
    assert network.npus == 3
    assert [name.rpartition(":")[2] for name in network.names[:3]] == ["0", "1", "2"]
    pairs = json.loads(plain.read_text())["pairs"]
    assert [(p["src"], p["dst"]) for p in pairs] == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    for pair in pairs:
        for what in ("latency_s", "bandwidth_Bps"):
            assert 0 < pair[what]["min"] <= pair[what]["median"] <= pair[what]["max"]
    tacos.verify(
        tacos.synthesize(network, tacos.collective.all_reduce(network, "1MB"))
    ).raise_if_failed()


TWICE = f"""
import sys
from tacos.cli import main
from tacos.runtime import connect
for _ in range(2):  # a process may meet the others more than once
    with connect(timeout={PATIENCE_S}) as comm:
        assert comm.exchange("rank", bytes([comm.rank])) == [bytes([0]), bytes([1])]
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "mpiexec"])
def test_ranks_of_others_are_measured_too(tmp_path, launcher):
    """After two meetings: over TCP under torchrun, with MPI's own messages under mpiexec."""
    module, command, options = {
        "torchrun": ("torch", ["-m", "torch.distributed.run", "--nproc-per-node=2"], []),
        "mpiexec": ("mpi4py", [], ["--mpi"]),
    }[launcher]
    started = [] if launcher == "torchrun" else mpiexec(2)
    if importlib.util.find_spec(module) is None or (launcher == "mpiexec" and not started):
        pytest.skip(f"{launcher} is not installed: pip install 'tacos-ccl[torch,mpi]'")
    script, out = tmp_path / "twice.py", tmp_path / "network.yaml"
    script.write_text(TWICE)
    asked = ["probe", "-o", str(out), "--seconds", "0.2", *options]
    env = {**os.environ, **MPI_SETTINGS, "TACOS_HOST": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*started, sys.executable, *command, str(script), *asked],
        env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    network = tacos.load(out)
    assert list(network.names[:2]) == ["127.0.0.1:0", "127.0.0.1:1"]  # as placement names them


def test_one_rank_is_no_network():
    with (
        connect(TcpRendezvous(0, 1, "", 0)) as comm,
        pytest.raises(ValueError, match="one rank only"),
    ):
        probe(comm)


def test_the_command_wants_ranks(capsys):
    assert main(["probe"]) == 2
    assert (
        "there are no ranks: run it under torchrun or mpiexec, or give --np"
        in capsys.readouterr().err
    )
    assert main(["probe", "--mpi"]) == 2
    example = "mpiexec -n 8 tacos probe --carrier mpi"
    assert f"the carrier mpi needs the ranks of MPI: {example}" in capsys.readouterr().err


def test_the_command_ends_with_the_network_in_words(monkeypatch, tmp_path, capsys):
    one = Spread(1e-6, 2e-6, 3e-6), Spread(1e9, 2e9, 4e9)
    wiring = Wiring(("a:0", "b:0"), (Pair(0, 1, *one), Pair(1, 0, *one)), ())
    comm = connect(TcpRendezvous(0, 1, "", 0))
    monkeypatch.setattr("tacos.runtime.in_job", lambda: True)
    monkeypatch.setattr("tacos.cli.running.Ranks.connect", lambda _: comm)
    monkeypatch.setattr(sys.modules[probe.__module__], "probe", lambda *_, **__: wiring)
    path = tmp_path / "net.yaml"
    assert main(["probe", "-o", str(path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"custom: 2 NPUs, 0 switches, 2 links, written to {path}"


def test_the_report_says_what_is_shared():
    def pair(src, dst, by=None):
        return Pair(src, dst, Spread(1e-6, 2e-6, 3e-6), Spread(1e9, 2e9, 4e9), by)

    ports = (
        Port(0, True, (1, 2), 2e9, 2e-6),
        Port(2, False, (0,), 2e9, 2e-6, behind=0, behind_Bps=4e9),
        Port(2, False, (1,), 3e9, 2e-6, behind=0, behind_Bps=4e9),
    )
    switch = Switch(ports, 3e9, (Shared((1, 2), 3.5e9),))
    wiring = Wiring(("a:0", "b:0", "c:0"), (pair(0, 1), pair(0, 2, 1)), (switch,))
    head, first, second, *shared = report(wiring)
    assert head.split() == [
        "from",
        "to",
        "latency",
        "(min",
        "to",
        "max)",
        "bandwidth",
        "(min",
        "to",
        "max)",
    ]
    assert first.split()[:3] == ["a:0", "->", "b:0"]
    assert "2 us (1 us to 3 us)" in first
    assert second.endswith("2 GB/s (1 GB/s to 4 GB/s)  by way of b:0")
    assert shared == [
        "a:0 shares 2 GB/s to b:0, c:0",
        "c:0 shares 4 GB/s from a:0, b:0",
        "c:0, c:0 share 3.5 GB/s on the way in",
        "a:0 share 3 GB/s on their way",
    ]


# --- in the lab -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _lab():
    if why := unavailable():
        pytest.skip(why)


def measured(network, tmp_path, **options):
    """The enforced network, and the network that the probe finds."""
    path = tmp_path / "measured.yaml"
    with Lab(network, **options) as lab:
        run = lab.run(
            [*PROBE, "-o", str(path), "--seconds", "6"], time_limit=PATIENCE_S, output="returned"
        )
        assert run.code == 0, run.why + "".join(run.stderr)
        return lab.topology, tacos.load(path)


def rates(network):
    ends = zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True)
    return dict(sorted(zip(ends, network.link_bandwidth_Bps.tolist(), strict=True)))


@pytest.mark.slow
@pytest.mark.usefixtures("_lab")
@pytest.mark.parametrize("speeds", [[1, 1, 1, 1], [1, 2, 1, 1]], ids=["even", "uneven"])
def test_a_ring_is_found_link_by_link(speeds, tmp_path):
    """Opposite ranks reach each other through a third, which the probe does not take for a link."""
    rows = [(a, (a + 1) % 4, 5e6 * speed, 0) for a, speed in enumerate(speeds)]
    rows += [(b, a, rate, latency) for a, b, rate, latency in rows]
    enforced, found = measured(tp.from_links(4, rows), tmp_path, scale=1)
    assert rates(found).keys() == rates(enforced).keys()
    assert list(rates(found).values()) == pytest.approx(list(rates(enforced).values()), rel=0.15)


@pytest.mark.slow
@pytest.mark.usefixtures("_lab")
def test_the_ports_of_a_switch_are_found(tmp_path):
    enforced, found = measured(tp.switch(4), tmp_path, fastest="50Mbit/s")
    assert found.nodes - found.npus == 1
    assert rates(found).keys() == rates(enforced).keys()
    assert list(rates(found).values()) == pytest.approx(list(rates(enforced).values()), rel=0.15)


@pytest.mark.slow
@pytest.mark.usefixtures("_lab")
def test_a_trunk_is_found(tmp_path):
    """Two ranks at each of two switches; the link between the switches is slower than the ports."""
    rows = [(npu, 4 + npu // 2, 8e6, 0) for npu in range(4)] + [(4, 5, 3e6, 0)]
    rows += [(b, a, rate, latency) for a, b, rate, latency in rows]
    enforced, found = measured(tp.from_links(4, rows, switches=2), tmp_path, scale=1)
    times = [
        tacos.bound(network, tacos.collective.all_reduce(network, "100MB")).bandwidth_s
        for network in (enforced, found)
    ]
    assert times[1] == pytest.approx(times[0], rel=0.15)
    assert np.isclose(found.link_bandwidth_Bps, 3e6, rtol=0.15).any()
