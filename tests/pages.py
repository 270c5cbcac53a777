"""The pages of the manual as tests: every block of code runs, in order, in one directory per page.

A fenced block is run by its language:

- ``python`` with ``>>>``: its output is compared, as doctest does; without: it is executed.
- ``console``: lines that begin with ``$`` run in a shell; the lines below must be their output, where
  ``...`` stands for anything. A command without output on the page may print anything but must not fail.
- anything else is text.

A comment directly before a block changes that:

- ``<!-- not run: REASON -->``: it needs something that tests do not have.
- ``<!-- file: NAME -->``: it is the content of a file.
- ``<!-- figures vary -->``: numbers and units of time are not compared: engines get better, machines differ.

``python -m tests.pages PAGE …`` updates the output that a page shows, after an intended change.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.conditions import PATIENCE_S

_BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<note>[^\n]*?) -->\n+)?"
    r"^(?P<indent>[ ]*)```(?P<language>[\w{}-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_NOTE = re.compile(r"(not run|file): (.+)|(figures vary)")
_FIGURE = re.compile(r"[0-9][0-9.,]*(?: (?:ns|us|ms|s)\b)?|─+")
_SHELL = frozenset("|&;<>$`*?#~()'\"\\")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A fenced block: where it begins, its language, its text, and the comment before it."""

    line: int
    language: str
    text: str
    note: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, without their indentation."""
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("text"))
        indent = len(match["indent"])
        lines = [row[indent:] for row in match["text"].splitlines()]
        note = match["note"] or ""
        known = note if _NOTE.fullmatch(note) else ""
        found.append(Block(line, match["language"], "\n".join(lines) + "\n", known))
    return found


class Page(pytest.File):
    """A page, which is one test: its blocks build on one another."""

    def collect(self):
        yield PageItem.from_parent(self, name=self.path.stem)


class PageItem(pytest.Item):
    """Runs the blocks of a page."""

    def runtest(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            names: dict[str, object] = {"__name__": "__main__"}
            for block in blocks(self.path.read_text(encoding="utf-8")):
                try:
                    run(block, names, self.path.parent)
                except PageError as error:
                    raise PageError(f"{self.path}:{block.line}: {error}") from None
                except Exception as error:
                    what = f"{type(error).__name__}: {error}"
                    raise PageError(f"{self.path}:{block.line}: {what}") from error

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, PageError) and excinfo.value.__cause__ is None:
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, 0, f"page {self.name}"


class PageError(Exception):
    """A block that does not do what the page says."""


def run(block: Block, names: dict[str, object], origin: Path) -> None:
    """Run a block in the current directory, with the page's Python names."""
    note = _NOTE.fullmatch(block.note)
    if note and note[1] == "file":
        target = Path(note[2])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text, encoding="utf-8")
    elif note and note[1] == "not run":
        return
    elif block.language == "python":
        run_python(block, names)
    elif block.language == "console":
        run_console(block, figures_vary=bool(note), origin=origin)
    elif block.language in ("sh", "bash", "shell"):
        raise PageError("mark a block of shell commands as console, so that it runs")


def run_python(block: Block, names: dict[str, object]) -> None:
    """Compare the output of examples, or execute a script."""
    if ">>>" not in block.text:
        exec(compile("\n" * block.line + block.text, "page", "exec"), names)  # noqa: S102
        return
    examples = doctest.DocTestParser().get_doctest(block.text, names, "page", "page", block.line)
    examples.globs = names  # the parser has copied them
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(examples, out=said.append, clear_globs=False)
    if runner.failures:
        raise PageError("".join(said))


def run_console(block: Block, *, figures_vary: bool, origin: Path) -> None:
    """Run the commands after $ and compare their output where the page shows it."""
    for command, wanted in commands(block.text):
        code, printed = call(command, origin)
        if not agree(wanted, printed, figures_vary=figures_vary):
            raise PageError(f"$ {command}\nexpected:\n{wanted}\nprinted:\n{printed}")
        if code != 0 and not wanted.strip():
            raise PageError(f"$ {command}\nfailed with code {code}:\n{printed}")


def agree(wanted: str, printed: str, *, figures_vary: bool) -> bool:
    """Return whether a page shows no output or the output that was printed."""
    if figures_vary:
        wanted, printed = (_FIGURE.sub("#", words) for words in (wanted, printed))
    return not wanted.strip() or doctest.OutputChecker().check_output(wanted, printed, _FLAGS)


def renewed(text: str, origin: Path) -> str:
    """Return a page with the current output of its commands, where it differs and has no ``...``."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(text):
        if block.language != "console" or block.note.startswith("not run"):
            with contextlib.suppress(PageError):  # examples in Python are updated by hand
                run(block, names, origin)
            continue
        for command, wanted in commands(block.text):
            printed = "\n".join(line.rstrip() for line in call(command, origin)[1].splitlines())
            if "..." not in wanted and not agree(wanted, printed, figures_vary=bool(block.note)):
                text = text.replace(wanted, printed.strip("\n") + "\n", 1)
    return text


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a block, each with the output that is shown for it."""
    found: list[tuple[str, list[str]]] = []
    continued = False
    for line in text.splitlines():
        if continued:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        elif line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
        continued = (continued and line.endswith("\\")) or (
            line.startswith("$ ") and line[-1] == "\\"
        )
    return [(re.sub(r"\s+# .*", "", command), "\n".join(lines) + "\n") for command, lines in found]


def call(command: str, origin: Path) -> tuple[int, str]:
    """Return exit code and output; a plain tacos command runs in this process, which is much faster."""
    words = shlex.split(command)
    if words[0] == "tacos" and _SHELL.isdisjoint(command) and words[1] not in ("run", "lab"):
        from tacos.cli import main

        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(words[1:])
        return code, said.getvalue()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "REPOSITORY": str(origin),
    }
    shell = shutil.which("bash") or "sh"
    done = subprocess.run(
        [shell, "-c", command], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def main(paths: list[str]) -> None:
    """Update the output that pages show."""
    os.environ["COLUMNS"] = "80"
    for path in map(Path, paths):
        page = path.resolve()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            text = renewed(page.read_text(encoding="utf-8"), page.parent)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
