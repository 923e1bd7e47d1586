"""Sends and receives of the net plugin, matched across ranks by its recorder's rows: the missing party, and the one that aborted first.

A connection has the same number on both ends, and both count its receives alike, so that a send matches the buffer that it filled. A row
holds what one end knew when it last wrote it; times of one host share a clock. A merely recent state is not a finding: see ``_PATIENCE_NS``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property

from psmkit.analysis.facts.deaths import ended_by_lab
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Severity
from psmkit.model.late import dataclass
from psmkit.model.results import RESULTS
from psmkit.model.wording import counted, plural

__all__ = ["find"]

#: A request that is open for less time may simply be in progress.
_PATIENCE_NS = 1_000_000_000
#: The minimum time between an act and a look that missed it.
_SLACK_NS = 100_000_000
#: The maximum number of findings per code: an all-to-all of many ranks stalls on all its connections at once.
_MOST = 8
#: Backends whose messages both ends number equally. Another plugin behind ours may use the receives of a group in another order.
_COUNTED = frozenset({"socket", "shm"})
_MISSING = ". There is no record of the other end: its process left none, or closed the connection normally"


class _Row:
    """A row, accessible by field names."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def __getitem__(self, name: str) -> int:
        return number(self.event.fields, name) or 0

    def text(self, name: str) -> str:
        return str(self.event.fields.get(name, "?"))


class _Request(_Row):
    """A send, or a receive of ``n`` buffers."""

    @property
    def open(self) -> bool:
        return self["completed"] == 0

    @property
    def lost(self) -> bool:
        """Whether a fault kept it from the network."""
        return self["message"] < 0

    @property
    def done(self) -> bool:
        return not self.open and self["error"] == 0

    @cached_property
    def tags(self) -> tuple[int, ...]:
        return tuple(self["tag" + (str(i) if i else "")] for i in range(max(self["n"], 1)))

    def told(self) -> str:
        """``message 7 (64 bytes, tag 3)``."""
        tags = " ".join(map(str, self.tags))
        name = f"request {self['number']}" if self.lost else f"message {self['message']}"
        return f"{name} ({self['total']} bytes, {'tags' if len(self.tags) > 1 else 'tag'} {tags})"


@dataclass
class _End:
    """One end of a connection: its row and the rows of its requests, by number."""

    row: _Row
    job: Job
    requests: list[_Request] = field(default_factory=list)

    @property
    def proc(self) -> int:
        return self.row.event.proc

    @property
    def sends(self) -> bool:
        return self.row.text("role") == "send"

    @property
    def rank(self) -> int | None:
        told = self.row["rank"]
        return told if told >= 0 else self.job.rank_of(self.proc)

    @property
    def who(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else name_of(self.job, self.proc)

    @property
    def peer(self) -> str:
        """The name that this end uses for the other one."""
        return f"rank {self.row['peer']}" if self.row["peer"] >= 0 else f"the peer at {self.row.text('address')}"

    @property
    def closed(self) -> bool:
        return self.row["closed"] > 0

    @property
    def whole(self) -> bool:
        """Whether each request has a row."""
        return self.row["unseen"] == 0

    @cached_property
    def pending(self) -> list[_Request]:
        """The requests in progress, in order."""
        return [r for r in self.requests if r.open]

    @cached_property
    def beyond(self) -> int:
        """The number of the first message that this end has not started, as far as its rows show."""
        return max((r["message"] + 1 for r in self.requests), default=0)

    def of(self, message: int) -> _Request | None:
        """The row of a message."""
        return next((r for r in self.requests if r["message"] == message), None)

    @cached_property
    def newest(self) -> int:
        """The time of this end's last action in its rows."""
        times = [max(r["posted"], r["completed"]) for r in self.requests]
        return max([*times, *(self.row[name] for name in ("looked", "later", "error_at", "closed"))])


@dataclass
class _Connection:
    """Both ends, if they have rows. ``died``: processes that ended without closing their record; ``clean``: those that closed it."""

    number: int
    job: Job
    died: set[int]
    clean: set[int]
    send: _End | None = None
    recv: _End | None = None
    #: The newest time of each process, and the processes that wait for others on some connection.
    newest: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)

    @property
    def ends(self) -> list[_End]:
        return [end for end in (self.send, self.recv) if end is not None]

    def other(self, end: _End) -> _End | None:
        return self.recv if end.sends else self.send

    @cached_property
    def one_clock(self) -> bool:
        return len({self.job.process(end.proc).host for end in self.ends}) == 1

    def stuck(self, end: _End, since: int) -> bool:
        """Whether this state is more than transient: the end gave it up, or time has passed."""
        ends = self.ends if self.one_clock else [end]
        return end.closed or max(self.newest.get(e.proc, 0) for e in ends) - since >= _PATIENCE_NS

    def owes(self, end: _End | None) -> bool:
        """Whether nothing excuses a missing end: its process is gone, and waited for nobody."""
        return end is not None and end.proc in self.died and end.proc not in self.waiting

    def whose(self, sends: bool) -> str:
        """The owner of that end."""
        mine, theirs = (self.send, self.recv) if sends else (self.recv, self.send)
        return mine.who if mine is not None else theirs.peer if theirs is not None else "a rank"

    @property
    def title(self) -> str:
        return f"{self.whose(True)} -> {self.whose(False)}"

    def finding(
        self,
        code: str,
        what: str,
        *,
        side: _End | None = None,
        rows: tuple[_Row | None, ...] = (),
        severity: Severity | None = None,
        confidence: float = 0.9,
        why: str = "",
    ) -> Finding:
        """``side`` is the end to blame, if known."""
        first = self.ends[0]
        refs = [row.event.ref for row in rows if row is not None] + [end.row.event.ref for end in self.ends]
        known = {r for end in self.ends if (r := end.rank) is not None}
        known |= {p for end in self.ends if (p := end.row["peer"]) >= 0}
        why = why or ("The records of both ends show it" if len(self.ends) > 1 else "The record of one end shows it")
        alone = _MISSING if len(self.ends) == 1 else ""
        return new_finding(
            self.job,
            code,
            run=self.job.run_of_event(first.row.event),
            title=f"net {self.title}: {what}",
            severity=severity,
            confidence=confidence,
            explanation=f"{why}{alone}. {'; '.join(map(_told, self.ends))}.",
            refs=list(dict.fromkeys(refs))[:6],
            ranks=sorted(known),
            procs=[end.proc for end in self.ends],
            culprits=[side.rank] if side is not None and side.rank is not None else (),
            stage="net",
        )


