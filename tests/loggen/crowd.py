"""Logs of jobs with thousands of ranks, written as fast as a disk takes them: healthy ones, and ones where every rank complains.

The simulator schedules each thread, which is too slow for such jobs. Here every rank prints a fixed script, phase by phase, and a phase begins
after all ranks printed the one before. Rank :data:`FAULTY` is the one that fails. A log is the same for the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["FAULTY", "KINDS", "write_files", "write_merged"]

FAULTY = 5
_LOCAL = 8  # ranks on a host
_COLLECTIVES = 4  # of a round

#: What one rank prints in one phase: lines of its NCCL log, and lines on its standard error.
Said = tuple[str, str]
Phase = Callable[["_Rank"], Said]


class _Rank:
    """The names of a rank, and its lines."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.device = rank % _LOCAL
        self.host = f"node{rank // _LOCAL}"
        self.pid = 6001 + 40 * (rank % 250)
        self.ip = f"10.0.{rank // _LOCAL // 250}.{rank // _LOCAL % 250 + 1}"
        self.base = 0x7F0000000000 + rank * 0x4000000
        self.comm = hex(self.base + 0xA1010)
        self.step = 0
        self.calls = 0

    def info(self, thread: int, text: str) -> str:
        return f"{self.host}:{self.pid}:{self.pid + thread} [{self.device}] NCCL INFO {text}\n"

    def warn(self, thread: int, where: str, text: str) -> str:
        return f"\n[2026-11-21 01:35:22] {self.host}:{self.pid}:{self.pid + thread} [{self.device}] {where} NCCL WARN {text}\n"

    def chain(self, code: int, *places: str) -> str:
        return "".join(self.info(0, f"{place} -> {code}") for place in places)

    def torch(self, text: str) -> str:
        return f"[rank{self.rank}]:[E1121 01:45:22.100408271 ProcessGroupNCCL.cpp{text}\n"

    def peer(self) -> _Rank:
        """The rank that shares a host with this one, if any."""
        return _Rank(min(self.rank ^ 1, self.ranks - 1), self.ranks)

    @property
    def identity(self) -> str:
        return f"comm {self.comm} rank {self.rank} nranks {self.ranks} cudaDev {self.device}"

    @property
    def bus(self) -> str:
        return f"busId {self.device + 1}0000"


_STARTED = 7  # lines of an init up to its start


def _init(r: _Rank, most: int = 99) -> Said:
    create = f"ncclCommInitRankConfig {r.identity} nvmlDev {r.device} {r.bus} commId 0x77ef46685db83296"
    host = f"comm {r.comm} rank {r.rank} nRanks {r.ranks} nNodes {-(-r.ranks // _LOCAL)} localRanks {_LOCAL} localRank {r.device}"
    lines = [
        "cudaDriverVersion 12090",
        f"Bootstrap: Using eth0:{r.ip}<0>",
        "NCCL version 2.27.7+cuda12.9",
        "NET/IB : No device found.",
        f"NET/Socket : Using [0]eth0:{r.ip}<0>",
        "Using network Socket",
        f"{create} - Init START",
        "Bootstrap timings total 0.019721 (create 0.000031, send 0.000094, recv 0.002429, ring 0.016741, delay 0.000000)",
        f"{host} MNNVL 0",
        f"Ring 00 : {(r.rank - 1) % r.ranks} -> {r.rank} -> {(r.rank + 1) % r.ranks}",
        "P2P Chunksize set to 131072",
    ]
    return "".join(r.info(0, text) for text in lines[:most]), ""


def _opened(r: _Rank, kind: str) -> list[tuple[int, str]]:
    op, local = hex(r.base + 0x390), r.device
    return [
        (21, f"New proxy {kind} connection {r.calls} from local rank {local}, transport 0"),
        (21, f"proxyProgressAsync opId={op} op.type=1 op.reqBuff={hex(r.base + 0x3C0)} op.respSize=16 done"),
        (21, "Received and initiated operation=Init res=0"),
        (0, f"ncclPollProxyResponse Received new opId={op}"),
        (0, f"resp.opId={op} matches expected opId={op}"),
        (0, f"Connected to proxy localRank {local} -> connection {hex(r.base + 0xC88 + 0x78 * r.calls)}"),
    ]


def _setup(r: _Rank) -> list[tuple[int, str]]:
    op = hex(r.base + 0x390)
    return [
        (21, f"proxyProgressAsync opId={op} op.type=3 op.reqBuff={hex(r.base + 0x3C0)} op.respSize=88 done"),
        (21, "Received and initiated operation=Setup res=0"),
        (0, f"ncclPollProxyResponse Received new opId={op}"),
        (0, f"resp.opId={op} matches expected opId={op}"),
    ]


def _connect(r: _Rank) -> Said:
    """Connections through the rank's own proxy, as a ring needs them."""
    said: list[tuple[int, str]] = [(21, f"[Proxy Service] Device {r.device} CPU core 48")] if r.calls == 0 else []
    for kind in ("recv", "send"):
        said += [*_opened(r, kind), *_setup(r)]
        r.calls += 1
    return "".join(r.info(thread, text) for thread, text in said), ""


