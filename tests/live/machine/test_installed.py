"""Which NCCL would be loaded on a machine that is made up, and which plugins it would find."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from psmkit.cli.config import tree
from psmkit.live import machine as room
from psmkit.live.machine import Check, Machine
from psmkit.live.machine.libraries import Loader
from psmkit.plugins.installed import checks
from tests.cli.conftest import Result, psmkit_cli
from tests.live.machine.roots import bad, cache, machine, nccl, of

__all__ = ["psmkit_cli"]

SYSTEM = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"


def found(root: Path, files: Mapping[str, str | bytes | None], **environ: str) -> list[Check]:
    return list(checks(machine(root, files, environ)))


def test_machine_without_nccl_is_no_problem(tmp_path: Path) -> None:
    (only,) = found(tmp_path, {})
    assert (only.level, only.name) == ("note", "library")


def test_library_of_the_loaders_cache_is_found(tmp_path: Path) -> None:
    files = {
        "/opt/nccl/libnccl.so.2": nccl("2.27.5+cuda12.9"),
        "/etc/ld.so.cache": cache({"libnccl.so.2": "/opt/nccl/libnccl.so.2"}),
    }
    library = of(found(tmp_path, files), "library")
    assert library.seen == "programs linked to it: NCCL 2.27.5, CUDA 12.9: /opt/nccl/libnccl.so.2"


@pytest.mark.parametrize(
    ("cuda", "driver", "level"), [("13.0", "570.10", "warning"), ("13.0", "580.65.06", ""), ("12.9", "525.60.13", "")]
)
def test_library_for_a_cuda_that_the_driver_does_not_know_is_told(
    tmp_path: Path, cuda: str, driver: str, level: str
) -> None:
    module = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue Mar  5 22:23:56 UTC 2024\n"
    result = found(tmp_path, {SYSTEM: nccl(f"2.28.3+cuda{cuda}"), "/proc/driver/nvidia/version": module})
    assert bad(result) == ({"driver": level} if level else {})


def test_two_libraries_on_the_path_are_told_in_their_order(tmp_path: Path) -> None:
    files = {"/opt/new/libnccl.so.2": nccl("2.27.5+cuda12.9"), SYSTEM: nccl("2.21.5+cuda12.4")}
    result = found(tmp_path, files, LD_LIBRARY_PATH="/opt/old:/opt/new")
    assert of(result, "library").seen.endswith("/opt/new/libnccl.so.2")
    more = of(result, "one more")
    assert more.level == "warning" and "2.21.5" in more.seen and SYSTEM in more.seen
    assert "starts without this LD_LIBRARY_PATH" in more.why
    same = {"/opt/new/libnccl.so.2": nccl("2.27.5+cuda12.9"), SYSTEM: nccl("2.27.5+cuda12.9")}
    assert bad(found(tmp_path / "same", same, LD_LIBRARY_PATH="/opt/new")) == {}


def test_relative_folder_of_the_path_is_one_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libnccl.so.2").write_bytes(nccl("2.27.5+cuda12.9"))
    monkeypatch.chdir(tmp_path)
    loader = Loader(Machine(environ={"LD_LIBRARY_PATH": "lib:"}))
    assert loader.path == [str(tmp_path / "lib"), str(tmp_path)]
    assert loader.find_all("libnccl.so.2")[0] == str(tmp_path / "lib/libnccl.so.2")
    assert loader.find_all("lib/libnccl.so.2") == [str(tmp_path / "lib/libnccl.so.2")]


def test_preloaded_library_wins(tmp_path: Path) -> None:
    files = {"/opt/libnccl.so.2": nccl("2.27.5+cuda12.9"), SYSTEM: nccl("2.21.5+cuda12.4")}
    result = found(tmp_path, files, LD_PRELOAD="libother.so:/opt/libnccl.so.2")
    assert of(result, "library").seen.startswith("every program (LD_PRELOAD): NCCL 2.27.5")


def test_library_of_a_wheel_is_found(tmp_path: Path) -> None:
    files = {"/python/nvidia/nccl/lib/libnccl.so.2": nccl("2.27.5+cuda12.9")}
    assert "2.27.5" in of(found(tmp_path, files), "one more").seen


def test_library_of_a_wheel_beside_that_of_the_system_is_a_note(tmp_path: Path) -> None:
    files = {"/python/nvidia/nccl/lib/libnccl.so.2": nccl("2.27.5+cuda12.9"), SYSTEM: nccl("2.21.5+cuda12.4")}
    result = found(tmp_path, files)
    assert bad(result) == {} and of(result, "one more").level == "note"


def test_variable_that_this_release_does_not_read_is_told(tmp_path: Path) -> None:
    result = found(
        tmp_path, {SYSTEM: nccl("2.21.5+cuda12.4")}, NCCL_RAS_ENABLE="1", NCCL_PROXY_PROFILE="x", NCCL_ALGO="Ring"
    )
    assert of(result, "idle settings").seen == "NCCL_RAS_ENABLE (since 2.24.3)"
    result = found(tmp_path, {SYSTEM: nccl("2.27.5+cuda12.4")}, NCCL_PROXY_PROFILE="x")
    assert of(result, "idle settings").seen == "NCCL_PROXY_PROFILE (up to 2.22.3)"


def test_library_of_pytorch_is_found_by_its_run_path(tmp_path: Path) -> None:
    """DT_RUNPATH comes after LD_LIBRARY_PATH, DT_RPATH before it."""
    lib = tmp_path / "python/torch/lib"
    lib.mkdir(parents=True)
    (tmp_path / "empty.c").touch()
    stub = ["cc", "-shared", tmp_path / "empty.c"]
    subprocess.run([*stub, "-Wl,-soname,libnccl.so.2", "-o", tmp_path / "libnccl.so.2"], check=True)
    for tags, version in (("--enable-new-dtags", "2.21.5"), ("--disable-new-dtags", "2.27.5")):
        link = [
            "-Wl,--no-as-needed",
            str(tmp_path / "libnccl.so.2"),
            f"-Wl,{tags},-rpath,$ORIGIN/../../nvidia/nccl/lib",
        ]
        subprocess.run([*stub, *link, "-o", lib / "libtorch_cuda.so"], check=True)
        files = {
            "/python/nvidia/nccl/lib/libnccl.so.2": nccl("2.27.5+cuda12.9"),
            "/opt/libnccl.so.2": nccl("2.21.5+cuda12.4"),
        }
        first = found(tmp_path, files, LD_LIBRARY_PATH="/opt")[0]
        assert first.seen.startswith(f"PyTorch of this Python: NCCL {version}, ")


def plugins(root: Path, copies: Mapping[str, str], **environ: str) -> list[Check]:
    """psmkit's own plugins under other names, for NCCL 2.27.5."""
    folder = root / "opt/plugins"
    folder.mkdir(parents=True)
    for name, own in copies.items():
        shutil.copy(tree() / "lib" / f"libnccl-{own}-psm.so", folder / name)
    files = {SYSTEM: nccl("2.27.5+cuda12.9")}
    return found(root, files, LD_LIBRARY_PATH="/opt/plugins", **environ)


