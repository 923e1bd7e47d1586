"""Limits of the evidence, and hints: findings that never make a verdict worse."""

from __future__ import annotations

from psmkit.analysis.facts import program
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import words
from psmkit.analysis.facts.places import absent
from psmkit.analysis.facts.releases import whole_releases
from psmkit.analysis.facts.start import initialising, met_at, past_bootstrap
from psmkit.analysis.inference import frontier, proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.sightings import by_run, sightings
from psmkit.analysis.inference.waits import waits_of
from psmkit.analysis.registry import rule
from psmkit.logparse.types import MessageCount, Ref
from psmkit.model import CODES, Finding, Severity
from psmkit.model.structs import Struct
from psmkit.model.wording import counted, plural

__all__ = ["find"]


@rule(order=370)
def find(job: Job) -> list[Finding]:
    """PSM702, PSM703, PSM704, PSM705, PSM710, PSM521 and PSM604."""
    return [*_missing(job), *_data_plane(job), *_response_sizes(job), *_torn(job), *_mute_dumps(job)]


def _missing(job: Job) -> list[Finding]:
    out = []
    for run in job.runs:
        missing = absent(job, run.index)
        # an exchange with a rank shows that it ran
        if not missing or not (past_bootstrap(job, run) or run.nranks is None):
            continue
        number = len(missing)
        of = f" of {run.nranks}" if run.nranks is not None else ""
        passed = (
            "Another rank passed a point that needs all ranks"
            if of
            else f"A peer exchanged a descriptor with {plural(number, 'it', 'them')}"
        )
        out.append(
            new_finding(
                job,
                "PSM702",
                run=run.index,
                title=f"the {plural(number, 'log')} of {plural(number, 'rank')} {words(map(str, missing[:10]), 10, number)}{of} {plural(number, 'is', 'are')} missing",
                explanation=(
                    f"{passed}, so {plural(number, 'this rank', 'these ranks')} ran, too. "
                    f"{plural(number, 'Its', 'Their')} last lines may show the cause."
                ),
                refs=met_at(job, run)[:2],
                ranks=missing.listed,
                stage="evidence",
            )
        )
    return out


def _data_plane(job: Job) -> list[Finding]:
    """A log with a complete control plane but no teardown shows nothing about the data plane."""
    out = []
    for run in job.runs:
        ours = proof.of(job, run.index)
        if ours.done or ours.failed or ours.lasting or job.missing_ranks(run.index) or program.told(job, run.index):
            continue
        if (
            waits_of(job, run.index)
            or initialising(job, run)
            or absent(job, run.index)
            or frontier.owing(job, run.index)
        ):
            continue
        calls = _counts(job, run.procs, "proxy.call.matched", "proxy.call.dequeued")
        fds = _counts(job, run.procs, "proxy.fd.done")
        answered = sum(c.count for c in calls)
        if not answered:
            continue
        descriptors = sum(c.count for c in fds)
        also = f" and {counted(descriptors, 'fd exchange')}" if descriptors else ""
        out.append(
            new_finding(
                job,
                "PSM703",
                run=run.index,
                title=f"no exchange of the control plane is open ({counted(answered, 'proxy call')}{also} complete); the log does not show the data plane",
                refs=[max((c.last for c in group), key=lambda r: (r.file, r.line)) for group in (calls, fds) if group],
                stage="data plane",
            )
        )
    return out


def _counts(job: Job, procs: frozenset[int], *names: str) -> list[MessageCount]:
    return [c for c in job.scan.counts.of(*names) if c.proc in procs]


