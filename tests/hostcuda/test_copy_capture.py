"""Copies and fills in a stream that is captured: nodes that touch memory at each launch, and synchronous forms that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import NON_BLOCKING, Buffers

GLOBAL, RELAXED = 0, 2
UNSUPPORTED, IMPLICIT = 900, 906
MEMCPY_NODE, MEMSET_NODE = 1, 2


class Graph:
    """What a stream was told between begin and end of a capture, instantiated."""

    def __init__(self, b: Buffers, stream: Any, record: Callable[[], None]) -> None:
        rt = b.rt
        self.rt, self.stream = rt, stream
        self.graph, self.exec = rt.new("cudaGraph_t *"), rt.new("cudaGraphExec_t *")
        rt.ok.cudaStreamBeginCapture(stream, RELAXED)
        record()
        rt.ok.cudaStreamEndCapture(stream, self.graph)
        if rt.library == "cudart12":
            rt.ok.cudaGraphInstantiateWithFlags(self.exec, self.graph[0], 0)
        else:
            rt.ok.cudaGraphInstantiate(self.exec, self.graph[0], 0)

    def nodes(self) -> list[Any]:
        count = self.rt.new("size_t *")
        self.rt.ok.cudaGraphGetNodes(self.graph[0], self.rt.ffi.NULL, count)
        nodes = self.rt.new("cudaGraphNode_t[]", count[0])
        self.rt.ok.cudaGraphGetNodes(self.graph[0], nodes, count)
        return list(nodes)

    def launch(self) -> None:
        self.rt.ok.cudaGraphLaunch(self.exec[0], self.stream)
        self.rt.ok.cudaStreamSynchronize(self.stream)

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.rt.ok.cudaGraphExecDestroy(self.exec[0])
        self.rt.ok.cudaGraphDestroy(self.graph[0])


@pytest.mark.parametrize("source", ["pinned", "pageable"])
def test_captured_copies_touch_memory_at_each_launch(rt: Face, source: str) -> None:
    with Buffers(rt) as b:
        stream, src, middle, dst = b.stream(NON_BLOCKING), b.of(source, 64), b.device(64), b.pageable(64)

        def record() -> None:
            rt.ok.cudaMemcpyAsync(b.at(middle), b.at(src), 64, 4, stream)
            rt.ok.cudaMemsetAsync(b.at(middle), 7, 8, stream)
            rt.ok.cudaMemcpyAsync(b.at(dst), b.at(middle), 64, 4, stream)

        b.host(dst, 64)[:] = bytes(64)
        b.host(src, 64)[:] = b"c" * 64
        with Graph(b, stream, record) as graph:
            assert bytes(b.host(dst, 64)) == bytes(64)
            for letter in (b"1", b"2"):
                b.host(src, 64)[:] = letter * 64
                graph.launch()
                assert bytes(b.host(dst, 64)) == b"\7" * 8 + letter * 56


def test_captured_work_tells_its_parameters(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(NON_BLOCKING), b.pinned(400), b.device(500)

        def record() -> None:
            rt.ok.cudaMemcpy2DAsync(b.at(dst), 50, b.at(src), 40, 30, 10, 1, stream)
            rt.ok.cudaMemset2DAsync(b.at(dst), 50, 9, 20, 5, stream)

        with Graph(b, stream, record) as graph:
            copy, fill = rt.new("struct cudaMemcpy3DParms *"), rt.new("struct cudaMemsetParams *")
            kind = rt.new("enum cudaGraphNodeType *")
            seen = set()
            for node in graph.nodes():
                rt.ok.cudaGraphNodeGetType(node, kind)
                seen.add(int(kind[0]))
                if kind[0] == MEMCPY_NODE:
                    rt.ok.cudaGraphMemcpyNodeGetParams(node, copy)
                else:
                    rt.ok.cudaGraphMemsetNodeGetParams(node, fill)
            assert seen == {MEMCPY_NODE, MEMSET_NODE}
            assert (copy.extent.width, copy.extent.height, copy.extent.depth) == (30, 10, 1)
            assert (copy.dstPtr.pitch, copy.srcPtr.pitch, copy.kind) == (50, 40, 1)
            assert (copy.dstPtr.ptr, copy.srcPtr.ptr) == (b.at(dst), b.at(src))
            assert (fill.dst, fill.pitch, fill.value, fill.elementSize) == (b.at(dst), 50, 9, 1)
            assert (fill.width, fill.height) == (20, 5)


@pytest.mark.parametrize("call", ["cudaMemcpy", "cudaMemset"])
def test_synchronous_forms_are_refused_while_a_stream_is_captured(rt: Face, call: str) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(), b.pinned(64), b.device(64)
        graph = rt.new("cudaGraph_t *")
        rt.ok.cudaStreamBeginCapture(stream, GLOBAL)
        if call == "cudaMemcpy":
            assert rt.cudaMemcpy(b.at(dst), b.at(src), 64, 4) == IMPLICIT
        else:
            assert rt.cudaMemset(b.at(dst), 0, 64) == IMPLICIT
        assert rt.cudaStreamEndCapture(stream, graph) != 0
        rt.cudaGetLastError()
        rt.ok.cudaMemcpy(b.at(dst), b.at(src), 64, 4)


def test_synchronous_forms_are_refused_on_a_per_thread_stream_that_is_captured(rt: Face) -> None:
    with Buffers(rt) as b:
        src, dst, mine = b.pinned(64), b.device(64), rt.ffi.cast("cudaStream_t", 2)
        graph = rt.new("cudaGraph_t *")
        rt.ok.cudaStreamBeginCapture(mine, RELAXED)
        assert rt.cudaMemcpy_ptds(b.at(dst), b.at(src), 64, 4) == UNSUPPORTED
        assert rt.cudaStreamEndCapture(mine, graph) != 0
        rt.cudaGetLastError()
        rt.ok.cudaMemcpy_ptds(b.at(dst), b.at(src), 64, 4)
