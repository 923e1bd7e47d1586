"""The house keeps its order: who may import whom, and what an analysis loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "psmkit"

# Each room and the rooms it may import from. A room that is not named here must be added, with a thought.
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "cudaapi": set(),  # the build runs it from the tree, without an installed psmkit
    "_native": set(),
    "catalogue": {"_native", "model"},
    "logparse": {"catalogue", "_native", "model"},
    "analysis": {"logparse", "catalogue", "_native", "model"},  # of _native the rules of plans, which the scanner has
    "synth": {"model"},  # what jobs print; it must not learn from the analysis what that finds
    "names": set(),  # what names look like: for texts of reports and for logs alike
    "scrub": {"names", "logparse", "catalogue", "model"},
    "report": {"names", "model"},
    "query": {"analysis", "logparse", "catalogue", "report", "model"},  # of report how a page shows a table
    "proxy": {"_native", "model"},
    "transport": {"proxy", "_native", "model"},
    "plan": {"report", "transport", "proxy", "_native", "model"},
    "live": {"logparse", "_native", "model"},  # of logparse the readers of stacks and records
    "lab": {"cudaapi", "live", "logparse", "plan", "transport", "proxy", "model"},  # of plan task files
    "cluster": {"logparse", "catalogue", "model"},
    "watch": {
        "analysis",
        "live",
        "logparse",
        "report",
        "model",
    },  # of live inspections, of report what is behind a verdict
    "reproduce": {"analysis", "lab", "logparse", "plan", "model", "telemetry"},
    "conformance": {"analysis", "lab", "model"},
    "nvcc": {"lab", "model"},  # of lab where the emulated libraries are
    "nccl": {"nvcc", "lab", "model"},  # of nvcc the brackets of C++ and where CUDA is
    "testing": {"conformance", "lab", "model"},
    "audit": {"live", "plugins", "model"},  # of plugins what a library holds and what the loader says
    "plugins": {"lab", "live", "model"},  # its driver runs ranks, by the one runner; of live the machine
    "tune": {"report", "telemetry", "model"},  # fits what was recorded; of report the drawing room
    "telemetry": {"report", "logparse", "_native", "model"},  # of report the drawing room
    "cli": {
        "cluster",
        "report",
        "analysis",
        "audit",
        "logparse",
        "catalogue",
        "lab",
        "live",
        "nccl",
        "plugins",
        "telemetry",
        "tune",
        "plan",
        "reproduce",
        "conformance",
        "transport",
        "names",
        "query",
        "scrub",
        "synth",
        "watch",
        "model",
    },
}
# What only its own command may load, and no analysis.
HEAVY = (
    "clang",
    "dask",
    "distributed",
    "drgn",
    "duckdb",
    "fsspec",
    "jinja2",
    "mcp",
    "numpy",
    "opentelemetry",
    "pandas",
    "perfetto",
    "prometheus_client",
    "py_spy",
    "pyarrow",
    "pytest",
    "scipy",
)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Absolute names of what a module imports, wherever in it."""
    parents = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parents[: len(parents) - node.level]) if node.level else ""
            yield ".".join(part for part in (base, node.module or "") if part)
            yield from (
                ".".join(part for part in (base, node.module or "", alias.name) if part) for alias in node.names
            )


def room(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "psmkit" and len(parts) > 1 else None


# The rooms inside the analysis, the modules above them, and what each may import. Only rules are kept from each other.
LEAVES = {"logparse", "catalogue", "model"}
ANALYSIS: dict[str, set[str]] = {
    "inputs": {"logparse", "model"},
    "facts": {"facts", *LEAVES},
    "inference": {"facts", "inference", "_native", *LEAVES},
    "rules": {"facts", "inference", "registry", *LEAVES},
    "views": {"facts", "inference", "views", *LEAVES},
    "registry": {"facts", "model"},
    "coverage": {"facts", "inference", *LEAVES},
    "table": {"facts", "inference", *LEAVES},
    "run_end": {"facts", "inference", "logparse", "model"},
    "verdict": {"facts", "inference", "run_end", "logparse", "model"},
    "groups": {"model"},
    "asks": {"facts", "inference", "model"},
    "pipeline": {
        "facts",
        "inference",
        "inputs",
        "registry",
        "asks",
        "coverage",
        "table",
        "verdict",
        "groups",
        *LEAVES,
    },
    "difference": {"facts", "inference", "pipeline", "views", "model"},
    "story": {"facts", "inputs", "pipeline", "views", "logparse", "model"},
}


def name_of(path: Path) -> str:
    """The dotted name of a module or package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of_psmkit() -> dict[str, set[str]]:
    """The modules that each module of psmkit imports, wherever in it. A package counts only where its own names are imported."""
    paths = {name_of(path): path for path in modules()}
    packages = {name for name, path in paths.items() if path.name == "__init__.py"}
    out = {}
    for name, path in paths.items():
        found = [n for n in imports(path) if n.startswith("psmkit")]
        # `from a.b import c` gives a.b and a.b.c: of the two the package does not count where c is a module of it
        parents = {n.rpartition(".")[0] for n in found if n in paths}
        own = {n.rpartition(".")[0] for n in found if n not in paths}
        out[name] = {n for n in found if n in paths and not (n in packages and n in parents and n not in own)} - {name}
    return out


def part(name: str) -> str:
    """The room of a module, one level deeper in the analysis."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["analysis"] and len(parts) > 2 else ".".join(parts[1:2])


def test_every_room_is_known() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert rooms <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_dependencies_point_one_way(path: Path) -> None:
    inside = path.relative_to(PACKAGE).parts
    if len(inside) == 1:  # psmkit/__init__.py is the face of the whole
        return
    own = inside[0]
    found = {target for target in map(room, imports(path)) if target in MAY_IMPORT and target != own}
    assert found <= MAY_IMPORT[own], f"{own} must not import {sorted(found - MAY_IMPORT[own])}"


def test_rooms_of_the_analysis_point_one_way() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, targets in imports_of_psmkit().items()
        if name.startswith("psmkit.analysis.")
        for target in sorted(targets)
        if part(target) not in ANALYSIS[part(name)] and target != "psmkit.analysis.rules"
    ]
    assert not wrong


