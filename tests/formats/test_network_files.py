"""Networks of other tools: ASTRA-sim, ns-3, TACCL, TE-CCL, GraphML, networkx and edge lists."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos.errors import FormatError
from tacos.formats import taccl, teccl
from tests.support.strategies import BANDWIDTHS, LATENCIES, random_topologies, topologies

pytestmark = pytest.mark.unsanitized

FILES = Path(__file__).parents[1] / "files"
GB, GIB = 10**9, 2**30


def links(topology):
    """Rows (src, dst, B/s, ps)."""
    columns = (
        topology.link_src,
        topology.link_dst,
        topology.link_bandwidth_Bps,
        topology.link_latency_ps,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def speeds(topology):
    return {(src, dst): (fast, wait) for src, dst, fast, wait in links(topology)}


@pytest.fixture
def load_text(tmp_path):
    def load(text, name, **options):
        (tmp_path / name).write_text(text)
        return tacos.load(tmp_path / name, **options)

    return load


def refused(tmp_path, text, name, **options):
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError) as error:
        tacos.load(tmp_path / name, **options)
    message = str(error.value)
    assert message.startswith(f"{tmp_path / name}: ")
    assert "\n" not in message
    return message.removeprefix(f"{tmp_path / name}: ")


# ASTRA-sim.


def test_a_network_of_astra_sim_is_a_product_in_binary_gigabytes():
    network = tacos.load(FILES / "network.astra.yml")
    ring = tp.ring(4, bandwidth=200 * GIB, latency="50ns")
    clique = tp.fully_connected(8, bandwidth=100 * GIB, latency="500ns")
    switch = tp.switch(4, bandwidth=50 * GIB, latency="936.25ns")
    assert network == tp.product(ring, clique, switch)


SPEED = st.tuples(st.sampled_from([b for b in BANDWIDTHS if b > 7]), st.sampled_from(LATENCIES))


@given(
    factors=st.lists(
        st.tuples(st.sampled_from(["ring", "clique", "switch"]), st.integers(2, 4), SPEED),
        min_size=1,
        max_size=3,
    )
)
def test_products_come_back_from_astra_sim(tmp_path_factory, factors):
    """A ring of two is written as a clique of two, which has the same links."""
    build = {"ring": tp.ring, "clique": tp.fully_connected, "switch": tp.switch}
    parts = [build[kind](n, bandwidth=b, latency=f"{a}ps") for kind, n, (b, a) in factors]
    network = tp.product(*parts)
    file = tmp_path_factory.getbasetemp() / "net.astra.yml"
    tacos.save(network, file)
    assert links(tacos.load(file)) == links(network)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (tp.mesh(3, 3), 'ASTRA-sim has Ring, FullyConnected and Switch, not the kind "line"'),
        (tp.ring(4, bidirectional=False), "in each dimension all links must exist"),
        (tp.drop_links(tp.torus(4, 4), (0, 1)), "in each dimension all links must exist"),
        (tp.switch(4, multicast=True), "switches can neither multicast nor reduce"),
        (tp.from_links(2, [(0, 1, 1e9, 0), (1, 0, 1e9, 0)]), "products of dimensions"),
        (tp.ring(1), "the network has a single NPU"),
    ],
    ids=range(6),
)
def test_what_astra_sim_cannot_say(tmp_path, network, says):
    with pytest.raises(FormatError, match=says):
        tacos.save(network, tmp_path / "net.astra.yml")
    assert list(tmp_path.iterdir()) == []


def test_wrong_networks_of_astra_sim(tmp_path):
    fields = {"topology": "[Ring]", "npus_count": "[4]", "bandwidth": "[50]", "latency": "[500]"}
    for wrong, says in {
        (
            "topology",
            "[ring]",
        ): "topology[0] is 'ring'; it must be one of Ring, FullyConnected, Switch",
        ("npus_count", "[1]"): "npus_count[0] is 1; it must be at least 2",
        ("npus_count", "[4, 4]"): "npus_count has 2 entries, but topology has 1",
        ("npus_count", "[999999999]"): "the network would have",
        ("bandwidth", "[-1]"): "bandwidth[0]",
        ("latency", "[a]"): "latency[0]: expected float, got str",
    }.items():
        text = "\n".join(f"{key}: {value}" for key, value in (fields | dict([wrong])).items())
        assert refused(tmp_path, text, "net.yml").startswith(says)


def test_an_ns3_topology_numbers_npus_first(load_text):
    network = tacos.load(FILES / "ns3.txt")
    assert (network.npus, network.switches) == (4, 2)
    found = speeds(network)
    assert found[0, 4] == found[4, 0] == (50 * GB, 500_000)
    assert links(network).count((4, 5, 12_500_000_000, 1_000_000)) == 2  # parallel cables
    mixed = load_text("3 1 2\n1\n0 1 8Gbps 1us 0\n 1\t2 8Gbps 1us 0\n", "net.txt")
    assert sorted(speeds(mixed)) == [(0, 2), (1, 2), (2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("text", "says"),
    {
        "3 1 2\n1\n0 1 8Gbps 1us 0": "there are 1 links, but the first line says 2",
        "3 1 1\n1\n0 1 8Gbps 1us": "line 3: there are 4 fields, not 5",
        "3 1 1\n3\n0 1 8Gbps 1us 0": "line 2: it must name 1 different switches below 3",
        "3 1 2\n1\n0 1 8Gbps 1us 0\n0 3 8Gbps 1us 0": "line 4: dst is 3; it must be another node",
        "3 1 2\n1\n0 1 8Gbps 1us 0\n2 1 fast 1us 0": "line 4: rate 'fast' is not understood",
        "2 0 1\n\n0 1 8Gbps -1us 0": "line 3: delay '-1us' must not be negative",
        "999999999 1 1\n1\n0 1 8Gbps 1us 0": "line 1: 999999999 nodes, 1 switches and 1 links cannot form a network",
    }.items(),
    ids=range(7),
)
def test_wrong_ns3_topologies(tmp_path, text, says):
    assert refused(tmp_path, text, "net.txt").startswith(says)


# TACCL.


def test_costs_of_taccl_are_times_for_a_megabyte():
    """1 MB in 23 us is 43.48 GB/s (a pair of NVLinks), in 46 us half of it."""
    found = speeds(tacos.load(FILES / "ndv2.json"))
    assert len(found) == 32
    assert found[0, 1] == found[1, 0] == (round(1e12 / 23), 300_000)
    assert found[0, 2] == (round(1e12 / 46), 300_000)


def test_costs_of_taccl_may_be_scaled_and_for_another_size():
    found = speeds(tacos.load(FILES / "ndv2.json", size="10MB", scale=10))
    assert found[0, 1] == (round(1e14 / 23), 30_000)


def test_a_sketch_gives_the_links_it_allows():
    """Two boxes, one NIC each way: GPU 0 sends to GPU 1 of the other box, 1 MB in 105 us."""
    sketch = taccl.read_sketch(FILES / "ndv2_sketch.json")
    network = tacos.load(FILES / "ndv2.json", sketch=sketch)
    found = speeds(network)
    across = {ends: speed for ends, speed in found.items() if ends[0] // 8 != ends[1] // 8}
    assert across == {ends: (round(1e12 / 105), 2_600_000) for ends in ((0, 9), (8, 1))}
    assert network == tacos.load(FILES / "ndv2.json", sketch=FILES / "ndv2_sketch.json")
    assert sketch.internode_sketch is not None
    assert sketch.internode_sketch.gpus_to_sender_rev_map == {"0": list(range(8))}
    assert sketch.symmetry_offsets == [(8, 16)]
    assert sketch.hyperparameters == {"input_chunkup": 1}


def sketch_of(nodes, conn=None, switches=None):
    inner = taccl.Intranode("none" if switches is None else "switch", switches or [])
    outer = None if conn is None else taccl.Internode("relay", conn)
    return taccl.TacclSketch(nodes, inner, outer)


def test_ports_are_shared_by_more_than_two_nodes():
    """TACCL splits a node's NICs over the links that leave it: 8 senders, β is 8 times 105 us."""
    network = tacos.load(FILES / "ndv2.json", sketch=sketch_of(4, "direct-map"))
    assert (network.npus, network.switches) == (32, 8)
    found = speeds(network)
    port = (round(1e12 / 105 / 8), 1_300_000)
    assert all(found[8 * b + g, 32 + g] == found[32 + g, 8 * b + g] == port
               for b in range(4) for g in range(8))  # fmt: skip
    relay = tacos.load(FILES / "ndv2.json", sketch=sketch_of(3, {"0": [1]}))
    assert (relay.switches, relay.links) == (1, 3 * 32 + 6)
    assert [(src, dst) for src, dst in speeds(relay) if 24 in (src, dst)] == [
        (0, 24), (8, 24), (16, 24), (24, 1), (24, 9), (24, 17),
    ]  # fmt: skip
    two = tacos.load(FILES / "ndv2.json", sketch=sketch_of(2, "fully-connected"))
    assert two.links == 2 * 32 + 2 * 64


