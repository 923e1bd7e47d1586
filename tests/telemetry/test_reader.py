"""Which windows the consumer takes, when, and what it makes of owners that died, of others that read, of damaged files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from psmkit.model.errors import PsmkitError
from psmkit.telemetry.layout import COMM
from psmkit.telemetry.reader import Reader
from tests.processes import start_time
from tests.telemetry import made

SECOND = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def states(comm: made.Comm) -> list[int]:
    return [int(s) for s in comm.read_windows()["state"]]


def dead_process() -> tuple[int, int]:
    """Pid and start time of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = start_time(child.pid)
        child.communicate(b"\n", timeout=60)
        return child.pid, started


def poll_until(reader: Reader, taken: int) -> None:
    """Windows that wait for a start on its way are taken by a later poll."""
    end = time.monotonic() + 60
    while taken > 0:
        taken -= reader.poll()
        assert time.monotonic() < end
        assert taken >= 0


# ---- finding files ----


def test_directory_that_cannot_be_read_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(PsmkitError, match=r"cannot read the record directory .*nowhere: No such file"):
        Reader(tmp_path / "nowhere")
    tmp_path.chmod(0o777)
    with pytest.raises(PsmkitError, match="other users can write"):
        Reader(tmp_path)


def test_closed_reader_says_so(folder: Path) -> None:
    reader = Reader(folder)
    reader.close()
    reader.close()
    with pytest.raises(PsmkitError, match="closed"):
        reader.poll()


def test_communicators_are_told_with_owner_counters_and_host(folder: Path) -> None:
    comms = made.ring(folder, 3, 2)
    comms[1].head["dropped_full"] = 5
    comms[1].write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 3
        found = reader.comms()
        assert found.dtype == COMM and sorted(found["rank"]) == [0, 1, 2]
        assert set(found["pid"]) == {os.getpid()} and set(found["owner"]) == {0}
        assert set(found["host"]) == {b"node"} and set(found["comm_hash"]) == {0xC0FFEE}
        assert len(set(found["id"])) == 3
        assert found["dropped_full"][found["rank"] == 1] == 5
        reader.poll()
        assert np.array_equal(np.sort(found["id"]), np.sort(reader.comms()["id"]))


def test_files_that_are_not_for_us_are_passed_over(folder: Path) -> None:
    comm = made.Comm()
    comm.collective(1000)
    comm.write(folder).chmod(0o644)
    (folder / "psm-node-1-1.rec").write_bytes(b"")
    (folder / "notes.txt").write_text("no record")
    os.mkfifo(folder / "psm-node-2-2.rec")
    (folder / "psm-node-3-3.rec").symlink_to("/etc/passwd")
    with Reader(folder) as reader:
        assert reader.poll() == 0 and len(reader.comms()) == 0


def test_file_whose_row_is_not_live_yet_is_found_later(folder: Path) -> None:
    comm = made.Comm()
    comm.collective(1000)
    path = comm.write(folder)
    whole = path.read_bytes()
    section = np.frombuffer(whole, "u8", 1, 256 + 64 + 8)  # data_offset of the first section
    cut = bytearray(whole)
    cut[int(section[0]) : int(section[0]) + 8] = bytes(8)
    path.write_bytes(cut)
    with Reader(folder) as reader:
        assert reader.poll() == 0 and len(reader.comms()) == 0
        path.write_bytes(whole)
        assert reader.poll() == 1 and len(reader.comms()) == 1


# ---- which windows ----


def test_window_that_is_being_filled_is_left_until_it_is_old(folder: Path) -> None:
    comm = made.Comm(interval_ns=3600 * SECOND)
    comm.open_window(0, made.FILLING)
    comm.collective(1000)
    comm.open_window(1, made.FILLING, age_ns=0)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 0
        reader.set(interval_ns=1)
        assert reader.poll() == 1, "an empty window has nothing to give"
        assert states(comm) == [made.READY, made.FILLING, made.READY, made.READY]
        assert reader.comms()["forced"] == [0]


def test_closing_window_waits_for_what_is_open_then_is_taken_by_force(folder: Path) -> None:
    comm = made.Comm(force_ns=3600 * SECOND)
    comm.collective(1000)
    comm.add(made.GROUP, 5000)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 0
        assert states(comm)[0] == made.CLOSING
        reader.set(force_ns=1)
        assert reader.poll() == 1
        assert states(comm)[0] == made.READY and comm.read_windows()["forced"][0] == 1
        (found,) = reader.comms()
        assert (found["forced"], found["events"]) == (1, int(comm.window["next"][0]))


