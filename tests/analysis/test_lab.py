"""What the lab says of its ranks, and what records without a clean end show: who died, who was stopped, who only waited."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Finding, Report, Severity, Verdict
from tests.analysis.texts import Rank, job_of, ranks

LOGS = Path(__file__).parents[1] / "data" / "logs"
STALLED = (
    "psm p2p send rank 0 peer 1 channel 0 stalled for 1000 ms in stage fifo: step=320 recvTail=320 sendHead=320 transmitted=320 done=320 "
    "nsteps=512 canSend=NO; waits for rank 1, the receiver, to empty a slot"
)


def pid(rank: int) -> int:
    return Rank(rank).pid


def said(rank: int, text: str) -> str:
    return f"psm lab: rank {rank}, process {pid(rank)}, {text}"


def ended(*processes: tuple[int, str]) -> list[str]:
    return [f"psm lab: rank {rank}, process {name}, ended well after 0.3 s" for rank, name in processes]


def proven_hang(folder: Path) -> None:
    """Four ranks of the host vm, 20405 to 20408, of which rank 1 was stopped."""
    for path in (LOGS / "fault_a2_n4_sigstop_rank1_in_setup").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())


def report(tmp_path: Path, logs: list[Rank], *words: str) -> Report:
    """The lab's words are a file beside the logs of the ranks."""
    lab = Rank(len(logs))
    lab.lines = list(words)
    return analyse_job(job_of(tmp_path, [*logs, lab]))


def of(found: Report, code: str) -> Finding:
    (one,) = (f for f in found.findings if f.code == code)
    return one


def test_rank_that_died_is_named_with_its_stage_and_what_the_others_said(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        ranks(2),
        said(1, "died by SIGKILL in stage setup after 0.102 s"),
        said(
            0,
            "failed in stage setup of case 0 after 0.104 s, told by lab: PSM_ERR_ABORTED: 1 other rank failed or died before setup",
        ),
    )
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [1]
    assert found.reason == "rank 1 died by SIGKILL in stage setup"
    assert "rank 0 in stage setup: PSM_ERR_ABORTED" in of(found, "PSM402").explanation
    assert not [f for f in found.findings if f.code == "PSM401" and f.severity is Severity.ERROR]


def test_stopped_process_comes_before_the_errors_that_follow_from_it(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        ranks(2),
        said(
            0,
            "failed in stage connect of case 0 after 1.1 s, told by libpsm: PSM_ERR_TIMEOUT: no answer to GetFd from rank 1 in 1000 ms",
        ),
        said(1, "is stopped in stage connect, which it entered 3.9 s ago: process state T"),
        "psm lab: 1 ranks were ended after 4.0 s: the deadline of 4 s passed",
    )
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [1]
    assert "rank 1 is stopped (process state T) in stage connect" in found.reason


def test_rank_that_stands_still_in_the_control_plane_is_named_with_who_waits_for_it(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        ranks(2),
        said(0, "waits in exchange connect for rank 1"),
        said(1, "is at work in stage setup, which it entered 3.9 s ago"),
        "psm lab: 2 ranks were ended after 4.0 s: the deadline of 4 s passed",
    )
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [1]
    assert found.reason == "rank 1 stopped in stage setup; rank 0 waits for it in exchange connect"


def test_slow_move_is_not_called_hung(tmp_path: Path) -> None:
    """A deadline alone does not show that nothing moved."""
    words = [said(r, "is at work in stage move, which it entered 3.9 s ago") for r in (0, 1)]
    words.append("psm lab: 2 ranks were ended after 4.0 s: the deadline of 4 s passed")
    found = report(tmp_path, ranks(2), *words)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert of(found, "PSM304").severity is Severity.WARNING
    assert "ranks 0 and 1 were still at work in stage move when the deadline passed" in of(found, "PSM304").title
    assert "deadline may have been too short" in of(found, "PSM304").explanation


