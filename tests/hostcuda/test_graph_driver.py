"""Graphs, captures and user objects by the driver API. Handles are the runtime's, so that one library can ask the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import differs
from tests.hostcuda.gates import DEADLINE
from tests.hostcuda.graphs import ACTIVE, HOST, MEMCPY, MEMSET, NONE, RECORD, RELAXED, WAIT, Graphs

INVALID_VALUE, ILLEGAL_STATE, UPDATE_FAILURE = 1, 401, 910
BATCH_MEM_OP = 12
DEVICE, UNIFIED = 2, 4
WRITE_VALUE_32 = 2


class Driver(Graphs):
    """A lab whose graphs are made by the driver API."""

    def __init__(self, rt: Face, drv: Face) -> None:
        super().__init__(rt)
        self.drv = drv
        self.nil = drv.ffi.NULL

    def d(self, kind: str, handle: Any) -> Any:
        """A handle of the runtime as the driver knows it."""
        return self.drv.ffi.cast(kind, self.number(handle) if not isinstance(handle, int) else handle)

    def g(self, graph: Any) -> Any:
        return self.d("CUgraph", graph)

    def n(self, node: int) -> Any:
        return self.d("CUgraphNode", node)

    def s(self, stream: Any) -> Any:
        return self.d("CUstream", stream)

    def x(self, ready: Any) -> Any:
        return self.d("CUgraphExec", ready)

    def array(self, nodes: Sequence[int]) -> Any:
        return self.drv.new("CUgraphNode[]", [self.n(node) for node in nodes]) if nodes else self.nil

    def put(self, function: Any, graph: Any, deps: Sequence[int], *rest: Any) -> int:
        """Calls one of cuGraphAdd*Node; the node's number."""
        out = self.drv.new("CUgraphNode *")
        code = function(out, self.g(graph), self.array(deps), len(deps), *rest)
        assert code == 0, code
        return int(self.drv.ffi.cast("uintptr_t", out[0]))

    def host_of(self, name: str) -> Any:
        params = self.drv.new("CUDA_HOST_NODE_PARAMS *")
        params.fn = self.drv.ffi.cast("void (*)(void *)", self.number(self.function(lambda: self.log.append(name))))
        return params

    def launch(self, ready: Any) -> list[str]:
        stream = self.stream()
        self.drv.ok.cuGraphLaunch(self.x(ready), self.s(stream))
        self.rt.ok.cudaStreamSynchronize(stream)
        log, self.log = self.log, []
        return log


@pytest.fixture
def lab(rt: Face, drv: Face) -> Iterator[Driver]:
    with Driver(rt, drv) as made:
        yield made


@pytest.fixture
def device(lab: Driver) -> Iterator[int]:
    out = lab.rt.new("void **")
    lab.rt.ok.cudaMalloc(out, 256)
    lab.rt.ok.cudaMemset(out[0], 0, 256)
    lab.rt.ok.cudaDeviceSynchronize()
    yield lab.number(out[0])
    lab.rt.ok.cudaFree(out[0])


def content(lab: Driver, address: int, n: int) -> bytes:
    out = lab.rt.new("unsigned char[]", n)
    lab.rt.ok.cudaMemcpy(out, lab.ffi.cast("void *", address), n, 4)
    return bytes(out)


def test_graph_is_made_cloned_and_destroyed(lab: Driver) -> None:
    drv, new = lab.drv, lab.drv.new
    out, clone, node = new("CUgraph *"), new("CUgraph *"), new("CUgraphNode *")
    drv.ok.cuGraphCreate(out, 0)
    first = lab.put(drv.cuGraphAddEmptyNode, drv.ffi.cast("uintptr_t", out[0]), [])
    drv.ok.cuGraphClone(clone, out[0])
    drv.ok.cuGraphNodeFindInClone(node, lab.n(first), clone[0])
    drv.ok.cuGraphDestroyNode(node[0])
    n = new("size_t *")
    drv.ok.cuGraphGetNodes(clone[0], lab.nil, n)
    assert n[0] == 0
    drv.ok.cuGraphGetRootNodes(out[0], lab.nil, n)
    assert n[0] == 1
    drv.ok.cuGraphDestroy(out[0])
    drv.ok.cuGraphDestroy(clone[0])


