"""``ops`` and ``diff``: tables of rows made by hand, and of a real log."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from psmkit.analysis.views.ops import OpRow
from psmkit.cli import diff, ops
from psmkit.logparse.types import Ref
from psmkit.model import Evidence
from psmkit.model.difference import Difference, SettingDifference, StepDifference
from psmkit.report.difference import page as text_page

from .conftest import Result

Cli = Callable[..., Result]
DATA = Path(__file__).parents[1] / "data"
LOGS = DATA / "logs"
JOB = DATA / "nccl" / "ok_n2"

FILES = ["rank0.log", "a\x1b[31m.log"]
DONE = OpRow(
    kind="call",
    run=0,
    rank=1,
    process="h:11",
    peer_rank=0,
    peer_process="h:10",
    op=0x7F0215C09CC0,
    generation=2,
    type="Setup",
    stage="matched",
    complete=True,
    size=240,
    refs=(("begun", Ref(0, 10, 0)), ("matched", Ref(1, 20, 0))),
)
OPEN = OpRow(
    "fd", None, None, "=h:12", 3, None, 0x40F06CB450B4D0C, 1, "GetFd", "asked", False, None, (("asked", Ref(0, 9, 0)),)
)


def test_ops_as_text() -> None:
    lines = "".join(ops._text([DONE, OPEN], FILES)).splitlines()
    assert lines[0].split() == list(ops._COLUMNS)
    assert (
        lines[1].split() == "1 1 h:11 call 0x7f0215c09cc0 2 Setup matched 0 (h:10) 240 begun=0:10 matched=1:20".split()
    )
    assert "asked!" in lines[2]
    assert lines[3] == "2 calls; ! marks a call that is not complete"
    assert lines[5] == "file 1: a\\x1b[31m.log"


def test_ops_as_text_of_one_file_need_no_file_numbers() -> None:
    assert "begun=10" in "".join(ops._text([OPEN, DONE], FILES[:1])).replace("matched=1:20", "")


def test_ops_as_json() -> None:
    document = json.loads("".join(ops._json([DONE, OPEN], FILES)))
    assert document["schema"] == "psmkit.ops/1"
    first, second = document["ops"]
    assert (first["op"], first["generation"], first["lines"]["begun"]) == ("0x7f0215c09cc0", 2, "rank0.log:10")
    assert (second["rank"], second["complete"]) == (None, False)
    assert json.loads("".join(ops._json([], FILES)))["ops"] == []


def test_ops_as_csv_start_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO("".join(ops._csv([DONE, OPEN], FILES)))))
    assert rows[0]["op"] == "0x7f0215c09cc0"
    assert rows[1]["process"] == "'=h:12"
    assert rows[1]["rank"] == ""


def test_ops_are_streamed() -> None:
    def endless() -> object:
        while True:
            yield DONE

    for writer in (ops._text, ops._json, ops._csv):
        pieces = writer(endless(), FILES)  # type: ignore[arg-type]
        assert len([piece for piece, _ in zip(pieces, range(5), strict=False)]) == 5


def page(difference: Difference, *, verbose: bool = False, chosen: bool = False) -> str:
    return text_page(difference, 100, verbose=verbose, chosen=chosen).text()


def step(rank: int | None, common: int, good: str | None = "Setup to rank 2", bad: str | None = None) -> StepDifference:
    at = Evidence("good.log", 7, "h:1:1 [0] NCCL INFO x")
    return StepDifference(rank, f"h:{rank}", common, common, good, bad, at, None)


SAME = Difference((), (), (), (), (0, 1))


def test_no_difference() -> None:
    assert page(SAME) == "same: every rank takes the same protocol steps with the same settings\n"
    unseen = dataclasses.replace(SAME, unseen=(2, 3))
    assert page(unseen) == (
        "same: ranks 0, 1 take the same protocol steps with the same settings; no log of ranks 2, 3 on either side\n"
    )
    assert page(dataclasses.replace(SAME, equal_ranks=(1,)), chosen=True).startswith("same: rank 1 takes the same ")


def test_the_rank_that_leaves_the_common_way_first_comes_first() -> None:
    text = page(Difference((step(0, 9), step(3, 4)), (), (), (), (1, 2)))
    first = "differs: rank 3 first, after 4 common steps: the bad log has no more steps, the good one Setup to rank 2; 2 of 4 ranks differ"
    assert text.splitlines()[0] == first
    assert text.index("rank 3 (h:3)") < text.index("rank 0 (h:0)")
    assert "good.log:7" in text
    assert "no difference on ranks: 1, 2" in text


def test_many_ranks_are_folded() -> None:
    many = Difference(tuple(step(rank, 5) for rank in range(30)), (), (), (), ())
    assert "and 22 more ranks (8-29; -v shows all)" in page(many)
    assert "more ranks" not in page(many, verbose=True)


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Difference((), (), (4, 5, 6), (), ()), "differs: ranks 4-6 are only in the good log"),
        (Difference((), (), (), (7,), ()), "differs: rank 7 is only in the bad log"),
        (Difference((), (), (), (7,), (), ("BAD h:12",)), "  not compared, rank not known: BAD h:12"),
        (
            Difference((), (SettingDifference("setting", "NCCL_PASS_SM", "1", None, (3,)),), (), (), ()),
            "NCCL_PASS_SM  1     not in the log  3",
        ),
    ],
)
def test_what_else_can_differ(difference: Difference, words: str) -> None:
    assert words in page(difference)


@pytest.mark.parametrize("width", [60, 100, 140])
def test_a_row_of_settings_shows_where_its_sides_differ(width: int) -> None:
    text = (
        "nranks=4 nodes=1 local_ranks=4 a_long_name=1 another_long_name=12 mnnvl={} more=1 and_more=2 and_still_more=3"
    )
    sides = [
        (text.format(0), text.format(1)),
        (text + " x", text),
        ("p" * 90 + "1" + "s" * 90, "p" * 90 + "2" + "s" * 90),
    ]
    for good, bad in sides:
        difference = Difference((), (SettingDifference("topology", "comm.shape", good, bad, (3,)),), (), (), ())
        lines = text_page(difference, width).text().splitlines()
        assert all(len(line) <= width for line in lines[-2:])
        ours, theirs = lines[-1].split("comm.shape")[1].rsplit(maxsplit=1)[0].strip().split("  ", 1)
        assert ours.strip() != theirs.strip()
    assert "mnnvl=0" in page(
        Difference((), (SettingDifference("topology", "comm.shape", *sides[0], (3,)),), (), (), ())
    )


def test_only_some_ranks() -> None:
    difference = Difference((step(0, 9), step(3, 4)), (), (5,), (), (1, 2))
    chosen = diff._select(difference, frozenset({0, 1}))
    assert [s.rank for s in chosen.steps] == [0]
    assert (chosen.missing, chosen.equal_ranks) == ((), (1,))
    stray = dataclasses.replace(difference, not_compared=("BAD h:12",))
    assert diff._select(stray, frozenset({1})).same
    assert diff._select(stray, frozenset({1, 5})).not_compared == ("BAD h:12",)


def test_every_call_of_a_real_log(psmkit_cli: Cli, tmp_path: Path) -> None:
    log = LOGS / "passsm-8gpu.log"
    found: Sequence[dict[str, object]] = json.loads(psmkit_cli("ops", log, "--format", "json").out)["ops"]
    assert len([op for op in found if op["kind"] == "call"]) == 37
    assert len([op for op in found if op["kind"] == "fd"]) == 7
    assert all(op["complete"] for op in found)
    assert json.loads(psmkit_cli("ops", log, "--format", "json", "--pending").out)["ops"] == []
    nothing = "is pending; a call that was never made is not listed: see psmkit analyze\n"
    assert psmkit_cli("ops", log, "--pending") == Result(0, f"no call {nothing}", "")
    assert psmkit_cli("ops", log, "--pending", "--ranks", "1-3").out == f"no call of ranks 1-3 {nothing}"
    failed = LOGS / "fault_e1_n4_rank1_cumem_import_oom"
    assert psmkit_cli("ops", failed, "--pending").out.startswith("run  rank")
    file = tmp_path / "ops.csv"
    assert psmkit_cli("ops", log, "--format", "csv", "--output", file) == Result(0, "", "")
    assert len(file.read_text().splitlines()) == 45


def test_a_log_does_not_differ_from_itself(psmkit_cli: Cli) -> None:
    log = LOGS / "passsm-8gpu.log"
    result = psmkit_cli("diff", log, log)
    assert (result.status, result.out[:5]) == (0, "same:")


def test_a_stopped_rank_is_shown_beside_the_good_run(psmkit_cli: Cli, tmp_path: Path) -> None:
    logs = LOGS / "ok_n4_psm_64K", LOGS / "fault_a2_n4_sigstop_rank1_in_setup"
    text = psmkit_cli("diff", *logs)
    assert text.status == 1
    lines = text.out.splitlines()
    assert lines[0].startswith("differs: rank 1 ")
    assert lines[0].endswith(", only in the bad log); the steps of 4 of 4 ranks differ")
    above = next(at for at, line in enumerate(lines) if "-- last common step --" in line)
    assert lines[above - 1].split() == "299 proxy Init (16 bytes) = 299 proxy Init (16 bytes)".split()
    assert lines[above + 1].split() == "306 proxy Setup (160 bytes) <".split()
    assert "proxy Setup 12 2 10 0 1".split() in [line.split() for line in lines]

    document = json.loads(psmkit_cli("diff", *logs, "--format", "json", "--ranks", "1").out)
    assert document["schema"] == "psmkit.diff/1"
    [step] = document["steps"]
    assert [row["mark"] for row in step["around"]] == ["same"] * 4 + ["good"] * 12
    assert (step["good_more"], step["bad_more"]) == (22, 0)
    [setup] = [row for row in document["operations"] if row["kind"] == "proxy Setup"]
    assert (setup["rank"], setup["good"], setup["bad"], setup["missing"], setup["extra"]) == (1, 12, 2, 10, 0)
    assert setup["missing_at"].endswith("nccl.rank1.vm.6002.log:306") and setup["extra_at"] is None

    page = tmp_path / "diff.html"
    assert psmkit_cli("diff", *logs, "--format", "html", "--output", page) == Result(1, "", "")
    assert lines[0].removeprefix("differs: ") in page.read_text()


@pytest.mark.parametrize("fault", ["kill-in-setup", "lag-at-work", "answer-lost", "import-fails", "registration-kept"])
def test_the_first_difference_is_what_the_analysis_blames(psmkit_cli: Cli, tmp_path: Path, fault: str) -> None:
    good, bad = tmp_path / "good.log", tmp_path / "bad.log"
    for file, what in ((good, "healthy"), (bad, fault)):
        assert psmkit_cli("lab", "synth", "--ranks", "4", "--nodes", "2", "--fault", what, "-o", file).status == 0
    report = json.loads(psmkit_cli("analyze", bad, "--format", "json").out)
    first = report["findings"][report["causes"][0]["finding"]]
    cause = json.loads(psmkit_cli("diff", good, bad, "--format", "json").out)["cause"]
    assert (cause["code"], cause["title"], cause["ranks"]) == (first["code"], first["title"], first["culprits"])
    text = psmkit_cli("diff", good, bad).out.splitlines()
    assert text[0].startswith(f"differs: {cause['title']} ({cause['code']}, only in the bad log)")
    assert text[1].strip() == f"{bad}:{cause['at']['line']}"
    others = sorted(set(range(4)) - set(first["culprits"]))
    chosen = json.loads(psmkit_cli("diff", good, bad, "--ranks", str(others[0]), "--format", "json").out)
    assert chosen["cause"] is None
    assert json.loads(psmkit_cli("diff", bad, bad, "--format", "json").out)["same"]


def test_a_missing_file_is_one_line(psmkit_cli: Cli) -> None:
    for args in (("ops", "no/such.log"), ("diff", "no/such.log", "no/other.log"), ("analyze", "no/such.log")):
        result = psmkit_cli(*args)
        assert (result.status, result.out) == (2, "")
        assert "no/such.log" in result.err
        assert result.err.count("\n") == 1


def test_an_input_without_an_nccl_line_is_refused(psmkit_cli: Cli, tmp_path: Path) -> None:
    log, empty, real = tmp_path / "x.log", tmp_path / "empty.log", LOGS / "passsm-8gpu.log"
    log.write_text("waiting for the proxy\n")
    empty.write_text("")
    for bad in (log, empty):
        refused = psmkit_cli("analyze" if bad is empty else "ops", bad)
        assert (refused.status, refused.out) == (2, "")
        assert f"no NCCL line in {bad}" in refused.err
        for args in (("ops", bad), ("ops", bad, "--format", "json"), ("diff", bad, bad), ("diff", real, bad)):
            assert psmkit_cli(*args) == refused


def with_another_host(folder: Path, *, named: bool) -> Path:
    """The logs of a job of two ranks, and one log of another host; ``named``: a communicator line names its process."""
    shutil.copytree(JOB, folder)
    with gzip.open(JOB.parent / "ok_n4" / "rank-1.log.gz", "rt") as file:
        lines = [line.replace("vm:", "other:", 1) for line in file]
    kept = [line for line in lines if named or not ("Init START" in line or "Init COMPLETE" in line)]
    assert named or len(kept) < len(lines)
    (folder / "other.log").write_text("".join(kept))
    return folder


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_with_a_log_of_another_job_is_not_compared(psmkit_cli: Cli, tmp_path: Path, named: bool) -> None:
    both = with_another_host(tmp_path / "both", named=named)
    for side, args in (("GOOD", (both, JOB)), ("BAD", (JOB, both)), ("GOOD", (both, both))):
        result = psmkit_cli("diff", *args)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith(f"psmkit: {side} holds 2 runs")
        assert result.err.endswith(": give the logs of one job\n")
        assert f"other in {both / 'other.log'}" in result.err and "vm in " in result.err


def test_logs_without_a_rank_are_not_the_same(psmkit_cli: Cli) -> None:
    logs = JOB.parent / "stop_init_r2"
    result = psmkit_cli("diff", logs, logs)
    assert (result.status, result.out) == (2, "")
    assert f"GOOD holds no process with one known rank (vm in {logs / 'rank-0.log.gz'})" in result.err


def test_no_difference_beside_a_process_that_was_not_compared_is_an_error(psmkit_cli: Cli, tmp_path: Path) -> None:
    # A process of the job's stream without a rank: two lines between those of rank 0.
    with gzip.open(JOB / "rank-0.log.gz", "rt") as file:
        lines = file.readlines()
    stray = [line.replace("vm:23950:23950", "vm:777:777") for line in lines if "set by environment" in line][:5]
    assert len(stray) == 5
    for side in ("good", "bad"):
        folder = tmp_path / side
        shutil.copytree(JOB, folder)
        (folder / "rank-0.log.gz").unlink()
        (folder / "rank-0.log").write_text("".join([*lines[:9], *stray, *lines[9:]] if side == "bad" else lines))
    result = psmkit_cli("diff", tmp_path / "good", tmp_path / "bad")
    assert (result.status, result.out) == (2, "")
    assert "psmkit knows no rank of BAD vm:777: give" in result.err


@pytest.mark.parametrize("command", [("analyze", JOB), ("ops", JOB), ("ops", JOB, "--pending"), ("diff", JOB, JOB)])
def test_a_rank_that_the_job_does_not_have_is_an_error(psmkit_cli: Cli, command: tuple[object, ...]) -> None:
    for ranks, words in (("5", "rank 5"), ("0,4-7", "ranks 4-7")):
        result = psmkit_cli(*command, "--ranks", ranks)
        assert (result.status, result.out) == (2, "")
        assert result.err == f"psmkit: Invalid value for --ranks: no {words}; the job has ranks 0-1\n"
    assert psmkit_cli(*command, "--ranks", "1").err == ""


def test_a_rank_without_a_log_is_a_rank_of_the_job(psmkit_cli: Cli) -> None:
    logs = DATA / "nccl" / "kill_init_r1"
    assert "rank 1 died by SIGKILL" in psmkit_cli("analyze", logs, "--ranks", "1").out
    assert psmkit_cli("ops", logs, "--ranks", "1").status == 0
    result = psmkit_cli("diff", logs, logs, "--ranks", "1")
    assert (result.status, result.out, result.err) == (2, "", "psmkit: no log of rank 1 on either side\n")
    assert psmkit_cli("diff", logs, logs, "--ranks", "0,1").out.endswith("; no log of rank 1 on either side\n")


def test_a_job_of_unknown_ranks_says_so(psmkit_cli: Cli) -> None:
    result = psmkit_cli("ops", DATA / "nccl" / "stop_init_r2", "--ranks", "0")
    assert (result.status, result.out) == (2, "")
    assert "no rank 0; no line names a rank of the job" in result.err
