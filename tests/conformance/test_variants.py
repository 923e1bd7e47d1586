"""The right variant passes whatever is asked of it; each wrong one does what it declares, and the analysis names it."""

from __future__ import annotations

import re

import pytest

from psmkit.model import Severity, Verdict
from tests.conformance.conftest import Declared, Run, Runner

SIZES = ("sizes=0,1,8191,8192,8193,300001", "iters=2", "offset=3")
FIFO = ("sizes=300001", "iters=3")
ZERO_COPY = ("sizes=300001", "iters=3", "registered=both", "buffers=vmm")

#: What passes: the right one, and those whose mistake does not show there.
PASSES = {
    "split": [
        *((way, f"stream={kind}") for way in ("fifo", "zero-copy") for kind in ("legacy", "blocking", "nonblocking"))
    ],
    "shallow": [("fifo", "stream=legacy"), ("zero-copy", "stream=legacy")],
    "directptr": [("fifo", "stream=nonblocking")],
    "erased-flag": [("fifo", "stream=legacy")],
}
#: What is left to the end of the process, though the data is right.
LEAKS = {"no-free": "stream=legacy", "whole-struct-zero": "stream=nonblocking"}
#: What fails: the status of the rank, and what its text or the sanitizer's line has.
FAILS = {
    "whole-struct": ("PSM_ERR_CUDA", r"cudaMemcpyAsync.*invalid resource handle"),
    "lazy-stream-guard": ("PSM_ERR_CUDA", r"cudaMemcpyAsync.*invalid resource handle"),
    "clobber-events": ("PSM_ERR_CUDA", r"cudaEventRecord.*invalid resource handle"),
    "mode-split": ("PSM_ERR_MISMATCH", r"the mode is CUMEM \(2\) at rank 0 and IPC \(3\) at rank 1"),
    "lost-fd-reply": ("PSM_ERR_TIMEOUT", r"GetFd"),
    "late-response": ("PSM_ERR_TIMEOUT", r"no answer to Setup"),
}
#: What stands still: the arguments, who stopped (None: it is not told), and in what words.
HANGS = [
    ("whole-struct-zero", (*FIFO, "stream=legacy"), 0, "8 copies on its stream 0x0 are not done"),
    ("whole-struct-zero", (*FIFO, "stream=blocking"), 0, "8 copies on its stream 0x0 are not done"),
    ("directptr", (*FIFO, "stream=legacy"), 0, "this is the legacy stream"),
    ("directptr", (*FIFO, "stream=blocking"), 0, "this is the legacy stream"),
    ("erased-flag", ZERO_COPY, None, "the offer of operation 2 is lost"),
]
OTHERS = {"stale-event", "dup-response"}


#: What is said of a run in which a fault was asked for.
FAULT = {"PSM605"}


def passed(run: Run) -> None:
    assert run.code == 0, run.text[-4000:]
    assert set(run.ended.values()) == {"PSM_OK"} and "WRONG DATA" not in run.text


def test_no_variant_is_left_out(variants: dict[str, Declared]) -> None:
    held = {*PASSES, *LEAKS, *FAILS, *(name for name, *_ in HANGS), *OTHERS}
    assert set(variants) == held
    assert [v.name for v in variants.values() if not v.wrong] == ["split"]
    assert all(bool(v.outcome) == v.wrong for v in variants.values())


@pytest.mark.parametrize(("name", "way", "stream"), [(name, *case) for name, cases in PASSES.items() for case in cases])
def test_right_data_and_nothing_to_say(run: Runner, name: str, way: str, stream: str) -> None:
    extra = ZERO_COPY[2:] if way == "zero-copy" else ()
    done = run(name, *SIZES, *extra, stream)
    passed(done)
    assert done.codes() == set(), [f.title for f in done.report.findings]


@pytest.mark.parametrize("name", LEAKS)
def test_what_is_not_given_back_is_told(run: Runner, variants: dict[str, Declared], name: str) -> None:
    done = run(name, *SIZES, LEAKS[name])
    passed(done)
    assert "PSM505" in done.codes()
    assert "stream" in done.finding("PSM505").title
    assert "leaves" in variants[name].outcome or "left" in variants[name].outcome


