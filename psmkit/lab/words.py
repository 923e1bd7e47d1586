"""What the lab says of a run when it is over, in lines that an analysis reads beside the logs of the ranks."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from psmkit.lab import leftovers
from psmkit.lab.runner import Outcome, RankOutcome

__all__ = ["FILE", "lines"]

FILE = "lab.log"
_MOST = 900  # characters of a reason: a line of a log
_TROUBLE = re.compile(r"(\w+) at (\w+): (.*)", re.DOTALL)


def lines(outcome: Outcome) -> Iterator[str]:
    """The lines of a run: what happened to ranks, in order of time, then who was there at the end, and what is left."""
    for rank in sorted(outcome.ranks, key=lambda r: (_when(r), r.rank)):
        yield from _lines(rank, outcome)
    ended = [rank for rank in outcome.ranks if rank.state in ("hung", "waiting")]
    if ended:
        why = outcome.complaint or f"the deadline of {outcome.deadline:g} s passed"
        yield f"psm lab: {len(ended)} ranks were ended after {max(r.ended for r in ended):.3f} s: {_plain(why)}"
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
    if rank.process_state in leftovers.STOPPED:
        yield f"{who} is stopped {since}: process state {rank.process_state}"
    elif rank.state == "hung":
        yield f"{who} is at work {since}"
    elif rank.state == "waiting":
        late = [r.rank for r in outcome.ranks if r.state == "hung" or (r.state == "waiting" and r.waits != rank.waits)]
        others = f"rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}" if late else "the others"
        yield f"{who} waits in {rank.waits or 'barrier -'} for {others}"


def _host() -> str:
    """The host as the ranks print it: pids alone recur in every container."""
    return socket.gethostname().split(".")[0] or "-"


def _bad(report: Mapping[str, Any]) -> bool:
    return bool(report.get("status", "PSM_OK") != "PSM_OK")


def _failure(rank: RankOutcome) -> str:
    bad = next((r for r in rank.reports if _bad(r)), None)
    after = f"{_when(rank):.3f} s"
    if bad is not None:
        stage, case, by = (_word(bad.get(key)) for key in ("stage", "name", "by"))
        return f"{stage} of case {case} after {after}, told by {by}: {_word(bad.get('status'))}: {_plain(str(bad.get('text')))}"
    status, text = f"EXIT_{rank.exit_status}", rank.text
    by, stage = "exit", rank.stage or "start"
    if told := _TROUBLE.match(rank.trouble):
        by, status, stage, text = "trouble", told[1], told[2], told[3]
    return f"{stage} of case {len(rank.reports)} after {after}, told by {by}: {_word(status)}: {_plain(text)}"


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
