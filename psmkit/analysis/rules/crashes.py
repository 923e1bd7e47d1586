"""Processes that died: the signal, the place, and whether the death is an origin or a consequence.

A launcher ends the remaining ranks after one failed, and a watchdog ends its own process after a timeout: such deaths are
consequences. The others are crashes.
"""

from __future__ import annotations

import bisect
import heapq
import signal as signals
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.deaths import FAULTS, Death, collect, signal_name
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, ranks_text
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity

__all__ = ["find"]

# After these a process deliberately ends itself with SIGABRT or an exit code.
_GIVES_UP = (
    "torch.watchdog.timeout",
    "torch.watchdog.terminated",
    "torch.watchdog.cuda_error",
    "torch.failed_or_timed_out",
    "torch.taking_down",
    "torch.heartbeat.",
    "torch.nccl_error",
    "torch.async_error",
    "torch.store.timeout",
    "torch.barrier.monitored",
    "torch.fingerprint.mismatch",
    "nccltests.failure",
)
# Xid numbers after which the GPU or its link is suspect, and those that an application's own fault raises.
_HARD_XIDS = frozenset(
    {48, 62, 64, 74, 79, 92, 94, 95, 109, 119, 120, 121, 136, 137, 140, 143, 144, 145, 149, 150, 154}
)
_OWN_XIDS = frozenset({13, 31, 32, 43, 68, 69})
# Functions of the C library that raise and handle a signal.
_C_LIBRARY = ("sigaction", "killpg", "gsignal", "raise", "abort", "funlockfile", "pthread_", "restore_rt")
# This many lines of a process after an exception show that it continued.
_WENT_ON = 20
# The exception's text is at most this far below the head of its traceback, with lines of other ranks in between.
_STACK_LINES = 400


@rule(order=30)
def find(job: Job) -> list[Finding]:
    """Deaths of ranks, GPU errors, uncaught exceptions, and who ended the job."""
    out: list[Finding] = []
    for run in _runs(job):
        deaths = collect(job, run)
        raised = _raised(job, run)
        for death in deaths:
            # torchrun and srun give the exit code; the traceback gives the reason.
            if death.code is not None and death.where is None:
                event = raised.get(death.rank, raised.get(None) if len(raised) == 1 else None)
                if event is not None:
                    death.where = str(event.fields.get("what", ""))[:160]
                    death.events.append(event)
        out.extend(_deaths(job, run, deaths))
        out.extend(_exceptions(job, run, deaths, raised))
        out.extend(_helpers(job, run))
        out.extend(_cuda(job, run))
        out.extend(_xids(job, run))
        out.extend(_torch_errors(job, run))
        out.extend(_ended(job, run))
        out.extend(_tests(job, run))
    return out


def _runs(job: Job) -> list[int | None]:
    found = dict.fromkeys(
        job.run_of_event(e) for e in job.events("launch.", "sys.", "torch.", "framework.", "nccltests.")
    )
    return sorted(found, key=lambda r: (r is None, r or 0))


def _done(job: Job, run: int | None) -> bool:
    """Whether all processes of the run had an orderly teardown."""
    return run in _runs_done(job)


@once
def _runs_done(job: Job) -> set[int | None]:
    return {run.index for run in job.runs if run.procs and all(torn_down(job, p) for p in run.procs)}


def _gave_up(job: Job, run: int | None) -> list[Event]:
    return [e for e in job.events(*_GIVES_UP) if job.run_of_event(e) == run]


