"""``psmkit completion``: Print the script by which a shell completes psmkit's words and their values."""

from __future__ import annotations

import os
from pathlib import PurePath

import click
from click.shell_completion import get_completion_class

from psmkit.cli.command import Command
from psmkit.cli.output import show
from psmkit.model.errors import PsmkitError

__all__ = ["command"]

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    cls=Command,
    examples=(
        'psmkit completion bash     # ~/.bashrc has: eval "$(psmkit completion bash)"',
        'psmkit completion zsh      # ~/.zshrc has, after compinit: eval "$(psmkit completion zsh)"',
        "psmkit completion fish > ~/.config/fish/completions/psmkit.fish",
    ),
)
@click.argument("shell", required=False, type=click.Choice(_SHELLS), metavar="[bash|zsh|fish]")
def command(shell: str | None) -> None:
    """Print the script that makes TAB complete commands, options, files and values, for bash 4.4 or later, zsh, or fish.

    Values are codes and messages, variants, fault sites, patterns, schedulers, and environment variables. Without a name it is the
    script for $SHELL.
    """
    name = shell or PurePath(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in _SHELLS else None
    root = click.get_current_context().find_root()
    if found is None:
        raise PsmkitError(f"no script for the shell {name or '(SHELL is not set)'}; name one: {', '.join(_SHELLS)}")
    # Not source(): for bash, it runs a bash to see its version.
    script = found(root.command, {}, "psmkit", "_PSMKIT_COMPLETE")
    show(script.source_template % script.source_vars())
