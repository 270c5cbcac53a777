from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

import tacos

pytestmark = pytest.mark.unsanitized

HOMES: dict[str, str] = vars(tacos)["_homes"]
"""The module of each name that the package imports on first use."""
GATHERING = ("design", "hub", "runtime", "training", "view")
"""Packages that do the same with the names of their modules."""

# The tree in the docstring of tacos.errors documents them.
ERRORS = {tacos.TacosError, *tacos.TacosError.__subclasses__()}


def public_modules():
    names = [
        module.name
        for module in pkgutil.walk_packages(tacos.__path__, "tacos.")
        if not any(part.startswith("_") for part in module.name.split("."))
    ]
    return ["tacos", *names]


@pytest.mark.parametrize("name", public_modules())
def test_what_a_module_exports_can_be_imported(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "mpi4py"):
            raise
        pytest.skip(f"{name} needs {error.name}")
    except RuntimeError as error:
        if "cannot load MPI library" not in str(error):
            raise
        pytest.skip(f"{name} needs an MPI")
    exported = getattr(module, "__all__", [])
    assert len(exported) == len(set(exported))
    assert [item for item in exported if not hasattr(module, item)] == []


def test_the_public_names_are_sorted_and_are_what_dir_shows():
    assert list(tacos.__all__) == sorted(tacos.__all__)
    assert dir(tacos) == list(tacos.__all__)


GROUPS = {"tacos.carriers", "tacos.topologies"}
"""Groups of entry points whose names are not those of modules."""
IN_TEXT = re.compile(r"(?<![}\w])`(tacos(?:\.[A-Za-z_]\w*)+)[`(]")
"""Code in a sentence. Roles, such as {func}, are resolved when the manual is made."""


def test_the_manual_names_what_there_is():
    root = Path(__file__).parent.parent
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("docs/*/*.md")]
    named = {found[1] for page in pages for found in IN_TEXT.finditer(page.read_text())}
    assert len(named) > 50
    unknown = []
    for name in sorted(named - GROUPS):
        try:
            pkgutil.resolve_name(name)
        except (AttributeError, ModuleNotFoundError) as error:
            if getattr(error, "name", "") != "torch":
                unknown.append(name)
    assert unknown == []


def test_every_public_function_and_class_says_what_it_is():
    public = {name: getattr(tacos, name) for name in tacos.__all__}
    silent = [
        name
        for name, item in public.items()
        if callable(item) and item not in ERRORS and not (item.__doc__ or "").strip()
    ]
    assert silent == []


@pytest.mark.parametrize("name", ["tacos", *(f"tacos.{name}" for name in GATHERING)])
def test_names_are_imported_at_run_time_from_where_type_checkers_look_for_them(name):
    package = importlib.import_module(name)
    tree = ast.parse(Path(package.__file__ or "").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {
        name.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacos.")
        for name in node.names
    }
    gathered = vars(package)["_homes"]
    assert declared == gathered
    assert gathered.keys() - set(package.__all__) <= {"DiLoCo", "Optimizer"}  # they need torch


ORDERS = """
import os, sys, types
import tacos

for name in sys.argv[1:]:
    for statement in (
        f"import tacos.{name}",
        f"from tacos.{name} import {name}",
        f"from tacos import {name}",
        f"tacos.{name}",
        "import tacos.cli.reading",
    ):
        child = os.fork()
        if not child:
            exec(statement)
            exec(f"import tacos.{name}; from tacos import {name}")
            function = getattr(sys.modules[f"tacos.{name}"], name)
            right = isinstance(function, types.FunctionType)
            os._exit(not (right and locals()[name] is function is getattr(tacos, name)))
        if os.waitpid(child, 0)[1]:
            sys.exit(f"after {statement!r}, tacos.{name} is not the function")
"""


def test_a_function_keeps_its_name_whichever_submodule_is_imported_first():
    same = [name for name, home in HOMES.items() if home == f"tacos.{name}"]
    assert same == ["bound", "reorder", "simulate", "verify"]
    subprocess.run([sys.executable, "-c", ORDERS, *same], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tacos' has no attribute 'bounds'"):
        attrgetter("bounds")(tacos)
    with pytest.raises(ImportError, match="cannot import name 'bounds' from 'tacos'"):
        from tacos import bounds  # type: ignore[attr-defined]  # noqa: F401
