"""Draw the operations of a recording on a time axis as one SVG: a band for each rank, self-contained, with labels so that it is readable without colour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.layout import (
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

__all__ = ["timeline"]

_WIDTH, _LEFT, _RIGHT, _TOP = 1000, 130, 16, 62
_LANE, _GAP, _CUT = 15, 16, 14
_OPERATIONS = 4  # the last operations that most ranks have; the first ones show the job's start
_KINDS = {
    "operation": ("#3b6fb6", "collective, send or receive: call to completion"),
    "send": ("#c2543c", "proxy send"),
    "receive": ("#2f8f5b", "proxy receive"),
    "kernel": ("#8a5ab5", "kernel channel"),
    "transfer": ("#b8862b", "step on the network"),
}
_SENDS = 4


@dataclass(frozen=True, slots=True)
class _Bar:
    rank: int
    lane: tuple[int, int, str]
    kind: str
    begin: int
    end: int
    label: str
    title: str


def timeline(takes: Sequence[Take], comm: str | None = None) -> str:
    """Draw the last operations that were recorded on most ranks.

    Args:
        takes: takes of a recording.
        comm: hash of the communicator. None: the one with the most rows.

    Raises:
        TelemetryError: no operation has rows.
    """
    found = _rows(takes)
    counts = {h: sum(map(len, found[h].values())) for h in found}
    wanted = (
        int(comm, 16) if comm is not None and _is_hash(comm) else max(counts, key=lambda h: counts[h], default=None)
    )
    if wanted not in found:
        raise TelemetryError(f"no rows of operations{f' of communicator {comm}' if comm else ''} were recorded")
    ranks = found[wanted]
    bars = _bars(ranks)
    if not bars:
        raise TelemetryError("no completed operation was recorded")
    names = [text(c["name"]) for take in takes for c in take.comms if int(c["comm_hash"]) == wanted]
    return _draw(bars, f"communicator {wanted:016x}" + (f" ({names[0]})" if names and names[0] else ""))


def _is_hash(text_: str) -> bool:
    try:
        int(text_, 16)
    except ValueError:
        raise TelemetryError(f"bad communicator {text_!r}, expected its hash in hexadecimal") from None
    return True


def _rows(takes: Sequence[Take]) -> dict[int, dict[int, Array]]:
    """Communicator -> rank -> its rows without duplicates, with times of the epoch."""
    parts: dict[int, dict[int, list[Array]]] = {}
    for take in takes:
        for comm in take.comms:
            number = int(comm["id"])
            for rows in (take.spans, take.rows):
                mine = rows[rows["comm"] == number].copy()
                if len(mine):
                    # Makes the times of all ranks comparable across hosts.
                    offset = take.epoch(number, 0) or take.wall_ns - take.clock_ns
                    mine["root"] = 0
                    mine["why"] = 0
                    mine["start_ns"] += np.uint64(offset)
                    stops = mine["event"]["stop_ns"]
                    stops[stops > 0] += np.uint64(offset)
                    parts.setdefault(int(comm["comm_hash"]), {}).setdefault(int(comm["rank"]), []).append(
                        _shift(mine, offset)
                    )
    return {h: {r: _once(a) for r, a in ranks.items()} for h, ranks in parts.items()}


def _shift(rows: Array, offset: int) -> Array:
    """Convert the times inside the unions too."""
    for kind, layout, columns in ((1, COLL, ("done_ns",)), (2, P2P, ("done_ns",)), (4, PROXY_STEP, ("net_ns",))):
        at = np.flatnonzero(rows["event"]["type"] == kind)
        if len(at):
            # Not .copy(), which would drop the bytes between members: the tag is among them.
            inside = member(rows[at], layout)
            for column in columns:
                inside[column][inside[column] > 0] += np.uint64(offset)
            rows["event"]["u"][at] = inside.view("u1").reshape(len(at), 80)
    return rows


def _once(parts: list[Array]) -> Array:
    rows = np.concatenate(parts) if parts else np.empty(0, ROW)
    _, first = np.unique(rows[["handle", "start_ns"]], return_index=True)
    return rows[np.sort(first)]


def _bars(ranks: dict[int, Array]) -> list[_Bar]:
    """The bars of the last operations: by sequence number those that most ranks have, else the latest of each rank."""
    sequences: dict[int, int] = {}
    for rows in ranks.values():
        colls = rows[rows["event"]["type"] == 1]
        for seq in set(member(colls, COLL)["seq"].tolist()) if len(colls) else ():
            sequences[seq] = sequences.get(seq, 0) + 1
    most = max(sequences.values(), default=0)
    chosen = sorted(seq for seq, n in sequences.items() if n == most)[-_OPERATIONS:]
    out = []
    for rank, rows in sorted(ranks.items()):
        tops = _tops(rows, set(chosen))
        out += _rank(rank, rows, tops)
    return out


def _tops(rows: Array, chosen: set[int]) -> Array:
    kinds = rows["event"]["type"]
    tops: Array = rows[kinds == (1 if chosen else 2)]
    if not chosen:
        return tops[np.argsort(tops["start_ns"])][-_OPERATIONS:]
    return tops[np.isin(member(tops, COLL)["seq"], list(chosen))] if len(tops) else tops


def _rank(rank: int, rows: Array, tops: Array) -> list[_Bar]:
    out: list[_Bar] = []
    inside = {int(h) for h in tops["handle"]}
    for top in tops:
        u = member(np.array([top], ROW), COLL if top["event"]["type"] == 1 else P2P)[0]
        end = int(u["done_ns"]) or int(top["event"]["stop_ns"])
        name = word(FUNCTIONS, int(u["func"]), "operation")
        label = f"{name} {int(u['seq'])}" if top["event"]["type"] == 1 else f"{name} {int(u['peer'])}"
        # A send and a receive in one group overlap.
        lane = (0, 0, "") if top["event"]["type"] == 1 else (0, int(u["func"]), name)
        tag = user_tag(top["event"])[0]
        title = f"{label}, tag {tag}" if tag else label
        out.append(_bar(rank, lane, "operation", int(top["start_ns"]), end, label, title))
    ops = rows[(rows["event"]["type"] == 3) & np.isin(rows["event"]["parent"], list(inside))]
    channels: dict[int, int] = {}
    if len(ops):
        for op, u in zip(ops, member(ops, PROXY_OP), strict=True):
            side = "send" if int(op["event"]["flags"]) & _SENDS else "receive"
            channel = channels[int(op["handle"])] = int(u["channel"])
            peer = f"{'to' if side == 'send' else 'from'} {int(u['peer'])}"
            title = f"proxy {side} {peer}, channel {channel}, {int(u['steps'])} steps, {int(u['bytes'])} bytes"
            lane = (1, channel, f"ch {channel} {side}")
            out.append(_bar(rank, lane, side, int(op["start_ns"]), int(op["event"]["stop_ns"]), peer, title))
    steps = rows[(rows["event"]["type"] == 4) & np.isin(rows["event"]["parent"], list(channels))]
    if len(steps):
        for step, u in zip(steps, member(steps, PROXY_STEP), strict=True):
            side = "send" if int(step["event"]["flags"]) & _SENDS else "receive"
            channel = channels[int(step["event"]["parent"])]
            begin = int(u["net_ns"]) or int(step["start_ns"])
            title = f"step {int(u['step'])}, {int(u['bytes'])} bytes"
            lane = (1, channel, f"ch {channel} {side}")
            out.append(_bar(rank, lane, "transfer", begin, int(step["event"]["stop_ns"]), "", title))
    kernels = rows[(rows["event"]["type"] == 6) & np.isin(rows["event"]["parent"], list(inside))]
    phases = _phases(rows, kernels)
    if len(kernels):
        for kernel, u in zip(kernels, member(kernels, KERNEL), strict=True):
            channel = int(u["channel"])
            lane = (2, channel, f"ch {channel} kernel")
            out.append(
                _bar(
                    rank,
                    lane,
                    "kernel",
                    int(kernel["start_ns"]),
                    int(kernel["event"]["stop_ns"]),
                    "",
                    ", ".join([lane[2], *phases[int(kernel["handle"])]]),
                )
            )
    return [bar for bar in out if bar.end > 0]


def _phases(rows: Array, kernels: Array) -> dict[int, list[str]]:
    """For each kernel how long its phases took by the GPU's timer, in their order."""
    out: dict[int, list[str]] = {int(handle): [] for handle in kernels["handle"]}
    mine = rows[(rows["event"]["type"] == 15) & np.isin(rows["event"]["parent"], list(out))]
    for row, u in zip(mine, member(mine, KERNEL_PHASE), strict=True):
        took = int(u["gpu_end_ns"]) - int(u["gpu_begin_ns"])
        if u["gpu_begin_ns"] and took >= 0:
            out[int(row["event"]["parent"])].append(f"{phase_name(u)} {_time(took)}")
    return out


