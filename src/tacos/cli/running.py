"""The commands that run algorithms and programs: on real networks, or in a lab network."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from tacos import formats, units
from tacos._core import Schedule, Topology
from tacos._support.variables import read
from tacos.cli.app import Format, Json, Network, Quiet, app, check_folder, load_algorithm
from tacos.console import progress, show
from tacos.errors import CommunicationError, TacosError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tacos.runtime import Communicator, Row
    from tacos.runtime.carriers import CarrierKind

Carrier = Annotated[
    str | None,
    Parameter(help="What moves the data, such as tcp or mpi. Default: TACOS_CARRIER, or tcp."),
]


@app.command
def run(
    file: Annotated[Path, Parameter(help="A schedule or a program in any readable format.")],
    /,
    *,
    format: Format = None,
    np: Annotated[
        int | None, Parameter(help="Number of ranks; must equal the algorithm's.")
    ] = None,
    size: Annotated[
        str, Parameter(help="Buffer size, or a range that doubles: 1KB:64MB.")
    ] = "1KB:64MB",
    dtype: Annotated[str, Parameter(help="Element type: a NumPy name, or bfloat16.")] = "float32",
    op: Annotated[
        str, Parameter(help="Reduction: sum, product, min, max, avg, band, bor or bxor.")
    ] = "sum",
    iters: Annotated[int, Parameter(help="Timed calls per size.")] = 20,
    warmup: Annotated[int, Parameter(help="Untimed calls before the timed ones.")] = 5,
    check: Annotated[bool, Parameter(help="Whether to check every element of the results.")] = True,
    against: Annotated[
        Literal["auto", "gloo", "mpi", "ring", "none"],
        Parameter(help="Also measure a reference: MPI, gloo (needs torch), or a plain ring."),
    ] = "auto",
    mpi: Annotated[
        bool,
        Parameter(help="Move the data over MPI, under mpiexec.", negative="", show_default=False),
    ] = False,
    carrier: Carrier = None,
    switch: Annotated[
        str | None,
        Parameter(
            help="Send all-reduces through the switch at HOST:PORT (tacos switch), and compare with "
            "the file's algorithm. Its token is in TACOS_SWITCH_TOKEN."
        ),
    ] = None,
    timeout: Annotated[
        float, Parameter(help="Fail after this many seconds without progress.")
    ] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run an algorithm on real data, check the results, and print a table as nccl-tests does.

    Starts all ranks on this machine. Under torchrun, mpirun, srun or tacos lab,
    each process is one rank. Data go over TCP, over MPI with --mpi, or over the
    carrier that --carrier or TACOS_CARRIER names. The exit code is 1 if a
    result is wrong.

    Example: tacos run ar.tacos --np 8 --size 1KB:64MB
    Example: mpiexec -n 8 tacos run --mpi ar.tacos
    """
    from tacos import runtime
    from tacos.runtime.aggregation.sums import Place, opened

    if switch is not None:
        Place.parse(switch, "--switch")
    algorithm = load_algorithm(file, format)
    ranks = algorithm.topology.npus if isinstance(algorithm, Schedule) else algorithm.ranks
    if np is not None and np != ranks:
        raise ValueError(f"--np is {np}, but {file} is for {ranks} ranks")
    sizes = units.size_range(size, what="--size") if ":" in size else [units.size_bytes(size)]
    _check_timeout(timeout)
    kind = _carrier(carrier, mpi)
    if not runtime.in_job():
        _check_launcher(kind, ranks, f"run {file}")
        options = {
            "--size": size, "--dtype": dtype, "--op": op, "--iters": iters, "--warmup": warmup,
            "--against": against, "--timeout": timeout,
        }  # fmt: skip
        command = [sys.executable, "-m", "tacos", "run", str(file)]
        command += [str(word) for option in options.items() for word in option]
        command += ["--check" if check else "--no-check", *(["--format", format] if format else [])]
        command += ["--carrier", carrier] if carrier else []
        command += ["--switch", switch] if switch else []
        command += ["--json"] * as_json + ["--quiet"] * quiet
        with runtime.launch(command, ranks) as job:
            return job.wait()
    rank = None
    try:
        with _connect(kind, timeout) as comm:
            rank = comm.rank
            sums = opened(comm, switch or "", read("TACOS_SWITCH_TOKEN"))
            rows = runtime.measure(
                comm, algorithm, sizes, dtype=dtype, op=op, iters=iters, warmup=warmup,
                check=check, against=against, switched=sums,
            )  # fmt: skip
            found: list[runtime.Row] = []
            for line in runtime.table(_kept(rows, found)):
                if rank == 0 and not as_json and not quiet:
                    print(line, flush=True)
    except (TacosError, ValueError, TimeoutError) as error:
        return _failed(error, rank, kind)
    except KeyboardInterrupt:
        if "TACOS_RANK" not in os.environ:
            raise
        return 130  # if tacos started this rank, that process prints the message
    if rank == 0 and as_json:
        print(json.dumps([row.to_json() for row in found], indent=2))
    wrong = sum(f.wrong or 0 for row in found for f in (row.out_of_place, row.in_place) if f)
    return 1 if wrong else 0


