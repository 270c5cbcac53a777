"""Logs as the tools write them, and the conclusions from them."""

from __future__ import annotations

import json

import pytest

import tacos
from tacos.cli import main
from tacos.cli.judging import _print_judgement
from tacos.errors import FormatError
from tacos.judgement.logs import Log, Measured, read_log
from tests.support.viewer_pages import views

pytestmark = pytest.mark.unsanitized

TABLE = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1888 on   worker-1 device  1 [0x91] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1885 on   worker-0 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1886 on   worker-0 device  1 [0x91] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     5.70    0.00    0.00      0     5.54    0.00    0.00      0
     1048576        262144     float     sum      -1   105.90    9.90   14.85      0   107.10    9.79   14.69      0
    67108864      16777216     float     sum      -1   2684.4   25.00   37.50    N/A   2684.4   25.00   37.50    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 20
"""

OLD_TABLE = """\
#                                                 out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576         65536   float   200.00    5.24    3.93  0e+00   100.00   10.49    7.86  0e+00
"""

INFO = """\
worker-1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [RO]; OOB eth0:10.0.0.1<0>
worker-1:1:1 [0] NCCL INFO Channel 00/02 :    0   1   2   3
worker-1:1:1 [0] NCCL INFO Channel 01/02 :    0   2   1   3
worker-1:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
worker-1:1:1 [0] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
worker-1:1:1 [0] NCCL INFO comm 0x5b0bc60 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 - Init COMPLETE
"""


@pytest.fixture
def log(tmp_path):
    def write(text, name="all_reduce_perf.log"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_table_of_nccl_tests(log):
    found = read_log(log(TABLE))
    assert (found.tool, found.kind, found.ranks) == ("nccl-tests", "all_reduce", 4)
    assert found.rows == (
        Measured(1048576, pytest.approx(105.9e-6)),
        Measured(67108864, pytest.approx(2684.4e-6)),
    )
    assert found.hosts == ("worker-1", "worker-1", "worker-0", "worker-0")
    assert found.bus_factor == pytest.approx(1.5)


def test_an_old_table_without_redop_takes_the_faster_place(log):
    found = read_log(log(OLD_TABLE, "all_gather_perf.txt"))
    assert (found.kind, found.reduces) == ("all_gather", False)
    assert found.rows == (Measured(1048576, pytest.approx(100e-6)),)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "0: "])
def test_prefixes_of_launchers_are_dropped(log, prefix):
    text = "".join(prefix + line + "\n" for line in TABLE.splitlines())
    assert read_log(log(text)).rows == read_log(log(TABLE, "plain_all_reduce_perf")).rows


def test_json_of_nccl_tests(log):
    figure = {"time": 100.0, "alg_bw": 10.0, "bus_bw": 15.0, "nwrong": 0}
    text = json.dumps(
        {
            "version": 1,
            "args": ["./build/all_reduce_perf", "-J", "out.json"],
            "config": {"ngpus": 1, "devices": [{"rank": r, "hostname": "a"} for r in range(4)]},
            "results": [
                {"size": 1000000, "count": 250000, "type": "float", "redop": "sum", "root": "-1",
                 "out_of_place": figure, "in_place": figure | {"time": 90.0}}
            ],
        }
    )  # fmt: skip
    found = read_log(log(text, "out.json"))
    assert (found.tool, found.kind, found.ranks) == ("nccl-tests", "all_reduce", 4)
    assert found.rows == (Measured(1000000, pytest.approx(90e-6)),)


def test_osu_sizes_of_a_gather_are_those_of_one_rank(log):
    text = "\n# OSU MPI Allgather Latency Test v7.5\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n1048576    400.0\n"
    path = log(text, "osu.txt")
    assert read_log(path).rows == (Measured(1048576, pytest.approx(400e-6)),)
    found = tacos.judge(path, "fc:4@1GB/s,1us")
    assert found.collective == "all-gather"
    assert found.rows[0].size_bytes == 4 * 1048576


def test_output_of_tacos_run(log, capsys):
    """The table names neither the collective nor the ranks: busbw / algbw identifies an all-reduce."""
    from tacos.runtime import Row, table
    from tacos.runtime.measure.bench import Figure

    figure = Figure(1e-3, 8e9, 12e9, 0)
    row = Row(8 * 10**6, 2 * 10**6, "float32", "sum", -1, figure, None, figure, "gloo")
    text = "\n".join(table([row]))
    assert tacos.judge(log(text, "run.txt"), "ring:4").collective == "all-reduce"
    rows = read_log(log(json.dumps([row.to_json()]), "run.json")).rows
    assert rows == (Measured(8 * 10**6, 1e-3),)


def test_shares_and_words_by_hand(log):
    """On a ring of 4 with 25 GB/s both ways, 64 MiB takes 1.5 · 64 MiB / 50 GB/s = 2.01 ms; the log has 2.68 ms."""
    found = tacos.judge(log(TABLE), "ring:4@25GB/s,1us")
    last = found.rows[-1]
    assert last.efficiency == pytest.approx(1.5 * 67108864 / 50e9 / 2684.4e-6, rel=0.01)
    assert last.busbw_Bps == pytest.approx(37.5e9, rel=0.001)
    assert last.best_s is not None
    assert last.bound_s <= last.best_s <= 1.1 * last.bound_s
    assert "links" in last.why


def test_rings_and_nics_of_a_log(log):
    found = read_log(log(INFO, "info.log"))
    assert found.rings == ((0, 1, 2, 3), (0, 2, 1, 3))
    assert (found.ranks, found.nics, found.nics_found) == (4, 1, 3)
    judged = tacos.judge(log(TABLE + INFO), "ring:4@25GB/s,1us")
    assert judged.rings is not None
    # By hand: a link carries one hop of ring 0 1 2 3 and two of ring 0 2 1 3, so each ring has 25 / 3 GB/s.
    assert judged.rings.busbw_Bps == pytest.approx(2 * 25e9 / 3)
    assert any(cause.startswith("NCCL used 1 of 3 NICs") for cause in judged.causes)
    assert any("rings can carry" in cause for cause in judged.causes)


def test_rings_from_neighbours_where_the_list_is_cut_short(log):
    lines = [
        f"h:1:1 [0] NCCL INFO Ring 00 : {(r - 1) % 6} -> {r} -> {(r + 1) % 6}" for r in range(6)
    ]
    text = "\n".join(["h:1:1 [0] NCCL INFO Channel 00/01 :    0   1   2", *lines,
                      "h:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 6 cudaDev 0"])  # fmt: skip
    assert read_log(log(text, "info.log")).rings == ((0, 1, 2, 3, 4, 5),)


def test_a_graph_dump(log):
    text = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="20" speedinter="20" typeintra="NVL" typeinter="PIX">
    <channel><net dev="0"/><gpu dev="1b"/><gpu dev="2a"/><gpu dev="1c"/><net dev="0"/></channel>
  </graph>
  <graph id="1" pattern="1"><channel><gpu dev="1b"/></channel></graph>
</graphs>
"""
    found = read_log(log(text, "graph.xml"))
    assert (found.rings, found.local, found.nics) == (((0, 2, 1),), True, 1)


