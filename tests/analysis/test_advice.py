"""What to do about an error, by the text of the line that reports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import first_error

_TORCH = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.10 GiB. GPU 3 has a total capacity of 79.10 GiB\n"
_NCCL = "\nn0:70:70 [3] misc/allocator.cc:99 NCCL WARN Cuda failure 2 'out of memory'\nn0:70:70 [3] NCCL INFO init.cc:872 -> 1\n"
_CUDA = "\nn0:70:70 [3] transport/{}.cc:99 NCCL WARN Cuda failure '{}'\nn0:70:70 [3] NCCL INFO init.cc:872 -> 1\n"
_TEST = "n0: Test CUDA failure common.cu:411 '{}'\n .. n0 pid 70: Test failure common.cu:420\n"
_WATCHDOG = "[rank1]:[E ProcessGroupNCCL.cpp:1414] [PG 2 Rank 1] Process group watchdog thread terminated with exception: CUDA error: {}\n"
_RETRY = "n0:70:71 [0] NCCL INFO socketPollConnect: connect returned {}, retrying ({}/34) after sleep for 100 msec\n"


def _retries(why: str) -> str:
    return "".join(_RETRY.format(why, at) for at in range(20, 35))


@pytest.mark.parametrize(
    ("log", "words", "not_words"),
    [
        (_TORCH, "PYTORCH_CUDA_ALLOC_CONF", "NCCL_BUFFSIZE"),
        (_NCCL, "too many channels and buffers", "PYTORCH_CUDA_ALLOC_CONF"),
        (_TEST.format("an illegal memory access was encountered"), "compute-sanitizer", "proof line"),
        (_TEST.format("system not yet initialized"), "fabricmanager", "proof line"),
        (_WATCHDOG.format("an illegal memory access was encountered"), "compute-sanitizer", "error code"),
        (_WATCHDOG.format("unknown error"), "CUDA_LAUNCH_BLOCKING", "code"),
        (_CUDA.format("nvls", "invalid argument"), "NCCL_NVLS_ENABLE=0", "CUDA_LAUNCH_BLOCKING"),
        (_CUDA.format("p2p", "invalid argument"), "NCCL_CUMEM_ENABLE=0", "CUDA_LAUNCH_BLOCKING"),
        (_CUDA.format("p2p", "unspecified launch failure"), "CUDA_LAUNCH_BLOCKING", "NCCL_CUMEM_ENABLE"),
        (_CUDA.format("net", "invalid argument"), "failed itself", "CUDA_LAUNCH_BLOCKING"),
        (_TEST.format("invalid argument"), "begins with the proof line", "just before"),
        ("n0 starts\n" + _TEST.format("invalid argument"), "just before", "begins with"),
        (_retries("No route to host"), "routing", "last lines"),
        (_retries("Connection refused"), "last lines", "routing"),
        (_retries("Connection timed out"), "firewalls", "last lines"),
        ("[n0:70  :0:71] Caught signal 7 (Bus error: nonexistent physical address)\n", "/dev/shm", "proof line"),
        ("[n0:70  :0:71] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x10)\n", "core dump", "/dev/shm"),
    ],
)  # fmt: skip
def test_advice_fits_the_text_of_the_error(tmp_path: Path, log: str, words: str, not_words: str) -> None:
    finding = first_error(tmp_path, log)
    assert words in finding.next_step
    assert not_words not in finding.next_step


def test_reason_of_a_failed_connect_explains_only_itself(tmp_path: Path) -> None:
    told = first_error(tmp_path, _retries("No route to host")).explanation
    assert "no way to that address" in told
    assert "refused" not in told and "No process listens" not in told


def test_segment_without_a_printed_reason_is_not_called_full(tmp_path: Path) -> None:
    warn = "\nn0:70:70 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-ab (size 5767520)\n"
    finding = first_error(tmp_path, warn + "n0:70:70 [0] NCCL INFO transport/shm.cc:114 -> 2\n")
    assert "Give the container" not in finding.next_step
    assert "permissions" in finding.next_step
    assert "is full" not in finding.title
    full = first_error(tmp_path, warn.replace(")\n", "), error: No space left on device (28)\n"))
    assert "is full" in full.title and "--shm-size=1g" in full.next_step