def _exchanged(r: _Rank) -> Said:
    """A buffer of a neighbour, by its descriptor."""
    peer = r.peer()
    op, handle = 0x5000000000000000 + r.rank, hex(peer.base + 0x460)
    asked = (
        f"ProxyCall UDS comm {r.comm} rank {r.rank} tpRank {peer.rank}(6dfaf465fe18d842) reqSize 8 respSize 0 respFd"
    )
    return (
        r.info(0, f"{asked} {hex(r.base + 0xEDA48)} opId {hex(op)}")
        + peer.info(15, f"proxyUDSRecvReq::ncclProxyMsgGetFd rank {r.rank} opId {hex(op)} handle={handle}")
        + peer.info(15, f"UDS proxyGetFd received handle {handle} peer {r.rank} opId {op:x}")
        + r.info(0, f"{asked} 40 opId {hex(op)} - DONE")
        + r.info(0, f"UDS: ClientGetFd handle {handle} tpRank {peer.rank} returned fd 40 sameProcess 0"),
        "",
    )


def _ready(r: _Rank) -> Said:
    complete = f"ncclCommInitRankConfig {r.identity} nvmlDev {r.device} {r.bus} commId 0x77ef46685db83296"
    lines = ("Connected all rings, use ring PXN 0 GDR 1", f"{complete} - Init COMPLETE")
    return "".join(r.info(0, text) for text in lines), ""


def _call(r: _Rank) -> str:
    coll, count = ("AllReduce", 65536) if r.step % 4 else ("AllGather", 16384)
    buffers = f"sendbuff {hex(r.base + 0x51000)} recvbuff {hex(r.base + 0xC51000)} count {count}"
    where = f"comm {r.comm} [nranks={r.ranks}] stream {hex(r.base + 0x140)}"
    r.step += 1
    return f"{coll}: opCount {r.step - 1:x} {buffers} datatype 7 op 0 root 0 {where}"


def _work(r: _Rank) -> Said:
    return "".join(r.info(0, _call(r)) for _ in range(_COLLECTIVES)), ""


def _teardown(r: _Rank) -> Said:
    stop = r.info(21, "Received and initiated operation=Stop res=0")
    return stop + r.info(29, f"{r.identity} {r.bus} - Destroy COMPLETE"), ""


def _abort(r: _Rank) -> Said:
    """A kernel of one rank fails; the others see its sockets close, and everybody aborts."""
    where = ("enqueue.cc:1449", "group.cc:293", "group.cc:422", "group.cc:581", "group.cc:106")
    if r.rank == FAULTY:
        text = r.warn(0, where[0], "Cuda failure 700 'an illegal memory access was encountered'") + r.chain(1, *where)
    else:
        peer = f"10.0.0.1<{40000 + FAULTY}>"
        text = r.warn(21, "misc/socket.cc:71", f"socketProgress: Connection closed by remote peer {peer}")
        text += r.info(21, "misc/socket.cc:806 -> 6") + r.info(21, "transport/net_socket.cc:543 -> 6")
        text += r.info(21, "proxy.cc:744 -> 6") + r.chain(6, *where[1:])
    abort = f"{r.identity.replace('nranks', 'nRanks')} {r.bus} - Abort START"
    return text + r.info(0, abort) + r.info(29, f"{r.identity} {r.bus} - Abort COMPLETE"), ""


def _watchdog(r: _Rank) -> Said:
    """All ranks but one call one more collective and wait in it, until PyTorch's watchdog stops them."""
    if r.rank == FAULTY:
        return "", ""
    called = _call(r)
    work = f"WorkNCCL(SeqNum={r.step}, OpType=ALLREDUCE, NumelIn=65536, NumelOut=65536, Timeout(ms)=600000)"
    ends = f"Exception (either an error or timeout) detected by watchdog at work: {r.step}"
    last = f"last enqueued NCCL work: {r.step}, last completed NCCL work: {r.step - 1}."
    return r.info(0, called), (
        r.torch(
            f":629] [Rank {r.rank}] Watchdog caught collective operation timeout: {work} ran for 600010 milliseconds before timing out."
        )
        + r.torch(f":1785] [PG ID 0 PG GUID 0(default_pg) Rank {r.rank}] {ends}, {last}")
    )


def _unanswered(r: _Rank) -> Said:
    """Every rank asks its proxy for a Setup whose answer never arrives; the network of RAS says that time passes."""
    op, said = hex(r.base + 0x390), _opened(r, "send")
    said.append((21, f"proxyProgressAsync opId={op} op.type=3 op.reqBuff={hex(r.base + 0x3C0)} op.respSize=88 done"))
    said.append((21, "Received and initiated operation=Setup res=0"))
    if r.rank in (FAULTY - 1, FAULTY + 1):
        peer = f"{r.ip}<{40000 + FAULTY}>"
        said.append((7, f"RAS keep-alive timeout error (20s) on socket connection with {peer}"))
    return "".join(r.info(thread, text) for thread, text in said), ""


