"""GPU kernels compile, the shipped PTX belongs to their source, and on a GPU they find what the CPU finds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos._cuda import driver, nvrtc
from tacos._cuda import greedy as greedy_on_gpu
from tacos._cuda import verify as verify_on_gpu
from tacos.errors import TacosError

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = sorted(nvrtc.KERNELS.glob("*.cu"))
needs_gpu = pytest.mark.skipif(bool(driver.obstacle()), reason=driver.obstacle())


def torus(side: int) -> tuple[tacos.Topology, tacos.Collective]:
    network = tacos.topology.torus(side, side, link_model="blocking")
    return network, tacos.collective.all_gather(network, 1000 * side * side, chunks=1)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_shipped_ptx_is_of_this_source(source: Path) -> None:
    text = source.read_text()
    first = source.with_suffix(".ptx").read_text().splitlines()[0]
    assert first == f"// {source.name} {nvrtc.digest(text)}", (
        "renew it: python -m tacos._cuda.nvrtc"
    )


@pytest.fixture(scope="module")
def compiler() -> None:
    try:
        nvrtc.compile("")
    except TacosError as error:
        pytest.skip(str(error))


@pytest.mark.unsanitized  # with their library preloaded, the compiler does not find its own
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_shipped_ptx_is_what_its_compiler_makes(source: Path) -> None:
    there, made = source.with_suffix(".ptx").read_text(), nvrtc.shipped(source)
    compilers = [
        re.findall(r"^// Cuda compilation tools, .*", text, re.MULTILINE) for text in (there, made)
    ]
    if compilers[0] != compilers[1]:
        pytest.skip(f"the PTX is of another compiler: {compilers[0]}, here {compilers[1]}")
    assert there == made, "renew it: python -m tacos._cuda.nvrtc"


@pytest.mark.unsanitized  # with their library preloaded, the compiler does not find its own
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_kernels_compile_without_a_gpu(source: Path) -> None:
    text = source.read_text()
    compiled = nvrtc.compile(text, name=source.name).decode()
    kernels = re.findall(r"__global__ void (?:__launch_bounds__\(.*\)\s+)?(\w+)\(", text)
    assert kernels
    assert re.findall(r"\.visible \.entry (\w+)\(", compiled) == kernels


@pytest.mark.unsanitized  # with their library preloaded, the compiler does not find its own
@pytest.mark.usefixtures("compiler")
def test_what_does_not_compile_is_said_with_its_line() -> None:
    with pytest.raises(TacosError, match=re.escape("wrong.cu(1): error")):
        nvrtc.compile("int x = ;", name="wrong.cu")


@pytest.mark.skipif(not driver.obstacle(), reason="there is a GPU")
def test_without_a_gpu_the_message_says_what_is_missing() -> None:
    network, wanted = torus(3)
    for act in (
        lambda: tacos.synthesize(network, wanted, engine="greedy", device="cuda"),
        lambda: tacos.verify(tacos.synthesize(network, wanted, engine="greedy"), device="cuda"),
    ):
        with pytest.raises(TacosError, match=re.escape(driver.obstacle())):
            act()


def test_auto_uses_the_cpu_where_a_gpu_does_not_serve() -> None:
    network, wanted = torus(3)
    there = tacos.synthesize(network, wanted, engine="greedy", device="auto")
    here = tacos.synthesize(network, wanted, engine="greedy")
    assert (there.chunk == here.chunk).all()
    assert (there.start == here.start).all()
    assert tacos.verify(there, device="auto").ok


def test_only_known_devices_and_engines_are_taken() -> None:
    network, wanted = torus(3)
    with pytest.raises(ValueError, match='"cpu", "cuda" or "auto"; got \'gpu\''):
        tacos.synthesize(network, wanted, engine="greedy", device="gpu")
    with pytest.raises(ValueError, match="not with 'ring'"):
        tacos.synthesize(network, wanted, engine="ring", device="cuda")
    with pytest.raises(ValueError, match="not with 'auto'"):
        tacos.synthesize(network, wanted, device="cuda")
    with pytest.raises(ValueError, match="got 7"):
        tacos.verify(tacos.synthesize(network, wanted), device=7)


def test_lanes_over_one_link_are_partners() -> None:
    links = np.array([4, 2, 7, 4, 2], np.int32)
    assert list(verify_on_gpu._partners(links)) == [3, 4, 2**32 - 1, 0, 1]


@needs_gpu
@given(st.data())
def test_the_gpu_finds_the_schedule_of_the_cpu(data: st.DataObject) -> None:
    npus = data.draw(st.integers(2, 40))
    more = data.draw(
        st.lists(st.tuples(st.integers(0, npus - 1), st.integers(0, npus - 1)), max_size=60)
    )
    pairs = [(v, (v + 1) % npus) for v in range(npus)] + [(a, b) for a, b in more if a != b]
    latency_us = data.draw(st.integers(0, 7))
    model = data.draw(st.sampled_from(["blocking", "pipelined"]))
    links = [(a, b, 1e9, latency_us / 1e6) for a, b in pairs]
    network = tacos.topology.from_links(npus, links, link_model=model)
    kind = data.draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]))
    chunks, seed = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3))
    wanted = getattr(tacos.collective, kind)(network, 1000 * npus * chunks, chunks=chunks)
    here = tacos.synthesize(network, wanted, engine="greedy", seed=seed)
    there = tacos.synthesize(network, wanted, engine="greedy", seed=seed, device="cuda")
    for name in ("lane_route", "lane_begin", "lane_op", "lane_reads", "chunk", "start"):
        assert (getattr(here, name) == getattr(there, name)).all(), name
    assert verify_on_gpu.shows_right(there)


@needs_gpu
def test_the_gpu_finds_what_is_wrong() -> None:
    network, wanted = torus(4)
    right = tacos.synthesize(network, wanted, engine="greedy")
    for column, value in (("chunk", 3), ("start", 0)):
        columns = {"chunk": right.chunk.copy(), "start": right.start.copy()}
        columns[column][right.lane_begin[1] - 1] = value
        if column == "start":
            columns["start"][: right.lane_begin[1]].sort()
        wrong = tacos.Schedule(
            collective=wanted,
            routes=right.routes,
            lane_route=right.lane_route,
            lane_op=right.lane_op,
            lane_reads=right.lane_reads,
            lane_begin=right.lane_begin,
            quantum_ps=right.quantum_ps,
            **columns,
        )
        assert not verify_on_gpu.shows_right(wrong)
        assert tacos.verify(wrong, device="cuda").found == tacos.verify(wrong).found > 0


@needs_gpu
def test_too_little_memory_is_said_before_the_start() -> None:
    network = tacos.topology.torus(2000, 2000, link_model="blocking")
    wanted = tacos.collective.all_gather(network, 4 * 10**9, chunks=1)
    assert "GiB free" in greedy_on_gpu.obstacle(network, wanted)
