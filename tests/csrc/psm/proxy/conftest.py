"""Processes that run the proxy, and their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.csrc.psm.proxy import ranks


@pytest.fixture(scope="session")
def rank_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver under ASan and UBSan."""
    return ranks.build(tmp_path_factory.mktemp("rank"), ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])


@pytest.fixture(scope="session")
def thread_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver under TSan."""
    # The fences order what other processes see; between threads the sequence of a slot does it.
    return ranks.build(tmp_path_factory.mktemp("rank"), ["-fsanitize=thread", "-Wno-tsan"])


@pytest.fixture
def start(rank_program: Path, tmp_path: Path) -> Iterator[Callable[..., ranks.Rank]]:
    """Starts processes, with settings."""
    count = 0
    with ExitStack() as stack:

        def one(program: Path = rank_program, **env: str) -> ranks.Rank:
            nonlocal count
            count += 1
            return stack.enter_context(ranks.Rank(program, tmp_path / f"{count}.log", **env))

        yield one


@pytest.fixture
def job(start: Callable[..., ranks.Rank]) -> Callable[..., list[ranks.Rank]]:
    """Starts a job whose ranks are all connected."""

    def make(nranks: int, *, connect: bool = True, **env: str) -> list[ranks.Rank]:
        made = [start(**env) for _ in range(nranks)]
        ranks.start_proxies(made)
        if connect:
            ranks.connect_all(made)
        return made

    return make
