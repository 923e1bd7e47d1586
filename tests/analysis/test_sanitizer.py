"""What the handle sanitizer's lines become in an analysis."""

from __future__ import annotations

from pathlib import Path

from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Finding, Severity, Verdict
from tests.analysis.texts import Rank, find, job_of, ranks

FOREIGN = "cudaMemcpyAsync got stream 0x3f2a80200010, which belongs to rank 0, process 7001"


def told(rank: Rank, text: str, number: int = 1, *, stacks: tuple[str, ...] = ("used", "born")) -> Rank:
    rank.warn("", f"sanitizer report {number}: {text}")
    for which in stacks:
        rank.warn(
            "", f"sanitizer report {number}, {which} by thread {rank.pid} at: {which}_here (app+0x10) < main (app+0x20)"
        )
    return rank


def one(tmp_path: Path, text: str, **more: tuple[str, ...]) -> Finding:
    logs = ranks()
    told(logs[2], text, **more)
    found = find("sanitizer", tmp_path, logs)
    assert len(found) == 1
    return found[0]


def test_foreign_handle_blames_the_user_and_names_the_owner(tmp_path: Path) -> None:
    found = one(tmp_path, FOREIGN)
    assert (found.code, found.severity, found.culprits) == ("PSM507", Severity.ERROR, (2,))
    assert set(found.ranks) == {0, 2}
    assert found.explanation is not None
    assert "owner is rank 0" in found.explanation
    assert "Used at: used_here (app+0x10)" in found.explanation and "Created at: born_here" in found.explanation
    assert len(found.evidence) == 3


def test_foreign_handle_fails_the_run(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    told(logs[2], FOREIGN)
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.FAILED
    assert "rank 2" in report.reason and "stream 0x3f2a80200010" in report.reason
    assert [c.rank for c in report.culprits] == [2]


def test_owner_without_a_log_is_named_by_rank_and_process(tmp_path: Path) -> None:
    found = one(tmp_path, FOREIGN.replace("7001", "99"))
    assert found.explanation is not None and "owner is rank 0 (process 99)" in found.explanation
    assert found.ranks == (2,)


def test_destroyed_handle_is_an_error_with_the_stack_of_its_end(tmp_path: Path) -> None:
    text = "cudaEventQuery got event 0x3f2a80200020, which was destroyed before (number 7 of this process)"
    found = one(tmp_path, text, stacks=("used", "born", "ended"))
    assert (found.code, found.severity, found.culprits) == ("PSM510", Severity.ERROR, (2,))
    assert found.explanation is not None and "Destroyed at: ended_here" in found.explanation


def test_copy_out_of_bounds_is_an_error(tmp_path: Path) -> None:
    text = "cudaMemcpyAsync writes 4097 bytes at 0x7f0000000000, 1 beyond the end of device-memory 0x7f0000000000 of 4096 bytes"
    found = one(tmp_path, text)
    assert (found.code, found.severity) == ("PSM511", Severity.ERROR)
    assert "1 beyond the end of device-memory" in found.title


def test_second_free_and_unrecorded_event_are_warnings_and_fail_nothing(tmp_path: Path) -> None:
    logs = [log.work(3).destroy() for log in ranks()]
    told(logs[1], "cudaFree ends device-memory 0x7f0000000000 a second time", stacks=("used", "born", "ended"))
    told(
        logs[1], "cudaEventQuery asks for event 0x3f2a80200020, which was never recorded: CUDA takes it as complete", 2
    )
    job = job_of(tmp_path, logs)
    report = analyse_job(job)
    found = {f.code: f.severity for f in report.findings if f.code in ("PSM512", "PSM513")}
    assert found == {"PSM512": Severity.WARNING, "PSM513": Severity.WARNING}
    assert report.verdict is Verdict.HEALTHY


def test_unmapping_an_empty_reservation_is_only_told(tmp_path: Path) -> None:
    text = (
        "cuMemUnmap unmaps address-range 0x7f0000000000 of 4194304 bytes, in which nothing is mapped: this ends nothing"
    )
    found = one(tmp_path, text, stacks=("used", "born"))
    assert (found.code, found.severity, found.culprits) == ("PSM512", Severity.INFO, ())


def test_stream_that_waits_for_an_unrecorded_event_is_only_told(tmp_path: Path) -> None:
    logs = [log.work(3).destroy() for log in ranks()]
    text = "cudaStreamWaitEvent asks for event 0x3f2a80200020, which was never recorded: CUDA takes it as complete"
    for report in range(1, 12):
        told(logs[1], text, report)
    told(logs[1], text.replace("cudaStreamWaitEvent", "cudaEventQuery"), 12)
    found = [f for f in analyse_job(job_of(tmp_path, logs)).findings if f.code == "PSM513"]
    assert [f.culprits for f in found if f.severity is Severity.INFO] == [()] * 8
    assert [f.title.partition(": ")[2].split()[0] for f in found if f.severity is Severity.WARNING] == [
        "cudaEventQuery"
    ]


def test_memory_of_a_dead_process_blames_nobody_who_used_it(tmp_path: Path) -> None:
    text = "cudaMemcpyAsync got ipc-mapping 0x7f0000000000, imported from rank 0, process 7001, which is dead"
    found = one(tmp_path, text)
    assert (found.code, found.severity, found.culprits) == ("PSM514", Severity.WARNING, ())


def test_report_that_a_record_file_repeats_is_one_finding(tmp_path: Path) -> None:
    logs = ranks()
    told(told(logs[2], FOREIGN), FOREIGN)
    assert len(find("sanitizer", tmp_path, logs)) == 1


def test_reports_of_the_same_number_in_two_processes_are_two(tmp_path: Path) -> None:
    logs = ranks()
    told(logs[2], FOREIGN)
    told(logs[3], FOREIGN)
    assert sorted(f.culprits for f in find("sanitizer", tmp_path, logs)) == [(2,), (3,)]


def test_leaks_that_were_asked_for_make_a_finished_run_leaking(tmp_path: Path) -> None:
    logs = [log.work(3).destroy() for log in ranks()]
    logs[1].warn(
        "", "sanitizer: 3 of device-memory were never ended, 12288 bytes; the first was born at: main (app+0x1c00)"
    )
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.LEAKING
    assert "3 allocations of device memory" in report.reason


def test_what_is_left_to_the_end_is_no_leak(tmp_path: Path) -> None:
    logs = [log.work(3).destroy() for log in ranks()]
    logs[1].line(
        "sanitizer: 3 of device-memory left to the end of the process, 12288 bytes; the first was born at: main (app+0x1c00)"
    )
    logs[1].line("sanitizer: CUDA handles are checked in hostcuda, mode warn")
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.HEALTHY
    assert not [f for f in report.findings if f.code == "PSM505"]


def test_job_without_reports_has_no_finding(tmp_path: Path) -> None:
    assert not find("sanitizer", tmp_path, ranks())
