"""Variants of the transport from Python: those of the library, and those that are written there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import psmkit
from psmkit import transport
from psmkit.model import CODES, Report
from psmkit.proxy import InvalidError, NotFoundError
from psmkit.testing import Ranks
from tests.transport import variant_calls

Held = Callable[..., tuple[list[tuple[str, list[str]]], Report]]
CONFORMANCE = pytest.mark.ranks(2, deadline=90, cuda=True)


@pytest.fixture
def held(ranks: Ranks) -> Held:
    """Holds a variant against the right one's promises: what each rank came to, and the analysis of what they left."""

    def one(name: str, *arguments: str, zero_copy: bool = False) -> tuple[list[tuple[str, list[str]]], Report]:
        environment = {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,P2P,PROXY,COLL,REG",
            "PSM_SANITIZE_LEAKS": "1",
        }
        got = ranks.run(variant_calls.conform, name, zero_copy, *arguments, environment=environment)
        return got, psmkit.analyze([str(ranks.folder)])

    return one


def test_declarations_are_the_librarys() -> None:
    found = transport.variants()
    assert [name for name, v in found.items() if not v.wrong] == ["split"]
    for name, v in found.items():
        assert v.name == name and v.summary and bool(v.outcome) == v.wrong
        assert v.code == "" or (v.code in CODES and v.outcome.startswith(f"{v.code}: "))
    assert transport.variant().name == "split" and transport.variant("no-free").code == "PSM505"
    with pytest.raises(NotFoundError, match="there is no variant nobody"):
        transport.variant("nobody")


def test_wrong_registrations_are_refused() -> None:
    for bad in ({"name": "two words"}, {"name": ""}, {"name": "py", "wrong": True}, {"name": "py", "outcome": "fails"}):
        with pytest.raises(InvalidError, match="a name of letters"):
            transport.register_variant(**{"summary": "x", **bad})  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="there is a variant split already"):
        transport.register_variant("split", "again")


@CONFORMANCE
@pytest.mark.parametrize("zero_copy", [False, True], ids=["fifo", "zero-copy"])
def test_right_variant_in_python_passes(held: Held, zero_copy: bool) -> None:
    got, report = held("right", zero_copy=zero_copy)
    assert [said for said, _ in got] == ["PSM_OK", "PSM_OK"]
    common = {"setup", "connect", "progress", "free", "caller's connect"}
    # The sender's proxy maps what the receiver registers: over a connection of the send side.
    assert set(got[0][1]) == common | ({"register", "deregister"} if zero_copy else set())
    assert set(got[1][1]) == common | {"recv_setup"}
    assert [f.title for f in report.findings if f.severity.weight] == []


@CONFORMANCE
def test_rule_broken_by_the_caller_is_caught(held: Held) -> None:
    got, report = held("mode_split")
    for said, _ in got:
        assert said.startswith("PSM_ERR_MISMATCH|connect|") and "the mode is " in said
    assert "PSM401" in {f.code for f in report.findings}


@CONFORMANCE
def test_rule_broken_by_a_handler_is_caught(held: Held) -> None:
    ((said, _), (other, _)), report = held("other_steps")
    assert said.startswith("PSM_ERR_PROTOCOL|setup|") and "3 steps" in said and other == "PSM_OK"
    assert "PSM401" in {f.code for f in report.findings}


@CONFORMANCE
def test_what_a_handler_does_not_give_back_is_told(held: Held) -> None:
    got, report = held("forgetful")
    assert [said for said, _ in got] == ["PSM_OK", "PSM_OK"]
    assert "PSM505" in {f.code for f in report.findings}


@CONFORMANCE
def test_wrong_variant_of_the_library_fails_as_it_declares(held: Held) -> None:
    got, report = held("whole-struct")
    assert any("invalid resource handle" in said for said, _ in got)
    assert transport.variant("whole-struct").code in {f.code for f in report.findings}


@CONFORMANCE
def test_interrupt_in_a_callers_function_is_raised_as_itself(ranks: Ranks) -> None:
    assert ranks.run(variant_calls.interrupted) == ["KeyboardInterrupt", "KeyboardInterrupt"]


@CONFORMANCE
@pytest.mark.parametrize(
    ("place", "rank", "status"),
    [
        ("setup", 0, "PSM_ERR_REFUSED|setup|the Python handler of Setup"),
        ("connect", 0, "PSM_ERR_REFUSED|connect|the Python handler of Connect"),
        ("progress", 0, "PSM_ERR_INTERNAL|progress|the Python progress function"),
        ("recv_setup", 1, "PSM_ERR_INTERNAL|setup|the Python recv_setup"),
        ("send_connect", 0, "PSM_ERR_INTERNAL|connect|the Python send_connect"),
    ],
)
def test_exception_in_a_variant_ends_the_call_with_its_last_line(
    held: Held, place: str, rank: int, status: str
) -> None:
    got, _ = held("raising", place)
    said, _ = got[rank]
    assert said.startswith(f"{status} raised ZeroDivisionError: in {place} (variant_calls.py:")
    # On the caller's own thread the exception itself is there, too.
    assert (" <- ZeroDivisionError" in said) == (place in ("recv_setup", "send_connect"))
