"""Networks: the class `Topology`, and functions that build, change, name and describe them.

========  =====================================================================
regular   `ring`, `mesh`, `torus`, `hypercube`, `fully_connected`, `switch`, `product`
clusters  `fat_tree`, `rail`, `dragonfly`, `dragonfly_plus`
machines  `dgx1`, `dgx2`, `ndv2`, `dgx_a100`, `dgx_h100`, `dgx_b200`, `nvl72`, `dgx_spark`, `mi250`, `mi300x`, `mi355x`, `tpu`,
          `trn2`
your own  `from_links`, `from_networkx`, and back: `to_networkx`
changes   `drop_links`, `drop_npus`, `degrade`, `scale`, `renumber`, `subset`, `forwarding_only`
names     `parse` reads ``torus:4x4@50GB/s``, `specs` lists all such names
numbers   `describe`
faults    `healthy`, and `Topology.faults`
========  =====================================================================
"""

from __future__ import annotations

from tacos._core import Topology
from tacos.topology.builders import fully_connected, hypercube, mesh, product, ring, switch, torus
from tacos.topology.clusters import dragonfly, dragonfly_plus, fat_tree, rail
from tacos.topology.edits import (
    degrade,
    drop_links,
    drop_npus,
    forwarding_only,
    renumber,
    scale,
    subset,
)
from tacos.topology.faults import Faults, healthy
from tacos.topology.graphs import from_networkx, to_networkx
from tacos.topology.links import Model, from_links
from tacos.topology.machines import (
    dgx1,
    dgx2,
    dgx_a100,
    dgx_b200,
    dgx_h100,
    dgx_spark,
    mi250,
    mi300x,
    mi355x,
    ndv2,
    nvl72,
    tpu,
    trn2,
)
from tacos.topology.spec import Spec, parse, specs
from tacos.topology.summary import Summary, describe

__all__ = [
    "Faults",
    "Model",
    "Spec",
    "Summary",
    "Topology",
    "degrade",
    "describe",
    "dgx1",
    "dgx2",
    "dgx_a100",
    "dgx_b200",
    "dgx_h100",
    "dgx_spark",
    "dragonfly",
    "dragonfly_plus",
    "drop_links",
    "drop_npus",
    "fat_tree",
    "forwarding_only",
    "from_links",
    "from_networkx",
    "fully_connected",
    "healthy",
    "hypercube",
    "mesh",
    "mi250",
    "mi300x",
    "mi355x",
    "ndv2",
    "nvl72",
    "parse",
    "product",
    "rail",
    "renumber",
    "ring",
    "scale",
    "specs",
    "subset",
    "switch",
    "to_networkx",
    "torus",
    "tpu",
    "trn2",
]
