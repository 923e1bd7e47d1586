"""``psmkit record`` below launchers: one archive for each host, whichever rank's agent leads."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import psmkit
from psmkit.model import Verdict
from tests.live.recorded import PSMKIT, RANK, Archive, environment, until


def launch(folder: Path, ranks: int, *words: str, name: str = "a") -> list[subprocess.Popen[bytes]]:
    """Start agents as torchrun starts workers: torch itself is too large for a test, and its variables are what counts."""
    out = []
    for rank in range(ranks):
        env = environment(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID=f"job-{folder.name}",
        )  # fmt: skip
        command = [*PSMKIT, "record", "-q", "-o", name, "--", *RANK, *words]
        out.append(subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    return out


def archive_in(folder: Path) -> Path:
    found = until(lambda: list(folder.glob("*.psmkit.tar.zst")), "the archive")
    until(lambda: not list(folder.glob("*.psmkit")), "the end of the folder")
    assert len(found) == 1
    assert isinstance(found[0], Path)
    return found[0]


def test_agents_of_one_host_write_one_archive_with_all_ranks(tmp_path: Path) -> None:
    agents = launch(tmp_path, 3, "steps=3")
    assert [agent.wait(120) for agent in agents] == [0, 0, 0]
    archive = Archive(archive_in(tmp_path))
    ranks = [p for p in archive.manifest["processes"] if p["role"] == "rank"]
    assert sorted((p["rank"], p["status"]) for p in ranks) == [(0, 0), (1, 0), (2, 0)]
    assert len(archive.under("logs")) == len(archive.under("output")) == 3
    assert archive["record.log"].count(", ended with status 0") == 3


def test_end_of_a_rank_waits_until_the_others_were_looked_at(tmp_path: Path) -> None:
    agents = launch(tmp_path, 3, "steps=5", "only=1", "die=SIGSEGV", "only=0", "sleep=600", "only=2", "sleep=600")
    assert agents[1].wait(120) == -signal.SIGSEGV
    for agent in agents:  # as a launcher does now
        agent.terminate()
    assert [agent.wait(120) for agent in agents] == [-signal.SIGTERM, -signal.SIGSEGV, -signal.SIGTERM]
    path = archive_in(tmp_path)
    archive = Archive(path)
    assert len(archive.under("stacks")) == 2
    report = psmkit.analyze([path])
    assert report.verdict is Verdict.FAILED
    assert [c.rank for c in report.culprits] == [1]


def test_agents_that_a_launcher_kills_leave_an_archive(tmp_path: Path) -> None:
    agents = launch(tmp_path, 2, "steps=2", "sleep=600")
    until(lambda: len(list(tmp_path.glob("*.psmkit/logs/*"))) == 2, "both logs")
    until(lambda: list(tmp_path.glob("*.psmkit/manifest.json")), "the manifest")
    for agent in agents:
        agent.terminate()
    time.sleep(0.3)
    for agent in agents:
        agent.kill()
        agent.wait()
    assert len(Archive(archive_in(tmp_path)).under("logs")) == 2


def test_archives_of_two_hosts_are_one_job(tmp_path: Path) -> None:
    paths = []
    for host in ("one", "two"):
        (tmp_path / host).mkdir()
        agents = launch(tmp_path / host, 2, "steps=2", name=host)
        assert [agent.wait(120) for agent in agents] == [0, 0]
        paths.append(archive_in(tmp_path / host))
    report = psmkit.analyze(paths)
    assert len(report.ranks) == 4


def test_second_job_does_not_mix_with_the_folder_of_an_earlier_one(tmp_path: Path) -> None:
    first = launch(tmp_path, 1, "sleep=600")
    until(lambda: list(tmp_path.glob("*.psmkit/manifest.json")), "the manifest")
    first[0].kill()
    first[0].wait()
    env = environment(RANK="0", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    done = subprocess.run(
        [*PSMKIT, "record", "-o", "a", "--", "true"], cwd=tmp_path, env=env, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"holds another recording: pack it with psmkit record --salvage" in done.stderr


def test_archive_of_an_earlier_run_stays(tmp_path: Path) -> None:
    for _ in range(2):
        assert [agent.wait(120) for agent in launch(tmp_path, 2, "steps=2")] == [0, 0]
        until(lambda: not list(tmp_path.glob("*.psmkit")), "the end of the folder")
    first, second = sorted(path.name for path in tmp_path.iterdir())
    assert second == first.replace(".psmkit", "-2.psmkit") or first == second.replace(".psmkit", "-2.psmkit")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_mpirun_that_ends_all_ranks_gets_one_archive_with_the_dead_rank(tmp_path: Path) -> None:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", *PSMKIT, "record", "-q", "-o", "a", "--"]
    command += [*RANK, "steps=5", "only=1", "die=SIGSEGV", "only=0", "sleep=600", "only=2", "sleep=600"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(OMPI_MCA_rmaps_base_oversubscribe="1"), capture_output=True, check=False
    )
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    archive = Archive(archive_in(tmp_path))
    # its launcher waits only for so long: on a busy machine one rank may be killed before it was looked at
    assert 1 <= len(archive.under("stacks")) <= 2
    assert ", rank 1, was ended by SIGSEGV after" in archive["record.log"]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_record_around_mpirun_finds_the_ranks_below_it(tmp_path: Path) -> None:
    command = [*PSMKIT, "record", "-q", "-o", "a", "--", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    done = subprocess.run(
        [*command, *RANK, "steps=20"], cwd=tmp_path, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    assert sorted(p["rank"] for p in archive.manifest["processes"] if p["role"] == "rank") == [0, 1]
    assert os.listdir(tmp_path) == ["a.psmkit.tar.zst"]
