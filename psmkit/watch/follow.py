"""Follow files: find them, read what is new in them once, and know them again when they are renamed, truncated or copied."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from psmkit.logparse.arrange import HEAD, Arrangement, Peek, arranged
from psmkit.logparse.copies import without_copies
from psmkit.logparse.growing import GrowingScan
from psmkit.logparse.inputs import ForeignInput, Input, look
from psmkit.logparse.merged import without_merged
from psmkit.logparse.scanner import catalogue_of
from psmkit.logparse.streams import Spool
from psmkit.model.errors import InputError
from psmkit.model.late import dataclass
from psmkit.model.wording import counted
from psmkit.watch.fates import Files
from psmkit.watch.files import START, TAIL, Log, Part

__all__ = ["Follower", "Snapshot"]

_CHUNK = 1 << 20  # bytes of a file before the next one's turn
#: A file that is so large shows what it is.
_SURE = 1 << 16
_LEAST_SURE = 512
_MOST_TEXTS = 20_000
#: How often the order of the files is sought before a judgement, as long as what is read changes it.
_TRIES = 8
_MARK = b"NCCL "


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The scan at one moment: the arguments of :meth:`GrowingScan.finished`, and the file behind each input."""

    scan: GrowingScan
    inputs: list[Input]
    foreign: list[ForeignInput]
    notes: list[str]
    texts: dict[tuple[int, int], str]
    parts: list[Part]


#: Streams, each with its logs in reading order, and which process of a stream belongs to which other one.
_Stream = tuple[Log, ...]
_Home = tuple[_Stream, str, int, _Stream]
_Plan = tuple[frozenset[_Stream], frozenset[_Home]]


