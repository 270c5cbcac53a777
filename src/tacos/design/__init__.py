"""Which network: bandwidths, sizes and kinds of its dimensions, and which links to upgrade first.

:func:`optimize` spends a budget of bandwidth or dollars over the dimensions of a network, :func:`shapes` also searches the
dimensions, and :func:`upgrade` says which links of any network to make faster.

>>> from tacos.design import Call, Compute, Job, optimize
>>> step = Job((Compute(20e-3), Call("all-reduce", 10**9)))
>>> best = optimize("ring:4*fc:8*switch:32", [step], budget="500GB/s")
>>> [round(x / 1e9, 1) for x in best.bandwidths_Bps]
[375.4, 109.5, 15.2]
"""

from __future__ import annotations

from tacos.design.bandwidths import Design, Sensitivity, optimize
from tacos.design.dimensions import PRICES, Dimension, Price, dimensions, prices
from tacos.design.jobs import Call, Compute, Group, Job, Ranks, from_workload, load_job
from tacos.design.libra import libra
from tacos.design.shapes import Front, Shape, build, shapes
from tacos.design.upgrade import LinkKind, Upgrade, upgrade

__all__ = [
    "PRICES",
    "Call",
    "Compute",
    "Design",
    "Dimension",
    "Front",
    "Group",
    "Job",
    "LinkKind",
    "Price",
    "Ranks",
    "Sensitivity",
    "Shape",
    "Upgrade",
    "build",
    "dimensions",
    "from_workload",
    "libra",
    "load_job",
    "optimize",
    "prices",
    "shapes",
    "upgrade",
]
