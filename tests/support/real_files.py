"""Files that other tools wrote, from the directory that TACOS_TEST_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real_files(*patterns):
    """Return a test parameter for each file that matches a pattern; without such files one that is skipped.

    >>> [parameter.id for parameter in real_files("no such directory/*")]
    ['TACOS_TEST_DATA']
    """
    folder = Path(os.environ.get("TACOS_TEST_DATA", "missing"))
    found = sorted(path for pattern in patterns for path in folder.glob(pattern))
    reason = f"TACOS_TEST_DATA names no directory with {', '.join(patterns)}"
    missing = pytest.param(None, id="TACOS_TEST_DATA", marks=pytest.mark.skip(reason=reason))
    return [pytest.param(path, id=path.stem) for path in found] or [missing]
