"""``psmkit plugin drive`` of a tuner: its findings as a table or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from psmkit.cli.output import progress_line, show, show_page, width
from psmkit.plugins.drive_tuner import CHECKS, TunerDrive, drive_tuner, tuner_versions

__all__ = ["run"]

SCHEMA = "psmkit.plugin-drive-tuner/1"
_WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "-"}


def run(
    lib: Path,
    *,
    ranks: int,
    versions: Sequence[int] | str | None,
    timeout: float,
    settings: Mapping[str, str],
    form: str,
) -> int:
    """Call the tuner, show the findings, and return the exit status."""
    chosen = tuner_versions(lib) if isinstance(versions, str) else versions
    with progress_line() as tell:
        watch = None if tell is None else lambda version, check: tell(f"v{version}: {check}")
        done = drive_tuner(lib, ranks=ranks, versions=chosen, timeout=timeout, environment=settings, watch=watch)
    if form == "json":
        show(json.dumps(_plain(done), indent=2) + "\n")
    else:
        _text(done)
    return 1 if done.failed else 0


def _plain(done: TunerDrive) -> dict[str, object]:
    from psmkit.report.data import characters, finding_dict

    return {
        "schema": SCHEMA,
        "library": characters(str(done.path)),
        "ranks": done.ranks,
        "versions": list(done.versions),
        "clean": not done.failed,
        "nanoseconds": {str(version): ns for version, ns in done.nanoseconds.items()},
        "results": [asdict(result) for result in done.results],
        "findings": [finding_dict(finding) for finding in done.findings],
    }


def _text(done: TunerDrive) -> None:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    page = Page(width(sys.stdout))
    head = Span(f"{len(done.failed)} failed", "error") if done.failed else Span("green", "healthy")
    page.add(head, Span(f": {done.path.name}", "heading"))
    page.wrap(f"tuner {', '.join(f'v{version}' for version in done.versions)}; {done.ranks} ranks")
    page.blank()
    of = {(result.check, result.version): result for result in done.results}
    rows = [[name, *(_WORDS[of[name, version].outcome] for version in done.versions)] for name in CHECKS]
    times = [f"{done.nanoseconds[v]:.0f} ns" if v in done.nanoseconds else "" for v in done.versions]
    lines = fit(["check", *(f"v{version}" for version in done.versions)], [*rows, ["a call", *times]], page.width - 2)
    page.add("  ", Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add("  ", line)
    for finding in done.findings:
        page.blank()
        lead = Span(f"{finding.severity.value} {finding.code} ", finding.severity.value)
        page.wrap(finding.title, "heading", hang="  ", lead=lead)
        page.wrap(finding.explanation, indent="  ")
        page.wrap(f"next: {finding.next_step}", indent="  ")
    show_page(page)
