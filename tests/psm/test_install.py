"""Programs outside the tree are compiled against the installed libpsm, in the ways its users have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.cli.config import tree
from tests.csrc.base import compiled

PROGRAM = """
#include <psm/psm_launch.h>
#include <psm/psm_segment.h>
#include <stdio.h>

int main(void)
{
    struct psm_settings settings;
    size_t count = 0;
    settings.size = sizeof settings;
    psm_status status = psm_settings_read(&settings);
    if (status == PSM_OK) status = psm_segments_list(NULL, 0, &count);
    printf("%d %s %u\\n", psm_version(), psm_status_name(status), settings.steps);
    settings.size = 0;
    status = psm_settings_read(&settings);
    printf("%s: %s\\n", psm_status_name(status), psm_last_error()->text);
    return psm_version() != PSM_VERSION_MAJOR * 1000 + PSM_VERSION_MINOR;
}
"""
VERSION = 2  # PSM_VERSION_MAJOR * 1000 + PSM_VERSION_MINOR


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, cwd=cwd, timeout=120, env=compiled.environment(**env)
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def expect_it_runs(program: Path, folder: Path) -> None:
    first, second = run(program, cwd=folder, PSM_STEPS="32", PSM_SHM_DIR=str(folder)).splitlines()
    assert first == f"{VERSION} PSM_OK 32"
    assert second.startswith("PSM_ERR_INVALID: psm_settings_read") and "sizeof(struct psm_settings)" in second


@pytest.mark.parametrize(("suffix", "compiler", "standard"), [("c", "cc", "c11"), ("cc", "c++", "c++11")])
def test_a_program_is_compiled_by_pkg_config(
    installed: Path, tmp_path: Path, suffix: str, compiler: str, standard: str
) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config here")
    source = tmp_path / f"x.{suffix}"
    source.write_text(PROGRAM)
    options = run(
        "pkg-config", "--cflags", "--libs", "psm", cwd=tmp_path, PKG_CONFIG_PATH=str(installed / "lib" / "pkgconfig")
    ).split()
    assert all(str(tree()) not in option for option in options)
    run(
        compiler,
        f"-std={standard}",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        source,
        *options,
        "-o",
        "x",
        cwd=tmp_path,
    )
    expect_it_runs(tmp_path / "x", tmp_path)


def test_a_program_is_compiled_by_cmake(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(x C)\nfind_package(psm 0.2 REQUIRED)\n"
        "add_executable(x x.c)\ntarget_link_libraries(x psm::psm)\n"
    )
    run("cmake", "-S", ".", "-B", "build", f"-Dpsm_DIR={installed / 'lib' / 'cmake' / 'psm'}", cwd=tmp_path)
    run("cmake", "--build", "build", cwd=tmp_path)
    expect_it_runs(tmp_path / "build" / "x", tmp_path)


def test_psmkit_config_says_where_it_is(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text(PROGRAM)

    def config(option: str) -> str:
        return run(
            sys.executable, "-m", "psmkit", "config", option, cwd=Path(__file__).parents[2], PSM_DIR=str(installed)
        ).strip()

    assert config("--prefix") == str(installed)
    assert os.path.exists(f"{config('--pkg-config')}/psm.pc") and os.path.exists(f"{config('--cmake')}/psmConfig.cmake")
    run(compiled.compiler(), "x.c", *config("--cflags").split(), *config("--libs").split(), "-o", "x", cwd=tmp_path)
    expect_it_runs(tmp_path / "x", tmp_path)


def test_psmkit_config_says_what_to_do_where_there_is_none(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "psmkit", "config"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
        env=compiled.environment(PSM_DIR=str(tmp_path)),
    )
    assert done.returncode == 2 and str(tmp_path) in done.stderr and "make setup" in done.stderr