def _deaths(job: Job, run: int | None, deaths: Sequence[Death]) -> list[Finding]:
    given_up = _gave_up(job, run)
    quitters = {outside.global_rank(job, e) for e in given_up}
    out: list[Finding] = []
    origins: list[Death] = []
    followers: list[Death] = []
    together: list[Death] = []
    faulty = any(d.signal in FAULTS or d.oom for d in deaths)
    another = False  # an origin that is more than a kill
    for death in deaths:
        if death.sent or _follows(death, bool(given_up), quitters) or (another and _swept_up(death)):
            followers.append(death)
        elif death.code is not None and death.signal is None and (faulty or origins):
            # A program that exits with a code after another rank failed usually got an error from its peer.
            same = bool(origins) and origins[0].events[0] is death.events[0]
            (together if same else followers).append(death)
        else:
            origins.append(death)
            another = another or death.root or not _plain_kill(death)
    strangers = [
        d for d in origins if d.oom and d.proc is None and d.rank is None and d.pid is not None and _has_procs(job, run)
    ]
    out.extend(_stranger(job, run, death) for death in strangers)
    strange = {id(death) for death in strangers}
    origins = [d for d in origins if id(d) not in strange]
    # Slurm lists many tasks at once when it kills a whole step, which singles out none.
    broad = len(origins) > 2 and all(d.signal == signals.SIGKILL and not d.oom for d in origins)
    if broad:
        out.append(
            new_finding(
                job,
                "PSM408",
                run=run,
                title=f"{ranks_text(d.rank for d in origins if d.rank is not None)} were killed together: the launcher or the scheduler ended the job",
                severity=Severity.WARNING,
                confidence=0.7,
                refs=[origins[0].events[0].ref],
                ranks=[d.rank for d in origins if d.rank is not None],
            )
        )
        return out
    ended = [d.rank for d in followers if d.rank is not None]
    others = "" if not followers else ranks_text(ended) if ended else "the others"
    for death in origins:
        out.append(_crash(job, run, death, others, together if death is origins[0] else ()))
    if followers and not origins:
        out.append(_consequence(job, run, followers, given_up))
    return out


def _has_procs(job: Job, run: int | None) -> bool:
    return run is not None and run < len(job.runs) and bool(job.runs[run].procs)


def _follows(death: Death, given_up: bool, quitters: set[int | None]) -> bool:
    """Whether a process ended itself because of a failed collective."""
    if not given_up or death.signal in FAULTS or death.oom:
        return False
    if death.signal not in (None, signals.SIGABRT):
        return False
    return death.rank is None or death.rank in quitters or None in quitters


def _swept_up(death: Death) -> bool:
    """Whether a launcher may have killed this process because another had failed."""
    return _plain_kill(death) and not death.root


def _plain_kill(death: Death) -> bool:
    return death.signal == signals.SIGKILL and not death.oom


def _name(job: Job, death: Death) -> str:
    if death.proc is not None:
        return name_of(job, death.proc)
    who = f"rank {death.rank}" if death.rank is not None else "a process"
    place = f"{death.host}:{death.pid}" if death.host and death.pid else f"pid {death.pid}" if death.pid else death.host
    return f"{who} ({place})" if place else who


def _how(death: Death) -> str:
    if death.oom:
        return "was killed because memory ran out (SIGKILL by the OOM killer)"
    if death.signal == signals.SIGKILL:
        return "was killed by SIGKILL"
    if death.signal is not None:
        return f"died by {signal_name(death.signal)}" + (f" ({death.where})" if death.where else "")
    if death.code is not None:
        return f"exited with code {death.code}" + (f": {death.where}" if death.where else "")
    return "died" + (f" ({death.where})" if death.where else "")


def _crash(job: Job, run: int | None, death: Death, others: str, together: Sequence[Death]) -> Finding:
    late = _done(job, run) or (death.proc is not None and torn_down(job, death.proc))
    where = _frames(job, death)
    ranks = [d.rank for d in (death, *together) if d.rank is not None]
    name = ranks_text(ranks) if together and ranks else _name(job, death)
    explanation = f"{name} {_how(death)}."
    if where:
        explanation += f" The first frame outside the C library is in {where}."
    if others:
        explanation += f" The launcher then ended {others}: a consequence."
    if late:
        explanation += " It was torn down before, so this happened at its exit."
    if death.oom:
        step = "Lower host memory per rank (data loader workers, pinned buffers), or raise the limit of the job or container."
    elif death.signal == signals.SIGKILL:
        step = f"Look at the kernel log of {death.host or 'its host'} for the OOM killer, and at who may send SIGKILL there."
    elif death.signal is not None:
        step = "Take the core dump or the stack that was printed; see which library the top frames are in."
    else:
        step = "Read the last lines of this process: the exception or message before its exit."
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"{name} {_how(death)}" + (f" in {where}" if where else ""),
        severity=Severity.WARNING if late else Severity.ERROR,
        confidence=0.6 if late else 0.95 if death.rank is not None or death.proc is not None else 0.8,
        explanation=explanation,
        next_step=step,
        refs=[e.ref for e in death.events[:5]],
        ranks=ranks,
        procs=[d.proc for d in (death, *together) if d.proc is not None],
        # Ranks in one message failed in the same way, so none of them is the origin.
        culprits=ranks if not together else [],
        stage="killed",
    )


