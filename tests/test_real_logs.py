"""The logs in tests/data/logs get the verdicts that truth.toml writes down."""

from __future__ import annotations

import gzip
import lzma
import tomllib
from pathlib import Path
from typing import Any

import pytest
import zstandard

import psmkit

LOGS = Path(__file__).parent / "data" / "logs"
TRUTH: dict[str, dict[str, Any]] = tomllib.loads((LOGS / "truth.toml").read_text())


def counts(count: Any) -> list[int]:
    return [count.matched, count.pending, count.orphan]


@pytest.mark.parametrize("name", TRUTH)
def test_real_log_gets_its_verdict(name: str) -> None:
    truth = TRUTH[name]
    report = psmkit.analyze([str(LOGS / name)])
    shown = "\n".join(
        [f"{report.verdict}: {report.reason}", *(f"{f.code} {f.severity} {f.title}" for f in report.findings)]
    )
    assert report.verdict == truth["verdict"], shown
    assert [c.global_rank for c in report.culprits] == truth["culprits"], shown
    for kind in ("proxy_calls", "fd_exchanges"):
        if kind in truth:
            assert counts(getattr(report.matching, kind)) == truth[kind], shown
    if truth.get("no_errors"):
        assert not [f for f in report.findings if f.severity == "error"], shown


@pytest.mark.parametrize("name", TRUTH)
def test_evidence_quotes_lines_that_stand_in_the_file(name: str) -> None:
    report = psmkit.analyze([str(LOGS / name)])
    for finding in report.findings:
        for evidence in finding.evidence:
            path = Path(evidence.file)
            if path.suffix == ".gz":
                continue
            line = path.read_bytes().split(b"\n")[evidence.line - 1].decode(errors="replace").rstrip("\r")
            assert evidence.text.strip() in line, (finding.code, str(evidence))


def test_every_log_has_its_truth() -> None:
    found = {p.name for p in LOGS.iterdir() if p.is_dir() or p.suffix in (".log", ".gz")}
    assert found == set(TRUTH)


def test_compressed_logs_give_the_same_report(tmp_path: Path) -> None:
    """Lines of compressed input are quoted in one pass at the end: the same lines, whatever asked for them first."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.mkdir()
    packed.mkdir()
    packers = [gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress, gzip.compress]
    for path, pack in zip(sorted((LOGS / "fault_e1_n4_rank1_cumem_import_oom").iterdir()), packers, strict=True):
        (plain / path.name).write_bytes(path.read_bytes())
        (packed / path.name).write_bytes(pack(path.read_bytes()))
    one, other = psmkit.analyze([str(plain)]), psmkit.analyze([str(packed)])
    assert (one.verdict, one.reason) == (other.verdict, other.reason)
    assert [f.title for f in one.findings] == [f.title for f in other.findings]
    assert [[(e.line, e.text) for e in f.evidence] for f in one.findings] == [
        [(e.line, e.text) for e in f.evidence] for f in other.findings
    ]
    assert any(e.text for f in other.findings for e in f.evidence)