def test_stage_that_was_just_entered_is_not_called_hung(tmp_path: Path) -> None:
    words = [said(r, "is at work in stage init, which it entered 3.9 s ago") for r in (0, 1)]
    words.append("psm lab: 2 ranks were ended after 92.0 s: the deadline of 90 s passed")
    assert report(tmp_path, ranks(2), *words).verdict is Verdict.INCONCLUSIVE


def test_move_in_which_a_stall_was_reported_is_hung(tmp_path: Path) -> None:
    words = [said(r, "is at work in stage move, which it entered 3.9 s ago") for r in (0, 1)]
    words.append("psm lab: 2 ranks were ended after 4.0 s: the deadline of 4 s passed")
    logs = ranks(2)
    logs[0].line(STALLED)
    found = report(tmp_path, logs, *words)
    assert found.verdict is Verdict.HUNG and "ranks 0 and 1 stopped in stage move" in found.reason


def test_rank_at_the_end_that_called_less_than_those_that_stand_still_is_the_one(tmp_path: Path) -> None:
    logs = [log.work(3 if log.rank != 2 else 2) for log in ranks(4)]
    logs[0].line(STALLED)
    words = [said(r, "is at work in stage move, which it entered 3.9 s ago") for r in (0, 1, 3)]
    found = report(tmp_path, logs, *words, said(2, "waits in barrier moved for ranks 0, 1, 3"))
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [2]
    assert "rank 2 must act next: it made 1 call fewer than every other rank" in found.reason


def test_rank_that_a_fault_holds_is_the_one_that_stands_still(tmp_path: Path) -> None:
    logs = ranks(3)
    logs[1].line("PSM_FAULTS: hang at cudaMemcpyAsync, call 5, rank 1", level="WARN")
    words = [said(r, "is at work in stage init, which it entered 3.9 s ago") for r in range(3)]
    found = report(tmp_path, logs, *words)
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [1]
    assert "rank 1 must act next: PSM_FAULTS holds it in cudaMemcpyAsync" in found.reason


def test_sender_whose_data_is_wrong_at_several_receivers_is_named(tmp_path: Path) -> None:
    text = "failed in stage move of case 0 after 0.3 s, told by data: wrong: 1 wrong byte(s); the first is from rank 1: byte 7 of iteration 0 is 0x10, 0x11 is meant"
    logs = [log.destroy() for log in ranks(3)]
    found = report(tmp_path, logs, said(0, text), said(2, text), said(1, "ended well after 0.3 s"))
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [1]
    (tmp_path / "all").mkdir()
    found = report(tmp_path / "all", logs, said(0, text), said(2, text), said(1, text))
    assert found.culprits == ()


def test_first_failure_is_the_origin_and_not_what_follows_from_it(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        ranks(2),
        said(
            0,
            "failed in stage move of case 0 after 0.2 s, told by libpsm: PSM_ERR_ABORTED: rank 1 ended the operation: no room",
        ),
        said(1, "failed in stage move of case 0 after 0.3 s, told by libpsm: PSM_ERR_NO_MEMORY: launch.group: no room"),
    )
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [1]
    assert found.reason == "rank 1 failed in stage move: PSM_ERR_NO_MEMORY: launch.group: no room"


def failing(rank: int, cause: str, named: int, status: str = "PSM_ERR_PEER_DEAD", reason: str = "x") -> str:
    about = f"cause {cause}, rank {named}, peer {named}, opId 0"
    return f"psm lab: rank {rank}, process node0:{pid(rank)}, failed in stage move of case 0 after 0.{rank + 1} s, reported by libpsm: {status} ({about}): {reason}"


def test_failure_is_followed_to_the_rank_that_the_last_one_names(tmp_path: Path) -> None:
    """Rank 3 said nothing: the others name it, one after the other."""
    lines = [failing(0, "peer-failed", 1), failing(1, "deadline", 2), failing(2, "peer-died", 3)]
    found = report(tmp_path, ranks(4), *lines)
    assert found.verdict is Verdict.FAILED and of(found, "PSM401").culprits == (3,)
    assert of(found, "PSM401").ranks[0] == 0, "the first failure is still the headline"
    assert of(found, "PSM401").title.startswith("rank 0 failed in stage move because of rank 3: ")