def _bar(rank: int, lane: tuple[int, int, str], kind: str, begin: int, end: int, label: str, title: str) -> _Bar:
    took = _time(end - begin) if end else ""
    return _Bar(rank, lane, kind, begin, max(begin, end) if end else 0, label, f"rank {rank}: {title}, {took}")


def _time(ns: int) -> str:
    for unit, word_ in ((10**9, "s"), (10**6, "ms")):
        if ns >= unit:
            return f"{ns / unit:.4g} {word_}"
    return f"{ns / 1e3:.4g} us"


class _Axis:
    """Map time to x. Long gaps are cut out of the axis, because the interesting part is inside the operations."""

    def __init__(self, bars: list[_Bar], right: int) -> None:
        pieces: list[list[int]] = []
        for begin, end in sorted((b.begin, b.end) for b in bars):
            if pieces and begin <= pieces[-1][1]:
                pieces[-1][1] = max(pieces[-1][1], end)
            else:
                pieces.append([begin, end])
        busy = max(1, sum(end - begin for begin, end in pieces))
        longest = busy / 2  # a shorter gap is drawn to scale
        self.pieces: list[tuple[int, int]] = []
        for begin, end in pieces:
            if self.pieces and begin - self.pieces[-1][1] <= longest:
                self.pieces[-1] = (self.pieces[-1][0], end)
            else:
                self.pieces.append((begin, end))
        self.shown = max(1, sum(end - begin for begin, end in self.pieces))
        self._scale = (right - _LEFT - _CUT * (len(self.pieces) - 1)) / self.shown

    def __call__(self, at: int) -> float:
        x = float(_LEFT)
        for begin, end in self.pieces:
            if at <= end:
                return x + max(0, at - begin) * self._scale
            x += (end - begin) * self._scale + _CUT
        return x - _CUT

    def grid(self) -> tuple[int, list[int]]:
        """The distance of the grid lines in ns, and their positions, counted from the start of each piece."""
        step = 10 ** max(0, math.floor(math.log10(self.shown / 4)))
        step *= next(f for f in (1, 2, 5, 10) if self.shown / (step * f) <= 10)
        return step, [at for begin, end in self.pieces for at in range(begin, end + 1, step)]


