"""NCCL errors that only a framework reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psmkit.analysis.facts import endings, launcher_ends, lines, outside, program
from psmkit.analysis.facts.deaths import FAULTS, KILLED, Death, collect
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import named_text, ranks_text, short
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import pid_of_tag
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.causes import few_of
from psmkit.analysis.inference.exceptions import thrower
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.last_errors import LastError, last_errors, named_in
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Named, Severity
from psmkit.model.late import regex

__all__ = ["find"]

_LONGEST = 160
_MOST_CALLS = 100
_PAIR = 2
#: The head of a text that names two ranks on one device, and that no exception stands above.
_BARE = "two ranks of a communicator use one GPU"
_RERUN = "Re-run with NCCL_DEBUG=INFO (or WARN) on all ranks and look at the first NCCL WARN line."
_READ = "Read the NCCL WARN lines of this log: the first one that is an error says why."
#: What NCCL's error strings say to the user beside the error.
_ADVICE = (" (run with NCCL_DEBUG=", " - please report this issue to the NCCL developers")


_DESTROYED = regex(r"^\W*Process Group destroyed on rank (\d{1,9})\b")


@rule(order=35)
def find(job: Job) -> list[Finding]:
    """PSM401 for an error without a warning of NCCL."""
    return [finding for run in endings.runs(job) for finding in _torch_errors(job, run)]


def _decisive(job: Job, run: int | None, events: Sequence[Event]) -> bool:
    """Whether these lines decide a run with warnings of NCCL's: none of those ended it, and no watchdog gave up before."""
    if any(c.fatal or c.aftermath for c in faults.of_run(job, run)) or job.events("torch.watchdog.", run=run):
        return False
    return any(
        e.name in ("torch.nccl_error", "framework.nccl_error") and not endings.went_on(job, e, None, run)
        for e in events
    )


def _torch_errors(job: Job, run: int | None) -> list[Finding]:
    """NCCL errors that only torch reports; if the log has NCCL's own warnings, those say more."""
    names = ("torch.nccl_error", "torch.async_error", "torch.watchdog.terminated", "framework.nccl_error")
    reported = job.events(*names) or job.events("torch.nccl_result")
    events = [e for e in reported if job.run_of_event(e) == run and not program.came_after(job, e)]
    if reported and not events:
        return []
    # where the exception is cut off, the warning that it repeats is left
    events = events or [item.head for item in last_errors(job, run) if item.known is not None]
    if not events or (run in endings.warned(job) and not _decisive(job, run, events)):
        return []
    texts = {str(e.fields.get("error", "")) for e in events}
    peer = [t for t in texts if faults.phrase(job, "a peer failed", t)]
    told = next(iter(sorted(texts - set(peer))), None) or next(iter(sorted(texts)), "")
    framework = "torch" if events[0].name.startswith("torch.") else "the framework"
    last = last_errors(job, run)
    events = [*(item.head for item in last[:1] if item.head not in events), *events]
    ranks = sorted({r for e in events if (r := outside.global_rank(job, e)) is not None})
    known = last[0].known if last else None
    told = last[0].text if last else told
    tagged = (_tagged(job, run, events) or _by_text(last) or _destroyed(job, events)) if not ranks and not peer else []
    one_end = bool(last) and last[0].one_end
    if not ranks and peer and one_end:
        tagged = _tagged(job, run, events)
    if one_end:
        tagged = [replace(n, either=True, peer_unnamed=True) for n in tagged]
    launched = _ended(job, run, last) if not (ranks or peer or tagged) else []
    own, each = _own(job, run, ranks, last, texts, told)
    if len(ranks) > 1 and not (each or peer or last):
        launched = _first_to_end(job, run, ranks)
    code = last[0].code if known is not None else "PSM401"
    peers = named_in(last)
    bare = len(peers) >= _PAIR and all(e.name == "torch.last_error" for e in events)  # no line shows who repeats it
    # no line names the other end, so the only rank that reports it is where to look
    lone = one_end and len(ranks) == 1
    why = "NCCL refuses this." if bare else _call(job, events) + _why(job, run, framework, last[0] if last else None)
    why += (
        " Each of these ranks may be the one that selected the wrong device."
        if len(peers) >= _PAIR and not peers[0].either
        else ""
    )
    why += " Either end of the connection can be at fault; no line names the other one." if lone and not own else ""
    why += (
        " The text names no process: another one ended, or the network to it failed."
        if peer and not own and not last
        else ""
    )
    why += " Each of these ranks reports a failure of its own." if each else ""
    events.sort(key=lambda e: e.time or "") if all(e.time for e in events) else None
    step = _READ if _warns(job) else _RERUN
    says = faults.phrase(job, "a link-local address", told) or known if last else None
    by_text = bool(last) and faults.phrase(job, "advice", told) is not None
    return [
        new_finding(
            job,
            code,
            run=run,
            title=(_BARE if bare else f"NCCL returned an error to {framework}{_on(events, ranks, tagged, launched)}")
            + (f": {said}" if (said := _plain(told)) else ""),
            severity=Severity.ERROR,
            confidence=0.7,
            explanation=why,
            next_step=(says.next_step if says is not None else None) or (None if by_text else step),
            refs=[*(item.ref for item in last[:2]), *(e.ref for e in events[:4]), *_warnings(job, run)][:6],
            ranks=ranks,
            culprits=ranks if (own and len(peers) < _PAIR) or lone or each else [],
            named=_ends(peers, ranks)
            if last and (peers or (known is not None and known.blames == "peer" and not one_end))
            else tagged or launched,
            stage="error",
        )
    ]