DGX2 = (
    '{"name": "DGX2_1MB", "gpus_per_node": 4, "nics_per_node": 2, "alpha": 0.3, '
    '"node_betas_list": [8], "node_invbws_list": [8], '
    '"remote_alpha": 2.6, "remote_beta": 105, "remote_invbw": 107}'
)
CUSTOM = (
    '{"name": "c", "gpus_per_node": 2, "alpha": 1, "links": [[0, 1], [1, 0]], '
    '"betas": [[0, 10], [20, 0]], "invbws": [[0, 11], [21, 0]]}'
)


def test_switches_of_a_sketch_restrict_and_multiply_ports(load_text):
    box = load_text(DGX2, "dgx2.json")
    assert (box.switches, speeds(box)[0, 4]) == (1, (125 * GB, 150_000))
    sketch = sketch_of(2, "fully-connected", [[0, 1], [2, 3]] * 2)
    halves = load_text(DGX2, "dgx2.json", sketch=sketch)
    assert speeds(halves)[0, 8] == (250 * GB, 150_000)  # two equal sets: two switches' bandwidth
    assert (0, 9) not in speeds(halves)


def test_matrices_of_taccl_go_from_column_to_row(load_text):
    found = speeds(load_text(CUSTOM, "custom.json"))
    assert found == {(1, 0): (100 * GB, 1_000_000), (0, 1): (50 * GB, 1_000_000)}


