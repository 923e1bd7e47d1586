"""A lack of device memory: what the numbers of PyTorch's allocator show, and what they rule out."""

from __future__ import annotations

from pathlib import Path

import psmkit
from psmkit.model import Finding

WHY = "Including non-PyTorch memory, this process has 60.00 GiB memory in use. Of the allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated."


def oom(folder: Path, request: str, free: str, unused: str, others: str = "") -> Finding:
    text = f"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request}. GPU 1 has a total capacity of 79.10 GiB of which {free} is free. "
    text += (f"Process 88 has {others} memory in use. " if others else "") + WHY.format("50.00 GiB", unused)
    (folder / "job.log").write_text(text + " See documentation for Memory Management\n")
    found = psmkit.analyze([str(folder / "job.log")]).findings[0]
    assert found.code == "PSM509"
    return found


def test_the_headline_says_what_was_asked_for_and_what_was_free(tmp_path: Path) -> None:
    found = oom(tmp_path, "132.00 MiB", "98.00 MiB", "700.00 MiB")
    assert found.title == "out of device memory on rank 1: asked for 132.00 MiB, 98.00 MiB of 79.10 GiB free"
    assert "expandable_segments" in found.next_step
    assert "other processes" not in found.next_step


def test_fragmentation_is_no_reason_if_the_request_is_larger_than_all_that_is_unused(tmp_path: Path) -> None:
    found = oom(tmp_path, "40.00 GiB", "20.00 GiB", "2.00 GiB", "3.00 GiB")
    assert "fragmentation is not the reason" in found.explanation
    assert "this is too little, too" in found.explanation
    assert "this one request smaller" in found.next_step
    assert "expandable_segments" not in found.next_step
    assert "nvidia-smi" not in found.next_step


def test_other_processes_are_the_reason_if_the_request_would_fit_without_them(tmp_path: Path) -> None:
    found = oom(tmp_path, "2.00 GiB", "1.00 GiB", "128.00 MiB", "12.00 GiB")
    assert "Other processes hold 12.00 GiB: without them it would fit" in found.explanation
    assert "nvidia-smi" in found.next_step


def test_the_older_form_of_the_line_is_read_too(tmp_path: Path) -> None:
    text = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 5; 10.76 GiB total capacity; 9.58 GiB already allocated; 2.44 MiB free; 9.59 GiB reserved in total by PyTorch)\n"
    (tmp_path / "job.log").write_text(text)
    found = psmkit.analyze([str(tmp_path / "job.log")]).findings[0]
    assert found.title.endswith("asked for 20.00 MiB, 2.44 MiB of 10.76 GiB free")
    assert "fragmentation is not the reason" in found.explanation
    assert "other processes" in found.next_step


def test_without_numbers_the_advice_stays_general(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. See the documentation\n"
    )
    found = psmkit.analyze([str(tmp_path / "job.log")]).findings[0]
    assert "free" not in found.title
    assert "nvidia-smi" in found.next_step
