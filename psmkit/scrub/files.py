"""Inputs that are no text: what of them can be written without names."""

from __future__ import annotations

import json
from typing import Any

from psmkit.logparse.foreign import MAX_BYTES
from psmkit.logparse.foreign.pickled import PickleError, is_pickle, read_pickle
from psmkit.logparse.inputs import Input, Reader

__all__ = ["is_pickle_input", "json_of_pickle"]

_HEAD = 16


def is_pickle_input(source: Input) -> bool:
    """Whether an input is a Flight Recorder dump as torch writes it: a pickle."""
    if source.foreign != "flight-recorder":
        return False
    reader = Reader(source)
    try:
        return is_pickle(reader.read(_HEAD))
    finally:
        reader.close()


def json_of_pickle(source: Input) -> str:
    """The data of a pickle as JSON, an entry of a list a line.

    Raises:
        PickleError: it holds more than data.
        ValueError: it is larger than psmkit reads, or holds what JSON cannot say.
    """
    reader = Reader(source)
    data = b""
    try:
        while len(data) <= MAX_BYTES and (more := reader.read(1 << 20)):
            data += more
    finally:
        reader.close()
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return json.dumps(_plain(read_pickle(data)), indent=1) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else json.dumps(_plain(key)): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise PickleError(f"an object of {type(value).__name__}")
