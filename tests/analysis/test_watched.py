"""What `psmkit record` saw from outside: a proof of time for what is open, and a death."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.pipeline import analyze
from psmkit.model import Report, Verdict
from tests.analysis.texts import Rank, ranks


def recorded(folder: Path, logs: list[Rank], *lines: str) -> Report:
    for log in logs:
        (folder / f"nccl.node0.{log.pid}.log").write_text("".join(f"{line}\n" for line in log.lines))
    (folder / "record.log").write_text("".join(f"[2026-11-27 23:19:38] psm record: {line}\n" for line in lines))
    return analyze([folder])


def stood(rank: int, word: str = "stood still") -> str:
    return f"process node0:{7001 + 100 * rank}, rank {rank}, {word} for 300.2 s: no line, no record, 0.04 s of CPU time"


def working(*calls: int) -> list[Rank]:
    return [rank.work(number) for rank, number in zip(ranks(len(calls)), calls, strict=True)]


def test_rank_that_lags_is_the_culprit_once_all_were_seen_to_stand_still(tmp_path: Path) -> None:
    report = recorded(tmp_path, working(5, 3, 5, 5), *(stood(rank) for rank in range(4)))
    assert report.verdict is Verdict.HUNG
    assert [c.rank for c in report.culprits] == [1]
    error = next(f for f in report.findings if f.code == "PSM304")
    assert any("stood still" in item.text for item in error.evidence)


@pytest.mark.parametrize("lines", [(), tuple(stood(rank, "was silent") for rank in range(4))], ids=["none", "silent"])
def test_rank_that_lags_is_only_a_suspect_without_that_proof(tmp_path: Path, lines: tuple[str, ...]) -> None:
    report = recorded(tmp_path, working(5, 3, 5, 5), *lines)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert [s.rank for s in report.suspects] == [1]


def test_idle_server_without_an_open_call_is_no_hang(tmp_path: Path) -> None:
    report = recorded(tmp_path, working(5, 5, 5, 5), *(stood(rank) for rank in range(4)))
    assert report.verdict is not Verdict.HUNG
    assert not report.culprits


def test_death_by_a_signal_is_the_origin(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        working(5, 5, 5, 5),
        "process node0:7201, rank 2, was ended by SIGSEGV after 25.488 s",
        "process node0:7001, rank 0, was ended by SIGTERM when the job was being ended after 26.100 s",
    )
    assert report.verdict is Verdict.FAILED
    assert [c.rank for c in report.culprits] == [2]


def test_job_that_its_user_ended_has_no_culprit(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        working(5, 5, 5, 5),
        "Ctrl-C: the user ended the job, after its evidence was taken",
        *(
            f"process node0:{7001 + 100 * r}, rank {r}, was ended by SIGINT when the job was being ended after 9.0 s"
            for r in range(4)
        ),
    )
    assert report.verdict is not Verdict.HUNG
    assert report.verdict is not Verdict.FAILED
    assert not report.culprits


def test_good_ends_are_no_deaths(tmp_path: Path) -> None:
    logs = [rank.work(2).destroy() for rank in ranks(2)]
    report = recorded(
        tmp_path, logs, *(f"process node0:{log.pid}, rank {log.rank}, ended with status 0 after 9.0 s" for log in logs)
    )
    assert report.verdict is Verdict.HEALTHY


def test_rank_that_a_fault_on_purpose_holds_is_the_culprit(tmp_path: Path) -> None:
    logs = working(5, 5, 5, 5)
    logs[2].warn("", "PSM_FAULTS: hang at p2p.connect, call 1, rank 2")
    report = recorded(tmp_path, logs, *(stood(rank) for rank in range(4)))
    assert report.verdict is Verdict.HUNG
    assert [c.rank for c in report.culprits] == [2]
    assert "PSM_FAULTS holds it in p2p.connect" in report.reason


def asked(report: Report) -> list[str]:
    return [ask.command for ask in report.next]


@pytest.mark.parametrize("how", ["exited with status 3", "was ended by SIGKILL"])
def test_command_that_failed_without_a_line_of_nccl_failed(tmp_path: Path, how: str) -> None:
    report = recorded(tmp_path, [], f"the command {how.replace('exited', 'ended')} after 0.012 s")
    assert report.verdict is Verdict.FAILED
    assert report.reason == f"the command {how} and printed nothing of NCCL"


def test_good_command_without_a_line_of_nccl_is_open_and_no_settings_are_asked_for(tmp_path: Path) -> None:
    report = recorded(tmp_path, [], "the command ended with status 0 after 0.012 s")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason == "the command exited with status 0 and printed nothing of NCCL"
    assert asked(report) == ["psmkit record -- YOUR_COMMAND"]
    assert "NCCL_DEBUG" not in "".join(ask.why for ask in report.next)
    assert not any("rest of the logs" in note for note in report.coverage.notes)


def test_users_own_level_is_named_where_it_hid_nccl(tmp_path: Path) -> None:
    lines = ("NCCL_DEBUG=WARN is the user's setting and stays", "the command ended with status 0 after 0.012 s")
    assert asked(recorded(tmp_path, [], *lines)) == ["env -u NCCL_DEBUG psmkit record -- YOUR_COMMAND"]


def test_bad_end_of_a_launcher_is_no_second_failure(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        working(5, 5, 5, 5),
        "process node0:7201, rank 2, was ended by SIGSEGV after 25.488 s",
        "the command ended with status 1 after 26.100 s",
    )
    assert [c.rank for c in report.culprits] == [2]
    assert not any("the command" in f.title for f in report.findings)


def test_job_that_was_interrupted_says_so_first_and_asks_for_no_look(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        working(5, 3, 5, 5),
        "Ctrl-C: the user ended the job, after its evidence was taken",
        "the command was ended by SIGINT when the job was being ended after 9.0 s",
    )
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason.startswith("the user interrupted the job with Ctrl-C; ")
    assert not any("inspect" in command for command in asked(report))


def test_living_processes_of_a_recorded_job_are_still_to_be_looked_at(tmp_path: Path) -> None:
    report = recorded(tmp_path, working(5, 3, 5, 5), *(stood(rank, "was silent") for rank in range(4)))
    assert any("inspect" in command for command in asked(report))