def _listen(r: _Rank) -> Said:
    return r.info(0, f"RAS network listening socket at {r.ip}<{40000 + r.rank % 20000}>"), ""


def _death(r: _Rank) -> Said:
    """One rank dies silently; every other rank reports errors of its own."""
    if r.rank == FAULTY:
        return "", ""
    text = ""
    if r.rank // _LOCAL == FAULTY // _LOCAL:
        text += r.info(21, f"[Service thread] Connection closed by localRank {FAULTY % _LOCAL}")
    text += r.warn(21, "misc/socket.cc:49", f"Net : Call to recv from 10.0.0.1<{40000 + FAULTY}> failed : Broken pipe")
    text += r.info(21, "misc/socket.cc:806 -> 2") + r.info(21, "transport/net_socket.cc:543 -> 2")
    text += r.warn(
        21,
        "proxy.cc:1665",
        "[Service thread] Error encountered progressing operation=Connect, res=2, closing connection",
    )
    return text + r.chain(2, "proxy.cc:1148", "group.cc:422", "group.cc:581", "group.cc:106"), ""


def _late(r: _Rank) -> Said:
    """All ranks but one begin; they wait for it in the bootstrap."""
    return ("", "") if r.rank == FAULTY else _init(r, _STARTED)


def _crash(r: _Rank) -> Said:
    """Every rank dies by a signal, with a stack."""
    head = f"[{r.host}:{r.pid}]"
    lines = [
        f"{head} *** Process received signal ***",
        f"{head} Signal: Segmentation fault (11)",
        f"{head} Failing at address: 0x8",
    ]
    lines += [f"{head} [ {at}] /usr/lib/libc.so.6(+0x42520)[0x7f{at:010x}]" for at in range(3)]
    lines.append(f"{head} [ 3] /opt/app/libwork.so(+0x1b2{r.device})[0x7f0000000003]")
    lines.append(f"{head} *** End of error message ***")
    stamp = "1121 01:36:01.204000 5990 torch/distributed/elastic/multiprocessing/api.py"
    lines.append(
        f"E{stamp}:869] failed (exitcode: -11) local_rank: {r.device} (pid: {r.pid}) of binary: /usr/bin/python3"
    )
    return "", "".join(f"{line}\n" for line in lines)


#: The phases of a job by kind: before its work, of its work (repeated up to the size), and after it.
KINDS: dict[str, tuple[tuple[Phase, ...], tuple[Phase, ...], tuple[Phase, ...]]] = {
    "healthy": ((_init, _ready), (_work,), (_teardown,)),
    "healthy-proxy": ((_init, _connect, _exchanged, _ready), (_work, _connect), (_teardown,)),
    "no-init": ((_connect,), (_connect,), ()),
    "abort": ((_init, _connect, _ready), (_work,), (_abort,)),
    "errors": ((_init, _connect, _ready), (_work,), (_death,)),
    "floods": ((_init, _connect, _ready), (_work, _death), ()),
    "crashes": ((_init, _connect, _ready), (_work,), (_crash,)),
    "late": ((_late,), (), ()),
    "watchdog": ((_init, _connect, _ready), (_work,), (_watchdog,)),
    "unanswered": ((_init, _listen, _connect), (_connect,), (_unanswered,)),
}


def _phases(kind: str, ranks: int, size: int) -> Iterator[Iterator[tuple[int, Said]]]:
    """The lines of each phase by rank; the work repeats until there are ``size`` bytes."""
    job = [_Rank(rank, ranks) for rank in range(ranks)]
    written = 0

    def of(phase: Phase) -> Iterator[tuple[int, Said]]:
        nonlocal written
        for rank in job:
            said = phase(rank)
            written += len(said[0]) + len(said[1])
            yield rank.rank, said

    before, work, after = KINDS[kind]
    for phase in before:
        yield of(phase)
    while work:
        begun = written
        for phase in work:
            yield of(phase)
        if written + (written - begun) // 2 >= size:
            break
    for phase in after:
        yield of(phase)


def write_merged(path: Path, kind: str, ranks: int, size: int = 0) -> int:
    """Write one file with the lines of all ranks; returns its size. ``size`` bounds it from below, to a round of work."""
    with path.open("w", buffering=1 << 20) as file:
        for phase in _phases(kind, ranks, size):
            file.writelines(text for _, said in phase for text in said)
    return path.stat().st_size


def write_files(folder: Path, kind: str, ranks: int, size: int = 0) -> int:
    """Write a file for each rank into ``folder``, and ``job.out`` with their standard error; returns the size of all."""
    texts: list[list[str]] = [[] for _ in range(ranks)]
    with (folder / "job.out").open("w") as out:
        for phase in _phases(kind, ranks, size):
            for rank, (nccl, stderr) in phase:
                texts[rank].append(nccl)
                out.write(stderr)
    for rank, text in enumerate(texts):
        (folder / f"nccl.rank{rank}.log").write_text("".join(text))
    return sum(path.stat().st_size for path in folder.iterdir())