@pytest.mark.slow
def test_one_nic_of_eight_is_recognized_from_the_curve():
    topology = tacos.topology.dgx_h100(2)
    size = 1 << 30
    whole = tacos.nccl.estimate(topology, tacos.collective.all_reduce(topology, size)).time_s
    log = Log("x", "nccl-tests", "all_reduce", (Measured(size, 8 * whole),))
    (cause,) = tacos.judge(log, topology).causes
    assert "as if 1 of 8 NICs carried the data" in cause


@pytest.mark.parametrize("network", ["dgx-h100", "dgx-h100-plain"])
def test_the_best_time_is_that_of_synthesize(network):
    measured = Log("x", "nccl-tests", "all_reduce", (Measured(1 << 20, 0.01),))
    topology = tacos.topology.parse(network)
    found = tacos.synthesize(topology, tacos.collective.all_reduce(topology, 1 << 20))
    (row,) = tacos.judge(measured, network).rows
    assert (row.best_s, row.best) == (found.executed_s, found.engine)


def test_the_model_of_nccl_is_the_faster_of_both_on_a_network_with_faults(monkeypatch, capsys):
    """An NVLink at half speed: NCCL that does not know of it keeps its trees, which beat the NVLS trees of a new search."""
    monkeypatch.setattr("tacos.judgement._best", lambda *_: (None, ""))
    worn = tacos.topology.degrade(tacos.topology.dgx_h100(4), (3, 32), factor=0.5, both=True)
    measured = Log("x", "nccl-tests", "all_reduce", (Measured(4 << 20, 0.01),))
    found = tacos.judge(measured, worn)
    coll = tacos.collective.all_reduce(worn, 4 << 20)
    again, unaware = (tacos.nccl.estimate(worn, coll, aware=aware) for aware in (True, False))
    assert unaware.time_s < again.time_s
    (row,) = found.rows
    assert (row.nccl_s, row.nccl) == (unaware.time_s, "nccl-unaware")
    _print_judgement(found)
    assert "by its model, without knowledge of the network's faults" in capsys.readouterr().out


