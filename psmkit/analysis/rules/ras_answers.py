"""Answers of ncclras: missing ranks, ranks that are behind, and answers that prove less than they seem to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from psmkit.analysis.facts import foreign, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, name_of, ranks_text
from psmkit.analysis.inference import frontier, proof
from psmkit.analysis.inference.findings import new_finding, with_evidence
from psmkit.analysis.inference.frontier import Owes
from psmkit.analysis.inference.ras_tables import tables
from psmkit.analysis.inference.waiting import DEADLINE
from psmkit.analysis.registry import rule
from psmkit.logparse.foreign.ras_json import parse_ras_json
from psmkit.logparse.foreign.ras_text import parse_ras_text
from psmkit.logparse.foreign.types import RasComm, RasIssue, RasProcess, RasRank, RasReport
from psmkit.logparse.types import Ref
from psmkit.model import Evidence, Finding, Severity
from psmkit.model.late import dataclass, regex
from psmkit.model.results import WORDS
from psmkit.model.wording import counted

__all__ = ["find"]

_RESULTS = {**WORDS, 6: "remote process error"}
_MOST = 8
#: The operation where an answer does not tell which.
_ANY = "collective"
#: The word of the table for a communicator without a complaint.
_NO_ERROR = "OK"
_NUMBER = regex(r"-?[0-9]{1,18}")
# Answers in JSON that are read of one log, and lines of one of them.
_MOST_JSON, _JSON_LINES = 20, 20_000
# The start of an answer's line, after a launcher's prefix.
_BEGIN = regex(
    r"Job summary|#\d+-\d+ \(|Rank \d+ |Process \d+ |\d+ ranks |\d+ job process|Communicator ranks|The missing|Missing comm"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One RAS answer and its path; ``lines`` are those of an answer inside a log, ``first`` is where one in JSON begins."""

    path: str
    report: RasReport
    lines: tuple[Evidence, ...] = ()
    first: int = 1

    def line(self, number: int, text: str) -> Evidence:
        if 0 < number <= len(self.lines):
            return self.lines[number - 1]
        return Evidence(self.path, max(number, self.first), text)


@dataclass(frozen=True, slots=True)
class _Lag:
    """Ranks of a communicator that launched fewer operations than others, from one answer."""

    operation: str
    ranks: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]  # (rank, operations) of those that are behind
    most: int
    evidence: Evidence
    behind: int = 0  # how many are behind, listed or not


@rule(order=330)
def find(job: Job) -> list[Finding]:
    """The evidence of the answers: files of them, and answers inside logs."""
    answers = (
        _in_logs(job)
        + _json_in_logs(job)
        + [Answer(item.path, report) for item in foreign.inputs(job) for report in item.ras]
    )
    if not answers:
        return []
    answers = _distinct(sorted(answers, key=lambda a: a.report.time or ""))
    run = foreign.newest_run(job)
    lasting = foreign.lasting(job) or (
        run is not None and bool(proof.of(job, run).lasting or job.events(*DEADLINE, run=run))
    )
    out: list[Finding] = []
    out.extend(_lost(job, answers, run, lasting or _standing(answers)))
    out.extend(_errors(job, answers, run))
    out.extend(_lags(job, answers, run, lasting))
    return out or _complaint(job, answers[-1], run) or _healthy(job, answers, run)


def _in_logs(job: Job) -> list[Answer]:
    """The answers inside logs, parsed as whole answers are."""
    out: list[Answer] = []
    streams: dict[int, list[Evidence]] = {}
    for event in job.events("rastext."):
        said = streams.setdefault(event.stream, [])
        (found,) = job.quotes.of(event.ref)
        begin = _BEGIN.search(found.text)
        if begin is None:
            continue
        heading = {"rastext.dead": "DEAD", "rastext.missing": "INCOMPLETE"}.get(event.name)
        if heading is not None and "rank" not in found.text[begin.start() :]:
            # The heading itself is too common a word to search for in a log.
            said.append(Evidence(found.file, found.line, heading))
        said.append(Evidence(found.file, found.line, found.text[begin.start() :]))
    for said in streams.values():
        starts = [i for i, line in enumerate(said) if line.text.startswith("Job summary")] or [0]
        for start, end in zip(starts, [*starts[1:], len(said)], strict=True):
            part = tuple(said[start:end])
            reports = parse_ras_text("\n".join(line.text for line in part))
            out.extend(Answer(part[0].file, report, part) for report in reports if report.issues or report.dead)
    return out or [Answer(part[0].file, report, part) for report, part in tables(job)]


