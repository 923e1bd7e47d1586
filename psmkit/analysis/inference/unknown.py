"""Errors in words that the catalogue does not know: what programs and libraries say that psmkit has never seen.

Such a line is quoted, never interpreted. It decides only where nothing else explains how a log ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from psmkit.analysis.facts import endings, lines, only, outside
from psmkit.analysis.facts.error_words import GOES_ON, WARNS, is_prose
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import ACTOR, ended_in, process_of_tags, rank_at_start, rank_in_line, without_tag
from psmkit.analysis.inference import exceptions
from psmkit.logparse.types import Event
from psmkit.model import Named
from psmkit.model.late import regex
from psmkit.model.wording import uncoloured

__all__ = [
    "about",
    "all_stated_below",
    "at_the_end",
    "in_exception",
    "launched",
    "named",
    "of_an_abort",
    "rank_of",
    "stated_below",
    "words",
]

_FAILED = "other.failed"
#: Exceptions count, too: some stand alone, without a stack.
_ERRORS = ("other.error", "sys.python.exception", "sys.python.memory", "launch.subprocess.failed")
#: So many lines between two errors, or below the last one, belong to the same end of a log; fewer where words alone tell of a failure.
_NEAR, _CLOSE = 30, 6
#: The rank that a program states before its message, as in `| rank 3 |` or `rank=3`.
_OWN_RANK = regex(r"\b(?<!local.)(?:rank[ =:_]{0,2}|(?<=\[)R(?=\d+\]))(\d{1,9})\b", re.IGNORECASE)
#: What lines state of themselves, as in `rank:1` and `PID:4711`, and the ranks that they speak of.
_KEYED = regex(r"\b(?<!local.)rank_?(?:id)?\s*[:=]\s*(\d{1,9})\b", re.IGNORECASE)
_PID = regex(r"\bpid\"?\s*[:= ]\s*(\d{1,9})\b", re.IGNORECASE)
_LOCAL = regex(r"\blocal_?rank\s*[:=]\s*(\d{1,9})\b", re.IGNORECASE)
_RANK = regex(r"\brank (\d{1,9})\b", re.IGNORECASE)
#: The rank of which a text says that it failed; who prints it may be another one.
_SUBJECT = regex(r"\brank (\d{1,9}) (?:has |was )?(?:failed|died|crashed|killed)\b", re.IGNORECASE)
#: torch says where a communicator was aborted: the reason is elsewhere.
_ABORTED = regex(r"communicator was aborted on rank \d+", re.IGNORECASE)
_BASIS = "the text of the error"
#: So many lines are read for that; more processes than a few are no culprits.
_MOST, _FEW, _PARTS = 64, 2, 3
#: Lines whose errors begin alike are one error of several processes.
_SAME = 20
_LONGEST = 110
#: What stands before the message of a line: times, levels and names in brackets.
_NOISE = regex(
    r"^(?:\[\[\d+,\d+\],\d+\]\s*|\[[^\]]*\]\s*|\d{4}[-/:]\d\d[-/:]\d\d[T -]?[\d:.,]*\S*\s*|[^\w\s{\"']+\s*)*"
)
_RAYLET = "(raylet)"
#: More equal exceptions blame none of their processes.
_MOST_ALIKE = 8
_WORD = regex(r"\S*$")
#: Where a sentence begins.
_SENTENCE = regex(r"[.!?:;)\]]\s+(?=[A-Z(])")
#: The end of a tag in brackets whose begin is left out.
_TORN_TAG = regex(r"^[^\s()\[\]]*[)\]]\s+")
#: An address, or the name of a host where the text calls it one.
_ADDRESS = regex(
    r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?![\w.])|\b(?:host='|hostname |(?:host|node) (?=[A-Za-z.-]*[\d.-])|on (?=[\w.-]*[.-]\w*[a-z]))([A-Za-z][\w-]*(?:\.[\w-]+)*)"
)
#: The host that a structured log names, and the one that refuses a login.
_OF_HOST = regex(r"\b(?:host|hostname|node|pod)(?:\" ?: ?|=)\"?([\w.-]+)|\b[\w.-]+@([\w.-]+): Permission denied")
#: A GPU, as the process numbers it.
_DEVICE = regex(r"\bcuda:(\d{1,3})\b|\b(?:gpu|device)[ #:=]?(\d{1,3})\b", re.IGNORECASE)
#: A process that does not get an address of its own host.
_BINDS = regex(r"already in use|\bbind\b|cannot assign requested address", re.IGNORECASE)
#: A name for which there is no address.
_RESOLVES = regex(
    r"resolve (?:host|name|address)|name or service not known|name resolution|getaddrinfo|nodename nor servname",
    re.IGNORECASE,
)
#: What has a rank of another kind.
_OF_TENSORS = regex(r"tensor|matri|dimension|ndim|shape|array|lora|\binput|\bmust (?:be|have)|expected", re.IGNORECASE)
#: The address at which nobody listened for a call of gRPC.
_REFUSED = regex(
    r"\bipv[46]:(?:%5B|\[)?([\w.:]+?)(?:%5D|\])?:\d+: Failed to connect to remote host: (?:connect: )?Connection refused"
)
#: Addresses of no host.
_NO_HOST = ("0.0.0.0", "255.255.255.255")
_HOST = regex(r"(?:Local host|Host|Hostname|Node):\s+([A-Za-z][\w.-]*)")
_HEAD = "Traceback (most recent call last)"
#: So many lines of a box are read.
_BOX = 16
_TYPE = regex(r"[A-Za-z_][\w.]*(?:Error|Exception|ExceptionGroup|Exit|Iteration|Invalid|NoSuchKey|BadZipFile)\b")
_CONNECTS = regex(
    r"connect|bind|address|\blost\b|\bgone\b|\bdead\b|\bis down\b|resolve|reach|refused|timed out|timeout|ssh|route|handshake|socket|listen|launch|proxy",
    re.IGNORECASE,
)


def at_the_end(job: Job, run: int | None) -> list[Event]:
    """The errors with which the files of a run end: below them is no line that the program goes on, and hardly another one."""
    out: list[Event] = []
    for events in _by_file(job).get(run, {}).values():
        out += _last(job, run, events)
    return out


def words(job: Job, event: Event) -> str:
    """What the line says, for a title: without tags and times, or from the words of the error on if it is long."""
    head, said = map(uncoloured, _text(job, event))
    cut = len(head) - len(_WORD.search(head)[0])  # type: ignore[index]  # it matches any text
    whole = without_tag(head + said, event.tag)
    while (tag := ACTOR.text.match(whole)) is not None:
        whole = whole[tag.end() :].lstrip()
    whole = " ".join(_NOISE.sub("", whole).split())
    # a part of a sentence may say the opposite of the whole
    start = max((m.end() for m in _SENTENCE.finditer(head)), default=cut)
    text = (
        whole
        if len(whole) <= _LONGEST
        else _TORN_TAG.sub(
            "", " ".join((head[min(start, cut) if cut - start <= _LONGEST // 2 else cut :] + said).split())
        )
    )
    return (
        text
        if len(text) <= _LONGEST
        else f"{text[:_LONGEST].rpartition(' ')[0] or text[:_LONGEST]}\N{HORIZONTAL ELLIPSIS}"
    )


def named(job: Job, events: Sequence[Event]) -> list[Named]:
    """Who these lines are about, where no tag names a rank: the process that prints the first one, the only address of a failed connection, or the
    few processes that the lines name.
    """
    texts = ["".join(_text(job, e)) for e in events[:_MOST]]
    alike = [
        e for e in events[:_MOST] if str(e.fields.get("what"))[:_SAME] == str(events[0].fields.get("what"))[:_SAME]
    ]
    process = outside.headed_process(job, alike) or (
        [] if len(alike) > 1 else outside.headed_process(job, events[:_MOST])
    )
    if texts and _RAYLET in texts[0]:  # it tells of another process, in the output of the driver
        return []
    if not process and (hosts_before := launched(job, alike)):
        return hosts_before
    for near in (texts[:1], texts):
        hosts = {a or b for t in near if _CONNECTS.search(t) for a, b in _ADDRESS.findall(t)} - {*_NO_HOST}
        if len(hosts) == 1:
            ends = (*process, Named(host=hosts.pop()))
            if any(map(_RESOLVES.search, near)):  # no connection was tried
                return [ends[-1]]
            if any(map(_BINDS.search, near)):  # at an address of its own
                return list(process) or [*ends]
            return [replace(end, either=True, peer_unnamed=not process) for end in ends]
    there = [] if process else _hosts_below(job, events[0])
    if process or len(there) == 1:
        return process or [Named(host=there[0])]
    if len(local := {int(n) for t in texts for n in _LOCAL.findall(t)}) == 1:
        return [Named(local.pop(), basis=f"{ASSUMED}local rank")]
    if pids := dict.fromkeys(int(n) for t in texts for n in _PID.findall(t)):
        return [Named(pid=pid, basis=_BASIS) for pid in pids] if len(pids) <= _FEW else []
    if placed := {a or b for t in texts for a, b in _OF_HOST.findall(t)}:
        return [Named(host=placed.pop())] if len(placed) == 1 else []
    if ended := _ended(texts):
        return ended
    ranks = dict.fromkeys(int(n) for t in texts for n in _RANK.findall(_ABORTED.sub("", t)))
    either = any(map(_CONNECTS.search, texts))
    named_ = [Named(rank, basis=_BASIS, either=either, peer_unnamed=either and len(ranks) == 1) for rank in ranks]
    if len(named_) > _FEW:
        return []
    devices = {int(a or b) for t in texts[:1] for a, b in _DEVICE.findall(t)}
    device = [Named(device=devices.pop(), basis=f"{ASSUMED}own devices")] if len(devices) == 1 else []
    return named_ or device or only.shown(job)


def launched(job: Job, events: Sequence[Event]) -> list[Named]:
    """The few hosts that pdsh puts before these lines, if one stands before each of them."""
    hosts = dict.fromkeys(outside.launched_host(job, e.ref) for e in events[:_MOST])
    return [Named(host=host) for host in hosts] if 0 < len(hosts) <= _FEW and None not in hosts else []


def refused(job: Job, events: Sequence[Event]) -> list[Named]:
    """The only address that refused a call of gRPC in these lines: who prints them could not reach it. A loopback address is that of any host."""
    hosts = {h for e in events[:_MOST] for h in _REFUSED.findall("".join(_text(job, e)))}
    if len(hosts) != 1:
        return []
    near = min(hosts).startswith(("127.", "::1"))
    return [Named(host=min(hosts), either=near, peer_unnamed=near)]


def _ended(texts: Sequence[str]) -> list[Named]:
    """The process of which the first of these texts that tells an end says that it ended."""
    number, pid = next((found for t in texts if (found := ended_in(t)) != (None, None)), (None, None))
    if pid is not None:
        return [Named(pid=pid, basis=_BASIS)]
    return [Named(number, basis=f"{ASSUMED}number of a worker")] if number is not None else []


def of_an_abort(text: str) -> bool:
    """Whether an exception says only that a communicator was aborted, which has a reason elsewhere."""
    return _ABORTED.search(text) is not None


def in_exception(text: str) -> list[Named]:
    """The process that the text of an exception is about: the only address of a failed connection, or the only rank."""
    if of_an_abort(text):
        return []
    connects = _CONNECTS.search(text) is not None
    either = connects and _BINDS.search(text) is None and _RESOLVES.search(text) is None
    hosts = {a or b for a, b in _ADDRESS.findall(text)} - {*_NO_HOST} if connects else set()
    if len(hosts) == 1:
        return [Named(host=hosts.pop(), either=either, peer_unnamed=either)]
    ranks = {int(n) for n in _RANK.findall(text)} if not _OF_TENSORS.search(text) else set()
    return [Named(ranks.pop(), basis=_BASIS, either=either, peer_unnamed=either)] if len(ranks) == 1 else []


def stated_below(job: Job, event: Event) -> tuple[int | None, int | None]:
    """The rank and the process id that the next lines of an error with several lines state, as in ``(PID:4711, RankID:3)``."""
    ref, text = lines.below(job, event.ref), ""
    for _ in range(_PARTS):
        line = "".join(e.text for e in job.quotes.of(ref)) if ref is not None else ""
        text += "" if process_of_tags(line)[0] is not None else f"{line}\n"  # a tag is that of another line
        ref = lines.below(job, ref) if ref is not None else None
    ranks, pids = set(_KEYED.findall(text)), set(_PID.findall(text))
    return int(ranks.pop()) if len(ranks) == 1 else None, int(pids.pop()) if len(pids) == 1 else None


def all_stated_below(job: Job, events: Sequence[Event]) -> list[Named]:
    """The ranks and processes that lines below these equal exceptions state: those of all of them, or else of the first."""
    found = [(rank, pid) for rank, pid in (stated_below(job, e) for e in events[:_MOST_ALIKE])]
    if len(events) > _MOST_ALIKE or (None, None) in found:
        found = found[:1]
    return [Named(rank, pid=pid) for rank, pid in dict.fromkeys(found) if (rank, pid) != (None, None)]


def _hosts_below(job: Job, event: Event) -> list[str]:
    """The host of a box of text, as Open MPI prints it: `Host: node7` on a line below the error."""
    ref, out = lines.below(job, event.ref), dict[str, None]()
    for _ in range(_BOX):
        found = _HOST.fullmatch("".join(e.text for e in job.quotes.of(ref)).strip()) if ref is not None else None
        if found is not None:
            out[found[1]] = None
        ref = lines.below(job, ref) if ref is not None else None
    return list(out)


def rank_of(job: Job, events: Sequence[Event]) -> int | None:
    """The rank that printed the first of these lines: by its tag, or as the lines state it."""
    rank = outside.global_rank(job, events[0])
    if rank is not None:
        return rank
    head, said = _text(job, events[0])
    rank = rank_in_line(head + said)
    rank = rank_at_start(head) if rank is None else rank
    if rank is not None:
        return rank
    found = set(_OWN_RANK.findall(head)) or {n for e in events[:_MOST] for n in _KEYED.findall("".join(_text(job, e)))}
    return int(found.pop()) if len(found) == 1 else None


def about(job: Job, event: Event) -> list[Named]:
    """The only rank of which this line says that it failed."""
    ranks = {int(n) for n in _SUBJECT.findall("".join(_text(job, event)))}
    return [Named(ranks.pop(), basis=_BASIS)] if len(ranks) == 1 else []


def _text(job: Job, event: Event) -> tuple[str, str]:
    """The line before the words of the error, and from there on."""
    line = "".join(e.text for e in job.quotes.of(event.ref))
    found = lines.catalogue(job).places(line, where="other")
    at = found[0][0] if found is not None else 0
    return line[:at], line[at:]


@once
def _by_file(job: Job) -> dict[int | None, dict[int, list[Event]]]:
    """The lines by run and file."""
    out: dict[int | None, dict[int, list[Event]]] = {}
    for event in job.events(*_ERRORS, _FAILED):
        if (
            event.proc < 0
            and not _only_warns(job, event)
            and (
                not event.name.startswith("sys.python.") or (_opens(job, event) and not exceptions.ignored(job, event))
            )
        ):
            out.setdefault(job.run_of_event(event), {}).setdefault(event.ref.file, []).append(event)
    return out


def _only_warns(job: Job, event: Event) -> bool:
    """Whether the words stand among settings, the line calls itself a warning that may be turned off, or its words alone tell of a failure and it is prose or says that the program goes on."""
    text = "".join(e.text for e in job.quotes.of(event.ref))
    if WARNS.search(text) is not None or lines.before_settings(head := _text(job, event)[0]) != head:
        return True
    return event.name == _FAILED and (GOES_ON.search(text) is not None or is_prose(lines.catalogue(job), text))


def _goes_on(job: Job, last: Event) -> bool:
    """Whether a line below the last error shows work or a start, in common words. The source lines of a traceback show none."""
    ref, stack = lines.below(job, last.last or last.ref), False
    for _ in range(_NEAR):
        if ref is None:
            return False
        text = "".join(e.text for e in job.quotes.of(ref))
        stack = _HEAD in text or (stack and text.startswith("  "))
        if not stack and lines.catalogue(job).phrase("a program goes on", text) is not None:
            return True
        ref = lines.below(job, ref)
    return False


def _opens(job: Job, event: Event) -> bool:
    """Whether the line begins with the exception, behind tags and times: a text about one proves nothing."""
    line = "".join(e.text for e in job.quotes.of(event.ref))
    found = _TYPE.search(line)
    head = line[: found.start()].rstrip() if found is not None else "a"
    return not head or not head[-1].isalpha()


def _last(job: Job, run: int | None, events: Sequence[Event]) -> Iterator[Event]:
    """The errors of a file from the last one back, as far as each is near the next."""
    end = job.scan.files[events[0].ref.file].lines
    near: list[Event] = []
    for event in reversed(events):
        if end - event.ref.line > _NEAR:
            break
        if event.name == _FAILED and end - event.ref.line > _CLOSE:
            continue  # these words prove too little here, but an error above them may still be near enough
        end = event.ref.line
        near.append(event)
    if near and _goes_on(job, near[0]):
        return iter(())
    near = [
        e
        for e in reversed(near)
        if not endings.continued(job, run, e, outside.proc_of_event(job, e)) and not endings.stopped(job, e)
    ]
    return iter(near)
