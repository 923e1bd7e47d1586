"""A recording holds all that was taken, and is exported again as it was."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.outputs import Outputs, Wanted
from psmkit.telemetry.recording import Recorder, operations, read
from psmkit.telemetry.take import Take
from tests.telemetry.receiver import DEADLINE, Receiver
from tests.telemetry.takes import HASH, WALL, made

FORMS = ("run.parquet", "run.arrow")


def same(one: Take, two: Take) -> bool:
    for field in dataclasses.fields(Take):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, np.ndarray):
            if a.dtype != b.dtype or len(a) != len(b) or not (a == b).all():
                return False
        elif a != b:
            return False
    return True


def record(path: Path, takes: list[Take], most: int = 1 << 30) -> Recorder:
    recorder = Recorder(str(path), most)
    for take in takes:
        recorder.add(take)
    recorder.close()
    return recorder


@pytest.mark.parametrize("name", FORMS)
def test_takes_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    takes = [made(0), made(1), made(2, spans=(), rows=False)]
    record(tmp_path / name, takes)
    found = list(read(str(tmp_path / name)))
    assert len(found) == 3
    assert all(map(same, takes, found))
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", FORMS)
def test_a_replay_exports_what_the_run_exported(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)

    def exported(takes: list[Take], **more: Any) -> tuple[list[Any], list[Any]]:
        receiver = Receiver("grpc")
        outputs = Outputs(Wanted(receiver.endpoint, "grpc", **more), print, own=False)
        for take in takes:
            outputs.replay(take)
        assert outputs.close(DEADLINE) == 0
        receiver.close()
        return [receiver.points(i) for i in range(len(receiver.got["metrics"]))], receiver.spans()

    original = exported([made(0), made(1)], record=path)
    again = exported(list(read(path)))
    assert again[0] == original[0]
    assert again[1] == original[1]
    assert len(again[0]) == 2
    assert len(again[1]) == 24


def test_a_stream_whose_writer_was_killed_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run.arrow"
    record(path, [made(0), made(1), made(2)])
    whole = path.read_bytes()
    (tmp_path / "cut.arrow").write_bytes(whole[: len(whole) - len(whole) // 4])
    found = list(read(str(tmp_path / "cut.arrow")))
    assert [same(a, b) for a, b in zip(found, [made(0), made(1)], strict=True)] == [True, True]


@pytest.mark.parametrize("content", [b"", b"PAR1 but not more", b"a log line\n" * 50])
def test_what_is_no_recording_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(TelemetryError, match=r"x\.parquet"):
        list(read(str(path)))


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(TelemetryError, match="not a recording"):
        list(read(str(tmp_path / "x.parquet")))


def test_a_recording_is_bounded_and_what_is_beyond_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.arrow"
    recorder = record(path, [made(n) for n in range(20)], most=300_000)
    assert 0 < len(list(read(str(path)))) < 20
    assert recorder.dropped > 0
    assert path.stat().st_size < 900_000


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, form: str) -> None:
    path = tmp_path / form
    path.symlink_to("/dev/full")
    said: list[str] = []
    outputs = Outputs(Wanted(record=str(path)), said.append)
    for number in range(3):
        outputs.pipeline.feed(made(number))
    assert len(outputs.pipeline.points) > 100
    outputs.close(0)
    assert [line for line in said if "no space left on device" in line] == said[:1]
    assert re.search(r"[1-9]\d* rows were not recorded$", said[-1])


def test_rows_of_an_older_version_get_their_ends_when_they_are_read(tmp_path: Path) -> None:
    """They had neither begin_ns, end_ns nor by."""
    record(tmp_path / "new.parquet", [made()])
    table = pq.read_table(tmp_path / "new.parquet")
    for name in ("span", "row", "open"):
        column = table[name].combine_chunks()
        kept = [field for field in column.type if field.name not in ("begin_ns", "end_ns", "by", "reserved")]
        older = pa.StructArray.from_arrays([column.field(f.name) for f in kept], fields=kept, mask=column.is_null())
        table = table.set_column(table.schema.get_field_index(name), name, older)
    pq.write_table(table, tmp_path / "old.parquet")
    (found,) = read(str(tmp_path / "old.parquet"))
    assert same(found, made())


def test_finished_operations_are_a_column_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    record(path, [made()])
    table = pq.read_table(path, columns=["kind", "operation"])
    found = [
        r for k, r in zip(table["kind"].to_pylist(), table["operation"].to_pylist(), strict=True) if k == "operation"
    ]
    assert found == operations(made())
    assert [(f["rank"], f["func"], f["algo"], f["proto"], f["bytes"], f["duration_ns"]) for f in found] == [
        (rank, "AllReduce", "ring", "simple", 4096, 880_000) for rank in (0, 1)
    ]
    assert {f["comm_hash"] for f in found} == {HASH}
    assert {f["start_ns"] for f in found} == {WALL - 10**6 + 20_000}
