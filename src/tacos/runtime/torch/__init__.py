"""The backend ``tacos`` of torch.distributed.

``dist.init_process_group("tacos")`` and ``dist.new_group(backend="tacos")`` make a
:class:`TacosGroup`. If the package is installed, torch finds it automatically; importing this module
registers it too.

Needs torch: ``pip install 'tacos-ccl[torch]'``.
"""

from __future__ import annotations

from tacos.runtime.backend import register
from tacos.runtime.torch.group import Options, TacosGroup
from tacos.runtime.torch.tensors import CollectiveError

__all__ = ["CollectiveError", "Options", "TacosGroup", "register"]

register()
