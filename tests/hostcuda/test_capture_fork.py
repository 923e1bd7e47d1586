"""Captures over several streams: events carry a capture from stream to stream, and everything must be joined at the end."""

from __future__ import annotations

import pytest

from tests.hostcuda.conftest import differs
from tests.hostcuda.gates import DEADLINE
from tests.hostcuda.graphs import ACTIVE, EXTERNAL, HOST, INVALIDATED, NONE, RECORD, Graphs

INVALIDATED_ERROR, MERGE, UNMATCHED, UNJOINED, ISOLATION, CAPTURED_EVENT = 901, 902, 903, 904, 905, 907


def test_waiting_for_a_captured_event_pulls_a_stream_in(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream(1)
    lab.begin(origin)
    lab.fork(origin, other)
    assert lab.status(other) == ACTIVE
    assert lab.info(other).id == lab.info(origin).id
    lab.call(other, lambda: lab.log.append("other"))
    lab.fork(other, origin)
    graph = lab.end(origin)
    assert lab.status(other) == NONE
    lab.round_trip()
    assert lab.log == []
    assert lab.run(graph) == ["other"]


def test_fork_and_join_give_the_edges_of_a_diamond(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream()
    lab.begin(origin)
    lab.call(origin, lambda: None)
    (top,) = lab.info(origin).dependencies
    lab.fork(origin, other)
    lab.call(origin, lambda: None)
    lab.call(other, lambda: None)
    (left,), (right,) = lab.info(origin).dependencies, lab.info(other).dependencies
    lab.fork(other, origin)
    assert set(lab.info(origin).dependencies) == {left, right}
    lab.call(origin, lambda: None)
    (bottom,) = lab.info(origin).dependencies
    assert lab.edges_of(lab.end(origin)) == {(top, left), (top, right), (left, bottom), (right, bottom)}


def test_event_means_what_was_captured_before_its_record(lab: Graphs) -> None:
    origin, other, event = lab.stream(), lab.stream(), lab.event()
    lab.begin(origin)
    lab.call(origin, lambda: None)
    before = lab.info(origin).dependencies
    lab.rt.ok.cudaEventRecord(event, origin)
    lab.call(origin, lambda: None)
    lab.rt.ok.cudaStreamWaitEvent(other, event, 0)
    assert lab.info(other).dependencies == before
    lab.end(origin)


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_branches_of_a_captured_fork_run_side_by_side(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream()
    door = lab.door("left")
    lab.begin(origin)
    lab.fork(origin, other)
    lab.call(origin, door.hold)
    lab.call(other, door.open)  # would never run behind the door
    lab.fork(other, origin)
    assert lab.run(lab.end(origin)) == ["left"]


def test_work_that_was_not_joined_fails_the_end(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream()
    lab.begin(origin)
    lab.fork(origin, other)
    lab.call(other, lambda: None)
    assert lab.end_code(origin) == UNJOINED
    assert (lab.status(origin), lab.status(other)) == (NONE, NONE)


def test_work_after_the_join_is_not_joined(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream()
    lab.begin(origin)
    lab.fork(origin, other)
    lab.call(other, lambda: None)
    lab.fork(other, origin)
    lab.call(other, lambda: None)
    assert lab.end_code(origin) == UNJOINED


def test_stream_that_captured_nothing_needs_no_join(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream()
    lab.begin(origin)
    lab.call(origin, lambda: None)
    lab.fork(origin, other)
    assert lab.types_of(lab.end(origin)) == [HOST]


def test_nodes_taken_from_the_dependencies_need_no_join(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream()
    lab.begin(origin)
    lab.fork(origin, other)
    lab.call(other, lambda: None)
    assert lab.set_dependencies(other, []) == 0
    assert lab.types_of(lab.end(origin)) == [HOST]


def test_nodes_cut_off_by_the_application_need_no_join(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream()
    lab.begin(origin)
    lab.fork(origin, other)
    lab.call(other, lambda: None)
    (cut,) = lab.info(other).dependencies
    lab.fork(other, origin)
    lab.call(origin, lambda: None)
    (last,) = lab.info(origin).dependencies
    graph = lab.ffi.cast("cudaGraph_t", lab.info(origin).graph)
    assert lab.disorder(graph, cut, last) == 0
    assert lab.types_of(lab.end(origin)) == [HOST, HOST]


def test_nodes_added_by_hand_need_no_join(lab: Graphs) -> None:
    """NCCL leaves its own stream behind an event record node that nothing waits for."""
    origin, other, event = lab.stream(), lab.stream(1), lab.event()
    lab.begin(origin)
    lab.fork(origin, other)
    graph = lab.ffi.cast("cudaGraph_t", lab.info(origin).graph)
    record = lab.add(lab.rt.cudaGraphAddEventRecordNode, graph, [], event)
    assert lab.set_dependencies(other, [record]) == 0
    assert lab.types_of(lab.end(origin)) == [RECORD]


def test_stream_that_was_pulled_in_may_be_destroyed(lab: Graphs) -> None:
    """NCCL asks a stream of the moment what an event means, and destroys it."""
    origin, out = lab.stream(), lab.rt.new("cudaStream_t *")
    lab.begin(origin)
    lab.call(origin, lambda: lab.log.append("a"))
    lab.rt.ok.cudaStreamCreateWithFlags(out, 1)
    lab.fork(origin, out[0])
    assert lab.info(out[0]).dependencies == lab.info(origin).dependencies
    assert lab.rt.cudaStreamDestroy(out[0]) == 0
    assert lab.run(lab.end(origin)) == ["a"]


def test_destroying_the_stream_where_it_began_ends_the_capture(lab: Graphs) -> None:
    out, other = lab.rt.new("cudaStream_t *"), lab.stream()
    lab.rt.ok.cudaStreamCreateWithFlags(out, 0)
    lab.begin(out[0])
    lab.fork(out[0], other)
    lab.rt.ok.cudaStreamDestroy(out[0])
    assert lab.status(other) == NONE
    assert lab.probe(other, "works").wait(DEADLINE)


def test_only_the_stream_where_it_began_can_end_a_capture(lab: Graphs) -> None:
    origin, other = lab.stream(), lab.stream()
    lab.begin(origin)
    lab.fork(origin, other)
    assert lab.end_code(other) == UNMATCHED
    assert lab.end_code(origin) == INVALIDATED_ERROR


def test_capture_may_not_wait_for_work_outside(lab: Graphs) -> None:
    origin, other, event = lab.stream(), lab.stream(), lab.event()
    lab.rt.ok.cudaEventRecord(event, other)
    lab.begin(origin)
    assert lab.rt.cudaStreamWaitEvent(origin, event, 0) == ISOLATION
    assert lab.status(origin) == INVALIDATED
    assert lab.end_code(origin) == INVALIDATED_ERROR


def test_external_wait_for_work_outside_is_a_node(lab: Graphs) -> None:
    origin, other, event = lab.stream(), lab.stream(), lab.event()
    gate = lab.gate(other)
    lab.rt.ok.cudaEventRecord(event, other)
    lab.begin(origin)
    lab.rt.ok.cudaStreamWaitEvent(origin, event, EXTERNAL)
    lab.call(origin, lambda: lab.log.append("after"))
    ready = lab.ready(lab.end(origin))
    lab.rt.ok.cudaGraphLaunch(ready, origin)
    lab.expect_held(gate, origin, ["gate", "after"])


def test_two_captures_may_not_be_merged(lab: Graphs) -> None:
    a, b = lab.stream(), lab.stream()
    event = lab.event()
    lab.begin(a)
    lab.begin(b)
    lab.rt.ok.cudaEventRecord(event, a)
    assert lab.rt.cudaStreamWaitEvent(b, event, 0) == MERGE
    assert lab.end_code(a) == INVALIDATED_ERROR
    assert lab.end_code(b) == INVALIDATED_ERROR


@differs("the error is another one: 1")
@pytest.mark.parametrize("call", ["cudaEventQuery", "cudaEventSynchronize"])
def test_captured_event_cannot_be_asked(lab: Graphs, call: str) -> None:
    stream, event = lab.stream(), lab.event()
    lab.begin(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    assert getattr(lab.rt, call)(event) == CAPTURED_EVENT
    assert lab.end_code(stream) == INVALIDATED_ERROR
    assert getattr(lab.rt, call)(event) == CAPTURED_EVENT  # it was last recorded in a capture still
    lab.rt.ok.cudaEventRecord(event, stream)
    assert lab.rt.cudaEventSynchronize(event) == 0


@differs("the error is another one: 1")
def test_elapsed_time_of_a_captured_event_cannot_be_asked(lab: Graphs) -> None:
    stream, start, end = lab.stream(), lab.event(0), lab.event(0)
    lab.rt.ok.cudaEventRecord(start, stream)
    lab.begin(stream)
    lab.rt.ok.cudaEventRecord(end, stream)
    lab.end(stream)
    assert lab.rt.cudaEventElapsedTime(lab.rt.new("float *"), start, end) == CAPTURED_EVENT


@differs("the error is another one: 1")
def test_event_of_a_capture_that_has_ended_cannot_be_waited_for(lab: Graphs) -> None:
    stream, other, event = lab.stream(), lab.stream(), lab.event()
    lab.begin(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    lab.end(stream)
    assert lab.rt.cudaStreamWaitEvent(other, event, 0) == CAPTURED_EVENT
    assert lab.status(other) == NONE


def test_event_may_be_destroyed_while_its_capture_goes_on(lab: Graphs) -> None:
    stream, other, out = lab.stream(), lab.stream(), lab.rt.new("cudaEvent_t *")
    lab.rt.ok.cudaEventCreateWithFlags(out, 2)
    lab.begin(stream)
    lab.rt.ok.cudaEventRecord(out[0], stream)
    lab.rt.ok.cudaStreamWaitEvent(other, out[0], 0)
    assert lab.rt.cudaEventDestroy(out[0]) == 0
    assert lab.status(other) == ACTIVE
    lab.end(stream)
