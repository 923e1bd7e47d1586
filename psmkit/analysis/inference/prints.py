"""The two ends of a connection by what a fork prints about its data path, to find the side that has to act.

The lines have no clock that both ends share, unlike the rows of libpsm's step recorder (:mod:`psmkit.analysis.inference.steps`). A state
stands if its thread printed it again and again, unchanged, up to its last lines. That proves a stop only if time passed: a
watchdog reported a wait, or the time stamps of the state are far apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from psmkit.analysis.facts import clock, lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, name_of
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.steps import STREAM_0
from psmkit.catalogue.entries import DATA_END
from psmkit.logparse.types import Event, Ref, Value
from psmkit.model.late import dataclass
from psmkit.model.wording import counted, plural

__all__ = ["Connection", "PrintedEnd", "connections"]

#: A state that lasts this many seconds by its time stamps proves that time passed.
_LASTS = 10.0
#: A state that is printed again and again is overdue after this many of its periods, and at least this many lines.
_PERIODS, _LINES = 4, 64
_YES, _NO = frozenset({"yes", "true", "1", "y"}), frozenset({"no", "false", "0", "n"})
_OF_LINE = tuple(
    name for name in DATA_END if name not in ("role", "rank")
)  # "rank" may be missing, and known from elsewhere

_Key = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class PrintedEnd:
    """The newest state of one end. ``stream``, ``recorded`` (copies that were started), ``done`` and ``published`` are steps below which that
    holds; None: no line says it."""

    event: Event
    run: int
    name: str
    rank: int | None
    peer: int | None
    sends: bool
    key: _Key
    stands: bool
    seconds: float | None
    stream: int | None = None
    recorded: int | None = None
    done: int | None = None
    published: int | None = None
    refs: tuple[Ref, ...] = ()

    def number(self, name: str) -> int | None:
        return number(self.event.fields, name)

    @property
    def at(self) -> int:
        """The step that comes next."""
        return self.number("step") or 0

    @property
    def can_send(self) -> bool | None:
        """Whether the sender may fill a slot, if it says so or if the numbers do."""
        said = str(self.event.fields.get("can_send", "")).lower()
        if said in _YES or said in _NO:
            return said in _YES
        free = self.number("recv_tail")
        return None if free is None or not self.sends else free > self.at

    @property
    def copies(self) -> int:
        """Copies that were started and have not ended."""
        return max(self.recorded - self.done, 0) if self.recorded is not None and self.done is not None else 0

    @property
    def complete(self) -> bool:
        """Whether this end has nothing to do any more."""
        most = self.number("nsteps")
        return most is not None and self.at >= (self.number("base") or 0) + most and not self.copies

    @property
    def waits(self) -> bool:
        """Whether its last state is one that must change."""
        return not self.complete and (self.stands or self.can_send is False or self.number("nsteps") is not None)

    def told(self) -> str:
        side = "the sender" if self.sends else "the receiver"
        facts = [f"step {self.at}"]
        facts += [f"{word}={self.event.fields[name]}" for name, word in _WORDS if name in self.event.fields]
        facts += [f"{what} {value}" for what, value in _steps(self) if value is not None]
        if self.stream is not None:
            facts.append(f"stream 0x{self.stream:x}")
        times = f", printed {self.event.count:,} times without a change" if self.event.count > 1 else ""
        lasting = f" over {self.seconds:.1f} s" if self.seconds and self.event.count > 1 else ""
        return f"{self.name}, {side}: {', '.join(facts)}{times}{lasting}"


#: Fields of a progress line that a report repeats, by the words that libpsm prints for them.
_WORDS = (
    ("what", "state"),
    ("recv_tail", "recvTail"),
    ("send_head", "sendHead"),
    ("can_send", "canSend"),
    ("nsteps", "nsteps"),
)


def _steps(end: PrintedEnd) -> Iterable[tuple[str, int | None]]:
    """What lines beside the progress line say."""
    shown = "send_head" if end.sends else "recv_tail"
    yield "copies started below", end.recorded
    yield "copies done below", end.done
    yield "published below", end.published if shown not in end.event.fields else None


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that stands. ``side`` is the end that has to act, None if the lines do not tell."""

    ends: tuple[PrintedEnd, ...]
    side: PrintedEnd | None
    what: str
    proven: bool
    next_step: str | None = None


@once
def connections(job: Job) -> list[Connection]:
    """The connections of which an end stands, those that prove most first."""
    found = [one for pair in _pairs(_ends(job)) if (one := _judged(job, pair)) is not None]
    steady = [one for one in found if any(end.stands for end in one.ends)]
    # a line that was printed once may be old: the end may have gone on since
    return sorted(steady or found, key=lambda one: (not one.proven, one.side is None, -len(one.ends)))


