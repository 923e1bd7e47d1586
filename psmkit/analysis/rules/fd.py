"""File descriptors passed over a Unix domain socket: asked, received, answered, done.

Two processes print the four stages. The id is a random 64-bit number, so it alone identifies the exchange.
The missing stage identifies the side that lost it.
"""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, names_of, words
from psmkit.analysis.facts.places import no_log
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.sightings import by_run, untold
from psmkit.analysis.inference.waits import Wait, fd_wait
from psmkit.analysis.inference.waits import waits as waits_of
from psmkit.analysis.registry import rule
from psmkit.logparse.types import FdExchange, Ref
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]

_ISSUE = "NVIDIA/nccl#2379"


@rule(order=230)
def find(job: Job) -> list[Finding]:
    """PSM102 for exchanges that are proven lost and, as a warning, for the only open ones of ranks that stand still; else PSM701."""
    out = []
    lost: dict[tuple[int | None, str, int | None, int | None], list[tuple[FdExchange, Wait]]] = defaultdict(list)
    open_: dict[int | None, list[Wait]] = defaultdict(list)
    for fd in job.scan.fds:
        wait = fd_wait(job, fd)
        if wait is None:
            continue
        if wait.proven:
            lost[(wait.run, wait.stage, wait.target, wait.target_rank)].append((fd, wait))
        else:
            open_[wait.run].append(wait)
    for items in lost.values():
        out.append(_lost(job, items))
    for run, waits in open_.items():
        if run is not None and _alone(job, run, waits):
            out.append(_stands(job, run, waits))
            continue
        pairs = words([f"{_rank(w.rank)} asked {_rank(w.target_rank)}" for w in waits], 4)
        out.append(
            new_finding(
                job,
                "PSM701",
                run=run,
                title=f"the log ends with {counted(len(waits), 'open fd exchange')} ({pairs})",
                explanation="A log that was cut ends like this, too. No line shows how long the ranks waited.",
                refs=[ref for w in waits[:4] for ref in w.refs],
                procs=[p for w in waits for p in (w.waiter, w.target) if p is not None],
                stage="fd exchange",
            )
        )
    return [*out, *_reported(job)]


