"""How long commands and imports take before they work: processor time, relative to Python and to numpy, and modules.

    python -m benchmarks.startup [--runs N]

Each row is the least of several runs, which alternate between the rows. ``synth … --engine none`` ends with an error at the last
moment before the synthesis, so it measures the start alone. Processor time depends on a busy machine less than the time
that passes, and the ratios hold for any machine. Bytecode is compiled before, as an installation does.
"""

from __future__ import annotations

import argparse
import compileall
import resource
import subprocess
import sys
from pathlib import Path

import tacos

START = "synth ring:4 all-reduce 64KB"
IMPORTS = ("pass", "import numpy", "import numpy, cyclopts", "import tacos", "import tacos.view")
COMMANDS = (
    "--version", "--help", "topo ring:4 --quiet", f"{START} --engine none", f"{START} --engine ring --quiet",
    f"{START} --quiet", "train --help",
)  # fmt: skip
_COMMAND = "import sys; sys.argv = ['tacos', *{words!r}]; from _tacos import main; main()"
_COUNTED = "import atexit, sys; atexit.register(lambda: print(len(sys.modules), file=sys.stderr))\n"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="runs of each row")
    runs = parser.parse_args().runs
    compileall.compile_dir(Path(tacos.__file__).parent, quiet=2)
    rows = {f"python -c '{code}'": code for code in IMPORTS}
    rows |= {f"tacos {words}": _COMMAND.format(words=words.split()) for words in COMMANDS}
    least = dict.fromkeys(rows, float("inf"))
    for _ in range(runs):
        for name, code in rows.items():
            least[name] = min(least[name], _seconds(code))
    python, numpy = (least[f"python -c '{code}'"] for code in IMPORTS[:2])
    print(f"{'':57}       ms   x python   x numpy   modules")
    for name, code in rows.items():
        took = least[name]
        print(
            f"{name:57} {took * 1e3:8.1f} {took / python:10.2f} {took / numpy:9.2f} {_modules(code):9}"
        )
    return 0


def _seconds(code: str) -> float:
    """Return the processor time of a Python process, by the user and the system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _modules(code: str) -> int:
    """Return the number of modules loaded at the end of a process."""
    return int(_run(_COUNTED + code).splitlines()[-1])


def _run(code: str) -> str:
    """Run Python code; return what it prints to the standard error stream."""
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,  # an error ends the start
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ).stderr


if __name__ == "__main__":
    sys.exit(main())
