"""Plugins that fill their tables in init, as nccl-rdma-sharp-plugins does: NCCL reads a table after init, and so does psmkit."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.model import Severity
from psmkit.plugins import check
from psmkit.plugins.abi import table_of
from psmkit.plugins.drive import drive
from tests.plugins import drive_libraries
from tests.plugins.build import build, struct_of, table
from tests.plugins.test_check import text


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drive_libraries.filled_by_init(tmp_path_factory.mktemp("filled"))


def test_check_says_that_only_a_run_can_tell(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = check(library)
    (finding,) = result.findings
    assert finding.severity is Severity.INFO and result.clean
    assert finding.title == "2 tables filled by init: only a run can tell"
    assert [one.by_init for one in result.tables] == [True, True]
    assert main(["plugin", "check", str(library)]) == 0
    out = capsys.readouterr().out
    assert "nothing wrong in the file" in out and "NULL" not in out


def test_a_writable_table_with_few_empty_slots_is_a_warning(tmp_path: Path) -> None:
    source = table("ncclNetPlugin_v8", leave_out=("isend",)).removeprefix("const ")
    (finding,) = check(build(tmp_path, source, "libnccl-net.so", "-DPSM_ABI_CONST=")).findings
    assert finding.code == "PSM903" and finding.severity is Severity.WARNING
    assert "init may fill it" in finding.explanation


@pytest.mark.parametrize("symbol", ["ncclTunerPlugin_v4", "ncclProfiler_v4", "ncclCollNetPlugin_v8"])
def test_other_kinds_may_fill_their_tables_in_init_too(symbol: str, tmp_path: Path) -> None:
    source = table(symbol, only=("name", "init")) + (table("ncclNetPlugin_v8") if "CollNet" in symbol else "")
    source = source.replace("const nccl", "nccl")
    result = check(build(tmp_path, source, "libnccl-any.so", "-DPSM_ABI_CONST="))
    assert all(finding.severity is Severity.INFO for finding in result.findings), text(result)


def test_a_constant_table_cannot_be_filled(tmp_path: Path) -> None:
    (finding,) = check(build(tmp_path, table("ncclNetPlugin_v8", only=("name", "init")))).findings
    assert finding.code == "PSM903" and finding.severity is Severity.ERROR


def test_drive_reads_the_table_after_init(library: Path) -> None:
    done = drive(library, versions=(8, 12))
    assert drive_libraries.failures(done) == []
    notes = {(result.version, result.check): result.text for result in done.results}
    assert notes[12, "load"] == "Filled"
    assert notes[12, "slots"] == notes[8, "slots"] == "filled by init: devices was NULL before"


def test_drive_names_the_slot_that_init_left_empty(library: Path) -> None:
    done = drive(library, environment={"FILLED": "partly"}, only=("slots",))
    (finding,) = done.findings
    assert finding.code == "PSM911" and finding.title == "slots (v12): isend is NULL in ncclNetPlugin_v12 after init"


PROFILER = """
static ncclResult_t start(void *c, void **h, ncclProfilerEventDescr_v4_t *e) { *h = 0; return ncclSuccess; }
static ncclResult_t stop(void *h) { return ncclSuccess; }
static ncclResult_t state(void *h, ncclProfilerEventState_v4_t s, ncclProfilerEventStateArgs_v4_t *a) { return ncclSuccess; }
static ncclResult_t end(void *c) { return ncclSuccess; }
extern %(type)s %(symbol)s;
static ncclResult_t begin(void **c, int *m, const char *n, uint64_t id, int nodes, int ranks, int rank, ncclDebugLogger_t l)
{
    *c = &%(symbol)s, *m = 1;
    %(symbol)s.startEvent = start, %(symbol)s.stopEvent = stop, %(symbol)s.recordEventState = state, %(symbol)s.finalize = end;
    return ncclSuccess;
}
%(type)s %(symbol)s = {.name = "Filled", .init = begin};
"""


def test_a_profiler_is_read_after_init_too(tmp_path: Path) -> None:
    from psmkit.plugins.drive_profiler import drive_profiler

    known = table_of("ncclProfiler_v4")
    assert known is not None
    source = PROFILER % {"symbol": known.symbol, "type": struct_of(known)}
    library = build(tmp_path, source, "libnccl-profiler-filled.so", "-DPSM_ABI_CONST=")
    done = drive_profiler(library, only=("slots", "collective"))
    assert {result.check: result.text for result in done.results}[
        "slots"
    ] == "filled by init: startEvent was NULL before"
    assert drive_libraries.failures(done) == []
