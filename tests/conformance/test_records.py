"""What the step recorder leaves of ends that die or lose a step, and what the analysis makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psmkit.logparse.records import open_record
from psmkit.model import Severity, Verdict
from psmkit.telemetry.beside import read_steps
from tests.conformance.conftest import Runner

#: 37 steps of 8192 bytes.
ONE = ("sizes=300001", "iters=1", "stream=legacy")


def rows(folder: Path) -> dict[str, dict[str, object]]:
    """The row of each end, by role."""
    found = [r for path in folder.rglob("*.rec") for r in open_record(str(path)).records() if r.section == "psm.steps"]
    return {str(r.fields["role"]): dict(r.fields) for r in found}


@pytest.mark.parametrize(("site", "victim"), [("p2p.send.publish", "send"), ("p2p.recv.step", "recv")])
def test_end_that_was_killed_leaves_its_last_step(run: Runner, tmp_path: Path, site: str, victim: str) -> None:
    done = run("split", *ONE, PSM_FAULTS=f"{site}:kill,nth=20")
    assert "killed by signal 9" in done.text
    left = rows(tmp_path)
    # The other end has freed its connection, and its row with it.
    assert set(left) == {victim}
    row = left[victim]
    assert (row["rank"], row["peer"]) == ((0, 1) if victim == "send" else (1, 0))
    assert row["seq"] == 1 and row["stage"] == "fifo" and row["steps"] == 8 and row["nsteps"] == 37
    # Killed before the 20th: 19 steps were published, or taken from their slots.
    assert row["done" if victim == "send" else "transmitted"] == 19
    # The telemetry exports the same.
    (told,) = (
        t for at in {p.parent for p in tmp_path.rglob("*.rec")} for t in read_steps(str(at), int(str(row["moved"])) + 7)
    )
    assert [told[name] for name in ("rank", "peer", "seq", "nsteps", "done", "age_ns")] == [
        *(row[name] for name in ("rank", "peer", "seq", "nsteps", "done")),
        7,
    ]
    assert (told["role"].decode(), told["stage"]) == (victim, b"fifo")
    assert row["send_head" if victim == "send" else "recv_tail"] == (
        19 if victim == "send" else 8 + int(str(row["done"]))
    )


def test_connections_that_were_freed_leave_no_row(run: Runner, tmp_path: Path) -> None:
    assert run("split", *ONE).code == 0
    assert rows(tmp_path) == {}


@pytest.mark.parametrize(
    ("fault", "waits", "culprit", "words"),
    [
        ("p2p.send.publish:drop,nth=37", "recv", 0, "it has done 37 steps from 0 and published 36"),
        ("p2p.recv.publish:drop,nth=21+", "send", 1, "and published 28"),
    ],
)
def test_step_that_was_not_published_is_told(run: Runner, fault: str, waits: str, culprit: int, words: str) -> None:
    done = run("split", *ONE, until=waits, PSM_FAULTS=fault)
    assert done.code is None, done.text[-4000:]
    found = done.finding("PSM307")
    assert (found.severity, found.culprits) == (Severity.ERROR, (culprit,))
    assert words in found.title
    assert done.report.verdict is Verdict.HUNG


@pytest.mark.parametrize("settings", [{}, {"PSM_STEPS": "1"}], ids=["8 slots", "1 slot"])
def test_publication_that_a_later_one_covers_is_not_missed(run: Runner, settings: dict[str, str]) -> None:
    # With one slot each publication is needed, but for the last of the operation: the next offer has it.
    steps = 5 if settings else 37
    last = f"p2p.recv.publish:drop,nth={steps}" if settings else "p2p.recv.publish:drop,nth=20"
    done = run("split", "sizes=300001", "iters=2", "stream=legacy", PSM_FAULTS=last, **settings)
    assert "PSM_FAULTS: drop at p2p.recv.publish" in done.text
    assert done.code == 0, done.text[-4000:]


def test_publication_that_nothing_covers_stops_the_sender(run: Runner) -> None:
    done = run("split", *ONE, until="send", PSM_FAULTS="p2p.recv.publish:drop,nth=3", PSM_STEPS="1")
    assert done.code is None, done.text[-4000:]
    found = done.finding("PSM307")
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))
    assert "it lets steps below 4 be filled and published 3" in found.title
    assert done.report.verdict is Verdict.HUNG


@pytest.mark.parametrize(
    ("site", "arguments", "victim", "words"),
    [
        ("p2p.recv.publish", ONE, 0, r"rank 1 published recvTail 11\d{17} in operation 1; expected 8 to \d+:"),
        ("p2p.send.publish", ONE, 1, r"rank 0 published sendHead 11\d{17} in operation 1; expected 0 to 8:"),
        (
            "p2p.send.publish",
            (*ONE, "registered=both", "buffers=vmm"),
            1,
            r"rank 0 answered operation \d{17,} \(4\) in operation 1",
        ),
        ("p2p.recv.offer", ONE, 0, r"this rank sends 300001 bytes, rank 1 expects 11\d{17}"),
        (
            "p2p.recv.offer",
            (*ONE, "registered=both", "buffers=vmm"),
            0,
            r"this rank sends 300001 bytes, rank 1 expects 11\d{17}",
        ),
    ],
)
def test_damaged_word_of_the_control_segment_is_refused_with_what_is_possible(
    run: Runner, end: str, site: str, arguments: tuple[str, ...], victim: int, words: str
) -> None:
    done = run("split", *arguments, PSM_FAULTS=f"{site}:corrupt")
    assert done.code not in (0, None), done.text[-4000:]
    told = re.findall(
        rf"psm p2p \w+ rank {victim} .* failed in operation 1 at step \d+: PSM_ERR_\w+ \(cause [\w-]+, rank -?\d+\): (.*)",
        done.text,
    )
    assert any(re.search(words, text) for text in told), done.text[-4000:]
    assert "WRONG DATA" not in done.text
    assert done.report.verdict is Verdict.FAILED
    if "published" in words and end == "proxy":  # who noticed is not who did it: that is not known
        assert not done.report.culprits, done.report.culprits


def test_recv_that_is_never_posted_is_pointed_at_and_nobody_is_accused(run: Runner) -> None:
    done = run("split", *ONE, "lone=1", until="send")
    assert done.code is None, done.text[-4000:]
    found = done.finding("PSM307")
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert "its application has not posted the recv" in found.title
