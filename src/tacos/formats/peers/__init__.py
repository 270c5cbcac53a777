"""Results of other synthesizers, read as schedules so that they can be verified and compared.

Such results define which chunk goes over which link in which order. They load as schedules, timed by this package's
model on the given topology, or else on one made of the links that the file uses.
"""

from __future__ import annotations

from tacos.formats.peers import forestcoll, sccl, teccl

__all__ = ["forestcoll", "sccl", "teccl"]
