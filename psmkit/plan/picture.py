"""Ranks as timelines, as SVG and as a page: what their threads and streams did with each plan, in the order of their traces."""

from __future__ import annotations

from psmkit.model.draft import Draft
from psmkit.model.timeline import Axis, Level, Timeline, Unit
from psmkit.plan.types import Event, Simulation, What
from psmkit.report import html, svg

__all__ = ["draw", "page", "timeline"]

_MOST = 160  # events per picture
_ABOUT = "Places are the events of the rank, in order; distances say nothing about time."
_LANES = ("main thread", "host stream", "kernels", "host functions", "proxy ops", "reclaim queue")
_MAIN, _HOST, _KERNELS, _FUNCTIONS, _OPS, _QUEUE = range(6)
_TOUCHERS = {2: _OPS, 3: _FUNCTIONS, 4: _KERNELS}
_WAITERS = {"host function": _FUNCTIONS, "proxy": _OPS, "kernel": _KERNELS}
_SIGNS = {
    What.KERNEL_DONE: _KERNELS,
    What.CALLBACK: _FUNCTIONS,
    What.CALLBACK_OVER: _FUNCTIONS,
    What.OP_POSTED: _OPS,
    What.OP_DONE: _OPS,
    What.COUNTED_OFF: _OPS,
}
#: Marks in the order of their shapes, so that each has the same one in all pictures.
_MARKS = {
    "launch": "plan is launched",
    "task": "hostStreamPlanTask posts its proxy ops",
    "reclaim": "plan is freed",
    "replay": "graph is launched",
    "abort": "abort",
}


