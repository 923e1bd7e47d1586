"""NCCL's last warning, as torch repeats it below `Last error:` and XLA in the text of the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from psmkit.analysis.facts import endings, lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.tags import process_of_tags, rank_of_tag, without_tag
from psmkit.analysis.inference import blame, faults
from psmkit.catalogue import Message
from psmkit.catalogue.entries import Value
from psmkit.logparse.types import Event, Ref
from psmkit.model import CODES, Named
from psmkit.model.late import dataclass, regex
from psmkit.model.wording import without_bars

__all__ = ["LastError", "last_errors", "named_in"]

_HEAD = "Last error:"
_XLA = "framework.nccl_error"
_REPEATED = "torch.last_error"
#: The words that torch prints for NCCL's result, above the head.
_RESULT = "torch.nccl_result"
#: What XLA appends behind the text of the warning.
_APPENDED = ("'. [", "'.;", "'.")
#: What another process prints behind the text in the same line: the type of its exception, or the first frame of its traceback.
_GLUED = regex(r"\s*(?:(?:torch\.distributed\.)?(?:DistBackendError|RuntimeError):?.*|  File \"/.*)$")
#: Two ranks on one device: this text of NCCL's names both, wherever it stands.
_SHARED = regex(r"Duplicate GPU detected : rank \d+ and rank \d+ both on CUDA device [0-9a-f]+")
#: Blank lines and progress bars between the head and the text.
_MOST_BLANK = 2
#: So many lines of other processes may stand between.
_MOST_BETWEEN = 12
#: What torch prints below an empty warning.
_STACK = ("Exception raised from ", "frame #")
_PAIR = 2
#: A text is repeated by each rank.
_MOST = 64


@dataclass(frozen=True, slots=True)
class LastError:
    """The text below or in a head, at ``ref``, with its catalogue entry. ``peers`` are the processes that it names, by address or rank.

    ``own`` is the rank that the text gives to the process that printed it, in its communicator. ``one_end`` means that a network operation failed, and the text neither names the other end nor says that it closed the connection.
    """

    head: Event
    ref: Ref
    text: str
    known: Message | None
    peers: tuple[Named, ...]
    code: str
    one_end: bool
    own: int | None = None


def last_errors(job: Job, run: int | None) -> list[LastError]:
    """The last warnings that torch or XLA repeat in a run, in reading order."""
    heads = [e for e in job.events("torch.last_error.head", _XLA) if job.run_of_event(e) == run]
    heads = [e for e in heads if e.name != _XLA or e.fields.get("last")][:_MOST] or _headless(job, run)
    found = (_text(job, head) for head in heads)
    return [_read(job, head, *item) for head, item in zip(heads, found, strict=True) if item is not None]


def named_in(last: Sequence[LastError]) -> tuple[Named, ...]:
    """The processes that the first of these texts names, and, where they exclude each other, those of the same text of other processes."""
    if not last or last[0].known is None or len(last[0].peers) < _PAIR or last[0].known.blames != "self":
        return last[0].peers if last else ()
    same = (item.peers for item in last if item.known is last[0].known)
    return tuple(dict.fromkeys(peer for peers in same for peer in peers))


def _headless(job: Job, run: int | None) -> list[Event]:
    """The warnings without a head: those that name two ranks on one device, those right below the words for NCCL's result, or those at the top of logs that begin below the head, where torch's hook for uncaught exceptions put the rank before the line."""
    found = job.events(_REPEATED, run=run)
    shared = [e for e in found if "other" in e.fields and not endings.continued(job, run, e, None)]
    top = (e for e in found if e.ref.line == 1 and e.tag is not None)
    results = {(e.stream, e.tag, e.ref.seq) for e in job.events(_RESULT, run=run)}
    beside = [e for e in found if (e.stream, e.tag, e.ref.seq - 1) in results]
    return (shared or beside or [e for e in top if rank_of_tag(e.tag) is not None and "rank" in str(e.tag)])[:_MOST]


def _text(job: Job, head: Event) -> tuple[Ref, str] | None:
    """The first text below a head, without the launcher's tag that both lines begin with."""
    if head.name == _REPEATED:
        text = without_tag(_line(job, head.ref), head.tag)
        shared = _SHARED.search(text)
        return head.ref, shared[0] if shared is not None else text
    if head.name == _XLA:
        text = str(head.fields["last"])
        for end in _APPENDED:
            text = text.partition(end)[0]
        text = text.strip()
        if text.endswith(("'", '"')) and text.count(text[-1]) % 2:  # the end of the quote
            text = text[:-1]
        return (head.ref, text) if text else None
    before, _, rest = _line(job, head.ref).partition(_HEAD)
    ref = head.ref
    if rest.strip():
        return ref, rest.strip()
    own = process_of_tags(before)[0]
    blank = 0
    for _ in range(_MOST_BETWEEN):
        below = lines.below(job, ref)
        if below is None:
            return None
        ref = below
        line = _line(job, ref)
        if own is not None and process_of_tags(line)[0] not in (None, own):
            continue  # a line of another process, whose output is mixed with this one
        text = without_bars(line.strip().removeprefix(before.strip()).strip())
        if text.startswith(_STACK):
            return None  # NCCL had no warning to repeat
        if text:
            return ref, _GLUED.sub("", text) or text
        blank += 1
        if blank > _MOST_BLANK:
            return None
    return None


def _line(job: Job, ref: Ref) -> str:
    return "".join(e.text for e in job.quotes.of(ref))


def _read(job: Job, head: Event, ref: Ref, text: str) -> LastError:
    match = lines.catalogue(job).match(text)
    known, fields = match if match is not None else (None, {})
    if known is not None and known.severity not in ("error", "warning"):
        known = None
    # only a peer whose connection broke is gone; an address without a route says nothing about it
    closed = faults.phrase(job, "a connection broke", text) is not None
    # the event stands for the warning, which the scan did not see as one
    other_end = blame.addressed([replace(head, fields=fields)])
    peers = other_end if closed and known is not None and known.blames == "peer" else _pair(known, fields)
    code = _code(job, known, text)
    if other_end and not peers and CODES[code].two_ends:
        peers = [replace(end, either=True) for end in other_end]  # the log does not show which end is at fault
    one_end = CODES[code].two_ends and not (closed or other_end or peers)
    own = number(fields, known.own_rank) if known is not None and known.own_rank is not None else None
    return LastError(head, ref, " ".join(text.split()), known, tuple(peers), code, one_end, own)


def _pair(known: Message | None, fields: Mapping[str, Value]) -> list[Named]:
    """The two ranks that exclude each other, as those that use one device."""
    if known is None or known.blames != "self" or known.relays:
        return []
    ranks = (number(fields, name) for name in ("rank", "peer"))
    pair = [Named(rank) for rank in ranks if rank is not None]
    return pair if len(pair) == _PAIR else []


def _code(job: Job, known: Message | None, text: str) -> str:
    if known is None or known.finding is None or not CODES[known.finding].names_origin:
        return "PSM401"
    memory = faults.phrase(job, "out of memory", text)
    return memory.finding or known.finding if memory is not None else known.finding
