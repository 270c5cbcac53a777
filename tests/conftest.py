"""Hypothesis profiles: HYPOTHESIS_PROFILE=default, ci (reproducible) or sanitize (few examples)."""

from __future__ import annotations

import os

from hypothesis import settings

# A deadline measures the machine, not the code: a busy one would make tests fail at random.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("sanitize", deadline=None, derandomize=True, max_examples=10)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
