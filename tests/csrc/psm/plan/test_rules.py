"""The rules of plans: each is kept by a right trace and broken by one that differs from it in one place. The checker comes from the
scanner's module: it needs no libpsm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from psmkit._native.logscan import ffi, lib

Event = tuple[str, int, int, int, int]  # what, plan, a, b, c
HOST_TASK, LAUNCH_AFTER, DESTRUCTOR, CANCEL = 1, 2, 3, 4
KERNEL, FUNCTION, BOTH = 1, 2, 3


def event(what: str, plan: int = 0, a: int = 0, b: int = 0, c: int = 0) -> Event:
    return what, plan, a, b, c


def attributes(capability: int, grid: int, cluster: int = 0, *, spread: bool = False, remote: bool = False) -> int:
    bits = (lib.PSM_PLAN_ATTR_SPREAD if spread else 0) | (lib.PSM_PLAN_ATTR_REMOTE if remote else 0)
    return cluster | bits | grid << lib.PSM_PLAN_ATTR_GRID | capability << lib.PSM_PLAN_ATTR_CAPABILITY


def headers(slots: int, *, last: bool = True, in_fifo: bool = True, acks: bool = True, stored: bool = True) -> int:
    bits = (last, lib.PSM_PLAN_HEADER_LAST), (in_fifo, lib.PSM_PLAN_HEADER_IN_FIFO), (acks, lib.PSM_PLAN_HEADER_ACKS)
    there = sum(bit for has, bit in (*bits, (stored, lib.PSM_PLAN_HEADER_STORED)) if has)
    return there | slots << lib.PSM_PLAN_HEADER_SLOTS


DEVICE, HOST, LAUNCH, USER = 0, 1, 2, 3
SM90 = attributes(90, 2, 2, spread=True, remote=True)


def launched(plan: int, opcount: int) -> list[Event]:
    """A group of two streams with one plan: a collective and a send without a kernel."""
    return [
        event("PREPARE", b=2),
        event("CUDA", a=1),
        event("ORDERED", a=DEVICE, b=USER),
        event("ORDERED", a=LAUNCH, b=DEVICE),
        event("MADE", plan, 0b11, 1, 1),
        event("ARMED", plan, 1, 1),
        event("PREPARED", a=1, b=1, c=2),
        event("BARRIER"),
        event("UPLOADED", plan, 0, 3, headers(3)),
        event("LAUNCHED", plan, BOTH, 0, SM90),
        event("HOST_TASK", plan),
        event("OP_POSTED", plan, opcount << 1, 0, 0),
        event("OP_POSTED", plan, opcount << 1 | 1, 1, 1),
        event("RECLAIMER", plan, HOST_TASK),
        event("CUDA", a=2),
        event("ORDERED", a=DEVICE, b=LAUNCH),
        event("ORDERED", a=USER, b=DEVICE),
        event("FINISH"),
    ]


def ended(plan: int, opcount: int) -> list[Event]:
    return [
        event("CALLBACK", plan, 1),
        event("OP_DONE", plan, opcount << 1, 0, 0),
        event("KERNEL_DONE", plan),
        event("OP_DONE", plan, opcount << 1 | 1, 1, 1),
        event("COUNTED_OFF", plan, 0),
        event("CALLBACK_OVER", plan),
    ]


def replayed(plan: int, opcount: int) -> list[Event]:
    return [
        event("REPLAY", a=7),
        event("HOST_TASK", plan, 1),
        event("ARMED", plan, 1, 1),
        event("OP_POSTED", plan, opcount << 1 | 1, 1, 1),
        event("CALLBACK", plan, 1),
        event("OP_DONE", plan, opcount << 1 | 1, 1, 1),
        event("COUNTED_OFF", plan, 0),
        event("CALLBACK_OVER", plan),
    ]


RIGHT = [
    *launched(1, 0),
    *launched(2, 1),
    *ended(1, 0),
    event("RECLAIM", 1),
    *ended(2, 1),
    event("RECLAIM", 2),
    event("DESTROY"),
]
GRAPH = [
    event("PREPARE", b=1, c=7),
    event("MADE", 1, 0b10, 0, 1),
    event("REFS", a=1, b=1),
    event("PREPARED", a=1, b=1),
    event("BARRIER"),
    event("LAUNCHED", 1, FUNCTION, 1),
    event("REGISTERED", 1, 1, 1),
    event("FINISH"),
    *replayed(1, 0),
    *replayed(1, 1),
    event("DESTRUCTOR", a=7, b=1),
    event("RECLAIMER", 1, DESTRUCTOR),
    event("DEREGISTERED", 1, 1, 0),
    event("RECLAIM", 1),
    event("REFS", a=0, b=-1),
    event("DESTROY"),
]
# The host stream is used, and the plan has no proxy ops: LaunchKernelAfter enqueues it.
AFTER = [
    event("PREPARE", b=1),
    event("MADE", 1, 1, 1, 0),
    event("PREPARED", a=1, b=1),
    event("BARRIER"),
    event("LAUNCHED", 1, KERNEL),
    event("RECLAIMER", 1, LAUNCH_AFTER),
    event("FINISH"),
    event("KERNEL_DONE", 1),
    event("RECLAIM", 1),
    event("DESTROY"),
]
# The host stream posts the ops; the other user stream and the launch stream wait for each other, as from 2.26 on.
HOSTED = [
    event("PREPARE", b=1),
    event("ORDERED", a=LAUNCH, b=USER),
    event("ORDERED", a=LAUNCH, b=DEVICE),
    event("MADE", 1, 1, 1, 0),
    event("HOST_TASK", 1, 1),
    event("OP_POSTED", 1, 0, 0, 0),
    event("RECLAIMER", 1, HOST_TASK),
    event("ORDERED", a=LAUNCH, b=HOST),
    event("PREPARED", a=1, b=1, c=2),
    event("BARRIER"),
    event("UPLOADED", 1, 0, 1, headers(1)),
    event("LAUNCHED", 1, KERNEL, 0, attributes(80, 2)),
    event("ORDERED", a=DEVICE, b=LAUNCH),
    event("ORDERED", a=USER, b=LAUNCH),
    event("FINISH"),
    event("KERNEL_DONE", 1),
    event("OP_DONE", 1, 0, 0, 0),
    event("RECLAIM", 1),
    event("DESTROY"),
]
ABORTED = [
    *launched(1, 0),
    event("CALLBACK", 1, 1),
    event("ABORT"),
    event("CALLBACK_OVER", 1, 1, 1),
    event("OP_DONE", 1, 0, 0, 0),
    event("KERNEL_DONE", 1),
    event("OP_DONE", 1, 1, 1, 1),
    event("COUNTED_OFF", 1, 0),
    event("RECLAIM", 1),
    event("DESTROY"),
]
FAILED = [
    event("PREPARE", b=1),
    event("MADE", 1, 1, 1, 0),
    event("CANCELLED", 1),
    event("RECLAIMER", 1, CANCEL),
    event("PREPARE_FAILED", b=-2),
    event("RECLAIM", 1),
    *launched(2, 0),
    *ended(2, 0),
    event("RECLAIM", 2),
    event("DESTROY"),
]


def check(trace: Sequence[Event], *, first: int = 0, end: bool = True) -> list[tuple[str, int]]:
    """Which rules the trace breaks, in order, with the plan."""
    rules = ffi.gc(lib.plan_rules_new(0), lib.plan_rules_free)
    for order, (what, plan, a, b, c) in enumerate(trace):
        fed = ffi.new("struct psmPlanEvent *", (order + first, plan, a, b, c, getattr(lib, f"PSM_PLAN_{what}"), 3))
        lib.plan_rules_feed(rules, fed)
    if end:
        lib.plan_rules_end(rules)
    breaches, kept = ffi.new("struct psmPlanBreach **"), ffi.new("size_t *")
    count = lib.plan_rules_breaches(rules, breaches, kept)
    assert kept[0] == min(count, 64)
    found = [breaches[0][i] for i in range(kept[0])]
    assert all(ffi.string(breach.text) and breach.rank == 3 and breach.other == -1 for breach in found)
    return [(ffi.string(breach.rule).decode(), breach.plan) for breach in found]


def without(trace: Sequence[Event], what: str, plan: int = 0) -> list[Event]:
    """The trace without the first such event."""
    at = next(i for i, e in enumerate(trace) if e[0] == what and (not plan or e[1] == plan))
    return [*trace[:at], *trace[at + 1 :]]


def instead(trace: Sequence[Event], what: str, new: Event, nth: int = 0) -> list[Event]:
    at = [i for i, e in enumerate(trace) if e[0] == what][nth]
    return [*trace[:at], new, *trace[at + 1 :]]


def behind(trace: Sequence[Event], what: str, *new: Event, nth: int = 0) -> list[Event]:
    at = [i for i, e in enumerate(trace) if e[0] == what][nth] + 1
    return [*trace[:at], *new, *trace[at:]]


def early() -> list[Event]:
    trace = behind(without(RIGHT, "RECLAIM", 1), "CALLBACK", event("RECLAIM", 1, 2, 1, 1))
    at = trace.index(event("RECLAIM", 1, 2, 1, 1)) + 1
    return [*trace[:at], *(e for e in trace[at:] if e[1] != 1)]  # what comes behind it would touch what was freed


def reordered() -> list[Event]:
    trace = without(without(RIGHT, "RECLAIM", 1), "RECLAIM", 2)
    return [*trace[:-1], event("RECLAIM", 2), event("RECLAIM", 1), trace[-1]]


BROKEN: dict[str, list[Callable[[], list[Event]]]] = {
    "reclaim.early": [
        early,
        lambda: instead(RIGHT, "RECLAIM", event("RECLAIM", 1, 0, 1)),
        lambda: instead(RIGHT, "RECLAIM", event("RECLAIM", 1, 0, 0, 1)),
        lambda: without(RIGHT, "OP_DONE", 1),
    ],
    "reclaim.twice": [
        lambda: behind(RIGHT, "RECLAIM", event("RECLAIM", 1)),
        lambda: behind(RIGHT, "RECLAIMER", event("RECLAIMER", 1, HOST_TASK)),
        lambda: behind(RIGHT, "RECLAIM", event("RECLAIMER", 1, HOST_TASK)),
    ],
    "reclaim.never": [
        lambda: without(RIGHT, "RECLAIM", 2),
        lambda: without(without(RIGHT, "RECLAIM", 2), "RECLAIMER", 2),
    ],
    "reclaim.enqueuer": [
        lambda: instead(RIGHT, "RECLAIMER", event("RECLAIMER", 1, LAUNCH_AFTER)),
        lambda: instead(RIGHT, "RECLAIMER", event("RECLAIMER", 1, DESTRUCTOR)),
        lambda: instead(RIGHT, "RECLAIMER", event("RECLAIMER", 1, CANCEL)),
        lambda: instead(GRAPH, "RECLAIMER", event("RECLAIMER", 1, HOST_TASK)),
        lambda: instead(AFTER, "RECLAIMER", event("RECLAIMER", 1, HOST_TASK)),
        lambda: behind(AFTER, "RECLAIMER", event("HOST_TASK", 1)),
        lambda: without(AFTER, "RECLAIMER"),
    ],
    "count.mismatch": [
        lambda: instead(RIGHT, "ARMED", event("ARMED", 1, 2, 1)),
        lambda: instead(RIGHT, "ARMED", event("ARMED", 1, 0, 1)),
    ],
    "count.left": [lambda: instead(RIGHT, "CALLBACK_OVER", event("CALLBACK_OVER", 1, 0, 1))],
    "count.below": [lambda: behind(RIGHT, "COUNTED_OFF", event("COUNTED_OFF", 1, -1))],
    "callback.lost": [
        lambda: without(without(RIGHT, "CALLBACK", 2), "CALLBACK_OVER", 2),
        lambda: without(without(GRAPH, "CALLBACK"), "CALLBACK_OVER"),
    ],
    "freed.touched": [
        lambda: behind(RIGHT, "RECLAIM", event("TOUCHED", 1, 2)),
        lambda: behind(RIGHT, "RECLAIM", event("HOST_TASK", 1, 1)),
        lambda: instead(GRAPH, "CALLBACK_OVER", event("CALLBACK_OVER", 1, 0, 0, 1)),
    ],
    "fifo.order": [reordered],
    "op.order": [
        lambda: instead(RIGHT, "OP_POSTED", event("OP_POSTED", 2, 0, 0, 0), nth=2),
        lambda: instead(RIGHT, "OP_POSTED", event("OP_POSTED", 2, 1, 1, 1), nth=3),
        lambda: instead(GRAPH, "OP_POSTED", event("OP_POSTED", 1, 1, 1, 1), nth=1),
    ],
    "barrier.cuda": [lambda: behind(RIGHT, "BARRIER", event("CUDA", a=1))],
    "scope.kept": [
        lambda: instead(RIGHT, "FINISH", event("FINISH", a=1)),
        lambda: instead(FAILED, "PREPARE_FAILED", event("PREPARE_FAILED", a=1, b=-2)),
    ],
    "refs.unbalanced": [
        lambda: [*without(GRAPH, "REFS")[:-2], event("REFS", a=-1, b=-1), event("REFS", a=0, b=1), event("DESTROY")],
        lambda: [*GRAPH[:-2], event("DESTROY")],
    ],
    "pool.lost": [
        lambda: [*RIGHT[:-1], event("DESTROY", a=1)],
        lambda: [*RIGHT[:-1], event("DESTROY", b=4)],
        lambda: [*RIGHT[:-1], event("DESTROY", c=1)],
    ],
    "p2p.first": [
        lambda: [
            event("PREPARE", b=2),
            event("MADE", 1, 1, 0, 3),
            event("MADE", 2, 1, 2, 0),
            event("CANCELLED", 1),
            event("RECLAIMER", 1, CANCEL),
            event("CANCELLED", 2),
            event("RECLAIMER", 2, CANCEL),
            event("FINISH"),
            event("RECLAIM", 1),
            event("RECLAIM", 2),
        ]
    ],
    "hold.lost": [
        lambda: behind(RIGHT, "LAUNCHED", event("REGISTERED", 1, 0, 1)),
        lambda: behind(RIGHT, "LAUNCHED", event("DEREGISTERED", 1, 0, 0)),
    ],
    "stream.before": [
        lambda: without(RIGHT, "ORDERED"),
        lambda: without(without(RIGHT, "ORDERED"), "ORDERED"),
        lambda: instead(RIGHT, "ORDERED", event("ORDERED", a=DEVICE, b=LAUNCH), nth=1),
        lambda: without(HOSTED, "ORDERED"),
        lambda: instead(HOSTED, "ORDERED", event("ORDERED", a=HOST, b=LAUNCH), nth=2),
    ],
    "stream.after": [
        lambda: instead(RIGHT, "ORDERED", event("ORDERED", a=LAUNCH, b=DEVICE), nth=2),
        lambda: instead(RIGHT, "ORDERED", event("ORDERED", a=DEVICE, b=USER), nth=3),
        lambda: instead(HOSTED, "ORDERED", event("ORDERED", a=DEVICE, b=HOST), nth=3),
    ],
    "launch.attributes": [
        lambda: instead(
            RIGHT, "LAUNCHED", event("LAUNCHED", 1, BOTH, 0, attributes(90, 3, 2, spread=True, remote=True))
        ),
        lambda: instead(
            RIGHT, "LAUNCHED", event("LAUNCHED", 1, BOTH, 0, attributes(90, 16, 16, spread=True, remote=True))
        ),
        lambda: instead(RIGHT, "LAUNCHED", event("LAUNCHED", 1, BOTH, 0, attributes(90, 2, 2, remote=True))),
        lambda: instead(RIGHT, "LAUNCHED", event("LAUNCHED", 1, BOTH, 0, attributes(90, 2))),
        lambda: instead(RIGHT, "LAUNCHED", event("LAUNCHED", 1, BOTH, 0, attributes(80, 2, 2, spread=True))),
        lambda: instead(RIGHT, "LAUNCHED", event("LAUNCHED", 1, BOTH, 0, attributes(80, 2, remote=True))),
    ],
    "work.header": [
        lambda: instead(RIGHT, "UPLOADED", event("UPLOADED", 1, 0, 3, headers(2, last=False))),
        lambda: instead(RIGHT, "UPLOADED", event("UPLOADED", 1, 0, 3, headers(2))),
        lambda: instead(RIGHT, "UPLOADED", event("UPLOADED", 1, 0, 3, headers(3, last=False))),
        lambda: instead(RIGHT, "UPLOADED", event("UPLOADED", 1, 0, 3, headers(3, in_fifo=False))),
        lambda: instead(RIGHT, "UPLOADED", event("UPLOADED", 1, 0, 3, headers(3, acks=False))),
        lambda: instead(RIGHT, "UPLOADED", event("UPLOADED", 1, 0, 3, headers(3, stored=False))),
    ],
    "stuck": [lambda: behind(ABORTED, "CALLBACK", event("STUCK", 1, lib.PSM_PLAN_WAIT_COUNT, 1))],
}
BETWEEN_RANKS = {"cut.differs", "channel.differs"}


def names() -> list[str]:
    table = ffi.new("struct psmPlanRule **")
    return [ffi.string(table[0][i].name).decode() for i in range(lib.plan_rules_table(table))]


@pytest.mark.parametrize(
    "trace",
    [RIGHT, GRAPH, AFTER, HOSTED, ABORTED, FAILED],
    ids="right graph after hosted aborted failed".split(),
)
def test_right_traces_break_nothing(trace: list[Event]) -> None:
    assert check(trace) == []


def test_each_rule_of_the_table_can_be_broken() -> None:
    assert sorted(names()) == sorted([*BROKEN, *BETWEEN_RANKS])
    table = ffi.new("struct psmPlanRule **")
    lib.plan_rules_table(table)
    for i in range(len(names())):
        assert ffi.string(table[0][i].text).decode().endswith(".")
        assert table[0][i].schedulers == (1 if ffi.string(table[0][i].name) == b"work.header" else 3)


@pytest.mark.parametrize(
    ("rule", "make"), [pytest.param(rule, make, id=rule) for rule, makes in BROKEN.items() for make in makes]
)
def test_a_trace_that_differs_in_one_place_breaks_that_rule_and_no_other(
    rule: str, make: Callable[[], list[Event]]
) -> None:
    assert {name for name, _ in check(make())} == {rule}


def test_a_trace_that_begins_in_the_middle_is_not_judged_on_what_it_has_not_seen() -> None:
    for start in range(1, len(RIGHT)):
        assert check(RIGHT[start:], first=start, end=False) == []


def test_a_trace_that_goes_on_is_not_judged_as_if_it_had_ended() -> None:
    for stop in range(len(RIGHT)):
        assert check(RIGHT[:stop], end=False) == []


def test_a_group_whose_waits_failed_is_not_judged_by_those_that_it_did_not_come_to() -> None:
    trace = without(without(RIGHT, "ORDERED"), "ORDERED")
    at = next(i for i, e in enumerate(trace) if e[0] == "PREPARED")
    failed = [*trace[:at], event("CANCELLED", 1), event("RECLAIMER", 1, CANCEL), event("PREPARE_FAILED", b=-2)]
    assert check([*failed, event("RECLAIM", 1), event("DESTROY")]) == []
    left = instead(without(without(HOSTED, "ORDERED"), "FINISH"), "RECLAIM", event("FINISH", b=1))
    assert "stream.after" not in {name for name, _ in check(left)}


def test_memory_does_not_grow_with_the_trace_and_old_plans_are_known_as_freed() -> None:
    trace = [e for plan in range(1, 400) for e in (*launched(plan, plan), *ended(plan, plan), event("RECLAIM", plan))]
    assert check(trace) == []
    assert check([*trace, event("TOUCHED", 7, 1)]) == [("freed.touched", 7)]


def test_a_plan_breaks_a_rule_once_and_at_most_64_are_kept() -> None:
    touched = [event("TOUCHED", 1, 1)] * 5
    assert check([*RIGHT[:-1], *touched, RIGHT[-1]]) == [("freed.touched", 1)]
    many = [e for plan in range(1, 200) for e in (event("MADE", plan, 1, 1, 0), event("RECLAIM", plan))]
    assert [name for name, _ in check(many)] == ["reclaim.enqueuer"] * 64


def compare(*ranks: Sequence[dict[str, Any]]) -> list[tuple[str, int, int, str]]:
    keep: list[Any] = []
    array = ffi.new("struct plan_rules_rank[]", len(ranks))
    for rank, plans in enumerate(ranks):
        rows = ffi.new("struct plan_rules_plan[]", max(1, len(plans)))
        for row, plan in zip(rows, plans, strict=False):
            for name, value in plan.items():
                if name == "colls":
                    keep.append(ffi.new("struct plan_rules_coll[]", value))
                    row.colls, row.ncolls = keep[-1], len(value)
                else:
                    setattr(row, name, value)
        keep.append(rows)
        array[rank].rank, array[rank].plans, array[rank].nplans = rank, rows, len(plans)
    out = ffi.new("struct psmPlanBreach[]", 32)
    found = lib.plan_rules_compare(array, len(ranks), out, 32)
    return [
        (ffi.string(b.rule).decode(), b.rank, b.other, ffi.string(b.text).decode()) for b in list(out)[: min(found, 32)]
    ]


def plan(number: int, *colls: tuple[int, int, int], **other: int) -> dict[str, Any]:
    return {"plan": number, "group": 1, "colls": list(colls), **other}


def test_ranks_that_plan_the_same_break_nothing_whatever_p2p_they_have() -> None:
    a = [plan(1, (0, 3, 0), (1, 1, 2)), plan(2, (2, 3, 4), np2ps=1), plan(3, np2ps=2)]
    assert compare(a, a, [plan(1, (0, 3, 0), (1, 1, 2)), plan(2, (2, 3, 4))]) == []


def test_a_cut_that_differs_names_both_ranks_and_the_plan() -> None:
    a = [plan(1, (0, 3, 0), (1, 1, 2)), plan(2, (2, 3, 4))]
    b = [plan(1, (0, 3, 0)), plan(2, (1, 1, 2), (2, 3, 4))]
    (found,) = compare(a, a, b)
    assert found[:3] == ("cut.differs", 2, 0)
    assert "has 2 of them on rank 0 and 1 on rank 2" in found[3]
    (found,) = compare([plan(1, (0, 3, 0))], [plan(1, (1, 3, 0))])
    assert found[:3] == ("cut.differs", 1, 0)
    assert "has collective 1 on rank 1 and not on rank 0" in found[3]
    (found,) = compare([plan(1, (0, 3, 0)), plan(2, (1, 3, 2))], [plan(1, (0, 3, 0))])
    assert found[:3] == ("cut.differs", 1, 0)
    assert "rank 1 has 1 plans with collectives and rank 0 has more" in found[3]


def test_channels_or_opcounts_that_differ_name_the_collective() -> None:
    unknown = 2**64 - 1
    (found,) = compare([plan(1, (0, 3, 0))], [plan(1, (0, 5, 0))])
    assert found[:3] == ("channel.differs", 1, 0)
    assert "collective 0 goes over channels 0x3 on rank 0" in found[3]
    (found,) = compare([plan(1, (0, 3, 4))], [plan(1, (0, 3, 6))])
    assert found[:3] == ("channel.differs", 1, 0)
    assert "opCount 2 on rank 0 and 3 on rank 1" in found[3]
    assert compare([plan(1, (0, 3, unknown))], [plan(1, (0, 3, 6))]) == []


def test_masks_are_compared_where_collectives_are_not_known() -> None:
    a, b = ({"plan": 1, "ncolls": 2, "channelMask": mask} for mask in (3, 7))
    assert [found[:3] for found in compare([a], [b])] == [("channel.differs", 1, 0)]
    assert compare([a], [{**b, "np2ps": 1}]) == []  # those of p2p are in the mask, too


def test_p2p_before_a_collective_is_found_in_a_group_and_in_a_plan() -> None:
    late = [plan(1, np2ps=1), plan(2, (0, 3, 0))]
    assert [found[:3] for found in compare(late)] == [("p2p.first", 0, -1)]
    late[1]["group"] = 2
    assert compare(late) == []
    (found,) = compare([plan(1, (0, 3, 0), np2ps=1, p2pFirst=1, p2pTask=4, collTask=6)])
    assert found[0] == "p2p.first"
    assert "p2p of task 4 before the collective of task 6" in found[3]
