"""Texts of several lines on one, and lines in boxes: structured logs, terminals."""

from __future__ import annotations

import json
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

import psmkit
from psmkit.logparse import scan
from psmkit.logparse.types import Event
from tests.analysis.outside import nccl
from tests.analysis.test_watchdog import status, timeout

SPAWN = (
    "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
    '  File "/a/train.py", line 3, in main\n    work()\nValueError: bad batch\n'
)
ELASTIC = (
    "=====\ntrain.py FAILED\n-----\nFailures:\n  <NO_OTHER_FAILURES>\n-----\nRoot Cause (first observed failure):\n[0]:\n"
    "  time      : 2026-03-01_10:00:00\n  host      : n2\n  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n"
    "  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 4711\n=====\n"
)
DESYNC = (
    "[Rank 0] report: \n\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
    "\t   - [2] finished collective #811, but didn't join collective #812 (count from 1)\n"
    "\t - Snapshot of ranks' latest states:\n\t   #812 started ranks:\n\t     [0,1,3] started ALLREDUCE\n"
)
ERROR = "node0:7:9 [1] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)\n"
FRAMES = ["/opt/app/train.py:118 in main", "", "  116     y = f(x)", "❱ 118     loss.backward()"]
OOM = "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.20 GiB is free."


def one_object(text: str) -> str:
    return json.dumps({"level": "ERROR", "message": text}) + "\n"


def by_docker(text: str) -> str:
    """Each line as a container's log keeps it, with the signs that Go's encoder spells."""
    lines = (json.dumps({"log": line, "stream": "stderr"}) for line in text.splitlines(keepends=True))
    return "".join(line.replace("<", "\\u003c").replace(">", "\\u003e") + "\n" for line in lines)


def quoted(text: str) -> str:
    return f"(Worker pid=903) ERROR: {text!r}\n"


def quoted_twice(text: str) -> str:
    return one_object(json.dumps({"log": text}))


def box(lines: list[str], width: int, head: str = "", sides: str = "╭─╮│╰╯") -> str:
    left, line, right, bar, low, end = sides
    parts = [p for text in lines for p in textwrap.wrap(text, width - 4) or [""]]
    rows = [
        left + head.center(width - 2, line) + right,
        *(f"{bar} {part:{width - 4}} {bar}" for part in parts),
        low + line * (width - 2) + end,
    ]
    return "\n".join(rows) + "\n"


def rich(text: str, width: int, tag: str = "") -> str:
    body = box(FRAMES, width, " Traceback (most recent call last) ") + "\n".join(textwrap.wrap(text, width)) + "\n"
    return "".join(tag + line + "\n" for line in body.splitlines())


def events(tmp_path: Path, text: str) -> list[Event]:
    (tmp_path / "job.log").write_text(text)
    with closing(scan([str(tmp_path / "job.log")])) as found:
        return [e for e in found.events if not e.name.startswith("other.")]


def said(tmp_path: Path, text: str) -> tuple[str, list[int | None]]:
    (tmp_path / "job.log").write_text(text)
    report = psmkit.analyze([str(tmp_path / "job.log")])
    return report.verdict, [c.rank for c in report.culprits]


@pytest.mark.parametrize("write", [one_object, by_docker, quoted, quoted_twice])
@pytest.mark.parametrize("text", [SPAWN, ELASTIC, DESYNC, ERROR, timeout(0) + timeout(1)])
def test_a_text_says_the_same_on_one_line(write: object, text: str, tmp_path: Path) -> None:
    whole = events(tmp_path, text)
    folded = events(tmp_path, write(text))  # type: ignore[operator]
    assert whole and [(e.name, e.fields) for e in folded] == [(e.name, e.fields) for e in whole]
    assert [e.ref.seq for e in folded] == sorted(e.ref.seq for e in folded)


@pytest.mark.parametrize(("text", "truth"), [(SPAWN, ("failed", [1])), (ELASTIC, ("failed", [5])), (DESYNC, ("hung", [2]))])  # fmt: skip
@pytest.mark.parametrize("write", [str, one_object, by_docker, quoted])
def test_a_text_on_one_line_names_the_same_rank(
    write: object, text: str, truth: tuple[str, list[int]], tmp_path: Path
) -> None:
    assert said(tmp_path, write(text)) == truth  # type: ignore[operator]


def test_the_rank_of_a_structured_line_is_that_of_all_its_text(tmp_path: Path) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/a/t.py", line 3, in main\n    work()\nValueError: bad batch\n'
    )
    line = json.dumps({"level": "ERROR", "rank": 3, "message": raised}) + "\n"
    assert said(tmp_path, line) == ("failed", [3])
    # a local rank is none of the job, and a text about a rank is no member
    for other in (line.replace('"rank"', '"local_rank"'), line.replace('"rank": 3', '"note": "rank: 3"')):
        assert said(tmp_path, other) == ("failed", [])


def test_a_structured_log_of_a_healthy_job_is_as_healthy(tmp_path: Path) -> None:
    text = nccl(0, 1, nranks=2) + status(0)
    assert said(tmp_path, by_docker(text)) == said(tmp_path, text)
    with closing(scan([str(tmp_path / "job.log")])) as found:
        assert {p.host for p in found.processes} == {"node0"}


def test_a_backslash_that_spells_nothing_stays(tmp_path: Path) -> None:
    (event,) = events(tmp_path, "ValueError: no file D:\\data\\x on \\\\share\\y, code \\d+\n")
    assert event.fields["what"] == "no file D:\\data\\x on \\\\share\\y, code \\d+"


@pytest.mark.parametrize("width", [80, 117])
@pytest.mark.parametrize("tag", ["", "[rank3]:", "[1,3]<stderr>:"])
@pytest.mark.parametrize(("text", "device"), [("ValueError: the batch of this rank has 0 rows", []), (OOM, [None])])
def test_the_exception_below_a_box_ends_its_process(
    text: str, device: list[None], tag: str, width: int, tmp_path: Path
) -> None:
    assert said(tmp_path, rich(text, width, tag)) == ("failed", [3] if tag else device)


@pytest.mark.parametrize("width", [80, 117])
@pytest.mark.parametrize("sides", ["╭─╮│╰╯", "┏━┓┃┗┛", "╔═╗║╚╝", "+-+|++"])
def test_a_line_in_a_box_says_what_it_says_outside(sides: str, width: int, tmp_path: Path) -> None:
    lines = [
        timeout(3).strip(),
        "absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:5 The tasks have crashed. Check the logs",
    ]
    whole = events(tmp_path, "\n".join(lines) + "\n")
    assert len(whole) == 2
    boxed = events(tmp_path, box(lines, width, sides=sides))
    assert [(e.name, e.fields, e.tag) for e in boxed] == [(e.name, e.fields, e.tag) for e in whole]


def test_a_table_is_no_box(tmp_path: Path) -> None:
    assert events(tmp_path, "| RuntimeError: a | b |\n")[0].fields["what"] == "a | b |"


def test_a_row_of_a_table_that_nccl_prints_is_no_box(tmp_path: Path) -> None:
    text = "node0:7:7 [0] NCCL INFO   Algorithm   |                             PAT                  |\n"
    (tmp_path / "a.log").write_text(text)
    with closing(scan(tmp_path / "a.log")) as data:
        assert (data.totals.matched, data.totals.unmatched) == (1, 0)