def _failed(error: Exception, rank: int | None, carrier: CarrierKind | None) -> int:
    """Raise an error that all ranks know on rank 0, or on rank 1 if rank 0 failed; return the exit code on the others."""
    if carrier and carrier.job and isinstance(error, CommunicationError | TimeoutError):
        import_module(carrier.job).end_job_at_exit(2)
    if rank in (None, 0) or (rank == 1 and str(error).startswith("rank 0 ")):
        raise error
    return 2


def _check_timeout(seconds: float) -> None:
    if not seconds > 0:
        raise ValueError(f"--timeout must be positive; got {seconds:g}")


def _carrier(name: str | None, mpi: bool) -> CarrierKind | None:
    """Return the carrier that the options name, if any; an unknown one is an error before any rank starts."""
    from tacos.runtime.carriers import named

    if mpi and name not in (None, "mpi"):
        raise ValueError(f"--mpi and --carrier {name} exclude each other")
    chosen = "mpi" if mpi else name  # --mpi is short for --carrier mpi
    return None if chosen is None else named(chosen)


def _check_launcher(carrier: CarrierKind | None, ranks: int, command: str) -> None:
    """Refuse to start ranks here for a carrier that only its own launcher can start."""
    if carrier is not None and carrier.launcher:
        example = f"{carrier.launcher} -n {ranks} tacos {command} --carrier {carrier.name}"
        raise ValueError(
            f"the carrier {carrier.name} needs the ranks of {carrier.label}: {example}"
        )


def _connect(carrier: CarrierKind | None, timeout: float) -> Communicator:
    """Meet the other ranks, as the carrier does."""
    from tacos import runtime

    if carrier is None or not carrier.job:
        return runtime.connect(timeout=timeout, carrier=carrier.name if carrier else None)
    carrier.check_installed()
    communicator: Communicator = import_module(carrier.job).connect(timeout=timeout)
    return communicator


def _kept(rows: Iterable[Row], into: list[Row]) -> Iterator[Row]:
    for row in rows:
        into.append(row)
        yield row


