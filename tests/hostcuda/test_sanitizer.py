"""The handle sanitizer tells misuse at the call that does it, with stacks, and is silent on what only looks like misuse.

Everything runs twice: checked inside hostcuda, and by the shim over hostcuda's libraries with their own checks off.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.logparse.records import open_record
from tests.hostcuda.conftest import emulated
from tests.hostcuda.sanitizing import EVENT, MEMORY, STREAM, Program, Told

pytestmark = emulated
Start = Callable[..., Program]
Run = Callable[..., Told]

# ---- handles of this process ----


def test_healthy_program_is_not_told(run: Run) -> None:
    run(
        STREAM
        + EVENT
        + MEMORY
        + """
        ok.cudaMemsetAsync(p, 1, 4096, s)
        ok.cudaEventRecord(e, s)
        ok.cudaStreamWaitEvent(s, e, 0)
        ok.cudaEventSynchronize(e)
        ok.cudaEventQuery(e)
        ok.cudaStreamSynchronize(s)
        ok.cudaStreamSynchronize(ffi.NULL)
        ok.cudaStreamSynchronize(ffi.cast('cudaStream_t', 1))
        ok.cudaStreamSynchronize(ffi.cast('cudaStream_t', 2))
        ok.cudaEventDestroy(e)
        ok.cudaStreamDestroy(s)
        ok.cudaFree(p)
        ok.cudaFree(ffi.NULL)
        """
    ).expect_nothing()


def test_destroyed_stream_is_told_with_all_three_stacks(run: Run) -> None:
    told = run(STREAM + "ok.cudaStreamDestroy(s)\nassert rt.cudaStreamSynchronize(s) == 400")
    assert told.one().startswith("cudaStreamSynchronize got stream 0x")
    assert "was already destroyed" in told.one()
    assert [s.split(", ")[1].split()[0] for s in told.stacks] == ["used", "born", "ended"]


def test_destroyed_event_is_told(run: Run) -> None:
    told = run(EVENT + "ok.cudaEventDestroy(e)\nassert rt.cudaEventRecord(e, ffi.NULL) == 400")
    assert "cudaEventRecord got event" in told.one() and "already destroyed" in told.one()


def test_stream_made_after_a_destroyed_one_is_not_told(run: Run) -> None:
    run(STREAM + "ok.cudaStreamDestroy(s)\n" + STREAM + "ok.cudaStreamSynchronize(s)").expect_nothing()


def test_handle_destroyed_twice_is_told(run: Run) -> None:
    told = run(STREAM + "ok.cudaStreamDestroy(s)\nassert rt.cudaStreamDestroy(s) == 400")
    assert told.one().startswith("cudaStreamDestroy frees or destroys stream") and told.one().endswith("a second time")


def test_handle_that_nobody_made_is_told(run: Run) -> None:
    told = run("assert rt.cudaStreamSynchronize(ffi.cast('cudaStream_t', 0xdeadbee0)) == 400")
    assert told.one() == "cudaStreamSynchronize got stream 0xdeadbee0, which was never created"


def test_the_same_misuse_at_the_same_call_is_told_once(run: Run) -> None:
    told = run(EVENT + "ok.cudaEventDestroy(e)\nfor i in range(100): rt.cudaEventQuery(e)")
    assert len(told.reports) == 1


def test_query_before_record_is_told_once_and_allowed(run: Run) -> None:
    told = run(EVENT + "ok.cudaEventQuery(e); ok.cudaEventQuery(e); ok.cudaEventSynchronize(e)", mode="error")
    assert told.one().startswith("cudaEventQuery uses event") and "never recorded" in told.one()


def test_what_is_told_of_an_event_before_its_record_is_what_the_call_answers(run: Run) -> None:
    told = run(EVENT + "ok.cudaEventSynchronize(e)")
    assert told.one().startswith("cudaEventSynchronize") and told.one().endswith("CUDA treats it as complete")
    told = run(EVENT + "assert rt.cudaEventElapsedTime(new('float *'), e, e) == 400", mode="error")
    assert told.one().startswith("cudaEventElapsedTime uses event 0x")
    assert told.one().endswith("which was never recorded: CUDA returns invalid handle (400)")


def test_query_of_a_recorded_event_is_not_told(run: Run) -> None:
    run(EVENT + "ok.cudaEventRecord(e, ffi.NULL); ok.cudaEventQuery(e); ok.cudaEventSynchronize(e)").expect_nothing()


def test_event_that_a_graph_records_counts_as_recorded(run: Run) -> None:
    run(
        EVENT
        + """
        g = new('cudaGraph_t *'); ok.cudaGraphCreate(g, 0)
        n = new('cudaGraphNode_t *'); ok.cudaGraphAddEventRecordNode(n, g[0], ffi.NULL, 0, e)
        x = new('cudaGraphExec_t *'); ok.cudaGraphInstantiate(x, g[0], 0)
        ok.cudaGraphLaunch(x[0], ffi.NULL); ok.cudaEventSynchronize(e)
        """
    ).expect_nothing()


def test_memory_that_a_graph_allocates_is_its_own(run: Run) -> None:
    # freed by the program after the first launch, it is there again after the second
    run(
        STREAM
        + """
        ok.cudaStreamBeginCapture(s, 0)
        p = new('void **'); ok.cudaMallocAsync(p, 4096, s)
        g = new('cudaGraph_t *'); ok.cudaStreamEndCapture(s, g)
        x = new('cudaGraphExec_t *'); ok.cudaGraphInstantiate(x, g[0], 0)
        ok.cudaGraphLaunch(x[0], s); ok.cudaMemsetAsync(p[0], 1, 4096, s); ok.cudaFreeAsync(p[0], s)
        ok.cudaGraphLaunch(x[0], s); ok.cudaMemsetAsync(p[0], 1, 4096, s); ok.cudaFreeAsync(p[0], s)
        ok.cudaStreamSynchronize(s)
        """
    ).expect_nothing()


def test_wait_for_an_unrecorded_event_is_told(run: Run) -> None:
    told = run(STREAM + EVENT + "ok.cudaStreamWaitEvent(s, e, 0)")
    assert told.one().startswith("cudaStreamWaitEvent uses event")


def test_handles_of_the_runtime_are_good_for_the_driver(run: Run) -> None:
    run(STREAM + "drv.ok.cuInit(0); drv.ok.cuStreamSynchronize(drv.ffi.cast('CUstream', value(s)))").expect_nothing()


def test_error_mode_refuses_the_call(run: Run) -> None:
    # CUDA allows this call: what the destroyed event was recorded in does not matter to it on a real driver
    told = run(
        MEMORY
        + "assert rt.cudaMemset(p, 7, 4097) == 1\nassert rt.cudaGetLastError() in (0, 1)\nok.cudaMemset(p, 7, 4096)",
        mode="error",
    )
    assert "1 beyond the end of device-memory" in told.one()


def test_nothing_is_told_when_it_is_off(run: Run) -> None:
    run(STREAM + "ok.cudaStreamDestroy(s)\nrt.cudaStreamSynchronize(s)", mode="off").expect_nothing()


# ---- memory ----


def test_copy_beyond_the_end_is_told(run: Run) -> None:
    told = run(MEMORY + "h = new('char[]', 8192); rt.cudaMemcpy(p + 4000, h, 97, 1)")
    assert "cudaMemcpy writes 97 bytes" in told.one() and "1 beyond the end of device-memory" in told.one()
    assert [s.split(", ")[1].split()[0] for s in told.stacks] == ["used", "born"]


def test_copy_up_to_the_end_is_not_told(run: Run) -> None:
    run(
        MEMORY + "h = new('char[]', 8192); ok.cudaMemcpy(p + 4000, h, 96, 1); ok.cudaMemcpy(h, p, 4096, 2)"
    ).expect_nothing()


def test_read_beyond_the_end_is_told_with_kind_default(run: Run) -> None:
    told = run(MEMORY + "h = new('char[]', 8192); rt.cudaMemcpy(h, p, 4097, 4)")
    assert "cudaMemcpy reads 4097 bytes" in told.one()


def test_pitched_copy_is_measured_to_its_last_row(run: Run) -> None:
    told = run(MEMORY + "rt.cudaMemset2D(p, 1024, 0, 1024, 4); rt.cudaMemset2D(p, 1025, 0, 1024, 4)")
    assert "cudaMemset2D writes 4099 bytes" in told.one() and "3 beyond the end" in told.one()


def test_copies_that_structs_describe_are_measured(run: Run) -> None:
    # 4096 bytes are 8 rows of 512, or 2 planes of 4 such rows
    told = run(
        MEMORY
        + """
        c = drv.new('CUDA_MEMCPY2D *'); h = drv.new('char[]', 8192)
        c.srcMemoryType, c.srcHost, c.srcPitch, c.dstMemoryType, c.dstDevice, c.dstPitch = 1, h, 512, 2, value(p), 512
        c.WidthInBytes, c.Height = 512, 8
        drv.ok.cuInit(0); drv.ok.cuMemcpy2D_v2(c)
        c.dstXInBytes, c.WidthInBytes = 8, 505
        drv.cuMemcpy2D_v2(c)
        b = new('struct cudaMemcpy3DParms *'); b.kind = 1; b.dstPtr.ptr, b.dstPtr.pitch, b.dstPtr.ysize = p, 512, 4
        g = new('char[]', 8192); b.srcPtr.ptr, b.srcPtr.pitch, b.srcPtr.ysize = g, 512, 4
        b.extent.width, b.extent.height, b.extent.depth = 512, 4, 2
        ok.cudaMemcpy3D(b)
        b.dstPos.z = 1
        rt.cudaMemcpy3D(b)
        """
    )
    assert len(told.reports) == 2, told.text
    assert told.reports[0].startswith("cuMemcpy2D_v2 writes 4089 bytes") and ", 1 beyond the end" in told.reports[0]
    assert told.reports[1].startswith("cudaMemcpy3D writes 4096 bytes") and ", 2048 beyond the end" in told.reports[1]


def test_memory_in_three_dimensions_is_known_whole(run: Run) -> None:
    code = """
    p = new('struct cudaPitchedPtr *'); x = new('struct cudaExtent *'); x.width, x.height, x.depth = 100, 4, 2
    ok.cudaMalloc3D(p, x[0]); ok.cudaMemset3D(p[0], 0, x[0]); ok.cudaMemset(p.ptr, 0, p.pitch * 8)
    x.depth = 3; rt.cudaMemset3D(p[0], 0, x[0])
    """
    assert run(code).one().startswith("cudaMemset3D writes")


def test_copy_into_freed_memory_is_told_with_the_stack_of_the_free(run: Run) -> None:
    told = run(MEMORY + "ok.cudaFree(p); h = new('char[]', 8); assert rt.cudaMemcpy(p, h, 8, 1) != 0")
    assert "that was already freed" in told.one()
    assert [s.split(", ")[1].split()[0] for s in told.stacks] == ["used", "born", "ended"]


def test_memory_freed_and_given_out_again_is_not_told(run: Run) -> None:
    run(MEMORY + "ok.cudaFree(p)\n" + MEMORY + "ok.cudaMemset(p, 0, 4096); ok.cudaFree(p)").expect_nothing()


def test_memory_freed_twice_is_told(run: Run) -> None:
    told = run(MEMORY + "ok.cudaFree(p); assert rt.cudaFree(p) != 0")
    assert told.one().startswith("cudaFree frees or destroys device-memory") and told.one().endswith("a second time")


def test_free_of_an_inner_address_is_told(run: Run) -> None:
    told = run(MEMORY + "assert rt.cudaFree(p + 256) != 0; ok.cudaFree(p)")
    assert "not the start of device-memory" in told.one()


def test_pageable_memory_is_nobodys_business(run: Run) -> None:
    run(
        "a = new('char[]', 64); b = new('char[]', 64); ok.cudaMemcpy(a, b, 64, 0); ok.cudaMemcpy(a, b, 64, 4)"
    ).expect_nothing()


def test_pinned_memory_may_be_freed_and_used_as_ordinary_memory(run: Run) -> None:
    run(
        MEMORY
        + """
        h = new('void **'); ok.cudaMallocHost(h, 4096); ok.cudaMemcpy(p, h[0], 4096, 1); ok.cudaFreeHost(h[0])
        o = new('char[]', 4096); ok.cudaHostRegister(o, 4096, 0); ok.cudaMemcpy(p, o, 4096, 1); ok.cudaHostUnregister(o)
        ok.cudaMemcpy(p, o, 4096, 1)
        """
    ).expect_nothing()


def test_host_access_to_device_memory_is_told_before_the_crash(run: Run) -> None:
    told = run(MEMORY + "ffi.cast('char *', p)[16] = b'x'")
    assert told.code < 0
    assert len(told.reports) == 1 and told.reports[0].startswith("the host writes 0x")
    assert "in device-memory" in told.reports[0] and "of 4096 bytes on device 0" in told.reports[0]


def test_crash_elsewhere_is_not_told(run: Run) -> None:
    told = run(MEMORY + "ffi.cast('char *', 64)[0] = b'x'")
    assert told.code < 0 and not told.reports


# ---- what is left at the end ----


def test_what_is_left_is_a_remark_only_with_info(run: Run) -> None:
    told = run(MEMORY + STREAM)
    told.expect_nothing()
    assert not told.remarks
    told = run(MEMORY + MEMORY + STREAM, NCCL_DEBUG="INFO")
    told.expect_nothing()
    assert any("2 of device-memory left at the end of the process, 8192 bytes" in r for r in told.remarks)
    assert any("1 of stream left" in r for r in told.remarks)


def test_leaks_are_told_when_asked_for(run: Run) -> None:
    told = run(MEMORY, PSM_SANITIZE_LEAKS="1")
    assert any("1 of device-memory leaked, 4096 bytes" in r for r in told.remarks), told.text


def test_nothing_is_left_of_a_program_that_frees_all(run: Run) -> None:
    told = run(MEMORY + STREAM + "ok.cudaFree(p); ok.cudaStreamDestroy(s)", PSM_SANITIZE_LEAKS="1")
    told.expect_nothing()
    assert not [r for r in told.remarks if "leaked" in r]


def test_device_reset_ends_everything_without_a_word(run: Run) -> None:
    told = run(STREAM + EVENT + MEMORY + "ok.cudaDeviceReset()", PSM_SANITIZE_LEAKS="1")
    told.expect_nothing()
    assert not [r for r in told.remarks if "leaked" in r]


def test_stream_of_before_a_device_reset_is_told_as_destroyed(run: Run) -> None:
    told = run(
        STREAM + "number = value(s); ok.cudaDeviceReset(); print('number', number); assert rt.cudaStreamQuery(s) == 400"
    )
    assert "which was already destroyed" in told.one()
    assert [s.split(", ")[1].split()[0] for s in told.stacks] == ["used", "born", "ended"]


def test_many_objects_end_with_a_device_reset(run: Run) -> None:
    code = (
        "es = [new('cudaEvent_t *') for _ in range(5000)]\nfor x in es: ok.cudaEventCreate(x)\nok.cudaDeviceReset()\n"
    )
    run(code, PSM_SANITIZE_LEAKS="1").expect_nothing()


# ---- handles of other processes ----


def test_stream_of_another_process_is_told_with_its_owner_and_birth(start: Start) -> None:
    owner = start(STREAM + "rest(value(s))", RANK="0")
    number = owner.rests()[0]
    user = start(f"s = ffi.cast('cudaStream_t', {number})\nassert rt.cudaStreamSynchronize(s) == 400\nrest()", RANK="1")
    user.rests()
    user.go()
    told = user.end()
    assert told.one() == (
        f"cudaStreamSynchronize got stream {int(number):#x}, which belongs to rank 0, process {owner.process.pid}"
    )
    assert [s.split(", ")[1].split()[0] for s in told.stacks] == ["used", "born"]
    assert f"born by thread {owner.process.pid} at: " in told.stacks[1] and "python" in told.stacks[1]
    owner.go()
    owner.end().expect_nothing()


def test_handle_that_its_owner_has_destroyed_is_nobodys(start: Start) -> None:
    owner = start(STREAM + "rest(value(s)); ok.cudaStreamDestroy(s); rest()", RANK="0")
    number = owner.rests()[0]
    owner.go()
    owner.rests()
    told = start(f"rt.cudaStreamSynchronize(ffi.cast('cudaStream_t', {number}))", RANK="1").end()
    assert "never created" in told.one()


def test_pointer_of_another_process_is_told(start: Start) -> None:
    owner = start(MEMORY + "rest(value(p))", RANK="3")
    number = owner.rests()[0]
    told = start(f"rt.cudaMemset(ffi.cast('void *', {number} + 8), 0, 8)", RANK="1").end()
    assert "cudaMemset got device-memory" in told.one() and "belongs to rank 3" in told.one()


def test_owner_without_a_rank_is_named_by_its_process_in_log_and_record(start: Start, tmp_path: Path) -> None:
    owner = start(STREAM + "rest(value(s))")
    number = owner.rests()[0]
    user = start(f"rt.cudaStreamSynchronize(ffi.cast('cudaStream_t', {number})); rest()")
    user.rests()
    user.close()  # a process that ends well takes its record with it
    said = f"cudaStreamSynchronize got stream {int(number):#x}, which belongs to process {owner.process.pid}"
    assert Told.of(0, user.seen).one() == said
    lines = [line.rstrip() for path in (tmp_path / "records").iterdir() for line in open_record(path).lines()]
    assert any(line.endswith(said.encode()) for line in lines)
    assert not [line for line in lines if b"rank -1" in line]


def test_stream_of_a_destroyed_context_is_told_with_the_destroy(tmp_path: Path) -> None:
    # Inside hostcuda only: the shim does not see what cuCtxDestroy takes with it.
    code = """
    c = drv.new('CUcontext *'); ok.cudaFree(ffi.NULL); drv.ok.cuCtxCreate_v2(c, 0, 0)
    s, e = drv.new('CUstream *'), drv.new('CUevent *'); drv.ok.cuStreamCreate(s, 1); drv.ok.cuEventCreate(e, 0)
    drv.ok.cuCtxDestroy_v2(c[0])
    assert drv.cuStreamSynchronize(s[0]) == 400
    """
    told = Program("cudart12", "inside", "warn", tmp_path, code, {}).end()
    assert told.one().startswith("cuStreamSynchronize got stream 0x") and "which was already destroyed" in told.one()
    assert [stack.split(", ")[1].split()[0] for stack in told.stacks] == ["used", "born", "ended"]


# ---- signals ----


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS])
@pytest.mark.parametrize("send", ["os.kill(os.getpid(), {})", "signal.raise_signal({})"])
def test_fatal_signal_that_was_sent_ends_the_program(run: Run, number: signal.Signals, send: str) -> None:
    told = run(MEMORY + send.format(int(number)) + "\nprint('still here')")
    assert told.code == -number, told.text
    assert not told.reports and "still here" not in told.text


def test_fatal_signal_that_was_sent_reaches_the_handler_that_the_program_had(run: Run) -> None:
    told = run(MEMORY + "os.kill(os.getpid(), signal.SIGSEGV)", PYTHONFAULTHANDLER="1")
    assert told.code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in told.text
