"""The commands about the installation itself: doctor, completion."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

from tacos.cli.app import app
from tacos.cli.options import Output
from tacos.console import check_table, print_table


@app.command
def doctor(*, out: Output = Output()) -> int:
    """Check the installation, its extras and this machine, and advise how to fix problems.

    The exit code is 1 if something is broken; missing extras are not errors.

    Example: tacos doctor
    """
    from tacos.doctor import checkup

    checks = list(checkup())
    if out.as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    elif not out.quiet:
        print_table(check_table(checks))
    return 1 if any(check.state == "broken" for check in checks) else 0


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print the completion script for a shell.

    Example: tacos completion bash > ~/.local/share/bash-completion/completions/tacos
    Example: tacos completion zsh > ~/.zfunc/_tacos
    Example: tacos completion fish > ~/.config/fish/completions/tacos.fish
    """
    from tacos.cli.completing import script

    print(script(app, shell), end="")
    return 0