def test_rules_never_import_each_other() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, targets in imports_of_psmkit().items()
        if name.startswith("psmkit.analysis.rules.")
        for target in targets
        if target.startswith("psmkit.analysis.rules")
    ]
    assert not wrong


def test_modules_of_the_analysis_import_in_no_circle() -> None:
    """Imports within functions count: they are how a circle hides."""
    graph = {name: targets for name, targets in imports_of_psmkit().items() if name.startswith("psmkit.analysis.")}
    left = {name: {t for t in targets if t in graph} for name, targets in graph.items()}
    while done := {name for name, targets in left.items() if not targets}:
        left = {name: targets - done for name, targets in left.items() if name not in done}
    assert not left, f"in a circle, or above one: {sorted(left)}"


def test_modules_of_the_analysis_import_at_their_top() -> None:
    late = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (PACKAGE / "analysis").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not late


def test_no_set_of_codes_stands_in_the_analysis() -> None:
    """What a code means for the verdict stands at the code."""
    code = re.compile(r"PSM\d{3}")
    found = []
    for path in (PACKAGE / "analysis").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Set):
                named = [e for e in node.elts if isinstance(e, ast.Constant) and code.fullmatch(str(e.value))]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
                named = [*code.finditer(ast.unparse(node.func.value))]
            else:
                continue
            if len(named) > 1:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


@pytest.mark.parametrize(
    ("module", "place"),
    [("_logscan", "_native/logscan.py"), ("_psm", "_native/psm.py"), ("_telemetry", "_native/telemetry.py")],
)
def test_native_module_is_imported_in_one_place(module: str, place: str) -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        for name in imports(path)
        if name.rsplit(".", 1)[-1] == module
    }
    assert users == {place}


def test_libpsm_is_used_by_proxy_transport_and_plan_alone() -> None:
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in modules()
        for name in imports(path)
        if name.startswith("psmkit._native.psm")
    }
    assert users <= {"_native", "proxy", "transport", "plan"}


def test_analysis_takes_the_rules_of_plans_and_nothing_else_from_c() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in (PACKAGE / "analysis").rglob("*.py")
        for name in imports(path)
        if name.startswith("psmkit._native")
    }
    assert users == {"analysis/inference/planrules.py"}


def test_windows_are_read_by_their_reader_alone() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        for name in imports(path)
        if name.startswith("psmkit._native.telemetry")
    }
    assert users == {"telemetry/reader.py"}


def test_analyze_loads_the_scanner_and_nothing_heavy() -> None:
    code = (
        "import sys, psmkit\npsmkit.analyze([sys.argv[1]])\nprint('\\n'.join(sorted(sys.modules)))\n"
        "print('libpsm' if 'libpsm' in open('/proc/self/maps').read() else '')\n"
    )
    log = ROOT / "tests" / "data" / "logs" / "passsm-8gpu.log"
    done = subprocess.run(
        [sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    loaded = done.stdout.split()
    native = {name for name in loaded if name.startswith("psmkit._native.") and name.rsplit(".", 1)[-1].startswith("_")}
    assert native == {"psmkit._native._logscan"}
    assert "libpsm" not in loaded
    assert not [name for name in loaded if name.split(".")[0] in HEAVY]
    assert not [
        name
        for name in loaded
        if name.startswith(
            ("psmkit.cli", "psmkit.report", "psmkit.proxy", "psmkit.transport", "psmkit.plan", "psmkit.lab")
        )
    ]


def test_files_stay_readable() -> None:
    code = [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "csrc").rglob("*.[ch]"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "benchmarks").rglob("*.py"),
    ]
    long = {str(p.relative_to(ROOT)): n for p in code if (n := p.read_bytes().count(b"\n")) > 650}
    assert not long


def test_pages_name_files_that_exist() -> None:
    """Links of the pages at the top and in docs/ lead somewhere."""
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "zh").glob("*.md"),
        *(ROOT / "changelog").glob("*.md"),
    ]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
