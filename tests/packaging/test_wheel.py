"""The wheel works where there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from psmkit.cli.app import cli

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests" / "data" / "logs" / "passsm-8gpu.log"
CALLS = ROOT / "examples" / "reproduce" / "forgotten-recv.log"

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
    every = zipfile.ZipFile(wheel).namelist()
    names = [name for name in every if not name.startswith("psmkit/examples/")]
    for module in ("_logscan", "_psm", "_telemetry"):
        assert any(n.startswith(f"psmkit/_native/{module}") and n.endswith(".so") for n in names)
    assert {Path(n).name for n in names if n.endswith(".toml")} == {p.name for p in (ROOT / "psmkit").rglob("*.toml")}
    assert "psmkit/py.typed" in names
    assert sum(n.startswith("psmkit/catalogue/built/catalogue-") for n in names) == 2
    glue = "psmkit/nccl/csrc/"  # compiled on the user's machine, against the user's tree
    assert not [n for n in names if n.startswith(("tests/", "csrc/", "benchmarks/"))]
    assert not [n for n in names if n.endswith(".c") and not n.startswith(glue)]
    assert {n.removeprefix(glue) for n in names if n.startswith(f"{glue}nccl/")} == {
        str(path.relative_to(ROOT / "csrc"))
        for path in (ROOT / "csrc" / "nccl").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {f"{glue}base/log.c", f"{glue}base/log.h", f"{glue}hostcuda/include/psm_hostcuda.h"} <= set(names)
    assert {"psmkit/nvcc/psm_nvcc.h", "psmkit/psm/include/psm/plan_trace.h"} <= set(names)


def test_wheel_holds_the_examples_and_task_files(wheel: Path) -> None:
    inside = {n.removeprefix("psmkit/examples/") for n in zipfile.ZipFile(wheel).namelist() if "/examples/" in n}
    tree = ROOT / "examples"
    files = {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert files <= inside and {"my_transport.py", "my_transport.c", "plans/right.tasks"} <= files
    assert all(name in files or name.startswith("logs/") for name in inside)


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


@dataclass(frozen=True)
class Installed:
    """A wheel with its dependencies and no extra, in an environment of its own."""

    folder: Path
    env: dict[str, str]

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def psmkit(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.python.with_name("psmkit")), *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.env, cwd=self.folder, timeout=300, check=False
        )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", folder / "venv")
    # An empty PATH: neither gcc nor cmake can be found, so nothing can be built. pip may take wheels only.
    bare = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PSM_"))},
        "PATH": str(folder / "nothing"),
        "PSM_RECORD_DIR": str(folder / "records"),
    }
    (folder / "records").mkdir(0o700)
    options = ("--quiet", "--disable-pip-version-check", "--only-binary=:all:")
    run(folder / "venv" / "bin" / "python", "-m", "pip", "install", *options, wheel, env=bare, cwd=folder)
    return Installed(folder, bare)


def test_installed_wheel_analyses_a_log_without_a_compiler(installed: Installed) -> None:
    done = installed.psmkit("analyze", LOG)
    assert done.stdout.startswith("inconclusive") and done.stderr == ""
    # the wheel has the entries of the catalogue as they are cached elsewhere: nothing is parsed
    code = "import sys; from psmkit.cli import main; main(); print('tomllib' in sys.modules)"
    home = {**installed.env, "XDG_CACHE_HOME": str(installed.folder / "cache")}
    assert run(installed.python, "-c", code, "analyze", LOG, env=home, cwd=installed.folder).endswith("False\n")
    assert not (installed.folder / "cache").exists()
    code = "from psmkit.lab.cuda import Face; rt = Face('cudart13'); n = rt.new('int *'); rt.ok.cudaGetDeviceCount(n); print(n[0])"
    env, folder = {**installed.env, "PSM_HOSTCUDA_BANNER": "0"}, installed.folder
    assert run(installed.python, "-c", code, env=env, cwd=folder) == "8\n"
    # The module of libpsm finds the library of the wheel.
    assert any(line.startswith("whole-struct ") for line in installed.psmkit("variants").stdout.splitlines())
    where = "import psmkit.proxy; print(*{l.split()[-1] for l in open('/proc/self/maps') if 'libpsm' in l})"
    assert Path(run(installed.python, "-c", where, env=env, cwd=folder).strip()).is_relative_to(folder / "venv")


# Each command of the command line: its arguments, and the statuses that it can end with where no extra is installed.
# {lib} is the folder of psmkit's libraries.
CLEAN, FOUND, MISSING = (0,), (0, 1), (2,)
BARE: dict[str, tuple[str, tuple[int, ...]]] = {
    "analyze": ("{log}", CLEAN),
    "ops": ("{log}", CLEAN),
    "mcp": ("{log}", MISSING),
    "export": ("{log} -o tables", MISSING),
    "query": ("{log} FROM(verdict)", MISSING),
    "report": ("{log} -o page.html", MISSING),
    "next": ("{log}", FOUND),
    "watch": ("{log} --for 0 --no-inspect", CLEAN),
    "scrub": ("{log} scrubbed", CLEAN),
    "record": ("-q -o recorded -- /bin/true", CLEAN),
    "inspect": ("1 --stacks none --no-python --no-state", (0, 1, 2)),  # what may be traced differs
    "diff": ("{log} {log}", CLEAN),
    "explain": ("PSM102", CLEAN),
    "codes": ("", CLEAN),
    "completion": ("bash", CLEAN),
    "catalogue": ("proxy", CLEAN),
    "config": ("--cflags", CLEAN),
    "records list": ("", CLEAN),
    "records show": ("records", CLEAN),
    "records prune": ("", CLEAN),
    "segments": ("", FOUND),
    "doctor": ("", (0, 1, 2)),
    "run": ("--sanitize handles -- /bin/true", CLEAN),
    "variants": ("", CLEAN),
    "conformance": ("split --only connect", CLEAN),
    "mutate": ("--only lost-copy split -- /bin/true", MISSING),  # it uses no transport
    "demo": ("", CLEAN),
    "plan simulate": ("--seed 1 --ranks 2", CLEAN),
    "plan rules": ("", CLEAN),
    "plan variants": ("", CLEAN),
    "plan lint": ("{log}", MISSING),
    "reproduce": ("{calls} -o case --no-lab", MISSING),
    "plan check": ("{log}", MISSING),  # it has no plans
    "plan model": ("", MISSING),  # spin and a compiler
    "plan what-if": ("{log} --ranks 64", MISSING),
    "audit contract": ("transport.c", MISSING),
    "audit structs": ("{lib}/libpsm.so", MISSING),
    "audit symbols": ("{lib}/libnccl-net-psm.so", MISSING),
    "plugin check": ("{lib}/libnccl-net-psm.so", MISSING),
    "plugin drive": ("{lib}/libnccl-net-psm.so", MISSING),
    "telemetry": ("--once", MISSING),
    "telemetry replay": ("{log}", MISSING),
    "telemetry mask": ("all default", MISSING),
    "telemetry metrics": ("", CLEAN),
    "telemetry dashboards": ("dashboards", CLEAN),
    "telemetry picture": ("{log}", MISSING),
    "tune check": ("{rules}", CLEAN),
    "tune why": ("--op allreduce --bytes 1M --ranks 8 --config {rules}", CLEAN),
    "tune compare": ("{rules} {rules}", CLEAN),
    "tune fit": ("{data}", MISSING),
    "tune export": ("{data}", MISSING),
    "tune plot": ("{data}", MISSING),
    "tune simulate": ("{data} --config {rules}", MISSING),
    "nccl prepare": ("{lib}", MISSING),  # no tree
    "nccl verify": ("{lib}/libpsm.so", MISSING),
    "top": ("--count 1", MISSING),
    "lab run": ("--out lab", CLEAN),
    "lab report": ("lab", CLEAN),
    "lab nccl": ("--lib {lib}/libpsm.so --out nccl", MISSING),
    "lab matrix": ("--nccl {lib}/libpsm.so --out matrix", MISSING),
    "lab topology": ("", CLEAN),
    "lab synth": ("--ranks 2", MISSING),
    "lab cuda-coverage": ("", CLEAN),
    "lab faults": ("", CLEAN),
}
#: What these name when they cannot work.
EXTRAS = {
    "mcp": "psmkit[mcp]",
    "audit contract": "psmkit[audit]",
    "audit structs": "psmkit[audit]",
    "audit symbols": "psmkit[lab]",
    "plugin check": "psmkit[lab]",
    "plugin drive": "psmkit[lab]",
    "lab nccl": "psmkit[lab]",
    "nccl verify": "psmkit[lab]",
    "lab synth": "psmkit[numpy]",
    "plan lint": "psmkit[numpy]",
    "plan what-if": "psmkit[numpy]",
    "report": "psmkit[numpy]",
    "reproduce": "psmkit[numpy]",
    "telemetry": "psmkit[numpy]",
    "telemetry mask": "psmkit[numpy]",
    "telemetry picture": "psmkit[numpy]",
    "telemetry replay": "psmkit[numpy]",
    "top": "psmkit[numpy]",
    "tune fit": "psmkit[tune]",
    "tune export": "psmkit[tune]",
    "tune plot": "psmkit[tune]",
    "tune simulate": "psmkit[tune]",
    "plan model": "spin",
    "export": "psmkit[query]",
    "query": "psmkit[query]",
}
DATA = "op,bytes,ranks,nodes,algorithm,protocol,us\n" + "".join(
    f"allreduce,{1 << n},8,1,ring,simple,{10 + n}\n" for n in range(10, 24)
)


def leaves(command: click.Command, path: str = "") -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        if command.invoke_without_command:
            yield path
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from leaves(inner, f"{path} {name}".strip())
    else:
        yield path


def test_a_plain_install_is_small(installed: Installed) -> None:
    """pip itself is no part of it."""
    (site,) = (installed.folder / "venv").glob("lib/python*/site-packages")
    parts = [
        path
        for path in site.iterdir()
        if not path.name.startswith(("pip", "setuptools", "_distutils_hack", "pkg_resources"))
    ]
    found = {part.name: sum(p.stat().st_size for p in [part, *part.rglob("*")] if p.is_file()) for part in parts}
    assert not [name for name in found if name.startswith(("numpy", "tabulate", "wcwidth"))]
    assert sum(found.values()) <= 40_000_000, found


def test_every_command_is_tried_without_extras() -> None:
    assert set(BARE) == set(leaves(cli))


@pytest.mark.parametrize("command", BARE)
def test_command_works_without_extras_or_names_the_extra(installed: Installed, command: str) -> None:
    folder = installed.folder
    (folder / "rules.csv").write_text("op,bytes,ranks,algorithm,protocol\nallreduce,..64K,*,tree,ll\n")
    (folder / "data.csv").write_text(DATA)
    (lib,) = (folder / "venv").glob("lib/python*/site-packages/psmkit/psm/lib")
    names = {"log": LOG, "calls": CALLS, "lib": lib, "rules": folder / "rules.csv", "data": folder / "data.csv"}
    arguments, statuses = BARE[command]
    done = installed.psmkit(*command.split(), *arguments.format(**names).split())
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode in statuses, said
    assert "Traceback" not in said and "internal error" not in said
    if done.returncode == 2:
        assert done.stderr.startswith("psmkit: ") and len(done.stderr.splitlines()) == 1
        assert EXTRAS.get(command, "") in done.stderr