@pytest.mark.slow
def test_a_wrong_order_of_hosts_is_recognized():
    cluster = tacos.topology.fat_tree(2, 4, uplinks=1, oversubscription=4, bandwidth="10GB/s")
    shuffled = tacos.topology.renumber(cluster, [0, 2, 4, 6, 1, 3, 5, 7])
    log = Log("x", "nccl-tests", "all_reduce", (Measured(1 << 20, 0.01),))
    assert any("tacos reorder" in cause for cause in tacos.judge(log, shuffled).causes)
    assert not any("tacos reorder" in cause for cause in tacos.judge(log, cluster).causes)


def test_the_command_draws_and_prints(log, tmp_path, capsys):
    picture = tmp_path / "judge.svg"
    assert main(["judge", str(log(TABLE + INFO)), "ring:4@25GB/s,1us", "-o", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "of the" in printed
    assert "likely causes of a gap" in printed
    assert picture.read_text().count('class="ring"') == 2 + 2
    html = picture.with_suffix(".html")
    assert main(["judge", str(log(TABLE + INFO)), "ring:4", "-o", str(html), "--quiet"]) == 0
    shown = {one["title"]: one for one in views(html.read_text())}
    assert [ring["npus"] for ring in shown["NCCL's rings"]["rings"]] == [[0, 1, 2, 3], [0, 2, 1, 3]]
    assert shown["suggested rings"]["rings"]
    assert main(["judge", str(log(TABLE)), "ring:4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2


@pytest.mark.parametrize(
    ("text", "network", "sentence"),
    [
        ("hello\n", "ring:4", r"all_reduce_perf.log has no results; expected output of nccl-tests"),
        (TABLE, "ring:8", r"is of 4 ranks, but the network has 8 NPUs"),
        ("# OSU MPI Barrier Latency Test v7.5\n# Avg Latency(us)\n 12.0\n", "ring:4", "is not a collective"),
        ("{\"bus_bw\": ", "ring:4", "not a complete nccl-tests log"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(log, text, network, sentence):
    with pytest.raises((FormatError, ValueError), match=sentence):
        tacos.judge(log(text), network)


def test_a_collective_that_the_log_does_not_name(log):
    path = log(OLD_TABLE, "gather.txt")
    with pytest.raises(
        ValueError, match=r"does not say which collective was measured; set --collective"
    ):
        tacos.judge(path, "ring:4")
    assert tacos.judge(path, "ring:4", collective="all-gather").collective == "all-gather"


def test_slow_buffers_of_medium_size_are_reported():
    slow = Log("a.log", "nccl-tests", "all_reduce", (Measured(1_000_000, 0.001),))
    (cause,) = tacos.judge(slow, "ring:4").causes
    assert cause.startswith("buffers take up to 14.2 times as long as NCCL's model says")
    assert cause.endswith("also measure buffers up to 64 KiB and from 16 MiB on")


@pytest.mark.parametrize("network", ["ring:8", "ring:32"])
def test_busbw_of_another_number_of_ranks(log, network):
    """16 ranks: 2 · 15 / 16. Small numbers have few digits: 1.05 and 2.00 would be 21 ranks."""
    text = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    67108864      16777216     float     sum      -1   1677.7   40.00   75.00      0   1677.7   40.00   75.00      0
        1024           256     float     sum      -1     0.98    1.05    2.00      0     0.98    1.05    2.00      0
"""
    path = log(text)
    sentence = (
        r"log: busbw / algbw is 1\.875, which means 16 ranks, but the network has \d+ NPUs; name"
    )
    with pytest.raises(ValueError, match=sentence):
        tacos.judge(path, network)
    assert tacos.judge(path, "ring:16").ranks == 16


def test_a_log_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"none\.log: No such file or directory$"):
        read_log(tmp_path / "none.log")
