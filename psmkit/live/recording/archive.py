"""Packs the folder of a recording into one archive, also one that a killed agent left."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from psmkit.live.recording.evidence import copy_left
from psmkit.live.recording.journal import LOG, lines
from psmkit.live.recording.layout import FACT, SUFFIX, Layout, RecordError, archive_name, write
from psmkit.live.recording.team import leaving, members

__all__ = ["close", "finish", "pack", "salvage", "settle", "wait_and_pack"]

_LEVEL = 3
_LONGEST = 1 << 16
_ENDED = f"{FACT}: printed while the job was being ended\n".encode()
_KEPT = "records-kept"
_TOPOLOGY = "nccl-topology.xml"


def pack(root: Path) -> Path:
    """Write the archive of a recording beside its folder. The folder stays.

    Raises:
        RecordError: the archive cannot be written; an unfinished one is removed.
    """
    kind = "zst" if importlib.util.find_spec("zstandard") is not None else "gz"
    target = archive_name(root, kind)
    part = target.with_name(f".{target.name}.part")
    cuts = _cuts(root)
    try:
        with open(part, "wb") as raw:
            os.fchmod(raw.fileno(), 0o600)
            with _compressed(raw, kind) as out, tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for path in _files(root):
                    _add(tar, path, root.name.removesuffix(SUFFIX), str(path.relative_to(root)), cuts)
        os.replace(part, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise RecordError(
            f"cannot write {target}: {(error.strerror or str(error)).lower()}; the evidence is in {root}: "
            f"make room, then psmkit record --salvage {root}"
        ) from None
    return target


@contextlib.contextmanager
def _compressed(raw: IO[bytes], kind: str) -> Iterator[IO[bytes]]:
    if kind == "zst":
        import zstandard

        with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(raw, closefd=False) as out:
            yield cast(IO[bytes], out)
    else:
        import gzip

        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_LEVEL) as packed:
            yield cast(IO[bytes], packed)


def _files(root: Path) -> list[Path]:
    found = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    kept = [path for path in found if not path.name.startswith(".") and path.relative_to(root).parts[0] != "members"]
    # the manifest first: who reads an archive as a stream knows what follows
    return sorted(kept, key=lambda path: (path.name != "manifest.json" or path.parent != root, str(path)))


def _cuts(root: Path) -> dict[str, int]:
    """Where logs end for an analysis: what ranks print while somebody ends them is about that."""
    try:
        sizes = json.loads((root / "manifest.json").read_text())["sizes_when_stopped"]
    except (OSError, ValueError, KeyError):
        return {}
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def _add(tar: tarfile.TarFile, path: Path, top: str, name: str, cuts: dict[str, int]) -> None:
    """Add a file as long as it is now: a process that lives may still write to it. What follows a cut becomes a file of its own."""
    try:
        file = path.open("rb")
    except OSError:  # gone, or another user's
        return
    with file:
        whole = os.fstat(file.fileno()).st_size
        end = whole
        if name in cuts and cuts[name] < whole:
            file.seek(cuts[name])
            # a line that had begun belongs to what was before
            end = cuts[name] + (len(file.readline(_LONGEST)) if _inside_a_line(file, cuts[name]) else 0)
            file.seek(0)
        if name.startswith("records/") and (path.parents[1] / _KEPT / path.name).exists():
            _put(tar, file, f"{top}/ended/{name}", _ENDED, whole)
            return
        head = f"<!-- {FACT} -->\n".encode() if path.name == _TOPOLOGY else b""
        _put(tar, file, f"{top}/{name.replace(_KEPT, 'records')}", head, end)
        if end < whole:
            file.seek(end)
            _put(tar, file, f"{top}/ended/{name}", _ENDED, whole - end)


def _inside_a_line(file: IO[bytes], at: int) -> bool:
    if not at:
        return False
    file.seek(at - 1)
    return file.read(1) != b"\n"


def _put(tar: tarfile.TarFile, file: IO[bytes], name: str, head: bytes, size: int) -> None:
    info = tar.gettarinfo(arcname=name, fileobj=file)
    info.uname = info.gname = ""
    info.uid = info.gid = 0
    info.size = len(head) + size
    tar.addfile(info, cast(IO[bytes], _Exactly(file, info.size, head)))


class _Exactly:
    """Reads exactly so many bytes of a file: zeros where it became shorter."""

    def __init__(self, file: IO[bytes], size: int, head: bytes = b"") -> None:
        self._file, self._left, self._head = file, size, head

    def read(self, size: int) -> bytes:
        size = min(size, self._left)
        data = self._head[:size]
        self._head = self._head[len(data) :]
        if len(data) < size:
            data += self._file.read(size - len(data))
        self._left -= size
        return data.ljust(size, b"\0")


def settle(root: Path) -> dict[str, Any]:
    """Complete the manifest of a folder with what its agents wrote last, and with what their death says.

    Raises:
        RecordError: this is no folder of a recording.
    """
    layout = Layout(root)
    try:
        document = json.loads(layout.manifest.read_text())
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict) or document.get("schema") != FACT:
        raise RecordError(f"{root} is no folder of a recording: it has no manifest.json with the schema {FACT}")
    known = {p["pid"]: p for p in document["processes"]}
    for member in members(layout):
        one = known.get(member.child)
        if one is None:  # it was too short for a look of the agent that watches
            one = {
                "pid": member.child,
                "host": document["host"],
                "role": "rank",
                "rank": member.rank,
                "command": document["command"],
            }
            one |= {"started": None, "cpu": 0.0, "ended": None, "status": None, "signal": None}
            document["processes"].append(one)
        if member.ended is not None and member.code is not None:
            one["ended"] = one["ended"] or member.ended
            one["status"] = member.code if member.code >= 0 else None
            one["signal"] = -member.code if member.code < 0 else None
        if member.stopped is not None:
            document["stopped"] = min(document["stopped"] or member.stopped, member.stopped)
    if document["ended"] is None and not any(m.living for m in members(layout)):
        with contextlib.suppress(OSError):
            document["agent_lost"] = layout.alive.stat().st_mtime
        copy_left(layout, document)
    return cast(dict[str, Any], document)


def wait_and_pack(root: Path, patience: float) -> None:
    """Pack a folder when its last agent is gone. A launcher kills its agents while they pack; this is no child of it."""
    layout, end = Layout(root), time.monotonic() + patience
    try:
        guard = os.open(root / ".guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another one waits, or it is packed already
        return
    while time.monotonic() < end and root.exists():
        with contextlib.suppress(OSError), leaving(layout):
            if not any(m.living for m in members(layout)):
                _pack_again(root)
                break
        time.sleep(0.1)
    os.close(guard)


def _pack_again(root: Path) -> None:
    """Pack a folder whose last agent was killed, perhaps while it removed the folder that it had packed."""
    try:
        finish(root, settle(root))
        close(root)
    except RecordError:
        if not (root / "manifest.json").exists() and any(archive_name(root, kind).exists() for kind in ("zst", "gz")):
            shutil.rmtree(root, ignore_errors=True)


def salvage(root: Path) -> Path:
    """Pack the folder that a killed agent left, and remove the folder.

    Raises:
        RecordError: this is no folder of a recording, its agent is alive, or the archive cannot be written.
    """
    root = Path(os.path.normpath(root))
    layout = Layout(root)
    document = settle(root)
    living = [m.agent for m in members(layout) if m.living]
    if living:
        raise RecordError(f"{root} is in use: process {living[0]} records into it")
    finish(root, document)
    return close(root)


def finish(root: Path, document: dict[str, Any]) -> None:
    """Write manifest and lines for the last time."""
    with contextlib.suppress(OSError):
        write(root / "manifest.json", json.dumps(document, indent=1) + "\n")
        write(root / LOG, "".join(f"{line}\n" for line in lines(document)))


def close(root: Path) -> Path:
    """Pack a folder and remove it."""
    target = pack(root)
    with contextlib.suppress(OSError):  # first: a folder without it is not packed a second time
        (root / "manifest.json").unlink()
    shutil.rmtree(root, ignore_errors=True)
    return target
