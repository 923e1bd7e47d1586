"""Find what to read: files, globs, folders, archives, standard input. A file is recognised by its content, not by its name."""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, BinaryIO

from psmkit.logparse.archives import HEAD, Budget, members
from psmkit.logparse.copies import same
from psmkit.logparse.foreign import sniff
from psmkit.logparse.formats import archive, compression, encoding, is_record, unread
from psmkit.logparse.remote import Remote, is_url, local_path, remote_files
from psmkit.logparse.streams import ForeignInput, Input, Place, Reader, Spool, open_raw
from psmkit.model.errors import InputError
from psmkit.model.late import dataclass, regex

__all__ = ["CATALOGUE", "ForeignInput", "Input", "Reader", "discover", "look", "natural", "walk"]

STDIN = "<stdin>"
#: A file of this name beside logs is no log: it describes the messages of the program that wrote them.
CATALOGUE = "psmkit.toml"
_PIECE = 1 << 20
# A pipe without an end must not fill the disk.
_MAX_SPOOL = 64 << 30
# Zeros at the start of a file are a hole that the truncation of an open log leaves. This many are looked past.
_MAX_HOLE = 64 << 20
_PARTS = regex("[0-9]+|[^0-9]+")
# So many of the first bytes tell most files apart.
_START = 1 << 10
# How many files a note names.
_NAMED = 3


class _RefusedError(Exception):
    """An input that holds nothing to read; the text says why."""


