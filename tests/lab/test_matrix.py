"""Every two values of two settings meet in a run, and data is right in all of them. `make matrix` runs every combination."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psmkit.lab import elf, matrix, transfer
from psmkit.lab.transfer import Case

SEED = 20
AXES: dict[str, tuple[Any, ...]] = {
    "pattern": transfer.PATTERNS,
    "size": (0, 1, 4095, 65536, (1 << 20) + 3),
    "share": matrix.AXES["share"],
    "zero_copy": transfer.ZERO_COPIES,
    "app_stream": transfer.STREAMS,
    "channels": (1, 2, 3),
    "steps": (1, 2, 8),
    "buffer_size": (64 << 10, 1 << 20),
}
ROWS = matrix.pairwise(AXES, SEED)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_data_is_right_for_every_pair_of_settings(tmp_path: Path, ranks: int) -> None:
    cases = [replace(Case(str(n), seed=SEED + n), **row) for n, row in enumerate(ROWS)]
    run = transfer.start(cases, ranks, tmp_path / "out", deadline=240, debug="WARN")
    bad = [(r["name"], r["text"]) for rank in run.outcome.ranks for r in rank.reports if r["status"] != "PSM_OK"]
    assert not bad, [cases[int(name)].line() + ": " + text for name, text in bad[:3]]
    assert run.outcome.good, run.outcome


def test_rows_hold_every_pair_and_are_few() -> None:
    for a, b in itertools.combinations(AXES, 2):
        assert {(row[a], row[b]) for row in ROWS} == set(itertools.product(AXES[a], AXES[b]))
    assert len(ROWS) < 60
    assert matrix.pairwise(AXES, SEED) == ROWS


def test_all_combinations_are_made_where_there_is_room() -> None:
    everything = 4 * 6 * 4 * 2
    assert len(matrix.all_cases(2)) == everything
    assert len(matrix.all_cases(16)) == everything * 5 // 6  # without 64 MiB
    assert max(case.size for case in matrix.all_cases(16)) == 4 << 20


def test_every_site_is_struck_with_all_that_it_can_do() -> None:
    program = transfer.program()
    sites = elf.sites(program) + elf.sites(program.parents[1] / "lib" / "libpsm.so")
    found = list(matrix.strikes(sites))
    assert {s.site for s in found} >= {
        "proxy.setup",
        "proxy.getfd",
        "p2p.connect",
        "p2p.send.step",
        "shm.create",
        "lab.stage",
    }
    some = random.Random(SEED).choice(found)
    assert some.text.startswith(f"{some.site}:{some.action},rank={some.rank}")
    assert {s.rank for s in found} == {0, 1}
    assert {s.action for s in found if s.site == "shm.create"} == {
        "error=ENOMEM", "hang", "slow=50ms", "late=50ms", "kill", "kill=SIGSTOP"
    }  # fmt: skip
