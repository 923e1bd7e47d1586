"""Draw a rank as SVG: what its threads and streams did with each plan, in the order of its trace."""

from __future__ import annotations

from dataclasses import dataclass, field

from psmkit.plan.types import Breach, Event, Simulation, What
from psmkit.report.escape import html_text

__all__ = ["draw"]

_MOST = 160  # events per picture
_LEFT, _RIGHT, _TOP, _ROW, _GAP = 118, 16, 30, 18, 12
# From Okabe and Ito's palette, which colour-blind readers can distinguish.
_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#9aa5b1")
_LANES = ("main thread", "host stream", "kernels", "host functions", "proxy ops", "reclaim queue")
_MAIN, _HOST, _KERNELS, _FUNCTIONS, _OPS, _QUEUE = range(6)


@dataclass(slots=True)
class _Bar:
    lane: int
    plan: int
    begin: int
    end: int
    open: bool = False  # it had not ended
    ticks: list[int] = field(default_factory=list)
    row: int = 0


@dataclass(slots=True)
class _Mark:
    lane: int
    plan: int
    at: int
    shape: str
    text: str


@dataclass(slots=True)
class _Scene:
    """Bars and marks of a trace; a place is the index of an event within the window."""

    bars: list[_Bar] = field(default_factory=list)
    marks: list[_Mark] = field(default_factory=list)
    joins: list[tuple[int, int, int, int]] = field(default_factory=list)  # place, lane, lane, plan


