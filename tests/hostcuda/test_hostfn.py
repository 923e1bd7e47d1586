"""Host functions: cudaLaunchHostFunc and cudaStreamAddCallback run in stream order, not in the calling thread, and may
not call CUDA."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import Child, differs, emulated
from tests.hostcuda.gates import DEADLINE, NOT_READY, Lab

INVALID_VALUE, INVALID_HANDLE, NOT_PERMITTED = 1, 400, 800


def test_host_function_gets_its_data_and_runs_elsewhere(lab: Lab) -> None:
    stream, seen = lab.stream(), []
    data = lab.rt.new("int *", 42)

    @lab.ffi.callback("void(void *)")
    def run(given: Any) -> None:
        seen.append((lab.ffi.cast("int *", given)[0], threading.get_ident()))

    assert lab.rt.cudaLaunchHostFunc(stream, run, data) == 0
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert [value for value, _ in seen] == [42]
    assert seen[0][1] != threading.get_ident()


def test_host_function_by_ptsz_runs_in_the_per_thread_stream(lab: Lab) -> None:
    gate = lab.gate(lab.per_thread)
    ran = threading.Event()

    @lab.ffi.callback("void(void *)")
    def run(_data: Any) -> None:
        ran.set()

    assert lab.rt.cudaLaunchHostFunc_ptsz(lab.null, run, lab.ffi.NULL) == 0
    lab.expect_behind(gate, ran)


@differs("a handle or pointer that is none is followed, and the process dies")
def test_host_function_needs_a_function_and_a_stream(lab: Lab) -> None:
    @lab.ffi.callback("void(void *)")
    def run(_data: Any) -> None:
        pass

    assert lab.rt.cudaLaunchHostFunc(lab.stream(), lab.ffi.NULL, lab.ffi.NULL) == INVALID_VALUE
    assert lab.rt.cudaLaunchHostFunc(lab.ffi.cast("cudaStream_t", 0x1000), run, lab.ffi.NULL) == INVALID_HANDLE


def test_host_function_v2_of_cuda_13(lab: Lab) -> None:
    if lab.rt.library != "cudart13":
        assert not hasattr(lab.rt, "cudaLaunchHostFunc_v2")
        return
    stream, ran = lab.stream(), threading.Event()

    @lab.ffi.callback("void(void *)")
    def run(_data: Any) -> None:
        ran.set()

    for mode in (0, 1):
        lab.rt.ok.cudaLaunchHostFunc_v2(stream, run, lab.ffi.NULL, mode)
    assert lab.rt.cudaLaunchHostFunc_v2(stream, run, lab.ffi.NULL, 2) == INVALID_VALUE
    assert ran.wait(DEADLINE)
    lab.rt.ok.cudaStreamSynchronize(stream)


@differs("calls that touch no stream or memory are permitted")
def test_cuda_calls_inside_are_not_permitted(lab: Lab) -> None:
    """Also calls that touch nothing; and the error stays out of the caller's thread."""
    stream, codes, count = lab.stream(), [], lab.rt.new("int *")

    def run() -> None:
        codes.append(lab.rt.cudaStreamQuery(stream))
        codes.append(lab.rt.cudaGetDeviceCount(count))

    lab.call(stream, run)
    assert lab.rt.cudaStreamSynchronize(stream) == 0
    assert codes == [NOT_PERMITTED, NOT_PERMITTED]
    assert lab.rt.cudaGetLastError() == 0
    assert lab.rt.cudaStreamQuery(stream) == 0


def test_host_function_holds_what_is_behind_it(lab: Lab) -> None:
    stream = lab.stream(1)
    gate = lab.gate(stream)
    behind = lab.probe(stream, "behind")
    lab.expect_behind(gate, behind)
    assert lab.log == ["gate", "behind"]


