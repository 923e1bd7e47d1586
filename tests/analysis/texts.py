"""Small logs in the words of NCCL, written rank by rank, and what the rules say of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from psmkit.analysis.facts.job import Job, make_job
from psmkit.analysis.pipeline import analyze
from psmkit.logparse import scan
from psmkit.model import Finding, Report, Severity

__all__ = ["Rank", "analyzed", "find", "first_error", "job_of", "of", "ranks", "report_of", "serious", "watchdog"]

_COMMID = "0x5c2b7a1e9d3f4680"
_THREADS = {"main": 0, "ras": 4, "service": 5, "uds": 6, "progress": 7, "async": 9}


@dataclass
class Rank:
    """One rank's log. Threads are named; RAS threads print device 0 whatever the rank's is."""

    rank: int
    nranks: int = 4
    host: str = "node0"
    lines: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return 7001 + 100 * self.rank

    @property
    def comm(self) -> str:
        return f"0x55d0c0{self.rank:02d}a000"

    def line(self, text: str, thread: str = "main", level: str = "INFO", where: str = "", time: str = "") -> Rank:
        device = 0 if thread == "ras" else self.rank
        stamp = f"[{time}] " if time else ""
        place = f"{where} " if where else ""
        if level == "WARN":
            self.lines.append("")
        self.lines.append(
            f"{stamp}{self.host}:{self.pid}:{self.pid + _THREADS[thread]} [{device}] {place}NCCL {level} {text}"
        )
        return self

    def warn(self, where: str, text: str, thread: str = "main", time: str = "") -> Rank:
        return self.line(text, thread, "WARN", where, time)

    def chain(self, code: int, *places: str, thread: str = "main") -> Rank:
        """Steps of a chain of returns, given as ``file.cc:NNN`` or ``file.cc:NNN (function)``."""
        for place in places:
            self.line(f"{place} -> {code}", thread)
        return self

    def fail(self, code: int, thread: str = "async") -> Rank:
        """The end of a chain: the async job and the group that waits for it."""
        self.chain(code, "group.cc:133", thread=thread)
        self.line(f"group.cc:75 -> {code} [Async thread]", thread)
        return self.chain(code, "group.cc:422", "group.cc:106")

    def born(self) -> Rank:
        self.line("Bootstrap: Using eth0:10.0.0.1<0>")
        self.line(f"RAS network listening socket at {self.address}")
        return self.line("cudaDriverVersion 12080")

    @property
    def address(self) -> str:
        """Where the RAS thread listens."""
        return f"10.0.0.1<{40000 + self.rank}>"

    def _member(self) -> str:
        return f"ncclCommInitRankConfig comm {self.comm} rank {self.rank} nranks {self.nranks} cudaDev {self.rank} nvmlDev {self.rank} busId {self.rank + 1}000 commId {_COMMID}"

    def start(self) -> Rank:
        return self.born().line(f"{self._member()} - Init START")

    def complete(self) -> Rank:
        return self.line(f"{self._member()} - Init COMPLETE")

    def ready(self) -> Rank:
        return self.start().complete()

    def work(self, times: int = 1, counting: bool = False) -> Rank:
        """Collectives; with ``counting`` opCount rises, as up to 2.26."""
        for n in range(times):
            self.line(
                f"AllReduce: opCount {n if counting else 0:x} sendbuff 0x7f1000000000 recvbuff 0x7f1000400000 count 1024 datatype 7 op 0 root 0 comm {self.comm} [nranks={self.nranks}] stream 0x55d0d0000000"
            )
        return self

    def destroy(self) -> Rank:
        return self.line(
            f"comm {self.comm} rank {self.rank} nranks {self.nranks} cudaDev {self.rank} busId {self.rank + 1}000 - Destroy COMPLETE"
        )

    def abort(self) -> Rank:
        return self.line(
            f"comm {self.comm} rank {self.rank} nranks {self.nranks} cudaDev {self.rank} busId {self.rank + 1}000 - Abort COMPLETE"
        )

    def ras_peers(self) -> Rank:
        for peer in range(self.nranks):
            here = " [this process]" if peer == self.rank else ""
            self.line(
                f"RAS peer {peer}: socket 10.0.0.1<{40000 + peer}>, pid {7001 + 100 * peer}, GPU {peer}{here}", "ras"
            )
        return self


def ranks(n: int = 4) -> list[Rank]:
    """``n`` ranks of one communicator, ready to work."""
    return [Rank(r, n).ready() for r in range(n)]


def job_of(tmp_path: Path, logs: Iterable[Rank], merged: bool = False) -> Job:
    """The job of these logs: one file a rank, or all in one file, rank after rank."""
    folder = tmp_path / "logs"
    folder.mkdir()
    if merged:
        (folder / "job.log").write_text("".join(line + "\n" for log in logs for line in log.lines))
    else:
        for log in logs:
            (folder / f"nccl.rank{log.rank}.log").write_text("".join(line + "\n" for line in log.lines))
    return make_job(scan([str(folder)]))


def analyzed(folder: Path, job: str | None = None, **more: str) -> Report:
    """The report on a folder with these logs by their names; ``job`` is job.log."""
    texts = more if job is None else {"job": job, **more}
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text)
    return analyze([folder])


def first_error(folder: Path, log: str) -> Finding:
    """The first error in the report on one log."""
    return next(f for f in analyzed(folder, log).findings if f.severity is Severity.ERROR)


def expect_step(folder: Path, log: str, words: Iterable[str], not_words: Iterable[str]) -> None:
    """The next step of the first error has all these words, and none of those."""
    step = first_error(folder, log).next_step
    assert all(word in step for word in words), step
    assert not any(word in step for word in not_words), step


def states(report: Report) -> dict[int | None, str]:
    """The state of each process by its pid."""
    return {row.pid: row.state for row in report.ranks}


def report_of(tmp_path: Path, logs: Iterable[Rank], launcher: str = "", catalogue: Sequence[Path] = ()) -> Report:
    """The report on these logs, one file a rank, and on what the launcher printed."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for log in logs:
        (folder / f"nccl.rank{log.rank}.log").write_text("".join(line + "\n" for line in log.lines))
    if launcher:
        (folder / "launcher.log").write_text(launcher)
    return analyze([folder], catalogue=catalogue)


def watchdog(*reporters: int, seq: int = 3) -> str:
    """What torch prints when a collective times out, for each of these ranks."""
    return "".join(
        f"[rank{r}]:[E1121 01:40:00.000000000 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600010 milliseconds "
        "before timing out.\n"
        for r in reporters
    )


def find(rule: str, tmp_path: Path, logs: Iterable[Rank], merged: bool = False) -> list[Finding]:
    """What a rule module finds in these logs; ``one+other`` are two modules."""
    job = job_of(tmp_path, logs, merged)
    modules = [importlib.import_module(f"psmkit.analysis.rules.{name}") for name in rule.split("+")]
    found = [f for module in modules for f in module.find(job)]
    assert all(isinstance(f, Finding) for f in found)
    return found


def of(found: Iterable[Finding], code: str) -> list[Finding]:
    return [f for f in found if f.code == code]


def serious(found: Iterable[Finding]) -> list[Finding]:
    """Findings that are more than a remark."""
    return [f for f in found if f.severity is not Severity.INFO]
