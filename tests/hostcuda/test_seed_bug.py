"""The bug that psmkit comes from, in two processes: a private struct copied whole to the peer (examples/seed_bug.c)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import psmkit
from psmkit.lab.cuda import folder
from psmkit.lab.emulation import Emulation
from psmkit.model import Report, Verdict
from tests.hostcuda.conftest import emulated
from tests.hostcuda.test_example import INCLUDES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "examples" / "seed_bug.c"
pytestmark = emulated


@pytest.fixture(scope="module", params=["cudart12", "cudart13"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seed") / "seed_bug"
    library = folder() / f"libcudart.so.{request.param[-2:]}"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", "-rdynamic", *INCLUDES[request.param], str(SOURCE), "-o", str(path), str(library),
         f"-Wl,-rpath-link,{folder()}", "-lpthread"],
        check=True,
    )  # fmt: skip
    return path


def run(
    program: Path, folder: Path, *arguments: str, sanitize: str = "warn", until: str | None = None
) -> tuple[int | None, str]:
    """Exit status and output; with ``until`` the program is ended as soon as it has said that, and the status is None."""
    lab = Emulation(folder / "records", sanitize=sanitize, stall_report=0.2)  # type: ignore[arg-type]
    log = folder / "out.log"
    env = {**lab.environment(), "NCCL_DEBUG": "INFO"}
    with log.open("wb") as out:
        child = subprocess.Popen([str(program), *arguments], env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            deadline = time.monotonic() + 60
            while child.poll() is None and (until is None or until not in log.read_text()):
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)  # looking again, not waiting for luck: the deadline decides
            status = child.poll()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    return status, log.read_text()


def analysed(folder: Path) -> Report:
    return psmkit.analyze([folder])


def test_non_blocking_stream_hides_the_bug(program: Path, tmp_path: Path) -> None:
    status, text = run(program, tmp_path, "zero", "nonblocking")
    assert status == 0 and "passed" in text
    assert not [f for f in analysed(tmp_path).findings if f.severity.name != "INFO"]


@pytest.mark.parametrize("kind", ["legacy", "blocking"])
def test_handle_zero_deadlocks_silently(program: Path, tmp_path: Path, kind: str) -> None:
    status, text = run(program, tmp_path, "zero", kind, until="stalled for")
    assert status is None and "passed" not in text and "proxy:" not in text
    report = analysed(tmp_path)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "look first at this: rank 1" in report.reason
    assert "cudaMemcpyAsync on the legacy stream waits for the host function" in report.reason
    assert "PSM515" in {f.code for f in report.findings}


def test_foreign_handle_fails_with_one_clear_line(program: Path, tmp_path: Path) -> None:
    status, text = run(program, tmp_path, "foreign", "legacy")
    assert status == 1 and "proxy: cudaErrorInvalidResourceHandle" in text
    told = [line for line in text.splitlines() if "sanitizer report" in line and " got " in line]
    assert len(told) == 1
    assert "cudaMemcpyAsync got stream" in told[0] and "belongs to rank 0" in told[0]
    report = analysed(tmp_path)
    assert report.verdict is Verdict.FAILED
    assert [c.rank for c in report.culprits] == [1]
    (found,) = [f for f in report.findings if f.code == "PSM507"]
    assert found.explanation is not None and "Created at: main (seed_bug" in found.explanation


def test_foreign_handle_without_the_sanitizer_is_only_an_invalid_handle(program: Path, tmp_path: Path) -> None:
    status, text = run(program, tmp_path, "foreign", "legacy", sanitize="off")
    assert status == 1 and "proxy: cudaErrorInvalidResourceHandle" in text
    assert "sanitizer" not in text
