"""Kernels: registration, attributes, refusal, and interpreters that stand in for them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psmkit.lab.cuda import Face

from . import headers
from .conftest import Child, emulated
from .test_topology import logged, printed

pytestmark = emulated  # a real CUDA wants real device code
INVALID_VALUE, INVALID_CONFIGURATION, INVALID_SYMBOL, INVALID_FUNCTION = 1, 9, 13, 98
NO_IMAGE, FILE_NOT_FOUND, INVALID_HANDLE, SYMBOL_NOT_FOUND, TOO_LARGE, NOT_SUPPORTED = 200, 301, 400, 500, 720, 801
INCLUDE = Path(__file__).parents[2] / "csrc" / "hostcuda" / "include"


def dim(rt: Face, x: int, y: int = 1, z: int = 1) -> Any:
    return rt.new("struct dim3 *", (x, y, z))[0]


class Program:
    """What the code that nvcc makes registers before main: one kernel, one variable."""

    def __init__(self, rt: Face, name: bytes = b"_Z6kernelPfi") -> None:
        self.rt = rt
        self.keep = [rt.new("char[]", name), rt.new("char[8]"), rt.new("char[]", b"variable"), rt.new("char[64]")]
        self.name, self.stub, variable, self.variable = self.keep
        null = rt.ffi.NULL
        self.module = getattr(rt, "__cudaRegisterFatBinary")(self.keep[1])
        getattr(rt, "__cudaRegisterFunction")(
            self.module, self.stub, self.name, self.name, -1, null, null, null, null, null
        )
        getattr(rt, "__cudaRegisterVar")(self.module, self.variable, variable, variable, 0, 64, 0, 0)
        getattr(rt, "__cudaRegisterFatBinaryEnd")(self.module)

    def end(self) -> None:
        getattr(self.rt, "__cudaUnregisterFatBinary")(self.module)


@pytest.fixture
def program(rt: Face) -> Iterator[Program]:
    found = Program(rt)
    yield found
    found.end()


def launch(rt: Face, func: Any, grid: Any = None, block: Any = None, shared: int = 0, stream: Any = None) -> int:
    return int(
        rt.cudaLaunchKernel(func, grid or dim(rt, 1), block or dim(rt, 32), rt.ffi.NULL, shared, stream or rt.ffi.NULL)
    )


# ---- functions ----


def test_registered_kernel_has_attributes_name_and_handle(rt: Face, drv: Face, program: Program) -> None:
    attributes = rt.new("struct cudaFuncAttributes *")
    rt.ok.cudaFuncGetAttributes(attributes, program.stub)
    assert attributes.maxThreadsPerBlock == 1024
    assert attributes.binaryVersion == 90
    name = rt.new("const char **")
    rt.ok.cudaFuncGetName(name, program.stub)
    assert rt.ffi.string(name[0]) == b"_Z6kernelPfi"
    function, kernel, again = rt.new("cudaFunction_t *"), rt.new("cudaKernel_t *"), rt.new("cudaKernel_t *")
    rt.ok.cudaGetFuncBySymbol(function, program.stub)
    rt.ok.cudaGetKernel(kernel, program.stub)
    rt.ok.__cudaGetKernel(again, program.stub)
    assert kernel[0] == again[0]
    handle = drv.ffi.cast("CUfunction", int(rt.ffi.cast("uintptr_t", function[0])))
    text = drv.new("const char **")
    drv.ok.cuFuncGetName(text, handle)
    assert drv.ffi.string(text[0]) == b"_Z6kernelPfi"
    drv.ok.cuKernelGetName(text, drv.ffi.cast("CUkernel", handle))
    assert drv.ffi.string(text[0]) == b"_Z6kernelPfi"
    value = drv.new("int *")
    drv.ok.cuFuncGetAttribute(value, drv.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, handle)
    assert value[0] == 1024
    drv.ok.cuKernelGetAttribute(value, drv.CU_FUNC_ATTRIBUTE_NUM_REGS, drv.ffi.cast("CUkernel", handle), 0)
    assert value[0] > 0
    drv.ok.cuFuncLoad(handle)
    state = drv.new("CUfunctionLoadingState *")
    drv.ok.cuFuncIsLoaded(state, handle)
    assert state[0] == drv.CU_FUNCTION_LOADING_STATE_LOADED
    drv.ok.cuFuncSetCacheConfig(handle, 1)
    drv.ok.cuFuncSetSharedMemConfig(handle, 1)
    assert drv.cuFuncGetModule(drv.new("CUmodule *"), handle) == NOT_SUPPORTED


def test_dynamic_shared_memory_must_be_asked_for_and_has_an_end(rt: Face, drv: Face, program: Program) -> None:
    which = rt.cudaFuncAttributeMaxDynamicSharedMemorySize
    assert launch(rt, program.stub, shared=100 << 10) == INVALID_VALUE
    rt.ok.cudaFuncSetAttribute(program.stub, which, 100 << 10)
    assert launch(rt, program.stub, shared=100 << 10) == NOT_SUPPORTED
    assert rt.cudaFuncSetAttribute(program.stub, which, 1 << 20) == INVALID_VALUE
    assert (
        rt.cudaFuncSetAttribute(program.stub, rt.cudaFuncAttributePreferredSharedMemoryCarveout, 101) == INVALID_VALUE
    )
    assert rt.cudaFuncSetAttribute(program.stub, rt.ffi.cast("enum cudaFuncAttribute", 3), 1) == INVALID_VALUE
    function, value = rt.new("cudaFunction_t *"), drv.new("int *")
    rt.ok.cudaGetFuncBySymbol(function, program.stub)
    handle = drv.ffi.cast("CUfunction", int(rt.ffi.cast("uintptr_t", function[0])))
    dynamic = drv.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    drv.ok.cuFuncSetAttribute(handle, dynamic, 50 << 10)
    drv.ok.cuKernelSetAttribute(dynamic, 60 << 10, drv.ffi.cast("CUkernel", handle), 0)
    drv.ok.cuFuncGetAttribute(value, dynamic, handle)
    assert value[0] == 60 << 10


def test_function_that_was_never_registered_is_invalid(rt: Face, drv: Face) -> None:
    stranger = rt.new("char[1]")
    assert rt.cudaFuncGetAttributes(rt.new("struct cudaFuncAttributes *"), stranger) == INVALID_FUNCTION
    assert rt.cudaGetFuncBySymbol(rt.new("cudaFunction_t *"), stranger) == INVALID_FUNCTION
    assert rt.cudaFuncSetCacheConfig(stranger, rt.cudaFuncCachePreferL1) == INVALID_FUNCTION
    assert rt.cudaFuncSetSharedMemConfig(stranger, rt.cudaSharedMemBankSizeDefault) == INVALID_FUNCTION
    assert launch(rt, stranger) == INVALID_FUNCTION
    assert drv.cuFuncGetAttribute(drv.new("int *"), 0, drv.ffi.NULL) == INVALID_HANDLE


def test_unregistered_kernel_is_gone(rt: Face) -> None:
    program = Program(rt)
    rt.ok.cudaFuncSetCacheConfig(program.stub, rt.cudaFuncCachePreferL1)
    program.end()
    assert launch(rt, program.stub) == INVALID_FUNCTION


def test_occupancy_is_bounded_by_threads_and_shared_memory(rt: Face, drv: Face, program: Program) -> None:
    blocks = rt.new("int *")

    def of(threads: int, shared: int) -> int:
        rt.ok.cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, program.stub, threads, shared)
        return int(blocks[0])

    assert of(1024, 0) == 2
    assert of(32, 0) == 32
    assert of(32, 48 << 10) == 4
    assert of(2048, 0) == 0
    assert rt.cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, program.stub, 0, 0) == INVALID_VALUE
    rt.ok.cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, program.stub, 1024, 0, 1)
    function, out = rt.new("cudaFunction_t *"), drv.new("int *")
    rt.ok.cudaGetFuncBySymbol(function, program.stub)
    handle = drv.ffi.cast("CUfunction", int(rt.ffi.cast("uintptr_t", function[0])))
    drv.ok.cuOccupancyMaxActiveBlocksPerMultiprocessor(out, handle, 1024, 0)
    assert out[0] == 2
    drv.ok.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, handle, 1024, 0, 0)
    assert out[0] == 2


# ---- variables ----


def test_registered_variable_has_device_memory_of_its_size(rt: Face, program: Program) -> None:
    address, again, size = rt.new("void **"), rt.new("void **"), rt.new("size_t *")
    rt.ok.cudaGetSymbolSize(size, program.variable)
    rt.ok.cudaGetSymbolAddress(address, program.variable)
    rt.ok.cudaGetSymbolAddress(again, program.variable)
    assert size[0] == 64
    assert address[0] == again[0]
    out = rt.new("char[64]", b"x" * 63)
    rt.ok.cudaMemcpy(out, address[0], 64, rt.cudaMemcpyDeviceToHost)
    assert rt.ffi.buffer(out)[:] == bytes(64)
    assert rt.cudaGetSymbolAddress(address, rt.new("char[1]")) == INVALID_SYMBOL
    assert rt.cudaGetSymbolSize(size, rt.new("char[1]")) == INVALID_SYMBOL


def test_managed_variable_is_there_once_its_module_is_initialised(rt: Face) -> None:
    program = Program(rt)
    pointer, name = rt.new("void **"), rt.new("char[]", b"managed")
    rt.__cudaRegisterManagedVar(program.module, pointer, name, name, 0, 256, 0, 0)
    assert rt.__cudaInitModule(program.module) == b"\x01"
    assert pointer[0] != rt.ffi.NULL
    rt.ffi.memmove(pointer[0], b"y" * 256, 256)  # the host may touch managed memory
    program.end()


# ---- launches ----


def test_launch_configuration_is_pushed_and_popped(rt: Face) -> None:
    grid, block, shared, stream = (
        rt.new("struct dim3 *"),
        rt.new("struct dim3 *"),
        rt.new("size_t *"),
        rt.new("void **"),
    )
    assert rt.__cudaPushCallConfiguration(dim(rt, 3), dim(rt, 4, 5), 6, rt.ffi.cast("void *", 2)) == 0
    rt.ok.__cudaPopCallConfiguration(grid, block, shared, stream)
    assert (grid.x, block.x, block.y, shared[0], stream[0]) == (3, 4, 5, 6, rt.ffi.cast("void *", 2))
    assert rt.__cudaPopCallConfiguration(grid, block, shared, stream) != 0


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((0, 1, 1), (1, 1, 1)),
        ((1, 1, 1), (0, 1, 1)),
        ((1, 65536, 1), (1, 1, 1)),
        ((1, 1, 1), (32, 33, 1)),
        ((1, 1, 1), (1, 1, 65)),
    ],
)
def test_grid_and_block_that_no_device_has_are_an_invalid_configuration(
    rt: Face, drv: Face, program: Program, grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    assert launch(rt, program.stub, dim(rt, *grid), dim(rt, *block)) == INVALID_CONFIGURATION
    function = rt.new("cudaFunction_t *")
    rt.ok.cudaGetFuncBySymbol(function, program.stub)
    handle = drv.ffi.cast("CUfunction", int(rt.ffi.cast("uintptr_t", function[0])))
    null = drv.ffi.NULL
    assert drv.cuLaunchKernel(handle, *grid, *block, 0, null, null, null) == INVALID_VALUE


def test_cooperative_launch_must_fit_the_device(rt: Face, program: Program) -> None:
    null = rt.ffi.NULL
    assert rt.cudaLaunchCooperativeKernel(program.stub, dim(rt, 132 * 2 + 1), dim(rt, 1024), null, 0, null) == TOO_LARGE
    assert rt.cudaLaunchCooperativeKernel(program.stub, dim(rt, 132 * 2), dim(rt, 1024), null, 0, null) == NOT_SUPPORTED


def test_launch_on_a_stream_that_is_none_is_an_invalid_handle(rt: Face, program: Program) -> None:
    assert launch(rt, program.stub, stream=rt.ffi.cast("cudaStream_t", 0x1230)) == INVALID_HANDLE


REGISTER = """
name = new('char[]', b'_Z6kernelPfi'); stub = new('char[8]'); null = ffi.NULL
module = rt.__cudaRegisterFatBinary(stub)
rt.__cudaRegisterFunction(module, stub, name, name, -1, null, null, null, null, null)
one, block = new('struct dim3 *', (2, 1, 1))[0], new('struct dim3 *', (32, 1, 1))[0]
"""


def test_refused_launch_says_once_which_kernel_and_what_to_set(child: Child) -> None:
    done = child(
        REGISTER
        + """
