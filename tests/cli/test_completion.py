"""What shells offer when Tab is pressed: the scripts run in real shells, without the command."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tacos.cli import load, main
from tacos.collective import labels
from tacos.runtime.carriers import CARRIERS
from tacos.synth import ENGINES
from tacos.topology import specs
from tacos.training import DEVICES, MODELS
from tests.support.conditions import PATIENCE_S

SHELLS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}
SETUP = {
    "bash": "bind '\"\\e*\": insert-completions'; source ./script\n",
    "zsh": "autoload -U compinit; compinit -u -D; unsetopt nomatch prompt_sp; "
    "zstyle ':completion:*' insert-tab false; source ./script\n",
}
FILES = ("ar.tacos", "ring.xml", "net.yaml", "notes.md", "two words.tacos", "gpt.json")

ENDS = {  # what is typed: how its last word ends after Tab
    "tacos sy": "synth",
    "tacos synth dgx-h100-": "dgx-h100-plain:",
    "tacos synth dgx-h100:2 all-r": "all-reduce",
    "tacos synth ring:4*fc:8*sw": "ring:4*fc:8*switch:",
    "tacos synth net": "net.yaml",
    "tacos synth ring:4 all-reduce 64MB --eng": "--engine",
    "tacos synth ring:4 all-reduce 64MB --engine fo": "forest",
    "tacos synth ring:4 all-reduce 64MB --engine=fo": "--engine=forest",
    "tacos synth ring:4 all-reduce 64MB --quiet --target mscclp": "mscclpp",
    "tacos compare ring:4 all-reduce 64MB --engines forest,nc": "forest,nccl",
    "tacos train sea": "search",
    "tacos train search llama3-8b dgx-h100:2 recom": "recompute=",
    "tacos train scaling llama3-8b dgx-h100:2 dgx-h100:4 tor": "torus:",
    "tacos train llama3-8b dgx-h100:2 --device h2": "h200",
    "tacos train --overlap-tensor llama3-405": "llama3-405b",
    "tacos verify ar": "ar.tacos",
    "tacos verify two": "two words.tacos",
    "tacos switch sta": "stats",
    "tacos run ar.tacos --carrier mp": "mpi",
    "tacos sim ar.tacos --timing sh": "shared",
}
OFFERED = {  # what is typed: some of what is offered, and what is not
    "tacos ": (["synth", "train", "completion"], ["search"]),
    "tacos synth ": (["torus:", "dgx-h100:", "net.yaml", "gpt.json"], ["ar.tacos", "notes.md"]),
    "tacos train ": (["search", "scaling", "llama3-405b", "gpt.json"], ["ar.tacos"]),
    "tacos topo ring:4 --draw ": ([], ["net.yaml", "ar.tacos"]),
    "tacos verify ": (["ar.tacos", "ring.xml"], ["notes.md", "net.yaml"]),
    "tacos synth ring:4 ": (labels(), ["ring:"]),
    "tacos synth ring:4 all-reduce 1MB --engine ": (["auto", *ENGINES], ["auto,"]),
    "tacos run ar.tacos --carrier ": (list(CARRIERS), ["ar.tacos"]),
    "tacos train llama3-8b ring:8 --device ": (list(DEVICES), ["ar.tacos"]),
    "tacos train llama3-8b ring:8 --collectives nccl,": (["nccl,free", "nccl,auto"], ["ar.tacos"]),
    "tacos hub --rack 0/4 --network ": (["torus:", "net.yaml"], ["ar.tacos"]),
    "tacos convert ar.tacos x.xml --to ": (["msccl", "chakra"], ["ar.tacos"]),
    "tacos train sweep ": (list(MODELS), ["search"]),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).touch()
    return tmp_path


def written(shell, folder, capsys):
    """Write the script of a shell; skip the test if the shell is not installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    (folder / "script").write_text(capsys.readouterr().out)


class Terminal:
    """An interactive shell, in which ``tacos`` prints its arguments."""

    def __init__(self, shell):
        self.child, self.screen = pty.fork()
        if self.child == 0:
            os.environ |= {"TERM": "dumb", "PS1": "$ ", "COLUMNS": "400"}
            with suppress(OSError):
                os.execvp(shell, [shell, *SHELLS[shell]])
            os._exit(127)
        self.told(SETUP[shell])
        self.told("tacos() { printf 'args'; printf '<%s>' \"$@\"; echo '|'; }\n")
        assert self.words("tacos ready\n") == ["ready"]

    def told(self, text):
        os.write(self.screen, text.encode())

    def words(self, text):
        """The arguments of the command that results from what is typed."""
        self.told(text)
        shown, deadline = "", time.monotonic() + PATIENCE_S
        while not (found := re.search(r"args((?:<[^<>\n]*>)*)\|\r", shown)):
            assert time.monotonic() < deadline, f"{text!r} showed {shown!r}"
            if select.select([self.screen], [], [], 0.1)[0]:
                shown += os.read(self.screen, 65536).decode(errors="replace")
        return re.findall(r"<([^>]*)>", found[1])

    def close(self):
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        os.close(self.screen)


@pytest.fixture(params=SHELLS)
def terminal(request, folder, capsys):
    written(request.param, folder, capsys)
    shell = Terminal(request.param)
    yield shell
    shell.close()


def test_tab_completes_words_that_are_unique(terminal):
    for typed, end in ENDS.items():
        assert terminal.words(f"{typed}\t\n")[-1].removesuffix(",") == end, typed


def test_all_that_bash_offers(folder, capsys):
    written("bash", folder, capsys)
    shell = Terminal("bash")
    try:
        for typed, (there, absent) in OFFERED.items():
            found = shell.words(f"{typed}\x1b*\n")[len(typed.split()) - 1 :]
            assert set(there) <= set(found), typed
            assert not set(absent) & set(found), typed
            assert len(found) == len(set(found)), typed
    finally:
        shell.close()


def test_what_fish_offers(folder, capsys):
    written("fish", folder, capsys)

    def offered(typed):
        ask = ["fish", "--no-config", "-c", "source ./script; complete -C $argv[1]", typed]
        lines = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.partition("\t")[0] for line in lines]

    for typed, end in ENDS.items():
        assert end in offered(typed.replace("*", "\\*")), typed
    for typed, (there, absent) in OFFERED.items():
        found = set(offered(typed))
        assert set(there) <= found, typed
        assert not set(absent) & found, typed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_hold_all_commands_options_and_networks(shell, capsys):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    app = load()
    for verb in [name for name in app if not name.startswith("-")]:
        for argument in app[verb].assemble_argument_collection():
            for name in [name for name in argument.names if name.startswith("--")]:
                said = f"-l {name[2:]} " if shell == "fish" else name
                assert said in text, (verb, name)
    for spec in specs():
        assert re.split(r"[\[:]", spec)[0] + ":" in text
