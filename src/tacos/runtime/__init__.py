"""Running programs for real."""

from __future__ import annotations
