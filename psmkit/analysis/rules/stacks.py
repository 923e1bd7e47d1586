"""Stacks and inspections of processes: where each rank stands, and which one stands elsewhere than its peers."""

from __future__ import annotations

import signal as signals
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from psmkit.analysis.facts import endings, foreign
from psmkit.analysis.facts.death import FAULTS, signal_of
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import spans_of, spans_text
from psmkit.analysis.facts.releases import shown_release
from psmkit.analysis.inference import proof, standing
from psmkit.analysis.inference.causes import ends
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.standing import DATA, HOST, PROGRAM, START, TEARDOWN, Stand, group_text, step_of, who
from psmkit.analysis.registry import rule
from psmkit.logparse.foreign.places import Place, place_of
from psmkit.logparse.foreign.types import StackThread
from psmkit.model import Evidence, Finding, Named, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]

_SHOWN = 6
#: The steps in which a process waits for its peers.
_PEERS = (DATA, START, TEARDOWN, HOST)
#: Places of a start before that in which a rank waits for all of its peers.
_BEFORE_A_BARRIER = frozenset({"fd", "proxy", "memory", "register", "connect", "init"})
_ONCE = (START, TEARDOWN)  # a job is there once, and never comes back to the same line
_SECOND = (
    "Take the stacks of all ranks again, at least a minute later, and give both: two looks show whether a rank goes on."
)
_WORDS = {
    DATA: "collectives or wait for their GPUs",
    START: "the start of NCCL",
    TEARDOWN: "the teardown of NCCL",
    HOST: "calls of another library",
    PROGRAM: "the program",
}
#: Places in which a rank waits for all others.
_BARRIERS = frozenset({"bootstrap", "host"})
#: Seconds after which a call of the proxy is overdue.
_LONG = 30
#: The first release that gives room back behind the last plan of a group.
_BY_EVENTS = (2, 27)
#: The last release that counts the work of graphs into the FIFO.
_LEAKS = (2, 21)
_OUTSIDE = {
    "data": "Find out why its data comes late: the storage, the workers of its data loader, the length of its part of the data.",
    "checkpoint": "Find out whether all ranks reach this checkpoint, and whether its storage answers.",
    "compile": "Compile before the first collective, or raise the timeout: the other ranks wait while this one compiles.",
    "exception": "Read the exception in the output of this rank: it left the code that its peers run.",
    "debugger": "A debugger holds this rank: continue or end it.",
    "child": "Find out what the child process does for which this rank waits.",
    "exit": "Find out why this rank ended its program early: its last lines and its exit code.",
}


@rule(order=340)
def find(job: Job) -> list[Finding]:
    """PSM316 for where processes stand, PSM313 for those that stand elsewhere, PSM314 for a full work FIFO, PSM315 for a wait that lasts,
    PSM709 for ranks without a stack."""
    ours = standing.stands(job)
    if not ours:
        return []
    run = foreign.newest_run(job)
    known = [s for s in ours if step_of(s.kind) is not None]
    moves = [s for s in known if s.moved is not None]
    out: list[Finding] = []
    odd = _odd(known)
    blamed = _pointed_at(known) if not moves and len(known) == len(ours) else None
    if blamed is not None and odd and all(step_of(s.kind) in _PEERS and s.rank != blamed[0] for s in odd):
        odd = []  # it waits as well, and the inspections show for whom the others wait
    if odd:
        out.append(_elsewhere(job, run, known, odd, moves, whole=len(known) == len(ours)))
    full = [s for s in known if s.kind == "fifo"]
    if full:
        out.append(_fifo(job, run, ours, full, moves, explained=bool(odd)))
    waits = {step_of(s.kind) for s in known}
    if not odd and not full and len(waits) == 1 and (served := _services(job, run, known, moves)) is not None:
        out.append(served)
    if not odd and not full and waits and waits <= {*_PEERS} and len(known) == len(ours):
        if len(waits) == 1:
            out += _all_wait(job, run, known, moves, blamed)
        elif blamed is not None:
            out.append(_pointed(job, run, known, *blamed))
    lacking, nranks = standing.lacking(job)
    if lacking:
        failed = run is not None and proof.of(job, run).failed
        one = (
            not failed and not odd and len(waits) == 1 and waits <= {*_PEERS} and not moves and len(known) == len(ours)
        )
        out.append(_lacking(job, run, ours, lacking, nranks, wait=one))
    return [*out, *_died(job, run, ours), *_where(job, run, ours)]


