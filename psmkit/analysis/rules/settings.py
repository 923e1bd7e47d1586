"""Settings, versions and networks that must be equal on all ranks but differ.

NCCL prints a setting when it first reads it, so a missing line proves little. It counts only if the rank provably passed
the place at which the others printed the line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, names_of, words
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import furthest_stage, torn_down
from psmkit.analysis.facts.settings import COLLECTIVE, CONNECTION, MEMORY, SIZES, UNSET, Difference, differences
from psmkit.analysis.inference import faults, proof
from psmkit.analysis.inference.faults import Cascade
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.waits import Wait, waits_of
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Value
from psmkit.model import CODES, Family, Finding, Severity
from psmkit.model.wording import plural

__all__ = ["find"]


@rule(order=120)
def find(job: Job) -> list[Finding]:
    """PSM601 for settings, PSM602 for releases, PSM603 for networks and plugins."""
    out: list[Finding] = []
    for info in job.runs:
        trouble = _trouble(job, info.index)
        out.extend(
            _setting(job, info.index, d, trouble - _unexplained(job, info.index, d))
            for d in differences(job, info.index)
        )
        out.extend(_versions(job, info.index))
        out.extend(_networks(job, info.index, trouble))
    return out


#: The exchange that a process waits in, by the kind of its wait.
_WAITS = {
    "proxy call": CONNECTION,
    "connection": CONNECTION,
    "fd": MEMORY,
    "collective": COLLECTIVE,
    "sendrecv": COLLECTIVE,
}
#: Files of NCCL that open connections and memory of peers.
_CONNECTING = ("transport/", "transport.cc", "misc/shmutils", "misc/ipcsocket")


def _trouble(job: Job, run: int) -> frozenset[str]:
    """The exchanges of a run that failed, or that a rank is proven to wait in."""
    out = {_WAITS[w.kind] for w in waits_of(job, run) if w.proven and w.kind in _WAITS}
    for cascade in faults.of_run(job, run):
        if cascade.fatal:
            ended = _failed(cascade)
            # the text of a line is read for those that add something only: a resource that ran out is no matter of settings
            if not ended <= out and (ended == {SIZES} or not _used_up(job, cascade)):
                out |= ended
    if not out:
        out |= {kind for e in _lasting(job, run) for kind in _at(job, e)}
    return frozenset(out)


def _unexplained(job: Job, run: int, difference: Difference) -> frozenset[str]:
    """The exchanges that are open for another reason: a rank is stopped, both ends have the same value, or one never came to the call."""
    waiting = [w for w in waits_of(job, run) if w.proven and w.kind in _WAITS]
    if not waiting or any(c.fatal for c in faults.of_run(job, run)):
        return frozenset()
    value_of = {proc: value for value, procs in difference.values.items() for proc in procs}
    silent = proof.silent(job, run)
    explained = {_WAITS[w.kind] for w in waiting if not silent and _between(w, value_of, difference.odd)}
    return frozenset(_WAITS[w.kind] for w in waiting) - explained


def _between(wait: Wait, value_of: Mapping[int, str], odd: Sequence[int]) -> bool:
    """Whether the ends of an open exchange can have different values of a setting."""
    if _WAITS[wait.kind] == COLLECTIVE:
        return wait.target is None or wait.target in odd  # another rank that is late has another reason
    ends = [value_of.get(p) if p is not None else None for p in (wait.waiter, wait.target)]
    return None in ends or ends[0] != ends[1]


def _used_up(job: Job, cascade: Cascade) -> bool:
    return faults.phrase(job, "out of memory", faults.body(job, cascade.first.event)) is not None


def _failed(cascade: Cascade) -> set[str]:
    """The exchanges that a fatal error ended."""
    first = cascade.first
    if any(k.known is not None and k.known.finding == "PSM105" for k in cascade.kinds):
        return {SIZES}
    family = CODES[first.known.finding].family if first.known is not None and first.known.finding in CODES else None
    connecting = (faults.place(first.event) or "").startswith(_CONNECTING)
    if family is Family.START:
        return {CONNECTION}
    return {MEMORY, CONNECTION} if connecting or family is Family.MEMORY else set()


def _lasting(job: Job, run: int) -> list[Event]:
    lasting = job.events("ras.keepalive.error", "ras.peer.declared_dead", "torch.watchdog.timeout", run=run)
    return [e for e in lasting if e.proc < 0 or not torn_down(job, e.proc)]


def _at(job: Job, event: Event) -> set[str]:
    """The exchanges in which a process that waits for long can be."""
    working = event.proc < 0 or furthest_stage(job, event.proc) == "working"
    return {COLLECTIVE} if working else {MEMORY, CONNECTION}


def _ended(job: Job, run: int, least: int) -> bool:
    """Whether at least this many processes had an orderly teardown: the run worked with its settings."""
    return sum(torn_down(job, p) for p in job.runs[run].procs) >= max(least, 1)


def _spread(job: Job, values: Mapping[str, Sequence[int]]) -> str:
    ranked = sorted(values.items(), key=lambda item: (len(item[1]), item[0]))
    return words([f"{value or 'empty'} on {names_of(job, procs)}" for value, procs in ranked], 4)


def _setting(job: Job, run: int, difference: Difference, trouble: frozenset[str]) -> Finding:
    odd = difference.odd
    inferred = UNSET in difference.values
    # a missing line may be lost: it takes messages of the wrong size
    error = bool(difference.breaks & trouble & ({SIZES} if inferred else trouble))
    ended = _ended(job, run, 1 if inferred else len(job.runs[run].procs))
    severity = Severity.ERROR if error else Severity.INFO if ended else Severity.WARNING
    shown = [*odd, *(p for procs in difference.values.values() for p in procs[:1])]
    guilty = sorted({rank for p in odd for rank in job.ranks_of(p)})
    return new_finding(
        job,
        "PSM601",
        run=run,
        title=f"{difference.name} differs between ranks: {_spread(job, difference.values)}",
        severity=severity,
        confidence=(0.8 if error else 0.7) - (0.15 if inferred else 0.0),
        explanation="Both ends of a connection compute buffer sizes, message sizes or the transport from this setting."
        + (
            " A rank counts as without the setting if it printed later lines of the same stage and no line about the setting."
            if inferred
            else ""
        )
        + (" An exchange of this kind failed or is open." if error else ""),
        next_step=f"Set {difference.name} to the same value on every rank (mpirun -x, a ConfigMap, /etc/nccl.conf on each node), and run again.",
        refs=[ref for p in shown if (ref := difference.refs.get(p)) is not None][:6],
        procs=sorted({p for procs in difference.values.values() for p in procs}),
        culprits=guilty if error else (),
    )


_VERSIONS = ("init.version", "init.version_line", "generic.nccl_version")


def _release(version: Value | None) -> str:
    text = str(version or "").strip()
    return text.split()[0].split("+")[0] if text else ""


@once
def _releases(job: Job) -> frozenset[str]:
    """The releases of all ranks: mostly one, so that nobody needs the lines."""
    return frozenset(_release(text) for text in {text for _, _, text in job.values("version", *_VERSIONS)})


def _versions(job: Job, run: int) -> list[Finding]:
    values: dict[str, list[Event]] = defaultdict(list)
    said = list(job.events("ras.version_mismatch", run=run))
    if said or len(_releases(job)) > 1:
        for event in job.events(*_VERSIONS, run=run):
            release = _release(event.fields.get("version"))
            if release[:1].isdigit():
                values[release].append(event)
    if len(values) < 2 and not said:
        return []
    procs = sorted(
        {e.proc for events in values.values() for e in events if e.proc >= 0} | {e.proc for e in said if e.proc >= 0}
    )
    if len(values) >= 2:
        title = "ranks run different NCCL releases: " + words(sorted(values), 4)
    else:
        title = f"{name_of(job, said[0].proc)} met a peer with another NCCL release: {faults.body(job, said[0])}"
    refs = [events[0].ref for _, events in sorted(values.items())] + [e.ref for e in said[:2]]
    return [
        new_finding(
            job, "PSM602", run=run, title=title, severity=Severity.WARNING, confidence=0.8, refs=refs, procs=procs
        )
    ]


_NETWORKS = ("net.using", "net.assigned", "plugin.assigned")


@once
def _network_names(job: Job) -> frozenset[Value]:
    """What the lines of all ranks call their networks: mostly one name."""
    return frozenset(name for field in ("net", "name") for _, _, name in job.values(field, *_NETWORKS) if name)


def _networks(job: Job, run: int, trouble: frozenset[str]) -> list[Finding]:
    out: list[Finding] = []
    chosen: dict[str, dict[int, Event]] = defaultdict(dict)
    for event in job.events(*_NETWORKS, run=run) if len(_network_names(job)) > 1 else ():
        name = str(event.fields.get("net") or event.fields.get("name") or "").strip()
        text = (
            event.fields.get("net") is not None
            or event.name == "net.assigned"
            or "NET plugin" in faults.body(job, event)
        )
        if event.proc >= 0 and name and text:
            chosen[name].setdefault(event.proc, event)
    # a torn line ends in the middle of a name
    for name in [n for n in chosen if any(other != n and other.startswith(n) for other in chosen)]:
        del chosen[name]
    values = {name: sorted(events) for name, events in chosen.items()}
    # a process that lists two networks has two communicators with a network each
    common = Counter(p for procs in values.values() for p in procs)
    if len(values) > 1 and any(count == 1 for count in common.values()) and not _subsets(values):
        apart = bool(trouble - {COLLECTIVE})  # ranks that work are connected
        odd = Difference("", frozenset(), values).odd
        guilty = sorted({rank for p in odd for rank in job.ranks_of(p)})
        out.append(
            new_finding(
                job,
                "PSM603",
                run=run,
                title=f"ranks use different networks: {_spread(job, values)}",
                severity=Severity.ERROR if apart else Severity.WARNING,
                confidence=0.75,
                refs=[next(iter(events.values())).ref for events in chosen.values()],
                procs=sorted(common),
                culprits=guilty if apart else (),
                known_issue="NVIDIA/nccl#1634",
            )
        )
    out.extend(_plugins(job, run))
    return out


def _subsets(values: Mapping[str, Sequence[int]]) -> bool:
    """Whether all processes that use the rarer network use the other one too."""
    everyone = max((set(procs) for procs in values.values()), key=len)
    return all(set(procs) <= everyone for procs in values.values())


def _plugins(job: Job, run: int) -> list[Finding]:
    loaded: dict[int, Event] = {}
    for event in job.events("plugin.loaded", run=run):
        if "NET/Plugin" in faults.body(job, event):
            loaded.setdefault(event.proc, event)
    missing = {e.proc: e for e in job.events("plugin.not_found", run=run) if str(e.fields.get("kind", "NET")) == "NET"}
    without = sorted(p for p in missing if p not in loaded)
    if not loaded or not without:
        return []
    names = sorted({str(e.fields.get("name", "")) for e in loaded.values()})
    return [
        new_finding(
            job,
            "PSM603",
            run=run,
            title=f"{names_of(job, without)} {plural(len(without), 'does', 'do')} not find the network plugin {words(names)} that {names_of(job, loaded)} {plural(len(loaded), 'loads', 'load')}",
            severity=Severity.WARNING,
            confidence=0.8,
            refs=[missing[without[0]].ref, next(iter(loaded.values())).ref],
            procs=[*without, *sorted(loaded)],
            known_issue="NVIDIA/nccl#1634",
        )
    ]
