"""``psmkit explain``: Explain a finding code, a message or a log line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.language import lang_option, spoken
from psmkit.cli.output import show, show_page, width
from psmkit.model.errors import PsmkitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psmkit.catalogue import Catalogue, Message
    from psmkit.catalogue.entries import Value
    from psmkit.model import Code
    from psmkit.report.layout import Page

__all__ = ["command", "explained"]

_MOST = 12
_CODE = re.compile(r"(?i)(?:psm)?\d+")


@click.command(
    "explain",
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    examples=(
        "psmkit explain PSM102 PSM103",
        "psmkit explain proxy.call.done",
        "psmkit explain 'NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC'",
        "psmkit explain - < lines.txt",
    ),
)
@click.argument("what", nargs=-1, required=True, metavar="CODE|NAME|LINE...")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@lang_option
def command(what: tuple[str, ...], form: str, catalogues: tuple[str, ...], lang: str | None) -> None:
    """Explain a finding code (PSM102), a message of the catalogue (proxy.call.done), or a pasted log line.

    Several codes or messages are explained one after the other. A line can come with or without its prefix. With -, the command reads
    lines from standard input.
    """
    import sys

    from psmkit.catalogue import load
    from psmkit.report.layout import Page

    known = load(catalogues)
    if what == ("-",):
        lines = sys.stdin.read().splitlines()
    else:
        lines = list(what) if all(_named(word, known) for word in what) else [" ".join(what)]
    if not any(line.strip() for line in lines):
        given = "standard input has no line" if what == ("-",) else "the argument is empty"
        raise PsmkitError(f"nothing to explain: {given}; give a code, the name of a message, or a log line")
    words = spoken(lang)
    page = Page(width(sys.stdout), words=words)
    found: list[dict[str, object]] = []
    unknown: list[tuple[int, str]] = []
    seen: set[str] = set()
    repeats = 0
    for number, line in enumerate(lines, 1):
        name = line.strip()
        if not name:
            continue
        page.blank()
        if what != ("-",) or _is_name(name, known):
            found += explained(page, line, known)
        elif hits := _line_hits(line, known):
            names = {message.name for message, _ in hits}
            repeats += names <= seen
            if not names <= seen:
                page.cut(words.say("line {number}: {text}", number=number, text=name))
            found += _shown(page if not names <= seen else None, line, hits)
            seen |= names
        else:
            unknown.append((number, name))
            found.append({"kind": "unknown", "line": number, "text": name})
    if unknown and len(unknown) == len(found):
        raise PsmkitError(_unknown(unknown[0][1], known))
    if repeats:
        page.blank()
        more = words.count(repeats, "more line")
        page.add(words.say("{more} of the messages above (--format json has them all)", more=more))
    _not_known(page, unknown)
    if form == "json":
        import json

        show(json.dumps(found, indent=2) + "\n")
    else:
        show_page(page)


def _is_name(name: str, known: Catalogue) -> bool:
    from psmkit.model import CODES

    return _full(name) in CODES or name in known.by_name or name.lower() in known.by_name


def explained(page: Page, line: str, known: Catalogue) -> list[dict[str, object]]:
    """What is known of a code, of a message's name, or of a log line: as data, and added to ``page``.

    Raises:
        PsmkitError: nothing is known of it.
    """
    from psmkit.model import CODES

    name = line.strip()
    if (code := _full(name)) in CODES:
        return [_code(page, CODES[code], known)]
    if name in known.by_name or name.lower() in known.by_name:
        return [_message(page, name if name in known.by_name else name.lower(), known)]
    return _line(page, line, known)


def _full(name: str) -> str:
    """The spelling of a code: 509 and psm509 are PSM509."""
    return f"PSM{name}" if name.isdecimal() else name.upper()


def _named(word: str, known: Catalogue) -> bool:
    """Whether the word can only be a code or the name of a message."""
    return _CODE.fullmatch(word) is not None or word.lower() in known.by_name or word in known.by_name


def _code(page: Page, code: Code, known: Catalogue) -> dict[str, object]:
    from psmkit.cli.messages import supporting
    from psmkit.report.layout import Span

    messages = supporting(code.code, list(known.by_name.values()))
    issues = sorted({issue for message in messages for issue in message.known_issues})
    words = page.words
    title, severity = words.code(code.code, "title"), words.say(code.severity.value)
    page.add(Span(f"{code.code} ", code.severity.value), Span(title, "heading"), f"  ({severity})")
    page.wrap(words.code(code.code, "meaning"), indent="  ")
    lead = Span(words.say("next: "), "code")
    page.wrap(words.code(code.code, "next_step"), indent="  ", hang="    ", lead=lead)
    if issues:
        page.wrap(", ".join(issues), indent="  ", hang="    ", lead=Span(words.say("known issues: "), "dim"))
    if messages:
        page.add(Span("  " + words.say("supported by lines such as:"), "dim"))
        for message in messages[:_MOST]:
            page.cut(f"{message.name}: {message.meaning}", indent="    ")
        if len(messages) > _MOST:
            more = words.say("and {count} more", count=len(messages) - _MOST)
            page.add(Span(f"    {more} (psmkit catalogue {code.code})", "dim"))
    return {
        "kind": "code",
        "code": code.code,
        "title": code.title,
        "severity": code.severity.value,
        "meaning": code.meaning,
        "next_step": code.next_step,
        "known_issues": issues,
        "messages": [message.name for message in messages],
    }


def _message(page: Page, name: str, known: Catalogue) -> dict[str, object]:
    from psmkit.cli.messages import message_dict, message_page

    message_page(page, known.by_name[name])
    return {"kind": "message", **message_dict(known.by_name[name])}


def _line(page: Page, line: str, known: Catalogue) -> list[dict[str, object]]:
    hits = _line_hits(line, known)
    if not hits:
        raise PsmkitError(_unknown(line.strip(), known))
    return _shown(page, line, hits)


def _line_hits(line: str, known: Catalogue) -> list[tuple[Message, dict[str, Value]]]:
    from psmkit.cli.messages import recognise

    return [] if _CODE.fullmatch(line.strip()) else recognise(line, known)


def _not_known(page: Page, unknown: Sequence[tuple[int, str]]) -> None:
    """The lines of standard input that nothing explains, below those that are explained."""
    if not unknown:
        return
    page.blank()
    words = page.words
    lines = words.count(len(unknown), "line")
    page.wrap(words.say("not known: {lines}; 'psmkit catalogue WORDS' searches the messages", lines=lines), "heading")
    for number, text in unknown[:_MOST]:
        page.cut(words.say("line {number}: {text}", number=number, text=text), indent="  ")
    if len(unknown) > _MOST:
        page.cut(words.say("and {count} more", count=len(unknown) - _MOST), indent="  ")


def _shown(page: Page | None, line: str, hits: Sequence[tuple[Message, dict[str, Value]]]) -> list[dict[str, object]]:
    """The messages of a line as data, added to ``page`` if there is one."""
    from psmkit.cli.messages import message_dict, message_page, unprefixed
    from psmkit.report.layout import Span

    found: list[dict[str, object]] = []
    for message, fields in hits:
        if page is not None:
            page.blank()
            message_page(page, message, fields)
            if why := unprefixed(line, message):
                page.wrap(why, "warning", indent="  ", hang="    ", lead=Span("note: ", "warning"))
        found.append({"kind": "line", "fields": fields, **message_dict(message)})
    return found


def _unknown(text: str, known: Catalogue) -> str:
    import difflib

    from psmkit.model import CODES

    if _CODE.fullmatch(text):
        return f"there is no code {_full(text)}; 'psmkit codes' lists them all"
    if re.fullmatch(r"[\w.-]+", text):
        names = {name.lower(): name for name in (*known.by_name, *CODES)}
        near = [names[name] for name in difflib.get_close_matches(text.lower(), names, n=3)]
        hint = f"; did you mean {' or '.join(near)}?" if near else "; 'psmkit catalogue WORDS' searches them"
        return f"no code and no message is called {text}{hint}"
    return f"no message of the catalogue matches this line: {text[:120]}; 'psmkit catalogue WORDS' searches them"
