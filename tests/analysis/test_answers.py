"""Answers with the opId of another call, answers that nobody sent, and lost or repeated lines that look like them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.model import Finding, Severity
from tests.loggen import generate

DIALECTS = ("2.18", "2.21", "2.30", "passsm")
FOREIGN = "0x7fdeadbeef10"


def answers(folder: Path, files: dict[str, str]) -> list[Finding]:
    for name, text in files.items():
        (folder / name).write_text(text)
    return [finding for finding in analyze([folder]).findings if finding.code == "PSM104"]


def read(lines: list[str], at: int, op: str) -> list[str]:
    """The two lines of a reader about an answer with this opId, in the manner of line ``at``."""
    before, name = lines[at].split("NCCL INFO ")[0], "recvOpId" if "recvOpId" in lines[at] else "resp.opId"
    return [
        f"{before}NCCL INFO ncclPollProxyResponse Received new opId={op}\n",
        f"{before}NCCL INFO {name}={op} matches expected opId={op}\n",
    ]


def middle(text: str) -> tuple[list[str], int, str]:
    """The lines of a log, the one in which rank 2 takes an answer in the middle of its calls, and the opId."""
    lines = text.splitlines(keepends=True)
    taken = [n for n, line in enumerate(lines) if ":6003:" in line and "matches expected" in line]
    at = taken[len(taken) // 2]
    return lines, at, lines[at].split("pId=")[1].split()[0]


def files(dialect: str, merged: bool) -> dict[str, str]:
    log = generate("healthy_both", dialect, seed=3)
    return {"nccl.rank2.log": log.merged()} if merged else log.files()


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_answer_that_no_service_sent_is_an_error(dialect: str, merged: bool, tmp_path: Path) -> None:
    logs = files(dialect, merged)
    lines, at, _ = middle(logs["nccl.rank2.log"])
    lines[at + 1 : at + 1] = read(lines, at, FOREIGN)
    (found,) = answers(tmp_path, logs | {"nccl.rank2.log": "".join(lines)})
    assert (found.severity, found.ranks) == (Severity.ERROR, (2,))
    assert f"read an answer with opId {FOREIGN}" in found.title
    assert FOREIGN in found.evidence[0].text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_answer_that_is_taken_for_another_call_names_both(dialect: str, tmp_path: Path) -> None:
    lines, at, op = middle(generate("healthy_both", dialect, seed=3).merged())
    received = max(n for n in range(at) if f"Received new opId={op}" in lines[n])
    lines[received], lines[at] = lines[received].replace(op, FOREIGN), lines[at].replace(op, FOREIGN, 1)
    (found,) = answers(tmp_path, {"job.log": "".join(lines)})
    assert found.severity is Severity.ERROR
    assert f"waited for the answer to opId {op} and took the answer with opId {FOREIGN}" in found.title


def test_wrong_digit_in_one_line_is_no_answer_for_another_call(tmp_path: Path) -> None:
    lines, at, op = middle(generate("healthy_both", "2.30", seed=3).merged())
    lines[at] = lines[at].replace(op, FOREIGN, 1)
    assert not [found for found in answers(tmp_path, {"job.log": "".join(lines)}) if found.severity is Severity.ERROR]


def test_second_answer_after_other_lines_is_an_error_within_one_process(tmp_path: Path) -> None:
    lines, at, op = middle(generate("healthy_both", "2.18", seed=3).merged())
    lines[at + 3 : at + 3] = read(lines, at, op)
    (found,) = answers(tmp_path, {"job.log": "".join(lines)})
    assert found.severity is Severity.ERROR


def test_second_answer_that_may_be_repeated_lines_is_a_warning(tmp_path: Path) -> None:
    lines, at, op = middle(generate("healthy_both", "2.18", seed=3).merged())
    lines[at + 1 : at + 1] = read(lines, at, op)
    (found,) = answers(tmp_path, {"job.log": "".join(lines)})
    assert found.severity is Severity.WARNING
    assert "NCCL_DEBUG_FILE=nccl.%h.%p.log" in (found.next_step or "")


@pytest.mark.parametrize("dialect", ["2.18", "2.30"])
def test_log_whose_lines_all_come_twice_has_no_foreign_answer(dialect: str, tmp_path: Path) -> None:
    text = generate("healthy_both", dialect, seed=3).merged()
    doubled = "".join(line + line for line in text.splitlines(keepends=True))
    assert answers(tmp_path, {"job.log": doubled}) == []


@pytest.mark.parametrize("lost", range(1, 7))
def test_lost_lines_about_a_call_make_no_foreign_answer(lost: int, tmp_path: Path) -> None:
    lines, at, _ = middle(generate("healthy_both", "2.21", seed=3).merged())
    for first in range(at - lost, at + 1):
        assert answers(tmp_path, {"job.log": "".join(lines[:first] + lines[first + lost :])}) == []


@pytest.mark.parametrize("dialect", ["2.18", "2.30"])
def test_lost_blocks_of_a_file_make_no_foreign_answer(dialect: str, tmp_path: Path) -> None:
    logs = files(dialect, merged=False)
    lines = logs["nccl.rank2.log"].splitlines(keepends=True)
    rng = random.Random(5)
    for _ in range(12):
        at, lost = rng.randrange(len(lines)), rng.choice((2, 3, 5, 9, 30, 200))
        assert answers(tmp_path, logs | {"nccl.rank2.log": "".join(lines[:at] + lines[at + lost :])}) == []


def test_lines_in_another_order_make_no_foreign_answer(tmp_path: Path) -> None:
    rng = random.Random(3)
    for seed in range(4):
        lines = generate("healthy_both", "2.18", seed=seed).merged().splitlines(keepends=True)
        moved = sorted(range(len(lines)), key=lambda n: n + rng.uniform(0, 6))
        assert answers(tmp_path, {"job.log": "".join(lines[n] for n in moved)}) == []