def _died(job: Job, run: int | None, ours: Sequence[Stand]) -> list[Finding]:
    """PSM402 for the processes whose stacks gdb shows at a fatal signal, where no line of a log tells of an end."""
    known = FAULTS | {signals.SIGABRT}
    dead = [s for s in ours if s.kind == "dead" and signal_of(s.look.dump.signal) in known]
    if not dead or endings.gave_up(job, run) or ends(job, run):
        return []
    texts = {s.text for s in dead}
    title = f"{group_text(job, dead)} {dead[0].text if len(texts) == 1 else 'died by signals'}"
    threads = {s.look.thread.tid for s in dead if s.look.thread is not None and s.look.thread.tid != s.look.dump.pid}
    fault = all(signal_of(s.look.dump.signal) in FAULTS for s in dead)  # who aborts may do so for another one's failure
    of = f" in thread {threads.pop()}" if len(dead) == 1 and threads - {None} else ""
    finding = new_finding(
        job,
        "PSM402",
        run=run,
        title=f"{title}{of}",
        confidence=0.8,
        explanation="A debugger or a core shows the stacks at the time of the signal."
        + (" Each died by itself." if len(dead) > 1 else ""),
        next_step="Read the stack of this thread from its top: the arguments of the innermost frames (gdb: `frame N`, `info locals`) show which pointer or object is wrong."
        if fault
        else "Give the output of this process: its last lines say why it aborted.",
        ranks=[s.rank for s in dead if s.rank is not None][:64],
        procs=[s.proc for s in dead if s.proc is not None],
        culprits=[s.rank for s in dead if s.rank is not None and fault][:_SHOWN],
        named=[_named(s) for s in dead if s.proc is None and s.rank is None and fault][:_SHOWN],
        stage="killed",
    )
    return [replace(finding, evidence=_evidence(job, dead[:4]))]


# -- who stands elsewhere


def _odd(known: Sequence[Stand]) -> list[Stand]:
    """The processes that stand elsewhere than the others, which wait for their peers."""
    steps = Counter(step_of(s.kind) for s in known)
    if not known:
        return []
    most = steps.most_common(1)[0][0]
    if len(known) == 2 and len(steps) == 2:
        outside = [s for s in known if step_of(s.kind) == PROGRAM]
        return outside if len(outside) == 1 else []
    if len(known) > 2 and steps.keys() == {PROGRAM}:
        return _off_the_line(known)
    if len(known) < 3 or most not in _PEERS:
        return []
    odd = [s for s in known if step_of(s.kind) != most]
    if not odd and most == START:
        at_barrier = sum(s.kind == "bootstrap" for s in known)
        odd = [s for s in known if s.kind in _BEFORE_A_BARRIER] if 3 * at_barrier >= 2 * len(known) else []
    if not odd and most == DATA:
        on_gpu = sum(s.kind in ("device", "collective", "backward") for s in known)
        odd = [s for s in known if s.kind in ("launch", "fifo")] if 3 * on_gpu >= 2 * len(known) else []
    return odd if odd and 3 * len(odd) <= len(known) else []


def _off_the_line(known: Sequence[Stand]) -> list[Stand]:
    """The processes that are not at the line of the program where most are: py-spy shows no more of a call that waits for a GPU."""
    line, count = Counter(s.text for s in known).most_common(1)[0]
    odd = [s for s in known if s.text != line]
    there = next(s for s in known if s.text == line)
    return odd if there.kind == "elsewhere" and 3 * count >= 2 * len(known) else []


