"""Horovod's stall check of old releases lists the ranks that are ready: the missing ones are in no list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

HEAD = (
    "WARNING: One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks "
    "for more than 60 seconds. This may indicate that different ranks are trying to submit different tensors or that only subset of ranks is "
    "submitting tensors, which will cause deadlock. Stalled ops: "
)


def _missing(tmp_path: Path, text: str) -> list[int | None]:
    report = analyzed(tmp_path, text)
    assert report.verdict == "hung"
    return [c.rank for c in report.culprits]


@pytest.mark.parametrize(
    "lists, missing",
    [
        (["2, 0, 3", "0, 3, 2"], [1]),
        (["3, 0"], [1, 2]),
        (["0, 1, 2"], []),  # how many ranks there are is not in the log
        (["0, 1, 3", "0, 2, 3"], [1, 2]),  # each is in some list: they submit in another order
    ],
)
def test_the_ranks_that_no_list_has_are_missing(lists: list[str], missing: list[int], tmp_path: Path) -> None:
    ops = ", ".join(f"allreduce.w{n} [ready ranks: {ready}]" for n, ready in enumerate(lists))
    assert _missing(tmp_path, HEAD + ops + "\n") == missing


def test_the_number_of_ranks_is_taken_from_the_tags_of_the_launcher_and_from_nccl(tmp_path: Path) -> None:
    line = HEAD + "allreduce.w0 [ready ranks: 0, 1, 2]\n"
    tagged = "[1,4]<stderr>:RuntimeError: cannot read the labels\n"
    assert "ranks 3 and 4 did not submit" in analyzed(tmp_path, f"[1,0]<stderr>:{line}{tagged}").reason
    init = (
        "n1:70:70 [0] NCCL INFO comm 0x50 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77 - Init COMPLETE\n"
    )
    assert _missing(tmp_path, init + line) == [3]


@pytest.mark.parametrize("at", (10, 14, 15, 22, 29, 45, 47, 60, 85))
def test_a_list_may_be_wrapped_anywhere(at: int, tmp_path: Path) -> None:
    ops = "allreduce.w0 [ready ranks: 12, 10, 0, 2, 3, 4], allreduce.w1 [ready ranks: 10, 12, 2, 0, 4, 3], allreduce.w2 [ready r"
    text = HEAD + ops[:at] + "\n" + ops[at:] + "\n"
    assert analyzed(tmp_path, text).reason.startswith("ranks 1, 5, 6, 7, 8, 9 and 11 did not submit tensors")


def test_lists_of_missing_ranks_are_read_as_before(tmp_path: Path) -> None:
    head = HEAD.removesuffix("Stalled ops: ") + "\nStalled ops:\n"
    assert _missing(tmp_path, head + "".join(f"grad_{n} [missing ranks: 0, 3]\n" for n in range(3))) == [0, 3]


@pytest.mark.parametrize("head", [HEAD.replace("Stalled ops: ", "\nStalled ops: \n"), "Stalled ops: "])
def test_the_lists_may_begin_on_a_line_of_their_own_and_without_the_warning(head: str, tmp_path: Path) -> None:
    ops = "".join(f"broadcast.layer{n}.weight [ready ranks: 4, 0, 1, 3], \n" for n in range(4))
    report = analyzed(tmp_path, f"{head}{ops}broadcast.layer5")
    assert report.verdict == "hung"
    assert [c.rank for c in report.culprits] == [2]
    assert "The log shows ranks up to 4, and rank 2 is in none of Horovod's lists" in report.findings[0].explanation
