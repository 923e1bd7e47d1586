"""A child process on emulated CUDA, set up from Python, and what it leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.lab.emulation import Emulation

USE = "from psmkit.lab.cuda import Face; rt = Face('cudart13'); p = rt.new('void **')\n"


def run(lab: Emulation, code: str, *, rank: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", USE + code],
        env={**lab.environment(rank), "NCCL_DEBUG": "INFO"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_calls_are_counted_by_process_and_function(tmp_path: Path) -> None:
    lab = Emulation(tmp_path / "records")
    assert run(lab, "for _ in range(3): rt.ok.cudaMalloc(p, 64); rt.ok.cudaFree(p[0])", rank=4).returncode == 0
    counts = {c.function: c for c in lab.calls()}
    assert counts["cudaMalloc"].calls == 3 and counts["cudaFree"].calls == 3
    assert counts["cudaMalloc"].rank == 4 and counts["cudaMalloc"].library == "libcudart"
    assert counts["cudaMalloc"].provided


def test_unsupported_call_is_counted_and_told_once(tmp_path: Path) -> None:
    lab = Emulation(tmp_path)
    env_code = "import os; os.environ['NCCL_DEBUG'] = 'INFO'\n"
    done = run(
        lab, env_code + "q = rt.new('int *'); print([rt.cudaDeviceGetNvSciSyncAttributes(p, 0, 0) for _ in range(2)])"
    )
    assert "[801, 801]" in done.stdout
    assert done.stdout.count("the emulated CUDA does not provide cudaDeviceGetNvSciSyncAttributes; it returns 801") == 1
    (counted,) = [c for c in lab.calls() if not c.provided]
    assert (counted.function, counted.calls) == ("cudaDeviceGetNvSciSyncAttributes", 2)


def test_counts_survive_a_kill(tmp_path: Path) -> None:
    lab = Emulation(tmp_path)
    done = run(lab, "rt.ok.cudaMalloc(p, 64)\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    assert "cudaMalloc" in {c.function for c in lab.calls()}


def test_reports_of_the_sanitizer_are_read_back(tmp_path: Path) -> None:
    lab = Emulation(tmp_path)
    run(
        lab,
        "s = rt.new('cudaStream_t *'); rt.ok.cudaStreamCreate(s); rt.ok.cudaStreamDestroy(s[0]); rt.cudaStreamQuery(s[0])",
    )
    (report,) = lab.reports()
    assert report.kind == "destroyed" and set(report.stacks) == {"used", "born", "ended"}


def test_correct_program_leaves_no_report(tmp_path: Path) -> None:
    lab = Emulation(tmp_path)
    assert run(lab, "rt.ok.cudaMalloc(p, 64); rt.ok.cudaMemset(p[0], 1, 64); rt.ok.cudaFree(p[0])").returncode == 0
    assert lab.reports() == []


def test_faults_strike_in_the_rank_they_name(tmp_path: Path) -> None:
    lab = Emulation(tmp_path, faults="cudaMalloc:error=2:rank=1")
    code = "print('answer', rt.cudaMalloc(p, 64))"
    assert "answer 0\n" in run(lab, code, rank=0).stdout
    assert "answer 2\n" in run(lab, code, rank=1).stdout


@pytest.mark.parametrize("strict", [True, False])
def test_strict_mode_keeps_the_host_from_device_memory(tmp_path: Path, strict: bool) -> None:
    lab = Emulation(tmp_path, strict=strict)
    done = run(lab, "rt.ok.cudaMalloc(p, 64); rt.ffi.cast('char *', p[0])[0] = b'x'")
    assert done.returncode == (-signal.SIGSEGV if strict else 0)


def test_environment_says_nothing_that_was_not_asked_for(tmp_path: Path) -> None:
    env = Emulation(tmp_path).environment(base={"PSM_FAULTS": "old", "PSM_TOPOLOGY": "old", "PSM_RANK": "9"})
    assert not {"PSM_FAULTS", "PSM_TOPOLOGY", "PSM_RANK"} & set(env)
