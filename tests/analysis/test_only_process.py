"""A shell says that a program died, and not which process it was: where a job is one program with all GPUs, it can be no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

CHANNEL = (
    "gpubox:{pid}:{tid} [{dev}] NCCL INFO Channel 0{nth}/0 : {dev}[{bus}] -> {to}[{to}0] via P2P/direct pointer/read\n"
)
COMM = "gpubox:{pid}:{tid} [{dev}] NCCL INFO comm 0x5{dev} rank {dev} nranks {nranks} cudaDev {dev} nvmlDev {dev} busId {dev}000 commId 0x77 - Init START\n"


def _channels(pids: list[int]) -> str:
    return "".join(
        CHANNEL.format(pid=pid, tid=pid + 10 + dev, dev=dev, nth=0, bus=f"{dev}0", to=(dev + 1) % 4)
        for dev, pid in enumerate(pids)
    )


def _who(tmp_path: Path, text: str) -> list[tuple[int | None, str | None, int | None]]:
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed"
    return [(c.rank, c.host, c.pid) for c in report.culprits]


@pytest.mark.parametrize(
    "line", ["Bus error (core dumped)\n", "Segmentation fault (core dumped)\n", "Aborted (core dumped)\n"]
)
def test_the_shell_means_the_only_program(line: str, tmp_path: Path) -> None:
    assert _who(tmp_path, _channels([61, 61, 61, 61]) + line) == [(None, "gpubox", 61)]


def test_of_several_processes_the_shell_names_none(tmp_path: Path) -> None:
    assert _who(tmp_path, _channels([61, 61, 62, 62]) + "Bus error (core dumped)\n") == []


def test_a_job_of_one_rank_is_one_process(tmp_path: Path) -> None:
    text = COMM.format(pid=61, tid=61, dev=0, nranks=1)
    assert _who(tmp_path, text + "Bus error (core dumped)\n") == [(0, "gpubox", 61)]


def test_a_part_of_a_larger_job_may_not_be_the_one(tmp_path: Path) -> None:
    text = "".join(COMM.format(pid=61, tid=70 + dev, dev=dev, nranks=8) for dev in range(4))
    assert _who(tmp_path, text + "Bus error (core dumped)\n") == []
