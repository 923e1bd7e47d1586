"""Who is who in a short excerpt: ranks of processes with few lines, devices, launchers' tags behind a time stamp, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from psmkit.report import render
from tests.analysis.texts import analyzed

TREES = "node0:{pid}:{tid} [{dev}] NCCL INFO Trees [0] {down}/-1/-1->{dev}->{up} [1] {down}/-1/-1->{dev}->{up}\n"
CHUNK = "node0:{pid}:{tid} [{dev}] NCCL INFO P2P Chunksize set to 524288\n"
SEND = "node0:{pid}:{tid} [{dev}] NCCL INFO Channel 00/0 : {dev}[{dev}] -> {down}[{down}] via P2P/IPC/read\n"
PLUGIN = (
    "node0:{pid}:{tid} [{dev}] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n"
)
SUM = (
    "node0:{pid}:{tid} [{dev}] NCCL INFO AllReduce: opCount {op} sendbuff 0x7f00 recvbuff 0x7f00 count 4 datatype 7 op 0 root 0 "
    "comm 0x{pid} [nranks=2] stream 0x55\n"
)


def line(form: str, dev: int, **more: int) -> str:
    return form.format(**{"pid": 700 + dev, "tid": 800 + dev, "dev": dev, "down": dev + 1, "up": dev - 1} | more)


def who(report: Report) -> dict[int | None, tuple[int | None, int | None]]:
    return {row.pid: (row.rank, row.device) for row in report.ranks if row.pid is not None}


def test_a_process_with_fewer_lines_than_another_has_the_rank_that_its_line_states(tmp_path: Path) -> None:
    text = "".join(line(TREES, 0) + line(CHUNK, 0) + line(SEND, 0) + line(SEND, 0) + line(TREES, 2) + line(SEND, 3))
    assert who(analyzed(tmp_path, text)) == {700: (0, 0), 702: (2, 2), 703: (3, 3)}


def test_a_prefix_that_is_damaged_once_in_a_long_log_has_no_rank(tmp_path: Path) -> None:
    text = line(TREES, 0) + line(CHUNK, 0) * 30 + line(SEND, 2, pid=70)
    assert who(analyzed(tmp_path, text))[70] == (None, 2)


def test_device_0_counts_where_another_process_prints_the_same_message_on_its_own_device(tmp_path: Path) -> None:
    report = analyzed(tmp_path, line(PLUGIN, 0) + line(PLUGIN, 1))
    assert [device for _, device in who(report).values()] == [0, 1]


def test_device_0_in_lines_that_may_come_before_a_device_is_selected_is_not_sure(tmp_path: Path) -> None:
    report = analyzed(tmp_path, line(PLUGIN, 0) + line(PLUGIN, 0, pid=900))
    assert [device for _, device in who(report).values()] == [None, None]
    assert "?: no line shows it for sure" in render(report) and "not in the log" not in render(report)


def test_the_lines_of_collectives_show_the_device(tmp_path: Path) -> None:
    text = line(SUM, 1, op=1) + line(SUM, 1, op=2) + line(SUM, 0, op=1)
    assert [device for _, device in who(analyzed(tmp_path, text)).values()] == [1, 0]


@pytest.mark.parametrize("stamp", ["Tue Jun 01 03:41:20 2021", "2021-06-01T03:41:20", "2021-06-01 03:41:20 "])
def test_a_tag_of_mpirun_behind_a_time_stamp_names_the_rank(stamp: str, tmp_path: Path) -> None:
    tagged = "".join(f"{stamp}[1,{dev}]<stdout>:" + line(PLUGIN, 0, pid=600 + dev) for dev in (4, 5))
    assert [rank for rank, _ in who(analyzed(tmp_path, tagged)).values()] == [4, 5]


def test_brackets_within_a_word_are_no_tag_of_mpirun(tmp_path: Path) -> None:
    tagged = "".join(f"step2021[1,{dev}]: " + line(PLUGIN, 0, pid=600 + dev) for dev in (4, 5))
    assert [rank for rank, _ in who(analyzed(tmp_path, tagged)).values()] == [None, None]


def test_the_head_of_the_table_says_which_processes_it_counts(tmp_path: Path) -> None:
    alone = line(PLUGIN, 0) + line(PLUGIN, 1)
    assert "Ranks: 2 processes on 1 host" in render(analyzed(tmp_path, alone))
    beside = "[2026-03-01 10:00:00 TP9] world_size=16 rank=9 local_rank=1\n" + alone
    assert "Ranks: 2 processes with NCCL lines on 1 host" in render(analyzed(tmp_path, beside))


def test_lines_without_a_host_are_not_of_0_hosts(tmp_path: Path) -> None:
    text = "".join(line(SUM, dev, op=op).replace("node0", "…") for dev in (0, 1) for op in (1, 2))
    assert "0 hosts" not in render(analyzed(tmp_path, text))
