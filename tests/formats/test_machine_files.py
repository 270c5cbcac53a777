"""Machines that NCCL, RCCL and nvidia-smi describe: small files written for these tests, and real ones.

Real files are read from the directory that TACOS_TEST_DATA names; without it, those tests are skipped.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tacos
from tacos import topology as tp
from tacos.errors import FormatError
from tests.support.real_files import real_files

pytestmark = pytest.mark.unsanitized

FILES = Path(__file__).parents[1] / "files"
GB = 10**9


def cables(topology):
    """Bandwidth in GB/s of each pair of joined nodes, by name; both directions must agree."""
    found = {}
    columns = (topology.link_src, topology.link_dst, topology.link_bandwidth_Bps)
    for src, dst, speed in zip(*(column.tolist() for column in columns), strict=True):
        pair = topology.names[src], topology.names[dst]
        assert pair not in found
        found[pair] = speed / GB
    assert all(found[b, a] == speed for (a, b), speed in found.items())
    return {pair: speed for pair, speed in found.items() if pair[0] < pair[1]}


def latency_ns(topology, a, b):
    a, b = topology.names.index(a), topology.names.index(b)
    at = (topology.link_src == a) & (topology.link_dst == b)
    return topology.link_latency_ps[at].tolist()[0] / 1000


# NCCL and RCCL.


def test_nvlinks_to_all_switch_chips_are_one_port_and_pcie_stays_as_it_is():
    """18 NVLinks of 25 GB/s; PCIe 5 x16 has 16 lanes of 3.938 GB/s; ports of 1 Gb/s are not used."""
    box = tacos.load(FILES / "h100.xml")
    pcie = 63.008
    a, b = "pci 0000:10:00.0", "pci 0000:20:00.0"
    assert cables(box) == {
        **{(f"gpu{i}", "nvswitch"): 450 for i in range(4)},
        ("gpu0", a): pcie,
        ("gpu1", a): pcie,
        ("gpu2", b): pcie,
        ("gpu3", b): pcie,
        ("cpu0", a): pcie,
        ("cpu1", b): pcie,
        ("cpu0", "cpu1"): 22,
    }
    assert box.npus == 4
    assert latency_ns(box, "gpu0", "nvswitch") == 350
    assert latency_ns(box, "gpu0", a) == 250


def test_what_nccl_itself_counts_with():
    box = tacos.load(FILES / "h100.xml", speeds="nccl", latency="1us")
    assert cables(box)["gpu0", "nvswitch"] == 18 * 20.6
    assert cables(box)["gpu0", "pci 0000:10:00.0"] == 48
    assert latency_ns(box, "gpu0", "nvswitch") == 500


def test_boxes_meet_on_a_switch_or_on_rails():
    one = tacos.load(FILES / "h100.xml", boxes=3)
    rails = tacos.load(FILES / "h100.xml", boxes=3, fabric="rail", nic_latency="2us")
    assert one.npus == rails.npus == 12
    assert one.dims == [("box", 4), ("switch", 3)]
    joined = cables(one)
    assert joined["box1/mlx5_0", "fabric"] == 50
    assert joined["box1/mlx5_0", "box1/pci 0000:10:00.0"] == 50  # the slower of PCIe and the port
    assert {pair for pair in cables(rails) if pair[1].startswith("rail")} == {
        (f"box{b}/mlx5_{k}", f"rail{k}") for b in range(3) for k in range(2)
    }
    assert latency_ns(rails, "box2/mlx5_1", "rail1") == 2000
    assert not any("eth0" in name for name in one.names)
    assert one.node_name(5) == "box1/gpu1"


def test_without_pcie_a_box_is_what_its_builder_makes():
    """Two boxes of four GPUs on NVSwitch; each of a box's two NICs is shared by the two GPUs near it."""
    two = tacos.load(FILES / "h100.xml", boxes=2, pcie=False)
    assert cables(two) == {
        **{(f"box{b}/gpu{i}", f"box{b}/nvswitch"): 450 for b in range(2) for i in range(4)},
        **{(f"box{b}/gpu{i}", f"box{b}/mlx5_{i // 2}"): 50 for b in range(2) for i in range(4)},
        **{(f"box{b}/mlx5_{k}", "fabric"): 50 for b in range(2) for k in range(2)},
    }
    assert latency_ns(two, "box0/gpu0", "box0/mlx5_0") == 250
    smi = tacos.load(FILES / "nvidia_smi.txt", pcie=False)
    assert cables(smi) == {(f"gpu{i}", "nvswitch"): 300 for i in range(4)}


def test_gpus_share_near_nics_evenly(load_text):
    nic = '<pci busid="n{0}" class="0x020700"><nic><net name="n{0}" speed="200000"/></nic></pci>'
    gpus = "".join(gpu(i, nvlink(i + 1, 1) if i < 3 else "", 'sm="70"') for i in range(4))
    box = load_text(system(gpus + nic.format(0) + nic.format(1)), boxes=2, pcie=False)
    near = {pair for pair in cables(box) if "box0/n" in pair[1] and "gpu" in pair[0]}
    assert near == {(f"box0/gpu{i}", f"box0/n{i % 2}") for i in range(4)}


