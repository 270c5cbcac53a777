"""Commercial machines as topologies, with their published constants.

A machine is one or more equal boxes. NPU i of box b has the number b·(NPUs per box) + i. If there is more
than one box, every NPU has a network interface (NIC), its own or a shared one, on a fabric: one non-blocking
switch for all NICs (``fabric="switch"``), or one switch per rail, which joins the NICs at the same position
in all boxes (``fabric="rail"``). A single box has no NICs.

The constants are defaults of keyword arguments. Bandwidths are the vendors' nominal figures per
direction unless a docstring says otherwise. Latencies are not on data sheets: 0.7 us from GPU to GPU
over NVLink (0.35 us per link if there is a switch between) and 2.6 us over InfiniBand (1.3 us per link)
are the values of TE-CCL's inputs, the latter also TACCL's; other vendors' direct links get the same.
Several cables between two NPUs count as one link with their total bandwidth, as in these inputs.

Switches are numbered in this order: those of the boxes, box by box; shared NICs; the fabric's. Links: those
within boxes, then NPU to NIC and back, then NIC to fabric and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from tacos.errors import keywords
from tacos.topology.builders import copies, fully_connected, mesh, product, ring, switch, torus
from tacos.topology.links import (
    Links,
    Model,
    assemble,
    check_count,
    columns_of,
    duplex,
    model_of,
    whole_number,
)
from tacos.units import Quantity, bandwidth_Bps, time_ps

if TYPE_CHECKING:
    from tacos._core import Topology

__all__ = [
    "dgx1",
    "dgx2",
    "dgx_a100",
    "dgx_b200",
    "dgx_h100",
    "dgx_spark",
    "mi250",
    "mi300x",
    "mi355x",
    "ndv2",
    "nvl72",
    "tpu",
    "trn2",
]

# Number of cables: the pairs of GPUs that they join.
_DGX1 = {
    2: "0-1 0-4 1-3 2-3 2-6 4-5 5-7 6-7",
    1: "0-2 0-3 1-2 1-5 3-7 4-6 4-7 5-6",
}
_MI250 = {
    4: "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15",
    2: "0-4 3-7 8-12 11-15",
    1: "0-8 1-5 1-9 1-10 2-6 2-9 2-10 3-11 4-6 5-6 5-7 9-13 10-14 12-14 13-14 13-15",
}


@keywords(*Model.__annotations__)
def dgx1(
    boxes: int = 1,
    *,
    bandwidth: Quantity = "25GB/s",
    latency: Quantity = "700ns",
    nic_bandwidth: Quantity = "12.5GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """NVIDIA DGX-1V: 8 V100 in a hybrid cube mesh, one 100 Gb/s NIC for every two of them.

    Args:
        boxes: number of boxes.
        bandwidth, latency: of one NVLink 2; each GPU has six, some of them in pairs to the same GPU.
        nic_bandwidth, nic_latency: between a NIC and the fabric.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> dgx1()
    <tacos.Topology dgx1: 8 NPUs, 0 switches, 32 links>
    """
    box = _wired(8, _DGX1, bandwidth, latency, **model)
    return _cluster("dgx1", box, boxes, nic_bandwidth, nic_latency, fabric, npus_per_nic=2)


@keywords(*Model.__annotations__)
def ndv2(
    boxes: int = 1,
    *,
    bandwidth: Quantity = "25GB/s",
    latency: Quantity = "700ns",
    nic_bandwidth: Quantity = "12.5GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """Azure NDv2: 8 V100 wired as in a DGX-1V, with one 100 Gb/s NIC for all of them.

    Args:
        boxes: number of boxes.
        bandwidth, latency: of one NVLink 2 (TACCL measured 21.7 GB/s).
        nic_bandwidth, nic_latency: between a NIC and the fabric (TACCL measured 9.5 GB/s).
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> ndv2(2)
    <tacos.Topology ndv2: 16 NPUs, 3 switches, 100 links>
    """
    box = _wired(8, _DGX1, bandwidth, latency, **model)
    return _cluster("ndv2", box, boxes, nic_bandwidth, nic_latency, fabric, npus_per_nic=8)


@keywords(*Model.__annotations__)
def dgx2(
    boxes: int = 1,
    *,
    bandwidth: Quantity = "125GB/s",
    latency: Quantity = "350ns",
    nic_bandwidth: Quantity = "12.5GB/s",
    nic_latency: Quantity = "1.3us",
    relay: bool = False,
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """NVIDIA DGX-2: 16 V100 on NVSwitch, one 100 Gb/s NIC for every two of them.

    Args:
        boxes: number of boxes.
        bandwidth, latency: of a GPU's port into NVSwitch. TACCL measured 125 GB/s, and
            TE-CCL's input has it; nominally, six NVLinks of 25 GB/s make 150 GB/s.
        nic_bandwidth, nic_latency: between a NIC and the fabric.
        relay: whether only odd GPUs send through their NIC and only even ones receive, as in TACCL's
            sketch and TE-CCL's input for this machine, which the published figures use.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> dgx2(2)
    <tacos.Topology dgx2: 32 NPUs, 19 switches, 160 links>
    """
    box = switch(16, bandwidth=bandwidth, latency=latency, **model)
    return _cluster(
        "dgx2", box, boxes, nic_bandwidth, nic_latency, fabric, npus_per_nic=2, relay=relay
    )


@keywords(*Model.__annotations__)
def dgx_a100(
    boxes: int = 1,
    *,
    bandwidth: Quantity = "300GB/s",
    latency: Quantity = "350ns",
    nic_bandwidth: Quantity = "25GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """NVIDIA DGX A100: 8 A100 on NVSwitch, a 200 Gb/s NIC for each.

    Args:
        boxes: number of boxes.
        bandwidth, latency: of a GPU's port into NVSwitch: twelve NVLink 3 of 25 GB/s.
        nic_bandwidth, nic_latency: between a GPU and the fabric.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> dgx_a100(4)
    <tacos.Topology dgx_a100: 32 NPUs, 5 switches, 128 links>
    """
    box = switch(8, bandwidth=bandwidth, latency=latency, **model)
    return _cluster("dgx_a100", box, boxes, nic_bandwidth, nic_latency, fabric)


@keywords(*Model.__annotations__)
def dgx_h100(
    boxes: int = 1,
    *,
    nvls: bool = True,
    bandwidth: Quantity = "450GB/s",
    latency: Quantity = "350ns",
    nic_bandwidth: Quantity = "50GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """NVIDIA DGX H100 or H200: 8 GPUs on NVSwitch, a 400 Gb/s NIC for each.

    Args:
        boxes: number of boxes.
        nvls: whether NVSwitch multicasts and reduces (NVLink SHARP), as the machine does.
        bandwidth, latency: of a GPU's port into NVSwitch: eighteen NVLink 4 of 25 GB/s.
        nic_bandwidth, nic_latency: between a GPU and the fabric.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> dgx_h100(4, fabric="rail")
    <tacos.Topology dgx_h100: 32 NPUs, 12 switches, 128 links>
    """
    box = switch(8, multicast=nvls, reduce=nvls, bandwidth=bandwidth, latency=latency, **model)
    return _cluster("dgx_h100", box, boxes, nic_bandwidth, nic_latency, fabric)


@keywords(*Model.__annotations__)
def nvl72(
    racks: int = 1,
    *,
    nvls: bool = True,
    bandwidth: Quantity = "900GB/s",
    latency: Quantity = "350ns",
    nic_bandwidth: Quantity = "50GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """NVIDIA GB200 or GB300 NVL72: 72 GPUs on one NVLink domain, a NIC for each.

    Args:
        racks: number of racks.
        nvls: whether the switches multicast and reduce (NVLink SHARP), as the machine does.
        bandwidth, latency: of a GPU's port: eighteen NVLink 5 of 50 GB/s, one to each of the
            rack's 18 switch chips, which are one switch here.
        nic_bandwidth, nic_latency: between a GPU and the fabric: 400 Gb/s (ConnectX-7); GB300 has 800 Gb/s
            (ConnectX-8), the spec ``gb300-nvl72``.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> nvl72()
    <tacos.Topology nvl72: 72 NPUs, 1 switch, 144 links>
    """
    box = switch(72, multicast=nvls, reduce=nvls, bandwidth=bandwidth, latency=latency, **model)
    return _cluster("nvl72", box, whole_number("racks", racks), nic_bandwidth, nic_latency, fabric)


@keywords(*Model.__annotations__)
def dgx_b200(
    boxes: int = 1,
    *,
    nvls: bool = True,
    bandwidth: Quantity = "900GB/s",
    latency: Quantity = "350ns",
    nic_bandwidth: Quantity = "50GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """NVIDIA DGX B200 or B300: 8 GPUs on NVSwitch, a NIC for each.

    Args:
        boxes: number of boxes.
        nvls: whether NVSwitch multicasts and reduces (NVLink SHARP), as the machine does.
        bandwidth, latency: of a GPU's port into NVSwitch: eighteen NVLink 5 of 50 GB/s.
        nic_bandwidth, nic_latency: between a GPU and the fabric: 400 Gb/s (ConnectX-7); DGX B300 has 800 Gb/s
            (ConnectX-8), the spec ``dgx-b300``.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> dgx_b200(2)
    <tacos.Topology dgx_b200: 16 NPUs, 3 switches, 64 links>
    """
    box = switch(8, multicast=nvls, reduce=nvls, bandwidth=bandwidth, latency=latency, **model)
    return _cluster("dgx_b200", box, boxes, nic_bandwidth, nic_latency, fabric)


@keywords(*Model.__annotations__)
def dgx_spark(
    boxes: int,
    *,
    wiring: str = "ring",
    bandwidth: Quantity | None = None,
    latency: Quantity = "2.6us",
    **model: Unpack[Model],
) -> Topology:
    """NVIDIA DGX Spark, one GPU each, joined by cables without a switch, or by one switch.

    A Spark has two 200 Gb/s ports, but its NIC (ConnectX-7) has two PCIe 5.0 x4 links of about 100 Gb/s each: 25 GB/s
    per direction for both ports together (measured by ServeTheHome: 160 to 198 Gb/s). So if both ports are in
    use, each cable has half of that, and NPUs between two others forward.

    Args:
        boxes: number of boxes.
        wiring: ``"ring"`` in cable order, ``"line"`` (a ring without its last cable), ``"mesh"`` (a cable between every two
            boxes, of which two ports allow at most three), or ``"switch"``.
        bandwidth: of a cable; 12.5 GB/s where a box has two cables to others, else 25 GB/s.
        latency: of a cable, NIC to NIC; a switch's port has half of it.
        model: how links, switches and NPUs behave; see `Model`.

    >>> dgx_spark(4)
    <tacos.Topology dgx_spark: 4 NPUs, 0 switches, 8 links>
    >>> dgx_spark(3, wiring="mesh").link_bandwidth_Bps[0].item()
    12500000000
    """
    if wiring not in ("ring", "line", "mesh", "switch"):
        raise ValueError(f"wiring must be ring, line, mesh or switch; got {wiring!r}")
    whole_number("boxes", boxes)
    if wiring == "mesh" and boxes > 3:
        raise ValueError(
            f"a mesh of {boxes} boxes needs {boxes - 1} ports per box, but a DGX Spark has 2; use a ring"
        )
    if bandwidth is None:
        bandwidth = "25GB/s" if wiring == "switch" or boxes <= 2 else "12.5GB/s"
    if wiring == "switch":
        half = f"{time_ps(latency, what='latency') // 2}ps"
        wired = switch(boxes, bandwidth=bandwidth, latency=half, **model)
    elif wiring == "line":
        wired = mesh(boxes, bandwidth=bandwidth, latency=latency, **model)
    else:
        wired = ring(boxes, bandwidth=bandwidth, latency=latency, **model)
    return assemble(
        boxes,
        [columns_of(wired)],
        capabilities=wired.switch_capabilities,
        family="dgx_spark",
        dims=wired.dims,
        symmetric=wired.symmetric,
        **model,
    )


@keywords(*Model.__annotations__)
def mi250(
    boxes: int = 1,
    *,
    bandwidth: Quantity = "50GB/s",
    latency: Quantity = "700ns",
    nic_bandwidth: Quantity = "16GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """AMD MI250: 8 packages of two dies (GCDs), every die an NPU with its share of a NIC.

    Args:
        boxes: number of boxes.
        bandwidth, latency: of one xGMI link; every die has seven, four of them to the other die
            of its package. The wiring is that of ForestColl's input.
        nic_bandwidth, nic_latency: between a die and the fabric; 16 GB/s is ForestColl's input.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> mi250()
    <tacos.Topology mi250: 16 NPUs, 0 switches, 56 links>
    """
    box = _wired(16, _MI250, bandwidth, latency, **model)
    return _cluster("mi250", box, boxes, nic_bandwidth, nic_latency, fabric)


@keywords(*Model.__annotations__)
def mi300x(
    boxes: int = 1,
    *,
    bandwidth: Quantity = "64GB/s",
    latency: Quantity = "700ns",
    nic_bandwidth: Quantity = "50GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """AMD MI300X or MI325X platform: 8 fully connected GPUs, a 400 Gb/s NIC for each.

    Args:
        boxes: number of boxes.
        bandwidth, latency: of the link between two GPUs.
        nic_bandwidth, nic_latency: between a GPU and the fabric.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> mi300x(2)
    <tacos.Topology mi300x: 16 NPUs, 1 switch, 144 links>
    """
    box = fully_connected(8, bandwidth=bandwidth, latency=latency, **model)
    return _cluster("mi300x", box, boxes, nic_bandwidth, nic_latency, fabric)


@keywords(*Model.__annotations__)
def mi355x(
    boxes: int = 1,
    *,
    bandwidth: Quantity = "76.8GB/s",
    latency: Quantity = "700ns",
    nic_bandwidth: Quantity = "50GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """AMD MI350X or MI355X platform: 8 fully connected GPUs, a 400 Gb/s NIC for each.

    Args:
        boxes: number of boxes.
        bandwidth, latency: of the link between two GPUs. AMD states 153.6 GB/s for each of seven links, both
            directions together (MI350 series, June 2025), 1,075 GB/s for a GPU. The latency is that of `mi300x`.
        nic_bandwidth, nic_latency: between a GPU and the fabric.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> mi355x()
    <tacos.Topology mi355x: 8 NPUs, 0 switches, 56 links>
    """
    box = fully_connected(8, bandwidth=bandwidth, latency=latency, **model)
    return _cluster("mi355x", box, boxes, nic_bandwidth, nic_latency, fabric)


@keywords(*Model.__annotations__)
def trn2(
    boxes: int = 1,
    *,
    ultra: bool = False,
    bandwidth: Quantity = "128GB/s",
    ultra_bandwidth: Quantity = "64GB/s",
    latency: Quantity = "1us",
    nic_bandwidth: Quantity = "25GB/s",
    nic_latency: Quantity = "1.3us",
    fabric: str = "switch",
    **model: Unpack[Model],
) -> Topology:
    """AWS Trainium2: instances of 16 chips in a 4 x 4 torus, or UltraServers of 64, four instances in rings.

    Args:
        boxes: how many instances (trn2.48xlarge) or UltraServers (trn2u).
        ultra: whether a box is an UltraServer: a 4 x 4 x 4 torus.
        bandwidth: of a NeuronLink-v3 within an instance. Amazon states 1,024 GB/s for a chip (AWS Neuron
            documentation, Trn2 architecture), read here as both directions of four links.
        ultra_bandwidth: of a NeuronLink between the instances of an UltraServer: 256 GB/s for a chip in the
            same table, both directions of two links.
        latency: of a NeuronLink; not published, an assumption.
        nic_bandwidth, nic_latency: between a chip and the fabric: 3.2 Tb/s of EFA for 16 chips, in the same table.
        fabric: ``"switch"`` or ``"rail"``.
        model: how links, switches and NPUs behave; see `Model`.

    >>> trn2(), trn2(ultra=True)
    (<tacos.Topology trn2: 16 NPUs, 0 switches, 64 links>, <tacos.Topology trn2: 64 NPUs, 0 switches, 384 links>)
    """
    box = torus(4, 4, bandwidth=bandwidth, latency=latency, **model)
    if ultra:
        box = product(box, ring(4, bandwidth=ultra_bandwidth, latency=latency, **model))
    return _cluster("trn2", box, boxes, nic_bandwidth, nic_latency, fabric)


@keywords(*Model.__annotations__)
def tpu(
    x: int,
    y: int = 1,
    z: int = 1,
    *,
    bandwidth: Quantity = "50GB/s",
    latency: Quantity = "1us",
    **model: Unpack[Model],
) -> Topology:
    """Return a TPU slice: a 3-D torus of chips.

    Args:
        x, y, z: chips along each dimension.
        bandwidth: of a link; TPU v4 has six of 50 GB/s per chip (Jouppi et al., ISCA 2023).
        latency: of a link; not published, an assumption.
        model: how links, switches and NPUs behave; see `Model`.

    >>> tpu(4, 4, 4)
    <tacos.Topology tpu: 64 NPUs, 0 switches, 384 links>
    """
    chips = torus(x, y, z, bandwidth=bandwidth, latency=latency, **model)
    dims, symmetric = chips.dims, chips.symmetric
    return assemble(
        chips.npus, [columns_of(chips)], family="tpu", dims=dims, symmetric=symmetric, **model
    )


def _wired(
    npus: int,
    cables: dict[int, str],
    bandwidth: Quantity,
    latency: Quantity,
    **model: Unpack[Model],
) -> Topology:
    """Return a box of NPUs with direct links, whose bandwidth is the number of cables times `bandwidth`."""
    blocks: list[Links] = []
    for count, pairs in cables.items():
        a, b = np.array([pair.split("-") for pair in pairs.split()], dtype=np.int64).T
        blocks += duplex(a, b, f"{count * bandwidth_Bps(bandwidth, bare=False)}B/s", latency)
    return assemble(npus, blocks, dims=[("box", npus)], **model)


def _cluster(
    family: str,
    box: Topology,
    boxes: int,
    nic_bandwidth: Quantity,
    nic_latency: Quantity,
    fabric: str,
    *,
    npus_per_nic: int = 1,
    relay: bool = False,
) -> Topology:
    """Return the box alone, or copies of it on a fabric.

    An NPU with its own NIC has a link to the fabric. A shared NIC is a switch between its NPUs and the
    fabric, whose links to the NPUs have the NIC's bandwidth and no latency.
    """
    if fabric not in ("switch", "rail"):
        raise ValueError(f'fabric must be "switch" or "rail"; got {fabric!r}')
    check_count(whole_number("boxes", boxes) * (box.links + 4 * box.npus))
    if boxes == 1:
        dims, symmetric, capabilities = box.dims, box.symmetric, box.switch_capabilities
        blocks = [columns_of(box)]
    else:
        npus, nics = boxes * box.npus, boxes * box.npus // npus_per_nic
        nics_per_box, rails = nics // boxes, nics // boxes if fabric == "rail" else 1
        shared = npus_per_nic > 1
        blocks = copies(box, 1, boxes, first_switch=npus)
        v, nic, box_switches = np.arange(npus), np.arange(nics), boxes * box.switches
        first_nic = npus + box_switches if shared else 0  # an NPU's own NIC is a port of the NPU
        first_rail = npus + box_switches + (nics if shared else 0)
        if shared:
            up, down = duplex(v, first_nic + v // npus_per_nic, nic_bandwidth, 0)
            blocks += [_every_second(up, 1), _every_second(down, 0)] if relay else [up, down]
        at = first_rail + nic % nics_per_box % rails
        blocks += duplex(first_nic + nic, at, nic_bandwidth, nic_latency)
        extra = (nics if shared else 0) + rails
        capabilities = np.append(np.tile(box.switch_capabilities, boxes), np.zeros(extra, np.uint8))
        dims = [*box.dims, ("switch", boxes)]
        symmetric = box.symmetric and fabric == "rail" and not shared
    return assemble(
        boxes * box.npus,
        blocks,
        capabilities=capabilities,
        family=family,
        dims=dims,
        symmetric=symmetric,
        **model_of(box),
    )


def _every_second(links: Links, start: int) -> Links:
    return links._replace(src=links.src[start::2], dst=links.dst[start::2])
