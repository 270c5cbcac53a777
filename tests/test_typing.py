"""Programs of users are type-checked against the package as a wheel installs it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import tacos
from tacos.synth import ENGINES, engine
from tacos.training import Parallelism
from tacos.training.search import Choices
from tests.test_public_api import public_modules

ROOT = Path(__file__).parent.parent
STAND_INS = {
    "pandas": "class DataFrame: ...",
    "pyarrow": "class Table: ...",
    "networkx": (
        "from typing import Generic, TypeVar\n"
        "Node = TypeVar('Node')\n"
        "class Graph(Generic[Node]): ...\n"
        "class MultiDiGraph(Graph[Node]): ..."
    ),
}
"""Types of packages that have none: without them, a type checker takes their objects for ``Any``."""

USER = """\
import tacos
from tacos import training

network = tacos.topology.torus(4, 4, bandwidth="50GB/s")
wanted = tacos.collective.all_reduce(network, "64MB")
schedule: tacos.Schedule = tacos.synthesize(network, wanted, engine="ring", order="rank")
seconds: float = tacos.load("ar.tacos", kind=tacos.Schedule).time_s
held = tacos.load("ar.tacos")
if isinstance(held, tacos.Topology):
    npus: int = held.npus
report: bool = tacos.verify(schedule).ok
model = training.Transformer(layers=2, hidden=64, heads=4, ffn=256, vocabulary=100, sequence=32)
fastest: training.Step = training.search(model, network, batch=16, tp=(1, 2), recompute="none")[0]

tacos.synthesize(network, wanted, ordr="rank")  # type: ignore[call-arg]
tacos.synthesize(network, wanted, trials="many")  # type: ignore[arg-type]
schedule.chunk.rows  # type: ignore[attr-defined]
tacos.load("ar.tacos", kind=tacos.Schedule).npus  # type: ignore[attr-defined]
training.Transformer(layers="two", hidden=4, heads=1, ffn=1, vocabulary=1, sequence=1)  # type: ignore[arg-type]
training.search(model, network, batch=16, tq=1)  # type: ignore[call-arg]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel's files but the compiled module, and the packages of this one."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("installed")
    build = "import sys, scikit_build_core.build as b; b.build_wheel(sys.argv[1], {'wheel.cmake': 'false', 'wheel.py-api': 'py3'})"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=ROOT, check=True, capture_output=True
    )
    venv.create(folder / "env", symlinks=True, with_pip=False)
    packages = next((folder / "env").glob("lib/python*/site-packages"))
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "shared.pth").write_text("\n".join(shared))
    return folder / "env" / "bin" / "python"


@dataclasses.dataclass(frozen=True)
class Said:
    """What mypy says about the two programs below."""

    user: list[str]
    revealed: dict[str, str]
    errors: list[str]
    asked: int


@pytest.fixture(scope="module")
def said(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Said:
    folder = tmp_path_factory.mktemp("checked")
    for name, text in STAND_INS.items():
        (folder / "stand-ins" / name).mkdir(parents=True)
        (folder / "stand-ins" / name / "__init__.pyi").write_text(text)
    program, names = revealing()
    (folder / "revealing.py").write_text(program)
    (folder / "user.py").write_text(USER)
    (folder / "mypy.ini").write_text("[mypy]\nmypy_path = stand-ins\nstrict = true\n")
    command = ["-m", "mypy", "--python-executable", str(installed), "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, *command, "user.py", "revealing.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    notes = [
        re.fullmatch(r'revealing\.py:([0-9]+): note: Revealed type is "(.*)"', line)
        for line in lines
    ]
    return Said(
        [line for line in lines if line.startswith("user.py")],
        {names[int(note[1])]: note[2] for note in notes if note},
        [line for line, note in zip(lines, notes, strict=True) if not note],
        len(names),
    )


@pytest.mark.slow
def test_a_users_program_is_type_checked(said):
    assert said.user == []


@pytest.mark.slow
def test_no_public_function_takes_or_returns_any(said):
    assert said.errors == []
    assert len(said.revealed) == said.asked > 1000
    unknown = [
        f"{name}: {kind}" for name, kind in said.revealed.items() if "Any" in outermost(kind)
    ]
    assert not unknown, "\n".join(unknown)


def revealing() -> tuple[str, dict[int, str]]:
    """Return a program that reveals the types of everything public, and the name that each line reveals."""
    lines = ["from __future__ import annotations"]
    names: dict[int, str] = {}

    def add(line: str, name: str = "") -> None:
        lines.append(line)
        if name:
            names[len(lines)] = name

    seen = set()
    for module_name in public_modules():
        if module_name.startswith("tacos.cli"):  # the command's own functions
            continue
        try:
            module = importlib.import_module(module_name)
        except (ModuleNotFoundError, RuntimeError):  # test_public_api says which packages may lack
            continue
        for name in getattr(module, "__all__", []):
            item = getattr(module, name)
            public = inspect.isclass(item) or inspect.isroutine(item)
            if not public or not str(item.__module__).startswith("tacos") or id(item) in seen:
                continue
            seen.add(id(item))
            here = f"item{len(lines)}"
            add(f"from {module_name} import {name} as {here}")
            add(f"reveal_type({here})", f"{module_name}.{name}")
            if members := members_of(item) if inspect.isclass(item) else []:
                add(f"def in_{here}(one: {here}) -> None:")
                for member in members:
                    add(f"    reveal_type(one.{member})", f"{module_name}.{name}.{member}")
    return "\n".join(lines) + "\n", names


def members_of(kind: type) -> list[str]:
    """Return the public methods, properties and fields that a class gets from this package."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("tacos")]
    found = {name for base in ours for name in vars(base) if not name.startswith("_")}
    if dataclasses.is_dataclass(kind):
        found |= {field.name for field in dataclasses.fields(kind)}
    return sorted(found)


def outermost(kind: str) -> set[str]:
    """Return a type's alternatives or, for a function, those of its parameters and its result.

    >>> sorted(outermost("def (x: dict[str, Any], *, f: def (Any) -> int | None =, **more: Any) -> list[Any] | None"))
    ['*', 'Any', 'None', 'def', 'dict', 'list']
    """
    found = re.match(r"def (?:\[.*?\] )?(?=\()", kind)
    if not found:
        return alternatives(kind)
    depth, begin, parts = 0, found.end() + 1, []
    for place in range(found.end(), len(kind)):
        depth += (kind[place] in "([") - (kind[place] in ")]")
        if (kind[place] == "," and depth == 1) or depth == 0:
            parts.append(kind[begin:place].partition(": ")[2] or kind[begin:place])
            begin = place + 1
        if depth == 0:
            parts.append(kind[begin:].removeprefix(" -> "))
            break
    return {one for part in parts for one in alternatives(part)}


def alternatives(kind: str) -> set[str]:
    """Return the names of the types that a union joins, without what is in their brackets."""
    while (plain := re.sub(r"\[[^\[\]]*\]|\([^()]*\)", "", kind)) != kind:
        kind = plain
    return {part.partition(" ->")[0].removesuffix("=").strip() for part in kind.split("|")}


def test_the_options_of_engines_are_typed():
    named = {name for record in ENGINES.values() for name in record.options}
    own = inspect.signature(tacos.synthesize).parameters
    assert engine.Options.__annotations__.keys() == named - own.keys()


def test_the_choices_of_a_search_are_the_fields_of_a_parallelism():
    fields = [field.name for field in dataclasses.fields(Parallelism) if field.name != "batch"]
    assert list(Choices.__annotations__) == fields
