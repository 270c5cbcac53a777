"""TACOS: collective communication algorithms that fit the network they run on.

>>> import tacos
>>> topo = tacos.topology.torus(4, 4, bandwidth="50GB/s", latency="500ns")
>>> coll = tacos.collective.all_reduce(topo, size="64MB")
>>> schedule = tacos.synthesize(topo, coll)
>>> tacos.verify(schedule).ok
True
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import _tacos  # noqa: F401, first: it handles Ctrl-C during `python -m tacos`
from tacos import _core, collective, nccl, notebook, topology, workers, workload
from tacos._core import Collective, Schedule, Topology, Workload
from tacos._support import frames
from tacos.bound import Bound, bound
from tacos.errors import FormatError, InfeasibleError, SpecError, TacosError, VerificationError
from tacos.nodes import Nodes, link_of
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

if TYPE_CHECKING:
    from tacos import design, formats, hub, library, runtime, training, view
    from tacos.formats import load, save
    from tacos.judgement import judge

    __version__: str

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


def _network(text: str) -> Topology:
    from tacos import formats

    return formats.network(text)


# The compiled module imports nothing, so the functions that its methods need from Python are connected here.
_core.connect(
    find_npu=lambda network, npu: Nodes(network).npu(npu),
    find_link=link_of,
    find_network=_network,
    to_pandas=notebook.frame,
    to_arrow=frames.to_arrow,
    to_html=notebook.html,
    from_json=json.loads,
    to_json=json.dumps,
)


_MODULES = ("design", "formats", "hub", "library", "runtime", "training", "view")
"""Submodules that are imported when they are first used."""


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import submodules on first use, so that ``import tacos`` is fast."""
    if name in ("load", "save"):
        from tacos import formats

        return getattr(formats, name)
    if name == "judge":
        from tacos.judgement import judge

        return judge
    if name in _MODULES:
        from importlib import import_module

        # Until the submodule is set, `from tacos import training` would call this function again.
        return import_module(f"tacos.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("tacos-ccl")
    raise AttributeError(f"module 'tacos' has no attribute {name!r}")
