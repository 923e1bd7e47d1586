"""What a scan keeps depends on what is open, not on how long the log is. Counted, not timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.logparse import scan
from tests.loggen.stream import stream, write_stream

KEPT = ("events", "counts", "calls", "fds", "instances", "groups", "pairs", "ledger", "shapes", "threads", "processes")


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
