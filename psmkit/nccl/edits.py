"""The edits of a plain tree: where they belong, and the files with them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit.model.errors import PsmkitError
from psmkit.nvcc.tokens import close

__all__ = ["PLAN_TRACE", "TRANSPORT", "Change", "TreeError", "apply", "changes"]

#: The edits that make a plain tree call libpsm's transport, and those that record plans.
TRANSPORT, PLAN_TRACE = "edits.toml", "plan_trace.toml"


class TreeError(PsmkitError):
    """A tree is not what psmkit knows."""


@dataclass(frozen=True)
class Change:
    """One edit of one file: the text between two positions is replaced."""

    file: str
    line: int
    what: str
    begin: int
    end: int
    text: str


_UNKNOWN = "this tree is not one that psmkit knows. Make the edits by hand (docs/linking.md), or give a tree of a known release"


def _pattern(text: str) -> re.Pattern[str]:
    """Where a blank is any white space."""
    return re.compile(text.replace(" ", r"\s*"), re.MULTILINE)


def _region(entry: dict[str, Any], file: str, text: str) -> tuple[int, int]:
    """The positions of a function's or table's braces, and the whole file without `inside`."""
    if "inside" not in entry:
        return 0, len(text)
    found = []
    for match in _pattern(entry["inside"]).finditer(text):
        at = match.end()
        if text[at - 1] == "(":
            at = close(text, at - 1)
        rest = re.compile(r"\s*\{").match(text, at) if at > 0 else None
        if rest and (end := close(text, rest.end() - 1)) > 0:
            found.append((rest.end() - 1, end))
    if len(found) != 1:
        raise TreeError(_refusal(entry, file, f"looked for `{entry['inside']}` with a body", len(found)))
    return found[0]


def _refusal(entry: dict[str, Any], file: str, looked: str, times: int) -> str:
    return f"{file}: {looked}, to {entry['what']}, and found it {times} times instead of once: {_UNKNOWN}"


def _place(entry: dict[str, Any], file: str, text: str, region: tuple[int, int]) -> tuple[int, int]:
    begin, end = region
    if entry["put"] == "start":
        return begin + 1, begin + 1
    found = list(_pattern(entry["find"]).finditer(text, begin, end))
    if len(found) != 1:
        inside = f" in `{entry['inside']}`" if "inside" in entry else ""
        raise TreeError(_refusal(entry, file, f"looked for `{entry['find']}`{inside}", len(found)))
    at = found[0]
    return {"before": (at.start(), at.start()), "after": (at.end(), at.end()), "replace": at.span()}[entry["put"]]


def _change(entry: dict[str, Any], file: str, text: str) -> Change | None:
    region = _region(entry, file, text)
    if entry.get("optional") and not _pattern(entry["find"]).search(text, *region):
        return None
    if "other" in entry and not _pattern(entry["find"]).search(text, *region):
        entry = entry | entry["other"]
    added = entry["text"]
    if "names" in entry:
        named = _pattern(entry["names"]).search(text, *region)
        if not named:
            raise TreeError(_refusal(entry, file, f"looked for `{entry['names']}` in `{entry['inside']}`", 0))
        for name, value in named.groupdict().items():
            added = added.replace(f"{{{name}}}", value)
    begin, end = _place(entry, file, text, region)
    return Change(file, text.count("\n", 0, begin) + 1, entry["what"], begin, end, added)


def changes(tree: Path, data: str = TRANSPORT) -> list[Change]:
    """All edits that a tree needs, in the order of ``data``: TRANSPORT or PLAN_TRACE.

    Raises:
        TreeError: a place was not found, or more than once.
    """
    known = tomllib.loads((Path(__file__).parent / data).read_text())
    out = []
    for entry in known["edit"]:
        for name in entry["files"]:
            moved = known["moved"].get(name, name)
            file = name if (tree / name).exists() else moved
            try:
                text = (tree / file).read_text()
            except OSError as error:
                names = name if moved == name else f"{name} or {moved}"
                raise TreeError(
                    f"{tree} has no {names} that can be read ({error.strerror}), and it is needed to {entry['what']}: {_UNKNOWN}"
                ) from error
            if known["header"] in text:
                raise TreeError(
                    f"{tree / file} includes {known['header']}: this tree has the edits already, give the one without them"
                )
            if change := _change(entry, file, text):
                out.append(change)
    return out


def apply(tree: Path, all_changes: list[Change]) -> None:
    """Write the edits into the files of a tree."""
    for file in dict.fromkeys(change.file for change in all_changes):
        text = (tree / file).read_text()
        for change in sorted((c for c in all_changes if c.file == file), key=lambda c: c.begin, reverse=True):
            text = text[: change.begin] + change.text + text[change.end :]
        (tree / file).write_text(text)
