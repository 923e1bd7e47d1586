"""Watchdog timeouts: who waits, and who never came."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.analysis.rules.watchdog import find
from tests.analysis.outside import coded, nccl, run_rule
from tests.analysis.texts import analyzed
from tests.analysis.texts import ranks as members


def timeout(rank: int, seq: int = 808, op: str = "ALLREDUCE", numel: int = 64, out: int | None = None) -> str:
    return (
        f"[rank{rank}]:[E626 06:24:4{rank % 10}.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={out or numel}, Timeout(ms)=600000) ran for 600030 milliseconds before timing out.\n"
    )


def status(
    rank: int, work: int = 808, enqueued: int = 811, group: str = "0(default_pg)", tag: int | None = None
) -> str:
    return (
        f"[rank{rank if tag is None else tag}]:[E626 06:24:45.1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID {group} Rank {rank}] Exception "
        f"(either an error or timeout) detected by watchdog at work: {work}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {work - 1}.\n"
    )


def dump_signal(rank: int, enqueued: int, by: int = 0) -> str:
    return (
        f"[rank{rank}]:[E626 06:24:46.1 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a "
        f"collective timeout from  rank {by} and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, "
        f"last completed NCCL work: {enqueued}.This is most likely caused by incorrect usages of collectives\n"
    )


def test_the_rank_whose_enqueued_work_is_behind_is_the_culprit(tmp_path: Path) -> None:
    text = "".join(timeout(r) + status(r) for r in (0, 1, 3)) + dump_signal(2, 807)
    found = run_rule(find, tmp_path, job=text)
    (report,) = coded(found, "PSM305")
    assert report.culprits == (2,)
    assert report.ranks == (0, 1, 2, 3)
    assert "ALLREDUCE 808" in report.title
    assert "600 s" in report.title
    (lag,) = coded(found, "PSM302")
    assert lag.culprits == (2,)
    assert lag.evidence[0].line == 7


def test_when_all_ranks_joined_nobody_is_blamed(tmp_path: Path) -> None:
    found = run_rule(find, tmp_path, job=nccl(0, 1, 2, 3, nranks=4) + "".join(timeout(r) + status(r) for r in range(4)))
    (report,) = found
    assert (report.code, report.culprits, report.run) == ("PSM305", (), 0)
    assert report.title.endswith("no rank lags behind")  # nothing shows where it hangs
    assert "output of all ranks" not in report.next_step  # it is in the input


def calling(rank: int, times: int) -> str:
    """Calls of a rank on the communicator of ``nccl()``."""
    comm = next(
        word
        for line in nccl(rank, nranks=4).splitlines()
        if " comm 0x" in line
        for word in line.split()
        if word[:2] == "0x"
    )
    head = nccl(rank, nranks=4).splitlines()[0].partition(" NCCL INFO ")[0]
    call = f"AllReduce: opCount 0 sendbuff 0x7f40 recvbuff 0x7f80 count 64 datatype 7 op 0 root 0 comm {comm} [nranks=4] stream 0x55d0"
    return f"{head} NCCL INFO {call}\n" * times


@pytest.mark.parametrize(("times", "suspects"), [(3, []), (2, [2])])
def test_a_silent_rank_that_called_as_often_as_the_others_is_no_suspect(
    times: int, suspects: list[int], tmp_path: Path
) -> None:
    text = nccl(0, 1, 2, 3, nranks=4) + "".join(calling(r, times if r == 2 else 3) for r in range(4))
    text += "".join(timeout(r, op="BROADCAST") + status(r) for r in (0, 1, 3))
    (report,) = coded(run_rule(find, tmp_path, job=text), "PSM305")
    assert list(report.suspects) == suspects and not report.culprits


@pytest.mark.parametrize(("times", "culprits"), [(3, ()), (2, (2,))])
def test_a_silent_rank_that_called_as_often_as_the_others_is_not_blamed(
    times: int, culprits: tuple[int, ...], tmp_path: Path
) -> None:
    text = nccl(0, 1, 2, 3, nranks=4) + "".join(calling(r, times if r == 2 else 3) for r in range(4))
    found = run_rule(find, tmp_path, job=text + "".join(timeout(r) + status(r) for r in (0, 1, 3)))
    assert coded(found, "PSM305")[0].culprits == culprits


def test_a_silent_rank_is_suspected(tmp_path: Path) -> None:
    text = nccl(0, 1, 2, 3, nranks=4) + "".join(timeout(r) + status(r) for r in (0, 1, 3))
    (lag,) = coded(run_rule(find, tmp_path, job=text), "PSM302")
    assert lag.culprits == (2,)
    assert lag.confidence < 0.9


def test_many_silent_ranks_say_nothing(tmp_path: Path) -> None:
    text = nccl(0, 1, 2, 3, nranks=4) + timeout(0) + status(0) + timeout(1) + status(1)
    found = run_rule(find, tmp_path, job=text)
    assert [f.code for f in found] == ["PSM305"]
    assert found[0].culprits == ()


def test_silent_ranks_without_any_line_may_be_cut_away(tmp_path: Path) -> None:
    excerpt = "".join(timeout(r) for r in (1, 2, 3, 6, 7))
    found = run_rule(find, tmp_path, job=excerpt)
    assert [(f.code, f.culprits) for f in found] == [("PSM305", ())]
    assert found[0].title.endswith("ranks 0, 4 and 5 of at least 8 do not report it")


def test_silent_ranks_that_print_other_lines_are_suspected(tmp_path: Path) -> None:
    text = "".join(f"[rank{r}]: RuntimeWarning: loss is nan\n" for r in (0, 4, 5))
    text += "".join(
        f"[rank{r}]:[W626 06:20:01.1 ProcessGroupNCCL.cpp:90] [PG ID 0 PG GUID 0(default_pg) Rank {r}] ProcessGroupNCCL preparing to dump debug info.\n"
        for r in (0, 4, 5)
    )
    found = run_rule(find, tmp_path, job=text + "".join(timeout(r) for r in (1, 2, 3, 6, 7)))
    assert coded(found, "PSM302")[0].culprits == (0, 4, 5)


def test_another_operation_under_the_same_number_is_a_mismatch(tmp_path: Path) -> None:
    text = "".join(timeout(r) + status(r) for r in (0, 1)) + timeout(2, op="BROADCAST") + status(2)
    found = run_rule(find, tmp_path, job=text)
    (mismatch,) = coded(found, "PSM301")
    assert mismatch.culprits == (2,)
    assert "BROADCAST" in mismatch.title
    assert coded(found, "PSM305")[0].culprits == (2,)


def test_another_size_is_a_mismatch_where_sizes_have_to_agree(tmp_path: Path) -> None:
    text = "".join(timeout(r) + status(r) for r in (0, 1)) + timeout(2, numel=32) + status(2)
    assert coded(run_rule(find, tmp_path, job=text), "PSM301")[0].culprits == (2,)
    uneven = "".join(timeout(r, op="ALLTOALL_BASE", numel=64 + r) + status(r) for r in (0, 1, 2))
    assert coded(run_rule(find, tmp_path, job=uneven), "PSM301") == []


def test_groups_are_judged_apart(tmp_path: Path) -> None:
    # Rank 1 of group 5 is global rank 3: its line has both numbers.
    text = timeout(0, 10) + status(0, 10, 12) + timeout(1, 10) + status(1, 10, 12)
    text += (timeout(0, 99) + status(0, 99, 99, "5(tp)", tag=2)).replace(
        "[rank0]:[E626 06:24:40", "[rank2]:[E626 06:24:40"
    )
    found = coded(run_rule(find, tmp_path, job=text), "PSM305")
    assert len(found) == 2
    assert all(f.culprits == () for f in found)
    assert "process group 5" in found[1].title


def test_old_lines_without_numbers_are_reported(tmp_path: Path) -> None:
    line = "[E ProcessGroupNCCL.cpp:587] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=1800000) ran for 1803170 milliseconds before timing out.\n"
    found = run_rule(find, tmp_path, job=line.format(0) + line.format(2))
    assert found[0].code == "PSM305"
    assert "ALLREDUCE" in found[0].title
    assert (found[0].culprits, found[0].suspects) == ((), (1,))


def test_an_error_that_is_no_timeout_is_no_watchdog_timeout(tmp_path: Path) -> None:
    assert run_rule(find, tmp_path, job=status(0) + status(1)) == []


def test_only_dump_requests_name_who_gave_up(tmp_path: Path) -> None:
    found = run_rule(find, tmp_path, job=dump_signal(1, 20) + dump_signal(2, 20) + dump_signal(3, 19))
    (report,) = found
    assert (report.code, report.culprits) == ("PSM305", (3,))
    assert "rank 0 gave up" in report.title


@pytest.mark.parametrize(("ranks", "culprits"), [((2,), (2,)), ((0, 1, 2, 3), ())])
def test_a_watchdog_that_stands_still(ranks: tuple[int, ...], culprits: tuple[int, ...], tmp_path: Path) -> None:
    text = "".join(
        f"[rank{r}]:[F ProcessGroupNCCL.cpp:1169] [PG ID 0 PG GUID 0(default_pg) Rank {r}] ProcessGroupNCCL's watchdog got stuck for 480 seconds "
        "without making progress in monitoring enqueued collectives. This typically indicates\n"
        for r in ranks
    )
    (report,) = run_rule(find, tmp_path, job=text)
    assert (report.code, report.culprits) == ("PSM305", culprits)
    assert "480 s" in report.title


def test_a_job_without_a_nccl_line_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("".join(timeout(r) + status(r) for r in (0, 1, 3)) + dump_signal(2, 807))
    report = psmkit.analyze([str(path)])
    assert report.verdict == "hung"
    assert [c.global_rank for c in report.culprits] == [2]


def test_a_group_that_never_completed_an_operation_is_said_to(tmp_path: Path) -> None:
    (first, *_) = run_rule(find, tmp_path, job=timeout(0, 1) + status(0, work=1).replace("work: 0.", "work: -1."))
    assert "never completed an operation" in first.explanation
    (later, *_) = run_rule(find, tmp_path, job=timeout(0, 1) + status(0, work=1))
    assert "never completed" not in later.explanation


def test_the_ranks_below_the_highest_one_that_do_not_report_are_suspects(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job="".join(timeout(r, op="BROADCAST") + status(r) for r in (1, 2, 4, 6)))
    assert report.reason.endswith("on ranks 1, 2, 4 and 6; ranks 0, 3 and 5 of at least 7 do not report it")
    assert [s.rank for s in report.suspects] == [0, 3, 5] and not report.culprits
    assert "Look first at the output of ranks 0, 3 and 5" in report.findings[0].next_step


def test_the_ranks_of_other_files_are_no_suspects(tmp_path: Path) -> None:
    files = {f"rank{r}": timeout(r, op="BROADCAST") + status(r) for r in (1, 2, 3)}
    report = analyzed(tmp_path, **files)
    assert "rank 0 of at least 4 does not report it" in report.reason
    assert not report.suspects and not report.culprits


def test_a_rank_with_another_line_of_its_watchdog_is_not_silent(tmp_path: Path) -> None:
    text = "".join(timeout(r, op="BROADCAST") + status(r) for r in (0, 2, 3))
    first = "[rank1]:[E626 06:24:41.1 ProcessGroupNCCL.cpp:2103] [PG ID 0 PG GUID 0(default_pg) Rank 1] First PG on this rank to signal dumping.\n"
    report = analyzed(tmp_path, job=first + text)
    assert not report.suspects
    assert "do not report" not in report.reason and "only ranks 0, 2 and 3 of at least 4 report" in report.reason


@pytest.mark.parametrize(
    ("op", "numel", "out", "says"),
    [
        ("_ALLGATHER_BASE", 100, 600, "of ranks 1 and 4, of 6 ranks"),
        ("_REDUCE_SCATTER_BASE", 600, 100, "of ranks 1 and 4, of 6 ranks"),
        ("_ALLGATHER_BASE", 100, 650, "of ranks 1 and 4, of at least 5 ranks"),
        ("_ALLGATHER_BASE", 100, 300, "of ranks 1 and 4, of at least 5 ranks"),
        ("ALLTOALL_BASE", 100, 600, "of ranks 1 and 4, of at least 5 ranks"),
    ],
    ids=["gather", "scatter", "no multiple", "smaller than a rank", "another operation"],
)
def test_sizes_of_gathers_and_scatters_show_the_size_of_a_group(
    op: str, numel: int, out: int, says: str, tmp_path: Path
) -> None:
    report = analyzed(tmp_path, job="".join(timeout(r, op=op, numel=numel, out=out) + status(r) for r in (1, 4)))
    assert report.reason.endswith(says)
    assert not report.suspects


def test_a_group_whose_gather_shows_that_all_ranks_report_has_no_rank_that_lags(tmp_path: Path) -> None:
    def job(size: int) -> str:
        return "".join(timeout(r, op="_ALLGATHER_BASE", out=64 * size) + status(r, group="5(tp)") for r in range(3))

    assert "no rank lags behind" in analyzed(tmp_path, job=job(3)).reason
    assert "rank 3 of group tp (4 ranks) does not report it" in analyzed(tmp_path, job=job(4)).reason


def test_a_rank_of_a_damaged_line_makes_no_list(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job="".join(timeout(r, op="BROADCAST") for r in (1, 2, 999_999_999)))
    assert report.reason.endswith(
        "the log holds only the watchdog reports of ranks 1, 2 and 999999999, of at least 1000000000 ranks"
    )
    assert not report.suspects


def _stuck(rank: int, seconds: int | None) -> str:
    head = f"[rank{rank}]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank {rank}] "
    out = (
        head
        + "Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=1\n"
    )
    if seconds is not None:
        out += (
            head
            + f"[PG 0 Rank {rank}] ProcessGroupNCCL's watchdog got stuck for {seconds} seconds without making progress in monitoring enqueued collectives.\n"
        )
    return out


@pytest.mark.parametrize(
    ("times", "says"), [((600, 600), " for 600 s"), ((600, None), " progress"), ((600, 480), " progress")]
)
def test_a_time_without_progress_is_said_of_the_ranks_that_print_it(
    times: tuple[int | None, ...], says: str, tmp_path: Path
) -> None:
    (found,) = run_rule(find, tmp_path, job="".join(_stuck(rank, time) for rank, time in enumerate(times)))
    assert found.title.endswith(says)


def test_a_request_to_dump_is_said_of_the_ranks_that_got_it(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, job=dump_signal(0, 20, by=13))
    assert "torch asked rank 0 for a dump because a collective timed out on rank 13" in found.explanation
    assert "Run psmkit again with the log of rank 13" in found.next_step


def test_the_log_of_a_rank_that_is_there_is_not_asked_for(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, job=dump_signal(0, 20, by=0) + dump_signal(1, 20, by=0))
    assert "Run psmkit again" not in found.next_step
    assert "Look in the full output of rank 0" in found.next_step


def test_a_process_that_ended_gets_no_debugger(tmp_path: Path) -> None:
    ends = (
        "[rank0]:[F429 14:03:49.385461578 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank 0] "
        "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n"
    )
    alive = run_rule(find, tmp_path, job=_stuck(0, 480))
    dead = run_rule(find, tmp_path, job=_stuck(0, 480) + ends)
    assert "attach gdb at once" in alive[0].next_step
    assert all("Attach gdb" not in f.next_step and "has ended" in f.next_step for f in dead)


@pytest.mark.parametrize(
    ("over", "words"), [(False, "If the processes still run"), (True, "TORCH_NCCL_DUMP_ON_TIMEOUT=1")]
)
def test_a_timeout_says_which_lines_to_read(over: bool, words: str, tmp_path: Path) -> None:
    down = "[rank1]:[E626 06:24:41.2 ProcessGroupNCCL.cpp:698] [Rank 1] To avoid data inconsistency, we are taking the entire process down.\n"
    report = analyzed(tmp_path, job="".join(timeout(r) for r in range(2)) + (down if over else ""))
    step = next(f.next_step for f in report.findings if f.code == "PSM305")
    assert "when the wait began" in step
    assert words in step and ("still run" in step) is not over
    # what to do, and no statements about the run
    assert all(part.split()[0] in ("Run", "Read", "Set", "If", "Check") for part in step.removesuffix(".").split(". "))


def test_the_end_of_a_rank_after_a_timeout_follows_from_the_timeout(tmp_path: Path) -> None:
    over = "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 41)\n"
    died = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\n" + over
    log = tmp_path / "job.log"
    log.write_text("".join(timeout(rank) for rank in (0, 1, 3)) + died)
    report = psmkit.analyze([log])
    (end,) = [n for n, f in enumerate(report.findings) if f.code == "PSM408"]
    (cause,) = [c for c in report.causes if report.findings[c.finding].code == "PSM305"]
    assert end in cause.follows
    assert report.findings[end].next_step == (
        "Find the rank that did not join ALLREDUCE 808: it reports no timeout of it, or its last enqueued work has a smaller number."
    )


@pytest.mark.parametrize("threw", [True, False])
def test_the_advice_on_a_timeout_names_what_stopped_the_rank_that_is_missing(threw: bool, tmp_path: Path) -> None:
    error = "[rank2]: Traceback (most recent call last):\n[rank2]: KeyError: 'x'\n" if threw else ""
    log = tmp_path / "job.log"
    log.write_text(error + "".join(timeout(rank) for rank in (0, 1, 3)))
    (found,) = [f for f in psmkit.analyze([log]).findings if f.code == "PSM305"]
    fix = "Fix what stopped rank 2: it raised KeyError: 'x' (job.log:2). A longer NCCL timeout does not help."
    assert (found.next_step == fix) is threw, found.next_step


def test_the_advice_on_a_timeout_names_the_last_line_of_the_suspect(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    works = {rank: 807 if rank == 2 else 808 for rank in range(5)}
    log.write_text("".join(timeout(rank, work) + status(rank, work) for rank, work in works.items()))
    (found,) = [f for f in psmkit.analyze([log]).findings if f.code == "PSM305"]
    assert found.suspects == (2,) and found.next_step is not None
    assert found.next_step.startswith("Look first at the output of rank 2, whose last known line is job.log:6. Read")


@pytest.mark.parametrize("missing", [False, True])
def test_logs_that_are_there_are_not_asked_for(missing: bool, tmp_path: Path) -> None:
    for log in members(8)[: 7 if missing else 8]:
        (tmp_path / f"nccl.rank{log.rank}.log").write_text("".join(f"{line}\n" for line in log.work(2).lines))
    (tmp_path / "job.log").write_text(timeout(0))
    (found,) = [f for f in psmkit.analyze([tmp_path]).findings if f.code == "PSM305"]
    assert ("with the logs of all ranks" in str(found.next_step)) is missing
