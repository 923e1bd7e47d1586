"""Logs in an object store, by URLs: ``s3://bucket/job/``. fsspec and the package of the store read them; neither is needed for files."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import field
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from psmkit.model.errors import InputError
from psmkit.model.late import dataclass, regex

__all__ = ["Remote", "is_url", "local_path", "remote_files"]

_URL = regex(r"([A-Za-z][A-Za-z0-9+.:-]*)://")
#: The stores that psmkit reads, and what each needs beside fsspec. fsspec knows more, some of which run programs or open other URLs.
_STORES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_SECRET = regex(r"(?<=//)[^/\s@]*@|(?<=[?&])([A-Za-z0-9_.-]+=)[^\s&]*")
_MAGIC = regex(r"[*?\[]")
_FIRST, _MOST = 1 << 16, 1 << 24  # bytes that are asked for at once: few at first, more of what is read in order
_SHOWN = 300
_MOST_FILES = 1_000_000


def is_url(path: str) -> bool:
    """Whether an input is named by a URL."""
    return _URL.match(path) is not None


def local_path(url: str) -> str | None:
    """The path of a ``file://`` URL of this machine; None for other URLs.

    Raises:
        InputError: it names another machine.
    """
    if not url.lower().startswith("file://"):
        return None
    host, slash, path = url[len("file://") :].partition("/")
    if host not in ("", "localhost"):
        raise InputError(_shown(url), "a file:// URL names a file of this machine: write file:///PATH")
    return unquote(slash + path)


@dataclass(frozen=True, slots=True)
class Remote:
    """A file in an object store, by its URL."""

    url: str = field(repr=False)

    def open(self, offset: int, size: int) -> BinaryIO:
        """``size`` bytes of it from ``offset`` on."""
        return cast(BinaryIO, _Bytes(self, offset, size))


def remote_files(url: str) -> Iterator[tuple[str, int]]:
    """The files that a URL names, with their sizes: one, those of a folder and below, or those of a pattern; without hidden ones.

    Raises:
        InputError: there is none, the store cannot be read, or the URL has a secret in it.
    """
    store = _store(url)
    with _told(url):
        path = store._strip_protocol(url)
        if _MAGIC.search(path):
            found = store.glob(path, detail=True)
        elif store.isfile(path):
            found = {path: store.info(path)}
        else:
            found = store.find(path, detail=True)
    scheme = url.partition("://")[0]
    names = [(name, of) for name, of in sorted(found.items()) if of.get("type") == "file"]
    if not names:
        raise InputError(_shown(url), "no file is there" if not _MAGIC.search(url) else "no file matches")
    if len(names) > _MOST_FILES:
        raise InputError(_shown(url), f"{len(names)} files are there; psmkit reads at most {_MOST_FILES}")
    for name, of in names:
        below = name[len(path) :] if name.startswith(path) else name
        if name == path or not any(part.startswith(".") for part in below.split("/")):
            yield f"{scheme}://{name}", int(of["size"])


class _Bytes(io.RawIOBase):
    """A part of a remote file. It holds no connection between two reads."""

    def __init__(self, remote: Remote, offset: int, size: int) -> None:
        self._remote, self._offset, self._size, self._at = remote, offset, size, 0
        self._start, self._ahead, self._ask = 0, b"", _FIRST
        self._store: Any = _store(remote.url)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted, done = min(len(buffer), self._size - self._at), 0
        while done < wanted:
            at = self._at - self._start
            if not 0 <= at < len(self._ahead):
                in_order = self._ahead and at == len(self._ahead)
                self._ask = min(self._ask * 4, _MOST) if in_order else _FIRST
                end = min(self._at + max(wanted - done, self._ask), self._size)
                self._start, self._ahead, at = self._at, self._fetch(self._at, end), 0
                if not self._ahead:
                    break  # it is shorter than it was
            data = self._ahead[at : at + wanted - done]
            buffer[done : done + len(data)] = data
            self._at += len(data)
            done += len(data)
        return max(done, 0)

    def _fetch(self, start: int, end: int) -> bytes:
        try:
            with _told(self._remote.url):
                return bytes(self._store.cat_file(self._remote.url, start=self._offset + start, end=self._offset + end))
        except InputError as error:
            raise OSError(0, error.reason) from None  # as of a file that cannot be read: what was read is used

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at


def _store(url: str) -> Any:
    """The file system of a URL.

    Raises:
        InputError: psmkit does not read such URLs, a package is missing, or the URL has a secret in it.
    """
    found = _URL.match(url)
    scheme = found[1].lower() if found else ""
    if "::" in url or scheme not in _STORES:
        known = ", ".join(f"{name}://" for name in ("file", *_STORES))
        raise InputError(_shown(url), f"psmkit reads {known} and paths")
    host = url[len(scheme) + 3 :].partition("/")[0]
    user = host.rpartition("@")[0]
    if ":" in user or (user and scheme == "s3") or re.search(r"[?&][A-Za-z0-9_.-]+=", url):
        raise InputError(
            _shown(url),
            "this URL has a user, a password or a signature in it, which would be in the report: "
            "give them by the settings of the store, such as AWS_PROFILE, and write the URL without",
        )
    package = _STORES[scheme]
    try:
        import fsspec

        with _told(url):
            return fsspec.filesystem(scheme)
    except ImportError:
        extra = "psmkit[dask]" if package == "s3fs" else f"psmkit[dask] {package}"
        raise InputError(
            _shown(url), f"reading {scheme}:// needs the packages fsspec and {package} (pip install '{extra}')"
        ) from None


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Say what a store answered, whatever exception its package raises for that, and without its secrets."""
    try:
        yield
    except (ImportError, InputError):
        raise
    except FileNotFoundError:
        raise InputError(_shown(url), "no such file or bucket") from None
    except PermissionError:
        raise InputError(_shown(url), "access denied: are the credentials of the store set?") from None
    except Exception as error:  # each package has exceptions of its own
        said = _SECRET.sub(lambda found: f"{found[1] or ''}...", f"{type(error).__name__}: {error}")
        raise InputError(_shown(url), f"the store cannot be read: {' '.join(said.split())[:_SHOWN]}") from None


def _shown(url: str) -> str:
    """A URL without a user, a password and a query."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    query = re.search(r"\?[^=/]*=", path)
    return scheme + mark + host.rpartition("@")[2] + slash + (path[: query.start()] if query else path)
