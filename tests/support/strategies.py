"""Hypothesis strategies for topologies, collectives, orders and programs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations, product
from random import Random

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.program import lower
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, Routes, routes

# --- topologies ---------------------------------------------------------------------------------

BANDWIDTHS = [1, 7, 10**9, 25 * 10**9, 50 * 10**9, 333_333_333_333]
LATENCIES = [0, 1, 500_000, 700_000, 1_300_000]
SPEEDS = list(product(BANDWIDTHS, LATENCIES))


def models():
    """The keywords every builder takes."""
    return st.fixed_dictionaries(
        {},
        optional={
            "link_model": st.sampled_from(["pipelined", "blocking"]),
            "forwarding": st.sampled_from(["cut_through", "store_and_forward"]),
            "routing": st.sampled_from(["spread", "destination", "first"]),
            "reduce_bandwidth": st.sampled_from([None, "100GB/s"]),
        },
    )


@st.composite
def random_topologies(draw, max_npus=7, max_switches=3):
    """Connected, with links of all kinds: parallel, one-way, slow; one cycle joins all nodes."""
    npus = draw(st.integers(1, max_npus))
    switches = draw(
        st.lists(
            st.sampled_from(["", "multicast", "reduce", "multicast+reduce"]), max_size=max_switches
        )
    )
    nodes = npus + len(switches)
    cycle = draw(st.permutations(range(nodes)))
    ends = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True)) if nodes > 1 else []
    if nodes > 1:
        ends += draw(st.lists(st.sampled_from(list(permutations(range(nodes), 2))), max_size=12))
    speeds = draw(st.lists(st.sampled_from(SPEEDS), min_size=len(ends), max_size=len(ends)))
    links = [(a, b, f"{bw}B/s", f"{lat}ps") for (a, b), (bw, lat) in zip(ends, speeds, strict=True)]
    named = draw(st.booleans())
    names = [f"n{i}" for i in range(nodes)] if named else ()
    return tp.from_links(npus, links, switches=switches, names=names, **draw(models()))


@st.composite
def switched_topologies(draw, max_npus=4):
    """NPUs behind switches that several paths join, some of them slow, broken or parallel."""
    npus, leaves, spines = (
        draw(st.integers(2, max_npus)),
        draw(st.integers(2, 3)),
        draw(st.integers(2, 3)),
    )
    speeds = st.sampled_from(SPEEDS[len(LATENCIES) * 2 :])
    cables = [(npu, npus + draw(st.integers(0, leaves - 1))) for npu in range(npus)]
    up = [(npus + leaf, npus + leaves + spine) for leaf in range(leaves) for spine in range(spines)]
    cables += [
        cable for i, cable in enumerate(up) if i < spines or i % spines == 0 or draw(st.booleans())
    ]
    cables += draw(st.lists(st.sampled_from(up), max_size=2))
    alike = draw(st.none() | speeds)
    links = []
    for a, b in cables:
        bandwidth, latency = alike or draw(speeds)
        links += [(*ends, f"{bandwidth}B/s", f"{latency}ps") for ends in ((a, b), (b, a))]
    return tp.from_links(npus, links, switches=leaves + spines, **draw(models()))


def _sizes(dims, largest):
    return st.lists(st.integers(1, largest), min_size=1, max_size=dims)


@st.composite
def built_topologies(draw):
    """Small topologies of every builder."""
    n, m, k = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    flag, fabric = draw(st.booleans()), draw(st.sampled_from(["switch", "rail"]))
    model = draw(models())
    build = draw(st.sampled_from([
        lambda: tp.ring(n * m, bidirectional=flag, **model),
        lambda: tp.mesh(*draw(_sizes(3, 3)), **model),
        lambda: tp.torus(*draw(_sizes(3, 4)), **model),
        lambda: tp.hypercube(n, latency="1us", **model),
        lambda: tp.fully_connected(n * m, **model),
        lambda: tp.switch(n * m, multicast=flag, reduce=k == 2, **model),
        lambda: tp.fat_tree(m, n, uplinks=k, oversubscription=2, **model),
        lambda: tp.fat_tree(k, m, k, **model),
        lambda: tp.rail(m, n, spine=flag, **model),
        lambda: tp.dragonfly(m, n, global_links=2, global_bandwidth="25GB/s", **model),
        lambda: tp.dragonfly_plus(m, k, k, global_links=m, **model),
        lambda: tp.product(tp.ring(m, **model), tp.switch(n, **model), tp.mesh(k, **model)),
        lambda: tp.dgx1(k, fabric=fabric, **model),
        lambda: tp.ndv2(k, fabric=fabric, **model),
        lambda: tp.dgx2(k, relay=flag, fabric=fabric, **model),
        lambda: tp.dgx_a100(k, fabric=fabric, **model),
        lambda: tp.dgx_h100(k, nvls=flag, fabric=fabric, **model),
        lambda: tp.mi250(k, fabric=fabric, **model),
        lambda: tp.mi300x(k, fabric=fabric, **model),
        lambda: tp.tpu(n, m, k, **model),
    ]))  # fmt: skip
    return build()


def topologies():
    """Any connected topology small enough to examine."""
    return random_topologies() | built_topologies() | switched_topologies()


# --- collectives and orders ---------------------------------------------------------------------

SIZES = [1, 7, 1000, 1001]
ROOTED = ["broadcast", "reduce", "gather", "scatter"]
UNROOTED = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]


@st.composite
def _members(draw, npus, least):
    """At least `least` different NPUs, in any order."""
    return draw(st.permutations(range(npus)))[: draw(st.integers(least, npus))]


@st.composite
def collectives(draw, npus, max_chunks=3):
    """Any collective on some of `npus` NPUs; chunks may be uneven or empty."""
    group = draw(_members(npus, 1))
    kind = draw(st.sampled_from([*ROOTED, *UNROOTED, "all_to_all_v", "send_recv", "custom"]))
    chunks, size = draw(st.integers(1, max_chunks)), draw(st.sampled_from(SIZES))
    if kind == "all_to_all_v":
        row = st.lists(st.sampled_from([0, *SIZES]), min_size=len(group), max_size=len(group))
        sizes = draw(st.lists(row, min_size=len(group), max_size=len(group)))
        sizes[0][0] += size
        return co.all_to_all_v(npus, sizes, group=group, chunks=chunks)
    if kind == "send_recv" and npus > 1:
        ends = draw(st.lists(_members(npus, 2), min_size=1, max_size=5))
        return co.send_recv(npus, [(a, b, size) for a, b, *_ in ends], chunks=chunks)
    if kind in ("send_recv", "custom"):
        before = draw(st.lists(_members(npus, 1), min_size=1, max_size=4))
        after = [draw(_members(npus, 0)) for _ in before]
        reduces = [draw(st.booleans()) for _ in before]
        return co.custom(
            npus, [size + i for i in range(len(before))], before, after, reduces=reduces
        )
    return co.named(kind, npus, size, group=group, chunks=chunks)


@dataclass
class Order:
    """What `retime` takes: rows (route, chunk, step, op, reads) over a table of routes."""

    collective: tacos.Collective
    routes: Routes
    rows: list[tuple[int, int, int, int, int]]

    def retimed(self):
        columns = zip(*self.rows, strict=True) if self.rows else ([], [], [], [], [])
        names = ("route", "chunk", "step", "op", "reads")
        return tacos.retime(
            self.collective, self.routes, **dict(zip(names, map(list, columns), strict=True))
        )


@st.composite
def lowered(draw):
    """The schedule of any engine for any collective on any network, and its program."""
    network = draw(topologies())
    collective = draw(collectives(network.npus, max_chunks=3))
    assume(all(collective.chunk_bytes()))
    engine = draw(st.sampled_from(tacos.engines(network, collective)))
    schedule = tacos.synthesize(network, collective, engine=engine)
    assume(not has_trees(schedule))  # programs have no multicast
    return schedule, lower(schedule, in_place=draw(st.booleans()))


def has_trees(schedule):
    """Return whether a schedule's table has routes that multicast or reduce."""
    return bool(np.isin(schedule.routes.kinds, [1, 2]).any())


