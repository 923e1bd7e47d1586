"""libpsm as it is installed, and built with debug information."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from psmkit.cli.config import tree
from tests.csrc.base import compiled
from tests.csrc.psm import ground


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lib and include of libpsm at another place: nothing in them may point back."""
    place = tmp_path_factory.mktemp("elsewhere") / "psm"
    shutil.copytree(tree(), place)
    return place


def debuggable(sources: list[Path], output: Path, generated: Path, *options: str) -> Path:
    """A shared library with the debug information of every type that the sources name, used or not."""
    command = [
        compiled.compiler(),
        "-std=gnu11",
        "-O0",
        "-g",
        "-gdwarf-4",
        "-fno-eliminate-unused-debug-types",
        "-shared",
        "-fPIC",
        *ground.includes(generated),
        *options,
    ]
    done = subprocess.run(
        [*command, *map(str, sources), "-o", output],
        capture_output=True,
        text=True,
        env=compiled.environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers that the build makes."""
    return ground.generate(tmp_path_factory.mktemp("generated"))
