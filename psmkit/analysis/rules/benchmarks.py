"""Benchmarks that stopped, or whose results are wrong."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import endings, lines, outside, program
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.labels import rank_by_tag
from psmkit.analysis.facts.launcher_ends import host_of
from psmkit.analysis.facts.naming import spans_of, spans_text
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.tags import rank_in_line
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Named
from psmkit.model.wording import counted

__all__ = ["find"]

_UNTOLD = "Run again with NCCL_DEBUG=INFO and give the output of all ranks: NCCL then prints the reason, which this log does not hold."
_ABOVE = "Give the whole output of all ranks: NCCL prints the reason in a WARN line above this one, which this log does not hold."
_CORRUPTS = "Repeat with other values of NCCL_ALGO and NCCL_PROTO and with other transports. Check the slots and flags of a custom transport."


@rule(order=36)
def find(job: Job) -> list[Finding]:
    """PSM401 for wrong values and for calls that failed."""
    return [finding for run in endings.runs(job) for finding in _tests(job, run)]


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
                    explanation="The operations completed, but their results are wrong.",
                    next_step=_CORRUPTS,
                    refs=[event.ref],
                    stage="error",
                )
            )
    wrong = program.wrong_rows(job, run) if not out else []
    if wrong:
        numbers = {n for e in wrong for f in ("wrong", "wrong2") if (n := number(e.fields, f) or 0) > 0}
        count = sum(max(e.count, 1) for e in wrong)
        found = f"{min(numbers)} to {max(numbers)}" if len(numbers) > 1 else str(min(numbers))
        out.append(
            new_finding(
                job,
                "PSM401",
                run=run,
                title=f"nccl-tests found wrong values in {counted(count, 'row')} ({found}): the data path corrupts data",
                confidence=0.9,
                explanation="These operations completed, but their results are wrong. The log does not show the summary of the test.",
                next_step=_CORRUPTS,
                refs=[e.ref for e in wrong[:3]],
                stage="error",
            )
        )
    failures = [e for e in job.events("nccltests.failure") if job.run_of_event(e) == run]
    warned = run in endings.warned(job)
    if failures and not warned:
        named = _failed(job, run)
        proc = next((_process(job, run, n) for n in named), None)
        told = str(failures[0].fields.get("error", "")).rstrip(" /'")
        ranks = _ranks(job, failures) if proc is None else []
        driven = _driven(job, named) if not ranks and proc is None else []
        whose = f" on {spans_text(spans_of(ranks or driven))}" if ranks or driven else ""
        call = " ".join(q.text for q in job.quotes.of(failures[0].ref))
        reasons = lines.bare_warnings(job, failures[0].ref)
        bare = not reasons and "NCCL failure" in call and faults.phrase(job, "advice", told) is None
        out.append(
            new_finding(
                job,
                "PSM401",
                run=run,
                title=f"nccl-tests stopped{whose}: {reasons[0][1] if reasons else told}",
                confidence=0.7,
                explanation="The first warning above the error has no prefix that names its process."
                if reasons
                else None,
                next_step=(_ABOVE if job.scan.events.of_level("INFO").any() else _UNTOLD) if bare else None,
                refs=[*(ref for ref, _ in reasons[:1]), *(e.ref for e in failures[:3])],
                procs=[proc] if proc is not None else [],
                ranks=ranks,
                culprits=[rank] if proc is not None and (rank := job.rank_of(proc)) is not None else ranks,
                named=named if proc is None and not ranks else [],
                stage="error",
            )
        )
    return out


def _driven(job: Job, named: Sequence[Named]) -> list[int]:
    """The ranks that the table at the start gives to the process that failed, if it drives several."""
    pids = {(n.pid, n.host) for n in named if n.pid is not None}
    listed = (e for e in job.events("nccltests.rank") if (e.fields.get("pid"), e.fields.get("host")) in pids)
    ranks = sorted(rank for e in listed if (rank := number(e.fields, "rank")) is not None)
    return ranks if len(ranks) > 1 else []


def _process(job: Job, run: int | None, named: Named) -> int | None:
    return None if run is None or named.pid is None else outside.proc_of_pid(job, run, named.pid, named.host)


def _ranks(job: Job, failures: Sequence[Event]) -> list[int]:
    """The ranks in the launcher's tags of these failures, if each failed by itself: it is the only one, or it has no such device."""
    texts = [str(e.fields.get("error", "")) for e in failures]
    found = {rank_by_tag(job, e) for e in failures}
    found |= {rank_in_line("".join(q.text for q in job.quotes.of(e.ref))) for e in failures}
    ranks = sorted(r for r in found if r is not None)
    if any(faults.phrase(job, "a peer failed", t) for t in texts):
        return []
    alone = all(faults.phrase(job, "a device is missing", t) for t in texts)
    return ranks if alone or len(ranks) == 1 else []


def _failed(job: Job, run: int | None) -> list[Named]:
    """The only process that a failure returned through, unless that failure was another process's."""
    steps = [e for e in job.events("nccltests.failure.step") if job.run_of_event(e) == run]
    found = {(str(e.fields.get("host")), number(e.fields, "pid")) for e in steps}
    failures = [e for e in job.events("nccltests.failure") if job.run_of_event(e) == run]
    if any(faults.phrase(job, "a peer failed", str(e.fields.get("error", ""))) for e in failures):
        return []
    printed = {str(e.fields.get("host")) for e in job.events("nccltests.rank")}
    # the error may follow a value of the table without a line feed
    hosts = {
        next((own for own in printed if h.endswith(own)), h)
        for e in failures
        if (h := host_of(e.fields.get("host"))) is not None
    }
    if not found and len(hosts) == 1:
        # the table at the start has the processes of the host
        pids = {number(e.fields, "pid") for e in job.events("nccltests.rank") if e.fields.get("host") in hosts}
        found = {(next(iter(hosts)), pids.pop() if len(pids) == 1 else None)}
    if len(found) != 1:
        return []
    host, pid = found.pop()
    listed = [e for e in job.events("nccltests.rank") if e.fields.get("pid") == pid and e.fields.get("host") == host]
    rank = number(listed[0].fields, "rank") if len(listed) == 1 else None
    return [Named(rank, host, pid, listed[0].name if rank is not None else None)]