def _json_in_logs(job: Job) -> list[Answer]:
    """The answers in JSON inside logs."""
    out: list[Answer] = []
    for event in job.events("rasjson.answer")[:_MOST_JSON]:
        (begin,) = job.quotes.of(event.ref)
        for report in parse_ras_json(_document(job, event.ref)):
            out.append(Answer(begin.file, report, first=begin.line))
    return out


def _document(job: Job, ref: Ref) -> str:
    """The lines from a place on up to the end of the object that begins there, or in the line before."""
    parts: list[str] = []
    prefix, depth, offset = "", 0, ref.offset
    for number in range(_JSON_LINES):
        (found,) = job.quotes.of(Ref(ref.file, ref.line + number, offset, ref.seq))
        text = found.text
        offset += len(text.encode("utf-8", "replace")) + 1
        if not parts:
            head, opened, _ = text.partition("{")
            head = head if opened else text[: text.index('"')] if '"' in text else ""
            prefix = head.rstrip()
            text = text[len(head) :] if opened else "{" + text[len(head) :]
        parts.append(text.removeprefix(prefix))
        depth += parts[-1].count("{") - parts[-1].count("}")
        if depth <= 0:
            break
    return "\n".join(parts)


def _distinct(answers: Sequence[Answer]) -> list[Answer]:
    """The answers, each once: the same answer in two inputs is one look at the job."""
    seen: set[tuple[object, ...]] = set()
    out: list[Answer] = []
    for answer in answers:
        report = answer.report
        key = (report.time, report.version, report.timeouts, _looks(report))
        if report.time is None or report.events or key not in seen:
            out.append(answer)
        seen.add(key)
    return out


def _looks(report: RasReport) -> tuple[object, ...]:
    """What an answer says about ranks and their operations."""
    return (*sorted(_counts(report).items(), key=str), *sorted(_absent(report), key=str))


def _counts(report: RasReport) -> dict[tuple[str | None, str], tuple[tuple[object, ...], ...]]:
    """The launched operations of each communicator that an answer has, by communicator and operation."""
    out: dict[tuple[str | None, str], list[tuple[object, ...]]] = {}
    for comm in report.comms:
        for rank in comm.ranks:
            for operation, number in rank.counts.items():
                out.setdefault((_comm(comm.hash), operation), []).append((rank.rank, number))
    for issue in report.issues:
        if issue.kind == "MISMATCH" and "operation counts" in issue.what:
            values = [(v.value, v.count) for v in issue.values]
            out.setdefault((_comm(issue.hash), issue.operation or _ANY), []).extend(values)
    return {key: tuple(sorted(values)) for key, values in out.items()}


def _absent(report: RasReport) -> set[tuple[object, ...]]:
    """The processes and ranks that an answer lacks."""
    out: set[tuple[object, ...]] = {(p.host, p.pid) for p in report.missing}
    out |= {(_comm(c.hash), r.rank) for c in report.comms for r in c.ranks if r.missing and r.unresponsive}
    return out | {(_comm(i.hash), n) for i in report.issues if i.kind == "INCOMPLETE" for n in i.missing}


def _standing(answers: Sequence[Answer]) -> bool:
    """Whether the two newest answers lack the same ranks, and show the same numbers of operations for the others."""
    reports = [a.report for a in answers if _absent(a.report) or _counts(a.report)][-2:]
    if len(reports) < 2 or not _absent(reports[0]) & _absent(reports[1]):
        return False
    before, after = (_counts(report) for report in reports)
    return bool(after) and before == after


