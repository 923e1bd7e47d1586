"""Proxy services, fd exchanges and connections: the control plane of the simulated job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from psmkit.synth.dialects import Dialect
from psmkit.synth.sim import Fault, NcclFailureError, Process, Request, Simulation, Task, pointer

__all__ = ["Connections", "Plan"]

INIT, SETUP, CONNECT, REGISTER, DEREGISTER = 1, 3, 4, 11, 12  # as numbered from 2.23 on
_NAMES = {INIT: "Init", SETUP: "Setup", CONNECT: "Connect", REGISTER: "Register", DEREGISTER: "Deregister"}


@dataclass(frozen=True)
class Plan:
    """What the job does. ``work`` is "p2p" (all-to-all), "coll" or "both"; ``ahead`` is how many steps a rank may be before the slowest."""

    ranks: int = 4
    hosts: int = 1
    work: str = "p2p"
    steps: int = 3
    rounds: int = 0  # before all else of the work, each between two barriers
    channels: int = 2
    ahead: int = 2
    count: int = 65536
    reach: int = 0  # transfers go to so many next ranks, 0: to all
    split: int = 0  # size of child communicators that ranks work in besides the whole, 0: none
    register: bool = False  # buffers with the neighbour's proxy, released in the teardown
    teardown: bool = True
    pid: int = 6001
    environment: dict[str, str] = field(default_factory=dict)
    overrides: dict[int, dict[str, str]] = field(default_factory=dict)  # of one rank
    missing: frozenset[int] = frozenset()  # ranks that are never started
    host: str = "node"


class Connections(Simulation):
    """What the processes of a job are, and how they connect."""

    def __init__(self, dialect: Dialect, plan: Plan, seed: int = 1, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(dialect, seed, faults)
        self.plan = plan
        self.commid = self.random.getrandbits(63) | 1 << 62
        per_host = plan.ranks // plan.hosts
        self.processes = [
            Process(
                rank=self.rank_name(r),
                host=self.host_name(r // per_host),
                ip=self.address(r // per_host),
                pid=plan.pid + r % per_host,
                device=r % per_host,
                local=r % per_host,
                base=0x7F0000000000 + (self.random.getrandbits(20) << 20),
                ras_port=40001 + 317 * r + self.random.randrange(300),
            )
            for r in range(plan.ranks)
        ]
        self.cuts: list[
            int
        ] = []  # how many lines there were when all came to the begin of each round, and to the end of the last one
        self.stuck: int | None = None  # the step that the devices never finish
        self.comms = {p.rank: p.base + 0xA1010 for p in self.processes}
        self.hashes = [self.identity() for _ in self.processes]
        self.names: dict[int, dict[str, Any]] = {
            p.rank: {
                "comm": pointer(self.comms[p.rank]),
                "rank": p.rank,
                "n": plan.ranks,
                "dev": p.device,
                "bus": f"{(p.device + 1) * 0x10000:x}",
                "commid": hex(self.commid),
                "tag": f"[Rank {p.rank}] ",
            }
            for p in self.processes
        }

    # -- names

    def rank_name(self, rank: int) -> int:
        """A rank as its lines show it."""
        return rank

    def host_name(self, host: int) -> str:
        """A host, from 0."""
        return f"{self.plan.host}{host}"

    def address(self, host: int) -> str:
        """The IP address of a host."""
        return f"10.0.0.{1 + host}"

    def identity(self) -> int:
        """A random number of 64 bits that stands for something."""
        return self.random.getrandbits(64)

    # -- small parts

    def _all(self, mark: object) -> Callable[[], bool]:
        """True when every rank has come past ``mark``; the dead and the missing never do."""
        return lambda: self.marks.get(mark, 0) == len(self.processes)

    def _has(self, p: Process, mark: object) -> bool:
        return mark in p.done

    def _local(self, p: Process) -> list[Process]:
        return [q for q in self.processes if q.host == p.host]

    def setting(self, p: Process, name: str) -> str | None:
        return {**self.plan.environment, **self.plan.overrides.get(p.rank, {})}.get(name)

    def _env(self, p: Process, thread: str, *names: str) -> None:
        for name in names:
            value = self.setting(p, name)
            if value is not None:
                self.info(p, thread, f"{name} set by environment to {value}.")

    # -- proxy service

    def _service(self, p: Process) -> Task:
        d, t = self.dialect, "service"
        if d.ras:
            self.info(p, t, f"[Proxy Service] Device {p.device} CPU core {self.random.randrange(64)}")
        while True:
            p.idle = True
            yield lambda: bool(p.requests) or p.stopping
            if not p.requests:
                break
            p.idle = False
            request = p.requests.pop(0)
            kind = int(request.kind)
            name = _NAMES[kind]
            action = self.visit(f"service.{name}", p)
            if action == "swallow":  # the handler never comes back
                yield lambda: False
            if action == "begin":  # taken, left to be progressed, never done
                self.info(p, t, f"Received and initiated operation={name} res=0")
                continue
            self._handle(p, request, kind)
            if action == "error":
                self._fail(p, request, name)
                continue
            size = d.init_size if kind == INIT else request.detail.get("size", 0)
            buffer = 0 if request.detail.get("empty") else p.allocate("request", 0x30)
            slow = kind == CONNECT and self.random.random() < 0.2
            if slow:
                self.info(p, t, f"Received and initiated operation={name} res=0")
                yield None
            self.info(
                p,
                t,
                f"proxyProgressAsync opId={pointer(request.op)} op.type={kind} op.reqBuff={pointer(buffer)} op.respSize={size} done",
            )
            if buffer:
                p.release("request", buffer)
            if action != "mute":  # the answer is printed as sent, and lost
                request.answered = True
            if not slow:
                if self.random.random() < 0.3:
                    yield None
                self.info(p, t, f"Received and initiated operation={name} res=0")
            yield None
        for _ in range(len(p.clients)):
            if d.closes:
                self.info(p, t, f"[Service thread] Connection closed by localRank {p.local}")
            else:
                self.info(p, t, "Received and initiated operation=Close res=0")
            yield None
        self.info(p, t, "Received and initiated operation=Stop res=0")
        self.mark(p, "service gone")

    def _fail(self, p: Process, request: Request, name: str) -> None:
        d, t = self.dialect, "service"
        failure = d.cuda_failure.format(code=2, text="out of memory")
        self.warn(p, t, "transport/p2p.cc:241", failure, "p2pRecvProxySetup")
        self.chain(p, t, 1, "proxy.cc:1452 proxyProgressAsync")
        self.warn(
            p,
            t,
            "proxy.cc:1665",
            f"[Service thread] Error encountered progressing operation={name}, res=1, closing connection",
            "ncclProxyService",
        )
        request.failed = 1

    def _handle(self, p: Process, request: Request, kind: int) -> None:
        d, t = self.dialect, "service"
        caller: Process = request.caller
        if kind == INIT:
            if not p.connections and d.psm:
                self.info(p, t, f"Allocated 37749124 bytes of shared memory in /dev/shm/nccl-{self._name()}")
                self.info(p, "progress", f"[Proxy Progress] Device {p.device} CPU core {self.random.randrange(64)}")
            side = request.detail["side"]
            self.info(
                p,
                t,
                f"New proxy {side} connection {p.connections} from local rank {caller.local}, transport {d.transport}",
            )
            p.connections += 1
            p.clients.add(caller.rank)
        elif kind == SETUP and request.detail["side"] == "recv":
            ptr = p.allocate("device", 8 << 20)
            desc = p.allocate("desc", 0x50)
            request.detail["handle"] = desc + 0x50
            self.info(p, t, d.recv_setup[1].format(ptr=pointer(ptr), size=8388608, desc=pointer(desc)))
        elif kind == SETUP and d.psm:
            ptr = p.allocate("host", 2 << 20)
            handle = p.allocate("desc", 0x50)
            request.detail["handle"] = handle
            cumem = self.setting(p, "NCCL_CUMEM_HOST_ENABLE") != "0"
            if cumem:
                self.info(
                    p,
                    t,
                    f"CUMEM Host Alloc Size 2097152 pointer {pointer(ptr)} handle {handle:x} numa 0 dev {p.device} granularity 2097152",
                )
                self.info(p, t, f"CUMEM allocated shareable buffer {pointer(ptr)} size 8224")
            else:
                name = f"/dev/shm/nccl-{self._name()}"
                self.info(p, t, f"Allocated 8228 bytes of shared memory in {name}")
                self.info(p, t, f"MMAP allocated shareable host buffer {name} size 8224 ptr {pointer(ptr)}")

    def _name(self) -> str:
        return "".join(self.random.choice("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789") for _ in range(6))

    def _call(self, p: Process, thread: str, service: Process, kind: int, **detail: object) -> Task:
        op = p.allocate("op", 0x390)
        request = Request(p, op, str(kind), detail)
        service.requests.append(request)
        yield lambda: request.answered or bool(request.failed) or not service.alive
        if not request.answered:
            self.warn(
                p,
                thread,
                "misc/socket.cc:71",
                self.dialect.closed.format(host=service.host, port=50000 + service.local),
                "socketProgress",
            )
            self.chain(p, thread, 6, "misc/socket.cc:835 ncclSocketRecv")
            self.warn(
                p,
                thread,
                "proxy.cc:1269",
                f"Socket recv failed while polling for opId={pointer(op)}",
                "ncclPollProxyResponse",
            )
            raise NcclFailureError(3 if self.dialect.ras else 6)
        self.info(p, thread, f"ncclPollProxyResponse Received new opId={pointer(op)}")
        if self.random.random() < 0.5:
            yield None
        self.info(p, thread, self.dialect.matches.format(op=pointer(op)))
        p.release("op", op)
        return request

    def _proxy_connect(self, p: Process, thread: str, service: Process, side: str) -> Task:
        yield from self._call(p, thread, service, INIT, side=side)
        conn = service.base + 0xC10 + 0x78 * service.connections
        rank = service.rank if self.dialect.functions else service.local
        self.info(p, thread, self.dialect.connected.format(rank=rank, conn=pointer(conn)))

    # -- fd exchange over the Unix domain socket

    def _uds(self, p: Process) -> Task:
        t = "uds"
        if self.dialect.ras:
            self.info(p, t, f"[Proxy Service UDS] Device {p.device} CPU core {self.random.randrange(64)}")
        while True:
            yield lambda: bool(p.fd_requests) or p.stopping
            if not p.fd_requests:
                break
            request = p.fd_requests.pop(0)
            action = self.visit("uds", p)
            if action == "lose request":
                continue
            if action == "swap":  # two clients get each other's descriptor
                yield lambda: bool(p.fd_requests)
                request.detail, p.fd_requests[0].detail = p.fd_requests[0].detail, request.detail
            handle, op = request.detail["handle"], request.op
            self.info(
                p,
                t,
                f"proxyUDSRecvReq::ncclProxyMsgGetFd rank {request.caller.rank} opId {pointer(op)} handle={handle}",
            )
            if action == "lose answer":
                continue
            self.info(p, t, f"UDS proxyGetFd received handle {handle} peer {request.caller.rank} opId {op:x}")
            if action != "lose reply":
                request.answered = True
            yield None
        self.info(p, t, "[Proxy Service UDS] exit: stop 1 abortFlag 0")
        self.mark(p, "uds gone")

    def _get_fd(self, p: Process, thread: str, server: Process, handle: str) -> Task:
        op = self.identity()
        where = f"comm {pointer(self.comms[p.rank])} rank {p.rank} tpRank {server.rank}({self.hashes[server.rank]:x}) reqSize 8 respSize 0"
        self.info(p, thread, f"ProxyCall UDS {where} respFd {pointer(p.base + 0xEDA48)} opId {pointer(op)}")
        request = Request(p, op, "GetFd", {"handle": handle})
        server.fd_requests.append(request)
        self.visit("ask fd", p)
        # A lost answer is waited for until the end of days, even when the server is dead.
        yield lambda: request.answered
        fd = p.next_fd
        p.next_fd += 1
        self.info(p, thread, f"ProxyCall UDS {where} respFd {fd} opId {pointer(op)} - DONE")
        self.info(p, thread, self.dialect.get_fd.format(handle=handle, peer=server.rank, fd=fd))
        return fd

    # -- connections

    def _connect(self, p: Process, thread: str, what: str, to: list[int], frm: list[int], index: int) -> Task:
        """Set up and connect both directions, as ncclTransportP2pSetup does."""
        for send_to, recv_from in zip(to, frm, strict=True):
            for c in range(self.plan.channels):
                yield from self._setup(p, thread, "recv", recv_from, c, index, what)
            for c in range(self.plan.channels):
                yield from self._setup(p, thread, "send", send_to, c, index, what)
            self.mark(p, ("setup", what, send_to, recv_from))
            self.mark(p, ("setup send", what, send_to))
            self.mark(p, ("setup recv", what, recv_from))
        for send_to, recv_from in zip(to, frm, strict=True):
            sink, source = self.processes[send_to], self.processes[recv_from]
            yield partial(self._has, sink, ("setup recv", what, p.rank))
            for c in range(self.plan.channels):
                yield from self._join(p, thread, "send", sink, c, what)
            yield partial(self._has, source, ("setup send", what, p.rank))
            for c in range(self.plan.channels):
                yield from self._join(p, thread, "recv", source, c, what)
        self.mark(p, ("connected", what))
        self.visit("connected", p)
        yield self._all(("connected", what))

    def _setup(self, p: Process, thread: str, side: str, peer: int, channel: int, index: int, what: str) -> Task:
        d = self.dialect
        self.visit(f"setup {side}", p)
        if side == "send":
            q = self.processes[peer]
            ends = {"rank": p.rank, "dev": p.device, "bus": self.names[p.rank]["bus"]}
            ends |= {"peer": peer, "peer_dev": q.device, "peer_bus": self.names[peer]["bus"]}
            self.info(p, thread, d.channel.format(channel=channel, index=index, via=d.via, **ends))
        yield from self._proxy_connect(p, thread, p, side)
        # The send side of PSM answers its own bookkeeping, the recv side a buffer: sizes differ by role.
        size = 160 if d.psm and side == "send" else d.recv_setup[0]
        request = yield from self._call(p, thread, p, SETUP, side=side, size=size, empty=side == "send" and d.psm)
        p.handles[what, side, peer, channel] = pointer(request.detail.get("handle", p.base + 0x4A50))

    def _join(self, p: Process, thread: str, side: str, peer: Process, channel: int, what: str) -> Task:
        """Map what the peer shares; the send side of PSM tells its proxy with a Connect."""
        d = self.dialect
        other = "recv" if side == "send" else "send"
        handle = peer.handles[what, other, p.rank, channel]
        same_host = peer.host == p.host
        if d.uds and same_host and (side == "send" or d.psm):
            if peer.rank not in p.linked:
                yield from self._proxy_connect(p, thread, peer, "send")
                p.linked.add(peer.rank)
            if side == "send" and d.psm:
                self.info(p, thread, f"PSM:info->p2pBuff [ send ] = {pointer(peer.base + 0x6400000)}")
            fd = yield from self._get_fd(p, thread, peer, handle)
            action = self.visit("import", p)
            if action == "wait":
                yield lambda: False
            if side == "send":
                tag = "PSM:" if d.psm else ""
                self.info(p, thread, f"{tag}UDS converted handle {handle} to fd {fd} on remote peer {peer.rank}")
                if action == "fail":
                    self._import_failure(p, thread)
                if d.functions:
                    tag = "transport/p2p.cc:321 (ncclP2pImportShareableBuffer) "
                self.info(
                    p,
                    thread,
                    f"{tag}Imported shareable buffer device {p.device} size 8388608 ptr {pointer(p.allocate('device', 8 << 20))}",
                )
            else:
                if action == "fail":
                    self._import_failure(p, thread)
                ptr = pointer(p.allocate("host", 2 << 20))
                self.info(
                    p,
                    thread,
                    f"CUMEM imported shareable host buffer from proxyRank {peer.rank} size 8224 ptr {ptr}, granularity 2097152",
                )
        elif self.visit("import", p) == "fail":
            self._import_failure(p, thread)
        if d.psm:
            yield from self._call(p, thread, p, CONNECT, empty=side == "recv")

    def _import_failure(self, p: Process, thread: str) -> None:
        text = self.dialect.cuda_failure.format(code=2, text="out of memory")
        self.warn(p, thread, "transport/p2p.cc:292", text, "ncclP2pImportShareableBuffer")
        self.chain(
            p,
            thread,
            1,
            "transport/p2p.cc:352 p2pMap",
            "transport/p2p.cc:484 p2pSendConnect",
            "transport.cc:228 ncclTransportP2pSetup",
        )
        raise NcclFailureError(1)

    def _register(self, p: Process, thread: str) -> Task:
        peer = self._partner(p)
        for i in range(2):
            yield from self._register_buffer(p, thread, peer, p.base + 0x20000000 + (i << 21), i)

    def _partner(self, p: Process) -> Process:
        """The neighbour on the same host with which a process shares buffers; itself if there is none."""
        return next((q for q in self._local(p) if q.local == p.local ^ 1), p)

    def _register_buffer(self, p: Process, thread: str, peer: Process, base: int, i: int) -> Task:
        what = f"buffer {pointer(base)} size 65536 (baseAddr {pointer(base)} size 2097152) to peer {peer.rank}"
        self.info(p, thread, f"rank {p.rank} - IPC registering {what}")
        yield from self._call(p, thread, peer, REGISTER, size=8)
        remote = pointer(peer.base + 0x30000000 + (i << 21))
        self.info(p, thread, f"rank {p.rank} - IPC register {what} regAddr {remote} offsetOut 0")
        p.registered.append((pointer(base), peer.rank, remote))

    def _deregister(self, p: Process, thread: str) -> Task:
        for base, peer, remote in p.registered:
            if self.visit("deregister", p) == "forget":
                continue
            self.info(
                p, thread, f"rank {p.rank} - IPC deregistered buffer {base} peer {peer} ipc remote buffer {remote}"
            )
            yield from self._call(p, thread, self.processes[peer], DEREGISTER)

    def _async_connect(self, p: Process) -> Task:
        """The thread that a group call starts for new connections."""
        n = self.plan.ranks
        others = range(1, self.plan.reach + 1 if self.plan.reach else n)
        t = "async"
        self._env(p, t, "NCCL_PSM_P2P_NCHANNELS")
        try:
            yield from self._connect(
                p, t, "p2p", [(p.rank + i) % n for i in others], [(p.rank - i) % n for i in others], 1
            )
            self.mark(p, "async ok")
        except NcclFailureError as failure:
            self.chain(p, t, failure.code, "group.cc:133 ncclP2PPreconnectFunc")
            self.chain(p, t, failure.code, "group.cc:75 ncclAsyncJobMain", end=" [Async thread]")
            self.mark(p, ("async failed", failure.code))
