"""Files, streams and chunks: the same lines give the same result however they are cut, packed or interleaved."""

from __future__ import annotations

import gc
import gzip
import lzma
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psmkit.catalogue import Catalogue
from psmkit.logparse import ScanResult, arrange, discover, events, scan, scanner
from psmkit.logparse.result import collect
from psmkit.logparse.scanner import Feed
from psmkit.logparse.streams import Input, Reader
from psmkit.model.errors import InputError
from tests.logparse.conftest import Scan
from tests.logparse.test_rpc import begun, noise, queued, received, served, whole

BIRTH = "n:{0}:{0}2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
NET = "n:{0}:{0}2 [0] NCCL INFO Using network {1}\n"


def rank(pid: int) -> str:
    return (
        BIRTH.format(pid) + NET.format(pid, "IB") + whole(0xA, 1, pid) + begun("Setup", 7, pid) + whole(0xA, 3, pid)
        + "step 1\n" + served(0xB, 3, pid) + received(0xB, pid) + queued(0xB, pid) + noise(5, pid)
    )  # fmt: skip


def summary(result: ScanResult) -> dict[str, Any]:
    """What a scan found, without places."""
    names = {p.index: (p.host, p.pid, p.incarnation) for p in result.processes}
    return {
        "processes": sorted((p.host, p.pid, p.incarnation, p.lines, p.births) for p in result.processes),
        "events": sorted((e.name, names.get(e.proc), sorted(e.fields.items()), e.count) for e in result.events),
        "counts": sorted((c.name, str(names.get(c.proc)), c.count) for c in result.counts),
        "calls": sorted(
            (c.op, c.state, c.stage, str(names.get(c.service if c.service is not None else -1))) for c in result.calls
        ),
        "totals": (
            result.totals.lines,
            result.totals.matched,
            result.totals.torn,
            result.totals.calls_matched,
            result.totals.other,
        ),
    }


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunk=st.integers(1, 400))
def test_chunks_of_any_size_give_the_same_result(scan_text: Scan, chunk: int) -> None:
    assert summary(scan_text(rank(1), rank(2), chunk=chunk)) == summary(scan_text(rank(1), rank(2)))


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_interleaving_keeps_what_each_process_did(scan_text: Scan, data: st.DataObject) -> None:
    queues = [rank(pid).splitlines(keepends=True) for pid in (1, 2, 3)]
    woven = ""
    while any(queues):
        queue = data.draw(st.sampled_from([q for q in queues if q]))
        woven += queue.pop(0)
    apart = summary(scan_text(*[rank(pid) for pid in (1, 2, 3)]))
    assert summary(scan_text(woven)) == apart


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_compressed_input_is_read_as_it_is(tmp_path: Path, messages: Catalogue, kind: str) -> None:
    text = (rank(1) * 30).encode()
    path = tmp_path / "a.log"  # the name does not tell
    path.write_bytes(_packed(kind, text))
    result = scan(path, catalogue=messages)
    assert result.totals.bytes == len(text)
    lines = text.decode().splitlines()
    refs = [e.ref for e in result.events] + [p.last for p in result.processes]
    assert [result.text(ref) for ref in refs] == [lines[ref.line - 1] for ref in refs]
    result.close()


