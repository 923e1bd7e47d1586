"""A stock NCCL binary, unmodified, over the emulated driver: `make test-nccl` fetches it and names its folder in PSM_TEST_NCCL, and builds
the interpreter of its kernels (PSM_TEST_NCCL_KERNELS)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli.app import main
from psmkit.lab import nccl, nccl_library
from psmkit.lab.emulation import Emulation

STOCK = os.environ.get("PSM_TEST_NCCL")
KERNELS = os.environ.get("PSM_TEST_NCCL_KERNELS", "")
OLDER = [Path(text) for text in os.environ.get("PSM_TEST_NCCL_OLDER", "").split(":") if text]
pytestmark = pytest.mark.skipif(not STOCK, reason="PSM_TEST_NCCL names no NCCL library: make test-nccl")


def run(
    out: Path, capsys: pytest.CaptureFixture[str], *arguments: str, library: str = str(STOCK)
) -> tuple[int, dict[str, Any]]:
    command = ["lab", "nccl", "--lib", library, *arguments, "--deadline", "120", "--out", str(out)]
    status = main([*command, "--format", "json"])
    text, err = capsys.readouterr()
    assert status != 2, err
    return status, json.loads(text)


def test_it_is_what_it_is_taken_for() -> None:
    found = nccl_library.find(Path(str(STOCK)))
    assert (found.version, found.cudart) == ("2.21.5", "static 11.0")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_begin_and_end(ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(tmp_path / "out", capsys, "--ranks", str(ranks), "--iters", "0")
    assert (status, [r["state"] for r in result["ranks"]]) == (0, ["good"] * ranks), result
    assert result["analysis"]["verdict"] == "healthy"
    calls = Emulation(tmp_path / "out" / "records").calls()
    assert {c.function for c in calls if not c.provided} == set()
    assert "cuGetExportTable" in {c.function for c in calls}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("place", OLDER or [pytest.param(None, marks=pytest.mark.skip("make test-nccl OLDER=2.20.5"))])
def test_ranks_of_older_binaries_with_the_same_runtime_begin_and_end(
    place: Path, ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nccl_library.find(place).cudart == "static 11.0"
    status, result = run(tmp_path / "out", capsys, "--ranks", str(ranks), "--iters", "0", library=str(place))
    assert [r["state"] for r in result["ranks"]] == ["good"] * ranks, result
    assert (status, result["analysis"]["verdict"]) == (0, "healthy")
    assert {c.function for c in Emulation(tmp_path / "out" / "records").calls() if not c.provided} == set()


def test_a_kernel_without_an_interpreter_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(tmp_path / "out", capsys, "--ranks", "2", "--size", "4K", "--iters", "1")
    assert (status, [r["state"] for r in result["ranks"]]) == (1, ["failed", "failed"])
    assert {rank["reports"][0]["by"] for rank in result["ranks"]} == {"nccl"}
    log = (tmp_path / "out" / "logs" / "rank-0.log").read_text()
    assert "SendRecv" in log and "is not launched: there is no GPU to run it and no interpreter for it" in log


# Paths on which ranks connect to each other, which this release does as soon as they begin.
PATHS: dict[str, tuple[str, ...]] = {
    "shared memory": ("--env", "NCCL_P2P_DISABLE=1"),
    "shared memory, copied by the proxy": ("--env", "NCCL_P2P_DISABLE=1", "--env", "NCCL_SHM_USE_CUDA_MEMCPY=1"),
    "sockets": ("--env", "NCCL_P2P_DISABLE=1", "--env", "NCCL_SHM_DISABLE=1"),
    "peers, copied by the proxy": ("--env", "NCCL_P2P_USE_CUDA_MEMCPY=1"),
    "two nodes": ("--nodes", "2"),
    "no NVLink": ("--link", "pcie"),
    "a communicator that does not block": ("--nonblocking-comm",),
}

needs_kernels = pytest.mark.skipif(not KERNELS, reason="PSM_TEST_NCCL_KERNELS names no interpreter: make test-nccl")
# Less memory, so that beginning takes less time.
SMALL = {
    "NCCL_MAX_NCHANNELS": "4",
    "NCCL_BUFFSIZE": "524288",
    "NCCL_LL128_BUFFSIZE": "245760",
    "NCCL_LL_BUFFSIZE": "131072",
}
# All that this release has.
TYPES = tuple(name for name in nccl.TYPES if not name.startswith("float8"))
WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}
SETTINGS = {
    "ring, LL": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
    "ring, LL128": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"},
    "ring, Simple": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_P2P_LL_THRESHOLD": "0"},
    "tree, LL": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"},
    "tree, LL128": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128"},
    "tree, Simple": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"},
}
# What the log must name, so that no other way was taken.
NAMES = {name: name.upper().replace(", ", " ") for name in SETTINGS}


@pytest.mark.parametrize("path", PATHS)
def test_ranks_meet_on_every_path(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [word for name, value in SMALL.items() for word in ("--env", f"{name}={value}")]
    kernels = ("--kernels", KERNELS, "--iters", "1") if KERNELS else ("--iters", "0")
    status, result = run(tmp_path / "out", capsys, "--ranks", "2", *PATHS[path], *small, *kernels)
    assert (status, [r["state"] for r in result["ranks"]]) == (0, ["good"] * 2), result
    assert {c.function for c in Emulation(tmp_path / "out" / "records").calls() if not c.provided} == set()


def expect_every_byte(cases: list[nccl.NcclCase], ranks: int, folder: Path, environment: dict[str, str]) -> str:
    """Run the cases one after the other on one communicator; what the log of rank 0 tells of kernels."""
    kept = [replace(case, name=str(i), seed=i + 1, keep=int(case is not cases[-1])) for i, case in enumerate(cases)]
    done = nccl.start(
        nccl_library.find(Path(str(STOCK))),
        kept,
        ranks,
        folder,
        deadline=120 + len(cases),
        emulation=Emulation(folder / "records"),
        environment=SMALL | environment | {"PSM_HOSTCUDA_KERNELS": KERNELS},
    ).outcome
    bad = [
        f"{r['status']}: {r['text']}, {kept[int(r['name'])]}" for rank in done.ranks for r in rank.reports if r["text"]
    ]
    assert ([rank.state for rank in done.ranks], bad) == (["good"] * ranks, [])
    assert [len(rank.reports) for rank in done.ranks] == [len(cases)] * ranks
    assert not done.shared_memory
    lines = (folder / "logs" / "rank-0.log").read_text().splitlines()
    return "\n".join(line for line in lines if "kernels: " in line)


@needs_kernels
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_type_is_reduced_by_every_operation(ranks: int, setting: str, tmp_path: Path) -> None:
    patterns = ("allreduce",) if setting.startswith("tree") else ("allreduce", "reducescatter", "reduce")
    cases = [
        nccl.NcclCase(pattern=pattern, type=kind, op=op, size=n * width(kind), root=n % ranks, iters=1)
        for pattern in patterns
        for kind in TYPES
        for op in nccl.OPS
        for n in (1, 1021, 40961)
    ]
    log = expect_every_byte(cases, ranks, tmp_path / "out", SETTINGS[setting])
    for pattern in ("AllReduce", "ReduceScatter", "Reduce")[: len(patterns)]:
        assert f"kernels: {pattern} SumPostDiv i32 {NAMES[setting]} is run by the CPU" in log
        assert f"kernels: {pattern} MinMax bf16 {NAMES[setting]} is run by the CPU" in log


@needs_kernels
@pytest.mark.parametrize("setting", ["ring, LL", "ring, LL128", "ring, Simple"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_data_is_moved_whole(ranks: int, setting: str, tmp_path: Path) -> None:
    cases = [
        nccl.NcclCase(pattern=pattern, size=size, root=ranks - 1)
        for pattern in ("allgather", "broadcast", "pair", "ring", "alltoall", "random")
        for size in (1, 1021, 65536, (1 << 20) + 3)
    ]
    log = expect_every_byte(cases, ranks, tmp_path / "out", SETTINGS[setting])
    for pattern in ("AllGather", "Broadcast"):
        assert f"kernels: {pattern} {NAMES[setting]} is run by the CPU" in log
    assert "kernels: SendRecv is run by the CPU" in log


@needs_kernels
def test_what_nccl_chooses_itself_is_right_in_large_and_small(tmp_path: Path) -> None:
    cases = [
        nccl.NcclCase(pattern=pattern, type="float32", size=size, app_stream=stream)
        for pattern in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
        for size in (4, 4096, 8 << 20)
        for stream in ("legacy", "blocking", "nonblocking")
    ]
    expect_every_byte(cases, 4, tmp_path / "out", {"NCCL_MAX_NCHANNELS": "8"})


def width(kind: str) -> int:
    return WIDTHS["".join(c for c in kind if c.isdecimal())]


def matrix(out: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The cells of `psmkit lab matrix` in which no run hangs, fails or is in doubt, and no message is unknown."""
    small = [word for name, value in SMALL.items() for word in ("--env", f"{name}={value}")]
    command = ["lab", "matrix", "--nccl", *arguments, *small, "--deadline", "120", "--out", str(out)]
    status = main([*command, "--format", "json"])
    text, err = capsys.readouterr()
    assert status == 0, err + text
    cells: list[dict[str, Any]] = json.loads(text)["cells"]
    assert [(one["outcome"], one["unknown"]) for cell in cells for one in cell["runs"]] == [("works", [])] * len(cells)
    return cells


@needs_kernels
def test_a_library_takes_the_same_steps_when_it_is_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = f"{STOCK},{KERNELS}"
    cells = matrix(tmp_path / "out", capsys, same, same, "--pattern", "allreduce,ring", "--size", "4K", "--iters", "1")
    assert [cell["library"] for cell in cells] == ["2.21.5 (1)", "2.21.5 (2)"] * 2
    assert [cell["steps"]["steps"] for cell in cells if cell["steps"]] == [[], []]


@pytest.mark.skipif(not OLDER, reason="make test-nccl OLDER=2.20.5")
def test_older_releases_are_compared_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [*map(str, OLDER), str(STOCK)]
    cells = matrix(tmp_path / "out", capsys, *places, "--iters", "0")
    assert [cell["library"] for cell in cells] == [nccl_library.find(Path(place)).version for place in places]