def test_plugins_are_found_as_this_release_finds_them(tmp_path: Path) -> None:
    copies = {"libnccl-net.so": "net", "libnccl-tuner-mine.so": "tuner", "libnccl-profiler-other.so": "profiler"}
    result = plugins(tmp_path, copies, NCCL_TUNER_PLUGIN="mine", NCCL_NET="psm")
    assert bad(result) == {}
    assert of(result, "net plugin").seen == "NCCL_NET_PLUGIN not set: /opt/plugins/libnccl-net.so, net v10 'PSM'"
    assert "/opt/plugins/libnccl-tuner-mine.so, tuner v4" in of(result, "tuner plugin").seen
    assert "profiler" in of(result, "plugins").seen  # nothing asks for that one


def test_wrong_plugin_is_told(tmp_path: Path) -> None:
    result = plugins(tmp_path, {"libnccl-net.so": "profiler"})
    wrong = of(result, "net plugin")
    assert wrong.level == "warning" and "has profiler v" in wrong.seen and "looks for ncclNetPlugin_v10" in wrong.why
    assert wrong.do == "psmkit plugin check /opt/plugins/libnccl-net.so --nccl 2.27.5"


def test_plugin_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = plugins(
        tmp_path, {"libnccl-net-x.so": "net"}, NCCL_NET_PLUGIN="x", NCCL_TUNER_PLUGIN="gone", NCCL_NET="mine"
    )
    assert bad(result) == {"tuner plugin": "warning", "NCCL_NET": "warning"}
    assert "libnccl-tuner-gone.so" in of(result, "tuner plugin").why
    assert of(result, "NCCL_NET").seen == "mine; there is IB, Socket, PSM"


def test_plugin_that_is_no_library_is_told(tmp_path: Path) -> None:
    (tmp_path / "opt/plugins").mkdir(parents=True)
    (tmp_path / "opt/plugins/libnccl-net.so").write_text("INPUT(libother.so)")
    files = {SYSTEM: nccl("2.27.5+cuda12.9")}
    result = found(tmp_path, files, LD_LIBRARY_PATH="/opt/plugins")
    assert of(result, "net plugin").level == "warning"


def test_without_pyelftools_a_plugin_is_named_and_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elftools", None)
    result = plugins(tmp_path, {"libnccl-net.so": "profiler"})
    assert bad(result) == {} and of(result, "pyelftools").level == "note"
    assert of(result, "net plugin").seen == "NCCL_NET_PLUGIN not set: /opt/plugins/libnccl-net.so"


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, psmkit_cli: Callable[..., Result]) -> Callable[..., Result]:
    def run(*args: str, files: Mapping[str, str | bytes | None] | None = None, **environ: str) -> Result:
        monkeypatch.setattr(room, "Machine", lambda: machine(tmp_path, files, environ))
        return psmkit_cli("doctor", *args)

    return run


def test_status_says_how_bad_it_is(doctor: Callable[..., Result]) -> None:
    fine = doctor()
    assert fine.status == 0 and fine.out.startswith("no problem found: ")
    warned = doctor(NCCL_DEBG="INFO")
    assert warned.status == 1 and warned.out.startswith("usable, with warnings: 1 warning, ")
    broken = doctor(NCCL_SOCKET_IFNAME="ens5")
    assert broken.status == 2 and broken.out.startswith("NCCL cannot run here as it is: 1 error, ")


def test_problems_only_and_json(doctor: Callable[..., Result]) -> None:
    text = doctor("--problems", NCCL_DEBG="INFO").out
    assert "NCCL_DEBG" in text and "gdb" not in text and "do: unset NCCL_DEBG" in text
    data = json.loads(doctor("--format", "json", NCCL_DEBG="\x1b[31m\udcff").out)
    assert data["schema"] == "psmkit.doctor/1" and data["counts"]["warning"] == 1
    assert {"area", "name", "level", "seen", "why", "do"} == set(data["checks"][0])


def test_hostile_values_are_shown_escaped(doctor: Callable[..., Result]) -> None:
    out = doctor(NCCL_ALGO="\x1b[31mred\n").out
    assert "\x1b" not in out and "\\x1b[31mred" in out
