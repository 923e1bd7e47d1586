"""The conformance suite on variants of strangers: it passes the right one, and each wrong one at the check of its mistake."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from psmkit import conformance
from psmkit.conformance.mistakes import MISTAKES
from psmkit.lab import leftovers, strangers
from psmkit.lab.cuda import LabError
from psmkit.lab.transfer import Case
from psmkit.live import procfs
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
        "mode-indirect",
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
        # which of the two is left, the rank that stops first decides
        ("leaks", "connect", "leak", "1 socket or memfd is left open: "),
        ("waits_for_the_dead", "death-copy", "hung", "rank 1"),
        ("uses_a_dead_event", "copy-error", "finding", "cudaEventQuery got event"),
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


def test_check_that_a_wrong_variant_does_not_have_is_refused() -> None:
    with pytest.raises(LabError, match="honest is declared wrong, its only check is as-declared"):
        run("honest", "sizes")


@pytest.mark.parametrize("name", ["stale-event", "erased-flag", "no-free", "dup-response"])
def test_broken_variants_of_psmkit_fail_as_they_declare(name: str) -> None:
    """One that shows by luck, one with zero-copy alone, one that leaks, one that is healthy all the same."""
    done = conformance.run(strangers.find(name), deadline=90)
    assert done.wrong and done.clean, done.results


def test_slot_that_is_published_too_early_is_found_when_copies_take_longer() -> None:
    too_early = replace(conformance.check("late-copies"), environment={"PSM_MUTATION": _mistake("forgotten-wait")})
    right, wrong = (
        conformance.run(strangers.find("split"), checks=(one,), only=("late-copies",), deadline=90)
        for one in (conformance.check("late-copies"), too_early)
    )
    assert right.clean and [r.how for r in wrong.results] == ["data"], (right, wrong)


def _mistake(name: str) -> str:
    return next(mistake.faults for mistake in MISTAKES if mistake.name == name)


def test_rank_that_does_not_start_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(
        "import os\nfrom psmkit import transport\n"
        "if 'PSM_LAB_SOCKET' in os.environ: raise OSError('not here')\n"
        "transport.register_variant('once', 'loads once', wrong=True, outcome='PSM401: fails')\n"
    )
    with pytest.raises(LabError, match="did not start: exit status 2: OSError: not here"):
        conformance.run(strangers.find(str(file)))


def test_ranks_end_with_a_suite_that_is_killed(tmp_path: Path) -> None:
    words = ["conformance", f"{FILE}:waits_for_the_dead", "--only", "death-copy", "--deadline", "300"]
    suite = subprocess.Popen([sys.executable, "-m", "psmkit", *words, "--out", str(tmp_path / "kept")])
    try:
        log = tmp_path / "kept" / "death-copy" / "logs" / "rank-1.log"
        until(lambda: log.exists() and bool(children(suite.pid)))
        left = children(suite.pid)  # rank 1 waits for the dead one
        assert left
    finally:
        suite.kill()
        suite.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    leftovers.remove_dead_runs()
    assert suite.pid not in [pid for _, pid, _ in leftovers.run_folders()]


def children(pid: int) -> list[int]:
    return [child for child, parent in procfs.parents().items() if parent == pid]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)  # looking again: the deadline decides


def test_stack_of_a_handler_that_hangs_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "loops.py"
    file.write_text(
        "from psmkit import transport\nfrom psmkit.proxy import Handlers\n"
        "def progress(running):\n    while True: pass\n"
        "sends = Handlers(progress=progress, base=transport.variant().send)\n"
        "transport.register_variant('loops', 'progress does not return', send=sends)\n"
    )
    (result,) = conformance.run(
        strangers.find(str(file)), only=("connect",), deadline=5.0, folder=tmp_path / "kept"
    ).results
    assert (result.outcome, result.how) == ("failed", "hung")
    texts = [path.read_text() for path in (tmp_path / "kept" / "connect" / "stacks").glob("*.own.txt")]
    assert any('loops.py", line 4 in progress' in text for text in texts), texts


def test_check_whose_fault_meets_nothing_is_skipped() -> None:
    # Both kinds of memory go by names: no descriptor is asked for.
    by_name = replace(conformance.check("descriptor-twice"), cases=(Case(size=5, share="posix"),))
    dies = replace(conformance.check("death-descriptor"), cases=(Case(size=5, share="posix"),))
    for result in conformance.run(strangers.find("split"), checks=(by_name, dies), deadline=90).results:
        assert result.outcome == "skipped" and "uds.reply" in result.text


def test_no_check_passes_by_an_error_that_its_fault_did_not_make() -> None:
    only = (
        "connect",
        "sizes",
        "info-damaged",
        "copy-error",
        "sizes-differ",
        "settings-differ",
        "death-init",
        "death-copy",
    )
    done = run("refuses_every_setup", *only)
    results = {result.check.name: result for result in done.results}
    assert {name for name, result in results.items() if result.outcome == "failed"} == {"connect", "sizes"}
    assert {result.outcome for name, result in results.items() if name not in ("connect", "sizes")} == {"skipped"}
    for name in ("sizes-differ", "settings-differ", "death-init"):
        assert "without the fault it fails, too: rank" in results[name].text, results[name]
    line = next(n for n, text in enumerate(FILE.read_text().splitlines(), 1) if '"no room for it"' in text)
    failed = (results["connect"], results["sizes"])
    assert {result.next_step for result in failed} == {f"look at {FILE.name}:{line}."}
    assert len({result.reason for result in failed}) == 1


def test_rank_that_does_not_die_of_the_fault_proves_nothing() -> None:
    # The fault refuses Setup, and kills nobody.
    other = replace(conformance.check("death-setup"), dead=0, fault="proxy.setup:error=ENOMEM,rank=0")
    (result,) = conformance.run(strangers.find("split"), checks=(other,), deadline=90).results
    assert result.outcome == "skipped" and "the fault did not end rank 0" in result.text, result


def test_a_leak_gets_the_advice_of_leaks() -> None:
    (result,) = run("leaks", "sizes").results
    assert (result.how, result.next_step) == ("leak", "Release in Free what Setup and Connect made.")


def test_every_check_says_what_it_requires_and_what_to_do() -> None:
    names = [check.name for check in conformance.CHECKS]
    assert len(names) == len(set(names))
    for check in conformance.CHECKS:
        assert check.text.endswith(".") and check.next_step.endswith(".") and check.cases
        assert check.broken == bool(check.fault or check.differs)
    assert {check.kind for check in conformance.CHECKS} == set(conformance.Kind)
