"""Jobs that heal: slow links and ranks are noticed and named, and collectives go around links that are slow or dead.

Noticing is always on. ``TACOS_ADAPT=1``, or ``pg_options=tacos.runtime.torch.Options(adapt=True)`` for one group of
torch, switches to other algorithms as well: see :mod:`tacos.runtime.healing.calls`.
"""

from __future__ import annotations

from tacos.runtime.healing.notices import Notice, on_notice

__all__ = ["Notice", "on_notice"]
