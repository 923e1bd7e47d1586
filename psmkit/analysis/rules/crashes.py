"""Processes that died: the signal, the place, and whether the death is an origin or a consequence.

A launcher ends the remaining ranks after one failed, and a watchdog ends its own process after a timeout: such deaths are
consequences. The others are crashes.
"""

from __future__ import annotations

import signal as signals
from collections import Counter
from collections.abc import Hashable, Sequence

from psmkit.analysis.facts import endings, labels, launcher_ends, lines, outside
from psmkit.analysis.facts.aborts import aborted, aborted_before
from psmkit.analysis.facts.death import FAULTS, Death, in_order, lost_node, manner, signal_name
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, name_of, ranks_text, spans_of, spans_text, words
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.tags import pid_of_tag
from psmkit.analysis.inference import crash_stacks, memory_kills
from psmkit.analysis.inference.causes import (
    RECORDED,
    alike,
    each_by_itself,
    ends,
    errors_like,
    even_with,
    few_of,
    gave_up_waiting,
    without_followers,
)
from psmkit.analysis.inference.exceptions import uncaught
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.started_again import started_again
from psmkit.analysis.inference.tracebacks import where
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity
from psmkit.model.wording import CONSEQUENCE, ENDED_BY_LAUNCHER, counted, plural

__all__ = ["find"]

_MOST_REASONS = 3
_MOST_HOSTS = 4
_MOST_SPANS = 4
_MOST_TOLD = 8  # a launcher that names more processes points at none of them
_MOST_ALONE = 8  # crashes of one kind with a finding each
_CRASHES = FAULTS | {signals.SIGABRT}
#: After an exception of C++ whose text the title quotes.
_READ_CORE = "Read the lines above this exception. A core dump (gdb) shows where it was thrown."
_READ_WHAT = "Read the `what():` line of that process: it says why the process aborted. If it does not, read the core dump (gdb)."
#: What CUDA reports of a kernel that stopped itself.
_TRAPS = ("unspecified launch failure", "illegal instruction")
#: std::terminate() without an exception has no text: a thread object was destroyed while its thread ran, or a pure virtual function was called.
_NO_EXCEPTION = "without an active exception"
_READ_THREADS = "Read the line above it, and the core dump (gdb): no C++ exception was active in the thread that ended it. A thread that nobody joined, or a call of a destroyed object, often at the exit of the program, ends a process in this way."
_ROCM = "sys.rocm.exception"
#: Lines of launchers with the command of another process than the one that ended.
_OF_THE_LAST = ("launch.deepspeed.exit", "launch.ended.launch_py")
_POD = "launch.ended.k8s.pod"
#: Lines with a condition of a program that does not hold.
_CHECKS = ("sys.assert", "sys.check")
_READ_CHECK = "Find this check in the sources of the program or library: its condition, and the text behind it, say what went wrong."
_READ_STACK = "Read its stack in the log from {} on. A core dump (gdb) shows the source lines of these frames."


@rule(order=30)
def find(job: Job) -> list[Finding]:
    """PSM402 for ranks that died, PSM408 for those that were ended because of it."""
    return [f for run in endings.runs(job) for f in _deaths(job, run, without_followers(job, run))]


def _sorted_out(
    job: Job, deaths: Sequence[Death], given_up: Sequence[Event]
) -> tuple[list[Death], list[Death], list[Death]]:
    """The deaths that are origins, those that failed together with the first of them, and those that follow."""
    quitters = {outside.global_rank(job, e) for e in given_up}
    origins: list[Death] = []
    followers: list[Death] = []
    together: list[Death] = []
    faulty = any(d.signal in FAULTS or d.oom for d in deaths)
    another = False  # an origin that is more than a kill
    apart = any(not (_plain_kill(d) or d.sent) for d in deaths)
    elsewhere = any(not d.by_peer and not d.sent for d in deaths)
    explained = any(d.oom or d.signal is not None or (d.where and not _unexplained(d)) for d in deaths)
    watched = [
        (e.stream, e.ref.seq) for e in job.events("framework.sglang_watchdog")[:1]
    ]  # it kills all of its processes
    cuda = {(e.stream, e.ref.seq) for e in job.events("sys.cuda.error")}
    rocm = {e.stream: e.ref.seq for e in reversed(job.events(_ROCM))}
    for death in deaths:
        # A shell's bare "Killed" names nobody; a process of the log may have been taken for it.
        anonymous = death.events[0].name == "sys.shell.killed" or (
            death.rank is None and death.pid is None and death.local is None
        )
        head = death.events[0]
        if anonymous and head.name == "sys.terminate" and (head.stream, head.ref.seq + 1) in cuda:
            continue  # the reason of this abort, on the line below, has a finding of its own
        if anonymous and death.signal == signals.SIGABRT and rocm.get(head.stream, head.ref.seq) < head.ref.seq:
            continue  # ROCm's runtime aborts the process whose exception it printed
        # DeepSpeed's launcher ends the others first and then gives the code of the first that ended.
        first = death.events[0].name == "launch.deepspeed.exit"
        late = anonymous and not first and _plain_kill(death)
        late = late and (endings.stopped(job, head) or any(head.stream == s and head.ref.seq > at for s, at in watched))
        if (
            late
            or death.sent
            or (death.by_peer and elsewhere)
            or (endings.trapped(job, head) and any(words_ in (death.where or "") for words_ in _TRAPS))
            or gave_up_waiting(job, death)
            or _follows(job, death, given_up, quitters)
            or ((another or (apart and death.listed)) and _swept_up(death))
            or (_unexplained(death) and explained)
        ):
            followers.append(death)
        elif death.listed and origins and origins[0].listed and not faulty:
            origins.append(death)  # the launcher does not say which was the first
        elif death.code is not None and death.signal is None and (faulty or origins):
            # A program that exits with a code after another rank failed usually got an error from its peer.
            same = bool(origins) and origins[0].events[0] is death.events[0]
            (together if same else followers).append(death)
        else:
            origins.append(death)
            another = another or death.root or not _plain_kill(death)
    return origins, together, followers


def _deaths(job: Job, run: int | None, deaths: Sequence[Death]) -> list[Finding]:
    out: list[Finding] = []
    given_up = endings.gave_up(job, run)
    origins, together, followers = _sorted_out(job, deaths, given_up)
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
                title=f"{ranks_text(d.rank for d in origins if d.rank is not None)} were killed together: most likely the launcher or the scheduler ended the job",
                severity=Severity.WARNING,
                confidence=0.7,
                refs=[origins[0].events[0].ref],
                ranks=[d.rank for d in origins if d.rank is not None],
                stage=ENDED_BY_LAUNCHER,
            )
        )
        return out
    starved = [d for d in origins if d.oom and (d.rank, d.pid, d.host) != (None,) * 3]
    if len(starved) > 1 and len(starved) == len([d for d in origins if d.rank is not None or not d.oom]):
        return [*out, _starved(job, run, starved)]
    if all(d.listed for d in origins) and (len(origins) > 1 or any(d.later for d in origins)):
        return [*out, _listed(job, run, origins)]
    first = any(d.root for d in origins)
    each = (
        len(origins) > 1 and not first and len({d.signal for d in origins}) == 1 and each_by_itself(job, run, origins)
    )
    if each and all(d.rank is not None for d in origins):
        return [*out, _listed(job, run, origins)]
    equal = alike(job, run) if origins and origins[0] is deaths[0] else set()
    origins = [d for d in origins if d is deaths[0] or d.rank not in equal]
    together = [d for d in together if d.rank not in equal]
    followers = [d for d in followers if d.rank is None or d.rank not in equal]
    even = even_with(job, run, origins[0], [*together, *followers]) if origins and not given_up else []
    if even:
        together += [d for d in even if not any(d is t for t in together)]
        followers = [d for d in followers if not any(d is e for e in even)]
    if origins and deaths[0].events[0].stream in labels.of_tasks(job):  # a task ends with the code of its launcher
        followers = [d for d in followers if d.task is None or d.rank is not None or d.code != origins[0].code]
    ended = [d.rank for d in followers if d.rank is not None]
    # a line that names nobody may be about the same process
    known = any((d.pid, d.host, d.local) != (None,) * 3 for d in followers)
    tasks = sorted({d.task for d in followers if d.task is not None})
    others = ranks_text(ended) if ended else "the others" if known else ""
    if tasks and not ended:
        others = f"Slurm's {plural(len(tasks), 'task')} {words(list(map(str, tasks)), _MOST_REASONS)}"
    cut = bool(followers) and all(d.by_peer for d in followers)
    own = bool(followers) and all(d.code is not None and d.signal is None and d.listed for d in followers)
    after = f"The end of {others} follows from it"
    if cut:
        # which process was at the other end, their words do not always show
        after = f"{others[:1].upper()}{others[1:]} ended when a connection to another process broke"
    elif own:
        # they were not ended: each may have failed for the same reason
        after = f"{others[:1].upper()}{others[1:]} exited with an error code, too; the launcher lists {_name(job, origins[0]) if origins else 'this one'} as the first"
    elif origins and all(d.code is not None and d.code == origins[0].code and not d.sent for d in followers):
        after = f"{others[:1].upper()}{others[1:]} exited with the same code; the log does not show whether that follows from it"
    elif not in_order(origins, followers):
        after = f"{others[:1].upper()}{others[1:]} ended, too; the log does not show in which order"
    text = " The log does not show which of these ranks failed first." if even else ""
    text += f" {after}." if others else ""
    for death, *like in _by_kind(job, run, origins):
        lead = death is origins[0]
        beside = [d for d in origins if d is not death] if each and lead else []
        out.append(_crash(job, run, death, text, together if lead else (), equal if lead else set(), like, beside))
    if followers and not origins:
        out.append(_consequence(job, run, followers, given_up))
    return out


def _by_kind(job: Job, run: int | None, origins: Sequence[Death]) -> list[list[Death]]:
    """The crashes: many of which the same is said are together, the first of all is alone."""
    if len(origins) <= _MOST_ALONE:
        return [[death] for death in origins]
    kinds: dict[Hashable, list[Death]] = {}
    for death in origins:
        kinds.setdefault(id(death) if death is origins[0] else _kind(job, run, death), []).append(death)
    few = [[death] for kind in kinds.values() if len(kind) <= _MOST_ALONE for death in kind]
    return few + [kind for kind in kinds.values() if len(kind) > _MOST_ALONE]


def _kind(job: Job, run: int | None, death: Death) -> Hashable:
    """What is said of a crash besides its rank; the crash itself if more is said of it."""
    crashed = death.signal in _CRASHES and not death.oom and death.reason is None
    if not crashed or death.rank is None or death.proc is None:
        return id(death)
    if aborted_before(job, death.proc, death.events[0].ref) is not None:
        return id(death)
    stack = crash_stacks.printed(job, death)
    shown = (stack.told, stack.whole, bool(stack.refs)) if stack is not None else None
    checked = any(e.name in _CHECKS for e in death.events)
    return death.signal, death.where, shown, checked, torn_down(job, death.proc)


def _listed(job: Job, run: int | None, deaths: Sequence[Death]) -> Finding:
    """Processes that a launcher lists as failed, of which the log does not show which was the first."""
    elastic = deaths[0].events[0].name.startswith("launch.elastic.")
    ranks = [d.rank for d in deaths if d.rank is not None]
    how = manner(deaths[0])
    each = each_by_itself(job, run, deaths)
    among = not each and not elastic and _counted(deaths)
    hosts = sorted({d.host for d in deaths if d.host is not None})
    who = (
        ranks_text(ranks) if ranks else f"processes on {joined(hosts[:_MOST_HOSTS])}" if hosts else "several processes"
    )
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"{who} {how.replace('was ', 'were ', 1) if len(deaths) > 1 else how}, and the log does not show which {'rank' if ranks else 'one'} failed first",
        confidence=0.8,
        explanation="torchrun lists workers that failed after the first one. It prints the first one below `Root Cause`."
        if elastic
        else "Each of these ranks reports a failure of its own, and its report blames no other rank."
        if each
        else "The launcher saw these processes end before it stopped any. It does not say which one failed first."
        if among
        else "The launcher reports several processes and does not say which one failed first.",
        next_step="Give the rest of the launcher's output: the lines below `Root Cause (first observed failure)` name the rank."
        if elastic
        else "Read what each of these processes prints above its line: what they have in common is the cause, or else the earliest failure."
        if each
        else "Compare the last lines of these processes: the one that stops first, or that reports an error of its own, is the cause.",
        refs=[e.ref for d in deaths[:4] for e in d.events[:1]],
        ranks=ranks,
        procs=[d.proc for d in deaths if d.proc is not None],
        culprits=ranks if each or among else [],
        named=[n for d in deaths if d.proc is None for n in launcher_ends.as_named(d)] if each or among else [],
        stage="error",
    )


def _counted(deaths: Sequence[Death]) -> bool:
    """Whether a launcher that tells the number of its processes names a few that ended before it stopped any: the first one that failed is among these."""
    totals = {e.fields.get("total") for d in deaths for e in d.events}
    total = totals.pop() if len(totals) == 1 else None
    return isinstance(total, int) and len({d.rank for d in deaths if d.rank is not None}) in range(
        1, min(total, _MOST_TOLD) + 1
    )


def _starved(job: Job, run: int | None, deaths: Sequence[Death]) -> Finding:
    """Processes that ended because their hosts ran out of memory, each for itself: the order of the lines says nothing."""
    named = [n for d in deaths if d.proc is None for n in launcher_ends.as_named(d)]
    ranks = sorted({d.rank for d in deaths if d.rank is not None})
    hosts = joined(list(dict.fromkeys(d.host for d in deaths if d.host is not None))[:_MOST_HOSTS])
    who = (
        ranks_text(ranks)
        if ranks
        else joined([_name(job, d) for d in deaths if launcher_ends.as_named(d)][:_MOST_HOSTS])
    )
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"{who} ran out of host memory" + (f" on {hosts}" if ranks and hosts else ""),
        confidence=0.9,
        explanation="Each of these processes, or a child of it, was ended because memory ran out: each failed by itself.",
        next_step=memory_kills.LESS_MEMORY,
        refs=[e.ref for d in deaths[:4] for e in d.events[:1]],
        ranks=ranks,
        procs=[d.proc for d in deaths if d.proc is not None],
        culprits=ranks,
        named=named,
        stage="killed",
    )


def _has_procs(job: Job, run: int | None) -> bool:
    return run is not None and run < len(job.runs) and bool(job.runs[run].procs)


def _follows(job: Job, death: Death, given_up: Sequence[Event], quitters: set[int | None]) -> bool:
    """Whether a process ended itself because of a failed collective."""
    if not given_up:
        return False
    last = death.events[0]
    if last.name.startswith("launch.elastic.") and not death.listed and endings.all_below(last, given_up):
        return False  # torchrun had seen its end before any rank gave up
    if pid_of_tag(last.tag) is not None:
        # the tag shows that another process printed a line below
        given_up = [e for e in given_up if e.tag == last.tag or e.stream != last.stream or e.ref.seq < last.ref.seq]
    # a command below the death starts another run
    later = [c.ref.seq for c in job.events("shell.command") if c.stream == last.stream and c.ref.seq > last.ref.seq]
    if later:
        given_up = [e for e in given_up if e.stream != last.stream or e.ref.seq < later[0]]
    if not given_up or death.signal in FAULTS or death.oom:
        return False
    pids = {pid_of_tag(e.tag) for e in given_up}
    if None not in pids and death.pid is not None and death.pid not in pids:
        # another process, which died before
        return endings.stopped(job, death.events[0])
    if death.signal not in (None, signals.SIGABRT):
        return False
    return death.rank is None or death.rank in quitters or None in quitters


def _swept_up(death: Death) -> bool:
    """Whether a launcher may have killed this process because another had failed."""
    return _plain_kill(death) and not death.root


def _unexplained(death: Death) -> bool:
    """Whether a table of kubectl shows only that a pod failed, as also those do that lost a peer."""
    return death.events[0].name == _POD


def _plain_kill(death: Death) -> bool:
    return death.signal == signals.SIGKILL and not death.oom


def _name(job: Job, death: Death) -> str:
    if death.proc is not None:
        return name_of(job, death.proc)
    who = f"rank {death.rank}" if death.rank is not None else "a process"
    if death.task is not None and death.rank is None:
        who = f"task {death.task} of Slurm"
    if death.rank is None and death.local is not None:
        who = f"{'spawned process' if death.raised else 'worker' if death.counted else 'local rank'} {death.local}"
    if who == "a process" and death.pid is None and death.host is not None:
        return f"{'the process at' if ':' in death.host else 'a process on'} {death.host}"
    place = f"{death.host}:{death.pid}" if death.host and death.pid else f"pid {death.pid}" if death.pid else death.host
    return f"{who} ({place})" if place else who


def _crash(
    job: Job,
    run: int | None,
    death: Death,
    after: str,
    together: Sequence[Death],
    equal: set[int],
    like: Sequence[Death],
    beside: Sequence[Death] = (),
) -> Finding:
    """The finding of a crash: ``together`` are in the same message, ``equal`` raised the same error, ``like`` crashed in the same way.

    ``beside`` crashed by itself, too, and has a finding of its own.
    """
    late = endings.done(job, run) or (death.proc is not None and torn_down(job, death.proc))
    late = late and not (death.code and aborted(job, death.proc))
    again = started_again(job, death)
    # a process that crashes at its end has failed; others may have ended it on purpose
    crashed = death.signal in _CRASHES
    stack = crash_stacks.printed(job, death)
    all_ = (death, *together, *like)
    ranks = [d.rank for d in all_ if d.rank is not None]
    shared = [d for d in ends(job, run) if d.rank in equal and d.proc is None] if equal else []
    ranks = sorted({*ranks, *equal})
    # Where most ranks failed in the same way, in one message, none of them is the origin.
    few = not together or few_of(job, run, ranks)
    name = ranks_text(ranks) if (together or equal or like) and ranks else _name(job, death)
    if beside and not ranks:
        places = [":".join(str(part) for part in (d.host, d.pid) if part is not None) for d in (death, *beside)]
        names = words(places, _MOST_REASONS)
        name = f"{1 + len(beside)} processes ({names})"
    if like and len(spans := spans_of(ranks)) <= _MOST_SPANS:
        name = spans_text(spans)
    explanation = stack.explained if stack is not None else ""
    if lost_node(death):
        explanation += " The launcher no longer hears from this node, so all processes on it count as lost."
    explanation += " Each of these ranks raised this error by itself." if equal else ""
    explanation += " Each of these ranks crashed by itself." if like else ""
    if beside:
        more = counted(len(beside), "more process", "more processes")
        explanation += f" {more} died by the same signal, each by itself; which was the first, the log does not show."
    explanation += after
    times = max(Counter(e.name for e in death.events).values())
    if times > 1 and _name(job, death) == "a process":
        explanation += f" {times} lines say so and name no process: they may be about one process or several."
    folded = max((e.count for e in death.events if e.name == "launch.ray.worker_died"), default=1)
    if folded > 1:
        explanation += f" Ray folds {folded} reports of deaths into this line, which shows one of them."
    if late:
        their, it = ("Their", "they") if like else ("Its", "it")
        explanation += f" {their} communicators were torn down before, so this happened when {it} exited."
    if again:
        explanation += (
            " The program worked after this line: it was started again, or the line is about another process."
        )
    title = f"{name} {manner(death)}" + (stack.told if stack is not None else "")
    if lost_node(death):
        title = f"{death.where} {death.host}"
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=title,
        severity=Severity.WARNING if again or (late and not crashed) else Severity.ERROR,
        confidence=(0.75 if crashed else 0.6)
        if late or again
        else 0.65
        if death.raised and death.reason is None and run in endings.warned(job)
        else 0.95
        if death.rank is not None or death.proc is not None
        else 0.8,
        explanation=explanation.strip() or None,
        next_step=_next_step(job, run, death, stack, title, bool(together)),
        refs=list(dict.fromkeys([*_proofs(job, run, death, equal), *(stack.refs if stack is not None else ())]))[:5]
        + memory_kills.reported(job, run, death),
        ranks=ranks,
        procs=[d.proc for d in all_ if d.proc is not None],
        culprits=ranks if few else [],
        stage="killed",
        named=[n for d in (death, *together, *shared, *beside) if d.proc is None for n in launcher_ends.as_named(d)]
        if few and death.proc is None
        else [],
    )


def _next_step(
    job: Job, run: int | None, death: Death, stack: crash_stacks.Stack | None, title: str, several: bool
) -> str | None:
    """What to do about a crash, unless the text of its title says so."""
    if lines.catalogue(job).phrase("advice", title) is not None and not death.oom:
        return None
    if death.reason is not None and death.reason.name.startswith("sys.cuda."):
        return None  # the error says what to do
    if death.oom:
        return memory_kills.LESS_MEMORY
    if lost_node(death):
        return "Check whether the node is up. A node that is overloaded or cut off from the network counts as lost, too: look at its load and its network, its kernel log, and the log of the launcher's daemon on it."
    if death.signal == signals.SIGKILL:
        return memory_kills.advice(job, run, death)
    if death.signal is not None:
        if any(e.name in _CHECKS for e in death.events):
            return _READ_CHECK
        if stack is not None and stack.refs:
            return _READ_STACK.format(stack.first)
        if not death.where or all(e.name != "sys.terminate" for e in death.events):
            return None
        if _NO_EXCEPTION in death.where:
            return _READ_THREADS
        if ": " not in death.where:
            return _READ_WHAT
        above = any(e.name == "sys.terminate" and e.ref.line > 1 for e in death.events)
        return _READ_CORE if above else _READ_CORE.partition(". ")[2]
    if death.reason is not None and death.reason.name == RECORDED:
        return "Read the error file or the last lines of this process: they show the traceback of this exception."
    if death.reason is not None:
        entry = lines.catalogue(job).by_name.get(death.reason.name)
        told = entry.next_step if entry is not None and entry.title is not None else None
        return told or _of_exception(job, death.reason)
    if death.raised:
        head = death.events[0]
        for item in uncaught(job, run):
            if item.event.stream == head.stream and item.event.ref.seq > head.ref.seq:
                return f"Read the traceback of this process up to line {item.event.ref.line}, which names its exception. See whether it is about another process."
        return "Give the rest of the log: the traceback of this process ends with its exception, which this log does not show."
    if lines.catalogue(job).phrase("advice", death.where or "") is not None:
        return None
    if death.rank is None and death.pid is None and death.local is None and death.host is None:
        if death.events[0].name in _OF_THE_LAST:
            return "Give the whole output of all ranks. The command in this line is that of the process that the launcher started last, which need not be the one that ended."
        return "Give the whole output of the launcher and of all ranks: this line does not name the process."
    if death.where and death.code is None:
        entry = lines.catalogue(job).by_name.get(death.events[0].name)
        if entry is not None and entry.next_step and not several:
            return entry.next_step  # it knows where such an end is explained
    whose, its = ("these processes", "their") if several else ("this process", "its")
    return f"Read the last lines of {whose}: an exception or a message before {its} exit shows the reason."


def _of_exception(job: Job, reason: Event) -> str:
    """What to do about an exception, as far as its log shows a traceback above it and warnings of NCCL below it."""
    above = any(
        e.stream == reason.stream and e.tag == reason.tag and e.ref.seq < reason.ref.seq
        for e in job.events("sys.python.traceback")
    )
    events = job.scan.events
    after = (events.first > reason.ref.seq) & (events.stream == reason.stream) & events.of_level("WARN", "ABORT")
    step = "Read the traceback above this line, and fix this exception." if above else "Fix the exception of this line."
    return step + (" What NCCL reports after it follows from it." if after.any() else "")