print(rt.cudaLaunchKernel(stub, one, block, null, 0, null), rt.cudaGetLastError())
config = new('cudaLaunchConfig_t *'); config.gridDim = one; config.blockDim = block
print(rt.cudaLaunchKernelExC(config, stub, null))
k = new('cudaKernel_t *'); ok.cudaGetKernel(k, stub); print(rt.__cudaLaunchKernel(k[0], one, block, null, 0, null))
drv = Face('cuda'); drv.ok.cuInit(0); n = drv.ffi.NULL
f = drv.ffi.cast('CUfunction', int(ffi.cast('uintptr_t', k[0])))
c = drv.new('CUlaunchConfig *'); c.gridDimX = c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1
print(drv.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, n, n, n), drv.cuLaunchKernelEx(c, f, n, n), drv.cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, n, n))
"""
    )
    assert set(printed(done)) == {str(NOT_SUPPORTED)}
    (line,) = logged(done)
    assert "NCCL WARN hostcuda: kernel _Z6kernelPfi is not launched" in line
    assert "PSM_HOSTCUDA_KERNELS" in line


INTERPRETER = r"""
#include "psm_hostcuda.h"
#include <string.h>
/* p[i] += by for every thread: what the kernel would do. */
static int add(const struct psm_kernel_launch *launch, void *context)
{
    float *p;
    int by;
    struct psm_kernel_span span;
    if (launch->size < sizeof *launch || context != (void *)7) return 999;
    if (launch->buffer) {
        if (launch->buffer_size != 12) return 999;
        memcpy(&p, launch->buffer, 8);
        memcpy(&by, (const char *)launch->buffer + 8, 4);
    } else {
        if (launch->parameters != 2) return 999;
        memcpy(&p, launch->arguments[0], 8);
        memcpy(&by, launch->arguments[1], 4);
    }
    size_t n = (size_t)launch->grid[0] * launch->block[0];
    int rc = psm_hostcuda_map(launch, p, n * sizeof *p, 1, &span);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) ((float *)span.host)[i] += (float)by;
    psm_hostcuda_unmap(&span);
    return 0;
}
static int fail(const struct psm_kernel_launch *launch, void *context)
{
    (void)launch, (void)context;
    return 700;
}
int psm_hostcuda_kernels(void)
{
    static const size_t sizes[] = {8, 4};
    return psm_hostcuda_register_kernel("*kernel*", add, (void *)7) || psm_hostcuda_register_kernel("*broken*", fail, 0) ||
           psm_hostcuda_kernel_parameters("*kernel*", 2, sizes) || !psm_hostcuda_register_kernel(0, add, 0);
}
"""


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interpreter")
    if not headers.GCC:
        pytest.skip("needs a C compiler")
    library = folder / "libadd.so"
    command = [headers.GCC, "-shared", "-fPIC", "-Wall", "-Werror", f"-I{INCLUDE}", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=INTERPRETER, text=True, check=True, timeout=60)
    return library


# Work before and after shows that the interpreter runs in the order of the stream.
RUN = (
    REGISTER
    + """