def test_pending_operations_hold_a_window_although_nothing_is_open(folder: Path) -> None:
    comm = made.Comm(force_ns=3600 * SECOND)
    comm.collective(1000)
    comm.window["pending"][0] = 1
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 0
        assert reader.poll(final=True) == 1


def test_rows_of_other_cycles_are_no_part_of_the_window(folder: Path) -> None:
    comm = made.Comm()
    comm.open_window(0, cycle=9)
    comm.collective(1000)
    rows = comm.rows[0]
    left = rows[:4].copy()
    left["sequence"] = 8 << 2 | made.LIVE
    n = int(comm.window["next"][0])
    rows[n : n + 4] = left
    comm.window["next"][0] = 4000  # batches may pass the end
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        assert reader.comms()["events"] == [n]


def test_start_that_is_on_its_way_is_waited_for(folder: Path) -> None:
    """By the sums one event more has begun than there are rows."""
    comm = made.Comm(force_ns=1)
    comm.collective(1000)
    comm.add(made.GROUP, 5000, sequence=made.CLAIMED)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 0
        assert states(comm)[0] == made.PROCESSING, "nobody starts in it any more"
        comm.window["state"][0] = made.PROCESSING
        comm.rows[0]["sequence"][int(comm.window["next"][0]) - 1] += made.LIVE - made.CLAIMED
        comm.write(folder)
        assert reader.poll() == 1
        (found,) = reader.comms()
        assert (found["torn"], found["events"]) == (0, int(comm.window["next"][0]))


def test_start_that_never_ends_is_torn(folder: Path) -> None:
    comm = made.Comm(force_ns=1)
    comm.collective(1000)
    comm.add(made.GROUP, 5000, sequence=made.CLAIMED)
    comm.write(folder)
    with Reader(folder) as reader:
        poll_until(reader, 1)
        (found,) = reader.comms()
        assert (found["torn"], found["events"]) == (1, found["begun"] - 1)


def test_window_whose_consumer_died_is_taken_by_the_next(folder: Path) -> None:
    comm = made.Comm(force_ns=3600 * SECOND)
    comm.open_window(0, made.PROCESSING)
    comm.collective(1000)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        assert states(comm)[0] == made.READY


# ---- consumers ----


def test_heartbeat_is_there_while_the_consumer_is(folder: Path) -> None:
    comm = made.Comm()
    comm.write(folder)
    with Reader(folder) as reader:
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        reader.poll()
        head = comm.read_head()
        assert head["consumer"] == os.getpid() and head["heartbeat_ns"] >= before
    head = comm.read_head()
    assert head["consumer"] == 0 and head["heartbeat_ns"] == 0


def test_second_consumer_passes_over_what_the_first_has(folder: Path) -> None:
    comm = made.Comm()
    comm.collective(1000)
    comm.write(folder)
    with Reader(folder) as first:
        first.poll()
        with Reader(folder) as second:
            assert second.poll() == 0
            (found,) = second.comms()
            assert found["busy"] == 1 and found["events"] == 0
            comm.open_window(1)
            comm.collective(9000, w=1)
            comm.window["state"][0] = made.READY
            comm.write(folder)
            assert second.poll(final=True) == 0
            first.close()
            assert second.poll() == 1
            assert second.comms()["busy"] == [0]


def test_looker_changes_nothing_and_counts_each_row_once(folder: Path) -> None:
    comm = made.Comm()
    comm.open_window(0, made.FILLING)
    comm.collective(1000)
    comm.add(made.GROUP, 5000)
    path = comm.write(folder)
    before = path.read_bytes()
    with Reader(folder, consume=False) as looker:
        looker.poll()
        ops = looker.take_ops()
        assert ops["duration"]["count"] == [1] and ops["transfers"]["sum"] == [6]
        looker.poll()
        assert len(looker.take_ops()) == 0 and looker.comms()["events"] == [comm.head["begun"] - 1]
        assert path.read_bytes() == before
        event = comm.rows[0]["event"][int(comm.window["next"][0]) - 1 :]
        event["stop_ns"][0], event["flags"][0] = 9000, made.STOPPED
        comm.collective(20_000)
        comm.write(folder)
        looker.poll()
        assert looker.take_ops()["transfers"]["sum"] == [6]
        assert looker.comms()["events"] == [comm.head["begun"]]
        times = looker.take_times()
        assert times["duration"]["sum"][times["what"] == made.GROUP] == [4000]