def _told(end: _End) -> str:
    kind = "sends" if end.sends else "receives"
    failed = f", {_error(end.row['error'])} by {end.row.text('cause')}" if end.row["error"] else ""
    shut = f", closed with {end.row['open']} open" if end.closed else ""
    return (
        f"{end.who} ({end.row.text('backend')} connection {end.row['connection']:016x}): "
        f"{end.beyond} {kind} started, {len(end.pending)} open{failed}{shut}"
    )


def _error(value: int) -> str:
    return RESULTS[value] if 0 < value < len(RESULTS) else f"error {value}"


def _seconds(ns: int) -> str:
    return f"{max(ns, 0) / 1e9:.1f} s"


# ---- the rules: each describes the error of a connection, or returns nothing ----


def _too_large(c: _Connection) -> Finding | None:
    """A message too large for its receive: both ends refuse it."""
    for send, recv in _pairs(c):
        if recv["n"] == 1 and send["total"] > recv["room"]:
            text = f"message {send['message']} has {counted(send['total'], 'byte')}, but its posted receive has room for {recv['room']:,}"
            return c.finding("PSM954", text, rows=(send, recv), confidence=0.95)
    for end in c.ends:
        if end.row.text("cause") == "size":
            mine = next((r for r in end.requests if not r.done), None)
            text = "a message is larger than its receive"
            if mine is not None:
                text = f"message {mine['message']} " + (
                    f"of {mine['total']} bytes is larger than its receive"
                    if end.sends
                    else f"is larger than the {mine['room']} bytes of its receive"
                )
            return c.finding("PSM954", text, rows=(mine,), why=f"The log of {end.who} shows both sizes")
    return None


def _pairs(c: _Connection) -> Iterator[tuple[_Request, _Request]]:
    """Sends, each with the receive that it filled."""
    if c.send is None or c.recv is None or not _counted(c):
        return
    receives = {r["message"]: r for r in c.recv.requests if not r.lost}
    for send in c.send.requests:
        if not send.lost and (recv := receives.get(send["message"])) is not None:
            yield send, recv


def _counted(c: _Connection) -> bool:
    return all(end.row.text("backend") in _COUNTED and end.whole for end in c.ends)


