"""Set how many examples Hypothesis draws, and provide a real browser.

HYPOTHESIS_PROFILE is default, ci (reproducible) or sanitize. A quick run draws a quarter of the examples that a
test asks for, `make slow` all of them (TACOS_EXAMPLES=1), and the sanitizers' run a tenth.
Tests that count what becomes of their examples always draw all, and the same ones (derandomize).

Tests that need the browser are skipped if it is missing.
"""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import settings

# A deadline measures the machine, not the code: a busy one would make tests fail at random.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("sanitize", deadline=None, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SHARE = float(os.environ.get("TACOS_EXAMPLES", "0.25"))
LEAST = 8
"""A test draws at least this many examples, unless it asks for fewer."""


def fewer_examples(test, share):
    """Let a Hypothesis test draw only a share of its examples, also if their number is the default."""
    own = test._hypothesis_internal_use_settings
    count = min(own.max_examples, max(LEAST, round(own.max_examples * share)))
    test._hypothesis_internal_use_settings = settings(own, max_examples=count)


@pytest.hookimpl(trylast=True)  # after Hypothesis, which marks its tests in the same hook
def pytest_collection_modifyitems(items):
    tests = {id(item.obj): item.obj for item in items if item.get_closest_marker("hypothesis")}
    for test in tests.values():
        fewer_examples(test, SHARE)


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