def test_mask_that_is_wished_for_stands_in_the_file(folder: Path) -> None:
    comm = made.Comm()
    comm.write(folder)
    with Reader(folder) as reader:
        reader.poll()
        (found,) = reader.comms()
        reader.set_mask(int(found["id"]), 0x1F)
        assert comm.read_head()["mask_wanted"] == 0x1F
        with pytest.raises(PsmkitError, match="communicator 77"):
            reader.set_mask(77, 1)


# ---- owners that end ----


def test_all_is_taken_of_an_owner_that_died_and_its_file_goes(folder: Path) -> None:
    pid, started = dead_process()
    comm = made.Comm(pid=pid, started=started, force_ns=3600 * SECOND, interval_ns=3600 * SECOND)
    comm.collective(1000)
    comm.add(made.COLL_T, 7000, 7100, func=4, datatype=7, count=4, channels=2, ops_begun=2, ops_ended=1)
    comm.open_window(1, made.FILLING)
    comm.collective(90_000, w=1)
    comm.add(made.GROUP, 5000, w=1, sequence=made.CLAIMED)
    path = comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 2
        (found,) = reader.comms()
        assert (found["owner"], found["incomplete"], found["torn"]) == (1, 1, 1)
        assert found["events"] + found["torn"] == found["begun"]
        ops = reader.take_ops()
        assert ops["incomplete"].sum() == 1 and ops["duration"]["count"].sum() == 2
        spans = reader.take_spans()
        assert spans["start_ns"][spans["why"] == 4] == [7000]
        assert not path.exists()
        reader.poll()
        assert len(reader.comms()) == 0, "it was told once after its last window"


def test_file_that_an_owner_left_for_us_goes_when_it_was_taken(folder: Path) -> None:
    comm = made.Comm()
    comm.collective(1000)
    comm.state, comm.head["end_ns"] = made.CLEAN, 5000
    path = comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        assert not path.exists()
        assert reader.comms()["owner"] == [3]


def test_kept_file_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSM_RECORD_KEEP", "1")
    comm = made.Comm()
    comm.collective(1000)
    comm.state = made.CLEAN
    path = comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1 and len(reader.comms()) == 1
        assert reader.poll() == 0 and len(reader.comms()) == 0
        assert path.exists()


# ---- what is open, and ends later ----


def test_operation_that_was_open_is_joined_with_its_late_row(folder: Path) -> None:
    comm = made.Comm(force_ns=1)
    coll = comm.add(made.COLL_T, 1000, func=4, datatype=7, count=256, channels=1, ops_begun=1)
    op = comm.add(made.PROXY_OP_T, 1500, parent=coll, flags=made.SENDS, channel=0, peer=1)
    comm.add(made.STEP_T, 1600, 1900, parent=op, flags=made.SENDS, net_ns=1700, bytes=100, peer=1)
    step = comm.add(made.STEP_T, 1900, parent=op, flags=made.SENDS, net_ns=0, bytes=0, peer=1)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        ops = reader.take_ops()
        assert ops["duration"]["count"] == [0] and ops["transfer_bytes"]["sum"] == [100]
        assert sorted(reader.open_now()["handle"]) == sorted([coll, op, step])
        assert list(reader.open_now()["start_ns"]) == [1000, 1500, 1900]
        spans = reader.take_spans()
        assert coll in spans["handle"] and set(spans["why"]) == {2}

        comm.window["state"][0] = made.READY
        comm.open_window(1)
        comm.add(made.LATE, 5000, 5000, w=1, parent=coll)
        step_u = np.zeros(1, made.PROXY_STEP)
        step_u["net_ns"], step_u["bytes"], step_u["peer"] = 2000, 900, 1
        comm.add(made.LATE, 6000, 6000, w=1, parent=step, u=step_u.view("u1").reshape(1, 80))
        comm.add(made.STEP_T, 6100, 6500, w=1, parent=op, flags=made.SENDS, net_ns=6200, bytes=50, peer=1)
        comm.add(made.LATE, 7000, 7000, w=1, parent=op)
        comm.write(folder)
        assert reader.poll() == 1
        (found,) = reader.take_ops()
        assert found["duration"]["sum"] == 7000 - 1000 and found["by_proxy"] == 1
        assert found["transfers"]["sum"] == 3 and found["transfer_bytes"]["sum"] == 950
        (comm_row,) = reader.comms()
        assert comm_row["incomplete"] == 0 and comm_row["events"] == 5
        assert len(reader.open_now()) == 0
        times = reader.take_times()
        assert times["duration"]["sum"][times["what"] == made.PROXY_OP_T] == [5500]