def _packed(kind: str, data: bytes) -> bytes:
    if kind == "gz":
        return gzip.compress(data)
    if kind == "xz":
        return lzma.compress(data)
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.compress(data))


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_damaged_compression_keeps_what_was_read_and_says_so(tmp_path: Path, messages: Catalogue, kind: str) -> None:
    lines = "".join(NET.format(pid, f"net{pid}") for pid in range(1, 60000))
    path = tmp_path / "a.gz"
    packed = _packed(kind, lines.encode())
    path.write_bytes(packed[: len(packed) * 3 // 4])
    result = scan(path, catalogue=messages)
    assert result.totals.matched > 100
    if kind != "zst":
        assert [str(path) in note for note in result.notes if "used" in note] == [True]


def test_an_error_of_a_decompressor_is_freed_at_once(tmp_path: Path, messages: Catalogue) -> None:
    # Left to the collector, its traceback ends in views of buffers, and Python 3.11 crashes.
    data = bytearray(gzip.compress("".join(rank(1) + noise(n) for n in range(1, 50)).encode()))
    data[-8] ^= 255
    path = tmp_path / "a.log.gz"
    path.write_bytes(data)
    gc.collect()
    gc.disable()
    try:
        assert "CRC check failed" in " ".join(scan(path, catalogue=messages).notes)
        assert not [o for o in gc.get_objects() if isinstance(o, gzip.BadGzipFile)]
    finally:
        gc.enable()


def test_halves_of_one_run_are_one_stream(tmp_path: Path, messages: Catalogue) -> None:
    lines = rank(1).splitlines(keepends=True)
    (tmp_path / "log.10").write_text("".join(lines[8:]))
    (tmp_path / "log.9").write_text("".join(lines[:8]))
    result = scan(tmp_path, catalogue=messages)
    assert {f.stream for f in result.files} == {0}
    assert summary(result)["calls"] == summary(scan_one(tmp_path / "whole", rank(1), messages))["calls"]
    assert len(result.processes) == 1


def scan_one(path: Path, text: str, messages: Catalogue) -> ScanResult:
    path.write_text(text)
    return scan(path, catalogue=messages)


def test_two_runs_with_births_are_two_streams(tmp_path: Path, messages: Catalogue) -> None:
    (tmp_path / "a.log").write_text(rank(1))
    (tmp_path / "b.log").write_text(rank(1) + "step 2\n")  # equal files would be one log
    result = scan(tmp_path, catalogue=messages)
    assert [(p.stream, p.pid) for p in result.processes] == [(0, 1), (1, 1)]


def test_threads_of_one_process_in_two_files_are_one_process(tmp_path: Path, messages: Catalogue) -> None:
    (tmp_path / "a.log").write_text(BIRTH.format(1) + NET.format(1, "A"))
    (tmp_path / "b.log").write_text("n:1:99 [0] NCCL INFO Using network B\n")
    result = scan(tmp_path, catalogue=messages)
    assert [(p.pid, p.lines) for p in result.processes] == [(1, 3)]
    assert sorted(e.fields["name"] for e in result.events if e.name == "net") == ["A", "B"]


def test_folders_are_searched_and_other_files_left_out(tmp_path: Path, messages: Catalogue) -> None:
    deep = tmp_path / "x" / "y"
    deep.mkdir(parents=True)
    (deep / "a.log").write_text(rank(1))
    (deep / "lib.so").write_bytes(b"\x7fELF" + bytes(100))
    (deep / ".hidden").write_text(rank(2))
    assert [Path(i.path).name for i in discover([tmp_path])] == ["a.log"]
    assert [Path(i.path).name for i in discover([str(tmp_path / "**" / "*.log")])] == ["a.log"]
    assert len(discover([deep / "a.log", tmp_path, deep / "a.log"])) == 1


def test_empty_folder_beside_good_inputs_is_a_note(tmp_path: Path, messages: Catalogue) -> None:
    logs, records, more = (tmp_path / name for name in ("logs", "records", "more"))
    for folder in (logs, records, more):
        folder.mkdir()
    (logs / "a.log").write_text(rank(1))
    for order in ([logs, records], [records, logs]):
        result = scan(order, catalogue=messages)
        assert [p.pid for p in result.processes] == [1]
        assert result.notes == [f"{records}: no log in this folder"]
    with pytest.raises(InputError, match=r"records, .*more: no log in these folders"):
        discover([records, more])


@pytest.mark.parametrize(
    ("name", "reason"), [("missing.log", "no such"), ("*.nothing", "no file matches"), ("empty", "no log")]
)
def test_what_is_not_there_is_named(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=reason) as caught:
        scan(tmp_path / name)
    assert name in str(caught.value)


def test_an_empty_file_is_an_empty_result(scan_text: Scan) -> None:
    result = scan_text("")
    assert (result.totals.lines, result.processes, result.events) == (0, [], [])


def test_standard_input_can_be_quoted_later(tmp_path: Path) -> None:
    code = (
        "from psmkit.logparse import scan\n"
        "r = scan('-')\n"
        "e = r.processes[0].last\n"
        "print(r.files[0].path, r.totals.lines, r.evidence(e))\n"
        "print(r.text(e))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        input=gzip.compress(rank(1).encode()),
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
    ).stdout.decode()
    last = rank(1).splitlines()[-1]
    count = len(rank(1).splitlines())
    assert out.splitlines() == [f"<stdin> {count} <stdin>:{count}", last]


def test_progress_ends_with_all_bytes(tmp_path: Path, messages: Catalogue) -> None:
    seen: list[tuple[int, int]] = []
    path = tmp_path / "a.log"
    path.write_text(rank(1) * 10)
    scan(path, catalogue=messages, progress=lambda done, total: seen.append((done, total)), chunk=512)
    assert len(seen) > 3
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_small_log_is_read_at_once_unless_it_grew_since_it_was_found(
    tmp_path: Path, messages: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(1, 5):
        (tmp_path / f"{pid}.log").write_text(rank(pid))
    feed = Feed.start([tmp_path], messages, 0)
    with (tmp_path / "3.log").open("a") as log:
        log.write(noise(4, 3))
    opened: list[str] = []

    def reader(source: Input) -> Reader:
        opened.append(Path(source.path).name)
        return Reader(source)

    monkeypatch.setattr(scanner, "Reader", reader)
    rounds = sum(1 for _ in feed.run(1 << 20, None))
    assert opened == ["3.log"]
    assert rounds == 4 + 1, "a reader sees the end of a log when there is nothing more to read"
    found = collect(feed.native, messages, feed.inputs, feed.arrangement.stream_of, (), ())
    assert [file.lines for file in found.files] == [
        len((tmp_path / f"{pid}.log").read_text().splitlines()) for pid in range(1, 5)
    ]


def test_events_hands_over_every_matched_line(tmp_path: Path, messages: Catalogue) -> None:
    path = tmp_path / "a.log"
    path.write_text(rank(7) * 20)
    batches = list(events(path, catalogue=messages, chunk=1000))
    total = sum(len(b) for b in batches)
    assert total == scan(path, catalogue=messages).totals.matched
    assert len(batches) > 3
    lines = [int(n) for b in batches for n in b.line]
    assert lines == sorted(lines)
    first = next(iter(batches[0]))
    assert (first.name, first.fields) == ("bootstrap", {"ifname": "eth0", "addr": "10.0.0.1<0>"})
    assert set(batches[0].pid.tolist()) == {7}
    assert set(batches[0].host) == {"n"}


def test_events_of_some_messages_come_as_columns(tmp_path: Path, messages: Catalogue) -> None:
    path = tmp_path / "a.log"
    path.write_text(served(0x7F0000000001, 3, 1, 80) + NET.format(1, "IB") + served(2, 4, 1, 0))
    (batch,) = events(path, catalogue=messages, names={"served"})
    columns = batch.select("served")
    assert columns["op"].tolist() == [0x7F0000000001, 2]
    assert columns["type"].tolist() == [3, 4]
    assert columns["row"].tolist() == [0, 1]


def test_distinct_messages_are_kept_once_with_a_count(scan_text: Scan) -> None:
    result = scan_text(NET.format(1, "A") * 3 + NET.format(1, "B") + NET.format(2, "A"))
    found = [(e.fields["name"], e.count, e.ref.line, e.last.line if e.last else None) for e in result.events]
    assert found == [("A", 3, 1, 3), ("B", 1, 4, None), ("A", 1, 5, None)]


@pytest.mark.parametrize("cut", [1500, 20000, -1])
def test_a_gzip_that_is_cut_loses_no_line_that_zlib_decodes(cut: int, tmp_path: Path) -> None:
    numbers = random.Random(5)
    text = "".join(
        f"n1:10:20 [0] NCCL INFO Channel {n}/04 : 0 1 2 3 {numbers.random()}\n" for n in range(4000)
    ).encode()
    stored = gzip.compress(text)[:cut]
    want = zlib.decompressobj(31).decompress(stored)
    (tmp_path / "a.log.gz").write_bytes(stored)
    reader = Reader(Input(str(tmp_path / "a.log.gz"), "gz", len(stored)))
    got = b"".join(iter(lambda: reader.read(1 << 20), b""))
    assert got == want and want
    assert "ends early" in str(reader.note)
    reader.close()


def test_inputs_with_many_tags_leave_room_for_those_of_the_others(
    tmp_path: Path, messages: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrange, "_MOST_TAGS", 2)
    for rank in range(4):
        line = f"[1,{rank}]<stdout>:node:70:70 [0] NCCL INFO "
        (tmp_path / f"{rank}.log").write_text(f"{line}cudaDriverVersion 12040\n{line}Using network Socket\n")
    peek = arrange.Peek(messages)
    heads = [peek.head(item) for item in discover([str(tmp_path)])]
    assert [set(head.threads) for head in heads] == [{((f"[1,{rank}]", "node", 70), 70)} for rank in range(4)]


def test_a_link_to_itself_in_a_folder_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("node:70:70 [0] NCCL INFO Using network Socket\n")
    (tmp_path / "b.log").symlink_to(tmp_path / "b.log")
    (tmp_path / "c").symlink_to(tmp_path, target_is_directory=True)
    assert [Path(item.path).name for item in discover([str(tmp_path)])] == ["a.log"]
