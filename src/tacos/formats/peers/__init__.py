"""Results of other synthesizers, read as schedules so that they can be verified and compared.

They say which chunk goes over which link in which order, so they load as schedules, timed by this
package's model on the topology that is given, or else on one of the links that the file uses.
"""

from __future__ import annotations

from tacos.formats.peers import forestcoll, sccl, teccl

__all__ = ["forestcoll", "sccl", "teccl"]
