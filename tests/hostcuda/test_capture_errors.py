"""What may not be done while a stream captures: the documented error, and a capture that is invalid from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.hostcuda.conftest import Child, differs, emulated
from tests.hostcuda.gates import DEADLINE
from tests.hostcuda.graphs import ACTIVE, GLOBAL, INVALIDATED, NONE, RELAXED, THREAD_LOCAL, Graphs, in_thread

INVALID_VALUE, ILLEGAL_STATE = 1, 401
UNSUPPORTED, INVALIDATED_ERROR, IMPLICIT, WRONG_THREAD = 900, 901, 906, 908


def test_legacy_stream_cannot_be_captured(lab: Graphs) -> None:
    assert lab.rt.cudaStreamBeginCapture(lab.legacy, RELAXED) == UNSUPPORTED
    assert lab.rt.cudaStreamBeginCapture(lab.null, RELAXED) == UNSUPPORTED


def test_begin_refuses_unknown_modes(lab: Graphs) -> None:
    stream = lab.stream()
    mode = lab.ffi.cast("enum cudaStreamCaptureMode", 3)
    assert lab.rt.cudaStreamBeginCapture(stream, mode) == INVALID_VALUE
    assert lab.status(stream) == NONE


def test_stream_is_captured_once_at_a_time(lab: Graphs) -> None:
    stream = lab.stream()
    lab.begin(stream)
    assert lab.rt.cudaStreamBeginCapture(stream, THREAD_LOCAL) == ILLEGAL_STATE
    assert lab.status(stream) == ACTIVE
    lab.end(stream)


@differs("the error is another one: 401")
def test_end_without_begin(lab: Graphs) -> None:
    assert lab.end_code(lab.stream()) == ILLEGAL_STATE
    assert lab.rt.cudaStreamEndCapture(lab.stream(), lab.ffi.NULL) == INVALID_VALUE


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaStreamQuery"])
def test_captured_stream_cannot_be_asked_or_waited_for(lab: Graphs, call: str) -> None:
    stream = lab.stream()
    lab.begin(stream, RELAXED)
    assert getattr(lab.rt, call)(stream) == UNSUPPORTED
    assert lab.status(stream) == INVALIDATED
    assert lab.end_code(stream) == INVALIDATED_ERROR
    assert lab.status(stream) == NONE
    assert getattr(lab.rt, call)(stream) == 0


def test_device_cannot_be_waited_for(lab: Graphs) -> None:
    stream = lab.stream(1)
    lab.begin(stream, RELAXED)
    assert lab.rt.cudaDeviceSynchronize() == UNSUPPORTED
    assert lab.end_code(stream) == INVALIDATED_ERROR
    assert lab.rt.cudaDeviceSynchronize() == 0


def test_invalid_capture_takes_no_work(lab: Graphs) -> None:
    stream, event = lab.stream(), lab.event()
    lab.begin(stream)
    lab.rt.cudaStreamQuery(stream)
    function = lab.function(lambda: None)
    assert lab.rt.cudaLaunchHostFunc(stream, function, lab.ffi.NULL) == INVALIDATED_ERROR
    assert lab.rt.cudaEventRecord(event, stream) == INVALIDATED_ERROR
    assert lab.rt.cudaStreamWaitEvent(stream, event, 0) == INVALIDATED_ERROR
    assert lab.set_dependencies(stream, []) == INVALIDATED_ERROR
    assert lab.info(stream).status == INVALIDATED
    assert lab.end_code(stream) == INVALIDATED_ERROR
    assert lab.probe(stream, "works again").wait(DEADLINE)


@differs("the graph cannot be destroyed meanwhile: 401, and later the process dies")
def test_graph_of_an_invalid_capture_stays_when_it_was_there_before(lab: Graphs) -> None:
    stream, graph, null = lab.stream(), lab.graph(), lab.ffi.NULL
    lab.rt.ok.cudaStreamBeginCaptureToGraph(stream, graph, null, null, 0, THREAD_LOCAL)
    assert lab.rt.cudaGraphDestroy(graph) == INVALID_VALUE  # not while it is captured into
    lab.rt.cudaStreamQuery(stream)
    assert lab.end_code(stream) == INVALIDATED_ERROR
    assert lab.nodes_of(graph) == []


# ---- the legacy stream depends on blocking streams


def use_legacy(lab: Graphs) -> int:
    return int(lab.rt.cudaLaunchHostFunc(lab.legacy, lab.function(lambda: None), lab.ffi.NULL))


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_legacy_stream_cannot_be_used_beside_a_blocking_stream(lab: Graphs, mode: int) -> None:
    stream = lab.stream(0)
    lab.begin(stream, mode)
    assert use_legacy(lab) == IMPLICIT
    assert lab.end_code(stream) == INVALIDATED_ERROR
    assert use_legacy(lab) == 0


def test_legacy_stream_can_be_used_beside_a_non_blocking_stream(lab: Graphs) -> None:
    stream = lab.stream(1)
    lab.begin(stream, GLOBAL)
    assert use_legacy(lab) == 0
    lab.end(stream)


def test_synchronous_copy_beside_a_blocking_stream(lab: Graphs) -> None:
    stream = lab.stream(0)
    a, b = lab.rt.new("char[8]"), lab.rt.new("char[8]")
    lab.begin(stream)
    assert lab.rt.cudaMemcpy(a, b, 8, 4) == IMPLICIT
    assert lab.end_code(stream) == INVALIDATED_ERROR


def test_asking_the_legacy_stream_beside_a_blocking_stream_spoils_nothing(lab: Graphs) -> None:
    stream = lab.stream(0)
    status = lab.rt.new("enum cudaStreamCaptureStatus *")
    lab.begin(stream)
    assert lab.rt.cudaStreamIsCapturing(lab.legacy, status) == IMPLICIT
    assert lab.info(lab.legacy).code == IMPLICIT
    assert lab.status(stream) == ACTIVE
    lab.end(stream)
    assert lab.status(lab.legacy) == NONE


def test_legacy_stream_cannot_be_pulled_in(lab: Graphs) -> None:
    stream, event = lab.stream(1), lab.event()
    lab.begin(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    assert lab.rt.cudaStreamWaitEvent(lab.legacy, event, 0) == IMPLICIT
    assert lab.end_code(stream) == INVALIDATED_ERROR


# ---- calls that are unsafe beside a capture, and the mode of the thread


def allocate(lab: Graphs) -> int:
    out = lab.rt.new("void **")
    code = int(lab.rt.cudaMalloc(out, 64))
    if code == 0:
        lab.rt.cudaFree(out[0])
    return code


def with_mode(lab: Graphs, mode: int, call: Callable[[], int]) -> int:
    value = lab.rt.new("enum cudaStreamCaptureMode *", mode)
    lab.rt.ok.cudaThreadExchangeStreamCaptureMode(value)
    try:
        return call()
    finally:
        lab.rt.ok.cudaThreadExchangeStreamCaptureMode(value)


# (mode of the capture, mode of the thread, in the capturing thread?) -> may allocate
UNSAFE = [
    (GLOBAL, GLOBAL, True, False),
    (GLOBAL, THREAD_LOCAL, True, False),
    (GLOBAL, RELAXED, True, True),
    (GLOBAL, GLOBAL, False, False),
    (GLOBAL, THREAD_LOCAL, False, True),
    (GLOBAL, RELAXED, False, True),
    (THREAD_LOCAL, GLOBAL, True, False),
    (THREAD_LOCAL, THREAD_LOCAL, True, False),
    (THREAD_LOCAL, RELAXED, True, True),
    (THREAD_LOCAL, GLOBAL, False, True),
    (RELAXED, GLOBAL, True, True),
    (RELAXED, GLOBAL, False, True),
]


@pytest.mark.parametrize(("capture", "thread", "same", "allowed"), UNSAFE)
def test_allocation_beside_a_capture(lab: Graphs, capture: int, thread: int, same: bool, allowed: bool) -> None:
    stream = lab.stream(1)
    lab.begin(stream, capture)

    def call() -> int:
        return with_mode(lab, thread, lambda: allocate(lab))

    code = call() if same else in_thread(call)
    assert code == (0 if allowed else UNSUPPORTED)
    if allowed:
        lab.end(stream)
    else:
        assert lab.end_code(stream) == INVALIDATED_ERROR


@differs("cudaStreamEndCapture answers 401 after that")
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_capture_is_ended_by_the_thread_that_began_it(lab: Graphs, mode: int) -> None:
    stream = lab.stream()
    lab.begin(stream, mode)
    assert in_thread(lambda: lab.end_code(stream)) == WRONG_THREAD
    lab.end_code(stream) if lab.status(stream) == INVALIDATED else lab.end(stream)
    assert lab.status(stream) == NONE


def test_relaxed_capture_is_ended_by_any_thread(lab: Graphs) -> None:
    stream = lab.stream()
    lab.begin(stream, RELAXED)
    ended = threading.Event()

    def end() -> int:
        lab.end(stream)
        ended.set()
        return 0

    in_thread(end)
    assert ended.is_set()
    assert lab.status(stream) == NONE


@emulated
def test_reset_of_the_device_ends_its_captures(expect_child: Child) -> None:
    expect_child("""
        stream, out = new("cudaStream_t *"), new("void **")
        ok.cudaStreamCreateWithFlags(stream, 1)
        ok.cudaStreamBeginCapture(stream[0], 0)
        assert rt.cudaMalloc(out, 64) == 900
        rt.cudaDeviceReset()
        rt.cudaGetLastError()
        assert rt.cudaMalloc(out, 64) == 0
    """)
