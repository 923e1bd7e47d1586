"""Launches of all ranks of a communicator: data as NCCL's kernels move it, and refusals before anything moves."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.csrc.nccl import compiled
from tests.csrc.nccl.compiled import PROTOCOLS, Interpreter

Array = npt.NDArray[np.generic]
GRAIN = {"LL": 16, "LL128": 1920, "SIMPLE": 512}
GRAINS = {"LL": 4, "LL128": 1, "SIMPLE": 8}  # of a chunk
UNTOUCHED = 77


def data(ranks: int, count: int, dtype: npt.DTypeLike, seed: int = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return [(rng.standard_normal(count) * 10 ** rng.uniform(-3, 3, count)).astype(kind) for _ in range(ranks)]
    return [rng.integers(0, np.iinfo(kind).max, count, dtype=kind) for _ in range(ranks)]


def empty(ranks: int, count: int, dtype: npt.DTypeLike) -> list[Array]:
    return [np.full(count, UNTOUCHED, dtype) for _ in range(ranks)]


def starts(count: int, channels: int, ranks: int, chunk: int, element: int) -> npt.NDArray[np.int64]:
    """For each element of a ring all-reduce, which of the ring's chunks it is in."""
    share, out = -(-count // channels), np.empty(count, np.int64)
    for channel in range(channels):
        begin, end = min(channel * share, count), min((channel + 1) * share, count)
        while begin < end:
            size, unit = chunk, 16 // element
            if end - begin < ranks * chunk:
                size = math.ceil((end - begin) / ranks / unit) * unit
            stop = min(begin + ranks * size, end)
            out[begin:stop] = np.arange(stop - begin) // size
            begin = stop
    return out


def in_ring_order(values: Sequence[Array], order: Sequence[int], chunk_of: npt.NDArray[np.int64]) -> Array:
    """The sum of a chunk begins behind the rank that it ends at, and takes one rank after the other."""
    out = np.empty_like(values[0])
    for which in range(len(values)):
        mine = chunk_of == which
        total = values[order[(which + 1) % len(order)]][mine]
        for step in range(2, len(order) + 1):
            total = values[order[(which + step) % len(order)]][mine] + total
        out[mine] = total
    return out


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (3, 2), (5, 3)])
@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f16", np.float16)])
def test_a_ring_sums_in_its_order(
    interpreter: Interpreter, protocol: str, ranks: int, channels: int, kind: str, dtype: npt.DTypeLike
) -> None:
    order = list(np.random.default_rng(ranks).permutation(ranks))
    element = np.dtype(dtype).itemsize
    for count in (1, 5, 1021, 30011):
        send, recv = data(ranks, count, dtype), empty(ranks, count, dtype)
        rc, said = interpreter.launch(
            f"AllReduce Sum {kind} RING {protocol}",
            send,
            recv,
            count,
            channels=channels,
            grains=GRAINS[protocol],
            order=order,
        )
        assert rc == 0, said
        chunk = GRAIN[protocol] * GRAINS[protocol] // element
        meant = in_ring_order(send, order, starts(count, channels, ranks, chunk, element))
        assert all(np.array_equal(out, meant) for out in recv)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 1021, 20000])
def test_collectives_of_integers(interpreter: Interpreter, protocol: str, ranks: int, count: int) -> None:
    options = {"channels": 2, "grains": GRAINS[protocol], "order": list(range(ranks))[::-1]}
    send = data(ranks, count, np.uint8)
    total = np.sum(send, axis=0, dtype=np.uint8)
    recv = empty(ranks, count * ranks, np.uint8)
    assert interpreter.launch(f"AllGather RING {protocol}", send, recv, count, **options)[0] == 0  # type: ignore[arg-type]
    assert all(np.array_equal(out, np.concatenate(send)) for out in recv)
    for root in range(ranks):
        recv = empty(ranks, count, np.uint8)
        assert interpreter.launch(f"Broadcast RING {protocol}", send, recv, count, root=root, **options)[0] == 0  # type: ignore[arg-type]
        assert all(np.array_equal(out, send[root]) for out in recv)
        recv = empty(ranks, count, np.uint8)
        assert interpreter.launch(f"Reduce Sum u8 RING {protocol}", send, recv, count, root=root, **options)[0] == 0  # type: ignore[arg-type]
        assert all(np.array_equal(out, total if r == root else np.full(count, UNTOUCHED)) for r, out in enumerate(recv))
    recv = empty(ranks, count, np.uint8)
    assert interpreter.launch(f"AllReduce Sum u8 TREE {protocol}", send, recv, count, **options)[0] == 0  # type: ignore[arg-type]
    assert all(np.array_equal(out, total) for out in recv)
    wide, recv = data(ranks, count * ranks, np.uint8), empty(ranks, count, np.uint8)
    assert interpreter.launch(f"ReduceScatter Sum u8 RING {protocol}", wide, recv, count, **options)[0] == 0  # type: ignore[arg-type]
    total = np.sum(wide, axis=0, dtype=np.uint8)
    assert all(np.array_equal(out, total[r * count : (r + 1) * count]) for r, out in enumerate(recv))


