"""A scan by several threads: the same result as by one, whatever the inputs are and however they end."""

from __future__ import annotations

import gzip
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.logparse import scan, scanner
from psmkit.logparse.streams import Reader
from psmkit.report import render
from tests.loggen.stream import calls, stream

SIZE = 3_000_000


@pytest.fixture(autouse=True)
def small_inputs_are_shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scanner, "_LEAST_SHARED", 0)
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith("psmkit-scan")]


def damaged(text: bytes, rng: random.Random) -> bytes:
    """A log that lost line ends, pieces and its end, with lines of other programs and of any bytes between."""
    lines = text.split(b"\n")
    for _ in range(len(lines) // 50):
        at = rng.randrange(len(lines))
        how = rng.randrange(5)
        if how == 0:
            lines[at] = lines[at][: rng.randrange(1 + len(lines[at]))]
        elif how == 1:
            lines[at] += lines[at - 1]
        elif how == 2:
            lines[at] = b"\x1b[31m" + lines[at] + b"\x1b[0m"
        elif how == 3:
            lines[at] = rng.randbytes(rng.randrange(300)).replace(b"\n", b"")
        else:
            lines[at] = b"node0:7:9 [1] transport/net_ib.cc:1296 NCCL WARN Call to " + lines[at][:40]
    return b"\n".join(lines)[:-7]


def folder(where: Path) -> Path:
    """Logs of several kinds: long and short ones, compressed ones, without an end, with one line of 3 MB."""
    rng = random.Random(1)
    text = b"".join(stream(SIZE))
    (where / "whole.log").write_bytes(text)
    (where / "damaged.log").write_bytes(damaged(text, rng))
    (where / "calls.log").write_bytes(b"".join(calls(SIZE, processes=512)))
    (where / "one.log").write_bytes(b"host:1:1 [0] NCCL INFO " + b"x" * SIZE)
    (where / "packed.log.gz").write_bytes(gzip.compress(damaged(text, rng), 1))
    for i in range(20):
        (where / f"short-{i}.log").write_bytes(text[i * 1000 : i * 2000])
    return where


def test_any_number_of_threads_reports_the_same(tmp_path: Path) -> None:
    logs = folder(tmp_path)
    first, *others = (render(analyze([logs], jobs=jobs), "json") for jobs in (1, 2, 3, 4))
    assert '"matched": ' in first
    for other in others:
        assert other == first


@pytest.mark.parametrize("chunk", [1 << 12, 1 << 20])
def test_pieces_of_any_size_say_the_same(tmp_path: Path, chunk: int) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(damaged(b"".join(stream(SIZE // 3)), random.Random(2)))
    seen = []
    for jobs in (1, 2):
        with closing(scan(path, jobs=jobs, chunk=chunk)) as result:
            seen.append((result.totals, [(e.name, e.fields, e.ref, e.last) for e in result.events]))
    assert seen[0] == seen[1]
    assert seen[0][0].matched > 1000


def test_an_error_of_the_reading_thread_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(stream(SIZE)))

    def fails(self: Reader, buffer: memoryview) -> int:
        raise MemoryError("no room")

    monkeypatch.setattr(Reader, "readinto", fails)
    with pytest.raises(MemoryError, match="no room"):
        scan(path, jobs=2)


def test_a_scan_that_is_given_up_leaves_no_thread(tmp_path: Path, catalogue: Catalogue) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(stream(SIZE)))
    feed = scanner.Feed.start([path], catalogue, 0)
    steps = feed.run(1 << 16, None, 2)
    next(steps)
    assert [t for t in threading.enumerate() if t.name.startswith("psmkit-scan")]
    steps.close()  # type: ignore[attr-defined]


def said(catalogue: Catalogue, text: bytes, pieces: list[int], ahead: bool) -> list[object]:
    """What a scan counts in a text that it gets in pieces of these sizes, in turn, read ahead or not."""
    native = ffi.gc(lib.ls_scan_new(catalogue.native, 0), lib.ls_scan_free)
    before = ffi.gc(lib.ls_ahead_new(catalogue.native, 0), lib.ls_ahead_free)
    file = lib.ls_scan_file(native, lib.ls_scan_stream(native))
    at, turn = 0, 0
    while at < len(text):
        piece = ffi.from_buffer(text[at : at + pieces[turn % len(pieces)]])
        if ahead:
            lib.ls_read_ahead(before, 0, piece, len(piece))
            lib.ls_feed_ahead(native, file, before)
        else:
            lib.ls_feed(native, file, piece, len(piece))
        at += len(piece)
        turn += 1
    lib.ls_end_file(native, file)
    lib.ls_finish(native)
    found, n = lib.ls_get_totals(native), ffi.new("size_t *")
    rows: list[object] = [found.lines, found.bytes, found.matched, found.unmatched, found.calls_matched]
    rows.append(found.fds_matched)
    for table, names in (
        (lib.ls_processes, ("pid", "incarnation", "lines")),
        (lib.ls_threads, ("proc", "tid", "lines", "last_message")),
        (lib.ls_counts, ("message", "proc", "count")),
        (lib.ls_tallies, ("service", "served", "type", "count")),
    ):
        at_table = table(native, n)
        rows.append([[getattr(at_table[i], name) for name in names] for i in range(n[0])])
    return rows


def test_lines_that_are_read_ahead_are_those_that_are_fed(catalogue: Catalogue) -> None:
    """A line that goes on in the next piece, an empty piece, a piece without a line end."""
    text, rng = b"".join(stream(200_000)), random.Random(3)
    pieces = [rng.choice([0, 1, 7, 100, 5000]) for _ in range(1000)]
    fed = said(catalogue, text, pieces, ahead=False)
    assert said(catalogue, text, pieces, ahead=True) == fed
    assert fed[1] == len(text)


@pytest.mark.parametrize("piece", [1 << 12, 1 << 18])
def test_a_process_that_starts_again_in_lines_read_ahead_is_another_one(catalogue: Catalogue, piece: int) -> None:
    """The prefixes of the piece were known when it was read, and mean another process behind its middle."""
    text = b"".join(stream(400_000, ranks=8)) * 2
    fed = said(catalogue, text, [piece], ahead=False)
    assert said(catalogue, text, [piece], ahead=True) == fed
    assert sum(incarnation for _, incarnation, _ in fed[6]) == 8  # type: ignore[misc, attr-defined]


@pytest.mark.parametrize("processes", [1024, 9000])
def test_lines_of_thousands_of_processes_are_those_that_are_fed(catalogue: Catalogue, processes: int) -> None:
    """More than stay in a near cache, and more than are kept for reading ahead."""
    text = b"".join(calls(2 * 900 * processes, processes=processes))
    fed = said(catalogue, text, [1 << 18], ahead=False)
    assert said(catalogue, text, [1 << 18], ahead=True) == fed
    assert fed[2] == text.count(b"\n")
    assert fed[4] == text.count(b" matches expected ")
    assert sum(count for _, served, _, count in fed[9] if served) == fed[4]  # type: ignore[misc, attr-defined]
