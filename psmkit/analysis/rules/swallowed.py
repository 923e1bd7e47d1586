"""Errors that a progress or service thread dropped: the communicator is not aborted, and the peers wait.

Every function of the library returns its error to the caller, but the loop of a progress thread is the last caller. If it
drops the error, the log shows a chain that starts in a transport and ends there, and no abort after it.
"""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.callers import callers
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of_thread
from psmkit.analysis.facts.once import once
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.faults import Cascade
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.waits import waits_for
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Ref
from psmkit.model import Finding, Severity

__all__ = ["find"]

_FILES = ("transport/", "transport.cc", "proxy.cc", "misc/socket.cc", "misc/ipcsocket.cc", "net_ib", "net.cc", "rma/")
#: Start-up tries networks and devices one after the other, and the error of a failed try is dropped on purpose.
_PROBES = (
    "net_ib/init.cc",
    "net_ib/gdr.cc",
    "ibvwrap",
    "gdrwrap",
    "nvmlwrap",
    "cudawrap",
    "plugin",
    "net_ib/common.cc",
)


@rule(order=110)
def find(job: Job) -> list[Finding]:
    """PSM404 for each process whose progress or service thread dropped an error."""
    out: list[Finding] = []
    done: set[int] = set()
    for cascade in faults.cascades(job):
        if cascade.proc in done or not _dropped(job, cascade):
            continue
        done.add(cascade.proc)
        out.append(_finding(job, cascade))
    return out


def _dropped(job: Job, cascade: Cascade) -> bool:
    if (
        not cascade.returned
        and cascade.severity == "error"
        and not cascade.survived
        and cascade.threads <= _progressing(job, cascade.proc)
    ):
        # the loop of a progress thread calls a transport directly, so not even a return code is printed
        return not _noticed(job, cascade)
    if not cascade.returned or cascade.reached_api or cascade.survived or cascade.severity in ("harmless", "info"):
        return False
    # a service that closes the connection of the asking rank has notified it
    if any(not k.chain and k.known is not None and k.known.finding == "PSM107" for k in cascade.kinds):
        return False
    names = [k.file for k in cascade.kinds if k.chain]
    # sockets silently return an internal error when the communicator aborts: nothing is lost then
    if cascade.first.chain and cascade.code == 3 and all("misc/socket.cc" in name for name in names):
        return False
    if not any(part in names[-1] for part in _FILES) or any(part in name for name in names for part in _PROBES):
        return False
    if not cascade.threads.isdisjoint(callers(job).get(cascade.proc, set())):
        return False
    # an unfinished init has not dropped anything: its own thread returns the error
    if not any(
        i.complete is not None and i.complete.seq < cascade.first.ref.seq
        for i in job.instances_of.get(cascade.proc, ())
    ):
        return False
    return not _noticed(job, cascade)


def _progressing(job: Job, proc: int) -> set[int]:
    """The threads of a process that drive its operations."""
    return _all_progressing(job).get(proc, set())


@once
def _all_progressing(job: Job) -> dict[int, set[int]]:
    out: dict[int, set[int]] = defaultdict(set)
    for event in job.events("proxy.thread.progress"):
        out[event.proc].add(event.thread)
    return dict(out)


def _noticed(job: Job, cascade: Cascade) -> bool:
    """Whether the process aborted, reported the failure or ended after it."""
    seq = cascade.end
    if _ends(job).get(cascade.proc, seq) > seq:
        return True
    return any(
        other is not cascade and other.reached_api and other.end > seq for other in faults.of_proc(job, cascade.proc)
    )


@once
def _ends(job: Job) -> dict[int, int]:
    """The last line of each process about an end of a communicator or of a thread."""
    out: dict[int, int] = {}
    for event in job.events("comm.end.", "comm.abort.", "comm.revoke.", "proxy.thread_result"):
        out[event.proc] = max(out.get(event.proc, 0), event.ref.seq)
    return out


def _finding(job: Job, cascade: Cascade) -> Finding:
    rank = job.rank_of_thread(cascade.first.event)
    first, *_, last = [cascade.first, *cascade.faults]
    where = faults.place(last.event) or "a transport"
    cause = "" if first.chain else f" after the warning: {faults.body(job, first.event)}"
    error = f"error {cascade.code}" if cascade.code is not None else "an error"
    # an error caused by a disconnected peer is dropped like any other, but the peer is the one to look at
    followed = cascade.own is False
    refs: list[Ref] = [first.ref, last.ref, *(w.refs[0] for w in waits_for(job, cascade.proc) if w.refs)]
    returned = f" with {cascade.code}" if cascade.code is not None else ""
    return new_finding(
        job,
        "PSM404",
        run=job.run_of(cascade.proc),
        title=f"{name_of_thread(job, first.event)} got {error} at {where} in a progress or service thread, and no line shows that it aborted",
        severity=Severity.WARNING if followed else Severity.ERROR,
        confidence=0.6 if followed else 0.85,
        explanation=(
            f"The thread returned through {where}{returned}{cause}. The chain ends there: no line shows that the thread reported the error to "
            "the communicator, and no abort follows. Then neither this rank nor its peers notice it."
        ),
        refs=list(dict.fromkeys(refs))[:6],
        ranks=[rank] if rank is not None else (),
        procs=[cascade.proc],
        culprits=[rank] if rank is not None and not followed else (),
        stage="error",
        known_issue=None if cascade.kept else "NVIDIA/nccl#1822",
    )
