"""What ``nvidia-smi topo -m`` prints: how every two devices of one machine are joined.

A cell says ``NV#`` (the number of NVLinks), ``PIX`` or ``PXB`` (behind the same PCIe bridges), ``PHB`` (the
same host bridge), ``NODE`` (the same NUMA domain) or ``SYS`` (across CPUs). Devices behind the same bridges
share a PCIe switch, those of one NUMA domain share a CPU, and CPUs are joined with each other. If a GPU has more NVLinks
in total than it can have (18), they lead to NVSwitch. The text does not contain speeds; they are arguments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tacos.formats.machine import Machine
from tacos.formats.source import about, quoted, text_of
from tacos.units import Quantity, bandwidth_Bps, time_ps

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Topology
    from tacos._support.files import Location

__all__ = ["looks_like", "read"]

_MOST_BYTES = 1 << 24
_MOST_DEVICES = 512
_MOST_LINKS = 18  # NVLinks of one GPU, of any generation so far
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"GPU[0-9]{1,4}|NIC[0-9]{1,4}|mlx[0-9]_[0-9a-z_]{1,20}|hfi[0-9_]{1,8}")
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_CLOSE = {"PIX", "PXB"}
_SAME_CPU = {"PHB", "NODE"}
_CELLS = "X, NV#, PIX, PXB, PHB, NODE and SYS"


def looks_like(head: str) -> bool:
    """Return whether a text begins like the command's output.

    >>> looks_like("\\tGPU0\\tGPU1\\tCPU Affinity"), looks_like("2 0 1")
    (True, False)
    """
    return bool(re.search(r"^[ \t]*GPU[0-9]+(\s|$)", _CONTROL.sub("", head), re.MULTILINE))


def read(
    path: Location,
    *,
    boxes: int = 1,
    fabric: str = "switch",
    pcie: bool = True,
    bandwidth: Quantity = "25GB/s",
    latency: Quantity = "700ns",
    pcie_bandwidth: Quantity = "31.5GB/s",
    pcie_latency: Quantity = "250ns",
    nic_bandwidth: Quantity | None = None,
    nic_latency: Quantity = "1.3us",
) -> Topology:
    """Read the machine that ``nvidia-smi topo -m`` describes, or several of them on a fabric.

    Args:
        path: The file with the command's output.
        boxes: Number of such machines; a single one has no NICs.
        fabric: ``"switch"``, which joins all NICs, or ``"rail"``, one switch for the NICs of each position.
        pcie: Whether GPUs also reach each other over PCIe; if not, bridges and CPUs are left out,
            and every GPU has a link to the NIC nearest to it.
        bandwidth, latency: Values of one NVLink: 25 GB/s for NVLink 2 to 4, 50 GB/s for NVLink 5. A path
            through NVSwitch has the same latency in total.
        pcie_bandwidth, pcie_latency: Values of a PCIe link and between CPUs; the default is PCIe 4 x16.
        nic_bandwidth, nic_latency: Values between a NIC and the fabric; required for several boxes.

    Raises:
        FormatError: The file is not such a text; the message names the line and the cell.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "topo.txt")
    ...     _ = file.write_text("        GPU0    GPU1\\nGPU0     X      NV4\\nGPU1    NV4      X")
    ...     read(file)
    <tacos.Topology machine: 2 NPUs, 1 switch, 6 links>
    """
    with about(path):
        if boxes != 1 and nic_bandwidth is None:
            raise ValueError(
                "nic_bandwidth is missing; the text does not contain the speed of NICs"
            )
        nic_Bps = 0 if nic_bandwidth is None else bandwidth_Bps(nic_bandwidth, what="nic_bandwidth")
        names, cells, numa = _matrix(text_of(path, _MOST_BYTES))
        machine = Machine()
        for name in names:
            machine.add("gpu" if name.startswith("GPU") else "nic", name.lower(), nic_Bps)
        _join_nvlinks(machine, names, cells, bandwidth_Bps(bandwidth), time_ps(latency))
        link = bandwidth_Bps(pcie_bandwidth, what="pcie_bandwidth"), time_ps(pcie_latency)
        _join_pcie(machine, cells, numa, link)
        machine = machine if pcie else machine.without_pcie()
        nic_ps = time_ps(nic_latency, what="nic_latency")
        return machine.topology(boxes=boxes, fabric=fabric, nic_latency_ps=nic_ps)


def _matrix(text: str) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the devices (GPUs first, as in the text), the cells between them, and their NUMA domains."""
    lines = [line.split() for line in _CONTROL.sub("", text).splitlines()]
    head = next((i for i, words in enumerate(lines) if words and _DEVICE.fullmatch(words[0])), -1)
    if head < 0 or not lines[head][0].startswith("GPU"):
        raise ValueError("there is no row of names that starts with GPU0")
    names = []
    for word in lines[head]:
        if not _DEVICE.fullmatch(word):
            break
        names.append(word)
    if len(names) > _MOST_DEVICES:
        raise ValueError(f"line {head + 1}: {len(names)} devices; the limit is {_MOST_DEVICES}")
    if len(set(names)) != len(names):
        raise ValueError(f"line {head + 1}: a device is named twice")
    rows: dict[str, list[str]] = {}
    for number, words in enumerate(lines[head + 1 :], start=head + 2):
        if not words or words[0] not in names:
            if words and words[0].rstrip(":") == "Legend":
                break
            continue
        name, cells = words[0], words[1 : 1 + len(names)]
        if name in rows:
            raise ValueError(f"line {number}: {name} has a second row")
        if len(cells) < len(names):
            raise ValueError(f"line {number}: {name} has {len(cells)} cells, not {len(names)}")
        for cell in cells:
            if cell not in _CLOSE | _SAME_CPU | {"X", "SYS"} and not _NVLINKS.fullmatch(cell):
                raise ValueError(
                    f"line {number}: a cell is {quoted(cell)}; it must be one of {_CELLS}"
                )
        rows[name] = words[1:]
    for name in names:
        if name not in rows:
            raise ValueError(f"{name} has no row: the text is cut short")
    # The columns after the cells are the CPU affinity and the NUMA domain; NICs have none.
    numa = [
        rest[1] if len(rest) > 1 else "" for name in names for rest in [rows[name][len(names) :]]
    ]
    return names, [rows[name][: len(names)] for name in names], numa


