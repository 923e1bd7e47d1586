"""Every CUDA function is a place for a fault by its name: PSM_FAULTS makes the nth call fail, hang, be slow or late."""

from __future__ import annotations

import pytest

from tests.hostcuda.conftest import Child, emulated

pytestmark = emulated
MEMORY = "p = new('void **'); ok.cudaMalloc(p, 4096); p = p[0]\n"
RESULTS = "print([rt.cudaMemset(p, 0, 8) for i in range(4)])\n"


def test_only_the_nth_call_fails(child: Child) -> None:
    done = child(MEMORY + RESULTS, env={"PSM_FAULTS": "cudaMemset:error=999,nth=3"})
    assert "[0, 0, 999, 0]" in done.stdout
    assert "PSM_FAULTS: error at cudaMemset, call 3\n" in done.stdout


def test_failed_call_is_not_made(expect_child: Child) -> None:
    code = """
    p = new('void **'); ok.cudaMalloc(p, 1)
    h = new('char[]', b'a'); ok.cudaMemcpy(p[0], h, 1, 1)
    assert rt.cudaMemset(p[0], 98, 1) == 999
    ok.cudaMemcpy(h, p[0], 1, 2)
    assert h[0] == b'a'
    """
    expect_child(code, env={"PSM_FAULTS": "cudaMemset:error=999"})


@pytest.mark.parametrize("code", [226, 700, 710, 719])
def test_error_that_spoils_the_context_stays_until_the_device_is_reset(child: Child, code: int) -> None:
    done = child(
        MEMORY
        + """
s = new('cudaStream_t *'); ok.cudaStreamCreate(s)
print(rt.cudaMemset(p, 0, 8), rt.cudaMalloc(new('void **'), 8), rt.cudaStreamSynchronize(s[0]), rt.cudaGetLastError())
ok.cudaSetDevice(1); print(rt.cudaMalloc(new('void **'), 8)); ok.cudaSetDevice(0)
print(rt.cudaDeviceReset(), rt.cudaMalloc(new('void **'), 8))
""",
        env={"PSM_FAULTS": f"cudaMemset:error={code},nth=1"},
    )
    said = [line for line in done.stdout.splitlines() if line and " NCCL " not in line]
    assert said == [f"{code} {code} {code} {code}", "0", "0 0"]


def test_last_error_is_that_of_the_fault(expect_child: Child) -> None:
    expect_child(MEMORY + "assert rt.cudaMemset(p, 0, 8) == 719; assert rt.cudaGetLastError() == 719",
          env={"PSM_FAULTS": "cudaMemset:error=719"})  # fmt: skip


@pytest.mark.parametrize("name", ["cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS"])
def test_errors_have_the_names_of_the_runtime_and_of_the_driver(child: Child, name: str) -> None:
    done = child(MEMORY + RESULTS, env={"PSM_FAULTS": f"cudaMemset:error={name},nth=1"})
    assert "[700, 700, 700, 700]" in done.stdout


def test_unknown_error_name_is_told_and_strikes_never(child: Child) -> None:
    done = child(MEMORY + RESULTS, env={"PSM_FAULTS": "cudaMemset:error=cudaErrorOops"})
    assert "[0, 0, 0, 0]" in done.stdout
    assert "cudaMemset has no error cudaErrorOops" in done.stdout


def test_fault_of_another_rank_does_not_strike(child: Child) -> None:
    faults = {"PSM_FAULTS": "cudaMemset:error=700,rank=2"}
    assert "[0, 0, 0, 0]" in child(MEMORY + RESULTS, env={**faults, "RANK": "1"}).stdout
    assert "[700, 700, 700, 700]" in child(MEMORY + RESULTS, env={**faults, "RANK": "2"}).stdout


def test_functions_of_the_driver_and_of_nvml_fail_too(child: Child) -> None:
    code = """
    drv, nvml = Face("cuda"), Face("nvml")
    print(drv.cuInit(0), drv.cuDeviceGetCount(new('int *')), nvml.nvmlInit_v2())
    """
    done = child(code, env={"PSM_FAULTS": "cuDeviceGetCount:error=100;nvmlInit_v2:error=999"})
    assert "0 100 999" in done.stdout


def test_slow_call_takes_the_time_that_was_asked_for(child: Child) -> None:
    code = "import time\n" + MEMORY + "t = time.monotonic(); ok.cudaMemset(p, 0, 8); print(time.monotonic() - t >= 0.2)"
    assert "True" in child(code, env={"PSM_FAULTS": "cudaMemset:slow=200ms"}).stdout


def test_late_call_returns_late_with_its_work_done(child: Child) -> None:
    code = """
    import time, threading
    p = new('void **'); ok.cudaMalloc(p, 1)
    h = new('char[]', b'a'); ok.cudaMemcpy(p[0], h, 1, 1)
    late = threading.Thread(target=lambda: ok.cudaMemset(p[0], 98, 1))
    late.start()
    end = time.monotonic() + 30
    while h[0] != b'b' and time.monotonic() < end:
        ok.cudaMemcpy(h, p[0], 1, 2)
    print('done before it returned:', h[0] == b'b' and late.is_alive())
    os._exit(0)
    """
    done = child(
        "sys.stdout.reconfigure(line_buffering=True)\n" + _plain(code), env={"PSM_FAULTS": "cudaMemset:late=60s"}
    )
    assert "done before it returned: True" in done.stdout


def test_hanging_call_does_not_return_while_others_do(child: Child) -> None:
    code = """
    import threading
    p = new('void **'); ok.cudaMalloc(p, 8)
    hangs = threading.Thread(target=lambda: rt.cudaMemset(p[0], 0, 8))
    hangs.start()
    hangs.join(0.1)
    for i in range(1000): ok.cudaMemset(p[0], 0, 8)
    print('hangs:', hangs.is_alive(), flush=True)
    os._exit(0)
    """
    done = child(_plain(code), env={"PSM_FAULTS": "cudaMemset:hang,nth=1"})
    assert "hangs: True" in done.stdout


def test_without_faults_nothing_is_said(child: Child) -> None:
    done = child(MEMORY + RESULTS)
    assert "[0, 0, 0, 0]" in done.stdout and "PSM_FAULTS" not in done.stdout


def _plain(code: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in code.splitlines())


@pytest.mark.parametrize("site", ["cudaMemcpyasync", "cuMemsett*", "nvmlInitt"])
def test_fault_for_a_function_that_nobody_has_is_told(child: Child, site: str) -> None:
    done = child("ok.cudaFree(ffi.NULL)", env={"PSM_FAULTS": f"{site}:error=1"})
    assert f"CUDA and NVML have no function {site.removesuffix('*')}; this fault never hits" in done.stdout


@pytest.mark.parametrize("site", ["cudaMemcpyAsync", "cuMemset*", "cu*", "*", "net.send"])
def test_fault_that_can_strike_here_or_elsewhere_is_not_told(child: Child, site: str) -> None:
    done = child("ok.cudaFree(ffi.NULL)", env={"PSM_FAULTS": f"{site}:slow=1us:rank=5"})
    assert "never hits" not in done.stdout
