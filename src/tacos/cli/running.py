"""The commands that run something: on real networks, or on one that a lab builds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from tacos import formats, units
from tacos._core import Schedule
from tacos.cli.app import Algorithm, Format, Json, Network, Quiet, app, load_algorithm
from tacos.errors import CommunicationError, TacosError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from tacos.runtime import Row


@app.command
def run(
    file: Algorithm,
    /,
    *,
    format: Format = None,
    np: Annotated[
        int | None, Parameter(help="Ranks to start here; default: those of the algorithm.")
    ] = None,
    size: Annotated[
        str, Parameter(help="Of the buffer: 64MB, or from one to another: 1KB:64MB.")
    ] = "1KB:64MB",
    dtype: Annotated[str, Parameter(help="Type of the elements, by NumPy's name.")] = "float32",
    op: Annotated[str, Parameter(help="sum, product, min, max, avg, band, bor or bxor.")] = "sum",
    iters: Annotated[int, Parameter(help="Calls that are timed, at each size.")] = 20,
    warmup: Annotated[int, Parameter(help="Calls before.")] = 5,
    check: Annotated[bool, Parameter(help="Whether to check every element of a result.")] = True,
    against: Annotated[
        Literal["auto", "gloo", "mpi", "ring", "none"],
        Parameter(help="What to show beside it: MPI, gloo if torch is there, or a plain ring."),
    ] = "auto",
    mpi: Annotated[
        bool, Parameter(help="Move the data by MPI, under mpiexec.", negative="")
    ] = False,
    timeout: Annotated[float, Parameter(help="Seconds without progress that mean failure.")] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run an algorithm on real data, check the result and print nccl-tests' table.

    Starts the ranks as processes of this machine; under torchrun, mpirun, srun
    or tacos lab it is one of their ranks. Data take TCP, or MPI with --mpi. The
    exit code is 1 if a result was wrong.

    Example: tacos run ar.tacos --np 8 --size 1KB:64MB
    Example: mpiexec -n 8 tacos run --mpi ar.tacos
    """
    from tacos import runtime

    algorithm = load_algorithm(file, format)
    ranks = algorithm.topology.npus if isinstance(algorithm, Schedule) else algorithm.ranks
    if np is not None and np != ranks:
        raise ValueError(f"--np is {np}, but {file} is for {ranks} ranks")
    sizes = units.size_range(size, what="--size") if ":" in size else [units.size_bytes(size)]
    if mpi and not runtime.in_job():
        raise ValueError(f"--mpi needs the ranks of MPI: mpiexec -n {ranks} tacos run --mpi {file}")
    if not runtime.in_job():
        options = {
            "--size": size, "--dtype": dtype, "--op": op, "--iters": iters, "--warmup": warmup,
            "--against": against, "--timeout": timeout,
        }  # fmt: skip
        command = [sys.executable, "-m", "tacos", "run", str(file)]
        command += [str(word) for option in options.items() for word in option]
        command += ["--check" if check else "--no-check", *(["--format", format] if format else [])]
        command += ["--json"] * as_json + ["--quiet"] * quiet
        with runtime.launch(command, ranks) as job:
            return job.wait()
    connect = _mpi().connect if mpi else runtime.connect
    rank = None
    try:
        with connect(timeout=timeout) as comm:
            rank = comm.rank
            rows = runtime.measure(
                comm, algorithm, sizes, dtype=dtype, op=op, iters=iters, warmup=warmup,
                check=check, against=against,
            )  # fmt: skip
            found: list[runtime.Row] = []
            for line in runtime.table(_kept(rows, found)):
                if rank == 0 and not as_json and not quiet:
                    print(line, flush=True)
    except (TacosError, ValueError, TimeoutError) as error:
        return _failed(error, rank, mpi)
    if rank == 0 and as_json:
        print(json.dumps([row.to_json() for row in found], indent=2))
    wrong = sum(f.wrong or 0 for row in found for f in (row.out_of_place, row.in_place) if f)
    return 1 if wrong else 0


def _failed(error: Exception, rank: int | None, mpi: bool) -> int:
    """All ranks hear of an error. Rank 0 tells it, unless it is the one that failed."""
    if mpi and isinstance(error, CommunicationError | TimeoutError):
        _mpi().end_job_at_exit(2)
    if rank in (None, 0) or (rank == 1 and str(error).startswith("rank 0 ")):
        raise error
    return 2


