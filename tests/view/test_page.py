"""The data of the viewer's page: columns compared with the schedule's rows, and cases by hand."""

from __future__ import annotations

import json
import re
import threading
from importlib.resources import files
from itertools import pairwise
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from hypothesis import given, settings

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.execution import execution
from tacos.schedule import retime, routes
from tacos.view import page, write_page
from tacos.view.curves import ELBOW, LINE, curves
from tacos.view.layout import place
from tacos.view.record import DATA, LINK, SLACK, START, record
from tacos.view.serve import Server
from tests.support import strategies as my
from tests.support.viewer_pages import taken_apart, views

pytestmark = pytest.mark.unsanitized

US = 1_000_000


def begins(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(int)


def group_of(counts):
    return np.repeat(np.arange(len(counts)), counts)


@pytest.fixture
def relay():
    """Two chunks over 0 -> 1 -> 2, 1 us each and 1 us of latency: starts at 0 and 1, 2 and 3 us."""
    topology = tp.mesh(3, bandwidth="1GB/s", latency="1us")
    collective = co.broadcast(topology, "2KB", chunks=2)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    return retime(collective, table, route=[0, 0, 1, 1], chunk=[0, 1, 0, 1], step=[0, 0, 1, 1])


def declared(interface):
    """Names and types of an interface in the viewer's types, which `make lint` checks its code against."""
    text = (files("tacos.view") / "viewer" / "types.d.ts").read_text()
    (body,) = re.findall(
        rf"^export interface {interface} {{$(.*?)^}}$", text, re.DOTALL | re.MULTILINE
    )
    return dict(re.findall(r"^  (\w+): (.+);$", body, re.MULTILINE))


def test_the_viewer_has_the_types_of_the_record(relay):
    """The page declares all columns, and those facts that it uses."""
    found = record(relay)
    arrays = {"u1": "Uint8Array", "u4": "Uint32Array", "i4": "Int32Array", "f4": "Float32Array", "f8": "Float64Array"}  # fmt: skip
    assert declared("Columns") == {
        name: arrays[values.dtype.str[1:]] for name, values in found.columns.items()
    }
    kinds = {"string": str, "number": (int, float), "boolean": bool, "null": type(None)}
    for name, type_ in declared("Facts").items():
        expected = [kinds.get(word, list) for word in type_.split(" | ")]
        assert any(isinstance(found.facts[name], kind) for kind in expected), name


def test_columns_by_hand(relay):
    ((facts, columns),) = taken_apart(page(relay, names=["relay"]))
    assert (facts["name"], facts["tick_s"], facts["notes"]) == ("relay", 1e-12, [])
    assert facts["time_s"] == pytest.approx(5e-6)
    first, second = (
        next(k for k in range(4) if (columns["link_src"][k], columns["link_dst"][k]) == ends)
        for ends in ((0, 1), (1, 2))
    )
    begin = begins(columns["link_count"])
    for link, starts in ((first, [0, US]), (second, [2 * US, 3 * US])):
        part = slice(begin[link], begin[link + 1])
        assert columns["busy_begin"][part] == starts
        assert columns["busy_length"][part] == [US, US]
        assert [columns["chunk"][t] for t in columns["busy_transfer"][part]] == [0, 1]
    assert columns["npu_count"] == [0, 2, 2]
    assert columns["arrival_time"] == [2 * US, 3 * US, 4 * US, 5 * US]
    assert columns["chunk_source"] == [0, 0]
    assert columns["chunk_bytes"] == [1000]
    assert columns["received_bytes"] == [0, 2000, 2000]
    bins = facts["bins"]
    row = columns["busy"][first * bins : (first + 1) * bins]
    assert row[: bins * 2 // 5] == [255] * (bins * 2 // 5)
    assert sum(row[bins * 2 // 5 + 1 :]) == 0


def test_the_critical_path_by_hand(relay):
    """Chunk 1 takes the first link when chunk 0 has left it, then the second link when it has arrived.

    Chunk 0 leaves the second link at the same moment, 3 us, but data take precedence as the reason.
    """
    columns = record(relay).columns
    assert columns["path_chunk"].tolist() == [0, 1, 1]
    assert columns["path_why"].tolist() == [START, LINK, DATA]
    assert columns["path_begin"].tolist() == [0, US, 3 * US]
    assert columns["path_end"].tolist() == [2 * US, 3 * US, 5 * US]


def test_a_transfer_that_could_have_gone_earlier_is_held_back(relay):
    """All starts but the first are 1 us later: nothing waits for data or links any more."""
    later = np.array(relay.start, np.int64) * relay.quantum_ps
    later[later > 0] += US
    late = tacos.Schedule(
        collective=relay.collective, routes=relay.routes, lane_route=relay.lane_route,
        lane_op=relay.lane_op, lane_reads=relay.lane_reads, lane_begin=relay.lane_begin,
        chunk=relay.chunk, start=later.astype(np.uint32), quantum_ps=1,
    )  # fmt: skip
    assert tacos.verify(late).ok
    why = record(late).columns["path_why"].tolist()
    assert why[0] == START
    assert SLACK in why


def check_against_rows(schedule, columns, facts):
    """Check that the columns hold every transfer of the schedule, with its times, and nothing else."""
    rows = schedule.expand().rows()
    tick = round(facts["tick_s"] * 1e12)
    lane = group_of(columns["lane_count"])
    npu = group_of(columns["npu_count"])
    arrived = sorted(
        (columns["chunk"][t], int(npu[k]), columns["arrival_time"][k])
        for k, t in enumerate(columns["arrival_transfer"])
    )
    at_npus = rows["dst"] < facts["npus"]
    expected = zip(
        rows["chunk"][at_npus].tolist(),
        rows["dst"][at_npus].tolist(),
        (rows["arrival_ps"][at_npus] // tick).tolist(),
        strict=True,
    )
    # A reduce tree has one arrival and a row for each of its sources.
    assert sorted(set(arrived)) == sorted(set(expected))
    starts: dict[int, int] = {}
    for k, t in enumerate(columns["busy_transfer"]):
        starts[t] = min(starts.get(t, 2**32), columns["busy_begin"][k])
    found = sorted((columns["chunk"][t], columns["lane_op"][lane[t]], s) for t, s in starts.items())
    firsts = {}
    for k, t in enumerate(rows["transfer"].tolist()):
        firsts[t] = (int(rows["chunk"][k]), int(rows["op"][k]), int(rows["start_ps"][k]) // tick)
    assert found == sorted(firsts.values())


@given(my.orders())
@settings(max_examples=60)
def test_a_page_holds_every_transfer(order):
    schedule = order.retimed()
    ((facts, columns),) = taken_apart(page(schedule, rules=False, rings={}))
    assert facts["transfers"] == schedule.transfers
    check_against_rows(schedule, columns, facts)


def test_long_schedules_keep_whole_chunks_and_say_so():
    topology = tp.torus(4, 4)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "1MB", chunks=2), engine="greedy")
    facts, columns = record(schedule, detail=100)
    every = facts["every"]
    assert every == -(-schedule.transfers // 100)
    kept = schedule.chunk[schedule.chunk % every == 0]
    assert sorted(columns["chunk"].tolist()) == sorted(kept.tolist())
    (note,) = facts["notes"]
    assert note.startswith("Of 480 transfers 105 can be looked at one by one: those of every 5th")
    whole = record(schedule).columns
    for name in ("busy", "received", "utilisation", "path_begin"):
        assert (columns[name] == whole[name]).all()


def test_a_large_network_is_an_excerpt_and_says_so():
    topology = tp.ring(6000)
    collective = co.broadcast(topology, "1KB", chunks=1)
    facts, columns = record(tacos.synthesize(topology, collective, engine="double-binary-tree"))
    assert len(columns["drawn_node"]) == 256
    assert "Excerpt" in facts["notes"][0]
    assert len(columns["utilisation"]) == topology.links


def test_times_beyond_32_bits_are_kept_in_coarser_ticks():
    topology = tp.mesh(2, bandwidth="1GB/s", latency="1s")
    schedule = tacos.synthesize(
        topology, co.broadcast(topology, "1GB", chunks=1), engine="double-binary-tree"
    )
    facts, columns = record(schedule)
    assert schedule.time_ps == 2 * 10**12
    assert facts["tick_s"] == pytest.approx(466e-12)
    assert columns["arrival_time"].tolist() == [2 * 10**12 // 466]


def test_what_does_not_fit_memory_is_refused_before_it_is_expanded():
    topology = tp.torus(1000, 1000)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "1GB", chunks=1))
    with pytest.raises(
        tacos.TacosError, match=r"a page of 999,999,000,000 transfers takes about 170"
    ):
        record(schedule)


def test_a_run_without_transfers_has_a_page():
    topology = tp.mesh(2)
    collective = co.broadcast(topology, 1, group=[0], chunks=1)
    facts, columns = record(tacos.synthesize(topology, collective, engine="ring"))
    assert (facts["time_s"], len(columns["chunk"]), len(columns["path_chunk"])) == (0, 0, 0)


def test_a_page_needs_nothing_from_elsewhere_and_is_the_same_every_time(relay):
    text = page(relay, names=["</script><script>alert(1)"])
    assert text == page(relay, names=["</script><script>alert(1)"])
    assert "<script>alert" not in text
    outside = [at for at in re.findall(r'(?:src|href)="([^"]*)"', text) if at != "data:,"]
    assert outside == []
    assert "@import" not in text
    assert "fetch(" not in text


def test_a_simulation_can_be_shown_instead(relay):
    trace = tacos.simulate(relay, stragglers=[tacos.Straggler(npu=1, late="10us")])
    ((facts, _),) = taken_apart(page(relay, traces=[trace]))
    assert facts["time_s"] == trace.time_s > relay.time_s
    other = tacos.simulate(relay, tp.scale(relay.topology, bandwidth=2))
    with pytest.raises(ValueError, match="on the schedule's own network"):
        page(relay, traces=[other])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"detail": 0}, "detail is 0; it must be positive"),
        ({"names": ["a", "b"]}, "names has 2 entries for 1 schedules"),
    ],
)
def test_wrong_arguments_are_refused(relay, options, message):
    with pytest.raises(ValueError, match=message):
        page(relay, **options)