def _legend(kinds: set[str]) -> Iterator[str]:
    at = 12
    for kind, (colour, words) in _KINDS.items():
        if kind in kinds:
            yield f'<rect x="{at}" y="32" width="12" height="9" fill="{colour}"/><text x="{at + 16}" y="40">{escape(words)}</text>'
            at += 34 + 6 * len(words)


def _draw(bars: list[_Bar], title: str) -> str:
    lanes: dict[tuple[int, tuple[int, int, str]], int] = {}
    bands: dict[int, tuple[int, int]] = {}
    y = _TOP
    for rank in sorted({b.rank for b in bars}):
        top = y
        for lane in sorted({b.lane for b in bars if b.rank == rank}):
            lanes[rank, lane] = y
            y += _LANE
        bands[rank] = (top, y)
        y += _GAP
    height = y + 30
    right = _WIDTH - _RIGHT
    x = _Axis(bars, right)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="10" '
        f'role="img" aria-label="{escape(title, quote=True)}">',
        "<style>"
        + "".join(
            f".{kind} {{fill: {colour}; fill-opacity: {1 if kind == 'transfer' else 0.75}; stroke: #fff; stroke-width: .4}} "
            for kind, (colour, _) in _KINDS.items()
        )
        + "</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    out += _legend({b.kind for b in bars})
    step, lines = x.grid()
    bottom = y - _GAP + 4
    out += [f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{_TOP - 6}" y2="{bottom}" stroke="#ececec"/>' for t in lines]
    first = x.pieces[0][0]
    for begin, _ in x.pieces:
        out.append(f'<text x="{x(begin):.1f}" y="{y + 4}">{_time(begin - first)}</text>')
        if begin != first:
            middle = x(begin) - _CUT / 2
            out.append(
                f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{_TOP - 6}" y2="{bottom}" stroke="#999999" stroke-dasharray="2 3"/>'
            )
    note = f"lines are {_time(step)} apart" + ("; gaps without events are cut out" if len(x.pieces) > 1 else "")
    out.append(f'<text x="{_LEFT}" y="{y + 20}" fill="#555555">{note}</text>')
    for rank, (top, low) in bands.items():
        out.append(f'<text x="12" y="{(top + low) / 2 + 4:.0f}" font-size="12" font-weight="bold">rank {rank}</text>')
        out.append(f'<line x1="12" x2="{right}" y1="{low + _GAP / 2:.0f}" y2="{low + _GAP / 2:.0f}" stroke="#cccccc"/>')
    for (_, lane), top in lanes.items():
        out.append(f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end" fill="#555555">{escape(lane[2])}</text>')
    for bar in bars:
        top = lanes[bar.rank, bar.lane]
        thin = bar.kind == "transfer"
        width = max(0.8, x(bar.end) - x(bar.begin))
        out.append(
            f'<rect class="{bar.kind}" x="{x(bar.begin):.1f}" y="{top + (_LANE - 6 if thin else 1)}" width="{width:.1f}" '
            f'height="{3 if thin else _LANE - 3}"><title>{escape(bar.title)}</title></rect>'
        )
        if bar.label and width > 6.5 * len(bar.label):
            out.append(f'<text x="{x(bar.begin) + 3:.1f}" y="{top + 9}" fill="#ffffff">{escape(bar.label)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
