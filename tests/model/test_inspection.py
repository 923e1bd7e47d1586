"""The JSON form of an inspection."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psmkit.model.inspection import (
    InspectedFrame,
    InspectedThread,
    Inspection,
    InspectionError,
    Library,
    Note,
    Standing,
    StateObject,
    Value,
    from_json,
    to_json,
)

_text = st.text(string.printable, max_size=8)
_ints = st.integers(-(2**70), 2**70)
_maybe = st.none() | _ints
_frames = st.lists(st.builds(InspectedFrame, _text, st.none() | _text), max_size=2).map(tuple)
_values = st.lists(st.builds(Value, _text, _ints | _text, st.booleans(), st.none() | _ints | _text), max_size=2).map(
    tuple
)
_objects = st.recursive(
    st.builds(StateObject, _text, _text, _ints, _maybe, _maybe, _maybe, _values),
    lambda inner: st.builds(
        StateObject, _text, _text, _ints, _maybe, _maybe, _maybe, _values, st.lists(inner, max_size=2).map(tuple)
    ),
    max_leaves=4,
)
_inspections = st.builds(
    Inspection,
    pid=_ints,
    host=_text,
    command=st.lists(_text, max_size=2).map(tuple),
    taken=st.floats(0, 1e12),
    started=st.none() | st.floats(0, 1e12),
    rank=_maybe,
    nranks=_maybe,
    stopped=st.none() | st.floats(0, 1e6),
    psmkit=_text,
    standing=st.lists(st.builds(Standing, _text, _maybe, _text, _text, _maybe), max_size=2).map(tuple),
    threads=st.lists(
        st.builds(
            InspectedThread, _ints, _text, _text, _text, _text, _text, st.none() | _text, _maybe, _frames, _frames
        ),
        max_size=2,
    ).map(tuple),
    state=st.lists(_objects, max_size=2).map(tuple),
    libraries=st.lists(st.builds(Library, _text, st.none() | _text, st.none() | _text, _text), max_size=2).map(tuple),
    notes=st.lists(st.builds(Note, _text, _text), max_size=2).map(tuple),
)


@given(_inspections)
def test_an_inspection_survives_its_json_form(inspection: Inspection) -> None:
    assert from_json(json.loads(json.dumps(to_json(inspection)))) == inspection


def test_keys_of_a_newer_psmkit_are_skipped() -> None:
    document = to_json(Inspection(1, "a", (), 2.0)) | {"later": [1]}
    assert from_json(document) == Inspection(1, "a", (), 2.0)


def _nested(depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": "a", "name": "b"}
    for _ in range(depth):
        out = {"kind": "a", "name": "b", "parts": [out]}
    return out


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"schema": "psmkit-inspection/2"}, "schema"),
        ({"pid": "12"}, "inspection.pid"),
        ({"pid": True}, "inspection.pid"),
        ({"threads": {}}, "inspection.threads"),
        ({"threads": [{"tid": 1}]}, r"inspection.threads\[0\]"),
        ({"state": [_nested(100)]}, "too many"),
        ({"notes": [3]}, r"inspection.notes\[0\]"),
    ],
)
def test_a_document_that_is_no_inspection_is_refused_with_the_field(change: dict[str, Any], names: str) -> None:
    with pytest.raises(InspectionError, match=names):
        from_json(to_json(Inspection(1, "a", (), 2.0)) | change)


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(InspectionError):
        from_json([1])
