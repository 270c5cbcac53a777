"""TACOS: collective communication algorithms that fit the network they run on.

>>> import tacos
>>> topo = tacos.topology.torus(4, 4, bandwidth="50GB/s", latency="500ns")
>>> coll = tacos.collective.all_reduce(topo, size="64MB")
>>> schedule = tacos.synthesize(topo, coll)
>>> tacos.verify(schedule).ok
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _tacos import __version__  # first: it handles Ctrl-C during `python -m tacos`
from tacos import _core
from tacos._core import Collective, Schedule, Topology, Workload
from tacos._support.deferred import Later, gather

if TYPE_CHECKING:
    from tacos import (
        collective,
        design,
        formats,
        hub,
        library,
        nccl,
        runtime,
        topology,
        training,
        view,
        workers,
        workload,
    )
    from tacos.bound import Bound, bound
    from tacos.errors import FormatError, InfeasibleError, SpecError, TacosError, VerificationError
    from tacos.formats import load, save
    from tacos.judgement import judge
    from tacos.program import Program, lift, lower
    from tacos.reorder import Order, reorder
    from tacos.schedule import Routes, retime, routes, summary
    from tacos.search.compare import compare
    from tacos.search.comparison import Candidate, Comparison, Figures, Sweep
    from tacos.search.pareto import Front, Point, pareto
    from tacos.search.refine import refine
    from tacos.search.synthesis import engines, synthesize
    from tacos.search.tune import Range, Tuning, tune
    from tacos.simulate import Fault, Straggler, Trace, simulate
    from tacos.sketch import Sketch
    from tacos.verify import Report, Violation, verify

__all__ = [
    "Bound",
    "Candidate",
    "Collective",
    "Comparison",
    "Fault",
    "Figures",
    "FormatError",
    "Front",
    "InfeasibleError",
    "Order",
    "Point",
    "Program",
    "Range",
    "Report",
    "Routes",
    "Schedule",
    "Sketch",
    "SpecError",
    "Straggler",
    "Sweep",
    "TacosError",
    "Topology",
    "Trace",
    "Tuning",
    "VerificationError",
    "Violation",
    "Workload",
    "__version__",
    "bound",
    "collective",
    "compare",
    "design",
    "engines",
    "formats",
    "hub",
    "judge",
    "library",
    "lift",
    "load",
    "lower",
    "nccl",
    "pareto",
    "refine",
    "reorder",
    "retime",
    "routes",
    "runtime",
    "save",
    "simulate",
    "summary",
    "synthesize",
    "topology",
    "training",
    "tune",
    "verify",
    "view",
    "workers",
    "workload",
]


gather(
    __name__,
    {
        "bound": ("Bound", "bound"),
        "errors": (
            "FormatError",
            "InfeasibleError",
            "SpecError",
            "TacosError",
            "VerificationError",
        ),
        "formats": ("load", "save"),
        "judgement": ("judge",),
        "program": ("Program", "lift", "lower"),
        "reorder": ("Order", "reorder"),
        "schedule": ("Routes", "retime", "routes", "summary"),
        "search.compare": ("compare",),
        "search.comparison": ("Candidate", "Comparison", "Figures", "Sweep"),
        "search.pareto": ("Front", "Point", "pareto"),
        "search.refine": ("refine",),
        "search.synthesis": ("engines", "synthesize"),
        "search.tune": ("Range", "Tuning", "tune"),
        "simulate": ("Fault", "Straggler", "Trace", "simulate"),
        "sketch": ("Sketch",),
        "verify": ("Report", "Violation", "verify"),
    },
)


def _find_npu(network: Topology, npu: Any) -> int:
    from tacos.nodes import Nodes

    return Nodes(network).npu(npu)


# The compiled module imports nothing, so the functions that its methods need from Python are connected here.
_core.connect(
    find_npu=_find_npu,
    find_link=Later("tacos.nodes.link_of"),
    find_network=Later("tacos.formats.network"),
    executed_ps=Later("tacos.execution.executed_ps"),
    to_pandas=Later("tacos.notebook.frame"),
    to_arrow=Later("tacos._support.frames.to_arrow"),
    to_html=Later("tacos.notebook.html"),
    from_json=Later("json.loads"),
    to_json=Later("json.dumps"),
)