@st.composite
def quick_topologies(draw):
    """Random topologies on which a schedule of small chunks ends within milliseconds."""
    slow = draw(random_topologies(max_npus=5))
    return tacos.Topology(
        npus=slow.npus,
        switch_capabilities=slow.switch_capabilities,
        link_src=slow.link_src,
        link_dst=slow.link_dst,
        link_latency_ps=slow.link_latency_ps,
        link_bandwidth_Bps=np.maximum(slow.link_bandwidth_Bps, 123_456_789),
        link_model=slow.link_model,
        forwarding=slow.forwarding,
        reduce_bandwidth_Bps=slow.reduce_bandwidth_Bps,
    )


@st.composite
def orders(draw, networks=None, max_chunks=3, collective=None):
    """A correct way to run a random collective: paths, relays, trees, in no particular order."""
    topology = draw(quick_topologies() if networks is None else networks)
    demand = collective or draw(collectives(topology.npus, max_chunks))
    plan = _Plan(topology, demand, Random(draw(st.integers(0, 2**32 - 1))))
    for chunk in range(demand.chunks):
        plan.run(chunk)
    table = routes(topology, links=plan.links, kinds=plan.kinds)
    return Order(demand, table, plan.rows)


class _Plan:
    """Moves each chunk from its inputs to its outputs by random transfers, all of them needed."""

    def __init__(self, topology, collective, random):
        self.topology, self.collective, self.random = topology, collective, random
        self.links: list[list[int]] = []
        self.kinds: list[str] = []
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))

    def run(self, chunk):
        self.chunk, self.step = chunk, self.random.randrange(3)
        self.inputs = self.collective.inputs(chunk)
        outputs = self.collective.outputs(chunk)
        if not outputs:
            return
        if not self.collective.reduces(chunk) or len(self.inputs) == 1:
            self.spread(set(self.inputs), set(outputs) - set(self.inputs))
        elif self.random.random() < 0.2:
            for end in outputs:  # every NPU gets all contributions
                for npu in set(self.inputs) - {end}:
                    self.add(self.path(npu, end), REDUCE, READ_INPUT)
        else:
            # A sum that only one member needs is collected there, so that every transfer is needed.
            owner = self.sum_up(set(outputs) if len(outputs) == 1 else set())
            self.spread({owner}, set(outputs) - {owner})

    def sum_up(self, stays):
        """Merge the contributions until one NPU (of `stays`, if any) has them all; return it."""
        active = set(self.inputs)
        untouched = set(self.inputs)  # whose acc is still their input
        while len(active) > 1:
            leaves = self.random.choice(sorted(active - stays))
            end = self.random.choice(sorted(active - {leaves}))
            tree = self.reduce_tree(active - stays - {end}, end)
            if tree and self.random.random() < 0.5:
                sources, route = tree
            else:
                sources, route = {leaves}, self.path(leaves, end)
            reads = self.random.choice([READ_INPUT, READ_ACC]) if sources <= untouched else READ_ACC
            self.add(route, REDUCE, reads)
            active -= sources
            untouched.discard(end)
            self.step += self.random.randint(1, 2)
        return active.pop()

    def spread(self, holders, lacking):
        npus = set(range(self.topology.npus))
        while lacking:
            src = self.random.choice(sorted(holders))
            tree = self.multicast_tree(src, lacking)
            if tree and self.random.random() < 0.5:
                ends, route = tree
            else:
                relays = sorted(npus - holders - lacking)
                if relays and self.random.random() < 0.3:
                    relay = self.random.choice(relays)
                    self.add(self.path(src, relay), COPY, READ_ACC)
                    self.step += 1
                    src = relay
                    holders = holders | {relay}
                ends = {self.random.choice(sorted(lacking))}
                route = self.path(src, *ends)
            copied = not self.collective.reduces(self.chunk) and src in self.inputs
            reads = self.random.choice([READ_INPUT, READ_ACC]) if copied else READ_ACC
            self.add(route, COPY, reads)
            holders, lacking = holders | ends, lacking - ends
            self.step += self.random.randint(1, 2)

    def add(self, route, op, reads):
        kind, links = route
        self.links.append(links)
        self.kinds.append(kind)
        self.rows.append((len(self.links) - 1, self.chunk, self.step, op, reads))

    def path(self, src, dst):
        """A shortest path, or two of them with an NPU in between."""
        between = [n for n in range(self.topology.npus) if n not in (src, dst)]
        if between and self.random.random() < 0.2:
            stop = self.random.choice(between)
            return "path", self.shortest(src, stop) + self.shortest(stop, dst)
        return "path", self.shortest(src, dst)

    def shortest(self, src, dst):
        into = {src: -1}
        queue = [src]
        for node in queue:
            out = [link for link, (a, _) in enumerate(self.ends) if a == node]
            for link in self.random.sample(out, len(out)):
                if self.ends[link][1] not in into:
                    into[self.ends[link][1]] = link
                    queue.append(self.ends[link][1])
        links = []
        while dst != src:
            links.append(into[dst])
            dst = self.ends[into[dst]][0]
        return links[::-1]

    def multicast_tree(self, src, lacking):
        for up, (a, switch) in enumerate(self.ends):
            if a == src and self.can(switch, 1):
                down = {b: link for link, (s, b) in enumerate(self.ends) if s == switch}
                ends = lacking & down.keys()
                if ends:
                    return ends, ("multicast", [up, *(down[end] for end in sorted(ends))])
        return None

    def reduce_tree(self, active, end):
        for down, (switch, b) in enumerate(self.ends):
            if b == end and self.can(switch, 2):
                up = {a: link for link, (a, s) in enumerate(self.ends) if s == switch}
                sources = active & up.keys()
                if sources:
                    return sources, ("reduce", [*(up[a] for a in sorted(sources)), down])
        return None

    def can(self, node, capability):
        switch = node - self.topology.npus
        return switch >= 0 and bool(self.topology.switch_capabilities[switch] & capability)
