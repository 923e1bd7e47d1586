"""``psmkit lab run --cuda real``: what it takes and refuses. A stand-in that is built here takes the place of a GPU's CUDA."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli.app import main
from psmkit.lab import cuda

SOURCE = Path(__file__).with_name("standin_cuda.c")
DRIVERS = "cuda-uvmfd"  # what a real driver calls its socket


def stand_in(folder: Path, socket: str = DRIVERS, streams: int | None = None) -> Path:
    """A CUDA library outside the folder of the emulated one, which opens a socket of that name and fails to make a stream after so many."""
    library, runtime = folder / "libstandin.so", cuda.folder() / "libcudart.so.13"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-Wall", "-Werror", f'-DSOCKET_NAME="{socket}"']
    command += [] if streams is None else [f"-DFULL={streams}"]
    command += [str(SOURCE), "-o", str(library), "-Wl,--no-as-needed", str(runtime), f"-Wl,-rpath,{runtime.parent}"]
    subprocess.run([*command, "-ldl"], check=True, timeout=60)
    return library


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    out = str(tmp_path / "out")
    status = main(["lab", "run", "--cuda", "real", *arguments, "--out", out, "--format", "json"])
    said, error = capsys.readouterr()
    return status, json.loads(said) if status != 2 else {"error": error}


def test_ranks_share_the_devices_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tmp_path / "one.toml"
    main(["lab", "topology", "--gpus", "1", "-o", str(machine)])
    monkeypatch.setenv("PSM_TOPOLOGY", str(machine))
    monkeypatch.setenv("PSM_CUDA_LIBRARY", str(stand_in(tmp_path)))
    status, result = run(tmp_path, capsys, "--ranks", "2", "--share", "cumem,cuda-ipc", "--size", "64K")
    assert status == 0, result
    assert result["settings"]["cuda"].startswith(str(tmp_path / "libstandin.so"))
    for rank in (0, 1):
        assert "device=0" in (tmp_path / "out" / "cases" / f"rank-{rank}.txt").read_text()
        log = (tmp_path / "out" / "logs" / f"rank-{rank}.log").read_text()
        assert "CUDA handles are checked in shim" in log
    assert result["analysis"]["verdict"] == "healthy"


@pytest.mark.parametrize("streams", [0, 1, 2])
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_stream_that_could_not_be_made_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, nodes: str, streams: int
) -> None:
    machine = tmp_path / "machine.toml"
    main(["lab", "topology", "--nodes", nodes, "-o", str(machine)])
    monkeypatch.setenv("PSM_TOPOLOGY", str(machine))
    monkeypatch.setenv("PSM_CUDA_LIBRARY", str(stand_in(tmp_path, streams=streams)))
    status, result = run(tmp_path, capsys, "--ranks", "2", "--nodes", nodes, "--deadline", "20")
    assert status == 1
    assert "cudaStreamCreateWithFlags" in "".join(r["reports"][0]["text"] for r in result["ranks"])
    assert not {"PSM507", "PSM510"} & set(result["analysis"]["codes"]), result["analysis"]
    assert "0xffffffffffffffff" not in "".join(p.read_text() for p in (tmp_path / "out" / "logs").iterdir())


def test_a_socket_of_somebody_else_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSM_CUDA_LIBRARY", str(stand_in(tmp_path, "somebody")))
    status, result = run(tmp_path, capsys, "--ranks", "2")
    assert status == 1
    assert "left open" in result["ranks"][0]["text"]


def test_where_no_cuda_is_found_it_says_what_was_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSM_CUDA_LIBRARY", "/nonexistent/libcudart.so.13")
    status, result = run(tmp_path, capsys)
    assert status == 2
    assert "--cuda real: looking for the CUDA of this machine" in result["error"]
    assert 'PSM_CUDA_LIBRARY is "/nonexistent/libcudart.so.13", which cannot be loaded' in result["error"]
    assert not (tmp_path / "out").exists()


def test_the_emulated_cuda_is_not_taken_for_a_real_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSM_CUDA_LIBRARY", str(cuda.folder() / "libcudart.so.13"))
    status, result = run(tmp_path, capsys)
    assert status == 2 and "is psmkit's emulated CUDA" in result["error"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--fault", "cudaMemcpyAsync:error=700"), "a fault at cudaMemcpyAsync on the real CUDA"),
        (("--gpus", "4"), "--gpus and --link describe emulated GPUs"),
    ],
)
def test_what_only_the_emulated_cuda_can_do_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    monkeypatch.setenv("PSM_CUDA_LIBRARY", str(stand_in(tmp_path)))
    status, result = run(tmp_path, capsys, *arguments)
    assert status == 2 and reason in result["error"]