def test_results_in_place(interpreter: Interpreter) -> None:
    send = data(3, 5000, np.float32)
    meant = in_ring_order(send, range(3), starts(5000, 1, 3, 1024, 4))
    both = [array.copy() for array in send]
    assert interpreter.launch("AllReduce Sum f32 RING SIMPLE", both, both, 5000, grains=8)[0] == 0
    assert all(np.array_equal(out, meant) for out in both)


def test_a_mean_has_its_factor_before_and_its_divisor_behind(interpreter: Interpreter) -> None:
    send, recv = data(3, 999, np.float32), empty(3, 999, np.float32)
    third = np.float32(1) / np.float32(3)
    for twist in ("", "argument by address"):
        argument = int(third.view(np.uint32))
        rc, said = interpreter.launch(
            "AllReduce PreMulSum f32 RING LL", send, recv, 999, grains=4, argument=argument, twist=twist
        )
        assert rc == 0, said
        meant = in_ring_order([array * third for array in send], range(3), starts(999, 1, 3, 16, 4))
        assert all(np.array_equal(out, meant) for out in recv)
    whole, out = [np.full(9, value, np.int32) for value in (-8, 3, -5)], empty(3, 9, np.int32)
    assert interpreter.launch("AllReduce SumPostDiv i32 RING SIMPLE", whole, out, 9, argument=3 << 1 | 1)[0] == 0
    assert all((array == -3).all() for array in out)


