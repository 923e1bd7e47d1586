"""Compare the step recorder's rows for the two ends of a libpsm connection, to find the side that has to act.

A row holds what one end knew at its last transition, or at its last report of a stall. Two rows of one connection prove a
stop if one end saw no effect long after the other had acted. Both processes share the clock of the times.
"""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.printed import number
from psmkit.logparse.types import Event
from psmkit.model.late import dataclass
from psmkit.model.wording import counted, plural

__all__ = ["STREAM_0", "End", "Stop", "pairs", "stop_of", "suspects"]


#: The minimum time between an act and a look that missed it: much longer than the coarse clock's tick and a scheduling delay.
_SLACK_NS = 100_000_000

#: The ways in which a proxy ends up copying on stream 0.
STREAM_0 = (
    "Let the proxy copy on a stream of its own (cudaStreamNonBlocking), made by the process that uses it. Look at what Setup and Connect write "
    "into the connection's local info: a stream that was copied from the peer, or never made, is 0 here."
)

_ON_STREAM_0 = "copies on stream 0x0 are not done: this is the legacy stream, which waits for the application's work"

_CALLS = "send/recv"
_NETWORK = "Look at the network between the two: the lines of its plugin on both ranks, its record (psm.net), the state of its device."


@dataclass(frozen=True, slots=True)
class End:
    """One row."""

    event: Event

    def __getitem__(self, name: str) -> int:
        return number(self.event.fields, name) or 0

    def text(self, name: str) -> str:
        return str(self.event.fields.get(name, "?"))

    @property
    def sends(self) -> bool:
        return self.text("role") == "send"

    @property
    def stalled(self) -> bool:
        return self.text("what") == "stalled"

    @property
    def at(self) -> int:
        """The step that comes next."""
        return self["base"] + self["transmitted"]

    @property
    def copies(self) -> int:
        """Copies on its stream that have not completed."""
        return self["transmitted"] - self["done"]

    @property
    def seconds(self) -> float:
        return max(self["seen"] - self["moved"], 0) / 1e9

    @property
    def who(self) -> str:
        return f"rank {self['rank']}"

    def saw(self, other: End) -> bool:
        """Whether this end looked and found nothing, long after the other's last transition."""
        return self.stalled and self["seen"] > other["moved"] + _SLACK_NS

    def told(self) -> str:
        side = "the sender" if self.sends else "the receiver"
        return (
            f"{self.who}, {side}: {self.text('what')} in stage {self.text('stage')}, step={self['step']} recvTail={self['recv_tail']} "
            f"sendHead={self['send_head']} canSend={self.text('can_send')} transmitted={self['transmitted']} done={self['done']} "
            f"of {self['nsteps']}{self._why()}"
        )

    def _why(self) -> str:
        """The meaning of the numbers, in the stage that moves data."""
        if self.text("stage") != "fifo" or not self["nsteps"]:
            return ""
        if self.sends and self["transmitted"] >= self["nsteps"]:
            return (
                f" (no step is left to send; {counted(self.copies, 'step')} in copies that have not ended)"
                if self.copies
                else ""
            )
        if self.sends:
            return " (a slot is free)" if self["recv_tail"] > self.at else " (no slot is free)"
        if self["send_head"] > self.at:
            return f" (step {self.at} is there)"
        return f" (step {self.at} has not come: the sender has published those below {self['send_head']})"


@dataclass(frozen=True, slots=True)
class Stop:
    """The facts about a stalled connection. ``side`` is None if neither end can be blamed.

    ``stage`` is ``send/recv`` where an application has not called what the other end waits for.
    ``shared`` describes a mistake of a rank that shows on several connections and ranks alike, without their numbers.
    """

    side: End | None
    what: str
    proven: bool
    next_step: str | None = None
    shared: str | None = None
    stage: str = "data"


