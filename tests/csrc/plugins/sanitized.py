"""Plugins and their drivers under sanitizers: how they are compiled, and the fixtures that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.csrc.base import compiled

Made = TypeVar("Made")
#: What logs for all plugins.
SAY = compiled.ROOT / "csrc" / "plugins" / "say"


def options(sanitizers: str) -> list[str]:
    """Of a compiler that finds the headers of NCCL's tables and of our plugins' log lines."""
    return [*compiled.sanitizing(sanitizers), f"-I{compiled.ROOT / 'psmkit' / 'psm' / 'include'}", f"-I{SAY}"]


def link(output: Path, sources: Iterable[Path], words: Sequence[str]) -> Path:
    """A library or a program, with warnings as errors."""
    return compiled.link(output, sources, [*compiled.WARNINGS, *words], ["-lpthread", "-ldl", "-lm"])


def fixture(
    build: Callable[[Path, str], Made], name: str, sanitizers: str = "address,undefined"
) -> Callable[[pytest.TempPathFactory], Made]:
    """A fixture of the session: what `build` makes in a folder of its own."""

    @pytest.fixture(scope="session")
    def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
        return build(tmp_path_factory.mktemp(name), sanitizers)

    return made
