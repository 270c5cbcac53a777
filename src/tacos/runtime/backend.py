"""Register the backend ``tacos`` with torch.distributed.

torch calls :func:`register` at the end of its own import, through the entry point ``torch.backends``.
So nothing here imports torch, or what needs it, before it is asked to.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register() -> None:
    """Make ``tacos`` known to torch.distributed; a second call does nothing."""
    import torch.distributed as dist

    if dist.is_available() and "TACOS" not in dist.Backend._plugins:
        dist.Backend.register_backend("tacos", _group, extended_api=True, devices=["cpu", "cuda"])


def _group(options: Any, backend_options: object = None) -> Any:
    from tacos.runtime.torch.group import TacosGroup

    return TacosGroup(options, backend_options)
