"""The manual names only verbs and options that the command has, also in examples that are not run."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tacos.cli import load

pytestmark = pytest.mark.unsanitized

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(r"^ *\$ (.*)|`(tacos [^`]*)`", re.MULTILINE)
END = {"|", "||", "&&", "#", "--", ">"}  # what follows is not an argument of tacos


def calls(text):
    """The words after each ``tacos``."""
    for found in SHOWN.finditer(re.sub(r"\\\n", " ", text)):
        for arguments in re.split(r"(?<!\S)tacos (?=[a-z])", found[1] or found[2])[1:]:
            yield arguments.split()


@cache
def options(*verb):
    app = load()
    for name in verb:
        app = app[name]
    arguments = app.assemble_argument_collection()
    return {name for argument in arguments for name in argument.names} | {"--help"}


def wrong(words):
    """What the command does not have; an empty string if all is there."""
    app, verb = load(), []
    while words and words[0] in app:
        verb.append(words[0])
        app, words = app[words[0]], words[1:]
    if not verb:
        return f"tacos {words[0]}"
    for word in words:
        if word in END:
            break
        option = re.match(r"--?[a-z][a-z0-9-]*", word)
        if option and option[0] not in options(*verb):
            return f"tacos {' '.join(verb)} {option[0]}"
    return ""


def test_the_manual_names_only_what_the_command_has():
    found = [(page, words) for page in PAGES for words in calls(page.read_text())]
    assert len(found) > 200
    bad = {f"{page.relative_to(ROOT)}: {wrong(words)}" for page, words in found if wrong(words)}
    assert bad == set()


def test_a_wrong_word_is_noticed():
    text = "`tacos sinth x` and `tacos train search m n --botch 4`\n$ tacos lab x -- tacos run y --json | z --no\n"
    assert [wrong(words) for words in calls(text)] == [
        "tacos sinth",
        "tacos train search --botch",
        "",
        "",
    ]
