"""``psmkit plugin drive`` finds what is wrong with a plugin that is broken in one way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psmkit.lab.cuda import folder as emulated
from psmkit.plugins.abi import spoken
from psmkit.plugins.drive import drive
from psmkit.plugins.drive_checks import CHECKS
from tests.plugins import drive_libraries

# The way (see broken/net.c and tables.c), the check that finds it, and as what.
BROKEN = (
    ("accept-blocks", "connect-early", "PSM914"),
    ("accept-early", "connect-early", "PSM911"),
    ("close-busy", "close", "PSM911"),
    ("close-order", "close", "PSM913"),
    ("close-waits", "close", "PSM914"),
    ("coll-fails", "collnet-reduce", "PSM911"),
    ("coll-later", "collnet", "PSM911"),
    ("coll-max", "collnet-reduce", "PSM912"),
    ("coll-never", "collnet-many", "PSM915"),
    ("coll-no-bytes", "collnet", "PSM911"),
    ("coll-slot", "collnet", "PSM911"),
    ("coll-supports", "collnet", "PSM911"),
    ("coll-window", "collnet-gather", "PSM912"),
    ("connect-blocks", "connect", "PSM914"),
    ("connect-fails", "connect", "PSM911"),
    ("connect-never", "connect", "PSM915"),
    ("consumed-fails", "consumed", "PSM911"),
    ("context", "contexts", "PSM911"),
    ("crash-large", "sizes", "PSM913"),
    ("dereg-all", "reg", "PSM911"),
    ("device-type", "properties", "PSM911"),
    ("dmabuf-fails", "dmabuf", "PSM911"),
    ("done-twice", "order", "PSM912"),
    ("events-handle", "events", "PSM911"),
    ("events-id", "events", "PSM911"),
    ("events-open", "events", "PSM911"),
    ("events-parent", "events", "PSM911"),
    ("events-twice", "events", "PSM911"),
    ("fd-leak", "leaks", "PSM916"),
    ("few-requests", "in-flight", "PSM915"),
    ("few-sends", "in-flight", "PSM915"),
    ("finalize-fails", "finalize", "PSM911"),
    ("flush-never", "cuda", "PSM915"),
    ("hint-answered", "hint", "PSM911"),
    ("hint-is-request", "hint", "PSM913"),
    ("hint-left", "hint", "PSM911"),
    ("init-exits", "init", "PSM913"),
    ("init-fails", "init", "PSM911"),
    ("init-thread", "unload", "PSM916"),
    ("keeps-handle", "connect", "PSM913"),
    ("long-handle", "listen", "PSM911"),
    ("lost-retry", "retry", "PSM915"),
    ("no-bytes", "properties", "PSM911"),
    ("no-comms", "properties", "PSM911"),
    ("no-devices", "devices", "PSM911"),
    ("no-host", "properties", "PSM911"),
    ("no-listener", "listen", "PSM911"),
    ("no-name", "load", "PSM911"),
    ("no-recvs", "properties", "PSM911"),
    ("no-sizes", "shorter", "PSM911"),
    ("no-such-device", "properties", "PSM911"),
    ("null-flush", "properties", "PSM911"),
    ("null-slot", "slots", "PSM911"),
    ("oldest-only", "order", "PSM911"),
    ("one-size", "shorter", "PSM911"),
    ("overflows", "longer", "PSM912"),
    ("posted-size", "shorter", "PSM912"),
    ("recv-early", "message", "PSM912"),
    ("reg-aligned", "reg", "PSM911"),
    ("reg-local", "global", "PSM911"),
    ("reg-offset", "offset", "PSM912"),
    ("reorder", "order", "PSM912"),
    ("same-request", "in-flight", "PSM911"),
    ("second-dies", "message", "PSM913"),
    ("sizes-overrun", "message", "PSM911"),
    ("speed-unset", "properties", "PSM911"),
    ("tag-ignored", "group", "PSM912"),
    ("tags-anywhere", "first-group", "PSM911"),
    ("test-blocks", "message", "PSM914"),
    ("test-never", "zero", "PSM915"),
    ("thread-leak", "leaks", "PSM916"),
    ("truncates", "longer", "PSM917"),
    ("vdevice-index", "vdevice", "PSM911"),
    ("vdevice-none", "vdevice", "PSM911"),
    ("vdevice-props", "vdevice", "PSM911"),
    ("vdevice-uncounted", "vdevice", "PSM911"),
    ("wrong-data", "sizes", "PSM912"),
    ("zero-swallowed", "zero", "PSM911"),
)
# What the plugin has beside a network with one device: a CollNet, and devices that it merges.
MORE = {"COLLNET": "1", "DEVICES": "2", "MERGES": "1"}
# These are found when the patience of the driver ends: little of it, for they end in no other way.
LATE = ("PSM914", "PSM915", "PSM916")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drive_libraries.plugin(tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drive_libraries.cuda(tmp_path_factory.mktemp("runtime"))


def test_the_plugin_is_right_when_it_is_not_broken(library: Path, runtime: Path) -> None:
    done = drive(library, versions=sorted(spoken("net")), cuda=str(runtime), environment=MORE)
    assert drive_libraries.failures(done) == []
    assert done.clean
    newest = {result.check: result.outcome for result in done.results if result.version == 12}
    assert [name for name, outcome in newest.items() if outcome != "passed"] == ["test-order"]


def test_the_plugin_is_right_between_more_processes(library: Path) -> None:
    done = drive(library, ranks=5, versions=(4, 12))
    assert drive_libraries.failures(done) == []


def test_memory_of_the_emulated_gpu_is_sent_and_flushed(library: Path) -> None:
    done = drive(library, only=("cuda",), cuda=str(emulated() / "libcudart.so.12"))
    assert {result.check: result.outcome for result in done.results}["cuda"] == "passed"


@pytest.mark.parametrize(("way", "check", "code"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_plugin_is_found(library: Path, runtime: Path, way: str, check: str, code: str) -> None:
    timeout = 1.5 if code in LATE else 90.0  # what ends by itself may take its time on a busy machine
    more = MORE if check == "vdevice" or check.startswith("collnet") else {}
    done = drive(library, only=(check,), timeout=timeout, environment={"BROKEN": way, **more}, cuda=str(runtime))
    assert not done.clean
    (finding,) = done.findings
    # Swapped messages are wrong data, or one of them is never received: which, timing decides.
    codes = (code, "PSM915") if way == "reorder" else (code,)
    assert finding.code in codes and finding.title.partition(" ")[0] == check
    assert finding.next_step
    assert "Source: " in finding.explanation


def test_every_way_of_being_broken_is_tried() -> None:
    source = "".join(path.read_text() for path in drive_libraries.SOURCES.glob("*.c"))
    ways = set(re.findall(r'broken\("([a-z0-9-]+)"\)', source))
    assert ways == {row[0] for row in BROKEN}


def test_what_follows_a_failure_goes_on_in_fresh_processes(library: Path) -> None:
    done = drive(library, environment={"BROKEN": "crash-large"})
    outcomes = {result.check: result.outcome for result in done.results}
    assert [name for name, outcome in outcomes.items() if outcome == "failed"] == ["sizes"]
    assert outcomes["order"] == outcomes["leaks"] == outcomes["unload"] == "passed"
    (failed,) = (result for result in done.results if result.outcome == "failed")
    assert (failed.kind, failed.call, failed.text) == ("died", "isend", "the process died by SIGSEGV in isend")


def test_the_call_in_which_any_rank_died_is_named(library: Path) -> None:
    done = drive(library, environment={"BROKEN": "second-dies"}, only=("message",))
    failed = done.results[-1]
    assert (failed.rank, failed.call, failed.text) == (1, "isend", "the process died by SIGABRT in isend")


def test_checks_that_say_nothing_any_more_are_left_out(library: Path) -> None:
    done = drive(library, environment={"BROKEN": "connect-fails"})
    outcomes = {result.check: (result.outcome, result.text) for result in done.results}
    assert outcomes["connect"][0] == "failed"
    assert outcomes["order"] == ("skipped", "needs connect, which failed")
    assert len(done.findings) == 1


def test_the_plugins_own_warning_is_shown(library: Path) -> None:
    done = drive(library, environment={"BROKEN": "init-fails"}, only=("init",))
    assert "NET/Broken : there is no network" in done.findings[0].explanation


def test_versions_that_fail_alike_are_one_finding(library: Path) -> None:
    done = drive(library, versions=(8, 9), environment={"BROKEN": "no-devices"}, only=("devices",))
    (finding,) = done.findings
    assert "with v8, v9" in finding.explanation


def test_the_page_shows_what_is_printed_and_every_check(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in CHECKS:
        assert f"| `{one.name}` | {one.text} | " in drive_libraries.PAGES["plugins"]
    # Both ranks see it; which is first differs.
    drive_libraries.expect_page("output", library, r"(?<=on rank )\d", capsys, monkeypatch, BROKEN="posted-size")
