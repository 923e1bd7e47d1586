"""Whether ``psmkit analyze`` says the same of logs and of what ``psmkit scrub`` writes of them.

    python -m tests.scrub.verdicts [FOLDER...]

compares for each input of tests/analysis/frozen.py, or for each entry of the folders; the exit status is 1 where something differs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psmkit
from psmkit.model import Report
from psmkit.model.errors import PsmkitError
from psmkit.scrub import scrub
from tests.analysis.frozen import inputs


def said(path: Path) -> dict[str, Any]:
    """What scrubbing must not change of the report about an input."""
    try:
        report = psmkit.analyze([str(path)])
    except PsmkitError as error:
        return {"error": type(error).__name__}
    return essence(report)


def essence(report: Report) -> dict[str, Any]:
    """Verdict, culprits, findings with their lines, and the table of ranks."""
    return {
        "verdict": report.verdict.name,
        "confidence": report.confidence,
        "runs": [run.verdict.name for run in report.runs],
        "culprits": [(c.rank, c.host is None, c.pid is None) for c in report.culprits],
        "findings": [
            (f.code, f.severity.name, f.confidence, tuple(f.suspects), sorted(e.line for e in f.evidence))
            for f in report.findings
        ],
        "ranks": sorted((str(r.rank), r.state, r.host is None) for r in report.ranks),
        "lines": report.coverage.lines if hasattr(report.coverage, "lines") else None,
    }


def differences(path: Path, folder: Path) -> Iterator[str]:
    """What differs between an input and its scrubbed copy, which is written below ``folder``."""
    out = folder / "scrubbed"
    before = said(path)
    try:
        result = scrub(str(path), str(out / path.name if path.is_file() else out))
    except PsmkitError as error:
        if "error" not in before:
            yield f"cannot be scrubbed: {error}"
        return
    after = said(out / path.name if path.is_file() else out)
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            yield f"{key}: {before.get(key)!r} became {after.get(key)!r}"
    for left in result.checked.left[:5]:
        yield f"left: {left.line} {left.kind} {left.text}"
    shutil.rmtree(out)


def main(folders: list[str]) -> int:
    """Compare, and say what differs."""
    bad = number = 0
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "in").mkdir()
        found = (
            (
                (f"{folder}/{path.name}", path)
                for folder in folders
                for path in sorted(Path(folder).iterdir())
                if path.suffix not in (".toml", ".md")
            )
            if folders
            else inputs(Path(made) / "in")
        )
        for name, path in found:
            number += 1
            differing = list(differences(path, Path(made)))
            if differing:
                bad += 1
                print(f"--- {name}", *differing, sep="\n  ", flush=True)
    print(f"{number} inputs, {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
