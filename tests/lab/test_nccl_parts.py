"""The parts of ``psmkit lab nccl``: exact data, NCCL's files in /dev/shm, the RAS socket, names of functions, what differs."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psmkit.lab import nccl
from psmkit.lab.cuda import LabError
from psmkit.lab.nccl_memory import NcclMemory
from psmkit.lab.nccl_symbols import Symbols
from psmkit.live import ras

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CC", "cc")
# ncclDataType_t -> bits of exponent and mantissa; integers: their numpy type.
FLOATS = {6: (5, 10), 7: (8, 23), 8: (11, 52), 9: (8, 7), 10: (4, 3), 11: (5, 2)}
INTEGERS = {0: "i1", 1: "u1", 2: "<i4", 3: "<u4", 4: "<i8", 5: "<u8"}


class Task(ctypes.Structure):
    """struct lab_task of csrc/lab/task.h."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        *((key, ctypes.c_int) for key in ("pattern", "stream", "skip")),
        *((key, ctypes.c_uint64) for key in ("size", "iters", "seed", "device", "shorter")),
        ("registered", ctypes.c_bool),
    )


class Case(ctypes.Structure):
    """struct nccl_case of csrc/lab/nccl_rank.h."""

    _fields_ = (
        ("task", Task),
        *((key, ctypes.c_int) for key in ("op", "memory")),
        ("type", ctypes.c_uint),
        ("root", ctypes.c_uint64),
        ("ranks", ctypes.c_int),
        *((key, ctypes.c_bool) for key in ("blocking", "keep", "windows")),
        ("policy", ctypes.c_int),
        ("graph", ctypes.c_uint64),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("data") / "data.so"
    command = [
        COMPILER,
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        *(f"-I{ROOT / 'csrc' / room}" for room in ("cuda", "ranks")),
    ]
    sources = [str(ROOT / "csrc" / "lab" / name) for name in ("nccl_data.c", "task.c")]
    subprocess.run([*command, *sources, "-lm", "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    library.nccl_fill_part.argtypes = [
        ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(Case), ctypes.c_int, ctypes.c_int, ctypes.c_uint64,
    ]  # fmt: skip
    library.nccl_fill_result.argtypes = [*library.nccl_fill_part.argtypes[:5], ctypes.c_uint64]
    return library


def decode(raw: bytes, kind: int) -> Any:
    """Elements as float64, which holds all of them exactly; integers as they are."""
    if kind in INTEGERS:
        return np.frombuffer(raw, INTEGERS[kind])
    exponent, mantissa = FLOATS[kind]
    width = (1 + exponent + mantissa) // 8
    bits = np.frombuffer(raw, f"<u{width}").astype(np.uint64)
    sign = np.where(bits >> np.uint64(exponent + mantissa), -1.0, 1.0)
    power = (bits >> np.uint64(mantissa)) & np.uint64((1 << exponent) - 1)
    fraction = (bits & np.uint64((1 << mantissa) - 1)).astype(float) / (1 << mantissa)
    assert np.all(power < (1 << exponent) - 1), "no infinities"
    bias = (1 << (exponent - 1)) - 1
    normal = (1 + fraction) * np.exp2(power.astype(float) - bias)
    assert np.all((power > 0) | (fraction == 0)), "no subnormal numbers"
    return sign * np.where(power > 0, normal, 0.0)


def representable(values: Any, kind: int) -> bool:
    """Whether the float type has each of the values."""
    fraction, _ = np.frexp(values)
    scaled = fraction * 2.0 ** (FLOATS[kind][1] + 1)
    return bool(np.all(scaled == np.round(scaled)))


# A mean of three is not exact in floating point: that is the next test's.
@pytest.mark.parametrize(
    ("kind", "op", "ranks"),
    [
        (kind, op, ranks)
        for kind in (*INTEGERS, *FLOATS)
        for op in range(5)
        for ranks in (1, 2, 3, 8, 64)
        if not (op == 4 and kind in FLOATS and ranks == 3)
    ],
)
def test_results_are_those_of_numpy_and_exact_on_the_way(data: Any, kind: int, op: int, ranks: int) -> None:
    case, n = Case(type=kind, op=op, task=Task(seed=7)), 4096
    parts = []
    for rank in range(ranks):
        buffer = ctypes.create_string_buffer(n)
        data.nccl_fill_part(buffer, n, 64, case, rank, ranks, 3)
        parts.append(decode(buffer.raw, kind))
    buffer = ctypes.create_string_buffer(n)
    data.nccl_fill_result(buffer, n, 64, case, ranks, 3)
    result, stack = decode(buffer.raw, kind), np.stack(parts)
    combine = (np.add, np.multiply, np.maximum, np.minimum, np.add)[op]
    meant = parts[0]
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            meant = combine(meant, part)
            assert kind in INTEGERS or representable(meant, kind), "a partial result is rounded"
    if op == 4:
        meant = meant / ranks if kind in FLOATS else np.trunc(meant.astype(float) / ranks).astype(meant.dtype)
        assert kind in INTEGERS or representable(parts[0] / ranks, kind)
    np.testing.assert_array_equal(result, meant)
    assert len(np.unique(stack)) > 1 or ranks > 8


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
@pytest.mark.parametrize(("kind", "dtype"), [(6, np.float16), (7, np.float32), (8, np.float64)])
def test_a_mean_that_is_not_exact_is_rounded_once_in_any_order(data: Any, kind: int, dtype: Any, ranks: int) -> None:
    """As kernels compute it: each rank's element times the type's 1/ranks, and the sum of that."""
    case, n = Case(type=kind, op=4, task=Task(seed=9)), 4096
    factor = dtype(1 / ranks if dtype is np.float64 else np.float32(1 / ranks))
    parts = []
    for rank in range(ranks):
        buffer = ctypes.create_string_buffer(n)
        data.nccl_fill_part(buffer, n, 64, case, rank, ranks, 3)
        parts.append(np.frombuffer(buffer.raw[:n], dtype) * factor)
    buffer = ctypes.create_string_buffer(n)
    data.nccl_fill_result(buffer, n, 64, case, ranks, 3)
    result = np.frombuffer(buffer.raw[:n], dtype)
    for first in range(ranks):
        total = parts[first]
        for step in range(1, ranks):
            total = total + parts[(first + step) % ranks]
        np.testing.assert_array_equal(result, total)
    assert all(part.any() for part in parts), "each rank has something to give somewhere"


# ---- /dev/shm ----


@pytest.fixture
def living(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nccl-inuse0 open."""
    code = "import sys; f = open(sys.argv[1], 'w'); print('x', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "nccl-inuse0")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        yield process
        process.stdin.close()


def test_only_files_of_the_run_that_nobody_uses_are_removed(tmp_path: Path, living: subprocess.Popen[bytes]) -> None:
    (tmp_path / "nccl-before").write_text("")
    inuse = tmp_path / "nccl-inuse0"
    inuse.rename(tmp_path / "aside")
    memory = NcclMemory(tmp_path)
    (tmp_path / "aside").rename(inuse)
    for name in ("nccl-ours00", "nccl-others", "other-file"):
        (tmp_path / name).write_text("")
    (tmp_path / "nccl-link00").symlink_to(tmp_path / "other-file")
    log = tmp_path / "rank-0.log"
    names = ("nccl-before", "nccl-inuse0", "nccl-ours00", "nccl-link00", "other-file")
    log.write_text("".join(f"Allocated 8 bytes of shared memory in /dev/shm/{name}\n" for name in names))
    assert memory.reap([log, tmp_path / "none.log"]) == (["nccl-ours00"], ["nccl-others"])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"nccl-before", "nccl-inuse0", "nccl-others", "nccl-link00", "other-file", "rank-0.log"}


def test_what_a_living_rank_was_seen_to_use_is_the_runs(tmp_path: Path, living: subprocess.Popen[bytes]) -> None:
    inuse = tmp_path / "nccl-inuse0"
    inuse.rename(tmp_path / "aside")
    memory = NcclMemory(tmp_path)
    (tmp_path / "aside").rename(inuse)
    memory.look([living.pid])
    assert memory.reap([]) == ([], [])
    living.kill()
    living.wait()
    assert memory.reap([]) == (["nccl-inuse0"], [])


# ---- RAS ----


def _serve(answers: dict[bytes, bytes]) -> int:
    """A RAS thread that answers lines as it is told, and closes the connection after the last one."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener, listener.accept()[0] as connection, connection.makefile("rb") as lines:
            for line in lines:
                if (answer := answers.get(line.strip())) is not None:
                    connection.sendall(answer)
                if line.startswith(b"VERBOSE"):
                    return

    threading.Thread(target=run, daemon=True).start()
    port = listener.getsockname()[1]
    assert isinstance(port, int)
    return port


def test_ras_is_asked_for_the_verbose_status() -> None:
    port = _serve(
        {b"CLIENT PROTOCOL 2": b"SERVER PROTOCOL 2\n", b"TIMEOUT 3": b"OK\n", b"VERBOSE STATUS": b"Job summary\n"}
    )
    assert ras.ask(port) == "Job summary\n"


def test_who_does_not_speak_ras_is_no_ras() -> None:
    assert ras.ask(_serve({b"CLIENT PROTOCOL 2": b"HTTP/1.1 400 Bad Request\n"})) is None
    assert ras.ask(ras.free_port()) is None


def test_a_silent_ras_does_not_hold_the_run_up() -> None:
    begun = time.monotonic()
    assert ras.ask(_serve({}), patience=0.2) is None
    assert time.monotonic() - begun < 30


# ---- names of functions ----


def test_offsets_in_a_library_get_names(tmp_path: Path) -> None:
    source, library = tmp_path / "x.cc", tmp_path / "libx.so"
    source.write_text(
        'static int inner(int x) { asm(""); return x; }\nnamespace n { int outer(int x) { return inner(x) + 1; } }\n'
    )
    subprocess.run([COMPILER, "-O0", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    listing = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout
    at = {line.split()[2]: int(line.split()[0], 16) for line in listing.splitlines() if len(line.split()) == 3}
    inner, outer = at["_ZL5inneri"], at["_ZN1n5outerEi"]
    symbols = Symbols(library)
    text = f"libx.so+{inner + 2:#x} < x (libx.so+{outer + 2:#x}) < libx.so+{outer + 4:#x} < liby.so+0x10 < libx.so+0xfffffff"
    assert symbols.named(text) == f"inner < x (libx.so+{outer + 2:#x}) < outer < liby.so+0x10 < libx.so+0xfffffff"
    subprocess.run(["strip", str(library)], check=True)
    assert Symbols(library).named(text) == text


# ---- what differs ----


def test_keys_and_variables_of_a_rank() -> None:
    assert nccl.differ(["rank=1,skip=recv", "rank=1,NCCL_BUFFSIZE=65536", "rank=2,shorter=4K"]) == {
        1: {"skip": "recv", "NCCL_BUFFSIZE": "65536"},
        2: {"shorter": "4096"},
    }


@pytest.mark.parametrize("text", ["skip=recv", "rank=1", "rank=1,skip=nothing", "rank=1,size", "rank=one,skip=recv"])
def test_what_is_no_difference_is_refused(text: str) -> None:
    with pytest.raises(LabError, match=r"expected|unknown setting"):
        nccl.differ([text])
