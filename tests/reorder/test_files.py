"""The files that unmodified jobs use, checked by the tools that read them where those are installed."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import tacos
from tacos.cli import main
from tacos.errors import FormatError
from tacos.reorder.files import FILES, write
from tacos.reorder.sources import costs_of, hosts_in

MPIRUN = Path(sys.executable).with_name("mpirun")


@pytest.fixture
def order():
    """Hosts 0, 2 and 1, 3 are near each other."""
    return tacos.reorder(np.array([[0, 5, 1, 5], [5, 0, 5, 1], [1, 5, 0, 5], [5, 1, 5, 0]], float))


def test_all_files_name_all_tasks_in_order(order, tmp_path):
    write(order, tmp_path / "new", slots=2)
    tasks = [host for host in order.hosts for _ in range(2)]
    text = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert text["order.txt"].split() == list(order.hosts)
    assert text["slurm.hosts"].split() == text["openmpi.seq"].split() == tasks
    ranks = re.findall(r"rank (\d+)=(\S+) slot=(\d+)", text["rankfile"])
    assert [(int(a), b, int(c)) for a, b, c in ranks] == [
        (i, host, i % 2) for i, host in enumerate(tasks)
    ]
    assert text["mpich.hosts"].split() == [f"{host}:2" for host in order.hosts]
    import yaml

    names = yaml.safe_load(text["kubernetes.yaml"])["data"]
    assert {host: int(first) for host, first in names.items()} == {
        host: 2 * place for place, host in enumerate(order.hosts)
    }
    for file in FILES:
        assert f"## {file.name}\n" in text["README.md"]
    assert "Not written: it needs bandwidths" in text["README.md"]


def test_the_mesh_lists_old_ranks(order, tmp_path):
    write(order, tmp_path, slots=2)
    found = runpy.run_path(str(tmp_path / "mesh.py"))["ORDER"]
    assert found == [2 * host + k for host in order.order for k in (0, 1)]


def test_the_torchrun_wrapper_finds_the_node_rank(order, tmp_path):
    write(order, tmp_path)
    for place, host in enumerate(order.hosts):
        environment = {**os.environ, "TORCHRUN": "echo", "TACOS_HOST": f"{host}.cluster.local"}
        said = subprocess.run(
            [tmp_path / "torchrun.sh", "train.py"], env=environment, capture_output=True, text=True, check=True
        ).stdout  # fmt: skip
        assert f"--node-rank={place} " in said
        assert said.rstrip().endswith("train.py")
    wrong = subprocess.run(
        [tmp_path / "torchrun.sh"], env={**os.environ, "TACOS_HOST": "other"}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "does not name other" in wrong.stderr


@pytest.mark.slow
def test_files_for_nccl(tmp_path):
    """Four H100 boxes: eight channels, each visits all GPUs of the box between its NIC and itself."""
    costs = costs_of(tacos.topology.dgx_h100(4), npus_per_host=8)
    found = tacos.reorder(costs)
    write(found, tmp_path, costs=costs)
    for host in found.hosts:
        graph = ET.parse(tmp_path / f"nccl_graph.{host}.xml").getroot().find("graph")
        assert graph is not None
        assert (graph.get("id"), graph.get("pattern")) == ("0", "4")
        channels = graph.findall("channel")
        assert len(channels) == int(graph.get("nchannels", "0")) == 8
        for channel in channels:
            kinds = [child.tag for child in channel]
            assert kinds == ["net", *["gpu"] * 8, "net"]
            assert sorted(int(gpu.get("dev", ""), 16) for gpu in channel.findall("gpu")) == list(
                range(8)
            )
        assert len({channel[0].get("dev") for channel in channels}) == 8
    lines = (tmp_path / "nccl_tuner.conf").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    assert all(
        len(row) == 8 and row[0] == "allreduce" and row[3] in ("ring", "tree") for row in rows
    )
    assert [int(row[1]) for row in rows] == [0, *(int(row[2]) + 1 for row in rows[:-1])]
    assert rows[-1][2] == "4294967295"
    script = ". ./env.sh && env"
    said = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert f"NCCL_TUNER_CONFIG_FILE={tmp_path}/nccl_tuner.conf" in said.stdout
    assert f"TACOS_ORDER={tmp_path}/order.txt" in said.stdout


@pytest.mark.slow
@pytest.mark.skipif(not MPIRUN.exists(), reason="needs Open MPI: make mpi")
@pytest.mark.parametrize(
    ("name", "option"), [("rankfile", "rankfile:FILE="), ("openmpi.seq", "seq:file=")]
)
def test_open_mpi_reads_the_files(order, tmp_path, name, option):
    """Open MPI maps ranks to this machine, which stands for the hosts."""
    write(order, tmp_path)
    text = (tmp_path / name).read_text()
    for host in order.hosts:
        text = re.sub(rf"(?m)(^|=){host}(\s|$)", r"\g<1>localhost\2", text)
    (tmp_path / name).write_text(text)
    said = subprocess.run(
        [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--map-by", f"{option}{tmp_path / name}",
         "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if "not enough slots" in said.stderr or "cpus" in said.stderr.lower():
        pytest.skip("this machine has fewer processors than ranks")
    assert said.returncode == 0, said.stderr
    assert sorted(said.stdout.split()[1::2]) == ["0", "1", "2", "3"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="needs MPICH")
def test_mpich_reads_its_host_file(order, tmp_path):
    write(order, tmp_path)
    (tmp_path / "mpich.hosts").write_text("localhost:4\n")
    command = ["mpiexec.hydra", "-f", str(tmp_path / "mpich.hosts"), "-n", "4", "true"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_nothing_is_written_on_a_mistake(order, tmp_path):
    with pytest.raises(ValueError, match="slots must be positive; got 0"):
        write(order, tmp_path / "new", slots=0)
    assert not (tmp_path / "new").exists()
    (tmp_path / "rankfile").mkdir()
    with pytest.raises(FormatError, match="rankfile"):
        write(order, tmp_path)
    assert not (tmp_path / "order.txt").exists()


def test_the_command(tmp_path, capsys):
    table = tmp_path / "ping.txt"
    table.write_text("a b 1.0\na c 0.2\nb c 1.0\na d 1.0\nb d 0.2\nc d 1.0\n")
    (tmp_path / "hosts").write_text("a slots=8\nb slots=8\nc slots=8\nd slots=8\n")
    command = [
        "reorder",
        str(table),
        "--hosts",
        str(tmp_path / "hosts"),
        "-o",
        str(tmp_path / "out"),
        "--slots",
        "8",
    ]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "1.67 times as fast" in printed
    assert "no order is faster" in printed
    assert (tmp_path / "out" / "slurm.hosts").read_text().split().count("c") == 8
    assert main(["reorder", str(table), "--json"]) == 0
    (tmp_path / "hosts").write_text("a\nb\ne\n")
    assert main(["reorder", str(table), "--hosts", str(tmp_path / "hosts")]) == 2
    assert f"hosts names e, which {table} does not have" in capsys.readouterr().err
    (tmp_path / "hosts").write_text("# none\n")
    with pytest.raises(FormatError, match="names no host"):
        hosts_in(tmp_path / "hosts")
