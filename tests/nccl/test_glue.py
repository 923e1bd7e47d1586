"""The glue of csrc/nccl against what is known of NCCL's structs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hostcuda import headers
from tests.nccl.layouts import facts_of, write_tree

ROOT = Path(__file__).parents[2]
GLUE = ROOT / "csrc" / "nccl"
FACTS = sorted((Path(__file__).parent / "facts").glob("*.json"))
SOURCES = sorted(GLUE.glob("*.cc"))
GXX = shutil.which("g++") or ""
needs_headers = pytest.mark.skipif(not headers.there, reason="the CUDA headers of the packages are not installed")


def compile_glue(source: Path, out: Path, tree: Path, standard: str, *more: str) -> subprocess.CompletedProcess[str]:
    folders = [tree, Path(__file__).parent, *headers.INCLUDES[12], ROOT / "csrc/psm/include", GLUE]
    return subprocess.run(
        [
            *(GXX, f"-std={standard}", "-O0", "-g", "-Wall", "-Wextra", "-Werror", *more),
            *(f"-I{folder}" for folder in folders),
            *("-c", str(source), "-o", str(out)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )


@needs_headers
@pytest.mark.parametrize("facts", FACTS, ids=lambda path: path.stem)
def test_the_glue_compiles_against_the_declarations_of_each_known_tree(facts: Path, tmp_path: Path) -> None:
    known = json.loads(facts.read_text())
    write_tree(known, tmp_path / "tree")
    standard = "gnu++17" if known["numbers"]["NCCL_MINOR"] >= 30 else "gnu++11"
    for source in SOURCES:
        done = compile_glue(source, tmp_path / f"{source.stem}.o", tmp_path / "tree", standard)
        assert done.returncode == 0, done.stderr
    # What the compiler has made of the declarations is what was measured.
    again = facts_of(".".join(str(n) for n in known["numbers"].values()), sorted(tmp_path.glob("*.o")))
    for name, struct in again["structs"].items():
        assert struct["size"] == known["structs"][name]["size"], name
        for field, (offset, size, _text) in struct["members"].items():
            assert [offset, size] == known["structs"][name]["members"][field][:2], f"{name}.{field}"


@needs_headers
def test_a_release_that_is_not_known_stops_the_compilation_with_a_clear_text(tmp_path: Path) -> None:
    known = json.loads(FACTS[0].read_text())
    known["numbers"]["NCCL_MINOR"] = 28
    write_tree(known, tmp_path / "tree")
    done = compile_glue(GLUE / "transport.cc", tmp_path / "x.o", tmp_path / "tree", "gnu++11")
    assert done.returncode != 0
    assert "psmkit supports the layouts of NCCL 2.26 and 2.30, but this tree is of another release" in done.stderr


@needs_headers
def test_a_layout_that_has_moved_is_told_from_the_facts(tmp_path: Path) -> None:
    known = json.loads(next(path for path in FACTS if path.stem == "2.30").read_text())
    known["structs"]["ncclProxyState"]["members"]["stop"][0] += 4  # where another member is
    write_tree(known, tmp_path / "tree")
    assert compile_glue(GLUE / "served.cc", tmp_path / "served.o", tmp_path / "tree", "gnu++17").returncode != 0


@pytest.mark.parametrize("facts", FACTS, ids=lambda path: path.stem)
def test_the_facts_agree_with_a_tree_where_one_is_given(facts: Path) -> None:
    """PSM_NCCL_GLUE_2_30=FOLDER names the objects of csrc/nccl that were compiled with -g against such a tree."""
    given = os.environ.get("PSM_NCCL_GLUE_" + facts.stem.upper().replace(".", "_").replace("-", "_"))
    if not given:
        pytest.skip("no objects that were compiled against such a tree are given")
    known = json.loads(facts.read_text())
    version = ".".join(str(n) for n in known["numbers"].values())
    assert facts_of(version, sorted(Path(given).rglob("*.o"))) == known


def test_cmake_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["cmake", "-S", str(GLUE), "-B", str(tmp_path / "build"), "-DNCCL_SRC=/nowhere"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "NCCL_SRC=/nowhere is no NCCL tree" in " ".join(done.stderr.split())
