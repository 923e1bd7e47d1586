"""Inputs that are not NCCL logs: RAS answers, flight recorder dumps, stacks, inspections of live processes.

:func:`sniff` recognises an input by its first bytes; :func:`load` reads all of it. Sizes are bounded, truncated inputs are
read as far as they go. Of a pickle only plain data is read: nothing of it is imported or called.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from psmkit.logparse.foreign.flight import MAX_ENTRIES, parse_flight, parse_flight_pickle
from psmkit.logparse.foreign.jsondocs import MAX_VALUES
from psmkit.logparse.foreign.pickled import PickleError, is_pickle
from psmkit.logparse.foreign.proxydump import ProxyOp, ProxySub, parse_op
from psmkit.logparse.foreign.ras_json import parse_ras_json
from psmkit.logparse.foreign.ras_text import parse_ras_text
from psmkit.logparse.foreign.stack_json import parse_inspections, parse_pyspy_json
from psmkit.logparse.foreign.stacks import bare_frame, parse_stacks
from psmkit.logparse.foreign.types import FlightDump, RasReport, StackDump
from psmkit.logparse.formats import compression
from psmkit.logparse.streams import Input, Reader
from psmkit.model.errors import PsmkitError
from psmkit.model.late import dataclass, regex

__all__ = [
    "KINDS",
    "MAX_BYTES",
    "FlightDump",
    "Loaded",
    "ProxyOp",
    "ProxySub",
    "RasReport",
    "StackDump",
    "load",
    "parse",
    "parse_op",
    "sniff",
]

#: The possible results of :func:`sniff`.
KINDS = ("flight-recorder", "ras-json", "ras-text", "gdb", "py-spy", "py-spy-json", "inspection")
#: The maximum that is read of one input, uncompressed. The rest counts as cut off.
MAX_BYTES = 128 << 20

# Lines that identify a log, whatever else is in the file.
_LOG_LINE = regex(rb"NCCL (?:INFO|WARN|TRACE|ABORT|CALL|ATTN|DIAG) |ProcessGroupNCCL\.cpp:\d+\]")
# A line of a log, which no tool prints among stacks: a program may put the stacks of its processes into its log.
_STAMPED = regex(rb"^\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", re.MULTILINE)
_FLIGHT = (
    b'"pg_config"',
    b'"pg_status"',
    b'"profiling_name"',
    b'"collective_seq_id"',
    b'"p2p_seq_id"',
    b'"time_discovered_started_ns"',
)
# A recorder without an entry: nothing but its versions.
_EMPTY_FLIGHT = regex(
    rb'\{(?=[^{}]{0,400}"version")(?:\s*"\w{1,40}"\s*:\s*"[^"]{0,40}"\s*,){1,8}\s*"entries"\s*:\s*\[\s*\]\s*\}\s*\Z'
)
# torch's own dumps are pickles: these keys stand in the first entry.
_PICKLED = (b"pg_config", b"pg_status", b"profiling_name", b"collective_seq_id", b"nccl_comm_state")
_RAS_JSON = (b'"communicators_count"', b'"communicators"', b'"missing_ranks_count"', b'"cuda_runtime_version"')
_RAS_EVENT = regex(rb'"group":\s*"(?:LIFECYCLE|TRACE)"\s*,\s*"event"')
_RAS_TEXT = (
    regex(rb"^Job summary\r?\n=+", re.MULTILINE),
    regex(rb"^RAS Monitor Mode - ", re.MULTILINE),
    regex(rb"^Group +Comms +Nodes +Ranks", re.MULTILINE),
)
_INSPECTION = regex(rb'"schema"\s*:\s*"psmkit-inspection/')
_PYSPY_JSON = (b'"frames"', b'"thread_id"', b'"owns_gil"')
# A launcher's tag may stand before each line.
_TAG = rb"^(?:\[(?:\d+,)?\d+\](?:<std(?:out|err)>)?:? ?|\[rank\d+\]:? ?|(?:rank )?\d+: ?)?"
_GDB = tuple(
    regex(_TAG + pattern, re.MULTILINE)
    for pattern in (
        rb"Thread \d+ \((?:Thread 0x[0-9a-f]+ )?\(?LWP \d+\)?",
        rb"\* *\d+ +Thread 0x[0-9a-f]+ \(LWP \d+\)",
        rb"(?:GNU gdb |\[New LWP \d+\]|Attaching to (?:program|process)|\((?:cuda-)?gdb\) (?:bt|where|thread apply|info threads))",
        rb"PID \d+ - (?:process|core)",
        rb"TID \d+:\r?\n" + _TAG + rb"#0 +0x",
    )
)
#: A stack without a head: its first lines.
_FIRST_FRAMES = regex(rb"\A\s*#0 +(?:0x[0-9a-f]+ )?\S[^\n]*\n\s*#1 +\S")
_PYSPY = (
    regex(_TAG + rb"Process \d+: .*\r?\n" + _TAG + rb"Python v\d", re.MULTILINE),
    regex(_TAG + rb'Thread (?:0x)?[0-9A-Fa-f]+ \((?:idle|active)[a-z+]*\)(?:: "|\r?$)', re.MULTILINE),
)
# What faulthandler prints, where it is all that was printed: a log of a crash tells of its cause, too.
_FAULT = regex(
    rb"\A(?:Timeout \([^\n]{1,40}\)!\s*)?(?:Current thread|Thread) 0x[0-9a-fA-F]+ (?:\[[^\]\n]*\] )?\(most recent call first\):"
)
_LEAST_BARE = 3


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of one foreign input; ``truncated`` is True if it exceeds :data:`MAX_BYTES`. ``nbytes`` were read of it, uncompressed."""

    path: str
    kind: str
    flights: tuple[FlightDump, ...] = ()
    ras: tuple[RasReport, ...] = ()
    stacks: tuple[StackDump, ...] = ()
    truncated: bool = False
    error: str | None = None
    nbytes: int = 0

    @property
    def note(self) -> str:
        """Says that the dump of a flight recorder has no entries or is cut; empty: neither."""
        if self.truncated:
            return ""
        if all(dump.complete for dump in self.flights):
            empty = self.flights and not any(dump.entries for dump in self.flights)
            return f"the flight recorder dump {self.path} has no entries" if empty else ""
        more = f", or holds more than {MAX_VALUES:,} values" if self.nbytes > MAX_VALUES else ""
        return f"{self.path} is cut{more}: the flight recorder dump was read up to its last complete value"


