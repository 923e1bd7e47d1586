"""The ends of a proxy: stopped in every state, aborted, killed at every step."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.csrc.psm.ground import GroundError
from tests.csrc.psm.proxy import ranks
from tests.csrc.psm.proxy.ranks import ECHO, NEVER, SETUP, Rank

Job = Callable[..., list[Rank]]
Start = Callable[..., Rank]


def no_sockets(pids: list[int]) -> bool:
    return not ranks.names(pids)


@pytest.mark.parametrize("end", ["stop", "destroy"])
@pytest.mark.parametrize("state", ["init", "created", "connected", "pending", "aborted", "running", "stopped"])
def test_a_proxy_ends_in_every_state(start: Start, state: str, end: str) -> None:
    made = [start(), start()]
    free = [rank.held() for rank in made]
    addresses = [rank.ask("init", i, 2)[0] for i, rank in enumerate(made)]
    if state != "init":
        for rank in made:
            rank.ask("addresses", *addresses)
            rank.ask("create")
    if state not in ("init", "created"):
        ranks.connect_all(made)
    if state == "pending":
        for rank in made:
            rank.ask("begin", 0, NEVER, 0, 0, 0)
            rank.ask("begin", 1, NEVER, 0, 0, 0)
    if state == "aborted":
        made[0].ask("abort", "enough")
    if state == "running":
        made[0].ask("ops", 1, 5, 2)
    if state == "stopped":
        made[0].ask("stop")
    for _ in range(2 if end == "stop" else 1):
        made[0].ask(end)
    if state == "running":
        assert made[0].ask("wait", 5)[1] == "PSM_ERR_ABORTED"
    if end == "stop":
        assert made[0].held()[1] == 1
        if state not in ("init", "created"):
            assert made[0].count()["connections"] == 0
        made[0].ask("destroy")
    # More than before: its log and, where there were operations, its record.
    assert made[0].held()[0] <= free[0][0] + 1 + (state == "running")
    assert made[0].held()[1] == 1
    assert no_sockets([made[0].pid])
    made[1].ask("destroy")
    assert made[1].held()[1] == 1


def test_the_others_learn_that_a_rank_has_stopped(job: Job) -> None:
    made = job(3)
    assert made[0].ask("alive", 2) == ["1"]
    made[2].ask("stop")
    for rank in made[:2]:
        rank.until(connections=2, peers=2)
        with pytest.raises(GroundError) as caught:
            rank.ask("call", 2, SETUP, ECHO, 0, 1, 0)
        assert caught.value.status == "PSM_ERR_PEER_CLOSED"
        assert "has stopped" in caught.value.text
        assert rank.ask("alive", 2) == ["0"]
        assert rank.ask("async") == []
    assert made[0].ask("call", 1, SETUP, ECHO, 0, 1, 0)[0] == "3"


def test_an_abort_reaches_all_ranks_with_its_reason(job: Job) -> None:
    made = job(3)
    for rank in made[:2]:
        rank.send("call", 2, SETUP, NEVER, 0, 0, 0)
    made[2].ask("abort", "the disk is on fire")
    for rank in made[:2]:
        with pytest.raises(GroundError) as caught:
            rank.answer()
        assert caught.value.status == "PSM_ERR_ABORTED"
        assert "the disk is on fire" in caught.value.text
        end = time.monotonic() + ranks.DEADLINE
        while True:
            try:
                rank.ask("async")
            except GroundError as error:
                assert error.status == "PSM_ERR_ABORTED"
                assert "rank 2" in error.text
                assert "the disk is on fire" in error.text
                break
            assert time.monotonic() < end
    for rank in made:
        with pytest.raises(GroundError, match="fire"):
            rank.ask("call", 1, SETUP, ECHO, 0, 1, 0)
        rank.ask("stop")
        assert rank.held()[1] == 1


def test_an_abort_right_before_the_stop_is_told_as_one(start: Start) -> None:
    """Both come while the service is at work in a handler; it looks when that is over, and has ended by then."""
    made = [start(PSM_FAULTS="proxy.setup:slow=60s:nth=1"), start()]
    ranks.start_proxies(made)
    ranks.connect_all(made)
    made[1].send("call", 0, SETUP, NEVER, 0, 0, 0)
    end = time.monotonic() + ranks.DEADLINE
    while "slow at proxy.setup" not in made[0].lines():
        assert time.monotonic() < end
    for word in (("abort", "the disk is on fire"), ("stop",)):
        made[0].send(*word)
    with pytest.raises(GroundError) as caught:
        made[1].answer()
    assert caught.value.status == "PSM_ERR_ABORTED" and "the disk is on fire" in caught.value.text
    assert [made[0].answer() for _ in range(2)] == [[], []]


@pytest.mark.parametrize("step", ["connected", "pending", "half-hello", "storm"])
@pytest.mark.parametrize("role", ["caller", "service"])
def test_a_killed_process_leaves_nothing(job: Job, step: str, role: str) -> None:
    made = job(2)
    caller, service = made if role == "caller" else reversed(made)
    base = [rank.held() for rank in made]
    alive = made[1]
    there = 1 - made.index(caller)
    if step == "pending":
        caller.ask("begin", there, NEVER, 0, 0, 0)
        caller.ask("begin", made.index(caller), NEVER, 0, 0, 0)
    if step == "storm":
        caller.send("storm", 100000000, 500, 2, 3)
    if step == "half-hello":
        caller.send("connect", 7, there, 1)
    made[0].kill()
    if step in ("storm", "half-hello") and caller is alive:
        try:
            caller.answer()
        except GroundError as error:
            assert error.status in ("PSM_ERR_PEER_DEAD", "PSM_ERR_PEER_CLOSED")
    alive.until(connections=1, peers=1)
    # Its two sockets are gone: the one it came by, at once; that to its proxy, at stop.
    assert alive.held()[0] <= base[1][0]
    assert alive.ask("alive", 0) == ["0"]
    with pytest.raises(GroundError) as caught:
        alive.ask("call", 0, SETUP, ECHO, 0, 1, 0)
    assert caught.value.status in ("PSM_ERR_PEER_DEAD", "PSM_ERR_PEER_CLOSED")
    assert caught.value.peer == 0
    assert alive.ask("call", 1, SETUP, ECHO, 0, 1, 0)[0] == "3"
    alive.ask("destroy")
    assert alive.held()[1] == 1
    assert no_sockets([alive.pid])
    assert service.pid > 0


@pytest.mark.parametrize(
    "fault", ["start", "dial", "accept", "init", "setup", "response", "request", "close", "getfd", "askfd", "queryfd"]
)
def test_a_process_that_dies_at_a_step_does_not_hang_the_other(start: Start, fault: str) -> None:
    one = {"PSM_FAULTS": f"proxy.{fault}:kill:nth=1"}
    made = [start(**one), start()]
    made[0].may_die()
    addresses = [rank.ask("init", i, 2)[0] for i, rank in enumerate(made)]

    def both(*words: object) -> None:
        """A command to both; the first may die of it, the second may be told so."""
        for rank in made:
            try:
                rank.ask(*words)
            except (BrokenPipeError, AssertionError):
                assert rank is made[0]
            except GroundError as error:
                # INVALID: it could not connect before.
                assert error.status in ("PSM_ERR_PEER_DEAD", "PSM_ERR_PEER_CLOSED", "PSM_ERR_INVALID"), error

    both("addresses", *addresses)
    both("create")
    both("connect", 0, 0, 1)
    both("connect", 1, 1, 1)
    both("call", 0, SETUP, ECHO, 1, 1, 0)
    both("call", 1, SETUP, ECHO, 1, 1, 0)
    both("offer", 5)
    if fault in ("getfd", "askfd"):
        both("getfd", 0, 5, 1)
    if fault == "queryfd":
        both("queryfd", 0, 1)
    both("disconnect", 0)
    made[0].child.wait(timeout=ranks.DEADLINE)
    assert made[0].child.returncode == -9
    made[1].until(peers=1)
    made[1].ask("destroy")
    assert made[1].held()[1] == 1


def test_an_operation_runs_in_parts_and_ends(job: Job) -> None:
    made = job(2)
    for rank in made:
        rank.ask("connect", 2, made.index(rank), 0)
    made[0].ask("connect", 1, 0, 0)
    made[0].ask("ops", 2, 60, 0)
    steps, status = made[0].ask("wait", 60)
    assert status == "PSM_OK"
    assert int(steps) == sum(1 + (i + r) % 5 for i in range(2) for r in range(60))
    made[0].until(ops=0)


def test_an_operation_that_fails_ends_it_on_all_ranks(job: Job) -> None:
    made = job(3, PSM_DEBUG_SUBSYS="ALL")
    made[0].ask("ops", 1, 1, 1)
    assert made[0].ask("wait", 1)[1] == "PSM_ERR_CUDA"
    for rank in made[1:]:
        end = time.monotonic() + ranks.DEADLINE
        while True:
            try:
                rank.ask("async")
            except GroundError as error:
                assert "rank 0" in error.text
                assert "PSM_ERR_CUDA" in error.text
                break
            assert time.monotonic() < end
    assert "[Progress Thread]" in made[0].lines()