@differs("host functions of a context run one after the other")
def test_host_functions_of_two_streams_may_wait_for_each_other(lab: Lab) -> None:
    one, two = lab.stream(1), lab.stream(1)
    ping, pong = threading.Event(), threading.Event()
    met: list[bool] = []

    def first() -> None:
        ping.set()
        met.append(pong.wait(DEADLINE))

    def second() -> None:
        met.append(ping.wait(DEADLINE))
        pong.set()

    lab.call(one, first)
    lab.call(two, second)
    lab.rt.ok.cudaStreamSynchronize(one)
    lab.rt.ok.cudaStreamSynchronize(two)
    assert met == [True, True]


def test_callback_is_told_stream_and_status(lab: Lab) -> None:
    stream, seen = lab.stream(), []

    @lab.ffi.callback("void(cudaStream_t, cudaError_t, void *)")
    def run(which: Any, status: int, data: Any) -> None:
        seen.append((which == stream, status, int(lab.ffi.cast("uintptr_t", data)), lab.rt.cudaStreamQuery(stream)))

    gate = lab.gate(stream)
    assert lab.rt.cudaStreamAddCallback(stream, run, lab.ffi.cast("void *", 7), 0) == 0
    assert lab.rt.cudaStreamQuery(stream) == NOT_READY
    gate.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert seen == [(True, 0, 7, NOT_PERMITTED)]


def test_callback_refuses_flags_and_null(lab: Lab) -> None:
    @lab.ffi.callback("void(cudaStream_t, cudaError_t, void *)")
    def run(_which: Any, _status: int, _data: Any) -> None:
        pass

    assert lab.rt.cudaStreamAddCallback(lab.stream(), run, lab.ffi.NULL, 1) == INVALID_VALUE
    assert lab.rt.cudaStreamAddCallback(lab.stream(), lab.ffi.NULL, lab.ffi.NULL, 0) == INVALID_VALUE


def test_driver_forms(lab: Lab, drv: Face) -> None:
    drv.cuCtxSetCurrent(drv.ffi.NULL)
    lab.rt.ok.cudaSetDevice(0)
    handle = drv.ffi.cast("CUstream", int(lab.ffi.cast("uintptr_t", lab.stream())))
    log: list[str] = []

    @drv.ffi.callback("void(void *)")
    def function(_data: Any) -> None:
        log.append("function")

    @drv.ffi.callback("void(CUstream, CUresult, void *)")
    def callback(_stream: Any, status: int, _data: Any) -> None:
        log.append(f"callback {status}")

    drv.ok.cuLaunchHostFunc(handle, function, drv.ffi.NULL)
    drv.ok.cuStreamAddCallback(handle, callback, drv.ffi.NULL, 0)
    drv.ok.cuLaunchHostFunc_v2(handle, function, drv.ffi.NULL, 1)
    assert drv.cuLaunchHostFunc_v2(handle, function, drv.ffi.NULL, 2) == INVALID_VALUE
    drv.ok.cuStreamSynchronize(handle)
    assert log == ["function", "callback 0", "function"]


SERIAL = """
import threading
one, two = new("cudaStream_t *"), new("cudaStream_t *")
ok.cudaStreamCreateWithFlags(one, 1)
ok.cudaStreamCreateWithFlags(two, 1)
open_, entered, second = threading.Event(), threading.Event(), threading.Event()

@ffi.callback("void(void *)")
def hold(_):
    entered.set()
    open_.wait(30)

@ffi.callback("void(void *)")
def note(_):
    second.set()

ok.cudaLaunchHostFunc(one[0], hold, ffi.NULL)
entered.wait(30)
ok.cudaLaunchHostFunc(two[0], note, ffi.NULL)
"""


@emulated
def test_serial_host_functions_run_one_at_a_time(child: Child) -> None:
    """CUDA allows an implementation to do so; work that is no host function still runs."""
    done = child(
        SERIAL
        + """
event, free = new("cudaEvent_t *"), new("cudaStream_t *")
ok.cudaEventCreate(event)
ok.cudaStreamCreateWithFlags(free, 1)
ok.cudaEventRecord(event[0], free[0])
ok.cudaEventSynchronize(event[0])
print(second.is_set(), rt.cudaStreamQuery(two[0]))
open_.set()
ok.cudaStreamSynchronize(two[0])
print(second.is_set())
""",
        env={"PSM_HOSTCUDA_HOST_FUNCTIONS": "serial"},
    )
    assert done.stdout.split() == ["False", "600", "True"]


