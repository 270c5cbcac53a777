"""The viewer: the size of its page, and the time to write it, to open it and to draw a moment.

Opening and drawing need playwright and Chromium (make browser), which renders in software here.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import tacos
from tacos.view import write_page

SIDES = {10**4: 10, 10**5: 18, 10**6: 32, 10**7: 56}
"""Approximate number of transfers of an all-gather on a square torus, and the torus's side."""


def schedule(side: int) -> tacos.Schedule:
    topology = tacos.topology.torus(side, side)
    collective = tacos.collective.all_gather(topology, "64MB", chunks=1)
    return tacos.synthesize(topology, collective, engine="greedy")


def in_browser(path: Path) -> dict[str, float] | None:
    """Return the seconds to open the page, to draw a moment, and to show a chunk and a link."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.set_default_timeout(300_000)
        begin = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_function("window.viewer")
        found = {"open": time.perf_counter() - begin}
        frames = """count => { const begin = performance.now();
          for (let k = 0; k < count; k++) { viewer.seconds = viewer.whole * (k + 0.5) / count; viewer.draw(); }
          return (performance.now() - begin) / count / 1000; }"""
        found["draw"] = page.evaluate(frames, 20)
        chosen = """() => { const begin = performance.now();
          viewer.select({kind: "chunk", id: 0}); viewer.draw(); return (performance.now() - begin) / 1000; }"""
        found["chunk"] = page.evaluate(chosen)
        link = chosen.replace('"chunk"', '"link"')
        found["link"] = page.evaluate(link)
        browser.close()
    return found


def row(count: int, folder: Path) -> dict[str, Any]:
    what = schedule(SIDES[count])
    target = folder / "page.html"
    begin = time.perf_counter()
    write_page(target, what)
    written = time.perf_counter() - begin
    begin = time.perf_counter()
    trace = tacos.simulate(what, timing="schedule")
    simulated = time.perf_counter() - begin
    perfetto = folder / "trace.pftrace"
    begin = time.perf_counter()
    trace.save(perfetto)
    traced = time.perf_counter() - begin
    return {
        "transfers": what.transfers,
        "page": target.stat().st_size,
        "write": written,
        "simulated": simulated,
        "browser": in_browser(target),
        "pftrace": perfetto.stat().st_size,
        "pftrace_s": traced,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=float, default=1e7, help="transfers")
    most = parser.parse_args().most
    print(
        "  transfers  page MB  write s  (simulating)  open s  draw ms  chunk ms  link ms  pftrace MB      s"
    )
    with tempfile.TemporaryDirectory() as folder:
        for count in SIDES:
            if count > most:
                continue
            found = row(count, Path(folder))
            seen = found["browser"] or dict.fromkeys(
                ("open", "draw", "chunk", "link"), float("nan")
            )
            print(
                f"{found['transfers']:11,} {found['page'] / 1e6:8.2f} {found['write']:8.2f} "
                f"{found['simulated']:13.2f} {seen['open']:7.2f} {1e3 * seen['draw']:8.1f} "
                f"{1e3 * seen['chunk']:9.1f} {1e3 * seen['link']:8.1f} {found['pftrace'] / 1e6:11.1f} "
                f"{found['pftrace_s']:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
