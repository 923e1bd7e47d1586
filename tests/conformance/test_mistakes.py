"""``psmkit mutate``: it makes mistakes in the transport that a test command uses, and reports those that the command misses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from psmkit.conformance.mistakes import MISTAKES, Mistake, mutate
from psmkit.lab import elf, faults
from psmkit.lab.cuda import LabError
from tests.conformance import strangers as written

VARIANT = f"{Path(written.__file__)}:right"
#: Tests of a user: two ranks send each other messages of 100 bytes, and each byte is compared.
SMALL = """
import sys, tempfile
from pathlib import Path
from psmkit.lab import strangers, transfer
stranger = strangers.find(sys.argv[1])
case = transfer.Case(size=100, iters=1, variant=stranger.variant.name, timeout_ms=5000)
with tempfile.TemporaryDirectory() as folder:
    run = transfer.start([case], 2, Path(folder) / "run", stranger=stranger, deadline=60, stacks=False)
sys.exit(not run.outcome.good)
"""


def some(*names: str) -> list[Mistake]:
    return [mistake for mistake in MISTAKES if mistake.name in names]


def test_tests_of_small_messages_miss_what_only_large_ones_show(tmp_path: Path) -> None:
    (tmp_path / "tests.py").write_text(SMALL)
    command = [sys.executable, str(tmp_path / "tests.py"), VARIANT]
    told: list[str] = []
    score = mutate(
        command, mistakes=some("wrong-size", "stale-handle", "lost-answer", "forgotten-event"), watch=told.append
    )
    outcomes = {mutant.mistake.name: mutant.outcome for mutant in score.mutants}
    # A message of one slot records no event.
    assert outcomes == {
        "wrong-size": "missed",
        "stale-handle": "caught",
        "lost-answer": "caught",
        "forgotten-event": "unreached",
    }, score
    assert (score.caught, score.reached) == (2, 3)
    assert told == ["without a mistake", *(f"{n} of 4: {m.mistake.name}" for n, m in enumerate(score.mutants, 1))]


def test_command_that_does_not_end_is_ended_and_counts_as_caught() -> None:
    script = (
        "import os, time\nif 'PSM_MUTATION' in os.environ:\n"
        "    open(os.environ['PSM_MUTATION_FILE'], 'w').write('cudaMemcpyAsync\\n')\n    time.sleep(600)"
    )
    score = mutate([sys.executable, "-c", script], mistakes=some("lost-copy"), deadline=3)
    (mutant,) = score.mutants
    assert mutant.outcome == "hung" and mutant.said == "did not end within 3 s" and score.caught == 1


def test_mistake_that_nothing_comes_to_is_no_part_of_the_score() -> None:
    score = mutate([sys.executable, "-c", "pass"], mistakes=some("lost-copy"))
    assert [m.outcome for m in score.mutants] == ["unreached"] and score.reached == 0


def test_failure_without_the_mistake_is_not_caught() -> None:
    script = "import os; raise SystemExit('PSM_MUTATION' in os.environ)"
    score = mutate([sys.executable, "-c", script], mistakes=some("lost-copy"))
    assert [(m.outcome, m.status) for m in score.mutants] == [("unreached", 1)] and score.caught == 0


def test_command_that_fails_anyway_is_refused() -> None:
    with pytest.raises(LabError, match="fails without a mistake: exit status 3: so it is"):
        mutate([sys.executable, "-c", "print('so it is'); raise SystemExit(3)"])
    with pytest.raises(LabError, match="cannot run /no/such/program: No such file"):
        mutate(["/no/such/program"])


def test_mistakes_name_sites_and_actions_that_exist() -> None:
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 13
    for mistake in MISTAKES:
        assert faults.check(mistake.faults, faults.sites(), 2), mistake
    assert elf.actions(0b10) == ("error",)
