"""What a command loads before it does anything: counted in modules, because seconds depend on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Modules beyond those of an interpreter that does nothing, and some room.
MOST = {"--help": 105, "analyze": 375}
LOG = ROOT / "tests" / "data" / "logs" / "passsm-8gpu.log"


def loaded(tmp_path: Path, *arguments: object) -> set[str]:
    """The modules that the second run of a command loads: the first one may fill the cache of the catalogue."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: open(OUT, 'w').write('\\n'.join(sys.modules)))\n"
        "from psmkit.cli import main\nsys.exit(main())\n"
    )
    out = tmp_path / "modules"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_COLOR": "1"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", f"OUT = {str(out)!r}\n{code}", *map(str, arguments)],
            capture_output=True, text=True, env=env, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout, done.stderr
    return set(out.read_text().split())


def rooms(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("psmkit.")}


@pytest.mark.parametrize("arguments", [("--help",), ("analyze", "--help"), ("--version",)])
def test_help_loads_neither_the_scanner_nor_numpy_nor_a_table(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    found = loaded(tmp_path, *arguments)
    assert not {"numpy", "_cffi_backend", "tabulate", "wcwidth", "tomllib", "json"} & found
    assert "_native" not in rooms(found) and "analysis" not in rooms(found) and "logparse" not in rooms(found)


def test_analyze_of_a_log_loads_nothing_that_only_other_inputs_need(tmp_path: Path) -> None:
    found = loaded(tmp_path, "analyze", LOG)
    # The checked catalogue comes from its cache; TOML is for documents, stacks and files of the user.
    assert not {"tomllib", "asyncio", "http.client", "xml", "ssl", "multiprocessing", "sqlite3", "logging"} & found
    assert not {"rich", "zstandard", "isal", "elftools", "scipy", "pyarrow", "pandas", "jinja2"} & found
    assert (
        not {
            "numpy",
            "wcwidth",
            "importlib.metadata",
            "importlib.resources",
            "email",
            "html",
            "pickle",
            "hashlib",
            "zipfile",
            "tempfile",
        }
        & found
    )
    assert not {"lab", "live", "proxy", "transport", "plan", "telemetry", "tune", "query", "watch", "audit"} & rooms(
        found
    )


@pytest.mark.parametrize(
    ("arguments", "most"), [(("--help",), MOST["--help"]), (("analyze", LOG), MOST["analyze"])], ids=["help", "analyze"]
)
def test_a_command_loads_few_modules(tmp_path: Path, arguments: tuple[str, ...], most: int) -> None:
    found = loaded(tmp_path, *arguments)
    # those of an interpreter differ by release and by how it was installed
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert len(found - set(bare.stdout.split())) <= most


def test_analyze_finishes_few_classes_and_expressions(tmp_path: Path) -> None:
    code = """
import re._compiler, sys
texts = expressions = 0

def seen(event, args):
    global texts
    texts += event == "compile" and args[1] == "<string>"

def compiled(*args, do=re._compiler.compile):
    global expressions
    expressions += 1
    return do(*args)

re._compiler.compile = compiled
sys.addaudithook(seen)
from psmkit.cli import main
main()
print(texts, expressions, file=sys.stderr)
"""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, "analyze", str(LOG)],
            capture_output=True, text=True, env=env, timeout=120, check=True,
        )  # fmt: skip
    texts, expressions = map(int, done.stderr.split())
    assert 0 < texts <= 150 and 0 < expressions <= 60
