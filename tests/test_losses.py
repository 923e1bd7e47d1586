"""Losses with a known truth: a lost tail never makes a hang or a culprit, a stall makes a suspect, and time makes it a culprit.

PSMKIT_LOSSES=every tries every line and every site instead of step boundaries; `make nightly` does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from psmkit.synth.surroundings import watchdog
from tests.loggen import Job, Plan, generate
from tests.losses import SITES, boundaries, cut_each, lose_tail, merged_tail, stalled
from tests.mutilate import Files
from tests.test_mutilated import explain, load

EVERY = os.environ.get("PSMKIT_LOSSES") == "every"
# A log of each kind: init only in connections, work that connects late, descriptors, copies without SMs, several communicators.
HEALTHY = (
    "healthy_both/2.18",
    "healthy_sendrecv/2.21",
    "healthy_split/2.27",
    "healthy_both/2.30",
    "healthy_both/passsm",
)
REAL = ("ok_n4_psm_64K", "ok_n4_2nodes_psmnet")
STALLED = 2
WORK = Plan(work="both", steps=6, ahead=3)


def ras(job: Job) -> None:
    """The neighbours of the stopped process report its silence."""
    job.ras_stall(job.processes[STALLED])


def timeout(job: Job) -> None:
    """The watchdogs of all other processes report a timeout."""
    watchdog(job, frozenset({STALLED}))


def analyze(files: Files, folder: Path) -> Report:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return psmkit.analyze([str(folder)])


def some(places: list[int], most: int) -> list[int]:
    """``most`` of the places, evenly spread; all of them at night."""
    return places if EVERY or len(places) <= most else places[:: -(-len(places) // most)]


def culprits(report: Report) -> set[int | None]:
    return {culprit.global_rank for culprit in report.culprits}


def suspects(report: Report) -> list[int | None]:
    return [suspect.rank for suspect in report.suspects]


@pytest.mark.parametrize("subject", [*HEALTHY, *REAL])
def test_lost_tail_of_a_rank_is_no_hang_and_no_culprit(subject: str, tmp_path: Path) -> None:
    files = load(subject)
    name = sorted(files)[1]
    for keep in some(list(boundaries(files[name], every=EVERY)), 9 if subject in REAL else 12):
        report = analyze(lose_tail(files, name, keep), tmp_path)
        assert report.verdict in ("inconclusive", "healthy"), f"{keep} lines: {explain(report)}"
        assert not culprits(report), f"{keep} lines: {explain(report)}"


@pytest.mark.parametrize("subject", HEALTHY)
def test_lost_tail_in_a_shared_stream_is_no_hang_and_no_culprit(subject: str, tmp_path: Path) -> None:
    merged = generate(*subject.split("/"), seed=7).merged().encode()
    ours = [line for line in merged.split(b"\n") if b":6002:" in line]
    for keep in some(list(range(4, len(ours))), 8):
        report = analyze({"job.log": merged_tail(merged, b":6002:", keep)}, tmp_path)
        assert report.verdict in ("inconclusive", "healthy"), f"{keep} lines: {explain(report)}"


@pytest.mark.parametrize("subject", [*HEALTHY, *REAL])
def test_files_cut_on_their_own_are_inconclusive(subject: str, tmp_path: Path) -> None:
    for seed in range(200 if EVERY else 4 if subject in REAL else 6):
        report = analyze(cut_each(load(subject), random.Random(f"{subject} {seed}")), tmp_path)
        assert report.verdict == "inconclusive", f"seed {seed}: {explain(report)}"
        assert not culprits(report), f"seed {seed}: {explain(report)}"


# Before 2.19 no line shows that a rank maps memory, so one that stops there prints what its peers print.
# Before 2.24 no line shows how far a rank came in the bootstrap ring.
RING = ("bootstrap", "address", "ring")
UNSEEN = {("2.18", "import"), *((dialect, site) for dialect in ("2.18", "2.21") for site in RING)}


@pytest.mark.parametrize("dialect", ["2.18", "2.21", "2.27", "2.30", "passsm"])
def test_stalled_rank_is_the_suspect_and_no_culprit_without_a_proof_of_time(dialect: str, tmp_path: Path) -> None:
    named = tried = 0
    for site in SITES:
        for nth in (1, 2, 3, 5) if EVERY else (1, 3):
            files, job = stalled(dialect, WORK, site, STALLED, nth)
            if not job.processes[STALLED].stopped:
                continue
            report = analyze(files, tmp_path / f"{site} {nth}")
            assert report.verdict == "inconclusive", f"{site} {nth}: {explain(report)}"
            assert not culprits(report), f"{site} {nth}: {explain(report)}"
            assert suspects(report) in ([], [STALLED]), f"{site} {nth}: {report.suspects} {explain(report)}"
            rivals = [f for f in report.findings if f.code == "PSM202"]
            assert not rivals, f"{site} {nth}: {rivals}"
            if (dialect, site) not in UNSEEN:
                tried += 1
                named += suspects(report) == [STALLED]
                assert "no proxy call is open" not in report.reason, f"{site} {nth}: {explain(report)}"
    assert tried >= 8
    # a request to the proxy of a peer shows only where that proxy takes it: either end of such a request may be the one that stopped
    assert named >= 0.85 * tried, f"{named} of {tried}"


@pytest.mark.parametrize("dialect", ["2.27", "2.30", "passsm"])
def test_stalled_rank_is_the_culprit_with_a_proof_of_time(dialect: str, tmp_path: Path) -> None:
    for site in SITES:
        if site in RING:
            continue  # RAS connects the processes after the bootstrap, so it reports nobody there
        for nth in (1, 2, 3, 5) if EVERY else (1,):
            files, job = stalled(dialect, WORK, site, STALLED, nth, proof=ras)
            if not job.processes[STALLED].stopped:
                continue
            report = analyze(files, tmp_path / f"{site} {nth}")
            assert (report.verdict, culprits(report)) == ("hung", {STALLED}), f"{site} {nth}: {explain(report)}"
            assert not report.suspects


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize(
    ("dialect", "site", "proof"),
    [
        ("2.21", "collective", timeout),
        ("2.27", "collective", ras),
        ("2.30", "setup recv", ras),
        ("passsm", "collective", None),
        ("passsm", "setup send", ras),
    ],
)
def test_lost_tail_beside_a_stalled_rank_is_never_blamed(
    dialect: str, site: str, proof: Callable[[Job], None] | None, victim: int, tmp_path: Path
) -> None:
    files, _ = stalled(dialect, WORK, site, STALLED, 3, proof=proof)
    name = f"nccl.rank{victim}.log"
    for keep in some(list(boundaries(files[name], every=EVERY)), 8):
        report = analyze(lose_tail(files, name, keep), tmp_path)
        assert culprits(report) <= {STALLED}, f"{keep} lines: {explain(report)}"
        if proof is None:
            assert report.verdict == "inconclusive", f"{keep} lines: {explain(report)}"