@pytest.mark.parametrize("v", ["", "_v2"])
def test_edges(lab: Driver, v: str) -> None:
    drv, graph, new = lab.drv, lab.graph(), lab.drv.new
    a, b = lab.empty(graph), lab.empty(graph)
    more = [lab.nil] if v else []
    ends = (lab.array([a]), lab.array([b]))
    assert getattr(drv, f"cuGraphAddDependencies{v}")(lab.g(graph), *ends, *more, 1) == 0
    out, n = new("CUgraphNode[2]"), new("size_t *", 1)
    assert getattr(drv, f"cuGraphGetEdges{v}")(lab.g(graph), out, out + 1, *more, n) == 0
    assert (n[0], out[0], out[1]) == (1, lab.n(a), lab.n(b))
    assert getattr(drv, f"cuGraphNodeGetDependencies{v}")(lab.n(b), out, *more, n) == 0
    assert out[0] == lab.n(a)
    assert getattr(drv, f"cuGraphNodeGetDependentNodes{v}")(lab.n(a), out, *more, n) == 0
    assert out[0] == lab.n(b)
    assert getattr(drv, f"cuGraphRemoveDependencies{v}")(lab.g(graph), *ends, *more, 1) == 0
    assert lab.edges_of(graph) == set()


def test_ids(lab: Driver) -> None:
    drv, graph, number = lab.drv, lab.graph(), lab.drv.new("unsigned int[2]")
    nodes, tools, owner = (
        [lab.empty(graph), lab.empty(graph)],
        lab.drv.new("unsigned long long[2]"),
        lab.drv.new("CUgraph *"),
    )
    for i, node in enumerate(nodes):
        drv.ok.cuGraphNodeGetLocalId(lab.n(node), number + i)
        drv.ok.cuGraphNodeGetToolsId(lab.n(node), tools + i)
    assert number[0] != number[1]
    assert tools[0] != tools[1]
    drv.ok.cuGraphNodeGetContainingGraph(lab.n(nodes[0]), owner)
    assert owner[0] == lab.g(graph)
    drv.ok.cuGraphGetId(lab.g(graph), number)
    drv.ok.cuGraphGetId(lab.g(lab.graph()), number + 1)
    assert number[0] != number[1]


# ---- nodes


def box(lab: Driver, dst: int, src: int, n: int) -> Any:
    params = lab.drv.new("CUDA_MEMCPY3D *")
    params.srcMemoryType = params.dstMemoryType = UNIFIED
    params.srcDevice, params.dstDevice = src, dst
    params.WidthInBytes, params.Height, params.Depth = n, 1, 1
    return params


def test_copy_node(lab: Driver, device: int) -> None:
    drv, graph = lab.drv, lab.graph()
    first, second = (lab.rt.new("char[]", text) for text in (b"first", b"other"))
    node = lab.put(drv.cuGraphAddMemcpyNode, graph, [], box(lab, device, lab.number(first), 6), lab.nil)
    ready, told = lab.ready(graph), drv.new("CUDA_MEMCPY3D *")
    lab.launch(ready)
    assert content(lab, device, 6) == b"first\0"
    drv.ok.cuGraphExecMemcpyNodeSetParams(lab.x(ready), lab.n(node), box(lab, device, lab.number(second), 6), lab.nil)
    lab.launch(ready)
    assert content(lab, device, 6) == b"other\0"
    drv.ok.cuGraphMemcpyNodeSetParams(lab.n(node), box(lab, device + 8, lab.number(second), 6))
    drv.ok.cuGraphMemcpyNodeGetParams(lab.n(node), told)
    assert (told.dstDevice, told.srcDevice, told.WidthInBytes) == (device + 8, lab.number(second), 6)
    lab.run(graph)
    assert content(lab, device + 8, 6) == b"other\0"


def test_each_api_tells_copies_of_the_other(lab: Driver, device: int) -> None:
    drv, graph, source = lab.drv, lab.graph(), lab.rt.new("char[8]")
    by_driver = lab.put(drv.cuGraphAddMemcpyNode, graph, [], box(lab, device, lab.number(source), 6), lab.nil)
    by_runtime = lab.copy(graph, [], lab.ffi.cast("void *", device), source, 6)
    a, b = lab.rt.new("struct cudaMemcpy3DParms *"), drv.new("CUDA_MEMCPY3D *")
    lab.rt.ok.cudaGraphMemcpyNodeGetParams(lab.node(by_driver), a)
    drv.ok.cuGraphMemcpyNodeGetParams(lab.n(by_runtime), b)
    assert (lab.number(a.dstPtr.ptr), a.extent.width, a.kind) == (device, 6, 4)
    assert (b.dstDevice, b.WidthInBytes, b.dstMemoryType) == (device, 6, UNIFIED)


