"""The operations that NCCL's profiler events show: windows in a folder of records, or a recording of `psmkit telemetry`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from psmkit.model.arrays.whole import np
from psmkit.model.wording import counted
from psmkit.plan.types import Func
from psmkit.reproduce.found import MOST_RANKS, Found
from psmkit.reproduce.logs import CALLS
from psmkit.reproduce.operations import GATHER, OP, SCATTER, Comm
from psmkit.telemetry.layout import CE, COLL, FUNCTIONS, P2P, member
from psmkit.telemetry.take import Array, Take

__all__ = ["is_recording", "read", "windows"]

_TYPES = 12
_ROOTED = {int(Func.BROADCAST), int(Func.REDUCE), GATHER, SCATTER}

_MOST_ROWS = 20_000_000


def is_recording(path: str) -> bool:
    """Whether a file is a recording: Parquet, or an Arrow stream."""
    try:
        with open(path, "rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return False
    return head[:4] == b"PAR1" or (head[:4] == b"\xff\xff\xff\xff" and b"psmkit.recording" in head)


def windows(folder: str) -> Iterator[Take]:
    """What the windows of a folder hold now; they stay for their consumer."""
    from psmkit.telemetry.reader import Reader

    with Reader(folder, consume=False) as reader:
        reader.set(rows=_MOST_ROWS)
        reader.poll(True)
        take = Take(0, 0, comms=reader.comms())
        take.rows, take.rows_dropped = reader.take_rows()
        take.open_rows = reader.open_now()
        yield take


def folders(paths: Sequence[str]) -> list[str]:
    """The folders among inputs, and those of files, that hold records of the profiler."""
    found = dict.fromkeys(str(p if p.is_dir() else p.parent) for p in map(Path, paths))
    inside = {str(path.parent) for folder in found for path in Path(folder).rglob("*.rec")}
    return sorted(folder for folder in inside if any(_has_windows(path) for path in Path(folder).glob("*.rec")))


def _has_windows(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"psm.prof.events" in file.read(4096)
    except OSError:
        return False


def read(takes: Iterable[tuple[str, Take]], known: int | None = None) -> Found | None:
    """The calls among the events of takes.

    Args:
        takes: the input of each, and the take; oldest first.
        known: ranks of the job, if something else tells it.

    Returns:
        None: there is no event of a call.
    """
    out = Found("profile")
    calls: dict[tuple[int, int], dict[tuple[int, int], tuple[int, tuple[int, ...]]]] = defaultdict(dict)
    comms: dict[int, int] = {}  # ranks of a communicator, by its hash
    own: dict[tuple[int, int], tuple[str, int]] = {}  # the process of a rank of a communicator
    left, lost = 0, 0
    for path, take in takes:
        of = {int(c["id"]): c for c in take.comms}
        lost += int(take.rows_dropped) + sum(int(c[n]) for c in take.comms for n in ("dropped_full", "overwritten"))
        for rows in (take.spans, take.rows, take.open_rows):
            for layout, row, u in _events(rows):
                comm = of.get(int(row["comm"]))
                if comm is None or not 0 <= int(comm["rank"]) < int(comm["nranks"]) <= MOST_RANKS:
                    continue
                made = _row(layout, u, int(comm["nranks"]))
                left += made is None
                if made is None:
                    continue
                number, rank = int(comm["comm_hash"]), int(comm["rank"])
                comms[number] = int(comm["nranks"])
                own[number, rank] = (bytes(comm["host"]).split(b"\0")[0].decode("utf-8", "replace"), int(comm["pid"]))
                group = int(u["group"]) if layout is not CE else 0
                calls[number, rank][int(row["handle"]), int(row["start_ns"])] = (group, made)
        if path not in out.files:
            out.files.append(path)
    if not calls:
        return None
    _place(out, comms, own, known)
    index = {number: at for at, number in enumerate(comms)}
    by_rank: dict[int, list[tuple[int, int, int, tuple[int, ...]]]] = defaultdict(list)
    for (number, rank), found in calls.items():
        at = index[number]
        for (_, start), (group, made) in found.items():
            by_rank[out.comms[at].ranks[rank]].append((start, at, group, made))
    for rank, ours in by_rank.items():
        ours.sort(key=lambda call: call[0])
        groups: dict[tuple[int, int], int] = {}
        counts = [
            groups.setdefault((at, group), len(groups)) if group else len(groups) + (1 << 40) + place
            for place, (_, at, group, _) in enumerate(ours)
        ]
        rows = np.array([(at, *made) for _, at, _, made in ours], dtype=OP)
        out.builder.add(rank, rows, np.array(counts, dtype=np.int64))
        out.seen.add(rank)
    out.guesses.append("events of the profiler show no operator: sum was taken")
    if lost:
        out.guesses.append(f"the profiler lost {counted(lost, 'event')}: the operations among them are missing here")
    if left:
        out.guesses.append(f"{counted(left, 'event')} left out: no task stands for the call, or its type is unknown")
    return out


def _events(rows: Array) -> Iterator[tuple[Any, Any, Any]]:
    """The events of calls, each with its member of the union."""
    for number, layout in ((1, COLL), (2, P2P), (12, CE)):
        mine = rows[rows["event"]["type"] == number]
        for row, u in zip(mine, member(mine, layout), strict=True):
            yield layout, row, u


def _row(layout: Any, u: Any, ranks: int) -> tuple[int, ...] | None:
    name = FUNCTIONS[int(u["func"])] if int(u["func"]) < len(FUNCTIONS) else ""
    func, kind, count = CALLS.get(name), int(u["datatype"]), int(u["count"])
    if func is None or kind >= _TYPES or not 0 < count < 1 << 44:
        return None
    peer = int(u["peer"]) if layout is P2P else int(u["root"]) if func in _ROOTED else 0
    if not 0 <= peer < ranks:
        return None
    return 0, func, kind, 0, 0, peer, count


def _place(out: Found, comms: dict[int, int], own: dict[tuple[int, int], tuple[str, int]], known: int | None) -> None:
    """The ranks of the job: those of the largest communicator, to which processes belong once."""
    world = max(comms, key=lambda number: comms[number])
    out.ranks = max(known or 0, comms[world])
    ranks = {process: rank for (number, rank), process in own.items() if number == world}
    for number, size in comms.items():
        name = f"0x{number:x}"
        if size == out.ranks:
            out.comms.append(Comm(name, tuple(range(size))))
            continue
        ours = {r: ranks[own[number, r]] for r in range(size) if own.get((number, r)) in ranks}
        if len(ours) < size:
            out.guesses.append(
                f"communicator {name}: no event shows which ranks of the job all of its ranks are: the lowest were taken"
            )
        free = iter([r for r in range(out.ranks) if r not in set(ours.values())])
        out.comms.append(Comm(name, tuple(ours[r] if r in ours else next(free) for r in range(size))))
