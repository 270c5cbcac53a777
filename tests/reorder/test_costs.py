"""Costs from files, in the forms that tools write."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tacos
from tacos.errors import FormatError
from tacos.reorder.sources import costs_of
from tacos.reorder.trees import expanded

pytestmark = pytest.mark.unsanitized


@pytest.fixture
def file(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_a_matrix_with_names(file):
    found = costs_of(file("m.csv", "host,a,b,c\na,0,10us,20us\nb,11us,0,30us\nc,21us,31us,0\n"))
    assert found.names == ("a", "b", "c")
    assert found.latency_s[1, 0] == pytest.approx(11e-6)
    assert found.byte_s is None


def test_a_matrix_without_names(file):
    found = costs_of(file("m.csv", "0,1,2\n3,0,4\n5,6,0\n"))
    assert found.names == ("0", "1", "2")
    assert found.latency_s.tolist() == [[0, 1, 2], [3, 0, 4], [5, 6, 0]]


def test_a_table_of_pairs_with_bandwidths(file):
    text = "src,dst,rtt_us,bandwidth\na,b,20,1GB/s\nb,a,20,2GB/s\n"
    found = costs_of(file("pairs.csv", text))
    assert found.latency_s[0, 1] == pytest.approx(10e-6)
    assert found.byte_s is not None
    assert found.byte_s.tolist() == [[0, 1e-9], [0.5e-9, 0]]


def test_what_has_no_times_says_how_to_write_them(file):
    with pytest.raises(FormatError, match=r"neither a topology nor times .* 'node0 node1 0.50' \("):
        costs_of(file("log.txt", "an error in line 5\n"))


def test_pings_one_way_stand_for_both_and_repeat(file):
    found = costs_of(file("ping.txt", "# ms\na b 0.2\na b 0.4\na b 9\na c 1.0\nb c 1.0\n"))
    assert found.latency_s[0, 1] == found.latency_s[1, 0] == pytest.approx(0.2e-3)


def test_output_of_the_probe(file):
    spread = {"min": 1e-6, "median": 2e-6, "max": 3e-6}
    rate = {"min": 1e9, "median": 2e9, "max": 3e9}
    pairs = [
        {"src": a, "dst": b, "latency_s": spread, "bandwidth_Bps": rate}
        for a in range(4)
        for b in range(4)
        if a != b
    ]
    text = json.dumps({"names": ["x:0", "x:1", "y:0", "y:1"], "pairs": pairs, "switches": []})
    found = costs_of(file("probe.json", text))
    assert (found.names, found.ranks) == (("x", "y"), ((0, 1), (2, 3)))
    assert found.latency_s.tolist() == [[0, 2e-6], [2e-6, 0]]
    text = json.dumps({"names": ["x", "y"], "pairs": pairs[:1], "switches": []})
    with pytest.raises(FormatError, match=r"probe.json has no value for y to x"):
        costs_of(file("probe.json", text))


SLURM = """# two racks
SwitchName=s0 Nodes=n[0-1] LinkSpeed=100
SwitchName=s1 Nodes=n[2-3]
SwitchName=top Switches=s[0-1]
"""
BLOCKS = "BlockName=b0 Nodes=n[0-1]\nBlockName=b1 Nodes=n[2-3]\nBlockSizes=2\n"
SLURM_YAML = """---
- topology: flat
  cluster_default: false
  flat: true
- topology: tree
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: s[0-1]
      - switch: s0
        nodes: n[0-1]
      - switch: s1
        nodes: n[2-3]
"""
TOPOGRAPH = """switches:
  top:
    switches: [s0, s1]
  s0:
    nodes: ["n[0-1]"]
  s1:
    nodes: [n2, n3]
nodes:
  n0: {capacity_block: c}
"""


def kubernetes(labels):
    return json.dumps(
        {"items": [{"metadata": {"name": f"n{i}", "labels": labels(i)}} for i in range(4)]}
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topology.conf", SLURM),
        ("topology.yaml", SLURM_YAML),
        ("model.yaml", TOPOGRAPH),
        (
            "nodes.json",
            kubernetes(lambda i: {"fabric.topograph.run/tier-1": f"s{i // 2}", "fabric.topograph.run/tier-2": "top"}),
        ),
        (
            "eks.json",
            kubernetes(lambda i: {"topology.k8s.aws/network-node-layer-1": "top", "topology.k8s.aws/network-node-layer-2": f"s{i // 2}"}),
        ),
        (
            "ec2.json",
            json.dumps({"Instances": [{"InstanceId": f"n{i}", "NetworkNodes": ["top", f"s{i // 2}"]} for i in range(4)]}),
        ),
    ],
)  # fmt: skip
def test_trees_of_schedulers_and_clouds(file, name, text):
    """One switch between hosts of a rack, three between others."""
    found = costs_of(file(name, text))
    assert found.names == ("n0", "n1", "n2", "n3")
    np.testing.assert_allclose(
        found.latency_s * 1e6, [[0, 1, 3, 3], [1, 0, 3, 3], [3, 3, 0, 1], [3, 3, 1, 0]]
    )


def test_blocks_of_slurm(file):
    found = costs_of(file("topology.conf", BLOCKS))
    assert found.latency_s[0, 1] < found.latency_s[0, 2]


def test_a_topology_file_and_a_spec(file, tmp_path):
    tacos.save(tacos.topology.ring(4, bandwidth="1GB/s", latency="1us"), tmp_path / "ring.yaml")
    found = costs_of(tmp_path / "ring.yaml")
    assert found.network is not None
    assert found.latency_s[0, 2] == pytest.approx(2e-6)
    assert costs_of("ring:4").latency_s.shape == (4, 4)
    assert costs_of("dgx-h100-plain:2", npus_per_host=8).names == ("host0", "host1")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("m.csv", "0,1,2\n3,0,4\n", r"m.csv has 2 rows of 3 values; the matrix must be square"),
        ("m.csv", "h,a,b\na,0,\nb,1,0\n", r"m.csv has no value for a to b"),
        ("ping.txt", "a b 1\nc d 1\n", r"ping.txt has no value for a to c, a to d, b to c, b to d, c to a and 3 more"),
        ("topology.conf", "SwitchName=s0 Nodes=n[0-1\n", r"has a bracket without its other half"),
        ("topology.conf", "SwitchName=s0 Nodes=n0\n", r"an order needs at least two hosts; .*topology.conf has 1"),
        ("ec2.json", '{"Instances": [{"InstanceId": "i-1"}]}', r"not a valid EC2 instance topology file"),
        ("nodes.json", kubernetes(lambda _: {}), r"node n0 has no label that says where it is"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(file, name, text, sentence):
    with pytest.raises(FormatError, match=sentence):
        costs_of(file(name, text))


def test_host_lists():
    assert expanded("a,b[1,3-4]c") == ["a", "b1c", "b3c", "b4c"]
    with pytest.raises(ValueError, match="use numbers"):
        expanded("n[a-b]")