@pytest.mark.parametrize("injected", [True, False])
def test_advice_on_an_injected_error_is_about_the_fault(injected: bool, tmp_path: Path) -> None:
    reason = "p2p.setup: injected fault: " if injected else "shm_open: "
    line = failing(0, "other", -1, "PSM_ERR_NO_RESOURCE", f"{reason}No space left on device (ENOSPC)")
    found = of(report(tmp_path, ranks(2), line), "PSM401")
    assert ("df -h" in str(found.next_step)) is not injected
    assert ("without PSM_FAULTS" in str(found.next_step)) is injected
    assert ("file system is full" in str(found.explanation)) is not injected


def test_rank_that_failed_by_itself_has_no_other_rank_in_its_title(tmp_path: Path) -> None:
    found = report(tmp_path, ranks(2), failing(0, "other", -1, "PSM_ERR_CUDA"), failing(1, "peer-failed", 0))
    assert of(found, "PSM401").title.startswith("rank 0 failed in stage move: ")


@pytest.mark.parametrize(
    ("warning", "culprits"),
    [
        ("Message truncated : received 8192 bytes instead of 512", ()),
        ("Cuda failure 2 'out of memory'", (0,)),
    ],
)
def test_rank_that_got_a_message_of_another_size_is_not_the_one_that_is_wrong(
    tmp_path: Path, warning: str, culprits: tuple[int, ...]
) -> None:
    why = f"ncclInternalError: ncclGroupEnd: ncclInternalError (internal error); last error: {warning}"
    found = report(tmp_path, ranks(2), said(0, f"failed in stage setup of case 0 after 0.8 s, told by nccl: {why}"))
    assert of(found, "PSM401").culprits == culprits


@pytest.mark.parametrize("alive", [True, False])
def test_lost_connection_to_a_rank_at_work_blames_nobody(tmp_path: Path, alive: bool) -> None:
    logs = ranks(2)
    why = "(cause peer-died, rank 1): rank 1, the receiver, died or closed its connections in operation 1"
    logs[0].warn("", f"psm rank 0 ends the operation on all ranks, PSM_ERR_PEER_DEAD {why}")
    end = "is at work in stage move, which it entered 4.2 s ago" if alive else "ended well after 4.2 s"
    found = report(tmp_path, logs, said(1, end))
    assert {c.rank for c in found.culprits} == (set() if alive else {1})
    titles = [f.title for f in found.findings if f.code == "PSM403"]
    assert alive == any("which is still at work" in title for title in titles), titles


def test_rank_that_a_chain_of_failures_ends_at_is_blamed(tmp_path: Path) -> None:
    found = report(tmp_path, ranks(3), failing(0, "peer-closed", 1), failing(1, "other", -1, "PSM_ERR_CUDA"))
    assert of(found, "PSM401").culprits == (1,) and "PSM_ERR_CUDA" in of(found, "PSM401").title


def test_mismatch_of_two_ranks_blames_neither_and_the_majority_of_four_decides(tmp_path: Path) -> None:
    for name in ("two", "four"):
        (tmp_path / name).mkdir()
    two = report(tmp_path / "two", ranks(2), failing(0, "mismatch", 1), failing(1, "mismatch", 0))
    assert two.verdict is Verdict.FAILED and of(two, "PSM401").culprits == () and of(two, "PSM401").ranks == (0, 1)
    four = report(tmp_path / "four", ranks(4), *(failing(r, "mismatch", 3) for r in range(3)))
    assert of(four, "PSM401").culprits == (3,)


def test_ranks_that_name_each_other_prove_nothing_of_either(tmp_path: Path) -> None:
    found = report(tmp_path, ranks(2), failing(0, "deadline", 1), failing(1, "deadline", 0))
    assert found.verdict is Verdict.FAILED and of(found, "PSM401").culprits == ()


