"""Every pattern of psmkit's catalogue gives back the fields that it was printed with, whatever their values."""

from __future__ import annotations

import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psmkit.catalogue import Catalogue, Message
from psmkit.catalogue.entries import Value

_PART = re.compile(r"\{\{|\}\}|\{([a-z_][a-z0-9_]*):(\w+)\}|\{ \}")
_WORDS = st.text("abcxyzABC019_", min_size=1, max_size=8)

_VALUES: dict[str, st.SearchStrategy[tuple[str, Value]]] = {
    "int": st.integers(-(2**31), 2**31).map(lambda v: (str(v), v)),
    "uint": st.integers(0, 2**64 - 1).map(lambda v: (str(v), v)),
    "hex": st.integers(0, 2**64 - 1).map(lambda v: (f"{v:#x}", v)),
    "ptr": st.integers(1, 2**64 - 1).map(lambda v: (f"{v:#x}", v)) | st.just(("(nil)", 0)),
    "float": st.integers(-(10**6), 10**6).map(lambda v: (f"{v / 100:.2f}", v / 100)),
    "word": _WORDS.map(lambda v: (v, v)),
    "str": _WORDS.map(lambda v: (v, v)),
    "rest": _WORDS.map(lambda v: (v, v)),
    "addr": st.integers(0, 255).map(lambda v: (f"10.0.0.{v}<5{v}>", f"10.0.0.{v}<5{v}>")),
}


def render(data: st.DataObject, pattern: str) -> tuple[str, dict[str, Value]]:
    """A text that the pattern prints, and its fields."""
    fields: dict[str, Value] = {}

    def part(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        if found[0] == "{ }":
            return " " * data.draw(st.integers(0, 3))
        text, value = data.draw(_VALUES[found[2]])
        if pattern[: found.start()].endswith("}") and isinstance(value, str):
            text = value = "/" + text  # nothing but its own letters parts it from the field before
        if found[1] != "_":
            fields[found[1]] = value
        return text

    return _PART.sub(part, pattern).rstrip(" "), fields


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_what_a_pattern_prints_is_parsed_back(catalogue: Catalogue, data: st.DataObject) -> None:
    messages = [m for m in catalogue.messages if m.where == "nccl"]
    message: Message = data.draw(st.sampled_from(messages))
    text, fields = render(data, data.draw(st.sampled_from(message.patterns)))
    found = catalogue.match(text)
    assert found is not None, text
    if found[0] is message:
        # A field next to another of the same letters may end elsewhere; the numbers may not. Releases print the same field signed or
        # unsigned, in patterns of one message: a number is what 64 bits make of it.
        numbers = {
            k: v % 2**64
            for k, v in fields.items()
            if isinstance(v, int) and k in found[1] and isinstance(found[1][k], int)
        }
        assert {k: int(found[1][k]) % 2**64 for k in numbers} == numbers


def test_every_sample_is_parsed_to_its_fields(catalogue: Catalogue) -> None:
    wrong = []
    for message in catalogue.messages:
        for sample in message.samples:
            found = catalogue.match(sample.text, where=message.where)
            if found is None or found[0].name != message.name:
                wrong.append((message.name, sample.text, None if found is None else found[0].name))
                continue
            expected = {k: _number(v, found[1].get(k)) for k, v in sample.fields.items()}
            if {k: found[1].get(k) for k in expected} != expected:
                wrong.append((message.name, sample.text, found[1]))
    assert not wrong, wrong[:5]


def _number(value: Value, like: Value | None) -> Value:
    """TOML has no 64-bit unsigned numbers: a sample writes such a value as a text."""
    return int(value, 0) if isinstance(value, str) and isinstance(like, int) else value
