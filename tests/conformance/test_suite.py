"""The conformance suite on variants of strangers: it passes the right one, and each wrong one at the check of its mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from psmkit import conformance
from psmkit.lab import strangers
from psmkit.lab.cuda import LabError
from psmkit.lab.transfer import Case
from tests.conformance import strangers as written

FILE = Path(written.__file__)


def run(name: str, *only: str, deadline: float = 90.0) -> conformance.Conformance:
    return conformance.run(strangers.find(f"{FILE}:{name}"), only=only, deadline=deadline)


def test_right_variant_conforms_in_all_kinds_of_checks() -> None:
    only = (
        "connect",
        "again",
        "sizes",
        "mode-cumem",
        "wire",
        "connect-refused",
        "copy-error",
        "sizes-differ",
        "death-copy",
    )
    done = run("right", *only)
    assert done.clean and not done.wrong, [r for r in done.results if r.outcome == "failed"]
    assert [r.check.name for r in done.results] == [c.name for c in conformance.CHECKS if c.name in only]
    texts = {r.check.name: r.text for r in done.results}
    assert "PSM_ERR_PEER_DEAD" in texts["death-copy"] and "PSM_ERR_MISMATCH" in texts["sizes-differ"]


@pytest.mark.parametrize(
    ("name", "check", "how", "words"),
    [
        ("leaks", "connect", "leak", "are left open"),
        ("waits_for_the_dead", "death-copy", "hung", "rank 1"),
        ("sends_a_pointer", "wire", "error", "a value that means nothing there"),
    ],
)
def test_mistake_fails_its_check(name: str, check: str, how: str, words: str) -> None:
    # The one that hangs does so until the deadline.
    (result,) = run(name, check, deadline=10.0 if how == "hung" else 90.0).results
    assert (result.outcome, result.how) == ("failed", how) and words in result.text, result


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("honest", ""),
        ("other_status", "says PSM_ERR_PROTOCOL, expected PSM_ERR_CUDA"),
        ("other_verdict", "verdict failed, expected leaking"),
        ("without_a_code", "declares no verdict and no finding"),
        ("flips_bytes", "wrong bytes without an error"),
        ("does_nothing", "verdict healthy, expected failed/hung"),
    ],
)
def test_wrong_variant_must_fail_as_it_declares(name: str, words: str) -> None:
    done = run(name)
    assert done.wrong and done.clean == (not words)
    (result,) = done.results
    assert result.check.name == "as-declared" and words in result.text, result


def test_rank_that_does_not_start_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(
        "import os\nfrom psmkit import transport\n"
        "if 'PSM_LAB_SOCKET' in os.environ: raise OSError('not here')\n"
        "transport.register_variant('once', 'loads once', wrong=True, outcome='PSM401: fails')\n"
    )
    with pytest.raises(LabError, match="did not start: exit status 2: OSError: not here"):
        conformance.run(strangers.find(str(file)))


def test_check_whose_fault_meets_nothing_is_skipped() -> None:
    # Both kinds of memory go by names: no descriptor is asked for.
    by_name = replace(conformance.check("descriptor-twice"), cases=(Case(size=5, share="posix"),))
    (result,) = conformance.run(strangers.find("split"), checks=(by_name,)).results
    assert result.outcome == "skipped" and "uds.reply" in result.text


def test_every_check_says_what_it_requires_and_what_to_do() -> None:
    names = [check.name for check in conformance.CHECKS]
    assert len(names) == len(set(names))
    for check in conformance.CHECKS:
        assert check.text.endswith(".") and check.next_step.endswith(".") and check.cases
        assert check.broken == bool(check.fault or check.differs)
    assert {check.kind for check in conformance.CHECKS} == set(conformance.Kind)
