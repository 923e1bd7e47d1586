"""What a report says of an error fits the error: its cause, who it is about, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.model import Finding, Report, Severity

_TERMINATE = "terminate called after throwing an instance of '{}'\n  what():  {}\nframe #0: c10::Error::Error() + 0x57\n"
_CUDA = "\nn0:70:70 [3] transport/net.cc:99 NCCL WARN Cuda failure {}'{}'\nn0:70:70 [3] NCCL INFO init.cc:872 -> 1\n"


def _report(tmp_path: Path, log: str) -> Report:
    (tmp_path / "job.log").write_text(log)
    return analyze([str(tmp_path / "job.log")])


def _first(tmp_path: Path, log: str) -> Finding:
    return next(f for f in _report(tmp_path, log).findings if f.severity is Severity.ERROR)


def test_the_reason_below_a_cpp_exception_is_the_cause_of_the_abort(tmp_path: Path) -> None:
    found = _report(tmp_path, "step 3\n" + _TERMINATE.format("c10::Error", "CUDA error: out of memory")).findings
    assert [f.code for f in found if f.severity is Severity.ERROR] == ["PSM509"]
    assert "nvidia-smi" in found[0].next_step and "core dump" not in found[0].next_step


def test_the_abort_of_a_named_rank_carries_its_reason(tmp_path: Path) -> None:
    tagged = "".join(
        f"[rank2]:{line}\n"
        for line in _TERMINATE.format("c10::Error", "CUDA error: an illegal memory access was encountered").splitlines()
    )
    found = _first(tmp_path, "step 3\n" + tagged)
    assert found.culprits == (2,) and "illegal memory access" in found.title
    assert "compute-sanitizer" in found.next_step


def test_a_cpp_exception_of_another_kind_stays_a_death_with_its_text(tmp_path: Path) -> None:
    found = _first(tmp_path, "step 3\n" + _TERMINATE.format("std::runtime_error", "shard index 7 is out of range"))
    assert found.code == "PSM402" and "shard index 7" in found.title and "what()" in found.next_step


@pytest.mark.parametrize(
    ("error", "words", "late"),
    [
        ("an illegal memory access was encountered", "compute-sanitizer", True),
        ("misaligned address", "compute-sanitizer", True),
        ("an illegal instruction was encountered", "to find the kernel", True),
        ("the launch timed out and was terminated", "to find the kernel", True),
        ("unknown error", "Xid", True),
        ("peer mapping resources exhausted", "fewer devices", False),
        ("named symbol not found", "architectures of the build", False),
        ("no kernel image is available for execution on the device", "architectures of the build", False),
        ("CUDA-capable device(s) is/are busy or unavailable", "compute mode", False),
        ("operation not supported", "NCCL_CUMEM_ENABLE=0", False),
        ("system not yet initialized", "fabricmanager", False),
        ("invalid argument", "failed itself", False),
    ],
)
@pytest.mark.parametrize("number", ["", "7 "])
def test_only_errors_of_kernels_get_the_advice_to_launch_blocking(
    tmp_path: Path, error: str, words: str, late: bool, number: str
) -> None:
    step = _first(tmp_path, _CUDA.format(number, error)).next_step
    assert words in step and ("CUDA_LAUNCH_BLOCKING" in step) is late
