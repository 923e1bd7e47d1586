"""Inputs that are one log twice: another path to the file, or a copy of it."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from psmkit.logparse.streams import Input, open_raw
from psmkit.model.errors import InputError
from psmkit.model.wording import counted

__all__ = ["same", "without_copies"]

_ENDS = 1 << 12  # bytes at each end that are compared before a whole file is read
_PIECE = 1 << 20
_NOTED = 3  # copies that the notes name


def without_copies(
    inputs: Sequence[Input], names_process: Callable[[Input], bool], notes: list[str] | None = None
) -> list[Input]:
    """The inputs, each content once; a note for each that is left out names it and the one that is read.

    Equal files count as one log only if ``names_process``: two ranks can print the same error, and only a log that names its process
    shows that both are the same. Files of different sizes are not read, and files with different ends only at their ends.
    """
    first: dict[int, int] = {}
    _note(inputs, _by(range(len(inputs)), lambda at: _inode(inputs[at])), first)
    whole = (at for at, item in enumerate(inputs) if at not in first and item.size and item.foreign is None)
    for same_size in _by(whole, lambda at: (inputs[at].kind, inputs[at].size)):
        for alike in _by(same_size, lambda at: _digest(inputs[at], ends=True)):
            equal = _by(alike, lambda at: _digest(inputs[at], ends=False))
            _note(inputs, [part for part in equal if names_process(inputs[part[0]])], first)
    if notes is not None:
        notes += same((inputs[at].path, inputs[to].path) for at, to in first.items())
    return [item for at, item in enumerate(inputs) if at not in first]


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


def _note(inputs: Sequence[Input], groups: Iterable[Sequence[int]], first: dict[int, int]) -> None:
    first.update((at, group[0]) for group in groups for at in group[1:])


def _inode(item: Input) -> tuple[int, int] | None:
    if item.place is not None:
        return None
    try:
        found = os.stat(item.path)
    except OSError:
        return None  # its reader reports it
    return found.st_dev, found.st_ino


def _digest(item: Input, *, ends: bool) -> bytes | None:
    """The hash of an input as it is stored, or of its ends; None if it cannot be read."""
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
