"""Operations become traces: one for each operation on all its ranks, whoever exports them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from psmkit.telemetry.layout import PROXY_OP, PROXY_STEP, ROW
from psmkit.telemetry.spans import build
from psmkit.telemetry.take import Take
from tests.telemetry.takes import CLOCK, FOREIGN, SENDS, STOPPED, WALL, collective, copies, joined, made, message, row

RESOURCE = Resource({"service.name": "test"})


def spans_of(take: Take, budget: int = 1000) -> list[ReadableSpan]:
    return build(take, RESOURCE, budget).spans


def trees(*parts: list[Any]) -> Take:
    take = made()
    rows = [r.copy() for part in parts for r in part]
    first = 0
    for part in parts:
        for number in range(first, first + len(part)):
            rows[number]["root"] = first
        first += len(part)
    take.spans = joined(rows, ROW)
    return take


def named(spans: list[ReadableSpan], name: str, rank: int | None = None) -> ReadableSpan:
    (one,) = [s for s in spans if s.name == name and rank in (None, s.attributes["nccl.rank"])]
    return one


def ids(spans: list[ReadableSpan]) -> set[tuple[int, int]]:
    return {(s.context.trace_id, s.context.span_id) for s in spans}


def test_a_collective_is_one_trace_on_all_ranks() -> None:
    spans = spans_of(made())
    assert len({s.context.trace_id for s in spans}) == 1
    assert len(ids(spans)) == len(spans) == 12
    for rank in (0, 1):
        step = named(spans, "send step", 0)
        op, coll = named(spans, "proxy send", rank), named(spans, "AllReduce", rank)
        assert op.parent.span_id == coll.context.span_id
        assert coll.parent.span_id == named(spans, "group api", rank).context.span_id
        assert named(spans, "kernel ch", rank).parent.span_id == coll.context.span_id
        assert coll.status.status_code is StatusCode.UNSET
    assert [e.name for e in step.events] == ["gpu wait", "peer wait", "network wait"]
    assert op.kind is SpanKind.PRODUCER


def test_both_ends_of_a_transfer_are_linked() -> None:
    spans = spans_of(made())
    for rank in (0, 1):
        send, receive = named(spans, "proxy send", rank), named(spans, "proxy receive", 1 - rank)
        assert [link.context.span_id for link in send.links] == [receive.context.span_id]
        assert [link.context.span_id for link in receive.links] == [send.context.span_id]


def test_two_sidecars_make_the_same_ids_without_asking() -> None:
    both = spans_of(made())
    alone: list[ReadableSpan] = []
    for rank in (0, 1):
        take = trees(collective(rank, 7, first=6 * rank))
        take.comms = take.comms[take.comms["rank"] == rank]
        take.wall_ns += 123  # another host, another time
        alone += spans_of(take)
    assert ids(alone) == ids(both)
    by_id = ids(alone)
    links = [(link.context.trace_id, link.context.span_id) for s in alone for link in s.links]
    assert len(links) == 4
    assert set(links) <= by_id


def test_times_are_of_the_epoch() -> None:
    take = made()
    take.offsets["offset"] += 1_000  # the process's own clocks, not those of the sidecar
    coll = named(spans_of(take), "AllReduce", 0)
    assert coll.start_time == WALL - 10**6 + 20_000 + 1_000
    assert coll.end_time == WALL - 10**6 + 900_000 + 1_000
    assert [e.timestamp for e in coll.events] == [WALL - 10**6 + 40_000 + 1_000]


def test_operations_of_a_group_have_a_trace_each_and_the_group_stands_in_all() -> None:
    one, two = collective(0, 7), collective(0, 8, start=CLOCK - 5 * 10**5)
    two = two[1:]
    for found in two[:1]:
        found["event"]["parent"] = one[0]["handle"]
    spans = spans_of(trees([*one, *two]))
    colls = [s for s in spans if s.name == "AllReduce"]
    groups = [s for s in spans if s.name == "group api"]
    assert len({s.context.trace_id for s in colls}) == 2
    assert {s.context.trace_id for s in groups} == {s.context.trace_id for s in colls}
    assert all(s.attributes["nccl.group.operations"] == 2 for s in groups)


def test_what_has_not_ended_is_an_error_that_ends_when_it_was_seen_last() -> None:
    spans = spans_of(trees(collective(0, 7, done=False)))
    coll, op = named(spans, "AllReduce"), named(spans, "proxy receive")
    for span in (coll, op):
        assert span.status.status_code is StatusCode.ERROR
        assert span.end_time == WALL
        assert span.attributes["psmkit.incomplete"] is True
    assert coll.attributes["psmkit.sampled"] == "incomplete"
    assert named(spans, "proxy send").status.status_code is StatusCode.UNSET


def test_ends_of_sends_and_receives_are_matched_by_the_time_they_have_in_common() -> None:
    take = trees(
        message(0, sends=True, number=1, first=0, start=CLOCK - 5_000_000),
        message(0, sends=True, number=2, first=0, start=CLOCK - 2_000_000),
        message(1, sends=False, number=1, first=0, start=CLOCK - 1_900_000),
        message(1, sends=False, number=2, first=0, start=CLOCK - 5_200_000),
    )
    spans = spans_of(take)
    assert len({s.context.trace_id for s in spans}) == 4
    sends = sorted((s for s in spans if s.name == "proxy send"), key=lambda s: s.start_time or 0)
    receives = sorted((s for s in spans if s.name == "proxy receive"), key=lambda s: s.start_time or 0)
    for send, receive in zip(sends, receives, strict=True):
        assert [(k.context.trace_id, k.context.span_id) for k in send.links] == [
            (receive.context.trace_id, receive.context.span_id)
        ]


def test_a_message_without_its_other_end_has_no_link() -> None:
    spans = spans_of(trees(message(0, sends=True, number=1, first=0, start=CLOCK - 10**6)))
    assert [s.links for s in spans] == [(), ()]


def test_a_proxy_operation_for_another_process_hangs_under_that_processs_collective() -> None:
    coll = collective(0, 7)
    parent = int(coll[1]["handle"][0])
    foreign = [
        row(1, 0, 5 << 24, parent, 3, CLOCK - 800_000, CLOCK - 200_000, PROXY_OP, flags=STOPPED | FOREIGN | SENDS, pid=4000, peer=5,
            steps=1, channel=9, bytes=8),
        row(1, 0, 6 << 24, 5 << 24, 4, CLOCK - 700_000, CLOCK - 200_000, PROXY_STEP, flags=STOPPED | SENDS, peer=5, bytes=8, channel=9),
    ]  # fmt: skip
    spans = spans_of(trees(coll, foreign))
    op = next(s for s in spans if s.attributes.get("nccl.channel") == 9 and s.name == "proxy send")
    step = next(s for s in spans if s.attributes.get("nccl.channel") == 9 and s.name == "send step")
    owner = named(spans, "AllReduce")
    assert op.parent.span_id == owner.context.span_id
    assert step.parent.span_id == op.context.span_id
    assert {op.context.trace_id, step.context.trace_id} == {owner.context.trace_id}
    assert op.attributes["process.pid"] == 4001
    # Without that process's rows it stands alone.
    alone = spans_of(trees(foreign))
    assert [s.parent is None for s in alone] == [True, False]


def test_the_budget_goes_to_what_is_open_then_to_what_is_slow() -> None:
    take = trees(
        collective(0, 7, start=CLOCK - 10**6),
        collective(0, 8, start=CLOCK - 2 * 10**6),
        collective(1, 9, done=False),
    )
    take.spans["end_ns"][6:12] += 10**6
    found = build(take, RESOURCE, 13)
    assert found.dropped == 6
    assert [s.attributes["nccl.sequence"] for s in found.spans if s.name == "AllReduce"] == [9, 8]


@pytest.mark.parametrize("damage", ["parent", "root", "type", "comm", "stop"])
def test_rows_that_make_no_sense_do_no_harm(damage: str) -> None:
    take = made()
    if damage == "parent":  # a circle
        take.spans["event"]["parent"][0] = take.spans["handle"][1]
    elif damage == "root":
        take.spans["root"] = 4_000_000_000
    elif damage == "type":
        take.spans["event"]["type"] = 200
    elif damage == "comm":
        take.spans["comm"] = 77
    else:
        take.spans["event"]["stop_ns"] = 1
    for span in spans_of(take):
        assert span.end_time >= span.start_time >= 0


def test_every_attribute_can_be_exported() -> None:
    take = made()
    for span in spans_of(dataclasses.replace(take)):
        assert all(isinstance(v, (str, int, float, bool)) for v in span.attributes.values())


def test_a_collective_by_copy_engine_is_one_trace_with_its_flags_and_copies() -> None:
    spans = spans_of(trees(*(copies(rank, 2) for rank in range(2))))
    assert len({s.context.trace_id for s in spans}) == 1
    coll = named(spans, "AllGather with copy engines", 0)
    batch = named(spans, "ce batch", 0)
    assert coll.attributes is not None and batch.attributes is not None
    assert coll.attributes["nccl.sequence"] == 2 and "nccl.size" not in coll.attributes
    assert batch.parent is not None and batch.parent.span_id == coll.context.span_id
    assert (batch.attributes["nccl.size"], batch.attributes["nccl.copy_engine.copies"]) == (128, 2)
    flags = [
        s.attributes["nccl.copy_engine.flag"] for s in spans if s.name == "ce sync" and s.attributes["nccl.rank"] == 0
    ]
    assert flags == ["ready", "complete"]
