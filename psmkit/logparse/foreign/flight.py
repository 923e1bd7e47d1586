"""PyTorch flight recorder dumps, in JSON or as pickles: one file for each rank, or one file with the dumps of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from psmkit.logparse.foreign.jsondocs import documents
from psmkit.logparse.foreign.pickled import PickleError, read_pickle
from psmkit.logparse.foreign.types import FlightDump, FlightEntry, FlightGroup, FlightStatus
from psmkit.model.late import regex

__all__ = ["MAX_ENTRIES", "parse_flight", "parse_flight_pickle", "rank_in_name"]

#: The most entries that are kept of a dump.
MAX_ENTRIES = 500_000
_LARGEST = 1 << 63
_MAX_KNOWN = 100_000
_T = TypeVar("_T")
# Of one operation; a coalesced one has a shape for each tensor.
_MAX_SHAPES, _MAX_DIMS, _MAX_FRAMES = 4096, 16, 256
_IN_FILE = regex(r"(?:rank|trace)[_-]?(?:rank)?[_-]?(\d{1,18})|(?:^|[_.-])(\d{1,18})(?=(?:\.[A-Za-z]+)*$)")
_IN_FOLDER = regex(r"^rank[_-]?(\d{1,18})$")
_RELEASE = regex(r"\d{1,2}\.\d{1,2}\.\d{1,2}")
# Frames of torch itself and of interpreter start-up; the first frame outside them belongs to the program.
_INNER = (
    "torch/distributed/",
    "torch/nn/modules/module.py",
    "torch/_dynamo/",
    "torch/autograd/",
    "torch/utils/",
    "contextlib.py",
)


def parse_flight(text: str, name: str = "", most: int = MAX_ENTRIES) -> list[FlightDump]:
    """The dumps in ``text``. ``name`` is the file's name, which gives the rank if the dump does not. Of more than ``most`` entries, older ones
    that are completed are left out."""
    known: dict[Any, Any] = {}  # what entries have in common, once

    def each(value: dict[str, Any]) -> Any:
        return _entry(value, known) if _is_entry(value) else value

    values, whole = documents(text, each)
    out: list[FlightDump] = []
    for value in values:
        ours = list(_dumps(value, rank_in_name(name), whole or value is not values[-1]))
        # a document that is cut is so in its last dump
        out.extend(_newest(replace(dump, complete=True), most) for dump in ours[:-1])
        out.extend(_newest(dump, most) for dump in ours[-1:])
    return out


def parse_flight_pickle(data: bytes, name: str = "", most: int = MAX_ENTRIES) -> list[FlightDump]:
    """The dumps in a pickle, as torch writes them by itself; no code of it runs.

    Raises:
        PickleError: it is damaged, or holds more than data.
    """
    try:
        return [_newest(dump, most) for dump in _dumps(read_pickle(data), rank_in_name(name), True)]
    except RecursionError:
        raise PickleError("the pickle is nested too deeply") from None


def rank_in_name(name: str) -> int | None:
    """The rank in a file name such as ``nccl_trace_rank_3.json``, ``dump_3`` or ``rank3/trace``; None if there is none."""
    folder, _, file = name.replace("\\", "/").rpartition("/")
    match = _IN_FILE.search(file)
    if match:
        return int(match.group(1) or match.group(2))
    match = _IN_FOLDER.match(folder.rpartition("/")[2])
    return int(match.group(1)) if match else None


def _dumps(value: Any, rank: int | None, whole: bool, seen: set[int] | None = None) -> Iterator[FlightDump]:
    # a pickle may hold one object in many places, even in itself
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, list):
        if any(_is_entry(v) for v in value[:3]):
            yield _dump({"entries": value}, rank, whole)
            return
        for item in value:
            yield from _dumps(item, None, whole, seen)
        return
    if not isinstance(value, dict):
        return
    if "entries" in value or "pg_status" in value or "pg_config" in value:
        yield _dump(value, rank, whole)
        return
    for key, item in value.items():
        if isinstance(item, dict | list):
            digits = re.search(r"(\d{1,18})$", str(key))
            yield from _dumps(item, int(digits.group(1)) if digits else None, whole, seen)


def _is_entry(value: Any) -> bool:
    return isinstance(value, FlightEntry) or (isinstance(value, dict) and "profiling_name" in value)


def _newest(dump: FlightDump, most: int) -> FlightDump:
    """A dump with all entries that are not completed, and the newest of the others."""
    left = len(dump.entries) - most
    if left <= 0:
        return dump
    kept: list[FlightEntry] = []
    dropped = 0
    for entry in dump.entries:
        if dropped < left and entry.state == "completed":
            dropped += 1
        else:
            kept.append(entry)
    return replace(dump, entries=tuple(kept), dropped=dropped)


def _dump(value: Mapping[str, Any], rank: int | None, whole: bool) -> FlightDump:
    told = _int(value.get("rank"))
    groups = _groups(value.get("pg_config"))
    entries = []
    raw = value.get("entries")
    known: dict[Any, Any] = {}
    for item in raw[-MAX_ENTRIES:] if isinstance(raw, list) else ():
        if _is_entry(item):
            entries.append(item if isinstance(item, FlightEntry) else _entry(item, known))
    if not whole and entries and not entries[-1].state:
        entries.pop()  # the end of a cut dump: half an entry
    return FlightDump(
        rank=told if told is not None else rank,
        entries=tuple(entries),
        groups=groups,
        status=_status(value.get("pg_status")),
        version=_text(value.get("version")),
        host=_text(value.get("host_name") or value.get("hostname")),
        complete=whole,
        nccl=_release(value.get("nccl_version", value.get("comm_lib_version"))),
    )


def _release(value: Any) -> str | None:
    return value if isinstance(value, str) and _RELEASE.fullmatch(value) else None


def _groups(value: Any) -> dict[str, FlightGroup]:
    out: dict[str, FlightGroup] = {}
    for name, config in value.items() if isinstance(value, dict) else ():
        if not isinstance(config, dict):
            continue
        ranks = config.get("ranks")
        numbers = (
            re.findall(r"\b\d{1,9}\b", ranks) if isinstance(ranks, str) else ranks if isinstance(ranks, list) else []
        )
        out[str(name)] = FlightGroup(
            name=str(name),
            desc=_text(config.get("desc")) or "",
            ranks=tuple(n for r in numbers if (n := _int(r)) is not None),
        )
    return out


def _status(value: Any) -> dict[str, FlightStatus]:
    out: dict[str, FlightStatus] = {}
    for name, status in value.items() if isinstance(value, dict) else ():
        if isinstance(status, dict):
            numbers = [_int(status.get(f"last_{what}_collective")) for what in ("enqueued", "started", "completed")]
            out[str(name)] = FlightStatus(*(-1 if n is None else n for n in numbers))
    return out


def _entry(item: Mapping[str, Any], known: dict[Any, Any]) -> FlightEntry:
    group = item.get("process_group")
    name = (
        str(group[0]) if isinstance(group, list | tuple) and group else str(item.get("pg_name", item.get("pg_id", "0")))
    )
    op = str(item.get("profiling_name", ""))
    is_p2p = bool(item.get("is_p2p", "->" in op or "<-" in op))
    collective = _int(item.get("collective_seq_id", item.get("seq_id")))
    p2p = _int(item.get("p2p_seq_id"))
    seq = p2p if is_p2p and p2p is not None else collective
    inner = op.split(":", 1)[1] if ":" in op else op
    dtypes = item.get("input_dtypes")

    def once(value: _T) -> _T:
        found: _T = known.setdefault(value, value) if len(known) < _MAX_KNOWN else known.get(value, value)
        return found

    return FlightEntry(
        group=once(name),
        seq=seq if seq is not None else -1,
        is_p2p=is_p2p,
        op=once(inner),
        state=once(str(item.get("state", ""))),
        input_sizes=once(_shapes(item.get("input_sizes"))),
        output_sizes=once(_shapes(item.get("output_sizes"))),
        dtypes=once(tuple(str(d) for d in dtypes) if isinstance(dtypes, list) else ()),
        created_ns=_int(item.get("time_created_ns")),
        frame=once(_frame(item.get("frames"))),
        record=_int(item.get("record_id", item.get("id"))),
    )


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        return ()
    shapes = (shape[:_MAX_DIMS] for shape in value[:_MAX_SHAPES] if isinstance(shape, list))
    return tuple(tuple(n for d in shape if (n := _int(d)) is not None) for shape in shapes)


def _frame(value: Any) -> str | None:
    if not isinstance(value, list):
        return None
    first = None
    for frame in value[:_MAX_FRAMES]:
        if not isinstance(frame, dict):
            continue
        file = str(frame.get("filename", ""))
        text = f"{frame.get('name', '?')} at {file}:{frame.get('line', '?')}"
        first = first or text
        if file and not any(part in file for part in _INNER):
            return text
    return first


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -_LARGEST <= number < _LARGEST else None


def _text(value: Any) -> str | None:
    return str(value) if value is not None else None
