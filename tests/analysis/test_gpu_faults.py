"""Faults of GPUs that the runtime or the driver of their vendor reports, outside of CUDA's errors and Xids."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

FAULT = "Memory access fault by GPU node-{} (Agent handle: 0x24d171e0) on address 0x7b1e62400000. Reason: {}.\n"


def test_a_memory_fault_of_rocm_names_the_gpu(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "loading\n" + FAULT.format(3, "Page not present or supervisor privilege"))
    assert (report.verdict, [c.gpu for c in report.culprits]) == ("failed", ["node-3"])
    assert "page not present or supervisor privilege" in report.findings[0].title


def test_faults_of_many_gpus_blame_none_of_them(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "loading\n" + "".join(FAULT.format(n, "Unknown") for n in range(2, 10)))
    assert (report.verdict, report.culprits) == ("failed", ())
    assert report.findings[0].title.startswith("8 GPUs, node-2 first, used ")


def test_a_page_fault_in_the_kernel_log_names_the_gpu_of_the_host(tmp_path: Path) -> None:
    text = (
        "Jan 09 17:21:05 n07 kernel: amdgpu 0000:0b:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:3)\n"
        "Jan 09 17:21:05 n07 systemd-coredump[120]: Process 88214 (python) of user 6 terminated abnormally with signal 6/ABRT, processing...\n"
    )
    report = analyzed(tmp_path, text)
    assert [(c.host, c.gpu) for c in report.culprits] == [("n07", "0000:0b:00.0")]
    assert any("n07:88214" in f.title and "SIGABRT" in f.title for f in report.findings)


@pytest.mark.parametrize("split", [" ", "\n               NVRM: "])
def test_a_gpu_that_fell_off_the_bus_is_named_by_its_address(split: str, tmp_path: Path) -> None:
    words = split.join(
        (
            "[ 1907.3] NVRM: The NVIDIA GPU 0000:b5:00.0",
            "(PCI ID: 10de:26b5) installed in this system has",
            "fallen off the bus and is not responding to commands.",
        )
    )
    report = analyzed(tmp_path, words + "\n")
    assert (report.verdict, [c.gpu for c in report.culprits]) == ("failed", ["0000:b5:00.0"])
