"""The operations of a recording as a timeline and as SVG: for each rank its operations, and what they did on each channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psmkit.model.arrays.whole import np
from psmkit.model.draft import Draft
from psmkit.model.timeline import Axis, Timeline, Unit
from psmkit.model.wording import counted
from psmkit.report import html, svg
from psmkit.report.drawing import duration, size
from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.layout import (
    CE,
    COLL,
    FUNCTIONS,
    KERNEL,
    KERNEL_PHASE,
    P2P,
    PROXY_OP,
    PROXY_STEP,
    ROW,
    member,
    phase_name,
    user_tag,
)
from psmkit.telemetry.take import Array, Take, text, word

__all__ = ["draw", "page", "timeline"]

_OPERATIONS = 4  # the last operations that most ranks have; the first ones show the job's start
_COLL, _P2P, _PROXY_OP, _STEP, _KERNEL, _CE_COLL, _CE_SYNC, _CE_BATCH, _PHASE = 1, 2, 3, 4, 6, 12, 13, 14, 15
_COLLECTIVES = (_COLL, _CE_COLL)
_SENDS = 4
_KINDS = {
    "collective": "collective: call to completion",
    "message": "send or receive: call to completion",
    "given": "collective by copy engine: until the host gave it to the stream",
    "flags": "flags of the ranks: given to the stream",
    "copies": "copies: given to the stream",
    "send": "proxy send",
    "receive": "proxy receive",
    "kernel": "kernel channel",
    "transfer": "step on the network",
}
_OWN = (0, 0, "")  # the lane of a rank's operations


@dataclass(frozen=True, slots=True)
class _Bar:
    lane: tuple[int, int, str]
    kind: str
    begin: int
    end: int  # 0: not known
    label: str


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The last operations of a communicator: the bars of each rank."""

    comm: int
    name: str
    ranks: dict[int, list[_Bar]]


def draw(takes: Sequence[Take], comm: str | None = None) -> str:
    """The last operations that were recorded on most ranks.

    Args:
        takes: takes of a recording.
        comm: hash of the communicator. None: the one with the most rows.

    Raises:
        TelemetryError: no operation has rows.
    """
    found = _recorded(takes, comm, _OPERATIONS)
    operations = [b for bars in found.ranks.values() for b in bars if b.lane == _OWN]
    ranks = counted(len(found.ranks), "rank")
    if operations[0].kind != "message":
        names = sorted({b.label.partition(",")[0] for b in operations}, key=lambda label: int(label.split()[-1]))
        last = names[-1].removeprefix(f"{names[0].split()[0]} ")  # AllReduce 6 to 9
        some = names[0] if len(names) == 1 else f"the last {len(names)} collectives, {names[0]} to {last},"
        title = f"{some[0].upper()}{some[1:]} on {ranks}"
    else:
        title = f"The last sends and receives of {ranks}"
    called = f" ({found.name})" if found.name else ""
    return svg.draw(_timeline(found), title, about=f"Communicator {found.comm:016x}{called}.")


def page(takes: Sequence[Take], comm: str | None = None) -> str:
    """All recorded operations of a communicator as one HTML page. Arguments and errors are those of :func:`draw`."""
    found = _recorded(takes, comm, None)
    called = f" ({found.name})" if found.name else ""
    about = f"Communicator {found.comm:016x}{called}."
    return html.draw(_timeline(found), f"Operations of {counted(len(found.ranks), 'rank')}", about)


def timeline(takes: Sequence[Take], comm: str | None = None) -> Timeline:
    """The timeline of what :func:`draw` draws."""
    return _timeline(_recorded(takes, comm, _OPERATIONS))


def _timeline(found: _Recorded) -> Timeline:
    bars = [bar for own in found.ranks.values() for bar in own]
    first = min(bar.begin for bar in bars)
    last = max(max(bar.begin, bar.end) for bar in bars)
    last += (last - first) // 20  # so that what has just begun can be seen
    draft = Draft(Axis(Unit.SECONDS, "Times count from the begin of the first of these operations.", first / 1e9))
    for kind, label in _KINDS.items():
        if any(bar.kind == kind for bar in bars):
            draft.kind(kind, label, kind, inside=kind == "transfer")
    for rank, own in found.ranks.items():
        parent = draft.track(f"rank {rank}", "rank", rank=rank)
        lanes = {_OWN: parent}
        for lane in sorted({bar.lane for bar in own} - {_OWN}):
            lanes[lane] = draft.track(lane[2], "channel", parent, rank)
        for bar in own:
            begin, end = (bar.begin - first) / 1e9, ((bar.end or last) - first) / 1e9
            draft.span(lanes[bar.lane], begin, end, draft.kind(bar.kind, "", ""), bar.label, open=not bar.end)
    return draft.timeline()


