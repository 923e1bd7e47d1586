"""Damaged and dressed copies of logs: nothing crashes, and nothing that failed is ever called healthy."""

from __future__ import annotations

import functools
import random
import tomllib
import zlib
from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from tests.loggen import generate
from tests.mutilate import CUTS, DAMAGE, DRESS, Files, Way

LOGS = Path(__file__).parent / "data" / "logs"
TRUTH = {name: truth["verdict"] for name, truth in tomllib.loads((LOGS / "truth.toml").read_text()).items()}

GENERATED = {
    ("healthy_both", "2.18"): "healthy",
    ("healthy_sendrecv", "2.21"): "healthy",
    ("healthy_split", "2.27"): "healthy",
    ("healthy_both", "2.30"): "healthy",
    ("healthy_both", "passsm"): "healthy",
    ("kill_in_setup", "2.27"): "failed",
    ("kill_at_work", "2.18"): "failed",
    ("stop_in_setup", "2.30"): "hung",
    ("stop_at_work", "passsm"): "hung",
    ("other_operation", "2.21"): "hung",
    ("fd_answer_lost", "2.27"): "hung",
    ("import_fails", "passsm"): "failed",
    ("kernel_fails", "2.30"): "failed",
}
SUBJECTS = [*TRUTH, *("/".join(key) for key in GENERATED)]
VERDICTS = {**TRUTH, **{"/".join(key): verdict for key, verdict in GENERATED.items()}}
HEALTHY = [s for s in SUBJECTS if VERDICTS[s] == "healthy"]
FAULTY = [s for s in SUBJECTS if VERDICTS[s] in ("failed", "hung")]


@functools.cache
def load(subject: str) -> Files:
    if subject in TRUTH:
        path = LOGS / subject
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return {
            f.name.removesuffix(".gz"): zlib.decompress(f.read_bytes(), 31) if f.suffix == ".gz" else f.read_bytes()
            for f in files
        }
    log = generate(*subject.split("/"), seed=7)
    return {name: text.encode() for name, text in log.files().items()}


def analyze(subject: str, way: Way, seed: int, folder: Path) -> Report:
    changed = way(load(subject), random.Random(f"{subject} {seed}"))
    for name, data in changed.items():
        (folder / name).write_bytes(data)
    return psmkit.analyze([str(folder)])


def explain(report: Report) -> str:
    lines = [f"{report.verdict}: {report.reason}"]
    for finding in report.findings:
        lines += [
            f"  {finding.code} {finding.severity} {finding.title}",
            *(f"    {e}: {e.text[:150]}" for e in finding.evidence[:3]),
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("way", DRESS)
@pytest.mark.parametrize("subject", HEALTHY)
def test_healthy_log_stays_healthy_in_any_dress(subject: str, way: str, tmp_path: Path) -> None:
    report = analyze(subject, DRESS[way], 1, tmp_path)
    assert report.verdict == "healthy", explain(report)
    assert not [f for f in report.findings if f.severity == "error"], explain(report)


@pytest.mark.parametrize("way", DRESS)
@pytest.mark.parametrize("subject", [*FAULTY, "passsm-8gpu.log"])
def test_faulty_log_keeps_its_verdict_in_any_dress(subject: str, way: str, tmp_path: Path) -> None:
    report = analyze(subject, DRESS[way], 1, tmp_path)
    assert report.verdict in {VERDICTS[subject], "inconclusive"}, explain(report)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", CUTS)
@pytest.mark.parametrize("subject", HEALTHY)
def test_healthy_log_without_its_end_is_inconclusive(subject: str, way: str, seed: int, tmp_path: Path) -> None:
    report = analyze(subject, CUTS[way], seed, tmp_path)
    assert report.verdict == "inconclusive", explain(report)
    assert report.reason


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", {**CUTS, **DAMAGE})
@pytest.mark.parametrize("subject", [*FAULTY, "passsm-8gpu.log"])
def test_faulty_log_never_becomes_healthy(subject: str, way: str, seed: int, tmp_path: Path) -> None:
    assert analyze(subject, {**CUTS, **DAMAGE}[way], seed, tmp_path).verdict != "healthy"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", DAMAGE)
@pytest.mark.parametrize("subject", HEALTHY)
def test_damage_to_a_healthy_log_is_not_a_crash_of_psmkit(subject: str, way: str, seed: int, tmp_path: Path) -> None:
    report = analyze(subject, DAMAGE[way], seed, tmp_path)
    assert report.coverage.lines > 0
    # A line that is lost may look like a call that was never answered, but not like a death.
    assert report.verdict in ("healthy", "inconclusive", "hung", "leaking"), explain(report)


@pytest.mark.parametrize("subject", HEALTHY)
def test_the_same_log_twice_is_two_runs_or_one_but_not_an_error(subject: str, tmp_path: Path) -> None:
    files = load(subject)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data + data)
    assert psmkit.analyze([str(tmp_path)]).verdict == "healthy"


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_no_crash(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    text = b"\n".join(load("ok_n4_psm_64K").values())
    pieces = []
    for _ in range(400):
        at = rng.randrange(len(text) - 200)
        pieces.append(
            rng.choice(
                [
                    text[at : at + rng.randrange(200)],
                    rng.randbytes(rng.randrange(40)),
                    b"NCCL INFO ",
                    b"\n",
                    b"\r\n",
                    b"{",
                    b"\x00" * 9,
                ]
            )
        )
    (tmp_path / "job.log").write_bytes(b"h:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n" + b"".join(pieces))
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict != "healthy"
