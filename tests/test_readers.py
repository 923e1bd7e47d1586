"""Damaged input for every reader, a few cases each; scripts/fuzz.py runs more. And inputs that are known to be hard."""

from __future__ import annotations

import random

import pytest

from psmkit.analysis.facts import lines
from psmkit.logparse.foreign import jsondocs, parse
from psmkit.logparse.foreign.textlines import numbered
from psmkit.names import Redactor
from psmkit.report.escape import markdown_text
from tests.readers import READERS, Reader, attack, limited

CASES = 4
_LONG = 60_000
# Ten times what these inputs take, and less than work takes that grows with the square of their length.
_ENOUGH = 6


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_input_is_read_or_refused(reader: Reader) -> None:
    for seed in range(CASES):
        expect_result_or_refusal(reader, attack(reader, random.Random(f"{reader.name} {seed}")))


def expect_result_or_refusal(reader: Reader, damaged: bytes) -> None:
    """Within the limits; nothing but a PsmkitError may be raised."""
    with limited(memory=False):
        reader.read(damaged)


@pytest.mark.parametrize(
    "part",
    [
        "a.",
        "a-",
        "1.",
        ":",
        "::1",
        "a:1:",
        "a@",
        "/",
        "....",
        "fe80::",
        "1:2:3",
        "user=a.",
        "a.b-",
        "x[",
        "<1>",
        "com.",
        "\ue000",
    ],
)
def test_redaction_looks_at_each_place_of_a_line_once(part: str) -> None:
    # Each of these took minutes when a pattern was tried from each place of a run.
    redactor = Redactor()
    text = part * (_LONG // len(part)) + "!"
    with limited(memory=False, seconds=_ENOUGH):
        redactor.learn(text)
        assert redactor.text(text)


@pytest.mark.parametrize(
    ("kind", "part"),
    [("py-spy", "    f (" + "." * _LONG), ("py-spy", " " * _LONG), ("py-spy", "  a (" * (_LONG // 5)), ("gdb", "#0  f" + " " * _LONG + "x"),
     ("ras-text", "Rank 1 reported " + " -- " * (_LONG // 4)), ("ras-text", "The missing ranks: " + "1" * _LONG + "x"),
     ("flight-recorder", '{"entries": ' + '"\\' * (_LONG // 2)), ("flight-recorder", '["a" "b"\n' * (_LONG // 9)),
     ("flight-recorder", "[]\n" * (_LONG // 3)), ("ras-json", '{"a":\n' * (_LONG // 6)), ("ras-json", "[1,,\n" * (_LONG // 5))],
    ids=lambda value: value[:20].strip(),
)  # fmt: skip
def test_a_dump_is_looked_at_once(kind: str, part: str) -> None:
    with limited(memory=False, seconds=_ENOUGH):
        assert parse(part, kind).kind == kind


@pytest.mark.parametrize(
    "part", ["`", "` ", "``a", "|", "\\", "*_", "# ", "- ", "1. ", "<a", "[a](", "http://", "a.b@", " ", "\u202e"]
)
def test_a_line_is_escaped_for_markdown_in_one_pass(part: str) -> None:
    with limited(memory=False, seconds=_ENOUGH):
        assert markdown_text(part * (_LONG // len(part)) + "!")


def test_the_start_of_a_second_record_is_looked_for_once() -> None:
    with limited(memory=False, seconds=_ENOUGH):
        assert lines._NEXT.search("a" * _LONG + " b" * 1000) is None
    found = lines._NEXT.search("12 bytes node-a:17:18 [0] NCCL INFO x")
    assert found is not None and found.start() == 9


def test_a_json_text_of_many_values_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsondocs, "MAX_VALUES", 50_000)
    found, whole = jsondocs.documents("[" + "[]," * 1_000_000 + "[]]")
    assert not whole
    assert 10_000 < len(found[0]) < 50_000
    assert jsondocs.documents("[" + "[]," * 10_000 + "[]]") == ([[[]] * 10_001], True)


def test_lines_are_numbered_as_in_the_file() -> None:
    assert list(numbered("a\nb\r\n\nc"))[:4] == [(1, "a"), (2, "b"), (3, ""), (4, "c")]


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("to node-a.example.com, then", "to host1, then"),
        ("-node-a.example.com.", "-host1."),
        ("alice@node-a:17", "user1@host1:17"),
        ("1.alice@node-a", "1.user1@host1"),
        ("peer fe80::1%eth0 and 2001:db8::7.", "peer ip1 and ip2."),
        ("at 12:34:56 torch.distributed.run 1.2.3", "at 12:34:56 torch.distributed.run 1.2.3"),
    ],
)
def test_names_at_the_edges_of_words_are_replaced(text: str, redacted: str) -> None:
    redactor = Redactor()
    redactor.learn(text)
    assert redactor.text(text) == redacted
