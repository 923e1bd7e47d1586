"""The driver of the p2p tests with all variants and the step recorder, over libpsm's proxy and over the stand-in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import psmkit
from psmkit.lab import cuda
from psmkit.model import Finding, Report, Severity
from psmkit.model.symptoms import Symptoms
from tests.csrc.base import compiled
from tests.csrc.psm import jobs
from tests.csrc.psm.net import conftest as net
from tests.csrc.psm.p2p.conftest import build

DEADLINE = 60.0


@dataclass(frozen=True)
class Declared:
    """A variant as libpsm lists it."""

    name: str
    wrong: bool
    outcome: str
    faults: str
    symptoms: Symptoms


@dataclass(frozen=True)
class Run:
    """What became of a run. code None: it hung, and was ended when both ends had told of it."""

    code: int | None
    text: str
    report: Report

    def codes(self, at_least: Severity = Severity.WARNING) -> set[str]:
        return {f.code for f in self.report.findings if f.severity.weight >= at_least.weight}

    def finding(self, code: str) -> Finding:
        return next(f for f in self.report.findings if f.code == code)

    def said(self, status: str) -> list[str]:
        """The texts of the calls that answered this status."""
        return re.findall(rf"^rank \d+ \w+ {status}\|[^|]*\|(.*)$", self.text, re.MULTILINE)

    @property
    def ended(self) -> dict[int, str]:
        """What each rank's last operation came to."""
        return {int(r): s for r, s in re.findall(r"^rank (\d+) done (\w+)", self.text, re.MULTILINE)}


@pytest.fixture(scope="session", params=["standin", "proxy"])
def end(request: pytest.FixtureRequest) -> str:
    """The provider of psm_host_ops."""
    return str(request.param)


@pytest.fixture(scope="session")
def driver(end: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # No sanitizer: wrong variants leak by intention, and hostcuda's tells it.
    # Emulated CUDA that is built with a sanitizer needs a program that is, too.
    options = jobs.SANITIZERS if "libasan" in os.environ.get("LD_PRELOAD", "") else []
    return build(tmp_path_factory.mktemp("conformance"), end, options, ("p2p/variants", "record"))


@pytest.fixture(scope="session")
def variants(driver: Path) -> dict[str, Declared]:
    """All that are registered, by name."""
    return _declared(driver)


@pytest.fixture(scope="session")
def net_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the net transport, over the stand-in."""
    return net.build(tmp_path_factory.getbasetemp() / "net-driver")


@pytest.fixture(scope="session")
def net_variants(net_driver: Path) -> dict[str, Declared]:
    """All variants of the net transport, by name."""
    return _declared(net_driver)


def _declared(driver: Path) -> dict[str, Declared]:
    done = subprocess.run([driver, "variants"], capture_output=True, text=True, check=True, timeout=60)
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return {
        name: Declared(
            name, wrong == "1", outcome, faults, Symptoms.of_c(int(verdict), codes, status, int(shows), int(leaves))
        )
        for name, wrong, outcome, faults, verdict, shows, leaves, status, codes in rows
    }


def _stood_still(text: str, ends: set[str]) -> bool:
    """Whether these ends have told of a second without a step."""
    told = re.findall(r"psm (?:p2p|net) (send|recv) rank .* stalled for (\d+) ms", text)
    return ends <= {role for role, ms in told if int(ms) >= 1000}


Runner = Callable[..., Run]


@pytest.fixture
def run(driver: Path, variants: dict[str, Declared], tmp_path: Path) -> Runner:
    """Runs two ranks of a variant, one sending to the other, and analyses what they left."""
    return _runner(driver, variants, tmp_path)


@pytest.fixture
def net_run(net_driver: Path, net_variants: dict[str, Declared], tmp_path: Path) -> Runner:
    """The same for the net transport."""
    return _runner(net_driver, net_variants, tmp_path)


def _runner(driver: Path, variants: dict[str, Declared], tmp_path: Path) -> Runner:
    def one(variant: str, *arguments: str, hangs: bool = False, until: str = "", **settings: str) -> Run:
        ends = {until} if until else {"send", "recv"} if hangs else set()
        folder = tmp_path / "run"
        for name in ("records", "shm"):
            (folder / name).mkdir(parents=True)
        env = cuda.environment(compiled.environment())
        env |= {
            "PSM_TOPOLOGY": str(jobs.FOUR),
            "PSM_HOSTCUDA_STRICT": "1",
            "PSM_HOSTCUDA_SANITIZE": "warn",
            "PSM_SANITIZE_LEAKS": "1",
            "PSM_RECORD_DIR": str(folder / "records"),
            "PSM_RECORD_KEEP": "1",
            "PSM_SHM_DIR": str(folder / "shm"),
            "PSM_BUFFER_SIZE": "64K",
            "PSM_TIMEOUT": "2" if variants[variant].faults else "60",
            "PSM_STALL_REPORT": "0.3" if ends else "10",
            "PSM_FAULTS": variants[variant].faults,
            **net.SETTINGS,
            "ASAN_OPTIONS": "detect_leaks=0",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,P2P,PROXY,COLL,REG,NET",
            **settings,
        }
        log = folder / "job.log"
        command = [driver, "ranks=2", "one_way=1", "record=1", f"variant={variant}", *arguments]
        with log.open("wb") as out:
            child = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            deadline = time.monotonic() + DEADLINE
            while child.poll() is None and not (ends and _stood_still(log.read_text(errors="replace"), ends)):
                assert time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
                time.sleep(0.02)  # looking again: the deadline decides
            code = child.poll()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        return Run(code, log.read_text(errors="replace"), psmkit.analyze([folder]))

    return one
