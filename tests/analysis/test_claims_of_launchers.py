"""What a report claims about processes that launchers report."""

from __future__ import annotations

from pathlib import Path

from psmkit.model import Report
from tests.analysis.texts import analyzed

LOST = (
    "PRTE has lost communication with a remote daemon.\n\n"
    "  HNP daemon   : [prterun-n2-4711@0,0] on node n2\n  Remote daemon: [prterun-n2-4711@0,1] on node n3\n\n"
    "This is usually due to either a failure of the TCP network\nconnection to the node.\n" + "-" * 74 + "\n"
)
IMPROPER = "prterun has exited due to process rank 2 with PID 815 on node {} exiting\nimproperly. There are three reasons this could occur:\n"
BOX = (
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 815 RUNNING AT n3\n=   EXIT CODE: 2\n"
    "=   CLEANING UP REMAINING PROCESSES\n"
)
STRING = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Interrupt (signal 2)\n"
PROXY = "[proxy:0@n2] main (proxy/pmip.c:183): demux engine error waiting for event\nsrun: error: n2: task 0: Exited with exit code 7\n"


def _who(report: Report) -> list[tuple[int | None, str | None, int | None]]:
    return [(c.rank, c.host, c.pid) for c in report.culprits]


def test_a_process_on_a_node_whose_daemon_is_lost_ended_because_of_it(tmp_path: Path) -> None:
    report = analyzed(tmp_path, LOST + IMPROPER.format("n3"))
    assert report.reason == "the launcher lost its daemon on n3, and ends the job"
    assert _who(report) == [(None, "n3", None)]
    assert "The end of rank 2 there follows from it" in report.findings[0].explanation


def test_a_process_on_another_node_is_not_taken_for_lost(tmp_path: Path) -> None:
    assert (2, "n4", 815) in _who(analyzed(tmp_path, LOST + IMPROPER.format("n4")))


def test_what_ends_after_ctrl_c_is_no_failure(tmp_path: Path) -> None:
    interrupt = "^C[mpiexec@n2] Sending Ctrl-C to processes as requested\n"
    report = analyzed(tmp_path, interrupt + BOX + PROXY + STRING)
    assert report.verdict == "inconclusive" and not report.culprits


def test_mpich_says_in_its_last_lines_which_signal_an_exit_code_is(tmp_path: Path) -> None:
    """The text of the signal may stand far below the box, with lines of other programs between them."""
    segfault = STRING.replace("Interrupt (signal 2)", "Floating point exception (signal 8)")
    report = analyzed(tmp_path, BOX.replace("CODE: 2", "CODE: 8") + PROXY + segfault)
    assert (None, "n3", 815) in _who(report) and "SIGFPE" in report.reason


def test_an_abort_below_an_exception_of_rocm_is_not_called_the_cause(tmp_path: Path) -> None:
    hang = "HW Exception by GPU node-3 (Agent handle: 0x55d0c000a000) reason :GPU Hang\n"
    report = analyzed(tmp_path, hang + "Aborted (core dumped)\n")
    assert report.verdict == "failed" and report.reason == "ROCm reported a hardware exception of GPU node 3: GPU Hang"
    assert [f.code for f in report.findings] == ["PSM405"]


def test_a_graph_with_a_device_that_is_not_there_is_not_put_down_to_the_ranks(tmp_path: Path) -> None:
    warn = "n7:4711:4799 [0] graph/search.cc:719 NCCL WARN XML Import Channel : dev 1 not found.\n"
    returned = "n7:4711:4799 [0] NCCL INFO graph/search.cc:749 -> 2\n"
    (finding, *_) = analyzed(tmp_path, warn + returned).findings
    assert "NCCL_GRAPH_FILE" in finding.next_step and "ranks see different" not in finding.explanation
