"""The command that shows schedules in a browser: view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import tacos
from tacos import formats
from tacos._core import Program, Schedule, Topology, Workload
from tacos.cli.app import (
    Json,
    Quiet,
    algorithm_in,
    app,
    check_folder,
    lifted,
    load_algorithm,
)
from tacos.cli.workloads import (
    Dims,
    Groups,
    Memory,
    System,
    check_timeline,
    flight_in,
    loaded_from,
    run_workload,
    save_timeline,
)
from tacos.console import progress, show
from tacos.errors import FormatError
from tacos.simulate.trace_export import format_of

PAGES = (".html", ".htm")


@app.command
def view(
    file: Annotated[
        Path,
        Parameter(
            help="A schedule, a program, a workload or a flight record (or a directory of them)."
        ),
    ],
    /,
    *others: Annotated[
        Path,
        Parameter(
            help="A second schedule or program, shown next to the first on the same clock; or more flight records."
        ),
    ],
    topology: Annotated[
        str | None, Parameter(help="Network of a program: a spec or a file.")
    ] = None,
    size: Annotated[str | None, Parameter(help="Buffer size of a program, such as 64MB.")] = None,
    output: Annotated[
        Path | None,
        Parameter(
            name=["-o", "--output"],
            help="Write a page (.html; FILE.html by default) or a Perfetto trace (.pftrace, .json).",
        ),
    ] = None,
    serve: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Serve the page on 127.0.0.1 until Ctrl-C, instead of writing a file.",
        ),
    ] = False,
    port: Annotated[
        int | None, Parameter(help="Port for --serve; any free port by default.")
    ] = None,
    detail: Annotated[
        int | None, Parameter(help="Largest number of transfers that the page shows one by one.")
    ] = None,
    system: System = None,
    memory: Memory = None,
    groups: Groups = None,
    dims: Dims = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Animate a schedule, program, workload or flight records in a web page.

    Two schedules or programs are shown side by side. A workload is simulated
    and shown as a timeline of ranks and their streams, in a page (-o FILE.html)
    or in ui.perfetto.dev (FILE.timeline.json by default). Flight records show
    which collective each rank of a job was in, and which rank fell behind
    first (flight.html).

    Example: tacos view ar.tacos ring.tacos -o both.html
    Example: tacos view flight -o flight.html
    """
    if serve and output is not None:
        raise ValueError(f"--output is {output}, but --serve does not write a file; give only one")
    if port is not None and not serve:
        raise ValueError(f"--port is {port}, but it needs --serve")
    if port is not None and not 0 <= port < 2**16:
        raise ValueError(f"--port must be 0 to 65535; got {port}")
    silent = quiet or as_json
    if flight := flight_in(file, others):
        return _view_flight(flight, output, port or 0 if serve else None, as_json, quiet)
    if len(others) > 1:
        raise ValueError(f"view takes one or two files, or flight records; got {1 + len(others)}")
    other = others[0] if others else None
    network = None if topology is None else formats.network(topology)
    held = loaded_from(file, None, groups, dims, network)
    if isinstance(held, Workload):
        if other is not None:
            raise ValueError(f"{file} holds a workload, which is shown alone; omit {other}")
        if serve:
            raise ValueError(
                f"--serve shows schedules and programs; {file} holds a workload: use -o FILE.html"
            )
        line = output or Path(f"{file.name}.timeline.json")
        if line.suffix.lower() in PAGES:
            check_page("--output", line)
        else:
            check_timeline("--output", line, pages=PAGES)
        result = run_workload(
            held,
            network,
            profile=None,
            system=system,
            memory=memory,
            queues=None,
            rendezvous=False,
            silent=silent,
        )
        save_timeline(held, result, line, pages=PAGES)
        shown = {"file": str(line), "nodes": held.nodes, "time_s": result.time_ns / 1e9}
        what = "timeline" if line.suffix.lower() in PAGES else "timeline for ui.perfetto.dev"
        show(shown, what, as_json, quiet)
        return 0
    first = algorithm_in(file, held)
    if serve:
        schedules, names = _read(first, file, other, network, size, silent)
        return _serve(_page(schedules, names, detail, silent), port or 0, as_json, quiet)
    target = output or _beside(file)
    traced = target.suffix.lower() not in PAGES
    if traced:
        format_of(target, pictures=PAGES)
        if other is not None:
            raise ValueError(f"--output is {target}, but a trace holds one schedule, not two")
    check_folder("--output", target)
    if target.is_dir():
        raise ValueError(f"--output is {target}, which is a directory")
    schedules, names = _read(first, file, other, network, size, silent)
    if traced:
        with progress("tracing", silent) as report:
            tacos.simulate(schedules[0], timing="schedule", progress=report).save(target)
    else:
        write_page(target, schedules, names, detail, silent)
    facts: dict[str, Any] = {"file": str(target)}
    for name, one in zip(("", "other_"), schedules, strict=False):
        facts |= {f"{name}transfers": one.transfers, f"{name}time_s": one.time_s}
    show(facts, "view", as_json, quiet)
    return 0


