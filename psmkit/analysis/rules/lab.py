"""What `psmkit lab run` saw of its ranks from outside: which died, were stopped, hung, waited for those, or failed first.

The lab ends the remaining ranks at its deadline, so their records have no clean end: the lines of lab.log explain these records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.deaths import at_work_by_lab
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, ranks_text
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference import reports, steps
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.held import held
from psmkit.analysis.registry import rule
from psmkit.catalogue.reasons import DAMAGED, FOLLOWS, about
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]

#: What stands before the last warning of NCCL, in the reason of a rank that drives it.
_LAST_ERROR = "last error: "
#: Seconds: a stage that is younger than this at the deadline may still be in progress.
_STANDS_STILL = 1.0
#: The same, as a fraction of the run's time limit.
_PART = 0.25
#: Lines that show that nothing moved for the time that a stall takes to be reported.
_STALLS = (
    "libpsm.p2p.stalled",
    "libpsm.net.stalled",
    "hostcuda.stall",
    "hostcuda.stall_host_function",
    "hostcuda.stall_thread",
    "hostcuda.value_wait",
)
_BY_ANOTHER = "lab"  # reported by: the rank itself had nothing to report


@rule(order=50)
def find(job: Job) -> list[Finding]:
    """PSM402 for ranks that died, PSM304 for stuck ranks, PSM401 for the first that failed, PSM505 for leaks."""
    out: list[Finding] = []
    for run in sorted({r for e in job.events("lab.") if (r := job.run_of_event(e)) is not None}):
        words: dict[str, list[Event]] = defaultdict(list)
        for event in job.events("lab.", run=None):
            if job.run_of_event(event) == run:
                words[event.name].append(event)
        died = words["lab.rank.died"]
        out += _deaths(job, run, died, words["lab.rank.failed"])
        still = _standing(job, run, words)
        out += still
        origin = bool(died) or any(f.stage == "stopped" for f in still)
        out += _failures(job, run, words["lab.rank.failed"], consequence=origin)
        out += _left(job, run, words)
    return out


def _rank(event: Event) -> int:
    return number(event.fields, "rank") or 0


def _told(event: Event) -> str:
    return f"{event.fields.get('status')}: {event.fields.get('reason')}"


def _why(event: Event) -> str:
    """Why the lab ended the ranks. Version 0.1 gave the deadline in words only."""
    why = event.fields.get("why")
    return str(why) if why is not None else f"the deadline of {float(str(event.fields.get('deadline', 0))):g} s passed"


def _report(event: Event) -> reports.Report:
    cause, named = about(event.fields)
    return reports.Report(event, _rank(event), cause, named)


def _blamed(job: Job, run: int, first: Event, own: Sequence[Event]) -> list[int]:
    """The ranks that a failure comes from; of ranks that disagree, those in the minority."""
    said = [_report(e) for e in own]
    if about(first.fields)[0] == reports.MISMATCH:
        differ = [(r.by, r.named) for r in said if r.cause == reports.MISMATCH]
        return reports.odd_in(job, run, [(a, b) for a, b in differ if a is not None and b is not None])
    origin = reports.origin(_report(first), said)
    if origin is None:
        return []
    if _report(first).cause == reports.DIED and job.proc_of(run, origin) in at_work_by_lab(job):
        return []  # only the connection to it is lost, and either end may have closed that
    return [origin]


def _deaths(job: Job, run: int, died: Sequence[Event], failed: Sequence[Event]) -> list[Finding]:
    out = []
    own = [e for e in failed if e.fields.get("by") != _BY_ANOTHER]
    for place, event in enumerate(died):
        rank, stage = _rank(event), str(event.fields.get("stage"))
        survivors = joined(f"rank {_rank(e)} in stage {e.fields.get('stage')}: {_told(e)}" for e in (own or failed)[:3])
        out.append(
            new_finding(
                job,
                "PSM402",
                run=run,
                title=f"rank {rank} died by {event.fields.get('signame')} in stage {stage}",
                confidence=0.97 if place == 0 else 0.9,
                explanation=f"Process {event.fields.get('pid')} ended {event.fields.get('after')} s after the start, and the lab did not end it."
                + (f" The other ranks reported: {survivors}." if survivors else ""),
                next_step=f"Read the last lines of rank {rank} and its record: they show where it was.",
                refs=[event.ref, *_last_line(job, run, rank), *(e.ref for e in (own or failed)[:3])],
                ranks=[rank],
                culprits=[rank],
                stage=stage,
            )
        )
    return out


def _last_line(job: Job, run: int, rank: int) -> list[Ref]:
    proc = job.proc_of(run, rank)
    return [job.process(proc).last] if proc is not None else []


def _standing(job: Job, run: int, words: dict[str, list[Event]]) -> list[Finding]:
    stopped, hung, waits = words["lab.rank.stopped"], words["lab.rank.hung"], words["lab.rank.waits"]
    out = []
    if stopped:
        ranks = sorted(map(_rank, stopped))
        others = sorted(_rank(e) for e in (*hung, *waits))
        stage = str(stopped[0].fields.get("stage"))
        state = stopped[0].fields.get("state")
        are, them = plural(len(ranks), "is", "are"), plural(len(ranks), "it", "them")
        out.append(
            new_finding(
                job,
                "PSM304",
                run=run,
                title=f"{ranks_text(ranks)} {are} stopped (process state {state}) in stage {stage}"
                + (f"; {ranks_text(others)} cannot continue without {them}" if others else ""),
                confidence=0.97,
                explanation="When the deadline passed, the kernel reported the process as stopped: by SIGSTOP, by a terminal or by a debugger.",
                next_step=f"Find out who stopped process {stopped[0].fields.get('pid')}. SIGCONT lets it continue.",
                refs=[e.ref for e in (*stopped[:3], *waits[:2], *hung[:2])],
                ranks=[*ranks, *others],
                culprits=ranks,
                stage="stopped",
            )
        )
    elif hung:
        out.append(_hung(job, run, hung, waits, words["lab.rank.failed"], _long(words["lab.run.expired"])))
    elif words["lab.rank.slow"]:
        out.append(_slow(job, run, words["lab.rank.slow"], waits))
    elif waits and words["lab.run.expired"]:
        out.append(
            new_finding(
                job,
                "PSM304",
                run=run,
                title=f"{ranks_text(map(_rank, waits))} wait in different places: {_why(words['lab.run.expired'][0])}",
                confidence=0.9,
                refs=[e.ref for e in (*waits[:4], *words["lab.run.expired"])],
                ranks=map(_rank, waits),
                stage="waiting",
            )
        )
    return out


def _slow(job: Job, run: int, slow: Sequence[Event], waits: Sequence[Event]) -> Finding:
    """Ranks that moved bytes when the deadline passed: no hang, and no proof of the end."""
    ranks, stage = sorted(map(_rank, slow)), str(slow[0].fields.get("stage"))
    # Each end counts what it moved: a byte that was sent and received counts twice.
    moved = sum(number(e.fields, "moved") or 0 for e in slow) / 2 / (1 << 20)
    return new_finding(
        job,
        "PSM304",
        run=run,
        title=f"{ranks_text(ranks)} {plural(len(ranks), 'was', 'were')} slow, not hung: {moved:.1f} MiB moved in the last second before the deadline passed",
        severity=Severity.WARNING,
        confidence=0.9,
        explanation=f"When the deadline passed, {ranks_text(ranks)} had been in stage {stage} for {max(float(str(e.fields.get('since'))) for e in slow):.1f} s, and data still moved.",
        next_step="Give the run more time (--deadline), or less to do (--size, --iters).",
        refs=[e.ref for e in (*slow[:3], *waits[:3])],
        ranks=[*ranks, *map(_rank, waits)],
        stage=stage,
    )


def _long(expired: Sequence[Event]) -> float:
    """Seconds after which a stage counts as stuck: those of a run with much to do in a long time may take some."""
    given = [float(str(e.fields["deadline"])) for e in expired if "deadline" in e.fields]
    return max([_STANDS_STILL, *(seconds * _PART for seconds in given)])


def _hung(
    job: Job, run: int, hung: Sequence[Event], waits: Sequence[Event], failed: Sequence[Event], long: float
) -> Finding:
    """Ranks that were busy in a stage at the deadline. An error if the stage is proven to be stuck rather than slow."""
    ranks = sorted(map(_rank, hung))
    stage = str(hung[0].fields.get("stage"))
    longest = max(float(str(e.fields.get("since"))) for e in hung)
    stalls = [e for e in job.events(*_STALLS) if job.run_of_event(e) == run]
    proven = bool(stalls) or (stage != "move" and longest >= long)
    suspects = _held_up(job, run, hung)
    if not suspects and stage == "move":
        # Either end can stop a transfer, not only the one that reports it.
        suspects = steps.suspects(job, run) or _lacking(job, run, waits)
    culprits = sorted(suspects) if len(suspects) == 1 else ranks if waits and stage != "move" else []
    # A deadline alone does not show that nothing moved.
    title = f"{ranks_text(ranks)} " + (
        f"stopped in stage {stage}"
        if proven
        else f"{plural(len(ranks), 'was', 'were')} still at work in stage {stage} when the deadline passed"
    )
    if len(suspects) == 1:
        title += f"; rank {culprits[0]} must act next: {suspects[culprits[0]]}"
    elif waits:
        first = waits[0].fields
        title += f"; {ranks_text(map(_rank, waits))} {plural(len(waits), 'waits', 'wait')} for {plural(len(ranks), 'it', 'them')} in {first.get('what')} {first.get('name')}"
    said = joined(f"rank {_rank(e)}: {_told(e)}" for e in failed[:3])
    return new_finding(
        job,
        "PSM304",
        run=run,
        title=title,
        severity=Severity.ERROR if proven else Severity.WARNING,
        confidence=0.85 if proven and culprits else 0.75 if proven else 0.5,
        explanation=f"When the deadline passed, {ranks_text(ranks)} had been in stage {stage} for {longest:.1f} s."
        + ("" if proven else " They may still have made progress: the deadline may have been too short.")
        + (f" Before that they reported: {said}." if said else ""),
        next_step=f"Read the stacks of {ranks_text(culprits or ranks)} in the folder stacks of the run.",
        refs=[e.ref for e in (*hung[:3], *waits[:3], *stalls[:2], *failed[:2])],
        ranks=[*ranks, *map(_rank, waits)],
        culprits=culprits,
        stage=stage,
    )


def _held_up(job: Job, run: int, hung: Sequence[Event]) -> dict[int, str]:
    """The rank that an injected fault stops for ever, according to the lab's line."""
    fired = [e for proc, e in held(job).items() if job.run_of(proc) == run]
    ranks = set(map(_rank, hung))
    found = {rank: e for e in fired if (rank := job.rank_of(e.proc)) is not None and rank in ranks}
    return {rank: f"PSM_FAULTS holds it in {e.fields.get('site')}" for rank, e in found.items()}