def _comm(hash_: int | None) -> str | None:
    return f"0x{hash_:x}" if hash_ is not None else None


def _proc(job: Job, run: int | None, host: str | None, pid: int | None) -> int | None:
    """RAS names hosts by address, so a process id identifies a process if it is unique."""
    if run is None or pid is None:
        return None
    found = outside.proc_of_pid(job, run, pid, host)
    return found if found is not None else outside.proc_of_pid(job, run, pid)


def _lost(job: Job, answers: Sequence[Answer], run: int | None, lasting: bool) -> list[Finding]:
    """Processes that RAS cannot reach or has given up on; the newest answer counts.

    RAS gives up only after retries for about a minute. Before that, one answer shows that a process did not answer once, and no more.
    """
    found: dict[tuple[str, int], tuple[Answer, RasProcess, bool]] = {}
    ranks: dict[tuple[str | None, int], tuple[Answer, RasRank, bool]] = {}
    for answer in answers:
        report = answer.report
        for process in report.missing:
            found.setdefault((process.host, process.pid), (answer, process, False))
        for process in report.dead:
            found[(process.host, process.pid)] = (answer, process, True)
        for event in report.events:
            if event.process is not None and "DEAD" in event.event:
                found[(event.process.host, event.process.pid)] = (answer, replace(event.process, line=event.line), True)
        for comm in report.comms:
            for rank in comm.ranks:
                if rank.missing and (rank.unresponsive or rank.dead):
                    ranks[(_comm(comm.hash), rank.rank)] = (answer, rank, rank.dead)
        for issue in report.issues:
            for number in issue.missing if issue.kind == "INCOMPLETE" else ():
                detail = next(
                    (r for v in issue.values for r in v.ranks if r.rank == number), RasRank(number, line=issue.line)
                )
                ranks.setdefault((_comm(issue.hash), number), (answer, detail, False))
    out: list[Finding] = []
    by_rank: dict[tuple[str | None, int], list[tuple[str | None, int]]] = {}
    for comm_name, number in ranks:
        rank = ranks[(comm_name, number)][1]
        # A process missing from several communicators is one finding, on the first of them.
        key = (rank.host, rank.pid) if rank.pid is not None else (comm_name, number)
        by_rank.setdefault(key, []).append((comm_name, number))
    named: set[int] = set()
    for places in by_rank.values():
        answer, rank, dead = ranks[places[0]]
        dead = dead or (
            rank.pid is not None and any(pid == rank.pid and gone for (_, pid), (_, _, gone) in found.items())
        )
        dead = dead or (rank.pid is None and len(found) == 1 and next(iter(found.values()))[2])
        if rank.pid is not None:
            named.add(rank.pid)
        elif len(found) == len(by_rank) == 1:
            process = next(iter(found.values()))[1]
            rank = replace(rank, host=process.host, pid=process.pid)
            named.add(process.pid)
        out.append(_gone(job, run, answer, rank, places[0][0], dead, len(places), lasting))
    for (host, pid), (answer, process, dead) in found.items():
        if pid in named or (ranks and not dead):
            continue
        out.append(_gone_process(job, run, answer, process, dead, _proc(job, run, host, pid), lasting))
    return out


def _gone(
    job: Job,
    run: int | None,
    answer: Answer,
    rank: RasRank,
    comm: str | None,
    dead: bool,
    comms: int,
    lasting: bool,
) -> Finding:
    proc = _proc(job, run, rank.host, rank.pid)
    place = f" (process {rank.pid} on {rank.host})" if rank.pid is not None else ""
    name = f"rank {rank.rank} of {comm or 'a communicator'}{place}"
    process = RasProcess(rank.host, rank.pid) if rank.pid is not None and rank.host is not None else None
    return _unreachable(
        job,
        run,
        name,
        answer.line(rank.line, name),
        process=process,
        proc=proc,
        rank=rank.rank,
        comm=comm,
        comms=comms,
        dead=dead,
        lasting=lasting,
    )


