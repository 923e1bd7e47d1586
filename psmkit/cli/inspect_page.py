"""The text of ``psmkit inspect``: the answer first, then threads with their stacks; for several processes a table first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from psmkit.model.inspection import InspectedFrame, InspectedThread, Inspection, Note, Standing, StateObject, Value
from psmkit.model.wording import counted
from psmkit.report.layout import Page, Span
from psmkit.report.ranktable import fit

__all__ = ["default_parallel", "page"]

_SHORT = 12  # frames of a thread
_REMOTE = 32
_DEEP = 4  # levels of the state
_SENTENCE = 32  # least width of the last column of the table


def default_parallel(remote: bool) -> int:
    """How many processes are inspected at a time: gdb needs a CPU, an ssh does not."""
    return _REMOTE if remote else max(1, len(os.sched_getaffinity(0)))


def page(found: Sequence[Inspection], columns: int, *, full: bool, kept: str = "") -> Page:
    """What was seen. ``full``: all frames of all threads. ``kept`` says where the inspections were written."""
    out = Page(columns)
    if len(found) > 1:
        _summary(out, found)
    else:
        _failures(out, found, "")
    shown = list(found) if full or len(found) == 1 else _odd(found)
    for one in shown:
        if one.threads:
            out.blank()
            _process(out, one, full=full, single=len(found) == 1)
    if len(found) > len(shown):
        for note in dict.fromkeys(note for one in found if one.threads and one not in shown for note in one.notes):
            _note(out, note)
        out.blank()
        out.add(Span(f"--full shows the threads of all{'' if kept else '; -o DIR keeps them'}", "dim"))
    if kept:
        out.blank()
        out.wrap(kept, "dim", hang="  ")
    return out


def _who(one: Inspection) -> str:
    return f"rank {one.rank} (pid {one.pid})" if one.rank is not None else f"pid {one.pid}"


def _answer(one: Inspection, standing: Standing) -> str:
    """`rank 1 (pid N) waits in Connect for rank 0`."""
    for subject in (f"rank {standing.rank} ", f"process {one.pid} "):
        if standing.text.startswith(subject):
            return f"{_who(one)} {standing.text.removeprefix(subject)}"
    return standing.text


def _summary(out: Page, found: Sequence[Inspection]) -> None:
    """A table, the odd one out, and what failed."""
    out.add(Span(f"{counted(len(found), 'process', 'processes')}", "heading"), _odd_words(found))
    heads = ["rank", "host", "pid", "step", "for rank", "stopped"]
    rows = []
    for one in found:
        first = one.standing[0] if one.standing else None
        rows.append(
            [
                "-" if one.rank is None else str(one.rank),
                one.host,
                str(one.pid),
                "-" if first is None else first.stage,
                "-" if first is None or first.peer is None else str(first.peer),
                _stop(one.stopped),
            ]
        )
    # The last column is a sentence: it is wrapped, not cut.
    lines = fit(heads, rows, out.width - 2 - _SENTENCE)
    indent = max(map(len, lines)) + 2
    odd = _odd(found)
    texts = ["what", *("failed" if not one.threads else _doing(one) for one in found)]
    styles = ["dim", *("error" if not one.threads else "culprit" if one in odd else "" for one in found)]
    for line, text, style in zip(lines, texts, styles, strict=True):
        out.wrap(text, style, indent="  ", hang=" " * (indent + 2), lead=Span(line.ljust(indent), style))
    _failures(out, found, "  ")


def _failures(out: Page, found: Sequence[Inspection], indent: str) -> None:
    """Why processes could not be inspected."""
    for one in found:
        if one.threads:
            continue
        for note in one.notes:
            out.wrap(
                f"{note.what}: {note.remedy}" if note.remedy else note.what,
                indent=indent,
                hang=indent + "  ",
                lead=Span(f"{one.host} {_who(one)}: ", "error"),
            )


def _doing(one: Inspection) -> str:
    if one.standing:
        return _answer(one, one.standing[0]).removeprefix(_who(one) + " ")
    main = next((t for t in one.threads if t.tid == one.pid), one.threads[0])
    return main.waits


def _place(one: Inspection) -> tuple[str, str]:
    """What is compared between processes: the step, or the place of the main thread."""
    if one.standing:
        return one.standing[0].stage, ""
    main = next((t for t in one.threads if t.tid == one.pid), one.threads[0])
    return main.kind, main.waits.partition(";")[0]


def _odd(found: Sequence[Inspection]) -> list[Inspection]:
    """Those that stand elsewhere than most, if they are few."""
    read = [one for one in found if one.threads]
    places = Counter(map(_place, read))
    if len(places) < 2 or len(read) < 3:
        return []
    (most, many), *_ = places.most_common()
    odd = [one for one in read if _place(one) != most]
    return odd if many > len(read) / 2 else []


def _odd_words(found: Sequence[Inspection]) -> Span:
    odd = _odd(found)
    failed = sum(not one.threads for one in found)
    text = f", {failed} could not be inspected" if failed else ""
    if len(odd) == 1:
        return Span(f"{text}: the odd one out is {_who(odd[0])}", "heading")
    if odd:
        return Span(f"{text}: {counted(len(odd), 'process stands', 'processes stand')} elsewhere than most", "heading")
    return Span(text, "heading")


def _process(out: Page, one: Inspection, *, full: bool, single: bool) -> None:
    if one.standing:
        for number, standing in enumerate(one.standing):
            out.wrap(_answer(one, standing), "heading" if number == 0 else "", hang="  ")
            out.wrap(standing.proof, "dim", indent="  ", hang="    ", lead=Span("proof: "))
    else:
        out.wrap(f"{_who(one)}: no frame shows a step of NCCL or libpsm", "heading", hang="  ")
    out.wrap(" ".join(one.command) or "(no command line)", "dim", indent="  ", hang="    ", lead=Span("command: "))
    if single or one.stopped is not None:
        out.wrap(_stopped(one), indent="  ", hang="    ")
    for library in one.libraries:
        version = f" {library.version}" if library.version else ""
        symbols = {"debug": "debug information", "table": "symbols", "none": "no symbols"}[library.symbols]
        out.wrap(f"{library.path}{version}: {symbols}", indent="  ", hang="    ")
    if one.state:
        out.blank()
        out.add(Span("state in memory", "heading"))
        for thing in one.state:
            _object(out, thing, 1)
    out.blank()
    quiet = []
    for thread in sorted(one.threads, key=lambda t: (t.kind == "idle", t.tid != one.pid)):
        if full or thread.kind != "idle":
            _thread(out, thread, full=full)
        else:
            quiet.append(f"{thread.tid} {thread.role}")
    if quiet:
        out.wrap(f"idle: {', '.join(quiet)}", "dim", indent="  ", hang="    ")
    for note in one.notes:
        _note(out, note)


def _stop(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def _stopped(one: Inspection) -> str:
    if one.stopped is None:
        return "the process was not stopped"
    return f"the process was stopped for {_stop(one.stopped)}"


def _thread(out: Page, thread: InspectedThread, *, full: bool) -> None:
    out.wrap(
        f"{thread.role}: {thread.waits}", indent="  ", hang="    ", lead=Span(f"{thread.tid} {thread.name}, ", "place")
    )
    most = len(thread.frames) if full else _SHORT
    for kind, frames in (("", thread.frames), ("python ", thread.python)):
        for number, frame in enumerate(frames[:most]):
            out.cut(f"{kind}#{number:<2} {_frame(frame)}", "dim", indent="      ")
        if len(frames) > most:
            out.add(Span(f"      and {counted(len(frames) - most, 'frame')} more (--full)", "dim"))


def _frame(frame: InspectedFrame) -> str:
    return f"{frame.function}  {frame.where}" if frame.where else frame.function


def _object(out: Page, thing: StateObject, depth: int) -> None:
    words = ", ".join(map(_value, thing.values))
    out.wrap(words or "-", indent="  " * depth, hang="  " * depth + "    ", lead=Span(f"{thing.name}: ", "place"))
    if depth < _DEEP:
        for part in thing.parts:
            _object(out, part, depth + 1)


def _value(value: Value) -> str:
    if value.moving:
        return f"{value.name} {value.before} -> {value.value} (moving)"
    return f"{value.name} {value.value}"


def _note(out: Page, note: Note) -> None:
    out.wrap(
        f"{note.what}: {note.remedy}" if note.remedy else note.what,
        indent="  ",
        hang="    ",
        lead=Span("note: ", "warning"),
    )