def _lacking(job: Job, run: int, waits: Sequence[Event]) -> dict[int, str]:
    """The only rank that has reached the end, with fewer calls on its way than each rank that has not."""
    if len(waits) != 1:
        return {}
    rank = _rank(waits[0])
    calls: dict[int, dict[int, int]] = defaultdict(dict)
    for instance in job.scan.instances:
        if job.run_of(instance.proc) == run:
            calls[instance.group][instance.rank] = instance.ops + instance.sends + instance.recvs
    for counts in calls.values():
        most = set(counts.values()) - {counts.get(rank)}
        if rank in counts and len(counts) > 2 and len(most) == 1 and counts[rank] < min(most):
            lack = min(most) - counts[rank]
            return {rank: f"it made {counted(lack, 'call')} fewer than every other rank"}
    return {}


def _failures(job: Job, run: int, failed: Sequence[Event], consequence: bool) -> list[Finding]:
    """The first failure that is not a consequence of another; wrong data counts, whoever reports it."""
    out = []
    wrong = [e for e in failed if e.fields.get("by") == "data"]
    left = [e for e in failed if e.fields.get("by") == "left"]
    own = [e for e in failed if e not in wrong and e not in left and e.fields.get("by") != _BY_ANOTHER]
    if wrong:
        out.append(_wrong_data(job, run, wrong))
    first = next((e for e in own if about(e.fields)[0] not in FOLLOWS), own[0] if own else None)
    if first is None and not (wrong or left or consequence) and failed:
        first = failed[0]  # only consequences are reported: something failed all the same
    if first is not None:
        rank = _rank(first)
        cause, other = about(first.fields)
        damaged = DAMAGED.get(cause)
        blamed = [] if damaged or _about_a_peer(job, first) else _blamed(job, run, first, own)
        whose = f" because of {ranks_text(blamed)}" if blamed and rank not in blamed else ""
        said = reports.unanswered(job, cause, str(first.fields.get("reason", "")))
        told = reports.statement(str(first.fields.get("reason", ""))) if said is not None else _told(first)
        out.append(
            new_finding(
                job,
                said.finding if said is not None and said.finding is not None else "PSM401",
                run=run,
                title=f"rank {rank} failed in stage {first.fields.get('stage')}{whose}: {told}",
                severity=Severity.WARNING if consequence else Severity.ERROR,
                # NCCL's return to its caller is the last part of its log's evidence.
                confidence=0.6 if consequence or first not in own or first.fields.get("by") == "nccl" else 0.75,
                explanation="This is the first failure that a rank of the lab reported"
                + ("; it follows from another finding." if consequence else "; the other failures follow from it.")
                + (
                    f" This rank noticed the damage and may not have caused it: only rank {other} writes {damaged}."
                    if damaged
                    else ""
                ),
                next_step=f"Check what writes to the memory that ranks {rank} and {other} share: a wrong {damaged} from rank {other}, or a stray write of either rank."
                if damaged
                else said.next_step
                if said is not None
                else None,
                refs=[first.ref, *(e.ref for e in own if e is not first)][:4],
                ranks=[rank, *([other] if (damaged or cause == reports.MISMATCH) and other is not None else [])],
                culprits=[] if consequence or first not in own else blamed,
                # of a call without an answer, this says that its rank did not hang
                stage="error" if said is not None else str(first.fields.get("stage")),
            )
        )
    if left:
        out.append(_kept(job, run, left, f"{ranks_text(map(_rank, left))}: {left[0].fields.get('reason')}"))
    return out


