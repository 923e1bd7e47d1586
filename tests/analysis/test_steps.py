"""What the rows of the step recorder prove: which end of a connection stopped, and what they do not prove."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Finding, Severity, Verdict
from tests.analysis.texts import find, job_of, ranks

S = 1_000_000_000
STREAM = 0x55D8C8020020


def row(role: str, **fields: object) -> str:
    """A row of rank 0, the sender, or rank 1, the receiver: an operation of 512 steps through 8 slots, which stands at step 320."""
    rank = 0 if role == "send" else 1
    f: dict[str, object] = {
        "rank": rank, "peer": 1 - rank, "channel": 0, "pair": "9f3c11d2a0b47e65", "stream": STREAM, "seq": 1, "what": "stalled",
        "stage": "fifo", "step": 320, "recv_tail": 328, "send_head": 320, "base": 0, "nsteps": 512, "posted": 512,
        "transmitted": 320, "done": 320, "can_send": "NO", "offer": 0, "answer": 0, "moved": 100 * S, "seen": 110 * S, "event": 0,
    }  # fmt: skip
    f |= fields
    return (
        f"psm steps {role} rank {f['rank']} peer {f['peer']} channel {f['channel']}/0 of 8 slots, pair {f['pair']} "
        f"stream 0x{f['stream']:x}: operation {f['seq']} {f['what']} in stage {f['stage']}, step={f['step']} slot=0 "
        f"recvTail={f['recv_tail']} sendHead={f['send_head']} base={f['base']} nsteps={f['nsteps']} posted={f['posted']} "
        f"transmitted={f['transmitted']} done={f['done']} canSend={f['can_send']} offer={f['offer']} answer={f['answer']} "
        f"zeroCopy=0 moved={f['moved']} seen={f['seen']} event={f['event']}"
    )


def told(tmp_path: Path, *rows: str) -> list[Finding]:
    logs = ranks(2)
    for text in rows:
        logs[0 if " send rank 0 " in text or " recv rank 0 " in text else 1].line(text)
    return find("steps", tmp_path, logs)


def one(tmp_path: Path, *rows: str) -> Finding:
    (found,) = told(tmp_path, *rows)
    assert found.code == "PSM307"
    return found


def test_sender_with_room_that_does_not_post_is_the_one_that_stopped(tmp_path: Path) -> None:
    found = one(tmp_path, row("send", can_send="YES"), row("recv"))
    assert (found.severity, found.culprits, found.ranks) == (Severity.ERROR, (0,), (0, 1))
    assert "rank 0, the sender, stopped: it has room for step 320 (recvTail=328, canSend=YES)" in found.title
    assert found.explanation is not None and "sendHead=320" in found.explanation
    assert len(found.evidence) == 2


def test_sender_that_looked_before_there_was_room_is_not_accused(tmp_path: Path) -> None:
    """The receiver gave the slot back when the sender had just looked."""
    found = one(
        tmp_path,
        row("send", recv_tail=320, seen=110 * S),
        row("recv", what="published", moved=110 * S, seen=110 * S),
    )
    assert (found.severity, found.culprits) == (Severity.WARNING, ())


def test_sender_without_room_is_not_accused(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        row("send", recv_tail=320, send_head=320),
        row("recv", recv_tail=320, transmitted=312, done=312, send_head=320),
    )
    assert found.severity is Severity.ERROR and found.culprits == (1,)


def test_receiver_with_data_that_does_not_consume_is_the_one_that_stopped(tmp_path: Path) -> None:
    found = one(tmp_path, row("send", recv_tail=320), row("recv", recv_tail=320, transmitted=312, done=312))
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))
    assert "rank 1, the receiver, stopped: step 312 is there (sendHead=320)" in found.title


def test_receiver_that_does_not_run_is_found_by_what_the_sender_saw(tmp_path: Path) -> None:
    """Stopped by a signal: its row is as old as its last step, and the sender sees the same recvTail ten seconds later."""
    stopped = row("recv", what="published", recv_tail=320, transmitted=312, done=312, send_head=312, seen=100 * S)
    found = one(tmp_path, row("send", recv_tail=320), stopped)
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))


def test_receiver_row_that_is_older_than_what_the_sender_saw_proves_nothing(tmp_path: Path) -> None:
    """A copy of its record from before: the sender has seen more of it since."""
    older = row("recv", what="published", recv_tail=318, transmitted=310, done=310, send_head=312, seen=100 * S)
    found = one(tmp_path, row("send", recv_tail=320), older)
    assert found.severity is Severity.WARNING and not found.culprits


def test_copies_on_the_legacy_stream_that_do_not_end_are_the_seeds_bug(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        row("send", stream=0, recv_tail=328, transmitted=328, send_head=320, event=100 * S),
        row("recv", recv_tail=328),
    )
    assert (found.severity, found.culprits) == (Severity.ERROR, (0,))
    assert "8 copies on its stream 0x0 are not done after 10.0 s: this is the legacy stream" in found.title


def test_ranks_that_all_copy_on_the_legacy_stream_are_all_named(tmp_path: Path) -> None:
    """Each of them makes the mistake itself; the oldest connection is not the cause of the others."""
    ends = {"stream": 0, "recv_tail": 328, "transmitted": 328, "event": 100 * S}
    found = one(
        tmp_path,
        row("send", **ends),
        row("recv"),
        row("send", rank=1, peer=0, pair="77aa", **ends),
        row("recv", rank=0, peer=1, pair="77aa"),
    )
    assert (found.severity, found.culprits, found.ranks) == (Severity.ERROR, (0, 1), (0, 1))
    assert found.title.startswith("ranks 0, 1 stopped on 2 connections, still for 10.0 s: copies on stream 0x0")
    assert len(found.evidence) == 2


def test_a_rank_that_only_waits_beside_one_on_the_legacy_stream_is_not_named(tmp_path: Path) -> None:
    found = told(
        tmp_path,
        row("send", stream=0, recv_tail=328, transmitted=328, event=100 * S),
        row("recv"),
        row("send", rank=1, peer=0, pair="77aa", recv_tail=320),
        row("recv", rank=0, peer=1, pair="77aa", recv_tail=320, send_head=320),
    )
    assert {f.culprits for f in found if f.severity is Severity.ERROR} == {(0,)}


def test_copies_on_a_stream_of_its_own_may_be_slow(tmp_path: Path) -> None:
    found = one(tmp_path, row("send", transmitted=328, event=100 * S), row("recv"))
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert "8 copies on its stream 0x55d8c8020020" in found.title


def test_recv_that_was_not_posted_is_pointed_at(tmp_path: Path) -> None:
    """A receiver may rightly be late: its application decides."""
    found = one(
        tmp_path,
        row("send", seq=2, stage="offer", base=512, transmitted=0, done=0),
        row("recv", what="ended", stage="ended", transmitted=512, done=512),
    )
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert "its application has not posted the recv" in found.title


@pytest.mark.parametrize(("flag", "culprits"), [(0, ()), (2, (0,))])
def test_offer_that_the_sender_does_not_take_is_lost_or_left(
    tmp_path: Path, flag: int, culprits: tuple[int, ...]
) -> None:
    found = one(
        tmp_path,
        row("send", seq=2, stage="offer", base=512, transmitted=0, done=0, offer=flag),
        row("recv", seq=2, stage="zero-copy", base=512, transmitted=0, done=0, nsteps=1, offer=flag),
    )
    assert (found.severity, found.culprits) == (Severity.ERROR, culprits)


def test_offer_that_was_just_published_is_not_lost(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        row("send", seq=2, stage="offer", base=512, transmitted=0, done=0),
        row("recv", seq=2, what="offered", stage="zero-copy", base=512, transmitted=0, done=0, moved=110 * S),
    )
    assert found.severity is Severity.WARNING


def test_answer_that_does_not_come_though_it_was_written_is_lost(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        row("send", what="ended", stage="ended", nsteps=1, transmitted=1, done=1, send_head=1),
        row("recv", stage="zero-copy", nsteps=1, transmitted=0, done=0),
    )
    assert found.severity is Severity.ERROR and "the answer to operation 1 is lost" in found.title


def test_steps_that_were_done_and_not_published_are_the_doers(tmp_path: Path) -> None:
    found = one(tmp_path, row("send", send_head=312), row("recv", transmitted=312, done=312, send_head=312))
    assert (found.severity, found.culprits) == (Severity.ERROR, (0,))
    assert "has done 320 steps from 0 and published 312" in found.title


def test_single_row_only_points(tmp_path: Path) -> None:
    found = one(tmp_path, row("send", recv_tail=320))
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert "rank 0 waits for rank 1, the receiver" in found.title
    assert found.explanation is not None and "no record of the other end" in found.explanation


def test_ends_of_different_connections_are_not_compared(tmp_path: Path) -> None:
    found = told(tmp_path, row("send", can_send="YES"), row("recv", pair="1"))
    assert len(found) == 2 and all(f.severity is Severity.WARNING for f in found)


@pytest.mark.parametrize("what", ["copying", "published", "ended", "connected"])
def test_connection_that_moved_last_is_no_finding(tmp_path: Path, what: str) -> None:
    """A record that was read in the middle of work: nobody reported a stall."""
    assert told(tmp_path, row("send", what=what, can_send="YES"), row("recv", what=what)) == []


def test_failed_operation_is_the_matter_of_its_error(tmp_path: Path) -> None:
    assert told(tmp_path, row("send", what="failed"), row("recv", what="failed")) == []


def test_later_copy_of_a_row_counts(tmp_path: Path) -> None:
    late = row("send", what="published", recv_tail=400, transmitted=399, done=399, seen=120 * S, moved=120 * S)
    gone_on = row("recv", what="published", seen=120 * S, moved=120 * S)
    assert told(tmp_path, row("send", can_send="YES"), row("recv"), late, gone_on) == []


def test_all_connections_of_an_all_to_all_are_a_few_findings(tmp_path: Path) -> None:
    rows = [row(role, pair=f"{pair:x}", can_send="YES") for pair in range(40) for role in ("send", "recv")]
    found = told(tmp_path, *rows)
    assert len(found) == 8 and {f.culprits for f in found} == {(0,)}


def test_proof_hangs_the_run_and_names_the_side(tmp_path: Path) -> None:
    logs = ranks(2)
    logs[0].line(row("send", can_send="YES"))
    logs[1].line(row("recv"))
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.HUNG
    assert [c.rank for c in report.culprits] == [0]
    assert "step 320" in report.reason
