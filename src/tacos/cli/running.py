"""The commands that run algorithms and programs: on real networks, or in a lab network."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from tacos import formats, units
from tacos._core import Program, Schedule, Topology
from tacos._support.variables import read
from tacos.cli.app import CALL, app, load_algorithm, verb, warn
from tacos.cli.options import PLAIN, Format, Network, Output, Values, check_folder, endings, offered
from tacos.console import progress
from tacos.errors import CommunicationError, TacosError
from tacos.schedule import uses_switches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tacos.runtime import Communicator, Row
    from tacos.runtime.carriers import CarrierKind

probe_verb = verb("probe")


def _carriers() -> Iterable[str]:
    from tacos.runtime.carriers import CARRIERS

    return CARRIERS


def _dtypes() -> Iterable[str]:
    from tacos.runtime.carriers import DTYPES

    return sorted(DTYPES)


def _reductions() -> Iterable[str]:
    from tacos.runtime.carriers import OPS

    return OPS


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How ranks meet, and what moves their data."""

    np: Annotated[
        int | None, Parameter(help="Ranks to start on this machine; tacos run knows the number.")
    ] = None
    mpi: Annotated[bool, PLAIN, Parameter(help="Move the data over MPI, under mpiexec.")] = False
    carrier: Annotated[
        str | None,
        Values(_carriers),
        Parameter(help="What moves the data, such as tcp or mpi. Default: TACOS_CARRIER, or tcp."),
    ] = None
    timeout: Annotated[float, Parameter(help="Fail after this many seconds without progress.")] = (
        60.0
    )

    def __post_init__(self) -> None:
        """Refuse an unknown carrier, two of them, and no time at all, before any rank starts."""
        if not self.timeout > 0:
            raise ValueError(f"--timeout must be positive; got {self.timeout:g}")
        if self.mpi and self.carrier not in (None, "mpi"):
            raise ValueError(f"--mpi and --carrier {self.carrier} exclude each other")
        if self.carrier is not None:
            from tacos.runtime.carriers import named

            named(self.carrier)

    @property
    def kind(self) -> CarrierKind | None:
        """The carrier that was asked for, if any."""
        from tacos.runtime.carriers import named

        chosen = "mpi" if self.mpi else self.carrier  # --mpi is short for --carrier mpi
        return None if chosen is None else named(chosen)

    def check_launcher(self, ranks: int, command: str) -> None:
        """Refuse to start ranks here for a carrier that only its own launcher can start."""
        if (kind := self.kind) is not None and kind.launcher:
            example = f"{kind.launcher} -n {ranks} tacos {command} --carrier {kind.name}"
            raise ValueError(f"the carrier {kind.name} needs the ranks of {kind.label}: {example}")

    def start(self, ranks: int) -> int:
        """Run this command again as ranks on this machine; return the exit code."""
        from tacos import runtime

        with runtime.launch([sys.executable, "-m", "tacos", *CALL.get()], ranks) as job:
            return job.wait()

    def connect(self) -> Communicator:
        """Meet the other ranks, as the carrier does."""
        from tacos import runtime

        kind = self.kind
        if kind is None or not kind.job:
            return runtime.connect(timeout=self.timeout, carrier=kind.name if kind else None)
        kind.check_installed()
        communicator: Communicator = import_module(kind.job).connect(timeout=self.timeout)
        return communicator

    def failed(self, error: Exception, rank: int | None) -> int:
        """Raise an error that all ranks know on rank 0, or on rank 1 if rank 0 failed; return the exit code on the others."""
        kind = self.kind
        if kind and kind.job and isinstance(error, CommunicationError | TimeoutError):
            import_module(kind.job).end_job_at_exit(2)
        if rank in (None, 0) or (rank == 1 and str(error).startswith("rank 0 ")):
            raise error
        return 2


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured at which sizes, and beside what."""

    size: Annotated[str, Parameter(help="Buffer size, or a range that doubles: 1KB:64MB.")] = (
        "1KB:64MB"
    )
    dtype: Annotated[
        str, Values(_dtypes), Parameter(help="Element type: a NumPy name, or bfloat16.")
    ] = "float32"
    op: Annotated[
        str,
        Values(_reductions),
        Parameter(help="Reduction: sum, product, min, max, avg, band, bor or bxor."),
    ] = "sum"
    iters: Annotated[int, Parameter(help="Timed calls per size.")] = 20
    warmup: Annotated[int, Parameter(help="Untimed calls before the timed ones.")] = 5
    check: Annotated[bool, Parameter(help="Whether to check every element of the results.")] = True
    against: Annotated[
        Literal["auto", "gloo", "mpi", "ring", "none"],
        Parameter(help="Also measure a reference: MPI, gloo (needs torch), or a plain ring."),
    ] = "auto"
    switch: Annotated[
        str | None,
        Parameter(
            help="Send all-reduces through the switch at HOST:PORT (tacos switch), and compare with "
            "the file's algorithm. Its token is in TACOS_SWITCH_TOKEN."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse an address that is none."""
        if self.switch is not None:
            from tacos.runtime.aggregation.sums import Place

            Place.parse(self.switch, "--switch")

    @property
    def sizes(self) -> list[int]:
        """The buffer sizes in bytes."""
        ranged = ":" in self.size
        return (
            units.size_range(self.size, what="--size") if ranged else [units.size_bytes(self.size)]
        )

    def rows(
        self, comm: Communicator, algorithm: Schedule | Program, sizes: list[int]
    ) -> Iterator[Row]:
        """Measure; yield a row per size."""
        from tacos import runtime
        from tacos.runtime.aggregation.sums import opened

        yield from runtime.measure(
            comm,
            algorithm,
            sizes,
            dtype=self.dtype,
            op=self.op,
            iters=self.iters,
            warmup=self.warmup,
            check=self.check,
            against=self.against,
            switched=opened(comm, self.switch or "", read("TACOS_SWITCH_TOKEN")),
        )


