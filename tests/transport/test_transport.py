"""Two processes send each other data through psmkit.transport, on emulated CUDA."""

from __future__ import annotations

import pytest

from psmkit.testing import Ranks
from psmkit.transport import Mode
from tests.transport import calls


@pytest.mark.ranks(2, deadline=60, cuda=True)
@pytest.mark.parametrize("on_host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize("zero_copy", [False, True], ids=["fifo", "zero-copy"])
def test_data_arrives_and_nothing_is_left_open(ranks: Ranks, zero_copy: bool, on_host: bool) -> None:
    assert ranks.run(calls.data_across, zero_copy, on_host) == [(Mode.CUMEM, [])] * 2


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_host_arrays_are_sent_and_received_as_they_are(ranks: Ranks) -> None:
    refused = ["BufferError", "ValueError", "InvalidError", "TypeError", "ValueError"]
    assert ranks.run(calls.arrays_across) == [(True, b"hello", refused)] * 2


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_wait_with_a_limit_leaves_the_group_as_it_is(ranks: Ranks) -> None:
    said, _ = ranks.run(calls.late_peer)
    assert said == [
        "WaitTimeoutError: the group has not ended in 0.05 s: look what its peers do",
        "InvalidError: the end to rank 1 is in use: wait for its group, or abort the proxy",
        "False",
        "here",
    ]


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_sizes_that_differ_are_told_on_both_sides(ranks: Ranks) -> None:
    got = ranks.run(calls.short_send)
    assert ("MismatchError", True) in [(name, "3" in text and "5" in text) for name, text in got]
    assert {name for name, _ in got} <= {"MismatchError", "AbortedError"}


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_exception_in_a_block_gives_up_what_runs_and_tells_the_others(ranks: Ranks) -> None:
    first, second = ranks.run(calls.given_up)
    assert first == "'changed its mind'[]"
    assert second.startswith("PSM_ERR_ABORTED: ") and "a group was given up" in second


@pytest.mark.ranks(1, deadline=60, cuda=True)
def test_memory_is_bounded_and_given_back(ranks: Ranks) -> None:
    ((*kinds, text),) = ranks.run(calls.memory_alone)
    assert kinds == ["ValueError", "ValueError", "TypeError", "BufferError"] and text == "the memory was given back"
