"""``psmkit plugin``: Check NCCL plugins, and run them without NCCL."""

from __future__ import annotations

from importlib import import_module

import click

__all__ = ["command"]

# Subcommand -> what it does; each is imported when it is used, from psmkit.cli.plugin_<name>.
_COMMANDS = {
    "check": "What a plugin library holds, which releases load it, and what is wrong with it.",
    "drive": "Drive a net plugin, a tuner or a profiler as NCCL does, without NCCL, and check each call and each byte.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        found = import_module(f"psmkit.cli.plugin_{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group("plugin", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Plugins of NCCL: libnccl-net.so, -tuner, -profiler, -env, -gin, -rma."""
