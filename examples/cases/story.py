"""Logs from stories: ``python examples/cases/story.py FOLDER`` prints the log of a case.

A story is a text. Its first lines set the scene (``nccl VERSION``, ``ranks N``, ``hosts N``); each other line says who does what::

    all starts
    all begins                      # communicator "world"; "all begins tp" another one, of the ranks that say so
    4   missing in tp               # a member of it that prints nothing
    0-2 calls AllReduce 1024 x3
    3   warns proxy.cc:1665 text
    -   prints what the launcher says

Who is ``all``, a rank, ``0,2``, ``0-3`` or ``all-3`` (all but rank 3). ``{rank}``, ``{host}``, ``{pid}``, ``{ip}`` and ``{dev}`` in a text are the
speaker's; ``{ip:3}`` is that of rank 3. Formats are those of NCCL; names, addresses and numbers are made up.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

__all__ = ["Story", "tell"]

_KINDS = {"Init": 1, "SharedInit": 2, "Setup": 3, "Connect": 4, "Register": 11}


class Story:
    """The state of a job while its log is written: lines, communicators, counters."""

    def __init__(self) -> None:
        self.version, self.ranks, self.hosts = "2.27.7+cuda12.9", 4, 1
        self.lines: list[str] = []
        self.comms: dict[str, list[int]] = {}
        self.counts: dict[tuple[int, str], int] = {}
        self.ops: dict[int, int] = {}

    # -- names

    def who(self, text: str) -> list[int]:
        """The ranks that ``all``, ``all-3``, ``0,2`` or ``0-3`` stand for."""
        if text.startswith("all"):
            return [r for r in range(self.ranks) if text == "all" or r not in self.who(text.removeprefix("all-"))]
        found: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
        return found

    def names(self, rank: int) -> dict[str, object]:
        """What ``{...}`` in a text of a rank stands for."""
        local = self.ranks // self.hosts
        return {
            "rank": rank,
            "dev": rank % local,
            "host": f"node{rank // local}",
            "ip": f"10.0.0.{1 + rank // local}",
            "pid": 7001 + 40 * (rank % local),
        }

    def fill(self, rank: int | None, text: str) -> str:
        """A text with its names."""

        def value(match: re.Match[str]) -> str:
            key, _, other = match[1].partition(":")
            of = int(other) if other else rank
            return str(self.names(of)[key]) if of is not None else match[0]

        return re.sub(r"\{(\w+(?::\d+)?)\}", value, text)

    def address(self, rank: int, name: str = "world") -> str:
        """The communicator of a rank as a pointer."""
        return hex(0x7F0000000000 + rank * 0x4000000 + 0xA1000 + 0x10000 * list(self.comms).index(name))

    def identity(self, rank: int, name: str) -> str:
        """``comm 0x.. rank .. nranks ..`` and so on."""
        members, dev = self.comms[name], self.names(rank)["dev"]
        where = f"comm {self.address(rank, name)} rank {members.index(rank)} nranks {len(members)}"
        return f"{where} cudaDev {dev} nvmlDev {dev} busId {int(str(dev)) + 1}0000 commId 0x{0x5EED0000 + sum(name.encode()):x}"

    # -- printing

    def info(self, rank: int, text: str, thread: int = 0) -> None:
        """An INFO line of a rank."""
        n = self.names(rank)
        self.lines.append(
            f"{n['host']}:{n['pid']}:{int(str(n['pid'])) + thread} [{n['dev']}] NCCL INFO {self.fill(rank, text)}"
        )

    def warn(self, rank: int, where: str, text: str, thread: int = 0) -> None:
        """A WARN line of a rank, with the empty line before it."""
        n = self.names(rank)
        place = f"{n['host']}:{n['pid']}:{int(str(n['pid'])) + thread} [{n['dev']}]"
        self.lines += ["", f"{place} {where} NCCL WARN {self.fill(rank, text)}"]

    # -- verbs: what a rank does; each gets the rest of its line

    def starts(self, rank: int, rest: str) -> None:
        for text in (
            "cudaDriverVersion 12090",
            "Bootstrap: Using eth0:{ip}<0>",
            f"NCCL version {self.version}",
            "NET/Socket : Using [0]eth0:{ip}<0>",
            "Using network Socket",
        ):
            self.info(rank, text)

    def begins(self, rank: int, rest: str) -> None:
        self.info(rank, f"ncclCommInitRankConfig {self.identity(rank, rest or 'world')} - Init START")

    def rings(self, rank: int, rest: str) -> None:
        n = self.ranks
        self.info(rank, f"Ring 00 : {(rank - 1) % n} -> {rank} -> {(rank + 1) % n}")

    def completes(self, rank: int, rest: str) -> None:
        self.info(rank, f"ncclCommInitRankConfig {self.identity(rank, rest or 'world')} - Init COMPLETE")

    def ends(self, rank: int, rest: str) -> None:
        identity = re.sub(r" nvmlDev \d+| commId \S+", "", self.identity(rank, rest or "world"))
        self.info(rank, f"{identity} - Destroy COMPLETE", 9)

    def leaves(self, rank: int, rest: str) -> None:
        """``leaves by Abort [of COMM]``, ``leaves by Revoke``: what NCCL 2.28 and later print when the call begins and when it ends."""
        _, how, *more = rest.split()
        self._left(rank, how, "START", more[-1] if more else "world")
        self._left(rank, how, "COMPLETE", more[-1] if more else "world")

    def tries(self, rank: int, rest: str) -> None:
        """``tries to Abort [of COMM]``: the beginning only."""
        _, how, *more = rest.split()
        self._left(rank, how, "START", more[-1] if more else "world")

    def _left(self, rank: int, how: str, step: str, comm: str) -> None:
        identity = re.sub(r" nvmlDev \d+| commId \S+", "", self.identity(rank, comm))
        if how == "Revoke":
            text = f"{identity.replace('nranks', 'nRanks')} - Revoke {step}"
            return self.info(rank, text + (", result 0" if step == "COMPLETE" else ""))
        if step == "START":
            return self.info(rank, f"{identity.replace('nranks', 'nRanks')} - Abort START")
        return self.info(rank, f"{identity} - Abort COMPLETE", 9)

    def shrinks(self, rank: int, rest: str) -> None:
        """``shrinks world to small``: begins a communicator out of another one; ``shrunk world to small`` completes it."""
        self._child(rank, "ncclCommShrink", rest, "- Init START")

    def shrunk(self, rank: int, rest: str) -> None:
        self._child(rank, "ncclCommShrink", rest, " - Init COMPLETE")

    def _child(self, rank: int, function: str, rest: str, end: str) -> None:
        parent, _, child = rest.split()
        identity = self.identity(rank, child).partition(" commId ")[0]
        key = self.comms[parent].index(rank)
        self.info(
            rank, f"{function} {identity} parent {self.address(rank, parent)} childCount 0 color 0 key {key}{end}"
        )

    def grows(self, rank: int, rest: str) -> None:
        """``grows world to big``: a rank of ``world`` or a new one begins the larger communicator."""
        parent, _, child = rest.split()
        kind = "existing" if rank in self.comms.get(parent, ()) else "new"
        self.info(
            rank, f"ncclCommGrow: {kind} rank creating new communicator with {len(self.comms[child])} total ranks"
        )
        shown = f"[Rank {self.comms[child].index(rank)}] ncclCommGrow {self.identity(rank, child)}"
        self.info(rank, f"{shown} - Init START")

    def grown(self, rank: int, rest: str) -> None:
        """``grown world to big``: it is complete."""
        parent, _, child = rest.split()
        if rank in self.comms.get(parent, ()):
            return self._child(rank, "ncclCommGrow", rest, " - Init COMPLETE")
        return self.info(rank, f"ncclCommGrow {self.identity(rank, child)} - Init COMPLETE")

    def calls(self, rank: int, rest: str) -> None:
        """``calls AllReduce 1024 [x3] [of COMM]``"""
        name, count, *more = rest.split()
        times = next((int(m[1:]) for m in more if m.startswith("x")), 1)
        comm = more[more.index("of") + 1] if "of" in more else "world"
        for _ in range(times):
            self._enqueue(rank, name, count, 0, comm)

    def sends(self, rank: int, rest: str) -> None:
        """``sends COUNT to PEER [x3] [of COMM]``"""
        self._transfer(rank, "Send", rest)

    def receives(self, rank: int, rest: str) -> None:
        """``receives COUNT from PEER [x3] [of COMM]``"""
        self._transfer(rank, "Recv", rest)

    def _transfer(self, rank: int, name: str, rest: str) -> None:
        count, _, peer, *more = rest.split()
        comm = more[more.index("of") + 1] if "of" in more else "world"
        for _ in range(next((int(m[1:]) for m in more if m.startswith("x")), 1)):
            self._enqueue(rank, name, count, self.comms[comm].index(int(peer)), comm)

    def _enqueue(self, rank: int, name: str, count: str, root: int, comm: str) -> None:
        at = self.counts[rank, comm] = self.counts.get((rank, comm), -1) + 1
        n = len(self.comms[comm])
        shown = at if self.hosts > 1 else 0
        self.info(
            rank,
            f"{name}: opCount {shown:x} sendbuff 0x7f4000000000 recvbuff 0x7f4000200000 count {count} datatype 7 op 0 root {root} "
            f"comm {self.address(rank, comm)} [nranks={n}] stream 0x55d0c0de0140",
        )

    def proxies(self, rank: int, rest: str) -> None:
        """``proxies Setup``: a call of its own proxy, answered. ``proxies Setup unanswered``: taken, and never answered."""
        kind, *more = rest.split()
        op = hex(0x7F2000000000 + rank * 0x100000 + 0x400 * self.ops.setdefault(rank, 0))
        self.ops[rank] += 1
        size = {"Init": 16, "Setup": 88}.get(kind, 0)
        if kind == "Init":
            self.info(rank, f"New proxy send connection {self.ops[rank]} from local rank {{dev}}, transport 0", 4)
        if more:
            return self.info(rank, f"Received and initiated operation={kind} res=0", 4)
        self.info(
            rank,
            f"proxyProgressAsync opId={op} op.type={_KINDS[kind]} op.reqBuff=0x7f2100000330 op.respSize={size} done",
            4,
        )
        self.info(rank, f"Received and initiated operation={kind} res=0", 4)
        self.info(rank, f"ncclPollProxyResponse Received new opId={op}")
        self.info(rank, f"resp.opId={op} matches expected opId={op}")
        if kind == "Init":
            self.info(rank, f"Connected to proxy localRank {{dev}} -> connection 0x7f2200000c{rank:x}8")
        return None

    def asks(self, rank: int, rest: str) -> None:
        """``asks 1 for 0x50 as 0xabc``: requests a file descriptor from rank 1."""
        self.info(rank, self._fd(rank, rest, "0x7f23000ed048"))

    def hears(self, rank: int, rest: str) -> None:
        """``hears 0 for 0x50 as 0xabc``: the service of this rank takes the request of rank 0."""
        peer, _, handle, _, op = rest.split()
        self.info(rank, f"proxyUDSRecvReq::ncclProxyMsgGetFd rank {peer} opId {op} handle={handle}", 6)

    def answers(self, rank: int, rest: str) -> None:
        """``answers 0 for 0x50 as 0xabc``: it sends the descriptor."""
        peer, _, handle, _, op = rest.split()
        self.info(rank, f"UDS proxyGetFd received handle {handle} peer {peer} opId {op.removeprefix('0x')}", 6)

    def gets(self, rank: int, rest: str) -> None:
        """``gets 1 for 0x50 as 0xabc``: the descriptor of rank 1 has arrived."""
        peer, _, handle, _, _ = rest.split()
        self.info(rank, self._fd(rank, rest, "57") + " - DONE")
        self.info(rank, f"UDS: ClientGetFd handle {handle} tpRank {peer} returned fd 57 sameProcess 0")

    def _fd(self, rank: int, rest: str, fd: str) -> str:
        peer, _, _, _, op = rest.split()
        here = f"comm {self.address(rank)} rank {rank} tpRank {peer}(9d8c7b6a5f4e{int(peer):04x})"
        return f"ProxyCall UDS {here} reqSize 8 respSize 0 respFd {fd} opId {op}"

    def says(self, rank: int, rest: str) -> None:
        self.info(rank, rest)

    def notes(self, rank: int, rest: str) -> None:
        """As ``says``, from the progress thread."""
        self.info(rank, rest, 8)

    def warns(self, rank: int, rest: str) -> None:
        where, _, text = rest.partition(" ")
        self.warn(rank, where, text, 4)

    def alerts(self, rank: int, rest: str) -> None:
        """As ``warns``, from the progress thread."""
        where, _, text = rest.partition(" ")
        self.warn(rank, where, text, 8)

    def fails(self, rank: int, rest: str) -> None:
        """``fails CODE place place``: the chain of an error, innermost first."""
        code, *places = rest.split()
        for place in places:
            self.info(rank, f"{place} -> {code}")

    def times(self, rank: int, rest: str) -> None:
        """``times out ALLREDUCE 7 [of 9]``: PyTorch's watchdog gives up on operation 7, with 9 enqueued."""
        _, op, seq, *more = rest.split()
        head = f"[rank{rank}]:[E1121 01:45:22.{100 + rank}408271 ProcessGroupNCCL.cpp"
        work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000)"
        self.lines.append(
            f"{head}:629] [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600010 milliseconds before timing out."
        )
        last = f"last enqueued NCCL work: {more[1] if more else seq}, last completed NCCL work: {int(seq) - 1}."
        self.lines.append(
            f"{head}:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {seq}, {last}"
        )

    def listens(self, rank: int, rest: str) -> None:
        """The socket of its RAS thread."""
        self.info(rank, f"RAS network listening socket at {{ip}}<{40001 + rank}>", 7)

    def misses(self, rank: int, rest: str) -> None:
        """``misses 3 5s``, ``misses 3 20s``: RAS hears nothing from rank 3."""
        peer, time = rest.split()
        kind = "error" if time == "20s" else "warning"
        self.info(
            rank,
            f"RAS keep-alive timeout {kind} ({time}) on socket connection with {{ip:{peer}}}<{40001 + int(peer)}>",
            7,
        )

    def stands(self, rank: int, rest: str) -> None:
        """``stands poll (libc.so.6); f (a.cc:9)``: what py-spy shows of its main thread, the innermost frame first."""
        pid = self.names(rank)["pid"]
        self.lines += [
            f"Process {pid}: python train.py",
            "Python v3.11.4 (/usr/bin/python3.11)",
            "",
            f'Thread {pid} (active): "MainThread"',
            *(f"    {frame.strip()}" for frame in rest.split(";")),
            "",
        ]

    def prints(self, rank: int | None, rest: str) -> None:
        self.lines.append(self.fill(rank, rest))

    # -- telling

    def _join(self, who: str, _: str, comm: str = "world") -> None:
        self.comms[comm] = sorted({*self.comms.get(comm, ()), *self.who(who)})

    def tell(self, text: str) -> str:
        """The log of a story."""
        self.ranks = next((int(n) for n in re.findall(r"^ranks (\d+)$", text.strip(), re.MULTILINE)), self.ranks)
        told = [re.sub(r"\s\s+# .*", "", line).strip() for line in text.splitlines()]
        for line in told:
            # who is in a communicator is known before the first of them says so
            verb = line.split()[1:2]
            if verb == ["begins"]:
                self._join(*line.split(None, 2))
            elif verb in (["shrinks"], ["grows"], ["missing"]):
                self._join(line.split()[0], "", line.split()[-1])
        for line in filter(None, told):
            first, verb, rest = [*line.split(None, 2), "", ""][:3]
            if verb == "missing":
                continue
            if first in ("nccl", "ranks", "hosts"):
                setattr(self, "version" if first == "nccl" else first, verb if first == "nccl" else int(verb))
                continue
            if first == "-":
                self.prints(None, rest)
                continue
            for rank in self.who(first):
                getattr(self, verb)(rank, rest)
        return "\n".join(self.lines) + "\n"


def tell(folder: Path) -> str:
    """The log of the case in ``folder``."""
    return Story().tell(tomllib.loads((folder / "case.toml").read_text())["story"])


if __name__ == "__main__":
    sys.stdout.write(tell(Path(sys.argv[1])))
