"""The scan of inputs, which refuses inputs without a line that psmkit can judge."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from psmkit import logparse
from psmkit.logparse import ScanResult
from psmkit.logparse.formats import document
from psmkit.logparse.types import Ref
from psmkit.model.errors import InputError, NothingToAnalyse
from psmkit.model.wording import counted

__all__ = ["Engine", "check", "kept", "readable_twice", "scanned", "uncollected"]

_T = TypeVar("_T")
#: A function as :func:`psmkit.logparse.scan`.
Engine = Callable[..., ScanResult]
#: How many characters of a line are shown if it is not from a log of NCCL.
_QUOTED = 80
#: How many files, lines and characters of each are looked at if psmkit knows no line.
_LOOKED_FILES, _LOOKED_LINES = 8, 200
_LOOKED_TEXT = 1 << 18


def readable_twice(paths: Iterable[str | os.PathLike[str]], what: str) -> list[str]:
    """The names of inputs for ``what``, which reads them twice.

    Raises:
        InputError: one is standard input or a pipe.
    """
    names = [os.fspath(path) for path in paths]
    for name in names:
        if name == "-" or (os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name))):
            raise InputError(name, f"{what} needs its input twice, and this can be read only once: write it to a file")
    return names


@contextmanager
def scanned(
    paths: Iterable[str | os.PathLike[str]],
    *,
    catalogue: Sequence[str | os.PathLike[str]] | None = None,
    keep_calls: bool = False,
    any_log: bool = False,
    progress: Callable[[int, int], None] | None = None,
    engine: Engine | None = None,
    jobs: int | None = None,
) -> Iterator[ScanResult]:
    """The scan of ``paths`` with at least one line to judge; the arguments are those of :func:`psmkit.logparse.scan`.

    ``any_log`` also accepts a log of another program, of which psmkit knows no line. ``engine`` is what reads the logs.

    Raises:
        InputError: a path does not exist or cannot be read.
        NothingToAnalyse: no line of the input is NCCL's or known to psmkit, or with ``any_log``: the input is no log.
        CatalogueError: a TOML file is invalid.
    """
    with (
        uncollected(),
        (engine or functools.partial(logparse.scan, jobs=jobs))(
            paths, catalogue=catalogue, keep_calls=keep_calls, progress=progress
        ) as result,
    ):
        check(result, any_log=any_log)
        yield result


def check(result: ScanResult, *, any_log: bool = False) -> None:
    """Refuse a scan without a line to judge; the arguments and errors are those of :func:`scanned`."""
    commands = len(result.events.rows(["shell.command"]))  # a script has such lines, too
    if not (result.totals.matched > commands or result.totals.unmatched or result.foreign):
        _check(result, any_log)


@contextmanager
def uncollected(*, last: bool = False) -> Iterator[None]:
    """Do not look for unreachable objects: the tables of a scan only grow, and each search passes all of them.

    ``last``: the program ends after it. What was made then waits for a search of all objects, which a program that goes on may not reach for long.
    So does what was :func:`kept`.
    """
    was = gc.isenabled()
    gc.disable()
    if last:
        _last.append([])
        _last[-1].append(_last[-1])  # a circle, which no count of references frees
    try:
        yield
    finally:
        if last:
            _last.pop()
        if was and last:
            gc.freeze()  # to the oldest objects, in place of a search through them
            gc.unfreeze()
        if was:
            gc.enable()


_last: list[list[object]] = []


def kept(made: _T) -> _T:
    """What the last work of a program makes of a scan: it is not taken apart object by object before the process ends."""
    if _last:
        _last[-1].append(made)
    return made


def _check(result: ScanResult, any_log: bool) -> None:
    """Refuse an input without a line that psmkit knows, unless it is a log whose words may be new."""
    heads = [_head(result, at) for at in range(min(len(result.files), _LOOKED_FILES))]
    if _of_a_job(result, heads):
        return
    logs = [lines for lines in heads if document("\n".join(lines)) is None]
    if any_log and any(logs):
        return
    names = ", ".join(f.path for f in result.files[:3]) or "the input"
    damage = "".join(f" ({note})" for note in result.notes[:3])
    raise NothingToAnalyse(
        f"no NCCL line in {names}: {_instead(result, heads)}{damage}. "
        "Give a log made with NCCL_DEBUG=INFO, or the folder PSM_RECORD_DIR of a program that ran over psmkit's libraries "
        "(see 'psmkit analyze --help' for other inputs)."
    )


def _head(result: ScanResult, at: int) -> list[str]:
    """The first lines of a file, without blank ones."""
    lines: list[str] = []
    room = _LOOKED_TEXT
    ref: Ref | None = Ref(at, 1, 0) if result.files[at].lines else None
    for _ in range(_LOOKED_LINES):
        if ref is None or room < 0:
            break
        text = result.text(ref)
        room -= len(text)
        if text.strip():
            lines.append(text)
        ref = result.below(ref)
    return lines


def _of_a_job(result: ScanResult, heads: Sequence[Sequence[str]]) -> bool:
    """Whether torch's process group or its store printed one of these lines, or they tell of an error of collectives: their words are new."""
    known = result.catalogue
    if known is None:
        return False
    lines = [text for head in heads for text in head]
    if any(known.phrase("a line of torch", text) is not None for text in lines):
        return True
    failed = any(known.phrase("a word of an error", text) is not None for text in lines)
    return failed and any(known.phrase("a line about collectives", text) is not None for text in lines)


def _instead(result: ScanResult, heads: Sequence[Sequence[str]]) -> str:
    """What the input holds instead of a log of NCCL."""
    total = result.totals.lines
    if not total:
        return "it is empty" if len(result.files) == 1 else "nothing was read"
    if len(heads) == 1 and (kind := document("\n".join(heads[0]))) is not None:
        return f"it is {kind}"
    first = next((at for at, file in enumerate(result.files) if file.lines), 0)
    text = " ".join(result.evidence(Ref(first, 1, 0)).text.split())
    if len(text) > _QUOTED:
        text = text[: _QUOTED - 1] + "\N{HORIZONTAL ELLIPSIS}"
    lines = f"{counted(total, 'line')} read, none of a kind that psmkit knows"
    return f"{lines}; {'it says' if total == 1 else 'the first says'} {text!r}" if text else lines
