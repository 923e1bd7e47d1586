"""Interprocess events: recorded in one process, queried, waited for and recorded again in another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import PROLOGUE, Child, differs, emulated
from tests.hostcuda.gates import DEADLINE, NOT_READY, Lab

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, UNKNOWN = 1, 201, 400, 999

PEER = """
import threading
event, stream = new("cudaEvent_t *"), new("cudaStream_t *")
ok.cudaEventCreateWithFlags(event, 6)
ok.cudaStreamCreateWithFlags(stream, 1)
handle = new("cudaIpcEventHandle_t *")
ok.cudaIpcGetEventHandle(handle, event[0])
print(bytes(ffi.buffer(handle)).hex(), flush=True)
gates = []

@ffi.callback("void(void *)")
def hold(_):
    gates[-1].wait(60)

for line in sys.stdin:
    command = line.strip()
    if command == "gate":
        gates.append(threading.Event())
        ok.cudaLaunchHostFunc(stream[0], hold, ffi.NULL)
    elif command == "open":
        gates[-1].set()
    elif command == "record":
        ok.cudaEventRecord(event[0], stream[0])
    elif command == "query":
        print(rt.cudaEventQuery(event[0]), flush=True)
        continue
    elif command == "destroy":
        ok.cudaEventDestroy(event[0])
    elif command == "synchronize":
        ok.cudaStreamSynchronize(stream[0])
    print("done", flush=True)
