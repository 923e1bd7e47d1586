"""``psmkit conformance``: Check a transport's variant against the whole contract, without a GPU."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import progress_line, show, show_page, width

if TYPE_CHECKING:
    from psmkit.conformance import Conformance, Result
    from psmkit.report.layout import Page

__all__ = ["command"]

SCHEMA = "psmkit.conformance/1"
_WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "-"}


@click.command(
    "conformance",
    cls=Command,
    examples=(
        "psmkit conformance mytransport.py:mine",
        "psmkit conformance libmytransport.so --only sizes --only death-copy --out evidence",
        "psmkit conformance whole-struct      # a broken variant of psmkit: does it fail as it declares?",
        "psmkit conformance --list",
    ),
)
@click.argument("variant", required=False)
@click.option("--only", metavar="CHECK", multiple=True, help="Run only this check; --list shows all. Repeatable.")
@click.option(
    "--deadline", type=click.FloatRange(1.0), default=30.0, help="Seconds after which a check has hung.  [30]"
)
@click.option(
    "--out", "folder", metavar="DIR", type=click.Path(path_type=Path), help="Keep the evidence of each check here."
)
@click.option("--list", "listing", is_flag=True, help="List the checks: what each requires.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(
    variant: str | None, only: tuple[str, ...], deadline: float, folder: Path | None, listing: bool, form: str
) -> int:
    """Run the conformance suite on VARIANT: a variant of the p2p transport from outside psmkit, or one of `psmkit variants`.

    VARIANT is FILE.py:NAME or MODULE:NAME, where NAME is a variant that the file registers, or a function that registers one; or
    libNAME.so, or libNAME.so:NAME, a C library that registers variants when it is loaded (docs/transport_guide.md). The checks run it in real processes, over emulated CUDA:
    set-up, data of many sizes in every mode, errors, the death of the peer at each step, leaks, and what crosses the wire.

    A variant that declares a mistake (wrong) must fail in the declared way: with the verdict, the finding and the status that it declares.

    Exit status: 0 no check failed; 1 a check failed; 2 the variant cannot be loaded or run.
    """
    from psmkit.conformance import run, selected
    from psmkit.lab.strangers import find

    if listing:
        return _list(form)
    if variant is None:
        raise click.UsageError("Missing argument 'VARIANT'.")
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.BadParameter(f"{folder} is not empty: name a new folder", param_hint="--out")
    stranger = find(variant)
    if stranger.variant.name.startswith("net/"):
        raise click.UsageError(f"{variant}: the suite is for variants of the p2p transport")
    total = len(selected(stranger, only))
    with progress_line() as tell:
        count = Counter[str]()

        def watch(name: str) -> None:
            count["begun"] += 1
            if tell is not None:
                tell(f"{count['begun']} of {total}: {name}")

        done = run(stranger, only=only, deadline=deadline, folder=folder, watch=watch)
    if form == "json":
        show(json.dumps(_plain(done), indent=2) + "\n")
    else:
        show_page(_page(done))
    return 0 if done.clean else 1


def _page(done: Conformance) -> Page:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    page = Page(width(sys.stdout))
    words = Counter(result.outcome for result in done.results)
    name = done.stranger.variant.name
    failed = words["failed"]
    head = (
        Span(f"{failed} failed", "error")
        if failed
        else Span("conforms" if done.clean else "nothing checked", "healthy")
    )
    page.add(head, Span(f": {done.stranger.text}", "heading"))
    kind = "declared wrong" if done.wrong else "declared right"
    page.wrap(f"variant {name}, {kind}; {words['passed']} passed, {failed} failed, {words['skipped']} skipped")
    page.blank()
    rows = [[r.check.name, r.check.kind.value, _WORDS[r.outcome], r.how if r.how else r.text] for r in done.results]
    lines = fit(["check", "about", "", ""], rows, page.width - 2)
    page.add("  ", Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add("  ", line)
    reasons: dict[tuple[str, str], list[Result]] = {}
    for result in done.results:
        if result.outcome == "failed":
            reasons.setdefault(result.reason, []).append(result)
    for results in reasons.values():
        _failure(page, results)
    return page


def _failure(page: Page, results: list[Result]) -> None:
    """The failures of one reason: the first of them stands for all."""
    from psmkit.report.layout import Span

    result, names = results[0], ", ".join(result.check.name for result in results)
    page.blank()
    if len(results) > 1:
        page.add(Span(f"{len(results)} checks fail for the same reason", "error"))
        page.wrap(names, indent="  ", hang="  ")
    page.wrap(result.text, "heading", hang="  ", lead=Span(f"{result.check.name}: {result.how}: ", "error"))
    page.wrap(result.check.text, indent="  ", hang="  ")
    page.wrap(f"next: {result.next_step}", indent="  ", hang="  ")
    if result.folder is not None:
        page.add(f"  evidence: psmkit lab report {result.folder}")


def _plain(done: Conformance) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "variant": done.stranger.text,
        "name": done.stranger.variant.name,
        "wrong": done.wrong,
        "clean": done.clean,
        "results": [
            {
                "check": result.check.name,
                "kind": result.check.kind.value,
                "outcome": result.outcome,
                "how": result.how or None,
                "text": result.text,
                "next": result.next_step if result.outcome == "failed" else None,
                "seconds": result.seconds,
                "folder": str(result.folder) if result.folder is not None else None,
            }
            for result in done.results
        ],
    }


def _list(form: str) -> int:
    from psmkit.conformance import CHECKS
    from psmkit.report.layout import Page, Span

    if form == "json":
        rows = [{"check": c.name, "kind": c.kind.value, "text": c.text, "fault": c.fault or None} for c in CHECKS]
        show(json.dumps(rows, indent=2) + "\n")
        return 0
    page = Page(width(sys.stdout))
    for check in CHECKS:
        page.add(Span(check.name, "heading"), f"  {check.kind.value}")
        page.wrap(check.text, indent="  ", hang="  ")
        if check.fault:
            page.wrap(f"fault: {check.fault}", indent="  ", hang="  ")
    show_page(page)
    return 0
