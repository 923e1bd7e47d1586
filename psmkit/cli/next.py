"""``psmkit next``: The one command to run next where the logs do not decide, and how it decides."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from psmkit.cli.command import Command
from psmkit.cli.language import lang_option, spoken
from psmkit.cli.output import progress_bar, show, show_page, width

__all__ = ["command"]


@click.command("next", cls=Command, examples=("psmkit next logs/", "psmkit next logs/ --format json"))
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
@lang_option
def command(paths: tuple[str, ...], catalogues: tuple[str, ...], form: str, lang: str | None) -> int:
    """Say what to run next where the logs of a job do not decide, and why it decides.

    PATH is what `psmkit analyze` reads. The first command tells most. It is one of: read more input, look into processes that still
    run (`psmkit inspect`), run the job again with other settings. Words in capitals stand for names that you know.

    Exit status: 0 nothing is left to run; 1 the logs do not decide, or a command is printed; 2 the input cannot be analysed.
    """
    from psmkit import analyze
    from psmkit.analysis.inputs import uncollected
    from psmkit.model import Verdict
    from psmkit.report.cells import breadth
    from psmkit.report.layout import Page, Span
    from psmkit.report.summary import next_step, original, verdict_line
    from psmkit.report.text import add_asks

    with uncollected(last=True), progress_bar() as progress:
        report = analyze(paths, catalogue=catalogues or None, progress=progress)
    if form == "json":
        data = {"verdict": report.verdict.value, "reason": report.reason, "next": [asdict(ask) for ask in report.next]}
        show(json.dumps(data, indent=2) + "\n")
        return 1 if report.next or report.verdict is Verdict.INCONCLUSIVE else 0
    words = spoken(lang)
    page = Page(width(sys.stdout), words=words)
    verdict, reason = verdict_line(report, words)
    page.add(Span(verdict, report.verdict.value), Span(reason, "heading"))
    if english := original(report, words):
        page.wrap(words.say("in English: {text}", text=english), "dim", indent="  ", hang="    ")
    if report.next:
        add_asks(page, report.next)
    else:
        decided = report.verdict is not Verdict.INCONCLUSIVE
        said = "The logs decide: nothing is left to run." if decided else "No command is known that would decide."
        page.add(words.say(said))
        if step := next_step(report, words):
            lead = Span(words.say("do this: "), "code")
            page.wrap(step, indent="", hang=" " * breadth(lead.text), lead=lead)
    show_page(page)
    return 1 if report.next or report.verdict is Verdict.INCONCLUSIVE else 0
