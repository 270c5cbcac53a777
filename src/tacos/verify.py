"""The verifier: is a schedule, or a program, right?

It shares the data classes with what it checks and nothing else: routes are walked again link by
link, times are computed again from the topology, values are followed from the inputs to the
outputs. The rules are listed at :func:`verify`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos import _cuda
from tacos._core import Program, Schedule, VerifyReport, Violation, verify_program
from tacos._core import verify as _verify
from tacos.errors import TacosError, VerificationError, check_type

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Report", "Violation", "verify"]


@dataclass(frozen=True, slots=True)
class Report:
    """What the verifier found.

    Attributes:
        ok: Whether nothing is wrong.
        checked: Stored transfers, or steps of a program, that were checked.
        found: Number of violations, also those beyond the limit.
        violations: The violations that were kept, grouped by rule.
        subject: What was checked: a schedule or a program, in place or out of place if it is for both.
        consistent: Whether all NPUs that end with a sum end with the same bits of it, see :func:`verify`. True
            for collectives whose sums end at one NPU each, or that have none.
        difference: Two NPUs that add up a chunk in different orders, in a sentence; empty if there are none.
    """

    checked: int
    found: int
    violations: tuple[Violation, ...]
    subject: str = "schedule"
    consistent: bool = True
    difference: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.found == 0

    def raise_if_failed(self) -> None:
        """Raise a VerificationError that names the first violation, if there is one.

        An inconsistent schedule is not wrong: integers have the same sum in any order.
        """
        if self.ok:
            return
        more = f" (and {self.found - 1} more)" if self.found > 1 else ""
        raise VerificationError(f"the {self.subject} is wrong: {self.violations[0].message}{more}")


def verify(
    schedule: Schedule | Program,
    *,
    allow_unneeded: bool = False,
    limit: int = 100,
    threads: int = 0,
    device: str = "cpu",
    progress: Callable[[float], object] | None = None,
) -> Report:
    """Check a schedule or a program, whatever made it.

    The rules for schedules:

    - *causality*: a transfer starts only when its source holds what it reads;
    - *capacity*: no two transfers use a physical link at one time;
    - *postcondition*: every NPU that must end with a chunk has received it;
    - *contribution*: every final value contains every contribution exactly once;
    - *unneeded*: every transfer changes what some NPU needs in the end;
    - *symmetry*: for an orbit, the generators act as claimed and preserve topology and collective.

    The rules for programs, of which a violation's ``transfer`` is a step:

    - *unmatched*: every send has one receive, and every wait one signal;
    - *deadlock*: the steps can all run;
    - *undefined*: a step reads only what something has been written to;
    - *input*: out of place, the input stays as it is;
    - *race*: two steps that touch a slot, one of them writing, are ordered;
    - *postcondition* and *contribution*, as above.

    **Identical bits.** Floating-point addition commutes but does not associate, so NPUs end an all-reduce with
    the same bits only if all of them add up a chunk in the same order. ``Report.consistent`` tells whether they
    do. A program fixes the order of all additions. A schedule leaves it open in which order an NPU adds what
    arrives between two reads of its sum; :func:`tacos.program.lower` puts equal sets of operands into one order on all ranks,
    so a consistent schedule becomes a consistent program.

    A program of a file that says it runs both in place and out of place is checked both ways.

    Args:
        schedule: Packed, or an orbit, which is proven from its representatives; or a program.
        allow_unneeded: Do not report transfers that nobody needs.
        limit: How many violations to keep; all are counted.
        threads: 0 uses all cores; a program is checked by one.
        device: ``"cuda"`` checks on a GPU, and ``"auto"`` does where one can: schedules of all-gathers over direct
            links that are all alike. What is wrong is then found again, and described, by the CPU.
        progress: Called with the share done, now and then.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "1MB", chunks=1)
    >>> verify(tacos.synthesize(topo, coll, engine="ring")).ok
    True
    >>> verify(tacos.lower(tacos.synthesize(topo, coll))).ok
    True
    >>> everybody_sums = tacos.collective.all_reduce(topo, "1KB", chunks=1)
    >>> verify(tacos.lower(tacos.synthesize(topo, everybody_sums, engine="one-shot"))).consistent
    True
    """
    check_type("schedule", schedule, Schedule, Program)
    if not 1 <= limit < 2**31:
        raise ValueError(f"limit must be 1 to 2^31 - 1; got {limit}")
    if not 0 <= threads < 2**15:
        raise ValueError(f"threads must be 0 (all cores) or a positive number; got {threads}")
    if device not in ("cpu", "cuda", "auto"):
        raise ValueError(f"device must be cpu or cuda or auto; got {device!r}")
    if device != "cpu":
        missing = _gpu_obstacle(schedule)
        if missing and device == "cuda":
            raise TacosError(f'device="cuda" does not work here: {missing}')
        if not missing and isinstance(schedule, Schedule) and not _wrong_on_gpu(schedule):
            return Report(schedule.transfers, 0, ())
    if isinstance(schedule, Program):
        found = verify_program(schedule, limit=limit, progress=progress)
        subject = "program"
        if found.found == 0 and schedule.either_place:
            other = schedule.with_in_place(not schedule.in_place)
            subject += " in place" if other.in_place else " out of place"
            first, found = found, verify_program(other, limit=limit, progress=progress)
            if not first.consistent:
                return _report(found, subject, first.difference)
        return _report(found, subject, found.difference)
    found = _verify(
        schedule, allow_unneeded=allow_unneeded, limit=limit, threads=threads, progress=progress
    )
    return _report(found, "schedule", found.difference)


def _report(found: VerifyReport, subject: str, difference: str) -> Report:
    consistent = found.consistent and not difference
    violations = tuple(found.violations)
    return Report(found.checked, found.found, violations, subject, consistent, difference)


def _gpu_obstacle(schedule: Schedule | Program) -> str:
    """Why the GPU's kernels do not check it; empty if they do."""
    if isinstance(schedule, Program) or schedule.form != "packed":
        return "the GPU checks schedules whose transfers are all written out"
    topology, routes, collective = schedule.topology, schedule.routes, schedule.collective
    alike = (
        topology.nodes == topology.npus
        and len(np.unique(topology.link_latency_ps)) == 1
        and len(np.unique(topology.link_bandwidth_Bps)) == 1
        and len(np.unique(collective.chunk_bytes)) == 1
        and not routes.kinds.any()
        and (np.diff(routes.link_begin) == 1).all()
        and not schedule.lane_op.any()
        and len(np.unique(routes.links[schedule.lane_route])) == len(schedule.lane_route)
        and all(
            part.kind == "all_gather" and len(part.group) == topology.npus
            for part in collective.parts
        )
    )
    if not alike:
        return "the GPU checks all-gathers over direct links that are all alike"
    if missing := _cuda.obstacle():
        return missing
    device = _cuda.gpu()
    with device.current():
        free = device.free_bytes()
    needed = 8 * schedule.transfers + 4 * topology.npus * collective.chunks
    if needed > 0.95 * free:
        return (
            f"the {device.name} has {free / 2**30:.0f} GiB free, the check needs "
            f"{needed / 2**30:.0f} GiB"
        )
    return ""