"""


class Peer:
    """The process that makes the event and does as it is told."""

    def __init__(self, rt: Face) -> None:
        code = PROLOGUE.format(library=rt.library, path=str(rt.path)) + PEER
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._timer = threading.Timer(2 * DEADLINE, self._process.kill)  # no test waits for ever
        self._timer.start()
        self.handle = bytes.fromhex(self._line())

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def tell(self, *commands: str) -> str:
        assert self._process.stdin
        answer = ""
        for command in commands:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
            answer = self._line()
            assert answer
        return answer

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE)

    def end(self) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.wait(DEADLINE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()


@pytest.fixture
def peer(rt: Face) -> Iterator[Peer]:
    made = Peer(rt)
    yield made
    made.end()


def opened(lab: Lab, peer: Peer) -> Any:
    handle, event = lab.rt.new("cudaIpcEventHandle_t *"), lab.rt.new("cudaEvent_t *")
    lab.ffi.memmove(handle, peer.handle, len(peer.handle))
    lab.rt.ok.cudaIpcOpenEventHandle(event, handle[0])
    lab._events.append(event[0])
    return event[0]


def test_event_that_was_never_recorded_is_done_everywhere(lab: Lab, peer: Peer) -> None:
    event = opened(lab, peer)
    assert lab.rt.cudaEventQuery(event) == 0
    assert lab.rt.cudaEventSynchronize(event) == 0
    assert lab.rt.cudaStreamWaitEvent(lab.stream(), event, 0) == 0


def test_record_of_the_owner_is_seen_here(lab: Lab, peer: Peer) -> None:
    event = opened(lab, peer)
    peer.tell("gate", "record")
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    peer.tell("open")
    assert lab.rt.cudaEventSynchronize(event) == 0
    assert lab.rt.cudaEventQuery(event) == 0


def test_stream_here_waits_for_a_record_there(lab: Lab, peer: Peer) -> None:
    event, stream = opened(lab, peer), lab.stream(1)
    peer.tell("gate", "record")
    lab.rt.ok.cudaStreamWaitEvent(stream, event, 0)
    ran = lab.probe(stream, "behind")
    lab.round_trip()
    assert not ran.is_set()
    assert lab.rt.cudaStreamQuery(stream) == NOT_READY
    peer.tell("open")
    assert ran.wait(DEADLINE)


def test_wait_captures_the_record_at_the_call(lab: Lab, peer: Peer) -> None:
    event, stream = opened(lab, peer), lab.stream(1)
    peer.tell("record", "synchronize")
    lab.rt.ok.cudaStreamWaitEvent(stream, event, 0)
    peer.tell("gate", "record")
    assert lab.probe(stream, "not held by the later record").wait(DEADLINE)
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    peer.tell("open")
    assert lab.rt.cudaEventSynchronize(event) == 0


def test_importer_may_record_and_the_owner_sees_it(lab: Lab, peer: Peer) -> None:
    event, stream = opened(lab, peer), lab.stream(1)
    gate = lab.gate(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    assert peer.tell("query") == str(NOT_READY)
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    gate.open()
    assert lab.rt.cudaEventSynchronize(event) == 0
    assert peer.tell("query") == "0"


@differs("a record of another process waits for the one before it")
def test_last_record_counts_whoever_made_it(lab: Lab, peer: Peer) -> None:
    event, stream = opened(lab, peer), lab.stream(1)
    gate = lab.gate(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    peer.tell("record", "synchronize")
    assert lab.rt.cudaEventQuery(event) == 0
    gate.open()


def test_destroy_in_the_owner_leaves_the_event_here(lab: Lab, peer: Peer) -> None:
    event = opened(lab, peer)
    peer.tell("gate", "record", "destroy")
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    peer.tell("open")
    assert lab.rt.cudaEventSynchronize(event) == 0


@differs("a handle or pointer that is none is followed, and the process dies")
def test_handle_needs_an_interprocess_event(lab: Lab) -> None:
    handle = lab.rt.new("cudaIpcEventHandle_t *")
    assert lab.rt.cudaIpcGetEventHandle(handle, lab.event()) in (INVALID_VALUE, INVALID_HANDLE)
    assert lab.rt.cudaIpcGetEventHandle(lab.ffi.NULL, lab.event(6)) == INVALID_VALUE
    assert lab.rt.cudaIpcGetEventHandle(handle, lab.ffi.cast("cudaEvent_t", 0x1000)) == INVALID_HANDLE


@differs("the error is another one: 205")
def test_open_refuses_what_is_no_handle(lab: Lab) -> None:
    handle, event = lab.rt.new("cudaIpcEventHandle_t *"), lab.rt.new("cudaEvent_t *")
    assert lab.rt.cudaIpcOpenEventHandle(event, handle[0]) in (INVALID_VALUE, INVALID_HANDLE)


@differs("the event of a dead process can be opened")
def test_open_refuses_a_handle_whose_owner_is_gone(lab: Lab, peer: Peer) -> None:
    peer.kill()
    handle, event = lab.rt.new("cudaIpcEventHandle_t *"), lab.rt.new("cudaEvent_t *")
    lab.ffi.memmove(handle, peer.handle, len(peer.handle))
    assert lab.rt.cudaIpcOpenEventHandle(event, handle[0]) != 0


def test_opened_event_has_no_time(lab: Lab, peer: Peer) -> None:
    event, ms = opened(lab, peer), lab.rt.new("float *")
    peer.tell("record", "synchronize")
    assert lab.rt.cudaEventElapsedTime(ms, event, event) == INVALID_HANDLE


def test_driver_forms(lab: Lab, peer: Peer, drv: Face) -> None:
    context = drv.new("CUcontext *")
    drv.ok.cuDevicePrimaryCtxRetain(context, 0)
    drv.ok.cuCtxSetCurrent(context[0])
    handle, event, own = drv.new("CUipcEventHandle *"), drv.new("CUevent *"), drv.new("CUevent *")
    drv.ffi.memmove(handle, peer.handle, len(peer.handle))
    drv.ok.cuIpcOpenEventHandle(event, handle[0])
    peer.tell("gate", "record")
    assert drv.cuEventQuery(event[0]) == NOT_READY
    peer.tell("open")
    assert drv.cuEventSynchronize(event[0]) == 0
    drv.ok.cuEventDestroy_v2(event[0])
    drv.ok.cuEventCreate(own, 6)
    drv.ok.cuIpcGetEventHandle(handle, own[0])
    assert any(bytes(drv.ffi.buffer(handle)))
    drv.ok.cuEventDestroy_v2(own[0])
    drv.ok.cuDevicePrimaryCtxRelease_v2(0)


@emulated
def test_who_waits_for_a_killed_process_gets_an_error(rt: Face, child: Child) -> None:
    """CUDA would wait for ever here."""
    peer = Peer(rt)
    try:
        peer.tell("gate", "record")
        done = child(
            """
            import threading
            handle, event, stream = new("cudaIpcEventHandle_t *"), new("cudaEvent_t *"), new("cudaStream_t *")
            ffi.memmove(handle, bytes.fromhex(sys.argv[1]), 64)
            ok.cudaIpcOpenEventHandle(event, handle[0])
            ok.cudaStreamCreate(stream)
            ok.cudaStreamWaitEvent(stream[0], event[0], 0)
            print(rt.cudaEventQuery(event[0]), rt.cudaStreamQuery(stream[0]))
            os.kill(int(sys.argv[2]), signal.SIGKILL)
            print(rt.cudaEventSynchronize(event[0]), rt.cudaStreamSynchronize(stream[0]))
            """,
            peer.handle.hex(),
            str(peer._process.pid),
        )
    finally:
        peer.end()
    codes = [word for line in done.stdout.splitlines() if "hostcuda" not in line for word in line.split()]
    assert codes == [str(NOT_READY), str(NOT_READY), str(UNKNOWN), str(UNKNOWN)]
    said = done.stdout + done.stderr
    assert f"process {peer._process.pid} recorded an interprocess event and ended before it was done" in said
