"""Record files as csrc/telemetry/window.h wants them, made without the plugin: communicators, windows, events of both ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from psmkit.telemetry.layout import (
    API,
    CE,
    COLL,
    EVENT,
    KERNEL,
    KERNEL_PHASE,
    NET,
    P2P,
    PROXY_CTRL,
    PROXY_OP,
    PROXY_STEP,
)
from tests.processes import boot_id, start_time

WINDOWS, SHARDS, NAMES, NAME, PAIRS = 4, 16, 64, 32, 64
READY, FILLING, CLOSING, PROCESSING = range(4)
GROUP, COLL_T, P2P_T, PROXY_OP_T, STEP_T, CTRL_T, KERNEL_T, NET_T, GROUP_API_T, COLL_API_T, P2P_API_T, LAUNCH_T, CE_T, CE_SYNC_T, CE_BATCH_T, PHASE_T = range(16)  # fmt: skip
LATE = 31
STOPPED, FOREIGN, SENDS, CAPTURED, COMPLETE, ORPHAN, CHILD_LOST = (1 << i for i in range(7))
ALLREDUCE, SEND, RECV = 4, 6, 7
CLAIMED, LIVE = 1, 2
ALIVE, CLEAN = 1, 2

# struct psm_prof_comm
HEAD = np.dtype(
    [
        ("comm_hash", "u8"), ("begin_ns", "u8"), ("end_ns", "u8"),
        ("rank", "i4"), ("nranks", "i4"), ("nnodes", "i4"),
        ("context", "u4"), ("abi", "u4"), ("slots", "u4"), ("trigger", "u4"), ("clock", "u4"),
        ("interval_ns", "u8"), ("force_ns", "u8"),
        ("mask", "u4"), ("mask_wanted", "u4"), ("consumer", "u4"), ("names", "u4"), ("heartbeat_ns", "u8"),
        *((name, "u8") for name in (
            "begun", "dropped_full", "dropped_memory", "overwritten", "carried", "bad_handle", "stale_handle",
            "stopped_twice", "state_after_stop", "never_stopped", "foreign_parents",
        )),
        ("name", "S64"), ("other", f"S{NAME}", (NAMES,)), ("pairs", "u8"), ("pair", "u8", (PAIRS, 2)),
    ],
    align=True,
)  # fmt: skip
# struct psm_prof_window
WINDOW = np.dtype(
    [
        ("state", "u4"), ("cycle", "u4"), ("next", "u4"), ("pending", "u4"), ("open_ns", "u8"), ("close_ns", "u8"),
        ("forced", "u8"), ("serial", "u8"), ("reserved", "u8"), ("shard", "u8", (SHARDS, 8)),
    ],
    align=True,
)  # fmt: skip
SLOT = np.dtype([("sequence", "u8"), ("start_ns", "u8"), ("tid", "i4"), ("device", "i4"), ("event", EVENT)])
assert SLOT.itemsize == 128
_UNIONS = {
    COLL_T: COLL, P2P_T: P2P, PROXY_OP_T: PROXY_OP, STEP_T: PROXY_STEP, CTRL_T: PROXY_CTRL, KERNEL_T: KERNEL, NET_T: NET,
    GROUP_API_T: API, COLL_API_T: API, P2P_API_T: API, LAUNCH_T: API, CE_T: CE, CE_SYNC_T: CE, CE_BATCH_T: CE,
    PHASE_T: KERNEL_PHASE,
}  # fmt: skip

_HEADER = np.dtype(
    [
        ("magic", "S8"), ("order", "u4"), ("version", "u4"), ("header_size", "u4"), ("section_size", "u4"), ("file_size", "u8"),
        ("pid", "i4"), ("rank", "i4"), ("start_time", "u8"), ("pid_ns", "u8"), ("wall_ns", "u8"), ("clock_ns", "u8"),
        ("uid", "u4"), ("tag", "u4"), ("state", "u4"), ("sections", "u4"), ("boot_id", "S40"), ("host", "S64"), ("command", "S16"),
    ],
    align=True,
)  # fmt: skip
_SECTION = np.dtype(
    [
        ("ready", "u4"), ("kind", "u4"), ("name", "S32"), ("version", "u4"), ("record_size", "u4"), ("slot_size", "u4"), ("schema_size", "u4"),
        ("schema_offset", "u8"), ("control_offset", "u8"), ("data_offset", "u8"), ("capacity", "u8"), ("reserved", "u8", (5,)),
    ],
    align=True,
)  # fmt: skip
assert _SECTION.itemsize == 128


def handle(context: int, row: int, cycle: int) -> int:
    return 0x5E << 56 | context << 44 | row << 24 | cycle & 0xFFFFFF


class Comm:
    """A communicator's record file: fill windows with :meth:`add`, then :meth:`write` it.

    The process is this one unless pid says otherwise; a dead one is any pid with a start time that is not its.
    """

    def __init__(
        self,
        rank: int = 0,
        nranks: int = 2,
        *,
        comm_hash: int = 0xC0FFEE,
        context: int = 3,
        slots: int = 1024,
        pid: int | None = None,
        started: int | None = None,
        host: str = "node",
        name: str = "world",
        force_ns: int = 10**9,
        interval_ns: int = 5 * 10**9,
    ) -> None:
        self.pid = os.getpid() if pid is None else pid
        self.started = start_time(self.pid) if started is None else started
        self.host = host
        self.slots = slots
        self.context = context
        self.state = ALIVE
        self.head = np.zeros(1, HEAD)[0]
        self.window = np.zeros(WINDOWS, WINDOW)
        self.rows = np.zeros((WINDOWS, slots), SLOT)
        for field, value in {
            "comm_hash": comm_hash, "begin_ns": 1, "rank": rank, "nranks": nranks, "nnodes": nranks, "context": context, "abi": 6,
            "slots": slots, "trigger": slots // 2, "interval_ns": interval_ns, "force_ns": force_ns, "mask": 0xFFF,
            "mask_wanted": 2**32 - 1, "name": name.encode(),
        }.items():  # fmt: skip
            self.head[field] = value
        self.serial = 0
        self.path: Path | None = None

    def open_window(self, w: int, state: int = CLOSING, *, cycle: int = 1, age_ns: int = 0) -> None:
        """Window w is in this state since age_ns, with no rows."""
        self.serial += 1
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - age_ns
        row = self.window[w]
        row["state"], row["cycle"], row["serial"] = state, cycle, self.serial
        row["open_ns"], row["close_ns"] = now, now if state == CLOSING else 0
        row["next"] = row["pending"] = 0
        row["shard"] = 0
        self.rows[w] = np.zeros(self.slots, SLOT)

    def add(
        self,
        kind: int,
        start: int,
        stop: int = 0,
        *,
        w: int = 0,
        parent: int = 0,
        flags: int = 0,
        tid: int = 7,
        state: int = 255,
        sequence: int = LIVE,
        u: npt.NDArray[np.void] | None = None,
        **members: Any,
    ) -> int:
        """An event in window w, its handle. stop 0: it is open. members: of its union."""
        window = self.window[w]
        if not window["state"]:
            self.open_window(w)
        at = int(window["next"])
        assert at < self.slots, "the window is full"
        window["next"] = at + 1
        slot = self.rows[w][at : at + 1]
        slot["sequence"] = int(window["cycle"]) << 2 | sequence
        slot["start_ns"], slot["tid"] = start, tid
        event = slot["event"]
        event["parent"], event["stop_ns"], event["type"], event["state"] = parent, stop, kind, state
        event["abi"] = 6
        event["flags"] = flags | (STOPPED if stop else 0)
        if members:
            union = np.zeros(1, _UNIONS[kind])
            for field, value in members.items():
                union[field] = value
            event["u"] = union.view("u1").reshape(1, 80)
        if u is not None:
            event["u"] = u
        window["shard"][at % SHARDS][0] += 1
        window["shard"][at % SHARDS][1] += bool(stop)
        self.head["begun"] += kind != LATE
        return handle(self.context, w * self.slots + at, int(window["cycle"]))

    def fill(self, w: int, rows: npt.NDArray[np.void]) -> None:
        """These rows (of SLOT, but for their sequence) are window w's."""
        if not self.window[w]["state"]:
            self.open_window(w)
        n = len(rows)
        self.rows[w][:n] = rows
        self.rows[w]["sequence"][:n] = int(self.window[w]["cycle"]) << 2 | LIVE
        self.window[w]["next"] = n
        self.window[w]["shard"][0][0] = n
        self.window[w]["shard"][0][1] = np.count_nonzero(rows["event"]["flags"] & STOPPED)
        self.head["begun"] += n

    def collective(
        self,
        start: int,
        *,
        w: int = 0,
        channels: int = 2,
        steps: int = 3,
        step_bytes: int = 4096,
        latency: int = 5000,
        rate: float = 10.0,
        peers: tuple[int, int] | None = None,
        seq: int = 0,
        func: int = ALLREDUCE,
        count: int = 1 << 20,
        parent: int = 0,
        tid: int = 7,
    ) -> int:
        """A ring collective with its proxy ops and steps: each channel sends to the next rank and receives from the one before."""
        rank, nranks = int(self.head["rank"]), int(self.head["nranks"])
        after, before = peers or ((rank + 1) % nranks, (rank - 1) % nranks)
        step_ns = int(latency + step_bytes / rate)
        done = start + 2000 + steps * (step_ns + 300)
        coll = self.add(
            COLL_T, start, start + 900, w=w, flags=COMPLETE, parent=parent, tid=tid, seq=seq, count=count, done_ns=done, func=func, datatype=7,
            algo=1, proto=2, channels=channels, warps=16, ops_begun=2 * channels, ops_ended=2 * channels,
        )  # fmt: skip
        for channel in range(channels):
            for sends, peer in ((SENDS, after), (0, before)):
                op = self.add(
                    PROXY_OP_T, start + 1000, done, w=w, parent=coll, flags=sends, tid=tid + 1, pid=self.pid, peer=peer, steps=steps, chunk=step_bytes,
                    channel=channel, steps_ended=steps, bytes=steps * step_bytes, progress_ns=start + 1100,
                )  # fmt: skip
                for step in range(steps):
                    at = start + 2000 + step * (step_ns + 300)
                    size = step_bytes >> (step % 3)
                    net = at + 200 if sends else at
                    stop = net + int(latency + size / rate)
                    states = (
                        {"gpu_ns": at, "peer_ns": at + 150, "net_ns": net}
                        if sends
                        else {"net_ns": net, "flush_ns": stop - 60, "gpu_ns": stop - 20}
                    )
                    self.add(
                        STEP_T, at, stop, w=w, parent=op, flags=sends, tid=tid + 1, step=step, peer=peer, bytes=size, channel=channel, **states
                    )  # fmt: skip
        return coll

    def write(self, folder: Path) -> Path:
        """The file, whole; again: its windows and rows as they are now, in place."""
        header = np.zeros(1, _HEADER)
        head, windows = self._table(self.head.reshape(1), 1), self._table(self.window, 1)
        events = self.rows.reshape(-1)
        sizes = (head.nbytes, windows.nbytes, events.nbytes)
        at, places = 8192, []
        for size in sizes:
            places.append(at)
            at += -(-(size + 64) // 4096) * 4096
        for field, value in {
            "magic": b"\x89PSMREC\n", "order": 0x01020304, "version": 1, "header_size": 4096, "section_size": 128, "file_size": at,
            "pid": self.pid, "rank": self.head["rank"], "start_time": self.started, "pid_ns": os.stat("/proc/self/ns/pid").st_ino,
            "wall_ns": time.time_ns(), "clock_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC), "uid": os.geteuid(), "tag": 1,
            "state": self.state, "sections": 28, "boot_id": boot_id(), "host": self.host.encode(), "command": b"made",
        }.items():  # fmt: skip
            header[field] = value
        sections = np.zeros(28, _SECTION)
        names = (b"psm.prof.comm", b"psm.prof.windows", b"psm.prof.events")
        shapes = (
            (HEAD.itemsize, head.itemsize, 1),
            (WINDOW.itemsize, windows.itemsize, WINDOWS),
            (EVENT.itemsize, SLOT.itemsize, len(events)),
        )
        for i, (name, place, (record, slot, capacity)) in enumerate(zip(names, places, shapes, strict=True)):
            sections[i] = (1, 2, name, 1, record, slot, 0, place, place, place + 64, capacity, (0, 0, 0, 0, 0))
        if self.path is None:
            self.path = folder / f"psm-{self.host}-{self.pid}-{os.urandom(8).hex()}.rec"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, at)
            for place, table in zip(places, (head, windows, events), strict=True):
                os.pwrite(fd, table.tobytes(), place + 64)
            os.pwrite(fd, sections.tobytes(), 256)
            os.pwrite(fd, header.tobytes(), 0)
        finally:
            os.close(fd)
        return self.path

    @staticmethod
    def _table(records: npt.NDArray[np.void], live: int) -> npt.NDArray[np.void]:
        slots = np.zeros(
            len(records),
            [("sequence", "u8"), ("time_ns", "u8"), ("tid", "i4"), ("device", "i4"), ("record", records.dtype)],
        )
        slots["sequence"] = live << 2 | LIVE
        slots["record"] = records
        return slots

    def read_windows(self) -> npt.NDArray[np.void]:
        """The windows as they are in the file now."""
        return self._read(1, WINDOW, WINDOWS)

    def read_head(self) -> np.void:
        """The communicator's row as it is in the file now."""
        return self._read(0, HEAD, 1)[0]

    def _read(self, section: int, dtype: np.dtype[np.void], n: int) -> npt.NDArray[np.void]:
        assert self.path is not None
        data = self.path.read_bytes()
        entry = np.frombuffer(data, _SECTION, 28, 256)[section]
        slot = np.dtype([("head", "u1", (24,)), ("record", dtype)])
        return np.frombuffer(data, slot, n, int(entry["data_offset"]))["record"].copy()


def ring(folder: Path, nranks: int = 2, collectives: int = 4, **settings: Any) -> list[Comm]:
    """A communicator of ranks that ran some collectives, each rank a file; rank 0 is the first."""
    comms = []
    for rank in range(nranks):
        comm = Comm(rank, nranks, context=rank + 1)
        group = comm.add(GROUP, 1_000_000, 1_000_000 + collectives * 1_000_000)
        for i in range(collectives):
            comm.collective(1_000_000 + i * 1_000_000, seq=i, parent=group, **settings)
        comm.write(folder)
        comms.append(comm)
    return comms


def steps_of(rows: Iterable[npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    """All proxy steps among rows of SLOT."""
    kept = np.concatenate([r[(r["sequence"] & 3) == LIVE] for r in rows])
    return kept[kept["event"]["type"] == STEP_T]
