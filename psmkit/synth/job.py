"""A job of N ranks that speaks NCCL's protocol: init, connections through proxies, work, teardown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from psmkit.synth.connections import Connections, Plan
from psmkit.synth.dialects import Dialect
from psmkit.synth.sim import Fault, NcclFailureError, Process, Task, pointer

__all__ = ["STEPS", "Job", "Plan"]

#: Collectives of a round.
STEPS = 4


class Job(Connections):
    """Run it, then read :attr:`lines`."""

    def __init__(self, dialect: Dialect, plan: Plan, seed: int = 1, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(dialect, plan, seed, faults)
        self._slowest: int | None = None  # what finished() found; None: a process went on
        for p in self.processes:
            if p.rank in plan.missing:
                p.alive = False
            else:
                self.start(p, self._main(p))

    # -- a rank's main thread

    def _main(self, p: Process) -> Task:
        try:
            yield from self._init(p)
            if self.plan.split:
                yield from self._split(p)
            yield from self._rounds(p)
            if self.plan.work in ("coll", "both"):
                yield from self._collectives(p)
            if self.plan.work in ("p2p", "both"):
                yield from self._sendrecv(p)
            self.mark(p, "worked")
            everybody = self._all("worked")
            yield lambda: everybody() and self.stuck is None
            if self.plan.teardown:
                yield from self._teardown(p)
        except NcclFailureError as failure:
            self.chain(p, "main", failure.code, "group.cc:422", "group.cc:581", "group.cc:106 ncclGroupEnd")
            self.mark(p, "failed")
            yield None
            self.exit(p)

    def exit(self, p: Process) -> None:
        """The application gives up after an error: its sockets close."""
        p.alive = False
        self.on_death(p)

    def on_death(self, p: Process) -> None:
        for q in self._local(p):
            if q.runs and q is not p and p.rank in q.clients:
                self.info(q, "service", f"[Service thread] Connection closed by localRank {p.local}")
        if self.dialect.ras:
            for q in self._neighbours(p):
                addr = f"{p.ip}<{p.ras_port}>"
                self.info(
                    q, "ras", f"RAS current socket connection with {addr} closed by peer on receive; terminating it"
                )
                self.info(q, "ras", f"RAS trying to reconnect with {addr} (experiencingDelays 0, startRetryTime 1.00s)")
                self.info(q, "ras", f"RAS connect timeout warning (5s) on socket connection with {addr}")

    def kill(self, process: Process) -> None:
        super().kill(process)
        self.on_death(process)

    def _neighbours(self, p: Process) -> list[Process]:
        n = len(self.processes)
        around = {(p.rank - 1) % n, (p.rank + 1) % n} - {p.rank}
        return [self.processes[r] for r in sorted(around) if self.processes[r].runs]

    def ras_stall(self, p: Process) -> None:
        """What the neighbours of a stopped process print after 5 and 20 seconds."""
        if not self.dialect.ras:
            return
        addr = f"{p.ip}<{p.ras_port}>"
        for q in self._neighbours(p):
            self.info(q, "ras", f"RAS keep-alive timeout warning (5s) on socket connection with {addr}")
        for q in self._neighbours(p):
            self.info(q, "ras", f"RAS keep-alive timeout error (20s) on socket connection with {addr}")
            self.info(q, "ras", f"RAS trying to reconnect with {addr} (experiencingDelays 1, startRetryTime 20.00s)")

    # -- init

    def _init(self, p: Process) -> Task:
        yield from self._load(p)
        yield from self._bootstrap(p)
        yield from self._find_topology(p)
        yield from self._finish_init(p)

    def _load(self, p: Process) -> Task:
        d, t = self.dialect, "main"
        self.visit("start", p)
        self.info(p, t, f"cudaDriverVersion {d.driver}")
        self._env(p, t, "NCCL_SOCKET_IFNAME")
        self.info(p, t, d.bootstrap.format(ip=p.ip))
        yield None
        if p.rank == 0 or d.functions or d.psm:
            self.info(p, t, self.setting(p, "VERSION") or d.version)
        self.info(p, t, "NET/IB : No device found.")
        self.info(p, t, f"NET/Socket : Using [0]eth0:{p.ip}<0>")
        self.info(p, t, "Using network Socket")
        yield None

    def _bootstrap(self, p: Process) -> Task:
        d, t = self.dialect, "main"
        self.info(p, t, d.init.format(**self.names[p.rank]) + " - Init START")
        if self.visit("bootstrap", p) == "wait":
            yield lambda: False
        # the root sends the address of the next rank when that one has checked in; then the ring connects, and RAS starts
        n = self.plan.ranks
        before, after = self.processes[(p.rank - 1) % n], self.processes[(p.rank + 1) % n]
        self.mark(p, "checked in")
        self.visit("address", p)
        yield lambda: "checked in" in after.done
        self.mark(p, "ring")
        self.visit("ring", p)
        yield lambda: "ring" in before.done
        if d.ras:
            self.info(p, t, f"RAS network listening socket at {p.ip}<{p.ras_port}>")
            self.start(p, self._ras(p))
        self.mark(p, "begun")
        yield self._all("begun")
        if d.ras:
            self.info(
                p,
                t,
                "Bootstrap timings total 0.019721 (create 0.000031, send 0.000094, recv 0.002429, ring 0.016741, delay 0.000000)",
            )

    def _find_topology(self, p: Process) -> Task:
        d, t, names, n = self.dialect, "main", self.names[p.rank], self.plan.ranks
        self._env(p, t, "NCCL_TOPO_FILE")
        self.info(p, t, f"NVLS multicast support is not available on dev {p.device}")
        yield None
        if d.functions:
            self.info(
                p,
                t,
                f"ncclTopoGetCpuAffinity: Affinity for GPU {p.device} is 0-7. (GPU affinity = 0-7 ; CPU affinity = 0-7).",
            )
        else:
            self.info(p, t, f"Setting affinity for GPU {p.device} to ff")
        if d.name != "2.18":  # older ones have it among what they do not print
            local = len(self._local(p))
            self.info(
                p,
                t,
                f"comm {names['comm']} rank {p.rank} nRanks {n} nNodes {self.plan.hosts} localRanks {local} localRank {p.local} MNNVL 0",
            )
        prev, succ = (p.rank - 1) % n, (p.rank + 1) % n
        for c in range(self.plan.channels if d.rings else 0):
            self.info(p, t, f"Ring {c:02d} : {prev} -> {p.rank} -> {succ}")
        up, down = (p.rank - 1 if p.rank else -1), (p.rank + 1 if p.rank + 1 < n else -1)
        tree = d.trees.format(down=down, rank=p.rank, up=up)
        self.info(p, t, "Trees" + "".join(f" [{c}] {tree}" for c in range(self.plan.channels)))
        self._env(p, t, "NCCL_BUFFSIZE")
        self.info(p, t, "P2P Chunksize set to 131072")
        self._env(p, t, "NCCL_PASS_SM", "NCCL_PSM_BUFFER_SIZE")
        if d.uds:
            self.info(p, t, f"UDS: Creating service thread comm {names['comm']} rank {p.rank}")
        yield None

    def _finish_init(self, p: Process) -> Task:
        d, t, n = self.dialect, "main", self.plan.ranks
        self.start(p, self._service(p))
        if d.uds:
            self.start(p, self._uds(p))
        self.mark(p, "topology")
        self.visit("topology", p)
        yield self._all("topology")
        if self.plan.work in ("coll", "both"):
            yield from self._connect(p, t, "ring", [(p.rank + 1) % n], [(p.rank - 1) % n], 0)
            self.info(p, t, "Connected all rings" + (", use ring PXN 0 GDR 1" if d.name in ("2.27", "2.30") else ""))
        self.info(p, t, f"threadThresholds 8/8/64 | 32/8/64 | {d.thresholds}")
        collnet = "" if not d.uds else f"{self.plan.channels} collnet channels, "
        c = self.plan.channels
        nvls = "" if "NVLS" in d.silent else "0 nvls channels, "
        self.info(p, t, f"{c} coll channels, {collnet}{nvls}{c} p2p channels, {c} p2p channels per peer")
        # the ranks of a host leave the init together
        self.mark(p, "barrier")
        local = self._local(p)
        yield lambda: all("barrier" in q.done for q in local)
        self.info(p, t, d.init.format(**{**self.names[p.rank], "tag": ""}) + " - Init COMPLETE")
        self.mark(p, "init")

    def _split(self, p: Process) -> Task:
        """Child communicators of neighbours, as tensor parallelism makes them."""
        size = self.plan.split
        color, rank = divmod(p.rank, size)
        p.child = p.base + 0x1B2020
        fields = {
            **self.names[p.rank],
            "parent": self.names[p.rank]["comm"],
            "comm": pointer(p.child),
            "rank": rank,
            "n": size,
            "color": color,
            "key": p.rank,
            "commid": hex(self.commid ^ (color + 1) * 0x1000193),
        }
        start, complete = self.dialect.split
        self.info(p, "main", start.format(**fields))
        self.mark(p, "splitting")
        yield self._all("splitting")
        q = self.processes[p.rank ^ 1]
        ends = {"rank": rank, "dev": p.device, "bus": self.names[p.rank]["bus"]}
        ends |= {"peer": (rank + 1) % size, "peer_dev": q.device, "peer_bus": self.names[q.rank]["bus"]}
        self.info(p, "main", self.dialect.channel.format(channel=0, index=0, via=self.dialect.via, **ends))
        self.info(p, "main", complete.format(**fields))
        self.names[p.rank]["child"] = fields
        yield None

    def _ras(self, p: Process) -> Task:
        yield None
        self.info(p, "ras", "RAS thread started")
        yield self._all("begun")
        n = self.plan.ranks
        self.info(p, "ras", "RAS handling local addRanks request (old nRasPeers 0)")
        self.info(p, "ras", f"RAS finished local processing of addRanks request (new nRasPeers {n}, nRankPeers {n})")
        succ = self.processes[(p.rank + 1) % n]
        self.info(p, "ras", f"RAS link 1: opening new primary connection with {succ.ip}<{succ.ras_port}>")
        yield None
        self.info(p, "ras", f"RAS handling connInitAck from {succ.ip}<{succ.ras_port}> (nack 0)")
        self.info(
            p,
            "ras",
            f"RAS established connection with {succ.ip}<{succ.ras_port}> (sendQ empty, experiencingDelays 0, startRetryTime 0.00s)",
        )
        self.mark(p, "ras linked")
        pred = self.processes[(p.rank - 1) % n]
        yield lambda: "destroyed" in p.done or "destroyed" in pred.done
        if "destroyed" not in p.done:  # the neighbour was first: nothing is wrong
            self.info(
                p,
                "ras",
                f"RAS current socket connection with {pred.ip}<{pred.ras_port}> closed by peer on receive; terminating it",
            )
        yield lambda: "destroyed" in p.done
        self.info(p, "ras", "RAS handling local termination request")
        self.info(p, "ras", f"RAS terminating a connection with {succ.ip}<{succ.ras_port}>")
        self.info(p, "ras", "RAS thread terminating")

    # -- work

    def _enqueue(
        self, p: Process, coll: str, count: int, step: int, root: int = 0, datatype: int = 7, child: bool = False
    ) -> None:
        shown = step if self.dialect.counts or self.plan.hosts > 1 else 0
        comm, ranks = (p.child, self.plan.split) if child else (self.comms[p.rank], self.plan.ranks)
        send = 0 if coll in ("Send", "Recv") else p.base + 0x51000
        self.info(
            p,
            "main",
            f"{coll}: opCount {shown:x} sendbuff {pointer(send)} recvbuff {pointer(p.base + 0xC51000 + root * 0x10000)} count {count} "
            f"datatype {datatype} op 0 root {root} comm {pointer(comm)} [nranks={ranks}] stream {pointer(p.base + 0x140)}",
        )

    def _pace(self, p: Process) -> Callable[[], bool]:
        """A rank enqueues ahead of its peers, but not without end."""
        return lambda: p.ops <= self.plan.ahead + self.finished()

    def finished(self) -> int:
        """Steps that all devices have done."""
        if self._slowest is None:
            self._slowest = min(q.ops for q in self.processes)
        slowest = self._slowest
        return slowest if self.stuck is None else min(slowest, self.stuck)

    def _advance(self, p: Process) -> None:
        p.ops += 1
        self._slowest = None

    def _rounds(self, p: Process) -> Task:
        """Rounds of work that leave nothing open: some collectives, and a buffer that a neighbour's proxy registers and releases."""
        for number in range(self.plan.rounds + 1 if self.plan.rounds else 0):
            if number == 0 and self.dialect.ras:
                yield self._all("ras linked")
            self.mark(p, ("round", number))
            yield partial(self._begun, number)
            if number == self.plan.rounds:
                return
            for i in range(STEPS):
                yield self._pace(p)
                coll, count = ("AllReduce", self.plan.count) if p.ops % 4 else ("AllGather", self.plan.count // 4)
                self._enqueue(p, coll, count, p.ops)
                if i == 1:
                    self.info(p, "main", f"Mem Realloc old size 32, new size 64 pointer {pointer(p.base + 0x8800)}")
                    self.info(p, "main", "misc/utils.cc:233 memory stack hunk malloc(65536)")
                self._advance(p)
                yield None
            peer = self._partner(p)
            if self.dialect.uds and peer is not p:
                yield from self._shared(p, peer)

    def _shared(self, p: Process, peer: Process) -> Task:
        """A buffer of a neighbour by its descriptor, which is closed again, and one of its own that the neighbour registers and releases."""
        fd = p.next_fd
        yield from self._get_fd(p, "main", peer, pointer(peer.base + 0x9900))
        p.next_fd = fd
        yield from self._register_buffer(p, "main", peer, p.base + 0x20000000, 0)
        yield from self._deregister(p, "main")
        p.registered.clear()

    def _begun(self, number: int) -> bool:
        """True when all came to the begin of a round, and nothing of the one before is still to be printed."""
        if number < len(self.cuts):
            return True
        if self.marks.get(("round", number), 0) < len(self.processes) or not all(q.idle for q in self.processes):
            return False
        self.cuts.append(len(self.lines))
        self.armed = self.armed or number == self.plan.rounds
        return True

    def _collectives(self, p: Process) -> Task:
        if self.plan.register:
            yield from self._register(p, "main")
        for _ in range(self.plan.steps):
            yield self._pace(p)
            action = self.visit("collective", p)
            coll, count = ("AllReduce", self.plan.count) if p.ops % 4 else ("AllGather", self.plan.count // 4)
            if action == "other operation":
                coll, self.stuck = "ReduceScatter", p.ops
            elif action == "other count":
                count, self.stuck = count + 64, p.ops
            elif action == "device stuck":
                self.stuck = p.ops
            elif action == "never":
                yield lambda: False
            elif action == "async error":
                self.warn(
                    p,
                    "main",
                    "enqueue.cc:1449",
                    self.dialect.cuda_failure.format(code=700, text="an illegal memory access was encountered"),
                    "ncclLaunchKernel",
                )
                self.chain(p, "main", 1, "enqueue.cc:1449 ncclLaunchKernel", "group.cc:293 doLaunches")
                raise NcclFailureError(1)
            self._enqueue(p, coll, count, p.ops)
            if p.child:
                self._enqueue(p, "AllReduce", 4096, p.ops, child=True)
            self._advance(p)
            yield None

    def _sendrecv(self, p: Process) -> Task:
        n = self.plan.ranks
        reach = self.plan.reach
        peers = (
            [((p.rank + i) % n, (p.rank - i) % n) for i in range(1, reach + 1)] if reach else [(i, i) for i in range(n)]
        )
        for step in range(self.plan.steps):
            yield self._pace(p)
            for to, frm in peers:
                count = self.plan.count
                if self.visit("send", p) == "short":
                    count, self.stuck = count // 2, p.ops
                self._enqueue(p, "Send", count, p.ops, to, datatype=1)
                if self.visit("recv", p) == "forget":
                    self.stuck = p.ops
                else:
                    self._enqueue(p, "Recv", self.plan.count, p.ops, frm, datatype=1)
            if step == 0:
                self.start(p, self._async_connect(p))
                yield (
                    lambda: "async ok" in p.done or any(isinstance(x, tuple) and x[0] == "async failed" for x in p.done)
                )
                for mark in p.done:
                    if isinstance(mark, tuple) and mark[0] == "async failed":
                        raise NcclFailureError(int(mark[1]))
            if self.dialect.psm:
                for i in range(1, reach + 1) if reach else range(n):
                    to, frm = (p.rank + i) % n, (p.rank - i) % n
                    size = self.plan.count
                    self.info(
                        p,
                        "main",
                        f"rank[{p.rank}] addP2pToPlan: sendRank={to}, sendAddr={pointer(p.base + 0x61000)}, sendBytes={size}, "
                        f"recvRank={frm}, recvAddr={pointer(p.base + 0xFCF000)}, recvBytes={size}",
                    )
            self._advance(p)
            yield None

    # -- teardown

    def _teardown(self, p: Process) -> Task:
        yield from self._deregister(p, "main")
        self.mark(p, "tearing down")
        yield self._all("tearing down")
        self.visit("teardown", p)
        p.stopping = True
        yield lambda: "service gone" in p.done and ("uds gone" in p.done or not self.dialect.uds)
        for names in (self.names[p.rank].get("child"), self.names[p.rank]):
            if names:
                self._destroyed(p, names)
        self.mark(p, "destroyed")

    def _destroyed(self, p: Process, names: dict[str, object]) -> None:
        self.info(
            p,
            "reclaim",
            f"comm {names['comm']} rank {names['rank']} nranks {names['n']} cudaDev {p.device} busId {names['bus']} - Destroy COMPLETE",
        )