def test_wrong_files_of_taccl(tmp_path):
    for change, says in {
        ('"alpha": 0.3', '"alpha": "x"'): "alpha: expected float, got str",
        ('"alpha": 0.3', '"alpha": -1'): "alpha is -1.0; it must be a time in microseconds",
        ("[8], ", "[0], "): "node_betas_list[0] is 0.0; it must be a time in microseconds above 0",
        ("[8], ", "[1, 2], "): "gpus_per_node is 4; with two betas it must be 8",
        ("[8], ", "[], "): "node_betas_list has 0 entries",
        ('_node": 4', '_node": 0'): "gpus_per_node is 0; it must be 1 to",
        ('"name": "DGX2_1MB", ', ""): "object missing required field name",
        (DGX2, DGX2[:-9]): "line 1: not JSON",
    }.items():
        assert refused(tmp_path, DGX2.replace(*change), "t.json").startswith(says)
    for sketch, says in (
        (sketch_of(2), "sketch: nnodes is 2, but there is no internode_sketch"),
        (sketch_of(2, {"9": [0]}), "internode_conn has the sender '9'; GPUs are 0 to 3"),
        (sketch_of(2, {"0": [4]}), "internode_conn.0 has 4; GPUs are 0 to 3"),
        (sketch_of(2, {"0": [1], "1": []}), "must give every sender the same number of receivers"),
        (sketch_of(1, None, [[0, 1], [1, 2]]), "switches[1] shares GPU 1 with another set"),
        (sketch_of(1, None, [[0, 1], [2]]), "not connected"),
    ):
        assert says in refused(tmp_path, DGX2, "t.json", sketch=sketch)
    (tmp_path / "s.json").write_text('{"nnodes": 2, "intranode_sketch": {"strategy": "best"}}')
    with pytest.raises(FormatError, match=r"s\.json: intranode_sketch\.strategy: invalid enum"):
        tacos.load(FILES / "ndv2.json", sketch=tmp_path / "s.json")


