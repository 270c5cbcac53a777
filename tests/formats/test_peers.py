"""Results of other synthesizers: small hand-written files, read as schedules that verify."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import FormatError
from tacos import topology as tp

EVERYONE = [0, 1]


def sccl(chunks, steps, nodes=2, word="sccl_type"):
    def typed(kind, **fields):
        return {word: kind, **fields}

    return typed(
        "algorithm",
        name="hand",
        steps=[typed("step", rounds=1, sends=sends) for sends in steps],
        collective=typed(
            "collective",
            name="hand",
            nodes=nodes,
            chunks=[typed("chunk", pre=pre, post=post, addr=addr) for pre, post, addr in chunks],
        ),
    )


GATHER = sccl([([0], EVERYONE, 7), ([1], EVERYONE, 3)], [[[7, 0, 1], [3, 1, 0]]])
SUM = sccl(
    [([rank], EVERYONE, addr) for addr in range(2) for rank in range(2)],
    [
        [[0, 0, 1, 0.0, 1, "rrc"], [1, 1, 0, 0.0, 1, "rrc"]],
        [[0, 1, 0, 3.5, 1, None], [1, 0, 1, 3.5, 1, None]],
    ],
)
FLOWS = {
    "1-Epoch_Duration": 1e-6,
    "4-Collective_Finish_Time": 2e-6,
    "7-Flows": [
        "Chunk 0 from 1 traveled over 1->2 in epoch 0 via switches 0",
        "Chunk 0 from 2 traveled over 2->1 in epoch 0 via switches 0",
        "Chunk 0 from 4 traveled over 4->2 with volume 1.0 in epoch 0",
        "Chunk 0 from 4 traveled over 2->1 in epoch 3 via switches 0",
        "Chunk 0 from 1 traveled over 2->4 in epoch 4",
        "Chunk 0 from 2 traveled over 2->4 in epoch 5",
    ],
    "8-Chunk paths": {
        f"Demand at {dst} for chunk 0 from {src} met by epoch 9": []
        for src in (1, 2, 4)
        for dst in (1, 2, 4)
        if src != dst
    },
}
TREES = """<Algo nchunkspernode="2">
  <tree root="(0, 'GPU', 10)" index="0" nchunks="2" height="1">
    <send src="(0, 'GPU', 10)" dst="(0, 'GPU', 9)" path="(0, 'GPU', 10),nvswitch,(0, 'GPU', 9)"/>
  </tree>
  <tree root="(0, 'GPU', 9)" index="0" nchunks="1" height="1">
    <send src="(0, 'GPU', 9)" dst="(0, 'GPU', 10)" path="(0, 'GPU', 9),nvswitch,(0, 'GPU', 10)"/>
  </tree>
  <tree root="(0, 'GPU', 9)" index="1" nchunks="1" height="1">
    <send src="(0, 'GPU', 9)" dst="(0, 'GPU', 10)" path="(0, 'GPU', 9),nvswitch,(0, 'GPU', 10)"/>
  </tree>
