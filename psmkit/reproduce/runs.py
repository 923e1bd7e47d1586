"""Where the symptom of a case returns: on the simulator, on libpsm's lab."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.pipeline import analyze
from psmkit.lab.cuda import LabError
from psmkit.model import Report
from psmkit.model.wording import counted
from psmkit.plan.programs import parse_program
from psmkit.reproduce import simulator
from psmkit.reproduce.case import Case
from psmkit.reproduce.operations import Operations
from psmkit.reproduce.simulator import still
from psmkit.reproduce.symptom import Symptom, compare
from psmkit.reproduce.write import tasks

__all__ = ["TOO_MANY", "Returned", "on_lab", "on_simulator"]

#: What the lab takes: ranks are processes of this machine.
_MOST_RANKS, _MOST_OPERATIONS, _MOST_BYTES = 16, 20_000, 1 << 28
#: Channels of the lab's communicators: each is a connection, and its memory, with each peer.
_LAB_CHANNELS = 2
_MOST_STEPS = 4_000_000


@dataclass(frozen=True, slots=True)
class Returned:
    """What a run of a case showed.

    Attributes:
        where: ``simulator`` or ``lab``.
        returns: the symptom came back; None: it was not run, or the case has none.
        text: a sentence.
        seen: what its analysis says.
    """

    where: str
    returns: bool | None
    text: str
    seen: Symptom | None = None


#: Of a job with too many operations, and no place where all ranks are even.
TOO_MANY = Returned(
    "simulator", None, "simulator: not run: too many operations, and no place near the end where all ranks are even"
)


def on_simulator(case: Case) -> Returned:
    """Run a case on libpsm's model of plans."""
    stands = simulator.run(case.operations, case.config)
    name = "simulator"
    if case.symptom is None or not case.symptom.kind:
        how = "stands still" if stands else "comes to its end"
        return Returned(
            name,
            None,
            f"simulator: the case {how}; the finding of the original is not about which operations ranks call",
        )
    if not stands:
        return Returned(name, False, "simulator: it does not return: all operations end", Symptom("healthy"))
    return _judged(name, case, simulator.report(case.operations, case.config, stands), _how(case.operations, stands))


def _how(operations: Operations, stands: list[simulator.Stand]) -> str:
    parts = []
    for stand in stands[:3]:
        comm = operations.comms[stand.comm]
        ranks = ranks_text(sorted(comm.ranks[r] for r in stand.ranks))
        if stand.differs:
            parts.append(f"{stand.differs} (communicator {comm.name})")
        elif stand.blocked:
            parts.append(f"{ranks} {'waits' if len(stand.ranks) == 1 else 'wait'} for room in the work FIFO")
        else:
            parts.append(f"{ranks} {'waits' if len(stand.ranks) == 1 else 'wait'} in communicator {comm.name}")
            if stand.unbuffered:
                parts[-1] += ", where connections buffer nothing (registered buffers, direct copies)"
    return "; ".join(parts)


def _judged(where: str, case: Case, report: Report, how: str) -> Returned:
    assert case.symptom is not None
    same, seen, differs = compare(case.symptom, report)
    refused = (
        where == "lab" and not same and seen.verdict == "failed" and case.symptom.verdict in ("hung", "inconclusive")
    )
    if refused and compare(replace(case.symptom, verdict="failed"), report)[0]:
        return Returned(
            where,
            True,
            f"{where}: it returns as an error: libpsm compares what both ends call, where NCCL waits: {_said(seen)}; {how}",
            seen,
        )
    said = _said(seen) + (f"; {how}" if how else "")
    if same:
        return Returned(where, True, f"{where}: it returns: {said}", seen)
    return Returned(where, False, f"{where}: it does not return ({differs}): {said}", seen)


def _said(seen: Symptom) -> str:
    who = f", blames {ranks_text(list(seen.culprits))}" if seen.culprits else ", blames nobody"
    return f"{seen.verdict}, {seen.code or 'no finding'}, stage {seen.stage or '-'}{who}"


def on_lab(case: Case, deadline: float, seed: int = 1, watch: Callable[[int, str], None] | None = None) -> Returned:
    """Run a case on ranks of libpsm, and analyse what they leave."""
    from psmkit.lab import tasks as lab

    operations = case.operations
    nbytes = sum(int((ours["count"] * 8).sum()) for ours in operations.by_rank.values())
    for is_large, what in (
        (operations.ranks > _MOST_RANKS, counted(operations.ranks, "rank")),
        (len(operations) > _MOST_OPERATIONS, f"{len(operations):,} operations"),
        (nbytes > _MOST_BYTES, f"about {nbytes >> 20:,} MiB"),
    ):
        if is_large:
            return Returned(
                "lab", None, f"lab: not run: {what} are too much for this machine; --shrink makes a smaller case"
            )
    text = "".join(tasks(operations))
    program = parse_program(text, _ranks(operations), "case.tasks", _MOST_STEPS)
    channels = min(case.config.p2p_channels, _LAB_CHANNELS)
    config = replace(
        case.config, nodes=1, channels=channels, p2p_channels=channels,
        p2p_channels_per_peer=min(case.config.p2p_channels_per_peer, channels), ranks=program.ranks,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="psmkit-case-") as name:
        try:
            done = lab.start(
                text, program, config, Path(name) / "run", deadline=deadline, seed=seed, stacks=False, watch=watch
            )
        except LabError as error:
            return Returned("lab", None, f"lab: not run: {error}")
        waiting = [r for r in done.outcome.ranks if r.state in ("hung", "slow", "waiting")]
        if waiting:  # the lab watched them until its deadline
            host = socket.gethostname().split(".")[0] or "-"
            text = "".join(still(((r.rank, f"{host}:{r.pid}") for r in waiting), deadline))
            (done.folder / "logs" / "record.log").write_text(text)
        evidence = [str(path) for path in done.evidence()]
        states = ", ".join(f"rank {r.rank} {r.state}" for r in done.outcome.ranks if r.state != "good")
        report = analyze(evidence) if evidence else None
    if report is None:
        return Returned("lab", None, "lab: the run left nothing to analyse")
    if case.symptom is None or not case.symptom.kind:
        return Returned("lab", None, f"lab: {report.verdict.value}: {report.reason}")
    if case.symptom.kind == "work FIFO":
        how = states or "all ranks ended well"
        return Returned(
            "lab",
            None,
            f"lab: {how}; not judged: a full work FIFO shows in the stacks of NCCL, which libpsm does not have",
        )
    return _judged("lab", case, report, states)


def _ranks(operations: Operations) -> int:
    used = operations.used()
    return len(operations.comms[used[0]].ranks) if len(used) == 1 else operations.ranks