ok.cudaSetDevice(0)
p, stream, out = new('void **'), new('cudaStream_t *'), new('float[64]')
ok.cudaMalloc(p, 256); ok.cudaStreamCreate(stream)
arg, by = new('void **', p[0]), new('int *', 3)
def check(want):
    ok.cudaMemcpyAsync(out, p[0], 256, rt.cudaMemcpyDeviceToHost, stream[0])
    ok.cudaStreamSynchronize(stream[0])
    assert list(out) == [want] * 64, list(out)
"""
)


def test_interpreter_runs_with_grid_block_and_arguments_in_stream_order(expect_child: Child, interpreter: Path) -> None:
    expect_child(
        RUN
        + """
ok.cudaMemsetAsync(p[0], 0, 256, stream[0])
ok.cudaLaunchKernel(stub, one, block, new('void *[2]', (arg, by)), 0, stream[0])
by[0] = 100  # the arguments were copied at the launch
check(3.0)
k = new('cudaKernel_t *'); ok.cudaGetKernel(k, stub)
by[0] = 4
ok.__cudaLaunchKernel(k[0], one, block, new('void *[2]', (arg, by)), 0, stream[0])
check(7.0)
drv = Face('cuda'); drv.ok.cuInit(0)
f = drv.ffi.cast('CUfunction', int(ffi.cast('uintptr_t', k[0])))
packed = drv.new('char[12]', struct.pack('<Qi', int(ffi.cast('uintptr_t', p[0])), 5)); size = drv.new('size_t *', 12)
extra = drv.new('void *[5]', (drv.ffi.cast('void *', 1), packed, drv.ffi.cast('void *', 2), size, drv.ffi.NULL))
s = drv.ffi.cast('CUstream', int(ffi.cast('uintptr_t', stream[0])))
drv.ok.cuLaunchKernel(f, 2, 1, 1, 32, 1, 1, 0, s, drv.ffi.NULL, extra)
check(12.0)
done = new('cudaEvent_t *'); ok.cudaEventCreate(done)
attribute = new('cudaLaunchAttribute *'); attribute.id = rt.cudaLaunchAttributeLaunchCompletionEvent
attribute.val.launchCompletionEvent.event = done[0]
config = new('cudaLaunchConfig_t *', {'gridDim': one, 'blockDim': block, 'stream': stream[0], 'attrs': attribute, 'numAttrs': 1})
by[0] = 1
ok.cudaLaunchKernelExC(config, stub, new('void *[2]', (arg, by)))
ok.cudaEventSynchronize(done[0])
check(13.0)
""",
        env={"PSM_HOSTCUDA_KERNELS": str(interpreter)},
    )


def test_captured_launch_runs_with_each_launch_of_its_graph(expect_child: Child, interpreter: Path) -> None:
    expect_child(
        RUN
        + """
