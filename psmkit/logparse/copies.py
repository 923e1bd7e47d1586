"""Inputs that are copies of one log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from psmkit.logparse.streams import Input, Reader, open_raw
from psmkit.model.errors import InputError
from psmkit.model.wording import counted

__all__ = ["same", "without_copies"]

_ENDS = 1 << 12  # bytes at each end that are compared before a whole file is read
_PIECE = 1 << 20
_HEAD = 1 << 16  # bytes of text that are compared before a whole text is read
_MOST_TEXT = 1 << 30  # bytes of text that are compared
_STAMPED = 4  # different times
_NOTED = 3  # copies that the notes name


def without_copies(
    inputs: Sequence[Input], names_process: Callable[[Input], bool], notes: list[str] | None = None
) -> list[Input]:
    """The inputs, each content once; a note for each that is left out names it and the one that is read.

    Equal files count as one log only if ``names_process``, or if they hold several time stamps: two ranks can print the
    same error, but not the same times. Plain files of different sizes are not read, and files with different ends only at their ends. A
    compressed file is compared by its text, with files whose first bytes are equal.
    """
    first: dict[int, int] = {}
    whole = (at for at, item in enumerate(inputs) if at not in first and item.size and item.foreign is None)
    for same_size in _by(whole, lambda at: (inputs[at].kind, inputs[at].size, inputs[at].start)):
        for alike in _by(same_size, lambda at: _digest(inputs[at], ends=True)):
            equal = _by(alike, lambda at: _digest(inputs[at], ends=False))
            _note([part for part in equal if _one_origin(inputs[part[0]], names_process)], first)
    _note(_texts(inputs, first, names_process), first)
    if notes is not None:
        notes += same((inputs[at].path, inputs[to].path) for at, to in first.items())
    return [item for at, item in enumerate(inputs) if at not in first]


def _texts(inputs: Sequence[Input], first: dict[int, int], names_process: Callable[[Input], bool]) -> list[list[int]]:
    """Groups of inputs with the same text of which at least one is compressed; plain inputs lead."""
    rest = [
        at for at, i in enumerate(inputs) if at not in first and i.size and i.foreign is None and i.kind != "record"
    ]
    if all(inputs[at].kind == "log" for at in rest):
        return []
    groups = []
    for alike in _by(rest, lambda at: _text_digest(inputs[at], _HEAD)):
        if all(inputs[at].kind == "log" for at in alike):
            continue
        for equal in _by(alike, lambda at: _text_digest(inputs[at], _MOST_TEXT)):
            if any(inputs[at].kind != "log" for at in equal) and _one_origin(inputs[equal[0]], names_process):
                groups.append(sorted(equal, key=lambda at: (inputs[at].kind != "log", at)))
    return groups


def _text_digest(item: Input, most: int) -> bytes | None:
    """The hash of the text of an input up to ``most`` bytes; None if it cannot be read, or if a whole text is longer."""
    import hashlib  # late: it loads OpenSSL, and few inputs are compared

    digest = hashlib.blake2b(digest_size=16)
    try:
        reader = Reader(item)
        left = most
        while left > 0 and (data := reader.read(min(left, _PIECE))):
            digest.update(data)
            left -= len(data)
        more = left <= 0 and most == _MOST_TEXT and bool(reader.read(1))
        reader.close()
    except (OSError, InputError):
        return None
    return None if reader.note or more else digest.digest()


def _one_origin(item: Input, names_process: Callable[[Input], bool]) -> bool:
    """Whether two inputs with this text come from one process."""
    return names_process(item) or _stamped(item)


def _stamped(item: Input) -> bool:
    """Whether the first lines of an input have several time stamps with fractions of a second: two processes do not print all of them alike."""
    try:
        reader = Reader(item)
        data = b""
        while len(data) < _HEAD and (more := reader.read(_HEAD - len(data))):
            data += more
        reader.close()
    except (OSError, InputError):
        return False
    return len({time for line in data.splitlines() if (time := _fine_time(line))}) >= _STAMPED


def _fine_time(line: bytes) -> bytes:
    """The first time of day of a line with at least milliseconds, ``12:31:02.104`` or ``12:31:02,104``; empty if it has none."""
    for at, char in enumerate(line):
        if char in b".,":
            clock, part = line[max(at - 8, 0) : at], line[at + 1 : at + 4]
            if clock[2::3] == b"::" and (clock[:2] + clock[3:5] + clock[6:] + part).isdigit() and len(part) == 3:
                return clock + part
    return b""


def same(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The notes about inputs that are left out, each with the path that is read instead."""
    named = [f"{path} is the same as {other}: the log is read once" for path, other in pairs]
    more = len(named) - _NOTED
    return named[:_NOTED] + ([f"{counted(more, 'more input')} of the same kind"] if more > 0 else [])


def _by(numbers: Iterable[int], key: Callable[[int], Hashable | None]) -> list[list[int]]:
    """Groups of at least two numbers with the same key; None belongs to no group."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        if (value := key(number)) is not None:
            groups[value].append(number)
    return [group for group in groups.values() if len(group) > 1]


def _note(groups: Iterable[Sequence[int]], first: dict[int, int]) -> None:
    first.update((at, group[0]) for group in groups for at in group[1:])


def _digest(item: Input, *, ends: bool) -> bytes | None:
    """The hash of an input as it is stored, or of its ends; None if it cannot be read."""
    import hashlib  # late: it loads OpenSSL, and few inputs are compared

    digest = hashlib.blake2b(digest_size=16)
    try:
        with open_raw(item) as raw:
            if ends:
                digest.update(raw.read(min(_ENDS, item.size)))
                raw.seek(max(item.size - _ENDS, 0))
            left = _ENDS if ends else item.size
            while left > 0 and (data := raw.read(min(left, _PIECE))):
                digest.update(data)
                left -= len(data)
    except (OSError, InputError):
        return None
    return digest.digest()
