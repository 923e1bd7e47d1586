"""Ranks that send each other data by p2p: the driver, over libpsm's proxy and over a stand-in for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.csrc.psm import jobs

HERE = Path(__file__).parent
APART = HERE / "apart.toml"


def build(folder: Path, end: str, options: Sequence[str], parts: Sequence[str] = ()) -> Path:
    """The driver over one of the two ends, and more parts of libpsm."""
    return jobs.build(folder / f"driver-{end}", [HERE / "driver.c", HERE / "canconnect.c"], end, parts, options)


@pytest.fixture(scope="session", params=["standin", "proxy"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver under ASan and UBSan, over each host."""
    return build(tmp_path_factory.mktemp("p2p"), request.param, jobs.SANITIZERS)


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> jobs.Runner:
    return jobs.runner(driver, tmp_path)
