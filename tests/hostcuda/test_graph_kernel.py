"""Kernel nodes: refused like a launch, unless an interpreter is registered for the kernel; then run once a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cffi
import pytest

from psmkit.lab.cuda import Face, folder
from tests.hostcuda.conftest import emulated
from tests.hostcuda.graphs import HOST, KERNEL, MEMSET, Graphs

pytestmark = emulated

INVALID_VALUE, INVALID_FUNCTION, LOSSY_QUERY, NOT_SUPPORTED = 1, 98, 402, 801
PROGRAMMATIC, PORT_PROGRAMMATIC = 1, 1

HOOK = cffi.FFI()
HOOK.cdef("""
struct psm_kernel_launch {
    size_t size; const char *name; int device; unsigned grid[3], block[3]; size_t shared_memory;
    unsigned parameters; const void *const *arguments; const void *buffer; size_t buffer_size;
};
int psm_hostcuda_register_kernel(const char *, int (*fn)(const struct psm_kernel_launch *, void *), void *);
int psm_hostcuda_kernel_parameters(const char *name_pattern, unsigned n, const size_t *sizes);
""")
Interpreter = Callable[[Any], int]


class Kernels(Graphs):
    """A lab with kernels: registered ones, and interpreters for some of them."""

    def __init__(self, rt: Face) -> None:
        super().__init__(rt)
        self.hook = HOOK.dlopen(str(folder() / "libpsm_hostcuda.so"))

    def kernel(self, name: str, interpreter: Interpreter | None = None) -> Any:
        """The address of a kernel's host stub. Names are used once: interpreters stay registered."""
        name = f"{name}_{id(self)}"
        stub, text = self.rt.new("char[1]"), self.rt.new("char[]", name.encode())
        image = self.rt.new("char[64]")
        null = self.ffi.NULL
        binary = getattr(self.rt, "__cudaRegisterFatBinary")(image)
        getattr(self.rt, "__cudaRegisterFunction")(binary, stub, text, text, -1, null, null, null, null, null)
        getattr(self.rt, "__cudaRegisterFatBinaryEnd")(binary)
        FOREVER.extend((stub, text, image))
        if interpreter:
            sizes = HOOK.new("size_t[]", [4])
            assert self.hook.psm_hostcuda_kernel_parameters(name.encode(), 1, sizes) == 0

            @HOOK.callback("int(const struct psm_kernel_launch *, void *)")
            def run(launch: Any, _context: Any) -> int:
                assert interpreter is not None
                return interpreter(launch)

            FOREVER.append(run)
            assert self.hook.psm_hostcuda_register_kernel(name.encode(), run, HOOK.NULL) == 0
        return self.ffi.cast("void *", stub)

    def noting(self, name: str) -> Any:
        """A kernel that puts its name and its argument into the log."""

        def run(launch: Any) -> int:
            self.log.append(f"{name} {HOOK.cast('int *', launch.arguments[0])[0]} {launch.grid[0]}")
            return 0

        return self.kernel(name, run)

    def params(self, kernel: Any, value: int = 0, grid: int = 1) -> Any:
        params = self.rt.new("struct cudaKernelNodeParams *")
        argument = self.rt.new("int *", value)
        arguments = self.rt.new("void *[]", [self.ffi.cast("void *", argument)])
        params.func, params.kernelParams = kernel, arguments
        for dim, x in ((params.gridDim, grid), (params.blockDim, 32)):
            dim.x, dim.y, dim.z = x, 1, 1
        self._kept.extend((argument, arguments))
        return params

    def launch(self, kernel: Any, stream: Any, value: int = 0) -> int:
        p = self.params(kernel, value)
        return int(self.rt.cudaLaunchKernel(kernel, p.gridDim, p.blockDim, p.kernelParams, 0, stream))


FOREVER: list[Any] = []  # what is registered is never unregistered


@pytest.fixture
def lab(rt: Face) -> Iterator[Kernels]:
    with Kernels(rt) as made:
        yield made


def test_kernel_node_without_interpreter_is_refused(lab: Kernels) -> None:
    graph, out = lab.graph(), lab.rt.new("cudaGraphNode_t *")
    add = lab.rt.cudaGraphAddKernelNode
    assert add(out, graph, lab.ffi.NULL, 0, lab.params(lab.kernel("unknown"))) == NOT_SUPPORTED
    assert add(out, graph, lab.ffi.NULL, 0, lab.params(lab.rt.new("char *"))) == INVALID_FUNCTION
    assert add(out, graph, lab.ffi.NULL, 0, lab.ffi.NULL) == INVALID_VALUE
    assert lab.nodes_of(graph) == []


