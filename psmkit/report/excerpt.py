"""Cut a line of a log to a width so that it still proves what a finding says: its head, and the place with the deciding words."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from psmkit.model.late import dataclass, regex
from psmkit.report.escape import shorten, shorten_left

__all__ = ["excerpt"]

# An address counts as one word: the report names its host in other places, too. So does a hash: the numbers in it tell nothing.
_WORD = regex(r"\b(?=[^\W_]*\d[^\W\d_]+\d)[^\W_]{12,}|[^\W\d_]+|\d+(?:\.\d+)+|\d+")
#: What a cut never divides: a word between blanks; in a word that needs too much room, a name or an escape of ``visible``; in a name that does so, too, a run of letters.
_UNIT = regex(r"\S+")
_PART = regex(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|[\w.-]+|\W")
_PIECE = regex(r"[^\W_]+[_.-]*|[_.-]+")
#: Words of at most this length, such as "the" and "on", are in every line.
_SHORT_WORD = 3
#: A word of the title of at least this length that the line holds is part of the proof.
_LONG_WORD = 5
#: In at least this width, three places of a line can be read, with so many words around each of those that tell.
_WIDE, _MOST_SHOWN, _AROUND = 120, 3, 2
#: A number of so many digits names a process or a work; it weighs as two words.
_LONG_NUMBER = 3
#: A value with the words before it of at most so many characters decides as a whole; of a longer one each word tells a part.
_VALUE = 48
_DECIDES, _PART_OF_VALUE = 2.0, 0.5
_PART_OF_HEAD = 1.0
#: Of a message, each part of a long word tells something, such as the key that is missing.
_PART_OF_WORD = 0.1
#: What stands before the words that prove it, such as a time and a process, is no proof also where the title repeats it.
_BEFORE = 0.25
#: Of an IPv4 address, which is said once and tells where.
_DOTS = 3
#: The weight of the beginning, which says who printed the line: of all that fits, and of a part of it before another place.
_BEGINNING, _PART_OF_BEGINNING = 4.0, 3.0
#: A shorter beginning tells nothing, and a longer one takes the room of the message.
_LEAST, _MOST_OF_BEGINNING = 8, 48
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_GAP = f" {_ELLIPSIS} "
#: Only so much of a line, and so many of its words, are looked at.
_MOST, _PLACES = 20_000, 80


@dataclass(frozen=True, slots=True)
class _Unit:
    start: int
    end: int
    says: tuple[tuple[str, float], ...]  # what it tells of the finding, each with its weight


def excerpt(text: str, width: int, about: str, words: Sequence[str] = (), lead: str = "") -> str:
    """``text`` cut to ``width`` characters: its beginning, and the place that says most of ``words``, else of ``about``.

    ``words`` are the parts of the text that a finding rests on, ``about`` is its title, ``lead`` the words by which the line is known. Words and escapes stay whole where the width allows it.
    """
    if len(text) <= width:
        return text
    units = list(_units(text[:_MOST], width, about, words, lead))
    whole = sum(unit.end < width for unit in units)
    places = [n for n, unit in enumerate(units) if unit.says][:_PLACES]
    # The beginning of the line takes no words of a message.
    least = max((_shown(text, width, units, 0, n)[1] for n in places), default=0.0) if _message(words) else 0.0
    told = _weight(units[:whole])
    best = (told + (_BEGINNING if whole and told >= least else 0), whole, 0)
    choice = (whole, whole, whole)
    ends = [n + 1 for n in range(whole) if _LEAST <= units[n].end <= min(width // 2, _MOST_OF_BEGINNING)]
    heads = [0, *(n for n in ends if not _within_word(text, units[n - 1].end, width - _LEAST))]
    for first in places:
        for head in heads:
            if head > first:
                break
            last, tells = _shown(text, width, units, head, first)
            if head and tells < least:
                break
            weight = _weight(units[:head] + units[first:last]) + (_PART_OF_BEGINNING if head else 0)
            if last > first and (weight, head, -first) > best:
                best, choice = (weight, head, -first), (head, first, last)
    lost = width >= _WIDE and not _told(_joined(text, width, units, *choice), text, about)
    if lost and (shown := _spread(text, width, about, units)):
        return _places(text, units, shown)
    if not best[0] or (choice == (whole, whole, whole) and " " not in text[:width]):  # no word fits
        return shorten_left(text, width) if " " not in text[:width] else shorten(text, width)
    return _joined(text, width, units, *choice)


def _message(words: Sequence[str]) -> bool:
    """Whether a finding rests on one text, such as that of an exception, and not on single values."""
    return len(set(words)) == 1 and len(words[0]) > _VALUE // 2


def _shown(text: str, width: int, units: Sequence[_Unit], head: int, first: int) -> tuple[int, float]:
    """The end of the units from ``first`` on that fit behind the first ``head`` units, and their weight."""
    room = width - (units[head - 1].end + len(_GAP) if head else 1)
    last = _last(units, first, room, len(text.rstrip()))
    return last, _weight(units[first:last])


def _within_word(text: str, at: int, room: int) -> bool:
    """Whether a place is inside a word that fits in ``room`` characters, or inside a name."""
    if at == len(text) or text[at - 1].isspace() or text[at].isspace():
        return False
    word = text[:at].rsplit(None, 1)[-1] + text[at : at + room + 1].split(None, 1)[0]
    return len(word) <= room or _PART.fullmatch(text, at - 1, at + 1) is not None


def _told(cut: str, text: str, about: str) -> bool:
    """Whether a cut text holds each word of the title that the text holds."""
    return _title_words(about, text) <= _title_words(about, cut)


def _title_words(about: str, text: str) -> set[str]:
    said = set(map(str.lower, _WORD.findall(text)))
    return {w for w in map(str.lower, _WORD.findall(about)) if (len(w) >= _LONG_WORD or w[0].isdecimal()) and w in said}


def _spread(text: str, width: int, about: str, units: Sequence[_Unit]) -> Sequence[int]:
    """Units that hold each word of the title between them, with as many around each as fit; empty if they do not fit, or are too many places to be read."""
    said = [set(map(str.lower, _WORD.findall(text, unit.start, unit.end))) for unit in units]
    held = {
        max((n for n, words in enumerate(said) if word in words), key=lambda n: (_weight([units[n]]), -n))
        for word in _title_words(about, text[:_MOST]).intersection(set().union(*said))
    }
    best: Sequence[int] = ()
    shown = sorted({n for at in held for n in range(max(at - _AROUND, 0), min(at + _AROUND + 1, len(units)))})
    if sum(at + 1 != after for at, after in itertools.pairwise(shown)) >= _MOST_SHOWN:
        return best
    while shown and len(_places(text, units, shown)) <= width and len(shown) > len(best):
        best = shown
        shown = sorted({n for at in shown for n in range(max(at - 1, 0), min(at + 2, len(units)))})
    return best


def _places(text: str, units: Sequence[_Unit], shown: Sequence[int]) -> str:
    """These units of a text, with an ellipsis for what is left out."""
    out = _ELLIPSIS if shown[0] else ""
    for before, at in zip((None, *shown), shown, strict=False):
        gap = "" if before is None else text[units[before].end : units[at].start] if at == before + 1 else _GAP
        out += gap + text[units[at].start : units[at].end]
    return out + (_ELLIPSIS if shown[-1] + 1 < len(units) or units[-1].end < len(text.rstrip()) else "")


def _units(text: str, width: int, about: str, words: Sequence[str], head: str) -> Iterator[_Unit]:
    wanted = {word for word in map(str.lower, _WORD.findall(about)) if word[0].isdecimal() or len(word) > _SHORT_WORD}
    found = [(at, at + len(word)) for word in words if word and (at := text.find(word)) >= 0]
    # Of several values, those decide that the title repeats.
    told = [(at, end) for at, end in found if wanted.intersection(map(str.lower, _WORD.findall(text, at, end)))]
    values = {place: place in told or not told for place in found}
    # a line may hold more than one message, and the head be that of another one
    start = text.find(head) if wanted.intersection(map(str.lower, _WORD.findall(head))) else -1
    message = _message(words)
    begins = min([at for at, _ in found] + [start] * (start >= 0), default=0)
    room = min(width - _LEAST, max(width // 2, _VALUE))
    for match in _UNIT.finditer(text):
        for part in [match] if match.end() - match.start() <= room else _divided(text, match, room):
            says = _says(part, wanted, values)
            if message and not says and any(at <= part.start() < end for at, end in found):
                says = {f"part:{part.start()}": _PART_OF_WORD}
            if part.end() <= begins:
                says = {} if message else {word: weight * _BEFORE for word, weight in says.items()}
            if 0 <= start <= part.start() and part.end() <= start + len(head):
                says[f"head:{part.start()}"] = _PART_OF_HEAD
            yield _Unit(part.start(), part.end(), tuple(says.items()))


def _divided(text: str, word: re.Match[str], room: int) -> Iterator[re.Match[str]]:
    """The parts of a word that needs more than ``room`` characters."""
    for part in _PART.finditer(text, word.start(), word.end()):
        if part.end() - part.start() <= room:
            yield part
        else:
            yield from _PIECE.finditer(text, part.start(), part.end())


def _says(unit: re.Match[str], wanted: set[str], values: Mapping[tuple[int, int], bool]) -> dict[str, float]:
    says: dict[str, float] = {}
    inside = [(at, end) for at, end in values if unit.start() < end and at < unit.end()]
    for word in map(str.lower, _WORD.findall(unit.group())):
        if word in wanted:
            number = len(word) >= _LONG_NUMBER and word.isdecimal()
            says[word] = 3 if word.count(".") == _DOTS else 2 if inside or number else 1
    begins = unit.start() == 0 or unit.string[unit.start() - 1].isspace()  # the parts of a path tell little
    for at, end in inside:
        decides = values[at, end] and end <= unit.end() and end - at <= _VALUE
        if decides or begins:
            says[f"{at}:{unit.start()}"] = _DECIDES if decides else _PART_OF_VALUE
    return says


def _weight(units: Sequence[_Unit]) -> float:
    said: dict[str, float] = {}
    for unit in units:
        for what, weight in unit.says:
            said[what] = max(weight, said.get(what, 0))
    return sum(said.values())


def _last(units: Sequence[_Unit], first: int, room: int, end: int) -> int:
    """The end of the units from ``first`` on that fit in ``room`` characters with their ellipses."""
    last, limit = first, units[first].start + room
    while last < len(units) and units[last].end + (units[last].end < end) <= limit:
        last += 1
    return last


def _joined(text: str, width: int, units: Sequence[_Unit], head: int, first: int, last: int) -> str:
    end = units[last - 1].end
    tail = "" if end >= len(text.rstrip()) else _ELLIPSIS
    if head == first:  # one place, from the beginning on
        return text[:end] + tail
    start = text[: units[head - 1].end] + _GAP if head else _ELLIPSIS
    room = width - len(start) - len(tail)
    place = first
    while first > head + 1 and end - units[first - 1].start <= room:
        first -= 1
    while first < place and text[units[first].start - 1] != " ":  # a part of a word
        first += 1
    if first == head:
        return text[:end] + tail
    return start + text[units[first].start : end] + tail