def _elsewhere(
    job: Job, run: int | None, known: Sequence[Stand], odd: Sequence[Stand], moves: Sequence[Stand], *, whole: bool
) -> Finding:
    chosen = {id(s) for s in odd}
    others = [s for s in known if id(s) not in chosen]
    name = group_text(job, odd)
    alike = len({s.text for s in odd}) == 1
    where = odd[0].text if alike or len(odd) == 1 else "stand elsewhere"
    if len(odd) > 1 and alike:
        where = standing.several(where)
    log = _lasting(job, run)
    # at a line of the program a rank can work, too; the two samples of one inspection are too close to tell a slow rank from a lost one
    looks = all(s.still for s in known) and _passed(known) and step_of(others[0].kind) != PROGRAM
    twice = all(len(s.looks) > 1 for s in known)
    halted = all(s.kind == "stopped" for s in odd)
    proven = not moves and (log or looks or halted)
    if moves:
        said = f"But {_moved(job, moves)}, so the job is not at a standstill."
    elif halted:
        said = "A process that a signal has stopped goes on only when somebody continues it."
    elif log:
        said = "Lines of the log show that the job waited."
    elif looks:
        said = f"{_still(known)} If the job goes on after all, this is its slow rank."
    else:
        said = "One look does not show whether it stays there."
    # a rank that waits for a peer itself, in another step, need not be the cause
    step = step_of(odd[0].kind)
    causes = proven and (step == PROGRAM or step == step_of(others[0].kind))
    own = _OUTSIDE.get(odd[0].kind) if alike or len(odd) == 1 else None
    if halted:
        pids = [str(s.look.dump.pid) for s in odd if s.look.dump.pid is not None]
        own = f"Continue it (kill -CONT {' '.join(pids)}), and find out who stopped it."
    finding = new_finding(
        job,
        "PSM313",
        run=run,
        title=f"{name} {where}, while {_others(job, others, whole=whole)}",
        severity=Severity.INFO if moves else Severity.ERROR if proven else Severity.WARNING,
        confidence=0.85 if halted else 0.8 if log else (0.65 if twice else 0.55) if looks else 0.6,
        explanation=f"{said} {_more(odd)}".strip(),
        next_step=" ".join(filter(None, (own or _general(odd), None if proven else _SECOND))),
        ranks=[s.rank for s in (*odd, *others) if s.rank is not None][:64],
        procs=[s.proc for s in odd if s.proc is not None],
        culprits=[s.rank for s in odd if s.rank is not None] if causes else [],
        suspects=[] if causes else [s.rank for s in odd if s.rank is not None],
        named=[_named(s) for s in odd if s.proc is None] if causes else [],
        stage=standing.STAGE,
    )
    return replace(finding, evidence=_evidence(job, [*odd[:3], *others[:2]]))


def _passed(known: Sequence[Stand]) -> bool:
    """Whether time passed between the samples of what stands still: two looks, or a call that is pending for long."""
    return all(len(s.looks) > 1 for s in known) or max(map(standing.oldest_call, known)) >= _LONG


def _others(job: Job, others: Sequence[Stand], *, whole: bool) -> str:
    """Where the others wait."""
    texts = Counter(s.look.place.text for s in others if s.look.place is not None)
    text, count = texts.most_common(1)[0]
    the = "the " if whole else ""
    if len(others) == 1:
        return f"{who(job, others[0])} {text}"
    if len(texts) == 1:
        at = others[0].text if len({s.text for s in others}) == 1 and others[0].kind == "elsewhere" else text
        return f"each of {the}{len(others)} other processes {at}"
    step = _WORDS[step_of(others[0].kind) or PROGRAM]
    return f"{the}{len(others)} other processes are in {step}: {count} of them {standing.several(text)}"


def _lasting(job: Job, run: int | None) -> bool:
    """Whether lines of the log show that the job waited."""
    return foreign.lasting(job) or (run is not None and bool(proof.of(job, run).lasting))


def _general(odd: Sequence[Stand]) -> str:
    if step_of(odd[0].kind) == PROGRAM:
        return "Find out why this rank does not call what the others wait in: data, a checkpoint, an exception or another branch of the program."
    return "Look at the peer for which this rank waits, and at the service threads of both."


def _named(stand: Stand) -> Named:
    dump = stand.look.dump
    return Named(rank=stand.rank, host=dump.host, pid=dump.pid)


def _more(group: Sequence[Stand]) -> str:
    """What inspections add: where the process stands in their words, and its pending calls."""
    out = []
    for stand in group[:2]:
        seen = stand.look.dump.inspection
        if seen is not None and seen.standing:
            out.append("The inspection says: " + "; ".join(s.text for s in seen.standing[:2]) + ".")
        if calls := standing.pending(stand):
            out.append(f"Pending calls: {'; '.join(calls[:4])}.")
    return " ".join(out)


def _moved(job: Job, moves: Sequence[Stand]) -> str:
    return f"{moves[0].moved} ({who(job, moves[0])})"


def _still(known: Sequence[Stand]) -> str:
    """What shows that nothing moved."""
    looks = min(len(s.looks) for s in known)
    if looks > 1:
        return f"{looks} looks at each of these processes show it in the same place."
    return "No word of progress moved while the processes were inspected."


