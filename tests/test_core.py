"""The compiled module: it imports nothing, and the package changes none of its classes."""

from __future__ import annotations

import copyreg
import pickle
import subprocess
import sys

import pytest

import tacos
from tacos import _core
from tacos._core import CollectivePart, Routes, fields

OWNED = (
    tacos.Topology,
    CollectivePart,
    tacos.Collective,
    Routes,
    tacos.Schedule,
    tacos.Program,
)

# The module is loaded from its file, so that the package around it is not imported.
ALONE = f"""
import importlib.util, json, sys
before = set(sys.modules)
spec = importlib.util.spec_from_file_location("tacos._core", {_core.__file__!r})
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
classes = {[kind.__name__ for kind in OWNED]!r}
print(json.dumps({{
    "modules": sorted(set(sys.modules) - before),
    "members": {{name: sorted({{*vars(getattr(core, name))}} - {{"__annotations__"}}) for name in classes}},
}}))
try:
    core.to_html(1)
except RuntimeError as error:
    print(error)
"""


def test_the_core_imports_nothing_and_the_package_patches_nothing():
    import json

    ran = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    first, second = ran.stdout.splitlines()
    alone = json.loads(first)
    # nanobind registers its own cleanup with atexit.
    assert set(alone["modules"]) <= {"tacos._core", "atexit"}
    # Python adds __annotations__ to a class when something asks for its annotations.
    assert alone["members"] == {
        kind.__name__: sorted({*vars(kind)} - {"__annotations__"}) for kind in OWNED
    }
    assert not set(OWNED) & set(copyreg.dispatch_table)
    assert second == "import tacos before tacos._core is used"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_pickle_restores_what_the_core_owns(protocol):
    topology = tacos.topology.torus(2, 3)
    collective = tacos.collective.all_gather(topology, "6MB", chunks=1)
    schedule = tacos.synthesize(topology, collective, engine="ring")
    program = tacos.lower(schedule)
    for item in (topology, schedule.collective, schedule, program):
        again = pickle.loads(pickle.dumps(item, protocol))
        assert type(again) is type(item)
        assert again == item
    again = pickle.loads(pickle.dumps(schedule, protocol))
    assert again.provenance == schedule.provenance
    assert fields(again).keys() == fields(schedule).keys()


def test_only_what_the_core_owns_is_taken_apart():
    with pytest.raises(TypeError, match="only what the core owns"):
        fields([])