def _gone_process(
    job: Job, run: int | None, answer: Answer, process: RasProcess, dead: bool, proc: int | None, lasting: bool
) -> Finding:
    rank = job.rank_of(proc) if proc is not None else None
    name = name_of(job, proc) if proc is not None else f"process {process.pid} on {process.host}"
    line = answer.line(process.line, f"process {process.pid} on node {process.host}")
    return _unreachable(job, run, name, line, process=process, proc=proc, rank=rank, dead=dead, lasting=lasting)


def _unreachable(
    job: Job,
    run: int | None,
    name: str,
    line: Evidence,
    *,
    process: RasProcess | None,
    proc: int | None,
    rank: int | None,
    comm: str | None = None,
    comms: int = 1,
    dead: bool,
    lasting: bool,
) -> Finding:
    """PSM407 for a process that RAS lacks: an error if RAS gave it up, or if time passed; else one moment shows no hang."""
    proven = dead or lasting
    what = "is dead according to RAS" if dead else "does not answer RAS" if lasting else "did not answer one RAS query"
    which = f"process {process.pid} on {process.host}" if process is not None else "the process of this rank"
    explanation = "RAS could not reach this process: the process or its host is stopped, overloaded or dead."
    if not proven:
        explanation = "One answer shows one moment. A process that runs may miss it when its host is loaded."
    if comms > 1:
        explanation += f" It is missing from {counted(comms, 'communicator')}."
    look = f"Look at {which}: check whether it runs, is stopped, or is in a driver call (/proc/PID/stack)."
    again = (
        "Query RAS again after a minute (ncclras -v prints the operation counts): if the rank is still missing and the "
        f"counts of the others are the same, the job hangs. {look}"
    )
    return with_evidence(
        new_finding(
            job,
            "PSM407",
            run=run,
            comm=comm,
            title=f"{name} {what}",
            severity=Severity.ERROR if proven else Severity.WARNING,
            confidence=0.9 if dead else 0.85 if lasting else 0.5,
            explanation=explanation,
            next_step=look if proven else again,
            ranks=[rank] if rank is not None else [],
            procs=[proc] if proc is not None else [],
            culprits=[rank] if rank is not None and proven else [],
            stage="unresponsive",
        ),
        [line],
    )


def _errors(job: Job, answers: Sequence[Answer], run: int | None) -> list[Finding]:
    """Errors that ranks report through RAS. A remote error points at another rank."""
    out: list[Finding] = []
    for answer in answers[-1:]:
        for comm in answer.report.comms:
            failed = [(r, c) for r in comm.ranks if (c := _error(r)) is not None]
            if failed:
                own = [r.rank for r, c in failed if c != 6]
                texts = joined(f"rank {r.rank}: {_RESULTS.get(c, f'error {c}')}" for r, c in failed[:_MOST])
                out.append(
                    _error_finding(job, run, answer, _comm(comm.hash), [r.rank for r, _ in failed], own, texts, 1)
                )
        for issue in answer.report.issues:
            if issue.kind == "ERROR":
                ranks = [r.rank for v in issue.values for r in v.ranks]
                own = [r.rank for v in issue.values if "Remote" not in v.value for r in v.ranks]
                texts = joined(f"{v.count} x {v.value}" for v in issue.values) or issue.what
                out.append(_error_finding(job, run, answer, _comm(issue.hash), ranks, own, texts, issue.line))
    return out


def _error(rank: RasRank) -> int | None:
    return next((c for c in (rank.async_error, rank.init_state) if c is not None and c not in (0, 7)), None)


def _error_finding(
    job: Job, run: int | None, answer: Answer, comm: str | None, ranks: list[int], own: list[int], texts: str, line: int
) -> Finding:
    return with_evidence(
        new_finding(
            job,
            "PSM401",
            run=run,
            comm=comm,
            title=f"RAS reports errors in {comm or 'a communicator'}: {texts}",
            confidence=0.85,
            explanation="The ranks returned or recorded these errors. A remote process error points at another rank.",
            ranks=ranks,
            culprits=own if len(own) == 1 else [],
            stage="error",
        ),
        [answer.line(line, texts)],
    )