def test_bridges_that_only_pass_on_are_part_of_the_link():
    """xGMI: 4 cables of 50 GB/s. Lanes: 8 of PCIe 4 (15.752 GB/s), or 16 of PCIe 3 (15.76 GB/s)."""
    box = tacos.load(FILES / "mi250.xml")
    assert cables(box) == {
        ("gpu0", "gpu1"): 200,
        ("cpu0", "gpu0"): 8 * 1.969,
        ("cpu1", "gpu1"): 16 * 0.985,
        ("cpu0", "cpu1"): 24,
    }
    assert latency_ns(box, "gpu0", "cpu0") == 250
    assert latency_ns(box, "gpu0", "gpu1") == 700


def gpu(busid, inside="", more=""):
    return f'<pci busid="{busid}" class="0x030200"><gpu dev="{busid}" {more}>{inside}</gpu></pci>'


def nvlink(target, count=1, tclass="0x030200"):
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def system(inside):
    return f'<system version="1"><cpu numaid="0">{inside}</cpu></system>'


@pytest.fixture
def load_text(tmp_path):
    def load(text, name="box.xml", **options):
        (tmp_path / name).write_text(text)
        return tacos.load(tmp_path / name, **options)

    return load


def test_gpus_are_ordered_by_rank_else_by_device(load_text):
    by_rank = load_text(system(gpu(7, more='rank="1"') + gpu(3, nvlink(7), 'rank="0" sm="70"')))
    assert cables(by_rank)["gpu0", "gpu1"] == 25
    three = load_text(system(gpu(2, nvlink(0)) + gpu(0) + gpu(1)))
    assert cables(three)["gpu0", "gpu2"] == 25


def test_hand_made_files_that_leave_things_out(load_text):
    """GPUs and NICs known by their class alone, no speeds: PCIe 3 x16 is assumed, as NCCL does."""
    device = '<pci busid="{}" class="{}"/>'
    bridge = '<pci busid="b" class="0x060400">{}</pci>'
    inside = device.format("1", "0x030200") + device.format("2", "0x030200")
    inside += device.format("3", "0x020700")
    box = load_text(system(bridge.format(inside)))
    assert cables(box) == {("gpu0", "pci b"): 15.76, ("gpu1", "pci b"): 15.76}
    two = load_text(system(bridge.format(inside)), boxes=2)
    assert cables(two)["box0/nic 3", "fabric"] == 15.76


def test_links_of_a_gpu_to_its_cpu(load_text):
    """C2C states its MB/s; an NVLink to a CPU has class 0x068001. Both are in addition to the PCIe link."""
    grace = '<c2c bw="44712" count="10"/>'
    box = load_text(system(gpu(0, grace) + gpu(1, nvlink("x", 3, "0x068001"), 'sm="70"')))
    assert box.names == ["gpu0", "gpu1", "cpu0"]
    up = box.link_src < 2
    speeds = zip(box.link_src[up].tolist(), box.link_bandwidth_Bps[up].tolist(), strict=True)
    assert set(speeds) == {
        (0, 447_120_000_000),
        (0, 15_760_000_000),
        (1, 75 * GB),
        (1, 15_760_000_000),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    {
        "": "the file is empty",
        "<system>": "line 1: not XML: no element found",
        "<graphs/>": "the content does not match any of the formats nccl, msccl, forestcoll, graphml",
        '<system version="1"/>': "line 1: <system> has no <cpu>",
        system(""): "there are no GPUs",
        system("<pci/>"): "line 1: <pci> has no busid",
        system(gpu(0) + gpu(0)): "two GPUs have the busid '0'",
        system(gpu(0, nvlink(0))): "line 1: a GPU has a cable to itself, target is '0'",
        system(gpu(0, nvlink(1, "x")) + gpu(1)): "line 1: count of <nvlink> is 'x'; it must be a",
        system(gpu(0, nvlink(1, 10**8)) + gpu(1)): "line 1: count of <nvlink> is '100000000'; it",
        system(gpu(0, more='rank="a"')): "line 1: rank of <gpu> is 'a'; it must be a whole",
        system('<pci busid="0" link_speed="fast"/>'): "line 1: link_speed of <pci> is 'fast'; write",
        '<!DOCTYPE a [<!ENTITY e "x">]><system>&e;</system>': "line 1: a document type declaration",
        "<system>" + "<pci busid='0'>" * 100: "line 1: nested deeper than 64",
    }.items(),
)  # fmt: skip
def test_wrong_machines_get_one_sentence(tmp_path, text, says):
    file = tmp_path / "box.xml"
    file.write_text(text)
    options = {} if "any of the formats" in says else {"format": "nccl"}
    with pytest.raises(FormatError) as error:
        tacos.load(file, **options)
    assert str(error.value).startswith(f"{file}: {says}")


