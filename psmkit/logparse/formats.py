"""What a file is, by its first bytes: a text, an archive, or a binary format that psmkit does not read."""

from __future__ import annotations

import json

from psmkit.logparse.records import MAGIC as RECORD_MAGIC
from psmkit.model.late import regex

__all__ = ["archive", "binary", "compression", "document", "encoding", "is_record", "tar_checksum_is_right", "unread"]

_COMPRESSIONS = ((b"\x1f\x8b", "gz"), (b"\x28\xb5\x2f\xfd", "zst"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bz2"))

_ELF_CORE = 4
_CORE = "a core dump (ELF); give the stacks in it: gdb -batch -ex 'thread apply all bt' PROGRAM CORE > stacks.txt"
# Magic numbers are facts about formats: (first bytes, name).
_FORMATS = (
    (b"\xd4\xc3\xb2\xa1", "a packet capture (pcap)"),
    (b"\xa1\xb2\xc3\xd4", "a packet capture (pcap)"),
    (b"\x4d\x3c\xb2\xa1", "a packet capture (pcap)"),
    (b"\xa1\xb2\x3c\x4d", "a packet capture (pcap)"),
    (b"\x0a\x0d\x0d\x0a", "a packet capture (pcapng)"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF-", "a PDF document"),
    (b"SQLite format 3\0", "an SQLite database (an Nsight Systems export, for example)"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive; unpack it first"),
    (b"\x04\x22\x4d\x18", "compressed with LZ4; decompress it first"),
    (b"!<arch>\n", "a static library"),
    (b"\xff\xfe\0\0", "text in UTF-32; convert it with iconv -t UTF-8"),
    (b"\0\0\xfe\xff", "text in UTF-32; convert it with iconv -t UTF-8"),
    (b"PERFILE2", "a recording of perf"),
    (b"KDUMP   ", "a dump of a kernel"),
    (b"LPKSHHRH", "a journal of systemd; give the output of journalctl"),
    (b"\xa7\x0d\x0d\x0a", "compiled Python"),
    (b"\xcb\x0d\x0d\x0a", "compiled Python"),
    (b"\xf3\x0d\x0d\x0a", "compiled Python"),
    (b"\0asm", "WebAssembly"),
    (b"MZ\x90\0", "a Windows program"),
)
_MAGICS = tuple(magic for magic, _ in _FORMATS)
_PACKED = tuple(magic for magic, _ in _COMPRESSIONS)
#: In the head of every page that psmkit writes, since a page beside the logs holds their lines.
_PAGE = b'<meta name="generator" content="psmkit">'
#: How the reports for issues and for CI systems begin: beside the logs, they hold lines of these, too.
_REPORT = regex(
    rb"## (?:failed|hung|leaking|inconclusive|healthy): [^\n]*\n\n"
    rb"(?:- run \d+: [^\n]*\n)*(?:- (?:\*\*(?:culprit|proof|do this)\*\* |confidence \d)|\n?### (?:Ranks|Findings)\n)"
    rb"|<\?xml [^\n]*\n<testsuites name=\"psmkit\" "
)
#: In the first line of each file of a recording (`psmkit record`) that is a fact about the job and no log of it.
_FACT = b"psmkit-record/"
_PICKLE = regex(rb"\x80[\x02-\x05](?:[}\]\(cNKXM\x8c\x95)]|$)")
_ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_LOG_LINE = regex(rb"NCCL (?:INFO|WARN|TRACE|ABORT|CALL|ATTN|DIAG) |ProcessGroupNCCL\.cpp:\d+\]|libpsm")
# Control characters that no log needs. Escape, bell, backspace and form feed occur on terminals.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x07\x08\x0b\x0c\x1b"))
_MAX_CONTROLS = 0.05
_TAR_BLOCK = 512


def is_record(head: bytes) -> bool:
    """Whether a file with these first bytes is a record file of psmkit."""
    return head.startswith(RECORD_MAGIC)


def compression(head: bytes) -> str | None:
    """The compression of a file by its first bytes: ``gz``, ``zst``, ``xz``, ``bz2`` or None."""
    if not head.startswith(_PACKED):
        return None
    return next(kind for magic, kind in _COMPRESSIONS if head.startswith(magic))


def archive(head: bytes) -> str | None:
    """``zip``, ``tar`` or None, by the first bytes of a file."""
    if head.startswith(_ARCHIVES):
        return "zip"
    return "tar" if len(head) >= _TAR_BLOCK and head[0] and tar_checksum_is_right(head[:_TAR_BLOCK]) else None


def tar_checksum_is_right(block: bytes) -> bool:
    """Whether a block of 512 bytes is a header of a tar archive: old archives have a checksum and no magic number."""
    field = block[148:156].strip(b" \0")
    if not field or field.strip(b"01234567"):
        return False
    return int(field, 8) == sum(block[:148]) + 8 * ord(" ") + sum(block[156:_TAR_BLOCK])


def encoding(head: bytes) -> str | None:
    """``utf-16-le`` or ``utf-16-be`` if that is the encoding of a text, else None: UTF-8, and what resembles it."""
    sample = head[:512]
    if 0 not in sample:
        return None
    half = len(sample) // 2
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    # A mark alone proves nothing: damaged logs have such bytes, too. Latin letters have a zero in each second byte.
    marked = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if half < 8 or max(even, odd) < half * (0.5 if marked else 0.9) or min(even, odd) > half * 0.1:
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def binary(head: bytes) -> str | None:
    """What a file is that psmkit does not read, in words, by its first bytes; None if it may be a log, or holds some."""
    return None if is_record(head) or compression(head) or archive(head) else unread(head)


def unread(head: bytes) -> str | None:
    """As :func:`binary`, of a file that is no record, is not compressed and is no archive."""
    if head.startswith(b"\x7fELF"):
        number = int.from_bytes(head[16:18], "big" if head[5:6] == b"\x02" else "little")
        return _CORE if number == _ELF_CORE else "a program or library (ELF)"
    if head.startswith(_MAGICS):
        return next(name for magic, name in _FORMATS if head.startswith(magic))
    if head.startswith(b"<!doctype html>") and _PAGE in head:
        return "an HTML page of psmkit"
    if _REPORT.match(head):
        return "a report of psmkit"
    if _FACT in head[:64]:
        return "a fact about a recorded job, beside its logs"
    if _PICKLE.match(head):
        return "a Python pickle that psmkit does not know"
    # A log that was truncated while it was written begins with zeros.
    text = head.lstrip(b"\0")
    if not text or _LOG_LINE.search(text) or encoding(head) is not None:
        return None
    strange = len(text) - len(text.translate(None, _CONTROLS))
    return "binary data" if strange > _MAX_CONTROLS * len(text) else None


def document(text: str) -> str | None:
    """What a text is that is no log, in words, by its first lines: a document in JSON, XML or TOML, a script; None for anything else.

    A file with an object of JSON on each line is a log.
    """
    start = text.lstrip("\ufeff \t\r\n")
    first, _, rest = start.partition("\n")
    if start.startswith("#!"):
        return "a script"
    inner = {"{": ('"', "}"), "[": ("{",)}.get(start[:1], ())
    if start[1:].lstrip()[:1] in inner and not (rest.strip() and _is_json(first)):
        return "a document in JSON"
    if start[:1] == "<" and (start[1:2].isalpha() or start[1:2] in ("?", "!")) and first.rstrip().endswith(">"):
        return "a document in XML"
    return "a document in TOML" if _is_toml(start) else None


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_toml(text: str) -> bool:
    """Whether the tables of a text, up to the last one, which may be cut, are TOML with at least one value."""
    import tomllib  # late: few inputs are documents

    whole, cut, _ = text.rpartition("\n[")
    for part in (text, whole) if cut else (text,):
        try:
            return bool(tomllib.loads(part))
        except (ValueError, RecursionError):
            continue
    return False
