"""Hypothesis profiles: HYPOTHESIS_PROFILE=default, ci (reproducible) or sanitize (few examples).

And a real browser for the tests of what people see in one; they are skipped where there is none.
"""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import settings

# A deadline measures the machine, not the code: a busy one would make tests fail at random.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("sanitize", deadline=None, derandomize=True, max_examples=10)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: make browser")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium: make browser")
    with api.sync_playwright() as driver:
        # As root, which containers run as, Chromium starts only without its sandbox.
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
