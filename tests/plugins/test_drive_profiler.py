"""``psmkit plugin drive`` of profilers: right ones, and what it finds in one that is broken in one way."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.lab import cuda
from psmkit.model.errors import InputError
from psmkit.plugins import drive_profiler as profiler
from psmkit.plugins.abi import facts
from psmkit.plugins.drive_profiler import PROFILER_VERSIONS, profiler_alone, profiler_versions
from psmkit.plugins.drive_profiler_checks import PROFILER_CHECKS
from tests.csrc.base import compiled
from tests.plugins import drive_libraries
from tests.plugins.build import build, table

#: Seconds for a call: only one that hangs takes as long, however busy the machine is.
drive_profiler = partial(profiler.drive_profiler, timeout=60.0)

CHECKER = Path(os.environ.get("PSM_DIR") or compiled.ROOT / "psmkit" / "psm") / "lib" / "libnccl-profiler-check.so"
# The way (see broken/profiler), the check that finds it, as what, and words of what it says.
NEWEST = PROFILER_VERSIONS[0]
BROKEN = (
    ("asked-only", "mask-off", "PSM923", "SIGABRT in startEvent"),
    ("fails-with-handle", "collective", "PSM921", "handle-on-error in startEvent"),
    ("finalize-blocks", "collective", "PSM924", "finalize did not return"),
    ("finalize-fails", "init", "PSM921", "finalize returned 3"),
    ("finalize-waits", "open-end", "PSM924", "finalize did not return"),
    ("follows-parent", "null-parent", "PSM923", "startEvent of ProxyStep step 0: it followed a NULL pointer"),
    ("full-crashes", "pool", "PSM923", "SIGABRT in startEvent of Coll AllReduce"),
    ("init-crashes", "init", "PSM923", "SIGABRT in init"),
    ("init-fails", "init", "PSM921", "init returned an error"),
    ("keeps-arguments", "descriptor", "PSM923", "stopEvent: it accessed a descriptor, or arguments, after the call"),
    ("keeps-descriptor", "descriptor", "PSM923", "stopEvent: it accessed a descriptor, or arguments, after the call"),
    ("keeps-string", "strings", "PSM926", "SIGSEGV in stopEvent: it read a string of a descriptor after the call"),
    ("leaks-context", "leaks", "PSM925", "bytes of the heap more for each communicator"),
    ("leaks-descriptor", "leaks", "PSM925", "descriptors more"),
    ("leaks-events", "growth", "PSM925", "more for each group call"),
    ("leaks-thread", "leaks", "PSM925", "threads more"),
    ("leaves-handle", "collective", "PSM921", "did not write *eHandle"),
    (
        "mask-bits",
        "mask",
        "PSM926",
        f"v{NEWEST} has no events for the bits {2**32 - (1 << len(facts()['profiler_kinds'])):#x}",
    ),
    ("newest-parent", "order", "PSM923", "SIGABRT in startEvent of ProxyOp"),
    ("no-context", "init", "PSM926", "init returned no context"),
    ("no-name", "slots", "PSM921", "no name"),
    ("null-slot", "slots", "PSM921", "recordEventState is NULL"),
    ("one-child", "graph", "PSM923", "SIGABRT in startEvent of Coll"),
    ("one-context", "communicators", "PSM923", "SIGABRT in startEvent"),
    ("own-thread", "threads", "PSM923", "SIGABRT in startEvent"),
    ("pxn-context", "pxn", "PSM923", "startEvent of ProxyOp recv channel 0 peer 3: it accessed the context"),
    ("pxn-parent", "pxn", "PSM923", "startEvent of ProxyOp recv channel 0 peer 3: it accessed the parent"),
    ("pxn-step-context", "pxn", "PSM923", "startEvent of ProxyStep step 0: it accessed the context"),
    ("reads-buffer", "collective", "PSM923", "it accessed the user's buffer"),
    ("reuses-handle", "collective", "PSM921", "handle-again in startEvent"),
    ("same-handle", "collective", "PSM921", "event: CollApi AllGather tag 29793 < GroupApi < communicator"),
    ("slow", "latency", "PSM926", "for each step of each transfer"),
    ("start-blocks", "collective", "PSM924", "startEvent of GroupApi did not return"),
    ("start-exits", "collective", "PSM923", "as by exit(0)"),
    ("start-fails", "collective", "PSM921", "result in startEvent"),
    ("state-fails", "collective", "PSM921", "recordEventState returned 3"),
    ("state-follows-arguments", "collective", "PSM923", "recordEventState with eStateArgs NULL"),
    ("state-follows-null", "null-handle", "PSM923", "recordEventState with NULL: it followed a NULL pointer"),
    ("stop-fails", "collective", "PSM921", "stopEvent returned 3"),
    ("stop-once", "stale-stop", "PSM923", "SIGABRT in stopEvent"),
    ("stop-follows-null", "null-handle", "PSM923", "stopEvent with NULL: it followed a NULL pointer"),
    ("stop-follows-wild", "collective", "PSM923", "it followed a pointer "),
    ("thread-runs", "unload", "PSM923", "in a thread of the profiler"),
    ("writes-descriptor", "collective", "PSM921", "wrote to the descriptor"),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drive_libraries.profiler(tmp_path_factory.mktemp("broken"))


def test_the_profiler_is_right_when_it_is_not_broken(library: Path) -> None:
    assert profiler_versions(library) == PROFILER_VERSIONS
    done = drive_profiler(library, versions=PROFILER_VERSIONS)
    assert drive_libraries.failures(done) == []
    assert done.clean
    assert {(result.check, result.version) for result in done.results if result.outcome != "passed"} == {
        ("adapter", NEWEST),
        *(("stale-stop", version) for version in (4, 3, 2, 1)),
    }
    assert [result.check for result in done.results if result.version == NEWEST] == [
        check.name for check in PROFILER_CHECKS if check.name != "stream"
    ]


def test_the_checker_is_a_profiler_itself(tmp_path: Path) -> None:
    done = drive_profiler(
        CHECKER, versions=(NEWEST, 6, 3), environment={"PSM_RECORD_DIR": str(tmp_path), "PSM_PROFILER_WRAP": ""}
    )
    assert drive_libraries.failures(done) == []


@pytest.mark.parametrize(("way", "check", "code", "words"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_profiler_is_found(library: Path, way: str, check: str, code: str, words: str) -> None:
    timeout = 1.0 if code == "PSM924" else 60.0
    done = drive_profiler(library, only=(check,), timeout=timeout, environment={"BROKEN": way})
    assert not done.clean
    assert [(finding.code, finding.title.partition(" ")[0]) for finding in done.findings] == [(code, check)]
    (finding,) = done.findings
    assert words in finding.title
    assert finding.next_step
    assert "Source: " in finding.explanation


def test_every_way_of_being_broken_is_tried() -> None:
    source = (drive_libraries.SOURCES / "profiler" / "profiler.c").read_text()
    assert set(re.findall(r'broken\("([a-z0-9-]+)"\)', source)) == {"needs-name", *(row[0] for row in BROKEN)}


def test_a_weakness_is_counted_and_shown_apart_from_failures(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "mask-bits")
    assert main(["plugin", "drive", str(library), "--only", "mask"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(f"1 weak: {library.name}\nprofiler v{NEWEST}; 3 passed, 0 failed, 1 weak, 0 skipped\n")
    assert re.search(r"^  mask +weak +the mask is 0x", shown, re.MULTILINE) and "FAILED" not in shown
    assert "warning PSM926" in shown


def test_what_adapters_leave_out_is_tried(library: Path) -> None:
    done = drive_profiler(library, versions=(3,), environment={"BROKEN": "needs-name"}, only=("collective", "adapter"))
    (failure,) = drive_libraries.failures(done)
    text, _, at = failure.partition(", at ")
    assert text == "adapter v3: SIGSEGV in startEvent of Coll AllGather seq 0: it followed a NULL pointer"
    assert at


def test_a_finalize_that_blocks_is_waited_for_once(library: Path) -> None:
    begun: list[str] = []
    done = drive_profiler(
        library,
        timeout=1.0,
        environment={"BROKEN": "finalize-blocks"},
        only=("collective", "p2p", "leaks", "unload"),
        watch=lambda _, check: begun.append(check),
    )
    (failure,) = drive_libraries.failures(done)
    assert failure.startswith("collective ") and "finalize did not return" in failure
    outcomes = {result.check: (result.outcome, result.text) for result in done.results}
    assert outcomes["p2p"][0] == "passed"
    assert outcomes["leaks"] == outcomes["unload"] == ("skipped", "needs finalize, which blocked in collective")
    (fault,) = done.faults
    assert fault.next_step.startswith("Let finalize end")


def test_a_finalize_that_waits_for_open_events_only_leaves_the_later_checks(library: Path) -> None:
    done = drive_profiler(library, timeout=1.0, environment={"BROKEN": "finalize-waits"}, only=("open-end", "leaks"))
    assert [r.outcome for r in done.results if r.check in ("open-end", "leaks")] == ["failed", "passed"]


def test_what_follows_a_failure_goes_on(library: Path) -> None:
    done = drive_profiler(library, environment={"BROKEN": "pxn-parent"})
    assert [failure.partition(", at ")[0] for failure in drive_libraries.failures(done)] == [
        f"pxn v{NEWEST}: SIGSEGV in startEvent of ProxyOp recv channel 0 peer 3: it accessed the parent of an operation of another process"
        " (proxyOp.pid is not this process)"
    ]


def test_a_crash_names_the_instruction_in_the_library(library: Path) -> None:
    done = drive_profiler(library, environment={"BROKEN": "stop-follows-wild"}, only=("collective",))
    (failure,) = drive_libraries.failures(done)
    assert re.search(rf", at {re.escape(library.name)}\+0x[0-9a-f]+", failure)
    assert "NULL" not in failure


def test_checks_that_say_nothing_any_more_are_left_out(library: Path) -> None:
    done = drive_profiler(library, environment={"BROKEN": "init-fails"}, only=("init", "pxn"))
    outcomes = {result.check: (result.outcome, result.text) for result in done.results}
    assert outcomes["pxn"] == ("skipped", "needs init, which failed")
    (finding,) = done.findings
    assert "PROFILER/Broken : there is no pool" in finding.explanation


def test_versions_that_fail_alike_are_one_finding(library: Path) -> None:
    done = drive_profiler(library, versions=(6, 4, 1), environment={"BROKEN": "stop-fails"}, only=("p2p",))
    (finding,) = done.findings
    assert "with v6, v4, v1" in finding.explanation


def test_a_communicator_has_one_size_in_all_checks(tmp_path: Path) -> None:
    """A consumer of the events takes what has one id for one communicator."""
    drive_profiler(
        CHECKER,
        only=("collective", "threads"),
        environment={"PSM_PROFILER_STREAM": str(tmp_path / "%p.txt"), "PSM_RECORD_DIR": str(tmp_path / "records")},
    )
    sizes: dict[str, set[str]] = {}
    for file in tmp_path.glob("*.txt"):
        for comm, ranks in re.findall(r"^init .*\bcomm=(\w+) .*\branks=(\d+)", file.read_text(), re.MULTILINE):
            sizes.setdefault(comm, set()).add(ranks)
    assert len(sizes) > 3 and all(len(found) == 1 for found in sizes.values()), sizes


def test_a_stream_is_recorded_and_played_to_another_profiler(library: Path, tmp_path: Path) -> None:
    stream = tmp_path / "calls.txt"
    recorded = drive_profiler(
        CHECKER,
        only=("threads",),
        environment={"PSM_PROFILER_STREAM": str(tmp_path / "%p.txt"), "PSM_RECORD_DIR": str(tmp_path / "records")},
    )
    assert recorded.clean
    # One file for each process that had a communicator: init's and that of the check.
    largest = max(tmp_path.glob("*.txt"), key=lambda path: path.stat().st_size)
    largest.rename(stream)
    text = stream.read_text()
    assert text.startswith(
        f"psmkit-profiler-stream 1 v{NEWEST}\ninit 0 1 comm=9f3c11d2a0b40000 nodes=1 ranks=4 name=comm-0\n"
    )
    assert len({line.split()[1] for line in text.splitlines()[1:]}) == 9
    # What v7 adds: the application's tag of a call, and the phases of a kernel's channel.
    assert " tag=29793" in text and re.search(
        r"start \d+ \d+ \d+ KernelPhase parent=\d+ .*algo=final_sync .*step=2", text
    )
    for version in (NEWEST, 6, 4, 1):
        done = drive_profiler(library, versions=(version,), only=("stream",), stream=stream)
        assert done.clean, done.findings
        (played,) = (result for result in done.results if result.check == "stream")
        assert played.text == f"{len(text.splitlines())} lines"
    (tmp_path / "wrong.txt").write_text("".join(text.splitlines(keepends=True)[:5]) + "start 0 1 5 Nothing\n")
    with pytest.raises(InputError, match=r"line 6 of .*wrong.txt: expected a kind of event"):
        drive_profiler(library, only=("stream",), stream=tmp_path / "wrong.txt")


def test_a_breach_of_nccls_in_a_stream_is_counted_and_survived(library: Path, tmp_path: Path) -> None:
    stream = tmp_path / "calls.txt"
    stream.write_text(
        "psmkit-profiler-stream 1 v4\n"
        "init 0 1 comm=5 nodes=1 ranks=2\n"
        "start 0 1 1 Group\n"
        "start 0 1 2 Coll parent=1 func=AllReduce datatype=ncclInt8 algo=RING proto=LL seq=7\n"
        "stop 0 2\n"
        "start 1 1 3 ProxyOp parent=2 send=1 steps=4\n"
        "stop 1 3\n"
        "state 1 3 19\n"
        "stop 1 3\n"
        "start 1 0 4 ProxyOp foreign=1 channel=3\n"
        "stop 1 4\n"
        "stop 0 1\n"
        "finalize 0 1\n"
    )
    done = drive_profiler(library, versions=(4,), only=("stream",), stream=stream)
    (played,) = (result for result in done.results if result.check == "stream")
    assert (played.outcome, played.text) == ("passed", "13 lines; breaches of the contract by NCCL: 2")


def test_only_profilers_are_taken_for_profilers(library: Path, tmp_path: Path) -> None:
    assert profiler_alone(library)
    assert profiler_alone(CHECKER)
    assert not profiler_alone(compiled.ROOT / "psmkit" / "psm" / "lib" / "libnccl-tuner-psm.so")
    assert not profiler_alone(compiled.ROOT / "psmkit" / "psm" / "lib" / "libnccl-net-psm.so")
    (tmp_path / "text.so").write_text("no library")
    assert not profiler_alone(tmp_path / "text.so")
    with pytest.raises(InputError, match="no such file"):
        profiler_versions(tmp_path / "nothing.so")


def test_a_version_that_the_library_lacks_is_refused(tmp_path: Path) -> None:
    old = drive_libraries.profiler_of(tmp_path, 4)
    assert profiler_versions(old) == (4,)
    with pytest.raises(InputError, match="no ncclProfiler_v6; it has v4"):
        drive_profiler(old, versions=(6,))


def test_the_command_shows_it_as_text_and_json(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plugin", "drive", str(library), "--only", "p2p", "--version", "6,3"]) == 0
    assert capsys.readouterr().out.startswith(
        "green: libnccl-profiler-broken.so\nprofiler v6, v3; 8 passed, 0 failed, 0 skipped\n"
    )
    monkeypatch.setenv("BROKEN", "same-handle")
    assert main(["plugin", "drive", str(library), "--only", "p2p", "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "psmkit.plugin-drive/1"
    assert not data["clean"]
    assert data["findings"][0]["code"] == "PSM921"
    assert [row["call"] for row in data["results"] if row["outcome"] == "failed"] == ["startEvent"]
    assert main(["plugin", "drive", "--list", "--kind", "profiler"]) == 0
    assert "pxn\n" in capsys.readouterr().out


def test_the_page_shows_what_is_printed_and_every_check(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in PROFILER_CHECKS:
        assert f"| `{one.name}` | {one.text} | " in drive_libraries.PAGES["profiler"]
    # Handles are addresses.
    drive_libraries.expect_page("profiler", library, r"0x[0-9a-f]+", capsys, monkeypatch, BROKEN="reuses-handle")


NEEDS_CUDA = """
int cudaRuntimeGetVersion(int *);
int cudaGetDeviceCount(int *);
__attribute__((constructor)) static void ask(void) { int n; cudaRuntimeGetVersion(&n); cudaGetDeviceCount(&n); }
"""


def test_a_profiler_that_uses_cuda_without_being_linked_to_it_gets_the_emulated_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = build(tmp_path, table("ncclProfiler_v4") + NEEDS_CUDA, "libnccl-profiler-cuda.so")
    command = ["plugin", "drive", str(library), "--only", "load"]
    assert main(command) == 2
    assert "undefined symbol: cuda" in capsys.readouterr().err
    main([*command, "--cuda", "emulated"])
    assert re.search(r"^ *load +ok", capsys.readouterr().out, re.M)


def test_a_setting_that_our_profiler_does_not_have_is_reported_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Path(cuda.__file__).parents[1] / "psm" / "lib" / "libnccl-profiler-psm.so"
    log = tmp_path / "log"
    monkeypatch.setenv("PSM_PROFILER_EVENT", "all")
    monkeypatch.setenv("PSM_PROFILER_STREAM", "")  # of the checker, which may be in front
    assert main(["plugin", "drive", str(library), "--only", "init", "--log", str(log)]) == 0
    said = [line for line in log.read_text().splitlines() if "is not a setting" in line]
    assert said and all(
        "PSM_PROFILER_EVENT is not a setting, and is ignored; the nearest is PSM_PROFILER_EVENTS" in line
        for line in said
    )


def test_every_setting_on_our_pages_is_one_that_the_profiler_knows() -> None:
    source = (drive_libraries.ROOT / "csrc/plugins/profiler/settings.c").read_text()
    known = set(re.findall(r'"(\w+)"', re.search(r"known_names\[\] = \{(.*?)\}", source, re.S)[1]))  # type: ignore[index]
    pages = "".join(page.read_text() for page in (drive_libraries.ROOT / "docs").glob("*.md"))
    assert set(re.findall(r"PSM_PROFILER_([A-Z_]+[A-Z])\b", pages)) <= known