def _wrong_data(job: Job, run: int, wrong: Sequence[Event]) -> Finding:
    sender = _sender(wrong)
    return new_finding(
        job,
        "PSM401",
        run=run,
        title=f"data that arrived at {ranks_text(map(_rank, wrong))} is wrong: {wrong[0].fields.get('reason')}",
        confidence=0.95,
        explanation="The operations completed without an error, but the received bytes differ from those that were sent.",
        next_step="Read the findings about events, slots and steps: a step was published before its copy finished, or was copied to a wrong place.",
        refs=[e.ref for e in wrong[:4]],
        ranks=[*map(_rank, wrong), *sender],
        culprits=sender,
        stage="data",
    )


def _about_a_peer(job: Job, failed: Event) -> bool:
    """Whether a rank repeats a warning of NCCL about what a peer sent, which does not say who is wrong."""
    _, _, warning = str(failed.fields.get("reason", "")).rpartition(_LAST_ERROR)
    known = lines.catalogue(job).match(warning) if failed.fields.get("by") == "nccl" else None
    return known is not None and known[0].finding == "PSM105" and known[0].blames == "peer"


def _sender(wrong: Sequence[Event]) -> list[int]:
    """The rank whose data is wrong wherever it arrived, where at least two received some and it has no complaint itself."""
    named = {about(e.fields)[1] for e in wrong}
    receivers = set(map(_rank, wrong))
    rank = named.pop() if len(named) == 1 else None
    return [rank] if rank is not None and len(receivers) > 1 and rank not in receivers else []


def _left(job: Job, run: int, words: dict[str, list[Event]]) -> list[Finding]:
    left = words["lab.run.left"]
    return [_kept(job, run, [e], f"left behind, {e.fields.get('what')}: {e.fields.get('names')}") for e in left]


def _kept(job: Job, run: int, events: Sequence[Event], title: str) -> Finding:
    return new_finding(
        job,
        "PSM505",
        run=run,
        title=title,
        confidence=0.9,
        refs=[e.ref for e in events[:4]],
        ranks=[_rank(e) for e in events if "rank" in e.fields],
        stage="teardown",
    )
