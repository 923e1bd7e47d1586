"""What stands before an error of a connection between hosts: the loss of a host that its launcher reports, or an error of a device of the network."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import deaths
from psmkit.analysis.facts.death import Death
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.launcher_ends import bare_host
from psmkit.analysis.facts.naming import names_of
from psmkit.analysis.inference import blame, faults
from psmkit.analysis.inference.connection_ends import links_down, reports_of_devices
from psmkit.analysis.inference.faults import Cascade
from psmkit.logparse.types import Event, Ref
from psmkit.model import CODES
from psmkit.model.late import dataclass
from psmkit.model.wording import plural

__all__ = ["NetworkCause", "cause_of"]

#: So many lines of the cause are evidence.
_SHOWN = 2


@dataclass(frozen=True, slots=True)
class NetworkCause:
    """``said`` is a clause for a title, ``why`` a sentence. ``host`` is where it is, None if the processes that report it are to blame themselves."""

    said: str
    why: str
    refs: tuple[Ref, ...]
    host: str | None


def cause_of(job: Job, group: Sequence[Cascade], code: str) -> NetworkCause | None:
    """The cause of errors of a connection that another line of the log shows; None if no line does."""
    if not CODES[code].two_ends or group[0].first.known is None or faults.unknown(group[0].first.event):
        return None
    return _lost_host(job, group) or _device(job, group)


def _lost_host(job: Job, group: Sequence[Cascade]) -> NetworkCause | None:
    """The only host whose command ended, by a launcher's line above all of these errors, while the errors are of processes of other hosts."""
    first = min((c.first.ref for c in group), key=lambda ref: ref.seq)
    stream, run = job.scan.files[first.file].stream, job.run_of(group[0].proc)
    ours = {job.process(c.proc).host for c in group}
    lost: dict[str, tuple[Death, Event]] = {}
    for death in deaths.collect(job, run):
        event, host = death.events[0], bare_host(death.host)
        above = event.stream == stream and event.ref.seq < first.seq
        if host and above and death.rank is None and death.pid is None and (death.code or death.signal):
            lost.setdefault(host, (death, event))
    peers = {n.host for n in blame.addressed(c.first.event for c in group) if n.host is not None}
    if len(lost) != 1 or next(iter(lost)) in ours:
        return None
    ((host, (death, event)),) = lost.items()
    if peers and not peers <= {host, *blame.addresses_of(job, host)}:
        return None
    how = f"the launcher reports that its command on {host} {deaths.manner(death)}"
    return NetworkCause(
        f"the command on {host} {deaths.manner(death)} before",
        f"Above these errors {how}. They probably follow from that.",
        (event.ref,),
        host,
    )


def _device(job: Job, group: Sequence[Cascade]) -> NetworkCause | None:
    """The device of the network that reported an error, with the processes that print this."""
    run = job.run_of(group[0].proc)
    down, found = links_down(job, run), reports_of_devices(job, run)
    devices = {(job.process(c.proc).host, c.first.event.fields.get("dev")) for c in found}
    if not found or len(devices) != 1:
        return None
    ((host, device),) = devices
    name = f"{device} of {host}" if device is not None else f"a network device of {host}"
    event = str(found[0].first.event.fields.get("event", "")) or "an error"
    return NetworkCause(
        f"{name} reported `{event}`",
        f"{names_of(job, down)} {plural(len(down), 'reports', 'report')} an error of a network device: {faults.brief(job, found[0].first.event)}. "
        "The error of the connection probably follows from that.",
        tuple(c.first.ref for c in found[:_SHOWN]),
        host if len(down) > 1 else None,
    )
