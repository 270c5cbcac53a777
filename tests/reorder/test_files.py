"""The files that unmodified jobs use, checked by the tools that read them where those are installed."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import tacos
from tacos.cli import main
from tacos.errors import FormatError
from tacos.judgement.logs import read_log
from tacos.reorder.costs import Costs
from tacos.reorder.files import FILES, write
from tacos.reorder.sources import costs_of, hosts_in
from tacos.runtime.lab import Lab, unavailable
from tests.support.conditions import PATIENCE_S
from tests.support.lab_hosts import launch, mpirun

pytestmark = pytest.mark.unsanitized

MPIRUN = Path(sys.executable).with_name("mpirun")


@pytest.fixture
def order():
    """Hosts 0 and 2 are near each other, and so are hosts 1 and 3."""
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
    """Four H100 boxes: eight channels, each from its NIC through all GPUs of the box and back to the NIC."""
    costs = costs_of(tacos.topology.dgx_h100(4, nvls=False), npus_per_host=8)
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
        # The reader of NCCL's own dumps reads it, too.
        assert len(read_log(tmp_path / f"nccl_graph.{host}.xml").rings) == 8
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


def _open_mpi(option):
    def command(folder, file):
        hosts = ["--hostfile", f"{folder}/openmpi.seq"]
        # Open MPI's daemons lose ranks that end while the others still start, and then wait forever.
        here = f"{folder}/started.$OMPI_COMM_WORLD_RANK"
        all_here = f"until [ $(ls {folder}/started.* | wc -l) = 8 ]; do sleep 0.05; done"
        shown = f"echo $OMPI_COMM_WORLD_RANK $(hostname); touch {here}; {all_here}"
        return [*mpirun(folder), *hosts, "--map-by", f"{option}={file}", "sh", "-c", shown]

    return command


def _mpich(folder, file):
    command = ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", f"{folder}/ssh"]
    return [*command, "-iface", "management", "-f", file, "sh", "-c", "echo $PMI_RANK $(hostname)"]


def _daemon(name):
    """A program of Slurm, by its own name or Debian's."""
    folders = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return next(filter(None, (shutil.which(n, path=folders) for n in (name, f"{name}-wlm"))), None)


def _slurm(folder, file):
    """A Slurm cluster: a controller on the first host and a daemon on each, with their files in the directory."""
    step, node, control = (_daemon(name) for name in ("slurmstepd", "slurmd", "slurmctld"))
    plugins = [f"PluginDir={path}" for path in Path(control).parents[1].glob("lib/*/slurm-wlm")]
    lines = [
        *("ClusterName=lab", "SlurmctldHost=npu0", "AuthType=auth/none", "CredType=cred/none"),
        *("SlurmUser=root", "SlurmdUser=root", f"StateSaveLocation={folder}/state"),
        *(f"SlurmdSpoolDir={folder}/spool.%n", f"SlurmdPidFile={folder}/%n.pid"),
        *(f"SlurmdLogFile={folder}/%n.log", f"SlurmctldLogFile={folder}/control.log"),
        *(f"SlurmctldPidFile={folder}/control.pid", "ProctrackType=proctrack/linuxproc"),
        *("TaskPlugin=task/none", "MpiDefault=none", "SelectType=select/cons_tres"),
        *("SelectTypeParameters=CR_CPU", "NodeName=npu[0-3] CPUs=2", *plugins),
        "PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE",
    ]
    Path(folder, "slurm.conf").write_text("\n".join(lines) + "\n")
    script = f"""
        export SLURM_CONF={folder}/slurm.conf
        mkdir {folder}/state {folder}/spool.npu0 {folder}/spool.npu1 {folder}/spool.npu2 {folder}/spool.npu3
        {control} -c
        for host in npu1 npu2 npu3; do
            {folder}/ssh $host "SLURM_CONF={folder}/slurm.conf {node} -d {step} -N $host"
        done
        {node} -d {step} -N npu0
        SLURM_HOSTFILE={file} srun -m arbitrary -n 8 sh -c 'echo $SLURM_PROCID $(hostname)' ||
            cat {folder}/*.log >&2
    """
    return ["sh", "-c", script]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needed", "command"),
    [
        ("rankfile", str(MPIRUN), _open_mpi("rankfile:FILE")),
        ("openmpi.seq", str(MPIRUN), _open_mpi("seq:file")),
        ("mpich.hosts", "mpiexec.hydra", _mpich),
        ("slurm.hosts", "slurmctld", _slurm),
    ],
)
def test_launchers_place_ranks_as_their_files_say(name, needed, command):
    """Open MPI, MPICH and Slurm start two ranks on each of four hosts of a lab network."""
    if _daemon(needed) is None:
        pytest.skip(f"{needed} is not installed")
    if why := unavailable():
        pytest.skip(why)
    near = np.array([[0, 5, 1, 5], [5, 0, 5, 1], [1, 5, 0, 5], [5, 1, 5, 0]], float)
    hosts = tuple(f"npu{i}" for i in range(4))
    found = tacos.reorder(Costs(hosts, tuple((i,) for i in range(4)), near))
    assert list(found.hosts) != sorted(found.hosts)
    with Lab(tacos.topology.switch(4)) as lab, tempfile.TemporaryDirectory() as folder:
        write(found, folder, slots=2)
        run = launch(lab, folder, command(folder, f"{folder}/{name}"), time_limit=PATIENCE_S)
    assert run.code == 0, (run.why, run.stderr)
    said = dict(line.split() for line in run.stdout[0].splitlines())
    assert said == {str(i): found.hosts[i // 2] for i in range(8)}, run.stderr


def test_names_that_host_files_cannot_hold_are_refused(tmp_path, capsys):
    file, folder = tmp_path / "net.yaml", tmp_path / "new"
    file.write_text(
        "tacos: 1\nboxes: {count: 2, npus: 2, links: [{src: npu0, dst: npu1, bandwidth: 50GB/s, latency: 0}]}\n"
        "links: [{src: box0/npu0, dst: box1/npu0, bandwidth: 10GB/s, latency: 0}]\n"
    )
    assert main(["reorder", str(file), "-o", str(folder)]) == 2
    assert (
        "host 'box0/npu0' cannot be written to a host file; group NPUs into hosts with"
        in capsys.readouterr().err
    )
    assert not folder.exists()
    assert main(["reorder", str(file), "--npus-per-host", "2", "-o", str(folder)]) == 0


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
    (tmp_path / "hosts").write_text("")
    assert main(["reorder", str(table), "--hosts", str(tmp_path / "hosts")]) == 2
    assert f"{tmp_path / 'hosts'}: the file is empty" in capsys.readouterr().err
    assert main(["reorder", str(table), "--hosts", str(tmp_path / "none")]) == 2
    assert f"tacos: {tmp_path / 'none'}: No such file or directory\n" == capsys.readouterr().err
    assert main(["topo", str(table)]) == 2
    assert "tacos reorder reads times between hosts" in capsys.readouterr().err