# --- where links are ------------------------------------------------------------------------------


@given(my.topologies())
def test_links_begin_and_end_at_their_nodes(topology):
    layout = place(topology)
    found = curves(topology, layout)
    assert np.isfinite(found.points).all()
    for end, nodes in ((0, topology.link_src), (3, topology.link_dst)):
        away = np.abs(found.points[:, end] - layout.xy[nodes])
        assert (away[:, 0] <= layout.half[nodes] + found.radius + 0.6).all()
        assert (away[:, 1] <= found.radius + 1e-4).all()


def test_twins_run_on_the_right_of_their_direction():
    topology = tp.mesh(2, 2)
    found = curves(topology, place(topology))
    for link in range(topology.links):
        (x0, y0), (x1, y1) = found.points[link, 0], found.points[link, 3]
        middle = place(topology).xy[[topology.link_src[link], topology.link_dst[link]]].mean(axis=0)
        right = np.array([-(y1 - y0), x1 - x0])  # y grows downwards
        assert right @ (np.array([(x0 + x1) / 2, (y0 + y1) / 2]) - middle) > 0
        assert found.kind[link] == LINE


def test_links_behind_a_row_bend_into_a_lane():
    topology = tp.nvl72(1, nvls=False)
    kinds = curves(topology, place(topology)).kind
    assert (kinds == ELBOW).any()


