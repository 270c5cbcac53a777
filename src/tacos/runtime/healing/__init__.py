"""Jobs that heal: report slow links and ranks by name, and route collectives around links that are slow or dead.

Detection is always on. ``TACOS_ADAPT=1``, or ``pg_options=tacos.runtime.torch.Options(adapt=True)`` for one group of
torch, also switches to other algorithms: see :mod:`tacos.runtime.healing.calls`.
"""

from __future__ import annotations

from tacos.runtime.healing.notices import Notice, on_notice

__all__ = ["Notice", "on_notice"]
