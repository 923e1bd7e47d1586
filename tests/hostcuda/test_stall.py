"""What hostcuda tells of threads and work that wait for a host function which does not return. CUDA tells nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit import logparse
from psmkit.logparse.records import open_record
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


VALUES = """
drv = Face('cuda')
flags = new('void **')
ok.cudaMalloc(flags, 64)
ok.cudaMemset(flags[0], 0, 64)
s, other = stream(), stream()
base = int(ffi.cast('uintptr_t', flags[0]))
print(hex(base))
ops = drv.ffi.new('CUstreamBatchMemOpParams[3]')
def wait(op, at, bits, value, flags):
    op.waitValue.operation = 1 if bits == 32 else 4
    op.waitValue.address, op.waitValue.flags = base + at, flags
    if bits == 32:
        op.waitValue.value = value
    else:
        op.waitValue.value64 = value
def put(at, value):
    ok.cudaMemsetAsync(ffi.cast('void *', base + at), value, 1, other)
def submit(n):
    drv.ok.cuStreamBatchMemOp_v2(drv.ffi.cast('CUstream', int(ffi.cast('uintptr_t', s))), n, ops, 0)
"""


def values(child: Child, tmp_path: Path, code: str) -> list[str]:
    """The lines about values that streams wait for."""
    log = tmp_path / "log"
    env = {"PSM_STALL_REPORT": "0.2", "PSM_LOG_FILE": str(log)}
    child(PROLOGUE + VALUES + code, str(log), env=env)
    return [line.partition("hostcuda: ")[2] for line in log.read_text().splitlines() if "-bit value at 0x" in line]


def test_each_value_that_a_batch_lacks_is_told_and_each_that_comes(child: Child, tmp_path: Path) -> None:
    code = """
wait(ops[0], 4, 32, 3, 1)
wait(ops[1], 8, 64, 2, 0)
wait(ops[2], 16, 32, 0, 1)  # is there
submit(3)
told('byte 8 of its allocation, reaches 2; it is 0')
put(8, 2)
told(f'the 64-bit value at {hex(base + 8)} has come')
put(4, 3)
ok.cudaStreamSynchronize(s)
"""
    lines = values(child, tmp_path, code)
    assert len(lines) == 4, lines
    assert "byte 4 of its allocation, equals 3; it is 0" in lines[0] and "the 32-bit value" in lines[0]
    assert "byte 8 of its allocation, reaches 2; it is 0" in lines[1]
    assert lines[2].startswith("the 64-bit value at ") and lines[3].startswith("the 32-bit value at ")


def test_a_killed_process_leaves_its_waits_in_its_record(child: Child, tmp_path: Path) -> None:
    log, records = tmp_path / "log", tmp_path / "records"
    code = """
import signal
wait(ops[0], 0, 32, 3, 1)
wait(ops[1], 8, 32, 1, 1)
submit(2)
told('byte 8 of its allocation')
put(8, 1)
told('has come')
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {"PSM_STALL_REPORT": "0.2", "PSM_LOG_FILE": str(log), "PSM_RECORD_DIR": str(records)}
    assert child(PROLOGUE + VALUES + code, str(log), env=env, check=False).returncode == -9
    (file,) = records.glob("*.rec")
    rows = [r for r in open_record(str(file)).records() if r.section == "hostcuda.values"]
    assert [(r.message, r.fields["offset"], r.fields["wanted"], r.fields["seen"]) for r in rows] == [
        ("hostcuda.value_wait", 0, 3, 0)
    ]
    events = [event for batch in logparse.events([str(file)], names={"hostcuda.value_wait"}) for event in batch]
    assert [event.fields["condition"] for event in events] == ["equals"]


def test_a_value_that_is_too_large_is_told_with_what_is_there(child: Child, tmp_path: Path) -> None:
    code = """
put(0, 5)
ok.cudaStreamSynchronize(other)
wait(ops[0], 0, 32, 3, 1)
submit(1)
told('equals 3; it is 5')
put(0, 3)
ok.cudaStreamSynchronize(s)
"""
    assert ["equals 3; it is 5" in line for line in values(child, tmp_path, code)] == [True, False]