@once
def _stacks(job: Job) -> dict[tuple[int, str, int], list[tuple[int, Ref, Event]]]:
    """The frames of printed stacks of each stream, of each process id in it, and those that name no process."""
    out: dict[tuple[int, str, int], list[tuple[int, Ref, Event]]] = defaultdict(list)
    for event in job.events("sys.ompi.frame", "sys.ucx.frame"):
        pid = event.fields.get("pid")
        own = (event.stream, "pid", pid) if isinstance(pid, int) else (event.stream, "no pid", 0)
        for place in ((event.stream, "all", 0), own):
            out[place].append((event.ref.seq, event.ref, event))
    return dict(out)


def _stack(job: Job, stream: int, pid: int | None, start: int) -> Iterator[Event]:
    """The frames from a line on that may be those of a process."""
    places = [(stream, "all", 0)] if pid is None else [(stream, "pid", pid), (stream, "no pid", 0)]

    def after(frames: list[tuple[int, Ref, Event]]) -> Iterator[tuple[int, Ref, Event]]:
        return (frames[at] for at in range(bisect.bisect_left(frames, start, key=lambda f: f[0]), len(frames)))

    merged = heapq.merge(*(after(_stacks(job).get(place, [])) for place in places), key=lambda f: f[:2])
    return (event for _, _, event in merged)


def _frames(job: Job, death: Death) -> str | None:
    """The first library or function of the printed stack outside the C library."""
    start = min((e.ref.seq for e in death.events if e.name.startswith("sys.")), default=None)
    if start is None:
        return death.where if death.where and death.where.endswith((".so", ".so.2")) else None
    for event in _stack(job, death.events[0].stream, death.pid, start):
        if event.name == "sys.ucx.frame":
            function = str(event.fields.get("fn", ""))
            if function and not any(name in function for name in _C_LIBRARY):
                return f"{function}()"
            continue
        where = str(event.fields.get("where", ""))
        if where and not any(name in where for name in ("libc.", "libc-", "libpthread.", "libpthread-")):
            return where.split("[", 1)[0].strip()
    return None


def _stranger(job: Job, run: int | None, death: Death) -> Finding:
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"the kernel's OOM killer ended process {death.pid}, which is none of the ranks seen",
        severity=Severity.WARNING,
        confidence=0.5,
        explanation="A process of this host was killed for memory. It may be a helper of a rank (a data loader worker), or of another job.",
        next_step="See whose process it was; a rank whose helper is gone waits for it.",
        refs=[e.ref for e in death.events[:2]],
        stage="killed",
    )


def _consequence(job: Job, run: int | None, followers: Sequence[Death], given_up: Sequence[Event]) -> Finding:
    ranks = [d.rank for d in followers if d.rank is not None]
    who = ranks_text(ranks) if ranks else "the job"
    why = "after a collective failed or timed out" if given_up else "by a signal from outside"
    return new_finding(
        job,
        "PSM408",
        run=run,
        title=f"{who} ended {why}: a consequence, not the cause",
        severity=Severity.WARNING,
        confidence=0.85,
        explanation="torch's watchdog aborts its own process after a failed collective, and launchers end the ranks that are left.",
        next_step="Look at what the ranks waited for before."
        if not given_up
        else "Look at the watchdog's lines: who never joined the collective?",
        refs=[followers[0].events[0].ref, *(e.ref for e in given_up[:1])],
        ranks=ranks,
        procs=[d.proc for d in followers if d.proc is not None],
    )


def _went_on(job: Job, event: Event, proc: int | None, run: int | None) -> bool:
    """Whether the process that printed this line lived on, so that the exception was caught."""
    if proc is None:
        return _done(job, run)
    if torn_down(job, proc):
        return True
    process = job.process(proc)
    return process.stream == event.stream and process.last.seq > event.ref.seq + _WENT_ON


