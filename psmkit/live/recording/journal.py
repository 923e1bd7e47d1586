"""What a recording knows, as it is written: ``manifest.json`` for programs, ``record.log`` for the analysis.

The lines of ``record.log`` are those of the catalogue (``psmkit/catalogue/watched.toml``). They state what the agent saw of each process
from outside: that it ended and how, or that it stood still and for how long.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psmkit.live.recording.layout import FACT, Layout, write
from psmkit.live.recording.settings import Settings, masked, masked_words
from psmkit.live.recording.watch import Quiet, Seen, Watch, short_host
from psmkit.model.wording import counted, plural

__all__ = ["LOG", "REQUESTS", "Journal", "lines", "signal_name"]

#: The file with the lines for the analysis.
LOG = "record.log"
#: What is printed within so many seconds of the end belongs to it.
_SOON = 10.0
#: An end is noticed a moment after it happened, and so is a signal.
_SLACK = 0.2
#: Signals of a user or a launcher, which end a rank and are no fault of it.
REQUESTS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@dataclass
class Journal:
    """The facts of a recording. Every change is on the disk when :meth:`save` returns."""

    layout: Layout
    command: list[str]
    settings: Settings
    version: str
    started: float = field(default_factory=time.time)
    events: list[dict[str, Any]] = field(default_factory=list)
    quiets: list[Quiet] = field(default_factory=list)
    collected: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    team: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] | None = None
    #: What the job writes outside of the folder, as :func:`psmkit.live.recording.evidence.elsewhere` says: known early, it can be salvaged.
    elsewhere: dict[str, Any] = field(default_factory=dict)
    #: From this moment on the agent or its user ended the job: later ends say nothing about the ranks.
    stopped: float | None = None
    #: The sizes of the logs at that moment, by their paths in the folder: what follows is printed because the job is being ended.
    sizes: dict[str, int] = field(default_factory=dict)
    trouble: str = ""

    def event(self, kind: str, text: str) -> None:
        """Note what happened: start, hang, death, interrupt, terminated, spared, end."""
        self.events.append({"kind": kind, "time": time.time(), "text": text})

    def stop(self, watch: Watch, copy: Path) -> None:
        """Note that the job is being ended now."""
        if self.stopped is not None:
            return
        self.stopped = time.time()
        for folder in (self.layout.logs, self.layout.output):
            self.sizes.update(_sizes(folder.iterdir(), folder.name))
        self.sizes.update(_sizes(watch.elsewhere, self.layout.copied.name))
        self.sizes.update(_sizes([copy], self.layout.output.name))

    def took(self, what: str, path: str, seconds: float) -> None:
        """Note what was collected."""
        self.collected.append({"what": what, "path": path, "seconds": round(seconds, 3)})

    def missed(self, what: str, why: str) -> None:
        """Note what could not be collected, once."""
        entry = {"what": what, "why": why}
        if entry not in self.failed:
            self.failed.append(entry)

    def document(self, watch: Watch) -> dict[str, Any]:
        """The manifest."""
        ranks = {id(one) for one in watch.ranks()}
        return {
            "schema": FACT,
            "psmkit": self.version,
            "host": short_host(),
            "command": masked_words(self.command),
            "started": self.started,
            "written": time.time(),
            "settings": {
                "added": masked(self.settings.added),
                "kept": {name: masked({name: mine})[name] for name, (mine, _) in self.settings.kept.items()},
            },
            "team": self.team,
            "processes": [_process(one, id(one) in ranks) for one in watch.seen.values()],
            "elsewhere": self.elsewhere,
            "quiet": [_quiet(quiet) for quiet in self.quiets],
            "events": self.events,
            "collected": self.collected,
            "failed": self.failed,
            "stopped": self.stopped,
            "sizes_when_stopped": self.sizes,
            "ended": self.ended,
            "agent_cpu": round(time.process_time(), 3),
        }

    def save(self, watch: Watch) -> None:
        """Write manifest and lines. A full disk is noted and changes nothing else."""
        document = self.document(watch)
        try:
            write(self.layout.manifest, json.dumps(document, indent=1) + "\n")
            write(self.layout.root / LOG, "".join(f"{line}\n" for line in lines(document)))
        except OSError as error:
            self.trouble = (error.strerror or str(error)).lower()

    def breathe(self) -> None:
        """Show that the agent is alive: the time of this file is when a killed agent was last there."""
        with contextlib.suppress(OSError):
            os.utime(self.layout.alive)


def _sizes(paths: Iterable[Path], folder: str) -> dict[str, int]:
    out = {}
    for path in paths:
        with contextlib.suppress(OSError):
            out[f"{folder}/{path.name}"] = path.stat().st_size
    return out


def _process(one: Seen, rank: bool) -> dict[str, Any]:
    return {
        "pid": one.pid,
        "host": one.host,
        "role": "rank" if rank else "other",
        "rank": one.rank,
        "command": masked_words(one.command),
        "started": round(one.begun, 3),
        "cpu": one.cpu,
        "ended": one.ended,
        "status": one.code if one.code is None or one.code >= 0 else None,
        "signal": -one.code if one.code is not None and one.code < 0 else None,
    }


def _quiet(quiet: Quiet) -> dict[str, Any]:
    return {
        "since": quiet.since,
        "at": quiet.at,
        "seconds": round(quiet.seconds, 3),
        "idle": quiet.idle,
        "proven": quiet.proven,
        "longest_before": round(quiet.pause, 3),
        "over": quiet.over,
        "polled": sorted(quiet.resting),
        "used": {str(pid): cpu for pid, cpu in quiet.used.items()},
    }


def lines(document: dict[str, Any]) -> list[str]:
    """The lines of ``record.log`` for a manifest."""
    out: list[tuple[float, str]] = []
    ranks = [p for p in document["processes"] if p["role"] == "rank"]
    out += _ends(document, ranks)
    quiet = document["quiet"][-1] if document["quiet"] else None
    if quiet is not None and not _went_on(document, ranks, quiet):
        out += _stands(ranks, quiet)
    for event in document["events"]:
        if event["kind"] in ("interrupt", "terminated", "spared"):
            out.append((event["time"], f"psm record: {event['text']}"))
    out += _command(document)
    kept = document.get("settings", {}).get("kept", {}).get("NCCL_DEBUG")
    if kept is not None:
        out.append((document["started"], f"psm record: NCCL_DEBUG={kept} is the user's setting and stays"))
    return [f"[{_stamp(at)}] {text}" for at, text in sorted(out)]


def _ends(document: dict[str, Any], ranks: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """The ends of ranks. Those after the first bad one, or after the user's, may follow from it."""
    out = []
    first: float | None = None
    stopped = document["stopped"]
    well = document["ended"] is not None and document["ended"]["status"] == 0
    for one in sorted((p for p in ranks if p["ended"] is not None), key=lambda p: float(p["ended"])):
        after = max(one["ended"] - document["started"], 0.0)
        who = f"psm record: process {one['host']}:{one['pid']}{_rank(one)}"
        if one["signal"] is None and one["status"] is None:
            out.append((one["ended"], f"{who} is gone after {after:.3f} s; its parent took its exit status"))
            if first is None and not well:  # it may be what the launcher ended the others for
                first = one["ended"]
            continue
        bad = bool(one["signal"] or one["status"])
        how = f"was ended by {signal_name(one['signal'])}" if one["signal"] else f"ended with status {one['status']}"
        late = stopped is not None and one["ended"] >= stopped - _SLACK
        follows = late or (first is not None and one["signal"] in REQUESTS)
        if bad and follows:
            how += " when the job was being ended"
        out.append((one["ended"], f"{who} {how} after {after:.3f} s"))
        if bad and not follows and first is None:
            first = one["ended"]
    return out


