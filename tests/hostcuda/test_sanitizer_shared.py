"""The handle sanitizer where processes share: imported memory and events, owners that die, and what a dead process leaves in its record."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from psmkit.logparse.sanitizer import reports
from tests.hostcuda.conftest import emulated
from tests.hostcuda.sanitizing import EVENT, MEMORY, STREAM, Program, Told

pytestmark = emulated
Start = Callable[..., Program]
Run = Callable[..., Told]

EXPORT = (
    MEMORY
    + "h = new('cudaIpcMemHandle_t *'); ok.cudaIpcGetMemHandle(h, p); rest(bytes(ffi.buffer(h)).hex(), value(p))\n"
)
IMPORT = """
h = new('cudaIpcMemHandle_t *'); ffi.buffer(h)[:] = bytes.fromhex({!r})
q = new('void **'); ok.cudaIpcOpenMemHandle(q, h[0], 1); q = q[0]
"""
VMM = """
drv.ok.cuInit(0); ok.cudaFree(ffi.NULL); n = 2 << 20
prop = drv.new('CUmemAllocationProp *'); prop.type = 1; prop.requestedHandleTypes = 1; prop.location.type = 1
desc = drv.new('CUmemAccessDesc *'); desc.location.type = 1; desc.flags = 3
at = drv.new('CUdeviceptr *'); drv.ok.cuMemAddressReserve(at, 2 * n, 0, 0, 0); at = at[0]
m = drv.new('CUmemGenericAllocationHandle *')
"""
CREATE = "drv.ok.cuMemCreate(m, n, prop, 0)\n"
MAP = "drv.ok.cuMemMap(at, n, 0, m[0], 0); drv.ok.cuMemSetAccess(at, n, desc, 1)\n"
END = "drv.ok.cuMemUnmap(at, n); drv.ok.cuMemRelease(m[0]); drv.ok.cuMemAddressFree(at, 2 * n)\n"
FOR_EVER = "import time; end = time.monotonic() + 30\n"


def test_memory_of_a_living_process_may_be_used(start: Start) -> None:
    owner = start(EXPORT, RANK="0")
    handle = owner.rests()[0]
    start(
        IMPORT.format(handle) + "ok.cudaMemset(q, 1, 4096); ok.cudaIpcCloseMemHandle(q)", RANK="1"
    ).end().expect_nothing()
    owner.go()
    owner.end().expect_nothing()


def test_memory_of_a_dead_process_is_told_when_it_is_used(start: Start) -> None:
    owner = start(EXPORT, RANK="0")
    handle = owner.rests()[0]
    user = start(IMPORT.format(handle) + "ok.cudaMemset(q, 1, 8); rest()\n" + FOR_EVER
                 + "while rt.cudaMemset(q, 1, 8) == 0 and time.monotonic() < end and not rest(): pass", RANK="1")  # fmt: skip
    user.rests()
    owner.close()
    # the owner is looked for now and then, not at each call: go on until it was
    told = _until_told(user)
    assert told.one().startswith("cudaMemset got ipc-mapping 0x")
    assert told.one().endswith(f"imported from rank 0, process {owner.process.pid}, which is dead")


def _until_told(user: Program) -> Told:
    user.go()
    for _ in range(200):
        user.rests()
        if user.has_told():
            break
        user.go()
    user.go("enough")
    return user.end()


def test_closing_imported_memory_twice_is_told(start: Start) -> None:
    owner = start(EXPORT, RANK="0")
    handle = owner.rests()[0]
    code = IMPORT.format(handle) + "ok.cudaIpcCloseMemHandle(q); assert rt.cudaIpcCloseMemHandle(q) != 0"
    told = start(code, RANK="1").end()
    assert told.one().startswith("cudaIpcCloseMemHandle frees or destroys ipc-mapping") and told.one().endswith(
        "a second time"
    )


def test_imported_event_counts_as_recorded(start: Start) -> None:
    code = """
    e = new('cudaEvent_t *'); ok.cudaEventCreateWithFlags(e, 2 | 4); ok.cudaEventRecord(e[0], ffi.NULL)
    h = new('cudaIpcEventHandle_t *'); ok.cudaIpcGetEventHandle(h, e[0]); rest(bytes(ffi.buffer(h)).hex())
    """
    owner = start(code, RANK="0")
    handle = owner.rests()[0]
    start(
        f"""
        h = new('cudaIpcEventHandle_t *'); ffi.buffer(h)[:] = bytes.fromhex({handle!r})
        e = new('cudaEvent_t *'); ok.cudaIpcOpenEventHandle(e, h[0]); ok.cudaEventQuery(e[0]); ok.cudaEventDestroy(e[0])
        """
    ).end().expect_nothing()


def test_event_that_others_may_record_is_not_told(start: Start) -> None:
    start(
        """
        e = new('cudaEvent_t *'); ok.cudaEventCreateWithFlags(e, 2 | 4)
        h = new('cudaIpcEventHandle_t *'); ok.cudaIpcGetEventHandle(h, e[0]); ok.cudaEventQuery(e[0])
        """
    ).end().expect_nothing()


def test_mapped_memory_is_silent_from_birth_to_end(run: Run) -> None:
    fill = "drv.ok.cuMemsetD8_v2(at, 1, n); drv.ok.cuCtxSynchronize()\n"  # or it may still be queued at the unmap
    run(VMM + CREATE + MAP + fill + END, PSM_SANITIZE_LEAKS="1").expect_nothing()


def test_a_copy_over_two_mappings_side_by_side_is_one_area(run: Run) -> None:
    second = "k = drv.new('CUmemGenericAllocationHandle *'); drv.ok.cuMemCreate(k, n, prop, 0); drv.ok.cuMemMap(at + n, n, 0, k[0], 0)\n"
    both = (
        "drv.ok.cuMemSetAccess(at, 2 * n, desc, 1); drv.ok.cuMemsetD8_v2(at, 1, 2 * n); drv.ok.cuCtxSynchronize()\n"
        "drv.ok.cuMemUnmap(at, 2 * n)\n"
    )
    run(VMM + CREATE + "drv.ok.cuMemMap(at, n, 0, m[0], 0)\n" + second + both).expect_nothing()


def test_a_copy_beyond_a_mapping_is_told(run: Run) -> None:
    told = run(VMM + CREATE + MAP + "assert drv.cuMemsetD8_v2(at, 1, n + 16) != 0\n" + END)
    assert "16 beyond the end of mapping" in told.one()


def test_unmapped_memory_and_a_second_unmap_are_told(run: Run) -> None:
    told = run(VMM + CREATE + MAP + "drv.ok.cuMemUnmap(at, n); drv.cuMemsetD8_v2(at, 1, 8); drv.cuMemUnmap(at, n)")
    assert len(told.reports) == 2, told.text
    assert "that was already freed" in told.reports[0] and "mapping" in told.reports[0]
    assert "cuMemUnmap frees or destroys mapping" in told.reports[1]


def test_unmapping_an_empty_reservation_is_told_and_not_refused(run: Run) -> None:
    told = run(
        VMM + CREATE + MAP + "drv.ok.cuMemUnmap(at, n); drv.cuMemUnmap(at, 2 * n); drv.ok.cuMemAddressFree(at, 2 * n)"
    )
    assert "unmaps address-range" in told.one() and told.one().endswith("nothing is mapped: this ends nothing")


def test_unmapping_part_of_an_empty_reservation_a_second_time_is_a_double_free(run: Run) -> None:
    told = run(VMM + CREATE + MAP + "drv.ok.cuMemUnmap(at, n); assert drv.cuMemUnmap(at, n) != 0")
    assert "cuMemUnmap frees or destroys mapping" in told.one()


def test_memory_handle_released_once_too_often_is_told(run: Run) -> None:
    once_more = "k = drv.new('CUmemGenericAllocationHandle *'); drv.ok.cuMemRetainAllocationHandle(k, drv.ffi.cast('void *', at))\n"
    told = run(
        VMM + CREATE + MAP + once_more + "drv.ok.cuMemRelease(k[0]); drv.ok.cuMemRelease(m[0]); drv.cuMemRelease(m[0])"
    )
    assert told.one().startswith("cuMemRelease frees or destroys memory-handle")


def test_memory_handle_of_another_process_is_told(start: Start) -> None:
    owner = start(VMM + CREATE + "rest(m[0])", RANK="0")
    number = owner.rests()[0]
    told = start(VMM + f"assert drv.cuMemMap(at, n, 0, {number}, 0) != 0", RANK="1").end()
    assert told.one().startswith("cuMemMap got memory-handle") and "belongs to rank 0" in told.one()


def test_imported_memory_handle_of_a_dead_process_is_told(start: Start) -> None:
    export = "f = drv.new('int *'); drv.ok.cuMemExportToShareableHandle(f, m[0], 1, 0); rest(os.getpid(), f[0])\n"
    owner = start(VMM + CREATE + export, RANK="0")
    pid, fd = owner.rests()
    take = f"f = os.open('/proc/{pid}/fd/{fd}', os.O_RDWR); drv.ok.cuMemImportFromShareableHandle(m, drv.ffi.cast('void *', f), 1)\n"
    user = start(VMM + take + MAP + "drv.ok.cuMemsetD8_v2(at, 1, 8); rest()\n" + FOR_EVER
                 + "while drv.cuMemsetD8_v2(at, 1, 8) == 0 and time.monotonic() < end and not rest(): pass", RANK="1")  # fmt: skip
    user.rests()
    owner.close()
    told = _until_told(user)
    assert told.one().startswith("cuMemsetD8_v2 got mapping 0x") and "rank 0" in told.one()


# ---- records ----


def test_record_of_a_killed_process_tells_what_it_had_and_what_was_reported(start: Start, tmp_path: Path) -> None:
    program = start(
        STREAM + MEMORY + "rt.cudaStreamSynchronize(ffi.cast('cudaStream_t', 0xdeadbee0)); rest(value(s), value(p))"
    )
    stream, address = program.rests()
    program.close()
    shown = subprocess.run(
        [sys.executable, "-m", "psmkit", "records", "show", "--format", "json", str(tmp_path / "records")],
        capture_output=True,
        text=True,
        check=True,
    )
    text = json.dumps(json.loads(shown.stdout))
    assert '"sanitizer.objects"' in text and '"sanitizer.modules"' in text and "python" in text
    assert f'"value": {stream}' in text and f'"value": {address}' in text
    lines = subprocess.run(
        [sys.executable, "-m", "psmkit", "records", "show", str(tmp_path / "records")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "sanitizer report 1: cudaStreamSynchronize got stream 0xdeadbee0, which was never created" in lines
    assert "sanitizer report 1, used by thread" in lines
    (report,) = reports(tmp_path / "records")
    assert (report.pid, report.kind, report.fields["value"]) == (program.process.pid, "never_created", 0xDEADBEE0)
    assert "python" in report.stacks["used"]


def test_handle_of_a_process_that_was_killed_is_still_its_own(start: Start) -> None:
    owner = start(EVENT + "rest(value(e))", RANK="5")
    number = owner.rests()[0]
    owner.close()
    told = start(f"rt.cudaEventQuery(ffi.cast('cudaEvent_t', {number}))", RANK="1").end()
    assert f"belongs to rank 5, process {owner.process.pid}" in told.one()


def test_analyze_names_user_and_owner_from_the_log_or_the_records_alone(start: Start, tmp_path: Path) -> None:
    owner = start(STREAM + "rest(value(s))", RANK="0")
    number = owner.rests()[0]
    user = start(f"rt.cudaStreamSynchronize(ffi.cast('cudaStream_t', {number})); rest()", RANK="1")
    user.rests()
    user.close()
    (tmp_path / "log").write_text(user.seen)
    for source in (tmp_path / "log", tmp_path / "records"):
        done = subprocess.run(
            [sys.executable, "-m", "psmkit", "analyze", "--format", "json", str(source)], capture_output=True, text=True
        )
        report = json.loads(done.stdout)
        found = [f for f in report["findings"] if f["code"] == "PSM507"]
        assert len(found) == 1, done.stdout
        assert f"stream {int(number):#x}" in found[0]["title"]
        assert f"rank 0, process {owner.process.pid}" in found[0]["title"]
        assert "Used at: " in found[0]["explanation"] and "Created at: " in found[0]["explanation"]
        assert report["verdict"] == "failed"
