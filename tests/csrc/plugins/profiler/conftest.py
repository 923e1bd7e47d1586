"""The profiler plugin and its driver under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.csrc.plugins import sanitized
from tests.csrc.plugins.profiler.built import Driver, build

built_driver = sanitized.fixture(build, "profiler")
built_threads = sanitized.fixture(build, "profiler-threads", "thread")


@pytest.fixture
def driver(built_driver: Path, tmp_path: Path) -> Driver:
    """With a folder of records of its own."""
    (tmp_path / "records").mkdir(mode=0o700)
    return Driver(built_driver, tmp_path / "records")


@pytest.fixture
def threads(built_threads: Path, tmp_path: Path) -> Driver:
    """The same under TSan."""
    (tmp_path / "records").mkdir(mode=0o700)
    return Driver(built_threads, tmp_path / "records")
