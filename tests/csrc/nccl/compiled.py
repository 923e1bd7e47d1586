"""The interpreter of NCCL's device work, compiled against facts instead of a tree."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.csrc.base.compiled import BASE, WARNINGS, link, messages

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "csrc" / "nccl" / "interpreter"
TYPES = ("i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2")
OPS = ("Sum", "Prod", "MinMax", "PreMulSum", "SumPostDiv")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
ALGORITHMS = ("RING", "TREE", "NVLS")


def functions() -> list[str]:
    """Functions of a table as NCCL's build writes it."""
    names = ["SendRecv", "AllGatherV RING LL", "AllGather PAT SIMPLE", "Nop"]
    names += [f"{coll} RING {proto}" for coll in ("AllGather", "Broadcast") for proto in PROTOCOLS]
    names += [
        f"{coll} {op} {kind} {algorithm} {proto}"
        for coll in ("AllReduce", "ReduceScatter", "Reduce")
        for op in OPS
        for kind in TYPES
        for algorithm in (ALGORITHMS if coll == "AllReduce" else ("RING",))
        for proto in PROTOCOLS
    ]
    return names


def host_table(names: Sequence[str]) -> str:
    """Signed integers have the functions of unsigned ones."""
    ids = {name: number for number, name in enumerate(dict.fromkeys(unsigned(name) for name in names))}
    rows = "".join(f"/*{row:4}*/ {ids[unsigned(name)]}, // {name}\n" for row, name in enumerate(names))
    return f"extern int const ncclDevFuncRowToId[] = {{\n/*   0*/ -1,\n{rows}-1}};\n"


def unsigned(name: str) -> str:
    return name.replace(" i8 ", " u8 ").replace(" i32 ", " u32 ").replace(" i64 ", " u64 ")


class Spec(ctypes.Structure):
    """As struct spec of driver.cc."""

    _fields_ = (
        ("ranks", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("root", ctypes.c_int),
        ("function", ctypes.c_uint),
        ("protocol", ctypes.c_uint),
        ("p2p", ctypes.c_int),
        ("count", ctypes.c_size_t),
        ("element", ctypes.c_size_t),
        ("grains", ctypes.c_uint),
        ("argument", ctypes.c_uint64),
        ("twist", ctypes.c_char_p),
        ("order", ctypes.POINTER(ctypes.c_int)),
    )


@cache
def compiler() -> str | None:
    """A C++ compiler."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def build(folder: Path) -> ctypes.CDLL:
    """The interpreter and its driver as a library."""
    command = compiler()
    assert command
    table, made = folder / "host_table.cc", folder / "functions.inc"
    table.write_text(host_table(functions()))
    subprocess.run([sys.executable, SOURCES / "functions.py", table, made], check=True, timeout=60)
    messages("psmkit", folder / "psm_messages.h")
    used = [path for path in BASE.glob("*.c") if path.name != "log.c" and not path.name.startswith("fault")]
    base = link(folder / "base.o", used, [*WARNINGS, "-fPIC", f"-I{folder}", f"-I{BASE}"], ["-r", "-nostdlib"])
    sources = [path for path in sorted(SOURCES.glob("*.cc")) if path.name != "facts_check.cc"]
    options = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
    options += [
        '-DPSM_NCCL_FACTS="facts_2_26.h"',
        *(f"-I{place}" for place in (folder, SOURCES, ROOT / "csrc/base", ROOT / "csrc/hostcuda/include")),
    ]
    options += os.environ.get("PSM_TEST_CXXFLAGS", "").split()  # scripts/sanitize.sh
    output = folder / "libinterpreter.so"
    done = subprocess.run(
        [command, *options, *sources, Path(__file__).parent / "driver.cc", base, "-o", output, "-lpthread"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(output))


class Interpreter:
    """The library, with numpy arrays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        names = list(dict.fromkeys(unsigned(name) for name in functions()))
        self.ids = {name: names.index(unsigned(name)) for name in functions()}

    def arithmetic(
        self,
        kind: str,
        op: str,
        stage: int,
        a: npt.NDArray[np.generic],
        b: npt.NDArray[np.generic] | None = None,
        argument: int = 0,
    ) -> npt.NDArray[np.generic] | None:
        """One stage of a reduction; None: the op is refused."""
        out = np.empty_like(a)
        second = a if b is None else b
        rc = self.library.arithmetic(
            kind.encode(),
            op.encode(),
            ctypes.c_uint64(argument),
            stage,
            out.ctypes.data_as(ctypes.c_void_p),
            a.ctypes.data_as(ctypes.c_void_p),
            second.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(a.size),
        )
        return None if rc else out

    def launch(
        self,
        function: str,
        send: Sequence[npt.NDArray[np.generic]],
        recv: Sequence[npt.NDArray[np.generic]],
        count: int,
        *,
        channels: int = 1,
        root: int = 0,
        grains: int = 1,
        argument: int = 0,
        twist: str = "",
        order: Sequence[int] | None = None,
        ll: bool = False,
    ) -> tuple[int, str]:
        """All ranks launch a function: the error, and what was said."""
        ranks = len(send)
        protocol = PROTOCOLS.index(function.split()[-1]) if " " in function else 0 if ll else 2
        places = (ctypes.c_int * ranks)(*(order or range(ranks)))
        spec = Spec(
            ranks, channels, root, self.ids.get(function, 30000), protocol, function == "SendRecv", count, send[0].itemsize, grains,
            argument, twist.encode(), places,
        )  # fmt: skip
        text = ctypes.create_string_buffer(2048)
        pointers = ctypes.c_void_p * ranks
        rc: int = self.library.run_case(
            ctypes.byref(spec),
            pointers(*(array.ctypes.data for array in send)),
            pointers(*(array.ctypes.data for array in recv)),
            (ctypes.c_size_t * 2)(send[0].nbytes, recv[0].nbytes),
            text,
            ctypes.c_size_t(len(text)),
        )
        return rc, text.value.decode()
