"""What psmkit reads, what it refuses by name, and that nothing it refuses keeps it from reading the rest."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from psmkit.catalogue import Catalogue
from psmkit.logparse import archives, discover, result, scan
from psmkit.logparse.foreign import load
from psmkit.logparse.formats import binary
from psmkit.logparse.inputs import natural
from psmkit.logparse.types import Ref
from psmkit.model.errors import InputError
from tests.logparse.test_streams import BIRTH, NET, rank, summary
from tests.readers import tar_of, zip_of

ELF = b"\x7fELF\x02\x01\x01" + bytes(9)
CORE = ELF + (4).to_bytes(2, "little") + bytes(200)
LIBRARY = ELF + (3).to_bytes(2, "little") + bytes(200)
GDB = "Thread 1 (Thread 0x7f00 (LWP 17)):\n#0  0x1 in poll () from /lib/libc.so.6\n#1  0x2 in main ()\n"


PACKERS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "logs.tar": tar_of,
    "logs.tar.gz": lambda files: gzip.compress(tar_of(files, tarfile.PAX_FORMAT)),
    "logs.tar.zst": lambda files: zstandard.ZstdCompressor().compress(tar_of(files, tarfile.USTAR_FORMAT)),
    "logs.tar.xz": lambda files: lzma.compress(tar_of(files)),
    "logs.tar.bz2": lambda files: bz2.compress(tar_of(files)),
    "logs.zip": zip_of,
    "stored.zip": lambda files: zip_of(files, zipfile.ZIP_STORED),
}


# ---- archives ----


@pytest.mark.parametrize("name", PACKERS)
def test_an_archive_is_read_as_the_files_in_it(tmp_path: Path, messages: Catalogue, name: str) -> None:
    long = "/".join(["the_folder_with_a_long_name"] * 8)
    files = {"./run/rank0.log": rank(1).encode(), f"{long}/rank1.log.gz": gzip.compress(rank(2).encode())}
    (tmp_path / "flat").mkdir()
    for i, data in enumerate(files.values()):
        (tmp_path / "flat" / f"rank{i}.log").write_bytes(data)
    path = tmp_path / name
    path.write_bytes(PACKERS[name]({**files, "core.17": CORE, "run/.hidden": rank(3).encode()}))
    packed, flat = scan(path, catalogue=messages), scan(tmp_path / "flat", catalogue=messages)
    assert summary(packed) == summary(flat)
    assert [f.path for f in packed.files] == [f"{path}:run/rank0.log", f"{path}:{long}/rank1.log.gz"]
    lines = [packed.text(p.first) for p in packed.processes]
    assert lines == [flat.text(p.first) for p in flat.processes]
    assert lines[0] == BIRTH.format(1).rstrip()
    packed.close()
    flat.close()


@pytest.mark.parametrize("name", PACKERS)
def test_an_archive_is_read_in_the_order_of_its_folder(tmp_path: Path, messages: Catalogue, name: str) -> None:
    """tar packs files in the order of the directory, which is that of no name."""
    files = [f"logs/{place}" for place in ("rank0.log", "rank1.log", "rank10.log", "a/rank2.log", "a/b/rank3.log")]
    (tmp_path / "logs/a/b").mkdir(parents=True)
    for number, file in enumerate(files):
        (tmp_path / file).write_bytes(rank(number).encode())
    path = tmp_path / name
    for order in (files[::-1], files[2:] + files[:2]):
        path.write_bytes(PACKERS[name]({file: (tmp_path / file).read_bytes() for file in order}))
        with scan(path, catalogue=messages) as packed, scan(tmp_path / "logs", catalogue=messages) as flat:
            assert [f.path.removeprefix(f"{path}:") for f in packed.files] == files
            assert [f.path.removeprefix(f"{tmp_path}/") for f in flat.files] == files
            assert [packed.text(p.first) for p in packed.processes] == [flat.text(p.first) for p in flat.processes]


def test_archives_within_archives_are_opened_up_to_a_depth(tmp_path: Path, messages: Catalogue) -> None:
    data = tar_of({"rank0.log": rank(1).encode()})
    names = "rank0.log"
    for depth in range(2):
        data, names = (
            zip_of({f"{depth}.tar": data}) if depth % 2 else tar_of({f"{depth}.tar": data}),
            f"{depth}.tar:{names}",
        )
    (tmp_path / "a.tar").write_bytes(data)
    assert [i.path for i in discover([tmp_path / "a.tar"])] == [f"{tmp_path / 'a.tar'}:{names}"]
    (tmp_path / "b.tar").write_bytes(tar_of({"deeper.tar": data}))
    notes: list[str] = []
    assert [Path(i.path).name for i in discover([tmp_path / "b.tar", tmp_path / "a.tar"], notes)] == [f"a.tar:{names}"]
    assert any("an archive within 3 archives was not opened" in note for note in notes)


def test_a_member_of_an_archive_that_is_no_log_is_read_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar_of({"stacks.txt": GDB.encode()})))
    (found,) = discover([tmp_path / "a.tgz"])
    assert found.foreign == "gdb"
    (dump,) = load(found.path, found.foreign, source=found).stacks
    assert [frame.function for frame in dump.threads[0].frames] == ["poll", "main"]


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, target in (
            ("../../etc/rank0.log", tarfile.REGTYPE, ""),
            ("link.log", tarfile.SYMTYPE, "/etc/passwd"),
            ("hard.log", tarfile.LNKTYPE, "/etc/passwd"),
            ("zero.log", tarfile.CHRTYPE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, target, 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(b"one\n"))
    (tmp_path / "a.tar").write_bytes(out.getvalue())
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(out.getvalue()))
    before = sorted(tmp_path.rglob("*"))
    for name in ("a.tar", "a.tar.gz"):
        assert [i.path for i in discover([tmp_path / name])] == [f"{tmp_path / name}:etc/rank0.log"]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [name for name in PACKERS if name not in ("stored.zip", "logs.tar.bz2")])
def test_a_truncated_archive_gives_what_it_has(tmp_path: Path, messages: Catalogue, name: str) -> None:
    noise = os.urandom(300_000).hex().encode() + b"\n"
    data = PACKERS[name]({"rank0.log": rank(1).encode(), "noise.log": noise, "rank1.log": rank(2).encode()})
    path = tmp_path / name
    path.write_bytes(data[: len(data) // 2])
    if name.endswith(".zip"):  # the directory of a zip archive is at its end
        with pytest.raises(InputError, match="the archive is damaged"):
            discover([path])
        return
    result = scan(path, catalogue=messages)
    assert [p.pid for p in result.processes] == [1]
    assert any("ends early" in note or "what could be read was used" in note for note in result.notes), result.notes


def test_what_an_archive_unpacks_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"step 1\n" * 100_000
    (tmp_path / "a.tgz").write_bytes(
        gzip.compress(tar_of({"rank0.log": b"one\n", "large.log": large, "x.log": b"x\n"}))
    )
    (tmp_path / "a.zip").write_bytes(zip_of({"rank0.log": b"one\n", "large.log": large, "x.log": b"x\n"}))
    made = archives.Budget
    monkeypatch.setattr("psmkit.logparse.inputs.Budget", lambda spool: made(spool, size=100_000))
    for name in ("a.tgz", "a.zip"):
        notes: list[str] = []
        found = discover([tmp_path / name], notes)
        assert [Path(i.path).name for i in found] == [f"{name}:rank0.log"]
        assert notes == [
            f"{tmp_path / name}: the archive unpacks to more than psmkit reads; only its first files were read"
        ]
    monkeypatch.setattr("psmkit.logparse.inputs.Budget", lambda spool: made(spool, members=1))
    assert len(discover([tmp_path / "a.tgz"])) == 1


def test_headers_of_a_tar_archive_that_claim_too_much_are_refused(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("././@LongLink")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    good = tar_of({"rank0.log": b"one\n"}).rstrip(b"\0")
    good += bytes(-len(good) % 512)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(good + entry.tobuf(tarfile.GNU_FORMAT) + b"x" * 4096))
    notes: list[str] = []
    assert len(discover([path], notes)) == 1
    assert "the header at byte 1024 of the archive is 1099511627776 bytes long" in notes[0]


def test_an_encrypted_member_is_named(tmp_path: Path) -> None:
    data = bytearray(zip_of({"secret.log": b"one\n", "rank0.log": b"two\n"}))
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(magic) + flags] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    notes: list[str] = []
    assert [i.path for i in discover([tmp_path / "a.zip"], notes)] == [f"{tmp_path / 'a.zip'}:rank0.log"]
    assert notes == [f"{tmp_path / 'a.zip'}: secret.log is encrypted and was not read"]


def test_an_archive_without_a_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of({"core.1": CORE}))
    with pytest.raises(InputError, match=r"a\.tar: no log in this archive"):
        discover([tmp_path / "a.tar"])


# ---- what is no log ----


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (CORE, "a core dump"),
        (LIBRARY, "a program or library"),
        (b"\xd4\xc3\xb2\xa1\x02\0\4\0" + bytes(16), "pcap"),
        (b"\x89PNG\r\n\x1a\n" + bytes(16), "a PNG picture"),
        (b"SQLite format 3\0" + bytes(84), "an SQLite database"),
        (b"\x80\x04\x95\x0b\0\0\0\0\0\0\0}\x94\x8c\x01a\x94K\x01s.", "a Python pickle"),
        ("héllo\n".encode("utf-32"), "UTF-32"),
        (bytes(range(256)) * 8, "binary data"),
    ],
)
def test_a_binary_is_refused_by_name(tmp_path: Path, messages: Catalogue, data: bytes, name: str) -> None:
    (tmp_path / "core.1").write_bytes(data)
    (tmp_path / "rank0.log").write_text(rank(1))
    with pytest.raises(InputError, match=name):
        discover([tmp_path / "core.1"])
    with pytest.raises(InputError, match=name):
        discover([str(tmp_path / "core*")])
    for paths in ([tmp_path / "core.1", tmp_path / "rank0.log"], [tmp_path], [str(tmp_path / "*")]):
        result = scan(paths, catalogue=messages)
        assert [f.path for f in result.files] == [str(tmp_path / "rank0.log")]
        assert result.totals.other == scan(tmp_path / "rank0.log", catalogue=messages).totals.other
        (note,) = result.notes
        assert name in note


@pytest.mark.parametrize(
    "text",
    [
        b"\x1b[31mnode\x1b[0m \x1b[K\r 40%|###\x08\x08 |\r\x07\n" * 20,  # a terminal
        "проверка 日本語 ok\n".encode() * 20,
        "straße\n".encode("latin-1") * 20,
        "日本語\n".encode("shift-jis") * 20,
        b"\0" * 1000 + b"n:1:2 [0] NCCL INFO Using network IB\n",  # truncated while it was open
        b"\x80\x04 a line that begins oddly\n",
        b"",
    ],
)
def test_a_text_with_odd_bytes_is_no_binary(text: bytes) -> None:
    assert binary(text) is None


def test_a_log_that_begins_with_a_hole_is_read(tmp_path: Path, messages: Catalogue) -> None:
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "rank0.log"
    with path.open("wb") as file:
        file.seek(3 << 20)
        file.write(rank(1).encode())
    assert [p.pid for p in scan(tmp_path / "a", catalogue=messages).processes] == [1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_decoded(tmp_path: Path, messages: Catalogue, encoding: str) -> None:
    text = rank(1).replace("step 1", "Ünïcode \N{GRINNING FACE}")
    (tmp_path / "a.log").write_bytes(text.encode(encoding))
    (tmp_path / "b.log").write_bytes(text.encode())
    coded = scan(tmp_path / "a.log", catalogue=messages, chunk=101)
    plain = scan(tmp_path / "b.log", catalogue=messages)
    assert summary(coded) == summary(plain)
    assert [coded.text(e.first) for e in coded.processes] == [plain.text(e.first) for e in plain.processes]
    coded.close()
    (tmp_path / "ras.json").write_bytes(
        json.dumps({"nccl_version": "2.28.7", "communicators": []}, indent=1).encode("utf-16")
    )
    (found,) = discover([tmp_path / "ras.json"])
    assert found.foreign == "ras-json"
    assert load(found.path, found.foreign, source=found).ras[0].version == "2.28.7"


# ---- one bad input beside good ones ----


def test_a_glob_matches_folders(tmp_path: Path, messages: Catalogue) -> None:
    for i in range(2):
        (tmp_path / f"node{i}").mkdir()
        (tmp_path / f"node{i}" / "rank.log").write_text(rank(i + 1))
    (tmp_path / "empty").mkdir()
    result = scan(str(tmp_path / "*"), catalogue=messages)
    assert sorted(p.pid for p in result.processes) == [1, 2]
    assert result.notes == [f"{tmp_path / 'empty'}: no log in this folder"]


def test_unreadable_and_empty_inputs_are_notes_beside_good_ones(
    tmp_path: Path, messages: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        (tmp_path / f"rank{i}.log").write_text(rank(i + 1) if i != 1 else "")
    closed = str(tmp_path / "rank2.log")
    really = os.open

    # Root may read everything, so permissions alone prove nothing here.
    def denied(path: object, *args: object, **options: object) -> object:
        if path == closed:
            raise PermissionError(13, "Permission denied", path)
        return really(path, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("os.open", denied)
    for paths in ([tmp_path], [str(tmp_path / "*.log")], [tmp_path / f"rank{i}.log" for i in range(3)]):
        result = scan(paths, catalogue=messages)
        assert [p.pid for p in result.processes] == [1]
        assert result.notes == [f"{tmp_path / 'rank1.log'}: the file is empty", f"{closed}: permission denied"]
    with pytest.raises(InputError, match="permission denied"):
        discover([closed])


def test_a_path_that_does_not_exist_is_an_error_beside_good_ones(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(rank(1))
    with pytest.raises(InputError, match="no such file or folder"):
        discover([tmp_path, tmp_path / "rank1.log"])


def test_a_device_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/zero: it is a device"):
        discover(["/dev/zero"])
    code = "from psmkit.logparse import discover; discover(['-'])"
    with open("/dev/zero", "rb") as zero:
        done = subprocess.run([sys.executable, "-c", code], stdin=zero, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("<stdin>: it is a device")
    assert discover(["/dev/null"])[0].size == 0


def test_an_archive_on_standard_input_is_read(tmp_path: Path) -> None:
    code = "from psmkit.logparse import discover; print([i.path for i in discover(['-'])])"
    data = gzip.compress(tar_of({"a.log": rank(1).encode()}))
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "['<stdin>:a.log']"


@pytest.mark.parametrize("name", ["log.²", "log.١٢", "log." + "9" * 240, "9" * 250])
def test_any_file_name_is_accepted(tmp_path: Path, messages: Catalogue, name: str) -> None:
    (tmp_path / name).write_text(rank(1))
    (tmp_path / "rank1.log").write_text(rank(2))
    assert sorted(p.pid for p in scan(tmp_path, catalogue=messages).processes) == [1, 2]


def test_numbers_in_names_are_compared_as_numbers() -> None:
    names = ["log.10000000000000000000000", "log.10", "log.002", "log.9", "log.1"]
    assert sorted(names, key=natural) == ["log.1", "log.002", "log.9", "log.10", "log.10000000000000000000000"]


# ---- more files than may be open ----


@pytest.mark.parametrize("pack", ["plain", "gz", "mixed", "tar"])
def test_more_files_than_may_be_open_are_read_in_turn(tmp_path: Path, pack: str) -> None:
    count = 80
    for i in range(count):
        data = (rank(i + 1) + NET.format(i + 1, "IB") * 40).encode()
        packed = pack == "gz" or (pack == "mixed" and i % 2)
        data = gzip.compress(data) if packed else tar_of({"a.log": data}) if pack == "tar" else data
        (tmp_path / f"rank{i}.log").write_bytes(data)
    code = f"""
