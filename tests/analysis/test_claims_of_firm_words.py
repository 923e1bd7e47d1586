"""Statements that the lines do not prove: who printed an error, since when a wait lasts, what an exception and a stack show."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import Rank, analyzed

TRACEBACK = (
    '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "check.py", line 9, in <module>\n[rank{0}]: {1}\n'
)


def test_an_exception_of_python_does_not_acquit_nccl(tmp_path: Path) -> None:
    report = analyzed(tmp_path, TRACEBACK.format(0, "AssertionError: sum is 1.0, expected 4"))
    steps = " ".join(f.next_step or "" for f in report.findings)
    assert "not in NCCL" not in steps and "compare what each rank sent" in steps


def test_ranks_whose_check_fails_with_other_values_are_culprits_alike(tmp_path: Path) -> None:
    text = TRACEBACK.format(0, "AssertionError: sum is 1.0, expected 4") + TRACEBACK.format(
        3, "AssertionError: sum is 0.0, expected 4"
    )
    assert [c.rank for c in analyzed(tmp_path, text).culprits] == [0, 3]
    other = TRACEBACK.format(0, "AssertionError: sum is 1.0") + TRACEBACK.format(3, "RuntimeError: no answer in 4 s")
    assert [c.rank for c in analyzed(tmp_path, other).culprits] == [0]


def test_an_error_of_the_program_that_logs_a_rank_is_not_that_of_the_rank(tmp_path: Path) -> None:
    line = (
        Rank(0, 8)
        .line("ncclCommInitRank comm 0x55b1 rank 0 nranks 8 cudaDev 0 busId 65020 commId 0x13 - Init COMPLETE")
        .lines[-1]
        .strip()
    )
    error = "2026-03-01 10:00:03,078 - ERROR - Command failed (errors detected)\n"
    passed_on = analyzed(tmp_path, f"2026-03-01 10:00:00,438 - INFO - {line}\n{error}")
    assert not passed_on.culprits and passed_on.reason.startswith("a process printed an error")
    own = analyzed(tmp_path, f"{line}\n{error}")
    assert [c.rank for c in own.culprits] == [0]


def test_a_wait_began_when_the_operation_began(tmp_path: Path) -> None:
    line = (
        "[rank6]:[E301 10:10:00.969036376 ProcessGroupNCCL.cpp:683] [Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 660000 milliseconds before timing out.\n"
    )
    steps = " ".join(f.next_step or "" for f in analyzed(tmp_path, line).findings)
    assert "just before 09:59:00, when the wait began" in steps


def test_an_end_without_an_exception_has_no_text_to_read(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "pure virtual method called\nterminate called without an active exception\n")
    steps = " ".join(f.next_step or "" for f in report.findings)
    assert "what()" not in steps and "no C++ exception was active" in steps


STACK = (
    "[n1:4711 :0:4795] Caught signal 7 (Bus error: nonexistent physical address)\n==== backtrace (tid:   4795) ====\n"
    " 0 0x0000000000043090 killpg()  ???:0\n 1 0x000000000018bb41 __nss_database_lookup()  ???:0\n 2 0x000000000007587d ncclGroupEnd()  ???:0\n"
    " 3 0x0000000000063dcc ncclRedOpDestroy()  ???:0\n 4 0x0000000000008609 {}()  ???:0\n"
)


def test_the_nearest_exported_names_of_a_stack_are_not_what_was_called(tmp_path: Path) -> None:
    report = analyzed(tmp_path, STACK.format("start_thread"))
    assert report.reason.endswith("(nonexistent physical address) in NCCL")
    assert "nearest exported functions" in (report.findings[0].explanation or "")
    called = analyzed(tmp_path, STACK.format("main"))
    assert called.reason.endswith("in ncclGroupEnd(), called from ncclRedOpDestroy()")


def test_a_stack_below_its_signal_is_no_second_end(tmp_path: Path) -> None:
    report = analyzed(tmp_path, STACK.format("start_thread"))
    assert not [f for f in report.findings if "printed the stack" in f.title]
    cut = analyzed(tmp_path, STACK.format("start_thread").partition("\n")[2])
    assert cut.reason.startswith("UCX printed the stack of thread 4795")  # which need not be the process


def test_a_line_of_a_debug_level_tells_of_no_error(tmp_path: Path) -> None:
    line = "[1719127270.653325] [n1:4711:0] tl_mlx5_context.c:47   TL_MLX5 {} failed to create rcache\n"
    assert "tells of an error" not in analyzed(tmp_path, "TL_NCCL is used\n" * 9 + line.format("DEBUG")).reason


def test_a_stack_of_cpp_is_no_traceback_of_python(tmp_path: Path) -> None:
    text = (
        "terminate called after throwing an instance of 'app::error'\n  what():  no such device\n"
        "C++ Traceback (most recent call last):\n0   app::Executor::Executor(int)\n"
    )
    report = analyzed(tmp_path, text)
    assert not [f for f in report.findings if "Python" in f.title] and "Python" not in str(report.coverage)


def test_a_part_that_reports_its_exception_is_not_said_to_have_missed_it(tmp_path: Path) -> None:
    head = "[2026-03-01 10:00:00 TP4] TpModelWorkerClient hit an exception: Traceback (most recent call last):\n"
    report = analyzed(tmp_path, head + '  File "/s/tp_worker.py", line 112, in forward\n    self.forward_()\n')
    assert report.reason.startswith("the TpModelWorkerClient of rank 4")
    assert "nothing catches" not in (report.findings[0].explanation or "")
