"""``psmkit nccl``: Put libpsm's transport into an NCCL tree, and verify the library."""

from __future__ import annotations

import click

from psmkit.cli.command import LazyGroup

__all__ = ["command"]


class _Commands(LazyGroup):
    prefix = "psmkit.cli.nccl_"
    summaries = {  # noqa: RUF012 - a ClassVar of the base
        "prepare": "Copy an NCCL tree with the transport's edits, compile psmkit's part, and print how to build it.",
        "verify": "Show what a libnccl.so holds of the transport, and run two ranks over it, byte by byte.",
    }


@click.group(
    "nccl",
    cls=_Commands,
    examples=("psmkit nccl prepare ~/nccl --out with-psm", "psmkit nccl verify with-psm/build/lib/libnccl.so.2"),
)
def command() -> None:
    """Put libpsm's p2p transport into your NCCL tree: the steps of docs/linking.md."""
