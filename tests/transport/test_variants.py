"""Variants of the transport from Python: those of the library, and those that are written there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import psmkit
from psmkit import transport
from psmkit._native.psm import lib
from psmkit.model import CODES, Report, Verdict
from psmkit.model.symptoms import Leaves, Shows, Symptoms
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
        assert v.symptoms.verdict is not None and set(v.symptoms.codes) <= set(CODES)
    assert transport.variant().name == "split" and transport.variant("no-free").code == "PSM505"
    with pytest.raises(NotFoundError, match="there is no variant nobody"):
        transport.variant("nobody")


def test_wrong_registrations_are_refused() -> None:
    for bad, words in (
        ({"name": "two words"}, "bad name"),
        ({"name": ""}, "bad name"),
        ({"wrong": True}, "expected an outcome"),
        ({"outcome": "fails"}, "expected an outcome"),
        ({"wrong": True, "outcome": "x", "symptoms": Symptoms(codes=("PSM000",))}, "unknown finding PSM000"),
        ({"wrong": True, "outcome": "x", "symptoms": Symptoms(status="PSM_ERR_X")}, "unknown status 'PSM_ERR_X'"),
        ({"wrong": True, "outcome": "x", "symptoms": Symptoms(status="ffi")}, "unknown status 'ffi'"),
    ):
        with pytest.raises(InvalidError, match=words):
            transport.register_variant(**{"name": "py", "summary": "x", **bad})  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="a variant split is already registered"):
        transport.register_variant("split", "again")


def test_symptoms_of_a_variant_in_python_are_in_its_table() -> None:
    symptoms = Symptoms(
        Verdict.HUNG, ("PSM307", "PSM304"), "PSM_ERR_CUDA", Shows.SYNC_STREAM | Shows.BY_LUCK, Leaves.STREAM
    )
    made = transport.register_variant("py-declares", "x", wrong=True, outcome="hangs", symptoms=symptoms)
    assert transport.variant("py-declares").symptoms == symptoms and made.code == "PSM307"
    assert transport.Variant(made.pointer).symptoms == symptoms  # as another reader of the C table sees it


def test_variant_without_fields_declares_the_code_of_its_sentence() -> None:
    old = transport.register_variant("py-sentence", "x", wrong=True, outcome="PSM505: nothing is released")
    assert old.symptoms == Symptoms(codes=("PSM505",)) and old.code == "PSM505"


def test_numbers_of_symptoms_are_those_of_the_header() -> None:
    for enum, prefix in ((Shows, "PSM_SHOWS_"), (Leaves, "PSM_LEAVES_")):
        assert {f.name: int(f) for f in enum} == {f.name: int(getattr(lib, prefix + str(f.name))) for f in enum}
    for verdict in (Verdict.HEALTHY, Verdict.LEAKING, Verdict.HUNG, Verdict.FAILED):
        assert Symptoms(verdict).verdict_number == int(getattr(lib, f"PSM_VERDICT_{verdict.name}"))


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