def _ends(job: Job) -> list[PrintedEnd]:
    newest: dict[tuple[int, int | None, bool, int | None, _Key], PrintedEnd] = {}
    for event in lines.with_role(job, "data.progress"):
        end = _end(job, event)
        if end is None:
            continue
        key = (event.proc, event.device, end.sends, end.rank, end.key)
        known = newest.get(key)
        if known is None or _last(event).seq >= _last(known.event).seq:
            newest[key] = end
    if not newest:
        return []
    more = _More(job)
    return [more.about(end) for end in newest.values()]


def _end(job: Job, event: Event) -> PrintedEnd | None:
    run = job.run_of_event(event)
    if "seen" in event.fields or event.proc < 0 or run is None or torn_down(job, event.proc) or proof.of(job, run).done:
        return None
    sends = _sends(event.fields.get("role"))
    if sends is None:
        return None
    rank = number(event.fields, "rank")
    rank = job.rank_of_thread(event) if rank is None else rank
    peer = number(event.fields, "peer")
    if peer is None and job.runs[run].nranks == 2 and rank is not None:
        peer = 1 - rank
    return PrintedEnd(
        event=event,
        run=run,
        name=f"rank {rank}" if rank is not None else name_of(job, event.proc),
        rank=rank,
        peer=peer,
        sends=sends,
        key=_identity(event.fields),
        stands=_stands(job, event),
        seconds=_seconds(event),
        refs=(event.ref, *([event.last] if event.last is not None else [])),
    )


def _sends(word: Value | None) -> bool | None:
    text = str(word or "").lower()
    return True if text.startswith(("send", "tx")) else False if text.startswith(("rec", "rx")) else None


def _identity(fields: Mapping[str, Value]) -> _Key:
    return tuple((name, fields[name]) for name in _OF_LINE if name in fields)


def _last(event: Event) -> Ref:
    return event.last or event.ref


def _stands(job: Job, event: Event) -> bool:
    """Whether a thread prints the same state to its end."""
    if "stall" in str(event.fields.get("what", "")).lower():
        return True
    if event.count < 2 or event.thread < 0:
        return False
    last = _last(event).seq
    period = (last - event.ref.seq) / (event.count - 1)
    return job.scan.threads[event.thread].last.seq - last <= max(_PERIODS * period, _LINES)


def _seconds(event: Event) -> float | None:
    first, last = clock.seconds(event.time), clock.seconds(event.until)
    if first is None or last is None or first[1] != last[1]:
        return None
    return max(last[0] - first[0], 0.0)


class _More:
    """What the other lines of a data path say about an end: its stream, its copies, what it published.

    Such a line is about each end of its process that agrees with all that it names, so a line that names nothing is about all of them.
    """

    def __init__(self, job: Job) -> None:
        self._found: dict[tuple[int, int | None, str], dict[tuple[str, ...], dict[_Key, Event]]] = defaultdict(dict)
        for role in ("data.stream", "data.event", "data.published"):
            for event in lines.with_role(job, role):
                state = str(event.fields.get("state", "recorded")) if role == "data.event" else ""
                names = self._names(event.fields)
                shape = tuple(name for name, _ in names)
                known = self._found[event.proc, event.device, role + state].setdefault(shape, {})
                if names not in known or _last(known[names]).seq <= _last(event).seq:
                    known[names] = event

    @staticmethod
    def _names(fields: Mapping[str, Value]) -> _Key:
        sends = _sends(fields.get("role"))
        side: _Key = (("role", int(sends)),) if sends is not None else ()
        return side + _identity(fields)

    def about(self, end: PrintedEnd) -> PrintedEnd:
        stream, recorded = self._of(end, "data.stream"), self._of(end, "data.eventrecorded")
        done, published = self._of(end, "data.eventdone"), self._of(end, "data.published")
        used = number((stream or end.event).fields, "stream")
        ours = end.event.fields
        events = [event for event in (stream, recorded, done, published) if event is not None]
        return replace(
            end,
            stream=used,
            recorded=_below(recorded, number(ours, "transmitted")),
            done=_below(done, number(ours, "done")),
            published=_below(published, number(ours, "send_head" if end.sends else "recv_tail")),
            refs=(*end.refs, *(_last(event) for event in events)),
        )

    def _of(self, end: PrintedEnd, kind: str) -> Event | None:
        mine = dict(self._names(end.event.fields))
        found = []
        for shape, known in self._found.get((end.event.proc, end.event.device, kind), {}).items():
            if all(name in mine for name in shape):
                event = known.get(tuple((name, mine[name]) for name in shape))
                found += [event] if event is not None else []
        return max(found, key=lambda event: _last(event).seq, default=None)


def _below(event: Event | None, said: int | None) -> int | None:
    """The steps below this one, by a line about one step or by the progress line itself."""
    step = number(event.fields, "step") if event is not None else None
    return step + 1 if step is not None else said


