"""The command, called in process: what it prints, what it writes, how it fails."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tacos
from tacos import console, doctor
from tacos.cli import load, main

pytestmark = pytest.mark.unsanitized


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "ring.tacos"
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_gather(topology, "4MB", chunks=1)
    tacos.save(tacos.synthesize(topology, collective, engine="ring"), path)
    return path


def test_synth_writes_a_file_that_verifies(tmp_path, capsys):
    path = tmp_path / "ar.tacos"
    assert main(["synth", "torus:3x3", "all-reduce", "9KB", "-o", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["verified"]
    assert facts["collective"] == "all-reduce"
    assert main(["verify", str(path)]) == 0
    assert "ok: " in capsys.readouterr().out
    assert tacos.load(path).time_s == facts["ideal_s"]


def test_bound_says_the_time_and_why(capsys):
    call = ["bound", "switch:4@1GB/s,0ns", "all-gather", "4MB"]
    assert main(call) == 0
    shown = capsys.readouterr().out
    assert "3 ms" in shown
    assert "3 MB must enter npu 0 over one link of 1 GB/s" in " ".join(shown.split())
    assert main([*call, "--chunks", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["time_s"] == facts["bandwidth_s"] == 3e-3
    assert (facts["exact"], facts["cut"], facts["latency_s"]) == (True, [0], 1e-3)


def test_synth_takes_engine_chunks_group_and_root(tmp_path, capsys):
    path = tmp_path / "broadcast.tacos"
    call = ["synth", "ring:6", "broadcast", "1KB", "--engine", "ring", "--chunks", "2"]
    assert main([*call, "--group", "0,2-4", "--root", "3", "-o", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["engine"], facts["chunks"]) == ("ring", 2)
    expected = tacos.collective.broadcast(6, "1KB", group=[0, 2, 3, 4], root=3, chunks=2)
    assert tacos.load(path).collective == expected


def test_compare_lists_the_fastest_first(capsys):
    assert main(["compare", "ring:4", "all-gather", "1MB", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    times = [row["executed_s"] for row in rows]
    assert times == sorted(times)
    assert rows[0]["engine"] == "auto"
    assert all(row["ok"] for row in rows)
    assert main(["compare", "ring:4", "all-gather", "1MB", "--engines", "ring,direct"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^ (\S+)( \*)? .* % .* [mu]?s +$", shown, re.MULTILINE) == [
        ("ring", " *"),
        ("direct", ""),
    ]


def test_compare_says_which_answers_are_missing(tmp_path, capsys):
    """NCCL fails where it does not know of the dead link; where all answers are right, no column says so."""
    box = tacos.topology.dgx_h100(2, nvls=False)
    file = tmp_path / "broken.yaml"
    tacos.save(tacos.topology.drop_links(box, (1, "switch0"), both=True), file)
    assert main(["compare", str(file), "all-reduce", "1MB", "--engines", "ring,nccl"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"  ok +$", shown, re.MULTILINE)
    assert re.findall(r"^ (\S+)(?: \*)? .* (yes|-) +$", shown, re.MULTILINE) == [
        ("nccl", "yes"),
        ("ring", "yes"),
        ("nccl-unaware", "-"),
    ]
    assert main(["compare", "ring:4", "all-gather", "1MB", "--engines", "ring,direct"]) == 0
    assert not re.search(r"  ok +$", capsys.readouterr().out, re.MULTILINE)


def test_info_shows_the_whole_or_one_npu_or_one_link(saved, capsys):
    assert main(["info", str(saved)]) == 0
    assert "all-gather" in capsys.readouterr().out
    assert main(["info", str(saved), "--npu", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(2 in pair for pair in zip(rows["src"], rows["dst"], strict=True))
    assert len(rows["src"]) == 6
    assert main(["info", str(saved), "--link", "0", "--rows", "1"]) == 0
    assert "1 of 3 transfers" in capsys.readouterr().out


def test_verify_names_what_is_wrong_and_exits_with_1(saved, tmp_path, capsys):
    good = tacos.load(saved)
    broken = tmp_path / "broken.tacos"
    columns = {
        name: getattr(good, name)
        for name in ("lane_route", "lane_op", "lane_reads", "lane_begin", "chunk")
    }
    early = tacos.Schedule(
        collective=good.collective,
        routes=good.routes,
        **columns,
        start=good.start * 0,
        quantum_ps=good.quantum_ps,
    )
    tacos.save(early, broken)
    assert main(["verify", str(broken)]) == 1
    error = capsys.readouterr().err
    assert "causality" in error
    assert "capacity" in error
    assert main(["verify", str(broken), "--json", "--limit", "2"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert len(report["violations"]) == 2


def test_topo_describes_draws_and_writes(tmp_path, capsys):
    picture, file = tmp_path / "t.svg", tmp_path / "t.yaml"
    assert main(["topo", "dgx-h100:2", "--draw", str(picture), "-o", str(file)]) == 0
    said = capsys.readouterr().out
    assert "450 GB/s" in said
    assert "3 (2 multicast and reduce)" in said
    assert picture.read_text().startswith("<svg")
    assert main(["topo", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["npus"] == 16


def test_topo_alone_lists_the_short_names(capsys):
    assert main(["topo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == tacos.topology.specs()
    assert main(["topo", "--draw", "x.svg"]) == 2
    assert "TOPOLOGY is missing" in capsys.readouterr().err


def verbs():
    return [name for name in load() if not name.startswith("-")]


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help_with_an_example_and_json(verb, capsys):
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example: " in shown
    assert f"tacos {verb}" in shown
    assert "\x1b" not in shown
    if verb not in ("completion", "lab"):  # they print a script, or the lab's output
        assert "--json" in shown
        assert "--quiet" in shown


@pytest.fixture
def terminal():
    """Run the command with all streams on a terminal; return its exit code and output."""

    def run(*words, **more):
        ours, its = pty.openpty()
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"} | more
        with subprocess.Popen(
            [sys.executable, "-m", "tacos", *words],
            stdin=its, stdout=its, stderr=its, env=environment,
        ) as job:  # fmt: skip
            os.close(its)
            shown = b""
            with suppress(OSError):  # the terminal is closed
                while read := os.read(ours, 4096):
                    shown += read
            os.close(ours)
        return job.returncode, shown.decode()

    return run


def test_colours_are_for_terminals_that_want_them(terminal):
    coloured = re.compile(r"\x1b\[3[0-7]m")
    assert coloured.search(terminal("--help")[1])
    code, shown = terminal("--help", NO_COLOR="1")
    assert code == 0
    assert "synth" in shown
    assert not coloured.search(shown)


def test_long_work_shows_rate_and_remaining_time(monkeypatch, capsys):
    """A clock that jumps by two seconds makes any work long."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    clock = itertools.count(0, 2)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with console.progress("working", silent=False) as report:
        report(0.25)
        report(0.5)
    shown = capsys.readouterr().err
    assert "working" in shown
    assert "%/s" in shown
    assert "left" in shown


