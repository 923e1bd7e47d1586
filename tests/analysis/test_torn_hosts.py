"""A log that begins within the name of its host: the first line makes no host of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit

WARN = "{}:20844:21510 [0] plugin.c:75 NCCL WARN NET/IB : Got completion from peer 10.2.3.4<44120> with error 12, opcode 1, len 0, vendor err 129"
CHAIN = "{}:20844:21510 [0] NCCL INFO transport/net.cc:1298 -> 6"


def hosts(folder: Path, text: str) -> set[str]:
    (folder / "job.log").write_text(text)
    report = psmkit.analyze([str(folder / "job.log")])
    return {row.host for row in report.ranks if row.host}


@pytest.mark.parametrize("between", ["\n", "          "])
def test_a_name_that_the_log_begins_within_is_completed_by_the_next_line(between: str, tmp_path: Path) -> None:
    whole = "VM-22-centos"
    text = WARN.format("tos") + between + CHAIN.format(whole) + "\n" + CHAIN.format(whole) + "\n"
    assert hosts(tmp_path, text) == {whole}


def test_text_glued_to_the_second_line_makes_no_host_either(tmp_path: Path) -> None:
    text = (
        "\n".join([WARN.format("node7"), CHAIN.format("0node7"), CHAIN.format("node7"), CHAIN.format("node7")]) + "\n"
    )
    assert hosts(tmp_path, text) == {"node7"}


def test_another_thread_is_no_proof_of_the_longer_name(tmp_path: Path) -> None:
    text = WARN.format("node7") + "\n" + CHAIN.format("0node7").replace(":21510", ":30000") + "\n"
    assert hosts(tmp_path, text) == {"node7"}