</Algo>
"""


def loaded(content, tmp_path, name="result.json", **options):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return tacos.load(path, **options)


def test_an_all_gather_of_sccl(tmp_path):
    schedule = loaded(GATHER, tmp_path, "ag.sccl.json")
    assert tacos.verify(schedule).ok
    assert (schedule.collective.kind, schedule.collective.chunks) == ("all_gather", 2)
    assert schedule.provenance["topology"] == "the links that the result uses"
    assert loaded(sccl([([0], EVERYONE, 0), ([1], EVERYONE, 1)], [[[0, 0, 1], [1, 1, 0]]], word="msccl_type"), tmp_path).time_s == schedule.time_s  # fmt: skip


def test_an_all_reduce_of_taccl(tmp_path):
    """Each link, of 1 MB/s and without latency, carries both chunks of 1 MB: 2 s."""
    topology = tp.from_links(2, [(0, 1, "1MB/s", 0), (1, 0, "1MB/s", 0)])
    schedule = loaded(SUM, tmp_path, topology=topology, size="2MB")
    assert tacos.verify(schedule).ok
    assert schedule.collective.kind == "all_reduce"
    assert schedule.time_s == 2.0


def test_what_has_no_name_is_custom(tmp_path):
    one = sccl([([0], [2], 0)], [[[0, 0, 1]], [[0, 1, 2]]], nodes=3)
    schedule = loaded(one, tmp_path)
    assert tacos.verify(schedule).ok
    assert schedule.collective.kind == "custom"


def test_a_missing_send_is_found(tmp_path):
    short = sccl([([0], EVERYONE, 0), ([1], EVERYONE, 1)], [[[0, 0, 1]]])
    assert [v.rule for v in tacos.verify(loaded(short, tmp_path)).violations] == ["postcondition"]


def test_an_all_gather_of_te_ccl(tmp_path):
    schedule = loaded(FLOWS, tmp_path)
    assert tacos.verify(schedule).ok
    assert (schedule.collective.kind, schedule.transfers) == ("all_gather", 6)
    assert schedule.provenance["gpus"] == [1, 2, 4]
    assert schedule.provenance["claimed_s"] == 2e-6
    assert (schedule.topology.npus, schedule.topology.switches) == (3, 1)


def test_trees_of_forestcoll(tmp_path):
    schedule = loaded(TREES, tmp_path, "trees.xml")
    assert tacos.verify(schedule).ok
    assert (schedule.collective.kind, schedule.transfers) == ("all_gather", 4)
    assert schedule.provenance["gpus"] == ["(0, 'GPU', 9)", "(0, 'GPU', 10)"]
    other = loaded(TREES, tmp_path, "trees.xml", topology=tp.ring(2), size="4MB")
    assert tacos.verify(other).ok


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (sccl([([0], [1], 0)], [[[5, 0, 1]]]), "a.json", "step 0, send 0: the address 5 has no chunk"),
        (sccl([([0], [1], 0)], [[[0, 0, 2]]]), "a.json", "step 0, send 0: from 0 to 2; it must join two of 2"),
        (sccl([([0], [1], 0)], [[[0, "x", 1]]]), "a.json", "step 0, send 0: 'x' must be the number of an address or a node"),
        (sccl([([0], [4], 0)], []), "a.json", "chunk 0: the fields pre and post name node 4, but there are 2 nodes"),
        (sccl([([0], [1], 0)], []), "a.json", "the result moves no chunk"),
        ('{"sccl_type": 1', "a.json", "not a result of SCCL: Input data was truncated"),
        (FLOWS | {"7-Flows": ["Chunk 0 from x"]}, "a.json", "flow 0: 'Chunk 0 from x' is not a sentence"),
        (FLOWS | {"7-Flows": ["Chunk 0 from 1 traveled over 1->2 with volume 0.5 in epoch 0"]}, "a.json",
         "flow 0: the volume is 0.5, but a chunk moves whole"),
        ({"1-Epoch_Duration": 1}, "a.json", 'there is no field "Flows"'),
        (TREES.replace("nchunkspernode=\"2\"", ""), "a.xml", 'line 1: the Algo has no field "nchunkspernode"'),
        (TREES.replace('nchunks="2"', 'nchunks="1"'), "a.xml", "have 1 chunks, but nchunkspernode is 2"),
        (TREES.replace("send ", "sent "), "a.xml", "line 3: unexpected element sent; it must be send"),
        (TREES[:200], "a.xml", "not XML: "),
        ('<!DOCTYPE a [<!ENTITY b "c">]><Algo/>', "a.xml", "does not match any of the formats"),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path, content, name, message):
    with pytest.raises(FormatError, match=message) as caught:
        loaded(content, tmp_path, name)
    assert str(caught.value).startswith(str(tmp_path / name))


def test_a_topology_of_another_size(tmp_path):
    with pytest.raises(FormatError, match="the result is for 2 NPUs, but the topology has 3"):
        loaded(GATHER, tmp_path, topology=tp.ring(3))


@given(data=st.data())
@settings(max_examples=60)
def test_damaged_files_are_refused_in_words(tmp_path_factory, data):
    which = data.draw(st.sampled_from(["sccl", "te-ccl", "forestcoll"]))
    text = {"sccl": json.dumps(SUM), "te-ccl": json.dumps(FLOWS), "forestcoll": TREES}[which]
    at = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(
        st.sampled_from(["", "0", "-1", "99999999999", '"', "[", "}", "null", "<", "&"])
    )
    path = tmp_path_factory.mktemp("damage") / "file"
    path.write_text(text[:at] + put + text[at + data.draw(st.integers(0, 6)) :])
    with suppress(FormatError):
        tacos.verify(tacos.load(path, format=which))
