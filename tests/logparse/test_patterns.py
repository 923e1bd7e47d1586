"""The pattern notation, and what the engine does with overlapping patterns."""

from __future__ import annotations

import pytest

from psmkit.catalogue import Catalogue, Message
from psmkit.model.errors import CatalogueError


def catalogue(*patterns: str, where: str = "nccl") -> Catalogue:
    return Catalogue([Message(f"m{i}", "test", (p,), where=where) for i, p in enumerate(patterns)])


def fields(pattern: str, text: str | bytes) -> object:
    found = catalogue(pattern).match(text)
    return None if found is None else found[1]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a {x:int}", "a -12", {"x": -12}),
        ("a {x:int}", "a 007", {"x": 7}),
        ("a {x:int}", "a b", None),
        ("a {x:uint}", "a 18446744073709551615", {"x": 2**64 - 1}),
        ("a {x:hex}", "a 0xFf", {"x": 255}),
        ("a {x:hex} b", "a c38d1761f4ed51d7 b", {"x": 0xC38D1761F4ED51D7}),
        ("a {x:hex}", "a 11112222333344445", None),
        ("a {x:ptr},", "a (nil),", {"x": 0}),
        ("a {x:ptr}", "a 0x7f00", {"x": 0x7F00}),
        ("a {x:float}/{y:float}", "a 1.5/-2e3", {"x": 1.5, "y": -2000.0}),
        ("a {x:word}: b", "a c::d: b", {"x": "c::d"}),
        ("a {x:word}", "a b c", None),
        ("a {x:str} b {y:rest}", "a  b b c", {"x": "", "y": "b c"}),
        ("a {x:str} b", "a  b  b", {"x": " b "}),
        ("a ({x:str})", "a (b (c))", {"x": "b (c)"}),
        ("a {x:rest}", "a ", {"x": ""}),
        ("at {x:addr}", "at 10.0.0.1<5000>", {"x": "10.0.0.1<5000>"}),
        ("at {x:addr}", "at [fe80::1%eth0]<5000>", {"x": "[fe80::1%eth0]<5000>"}),
        ("at {x:addr}", "at 10.0.0.1", None),
        ("n{ }{x:int} of", "n    5 of", {"x": 5}),
        ("n{ }{x:int} of", "n5 of", {"x": 5}),
        ("{{{x:int}}}", "{5}", {"x": 5}),
        ("a {_:int} b {x:int}", "a 1 b 2", {"x": 2}),
        ("a {x:int} ", "a 1", {"x": 1}),
    ],
)
def test_fields(pattern: str, text: str, expected: object) -> None:
    assert fields(pattern, text) == expected


@pytest.mark.parametrize(
    ("pattern", "column", "reason"),
    [
        ("abc {x:int", 5, "without '}'"),
        ("abc {x}", 5, "{name:type}"),
        ("abc {x:regex}", 8, "no such type"),
        ("abc {X:int}", 6, "[a-z]"),
        ("a } b", 3, "lone '}'"),
        ("a {x:rest} b", 11, "nothing can follow"),
        ("a {x:int} {x:int}", 11, "only once"),
        ("", 1, "empty"),
        ("é {x:nope}", 6, "no such type"),
    ],
)
def test_a_wrong_pattern_names_its_column(pattern: str, column: int, reason: str) -> None:
    with pytest.raises(CatalogueError, match=f"column {column} of") as caught:
        _ = catalogue(pattern).native
    assert reason in str(caught.value)
    assert caught.value.entry == "m0"


def test_literals_win_over_fields() -> None:
    engine = catalogue("use {x:word} now", "use ring now", "use {x:rest}")
    names = {
        text: found[0].name for text in ("use ring now", "use tree now", "use a b") if (found := engine.match(text))
    }
    assert names == {"use ring now": "m1", "use tree now": "m0", "use a b": "m2"}


def test_a_literal_that_leads_nowhere_is_taken_back() -> None:
    engine = catalogue("init {x:word} done", "init ring failed")
    found = engine.match("init ring done")
    assert found is not None
    assert (found[0].name, found[1]) == ("m0", {"x": "ring"})


def test_narrow_fields_are_tried_first() -> None:
    engine = catalogue("fd {x:ptr} ask", "fd {x:int} ask", "fd {x:str} ask")
    kinds = [found[0].name for text in ("fd 12 ask", "fd 0x12 ask", "fd a b ask") if (found := engine.match(text))]
    assert kinds == ["m1", "m0", "m2"]


def test_the_same_pattern_twice_is_an_error_that_names_both() -> None:
    with pytest.raises(CatalogueError, match="m0") as caught:
        _ = catalogue("a {x:int}", "a {y:int}").native
    assert caught.value.entry == "m1"


def test_hostile_texts_end_soon() -> None:
    engine = catalogue("{a:str},{b:str},{c:str},{d:str},{e:str}!", "{a:word}-{b:word}-{c:word}-{d:word}?")
    assert engine.match("," * 20000) is None
    assert engine.match("-" * 20000) is None


def test_line_patterns_may_start_and_end_anywhere() -> None:
    engine = catalogue("got signal {n:int}", where="line")
    found = engine.match("task 3: got signal 9 (killed)", where="line")
    assert found is not None
    assert found[1] == {"n": 9}


def test_one_field_may_be_a_number_in_one_spelling_and_a_name_in_another() -> None:
    engine = Catalogue([Message("m", "test", ("algo {x:int}", "algo {x:word} proto"))])
    assert [engine.match(t)[1] for t in ("algo 3", "algo Ring proto")] == [{"x": 3}, {"x": "Ring"}]  # type: ignore[index]
