"""``psmkit audit``: Find leaks, process-local data in messages, and symbols that collide."""

from __future__ import annotations

import click

from psmkit.cli.command import LazyGroup

__all__ = ["command"]


class _Commands(LazyGroup):
    prefix = "psmkit.cli.audit_"
    summaries = {  # noqa: RUF012 - a ClassVar of the base
        "contract": "Show messages whose two sides differ, and what Free does not release, in each mode.",
        "structs": "Show the process-local fields of structs that cross a process boundary.",
        "symbols": "Show what libraries export, what collides, and which versions this machine lacks.",
    }


@click.group(
    "audit",
    cls=_Commands,
    examples=(
        "psmkit audit structs build/lib/libnccl.so",
        "psmkit audit contract src/transport/*.cc --compile-commands build/compile_commands.json",
        "psmkit audit symbols libnccl-net-mine.so",
    ),
)
def command() -> None:
    """Audit a transport or a plugin before it runs: its libraries, object files and sources. Nothing of them is executed."""
