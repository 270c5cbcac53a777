"""A run draws the share of random examples that it asks for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import LEAST, SHARE


@given(st.integers())
@settings(max_examples=200)
def test_many(number):
    assert number + 1 > number


@given(st.integers())
@settings(max_examples=LEAST - 1)
def test_few(number):
    assert number + 1 > number


@pytest.mark.parametrize(
    ("test", "count"), [(test_many, max(LEAST, round(200 * SHARE))), (test_few, LEAST - 1)]
)
def test_settings_have_the_share(test, count):
    assert test._hypothesis_internal_use_settings.max_examples == count
