"""Calls to proxies: many at once, in any order, never answered, answered late or twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.csrc.psm.ground import GroundError
from tests.csrc.psm.proxy import ranks, wire
from tests.csrc.psm.proxy.ranks import ECHO, FAIL, NEVER, SETUP, SILENT_FAIL, Rank

Job = Callable[..., list[Rank]]
Start = Callable[..., Rank]


def test_thousands_of_calls_of_several_ranks_are_answered_in_any_order(job: Job) -> None:
    made = job(3)
    for i, rank in enumerate(made):
        rank.send("storm", 2000, 300, 3, 7 + i)
    assert [rank.answer() for rank in made] == [["0"]] * 3
    assert all(rank.count()["late"] == 0 for rank in made)


def test_many_threads_share_a_connection(job: Job) -> None:
    made = job(2)
    for rank in made:
        rank.send("threads", 8, 100, 2)
    assert [rank.answer() for rank in made] == [["0"]] * 2


def test_calls_race_with_nothing(start: Start, thread_program: Path) -> None:
    made = [start(thread_program), start(thread_program)]
    ranks.start_proxies(made)
    ranks.connect_all(made)
    for rank in made:
        rank.send("threads", 6, 50, 2)
    for rank in made:
        rank.answer()
    for rank in made:
        rank.send("storm", 300, 50, 2, 3)
    assert [rank.answer() for rank in made] == [["0"]] * 2
    inode, _ = made[1].ask("offer", 5)
    assert made[0].ask("getfd", 1, 5, 20) == [inode]
    assert made[0].ask("call", 0, SETUP, ranks.FETCH, 0, 1, 5)[0] == inode
    made[0].ask("ops", 1, 30, 0)
    assert made[0].ask("wait", 30)[1] == "PSM_OK"
    made[0].ask("abort", "enough")
    for rank in made:
        rank.ask("stop")


@pytest.mark.parametrize("there", [0, 1], ids=["same-process", "other-process"])
def test_a_handler_that_is_never_done_blocks_nobody_and_its_caller_gets_a_full_error(job: Job, there: int) -> None:
    made = job(2, PSM_TIMEOUT="1")
    made[0].send("call", there, SETUP, NEVER, 0, 0, 0)
    for _ in range(50):
        assert made[1].ask("call", there, SETUP, ECHO, 2, 20, 0) == ["41", "24"]
    with pytest.raises(GroundError) as caught:
        made[0].answer()
    error = caught.value
    assert (error.status, error.stage, error.rank, error.peer) == ("PSM_ERR_TIMEOUT", "setup", 0, there)
    assert error.op_id != 0
    for word in ("rank 0", f"rank {there}", str(made[there].pid), "1000 ms", "PSM_TIMEOUT"):
        assert word in error.text
    assert made[0].ask("call", there, SETUP, ECHO, 0, 1, 0)[0] == "3"


@pytest.mark.parametrize(("mode", "status"), [(FAIL, "PSM_ERR_INVALID"), (SILENT_FAIL, "PSM_ERR_REFUSED")])
@pytest.mark.parametrize("there", [0, 1], ids=["same-process", "other-process"])
def test_a_handlers_failure_comes_back_with_its_reason(job: Job, there: int, mode: int, status: str) -> None:
    made = job(2)
    with pytest.raises(GroundError) as caught:
        made[0].ask("call", there, SETUP, mode, 0, 0, 0)
    assert caught.value.status == status
    assert "handler of Setup" in caught.value.text or "connector" in caught.value.text
    assert made[0].ask("call", there, SETUP, ECHO, 0, 1, 0)[0] == "3"
    assert made[there].count()["connections"] == 2


def test_an_answer_that_comes_late_is_dropped_and_counted(start: Start) -> None:
    # The first Setup waits longer than its caller.
    made = [start(PSM_TIMEOUT="1"), start(PSM_FAULTS="proxy.setup:slow=1500ms:nth=1")]
    ranks.start_proxies(made)
    made[0].ask("connect", 1, 1, 1)
    with pytest.raises(GroundError) as caught:
        made[0].ask("call", 1, SETUP, ECHO, 0, 1, 0)
    assert caught.value.status == "PSM_ERR_TIMEOUT"
    # Until the service is back, calls end by their deadline; no answer is taken for another call's.
    for value in range(100, 200):
        try:
            assert made[0].ask("call", 1, SETUP, ECHO, 0, value, 0)[0] == str(2 * value + 1)
        except GroundError as error:
            assert error.status == "PSM_ERR_TIMEOUT"
        if made[0].count()["late"]:
            break
    assert made[0].count()["late"] >= 1
    assert made[0].ask("call", 1, SETUP, ECHO, 0, 9, 0)[0] == "19"


@contextmanager
def served_by(start: Start, answer: Callable[[wire.Peer], None]) -> Iterator[Rank]:
    """A rank that is connected to a service of ours, which answers the calls after those of the connection."""
    rank = start()
    own = rank.ask("init", 0, 2)[0]
    with wire.Service(rank=1, nranks=2) as service:
        rank.ask("addresses", own, service.address.hex())
        rank.ask("create")

        def serve() -> None:
            with service.accept() as peer:
                peer.greet(service)
                _, op = peer.request()
                peer.respond(op, (77).to_bytes(8, "little"))
                answer(peer)
                peer.closed()

        thread = threading.Thread(target=serve)
        thread.start()
        rank.ask("connect", 1, 1, 1)
        yield rank
        rank.ask("stop")
        thread.join(ranks.DEADLINE)
        assert not thread.is_alive()


def test_an_answer_that_comes_twice_is_taken_once(start: Start) -> None:
    def twice(peer: wire.Peer) -> None:
        for value in (5, 6):
            _, op = peer.request()
            peer.respond(op, value.to_bytes(8, "little") + bytes(8))
            peer.respond(op, b"\xff" * 16)  # once more, with something else

    with served_by(start, twice) as rank:
        assert rank.ask("call", 1, SETUP, ECHO, 0, 0, 0)[0] == "5"
        assert rank.ask("call", 1, SETUP, ECHO, 0, 0, 0)[0] == "6"
        assert rank.count()["late"] >= 1


def test_an_answer_of_another_size_is_an_error(start: Start) -> None:
    def short(peer: wire.Peer) -> None:
        _, op = peer.request()
        peer.respond(op, bytes(9))

    with (
        served_by(start, short) as rank,
        pytest.raises(GroundError, match="has 9 bytes, expected 16"),
    ):
        rank.ask("call", 1, SETUP, ECHO, 0, 0, 0)


@pytest.mark.parametrize("there", [0, 1], ids=["same-process", "other-process"])
def test_a_freed_connection_is_not_found(job: Job, there: int) -> None:
    made = job(2)
    made[0].ask("call", there, SETUP, ECHO, 0, 1, 0)
    made[0].ask("disconnect", there)
    assert made[there].until(connections=1)["freed"] == 1
    made[0].ask("connect", there, there, 0)
    assert made[0].ask("call", there, SETUP, ECHO, 0, 1, 0)[0] == "3"


def test_calls_can_be_begun_and_fetched_later_in_another_order(job: Job) -> None:
    made = job(2)
    ids = [made[0].ask("begin", 1, ECHO, i % 3, i, 0)[0] for i in range(20)]
    assert len(set(ids)) == 20
    for i in reversed(range(20)):
        while (got := made[0].ask("poll", 1, ids[i]))[0] == "PSM_IN_PROGRESS":
            pass
        assert got[1] == str(2 * i + 1)
    with pytest.raises(GroundError, match="was already fetched"):
        made[0].ask("poll", 1, ids[0])
