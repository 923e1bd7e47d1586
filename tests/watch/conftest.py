"""A follower and its judge, driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.model import Report
from psmkit.model.errors import NothingToAnalyse
from psmkit.watch.follow import Follower
from psmkit.watch.judge import Answer, Judge

__all__ = ["Hand", "conclusion"]


def conclusion(report: Report | None) -> object:
    """What a watch and an analysis of the same bytes must agree on; None: nothing can be judged."""
    if report is None:
        return None
    return (
        report.verdict,
        report.reason,
        [(f.code, f.title) for f in report.findings],
        [(c.rank, c.host, c.pid, c.why) for c in report.culprits],
        [(s.rank, s.host, s.pid, s.owes) for s in report.suspects],
    )


class Hand:
    """Looks at files when a test says so."""

    def __init__(self, *paths: object) -> None:
        self.follower = Follower([str(path) for path in paths])
        self.judge = Judge()

    def answer(self) -> Answer:
        """The judgement of all that is there."""
        self.follower.poll()
        self.follower.prepare()
        self.judge.begin(self.follower)
        found = self.judge.wait()
        assert found is not None and not found.error, found
        self.follower.remember(self.judge.parts, found.quoted)
        return found

    def report(self) -> Report:
        """The report of all that is there."""
        found = self.answer().report
        assert found is not None
        return found

    def agrees(self, *paths: object) -> None:
        """The judgement is that of an analysis of these paths."""
        try:
            want = analyze([str(path) for path in paths])
        except NothingToAnalyse:
            want = None
        assert conclusion(self.answer().report) == conclusion(want)

    def news(self) -> str:
        """What became of files since the last question."""
        said = "\n".join(self.follower.news)
        self.follower.news.clear()
        return said


@pytest.fixture
def watch() -> Iterator[Callable[..., Hand]]:
    """Follow paths."""
    made: list[Hand] = []

    def start(*paths: object) -> Hand:
        made.append(Hand(*paths))
        return made[-1]

    yield start
    for hand in made:
        hand.judge.close()
        hand.follower.close()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder
