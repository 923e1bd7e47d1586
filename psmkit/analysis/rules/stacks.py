"""Stacks from gdb and py-spy: where each thread of each rank waits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from psmkit.analysis.facts import foreign, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, name_of, ranks_text
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.foreign.types import Frame, StackDump, StackThread
from psmkit.model import Evidence, Finding, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]

# Roles by the functions that a thread runs, the most specific first; by names of threads if symbols are missing.
_ROLES: tuple[tuple[str, str], ...] = (
    (r"ncclProxyProgress|NCCL Progress", "proxy progress thread"),
    (r"ncclProxyServiceUDS|NCCL UDS", "proxy UDS service thread"),
    (r"ncclProxyService|NCCL Service", "proxy service thread"),
    (r"rasThreadMain|NCCL RAS", "RAS thread"),
    (r"ncclAsyncJobMain|ncclCommInitRankFunc", "asynchronous init thread"),
    (r"wrap_ibv_get_async_event|ncclIbAsyncThreadMain|NCCL IbAsync", "IB event thread"),
    (r"persistentSocketThread|NCCL Sock|netSocket.*[Tt]hread", "socket helper thread"),
    (r"bootstrapRoot", "bootstrap root thread"),
    (r"watchdogHandler|ncclCommWatchdog|pt_nccl_watchdg", "torch's watchdog"),
    (r"heartbeatMonitor|pt_nccl_heartbt", "torch's heartbeat monitor"),
    (r"Engine::thread_main|pt_autograd", "autograd thread"),
)
# Places to wait in: a pattern over the frames and its description. The innermost matching frame decides.
_WAITS: tuple[tuple[str, str, str], ...] = (
    (
        r"^ncclProxyCallBlocking|^ncclPollProxyResponse|^ncclProxyCallAsync|^ncclProxyClientGetFd|^ncclProxyClientQueryFd|^ncclProxyConnect$",
        "proxy",
        "an answer of the proxy service",
    ),
    (r"^ncclIpcSocketRecv", "proxy", "a file descriptor over the Unix domain socket"),
    (r"^ncclProxyGetPostedOps", "idle", "new operations (idle)"),
    (
        r"^bootstrap|^ncclTransportP2pSetup|^initTransportsRank|^ncclCommInitRank|^ncclCommSplit|^init_process_group|_store_based_barrier|^rendezvous",
        "init",
        "its peers during initialisation",
    ),
    (
        r"^ncclCommDestroy|^ncclCommFinalize|^ncclCommAbort|^commReclaim|^commFree|destroy_process_group|ProcessGroupNCCL::~|ProcessGroupNCCL::shutdown",
        "teardown",
        "the teardown of a communicator",
    ),
    (
        r"cu(?:da)?(?:Stream|Event|Device|Ctx)Synchronize|hip(?:Stream|Event|Device)Synchronize|^synchronize$|cuda::.*synchronize",
        "device",
        "work on its GPU",
    ),
    (
        r"^cu(?:da)?Mem(?:cpy|Free|Alloc)|^cu(?:da)?Free|^hip(?:Free|Memcpy)|cuLaunchKernel|cudaLaunchKernel|^item$|local_scalar_dense",
        "device",
        "a CUDA call that waits for its GPU",
    ),
    (
        r"^ncclGroupEnd|^groupLaunch|^ncclLaunch|^nccl(?:AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|Send|Recv|AlltoAll)\b",
        "collective",
        "a NCCL call that does not return",
    ),
    (
        r"^(?:all_reduce|all_gather|all_gather_into_tensor|reduce_scatter|reduce_scatter_tensor|broadcast|barrier|all_to_all|all_to_all_single|reduce|gather|scatter|send|recv|batch_isend_irecv|monitored_barrier)$|ProcessGroupNCCL::(?!.*Watchdog)",
        "collective",
        "a collective of torch",
    ),
    (r"^(?:_store|store|TCPStore).*(?:get|wait)|c10d::TCPStore", "store", "torch's store"),
)
_ROLES_RE = tuple((re.compile(pattern), role) for pattern, role in _ROLES)
_WAITS_RE = tuple((re.compile(pattern), kind, what) for pattern, kind, what in _WAITS)
# Frames without meaning of their own: system calls, locks, the interpreter.
_PLAIN = re.compile(
    r"^(?:\?\?|__?.*|poll|ppoll|epoll_wait|select|read|recv|recvmsg|recvfrom|accept4?|futex\w*|pthread_\w+|sched_yield|nanosleep|clock_nanosleep|usleep|"
    r"syscall|ioctl|clone3?|start_thread|std::.*|_Py\w+|Py\w+|PyObject\w+|pybind11::.*|method_\w+|cfunction_\w+|wait|wait_for|run|<module>)$"
)
_WAITING = frozenset({"device", "collective"})
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a thread. ``kind`` is proxy, init, teardown, device, collective, store, idle or elsewhere."""

    role: str
    kind: str
    what: str
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class _Main:
    """The main thread of one process."""

    path: str
    dump: StackDump
    thread: StackThread
    place: Place
    proc: int | None
    rank: int | None


def role_of(thread: StackThread) -> str | None:
    """The role of a thread, None if unknown."""
    names = [thread.name or "", *(f.function for f in thread.frames)]
    for pattern, role in _ROLES_RE:
        if any(pattern.search(name) for name in names):
            return role
    return None