def suspects(job: Job, run: int) -> dict[int, str]:
    """The ranks that have to act on stalled connections of a run, also if unproven, and what each has to do."""
    out: dict[int, str] = {}
    for send, recv in pairs(job):
        stop = stop_of(send, recv)
        if stop is not None and stop.side is not None and job.run_of_event(stop.side.event) == run:
            out.setdefault(stop.side["rank"], stop.what)
    return out


def pairs(job: Job) -> list[tuple[End | None, End | None]]:
    """The two ends of each connection. Of several copies of a row the last one counts."""
    ends: dict[tuple[int, bool], End] = {}
    for event in lines.with_role(job, "data.progress"):
        if "seen" not in event.fields:
            continue  # a printed line, which has no clock: inference/prints.py
        end = End(event)
        key = (end["pair"], end.sends)
        known = ends.get(key)
        if known is None or end["seen"] >= known["seen"]:
            ends[key] = end
    pairs: dict[int, list[End | None]] = defaultdict(lambda: [None, None])
    for (pair, sends), end in ends.items():
        pairs[pair][0 if sends else 1] = end
    return [(send, recv) for send, recv in pairs.values() if (send and send.stalled) or (recv and recv.stalled)]


def stop_of(send: End | None, recv: End | None) -> Stop | None:
    """The facts about a connection of which an end reported a stall; an end without a row is None."""
    return _both(send, recv) if send and recv else _one(send or recv)


def _both(send: End, recv: End) -> Stop | None:
    return (
        _copies(send, recv)
        or _unpublished(send, recv)
        or _lost_flag(send, recv)
        or _on_its_way(send, recv)
        or _idle_sender(send, recv)
        or _idle_receiver(send, recv)
        or _not_posted(send, recv)
        or _silent(send, recv)
        or _one(send if send.stalled else recv)
    )


def _copies(send: End, recv: End) -> Stop | None:
    """A side whose copies do not complete while the other waits only for them."""
    for end, other in ((send, recv), (recv, send)):
        if not end.stalled or end.copies <= 0 or other.copies > 0:
            continue
        age = max(end["seen"] - end["event"], 0) / 1e9
        what = f"{_unfinished(end)} not done after {age:.1f} s"
        if end["stream"] == 0:
            # Its own streams are never 0: this is the legacy stream, behind the application's host function.
            what += ": this is the legacy stream, which waits for the application's"
            return Stop(end, what, True, STREAM_0, _ON_STREAM_0)
        return Stop(end, what, False)
    return None


def _unpublished(send: End, recv: End) -> Stop | None:
    """A side that did more than the shared word shows, although it alone writes the word."""
    if (
        recv.stalled
        and send.text("stage") in ("fifo", "idle", "ended")
        and send["send_head"] < send["base"] + send["done"]
    ):
        return Stop(
            send, f"it has done {send['done']} steps from {send['base']} and published {send['send_head']}", True
        )
    offered = recv["base"] + recv["done"] + recv["steps"]
    if send.stalled and recv.text("stage") == "fifo" and recv["steps"] and recv["recv_tail"] < offered:
        return Stop(recv, f"it lets steps below {offered} be filled and published {recv['recv_tail']}", True)
    return None


def _lost_flag(send: End, recv: End) -> Stop | None:
    """A flag that one end set and the other waits for, but that is clear. The rows do not show who cleared it."""
    if send["seq"] != recv["seq"]:
        return None
    if send.text("stage") == "offer" and recv.text("stage") in ("fifo", "zero-copy") and send.saw(recv):
        if send["offer"] == recv["seq"]:
            return Stop(send, f"the offer of operation {recv['seq']} is there, and it does not take it", True)
        what = f"the offer of operation {recv['seq']} is lost: {recv.who} has published it, {send.who} waits for it, and the flag is clear"
        return Stop(None, what, True)
    if recv.text("stage") == "zero-copy" and send.text("stage") in ("idle", "ended") and recv.saw(send):
        if recv["answer"] == send["seq"]:
            return Stop(recv, f"the answer to operation {send['seq']} is there, and it does not take it", True)
        what = f"the answer to operation {send['seq']} is lost: {send.who} has written it, {recv.who} waits for it, and the flag is clear"
        return Stop(None, what, True)
    return None


