"""The labels of public logs are complete, and ``tests.strangers`` scores them as their page says."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import strangers

_FOLDER = Path(__file__).parent / "data/strangers"
_LABELS: dict[str, dict[str, Any]] = tomllib.loads((_FOLDER / "labels.toml").read_text(encoding="utf-8"))


def test_each_label_says_what_the_score_needs() -> None:
    needed = {"set", "link", "verdict", "decidable", "cause", "decisive_line"}
    assert not [name for name, label in _LABELS.items() if needed - label.keys()]


def test_the_page_counts_the_labels() -> None:
    page = (_FOLDER / "README.md").read_text(encoding="utf-8")
    sets = Counter(label["set"] for label in _LABELS.values())
    rows = {name: int(cases) for name, cases in re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", page, re.M)}
    assert f"in {len(_LABELS)} excerpts" in page
    assert rows and rows == {name: sets[name] for name in rows}


@pytest.mark.parametrize(
    "named, score",
    [
        ({"rank": 3}, "named"),
        ({"rank": 4, "global_rank": 3}, "named"),
        ({"rank": 5}, "missed"),
        ({"pid": 17, "host": "a"}, "wrong"),
        ({}, "missed"),
    ],
)
def test_a_culprit_is_right_by_any_label_and_harmless_when_it_is_tolerated(
    named: dict[str, object], score: str
) -> None:
    label = {"verdict": "failed", "decidable": True, "culprits": ["rank 3"], "tolerated": ["rank 5"]}
    parts = dict.fromkeys(("rank", "global_rank", "pid", "host", "device", "gpu"))
    report = {"verdict": "failed", "culprits": [{**parts, **named}] if named else []}

    assert strangers._judge(label, report) == ("right", score)


def test_an_inconclusive_verdict_is_a_miss_only_where_the_log_decides() -> None:
    report = {"verdict": "inconclusive", "culprits": []}
    assert strangers._judge({"verdict": "hung", "decidable": True}, report) == ("missed", "none")
    assert strangers._judge({"verdict": "hung", "decidable": False}, report) == ("undecided", "none")
    assert strangers._judge({"verdict": "hung", "decidable": False}, {**report, "verdict": "healthy"})[0] == "wrong"


@pytest.mark.parametrize(
    ("host", "why", "right"),
    [
        ("127.0.0.1", "could not connect to the store at 127.0.0.1, 51899", True),
        ("127.0.0.1", "could not connect to the store at 127.0.0.1, 518991", False),
        ("10.0.0.7", "could not connect to the store at 127.0.0.1, 51899", False),
    ],
)
def test_an_address_with_a_port_is_named_by_its_host_if_the_text_has_the_port(host: str, why: str, right: bool) -> None:
    parts = dict.fromkeys(("rank", "global_rank", "pid", "device", "gpu"))
    assert strangers._any_is([{**parts, "host": host, "why": why}], ["127.0.0.1:51899"]) is right
