"""The members of tar and zip archives as inputs. Nothing is extracted to a path: members are parts of the archive, or lie in a spool.

The number of members, the bytes that are unpacked and the depth of archives within archives are bounded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, BinaryIO

from psmkit.logparse.formats import binary, tar_checksum_is_right
from psmkit.logparse.streams import Input, Place, Reader, Spool, open_raw
from psmkit.model.late import dataclass

if TYPE_CHECKING:
    import zipfile

__all__ = ["HEAD", "Budget", "members"]

#: How many bytes of a file show what it is.
HEAD = 1 << 16
_BLOCK = 512
_PIECE = 1 << 20
# An extended header holds a name and some attributes.
_MAX_EXTENDED = 1 << 20
_MAX_NAME = 1024
# The directory of a zip archive is read at once. This is enough for 80,000 members.
_MAX_DIRECTORY = 8 << 20
_DEPTH = 3


@dataclass
class Budget:
    """What may still be unpacked for one analysis, and the notes about what was left out."""

    spool: Callable[[], Spool]
    size: int = 8 << 30
    members: int = 20_000
    notes: list[str] = field(default_factory=list)
    #: Each member that is no text, and what it is.
    binary: dict[str, str] = field(default_factory=dict)

    def take(self, size: int) -> bool:
        """Count ``size`` unpacked bytes; False if that is more than is allowed."""
        self.size -= size
        return self.size >= 0

    def note(self, archive: Input, text: str) -> None:
        """Remember why a part of an archive was left out."""
        self.notes.append(f"{archive.path}: {text}")


class _DamageError(Exception):
    pass


class _LimitError(Exception):
    pass


def members(source: Input, kind: str, depth: int, budget: Budget) -> list[Input]:
    """The files in an archive that may be logs, in the order in which a folder of them is read: what is said of them does not depend on how it was packed.

    Each ``kind`` of the result is ``log``, because only its place is known yet.

    Args:
        source: the archive.
        kind: ``tar`` or ``zip``.
        depth: how many archives are around this one.
        budget: is charged for what is unpacked, and takes notes of what is left out.
    """
    if depth >= _DEPTH:
        budget.note(source, f"an archive within {depth} archives was not opened")
        return []
    found: list[Input] = []
    try:
        for member in (_tar if kind == "tar" else _zip)(source, budget):
            found.append(member)
    except _LimitError:
        budget.note(source, "the archive unpacks to more than psmkit reads; only its first files were read")
    except _DamageError as error:
        budget.note(source, f"{error}; what could be read was used")
    return sorted(found, key=lambda member: _order(member.path.removeprefix(f"{source.path}:")))


def _order(name: str) -> list[tuple[bool, str]]:
    """Sorts the files of a folder before those of the folders in it."""
    *folders, file = name.split("/")
    return [*((True, folder) for folder in folders), (False, file)]


def _wanted(name: str) -> str | None:
    """The name of a member without what precedes it; None for hidden files."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    if not parts or any(part.startswith(".") for part in parts):
        return None
    return "/".join(parts)[-_MAX_NAME:]


def _spooled(read: Callable[[int], bytes], size: int | None, budget: Budget, path: str) -> tuple[Place | None, int]:
    """Copy up to ``size`` bytes to the spool, unless they show that the member holds no text; also the number of bytes read."""
    spool = budget.spool()
    start, done, kept = spool.end, 0, True
    head = b""
    while size is None or done < size:
        data = read(_PIECE if size is None else min(_PIECE, size - done))
        if not data:
            break
        if not budget.take(len(data)):
            raise _LimitError
        done += len(data)
        if len(head) < HEAD:
            head += data[:HEAD]
            what = binary(head)
            kept = what is None
            if what is not None:
                budget.binary[path] = what
                if size is None:
                    break
                continue
        if kept:
            spool.write(data)
    return (Place(spool, start, spool.end - start) if kept else None), done


# ---- tar ----


def _tar(source: Input, budget: Budget) -> Iterator[Input]:
    reader = Reader(source)
    try:
        yield from _tar_members(source, reader, budget)
    finally:
        reader.close()
    if reader.note is not None:
        budget.notes.append(reader.note)


