"""A scan made by hand: what the rules of an analysis see, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from psmkit.analysis.facts.job import Job, make_job
from psmkit.logparse.tables import Counts, Events, ScanData, Threads
from psmkit.logparse.types import (
    Call,
    CommInstance,
    Event,
    FdExchange,
    LedgerEntry,
    MessageCount,
    PairQueue,
    Process,
    Ref,
    SeqDivergence,
    SeqGroup,
    SeqRank,
    ServiceTally,
    SourceFile,
    Thread,
    Totals,
)
from psmkit.model import Evidence

__all__ = ["Scan"]


class Scan:
    """One stream by default; ``file()`` begins another. Every line that is added is the newest of its stream."""

    def __init__(self) -> None:
        self.files: list[SourceFile] = []
        self.texts: list[list[str]] = []
        self.processes: list[Process] = []
        self.threads: list[Thread] = []
        self.events: list[Event] = []
        self.counts: list[MessageCount] = []
        self.calls: list[Call] = []
        self.fds: list[FdExchange] = []
        self.instances: list[CommInstance] = []
        self.groups: list[SeqGroup] = []
        self.pairs: list[PairQueue] = []
        self.ledger: list[LedgerEntry] = []
        self.services: list[ServiceTally] = []
        self.totals = Totals()
        self.file()

    def file(self, path: str = "", complete: bool = True) -> int:
        number = len(self.files)
        self.files.append(SourceFile(path or f"log{number}", number, 0, 0, complete))
        self.texts.append([])
        return number

    def proc(
        self, rank: int = 0, *, host: str = "h", pid: int | None = None, tag: str | None = None, incarnation: int = 0
    ) -> int:
        """A process in the newest file, with its main thread."""
        index = len(self.processes)
        stream = len(self.files) - 1
        pid = pid if pid is not None else 100 + rank
        here = self._ref(stream, f"{host}:{pid}:{pid} [{rank}] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>")
        self.processes.append(Process(index, stream, tag, host, pid, incarnation, 1, here, here, 1))
        self.threads.append(Thread(index, pid, 1, here, here, "bootstrap.using"))
        return index

    def _ref(self, stream: int, text: str) -> Ref:
        lines = self.texts[stream]
        lines.append(text)
        return Ref(stream, len(lines), sum(len(t) + 1 for t in lines[:-1]), len(lines))

    def ref(self, proc: int, text: str, name: str = "", thread: int | None = None) -> Ref:
        """A line of a process."""
        process = self.processes[proc]
        at = thread if thread is not None else next(i for i, t in enumerate(self.threads) if t.proc == proc)
        tid = self.threads[at].tid
        here = self._ref(process.stream, f"{process.host}:{process.pid}:{tid} [0] NCCL INFO {text}")
        self.processes[proc] = replace(process, last=here, lines=process.lines + 1)
        self.threads[at] = replace(
            self.threads[at], last=here, lines=self.threads[at].lines + 1, last_name=name or None
        )
        return here

    def thread(self, proc: int, tid: int) -> int:
        here = self.processes[proc].last
        self.threads.append(Thread(proc, tid, 0, here, here, None))
        return len(self.threads) - 1

    def event(
        self,
        proc: int,
        name: str,
        text: str = "",
        /,
        *,
        level: str = "INFO",
        count: int = 1,
        thread: int | None = None,
        **fields: Any,
    ) -> Event:
        at = thread if thread is not None else next(i for i, t in enumerate(self.threads) if t.proc == proc)
        ref = self.ref(proc, text or name, name, at)
        event = Event(name, level, proc, at, 0, ref, fields, self.processes[proc].stream, count)
        self.events.append(event)
        self.counts.append(MessageCount(name, proc, count, ref, ref))
        return event

    def noise(self, proc: int, lines: int) -> None:
        """Lines of a process that mean nothing."""
        for number in range(lines):
            self.ref(proc, f"noise {number}")

    def comm(
        self,
        procs: Mapping[int, int] | list[int],
        *,
        nranks: int | None = None,
        complete: bool = True,
        end: bool = False,
        ops: Mapping[int, int] | int = 0,
        last: Mapping[str, Any] | None = None,
        divergence: SeqDivergence | None = None,
        bus: Mapping[int, str] | None = None,
        commid: int | None = None,
    ) -> int:
        """A communicator of processes by rank. ``ops`` are its collectives, by rank where they differ."""
        members = procs if isinstance(procs, Mapping) else dict(enumerate(procs))
        group = len(self.groups)
        size = nranks if nranks is not None else len(members)
        ranks = []
        for rank, proc in members.items():
            start = self.event(proc, "comm.start", "comm - Init START", comm=1, rank=rank, nranks=size).ref
            done = self.event(proc, "comm.complete", "comm - Init COMPLETE").ref if complete else None
            number = ops if isinstance(ops, int) else ops.get(rank, 0)
            op = self.ref(proc, f"AllReduce: opCount {number}", "coll.call") if number else None
            ended = self.event(proc, "comm.end.destroy", "comm - Destroy COMPLETE").ref if end else None
            self.instances.append(
                CommInstance(
                    len(self.instances), proc, 0x7F00 + proc, rank, size, group, commid or 0xABC0 + group, False, rank,
                    (bus or {}).get(rank, f"{(rank + 1) * 0x10000:x}"), start, done, ended, number, 0, 0, op,
                )
            )  # fmt: skip
            called = dict(last or {"coll": "AllReduce", "count": 4, "datatype": 7, "op": 0, "root": 0})
            ranks.append(SeqRank(len(self.instances) - 1, rank, number, op, called if number else None))
        least = min(r.ops for r in ranks)
        self.groups.append(SeqGroup(group, commid or 0xABC0 + group, size, least, tuple(ranks), divergence))
        return group

    def job(self) -> Job:
        self.totals.lines = sum(len(t) for t in self.texts)
        files = [replace(f, lines=len(t)) for f, t in zip(self.files, self.texts, strict=True)]
        data = ScanData(
            files, self.processes, Threads.listed(self.threads), Events.listed(self.events), Counts.listed(self.counts), self.calls, self.fds, self.instances, self.groups,
            self.pairs, self.ledger, [], self.totals, self.services,
        )  # fmt: skip
        return make_job(
            data, lambda ref: Evidence(self.files[ref.file].path, ref.line, self.texts[ref.file][ref.line - 1])
        )
