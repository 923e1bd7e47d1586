"""Launching graphs: order by dependencies, nodes side by side, the order of the stream, one launch of an instance at a time."""

from __future__ import annotations

import threading

import pytest

from tests.hostcuda.conftest import Child, differs, emulated, needs_devices
from tests.hostcuda.gates import DEADLINE, NOT_READY
from tests.hostcuda.graphs import GLOBAL, INVALIDATED, Graphs

INVALID_VALUE, INVALID_HANDLE, NOT_SUPPORTED, UNSUPPORTED, IMPLICIT = 1, 400, 801, 900, 906


# ---- within a graph


def test_nodes_run_in_the_order_of_their_dependencies(lab: Graphs) -> None:
    graph = lab.graph()
    last = lab.note(graph, [], "last")
    middle = lab.note(graph, [], "middle")
    first = lab.note(graph, [], "first")
    lab.order(graph, first, middle)
    lab.order(graph, middle, last)
    assert lab.run(graph) == ["first", "middle", "last"]


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_nodes_without_dependencies_run_side_by_side(lab: Graphs) -> None:
    graph, doors = lab.graph(), [lab.door(str(i)) for i in range(8)]
    for door in doors:
        lab.host(graph, [], door.hold)
    stream = lab.stream()
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    assert all(door.entered.wait(DEADLINE) for door in doors)
    for door in reversed(doors):
        door.open()
        assert door.left.wait(DEADLINE)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == [str(i) for i in reversed(range(8))]


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_node_waits_for_all_its_dependencies(lab: Graphs) -> None:
    graph, doors = lab.graph(), [lab.door(str(i)) for i in range(3)]
    lab.note(graph, [lab.host(graph, [], door.hold) for door in doors], "after")
    stream = lab.stream()
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    for door in doors:
        lab.round_trip()
        assert "after" not in lab.log
        door.open()
        assert door.left.wait(DEADLINE)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["0", "1", "2", "after"]


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_branch_is_not_held_up_by_its_neighbour(lab: Graphs) -> None:
    """Two forks and joins one after the other: streams are used again, and still nothing waits without need."""
    graph, doors = lab.graph(), [lab.door("a"), lab.door("b")]
    top = lab.empty(graph)
    for door in doors:
        left = lab.host(graph, [top], door.hold)
        right = lab.host(graph, [top], door.open)
        top = lab.empty(graph, left, right)
    assert lab.run(graph) == ["a", "b"]


def test_child_graph_runs_between_what_is_before_and_behind_it(lab: Graphs) -> None:
    graph, child = lab.graph(), lab.graph()
    inside = [lab.note(child, [], name) for name in ("x", "y")]
    lab.note(child, inside, "z")
    before = lab.note(graph, [], "before")
    node = lab.add(lab.rt.cudaGraphAddChildGraphNode, graph, [before], child)
    lab.note(graph, [node], "after")
    log = lab.run(graph)
    assert (log[0], set(log[1:3]), log[3:]) == ("before", {"x", "y"}, ["z", "after"])


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_empty_child_graph_keeps_the_order(lab: Graphs) -> None:
    graph, door = lab.graph(), lab.door("before")
    node = lab.add(lab.rt.cudaGraphAddChildGraphNode, graph, [lab.host(graph, [], door.hold)], lab.graph())
    lab.note(graph, [node], "after")
    stream = lab.stream()
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    lab.expect_held(door, stream, ["before", "after"])


def test_large_graph(lab: Graphs) -> None:
    graph, count = lab.graph(), [0]
    step = lab.host_params(lambda: count.__setitem__(0, count[0] + 1))
    node = lab.empty(graph)
    for _ in range(50):
        fan = [lab.empty(graph, node) for _ in range(20)]
        node = lab.add(lab.rt.cudaGraphAddHostNode, graph, fan, step)
    lab.run(graph)
    assert count == [50]


@needs_devices(2)
def test_nodes_run_on_the_device_for_which_they_were_made(lab: Graphs) -> None:
    graph, out = lab.graph(), lab.rt.new("unsigned char[]", 4)
    memory = lab.rt.new("void **")
    lab.rt.ok.cudaSetDevice(1)
    lab.rt.ok.cudaMalloc(memory, 4)
    params = lab.rt.new("struct cudaMemsetParams *")
    params.dst, params.value, params.elementSize, params.width, params.height = memory[0], 4, 1, 4, 1
    fill = lab.add(lab.rt.cudaGraphAddMemsetNode, graph, [], params)
    lab.rt.ok.cudaSetDevice(0)
    lab.copy(graph, [fill], out, memory[0], 4)
    lab.run(graph)
    assert bytes(out) == b"\4" * 4
    lab.rt.ok.cudaFree(memory[0])


# ---- in a stream


def test_launch_returns_before_the_graph_has_run(lab: Graphs) -> None:
    graph, door, stream = lab.graph(), lab.door(), lab.stream()
    lab.host(graph, [], door.hold)
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    assert lab.rt.cudaStreamQuery(stream) == NOT_READY
    door.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["door"]


