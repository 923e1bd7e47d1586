"""``psmkit plugin drive``: our own plugin, the list of checks, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from psmkit.cli import plugin_drive
from psmkit.cli.app import main
from psmkit.lab import cuda
from psmkit.model import CODES
from psmkit.model.errors import InputError
from psmkit.plugins import drive as driver
from psmkit.plugins.abi import spoken
from psmkit.plugins.drive_checks import CHECKS
from tests.plugins import drive_libraries
from tests.plugins.build import build, table

PSM = Path(cuda.__file__).parents[1] / "psm" / "lib" / "libnccl-net-psm.so"


@pytest.mark.parametrize("backend", ["socket", "shm"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_our_own_plugin_holds_the_contract_in_every_version(backend: str, ranks: int) -> None:
    versions = driver.VERSIONS if ranks == 2 else (12, 8, 4)
    settings = {"PSM_NET": backend, "PSM_NET_COLLNET": "1"}
    done = driver.drive(PSM, ranks=ranks, versions=versions, environment=settings, timeout=90)
    assert drive_libraries.failures(done) == []
    assert done.clean
    assert sum(result.outcome == "passed" for result in done.results) > 20 * len(versions)


def test_our_own_plugin_holds_it_in_front_of_another(tmp_path: Path) -> None:
    other = drive_libraries.plugin(tmp_path)
    settings = {"PSM_NET": f"chain:{other}", "DEVICES": "3", "PSM_NET_MERGE": "1", "PSM_NET_COLLNET": "1"}
    done = driver.drive(PSM, versions=(12, 9, 4), environment=settings, timeout=90)
    assert drive_libraries.failures(done) == []
    merged = {result.version: result.text for result in done.results if result.check == "vdevice"}
    assert merged[12] == merged[9] == "lo+lo: 20000 Mbit/s"


def test_the_program_has_the_checks_that_are_described() -> None:
    said = subprocess.run([driver.program(), "--list"], capture_output=True, text=True, check=True).stdout
    assert [line.split() for line in said.splitlines()] == [[c.name, str(c.since)] for c in CHECKS]


def test_every_check_has_a_text_a_source_and_a_next_step() -> None:
    names = [c.name for c in CHECKS]
    assert len(set(names)) == len(names)
    for c in CHECKS:
        assert c.text.endswith(".") and c.next_step.endswith(".") and c.source
        assert c.needs is None or names.index(c.needs) < names.index(c.name)


def test_every_kind_of_failure_has_a_code() -> None:
    assert set(driver._CODES) == set(driver._FIRST)
    assert all(code in CODES for code in driver._CODES.values())


def test_the_newest_version_is_driven_unless_another_is_asked_for() -> None:
    assert driver.versions_of(PSM) == driver.VERSIONS
    assert driver.drive(PSM, only=("load",)).versions == driver.VERSIONS[:1]


def test_a_terminal_sees_which_check_runs() -> None:
    command = [sys.executable, "-m", "psmkit", "plugin", "drive", str(PSM), "--version", "8", "--only", "devices"]
    text, status = pexpect.run(" ".join(command), timeout=120, withexitstatus=True, encoding="utf-8")
    assert status == 0, text
    assert text.startswith("\rv8: "), text


def test_the_table_and_the_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plugin", "drive", str(PSM), "--version", "9,8", "--only", "message", "--only", "hint"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith("green: libnccl-net-psm.so\nnet v9, v8; 2 ranks; 11 passed, 0 failed, 1 skipped\n")
    assert "hint with v8: from version 9 on" in text
    assert main([*arguments, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["clean"], data["versions"]) == ("psmkit.plugin-drive/1", True, [9, 8])
    assert [(r["check"], r["version"], r["outcome"]) for r in data["results"]][-2:] == [
        ("message", 8, "passed"),
        ("hint", 8, "skipped"),
    ]


def test_a_finding_sets_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Functions that all answer success and do nothing: there is no device.
    library = build(tmp_path, table("ncclNetPlugin_v8"))
    assert main(["plugin", "drive", str(library), "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [f["code"] for f in data["findings"]] == ["PSM911"]
    assert data["results"][-1]["outcome"] == "skipped"
    assert main(["plugin", "drive", str(library)]) == 1
    assert "error PSM911 devices (v8): devices reports -1 devices" in capsys.readouterr().out


def test_what_cannot_be_driven_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = build(tmp_path / "env", table("ncclEnvPlugin_v1"))
    v8 = build(tmp_path / "v8", table("ncclNetPlugin_v8"))
    text = tmp_path / "text.so"
    text.write_text("no library\n")
    dies = build(tmp_path / "dies", "#include <stdlib.h>\n__attribute__((constructor)) void now(void) { abort(); }\n")
    for arguments, complaint in (
        ([tmp_path / "none.so"], "no such file"),
        ([text], "`psmkit plugin check` says more"),
        ([text], f"psmkit: {text}: file too short; "),
        ([other], f"no table of a net plugin, v4 to v{driver.VERSIONS[0]}; it has env v1"),
        ([v8, "--kind", "tuner"], f"{v8}: no tuner table; it has net v8"),
        ([v8, "--kind", "profiler"], f"{v8}: no table of a profiler, v1 to v{spoken('profiler')[0]}; it has net v8"),
        ([dies], "ended by signal 6"),
        ([v8, "--version", "12"], "no ncclNetPlugin_v12; it has v8"),
        ([v8, "--version", "3"], f"a net plugin has versions 4 to {driver.VERSIONS[0]}"),
        ([v8, "--only", "speed"], "expected one of load, init"),
        ([v8, "--env", "PSM_NET"], "expected NAME=VALUE"),
        ([], "Missing argument"),
    ):
        assert main(["plugin", "drive", *map(str, arguments)]) == 2
        assert complaint in capsys.readouterr().err


def test_checks_that_a_failure_leaves_out_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A table without functions fails one check, and the forty after it say nothing."""
    names = [check.name for check in CHECKS]
    results = [driver.Result(names[0], 8, "passed"), driver.Result(names[1], 8, "failed", "x is NULL", "contract")]
    results += [driver.Result(name, 8, "skipped", f"needs {names[1]}, which failed") for name in names[2:-1]]
    results.append(driver.Result(names[-1], 8, "skipped", "this version has none"))
    done = driver.Drive(Path("libnccl-net-mine.so"), 2, (8,), tuple(results), ())
    plugin_drive._present(done, "net v8; 2 ranks", CHECKS, "text")
    shown = capsys.readouterr().out.split("\n\n")
    table, skipped = shown[1], " ".join(shown[2].split())
    assert [line.split()[0] for line in table.splitlines()] == ["check", names[0], names[1], names[-1]]
    assert skipped == (
        f"skipped {', '.join(names[2:8])} and {len(names) - 9} more with v8: needs {names[1]}, which failed"
    )


def test_the_checks_are_listed_without_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "drive", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{c.name}" in f"\n{text}" for c in CHECKS)
    assert main(["plugin", "drive", "--list", "--format", "json"]) == 0
    assert [row["check"] for row in json.loads(capsys.readouterr().out)] == [c.name for c in CHECKS]


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PSM_DIR", str(tmp_path))
    with pytest.raises(cuda.LabError, match=r"no .*psm_net_drive; "):
        driver.drive(PSM)
    with pytest.raises(InputError, match="no such file"):
        driver.versions_of(tmp_path / "none")
