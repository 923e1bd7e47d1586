"""The command line in the process of the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from psmkit.cli.app import main


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str


@pytest.fixture
def psmkit_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run ``psmkit ARGS`` and return its status and output."""

    def run(*args: object) -> Result:
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run
