"""The net transport's right variant passes; each wrong one does what it declares, over the stand-in and in the lab, and the analysis names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import psmkit
from psmkit.lab import declared, transfer
from psmkit.lab.emulation import Emulation
from psmkit.model import Severity, Verdict
from tests.conformance.conftest import Declared, Runner

SIZES = ("sizes=0,1,8191,8192,8193,300001", "iters=2")
MANY = ("sizes=300001", "iters=2")
#: Messages of 16 MiB: more than the kernel takes before somebody reads.
LARGE = ("sizes=67108864", "iters=1")
LARGE_SLOTS = {"PSM_BUFFER_SIZE": "32M", "PSM_STEPS": "2"}

#: What fails: the status of the rank, and what its text has.
FAILS = {
    "whole-struct": ("PSM_ERR_CUDA", r"cudaMemcpyAsync.*invalid resource handle"),
    "wrong-size": ("PSM_ERR_PROTOCOL", r"sent a message of 64 bytes that says 8192, expected 8256 and 8192 bytes"),
}


def codes(report: psmkit.Report, at_least: Severity = Severity.WARNING) -> set[str]:
    return {f.code for f in report.findings if f.severity.weight >= at_least.weight}


def test_every_wrong_variant_declares_its_symptoms(net_variants: dict[str, Declared]) -> None:
    assert [v.name for v in net_variants.values() if not v.wrong] == ["split"]
    assert all(bool(v.outcome) == v.wrong for v in net_variants.values())
    assert all(v.symptoms.verdict is not None for v in net_variants.values())
    for v in net_variants.values():  # the sentence for people names the same finding
        assert re.findall(r"^PSM\d{3}", v.outcome) == list(v.symptoms.codes[:1])
    named = {f"net/{name}" for name in net_variants}
    assert named == {name for name in transfer.variants() if name.startswith("net/")}


def test_right_data_and_nothing_to_say(net_run: Runner) -> None:
    done = net_run("split", *SIZES, "stream=legacy")
    assert done.code == 0 and set(done.ended.values()) == {"PSM_OK"}, done.text[-4000:]
    assert done.codes() == set(), [f.title for f in done.report.findings]


def test_what_is_not_given_back_is_told(net_run: Runner, net_variants: dict[str, Declared]) -> None:
    done = net_run("no-free", *SIZES)
    assert set(done.ended.values()) == {"PSM_OK"} and "WRONG DATA" not in done.text
    assert set(net_variants["no-free"].symptoms.codes) <= done.codes()
    assert re.search(r"\d stream, \d+ events and \d allocations? of pinned memory", done.finding("PSM505").title)


@pytest.mark.parametrize("name", FAILS)
def test_failure_has_the_declared_status_and_finding(
    net_run: Runner, net_variants: dict[str, Declared], name: str
) -> None:
    done = net_run(name, *MANY)
    status, words = FAILS[name]
    assert done.code not in (0, None), done.text[-4000:]
    assert status in done.ended.values() and "PSM_OK" not in done.ended.values()
    assert any(re.search(words, text) for text in done.said(status)), done.text[-4000:]
    symptoms = net_variants[name].symptoms
    assert symptoms.status == status and set(symptoms.codes) & done.codes(Severity.ERROR), [
        f.title for f in done.report.findings
    ]
    assert done.report.verdict is symptoms.verdict


def test_slots_that_are_not_posted_again_stop_the_sender(net_run: Runner) -> None:
    done = net_run("lost-credit", *MANY, hangs=True)
    assert done.code is None, done.text[-4000:]
    found = done.finding("PSM307")
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))
    assert "rank 1, the receiver, stopped: it lets steps below 16 be filled and published 8" in found.title
    assert done.report.verdict is Verdict.HUNG


def test_messages_that_nobody_asks_for_any_more_are_in_the_network(net_run: Runner) -> None:
    """Where the kernel took them as fast as they were given to it, nothing is seen."""
    done = net_run("early-reuse", *LARGE, until="recv", **LARGE_SLOTS)
    if done.code == 0:
        assert set(done.ended.values()) == {"PSM_OK"} and "WRONG DATA" not in done.text
        return
    assert done.code is None, done.text[-4000:]
    found = done.finding("PSM307")
    assert found.severity is Severity.ERROR
    assert re.search(r"step \d+ was passed to the network by rank 0 and has not reached rank 1", found.title)
    assert done.report.verdict is Verdict.HUNG


def test_copies_that_are_not_awaited_are_told_and_show_in_the_data(net_run: Runner) -> None:
    """Where they were done in time after all, the report is what is seen."""
    done = net_run("early-send", *LARGE, **LARGE_SLOTS)
    assert "PSM513" in done.codes()
    assert "WRONG DATA" in done.text or done.code == 0


#: What the report of a run in the lab says. A variant needs no entry.
LAB_WORDS = {
    "split": "every byte",
    "whole-struct": "cudaMemcpyAsync got stream",
    "wrong-size": "PSM_ERR_PROTOCOL",
    "lost-credit": "it lets steps below 16 be filled and published 8",
    "no-free": "pinned memory",
}


@pytest.mark.parametrize("name", [name for name in transfer.variants() if name.startswith("net/")])
def test_lab_of_two_nodes_comes_to_what_is_declared(tmp_path: Path, name: str) -> None:
    """Over libpsm's proxy. Rank 0 sends to rank 1, and back."""
    variant = transfer.variants()[name]
    case = transfer.Case(variant=name, size=300001, steps=8, buffer_size=65536, timeout_ms=5000, stall_report_ms=300)
    deadline = 2.5 if variant.symptoms.verdict is Verdict.HUNG else 30
    lab = Emulation(tmp_path, leaks=True, stall_report=0)
    done = transfer.start([case], 2, tmp_path / "run", nodes=2, deadline=deadline, emulation=lab, stacks=False)
    report = psmkit.analyze([str(path) for path in done.evidence()])
    expected = declared.of_variant(variant, case, done.outcome.good)
    found = declared.found(report.verdict, codes(report), [])
    assert not expected.missing(found, done.outcome), [f.title for f in report.findings]
    assert LAB_WORDS.get(name.removeprefix("net/"), "") in report.reason + "".join(f.title for f in report.findings)
