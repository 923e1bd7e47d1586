"""The command line: one module a command, found by :mod:`psmkit.cli.app`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """The console script: run the command line. An interrupt during imports ends it quietly."""
    try:
        from psmkit.cli.app import main as run

        return run()
    except KeyboardInterrupt:
        return 130  # as psmkit.cli.app has it
