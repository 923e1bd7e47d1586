"""Follow files: find them, read what is new in them once, and know them again when they are renamed, truncated or copied."""

from __future__ import annotations

import contextlib
import glob
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from psmkit.logparse.arrange import HEAD, Arrangement, Head, Peek, arranged
from psmkit.logparse.copies import without_copies
from psmkit.logparse.growing import GrowingScan
from psmkit.logparse.inputs import ForeignInput, Input, look
from psmkit.logparse.merged import without_merged
from psmkit.logparse.scanner import catalogue_of, open_files
from psmkit.logparse.streams import Spool
from psmkit.model.errors import InputError
from psmkit.model.wording import counted
from psmkit.watch.files import START, TAIL, Found, Key, Log, Part, Paths

__all__ = ["Follower", "Snapshot"]

_CHUNK = 1 << 20  # bytes of a file before the next one's turn
#: A file that is so large shows what it is.
_SURE = 1 << 16
_LEAST_SURE = 512
_MOST_TEXTS = 20_000
#: How often the order of the files is sought before a judgement, as long as what is read changes it.
_TRIES = 8
_MARK = b"NCCL "
#: How many news are kept for whoever asks next.
_MOST_NEWS = 100


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
        self.paths = Paths(paths)
        self.news: list[str] = []
        self.bytes = 0
        self.readings = 0  # how often all was read
        #: Asked between two rounds of reading; True: leave out what is left.
        self.stop: Callable[[], bool] = lambda: False
        self._clock = clock
        self._given = tuple(catalogue)
        self._logs: list[Log] = []
        self._by_path: dict[str, Log] = {}
        self._by_key: dict[Key, tuple[Log, Part]] = {}
        self._here: dict[Key, Found] = {}
        self._found_catalogues: tuple[str, ...] = ()
        self._catalogue_notes: list[str] = []
        self._scan: GrowingScan | None = None
        self._plan: _Plan | None = None
        self._left_out: list[str] = []
        self._stale = True
        self._peek: Peek | None = None
        self._buffer = memoryview(bytearray(TAIL + _CHUNK))
        self._nothing = Spool()
        self._open: dict[Part, None] = {}
        self._room = 0
        self._texts: dict[Part, dict[int, str]] = {}
        self._started = False

    # ---- what a user of it asks ----

    @property
    def logs(self) -> list[Log]:
        """The logs that are followed."""
        return [log for log in self._logs if log.readable]

    @property
    def behind(self) -> bool:
        """Whether reading was stopped before the end of what was seen."""
        return self._stale or any(
            part.number >= 0 and part.seen > part.offset and not part.lost
            for log in self._logs
            if log.plain
            for part in log.parts
        )

    @property
    def refused(self) -> dict[str, str]:
        """The files that are not followed, each with the reason."""
        return {log.path: log.refused for log in self._logs if log.refused}

    def poll(self) -> bool:
        """Look at the files, and scan what is new in those that the scan has; returns whether anything changed.

        Raises:
            InputError: a path is nothing that can be followed.
        """
        now = self._clock()
        changed = self._look(now)
        self._started = True
        waiting = [log for log in self._logs if log.plain]
        changed = self._feed([(log, p) for log in waiting for p in log.parts if p.number >= 0], now) > 0 or changed
        self._forget_old_runs()
        return changed or self._stale

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
            self._stale = False
            for log in self._logs:
                self._classify(log)
            for log in self._logs:
                self._read_head(log)
            if not self._extend(self._planned()):
                self._let_go()
                self._again(self._planned())
            self._feed([(log, p) for log in self._logs if log.plain for p in log.parts if p.number >= 0], now)
            self._forget_old_runs()
            if not self._stale:
                return

    def snapshot(self) -> Snapshot:
        """The scan as it is, for a fork of this process."""
        assert self._scan is not None
        parts = sorted(
            ((p, log) for log in self._logs for p in log.parts if p.number >= 0), key=lambda pair: pair[0].number
        )
        inputs, texts = [], {}
        for number, (part, log) in enumerate(parts):
            inputs.append(log.input(part, self._nothing, self._name(log, part)))
            if part.lost:
                texts.update({(number, offset): text for offset, text in self._texts.get(part, {}).items()})
        others = [log for log in self._logs if log.foreign is not None]
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
        for part in list(self._open):
            self._close(part)

    # ---- looking ----

    def _look(self, now: float) -> bool:
        found: dict[Key, Found] = {}
        changed = False
        for one in self.paths.look():
            found.setdefault(one.key, one)
        self._here = found
        for order, one in enumerate(found.values()):
            known = self._by_key.get(one.key)
            if known is None:
                log = self._by_path.get(one.path)
                changed = True
                if log is None:
                    log = self._appeared(one)
                else:
                    self._replaced(log, one, now)
            else:
                log, part = known
                if part.path != one.path:
                    self._renamed(log, part, one)
                    changed = True
                changed = self._grown(log, part, one.size, one.modified, now) or changed
            log.order = order
        for log in list(self._logs):
            for part in list(log.parts):
                if part.key not in found and not part.lost:
                    changed = self._absent(log, part, now) or changed
        return changed

    def _say(self, text: str) -> None:
        self.news.append(text)
        del self.news[:-_MOST_NEWS]

    def _appeared(self, one: Found) -> Log:
        part = Part(one.path, one.key, seen=one.size, modified=one.modified)
        log = Log(one.path, [part])
        self._logs.append(log)
        self._by_path[one.path] = log
        self._by_key[one.key] = log, part
        if self._started:
            self._say(f"{one.path} appeared")
        return log

    def _replaced(self, log: Log, one: Found, now: float) -> None:
        """Another file stands at the path of a log."""
        old = log.last
        part = Part(one.path, one.key, seen=one.size, modified=one.modified)
        self._by_key[one.key] = log, part
        self._stale = True
        log.looked = -1
        if not log.plain or old.number < 0:
            for earlier in log.parts:
                self._close(earlier)
            log.parts, log.kind, log.refused = [part], "", ""
            log.forget_head()
            return
        old.until = now
        part.before, part.names = frozenset(log.head.names), Head()
        log.parts.append(part)
        self._seek_renamed(old)
        self._say(f"{one.path} is another file now: it was rotated, or removed and written again")

    def _renamed(self, log: Log, part: Part, one: Found) -> None:
        old, part.path = part.path, one.path
        if part is log.last and old == log.path and one.path not in self._by_path:
            self._say(f"{old} is {one.path} now")

    def _seek_renamed(self, part: Part) -> None:
        """A file that was rotated has another name beside its old one."""
        for path in glob.iglob(glob.escape(part.path) + "[.-]*"):
            with contextlib.suppress(OSError):
                found = os.stat(path)
                if (found.st_dev, found.st_ino) == part.key:
                    part.path = path

    def _grown(self, log: Log, part: Part, size: int, modified: float, now: float) -> bool:
        if size < part.offset or (size < part.seen and not log.plain):
            self._truncated(log, part, size, modified, now)
            return True
        changed = size != part.seen or (not log.plain and modified != part.modified)
        part.seen, part.modified = size, modified
        if changed and not (log.plain and part.number >= 0):
            self._stale = True
        return changed

    def _truncated(self, log: Log, part: Part, size: int, modified: float, now: float) -> None:
        """The bytes of a file are gone; what follows in it is another part."""
        self._say(f"{part.path} was truncated")
        self._stale = True
        if part.number < 0 or not log.plain:
            part.seen, part.modified, part.offset, part.start, part.tail = size, modified, 0, b"", b""
            log.looked = -1
            log.forget_head()
            return
        new = Part(part.path, part.key, seen=size, modified=modified, fd=part.fd)
        new.before, new.names = frozenset(log.head.names), Head()
        if part in self._open:
            del self._open[part]
            self._open[new] = None
        part.fd, part.lost, part.until = -1, True, now
        log.parts.insert(log.parts.index(part) + 1, new)
        self._by_key[part.key] = log, new
        self._seek_copy(part)

    def _seek_copy(self, part: Part) -> None:
        """A truncated file may have been copied first, beside it: the copy has its bytes."""
        for path in sorted(glob.glob(glob.escape(part.path) + "[.-]*")):
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                found = os.fstat(fd)
                key = (found.st_dev, found.st_ino)
                tail = os.pread(fd, len(part.tail), part.offset - len(part.tail))
                known = self._by_key.get(key)
                own = known is None or (len(known[0].parts) == 1 and not known[0].last.lost)
                if own and tail == part.tail and os.pread(fd, len(part.start), 0) == part.start:
                    if known is not None:
                        self._drop(known[0])
                    part.path, part.key, part.lost = path, key, False
                    part.seen, part.modified = max(found.st_size, part.offset), found.st_mtime
                    self._by_key[key] = next(log for log in self._logs if part in log.parts), part
                    self._keep_open(part, fd)
                    return
                os.close(fd)

    def _absent(self, log: Log, part: Part, now: float) -> bool:
        """A file is at no path that is followed: it was removed, or renamed to another place. It may still grow."""
        if not part.gone:
            part.gone = True
            part.until = part.until or now
            if part is log.last:
                self._say(f"{part.path} was removed: what it said still counts")
        found: os.stat_result | None = None
        with contextlib.suppress(OSError):
            found = os.fstat(part.fd) if part.fd >= 0 else os.stat(part.path)
        if found is None or (found.st_dev, found.st_ino) != part.key:
            part.lost = True
            self._by_key.pop(part.key, None)
            return True
        return self._grown(log, part, found.st_size, found.st_mtime, now)

    def _drop(self, log: Log) -> None:
        for part in log.parts:
            self._close(part)
            if self._by_key.get(part.key, (None,))[0] is log:
                del self._by_key[part.key]
        self._logs.remove(log)
        if self._by_path.get(log.path) is log:
            del self._by_path[log.path]
        self._stale = True

    def _forget_old_runs(self) -> None:
        """Where another job writes to a path and the file of the earlier one is no longer among the files that are followed, only the new job counts."""
        for log in self._logs:
            for at in range(len(log.parts) - 1, 0, -1):
                names = log.parts[at].names
                before = log.parts[at].before
                if names is None or not names.threads or not before:
                    continue
                log.parts[at].names = None
                old = log.parts[:at]
                going_on = names.names & before - names.born
                if going_on or any(p.key in self._here and not p.lost for p in old):
                    continue  # it goes on, or the old file is there to be read
                for part in old:
                    self._close(part)
                    if self._by_key.get(part.key, (None, None))[1] is part:
                        del self._by_key[part.key]
                del log.parts[:at]
                log.forget_head()
                self._stale = True
                self._plan = None  # read all again
                self._say(f"another job writes to {log.path}: the earlier one no longer counts")
                break

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
                data = os.pread(self._fd(part), min(HEAD - log.heading, part.seen - low), low)
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
            self._stale = True

    def _peeker(self) -> Peek:
        if self._peek is None:
            assert self._scan is not None
            self._peek = Peek(self._scan.catalogue)
        return self._peek

    def _unreadable(self, log: Log, part: Part, error: OSError) -> None:
        if not part.gone:
            log.refused = (error.strerror or str(error)).lower()
            log.looked = -1  # look again

    # ---- the order of reading ----

    def _planned(self) -> _Plan:
        """The streams that `psmkit analyze` would make of these files."""
        logs = sorted((log for log in self._logs if log.readable), key=lambda log: log.order)
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
        for log in self._logs:
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
        for log in list(self._logs):
            if not any(part.lost for part in log.parts):
                continue
            log.parts = [part for part in log.parts if not part.lost]
            self._say(f"{log.path}: what was in it before it was truncated or removed no longer counts")
            if not log.parts:
                self._drop(log)
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
        for log in self._logs:
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
        for log in self._logs:
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
            got = os.preadv(self._fd(part), [self._buffer[: before + size]], part.offset - before)
        except OSError as error:
            self._unreadable(log, part, error)
            return 0
        n = got - before
        if n < 0 or self._differs(part.tail, bytes(self._buffer[:before])):
            # It was truncated and has grown again since the last look, or another file has its number.
            self._truncated(log, part, part.seen, part.modified, self._clock())
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

    def _fd(self, part: Part) -> int:
        """An open file; the one that was opened first makes room."""
        if part.fd < 0:
            fd = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != part.key:
                os.close(fd)
                raise FileNotFoundError(2, "another file has its name", part.path)
            self._keep_open(part, fd)
        return part.fd

    def _keep_open(self, part: Part, fd: int) -> None:
        if not self._room or len(self._open) >= self._room:
            self._room = open_files(max(len(self._logs), 1))
        while len(self._open) >= self._room:
            # that of a removed file would be the last way to its bytes
            self._close(next((p for p in self._open if not p.gone), next(iter(self._open))))
        part.fd = fd
        self._open[part] = None

    def _close(self, part: Part) -> None:
        if part.fd >= 0:
            os.close(part.fd)
            part.fd = -1
        self._open.pop(part, None)

    # ---- words ----

    @staticmethod
    def _name(log: Log, part: Part) -> str:
        """The name of a part in reports: two of them never have the same."""
        if part is log.last or (part.path != log.path and not part.lost):
            return part.path if not part.lost else log.path
        return f"{log.path} (until {time.strftime('%H:%M:%S', time.localtime(part.until))}, part {log.parts.index(part) + 1})"

    def _notes(self) -> list[str]:
        notes = [*self._catalogue_notes, *self._left_out]
        notes += [f"{log.path}: {log.refused}" for log in self._logs if log.refused]
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
