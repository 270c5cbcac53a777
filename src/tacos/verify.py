"""The verifier: is a schedule, a program or a workload correct?

It shares only the data classes with the code that it checks. It walks every route link by link, recomputes
times from the topology, and follows values from the inputs to the outputs. The rules are listed at :func:`verify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from tacos._core import (
    Program,
    Schedule,
    VerifyReport,
    Violation,
    Workload,
    verify_program,
    verify_workload,
)
from tacos._core import verify as _verify
from tacos._cuda import check_device
from tacos._cuda import verify as on_gpu
from tacos.errors import TacosError, VerificationError, check_type

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Report", "Violation", "verify"]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a verification.

    Attributes:
        ok: Whether nothing is wrong.
        checked: Number of stored transfers, steps of a program, or nodes of a workload that were checked.
        found: Number of violations, including those beyond the limit.
        violations: The violations that were kept, grouped by rule.
        subject: What was checked: a schedule, a workload, or a program (in place or out of place, if it runs both ways).
        consistent: Whether all NPUs that end with a sum end with the same bits; see :func:`verify`. True for
            collectives without sums, or whose sums each end at one NPU.
        difference: A sentence about two NPUs that sum a chunk in different orders; empty if there are none.
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

    def __str__(self) -> str:
        """Return the verdict and the violations, at most three of each rule.

        >>> import tacos
        >>> print(verify(tacos.synthesize("ring:4", tacos.collective.all_gather(4, "4MB", chunks=1))))
        the schedule is correct
        """
        if self.ok:
            bits = (
                "" if self.consistent else f"; ranks may end with different bits: {self.difference}"
            )
            return f"the {self.subject} is correct{bits}"
        head = f"the {self.subject} is not valid: {self.found:,} violation{'s' * (self.found > 1)}"
        return "\n".join([head, *self.lines()])

    def lines(self, alike: int = 3) -> list[str]:
        """Return the violations as sentences: at most `alike` of each rule, then the number of others.

        >>> Report(1, 0, ()).lines()
        []
        """
        shown: list[str] = []
        for rule, group in groupby(self.violations, key=lambda violation: violation.rule):
            kept = list(group)
            shown += [f"{rule}: {violation.message}" for violation in kept[:alike]]
            if len(kept) > alike:
                shown.append(f"{rule}: and {len(kept) - alike:,} more of this kind")
        if self.found > len(self.violations) > 0:
            shown.append(f"{self.found - len(self.violations):,} more violations are not listed")
        return shown

    def raise_if_failed(self) -> None:
        """Raise a VerificationError that names the first violation, if there is one.

        An inconsistent schedule is not wrong: integers have the same sum in any order.
        """
        if self.ok:
            return
        more = f" (and {self.found - 1} more)" if self.found > 1 else ""
        raise VerificationError(f"the {self.subject} is wrong: {self.violations[0].message}{more}")


def verify(
    schedule: Schedule | Program | Workload,
    *,
    allow_unneeded: bool = False,
    limit: int = 100,
    threads: int = 0,
    device: str = "cpu",
    progress: Callable[[float], object] | None = None,
) -> Report:
    """Check a schedule, a program or a workload from any source.

    The rules for schedules:

    - *causality*: a transfer starts only when its source holds what it reads;
    - *capacity*: no two transfers use a physical link at the same time;
    - *postcondition*: every NPU that must end with a chunk has received it;
    - *contribution*: every final value contains every contribution exactly once;
    - *unneeded*: every transfer affects a value that some NPU needs in the end;
    - *symmetry*: for an orbit, the generators act as claimed and preserve topology and collective.

    The rules for programs (the ``transfer`` of a violation is a step):

    - *unmatched*: every send has one receive, and every wait one signal;
    - *deadlock*: all steps can run;
    - *undefined*: a step reads only slots that have been written;
    - *input*: out of place, the input is not modified;
    - *race*: two steps that access a slot are ordered if one of them writes;
    - *postcondition* and *contribution*, as above.

    The rules for workloads (the ``transfer`` of a violation is a row):

    - *unmatched*: every send has one receive with the same ranks, tag and size, and vice versa;
    - *alone*: every collective has at least two ranks;
    - *missing*: all members of a group join each of its collectives;
    - *mismatch*: all members join with the same kind of collective and the same size;
    - *deadlock*: nodes do not wait for each other in a cycle across ranks. Sends are buffered, a collective ends
      after it has begun on all members, and the k-th collectives of a group on its ranks belong together.

    **Identical bits.** Floating-point addition commutes but does not associate, so NPUs end an all-reduce with
    the same bits only if all of them sum a chunk in the same order. ``Report.consistent`` tells whether they
    do. A program fixes the order of all additions. A schedule does not fix the order in which an NPU adds values that
    arrive between two reads of its sum; :func:`tacos.program.lower` puts equal sets of operands into one order on all ranks,
    so a consistent schedule becomes a consistent program.

    A program from a file that can run both in place and out of place is checked both ways.

    Args:
        schedule: A schedule, a program or a workload. An orbit is proven from its representatives.
        allow_unneeded: Do not report transfers that no NPU needs.
        limit: Number of violations to keep; all are counted.
        threads: Number of threads; 0 uses all cores. A program is checked by one thread.
        device: ``"cuda"`` checks on a GPU, and ``"auto"`` does so if possible: for all-gathers, reduce-scatters and
            all-reduces over equal direct links. If the GPU finds a violation, the CPU repeats the check and describes it.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "1MB", chunks=1)
    >>> verify(tacos.synthesize(topo, coll, engine="ring")).ok
    True
    >>> verify(tacos.lower(tacos.synthesize(topo, coll))).ok
    True
    >>> summed = tacos.collective.all_reduce(topo, "1KB", chunks=1)
    >>> verify(tacos.lower(tacos.synthesize(topo, summed, engine="one-shot"))).consistent
    True
    """
    check_type("schedule", schedule, Schedule, Program, Workload)
    if not 1 <= limit < 2**31:
        raise ValueError(f"limit must be 1 to 2^31 - 1; got {limit}")
    if not 0 <= threads < 2**15:
        raise ValueError(f"threads must be 0 (all cores) or a positive number; got {threads}")
    check_device(device)
    if device != "cpu":
        missing = "the GPU checks schedules only"
        if isinstance(schedule, Schedule) and not (missing := on_gpu.obstacle(schedule)):
            if on_gpu.shows_right(schedule):
                return Report(schedule.transfers, 0, ())
        elif device == "cuda":
            raise TacosError(f'device "cuda" cannot be used: {missing}')
    if isinstance(schedule, Workload):
        return _report(verify_workload(schedule, limit=limit), "workload", "")
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