def fill(lab: Driver, dst: int, value: int) -> Any:
    params = lab.drv.new("CUDA_MEMSET_NODE_PARAMS *")
    params.dst, params.value, params.elementSize, params.width, params.height = dst, value, 1, 4, 1
    return params


def test_fill_node(lab: Driver, device: int) -> None:
    drv, graph = lab.drv, lab.graph()
    node = lab.put(drv.cuGraphAddMemsetNode, graph, [], fill(lab, device, 1), lab.nil)
    ready, told = lab.ready(graph), drv.new("CUDA_MEMSET_NODE_PARAMS *")
    lab.launch(ready)
    assert content(lab, device, 4) == b"\1" * 4
    drv.ok.cuGraphExecMemsetNodeSetParams(lab.x(ready), lab.n(node), fill(lab, device, 2), lab.nil)
    lab.launch(ready)
    assert content(lab, device, 4) == b"\2" * 4
    drv.ok.cuGraphMemsetNodeSetParams(lab.n(node), fill(lab, device, 3))
    drv.ok.cuGraphMemsetNodeGetParams(lab.n(node), told)
    assert (told.dst, told.value) == (device, 3)


def test_host_node(lab: Driver) -> None:
    drv, graph = lab.drv, lab.graph()
    node = lab.put(drv.cuGraphAddHostNode, graph, [], lab.host_of("a"))
    ready, told, changed = lab.ready(graph), drv.new("CUDA_HOST_NODE_PARAMS *"), lab.host_of("c")
    assert lab.launch(ready) == ["a"]
    drv.ok.cuGraphExecHostNodeSetParams(lab.x(ready), lab.n(node), lab.host_of("b"))
    assert lab.launch(ready) == ["b"]
    drv.ok.cuGraphHostNodeSetParams(lab.n(node), changed)
    drv.ok.cuGraphHostNodeGetParams(lab.n(node), told)
    assert told.fn == changed.fn
    assert lab.run(graph) == ["c"]


def test_event_nodes(lab: Driver) -> None:
    drv, graph = lab.drv, lab.graph()
    a, b = (lab.d("CUevent", lab.event()) for _ in range(2))
    record = lab.put(drv.cuGraphAddEventRecordNode, graph, [], a)
    wait = lab.put(drv.cuGraphAddEventWaitNode, graph, [], a)
    ready, out = lab.ready(graph), drv.new("CUevent *")
    drv.ok.cuGraphExecEventRecordNodeSetEvent(lab.x(ready), lab.n(record), b)
    drv.ok.cuGraphExecEventWaitNodeSetEvent(lab.x(ready), lab.n(wait), b)
    drv.ok.cuGraphEventRecordNodeSetEvent(lab.n(record), b)
    drv.ok.cuGraphEventWaitNodeSetEvent(lab.n(wait), b)
    drv.ok.cuGraphEventRecordNodeGetEvent(lab.n(record), out)
    assert out[0] == b
    drv.ok.cuGraphEventWaitNodeGetEvent(lab.n(wait), out)
    assert out[0] == b
    assert lab.types_of(graph) == [RECORD, WAIT]


def test_child_graph_node(lab: Driver) -> None:
    drv, graph, child, other = lab.drv, lab.graph(), lab.graph(), lab.graph()
    lab.note(child, [], "child")
    lab.note(other, [], "other")
    node = lab.put(drv.cuGraphAddChildGraphNode, graph, [], lab.g(child))
    out, ready = drv.new("CUgraph *"), lab.ready(graph)
    drv.ok.cuGraphChildGraphNodeGetGraph(lab.n(node), out)
    assert out[0] != lab.g(child)
    drv.ok.cuGraphExecChildGraphNodeSetParams(lab.x(ready), lab.n(node), lab.g(other))
    assert lab.launch(ready) == ["other"]


def write_value(lab: Driver, address: int, value: int) -> Any:
    params, operations = lab.drv.new("CUDA_BATCH_MEM_OP_NODE_PARAMS *"), lab.drv.new("CUstreamBatchMemOpParams[1]")
    operations[0].operation = WRITE_VALUE_32
    operations[0].writeValue.address, operations[0].writeValue.value = address, value
    params.count, params.paramArray = 1, operations
    lab._kept.append(operations)
    return params


