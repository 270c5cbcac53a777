"""Register the backend ``tacos`` with torch.distributed.

torch calls :func:`register` at the end of its own import, through the entry point ``torch.backends``.
So this module must not import torch, or modules that need it, before they are used.
"""

from __future__ import annotations

import functools
import os
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

    Connections are made when a message first needs them, and all groups of a process share a listener. So groups
    that send nothing over gloo use no descriptors.
    """
    import torch.distributed as dist

    options: Any = dist.ProcessGroupGloo._Options()
    options._devices = [_gloo_device(os.getpid(), own_address() if read("TACOS_HOST") else "")]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


@functools.cache
def _gloo_device(_process: int, host: str) -> Any:
    import torch.distributed as dist

    kind = dist.ProcessGroupGloo
    return (
        kind.create_device(hostname=host, lazy_init=True)
        if host
        else kind.create_default_device(lazy_init=True)
    )
