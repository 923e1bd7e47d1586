"""What a report asks for when it is undecided, and when it calls a last line incomplete."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.model import Report, Verdict
from psmkit.report import render
from tests.analysis.texts import analyzed, ranks

HEAD = "node-a:700:700 [0] NCCL INFO "
INIT = "".join(
    f"{HEAD}{text}\n"
    for text in (
        "Bootstrap : Using eth0:10.0.0.1<0>",
        "Using network Socket",
        "Channel 00/02 :    0   1   2   3",
        "Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2",
    )
)
CONNECTING = f"{INIT}{HEAD}Channel 00 : 0[a000] -> 1[47000] via P2P/IPC/read\n"
TIMINGS = "Init timings: rank 2 nranks 16 total 1.08 (kernels 0.51, bootstrap 0.22, allgathers 0.01, topo 0.28, graphs 0.04, connections 0.02, rest 0.01)"
SIGNAL = "Traceback (most recent call last):\nKeyboardInterrupt\n"
TABLE = (
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    "#\n# Using devices\n"
    "#  Rank  0 Group  0 Pid    700 on     node-a device  0 [0x0f] NVIDIA A100\n"
    "#  Rank  1 Group  0 Pid    701 on     node-a device  1 [0x1f] NVIDIA A100\n"
)


def missing(report: Report) -> list[str]:
    return [note for note in report.coverage.notes if note.startswith("missing for a verdict: ")]


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        pytest.param(INIT, "the end of the log", id="INFO lines of init"),
        pytest.param(SIGNAL, "what sent the signal", id="signal from outside"),
        pytest.param(TABLE, "the end of the log, where the benchmark", id="benchmark"),
    ],
)
def test_a_rerun_is_not_asked_for_where_other_lines_of_nccl_decide_nothing(
    tmp_path: Path, text: str, needed: str
) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert not report.coverage.rerun_with
    (note,) = missing(report)
    assert needed in note


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{HEAD}{TIMINGS}\n{INIT}", id="init done"),
        pytest.param("node-a:700:700 [0] NCCL WARN Something that no entry knows\n", id="only a warning"),
    ],
)
def test_a_rerun_is_asked_for_where_more_lines_may_decide(tmp_path: Path, text: str) -> None:
    report = analyzed(tmp_path, text)
    if report.verdict is Verdict.INCONCLUSIVE:
        assert report.coverage.rerun_with or report.suspects
    assert not [note for note in missing(report) if "what follows line" not in note]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (INIT.replace("Trees", "Init COMPLETE\nTrees"), "what follows line 5 of job.log"),
        (
            f"{HEAD}comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE\n",
            "Give the logs of all ranks",
        ),
        (INIT + HEAD + TIMINGS[:70], "what follows line 5 of job.log, which is cut"),
        (
            "{'loss': 10.2, 'grad_norm': 2.7}\n" * 3 + HEAD + "Bootstrap : Using eth0:10.0.0.1<0>\n",
            "what follows line 4",
        ),
    ],
)
def test_an_undecided_report_asks_for_what_follows_its_last_line(tmp_path: Path, text: str, asked: str) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert asked in " ".join(render(report, "text").partition("do this: ")[2].split())


def test_a_finding_that_decides_asks_for_itself(tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{INIT}\n{HEAD.replace('INFO', 'WARN')}NET/IB : Unable to open device mlx5_0\n")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "do this: Check permissions of /dev/infiniband" in " ".join(render(report, "text").split())


def test_a_log_that_ends_while_ranks_connect_asks_for_its_end_and_for_the_lines_of_the_proxy(tmp_path: Path) -> None:
    report = analyzed(tmp_path, CONNECTING)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "PROXY" in report.coverage.rerun_with["NCCL_DEBUG_SUBSYS"]
    assert len(missing(report)) == 1


def test_a_note_is_shown_where_it_is_the_only_finding(tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{INIT}{HEAD}NET/Plugin: No plugin found (libnccl-net.so)\n")
    assert [finding.code for finding in report.findings] == ["PSM801"]
    page = render(report, "text")
    assert "note PSM801" in page and "-v shows the notes" not in page


@pytest.mark.parametrize("text", [INIT, CONNECTING, SIGNAL, TABLE], ids=["init", "connecting", "signal", "benchmark"])
def test_an_inconclusive_report_names_the_next_step(tmp_path: Path, text: str) -> None:
    report = analyzed(tmp_path, text)
    for shown in (render(report, "text"), render(report, "markdown")):
        assert "do this" in shown
        assert ("NCCL_DEBUG_SUBSYS=" in shown) is (text is CONNECTING)
        assert ("psmkit analyze WHOLE_LOG" in shown) is (text is not SIGNAL)


@pytest.mark.parametrize("last", ["Using network Socket", "Channel 00 : 0[a000] -> 1[47000] via P2P/IPC/read"])
def test_a_whole_last_line_without_a_line_break_is_not_called_incomplete(tmp_path: Path, last: str) -> None:
    report = analyzed(tmp_path, f"{INIT}{HEAD}{last}")
    assert not [note for note in report.coverage.notes if "last line" in note]


def test_a_last_line_that_stops_in_a_message_is_called_incomplete(tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{INIT}{HEAD}{TIMINGS[:70]}")
    (note,) = [note for note in report.coverage.notes if "last line" in note]
    assert "is not complete" in note


@pytest.mark.parametrize("last", ["Channel 02/04 :", "Cha"], ids=["no ranks", "a word"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_last_line_that_may_stop_in_a_message_is_named_if_it_has_no_line_end(
    tmp_path: Path, last: str, end: str
) -> None:
    report = analyzed(tmp_path, f"{INIT}{HEAD}{last}{end}")
    notes = [note for note in report.coverage.notes if "last line" in note]
    assert ["may be cut" in note for note in notes] == ([] if end else [True])


@pytest.mark.parametrize("log", [SIGNAL, TABLE], ids=["a signal from outside", "a benchmark without NCCL's lines"])
def test_a_log_without_nccl_lacks_no_subsystem(log: str, tmp_path: Path) -> None:
    assert analyzed(tmp_path, log).coverage.missing_subsystems == ()


def test_a_log_of_nccl_names_the_subsystems_that_it_lacks(tmp_path: Path) -> None:
    assert "PROXY" in analyzed(tmp_path, INIT).coverage.missing_subsystems
    assert "PROXY" in analyzed(tmp_path, f"{INIT}{TABLE}").coverage.missing_subsystems


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_a_line_is_quoted_without_its_colours(tmp_path: Path, form: str) -> None:
    log = "\x1b[31m[rank2]: Traceback (most recent call last):\x1b[0m\r\n\x1b[31m[rank2]: ValueError: bad batch\x1b[0m\r\n"
    page = render(analyzed(tmp_path, log), form)
    assert "ValueError: bad batch" in page and "x1b" not in page and "\x1b" not in page


def test_steps_of_a_training_are_work(tmp_path: Path) -> None:
    steps = "".join(f"step {n} | loss 2.{n:03} | lr 1e-4 | tok/s 51234.2\n" for n in range(30))
    assert "step 29 of its training" in analyzed(tmp_path, INIT + steps).reason


def test_an_inconclusive_report_asks_for_the_logs_that_are_missing(tmp_path: Path) -> None:
    for log in ranks(8)[:4]:
        (tmp_path / f"nccl.rank{log.rank}.log").write_text("".join(f"{line}\n" for line in log.work(2).lines))
    report = analyze([tmp_path])
    assert report.verdict == "inconclusive"
    assert "do this: Find the rest of the logs, and the logs of ranks 4-7" in render(report, "text")