import resource
from psmkit.logparse import scan, scanner
scanner._SPARE = 24
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
found = scan({str(tmp_path)!r}, chunk=512)
print(len(found.processes), found.totals.lines, found.notes)
lines = [found.text(p.last) for p in found.processes]
print(len(set(lines)), set(line.split()[-1] for line in lines))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    lines = len(rank(1).splitlines()) + 40
    assert done.stdout.splitlines() == [f"{count} {count * lines} []", f"{count} {{'IB'}}"]


def test_lines_of_a_file_are_read_with_one_open_file_within_a_context_and_none_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Catalogue
) -> None:
    log = tmp_path / "job.log"
    log.write_text(rank(1) + rank(2))
    opened: list[io.FileIO] = []

    def counted(source: result.Input) -> io.FileIO:
        opened.append(io.FileIO(source.path))
        return opened[-1]

    monkeypatch.setattr(result, "open_raw", counted)
    refs: list[Ref] = []
    with scan(log, catalogue=messages) as found:
        refs = [place for p in found.processes for place in (p.first, p.last)]
        texts = [found.text(ref) for ref in reversed(refs)]
        assert len(set(texts)) == len(refs) > 2
        assert len(opened) == 1 and not opened[0].closed
    assert opened[0].closed
    again = scan(log, catalogue=messages)
    assert [again.text(ref) for ref in reversed(refs)] == texts
    assert all(file.closed for file in opened)


def test_what_a_pipe_holds_beyond_the_bound_is_said_to_be_unread() -> None:
    code = (
        "import psmkit.logparse.inputs as inputs\nfrom psmkit.logparse import scan\n"
        "inputs._MAX_SPOOL = 1 << 20\n"
        "print(*scan(['-']).notes, sep='\\n')\n"
    )
    line = b"host:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    done = subprocess.run([sys.executable, "-c", code], input=line * 60_000, capture_output=True, check=True)
    assert b"were read, as a pipe is copied to a temporary file: give a longer log as a file" in done.stdout
