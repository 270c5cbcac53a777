"""Network design: bandwidths, sizes and kinds of dimensions, and which links to upgrade first.

:func:`~tacos.design.bandwidths.optimize` spends a budget of bandwidth or dollars over the dimensions of a network, :func:`~tacos.design.shapes.shapes` also searches the
dimensions, and :func:`~tacos.design.upgrade.upgrade` finds the links of any network to make faster.

>>> from tacos.design import Call, Compute, TrainingJob, optimize
>>> step = TrainingJob((Compute(20e-3), Call("all-reduce", 10**9)))
>>> best = optimize("ring:4*fc:8*switch:32", [step], budget="500GB/s")
>>> [round(x / 1e9, 1) for x in best.bandwidths_Bps]
[375.4, 109.5, 15.2]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos._support.deferred import gather

if TYPE_CHECKING:
    from tacos.design.bandwidths import Design, Sensitivity, optimize
    from tacos.design.dimensions import PRICES, Dimension, Price, build, dimensions, prices
    from tacos.design.jobs import Call, Compute, Group, Ranks, TrainingJob
    from tacos.design.libra import libra
    from tacos.design.models import ModelJob
    from tacos.design.shapes import NetworkFront, Shape, shapes
    from tacos.design.upgrade import LinkKind, Upgrade, upgrade
    from tacos.design.workloads import from_workload, load_job

__all__ = [
    "PRICES",
    "Call",
    "Compute",
    "Design",
    "Dimension",
    "Group",
    "LinkKind",
    "ModelJob",
    "NetworkFront",
    "Price",
    "Ranks",
    "Sensitivity",
    "Shape",
    "TrainingJob",
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

gather(
    __name__,
    {
        "bandwidths": ("Design", "Sensitivity", "optimize"),
        "dimensions": ("PRICES", "Dimension", "Price", "build", "dimensions", "prices"),
        "jobs": ("Call", "Compute", "Group", "Ranks", "TrainingJob"),
        "libra": ("libra",),
        "models": ("ModelJob",),
        "shapes": ("NetworkFront", "Shape", "shapes"),
        "upgrade": ("LinkKind", "Upgrade", "upgrade"),
        "workloads": ("from_workload", "load_job"),
    },
)