def test_fields_of_a_failure_count_and_not_its_words(tmp_path: Path) -> None:
    words = "rank 1, the sender, died or closed its connections in operation 1, stage fifo"
    found = report(tmp_path, ranks(2), failing(0, "other", -1, reason=words))
    assert of(found, "PSM401").culprits == (0,)


DAMAGED = "rank 1 published sendHead 7 in operation 2; 8 to 16 are possible: the control segment was written by something else"


@pytest.mark.parametrize(
    "line",
    [
        failing(0, "damaged-sendHead", 1, "PSM_ERR_PROTOCOL", "bad sendHead 7"),
        said(0, f"failed in stage move of case 0 after 0.1 s, told by libpsm: PSM_ERR_PROTOCOL: {DAMAGED}"),
    ],
    ids=["fields", "0.1"],
)
def test_damaged_word_is_named_and_neither_rank_is_blamed_for_it(tmp_path: Path, line: str) -> None:
    found = of(report(tmp_path, ranks(2), line), "PSM401")
    assert found.culprits == () and set(found.ranks) == {0, 1}
    assert "only rank 1 writes sendHead" in (found.explanation or "")


@pytest.mark.parametrize("form", ["{} s of {} s: the deadline of {} s passed", "{} s: the deadline of {} s passed"])
@pytest.mark.parametrize(("deadline", "severity"), [(60, Severity.WARNING), (4, Severity.ERROR)])
def test_stage_of_seconds_proves_a_hang_in_a_short_run_only(
    tmp_path: Path, form: str, deadline: int, severity: Severity
) -> None:
    """In the line of either version."""
    hung = said(0, "is at work in stage setup, which it entered 3.0 s ago")
    end = f"psm lab: 1 ranks were ended after {form.format(*[deadline] * form.count('{}'))}"
    assert of(report(tmp_path, ranks(1), hung, end), "PSM304").severity is severity


def test_what_the_log_shows_of_an_error_comes_before_what_its_caller_was_told(tmp_path: Path) -> None:
    logs = ranks(3)
    for log in logs:
        log.line(f"NCCL_PASS_SM set by environment to {int(log.rank != 2)}.")
    text = (
        "failed in stage setup of case 0 after 0.2 s, told by nccl: ncclInternalError: ncclGroupEnd: ncclInternalError"
    )
    for log in logs[:2]:
        log.warn("bootstrap.cc:209", "Message truncated : received 8192 bytes instead of 512", "async").fail(3)
    found = report(tmp_path, logs, said(0, text), said(1, text))
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [2]


def test_wrong_data_is_a_failure_though_all_operations_ended_well(tmp_path: Path) -> None:
    text = "failed in stage move of case 0 after 0.3 s, told by data: PSM_ERR_INTERNAL: 1 wrong byte(s); the first is from rank 1"
    found = report(tmp_path, [r.destroy() for r in ranks(2)], said(0, text), said(1, "ended well after 0.3 s"))
    assert found.verdict is Verdict.FAILED and found.reason.startswith("data that arrived at rank 0 is wrong")


def test_what_is_left_open_is_a_leak_and_no_failure(tmp_path: Path) -> None:
    text = (
        "failed in stage stop of case 0 after 0.3 s, told by left: PSM_ERR_INTERNAL: 3 sockets or memfds are left open"
    )
    found = report(tmp_path, [r.destroy() for r in ranks(2)], said(0, text), said(1, text))
    assert found.verdict is Verdict.LEAKING and "left open" in found.reason


def test_ranks_that_ended_well_are_healthy_whatever_their_logs_show(tmp_path: Path) -> None:
    found = report(tmp_path, ranks(2), *(said(r, "ended well after 0.3 s") for r in (0, 1)))
    assert found.verdict is Verdict.HEALTHY
    worse = tmp_path / "worse"
    worse.mkdir()
    words = [said(0, "ended well after 0.3 s"), said(1, "is at work in stage free, which it entered 0.3 s ago")]
    assert report(worse, ranks(2), *words).verdict is not Verdict.HEALTHY


