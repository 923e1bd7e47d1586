"""Waits of XLA, vLLM and torch's store that a log reports and that no later line ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from psmkit.analysis.facts import endings, outside, serving
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.facts.tags import ranks_in
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.logparse.types import Event
from psmkit.model import Finding, Severity
from psmkit.model.wording import plural

__all__ = ["WAITS", "ended", "find"]

_LONGEST = 60
_OF_ENGINE = "framework.engine_waits"


def ended(job: Job, run: int | None, wait: Event) -> bool:
    """Whether a line below shows that this wait is over."""
    after = (wait.last or wait.ref).seq
    if endings.continued(job, run, wait, outside.proc_of_event(job, wait)):
        return True
    if any(e.stream == wait.stream and (e.last or e.ref).seq > after for e in job.events(*_PASSED, run=run)):
        return True
    return wait.name == _OF_ENGINE and serving.answered_after(job, run, wait)


def find(job: Job, run: int | None) -> list[Finding]:
    """A warning about a wait of XLA, vLLM or torch's store that is open when the log ends."""
    events = [e for e in job.events(*WAITS, run=run) if not ended(job, run, e)]
    entry = faults.message(job, events[0].name) if events else None
    if entry is None:
        return []
    title, when = WAITS[entry.name](events), "when the log ends: it is slow or it hangs"
    if entry.name == _OF_ENGINE and serving.stopped_after(job, run, events[-1]):
        when = "until the server is shut down: it was slow or it hung"
    return [
        new_finding(
            job,
            "PSM305",
            run=run,
            title=f"{title} {when}",
            severity=Severity.WARNING,
            confidence=0.5,
            explanation=entry.meaning,
            next_step=_OTHER_STORE if _too_many(events) else entry.next_step,
            refs=[e.last or e.ref for e in events[-4:]],
            stage="error",
        )
    ]


def _for_devices(events: Sequence[Event]) -> str:
    last = events[-1].fields
    if "devices" in last:  # XLA of 2020 and 2021: a thread for each device of the process
        same = [
            e.fields for e in events if (e.fields.get("run_id"), e.fields.get("op")) == (last["run_id"], last["op"])
        ]
        wait, every = {d for f in same if isinstance(d := f.get("device"), int)}, set(ranks_in(last["devices"]))
        late = every - wait
        whom = f"{_devices(late)} (no such line is of {plural(len(late), 'it', 'them')})" if late else "the others"
        return f"{_devices(wait)} {plural(len(wait), 'waits', 'wait')} at a rendezvous of XLA for {whom}"
    return f"XLA waits for `{str(events[0].fields.get('what', ''))[:_LONGEST]}` for {events[0].fields.get('seconds')} s"


def _devices(devices: Iterable[int]) -> str:
    return ranks_text(devices).replace("rank", "device", 1)


def _for_workers(events: Sequence[Event]) -> str:
    # each line counts from the one before it, and each wait from its own start
    times, seconds = sum(max(e.count, 1) for e in events), events[-1].fields.get("seconds")
    often = f" (reported {times} times, each after {seconds} s)" if times > 1 else f" for {seconds} s"
    return f"vLLM waits for its workers{often}"


def _for_ranks(events: Sequence[Event]) -> str:
    """Who waits in the last barrier of torch's store, and for how many."""
    last = [e.fields for e in events if e.fields["key"] == events[-1].fields["key"]]
    came, total = (max(n for f in last if isinstance(n := f[name], int)) for name in ("joined", "total"))
    ranks = {r for f in last if isinstance(r := f["rank"], int)}
    waits = f"{ranks_text(sorted(ranks))} {plural(len(ranks), 'waits', 'wait')} in torch's store"
    if came > total:
        return f"{waits}, which counts {came} workers for a world of {total},"
    late = f"{total - came} of {total} ranks"
    if total - came == 1 and len(ranks) == came:
        late = f"{ranks_text({*range(min(total, _MOST_RANKS))} - ranks)} (no such line is of it)"
    return f"{waits} for {late}"


def _too_many(events: Sequence[Event]) -> bool:
    """Whether more workers added themselves to the counter of torch's store than the job has ranks."""
    last = events[-1].fields
    came, total = last.get("joined"), last.get("total")
    return isinstance(came, int) and isinstance(total, int) and came > total


_MOST_RANKS = 1 << 16
_OTHER_STORE = "Look for an earlier start of this job, or another job, that used the same store: its workers count, too. End it, and take another port or rendezvous id."
#: Waits that may be open when a log ends, and what passes them.
WAITS: Mapping[str, Callable[[Sequence[Event]], str]] = {
    "xla.rendezvous.waits": _for_devices,
    _OF_ENGINE: _for_workers,
    "torch.store.waits": _for_ranks,
}
_PASSED = ("xla.rendezvous.unstuck", "torch.store.passed")
