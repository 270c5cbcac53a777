"""Packages of others add formats, topologies, carriers and engines; those that are broken are left out with a warning."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tacos._support import plugins
from tacos._support.plugins import Table
from tacos.errors import PluginWarning
from tacos.formats import FORMATS, Format
from tacos.synth import ENGINES
from tacos.topology.spec import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unsanitized

EXAMPLE = Path(__file__).parent.parent / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that pip has installed the example into."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(EXAMPLE, folder / "source")
    offline = ["--no-build-isolation", "--no-index", "--no-deps", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", folder / "site"]
    subprocess.run([*command, source], check=True, capture_output=True)
    return folder / "site"


COMMANDS = """\
import contextlib, io, json, sys
from tacos.cli import main
from tacos.runtime.carriers import chosen

def tacos(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return [code, out.getvalue(), err.getvalue()]

said = [tacos(*words) for words in json.load(sys.stdin)]
said.append(chosen(environ={"TACOS_CARRIER": "spool"}).name)
print(json.dumps(said))
"""


@pytest.fixture
def python(installed: Path, tmp_path: Path) -> Callable[..., str]:
    """Run a Python beside the example, and return what it prints."""

    def run(*arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(installed)},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stderr
        return done.stdout

    return run


def test_commands_know_the_records_of_a_plugin(python, tmp_path):
    (tmp_path / "bad.adj").write_text("links 1GB/s 1us\n0: 1\n1 0\n")
    (tmp_path / "net.txt").write_text(
        "links 25GB/s 1us\n0: 1\n1: 0\n"
    )  # others have this ending, too
    (tmp_path / "net.unknown").write_text("?")
    right = [
        ["topo"],
        ["topo", "circulant:8x1x3@25GB/s,1us", "-o", "net.adj", "--json"],
        ["topo", "net.txt", "--json"],
        ["convert", "net.adj", "net.yaml"],
        ["convert", "net.yaml", "again.adj"],
        ["synth", "circulant:3x1", "all-reduce", "64KB", "--chunks", "1", "-o", "ar.tacos"],
    ]
    wrong = {
        "did you mean circulant:8x1x3": ["topo", "circulent:8x1x3"],
        "strides must differ": ["topo", "circulant:8x1x4"],
        "tacos: bad.adj: line 3 is '1 0'; ": ["topo", "bad.adj"],
        ".adj": ["topo", "net.unknown"],
        "expected one of tcp, mpi, nccl, spool": ["run", "ar.tacos", "--carrier", "spol"],
    }
    *said, carrier = json.loads(python("-c", COMMANDS, given=json.dumps([*right, *wrong.values()])))
    assert [(code, error) for code, _, error in said[: len(right)]] == [(0, "")] * len(right)
    listed, made, read = (out for _, out, _ in said[:3])
    assert "circulant:NxSTRIDExSTRIDE" in listed
    assert (json.loads(made)["npus"], json.loads(made)["links"]) == (8, 32)
    assert json.loads(read)["links"] == 2
    assert (
        (tmp_path / "net.adj").read_text().startswith("links 25000000000B/s 1000ns\n0: 1 7 3 5\n")
    )
    assert (tmp_path / "again.adj").read_text() == (tmp_path / "net.adj").read_text()
    for (code, _, error), sentence in zip(said[len(right) :], wrong, strict=True):
        assert code == 2
        assert sentence in error
    assert carrier == "spool"


def test_ranks_run_on_the_carrier_of_a_plugin(python, tmp_path, monkeypatch):
    spool = tmp_path / "spool"
    spool.mkdir()
    os.utime(spool, (0, 0))
    monkeypatch.setenv("TMPDIR", str(spool))
    tacos = ("-m", "tacos")
    python(
        *tacos, "synth", "circulant:3x1", "all-reduce", "64KB", "--chunks", "1", "-o", "ar.tacos"
    )
    run = ("run", "ar.tacos", "--size", "64KB", "--iters", "2", "--carrier", "spool")
    assert "Out of bounds values : 0 OK" in python(*tacos, *run)
    assert spool.stat().st_mtime > 0  # there was a directory in it
    assert list(spool.glob("tacos-spool-*")) == []


def test_searches_ask_the_engine_of_a_plugin(python):
    """On a chain without latency, many chunks make the pipeline as fast as a link; around a switch it says that there is no path."""
    chain = ["mesh:8@1GB/s,1us", "broadcast", "8MB", "--json"]
    right = [
        ["synth", *chain, "--engine", "pipeline"],
        ["synth", *chain],
        ["compare", *chain, "--engines", "pipeline,auto"],
        ["synth", "ring:4", "all-reduce", "1MB", "--json"],
    ]
    wrong = ["synth", "switch:4", "broadcast", "1MB", "--engine", "pipeline"]
    *said, _ = json.loads(python("-c", COMMANDS, given=json.dumps([*right, wrong])))
    assert [(code, error) for code, _, error in said[:4]] == [(0, "")] * 4
    named, auto, rows, _ = (json.loads(out) for _, out, _ in said[:4])
    assert named["engine"] == "pipeline"
    assert named["efficiency"] > 0.95
    assert auto["executed_s"] <= named["executed_s"]
    assert {row["engine"] for row in rows} == {"pipeline", "auto"}
    code, _, error = said[4]
    assert code != 0
    assert "no path of single links from NPU 0 passes all NPUs once" in error


def declared(folder: Path, package: str, entry_points: str, code: str = "") -> None:
    """Lay down a package as pip installs it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / f"{package}.py").write_text(code)