def _lag_of_comm(answer: Answer, comm: RasComm) -> list[_Lag]:
    present = [r for r in comm.ranks if not r.missing and r.counts]
    out = []
    for operation in dict.fromkeys(name for r in present for name in r.counts):
        counts = {r.rank: r.counts.get(operation, 0) for r in present}
        most = max(counts.values(), default=0)
        behind = tuple((r, n) for r, n in sorted(counts.items()) if n < most)
        if behind:
            text = (
                f"{operation}: " + ", ".join(f"rank {r} at {n}" for r, n in behind[:_MOST]) + f", the others at {most}"
            )
            out.append(_Lag(operation, tuple(r for r, _ in behind), behind, most, answer.line(1, text), len(behind)))
    return out


def _lag_of_issue(answer: Answer, issue: RasIssue) -> _Lag | None:
    if issue.kind != "MISMATCH" or "operation counts" not in issue.what:
        return None
    numbers = [(int(v.value), v) for v in issue.values if _NUMBER.fullmatch(v.value)]
    most = max((n for n, _ in numbers), default=0)
    behind = tuple((r.rank, n) for n, v in numbers if n < most for r in v.ranks)
    if not any(n < most for n, _ in numbers):
        return None
    text = f"{issue.operation or 'collective'}: " + ", ".join(f"{v.count} at {v.value}" for _, v in numbers)
    count = sum(v.count for n, v in numbers if n < most)
    ranks = tuple(r for r, _ in behind)
    return _Lag(issue.operation or _ANY, ranks, behind, most, answer.line(issue.line, text), count)


def _lags(job: Job, answers: Sequence[Answer], run: int | None, lasting: bool) -> list[Finding]:
    """Ranks with fewer operations. In one answer that is normal work; the same figures twice are not."""
    history: dict[tuple[str | None, str], list[_Lag]] = {}
    for answer in answers:
        for comm in answer.report.comms:
            for lag in _lag_of_comm(answer, comm):
                history.setdefault((_comm(comm.hash), lag.operation), []).append(lag)
        for issue in answer.report.issues:
            found = _lag_of_issue(answer, issue)
            if found is not None:
                history.setdefault((_comm(issue.hash), found.operation), []).append(found)
    out: list[Finding] = []
    owes = frontier.suspect(job, run) if run is not None and not lasting else None
    late = job.rank_of(owes.proc) if owes is not None else None
    agreed = {key: lags for key, lags in history.items() if len(lags) == 1 and lags[0].ranks == (late,)}
    if owes is not None and agreed:
        out.append(_agrees(job, run, owes, agreed))
        history = {key: lags for key, lags in history.items() if key not in agreed}
    for (name, operation), lags in history.items():
        last = lags[-1]
        same = len(lags) > 1 and lags[-2].counts == last.counts and lags[-2].most == last.most
        if not same and len(lags) > 1:
            continue  # the figures change: it works
        proven = same or lasting
        who = ranks_text(last.ranks) if len(last.ranks) == last.behind else counted(last.behind, "rank")
        out.append(
            with_evidence(
                new_finding(
                    job,
                    "PSM304",
                    run=run,
                    comm=name,
                    title=f"{who} of {name or 'a communicator'} {'are' if last.behind != 1 else 'is'} {_behind(operation, last.most)}"
                    + (", and two RAS answers show the same counts" if same else ""),
                    severity=Severity.ERROR if proven else Severity.INFO,
                    confidence=0.9 if same else 0.8 if lasting else 0.4,
                    explanation="RAS counts the operations that each rank launched. The ranks behind have not launched what their peers wait for."
                    if proven
                    else "RAS counts the operations that each rank launched. A healthy job also shows differences in a single answer.",
                    next_step="Take the stacks of the ranks behind, and read their last lines."
                    if proven
                    else "Query RAS again after a minute. If the counts are the same, the ranks behind are stuck.",
                    ranks=last.ranks,
                    culprits=last.ranks if proven else [],
                    stage="collective",
                ),
                [lag.evidence for lag in lags[-2:]],
            )
        )
    return out


