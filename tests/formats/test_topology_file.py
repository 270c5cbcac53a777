"""Topology files: their meaning, wrong files, round trips, the examples and the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos.topology as build
from tacos._core import Topology
from tacos.errors import FormatError
from tacos.formats import markup, topology_fields, topology_file
from tacos.topology.edits import reweighted
from tests.support.strategies import topologies

pytestmark = pytest.mark.unsanitized

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "topologies").glob("*.[jy]*"))

VALIDATOR = jsonschema.Draft202012Validator(topology_file.schema())
PAIR = "tacos: 1\nnpus: 2\nlinks: [{src: 0, dst: 1, bandwidth: 1GB/s, latency: 1us}]\n"


@pytest.fixture
def read_text(tmp_path):
    def read(text: str, name: str = "net.yaml") -> Topology:
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return topology_file.read(file)

    return read


def rows(topology: Topology) -> list[tuple[int, int, int, int]]:
    columns = (
        topology.link_src,
        topology.link_dst,
        topology.link_bandwidth_Bps,
        topology.link_latency_ps,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


# What files mean.


def test_a_link_is_two_directed_links_unless_it_says_otherwise(read_text):
    topology = read_text(
        """
        tacos: 1
        npus: 3
        defaults: {bandwidth: 10GB/s, latency: 1us}
        links:
          - {src: 0, dst: 1, count: 2}
          - {src: 1, dst: 2, bandwidth: 8Gb/s}
          - {src: 2, dst: 0, latency: 0, both: false}
        """
    )
    fast, slow, us = 10**10, 10**9, 10**6
    twice = [(0, 1, fast, us), (1, 0, fast, us)] * 2
    assert rows(topology) == [*twice, (1, 2, slow, us), (2, 1, slow, us), (2, 0, fast, 0)]
    assert topology.names == []


def test_nodes_may_be_named_numbered_ranged_listed_or_matched(read_text):
    head = "tacos: 1\nnpus: [a0, a1, b0]\nswitches: [sw]\ndefaults: {bandwidth: 1B/s, latency: 0}\n"
    by_name = read_text(head + "links: [{src: [a0, a1, b0], dst: sw}]")
    for src in ('"0..2"', '"[ab]*"', '["a*", 2]', '["a?", b0]', "[0, a1, 2]"):
        assert read_text(head + f"links: [{{src: {src}, dst: 3}}]") == by_name
    assert by_name.names == ["a0", "a1", "b0", "sw"]
    assert rows(by_name)[:2] == [(0, 3, 1, 0), (3, 0, 1, 0)]


def test_two_lists_are_joined_pairwise_and_a_group_all_to_all(read_text):
    head = "tacos: 1\nnpus: 4\ndefaults: {bandwidth: 1B/s, latency: 0}\n"
    ring = read_text(head + 'links: [{src: "0..3", dst: [1, 2, 3, 0], both: false}]')
    assert [(a, b) for a, b, _, _ in rows(ring)] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    clique = read_text(head + 'links: [{among: "npu*"}]')
    assert {(a, b) for a, b, _, _ in rows(clique)} == {
        (a, b) for a in range(4) for b in range(4) if a != b
    }


def test_boxes_repeat_with_switches_after_all_npus(read_text):
    """Two boxes of two NPUs and a switch: NPUs 0-3, box switches 4 and 5, then the fabric, 6."""
    topology = read_text(
        """
        tacos: 1
        defaults: {bandwidth: 1GB/s, latency: 0}
        boxes:
          count: 2
          npus: 2
          switches: [{name: nvs, reduce: true}]
          links: [{src: "npu*", dst: nvs}]
        switches: [fabric]
        links: [{src: "box*/nvs", dst: fabric, both: true}]
        """
    )
    assert topology.names == [
        *("box0/npu0", "box0/npu1", "box1/npu0", "box1/npu1"),
        *("box0/nvs", "box1/nvs", "fabric"),
    ]
    assert [(a, b) for a, b, _, _ in rows(topology) if a < b] == [
        *((0, 4), (1, 4), (2, 5), (3, 5)),
        *((4, 6), (5, 6)),
    ]
    assert topology.switch_capabilities.tolist() == [2, 2, 0]
    assert topology.dims == [("box", 2), ("switch", 2)]


def test_a_base_may_be_a_file_beside_this_one(tmp_path):
    folder = tmp_path / "clusters"
    folder.mkdir()
    (folder / "ring.yaml").write_text("tacos: 1\nbase: ring:5@10GB/s,1us")
    (folder / "worn.yaml").write_text("tacos: 1\nbase: ring.yaml\nedits: [{drop_links: [[0, 1]]}]")
    assert topology_file.read(folder / "worn.yaml").links == 8
    (tmp_path / "slow.json").write_text(
        '{"tacos": 1, "base": "clusters/worn.yaml", "edits": [{"scale": {"bandwidth": 0.5}}]}'
    )
    assert set(topology_file.read(tmp_path / "slow.json").link_bandwidth_Bps) == {5 * 10**9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: nowhere.yaml", "base is nowhere.yaml: No such file or directory"),
        (
            "base: self.yaml",
            "self.yaml: more than 8 files in a row name a base, the last one self.yaml",
        ),
        ("base: wrong.yaml", "wrong.yaml: the topology has no NPUs"),
        (
            "base: good.yaml\nlink_model: blocking",
            "link_model cannot be combined with a base that is a file",
        ),
    ],
)
def test_a_base_that_is_no_good_file_is_explained(tmp_path, text, message):
    (tmp_path / "good.yaml").write_text("tacos: 1\nbase: ring:4")
    (tmp_path / "wrong.yaml").write_text("tacos: 1")
    (tmp_path / "self.yaml").write_text(f"tacos: 1\n{text}")
    with pytest.raises(FormatError) as error:
        topology_file.read(tmp_path / "self.yaml")
    assert message in str(error.value)


def test_a_cycle_of_files_is_named_by_its_first_and_last_file(tmp_path):
    """The files name each other, so the ninth in a row is the first again, whose base is two.yaml."""
    (tmp_path / "one.yaml").write_text("tacos: 1\nbase: two.yaml")
    (tmp_path / "two.yaml").write_text("tacos: 1\nbase: one.yaml")
    with pytest.raises(FormatError) as error:
        topology_file.read(tmp_path / "one.yaml")
    assert str(error.value) == (
        f"{tmp_path / 'one.yaml'}: more than 8 files in a row name a base, the last one two.yaml; check for a cycle"
    )


def test_a_missing_field_is_called_missing(read_text):
    with pytest.raises(FormatError, match=r"boxes: the field count is missing$"):
        read_text("tacos: 1\nboxes: {npus: 2}")


def test_a_base_is_edited_in_order(read_text):
    topology = read_text(
        """
        tacos: 1
        base: ring:5@10GB/s,1us
        link_model: blocking
        edits:
          - drop_npus: [4]
          - degrade: {links: [[npu0, npu1]], factor: 0.5}
          - scale: {bandwidth: 2}
        """.replace("ring:5", "fc:5")
    )
    expected = build.fully_connected(5, bandwidth="10GB/s", latency="1us", link_model="blocking")
    expected = build.degrade(build.drop_npus(expected, 4), (0, 1), factor=0.5, both=True)
    assert topology == build.scale(expected, bandwidth=2)


def test_capabilities_and_models(read_text):
    topology = read_text(
        """
        tacos: 1
        name: x
        link_model: blocking
        forwarding: store_and_forward
        reduce_bandwidth: 200GB/s
        npus: 2
        switches: [{multicast: true}, {multicast: true, reduce: true}, plain]
        defaults: {bandwidth: 1B/s, latency: 0}
        links: [{src: "npu*", dst: switch0}]
        """
    )
    assert topology.switch_capabilities.tolist() == [1, 3, 0]
    assert topology.names[2:] == ["switch0", "switch1", "plain"]
    assert (topology.family, topology.link_model) == ("x", "blocking")
    assert (topology.forwarding, topology.reduce_bandwidth_Bps) == ("store_and_forward", 2 * 10**11)


def test_words_are_read_as_json_would(read_text):
    text = "tacos: 1\nnpus: [on, 1:30, 0x10, no]\nswitches: 1\n"
    topology = read_text(text + 'links: [{src: "0..3", dst: 4, bandwidth: 1e9, latency: 5e-7}]')
    assert topology.names[:4] == ["on", "1:30", "0x10", "no"]
    assert rows(topology)[0] == (0, 4, 10**9, 500_000)


# What is wrong with a file.

WRONG = {
    "": "the file is empty",
    "# nothing": "the file is empty",
    "- 1": "the file must be a mapping of fields, such as tacos: 1",
    "npus: 2": "the field tacos is missing; it must be tacos: 1",
    "tacos: 2\nfuture: true": "tacos is 2; this version of tacos reads format version 1",
    "tacos: one": 'tacos is "one": expected a whole number, got text',
    "tacos: 1": "the topology has no NPUs; it needs npus, boxes or a base",
    "tacos: 1\nnpus: 2\nnpus: 3": 'line 3: the key "npus" appears twice',
    "tacos: 1\nnpus: [a\n": "line 3: not YAML: did not find expected ',' or ']'",
    "tacos: 1\nx: &a [1]\ny: *a": "line 3: aliases (*a) are not supported",
    "tacos: 1\nx: !!python/none 1": "line 2: tags (tag:yaml.org,2002:python/none) are not supported",
    "tacos: 1\n---\ntacos: 1": "line 2: a second document; there must be only one",
    "tacos: 1\n? [a]\n: 1": "line 2: a key must be a word",
    "tacos: 1\n3: 1": "line 2: the key 3 must be a word",
    "[" * 99: "line 1: nested too deeply",
    "tacos: 1\nnpu: 2": 'there is no field "npu", did you mean npus?',
    "tacos: 1\nnpus: -1": "npus is -1: expected a whole number >= 0",
    "tacos: 1\nnpus: 99999999999": "the topology has 99999999999 nodes; the limit is 10000000",
    "tacos: 1\nnpus: 1\nboxes: {count: 999999999999, npus: []}": "boxes.npus is an empty list",
    "tacos: 1\nnpus: [a, b, a]": 'two nodes are named "a"',
    "tacos: 1\nnpus: 2": "the topology is not connected: npu 0 cannot reach npu 1",
    "tacos: 1\nnpus: 2\nlink_model: fast": 'link_model is "fast"; it must be "pipelined" or "blocking"',
    "tacos: 1\nbase: ring:4\nnpus: 3": "npus cannot be combined with base",
    "tacos: 1\nnpus: 3\nedits: [{drop_npus: [1]}]": "edits needs a base to edit",
    "tacos: 1\nbase: ring:4\nedits: [{both: true}]": "edits[0] has 0 changes; it must have one of "
    "drop_links, drop_npus, subset, degrade, scale",
    "tacos: 1\nbase: ring:4\nedits: [{drop_links: [[0, npu7]]}]": 'edits[0].drop_links[0].dst is "npu7", '
    "but there is no such node; did you mean npu3 or npu2 or npu1?",
    "tacos: 1\nbase: ring:4\nedits: [{drop_links: [[0, 2]]}]": "edits[0]: there is no link from "
    "npu 0 to npu 2; npu 0 has links to npu 1, npu 3",
    "tacos: 1\nnpus: 2\ndirected: [[0, 1, 1B/s, 0], [1]]": "directed[1] has 1 entries; it must be "
    "[src, dst, bandwidth, latency]",
    "tacos: 1\nnpus: 2\ndirected: [[0, 1.5, 1, 0]]": "directed[0][1] is 1.5; it must be one node",
    "tacos: 1\nnpus: 2\ndims: [[ring, 3]]\nconnected: false": "the dimensions do not multiply to 2 NPUs",
    "tacos: 1\nnpus: 2\nsymmetric: true": "symmetric is true, but dims is missing",
}

LINKS = {
    "{src: 0, dst: 9, bandwidth: 1B/s, latency: 0}": "links[0].dst is 9; the nodes are 0 to 2",
    "{src: npu, dst: 1, bandwidth: 1B/s, latency: 0}": 'links[0].src is "npu", but there is no such node; '
    "did you mean npu1 or npu0?",
    '{src: "1..7", dst: 1, bandwidth: 1B/s, latency: 0}': 'links[0].src is "1..7"; the nodes are 0 to 2',
    '{src: "gpu*", dst: 1, bandwidth: 1B/s, latency: 0}': 'links[0].src is "gpu*", but there is no such node',
    "{src: 1, dst: 1, bandwidth: 1B/s, latency: 0}": "links[0] joins npu1 to itself",
    "{src: 0, bandwidth: 1B/s, latency: 0}": "links[0] has no dst",
    "{src: [], dst: 1, bandwidth: 1B/s, latency: 0}": "links[0] has an empty list of nodes",
    "{src: [0, 1], dst: [0, 1, 2], bandwidth: 1B/s, latency: 0}": "links[0] has 2 nodes in src and 3 in "
    "dst; use equal numbers, or a single node on one side",
    "{src: 0, dst: 1, latency: 0}": "links[0] has no bandwidth, and there is no defaults.bandwidth",
    "{src: 0, dst: 1, bandwidth: 1B/s}": "links[0] has no latency, and there is no defaults.latency",
    "{src: 0, dst: 1, bandwidth: -1, latency: 0}": "links[0].bandwidth -1 ",
    "{src: 0, dst: 1, bandwidth: fast, latency: 0}": "links[0].bandwidth 'fast' ",
    "{src: 0, dst: 1, bandwidth: 1B/s, latency: .nan}": "links[0].latency '.nan' ",
    "{src: 0, dst: 1, bandwidth: [1], latency: 0}": "links[0].bandwidth: expected",
    "{src: 0, dst: 1, bandwith: 1}": 'links[0]: there is no field "bandwith", did you mean bandwidth?',
    "{src: 0, dst: 1, count: 999999999, bandwidth: 1B/s, latency: 0}": "the topology has 1999999998 links",
}
WRONG |= {f"tacos: 1\nnpus: 2\nswitches: 1\nlinks: [{text}]": says for text, says in LINKS.items()}


@pytest.mark.parametrize(("text", "says"), WRONG.items(), ids=range(len(WRONG)))
def test_wrong_files_get_one_sentence(tmp_path, text, says):
    file = tmp_path / "net.yaml"
    file.write_text(text)
    with pytest.raises(FormatError) as error:
        topology_file.read(file)
    message = str(error.value)
    assert message.startswith(f"{file}: {says}")
    assert "\n" not in message


def test_json_errors(read_text):
    with pytest.raises(FormatError, match=r"line 2: not JSON: Expecting"):
        read_text('{"tacos": 1,\n oops}', "net.json")
    with pytest.raises(FormatError, match='the key "tacos" appears twice'):
        read_text('{"tacos": 1, "tacos": 1}', "net.json")
    with pytest.raises(FormatError, match="nested too deeply"):
        read_text("[" * 100_000, "net.json")


def test_other_files(tmp_path):
    with pytest.raises(FormatError, match=r'the suffix must be .yaml, .yml or .json; got ".txt"'):
        topology_file.read(tmp_path / "net.txt")
    with pytest.raises(ValueError, match=r"path must end in \.yaml"):
        topology_file.write(build.ring(3), tmp_path / "net.txt")
    with pytest.raises(FileNotFoundError):
        topology_file.read(tmp_path / "net.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"tacos: 1 \xff")
    with pytest.raises(FormatError, match=r"not UTF-8 text \(byte 9\)"):
        topology_file.read(tmp_path / "bytes.yaml")
    assert [file.name for file in tmp_path.iterdir()] == ["bytes.yaml"]


@pytest.mark.parametrize(
    ("spec", "broken"), [("torus:4x4", (0, 1)), ("switch:4", (2, 4)), ("fc:4*switch:3", (3, 15))]
)
def test_a_false_claim_of_symmetry_is_refused(tmp_path, spec, broken):
    file = tmp_path / "net.json"
    topology = build.parse(spec)
    topology_file.write(topology, file)
    assert topology_file.read(file).symmetric
    slower = build.degrade(topology, broken, factor=0.5)
    slower = reweighted(  # another network, which does not say that it was symmetric
        slower, bandwidth_Bps=slower.link_bandwidth_Bps, latency_ps=slower.link_latency_ps
    )
    topology_file.write(slower, file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"symmetric": True}))
    with pytest.raises(FormatError, match=r"but a shift along dims\[0\] changes the network"):
        topology_file.read(file)


# Laws.


def with_names(topology: Topology, names: list[str]) -> Topology:
    return Topology(
        npus=topology.npus,
        switch_capabilities=topology.switch_capabilities,
        link_src=topology.link_src,
        link_dst=topology.link_dst,
        link_latency_ps=topology.link_latency_ps,
        link_bandwidth_Bps=topology.link_bandwidth_Bps,
        family=topology.family,
        names=names,
    )


@given(data=st.data(), topology=topologies(), suffix=st.sampled_from(["yaml", "json"]))
def test_what_is_written_is_read_back(tmp_path_factory, data, topology, suffix):
    if data.draw(st.booleans(), label="named"):
        name = st.text(st.characters(exclude_categories=["Cs"]), max_size=4).filter(
            lambda text: "\0" not in text
        )
        count = topology.nodes
        names = data.draw(st.lists(name, min_size=count, max_size=count, unique=True))
        topology = with_names(topology, names)
    file = tmp_path_factory.getbasetemp() / f"law.{suffix}"
    topology_file.write(topology, file)
    text = file.read_text()
    VALIDATOR.validate(markup.load(file))
    again = topology_file.read(file)
    assert again == topology
    topology_file.write(again, file)
    assert file.read_text() == text


def test_disconnected_and_single_networks_are_read_back(tmp_path):
    none = np.zeros(0, dtype=np.int32)
    for npus in (1, 3):
        topology = Topology(
            npus=npus,
            switch_capabilities=np.zeros(2, dtype=np.uint8),
            link_src=none,
            link_dst=none,
            link_latency_ps=none.astype(np.int64),
            link_bandwidth_Bps=none.astype(np.int64),
        )
        topology_file.write(topology, tmp_path / "net.yaml")
        assert topology_file.read(tmp_path / "net.yaml") == topology


def read_or_refuse(file: Path) -> None:
    message = str(file)
    try:
        topology_file.read(file)
    except FormatError as error:
        message = str(error)
    assert message.startswith(str(file))


FIELD_NAMES = sorted(
    {f for s in (topology_fields.File, topology_fields.Link) for f in s.__struct_fields__}
)
WORDS = st.sampled_from([*FIELD_NAMES, "ring:4", "0..3", "npu*", "[", "*", "1GB/s"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = {field: VALUES | st.integers(1, 4) for field in topology_fields.File.__struct_fields__[1:]}


@settings(max_examples=200)
@given(data=st.fixed_dictionaries({"tacos": st.just(1)}, optional=FIELDS))
def test_garbage_fields_give_a_topology_or_a_format_error(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "garbage.json"
    file.write_text(json.dumps(data))
    read_or_refuse(file)


LINK = {field: VALUES | st.integers(0, 4) for field in topology_fields.Link.__struct_fields__}


@settings(max_examples=200)
@given(links=st.lists(st.fixed_dictionaries({}, optional=LINK), max_size=3))
def test_garbage_links_give_a_topology_or_a_format_error(tmp_path_factory, links):
    file = tmp_path_factory.getbasetemp() / "garbage.json"
    file.write_text(json.dumps({"tacos": 1, "npus": 4, "links": links}))
    read_or_refuse(file)


@given(
    text=st.text(max_size=60) | st.text("tacos: 1[]{},&*!|>-?\n\"'#%@ab", max_size=60),
    head=st.sampled_from(["", "tacos: 1\n", PAIR]),
    suffix=st.sampled_from(["yaml", "json"]),
)
def test_garbage_text_gives_a_topology_or_a_format_error(tmp_path_factory, text, head, suffix):
    file = tmp_path_factory.getbasetemp() / f"garbage.{suffix}"
    file.write_bytes((head + text).encode("utf-8", "surrogatepass"))
    read_or_refuse(file)


# The examples and the schema.


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_follow_the_schema(file):
    VALIDATOR.validate(markup.load(file))
    topology = topology_file.read(file)
    assert topology.family
    assert topology.unreachable_pair() is None


def test_every_field_has_an_example():
    text = "\n".join(file.read_text() for file in EXAMPLES)
    missing = [
        field
        for struct in (topology_fields.File, topology_fields.Boxes, topology_fields.Link)
        for field in struct.__struct_fields__
        if f"{field}" not in text and field not in ("symmetric", "connected")
    ]
    assert missing == []


def test_racks_of_several_kinds_of_boxes(read_text):
    """4 boxes of 8 H100 and 4 of our own, 2 per rack: 4 racks, whose uplinks carry 16 x 50 / 4 GB/s."""
    text = (ROOT / "examples" / "topologies" / "racks.yaml").read_text()
    network = read_text(text)
    assert (network.npus, network.switches) == (64, 4 + 4 + 1)
    assert network.names[0] == "h100-0/npu0"
    assert network.names[32] == "ours-0/npu0"
    assert network.names[64:] == [
        *(f"h100-{b}/switch0" for b in range(4)),
        "rack0",
        "rack1",
        "rack2",
        "rack3",
        "spine",
    ]
    speeds = {}
    for a, b, speed in zip(
        network.link_src, network.link_dst, network.link_bandwidth_Bps, strict=True
    ):
        speeds[network.names[a], network.names[b]] = int(speed)
    assert speeds["rack3", "spine"] == speeds["spine", "rack0"] == 200_000_000_000
    assert speeds["h100-3/npu7", "rack1"] == speeds["rack2", "ours-1/npu0"] == 50_000_000_000
    assert speeds["h100-1/npu2", "h100-1/switch0"] == 450_000_000_000
    assert speeds["ours-3/npu0", "ours-3/npu7"] == 64_000_000_000
    assert ("ours-3/npu0", "rack2") not in speeds
    assert network.dims == [("box", 8), ("switch", 2), ("switch", 4)]
    equal = read_text(text.replace("oversubscription: 4", "oversubscription: 1"))
    assert int(equal.link_bandwidth_Bps.max()) == 800_000_000_000


def test_machines_are_what_their_names_stand_for(read_text):
    """One rack of machines is the same network as the machine's own cluster on one switch."""
    racks = "racks: {boxes: 2, bandwidth: 50GB/s, latency: 1.3us}"
    network = read_text(f"tacos: 1\nboxes: {{count: 2, machine: dgx-h100-plain}}\n{racks}")
    cluster = build.dgx_h100(2, nvls=False)
    ends = [
        sorted(zip(t.link_src, t.link_dst, t.link_bandwidth_Bps, t.link_latency_ps, strict=True))
        for t in (network, cluster)
    ]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("boxes: []", "boxes is an empty list; it needs at least one kind of boxes"),
        ("boxes: {count: 2}", "boxes.npus is missing; a box needs at least one NPU"),
        (
            "boxes: [{count: 2, npus: 2, machine: dgx-1}]",
            "boxes[0].npus cannot be combined with machine",
        ),
        ("boxes: [{count: 2, machine: dgx-9}]", 'boxes[0].machine: topology "dgx-9": there is no'),
        ("npus: 2\nracks: {boxes: 2}", "racks needs boxes to put into racks"),
        (
            "boxes: {count: 2, machine: dgx-1}\nracks: {boxes: 2}",
            "racks has no bandwidth, and there is no defaults.bandwidth",
        ),
        (
            "boxes: {count: 2, machine: dgx-1}\nracks: {boxes: 0}",
            "racks.boxes is 0: expected a whole number >= 1",
        ),
        (
            "boxes: {count: 2, machine: dgx-1}\nracks: {boxes: 1, oversubscription: 0}",
            "racks.oversubscription is 0: expected a number > 0",
        ),
        ("boxes: {count: 2, machine: dgx-1}\nracks: {box: 1}", "there is no field"),
        ("boxes: [{count: 1, npus: 2}, {count: 1, npus: 2}]", "two nodes are named"),
    ],
)
def test_bad_boxes_and_racks(text, message, read_text):
    with pytest.raises(FormatError) as caught:
        read_text(f"tacos: 1\n{text}\n")
    assert message in str(caught.value)
