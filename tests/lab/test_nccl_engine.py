"""``psmkit lab nccl`` with symmetric windows, CTA policies, one-sided calls and graphs: over a library of ours, and over a real one, 2.28 or
newer, that PSM_TEST_NCCL_ENGINE names (a build as docs/linking.md says; no transport in it, no kernels)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli.app import main
from psmkit.lab import copy_engine, nccl_library, transfer
from psmkit.lab.cuda import LIBRARIES, folder
from psmkit.lab.nccl import NcclCase
from tests.lab.test_nccl import Lab, compile_library, report, states

REAL = os.environ.get("PSM_TEST_NCCL_ENGINE", "")
real = pytest.mark.skipif(not REAL, reason="PSM_TEST_NCCL_ENGINE names no NCCL library of 2.28 or newer")
ENGINE = ("--windows", "--cta-policy", "zero")
CALLS = ",".join(copy_engine.CALLS)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of ours that has windows and one-sided calls."""
    place = tmp_path_factory.mktemp("engine")
    options = ('-DSTANDIN_VERSION="2.30.7"', "-DSTANDIN_CODE=23007", str(folder() / LIBRARIES["cudart12"]))
    compile_library(place / "libnccl.so.2", "12.8", *options)
    return place


@pytest.fixture
def lab(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lab:
    return Lab(library, tmp_path / "out", capsys)


def engine(result: dict[str, Any]) -> dict[str, Any]:
    found = result["settings"]["engine"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("ranks", ["2", "3"])
def test_copy_engine_calls_are_counted_and_their_bytes_compared(lab: Lab, ranks: str) -> None:
    status, result = lab("--ranks", ranks, "--pattern", CALLS, *ENGINE, "--size", "8,4K", "--root", "1")
    assert (status, set(states(result))) == (0, {"good"}), [r["text"] for r in result["ranks"]]
    assert result["analysis"]["verdict"] == "healthy"
    assert engine(result) == {"asked": 16, "shown": 16, "hierarchical": 0, "missing": [], "lines": True, "kernels": 0}
    assert all(r["memory"] == "nccl" for r in [dict(w.split("=") for w in case.split()) for case in result["cases"]])


def test_puts_and_signals_arrive_and_are_no_mismatch(lab: Lab) -> None:
    arguments = ("--ranks", "3", "--pattern", "put-signal", "--windows", "--iters", "3", "--size", "4K")
    status, result = lab(*arguments)
    assert (status, set(states(result))) == (0, {"good"}), [r["text"] for r in result["ranks"]]
    assert result["analysis"]["verdict"] == "healthy"
    assert "PSM301" not in result["analysis"]["codes"]
    assert [report(result, rank)["bytes"] for rank in range(3)] == [2 * 3 * 4096] * 3
    assert (engine(result)["asked"], engine(result)["shown"]) == (3, 3)


def test_a_put_that_is_shorter_is_found_at_its_target(lab: Lab) -> None:
    arguments = (
        "--ranks",
        "2",
        "--pattern",
        "put-signal",
        "--windows",
        "--size",
        "4K",
        "--differ",
        "rank=1,shorter=1K",
    )
    status, result = lab(*arguments)
    assert status == 1
    assert (report(result, 0)["wrong_from"], report(result, 0)["wrong_offset"]) == (1, 3072)


def test_a_run_that_fell_back_does_not_count(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--ranks", "2", "--pattern", "allgather,gather", *ENGINE, "--env", "STANDIN_NO_WINDOWS=1")
    status, result = lab(*arguments)
    assert (status, set(states(result))) == (3, {"good"})
    assert engine(result)["missing"] == [
        "AllGather of 65,536 bytes: 2 of 2 calls",
        "Gather of 65,536 bytes: 2 of 2 calls",
    ]
    assert main(["lab", "report", str(lab.folder)]) == 3
    assert "no line shows that all calls went by copy engines" in capsys.readouterr().out


def test_a_put_without_a_window_says_what_is_missing(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--pattern", "put-signal", "--windows", "--env", "STANDIN_NO_WINDOWS=1")
    assert status == 1
    assert "no symmetric memory" in report(result, 0)["text"] + report(result, 1)["text"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--windows", "--memory", "cuda"), "--windows needs --memory nccl"),
        (("--pattern", "put-signal"), "--pattern put-signal needs --windows"),
        (("--graph", "2", "--pattern", "random"), "a graph has one"),
        (("--graph", "2", "--app-stream", "legacy"), "does not capture the legacy stream"),
        (("--rma",), "--rma needs --nodes 2 or more"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    command = ["lab", "nccl", "--lib", str(library), *arguments, "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_release_without_policies_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_library(tmp_path / "libnccl.so.2", "12.8", str(folder() / LIBRARIES["cudart12"]))
    status, result = Lab(tmp_path, tmp_path / "out", capsys)("--ranks", "2", "--cta-policy", "zero")
    assert status == 1
    assert "this release has no CTA policy" in report(result, 0)["text"]


# ---- the count, by constructed logs


HEAD = "node0:{pid}:{pid} [{rank}] NCCL INFO "
READY = "Init CE, rank {rank} baseUCSymReadyPtr 0x7f0000000000, baseUCSymComplPtr 0x7f0000000010, seq num 0"


def logs(tmp_path: Path, *of_ranks: list[str]) -> Path:
    for rank, lines in enumerate(of_ranks):
        path = transfer.log_file(tmp_path, rank)
        path.parent.mkdir(exist_ok=True)
        text = [(HEAD + line).format(pid=4000 + rank, rank=rank) for line in ["NCCL version 2.28.9+cuda13.0", *lines]]
        path.write_text("\n".join(text) + "\n")
    return tmp_path


def zero(pattern: str = "allgather", **more: Any) -> NcclCase:
    return NcclCase(pattern=pattern, size=4096, memory="nccl", windows=1, cta_policy="zero", **more)


def test_a_release_without_lines_for_calls_counts_by_its_set_up(tmp_path: Path) -> None:
    found = copy_engine.seen([zero()], 2, logs(tmp_path, [READY], [READY]))["engine"]
    assert (found["asked"], found["shown"], found["lines"]) == (2, 2, False)


def test_each_communicator_needs_its_own_set_up(tmp_path: Path) -> None:
    place = logs(tmp_path, [READY, READY], [READY])
    assert copy_engine.seen([zero(), zero()], 2, place)["engine"]["shown"] == 0
    assert copy_engine.seen([zero(keep=1), zero()], 2, place)["engine"]["shown"] == 4


def test_calls_beyond_the_lines_are_missing(tmp_path: Path) -> None:
    line = "AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpy"
    found = copy_engine.seen([zero(iters=3)], 2, logs(tmp_path, [READY, line, line], [READY]))["engine"]
    assert (found["shown"], found["missing"]) == (2, ["AllGather of 4,096 bytes: 1 of 3 calls"])


def test_a_run_that_asks_for_no_copy_engine_says_nothing(tmp_path: Path) -> None:
    assert copy_engine.seen([NcclCase(), zero("allreduce")], 2, logs(tmp_path, [], [])) == {}


def test_calls_over_nodes_count_by_their_own_line(tmp_path: Path) -> None:
    line = "AllGather [Hierarchical CE]: 4096 Bytes -> RMA proxy + CE"
    found = copy_engine.seen([zero()], 2, logs(tmp_path, [READY, line, line], [READY]), 2)["engine"]
    assert (found["shown"], found["hierarchical"], found["missing"]) == (2, 2, [])


@pytest.mark.parametrize(("nodes", "shown"), [(1, 2), (2, 0)])
def test_one_sided_calls_to_other_nodes_need_a_proxy(tmp_path: Path, nodes: int, shown: int) -> None:
    own = [f"Rank {rank}: finished init RMA CE contexts, numRmaCeCtxs 1" for rank in range(4)]
    place = logs(tmp_path, *([line] for line in own))
    case = NcclCase(pattern="put-signal", memory="nccl", windows=1)
    assert copy_engine.seen([case], 4, place, nodes)["engine"]["shown"] == shown


def test_a_release_without_rma_plugins_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ('-DSTANDIN_VERSION="2.29.7"', "-DSTANDIN_CODE=22907", str(folder() / LIBRARIES["cudart12"]))
    compile_library(tmp_path / "libnccl.so.2", "12.8", *options)
    command = [
        "lab",
        "nccl",
        "--lib",
        str(tmp_path),
        "--ranks",
        "4",
        "--nodes",
        "2",
        "--rma",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(command) == 2
    assert "NCCL 2.29.7 has no RMA plugins, 2.30.3 is the first" in " ".join(capsys.readouterr().err.split())


# ---- a real NCCL


@pytest.fixture
def real_lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lab:
    return Lab(Path(REAL), tmp_path / "out", capsys)


def assert_right(status: int, result: dict[str, Any]) -> None:
    assert set(states(result)) == {"good"}, result["ranks"]
    assert (status, result["analysis"]["verdict"]) == (0, "healthy"), result["analysis"]


@real
@pytest.mark.parametrize("ranks", ["2", "4"])
@pytest.mark.parametrize("graph", ["0", "3"])
def test_a_real_library_moves_all_collectives_by_copy_engine(real_lab: Lab, ranks: str, graph: str) -> None:
    status, result = real_lab("--ranks", ranks, "--pattern", CALLS, *ENGINE, "--size", "64K", "--graph", graph)
    assert_right(status, result)
    assert (engine(result)["asked"], engine(result)["shown"], engine(result)["kernels"]) == (8, 8, 0)


@real
@pytest.mark.parametrize(("graph", "first"), [("0", (2, 29)), ("3", (2, 30))])
def test_a_real_library_puts_and_signals(real_lab: Lab, graph: str, first: tuple[int, int]) -> None:
    version = nccl_library.find(Path(REAL)).version
    if tuple(int(number) for number in version.split(".")[:2]) < first:
        pytest.skip(f"NCCL {version} has no such calls, or cannot capture them")
    status, result = real_lab("--ranks", "2", "--pattern", "put-signal", "--windows", "--size", "64K", "--graph", graph)
    assert_right(status, result)
    assert engine(result)["shown"] == 2


@real
def test_a_rank_that_stays_away_is_named_with_the_flag(real_lab: Lab) -> None:
    fault = ("--fault", "lab.iteration:hang,rank=1,nth=2")
    status, result = real_lab("--ranks", "4", "--pattern", "allgather", *ENGINE, *fault, deadline=("--deadline", "20"))
    assert (status, result["analysis"]["verdict"]) == (1, "hung")
    assert result["analysis"]["reason"].startswith("rank 1 never entered AllGather #2 of communicator ")
    assert result["analysis"]["culprits"] == [1]


# ---- a real NCCL over several nodes, through psmkit's RMA plugin


def over_nodes() -> tuple[str, ...]:
    version = nccl_library.find(Path(REAL)).version
    if tuple(int(number) for number in version.split(".")[:2]) < (2, 30):
        pytest.skip(f"NCCL {version} has no hierarchical calls")
    return ("--ranks", "4", "--nodes", "2", "--rma", "--windows", "--cta-policy", "zero", "--size", "64K")


@real
@pytest.mark.parametrize("graph", ["0", "3"])
def test_a_real_library_moves_hierarchical_calls_between_nodes(real_lab: Lab, graph: str) -> None:
    patterns = "allgather,alltoall-coll,put-signal"
    _, result = real_lab(*over_nodes(), "--pattern", patterns, "--graph", graph)
    assert set(states(result)) == {"good"}, result["ranks"]
    found = engine(result)
    assert (found["asked"], found["shown"], found["hierarchical"], found["kernels"]) == (6, 6, 4, 0)
    # NCCL leaks memory of its GIN proxy with each communicator
    assert result["analysis"]["verdict"] in ("healthy", "leaking"), result["analysis"]


@real
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("lab.iteration:hang,rank=1,nth=2", "rank 1 never entered AllGather #2 of communicator "),
        (
            "net.put:hang,rank=1,nth=3",
            "the RMA proxy of rank 1 did not complete a put of AllGather #2 of communicator ",
        ),
        ("net.signal:drop,rank=2,nth=3", "rank 2 did not signal in communicator "),
    ],
)
def test_who_holds_a_call_over_nodes_is_named(real_lab: Lab, fault: str, reason: str) -> None:
    arguments = (*over_nodes(), "--pattern", "allgather", "--iters", "3", "--fault", fault)
    status, result = real_lab(*arguments, deadline=("--deadline", "20"))
    assert (status, result["analysis"]["verdict"]) == (1, "hung")
    assert result["analysis"]["reason"].startswith(reason)
    assert result["analysis"]["culprits"] == [int(reason.split("rank ")[1][0])]


@real
def test_an_error_that_the_thread_of_one_sided_calls_keeps_is_told(real_lab: Lab) -> None:
    fault = ("--fault", "net.put:error=ncclInternalError,rank=1,nth=3")
    arguments = (*over_nodes(), "--pattern", "allgather", "--iters", "3", *fault)
    status, result = real_lab(*arguments, deadline=("--deadline", "20"))
    # no rank returns an error to its program: all stand at the deadline
    assert (status, set(states(result)), result["analysis"]["verdict"]) == (1, {"hung"}, "failed")
    assert result["analysis"]["culprits"] == [1]
    assert "got error 3 at rma/" in result["analysis"]["reason"]
