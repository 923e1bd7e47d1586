"""What inspections decide: whose state stands still or moves, who waits for whom, and which process was stopped."""

from __future__ import annotations

import json
from pathlib import Path

from psmkit.model import Verdict
from psmkit.model.inspection import InspectedFrame, InspectedThread, Inspection, Standing, StateObject, Value, to_json
from psmkit.report import render
from tests.analysis.test_stacks import (
    BARRIER,
    GETFD,
    LOADER,
    SYNC,
    analyzed,
)


def inspected(
    rank: int,
    frames: tuple[str, ...],
    *,
    peer: int | None = None,
    head: int = 4,
    moving: bool = False,
    taken: float = 100.0,
    nranks: int = 4,
    age: int = 9,
    state: str = "S",
) -> dict[str, object]:
    made = tuple(InspectedFrame(f.partition(" (")[0], f.partition(" (")[2].rstrip(")")) for f in frames)
    call = StateObject(
        "pending call",
        "GetFd",
        7,
        rank,
        peer,
        values=(Value("opId", "0x7f2500000390"), Value("type", "GetFd"), Value("age", age, True, age - 1)),
    )
    connection = StateObject(
        "connection", "send 0", 3, rank, peer, 0, (Value("head", head, moving, head - 1 if moving else None),)
    )
    return to_json(
        Inspection(
            4000 + rank,
            "node-a",
            ("python", "train.py"),
            taken,
            rank=rank,
            nranks=nranks,
            standing=(Standing("GetFd", peer, f"rank {rank} waits for a file descriptor of rank {peer}", "ncclIpcSocketRecvMsg", rank),) if peer is not None else (),
            threads=(InspectedThread(4000 + rank, "python", "main thread", "fd", "waits for a file descriptor", state, frames=made),),
            state=(StateObject("communicator", "comm 0x1", 1, rank, values=(Value("opCount", 7),), parts=(call, connection) if peer is not None else (connection,)),),
        )
    )  # fmt: skip


def test_an_inspection_whose_words_stand_still_shows_a_hang(tmp_path: Path) -> None:
    seen = [inspected(r, GETFD, peer=3, age=90) for r in (0, 1, 2)] + [inspected(3, BARRIER)]
    report = analyzed(tmp_path, s__json=json.dumps(seen))
    assert report.verdict is Verdict.HUNG
    shown = render(report, "text")
    assert "3 of them wait for rank 3" in " ".join(shown.split())
    assert "Pending calls: GetFd to rank 3, opId 0x7f2500000390" in " ".join(f.explanation for f in report.findings)
    assert [c.rank for c in report.culprits] == [3]


def test_the_rank_for_which_the_others_wait_is_the_suspect_by_one_look(tmp_path: Path) -> None:
    seen = [inspected(r, GETFD, peer=3) for r in (0, 1, 2)] + [inspected(3, BARRIER)]
    for one in seen:
        one["state"] = []
    report = analyzed(tmp_path, s__json=json.dumps(seen))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert [s.rank for s in report.suspects] == [3]
    assert (
        "3 of 4 inspected ranks wait for rank 3 (node-a:4003), which waits for peers in a barrier of the bootstrap"
        in report.reason
    )


MEET = ("recv (recv.c:28)", "lab_meet (exchange.c:40)", "main (main.c:9)")


def one_look(*seen: dict[str, object]) -> str:
    for one in seen:
        one["state"] = []
    return json.dumps(seen)


def test_a_rank_that_waits_for_its_own_proxy_is_the_suspect_of_one_that_waits_for_it_and_of_those_in_a_barrier(
    tmp_path: Path,
) -> None:
    seen = one_look(inspected(0, MEET), inspected(1, GETFD, peer=1), inspected(2, GETFD, peer=1), inspected(3, MEET))
    report = analyzed(tmp_path, s__json=seen)
    assert report.verdict is Verdict.INCONCLUSIVE and not report.culprits
    assert [s.rank for s in report.suspects] == [1]
    assert "1 of 4 inspected ranks waits for rank 1 (node-a:4001), which waits for a file descriptor" in report.reason
    assert report.next[0].command == "psmkit inspect --all -o SECOND_LOOK && psmkit analyze FIRST_LOOK SECOND_LOOK"