# -- whose service threads stand elsewhere

#: Threads that a tool for native code shows of each rank.
_SERVICES = ("proxy service thread", "proxy UDS service thread", "proxy progress thread")
_NATIVE = frozenset({"gdb", "eu-stack", "psmkit inspect"})


def _services(job: Job, run: int | None, known: Sequence[Stand], moves: Sequence[Stand]) -> Finding | None:
    """The few processes whose proxy lacks a thread, or whose proxy does something while that of the others is idle."""
    ours = [s for s in known if s.look.dump.tool in _NATIVE and len(s.look.dump.threads) > 1]
    if len(ours) < 3 or len(ours) < len(known) or moves:
        return None
    start = step_of(known[0].kind) == START
    for role in _SERVICES:
        places = {id(s): _place_of_role(s, role) for s in ours}
        lacks = [s for s in ours if places[id(s)] is None]
        busy = [s for s in ours if (place := places[id(s)]) is not None and place.kind != "idle"]
        idle = [s for s in ours if (place := places[id(s)]) is not None and place.kind == "idle"]
        odd = lacks or busy
        if not odd or 3 * len(odd) > len(ours) or len(odd) + len(idle) < len(ours):
            continue
        place = places[id(odd[0])]
        does = (
            f"the {role} of {group_text(job, odd)} {place.text}"
            if place is not None
            else f"{group_text(job, odd)} {plural(len(odd), 'has', 'have')} no {role}"
        )
        rest = (
            f"those of the {len(idle)} other processes are idle"
            if place is not None
            else f"the {len(idle)} other processes have one"
        )
        still = all(s.still for s in ours)
        # the threads of a proxy work at any time while data moves: one look shows nothing then
        tells = place is None or still or (start and role != "proxy progress thread")
        finding = new_finding(
            job,
            "PSM313",
            run=run,
            title=f"{does}, while {rest}",
            severity=Severity.WARNING if tells else Severity.INFO,
            confidence=0.55,
            explanation=f"The programs of all these processes wait in one step. {_still(ours) if still else 'One look does not show whether it stays so.'}",
            next_step=f"Look at this thread: what it waits for, and for which peer. {'' if still else _SECOND}".strip(),
            ranks=[s.rank for s in (*odd, *idle) if s.rank is not None][:64],
            procs=[s.proc for s in odd if s.proc is not None],
            suspects=[s.rank for s in odd if s.rank is not None],
            stage=standing.STAGE,
        )
        return replace(finding, evidence=_evidence(job, [*odd[:3], *idle[:1]]))
    return None


def _place_of_role(stand: Stand, role: str) -> Place | None:
    return next((place for t in stand.look.dump.threads if (place := place_of(t)).role == role), None)


# -- a full work FIFO


def _fifo(
    job: Job, run: int | None, ours: Sequence[Stand], full: Sequence[Stand], moves: Sequence[Stand], *, explained: bool
) -> Finding:
    every = len(full) == len(ours)
    still = _lasting(job, run) or all(s.still and (len(s.looks) > 1 or len(full) > 1) for s in full)
    proven = not moves and not explained and every and (still or len(full) > 1)
    if moves:
        said = f"But {_moved(job, moves)}, so the job is not at a standstill."
    elif still:
        said = _still(full) if all(s.still for s in full) else "Lines of the log show that the job waited."
    elif every and len(full) > 1:
        said = (
            "All processes stand there at the same time, so none of them launches what could free room at another one."
        )
    else:
        said = "One look at one process does not show whether the GPU frees room later." if len(ours) == 1 else ""
    many = "" if len(full) == 1 else f"each of the {len(full)} " if every else ""
    name = f"{many}processes" if many else group_text(job, full)
    waits = "waits" if len(full) == 1 or many else "wait"
    finding = new_finding(
        job,
        "PSM314",
        run=run,
        title=f"{name} {waits} for room in NCCL's work FIFO, which is full",
        severity=Severity.INFO if moves or explained else Severity.ERROR if proven else Severity.WARNING,
        confidence=0.85 if still else 0.65,
        explanation=f"The launch of a kernel waits in waitWorkFifoAvailable until the GPU has consumed earlier work. {said}",
        next_step=_fifo_step(proven, still, shown_release(job, run)),
        ranks=[s.rank for s in full if s.rank is not None][:64],
        procs=[s.proc for s in full if s.proc is not None],
        stage="work FIFO",
        known_issue="NVIDIA/nccl#1251" if (shown_release(job, run) or _LEAKS) <= _LEAKS else None,
    )
    return replace(finding, evidence=_evidence(job, full[:4]))


def _fifo_step(proven: bool, still: bool, release: tuple[int, int] | None) -> str:
    if release is not None and release >= _BY_EVENTS:
        text = "From NCCL 2.27.3 on, one group of sends and recvs that needs more than the FIFO waits for itself: `psmkit plan lint` says how large a group may be. Split it, or set a larger NCCL_WORK_FIFO_BYTES. If groups are small, find what the GPU waits for."
        return text if proven and still else f"{_SECOND} {text}"
    text = "Find what the GPU waits for: a kernel whose peers did not launch, or work that NCCL never frees (CUDA graphs before NCCL 2.22). A larger NCCL_WORK_FIFO_BYTES (NCCL_WORK_FIFO_DEPTH before 2.22) only delays it."
    return text if proven and still else f"{_SECOND} {text}"


# -- nobody stands elsewhere


def _all_wait(
    job: Job, run: int | None, known: Sequence[Stand], moves: Sequence[Stand], blamed: tuple[int, int] | None
) -> list[Finding]:
    """PSM315, if all processes wait for peers in a step that a job passes once, and do not go on."""
    step = step_of(known[0].kind)
    passed = _passed(known) or _lasting(job, run)
    if moves or step not in _ONCE or not all(s.still for s in known) or not passed:
        return [_pointed(job, run, known, *blamed)] if blamed is not None else []
    text = Counter(s.look.place.text for s in known if s.look.place is not None).most_common(1)[0][0]
    name = who(job, known[0]) if len(known) == 1 else f"each of the {len(known)} processes"
    same = len({s.look.place.text for s in known if s.look.place is not None}) == 1
    title = f"{name} {text}" if same else f"{name} waits for peers, most of them in this: it {text}"
    if blamed is not None:
        title += f"; {counted(blamed[1], 'of them waits', 'of them wait')} for rank {blamed[0]}"
    finding = new_finding(
        job,
        "PSM315",
        run=run,
        title=f"{title}, and nothing moves",
        confidence=0.7,
        explanation=f"{_still(known)} A job is in this step once. {_more(known)}".strip(),
        ranks=[s.rank for s in known if s.rank is not None][:64],
        procs=[s.proc for s in known if s.proc is not None],
        culprits=[blamed[0]] if blamed is not None else [],
        stage="init" if step == START else "destroy",
    )
    return [replace(finding, evidence=_evidence(job, known[:4]))]


def _pointed(job: Job, run: int | None, known: Sequence[Stand], rank: int, votes: int) -> Finding:
    """The rank for which the others wait, by one look of inspections."""
    there = next(s for s in known if s.rank == rank)
    finding = new_finding(
        job,
        "PSM313",
        run=run,
        title=f"{votes} of {len(known)} inspected ranks {plural(votes, 'waits', 'wait')} for {who(job, there)}, which {_says(there, rank)}",
        severity=Severity.WARNING,
        confidence=0.6,
        explanation=f"It waits for none of them. One look does not show whether it stays there. {_more([there])}".strip(),
        next_step=f"Look at the service threads of this rank. {_SECOND}",
        ranks=[s.rank for s in known if s.rank is not None][:64],
        procs=[s.proc for s in known if s.proc is not None],
        suspects=[rank],
        stage=standing.STAGE,
    )
    others = [s for s in known if s is not there]
    return replace(finding, evidence=_evidence(job, [there, *others[:3]]))


def _says(stand: Stand, rank: int) -> str:
    """Where an inspected rank stands, in the words of its inspection if it has any."""
    seen = stand.look.dump.inspection
    said = seen.standing[0].text if seen is not None and seen.standing else ""
    return said.removeprefix(f"rank {rank} ") if said.startswith(f"rank {rank} ") else stand.text


