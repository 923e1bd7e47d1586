"""The net plugin that can be broken, and a CUDA runtime for it, compiled from tests/plugins/broken."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.plugins.abi import spoken
from psmkit.plugins.drive import Drive
from tests.csrc.base import compiled
from tests.plugins.build import run_compiler

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "broken"
#: The pages with examples, and with the tables of checks.
PAGES = {name: (ROOT / "docs" / f"{name}_drive.md").read_text() for name in ("plugins", "profiler")}


def example(name: str, library: Path) -> tuple[list[str], str]:
    """An example of the pages: the words after `psmkit`, for this library, and the output."""
    found = re.search(rf"<!-- example: {name} -->\n```\n\$ psmkit (.*)\n((?:.*\n)*?)```\n", "".join(PAGES.values()))
    assert found is not None
    return found[1].replace(library.name, str(library)).split(), found[2]


def failures(done: Drive) -> list[str]:
    """The checks that failed, with their versions and texts."""
    return [f"{result.check} v{result.version}: {result.text}" for result in done.results if result.outcome == "failed"]


def expect_page(
    name: str,
    library: Path,
    moves: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    **env: str,
) -> None:
    """The command of an example exits with 1 and prints its output; ``moves`` is a pattern of what differs between runs."""
    command, output = example(name, library)
    for variable, value in {**env, "COLUMNS": "100"}.items():
        monkeypatch.setenv(variable, value)
    assert main(command) == 1
    shown, printed = (re.sub(moves, "N", text) for text in (output, capsys.readouterr().out))
    assert shown == printed, f"put this into the page with the example {name}"


def _compile(library: Path, *sources: str, only: bool = False) -> Path:
    """A library, or an object of one source."""
    made = library.parent / "generated"
    made.mkdir(exist_ok=True)
    compiled.abi_versions(made)
    named = (name if name.startswith(("/", "-")) else str(SOURCES / name) for name in sources)
    run_compiler(
        *(shutil.which("gcc") or "gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g"),
        *("-c" if only else "-shared", "-fPIC", f"-I{ROOT / 'psmkit' / 'psm' / 'include'}", f"-I{made}", *named),
        *("-o", str(library), "-pthread", "-ldl"),
    )
    return library


def plugin(folder: Path) -> Path:
    """The plugin: BROKEN in the environment says how, and without it, it is right."""
    return _compile(folder / "libnccl-net-broken.so", "net.c", "memory.c", "tables.c", "collnet.c")


def filled_by_init(folder: Path) -> Path:
    """The plugin with the tables v8 and v12, of which init fills all but name and init."""
    tables = folder / "inner.o"
    _compile(tables, "tables.c", *(f"-DncclNetPlugin_v{v}=inner_v{v}" for v in spoken("net")), only=True)
    names = folder / "filled.map"
    names.write_text("{ global: ncclNetPlugin_v8; ncclNetPlugin_v12; local: *; };\n")
    library = folder / "libnccl-net-filled.so"
    return _compile(library, "filled.c", "net.c", "memory.c", str(tables), f"-Wl,--version-script={names}")


def plugin_of(folder: Path, version: int) -> Path:
    """The plugin with one version of the table alone."""
    names = folder / f"v{version}.map"
    names.write_text(f"{{ global: ncclNetPlugin_v{version}; local: *; }};\n")
    objects = [folder / f"{name}.o" for name in ("net", "memory", "tables")]
    for made in objects:
        if not made.exists():
            _compile(made, f"{made.stem}.c", only=True)
    return _compile(folder / f"libnccl-net-broken-v{version}.so", *map(str, objects), f"-Wl,--version-script={names}")


def cuda(folder: Path) -> Path:
    """A CUDA runtime, with a driver beside it, whose memory has DMA-BUF descriptors."""
    runtime = _compile(folder / "libcudart.so", "cuda.c")
    shutil.copy(runtime, folder / "libcuda.so.1")
    return runtime


def profiler(folder: Path) -> Path:
    """The profiler: BROKEN in the environment says how, and without it, it is right."""
    return _compile(folder / "libnccl-profiler-broken.so", "profiler/profiler.c")


def profiler_of(folder: Path, version: int) -> Path:
    """The profiler with one version of the table alone."""
    names = folder / f"profiler_v{version}.map"
    names.write_text(f"{{ global: ncclProfiler_v{version}; local: *; }};\n")
    return _compile(folder / f"libnccl-profiler-v{version}.so", "profiler/profiler.c", f"-Wl,--version-script={names}")
