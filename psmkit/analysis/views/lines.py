"""All lines that the catalogue knows, as columns: the raw material of a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from psmkit.analysis.facts.clock import seconds
from psmkit.logparse.batches import EventBatch
from psmkit.logparse.types import Ref
from psmkit.model.arrays.whole import np, npt
from psmkit.model.late import dataclass

__all__ = ["MOST", "Lines", "gather"]

#: A picture of more lines has no room for them; the others are counted.
MOST = 2_000_000

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lines:
    """Columns of one length, in the reading order of each stream: a message indexes ``names``, a time is in seconds or not a number.

    ``dated`` says whether the times count from 1970 or from midnight. ``values`` has fields of the messages that were asked for: name -> (lines, columns).
    ``dropped`` counts lines beyond :data:`MOST`.
    """

    names: Sequence[str]
    message: _Ints
    proc: _Ints
    thread: _Ints
    device: _Ints
    stream: _Ints
    seq: _Ints
    file: _Ints
    line: _Ints
    time: npt.NDArray[np.float64]
    dated: bool
    dropped: int
    values: Mapping[str, tuple[_Ints, Mapping[str, Sequence[Any]]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.message)

    def of(self, *names: str) -> _Ints:
        """The lines of these messages, in order."""
        wanted = [at for at, name in enumerate(self.names) if name in names]
        return np.flatnonzero(np.isin(self.message, wanted))

    def find(self, refs: Iterable[Ref | None]) -> list[int]:
        """The index of each line, -1 for one that is not here."""
        key = self.file * (1 << 40) + self.line
        order = np.argsort(key, kind="stable")
        wanted = np.array([-1 if ref is None else ref.file * (1 << 40) + ref.line for ref in refs], dtype=np.int64)
        if not len(key) or not len(wanted):
            return [-1] * len(wanted)
        at = np.minimum(np.searchsorted(key[order], wanted), len(key) - 1)
        found = np.where(key[order][at] == wanted, order[at], -1)
        return [int(line) for line in found]


def gather(batches: Iterable[EventBatch], fields: Mapping[str, Sequence[str]]) -> Lines:
    """The columns of all batches; ``fields`` are the fields to keep of some messages."""
    names: Sequence[str] = ()
    parts: dict[str, list[npt.NDArray[Any]]] = {
        n: [] for n in ("message", "proc", "thread", "device", "stream", "seq", "file", "line")
    }
    times: list[npt.NDArray[np.float64]] = []
    kept: dict[str, tuple[list[_Ints], dict[str, list[Any]]]] = {}
    dated: set[bool] = set()
    total = dropped = 0
    for batch in batches:
        names = batch.names
        room = max(MOST - total, 0)
        dropped += max(len(batch) - room, 0)
        if not room:
            continue
        for column, found in parts.items():
            found.append(np.asarray(getattr(batch, column))[:room].astype(np.int64))
        times.append(_seconds(batch.time[:room], dated))
        for name, wanted in fields.items():
            if name not in names:
                continue
            selected = batch.select(name)
            rows = selected["row"]
            near = int(np.searchsorted(rows, room))
            lines, columns = kept.setdefault(name, ([], {field: [] for field in wanted}))
            lines.append(rows[:near].astype(np.int64) + total)
            for name_ in wanted:
                columns[name_] += list(selected[name_][:near])
        total += min(len(batch), room)
    joined = {name: np.concatenate(found) if found else np.zeros(0, np.int64) for name, found in parts.items()}
    # the reading order of each stream: chunks of streams alternate
    order = np.lexsort((joined["seq"], joined["stream"]))
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    time = np.concatenate(times) if times else np.zeros(0)
    values: dict[str, tuple[_Ints, Mapping[str, Sequence[Any]]]] = {
        name: (back[np.concatenate(lines)] if lines else np.zeros(0, np.int64), columns)
        for name, (lines, columns) in kept.items()
    }
    return Lines(
        names=names,
        time=time[order] if len(dated) < 2 else np.full(len(order), np.nan),
        dated=dated == {True},
        dropped=dropped,
        values=values,
        **{name: column[order] for name, column in joined.items()},
    )


def _seconds(texts: Sequence[str | None], dated: set[bool]) -> npt.NDArray[np.float64]:
    out = np.full(len(texts), np.nan)
    known: dict[str, float] = {}
    for at, text in enumerate(texts):
        if text is None:
            continue
        if text not in known:
            found = seconds(text)
            known[text] = np.nan if found is None else found[0]
            if found is not None:
                dated.add(found[1])
        out[at] = known[text]
    return out
