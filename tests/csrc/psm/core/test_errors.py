"""Statuses and the error record of a thread."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.csrc.psm import ground

Start = Callable[..., ground.Ground]


def declared() -> dict[int, str]:
    text = (ground.PSM / "include" / "psm" / "psm.h").read_text()
    body = text[text.index("typedef enum psm_status {") : text.index("} psm_status;")]
    return {int(value): name for name, value in re.findall(r"(PSM_\w+) = (-?\d+)", body)}


def test_every_status_has_its_name_and_no_other_number_has_one(start: Start) -> None:
    names = dict(zip(range(-64, 9), start().ask("names"), strict=True))
    assert {number: name for number, name in names.items() if name != "-"} == declared()


def test_an_error_belongs_to_its_thread(start: Start) -> None:
    process = start()
    with pytest.raises(ground.GroundError) as own:
        process.ask("errors")
    assert (own.value.status, own.value.text) == ("PSM_ERR_MISMATCH", "steps 8 and 16")
    assert (own.value.rank, own.value.peer, own.value.op_id, own.value.stage) == (3, 4, 0x12, "connect")
    handed_over = ground.failure(process.line())
    assert (handed_over.status, handed_over.text) == ("PSM_ERR_TIMEOUT", "of the other thread")
    told_again = ground.failure(process.line())
    assert told_again.text == "again: of the other thread", "the text may be made of the one before"
    assert (told_again.rank, told_again.peer, told_again.op_id, told_again.stage) == (7, 8, 9, "getfd")
    cut = ground.failure(process.line())
    assert (cut.status, cut.errno) == ("PSM_ERR_NO_RESOURCE", 24)
    assert set(cut.text) == {"x"} and len(cut.text) == 255, "what does not fit is cut, and ended"


def test_ids_differ_and_are_never_zero(start: Start) -> None:
    process = start()
    ids = {process.ask("random")[0] for _ in range(200)}
    assert len(ids) == 200 and "0" * 16 not in ids


def test_a_deadline_tells_what_is_left(start: Start) -> None:
    never, never_passed, past, passed, left, now = map(int, start().ask("deadline", 3_600_000))
    assert (never, never_passed) == (-1, 0)
    assert (past, passed) == (0, 1)
    assert 0 < left <= 3_600_000 and now == 0


def test_a_deadline_of_any_length_fits_into_what_poll_takes(start: Start) -> None:
    left = int(start().ask("deadline", 2**32 - 1)[4])
    assert 0 < left <= 2**31 - 1
