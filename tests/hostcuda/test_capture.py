"""Stream capture: work becomes nodes instead of running, and what a capture can be asked."""

from __future__ import annotations

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import differs
from tests.hostcuda.graphs import (
    ACTIVE,
    EXTERNAL,
    GLOBAL,
    HOST,
    MEMCPY,
    MEMSET,
    NONE,
    RECORD,
    RELAXED,
    THREAD_LOCAL,
    WAIT,
    Graphs,
)

INVALID_VALUE, ILLEGAL_STATE = 1, 401


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_captured_work_runs_at_the_launch_only(lab: Graphs, mode: int) -> None:
    stream = lab.stream(1)
    lab.begin(stream, mode)
    lab.call(stream, lambda: lab.log.append("a"))
    lab.call(stream, lambda: lab.log.append("b"))
    graph = lab.end(stream)
    lab.round_trip()
    assert lab.log == []
    assert lab.types_of(graph) == [HOST, HOST]
    assert lab.run(graph) == ["a", "b"]


def test_capture_of_copy_and_fill_gives_their_nodes(lab: Graphs) -> None:
    memory = lab.rt.new("void **")
    lab.rt.ok.cudaMalloc(memory, 64)
    out = lab.rt.new("unsigned char[]", 64)
    stream = lab.stream()
    lab.begin(stream)
    lab.rt.ok.cudaMemsetAsync(memory[0], 7, 64, stream)
    lab.rt.ok.cudaMemcpyAsync(out, memory[0], 64, 2, stream)
    graph = lab.end(stream)
    assert lab.types_of(graph) == [MEMSET, MEMCPY]
    lab.run(graph)
    assert bytes(out) == b"\x07" * 64
    lab.rt.ok.cudaFree(memory[0])


def test_captured_copy_reads_its_source_at_each_launch(lab: Graphs) -> None:
    source, out = lab.rt.new("int *", 1), lab.rt.new("int *")
    memory = lab.rt.new("void **")
    lab.rt.ok.cudaMalloc(memory, 4)
    stream = lab.stream()
    lab.begin(stream)
    lab.rt.ok.cudaMemcpyAsync(memory[0], source, 4, 1, stream)
    lab.rt.ok.cudaMemcpyAsync(out, memory[0], 4, 2, stream)
    ready = lab.ready(lab.end(stream))
    for value in (5, 6):
        source[0] = value
        lab.rt.ok.cudaGraphLaunch(ready, stream)
        lab.rt.ok.cudaStreamSynchronize(stream)
        assert out[0] == value
    lab.rt.ok.cudaFree(memory[0])


def test_status_follows_the_capture(lab: Graphs) -> None:
    stream = lab.stream()
    assert lab.status(stream) == NONE
    assert lab.info(stream).status == NONE
    lab.begin(stream)
    assert lab.status(stream) == ACTIVE
    lab.end(stream)
    assert lab.status(stream) == NONE


def test_info_names_the_graph_and_what_comes_next_depends_on(lab: Graphs) -> None:
    stream = lab.stream()
    lab.begin(stream)
    first = lab.info(stream)
    assert (first.code, first.status, first.dependencies) == (0, ACTIVE, [])
    lab.call(stream, lambda: None)
    second = lab.info(stream)
    assert second.id == first.id
    assert second.graph == first.graph
    graph = lab.end(stream)
    assert lab.number(graph) == first.graph
    assert lab.nodes_of(graph) == second.dependencies


def test_each_capture_has_its_own_id(lab: Graphs) -> None:
    stream = lab.stream()
    ids = []
    for _ in range(3):
        lab.begin(stream)
        ids.append(lab.info(stream).id)
        lab.end(stream)
    assert len(set(ids)) == 3


def test_info_v3_tells_edge_data(lab: Graphs) -> None:
    stream, new = lab.stream(), lab.rt.new
    status, nodes, data, n = (
        new("enum cudaStreamCaptureStatus *"),
        new("cudaGraphNode_t const **"),
        new("cudaGraphEdgeData const **"),
        new("size_t *"),
    )
    null = lab.ffi.NULL
    name = "cudaStreamGetCaptureInfo" if lab.rt.library == "cudart13" else "cudaStreamGetCaptureInfo_v3"
    info = getattr(lab.rt, name)
    lab.begin(stream)
    lab.call(stream, lambda: None)
    assert info(stream, status, null, null, nodes, data, n) == 0
    assert n[0] == 1
    assert bytes(lab.ffi.buffer(data[0], 8)) == bytes(8)
    assert info(stream, status, null, null, null, data, n) == INVALID_VALUE  # edge data without nodes
    assert info(stream, null, null, null, null, null, null) == INVALID_VALUE  # the status is required
    lab.end(stream)


def test_dependencies_can_be_replaced_and_added(lab: Graphs) -> None:
    stream = lab.stream()
    lab.begin(stream)
    lab.call(stream, lambda: None)
    (a,) = lab.info(stream).dependencies
    assert lab.set_dependencies(stream, []) == 0
    assert lab.info(stream).dependencies == []
    lab.call(stream, lambda: None)
    (b,) = lab.info(stream).dependencies
    assert lab.set_dependencies(stream, [a], flags=0) == 0
    assert set(lab.info(stream).dependencies) == {a, b}
    lab.call(stream, lambda: None)
    (c,) = lab.info(stream).dependencies
    graph = lab.end(stream)
    assert lab.edges_of(graph) == {(a, c), (b, c)}


