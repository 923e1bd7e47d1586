"""The reclaim protocol as a Promela model: spin verifies it in every order, and traces of libpsm are checked against it.

The model is in csrc/psm/plan/model; docs/plan_model.md describes it. It needs spin and a C compiler: spin generates a verifier
from the model, and the compiled verifier is cached in the user's cache folder.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from psmkit.model.wording import counted, plural
from psmkit.plan import spin
from psmkit.plan.spin import ModelError, find_spin

__all__ = [
    "Admission",
    "ModelError",
    "ModelResult",
    "ModelStep",
    "ModelVariant",
    "PlanKind",
    "Scope",
    "TraceEvent",
    "admit",
    "find_spin",
    "model_variants",
    "right_scopes",
    "verify",
    "verify_ends",
]

_ANY = -9  # as in reclaim.pml
_THREADS = ("init", "main", "proxy", "host stream", "launch stream", "destructor", "abort", "nobody")
_ENQUEUERS = {1: "hostStreamPlanTask", 2: "LaunchKernelAfter", 3: "the graph's destructor", 4: "its cancelling"}
#: The most plans of a trace that drives the model, which counts them in a byte.
MOST_PLANS = 120
#: The most graphs, for the same reason.
MOST_GRAPHS = 15


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """A variant of the model.

    Attributes:
        name: name of the variant, shared with libpsm's if it has the same.
        rule: the rule that it breaks; empty for the right one.
        summary: what it does.
    """

    name: str
    rule: str
    summary: str
    number: int


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of a verification.

    Attributes:
        plans: plans of the communicator, in any number of groups.
        replays: launches of the graph.
        failures: number of failing prepares.
        abort: an abort may happen at any moment.
        blocking: CUDA_LAUNCH_BLOCKING: host tasks run on the host stream.
        kinds: bits of the kinds of plans: 1 kernel, 2 kernel and a network op, 4 p2p without a kernel, 8 both, 16 copies to itself.
    """

    plans: int
    replays: int = 0
    failures: int = 0
    abort: bool = False
    blocking: bool = False
    kinds: int = 31

    def __str__(self) -> str:
        words = [counted(self.plans, "plan"), counted(self.replays, "replay")]
        words += ["1 failed prepare"] * bool(self.failures) + ["abort"] * self.abort + ["blocking"] * self.blocking
        kinds = ("kernel", "network", "p2p", "mixed", "self copies")
        if self.kinds != 31:
            words.append(" or ".join(kind for i, kind in enumerate(kinds) if self.kinds >> i & 1))
        return ", ".join(words)

    def setting(self, variant: int) -> str:
        """The scope in the form of run.h."""
        numbers = (variant, self.plans, self.replays, self.failures, self.abort, self.blocking, self.kinds)
        return " ".join(str(int(number)) for number in numbers)


@dataclass(frozen=True, slots=True)
class ModelStep:
    """An event of a counterexample, with the names and numbers of psm_plan_events.h.

    Attributes:
        thread: the thread: main, proxy, host stream, launch stream, destructor, abort.
        what: the event, such as ``RECLAIM``.
        plan: the plan; 0: none.
        a, b, c: the event's values; None: not part of the model.
    """

    thread: str
    what: str
    plan: int
    a: int | None = None
    b: int | None = None
    c: int | None = None

    def __str__(self) -> str:
        words = self.what + (f" plan {self.plan}" if self.plan else "")
        detail = _detail(self)
        return f"{self.thread:<13} {words}{': ' + detail if detail else ''}"


@dataclass(frozen=True, slots=True)
class ModelResult:
    """The result of spin for a variant within a scope.

    Attributes:
        rule: the broken rule, ``stuck`` for a hang; empty: none.
        plan: the plan of the breach; 0: none.
        states: number of states explored.
        complete: whether all states were explored; a counterexample ends the search.
        steps: the steps of the counterexample, in order.
    """

    variant: str
    scope: Scope
    rule: str
    plan: int
    states: int
    transitions: int
    depth: int
    seconds: float
    complete: bool
    steps: tuple[ModelStep, ...] = ()


