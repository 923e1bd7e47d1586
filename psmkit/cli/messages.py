"""Catalogue messages: as data, as a page, and the lookup of a log line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from psmkit.catalogue.entries import LEVEL_WORDS
from psmkit.report.layout import Page, Span

if TYPE_CHECKING:
    from psmkit.catalogue import Catalogue, Message
    from psmkit.catalogue.entries import Value

__all__ = ["message_dict", "message_page", "recognise", "search", "supporting", "unprefixed"]

_PREFIX = re.compile(rf"\bNCCL (?:{LEVEL_WORDS}) ")
_HEXADECIMAL = re.compile(r"\{([a-z]\w*):(?:ptr|hex)\}")
_SPELLINGS = 2
_PLACE = re.compile(r"^\S+\.(?:cc|cpp|cu|h|hpp):\d+ (?:\w+ )?")


def message_dict(message: Message) -> dict[str, Any]:
    """A message of the catalogue with the keys that its TOML has."""
    return {
        "name": message.name,
        "subsystem": message.subsystem,
        "patterns": list(message.patterns),
        "level": message.level,
        "where": message.where,
        "versions": message.versions,
        "rccl": message.rccl,
        "vccl": message.vccl,
        "severity": message.severity,
        "finding": message.finding,
        "role": message.role,
        "set": dict(message.constants),
        "meaning": message.meaning,
        "next_step": message.next_step,
        "known_issues": list(message.known_issues),
        "samples": [{"text": s.text, "kind": s.kind, "source": s.source} for s in message.samples],
    }


def versions_of(message: Message) -> str:
    """``NCCL 2.12-, RCCL 2.18-``: where a message is printed; empty when it is not known."""
    parts = (("NCCL", message.versions), ("RCCL", message.rccl), ("VCCL", message.vccl))
    return ", ".join(f"{library} {releases}" for library, releases in parts if releases)


def message_page(page: Page, message: Message, fields: Mapping[str, object] | None = None) -> None:
    """Append all that the catalogue says about a message; ``fields`` are those of the line that was recognised."""
    words = page.words
    page.add(Span(message.name, "heading"), f"  ({message.subsystem}, {message.level or 'NONE'})")
    spellings = message.patterns if fields is None else message.patterns[:_SPELLINGS]
    for pattern in spellings:
        page.wrap(pattern, "place", indent="    ", hang="      ")
    if len(spellings) < len(message.patterns):
        more = words.say("other spellings: {count}", count=len(message.patterns) - len(spellings))
        page.add(Span(f"    {more}", "dim"))
    page.wrap(message.meaning, indent="  ")
    if fields:
        hexadecimal = {match[1] for pattern in message.patterns for match in _HEXADECIMAL.finditer(pattern)}
        shown = {k: v for k, v in fields.items() if v != ""}
        page.wrap(
            ", ".join(f"{k} = {v:#x}" if k in hexadecimal else f"{k} = {v}" for k, v in shown.items()),
            indent="  ",
            hang="    ",
            lead=Span(words.say("fields: "), "dim"),
        )
    if message.severity:
        page.wrap(words.say(message.severity), indent="  ", lead=Span(words.say("severity: "), "dim"))
    if message.finding:
        from psmkit.model import CODES

        title = words.code(message.finding, "title") if message.finding in CODES else ""
        page.wrap(f"{message.finding} {title}", indent="  ", lead=Span(words.say("supports: "), "dim"))
    if message.next_step:
        page.wrap(message.next_step, indent="  ", hang="    ", lead=Span(words.say("next: "), "code"))
    releases = versions_of(message)
    if releases:
        page.wrap(releases, indent="  ", lead=Span(words.say("printed by: "), "dim"))
    if message.known_issues:
        page.wrap(", ".join(message.known_issues), indent="  ", lead=Span(words.say("known issues: "), "dim"))


def supporting(code: str, messages: Sequence[Message]) -> list[Message]:
    """The messages of which a sighting supports a code."""
    return [message for message in messages if message.finding == code]


def search(messages: Sequence[Message], words: Sequence[str]) -> list[Message]:
    """The messages that have all words somewhere, those with a word in their name first."""
    wanted = [word.lower() for word in words if word]

    def text(message: Message) -> str:
        parts = (
            message.name,
            message.subsystem,
            message.level,
            *message.patterns,
            versions_of(message),
            message.severity,
            message.finding,
            message.role,
            message.meaning,
            message.next_step,
            *message.known_issues,
        )
        return "\n".join(part for part in parts if part).lower()

    hits = [message for message in messages if all(word in text(message) for word in wanted)]
    return sorted(hits, key=lambda message: not any(word in message.name.lower() for word in wanted))


def recognise(line: str, known: Catalogue) -> list[tuple[Message, dict[str, Value]]]:
    """The messages in a pasted line and their fields, whether it has its prefix or not; empty when the engine knows none."""
    text = " ".join(line.splitlines()).strip()
    # Records that were glued together are one paste.
    bodies = [part.strip() for part in _PREFIX.split(text)[1:]] or [text]
    found = [hit for body in bodies if (hit := _match(body, known)) is not None]
    if not found and (hit := known.match(text, where="line")) is not None:
        found = [hit]
    return [(message, fields) for message, fields in found if message.name in known.by_name]


def unprefixed(line: str, message: Message) -> str:
    """Why an analysis does not see a user's message in a line that :func:`recognise` knows; empty if it does."""
    from psmkit.catalogue import load

    if message.name in load().by_name or message.where == "line" or _PREFIX.search(line):
        return ""
    return (
        "An analysis matches this entry only behind NCCL's prefix, such as 'NCCL INFO', which this line lacks. "
        'If the log has the line as it is here, add where = "line" to the entry.'
    )


def _match(body: str, known: Catalogue) -> tuple[Message, dict[str, Value]] | None:
    # Since 2.30 the source location precedes the message.
    for text in (body, _PLACE.sub("", body), *_without_tail(body)):
        hit = known.match(text)
        if hit is not None:
            return hit
    return None


def _without_tail(body: str) -> Iterator[str]:
    # The next record of a glued line brings its own host:pid:tid, which is not part of this message.
    words = body.split(" ")
    for count in range(1, min(4, len(words))):
        yield " ".join(words[:-count])