def _raised(job: Job, run: int | None) -> dict[int | None, Event]:
    """The first Python exception with a traceback of each rank (None: unknown rank), without those about other ranks."""
    stacks = [t for t in job.events("sys.python.traceback") if job.run_of_event(t) == run]
    begins: dict[tuple[int, str | None], list[int]] = {}
    for stack in stacks:
        begins.setdefault((stack.stream, stack.tag), []).append(stack.ref.seq)
    out: dict[int | None, Event] = {}
    for event in job.events("sys.python.exception", "sys.python.memory"):
        if job.run_of_event(event) != run or faults.phrase(
            job, "the others are named", str(event.fields.get("what", ""))
        ):
            continue
        places = begins.get((event.stream, event.tag), [])
        at = bisect.bisect_left(places, event.ref.seq)
        if at and event.ref.seq - places[at - 1] < _STACK_LINES:
            out.setdefault(outside.global_rank(job, event), event)
    return out


def _exceptions(
    job: Job, run: int | None, deaths: Sequence[Death], raised: Mapping[int | None, Event]
) -> list[Finding]:
    """Python exceptions that ended a rank whose end no launcher reports: torch's hook prints uncaught ones with the rank."""
    known = {d.rank for d in deaths if d.rank is not None and not d.sent}
    by_rank = {
        rank: event
        for rank, event in raised.items()
        if rank is not None and rank not in known and not _went_on(job, event, outside.proc_of_event(job, event), run)
    }
    if not by_rank:
        return []
    nranks = job.runs[run].nranks if run is not None and run < len(job.runs) else None
    shared = len(by_rank) > 1 and (nranks is None or 2 * len(by_rank) > nranks)
    what = str(next(iter(by_rank.values())).fields.get("what", ""))[:160]
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"{ranks_text(by_rank)} ended by an uncaught exception: {what}",
            confidence=0.85,
            explanation="A Python exception that nothing caught ends the rank; its peers wait for it in their next collective.",
            next_step="Read the traceback; the fault is in the program, before NCCL.",
            refs=[e.ref for e in list(by_rank.values())[:4]],
            ranks=sorted(by_rank),
            procs=[p for e in by_rank.values() if (p := outside.proc_of_event(job, e)) is not None],
            culprits=[] if shared and nranks is not None and len(by_rank) == nranks else sorted(by_rank),
            stage="error",
        )
    ]


def _helpers(job: Job, run: int | None) -> list[Finding]:
    """Data loader workers that died; their rank dies too."""
    out: list[Finding] = []
    seen: set[int | None] = set()
    for event in job.events("sys.dataloader.killed"):
        proc, rank = outside.proc_of_event(job, event), outside.global_rank(job, event)
        if job.run_of_event(event) != run or rank in seen or _went_on(job, event, proc, run):
            continue
        seen.add(rank)
        how = str(event.fields.get("signame", "")) or "it exited"
        full = "Bus error" in how
        who = f"rank {rank}" if rank is not None else "a rank"
        out.append(
            new_finding(
                job,
                "PSM503" if full else "PSM402",
                run=run,
                title=f"a data loader worker of {who} died: {how}" + (" (shared memory ran out)" if full else ""),
                confidence=0.85,
                explanation="The rank stops with its helper, and its peers wait for it in their next collective.",
                refs=[event.ref],
                ranks=[rank] if rank is not None else [],
                procs=[proc] if proc is not None else [],
                culprits=[rank] if rank is not None else [],
                stage="error",
            )
        )
    return out


def _cuda(job: Job, run: int | None) -> list[Finding]:
    out: list[Finding] = []
    for names, code, text in (
        (("sys.cuda.error", "torch.watchdog.cuda_error"), "PSM405", "CUDA error"),
        (("sys.cuda.oom",), "PSM509", "out of device memory"),
    ):
        by_rank: dict[int | None, Event] = {}
        for event in job.events(*names):
            if job.run_of_event(event) == run and not _went_on(job, event, outside.proc_of_event(job, event), run):
                by_rank.setdefault(outside.global_rank(job, event), event)
        if not by_rank:
            continue
        ranks = sorted(r for r in by_rank if r is not None)
        first = min(by_rank.values(), key=lambda e: (e.stream, e.ref.seq))
        told = str(first.fields.get("error", first.fields.get("size", "")))[:120]
        who = ranks_text(ranks) if ranks else "a rank"
        # All ranks that share work with the first see the same asynchronous error; only a single rank is a sure origin.
        culprits = (
            ranks
            if len(ranks) == 1 or code == "PSM509"
            else [r for r in [outside.global_rank(job, first)] if r is not None]
        )
        out.append(
            new_finding(
                job,
                code,
                run=run,
                title=f"{text} on {who}" + (f": {told}" if told else ""),
                confidence=0.9 if ranks else 0.7,
                refs=[first.ref, *(e.ref for e in list(by_rank.values())[:3])],
                ranks=ranks,
                procs=[p for e in by_rank.values() if (p := outside.proc_of_event(job, e)) is not None],
                culprits=culprits,
                stage="error",
            )
        )
    return out