def _mpi() -> ModuleType:
    try:
        from tacos.runtime import mpi
    except ImportError:
        raise ValueError("--mpi needs mpi4py: pip install 'tacos-ccl[mpi]'") from None
    return mpi


def _kept(rows: Iterable[Row], into: list[Row]) -> Iterator[Row]:
    for row in rows:
        into.append(row)
        yield row


@app.command
def lab(
    topology: Network,
    /,
    *command: Annotated[str, Parameter(help="What to run once for each NPU, behind a --.")],
    fastest: Annotated[
        str | None, Parameter(help="Speed of the fastest link, such as 200Mbit/s.")
    ] = None,
    scale: Annotated[
        float | None, Parameter(help="What to multiply all speeds by, instead.")
    ] = None,
    time_limit: Annotated[float | None, Parameter(help="Seconds after which all is ended.")] = None,
    output: Annotated[
        Literal["prefixed", "first"],
        Parameter(help="Every line behind its rank, or what rank 0 says."),
    ] = "prefixed",
    quiet: Quiet = False,
) -> int:
    """Build a topology from network namespaces and rate limits, and run a command on every NPU.

    All speeds are scaled down to what this machine can carry, unless --fastest
    or --scale say otherwise. The commands find the network that is enforced in
    the file TACOS_TOPOLOGY, and each other by the variables of torchrun. The
    exit code is that of the first to fail.

    Example: tacos lab torus:2x4 --fastest 100Mbit/s -- python train.py
    """
    from tacos.runtime.lab import Lab

    network = formats.network(topology)
    if not command:
        raise ValueError("there is no COMMAND: write it behind a --, as in tacos lab ring:4 -- env")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"--time-limit is {time_limit:g}, it must be positive")
    with Lab(network, fastest=fastest, scale=scale) as built:
        if not quiet:
            print(built.describe(), file=sys.stderr)
        ended = built.run(command, time_limit=time_limit, output=output)
    if ended.why:
        print(f"tacos: {ended.why}", file=sys.stderr)
    return ended.code


@app.command
def probe(
    *,
    np: Annotated[
        int | None, Parameter(help="Ranks to start here, where no launcher has started some.")
    ] = None,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="File for the topology, such as cluster.yaml.")
    ] = None,
    seconds: Annotated[float, Parameter(help="About how long messages may take in all.")] = 10.0,
    mpi: Annotated[
        bool, Parameter(help="Measure MPI's messages, under mpiexec.", negative="")
    ] = False,
    timeout: Annotated[float, Parameter(help="Seconds without progress that mean failure.")] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Measure the network between ranks: latency and bandwidth of every pair, and what they share.

    Runs under torchrun, mpiexec, srun or tacos lab, and with --np between
    processes of this machine. The topology is for tacos synth; NPUs are named
    host:local_rank.

    Example: torchrun --nproc-per-node 8 --no-python tacos probe -o net.yaml
    Example: tacos lab ring:4 -- tacos probe
    """
    from tacos import runtime
    from tacos.runtime.probe import probe as measured
    from tacos.runtime.probe import report

    if not runtime.in_job():
        if mpi:
            raise ValueError("--mpi needs the ranks of MPI: mpiexec -n 8 tacos probe --mpi")
        if np is None:
            raise ValueError("there are no ranks: start it under torchrun or mpiexec, or give --np")
        command = [sys.executable, "-m", "tacos", "probe", "--seconds", str(seconds)]
        command += ["--timeout", str(timeout), *(["-o", str(output)] if output else [])]
        command += ["--json"] * as_json + ["--quiet"] * quiet
        with runtime.launch(command, np) as job:
            return job.wait()
    rank = None
    try:
        with (_mpi().connect if mpi else runtime.connect)(timeout=timeout) as comm:
            rank = comm.rank
            wiring = measured(comm, seconds=seconds)
    except (TacosError, ValueError, TimeoutError) as error:
        return _failed(error, rank, mpi)
    if rank != 0:
        return 0
    network = wiring.topology()
    if output is not None:
        formats.save(network, output)
    if as_json:
        print(json.dumps(wiring.to_json(), indent=2))
    elif not quiet:
        for line in report(wiring):
            print(line)
        print(repr(network) + (f" written to {output}" if output else ""))
    return 0
