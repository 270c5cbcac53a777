from __future__ import annotations

import difflib
import sys
from pathlib import Path

import pytest
from nanobind.stubgen import StubGen

from tacos import _core

pytestmark = pytest.mark.unsanitized

STUB = Path(__file__).parents[1] / "src" / "tacos" / "_core.pyi"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="stubs differ between Python versions")
def test_committed_stub_is_that_of_the_compiled_module():
    generator = StubGen(module=_core)
    generator.put(_core)
    diff = difflib.unified_diff(
        STUB.read_text(encoding="utf-8").splitlines(),
        generator.get().splitlines(),
        "src/tacos/_core.pyi",
        "the compiled module",
        lineterm="",
    )
    text = "\n".join(diff)
    assert not text, f"run `make stub` and look at the diff:\n{text}"
