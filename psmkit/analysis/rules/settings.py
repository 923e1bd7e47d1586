"""Settings, versions and networks that must be equal on all ranks and are not.

NCCL prints a setting when it first reads it, so a missing line proves little: it counts only where the rank is seen to have
passed the place at which the others printed it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psmkit.analysis.facts.job import Job, words
from psmkit.analysis.inference import faults
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity

__all__ = ["Difference", "differences", "find", "odd_ranks"]

#: Both ends of a connection, or all ranks of a communicator, compute with these.
_STRICT = frozenset(
    """NCCL_PASS_SM NCCL_ALGO NCCL_PROTO NCCL_BUFFSIZE NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE
    NCCL_P2P_DISABLE NCCL_P2P_DIRECT_DISABLE NCCL_P2P_USE_CUDA_MEMCPY NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE
    NCCL_SHM_DISABLE NCCL_SHM_USE_CUDA_MEMCPY NCCL_SHM_MEMCPY_MODE NCCL_NVLS_ENABLE NCCL_NVLS_CHUNKSIZE NCCL_COLLNET_ENABLE
    NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_MAX_CTAS NCCL_MIN_CTAS NCCL_NRINGS NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS
    NCCL_PXN_DISABLE NCCL_P2P_PXN_LEVEL NCCL_NTHREADS NCCL_LL128_NTHREADS NCCL_CHUNK_SIZE NCCL_IB_DISABLE NCCL_NET NCCL_MNNVL_ENABLE
    NCCL_NVB_DISABLE NCCL_CROSS_NIC NCCL_DMABUF_ENABLE NCCL_RUNTIME_CONNECT NCCL_GRAPH_FILE NCCL_SOCKET_MAGIC NCCL_NCHANNELS_PER_NET_PEER
    NCCL_LOCAL_REGISTER NCCL_GRAPH_REGISTER NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_QPS_PER_CONNECTION NCCL_IB_ADAPTIVE_ROUTING""".split()
)
_PREFIXES = ("NCCL_PSM_", "NCCL_P2P_", "NCCL_SHM_")
#: Of these a missing line is looked into: the default of a rank that lacks them contradicts the others.
_ABSENCE = frozenset(
    "NCCL_PASS_SM NCCL_ALGO NCCL_PROTO NCCL_BUFFSIZE NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_P2P_DISABLE NCCL_SHM_DISABLE".split()
)
#: Settings by which a wrong value alone breaks the exchange of connect messages.
_WIRE = (
    "NCCL_PASS_SM",
    "NCCL_PSM_",
    "NCCL_CUMEM_",
    "NCCL_BUFFSIZE",
    "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_SHM_",
    "NCCL_P2P_",
)
_UNSET = "not set"
#: How many kinds of lines that its peers print after a setting a rank must have printed to have passed it.
_MARKERS = 2


@dataclass(slots=True)
class Difference:
    """A setting with the processes that hold each of its values."""

    name: str
    values: dict[str, list[int]]
    refs: dict[int, Ref] = field(default_factory=dict)

    @property
    def odd(self) -> list[int]:
        """The processes that differ from most, empty where no value is most common."""
        ranked = sorted(self.values.items(), key=lambda item: -len(item[1]))
        if len(ranked) < 2 or len(ranked[0][1]) <= len(ranked[1][1]):
            return []
        return sorted(p for _, procs in ranked[1:] for p in procs)


def _must_agree(name: str) -> bool:
    return name in _STRICT or name.startswith(_PREFIXES)


def _value(event: Event) -> str:
    return str(event.fields.get("value", "")).strip().rstrip(".")


def differences(job: Job, run: int) -> list[Difference]:
    """The settings of a run that must be equal and are not."""
    seen: dict[str, dict[int, Event]] = defaultdict(dict)
    for event in job.events("param.env", run=run):
        name = str(event.fields.get("name", ""))
        # a line that was cut in its value says nothing
        if event.proc >= 0 and _must_agree(name) and _value(event):
            seen[name][event.proc] = event
    out = []
    for name, events in sorted(seen.items()):
        values: dict[str, list[int]] = defaultdict(list)
        for proc, event in events.items():
            values[_value(event)].append(proc)
        lacking = _lacking(job, run, events) if name in _ABSENCE or name.startswith("NCCL_PSM_") else []
        if lacking:
            values[_UNSET].extend(lacking)
        if len(values) > 1:
            out.append(Difference(name, dict(values), {p: e.ref for p, e in events.items()}))
    return out


def _lacking(job: Job, run: int, events: Mapping[int, Event]) -> list[int]:
    """Processes that passed the place where the others printed a setting, without printing it."""
    others = [p for p in job.runs[run].procs if p not in events and job.rank_of(p) is not None]
    if not others or not events:
        return []
    firsts = _firsts(job)
    after: set[str] | None = None
    for proc, event in events.items():
        later = {name for name, seq in firsts.get(proc, {}).items() if seq > event.ref.seq}
        after = later if after is None else after & later
    return sorted(p for p in others if len((after or set()) & firsts.get(p, {}).keys()) >= _MARKERS)


def _firsts(job: Job) -> dict[int, dict[str, int]]:
    """Where each process first printed each start-up message of its main path."""
    out: dict[int, dict[str, int]] = defaultdict(dict)
    for event in job.scan.events:
        if event.proc >= 0 and event.name.startswith(("init.", "comm.", "coll.", "plan.", "psm.", "p2p.", "net.")):
            out[event.proc].setdefault(event.name, event.ref.seq)
    return out


def odd_ranks(job: Job, run: int, *names: str) -> list[int]:
    """Ranks whose settings differ from those of most, where the difference breaks what two ranks exchange."""
    procs = {p for d in differences(job, run) if d.name.startswith(names or _WIRE) for p in d.odd}
    return sorted({r for p in procs if (r := job.rank_of(p)) is not None})


def find(job: Job) -> list[Finding]:
    """PSM601 for settings, PSM602 for releases, PSM603 for networks and plugins."""
    out: list[Finding] = []
    for info in job.runs:
        trouble = _trouble(job, info.index)
        out.extend(_setting(job, info.index, d, trouble) for d in differences(job, info.index))
        out.extend(_versions(job, info.index))
        out.extend(_networks(job, info.index, trouble))
    return out


def _trouble(job: Job, run: int) -> bool:
    """Whether this run is shown to fail or to wait."""
    if any(c.fatal and job.run_of(c.proc) == run for c in faults.cascades(job)):
        return True
    if any(w.proven and w.run == run for w in job.waits()):
        return True
    lasting = job.events("ras.keepalive.error", "ras.peer.declared_dead", "torch.watchdog.timeout", run=run)
    return any(e.proc < 0 or not job.torn_down(e.proc) for e in lasting)


def _sizes_clash(job: Job, run: int) -> bool:
    """Whether a rank of the run got a message of another size than it expected."""
    return any(
        f.known is not None and f.known.finding == "PSM105"
        for c in faults.cascades(job)
        if job.run_of(c.proc) == run
        for f in c.faults
    )


def _ended(job: Job, run: int, least: int) -> bool:
    """Whether at least so many processes were torn down in order: the run worked with its settings as they are."""
    return sum(job.torn_down(p) for p in job.runs[run].procs) >= max(least, 1)


def _spread(job: Job, values: Mapping[str, Sequence[int]]) -> str:
    ranked = sorted(values.items(), key=lambda item: (len(item[1]), item[0]))
    return words([f"{value or 'empty'} on {job.whos(procs)}" for value, procs in ranked], 4)


def _setting(job: Job, run: int, difference: Difference, trouble: bool) -> Finding:
    odd = difference.odd
    inferred = _UNSET in difference.values
    wire = difference.name.startswith(_WIRE)
    # a line that is not there may be lost: it takes trouble of the kind that the setting makes
    error = trouble and wire and (not inferred or _sizes_clash(job, run))
    ended = _ended(job, run, 1 if inferred else len(job.runs[run].procs))
    severity = Severity.ERROR if error else Severity.INFO if ended or (inferred and not wire) else Severity.WARNING
    shown = [*odd, *(p for procs in difference.values.values() for p in procs[:1])]
    guilty = sorted({r for p in odd if (r := job.rank_of(p)) is not None})
    return job.finding(
        "PSM601",
        run=run,
        title=f"{difference.name} differs between ranks: {_spread(job, difference.values)}",
        severity=severity,
        confidence=(0.8 if error else 0.7) - (0.15 if inferred else 0.0),
        explanation="Both ends of a connection compute buffer sizes, message sizes or the transport from this setting."
        + (
            " A rank counts as without it because it printed later lines of the same stage and not this one."
            if inferred
            else ""
        )
        + (" The run is in trouble, and this can be why." if trouble else ""),
        next_step=f"Set {difference.name} to the same value on every rank (mpirun -x, a ConfigMap, /etc/nccl.conf on each node) and run again.",
        refs=[ref for p in shown if (ref := difference.refs.get(p)) is not None][:6],
        procs=sorted({p for procs in difference.values.values() for p in procs}),
        culprits=guilty if error else (),
    )


def _release(event: Event) -> str:
    text = str(event.fields.get("version", "")).strip()
    return text.split()[0].split("+")[0] if text else ""


def _versions(job: Job, run: int) -> list[Finding]:
    values: dict[str, list[Event]] = defaultdict(list)
    for event in job.events("init.version", "init.version_line", "generic.nccl_version", run=run):
        release = _release(event)
        if release[:1].isdigit():
            values[release].append(event)
    said = list(job.events("ras.version_mismatch", run=run))
    if len(values) < 2 and not said:
        return []
    procs = sorted(
        {e.proc for events in values.values() for e in events if e.proc >= 0} | {e.proc for e in said if e.proc >= 0}
    )
    if len(values) >= 2:
        title = "ranks run different NCCL releases: " + words(sorted(values), 4)
    else:
        title = f"{job.who(said[0].proc)} met a peer of another NCCL release: {faults.body(job, said[0])}"
    refs = [events[0].ref for _, events in sorted(values.items())] + [e.ref for e in said[:2]]
    return [
        job.finding("PSM602", run=run, title=title, severity=Severity.WARNING, confidence=0.8, refs=refs, procs=procs)
    ]


def _networks(job: Job, run: int, trouble: bool) -> list[Finding]:
    out: list[Finding] = []
    chosen: dict[str, dict[int, Event]] = defaultdict(dict)
    for event in job.events("net.using", "net.assigned", "plugin.assigned", run=run):
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
    # a process that lists two networks has two communicators, each with its own
    common = Counter(p for procs in values.values() for p in procs)
    if len(values) > 1 and any(count == 1 for count in common.values()) and not _subsets(values):
        odd = Difference("", values).odd
        guilty = sorted({r for p in odd if (r := job.rank_of(p)) is not None})
        out.append(
            job.finding(
                "PSM603",
                run=run,
                title=f"ranks use different networks: {_spread(job, values)}",
                severity=Severity.ERROR if trouble else Severity.WARNING,
                confidence=0.75,
                refs=[next(iter(events.values())).ref for events in chosen.values()],
                procs=sorted(common),
                culprits=guilty if trouble else (),
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
        job.finding(
            "PSM603",
            run=run,
            title=f"the network plugin {words(names)} is loaded by {job.whos(loaded)} and not found by {job.whos(without)}",
            severity=Severity.WARNING,
            confidence=0.8,
            refs=[missing[without[0]].ref, next(iter(loaded.values())).ref],
            procs=[*without, *sorted(loaded)],
            known_issue="NVIDIA/nccl#1634",
        )
    ]
