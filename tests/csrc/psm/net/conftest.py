"""Two ranks that send each other data by the net transport: the driver over the stand-in for a proxy. The lab runs it over libpsm's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.csrc.psm import ground, jobs

HERE = Path(__file__).parent
PLUGIN = Path(os.environ.get("PSM_DIR") or ground.ROOT / "psmkit" / "psm") / "lib" / "libnccl-net-psm.so"
SETTINGS = {"PSM_NET_PLUGIN": str(PLUGIN), "PSM_NET_IFNAME": "lo"}


def build(folder: Path) -> Path:
    """The driver under ASan and UBSan; once for all who use the folder."""
    program = folder / "driver"
    if program.exists():
        return program
    parts = ("net", "net/variants", "record")
    return jobs.build(program, [HERE / "driver.c"], "standin", parts, ["-O0", *jobs.SANITIZERS])


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.getbasetemp() / "net-driver")


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> jobs.Runner:
    return jobs.runner(driver, tmp_path, **SETTINGS)