def recorded(log: Rank, died: bool = False) -> Rank:
    log.line(f"record of process {log.pid}, rank {log.rank}, command psm_rank, begun 2026-11-21T10:00:00.000000")
    if died:
        log.warn(
            "",
            f"record of a process that ended without clean exit: process {log.pid}, rank {log.rank}, last record 2026-11-21T10:00:07.250000",
        )
    return log


def test_record_without_a_clean_end_names_the_dead_among_those_that_gave_up(tmp_path: Path) -> None:
    logs = [recorded(Rank(0, 3).start()), recorded(Rank(1, 3).start()), recorded(Rank(2, 3).start(), died=True)]
    found = analyse_job(job_of(tmp_path, logs))
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [2]
    assert "died: its record shows no orderly end, and the other ranks ended by themselves" in found.reason


def test_records_that_all_have_no_clean_end_accuse_nobody(tmp_path: Path) -> None:
    """A launcher that kills the job leaves the same."""
    found = analyse_job(job_of(tmp_path, [recorded(r, died=True) for r in ranks(2)]))
    assert found.verdict is Verdict.INCONCLUSIVE and not found.culprits
    assert of(found, "PSM402").severity is Severity.WARNING


def test_exit_without_closing_after_the_teardown_is_healthy(tmp_path: Path) -> None:
    logs = [recorded(r.destroy(), died=r.rank == 1) for r in ranks(2)]
    assert analyse_job(job_of(tmp_path, logs)).verdict is Verdict.HEALTHY


def test_record_of_a_rank_that_the_lab_ended_is_no_death(tmp_path: Path) -> None:
    logs = [recorded(r, died=True) for r in ranks(2)]
    found = report(
        tmp_path,
        logs,
        said(0, "waits in exchange connect for rank 1"),
        said(1, "is at work in stage setup, which it entered 3.9 s ago"),
    )
    assert not [f for f in found.findings if f.code == "PSM402"]


def test_a_lab_log_that_lost_a_line_accuses_no_rank_that_the_lab_ended(tmp_path: Path) -> None:
    logs = [recorded(Rank(r, 2).start(), died=True) for r in range(2)]
    cut = report(tmp_path, logs, said(0, "waits in exchange connect for rank 1"))
    assert cut.verdict is not Verdict.FAILED and not cut.culprits
    # a rank that closed its record gave up by itself
    (tmp_path / "closed").mkdir()
    logs = [recorded(Rank(r, 3).start(), died=r < 2) for r in range(3)]
    left = report(tmp_path / "closed", logs, said(0, "waits in exchange connect for rank 1"))
    assert [c.rank for c in left.culprits] == [1]


@pytest.mark.parametrize("form", ["{}", "vm:{}", "elsewhere:{}"])
def test_lab_log_of_another_job_does_not_end_a_run_that_hangs(form: str, tmp_path: Path) -> None:
    proven_hang(tmp_path)
    words = ended(*((rank, form.format(31000 + rank)) for rank in range(4)))
    (tmp_path / "lab.log").write_text("\n".join(words) + "\n")
    found = psmkit.analyze([str(tmp_path)])
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [1], found.reason
    assert [run.verdict for run in found.runs] == [Verdict.HUNG, Verdict.INCONCLUSIVE]
    assert "31003" in found.runs[1].reason and "were not given" in found.runs[1].reason


@pytest.mark.parametrize("first", [20405, 31000])
def test_lines_of_the_lab_in_the_log_of_a_rank_do_not_end_a_run_that_hangs(first: int, tmp_path: Path) -> None:
    proven_hang(tmp_path)
    path = next(tmp_path.glob("nccl.rank0.*"))
    words = ended((0, f"{first}"), (1, f"{first + 1}"))
    path.write_text(path.read_text() + "\n".join(words) + "\n")
    found = psmkit.analyze([str(tmp_path)])
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [1], found.reason


