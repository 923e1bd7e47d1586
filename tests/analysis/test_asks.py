"""The commands to run next where a report leaves something open."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.model import Report, Verdict
from psmkit.report import render
from psmkit.report.redact import redact

WATCHDOG = (
    "[rank1]:[E626 16:48:25.440228878 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)
WRITTEN = (
    "[rank1]:[I626 16:48:41.112 FlightRecorder.cpp:23] Finished writing Flight Recorder debug info to /tmp/trace_1\n"
)


def head(rank: int, pid: int, nranks: int) -> str:
    return (
        f"node-a:{pid}:{pid} [{rank}] NCCL INFO NCCL version 2.27.3+cuda12.4\n"
        f"node-a:{pid}:{pid} [{rank}] NCCL INFO ncclCommInitRank comm 0x55d0 rank {rank} nranks {nranks} cudaDev {rank} nvmlDev {rank} busId 1000"
        " commId 0x7f1122334455667 - Init START\n"
    )


def report_of(folder: Path, *texts: str) -> Report:
    paths = [folder / f"rank{n}.log" for n in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return analyze(paths)


def kinds(report: Report) -> list[str]:
    return [ask.kind for ask in report.next]


def test_processes_that_initialise_are_inspected_before_a_rerun(tmp_path: Path) -> None:
    report = report_of(tmp_path, head(0, 700, 2), head(1, 701, 2))
    assert report.verdict is Verdict.INCONCLUSIVE
    inspect = next(ask for ask in report.next if ask.kind == "inspect")
    assert (inspect.command, inspect.when) == ("psmkit inspect --all", "while the processes still run, on node-a")


def test_ranks_without_a_log_are_asked_for_first(tmp_path: Path) -> None:
    report = report_of(tmp_path, head(0, 700, 4))
    assert kinds(report)[0] == "read"
    assert report.next[0].command == "psmkit analyze LOGS LOGS_OF_THE_OTHER_RANKS"
    assert report.next[0].why == "the logs of ranks 1-3 were not given"


def test_a_flight_recorder_dump_that_the_log_names_is_read_first(tmp_path: Path) -> None:
    report = report_of(tmp_path, WATCHDOG + WRITTEN)
    assert not report.culprits
    assert report.next[0].command == "psmkit analyze LOGS /tmp/trace_1"
    # the log shows that a watchdog gave up: no process is left to look into
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT=1" in report.next[-1].command


def test_a_process_that_has_ended_is_not_inspected(tmp_path: Path) -> None:
    ended = "[rank1]:[E626 16:48:26.1 ProcessGroupNCCL.cpp:621] [Rank 1] To avoid data inconsistency, we are taking the entire process down.\n"
    report = report_of(tmp_path, WATCHDOG + ended)
    assert "inspect" not in kinds(report)
    assert kinds(report)[-1] == "rerun"


@pytest.mark.parametrize(
    "text",
    [
        "#\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.5\n#\n",
        'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    main()\nValueError: bad\n',
    ],
    ids=["healthy", "failed"],
)
def test_a_report_that_decides_asks_for_nothing(tmp_path: Path, text: str) -> None:
    report = report_of(tmp_path, text)
    assert report.verdict in (Verdict.HEALTHY, Verdict.FAILED)
    assert report.next == ()
    assert "next:" not in render(report, "text")


def test_a_redacted_report_does_not_show_the_pid_in_its_command(tmp_path: Path) -> None:
    from tests.analysis.test_frontier import cut

    report = cut(tmp_path, "op.type=4")
    (pid,) = {suspect.pid for suspect in report.suspects}
    assert str(pid) in report.next[0].command
    hidden = redact(report)
    assert str(pid) not in hidden.next[0].command
    assert hidden.next[0].command.startswith("psmkit inspect ")


def test_a_path_from_a_log_is_quoted_for_the_shell(tmp_path: Path) -> None:
    report = report_of(tmp_path, WATCHDOG + WRITTEN.replace("/tmp/trace_1", "/tmp/a;reboot"))
    assert "'/tmp/a;reboot'" in report.next[0].command