def _alone(job: Job, run: int, waits: list[Wait]) -> bool:
    """Whether nothing else is open while these exchanges are, on any rank. A log that is cut rarely ends like this."""
    procs = job.runs[run].procs
    started = {p for p in procs if p in job.instances_of}
    asking = {w.waiter for w in waits}
    if (
        len(started) < 3
        or len(asking) > max(1, len(started) // 4)
        or job.missing_ranks(run)
        or proof.of(job, run).failed
    ):
        return False
    if any(w.kind != "fd" and w.run == run for w in waits_of(job)) or any(
        call.state != "matched" and (call.caller in procs or call.service in procs) for call in job.scan.calls
    ):
        return False
    return all(job.scan.files[job.process(p).last.file].complete_end for p in started)


def _stands(job: Job, run: int, waits: list[Wait]) -> Finding:
    """The exchanges that are the only ones open, which is no proof of time."""
    first = waits[0]
    asked = f"{_rank(first.rank)} waits for a file descriptor from {_rank(first.target_rank)}"
    more = f" (and {counted(len(waits) - 1, 'more exchange')} like it)" if len(waits) > 1 else ""
    return new_finding(
        job,
        "PSM102",
        run=run,
        title=f'{asked}{more}: no line shows the step "{first.stage}", and nothing else is open on any rank',
        severity=Severity.WARNING,
        confidence=0.65,
        explanation="Every other exchange of the run is complete, so the other ranks may wait for this one. The log does not show how long the wait lasted.",
        refs=[ref for w in waits[:4] for ref in w.refs],
        procs=[p for w in waits for p in (w.target, w.waiter) if p is not None],
        ranks=sorted({r for w in waits for r in (w.rank, w.target_rank) if r is not None}),
        stage=f"fd {first.stage}",
        known_issue=_ISSUE,
    )


def _rank(rank: int | None) -> str:
    return "an unknown rank" if rank is None else f"rank {rank}"


def _lost(job: Job, items: list[tuple[FdExchange, Wait]]) -> Finding:
    items.sort(key=lambda item: -item[1].age)
    fd, wait = items[0]
    client = name_of(job, fd.client) if fd.client is not None else _rank(wait.rank)
    server = name_of(job, wait.target) if wait.target is not None else _rank(wait.target_rank)
    more = f", and {len(items) - 1} more like it" if len(items) > 1 else ""
    short = _rank(wait.target_rank) if wait.target_rank is not None else server
    # only the log of the service can show that it did not read the request
    blind = wait.target is None
    if wait.stage == "received":
        lacking = no_log(job, wait.run) if wait.run is not None else "its log was not given"
        what = f"no line shows that {short} received the request" + (f" ({lacking})" if blind else "")
        why = "The UDS service thread of that rank is stuck or gone, or the request was lost."
        culprit = wait.target_rank
    elif wait.stage == "answered":
        what = f"{short} received the request, and no line shows its answer"
        why = "The handler of the fd service did not finish: the export of the handle blocks, or it failed and the service dropped the error."
        culprit = wait.target_rank
    else:
        what = f"{short} answered, and no line shows that the descriptor arrived"
        why = "The answer was lost on the socket, or the thread that asked is stuck."
        culprit = wait.rank if _stopped(job, fd.client) else None
    step = (
        f"Take the stack of the UDS service thread of {server} (gdb, function ncclProxyServiceUDS)."
        if wait.stage != "done"
        else f"Take the stack of the thread of {client} in ncclIpcSocketRecvMsg (gdb), and look for sendmsg errors of {server}."
    )
    refs: list[Ref | None] = [r for _, w in items[:3] for r in w.refs]
    if wait.run is not None:
        refs += proof.of(job, wait.run).refs[:2]
    sure = proof.aged(wait.age, job.scan.totals.max_fd_age)
    return new_finding(
        job,
        "PSM102",
        run=wait.run,
        title=f"{client} waits for a file descriptor from {server} (opId 0x{fd.op:x}{more}): {what}",
        confidence=0.6 if blind else 0.9 if sure else 0.8,
        explanation=f"The log shows these stages: {_stages(fd)}. {why} {counted(wait.age, 'more line')} of this log {plural(wait.age, 'follows', 'follow')} the last of them.",
        next_step=f"{step} NCCL_CUMEM_ENABLE=0 avoids the exchange; compare with {_ISSUE}.",
        refs=refs,
        procs=[p for p in (wait.target, fd.client) if p is not None],
        ranks=sorted({r for _, w in items for r in (w.rank, w.target_rank) if r is not None}),
        culprits=[r for r in (culprit,) if r is not None and not blind],
        stage=f"fd {wait.stage}",
        known_issue=_ISSUE,
    )


def _stages(fd: FdExchange) -> str:
    seen = [name for name in ("asked", "received", "answered", "done") if getattr(fd, name) is not None]
    return words(seen)


def _stopped(job: Job, proc: int | None) -> bool:
    run = job.run_of(proc) if proc is not None else None
    return run is not None and proc in proof.of(job, run).suspects


def _reported(job: Job) -> list[Finding]:
    """Exchanges that failed with a message; the rule of errors reports those that ended the job."""
    out = []
    events = [e for e in untold(job, "PSM102")[0] if e.proc >= 0]
    for run, ours in by_run(job, events).items():
        if run is not None and proof.done(job, run):
            continue
        procs = sorted({e.proc for e in ours})
        out.append(
            new_finding(
                job,
                "PSM102",
                run=run,
                title=f"an fd exchange of {names_of(job, procs)} failed",
                confidence=0.7,
                explanation="A rank reports that a request for a file descriptor failed, or the socket that carries it.",
                refs=[e.ref for e in ours[:6]],
                procs=procs,
                stage="fd exchange",
                known_issue=_ISSUE,
            )
        )
    return out