BROKEN = {
    "raises": ("raise ValueError('a\\n b')", "importing raises:value raises ValueError: a b"),
    "ends": ("import sys; sys.exit()", "importing ends:value raises SystemExit"),
    "lacks": (
        "import no_such_package",
        "importing lacks:value raises ModuleNotFoundError: No module named 'no_such_package'",
    ),
    "other": ("value = '1'", "other:value is a str; it must be a int"),
    "small": ("value = -1", "it is negative"),
    "one": ("value = 2", "its name is taken by tacos"),
}


def test_broken_plugins_are_left_out_with_a_warning(tmp_path, monkeypatch):
    for package, (code, _) in BROKEN.items():
        declared(tmp_path, package, f"[test.numbers]\n{package} = {package}:value\n", code)
    declared(tmp_path, "fine", "[test.numbers]\ntwo = fine:value\n", "value = 2")
    declared(tmp_path, "late", "[test.numbers]\ntwo = late:value\n", "value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    table = Table("test.numbers", int, {"one": 1}, lambda _, value: "it is negative" * (value < 0))
    with pytest.warns(PluginWarning) as caught:
        assert dict(table) == {"one": 1, "two": 2}
    expected = {package: why for package, (_, why) in BROKEN.items()}
    expected["two"] = "its name is taken by fine"
    assert [str(one.message) for one in caught] == [
        f'the plug-in "{name}" of the package {"late" if name == "two" else name} is left out (test.numbers): {expected[name]}'
        for name in sorted(expected)
    ]
    assert "three" not in table  # no second warning


def test_the_command_goes_on_without_a_broken_plugin(tmp_path):
    declared(tmp_path, "broken", "[tacos.topologies]\nmoebius = broken:SPEC\n", "1 / 0")
    done = subprocess.run(
        [sys.executable, "-m", "tacos", "topo", "--json"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ring:N" in json.loads(done.stdout)
    assert done.stderr == (
        'tacos: the plug-in "moebius" of the package broken is left out (tacos.topologies): '
        "importing broken:SPEC raises ZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize(
    "points", [b"[tacos.topologies]\nmoebius\n", b"[tacos.topologies]\nm = \xff\n"]
)
def test_the_command_goes_on_where_entry_points_cannot_be_read(points, tmp_path):
    declared(tmp_path, "broken", "")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_bytes(points)
    declared(tmp_path, "fine", "[tacos.topologies]\nmoebius = fine:SPEC\n")
    done = subprocess.run(
        [sys.executable, "-m", "tacos", "topo", "--json"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ring:N" in json.loads(done.stdout)
    (said,) = done.stderr.splitlines()
    assert said.startswith(
        "tacos: plug-ins are left out (tacos.topologies), as Python cannot read the entry points of all packages: "
    )


def test_records_with_wrong_fields_are_refused():
    def read(path):
        raise NotImplementedError

    obstacle = FORMATS._obstacle
    assert "must be a tuple of extensions" in obstacle(
        "x", Format(FORMATS["yaml"].kind, read, "yaml")
    )
    assert "it must be Topology, Schedule" in obstacle("x", Format(dict, read, (".x",)))
    assert obstacle("x", Format(FORMATS["yaml"].kind, read, (".x",))) == ""
    engine = ENGINES["ring"]
    assert ENGINES._obstacle("mine", engine) == 'its record is named "ring"'
    assert ENGINES._obstacle("auto", engine) == 'an engine cannot be named "auto"'
    assert ENGINES._obstacle("ring", engine) == ""
    ring = NETWORKS["ring"]
    assert "small letters" in NETWORKS._obstacle("My_Ring", ring)
    assert NETWORKS._obstacle("a100", ring) == "its name is another one of dgx-a100"


def test_no_plugin_is_looked_for_where_a_name_is_known(monkeypatch):
    def looked(_group):
        raise AssertionError

    monkeypatch.setattr(plugins, "_declared", looked)
    table = Table("tacos.formats", int, {"one": 1, "two": 2})
    assert table["one"] == 1
    assert "two" in table
    assert next(value for value in table.values() if value) == 1
    with pytest.raises(AssertionError):
        list(table)