def _proofs(job: Job, run: int | None, death: Death, equal: set[int]) -> list[Ref]:
    """The lines about an end, the telling ones first: that a signal arrived says less than which one it was."""
    last = [e for e in death.events if e.name == "sys.ompi.signal"]
    checks = [e for e in death.events if e.name in _CHECKS]  # a handler's line below tells only that the signal came
    # memory that ran out says more than the signal that it brought
    starved = [e for e in death.events if death.oom and e.name.startswith("launch.slurm.")]
    found = [*_reasons(job, run, death, equal), *checks, *starved, *(e for e in death.events if e not in last), *last]
    return [e.ref for e in found]


def _reasons(job: Job, run: int | None, death: Death, equal: set[int]) -> list[Event]:
    """The lines that say why a process ended, and those of other ranks that say the same."""
    found = errors_like(job, run, death)
    own = [death.reason, *where(job, death.reason)] if death.reason is not None else []
    return [*own, *(found[rank].event for rank in sorted(equal) if rank in found)][:_MOST_REASONS]


def _stranger(job: Job, run: int | None, death: Death) -> Finding:
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"the kernel's OOM killer ended process {death.pid}, which is no known rank",
        severity=Severity.WARNING,
        confidence=0.5,
        explanation="The host ran out of memory. The process may be a helper of a rank (a data loader worker), or belong to another job.",
        next_step="Find out whose process it was (dmesg shows its name). A rank waits for ever if its helper is gone.",
        refs=[e.ref for e in death.events[:2]],
        stage="killed",
    )


def _consequence(job: Job, run: int | None, followers: Sequence[Death], given_up: Sequence[Event]) -> Finding:
    ranks = [d.rank for d in followers if d.rank is not None]
    who = ranks_text(ranks) if ranks else "the job"
    timeout = any(endings.by_time(e) for e in given_up)
    pids = [str(d.pid) for d in followers if d.pid is not None]
    if not given_up and not ranks and pids:
        who = f"{plural(len(pids), 'process', 'processes')} {words(pids, _MOST_REASONS)}"
    waited = [d for d in followers if gave_up_waiting(job, d)]
    if waited and not given_up:
        return new_finding(
            job,
            "PSM408",
            run=run,
            title=f"{_name(job, waited[0])} {manner(waited[0])}: a consequence, not the cause",
            severity=Severity.WARNING,
            confidence=0.85,
            explanation="It waited in vain for another process. Its launcher may see any process that waits end first.",
            next_step="Find the process that the others waited for when the time was over.",
            refs=[e.ref for d in waited[:4] for e in (d.reason, d.events[0]) if e is not None],
            ranks=[d.rank for d in waited if d.rank is not None],
            procs=[d.proc for d in waited if d.proc is not None],
            stage=CONSEQUENCE,
        )
    numbers = {d.signal for d in followers}
    (number,) = numbers if len(numbers) == 1 else (None,)
    signal = signal_name(number) if number is not None else "a signal"
    why = f"after {'a timeout' if timeout else 'an error'} that the log shows" if given_up else f"by {signal}"
    return new_finding(
        job,
        "PSM408",
        run=run,
        title=f"{who} ended {why}" + (": a consequence, not the cause" if given_up else ""),
        severity=Severity.WARNING,
        confidence=0.85,
        explanation="A process aborts itself after such a line, and launchers end the ranks that are left."
        if given_up
        else f"Another process sent {signal}: a launcher, a scheduler or a person. The log does not show which.",
        next_step="Find out what the ranks waited for before this, and what sent the signal."
        if not given_up
        else _unjoined(given_up)
        if timeout
        else "Read the error: what caused it is the reason of this end, too.",
        refs=[followers[0].events[0].ref, *(e.ref for e in given_up[:1])],
        ranks=ranks,
        procs=[d.proc for d in followers if d.proc is not None],
        stage=CONSEQUENCE,
    )


def _unjoined(given_up: Sequence[Event]) -> str:
    """What to look for after a timeout: the first that names a work tells which."""
    named = next((e for e in given_up if endings.by_time(e) and isinstance(e.fields.get("seq"), int)), None)
    if named is None:
        return "Find the process that the others waited for when the time was over."
    work = f"{named.fields.get('op') or 'work'} {named.fields['seq']}"
    return f"Find the rank that did not join {work}: it reports no timeout of it, or its last enqueued work has a smaller number."
