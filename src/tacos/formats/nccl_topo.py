"""Topology files of NCCL and RCCL, as ``NCCL_TOPO_DUMP_FILE`` writes them: one machine in XML.

``system`` holds ``cpu`` elements (NUMA domains), which hold nested ``pci`` (bridges and devices); a device
holds a ``gpu`` with its ``nvlink`` or ``xgmi`` cables, or a ``nic`` with its ``net`` ports. A file
describes one machine; `read` takes the number of machines, and how their NICs are joined.

GPUs are NPUs in the order of their ranks. NVLink and xGMI cables between two devices are one link with their total
bandwidth; NVSwitches are one switch. PCIe bridges and CPUs are switches, and every two CPUs are joined.

The files name generations, not speeds. Nominal speeds are vendors' figures for one direction; those of NCCL and RCCL
(``speeds="nccl"``) are the values that their own search uses, measured on real machines. The speeds between CPUs are
NCCL's in both cases. Latencies are not on data sheets: 0.7 us over a direct cable, half of it per link of a switch and
1.3 us to the fabric are as in `tacos.topology.machines`, and 0.25 us per PCIe link is an assumption.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tacos.formats import xml_events
from tacos.formats.machine import Machine
from tacos.formats.source import about, bytes_of, quoted
from tacos.units import Quantity, time_ps

if TYPE_CHECKING:
    from tacos._core import Topology
    from tacos._support.files import Location

__all__ = ["read"]

_MOST_BYTES = 1 << 26
_MOST_ELEMENTS = 1 << 14
_MOST_CPUS = 256
_MB = 10**6
_MOST_CABLES = 1000  # largest number of cables between two devices (chosen)

# MB/s of one cable from this generation on: nominal, and as NCCL or RCCL count it.
_NVLINK = {60: (20_000, 18_000), 70: (25_000, 20_000), 80: (25_000, 20_000), 86: (14_062, 12_000),
           87: (25_000, 20_000), 90: (25_000, 20_600), 100: (50_000, 40_100)}  # fmt: skip
_XGMI = {900: (46_000, 24_000), 910: (50_000, 36_000), 940: (64_000, 48_000), 950: (76_800, 48_000)}
# MB/s of one PCIe lane by its GT/s, likewise.
_LANE = {2.5: (250, 187.5), 5: (500, 375), 8: (985, 750), 16: (1_969, 1_500), 32: (3_938, 3_000),
         64: (7_563, 6_000)}  # fmt: skip
# MB/s between two CPUs, by vendor, from this family (AMD) or model (Intel) on.
_CPUS = {
    "GenuineIntel": {0: 6_000, 85: 10_000, 143: 22_000, 207: 40_000},
    "AuthenticAMD": {0: 16_000, 175: 24_000, 191: 32_000},
}
_OTHER_CPUS = {"arm64": 6_000, "ppc64": 32_000}


@dataclass
class _Element:
    name: str
    attributes: dict[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)

    def whole(self, key: str, default: int | None = None, least: int = 0, most: int = 10**9) -> int:
        """Return an attribute that is a whole number."""
        text = self.attributes.get(key, "")
        if not text and default is not None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise ValueError(
                f"line {self.line}: {key} of <{self.name}> is {quoted(text)}; "
                f"it must be a whole number from {least} to {most}"
            )
        return int(text)

    def text(self, key: str) -> str:
        return self.attributes.get(key, "").strip().lower()


def read(
    path: Location,
    *,
    boxes: int = 1,
    fabric: str = "switch",
    pcie: bool = True,
    speeds: str = "nominal",
    latency: Quantity = "700ns",
    pcie_latency: Quantity = "250ns",
    nic_latency: Quantity = "1.3us",
) -> Topology:
    """Read the machine that a file of NCCL or RCCL describes, or several of them on a fabric.

    Args:
        path: The file.
        boxes: Number of such machines; a single one has no NICs.
        fabric: ``"switch"``, which joins all NICs, or ``"rail"``, one switch for the NICs of each position.
        pcie: Whether GPUs also reach each other over PCIe; if not, bridges and CPUs are left out,
            and every GPU has a link to the NIC nearest to it.
        speeds: ``"nominal"`` (vendors' figures) or ``"nccl"`` (the values that NCCL and RCCL use).
        latency: Latency of a direct NVLink or xGMI cable; a path through NVSwitch has the same latency in total.
        pcie_latency: Latency of a PCIe link, and between CPUs.
        nic_latency: Latency between a NIC and the fabric.

    Raises:
        FormatError: The file is not such a description; the message names line and attribute.

    >>> import tempfile
    >>> from pathlib import Path
    >>> gpu = '<pci busid="{0}" class="0x030200"><gpu dev="{0}" sm="90">' \\
    ...     '<nvlink target="{1}" count="4" tclass="0x030200"/></gpu></pci>'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "pair.xml")
    ...     _ = file.write_text(
    ...         f'<system><cpu numaid="0">{gpu.format(0, 1)}{gpu.format(1, 0)}</cpu></system>')
    ...     pair = read(file)
    >>> pair, pair.link_bandwidth_Bps.max() // 10**9
    (<tacos.Topology machine: 2 NPUs, 1 switch, 6 links>, np.int64(100))
    """
    with about(path):
        if speeds not in ("nominal", "nccl"):
            raise ValueError(f'speeds must be "nominal" or "nccl"; got {speeds!r}')
        builder = _Builder(
            column=("nominal", "nccl").index(speeds),
            cable_ps=time_ps(latency, what="latency"),
            pcie_ps=time_ps(pcie_latency, what="pcie_latency"),
        )
        builder.system(_tree(bytes_of(path, _MOST_BYTES)))
        nic_ps = time_ps(nic_latency, what="nic_latency")
        machine = builder.machine if pcie else builder.machine.without_pcie()
        return machine.topology(boxes=boxes, fabric=fabric, nic_latency_ps=nic_ps)


def _tree(data: bytes) -> _Element:
    top = _Element("", {}, 0)
    open_elements, count = [top], 0

    def start(name: str, attributes: dict[str, str], line: int) -> None:
        nonlocal count
        count += 1
        if count > _MOST_ELEMENTS:
            raise ValueError(
                f"line {line}: more than {_MOST_ELEMENTS} elements, too many for a machine"
            )
        element = _Element(name, attributes, line)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    xml_events.parse(data, start, lambda _: open_elements.pop())
    root = top.children[0]
    if root.name != "system":
        raise ValueError(f"line {root.line}: the root is <{root.name}>; it must be <system>")
    return root


@dataclass
class _Gpu:
    element: _Element | None  # None: only its PCI class shows that it is a GPU
    busid: str
    device: int = -1
    cpu: int = -1


class _Builder:
    """Turns elements into devices and cables."""

    def __init__(self, column: int, cable_ps: int, pcie_ps: int) -> None:
        self.machine = Machine()
        self.column, self.cable_ps, self.pcie_ps = column, cable_ps, pcie_ps
        self.gpus: list[_Gpu] = []

    def system(self, root: _Element) -> None:
        cpus = [element for element in root.children if element.name == "cpu"]
        if not 1 <= len(cpus) <= _MOST_CPUS:
            found = f"{len(cpus)} <cpu>" if cpus else "no <cpu>"
            raise ValueError(
                f"line {root.line}: <system> has {found}; it must have 1 to {_MOST_CPUS}"
            )
        for element in cpus:
            self._find_gpus(element)
        self._number_gpus()
        self.pending = list(self.gpus)
        numbers: list[int] = []
        for element in cpus:
            numaid = element.attributes.get("numaid", str(len(numbers)))
            self.cpu = self.machine.add("cpu", f"cpu{numaid}")
            numbers.append(self.cpu)
            self._children(element, self.cpu)
        for i, a in enumerate(numbers):
            for j in range(i):
                speed = min(_between_cpus(cpus[i]), _between_cpus(cpus[j]))
                self.machine.join(numbers[j], a, speed * _MB, self.pcie_ps)
        self._cables()
        self._unique_names()

    def _find_gpus(self, element: _Element) -> None:
        """Collect all GPUs in the order of the file, in which `_pci` also visits them."""
        for child in element.children:
            if child.name == "pci" and _is_gpu(child):
                inner = next((one for one in child.children if one.name == "gpu"), None)
                self.gpus.append(_Gpu(inner, _busid(child)))
            elif child.name == "pci":
                self._find_gpus(child)

    def _number_gpus(self) -> None:
        """Add GPUs as the first devices, by rank, else by device number, else in the order of the file."""
        order = list(range(len(self.gpus)))
        for key in ("rank", "dev"):
            found = [
                gpu.element.whole(key, -1, least=-1) if gpu.element is not None else -1
                for gpu in self.gpus
            ]
            if min(found, default=-1) >= 0 and len(set(found)) == len(found):
                order.sort(key=found.__getitem__)
                break
        for i, at in enumerate(order):
            self.gpus[at].device = self.machine.add("gpu", f"gpu{i}")
        by_busid: dict[str, _Gpu] = {}
        for gpu in self.gpus:
            if by_busid.setdefault(gpu.busid, gpu) is not gpu:
                raise ValueError(f"two GPUs have the busid {quoted(gpu.busid)}")
        self.by_busid = by_busid

    def _children(self, element: _Element, parent: int) -> None:
        for child in element.children:
            if child.name == "pci":
                self._pci(child, parent)
            elif child.name == "nic":
                self._nic(child, parent)

    def _pci(self, element: _Element, parent: int) -> None:
        speed = self._pcie_Bps(element)
        if _is_gpu(element):
            gpu = self.pending.pop(0)
            gpu.cpu = self.cpu
            self.machine.join(gpu.device, parent, speed, self.pcie_ps)
            return
        bridge = self.machine.add("bridge", f"pci {_busid(element)}")
        self.machine.join(bridge, parent, speed, self.pcie_ps)
        if element.text("class").startswith("0x02") and not element.children:
            name = f"nic {_busid(element)}"
            self.machine.join(self.machine.add("nic", name, speed), bridge, speed, 0)
        self._children(element, bridge)

    def _nic(self, element: _Element, parent: int) -> None:
        for net in element.children:
            if net.name != "net":
                continue
            speed = (
                net.whole("speed", 0, least=-1) if net.attributes.get("speed") else 0
            ) or 10_000
            speed = max(speed, 1) * 125_000  # from Mbit/s
            name = net.attributes.get("name") or f"net{net.attributes.get('dev', '')}"
            self.machine.join(self.machine.add("nic", name, speed), parent, speed, 0)

    def _pcie_Bps(self, element: _Element) -> int:
        text = element.text("link_speed")
        match = re.match(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) *gt/s", text)
        if text and not match and text != "unknown speed":
            given = quoted(element.attributes["link_speed"])
            raise ValueError(
                f"line {element.line}: link_speed of <pci> is {given}; write for example '16.0 GT/s'"
            )
        gigatransfers = float(match[1]) if match else 8.0  # NCCL's own assumption
        lane = _LANE[max((known for known in _LANE if known <= gigatransfers), default=2.5)]
        width = element.whole("link_width", 16) or 16
        return int(lane[self.column] * min(width, 64) * _MB)

    def _cables(self) -> None:
        """Add links of NVLink, xGMI and C2C; a cable counts once, whether both ends list it or only one."""
        direct: dict[tuple[int, int], int] = {}
        to_switch: dict[int, int] = {}
        for gpu in self.gpus:
            for cable in gpu.element.children if gpu.element is not None else []:
                if cable.name == "c2c":
                    speed = (
                        cable.whole("bw", least=1)
                        * cable.whole("count", 1, least=1, most=_MOST_CABLES)
                        * _MB
                    )
                    self.machine.join(gpu.device, gpu.cpu, speed, self.cable_ps)
                    continue
                if cable.name not in ("nvlink", "xgmi"):
                    continue
                speed = cable.whole("count", 1, least=1, most=_MOST_CABLES) * self._cable_Bps(
                    gpu, cable
                )
                target, kind = cable.text("target"), cable.text("tclass")
                if (other := self.by_busid.get(target)) is not None:
                    if other is gpu:
                        raise ValueError(
                            f"line {cable.line}: a GPU has a cable to itself, target is {target!r}"
                        )
                    pair = gpu.device, other.device
                    direct[pair] = direct.get(pair, 0) + speed
                elif kind == "0x068001":
                    self.machine.join(gpu.device, gpu.cpu, speed, self.cable_ps)
                elif kind == "0x068000":
                    to_switch[gpu.device] = to_switch.get(gpu.device, 0) + speed
                # Other cables lead to GPUs that are hidden from this machine's user.
        for (a, b), speed in direct.items():
            if a < b or (b, a) not in direct:
                self.machine.join(a, b, max(speed, direct.get((b, a), 0)), self.cable_ps)
        if to_switch:
            switch = self.machine.add("switch", "nvswitch")
            for gpu_device, speed in to_switch.items():
                self.machine.join(gpu_device, switch, speed, self.cable_ps // 2)

    def _cable_Bps(self, gpu: _Gpu, cable: _Element) -> int:
        assert gpu.element is not None  # a GPU with a cable has an element
        if cable.name == "nvlink":
            table, generation = _NVLINK, gpu.element.whole("sm", 80)
        else:
            table, generation = _XGMI, _gcn(gpu.element)
        known = max((g for g in table if g <= generation), default=min(table))
        return table[known][self.column] * _MB

    def _unique_names(self) -> None:
        seen: dict[str, int] = {}
        for i, name in enumerate(self.machine.names):
            seen[name] = seen.get(name, 0) + 1
            if seen[name] > 1:
                self.machine.names[i] = f"{name} ({seen[name]})"


def _is_gpu(pci: _Element) -> bool:
    """Return whether an element is a GPU: it contains a ``gpu`` or, in handwritten files, has the class of one."""
    if any(child.name == "gpu" for child in pci.children):
        return True
    return not pci.children and pci.text("class").startswith(("0x03", "0x1200"))


def _busid(pci: _Element) -> str:
    busid = pci.text("busid")
    if not busid:
        raise ValueError(f"line {pci.line}: <pci> has no busid")
    return busid


def _gcn(gpu: _Element) -> int:
    """Return the generation of an AMD GPU (910 or gfx90a for an MI250) as a number that grows with the generation."""
    text = gpu.text("gcn").removeprefix("gfx").partition(":")[0]
    return 910 if text == "90a" else int(text) if re.fullmatch("[0-9]{3,4}", text) else 910


def _between_cpus(cpu: _Element) -> int:
    vendor, arch = cpu.attributes.get("vendor", ""), cpu.text("arch")
    table = _CPUS.get(vendor)
    if table is None:
        return _OTHER_CPUS.get(arch, 10_000)
    number = cpu.whole("familyid" if vendor == "AuthenticAMD" else "modelid", 0, least=-1)
    return table[max((known for known in table if known <= number), default=0)]