def draw(simulation: Simulation, rank: int) -> str:
    """The picture of a rank: its first 160 events, or those around a breach."""
    trace = list(simulation.events_of(rank))
    broken = next((b.order for b in simulation.breaches if b.rank == rank and b.order is not None), 0)
    first = max(0, min(broken - _MOST * 3 // 4, len(trace) - _MOST))
    last = min(first + _MOST, len(trace)) - 1
    about = f"Of {len(trace)} events, {first} to {last} are shown." if last - first + 1 < len(trace) else ""
    title = f"Rank {rank} of {simulation.config.ranks}: plans by the {simulation.config.scheduler.label} scheduler"
    variant = simulation.config.variant
    return svg.draw(timeline(simulation, rank), f"{title}, variant {variant}", about=about, begin=first, end=last)


def page(simulation: Simulation) -> str:
    """All events of all ranks as one HTML page, to zoom and search."""
    draft = Draft(Axis(Unit.ORDER, f"{_ABOUT} Each rank counts its own.", step="event"))
    for rank in range(simulation.config.ranks):
        _Reader(simulation, rank, draft, draft.track(f"rank {rank}", "rank", rank=rank))
    title = f"Plans of {simulation.config.ranks} ranks by the {simulation.config.scheduler.label} scheduler"
    return html.draw(draft.timeline(), title, f"Variant {simulation.config.variant}.")


def timeline(simulation: Simulation, rank: int) -> Timeline:
    """What a rank did: a track for each thread and stream, places by the number of the event."""
    draft = Draft(Axis(Unit.ORDER, _ABOUT, step="event"))
    _Reader(simulation, rank, draft)
    return draft.timeline()


class _Reader:
    """Matches begins with ends. Marks of all lanes are those of ``parent``, the track of the rank, or of all tracks without it."""

    def __init__(self, simulation: Simulation, rank: int, draft: Draft, parent: int = -1) -> None:
        self.draft, self.base = draft, len(draft.tracks)
        for lane in _LANES:
            self.draft.track(lane, "stream" if lane in ("host stream", "kernels") else "thread", parent, rank)
        for name, label in _MARKS.items():
            self.draft.kind(name, label, "", Level.NOTE)
        trace = list(simulation.events_of(rank))
        self.last = max(len(trace) - 1, 0)
        self.group: int | None = None
        self.launched: dict[int, int] = {}  # a kernel that runs: its begin
        self.awaited: dict[int, int] = {}  # a host function that is launched: when
        self.replay = 0
        self.begins: dict[int, int] = {}
        self.functions: dict[int, int] = {}
        self.ops: dict[int, tuple[int, int]] = {}  # begin, ops still open
        self.queued: dict[int, list[Event]] = {}
        self.latest = [0] * len(_LANES)  # the last sign of life of each lane
        self.waits: dict[tuple[int, str], int] = {}  # lane and words: its begin
        for event in trace:
            self.read(event)
        for breach in simulation.breaches:
            if breach.rank == rank and breach.order is not None:
                text = f"{breach.rule}, plan {breach.plan}" if breach.plan else breach.rule
                self.draft.mark(parent, breach.order, self.draft.kind("breach", "a rule breaks", "", Level.ERROR), text)
        self.leave_open()

    def leave_open(self) -> None:
        self.end_waits(self.last, open=True)
        if self.group is not None:
            self.bar(_MAIN, 0, self.group, self.last, "group", open=True)
        for lane, found in ((_KERNELS, self.launched), (_FUNCTIONS, self.functions)):
            for plan, at in found.items():
                self.bar(lane, plan, at, self.last, open=True)
        for plan, (at, _) in self.ops.items():
            self.bar(_OPS, plan, at, self.last, open=True)
        for plan, events in self.queued.items():
            for event in events:
                self.bar(_QUEUE, plan, event.order, self.last, f"enqueued by {event.enqueuer}", open=True)

    def bar(self, lane: int, plan: int, begin: int, end: int, more: str = "", *, open: bool = False) -> None:
        kind = (
            self.draft.kind(f"plan {plan}", f"plan {plan}", f"plan {plan}")
            if plan
            else self.draft.kind("group", "group", "")
        )
        label = f"plan {plan}, {more}" if more and plan else more or f"plan {plan}"
        self.draft.span(self.base + lane, begin, end, kind, label, open=open)

    def end_waits(self, at: int, *, open: bool) -> None:
        kind = self.draft.kind("wait", "waits for what does not come", "wait", Level.ERROR)
        for (lane, text), begin in self.waits.items():
            self.draft.span(self.base + lane, begin, at, kind, text, open=open)
        self.waits.clear()

    def mark(self, lane: int, event: Event, name: str, label: str = "", level: Level = Level.NOTE) -> None:
        plan = event.plan
        kind = self.draft.kind(f"{name} of plan {plan}", label or _MARKS[name], f"plan {plan}" if plan else "", level)
        self.draft.mark(self.base + lane, event.order, kind, f"event {event.order}{_of(plan)}: {event}")

    def arrow(self, name: str, label: str, plan: int, tail: tuple[int, int], head: tuple[int, int]) -> None:
        kind = self.draft.kind(f"{name} of plan {plan}", label, f"plan {plan}")
        self.draft.arrow(self.base + tail[0], tail[1], self.base + head[0], head[1], kind)

    def read(self, event: Event) -> None:
        plan, at = event.plan, event.order
        if event.waits:
            who, what = event.waits
            lane = _WAITERS.get(who, _MAIN)
            self.waits.setdefault((lane, f"waits for {what}{_of(plan)}"), self.latest[lane])
            return
        for lane in self.lanes(event):
            self.latest[lane] = at
        if event.what is What.PREPARE:
            self.group = at
        elif event.what in (What.FINISH, What.PREPARE_FAILED) and self.group is not None:
            failed = event.what is What.PREPARE_FAILED
            self.bar(_MAIN, 0, self.group, at, "group, prepare failed" if failed else "group")
            self.group = None
        elif event.what is What.REPLAY:
            self.replay = at
            self.mark(_MAIN, event, "replay")
        elif event.what is What.LAUNCHED:
            self.mark(_MAIN, event, "launch")
            if event.b:  # into a graph: nothing runs yet
                return
            if event.a & 1:
                self.launched[plan] = at
                self.arrow("starts", "the launch starts it", plan, (_MAIN, at), (_KERNELS, at))
            if event.a & 2:
                self.awaited[plan] = at
        elif event.what is What.KERNEL_DONE:
            # In a graph it follows the host stream's task of the same launch, and the kernel of the previous launch.
            begin = self.launched.pop(plan, max(self.replay, self.begins.get(plan, 0)))
            self.bar(_KERNELS, plan, begin, at)
            self.begins[plan] = at
        else:
            self.read_ends(event)

    def read_ends(self, event: Event) -> None:
        plan, at = event.plan, event.order
        if event.what is What.CALLBACK:
            self.functions[plan] = at
            if plan in self.awaited:
                self.arrow("starts", "the launch starts it", plan, (_MAIN, self.awaited.pop(plan)), (_FUNCTIONS, at))
        elif event.what is What.CALLBACK_OVER and plan in self.functions:
            self.bar(_FUNCTIONS, plan, self.functions.pop(plan), at)
        elif event.what is What.HOST_TASK:
            self.mark(_HOST if event.a else _MAIN, event, "task")
            if plan in self.ops:
                self.bar(_OPS, plan, self.ops.pop(plan)[0], self.last, open=True)
            self.begins[plan] = at
        elif event.what is What.OP_POSTED:
            begin, left = self.ops.get(plan, (at, 0))
            self.ops[plan] = (begin, left + 1)
        elif event.what is What.OP_DONE and plan in self.ops:
            begin, left = self.ops[plan]
            self.ops[plan] = (begin, left - 1)
            self.mark(_OPS, event, "op", "proxy op ends", Level.PLAIN)
            if left == 1:
                self.bar(_OPS, plan, self.ops.pop(plan)[0], at)
        elif event.what is What.RECLAIMER:
            self.queued.setdefault(plan, []).append(event)
        elif event.what is What.RECLAIM:
            self.mark(_MAIN, event, "reclaim")
            if waiting := self.queued.get(plan):
                first = waiting.pop(0)
                self.bar(_QUEUE, plan, first.order, at, f"enqueued by {first.enqueuer}")
                self.arrow("dequeued", "its reclaimer runs", plan, (_QUEUE, at), (_MAIN, at))
        elif event.what is What.TOUCHED:
            self.mark(_TOUCHERS.get(event.a, _MAIN), event, "touch", "used after it was freed", Level.ERROR)
        elif event.what is What.ABORT:
            self.mark(_MAIN, event, "abort")
            self.end_waits(at, open=False)

    def lanes(self, event: Event) -> tuple[int, ...]:
        """The lanes in which an event is a sign of life."""
        if event.what is What.LAUNCHED:
            return (_MAIN, _KERNELS)
        if event.what is What.HOST_TASK and event.a:
            return (_HOST,)
        return (_SIGNS.get(event.what, _MAIN),)


def _of(plan: int) -> str:
    return f", plan {plan}" if plan else ""