def place_of(thread: StackThread) -> Place:
    """The place of a thread, by its innermost meaningful frame."""
    role = role_of(thread) or ("main thread" if thread.name in ("MainThread", "current thread") else "thread")
    for frame in thread.frames:
        for pattern, kind, what in _WAITS_RE:
            if pattern.search(frame.function):
                return Place(role, kind, what, frame)
    telling = next(
        (f for f in thread.frames if not _PLAIN.match(f.function)), thread.frames[0] if thread.frames else None
    )
    return Place(role, "elsewhere", telling.function if telling is not None else "nothing", telling)


def _main(dump: StackDump) -> StackThread | None:
    """The thread that runs the program: py-spy names it; in gdb it is the thread whose id is the process's."""
    for thread in dump.threads:
        if thread.name == "MainThread" or (thread.tid is not None and thread.tid == dump.pid and thread.frames):
            return thread
    return next((t for t in dump.threads if t.frames and role_of(t) is None), None)


@rule(order=340)
def find(job: Job) -> list[Finding]:
    """The places of the threads, and the ranks whose place differs from the others'."""
    run, lasting = foreign.newest_run(job), foreign.lasting(job)
    out: list[Finding] = []
    mains: list[_Main] = []
    for path, dump in ((item.path, dump) for item in foreign.inputs(job) for dump in item.stacks):
        proc = outside.proc_of_pid(job, run, dump.pid) if run is not None and dump.pid is not None else None
        rank = job.rank_of(proc) if proc is not None else _in_command(dump)
        out.append(_where(job, run, path, dump, proc, rank))
        thread = _main(dump)
        if thread is not None:
            mains.append(_Main(path, dump, thread, place_of(thread), proc, rank))
    odd = [m for m in mains if m.place.kind not in _WAITING]
    if len(mains) > 2 and odd and 3 * len(odd) <= len(mains):
        out.append(_odd(job, run, lasting, mains, odd))
    return out


def _in_command(dump: StackDump) -> int | None:
    match = re.search(r"(?:--(?:global[_-])?rank[= ]|\bRANK=)(\d{1,9})\b", dump.command or "")
    return int(match.group(1)) if match else None


def _who(job: Job, dump: StackDump, proc: int | None, rank: int | None) -> str:
    if proc is not None:
        return name_of(job, proc)
    if rank is not None:
        return f"rank {rank} (pid {dump.pid})"
    return f"process {dump.pid}" if dump.pid is not None else "a process"


def _text(place: Place, thread: StackThread) -> str:
    frame = (
        f" ({place.frame.function}" + (f" at {place.frame.where}" if place.frame.where else "") + ")"
        if place.frame
        else ""
    )
    tid = f" {thread.tid}" if thread.tid is not None else ""
    if place.kind == "elsewhere":
        return f"{place.role}{tid} is in {place.what}{frame if place.frame and place.frame.where else ''}"
    return f"{place.role}{tid} waits for {place.what}{frame}"


def _where(job: Job, run: int | None, path: str, dump: StackDump, proc: int | None, rank: int | None) -> Finding:
    main = _main(dump)
    texts: list[tuple[StackThread, str, bool]] = []
    for thread in dump.threads:
        place = place_of(thread)
        if thread is main:
            place = replace(place, role="main thread")
        known = place.role != "thread" or place.kind != "elsewhere"
        texts.append((thread, _text(place, thread), known))
    shown = [t for t in texts if t[0] is main] + [t for t in texts if t[2] and t[0] is not main]
    who = _who(job, dump, proc, rank)
    first = shown[0][1] if shown else "no thread is recognised"
    finding = new_finding(
        job,
        "PSM304",
        run=run,
        title=f"stack of {who}: {first}",
        severity=Severity.INFO,
        confidence=0.7,
        explanation=f"{counted(len(dump.threads), 'thread')}. "
        + "; ".join(text for _, text, _ in shown[:_SHOWN])
        + ".",
        next_step="Compare with the stacks of the other ranks, and look for the rank that is elsewhere.",
        ranks=[rank] if rank is not None else [],
        procs=[proc] if proc is not None else [],
    )
    return replace(finding, evidence=tuple(Evidence(path, max(t.line, 1), text) for t, text, _ in shown[:_SHOWN]))


def _odd(job: Job, run: int | None, lasting: bool, mains: Sequence[_Main], odd: Sequence[_Main]) -> Finding:
    ranks = [m.rank for m in odd if m.rank is not None]
    who = ranks_text(ranks) if len(ranks) == len(odd) else joined(_who(job, m.dump, m.proc, m.rank) for m in odd)
    waiting = [m for m in mains if m.place.kind in _WAITING]
    finding = new_finding(
        job,
        "PSM304",
        run=run,
        title=f"{who} {plural(len(odd), 'is', 'are')} elsewhere than the {len(waiting)} others, which wait for {waiting[0].place.what}: {odd[0].place.what}",
        severity=Severity.ERROR if lasting else Severity.WARNING,
        confidence=0.8 if lasting else 0.65,
        explanation="Most ranks wait in a collective or for the GPU work of one; these do something else, and the others wait for them.",
        next_step="Find out why these ranks do not call the collective: data loading, a checkpoint, an exception handler or another branch.",
        ranks=ranks,
        procs=[m.proc for m in odd if m.proc is not None],
        culprits=ranks,
    )
    lines = [
        Evidence(m.path, max(m.thread.line, 1), f"{_who(job, m.dump, m.proc, m.rank)}: {_text(m.place, m.thread)}")
        for m in [*odd[:3], *waiting[:2]]
    ]
    return replace(finding, evidence=tuple(lines))
