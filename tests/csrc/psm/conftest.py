"""Processes that run the ground of libpsm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.csrc.psm import ground


@pytest.fixture(scope="session")
def ground_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver under ASan and UBSan."""
    return ground.build(
        tmp_path_factory.mktemp("ground"), ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    )


@pytest.fixture
def start(ground_program: Path, tmp_path: Path) -> Iterator[Callable[..., ground.Ground]]:
    """Starts processes, with settings; their named segments go to a folder of the test's own."""
    (tmp_path / "shm").mkdir()
    count = 0
    with ExitStack() as stack:

        def one(**env: str) -> ground.Ground:
            nonlocal count
            count += 1
            env = {"PSM_SHM_DIR": str(tmp_path / "shm"), **env}
            return stack.enter_context(ground.Ground(ground_program, tmp_path / f"{count}.log", **env))

        yield one