def _recorded(takes: Sequence[Take], comm: str | None, most: int | None) -> _Recorded:
    """The last ``most`` operations of a communicator, or all."""
    found = _rows(takes)
    counts = {h: sum(map(len, found[h].values())) for h in found}
    wanted = (
        int(comm, 16) if comm is not None and _is_hash(comm) else max(counts, key=lambda h: counts[h], default=None)
    )
    if wanted not in found:
        raise TelemetryError(f"no rows of operations{f' of communicator {comm}' if comm else ''} were recorded")
    names = [text(c["name"]) for take in takes for c in take.comms if int(c["comm_hash"]) == wanted]
    ranks = {rank: list(_bars(rows, tops)) for rank, rows, tops in _last(found[wanted], most) if len(tops)}
    if not ranks:
        raise TelemetryError("no collective, send or receive was recorded")
    return _Recorded(wanted, names[0] if names else "", ranks)


def _is_hash(text_: str) -> bool:
    try:
        int(text_, 16)
    except ValueError:
        raise TelemetryError(f"bad communicator {text_!r}, expected its hash in hexadecimal") from None
    return True


def _rows(takes: Sequence[Take]) -> dict[int, dict[int, Array]]:
    """Communicator -> rank -> its rows without duplicates, with times of the epoch."""
    parts: dict[int, dict[int, list[tuple[Array, int]]]] = {}
    for take in takes:
        for comm in take.comms:
            number = int(comm["id"])
            # Makes the times of all ranks comparable across hosts.
            offset = take.epoch(number, 0) or take.wall_ns - take.clock_ns
            own = parts.setdefault(int(comm["comm_hash"]), {}).setdefault(int(comm["rank"]), [])
            # What a later take says about an event counts, and at last what is still open.
            for rows in (take.open_rows, take.rows, take.spans):
                mine = rows[rows["comm"] == number]
                if len(mine):
                    own.insert(0, (mine, offset))
    return {
        h: {r: _once(found) for r, found in ranks.items() if found} for h, ranks in parts.items() if any(ranks.values())
    }


def _once(parts: Sequence[tuple[Array, int]]) -> Array:
    rows = np.concatenate([rows for rows, _ in parts])
    offsets = np.repeat(np.array([offset for _, offset in parts], np.int64), [len(rows) for rows, _ in parts])
    _, first = np.unique(rows[["handle", "start_ns"]], return_index=True)
    first = np.sort(first)
    return _shifted(rows[first], offsets[first].astype(np.uint64))


def _shifted(rows: Array, offsets: Array) -> Array:
    """The rows with their times, also that of a step's transfer, plus the offset of each."""
    rows["start_ns"] += offsets
    rows["begin_ns"] += offsets
    ends = rows["end_ns"]
    ends[ends > 0] += offsets[ends > 0]
    at = np.flatnonzero(rows["event"]["type"] == _STEP)
    if len(at):
        inside = member(rows[at], PROXY_STEP)
        known = inside["net_ns"] > 0
        inside["net_ns"][known] += offsets[at][known]
        rows["event"]["u"][at] = inside.view("u1").reshape(len(at), 80)
    return rows


def _last(ranks: dict[int, Array], last: int | None) -> Iterator[tuple[int, Array, Array]]:
    """Each rank, its rows, and those of the last operations: by sequence number those that most ranks have, else the latest of each rank.

    Without a limit these are all operations of each rank.
    """
    if last is None:
        for rank, rows in sorted(ranks.items()):
            tops = rows[np.isin(rows["event"]["type"], (*_COLLECTIVES, _P2P))]
            yield rank, rows, tops[np.argsort(tops["start_ns"])]
        return
    # NCCL counts the collectives of copy engines on their own
    ranks_of: Counter[tuple[int, int]] = Counter()
    begins: dict[tuple[int, int], int] = {}
    for rows in ranks.values():
        for kind, at, numbers in _numbers(rows):
            found = dict(zip(numbers.tolist(), rows["start_ns"][at].tolist(), strict=True))
            for number, begin in found.items():
                ranks_of[kind, number] += 1
                begins[kind, number] = min(begin, begins.get((kind, number), begin))
    most = max(ranks_of.values(), default=0)
    common = [key for key in begins if ranks_of[key] == most]
    kept = set(sorted(common, key=lambda key: (begins[key], key))[-last:])
    for rank, rows in sorted(ranks.items()):
        if not kept:
            tops = rows[rows["event"]["type"] == _P2P]
            yield rank, rows, tops[np.argsort(tops["start_ns"])][-last:]
            continue
        chosen = np.zeros(len(rows), bool)
        for kind, at, numbers in _numbers(rows):
            chosen[at] = np.isin(numbers, [number for of, number in kept if of == kind])
        yield rank, rows, rows[chosen]