def test_captured_launch_without_interpreter_is_refused(lab: Kernels) -> None:
    stream, kernel = lab.stream(), lab.kernel("unknown")
    lab.begin(stream)
    assert lab.launch(kernel, stream) == NOT_SUPPORTED
    assert lab.nodes_of(lab.end(stream)) == []


def test_kernel_node_runs_its_interpreter_once_a_launch(lab: Kernels) -> None:
    graph, kernel = lab.graph(), lab.noting("kernel")
    node = lab.add(lab.rt.cudaGraphAddKernelNode, graph, [], lab.params(kernel, 7, grid=3))
    lab.note(graph, [node], "after")
    assert lab.types_of(graph) == [KERNEL, HOST]
    ready, stream = lab.ready(graph), lab.stream()
    for _ in range(2):
        lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["kernel 7 3", "after"] * 2


def test_arguments_are_copied_when_the_node_is_made(lab: Kernels) -> None:
    graph, kernel = lab.graph(), lab.noting("kernel")
    params = lab.params(kernel, 1)
    lab.add(lab.rt.cudaGraphAddKernelNode, graph, [], params)
    lab.ffi.cast("int *", params.kernelParams[0])[0] = 2
    assert lab.run(graph) == ["kernel 1 1"]


def test_captured_launch_is_a_kernel_node(lab: Kernels) -> None:
    stream, kernel = lab.stream(), lab.noting("kernel")
    lab.begin(stream)
    assert lab.launch(kernel, stream, 5) == 0
    graph = lab.end(stream)
    assert lab.types_of(graph) == [KERNEL]
    assert lab.log == []
    assert lab.run(graph) == ["kernel 5 1"]


def test_kernel_node_changes(lab: Kernels) -> None:
    graph, a, b = lab.graph(), lab.noting("a"), lab.noting("b")
    node = lab.node(lab.add(lab.rt.cudaGraphAddKernelNode, graph, [], lab.params(a, 1)))
    ready, stream = lab.ready(graph), lab.stream()
    lab.rt.ok.cudaGraphExecKernelNodeSetParams(ready, node, lab.params(b, 2))
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)
    lab.rt.ok.cudaGraphKernelNodeSetParams(node, lab.params(a, 3, grid=4))
    told = lab.rt.new("struct cudaKernelNodeParams *")
    lab.rt.ok.cudaGraphKernelNodeGetParams(node, told)
    assert (told.gridDim.x, told.blockDim.x, told.func != lab.ffi.NULL) == (4, 32, True)
    assert lab.run(graph) == ["b 2 1", "a 3 4"]


def test_kernel_node_by_the_union_of_parameters(lab: Kernels) -> None:
    graph, kernel = lab.graph(), lab.noting("kernel")
    params, out, null = lab.rt.new("struct cudaGraphNodeParams *"), lab.rt.new("cudaGraphNode_t *"), lab.ffi.NULL
    plain = lab.params(kernel, 9)
    params.type = KERNEL
    params.kernel.func, params.kernel.kernelParams = plain.func, plain.kernelParams
    params.kernel.gridDim, params.kernel.blockDim = plain.gridDim, plain.blockDim
    more = [null, null] if lab.rt.library == "cudart13" else [null]
    lab.rt.ok.cudaGraphAddNode(out, graph, *more, 0, params)
    assert lab.run(graph) == ["kernel 9 1"]


def test_kernel_nodes_by_the_driver(lab: Kernels, drv: Face) -> None:
    graph, new = lab.graph(), drv.new
    function, node, told = lab.rt.new("cudaFunction_t *"), new("CUgraphNode *"), new("CUDA_KERNEL_NODE_PARAMS *")
    lab.rt.ok.cudaGetFuncBySymbol(function, lab.noting("kernel"))
    params, argument = new("CUDA_KERNEL_NODE_PARAMS *"), new("int *", 3)
    arguments = new("void *[]", [drv.ffi.cast("void *", argument)])
    params.func, params.kernelParams = drv.ffi.cast("CUfunction", lab.number(function[0])), arguments
    params.gridDimX = params.gridDimY = params.gridDimZ = 1
    params.blockDimX = params.blockDimY = params.blockDimZ = 1
    target = drv.ffi.cast("CUgraph", lab.number(graph))
    drv.ok.cuGraphAddKernelNode_v2(node, target, drv.ffi.NULL, 0, params)
    ready = lab.ready(graph)
    argument[0] = 4
    drv.ok.cuGraphKernelNodeSetParams_v2(node[0], params)
    params.gridDimX = 2
    drv.ok.cuGraphExecKernelNodeSetParams_v2(drv.ffi.cast("CUgraphExec", lab.number(ready)), node[0], params)
    drv.ok.cuGraphKernelNodeGetParams_v2(node[0], told)
    assert (told.func, told.gridDimX) == (params.func, 1)
    stream = lab.stream()
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.run(graph) == ["kernel 4 2", "kernel 4 1"]


