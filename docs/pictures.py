"""The pictures of the manual, drawn by the package itself when the manual is built."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import tacos
from tacos import formats, view
from tacos.formats.flight_record import load

HERE = Path(__file__).parent
TARGET = HERE / "_generated"
GALLERY = {
    "ring": "ring:12",
    "torus": "torus:6x6",
    "torus-3d": "tpu:4x4x4",
    "hypercube": "hypercube:4",
    "dgx-1": "dgx-1",
    "dgx-h100": "dgx-h100:2",
    "rail": "rail:4x4",
    "fat-tree": "fat-tree:2x2x4",
    "dragonfly": "dragonfly:5x4",
    "mi250": "mi250",
    "ndv2": "ndv2:2",
    "mi355x": "mi355x:2",
    "trn2": "trn2:2",
    "dgx-spark": "dgx-spark-ring:4",
    "gb200": "gb200",
}
RINGS = {"rings-h100": "dgx-h100:2", "rings-dgx-1": "dgx-1", "rings-mi300x": "mi300x"}
"""Networks on which NCCL's rings are drawn."""


def draw() -> None:
    """Draw all of them into `TARGET`."""
    TARGET.mkdir(exist_ok=True)
    for name, spec in GALLERY.items():
        view.draw(tacos.topology.parse(spec), TARGET / f"{name}.svg", width=640)
    for name, spec in RINGS.items():
        topology = tacos.topology.parse(spec)
        rings = tacos.nccl.rings(topology)
        picture = view.ring_picture(topology, rings, title=f"NCCL's rings on {spec}")
        view.save(picture, TARGET / f"{name}.svg")
    _cluster()
    _comparison()
    _heat()
    _darken()


def dark_twin(uri: str) -> str | None:
    """The same picture for dark pages, if there is one: of a drawing by its name, of a screen beside it."""
    path = Path(uri)
    if path.suffix == ".svg":
        twin = TARGET / f"{path.stem}-dark.svg"
        return f"/_generated/{twin.name}" if twin.exists() else None
    twin = HERE / "_static" / f"{path.stem}-dark.png"
    return f"/_static/{twin.name}" if path.suffix == ".png" and twin.exists() else None


def _darken() -> None:
    """Dark twins of all drawings."""
    drawn = [path for path in TARGET.glob("*.svg") if not path.stem.endswith("-dark")]
    for path in [*drawn, *(HERE / "_static").rglob("*.svg")]:
        dark = view.darkened(path.read_text(encoding="utf-8"))
        (TARGET / f"{path.stem}-dark.svg").write_text(dark, encoding="utf-8")


def overview() -> None:
    """The picture of the README and of the first page; it is kept, since the README is read unbuilt."""
    topology = tacos.topology.dgx_a100(2)
    sizes = tacos.units.size_range("16KB:1GB:4")
    collectives = [tacos.collective.all_reduce(topology, size) for size in sizes]
    known = ("nccl", "hierarchical", "halving-doubling", "ring")
    sweep = tacos.compare(topology, collectives, engines=("auto", *known), time_limit=None)

    def busbw(name: str) -> list[float]:
        return [
            next(c.figures.busbw_Bps for c in one.solved if c.engine == name and c.figures)
            for one in sweep.comparisons
        ]

    factor = collectives[0].bus_factor
    limit = [
        size / one.bound_s * factor for size, one in zip(sizes, sweep.comparisons, strict=True)
    ]
    curves = [view.Series("synthesized", busbw("auto"), sizes, "strong")]
    curves += [view.Series(name, busbw(name), sizes) for name in known]
    curves.append(view.Series("bound", limit, sizes, "ceiling"))
    size, speed = view.Axis("size", "size", log=True), view.Axis("bus bandwidth", "bandwidth")
    chart = view.lines(
        curves, size, speed, title="All-reduce between two DGX A100 boxes", width=720
    )
    view.save(chart, HERE / "_static" / "overview.svg")


