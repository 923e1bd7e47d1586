"""``psmkit lab synth``: what it writes, where, and what it refuses."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Result

Cli = Callable[..., Result]


def test_a_log_and_its_truth_are_written(psmkit_cli: Cli, tmp_path: Path) -> None:
    log, truth = tmp_path / "job.log", tmp_path / "truth.toml"
    options = ("--ranks", "16", "--bytes", "500K", "--fault", "kernel-fails", "-o", str(log), "--truth", str(truth))
    assert psmkit_cli("lab", "synth", *options).status == 0
    assert 500 * 1024 - 200 < log.stat().st_size <= 500 * 1024
    (entry,) = tomllib.loads(truth.read_text()).items()
    assert entry[0] == "job.log"
    assert (entry[1]["verdict"], entry[1]["culprits"], entry[1]["named"]) == ("failed", [9], True)
    assert entry[1]["stages"] == ["error"]
    told = psmkit_cli("analyze", str(log))
    assert told.status == 1
    assert "failed: rank 9" in told.out


def test_the_truth_names_the_command_that_makes_the_log(psmkit_cli: Cli, tmp_path: Path) -> None:
    first, second, truth = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "truth.toml"
    options = ("--ranks", "8", "--nodes", "4", "--bytes", "300K", "--seed", "7", "--dialect", "vccl")
    assert psmkit_cli("lab", "synth", *options, "-o", str(first), "--truth", str(truth)).status == 0
    run = tomllib.loads(truth.read_text())["a.log"]["run"].split()
    assert psmkit_cli(*run[1:], "-o", str(second)).status == 0
    assert first.read_bytes() == second.read_bytes()
    assert b"VCCL version" in first.read_bytes()


def test_compression_follows_the_name(psmkit_cli: Cli, tmp_path: Path) -> None:
    plain, packed, zstd = (tmp_path / f"job.log{suffix}" for suffix in ("", ".gz", ".zst"))
    for path in (plain, packed, zstd):
        assert psmkit_cli("lab", "synth", "--ranks", "4", "-o", str(path)).status == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    zstandard = pytest.importorskip("zstandard")
    assert zstandard.ZstdDecompressor().stream_reader(zstd.read_bytes()).read() == plain.read_bytes()


def test_a_folder_gets_a_file_for_each_node(psmkit_cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    options = ("--ranks", "16", "--nodes", "4", "--files", "node", "--pack", "gz", "--fault", "lag-at-work")
    assert psmkit_cli("lab", "synth", *options, "-o", str(folder)).status == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["job.out.gz", *(f"nccl.node{n}.log.gz" for n in range(4))]
    assert "rank 9" in psmkit_cli("analyze", str(folder)).out.splitlines()[0]
    again = psmkit_cli("lab", "synth", *options, "-o", str(folder))
    assert again.status == 2
    assert "is not an empty folder" in again.err


def test_it_lists_faults_and_dialects(psmkit_cli: Cli) -> None:
    result = psmkit_cli("lab", "synth", "--list")
    assert result.status == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.out.splitlines() if line.strip()}
    assert rows["healthy"][0] == "healthy"
    assert rows["stop-at-work"] == ["hung", "PSM407", "2.27", "2.30", "vccl"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--files", "rank"), "--files needs -o DIR"),
        (("--pack", "gz", "-o", "x"), "--pack is for --files"),
        (("--bytes", "ten"), "bad size 'ten'"),
        (("--ranks", "8", "--bytes", "1K"), "print at least"),
        (("--fault", "nothing"), "there are healthy"),
        (("-o", "/nowhere/job.log"), "no such folder"),
    ],
)
def test_what_cannot_be_done_is_said(psmkit_cli: Cli, options: tuple[str, ...], said: str) -> None:
    result = psmkit_cli("lab", "synth", *options)
    assert result.status == 2
    assert said in result.err


def test_a_reader_that_leaves_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "psmkit", "lab", "synth", "--ranks", "64", "--bytes", "1000G"]
    maker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert maker.stdout is not None
    try:
        assert len(maker.stdout.read(10_000_000)) == 10_000_000
        maker.stdout.close()
        assert maker.wait(60) != 0
        assert maker.stderr is not None and maker.stderr.read() == b""
    finally:
        maker.kill()
        maker.wait()
        if maker.stderr:
            maker.stderr.close()
