"""Inputs whose lines are also in a file that merges them: `cat` of the logs of several ranks, or a console that shows all of them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from dataclasses import replace

from psmkit.logparse.streams import Input, Reader
from psmkit.model.errors import InputError
from psmkit.model.late import dataclass
from psmkit.model.wording import counted

__all__ = ["without_merged"]

_PIECE = 1 << 18
_FIRST = 1 << 12  # bytes in which the first line of an input is looked for
_LARGEST = 2  # inputs of each kind that may be a merged one
_MOST_TEXT = 1 << 28  # bytes of a merged input that are compared
_MOST_OPEN = 128  # inputs that are read side by side
_BEFORE = 5_000  # lines that only the merged input has, before the first line of another one
_BETWEEN = 200_000  # such lines in a row, later
_LONGEST_TAG = 40
_NAMED = 3


def without_merged(
    inputs: Sequence[Input], processes: Callable[[Input], Set[Hashable]], notes: list[str]
) -> list[Input]:
    """The inputs without those whose lines another input has, so that each line counts once; a note names what is left out.

    An input is a merged one if it has all lines of at least two others that name their ``processes``, each in its order, with or without
    the tag of a launcher: two ranks can print the same error, but not the same processes. If it has no other line and no tag, it is left
    out, else these others are. They stay where they name the same process, as in containers: only their files tell those apart.
    """
    texts = [i for i in inputs if i.kind != "record" and i.foreign is None and i.size]
    if len(texts) < 3 or not _has_room(texts):
        return list(inputs)
    first = _first_lines(texts)
    plain = sorted((i for i in texts if i.kind == "log"), key=lambda i: -i.size)[:_LARGEST]
    packed = sorted((i for i in texts if i.kind != "log"), key=lambda i: -i.size)[:_LARGEST]
    out: set[int] = set()
    for item in [*plain, *packed]:
        if id(item) in out or item.size > _MOST_TEXT:
            continue
        found = _parts(
            item, {line: [p for p in parts if p is not item and id(p) not in out] for line, parts in first.items()}
        )
        named = {id(part): names for part in (found.parts if found is not None else ()) if (names := processes(part))}
        if found is None or len(named) < 2:
            continue
        apart = len(frozenset().union(*named.values())) == sum(map(len, named.values()))
        if found.whole:
            out.add(id(item))
        elif found.tagged or apart:
            found = replace(found, parts=[part for part in found.parts if id(part) in named])
            out.update(named)
        else:
            continue
        notes.append(_note(item, found))
    return [i for i in inputs if id(i) not in out]


def _has_room(texts: Sequence[Input]) -> bool:
    """Whether one of these may have all lines of two others: it is not shorter than they are, as far as the size on disk is that of the text."""
    if any(i.kind != "log" or i.encoding is not None for i in texts):
        return True
    one, other, *_ = sizes = sorted(i.size for i in texts)
    return sizes[-1] + 1 >= one + other  # the last line may end without a line feed


@dataclass(frozen=True, slots=True)
class _Parts:
    """The inputs whose lines are all in a merged one. ``whole``: it has no other line, and no tags."""

    parts: list[Input]
    whole: bool
    tagged: bool


def _note(item: Input, found: _Parts) -> str:
    named = ", ".join(part.path for part in found.parts[:_NAMED])
    more = len(found.parts) - _NAMED
    others = named + (f" and {counted(more, 'more input')}" if more > 0 else "")
    if found.whole:
        return f"{item.path} only has the lines of {others}: it is not read again"
    return f"{item.path} has all lines of {others}: they are not read again"


def _first_lines(inputs: Sequence[Input]) -> dict[bytes, list[Input]]:
    """The inputs by their first line, without those of which it is longer than a head."""
    out: dict[bytes, list[Input]] = defaultdict(list)
    for item in inputs:
        try:
            reader = Reader(item)
            head = reader.read(_FIRST)
            reader.close()
        except (OSError, InputError):
            continue
        line, end, _ = head.partition(b"\n")
        if end:
            out[line].append(item)
    return out


def _lines(item: Input) -> Iterator[bytes]:
    reader = Reader(item)
    try:
        rest = b""
        while data := reader.read(_PIECE):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        if rest:
            yield rest
        if reader.note:
            raise InputError(item.path, reader.note)
    finally:
        reader.close()


def _parts(item: Input, first: dict[bytes, list[Input]]) -> _Parts | None:
    """The inputs that are parts of this one, by their lines in order. None: it is none, or that is too much to read."""
    waiting: dict[bytes, deque[tuple[Input, Iterator[bytes] | None]]] = {
        line: deque((part, None) for part in parts) for line, parts in first.items() if parts
    }
    done: list[Input] = []
    alone = in_a_row = opened = size = 0
    tagged = False
    try:
        for text in _lines(item):
            size += len(text) + 1
            if size > _MOST_TEXT:
                return None
            line = text
            if not waiting.get(line):
                line = _untagged(text)
                if not waiting.get(line):
                    alone += 1
                    in_a_row += 1
                    if in_a_row > (_BETWEEN if opened else _BEFORE):
                        break
                    continue
                tagged = True
            in_a_row = 0
            part, lines = waiting[line].popleft()
            if not waiting[line]:
                del waiting[line]
            if lines is None:
                opened += 1
                if opened - len(done) > _MOST_OPEN:
                    return None
                lines = _lines(part)
                next(lines)
            following = next(lines, None)
            if following is None:
                done.append(part)
            else:
                waiting.setdefault(following, deque()).append((part, lines))
    except (OSError, InputError):
        return None
    # a line of an input that is only partly here counts as one that nothing else has
    return _Parts(done, not alone and not tagged and opened == len(done), tagged)


def _untagged(line: bytes) -> bytes:
    """A line without the tag before it: ``[1,0]<stdout>:``, ``[default3]:``, ``3: ``."""
    tag, colon, rest = line.partition(b":")
    if colon and len(tag) <= _LONGEST_TAG and (tag[:1] == b"[" or tag.strip().isdigit()):
        return rest.removeprefix(b" ")
    return line
