"""Memory: shared memory segments, descriptors, buffers and registrations that are missing, too large, confused or leaked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, names_of
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.places import hosts_of, procs_on
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.sightings import by_run, sightings, untold
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted

__all__ = ["find"]

_CREATED = ("memory.shm.allocated", "memory.shm.mmap.allocated")
_CUMEM = ("memory.shm.cumem.allocated", "memory.shm.cumem.imported")
_MMAP = ("memory.shm.mmap.allocated", "memory.shm.mmap.imported")
_FALLBACK = ("memory.cumem_host.unusable", "cuda.cumem_host.fallback")
_ISSUE = "NVIDIA/nccl#2190"


@rule(order=130)
def find(job: Job) -> list[Finding]:
    """PSM501 to PSM503, PSM508, PSM509, and PSM105 for sizes that differ between two sides."""
    return [
        *_attach(job),
        *_split(job),
        *_full(job),
        *_reported(job, "PSM508", "a peer's memory could not be imported"),
        *_reported(job, "PSM509", "an allocation failed"),
        *_sizes(job),
    ]


def _ranks(job: Job, procs: Iterable[int]) -> list[int]:
    return [r for p in procs if (r := job.rank_of(p)) is not None]


def _modes(job: Job, run: int, host: str) -> tuple[set[int], set[int]]:
    """The processes of a host that share host memory by cuMem, and those that share it by files."""
    return _on_host(job, _CUMEM, run, host), _on_host(job, (*_MMAP, *_FALLBACK), run, host)


def _on_host(job: Job, names: Iterable[str], run: int, host: str) -> set[int]:
    """The processes of a host that print one of these lines."""
    firsts = _firsts(job)
    return {p for name in names for p in procs_on(job, run, host) if (name, p) in firsts}


@once
def _firsts(job: Job) -> dict[tuple[str, int], Event]:
    """The first line of each process about each way to share memory."""
    out: dict[tuple[str, int], Event] = {}
    for event in job.events(*_CUMEM, *_MMAP, *_FALLBACK):
        out.setdefault((event.name, event.proc), event)
    return out


def _broken(event: Event) -> bool:
    """Whether the name or size looks like a descriptor of another kind that was read as a name."""
    name = str(event.fields.get("name", ""))
    garbled = event.name.endswith("open_garbled") or number(event.fields, "size") == 0
    return garbled or not name.isascii() or not name.isprintable()


def _attaches(job: Job) -> list[Event]:
    """Attach attempts that failed. The catalogue marks those with a garbled name, which are also evidence for PSM502."""
    return [*sightings(job, "PSM501"), *(e for e in sightings(job, "PSM502") if e.name == "memory.shm.open_garbled")]


def _attach(job: Job) -> list[Finding]:
    out = []
    created: dict[tuple[int | None, str, str], int] = {}
    for event in job.events(*_CREATED):
        if event.proc >= 0:
            key = (job.run_of(event.proc), job.process(event.proc).host, str(event.fields.get("name", "")))
            created[key] = event.proc
    for run, events in by_run(job, _attaches(job)).items():
        ours = [e for e in events if e.proc >= 0]
        if run is None or not ours or proof.done(job, run):
            continue
        event = ours[0]
        name, host = str(event.fields.get("name", "")), job.process(event.proc).host
        owner = created.get((run, host, name))
        procs = sorted({e.proc for e in ours})
        cumem, files = _modes(job, run, host)
        broken = _broken(event)
        if broken:
            why = "The name is not one that NCCL makes, or the size is 0: the rank read a cuMem descriptor as the name of a file. "
            if cumem and files:
                why += f"On {host} {names_of(job, cumem)} share host memory through cuMem and {names_of(job, files)} through files in /dev/shm."
            else:
                why += "Another rank of this host shares host memory in another way than this rank."
        elif owner is not None:
            why = f"{name_of(job, owner)} created it. It was removed later, or the two processes do not see the same /dev/shm."
        else:
            why = "No rank with a log created that segment: its creator failed, has no log, or has another /dev/shm."
        out.append(
            new_finding(
                job,
                "PSM501",
                run=run,
                title=f"{names_of(job, procs)} could not attach to shared memory {_shown(name)}"
                + (
                    ", which is not a segment name: the ranks share memory in different ways"
                    if broken
                    else ""
                    if owner is not None
                    else ", which no rank created"
                ),
                confidence=0.9 if broken or owner is None else 0.75,
                explanation=why,
                refs=[e.ref for e in ours[:4]],
                procs=procs,
                culprits=_ranks(job, files) if broken and len(files) < len(cumem) else [],
                stage="shared memory",
                known_issue=_ISSUE if broken else None,
            )
        )
    return out


def _shown(name: str) -> str:
    return name if name.isascii() and name.isprintable() else ascii(name)


def _split(job: Job) -> list[Finding]:
    out = []
    attaches = _attaches(job)
    failed = {job.run_of(e.proc) for e in attaches if e.proc >= 0}
    for run in job.runs:
        for host in hosts_of(job, run.index):
            cumem, files = _modes(job, run.index, host)
            if not cumem or not files or cumem == files:
                continue
            only = (cumem - files, files - cumem)
            if not only[0] or not only[1]:
                continue  # a single process uses both, which is allowed
            hurt = run.index in failed
            done = proof.done(job, run.index)
            refs = [_first(job, _CUMEM, only[0]), _first(job, (*_FALLBACK, *_MMAP), only[1])]
            small = only[1] if len(only[1]) <= len(only[0]) else only[0]
            out.append(
                new_finding(
                    job,
                    "PSM502",
                    run=run.index,
                    title=f"shared memory mode split on {host or 'one host'}: {names_of(job, only[0])} by cuMem, {names_of(job, only[1])} by files in /dev/shm",
                    severity=None if hurt else Severity.INFO if done else Severity.WARNING,
                    confidence=0.95 if hurt else 0.7,
                    explanation=(
                        "Each process decides for itself whether cuMem host memory works. If two processes decide differently, the descriptor "
                        "that one sends has the wrong kind for the other."
                    ),
                    next_step=f"Set NCCL_CUMEM_HOST_ENABLE=0 on all ranks ({_ISSUE}).",
                    refs=[*refs, *(e.ref for e in attaches[:2])],
                    procs=sorted(only[0] | only[1]),
                    culprits=_ranks(job, sorted(small)) if hurt and len(only[0]) != len(only[1]) else [],
                    stage="shared memory",
                    known_issue=_ISSUE,
                )
            )
    return out


def _first(job: Job, names: tuple[str, ...], procs: set[int]) -> Ref | None:
    found = [event for name in names for p in procs if (event := _firsts(job).get((name, p))) is not None]
    return min(found, key=lambda e: (e.stream, e.ref.seq, e.ref)).ref if found else None


def _full(job: Job) -> list[Finding]:
    out = []
    for run, events in by_run(job, sightings(job, "PSM503")).items():
        ours = [e for e in events if e.proc >= 0]
        if run is None or not ours:
            continue
        per_host: dict[str, list[Event]] = defaultdict(list)
        for event in ours:
            per_host[job.process(event.proc).host].append(event)
        for host, failed in per_host.items():
            out.append(_full_on(job, run, host, failed))
    return out


def _full_on(job: Job, run: int, host: str, failed: list[Event]) -> Finding:
    sizes = _created(job).get((run, host), {})
    made = sum(sizes.values())
    wanted: dict[str, int] = {}
    for event in failed:
        size = number(event.fields, "size")
        if size is not None:
            name = _segment(event)
            wanted[name] = max(size, wanted.get(name, 0))
    sized = {e.proc for e in failed if number(e.fields, "size") is not None}
    needed = made + sum(wanted.values())
    procs = sorted({e.proc for e in failed})
    reason = next((str(e.fields["reason"]) for e in failed if "reason" in e.fields), None)
    ranks = len(procs_on(job, run, host))  # of which lines are in view
    each = max([*sizes.values(), *wanted.values()], default=0)
    # "creating" fails for several reasons; some releases do not print which
    asked = any(not e.name.startswith("memory.shm.create_failed") for e in failed)
    full = asked if reason is None else "space" in reason.lower()
    # containers have 64 MiB by default, and the log shows the first segment that does not fit, not the last
    room = _round(max(needed, each * ranks, 1 << 30))
    done = proof.done(job, run)
    return new_finding(
        job,
        "PSM503",
        run=run,
        title=f"{names_of(job, procs)} could not create a shared memory segment{f' of {_size(max(wanted.values()))}' if sized >= {*procs} else ''} on {host or 'its host'}"
        + (": /dev/shm is full" if full else f": {reason}" if reason is not None else ""),
        severity=Severity.WARNING if done else None,
        confidence=0.95 if full or reason is None else 0.85,
        explanation=(
            (
                f"The log shows {counted(len(sizes), 'segment')} of {_size(made)} in total on this host, and "
                if sizes
                else "The log shows "
            )
            + f"{_size(sum(wanted.values()))} that could not be allocated"
            + (
                f": at least {_size(needed)} are needed."
                if sizes
                else ". The other segments of this host are not in the log."
            )
            if wanted
            else "The line does not show the size of the segment."
        ),
        next_step=f"Make /dev/shm at least {room} large (in a container: --shm-size={room}) and remove /dev/shm/nccl-* of dead processes."
        if full
        else lines.catalogue(job).by_name[failed[0].name].next_step,
        refs=[e.ref for e in failed[:6]],
        procs=procs,
        culprits=_ranks(job, procs) if not done else [],
        stage="shared memory",
        known_issue="NVIDIA/nccl#290" if full else None,
    )


def _segment(event: Event) -> str:
    """The name of a segment; NCCL 2.4 to 2.11 makes it of its process, channel, sender and receiver."""
    parts = [str(event.fields.get(key)) for key in ("process", "channel", "sender", "receiver")]
    return str(event.fields.get("name", "-".join([event.name, *parts])))


@once
def _created(job: Job) -> dict[tuple[int | None, str], dict[str, int]]:
    """The segments of each host of a run by name, with their sizes."""
    out: dict[tuple[int | None, str], dict[str, int]] = defaultdict(dict)
    for event in job.events(*_CREATED):
        size = number(event.fields, "size")
        if event.proc >= 0 and size is not None:
            out[job.run_of(event.proc), job.process(event.proc).host][str(event.fields.get("name", ""))] = size
    return dict(out)


def _size(value: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value} bytes"


def _round(value: int) -> str:
    """The next power of two of GiB, since 64 MiB is what a container has by default."""
    mib = 1024
    while mib * (1 << 20) < value:
        mib *= 2
    return f"{mib // 1024}g"


def _reported(job: Job, code: str, what: str) -> list[Finding]:
    """Errors that a rank reports and the job seems to survive; a fatal error is reported with its origin."""
    out = []
    for run, events in by_run(job, untold(job, code)[0]).items():
        ours = [e for e in events if e.proc >= 0]
        if not ours or run is None:
            continue
        procs = sorted({e.proc for e in ours})
        out.append(
            new_finding(
                job,
                code,
                run=run,
                title=f"{names_of(job, procs)}: {what}",
                severity=Severity.INFO if proof.done(job, run) else Severity.WARNING,
                confidence=0.7,
                refs=[e.ref for e in ours[:6]],
                procs=procs,
                stage="memory",
            )
        )
    return out


def _sizes(job: Job) -> list[Finding]:
    out = []
    for run, events in by_run(job, sightings(job, "PSM105")).items():
        ours = [e for e in events if e.proc >= 0]
        if not ours or run is None or proof.done(job, run):
            continue
        event = ours[0]
        got, want = (
            _field(event, *names) for names in (("got", "received", "recv_size"), ("expected", "want", "size"))
        )
        procs = sorted({e.proc for e in ours})
        sizes = f" ({got} bytes instead of {want})" if got is not None and want is not None else ""
        out.append(
            new_finding(
                job,
                "PSM105",
                run=run,
                title=f"{names_of(job, procs)} got a message of another size than expected{sizes}",
                confidence=0.85,
                explanation=(
                    "The peer sent a message of another step: it skipped or added a call (a recv that was not posted when connections were made), "
                    "or it runs with other settings (NCCL_PASS_SM, buffer sizes) or another library."
                ),
                refs=[e.ref for e in ours[:6]],
                procs=procs,
                stage="connect",
            )
        )
    return out


def _field(event: Event, *names: str) -> int | None:
    return next((n for name in names if (n := number(event.fields, name)) is not None), None)
