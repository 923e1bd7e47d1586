"""Where the symptom of a case returns: on the simulator, on libpsm's lab, on a real NCCL."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.pipeline import analyze
from psmkit.lab.cuda import LabError
from psmkit.lab.nccl_library import Library
from psmkit.lab.runner import RankOutcome
from psmkit.lab.transfer import LabRun
from psmkit.model import Report
from psmkit.model.wording import counted
from psmkit.plan.programs import Program, parse_program
from psmkit.reproduce import simulator
from psmkit.reproduce.case import Case
from psmkit.reproduce.operations import Operations, connected
from psmkit.reproduce.simulator import still
from psmkit.reproduce.symptom import NO_SYMPTOM, Symptom, compare
from psmkit.reproduce.write import tasks

__all__ = ["TOO_MANY", "Returned", "on_lab", "on_nccl", "on_simulator"]

#: What the lab takes: ranks are processes of this machine.
_MOST_RANKS, _MOST_OPERATIONS, _MOST_BYTES = 16, 20_000, 1 << 28
#: Channels of the lab's communicators: each is a connection, and its memory, with each peer.
_LAB_CHANNELS = 2
_MOST_STEPS = 4_000_000


@dataclass(frozen=True, slots=True)
class Returned:
    """What a run of a case showed.

    Attributes:
        where: ``simulator``, ``lab`` or ``NCCL`` with its release.
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
    if stands and case.symptom is not None and case.symptom.unexplained:
        how = _how(case.operations, stands)
        return Returned(
            name, True, f"simulator: it stands still: {how}; no finding about the input says that calls are the reason"
        )
    if case.symptom is None or not case.symptom.kind:
        how = "stands still" if stands else "comes to its end"
        return Returned(name, None, f"simulator: the case {how}; {_no_calls(case.symptom)}")
    if not stands:
        return Returned(name, False, "simulator: it does not return: all operations end", Symptom("healthy"))
    return _judged(name, case, simulator.report(case.operations, case.config, stands), _how(case.operations, stands))


def _no_calls(symptom: Symptom | None) -> str:
    """Why a case has no symptom that a run can show."""
    if symptom is None:
        return "the input has nothing to analyse, so there is no symptom"
    if symptom.healthy:
        return NO_SYMPTOM
    if not symptom.code:
        return f"the analysis of the input says {symptom.verdict}, with no finding"
    return "the finding about the input is not about which operations ranks call"


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
            if stand.crossed:
                parts[-1] += ", which others use in another order"
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
            f"{where}: it returns as an error: libpsm compares what both ends call, where NCCL waits: {_said(seen, case.symptom)}; {how}",
            seen,
        )
    said = _said(seen, case.symptom) + (f"; {how}" if how else "")
    if same:
        return Returned(where, True, f"{where}: it returns: {said}", seen)
    return Returned(where, False, f"{where}: it does not return ({differs}): {said}", seen)


def _said(seen: Symptom, wanted: Symptom) -> str:
    """What an analysis says of a run; stages differ where the evidence does, and are named then."""
    who = f", blames {ranks_text(list(seen.culprits))}" if seen.culprits else ", blames nobody"
    other = f" (of the input: {wanted.stage or '-'})" if seen.stage != wanted.stage else ""
    return f"{seen.verdict}, {seen.code or 'no finding'}, stage {seen.stage or '-'}{other}{who}"


def on_lab(case: Case, deadline: float, seed: int = 1, watch: Callable[[int, str], None] | None = None) -> Returned:
    """Run a case on ranks of libpsm, and analyse what they leave."""
    from psmkit.lab import tasks as lab

    if text := _too_large(case):
        return Returned("lab", None, f"lab: {text}")
    text, program = _program(case.operations)
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
        waits = _watched(done, deadline)
        report = _report(done)
    states = _states(done)
    if report is not None and case.symptom is not None and case.symptom.kind == "work FIFO":
        how = states or "all ranks ended well"
        return Returned(
            "lab",
            None,
            f"lab: {how}; not judged: a full work FIFO shows in the stacks of NCCL, which libpsm does not have",
        )
    return _judged_run("lab", case, report, states, waits=waits)


