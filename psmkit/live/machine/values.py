"""Values of variables that NCCL or psmkit ignores, refuses, or reads as another one. values.toml holds the knowledge."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

__all__ = ["number", "trouble"]

_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)?")
_SIZE = re.compile(r"(\d+)\s*([kmgt])(?:i?b)?", re.IGNORECASE)
_SCALES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
#: Words that mean 0, which is what NCCL takes for them.
_OFF = ("no", "n", "false", "f", "off")
_ON = ("yes", "y", "true", "t", "on", "enable", "enabled")
_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_NOT_SET = -2


@functools.cache
def _facts() -> Mapping[str, Any]:
    return tomllib.loads((resources.files(__package__) / "values.toml").read_text())


@functools.cache
def _words() -> dict[str, Mapping[str, Any]]:
    return {name: entry for entry in _facts()["words"] for name in entry["names"]}


def number(text: str) -> int | None:
    """A value as NCCL_PARAM reads it: up to the first character that belongs to no number; None: NCCL takes its default."""
    value, _ = _read(text)
    return value if text and -(1 << 63) <= value < 1 << 63 else None


def _read(text: str) -> tuple[int, str]:
    """The number at the beginning of a text, as strtoll with base 0 reads it, and what follows it."""
    found = _INTEGER.match(text)
    digits = found[2] if found is not None else None
    if found is None or not digits:
        return 0, text
    octal = digits[0] == "0" and digits.isdecimal()
    value = int(digits, 8 if octal else 0)
    return -value if found[1] == "-" else value, text[found.end() :]


def trouble(name: str, value: str, *, is_number: bool) -> tuple[str, str] | None:
    """What NCCL or psmkit makes of a value that it does not take as it is written, and what to do; None: nothing is wrong with it.

    Args:
        name: the variable.
        value: not empty.
        is_number: whether NCCL_PARAM reads the variable.
    """
    if name == "NCCL_COMM_ID":
        return _address(value)
    if (entry := _words().get(name)) is not None:
        return _of_words(name, value, entry)
    if name in _facts()["psm"]:
        return _of_psm(name, value, *_facts()["psm"][name])
    return _of_number(name, value) if is_number or name in _facts()["numbers"] else None


def _of_number(name: str, value: str) -> tuple[str, str] | None:
    read, rest = _read(value)
    if number(value) is None:
        return "NCCL reads a number of 64 bits here, and ignores this one", f"unset {name}"
    if rest and value.lower() not in _OFF:
        size = _SIZE.fullmatch(value)
        meant = int(size[1]) * _SCALES[size[2].lower()] if size else 1 if value.lower() in _ON else None
        do = f"unset {name}" if meant is None else f"export {name}={meant}"
        digits = "the digits at its beginning" if len(rest) < len(value) else "a text without digits"
        return f"NCCL reads a number here, and takes {read}, for {digits}", do
    least, then = _facts()["least"].get(name, (None, ""))
    if least is not None and read < least and read != _NOT_SET:
        return f"{then}; the least is {least}", f"unset {name}"
    return None


def _of_words(name: str, value: str, entry: Mapping[str, Any]) -> tuple[str, str] | None:
    known = [word if entry.get("cased") else word.lower() for word in entry["words"]]
    form = entry["form"]
    if form == "level" and value[0].isdigit():
        return None
    wrong = [word for word in _parts(value, form) if (word if entry.get("cased") else word.lower()) not in known]
    if not wrong:
        return None
    other = {word.lower(): word for word in entry["words"]}.get(wrong[0].lower())
    rest = [word for word in _parts(value, form) if word not in wrong] if form == "list" and value[0] != "^" else []
    better = ",".join(rest) or (other if wrong == [value] else None)
    do = entry.get("do") or (f"export {name}={better}" if better else f"unset {name}")
    shown = ", ".join(entry.get("shown", entry["words"]))
    named = "" if wrong == [value] else f"{', '.join(wrong)}: "
    return f"{named}NCCL knows {shown}; {entry['then']}", do


def _parts(value: str, form: str) -> Iterator[str]:
    """The words in a value; of the functions only those that NCCL does not have."""
    if form in ("one", "level"):
        yield value
        return
    for part in value.split(";") if form == "functions" else [value]:
        function, colon, words = part.rpartition(":") if form == "functions" else ("", "", part)
        if colon and function.lower() not in _FUNCTIONS:
            yield function
        yield from (word.strip() for word in words.removeprefix("^").split(",") if word.strip())


def _of_psm(name: str, value: str, unit: str, low: float, high: float, *choices: str) -> tuple[str, str] | None:
    if value.lower() in choices:
        return None
    form = {"count": r"(\d+)()", "bytes": r"(\d+)([KMGkmg]?)"}.get(unit, r"(\d+(?:\.\d{1,3})?)()")
    found = re.fullmatch(form, value, re.ASCII)
    if found is not None and low <= float(found[1]) * _SCALES.get(found[2].lower(), 1) <= high:
        return None
    what = f"one of {', '.join(choices)}" if choices else f"{_UNITS.get(unit, unit)} from {low:g} to {high:.10g}"
    return f"psmkit expects {what}, and refuses to start with another value", f"unset {name}"


_UNITS = {"count": "a number", "bytes": "bytes, such as 65536, 512K or 4M,"}


def _address(value: str) -> tuple[str, str] | None:
    """NCCL resolves the host, which is not tried here."""
    found = re.fullmatch(r"(?:\[[^\[\]]+\]|[^\[\]:,]+):(\d+)(?:[:,].*)?", value, re.ASCII)
    if found is not None and 0 < int(found[1]) < 65536:
        return None
    host, colon, _ = value.partition(":")
    if value.startswith("["):
        taken = "finds no such address and port here"
    else:
        taken = f"takes the host {host} and {'no valid port' if colon else 'port 65535'} from this"
    return f"NCCL expects HOST:PORT, IPV4:PORT or [IPV6]:PORT, and {taken}", "export NCCL_COMM_ID=HOST:PORT"