def draw(simulation: Simulation, rank: int) -> str:
    """The picture of a rank: the first 160 events, or those around a breach."""
    trace = [e for e in simulation.events if e.rank == rank]
    breaches = [b for b in simulation.breaches if b.rank == rank and b.order is not None]
    first = 0
    if breaches and breaches[0].order is not None:
        first = max(0, min(breaches[0].order - _MOST * 3 // 4, len(trace) - _MOST))
    shown = trace[first : first + _MOST]
    scene = _Reader(shown).scene
    _stack(scene.bars)
    return _svg(scene, len(shown), [b for b in breaches if b.order is not None], first, simulation, rank)


class _Reader:
    """Matches begins with ends."""

    def __init__(self, trace: list[Event]) -> None:
        self.scene = _Scene()
        self.last = max(len(trace) - 1, 0)
        self.group: int | None = None
        self.launched: dict[int, int] = {}
        self.replay = 0
        self.begins: dict[int, int] = {}
        self.functions: dict[int, _Bar] = {}
        self.ops: dict[int, tuple[_Bar, int]] = {}  # bar, ops still open
        self.queued: dict[int, list[_Bar]] = {}
        for at, event in enumerate(trace):
            self.read(at, event)
        if self.group is not None:
            self.bar(_MAIN, 0, self.group, self.last, open=True)
        for plan, at in self.launched.items():
            self.bar(_KERNELS, plan, at, self.last, open=True)

    def bar(self, lane: int, plan: int, begin: int, end: int, *, open: bool = False) -> _Bar:
        made = _Bar(lane, plan, begin, end, open)
        self.scene.bars.append(made)
        return made

    def mark(self, lane: int, event: Event, at: int, shape: str) -> None:
        self.scene.marks.append(_Mark(lane, event.plan, at, shape, f"{event.order}: {event}"))

    def read(self, at: int, event: Event) -> None:
        plan = event.plan
        if event.what is What.PREPARE:
            self.group = at
        elif event.what in (What.FINISH, What.PREPARE_FAILED) and self.group is not None:
            self.bar(_MAIN, 0, self.group, at)
            self.group = None
        elif event.what is What.REPLAY:
            self.replay = at
            self.mark(_MAIN, event, at, "replay")
        elif event.what is What.LAUNCHED:
            self.mark(_MAIN, event, at, "launch")
            self.scene.joins.append((at, _MAIN, _KERNELS if event.a & 1 else _FUNCTIONS, plan))
            if event.a & 1 and not event.b:
                self.launched[plan] = at
        elif event.what is What.KERNEL_DONE:
            # In a graph it follows the host stream's task of the same launch, and the kernel of the previous launch.
            self.bar(_KERNELS, plan, self.launched.pop(plan, max(self.replay, self.begins.get(plan, 0))), at)
            self.begins[plan] = at
        else:
            self.read_ends(at, event)

    def read_ends(self, at: int, event: Event) -> None:
        plan = event.plan
        if event.what is What.CALLBACK:
            self.functions[plan] = self.bar(_FUNCTIONS, plan, at, self.last, open=True)
        elif event.what is What.CALLBACK_OVER and plan in self.functions:
            self.close(self.functions.pop(plan), at)
        elif event.what is What.HOST_TASK:
            self.mark(_HOST if event.a else _MAIN, event, at, "task")
            self.ops.pop(plan, None)
            self.begins[plan] = at
        elif event.what is What.OP_POSTED:
            if plan not in self.ops:
                self.ops[plan] = (self.bar(_OPS, plan, at, self.last, open=True), 0)
            bar, left = self.ops[plan]
            self.ops[plan] = (bar, left + 1)
        elif event.what is What.OP_DONE and plan in self.ops:
            bar, left = self.ops[plan]
            bar.ticks.append(at)
            self.ops[plan] = (bar, left - 1)
            if left == 1:
                self.close(bar, at)
        elif event.what is What.RECLAIMER:
            self.queued.setdefault(plan, []).append(self.bar(_QUEUE, plan, at, self.last, open=True))
        elif event.what is What.RECLAIM:
            self.mark(_MAIN, event, at, "reclaim")
            for bar in self.queued.get(plan, [])[:1]:
                self.close(bar, at)
                self.queued[plan].pop(0)
                self.scene.joins.append((at, _MAIN, _QUEUE, plan))
        elif event.what is What.TOUCHED:
            self.mark({2: _OPS, 3: _FUNCTIONS, 4: _KERNELS}.get(event.a, _MAIN), event, at, "touch")
        elif event.what is What.ABORT:
            self.mark(_MAIN, event, at, "abort")

    @staticmethod
    def close(bar: _Bar, at: int) -> None:
        bar.end, bar.open = at, False


def _stack(bars: list[_Bar]) -> None:
    """Rows for overlapping bars of one lane."""
    for lane in range(len(_LANES)):
        ends: list[int] = []
        for bar in sorted((b for b in bars if b.lane == lane), key=lambda b: (b.begin, b.end)):
            row = next((i for i, end in enumerate(ends) if end < bar.begin), len(ends))
            if row == len(ends):
                ends.append(0)
            ends[row] = bar.end
            bar.row = row


def _svg(scene: _Scene, count: int, breaches: list[Breach], first: int, simulation: Simulation, rank: int) -> str:
    step = min(16.0, max(5.5, 860 / max(count, 1)))
    width = int(_LEFT + count * step + _RIGHT)
    rows = [1 + max((b.row for b in scene.bars if b.lane == lane), default=0) for lane in range(len(_LANES))]
    tops = [_TOP + sum(r * _ROW + _GAP for r in rows[:lane]) for lane in range(len(_LANES))]
    bottom = _TOP + sum(r * _ROW + _GAP for r in rows)
    height = bottom + 40
    out: list[str] = []

    def x(place: float) -> float:
        return round(_LEFT + (place + 0.5) * step, 1)

    for lane, name in enumerate(_LANES):
        tall = rows[lane] * _ROW
        out.append(
            f'<rect x="{_LEFT}" y="{tops[lane] - 2}" width="{width - _LEFT - _RIGHT}" height="{tall + 4}" class="lane"/>'
        )
        out.append(f'<text x="{_LEFT - 8}" y="{tops[lane] + 13}" class="name">{name}</text>')
    for at, one, other, plan in scene.joins:
        colour = _colour(plan)
        out.append(
            f'<line x1="{x(at)}" x2="{x(at)}" y1="{tops[one] + _ROW // 2}" y2="{tops[other] + _ROW // 2}" stroke="{colour}" class="join"/>'
        )
    for bar in scene.bars:
        out.extend(_bar(bar, x, tops[bar.lane]))
    for mark in scene.marks:
        out.append(_mark(mark, x(mark.at), tops[mark.lane]))
    for number, breach in enumerate(b for b in breaches[:3] if b.order is not None and 0 <= b.order - first < count):
        line = x((breach.order or 0) - first)
        right = line > width - 180
        out.append(f'<line x1="{line}" x2="{line}" y1="{_TOP - 8}" y2="{bottom}" class="broken"/>')
        out.append(
            f'<text x="{line - 4 if right else line + 4}" y="{bottom + 4 + 11 * number}" class="rule" '
            f'text-anchor="{"end" if right else "start"}">{html_text(breach.rule)}, plan {breach.plan}</text>'
        )
    for place in range(0, count, 10):
        out.append(f'<text x="{x(place)}" y="{height - 4}" class="number">{first + place}</text>')
    head = f"rank {rank}: {simulation.config.variant}, {simulation.config.scheduler.label}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="11">\n<style>{_STYLE}</style>\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="8" y="14" class="head">{html_text(head)}</text>\n'
        f'<text x="{width - _RIGHT}" y="14" class="number" text-anchor="end">events of the rank, in order &#8594;</text>\n'
        + "\n".join(out)
        + "\n</svg>\n"
    )


_STYLE = (
    ".lane{fill:#f4f5f7}.name{text-anchor:end;fill:#333}.head{font-weight:600;fill:#111}.number{fill:#777;font-size:9px}"
    ".join{stroke-width:1.2;stroke-dasharray:2 2}.broken{stroke:#d00000;stroke-width:1.5}.rule{fill:#d00000;font-weight:600}"
    ".bar{stroke:#333;stroke-width:.6}.group{fill:#d9dee5}.plan{font-size:10px;fill:#111}.tick{stroke:#333;stroke-width:.8}"
    ".mark{stroke:#333;stroke-width:.6}.touch{stroke:#d00000;stroke-width:2;fill:none}"
)


def _colour(plan: int) -> str:
    return _COLOURS[(plan - 1) % len(_COLOURS)] if plan else "#888888"


def _bar(bar: _Bar, x: object, top: int) -> list[str]:
    assert callable(x)
    left, right = x(bar.begin), x(bar.end)
    y = top + bar.row * _ROW
    size = max(round(right - left, 1), 3)
    kind = 'class="bar group"' if not bar.plan else f'class="bar" fill="{_colour(bar.plan)}"'
    dash = ' stroke-dasharray="3 2"' if bar.open else ""
    what = _LANES[bar.lane] if bar.plan else "group"
    told = f"{what}{f', plan {bar.plan}' if bar.plan else ''}{', not ended' if bar.open else ''}"
    out = [
        f'<rect x="{left}" y="{y + 2}" width="{size}" height="{_ROW - 4}" rx="2" {kind}{dash}><title>{told}</title></rect>'
    ]
    out += [f'<line x1="{x(t)}" x2="{x(t)}" y1="{y + 10}" y2="{y + _ROW - 2}" class="tick"/>' for t in bar.ticks]
    if bar.plan and size >= 8:
        out.append(f'<text x="{left + 3}" y="{y + 12}" class="plan">{bar.plan}</text>')
    return out


def _mark(mark: _Mark, x: float, top: int) -> str:
    y = top + _ROW / 2
    fill = _colour(mark.plan)
    title = f"<title>{html_text(mark.text)}</title>"
    if mark.shape == "touch":
        return (
            f'<path d="M{x - 4} {y - 4}L{x + 4} {y + 4}M{x - 4} {y + 4}L{x + 4} {y - 4}" class="touch">{title}</path>'
        )
    if mark.shape == "reclaim":
        return f'<circle cx="{x}" cy="{y}" r="4.5" fill="{fill}" class="mark">{title}</circle>'
    if mark.shape == "task":
        return f'<rect x="{x - 3}" y="{y - 5}" width="6" height="10" fill="{fill}" class="mark">{title}</rect>'
    # launched, a graph replayed, abort
    return f'<path d="M{x - 4} {y - 5}H{x + 4}L{x} {y + 5}Z" fill="{fill}" class="mark">{title}</path>'
