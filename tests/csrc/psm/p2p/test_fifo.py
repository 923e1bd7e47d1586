"""The FIFO in host memory that the processor moves: order, sizes, slots of any number, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.csrc.base import compiled
from tests.csrc.psm import ground
from tests.csrc.psm.jobs import SANITIZERS

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def fifo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program under ASan and UBSan."""
    folder = tmp_path_factory.mktemp("fifo")
    generated = ground.generate(folder / "generated")
    sources = [*compiled.BASE.glob("*.c"), *ground.PSM.glob("core/*.c"), *ground.PSM.glob("shm/*.c")]
    sources += [ground.PSM / "p2p" / "fifo.c", HERE / "fifo.c"]
    options = [*compiled.WARNINGS, *ground.includes(generated), *SANITIZERS]
    return compiled.link(folder / "fifo", sources, options, ["-lpthread", "-ldl"])


def ask(fifo: Path, tmp_path: Path, *arguments: object) -> str:
    env = compiled.environment(PSM_SHM_DIR=str(tmp_path))
    done = subprocess.run([fifo, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
    return done.stdout.strip()


@pytest.mark.parametrize("kind", [ground.MEMFD, ground.POSIX], ids=["memfd", "posix"])
@pytest.mark.parametrize(("slots", "slot_bytes"), [(1, 1), (1, 48), (2, 49), (3, 100), (8, 4096), (3, 70_001), (64, 8)])
def test_bytes_arrive_in_order(fifo: Path, tmp_path: Path, kind: int, slots: int, slot_bytes: int) -> None:
    total = 3000 if slot_bytes == 1 else 200_000
    assert ask(fifo, tmp_path, "stream", slots, slot_bytes, total, kind) == "0 wrong, empty 1"


def test_another_number_of_slots_is_refused_with_both(fifo: Path, tmp_path: Path) -> None:
    said = ask(fifo, tmp_path, "differ")
    assert said.startswith("PSM_ERR_MISMATCH")
    assert "8 slots of 256 bytes" in said and "4 of 512" in said


def test_a_size_that_no_sender_writes_is_refused(fifo: Path, tmp_path: Path) -> None:
    said = ask(fifo, tmp_path, "forged")
    assert said == "PSM_ERR_PROTOCOL bad size of a slot, 1048576 bytes, expected 1 to 16"


def test_what_a_message_costs_can_be_told(fifo: Path, tmp_path: Path) -> None:
    assert "ns one way" in ask(fifo, tmp_path, "time", 8, 50)
    assert "GB/s" in ask(fifo, tmp_path, "time", 1 << 20, 2)
