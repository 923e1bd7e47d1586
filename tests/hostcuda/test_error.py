"""Error names, texts, and the runtime's last error."""

from __future__ import annotations

import threading

import pytest

from psmkit.lab.cuda import Face

from . import headers
from .conftest import REAL, Child, differs, emulated


def name(rt: Face, code: int) -> str:
    return bytes(rt.ffi.string(rt.cudaGetErrorName(code))).decode()


@pytest.mark.skipif(not headers.there, reason="the packages with CUDA's headers are not installed")
def test_every_code_of_the_header_has_its_name_and_a_text(rt: Face, drv: Face) -> None:
    from .test_api_facts import theirs  # the enumerators of both headers

    text = drv.new("const char **")
    for code in range(1000):
        runtime, known = name(rt, code), theirs(12).enumerators | theirs(13).enumerators
        if runtime != "unrecognized error code":
            assert runtime in known
            assert rt.ffi.string(rt.cudaGetErrorString(code)) not in (b"", b"unrecognized error code")
        if drv.cuGetErrorName(code, text) == 0:
            assert bytes(drv.ffi.string(text[0])).decode() in known
            assert drv.cuGetErrorString(code, text) == 0
    if REAL:  # a runtime older than the header lacks the newest names
        return
    names = {name(rt, code) for code in range(1000)}
    enumeration = headers.values(13, "enum cudaError") | headers.values(12, "enum cudaError")
    assert {n for n in enumeration if n != "cudaErrorApiFailureBase"} <= names


@pytest.mark.parametrize(
    ("code", "runtime", "driver"),
    [
        (0, "cudaSuccess", "CUDA_SUCCESS"),
        (1, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE"),
        (2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"),
        (400, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE"),
        (600, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY"),
        (700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_error_names(rt: Face, drv: Face, code: int, runtime: str, driver: str) -> None:
    text = drv.new("const char **")
    drv.ok.cuGetErrorName(code, text)
    assert name(rt, code) == runtime
    assert drv.ffi.string(text[0]) == driver.encode()


@differs("NULL is followed, and the process dies")
@pytest.mark.parametrize("code", [-1, 11, 12345])
def test_code_that_is_no_error_is_unrecognized(rt: Face, drv: Face, code: int) -> None:
    text = drv.new("const char **", drv.new("char[2]", b"x"))
    assert name(rt, code) == "unrecognized error code"
    assert rt.ffi.string(rt.cudaGetErrorString(code)) == b"unrecognized error code"
    assert drv.cuGetErrorName(code, text) == 1
    assert text[0] == drv.ffi.NULL
    assert drv.cuGetErrorString(code, text) == 1
    assert drv.cuGetErrorName(1, drv.ffi.NULL) == 1


def test_last_error_is_returned_and_reset(rt: Face) -> None:
    assert rt.cudaSetDevice(99) == 101
    assert rt.cudaPeekAtLastError() == 101
    assert rt.cudaPeekAtLastError() == 101
    assert rt.cudaGetLastError() == 101
    assert rt.cudaGetLastError() == 0


def test_last_error_outlives_calls_that_succeed(rt: Face) -> None:
    rt.cudaSetDevice(99)
    rt.ok.cudaSetDevice(0)
    assert rt.cudaGetLastError() == 101


def test_last_error_is_the_latest(rt: Face) -> None:
    rt.cudaSetDevice(99)
    rt.cudaGetDeviceCount(rt.ffi.NULL)
    assert rt.cudaGetLastError() == 1


def test_last_error_belongs_to_a_thread(rt: Face) -> None:
    seen: list[int] = []
    rt.cudaSetDevice(99)
    thread = threading.Thread(target=lambda: seen.append(rt.cudaGetLastError()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert rt.cudaGetLastError() == 101


def test_driver_errors_are_not_the_runtimes_last_error(rt: Face, drv: Face) -> None:
    assert drv.cuDeviceGet(drv.new("int *"), 99) == 101
    assert rt.cudaGetLastError() == 0


@emulated
def test_what_is_not_emulated_is_not_supported_and_is_the_last_error(rt: Face) -> None:
    assert rt.cudaDeviceFlushGPUDirectRDMAWrites(0, 100) == 801
    assert rt.cudaGetLastError() == 801


@emulated
def test_child_of_fork_is_told_that_cuda_is_not_there(child: Child) -> None:
    done = child(
        """
        ok.cudaSetDevice(0)
        pid = os.fork()
        if not pid:
            os._exit(rt.cudaSetDevice(0))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert done.stdout.strip() == "3"
