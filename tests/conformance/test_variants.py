"""The right variant passes whatever is asked of it; each wrong one does what it declares, and the analysis names it."""

from __future__ import annotations

import re

import pytest

from psmkit.lab import transfer
from psmkit.model import CODES, Severity, Verdict
from psmkit.model.symptoms import Shows
from tests.conformance.conftest import Declared, Run, Runner

SIZES = ("sizes=0,1,8191,8192,8193,300001", "iters=2", "offset=3")
FIFO = ("sizes=300001", "iters=3")
ZERO_COPY = ("sizes=300001", "iters=8", "registered=both", "buffers=vmm")

ALL = {name: v.symptoms for name, v in transfer.variants().items() if not name.startswith("net/")}
CONDITIONAL = [name for name, symptoms in ALL.items() if symptoms.shows & (Shows.SYNC_STREAM | Shows.ZERO_COPY)]
#: Of those that fail or hang: what the text of a rank, or the title of the finding, has. A variant needs no entry.
WORDS = {
    "whole-struct": r"cudaMemcpyAsync.*invalid resource handle",
    "lazy-stream-guard": r"cudaMemcpyAsync.*invalid resource handle",
    "clobber-events": r"cudaEventRecord.*invalid resource handle",
    "mode-split": r"the mode is CUMEM \(2\) at rank 0 and IPC \(3\) at rank 1",
    "lost-fd-reply": r"GetFd",
    "late-response": r"no answer to Setup",
    "whole-struct-zero": "8 copies on its stream 0x0 are not done",
    "directptr": "this is the legacy stream",
    # An offer that comes between the sender's two looks is taken after all, so a later one may be the lost one.
    "erased-flag": r"the offer of operation [2-8] is lost",
}
#: What stands still beside that: the arguments, who stopped (None: no rank is named), and a pattern of the words.
HANGS = [
    ("whole-struct-zero", (*FIFO, "stream=blocking"), 0, "8 copies on its stream 0x0 are not done"),
    ("directptr", (*FIFO, "stream=legacy"), 0, "this is the legacy stream"),
    ("directptr", (*FIFO, "stream=blocking"), 0, "this is the legacy stream"),
    ("erased-flag", ZERO_COPY, None, WORDS["erased-flag"]),
]


#: What is said of a run in which a fault was asked for.
FAULT = {"PSM605"}


def passed(run: Run) -> None:
    assert run.code == 0, run.text[-4000:]
    assert set(run.ended.values()) == {"PSM_OK"} and "WRONG DATA" not in run.text


def test_every_wrong_variant_declares_its_symptoms(variants: dict[str, Declared]) -> None:
    assert set(variants) == set(ALL)
    assert [v.name for v in variants.values() if not v.wrong] == ["split"]
    for v in variants.values():
        assert bool(v.outcome) == v.wrong and v.symptoms.verdict is not None
        assert v.symptoms.codes or v.symptoms.verdict is Verdict.HEALTHY
        assert set(v.symptoms.codes) <= set(CODES)
        # The sentence for people names the same finding.
        assert re.findall(r"^PSM\d{3}", v.outcome) == list(v.symptoms.codes[:1])


@pytest.mark.parametrize(
    ("way", "stream"), [(way, kind) for way in ("fifo", "zero-copy") for kind in ("legacy", "blocking", "nonblocking")]
)
def test_right_variant_moves_the_data_and_leaves_nothing(run: Runner, way: str, stream: str) -> None:
    done = run("split", *SIZES, *(ZERO_COPY[2:] if way == "zero-copy" else ()), f"stream={stream}")
    passed(done)
    assert done.codes() == set(), [f.title for f in done.report.findings]


@pytest.mark.parametrize("name", ALL)
def test_variant_does_what_it_declares_where_its_mistake_shows(
    run: Runner, variants: dict[str, Declared], end: str, name: str
) -> None:
    one = variants[name]
    if one.faults and end == "standin":
        pytest.skip("the stand-in has no answers that can be lost, late or doubled")
    symptoms = one.symptoms
    way = ZERO_COPY if Shows.ZERO_COPY in symptoms.shows else FIFO
    hangs = symptoms.verdict is Verdict.HUNG
    done = run(name, *way, "stream=legacy", hangs=hangs and Shows.BY_LUCK not in symptoms.shows)
    if Shows.BY_LUCK in symptoms.shows and done.code == 0:
        return
    titles = [f.title for f in done.report.findings]
    if symptoms.verdict in (Verdict.HEALTHY, Verdict.LEAKING):
        passed(done)
        assert done.codes() - FAULT == set(symptoms.codes), titles
        # The driver does not say how its ranks ended, as the lab does: healthy cannot be proven.
        assert done.report.verdict not in (Verdict.FAILED, Verdict.HUNG), titles
    else:
        assert (done.code is None) == hangs and done.code != 0, done.text[-4000:]
        assert done.codes(Severity.ERROR) & set(symptoms.codes), titles
        assert re.search(WORDS.get(name, ""), done.text + "\n".join(titles))
        assert done.report.verdict is symptoms.verdict, titles
    if symptoms.status:
        assert symptoms.status in done.ended.values() and "PSM_OK" not in done.ended.values()
        assert any(re.search(WORDS.get(name, ""), text) for text in done.said(symptoms.status)), done.text[-4000:]


@pytest.mark.parametrize("name", CONDITIONAL)
def test_variant_passes_where_its_mistake_does_not_show(run: Runner, variants: dict[str, Declared], name: str) -> None:
    symptoms = variants[name].symptoms
    done = run(name, *SIZES, "stream=nonblocking")
    passed(done)
    assert done.codes() == ({"PSM505"} if symptoms.leaves else set()), [f.title for f in done.report.findings]
    if symptoms.leaves:
        assert all(word.removesuffix("s") in done.finding("PSM505").title for word in symptoms.left.split(", "))


def test_second_answer_is_refused_by_its_generation_and_reported(run: Runner, end: str) -> None:
    if end == "standin":
        pytest.skip("the stand-in has no answers that can come twice")
    done = run("dup-response", *SIZES)
    assert "PSM_FAULTS: duplicate at proxy.response" in done.text
    found = done.finding("PSM104")
    assert found.severity is Severity.WARNING and "and dropped it" in found.title
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
    run: Runner, name: str, arguments: tuple[str, ...], culprit: int | None, words: str
) -> None:
    done = run(name, *arguments, hangs=True)
    assert done.code is None, done.text[-4000:]
    found = done.finding("PSM307")
    assert found.severity is Severity.ERROR and re.search(words, found.title)
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