def test_a_rank_that_is_ahead_in_a_barrier_is_no_suspect_where_the_others_wait_for_another(tmp_path: Path) -> None:
    seen = one_look(*(inspected(r, GETFD, peer=1) for r in range(3)), inspected(3, MEET))
    assert [s.rank for s in analyzed(tmp_path, s__json=seen).suspects] == [1]


def test_ranks_that_wait_for_each_other_in_a_circle_have_no_suspect(tmp_path: Path) -> None:
    seen = one_look(inspected(0, MEET), inspected(1, GETFD, peer=2), inspected(2, GETFD, peer=1), inspected(3, MEET))
    assert analyzed(tmp_path, s__json=seen).suspects == ()


def test_a_chain_of_ranks_leads_to_the_one_that_waits_for_nobody(tmp_path: Path) -> None:
    chain = [inspected(r, GETFD, peer=r + 1) for r in range(3)] + [inspected(3, MEET)]
    report = analyzed(tmp_path, s__json=one_look(*chain))
    assert [s.rank for s in report.suspects] == [3]


def test_words_that_move_are_progress(tmp_path: Path) -> None:
    seen = [inspected(r, SYNC, moving=r == 2) for r in range(4)]
    seen[1] = inspected(1, LOADER)
    report = analyzed(tmp_path, s__json="\n".join(map(json.dumps, seen)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert not report.suspects and not report.culprits
    assert "head of send 0 moved from 3 to 4 (rank 2" in " ".join(f.explanation for f in report.findings)


def test_an_odd_one_among_inspections_is_a_suspect_and_after_a_second_one_that_stands_still_the_culprit(
    tmp_path: Path,
) -> None:
    seen = [[inspected(r, LOADER if r == 2 else SYNC, taken=at) for r in range(4)] for at in (100.0, 160.0)]
    report = analyzed(tmp_path, s__json=json.dumps(seen[0]))
    assert report.verdict is Verdict.INCONCLUSIVE and [s.rank for s in report.suspects] == [2]
    report = analyzed(tmp_path, s__json=json.dumps(seen[0]), t__json=json.dumps(seen[1]))
    assert report.verdict is Verdict.HUNG
    assert [(c.rank, c.pid, c.host) for c in report.culprits] == [(2, 4002, "node-a")]


def test_two_inspections_with_other_words_show_progress(tmp_path: Path) -> None:
    seen = [inspected(r, LOADER if r == 2 else SYNC, head=4 + at, taken=100.0 + at) for at in (1, 0) for r in range(4)]
    report = analyzed(tmp_path, s__json=json.dumps(seen))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "head of send 0 went from 4 to 5" in " ".join(f.explanation for f in report.findings)


def test_a_process_that_a_signal_stopped_is_the_culprit_by_one_look(tmp_path: Path) -> None:
    seen = [inspected(r, LOADER if r == 1 else SYNC, state="T" if r == 1 else "S") for r in range(3)]
    report = analyzed(tmp_path, s__json=json.dumps(seen))
    assert report.verdict is Verdict.HUNG and [c.rank for c in report.culprits] == [1]
    assert "rank 1 (node-a:4001) is stopped by a signal" in report.reason
    assert "kill -CONT 4001" in render(report, "text")


def test_a_look_without_frames_is_no_change(tmp_path: Path) -> None:
    seen = [inspected(r, LOADER if r == 1 else SYNC, state="T" if r == 1 else "S") for r in range(3)]
    bare = [inspected(r, (), taken=40.0, state="T" if r == 1 else "S") for r in range(3)]
    report = analyzed(tmp_path, s__json=json.dumps(bare), t__json=json.dumps(seen))
    assert report.verdict is Verdict.HUNG


def test_an_inspection_without_frames_keeps_its_own_words(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__json=json.dumps([inspected(0, (), nranks=1)]))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason == "the stacks show that rank 0 (node-a:4000) waits for a file descriptor"


def test_what_reports_say_of_hosts_can_be_redacted(tmp_path: Path) -> None:
    from psmkit.report.redact import redact

    seen = [inspected(r, LOADER if r == 2 else SYNC) for r in range(4)]
    report = analyzed(tmp_path, s__json=json.dumps(seen))
    assert "node-a" in render(report, "text")
    for form in ("text", "json", "markdown"):
        assert "node-a" not in render(redact(report), form)
