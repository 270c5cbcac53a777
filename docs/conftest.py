"""The examples of the manual are tests; the files they write go to a temporary folder."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _in_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
