"""Register the backend ``tacos`` with torch.distributed.

torch calls :func:`register` at the end of its own import, through the entry point ``torch.backends``.
So this module must not import torch, or modules that need it, before they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacos._support.variables import read
from tacos.runtime.rendezvous.addresses import own_address

if TYPE_CHECKING:
    from datetime import timedelta

    from torch.distributed import ProcessGroupGloo, Store

__all__ = ["gloo", "register"]


def register() -> None:
    """Register ``tacos`` with torch.distributed; a second call does nothing."""
    import torch.distributed as dist

    if dist.is_available() and "TACOS" not in dist.Backend._plugins:
        dist.Backend.register_backend("tacos", _group, extended_api=True, devices=["cpu", "cuda"])


def _group(options: Any, backend_options: object = None) -> Any:
    from tacos.runtime.torch.group import TacosGroup

    return TacosGroup(options, backend_options)


def gloo(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
    """Return a process group of gloo that listens at ``TACOS_HOST``; needs torch.

    Connections are made when a message first needs them. A device that does so serves one group: gloo numbers the
    connections of a device from 0 and takes these numbers for ranks, and a group ends its device with itself.
    """
    import torch.distributed as dist

    kind = dist.ProcessGroupGloo
    options: Any = kind._Options()
    options._devices = [
        kind.create_device(hostname=own_address(), lazy_init=True)
        if read("TACOS_HOST")
        else kind.create_default_device(lazy_init=True)
    ]
    options._timeout = timeout
    return kind(store, rank, size, options)