def test_launch_obeys_the_order_of_its_stream(lab: Graphs) -> None:
    graph, stream = lab.graph(), lab.stream()
    lab.note(graph, [], "graph")
    lab.note(graph, [], "graph")
    gate = lab.gate(stream, "before")
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    lab.probe(stream, "after")
    lab.expect_held(gate, stream, ["before", "graph", "graph", "after"])


def test_event_behind_a_launch_waits_for_all_nodes(lab: Graphs) -> None:
    graph, stream, event, door = lab.graph(), lab.stream(), lab.event(), lab.door()
    lab.host(graph, [], door.hold)
    lab.note(graph, [], "quick")
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    door.open()
    assert lab.rt.cudaEventSynchronize(event) == 0
    assert sorted(lab.log) == ["door", "quick"]


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
@pytest.mark.parametrize("flags", [0, 1])
def test_legacy_stream_waits_for_a_graph_in_a_blocking_stream_only(lab: Graphs, flags: int) -> None:
    graph, door, stream = lab.graph(), lab.door("graph"), lab.stream(flags)
    lab.host(graph, [], door.hold)
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    assert door.entered.wait(DEADLINE)
    ran = lab.probe(lab.legacy, "legacy")
    if flags:
        assert ran.wait(DEADLINE)
    else:
        lab.round_trip()
        assert lab.log == []
    door.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    lab.rt.ok.cudaStreamSynchronize(lab.legacy)
    assert lab.log == (["legacy", "graph"] if flags else ["graph", "legacy"])


def test_graph_in_the_legacy_stream_waits_for_blocking_streams(lab: Graphs) -> None:
    graph, stream = lab.graph(), lab.stream(0)
    lab.note(graph, [], "graph")
    gate = lab.gate(stream)
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), lab.null)
    lab.expect_held(gate, lab.null, ["gate", "graph"])


def test_launch_by_ptsz_goes_to_the_per_thread_stream(lab: Graphs) -> None:
    graph, gate = lab.graph(), lab.gate(lab.per_thread)
    lab.note(graph, [], "graph")
    lab.rt.ok.cudaGraphLaunch_ptsz(lab.ready(graph), lab.null)
    lab.expect_held(gate, lab.per_thread, ["gate", "graph"])


def test_launch_in_the_legacy_stream_beside_a_captured_blocking_stream(lab: Graphs) -> None:
    graph, stream = lab.graph(), lab.stream(0)
    ready = lab.ready(graph)
    lab.begin(stream, GLOBAL)
    assert lab.rt.cudaGraphLaunch(ready, lab.legacy) == IMPLICIT
    assert lab.status(stream) == INVALIDATED
    lab.end_code(stream)


# ---- instances


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_launches_of_one_instance_follow_each_other(lab: Graphs) -> None:
    graph, door, a, b = lab.graph(), lab.door("run"), lab.stream(1), lab.stream(1)
    lab.host(graph, [], door.hold)
    ready = lab.ready(graph)
    lab.rt.ok.cudaGraphLaunch(ready, a)
    assert door.entered.wait(DEADLINE)
    door.entered.clear()
    lab.rt.ok.cudaGraphLaunch(ready, b)
    lab.round_trip()
    assert not door.entered.is_set()
    door.open()
    lab.rt.ok.cudaStreamSynchronize(b)
    assert lab.log == ["run", "run"]


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_two_instances_run_side_by_side(lab: Graphs) -> None:
    graph, a, b = lab.graph(), lab.stream(1), lab.stream(1)
    together = threading.Barrier(2)
    lab.host(graph, [], lambda: together.wait(DEADLINE))
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), a)
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), b)
    lab.rt.ok.cudaStreamSynchronize(a)
    lab.rt.ok.cudaStreamSynchronize(b)
    assert not together.broken


def test_instance_is_what_the_graph_was(lab: Graphs) -> None:
    graph = lab.graph()
    lab.note(graph, [], "a")
    ready, stream = lab.ready(graph), lab.stream()
    lab.note(graph, [], "b")
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["a"]


def test_instance_outlives_its_graph(lab: Graphs) -> None:
    out, stream = lab.rt.new("cudaGraph_t *"), lab.stream()
    lab.rt.ok.cudaGraphCreate(out, 0)
    lab.note(out[0], [], "a")
    ready = lab.ready(out[0])
    lab.rt.ok.cudaGraphDestroy(out[0])
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["a"]


@differs("the error is another one: 1")
def test_instance_may_be_destroyed_while_it_runs(lab: Graphs) -> None:
    graph, door, stream = lab.graph(), lab.door("a"), lab.stream()
    lab.note(graph, [lab.host(graph, [], door.hold)], "b")
    out = lab.rt.new("cudaGraphExec_t *")
    lab.rt.ok.cudaGraphInstantiate(out, graph, 0)
    lab.rt.ok.cudaGraphLaunch(out[0], stream)
    assert door.entered.wait(DEADLINE)
    assert lab.rt.cudaGraphExecDestroy(out[0]) == 0
    assert lab.rt.cudaGraphExecDestroy(out[0]) == INVALID_HANDLE
    assert lab.rt.cudaGraphLaunch(out[0], stream) == INVALID_HANDLE
    door.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["a", "b"]