def test_late_row_without_an_event_that_is_open_is_nothing(folder: Path) -> None:
    comm = made.Comm()
    comm.add(made.LATE, 5000, 5000, parent=made.handle(comm.context, 77, 1))
    comm.add(made.LATE, 5000, 5000, parent=12345)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        assert len(reader.take_ops()) == 0 and reader.comms()["events"] == [0]


def test_children_that_are_taken_before_their_parent_wait_for_it(folder: Path) -> None:
    """The parent's window is held by something open; that of its children is taken first."""
    comm = made.Comm(force_ns=3600 * SECOND)
    coll = comm.add(made.COLL_T, 1000, 1100, flags=made.COMPLETE, func=4, datatype=7, count=1, channels=1, ops_begun=1, ops_ended=1, done_ns=9000)  # fmt: skip
    op = comm.add(made.PROXY_OP_T, 1500, 9000, parent=coll, flags=made.SENDS, peer=1)
    comm.add(made.GROUP, 500)
    comm.open_window(1)
    comm.add(made.STEP_T, 2000, 2500, w=1, parent=op, flags=made.SENDS, net_ns=2200, bytes=64, peer=1)
    other = comm.add(made.PROXY_OP_T, 1500, 9000, w=1, parent=coll, flags=made.SENDS, peer=1)
    comm.add(made.STEP_T, 3000, 3500, w=1, parent=other, flags=made.SENDS, net_ns=3100, bytes=32, peer=1)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        assert states(comm)[:2] == [made.CLOSING, made.READY]
        assert len(reader.take_ops()) == 0
        reader.set(force_ns=1)
        assert reader.poll() == 1
        (found,) = reader.take_ops()
        assert found["transfers"]["sum"] == 2 and found["transfer_bytes"]["sum"] == 96
        assert found["transfer_time"]["sum"] == 700
        assert reader.losses()["orphans"] == [0]


def test_foreign_parents_are_no_operations_of_ours(folder: Path) -> None:
    """Under PXN the parent is another process's: its number may be one that we know."""
    comm = made.Comm()
    coll = comm.collective(1000, channels=1, steps=1)
    op = comm.add(made.PROXY_OP_T, 1500, 9000, parent=coll, flags=made.SENDS | made.FOREIGN, pid=1, peer=1)
    comm.add(made.STEP_T, 2000, 2500, parent=op, flags=made.SENDS, net_ns=2200, bytes=64, peer=1)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        assert reader.take_ops()["transfers"]["sum"] == [1]
        assert reader.losses()["orphans"] == [1]
        links = reader.take_links()
        assert links["count"][(links["sends"] == 1) & (links["channel"] == -1)] == [2]


def test_operation_taken_by_force_waits_for_children_when_others_have_some(folder: Path) -> None:
    comm = made.Comm(force_ns=3600 * SECOND)
    comm.collective(1000)
    comm.add(made.COLL_T, 50_000, 50_100, func=4, datatype=7, count=1, channels=2, algo=1, proto=2)
    comm.window["pending"][0] = 1
    comm.write(folder)
    with Reader(folder) as reader:
        reader.set(force_ns=1)
        assert reader.poll() == 1
        assert reader.take_ops()["duration"]["count"] == [1]
        comm.state = made.CLEAN
        comm.window["state"][0] = made.READY
        comm.write(folder)
        reader.poll()
        assert reader.take_ops()["by_enqueue"] == [1], "none came"


