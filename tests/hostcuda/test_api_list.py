"""api.def says who provides what, and it is so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from psmkit.lab.cuda import functions

GENERATE = Path(__file__).parents[2] / "csrc" / "cuda" / "generate.py"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", GENERATE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_provider_column_names_the_file_that_defines_the_function(generate: ModuleType) -> None:
    api = generate.Api()
    wrong = {
        f.name: (f.provider, api.defined.get(api.symbol(f)))
        for f in api.functions
        if not f.forward and f.provider != (api.defined.get(api.symbol(f)) if f.result is not None else None)
    }
    assert not wrong, "run python csrc/cuda/generate.py mark"


@pytest.mark.parametrize(
    ("provider", "complaint"),
    [
        ("=cudaNoSuchThing", "does not define"),
        ("=cudaArrayGetInfo", "does not define"),
        ("=cudaMallocPitch", "has other parameters"),
        ("ctx=cudaMemPrefetchAsync", "does not define"),
    ],
)
def test_a_forward_to_what_cannot_take_the_call_is_refused(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, complaint: str
) -> None:
    broken = tmp_path / "api.def"
    broken.write_text(re.sub(r"=cudaGraphDestroy (?=.*\bcuGraphDestroy\()", f"{provider} ", generate.API.read_text()))
    monkeypatch.setattr(generate, "API", broken)
    with pytest.raises(SystemExit, match=rf"cuGraphDestroy is forwarded to .*{complaint}"):
        generate.Api()


def test_a_forward_is_not_defined_as_well(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {**generate.definitions(), "cuGraphDestroy": "graph"}
    monkeypatch.setattr(generate, "definitions", lambda: both)
    with pytest.raises(SystemExit, match=r"cuGraphDestroy is forwarded .* and defined in graph\.c"):
        generate.Api()


def test_nothing_is_defined_that_the_list_does_not_know(generate: ModuleType) -> None:
    api = generate.Api()
    assert not set(api.defined) - {api.symbol(f) for f in api.functions}


def test_functions_that_nccl_calls_are_provided() -> None:
    """Those that shared/hostcuda.md measured in healthy runs of NCCL 2.26 and 2.30, as far as they are named there."""
    called = """cudaGetDevice cudaSetDevice cudaGetDeviceCount cudaDeviceGetPCIBusId cudaDeviceGetAttribute cudaDeviceCanAccessPeer
        cudaDriverGetVersion cudaThreadExchangeStreamCaptureMode cuDeviceGet cuDeviceGetAttribute cuCtxGetCurrent cudaMalloc cudaFree
        cudaHostAlloc cudaFreeHost cudaMemcpy cudaMemset cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemAddressReserve cuMemAddressFree
        cuMemSetAccess cuMemGetAllocationGranularity cuMemRetainAllocationHandle cuMemGetAddressRange_v2 cuMemExportToShareableHandle
        cuMemImportFromShareableHandle cuMemGetAllocationPropertiesFromHandle cudaMemcpyAsync cudaMemsetAsync cudaEventQuery
        cudaEventRecord cudaStreamWaitEvent cudaStreamSynchronize cudaEventCreate cudaEventCreateWithFlags cudaStreamCreate
        cudaStreamCreateWithFlags cudaStreamCreateWithPriority cudaLaunchHostFunc cudaStreamGetCaptureInfo_v2 __cudaRegisterFatBinary
        __cudaRegisterFunction __cudaRegisterVar __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary cudaFuncGetAttributes
        cudaFuncSetAttribute cudaGetFuncBySymbol cuLaunchKernelEx cudaHostRegister cudaIpcGetMemHandle cudaIpcOpenMemHandle
        cuPointerGetAttribute cudaDeviceEnablePeerAccess nvmlInit_v2 nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2
        nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetCudaComputeCapability nvmlDeviceGetP2PStatus nvmlDeviceGetFieldValues
        nvmlDeviceGetNvLinkCapability nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetPciInfo_v3 nvmlSystemGetConfComputeSettings
        cuStreamWriteValue32_v2 cuStreamWaitValue64_v2 cuDeviceGetUuid""".split()
    provided = {f.name for f in functions() if f.provider}
    assert not set(called) - provided