@pytest.mark.parametrize("ll", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_all_ranks_send_to_all(interpreter: Interpreter, ll: bool, channels: int) -> None:
    for ranks in (2, 5):
        for count in (1, 4095, 40003):
            send, recv = data(ranks, count * ranks, np.uint8), empty(ranks, count * ranks, np.uint8)
            rc, said = interpreter.launch("SendRecv", send, recv, count, channels=channels, ll=ll)
            assert rc == 0, said
            for r, out in enumerate(recv):
                meant = [send[peer][r * count : (r + 1) * count] for peer in range(ranks)]
                assert np.array_equal(out, np.concatenate(meant))


def test_messages_of_no_bytes_end(interpreter: Interpreter) -> None:
    send, recv = data(2, 8, np.uint8), empty(2, 8, np.uint8)
    assert interpreter.launch("SendRecv", send, recv, 0)[0] == 0
    assert all((out == UNTOUCHED).all() for out in recv)


@pytest.mark.parametrize("twist", ["fifo of a proxy", "shared buffer", "work FIFO"])
def test_what_the_host_may_choose_otherwise(interpreter: Interpreter, twist: str) -> None:
    """A proxy behind the connection, slots of a buffer that connections share, work in a FIFO that wraps around."""
    send, recv = data(3, 9000, np.uint8), empty(3, 9000, np.uint8)
    rc, said = interpreter.launch("SendRecv", send, recv, 3000, twist=twist)
    assert rc == 0, said
    assert np.array_equal(recv[1][:3000], send[0][3000:6000])
    send, recv = data(3, 9000, np.float32), empty(3, 9000, np.float32)
    rc, said = interpreter.launch("AllReduce Sum f32 RING SIMPLE", send, recv, 9000, grains=8, twist=twist)
    assert rc == 0, said
    assert np.array_equal(recv[0], in_ring_order(send, range(3), starts(9000, 1, 3, 1024, 4)))
    # In the FIFO the position behind the last work is told; the work has 96 bytes, 32 of them before its end.
    assert f"consumed {3 * 1024 - 32 + 96 if twist == 'work FIFO' else 0}" in said


@pytest.mark.parametrize(
    ("function", "count", "works"), [("SendRecv", 3000, 3), ("AllReduce Sum f32 RING SIMPLE", 9000, 1)]
)
def test_the_counters_of_a_profiler_tell_of_the_work_that_began_and_ended(
    interpreter: Interpreter, function: str, count: int, works: int
) -> None:
    dtype = np.uint8 if function == "SendRecv" else np.float32
    send = data(3, 9000, dtype)
    rc, said = interpreter.launch(function, send, empty(3, 9000, dtype), count, twist="profiler")
    assert rc == 0, said
    assert f"works {works} consumed 0 begun {works} ended {works}" in said
    rc, said = interpreter.launch(function, send, empty(3, 9000, dtype), count)
    assert rc == 0 and f"works {works} consumed 0 begun 0 ended 0" in said


def test_a_launch_that_is_aborted_ends(interpreter: Interpreter) -> None:
    send, recv = data(2, 100, np.float32), empty(2, 100, np.float32)
    assert interpreter.launch("AllReduce Sum f32 RING SIMPLE", send, recv, 100, twist="aborted")[0] == 0
    assert all((out == UNTOUCHED).all() for out in recv)


REFUSED = {
    # twist: function, error, what is said
    "registered": ("AllReduce Sum f32 RING SIMPLE", 801, "NCCL_LOCAL_REGISTER=0"),
    "registered with the net": ("AllReduce Sum f32 RING SIMPLE", 801, "NCCL_LOCAL_REGISTER=0"),
    "registered work": ("AllReduce Sum f32 RING SIMPLE", 801, "NCCL_LOCAL_REGISTER=0"),
    "unknown work": ("AllReduce Sum f32 RING SIMPLE", 801, "work of type 3"),
    "wrong work": ("AllReduce Sum f32 RING SIMPLE", 719, "is given work of type 0"),
    "NVLS": ("AllReduce Sum f32 RING SIMPLE", 801, "NCCL_NVLS_ENABLE=0"),
    "unpack": ("AllReduce Sum f32 RING SIMPLE", 801, "net plugin"),
    "proxy by address": ("AllReduce Sum f32 RING SIMPLE", 801, "by address"),
    "no connection": ("AllReduce Sum f32 RING SIMPLE", 719, "no connection to rank"),
    "no buffer": ("AllReduce Sum f32 RING SIMPLE", 719, "buffer is NULL"),
    "no memory": ("AllReduce Sum f32 RING SIMPLE", 700, "the send buffer: device 0 cannot read 400 bytes"),
    "another channel": ("AllReduce Sum f32 RING SIMPLE", 719, "spread over channels 1 to 0"),
    "root": ("Reduce Sum f32 RING SIMPLE", 719, "root 99 of 2"),
    "no work": ("AllReduce Sum f32 RING SIMPLE", 719, "no work"),
    "work outside": ("AllReduce Sum f32 RING SIMPLE", 719, "outside of the arguments"),
    "batch outside": ("AllReduce Sum f32 RING SIMPLE", 719, "batch 1000 lies outside"),
    "grid": ("AllReduce Sum f32 RING SIMPLE", 719, "2 blocks are launched for 1 channels"),
    "kernel ReduceScatter_Sum_f64_RING_LL": ("AllReduce Sum f32 RING SIMPLE", 719, "not the kernel of"),
    "kernel AllReduce_Sum_f64_RING_LL": ("AllReduce Sum f32 RING SIMPLE", 719, "not the kernel of"),
    "kernel AllReduce_f64_RING": ("AllReduce Sum f32 RING SIMPLE", 719, "not the kernel of"),
    "kernel AllGather_RING": ("AllReduce Sum f32 RING SIMPLE", 719, "not the kernel of"),
    "no arguments": ("AllReduce Sum f32 RING SIMPLE", 801, "packed arguments"),
    "peer": ("SendRecv", 719, "no peer 99"),
    "own message": ("SendRecv", 801, "a rank's message to itself"),
}


@pytest.mark.parametrize("twist", REFUSED)
def test_what_is_not_understood_is_refused_before_anything_moves(interpreter: Interpreter, twist: str) -> None:
    function, code, words = REFUSED[twist]
    count = 50 if function == "SendRecv" else 100
    dtype = np.uint8 if function == "SendRecv" else np.float32
    send, recv = data(2, 100, dtype), empty(2, 100, dtype)
    rc, said = interpreter.launch(function, send, recv, count, twist=twist)
    assert rc == code, said
    assert "is refused" in said and words in said
    assert "|untouched" in said
    assert all((out == UNTOUCHED).all() for out in recv)


@pytest.mark.parametrize(
    "kernel",
    [
        "Generic",
        "AllReduce_Sum_f32_RING_LL",
        "AllReduce_f32_RING",  # from 2.31 on
        "AllReduce_Sum_f32_RING_SIMPLE",  # built with NCCL_EXACT_KERNEL_NAMES
    ],
)
def test_a_kernel_of_the_same_collective_and_type_is_taken_under_the_names_of_each_release(
    interpreter: Interpreter, kernel: str
) -> None:
    send, recv = data(2, 100, np.float32), empty(2, 100, np.float32)
    rc, said = interpreter.launch("AllReduce Sum f32 RING SIMPLE", send, recv, 100, twist=f"kernel {kernel}")
    assert rc == 0, said


OVERWRITTEN = {
    "channels": ("SendRecv", "SendRecv is spread over 0 channels"),
    "peer": ("SendRecv", "no peer 99: there are 2 ranks"),
    "bytes": ("SendRecv", "a message of 18446744073709551610 bytes"),
    "count": ("ReduceScatter Sum f32 RING SIMPLE", "2305843009213693951 elements on a channel"),
    "chunk": ("AllGather RING SIMPLE", "chunks of 0 elements"),
}


@pytest.mark.parametrize("what", OVERWRITTEN)
def test_work_that_was_written_over_is_refused_by_the_name_of_its_fifo(interpreter: Interpreter, what: str) -> None:
    function, words = OVERWRITTEN[what]
    dtype = np.float32 if "f32" in function else np.uint8
    send, recv = data(2, 100, dtype), empty(2, 100, dtype)
    rc, said = interpreter.launch(function, send, recv, 50, twist=f"overwritten {what}")
    assert rc == 719, said
    assert re.search(r"is refused: the work FIFO of 1024 bytes at 0x\w+ was written over at offset 992 ", said), said
    assert words in said and "NCCL_WORK_FIFO_BYTES" in said and "|untouched" in said


@pytest.mark.parametrize(
    "function", ["SendRecv", "AllReduce Sum f32 RING LL", "AllGather RING SIMPLE", "Reduce Sum f32 RING SIMPLE"]
)
def test_noise_in_the_work_fifo_moves_nothing(interpreter: Interpreter, function: str) -> None:
    dtype = np.float32 if "f32" in function else np.uint8
    for seed in range(150):
        send, recv = data(2, 100, dtype), empty(2, 100, dtype)
        rc, said = interpreter.launch(function, send, recv, 50, twist=f"overwritten noise {seed}")
        # Work of no elements looks right.
        assert "|untouched" in said and (rc == 0 or "is refused" in said), (seed, said)
        assert all((out == UNTOUCHED).all() for out in recv)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("AllReduce Sum f32 NVLS SIMPLE", "algorithm NVLS is not interpreted: set NCCL_ALGO=Ring"),
        ("AllGather PAT SIMPLE", "algorithm PAT is not interpreted: set NCCL_ALGO=Ring"),
        ("AllGatherV RING LL", "NCCL_ALLGATHERV_ENABLE=0"),
        ("AllReduce SumPostDiv f32 RING SIMPLE", "not divided afterwards"),
        ("Nop", "Nop is not interpreted"),
        ("of another table", "does not have"),
    ],
)
def test_functions_without_a_schedule_are_refused(interpreter: Interpreter, function: str, words: str) -> None:
    send, recv = data(2, 100, np.float32), empty(2, 100, np.float32)
    rc, said = interpreter.launch(function if function != "of another table" else "no such LL", send, recv, 100)
    assert rc == 801, said
    assert words in said and "|untouched" in said


@pytest.mark.parametrize("kind", ["int", "int64_t"])
def test_the_offset_in_a_shared_buffer_has_the_width_that_the_tree_declares(kind: str, tmp_path: Path) -> None:
    """32 bits up to 2.31.0, 64 bits in 2.31.2."""
    source, program = tmp_path / "offset.cc", tmp_path / "offset"
    source.write_text(
        f"""#include "nccl_flow.h"
        int main() {{
            {kind} there[2] = {{40, -1}};
            psm::End end;
            end.fifo[0].offset = &there[0];
            return psm::offset_in(end.fifo[0].offset) == 40 ? 0 : 1;
        }}"""
    )
    command = compiled.compiler()
    assert command
    folders = [f"-I{place}" for place in (compiled.SOURCES, compiled.ROOT / "csrc/hostcuda/include")]
    subprocess.run([command, "-std=c++17", *folders, source, "-o", program], check=True, timeout=120)
    assert subprocess.run([program], check=False, timeout=60).returncode == 0
