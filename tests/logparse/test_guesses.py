"""A guessed match is what the full match would have been, for every pattern and any text."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue, Message
from tests.logparse.test_catalogue_patterns import render

Found = tuple[int, dict[int, tuple[int, int, int]], int]


@dataclass
class Engine:
    """A catalogue, matched in both ways: the message, its fields with value, start and length, and which are texts."""

    catalogue: Catalogue

    def _read(self, number: int, arrays: tuple[object, ...]) -> Found | None:
        if number < 0:
            return None
        present, values, starts, lengths = arrays
        fields = {
            i: (values[i], starts[i], lengths[i])  # type: ignore[index]
            for i in range(64)
            if present[0] >> i & 1  # type: ignore[index]
        }
        return number, fields, present[1]  # type: ignore[index]

    @staticmethod
    def _arrays() -> tuple[object, ...]:
        return ffi.new("uint64_t[2]"), ffi.new("uint64_t[64]"), ffi.new("uint32_t[64]"), ffi.new("uint32_t[64]")

    def full(self, text: bytes) -> Found | None:
        arrays = self._arrays()
        return self._read(lib.ls_match_text(self.catalogue.native, False, text, len(text), *arrays, ffi.NULL), arrays)

    def guess(self, seen: bytes, text: bytes) -> Found | None:
        """The match of ``text`` that is guessed after ``seen`` was matched in full; None: nothing was guessed."""
        arrays = self._arrays()
        number = lib.ls_guess_text(self.catalogue.native, seen, len(seen), text, len(text), *arrays)
        return self._read(number, arrays)

    def expect_agreement(self, seen: bytes, text: bytes) -> bool:
        """Whether there was a guess; that it is what the full match says is checked."""
        guessed = self.guess(seen, text)
        if guessed is None:
            return False
        assert guessed == self.full(text), (seen, text)
        return True


@pytest.fixture(scope="module")
def engine(catalogue: Catalogue) -> Engine:
    return Engine(catalogue)


def nccl(catalogue: Catalogue) -> list[Message]:
    return [m for m in catalogue.messages if m.where == "nccl"]


_EDGES = [b"", b" ", b"0", b"0x", b"-", b"+", b"(nil)", b":", b"/", b",", b"\t", b"12345678901234567890", b"a" * 17]


def damaged(data: st.DataObject, text: bytes) -> bytes:
    """A text with a few bytes changed, taken out or put in, or cut."""
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 3)))
        new = data.draw(st.sampled_from(_EDGES) | st.binary(max_size=3))
        text = text[:at] + new + text[end:]
    return text[: data.draw(st.integers(1, 200))] if data.draw(st.booleans()) else text


def other_digits(rng: random.Random, text: bytes) -> bytes:
    """A text with other digits at the same places, of any kind: its fields are where they were, or it has others."""
    kinds = [b"0123456789", b"0123456789abcdef", b"abcdefABCDEF"]
    kind = rng.choice(kinds)
    return bytes(rng.choice(kind) if chr(c) in "0123456789abcdef" and rng.random() < 0.5 else c for c in text)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_guess_is_what_the_full_match_says(engine: Engine, data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from([p for m in nccl(engine.catalogue) for p in m.patterns]))
    seen, again = (render(data, pattern)[0].encode() for _ in range(2))
    engine.expect_agreement(seen, seen)
    engine.expect_agreement(seen, again)
    engine.expect_agreement(seen, damaged(data, again))
    engine.expect_agreement(seen, damaged(data, seen))
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    for _ in range(8):
        engine.expect_agreement(seen, other_digits(rng, seen))


def test_a_guess_holds_for_texts_of_other_patterns_that_begin_alike(engine: Engine) -> None:
    texts = [s.text.encode() for m in nccl(engine.catalogue) for s in m.samples]
    rows: dict[bytes, list[bytes]] = {}
    for text in texts:
        rows.setdefault(text[:4], []).append(text)
    rng = random.Random(1)
    for alike in rows.values():
        for seen in alike:
            for text in rng.sample(alike, min(len(alike), 10)):
                engine.expect_agreement(seen, text)
                half = len(seen) // 2
                engine.expect_agreement(seen, seen[:half] + text[half:])


def test_most_patterns_are_guessed(engine: Engine) -> None:
    """The guard must not be so careful that it helps nobody."""
    texts = [s.text.encode() for m in nccl(engine.catalogue) for s in m.samples]
    found = [t for t in texts if engine.full(t) is not None]
    assert sum(engine.expect_agreement(t, t) for t in found) > 0.8 * len(found)


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (
            "AllReduce: opCount 1 sendbuff 0x7f00 recvbuff 0x7f01 count 65536 datatype 7 op 0 root 0 comm 0x55f0 [nranks=8] stream 0x55c9",
            "AllReduce: opCount 1a sendbuff (nil) recvbuff 0x7fedcaa25000 count 1 datatype 12 op 0 root 7 comm 0x7fedcaa65010 [nranks=64] stream 0x0",
        ),
        (
            "Send: opCount 0 sendbuff (nil) recvbuff 0x7fedcaa25000 count 65536 datatype 1 op 0 root 0 comm 0x7fedcaa65010 [nranks=4] stream 0x55bf",
            "Send: opCount ff sendbuff (nil) recvbuff 0x7f count 12345678 datatype 1 op 0 root -1 comm 0x7fedcaa65010 [nranks=4] stream 0x55bf",
        ),
        ("init.cc:437 Cuda Alloc Size 23648 pointer 0x7f00", "init.cc:437 Cuda Alloc Size 8 pointer 0x7fedcaa25000"),
        ("misc/utils.cc:233 memory stack hunk malloc(65536)", "misc/utils.cc:233 memory stack hunk malloc(1)"),
        (
            "ProxyCall UDS comm 0x55f0 rank 0 tpRank 1(c38d1761) reqSize 8 respSize 0 respFd 0x7f3c opId 0xa0ae",
            "ProxyCall UDS comm 0x55f1 rank 10 tpRank 12(c38d1761f4ed51d7) reqSize 8 respSize 0 respFd 0x7ffd6a3cda48 opId 0xa0aef6e2",
        ),
        (
            "ProxyCall UDS comm 0x55f0 rank 0 tpRank 1(c38d1761) reqSize 8 respSize 0 respFd 43 opId 0xa0ae - DONE",
            "ProxyCall UDS comm 0x55f1 rank 10 tpRank 12(1) reqSize 8 respSize 0 respFd -1 opId 0x0 - DONE",
        ),
        (
            "proxyProgressAsync opId=0x7f00 op.type=3 op.reqBuff=0x7f00 op.respSize=8 done",
            "proxyProgressAsync opId=(nil) op.type=12 op.reqBuff=(nil) op.respSize=0 done",
        ),
    ],
)
def test_the_lines_of_a_busy_job_are_guessed(engine: Engine, seen: str, text: str) -> None:
    assert engine.expect_agreement(seen.encode(), text.encode())


def small(*patterns: str) -> Engine:
    return Engine(Catalogue([Message(f"m{i}", "test", (p,)) for i, p in enumerate(patterns)]))


@pytest.mark.parametrize(
    ("patterns", "seen", "text", "guessed"),
    [
        (("fd {x:int} opId {y:int}", "fd {x:ptr} opId {y:int}"), "fd 0x1f opId 1", "fd 0x2f opId 1", True),
        (("fd {x:int} opId {y:int}", "fd {x:ptr} opId {y:int}"), "fd 0x1f opId 1", "fd 12 opId 1", False),
        (("fd {x:int} opId 1", "fd {x:hex} opId {y:int}"), "fd 12 opId 77", "fd 12 opId 12", False),
        (("send to {x:int}", "{what:word} to {x:int}"), "sends to 5", "sends to 6", True),
        (("send to {x:int}", "{what:word} to {x:int}"), "recvs to 5", "recvs to 6", True),
        (("send to {x:int}", "{what:word} to {x:int}"), "recvs to 5", "sender to 6", False),
        (("{a:word}: found {x:int}", "{b:str} found {x:int}"), "a, b found 5", "a, b found 6", False),
        (("{a:word}:{n:int} found {x:int}", "{b:word} found {x:int}"), "a:b found 5", "a:b found 6", True),
        (("{a:word}:{n:int} found {x:int}", "{b:word} found {x:int}"), "a:b found 5", "a:8 found 6", False),
        (("values: {x:int} more", "values: {x:int}"), "values: 5", "values: 12345678901234567890", True),
        (("value {x:float} done",), "value 1.5 done", "value 12 done", True),
        (("value {x:float} done", "value {x:int} left"), "value 1.5 done", "value 2 done", True),
        (("values: {x:str}, end",), "values: a b, end", "values: , end", True),
        (("value {x:str}, end",), "value a b, end", "value a, b, end", False),
        (("value {x:uint}.",), "value 5.", "value -5.", False),
        (("value {x:hex}.",), "value 5.", "value 11112222333344445.", False),
        (("value {x:hex}.",), "value 5.", "value 1111222233334444.", True),
        (("the node{ }{x:int} of",), "the node 5 of", "the node     7 of", True),
    ],
)
def test_rivals_of_a_field(patterns: tuple[str, ...], seen: str, text: str, guessed: bool) -> None:
    assert small(*patterns).expect_agreement(seen.encode(), text.encode()) is guessed


_WORDS = st.sampled_from(["a", "b", "ab", "12", "7", "0x1f", "1f", "-3", "(nil)", "a:b", "a:1", "1:1", "1.5", ":", "x"])
_STARTS, _ENDS = ["", "counted: ", "counted: ", "1f counted: "], ["", " end", "x end"]
_PARTS = st.sampled_from(
    ["{:int}", "{:uint}", "{:hex}", "{:ptr}", "{:float}", "{:word}", "{:str}", "a", "ab", "1", " ", ":", "x", "{ }"]
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_guesses_agree_in_small_crowded_catalogues(data: st.DataObject) -> None:
    patterns = {}  # by what tells them apart
    for _ in range(data.draw(st.integers(1, 6))):
        parts = data.draw(st.lists(_PARTS, min_size=1, max_size=6))
        shape = data.draw(st.sampled_from(_STARTS)) + "".join(parts) + data.draw(st.sampled_from(_ENDS))
        names = (f"{{f{i}:" for i in itertools.count())
        patterns[shape.rstrip(" ")] = "".join(next(names) if p == "{:" else p for p in re.split("({:)", shape))
    patterns.pop("", None)
    engine = small(*patterns.values())
    # Texts of the patterns, some with more behind them, two of each shape.
    texts = []
    for _ in range(3):
        shape = data.draw(st.sampled_from([*patterns, "counted: "]))
        for _ in range(2):
            text = re.sub(r"{[^}]*}", lambda _: data.draw(_WORDS), shape)
            texts.append((text + data.draw(st.sampled_from(["", "", "", " end", " 12"]))).strip(" ").encode())
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    for seen in texts:
        for text in [*texts, *(other_digits(rng, seen) for _ in range(4))]:
            engine.expect_agreement(seen, text)
