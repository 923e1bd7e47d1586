"""Waits that a server reports and that later lines end, and logs that go on to the end of a job that something ended."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from tests.analysis.outside import nccl

CORE, API = "(EngineCore_DP{} pid=77) ", "(APIServer pid=1) "
TEXT = "INFO 03-01 10:00:00 [shm_broadcast.py:542] No available shared memory broadcast block found in 60 seconds.\n"
WAIT = CORE.format(0) + TEXT
READY = (
    CORE.format(0)
    + "INFO 03-01 10:00:00 [core.py:272] init engine (profile, create kv cache, warmup model) took 281.11 seconds\n"
)
UP = API + "INFO:     Application startup complete.\n"
DOWN = API + "INFO:     Application shutdown complete.\n"
RATE = (
    API
    + "INFO 03-01 10:00:00 [loggers.py:257] Engine 00{}: Avg prompt throughput: 3.0 tokens/s, Avg generation throughput: {} tokens/s, Running: 2 reqs\n"
)
POST = API + 'INFO:     10.3.0.5:57906 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
HEALTH = API + 'INFO:     10.3.0.5:57906 - "GET /health HTTP/1.1" 200 OK\n'


def analyzed(folder: Path, text: str) -> Report:
    (folder / "job.log").write_text(text)
    return psmkit.analyze([str(folder / "job.log")])


@pytest.mark.parametrize("head", ["", nccl(0, 1, nranks=2)], ids=["no NCCL", "NCCL"])
@pytest.mark.parametrize(
    "after",
    [READY, UP, RATE.format(0, 12.5), RATE.format(0, 12.5) + RATE.format(0, "0.0"), POST, WAIT + READY],
    ids=["init", "startup", "tokens", "tokens, then idle", "answers", "two waits"],
)
def test_a_wait_of_vllm_after_which_the_engine_answered_is_over(head: str, after: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, head + WAIT + after)
    assert "waits for its workers" not in report.reason and "block found" not in report.reason
    assert not [f for f in report.findings if f.code == "PSM305"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        (READY + UP + RATE.format(0, 12.5), ""),
        ("", RATE.format(0, "0.0")),
        (RATE.format(0, 12.5), POST),  # an answer is reported before its first token
        ("", HEALTH),
        ("", RATE.format(1, 12.5)),
        ("", READY.replace("DP0", "DP1")),
    ],
    ids=["alone", "earlier", "idle", "a request", "health", "another engine", "another engine starts"],
)
def test_a_wait_of_vllm_is_open_where_no_line_shows_that_this_engine_answered(
    before: str, after: str, tmp_path: Path
) -> None:
    report = analyzed(tmp_path, before + WAIT + after)
    assert "vLLM waits for its workers for 60 s when the log ends" in report.reason
    assert report.verdict == "inconclusive"


def test_a_server_that_was_shut_down_waits_no_more(tmp_path: Path) -> None:
    report = analyzed(tmp_path, UP + POST + WAIT + DOWN)
    assert "until the server is shut down: it was slow or it hung" in report.reason
    assert "when the log ends" not in report.reason


def test_a_server_says_how_far_it_came(tmp_path: Path) -> None:
    served = "the server handled requests"
    assert analyzed(tmp_path, nccl(0, 1, nranks=2) + UP + POST).reason.startswith(f"{served}, and the teardown")
    report = analyzed(tmp_path, nccl(0, 1, nranks=2) + UP + POST + DOWN)
    assert report.reason.startswith(f"{served} and was then shut down, and")
    assert not any("what follows line" in note for note in report.coverage.notes)


KILLS = {
    "mpirun": "^Cmpirun: abort is already in progress...hit ctrl-c again to forcibly terminate\n\nmpirun: killing job...\n",
    "slurm": "slurmstepd: error: *** JOB 7 ON cn1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\nmpirun: Forwarding signal 18 to job\n",
    "pbs": "=>> PBS: job killed: walltime 3630 exceeded limit 3600\n",
    "python": "KeyboardInterrupt\n",
}


def starts(count: int) -> str:
    """The first lines of ranks, which end in the middle of the init."""
    lines = nccl(*range(count), nranks=count).splitlines(keepends=True)
    return "".join(lines[:count])


@pytest.mark.parametrize("job", [nccl(0, 1, nranks=2), starts(2)], ids=["after init", "in init"])
@pytest.mark.parametrize("kill", KILLS)
def test_a_log_that_goes_on_to_the_kill_lacks_no_end(kill: str, job: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, job + KILLS[kill])
    told = [*report.coverage.notes, *(f"{ask.command} {ask.why} {ask.when}" for ask in report.next)]
    assert not [t for t in told if "what follows line" in t or "WHOLE_LOG" in t or "still run" in t]
    asked = any("the stacks of all processes in another run" in t for t in told)
    assert (asked or kill in ("slurm", "pbs")) and report.verdict != "healthy"  # the headline names the scheduler
    assert [f.code for f in report.findings if f.code == "PSM408"]


@pytest.mark.parametrize("kill", KILLS)
def test_a_log_that_goes_on_below_an_interrupt_may_lack_its_end(kill: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, KILLS[kill] + nccl(0, 1, nranks=2))
    assert any("what follows line" in note for note in report.coverage.notes)


def test_a_job_that_ended_before_the_signal_is_healthy(tmp_path: Path) -> None:
    assert analyzed(tmp_path, nccl(0, 1, nranks=2, ended=True) + KILLS["mpirun"]).verdict == "healthy"
