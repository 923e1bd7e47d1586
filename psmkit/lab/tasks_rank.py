"""One rank of ``psmkit lab run --tasks``: python -m psmkit.lab.tasks_rank SETTINGS < CASES, where the case is the path of a task file."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from psmkit.lab.rank import OthersFailedError, Rank, RunnerGoneError, prepare
from psmkit.lab.variant_rank import load
from psmkit.model.arrays.whole import np, npt
from psmkit.plan.communicator import Communicator
from psmkit.plan.programs import Program, read_program
from psmkit.plan.types import Config, DataType, Func, RedOp, Scheduler, Task
from psmkit.proxy import Address, Proxy, PsmError
from psmkit.transport import P2P, PeerInfo, peer_info, variant

_MOST_STEPS = 4_000_000
_MOST_OPEN = 64 << 20  # bytes of buffers before the rank waits for its groups
_SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)  # of DataType
_REDUCED = {
    DataType.INT8: np.int8, DataType.UINT8: np.uint8, DataType.INT32: np.int32, DataType.UINT32: np.uint32, DataType.INT64: np.int64,
    DataType.UINT64: np.uint64, DataType.FLOAT32: np.float32, DataType.FLOAT64: np.float64,
}  # fmt: skip
_CALLS = {
    Func.BROADCAST: "Broadcast", Func.REDUCE: "Reduce", Func.ALLGATHER: "AllGather", Func.REDUCESCATTER: "ReduceScatter",
    Func.ALLREDUCE: "AllReduce", Func.SEND: "Send", Func.RECV: "Recv",
}  # fmt: skip
_OPS: dict[RedOp, Any] = {RedOp.SUM: np.add, RedOp.PROD: np.multiply, RedOp.MAX: np.maximum, RedOp.MIN: np.minimum}
Bytes = npt.NDArray[Any]
#: What has to be in a buffer at the end, of which rank, in words.
Check = tuple[Bytes, Callable[[], Bytes], int]


@dataclass(slots=True)
class _Comm:
    """A communicator of this rank, and how far its calls are."""

    name: str
    rank: int
    job_ranks: tuple[int, ...]
    plans: Communicator | None = None
    groups: int = 0
    colls: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)


class _Player:
    def __init__(self, rank: Rank, program: Program, values: Mapping[str, Any]) -> None:
        self.rank, self.program = rank, program
        self.seed, self.devices = values["seed"], values["devices"]
        self.variant = load(*values["stranger"]) if values.get("stranger") else variant(values["variant"])
        given = dict(values["config"])
        self.config = Config(**(given | {"scheduler": Scheduler(given["scheduler"])}))
        self.comms: dict[int, _Comm] = {}
        self.open: list[Check] = []
        self.open_bytes = self.bytes = self.groups = 0
        self.log = _Log(rank.number, rank.number % self.devices)

    # ---- start ----

    def connect(self, stack: ExitStack) -> None:
        """Make the communicators, one after the other: all ranks take part in each exchange."""
        for at, of in enumerate(self.program.comms):
            me = of.ranks.index(self.rank.number) if self.rank.number in of.ranks else None
            comm = _Comm(of.name, me, of.ranks) if me is not None else None
            if len(of.ranks) < 2:
                if comm is not None:
                    self.comms[at] = comm
                continue
            proxy = None
            if comm is not None:
                device = self.rank.number % self.devices
                proxy = stack.enter_context(
                    Proxy(comm.rank, len(of.ranks), device=device, transports={P2P: self.variant})
                )
                self.log.made(comm, at, "Init START")
            addresses = self._gather(of.ranks, proxy.address.pack() if proxy else None, f"addresses-{at}")
            if proxy is not None:
                proxy.set_addresses([Address(data) for data in addresses])
            infos = self._gather(of.ranks, peer_info(proxy).pack() if proxy else None, f"peers-{at}")
            exchanged = False

            def exchange(parts: Mapping[int, bytes], of: Any = of, at: int = at) -> dict[int, bytes]:
                nonlocal exchanged
                exchanged = True
                got = self.rank.exchange({of.ranks[r]: data for r, data in parts.items()}, f"connect-{at}")
                return {of.ranks.index(r): data for r, data in got.items() if r in of.ranks}

            if proxy is None or comm is None:
                self.rank.exchange({}, f"connect-{at}")
                continue
            config = replace(self.config, ranks=len(of.ranks), nodes=1)
            comm.plans = stack.enter_context(Communicator(proxy, [PeerInfo(d) for d in infos], exchange, config))
            self.comms[at] = comm
            self.log.made(comm, at, "Init COMPLETE")

    def _gather(self, ranks: tuple[int, ...], data: bytes | None, name: str) -> list[bytes]:
        got = self.rank.exchange({} if data is None else dict.fromkeys(ranks, data), name)
        return [got[r] for r in ranks] if data is not None else []

    # ---- play ----

    def play(self) -> None:
        """Call everything; wait when much is open, and at the end."""
        for at, steps in self.program.groups(self.rank.number):
            comm = self.comms[at]
            tasks = [step.task for step in steps if step.task is not None]
            for task in tasks:
                self.log.call(comm, at, task)
            if comm.plans is not None:
                with comm.plans.group() as group:
                    for task in tasks:
                        self._enqueue(group, comm, at, task)
            comm.groups += 1
            self.groups += 1
            if self.open_bytes > _MOST_OPEN:
                self.settle()
        self.settle()

    def settle(self) -> None:
        """Wait for all groups, and check what came."""
        for comm in self.comms.values():
            if comm.plans is not None:
                comm.plans.wait()
        for seen, meant, source in self.open:
            wanted = meant()
            self.bytes += seen.nbytes
            if not np.array_equal(seen, wanted):
                where = int(np.flatnonzero(seen != wanted)[0])
                raise _WrongDataError(
                    f"wrong data from {'rank ' + str(source) if source >= 0 else 'a collective'}: element {where} is {seen.flat[where]}, expected {wanted.flat[where]}",
                    source,
                )
        self.open.clear()
        self.open_bytes = 0

    def _enqueue(self, group: Any, comm: _Comm, at: int, task: Task) -> None:
        nbytes = task.count * _SIZES[task.datatype]
        if task.func.p2p:
            sends = task.func is Func.SEND
            numbers = comm.sent if sends else comm.received
            number = numbers[task.peer] = numbers.get(task.peer, -1) + 1
            source, target = (comm.rank, task.peer) if sends else (task.peer, comm.rank)
            if task.peer == comm.rank:
                return  # moves nothing
            if sends:
                data = self._data(nbytes, at, source, target, number)
                group.send(data, task.peer)
            else:
                data = np.full(nbytes, 0xA5, dtype=np.uint8)
                group.recv(data, task.peer)
                size = min(nbytes, 1 << 30)
                self.open.append((data, lambda: self._data(size, at, source, target, number), comm.job_ranks[source]))
            self.open_bytes += nbytes
            return
        self._collective(group, comm, at, task)

    def _collective(self, group: Any, comm: _Comm, at: int, task: Task) -> None:
        number, ranks = comm.colls, len(comm.job_ranks)
        comm.colls += 1
        kind = _REDUCED.get(task.datatype, np.uint8)
        count = task.count if task.datatype in _REDUCED else task.count * _SIZES[task.datatype]
        op = task.redop if task.redop in _OPS else RedOp.SUM
        datatype = task.datatype if task.datatype in _REDUCED else DataType.UINT8

        def part(rank: int, size: int) -> Bytes:
            made: Bytes = ((np.arange(size, dtype=np.int64) * 7 + rank * 3 + number + self.seed) % 4).astype(kind)
            return made

        def reduced(size: int) -> Bytes:
            out = part(0, size)
            for rank in range(1, ranks):
                out = _OPS[op](out, part(rank, size))
            return out

        me = comm.rank
        if task.func is Func.ALLREDUCE:
            data = part(me, count)
            group.all_reduce(data, None, op, datatype=datatype)
            self.open.append((data, lambda: reduced(count), -1))
        elif task.func is Func.REDUCE:
            data, into = part(me, count), np.zeros(count, dtype=kind)
            group.reduce(data, into if me == task.peer else None, task.peer, op, datatype=datatype)
            if me == task.peer:
                self.open.append((into, lambda: reduced(count), -1))
        elif task.func is Func.REDUCESCATTER:
            data, into = part(me, count * ranks), np.zeros(count, dtype=kind)
            group.reduce_scatter(data, into, op, datatype=datatype)
            self.open.append((into, lambda: reduced(count * ranks)[me * count : (me + 1) * count], -1))
        elif task.func is Func.ALLGATHER:
            data, into = part(me, count), np.zeros(count * ranks, dtype=kind)
            group.all_gather(data, into)
            self.open.append((into, lambda: np.concatenate([part(r, count) for r in range(ranks)]), -1))
        else:
            data = part(me, count)
            group.broadcast(data, task.peer)
            self.open.append((data, lambda: part(task.peer, count), comm.job_ranks[task.peer]))
        self.open_bytes += data.nbytes

    def _data(self, size: int, at: int, source: int, target: int, number: int) -> Bytes:
        """The bytes of a message, the same on both ends."""
        key = (self.seed * 31 + at * 17 + source * 13 + target * 7 + number) % 251
        made: Bytes = ((np.arange(size, dtype=np.int64) * 5 + key) % 251).astype(np.uint8)
        return made


class _WrongDataError(Exception):
    def __init__(self, text: str, source: int) -> None:
        super().__init__(text)
        self.source = source


class _Log:
    """The lines of NCCL about communicators and calls, in the log of the rank."""

    def __init__(self, rank: int, device: int) -> None:
        host, pid = socket.gethostname().split(".")[0] or "-", os.getpid()
        self.head = f"{host}:{pid}:{pid} [{device}] NCCL INFO "
        self.device = device
        path = os.environ.get("PSM_LOG_FILE") if os.environ.get("PSM_DEBUG", "INFO") != "WARN" else None
        self.file = open(path, "ab", buffering=0) if path else None  # noqa: SIM115 (open as long as the process)

    def made(self, comm: _Comm, at: int, what: str) -> None:
        self._line(
            f"ncclCommInitRank comm {_pointer(at):#x} rank {comm.rank} nranks {len(comm.job_ranks)} cudaDev {self.device} nvmlDev {self.device} "
            f"busId {(self.device + 1) << 12:x} commId {0xC0DE01 + at:#x} - {what}"
        )

    def gone(self, comm: _Comm, at: int) -> None:
        self._line(
            f"comm {_pointer(at):#x} rank {comm.rank} nranks {len(comm.job_ranks)} cudaDev {self.device} busId {(self.device + 1) << 12:x} - Destroy COMPLETE"
        )

    def call(self, comm: _Comm, at: int, task: Task) -> None:
        self._line(
            f"{_CALLS[task.func]}: opCount {comm.groups:x} sendbuff 0x10000 recvbuff 0x20000 count {task.count} datatype {int(task.datatype)} "
            f"op {int(task.redop)} root {task.peer} comm {_pointer(at):#x} [nranks={len(comm.job_ranks)}] stream 0x30000"
        )

    def _line(self, text: str) -> None:
        if self.file is not None:
            self.file.write(f"{self.head}{text}\n".encode())  # one write: libpsm's threads write to the file, too


def _pointer(at: int) -> int:
    return 0x7F3000000000 + at * 0x10000


def _report(rank: int, stage: str, status: str, by: str, text: str, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "protocol": 1,
        "name": "tasks",
        "rank": rank,
        "status": status,
        "stage": stage,
        "by": by,
        "text": text,
        **more,
    }


def main() -> int:
    """Play the file, and report."""
    prepare()
    values = json.loads(sys.argv[1])
    path = sys.stdin.readline().strip()
    rank = Rank.of_environment()
    program = read_program(path, rank.ranks, _MOST_STEPS)
    begun = time.monotonic()
    stage, player = "init", _Player(rank, program, values)

    def enter(name: str) -> None:
        nonlocal stage
        stage = name
        rank.stage(name)

    enter("init")
    failure: dict[str, Any] | None = None
    try:
        with ExitStack() as stack:
            enter("connect")
            player.connect(stack)
            rank.barrier("ready")
            enter("move")
            player.play()
            rank.barrier("moved")
            enter("free")
        for at, comm in player.comms.items():
            player.log.gone(comm, at)
    except RunnerGoneError:
        return 3
    except OthersFailedError as error:
        failure = _report(rank.number, stage, "PSM_ERR_ABORTED", "lab", str(error), {})
    except _WrongDataError as error:
        failure = _report(
            rank.number, stage, "PSM_ERR_INTERNAL", "data", str(error), {"wrong": 1, "wrong_from": error.source}
        )
    except PsmError as error:
        failure = _report(rank.number, stage, error.status.c_name, "libpsm", str(error), {})
    more = {"bytes": player.bytes, "groups": player.groups, "seconds": round(time.monotonic() - begun, 6)}
    rank.report((failure or _report(rank.number, stage, "PSM_OK", "", "", {})) | more)
    rank.close()
    return int(failure is not None)


if __name__ == "__main__":
    sys.exit(main())
