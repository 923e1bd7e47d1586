"""Messages that come twice or out of order: every call gets its own answer, and no descriptor is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.csrc.psm.ground import GroundError
from tests.csrc.psm.proxy import ranks
from tests.csrc.psm.proxy.ranks import ECHO, SETUP, Rank

Start = Callable[..., Rank]


def pair(start: Start, asker: str = "", owner: str = "") -> list[Rank]:
    made = [start(PSM_FAULTS=text, PSM_DEBUG_SUBSYS="ALL") for text in (asker, owner)]
    ranks.start_proxies(made)
    ranks.connect_all(made)
    return made


def served(rank: Rank) -> list[int]:
    """The opIds of Setup in the order in which the rank's service has done them."""
    found = re.findall(r"opId=(0x[0-9a-f]+) op\.type=3 .*done", rank.lines())
    return [int(op, 16) for op in found]


def begin(rank: Rank, value: int) -> str:
    return rank.ask("begin", 1, ECHO, 0, value, 0)[0]


def fetch(rank: Rank, op: str) -> str:
    end = time.monotonic() + ranks.DEADLINE
    while (got := rank.ask("poll", 1, op))[0] == "PSM_IN_PROGRESS":
        assert time.monotonic() < end
    return got[1]


@pytest.mark.parametrize("fault", ["proxy.request:reorder,op=Setup,nth=1", "proxy.request:reorder,op=Setup,nth=1/3"])
def test_a_request_that_is_held_back_is_overtaken_by_the_next(start: Start, fault: str) -> None:
    made = pair(start, asker=fault)
    ops = [begin(made[0], value) for value in range(6)]
    assert [fetch(made[0], op) for op in ops] == [str(2 * value + 1) for value in range(6)]
    numbers = [int(op, 16) for op in ops]
    order = [1, 0, 2, 4, 3, 5] if "/" in fault else [1, 0, 2, 3, 4, 5]
    assert served(made[1]) == [numbers[i] for i in order]
    assert made[0].count()["late"] == 0


def test_a_request_that_nothing_follows_is_held_back_for_a_while_only(start: Start) -> None:
    made = pair(start, asker="proxy.request:reorder,op=Setup")
    assert made[0].ask("call", 1, SETUP, ECHO, 0, 5, 0)[0] == "11"


def test_answers_out_of_order_find_their_calls(start: Start) -> None:
    made = pair(start, owner="proxy.response:reorder,op=Setup,nth=1/2")
    ops = [begin(made[0], value) for value in range(7)]
    assert [fetch(made[0], op) for op in ops] == [str(2 * value + 1) for value in range(7)]
    assert "PSM_FAULTS: reorder at proxy.response, call 7" in made[1].lines()
    assert made[0].count()["late"] == 0


def test_answers_that_come_twice_are_refused_by_their_generation(start: Start) -> None:
    made = pair(start, owner="proxy.response:duplicate,op=Setup")
    # One call after the other takes the same slot: without a generation each would get the answer of the one before.
    for value in range(50):
        assert made[0].ask("call", 1, SETUP, ECHO, 0, value, 0)[0] == str(2 * value + 1)
    made[1].ask("stop")  # what is still on the way is read before the end
    made[0].until(late=50)
    refused = re.findall(r"psm refused a second answer: opId=(0x[0-9a-f]+) was answered by rank 1", made[0].lines())
    assert len(set(refused)) == len(refused) == 50


def test_a_request_that_comes_twice_is_answered_twice_and_taken_once(start: Start) -> None:
    made = pair(start, asker="proxy.request:duplicate,op=Setup")
    for value in range(10):
        assert made[0].ask("call", 1, SETUP, ECHO, 0, value, 0)[0] == str(2 * value + 1)
    made[1].until(served=2 + 20)  # Init of both ranks, and each Setup twice
    made[1].ask("stop")
    made[0].until(late=10)


def test_messages_inside_a_process_are_not_counted_as_sent(start: Start) -> None:
    made = pair(start, owner="proxy.response:duplicate,op=Setup,nth=1")
    assert made[1].ask("call", 1, SETUP, ECHO, 0, 1, 0)[0] == "3"
    assert "PSM_FAULTS" not in made[1].lines()
    assert made[0].ask("call", 1, SETUP, ECHO, 0, 1, 0)[0] == "3"
    assert "PSM_FAULTS: duplicate at proxy.response, call 1" in made[1].lines()


@pytest.mark.parametrize("action", ["duplicate", "reorder", "corrupt", "drop"])
@pytest.mark.parametrize("site", ["proxy.askfd", "uds.reply"])
@pytest.mark.parametrize("what", ["getfd", "queryfd"])
def test_datagrams_that_go_wrong_leave_no_descriptor(start: Start, site: str, action: str, what: str) -> None:
    fault = f"{site}:{action},nth=1/2"
    made = pair(start, fault if site == "proxy.askfd" else "", fault if site == "uds.reply" else "")
    inode, _ = made[1].ask("offer", 5)
    before = [rank.held() for rank in made]
    if what == "getfd":
        assert made[0].ask("getfd", 1, 5, 6) == [inode]
        there = before
    else:
        number, given = made[0].ask("queryfd", 1, 6)
        assert made[1].ask("take", number) == [given]
        there = [before[0], (before[1][0] + 5, before[1][1])]  # one was taken
    assert f"PSM_FAULTS: {action} at {site}" in made[0].lines() + made[1].lines()
    end = time.monotonic() + ranks.DEADLINE
    while [rank.held() for rank in made] != there:  # what is held back is sent in the end
        assert time.monotonic() < end, ([rank.held() for rank in made], there)


def test_a_question_that_comes_twice_is_one_exchange(start: Start) -> None:
    made = pair(start, asker="proxy.askfd:duplicate")
    inode, _ = made[1].ask("offer", 5)
    assert made[0].ask("getfd", 1, 5, 4) == [inode]
    made[1].until(given=8)
    lines = made[1].lines()
    assert len(re.findall(r"psm was asked again for GetFd by rank 0", lines)) == 4
    assert len(re.findall(r"proxyUDSRecvReq::ncclProxyMsgGetFd rank 0", lines)) == 4


def test_a_short_or_damaged_request_is_refused_with_what_came_and_what_is_meant(start: Start) -> None:
    for fault, words in (("short=7", "7 bytes"), ("corrupt", "magic")):
        made = pair(start, asker=f"proxy.request:{fault},op=Setup,nth=1")
        with pytest.raises(GroundError) as caught:
            made[0].ask("call", 1, SETUP, ECHO, 0, 1, 0)
        assert words in caught.value.text and "refused this rank" in caught.value.text, caught.value.text


def test_an_answer_that_hangs_on_its_way_keeps_nobody_else_from_asking(start: Start) -> None:
    # Each answer hangs: on a slow machine the question is asked again, and that one must not be answered, either.
    made = pair(start, owner="uds.reply:hang")
    made[1].ask("offer", 5)
    made[0].ask("offer", 6)
    made[0].send("getfd", 1, 5, 1)
    end = time.monotonic() + ranks.DEADLINE
    while "PSM_FAULTS: hang at uds.reply" not in made[1].lines():
        assert time.monotonic() < end
    # The thread that answers hangs; offers, and what an abort ends, do not.
    made[1].ask("offer", 7)
    made[1].ask("abort", "enough")
    with pytest.raises(GroundError):
        made[0].answer()