def sniff(head: bytes) -> str | None:
    """The kind of an input by its first bytes (64 KiB are plenty): one of :data:`KINDS`, or None for logs and anything else."""
    if is_pickle(head):
        return "flight-recorder" if any(key in head for key in _PICKLED) else None
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"[") and _INSPECTION.search(text):
        return "inspection"
    # a launcher's tag may begin with a bracket, too
    if text[:1] == b"{" or (text[:1] == b"[" and not _LOG_LINE.search(text)):
        if any(key in text for key in _RAS_JSON) or _RAS_EVENT.search(text):
            return "ras-json"
        if any(key in text for key in _FLIGHT) or (
            b'"entries"' in text and (b'"frames"' in text or _EMPTY_FLIGHT.match(text))
        ):
            return "flight-recorder"
        if all(key in text for key in _PYSPY_JSON):
            return "py-spy-json"
    if _LOG_LINE.search(text):
        return None
    if any(pattern.search(text) for pattern in _RAS_TEXT):
        return "ras-text"
    if _STAMPED.search(text):
        return None
    if any(pattern.search(text) for pattern in _PYSPY) or _FAULT.match(text):
        return "py-spy"
    if any(pattern.search(text) for pattern in _GDB) or _FIRST_FRAMES.match(text):
        return "gdb"
    return "py-spy" if _bare(text) else None


def _bare(text: bytes) -> bool:
    """Whether an input begins with frames: a stack that somebody copied without its head."""
    first = [line for line in text[:4096].decode("utf-8", "replace").splitlines() if line.strip()][:_LEAST_BARE]
    return len(first) == _LEAST_BARE and all(map(bare_frame, first))


def parse(text: str, kind: str, name: str = "", entries: int = MAX_ENTRIES) -> Loaded:
    """Parse the text of an input of ``kind``; ``name`` is its file name, which may give the rank; ``entries`` are as of :func:`load`.

    Raises:
        ValueError: ``kind`` is not one of :data:`KINDS`.
    """
    if kind == "flight-recorder":
        return Loaded(name, kind, flights=tuple(parse_flight(text, name, entries)))
    if kind == "ras-json":
        return Loaded(name, kind, ras=tuple(parse_ras_json(text)))
    if kind == "ras-text":
        return Loaded(name, kind, ras=tuple(parse_ras_text(text)))
    if kind in ("gdb", "py-spy"):
        return Loaded(name, kind, stacks=tuple(parse_stacks(text, kind, name)))
    if kind == "py-spy-json":
        return Loaded(name, kind, stacks=tuple(parse_pyspy_json(text)))
    if kind == "inspection":
        seen, error = parse_inspections(text)
        return Loaded(name, kind, stacks=tuple(seen), error=error)
    raise ValueError(f"not a kind of foreign input: {kind}")


def load(
    path: str, kind: str, limit: int = MAX_BYTES, source: Input | None = None, entries: int = MAX_ENTRIES
) -> Loaded:
    """Read and parse a foreign input. If it is no longer readable, ``error`` gives the reason.

    Args:
        path: its name in reports, and the file to read without a ``source``.
        kind: one of :data:`KINDS`.
        limit: the most bytes to read, uncompressed.
        source: where its bytes are.
        entries: of a flight recorder's dump, so many entries; of more, older ones that are completed are left out.
    """
    try:
        data = _read(source or _file(path), limit + 1)
    except (OSError, PsmkitError) as error:
        return Loaded(path, kind, error=getattr(error, "reason", None) or str(error) or type(error).__name__)
    read = min(len(data), limit)
    if is_pickle(data):
        try:
            flights = tuple(parse_flight_pickle(data, path, entries))
            return Loaded(path, kind, flights=flights, truncated=len(data) > limit, nbytes=read)
        except PickleError as error:
            return Loaded(path, kind, error=str(error), nbytes=read)
    try:
        loaded = parse(data[:limit].decode("utf-8", "replace").removeprefix("\ufeff"), kind, path, entries)
    except RecursionError:
        return Loaded(path, kind, error="it is nested too deeply", nbytes=read)
    return replace(loaded, path=path, truncated=len(data) > limit, nbytes=read)


def _file(path: str) -> Input:
    with Path(path).open("rb") as raw:
        return Input(path, compression(raw.read(6)) or "log", 0)


def _read(source: Input, limit: int) -> bytes:
    reader = Reader(source)
    parts: list[bytes] = []
    size = 0
    # A truncated compressed file yields what it has.
    while size < limit and (part := reader.read(min(1 << 20, limit - size))):
        parts.append(part)
        size += len(part)
    reader.close()
    if not parts and reader.note is not None:
        raise OSError(reader.note)
    return b"".join(parts)