def _wrong_on_gpu(schedule: Schedule, figures: dict[str, float] | None = None) -> bool:
    """Whether the kernels of ``tacos/_cuda/verify.cu`` find anything wrong.

    Args:
        schedule: One that they can check.
        figures: Takes the seconds of the upload and of the check, for benchmarks.
    """
    topology, collective, chunks = (
        schedule.topology,
        schedule.collective,
        schedule.collective.chunks,
    )
    if schedule.transfers != chunks * (topology.npus - 1):
        return True
    seconds = {} if figures is None else figures
    held, npu = collective.precondition()
    holder = np.empty(chunks, np.uint32)
    holder[held] = npu
    link = schedule.routes.links[schedule.lane_route]
    bandwidth, latency = int(topology.link_bandwidth_Bps[0]), int(topology.link_latency_ps[0])
    sending = -(-int(collective.chunk_bytes[0]) * 10**12 // bandwidth)
    busy = sending + (latency if topology.link_model == "blocking" else 0)
    step = np.uint64(schedule.quantum_ps)
    device, begin = _cuda.gpu(), time.perf_counter()
    with device.current():
        lane_begin = device.upload(schedule.lane_begin)
        src = device.upload(topology.link_src[link].astype(np.uint32))
        dst = device.upload(topology.link_dst[link].astype(np.uint32))
        moved = (device.upload(schedule.chunk), device.upload(schedule.start))
        seconds["upload"], begin = time.perf_counter() - begin, time.perf_counter()
        first = device.empty(4 * topology.npus * chunks).fill(0xFF)
        wrong, holds = device.empty(8).fill(0), device.upload(holder)
        lanes, count = len(schedule.lane_route), np.uint32(chunks)
        device.launch(
            ("verify", "note_arrivals"),
            lanes,
            256,
            *(lane_begin, dst, *moved, count, step, np.uint64(busy), first, wrong),
        )
        device.launch(
            ("verify", "check_sources"),
            lanes,
            256,
            *(
                lane_begin,
                src,
                *moved,
                count,
                step,
                np.uint64(latency + sending),
                holds,
                first,
                wrong,
            ),
        )
        device.launch(("verify", "check_outputs"), topology.npus, 256, count, holds, first, wrong)
        found = int(wrong.get(np.uint64)[0])
        seconds["check"] = time.perf_counter() - begin
    return found > 0
