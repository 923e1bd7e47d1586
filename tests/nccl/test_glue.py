"""The glue of csrc/nccl against what is known of NCCL's structs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.hostcuda import headers
from tests.nccl.layouts import facts_of, write_tree

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
GLUE = ROOT / "csrc" / "nccl"
FACTS = sorted((HERE / "facts").glob("*.json"))
SOURCES = sorted(GLUE.glob("*.cc"))
GXX = shutil.which("g++") or ""
needs_headers = pytest.mark.skipif(not headers.there, reason="the CUDA headers of the packages are not installed")


def compile_glue(source: Path, out: Path, tree: Path) -> subprocess.CompletedProcess[str]:
    folders = [tree, Path(__file__).parent, *headers.INCLUDES[12], ROOT / "csrc/psm/include", GLUE]
    return subprocess.run(
        [
            *(GXX, "-std=gnu++17", "-O0", "-g", "-Wall", "-Wextra", "-Werror"),
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
    for source in SOURCES:
        done = compile_glue(source, tmp_path / f"{source.stem}.o", tmp_path / "tree")
        assert done.returncode == 0, done.stderr
    # What the compiler has made of the declarations is what was measured.
    again = facts_of(".".join(str(n) for n in known["numbers"].values()), sorted(tmp_path.glob("*.o")))
    for name, struct in again["structs"].items():
        assert struct["size"] == known["structs"][name]["size"], name
        for field, (offset, size, _text) in struct["members"].items():
            assert [offset, size] == known["structs"][name]["members"][field][:2], f"{name}.{field}"


def newest() -> dict[str, Any]:
    """What is known of the newest release that is."""
    known: dict[str, Any] = max(
        (json.loads(path.read_text()) for path in FACTS), key=lambda k: k["numbers"]["NCCL_MINOR"]
    )
    return known


@needs_headers
def test_a_release_that_is_too_old_stops_the_compilation_with_a_clear_text(tmp_path: Path) -> None:
    known = json.loads((HERE / "facts/2.26.json").read_text())
    known["numbers"]["NCCL_MINOR"] = 25
    write_tree(known, tmp_path / "tree")
    done = compile_glue(GLUE / "transport.cc", tmp_path / "x.o", tmp_path / "tree")
    assert done.returncode != 0
    assert "psmkit supports NCCL 2.26 and newer, but this tree is of an older release" in done.stderr


@needs_headers
def test_a_newer_release_with_the_same_declarations_is_tried(tmp_path: Path) -> None:
    known = newest()
    known["numbers"]["NCCL_MINOR"] = 99
    write_tree(known, tmp_path / "tree")
    done = compile_glue(GLUE / "transport.cc", tmp_path / "x.o", tmp_path / "tree")
    assert done.returncode == 0, done.stderr


@needs_headers
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("NTRANSPORTS 4", "NTRANSPORTS 5", "this tree's table of transports has another length"),
        ("ncclProxyMsgSetup = 3", "ncclProxyMsgSetup = 13", "this tree's proxy messages have other numbers"),
        ("int *crossClique = nullptr", "long *crossClique = nullptr", "call_check_p2p"),
    ],
)
def test_a_release_that_differs_is_refused_by_the_name_of_the_fact(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    known = newest()
    known["numbers"]["NCCL_MINOR"] = 99
    write_tree(known, tmp_path / "tree")
    text = (HERE / "declarations.h").read_text()
    assert old in text
    (tmp_path / "tree/declarations.h").write_text(text.replace(old, new))
    done = compile_glue(GLUE / "transport.cc", tmp_path / "x.o", tmp_path / "tree")
    assert done.returncode != 0 and said in done.stderr


@needs_headers
def test_counters_of_a_fork_may_be_plain_numbers_that_its_kernels_read(tmp_path: Path) -> None:
    write_tree(json.loads((HERE / "facts/2.26-passsm.json").read_text()), tmp_path / "tree")
    layouts = tmp_path / "tree/layouts.h"
    text = layouts.read_text()
    plain = re.sub(r"std::atomic<int> (proxyOpCount|proxyReadyEvent)", r"int \1", text)
    assert plain != text
    layouts.write_text(plain)
    done = compile_glue(GLUE / "provider.cc", tmp_path / "provider.o", tmp_path / "tree")
    assert done.returncode == 0, done.stderr


@needs_headers
def test_a_call_to_the_own_proxy_gives_the_processor_up_while_it_waits(tmp_path: Path) -> None:
    """NCCL's own blocking call polls without a pause, so that the proxy's thread waits for the poller's time slice to end."""
    write_tree(newest(), tmp_path / "tree")
    done = compile_glue(GLUE / "provider.cc", tmp_path / "provider.o", tmp_path / "tree")
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(["nm", tmp_path / "provider.o"], capture_output=True, text=True, check=True, timeout=60)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert "sched_yield" in names
    assert any("ncclPollProxyResponse" in name for name in names)
    assert not any("ncclProxyCallBlocking" in name for name in names)


@needs_headers
def test_a_layout_that_has_moved_is_told_from_the_facts(tmp_path: Path) -> None:
    known = json.loads((HERE / "facts/2.30.json").read_text())
    known["structs"]["ncclProxyState"]["members"]["stop"][0] += 4  # where another member is
    write_tree(known, tmp_path / "tree")
    assert compile_glue(GLUE / "served.cc", tmp_path / "served.o", tmp_path / "tree").returncode != 0


@pytest.mark.parametrize(
    ("version", "said"), [("2.25", "psmkit knows 2.26 to"), ("2.99", "psmkit was tried with 2.26 to")]
)
def test_cmake_refuses_an_older_release_and_warns_of_a_newer_one(tmp_path: Path, version: str, said: str) -> None:
    major, minor = version.split(".")
    include = tmp_path / "build/include"
    include.mkdir(parents=True)
    (include / "nccl.h").write_text(f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.18)\nproject(x NONE)\ninclude({GLUE}/tree.cmake)\n"
        f"set(NCCL_SRC {tmp_path})\nfind_nccl_tree(CMakeLists.txt)\n"
    )
    done = subprocess.run(
        ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "made")], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode == 0) == (version == "2.99"), done.stderr
    assert said in " ".join(done.stderr.split())


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


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="there is no pkg-config")
def test_cmake_says_how_to_find_libpsm(tmp_path: Path) -> None:
    for name, text in {"src/include/transport.h": "", "build/include/nccl.h": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "build/include/nccl.h").write_text(
        "#define NCCL_MAJOR 2\n#define NCCL_MINOR 30\n#define NCCL_VERSION_CODE 23007\n"
    )
    done = subprocess.run(
        [
            "cmake",
            "-S",
            str(GLUE),
            "-B",
            str(tmp_path / "made"),
            f"-DNCCL_SRC={tmp_path}",
            f"-DCUDA_INCLUDE={tmp_path}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": str(tmp_path)},
    )
    assert done.returncode != 0
    assert "export PKG_CONFIG_PATH=$(psmkit config --pkg-config)" in " ".join(done.stderr.split()), done.stderr
