"""The pictures of the manual, drawn by the package itself when the manual is built."""

from __future__ import annotations

from pathlib import Path

import tacos
from tacos import formats, view

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
}


def draw() -> None:
    """Draw all of them into `TARGET`."""
    TARGET.mkdir(exist_ok=True)
    for name, spec in GALLERY.items():
        view.draw(tacos.topology.parse(spec), TARGET / f"{name}.svg", width=640)
    _cluster()
    _comparison()
    _heat()


def overview() -> None:
    """The picture of the README and of the first page; it is kept, since the README is read unbuilt."""
    topology = tacos.topology.dgx_a100(2)
    sizes = tacos.units.size_range("16KB:1GB:4")
    collectives = [tacos.collective.all_reduce(topology, size) for size in sizes]
    ours, known = (
        ("forest", "greedy"),
        ("nccl", "hierarchical", "halving-doubling", "ring"),
    )
    sweep = tacos.compare(topology, collectives, engines=(*ours, *known))

    def busbw(names: tuple[str, ...]) -> list[float]:
        return [
            max(c.figures.busbw_Bps for c in one.solved if c.engine in names and c.figures)
            for one in sweep.comparisons
        ]

    factor = collectives[0].bus_factor
    limit = [
        size / one.bound_s * factor for size, one in zip(sizes, sweep.comparisons, strict=True)
    ]
    curves = [view.Series("synthesized", busbw(ours), sizes, "strong")]
    curves += [view.Series(name, busbw((name,)), sizes) for name in known]
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


if __name__ == "__main__":
    overview()