def _failed(c: _Connection) -> Finding | None:
    """An error of an end's own: that side is the origin."""
    own = [end for end in c.ends if end.row["error"] and end.row.text("cause") != "peer"]
    if not own:
        return None
    side = min(own, key=lambda end: end.row["error_at"]) if c.one_clock or len(own) == 1 else own[0]
    call, cause = side.row.text("call"), side.row.text("cause")
    of = "" if call in ("-", "") else f" in {call}" if call != "connection" else " of the connection"
    by = {"fault": "injected by PSM_FAULTS", "protocol": "because the peer broke the protocol"}.get(cause, "")
    text = f"{side.who} failed first with {_error(side.row['error'])}{of}{', ' + by if by else ''}"
    return c.finding(
        "PSM956", text, side=side, rows=tuple(side.pending[:1]), why="The error of the other end follows from it"
    )


def _left(c: _Connection) -> Finding | None:
    """A peer that disconnected while requests were open, by death or by close."""
    failed = [end for end in c.ends if end.row["error"]]
    if not failed:
        return None
    victim = min(failed, key=lambda end: end.row["error_at"])
    other = c.other(victim)
    rows = tuple(victim.pending[:1])
    if other is None:
        text = f"{victim.peer} ended or closed the connection while {victim.who} had {_open(victim)}"
        return c.finding("PSM956", text, rows=rows, severity=Severity.WARNING, confidence=0.7)
    if other.proc in c.died and not other.closed:
        text = f"{other.who} died with {_open(other)}, and {victim.who} lost the connection"
        return c.finding("PSM956", text, side=other, rows=rows, why=f"The record of {other.who} shows no orderly end")
    if other.closed and (not c.one_clock or other.row["closed"] <= victim.row["error_at"] + _SLACK_NS):
        text = f"{other.who} closed the connection with {_open(other)} while {victim.who} had {_open(victim)}"
        return c.finding("PSM956", text, side=other, rows=rows)
    text = f"{victim.who} lost the connection, and the record of {other.who} shows no error"
    return c.finding("PSM956", text, rows=rows, severity=Severity.WARNING, confidence=0.6)


def _open(end: _End) -> str:
    count = end.row["open"] if end.closed else len(end.pending)
    return f"{counted(count, 'request')} open"


def _lost(c: _Connection) -> Finding | None:
    """Messages that a fault kept from the network while a process waits for them."""
    if c.recv is not None and (lost := [r for r in c.recv.pending if r.lost]):
        text = f"{c.recv.who}'s receive {lost[0]['number']} never reached the network: its plugin lost it"
        return c.finding("PSM952", text, side=c.recv, rows=tuple(lost[:2]), why="No send can complete it")
    if c.send is not None and (lost := [r for r in c.send.requests if r.lost]):
        text = f"{c.send.who} reported {lost[0].told()} as sent, but its plugin lost it"
        waits = tuple(c.recv.pending[:1]) if c.recv is not None else ()
        return c.finding(
            "PSM952",
            text,
            side=c.send,
            rows=(lost[0], *waits),
            why="Each later message goes into the receive before its own",
        )
    return None


def _free(c: _Connection) -> tuple[_Request, list[int]] | None:
    """The first posted receive with buffers that no send has filled, and their tags."""
    assert c.send is not None and c.recv is not None
    for recv in sorted((r for r in c.recv.pending if not r.lost), key=lambda r: r["message"]):
        taken = {r["slot"] for r in c.send.requests if r["message"] == recv["message"]}
        if free := [tag for slot, tag in enumerate(recv.tags) if slot not in taken]:
            return recv, free
    return None


def _tags(c: _Connection) -> Finding | None:
    """A send whose tag no receive has: answered "later" repeatedly or, without groups, matched with another tag."""
    if c.send is None or c.recv is None:
        return None
    if c.send.row["later"]:
        first = _free(c)
        tag = c.send.row["later_tag"]
        if first is None or tag in first[1] or not c.stuck(c.send, c.send.row["later"]) or not _counted(c):
            return None
        recv, free = first
        text = f"{c.send.who} sends with tag {tag}, and {c.recv.who} waits with {plural(len(free), 'tag')} {' '.join(map(str, free))}: neither can continue"
        return c.finding(
            "PSM953", text, rows=(recv,), why=f"The send waits for {_seconds(c.send.newest - c.send.row['later'])}"
        )
    for send, recv in _pairs(c):
        if recv["n"] == 1 and send["tag"] != recv["tag"]:
            text = f"message {send['message']} has tag {send['tag']}, but went into the receive with tag {recv['tag']}"
            return c.finding(
                "PSM953",
                text,
                rows=(send, recv),
                severity=Severity.WARNING,
                confidence=0.7,
                why="With maxRecvs 1 messages match by order only: the two ranks call in a different order, or assign tags differently",
            )
    return None