@dataclass
class _Search:
    """The inputs that were found so far, and why others are none."""

    found: dict[Hashable, Input] = field(default_factory=dict)  # a file by its inode, others by their path
    refused: dict[str, str] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    catalogues: dict[str, None] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)  # each file that holds nothing to read, and why
    again: dict[str, str] = field(default_factory=dict)  # another path to a file, and the one that is read
    _looked: set[str] = field(default_factory=set)
    _head: memoryview = field(default_factory=lambda: memoryview(bytearray(HEAD)))
    _spool: Spool | None = None

    def __post_init__(self) -> None:
        self.budget = Budget(self.spool)

    def spool(self) -> Spool:
        if self._spool is None:
            self._spool = Spool()
        return self._spool

    def add(self, item: Input) -> None:
        if item.place is not None:
            self.found[item.path] = item  # of members with the same name, the last one counts
        else:
            known = self.found.setdefault(item.inode or item.path, item)
            if known is not item and os.path.normpath(known.path) != os.path.normpath(item.path):
                self.again[item.path] = known.path

    # ---- what a user names ----

    def path(self, path: str) -> None:
        if path == "-":
            self.stdin()
        elif is_url(path):
            self.url(path)
        elif os.path.isdir(path):
            self.folder(path)
        elif os.path.exists(path):
            self.file(path)
        elif glob.has_magic(path):
            self.glob(path)
        else:
            raise InputError(path, "no such file or folder")

    def url(self, url: str) -> None:
        here = local_path(url)
        if here is not None:
            self.path(here)
            return
        before = len(self.found)
        for name, size in remote_files(url):
            if name.rpartition("/")[2] == CATALOGUE:
                continue
            try:
                for item in self.inspect(name, Place(Remote(name), 0, size)):
                    self.add(item)
            except _RefusedError as error:
                self.refused[name] = self.unread[name] = f"it is {error}"
            except InputError as error:
                self.refused[name] = self.unread[name] = error.reason
        if len(self.found) == before and not self.refused:
            self.empty.append(url)

    def glob(self, pattern: str) -> None:
        names = sorted(glob.glob(pattern, recursive=True))
        if not names:
            raise InputError(pattern, "no file matches")
        folders = {name for name in names if os.path.isdir(name)}
        if "**" in pattern:
            folders = set()  # such a pattern says how deep to look
        for name in names:
            if name in folders:
                self.folder(name)
            elif os.path.isfile(name):
                self.file(name)

    def folder(self, folder: str) -> None:
        files = []
        for entry in walk(folder):
            name = entry.path
            if os.path.basename(name) == CATALOGUE:
                self.catalogues[name] = None
            else:
                files.append(name)
        before = len(self.found)
        seen = False
        refused: list[str] = []
        for name in files:
            try:
                for item in self.inspect(name):
                    seen = True
                    self.add(item)
            except _RefusedError as error:
                self.unread[name] = f"it is {error}"
                refused.append(f"{os.path.relpath(name, folder)} is {error}")
            except InputError as error:
                self.refused[name] = self.unread[name] = error.reason
        if not seen and before == len(self.found):
            self.empty.append(folder)
        if refused:
            more = len(refused) - _NAMED
            self.refused[folder] = "; ".join(refused[:_NAMED]) + (
                f"; {more} more files are no logs" if more > 0 else ""
            )

    def file(self, path: str) -> None:
        place = os.path.dirname(path)
        if place not in self._looked:
            self._looked.add(place)
            beside = os.path.join(place, CATALOGUE)
            if os.path.isfile(beside):
                self.catalogues[beside] = None
        if os.path.basename(path) == CATALOGUE:
            return  # as a shell passes it for logs/*
        try:
            if _is_device(path):
                raise _RefusedError("a device")
            if _is_pipe(path):
                with open_raw(Input(path, "log", 0)) as pipe:
                    self.keep(self.copied(STDIN, pipe))
                return
            found = list(self.inspect(path))
        except _RefusedError as error:
            self.refused[path] = self.unread[path] = f"it is {error}"
            return
        except InputError as error:
            self.refused[error.path] = self.unread[error.path] = error.reason
            return
        if not found:
            self.refused.setdefault(path, "no log in this archive")
        for item in found:
            self.add(item)

    def stdin(self) -> None:
        try:
            if not sys.stdin:
                raise _RefusedError("closed")
            mode = os.fstat(sys.stdin.fileno()).st_mode
            if stat.S_ISBLK(mode) or (
                stat.S_ISCHR(mode) and not sys.stdin.isatty() and not _is_null(sys.stdin.fileno())
            ):
                raise _RefusedError("a device")
            self.keep(self.copied(STDIN, sys.stdin.buffer))
        except _RefusedError as error:
            self.refused[STDIN] = f"it is {error}"

    def keep(self, items: Iterable[Input]) -> None:
        """Add inputs that have no path of their own: two pipes have the same name."""
        for item in items:
            self.found[f"{len(self.found)} {item.path}"] = item

    def copied(self, name: str, source: BinaryIO) -> Iterator[Input]:
        """The input that can be read only once, from a copy: its lines are quoted later."""
        spool = self.spool()
        start = spool.end
        try:
            while chunk := source.read(_PIECE):
                spool.write(chunk)
                if spool.end - start > _MAX_SPOOL:
                    self.budget.notes.append(
                        f"{name}: only the first {_MAX_SPOOL >> 30} GiB were read, as a pipe is copied to a temporary file: give a longer log as a file"
                    )
                    break
        except OSError as error:
            raise InputError(name, (error.strerror or str(error)).lower()) from None
        size = spool.end - start
        return self.inspect(name, Place(spool, start, size))

    # ---- what a file is ----

    def inspect(self, path: str, place: Place | None = None, depth: int = 0) -> Iterator[Input]:
        """The inputs in a file: itself, or the members of the archive that it is.

        Raises:
            _RefusedError: it holds no text.
            InputError: it cannot be read.
        """
        source, head = self.first_look(path, place)
        if is_record(head):
            yield replace(source, kind="record")
            return
        kind = compression(head)
        if kind is not None:
            source = replace(source, kind=kind)
            reader = Reader(source)
            head = _first(reader)
            reader.close()
        packed = archive(head)
        if packed is not None:
            yield from self.unpack(source, packed, depth)
            return
        yield _text(source, head)

    def first_look(self, path: str, place: Place | None) -> tuple[Input, bytes]:
        """An input as a log, and its first bytes behind a hole.

        Raises:
            InputError: it cannot be read.
        """
        try:
            if place is None:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    head = bytes(self._head[: os.readv(fd, [self._head])])
                    found = os.fstat(fd)
                finally:
                    os.close(fd)
                inode = (found.st_dev, found.st_ino)
                source = Input(path, "log", found.st_size, start=hash(head[:_START]), inode=inode)
            else:
                with open_raw(Input(path, "log", 0, place=place)) as raw:
                    head = raw.read(HEAD)
                source = Input(path, "log", place.size, place=place, start=hash(head[:_START]))
            if head[:1] == b"\0":
                with open_raw(source) as raw:
                    head = _past_hole(raw)
        except OSError as error:
            raise InputError(path, (error.strerror or str(error)).lower()) from None
        return source, head

    def unpack(self, source: Input, packed: str, depth: int) -> Iterator[Input]:
        for member in members(source, packed, depth, self.budget):
            try:
                yield from self.inspect(member.path, member.place, depth + 1)
            except _RefusedError as error:
                self.unread[member.path] = f"it is {error}"
                continue  # as in a folder; the note of a folder would be long
            except InputError as error:
                self.refused[error.path] = self.unread[error.path] = error.reason


def _text(source: Input, head: bytes) -> Input:
    """An input that is neither compressed nor packed, by its first bytes.

    Raises:
        _RefusedError: it holds no text.
    """
    known = sniff(head)
    if known is None and (name := unread(head)) is not None:
        raise _RefusedError(name)
    coded = encoding(head)
    if coded is not None:
        known = sniff(head.decode(coded, "replace").encode("utf-8", "replace"))
    return source if known is coded is None else replace(source, foreign=known, encoding=coded)