ok.cudaMemset(p[0], 0, 256)
graph, exec_ = new('cudaGraph_t *'), new('cudaGraphExec_t *')
ok.cudaStreamBeginCapture(stream[0], rt.cudaStreamCaptureModeGlobal)
ok.cudaLaunchKernel(stub, one, block, new('void *[2]', (arg, by)), 0, stream[0])
ok.cudaStreamEndCapture(stream[0], graph)
by[0] = 100
if rt.library == 'cudart12': ok.cudaGraphInstantiate(exec_, graph[0], 0)
else: ok.cudaGraphInstantiate(exec_, graph[0], 0)
ok.cudaGraphLaunch(exec_[0], stream[0]); ok.cudaGraphLaunch(exec_[0], stream[0])
check(6.0)
""",
        env={"PSM_HOSTCUDA_KERNELS": str(interpreter)},
    )


def test_failure_of_an_interpreter_sticks_to_the_device(child: Child, interpreter: Path) -> None:
    done = child(
        """
        name = new('char[]', b'broken'); stub = new('char[8]'); null = ffi.NULL
        module = rt.__cudaRegisterFatBinary(stub)
        rt.__cudaRegisterFunction(module, stub, name, name, -1, null, null, null, null, null)
        one = new('struct dim3 *', (1, 1, 1))[0]
        print(rt.cudaLaunchKernel(stub, one, one, null, 0, null), rt.cudaDeviceSynchronize(), rt.cudaMalloc(new('void **'), 8))
        """,
        env={"PSM_HOSTCUDA_KERNELS": str(interpreter)},
    )
    assert printed(done) == ["0", "700", "700"]


@pytest.mark.parametrize(
    ("library", "says"), [("/nowhere/libx.so", "cannot open"), ("libm.so.6", "no function psm_hostcuda_kernels")]
)
def test_library_without_interpreters_is_named(child: Child, library: str, says: str) -> None:
    done = child("ok.cudaSetDevice(0)", env={"PSM_HOSTCUDA_KERNELS": library})
    (line,) = logged(done)
    assert f"no interpreters from {library}: " in line
    assert says in line


# ---- modules ----

PTX = b"//\n.version 8.0\n.target sm_90\n.address_size 64\n.visible .entry scale(.param .u64 p)\n{\nret;\n}\n"


@pytest.fixture
def context(drv: Face) -> Iterator[None]:
    out = drv.new("CUcontext *")
    drv.ok.cuDevicePrimaryCtxRetain(out, 0)
    drv.ok.cuCtxPushCurrent_v2(out[0])
    yield
    drv.ok.cuCtxPopCurrent_v2(drv.ffi.NULL)
    drv.ok.cuDevicePrimaryCtxRelease_v2(0)


def test_module_has_the_functions_that_its_text_names(drv: Face, context: None, tmp_path: Path) -> None:
    file = tmp_path / "scale.ptx"
    file.write_bytes(PTX)
    null, image = drv.ffi.NULL, drv.new("char[]", PTX)
    loads = {
        "cuModuleLoadData": (image,),
        "cuModuleLoadDataEx": (image, 0, null, null),
        "cuModuleLoad": (str(file).encode(),),
        "cuModuleLoadFatBinary": (image,),
    }
    for name, arguments in loads.items():
        module, function, owner = drv.new("CUmodule *"), drv.new("CUfunction *"), drv.new("CUmodule *")
        getattr(drv.ok, name)(module, *arguments)
        drv.ok.cuModuleGetFunction(function, module[0], b"scale")
        assert drv.cuModuleGetFunction(drv.new("CUfunction *"), module[0], b"scal") == SYMBOL_NOT_FOUND
        assert drv.cuModuleGetFunction(drv.new("CUfunction *"), module[0], b"") == SYMBOL_NOT_FOUND
        drv.ok.cuFuncGetModule(owner, function[0])
        assert owner[0] == module[0]
        assert drv.cuModuleGetGlobal_v2(drv.new("CUdeviceptr *"), null, module[0], b"g") == SYMBOL_NOT_FOUND
        kernel = drv.new("CUfunction *")
        drv.ok.cuKernelGetFunction(kernel, drv.ffi.cast("CUkernel", function[0]))
        assert kernel[0] == function[0]
        drv.ok.cuModuleUnload(module[0])
        assert drv.cuModuleUnload(module[0]) == INVALID_HANDLE
        assert drv.cuFuncLoad(function[0]) == INVALID_HANDLE
    mode = drv.new("CUmoduleLoadingMode *")
    drv.ok.cuModuleGetLoadingMode(mode)
    assert mode[0] in (drv.CU_MODULE_EAGER_LOADING, drv.CU_MODULE_LAZY_LOADING)


def test_thing_that_is_no_device_code_is_an_invalid_image(drv: Face, context: None, tmp_path: Path) -> None:
    file = tmp_path / "torn.cubin"
    file.write_bytes(b"\x7fELF\x02\x01\x01" + b"\xff" * 60)
    module = drv.new("CUmodule *")
    assert drv.cuModuleLoadData(module, drv.new("char[]", b"hello, world")) == NO_IMAGE
    assert drv.cuModuleLoad(module, str(file).encode()) == NO_IMAGE
    assert drv.cuModuleLoad(module, b"/nowhere/x.cubin") == FILE_NOT_FOUND
    assert drv.cuModuleLoadData(module, drv.ffi.NULL) == INVALID_VALUE
