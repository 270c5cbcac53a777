"""Workers: the same results in the same order anywhere, in few bytes, and in spite of workers that die."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import tacos
from tacos import training, workers
from tacos.errors import WorkerLostWarning
from tests.support.conditions import PATIENCE_S, until
from tests.support.ranks import MPI_SETTINGS, mpiexec

RING = tacos.topology.ring(4)


def sizes(*texts):
    return [tacos.collective.all_gather(RING, text) for text in texts]


def without_seconds(rows):
    return [{k: v for k, v in row.items() if k != "synthesis_s"} for row in rows]


# Tasks are functions of a module, since other processes have to find them.


def npus_of(task):
    topology, number = task
    return topology, topology.npus + number


def refuse_odd(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


class Unreadable(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, what, where):
        super().__init__(f"{what} at {where}")


def raise_unreadable(number):
    if number == 1:
        raise Unreadable("trouble", 7)
    return number


def die_for(task):
    """Kill the worker: always for 3, and once for 5, which leaves a directory behind."""
    number, folder = task
    if number == 3 or (number == 5 and not os.path.exists(folder + "/5")):  # noqa: PTH110
        if number == 5:
            os.mkdir(folder + "/5")  # noqa: PTH102
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class Fragile(Executor):
    """Runs tasks at once; a batch with 13 in it breaks the executor once per life, as a process pool does."""

    _max_workers = 2

    def __init__(self, lives):
        self.lives, self.batches = lives, []

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        self.batches.append(list(workers._loaded(args[-1], ())))
        if 13 in self.batches[-1] and self.lives > 0:
            self.lives -= 1
            future.set_exception(BrokenExecutor("a process ended"))
        else:
            future.set_result(fn(*args))
        return future


# Handing out.


def test_results_refer_to_what_was_shared_and_not_to_a_copy():
    with ThreadPoolExecutor(2) as pool:
        tasks = [(RING, number) for number in range(50)]
        found = workers.Dispatch(pool, npus_of, tasks, shared=[RING]).in_order()
    assert [number for _, number in found] == list(range(4, 54))
    assert all(topology is RING for topology, _ in found)


@pytest.mark.parametrize("spec", ["torus:100x100", "torus:22x22x21", "fat-tree:10x50x20"])
def test_a_task_of_a_large_network_takes_few_bytes(spec):
    topology = tacos.topology.parse(spec)
    packed = pickle.dumps(topology)
    assert len(packed) <= 1_000_000
    assert pickle.loads(packed) == topology
    with ThreadPoolExecutor(1) as pool:
        work = workers.Dispatch(pool, npus_of, [(topology, 1)], shared=[topology])
    assert len(work._packed) <= 200_000
    assert len(workers._dumped((topology, 1), (topology,))) < 100


def test_short_tasks_go_in_batches_and_the_first_one_alone():
    executor = Fragile(lives=0)
    assert workers.Dispatch(executor, abs, range(10_000)).in_order() == list(range(10_000))
    assert len(executor.batches[0]) == 1
    assert len(executor.batches) < 200


def test_what_a_task_raises_is_its_result():
    with ThreadPoolExecutor(1) as pool:
        found = dict(workers.Dispatch(pool, refuse_odd, [2, 3, 4]))
        with pytest.raises(ValueError, match=r"^3 is odd$"):
            workers.Dispatch(pool, refuse_odd, [2, 3, 4]).in_order()
    assert (found[0], found[2]) == (2, 4)
    assert str(found[1]) == "3 is odd"


def test_an_exception_that_cannot_be_read_elsewhere_ends_no_other_task():
    with ThreadPoolExecutor(1) as pool:
        found = dict(workers.Dispatch(pool, raise_unreadable, range(3)))
    assert (found[0], found[2], str(found[1])) == (0, 2, "Unreadable: trouble at 7")


@pytest.mark.parametrize("lives", [1, 2, 3, 50])
def test_a_task_that_loses_its_worker_runs_again_alone_and_is_given_up_if_it_does_so_again(lives):
    with pytest.warns(
        WorkerLostWarning, match=r"^a worker died; its work \(\d+ tasks?\) is run again$"
    ):
        found = dict(workers.Dispatch(Fragile(lives), abs, range(40)))
    lost = found.pop(13)
    assert isinstance(lost, workers.WorkerLostError) == (lives == 50), lost
    assert found == {k: k for k in range(40) if k != 13}


def test_tasks_that_have_not_been_handed_out_can_be_dropped():
    executor = Fragile(lives=0)
    work = workers.Dispatch(executor, abs, range(1000))
    seen: list[int] = []
    dropped: list[int] = []
    for k, _ in work:
        seen.append(k)
        if not dropped:
            dropped = work.drop(lambda number: number >= 500)
    assert dropped[-1] == 999
    assert sorted([*seen, *dropped]) == list(range(1000))


def test_what_progress_raises_ends_the_work():
    def stop(share):
        assert 0 <= share <= 1
        raise KeyboardInterrupt

    executor = Fragile(lives=0)
    with pytest.raises(KeyboardInterrupt):
        workers.Dispatch(executor, abs, range(10_000), progress=stop).in_order()
    assert sum(map(len, executor.batches)) < 5000


@pytest.mark.parametrize(
    "name", ["processes:0", "processes:x", "dask://", "dask", "threads", "", "mpi:4"]
)
def test_names_that_are_not_understood(name):
    with pytest.raises(ValueError, match=repr(name)), workers.opened(name):
        pass


# The functions that take an executor.


def test_tuning_and_design_are_the_same_on_an_executor():
    job = tacos.design.TrainingJob((tacos.design.Call("all-reduce", 10**9, tacos.design.Group(4)),))
    ask = {"budget": "$50k", "points": 2, "max_dims": 2, "finalists": 1}
    with ThreadPoolExecutor(2) as pool:
        there = tacos.tune(RING, "all_reduce", "4KB:16KB", effort="fast", executor=pool)
        front = tacos.design.shapes(8, job, **ask, executor=pool)
    here = tacos.tune(RING, "all_reduce", "4KB:16KB", effort="fast")
    assert there == here
    assert front == tacos.design.shapes(8, job, **ask)


# Real workers.


def alive(session):
    """The processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                state, _, _, number, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                found += [entry.name] * (int(number) == session and state != "Z")
    return found


