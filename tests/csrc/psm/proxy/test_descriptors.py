"""Descriptors between ranks: given out, given, lost on the way, and never leaked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.csrc.psm.ground import GroundError
from tests.csrc.psm.proxy import ranks
from tests.csrc.psm.proxy.ranks import FETCH, SETUP, Rank

Job = Callable[..., list[Rank]]
Start = Callable[..., Rank]


def pair(start: Start, asker: dict[str, str] | None = None, owner: dict[str, str] | None = None) -> list[Rank]:
    made = [start(**(asker or {})), start(**(owner or {}))]
    ranks.start_proxies(made)
    ranks.connect_all(made)
    return made


def test_a_thousand_descriptors_leave_none_behind(job: Job) -> None:
    made = job(2)
    inode, _ = made[1].ask("offer", 5)
    made[0].ask("getfd", 1, 5, 1)
    before = [rank.held() for rank in made]
    assert made[0].ask("getfd", 1, 5, 1000) == [inode]
    assert [rank.held() for rank in made] == before
    number, given = made[0].ask("queryfd", 1, 1000)
    assert made[0].held() == before[0]
    assert made[1].held()[0] == before[1][0] + 1000
    assert made[1].ask("take", number) == [given]
    with pytest.raises(GroundError, match="taken before"):
        made[1].ask("take", number)
    # What nobody takes is closed at stop.
    made[1].ask("stop")
    assert made[1].held()[0] < before[1][0]


def test_what_is_withdrawn_is_not_found(job: Job) -> None:
    made = job(2)
    _, fd = made[1].ask("offer", 5)
    made[0].ask("getfd", 1, 5, 1)
    assert made[1].ask("withdraw", 5, fd) == ["0"]
    with pytest.raises(GroundError) as caught:
        made[0].ask("getfd", 1, 5, 1)
    error = caught.value
    assert (error.status, error.stage, error.rank, error.peer) == ("PSM_ERR_NOT_FOUND", "getfd", 0, 1)
    assert "0x5" in error.text


def test_two_ranks_fetch_from_each_other_at_once(job: Job) -> None:
    made = job(3)
    inodes = [rank.ask("offer", 9)[0] for rank in made]
    for i, rank in enumerate(made):
        rank.send("getfd", (i + 1) % 3, 9, 200)
    assert [rank.answer()[0] for rank in made] == [inodes[1], inodes[2], inodes[0]]


@pytest.mark.parametrize("site", ["getfd", "askfd"])
@pytest.mark.parametrize("what", ["getfd", "queryfd"])
def test_a_lost_datagram_is_sent_once_more_and_answered_once(start: Start, site: str, what: str) -> None:
    if site == "askfd":
        made = pair(start, asker={"PSM_FAULTS": "proxy.askfd:drop:nth=2"})
    else:
        made = pair(start, owner={"PSM_FAULTS": f"proxy.{what}:drop:nth=2"})
    inode, _ = made[1].ask("offer", 5)
    before = [rank.held() for rank in made]
    if what == "getfd":
        assert made[0].ask("getfd", 1, 5, 3) == [inode]
        assert [rank.held() for rank in made] == before
    else:
        number, given = made[0].ask("queryfd", 1, 3)
        assert made[1].held()[0] == before[1][0] + 3
        assert made[1].ask("take", number) == [given]
    assert made[0].count()["resent"] >= 1


def test_an_answer_that_never_comes_is_an_error_at_the_deadline(start: Start) -> None:
    made = pair(start, asker={"PSM_TIMEOUT": "1"}, owner={"PSM_FAULTS": "proxy.getfd:drop"})
    made[1].ask("offer", 5)
    with pytest.raises(GroundError) as caught:
        made[0].ask("getfd", 1, 5, 1)
    error = caught.value
    assert (error.status, error.stage, error.rank, error.peer) == ("PSM_ERR_TIMEOUT", "getfd", 0, 1)
    assert error.op_id != 0
    assert str(made[1].pid) in error.text


def test_a_dead_owner_is_noticed_at_once(job: Job) -> None:
    made = job(2)
    made[1].ask("offer", 5)
    made[1].kill()
    with pytest.raises(GroundError) as caught:
        made[0].ask("getfd", 1, 5, 1)
    assert caught.value.status == "PSM_ERR_PEER_DEAD"


def test_a_stopped_owner_is_noticed_at_once(job: Job) -> None:
    made = job(2)
    made[1].ask("offer", 5)
    made[1].ask("stop")
    with pytest.raises(GroundError) as caught:
        made[0].ask("getfd", 1, 5, 1)
    assert caught.value.status == "PSM_ERR_PEER_DEAD"
    assert "stopped" in caught.value.text
    with pytest.raises(GroundError, match="is not running"):
        made[1].ask("getfd", 0, 5, 1)


def test_handlers_fetch_without_blocking_the_service(start: Start) -> None:
    made = pair(start, owner={"PSM_FAULTS": "proxy.getfd:drop:nth=1"})
    inode, _ = made[1].ask("offer", 5)
    made[0].send("call", 0, SETUP, FETCH, 0, 1, 5)
    assert made[1].ask("call", 0, SETUP, ranks.ECHO, 0, 1, 0)[0] == "3"
    assert made[0].answer()[0] == inode
    with pytest.raises(GroundError, match="offers no share"):
        made[0].ask("call", 0, SETUP, FETCH, 0, 1, 6)


def test_a_fetch_is_cancelled_with_its_connection(start: Start) -> None:
    made = pair(start, owner={"PSM_FAULTS": "proxy.getfd:drop"})
    made[1].ask("offer", 5)
    made[1].ask("begin", 0, FETCH, 0, 1, 5)
    made[1].kill()
    made[0].until(connections=1, peers=1)
    assert made[0].ask("stop") == []
