"""Find settings whose values differ between the ranks of a run.

NCCL prints a setting when it first reads it, so a missing line proves little. It counts only if the rank provably passed
the place at which the others printed the line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event, Ref
from psmkit.model.late import dataclass

__all__ = [
    "COLLECTIVE",
    "CONNECTION",
    "MEMORY",
    "SHARED",
    "SIZES",
    "UNSET",
    "Difference",
    "Shared",
    "differences",
    "odd_ranks",
    "shared",
]


#: Exchanges between ranks that a setting shapes: the sizes of messages, the memory that a rank opens for another, the choice and
#: number of connections, the calls on the device.
SIZES, MEMORY, CONNECTION, COLLECTIVE = "sizes", "memory", "connection", "collective"


@dataclass(frozen=True, slots=True)
class Shared:
    """Settings on which ranks must agree (a trailing ``*`` is a prefix), and the exchanges that a difference can break.

    ``default``: a rank without the setting contradicts those that set it.
    """

    names: frozenset[str]
    breaks: frozenset[str]
    default: bool

    def has(self, name: str) -> bool:
        """Whether a setting is one of these."""
        return name in self.names or any(n[-1] == "*" and name.startswith(n[:-1]) for n in self.names)


def _shared(names: str, *breaks: str, default: bool = False) -> Shared:
    return Shared(frozenset(names.split()), frozenset(breaks), default)


#: The one list of settings that must be equal; the first entry that has a name counts. A setting that describes a host (interfaces,
#: adapters, files, thread counts of a network, debug output) may differ and is not here.
SHARED = (
    _shared("NCCL_PASS_SM NCCL_PSM_*", SIZES, MEMORY, CONNECTION, COLLECTIVE, default=True),
    _shared("NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE", SIZES, MEMORY, CONNECTION, default=True),
    _shared("NCCL_P2P_DISABLE NCCL_SHM_DISABLE", SIZES, MEMORY, CONNECTION, default=True),
    _shared("NCCL_BUFFSIZE", SIZES, MEMORY, COLLECTIVE, default=True),
    _shared("NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE", MEMORY, COLLECTIVE),
    _shared("NCCL_P2P_USE_CUDA_MEMCPY NCCL_SHM_USE_CUDA_MEMCPY NCCL_SHM_MEMCPY_MODE", SIZES, MEMORY, CONNECTION),
    _shared("NCCL_P2P_PXN_LEVEL NCCL_PXN_DISABLE NCCL_NVB_DISABLE NCCL_RUNTIME_CONNECT", CONNECTION),
    _shared("NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE", SIZES, COLLECTIVE),
    _shared("NCCL_P2P_* NCCL_SHM_*", SIZES, MEMORY, CONNECTION),
    _shared("NCCL_ALGO NCCL_PROTO", SIZES, CONNECTION, COLLECTIVE, default=True),
    _shared(
        "NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_MAX_CTAS NCCL_MIN_CTAS NCCL_NRINGS NCCL_NVLS_ENABLE NCCL_COLLNET_ENABLE "
        "NCCL_MNNVL_ENABLE NCCL_NCHANNELS_PER_NET_PEER",
        CONNECTION,
        COLLECTIVE,
    ),
    _shared("NCCL_NTHREADS NCCL_LL128_NTHREADS NCCL_CHUNK_SIZE NCCL_NVLS_CHUNKSIZE", COLLECTIVE),
    _shared("NCCL_NET NCCL_IB_DISABLE NCCL_SOCKET_MAGIC NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS", CONNECTION),
    _shared("NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SPLIT_DATA_ON_QPS", CONNECTION),
    _shared("NCCL_CROSS_NIC NCCL_IB_ADAPTIVE_ROUTING NCCL_DMABUF_ENABLE NCCL_LOCAL_REGISTER NCCL_GRAPH_REGISTER"),
)

UNSET = "not set"

#: How many kinds of lines that its peers print after a setting a rank must have printed, to prove that it passed the setting.
_MARKERS = 2


@dataclass(slots=True)
class Difference:
    """A setting, with the processes for each of its values, and the exchanges that the difference can break."""

    name: str
    breaks: frozenset[str]
    values: dict[str, list[int]]
    refs: dict[int, Ref] = field(default_factory=dict)

    @property
    def odd(self) -> list[int]:
        """The processes that differ from the majority; empty if no value is the most common.

        Where a process printed another value, those that printed none do not count: their line may be lost.
        """
        ranked = sorted(self.values.items(), key=lambda item: -len(item[1]))
        if len(ranked) < 2 or len(ranked[0][1]) <= len(ranked[1][1]):
            return []
        others = [item for item in ranked[1:] if item[0] != UNSET] or ranked[1:]
        return sorted(p for _, procs in others for p in procs)


def shared(name: str) -> Shared | None:
    """The entry of a setting in :data:`SHARED`; None if ranks need not agree on it."""
    return next((entry for entry in SHARED if entry.has(name)), None)


def _value(event: Event) -> str:
    return str(event.fields.get("value", "")).strip().rstrip(".")


def differences(job: Job, run: int) -> list[Difference]:
    """The settings of a run that must be equal but differ."""
    seen: dict[str, dict[int, Event]] = defaultdict(dict)
    for event in job.events("param.env", run=run):
        name = str(event.fields.get("name", ""))
        # a line that was cut inside its value proves nothing
        if event.proc >= 0 and shared(name) is not None and _value(event):
            seen[name][event.proc] = event
    out = []
    for name, events in sorted(seen.items()):
        entry = shared(name)
        if entry is None:
            continue
        values: dict[str, list[int]] = defaultdict(list)
        for proc, event in events.items():
            values[_value(event)].append(proc)
        lacking = _lacking(job, run, events) if entry.default else []
        if lacking:
            values[UNSET].extend(lacking)
        if len(values) > 1:
            out.append(Difference(name, entry.breaks, dict(values), {p: e.ref for p, e in events.items()}))
    return out


def _lacking(job: Job, run: int, events: Mapping[int, Event]) -> list[int]:
    """Processes that passed the place where the others printed a setting, but did not print it. A log that begins behind it proves nothing."""
    others = [p for p in job.runs[run].procs if p not in events and job.rank_of(p) is not None]
    if not others or not events:
        return []
    firsts = _firsts(job)
    after: set[str] | None = None
    before: set[str] | None = None
    for proc, event in events.items():
        later = {name for name, seq in firsts.get(proc, {}).items() if seq > event.ref.seq}
        after = later if after is None else after & later
        before = (
            firsts.get(proc, {}).keys() - later if before is None else before & (firsts.get(proc, {}).keys() - later)
        )
    passed = [p for p in others if len((after or set()) & firsts.get(p, {}).keys()) >= _MARKERS]
    return sorted(p for p in passed if (before or set()) & firsts.get(p, {}).keys())


@once
def _firsts(job: Job) -> dict[int, dict[str, int]]:
    """Where each process first printed each start-up message of its main path."""
    out: dict[int, dict[str, int]] = defaultdict(dict)
    events = job.scan.events
    for name in events.names:
        if name.startswith(("init.", "comm.", "coll.", "plan.", "psm.", "p2p.", "net.")):
            rows = events.rows([name])
            for proc, seq in zip(events.proc[rows].tolist(), events.first[rows].tolist(), strict=True):
                if proc >= 0:
                    out[proc].setdefault(name, seq)
    return out


def odd_ranks(job: Job, run: int, exchange: str) -> list[int]:
    """Ranks whose settings differ from the majority's in a way that breaks an exchange."""
    procs = {p for d in differences(job, run) if exchange in d.breaks for p in d.odd}
    return sorted({rank for p in procs for rank in job.ranks_of(p)})
