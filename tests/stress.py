"""Repeat tests while all cores are busy, to find those that depend on luck.

    python -m tests.stress tests/hub tests/runtime/test_lab.py --times 20 -- -m "not slow"

Words after ``--`` go to pytest. The processes that keep the cores busy end with this one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BUSY = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: end with the parent
if os.getppid() == int(sys.argv[1]):
    while True:
        pass
"""


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep as many cores busy as there are processes."""
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid())]
    loops = [subprocess.Popen(command) for _ in range(cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def once(words: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Run pytest; return how many tests ran, and the errors of those that failed.

    Raises:
        SystemExit: pytest could not run the tests.
    """
    with tempfile.TemporaryDirectory(prefix="tacos-stress-") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={report}", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout)
        cases = ET.parse(report).getroot().findall(".//testcase")
    failed: dict[str, str] = {}
    for case in cases:
        for error in [*case.findall("failure"), *case.findall("error")]:
            name = f"{case.get('classname')}::{case.get('name')}"
            failed[name] = failed.get(name, "") + (error.text or "")
    ran = sum(case.find("skipped") is None for case in cases)
    return ran, failed


def stress(words: Sequence[str], times: int, cores: int) -> Counter[str]:
    """Run tests several times and print each failure; return how often each test failed."""
    failures: Counter[str] = Counter()
    with busy(cores):
        for number in range(1, times + 1):
            ran, failed = once(words)
            print(f"{number} of {times}: {ran} tests, {len(failed)} failed", flush=True)  # noqa: T201
            for name, text in failed.items():
                print(f"--- {name}\n{text}", flush=True)  # noqa: T201
            failures.update(failed.keys())
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress", description=__doc__.split("\n")[0]
    )
    parser.add_argument("tests", nargs="+", help="files, directories or names of tests")
    parser.add_argument("--times", type=int, default=20, help="repetitions")
    parser.add_argument(
        "--busy", type=int, default=os.cpu_count() or 1, help="processes that only compute"
    )
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:end])
    failures = stress([*given.tests, *words[end + 1 :]], given.times, given.busy)
    for name, count in failures.most_common():
        print(f"{name}: failed {count} of {given.times} times")  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