def _own(
    job: Job, run: int | None, ranks: Sequence[int], last: Sequence[LastError], texts: set[str], told: str
) -> tuple[bool, bool]:
    """Whether the only rank that reports an error failed itself, and whether each of a few did: a CUDA call fails in its own process."""
    known = last[0].known if last else None
    if known is not None:
        # a member of a group can repeat a warning about two others
        pair = {n.rank for n in last[0].peers}
        own = known.blames == "self" and (not pair or set(ranks) <= pair)
        each = known.blames == "self" and not pair and all(item.text.startswith("Cuda failure") for item in last)
    else:
        own = any(faults.phrase(job, "a peer failed", text) is None for text in texts)
        own = own and not faults.phrase(job, "a peer is named", told)
        each = bool(texts) and all(text.startswith("unhandled cuda error") for text in texts)
    return own and len(ranks) == 1, each and len(ranks) > 1 and few_of(job, run, ranks)


def _tagged(job: Job, run: int | None, events: Sequence[Event]) -> list[Named]:
    """The process that a tag of these lines names, or else the only replica of XLA in them."""
    if _repeated(job, run, events):
        return []
    replicas = {r for e in events if isinstance(r := e.fields.get("replica"), int)}
    only = [Named(r, basis=f"{ASSUMED}replica of XLA") for r in replicas] if len(replicas) == 1 else []
    return (
        outside.tagged_process(job, events) or thrower(job, run, events) or only or outside.headed_process(job, events)
    )


def _repeated(job: Job, run: int | None, events: Sequence[Event]) -> bool:
    """Whether the process in the tags of these lines also prints Ray's reports of failed tasks of others: it repeats what they print."""
    tags = {e.tag for e in events if pid_of_tag(e.tag) is not None}
    reports = job.events("launch.ray.unhandled", "launch.ray.task_error", run=run) if tags else []
    return any(e.tag in tags and e.fields.get("pid") not in (None, pid_of_tag(e.tag)) for e in reports)


def _by_text(last: Sequence[LastError]) -> list[Named]:
    """The rank that the repeated warnings give to the process that printed them, if it is the same one. Where they do not show which end of a
    connection failed, it is one of the two."""
    found = {item.own for item in last}
    rank, known = (last[0].own, last[0].known) if len(found) == 1 else (None, None)
    if rank is None or known is None or known.blames == "peer":
        return []
    either = known.blames == "unknown"
    return [Named(rank, comm="its communicator", either=either, peer_unnamed=either)]


def _destroyed(job: Job, events: Sequence[Event]) -> list[Named]:
    """The rank whose process group torch destroys in the exception: torch before 2.0 adds it on the line below the error of ncclCommAbort()."""
    texts = ("".join(e.text for e in job.quotes.of(lines.below(job, event.ref))) for event in events)
    ranks = {int(found[1]) for text in texts if (found := _DESTROYED.search(text)) is not None}
    return [Named(rank, comm="its process group") for rank in ranks] if len(ranks) == 1 else []


def _ended(job: Job, run: int | None, last: Sequence[LastError]) -> list[Named]:
    """The process that the launcher names, if no line of the error names one and a single process ended by itself."""
    ended = _only_end(job, run)
    if ended is None:
        return []
    one_end = bool(last) and last[0].one_end
    return [replace(n, either=one_end, peer_unnamed=one_end) for n in launcher_ends.as_named(ended)]