class TraceEvent(Protocol):
    """An event of a communicator's trace: psmPlanEvent, :class:`psmkit.plan.Event`."""

    @property
    def what(self) -> int: ...
    @property
    def plan(self) -> int: ...
    @property
    def a(self) -> int: ...
    @property
    def b(self) -> int: ...
    @property
    def c(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PlanKind:
    """The facts about a plan that the model needs.

    Attributes:
        kernel: whether it has a kernel.
        colls: number of proxy ops that do not decrement a sync condition.
        decrementing: number of proxy ops that do.
    """

    kernel: bool
    colls: int
    decrementing: int


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether the model admits a trace.

    Attributes:
        admitted: whether some order of the steps between the events leads to the end of the trace.
        events: number of events in the trace that are part of the model.
        reached: how many of them the model can follow, at most.
        event: position in the trace of the first event that it cannot follow; None: admitted.
        rule: the rule that the event before it breaks; empty: the event is simply impossible there.
    """

    admitted: bool
    events: int
    reached: int
    event: int | None = None
    rule: str = ""


def right_scopes(thorough: bool = False) -> tuple[Scope, ...]:
    """The scopes in which the right variant is verified: seconds each; thorough: a minute and 2 GB."""
    quick = (
        Scope(2, 1, abort=True),
        Scope(2, 1, abort=True, blocking=True, kinds=12),
        Scope(2, 2, failures=1, kinds=14),
        Scope(2, 2, abort=True, kinds=4),
        Scope(1, 3, abort=True),
        Scope(3, 1, kinds=4),
        Scope(3, 0, kinds=10),
    )
    more = (Scope(2, 2, abort=True), Scope(2, 2, abort=True, blocking=True), Scope(3, 1, kinds=14))
    return quick + more if thorough else quick


#: The scopes in which a counterexample of a broken variant is searched, smallest first.
LADDER = (
    Scope(1),
    Scope(1, blocking=True),
    Scope(1, 1),
    Scope(1, 2),
    Scope(1, 2, abort=True),
    Scope(2, 0),
    Scope(2, 1),
    Scope(3, 0, kinds=2),
)


def model_variants() -> dict[str, ModelVariant]:
    """All variants of the model by name, the right one first."""
    text = (spin.folder() / "reclaim.pml").read_text()
    rows = re.findall(r"^#define ([A-Z_]+) (\d+) +/\* ([\w.]+)(?:: (.*?))? \*/$", text, re.M)
    named = {
        name.lower().replace("_", "-"): ModelVariant(
            name.lower().replace("_", "-"), "" if rule == "right" else rule, summary, int(number)
        )
        for name, number, rule, summary in rows
        if rule == "right" or summary
    }
    return dict(sorted(named.items(), key=lambda row: row[1].number))


def verify(variant: str = "coll-first", scope: Scope | None = None, *, hang: bool = False) -> ModelResult:
    """Explore every order in which the threads can run.

    Args:
        variant: a name from :func:`model_variants`.
        scope: None: the smallest with a counterexample, else the last of them; for the right variant the first of
        :func:`right_scopes`.
        hang: continue past broken rules until no thread can continue.

    Raises:
        ModelError: no such variant, no spin, or a failure of spin.
    """
    known = model_variants()
    if variant not in known:
        raise ModelError(f"unknown variant {variant!r} of the model, expected one of {', '.join(known)}")
    found = known[variant]
    if scope is not None:
        return _explore(found, scope, hang)
    if not found.rule:
        return _explore(found, right_scopes()[0], hang)
    result = None
    for step in LADDER:
        result = _explore(found, step, hang)
        if result.rule:
            break
    assert result is not None
    return result


def verify_ends(scope: Scope) -> ModelResult:
    """Check that every run of the right variant ends, so that no thread can loop for ever. The rule is ``endless`` if one can.

    Raises:
        ModelError: no spin, or a failure of spin.
    """
    return _explore(model_variants()["coll-first"], scope, hang=False, endless=True)


def admit(
    traces: Sequence[Sequence[TraceEvent]], kinds: Sequence[Mapping[int, PlanKind]] | None = None
) -> tuple[Admission, ...]:
    """Check traces against the right variant, all in one run of the verifier.

    Args:
        traces: traces of one communicator each, from its beginning.
        kinds: the plans of each trace, by id; missing ones are derived from the trace.

    Raises:
        ModelError: no spin, or it failed; a trace has more than MOST_PLANS plans or MOST_GRAPHS graphs.
    """
    if not traces:
        return ()
    what = spin.names()
    known = kinds if kinds is not None else [{}] * len(traces)
    prepared = [_projected(trace, what, given) for trace, given in zip(traces, known, strict=True)]
    most = max(trace.plans for trace in prepared)
    if most > MOST_PLANS:
        raise ModelError(
            f"a trace has {most} plans, the model supports {MOST_PLANS}: truncate it, or simulate fewer groups"
        )
    if (graphs := max(trace.graphs for trace in prepared)) > MOST_GRAPHS:
        raise ModelError(f"a trace has {graphs} graphs, the model supports {MOST_GRAPHS}: truncate it")
    program = spin.verifier(spin.Kind(trace=True, plans=8 if most <= 8 else MOST_PLANS))
    numbers = [len(traces)]
    for trace in prepared:
        numbers += (len(trace.rows), trace.untold)
        for row in trace.rows:
            numbers += row
    with tempfile.TemporaryDirectory(prefix="psmkit-model-") as work:
        file = Path(work, "traces")
        file.write_text(" ".join(map(str, numbers)))
        done = spin.run([str(program), "-m1000000", "-E"], Path(work), {"PSM_TRACES": str(file)})
    _fail_unless_searched(done)
    if "errors: 0" not in done:
        raise ModelError(f"the verifier of the model stopped: {done.strip()[:300]}")
    answers = re.findall(r"^trace (\d+): (\d+) of (\d+) (?:! (\S+)|-)", done, re.M)
    if len(answers) != len(traces):
        raise ModelError(f"the model judged {len(answers)} of {len(traces)} traces: {done[-500:]}")
    return tuple(_admission(prepared[int(i)], int(best), int(n), rule) for i, best, n, rule in answers)


# ---- verification ----


def _explore(variant: ModelVariant, scope: Scope, hang: bool, endless: bool = False) -> ModelResult:
    breadth = bool(variant.rule)  # finds the shortest counterexample
    program = spin.verifier(spin.Kind(plans=3, breadth=breadth, endless=endless))
    setting = {"PSM_MODEL": scope.setting(variant.number)}
    with tempfile.TemporaryDirectory(prefix="psmkit-model-") as work:
        ignored = ["-A"] if hang else []
        options = ["-w22", *([] if breadth else ["-m100000"]), *(["-l"] if endless else [])]
        out = spin.run([str(program), *options, *ignored], Path(work), setting)
        trail = next(Path(work).glob("*.trail"), None)
        # The replay finds the trail by the name of the model.
        again = spin.run([str(program), *ignored, "-r", str(trail)], Path(work), setting) if trail else ""
    _fail_unless_searched(out)
    rule, plan, steps = _replayed(again)
    if endless and trail and not rule:
        rule = "endless"
    if trail and not rule:
        raise ModelError(f"the counterexample of {variant.name} names no rule: {out[:300]}")
    if "out of memory" in out or "max search depth too small" in out:
        raise ModelError(f"{variant.name}, {scope}: not all states were explored: {out[:300]}")
    return ModelResult(
        variant=variant.name,
        scope=scope,
        rule=rule,
        plan=plan,
        states=_number(out, r"^\s*(\d+) states, stored"),
        transitions=_number(out, r"^\s*(\d+) transitions"),
        depth=_number(out, r"depth reached (\d+)"),
        seconds=float((re.search(r"elapsed time ([\d.e+-]+)", out) or ["", "0"])[1]),
        complete="Search not completed" not in out,
        steps=steps,
    )


def _fail_unless_searched(out: str) -> None:
    if "Full statespace search" not in out:
        raise ModelError(f"the verifier of the model failed: {out.strip()[-500:]}")


def _number(out: str, pattern: str) -> int:
    match = re.search(pattern, out, re.M)
    return int(float(match[1])) if match else 0


def _replayed(out: str) -> tuple[str, int, tuple[ModelStep, ...]]:
    """The last reported rule, its plan, and the events. spin prints them between its own lines."""
    what = {number: name for name, number in reversed(list(spin.names().items()))}
    rule, plan, steps = "", 0, []
    for line in out.splitlines():
        if event := re.fullmatch(r"\s*@ (\d+) (\d+) (\d+) (-?\d+) (-?\d+) (-?\d+)", line):
            thread, kind, number, *rest = map(int, event.groups())
            values = [None if value == _ANY else value for value in rest]
            steps.append(ModelStep(_THREADS[thread], what[kind], number, *values))
        elif broken := re.fullmatch(r"\s*! ([\w.]+) (\d+)", line):
            rule, plan = broken[1], int(broken[2])
    return rule, plan, tuple(steps)


def _detail(step: ModelStep) -> str:
    """The numbers of an event as text."""
    a, b, c = step.a, step.b, step.c
    left = ((a, "op"), (b, "kernel"), (c, "host function"))
    texts = {
        "ARMED": f"count {a}, {counted(b or 0, 'op')} {plural(b or 0, 'decrements', 'decrement')} it",
        "LAUNCHED": ("nothing", "its kernel", "its host function", "its kernel and its host function")[(a or 0) & 3]
        + (", into the graph" if b else ""),
        "HOST_TASK": "on the host stream" if a else "by main",
        "OP_POSTED": "decrements" if c else "",
        "OP_DONE": "decrements" if c else "",
        "COUNTED_OFF": f"{a} left",
        "CALLBACK": f"count {a}",
        "CALLBACK_OVER": f"count {b}" + (", by abort" if a else "") + (", it freed the sync condition" if c else ""),
        "RECLAIMER": f"by {_ENQUEUERS.get(a or 0, a)}",
        "RECLAIM": ", ".join(f"{counted(n, what)} not ended" for n, what in left if n) or "all has ended",
        "REFS": f"persistentRefs {a}",
        "REPLAY": f"graph {a}",
        "DESTRUCTOR": f"graph {a}",
        "PREPARE": f"depth {a}" + (f", captured into graph {c}" if c else ""),
        "PREPARE_FAILED": f"depth {a}",
        "REGISTERED": f"it holds {b}",
        "DEREGISTERED": f"it holds {b}",
        "FINISH": f"depth {a}",
        "STUCK": f"its host function waits, count {b}" if a == spin.names()["WAIT_COUNT"] else "its wait never ends",
        "DESTROY": f"its pools miss {counted(a or 0, 'plan')} and {counted(b or 0, 'op')}",
    }
    return texts.get(step.what, "")


# ---- traces ----


@dataclass(slots=True)
class _Projected:
    """A trace in the model's form: plans and graphs numbered from 1, kinds of plans next to their MADE."""

    rows: list[tuple[int, ...]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # positions of the rows in the trace
    plans: int = 0
    graphs: int = 0
    untold: int = 0  # launches of the graph, if no event reports them: CUDA does not notify a real communicator


def _projected(trace: Sequence[TraceEvent], what: Mapping[str, int], given: Mapping[int, PlanKind]) -> _Projected:
    out = _Projected()
    ids: dict[int, int] = {}
    for event in trace:
        if event.what == what["MADE"]:
            ids.setdefault(event.plan, len(ids) + 1)
    graphs: dict[int, int] = {}
    kinds = {**_kinds(trace, what), **given}
    in_graph = {what["REPLAY"]: "a", what["DESTRUCTOR"]: "a", what["PREPARE"]: "c"}
    for place, event in enumerate(trace):
        values = {"a": event.a, "b": event.b, "c": event.c}
        if (where := in_graph.get(event.what)) and values[where]:
            values[where] = graphs.setdefault(values[where], len(graphs) + 1)
        plan = (
            ids.get(event.plan, len(ids) + 1) if event.plan else 0
        )  # a plan that was not made is not part of the model
        kind = (0, 0, 0)
        if event.what == what["MADE"]:
            made = kinds[event.plan]
            kind = (int(made.kernel), made.colls, made.decrementing)
        hint = 0
        if event.what == what["DESTRUCTOR"]:
            ends = (e for e in trace[place:] if e.what == what["RECLAIMER"] and e.a == what["BY_DESTRUCTOR"])
            hint = next((ids.get(e.plan, 0) for e in ends), 0)
        out.rows.append((event.what, plan, values["a"], values["b"], values["c"], *kind, hint))
        out.places.append(place)
    out.plans, out.graphs = len(ids), len(graphs)
    if graphs and not any(event.what == what["REPLAY"] for event in trace):
        out.untold = _untold(trace, what)
        if out.untold and len(graphs) > 1:
            raise ModelError(f"a trace has {len(graphs)} graphs without their launches: truncate it after the first")
    return out


def _untold(trace: Iterable[TraceEvent], what: Mapping[str, int]) -> int:
    """How often a graph was launched, from events that occur once per launch of one of its plans."""
    captured: set[int] = set()
    launches: Counter[tuple[int, int]] = Counter()
    for event in trace:
        if event.what == what["LAUNCHED"] and event.b:
            captured.add(event.plan)
        elif event.plan in captured and event.what in (what["HOST_TASK"], what["KERNEL_DONE"], what["CALLBACK"]):
            launches[event.plan, event.what] += 1
    return max(launches.values(), default=0)


def _kinds(trace: Iterable[TraceEvent], what: Mapping[str, int]) -> dict[int, PlanKind]:
    """The most ops of each plan that a host task posted, from the plan's launches."""
    kernel: dict[int, bool] = {}
    ops: dict[int, list[int]] = {}
    posted: dict[int, list[int]] = {}
    for event in trace:
        plan = event.plan
        if event.what == what["MADE"]:
            ops[plan] = [0, 0]
        elif plan not in ops:
            continue
        elif event.what == what["LAUNCHED"]:
            kernel[plan] = event.a & 1 != 0
            ops[plan][1] = max(ops[plan][1], event.a >> 1 & 1)
        elif event.what == what["ARMED"]:
            ops[plan][1] = max(ops[plan][1], event.b)
        elif event.what == what["HOST_TASK"]:
            posted[plan] = [0, 0]
            if event.a and ops[plan] == [0, 0]:
                ops[plan][0] = 1  # only plans with ops have a host task there; an abort may keep it from posting
        elif event.what == what["OP_POSTED"] and plan in posted:
            posted[plan][int(event.c != 0)] += 1
            ops[plan] = [max(pair) for pair in zip(ops[plan], posted[plan], strict=True)]
    return {plan: PlanKind(kernel.get(plan, False), *counts) for plan, counts in ops.items()}


def _admission(trace: _Projected, reached: int, events: int, rule: str) -> Admission:
    if reached == events:
        return Admission(True, events, reached)
    return Admission(False, events, reached, trace.places[reached], rule)