# TE-CCL.


def test_networks_of_te_ccl_are_those_of_the_machines():
    assert links(teccl.network("DGX1", alpha=(7e-7, 0))) == links(tp.dgx1())
    amd = tacos.load(FILES / "teccl.json")
    assert (amd.npus, amd.switches, amd.links) == (32, 17, 2 * 56 + 2 * 32 + 2 * 16)
    assert speeds(amd)[0, 1] == (200 * GB, 600_000)
    assert speeds(amd)[31, 47] == speeds(amd)[47, 48] == (25 * GB, 750_000)


def test_relays_of_te_ccl():
    dgx2 = teccl.network("DGX2")
    across = {ends: speed for ends, speed in speeds(dgx2).items() if max(ends) < 32}
    assert across[1, 16] == across[17, 0] == (12_500_000_000, 2_600_000)
    assert len(across) == 16
    two, four = teccl.network("NDv2", 2), teccl.network("NDv2", 4)
    assert {e for e in speeds(two) if e[0] // 8 != e[1] // 8} == {(0, 9), (8, 1)}
    assert (four.switches, four.links) == (1, 4 * 32 + 8)


def test_the_mesh_of_te_ccl_joins_rows_at_their_ends():
    found = speeds(teccl.network("Mesh", side_length=3, alpha=(1e-6, 0)))
    assert found[2, 3] == found[0, 3] == (100 * GB, 1_000_000)
    assert len(found) == 2 * (8 + 6)


def test_wrong_inputs_of_te_ccl(tmp_path):
    for inside, says in {
        '{"name": "DGX3"}': "name is 'DGX3'; it must be one of DGX1, DGX2, NDv2, AMD, Mesh",
        '{"name": "DGX1", "chassis": 2}': "chassis is 2; it must be 1 for a DGX1",
        '{"name": "NDv2", "chassis": 0}': "chassis must be a whole number of at least 1; got 0",
        '{"name": "NDv2", "chassis": 99999999}': "the network would have",
        '{"name": "Mesh", "alpha": [1]}': "TopologyParams.alpha: expected array of length 2, got 1",
        '{"chassis": 1}': "TopologyParams: object missing required field name",
    }.items():
        assert refused(tmp_path, f'{{"TopologyParams": {inside}}}', "t.json").startswith(says)


# GraphML and networkx.


def same_network(a, b):
    """Whether nodes, names, links in order, capabilities and model agree; dimensions and symmetry may differ."""
    keys = ("npus", "names", "family", "link_model", "forwarding", "reduce_bandwidth_Bps")
    return (
        all(getattr(a, key) == getattr(b, key) for key in keys)
        and links(a) == links(b)
        and a.switch_capabilities.tolist() == b.switch_capabilities.tolist()
    )


def test_graphml_of_other_tools():
    pod = tacos.load(FILES / "pod.graphml")
    assert pod.names == ["a", "b", "leaf"]
    assert pod.switch_capabilities.tolist() == [1]
    assert links(pod) == [
        (0, 2, 50 * GB, 500_000),
        (2, 0, 50 * GB, 500_000),
        (1, 2, 25 * GB, 500_000),
        (2, 1, 25 * GB, 500_000),
        (0, 1, 50 * GB, 1_000_000),
    ]


@given(network=topologies())
def test_graphml_comes_back(tmp_path_factory, network):
    file = tmp_path_factory.getbasetemp() / "net.graphml"
    tacos.save(network, file)
    assert same_network(tacos.load(file), network)


def test_names_in_graphml(tmp_path):
    names = ["<a> & 'b'", "\tq", 'é"\n', "0"]
    network = tp.from_links(4, links_of_ring(4), names=names)
    tacos.save(network, tmp_path / "n.graphml")
    assert tacos.load(tmp_path / "n.graphml").names == ["<a> & 'b'", "q", 'é"', "0"]
    with pytest.raises(FormatError, match="has characters that XML cannot hold"):
        tacos.save(tp.from_links(1, [], names=["\x01"]), tmp_path / "m.graphml")


def links_of_ring(n):
    return [(i, (i + step) % n, 1e9, 1e-6) for i in range(n) for step in (1, n - 1)]


@given(network=random_topologies())
def test_networkx_reads_and_writes_the_same_graphs(tmp_path_factory, network):
    graph = tp.to_networkx(network)
    back = tp.from_networkx(graph, link_model=network.link_model)
    assert sorted(links(back)) == sorted(links(network))
    assert back.switch_capabilities.tolist() == network.switch_capabilities.tolist()
    file = tmp_path_factory.getbasetemp() / "nx.graphml"
    nx.write_graphml(graph, file)
    assert sorted(links(tacos.load(file))) == sorted(links(network))


def test_graphs_of_networkx():
    graph = nx.Graph()
    graph.add_node("tor", kind="switch", multicast=True)
    graph.add_edge("a", "tor", capacity="50GB/s")
    graph.add_edge("b", "tor", capacity=25e9, latency="1us")
    network = tp.from_networkx(graph, bandwidth="capacity", default_latency=5e-7)
    assert network.names == ["a", "b", "tor"]
    assert speeds(network)[2, 1] == (25 * GB, 1_000_000)
    assert network.switch_capabilities.tolist() == [1]
    star = nx.star_graph(3)
    assert tp.from_networkx(star, switches=[0], default_bandwidth=1, default_latency=0).npus == 3
    with pytest.raises(ValueError, match="the edge from 0 to 1 has no attribute bandwidth"):
        tp.from_networkx(star)
    with pytest.raises(ValueError, match="switches has 9, but there is no such node"):
        tp.from_networkx(star, switches=[9])
    graph.add_node("c", kind="tor")
    with pytest.raises(ValueError, match="node 'c': kind must be npu or switch; got \"tor\""):
        tp.from_networkx(graph)


def graphml(inside, keys=""):
    return f'<graphml>{keys}<graph edgedefault="directed">{inside}</graph></graphml>'


PAIR = '<node id="a"/><node id="b"/>'
KEY = '<key id="{0}" for="{1}" attr.name="{0}" attr.type="string"/>'


@pytest.mark.parametrize(
    ("text", "says"),
    {
        graphml(""): "the graph has no nodes",
        "<graphml/>": "the graph has no nodes",
        graphml("<node/>"): "line 1: <node> has no id",
        graphml('<node id="a"/><node id="a"/>'): "line 1: two nodes have the id 'a'",
        graphml(PAIR + '<edge source="a"/>'): "line 1: <edge> has no target",
        graphml(
            PAIR + '<edge source="a" target="c"/>'
        ): "an edge names 'c', but there is no such node",
        graphml(PAIR + '<edge source="a" target="a"/>'): "line 1: an edge joins 'a' to itself",
        graphml(PAIR + '<edge source="a" target="b"/>'): "line 1: <edge> has no bandwidth, and no",
        graphml(PAIR + "<graph/>"): "line 1: a second or nested <graph>",
        graphml("<hyperedge/>"): "line 1: <hyperedge> is not supported",
        graphml('<node id="a"><data key="kind">tor</data></node>', KEY.format("kind", "node")): (
            "line 1: kind of <node> is 'tor'; it must be npu or switch"
        ),
        "<!DOCTYPE a><graphml/>": "line 1: a document type declaration is not supported",
    }.items(),
    ids=range(12),
)
def test_wrong_graphml(tmp_path, text, says):
    assert refused(tmp_path, text, "net.graphml", format="graphml").startswith(says)


# Edge lists.


def test_an_edge_list_with_units_in_its_header():
    network = tacos.load(FILES / "links.csv")
    assert network.names == ["gpu0", "gpu2", "gpu10", "switch"]
    assert speeds(network)[0, 3] == (50 * GB, 500_000)
    assert speeds(network)[3, 2] == (25 * GB, 750_500)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("0,1,500ns,50GB/s\n1,0,5e-7,50e9", {}),
        ("src,dst,latency,bandwidth\r\n0,1,500ns,50GB/s\r\n1,0,500ns,50GB/s\r\n", {}),
        ("# two NPUs\n\nsource , target\n0,1\n\n# back\n1, 0\n", {"bandwidth": 5e10}),
        ("bandwidth_GBps,from,to\n50,0,1", {"both": True}),
        ("2\nSrc,Dest,Latency (ns),Bandwidth (GB/s)\n0,1,500,50\n1,0,500,50", {}),
    ],
    ids=range(5),
)
def test_forms_of_edge_lists(load_text, text, options):
    if "latency" not in text.lower() and "500ns" not in text:
        options = {"latency": "500ns"} | options
    network = load_text(text, "net.csv", **options)
    assert links(network) == [(0, 1, 50 * GB, 500_000), (1, 0, 50 * GB, 500_000)]
    assert network.names == []


