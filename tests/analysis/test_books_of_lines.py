"""What a report says about the lines that it read adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Coverage
from tests.analysis.outside import nccl
from tests.analysis.texts import analyzed

FRAMES = 'Traceback (most recent call last):\n  File "/opt/train.py", line 395, in <module>\n    train()\n'
CLOSED = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:41077\n"
)
FOLDED = (
    '{\n  "level": "ERROR",\n  "stdout": "# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 1(factor) warmup iters: 5 iters: 20 agg iters: 1 '
    "validation: 1 graph: 0\\n#\\n# Using devices\\nweb-0: Test CUDA failure common.cu:941 'system not yet initialized'\\n"
    ' .. web-0 pid 15: Test failure common.cu:891\\n",\n}\n'
)
RAY = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
    "connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory "
    "usage. (2) ray stop --force is called.\n\n-----\nJob failed\n\nray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
    "        pid: 57743\n        name: Worker_0:0\n"
)


def accounted(text: str, coverage: Coverage) -> bool:
    blank = sum(not line.strip() for line in text.splitlines())
    return coverage.matched + coverage.unmatched + coverage.torn + coverage.other + blank == coverage.lines


@pytest.mark.parametrize(
    "text", [FOLDED, RAY, FRAMES + CLOSED, "\n \t\n" + RAY + FOLDED, nccl(0, 1, nranks=2) + "\nx\n"]
)
def test_understood_and_other_and_blank_lines_are_the_lines_read(text: str, tmp_path: Path) -> None:
    coverage = analyzed(tmp_path, text).coverage
    assert accounted(text, coverage), coverage
    assert coverage.beside <= coverage.matched


def test_a_folded_line_that_is_understood_in_part_is_no_other_line(tmp_path: Path) -> None:
    coverage = analyzed(tmp_path, FOLDED).coverage
    assert (coverage.beside, coverage.other, coverage.lines) == (1, 3, 4)


def test_a_traceback_whose_exception_is_the_proof_is_not_cut(tmp_path: Path) -> None:
    whole = analyzed(tmp_path, FRAMES + CLOSED)
    assert whole.verdict == "failed"
    assert not [note for note in whole.coverage.notes if "before the line that names the exception" in note]


@pytest.mark.parametrize("text", [FRAMES, FRAMES + CLOSED + FRAMES])
def test_a_traceback_below_the_proof_is_still_cut(text: str, tmp_path: Path) -> None:
    notes = analyzed(tmp_path, text).coverage.notes
    assert [note for note in notes if "before the line that names the exception" in note]
