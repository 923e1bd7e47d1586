"""The FIFO in host memory that the processor moves: order, sizes, slots of any number, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.csrc.base import compiled
from tests.csrc.psm import ground
from tests.csrc.psm.jobs import SANITIZERS

HERE = Path(__file__).parent


def build(folder: Path, *options: str) -> Path:
    generated = ground.generate(folder / "generated")
    sources = [*compiled.BASE.glob("*.c"), *ground.PSM.glob("core/*.c"), *ground.PSM.glob("shm/*.c"), HERE / "fifo.c"]
    flags = [*compiled.WARNINGS, *ground.includes(generated), *options]
    return compiled.link(folder / "fifo", sources, flags, ["-lpthread", "-ldl"])


@pytest.fixture(scope="module")
def fifo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program under ASan and UBSan."""
    return build(tmp_path_factory.mktemp("fifo"), *SANITIZERS)


def ask(fifo: Path, tmp_path: Path, *arguments: object) -> str:
    env = compiled.environment(PSM_SHM_DIR=str(tmp_path))
    done = subprocess.run([fifo, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
    return done.stdout.strip()


@pytest.mark.parametrize("kind", [ground.MEMFD, ground.POSIX], ids=["memfd", "posix"])
@pytest.mark.parametrize(
    ("slots", "slot_bytes", "most"),
    [
        *((1, 1, 1021), (1, 48, 1021), (2, 49, 1021), (3, 100, 1021), (8, 4096, 1021), (64, 8, 1021)),
        *((2, 4097, 9001), (3, 70_001, 200_003), (1, 1 << 20, 200_003)),
    ],
)
def test_bytes_arrive_in_order(fifo: Path, tmp_path: Path, kind: int, slots: int, slot_bytes: int, most: int) -> None:
    total = 3000 if slot_bytes == 1 else 200 * most
    assert ask(fifo, tmp_path, "stream", slots, slot_bytes, total, kind, most) == "0 wrong, empty 1"


@pytest.mark.parametrize(
    ("slots", "slot_bytes", "most"), [(1, 8, 31), (8, 8, 31), (8, 100, 1021), (4, 70_001, 200_003)]
)
def test_no_data_race_between_the_ends(tmp_path: Path, slots: int, slot_bytes: int, most: int) -> None:
    program = build(tmp_path, "-fsanitize=thread", "-Wno-tsan")
    done = subprocess.run(
        [program, *map(str, ("threads", slots, slot_bytes, 20 * most, most))],
        capture_output=True,
        text=True,
        env=compiled.environment(),
        timeout=240,
    )
    assert "ThreadSanitizer" not in done.stderr, done.stderr
    assert (done.returncode, done.stdout.strip()) == (0, "0 wrong, empty 1")


def test_a_receiver_that_finds_nothing_gives_all_slots_back(fifo: Path, tmp_path: Path) -> None:
    """It took one of 8 slots. A receiver gives slots back after half a round, so only the empty poll can return this one."""
    assert ask(fifo, tmp_path, "room", 8, 16) == "empty 1, 8 fit, then 8, 9 taken"


def test_slots_of_more_than_64_kib_are_divided(fifo: Path, tmp_path: Path) -> None:
    assert ask(fifo, tmp_path, "room", 2, 1 << 20) == "empty 1, 16 fit, then 16, 17 taken"
    assert ask(fifo, tmp_path, "room", 20, 65_537) == "empty 1, 20 fit, then 20, 21 taken"


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
