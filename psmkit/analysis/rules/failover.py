"""Network connections that lost a device: moved to another one, which is a note, or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from psmkit.analysis.facts.failover import Failover, failovers
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import names_of, ranks_text
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.moved import Move, move_of
from psmkit.analysis.registry import rule
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted

__all__ = ["find"]

_ENDS = {"send": "sending", "recv": "receiving"}


@rule(order=72)
def find(job: Job) -> list[Finding]:
    """PSM409 for the fail-overs of each run, by what became of them; PSM406 where the log does not show it."""
    groups: dict[tuple[int | None, Move], list[Failover]] = defaultdict(list)
    for proc, ours in failovers(job).items():
        for one in ours:
            groups[job.run_of(proc), move_of(job, one)].append(one)
    return [_finding(job, run, move, found) for (run, move), found in groups.items()]


def _finding(job: Job, run: int | None, move: Move, found: Sequence[Failover]) -> Finding:
    procs = sorted({one.proc for one in found})
    given_up = any(one.given_up is not None for one in found)
    return new_finding(
        job,
        "PSM406" if move is Move.OPEN else "PSM409",
        run=run,
        title=_title(job, procs, move, found, given_up),
        severity=Severity.INFO if move >= Move.COMPLETE and not given_up else Severity.WARNING,
        confidence=0.5 if move is Move.OPEN else 0.9,
        explanation=" ".join([_ends(found), *_after(move, given_up)]),
        refs=[ref for one in found[:2] for ref in one.refs][:6],
        procs=procs,
        stage="net",
    )


def _title(job: Job, procs: Sequence[int], move: Move, found: Sequence[Failover], given_up: bool) -> str:
    who, device = names_of(job, procs), _device(found)
    them = "a connection" if len(found) == 1 else f"{len(found)} ends of connections"
    if move is Move.FAILED:
        return f"{who} could not move {them} off {device}"
    if move is Move.OPEN:
        return f"{who} lost {device} of {them}, and no line shows that another one does its work"
    port = ""
    if given_up:
        port = ", and the port was not recovered"
    elif all(one.recovered is not None for one in found):
        port = ", and the port was recovered"
    return f"{who} moved {them} off {device}{' and went on' if move is Move.WENT_ON else ''}{port}"


def _device(found: Sequence[Failover]) -> str:
    numbers = sorted({one.index for one in found})
    ports = {f"{one.event.fields['dev']}:{one.event.fields.get('port')}" for one in found if one.event is not None}
    name = f" ({next(iter(ports))})" if len(ports) == 1 else ""
    shown = ", ".join(map(str, numbers))
    return f"network device {shown}{name}" if len(numbers) == 1 else f"network devices {shown}"


def _ends(found: Sequence[Failover]) -> str:
    """Which ends of connections failed, and with whom, as far as only one peer is possible."""
    parts = []
    for side, name in _ENDS.items():
        ours = [one for one in found if one.side == side]
        peers = {one.peers for one in ours}
        peer = next(iter(peers)) if len(peers) == 1 else ()
        whom = f" ({'to' if side == 'send' else 'from'} {ranks_text(peer)})" if len(peer) == 1 else ""
        parts += [f"{counted(len(ours), f'{name} end')}{whom}"] if ours else []
    return f"A network device failed for {' and '.join(parts)}."


def _after(move: Move, given_up: bool) -> list[str]:
    if move is Move.FAILED:
        return ["NCCL ends such a connection with an error."]
    if move is Move.OPEN:
        return ["The lines that show it are printed with NCCL_DEBUG=INFO and the subsystem NET."]
    out = ["NCCL replaced its queue pairs by those of another device."]
    if given_up:
        out.append(
            "It gave the port up: until the communicator ends, the connection has fewer devices, and less bandwidth."
        )
    return out