def test_dependencies_must_be_nodes_of_the_captured_graph(lab: Graphs) -> None:
    stream = lab.stream()
    other = lab.empty(lab.graph())
    assert lab.set_dependencies(stream, []) == ILLEGAL_STATE  # it is not capturing
    lab.begin(stream)
    assert lab.set_dependencies(stream, [other]) == INVALID_VALUE
    assert lab.set_dependencies(stream, [], flags=2) == INVALID_VALUE
    assert lab.status(stream) == ACTIVE
    lab.end(stream)


def test_update_dependencies_v2_of_cuda_12(lab: Graphs) -> None:
    if lab.rt.library != "cudart12":
        assert not hasattr(lab.rt, "cudaStreamUpdateCaptureDependencies_v2")
        return
    stream = lab.stream()
    lab.begin(stream)
    lab.call(stream, lambda: None)
    null = lab.ffi.NULL
    assert lab.rt.cudaStreamUpdateCaptureDependencies_v2(stream, null, null, 0, 1) == 0
    assert lab.info(stream).dependencies == []
    lab.end(stream)


def test_nodes_may_be_added_while_the_capture_goes_on(lab: Graphs) -> None:
    """As NCCL records its events: a node by hand behind what the stream has captured, and the stream goes on behind it."""
    stream, event = lab.stream(), lab.event()
    lab.begin(stream)
    lab.call(stream, lambda: None)
    info = lab.info(stream)
    graph = lab.ffi.cast("cudaGraph_t", info.graph)
    record = lab.add(lab.rt.cudaGraphAddEventRecordNode, graph, [], event)
    assert lab.order(graph, info.dependencies[0], record) == 0
    assert lab.set_dependencies(stream, [record]) == 0
    lab.call(stream, lambda: None)
    (last,) = lab.info(stream).dependencies
    assert lab.edges_of(lab.end(stream)) == {(info.dependencies[0], record), (record, last)}


def test_external_record_and_wait_become_nodes(lab: Graphs) -> None:
    stream, event = lab.stream(), lab.event()
    lab.begin(stream)
    lab.rt.ok.cudaStreamWaitEvent(stream, event, EXTERNAL)
    lab.rt.ok.cudaEventRecordWithFlags(event, stream, EXTERNAL)
    graph = lab.end(stream)
    assert lab.types_of(graph) == [WAIT, RECORD]
    assert lab.rt.cudaEventQuery(event) == 0  # it was not captured


def test_capture_into_a_graph_goes_on_behind_its_nodes(lab: Graphs) -> None:
    stream, graph = lab.stream(), lab.graph()
    first = lab.note(graph, [], "first")
    null = lab.ffi.NULL
    begin = lab.rt.cudaStreamBeginCaptureToGraph
    assert begin(stream, graph, lab.nodes([first]), null, 1, THREAD_LOCAL) == 0
    lab.call(stream, lambda: lab.log.append("second"))
    out = lab.rt.new("cudaGraph_t *")
    lab.rt.ok.cudaStreamEndCapture(stream, out)
    assert out[0] == graph
    assert len(lab.edges_of(graph)) == 1
    assert lab.run(graph) == ["first", "second"]


def test_capture_into_a_graph_needs_nodes_of_that_graph(lab: Graphs) -> None:
    stream, graph, null = lab.stream(), lab.graph(), lab.ffi.NULL
    other = lab.empty(lab.graph())
    begin = lab.rt.cudaStreamBeginCaptureToGraph
    assert begin(stream, graph, lab.nodes([other]), null, 1, THREAD_LOCAL) == INVALID_VALUE
    assert begin(stream, graph, null, null, 1, THREAD_LOCAL) == INVALID_VALUE
    assert lab.status(stream) == NONE


@differs("an instance with a host node cannot be launched into a capture: 900")
def test_launch_of_a_graph_is_captured_as_a_child_graph(lab: Graphs) -> None:
    inner = lab.graph()
    lab.note(inner, [], "inner")
    ready, stream = lab.ready(inner), lab.stream()
    lab.begin(stream)
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.call(stream, lambda: lab.log.append("after"))
    graph = lab.end(stream)
    lab.round_trip()
    assert lab.log == []
    assert lab.run(graph) == ["inner", "after"]


def test_per_thread_default_stream_can_be_captured(lab: Graphs) -> None:
    lab.begin(lab.per_thread)
    lab.call(lab.per_thread, lambda: lab.log.append("a"))
    graph = lab.end(lab.per_thread)
    assert lab.run(graph) == ["a"]


@differs("a handle or pointer that is none is followed, and the process dies")
def test_thread_mode_is_exchanged(rt: Face) -> None:
    mode = rt.new("enum cudaStreamCaptureMode *", RELAXED)
    assert rt.cudaThreadExchangeStreamCaptureMode(mode) == 0
    assert mode[0] == GLOBAL  # the default of a thread
    assert rt.cudaThreadExchangeStreamCaptureMode(mode) == 0
    assert mode[0] == RELAXED
    assert rt.cudaThreadExchangeStreamCaptureMode(rt.ffi.NULL) == INVALID_VALUE
    mode[0] = rt.ffi.cast("enum cudaStreamCaptureMode", 3)
    assert rt.cudaThreadExchangeStreamCaptureMode(mode) == INVALID_VALUE
