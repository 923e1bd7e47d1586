"""When operations ended: the same in sums, rows, spans, recordings and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from opentelemetry.sdk.resources import Resource

from psmkit.telemetry.layout import COMM, COMPLETIONS, KERNEL
from psmkit.telemetry.picture import timeline
from psmkit.telemetry.reader import Reader
from psmkit.telemetry.recording import Recorder, operations
from psmkit.telemetry.spans import build
from psmkit.telemetry.take import Take
from psmkit.tune.measure import read_samples
from tests.telemetry import made

Rows = npt.NDArray[np.void]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_kernel_channels_end_by_the_gpus_clock(folder: Path) -> None:
    """The proxy thread sees the end of a kernel late; the least difference of the clocks tells how late."""
    comm = made.Comm()
    offset = 123_456_789
    coll = comm.add(made.COLL_T, 10_000, 11_000, flags=made.COMPLETE, count=1, datatype=7, done_ns=90_000, channels=2, kernels_begun=2, kernels_ended=2)  # fmt: skip
    for channel, (begin, end, seen) in enumerate(((12_000, 40_000, 60_000), (12_500, 50_000, 90_000))):
        comm.add(made.KERNEL_T, begin + 500 * channel, seen, parent=coll, channel=channel, gpu_begin_ns=begin + offset, gpu_end_ns=end + offset)  # fmt: skip
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        ops, times = reader.take_ops(), reader.take_times()
    assert ops["by_kernel"] == [1]
    assert ops["duration"]["sum"] == [50_000 - 10_000]
    (kernels,) = times[times["what"] == made.KERNEL_T]
    assert (kernels["duration"]["least"], kernels["duration"]["most"]) == (28_000, 37_500)


MS = 10**6


def late_kernel(*, start: int = 50 * MS, late: int = 20 * MS, ops: int = 0, cut: int = 0) -> made.Comm:
    """An operation whose kernel of 2 ms begins at once, and whose end the host sees late. The first ``cut`` of its kernel channels have no
    timer."""
    comm, offset, done = made.Comm(), 7_000 * MS, start + 2 * MS + late
    coll = comm.add(made.COLL_T, start, start + 1000, flags=made.COMPLETE, seq=1, count=1024, func=4, datatype=7, algo=1, proto=2, channels=2,
                    kernels_begun=2, kernels_ended=2, ops_begun=ops, ops_ended=ops, done_ns=done)  # fmt: skip
    for channel in range(2):
        timer = {} if channel < cut else {"gpu_begin_ns": start + offset, "gpu_end_ns": start + offset + 2 * MS}
        comm.add(made.KERNEL_T, start, done, parent=coll, channel=channel, **timer)
    return comm


def times_of(path: Path, comm: made.Comm) -> tuple[Rows, Rows]:
    """The sums, and the raw rows: both kinds of end."""
    comm.write(path)
    with Reader(path) as reader:
        reader.set(rows=1000, spans=8)
        assert reader.poll(final=True) >= 1
        rows, _ = reader.take_rows()
        spans = reader.take_spans()
        times = ["handle", "begin_ns", "end_ns", "by"]
        assert {tuple(row) for row in spans[times]} <= {tuple(row) for row in rows[times]}
        return reader.take_ops(), rows


@pytest.mark.parametrize("ops", [0, 2])
def test_a_kernel_of_2_ms_whose_end_is_seen_20_ms_late_took_2_ms(folder: Path, ops: int) -> None:
    """In sums and in rows, of which recordings, spans and pictures are made."""
    (op,), rows = times_of(folder, late_kernel(ops=ops))
    assert (op["by_kernel"], op["by_proxy"], op["duration"]["sum"]) == (1, 0, 2 * MS)
    assert list(rows["end_ns"] - rows["begin_ns"]) == [2 * MS] * 3
    assert rows["by"][0] == COMPLETIONS.index("kernel")


def test_recordings_spans_and_pictures_have_the_kernels_end(folder: Path) -> None:
    late_kernel().write(folder)
    with Reader(folder) as reader:
        reader.set(rows=1000, spans=8)
        assert reader.poll(final=True) == 1
        take = Take(10**18, 10**9, comms=reader.comms(), spans=reader.take_spans(), rows=reader.take_rows()[0])
    recorder = Recorder(str(folder / "run.parquet"), 1 << 30)
    recorder.add(take)
    recorder.close()
    assert [s.microseconds for s in read_samples(folder / "run.parquet")] == [2000], "what psmkit tune fit learns"
    (operation,) = operations(take)
    assert (operation["duration_ns"], operation["completion"]) == (2 * MS, "kernel")
    assert {s.end_time - s.start_time for s in build(take, Resource({}), 100).spans} == {2 * MS}
    drawn = timeline([take]).spans
    assert (drawn.end - drawn.begin) * 1e3 == pytest.approx([2, 2, 2])


@pytest.mark.parametrize("ops", [0, 2])
def test_without_the_timer_of_all_channels_the_end_is_the_hosts(folder: Path, ops: int) -> None:
    (op,), rows = times_of(folder, late_kernel(ops=ops, cut=1))
    assert op["duration"]["sum"] == 22 * MS and rows["end_ns"][0] - rows["begin_ns"][0] == 22 * MS
    assert rows["by"][0] == COMPLETIONS.index("proxy" if ops else "kernel")


def test_clocks_paired_in_an_earlier_window_hold_while_all_ends_are_seen_late(folder: Path) -> None:
    comm, offset = made.Comm(), 7_000 * MS
    comm.add(made.KERNEL_T, 10 * MS, 11 * MS, gpu_begin_ns=10 * MS + offset, gpu_end_ns=11 * MS + offset)
    comm.open_window(1)
    coll = comm.add(made.COLL_T, 50 * MS, 51 * MS, w=1, flags=made.COMPLETE, func=4, count=1, channels=1, kernels_begun=1, kernels_ended=1,
                    done_ns=72 * MS)  # fmt: skip
    comm.add(
        made.KERNEL_T, 72 * MS, 72 * MS, w=1, parent=coll, gpu_begin_ns=50 * MS + offset, gpu_end_ns=52 * MS + offset
    )
    (op,), rows = times_of(folder, comm)
    assert op["duration"]["sum"] == 2 * MS
    kernel = rows[rows["event"]["type"] == made.KERNEL_T][-1]
    assert (kernel["begin_ns"], kernel["end_ns"]) == (50 * MS, 52 * MS)


def test_an_operation_that_ended_after_its_window_was_taken_ends_by_the_gpus_timer(folder: Path) -> None:
    comm, offset = made.Comm(force_ns=1), 7_000 * MS
    coll = comm.add(made.COLL_T, 50 * MS, 51 * MS, func=4, count=1, channels=1, kernels_begun=1)
    kernel = comm.add(made.KERNEL_T, 50 * MS, 0, parent=coll, gpu_begin_ns=50 * MS + offset)
    comm.write(folder)
    with Reader(folder) as reader:
        reader.set(spans=8)
        assert reader.poll() == 1 and len(reader.take_ops()) == 0
        comm.window["state"][0] = made.READY
        comm.open_window(1)
        union = np.zeros(1, KERNEL)
        union["gpu_begin_ns"], union["gpu_end_ns"] = 50 * MS + offset, 52 * MS + offset
        comm.add(made.LATE, 72 * MS, 72 * MS, w=1, parent=kernel, u=union.view("u1").reshape(1, 80))
        comm.write(folder)
        assert reader.poll() == 1
        (op,) = reader.take_ops()
    assert (op["by_kernel"], op["duration"]["sum"]) == (1, 2 * MS)


def test_an_operation_with_lost_children_is_incomplete(folder: Path) -> None:
    """Its end is not that of the children that are there: their number is not known."""
    comm = made.Comm()
    for lost in (0, made.CHILD_LOST):
        comm.add(made.COLL_T, 1000, 2000, flags=lost, func=4, datatype=7, count=1, channels=2, ops_begun=1, ops_ended=1, done_ns=9000)  # fmt: skip
    (op,), rows = times_of(folder, comm)
    assert (op["by_proxy"], op["incomplete"], op["duration"]["count"], op["duration"]["sum"]) == (1, 1, 1, 8000)
    assert list(rows["end_ns"]) == [9000, 0]
    comms = np.zeros(1, COMM)
    comms["id"] = rows["comm"][0]
    assert [r["completion"] for r in operations(Take(10**18, 0, rows=rows, comms=comms))] == ["proxy"]