# --- the command, and the server ------------------------------------------------------------------


@pytest.fixture
def saved(relay, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tacos.save(relay, "relay.tacos")
    return "relay.tacos"


def test_view_writes_a_page_named_after_the_file(saved, tmp_path, capsys):
    assert main(["view", saved, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == "relay.html"
    assert len(taken_apart((tmp_path / "relay.html").read_text())) == 1
    assert main(["view", saved, saved, "-o", "both.html", "--quiet"]) == 0
    assert len(taken_apart((tmp_path / "both.html").read_text())) == 2
    (tmp_path / "relay.html").write_text("my own")
    assert main(["view", saved]) == 2
    assert (
        "relay.html was not written by tacos; refusing to overwrite it" in capsys.readouterr().err
    )
    assert (tmp_path / "relay.html").read_text() == "my own"


def test_synth_and_sim_write_pages_too(saved, tmp_path):
    call = ["synth", "ring:4", "all-gather", "1MB", "--html", "ring.html", "--quiet"]
    assert main(call) == 0
    assert len(taken_apart((tmp_path / "ring.html").read_text())) == 1
    assert main(["sim", saved, "--jitter", "1us", "-o", "sim.html", "--quiet"]) == 0
    ((facts, _),) = taken_apart((tmp_path / "sim.html").read_text())
    assert facts["simulated"]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (["-o", "out.gif"], "out.gif: a trace must have one of the extensions .pftrace"),
        (
            ["-o", "nowhere/out.html"],
            "--output is nowhere/out.html, but there is no directory nowhere",
        ),
        (["relay.tacos", "-o", "out.pftrace"], "but a trace holds one schedule, not two"),
        (["--serve", "-o", "out.html"], "--serve does not write a file; give only one"),
        (["--port", "80"], "--port is 80, but it needs --serve"),
        (["--serve", "--port", "70000"], "--port must be 0 to 65535; got 70000"),
        (["--detail", "0"], "detail is 0; it must be positive"),
    ],
)
def test_wrong_calls_are_refused_in_one_sentence(saved, tmp_path, capsys, call, sentence):
    assert main(["view", saved, *call]) == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [saved]


def test_sim_refuses_pages_of_other_networks_and_simulators(saved, capsys):
    for more in (["--topology", "mesh:3"], ["--profile", "astra-sim-aware"]):
        assert main(["sim", saved, "-o", "x.html", *more]) == 2
        assert "--output is x.html, but a page shows runs on" in capsys.readouterr().err


def test_synth_refuses_a_page_that_ends_like_something_else(capsys):
    assert main(["synth", "ring:4", "all-gather", "1MB", "--html", "x.txt"]) == 2
    assert "--html must end in .html or .htm; got x.txt" in capsys.readouterr().err


def test_the_server_answers_this_machine_only(relay):
    with Server(page(relay)) as server:
        assert server.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with urlopen(server.url) as answer:
                assert answer.read().startswith(b"<!doctype html>")
            for wrong in (
                Request(f"{server.url}other"),
                Request(server.url, headers={"Host": "example.com"}),
            ):
                with pytest.raises(HTTPError, match="404") as failure:
                    urlopen(wrong)
                failure.value.close()
        finally:
            server.shutdown()
            thread.join()


def test_write_page_leaves_nothing_half_written(relay, tmp_path):
    with pytest.raises(tacos.FormatError):
        write_page(tmp_path / "nowhere" / "x.html", relay)
    assert list(tmp_path.iterdir()) == []


# --- faults, views, groups of links ---------------------------------------------------------------


def test_a_link_that_is_down_is_not_busy(relay):
    """Chunk 0 starts at 0 and would leave the link at 1 us; from 0.5 to 2.5 us the link is down."""
    cut = tacos.Fault(link=(0, 1), begin="500ns", end="2500ns")
    trace = tacos.simulate(relay, faults=[cut])
    facts, columns = record(relay, trace)
    link = facts["faults"][0]["links"][0]
    assert facts["simulated"]
    assert facts["banner"] == "simulated: link npu 0 → npu 1 down 500 ns to 2.5 us"
    tick = facts["tick_s"]
    assert facts["faults"][0]["begin"] * tick == pytest.approx(0.5e-6)
    assert facts["faults"][0]["end"] * tick == pytest.approx(2.5e-6)
    assert facts["faults"][0]["down"]
    busy = columns["busy"].reshape(-1, facts["bins"])[link] / 255
    middle = (np.arange(facts["bins"]) + 0.5) * trace.time_s / facts["bins"]
    down = (middle > 0.51e-6) & (middle < 2.49e-6)
    assert busy[down].max() == 0
    assert busy[middle < 0.49e-6].min() == 1
    # Two chunks of 1 us each were sent.
    assert columns["utilisation"][link] == pytest.approx(2e-6 / trace.time_s, rel=0.01)


def test_pages_say_what_was_simulated(relay):
    late = tacos.Straggler(npu=1, late="2us")
    slow = tacos.Fault(npu=2, begin="1us", slowdown=3)
    found = record(relay, tacos.simulate(relay, faults=[slow], stragglers=[late], jitter="1ns"))
    assert found.facts["banner"] == (
        "simulated: all links of npu 2 3 times slower from 1 us on; npu 1 starts 2 us late; "
        "deliveries up to 1 ns late"
    )
    kinds = [kind for kind, _ in found.facts["disturbances"]]
    assert kinds == ["fault", "straggler", "jitter"]
    plain = record(relay).facts
    assert (plain["banner"], plain["simulated"], plain["faults"]) == ("", False, [])
    assert plain["disturbances"] == []


def test_executed_schedules_and_rings_are_views_of_the_page():
    """Each rule's view has the time that the program takes under that rule."""
    topology = tp.dgx_h100(2, nvls=False)
    schedule = tacos.synthesize(topology, co.all_reduce(topology, "64MB"), engine="greedy")
    text = page(schedule)
    found = views(text)
    assert [one["title"] for one in found] == [
        "schedule", "first come, first served", "links shared", "NCCL's rings",
    ]  # fmt: skip
    runs = taken_apart(text)
    times = execution(schedule)
    assert times is not None
    took = [runs[one["runs"][0]][0]["time_s"] for one in found[:3]]
    expected = (schedule.time_ps, times.first_come_ps, times.shared_ps)
    assert took == pytest.approx([ps * 1e-12 for ps in expected])
    for facts, columns in runs[1:]:
        assert facts["simulated"]
        assert facts["banner"].startswith("executed as a program: ")
        assert sorted(set(columns["busy_transfer"])) == list(range(schedule.transfers))
        assert len(columns["path_chunk"]) > 1
    rings = found[3]["rings"]
    assert [tuple(ring["npus"]) for ring in rings] == tacos.nccl.rings(topology)
    src, dst = topology.link_src, topology.link_dst
    for ring in rings:
        way = ring["links"]
        assert src[way[0]] == ring["npus"][0]
        assert all(dst[a] == src[b] for a, b in pairwise([*way, way[0]]))


def test_a_schedule_that_takes_the_same_time_under_every_rule_is_shown_once(relay):
    text = page(relay)
    assert [one["title"] for one in views(text)] == ["schedule", "NCCL's rings"]
    assert len(taken_apart(text)) == 1


def test_links_have_classes_boxes_and_widths():
    facts, columns = record(
        tacos.synthesize(
            boxes := tp.dgx_h100(2, nvls=False), co.all_gather(boxes, "16MB"), engine="greedy"
        )
    )
    inside = boxes.link_bandwidth_Bps == boxes.link_bandwidth_Bps.max()
    assert facts["classes"] == ["450 GB/s, 350 ns", "50 GB/s, 1.3 us"]
    assert (columns["link_class"] == np.where(inside, 0, 1)).all()
    assert facts["boxes"] == ["box 0", "box 1"]
    npu = np.minimum(boxes.link_src, boxes.link_dst)
    assert (columns["link_box"] == np.where(inside, npu // 8, -1)).all()
    wide = columns["link_wide"]
    assert wide[inside].min() == wide.max() == 1
    assert wide[~inside].max() < 0.6
