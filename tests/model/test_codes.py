"""The registry says of each code all that the analysis needs."""

from __future__ import annotations

import re

import pytest

from psmkit.model import CODES, Code, Effect, Family, Severity
from psmkit.model.codes import _TABLES

ENTRIES = [entry for table in _TABLES for entry in table.TABLE]


def test_no_code_is_registered_twice() -> None:
    assert len(ENTRIES) == len(CODES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_code_is_a_number_of_a_family(entry: Code) -> None:
    assert re.fullmatch(r"PSM[0-9]{3}", entry.code) and entry.family in Family


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_an_error_fails_or_hangs_its_run(entry: Code) -> None:
    if entry.severity is Severity.ERROR:
        assert entry.breaks
    if entry.effect is Effect.LEAKS:
        assert entry.severity is Severity.WARNING


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_precedence_is_among_hangs(entry: Code) -> None:
    assert not entry.precedence or entry.effect in (Effect.HANGS, Effect.AS_IT_ENDED)


def test_no_two_codes_have_one_precedence() -> None:
    given = [entry.precedence for entry in ENTRIES if entry.precedence]
    assert len(given) == len(set(given))
