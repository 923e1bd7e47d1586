"""One bug of a plugin is one fault, however many checks see it, with the advice that fits what was seen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.model import CODES
from psmkit.plugins.drive import Result
from psmkit.plugins.drive_checks import CHECKS
from psmkit.plugins.drive_profiler import PROFILER_VERSIONS
from psmkit.plugins.drive_profiler_checks import PROFILER_CHECKS
from psmkit.plugins.faults import Fault, faults
from tests.plugins import drive_libraries

PROFILER = {check.name: check for check in PROFILER_CHECKS}
NET = {check.name: check for check in CHECKS}
PROFILER_CODES = {"contract": "PSM921", "died": "PSM923", "blocked": "PSM924", "leak": "PSM925", "weak": "PSM926"}
NET_CODES = {"contract": "PSM911", "data": "PSM912", "died": "PSM913", "blocked": "PSM914"}


def of_profiler(*results: tuple[str, int, str, str, str]) -> list[Fault]:
    """Faults of results: check, version, kind, call, what was seen."""
    rows = [Result(check, version, "failed", text, kind, call) for check, version, kind, call, text in results]
    return faults([*rows, Result("leaks", 6, "passed")], PROFILER_CODES, PROFILER)


def test_a_crash_at_one_call_is_one_fault_whatever_the_event() -> None:
    why = "it followed a NULL pointer"
    (fault,) = of_profiler(
        ("collective", 6, "died", "startEvent", f"SIGSEGV in startEvent of Coll AllReduce seq 7: {why}"),
        ("p2p", 6, "died", "startEvent", f"SIGSEGV in startEvent of P2p Send peer 1: {why}"),
        ("p2p", 4, "died", "startEvent", f"SIGSEGV in startEvent of ProxyStep step 0: {why}"),
    )
    assert fault.checks == {"collective": (6,), "p2p": (6, 4)} and fault.count == 3
    assert fault.explanation == "3 failures: collective with v6; p2p with v6, v4. Shown is collective (v6)."
    assert fault.next_step.startswith("Check each pointer before you use it.")


def test_another_call_signal_reason_or_rule_is_another_fault() -> None:
    found = of_profiler(
        ("collective", 6, "died", "startEvent", "SIGSEGV in startEvent of Coll AllReduce seq 7"),
        ("collective", 5, "died", "stopEvent", "SIGSEGV in stopEvent of Coll AllReduce seq 7"),
        ("p2p", 6, "died", "startEvent", "SIGABRT in startEvent of P2p Send peer 1"),
        ("p2p", 5, "died", "startEvent", "SIGSEGV in startEvent of P2p Send peer 1: it followed a NULL pointer"),
        ("group", 6, "contract", "startEvent", "handle-twice in startEvent: 0x7f01 is open; event: Group"),
        ("group", 5, "contract", "startEvent", "handle-again in startEvent: 0x7f01 is open; event: Group"),
    )
    assert len(found) == 6 and {fault.count for fault in found} == {1}


def test_numbers_and_handles_make_no_other_fault() -> None:
    (one,) = of_profiler(
        ("group", 6, "contract", "startEvent", "handle-twice in startEvent: 0x7f01 is the handle of 3 events; event: Group"),
        ("order", 6, "contract", "startEvent", "handle-twice in startEvent: 0x7e99 is the handle of 9 events; event: Coll"),
    )  # fmt: skip
    assert (one.count, one.next_step) == (2, "Give each open event a handle of its own, or NULL.")


def test_the_advice_of_a_check_stands_for_this_check_alone() -> None:
    text = "something new in startEvent"
    (alone,) = of_profiler(("group", 6, "contract", "startEvent", text))
    assert alone.next_step == PROFILER["group"].next_step and alone.explanation.startswith("Check group with v6. ")
    (both,) = of_profiler(("group", 6, "contract", "startEvent", text), ("p2p", 6, "contract", "startEvent", text))
    assert both.next_step == CODES["PSM921"].next_step


def test_a_crash_gets_the_advice_for_a_crash_not_that_of_its_check() -> None:
    text = "SIGSEGV in startEvent of Coll AllReduce seq 7, at libmine.so+0x12ab"
    (crash,) = of_profiler(("growth", 6, "died", "startEvent", text))
    assert "addr2line" in crash.next_step and crash.next_step != PROFILER["growth"].next_step
    (leak,) = of_profiler(("growth", 6, "leak", "", "40 bytes more for each group call"))
    assert leak.next_step == PROFILER["growth"].next_step


def test_net_plugins_have_faults_too() -> None:
    results = [
        Result("slots", 8, "failed", "isend is NULL in ncclNetPlugin_v8", "contract", "", 0),
        Result("slots", 9, "failed", "isend is NULL in ncclNetPlugin_v9", "contract", "", 0),
        Result("zero", 9, "failed", "the process died by SIGSEGV in isend", "died", "isend", 1),
    ]
    died, slots = sorted(faults(results, NET_CODES, NET, 2), key=lambda fault: fault.count)
    assert slots.checks == {"slots": (8, 9)} and slots.next_step.startswith("Fill the slot")
    assert died.next_step == NET["zero"].next_step and "The last call on rank 1 was isend." in died.explanation


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drive_libraries.profiler(tmp_path_factory.mktemp("broken"))


def test_one_bug_of_a_profiler_is_printed_once(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "state-fails")
    monkeypatch.setenv("COLUMNS", "1000")
    only = [word for name in ("collective", "p2p", "group", "order") for word in ("--only", name)]
    newest, older = PROFILER_VERSIONS[0], 4
    assert main(["plugin", "drive", str(library), *only, "--version", f"{newest},{older}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    words = Counter(line.split()[0] for line in lines if line.startswith(("error", "warning")))
    assert words == {"warning": 1}, lines
    assert any(line.startswith("warning PSM921 4 checks: ") and "recordEventState returned 3" in line for line in lines)
    assert (
        f"  8 failures: collective, p2p, group, order with v{newest}, v{older}. Shown is collective (v{newest})."
        in lines
    )
    assert "  next: Return ncclSuccess, also for states that you do not know." in lines