@differs("cuGraphAddBatchMemOpNode answers 1")
def test_memory_operation_node(lab: Driver, device: int) -> None:
    drv, graph = lab.drv, lab.graph()
    node = lab.put(drv.cuGraphAddBatchMemOpNode, graph, [], write_value(lab, device, 5))
    assert lab.types_of(graph) == [BATCH_MEM_OP]
    ready, told = lab.ready(graph), drv.new("CUDA_BATCH_MEM_OP_NODE_PARAMS *")
    lab.launch(ready)
    assert content(lab, device, 4) == (5).to_bytes(4, "little")
    drv.ok.cuGraphExecBatchMemOpNodeSetParams(lab.x(ready), lab.n(node), write_value(lab, device, 6))
    lab.launch(ready)
    assert content(lab, device, 4) == (6).to_bytes(4, "little")
    drv.ok.cuGraphBatchMemOpNodeSetParams(lab.n(node), write_value(lab, device, 7))
    drv.ok.cuGraphBatchMemOpNodeGetParams(lab.n(node), told)
    assert (told.count, told.paramArray[0].writeValue.value) == (1, 7)
    lab.run(graph)
    assert content(lab, device, 4) == (7).to_bytes(4, "little")


def test_allocation_nodes(lab: Driver) -> None:
    drv, graph, params = lab.drv, lab.graph(), lab.drv.new("CUDA_MEM_ALLOC_NODE_PARAMS *")
    params.poolProps.allocType = params.poolProps.location.type = 1
    params.bytesize = 32
    first = lab.put(drv.cuGraphAddMemAllocNode, graph, [], params)
    last = lab.put(drv.cuGraphAddMemFreeNode, graph, [first], params.dptr)
    told, address = drv.new("CUDA_MEM_ALLOC_NODE_PARAMS *"), drv.new("CUdeviceptr *")
    drv.ok.cuGraphMemAllocNodeGetParams(lab.n(first), told)
    drv.ok.cuGraphMemFreeNodeGetParams(lab.n(last), address)
    assert (told.dptr, told.bytesize, address[0]) == (params.dptr, 32, params.dptr)
    assert params.dptr != 0
    lab.run(graph)


@differs("cuGraphAddNode answers 1")
@pytest.mark.parametrize("v", ["", "_v2", "_v3"])
def test_nodes_by_the_union_of_parameters(lab: Driver, device: int, v: str) -> None:
    drv, graph, source = lab.drv, lab.graph(), lab.rt.new("char[]", b"abc")
    kinds, made = [MEMCPY, MEMSET, HOST, BATCH_MEM_OP], list[int]()
    for kind in kinds:
        params, out = drv.new("CUgraphNodeParams *"), drv.new("CUgraphNode *")
        params.type = drv.ffi.cast("CUgraphNodeType", kind)
        if kind == MEMCPY:
            params.memcpy.copyParams = box(lab, device, lab.number(source), 4)[0]
        elif kind == MEMSET:
            params.memset.dst = drv.ffi.cast("void *", device + 8)
            params.memset.value = 6
            params.memset.elementSize, params.memset.width, params.memset.height = 1, 4, 1
        elif kind == HOST:
            params.host.fn = lab.host_of("host").fn
        else:
            params.memOp = write_value(lab, device + 16, 9)[0]
        more = [lab.nil] if v else []
        assert getattr(drv, f"cuGraphAddNode{v}")(out, lab.g(graph), lab.nil, *more, 0, params) == 0
        made.append(int(drv.ffi.cast("uintptr_t", out[0])))
        if kind == HOST:
            params.host.fn = lab.host_of("changed").fn
            getattr(drv.ok, "cuGraphNodeSetParams_v2" if v == "_v3" else "cuGraphNodeSetParams")(
                lab.n(made[-1]), params
            )
            host = params
    ready = lab.ready(graph)
    assert lab.launch(ready) == ["changed"]
    assert content(lab, device, 20) == b"abc\0" + bytes(4) + b"\6" * 4 + bytes(4) + b"\x09\0\0\0"
    host.host.fn = lab.host_of("again").fn
    drv.ok.cuGraphExecNodeSetParams(lab.x(ready), lab.n(made[2]), host)
    assert lab.launch(ready) == ["again"]
    kind, told = drv.new("CUgraphNodeType *"), drv.new("CUgraphNodeParams *")
    drv.ok.cuGraphNodeGetType(lab.n(made[3]), kind)
    assert kind[0] == BATCH_MEM_OP
    answers = []
    for node in made:
        drv.ok.cuGraphNodeGetParams(lab.n(node), told)
        answers.append(int(told.type))
        if told.type == MEMSET:
            assert int(drv.ffi.cast("uintptr_t", told.memset.dst)) == device + 8
        if told.type == BATCH_MEM_OP:
            assert told.memOp.paramArray[0].writeValue.value == 9
    assert answers == kinds


