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


def test_lines_that_are_read_ahead_are_those_that_are_fed(catalogue: Catalogue) -> None:
    """A line that goes on in the next piece, an empty piece, a piece without a line end."""
    text = b"".join(stream(200_000))
    rng = random.Random(3)
    totals = []
    for ahead in (None, ffi.gc(lib.ls_ahead_new(catalogue.native, 0), lib.ls_ahead_free)):
        rng.seed(3)
        native = ffi.gc(lib.ls_scan_new(catalogue.native, 0), lib.ls_scan_free)
        file = lib.ls_scan_file(native, lib.ls_scan_stream(native))
        at = 0
        while at < len(text):
            piece = ffi.from_buffer(text[at : at + rng.choice([0, 1, 7, 100, 5000])])
            if ahead is None:
                lib.ls_feed(native, file, piece, len(piece))
            else:
                lib.ls_read_ahead(ahead, 0, piece, len(piece))
                lib.ls_feed_ahead(native, file, ahead)
            at += len(piece)
        lib.ls_end_file(native, file)
        found = lib.ls_get_totals(native)
        totals.append(
            [found.lines, found.bytes, found.matched, found.unmatched, found.calls_matched, found.fds_matched]
        )
    assert totals[0] == totals[1]
    assert totals[0][1] == len(text)