def _command(document: dict[str, Any]) -> list[tuple[float, str]]:
    """How the command ended, and how many of its processes outlive it; or that nobody saw its end."""
    ended = document["ended"]
    if ended is None:
        lost = document.get("agent_lost")
        return (
            [(lost, "psm record: the agent was killed; how the command ended is unknown")] if lost is not None else []
        )
    how = f"was ended by {signal_name(ended['signal'])}" if ended["signal"] else f"ended with status {ended['status']}"
    if document["stopped"] is not None and (ended["signal"] or ended["status"]):
        how += " when the job was being ended"
    left = sum(p["ended"] is None for p in document["processes"])
    more = f"; {counted(left, 'process')} of the job {plural(left, 'is', 'are')} left" if left else ""
    after = max(ended["time"] - document["started"], 0.0)
    return [(ended["time"], f"psm record: the command {how} after {after:.3f} s{more}")]


def _went_on(document: dict[str, Any], ranks: list[dict[str, Any]], quiet: dict[str, Any]) -> bool:
    """Whether the job worked after it had stood still. What ranks print while somebody ends them is no work."""
    over = quiet["over"]
    if over is None:
        return False
    if document["ended"] is not None and document["ended"]["status"] == 0:
        return True
    ends = [p["ended"] for p in ranks if p["ended"] is not None and str(p["pid"]) in quiet["used"]]
    ends += [at for at in (document["stopped"],) if at is not None]
    return not ends or min(ends) > over + _SOON


def _stands(ranks: list[dict[str, Any]], quiet: dict[str, Any]) -> list[tuple[float, str]]:
    out = []
    for one in ranks:
        if str(one["pid"]) not in quiet["used"]:
            continue
        word = "stood still" if quiet["proven"] else "was silent"
        text = (
            f"psm record: process {one['host']}:{one['pid']}{_rank(one)} {word} for {quiet['seconds']:.1f} s: no line, no record, "
            f"{quiet['used'][str(one['pid'])]:.2f} s of CPU time"
        )
        out.append((quiet["at"], text))
    return out


def _rank(one: dict[str, Any]) -> str:
    return f", rank {one['rank']}," if one["rank"] is not None else ""


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def signal_name(number: int) -> str:
    """SIGKILL for 9; the number for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