def _read(
    first: Schedule | Program,
    file: Path,
    other: Path | None,
    network: Topology | None,
    size: str | None,
    silent: bool,
) -> tuple[list[Schedule], list[str]]:
    """Return the schedules to show, and their names."""
    found = [first] if other is None else [first, load_algorithm(other)]
    names = [file.name] if other is None else [file.name, other.name]
    return [lifted(one, network, size, silent) for one in found], names


def check_page(option: str, path: Path) -> None:
    """Check that a page's name ends in .html or .htm and that its directory exists."""
    if path.suffix.lower() not in PAGES:
        raise ValueError(f"{option} must end in {' or '.join(PAGES)}; got {path}")
    check_folder(option, path)


def write_page(
    target: Path, schedules: list[Schedule], names: list[str], detail: int | None, silent: bool
) -> None:
    """Write the viewer's page, with progress."""
    from tacos import view as pictures

    options: dict[str, Any] = {} if detail is None else {"detail": detail}
    with progress("drawing", silent) as report:
        pictures.write_page(target, *schedules, names=names, progress=report, **options)


def _page(schedules: list[Schedule], names: list[str], detail: int | None, silent: bool) -> str:
    from tacos import view as pictures

    options: dict[str, Any] = {} if detail is None else {"detail": detail}
    with progress("drawing", silent) as report:
        return pictures.page(*schedules, names=names, progress=report, **options)


def _view_flight(
    files: list[Path], output: Path | None, port: int | None, as_json: bool, quiet: bool
) -> int:
    """Show flight records; a port: serve the page there instead of writing it."""
    from tacos import view as pictures
    from tacos.runtime import flight

    target = output or Path("flight.html")
    if port is None:
        check_page("--output", target)
    dumps = [flight.load(file) for file in files]
    if port is not None:
        return _serve(pictures.flight_page(dumps), port, as_json, quiet)
    pictures.write_flight_page(target, dumps)
    found = min(flight.postmortem(dumps), key=lambda one: one.culprit is None)
    facts = {"file": str(target), "ranks": len(dumps), "verdict": found.verdict}
    show(facts | ({"culprit": found.culprit} if as_json else {}), "view", as_json, quiet)
    return 0


def _serve(page: str, port: int, as_json: bool, quiet: bool) -> int:
    from tacos.view.serve import Server

    try:
        server = Server(page, port)
    except OSError as error:
        raise ValueError(f"--port is {port}, which is not free: {error.strerror}") from None
    with server:
        # At once, for a process that reads the address through a pipe.
        print(f'{{"url": "{server.url}"}}' if as_json else server.url, flush=True)
        if not (quiet or as_json):
            print("Press Ctrl-C to stop.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def _beside(file: Path) -> Path:
    """Return the name of a file's page in this directory; refuse to overwrite a file that tacos did not write."""
    target = Path(file.name).with_suffix(".html")
    if target.exists():
        with target.open("rb") as found:
            if b'content="tacos"' not in found.read(1000):
                raise FormatError(
                    f"{target} was not written by tacos; refusing to overwrite it, use --output"
                )
    return target
