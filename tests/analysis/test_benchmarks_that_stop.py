"""nccl-tests that stop, corrupt data or are started again, and mpirun's word that a process failed."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import analyzed

ROW = "     {:>8}         16384     float     sum      -1    18.90    3.47    6.07       {}    18.31    3.58    6.26       {}\n"
ABORTED = "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n"
FIRST = "the job to be terminated. The first process to do so was:\n\n  Process name: [[901,1],3]\n  Exit code:    2\n"
MISSING = "[1,{}]<stdout>:node7: Test CUDA failure common.cu:891 'invalid device ordinal'\n"


def test_wrong_values_in_a_row_need_no_summary(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ROW.format(1024, 0, 0) + ROW.format(2048, 12, 0) + ROW.format(4096, 31, 30))
    assert (report.verdict, report.culprits) == ("failed", ())
    assert "wrong values in 2 rows (12 to 31)" in report.reason
    in_place = analyzed(tmp_path, ROW.format(1024, 0, 0) + ROW.format(2048, 0, 7))
    assert "wrong values in 1 row (7)" in in_place.reason
    right = analyzed(tmp_path, ROW.format(1024, 0, 0) + ROW.format(2048, 0, 0))
    assert (right.verdict, right.findings) == ("inconclusive", ())


def test_ranks_that_lack_their_device_are_named_by_the_tags_of_the_launcher(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(MISSING.format(rank) for rank in (6, 4, 7, 5)))
    assert [c.rank for c in report.culprits] == [4, 5, 6, 7]
    assert report.reason == "nccl-tests stopped on ranks 4-7: invalid device ordinal"
    # each of several ranks can be the one that broke it
    broke = (
        "".join(MISSING.format(r) for r in (4, 5))
        .replace("CUDA", "NCCL")
        .replace("invalid device ordinal", "unhandled system error")
    )
    assert not any(c.rank is not None for c in analyzed(tmp_path, broke).culprits)
    alone = analyzed(
        tmp_path, MISSING.format(0).replace("invalid device ordinal", "an illegal memory access was encountered")
    )
    assert [c.rank for c in alone.culprits] == [0]


def test_mpirun_that_aborts_for_an_exit_code_proves_a_failure(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ABORTED)
    assert (report.verdict, report.culprits) == ("failed", ())
    assert report.reason == "mpirun ended the job because a process returned a non-zero exit code"
    named = analyzed(tmp_path, ABORTED + FIRST)
    assert ([c.rank for c in named.culprits], len(named.findings)) == ([3], 1)


def test_a_test_that_ended_well_says_nothing_of_the_next_one(tmp_path: Path) -> None:
    head = "# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20\n"
    ended = head + ROW.format(1024, 0, 0) + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.1\n"
    assert analyzed(tmp_path, ended).verdict == "healthy"
    report = analyzed(tmp_path, ended + "./all_gather_perf -b 8\n" + head)
    assert report.verdict == "inconclusive" and "then began one that does not end in this log" in report.reason
    assert analyzed(tmp_path, ended + ended).verdict == "healthy"


def test_a_process_that_drives_several_ranks_fails_on_those_that_the_table_gives_it(tmp_path: Path) -> None:
    table = "".join(
        f"#  Rank  {r} Group  0 Pid {pid} on    {host} device  {d} [0x0{d + 1}] NVIDIA L40\n"
        for r, (pid, host, d) in enumerate((p, h, d) for p, h in ((71, "n7"), (82, "n8")) for d in (0, 1))
    )
    failed = "n8: Test NCCL failure common.cu:959 'internal error - please report this issue to the NCCL developers / '\n .. n8 pid 82: Test failure common.cu:844\n"
    report = analyzed(tmp_path, table + failed)
    assert report.reason.startswith("nccl-tests stopped on ranks 2, 3: internal error")
    assert [(c.host, c.pid) for c in report.culprits] == [("n8", 82)]
    assert "NCCL_DEBUG=INFO" in report.findings[0].next_step


def test_a_log_with_lines_of_level_info_is_not_asked_for_them(tmp_path: Path) -> None:
    failure = "node7: Test NCCL failure common.cu:891 'unhandled system error'\n"
    info = "node7:4711:4711 [0] NCCL INFO Connected all trees\n"
    assert "NCCL_DEBUG=INFO" in (analyzed(tmp_path, failure).findings[0].next_step or "")
    assert "NCCL_DEBUG=INFO" not in (analyzed(tmp_path, info + failure).findings[0].next_step or "")