def _bus_number(text: str) -> int | None:
    """A PCI address as NCCL prints it: its hex digits as one number, with a function added if it lacks one."""
    digits = text.replace(":", "").replace(".", "")
    try:
        return int(digits if "." in text else digits + "0", 16) if ":" in text else int(digits, 16)
    except ValueError:
        return None


def _rank_of_bus(job: Job, run: int | None, bus: str, pid: object) -> int | None:
    if run is None or run >= len(job.runs):
        return None
    if isinstance(pid, int) and (proc := outside.proc_of_pid(job, run, pid)) is not None:
        return job.rank_of(proc)
    found = _by_bus(job).get((run, _bus_number(bus)), set())
    # On several hosts the same address denotes several GPUs.
    return job.rank_of(next(iter(found))) if len(found) == 1 else None


@once
def _by_bus(job: Job) -> dict[tuple[int | None, int | None], set[int]]:
    out: dict[tuple[int | None, int | None], set[int]] = defaultdict(set)
    for instance in job.scan.instances:
        if instance.bus is not None:
            out[job.run_of(instance.proc), _bus_number(instance.bus)].add(instance.proc)
    return dict(out)


def _xids(job: Job, run: int | None) -> list[Finding]:
    out: list[Finding] = []
    seen: set[tuple[str, int]] = set()
    for event in job.events("sys.kernel.xid"):
        number, bus = event.fields.get("xid"), str(event.fields.get("bus", ""))
        if job.run_of_event(event) != run or not isinstance(number, int) or (bus, number) in seen:
            continue
        seen.add((bus, number))
        what = str(event.fields.get("what", ""))
        if number == 45 or "caused by previous" in what:
            continue  # the clean-up after another error
        rank = _rank_of_bus(job, run, bus, event.fields.get("pid"))
        hard = number in _HARD_XIDS
        out.append(
            new_finding(
                job,
                "PSM405",
                run=run,
                title=f"the GPU at {bus}"
                + (f" of rank {rank}" if rank is not None else "")
                + f" reported Xid {number}: {what[:100]}",
                severity=Severity.ERROR if (hard or number in _OWN_XIDS) and not _done(job, run) else Severity.WARNING,
                confidence=0.9 if rank is not None else 0.75 if hard else 0.6,
                explanation="The driver reports an error of this GPU or of its link; work on it fails or never ends."
                if hard
                else "The driver reports a fault of the work on this GPU; the program or a library caused it, or the GPU is bad.",
                next_step="Drain the node and have the GPU and its links checked (nvidia-smi -q, nvidia-bug-report)."
                if hard
                else "Run the rank under compute-sanitizer; if other programs show it too, check the GPU.",
                refs=[event.ref],
                ranks=[rank] if rank is not None else [],
                culprits=[rank] if rank is not None else [],
                stage="error",
            )
        )
    for event in job.events("sys.kernel.gpu_lost"):
        if job.run_of_event(event) == run and not any(number in _HARD_XIDS for _, number in seen):
            out.append(
                new_finding(
                    job,
                    "PSM405",
                    run=run,
                    title="a GPU fell off the PCI bus",
                    confidence=0.8,
                    refs=[event.ref],
                    stage="error",
                )
            )
    return out


@once
def _warned(job: Job) -> set[int | None]:
    """The runs with a warning of NCCL's own."""
    return {job.run_of(e.proc) for e in job.scan.events if e.level == "WARN" and e.proc >= 0}


