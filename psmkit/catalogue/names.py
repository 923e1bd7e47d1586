"""Which fields of messages hold names of people and machines, by the field's name, and which words are no names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from psmkit.catalogue.entries import Message
from psmkit.catalogue.loader import Catalogue
from psmkit.model.late import regex

__all__ = ["KINDS", "kinds_of", "public_words", "searched_whole"]

#: Fields with the same name mean the same in all messages. What is not named here and holds a text may hold any name.
KINDS: Mapping[str, str] = {
    "host": "host",
    "node": "host",
    "pid": "pid",
    "tid": "pid",
    "apid": "pid",
    "addr": "address",
    "address": "address",
    "listen_addr": "address",
    "remote": "address",
    "root": "address",
    "ip": "address",
    "gids": "address",
    "path": "path",
    "path1": "path",
    "path2": "path",
    "guid": "guid",
}
#: Types, as csrc/logscan/catalogue.h numbers them, whose values are texts.
_TEXTS = (6, 7, 8, 9)
_ADDRESS = 6
_NUMBERS = ("pid", "guid")
_TEXT_FIELD = regex(r"\{(\w+):(?:addr|word|str|rest)\}")
_FIELD = regex(r"\{[^}]*\}")
_WORD = regex(r"[A-Za-z]+")


def kinds_of(message: Message, fields: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """What each field of a message holds: a kind of name, ``text`` where it may be any, or ``plain``: no name."""
    # A field that is a number in one pattern is a text in another one.
    texts = {name for pattern in message.patterns for name in _TEXT_FIELD.findall(pattern)}
    return tuple(_kind_of(name, kind, kind in _TEXTS or name in texts) for name, kind in fields)


def _kind_of(name: str, kind: int, is_text: bool) -> str:
    if kind == _ADDRESS:
        return "address"
    known = KINDS.get(name)
    if is_text:
        return "text" if known is None or known == "path" else known
    return known if known in _NUMBERS else "plain"


def searched_whole(message: Message) -> bool:
    """Whether a message has text that no field holds, so that all of it may hold names."""
    return any("_" in _TEXT_FIELD.findall(pattern) for pattern in message.patterns)


@lru_cache(maxsize=4)
def public_words(catalogue: Catalogue) -> frozenset[str]:
    """The words that messages print whatever the machine, in lower case."""
    return frozenset(
        word.lower()
        for patterns in (*(m.patterns for m in catalogue.messages), *(p.patterns for p in catalogue.phrases))
        for pattern in patterns
        for word in _WORD.findall(_FIELD.sub(" ", pattern))
    )