def test_numbered_switches_and_patterns_of_names(load_text):
    rows = "0,2,1us,1GB/s\n1,2,1us,1GB/s"
    assert load_text(rows, "a.csv", npus=2, both=True).switches == 1
    assert load_text("2\n" + rows, "a.csv", both=True).switches == 1
    named = "a,tor,1us,1GB/s\nb,tor,1us,1GB/s"
    assert load_text(named, "a.csv", both=True).switches == 0
    assert load_text(named, "a.csv", both=True, switches="TOR*").switches == 1


@given(network=topologies())
def test_edge_lists_come_back(tmp_path_factory, network):
    file = tmp_path_factory.getbasetemp() / "net.csv"
    if not network.links:
        with pytest.raises(FormatError, match="has no links"):
            tacos.save(network, file)
        return
    tacos.save(network, file)
    back = tacos.load(file)
    assert (back.npus, links(back)) == (network.npus, links(network))


def test_a_large_edge_list_is_read_as_columns(tmp_path):
    network = tp.torus(100, 100, latency="7ps", bandwidth="123456789B/s")
    tacos.save(network, tmp_path / "big.csv")
    assert links(tacos.load(tmp_path / "big.csv")) == links(network)
    rng = np.random.default_rng(0)
    rows = [f"{i},{(i + 1) % 1000},{rng.random()},{rng.random() * 1e9 + 1}" for i in range(1000)]
    (tmp_path / "floats.csv").write_text("\n".join(rows))
    floats = tacos.load(tmp_path / "floats.csv")
    assert floats.link_latency_ps.tolist() == [round(float(r.split(",")[2]) * 1e12) for r in rows]