def _torch_errors(job: Job, run: int | None) -> list[Finding]:
    """NCCL errors that only torch reports; if the log has NCCL's own warnings, those say more."""
    names = ("torch.nccl_error", "torch.async_error", "torch.watchdog.terminated", "framework.nccl_error")
    events = [e for e in job.events(*names) or job.events("torch.nccl_result") if job.run_of_event(e) == run]
    if not events or run in _warned(job):
        return []
    texts = {str(e.fields.get("error", "")) for e in events}
    peer = [t for t in texts if faults.phrase(job, "a peer failed", t)]
    ranks = sorted({r for e in events if (r := outside.global_rank(job, e)) is not None})
    told = next(iter(sorted(texts - set(peer))), None) or next(iter(sorted(texts)), "")
    torch = events[0].name.startswith("torch.")
    last = [e for e in job.events("torch.last_error") if job.run_of_event(e) == run]
    told = faults.body(job, last[0]) if last else told
    own = bool(texts - set(peer)) and len(ranks) == 1 and not faults.phrase(job, "a peer is named", told)
    events = [*last[:2], *events]
    return [
        new_finding(
            job,
            "PSM401",
            run=run,
            title=f"NCCL returned an error to {'torch' if torch else 'the framework'} on {ranks_text(ranks) if ranks else 'a rank'}: {told[:160]}",
            confidence=0.7,
            explanation=f"{'torch' if torch else 'The framework'} reports that a NCCL call failed; NCCL's own warnings, which say why, are not in the log."
            + (" The text blames a remote process." if peer and not own else ""),
            next_step="Re-run with NCCL_DEBUG=INFO (or WARN) on all ranks and look at the first NCCL WARN line.",
            refs=[e.ref for e in events[:4]],
            ranks=ranks,
            culprits=ranks if own else [],
            stage="error",
        )
    ]


def _ended(job: Job, run: int | None) -> list[Finding]:
    """Signs that the job was ended from outside."""
    out: list[Finding] = []
    done = _done(job, run)
    for names, text, step in (
        (
            ("launch.slurm.time_limit",),
            "Slurm ended the job",
            "See what the ranks waited for before; a time limit alone does not say that anything hung.",
        ),
        (("launch.slurm.node_fail",), "Slurm lost a node of the job", "Ask for the state of the node that is named."),
        (
            ("launch.elastic.death_signal",),
            "torchrun itself was ended by a signal",
            "Ask the scheduler why it ended the job.",
        ),
        (
            ("sys.python.interrupt",),
            "the job was interrupted by hand (SIGINT)",
            "See what the ranks waited for before; most likely the job hung.",
        ),
        (
            ("launch.slurm.cancelled",),
            "Slurm cancelled the step",
            "Look for a task that failed before; with none, somebody cancelled the job.",
        ),
    ):
        events = [e for e in job.events(*names) if job.run_of_event(e) == run]
        if events:
            why = events[0].fields.get("why", events[0].fields.get("host"))
            out.append(
                new_finding(
                    job,
                    "PSM408",
                    run=run,
                    title=text + (f": {why}" if why is not None and "cancelled" not in names[0] else ""),
                    severity=Severity.INFO if done else Severity.WARNING,
                    confidence=0.9,
                    next_step=step,
                    refs=[events[0].ref],
                )
            )
    return out


def _tests(job: Job, run: int | None) -> list[Finding]:
    out: list[Finding] = []
    for event in job.events("nccltests.wrong"):
        if job.run_of_event(event) == run:
            out.append(
                new_finding(
                    job,
                    "PSM401",
                    run=run,
                    title=f"nccl-tests found {event.fields.get('wrong')} wrong values: the data path corrupts data",
                    confidence=0.95,
                    explanation="The operations completed and their results are wrong.",
                    next_step="Bisect by NCCL_ALGO, NCCL_PROTO and transport; check the slots and flags of a custom transport.",
                    refs=[event.ref],
                    stage="error",
                )
            )
    failures = [e for e in job.events("nccltests.failure") if job.run_of_event(e) == run]
    if failures and run not in _warned(job):
        told = str(failures[0].fields.get("error", "")).rstrip(" /'")
        out.append(
            new_finding(
                job,
                "PSM401",
                run=run,
                title=f"nccl-tests stopped: {told}",
                confidence=0.7,
                refs=[e.ref for e in failures[:3]],
                stage="error",
            )
        )
    return out
