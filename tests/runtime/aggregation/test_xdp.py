"""The kernel's part of a switch: the same workers and packets, in separate network namespaces."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tacos.cli import main
from tacos.errors import TacosError
from tacos.runtime.aggregation import Switch, connect, xdp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "secret of the tests"
HERE, THERE = f"tacos-a{os.getpid()}", f"tacos-b{os.getpid()}"
PORT = "va0"
ADDRESS = "10.77.0.1"


def missing() -> str:
    """Why the tests in namespaces cannot run, or nothing."""
    if why := xdp.unavailable():
        return why
    if shutil.which("ip") is None:
        return "the command ip is not installed"
    done = subprocess.run(["ip", "netns", "add", HERE], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", HERE], capture_output=True, check=False)
    return "network namespaces cannot be made here" if done.returncode else ""


@pytest.fixture(scope="module")
def pair() -> Iterator[None]:
    """Two namespaces, joined by a cable."""
    if why := missing():
        pytest.skip(why)
    commands = [
        f"netns add {HERE}",
        f"netns add {THERE}",
        f"link add {PORT} netns {HERE} type veth peer name vb0 netns {THERE}",
        f"-n {HERE} addr add {ADDRESS}/24 dev {PORT}",
        f"-n {THERE} addr add 10.77.0.2/24 dev vb0",
        f"-n {HERE} link set {PORT} up",
        f"-n {HERE} link set lo up",
        f"-n {THERE} link set vb0 up",
    ]
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)
        yield
    finally:
        for name in (HERE, THERE):
            subprocess.run(["ip", "netns", "del", name], check=False)


def inside(namespace: str, *calls: Callable[[], Any]) -> list[Any]:
    """Call functions at once, in threads of a namespace; return what each returned or raised."""
    results: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        with open(f"/run/netns/{namespace}") as file:  # noqa: PTH123, a descriptor is wanted
            assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0
        try:
            results[i] = calls[i]()
        except Exception as error:  # noqa: BLE001, the tests look at it
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@contextmanager
def running(**options: Any) -> Iterator[Switch]:
    (switch,) = inside(HERE, lambda: Switch(token=TOKEN, xdp=PORT, seed=5, **options))
    if isinstance(switch, Exception):
        raise switch
    with switch:
        yield switch


def summed(
    switch: Switch,
    workers: int,
    sizes: Callable[[int], list[int]],
    dtype: str = "int32",
    **more: Any,
) -> list[Any]:
    """Return the arrays, counters and packets of each worker, or what it raised."""

    def of(worker: int) -> Callable[[], Any]:
        def work() -> Any:
            options = {"token": TOKEN, "pool": 8} | more
            with connect(switch.address, worker=worker, workers=workers, **options) as mine:
                packets, sums = 0, []
                for size in sizes(worker):
                    sums.append(mine.all_reduce(np.arange(size).astype(dtype) * (worker + 1)))
                    packets += mine.packets
                return sums, mine.counters, packets

        return work

    return inside(THERE, *(of(worker) for worker in range(workers)))


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_the_kernel_adds_exactly(loss: float) -> None:
    """Lengths around whole packets of 360 integers and around the 8 that a loop takes at a time; then floats."""
    workers, sizes = 3, [1, 7, 8, 359, 361, 9000]
    with running(loss=loss) as switch:
        found = summed(switch, workers, lambda _: sizes)
        figures = switch.stats()
        scaled = summed(switch, workers, lambda _: [3000], "float32", job="floats")
    packets = sum(-(-size // 360) for size in sizes)
    for sums, counters, counted in found:
        for size, answer in zip(sizes, sums, strict=True):
            assert np.array_equal(answer, np.arange(size) * 6)
        assert counters["sent"] - counters["retransmitted"] == packets == counted
        assert counters["repeats"] == 0
    # Each worker closes each operation with one more packet.
    assert figures["contributions"] == workers * (packets + len(sizes))
    assert figures["results"] == packets + len(sizes)
    assert figures["early"] == figures["mismatched"] == figures["malformed"] == 0
    assert (figures["lost_in"] > 0) == (loss > 0)
    for sums, _, _ in scaled:
        assert np.allclose(sums[0], np.arange(3000) * 6.0, atol=1e-4)
        assert np.array_equal(sums[0], scaled[0][0][0])


@pytest.mark.usefixtures("pair")
def test_which_jobs_the_kernel_takes() -> None:
    """Packets of an MTU of 9000 are added in user space, while the kernel adds those of another job."""
    with running() as switch:

        def seen(mtu: int) -> Any:
            """The switch's figures of a job while its worker is connected."""

            def work() -> Any:
                name = f"mtu{mtu}"
                with connect(
                    switch.address, worker=0, workers=1, token=TOKEN, job=name, mtu=mtu
                ) as w:
                    w.all_reduce(np.ones(5000, np.int32))
                    return next(job for job in switch.stats()["jobs"] if job["name"] == name)

            return work

        small, large = inside(THERE, seen(1500), seen(9000))
    assert (small["kernel"], large["kernel"]) == (True, False)
    assert (small["results"], large["results"]) == (14 + 1, 3 + 1)