@app.command
def lab(
    topology: Network,
    /,
    *command: Annotated[str, Parameter(help="Command to run on every NPU, after --.")],
    fastest: Annotated[
        str | None, Parameter(help="Bandwidth to give the fastest link, such as 200Mbit/s.")
    ] = None,
    scale: Annotated[
        float | None, Parameter(help="Factor for all bandwidths, instead of --fastest.")
    ] = None,
    mtu: Annotated[int, Parameter(help="Largest packet of all cables, in bytes.")] = 9000,
    loss: Annotated[
        float,
        Parameter(help="Probability that a reducing switch drops a packet, in each direction."),
    ] = 0.0,
    time_limit: Annotated[
        float | None, Parameter(help="Stop all commands after this many seconds.")
    ] = None,
    output: Annotated[
        Literal["prefixed", "first"],
        Parameter(help="Print every line with its rank, or only the output of rank 0."),
    ] = "prefixed",
    quiet: Quiet = False,
) -> int:
    """Build a topology from network namespaces and rate limits, and run a command on every NPU.

    All bandwidths are scaled down to what this machine can carry, unless
    --fastest or --scale is given. TACOS_TOPOLOGY names a file with the network
    as built, and torchrun's variables tell the commands how to find each other.
    Switches that reduce run tacos switch, and TACOS_SWITCH names them.
    The exit code is that of the first command that fails.

    Example: tacos lab torus:2x4 --fastest 100Mbit/s -- python train.py
    """
    from tacos.runtime.lab import Lab

    network = formats.network(topology)
    if not command:
        raise ValueError("COMMAND is missing: write it after --, as in tacos lab ring:4 -- env")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"--time-limit must be positive; got {time_limit:g}")
    with Lab(network, fastest=fastest, scale=scale, mtu=mtu, loss=loss) as built:
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
        int | None, Parameter(help="Ranks to start on this machine, without a launcher.")
    ] = None,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Write the topology to this file: cluster.yaml.")
    ] = None,
    device: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Measure this machine's GPU instead, with torch, and write a device for tacos train --device.",
        ),
    ] = False,
    seconds: Annotated[
        float | None,
        Parameter(help="Approximate duration of the measurement; 10, or 40 for a device."),
    ] = None,
    mpi: Annotated[
        bool,
        Parameter(
            help="Measure messages over MPI, under mpiexec.", negative="", show_default=False
        ),
    ] = False,
    carrier: Carrier = None,
    timeout: Annotated[
        float, Parameter(help="Fail after this many seconds without progress.")
    ] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Measure the network between ranks: latency, bandwidth and shared links of all pairs.

    Runs under torchrun, mpiexec, srun or tacos lab, or between processes of this
    machine with --np. The result is a topology for tacos synth, whose NPUs are
    named host:local_rank.

    Example: torchrun --nproc-per-node 8 --no-python tacos probe -o net.yaml
    Example: tacos lab ring:4 -- tacos probe
    Example: tacos probe --device -o h200.yaml
    """
    if device:
        return _probe_device(output, seconds or 40.0, as_json, quiet)
    seconds = seconds or 10.0
    from tacos import runtime
    from tacos.runtime.measure.probe import probe as measured
    from tacos.runtime.measure.probe import report

    if output is not None:  # what would only fail after the measurement fails before it
        if not formats.takes(Topology, output):
            raise ValueError(
                f"--output is {output}, but this format cannot hold a topology; use .yaml or .json"
            )
        check_folder("--output", output)
    _check_timeout(timeout)
    kind = _carrier(carrier, mpi)
    if not runtime.in_job():
        _check_launcher(kind, 8, "probe")
        if np is None:
            raise ValueError("there are no ranks: run it under torchrun or mpiexec, or give --np")
        command = [sys.executable, "-m", "tacos", "probe", "--seconds", str(seconds)]
        command += ["--timeout", str(timeout), *(["-o", str(output)] if output else [])]
        command += ["--carrier", carrier] if carrier else []
        command += ["--json"] * as_json + ["--quiet"] * quiet
        with runtime.launch(command, np) as job:
            return job.wait()
    rank = None
    try:
        with _connect(kind, timeout) as comm:
            rank = comm.rank
            wiring = measured(comm, seconds=seconds)
    except (TacosError, ValueError, TimeoutError) as error:
        return _failed(error, rank, kind)
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
        outline = repr(network)[len("<tacos.Topology ") : -1]
        print(outline + (f", written to {output}" if output else ""))
    return 0


def _probe_device(output: Path | None, seconds: float, as_json: bool, quiet: bool) -> int:
    from tacos.runtime.measure.device import measure
    from tacos.training.device_file import fitted, save_device

    if output is not None:
        check_folder("--output", output)
        if output.suffix.lower() not in (".yaml", ".yml", ".json"):
            raise ValueError(f"--output is {output}; a device goes into .yaml, .yml or .json")
    try:
        with progress("measuring", quiet or as_json) as report:
            rows = measure(seconds=seconds, progress=report)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    found = fitted(rows)
    if output is not None:
        save_device(found.device, output)
    show(
        found.summary() | ({"measurements": rows} if as_json else {}), rows["name"], as_json, quiet
    )
    if output is not None and not (quiet or as_json):
        print(f"{found.device.name} written to {output}")
    return 0
