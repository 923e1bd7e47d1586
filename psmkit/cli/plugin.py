"""``psmkit plugin``: Check NCCL plugins, and run them without NCCL."""

from __future__ import annotations

import click

from psmkit.cli.command import LazyGroup

__all__ = ["command"]


class _Commands(LazyGroup):
    prefix = "psmkit.cli.plugin_"
    summaries = {  # noqa: RUF012 - a ClassVar of the base
        "check": "Show what a plugin library holds, which releases load it, and what is wrong with it.",
        "drive": "Call a net plugin, tuner or profiler as NCCL does, without NCCL, and check every call and every byte.",
    }


@click.group(
    "plugin",
    cls=_Commands,
    examples=("psmkit plugin check libnccl-net-mine.so", "psmkit plugin drive libnccl-net-mine.so --ranks 4"),
)
def command() -> None:
    """Check plugins of NCCL (libnccl-net.so, -tuner, -profiler, -env, -gin, -rma), and run them without NCCL."""
