"""The command line: one module a command, found by :mod:`psmkit.cli.app`."""

from __future__ import annotations

import gc

__all__ = ["main"]


def main() -> int:
    """The console script: run the command line. An interrupt during imports ends it quietly."""
    try:
        from psmkit.cli.app import main as run

        status = run()
        gc.freeze()  # the process ends: no search for unreachable objects through all that is left
        return status
    except KeyboardInterrupt:
        return 130  # as psmkit.cli.app has it