def test_doctor_finds_this_installation_well(capsys):
    assert main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["core"]["state"] == "ok"
    assert {"torch", "mpi", "plot", "solver", "arrow", "lab", "machine"} <= checks.keys()
    assert all(check["advice"] for check in checks.values() if check["state"] != "ok")


def test_doctor_looks_at_what_switch_and_hub_need(monkeypatch):
    """A port in use, no clang, no root: each counts as missing, with advice, and not as broken."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "install clang" in doctor._clang().advice
    assert (doctor._clang().state, doctor._xdp().state) == ("missing", "missing")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(doctor, "_HUB_PORT", taken.getsockname()[1])
        assert doctor._hub().state == "missing"
        assert str(taken.getsockname()[1]) in doctor._hub().found


def test_doctor_says_what_is_missing_and_what_is_broken(monkeypatch, tmp_path, capsys):
    """A package that cannot be imported is broken, one that is not installed is only missing."""
    (tmp_path / "highspy.py").write_text("raise ImportError('libhighs.so: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "torch" else name)
    some = [extra for extra in doctor._EXTRAS if extra[0] == "torch"]
    monkeypatch.setattr(doctor, "_EXTRAS", some)
    assert main(["doctor", "--quiet"]) == 1
    assert capsys.readouterr().out == ""
    assert main(["doctor"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "pip install torch" in shown
    assert "libhighs.so: no such file" in shown
    assert "pip install --force-reinstall highspy" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_subcommands(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "synth" in capsys.readouterr().out


def test_run_and_probe_start_their_ranks_with_the_same_words(saved, tmp_path, monkeypatch):
    """Whatever was asked for reaches the ranks, in whatever spelling."""
    started = []

    class Job:
        def __init__(self, command, ranks):
            started.append((command, ranks))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait(self):
            return 7

    monkeypatch.setattr("tacos.runtime.launch", Job)
    run = ["run", "--format=tacos", str(saved), "--size", "1KB", "--no-check", "--timeout=9"]
    probe = ["probe", "--np=3", "-o", str(tmp_path / "net.yaml"), "--carrier", "tcp", "--quiet"]
    assert [main(run), main(probe)] == [7, 7]
    python = [sys.executable, "-m", "tacos"]
    assert started == [([*python, *run], 4), ([*python, *probe], 3)]


BAD_CALLS = {
    "unknown spec": (["topo", "tours:4x4"], "did you mean torus:4x4?"),
    "unknown command": (["sinth"], "did you mean synth? Commands: synth, compare, tune, "),
    "unknown collective": (
        ["synth", "ring:4", "all-rejuice", "1MB"],
        'unknown collective "all-rejuice"; did you mean "all-reduce"?',
    ),
    "unknown engine": (
        ["synth", "ring:4", "all-reduce", "1MB", "--engine", "rink"],
        'unknown engine "rink"; did you mean "ring"?',
    ),
    "size zero": (["synth", "ring:4", "all-reduce", "0B"], "size '0B' must be positive"),
    "size below zero": (
        ["synth", "ring:4", "all-reduce", "-1MB"],
        "unexpected -1MB; values must not be negative",
    ),
    "an NPU and a link": (
        ["info", "ar.tacos", "--npu", "0", "--link", "1"],
        "--npu and --link exclude each other",
    ),
    "no value": (["synth", "ring:4", "all-reduce", "1MB", "-o"], "-o needs a value"),
    "no unit": (["synth", "ring:4", "all-reduce", "big"], "size 'big' is not understood"),
    "duplicate rank": (
        ["synth", "ring:4", "all-reduce", "1MB", "--group", "0,1,1"],
        "NPU 1 is twice in the group",
    ),
    "rank outside": (
        ["synth", "ring:4", "all-reduce", "1MB", "--group", "0-9"],
        "--group names NPU 9, but the NPUs are 0 to 3",
    ),
    "group of words": (
        ["synth", "ring:4", "all-reduce", "1MB", "--group", "all"],
        "--group names NPU 'all', but the NPUs are 0 to 3",
    ),
    "no chunks": (
        ["synth", "ring:4", "all-reduce", "1MB", "--chunks", "0"],
        'chunks must be "auto" or a whole number from 1 to 2^31 - 1; got 0',
    ),
    "root without use": (
        ["synth", "ring:4", "all-reduce", "1MB", "--root", "1"],
        "all-reduce has no root; omit root (got 1)",
    ),
    "root outside": (
        ["synth", "ring:4", "reduce", "1MB", "--root", "7"],
        "--root is '7', but there is no such NPU",
    ),
    "missing file": (["verify", "nowhere.tacos"], "nowhere.tacos: No such file"),
    "odd ending": (
        ["synth", "ring:4", "all-gather", "1MB", "-o", "x.exe"],
        "x.exe: unknown file extension",
    ),
    "a directory to write": (
        ["synth", "ring:4", "all-gather", "1MB", "-o", "/"],
        "/ is a directory; name a file, such as /ar.tacos",
    ),
    "several engines": (
        ["synth", "ring:4", "all-gather", "1MB", "--engine", "ring,greedy"],
        "synth takes one engine; compare several with tacos compare --engines ring,greedy",
    ),
    "no folder": (
        ["synth", "ring:4", "all-gather", "1MB", "-o", "no/x.tacos"],
        "--output is no/x.tacos, but there is no directory no",
    ),
    "missing argument": (["synth", "ring:4"], "COLLECTIVE is missing"),
    "swing off a torus": (
        ["synth", "fc:5", "all-reduce", "1MB", "--engine", "swing"],
        "swing needs a torus whose sizes are powers of two",
    ),
    "compare, no size": (["compare", "ring:4", "all-gather"], "SIZE is missing"),
    "compare, odd sweep": (
        ["compare", "ring:4", "all-gather", "--sweep", "1KB"],
        "--sweep '1KB' is not understood",
    ),
    "compare, turned sweep": (
        ["compare", "ring:4", "all-gather", "--sweep", "1MB:1KB"],
        "--sweep '1MB:1KB' must go from the lower to the higher size",
    ),
    "compare, no factor": (
        ["compare", "ring:4", "all-gather", "--sweep", "1KB:1MB:1"],
        "--sweep '1KB:1MB:1' has the factor '1'; it must be at least 1.1",
    ),
    "compare, sweep of words": (
        ["compare", "ring:4", "all-gather", "--sweep", "low:high"],
        "--sweep 'low' is not understood",
    ),
    "compare, unknown engine": (
        ["compare", "ring:4", "all-gather", "1MB", "--engines", "rink"],
        'unknown engine "rink"; did you mean "ring"?',
    ),
    "compare, odd picture": (
        ["compare", "ring:4", "all-gather", "1MB", "-o", "x.gif"],
        '--output must end in .svg, .png or .pdf; got "x.gif"',
    ),
    "judge, odd picture": (
        ["judge", "x.log", "ring:4", "-o", "x.gif"],
        '--output must end in .svg, .png, .pdf or .html; got "x.gif"',
    ),
    "topo, odd picture": (
        ["topo", "ring:4", "--draw", "x.gif"],
        '--draw must end in .svg, .png or .pdf; got "x.gif"',
    ),
    "topo, a directory": (
        ["topo", "/"],
        "/: is a directory; expected a topology file or a spec",
    ),
    "verify, a directory": (["verify", "/"], "/: is a directory; expected a file"),
    "info, a directory": (
        ["info", "/"],
        "/: a directory without flight records (*.flight.json); expected a file",
    ),
    "design, a directory": (
        ["design", "ring:4", "--job", "/", "--budget", "1GB/s"],
        "/: is a directory; expected a job file (.yaml, .json) or the prefix of Chakra traces",
    ),
    "train, no batch": (
        ["train", "search", "llama3-8b", "dgx-h100-plain:2"],
        "--batch is missing: a search over parallelisms needs it",
    ),
    "unknown workers": (
        ["compare", "ring:4", "all-gather", "1MB", "--on", "threads"],
        "--on must be processes, processes:N, dask://HOST:PORT or mpi; got 'threads'",
    ),
    "reorder, no ranks": (
        ["reorder", "ring:4", "--slots", "0"],
        "--slots must be at least 1; got 0",
    ),
    "probe, no time": (
        ["probe", "--np", "2", "--timeout", "0"],
        "--timeout must be positive; got 0",
    ),
    "probe, a device in a table": (
        ["probe", "device", "-o", "x.csv"],
        "--output is x.csv; a device goes into .yaml, .yml or .json",
    ),
    "compare, no folder": (
        ["compare", "ring:4", "all-gather", "1MB", "-o", "no/x.svg"],
        "--output is no/x.svg, but there is no directory no",
    ),
    "compare, no folder for csv": (
        ["compare", "ring:4", "all-gather", "1MB", "--csv", "no/x"],
        "--csv is no/x, but there is no directory no",
    ),
    "compare, no time": (
        ["compare", "ring:4", "all-gather", "1MB", "--time-limit", "0"],
        "time_limit must be positive; got 0",
    ),
}


@pytest.mark.parametrize(("call", "named"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(call, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(call) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tacos: ")
    assert err.count("\n") == 1
    assert named in err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_call_says_what_is_missing_or_too_much_and_where_to_read(capsys):
    assert main(["synth", "ring:4", "all-reduce"]) == 2
    assert capsys.readouterr().err == "tacos: SIZE is missing. See tacos synth --help.\n"
    assert main(["synth", "ring:4", "all-reduce", "64", "MB"]) == 2
    assert capsys.readouterr().err == "tacos: unexpected argument 'MB'. See tacos synth --help.\n"
    assert main(["help", "topo"]) == 0
    assert "tacos topo" in capsys.readouterr().out


def test_a_truncated_file_is_one_sentence(saved, capsys):
    data = saved.read_bytes()
    saved.write_bytes(data[: len(data) // 2])
    assert main(["info", str(saved)]) == 2
    error = capsys.readouterr().err
    assert saved.name in error
    assert error.count("\n") == 1


@given(words=st.lists(st.text(max_size=12), max_size=5))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_never_raises(words, capsys):
    assert main(["topo", *words]) in (0, 2)
    assert main(["synth", *words]) in (0, 2)
    capsys.readouterr()


def test_one_npu_has_nothing_to_do_and_every_verb_says_so(tmp_path, capsys):
    file = str(tmp_path / "one.tacos")
    assert main(["synth", "ring:1", "all-reduce", "1MB", "-o", file]) == 0
    said = capsys.readouterr().out
    assert re.search(r"algbw +-", said)
    for verb in ("info", "verify", "sim"):
        assert main([verb, file]) == 0
    assert main(["view", file, "-o", str(tmp_path / "one.html")]) == 0


def test_quiet_prints_nothing(capsys):
    assert main(["topo", "ring:4", "--quiet"]) == 0
    assert main(["synth", "ring:4", "all-gather", "1MB", "--quiet"]) == 0
    assert main(["compare", "ring:4", "all-gather", "1MB", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_sim_prints_the_summary_and_a_heat_map(saved, tmp_path, capsys):
    assert main(["sim", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "utilisation mean" in shown
    assert "█" in shown
    cut = ["--fault", "link=0-1,begin=10us,end=30us", "--straggler", "npu=1,late=1us"]
    out = tmp_path / "t.json"
    assert main(["sim", str(saved), *cut, "--jitter", "10ns", "--json", "-o", str(out)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["loss"] > 0.3
    assert json.loads(out.read_text())["traceEvents"]
    assert main(["sim", str(saved), "--topology", "ring:4@25GB/s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] > 0.9
    assert main(["sim", str(saved), "--quiet", "-o", str(tmp_path / "heat.svg")]) == 0
    assert "npu 0 -&gt; npu 1" in (tmp_path / "heat.svg").read_text()


def test_sim_runs_a_program_thread_by_thread(saved, tmp_path, capsys):
    schedule, xml = tacos.load(saved), tmp_path / "a.xml"
    tacos.save(schedule, xml)
    shared = ["--timing", "shared", "--size", "4MB"]
    ring = ["--topology", "ring:4"]
    assert main(["sim", str(xml), *shared, *ring, "--json", "-o", str(tmp_path / "t.csv")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["timing"], facts["time_s"]) == ("shared", schedule.time_s)
    assert (tmp_path / "t.csv").read_text().count("\n") > 4
    assert main(["sim", str(xml), *shared]) == 2
    assert "--topology is missing" in capsys.readouterr().err
    assert main(["sim", str(xml), *shared, *ring, "-o", str(tmp_path / "t.html")]) == 2
    assert "a page shows runs on the schedule's own network only" in capsys.readouterr().err
    assert main(["sim", str(saved), "--timing", "shared", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_s"] == schedule.time_s


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--fault", "link=0-1,begin=2us,end=1us"], "it must end later"),
        (["--fault", "link=0-2"], "there is no link from npu 0 to npu 2"),
        (["--topology", "ring:5"], "topology has 5 NPUs"),
        (["-o", "t.txt"], "t.txt: a trace must have one of the extensions .pftrace"),
        (["-o", "t.txt"], "or .svg, .png, .pdf"),
        (["-o", "nowhere/t.json"], "there is no directory nowhere"),
        (["--fault", "link=0-1"], "can never cross link 0 (npu 0 -> npu 1)"),
    ],
)
def test_sim_refuses_with_one_sentence(saved, capsys, more, message):
    assert main(["sim", str(saved), *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_sim_tells_transfers_from_the_program(tmp_path, capsys):
    """First come, first served, transfers leave the order of the schedule, which threads of the program keep."""
    topology = tacos.topology.dgx1()
    collective = tacos.collective.all_gather(topology, "8MB", chunks=4)
    schedule = tacos.synthesize(topology, collective, engine="forest")
    path = str(tmp_path / "s.tacos")
    tacos.save(schedule, path)
    found = {}
    for verb in ("sim", "info"):
        assert main([verb, path, "--json"]) == 0
        found[verb] = json.loads(capsys.readouterr().out)
    program_s = found["sim"]["executed_first_come_s"]
    assert program_s == found["info"]["executed_first_come_s"]
    assert program_s < 0.9 * found["sim"]["time_s"]
    assert main(["sim", path]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"program first come +61.4 us", shown)
    assert "time is of the transfers, on their own routes; the program takes 61.4 us" in shown


def test_sim_states_its_rule_and_figures_that_agree(tmp_path, capsys):
    """Served first come, first served, this schedule takes longer than its own times say."""
    topology = tacos.topology.dgx1()
    collective = tacos.collective.all_gather(topology, "8MB", chunks=4)
    schedule = tacos.synthesize(topology, collective, engine="forest")
    path = str(tmp_path / "s.tacos")
    tacos.save(schedule, path)
    assert main(["sim", path, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "every link serves first come, first served" in facts["rule"]
    assert facts["time_s"] > facts["ideal_s"] == pytest.approx(schedule.time_s)
    more = facts["time_s"] / facts["ideal_s"] - 1
    assert facts["slower_than_ideal"] == pytest.approx(more)
    assert not {"loss", "clean_time_s"} & facts.keys()  # nothing disturbed the run
    assert main(["sim", path]) == 0
    shown = capsys.readouterr().out
    assert "loss" not in shown
    assert f"slower than ideal         {100 * more:.1f} %" in shown
    assert "--timing order" in shown
    assert main(["sim", path, "--fault", "link=0-1,end=10us", "--json"]) == 0
    hurt = json.loads(capsys.readouterr().out)
    assert hurt["clean_time_s"] == facts["time_s"]
    assert hurt["loss"] == pytest.approx(hurt["time_s"] / hurt["clean_time_s"] - 1)
    for timing, words in (("order", "in the schedule's order"), ("schedule", "starts at the time")):
        assert main(["sim", path, "--timing", timing, "--json"]) == 0
        same = json.loads(capsys.readouterr().out)
        assert words in same["rule"]
        assert same["slower_than_ideal"] == 0
    assert main(["sim", path, "--no-congestion", "--json"]) == 0
    assert "links are never busy" in json.loads(capsys.readouterr().out)["rule"]
    assert main(["sim", path, "--profile", "astra-sim-aware", "--json"]) == 0
    assert "ASTRA-sim's congestion-aware" in json.loads(capsys.readouterr().out)["rule"]
