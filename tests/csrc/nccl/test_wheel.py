"""The interpreter for the binary of NCCL 2.21.5, from facts: the table of functions that the binary has, and lists of work."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from .compiled import ROOT, SOURCES, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")

ROWS = 1513  # of NCCL 2.21.5
NOT_SUPPORTED, LAUNCH_FAILURE = 801, 719
KERNEL = b"_Z22ncclDevKernel_SendRecvP11ncclDevCommmP8ncclWork"
SEND_RECV = 7


def binary(folder: Path, ids: list[int], name: str = "ncclDevFuncRowToId", release: str = "2.21.5") -> Path:
    """A library that has such a table."""
    source, library = folder / "table.cc", folder / "libtable.so"
    rows = f"extern int const {name}[] = {{{', '.join(map(str, [*ids, -1]))}}};\n"
    source.write_text(f'{rows}extern char const version[] = "NCCL version {release}+cuda11.0";\n')
    command = compiler()
    assert command
    subprocess.run([command, "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    return library


def read(library: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SOURCES / "wheel" / "functions.py", library, out]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_functions_have_the_names_of_their_rows(tmp_path: Path) -> None:
    ids = [-1] * ROWS
    ids[0], ids[1], ids[12], ids[13] = 554, 2, 250, 0
    first = 13 + 6 * 3  # AllReduce Sum u8, behind i8 in six algorithms and three protocols
    ids[16], ids[first + 3] = 30, 30  # one function for both
    done = read(binary(tmp_path, ids), tmp_path / "out.inc")
    assert done.returncode == 0, done.stderr
    rows = dict(line.strip("{},").split(", ", 1) for line in (tmp_path / "out.inc").read_text().splitlines())
    assert rows == {
        "0": '"AllReduce Sum i8 TREE LL"',
        "2": '"AllGather RING LL"',
        "30": '"AllReduce Sum u8 RING LL"',
        "250": '"Broadcast RING SIMPLE"',
        "554": '"SendRecv"',
    }


def test_a_table_of_another_release_is_refused(tmp_path: Path) -> None:
    done = read(binary(tmp_path, [-1] * (ROWS + 3)), tmp_path / "out.inc")
    assert done.returncode == 1 and "has 1516 rows of functions, and NCCL 2.21.5 has 1513" in done.stderr
    done = read(binary(tmp_path, [0], "other"), tmp_path / "out.inc")
    assert done.returncode == 1 and "there is no ncclDevFuncRowToId" in done.stderr
    done = read(binary(tmp_path, [-1] * ROWS, release="2.20.5"), tmp_path / "out.inc")
    assert done.returncode == 1 and "is not NCCL 2.21.5" in done.stderr
    (tmp_path / "text").write_text("text")
    assert "no 64-bit ELF file" in read(tmp_path / "text", tmp_path / "out.inc").stderr


def compiled(folder: Path, version: int) -> Path:
    """The interpreter and its driver, under the name of an NCCL of this version."""
    (folder / "functions.inc").write_text(f'{{{SEND_RECV}, "SendRecv"}},\n{{8, "AllReduce Sum u8 RING LL"}},\n')
    of_trees = ("facts_check.cc", "nccl_work.cc", "works.cc")
    sources = [path for path in sorted(SOURCES.glob("*.cc")) if path.name not in of_trees]
    base = ROOT / "csrc" / "base"
    c = [folder / f"{name}.o" for name in ("log", "text", "proc")]
    command = compiler()
    assert command
    for output in c:
        flags = ["-x", "c", "-std=gnu11", "-fPIC", "-O1", f"-I{base}", "-c", base / f"{output.stem}.c", "-o", output]
        subprocess.run(["cc", *flags], check=True, timeout=60)
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
    flags += ['-DPSM_NCCL_FACTS="wheel/facts_2_21.h"', f"-DPSM_TEST_VERSION={version}"]
    flags += [f"-I{place}" for place in (folder, SOURCES, base, ROOT / "csrc" / "hostcuda" / "include")]
    own = [SOURCES / "wheel" / "nccl_work.cc", Path(__file__).parent / "wheel_driver.cc"]
    done = subprocess.run(
        [command, *flags, *sources, *own, *c, "-o", folder / "libnccl.so.2", "-lpthread", "-ldl"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder / "libnccl.so.2"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(compiled(tmp_path_factory.mktemp("wheel"), 22105)))
    assert loaded.begin() == 0
    return loaded


def test_another_release_is_refused_when_it_runs(tmp_path: Path) -> None:
    # In a process of its own: the first NCCL that is found is asked.
    code = (
        "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); l.begin(); done = ctypes.c_uint32(); "
        "to = ctypes.create_string_buffer(8); "
        f"print(l.launch({KERNEL!r}, {SEND_RECV}, b'', to, b'12345678', ctypes.c_size_t(8), ctypes.byref(done)), to.raw)"
    )
    library = compiled(tmp_path, 22005)
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == f"{NOT_SUPPORTED} {bytes(8)!r}", done.stdout + done.stderr


def launch(
    library: ctypes.CDLL, twist: str = "", *, kernel: bytes = KERNEL, function: int = SEND_RECV
) -> tuple[int, bytes, int]:
    """Its result, the bytes that arrived, and what was told of the work FIFO."""
    source, target = bytes(range(200)), ctypes.create_string_buffer(200)
    done = ctypes.c_uint32()
    code = library.launch(
        kernel, function, twist.encode(), target, source, ctypes.c_size_t(len(source)), ctypes.byref(done)
    )
    return code, target.raw, done.value


def test_a_list_of_work_is_followed_and_acknowledged(library: ctypes.CDLL) -> None:
    assert launch(library) == (0, bytes(range(200)), 77)
    assert launch(library, kernel=b"_Z21ncclDevKernel_GenericP11ncclDevCommmP8ncclWork") == (0, bytes(range(200)), 77)


@pytest.mark.parametrize(
    ("twist", "code"),
    [
        ("parameters", NOT_SUPPORTED),
        ("registered", NOT_SUPPORTED),
        ("unequal", NOT_SUPPORTED),
        ("type", NOT_SUPPORTED),
        ("coll", LAUNCH_FAILURE),
        ("groups", LAUNCH_FAILURE),
        ("side", LAUNCH_FAILURE),
        ("peer", LAUNCH_FAILURE),
        ("endless", LAUNCH_FAILURE),
        ("rank", LAUNCH_FAILURE),
        ("blocks", LAUNCH_FAILURE),
    ],
)
def test_what_is_not_understood_is_refused_before_a_byte_moves(library: ctypes.CDLL, twist: str, code: int) -> None:
    assert launch(library, twist) == (code, bytes(200), 0)


def test_a_function_that_is_not_the_kernels_is_refused(library: ctypes.CDLL) -> None:
    other = b"_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LLP11ncclDevCommmP8ncclWork"
    assert launch(library, kernel=other) == (LAUNCH_FAILURE, bytes(200), 0)
    assert launch(library, function=8) == (LAUNCH_FAILURE, bytes(200), 0)
    assert launch(library, function=9) == (NOT_SUPPORTED, bytes(200), 0)
