"""The scan of inputs, which refuses inputs without a line that psmkit can judge."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from psmkit import logparse
from psmkit.catalogue import load
from psmkit.logparse import ScanResult
from psmkit.logparse.types import Ref
from psmkit.model.errors import NothingToAnalyse
from psmkit.model.wording import counted

__all__ = ["scanned"]

#: How many characters of a line are shown if it is not from a log of NCCL.
_QUOTED = 80
#: How many files, and lines of each, are searched for torch's own lines if psmkit knows no line.
_LOOKED_FILES, _LOOKED_LINES = 8, 200


@contextmanager
def scanned(
    paths: Iterable[str | os.PathLike[str]],
    *,
    catalogue: Sequence[str | os.PathLike[str]] | None = None,
    keep_calls: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[ScanResult]:
    """The scan of ``paths`` with at least one line to judge; the arguments are those of :func:`psmkit.logparse.scan`.

    Raises:
        InputError: a path does not exist or cannot be read.
        NothingToAnalyse: no line of the input is NCCL's or known to psmkit.
        CatalogueError: a TOML file is invalid.
    """
    with (
        _uncollected(),
        logparse.scan(paths, catalogue=catalogue, keep_calls=keep_calls, progress=progress) as result,
    ):
        _check(result)
        yield result


@contextmanager
def _uncollected() -> Iterator[None]:
    """Do not look for unreachable objects: the tables of a scan only grow, and each search passes all of them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _check(result: ScanResult) -> None:
    if not result.totals.matched and not result.totals.unmatched and not result.foreign and not _of_torch(result):
        names = ", ".join(f.path for f in result.files[:3]) or "the input"
        damage = "".join(f" ({note})" for note in result.notes[:3])
        raise NothingToAnalyse(
            f"no NCCL line in {names}: {_instead(result)}{damage}. "
            "Give a log made with NCCL_DEBUG=INFO, or the folder PSM_RECORD_DIR of a program that ran over psmkit's libraries "
            "(see 'psmkit analyze --help' for other inputs)."
        )


def _of_torch(result: ScanResult) -> bool:
    """Whether torch's process group or its store printed one of the first lines of a file: the log is known, and its words are not."""
    known = result.catalogue or load()
    for at, file in enumerate(result.files[:_LOOKED_FILES]):
        ref: Ref | None = Ref(at, 1, 0) if file.lines else None
        for _ in range(_LOOKED_LINES):
            if ref is None:
                break
            if known.phrase("a line of torch", result.evidence(ref).text) is not None:
                return True
            ref = result.below(ref)
    return False


def _instead(result: ScanResult) -> str:
    """What the input holds instead of a log of NCCL."""
    total = result.totals.lines
    if not total:
        return "it is empty" if len(result.files) == 1 else "nothing was read"
    first = next((at for at, file in enumerate(result.files) if file.lines), 0)
    text = " ".join(result.evidence(Ref(first, 1, 0)).text.split())
    if len(text) > _QUOTED:
        text = text[: _QUOTED - 1] + "\N{HORIZONTAL ELLIPSIS}"
    lines = f"{counted(total, 'line')} read, none of a kind that psmkit knows"
    return f"{lines}; {'it says' if total == 1 else 'the first says'} {text!r}" if text else lines