@pytest.mark.parametrize(
    ("text", "says"),
    {
        "src,dst,latency,bandwidth": "there are no links",
        "src,latency,bandwidth\n0,1,2": "line 1: the header has no column dst",
        "src,dst,src\n0,1,2": "line 1: there are two columns for src",
        "0,1,2": "line 1: there are 3 columns and no header; without one they must be src,dst,latency",
        "0,1,1us,1GB/s\n1,0,1us": "line 2: there are 3 fields, not 4",
        "0,1,1us,1GB/s\n\n1,0,1us,fast": "line 3: bandwidth 'fast' is not understood",
        "0,1,1us,1GB/s\n1,0,-1,1": "line 2: latency -1.0 must not be negative",
        "0,1,1us,1GB/s\n1,0,nan,1": "line 2: latency 'nan' is not understood",
        "0,1,1us,0": "line 1: bandwidth 0 must be positive",
        "0,1,1us,1e30": "line 1: bandwidth 1e+30 is too large",
        "0,0,1us,1": "line 1: src and dst are the same node",
        "0,99999999,1us,1": "line 1: node 99999999 is too large; 1 links cannot connect it",
        "0,1,1us,1": "the topology is not connected: npu 1 cannot reach npu 0",
        'a,"b",1us,1': "line 1: quotes are not supported",
        "a,,1us,1": "line 1: a node has no name",
        "switch1,switch2,1us,1": "all nodes are switches by their names",
        "src,dst,latency (days),bandwidth\n0,1,1,1": "the column latency has the unit 'days'",
        "src,dst\n0,1": "there is no column bandwidth, and no argument bandwidth for all links",
        f"{'a' * 65},b,1us,1": "line 1: a field has 65 bytes; the limit is 64",
        "0\n0,1,1us,1": "line 1: the number of NPUs is 0",
        "9\n0,1,1us,1": "npus is 9, but the last node is 1",
    }.items(),
    ids=range(21),
)
def test_wrong_edge_lists(tmp_path, text, says):
    assert refused(tmp_path, text, "net.csv").startswith(says)
