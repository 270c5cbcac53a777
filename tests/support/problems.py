"""Random problems for the fuzzer: a network and a collective, both a function of one number.

Every problem has the Python text that builds it, so that a failure can be pasted into a test.
Networks are boxes, racks, products, grids, clusters, machines and directed graphs, whole or damaged, of 2
to 24 NPUs, some of up to 64. `tiny` problems have 2 to 5 NPUs, for slow engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import tacos
from tacos import collective as co
from tacos import topology as tp

BANDWIDTHS = ["1GB/s", "7GB/s", "12.5GB/s", "25GB/s", "50GB/s", "100GB/s", "450GB/s", 333_333_333]
LATENCIES = [0, "1ns", "350ns", "500ns", "700ns", "1.2us", "10us"]
NAMED = ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"]
MOST_TRANSFERS = 2000  # approximately, for one engine


@dataclass(frozen=True)
class Problem:
    """A problem for an engine.

    Attributes:
        topology, collective: The network and the collective.
        text: Python expressions that build them, with `tp` and `co` for the modules.
    """

    topology: tacos.Topology
    collective: tacos.Collective
    text: str


@dataclass(frozen=True)
class Py:
    """A value, and the Python text that builds it."""

    value: Any
    text: str


def call(module: Any, name: str, *args: Any, **options: Any) -> Py:
    """The result of a function of `tp` or `co`; arguments may be results themselves."""
    texts = [_text(arg) for arg in args] + [f"{key}={_text(v)}" for key, v in options.items()]
    value = getattr(module, name)(
        *(_value(arg) for arg in args), **{key: _value(v) for key, v in options.items()}
    )
    prefix = {tp: "tp", co: "co"}[module]
    return Py(value, f"{prefix}.{name}({', '.join(texts)})")


def _value(arg: Any) -> Any:
    return arg.value if isinstance(arg, Py) else arg


def _text(arg: Any) -> str:
    return arg.text if isinstance(arg, Py) else repr(arg)


def problem(seed: int, *, tiny: bool = False) -> Problem:
    """Return the problem with this seed.

    >>> problem(7) == problem(7)
    True
    """
    random = Random(seed * 2 + tiny)
    network = _Networks(random, tiny).any()
    collective = _collective(random, network.value, tiny)
    text = f"topology = {network.text}\ncollective = {collective.text}"
    return Problem(network.value, collective.value, text)


class _Networks:
    """Draws networks."""

    def __init__(self, random: Random, tiny: bool) -> None:
        self.random = random
        self.most = random.choice([3, 4, 5] if tiny else [3, 4, 6, 8, 8, 12, 16, 24])
        if not tiny and random.random() < 0.03:
            self.most = 64

    def any(self) -> Py:
        """A network of any kind, sometimes damaged or renumbered."""
        kinds = [self.boxes] * 4 + [self.grid] * 3 + [self.product] * 2 + [self.graph] * 3
        if self.most >= 8:
            kinds += [self.cluster] * 2 + [self.machine]
        while True:
            try:
                network = self.random.choice(kinds)()
                if self.random.random() < 0.25:
                    network = self.edited(network)
            except ValueError:  # not connected, or too small for the builder
                continue
            if 2 <= network.value.npus <= self.most:
                return network

    def speed(self) -> dict[str, Any]:
        random = self.random
        return {"bandwidth": random.choice(BANDWIDTHS), "latency": random.choice(LATENCIES)}

    def model(self) -> dict[str, Any]:
        random, model = self.random, {}
        if random.random() < 0.15:
            model["link_model"] = "blocking"
        if random.random() < 0.15:
            model["forwarding"] = "store_and_forward"
        if random.random() < 0.1:
            model["reduce_bandwidth"] = random.choice(["100GB/s", "1GB/s"])
        return model

    def sizes(self, most_dims: int, least: int = 1) -> list[int]:
        """Sizes of dimensions whose product is at most `most`."""
        found = []
        left = self.most
        for _ in range(self.random.randint(1, most_dims)):
            if left < max(least, 2):
                break
            found.append(self.random.randint(least, min(left, 8)))
            left //= found[-1]
        return found or [2]

    def grid(self) -> Py:
        name = self.random.choice(["mesh", "torus", "hypercube"])
        if name == "hypercube":
            return call(tp, name, self.random.randint(1, 5), **self.speed(), **self.model())
        sizes = self.sizes(3)
        speeds = [self.speed() for _ in sizes]
        if self.random.random() < 0.5:
            return call(tp, name, *sizes, **speeds[0], **self.model())
        several = {key: tuple(speed[key] for speed in speeds) for key in speeds[0]}
        return call(tp, name, *sizes, **several, **self.model())

    def product(self) -> Py:
        model, factors = self.model(), []
        for size in self.sizes(3, 2):
            speed = {**self.speed(), **model}
            name = self.random.choice(["ring", "mesh", "fully_connected", "switch"])
            if name == "ring":
                speed["bidirectional"] = self.random.random() < 0.7
            if name == "switch" and self.random.random() < 0.2:
                speed["multicast"] = self.random.random() < 0.5
                speed["reduce"] = self.random.random() < 0.5
            factors.append(call(tp, name, size, **speed))
        return factors[0] if len(factors) == 1 else call(tp, "product", *factors)

    def graph(self) -> Py:
        """A cycle through all nodes in one direction, and links anywhere."""
        random = self.random
        npus = random.randint(2, min(self.most, 12))
        switches = [self.capability() for _ in range(random.choice([0, 0, 1, 2, 3]))]
        nodes = npus + len(switches)
        cycle = random.sample(range(nodes), nodes)
        ends = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        for _ in range(random.randint(0, 2 * nodes)):
            a, b = random.sample(range(nodes), 2)
            ends.append((a, b))
        speeds = [tuple(self.speed().values()) for _ in range(random.choice([1, 2, 8]))]
        links = [(*end, *random.choice(speeds)) for end in ends]
        return call(tp, "from_links", npus, links, switches=switches, **self.model())

    def capability(self) -> str:
        if self.random.random() < 0.8:
            return ""
        return self.random.choice(["multicast", "reduce", "multicast+reduce"])

    def boxes(self) -> Py:
        """Boxes with switches, cliques or rings inside, joined by a fabric, rails, racks or cables."""
        random = self.random
        inside = random.randint(1, min(self.most, 8))
        count = random.randint(1, max(1, min(self.most // inside, 6)))
        npus, switches = inside * count, []
        links: list[tuple[Any, ...]] = []

        def switch() -> int:
            switches.append(self.capability())
            return npus + len(switches) - 1

        def join(a: int, b: int, there: tuple[Any, ...], back: tuple[Any, ...]) -> None:
            links.extend([(a, b, *there), (b, a, *back)])

        def speeds() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            there = tuple(self.speed().values())
            return there, tuple(self.speed().values()) if random.random() < 0.15 else there

        near, far, core = speeds(), speeds(), speeds()
        kind = random.choice(["switch", "switch", "switches", "clique", "ring"])
        for box in range(count):
            members = range(box * inside, (box + 1) * inside)
            if kind.startswith("switch"):
                for _ in range(2 if kind == "switches" else 1):
                    middle = switch()
                    for npu in members:
                        join(npu, middle, *near)
            else:
                pairs = [(a, b) for a in members for b in members if a < b]
                for a, b in pairs:
                    if kind == "clique" or b - a == 1 or b - a == inside - 1:
                        join(a, b, *near)
        kind = random.choice(["fabric", "nic", "rails", "racks", "racks", "cables"])
        if kind == "racks":
            racks = random.randint(1, 3)
            leaves = [switch() for _ in range(racks)]
            top = [switch() for _ in range(random.choice([1, 1, 2]))] if racks > 1 else []
            for leaf in leaves:
                for spine in top:
                    join(leaf, spine, *core)
            for npu in range(npus):
                join(npu, leaves[npu // inside * racks // count], *far)
        elif kind == "cables":
            for box in range(count if count > 2 else count - 1):
                for _ in range(random.choice([1, 2])):
                    a, b = (random.randrange(inside) for _ in range(2))
                    join(box * inside + a, (box + 1) % count * inside + b, *far)
        elif count > 1:
            rails = [switch() for _ in range(inside if kind == "rails" else 1)]
            for npu in range(npus):
                if kind != "nic" or npu % inside == 0:
                    join(npu, rails[npu % len(rails)], *far)
        options: dict[str, Any] = {}
        if inside > 1 and count > 1 and random.random() < 0.7:
            options["dims"] = [("box", inside), ("switch", count)]
        return call(tp, "from_links", npus, links, switches=switches, **options, **self.model())

    def cluster(self) -> Py:
        random, kind = self.random, self.random.choice(["fat_tree", "rail", "dragonfly", "plus"])
        a, b, c = random.randint(1, 4), random.randint(1, 6), random.randint(1, 2)
        more = {**self.speed(), **self.model()}
        if kind == "fat_tree":
            sizes = random.choice([(a, b), (a, b, c)])
            more["oversubscription"] = random.choice([1, 2, 3])
            return call(tp, kind, *sizes, **more)
        if kind == "rail":
            return call(tp, kind, a, b, spine=random.random() < 0.5, **more)
        if kind == "dragonfly":
            links, speed = random.randint(1, 3), random.choice(BANDWIDTHS)
            return call(tp, kind, a, b, global_links=links, global_bandwidth=speed, **more)
        return call(tp, "dragonfly_plus", a, b, c, global_links=random.randint(1, 3), **more)

    def machine(self) -> Py:
        random = self.random
        names = ["dgx1", "ndv2", "dgx_a100", "dgx_h100", "mi250", "mi300x", "dgx2", "tpu"]
        name = random.choice(names)
        if name == "tpu":
            return call(tp, name, *(random.randint(1, 4) for _ in range(3)), **self.model())
        options = self.model()
        if name == "dgx_h100":
            options["nvls"] = random.random() < 0.3
        boxes = random.randint(1, 2)
        return call(tp, name, boxes, fabric=random.choice(["switch", "rail"]), **options)

    def edited(self, network: Py) -> Py:
        """The network with fewer or slower links, fewer NPUs, or other numbers."""
        random, topology = self.random, network.value
        kind = random.choice(["drop_links", "degrade", "drop_npus", "renumber"])
        if kind == "renumber":
            order = random.sample(range(topology.npus), topology.npus)
            return call(tp, kind, network, order)
        if kind == "drop_npus":
            return call(tp, kind, network, random.randrange(topology.npus))
        some = random.sample(range(topology.links), min(topology.links, random.randint(1, 3)))
        ends = {(int(topology.link_src[link]), int(topology.link_dst[link])) for link in some}
        if kind == "degrade":
            factor = random.choice([0.5, 0.1, 0.9])
            return call(tp, kind, network, *sorted(ends), factor=factor)
        return call(tp, kind, network, *sorted(ends), both=random.random() < 0.7)


def _collective(random: Random, topology: tacos.Topology, tiny: bool) -> Py:
    npus = topology.npus
    kind = random.choice(
        [*["all_reduce"] * 4, *NAMED, "all_to_all_v", "send_recv", "custom", "two"]
    )
    size = _size(random)
    if kind in ("send_recv", "custom"):
        return _listed(random, kind, npus, size)
    if kind == "two":
        halves = [
            call(co, random.choice(["all_reduce", *NAMED]), npus, size, **_options(random, npus, 2))
            for _ in range(2)
        ]
        return call(co, "together", *halves)
    options = _options(random, npus, 2 if tiny else 9)
    if kind in ("broadcast", "reduce", "gather", "scatter") and random.random() < 0.5:
        options["root"] = random.choice(options.get("group", range(npus)))
    if kind == "all_to_all_v":
        members = len(options.get("group", range(npus)))
        sizes = [
            [random.choice([0, 1, size, _size(random)]) for _ in range(members)]
            for _ in range(members)
        ]
        sizes[0][-1] += 1
        return call(co, kind, npus, sizes, **options)
    return call(co, kind, npus, size, **options)


def _options(random: Random, npus: int, most_chunks: int) -> dict[str, Any]:
    """The group and the number of chunks."""
    options: dict[str, Any] = {}
    members = npus
    if random.random() < 0.3:
        members = random.choice([npus, random.randint(1, npus), random.randint(2, npus)])
        options["group"] = random.sample(range(npus), members)
    affordable = max(1, min(most_chunks, MOST_TRANSFERS // max(members * members, 1)))
    options["chunks"] = random.randint(1, affordable)
    return options


def _size(random: Random) -> int:
    """From a byte to a gigabyte, round and odd ones."""
    kind = random.random()
    if kind < 0.1:
        return random.randint(1, 64)
    if kind < 0.4:
        return 1 << random.randint(0, 30)
    if kind < 0.6:
        return random.choice([1000, 4000, 32_000, 64_000, 10**6, 10**9])
    return int(2 ** random.uniform(0, 30))


def _listed(random: Random, kind: str, npus: int, size: int) -> Py:
    """Messages, or chunks with holders and destinations."""
    count = random.randint(1, 8)
    if kind == "send_recv":
        rows = [
            (*random.sample(range(npus), 2), random.choice([size, _size(random)]))
            for _ in range(count)
        ]
        return call(co, kind, npus, rows, chunks=random.randint(1, 3))
    before = [random.sample(range(npus), random.randint(1, min(npus, 6))) for _ in range(count)]
    after = [random.sample(range(npus), random.randint(0, min(npus, 6))) for _ in range(count)]
    reduces = [random.random() < 0.5 for _ in range(count)]
    return call(co, kind, npus, [size + i for i in range(count)], before, after, reduces=reduces)
