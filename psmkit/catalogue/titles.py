"""The grammar of titles: text, fields in braces, and parts in brackets that a title has only where a line has their fields.

``{who} lost the connection to {addr:list}[ after {ms:seconds} s]: {what|no reason}``. A field has a form behind a colon and a default behind a bar.
"""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter

from psmkit.model.late import dataclass, regex

__all__ = ["FORMS", "Blank", "fill", "read"]

#: How a field prints: of the first line, of all lines as ``ranks 1 and 3`` or as a list, only if all agree, milliseconds in seconds.
FORMS = ("", "ranks", "list", "only", "seconds")

_OPTIONAL = regex(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class Blank:
    """A field of a title. ``default`` stands for it where no line has it; ``optional``: its part of the title is left out instead."""

    name: str
    form: str
    default: str | None
    optional: bool


def read(title: str) -> list[list[str | Blank]]:
    """The parts of a title; each is text and fields.

    Raises:
        ValueError: a brace without its partner, or a form that does not exist.
    """
    return [_part(text, optional=bool(at % 2)) for at, text in enumerate(_OPTIONAL.split(title))]


def _part(text: str, optional: bool) -> list[str | Blank]:
    out: list[str | Blank] = []
    for literal, name, spec, _ in Formatter().parse(text):
        out.append(literal)
        if name is None:
            continue
        field, bar, default = f"{name}:{spec}".removesuffix(":").partition("|")
        field, _, form = field.partition(":")
        if form not in FORMS:
            raise ValueError(f"{form!r} is no form of a field")
        out.append(Blank(field, form, default if bar else None, optional))
    return out


def fill(title: str, value: Callable[[Blank], str | None]) -> str:
    """The title with its fields. ``value`` gives their texts, None where no line has the field."""
    out: list[str] = []
    for part in read(title):
        texts = [p if isinstance(p, str) else value(p) or p.default for p in part]
        if None not in texts or not any(isinstance(p, Blank) and p.optional for p in part):
            out += [text or "" for text in texts]
    return "".join(out)