@pytest.mark.usefixtures("pair")
def test_what_the_kernel_cannot_add_ends_the_job() -> None:
    with running() as switch:
        for answer in summed(switch, 2, lambda worker: [1000, 500 + worker]):
            assert "another operation" in str(answer)
        # Workers of the same machine do not come through the interface.
        (error,) = inside(
            HERE,
            lambda: connect(
                switch.address, worker=0, workers=1, token=TOKEN, job="local"
            ).all_reduce(np.ones(4, np.int32)),
        )
        assert f"do not reach the switch through {PORT}" in str(error)
        # The switch still serves other jobs, also when a worker joins again in a new generation.
        for _ in range(2):
            ((sums, _, _),) = summed(switch, 1, lambda _: [10], job="next")
            assert sums[0].sum() == 45


@pytest.mark.usefixtures("pair")
def test_one_program_for_an_interface() -> None:
    with running() as switch:
        with pytest.raises(TacosError, match=f"{PORT} has an XDP program already"), running():
            pass
        assert switch.stats()["packets"] == 0
    with running():  # it was detached
        pass


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
def test_the_program_compiles() -> None:
    """The sizes are those of cpp/aggregation/kernel.cpp."""
    sizes = {name: size for name, (_, size) in xdp._Object(xdp.compiled()).maps.items()}
    assert sizes == {
        "settings_map": 16, "jobs_map": 32 + 64 * 12, "slots_map": 40 + 4 * 360, "counters_map": 120, "tallies_map": 24,
    }  # fmt: skip


def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert main(["switch", "--port", "0", *arguments]) == 2
        return capsys.readouterr().err

    assert "there is no interface 'nope'" in said("--xdp", "nope")
    assert "one core" in said("--xdp", "lo", "--cores", "2")
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/clang")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "an XDP program needs root" in said("--xdp", "lo")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "clang, which compiles the XDP program, is not installed" in said("--xdp", "lo")
    assert Path(xdp.SOURCE).is_file()


def test_a_switch_that_cannot_attach_leaves_nothing_behind(monkeypatch):
    """The first of its two programs may be attached when the second is refused."""
    closed = []

    class Half:
        maps = xdp.Maps(-1, -1, -1, -1)

        def __init__(self, slots: int, jobs: int) -> None:
            pass

        def attach(self, *_: object) -> None:
            raise TacosError("refused")

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr("tacos.runtime.aggregation.endpoints.XdpProgram", Half)
    with pytest.raises((TacosError, OSError, RuntimeError, ValueError)):
        Switch(port=0, token=TOKEN, xdp="lo")
    assert closed == [True]


def test_an_interface_without_a_name_is_refused(capsys):
    """As in --xdp "$INTERFACE" where the variable is not set."""
    assert main(["switch", "--xdp", ""]) == 2
    assert "xdp is empty" in capsys.readouterr().err