def _on_its_way(send: End, recv: End) -> Stop | None:
    """A value that one end published and the other does not see: a network is between them, unlike in shared memory."""
    sent = recv.text("stage") == "fifo" and not recv.copies and recv["send_head"] <= recv.at < send["send_head"]
    if sent and recv.saw(send):
        what = f"step {recv.at} was passed to the network by {send.who} and has not reached {recv.who}"
        return Stop(None, what, True, _NETWORK)
    waits = send.text("stage") == "fifo" and not send.copies and send["transmitted"] < send["nsteps"]
    if waits and send["recv_tail"] <= send.at < recv["recv_tail"] and send.saw(recv):
        what = (
            f"{recv.who} lets steps below {recv['recv_tail']} be filled, and {send.who} knows of those below {send['recv_tail']}: "
            "the update was lost on the way"
        )
        return Stop(None, what, True, _NETWORK)
    return None


def _idle_sender(send: End, recv: End) -> Stop | None:
    """A slot is free, no operation is in progress, and no step arrives."""
    if (
        send.text("stage") != "fifo"
        or send.copies
        or send["transmitted"] >= send["nsteps"]
        or recv["recv_tail"] <= send.at
    ):
        return None
    # Evident from its own row, or from the receiver, which got no more than the sender's row shows.
    if send.saw(recv) or (recv.saw(recv) and recv["send_head"] == send["send_head"] and recv.saw(send)):
        what = f"it has room for step {send.at} (recvTail={recv['recv_tail']}, canSend=YES), no copy is under way, and it does not post"
        return Stop(send, what, True)
    return None


def _idle_receiver(send: End, recv: End) -> Stop | None:
    """A slot is full, no operation is in progress, and the slot is not emptied."""
    if recv.text("stage") != "fifo" or recv.copies or send["send_head"] <= recv.at:
        return None
    if recv.saw(send) or (send.saw(send) and send["recv_tail"] == recv["recv_tail"] and send.saw(recv)):
        what = (
            f"step {recv.at} is there (sendHead={send['send_head']}), no copy is under way, and it does not consume it"
        )
        return Stop(recv, what, True)
    return None


def _not_posted(send: End, recv: End) -> Stop | None:
    """An end that waits for the other to start the operation, correctly if the application is late."""
    if send["seq"] > recv["seq"] and send.saw(recv):
        return Stop(
            recv,
            f"it has not begun operation {send['seq']}: its application has not posted the recv",
            False,
            stage=_CALLS,
        )
    if recv["seq"] > send["seq"] and recv.saw(send):
        return Stop(
            send,
            f"it has not begun operation {recv['seq']}: its application has not posted the send",
            False,
            stage=_CALLS,
        )
    return None


def _silent(send: End, recv: End) -> Stop | None:
    """An end that neither moved nor looked while the other did: its progress thread or its process does not run."""
    for end, other in ((send, recv), (recv, send)):
        if other.saw(end) and not end.stalled and end.text("stage") != "idle":
            return Stop(end, "it has neither moved nor reported a stall since: see whether its process runs", False)
    return None


def _one(end: End | None) -> Stop | None:
    """The conclusion from a single row: only a hint."""
    if end is None:
        return None
    if end.copies > 0:
        return Stop(end, f"{_unfinished(end)} not done", False)
    other = "receiver" if end.sends else "sender"
    return Stop(None, f"{end.who} waits for rank {end['peer']}, the {other}", False)


def _unfinished(end: End) -> str:
    """``2 copies on its stream 0x0 are``."""
    return (
        f"{counted(end.copies, 'copy', 'copies')} on its stream 0x{end['stream']:x} {plural(end.copies, 'is', 'are')}"
    )
