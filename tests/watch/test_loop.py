"""The turns of a watch: it reads, judges beside that, and waits as long as that costs."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from psmkit.watch.follow import Follower
from psmkit.watch.loop import Watch
from psmkit.watch.state import State
from tests.loggen import generate

FINE = {name: text.encode() for name, text in generate("healthy_both", "2.27", seed=9).files().items()}
DEADLINE = 60.0


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    for name, data in FINE.items():
        (tmp_path / name).write_bytes(data)
    made = Watch(Follower([str(tmp_path)]), State(settle=0.0))
    yield made
    made.close()


def test_turns_lead_to_a_verdict(watch: Watch) -> None:
    end = time.monotonic() + DEADLINE
    change = watch.turn()
    while change is None and time.monotonic() < end:
        if watch.judge.busy:
            select.select([watch.judge.pipe], [], [], DEADLINE)
        change = watch.turn()
    assert change is not None and change[1].verdict == "healthy"
    assert watch.judge.count == 1 and not watch.judge.busy
    assert watch.turn() is None and watch.judge.count == 1, "nothing is new, so nothing is judged"


def test_pause_is_a_multiple_of_the_cost(watch: Watch) -> None:
    watch.cost = 0.0
    assert watch.pause == 0.1
    watch.cost = 0.05
    assert watch.pause == pytest.approx(1.0)
    watch.cost = 60.0
    assert watch.pause == 5.0


def test_part_of_a_log_is_not_judged(watch: Watch) -> None:
    watch.follower.stop = lambda: True
    watch.follower.poll()
    watch.follower.prepare()
    assert watch.follower.interrupted
    assert watch.last_turn() is None
    assert watch.judge.count == 0 and watch.state.now.told.startswith("the watch ended before")


def test_last_turn_judges_what_came_last(watch: Watch, tmp_path: Path) -> None:
    late = tmp_path / "nccl.rank0.log"
    late.write_bytes(FINE[late.name][:5000])
    change = watch.last_turn()
    assert change is not None and change[1].verdict != "healthy"
    with late.open("ab") as file:
        file.write(FINE[late.name][5000:])
    change = watch.last_turn()
    assert change is not None and change[1].verdict == "healthy"


def test_judgement_that_finds_no_room_is_tried_again(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr("psmkit.watch.judge.os.fork", refuse)
        assert watch.turn() is None and "Resource temporarily unavailable" in watch.state.error
    change = watch.last_turn()
    assert change is not None and change[1].verdict == "healthy" and not watch.state.error