def _response_sizes(job: Job) -> list[Finding]:
    """Setup responses whose size differs by role. The larger one has the size of a complete private struct, in healthy builds too."""
    out = []
    for run in job.runs:
        refs: dict[tuple[str, int], Ref] = {}
        for tally in job.scan.services:
            if tally.proc in run.procs:
                for answer, ref in tally.setups.items():
                    refs.setdefault(answer, ref)
        foreign = _foreign(job, run.index)
        out += foreign
        named = {} if foreign else {key: one for key in refs if (one := _answer_of(job, key[1])) is not None}
        out += [_named(job, run.index, role, one, refs[role, size]) for (role, size), one in named.items() if one.local]
        send, recv = ({size for role, size in refs if role == way} for way in ("send", "recv"))
        if len(send) != 1 or len(recv) != 1:
            continue
        sent, received = next(iter(send)), next(iter(recv))
        if sent < 2 * received - 32 or sent < 128 or ("send", sent) in named:
            continue
        without = (
            ""
            if job.types is None or foreign
            else " The library given has no answer to Setup of this size, or several."
        )
        out.append(
            new_finding(
                job,
                "PSM704",
                run=run.index,
                title=f"Setup responses have {sent} bytes on the send side and {received} on the recv side: the larger ones may hold a whole private struct",
                confidence=0.3,
                explanation=f"{CODES['PSM704'].meaning}{without}",
                refs=[refs[("send", sent)], refs[("recv", received)]],
                stage="proxy Setup",
            )
        )
    return out


def _foreign(job: Job, run: int) -> list[Finding]:
    """The library given is of another release than the one that the log shows: its types are not those of the job."""
    shown = whole_releases(job, run)
    if job.types is None or not job.types_release or not shown or job.types_release in shown:
        return []
    return [
        new_finding(
            job,
            "PSM710",
            run=run,
            title=f"the library given is NCCL {job.types_release}, but the log shows NCCL {words(shown, 4)}: its types were not used",
            stage="evidence",
        )
    ]


def _answer_of(job: Job, size: int) -> Struct | None:
    """The only type of the library given that can be an answer of this size to Setup."""
    known = [one for one in job.types or () if one.size == size and one.answers in ("Setup", "")]
    known = [one for one in known if one.answers or one.basis == "--wire"]
    return known[0] if len(known) == 1 else None


def _named(job: Job, run: int, role: str, one: Struct, ref: Ref) -> Finding:
    """The log shows the size of an answer, and the library what has this size."""
    dubious = [field for field in one.local if not field.why]
    shown = (dubious or one.local)[:8]
    fields = ", ".join(f"{field.path} ({field.kind})" for field in shown)
    more = f" and {len(one.local) - len(shown)} more" if len(one.local) > len(shown) else ""
    return new_finding(
        job,
        "PSM521",
        run=run,
        severity=Severity.WARNING if dubious else Severity.INFO,
        title=f"a Setup response on the {role} side is a whole {one.name}, with {len(one.local)} process-local {plural(len(one.local), 'field')}",
        explanation=(
            f"The response has {one.size} bytes. In the library given, {one.name} is the only answer to Setup of this size. It holds {fields}{more}. "
            "Whether the other side uses them, neither the log nor the type shows."
        ),
        refs=[ref],
        stage="proxy Setup",
    )


def _torn(job: Job) -> list[Finding]:
    totals = job.scan.totals
    if not totals.torn and not totals.glued:
        return []
    parts = [f"{n} {what}" for n, what in ((totals.torn, "torn"), (totals.glued, "glued")) if n]
    return [
        new_finding(
            job,
            "PSM705",
            run=0 if len(job.runs) == 1 else None,
            title=f"{' and '.join(parts)} {'line' if totals.torn + totals.glued == 1 else 'lines'} in the log",
            confidence=0.9,
            stage="evidence",
        )
    ]


def _mute_dumps(job: Job) -> list[Finding]:
    """A proxy dump shows one communicator's progress state and omits the others."""
    out = []
    for run, events in by_run(job, sightings(job, "PSM604")).items():
        groups = len(job.runs[run].groups) if run is not None else 0
        shown = [e for e in sightings(job, "PSM304") if e.name.startswith("proxydump.") and job.run_of_event(e) == run]
        if shown:
            continue
        out.append(
            new_finding(
                job,
                "PSM604",
                run=run,
                title="a proxy dump shows no operation: it prints the state of one communicator only"
                + (f", and this run has {groups}" if groups > 1 else ""),
                confidence=0.8,
                refs=[e.ref for e in events[:4]],
                procs=sorted({e.proc for e in events if e.proc >= 0}),
                stage="proxy dump",
                known_issue="NVIDIA/nccl#1930",
            )
        )
    return out