# ---- executable graphs


def test_instance(lab: Driver) -> None:
    drv, graph, out = lab.drv, lab.graph(), lab.drv.new("CUgraphExec *")
    lab.note(graph, [], "a")
    drv.ok.cuGraphInstantiateWithFlags(out, lab.g(graph), 8)
    flags, number, stream = drv.new("cuuint64_t *"), drv.new("unsigned int *"), lab.stream()
    drv.ok.cuGraphExecGetFlags(out[0], flags)
    drv.ok.cuGraphExecGetId(out[0], number)
    assert (flags[0], number[0] > 0) == (8, True)
    drv.ok.cuGraphUpload(out[0], lab.s(stream))
    drv.ok.cuGraphLaunch(out[0], lab.s(stream))
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["a"]
    drv.ok.cuGraphExecDestroy(out[0])


def test_instance_with_parameters(lab: Driver) -> None:
    drv, graph, out = lab.drv, lab.graph(), lab.drv.new("CUgraphExec *")
    params = drv.new("CUDA_GRAPH_INSTANTIATE_PARAMS *")
    drv.ok.cuGraphInstantiateWithParams(out, lab.g(graph), params)
    drv.ok.cuGraphExecDestroy(out[0])
    a, b = lab.empty(graph), lab.empty(graph)
    lab.order(graph, a, b)
    lab.order(graph, b, a)
    assert drv.cuGraphInstantiateWithParams(out, lab.g(graph), params) == INVALID_VALUE
    assert params.result_out == 2
    assert params.hErrNode_out in (lab.n(a), lab.n(b))


def test_update(lab: Driver) -> None:
    drv, old, new, other = lab.drv, lab.graph(), lab.graph(), lab.graph()
    lab.note(old, [], "old")
    lab.note(new, [], "new")
    wrong = lab.empty(other)
    ready, info = lab.ready(old), drv.new("CUgraphExecUpdateResultInfo *")
    assert drv.cuGraphExecUpdate_v2(lab.x(ready), lab.g(other), info) == UPDATE_FAILURE
    assert info.errorNode == lab.n(wrong)
    assert drv.cuGraphExecUpdate_v2(lab.x(ready), lab.g(new), info) == 0
    assert lab.launch(ready) == ["new"]


def test_node_is_switched_off(lab: Driver, device: int) -> None:
    drv, graph = lab.drv, lab.graph()
    node = lab.put(drv.cuGraphAddMemsetNode, graph, [], fill(lab, device, 1), lab.nil)
    ready, value = lab.ready(graph), drv.new("unsigned int *")
    drv.ok.cuGraphNodeSetEnabled(lab.x(ready), lab.n(node), 0)
    drv.ok.cuGraphNodeGetEnabled(lab.x(ready), lab.n(node), value)
    assert value[0] == 0
    lab.launch(ready)
    assert content(lab, device, 4) == bytes(4)


def test_picture(lab: Driver, tmp_path: Path) -> None:
    graph = lab.graph()
    lab.empty(graph)
    lab.drv.ok.cuGraphDebugDotPrint(lab.g(graph), str(tmp_path / "x.dot").encode(), 0)
    assert "EMPTY" in (tmp_path / "x.dot").read_text()


# ---- captures


