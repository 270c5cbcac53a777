"""Code for NVIDIA GPUs, which needs only their driver.

``driver`` has memory, kernels and launches; ``greedy`` and ``verify`` have the host's part of the kernels in the ``.cu``
file of the same name. Kernels are shipped as PTX, which the driver translates; ``nvrtc`` recompiles them.
"""

from __future__ import annotations

__all__ = ["check_device"]

_DEVICES = ("cpu", "cuda", "auto")


def check_device(device: object) -> None:
    """Raise a ValueError unless `device` is a known device.

    >>> check_device("gpu")
    Traceback (most recent call last):
    ValueError: device must be "cpu", "cuda" or "auto"; got 'gpu'
    """
    if device not in _DEVICES:
        raise ValueError(f'device must be "cpu", "cuda" or "auto"; got {device!r}')