def look(path: str, name: str | None = None) -> Input:
    """What a file is that may grow, by its first bytes. ``name`` is its name in reports.

    Raises:
        InputError: it cannot be read, holds no text, or is compressed.
    """
    source, head = _Search().first_look(path, None)
    source = replace(source, path=name or path)
    if is_record(head):
        return replace(source, kind="record")
    if compression(head) is not None or archive(head) is not None:
        raise InputError(source.path, "it is compressed or an archive, which does not grow: `psmkit analyze` reads it")
    try:
        return _text(source, head)
    except _RefusedError as error:
        raise InputError(source.path, f"it is {error}") from None


def discover(
    paths: Iterable[str | os.PathLike[str]],
    notes: list[str] | None = None,
    catalogues: list[str] | None = None,
    unread: dict[str, str] | None = None,
) -> list[Input]:
    """The inputs behind ``paths``, each file once, in the given order.

    A path is a file, an archive (tar, zip), a glob, a folder (searched recursively, without hidden files) or ``-`` for standard
    input, which is copied to a temporary file so that its lines can be quoted later. What cannot be read or holds no text
    adds a line to ``notes``, provided that something else can be read. Files ``psmkit.toml`` beside the inputs are added to ``catalogues``,
    and each file that is not among the inputs to ``unread``, with the reason.

    Raises:
        InputError: a path does not exist, or no path holds anything to read.
    """
    search = _Search()
    for given in paths:
        search.path(os.fspath(given))
    found = list(search.found.values())
    lines = [f"{path}: {reason}" for path, reason in search.refused.items()]
    lines += [f"{path}: no log in this folder" for path in search.empty if path not in search.refused]
    lines += search.budget.notes
    if not found:
        _nothing(search)
    if catalogues is not None:
        catalogues += search.catalogues
    if unread is not None:
        unread |= search.unread | {path: f"it is {what}" for path, what in search.budget.binary.items()}
    if notes is not None:
        notes += [f"{item.path}: the file is empty" for item in found if not item.size and any(i.size for i in found)]
        notes += lines
        notes += same(search.again.items())
    return found


def _nothing(search: _Search) -> None:
    """Raise the error about paths that hold nothing to read."""
    empty = search.empty
    if empty:
        reason = "no log in this folder" if len(empty) == 1 else "no log in these folders"
        why = "; ".join(search.refused[path] for path in empty if path in search.refused)
        raise InputError(", ".join(empty), f"{reason} ({why})" if why else reason)
    for path, reason in search.refused.items():
        more = len(search.refused) - 1
        notes = "".join(f" ({note})" for note in search.budget.notes[:1])
        raise InputError(path, reason + notes + (f" (and {more} more inputs cannot be read)" if more else ""))
    for path in search.catalogues:
        raise InputError(path, "it describes messages and is no log")


def walk(folder: str) -> Sequence[os.DirEntry[str]]:
    """The files in a folder and in the folders below it, in order, without hidden ones."""
    found, folders = [], [folder]
    while folders:
        root = folders.pop()
        try:
            with os.scandir(root) as entries:
                seen = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
        except OSError:
            continue
        found += [e for e in seen if _is_file(e)]
        folders += [e.path for e in reversed(seen) if e.is_dir(follow_symlinks=False)]
    return found


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # such as a link to itself
        return False


def _first(reader: Reader) -> bytes:
    data = b""
    while len(data) < HEAD and (more := reader.read(HEAD - len(data))):
        data += more
    return data


def _past_hole(raw: BinaryIO) -> bytes:
    """The first bytes behind the zeros at the start of a file; if there are none, its last zeros."""
    head = raw.read(HEAD)
    passed = len(head)
    while head and not head.strip(b"\0") and passed < _MAX_HOLE:
        head = raw.read(_PIECE)
        passed += len(head)
        text = head.lstrip(b"\0")
        if text:
            return text[:HEAD]
    return head


def _is_pipe(path: str) -> bool:
    """Whether a path can be read only once: a named pipe, a terminal, or what a shell passes for <(command)."""
    mode = os.stat(path).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _is_device(path: str) -> bool:
    """Whether a path is a device that has no end, or a disk."""
    mode = os.stat(path).st_mode
    if not stat.S_ISCHR(mode):
        return stat.S_ISBLK(mode) or stat.S_ISSOCK(mode)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return not os.isatty(fd) and not _is_null(fd)
    finally:
        os.close(fd)


def _is_null(fd: int) -> bool:
    """Whether this is /dev/null, an empty input."""
    return os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev


def natural(path: str) -> tuple[Any, ...]:
    """A key that sorts ``log.9`` before ``log.10``."""
    parts: list[tuple[int, int, str]] = []
    for part in _PARTS.findall(os.path.basename(path) + "\0"):
        # Of numbers without leading zeros the longer one is greater.
        digits = part.lstrip("0") if "0" <= part[0] <= "9" else None
        parts.append((1, 0, part) if digits is None else (0, len(digits), digits))
    return tuple(parts)