def test_capture(lab: Driver) -> None:
    drv, stream, new = lab.drv, lab.stream(), lab.drv.new
    status, number, out = new("CUstreamCaptureStatus *"), new("cuuint64_t *"), new("CUgraph *")
    nodes, data, n, told = (
        new("CUgraphNode const **"),
        new("CUgraphEdgeData const **"),
        new("size_t *"),
        new("CUgraph *"),
    )
    drv.ok.cuStreamIsCapturing(lab.s(stream), status)
    assert status[0] == NONE
    drv.ok.cuStreamBeginCapture_v2(lab.s(stream), RELAXED)
    lab.call(stream, lambda: lab.log.append("a"))
    drv.ok.cuStreamGetCaptureInfo_v2(lab.s(stream), status, number, told, nodes, n)
    assert (status[0], n[0]) == (ACTIVE, 1)
    first = nodes[0][0]
    drv.ok.cuStreamGetCaptureInfo_v3(lab.s(stream), status, lab.nil, lab.nil, nodes, data, n)
    assert nodes[0][0] == first
    drv.ok.cuStreamGetCaptureInfo(lab.s(stream), status, number)
    assert (status[0], number[0]) == (ACTIVE, lab.info(stream).id)
    drv.ok.cuStreamUpdateCaptureDependencies(lab.s(stream), lab.nil, 0, 1)
    drv.ok.cuStreamUpdateCaptureDependencies_v2(lab.s(stream), new("CUgraphNode[]", [first]), lab.nil, 1, 0)
    assert len(lab.info(stream).dependencies) == 1
    drv.ok.cuStreamEndCapture(lab.s(stream), out)
    assert out[0] == told[0]
    graph = lab.keep(lab.ffi.cast("cudaGraph_t", int(drv.ffi.cast("uintptr_t", out[0]))))
    assert lab.run(graph) == ["a"]
    assert drv.cuStreamEndCapture(lab.s(stream), out) == ILLEGAL_STATE


def test_capture_into_a_graph(lab: Driver) -> None:
    drv, graph, stream, out = lab.drv, lab.graph(), lab.stream(), lab.drv.new("CUgraph *")
    first = lab.note(graph, [], "first")
    drv.ok.cuStreamBeginCaptureToGraph(lab.s(stream), lab.g(graph), lab.array([first]), lab.nil, 1, RELAXED)
    lab.call(stream, lambda: lab.log.append("second"))
    drv.ok.cuStreamEndCapture(lab.s(stream), out)
    assert lab.run(graph) == ["first", "second"]


def test_thread_mode_is_the_runtimes(lab: Driver) -> None:
    mode, same = lab.drv.new("CUstreamCaptureMode *", RELAXED), lab.rt.new("enum cudaStreamCaptureMode *", 0)
    lab.drv.ok.cuThreadExchangeStreamCaptureMode(mode)
    lab.rt.ok.cudaThreadExchangeStreamCaptureMode(same)
    assert (mode[0], same[0]) == (0, RELAXED)


# ---- user objects


@differs("too many references may be released")
def test_user_object(lab: Driver) -> None:
    drv, graph, gone, out = lab.drv, lab.graph(), threading.Event(), lab.drv.new("CUuserObject *")
    destroy = drv.ffi.cast("CUhostFn", lab.number(lab.function(gone.set)))
    drv.ok.cuUserObjectCreate(out, lab.nil, destroy, 1, 1)
    drv.ok.cuUserObjectRetain(out[0], 1)
    drv.ok.cuGraphRetainUserObject(lab.g(graph), out[0], 2, 1)
    assert drv.cuUserObjectRelease(out[0], 1) == INVALID_VALUE
    drv.ok.cuGraphReleaseUserObject(lab.g(graph), out[0], 1)
    drv.ok.cuUserObjectRetain(out[0], 1)
    drv.ok.cuGraphReleaseUserObject(lab.g(graph), out[0], 1)
    assert not gone.is_set()
    drv.ok.cuUserObjectRelease(out[0], 1)
    assert gone.wait(DEADLINE)


@differs("no node is named")
@pytest.mark.parametrize("name", ["cuGraphInstantiate", "cuGraphInstantiate_v2"])
def test_instance_with_a_log_names_the_node_that_is_wrong(lab: Driver, name: str) -> None:
    drv, graph, out = lab.drv, lab.graph(), lab.drv.new("CUgraphExec *")
    call, node, log = getattr(drv, name), drv.new("CUgraphNode *"), drv.new("char[]", b"before")
    assert call(out, lab.g(graph), drv.ffi.NULL, drv.ffi.NULL, 0) == 0
    drv.ok.cuGraphExecDestroy(out[0])
    a, b = lab.empty(graph), lab.empty(graph)
    lab.order(graph, a, b)
    lab.order(graph, b, a)
    assert call(out, lab.g(graph), node, log, 7) == INVALID_VALUE
    assert node[0] in (lab.n(a), lab.n(b)) and drv.ffi.string(log) == b""
