"""Two ranks that send each other data by the net transport: the driver, over the stand-in for a proxy, on the emulated CUDA in strict mode."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.lab import cuda
from tests.csrc.base import compiled
from tests.csrc.psm import ground
from tests.csrc.psm.p2p.conftest import FOUR, SANITIZERS, Job

HERE = Path(__file__).parent
PLUGIN = Path(os.environ.get("PSM_DIR") or ground.ROOT / "psmkit" / "psm") / "lib" / "libnccl-net-psm.so"
DEADLINE = 120.0


def build(folder: Path, end: str = "standin") -> Path:
    """The driver under ASan and UBSan with one of the two ends; once for all who use the folder."""
    program = folder / f"driver-{end}"
    if program.exists():
        return program
    generated = ground.generate(folder / "generated")
    sources = [*compiled.BASE.glob("*.c"), HERE / "driver.c", HERE.parent / "p2p" / f"end_{end}.c"]
    parts = (
        "core",
        "shm",
        "conn",
        "p2p",
        "launch",
        "net",
        "net/variants",
        "record",
        *(["proxy"] if end == "proxy" else []),
    )
    for part in parts:
        sources += (ground.PSM / part).glob("*.c")
    command = [
        compiled.compiler(),
        *compiled.WARNINGS,
        *ground.includes(generated),
        f"-I{HERE.parent}",
        "-O0",
        *SANITIZERS,
    ]
    done = subprocess.run(
        [*command, *sorted(sources), "-o", program, "-lpthread", "-ldl"],
        capture_output=True,
        text=True,
        env=compiled.environment(),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver over the stand-in. The lab runs the transport over libpsm's proxy."""
    return build(tmp_path_factory.getbasetemp() / "net-driver")


Runner = Callable[..., Job]


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> Runner:
    """Runs the two ranks to their end. Nothing may be left over, and nothing misused, whatever happened to them."""
    count = 0

    def one(*arguments: str, **settings: str) -> Job:
        nonlocal count
        count += 1
        folder = tmp_path / f"{count}"
        (folder / "records").mkdir(parents=True)
        env = cuda.environment(compiled.environment())
        env |= {
            "PSM_TOPOLOGY": str(FOUR),
            "PSM_HOSTCUDA_BANNER": "0",
            "PSM_HOSTCUDA_STRICT": "1",
            "PSM_HOSTCUDA_SANITIZE": "warn",
            "PSM_SANITIZE_LEAKS": "1",
            "PSM_RECORD_DIR": str(folder / "records"),
            "PSM_BUFFER_SIZE": "64K",
            "PSM_NET_PLUGIN": str(PLUGIN),
            "PSM_NET_IFNAME": "lo",
            **settings,
        }
        done = subprocess.run(
            [driver, *arguments], env=env, capture_output=True, text=True, errors="replace", timeout=DEADLINE
        )
        results = dict(re.findall(r"^rank (\d+) done (\w+)", done.stdout, re.MULTILINE))
        job = Job(done.returncode, done.stdout, done.stderr, {int(rank): status for rank, status in results.items()})
        assert "Sanitizer" not in job.log and "runtime error" not in job.log, job.log
        assert "sanitizer report" not in job.log, job.log
        assert "WRONG DATA" not in job.text, job.text
        assert "a second free was taken" not in job.text
        left = re.findall(r"^left (\d+) descriptors", job.text, re.MULTILINE)
        assert left and set(left) == {"0"}, job.text + job.log
        for number in re.findall(r"killed by signal (\d+)", job.text):
            assert int(number) == signal.SIGKILL, job.log
        return job

    return one
