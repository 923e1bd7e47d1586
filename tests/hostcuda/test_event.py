"""Events: what cudaEventRecord, Query, Synchronize, ElapsedTime and cudaStreamWaitEvent promise."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import differs, needs_devices
from tests.hostcuda.gates import DEADLINE, NOT_READY, Lab

INVALID_VALUE, INVALID_HANDLE = 1, 400
TIMING, BLOCKING_SYNC, DISABLE_TIMING, INTERPROCESS, EXTERNAL = 0, 1, 2, 4, 1


@pytest.mark.parametrize("flags", [TIMING, BLOCKING_SYNC, DISABLE_TIMING, BLOCKING_SYNC | DISABLE_TIMING])
def test_event_is_recorded_and_done(lab: Lab, flags: int) -> None:
    event = lab.event(flags)
    assert lab.rt.cudaEventRecord(event, lab.stream()) == 0
    assert lab.rt.cudaEventSynchronize(event) == 0
    assert lab.rt.cudaEventQuery(event) == 0


def test_create_refuses_unknown_flags_and_null(rt: Face) -> None:
    out = rt.new("cudaEvent_t *")
    assert rt.cudaEventCreate(out) == 0
    assert rt.cudaEventDestroy(out[0]) == 0
    assert rt.cudaEventCreateWithFlags(out, 8) == INVALID_VALUE
    assert rt.cudaEventCreateWithFlags(out, INTERPROCESS) == INVALID_VALUE  # needs cudaEventDisableTiming
    assert rt.cudaEventCreate(rt.ffi.NULL) == INVALID_VALUE


def test_event_that_was_never_recorded_is_done(lab: Lab) -> None:
    event = lab.event()
    assert lab.rt.cudaEventQuery(event) == 0
    assert lab.rt.cudaEventSynchronize(event) == 0
    assert lab.rt.cudaStreamWaitEvent(lab.stream(), event, 0) == 0


def test_query_is_not_ready_until_the_work_before_it_is_done(lab: Lab) -> None:
    stream, event = lab.stream(), lab.event()
    gate = lab.gate(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    behind = lab.gate(stream, "behind")  # later work does not count
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    assert lab.rt.cudaStreamQuery(stream) == NOT_READY
    assert lab.rt.cudaGetLastError() == 0  # an answer, no error
    gate.open()
    assert lab.rt.cudaEventSynchronize(event) == 0
    assert lab.rt.cudaEventQuery(event) == 0
    assert lab.rt.cudaStreamQuery(stream) == NOT_READY
    behind.open()


@differs("a handle or pointer that is none is followed, and the process dies")
def test_destroyed_event_is_an_invalid_handle(lab: Lab) -> None:
    rt, stream, out = lab.rt, lab.stream(), lab.rt.new("cudaEvent_t *")
    rt.ok.cudaEventCreate(out)
    rt.ok.cudaEventDestroy(out[0])
    for code in (
        rt.cudaEventQuery(out[0]),
        rt.cudaEventSynchronize(out[0]),
        rt.cudaEventRecord(out[0], stream),
        rt.cudaStreamWaitEvent(stream, out[0], 0),
        rt.cudaEventDestroy(out[0]),
        rt.cudaEventElapsedTime(rt.new("float *"), out[0], out[0]),
        rt.cudaEventDestroy(rt.ffi.NULL),
    ):
        assert code == INVALID_HANDLE


def test_destroy_before_the_work_is_done_returns_at_once(lab: Lab) -> None:
    stream, other, out = lab.stream(1), lab.stream(1), lab.rt.new("cudaEvent_t *")
    lab.rt.ok.cudaEventCreate(out)
    gate = lab.gate(stream)
    lab.rt.ok.cudaEventRecord(out[0], stream)
    lab.rt.ok.cudaStreamWaitEvent(other, out[0], 0)
    ran = lab.probe(other, "waiter")
    assert lab.rt.cudaEventDestroy(out[0]) == 0
    lab.expect_behind(gate, ran)  # who waits still waits
    assert lab.log == ["gate", "waiter"]


def test_wait_event_orders_streams(lab: Lab) -> None:
    one, two, event = lab.stream(1), lab.stream(1), lab.event()
    gate = lab.gate(one)
    lab.rt.ok.cudaEventRecord(event, one)
    lab.rt.ok.cudaStreamWaitEvent(two, event, 0)
    ran = lab.probe(two, "waiter")
    lab.expect_behind(gate, ran)
    assert lab.log == ["gate", "waiter"]


@needs_devices(2)
def test_wait_event_orders_streams_of_two_devices(lab: Lab) -> None:
    one, event = lab.stream(1), lab.event()
    lab.rt.ok.cudaSetDevice(1)
    two = lab.stream(1)
    lab.rt.ok.cudaSetDevice(0)
    gate = lab.gate(one)
    lab.rt.ok.cudaEventRecord(event, one)
    assert lab.rt.cudaStreamWaitEvent(two, event, 0) == 0
    ran = lab.probe(two, "waiter")
    lab.expect_behind(gate, ran)


def test_wait_captures_the_record_at_the_call(lab: Lab) -> None:
    """A later record of the event does not hold who waited for the earlier one."""
    first, second, waiter, event = lab.stream(1), lab.stream(1), lab.stream(1), lab.event()
    early, late = lab.gate(first, "early"), lab.gate(second, "late")
    lab.rt.ok.cudaEventRecord(event, first)
    lab.rt.ok.cudaStreamWaitEvent(waiter, event, 0)
    ran = lab.probe(waiter, "waiter")
    lab.rt.ok.cudaEventRecord(event, second)
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    early.open()
    assert ran.wait(DEADLINE)
    assert lab.log == ["early", "waiter"]
    assert lab.rt.cudaEventQuery(event) == NOT_READY  # the last record counts
    late.open()
    assert lab.rt.cudaEventSynchronize(event) == 0


def test_record_again_makes_a_done_event_not_ready(lab: Lab) -> None:
    stream, event = lab.stream(1), lab.event()
    lab.rt.ok.cudaEventRecord(event, stream)
    assert lab.rt.cudaEventSynchronize(event) == 0
    gate = lab.gate(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    gate.open()


def test_wait_in_the_stream_of_the_record_is_no_deadlock(lab: Lab) -> None:
    stream, event = lab.stream(), lab.event()
    gate = lab.gate(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    lab.rt.ok.cudaStreamWaitEvent(stream, event, 0)
    gate.open()
    assert lab.rt.cudaStreamSynchronize(stream) == 0


def test_record_in_the_legacy_stream_covers_all_blocking_streams(lab: Lab) -> None:
    blocking, event = lab.stream(), lab.event()
    gate = lab.gate(blocking)
    lab.rt.ok.cudaEventRecord(event, lab.legacy)
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    gate.open()
    assert lab.rt.cudaEventSynchronize(event) == 0


def test_record_in_the_per_thread_stream_by_ptsz(lab: Lab) -> None:
    event = lab.event()
    gate = lab.gate(lab.per_thread)
    lab.rt.ok.cudaEventRecord_ptsz(event, lab.null)
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    gate.open()
    assert lab.rt.cudaEventSynchronize(event) == 0


@differs("to wait for an event that was never recorded is no action")
def test_done_event_in_the_legacy_stream_is_a_barrier(lab: Lab) -> None:
    """cudaStreamWaitEvent is an action of the legacy stream even where there is nothing to wait for."""
    one, two, event = lab.stream(), lab.stream(), lab.event()
    gate = lab.gate(one)
    lab.rt.ok.cudaStreamWaitEvent(lab.legacy, event, 0)
    ran = lab.probe(two, "behind")
    lab.expect_behind(gate, ran)


def test_event_outlives_the_stream_of_its_record(lab: Lab) -> None:
    out, event = lab.rt.new("cudaStream_t *"), lab.event()
    lab.rt.ok.cudaStreamCreate(out)
    gate = lab.gate(out[0])
    lab.rt.ok.cudaEventRecord(event, out[0])
    lab.rt.ok.cudaStreamDestroy(out[0])
    assert lab.rt.cudaEventQuery(event) == NOT_READY
    gate.open()
    assert lab.rt.cudaEventSynchronize(event) == 0
    again = lab.stream()  # takes the memory of the stream that is gone
    second = lab.gate(again)
    assert lab.rt.cudaEventQuery(event) == 0
    second.open()


@needs_devices(2)
def test_record_refuses_a_stream_of_another_device(lab: Lab) -> None:
    event = lab.event()
    lab.rt.ok.cudaSetDevice(1)
    stream = lab.stream()
    lab.rt.ok.cudaSetDevice(0)
    assert lab.rt.cudaEventRecord(event, stream) == INVALID_HANDLE


@differs("the error is another one: 401")
def test_flags_of_record_and_wait(lab: Lab) -> None:
    stream, event = lab.stream(), lab.event()
    assert lab.rt.cudaEventRecordWithFlags(event, stream, 0) == 0
    assert lab.rt.cudaEventRecordWithFlags(event, stream, EXTERNAL) == INVALID_VALUE  # outside of a capture
    assert lab.rt.cudaEventRecordWithFlags(event, stream, 2) == INVALID_VALUE
    assert lab.rt.cudaStreamWaitEvent(stream, event, EXTERNAL) == INVALID_VALUE
    assert lab.rt.cudaStreamWaitEvent(stream, event, 2) == INVALID_VALUE


def test_synchronize_returns_after_the_work(lab: Lab) -> None:
    stream, event = lab.stream(), lab.event(BLOCKING_SYNC)
    gate = lab.gate(stream)
    lab.rt.ok.cudaEventRecord(event, stream)
    lab.expect_blocked(gate, lambda: lab.rt.cudaEventSynchronize(event))
    assert lab.log == ["gate", "synchronized"]


# ---- elapsed time


def elapsed(lab: Lab, start: Any, end: Any) -> tuple[int, float]:
    ms = lab.rt.new("float *", -1.0)
    return lab.rt.cudaEventElapsedTime(ms, start, end), float(ms[0])


def test_elapsed_time_is_in_milliseconds_and_signed(lab: Lab) -> None:
    stream, start, end = lab.stream(), lab.event(TIMING), lab.event(TIMING)
    tick = threading.Event()
    lab.rt.ok.cudaEventRecord(start, stream)
    lab.call(stream, lambda: tick.wait(0.02))  # the shortest time that the work takes
    lab.rt.ok.cudaEventRecord(end, stream)
    lab.rt.ok.cudaEventSynchronize(end)
    code, ms = elapsed(lab, start, end)
    assert code == 0
    assert ms >= 19
    code, back = elapsed(lab, end, start)
    assert (code, back) == (0, -ms)
    assert elapsed(lab, start, start) == (0, 0.0)


def test_elapsed_time_is_not_ready_before_the_end(lab: Lab) -> None:
    stream, start, end = lab.stream(), lab.event(TIMING), lab.event(TIMING)
    lab.rt.ok.cudaEventRecord(start, stream)
    gate = lab.gate(stream)
    lab.rt.ok.cudaEventRecord(end, stream)
    assert elapsed(lab, start, end)[0] == NOT_READY
    gate.open()
    lab.rt.ok.cudaEventSynchronize(end)
    assert elapsed(lab, start, end)[0] == 0


def test_elapsed_time_needs_recorded_events_with_timing(lab: Lab) -> None:
    stream, timed, untimed, never = lab.stream(), lab.event(TIMING), lab.event(DISABLE_TIMING), lab.event(TIMING)
    lab.rt.ok.cudaEventRecord(timed, stream)
    lab.rt.ok.cudaEventRecord(untimed, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert elapsed(lab, timed, never)[0] == INVALID_HANDLE
    assert elapsed(lab, timed, untimed)[0] == INVALID_HANDLE
    assert elapsed(lab, untimed, timed)[0] == INVALID_HANDLE
    assert lab.rt.cudaEventElapsedTime(lab.ffi.NULL, timed, timed) == INVALID_VALUE


def test_elapsed_time_v2_of_cuda_12(lab: Lab) -> None:
    if lab.rt.library != "cudart12":
        assert not hasattr(lab.rt, "cudaEventElapsedTime_v2")
        return
    stream, event, ms = lab.stream(), lab.event(TIMING), lab.rt.new("float *", -1.0)
    lab.rt.ok.cudaEventRecord(event, stream)
    lab.rt.ok.cudaEventSynchronize(event)
    assert lab.rt.cudaEventElapsedTime_v2(ms, event, event) == 0
    assert ms[0] == 0


# ---- the driver's forms


@differs("an event that was destroyed is another error: 709")
def test_driver_forms(lab: Lab, drv: Face) -> None:
    stream = lab.stream()
    gate = lab.gate(stream)
    handle = drv.ffi.cast("CUstream", int(lab.ffi.cast("uintptr_t", stream)))
    context, start, end, ms = drv.new("CUcontext *"), drv.new("CUevent *"), drv.new("CUevent *"), drv.new("float *")
    drv.ok.cuDevicePrimaryCtxRetain(context, 0)
    drv.ok.cuCtxSetCurrent(context[0])
    drv.ok.cuEventCreate(start, TIMING)
    drv.ok.cuEventCreate(end, TIMING)
    drv.ok.cuEventRecord(start[0], handle)
    drv.ok.cuEventRecordWithFlags(end[0], handle, 0)
    assert drv.cuEventQuery(end[0]) == NOT_READY
    other = lab.stream(1)
    drv.ok.cuStreamWaitEvent(drv.ffi.cast("CUstream", int(lab.ffi.cast("uintptr_t", other))), end[0], 0)
    ran = lab.probe(other, "waiter")
    lab.round_trip()
    assert not ran.is_set()
    gate.open()
    assert drv.cuEventSynchronize(end[0]) == 0
    assert ran.wait(DEADLINE)
    assert drv.cuEventElapsedTime(ms, start[0], end[0]) == 0
    assert ms[0] >= 0
    assert drv.cuEventElapsedTime_v2(ms, start[0], end[0]) == 0
    assert drv.cuEventDestroy_v2(start[0]) == 0
    assert drv.cuEventDestroy_v2(end[0]) == 0
    assert drv.cuEventQuery(end[0]) == INVALID_HANDLE
    drv.ok.cuDevicePrimaryCtxRelease_v2(0)
