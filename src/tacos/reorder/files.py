"""Files with which unmodified jobs use an order: one record per file.

:func:`write` writes them to a directory, with a README that explains how to use each. All of them are made from one
:class:`Contents`; a file for another launcher is one entry of :data:`FILES`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacos import units
from tacos._support.files import replacing_all
from tacos.reorder.patterns import PATTERNS
from tacos.reorder.search import OrderingProblem, cost_of
from tacos.synth.baselines.nccl.boxes import layout
from tacos.synth.baselines.nccl.channels import network_of, rings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from tacos.reorder import Order
    from tacos.reorder.costs import Costs

__all__ = ["FILES", "Contents", "LaunchFile", "write"]

_TUNED_SIZES = [1 << power for power in range(10, 34)]
_MOST_BYTES = 4294967295
"""The largest size in a tuner file."""


@dataclass(frozen=True)
class Contents:
    """The contents of the files.

    Attributes:
        order: The order of ranks.
        slots: Ranks on each host, in the new order.
        costs: The costs of messages, if known.
    """

    order: Order
    slots: tuple[int, ...]
    costs: Costs | None = None

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """Return the host of every new rank, and its number on that host."""
        both = zip(self.order.hosts, self.slots, strict=True)
        return [(host, number) for host, count in both for number in range(count)]


@dataclass(frozen=True)
class LaunchFile:
    """A file, or several of a kind.

    Attributes:
        name: Its name, as the README shows it.
        make: A function that returns the files' texts by name, or a sentence why there are none.
        how: How to use it, as Markdown for the README.
    """

    name: str
    make: Callable[[Contents], dict[str, str] | str]
    how: str


def write(
    order: Order,
    folder: str | os.PathLike[str],
    *,
    slots: int | None = None,
    costs: Costs | None = None,
) -> list[Path]:
    """Write the files for all launchers into a directory, all or none of them.

    Args:
        order: The order to use.
        folder: The directory; it is created if it does not exist.
        slots: Ranks on every host; by default the number in the order.
        costs: The costs of messages; with them, files for NCCL are written too.

    Returns:
        The paths, the README first.

    Raises:
        ValueError: `slots` is not positive.
        FormatError: A file cannot be written.

    >>> import numpy as np, tacos, tempfile
    >>> found = tacos.reorder(np.array([[0, 5, 1], [5, 0, 5], [1, 5, 0]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = write(found, folder, slots=2)
    ...     print(Path(folder, "rankfile").read_text().splitlines()[2])
    rank 2=1 slot=0
    """
    if slots is not None and slots < 1:
        raise ValueError(f"slots must be positive; got {slots}")
    counts = tuple(slots or len(ranks) for ranks in order.ranks)
    contents = Contents(order, counts, costs)
    for host in order.hosts:
        if not re.fullmatch(r"[\w.-]+", host):
            raise ValueError(
                f"host {host!r} cannot be written to a host file; group NPUs into hosts with --npus-per-host N, "
                "or rename it with letters, digits, '.', '-' and '_'"
            )
    texts: dict[str, str] = {}
    sections = []
    for file in FILES:
        made = file.make(contents)
        if isinstance(made, str):
            sections.append(f"## {file.name}\n\nNot written: {made}.\n")
            continue
        texts |= made
        sections.append(f"## {file.name}\n\n{file.how.strip()}\n")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    texts = {"README.md": _readme(contents, sections), **texts}
    with replacing_all() as put:
        for name, text in texts.items():
            put(target / name, text.encode())
    if "torchrun.sh" in texts:
        (target / "torchrun.sh").chmod(0o755)
    return [target / name for name in texts]


def _readme(contents: Contents, sections: list[str]) -> str:
    order = contents.order
    single = order.size in ("latency", "bandwidth")
    counted = f"counting {order.size} only" if single else f"size {order.size}"
    proof = (
        "no order is faster"
        if order.exact
        else f"at most {100 * order.gap:.1f} % slower than the best"
    )
    gain = (
        f"Predicted time: {units.format_time(order.cost_before)} before, "
        f"{units.format_time(order.cost)} in this order ({order.speedup:.2f} times as fast; {proof})."
    )
    return "\n".join(
        [
            "# A faster order of ranks",
            "",
            f"Found for {order.pattern}, {counted}, on {len(order.hosts)} hosts. {gain}",
            "",
            "Use the file of your launcher. The job itself stays as it is.",
            "",
            *sections,
        ]
    )


def _lines(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _order(contents: Contents) -> dict[str, str]:
    return {"order.txt": _lines(list(contents.order.hosts))}


def _per_task(name: str) -> Callable[[Contents], dict[str, str]]:
    return lambda contents: {name: _lines([host for host, _ in contents.tasks])}


def _rankfile(contents: Contents) -> dict[str, str]:
    rows = [f"rank {rank}={host} slot={slot}" for rank, (host, slot) in enumerate(contents.tasks)]
    return {"rankfile": _lines(rows)}


def _mpich(contents: Contents) -> dict[str, str]:
    rows = zip(contents.order.hosts, contents.slots, strict=True)
    return {"mpich.hosts": _lines([f"{host}:{count}" for host, count in rows])}


_TORCHRUN = """#!/bin/sh
# Runs torchrun with the node rank that order.txt gives to this host. Start it on every host.
here=$(dirname -- "$0")
host=${{TACOS_HOST:-$(hostname)}}
rank=$(awk -v a="$host" -v b="${{host%%.*}}" '$1 == a || $1 == b {{ print NR - 1; exit }}' "$here/order.txt")
if [ -z "$rank" ]; then
    echo "torchrun.sh: $here/order.txt does not name $host; set TACOS_HOST to this host's name there" >&2
    exit 2
fi
exec "${{TORCHRUN:-torchrun}}" --rdzv-backend=static --nnodes={nodes} --node-rank="$rank" \\
    --nproc-per-node={slots} --master-addr="${{MASTER_ADDR:-{first}}}" --master-port="${{MASTER_PORT:-29500}}" "$@"
"""


def _torchrun(contents: Contents) -> dict[str, str] | str:
    slots = set(contents.slots)
    if len(slots) > 1:
        return "torchrun needs equally many ranks on all hosts"
    hosts = contents.order.hosts
    return {"torchrun.sh": _TORCHRUN.format(nodes=len(hosts), slots=slots.pop(), first=hosts[0])}


_MESH = '''"""The order of ranks, for jobs that are launched in the old one."""

ORDER = {order}
"""The old rank at every place of the new order."""


def device_mesh(device="cuda"):
    """All ranks along the network, as one axis; reshape ORDER for several."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh(device, torch.tensor(ORDER))


def ordered_group(**options):
    """A process group of all ranks in the new order; needs a torch whose new_group has sort_ranks."""
    from torch import distributed

    return distributed.new_group(ORDER, sort_ranks=False, **options)
'''


def _mesh(contents: Contents) -> dict[str, str] | str:
    if tuple(len(ranks) for ranks in contents.order.ranks) == contents.slots:
        order = list(contents.order.order)
    elif len(set(contents.slots)) == 1 and all(len(ranks) == 1 for ranks in contents.order.ranks):
        slots = contents.slots[0]
        order = [host * slots + number for host in contents.order.order for number in range(slots)]
    else:
        return "the old ranks of the hosts are not known"
    return {"mesh.py": _MESH.format(order=order)}


def _kubernetes(contents: Contents) -> dict[str, str]:
    first, rows = 0, []
    for host, count in zip(contents.order.hosts, contents.slots, strict=True):
        rows.append(f'  "{host}": "{first}"')
        first += count
    head = ["apiVersion: v1", "kind: ConfigMap", "metadata:", "  name: tacos-order", "data:"]
    return {"kubernetes.yaml": _lines(head + rows)}


def _graphs(contents: Contents) -> dict[str, str] | str:
    """Return NCCL's rings inside each host, as the model of NCCL builds them in this order."""
    if contents.costs is None or contents.costs.network is None:
        return "it needs a topology with the links inside the hosts"
    boxes = contents.order.ranks
    if len({len(box) for box in boxes}) > 1 or len(boxes[0]) < 2:
        return "hosts have one rank each, or different numbers of ranks"
    if tuple(map(len, boxes)) != contents.slots:
        return "the topology has another number of ranks on each host"
    network = network_of(contents.costs.network)
    members = np.array([npu for box in boxes for npu in box], np.int32)
    known = layout(contents.costs.network, members)
    if known.boxes != boxes:
        return "the links do not tell the hosts apart"
    found = rings(network, known)
    speed = network.bandwidth(found) / len(found) / 1e9
    return {
        f"nccl_graph.{host}.xml": _graph([_inside(ring, box) for ring in found], speed)
        for host, box in zip(contents.order.hosts, boxes, strict=True)
    }


def _inside(ring: tuple[int, ...] | list[int], box: tuple[int, ...]) -> list[int]:
    """Return the part of a ring in one host, from where it enters to where it leaves, as device numbers."""
    inside = [npu in box for npu in ring]
    start = next(i for i in range(len(ring)) if inside[i] and not inside[i - 1])
    turned = [*ring[start:], *ring[:start]]
    return [box.index(npu) for npu in turned[: len(box)]]


def _graph(channels: list[list[int]], speed: float) -> str:
    """Return the file that NCCL reads; NCCL uses the speed of a channel, in GB/s, for its tuning."""
    root = ET.Element("graphs", version="1")
    graph = ET.SubElement(
        root, "graph", id="0", pattern="4", crossnic="0", nchannels=str(len(channels)), speedintra=f"{speed:.4g}",
        speedinter=f"{speed:.4g}", latencyinter="0", typeintra="NVL", typeinter="PIX", samechannels="0",
    )  # fmt: skip
    for number, devices in enumerate(channels):
        channel = ET.SubElement(graph, "channel")
        ET.SubElement(channel, "net", dev=hex(number))
        for device in devices:
            ET.SubElement(channel, "gpu", dev=hex(device))
        ET.SubElement(channel, "net", dev=hex(number))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _tuner(contents: Contents) -> dict[str, str] | str:
    """Choose ring or tree for every range of sizes, whichever is faster in the new order."""
    if contents.costs is None or contents.costs.byte_s is None:
        return "it needs bandwidths"
    at = {name: i for i, name in enumerate(contents.costs.names)}
    hosts = [at[name] for name in contents.order.hosts]
    rows: list[tuple[int, int, str]] = []
    low = 0
    for size in _TUNED_SIZES:
        times = {}
        for name in ("ring", "double-binary-tree"):
            terms = PATTERNS[name].terms(len(hosts), size)
            problem = OrderingProblem(contents.costs, terms, latency=True, turns=False)
            times[name] = cost_of(problem, hosts)
        best = "ring" if times["ring"] <= times["double-binary-tree"] else "tree"
        if rows and rows[-1][2] == best:
            rows[-1] = (rows[-1][0], min(size, _MOST_BYTES), best)
        else:
            rows.append((low, min(size, _MOST_BYTES), best))
        low = size + 1
    rows[-1] = (rows[-1][0], _MOST_BYTES, rows[-1][2])
    ranks = sum(contents.slots)
    lines = ["# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"]
    for low, high, best in rows:
        protocol = "simple" if low >= 1 << 20 else "ll128" if low >= 1 << 16 else "ll"
        protocol = protocol if len(rows) > 1 else "simple"
        lines.append(f"allreduce,{low},{high},{best},{protocol},-1,{len(hosts)},{ranks}")
    return {"nccl_tuner.conf": _lines(lines)}


def _environment(contents: Contents) -> dict[str, str]:
    lines = [
        "# Source this file: . ./env.sh",
        'here=$(cd -- "$(dirname -- "${BASH_SOURCE:-$0}")" && pwd)',
        'export TACOS_ORDER="$here/order.txt"     # the torch backend of TACOS',
        'export SLURM_HOSTFILE="$here/slurm.hosts"',
    ]
    if not isinstance(_graphs(contents), str):
        lines.append('export NCCL_GRAPH_FILE="$here/nccl_graph.$(hostname).xml"')
    if not isinstance(_tuner(contents), str):
        lines.append('export NCCL_TUNER_CONFIG_FILE="$here/nccl_tuner.conf"')
    return {"env.sh": _lines(lines)}


FILES: tuple[LaunchFile, ...] = (
    LaunchFile("order.txt", _order, "The hosts in their new order, one per line."),
    LaunchFile(
        "slurm.hosts",
        _per_task("slurm.hosts"),
        """
One line per task, with the name of its host. Inside an allocation of these hosts:

    SLURM_HOSTFILE=slurm.hosts srun -m arbitrary -n TASKS COMMAND
""",
    ),
    LaunchFile(
        "rankfile",
        _rankfile,
        """
Open MPI 5: `mpirun --map-by rankfile:FILE=rankfile COMMAND`. Open MPI 4: `mpirun -rf rankfile COMMAND`. Without a
scheduler that has allocated the hosts, add `--hostfile openmpi.seq`.
""",
    ),
    LaunchFile(
        "openmpi.seq",
        _per_task("openmpi.seq"),
        """
Open MPI without binding to cores: `mpirun --hostfile openmpi.seq --map-by seq:file=openmpi.seq COMMAND`. Open MPI 4:
`mpirun -mca rmaps seq -hostfile openmpi.seq COMMAND`.
""",
    ),
    LaunchFile("mpich.hosts", _mpich, "MPICH and Intel MPI: `mpiexec -f mpich.hosts COMMAND`."),
    LaunchFile(
        "torchrun.sh",
        _torchrun,
        """
Start it on every host instead of torchrun: `./torchrun.sh train.py`. It finds the node rank in order.txt. The
rendezvous is static, because torchrun's dynamic rendezvous sorts nodes by name.
""",
    ),
    LaunchFile(
        "mesh.py",
        _mesh,
        """
For jobs that must be launched in the old order: `device_mesh()` and `ordered_group()` arrange the old ranks along the
network.
""",
    ),
    LaunchFile(
        "kubernetes.yaml",
        _kubernetes,
        """
A ConfigMap with the first rank of every node. Mount it and read the file that `spec.nodeName` (downward API) names,
instead of using the completion index.
""",
    ),
    LaunchFile(
        "nccl_graph.HOST.xml",
        _graphs,
        """
NCCL's rings inside each host: `NCCL_GRAPH_FILE=nccl_graph.$(hostname).xml`. Only needed where NCCL chooses other
rings; between hosts NCCL always follows rank order.
""",
    ),
    LaunchFile(
        "nccl_tuner.conf",
        _tuner,
        """
Ring or tree by size, for NCCL's example tuner plugin: `NCCL_TUNER_PLUGIN=example
NCCL_TUNER_CONFIG_FILE=nccl_tuner.conf`. Measure before you keep it.
""",
    ),
    LaunchFile("env.sh", _environment, "The variables above: `. ./env.sh`."),
)
"""The files that are written, in the order of the README."""