@emulated
def test_concurrent_host_functions_are_the_default(child: Child) -> None:
    done = child(SERIAL + "print(second.wait(30), open_.is_set())\nopen_.set()\nok.cudaStreamSynchronize(one[0])")
    assert done.stdout.split() == ["True", "False"]


@emulated
def test_serial_mode_deadlocks_where_two_functions_need_each_other(child: Child) -> None:
    """What PassSM may do: shown by a pair that stays unfinished until the first is let go, where the default passes."""
    done = child(
        """
        import threading
        one, two = new("cudaStream_t *"), new("cudaStream_t *")
        ok.cudaStreamCreateWithFlags(one, 1)
        ok.cudaStreamCreateWithFlags(two, 1)
        entered, partner, release = threading.Event(), threading.Event(), threading.Event()

        @ffi.callback("void(void *)")
        def first(_):
            entered.set()
            while not partner.is_set() and not release.wait(0.001):
                pass
            print("met" if partner.is_set() else "alone")

        @ffi.callback("void(void *)")
        def second(_):
            partner.set()

        ok.cudaLaunchHostFunc(one[0], first, ffi.NULL)
        ok.cudaLaunchHostFunc(two[0], second, ffi.NULL)
        entered.wait(30)
        if sys.argv[1] == "serial":
            release.set()
        ok.cudaStreamSynchronize(one[0])
        ok.cudaStreamSynchronize(two[0])
        """,
        "serial",
        env={"PSM_HOSTCUDA_HOST_FUNCTIONS": "serial"},
    )
    assert done.stdout.split() == ["alone"]


def test_host_function_has_the_stack_of_a_thread(lab: Lab, tmp_path: Path) -> None:
    """Transports print, resolve names and call into other libraries there."""
    source, library = tmp_path / "deep.c", tmp_path / "deep.so"
    source.write_text(
        "void deep(void *n) { volatile char room[4 << 20]; for (unsigned i = 0; i < sizeof room; i += 512) room[i] = 1;"
        " *(int *)n = room[512]; }"
    )
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    address = ctypes.cast(ctypes.CDLL(str(library)).deep, ctypes.c_void_p).value
    stream, seen = lab.stream(), lab.rt.new("int *")
    lab.rt.ok.cudaLaunchHostFunc(stream, lab.ffi.cast("cudaHostFn_t", address), seen)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert seen[0] == 1


@emulated
def test_host_function_that_waits_for_its_turn_is_told(child: Child, tmp_path: Path) -> None:
    """Two host functions of which the first waits for the second: CUDA may run one at a time, and then both wait."""
    code = """
    import time
    from pathlib import Path
    from tests.hostcuda.gates import DEADLINE, Lab
    log = Path(sys.argv[1])
    with Lab(rt) as lab:
        one, two = lab.stream(1), lab.stream(1)
        def told():
            until = time.monotonic() + DEADLINE
            while not (log.exists() and "wait for their turn" in log.read_text()) and time.monotonic() < until:
                time.sleep(0.02)
        lab.call(one, told)
        lab.call(two, lambda: None)
    """
    log = tmp_path / "log"
    env = {"PSM_HOSTCUDA_HOST_FUNCTIONS": "serial", "PSM_STALL_REPORT": "0.1", "PSM_LOG_FILE": str(log)}
    child(code, str(log), env=env)
    said = [line for line in log.read_text().splitlines() if "wait for their turn" in line]
    assert len(said) == 1
    assert "1 operations on the non-blocking stream" in said[0] and "the first by cudaLaunchHostFunc" in said[0]
    assert "PSM_HOSTCUDA_HOST_FUNCTIONS=serial" in said[0]
