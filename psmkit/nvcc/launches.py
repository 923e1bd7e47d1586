"""Launches in the source: where ``kernel<<<configuration>>>(arguments)`` begins and ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from psmkit.nvcc.options import NvccError
from psmkit.nvcc.tokens import before, close, in_literal

__all__ = ["Launch", "launches"]

_WORD = re.compile(r"[A-Za-z_$]\w*$")
_PAIRS = {")": "(", "]": "[", ">": "<"}


@dataclass(frozen=True)
class Launch:
    """One launch: from the kernel to the end of its arguments, and the configuration between the marks."""

    begin: int
    end: int
    configuration: tuple[int, int]


def _open(text: str, at: int) -> int:
    """The bracket that the one before ``at`` closes."""
    closing = text[at - 1]
    opening = _PAIRS[closing]
    depth = 0
    while at > 0:
        mark = text[at - 1]
        if mark == closing and not (mark == ">" and text[at - 2] == "-"):
            depth += 1
        elif mark == opening:
            depth -= 1
            if not depth:
                return at - 1
        elif closing == ">" and mark in ")]":
            at = _open(text, at)
            continue
        at -= 1
    return -1


def _begin(text: str, at: int) -> int:
    """Where the expression that ends before ``at`` begins."""
    at = before(text, at)
    while True:
        while at and text[at - 1] in ")]>":
            start = _open(text, at)
            if start < 0:
                return -1
            at = before(text, start)
            if not _WORD.search(text, max(0, at - 200), at) and text[at - 1] not in ")]>":
                return start  # an expression in brackets
        if match := _WORD.search(text, max(0, at - 200), at):
            at = match.start()
        previous = before(text, at)
        for mark in ("::", "->", "."):
            if text.endswith(mark, 0, previous):
                at = previous - len(mark)
                previous = before(text, at)
                if mark == "::" and not (
                    _WORD.search(text, max(0, previous - 200), previous) or text[previous - 1] == ">"
                ):
                    return at  # `::name`
                at = previous
                break
        else:
            if text.endswith("template", 0, previous) and previous > 8:
                at = previous - 8
                continue
            return at


def _configuration_end(text: str, at: int) -> int:
    depth = 0
    while at < len(text):
        mark = text[at]
        if mark in "([{":
            at = close(text, at)
            if at < 0:
                return -1
            continue
        if text.startswith("<<<", at):
            depth += 1
            at += 3
            continue
        if text.startswith(">>>", at):
            if not depth:
                return at
            depth -= 1
            at += 3
            continue
        if mark in ";})":
            return -1
        at += 1
    return -1


def launches(text: str) -> Iterator[Launch]:
    """All launches of a preprocessed source."""
    at = 0
    while (at := text.find("<<<", at)) >= 0:
        begin = at
        at += 3
        head = before(text, begin)
        if text.endswith("operator", 0, head) or in_literal(text, begin):
            continue
        end = _configuration_end(text, at)
        arguments = re.compile(r"\s*\(").match(text, end + 3) if end >= 0 else None
        stop = close(text, arguments.end() - 1) if arguments else -1
        start = _begin(text, begin)
        if stop < 0 or start < 0:
            line = text[text.rfind("\n", 0, begin) + 1 : text.find("\n", begin)].strip()
            raise NvccError(f"a launch cannot be read: {line}")
        yield Launch(start, stop, (at, end))
