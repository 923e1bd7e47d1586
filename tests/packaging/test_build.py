"""`make setup` builds again when a source of the libraries changes, and a build outside the tree is whole."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "dev"


def test_make_watches_every_file_that_cmake_builds_from() -> None:
    rules = list(BUILD.rglob("build.make"))
    if not rules or not shutil.which("make"):
        pytest.skip("build/dev is not there, or holds no makefiles: `make setup` has not built this tree")
    # CMake writes the files of the tree with their full paths, and those of its own folder relative to that.
    rule = re.compile(r"^([^#\t\n:][^:\n]*): (\S+)$", re.M)
    edges = [edge for file in rules for edge in rule.findall(file.read_text("utf-8"))]
    made = {target for target, _ in edges}
    folder = f"{ROOT}/"
    read = {source.removeprefix(folder) for _, source in edges if source.startswith(folder) and source not in made}
    assert "psmkit/catalogue/libpsm.toml" in read
    done = subprocess.run(["make", "-pnq", "setup"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    (watched,) = re.findall(r"^\.venv/\.built:(.*)$", done.stdout, re.M)
    missing = read - set(watched.split())
    assert not missing, f"an edit of these leaves stale libraries: {', '.join(sorted(missing))}"


def test_a_build_outside_the_tree_has_the_headers_of_plugins_beside_those_of_libpsm(tmp_path: Path) -> None:
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake")
    options = ["-DPSMKIT_INPLACE=OFF", "-DPSMKIT_PYTHON=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    # As scripts/sanitize.sh does, whose tests compile with the headers of this folder.
    for command in (["-S", str(ROOT), "-B", ".", *options], ["--build", ".", "--target", "psm_abi_tree"]):
        done = subprocess.run(
            ["cmake", *command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
    made = {path.name for path in (tmp_path / "csrc" / "psm" / "tree" / "include" / "psm_abi").iterdir()}
    assert made == {path.name.removesuffix(".in") for path in (ROOT / "csrc" / "abi" / "psm_abi").glob("*.h.in")}
    assert made
