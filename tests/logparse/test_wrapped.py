"""Lines of frameworks that a terminal or an issue tracker wrapped."""

from __future__ import annotations

import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from psmkit.catalogue import Catalogue, Message
from psmkit.logparse import scan
from psmkit.logparse.types import Event
from tests.analysis.test_watchdog import status, timeout

NCCL = "node0:7:7 [0] NCCL INFO cudaDriverVersion 12080\n"


def events(tmp_path: Path, text: str) -> list[Event]:
    path = tmp_path / "job.log"
    path.write_text(text)
    with closing(scan([str(path)])) as found:
        return [e for e in found.events if not e.name.startswith("other.")]


def at_column(text: str, width: int) -> str:
    return "".join(line[i : i + width] + "\n" for line in text.splitlines() for i in range(0, len(line), width))


def between_words(text: str, width: int) -> str:
    lines = [textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines()]
    return "".join(part + "\n" for parts in lines for part in parts)


@pytest.mark.parametrize("wrap", [at_column, between_words])
@pytest.mark.parametrize("width", [72, 80, 97, 120, 132, 160])
def test_a_wrapped_line_says_what_the_whole_line_says(wrap: object, width: int, tmp_path: Path) -> None:
    text = "".join(timeout(r) + status(r, enqueued=811 + r) for r in (0, 1, 11))
    whole = events(tmp_path, text)
    assert len(whole) == 6
    wrapped = events(tmp_path, wrap(text, width))  # type: ignore[operator]
    assert [(e.name, e.fields, e.tag, e.time) for e in wrapped] == [(e.name, e.fields, e.tag, e.time) for e in whole]


def test_only_the_line_after_it_continues_a_line(tmp_path: Path) -> None:
    first, rest = timeout(3)[:110], timeout(3)[110:]
    assert [e.name for e in events(tmp_path, first + "\n" + rest)] == ["torch.watchdog.timeout"]
    assert [e.name for e in events(tmp_path, first + "\n" + NCCL + rest) if e.proc < 0] == []


def test_a_line_with_a_message_of_its_own_continues_nothing(tmp_path: Path) -> None:
    torn = status(3)[:75] + "\n"
    found = events(tmp_path, torn + status(4))
    assert [e.fields["rank"] for e in found] == [4]
    assert found[0].fields["group"] == "0(default_pg)"


def test_text_that_never_ends_is_bounded(tmp_path: Path) -> None:
    text = timeout(3)[:110] + "\n" + "x" * 300_000 + "\n" + "y\n" * 5000 + timeout(2)
    assert [e.fields["rank"] for e in events(tmp_path, text)] == [2]


WARN = (
    "[2026-01-02 03:04:05] node0:7:9 [1] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<33092> with error 12, "
    "opcode 0, len 0, vendor err 129 (Recv)\n"
)


@pytest.mark.parametrize("wrap", [at_column, between_words])
@pytest.mark.parametrize("width", [140, 152, 160])
def test_a_wrapped_warning_of_nccl_says_what_the_whole_line_says(wrap: object, width: int, tmp_path: Path) -> None:
    (whole,) = events(tmp_path, WARN)
    (wrapped,) = events(tmp_path, wrap(WARN, width) + NCCL)[:1]  # type: ignore[operator]
    assert (wrapped.name, wrapped.fields, wrapped.time, wrapped.where) == (
        whole.name,
        whole.fields,
        whole.time,
        whole.where,
    )
    with closing(scan([str(tmp_path / "job.log")])) as found:
        assert (found.totals.torn, found.processes[0].damaged) == (0, 0)


def test_a_torn_warning_stays_torn_if_nothing_completes_it(tmp_path: Path) -> None:
    first, rest = WARN[:150] + "\n", WARN[150:]
    for text in (first, first + NCCL + rest, first + "\n" + rest, first + "other text\n"):
        path = tmp_path / "job.log"
        path.write_text(text)
        with closing(scan([str(path)])) as found:
            assert (found.totals.torn, found.processes[0].damaged) == (1, 1)


def test_a_line_that_completed_a_torn_record_is_not_completed_again(tmp_path: Path) -> None:
    # Without a blank the second line continues the longer pattern; with one it completes the shorter one.
    patterns = ("a peer closed itself", "a peer closeditself twice")
    messages = Catalogue([Message(f"m{i}", "test", (p,), where="nccl", keep="all") for i, p in enumerate(patterns)])
    path = tmp_path / "job.log"
    path.write_text("node0:7:9 [1] NCCL INFO a peer closed\nitself\nf\n")
    with closing(scan([str(path)], catalogue=messages)) as found:
        assert [e.name for e in found.events] == ["m0"]
        assert (found.totals.torn, found.processes[0].damaged) == (0, 0)