def _only_end(job: Job, run: int | None) -> Death | None:
    """The only process that ended by itself, with an exit code or by SIGABRT, as one does that got an error."""
    own = [d for d in collect(job, run) if not (d.sent or d.listed or d.later)]
    return own[0] if len(own) == 1 and own[0].signal not in (*FAULTS, KILLED) else None


def _first_to_end(job: Job, run: int | None, ranks: Sequence[int]) -> list[Named]:
    """Of several ranks that report the error, the one that the launcher saw end first."""
    ended = _only_end(job, run)
    named = launcher_ends.as_named(ended) if ended is not None else []
    return [n for n in named if n.rank in ranks]


def _on(events: Sequence[Event], ranks: Sequence[int], tagged: Sequence[Named], launched: Sequence[Named]) -> str:
    """Whose error this is, for the title."""
    times = sum(e.name != "torch.last_error.head" for e in events)
    if times > 1 and not (ranks or tagged):
        # one process may print its error twice, and several may print the same one
        return f", in {times} places of the log" + (
            f"; the launcher names {named_text(launched[0])}" if launched else ""
        )
    named = tagged or launched
    who = ranks_text(ranks) if ranks else named_text(named[0]) if named else "a rank"
    inside = {e.fields["group_rank"] for e in events if "group_rank" in e.fields}
    if len(ranks) == 1 and len(inside) == 1 and not inside <= {*ranks}:
        who += f" (rank {next(iter(inside))} of its process group)"
    if launched and ranks:
        who += f"; the launcher names {named_text(launched[0])}"
    return f" on {who}"


def _ends(peers: Sequence[Named], ranks: Sequence[int]) -> list[Named]:
    """The peers that a warning names. Where either end can be at fault, the only rank that reports it is the other one."""
    if not any(peer.either for peer in peers):
        return list(peers)
    if len(ranks) != 1:
        return [replace(peer, peer_unnamed=True) for peer in peers]
    return [Named(ranks[0], either=True), *peers]


@once
def _warns(job: Job) -> bool:
    """Whether the log has a warning of NCCL, also one that names no process and none of a library that NCCL only tries."""
    table = job.scan.events
    events = table.make(table.of_level("WARN").nonzero()[0])
    known = ((faults.message(job, e.name), e) for e in events)
    return any(entry is None or faults.unknown(e) or entry.severity == "error" for entry, e in known)


def _call(job: Job, events: Sequence[Event]) -> str:
    """The call that failed, if all lines name the same one."""
    found = set()
    for event in [e for e in events if e.name == "framework.nccl_error"][:_MOST_CALLS]:
        # "RuntimeError: ncclBcast failed: ...", if it is no field
        told = event.fields.get("call", lines.matched(job, event.ref).partition(" failed")[0].rpartition(" ")[2])
        name = str(told).strip().partition("(")[0]
        found.add(name if name.startswith("nccl") else f"nccl{name}")
    call = next(iter(found)) if len(found) == 1 else ""
    return f"{call}() failed. " if call[4:5].isupper() and call[5:6].islower() and call.isidentifier() else ""


def _plain(told: str) -> str:
    """The text of an error without the advice that NCCL adds to it."""
    for advice in _ADVICE:
        told = told.partition(advice)[0] or told
    return short(told.rstrip(" ,;"), _LONGEST)


def _why(job: Job, run: int | None, framework: str, last: LastError | None) -> str:
    """What the log shows about the reason."""
    name = framework[:1].upper() + framework[1:]
    if last is not None:
        why = f" {last.known.meaning}" if last.known is not None and last.known.meaning else ""
        where = " below `Last error:`" if last.head.name == "torch.last_error.head" else ""
        return f"{name} repeats NCCL's last warning{where}; it may be older than the failure.{why}"
    if warnings := _warnings(job, run):
        said = faults.body(job, next(c.first.event for c in faults.of_run(job, run) if c.first.ref == warnings[0]))
        return f"{name} reports that an NCCL call failed. NCCL warned: {said}. The log does not show whether that is the reason."
    return f"{name} reports that an NCCL call failed; NCCL's own warnings, which say why, are not in the log."


def _warnings(job: Job, run: int | None) -> list[Ref]:
    """The warnings of NCCL's that can be the reason."""
    return [c.first.ref for c in faults.of_run(job, run) if c.severity in ("error", "warning", "unknown") and c.noted]