@pytest.mark.slow
def test_processes_that_die_are_replaced(tmp_path):
    tasks = [(number, str(tmp_path)) for number in range(12)]
    with pytest.warns(WorkerLostWarning), workers.opened("processes:2") as executor:
        found = dict(workers.Dispatch(executor, die_for, tasks))
    lost = found.pop(3)
    assert isinstance(lost, workers.WorkerLostError), lost
    assert found == {k: k for k in range(12) if k != 3}


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_on_processes_and_its_workers(tmp_path):
    # The exact engine would take its whole time limit.
    words = "compare dgx-h100-plain:4 all-reduce 1MB 2MB 4MB --engines milp --time-limit 300 --on processes:2"
    command = [sys.executable, "-m", "tacos", *words.split(), "--csv", str(tmp_path / "x.csv")]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        # The command, its workers, and one that cleans up after them.
        until(lambda: len(alive(job.pid)) >= 4, "the workers run")
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does
        _, said = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 130, said
    assert "interrupted, nothing was written" in said
    until(lambda: not alive(job.pid), "all of them have ended")
    assert not (tmp_path / "x.csv").exists()


@pytest.fixture(scope="module")
def cluster():
    """A Dask cluster of three worker processes on this machine."""
    distributed = pytest.importorskip("distributed", reason="there is no Dask: make dask")
    with distributed.LocalCluster(
        n_workers=3,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as started:
        yield started.scheduler_address.replace("tcp://", "dask://")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_dask_cluster_gives_the_same_results(cluster):
    problems = sizes("4KB", "1MB", "4MB")
    model, network = training.model("llama3-8b"), tacos.topology.dgx_h100(1, nvls=False)
    choices = {"batch": 32, "pp": (1, 2), "vp": 1, "recompute": "none"}
    told: list[float] = []
    with workers.opened(cluster) as executor:
        there = tacos.compare(RING, problems, executor=executor, progress=told.append)
        tuned = tacos.tune(RING, "all_reduce", "1KB:64KB", effort="fast", executor=executor)
        ranked = training.search(model, network, **choices, executor=executor)
    assert without_seconds(there.rows()) == without_seconds(tacos.compare(RING, problems).rows())
    assert told == sorted(told)
    assert told[-1] == 1
    assert tuned == tacos.tune(RING, "all_reduce", "1KB:64KB", effort="fast")
    assert ranked.rows() == training.search(model, network, **choices).rows()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_dask_worker_that_dies_is_survived_and_reported(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_LOOK_S", 0.0)
    tasks = [(number, str(tmp_path)) for number in (0, 1, 2, 4, 5, 6, 7)]
    with pytest.warns(WorkerLostWarning), workers.opened(cluster) as executor:
        found = workers.Dispatch(executor, die_for, tasks).in_order()
    assert found == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.slow
def test_a_scheduler_that_is_not_there(capsys):
    pytest.importorskip("distributed", reason="there is no Dask: make dask")
    with (
        pytest.raises(
            tacos.TacosError, match=r"^cannot reach a Dask scheduler at tcp://127\.0\.0\.1:1: "
        ),
        workers.opened("dask://127.0.0.1:1"),
    ):
        pass


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not mpiexec(1), reason="there is no MPI: make mpi"
)
def test_the_ranks_of_mpi_give_the_same_results():
    words = "compare ring:4 all-gather 4KB 4MB --engines ring,direct,greedy --json"
    here = subprocess.run(
        [sys.executable, "-m", "tacos", *words.split()], capture_output=True, check=True
    )
    there = subprocess.run(
        [*mpiexec(3), sys.executable, "-m", "tacos", *words.split(), "--on", "mpi"],
        capture_output=True,
        env=os.environ | MPI_SETTINGS,
        check=False,
        timeout=PATIENCE_S,
    )
    assert there.returncode == 0, there.stderr.decode()
    rows = [without_seconds(json.loads(done.stdout)) for done in (here, there)]
    assert rows[0] == rows[1]
