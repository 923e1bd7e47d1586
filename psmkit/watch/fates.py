"""What becomes of files: they appear, grow, are renamed, truncated, copied and removed, and are known again after it."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Sequence

from psmkit.logparse.arrange import Head
from psmkit.logparse.scanner import open_files
from psmkit.watch.files import Found, Key, Log, Part, Paths

__all__ = ["Files"]

#: How many news are kept for whoever asks next.
_MOST_NEWS = 100


class Files:
    """The logs behind paths. ``stale``: what has to be read, and in which order, is to be thought over."""

    def __init__(self, paths: Sequence[str], clock: Callable[[], float]) -> None:
        self.paths = Paths(paths)
        self.logs: list[Log] = []
        self.news: list[str] = []
        self.stale = True
        self._clock = clock
        self._by_path: dict[str, Log] = {}
        self._by_key: dict[Key, tuple[Log, Part]] = {}
        self._here: dict[Key, Found] = {}
        self._open: dict[Part, None] = {}
        self._room = 0
        self._started = False

    def look(self) -> bool:
        """Find out what is there now; returns whether anything changed.

        Raises:
            InputError: a path is nothing that can be followed.
        """
        now = self._clock()
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
                changed = self._grown(log, part, one.size, one.modified) or changed
            log.order = order
        for log in list(self.logs):
            for part in list(log.parts):
                if part.key not in found and not part.lost:
                    changed = self._absent(log, part, now) or changed
        self._started = True
        return changed

    def say(self, text: str) -> None:
        """Add to the news."""
        self.news.append(text)
        del self.news[:-_MOST_NEWS]

    def _appeared(self, one: Found) -> Log:
        part = Part(one.path, one.key, seen=one.size, modified=one.modified)
        log = Log(one.path, [part])
        self.logs.append(log)
        self._by_path[one.path] = log
        self._by_key[one.key] = log, part
        if self._started:
            self.say(f"{one.path} appeared")
        return log

    def _replaced(self, log: Log, one: Found, now: float) -> None:
        """Another file stands at the path of a log."""
        old = log.last
        part = Part(one.path, one.key, seen=one.size, modified=one.modified)
        self._by_key[one.key] = log, part
        self.stale = True
        log.looked = -1
        if not log.plain or old.number < 0:
            for earlier in log.parts:
                self.close_one(earlier)
            log.parts, log.kind, log.refused = [part], "", ""
            log.forget_head()
            return
        old.until = now
        part.before, part.names = frozenset(log.head.names), Head()
        log.parts.append(part)
        self._seek_renamed(old)
        self.say(f"{one.path} is another file now: it was rotated, or removed and written again")

    def _renamed(self, log: Log, part: Part, one: Found) -> None:
        old, part.path = part.path, one.path
        if part is log.last and old == log.path and one.path not in self._by_path:
            self.say(f"{old} is {one.path} now")

    def _seek_renamed(self, part: Part) -> None:
        """A file that was rotated has another name beside its old one."""
        for path in glob.iglob(glob.escape(part.path) + "[.-]*"):
            with contextlib.suppress(OSError):
                found = os.stat(path)
                if (found.st_dev, found.st_ino) == part.key:
                    part.path = path

    def _grown(self, log: Log, part: Part, size: int, modified: float) -> bool:
        if size < part.offset or (size < part.seen and not log.plain):
            self.truncated(log, part, size, modified)
            return True
        changed = size != part.seen or (not log.plain and modified != part.modified)
        part.seen, part.modified = size, modified
        if changed and not (log.plain and part.number >= 0):
            self.stale = True
        return changed

    def truncated(self, log: Log, part: Part, size: int, modified: float) -> None:
        """The bytes of a file are gone; what follows in it is another part."""
        self.say(f"{part.path} was truncated")
        self.stale = True
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
        part.fd, part.lost, part.until = -1, True, self._clock()
        log.parts.insert(log.parts.index(part) + 1, new)
        self._by_key[part.key] = log, new
        self._seek_copy(part)

    def _seek_copy(self, part: Part) -> None:
        """A truncated file may have been copied first, beside it: the copy has its bytes."""
        for path in sorted(glob.glob(glob.escape(part.path) + "[.-]*")):
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if self._adopt(part, path, fd):
                    return
                os.close(fd)

    def _adopt(self, part: Part, path: str, fd: int) -> bool:
        """Take an open file for the copy of a part, if it is one."""
        found = os.fstat(fd)
        key = (found.st_dev, found.st_ino)
        known = self._by_key.get(key)
        if known is not None and (len(known[0].parts) > 1 or known[1].lost):
            return False
        if os.pread(fd, len(part.tail), part.offset - len(part.tail)) != part.tail:
            return False
        if os.pread(fd, len(part.start), 0) != part.start:
            return False
        if known is not None:
            self.drop(known[0])
        part.path, part.key, part.lost = path, key, False
        part.seen, part.modified = max(found.st_size, part.offset), found.st_mtime
        self._by_key[key] = next(log for log in self.logs if part in log.parts), part
        self._keep_open(part, fd)
        return True

    def _absent(self, log: Log, part: Part, now: float) -> bool:
        """A file is at no path that is followed: it was removed, or renamed to another place. It may still grow."""
        if not part.gone:
            part.gone = True
            part.until = part.until or now
            if part is log.last:
                self.say(f"{part.path} was removed: what it said still counts")
        found: os.stat_result | None = None
        with contextlib.suppress(OSError):
            found = os.fstat(part.fd) if part.fd >= 0 else os.stat(part.path)
        if found is None or (found.st_dev, found.st_ino) != part.key:
            part.lost = True
            self._by_key.pop(part.key, None)
            return True
        return self._grown(log, part, found.st_size, found.st_mtime)

    def drop(self, log: Log) -> None:
        """Follow it no more."""
        for part in log.parts:
            self.close_one(part)
            if self._by_key.get(part.key, (None,))[0] is log:
                del self._by_key[part.key]
        self.logs.remove(log)
        if self._by_path.get(log.path) is log:
            del self._by_path[log.path]
        self.stale = True

    def forget_old_runs(self) -> bool:
        """Where another job writes to a path and the file of the earlier one is no longer among the files that are followed, only the new job counts.

        Returns whether there is such a path: the scan has lines that do not count.
        """
        forgot = False
        for log in self.logs:
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
                    self.close_one(part)
                    if self._by_key.get(part.key, (None, None))[1] is part:
                        del self._by_key[part.key]
                del log.parts[:at]
                log.forget_head()
                self.stale = True
                self.say(f"another job writes to {log.path}: the earlier one no longer counts")
                forgot = True
                break
        return forgot

    def fd(self, part: Part) -> int:
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
            self._room = open_files(max(len(self.logs), 1))
        while len(self._open) >= self._room:
            # that of a removed file would be the last way to its bytes
            self.close_one(next((p for p in self._open if not p.gone), next(iter(self._open))))
        part.fd = fd
        self._open[part] = None

    def close_one(self, part: Part) -> None:
        """Close the file of a part."""
        if part.fd >= 0:
            os.close(part.fd)
            part.fd = -1
        self._open.pop(part, None)

    def close(self) -> None:
        """Close all files."""
        for part in list(self._open):
            self.close_one(part)
