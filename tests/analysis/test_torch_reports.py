"""torch's own reports about ranks that differ or never came."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.analysis.rules.torch_reports import find
from psmkit.model import Severity
from tests.analysis.outside import nccl, run_rule

_OPTIONS = (
    "TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), "
    "pinned_memory=false (default), memory_format=(nullopt))"
)


def fingerprint(op: str = "ALLREDUCE", shape: str = "64", seq: int = 7) -> str:
    return (
        f"CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, TensorShape=[{shape}], TensorDtypes=Float, "
        f"TensorDeviceTypes={_OPTIONS})"
    )


def mismatch(rank: int, mine: str, other: int, theirs: str, tag: int | None = None) -> str:
    head = f"[rank{tag}]: " if tag is not None else ""
    return (
        f"{head}RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: {mine}, "
        f"but Rank {other} is running collective: {theirs}.Collectives differ in the following aspects: \t Op type\n"
    )


def analysis(
    head: str, *errors: tuple[int, str], missing: str = "", expected: int = 8, found: str = "[[4096]]", seq: int = 39
) -> str:
    lines = [head.format(seq), "internal record id: 12", "group info: 0:default_pg", "collective: nccl:all_reduce"]
    lines += [f"missing ranks: {{{missing}}}"] if missing else []
    lines += ["input sizes: [[64]]", f"world size: {expected}"]
    lines += [f"expected ranks: {{{', '.join(map(str, range(expected)))}}}", "collective state: scheduled"]
    if errors:
        text = ", ".join(
            f"Culprit rank {r}; Error type: {kind}, Expected input sizes: '[[64]]' does not match found input sizes: '{found}'"
            for r, kind in errors
        )
        lines.append(f"error msg: {text}")
    return "\n".join([*lines, "collective stack trace: ", ""])


_SIZE = "SIZE_OR_SYNTAX_MISMATCH"
_ERRORS = "Collective sequence number: {} has errors"


def test_the_desync_report_names_the_ranks(tmp_path: Path) -> None:
    lines = "  [0, 2] joined but didn't finish collective #5 (count from 1)\n"
    assert run_rule(find, tmp_path, job=lines) == []
    lines += "  [1, 3] finished collective #4, but didn't join collective #5 (count from 1)\n"
    (report,) = run_rule(find, tmp_path, job=lines)
    assert (report.code, report.culprits) == ("PSM302", (1, 3))


def test_a_desync_report_whose_ranks_wait_in_several_collectives_is_doubtful(tmp_path: Path) -> None:
    lines = (
        " - [0] Timeout at collective: ALLREDUCE, #{}\n - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "   [7] finished collective #182, but didn't join collective #183 (count from 1)\n - Snapshot of ranks' latest states:\n"
        "   #182 finished ranks:\n     [7] finished ALLREDUCE\n   #{} started ranks:\n     [0, 1, 2] started ALLREDUCE\n"
    )
    (one,) = run_rule(find, tmp_path, job=lines.format(183, 183))
    assert (one.culprits, one.confidence) == ((7,), 0.9)
    assert one.title.endswith("it did not join the collective in which the others wait")
    apart = lines.format(315, 315) + "   #317 started ranks:\n     [3, 4, 5, 6] started _ALLGATHER_BASE\n"
    (several,) = run_rule(find, tmp_path, job=apart)
    assert (several.culprits, several.confidence) == ((7,), 0.6)
    assert several.title.endswith("it did not join collective #183, and the others wait in #315 and #317")
    # the rank that reports completed the collective that rank 7 did not join
    status = (
        "[rank0]:[E515 18:36:47.343391940 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by "
        "watchdog at work sequence id: 241 PG status: last enqueued work: 183, last completed work: {}\n"
    )
    (against,) = run_rule(find, tmp_path, job=lines.format(183, 183) + status.format(183))
    assert against.confidence == 0.6 and "rank 0 completed work 183" in against.explanation
    (fits,) = run_rule(find, tmp_path, job=lines.format(183, 183) + status.format(182))
    assert fits.confidence == 0.9


def test_the_tag_of_a_desync_line_is_no_rank_of_its_list(tmp_path: Path) -> None:
    lines = "[1,0]<stderr>: [3]  finished collective #12, but didn't join collective #13\n"
    (report,) = run_rule(find, tmp_path, job=lines)
    assert report.culprits == (3,)


def test_a_rank_that_waits_in_an_earlier_collective_lags(tmp_path: Path) -> None:
    lines = (
        " - [0] Timeout at collective: ALLREDUCE, #5\n   - [2] joined but didn't finish collective #{} (count from 1)\n"
    )
    assert run_rule(find, tmp_path, job=lines.format(5)) == []
    (report,) = run_rule(find, tmp_path, job=lines.format(4))
    assert report.culprits == (2,)


def test_barriers_and_the_store(tmp_path: Path) -> None:
    text = (
        "RuntimeError: Rank 1 failed to pass monitoredBarrier in 2000 ms\n"
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.\n"
    )
    found = run_rule(find, tmp_path, job=text)
    assert [(f.code, f.culprits) for f in found] == [("PSM302", (1,)), ("PSM201", ())]
    assert "1 of 8" in found[1].title


_REACHED = "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."


@pytest.mark.parametrize(
    ("text", "culprits"),
    [
        ("[Rank 0]: Rank 5 failed to pass monitoredBarrier in 1800000 ms", (5,)),
        ("RuntimeError: [Rank 0]: Rank 5 failed to pass monitoredBarrier in 2000 ms", (5,)),
        ("[E ProcessGroupGloo.cpp:138] [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 120000 ms", (1, 2)),
        ("RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 120000 ms", (1, 2)),
    ],
)
def test_rank_0_names_the_late_ranks_of_a_barrier(text: str, culprits: tuple[int, ...], tmp_path: Path) -> None:
    lines = f"[E ProcessGroupGloo.cpp:138] {_REACHED.format(3)}\n{text}\n"
    (report,) = run_rule(find, tmp_path, job=lines)
    assert (report.code, report.culprits) == ("PSM302", culprits)
    whole = psmkit.analyze([str(tmp_path / "job.log")])
    assert whole.verdict == "hung" and not any("rank 0" in f.title for f in whole.findings)


def test_a_failed_exchange_of_a_barrier_has_two_ends_and_one_that_all_share(tmp_path: Path) -> None:
    (report,) = run_rule(find, tmp_path, job=f"[E ProcessGroupGloo.cpp:138] {_REACHED.format(3)}\n")
    assert (report.culprits, report.ranks) == ((), (3,))
    assert [(n.rank, n.either) for n in report.named] == [(0, True), (3, True)]
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "failed"
    both = "".join(f"[E ProcessGroupGloo.cpp:138] {_REACHED.format(r)}\n" for r in (2, 3))
    (report,) = run_rule(find, tmp_path, job=both)
    assert [(n.rank, n.peer_unnamed) for n in report.named] == [(0, True)]


def test_an_exception_of_rank_0_explains_a_barrier(tmp_path: Path) -> None:
    raised = "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"save.py\", line 7\n[rank0]: KeyError: 'optimizer'\n"
    (tmp_path / "job.log").write_text(f"{raised}[rank1]:[E325 ProcessGroupGloo.cpp:145] {_REACHED.format(1)}\n")
    whole = psmkit.analyze([str(tmp_path)])
    assert (whole.verdict, [c.global_rank for c in whole.culprits]) == ("failed", [0])


@pytest.mark.parametrize("odd", [0, 2])
def test_the_majority_decides_which_fingerprint_is_wrong(odd: int, tmp_path: Path) -> None:
    prints = {r: fingerprint("BROADCAST" if r == odd else "ALLREDUCE") for r in range(4)}
    peers = {r: odd if r != odd else 1 for r in range(4)}
    text = "".join(mismatch(r, prints[r], p, prints[p], tag=r) for r, p in peers.items())
    (report,) = run_rule(find, tmp_path, job=text)
    assert (report.code, report.culprits) == ("PSM301", (odd,))
    whole = psmkit.analyze([str(tmp_path / "job.log")])
    assert whole.verdict == "failed"  # the check raised, and nobody waits
    assert [c.global_rank for c in whole.culprits] == [odd]


def test_two_fingerprints_decide_nothing(tmp_path: Path) -> None:
    pair = mismatch(2, fingerprint(), 0, fingerprint(shape="65"))
    (report,) = run_rule(find, tmp_path, job=pair)
    assert (report.code, report.culprits, report.ranks) == ("PSM301", (), (0, 2))
    assert "[64]" in report.title and "[65]" in report.title


def test_a_mismatch_shows_only_what_differs(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, job=mismatch(2, fingerprint(), 0, fingerprint(shape="65")))
    assert found.title == "collective mismatch at ALLREDUCE #7: rank 0 has shape [65] and rank 2 has shape [64]"
    (other,) = run_rule(find, tmp_path, job=mismatch(2, fingerprint(), 0, fingerprint("BARRIER", shape="65")))
    assert other.title == "collective mismatch: rank 0 runs BARRIER #7 and rank 2 runs ALLREDUCE #7"


def test_three_of_eight_fingerprints_are_no_majority(tmp_path: Path) -> None:
    text = mismatch(0, fingerprint(), 1, fingerprint(shape="65")) + mismatch(
        2, fingerprint(), 1, fingerprint(shape="65")
    )
    (few,) = run_rule(find, tmp_path, job=text)
    assert few.culprits == (1,)
    (report,) = run_rule(find, tmp_path, job=nccl(*range(8), nranks=8) + text)
    assert report.culprits == ()


def test_ranks_of_a_smaller_group_are_named_by_their_tags(tmp_path: Path) -> None:
    prints = [fingerprint(), fingerprint(), fingerprint("BARRIER")]
    text = "".join(mismatch(r, prints[r], p, prints[p], tag=4 + r) for r, p in ((0, 2), (1, 2), (2, 0)))
    (report,) = run_rule(find, tmp_path, job=text)
    assert report.culprits == (6,)


def test_fingerprints_of_several_calls_decide_nothing(tmp_path: Path) -> None:
    text = "".join(
        mismatch(r, fingerprint(seq=r), 1, fingerprint(shape="65")) + mismatch(r, fingerprint(seq=9), 1, fingerprint())
        for r in (0, 2)
    )
    (report,) = run_rule(find, tmp_path, job=text)
    assert report.culprits == ()


def test_a_fingerprint_without_details_names_the_ranks(tmp_path: Path) -> None:
    text = "[Rank 2] is running collective: CollectiveFingerPrint(OpType=ALLREDUCE) but Rank 0 is running another one\n"
    (report,) = run_rule(find, tmp_path, job=text)
    assert (report.code, report.culprits, report.ranks) == ("PSM301", (), (0, 2))


def running(*last: int) -> str:
    return "".join(
        f"[I ProcessGroupWrapper.cpp:562] [Rank {r}] Running collective: {fingerprint(seq=seq)}\n"
        for seq in (1, 2)
        for r in range(len(last))
    ) + "".join(
        f"[I ProcessGroupWrapper.cpp:562] [Rank {r}] Running collective: {fingerprint(seq=seq)}\n"
        for r, seq in enumerate(last)
    )


def test_the_last_collective_of_each_rank_is_a_hint(tmp_path: Path) -> None:
    assert run_rule(find, tmp_path, job=running(9, 9, 9, 9)) == []
    (report,) = run_rule(find, tmp_path, job=running(9, 9, 8, 9))
    assert (report.severity, report.culprits, report.ranks) == (Severity.INFO, (), (2,))
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "inconclusive"


def test_the_analysis_of_flight_recorders_names_who_differs(tmp_path: Path) -> None:
    (report,) = run_rule(find, tmp_path, job=analysis(_ERRORS, (2, _SIZE), (5, _SIZE)))
    assert (report.code, report.culprits) == ("PSM301", (2, 5))
    assert "all_reduce number 39" in report.title
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "hung"


def test_the_first_rank_of_the_analysis_may_be_the_one_that_differs(tmp_path: Path) -> None:
    """torch compares with rank 0, and calls all others culprits if rank 0 differs."""
    many = [(r, _SIZE) for r in range(1, 8)]
    (report,) = run_rule(find, tmp_path, job=analysis("Collective {} at entry 38 errors", *many))
    assert report.culprits == (0,)
    (even,) = run_rule(find, tmp_path, job=analysis(_ERRORS, *many[:4]))
    assert even.culprits == ()


def test_states_that_differ_are_no_mismatch(tmp_path: Path) -> None:
    (report,) = run_rule(find, tmp_path, job=analysis(_ERRORS, (2, "COLLECTIVE_STATE_MISMATCH")))
    assert (report.severity, report.culprits) == (Severity.WARNING, ())
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "inconclusive"


@pytest.mark.parametrize(
    "head",
    [
        "Not all ranks joining collective, sequence number: {}",
        "Not all ranks joining collective: sequence number: {}",
        "Not all ranks joining collective {} at entry 4",
    ],
)
def test_the_analysis_names_who_never_joined(head: str, tmp_path: Path) -> None:
    (report,) = run_rule(find, tmp_path, job=analysis(head, missing="3"))
    assert (report.code, report.culprits) == ("PSM302", (3,))
    whole = psmkit.analyze([str(tmp_path / "job.log")])
    assert (whole.verdict, [c.rank for c in whole.culprits]) == ("hung", [3])
    assert "all_reduce number 39 of process group default_pg" in whole.findings[0].title


def test_ranks_that_two_others_wait_for_are_named_even_if_they_are_many(tmp_path: Path) -> None:
    head = "Not all ranks joining collective, sequence number: {}"
    (most,) = run_rule(find, tmp_path, job=analysis(head, missing="1, 2, 3, 4, 5"))
    (few,) = run_rule(find, tmp_path, job=analysis(head, missing="1, 2"))
    assert most.culprits == (1, 2, 3, 4, 5)
    assert most.confidence < few.confidence
    (one,) = run_rule(find, tmp_path, job=analysis(head, missing="1, 2, 3, 4, 5, 6, 7"))
    assert one.culprits == ()  # rank 0 may have called one collective too many


def test_the_first_releases_print_the_number_of_ranks_and_one_line_a_collective(tmp_path: Path) -> None:
    head = "Not all ranks joining collective 5 at entry 4\ngroup info: 0:default_pg\ncollective: {}:all_reduce\n"
    tail = "missing ranks: {{{}}}\nexpected ranks: {}\ncollective state: scheduled\n"
    (report,) = run_rule(find, tmp_path, job=head.format("xccl") + tail.format("1", 2))
    assert report.culprits == (1,)
    (report,) = run_rule(find, tmp_path, job=head.format("nccl") + tail.format("1, 2", 3))
    assert report.culprits == ()
    line = "Not all ranks joining collective for group 0:default_pg collective nccl:all_reduce  Missing ranks are {2}  "
    (report,) = run_rule(find, tmp_path, job=line + "[[64]] [[64]] 4 scheduled\n")
    assert report.culprits == (2,)


def test_an_analysis_without_all_dumps_decides_nothing(tmp_path: Path) -> None:
    text = "We cannot decide what's wrong with this collective entry because we missed FR dumps from ranks ({2, 3}) so"
    (report,) = run_rule(find, tmp_path, job=text + " we don't have enough information.\n")
    assert (report.code, report.ranks, report.culprits) == ("PSM604", (2, 3), ())
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "inconclusive"
    text = "all_reduce(input_sizes=[[3, 4]], state=completed)  all_reduce(input_sizes=[[3, 4]], state=scheduled)\n"
    assert run_rule(find, tmp_path, job=text) == []
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "inconclusive"


def test_only_the_first_mismatch_of_a_group_counts(tmp_path: Path) -> None:
    text = analysis(_ERRORS, (2, _SIZE)) + analysis(_ERRORS, (4, _SIZE), seq=40)
    (report,) = run_rule(find, tmp_path, job=text)
    assert report.culprits == (2,)


def test_words_of_other_programs_are_no_analysis(tmp_path: Path) -> None:
    text = (
        nccl(0, 1, nranks=2, ended=True) + "group info: 0:default_pg\ncollective: nccl:all_reduce\nmissing ranks: {}\n"
    )
    assert run_rule(find, tmp_path, job=text) == []
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "healthy"
