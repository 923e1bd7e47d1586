"""Find settings whose values differ between the ranks of a run.

NCCL prints a setting when it first reads it, so a missing line proves little. It counts only if the rank provably passed
the place at which the others printed the line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event, Ref

__all__ = ["UNSET", "WIRE", "Difference", "differences", "odd_ranks"]


#: Both ends of a connection, or all ranks of a communicator, must agree on these.
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

#: A missing line of these settings is checked: the default of a rank without them contradicts the others.
_ABSENCE = frozenset(
    "NCCL_PASS_SM NCCL_ALGO NCCL_PROTO NCCL_BUFFSIZE NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_P2P_DISABLE NCCL_SHM_DISABLE".split()
)

#: Settings whose wrong value alone breaks the exchange of connect messages.
WIRE = (
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

UNSET = "not set"

#: How many kinds of lines that its peers print after a setting a rank must have printed, to prove that it passed the setting.
_MARKERS = 2


@dataclass(slots=True)
class Difference:
    """A setting, with the processes for each of its values."""

    name: str
    values: dict[str, list[int]]
    refs: dict[int, Ref] = field(default_factory=dict)

    @property
    def odd(self) -> list[int]:
        """The processes that differ from the majority; empty if no value is the most common."""
        ranked = sorted(self.values.items(), key=lambda item: -len(item[1]))
        if len(ranked) < 2 or len(ranked[0][1]) <= len(ranked[1][1]):
            return []
        return sorted(p for _, procs in ranked[1:] for p in procs)


def _must_agree(name: str) -> bool:
    return name in _STRICT or name.startswith(_PREFIXES)


def _value(event: Event) -> str:
    return str(event.fields.get("value", "")).strip().rstrip(".")


def differences(job: Job, run: int) -> list[Difference]:
    """The settings of a run that must be equal but differ."""
    seen: dict[str, dict[int, Event]] = defaultdict(dict)
    for event in job.events("param.env", run=run):
        name = str(event.fields.get("name", ""))
        # a line that was cut inside its value proves nothing
        if event.proc >= 0 and _must_agree(name) and _value(event):
            seen[name][event.proc] = event
    out = []
    for name, events in sorted(seen.items()):
        values: dict[str, list[int]] = defaultdict(list)
        for proc, event in events.items():
            values[_value(event)].append(proc)
        lacking = _lacking(job, run, events) if name in _ABSENCE or name.startswith("NCCL_PSM_") else []
        if lacking:
            values[UNSET].extend(lacking)
        if len(values) > 1:
            out.append(Difference(name, dict(values), {p: e.ref for p, e in events.items()}))
    return out


def _lacking(job: Job, run: int, events: Mapping[int, Event]) -> list[int]:
    """Processes that passed the place where the others printed a setting, but did not print it."""
    others = [p for p in job.runs[run].procs if p not in events and job.rank_of(p) is not None]
    if not others or not events:
        return []
    firsts = _firsts(job)
    after: set[str] | None = None
    for proc, event in events.items():
        later = {name for name, seq in firsts.get(proc, {}).items() if seq > event.ref.seq}
        after = later if after is None else after & later
    return sorted(p for p in others if len((after or set()) & firsts.get(p, {}).keys()) >= _MARKERS)


@once
def _firsts(job: Job) -> dict[int, dict[str, int]]:
    """Where each process first printed each start-up message of its main path."""
    out: dict[int, dict[str, int]] = defaultdict(dict)
    for event in job.scan.events:
        if event.proc >= 0 and event.name.startswith(("init.", "comm.", "coll.", "plan.", "psm.", "p2p.", "net.")):
            out[event.proc].setdefault(event.name, event.ref.seq)
    return out


def odd_ranks(job: Job, run: int, *names: str) -> list[int]:
    """Ranks whose settings differ from the majority's in a way that breaks what two ranks exchange."""
    procs = {p for d in differences(job, run) if d.name.startswith(names or WIRE) for p in d.odd}
    return sorted({r for p in procs if (r := job.rank_of(p)) is not None})