def _cluster() -> None:
    """The network of the tutorial, from the page itself."""
    text = (HERE / "tutorial.md").read_text(encoding="utf-8")
    file = TARGET / "cluster.yaml"
    file.write_text(text.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    view.draw(formats.network(str(file)), TARGET / "tutorial-cluster.svg", width=640)


def _comparison() -> None:
    """Bandwidth over size on two boxes, under the bound."""
    topology = tacos.topology.dgx_h100(2)
    sizes = tacos.units.size_range("16KB:1GB:8")
    collectives = [tacos.collective.all_reduce(topology, size) for size in sizes]
    engines = ["forest", "nccl", "hierarchical", "ring", "direct"]
    sweep = tacos.compare(topology, collectives, engines=engines)
    view.save(view.picture(sweep, "dgx-h100:2"), TARGET / "comparison.svg")


def _heat() -> None:
    """How busy the links of a mesh are: a ring beside what greedy makes."""
    topology = tacos.topology.mesh(4, 4)
    collective = tacos.collective.all_reduce(topology, "16MB", chunks=4)
    for engine in ("ring", "greedy"):
        trace = tacos.simulate(tacos.synthesize(topology, collective, engine=engine))
        view.save(view.heat_picture(trace), TARGET / f"heat-{engine}.svg")


_JOB = """
import os, signal, time
import numpy as np
import tacos

network = tacos.topology.ring(4)
sums = tacos.synthesize(network, tacos.collective.all_reduce(network, "8MB"), engine="ring")
parts = tacos.synthesize(network, tacos.collective.all_gather(network, "2MB"), engine="ring")
with tacos.runtime.connect(timeout=8) as comm:
    reduce, gather = comm.prepare(sums), comm.prepare(parts)
    for step in range(12):
        time.sleep(0.3 + 0.1 * (comm.rank == 2))
        if comm.rank == 2 and step == 9:
            time.sleep(9)
            os.kill(os.getpid(), signal.SIGUSR2)
            os._exit(1)
        reduce.run(np.ones(2_000_000, np.float32))
        gather.run(np.ones(125_000, np.float32))
"""
"""A job of four ranks in which rank 2 stops before its tenth all-reduce."""


def _flight_records() -> list[dict[str, Any]]:
    """The flight records of a job that gets stuck."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"TACOS_FLIGHT": folder, "TACOS_LOGS": "-all"}
        with tacos.runtime.launch([sys.executable, "-c", _JOB], 4, env=env, output="none") as job:
            job.wait(timeout=120)
        return [load(path) for path in sorted(Path(folder).glob("*.json"))]


def screens() -> None:
    """Pictures of the viewer, light and dark; they are kept, since they need a browser (make browser)."""
    from playwright.sync_api import sync_playwright

    mesh = tacos.topology.mesh(5, 5)
    gather = tacos.synthesize(
        mesh, tacos.collective.all_gather(mesh, "25MB", chunks=1), engine="greedy"
    )
    cut = tacos.Fault(link=(7, 8), begin="60us", end="150us")
    boxes = tacos.topology.dgx_h100(2, nvls=False)
    sums = tacos.collective.all_reduce(boxes, "64MB")
    both = [tacos.synthesize(boxes, sums, engine=name) for name in ("forest", "nccl")]
    step = tacos.training.step(
        tacos.training.model("llama3-8b"),
        tacos.training.Parallelism(tp=4, pp=2, zero=1, batch=8, sequence_parallel=True),
        tacos.topology.dgx_h100(1, nvls=False),
    )
    pages = {
        "viewer": (
            view.page(gather, names=["ag.tacos"]),
            "viewer.select({kind: 'npu', id: 8}); viewer.goto(0.4 * viewer.whole)",
        ),
        "viewer-two": (
            view.page(*both, names=["forest.tacos", "nccl.tacos"]),
            "viewer.goto(0.45 * viewer.whole)",
        ),
        "viewer-fault": (
            view.page(gather, names=["ag.tacos"], traces=[tacos.simulate(gather, faults=[cut])]),
            "viewer.goto(0.0001)",
        ),
        "viewer-step": (view.step_page(step), "viewer.zoom(0.3, 0)"),
        "viewer-flight": (
            view.flight_page(_flight_records()),
            "viewer.select(viewer.rows[0].end - 1)",
        ),
    }
    with sync_playwright() as driver:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, (text, script) in pages.items():
            for theme, ending in (("light", ""), ("dark", "-dark")):
                size = {"width": 1280, "height": 560 if name == "viewer-flight" else 760}
                shown = browser.new_page(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
                shown.set_content(text)
                shown.wait_for_function("window.viewer")
                shown.evaluate(f"() => {{ {script}; }}")
                shown.wait_for_timeout(300)
                shown.screenshot(path=HERE / "_static" / f"{name}{ending}.png")
                shown.close()
        browser.close()


if __name__ == "__main__":
    overview()
    screens()
