"""Streams as objects: what cudaStreamCreate, Destroy, Query, Synchronize and the questions about a stream promise."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import Child, differs, emulated, needs_devices, number
from tests.hostcuda.gates import DEADLINE, NOT_READY, Lab

INVALID_VALUE, INVALID_HANDLE = 1, 400
WINDOW, SYNC, COOPERATIVE, PRIORITY, MAP, DOMAIN = 1, 3, 2, 8, 9, 10


def test_new_stream_is_idle(lab: Lab) -> None:
    stream = lab.stream()
    assert lab.rt.cudaStreamQuery(stream) == 0
    assert lab.rt.cudaStreamSynchronize(stream) == 0


def test_create_by_every_form(rt: Face) -> None:
    out = rt.new("cudaStream_t *")
    for create in (
        lambda: rt.cudaStreamCreate(out),
        lambda: rt.cudaStreamCreateWithFlags(out, 1),
        lambda: rt.cudaStreamCreateWithPriority(out, 1, -1),
    ):
        assert create() == 0
        assert number(rt, out[0]) > 2
        assert rt.cudaStreamDestroy(out[0]) == 0


def test_create_refuses_unknown_flags_and_null(rt: Face) -> None:
    out = rt.new("cudaStream_t *")
    assert rt.cudaStreamCreateWithFlags(out, 2) == INVALID_VALUE
    assert rt.cudaStreamCreate(rt.ffi.NULL) == INVALID_VALUE
    assert rt.cudaGetLastError() == INVALID_VALUE


def test_query_is_not_ready_while_work_is_queued(lab: Lab) -> None:
    stream = lab.stream()
    gate = lab.gate(stream)
    assert lab.rt.cudaStreamQuery(stream) == NOT_READY
    gate.open()
    assert lab.rt.cudaStreamSynchronize(stream) == 0
    assert lab.rt.cudaStreamQuery(stream) == 0


def test_synchronize_returns_after_the_work(lab: Lab) -> None:
    stream = lab.stream()
    gate = lab.gate(stream)
    lab.probe(stream, "behind")
    lab.expect_blocked(gate, lambda: lab.rt.cudaStreamSynchronize(stream))
    assert lab.log == ["gate", "behind", "synchronized"]


def test_destroy_returns_at_once_and_queued_work_completes(lab: Lab) -> None:
    out = lab.rt.new("cudaStream_t *")
    lab.rt.ok.cudaStreamCreate(out)
    gate = lab.gate(out[0])
    behind = lab.probe(out[0], "behind")
    assert lab.rt.cudaStreamDestroy(out[0]) == 0
    assert lab.log == []
    gate.open()
    assert behind.wait(DEADLINE)
    assert lab.log == ["gate", "behind"]


@differs("a handle or pointer that is none is followed, and the process dies")
def test_destroyed_stream_is_an_invalid_handle(rt: Face) -> None:
    out = rt.new("cudaStream_t *")
    rt.ok.cudaStreamCreate(out)
    rt.ok.cudaStreamDestroy(out[0])
    fresh = rt.new("cudaStream_t *")
    rt.ok.cudaStreamCreate(fresh)  # reuses the memory, not the handle
    assert rt.cudaStreamQuery(out[0]) == INVALID_HANDLE
    assert rt.cudaStreamSynchronize(out[0]) == INVALID_HANDLE
    assert rt.cudaStreamDestroy(out[0]) == INVALID_HANDLE
    assert rt.cudaStreamGetId(out[0], rt.new("unsigned long long *")) == INVALID_HANDLE
    assert rt.cudaStreamDestroy(fresh[0]) == 0


@differs("a handle or pointer that is none is followed, and the process dies")
@pytest.mark.parametrize("value", [0, 1, 2, 3, 0x1000])
def test_default_streams_and_invented_handles_cannot_be_destroyed(rt: Face, value: int) -> None:
    assert rt.cudaStreamDestroy(rt.ffi.cast("cudaStream_t", value)) == INVALID_HANDLE


@pytest.mark.parametrize("value", [0, 1, 2])
def test_default_streams_can_be_synchronized_and_queried(rt: Face, value: int) -> None:
    stream = rt.ffi.cast("cudaStream_t", value)
    assert rt.cudaStreamSynchronize(stream) == 0
    assert rt.cudaStreamQuery(stream) == 0


@pytest.mark.parametrize("flags", [0, 1])
def test_flags_are_those_of_creation(lab: Lab, flags: int) -> None:
    out = lab.rt.new("unsigned int *", 77)
    lab.rt.ok.cudaStreamGetFlags(lab.stream(flags), out)
    assert out[0] == flags


def test_priority_is_clamped_to_the_range(rt: Face) -> None:
    least, greatest = rt.new("int *"), rt.new("int *")
    rt.ok.cudaDeviceGetStreamPriorityRange(least, greatest)
    assert greatest[0] < least[0]
    stream, priority = rt.new("cudaStream_t *"), rt.new("int *")
    for asked, expected in ((least[0] + 10, least[0]), (greatest[0] - 10, greatest[0]), (greatest[0], greatest[0])):
        rt.ok.cudaStreamCreateWithPriority(stream, 0, asked)
        rt.ok.cudaStreamGetPriority(stream[0], priority)
        assert priority[0] == expected
        rt.ok.cudaStreamDestroy(stream[0])


def test_ids_differ_and_stay(lab: Lab) -> None:
    def identity(stream: Any) -> int:
        out = lab.rt.new("unsigned long long *")
        lab.rt.ok.cudaStreamGetId(stream, out)
        return int(out[0])

    streams = [lab.stream(), lab.stream(1), lab.legacy, lab.per_thread]
    first = [identity(s) for s in streams]
    assert len(set(first)) == len(first)
    assert [identity(s) for s in streams] == first
    assert identity(lab.null) == identity(lab.legacy)


@needs_devices(2)
def test_stream_belongs_to_the_device_that_was_current(lab: Lab) -> None:
    out = lab.rt.new("int *")
    lab.rt.ok.cudaSetDevice(1)
    stream = lab.stream()
    lab.rt.ok.cudaSetDevice(0)
    lab.rt.ok.cudaStreamGetDevice(stream, out)
    assert out[0] == 1
    lab.rt.ok.cudaStreamGetDevice(lab.legacy, out)
    assert out[0] == 0


@differs("NULL is followed, and the process dies")
def test_questions_without_a_place_for_the_answer(lab: Lab) -> None:
    stream, null = lab.stream(), lab.ffi.NULL
    for name in ("Flags", "Priority", "Id", "Device"):
        assert getattr(lab.rt, f"cudaStreamGet{name}")(stream, null) == INVALID_VALUE


def test_attributes_are_kept_and_copied(lab: Lab) -> None:
    one, two = lab.stream(), lab.stream()
    value = lab.rt.new("cudaLaunchAttributeValue *")
    value.syncPolicy = 4
    lab.rt.ok.cudaStreamSetAttribute(one, SYNC, value)
    value.accessPolicyWindow.num_bytes = 4096
    value.accessPolicyWindow.hitRatio = 0.5
    value.accessPolicyWindow.missProp = 1
    lab.rt.ok.cudaStreamSetAttribute(one, WINDOW, value)
    lab.rt.ok.cudaStreamCopyAttributes(two, one)
    for stream in (one, two):
        got = lab.rt.new("cudaLaunchAttributeValue *")
        lab.rt.ok.cudaStreamGetAttribute(stream, SYNC, got)
        assert got.syncPolicy == 4
        lab.rt.ok.cudaStreamGetAttribute(stream, WINDOW, got)
        assert got.accessPolicyWindow.num_bytes == 4096


def test_priority_attribute_is_the_priority(lab: Lab) -> None:
    stream, value, out = lab.stream(), lab.rt.new("cudaLaunchAttributeValue *"), lab.rt.new("int *")
    value.priority = -3
    lab.rt.ok.cudaStreamSetAttribute(stream, PRIORITY, value)
    lab.rt.ok.cudaStreamGetPriority(stream, out)
    assert out[0] == -3


@differs("a handle or pointer that is none is followed, and the process dies")
def test_attributes_refuse_what_no_stream_has(lab: Lab) -> None:
    stream, value = lab.stream(), lab.rt.new("cudaLaunchAttributeValue *")
    assert lab.rt.cudaStreamGetAttribute(stream, COOPERATIVE, value) == INVALID_VALUE
    value.syncPolicy = 9
    assert lab.rt.cudaStreamSetAttribute(stream, SYNC, value) == INVALID_VALUE
    value.memSyncDomain = 7
    assert lab.rt.cudaStreamSetAttribute(stream, DOMAIN, value) == INVALID_VALUE
    value.memSyncDomainMap.remote = 99
    assert lab.rt.cudaStreamSetAttribute(stream, MAP, value) == INVALID_VALUE
    assert lab.rt.cudaStreamGetAttribute(stream, SYNC, lab.ffi.NULL) == INVALID_VALUE


# ---- the driver's forms


@differs("a handle or pointer that is none is followed, and the process dies")
def test_driver_and_runtime_share_streams(rt: Face, drv: Face) -> None:
    out = rt.new("cudaStream_t *")
    rt.ok.cudaStreamCreateWithFlags(out, 1)
    stream = drv.ffi.cast("CUstream", number(rt, out[0]))
    flags, device, priority, identity = (
        drv.new("unsigned int *"),
        drv.new("int *"),
        drv.new("int *"),
        drv.new("unsigned long long *"),
    )
    drv.ok.cuStreamGetFlags(stream, flags)
    drv.ok.cuStreamGetDevice(stream, device)
    drv.ok.cuStreamGetPriority(stream, priority)
    drv.ok.cuStreamGetId(stream, identity)
    assert (flags[0], device[0], priority[0]) == (1, 0, 0)
    assert drv.cuStreamQuery(stream) == 0
    assert drv.cuStreamSynchronize(stream) == 0
    assert drv.cuStreamDestroy_v2(stream) == 0
    assert rt.cudaStreamQuery(out[0]) == INVALID_HANDLE


def test_driver_creates_streams_in_the_current_context(rt: Face, drv: Face) -> None:
    rt.ok.cudaSetDevice(0)
    rt.ok.cudaStreamSynchronize(rt.ffi.NULL)
    context, current = drv.new("CUcontext *"), drv.new("CUcontext *")
    stream, value = drv.new("CUstream *"), drv.new("CUstreamAttrValue *")
    drv.ok.cuDevicePrimaryCtxRetain(context, 0)
    drv.ok.cuCtxSetCurrent(context[0])
    for create in (lambda: drv.cuStreamCreate(stream, 1), lambda: drv.cuStreamCreateWithPriority(stream, 0, -2)):
        assert create() == 0
        drv.ok.cuStreamGetCtx(stream[0], current)
        assert current[0] == context[0]
        value.syncPolicy = 2
        drv.ok.cuStreamSetAttribute(stream[0], SYNC, value)
        other = drv.new("CUstream *")
        drv.ok.cuStreamCreate(other, 0)
        drv.ok.cuStreamCopyAttributes(other[0], stream[0])
        got = drv.new("CUstreamAttrValue *")
        drv.ok.cuStreamGetAttribute(other[0], SYNC, got)
        assert got.syncPolicy == 2
        drv.ok.cuStreamDestroy_v2(other[0])
        drv.ok.cuStreamDestroy_v2(stream[0])
    drv.ok.cuDevicePrimaryCtxRelease_v2(0)


def test_driver_needs_a_current_context_for_new_and_default_streams(child: Child) -> None:
    done = child(
        """
        drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
        drv.ok.cuInit(0)
        null = drv.ffi.NULL
        print(drv.cuStreamCreate(drv.new("CUstream *"), 0), drv.cuEventCreate(drv.new("CUevent *"), 0))
        print(drv.cuStreamSynchronize(null), drv.cuStreamQuery_ptsz(null))
        context = drv.new("CUcontext *")
        drv.ok.cuDevicePrimaryCtxRetain(context, 0)
        drv.ok.cuCtxSetCurrent(context[0])
        print(drv.cuStreamCreate(drv.new("CUstream *"), 0), drv.cuEventCreate(drv.new("CUevent *"), 0))
        print(drv.cuStreamSynchronize(null), drv.cuStreamQuery_ptsz(null))
        """
    )
    assert done.stdout.split() == ["201"] * 4 + ["0"] * 4


# ---- order within and between streams


@pytest.mark.parametrize("flags", [0, 1])
def test_work_of_a_stream_runs_in_the_order_it_was_submitted(lab: Lab, flags: int) -> None:
    stream = lab.stream(flags)
    gate = lab.gate(stream)
    for i in range(50):
        lab.probe(stream, str(i))
    gate.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["gate", *map(str, range(50))]


def test_streams_do_not_wait_for_each_other(lab: Lab) -> None:
    blocked = [lab.stream() for _ in range(24)]
    gates = [lab.gate(stream) for stream in blocked]
    for gate in gates:
        assert gate.entered.wait(DEADLINE)  # all at the same time: the pool grew
    assert lab.probe(lab.stream(), "free").wait(DEADLINE)
    assert lab.log == ["free"]


KINDS = ("legacy", "blocking", "non-blocking", "per-thread")
WAITS = {
    ("legacy", "legacy"),
    ("legacy", "blocking"),
    ("legacy", "per-thread"),
    ("blocking", "legacy"),
    ("per-thread", "legacy"),
    ("per-thread", "per-thread"),
}


def of_kind(lab: Lab, kind: str) -> Any:
    if kind == "legacy":
        return lab.legacy
    if kind == "per-thread":
        return lab.per_thread
    return lab.stream(1 if kind == "non-blocking" else 0)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_default_stream_rules(lab: Lab, first: str, second: str) -> None:
    """Work in `second` waits for earlier work in `first` exactly for the pairs in WAITS ("Stream synchronization
    behavior")."""
    gate = lab.gate(of_kind(lab, first))
    later = of_kind(lab, second)
    ran = lab.probe(later, "probe")
    if (first, second) in WAITS:
        lab.round_trip()
        assert not ran.is_set()
        assert lab.rt.cudaStreamQuery(later) == NOT_READY
        gate.open()
        assert ran.wait(DEADLINE)
        assert lab.log == ["gate", "probe"]
    else:
        assert ran.wait(DEADLINE)
        assert lab.log == ["probe"]
        assert lab.rt.cudaStreamSynchronize(later) == 0
        assert lab.log == ["probe"]


def test_legacy_stream_orders_two_blocking_streams(lab: Lab) -> None:
    one, two = lab.stream(), lab.stream()
    gate = lab.gate(one)
    lab.probe(lab.legacy, "legacy")
    behind = lab.probe(two, "behind")
    lab.round_trip()
    assert lab.log == []
    gate.open()
    assert behind.wait(DEADLINE)
    assert lab.log == ["gate", "legacy", "behind"]


@needs_devices(2)
def test_legacy_streams_of_two_devices_are_independent(lab: Lab) -> None:
    gate = lab.gate(lab.legacy)
    lab.rt.ok.cudaSetDevice(1)
    try:
        assert lab.probe(lab.legacy, "other device").wait(DEADLINE)
        assert lab.log == ["other device"]
    finally:
        gate.open()
        lab.rt.ok.cudaSetDevice(0)


def test_zero_is_the_legacy_stream(lab: Lab) -> None:
    gate = lab.gate(lab.null)
    assert lab.rt.cudaStreamQuery(lab.legacy) == NOT_READY
    gate.open()
    assert lab.rt.cudaStreamSynchronize(lab.legacy) == 0


def test_zero_is_the_per_thread_stream_in_ptsz_calls(lab: Lab) -> None:
    gate = lab.gate(lab.per_thread)
    assert lab.rt.cudaStreamQuery_ptsz(lab.null) == NOT_READY
    gate.open()
    assert lab.rt.cudaStreamSynchronize_ptsz(lab.null) == 0


def test_each_thread_has_a_per_thread_stream(lab: Lab) -> None:
    gate = lab.gate(lab.per_thread)
    answers: list[int] = []

    def other() -> None:
        lab.rt.cudaSetDevice(0)
        answers.append(lab.rt.cudaStreamQuery(lab.per_thread))
        lab.probe(lab.per_thread, "other thread").wait(DEADLINE)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(DEADLINE)
    assert answers == [0]
    assert lab.log == ["other thread"]
    assert lab.rt.cudaStreamQuery(lab.per_thread) == NOT_READY
    gate.open()


def test_work_of_a_per_thread_stream_outlives_its_thread(lab: Lab) -> None:
    gates = []
    thread = threading.Thread(target=lambda: gates.append(lab.gate(lab.per_thread)))
    thread.start()
    thread.join(DEADLINE)
    ran = lab.probe(lab.legacy, "legacy")  # the stream is a blocking one still
    lab.round_trip()
    assert not ran.is_set()
    gates[0].open()
    assert ran.wait(DEADLINE)


def test_cycle_through_the_legacy_stream_is_a_deadlock_until_the_gate_opens(lab: Lab) -> None:
    """The application waits in a blocking stream for what another thread would do through stream 0: nothing moves."""
    application = lab.stream()
    gate = lab.gate(application)
    done = threading.Event()

    def proxy() -> None:
        lab.rt.cudaSetDevice(0)
        lab.probe(lab.null, "proxy")
        lab.rt.cudaStreamSynchronize(lab.null)
        done.set()

    thread = threading.Thread(target=proxy)
    thread.start()
    lab.round_trip()
    assert not done.is_set()
    gate.open()
    thread.join(DEADLINE)
    assert done.is_set()
    assert lab.log == ["gate", "proxy"]


def test_same_cycle_passes_with_a_non_blocking_application_stream(lab: Lab) -> None:
    lab.gate(lab.stream(1))
    lab.probe(lab.null, "proxy")
    assert lab.rt.cudaStreamSynchronize(lab.null) == 0
    assert lab.log == ["proxy"]


@emulated
def test_streams_work_without_inline_execution(child: Child) -> None:
    done = child(
        """
        stream, event = new("cudaStream_t *"), new("cudaEvent_t *")
        ok.cudaStreamCreate(stream)
        ok.cudaEventCreate(event)
        for _ in range(100):
            ok.cudaEventRecord(event[0], stream[0])
        ok.cudaEventSynchronize(event[0])
        print(rt.cudaEventQuery(event[0]), rt.cudaStreamQuery(stream[0]))
        """,
        env={"PSM_HOSTCUDA_INLINE": "0"},
    )
    assert done.stdout.split() == ["0", "0"]


@emulated
def test_no_worker_runs_until_one_is_needed(child: Child) -> None:
    done = child(
        """
        threads = lambda: len(os.listdir("/proc/self/task"))
        before = threads()
        streams = [new("cudaStream_t *") for _ in range(8)]
        for stream in streams:
            ok.cudaStreamCreate(stream)
            ok.cudaStreamSynchronize(stream[0])
        print(threads() - before)
        """
    )
    assert done.stdout.strip() == "0"


@emulated
def test_handles_of_another_process_are_invalid(child: Child) -> None:
    first = child('s = new("cudaStream_t *"); ok.cudaStreamCreate(s); print(int(ffi.cast("uintptr_t", s[0])))')
    second = child(
        's = new("cudaStream_t *"); ok.cudaStreamCreate(s)\n'
        'print(rt.cudaStreamQuery(ffi.cast("cudaStream_t", int(sys.argv[1]))))',
        first.stdout.strip(),
    )
    assert int(second.stdout) == INVALID_HANDLE


# ---- ends

# A stream whose work ends when `open_` is set.
BLOCKED = """
import threading
stream = new("cudaStream_t *")
ok.cudaStreamCreate(stream)
open_ = threading.Event()

@ffi.callback("void(void *)")
def block(_):
    open_.wait(30)

ok.cudaLaunchHostFunc(stream[0], block, ffi.NULL)
"""


def test_exit_with_queued_work_does_not_hang(expect_child: Child) -> None:
    expect_child(
        """
        import threading
        never = threading.Event()
        entered = threading.Event()

        @ffi.callback("void(void *)")
        def block(_):
            entered.set()
            never.wait()

        streams = [new("cudaStream_t *") for _ in range(4)]
        for stream in streams:
            ok.cudaStreamCreate(stream)
            ok.cudaLaunchHostFunc(stream[0], block, ffi.NULL)
        event = new("cudaEvent_t *")
        ok.cudaEventCreate(event)
        ok.cudaEventRecord(event[0], ffi.NULL)
        entered.wait()
        """
    )


@emulated
def test_library_may_be_closed_while_a_stream_works(child: Child) -> None:
    done = child(
        """
import time
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
"""
        + BLOCKED
        + """
ffi.dlclose(rt._lib)
open_.set()
end = time.monotonic() + 30
while threads() > before and time.monotonic() < end:  # idle workers end by themselves
    time.sleep(0.01)
print(threads() - before)
"""
    )
    assert done.stdout.strip() == "0"


@emulated
def test_forked_child_is_refused_and_ends(child: Child) -> None:
    done = child(
        BLOCKED
        + """
pid = os.fork()
if pid == 0:
    code = rt.cudaStreamQuery(stream[0])
    sys.exit(0 if code == 3 else 1)  # cudaErrorInitializationError; exit handlers run
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
open_.set()
ok.cudaStreamSynchronize(stream[0])
"""
    )
    assert done.stdout.strip() == "0"
