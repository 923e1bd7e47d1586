"""Graphs of one test: made node by node or captured, launched, and given back at the end of its `with`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from psmkit.lab.cuda import Face
from tests.hostcuda.gates import DEADLINE, Gate, Lab

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, INVALIDATED = 0, 1, 2
KERNEL, MEMCPY, MEMSET, HOST, CHILD, EMPTY, WAIT, RECORD = range(8)
EXTERNAL = 1


@dataclass(frozen=True)
class Info:
    """What cudaStreamGetCaptureInfo tells."""

    code: int
    status: int
    id: int
    graph: int
    dependencies: list[int]


_FUNCTIONS: list[Any] = []


class Graphs(Lab):
    """A lab with graphs. Handles of nodes are Python integers, so that they can be compared."""

    def __init__(self, rt: Face) -> None:
        super().__init__(rt)
        self._graphs: list[Any] = []
        self._execs: list[Any] = []
        self._doors: list[Gate] = []

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for door in self._doors:
            door.open()
        super().__exit__(kind, value, trace)
        for graph_exec in self._execs:
            self.rt.cudaGraphExecDestroy(graph_exec)
        for graph in self._graphs:
            self.rt.cudaGraphDestroy(graph)

    # ---- handles

    def number(self, handle: Any) -> int:
        return int(self.ffi.cast("uintptr_t", handle))

    def node(self, number: int) -> Any:
        return self.ffi.cast("cudaGraphNode_t", number)

    def nodes(self, numbers: Sequence[int]) -> Any:
        return self.rt.new("cudaGraphNode_t[]", [self.node(n) for n in numbers]) if numbers else self.ffi.NULL

    # ---- graphs

    def graph(self) -> Any:
        out = self.rt.new("cudaGraph_t *")
        self.rt.ok.cudaGraphCreate(out, 0)
        self._graphs.append(out[0])
        return out[0]

    def keep(self, graph: Any) -> Any:
        """A graph that came from elsewhere, to be destroyed at the end."""
        self._graphs.append(graph)
        return graph

    def add(self, function: Callable[..., int], graph: Any, deps: Sequence[int], *rest: Any) -> int:
        """Calls one of cudaGraphAdd*Node; the node's number."""
        out = self.rt.new("cudaGraphNode_t *")
        code = function(out, graph, self.nodes(deps), len(deps), *rest)
        assert code == 0, code
        return self.number(out[0])

    def empty(self, graph: Any, *deps: int) -> int:
        return self.add(self.rt.cudaGraphAddEmptyNode, graph, deps)

    def function(self, function: Callable[[], object]) -> Any:
        """A C function that calls a Python function."""

        @self.ffi.callback("void(void *)")
        def run(_data: Any) -> None:
            function()

        # For good: a destructor or a callback may run after the test has ended.
        _FUNCTIONS.append(run)
        return run

    def host_params(self, function: Callable[[], object]) -> Any:
        params = self.rt.new("struct cudaHostNodeParams *")
        params.fn = self.function(function)
        return params

    def host(self, graph: Any, deps: Sequence[int], function: Callable[[], object]) -> int:
        return self.add(self.rt.cudaGraphAddHostNode, graph, deps, self.host_params(function))

    def note(self, graph: Any, deps: Sequence[int], name: str) -> int:
        """A host node that puts its name into the log."""
        return self.host(graph, deps, lambda: self.log.append(name))

    def door(self, name: str = "door") -> Gate:
        """A gate for a node: `hold` is its function. It is opened at the end whether it was launched or not."""
        door = Gate(self, name)
        self._doors.append(door)
        return door

    def copy(self, graph: Any, deps: Sequence[int], dst: Any, src: Any, n: int) -> int:
        return self.add(self.rt.cudaGraphAddMemcpyNode1D, graph, deps, dst, src, n, 4)

    def order(self, graph: Any, before: int, after: int) -> int:
        """cudaGraphAddDependencies for one edge; what it answers."""
        edges = (self.nodes([before]), self.nodes([after]))
        if self.rt.library == "cudart13":
            return int(self.rt.cudaGraphAddDependencies(graph, *edges, self.ffi.NULL, 1))
        return int(self.rt.cudaGraphAddDependencies(graph, *edges, 1))

    def disorder(self, graph: Any, before: int, after: int) -> int:
        """cudaGraphRemoveDependencies for one edge; what it answers."""
        edges = (self.nodes([before]), self.nodes([after]))
        if self.rt.library == "cudart13":
            return int(self.rt.cudaGraphRemoveDependencies(graph, *edges, self.ffi.NULL, 1))
        return int(self.rt.cudaGraphRemoveDependencies(graph, *edges, 1))

    def nodes_of(self, graph: Any, function: Callable[..., int] | None = None) -> list[int]:
        """All nodes of a graph (or its roots)."""
        function = function or self.rt.cudaGraphGetNodes
        n = self.rt.new("size_t *")
        assert function(graph, self.ffi.NULL, n) == 0
        out = self.rt.new("cudaGraphNode_t[]", max(n[0], 1))
        assert function(graph, out, n) == 0
        return [self.number(out[i]) for i in range(n[0])]

    def edges_of(self, graph: Any) -> set[tuple[int, int]]:
        n = self.rt.new("size_t *")
        more = [self.ffi.NULL] if self.rt.library == "cudart13" else []
        assert self.rt.cudaGraphGetEdges(graph, self.ffi.NULL, self.ffi.NULL, *more, n) == 0
        if not n[0]:
            return set()
        before, after = (self.rt.new("cudaGraphNode_t[]", max(n[0], 1)) for _ in range(2))
        assert self.rt.cudaGraphGetEdges(graph, before, after, *more, n) == 0
        return {(self.number(before[i]), self.number(after[i])) for i in range(n[0])}

    def type_of(self, node: int) -> int:
        out = self.rt.new("enum cudaGraphNodeType *")
        self.rt.ok.cudaGraphNodeGetType(self.node(node), out)
        return int(out[0])

    def types_of(self, graph: Any) -> list[int]:
        return [self.type_of(node) for node in self.nodes_of(graph)]

    # ---- launching

    def ready(self, graph: Any) -> Any:
        """An executable graph."""
        out = self.rt.new("cudaGraphExec_t *")
        self.rt.ok.cudaGraphInstantiate(out, graph, 0)
        self._execs.append(out[0])
        return out[0]

    def run(self, graph: Any) -> list[str]:
        """Launches a graph once and waits for it; the log."""
        stream = self.stream()
        self.rt.ok.cudaGraphLaunch(self.ready(graph), stream)
        self.rt.ok.cudaStreamSynchronize(stream)
        return self.log

    # ---- capturing

    def begin(self, stream: Any, mode: int = THREAD_LOCAL) -> None:
        self.rt.ok.cudaStreamBeginCapture(stream, mode)

    def end(self, stream: Any) -> Any:
        out = self.rt.new("cudaGraph_t *")
        self.rt.ok.cudaStreamEndCapture(stream, out)
        self._graphs.append(out[0])
        return out[0]

    def end_code(self, stream: Any) -> int:
        """What ending a capture answers when it fails; there is no graph then."""
        out = self.rt.new("cudaGraph_t *", self.ffi.cast("cudaGraph_t", 1))
        code = int(self.rt.cudaStreamEndCapture(stream, out))
        assert code != 0 and out[0] == self.ffi.NULL
        return code

    def status(self, stream: Any) -> int:
        out = self.rt.new("enum cudaStreamCaptureStatus *")
        self.rt.ok.cudaStreamIsCapturing(stream, out)
        return int(out[0])

    def info(self, stream: Any) -> Info:
        new, rt = self.rt.new, self.rt
        status, graph, n = new("enum cudaStreamCaptureStatus *"), new("cudaGraph_t *"), new("size_t *")
        number, nodes = new("unsigned long long *"), new("cudaGraphNode_t const **")
        if rt.library == "cudart13":
            code = rt.cudaStreamGetCaptureInfo(stream, status, number, graph, nodes, self.ffi.NULL, n)
        else:
            code = rt.cudaStreamGetCaptureInfo_v2(stream, status, number, graph, nodes, n)
        found = [self.number(nodes[0][i]) for i in range(n[0])]
        return Info(code, int(status[0]), number[0], self.number(graph[0]), found)

    def set_dependencies(self, stream: Any, nodes: Sequence[int], flags: int = 1) -> int:
        """cudaStreamUpdateCaptureDependencies; flags 1 replaces, 0 adds."""
        array = self.nodes(nodes)
        if self.rt.library == "cudart13":
            more = (array, self.ffi.NULL, len(nodes), flags)
            return int(self.rt.cudaStreamUpdateCaptureDependencies(stream, *more))
        return int(self.rt.cudaStreamUpdateCaptureDependencies(stream, array, len(nodes), flags))

    def fork(self, stream: Any, to: Any) -> None:
        """The second stream goes on from where the first one is."""
        event = self.event()
        self.rt.ok.cudaEventRecord(event, stream)
        self.rt.ok.cudaStreamWaitEvent(to, event, 0)


def in_thread(function: Callable[[], int]) -> int:
    """What a call answers in another thread."""
    answer: list[int] = []
    thread = threading.Thread(target=lambda: answer.append(function()))
    thread.start()
    thread.join(DEADLINE)
    assert answer, "the call did not return"
    return answer[0]