def test_wrong_options(tmp_path):
    for option, (value, says) in {
        "boxes": (0, "boxes must be a whole number of at least 1; got 0"),
        "fabric": ("mesh", 'fabric must be "switch" or "rail"; got \'mesh\''),
        "speeds": ("fast", 'speeds must be "nominal" or "nccl"; got \'fast\''),
        "latency": ("fast", "latency 'fast' is not understood"),
        "box": (2, 'the format nccl has no option "box"; its options are boxes, fabric, pcie'),
    }.items():
        with pytest.raises(ValueError, match=re.escape(says)):
            tacos.load(FILES / "h100.xml", **{option: value})
    with pytest.raises(FormatError, match="boxes is 2, but the machine has no NIC to join them"):
        tacos.load(FILES / "mi250.xml", boxes=2)


@pytest.mark.parametrize("file", real_files("nccl-topo/*.xml"))
def test_real_machines(file):
    """All GPUs and direct cables of the file are in the topology, and boxes can be joined."""
    text = file.read_text()
    box, four = tacos.load(file), tacos.load(file, boxes=4, fabric="rail")
    assert box.npus == text.count("<gpu ")
    direct = (box.link_src < box.npus) & (box.link_dst < box.npus)
    assert int(direct.sum()) == text.count("<xgmi ")
    assert four.npus == 4 * box.npus
    assert tp.describe(box)["diameter_hops"] is not None
    collective = tacos.collective.all_gather(box, "8MB", chunks=1)
    assert tacos.verify(tacos.synthesize(box, collective, engine="greedy")).ok


# nvidia-smi.


def test_the_matrix_of_nvidia_smi():
    """NV12 to each of three GPUs is more than 18 links: a switch. Each bridge has two GPUs and a NIC."""
    box = tacos.load(FILES / "nvidia_smi.txt")
    assert cables(box) == {
        **{(f"gpu{i}", "nvswitch"): 300 for i in range(4)},
        ("gpu0", "pcie0"): 31.5,
        ("gpu1", "pcie0"): 31.5,
        ("gpu2", "pcie1"): 31.5,
        ("gpu3", "pcie1"): 31.5,
        ("cpu0", "pcie0"): 31.5,
        ("cpu1", "pcie1"): 31.5,
        ("cpu0", "cpu1"): 31.5,
    }
    two = tacos.load(FILES / "nvidia_smi.txt", boxes=2, nic_bandwidth="400Gb/s", fabric="rail")
    assert cables(two)["box1/nic1", "rail1"] == 50
    assert cables(two)["box1/nic1", "box1/pcie1"] == 31.5


def matrix(*rows, head="GPU0 GPU1"):
    return "\n".join([f"\t{head}", *rows])


def test_few_nvlinks_are_direct(load_text):
    box = load_text(matrix("GPU0 X NV4 0-7 0", "GPU1 NV4 X 0-7 0"), "a.txt", bandwidth="50GB/s")
    assert cables(box)["gpu0", "gpu1"] == 200
    assert box.switches == 1  # both GPUs are in NUMA domain 0


@pytest.mark.parametrize(
    ("text", "says"),
    {
        "GPU": "there is no row of names that starts with GPU0",
        "GPU0 GPU0": "line 1: a device is named twice",
        matrix("GPU0 X NV4"): "GPU1 has no row: the text is cut short",
        matrix("GPU0 X"): "line 2: GPU0 has 1 cells, not 2",
        matrix("GPU0 X NV4", "GPU0 X NV4"): "line 3: GPU0 has a second row",
        matrix(
            "GPU0 X QPI", "GPU1 QPI X"
        ): "line 2: a cell is 'QPI'; it must be one of X, NV#, PIX",
        matrix(
            "GPU0 X NV4", "NIC0 NV4 X", head="GPU0 NIC0"
        ): "NIC0 has NVLinks to GPU0, but only GPUs",
    }.items(),
)
def test_wrong_matrices_get_one_sentence(tmp_path, text, says):
    file = tmp_path / "topo.txt"
    file.write_text(text)
    with pytest.raises(FormatError) as error:
        tacos.load(file, format="nvidia-smi")
    assert str(error.value).startswith(f"{file}: {says}")


def test_nvidia_smi_does_not_say_how_fast_nics_are():
    with pytest.raises(FormatError, match="nic_bandwidth is missing; the text does not contain"):
        tacos.load(FILES / "nvidia_smi.txt", boxes=2)


# Short names on the command line.


def test_boxes_in_a_short_name():
    text = str(FILES / "h100.xml")
    assert tacos.formats.network(text).npus == 4
    assert tacos.formats.network(f"{text}:2").names[-1] == "fabric"
    assert tacos.formats.network(f"{text}:2:rail").names[-1] == "rail1"
    with pytest.raises(FormatError, match=r"no\.xml: No such file"):
        tacos.formats.network("no.xml:2")
    with pytest.raises(tacos.SpecError, match='there is no "h101"'):
        tacos.formats.network("h101:2:rail")
