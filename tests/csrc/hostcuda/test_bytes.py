"""How the emulated CUDA moves bytes: as memmove, at every size at which it goes another way, at any alignment."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Callable

import pytest

from tests.csrc.base import compiled

HOSTCUDA = compiled.ROOT / "csrc" / "hostcuda"
KIB, MIB = 1 << 10, 1 << 20
LARGEST = 33 * MIB
EDGE = 4 * KIB  # around what is moved, to see that nothing else is written
Move = Callable[[int, int, int], None]


@pytest.fixture(scope="module", params=[1, 4], ids=["1 page", "4 pages"])
def move(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Move:
    """hc_bytes_move, as on each kind of processor."""
    library = tmp_path_factory.mktemp("bytes") / "bytes.so"
    command = [compiled.compiler(), *compiled.WARNINGS, "-O2", "-fPIC", "-shared"]
    command += ["-I", str(HOSTCUDA), str(HOSTCUDA / "copy" / "bytes.c")]
    command.append(f"-DHC_STREAM_PAGES={request.param}")
    done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    function = ctypes.CDLL(str(library)).hc_bytes_move
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = None
    return function  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def source() -> bytearray:
    return bytearray(random.Random(4).randbytes(LARGEST + 2 * EDGE))


def address(memory: bytearray, offset: int = 0) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0), (0, 1), (63, 17), (17, 63)], ids=str)
@pytest.mark.parametrize(
    "size", [0, 1, 128 * KIB - 1, 128 * KIB, 128 * KIB + 77, MIB + 1, 32 * MIB - 1, 32 * MIB, 32 * MIB + 16 * KIB + 99]
)
def test_every_byte_arrives_and_no_other_is_written(
    move: Move, source: bytearray, size: int, offsets: tuple[int, int]
) -> None:
    to, begin = EDGE + offsets[0], offsets[1]
    target = bytearray(b"\xee") * (size + 2 * EDGE)
    move(address(target, to), address(source, begin), size)
    assert target[to : to + size] == source[begin : begin + size]
    assert not target[:to].strip(b"\xee")
    assert not target[to + size :].strip(b"\xee")


@pytest.mark.parametrize("size", [128 * KIB, 32 * MIB])
@pytest.mark.parametrize("shift", [1, 64, 100 * KIB])
@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
def test_operands_may_overlap(move: Move, source: bytearray, size: int, shift: int, forward: bool) -> None:
    memory = bytearray(source[: size + shift])
    begin, to = (0, shift) if forward else (shift, 0)
    wanted = bytes(memory[begin : begin + size])
    move(address(memory, to), address(memory, begin), size)
    assert memory[to : to + size] == wanted