def test_cycle_cannot_be_instantiated(lab: Graphs) -> None:
    graph = lab.graph()
    a, b = lab.empty(graph), lab.empty(graph)
    lab.order(graph, a, b)
    lab.order(graph, b, a)
    out, params = lab.rt.new("cudaGraphExec_t *"), lab.rt.new("cudaGraphInstantiateParams *")
    assert lab.rt.cudaGraphInstantiate(out, graph, 0) == INVALID_VALUE
    assert lab.rt.cudaGraphInstantiateWithParams(out, graph, params) == INVALID_VALUE
    assert params.result_out == 2  # cudaGraphInstantiateInvalidStructure
    assert lab.number(params.errNode_out) in (a, b)


@differs("a handle or pointer that is none is followed, and the process dies")
def test_instantiate_refuses_what_it_does_not_know(lab: Graphs) -> None:
    graph, out, null = lab.graph(), lab.rt.new("cudaGraphExec_t *"), lab.ffi.NULL
    assert lab.rt.cudaGraphInstantiate(null, graph, 0) == INVALID_VALUE
    assert lab.rt.cudaGraphInstantiate(out, null, 0) == INVALID_VALUE
    assert lab.rt.cudaGraphInstantiate(out, lab.ffi.cast("cudaGraph_t", 0x1000), 0) == INVALID_HANDLE
    assert lab.rt.cudaGraphInstantiate(out, graph, 1 << 20) == INVALID_VALUE
    assert lab.rt.cudaGraphInstantiate(out, graph, 2) == INVALID_VALUE  # upload: WithParams only
    assert lab.rt.cudaGraphInstantiateWithParams(out, graph, null) == INVALID_VALUE


@emulated
def test_graphs_for_launches_by_kernels_are_refused(lab: Graphs) -> None:
    out = lab.rt.new("cudaGraphExec_t *")
    assert lab.rt.cudaGraphInstantiate(out, lab.graph(), 4) == NOT_SUPPORTED


@differs("the flag of the upload is not told")
def test_instantiate_tells_its_flags(lab: Graphs) -> None:
    graph, out, flags = lab.graph(), lab.rt.new("cudaGraphExec_t *"), lab.rt.new("unsigned long long *")
    lab.rt.ok.cudaGraphInstantiateWithFlags(out, graph, 8)
    lab.rt.ok.cudaGraphExecGetFlags(out[0], flags)
    assert flags[0] == 8
    lab.rt.ok.cudaGraphExecDestroy(out[0])


@differs("a handle or pointer that is none is followed, and the process dies")
def test_instantiate_with_upload(lab: Graphs) -> None:
    graph, stream = lab.graph(), lab.stream()
    lab.note(graph, [], "a")
    out, params = lab.rt.new("cudaGraphExec_t *"), lab.rt.new("cudaGraphInstantiateParams *")
    params.flags, params.uploadStream = 2, stream
    lab.rt.ok.cudaGraphInstantiateWithParams(out, graph, params)
    assert (params.result_out, params.errNode_out) == (0, lab.ffi.NULL)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == []  # it was not run
    lab.rt.ok.cudaGraphExecDestroy(out[0])
    params.uploadStream = lab.ffi.cast("cudaStream_t", 0x1000)
    assert lab.rt.cudaGraphInstantiateWithParams(out, graph, params) == INVALID_HANDLE


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_upload_is_ordered_behind_launches_and_runs_nothing(lab: Graphs) -> None:
    graph, door, a, b = lab.graph(), lab.door(), lab.stream(1), lab.stream(1)
    lab.host(graph, [], door.hold)
    ready = lab.ready(graph)
    lab.rt.ok.cudaGraphLaunch(ready, a)
    lab.rt.ok.cudaGraphUpload(ready, b)
    lab.round_trip()
    assert lab.rt.cudaStreamQuery(b) == NOT_READY
    door.open()
    lab.rt.ok.cudaStreamSynchronize(b)
    assert lab.log == ["door"]
    lab.begin(a)
    assert lab.rt.cudaGraphUpload(ready, a) == UNSUPPORTED
    lab.end_code(a)


@emulated
def test_failure_in_a_graph_sticks_to_the_device(expect_child: Child) -> None:
    expect_child("""
        memory, graph, made = new("void **"), new("cudaGraph_t *"), new("cudaGraphExec_t *")
        node, null = new("cudaGraphNode_t *"), ffi.NULL
        ok.cudaMalloc(memory, 64)
        out = new("char[64]")
        ok.cudaGraphCreate(graph, 0)
        ok.cudaGraphAddMemcpyNode1D(node, graph[0], null, 0, out, memory[0], 64, 2)
        ok.cudaGraphInstantiate(made, graph[0], 0)
        ok.cudaFree(memory[0])
        ok.cudaGraphLaunch(made[0], null)
        assert rt.cudaDeviceSynchronize() != 0
        assert rt.cudaDeviceSynchronize() != 0
    """)