def _numbers(rows: Array) -> Iterator[tuple[int, Array, Array]]:
    """The collectives of a rank by their type: their places, and their numbers within the communicator, which all ranks give them."""
    for kind, layout in ((_COLL, COLL), (_CE_COLL, CE)):
        at = np.flatnonzero(rows["event"]["type"] == kind)
        if len(at):
            yield kind, at, member(rows[at], layout)["seq"]


def _bars(rows: Array, tops: Array) -> Iterator[_Bar]:
    """An operation of a rank, with what belongs to it."""
    for top in tops:
        type_ = int(top["event"]["type"])
        u = member(np.array([top], ROW), {_COLL: COLL, _P2P: P2P, _CE_COLL: CE}[type_])[0]
        name = word(FUNCTIONS, int(u["func"]), "operation")
        peer = f"{'to' if name == 'Send' else 'from'} {int(u['peer'])}" if type_ == _P2P else ""
        tag = user_tag(top["event"])[0]
        engine = ", copy engine" if type_ == _CE_COLL else ""
        label = f"{name} {peer or int(u['seq'])}{engine}" + (f", tag {tag}" if tag else "")
        # only where NCCL reports it is the end of the copies known
        given = type_ == _CE_COLL and not u["end_ns"]
        kind = "message" if type_ == _P2P else "given" if given else "collective"
        yield _Bar(_OWN, kind, int(top["begin_ns"]), int(top["end_ns"]), label)
    yield from _engine(rows, tops[tops["event"]["type"] == _CE_COLL]["handle"].tolist())
    channels: dict[int, int] = {}
    for op, u in _children(rows, _PROXY_OP, tops["handle"].tolist(), PROXY_OP):
        channel = channels[int(op["handle"])] = int(u["channel"])
        side = _side(op)
        label = f"{'to' if side == 'send' else 'from'} {int(u['peer'])}, {counted(int(u['steps']), 'step')}, {size(int(u['bytes']))}"
        yield _Bar((1, channel, f"ch {channel} {side}"), side, int(op["begin_ns"]), int(op["end_ns"]), label)
    for step, u in _children(rows, _STEP, list(channels), PROXY_STEP):
        channel = channels[int(step["event"]["parent"])]
        begin = int(u["net_ns"]) or int(step["begin_ns"])
        label = f"step {int(u['step'])}, {size(int(u['bytes']))}"
        yield _Bar((1, channel, f"ch {channel} {_side(step)}"), "transfer", begin, int(step["end_ns"]), label)
    kernels = list(_children(rows, _KERNEL, tops["handle"].tolist(), KERNEL))
    phases = _phases(rows, [int(kernel["handle"]) for kernel, _ in kernels])
    for kernel, u in kernels:
        lane = (2, int(u["channel"]), f"ch {int(u['channel'])} kernel")
        label = ", ".join(phases[int(kernel["handle"])])
        yield _Bar(lane, "kernel", int(kernel["begin_ns"]), int(kernel["end_ns"]), label)


def _engine(rows: Array, parents: Sequence[int]) -> Iterator[_Bar]:
    """What collectives gave to the stream of the copy engine: waits for flags, and copies."""
    lane = (0, 1, "copy engine")
    for row, u in _children(rows, _CE_SYNC, parents, CE):
        label = f"{'complete' if u['complete'] else 'ready'} flags of {counted(int(u['ops']), 'rank')}"
        yield _Bar(lane, "flags", int(row["begin_ns"]), int(row["end_ns"]), label)
    for row, u in _children(rows, _CE_BATCH, parents, CE):
        copies = counted(int(u["ops"]), "copy", "copies")
        yield _Bar(lane, "copies", int(row["begin_ns"]), int(row["end_ns"]), f"{copies}, {size(int(u['bytes']))}")


def _side(row: Array) -> str:
    return "send" if int(row["event"]["flags"]) & _SENDS else "receive"


def _children(
    rows: Array, kind: int, parents: Sequence[int], layout: np.dtype[np.void]
) -> Iterator[tuple[Array, Array]]:
    """Rows of a kind below some handles, each with its member of the union."""
    found = rows[(rows["event"]["type"] == kind) & np.isin(rows["event"]["parent"], np.array(parents, np.uint64))]
    yield from zip(found, member(found, layout) if len(found) else found, strict=True)


def _phases(rows: Array, kernels: Sequence[int]) -> dict[int, list[str]]:
    """For each kernel how long its phases took by the GPU's timer, in their order."""
    out: dict[int, list[str]] = {handle: [] for handle in kernels}
    for row, u in _children(rows, _PHASE, kernels, KERNEL_PHASE):
        took = int(u["gpu_end_ns"]) - int(u["gpu_begin_ns"])
        if u["gpu_begin_ns"] and took >= 0:
            out[int(row["event"]["parent"])].append(f"{phase_name(u)} {duration(took / 1e9)}")
    return out
