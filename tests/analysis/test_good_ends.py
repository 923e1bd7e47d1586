"""The launcher's report that a job ended without an error: it decides, and what stands above it did not stop the job."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report, Severity
from psmkit.report import render
from tests.analysis.texts import analyzed

STEPS = "".join(
    f"[2026-03-01 10:00:{n:02},000] [INFO] [logging.py:107:log_dist] [Rank 0] step={n}, skipped=0, lr=[1e-05]\n"
    for n in range(1, 9)
)
NODE = "[2026-03-01 09:59:00,123] [INFO] [launch.py:152:main] nnodes={}, num_local_procs=2, node_rank={}\n"
EXIT = "[2026-03-01 10:01:00,123] [INFO] [launch.py:347:main] Process {} exits successfully.\n"
AGENT = "INFO:torch.distributed.elastic.agent.server.api:[default] worker group successfully finished. Waiting 300 seconds for other agents to finish.\n"
WAITED = "INFO:torch.distributed.elastic.agent.server.api:Done waiting for other agents. Elapsed: 0.0668 seconds\n"
BROKEN = "srun: error: n1: task 0: Exited with exit code 2\n"
TIMING = "ENDING TIMING RUN AT 2026-03-01 08:15:29 PM\nRESULT,CLASSIFIER,,2489,,2026-03-01 07:34:00 PM\n"


def _both(report: Report) -> tuple[str, list[Severity]]:
    return report.verdict, [f.severity for f in report.findings]


@pytest.mark.parametrize(
    "text",
    [
        NODE.format(1, 0) + STEPS + EXIT.format(11) + EXIT.format(12),
        NODE.format(2, 0) + NODE.format(2, 1) + STEPS + "".join(EXIT.format(pid) for pid in (11, 12, 11, 13)),
        STEPS + AGENT + WAITED,
        STEPS + "2026-03-01 10:00:00,123 sagemaker-training-toolkit INFO     Reporting training SUCCESS\n",
        STEPS + "----\nJob 'raysubmit_T3JpUGHRiC9U18UE' succeeded\n----\n",
        'step one\n{"timestamp":1724834256.58,"name":"complete","context":{"status":0}}\n{"timestamp":1724834256.58,"name":"done"}\n',
    ],
    ids=["deepspeed", "deepspeed, two nodes", "torchrun", "sagemaker", "ray", "flux"],
)
def test_a_launcher_that_saw_all_processes_end_well_decides(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict == "healthy" and report.reason.startswith("the launcher reports in line")


@pytest.mark.parametrize(
    "text",
    [
        NODE.format(1, 0) + STEPS + EXIT.format(11),
        NODE.format(2, 0) + STEPS + EXIT.format(11) + EXIT.format(12),
        STEPS + EXIT.format(11) + EXIT.format(12),
        STEPS + AGENT,
        STEPS + AGENT + WAITED + STEPS,
        STEPS + AGENT + WAITED + "a line of another job\n" * 40,
        STEPS
        + AGENT
        + WAITED
        + "torch/distributed/run.py:792] "
        + "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\nloading\n",
        STEPS + TIMING,
    ],
    ids=[
        "one of two",
        "one of two nodes",
        "of how many",
        "others still run",
        "works again",
        "much below it",
        "another stage begins",
        "a script says so whatever the status",
    ],
)
def test_a_report_about_some_processes_or_above_more_work_does_not(text: str, tmp_path: Path) -> None:
    assert analyzed(tmp_path, text).verdict == "inconclusive"


def test_processes_that_ended_well_are_counted_where_their_number_is_not_known(tmp_path: Path) -> None:
    report = analyzed(tmp_path, STEPS + EXIT.format(11) + EXIT.format(12))
    assert (
        report.reason
        == "the launcher reports that 2 processes ended with exit code 0, and the log does not show how many it started"
    )


def test_an_error_above_a_good_end_is_a_warning_that_says_so(tmp_path: Path) -> None:
    report = analyzed(tmp_path, BROKEN + STEPS + AGENT + WAITED)
    assert _both(report) == ("healthy", [Severity.WARNING]) and not report.culprits
    assert "It did not stop the job: the launcher reports in line 11 that" in report.findings[0].explanation


def test_an_error_below_a_good_end_or_in_another_file_stays_one(tmp_path: Path) -> None:
    assert _both(analyzed(tmp_path, STEPS + AGENT + WAITED + BROKEN)) == ("failed", [Severity.ERROR])
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text(STEPS + AGENT + WAITED)
    (tmp_path / "logs" / "b.log").write_text(BROKEN)
    report = psmkit.analyze([str(tmp_path / "logs")])
    assert _both(report) == ("failed", [Severity.ERROR])


_FAILS = '(Worker pid={0}) Traceback (most recent call last):\n(Worker pid={0})   File "/a/w.py", line 3, in step\n(Worker pid={0})     read()\n(Worker pid={0}) {1}\n'
_OTHER = "(Worker pid=9) sample {} done\n"


def _raises(times: int, apart: int, text: str = "ValueError: step {} has no answer", last: str = "") -> str:
    gap = "".join(_OTHER.format(n) for n in range(apart))
    return "".join(_FAILS.format(7, text.format(n)) + gap for n in range(times)) + last


@pytest.mark.parametrize(
    "text",
    [_raises(6, 30), _raises(2, 30, last="(Worker pid=7) skipped sample 2\n")],
    ids=["often", "prints after the last one"],
)
def test_an_exception_that_its_process_survives_ends_nothing(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict == "inconclusive" and not any(f.severity is Severity.ERROR for f in report.findings)
    assert "ValueError" not in report.reason


@pytest.mark.parametrize(
    "text",
    [
        _raises(1, 30),
        _raises(3, 30),
        _raises(2, 30) + _FAILS.format(7, "KeyError: 'loss'"),
        _raises(2, 1),
    ],
    ids=["once", "gives up after three", "another one at the end", "a chain"],
)
def test_an_exception_that_may_have_ended_its_process_still_fails_the_job(text: str, tmp_path: Path) -> None:
    assert analyzed(tmp_path, text).verdict == "failed"


def test_a_warning_of_tensorflow_is_no_failure_by_its_words(tmp_path: Path) -> None:
    line = "2026-03-04 10:11:12.135808: {} tensorflow/core/context.cc:566] Unable to destroy the server, so releasing it.\n"
    assert analyzed(tmp_path, STEPS + line.format("W")).verdict == "inconclusive"
    assert analyzed(tmp_path, "starting\n" + line.format("E")).verdict == "failed"


def test_an_error_below_unit_tests_that_passed_does_not_fail_the_job(tmp_path: Path) -> None:
    tests = "." + "-" * 70 + "\nRan 1 test in 277.304s\n\n{}\n\njob deleted\nerror: no name was specified\n"
    assert analyzed(tmp_path, "starting\n" * 20 + tests.format("OK")).verdict == "inconclusive"
    assert analyzed(tmp_path, "starting\n" * 20 + tests.format("FAILED (errors=1)")).verdict == "failed"


@pytest.mark.parametrize(
    "last",
    [
        "Training completed\n",
        "***** Eval results *****\n",
        ':::MLL 1.5 run_stop: {"value": null, "metadata": {"status": "success"}}\n',
    ],
)
def test_where_the_program_is_done_the_next_step_is_to_look_whether_it_ended(last: str, tmp_path: Path) -> None:
    done, more = (
        render(analyzed(tmp_path, STEPS + last + rest), "text") for rest in ("", STEPS.replace("step=", "step=1"))
    )
    assert "Find out whether the processes have ended: if so, the job is done." in " ".join(done.split())
    assert "Find the end of the log" in more


def test_the_results_of_an_evaluation_are_named_as_the_last_words_of_a_program(tmp_path: Path) -> None:
    text = STEPS + "INFO:tensorflow:***** Eval results *****\nINFO:tensorflow:  loss = 8.85\n"
    assert analyzed(tmp_path, text).reason.startswith("the program printed the results of its evaluation")
