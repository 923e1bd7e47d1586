"""``psmkit plugin check`` as a user sees it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.model import CODES
from psmkit.plugins import all_releases
from psmkit.plugins.abi import nccl_releases
from tests.cli.conftest import Result
from tests.plugins import drive_libraries
from tests.plugins.build import HEAD, all_tables, build, table, unknown

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net plugin for all releases from 2.8 on."""
    source = "".join(table(f"ncclNetPlugin_v{n}") for n in range(4, 13)) + table("ncclCollNetPlugin_v8")
    return build(tmp_path_factory.mktemp("plugin"), source)


def test_a_good_plugin_is_told_in_one_page_and_exits_with_0(psmkit_cli: Cli, plugin: Path) -> None:
    result = psmkit_cli("plugin", "check", plugin)
    assert result.status == 0 and not result.err
    lines = result.out.splitlines()
    assert lines[0] == "nothing wrong: libnccl-net-psm.so"
    assert "a process on this machine loaded it" in lines[1]
    assert f"loaded by NCCL 2.11.4 - {nccl_releases()[-1]}, RCCL 2.21.5" in result.out
    row = next(line for line in lines if line.strip().startswith("NCCL 2.26.2 - 2.27.7"))
    assert row.split() == "NCCL 2.26.2 - 2.27.7 net v10, collnet v8 NCCL_NET_PLUGIN=psm".split()
    # Before the variable, only the default name was opened.
    assert any("NCCL 2.8.3 - 2.10.3" in line and "it has another name" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_a_library_with_tables_of_two_kinds_needs_one_variable(psmkit_cli: Cli, tmp_path: Path) -> None:
    library = build(tmp_path, table("ncclNetPlugin_v12") + table("ncclRmaPlugin_v14"))
    lines = psmkit_cli("plugin", "check", library).out.splitlines()
    row = next(line for line in lines if line.strip().startswith("NCCL 2.30.7"))
    assert row.split()[-5:] == "net v12, rma v14 NCCL_NET_PLUGIN=psm".split()


@pytest.mark.parametrize(
    ("empty", "words"),
    [((), "complete"), (("isend",), "1 required slot is NULL"), (("isend", "irecv"), "2 required slots are NULL")],
)
def test_slots_that_are_null_are_counted(psmkit_cli: Cli, tmp_path: Path, empty: tuple[str, ...], words: str) -> None:
    library = build(tmp_path, table("ncclNetPlugin_v8", leave_out=empty))
    assert words in psmkit_cli("plugin", "check", library).out


def test_a_release_that_is_asked_about_gets_its_rules(psmkit_cli: Cli, plugin: Path) -> None:
    result = psmkit_cli("plugin", "check", plugin, "--nccl", "2.27.5", "--nccl", "v2.19.3-1")
    assert result.status == 0
    assert "NCCL 2.27.5 takes net v10, collnet v8" in result.out and "NCCL 2.19.3 takes net v7" in result.out
    rows = [line.split("  ") for line in result.out.splitlines()]
    found = {row[1]: row[-1].strip() for row in rows if len(row) > 2 and row[1].startswith("NCCL_NET_PLUGIN")}
    assert found["NCCL_NET_PLUGIN=psm"] == "this library"
    assert found["NCCL_NET_PLUGIN=STATIC_PLUGIN"] == "-" and found['NCCL_NET_PLUGIN=""'] == "-"


def test_a_release_that_does_not_take_it_is_a_finding(psmkit_cli: Cli, plugin: Path) -> None:
    result = psmkit_cli("plugin", "check", plugin, "--nccl", "2.4.2")
    assert result.status == 1
    assert "error PSM906 NCCL 2.4.2 finds no table of the plugin" in result.out
    assert "looks for net v2; collnet in no version." in result.out
    assert "NCCL_NET_PLUGIN=none" not in result.out  # which is no variable there
    assert "Add a table of a version" in result.out and "Set the variable" not in result.out
    # RCCL's own names come before 2.21.5.
    result = psmkit_cli("plugin", "check", plugin, "--rccl", "2.20.5")
    assert result.status == 1 and "error PSM906 RCCL 2.20.5 does not find the library" in result.out
    assert "librccl-net.so" in result.out


def test_settings_are_judged(psmkit_cli: Cli, plugin: Path) -> None:
    def status(*settings: str) -> int:
        return psmkit_cli("plugin", "check", plugin, "--nccl", "2.27.5", *(f"--env={one}" for one in settings)).status

    assert status("NCCL_NET_PLUGIN=psm") == 0
    assert status("NCCL_NET_PLUGIN=other,psm") == 0
    assert status(f"NCCL_NET_PLUGIN={plugin}") == 0
    assert status("NCCL_NET_PLUGIN=PSM") == 1  # a file name, whose letters count
    assert status("NCCL_NET_PLUGIN=STATIC_PLUGIN") == 1
    assert status("NCCL_NET=psm") == 1  # no name of a library
    assert status("NCCL_NET_PLUGIN=psm", "NCCL_NET=Psm") == 0  # a name in the table, whose letters do not
    assert status("NCCL_NET_PLUGIN=psm", "NCCL_NET=libnccl-net-psm.so") == 1


def test_json_holds_all_of_it(psmkit_cli: Cli, plugin: Path) -> None:
    result = psmkit_cli("plugin", "check", plugin, "--format", "json")
    data = json.loads(result.out)
    assert result.status == 0 and data["schema"] == "psmkit.plugin-check/1" and data["clean"] and data["loaded"]
    assert data["library"] == str(plugin) and data["machine"]
    assert [one["symbol"] for one in data["tables"] if one["kind"] == "net"] == [
        f"ncclNetPlugin_v{n}" for n in range(12, 3, -1)
    ]
    assert {one["name"] for one in data["tables"]} == {"psm"}
    assert len(data["releases"]) == len(all_releases())
    one = next(r for r in data["releases"] if (r["vendor"], r["release"]) == ("NCCL", "2.21.5"))
    assert one["takes"] == {"net": 8, "collnet": 8}
    assert one["settings"]["net"][0] == {"variable": "NCCL_NET_PLUGIN", "value": "psm"}
    asked = json.loads(psmkit_cli("plugin", "check", plugin, "--format", "json", "--nccl", "2.30.7").out)
    (release,) = asked["releases"]
    assert any(row["value"] == "psm" and row["finds"] for row in release["lookup"])


def test_findings_are_of_the_one_kind(psmkit_cli: Cli, tmp_path: Path) -> None:
    library = build(tmp_path, table("ncclNetPlugin_v8", ("isend", "test")))
    result = psmkit_cli("plugin", "check", library, "--format", "json")
    data = json.loads(result.out)
    (finding,) = data["findings"]
    assert result.status == 1 and not data["clean"]
    assert finding["code"] in CODES and finding["severity"] == "error" and finding["next_step"]
    assert data["tables"][0]["null"] == ["isend", "test"]
    text = psmkit_cli("plugin", "check", library).out
    assert (
        text.startswith("1 error: libnccl-net-psm.so\n")
        and "error PSM903 ncclNetPlugin_v8: isend and test are NULL" in text
    )


def test_a_note_alone_is_no_failure(psmkit_cli: Cli, tmp_path: Path) -> None:
    symbol = unknown("ncclProfiler")
    library = build(
        tmp_path, all_tables("profiler") + f"const void *const {symbol}[9] = {{0}};\n", "libnccl-profiler.so"
    )
    result = psmkit_cli("plugin", "check", library)
    assert result.status == 0 and f"note PSM907 {symbol} is known by name only" in result.out
    assert "profiler v7" in result.out


def test_what_no_loader_takes_is_a_finding_and_what_cannot_be_read_an_error(psmkit_cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "libnccl-net.so"
    text.write_text("not a library")
    result = psmkit_cli("plugin", "check", text)
    assert result.status == 1 and "not an ELF file" in result.out and "no release can load it" in result.out
    assert psmkit_cli("plugin", "check", tmp_path / "missing.so").status == 2
    assert psmkit_cli("plugin", "check", tmp_path).status == 2
    assert psmkit_cli("plugin", "check", text, "--nccl", "newest").status == 2
    assert psmkit_cli("plugin", "check", text, "--env", "NCCL_DEBUG=INFO").status == 2
    assert psmkit_cli("plugin", "unknown").status == 2


HOSTILE = "\\033]0;title\\007\\033[31mred\\r\\n\\xe2\\x80\\xae"


def test_hostile_names_are_written_out(psmkit_cli: Cli, tmp_path: Path) -> None:
    escaping = "plugin-\x1b[31m\n\u202e"
    build(
        tmp_path,
        "int helper(void);\nint helper(void) { return 0; }\n",
        "libneeded.so",
        f"-Wl,-soname,{escaping}",
        head="",
    )
    source = (
        table("ncclNetPlugin_v8", name=HOSTILE)
        + "extern int helper(void);\nint use(void);\nint use(void) { return helper(); }\n"
    )
    source += '__asm__(".globl \\"strange\\\\033[31m\\"\\n.set \\"strange\\\\033[31m\\", 0x1234\\n");\nextern int missing(void);\nint more(void) { return missing(); }\n'
    built = build(tmp_path, source, "libplugin.so", str(tmp_path / "libneeded.so"))
    library = tmp_path / f"libnccl-net-{escaping}.so"
    os.rename(built, library)
    for arguments in ((), ("--format", "json"), ("--nccl", "2.27.5"), ("--no-load",)):
        result = psmkit_cli("plugin", "check", library, *arguments)
        assert result.status == (0 if "--no-load" in arguments else 1)
        assert not set(result.out) & {"\x1b", "\x07", "\r", "\u202e", "\x00"}
    assert "\\x1b]0;title" in psmkit_cli("plugin", "check", library).out


def test_no_code_of_the_library_runs_with_no_load(
    psmkit_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = tmp_path / "witness"
    monkeypatch.setenv("PSM_TEST_WITNESS", str(witness))
    head = "#include <fcntl.h>\n#include <stdlib.h>\n" + HEAD
    start = '__attribute__((constructor)) static void start(void) { creat(getenv("PSM_TEST_WITNESS"), 0600); }\n'
    library = build(tmp_path, table("ncclNetPlugin_v8") + start, head=head)
    result = psmkit_cli("plugin", "check", library, "--no-load")
    assert result.status == 0 and "it was not loaded" in result.out and not witness.exists()
    assert psmkit_cli("plugin", "check", library).status == 0 and witness.exists()


def test_help_names_the_command(psmkit_cli: Cli) -> None:
    assert "plugin" in psmkit_cli("--help").out
    assert "check" in psmkit_cli("plugin", "--help").out


def test_a_profiler_that_a_release_does_not_take_is_looked_up_as_a_profiler(psmkit_cli: Cli, tmp_path: Path) -> None:
    library = drive_libraries.profiler(tmp_path).rename(tmp_path / "libmine.so")
    result = psmkit_cli("plugin", "check", library, "--nccl", "2.18.5")
    assert result.status == 1
    assert "NCCL 2.18.5 looks for profiler in no version" in result.out
    assert "NCCL_PROFILER_PLUGIN not set" in result.out and "NCCL_NET_PLUGIN" not in result.out
