"""What hostcuda tells of threads and work that wait for a host function which does not return. CUDA tells nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostcuda.conftest import Child, emulated

pytestmark = emulated

# `call` queues a Python function; `told` waits until a line is in the log, for at most half a minute.
PROLOGUE = """
import threading, time
log = sys.argv[1]
kept = []

def stream(flags=1):
    out = new('cudaStream_t *')
    ok.cudaStreamCreateWithFlags(out, flags)
    return out[0]

def call(where, function):
    kept.append(ffi.callback('void(void *)', lambda data: function()))
    ok.cudaLaunchHostFunc(where, kept[-1], ffi.NULL)

def lines():
    return open(log).read().splitlines() if os.path.exists(log) else []

def told(text):
    deadline = time.monotonic() + 30
    while not any(text in line for line in lines()):
        assert time.monotonic() < deadline, lines()
        time.sleep(0.01)  # looking again: the deadline decides
"""


def run(child: Child, tmp_path: Path, code: str) -> list[str]:
    """The lines about streams that stood still."""
    log = tmp_path / "log"
    env = {"PSM_STALL_REPORT": "0.2", "PSM_LOG_FILE": str(log)}
    child(PROLOGUE + code, str(log), env=env)
    return [line for line in log.read_text().splitlines() if "stalled" in line or "continues after" in line]


@pytest.mark.parametrize(
    ("call", "wait"),
    [
        ("cudaStreamSynchronize", "ok.cudaStreamSynchronize(s)"),
        ("cudaDeviceSynchronize", "ok.cudaDeviceSynchronize()"),
    ],
)
def test_thread_that_waits_for_a_host_function_with_nothing_behind_it_is_told(
    child: Child, tmp_path: Path, call: str, wait: str
) -> None:
    stalled, over = run(
        child, tmp_path, f"s = stream()\ncall(s, lambda: told('stalled for'))\n{wait}\ntold('continues')"
    )
    assert f"waits in {call} for the non-blocking stream 0x" in stalled
    assert "which is in host function " in stalled
    assert "continues after" in over


def test_wait_for_an_event_behind_a_host_function_is_told(child: Child, tmp_path: Path) -> None:
    code = """
s, e = stream(), new('cudaEvent_t *')
ok.cudaEventCreate(e)
call(s, lambda: told('stalled for'))
ok.cudaEventRecord(e[0], s)
ok.cudaEventSynchronize(e[0])
"""
    stalled = run(child, tmp_path, code)[0]
    assert "the first by cudaEventRecord" in stalled and "which is in host function " in stalled


def test_host_function_that_nobody_waits_for_is_not_told(child: Child, tmp_path: Path) -> None:
    # It runs before the other one begins and until that one was told, so its time is over first.
    code = """
quiet, s, over = stream(), stream(), threading.Event()
began = threading.Event()
call(quiet, lambda: (began.set(), over.wait(30)))
assert began.wait(30)
call(s, lambda: told('stalled for'))
ok.cudaStreamSynchronize(s)
print('quiet', int(ffi.cast('uintptr_t', quiet)))
over.set()
ok.cudaStreamSynchronize(quiet)
"""
    assert len([line for line in run(child, tmp_path, code) if "stalled" in line]) == 1


def test_thread_that_waits_for_a_memory_value_is_told_without_a_host_function(child: Child, tmp_path: Path) -> None:
    code = """
drv = Face('cuda')
flag = new('void **')
ok.cudaMalloc(flag, 4)
ok.cudaMemset(flag[0], 0, 4)
s, other = stream(), stream()
address = int(ffi.cast('uintptr_t', flag[0]))
drv.ok.cuStreamWaitValue32_v2(drv.ffi.cast('CUstream', int(ffi.cast('uintptr_t', s))), address, 1, 0)
def release():
    told('stalled for')
    ok.cudaMemsetAsync(flag[0], 1, 4, other)
threading.Thread(target=release).start()
ok.cudaStreamSynchronize(s)
"""
    stalled = run(child, tmp_path, code)[0]
    assert "waits in cudaStreamSynchronize for running work of the non-blocking stream 0x" in stalled