def test_programmatic_edges_between_kernels_are_not_lost_silently(lab: Kernels) -> None:
    graph, kernel = lab.graph(), lab.noting("kernel")
    a, b = (lab.add(lab.rt.cudaGraphAddKernelNode, graph, [], lab.params(kernel, i)) for i in range(2))
    data = lab.rt.new("cudaGraphEdgeData *")
    data.type, data.from_port = PROGRAMMATIC, PORT_PROGRAMMATIC
    v2 = "" if lab.rt.library == "cudart13" else "_v2"
    ends = (lab.nodes([a]), lab.nodes([b]))
    assert getattr(lab.rt, f"cudaGraphAddDependencies{v2}")(graph, *ends, data, 1) == 0
    out, n, told = lab.rt.new("cudaGraphNode_t[2]"), lab.rt.new("size_t *", 1), lab.rt.new("cudaGraphEdgeData *")
    get = getattr(lab.rt, f"cudaGraphGetEdges{v2}")
    assert get(graph, out, out + 1, lab.ffi.NULL, n) == LOSSY_QUERY
    assert get(graph, out, out + 1, told, n) == 0
    assert (told.type, told.from_port) == (PROGRAMMATIC, PORT_PROGRAMMATIC)
    assert lab.run(graph) == ["kernel 0 1", "kernel 1 1"]


def test_info_of_a_capture_does_not_lose_edge_data_silently(lab: Kernels) -> None:
    stream, kernel = lab.stream(), lab.noting("kernel")
    lab.begin(stream)
    lab.launch(kernel, stream)
    (node,) = lab.info(stream).dependencies
    data = lab.rt.new("cudaGraphEdgeData *")
    data.type, data.from_port = PROGRAMMATIC, PORT_PROGRAMMATIC
    v2 = "" if lab.rt.library == "cudart13" else "_v2"
    update = getattr(lab.rt, f"cudaStreamUpdateCaptureDependencies{v2}")
    assert update(stream, lab.nodes([node]), data, 1, 1) == 0
    assert lab.info(stream).code == LOSSY_QUERY
    lab.end(stream)


def test_failing_interpreter_fails_what_waits_for_the_graph(rt: Face, expect_child: Callable[..., Any]) -> None:
    expect_child("""
        from tests.hostcuda.test_graph_kernel import Kernels
        lab = Kernels(rt)
        kernel = lab.kernel("bad", lambda launch: 719)
        graph, stream = lab.graph(), lab.stream()
        lab.add(rt.cudaGraphAddKernelNode, graph, [], lab.params(kernel))
        ok.cudaGraphLaunch(lab.ready(graph), stream)
        assert rt.cudaStreamSynchronize(stream) == 719
    """)


def test_kernels_and_other_nodes_keep_their_order(lab: Kernels) -> None:
    graph, kernel = lab.graph(), lab.noting("kernel")
    memory, out = lab.rt.new("void **"), lab.rt.new("unsigned char[4]")
    lab.rt.ok.cudaMalloc(memory, 4)
    params = lab.rt.new("struct cudaMemsetParams *")
    params.dst, params.value, params.elementSize, params.width, params.height = memory[0], 1, 1, 4, 1
    first = lab.add(lab.rt.cudaGraphAddMemsetNode, graph, [], params)
    second = lab.add(lab.rt.cudaGraphAddKernelNode, graph, [first], lab.params(kernel))
    third = lab.copy(graph, [second], out, memory[0], 4)
    lab.host(graph, [third], lambda: lab.log.append(bytes(out).hex()))
    assert lab.type_of(first) == MEMSET
    assert lab.run(graph) == ["kernel 0 1", "01010101"]
    lab.rt.ok.cudaFree(memory[0])