def _pointed_at(known: Sequence[Stand]) -> tuple[int, int] | None:
    """The inspected rank for which the others wait, themselves or through others, with their number; it waits for nobody but its own proxy."""
    waits: dict[int, set[int]] = defaultdict(set)
    for stand in known:
        seen = stand.look.dump.inspection
        for one in seen.standing if seen is not None else ():
            if one.peer is not None and stand.rank is not None and one.peer != stand.rank:
                waits[stand.rank].add(one.peer)
    ends = {peer for peers in waits.values() for peer in peers} - waits.keys()
    if len(ends) != 1 or all(s.rank not in ends for s in known):
        return None
    (end,) = ends
    # a circle of ranks waits for itself, whatever else it waits for
    reached, grown = {end}, True
    while grown:
        more = {rank for rank, peers in waits.items() if peers <= reached} - reached
        reached |= more
        grown = bool(more)
    if not waits.keys() <= reached:
        return None
    apart = [s for s in known if s.rank not in reached]
    if any(s.kind not in _BARRIERS for s in apart) and 2 * len(waits) < len(known) - 1:
        return None
    return end, len(waits)


def _lacking(
    job: Job, run: int | None, ours: Sequence[Stand], lacking: Sequence[int], nranks: int, *, wait: bool
) -> Finding:
    spans = spans_text(spans_of(lacking))
    count = "the given rank waits" if len(ours) == 1 else f"each of the {len(ours)} given ranks waits"
    finding = new_finding(
        job,
        "PSM709",
        run=run,
        title=f"{plural(len(lacking), 'the stack', 'the stacks')} of {spans} of {nranks} {plural(len(lacking), 'is', 'are')} missing",
        severity=Severity.WARNING if wait else Severity.INFO,
        confidence=0.5,
        explanation=f"{count[0].upper()}{count[1:]} for peers, and the one that stays away can be among those without a stack."
        if wait
        else None,
        next_step=f"Take the {plural(len(lacking), 'stack', 'stacks')} of {spans} as well.",
        ranks=lacking[:64],
        suspects=lacking[:_SHOWN] if wait and len(lacking) <= _SHOWN else [],
        stage=standing.STAGE,
    )
    return replace(finding, evidence=_evidence(job, ours[:1]))


# -- where all of them stand


def _where(job: Job, run: int | None, ours: Sequence[Stand]) -> list[Finding]:
    """PSM316 for each place, with the processes that stand there."""
    groups: dict[str, list[Stand]] = defaultdict(list)
    told = {"dead"} if _died(job, run, ours) else set()
    for stand in (s for s in ours if s.kind not in told):
        groups[stand.look.place.text if stand.look.place is not None else stand.text].append(stand)
    return [_place(job, run, group) for group in sorted(groups.values(), key=lambda g: -len(g))[:_SHOWN]]


def _place(job: Job, run: int | None, group: Sequence[Stand]) -> Finding:
    main = group[0].look.thread
    services: Counter[str] = Counter()
    for stand in group:
        seen = {_thread_text(thread) for thread in stand.look.dump.threads if thread is not stand.look.thread}
        services.update(text for text in seen if text is not None)
    threads = [
        text + (f" ({count} of {len(group)})" if len(group) > 1 else "") for text, count in services.most_common(_SHOWN)
    ]
    count = counted(len(group[0].look.dump.threads), "thread")
    role = group[0].look.place.role if group[0].look.place is not None else "main thread"
    finding = new_finding(
        job,
        "PSM316",
        run=run,
        title=f"{group_text(job, group)}: {'a' if role == 'thread' else 'the'} {role} {group[0].text}"
        if main is not None
        else f"{group_text(job, group)}: no thread of the program is known",
        confidence=0.7,
        explanation=" ".join(
            filter(
                None,
                (
                    f"{who(job, group[0])} has {count}." if len(group) > 1 else f"{count[0].upper()}{count[1:]}.",
                    f"Other threads: {'; '.join(threads)}." if threads else "",
                    _more(group),
                ),
            )
        ),
        ranks=[s.rank for s in group if s.rank is not None][:64],
        procs=[s.proc for s in group if s.proc is not None],
        stage=standing.STAGE,
    )
    return replace(finding, evidence=_evidence(job, group[:4]))


def _thread_text(thread: StackThread) -> str | None:
    place = place_of(thread)
    if place.role in ("thread", "main thread") and step_of(place.kind) in (None, PROGRAM):
        return None
    return f"{place.role} {place.text}"


def _evidence(job: Job, group: Iterable[Stand]) -> tuple[Evidence, ...]:
    return tuple(Evidence(s.look.path, s.look.line, f"{who(job, s)} {s.text}") for s in group)
