"""What the rows of the net plugin's recorder tell of a connection: who was not there, who broke off first, and what is no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Finding, Severity, Verdict
from tests.analysis.texts import Rank, find, job_of

S = 1_000_000_000
PAIR = "9f3c11d2a0b47e65"


class Rows:
    """A connection from rank 0 to rank 1, row by row. Times are seconds."""

    def __init__(
        self, connection: str = PAIR, pids: tuple[int, int] = (0, 1), hosts: tuple[str, str] = ("node0", "node0")
    ) -> None:
        self.connection = connection
        self.logs = [Rank(rank, 2, host) for rank, host in zip(pids, hosts, strict=True)]
        for rank in self.logs:
            rank.line(f"record of process {rank.pid}, rank {rank.rank}, command job, begun 2026-11-22T05:00:00.000000")

    def end(
        self, rank: int, *, looked: float = 0, later: float = 0, tag: int = 0, size: int = 0, error: int = 0, call: str = "-",
        cause: str = "-", at: float = 0, closed: float = 0, left: int = 0, backend: str = "socket", groups: int = 1, unseen: int = 0,
    ) -> Rows:  # fmt: skip
        role = "send" if rank == 0 else "recv"
        me, peer = self.logs[rank].rank, self.logs[1 - rank].rank
        self.logs[rank].line(
            f"psm net {role} rank {me} peer {peer} device 0 to 0 at 10.0.0.1<4000>, {backend} connection {self.connection}, maxRecvs {groups}: "
            f"looked={ns(looked)} later={ns(later)} to {size} bytes of tag {tag}, error={error} in {call} by {cause} at={ns(at)}, "
            f"closed={ns(closed)} with {left} open, {unseen} without a row"
        )
        return self

    def row(
        self, rank: int, number: int, posted: float, done: float = 0, *, size: int = 64, room: int = 64, tags: tuple[int, ...] = (0,),
        message: int | None = None, slot: int = 0, error: int = 0,
    ) -> Rows:  # fmt: skip
        role = "send" if rank == 0 else "recv"
        all_tags = " ".join(str(t) for t in [*tags, *[0] * (8 - len(tags))])
        me, peer = self.logs[rank].rank, self.logs[1 - rank].rank
        self.logs[rank].line(
            f"psm net {role} rank {me} peer {peer} device 0, connection {self.connection}: request {number}, "
            f"message {number if message is None else message} slot {slot}, {len(tags)} buffers, {size} of {room} bytes, {size * len(tags)} in all, "
            f"tags {all_tags}, posted={ns(posted)} completed={ns(done)} error={error}"
        )
        return self

    def send(self, number: int, posted: float, done: float = 0, **more: object) -> Rows:
        return self.row(0, number, posted, done, **more)  # type: ignore[arg-type]

    def recv(self, number: int, posted: float, done: float = 0, **more: object) -> Rows:
        return self.row(1, number, posted, done, **more)  # type: ignore[arg-type]

    def died(self, *ranks: int) -> Rows:
        for rank in ranks or (0, 1):
            log = self.logs[rank]
            log.line(
                f"record of a process that ended without clean exit: process {log.pid}, rank {log.rank}, last record 2026-11-22T05:00:09.000000",
                level="WARN",
            )
        return self

    def lives(self) -> Rows:
        for log in self.logs:
            log.line(
                f"the record of process {log.pid} was not closed: the process lived when this was read, or died where it cannot be seen from here"
            )
        return self


def ns(seconds: float) -> int:
    return int(seconds * S)


def told(tmp_path: Path, *rows: Rows) -> list[Finding]:
    return find("net_requests", tmp_path, [log for one in rows for log in one.logs])


def one(tmp_path: Path, rows: Rows, code: str) -> Finding:
    (found,) = told(tmp_path, rows)
    assert found.code == code, found
    return found


def working() -> Rows:
    """Ten messages that are through, by both ends."""
    rows = Rows()
    for n in range(10):
        rows.send(n, 10 + n / 10, 10.01 + n / 10).recv(n, 10 + n / 10, 10.02 + n / 10)
    return rows


def test_messages_that_are_through_are_no_finding(tmp_path: Path) -> None:
    assert told(tmp_path, working().end(0, looked=10.9).end(1, looked=10.9).died()) == []


def test_what_is_under_way_for_a_moment_is_no_finding(tmp_path: Path) -> None:
    """A launcher ends a healthy job wherever it stands."""
    rows = working().send(10, 11.5).recv(10, 11.2).recv(11, 11.4).end(0, looked=11.9).end(1, looked=11.9)
    assert told(tmp_path, rows.died()) == []


def test_a_living_job_with_receives_posted_ahead_is_no_finding(tmp_path: Path) -> None:
    rows = working().recv(10, 11.2).recv(11, 11.2).end(0, looked=10.9).end(1, looked=11.6)
    assert told(tmp_path, rows.lives()) == []


def test_send_without_a_receive_points_at_who_is_behind(tmp_path: Path) -> None:
    found = one(tmp_path, working().send(10, 11).end(0, looked=14).end(1, looked=10.9).lives(), "PSM951")
    assert (found.severity, found.culprits, found.ranks) == (Severity.WARNING, (), (0, 1))
    assert (
        found.title
        == "net rank 0 -> rank 1: rank 0 sent message 10 (64 bytes, tag 0), but rank 1 has posted no receive for it"
    )


def test_receiver_that_is_gone_owes_the_receive(tmp_path: Path) -> None:
    found = one(tmp_path, working().send(10, 11).end(0, looked=14).end(1, looked=10.9).died(1), "PSM951")
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))


def test_with_groups_a_send_is_told_to_come_later(tmp_path: Path) -> None:
    rows = Rows().end(0, groups=8, looked=14, later=11, tag=5, size=4096).end(1, groups=8)
    found = one(tmp_path, rows.lives(), "PSM951")
    assert "rank 0 sends 4096 bytes with tag 5, but rank 1 has posted no receive" in found.title


def test_receive_without_a_send(tmp_path: Path) -> None:
    found = one(tmp_path, working().recv(10, 11).end(0, looked=10.9).end(1, looked=14).lives(), "PSM952")
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert "rank 1 waits for message 10 (64 bytes, tag 0), but rank 0 has not sent it" in found.title


def test_of_ranks_that_wait_for_each_other_the_one_that_waits_for_none_is_named(tmp_path: Path) -> None:
    """Rank 2 waits for rank 1, which waits for rank 0, which does something else."""
    first = working().recv(10, 11).end(0, looked=10.9).end(1, looked=14).died()
    second = Rows("77", (1, 2)).recv(0, 11).end(0).end(1, looked=14)
    # Of rank 1 both connections are in one record.
    first.logs[1].lines += [line for line in second.logs[0].lines if "psm net" in line]
    found = {f.culprits for f in find("net_requests", tmp_path, [*first.logs, second.logs[1]])}
    assert found == {(0,), ()}


def test_a_send_that_was_lost_in_its_plugin(tmp_path: Path) -> None:
    rows = working().send(10, 11, 11.1, message=-1).recv(10, 11).end(0).end(1, looked=12).died()
    found = one(tmp_path, rows, "PSM952")
    assert (
        found.culprits == (0,)
        and "rank 0 reported request 10 (64 bytes, tag 0) as sent, but its plugin lost it" in found.title
    )


def test_beside_what_was_lost_nobody_else_is_named(tmp_path: Path) -> None:
    """The other direction waits, because the data of this one is not what it should be."""
    lost = working().send(10, 11, 11.1, message=-1).end(0).end(1)
    back = Rows("77", (1, 0)).recv(0, 11).end(0).end(1, looked=15)
    lost.logs[0].lines += [line for line in back.logs[1].lines if "psm net" in line]
    lost.logs[1].lines += [line for line in back.logs[0].lines if "psm net" in line]
    assert one(tmp_path, lost.died(), "PSM952").culprits == (0,)


def test_a_receive_that_was_lost_in_its_plugin(tmp_path: Path) -> None:
    rows = working().recv(10, 11, message=-1).end(0).end(1, looked=12).died()
    found = one(tmp_path, rows, "PSM952")
    assert found.culprits == (1,) and "rank 1's receive 10 never reached the network" in found.title


def test_tags_that_differ_keep_both_waiting(tmp_path: Path) -> None:
    rows = Rows().recv(0, 10, tags=(3, 4)).end(0, groups=8, looked=14, later=11, tag=5).end(1, groups=8, looked=14)
    found = one(tmp_path, rows.lives(), "PSM953")
    assert found.severity is Severity.ERROR
    assert "rank 0 sends with tag 5, and rank 1 waits with tags 3 4: neither can continue" in found.title


def test_a_tag_of_the_second_group_waits_rightly(tmp_path: Path) -> None:
    """The first group is not full: its other sender is late."""
    rows = Rows().recv(0, 10, tags=(3, 4)).recv(1, 10, tags=(5, 6)).send(0, 10, 10.1, tags=(3,))
    rows.end(0, groups=8, looked=10.5, later=10.2, tag=5).end(1, groups=8, looked=10.6)
    assert told(tmp_path, rows.lives()) == []


def test_without_groups_a_tag_that_differs_is_pointed_at(tmp_path: Path) -> None:
    rows = Rows().send(0, 10, 10.1, tags=(3,)).recv(0, 10, 10.1, tags=(4,)).end(0).end(1)
    found = one(tmp_path, rows.died(), "PSM953")
    assert found.severity is Severity.WARNING and "has tag 3, but went into the receive with tag 4" in found.title


def test_message_larger_than_its_receive(tmp_path: Path) -> None:
    rows = Rows().send(0, 10, size=1000, room=1000).recv(0, 10, room=999, size=999)
    rows.end(0, error=5, cause="size", at=10.1).end(1, error=5, cause="size", at=10.1)
    found = one(tmp_path, rows.died(), "PSM954")
    assert "message 0 has 1,000 bytes, but its posted receive has room for 999" in found.title


def test_message_larger_than_its_receive_fails_the_run(tmp_path: Path) -> None:
    """Both ends refuse the message and return an error, so nobody waits."""
    rows = Rows().send(0, 10, size=1000, room=1000).recv(0, 10, room=999, size=999)
    rows.end(0, error=5, cause="size", at=10.1).end(1, error=5, cause="size", at=10.1)
    assert analyse_job(job_of(tmp_path, rows.lives().logs)).verdict is Verdict.FAILED


def test_suspicion_about_a_request_is_named_by_an_inconclusive_verdict(tmp_path: Path) -> None:
    rows = Rows().send(0, 10, 10.1, tags=(3,)).recv(0, 10, 10.1, tags=(4,)).end(0).end(1)
    found = analyse_job(job_of(tmp_path, rows.lives().logs))
    assert found.verdict is Verdict.INCONCLUSIVE and "look first at this" in found.reason and "tag 3" in found.reason


def test_message_larger_than_its_receive_by_one_end_alone(tmp_path: Path) -> None:
    rows = Rows().recv(3, 10, room=999, size=999).end(1, error=5, cause="size", at=10.1)
    found = one(tmp_path, rows.died(1), "PSM954")
    assert "message 3 is larger than the 999 bytes of its receive" in found.title


def test_done_here_and_lost_on_the_way(tmp_path: Path) -> None:
    rows = working().send(10, 11, 11.1).recv(10, 11).end(0, looked=11).end(1, looked=15)
    found = one(tmp_path, rows.lives(), "PSM955")
    assert not found.culprits and "the tests of rank 1 find it incomplete" in found.title


def test_sender_that_never_asks_whether_it_is_sent(tmp_path: Path) -> None:
    rows = working().send(10, 11).recv(10, 11, 11.1).recv(11, 11.1).end(0).end(1, looked=15)
    found = one(tmp_path, rows.lives(), "PSM955")
    assert found.culprits == (0,) and "rank 0 has not tested its send since" in found.title


@pytest.mark.parametrize(
    ("cause", "what"), [("fault", "injected by PSM_FAULTS"), ("system", "ncclSystemError in isend")]
)
def test_error_names_the_side_that_began(tmp_path: Path, cause: str, what: str) -> None:
    rows = (
        working().end(0, error=2, call="isend", cause=cause, at=11).end(1, error=6, cause="peer", at=11.2, looked=11.1)
    )
    found = one(tmp_path, rows.recv(10, 10.9).died(), "PSM956")
    assert (
        found.culprits == (0,)
        and "rank 0 failed first with ncclSystemError in isend" in found.title
        and what in found.title
    )


def test_peer_that_died_began(tmp_path: Path) -> None:
    rows = working().recv(10, 11).end(0).end(1, error=6, cause="peer", at=12, looked=11.9)
    found = one(tmp_path, rows.died(0), "PSM956")
    assert found.culprits == (0,) and "rank 0 died" in found.title


def test_peer_that_closed_first_began(tmp_path: Path) -> None:
    rows = (
        working()
        .send(10, 11)
        .recv(10, 11)
        .end(0, closed=12, left=1)
        .end(1, error=6, cause="peer", at=12.1, looked=11.9)
    )
    found = one(tmp_path, rows.died(1), "PSM956")
    assert found.culprits == (0,) and "rank 0 closed the connection with 1 request open" in found.title


def test_without_the_other_ends_row_nobody_is_accused(tmp_path: Path) -> None:
    rows = working().recv(10, 11).end(1, error=6, cause="peer", at=12, looked=11.9)
    found = one(tmp_path, rows.died(1), "PSM956")
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert found.explanation is not None and "There is no record of the other end" in found.explanation


def test_receiver_that_does_not_ask_for_what_is_there_stands_still(tmp_path: Path) -> None:
    rows = (
        working()
        .send(10, 11, 11.1)
        .send(11, 11.1, 11.2)
        .send(12, 11.2)
        .recv(10, 11)
        .end(0, looked=14)
        .end(1, looked=10.9)
    )
    found = one(tmp_path, rows.lives(), "PSM957")
    assert found.severity is Severity.ERROR and found.culprits == (1,)
    assert "rank 1 stopped: message 10 (64 bytes, tag 0) is sent, and rank 1 has not tested it" in found.title


def test_side_that_stands_still_inside_a_message(tmp_path: Path) -> None:
    rows = working().send(10, 11).recv(10, 11).end(0, looked=11.05).end(1, looked=15)
    found = one(tmp_path, rows.lives(), "PSM957")
    assert found.culprits == (0,) and "rank 0 stopped during message 10" in found.title


def test_sender_that_does_not_come_back_stands_still(tmp_path: Path) -> None:
    rows = Rows().recv(0, 10.1, tags=(5,)).end(0, groups=8, later=10, looked=10.05, tag=5).end(1, groups=8, looked=14)
    found = one(tmp_path, rows.lives(), "PSM957")
    assert found.culprits == (0,) and "has not called send again" in found.title


def test_connection_that_was_open_at_a_clean_end(tmp_path: Path) -> None:
    found = one(tmp_path, working().end(0).end(1), "PSM958")
    assert found.severity is Severity.INFO and "rank 0 and rank 1 ended without closing the connection" in found.title


def test_requests_without_rows_and_other_plugins_order_prove_nothing(tmp_path: Path) -> None:
    for name, more in (("unseen", {"unseen": 3}), ("chain", {"backend": "chain"})):
        rows = working().recv(10, 11).end(0, looked=10.9, **more).end(1, looked=14, **more)  # type: ignore[arg-type]
        (tmp_path / name).mkdir()
        assert told(tmp_path / name, rows.lives()) == []


def test_times_of_two_hosts_are_not_compared(tmp_path: Path) -> None:
    """The other host's clock began hours earlier."""
    rows = Rows(hosts=("node0", "node1")).send(0, 9000, 9000.1).recv(0, 11).end(0, looked=9000).end(1, looked=11.5)
    assert told(tmp_path, rows.lives()) == []


def test_a_job_whose_connections_all_stand_still_is_told_in_few_findings(tmp_path: Path) -> None:
    logs = [Rank(0, 2), Rank(1, 2)]
    for n in range(40):
        rows = Rows(f"{n + 1:x}").recv(0, 11).end(0).end(1, looked=14)
        for log, more in zip(logs, rows.logs, strict=True):
            log.lines += more.lines
    found = find("net_requests", tmp_path, logs)
    assert 0 < len(found) <= 8


def test_rows_are_read_by_the_catalogue(tmp_path: Path) -> None:
    job = job_of(tmp_path, working().end(0).end(1).logs)
    assert len(job.events("psm_net.request")) == 20 and len(job.events("psm_net.end")) == 2