def _tar_members(source: Input, reader: Reader, budget: Budget) -> Iterator[Input]:
    # The members of an archive that is not compressed are parts of its file: nothing is copied.
    whole = source.kind == "log" and source.encoding is None
    base = source.place or Place(source.path, 0, source.size)
    at = 0
    extended: dict[str, str] = {}
    while len(block := _exactly(reader, _BLOCK)) == _BLOCK and block.strip(b"\0"):
        at += _BLOCK
        if not tar_checksum_is_right(block):
            raise _DamageError(f"the archive is damaged at byte {at - _BLOCK}")
        size = _number(block[124:136])
        kind = block[156:157]
        if kind in b"xgLK" and kind:
            if size > _MAX_EXTENDED or not budget.take(size):
                raise _DamageError(f"the header at byte {at - _BLOCK} of the archive is {size} bytes long")
            data = _exactly(reader, size)
            _exactly(reader, -size % _BLOCK)
            at += size + -size % _BLOCK
            if kind == b"x":
                extended.update(_records(data))
            elif kind == b"L":
                extended["path"] = data.rstrip(b"\0").decode("utf-8", "replace")
            continue
        if (told := extended.get("size", "")).isdecimal() and told.isascii() and len(told) < 19:
            size = int(told)
        name = extended.get("path") or _name(block)
        sparse = kind == b"S" or any(key.startswith("GNU.sparse.") for key in extended)
        extended = {}
        wanted = _wanted(name) if kind in b"\x007" or kind == b"0" else None
        if sparse and _wanted(name) is not None:
            budget.note(source, f"the sparse file {_wanted(name)} was not read")
            wanted = None
        if wanted is not None:
            budget.members -= 1
            if budget.members < 0:
                raise _LimitError
        place: Place | None = None
        if whole:
            held = min(size, max(base.size - at, 0))
            if wanted is not None:
                place = Place(base.base, base.offset + at, held)
            reader.skip(size + -size % _BLOCK)
            if at + size > base.size:
                budget.note(source, "the archive ends early; what could be read was used")
                size = held
        else:
            place, done = (
                _spooled(reader.read, size, budget, f"{source.path}:{wanted}")
                if wanted is not None
                else (None, _pass(reader, size, budget))
            )
            if done < size and reader.note is None:
                budget.note(source, "the archive ends early; what could be read was used")
            _exactly(reader, -size % _BLOCK)
        at += size + -size % _BLOCK
        if place is not None:
            yield Input(f"{source.path}:{wanted}", "log", place.size, place=place)


def _exactly(reader: Reader, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := reader.read(size - len(data))):
        data += more
    return data


def _pass(reader: Reader, size: int, budget: Budget) -> int:
    done = 0
    while done < size and (data := reader.read(min(_PIECE, size - done))):
        done += len(data)
        if not budget.take(len(data)):
            raise _LimitError
    return done


def _number(text: bytes) -> int:
    if text[:1] in (b"\x80", b"\xff"):  # base 256, for sizes of 8 GiB and more
        value = int.from_bytes(text[1:], "big") if text[0] == 0x80 else -1
    else:
        digits = text.strip(b" \0")
        value = int(digits, 8) if digits and not digits.strip(b"01234567") else 0 if not digits else -1
    if not 0 <= value < 1 << 62:
        raise _DamageError("the archive holds a file of an impossible size")
    return value


def _name(block: bytes) -> str:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:262] == b"ustar" and block[262:263] == b"\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """The records "LENGTH KEY=VALUE" of an extended header; the rest is left out where one is damaged."""
    at = 0
    while at < len(data):
        digits, blank, _ = data[at : at + 12].partition(b" ")
        length = int(digits) if blank and digits.isdigit() else 0
        if length <= len(digits) + 1 or at + length > len(data):
            return
        key, _, value = data[at + len(digits) + 1 : at + length - 1].partition(b"=")
        yield key.decode("utf-8", "replace"), value.decode("utf-8", "replace")
        at += length


# ---- zip ----


def _zip(source: Input, budget: Budget) -> Iterator[Input]:
    import zipfile  # late: few inputs are archives

    if source.kind != "log":
        raise _DamageError("a zip archive that is compressed once more was not opened")
    raw = open_raw(source)
    try:
        if _directory_size(raw, source.size) > _MAX_DIRECTORY:
            raise _DamageError("the directory of the archive is too large")
        with zipfile.ZipFile(raw) as archive:
            for info in archive.infolist():
                wanted = None if info.is_dir() else _wanted(info.filename)
                if wanted is None:
                    continue
                budget.members -= 1
                if budget.members < 0:
                    raise _LimitError
                place = _zip_member(source, archive, info, wanted, budget)
                if place is not None:
                    yield Input(f"{source.path}:{wanted}", "log", place.size, place=place)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, OverflowError) as error:
        raise _DamageError(f"the archive is damaged ({error})") from None
    finally:
        raw.close()


def _zip_member(
    source: Input, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, budget: Budget
) -> Place | None:
    import zipfile

    if info.flag_bits & 1:
        budget.note(source, f"{name} is encrypted and was not read")
        return None
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        budget.note(source, f"{name} has a compression that psmkit does not read")
        return None
    start = budget.spool().end
    try:
        with archive.open(info) as file:
            return _spooled(file.read, None, budget, f"{source.path}:{name}")[0]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        budget.note(source, f"{name}: {error}; what could be read was used")
        spool = budget.spool()
        return Place(spool, start, spool.end - start)


def _directory_size(raw: BinaryIO, size: int) -> int:
    """The size of the central directory as the last record of the archive tells it; 0 without such a record."""
    tail = min(size, _BLOCK + (1 << 16))
    raw.seek(size - tail)
    data = b""
    while len(data) < tail and (more := raw.read(tail - len(data))):
        data += more
    at = data.rfind(b"PK\x05\x06")
    told = int.from_bytes(data[at + 12 : at + 16], "little") if at >= 0 else 0
    large = data.rfind(b"PK\x06\x06", 0, max(at, 0))
    return max(told, int.from_bytes(data[large + 40 : large + 48], "little") if large >= 0 else 0)
