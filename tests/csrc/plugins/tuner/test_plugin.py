"""The tuner plugin through NCCL's tables, all versions."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.csrc.plugins.tuner.built import ROOT, VERSIONS, Built

RULES = """\
op,bytes,nodes,ranks,algorithm,protocol,channels,chunk,note
allreduce,..64K,*,*,tree,ll,2,*,small
allreduce,64K..4M,*,*,ring,ll128,8,256K,middle
allreduce,4M..,*,*,nvls,simple,16,*,large
allreduce|reduce,*,*,*,ring,simple,-1,*,rest
broadcast,*,*,*,*,*,4,*,channels alone
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.csv"
    path.write_text(RULES)
    return path


def within(seconds: float, done: Callable[[], bool]) -> bool:
    """Whether it came true before the deadline."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_rules_decide_the_same_through_every_table(tuner: Built, rules: Path, version: int) -> None:
    session = tuner.session(version, PSM_TUNER_CONFIG=str(rules))
    c = session.begin()
    assert session.get(c, size=4096) == ("tree", "ll", 2)
    assert session.get(c, size=65536) == ("tree", "ll", 2), "ranges hold both ends, the first line wins"
    assert session.get(c, size=65537) == ("ring", "ll128", 8)
    assert session.get(c, "reduce", 1) == ("ring", "simple", 0)
    algorithm, protocol, channels = session.get(c, "broadcast", costs={("tree", "ll"): 5, ("ring", "simple"): 3})
    assert channels == 4
    assert (algorithm, protocol) == (("default", "default") if version < 3 else ("ring", "simple")), (
        "what a rule does not say is NCCL's"
    )
    assert session.ask(f"end {c}") == {"result": 0}
    log = session.close()
    assert f"TUNER/PSM : 5 rules and 0 constants from {rules} for communicator" in log
    assert "allreduce of 65537 bytes" in log and "by line 3, middle" in log
    assert log.count("by line 2, small") == 1, "each decision once"


def test_nvls_and_collnet_are_taken_only_where_supported(tuner: Built, rules: Path) -> None:
    for version in (1, 2):
        session = tuner.session(version, PSM_TUNER_CONFIG=str(rules))
        c = session.begin()
        assert session.get(c, size=1 << 30) == ("ring", "simple", 0)
        assert session.get(c, size=1 << 30, nvls=1) == ("ring", "simple", 0)
        assert session.get(c, size=1 << 30, nvls=1, collnet=1) == ("nvls", "simple", 16)
        session.close()
    session = tuner.session(4, PSM_TUNER_CONFIG=str(rules))
    c = session.begin()
    costs = {("ring", "simple"): 40.0, ("tree", "ll"): 3.0}
    assert session.get(c, size=1 << 30, costs=costs) == ("ring", "simple", 0)
    assert session.get(c, size=1 << 30, costs={**costs, ("nvls", "simple"): 50.0}) == ("nvls", "simple", 16)
    assert session.get(c, "reduce", costs={("tree", "ll"): 3.0}) == ("tree", "ll", 0), (
        "what NCCL does not offer is left alone"
    )
    session.close()


def test_half_a_choice_is_made_whole_by_the_costs_and_dropped_where_there_are_none(
    tuner: Built, tmp_path: Path
) -> None:
    path = tmp_path / "half.csv"
    path.write_text("op,algorithm,protocol,channels\nallreduce,ring,*,3\nreduce,*,ll,*\n")
    costs = {("ring", "simple"): 9.0, ("ring", "ll128"): 7.0, ("tree", "ll"): 1.0, ("ring", "ll"): 2.0}
    session = tuner.session(5, PSM_TUNER_CONFIG=str(path))
    c = session.begin()
    assert session.get(c, costs={**costs, ("ring", "ll"): 8.0}) == ("ring", "ll128", 3)
    assert session.get(c, "reduce", costs={**costs, ("tree", "ll"): 5.0}) == ("ring", "ll", 0)
    session.close()
    session = tuner.session(2, PSM_TUNER_CONFIG=str(path))
    assert session.get(session.begin()) == ("default", "default", 3)
    session.close()


def test_an_entry_that_costs_nothing_gives_way_to_the_rule(tuner: Built, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("op,algorithm,protocol\n*,ring,simple\n")
    session = tuner.session(4, PSM_TUNER_CONFIG=str(path))
    assert session.get(session.begin(), costs={("tree", "ll"): 0.0, ("ring", "simple"): 5.0})[:2] == ("ring", "simple")
    session.close()


def test_conditions_on_what_a_version_does_not_tell_do_not_match(tuner: Built, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(
        "op,registered,pipe_ops,nvl_domains,algorithm,protocol,channels\n"
        "allreduce,1,*,*,tree,ll,1\nallreduce,*,2..,*,tree,ll,2\nallreduce,*,*,3,tree,ll,3\nallreduce,*,*,*,ring,ll,4\n"
    )
    for version in VERSIONS:
        session = tuner.session(version, PSM_TUNER_CONFIG=str(path))
        c = session.begin(domains=1)
        other = session.begin(domains=3) if version > 1 else c
        assert session.get(c)[2] == 4
        assert session.get(c, registered=1)[2] == (1 if version >= 4 else 4)
        assert session.get(c, pipe_ops=5)[2] == 2
        assert session.get(other)[2] == (3 if version >= 5 else 4)
        session.close()


def test_v1_matches_ranks_only_where_all_communicators_are_said_to_be_alike(tuner: Built, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("op,ranks,algorithm,protocol,channels\n*,16,ring,ll,5\n*,*,tree,ll,6\n")
    session = tuner.session(1, PSM_TUNER_CONFIG=str(path))
    assert session.get(session.begin(16))[2] == 6
    session.close()
    session = tuner.session(1, PSM_TUNER_CONFIG=str(path), PSM_TUNER_ONE_SHAPE="1")
    assert session.get(session.begin(16))[2] == 5
    session.begin(4, 1)
    assert "PSM_TUNER_ONE_SHAPE promises that all have 16 on 2" in session.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_rules_that_never_match_are_named_in_the_log(tuner: Built, tmp_path: Path, version: int) -> None:
    path = tmp_path / "r.csv"
    path.write_text(
        "op,ranks,nodes,registered,nvl_domains,algorithm,protocol\n"
        "*,*,*,*,*,tree,ll\n*,16,*,*,*,ring,ll\n*,*,2..,*,*,ring,ll\n*,*,*,1,*,ring,ll\n*,*,*,*,3,ring,ll\n*,1..,*,*,*,ring,ll\n"
    )
    first = {1: (5, 3, "ranks"), 2: (2, 5, "registered"), 3: (2, 5, "registered"), 4: (1, 6, "nvl_domains")}.get(
        version
    )
    session = tuner.session(version, PSM_TUNER_CONFIG=str(path))
    session.begin(16)
    log = session.close()
    if first is None:
        assert "never match" not in log
    else:
        n, line, what = first
        assert (
            f"{n} of 6 rules of {path} never match in table v{version}, the first in line {line}: NCCL does not pass {what} to it"
            in log
        )
    if version == 1:
        session = tuner.session(1, PSM_TUNER_CONFIG=str(path), PSM_TUNER_ONE_SHAPE="1")
        session.begin(16)
        assert f"2 of 6 rules of {path} never match in table v1, the first in line 5" in session.close()


def test_chunks_and_constants(tuner: Built, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        '[[rule]]\nop = "allreduce"\nchunk = "128K"\nprotocol = "simple"\n'
        "[constants]\nbaseLatencies.ring.simple = 8.5\nhwLatencies.net.tree.ll = 3\nperChMaxNVLSTreeBws.blackwell.4nodes = 40.0\n"
    )
    # The tables by generation of v7 have a row more, which no rule names.
    for version in (version for version in VERSIONS if version >= 6):
        session = tuner.session(version, PSM_TUNER_CONFIG=str(path))
        answer = session.ask("init 16 2 1")
        assert answer["constants"] == {"5": 8.5, str(21 * 3): 3, "143": 40.0}
        assert session.ask("chunk 0 4 1000 1 2") == {"result": 0, "chunk": 131072}
        assert session.ask("chunk 0 4 1000 1 0") == {"result": 0, "chunk": 1 << 20}
        assert session.ask("chunk 0 3 1000 1 2") == {"result": 0, "chunk": 1 << 20}
        session.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wrong_file_fails_nothing_and_is_told_with_its_line(tuner: Built, tmp_path: Path, version: int) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text("# fine\nallreduce,0,100,ring,l128,1,-1,-1\n")
    session = tuner.session(version, PSM_TUNER_CONFIG=str(path))
    first = session.begin()
    assert session.get(first, costs={("tree", "ll"): 2.0})[2] == 0
    session.begin()
    log = session.close()
    assert log.count(f'{path}:2: protocol is "l128"; expected ll, ll128, simple or *: no rules are in use') == 1


def test_a_wrong_setting_stops_init(tuner: Built) -> None:
    session = tuner.session(4, PSM_TUNER_RELOAD="yes")
    assert session.ask("init 2 1 1")["result"] == 5
    assert 'PSM_TUNER_RELOAD is "yes"; expected new or live' in session.close()


def test_a_communicator_made_later_has_the_new_rules_and_the_one_before_keeps_its_own(
    tuner: Built, rules: Path
) -> None:
    session = tuner.session(5, PSM_TUNER_CONFIG=str(rules), PSM_TUNER_RELOAD_MS="5")
    old = session.begin()
    rules.write_text("op,algorithm,protocol,channels\n*,ring,simple,7\n")
    new = session.begin()
    assert session.get(new) == ("ring", "simple", 7)
    assert session.get(old) == ("tree", "ll", 2)
    session.close()


def _replace(rules: Path, text: str) -> None:
    """Change the file in one step, as an editor does: the plugin may look at any time."""
    new = rules.with_suffix(".new")
    new.write_text(text)
    new.replace(rules)


def test_live_rules_reach_communicators_and_wrong_ones_change_nothing(tuner: Built, rules: Path) -> None:
    env = {"PSM_TUNER_CONFIG": str(rules), "PSM_TUNER_RELOAD": "live", "PSM_TUNER_RELOAD_MS": "5"}
    session = tuner.session(5, **env)
    c = session.begin()
    assert session.get(c) == ("tree", "ll", 2)
    _replace(rules, "op,algorithm,protocol,channels\n*,ring,simple,7\n")
    assert within(60, lambda: session.get(c) == ("ring", "simple", 7))
    _replace(rules, "op,algorithm,protocol,channels\n*,ring,simple,many\n")
    other = rules.with_name("other.csv")
    other.write_text("op,algorithm,protocol,channels\n*,ring,simple,9\n")
    assert session.get(c) == ("ring", "simple", 7)
    other.replace(rules)
    assert within(60, lambda: session.get(c) == ("ring", "simple", 9))
    session.ask(f"end {c}")
    log = session.close()
    assert "1 new rules from" in log


def test_live_rules_begin_at_the_call_that_the_file_names(tuner: Built, rules: Path) -> None:
    env = {"PSM_TUNER_CONFIG": str(rules), "PSM_TUNER_RELOAD": "live", "PSM_TUNER_RELOAD_MS": "5"}
    sessions = [tuner.session(6, **env) for _ in range(3)]
    contexts = [session.begin() for session in sessions]
    rules.write_text("from_call,20000\nop,algorithm,protocol,channels\n*,ring,simple,7\n")
    switched = []
    for session, c in zip(sessions, contexts, strict=True):
        answers = [session.get(c) for _ in range(20010)]
        switched.append(answers.index(("ring", "simple", 7)))
        assert set(answers[switched[-1] :]) == {("ring", "simple", 7)}
        assert "from decision 20000 on" in session.close()
    assert switched == [20000] * 3


def test_new_rules_that_come_too_late_are_refused(tuner: Built, rules: Path) -> None:
    env = {"PSM_TUNER_CONFIG": str(rules), "PSM_TUNER_RELOAD": "live", "PSM_TUNER_RELOAD_MS": "5"}
    session = tuner.session(6, **env)
    c = session.begin()
    for _ in range(10):
        session.get(c)
    rules.write_text("from_call,5\nop,algorithm,protocol,channels\n*,ring,simple,7\n")
    process = session.process
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any(
        "takes effect at decision 5, but this communicator is already at 10: it keeps its rules" in line
        for line in lines
    )
    assert session.get(c) == ("tree", "ll", 2)
    session.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_drive_finds_nothing_wrong(tuner: Built, rules: Path, version: int) -> None:
    reports = tuner.drive(version, PSM_TUNER_CONFIG=str(rules))
    assert all(r["good"] for r in reports if "check" in r), reports
    again = tuner.drive(version, PSM_TUNER_CONFIG=str(rules), RANK="3")
    assert reports[-1]["digest"] == again[-1]["digest"], "every process decides alike"


def test_readers_race_with_new_rules(tuner_threads: Built, rules: Path, tmp_path: Path) -> None:
    """Under TSan: the file changes while several threads decide."""
    env = tuner_threads.environment(
        PSM_TUNER_CONFIG=str(rules), PSM_TUNER_RELOAD="live", PSM_TUNER_RELOAD_MS="1", TSAN_OPTIONS="halt_on_error=1"
    )
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            [tuner_threads.driver, tuner_threads.library, "6"], stdout=subprocess.DEVNULL, stderr=out, env=env
        ) as process,
    ):
        end, n = time.monotonic() + 120, 0
        while process.poll() is None and time.monotonic() < end:
            n = n % 60 + 1
            rules.write_text(f"op,algorithm,protocol,channels\n*,ring,simple,{n}\n")
            time.sleep(0.005)
        process.kill()
    assert process.returncode == 0 and "ThreadSanitizer" not in log.read_text(), log.read_text()[-4000:]
    assert "1 new rules from" in log.read_text()


def test_each_decision_is_in_the_record_with_its_line(tuner: Built, rules: Path, tmp_path: Path) -> None:
    records = tmp_path / "records"
    session = tuner.session(5, PSM_TUNER_CONFIG=str(rules), PSM_RECORD_DIR=str(records))
    c = session.begin()
    for _ in range(3):
        session.get(c, size=65537)
    shown = subprocess.run(
        [sys.executable, "-m", "psmkit", "records", "show", next(records.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    ).stdout
    session.close()
    said = "allreduce of 65537 bytes, 16 ranks on 2 nodes: ring ll128, channels 8, by line 3, passed over line 0"
    for call in range(3):
        assert f"decision {call} of communicator 1234: {said}" in shown
