"""Ranks that send each other data: the driver, over libpsm's proxy and over a stand-in for it, on the emulated CUDA in strict mode."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from psmkit.lab import cuda
from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
FOUR = ground.ROOT / "tests" / "hostcuda" / "four.toml"
APART = HERE / "apart.toml"
DEADLINE = 240.0
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(folder: Path, end: str, options: list[str], more: tuple[str, ...] = ()) -> Path:
    """The driver with one of the two ends, and more parts of libpsm."""
    generated = ground.generate(folder / "generated")
    sources = [*compiled.BASE.glob("*.c"), HERE / "driver.c", HERE / f"end_{end}.c"]
    for part in ("core", "shm", "conn", "p2p", "launch", *(["proxy"] if end == "proxy" else []), *more):
        sources += [path for path in (ground.PSM / part).glob("*.c") if not path.name.startswith("fuzz")]
    options = [*compiled.WARNINGS, *ground.includes(generated), *options]
    return compiled.link(folder / f"driver-{end}", sources, options, ["-lpthread", "-ldl"])


@pytest.fixture(scope="session", params=["standin", "proxy"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver under ASan and UBSan, over each host."""
    return build(tmp_path_factory.mktemp("p2p"), request.param, SANITIZERS)


@dataclass(frozen=True)
class Job:
    """What a run of the driver said."""

    code: int
    text: str
    log: str
    results: dict[int, str] = field(default_factory=dict)

    @property
    def modes(self) -> set[str]:
        return set(re.findall(r"^rank \d+ mode (.+)$", self.text, re.MULTILINE))

    def said(self, what: str) -> list[tuple[int, str, str, str]]:
        """Rank, status, stage and text of what a call answered."""
        found = re.findall(rf"^rank (\d+) {what} (PSM_\w+)\|([^|]*)\|(.*)$", self.text, re.MULTILINE)
        return [(int(rank), status, stage, text) for rank, status, stage, text in found]

    def count(self, what: str) -> int:
        return sum(map(int, re.findall(rf"{what}=(\d+)", self.text)))

    @property
    def most_steps(self) -> int:
        return max(map(int, re.findall(r"steps=(\d+)", self.text)))


Runner = Callable[..., Job]


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> Runner:
    """Runs ranks to their end. Nothing may be left over, and nothing misused, whatever happened to them."""
    count = 0

    def one(*arguments: str, topology: Path = FOUR, **settings: str) -> Job:
        nonlocal count
        count += 1
        folder = tmp_path / f"{count}"
        (folder / "records").mkdir(parents=True)
        (folder / "shm").mkdir()
        env = cuda.environment(compiled.environment())
        env |= {
            "PSM_TOPOLOGY": str(topology),
            "PSM_HOSTCUDA_BANNER": "0",
            "PSM_HOSTCUDA_STRICT": "1",
            "PSM_HOSTCUDA_SANITIZE": "warn",
            "PSM_SANITIZE_LEAKS": "1",
            "PSM_RECORD_DIR": str(folder / "records"),
            "PSM_SHM_DIR": str(folder / "shm"),
            "PSM_BUFFER_SIZE": "64K",
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
        assert list((folder / "shm").iterdir()) == []
        left = re.findall(r"^left (\d+) descriptors, (\d+) mappings$", job.text, re.MULTILINE)
        assert left and set(left) == {("0", "0")}, job.text
        for number in re.findall(r"killed by signal (\d+)", job.text):
            assert int(number) == signal.SIGKILL, job.log
        return job

    return one
