"""What is reported, and since when: by the arrival of lines, which need no time stamps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from psmkit.watch.files import Arrivals
from psmkit.watch.follow import Follower
from psmkit.watch.judge import Answer, Judge
from psmkit.watch.state import Sight, State
from tests.loggen import generate

HUNG = {name: text.encode() for name, text in generate("stop_at_work", "2.27", seed=2).files().items()}
LATE = {name: text.encode() for name, text in generate("lag_at_work", "2.27", seed=3).files().items()}
FINE = {name: text.encode() for name, text in generate("healthy_both", "2.27", seed=9).files().items()}
DIES = {name: text.encode() for name, text in generate("kill_at_work", "2.27", seed=3).files().items()}


class Clocked:
    """A watch whose clock a test sets."""

    def __init__(self, folder: Path, settle: float) -> None:
        self.now = 1000.0
        self.folder = folder
        self.follower = Follower([str(folder)], clock=lambda: self.now)
        self.judge = Judge()
        self.state = State(settle)

    def write(self, files: dict[str, bytes], part: float = 1.0) -> None:
        """Let each file have this part of its bytes."""
        for name, data in files.items():
            path = self.folder / name
            size = path.stat().st_size if path.exists() else 0
            with path.open("ab") as file:
                file.write(data[size : int(len(data) * part)])
            os.utime(path, (self.now, self.now))

    def at(self, now: float) -> tuple[Sight | None, Sight] | None:
        """Judge what is there at this time."""
        self.now = now
        if self.follower.poll():
            self.follower.prepare()
            self.judge.begin(self.follower)
            found = self.judge.wait()
            assert found is not None
            self.state.take(found, self.judge.parts, now)
        return self.state.look(now)


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[Callable[..., Clocked]]:
    made: list[Clocked] = []

    def start(settle: float = 10.0) -> Clocked:
        made.append(Clocked(tmp_path, settle))
        return made[-1]

    yield start
    for one in made:
        one.judge.close()
        one.follower.close()


def test_hang_is_reported_when_it_is_some_seconds_old(clocked: Callable[..., Clocked]) -> None:
    watch = clocked(settle=10.0)
    watch.write(HUNG)
    assert watch.at(1000.0) is None and watch.state.now.verdict == "hung" and not watch.state.now.settled
    assert watch.at(1009.0) is None
    change = watch.at(1010.0)
    assert change is not None
    before, sight = change
    assert before is None and sight.verdict == "hung" and sight.settled and sight.since == 1000.0
    assert watch.at(1050.0) is None, "it is reported once"


def test_bytes_that_are_not_judged_yet_may_refute_a_hang(clocked: Callable[..., Clocked]) -> None:
    watch = clocked(settle=10.0)
    watch.write(HUNG)
    watch.now = 1000.0
    assert watch.follower.poll()
    watch.follower.prepare()
    watch.judge.begin(watch.follower)
    found = watch.judge.wait()
    assert found is not None
    watch.state.take(replace(found, taken=1002.0), watch.judge.parts, 1050.0)
    assert watch.state.look(1050.0, more=True) is None and not watch.state.now.settled
    change = watch.state.look(1050.0)
    assert change is not None and change[1].verdict == "hung"


def test_words_of_a_watchdog_do_not_move_the_beginning_of_a_hang(clocked: Callable[..., Clocked]) -> None:
    watch = clocked()
    watch.write(HUNG)
    watch.at(1000.0)
    (blamed,) = {c.rank for c in watch.state.now.report.culprits}
    watch.now = 1600.0
    watch.write({"job.out": LATE["job.out"]})
    change = watch.at(1600.0)
    assert change is not None and change[1].since == 1000.0
    assert {c.rank for c in change[1].report.culprits} == {blamed}


def test_rank_that_is_late_again_and_again_is_not_reported(clocked: Callable[..., Clocked]) -> None:
    watch = clocked(settle=10.0)
    seen = set()
    now = 1000.0
    for part in range(10, 101, 3):
        watch.write(FINE, part / 100)
        change = watch.at(now)
        seen.add(watch.state.now.verdict)
        assert change is None or change[1].verdict == "healthy", f"at {part} %"
        now += 4.0
    watch.write(FINE)
    assert watch.at(now) is not None or watch.state.reported.verdict == "healthy"
    assert {"inconclusive", "healthy"} <= seen


def test_failure_is_reported_at_once(clocked: Callable[..., Clocked]) -> None:
    watch = clocked(settle=1000.0)
    watch.write({name: data for name, data in DIES.items() if name != "job.out"}, 0.5)
    assert watch.at(1000.0) is None
    watch.now = 1020.0
    watch.write(DIES)
    change = watch.at(1020.0)
    assert change is not None and change[1].verdict == "failed" and change[1].since in (1000.0, 1020.0)


def test_wait_that_ends_is_reported(clocked: Callable[..., Clocked]) -> None:
    watch = clocked(settle=10.0)
    watch.write(FINE, 0.6)
    watch.at(1000.0)
    stuck = watch.at(1100.0)
    assert stuck is not None and stuck[1].verdict in ("hung", "inconclusive")
    watch.now = 1200.0
    watch.write(FINE)
    change = watch.at(1200.0)
    assert change is not None
    before, sight = change
    assert before is not None and before.key == stuck[1].key and sight.verdict == "healthy" and sight.since == 1200.0


def test_processes_to_look_at_are_those_that_are_waited_for(clocked: Callable[..., Clocked]) -> None:
    watch = clocked(settle=10.0)
    watch.write(HUNG)
    watch.at(1000.0)
    assert watch.state.blamed() == []
    watch.at(1020.0)
    (culprit,) = watch.state.now.report.culprits
    assert watch.state.blamed() == [(culprit.host, culprit.pid)]
    assert watch.state.heard(watch.state.blamed()) == {(culprit.host, culprit.pid): 1000.0}


def test_failed_analysis_leaves_the_last_verdict(clocked: Callable[..., Clocked]) -> None:
    watch = clocked(settle=0.0)
    watch.write(FINE)
    assert watch.at(1000.0) is not None
    watch.state.take(Answer(1001.0, error="no memory"), [], 1001.0)
    assert watch.state.error == "no memory" and watch.state.now.verdict == "healthy"
    assert watch.state.look(1001.0) is None


def test_arrivals_of_old_lines_are_upper_bounds() -> None:
    arrivals = Arrivals()
    assert arrivals.of(1) is None and arrivals.last is None
    for lines in range(1, 2001):
        arrivals.add(lines, float(lines))
    assert arrivals.of(2000) == 2000.0 and arrivals.of(5000) == 2000.0
    assert all((when := arrivals.of(line)) is not None and when >= line for line in range(1, 2001))
    arrivals.add(2000, 3000.0)
    assert arrivals.of(2000) == arrivals.last == 3000.0
    assert len(arrivals) <= 256
