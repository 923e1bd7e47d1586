"""What each kind of node does when it runs, and its parameters: asked for, changed in the graph, changed for launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostcuda.conftest import differs
from tests.hostcuda.graphs import HOST, MEMCPY, MEMSET, RECORD, WAIT, Graphs

INVALID_VALUE, INVALID_HANDLE, NOT_SUPPORTED = 1, 400, 801
MEM_ALLOC, MEM_FREE = 10, 11


@pytest.fixture
def device(lab: Graphs) -> Iterator[Any]:
    out = lab.rt.new("void **")
    lab.rt.ok.cudaMalloc(out, 256)
    lab.rt.ok.cudaMemset(out[0], 0, 256)
    yield out[0]
    lab.rt.ok.cudaFree(out[0])


def content(lab: Graphs, address: Any, n: int) -> bytes:
    out = lab.rt.new("unsigned char[]", n)
    lab.rt.ok.cudaMemcpy(out, address, n, 4)
    return bytes(out)


def launch(lab: Graphs, ready: Any) -> None:
    stream = lab.stream()
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)


def box(lab: Graphs, dst: Any, src: Any, n: int) -> Any:
    params = lab.rt.new("struct cudaMemcpy3DParms *")
    params.srcPtr.ptr, params.srcPtr.pitch = src, n
    params.dstPtr.ptr, params.dstPtr.pitch = dst, n
    params.extent.width, params.extent.height, params.extent.depth = n, 1, 1
    params.kind = 4
    return params


def fill(lab: Graphs, dst: Any, value: int, n: int) -> Any:
    params = lab.rt.new("struct cudaMemsetParams *")
    params.dst, params.value, params.elementSize, params.width, params.height = dst, value, 1, n, 1
    return params


# ---- copies


def test_copy_node_copies(lab: Graphs, device: Any) -> None:
    graph, source = lab.graph(), lab.rt.new("char[]", b"abcdefg")
    lab.add(lab.rt.cudaGraphAddMemcpyNode, graph, [], box(lab, device, source, 8))
    assert lab.types_of(graph) == [MEMCPY]
    lab.run(graph)
    assert content(lab, device, 8) == b"abcdefg\0"


def test_copy_node_tells_its_parameters(lab: Graphs, device: Any) -> None:
    graph, source = lab.graph(), lab.rt.new("char[]", b"abcdefg")
    node = lab.copy(graph, [], device, source, 8)
    told = lab.rt.new("struct cudaMemcpy3DParms *")
    lab.rt.ok.cudaGraphMemcpyNodeGetParams(lab.node(node), told)
    assert (told.dstPtr.ptr, told.srcPtr.ptr) == (device, lab.ffi.cast("void *", source))
    assert (told.extent.width, told.extent.height, told.extent.depth) == (8, 1, 1)
    assert lab.rt.cudaGraphMemcpyNodeGetParams(lab.node(lab.empty(graph)), told) == INVALID_VALUE


@pytest.mark.parametrize("instance", [False, True])
@pytest.mark.parametrize("line", [False, True])
def test_copy_node_changes_in_the_graph_for_later_instances_or_in_an_instance_only(
    lab: Graphs, device: Any, line: bool, instance: bool
) -> None:
    graph = lab.graph()
    first, second = lab.rt.new("char[]", b"first"), lab.rt.new("char[]", b"other")
    node = lab.node(lab.copy(graph, [], device, first, 6))
    ready = lab.ready(graph)
    name, what = ("cudaGraphExecMemcpyNode", (ready, node)) if instance else ("cudaGraphMemcpyNode", (node,))
    if line:
        getattr(lab.rt.ok, f"{name}SetParams1D")(*what, device, second, 6, 4)
    else:
        getattr(lab.rt.ok, f"{name}SetParams")(*what, box(lab, device, second, 6))
    launch(lab, ready)
    assert content(lab, device, 6) == (b"other\0" if instance else b"first\0")
    lab.run(graph)
    assert content(lab, device, 6) == (b"first\0" if instance else b"other\0")


@differs("cudaGraphGetNodes takes no room for nodes that are not there")
def test_copy_node_is_checked_when_it_is_made(lab: Graphs, device: Any) -> None:
    graph, out = lab.graph(), lab.rt.new("cudaGraphNode_t *")
    add = lab.rt.cudaGraphAddMemcpyNode1D
    assert add(out, graph, lab.ffi.NULL, 0, device, device, 1 << 40, 3) == INVALID_VALUE  # out of bounds
    assert add(out, graph, lab.ffi.NULL, 0, device, device, 8, 9) != 0  # no such kind
    assert lab.rt.cudaGraphAddMemcpyNode(out, graph, lab.ffi.NULL, 0, lab.ffi.NULL) == INVALID_VALUE
    assert lab.nodes_of(graph) == []


def test_copy_of_a_symbol_needs_a_registered_one(lab: Graphs, device: Any) -> None:
    graph, out, null = lab.graph(), lab.rt.new("cudaGraphNode_t *"), lab.ffi.NULL
    unknown, invalid_symbol = lab.rt.new("char[8]"), 13
    rt = lab.rt
    node, ready = lab.node(lab.copy(graph, [], device, unknown, 8)), lab.ready(graph)
    codes = [
        rt.cudaGraphAddMemcpyNodeToSymbol(out, graph, null, 0, unknown, device, 8, 0, 3),
        rt.cudaGraphAddMemcpyNodeFromSymbol(out, graph, null, 0, device, unknown, 8, 0, 3),
        rt.cudaGraphMemcpyNodeSetParamsToSymbol(node, unknown, device, 8, 0, 3),
        rt.cudaGraphMemcpyNodeSetParamsFromSymbol(node, device, unknown, 8, 0, 3),
        rt.cudaGraphExecMemcpyNodeSetParamsToSymbol(ready, node, unknown, device, 8, 0, 3),
        rt.cudaGraphExecMemcpyNodeSetParamsFromSymbol(ready, node, device, unknown, 8, 0, 3),
    ]
    assert codes == [invalid_symbol] * 6


# ---- fills


def test_fill_node_fills_and_changes(lab: Graphs, device: Any) -> None:
    graph = lab.graph()
    number = lab.add(lab.rt.cudaGraphAddMemsetNode, graph, [], fill(lab, device, 7, 4))
    node, ready = lab.node(number), lab.ready(graph)
    launch(lab, ready)
    assert content(lab, device, 5) == b"\7\7\7\7\0"
    told = lab.rt.new("struct cudaMemsetParams *")
    lab.rt.ok.cudaGraphMemsetNodeGetParams(node, told)
    assert (told.dst, told.value, told.width) == (device, 7, 4)
    lab.rt.ok.cudaGraphExecMemsetNodeSetParams(ready, node, fill(lab, device, 8, 4))
    launch(lab, ready)
    assert content(lab, device, 4) == b"\x08" * 4
    lab.rt.ok.cudaGraphMemsetNodeSetParams(node, fill(lab, device, 9, 5))
    lab.run(graph)
    assert content(lab, device, 5) == b"\x09" * 5
    assert lab.types_of(graph) == [MEMSET]


# ---- host functions


def test_host_node_changes(lab: Graphs) -> None:
    graph = lab.graph()
    node = lab.node(lab.note(graph, [], "a"))
    ready = lab.ready(graph)
    lab.rt.ok.cudaGraphExecHostNodeSetParams(ready, node, lab.host_params(lambda: lab.log.append("b")))
    launch(lab, ready)
    assert lab.log == ["b"]
    params = lab.host_params(lambda: lab.log.append("c"))
    lab.rt.ok.cudaGraphHostNodeSetParams(node, params)
    lab.run(graph)
    assert lab.log == ["b", "c"]
    told = lab.rt.new("struct cudaHostNodeParams *")
    lab.rt.ok.cudaGraphHostNodeGetParams(node, told)
    assert (told.fn, told.userData) == (params.fn, params.userData)


def test_captured_host_function_can_be_asked_and_changed(lab: Graphs) -> None:
    stream = lab.stream()
    lab.begin(stream)
    lab.call(stream, lambda: lab.log.append("a"))
    graph = lab.end(stream)
    (node,) = lab.nodes_of(graph)
    told = lab.rt.new("struct cudaHostNodeParams *")
    lab.rt.ok.cudaGraphHostNodeGetParams(lab.node(node), told)
    assert told.fn != lab.ffi.NULL
    lab.rt.ok.cudaGraphHostNodeSetParams(lab.node(node), lab.host_params(lambda: lab.log.append("b")))
    assert lab.run(graph) == ["b"]


def test_host_node_may_not_call_cuda(lab: Graphs) -> None:
    graph, codes = lab.graph(), list[int]()
    lab.host(graph, [], lambda: codes.append(lab.rt.cudaFree(lab.ffi.NULL)))
    lab.run(graph)
    assert codes == [800]  # cudaErrorNotPermitted


def test_host_node_needs_a_function(lab: Graphs) -> None:
    graph, out, params = lab.graph(), lab.rt.new("cudaGraphNode_t *"), lab.rt.new("struct cudaHostNodeParams *")
    assert lab.rt.cudaGraphAddHostNode(out, graph, lab.ffi.NULL, 0, params) == INVALID_VALUE
    assert lab.rt.cudaGraphAddHostNode(out, graph, lab.ffi.NULL, 0, lab.ffi.NULL) == INVALID_VALUE


# ---- events


@differs("the event of a node is not checked")
def test_event_nodes_tell_and_change_their_events(lab: Graphs) -> None:
    graph, a, b = lab.graph(), lab.event(), lab.event()
    record = lab.node(lab.add(lab.rt.cudaGraphAddEventRecordNode, graph, [], a))
    wait = lab.node(lab.add(lab.rt.cudaGraphAddEventWaitNode, graph, [], a))
    assert lab.types_of(graph) == [RECORD, WAIT]
    out = lab.rt.new("cudaEvent_t *")
    for node, kind in ((record, "Record"), (wait, "Wait")):
        get = getattr(lab.rt, f"cudaGraphEvent{kind}NodeGetEvent")
        getattr(lab.rt.ok, f"cudaGraphEvent{kind}NodeSetEvent")(node, b)
        assert get(node, out) == 0
        assert out[0] == b
    assert lab.rt.cudaGraphEventWaitNodeGetEvent(record, out) == INVALID_VALUE
    assert lab.rt.cudaGraphEventRecordNodeSetEvent(record, lab.ffi.cast("cudaEvent_t", 0x1000)) == INVALID_HANDLE


def test_event_record_node_records_when_it_runs(lab: Graphs) -> None:
    graph, event, door = lab.graph(), lab.event(), lab.door()
    first = lab.host(graph, [], door.hold)
    lab.add(lab.rt.cudaGraphAddEventRecordNode, graph, [first], event)
    stream = lab.stream()
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    assert lab.rt.cudaEventQuery(event) == 600  # recorded at the launch, not done yet
    door.open()
    assert lab.rt.cudaEventSynchronize(event) == 0
    assert lab.log == ["door"]


def test_event_wait_node_waits_for_work_outside(lab: Graphs) -> None:
    graph, event, other = lab.graph(), lab.event(), lab.stream(1)
    wait = lab.add(lab.rt.cudaGraphAddEventWaitNode, graph, [], event)
    lab.note(graph, [wait], "after")
    gate = lab.gate(other)
    lab.rt.ok.cudaEventRecord(event, other)
    stream = lab.stream(1)
    lab.rt.ok.cudaGraphLaunch(lab.ready(graph), stream)
    lab.expect_held(gate, stream, ["gate", "after"])


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_events_order_two_graphs(lab: Graphs) -> None:
    first, second, event, door = lab.graph(), lab.graph(), lab.event(), lab.door("first")
    lab.add(lab.rt.cudaGraphAddEventRecordNode, first, [lab.host(first, [], door.hold)], event)
    wait = lab.add(lab.rt.cudaGraphAddEventWaitNode, second, [], event)
    lab.note(second, [wait], "second")
    a, b = lab.stream(1), lab.stream(1)
    lab.rt.ok.cudaGraphLaunch(lab.ready(first), a)
    lab.rt.ok.cudaGraphLaunch(lab.ready(second), b)
    lab.expect_held(door, b, ["first", "second"])


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_events_of_an_instance_change(lab: Graphs) -> None:
    graph, old, new = lab.graph(), lab.event(), lab.event()
    record = lab.node(lab.add(lab.rt.cudaGraphAddEventRecordNode, graph, [], old))
    wait = lab.node(lab.add(lab.rt.cudaGraphAddEventWaitNode, graph, [], old))
    lab.note(graph, [lab.number(wait)], "after")
    ready, other, stream = lab.ready(graph), lab.stream(1), lab.stream(1)
    lab.rt.ok.cudaGraphExecEventWaitNodeSetEvent(ready, wait, new)
    assert lab.rt.cudaGraphExecEventRecordNodeSetEvent(ready, wait, new) == INVALID_VALUE
    lab.rt.ok.cudaGraphExecEventRecordNodeSetEvent(ready, record, lab.event())
    gate = lab.gate(other)
    lab.rt.ok.cudaEventRecord(new, other)
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.expect_held(gate, stream, ["gate", "after"])


@differs("a handle or pointer that is none is followed, and the process dies")
def test_launch_with_a_destroyed_event_runs_nothing(lab: Graphs) -> None:
    graph, out = lab.graph(), lab.rt.new("cudaEvent_t *")
    lab.rt.ok.cudaEventCreateWithFlags(out, 2)
    lab.note(graph, [], "a")
    lab.add(lab.rt.cudaGraphAddEventRecordNode, graph, [], out[0])
    lab.rt.ok.cudaEventDestroy(out[0])
    stream = lab.stream()
    assert lab.rt.cudaGraphLaunch(lab.ready(graph), stream) == INVALID_HANDLE
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == []


# ---- allocations


def allocation(lab: Graphs, n: int) -> Any:
    params = lab.rt.new("struct cudaMemAllocNodeParams *")
    params.poolProps.allocType = 1  # pinned
    params.poolProps.location.type = 1  # device
    params.bytesize = n
    return params


def test_allocation_node_gives_memory_to_the_nodes_behind_it(lab: Graphs) -> None:
    graph, rt, params = lab.graph(), lab.rt, allocation(lab, 64)
    first = lab.add(rt.cudaGraphAddMemAllocNode, graph, [], params)
    assert params.dptr != lab.ffi.NULL
    out = rt.new("unsigned char[]", 8)
    second = lab.add(rt.cudaGraphAddMemsetNode, graph, [first], fill(lab, params.dptr, 5, 8))
    third = lab.copy(graph, [second], out, params.dptr, 8)
    last = lab.add(rt.cudaGraphAddMemFreeNode, graph, [third], params.dptr)
    assert lab.types_of(graph) == [MEM_ALLOC, MEMSET, MEMCPY, MEM_FREE]
    told, address = rt.new("struct cudaMemAllocNodeParams *"), rt.new("void **")
    rt.ok.cudaGraphMemAllocNodeGetParams(lab.node(first), told)
    rt.ok.cudaGraphMemFreeNodeGetParams(lab.node(last), address)
    assert (told.dptr, told.bytesize, address[0]) == (params.dptr, 64, params.dptr)
    lab.run(graph)
    assert bytes(out) == b"\5" * 8


def test_graph_that_allocates_cannot_be_cloned_cut_or_instantiated_twice(lab: Graphs) -> None:
    graph, params = lab.graph(), allocation(lab, 64)
    first = lab.add(lab.rt.cudaGraphAddMemAllocNode, graph, [], params)
    lab.add(lab.rt.cudaGraphAddMemFreeNode, graph, [first], params.dptr)
    clone, ready, node = lab.rt.new("cudaGraph_t *"), lab.rt.new("cudaGraphExec_t *"), lab.rt.new("cudaGraphNode_t *")
    assert lab.rt.cudaGraphClone(clone, graph) == NOT_SUPPORTED
    assert lab.rt.cudaGraphDestroyNode(lab.node(first)) == NOT_SUPPORTED
    assert lab.disorder(graph, *next(iter(lab.edges_of(graph)))) == NOT_SUPPORTED
    outer = lab.graph()
    assert lab.rt.cudaGraphAddChildGraphNode(node, outer, lab.ffi.NULL, 0, graph) == NOT_SUPPORTED
    lab.rt.ok.cudaGraphInstantiate(ready, graph, 0)
    assert lab.rt.cudaGraphInstantiate(lab.rt.new("cudaGraphExec_t *"), graph, 0) == NOT_SUPPORTED
    lab.rt.ok.cudaGraphExecDestroy(ready[0])
    lab.ready(graph)


@differs("cudaGraphGetNodes takes no room for nodes that are not there")
def test_allocation_node_is_checked(lab: Graphs) -> None:
    graph, out, params = lab.graph(), lab.rt.new("cudaGraphNode_t *"), allocation(lab, 0)
    add = lab.rt.cudaGraphAddMemAllocNode
    assert add(out, graph, lab.ffi.NULL, 0, params) == INVALID_VALUE
    params.bytesize, params.poolProps.location.id = 64, 99
    assert add(out, graph, lab.ffi.NULL, 0, params) != 0
    assert lab.rt.cudaGraphAddMemFreeNode(out, graph, lab.ffi.NULL, 0, lab.ffi.NULL) == INVALID_VALUE
    assert lab.nodes_of(graph) == []


# ---- all kinds by one union


def add_any(lab: Graphs, graph: Any, params: Any) -> int:
    out = lab.rt.new("cudaGraphNode_t *")
    null = lab.ffi.NULL
    if lab.rt.library == "cudart13":
        lab.rt.ok.cudaGraphAddNode(out, graph, null, null, 0, params)
    else:
        lab.rt.ok.cudaGraphAddNode_v2(out, graph, null, null, 0, params)
    return lab.number(out[0])


def test_nodes_by_the_union_of_parameters(lab: Graphs, device: Any) -> None:
    graph, source = lab.graph(), lab.rt.new("char[]", b"abc")
    kinds = [MEMCPY, MEMSET, HOST, WAIT, RECORD]
    made = []
    for kind in kinds:
        params = lab.rt.new("struct cudaGraphNodeParams *")
        params.type = kind
        if kind == MEMCPY:
            params.memcpy.copyParams = box(lab, device, source, 4)[0]
        elif kind == MEMSET:
            params.memset.dst, params.memset.value = device + 8, 6
            params.memset.elementSize, params.memset.width, params.memset.height = 1, 4, 1
        elif kind == HOST:
            params.host.fn = lab.function(lambda: lab.log.append("host"))
        elif kind == WAIT:
            params.eventWait.event = lab.event()
        else:
            params.eventRecord.event = lab.event()
        made.append(add_any(lab, graph, params))
        if kind == HOST:
            params.host.fn = lab.function(lambda: lab.log.append("changed"))
            lab.rt.ok.cudaGraphNodeSetParams(lab.node(made[-1]), params)
    assert lab.types_of(graph) == kinds
    assert lab.run(graph) == ["changed"]
    assert content(lab, device, 4) == b"abc\0"
    assert content(lab, lab.ffi.cast("char *", device) + 8, 4) == b"\6" * 4


def test_instance_changes_by_the_union_of_parameters(lab: Graphs) -> None:
    graph = lab.graph()
    node = lab.node(lab.note(graph, [], "a"))
    ready, params = lab.ready(graph), lab.rt.new("struct cudaGraphNodeParams *")
    params.type = HOST
    params.host.fn = lab.function(lambda: lab.log.append("b"))
    lab.rt.ok.cudaGraphExecNodeSetParams(ready, node, params)
    launch(lab, ready)
    assert lab.log == ["b"]
    params.type = MEM_FREE
    assert lab.rt.cudaGraphExecNodeSetParams(ready, node, params) == INVALID_VALUE


@differs("the error is another one: 801")
def test_child_graph_by_the_union_of_parameters_may_be_moved(lab: Graphs) -> None:
    graph, out = lab.graph(), lab.rt.new("cudaGraph_t *")
    lab.rt.ok.cudaGraphCreate(out, 0)
    lab.note(out[0], [], "child")
    params = lab.rt.new("struct cudaGraphNodeParams *")
    params.type, params.graph.graph, params.graph.ownership = 4, out[0], 1
    add_any(lab, graph, params)
    assert params.graph.graph == out[0]
    assert lab.rt.cudaGraphDestroy(out[0]) == INVALID_VALUE  # it is the node's now
    assert lab.rt.cudaGraphInstantiate(lab.rt.new("cudaGraphExec_t *"), out[0], 0) == INVALID_VALUE
    assert lab.run(graph) == ["child"]


def test_node_tells_the_union_of_cuda_13(lab: Graphs, device: Any) -> None:
    if lab.rt.library != "cudart13":
        assert not hasattr(lab.rt, "cudaGraphNodeGetParams")
        return
    graph, event = lab.graph(), lab.event()
    told = lab.rt.new("struct cudaGraphNodeParams *")
    record = lab.add(lab.rt.cudaGraphAddEventRecordNode, graph, [], event)
    lab.rt.ok.cudaGraphNodeGetParams(lab.node(record), told)
    assert (told.type, told.eventRecord.event) == (RECORD, event)
    memset = lab.add(lab.rt.cudaGraphAddMemsetNode, graph, [], fill(lab, device, 3, 4))
    lab.rt.ok.cudaGraphNodeGetParams(lab.node(memset), told)
    assert (told.type, told.memset.dst, told.memset.value) == (MEMSET, device, 3)


def test_node_of_cuda_12_without_edge_data(lab: Graphs) -> None:
    if lab.rt.library != "cudart12":
        assert not hasattr(lab.rt, "cudaGraphAddNode_v2")
        return
    graph, params, out = lab.graph(), lab.rt.new("struct cudaGraphNodeParams *"), lab.rt.new("cudaGraphNode_t *")
    params.type = HOST
    params.host.fn = lab.function(lambda: lab.log.append("a"))
    assert lab.rt.cudaGraphAddNode(out, graph, lab.ffi.NULL, 0, params) == 0
    assert lab.run(graph) == ["a"]
