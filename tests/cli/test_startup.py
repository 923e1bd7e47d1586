"""What a command loads before it does anything: counted in modules, because seconds depend on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
    # The parsed catalogue comes from its cache; TOML is for documents, stacks and files of the user.
    assert not {"tomllib", "asyncio", "http.client", "xml", "ssl", "multiprocessing", "sqlite3", "logging"} & found
    assert not {"rich", "zstandard", "isal", "elftools", "scipy", "pyarrow", "pandas", "jinja2"} & found
    assert not {"lab", "live", "proxy", "transport", "plan", "telemetry", "tune", "query", "watch", "audit"} & rooms(
        found
    )
