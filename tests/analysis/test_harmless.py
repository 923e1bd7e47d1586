"""Warnings that mean nothing."""

from __future__ import annotations

from pathlib import Path

from psmkit.model import Severity
from tests.analysis.texts import Rank, find, ranks


def test_missing_libibverbs_is_harmless_with_the_chain_below_it(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    for log in logs:
        log.warn("misc/ibvwrap.cc:185", "lib wrapper not initialized.").chain(
            3, "transport/net_ib/gdr.cc:55 (ibDmaBufSupportInitOnce)"
        )
        log.line("Failed to initialize NET plugin IB").complete()
    found = find("harmless", tmp_path, logs)
    assert {(f.code, f.severity, f.culprits) for f in found} == {("PSM801", Severity.INFO, ())}
    assert any("lib wrapper" in f.title for f in found)
    assert any("gdr.cc:55" in e.text for f in found for e in f.evidence)
    assert not find_errors(tmp_path / "again", logs)


def find_errors(tmp_path: Path, logs: list[Rank]) -> list[object]:
    tmp_path.mkdir()
    return [f for f in find("errors+survived", tmp_path, logs) if f.severity is not Severity.INFO]


def test_ras_address_in_use_is_harmless(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].line("RAS failed to establish a client listening socket at localhost<28028>")
    found = find("harmless", tmp_path, logs)
    assert [f.code for f in found] == ["PSM801"]


def test_return_code_that_init_survived_is_harmless(tmp_path: Path) -> None:
    logs = [Rank(r).start().chain(3, "transport/net_ib/init.cc:526 (ncclIbInit)").complete() for r in range(4)]
    found = find("harmless", tmp_path, logs)
    assert [f.code for f in found] == ["PSM801"]
    assert "init.cc:526" in found[0].title


def test_real_error_is_not_harmless(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].warn("transport/shm.cc:590", "Cuda failure 2 'out of memory'", "async").fail(1)
    assert not find("harmless", tmp_path, logs)


def test_clean_logs_have_nothing_harmless_to_report(tmp_path: Path) -> None:
    assert not find("harmless", tmp_path, [log.work().destroy() for log in ranks()])
