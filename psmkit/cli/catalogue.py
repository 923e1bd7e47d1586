"""``psmkit catalogue``: Search the log messages that psmkit understands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import listing_width, show, show_page, width
from psmkit.model.errors import PsmkitError

if TYPE_CHECKING:
    from psmkit.catalogue import Message
    from psmkit.report.layout import Page

__all__ = ["command"]

#: The least width of each column but the first.
_LEAST = {"level": 5, "code": 6, "versions": 8, "meaning": 16}
_WHOLE = 4  # up to this many messages are shown in full


@click.command(
    "catalogue",
    cls=Command,
    examples=(
        "psmkit catalogue                     # how many messages each subsystem has",
        "psmkit catalogue proxy error         # messages with both words",
        "psmkit catalogue PSM102 -v",
    ),
)
@click.argument("words", nargs=-1, metavar="[WORDS]...")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@click.option("-v", "--verbose", is_flag=True, help="Show everything about each message.")
def command(words: tuple[str, ...], form: str, catalogues: tuple[str, ...], verbose: bool) -> None:
    """Search the log messages that psmkit understands.

    A message is shown when its name, subsystem, pattern, versions, meaning or code contains all WORDS. Without WORDS, the command
    counts the messages of each subsystem.
    """
    import sys

    from psmkit.catalogue import load
    from psmkit.cli.messages import message_dict, message_page, search
    from psmkit.report.layout import Page

    messages = list(load(catalogues).by_name.values())
    hits = search(messages, words)
    if form == "json":
        import json

        show(json.dumps([message_dict(message) for message in hits], indent=2) + "\n")
        return
    if not hits:
        raise PsmkitError(f"no message in the catalogue contains all of these words: {' '.join(words)}")
    page = Page(listing_width(sys.stdout))
    if not words and not verbose:
        _overview(page, messages)
    elif verbose or len(hits) <= _WHOLE:
        page.width = width(sys.stdout)
        for message in hits:
            page.blank()
            message_page(page, message)
    else:
        _table(page, hits)
    show_page(page)


def _table(page: Page, hits: list[Message]) -> None:
    from psmkit.cli.messages import versions_of
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    cells = [[m.name, m.level or "-", m.finding or "-", versions_of(m) or "-", m.meaning] for m in hits]
    heads = ["name", "level", "code", "versions", "meaning"]
    # A name that is cut cannot be given to explain: on a narrow page, other columns give way.
    for column in ("versions", "level", "meaning", "code"):
        if max(len(row[0]) for row in cells) + sum(_LEAST[head] + 2 for head in heads[1:]) <= page.width:
            break
        at = heads.index(column)
        heads, cells = heads[:at] + heads[at + 1 :], [row[:at] + row[at + 1 :] for row in cells]
    lines = fit(heads, cells, page.width, whole=[n for n, head in enumerate(heads) if head in ("name", "code")])
    page.add(Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add(line)
    page.add(Span(f"{len(hits)} messages; 'psmkit explain NAME' explains one", "dim"))


def _overview(page: Page, messages: list[Message]) -> None:
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    counts: dict[str, list[int]] = {}
    for message in messages:
        row = counts.setdefault(message.subsystem, [0, 0, 0])
        row[0] += 1
        row[1] += sum(sample.kind == "real" for sample in message.samples)
        row[2] += sum(sample.kind == "constructed" for sample in message.samples)
    cells = [[name, *map(str, row)] for name, row in sorted(counts.items())]
    cells.append(["all", *(str(sum(row[i] for row in counts.values())) for i in range(3))])
    lines = fit(["subsystem", "messages", "real samples", "constructed samples"], cells, page.width)
    page.add(Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add(line)
    page.add(Span("'psmkit catalogue WORDS' searches them, 'psmkit explain NAME' explains one", "dim"))
