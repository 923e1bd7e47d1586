"""Failures of libpsm are exceptions that carry what it says."""

from __future__ import annotations

import pytest

from psmkit import proxy
from psmkit._native.psm import ffi, lib
from psmkit.model.errors import PsmkitError
from psmkit.proxy import Cause, PsmError, Status
from psmkit.proxy.errors import CLASSES, check, error_of, record_of


def test_every_status_of_the_library_has_a_class() -> None:
    names = set(ffi.typeof("psm_status").elements.values())
    assert {status.c_name for status in Status} == names
    assert {status.value for status in Status} == set(ffi.typeof("psm_status").elements)
    assert set(CLASSES) == {status for status in Status if status < 0}
    assert {c.__name__ for c in CLASSES.values()} <= set(proxy.__all__)


@pytest.mark.parametrize("status", sorted(CLASSES), ids=lambda s: Status(s).name)
def test_record_and_exception_are_the_same_thing(status: Status) -> None:
    given = CLASSES[status]("what was seen", rank=1, peer=2, op_id=0x100000005, stage="setup", sys_errno=24, cuda=400)
    lib.psm_set_last_error(record_of(given))
    with pytest.raises(CLASSES[status]) as caught:
        check(status)
    error = caught.value
    assert vars(error) == vars(given)
    assert str(error) == f"{status.c_name}: what was seen (stage setup, rank 1, peer 2, opId 0x100000005)"
    assert isinstance(error, PsmkitError)


def test_cause_and_the_rank_that_it_names_go_through_the_record() -> None:
    for cause in Cause:
        names = None if cause is Cause.OTHER else 70_000
        given = PsmError("seen", Status.ABORTED, peer=1, cause=cause, names=names)
        assert (error_of(record_of(given)).cause, error_of(record_of(given)).names) == (cause, names)
        lib.psm_set_last_error(record_of(given))
        with pytest.raises(PsmError) as caught:
            check(Status.ABORTED)
        assert (caught.value.cause, caught.value.names) == (cause, names)
    assert {one.value for one in Cause} == set(ffi.typeof("enum psm_cause").elements)
    assert len({one.c_name for one in Cause}) == len(Cause)


def test_gap_that_a_caller_of_an_earlier_release_left_unset_says_nothing() -> None:
    record = record_of(PsmError("seen", Status.TIMEOUT))
    record.detail = 0xFFFFFFFF
    assert (error_of(record).cause, error_of(record).names) == (Cause.OTHER, None)
    lib.psm_set_last_error(record)
    assert lib.psm_last_error().detail == 0


def test_what_is_not_known_is_not_said() -> None:
    error = error_of(record_of(PsmError("no memory", Status.NO_MEMORY)))
    assert (error.rank, error.peer, error.op_id, error.stage) == (None, None, 0, "")
    assert str(error) == "PSM_ERR_NO_MEMORY: no memory"


def test_long_text_is_cut_between_characters() -> None:
    error = error_of(record_of(PsmError("ä" * 300, Status.REFUSED)))
    assert error.text == "ä" * 127


@pytest.mark.parametrize("kind", [TimeoutError, ConnectionError, ValueError, LookupError, PermissionError])
def test_errors_are_also_what_python_calls_them(kind: type[Exception]) -> None:
    assert any(issubclass(c, kind) for c in CLASSES.values())


def test_all_names_are_there_and_sorted() -> None:
    from psmkit import transport

    for module in (proxy, transport):
        assert all(hasattr(module, name) for name in module.__all__)
        assert len(set(module.__all__)) == len(module.__all__)
