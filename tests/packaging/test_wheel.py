"""The wheel works where there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests" / "data" / "logs" / "passsm-8gpu.log"

pytestmark = pytest.mark.slow


def run(*command: str | Path, **kwargs: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=900, **kwargs)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # All is compiled once more for it: unoptimized, which takes much less time and makes no difference here.
    quick = [f"--config-settings=cmake.define.CMAKE_{language}_FLAGS_RELEASE=-O0" for language in ("C", "CXX")]
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation", "--no-deps",
        f"--config-settings=build-dir={folder / 'build'}", *quick, "--wheel-dir", folder, ROOT,
    )  # fmt: skip
    (found,) = folder.glob("psmkit-*.whl")
    return found


def test_wheel_holds_catalogue_and_scanner_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for module in ("_logscan", "_psm", "_telemetry"):
        assert any(n.startswith(f"psmkit/_native/{module}") and n.endswith(".so") for n in names)
    assert {Path(n).name for n in names if n.endswith(".toml")} == {
        p.name for p in (ROOT / "psmkit" / "catalogue").glob("*.toml")
    }
    assert "psmkit/py.typed" in names
    assert not [n for n in names if n.startswith(("tests/", "csrc/", "benchmarks/")) or n.endswith(".c")]


def test_wheel_holds_the_emulated_cuda(wheel: Path) -> None:
    inside = {n.removeprefix("psmkit/lab/hostcuda/") for n in zipfile.ZipFile(wheel).namelist() if "/hostcuda/" in n}
    libraries = {"libcudart.so.12", "libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1", "libpsm_hostcuda.so"}
    assert libraries | {"api.def", "types.h", "face_cudart13.py"} <= inside


def test_a_program_is_compiled_against_the_libpsm_of_a_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path, [n for n in archive.namelist() if n.startswith("psmkit/psm/")])
    (tmp_path / "x.c").write_text(
        "#include <psm/psm.h>\n#include <stdio.h>\nint main(void) { return puts(psm_status_name(PSM_ERR_TIMEOUT)) < 0; }\n"
    )
    env = {**os.environ, "PKG_CONFIG_PATH": str(tmp_path / "psmkit" / "psm" / "lib" / "pkgconfig")}
    options = run("pkg-config", "--cflags", "--libs", "psm", env=env).split()
    run("cc", "x.c", *options, "-o", "x", cwd=tmp_path)
    assert run(tmp_path / "x") == "PSM_ERR_TIMEOUT\n"


def test_installed_wheel_analyses_a_log_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # An empty PATH: neither gcc nor cmake can be found, so nothing can be built. pip may take wheels only.
    bare = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PSM_"))},
        "PATH": str(tmp_path / "nothing"),
    }
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        wheel,
        env=bare,
        cwd=tmp_path,
    )
    out = run(tmp_path / "venv" / "bin" / "psmkit", "analyze", LOG, env=bare, cwd=tmp_path)
    assert out.startswith("inconclusive")
    code = "from psmkit.lab.cuda import Face; rt = Face('cudart13'); n = rt.new('int *'); rt.ok.cudaGetDeviceCount(n); print(n[0])"
    bare["PSM_HOSTCUDA_BANNER"] = "0"
    assert run(python, "-c", code, env=bare, cwd=tmp_path) == "8\n"
    # The module of libpsm finds the library of the wheel.
    listed = run(tmp_path / "venv" / "bin" / "psmkit", "variants", env=bare, cwd=tmp_path)
    assert any(line.startswith("whole-struct ") for line in listed.splitlines())
    where = "import psmkit.proxy; print(*{l.split()[-1] for l in open('/proc/self/maps') if 'libpsm' in l})"
    assert Path(run(python, "-c", where, env=bare, cwd=tmp_path).strip()).is_relative_to(tmp_path / "venv")
