"""A program that says itself that it ended well, and what speaks against it."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from tests.analysis.outside import nccl
from tests.analysis.test_program import steps
from tests.analysis.test_watchdog import timeout
from tests.analysis.texts import analyzed

DONE = {
    "trainer": "{'train_runtime': 812.11, 'train_samples_per_second': 3.1, 'train_loss': 1.1}\n",
    "words": "=== Training Completed Successfully! ===\n",
    "each rank": "[Rank 0] Training job finished successfully!\n[Rank 1] Training job finished successfully!\n",
    "launcher": "[2026-03-01 10:00:00,123] [INFO] [launch.py:347:main] Process 1000 exits successfully.\n",
    "benchmark": "param all-reduce speed: 12.8 GB/s\n",
}
STEPS = steps(1, 9)


def aborts(*ranks: int, nranks: int = 2) -> str:
    """The end of PyTorch's communicators: returns of aborted sockets, then the abort itself."""
    return "".join(
        f"node0:{1000 + r}:{2000 + r} [{r}] NCCL INFO misc/socket.cc:58 -> 3\n"
        f"node0:{1000 + r}:{2000 + r} [{r}] NCCL INFO comm 0x55{r:04x} rank {r} nranks {nranks} cudaDev {r} busId {r + 1}000 - Abort COMPLETE\n"
        for r in ranks
    )


def closed(*ranks: int) -> str:
    return "".join(
        f"node0:{1000 + r}:{3000 + r} [{r}] NCCL INFO [Service thread] Connection closed by localRank {1 - r}\n"
        for r in ranks
    )


@pytest.mark.parametrize("words", DONE)
def test_an_abort_after_the_program_ended_is_its_normal_end(words: str, tmp_path: Path) -> None:
    text = "" if words == "benchmark" else STEPS
    report = analyzed(tmp_path, job=nccl(0, 1, nranks=2) + text + DONE[words] + aborts(0, 1))
    assert report.verdict == "healthy", report.reason
    assert "by the program's own words" in report.reason and "ranks 0 and 1" in report.reason
    assert report.confidence < 0.8


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(STEPS + aborts(0, 1), id="steps alone"),
        pytest.param(STEPS + DONE["words"] + aborts(0), id="a rank without an end"),
        pytest.param(STEPS + aborts(0, 1) + DONE["words"], id="an abort before the words"),
        pytest.param(DONE["words"] + STEPS + aborts(0, 1), id="steps after the words"),
        pytest.param(STEPS + DONE["words"] + "Traceback (most recent call last):\n" + aborts(0, 1), id="a traceback"),
        pytest.param(STEPS + DONE["words"] + "slurmstepd: error: *** JOB 7 ON node0 CANCELLED AT 2026-01-01T00:00:00 ***\n" + aborts(0, 1), id="cancelled"),
        pytest.param(STEPS + "Training finished with errors\n" + aborts(0, 1), id="the words are bad"),
        pytest.param(STEPS + DONE["words"] + timeout(1) + aborts(0, 1), id="a watchdog"),
        pytest.param(STEPS + DONE["words"] + "\nnode0:1001:1001 [1] transport/net.cc:7 NCCL WARN something new\n" + aborts(0, 1), id="an unknown warning"),
        pytest.param(STEPS + DONE["words"] + aborts(0, 1).replace("-> 3", "-> 2"), id="another error"),
        pytest.param(STEPS + DONE["words"] + closed(0, 1), id="closed connections of open communicators"),
        pytest.param("loading: read speed: 12.8 GB/s\n" + aborts(0, 1), id="another speed"),
    ],
)  # fmt: skip
def test_words_alone_do_not_make_a_run_healthy(text: str, tmp_path: Path) -> None:
    assert analyzed(tmp_path, job=nccl(0, 1, nranks=2) + text).verdict != "healthy"


def test_the_words_of_one_rank_do_not_speak_for_the_file_of_another(tmp_path: Path) -> None:
    one, other = nccl(0, nranks=2) + STEPS + DONE["words"] + aborts(0), nccl(1, nranks=2) + aborts(1)
    assert analyzed(tmp_path, rank0=one, rank1=other).verdict == "inconclusive"
    (tmp_path / "rank1.log").write_text(nccl(1, nranks=2) + DONE["words"] + aborts(1))
    assert psmkit.analyze([str(tmp_path)]).verdict == "healthy"


def test_ranks_without_a_log_make_it_less_sure(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=nccl(0, 1, nranks=4) + DONE["words"] + aborts(0, 1, nranks=4))
    assert report.verdict == "healthy" and "logs of ranks 2, 3 are missing" in report.reason
    assert report.confidence == 0.6


def test_connections_that_close_after_the_end_are_no_headline(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=DONE["trainer"] + closed(0, 1))
    assert report.verdict == "healthy" and report.confidence == 0.6
    for text in (closed(0, 1), closed(0) + DONE["trainer"] + closed(1)):
        report = analyzed(tmp_path, job=text)
        assert report.verdict == "inconclusive"
        assert "Connection closed" not in report.reason
