"""A plug-in of tacos: the format of adjacency lists, circulant networks, a carrier through files, and pipelined broadcasts.

Importing a record should be quick, since tacos imports the records of all plug-ins when it lists them. So the record of the
carrier is here, and its code in a module that is imported when the carrier is opened.
"""

from __future__ import annotations

from tacos.runtime.carriers import CarrierKind

SPOOL = CarrierKind("spool", "tacos_example.spool", label="files in a shared directory")
