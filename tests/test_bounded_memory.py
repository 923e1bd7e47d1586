"""What a scan keeps depends on what is open, not on how long the log is. Counted, not timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.logparse import scan
from tests.loggen import odd
from tests.loggen.stream import stream, write_stream

KEPT = ("events", "counts", "calls", "fds", "instances", "groups", "pairs", "ledger", "shapes", "threads", "processes")


LIMIT = 400_000  # LS_MAX_ITEMS


def written(path: Path, pieces: odd.Pieces) -> Path:
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
    return path


def kept(path: Path) -> tuple[dict[str, int], int]:
    result = scan([str(path)])
    try:
        return {name: len(getattr(result, name)) for name in KEPT}, result.totals.calls_matched
    finally:
        result.close()


@pytest.mark.parametrize("dialect", ["2.18", "2.27", "2.30"])
def test_ten_times_the_log_keeps_no_more(dialect: str, tmp_path: Path) -> None:
    sizes = {}
    for name, size in (("short", 300_000), ("long", 3_000_000)):
        path = tmp_path / f"{name}.log"
        with path.open("wb") as file:
            write_stream(file, size, ranks=8, dialect=dialect)
        sizes[name] = kept(path)
    assert sizes["long"][1] > 5 * sizes["short"][1]
    assert sizes["long"][0] == sizes["short"][0]


def test_a_log_without_its_end_keeps_what_is_open_only(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    *pieces, _end = stream(2_000_000, ranks=8)
    data = b"".join(pieces)
    path.write_bytes(data[: data.rindex(b"\n", 0, len(data) - 3000) + 1])
    found, matched = kept(path)
    assert matched > 1000
    assert found["calls"] <= 8
    assert found["fds"] <= 8


def test_a_job_of_many_bytes_keeps_no_more_than_one_of_few(tmp_path: Path) -> None:
    """With fresh ids in each round, as `psmkit lab synth` writes them."""
    short, _ = kept(written(tmp_path / "short.log", odd.job(128, 3_000_000)))
    long, matched = kept(written(tmp_path / "long.log", odd.job(128, 24_000_000)))
    assert matched > 10_000
    assert long == short


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "job.log", odd.long_line(30_000_000))
    result = scan([str(path)])
    try:
        assert result.totals.bytes == path.stat().st_size
        assert any("longer than 1 MiB was cut" in note for note in result.notes), result.notes
        assert sum(len(shape.shape) for shape in result.shapes) < 100_000
    finally:
        result.close()


def test_calls_that_nobody_receives_are_followed_to_a_bound(tmp_path: Path) -> None:
    path = written(tmp_path / "job.log", odd.unanswered(LIMIT + 50_000))
    result = scan([str(path)])
    try:
        assert LIMIT - 100 < len(result.calls) <= LIMIT
        assert any(
            "entries beyond the bounds of a tracker were counted and not followed" in note for note in result.notes
        ), result.notes
    finally:
        result.close()


def test_unknown_lines_are_counted_by_a_bounded_number_of_shapes(tmp_path: Path) -> None:
    found: list[int] = []
    for size in (1_000_000, 8_000_000):
        result = scan([str(written(tmp_path / "job.log", odd.unmatched(size)))])
        try:
            assert result.totals.unmatched > size / 100
            found.append(len(result.shapes))
        finally:
            result.close()
    assert found[0] == found[1] <= 4096


def test_an_analysis_of_a_long_job_needs_no_more_room(tmp_path: Path) -> None:
    """Counted by the system: it ends within a limit that the log would not fit in; the stacks and buffers of its threads take 25 MiB."""
    path = written(tmp_path / "job.log", odd.job(64, 60_000_000))
    code = (
        "import resource, sys, numpy, psmkit\n"  # a long log is read with numpy, which takes its room at once
        "psmkit.analyze([sys.argv[2]])\n"  # what a small log needs is there: modules, the catalogue, arenas of threads
        "now = int(next(l for l in open('/proc/self/status') if l.startswith('VmData')).split()[1]) << 10\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (now + (40 << 20), now + (40 << 20)))\n"
        "print(psmkit.analyze([sys.argv[1]]).verdict.value)\n"
    )
    small = written(tmp_path / "small.log", odd.job(64))
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(small)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == ["healthy"], done.stderr[-500:]