@pytest.mark.parametrize("name", FAILS)
def test_failure_has_the_declared_status_and_finding(
    run: Runner, variants: dict[str, Declared], end: str, name: str
) -> None:
    if variants[name].faults and end == "standin":
        pytest.skip("the stand-in has no answers that can be lost or late")
    done = run(name, *FIFO)
    status, words = FAILS[name]
    assert done.code not in (0, None), done.text[-4000:]
    assert status in done.ended.values() and "PSM_OK" not in done.ended.values()
    assert any(re.search(words, text) for text in done.said(status)), done.text[-4000:]
    code = variants[name].outcome.partition(":")[0]
    assert code in done.codes(Severity.ERROR), [f.title for f in done.report.findings]
    assert done.report.verdict is Verdict.FAILED


def test_second_answer_is_refused_by_its_generation_and_told(
    run: Runner, variants: dict[str, Declared], end: str
) -> None:
    if end == "standin":
        pytest.skip("the stand-in has no answers that can come twice")
    done = run("dup-response", *SIZES)
    assert "PSM_FAULTS: duplicate at proxy.response" in done.text
    passed(done)
    assert done.codes() - FAULT == {variants["dup-response"].outcome.partition(":")[0]}, [
        f.title for f in done.report.findings
    ]
    found = done.finding("PSM104")
    assert found.severity is Severity.WARNING and "and dropped it" in found.title
    assert done.report.verdict is not Verdict.FAILED
    # One line each: neither rank took the answer for that of a call that it made later.
    refused = re.findall(r"psm refused a second answer: opId=(\w+)", done.text)
    assert len(refused) == len(set(refused)) == len(re.findall("PSM_FAULTS: duplicate", done.text))


@pytest.mark.parametrize("share", ["cumem", "memfd"])
def test_foreign_handles_are_named_with_their_owner_in_each_mode(run: Runner, share: str) -> None:
    done = run("whole-struct", *FIFO, "stream=legacy", PSM_SHARE=share)
    assert done.code not in (0, None)
    found = done.finding("PSM507")
    assert "cudaMemcpyAsync got stream" in found.title and "belongs to" in found.title


@pytest.mark.parametrize("share", ["posix", "cuda-ipc"])
def test_shares_without_room_for_a_mistake_refuse_it(run: Runner, share: str) -> None:
    done = run("whole-struct", *FIFO, PSM_SHARE=share)
    assert done.code not in (0, None)
    assert any("set PSM_SHARE" in text for text in done.said("PSM_ERR_UNSUPPORTED"))


@pytest.mark.parametrize(("name", "arguments", "culprit", "words"), HANGS)
def test_hang_is_proven_by_what_both_ends_recorded(
    run: Runner, variants: dict[str, Declared], name: str, arguments: tuple[str, ...], culprit: int | None, words: str
) -> None:
    done = run(name, *arguments, hangs=True)
    assert done.code is None, done.text[-4000:]
    assert variants[name].outcome.startswith("PSM307")
    found = done.finding("PSM307")
    assert found.severity is Severity.ERROR and words in found.title
    assert found.culprits == (() if culprit is None else (culprit,))
    assert done.report.verdict is Verdict.HUNG and done.report.reason.startswith("rank 0 -> rank 1, channel 0: still")
    assert found.explanation is not None and "recvTail=" in found.explanation and "canSend=" in found.explanation


def test_stall_of_an_erased_offer_says_what_each_side_sees(run: Runner) -> None:
    done = run("erased-flag", *ZERO_COPY, hangs=True)
    assert re.search(
        r"psm p2p send .*its offer is no longer in the control segment, and this side never took it", done.text
    )
    assert re.search(r"psm p2p recv .*the zero-copy offer, which is no longer in the control segment", done.text)
    assert "to post its recv" not in done.text


def test_stale_event_is_told_and_shows_in_the_data(run: Runner) -> None:
    """A buffer so large that its copies take long; where they were done in time after all, the report is what is seen."""
    done = run("stale-event", "sizes=67108864", "iters=2", PSM_BUFFER_SIZE="32M")
    assert "PSM513" in done.codes()
    assert "WRONG DATA" in done.text or done.code == 0
