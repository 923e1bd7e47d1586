"""Small plugins, right and wrong, compiled from a few lines of C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from psmkit.plugins.abi import Table, table_of, tables

ROOT = Path(__file__).parents[2]
INCLUDES = "".join(
    f'#include "psm_abi/{name}.h"\n' for name in ("net_old", "net", "collnet", "tuner", "profiler", "env", "gin")
)
COMPILERS = {"c": (shutil.which("gcc") or "gcc", "-std=c11"), "cc": (shutil.which("g++") or "g++", "-std=c++17")}


def struct_of(table: Table) -> str:
    """The type of a table: ncclNet_v8_t of ncclNetPlugin_v8."""
    return table.symbol.replace("Plugin_", "_") + "_t"


def table(symbol: str, leave_out: tuple[str, ...] = (), name: str = "psm", only: tuple[str, ...] | None = None) -> str:
    """C that defines a table whose functions all do nothing."""
    known = table_of(symbol)
    assert known is not None and known.slots
    rows = []
    for slot in known.slots:
        if slot.name in leave_out or (only is not None and slot.name not in only):
            continue
        rows.append(f'.name = "{name}"' if slot.name == "name" else f".{slot.name} = (void *)nothing")
    return f"const {struct_of(known)} {symbol} = {{{', '.join(rows)}}};\n"


HEAD = f"{INCLUDES}static ncclResult_t nothing(void) {{ return ncclSuccess; }}\nvoid *keep(void);\nvoid *keep(void) {{ return (void *)nothing; }}\n"


def all_tables(kind: str) -> str:
    """Every version of a kind whose layout is known."""
    return "".join(table(t.symbol) for t in tables() if t.kind == kind and t.slots)


def run_compiler(*words: str) -> None:
    """Compile; errors fail the test."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def build(
    folder: Path, source: str, name: str = "libnccl-net-psm.so", *more: str, language: str = "c", head: str = HEAD
) -> Path:
    """Compile a library."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(name).stem}.{language}"
    path.write_text(head + source)
    library = folder / name
    compiler, standard = COMPILERS[language]
    include = f"-I{ROOT / 'psmkit' / 'psm' / 'include'}"
    run_compiler(compiler, standard, "-w", "-O0", "-shared", "-fPIC", include, str(path), "-o", str(library), *more)
    return library


def unknown(name: str) -> str:
    """The symbol of the version after the newest one that the facts know: ``ncclProfiler_v8`` for ``ncclProfiler``."""
    return f"{name}_v{1 + max(t.version for t in tables() if t.symbol.rpartition('_v')[0] == name)}"
