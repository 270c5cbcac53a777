from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import tacos

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


def test_every_public_function_and_class_says_what_it_is():
    public = {name: getattr(tacos, name) for name in tacos.__all__}
    silent = [
        name
        for name, item in public.items()
        if callable(item) and item not in ERRORS and not (item.__doc__ or "").strip()
    ]
    assert silent == []


def test_a_verb_imports_only_what_it_needs():
    code = "import sys; from tacos.cli import main; main(['topo', 'ring:4', '--quiet']); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = {"tacos.cli.training", "tacos.design", "tacos.runtime", "tacos.training", "tacos.view"}
    assert others.isdisjoint(run.stdout.split())


def test_import_leaves_optional_and_slow_packages_alone():
    code = "import sys, tacos; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"cyclopts", "highspy", "importlib.metadata", "matplotlib", "msgspec", "pandas"}
    heavy |= {
        "pyarrow",
        "resvg_py",
        "rich",
        "tacos.cli",
        "tacos.formats",
        "tacos.view",
        "torch",
        "yaml",
    }
    assert heavy.isdisjoint(run.stdout.split())