def _behind(operation: str, most: int) -> str:
    if operation == _ANY:  # some releases count all collectives together
        return f"behind: other ranks launched {most} collective operations"
    return f"behind in {operation}: other ranks launched {most}"


def _agrees(job: Job, run: int | None, owes: Owes, agreed: Mapping[tuple[str | None, str], Sequence[_Lag]]) -> Finding:
    """One answer shows the rank behind that also stands behind in the logs: its log was not cut before that answer."""
    who = name_of(job, owes.proc)
    told = joined(f"{op} ({lag.counts[0][1]} of {lag.most})" for (_, op), (lag,) in agreed.items())
    comms = {name for name, _ in agreed}
    return with_evidence(
        new_finding(
            job,
            "PSM304",
            run=run,
            comm=next(iter(comms)) if len(comms) == 1 else None,
            title=f"RAS shows {who} behind, as the logs do: in {told}",
            severity=Severity.WARNING,
            confidence=0.6,
            explanation=f"RAS counts the operations that each rank launched. In the logs the same rank owes {owes.step}. So its log was not cut before this answer. One answer does not show that the wait lasts.",
            next_step=f"Take the stack of {who}. If the processes are gone, run again and query RAS twice, a minute apart: the same counts prove the hang.",
            ranks=next(iter(agreed.values()))[0].ranks,
            procs=[owes.proc],
            stage="collective",
        ),
        [lag.evidence for (lag,) in agreed.values()],
    )


def _complaint(job: Job, answer: Answer, run: int | None) -> list[Finding]:
    """A complaint of which no rule knows the words, or whose ranks no line names: it is quoted, and never called no error."""
    told = [
        *((i.line, f"{i.kind} in {_comm(i.hash)}" + (f": {i.what}" if i.what else "")) for i in answer.report.issues),
        *(
            (c.line, f"{c.errors} in a communicator of {counted(c.size, 'rank')}")
            for c in answer.report.comms
            if c.errors not in (None, _NO_ERROR)
        ),
    ]
    if not told:
        return []
    return [
        with_evidence(
            new_finding(
                job,
                "PSM304" if "MISMATCH" in told[0][1] else "PSM604",
                run=run,
                title=f"the RAS answer reports {told[0][1]}; its lines do not show which ranks it means",
                severity=Severity.WARNING,
                explanation="RAS complains about this communicator. One answer does not show whether the state lasts.",
                next_step="Query RAS again after a minute, with -v: if the same complaint is there, take the stacks of the ranks that it names.",
            ),
            [answer.line(line, text) for line, text in told[:_MOST]],
        )
    ]


def _healthy(job: Job, answers: Sequence[Answer], run: int | None) -> list[Finding]:
    """An answer without a complaint overlooks an operation that all ranks launched and none completes."""
    last = answers[-1]
    if not last.report.comms or not last.report.complete:
        return []
    count = sum(c.comms for c in last.report.comms)
    what = counted(count, "communicator") + (f" of {size} ranks" if (size := _size(last.report)) is not None else "")
    return [
        with_evidence(
            new_finding(
                job,
                "PSM604",
                run=run,
                title=f"the RAS answer about {what} shows no error, which does not rule out a hang",
                explanation="RAS shows which operations were launched, not which are complete. A collective that all ranks launched and that hangs looks healthy.",
                next_step="Compare the counts of two answers. Take stacks of the proxy threads, or a proxy dump.",
                known_issue="NVIDIA/nccl#1730",
            ),
            [last.line(last.report.comms[0].line if last.lines else 1, f"{counted(count, 'communicator')}, no errors")],
        )
    ]


def _size(report: RasReport) -> int | None:
    """The number of ranks of the only communicator of an answer."""
    only = report.comms[0]
    return only.size if len(report.comms) == 1 and only.comms == 1 else None
