"""Lost and damaged lines beside a real fault: the rank with the damage is not the culprit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.model import Report
from tests.loggen import generate
from tests.loggen.crowd import FAULTY, write_merged
from tests.mutilate import SCORED


def judged(folder: Path, files: dict[str, str]) -> tuple[str, set[int | None], Report]:
    for name, text in files.items():
        (folder / name).write_text(text)
    report = analyze([folder])
    return str(report.verdict), {culprit.global_rank for culprit in report.culprits}, report


def without(text: str, *words: str, nth: int = 0) -> str:
    """The text without the nth line that contains all of the words."""
    lines = text.splitlines(keepends=True)
    del lines[[n for n, line in enumerate(lines) if all(word in line for word in words)][nth]]
    return "".join(lines)


def test_lost_collective_of_a_rank_is_no_mismatch_where_ras_names_another_one(tmp_path: Path) -> None:
    files = generate("stop_at_work", "2.30", seed=7).files()
    files["nccl.rank0.log"] = without(files["nccl.rank0.log"], "AllReduce: opCount", nth=2)
    verdict, culprits, _ = judged(tmp_path, files)
    assert (verdict, culprits) == ("hung", {2})


def test_lost_recv_of_a_rank_is_no_hang_of_it_where_ras_names_another_one(tmp_path: Path) -> None:
    text = generate("stop_in_setup", "2.27", seed=7).merged()
    verdict, culprits, _ = judged(tmp_path, {"job.log": without(text, ":6003:", "Recv: opCount")})
    assert (verdict, culprits) == ("hung", {1})


def test_operation_with_a_damaged_name_is_no_other_operation(tmp_path: Path) -> None:
    files = generate("lag_at_work", "2.27", seed=7).files()
    name = next(name for name, text in files.items() if "[Rank 1] Watchdog caught" in text)
    at = files[name].index("OpType=", files[name].index("[Rank 1] Watchdog caught")) + len("OpType=") + 3
    files[name] = files[name][:at] + "u" + files[name][at + 1 :]
    verdict, culprits, report = judged(tmp_path, files)
    assert "PSM301" not in {finding.code for finding in report.findings}
    assert (verdict, culprits) == ("hung", {2})


def failing(error: str) -> dict[str, str]:
    """Four ranks whose settings differ in one that a lost line may hide; rank 2 fails in a transport."""
    files = {}
    for rank in range(4):
        pre = f"h:{100 + rank}:{100 + rank} [{rank}] NCCL INFO "
        comm = f"comm 0x55{rank}0 rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank} busId {rank + 1}000 commId 0x77"
        lines = [f"{pre}NCCL version 2.26.2+cuda12.8"]
        lines += [f"{pre}NCCL_CUMEM_ENABLE set by environment to 1."] * (rank > 0)
        lines += [f"{pre}ncclCommInitRank {comm} - Init START", f"{pre}ncclCommInitRank {comm} - Init COMPLETE"]
        if rank == 2:
            lines += [
                "",
                f"h:102:110 [2] transport/p2p.cc:275 NCCL WARN Cuda failure '{error}'",
                "h:102:110 [2] NCCL INFO transport/p2p.cc:340 -> 1",
            ]
        files[f"rank{rank}.log"] = "".join(line + "\n" for line in lines)
    return files


def test_setting_of_another_rank_explains_a_handle_and_no_earlier_failure(tmp_path: Path) -> None:
    assert judged(tmp_path, failing("an illegal memory access was encountered"))[1] == {2}
    assert judged(tmp_path, failing("illegal memory access"))[1] == {2}
    assert judged(tmp_path, failing("invalid argument"))[1] == {0}


def damaged(folder: Path, name: str, way: str, merged: bool) -> Report:
    log = generate(*name.split("/"), seed=1 if merged else 2)
    whole = {"job.log": log.merged()} if merged else log.files()
    files = {file: text.encode() for file, text in whole.items()}
    shape = "merged" if merged else "files"
    for file, data in SCORED[way](files, random.Random(f"{name}/{shape}:{way}")).items():
        (folder / file).write_bytes(data)
    return analyze([folder])


@pytest.mark.parametrize(
    ("name", "way", "merged", "guilty"),
    [
        # the numbers of the calls show that a line is lost or comes twice
        ("lag_at_work/2.11", "shuffled", False, {2}),
        ("lag_at_work/2.10", "duplicated", False, {2}),
        # answers without their calls show it
        ("lag_at_work/2.27", "shuffled", True, {2}),
        # an answer that its reader did not print shows it, and is lost as well
        ("other_count/2.27", "dropped", False, {3}),
        # some ranks lack a send, and not one rank or all
        ("kill_in_setup_silent/2.11", "dropped", True, {1}),
        ("healthy_both/2.9", "dropped", True, set()),
    ],
)
def test_lost_or_moved_lines_blame_no_other_rank(
    tmp_path: Path, name: str, way: str, merged: bool, guilty: set[int]
) -> None:
    report = damaged(tmp_path, name, way, merged)
    assert {culprit.global_rank for culprit in report.culprits} <= guilty, report.reason
    assert guilty or report.verdict in ("healthy", "inconclusive"), report.reason


def test_unread_answers_are_no_hang_of_their_ranks_where_ras_names_another_one(tmp_path: Path) -> None:
    write_merged(tmp_path / "job.log", "unanswered", 64)
    report = analyze([tmp_path])
    assert (report.verdict, {c.global_rank for c in report.culprits}) == ("hung", {FAULTY}), report.reason
    assert {r for f in report.findings if f.code == "PSM101" for r in f.culprits} <= {FAULTY}


def test_lost_reports_of_several_watchdogs_make_suspects_and_no_culprits(tmp_path: Path) -> None:
    """Rank 5 never called. Of rank 9, the lines of the last call and of its watchdog have no readable process."""
    path = tmp_path / "job.log"
    write_merged(path, "watchdog", 32)
    lines = path.read_text().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if line.startswith("node1:6361:") and "AllReduce" in line)
    other = next(n for n, line in enumerate(lines) if line.startswith("node2:") and "AllReduce" in line)
    for n in (last, other):
        host, pid, rest = lines[n].split(":", 2)
        lines[n] = f"{host}:{pid[:2]}x{pid[3:]}:{rest}"
    path.write_text("".join(line for line in lines if not line.startswith("[rank9]")))
    report = analyze([path])
    assert (report.verdict, list(report.culprits)) == ("hung", []), report.reason
    assert {suspect.rank for suspect in report.suspects} == {FAULTY, 9}


def test_ranks_whose_lines_about_their_init_are_lost_are_no_ranks_that_did_not_finish_it(tmp_path: Path) -> None:
    """Of rank 9, the log ends in its init, which its peers completed. Of ranks 11 to 13, which work, one line is lost."""
    path = tmp_path / "job.log"
    write_merged(path, "watchdog", 32)
    lines = path.read_text().splitlines(keepends=True)
    begins = {rank: f"node1:{6001 + 40 * rank}:" for rank in (9, 11, 12, 13)}
    start = next(n for n, line in enumerate(lines) if line.startswith(begins[9]) and "Init START" in line)
    gone = {n for n, line in enumerate(lines) if line.startswith(begins[9]) and n > start}
    gone |= {n for n, line in enumerate(lines) if "Init COMPLETE" in line and line.startswith(tuple(begins.values()))}
    path.write_text("".join(line for n, line in enumerate(lines) if n not in gone))
    report = analyze([path])
    assert "PSM202" not in {f.code for f in report.findings}, report.reason