def test_children_that_come_after_their_operation_was_taken_end_it(folder: Path) -> None:
    """It was slow: taken by force before the proxy thread had begun with it. The plugin cannot count them in its row any more."""
    comm = made.Comm(force_ns=3600 * SECOND)
    comm.collective(1000)
    coll = comm.add(made.COLL_T, 50_000, 50_100, func=4, datatype=7, count=1, channels=2, algo=1, proto=2)
    comm.window["pending"][0] = 1
    comm.write(folder)
    with Reader(folder) as reader:
        reader.set(force_ns=1)
        assert reader.poll() == 1
        reader.take_ops()
        comm.window["state"][0] = made.READY
        comm.open_window(1)
        first = comm.add(made.PROXY_OP_T, 60_000, 90_000, w=1, parent=coll, flags=made.ORPHAN | made.SENDS, peer=1)
        comm.add(made.STEP_T, 61_000, 62_000, w=1, parent=first, flags=made.SENDS, peer=1, net_ns=61_500, bytes=7)
        comm.write(folder)
        assert reader.poll() == 1
        found = reader.take_ops()
        assert found["duration"]["count"] == [0] and found["transfer_bytes"]["sum"] == [7], "another one is to come"
        comm.window["state"][1] = made.READY
        comm.open_window(2)
        second = comm.add(made.PROXY_OP_T, 60_000, w=2, parent=coll, flags=made.ORPHAN | made.SENDS, peer=1)
        comm.write(folder)
        assert reader.poll() == 1
        assert coll in reader.open_now()["handle"] and second in reader.open_now()["handle"]
        comm.window["state"][2] = made.READY
        comm.open_window(3)
        comm.add(made.LATE, 95_000, 95_000, w=3, parent=second)
        comm.write(folder)
        assert reader.poll() == 1
        (op,) = reader.take_ops()
        assert (op["by_proxy"], op["duration"]["sum"], op["transfers"]["sum"]) == (1, 45_000, 1)
        assert reader.comms()["incomplete"] == [0] and len(reader.open_now()) == 0


def test_children_that_the_operation_counted_before_it_was_taken_are_not_counted_again(folder: Path) -> None:
    """One of its proxy ops is in a later window, and had ended when the row was taken; another had not."""
    comm = made.Comm(force_ns=3600 * SECOND)
    coll = comm.add(
        made.COLL_T, 1000, 1100, func=4, datatype=7, count=1, channels=2, ops_begun=2, ops_ended=1, done_ns=7000
    )
    comm.window["pending"][0] = 1
    comm.open_window(1)
    comm.add(made.GROUP, 1000, w=1)
    comm.add(made.PROXY_OP_T, 2000, 7000, w=1, parent=coll, peer=1)
    comm.add(made.PROXY_OP_T, 2000, 9000, w=1, parent=coll, peer=1)
    comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 0
        reader.set(force_ns=1)
        assert reader.poll() == 2
        (op,) = reader.take_ops()
        assert (op["by_proxy"], op["duration"]["sum"]) == (1, 8000)


# ---- damage ----


def test_cut_file_is_given_up(folder: Path) -> None:
    comm = made.Comm()
    comm.collective(1000)
    path = comm.write(folder)
    with Reader(folder) as reader:
        assert reader.poll() == 1
        os.truncate(path, 8192)
        assert reader.poll() == 0
        assert len(reader.comms()) == 1
        reader.poll()
        assert reader.open_now().size == 0
    with Reader(folder) as reader:
        assert reader.poll() == 0
        assert reader.losses()["files"] == [1]


@pytest.mark.parametrize("consume", [True, False])
def test_damaged_files_never_do_harm(folder: Path, consume: bool) -> None:
    draw = random.Random(5 + consume)
    comm = made.Comm(slots=64, force_ns=1)
    group = comm.add(made.GROUP, 900)
    comm.collective(1000, channels=1, steps=2, parent=group)
    comm.add(made.COLL_T, 50_000, func=4, datatype=7, count=1, channels=2)
    comm.open_window(1)
    comm.collective(90_000, w=1, channels=2, steps=2)
    comm.add(made.LATE, 95_000, 95_000, w=1, parent=made.handle(comm.context, 8, 1))
    path = comm.write(folder)
    whole = path.read_bytes()
    numbers = [0, 1, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]
    taken = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            # Header, sections, the rows of communicator and windows, events: each gets its share.
            low, high = draw.choice([(0, 256), (256, 256 + 3 * 128), (8192, 24576), (24576, len(data))])
            at, wide = draw.randrange(low, min(high, len(data))), draw.choice([1, 2, 4, 8])
            at -= at % wide
            data[at : at + wide] = (draw.choice(numbers) & (1 << 8 * wide) - 1).to_bytes(wide, "little")
        if draw.random() < 0.1:
            del data[draw.randrange(len(data)) :]
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)
        with Reader(folder, consume=consume) as reader:
            reader.set(spans=8, rows=16, keys=draw.choice([2, 4096]))
            for final in (False, True):
                taken += reader.poll(final=final)
            for array in (reader.comms(), reader.take_ops(), reader.take_links(), reader.take_times(), reader.take_spans(), reader.open_now()):  # fmt: skip
                assert array.dtype.names
            reader.take_rows()
    assert taken > 100, "most damage leaves something to take"
