"""The runner's end of the bootstrap without sockets: nothing that a rank can send does more than turn it away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psmkit.lab.bootstrap import Bootstrap, ProtocolError

WORDS = st.sampled_from(
    [b"hello", b"stage", b"barrier", b"exchange", b"report", b"0", b"1", b"x", b"{}", b"1:00", b"\xff"]
)
LINES = st.lists(WORDS, max_size=4).map(b" ".join)


def test_barrier_opens_when_the_last_has_come() -> None:
    b = Bootstrap(3)
    assert b.feed(0, b"barrier a 0\n") == [] and b.feed(2, b"barrier a 1\n") == []
    assert b.feed(1, b"barrier a 0\n") == [(0, b"go a 1\n"), (1, b"go a 1\n"), (2, b"go a 0\n")]


def test_message_may_come_in_pieces() -> None:
    b = Bootstrap(1)
    assert b.feed(0, b"barr") == [] and b.feed(0, b"ier a 0") == []
    assert b.feed(0, b"\n") == [(0, b"go a 0\n")]


def test_bytes_are_pairs_of_hex_digits() -> None:
    for part in (b"0:a", b"0:abc", b"0:AB", b"1:aa"):
        with pytest.raises(ProtocolError, match="bad part"):
            Bootstrap(1).feed(0, b"exchange x " + part + b"\n")
    assert Bootstrap(1).feed(0, b"exchange x 0:\n") == [(0, b"exchanged x 0:\n")]


def test_leaving_opens_what_waits_for_nobody_else() -> None:
    b = Bootstrap(2)
    b.feed(0, b"exchange x 0:aa 1:bb\n")
    assert b.leave(1) == [(0, b"exchanged x 0:aa\n")]
    assert b.leave(1) == []


def test_disagreement_is_seen_only_when_all_wait() -> None:
    b = Bootstrap(2)
    b.feed(0, b"barrier a 0\n")
    assert b.disagreement() is None
    b.feed(1, b"barrier b 0\n")
    assert b.disagreement() == "rank 0 waits in barrier a; rank 1 waits in barrier b"


@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(st.binary(max_size=40), LINES)), max_size=12))
def test_any_bytes_are_taken_or_refused(messages: list[tuple[int, bytes]]) -> None:
    b = Bootstrap(3)
    for rank, data in messages:
        if b.ranks[rank].gone:
            continue
        try:
            answers = b.feed(rank, data + b"\n")
        except ProtocolError:
            answers = b.leave(rank)
        # Answers go to those that waited, and only to the living.
        assert all(not b.ranks[to].gone and b.ranks[to].waits is None for to, _ in answers)


@pytest.mark.parametrize("line", [b"go a 0", b"", b"barrier a", b"exchange a b", b"report 1", b"stage " + b"x" * 81])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        Bootstrap(2).feed(0, line + b"\n")
