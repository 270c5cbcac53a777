"""The command line application, and the arguments and helpers that several verbs share."""

from __future__ import annotations

import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App
from cyclopts import Group as Section

import tacos
from tacos import collective as collectives
from tacos import formats, units
from tacos._core import Program, Schedule, Topology, Workload
from tacos.console import progress
from tacos.errors import FormatError, PluginWarning, WorkerLostWarning
from tacos.execution import execution, slowdown

if TYPE_CHECKING:
    from concurrent.futures import Executor

CALL: ContextVar[tuple[str, ...]] = ContextVar("CALL")
"""The arguments of the running command, for verbs that start it again as ranks."""

app = App(
    name="tacos",
    help="""Collective communication algorithms tailored to your network.

To begin: tacos compare torus:4x4 all-reduce 64MB

Run any command with --help for its options, and with --json for output that scripts can read.""",
    version=tacos.__version__,
    help_format="plaintext",
    group_commands=Section("Other", sort_key=100),
    suppress_keyboard_interrupt=False,  # main() says that nothing was written
)


def verb(name: str) -> App:
    """Return a verb that has commands of its own, beside what it does without one."""
    found = App(
        name=name,
        version=tacos.__version__,
        help_format="plaintext",
        group_commands=Section("Commands", sort_key=0),
    )
    app.command(found)
    return found


def load_algorithm(path: Path, format: str | None = None) -> Schedule | Program:
    """Return the schedule or program in a file."""
    return algorithm_in(path, formats.load(path, format=format))


def algorithm_in(
    path: Path, loaded: Schedule | Program | Topology | Workload
) -> Schedule | Program:
    """Return what was loaded from a file, if it is a schedule or program."""
    if isinstance(loaded, Topology | Workload):
        held = type(loaded).__name__.lower()
        raise FormatError(f"{path} holds a {held}, not a schedule or a program")
    return loaded


def _assuming(npus: int | None = None, size_bytes: int | None = None) -> None:
    """Warn about the network and the size that a command takes for want of options."""
    found = []
    if npus is not None:
        found.append((f"a fully connected network of {npus:,} NPUs", "--topology"))
    if size_bytes is not None:
        found.append((units.format_size(size_bytes), "--size"))
    if found:
        things, options = (" and ".join(words) for words in zip(*found, strict=True))
        warn(f"assuming {things}; set {'it' if len(found) == 1 else 'them'} with {options}")


def lifted(
    algorithm: Schedule | Program, network: Topology | None, size: str | None, silent: bool
) -> Schedule:
    """Return the schedule itself, or lift the program; print what was assumed."""
    if isinstance(algorithm, Schedule):
        return algorithm
    with progress("lifting", silent) as report:
        schedule = tacos.lift(algorithm, network, size, progress=report)
    if not silent:
        _assuming(
            None if network else schedule.topology.npus,
            schedule.collective.size_bytes if size is None else None,
        )
    return schedule


def exported(
    program: Program, network: Topology | None, size: str | None, silent: bool
) -> Workload:
    """Return the workload of a program's Chakra traces; print the size that was assumed."""
    from tacos.workload import from_program

    named = any(collectives.kind_of(part).even for part in program.collective.parts)
    if size is None and named and not program.size_bytes:
        size = "1MB"
        if not silent:
            _assuming(size_bytes=units.size_bytes(size))
    return from_program(program, size, network)


def assumed_network(npus: int, silent: bool) -> Topology:
    """Return the network of a workload where the caller has not named one."""
    if not silent:
        _assuming(npus)
    return tacos.topology.fully_connected(npus)


def verdict(check: tacos.Report, quiet: bool, *, alike: int = 3) -> int:
    """Print the violations that a check found, at most `alike` of each rule; return the exit code."""
    if check.ok:
        return 0
    if not quiet:
        for line in check.lines(alike):
            print(line, file=sys.stderr)
    return fail(
        f"the {check.subject} is not valid: {check.found:,} violation{'s' if check.found > 1 else ''}",
        1,
    )


def files_facts(written: list[Path], asked: Path, network: Topology | None) -> dict[str, Any]:
    """Return what to say about the files that one call wrote; `asked` is the path that the user gave.

    Chakra traces are many files. Beside them ASTRA-sim needs a network file; where its format cannot describe the
    network, the reason is given.
    """
    names = sorted({path.name for path in written}, key=lambda name: (len(name), name))
    if names in ([], [asked.name]):
        return {"file": str(asked)}
    rows: dict[str, list[str]] = {}
    for name in names:
        rows.setdefault(re.sub(r"\.[0-9]+\.", ".*.", name), []).append(str(asked.parent / name))
    spans = [one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in rows.values()]
    facts: dict[str, Any] = {"files": ", ".join(spans)}
    if any(n.endswith(".et") for n in names) and not any(n.endswith(".yml") for n in names):
        facts["network_file"] = f"not written: {_why_no_network(network)}"
    return facts


def _why_no_network(network: Topology | None) -> str:
    if network is None:
        return "the network is unknown; add --topology"
    from tacos.formats.astra_network import dimensions

    try:
        dimensions(network)
    except ValueError as error:
        return str(error)
    return "ASTRA-sim's format cannot describe this network"


def executed_rows(schedule: Schedule) -> dict[str, Any]:
    """Return the executed times under each rule, and why they are far above the ideal time if they are."""
    found = execution(schedule, target=schedule.target)
    why = slowdown(schedule)
    rows = {} if found is None else found.rows(schedule.target)
    return rows | ({"slowdown": why} if why else {})


def bottleneck(schedule: Schedule) -> dict[str, Any]:
    """Return what limits a schedule: the cut or the path that the bound comes from."""
    known = schedule.provenance.get("bottleneck")
    if known is None and schedule.topology.npus <= _BOUNDED:
        known = tacos.bound(schedule.topology, schedule.collective).why
    return {} if known is None else {"bottleneck": known}


_BOUNDED = 512
"""NPUs up to which a bound takes less than a second."""


@contextmanager
def stopped() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, for verbs that run until then."""
    event = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: event.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def workers_on(name: str | None) -> Iterator[Executor | None]:
    """The workers that --on names; those that die are reported."""
    if name is None:
        yield None
        return
    from tacos import workers

    with workers.opened(name) as executor:
        yield executor


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings that are for users as sentences, without the line of code that they come from."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, _PLAIN):
                warn(str(message))
            else:
                shown(message, category, *place)

        for kind in _PLAIN:
            warnings.simplefilter("always", kind)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


_PLAIN = (PluginWarning, WorkerLostWarning)


def warn(sentence: str) -> None:
    """Print what went wrong without stopping the command."""
    print(f"tacos: {sentence}", file=sys.stderr)


def fail(sentence: str, code: int = 2) -> int:
    """Print an error message; return the exit code."""
    print(f"tacos: {_LONG_WORD.sub(_shortened, sentence)}", file=sys.stderr)
    return code


_LONG_WORD = re.compile(r"\S{1000,}")


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:60]}… ({len(word[0]):,} characters)"