def test_ranks_that_ended_well_do_not_outweigh_a_proven_hang(tmp_path: Path) -> None:
    """The lab names all four processes, and their own lines prove the opposite."""
    proven_hang(tmp_path)
    words = ended(*((rank, f"vm:{20405 + rank}") for rank in range(4)))
    (tmp_path / "lab.log").write_text("\n".join(words) + "\n")
    found = psmkit.analyze([str(tmp_path)])
    assert (found.verdict, len(found.runs)) == (Verdict.HUNG, 1), found.reason


@pytest.mark.parametrize("form", ["{}", "node0:{}"])
def test_lab_speaks_for_the_processes_that_it_names(form: str, tmp_path: Path) -> None:
    words = ended(*((rank, form.format(pid(rank))) for rank in range(2)))
    found = report(tmp_path, ranks(2), *words)
    assert (found.verdict, len(found.runs)) == (Verdict.HEALTHY, 1), found.reason


def test_same_pids_on_another_host_are_other_processes(tmp_path: Path) -> None:
    words = ended(*((rank, f"other:{pid(rank)}") for rank in range(2)))
    assert report(tmp_path, ranks(2), *words).verdict is Verdict.INCONCLUSIVE


def test_lab_that_names_some_of_the_processes_does_not_end_the_run(tmp_path: Path) -> None:
    found = report(tmp_path, ranks(3), *ended((0, f"{pid(0)}"), (1, f"{pid(1)}")))
    assert found.verdict is Verdict.INCONCLUSIVE, found.reason


def test_lab_that_names_a_process_without_a_log_does_not_end_the_run(tmp_path: Path) -> None:
    words = ended(*((rank, f"{pid(rank)}") for rank in range(3)))
    found = report(tmp_path, ranks(2), *words)
    assert (found.verdict, len(found.runs)) == (Verdict.INCONCLUSIVE, 1), found.reason


def test_rank_that_died_before_it_wrote_a_log_counts_for_the_run_of_the_others(tmp_path: Path) -> None:
    found = report(
        tmp_path, ranks(3)[:2], said(2, "died by SIGKILL in stage start after 0.1 s"), *ended((0, f"{pid(0)}"))
    )
    assert (found.verdict, len(found.runs)) == (Verdict.FAILED, 1), found.reason
    assert [c.rank for c in found.culprits] == [2]


def test_failure_of_another_labs_rank_is_a_run_of_its_own(tmp_path: Path) -> None:
    logs = [log.destroy() for log in ranks(2)]
    found = report(tmp_path, logs, "psm lab: rank 1, process other:9, died by SIGKILL in stage setup after 0.1 s")
    assert [run.verdict for run in found.runs] == [Verdict.HEALTHY, Verdict.FAILED], found.reason


def output_of_tests(host: str, first: int, n: int) -> str:
    lines = [
        f"#  Rank  {r} Group  0 Pid {first + 100 * r} on  {host} device  {r} [0000:0{r}:00] NVIDIA H100"
        for r in range(n)
    ]
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


@pytest.mark.parametrize(
    ("host", "first", "n", "verdict"),
    [
        ("node0", 7001, 4, Verdict.HEALTHY),
        ("node0", 9001, 4, Verdict.INCONCLUSIVE),
        ("node7", 7001, 4, Verdict.INCONCLUSIVE),
        ("node0", 7001, 3, Verdict.INCONCLUSIVE),
    ],
)
def test_nccl_tests_speaks_for_the_processes_that_it_names(
    host: str, first: int, n: int, verdict: Verdict, tmp_path: Path
) -> None:
    job_of(tmp_path, [log.work() for log in ranks(4)])
    (tmp_path / "logs" / "tests.out").write_text(output_of_tests(host, first, n))
    found = psmkit.analyze([str(tmp_path / "logs")])
    assert found.verdict is verdict, found.reason


def test_right_values_do_not_outweigh_a_proven_hang(tmp_path: Path) -> None:
    proven_hang(tmp_path)
    (tmp_path / "tests.out").write_text("# Out of bounds values : 0 OK\n")
    found = psmkit.analyze([str(tmp_path)])
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [1], found.reason