def _silent(c: _Connection) -> Finding | None:
    """A sender that was asked to retry and has not, although a receive is now posted."""
    if c.send is None or c.recv is None or not c.send.row["later"] or not _counted(c) or not c.one_clock:
        return None
    first = _free(c)
    if first is None or c.send.row["later_tag"] not in first[1]:
        return None
    since = max(c.send.newest, first[0]["posted"])
    if c.recv.row["looked"] - since < _PATIENCE_NS:
        return None
    text = f"{c.send.who} stopped: {c.recv.who} posted a receive with tag {c.send.row['later_tag']}, and {c.send.who} has not called send again"
    return c.finding("PSM957", text, side=c.send, rows=(first[0],), confidence=0.85)


def _unposted(c: _Connection) -> Finding | None:
    """A send without a receive."""
    send = c.send
    if send is None or not _counted(c):
        return None
    dead = c.owes(c.recv)
    severity = None if dead else Severity.WARNING
    if send.row["later"] and (c.recv is None or _free(c) is None):
        if not c.stuck(send, send.row["later"]):
            return None
        text = f"{send.who} sends {send.row['later_size']} bytes with tag {send.row['later_tag']}, but {c.whose(False)} has posted no receive"
    else:
        ahead = [r for r in send.requests if not r.lost and r["message"] >= (c.recv.beyond if c.recv else 0)]
        waits = [r for r in ahead if c.recv is not None or r.open]
        if not waits or not c.stuck(send, waits[0]["posted"]) or (c.recv is not None and c.recv.closed):
            return None
        text = f"{send.who} sent {waits[0].told()}, but {c.whose(False)} has posted no receive for it"
        return c.finding(
            "PSM951", text, side=c.recv if dead else None, rows=(waits[0],), severity=severity, confidence=0.7
        )
    return c.finding("PSM951", text, side=c.recv if dead else None, severity=severity, confidence=0.7)


def _unsent(c: _Connection) -> Finding | None:
    """A receive without a send."""
    recv = c.recv
    if recv is None or not _counted(c) or (c.send is not None and c.send.row["later"]):
        return None
    for waits in recv.pending:
        if waits.lost or (c.send is not None and c.send.beyond > waits["message"]):
            continue
        if not c.stuck(recv, waits["posted"]) or not _asked(recv, waits):
            return None
        dead = c.owes(c.send)
        text = f"{recv.who} waits for {waits.told()}, but {c.whose(True)} has not sent it"
        return c.finding(
            "PSM952",
            text,
            side=c.send if dead else None,
            rows=(waits,),
            severity=None if dead or recv.closed else Severity.WARNING,
            confidence=0.7,
            why=f"{recv.who} has tested it without success for {_seconds(recv.row['looked'] - waits['posted'])}",
        )
    return None


def _asked(end: _End, request: _Request) -> bool:
    """Whether the end has tested without success since then."""
    return end.row["looked"] > request["posted"]


def _still(c: _Connection) -> Finding | None:
    """A side that does not test its requests while the other side has done its part."""
    if not _counted(c):
        return None
    if c.recv is not None:
        for recv in c.recv.pending:
            sends = [r for r in c.send.requests if r["message"] == recv["message"]] if c.send is not None else []
            send = sends[0] if sends else None
            sent = len([r for r in sends if r.done]) == recv["n"]
            since = max([recv["posted"], *(r["completed"] for r in sends)])
            if recv.lost or (c.send is not None and send is None) or not c.stuck(c.recv, since):
                continue
            if c.recv.row["looked"] <= recv["posted"]:
                text = f"{c.recv.who} stopped: {recv.told()} is {'sent' if sent else 'posted'}, and {c.recv.who} has not tested it"
                done = f"{c.whose(True)} has completed its sends" if sent else "Its tests do not reach the network"
                return c.finding(
                    "PSM957", text, side=c.recv, rows=(recv, send), confidence=0.85 if sent else 0.7, why=done
                )
            if sent and c.one_clock and c.recv.row["looked"] > since + _SLACK_NS:
                text = f"{recv.told()} is sent, but the tests of {c.recv.who} find it incomplete: it is lost or stuck in the network"
                return c.finding("PSM955", text, rows=(recv, send), confidence=0.8)
    if c.send is not None:
        for mine in c.send.pending:
            theirs = c.recv.of(mine["message"]) if c.recv is not None else None
            if theirs is None or not theirs.done or theirs["n"] != 1 or not c.stuck(c.send, theirs["completed"]):
                continue
            text = f"{mine.told()} is received, but {c.send.who} has not tested its send since"
            if c.send.row["looked"] <= theirs["completed"]:
                return c.finding("PSM955", text, side=c.send, rows=(mine, theirs), confidence=0.85)
    return None


def _slow(c: _Connection) -> Finding | None:
    """A message that both ends have in progress and that does not advance."""
    for send, recv in _pairs(c):
        assert c.send is not None and c.recv is not None
        since = max(send["posted"], recv["posted"])
        if not (send.open and recv.open) or not c.one_clock or not c.stuck(c.send, since):
            continue
        asks = [end for end in (c.send, c.recv) if end.row["looked"] > since + _SLACK_NS]
        if len(asks) == 1:
            side = c.recv if asks[0] is c.send else c.send
            text = f"{side.who} stopped during {send.told()}: it has not tested it, and {asks[0].who} has"
            return c.finding("PSM957", text, side=side, rows=(send, recv), confidence=0.8)
        text = f"{send.told()} has been in progress on both ends for {_seconds(c.send.newest - since)} and does not complete"
        return c.finding("PSM955", text, rows=(send, recv), severity=Severity.WARNING, confidence=0.5)
    return None


def _unclosed(c: _Connection) -> Finding | None:
    """An end that was open when its process ended in order."""
    left = [end for end in c.ends if end.proc in c.clean and not end.closed]
    if not left:
        return None
    text = f"{' and '.join(end.who for end in left)} ended without closing the connection"
    return c.finding("PSM958", text, why="The communicator was neither destroyed nor aborted before the process ended")


#: Rules for errors that stop a job by themselves; other ranks then wait, abort, and block their own peers.
_ROOTS = (_too_large, _failed, _lost)
#: The first rule with a result for a connection reports it; later ones may be consequences.
_RULES = (*_ROOTS, _left, _tags, _silent, _still, _slow, _unposted, _unsent, _unclosed)


@rule(order=210)
def find(job: Job) -> list[Finding]:
    """PSM951 to PSM958 from the rows of the net plugin's recorder."""
    found: list[tuple[bool, Finding]] = []
    for connection in _connections(job):
        for judge in _RULES:
            finding = judge(connection)
            if finding is not None:
                found.append((judge in _ROOTS, finding))
                break
    rooted = {finding.run for root, finding in found if root}
    return _fewer([finding for root, finding in found if root or finding.run not in rooted])


def _connections(job: Job) -> list[_Connection]:
    requests: dict[tuple[int, int, str], dict[int, _Request]] = defaultdict(dict)
    for event in job.events("psm_net.request"):
        row = _Request(event)
        requests[(event.proc, row["connection"], row.text("op"))][row["number"]] = row
    died = {event.proc for event in job.events("record.died")}
    unclosed = {event.proc for event in job.events("record.unclosed")}
    died |= unclosed & ended_by_lab(job)
    clean = {event.proc for event in job.events("record.process")} - died - unclosed
    out: dict[int, _Connection] = {}
    newest: dict[int, int] = defaultdict(int)
    waiting: set[int] = set()
    for event in job.events("psm_net.end"):
        end = _End(_Row(event), job)
        mine = requests.get((event.proc, end.row["connection"], end.row.text("role")), {})
        end.requests = [mine[n] for n in sorted(mine)]
        name = end.row["connection"]
        at = out.setdefault(name, _Connection(name, job, died, clean, newest=newest, waiting=waiting))
        if end.sends:
            at.send = end
        else:
            at.recv = end
        newest[end.proc] = max(newest[end.proc], end.newest)
        if end.row["later"] or any(not r.lost and _asked(end, r) for r in end.pending):
            waiting.add(end.proc)
    return list(out.values())


def _fewer(found: list[Finding]) -> list[Finding]:
    """The most severe and certain finding of each code and run."""
    by_code: dict[tuple[str, int | None], list[Finding]] = defaultdict(list)
    for finding in sorted(found, key=lambda f: (-f.severity.weight, -f.confidence)):
        by_code[(finding.code, finding.run)].append(finding)
    return [finding for findings in by_code.values() for finding in findings[:_MOST]]
