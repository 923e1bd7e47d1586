"""Reports that say how many, and which: processes that crash, communicators that end, commands that a launcher prints."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import analyzed

ABORTED = "n7:471{pid}:81{pid} [{pid}] NCCL INFO comm 0x55{pid}0 rank {rank} nranks 2 cudaDev {pid} busId {pid}000 - Abort COMPLETE\n"


def test_one_signal_that_open_mpi_tells_in_two_lines_is_one_end(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "*** Process received signal ***\nSignal: Segmentation fault (11)\nSignal code: Address not mapped (1)\n",
    )
    assert report.reason == "a process died by SIGSEGV"
    assert [f.code for f in report.findings] == ["PSM402"]


def test_processes_that_crash_alike_are_counted_in_the_first_line(tmp_path: Path) -> None:
    line = "[n7:{0} :0:{0}] Caught signal 7 (Bus error: nonexistent physical address)\n"
    assert analyzed(tmp_path, line.format(34) + line.format(35)).reason.startswith("2 processes (n7:34 and n7:35) died")


def test_a_command_of_another_process_is_not_said_to_name_none(tmp_path: Path) -> None:
    line = "[2026-03-01 10:00:00,215] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=1'] exits with return code = 1\n"
    step = analyzed(tmp_path, line).findings[0].next_step
    assert "does not name" not in step and "started last" in step


def test_one_of_several_communicators_is_not_called_the_communicator(tmp_path: Path) -> None:
    two = "".join(ABORTED.format(pid=pid, rank=pid % 2) for pid in range(2))
    assert "ranks 0, 1 aborted the communicator" in analyzed(tmp_path, two).reason
    four = "".join(ABORTED.format(pid=pid, rank=pid % 2) for pid in range(4))
    assert "aborted a communicator of 2 ranks" in analyzed(tmp_path, four).reason


def test_the_start_of_an_early_nccl_is_seen(tmp_path: Path) -> None:
    head = "n7:4711:4799 [0] NCCL INFO NET : Using interface ib0:10.0.0.7<0>\n"
    started = analyzed(tmp_path, f"{head}n7:4711:4799 [0] NCCL INFO rank 0 nranks 3\n").reason
    assert started == "the log ends before the init of a communicator is complete"
    assert "neither the start" in analyzed(tmp_path, head).reason


def test_a_line_of_torch_about_nccl_is_not_called_no_line_of_a_run(tmp_path: Path) -> None:
    line = "[I628 20:15:42.000370615 ProcessGroupNCCL.cpp:1501] [PG  Rank 1] main process destroyed cuda before watchdog loop exited, terminating watchdog. (Watchdog caught exception: CUDA error: driver shutting down\n"
    assert "no lines" not in analyzed(tmp_path, line).reason


def test_a_communicator_in_the_words_of_a_fork_is_not_said_to_be_missing(tmp_path: Path) -> None:
    line = (
        "[n7][4711:4799][0][init.cc:2516] NCCL INFO comm 0x559dec0 rank 0 nranks 1 fooDev 0 busId 10 - Abort COMPLETE\n"
    )
    assert "neither" not in analyzed(tmp_path, line + line).reason


def test_a_size_that_one_of_two_ranks_prints_is_not_that_of_both(tmp_path: Path) -> None:
    full = "n7:{0}:1{0} [{1}] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    made = "n7:{0}:1{0} [{1}] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-54c7-1-0-1 (size 9637888)\n"
    one = analyzed(tmp_path, full.format(31, 0) + made.format(31, 0) + full.format(32, 1))
    assert "MiB" not in one.reason and "shared memory segment" in one.reason
    assert "of 9.2 MiB" in analyzed(tmp_path, full.format(31, 0) + made.format(31, 0)).reason
