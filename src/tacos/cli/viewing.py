"""The command that shows schedules in a browser: view."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import tacos
from tacos._core import Program, Schedule, Workload
from tacos.cli.app import algorithm_in, app, lifted, load_algorithm
from tacos.cli.options import PLAIN, Output, check_folder, offered
from tacos.cli.workloads import Layers, Place, System, check_timeline, flight_in, save_timeline
from tacos.console import progress
from tacos.errors import FormatError
from tacos.simulate.trace_export import format_of

PAGES = (".html", ".htm")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Shown:
    """Where a page goes, and how much it shows."""

    output: Annotated[
        Path | None,
        offered(files=(".html", ".pftrace", ".json")),
        Parameter(
            name=["-o", "--output"],
            help="Write a page (.html; FILE.html by default) or a Perfetto trace (.pftrace, .json).",
        ),
    ] = None
    serve: Annotated[
        bool,
        PLAIN,
        Parameter(help="Serve the page on 127.0.0.1 until Ctrl-C, instead of writing a file."),
    ] = False
    port: Annotated[int | None, Parameter(help="Port for --serve; any free port by default.")] = (
        None
    )
    detail: Annotated[
        int | None, Parameter(help="Largest number of transfers that the page shows one by one.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a file together with a server, and a port without one."""
        if self.serve and self.output is not None:
            raise ValueError(
                f"--output is {self.output}, but --serve does not write a file; give only one"
            )
        if self.port is not None and not self.serve:
            raise ValueError(f"--port is {self.port}, but it needs --serve")
        if self.port is not None and not 0 <= self.port < 2**16:
            raise ValueError(f"--port must be 0 to 65535; got {self.port}")


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
    shown: Shown = Shown(),
    place: Place = Place(),
    layers: Layers = Layers(),
    system: System = System(),
    out: Output = Output(),
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
    if flight := flight_in(file, others):
        return _view_flight(flight, shown, out)
    if len(others) > 1:
        raise ValueError(f"view takes one or two files, or flight records; got {1 + len(others)}")
    held = layers.load(file, network=place.network)
    if isinstance(held, Workload):
        for other in others:
            raise ValueError(f"{file} holds a workload, which is shown alone; omit {other}")
        return _view_workload(file, held, shown, place, system, out)
    system.refuse(file)
    return _view_algorithms([file, *others], algorithm_in(file, held), shown, place, out)


def _view_workload(
    file: Path, held: Workload, shown: Shown, place: Place, system: System, out: Output
) -> int:
    if shown.serve:
        raise ValueError(
            f"--serve shows schedules and programs; {file} holds a workload: use -o FILE.html"
        )
    target = shown.output or Path(f"{file.name}.timeline.json")
    paged = target.suffix.lower() in PAGES
    if paged:
        check_page("--output", target)
    else:
        check_timeline("--output", target, pages=PAGES)
    result = system.run(held, place.network, None, out)
    save_timeline(held, result, target, pages=PAGES)
    facts = {"file": str(target), "nodes": held.nodes, "time_s": result.time_ns / 1e9}
    out.show(facts, "timeline" if paged else "timeline for ui.perfetto.dev")
    return 0


def _view_algorithms(
    files: list[Path], first: Schedule | Program, shown: Shown, place: Place, out: Output
) -> int:
    """Show one schedule or program, or two on the same clock."""
    target = None
    traced = False
    if not shown.serve:
        target = shown.output or _beside(files[0])
        traced = target.suffix.lower() not in PAGES
        if traced:
            format_of(target, pictures=PAGES)
            if len(files) > 1:
                raise ValueError(f"--output is {target}, but a trace holds one schedule, not two")
        check_folder("--output", target)
    found = [first, *(load_algorithm(file) for file in files[1:])]
    schedules = [lifted(one, place.network, place.size, out.silent) for one in found]
    names = [file.name for file in files]
    if target is None:
        return _serve(_page(schedules, names, shown.detail, out.silent), shown.port or 0, out)
    if traced:
        with progress("tracing", out.silent) as report:
            tacos.simulate(schedules[0], timing="schedule", progress=report).save(target)
    else:
        write_page(target, schedules, names, shown.detail, out.silent)
    facts: dict[str, Any] = {"file": str(target)}
    for name, one in zip(("", "other_"), schedules, strict=False):
        facts |= {
            f"{name}transfers": one.transfers,
            f"{name}executed_s": one.executed_s,
            f"{name}ideal_s": one.time_s,
        }
    out.show(facts, "view")
    return 0


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


def _view_flight(files: list[Path], shown: Shown, out: Output) -> int:
    from tacos import view as pictures
    from tacos.formats.flight_record import load
    from tacos.runtime.flight import postmortem

    target = shown.output or Path("flight.html")
    if not shown.serve:
        check_page("--output", target)
    dumps = [load(file) for file in files]
    if shown.serve:
        return _serve(pictures.flight_page(dumps), shown.port or 0, out)
    pictures.write_flight_page(target, dumps)
    found = min(postmortem(dumps), key=lambda one: one.culprit is None)
    facts = {"file": str(target), "ranks": len(dumps), "verdict": found.verdict}
    out.show(facts | ({"culprit": found.culprit} if out.as_json else {}), "view")
    return 0


def _serve(page: str, port: int, out: Output) -> int:
    from tacos.view.serve import Server

    try:
        server = Server(page, port)
    except OSError as error:
        raise ValueError(f"--port is {port}, which is not free: {error.strerror}") from None
    with server:
        # At once, for a process that reads the address through a pipe.
        print(f'{{"url": "{server.url}"}}' if out.as_json else server.url, flush=True)
        if not out.silent:
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