@app.command
def run(
    file: Annotated[
        Path,
        Values(files=endings("Schedule", "Program")),
        Parameter(help="A schedule or a program in any readable format."),
    ],
    /,
    *,
    format: Format = None,
    measurement: Measurement = Measurement(),
    ranks: Ranks = Ranks(),
    out: Output = Output(),
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

    algorithm = load_algorithm(file, format)
    needed = algorithm.topology.npus if isinstance(algorithm, Schedule) else algorithm.ranks
    if ranks.np is not None and ranks.np != needed:
        raise ValueError(f"--np is {ranks.np}, but {file} is for {needed} ranks")
    sizes = measurement.sizes
    if not runtime.in_job():
        ranks.check_launcher(needed, f"run {file}")
        return ranks.start(needed)
    rank = None
    found: list[Row] = []
    try:
        with ranks.connect() as comm:
            rank = comm.rank
            algorithm = _between_ranks(comm, algorithm, out)
            for line in runtime.table(_kept(measurement.rows(comm, algorithm, sizes), found)):
                if rank == 0 and not out.silent:
                    print(line, flush=True)
    except (TacosError, ValueError, TimeoutError) as error:
        return ranks.failed(error, rank)
    except KeyboardInterrupt:
        if "TACOS_RANK" not in os.environ:
            raise
        return 130  # if tacos started this rank, that process prints the message
    if rank == 0 and out.as_json:
        print(json.dumps([row.to_json() for row in found], indent=2))
    wrong = sum(f.wrong or 0 for row in found for f in (row.out_of_place, row.in_place) if f)
    return 1 if wrong else 0


def _between_ranks(
    comm: Communicator, algorithm: Schedule | Program, out: Output
) -> Schedule | Program:
    """Return an algorithm that messages between ranks can carry out.

    For a schedule that sums in switches, rank 0 finds another one for the same network and collective, and says so.
    """
    from tacos.library import packed, unpacked
    from tacos.runtime.carriers import named
    from tacos.search.synthesis import synthesize

    if isinstance(algorithm, Program) or not uses_switches(algorithm):
        return algorithm
    target, mine = named(comm.carrier).target, b""
    if comm.rank == 0:
        other = synthesize(algorithm.topology, algorithm.collective, target=target)
        mine = packed(other)
        if not out.silent:
            warn(
                "the schedule multicasts or reduces in switches, which messages between ranks cannot: running "
                f"what tacos synth --target {target} finds, by the engine {other.engine}"
            )
    return unpacked(comm.exchange("schedule without sums in switches", mine)[0])


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
    quiet: Annotated[bool, PLAIN, Parameter(help="Print errors only.")] = False,
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


@probe_verb.default
def probe(
    *,
    output: Annotated[
        Path | None,
        offered(files=(".yaml", ".yml", ".json")),
        Parameter(alias="-o", help="Write the topology to this file: cluster.yaml."),
    ] = None,
    seconds: Annotated[float, Parameter(help="Approximate duration of the measurement.")] = 10.0,
    ranks: Ranks = Ranks(),
    out: Output = Output(),
) -> int:
    """Measure the network between ranks: latency, bandwidth and shared links of all pairs.

    Runs under torchrun, mpiexec, srun or tacos lab, or between processes of this
    machine with --np. The result is a topology for tacos synth, whose NPUs are
    named host:local_rank.

    Example: torchrun --nproc-per-node 8 --no-python tacos probe -o net.yaml
    Example: tacos lab ring:4 -- tacos probe
    """
    from tacos import runtime
    from tacos.runtime.measure.probe import probe as measured
    from tacos.runtime.measure.probe import report

    if output is not None:  # what would only fail after the measurement fails before it
        if not formats.takes(Topology, output):
            raise ValueError(
                f"--output is {output}, but this format cannot hold a topology; use .yaml or .json"
            )
        check_folder("--output", output)
    if not runtime.in_job():
        ranks.check_launcher(8, "probe")
        if ranks.np is None:
            raise ValueError("there are no ranks: run it under torchrun or mpiexec, or give --np")
        return ranks.start(ranks.np)
    rank = None
    try:
        with ranks.connect() as comm:
            rank = comm.rank
            wiring = measured(comm, seconds=seconds)
    except (TacosError, ValueError, TimeoutError) as error:
        return ranks.failed(error, rank)
    if rank != 0:
        return 0
    network = wiring.topology()
    if output is not None:
        formats.save(network, output)
    if out.as_json:
        print(json.dumps(wiring.to_json(), indent=2))
    elif not out.quiet:
        for line in report(wiring):
            print(line)
        outline = repr(network)[len("<tacos.Topology ") : -1]
        print(outline + (f", written to {output}" if output else ""))
    return 0


@probe_verb.command
def device(
    *,
    output: Annotated[
        Path | None,
        offered(files=(".yaml", ".yml", ".json")),
        Parameter(alias="-o", help="Write the device to this file: h200.yaml."),
    ] = None,
    seconds: Annotated[float, Parameter(help="Approximate duration of the measurement.")] = 40.0,
    out: Output = Output(),
) -> int:
    """Measure this machine's GPU with torch, and write a device for tacos train --device.

    Example: tacos probe device -o h200.yaml
    """
    from tacos.runtime.measure.device import measure
    from tacos.training.device_file import fitted, save_device

    if output is not None:
        check_folder("--output", output)
        if output.suffix.lower() not in (".yaml", ".yml", ".json"):
            raise ValueError(f"--output is {output}; a device goes into .yaml, .yml or .json")
    try:
        with progress("measuring", out.silent) as report:
            rows = measure(seconds=seconds, progress=report)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    found = fitted(rows)
    if output is not None:
        save_device(found.device, output)
    out.show(found.summary() | ({"measurements": rows} if out.as_json else {}), rows["name"])
    if output is not None and not out.silent:
        print(f"{found.device.name} written to {output}")
    return 0
