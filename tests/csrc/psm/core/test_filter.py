"""Level and subsystems of the log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.logparse.scanner import scan
from tests.csrc.psm import ground

Start = Callable[..., ground.Ground]
INIT, P2P, ENV, PROXY, BOOTSTRAP, ALL = 0x1, 0x4, 0x80, 0x400, 0x1000, 0xFFFF
WARN, INFO, TRACE = 1, 2, 3


@pytest.mark.parametrize(
    ("env", "level", "mask"),
    [
        ({}, WARN, INIT | ENV | BOOTSTRAP),
        ({"NCCL_DEBUG": "INFO"}, INFO, INIT | ENV | BOOTSTRAP),
        ({"NCCL_DEBUG": "INFO", "PSM_DEBUG": "WARN"}, WARN, INIT | ENV | BOOTSTRAP),
        ({"PSM_DEBUG": "trace"}, TRACE, INIT | ENV | BOOTSTRAP),
        ({"PSM_DEBUG": "nonsense"}, WARN, INIT | ENV | BOOTSTRAP),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}, INFO, ALL),
        ({"NCCL_DEBUG_SUBSYS": "ALL", "PSM_DEBUG_SUBSYS": "P2P"}, WARN, P2P),
        ({"PSM_DEBUG_SUBSYS": "p2p,PROXY,nothing"}, WARN, P2P | PROXY),
        ({"PSM_DEBUG_SUBSYS": "^P2P,PROXY"}, WARN, ALL & ~(P2P | PROXY)),
        ({"PSM_DEBUG_SUBSYS": "P2", "PSM_DEBUG": ""}, WARN, 0),
    ],
)
def test_the_filter_is_read_as_nccl_reads_its_own(start: Start, env: dict[str, str], level: int, mask: int) -> None:
    assert start(**env).ask("filter") == [str(level), str(mask)]


def test_a_line_is_printed_only_for_its_level_and_subsystem(start: Start) -> None:
    for env, lines in (
        ({}, 0),
        ({"PSM_DEBUG": "INFO"}, 0),
        ({"PSM_DEBUG": "INFO", "PSM_DEBUG_SUBSYS": "PROXY"}, 0),
        ({"PSM_DEBUG": "INFO", "PSM_DEBUG_SUBSYS": "SHM"}, 1),
        ({"PSM_DEBUG": "INFO", "PSM_DEBUG_SUBSYS": "ALLOC"}, 1),
    ):
        process = start(**env)
        process.create(ground.MEMFD, 64)
        assert process.lines().count("created") == lines, env


def test_a_trace_needs_its_level(start: Start) -> None:
    process = start(PSM_DEBUG="INFO", PSM_DEBUG_SUBSYS="ALL")
    process.ask("trace")
    assert "TRACE" not in process.lines()
    process.ask("setenv", "PSM_DEBUG", "TRACE")
    process.ask("trace")
    assert "NCCL TRACE a trace" in process.lines()


def test_the_analysis_knows_every_line(start: Start) -> None:
    owner = start(PSM_DEBUG="TRACE", PSM_DEBUG_SUBSYS="ALL", PSM_STEPS="16")
    peer = start(PSM_DEBUG="TRACE", PSM_DEBUG_SUBSYS="ALL")
    owner.ask("settings")
    lost = peer.create(ground.POSIX, 4096)
    owner.attach(owner.create(ground.MEMFD, 4096).share)
    peer.kill()
    assert owner.ask("prune") == ["1"]
    owner.ask("close", 0)
    with scan(f"{owner.log}.lines") as result:
        seen = {m.name for m in result.counts if m.count}
        assert result.totals.unmatched == 0, owner.lines()
    assert lost.name in owner.lines()
    assert seen >= {f"libpsm.segment.{what}" for what in ("created", "attached", "closed", "pruned")}
    assert "libpsm.setting.set" in seen


def test_lines_go_to_the_file_that_is_named(start: Start, tmp_path: Path) -> None:
    process = start(
        PSM_DEBUG="INFO", PSM_DEBUG_SUBSYS="SHM", PSM_LOG_FILE="", PSM_DEBUG_FILE=f"{tmp_path}/psm.%h.%p.log"
    )
    process.create(ground.MEMFD, 64)
    (log,) = tmp_path.glob("psm.*.log")
    assert log.name == f"psm.{os.uname().nodename.split('.')[0]}.{process.pid}.log"
    assert "psm segment" in log.read_text()
