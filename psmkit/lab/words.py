"""The lines of lab.log: what became of each rank of a run. An analysis reads them beside the logs of the ranks."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from psmkit.lab.runner import Outcome, RankOutcome
from psmkit.live import procfs

__all__ = ["FILE", "lines"]

FILE = "lab.log"
_MOST = 900  # characters of a reason: a line of a log


def lines(outcome: Outcome) -> Iterator[str]:
    """The lines of a run: what happened to its ranks, in order of time, then which were ended at the deadline, then what is left."""
    for rank in sorted(outcome.ranks, key=lambda r: (_when(r), r.rank)):
        yield from _lines(rank, outcome)
    ended = [rank for rank in outcome.ranks if rank.state in ("hung", "slow", "waiting")]
    if ended:
        why = outcome.complaint or f"the deadline of {outcome.deadline:g} s passed"
        after = max(r.ended for r in ended)
        yield f"psm lab: {len(ended)} ranks were ended after {after:.3f} s of {outcome.deadline:g} s: {_plain(why)}"
    for what, names in (("shared memory", outcome.shared_memory), ("processes", outcome.processes)):
        if names:
            yield f"psm lab: left behind by the ranks, {what}: {_plain(', '.join(names))}"


def _when(rank: RankOutcome) -> float:
    return rank.ended if rank.trouble_at is None or rank.state == "died" else rank.trouble_at


def _lines(rank: RankOutcome, outcome: Outcome) -> Iterator[str]:
    who = f"psm lab: rank {rank.rank}, process {_host()}:{rank.pid},"
    stage = rank.stage or "start"
    if rank.state == "good":
        yield f"{who} ended well after {rank.ended:.3f} s"
        return
    if rank.state == "died":
        yield f"{who} died by {_signal_name(rank.signal)} in stage {stage} after {rank.ended:.3f} s"
        return
    if rank.state == "failed" or rank.trouble or any(_bad(r) for r in rank.reports):
        yield f"{who} failed in stage {_failure(rank)}"
    since = f"in stage {stage}, which it entered {rank.in_stage or 0.0:.3f} s ago"
    if rank.process_state in procfs.STOPPED:
        yield f"{who} is stopped {since}: process state {rank.process_state}"
    elif rank.state == "slow":
        yield f"{who} is slow {since}: {rank.moved or 0} bytes moved in the last second"
    elif rank.state == "hung":
        yield f"{who} is at work {since}"
    elif rank.state == "waiting":
        late = [
            r.rank
            for r in outcome.ranks
            if r.state in ("hung", "slow") or (r.state == "waiting" and r.waits != rank.waits)
        ]
        others = f"rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}" if late else "the others"
        yield f"{who} waits in {rank.waits or 'barrier -'} for {others}"


def _host() -> str:
    """The host as the ranks print it: pids alone recur in every container."""
    return socket.gethostname().split(".")[0] or "-"


def _bad(report: Mapping[str, Any]) -> bool:
    return bool(report.get("status", "PSM_OK") != "PSM_OK")


def _failure(rank: RankOutcome) -> str:
    bad = next((r for r in rank.reports if _bad(r)), None) or rank.failure
    after = f"{_when(rank):.3f} s"
    if bad is None:
        stage = _word(rank.stage or "start")
        by = "trouble" if rank.trouble else "exit"
        return _said(stage, len(rank.reports), after, by, f"EXIT_{rank.exit_status}", {}, rank.trouble or rank.text)
    stage, case, by = (_word(bad.get(key)) for key in ("stage", "name", "by"))
    return _said(stage, case, after, by, _word(bad.get("status")), bad, str(bad.get("text")))


def _said(stage: str, case: object, after: str, by: str, status: str, fields: Mapping[str, Any], text: str) -> str:
    """The line's end: lab.rank.failed of the catalogue."""
    cause, named = _word(fields.get("cause", "other")), fields.get("named")
    if by == "data":
        cause, named = "wrong-data", fields.get("wrong_from")
    about = (
        f"cause {cause}, rank {_rank(named)}, peer {_rank(fields.get('peer'))}, opId {_number(fields.get('op_id')):x}"
    )
    return f"{stage} of case {case} after {after}, reported by {by}: {status} ({about}): {_plain(text)}"


def _rank(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else -1


def _number(value: object) -> int:
    return value & (1 << 64) - 1 if isinstance(value, int) else 0


def _word(value: object) -> str:
    """A word of the pattern: a rank may say anything."""
    return "".join(c for c in str(value or "-") if c.isalnum() or c in "_.-")[:80] or "-"


def _plain(text: str) -> str:
    return " ".join(text.split())[:_MOST] or "-"


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal-{number}"
