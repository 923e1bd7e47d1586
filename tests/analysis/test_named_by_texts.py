"""Who a text names: a GPU by its address, an engine by its number, a rank in a repeated warning, a process that its launcher saw end."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.texts import analyzed

XID = "kernel: NVRM: Xid (PCI:0000:{}): {}, pid={}, name=trainer, {}\n"
TORCH = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1700, unhandled {} error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
)


def test_an_xid_without_a_rank_blames_the_gpu_at_its_address(tmp_path: Path) -> None:
    log = "NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception: ESR 0x50e7b0=0x4\n"
    report = analyzed(tmp_path, log + XID.format("5e:00", 31, 7001, "channel 0x2, intr 0"))
    assert [(c.gpu, c.pid) for c in report.culprits] == [("0000:3b:00", None)]
    assert "who:     the GPU at 0000:3b:00 (confidence" in render(report)


def test_a_clean_up_says_which_xid_came_before_it(tmp_path: Path) -> None:
    after = XID.format("3b:00", 45, 7001, "Ch 00000001 caused by previous Xid 149")
    report = analyzed(tmp_path, after + XID.format("5e:00", 45, 7002, "Ch 0000000c caused by previous Xid 145"))
    assert report.verdict == "failed"
    assert "the GPU at 0000:3b:00 had Xid 149: Xid 45 names it as the cause" in report.reason
    assert [(c.gpu, c.pid) for c in report.culprits] == [("0000:3b:00", 7001)]
    assert "the GPU at 0000:3b:00 (process 7001)" in render(report)
    shown = analyzed(tmp_path, XID.format("3b:00", 149, 7001, "NETIR_INT error") + after)
    assert "reported Xid 149" in shown.reason and len(shown.findings) == 1


def test_a_clean_up_alone_is_no_error(tmp_path: Path) -> None:
    assert not analyzed(tmp_path, XID.format("3b:00", 45, 7001, "Ch 00000001") + "done\n").findings


def test_an_engine_core_that_died_is_named_by_its_data_parallel_rank(tmp_path: Path) -> None:
    died = "ERROR 03-01 10:00:00 [core_client.py:600] Engine core proc EngineCore_DP{} died unexpectedly, shutting down client.\n"
    report = analyzed(tmp_path, died.format(3))
    assert [(c.rank, c.comm, c.global_rank) for c in report.culprits] == [(3, "the data-parallel ranks", None)]
    assert "(data-parallel rank 3)" in report.reason
    assert not analyzed(tmp_path, died.format(3) + died.format(1)).culprits


def test_an_engine_that_names_its_process_says_more_than_the_exception_of_its_parent(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "(EngineCore_DP3 pid=771) ERROR 03-01 10:00:00 [core.py:1138] EngineCore failed to start.\n"
        '(EngineCore_DP3 pid=771) Traceback (most recent call last):\n(EngineCore_DP3 pid=771)   File "/a/b.py", line 3, in run\n'
        'Traceback (most recent call last):\n  File "/opt/vllm/entry.py", line 31, in main\n    raise RuntimeError(\n'
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP3': 1}\n",
    )
    assert [c.pid for c in report.culprits] == [771]


@pytest.mark.parametrize(
    ("warning", "ends"),
    [
        ("[Proxy Service 5] Failed to execute operation Connect from rank 5, retcode 3", [(5, True)]),
        ("[Proxy Service 5] Failed to execute operation Setup from rank 6, retcode 1", [(5, False)]),
        ("[Proxy Service 5] Failed to execute operation Connect from rank 5, retcode 6", []),
    ],
)
def test_a_repeated_warning_names_the_rank_that_printed_it(
    tmp_path: Path, warning: str, ends: list[tuple[int, bool]]
) -> None:
    report = analyzed(
        tmp_path, TORCH.format("system") + f"ncclSystemError: System call failed.\nLast error:\n{warning}\n"
    )
    assert [(c.rank, c.either) for c in report.culprits] == ends
    assert all(c.comm == "its communicator" and c.global_rank is None for c in report.culprits)


def test_an_error_of_nobody_is_that_of_the_only_process_that_ended(tmp_path: Path) -> None:
    error = (
        TORCH.format("cuda")
        + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 999 'unknown error'\n"
    )
    ended = "[2026-03-01 10:00:07,001] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: {} (pid: {}) of binary: /usr/bin/python3\n"
    report = analyzed(tmp_path, error + ended.format(2, 812))
    assert [(c.pid, c.rank_basis) for c in report.culprits] == [(812, "assumed: local rank")]
    assert "local rank 2" in report.reason
    # of two errors, one may be another process's: the launcher names one of those that failed
    several = analyzed(tmp_path, error + error + ended.format(2, 812))
    assert [c.pid for c in several.culprits] == [812]
    assert "in 2 places of the log; the launcher names local rank 2" in several.reason


def test_a_driver_that_repeats_the_errors_of_its_workers_raised_none(tmp_path: Path) -> None:
    tag, own = "(LLMEngine pid=940, ip=10.0.0.7) ", "(RayWorker pid=931, ip=10.0.0.7) "
    error = (
        TORCH.format("system").strip()
        + "\n{0}Last error:\n{0}Net : Call to recv from 10.0.0.9<41527> failed : Connection refused\n"
    )
    report = "Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::RayWorker.execute_method() (pid=931, ip=10.0.0.7, actor_id=dc8c, repr=<RayWorker object>)\n"
    found = analyzed(tmp_path, tag + error.format(tag) + tag + report)
    assert "on a rank" in found.reason and [c.host for c in found.culprits] == ["10.0.0.9"]
    assert "process 931" in analyzed(tmp_path, own + error.format(own)).reason
