"""Compiles a unit that uses all that csrc/abi declares, and compares what the compiler made of it with the facts."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.abi.layouts import NUMBER, Facts, Unit

ROOT = Path(__file__).parents[2]
ABI = ROOT / "psmkit" / "psm" / "include"  # as the build makes them, from csrc/abi
HEADERS = sorted((ABI / "psm_abi").glob("*.h"))
FACTS: Facts = json.loads((ROOT / "psmkit" / "plugins" / "abi.json").read_text())
COMPILERS = {"c": (shutil.which("gcc") or "gcc", "-std=c11"), "cc": (shutil.which("g++") or "g++", "-std=c++17")}
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")

# Names that mean another version in each release: psm_abi has none of them.
MOVING = (
    {name for name in FACTS["typedefs"] if "_v" not in name}
    | {name for name in FACTS["constants"] if name.endswith("_PLUGIN_SYMBOL") or name == "NCCL_PLUGIN_SYMBOL"}
) - {"ncclDebugLogger_t", "ncclProfilerCallback_t", "ncclPid_t", "ncclProfilerEventState_t"}
# Ends of enums, which move with them; psm_abi has the newest. ncclProfileNumEvents went with 2.24.
ENDS = {"ncclNumResults", "ncclNumOps", "ncclNumTypes", "ncclNumFuncs"}
GONE = {"ncclProfileNumEvents"}
# Constants that had other values, and where a plugin for such a release finds them.
CHANGED = {
    ("NCCL_NET_HANDLE_MAXSIZE", 64): "NCCL_NET_HANDLE_MAXSIZE_V4",
    ("NCCL_NET_MAX_REQUESTS", 8): "NCCL_NET_MAX_REQUESTS_V6",
    ("NCCL_NET_MAX_DEVS_PER_NIC", 4): "NCCL_NET_MAX_DEVS_PER_NIC_V9",
    ("NCCL_NUM_ALGORITHMS", 6): "NCCL_ALGO_PAT",  # the algorithm that was added has the number that they had
    ("NCCL_NET_MAX_PLUGINS", 3): None,
}


def tables() -> Iterator[tuple[str, str]]:
    """The table symbols whose layout is known, with their types."""
    for versions in FACTS["tables"].values():
        for entry in versions.values():
            if entry["struct"]:
                yield entry["symbol"], entry["struct"]


def constants() -> Iterator[str]:
    yield from (name for name in FACTS["constants"] if name not in MOVING)
    yield from FACTS["example_constants"]


def source() -> str:
    """A unit in C and C++ that names all types, constants and tables of the facts."""
    lines = [f'#include "psm_abi/{path.name}"' for path in HEADERS]
    lines += [
        "#ifdef __cplusplus",
        "#define ALIGN alignof",
        'extern "C" {',
        "#else",
        "#define ALIGN _Alignof",
        "#endif",
    ]
    for name in constants():
        lines += [f"extern const long long {NUMBER}{name};", f"const long long {NUMBER}{name} = (long long)({name});"]
    for name in FACTS["structs"]:
        lines += [f"extern const long long {NUMBER}{name};", f"const long long {NUMBER}{name} = ALIGN({name});"]
    for symbol, struct in tables():
        lines += [f"extern const {struct} *const table_{symbol};", f"const {struct} *const table_{symbol} = &{symbol};"]
    lines += ["#ifdef __cplusplus", "}", "#endif"]
    return "\n".join(lines) + "\n"


def compiled(
    text: str, folder: Path, language: str, *more: str, include: Path = ABI
) -> subprocess.CompletedProcess[str]:
    """Compile a text to unit.o in the folder."""
    path = folder / f"unit.{language}"
    path.write_text(text)
    compiler, standard = COMPILERS[language]
    return subprocess.run(
        [
            *(compiler, standard, *STRICT, "-O0", "-g", "-gdwarf-4", "-fno-eliminate-unused-debug-types", *more),
            *(f"-I{include}", "-c", str(path), "-o", str(folder / "unit.o")),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )


class Comparison:
    """Compares, counts what was compared, and keeps what differs."""

    def __init__(self) -> None:
        self.count = 0
        self.differences: list[str] = []

    def same(self, what: str, ours: Any, theirs: Any) -> None:
        self.count += 1
        if ours != theirs:
            self.differences.append(f"{what}: {ours!r}, NCCL has {theirs!r}")

    def struct(self, name: str, unit: Unit, facts: Facts) -> None:
        ours = unit.structs.get(name) or unit.structs.get(unit.typedefs.get(name, ""))
        if ours is None:
            self.same(name, None, facts["kind"])
            return
        for key in ("kind", "size"):
            self.same(f"{name} {key}", ours[key], facts[key])
        self.same(f"{name} alignment", unit.numbers.get(name), facts["alignment"])
        self.same(f"{name} members", [m[0] for m in ours["members"]], [m[0] for m in facts["members"]])
        for mine, theirs in zip(ours["members"], facts["members"], strict=False):
            for part, a, b in zip(("name", "offset", "size", "type", "plain type"), mine, theirs[:5], strict=True):
                self.same(f"{name}.{theirs[0]} {part}", a, b)

    def enum(self, name: str, unit: Unit, history: list[Any]) -> None:
        newest = history[-1][2]
        for start, _, values in history:
            for enumerator, value in values.items():
                if enumerator in GONE:
                    continue
                expected = newest[enumerator] if enumerator in ENDS else value
                self.same(f"{enumerator} of {name} in {start}", unit.enumerators.get(enumerator), expected)
        if name in unit.enums:
            self.same(f"{name}: its enumerators", set(unit.enums[name]), set(newest))

    def constant(self, name: str, unit: Unit, history: list[Any]) -> None:
        for start, _, value in history:
            if (name, value) in CHANGED:
                instead = CHANGED[name, value]
                if instead is not None:
                    self.same(f"{instead}, for {name} in {start}", unit.numbers.get(instead), value)
            else:
                self.same(f"{name} in {start}", unit.numbers.get(name), value)


def compare(unit: Unit) -> Comparison:
    """All facts against what the compiler made of the headers."""
    result = Comparison()
    for name, struct in FACTS["structs"].items():
        result.struct(name, unit, struct)
    for name, history in FACTS["enums"].items():
        result.enum(name, unit, history)
    for name, history in FACTS["constants"].items():
        if name not in MOVING:
            result.constant(name, unit, history)
    for name, value in FACTS["example_constants"].items():
        result.same(name, unit.numbers.get(name), value)
    for name, history in FACTS["typedefs"].items():
        newest = history[-1][2]
        if name in MOVING:
            result.same(f"{name}, which moves with the release,", unit.typedefs.get(name), None)
        elif name in unit.typedefs and name not in unit.structs and name not in unit.enums:
            result.same(f"{name}", unit.typedefs[name], newest)
    ours = {name for name in unit.structs if name.startswith("nccl")}
    result.same("the structs", ours - set(FACTS["structs"]), set())
    return result