def _join_nvlinks(
    machine: Machine, names: list[str], cells: list[list[str]], bandwidth: int, latency: int
) -> None:
    counts = [
        [int(match[1]) if (match := _NVLINKS.fullmatch(cell)) else 0 for cell in row]
        for row in cells
    ]
    ports = [max(row) for row in counts]
    switched = {i for i, row in enumerate(counts) if sum(row) > _MOST_LINKS}
    if switched:
        switch = machine.add("switch", "nvswitch")
        for i in sorted(switched):
            machine.join(i, switch, ports[i] * bandwidth, latency // 2)
    for i, row in enumerate(counts):
        for j in range(i):
            count = max(row[j], counts[j][i])
            if count and not {i, j} <= switched:
                if i == j or not names[i].startswith("GPU") or not names[j].startswith("GPU"):
                    raise ValueError(
                        f"{names[i]} has NVLinks to {names[j]}, but only GPUs have NVLinks"
                    )
                machine.join(j, i, count * bandwidth, latency)


def _join_pcie(
    machine: Machine, cells: list[list[str]], numa: list[str], pcie: tuple[int, int]
) -> None:
    devices = range(len(cells))
    bridge_of = _groups(len(cells), lambda i, j: cells[i][j] in _CLOSE)
    # A cell of NVLinks hides the PCIe connection; the column of NUMA domains helps.
    cpu_of = _groups(
        len(cells),
        lambda i, j: (
            cells[i][j] in _CLOSE | _SAME_CPU or (numa[i] == numa[j] and cells[i][j] != "SYS")
        ),
    )
    cpus = {group: machine.add("cpu", f"cpu{k}") for k, group in enumerate(sorted(set(cpu_of)))}
    bridges = {
        group: machine.add("bridge", f"pcie{k}") for k, group in enumerate(sorted(set(bridge_of)))
    }
    for group, bridge in bridges.items():
        machine.join(bridge, cpus[cpu_of[group]], *pcie)
    for device in devices:
        machine.join(device, bridges[bridge_of[device]], *pcie)
    ordered = list(cpus.values())
    for i, a in enumerate(ordered):
        for b in ordered[:i]:
            machine.join(b, a, *pcie)


def _groups(count: int, together: Callable[[int, int], bool]) -> list[int]:
    """Return the lowest item of each item's group, where pairs that belong together form groups."""
    group = list(range(count))

    def lowest(item: int) -> int:
        while group[item] != item:
            group[item] = group[group[item]]
            item = group[item]
        return item

    for i in range(count):
        for j in range(i):
            if together(i, j):
                a, b = lowest(i), lowest(j)
                group[max(a, b)] = min(a, b)
    return [lowest(item) for item in range(count)]
