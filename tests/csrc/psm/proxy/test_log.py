"""What a proxy prints is what `psmkit analyze` counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.cli.app import main
from tests.csrc.psm.ground import GroundError
from tests.csrc.psm.proxy import ranks
from tests.csrc.psm.proxy.ranks import ECHO, NEVER, SETUP, Rank

Start = Callable[..., Rank]


def analyze(folder: Path) -> str:
    """The report as JSON."""
    output = folder.with_suffix(".json")
    assert main(["analyze", str(folder), "--format", "json", "--fail-on", "never", "--output", str(output)]) == 0
    return json.dumps(json.loads(output.read_text()))


def logged(start: Start, folder: Path, **env: str) -> list[Rank]:
    folder.mkdir()
    made = []
    for i in range(2):
        made.append(start(PSM_TIMEOUT="1", PSM_DEBUG_SUBSYS="ALL", PSM_DEBUG_FILE=str(folder / f"{i}.log"), **env))
    ranks.start_proxies(made)
    ranks.connect_all(made)
    return made


def exchange(made: list[Rank]) -> None:
    """Five exchanges of descriptors, then the end of both proxies."""
    made[1].ask("offer", 5)
    made[0].ask("getfd", 1, 5, 3)
    made[0].ask("queryfd", 1, 2)
    for rank in made:
        rank.ask("stop")


def test_calls_and_descriptors_are_counted(start: Start, tmp_path: Path) -> None:
    made = logged(start, tmp_path / "logs")
    for rank in made:
        rank.ask("storm", 20, 7, 2, 3)
    exchange(made)
    # 4 calls of Init beside the others.
    text = analyze(tmp_path / "logs")
    assert '"proxy_calls": {"matched": 44, "pending": 0, "orphan": 0}' in text, text[:3000]
    assert '"fd_exchanges": {"matched": 5, "pending": 0, "orphan": 0}' in text, text[:3000]


@pytest.mark.parametrize("fault", ["proxy.askfd:duplicate", "uds.reply:drop,nth=1/2", "uds.reply:reorder"])
def test_a_question_that_is_sent_again_is_one_exchange(start: Start, tmp_path: Path, fault: str) -> None:
    made = logged(start, tmp_path / "logs", PSM_FAULTS=fault)
    exchange(made)
    text = analyze(tmp_path / "logs")
    assert '"fd_exchanges": {"matched": 5, "pending": 0, "orphan": 0}' in text, text[:3000]
    assert "PSM102" not in text and "PSM104" not in text
    if not fault.endswith("reorder"):
        assert "psm was asked again for GetFd by rank 0" in (tmp_path / "logs" / "1.log").read_text()


def test_a_call_without_an_answer_is_found(start: Start, tmp_path: Path) -> None:
    made = logged(start, tmp_path / "logs")
    made[0].ask("call", 1, SETUP, ECHO, 0, 1, 0)
    with pytest.raises(GroundError):
        made[0].ask("call", 1, SETUP, NEVER, 0, 1, 0)
    for rank in made:
        rank.kill()
    text = analyze(tmp_path / "logs")
    assert "Proxy Call to rank 1 failed (Setup)" in text