def _pairs(ends: Iterable[PrintedEnd]) -> list[tuple[PrintedEnd | None, PrintedEnd | None]]:
    """Sender and receiver of each connection; an end without a line, or with several candidates, is None."""
    senders: dict[object, list[PrintedEnd]] = defaultdict(list)
    receivers: dict[object, list[PrintedEnd]] = defaultdict(list)
    alone: list[tuple[PrintedEnd | None, PrintedEnd | None]] = []
    for end in ends:
        if end.rank is None or end.peer is None:
            alone.append((end, None) if end.sends else (None, end))
            continue
        both = (end.rank, end.peer) if end.sends else (end.peer, end.rank)
        # handles are of one process, numbers of channels are of both
        shared = tuple((name, value) for name, value in end.key if name in ("channel", "conn_index", "pair"))
        (senders if end.sends else receivers)[end.run, both, shared].append(end)
    for key in dict.fromkeys([*senders, *receivers]):
        mine, theirs = senders.get(key, []), receivers.get(key, [])
        if len(mine) <= 1 and len(theirs) <= 1:
            alone.append((mine[0] if mine else None, theirs[0] if theirs else None))
        else:
            alone += [(end, None) for end in mine] + [(None, end) for end in theirs]
    return alone


def _judged(job: Job, pair: tuple[PrintedEnd | None, PrintedEnd | None]) -> Connection | None:
    send, recv = pair
    ends = tuple(end for end in pair if end is not None)
    if not any(end.waits for end in ends):
        return None
    ours = proof.of(job, ends[0].run)
    lasting = bool(ours.lasting)
    stands = any(end.stands for end in ends)
    if not stands and not lasting and not any(end.number("nsteps") is not None for end in ends):
        return None
    side, what = _turn(send, recv)
    zero = [end for end in ends if end.stream == 0]
    if side is None and len(zero) == 1 and not zero[0].complete:
        side, what = zero[0], f"it is at step {zero[0].at}"
    next_step = None
    if side in zero:
        what += "; its copies are on stream 0x0: this is the legacy stream, which waits for the application's"
        next_step = STREAM_0
    elif zero:
        what += f"; {joined(end.name for end in zero)} copies on stream 0, the legacy stream"
    passed = lasting or any(end.stands and (end.seconds or 0.0) >= _LASTS for end in ends)
    steady = len(ends) == 2 and all(end.stands or end.complete for end in ends)
    proven = (
        side is not None and steady and passed and not ours.failed
    )  # after an error of a rank, its peers stand rightly
    return Connection(ends, side, what, proven, next_step)


def _turn(send: PrintedEnd | None, recv: PrintedEnd | None) -> tuple[PrintedEnd | None, str]:
    """The end that has to act, and why."""
    if send is None or recv is None:
        end = send or recv
        assert end is not None
        return _alone(end)
    busy = [end for end in (send, recv) if end.copies]
    if len(busy) == 1:
        return busy[0], _unfinished(busy[0])
    published = send.published if send.published is not None else send.at
    if recv.at < published and send.can_send is not True:
        there = f"steps {recv.at} to {published - 1} are" if published - recv.at > 1 else f"step {recv.at} is"
        return recv, f"{there} there, and it does not consume {'it' if there.startswith('step ') else 'them'}"
    if send.can_send is False:
        freed = (
            f"{recv.name} has consumed the steps below {recv.at}, and {send.name} sees no free slot for step {send.at}"
        )
        return None, f"{freed}: {recv.name} did not publish it, or {send.name} did not read it"
    if recv.at >= published:
        room = "it has room" if send.can_send else "all slots are free"
        return send, f"{room} for step {send.at}, which the receiver waits for, and it does not post it"
    return (
        None,
        f"{send.name} has room for step {send.at} and does not post it; {recv.name} has step {recv.at} and does not consume it",
    )


def _alone(end: PrintedEnd) -> tuple[PrintedEnd | None, str]:
    peer = f"rank {end.peer}" if end.peer is not None else "its peer"
    if end.copies:
        return end, _unfinished(end)
    if end.sends and end.can_send:
        return end, f"it has room for step {end.at} and does not post it"
    if end.sends:
        return None, f"{end.name} waits for {peer}, the receiver, to free a slot for step {end.at}"
    head = end.number("send_head")
    if head is not None and head > end.at:
        return end, f"step {end.at} is there (sendHead={head}), and it does not consume it"
    return None, f"{end.name} waits for {peer}, the sender, to publish step {end.at}"


def _unfinished(end: PrintedEnd) -> str:
    copies = counted(end.copies, "copy", "copies")
    return f"{copies} that it started below step {end.recorded} {plural(end.copies, 'is', 'are')} not done"