class Follower:
    """The scan of files that grow.

    :meth:`poll` looks at the files and scans what known ones have more; :meth:`prepare` also takes in new ones, after which a :meth:`snapshot` is the
    scan of all bytes seen. Bytes are read once, unless the order in which files have to be read turns out to be another one: then all
    are read again, which happens while they are short, or if a file appears that continues or merges others.
    """

    def __init__(
        self, paths: Sequence[str], catalogue: Sequence[str] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self.files = Files(paths, clock)
        self.paths, self.news, self.say = self.files.paths, self.files.news, self.files.say
        self.bytes = 0
        self.readings = 0  # how often all was read
        #: Whether the newest preparation ended before all was read.
        self.interrupted = False
        #: Asked between two rounds of reading; True: leave out what is left.
        self.stop: Callable[[], bool] = lambda: False
        self._clock = clock
        self._given = tuple(catalogue)
        self._found_catalogues: tuple[str, ...] = ()
        self._catalogue_notes: list[str] = []
        self._scan: GrowingScan | None = None
        self._plan: _Plan | None = None
        self._left_out: list[str] = []
        self._peek: Peek | None = None
        self._buffer = memoryview(bytearray(TAIL + _CHUNK))
        self._nothing = Spool()
        self._texts: dict[Part, dict[int, str]] = {}

    # ---- what a user of it asks ----

    @property
    def logs(self) -> list[Log]:
        """The logs that are followed."""
        return [log for log in self.files.logs if log.readable]

    @property
    def refused(self) -> dict[str, str]:
        """The files that are not followed, each with the reason."""
        return {log.path: log.refused for log in self.files.logs if log.refused}

    def poll(self) -> bool:
        """Look at the files, and scan what is new in those that the scan has; returns whether anything changed.

        Raises:
            InputError: a path is nothing that can be followed.
        """
        now = self._clock()
        changed = self.files.look()
        waiting = [log for log in self.files.logs if log.plain]
        changed = self._feed([(log, p) for log in waiting for p in log.parts if p.number >= 0], now) > 0 or changed
        self._forget_old_runs()
        return changed or self.files.stale

    def prepare(self) -> None:
        """Let the scan have all bytes that were seen.

        Raises:
            CatalogueError: a TOML file is invalid.
        """
        now = self._clock()
        catalogues = tuple(self.paths.catalogues)
        if self._scan is None or catalogues != self._found_catalogues:
            self._read_catalogue(catalogues)
        for _ in range(_TRIES):
            self.files.stale = False
            for log in self.files.logs:
                self._classify(log)
            for log in self.files.logs:
                self._read_head(log)
            if not self._extend(self._planned()):
                self._let_go()
                self._again(self._planned())
            known = [(log, p) for log in self.files.logs if log.plain for p in log.parts if p.number >= 0]
            self._feed(known, now)
            self.interrupted = self.stop() and any(p.seen > p.offset for _, p in known if not p.lost)
            self._forget_old_runs()
            if not self.files.stale or self.interrupted:
                return

    def snapshot(self) -> Snapshot:
        """The scan as it is, for a fork of this process."""
        assert self._scan is not None
        parts = sorted(
            ((p, log) for log in self.files.logs for p in log.parts if p.number >= 0), key=lambda pair: pair[0].number
        )
        inputs, texts = [], {}
        for number, (part, log) in enumerate(parts):
            inputs.append(log.input(part, self._nothing, self._name(log, part)))
            if part.lost:
                texts.update({(number, offset): text for offset, text in self._texts.get(part, {}).items()})
        others = [log for log in self.files.logs if log.foreign is not None]
        for log in others:
            log.last.offset = log.last.seen
        foreign = [
            ForeignInput(log.path, log.foreign or "", log.input(log.last, self._nothing, log.path)) for log in others
        ]
        return Snapshot(self._scan, inputs, foreign, self._notes(), texts, [part for part, _ in parts])

    def remember(self, parts: Sequence[Part], quoted: Mapping[tuple[int, int], str]) -> None:
        """Lines that a judgement quoted, by the number of a part and offset: their file may lose them."""
        known = sum(map(len, self._texts.values()))
        if known > _MOST_TEXTS:
            self._texts = {part: lines for part, lines in self._texts.items() if part.lost}
        for (number, offset), text in quoted.items():
            self._texts.setdefault(parts[number], {})[offset] = text

    def close(self) -> None:
        """Close all files."""
        self.files.close()

    def _forget_old_runs(self) -> None:
        if self.files.forget_old_runs():
            self._plan = None  # read all again

    # ---- what files are ----

    def _classify(self, log: Log) -> None:
        part = log.last
        sure = (
            log.kind
            and not log.refused
            and (log.looked >= _SURE or (log.looked >= _LEAST_SURE and log.plain and _MARK in part.start))
        )
        if sure or log.looked == part.seen or part.lost or (len(log.parts) > 1 and log.plain):
            return
        log.looked = part.seen
        try:
            kind = look(f"/proc/self/fd/{part.fd}" if part.fd >= 0 else part.path, log.path)
        except InputError as error:
            log.refused, log.kind, log.foreign = error.reason, "", None
            return
        log.refused = ""
        log.kind, log.encoding, log.foreign = kind.kind, kind.encoding, kind.foreign

    def _read_head(self, log: Log) -> None:
        """Read the first lines of a log that is not in the scan yet, or whose bytes are read anew each time."""
        part = log.last
        if not log.readable or (log.plain and (part.number >= 0 or log.headed)):
            return
        if not log.plain:
            if log.peeked != (part.seen, part.modified):
                log.peeked, part.offset = (part.seen, part.modified), part.seen
                part.arrivals.add(part.seen, part.modified)
                with contextlib.suppress(InputError):
                    log.head = self._peeker().head(log.input(part, self._nothing, log.path))
            return
        at = 0
        for part in log.parts:
            low = max(log.heading - at, 0)
            at += part.seen
            if part.lost or low >= part.seen:
                continue
            try:
                data = os.pread(self.files.fd(part), min(HEAD - log.heading, part.seen - low), low)
            except OSError as error:
                self._unreadable(log, part, error)
                return
            self._to_head(log, data)
            if not low:
                part.start = data[:START]

    def _to_head(self, log: Log, data: bytes | memoryview) -> None:
        piece = bytes(data[: HEAD - log.heading])
        log.heading += len(piece)
        lines, end, rest = (log.begun + piece).rpartition(b"\n")
        log.begun = rest
        if end and self._peeker().add(log.head, lines + end):
            self.files.stale = True

    def _peeker(self) -> Peek:
        if self._peek is None:
            assert self._scan is not None
            self._peek = Peek(self._scan.catalogue)
        return self._peek

    def _unreadable(self, log: Log, part: Part, error: OSError) -> None:
        self.files.close_one(part)
        if not part.gone:
            log.refused = (error.strerror or str(error)).lower()
            log.looked = -1  # look again

    # ---- the order of reading ----

    def _planned(self) -> _Plan:
        """The streams that `psmkit analyze` would make of these files."""
        logs = sorted((log for log in self.files.logs if log.readable), key=lambda log: log.order)
        inputs = {}
        for log in logs:
            item = log.input(log.last, self._nothing, log.path)
            place = (
                replace(item.place, size=log.last.seen) if item.place is not None and not log.last.lost else item.place
            )
            inputs[log] = replace(item, size=sum(part.seen for part in log.parts), place=place)
        whole = {id(item): log for log, item in inputs.items()}
        single = [item for log, item in inputs.items() if len(log.parts) == 1 and not log.last.lost]
        left: list[str] = []
        kept = without_copies(single, lambda item: item.kind == "record" or bool(whole[id(item)].head.threads), left)
        kept = without_merged(kept, lambda item: whole[id(item)].head.names, left)
        self._left_out = left
        out = {id(item) for item in single} - {id(item) for item in kept}
        logs = [log for log in logs if id(inputs[log]) not in out]
        order = arranged([inputs[log] for log in logs], [log.head for log in logs])
        return _plan(logs, order)

    def _extend(self, plan: _Plan) -> bool:
        """Add what is new of a plan to the scan; False: that is not possible."""
        if self._plan is None or self._scan is None:
            return False
        streams, homes = plan
        known, known_homes = self._plan
        new = streams - known
        fresh = homes - known_homes
        if not known <= streams or not known_homes <= homes or any(stream not in new for stream, *_ in fresh):
            return False
        self._add(new, fresh)
        self._plan = plan
        self._add_parts()
        return True

    def _add_parts(self) -> None:
        """Files that continue a log are read after it, in its stream."""
        for log in self.files.logs:
            if log.readable and log.parts[0].number >= 0:
                stream = self._number_of(log)
                for part in log.parts:
                    if part.number < 0:
                        self._add_file(log, part, stream)

    def _number_of(self, log: Log) -> int:
        assert self._scan is not None
        return self._scan.stream_of[log.parts[0].number]

    def _add(self, streams: Collection[_Stream], homes: Collection[_Home]) -> None:
        assert self._scan is not None
        for stream in sorted(streams, key=lambda logs: min(log.order for log in logs)):
            number = self._scan.stream()
            for log in stream:
                for part in log.parts:
                    self._add_file(log, part, number)
        for stream, host, pid, home in sorted(homes, key=lambda row: (row[0][0].order, row[1], row[2])):
            self._scan.home(self._number_of(stream[0]), host, pid, self._number_of(home[0]))

    def _add_file(self, log: Log, part: Part, stream: int) -> None:
        assert self._scan is not None
        part.number = self._scan.file(stream, record=log.kind == "record")
        if log.plain:
            part.offset, part.tail, part.start = 0, b"", b""

    def _let_go(self) -> None:
        """All is read again: parts whose bytes are gone no longer count."""
        for log in list(self.files.logs):
            if not any(part.lost for part in log.parts):
                continue
            log.parts = [part for part in log.parts if not part.lost]
            self.files.say(f"{log.path}: what was in it before it was truncated or removed no longer counts")
            if not log.parts:
                self.files.drop(log)
                continue
            for part in log.parts:
                part.number = -1
            log.forget_head()
            self._read_head(log)

    def _again(self, plan: _Plan) -> None:
        """Begin a new scan."""
        assert self._scan is not None
        self._scan = GrowingScan(self._scan.catalogue)
        self.readings += 1
        for log in self.files.logs:
            for part in log.parts:
                part.number = -1
                part.offset = 0 if log.plain else part.offset
        streams, homes = plan
        self._add(streams, homes)
        self._plan = plan

    def _read_catalogue(self, beside: tuple[str, ...]) -> None:
        notes: list[str] = []
        self._scan = GrowingScan(catalogue_of(self._given, beside, notes))
        self._catalogue_notes, self._found_catalogues = notes, beside
        self._plan = self._peek = None
        for log in self.files.logs:
            log.forget_head()
            for part in log.parts:
                part.number = -1

    # ---- reading ----

    def _feed(self, waiting: Sequence[tuple[Log, Part]], now: float) -> int:
        """Scan what these files have more, a chunk of each in turn."""
        scan = self._scan
        if scan is None:
            return 0
        total = 0
        left = [(log, part) for log, part in waiting if part.seen > part.offset and not part.lost]
        fed = dict.fromkeys(part for _, part in left)
        begun = {part for part in fed if not part.offset}
        while left and not self.stop():
            goes_on = []
            for log, part in left:
                n = self._feed_one(log, part)
                total += n
                if n and part.seen > part.offset:
                    goes_on.append((log, part))
            scan.end_round()
            left = goes_on
        for part in fed:
            if part.offset:
                when = min(part.modified, now) if part in begun else now
                part.arrivals.add(scan.lines(part.number) + (part.tail[-1:] != b"\n"), when)
        self.bytes += total
        return total

    def _feed_one(self, log: Log, part: Part) -> int:
        assert self._scan is not None
        before = len(part.tail)
        size = min(part.seen - part.offset, _CHUNK)
        try:
            got = os.preadv(self.files.fd(part), [self._buffer[: before + size]], part.offset - before)
        except OSError as error:
            self._unreadable(log, part, error)
            return 0
        n = got - before
        if n < 0 or self._differs(part.tail, bytes(self._buffer[:before])):
            # It was truncated and has grown again since the last look, or another file has its number.
            self.files.truncated(log, part, part.seen, part.modified)
            return 0
        if n == 0:
            return 0
        data = self._buffer[before:got]
        if len(part.start) < START:
            part.start += bytes(data[: START - len(part.start)])
        if not log.headed:
            at = sum(p.offset for p in log.parts[: log.parts.index(part)]) + part.offset
            if at + n > log.heading:
                self._to_head(log, data[max(log.heading - at, 0) :])
        if part.names is not None:
            lines = bytes(data).rpartition(b"\n")
            self._peeker().add(part.names, lines[0] + lines[1])
        self._scan.feed(part.number, data)
        part.offset += n
        part.tail = bytes(self._buffer[max(got - TAIL, 0) : got])
        return n

    @staticmethod
    def _differs(tail: bytes, seen: bytes) -> bool:
        # A writer that does not append leaves zeros where a truncated file was.
        return tail != seen and seen.strip(b"\0") != b""

    # ---- words ----

    @staticmethod
    def _name(log: Log, part: Part) -> str:
        """The name of a part in reports: two of them never have the same."""
        if part is log.last or (part.path != log.path and not part.lost):
            return part.path if not part.lost else log.path
        return f"{log.path} (until {time.strftime('%H:%M:%S', time.localtime(part.until))}, part {log.parts.index(part) + 1})"

    def _notes(self) -> list[str]:
        notes = [*self._catalogue_notes, *self._left_out]
        notes += [f"{log.path}: {log.refused}" for log in self.files.logs if log.refused]
        some = any(part.seen for log in self.logs for part in log.parts)
        notes += [f"{log.path}: the file is empty" for log in self.logs if some and not any(p.seen for p in log.parts)]
        for log in self.logs:
            lost = sum(part.lost and bool(part.offset) for part in log.parts)
            if lost:
                notes.append(f"{log.path}: {counted(lost, 'part')} of it can no longer be read; what was read counts")
        return notes


def _plan(logs: Sequence[Log], order: Arrangement) -> _Plan:
    streams = [tuple(logs[i] for i in stream) for stream in order.streams]
    homes = frozenset((streams[stream], host, pid, streams[home]) for stream, host, pid, home in order.homes)
    return frozenset(streams), homes