def on_nccl(
    case: Case,
    library: Library,
    kernels: str | None,
    deadline: float,
    seed: int = 1,
    watch: Callable[[int, str], None] | None = None,
) -> Returned:
    """Run a case on ranks of a real NCCL over emulated CUDA, and analyse what they leave.

    Args:
        case: the case.
        library: NCCL.
        kernels: a library that runs its kernels.
        deadline: seconds for the run.
        seed: of data.
        watch: is called with a rank and the stage that it enters.
    """
    from psmkit.lab import nccl as lab
    from psmkit.lab.emulation import Emulation

    name = f"NCCL {library.version or '?'}"
    if text := _too_large(case):
        return Returned(name, None, f"{name}: {text}")
    _, program = _program(connected(case.operations))  # as in a job that has run for a while
    environment = {
        "NCCL_WORK_FIFO_BYTES": str(case.config.work_fifo_bytes or 1 << 20), "NCCL_MAX_NCHANNELS": str(_LAB_CHANNELS),
        "NCCL_MAX_P2P_NCHANNELS": str(_LAB_CHANNELS),
    }  # fmt: skip
    if kernels is not None:
        environment["PSM_HOSTCUDA_KERNELS"] = kernels
    with tempfile.TemporaryDirectory(prefix="psmkit-case-") as place:
        folder = Path(place) / "run"
        played = lab.NcclCase(pattern=lab.TASKS, seed=seed)
        emulation = Emulation(folder, stall_report=min(10.0, deadline / 4), leaks=True)
        try:
            done = lab.start(
                library, [played], program.ranks, folder, deadline=deadline, emulation=emulation, environment=environment,
                program=program, watch=watch,
            )  # fmt: skip
        except LabError as error:
            return Returned(name, None, f"{name}: not run: {error}")
        waits = _watched(done, deadline)
        if waits:
            # what such a job leaves has no lines of the lab, which would name the rank that is at work
            (done.folder / "logs" / "lab.log").unlink()
        report = _report(done)
    states = _states(done)
    early = [r for r in done.outcome.ranks if r.state in ("hung", "waiting") and r.stage in ("", "init", "buffers")]
    if early:
        return Returned(
            name, None, f"{name}: not judged: after {deadline:g} s {ranks_text([r.rank for r in early])} had not made all communicators: give more --deadline"
        )  # fmt: skip
    refused = next((r for r in done.outcome.ranks if _refused(r)), None)
    if refused is not None:
        return Returned(name, None, f"{name}: not judged: rank {refused.rank}: {_first_line(refused.text)}")
    return _judged_run(name, case, report, states, waits=waits)


def _refused(rank: RankOutcome) -> bool:
    """Whether NCCL could not do a call: a kernel that nobody runs, a function that emulated CUDA lacks."""
    reports = [rank.failure or {}, *rank.reports]
    return any(r.get("status") in ("ncclUnhandledCudaError", "cudaErrorNotSupported") for r in reports)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]


def _too_large(case: Case) -> str:
    """Why a case is not run by processes of this machine; empty: it is."""
    operations = case.operations
    nbytes = sum(int((ours["count"] * 8).sum()) for ours in operations.by_rank.values())
    for is_large, what in (
        (operations.ranks > _MOST_RANKS, counted(operations.ranks, "rank")),
        (len(operations) > _MOST_OPERATIONS, f"{len(operations):,} operations"),
        (nbytes > _MOST_BYTES, f"about {nbytes >> 20:,} MiB"),
    ):
        if is_large:
            return f"not run: {what} are too much for this machine; --shrink makes a smaller case"
    return ""


def _program(operations: Operations) -> tuple[str, Program]:
    """The task file of operations, and what it says."""
    text = "".join(tasks(operations))
    return text, parse_program(text, _ranks(operations), "case.tasks", _MOST_STEPS)


def _report(done: LabRun) -> Report | None:
    evidence = [str(path) for path in done.evidence()]
    return analyze(evidence) if evidence else None


def _watched(done: LabRun, deadline: float) -> bool:
    """Write down that ranks stood still until the deadline, as `psmkit record` does; whether there are such."""
    waiting = [r for r in done.outcome.ranks if r.state in ("hung", "waiting")]
    if waiting:
        host = socket.gethostname().split(".")[0] or "-"
        text = "".join(still(((r.rank, f"{host}:{r.pid}") for r in waiting), deadline))
        (done.folder / "logs" / "record.log").write_text(text)
    return bool(waiting)


def _states(done: LabRun) -> str:
    return ", ".join(f"rank {r.rank} {r.state}" for r in done.outcome.ranks if r.state != "good")


def _judged_run(where: str, case: Case, report: Report | None, states: str, *, waits: bool) -> Returned:
    """What a run of processes showed; ``waits``: ranks stood still until its deadline."""
    if report is None:
        return Returned(where, None, f"{where}: the run left nothing to analyse")
    if waits and case.symptom is not None and case.symptom.unexplained:
        return Returned(where, True, f"{where}: it stands still: {states}")
    if case.symptom is None or not case.symptom.kind:
        return Returned(where, None, f"{where}: {report.verdict.value}: {report.reason}")
    return _judged(where, case, report, states)


def _ranks(operations: Operations) -> int:
    used = operations.used()
    return len(operations.comms[used[0]].ranks) if len(used) == 1 else operations.ranks
