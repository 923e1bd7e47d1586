"""Lines of a log in a small width: they keep who printed them and the words that decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.analysis.facts.proofs import deciding
from psmkit.analysis.story import story
from psmkit.catalogue import load
from psmkit.report import Options, render
from psmkit.report.excerpt import excerpt
from psmkit.report.html import render as page

ARGUMENTS = ", ".join(f"'--option-{n}', '/srv/data/run{n}/configuration.json'" for n in range(9))
DEEPSPEED = f"[2025-01-02 03:04:05,678] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', {ARGUMENTS}] exits with return code = -11"
PADDLE = f"Container rank 5 status failed cmd ['/usr/bin/python3', '-u', {ARGUMENTS}] code 1 log log/workerlog.5"
HOROVOD = "[1,0]<stderr>:[2025-01-02 03:04:05.851506: W horovod/common/operations.cc:588] HorovodBroadcast_dense_layer_bias_Momentum_9 [missing ranks: 6]"
WATCHDOG = (
    "(Worker pid=4321) [rank7]:[E102 03:04:05.984683378 ProcessGroupNCCL.cpp:607] [Rank 7] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=31, OpType=ALLTOALL, NumelIn=3150848, NumelOut=3150848, Timeout(ms)=600000) ran for 600003 milliseconds before timing out."
)
SHM = "[2025-01-02 03:04:05] a-host-with-a-name:202:235 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12Cd to 9637892 bytes, error: No space left on device (28)"
LINES = [
    pytest.param(DEEPSPEED, "a process died by SIGSEGV", ["[ERROR]", "return code = -11"], id="DeepSpeed"),
    pytest.param(PADDLE, "rank 5 exited with code 1", ["Container rank 5", "code 1"], id="Paddle"),
    pytest.param(HOROVOD, "rank 6 did not submit tensors", ["[1,0]<stderr>", "missing ranks: 6"], id="Horovod"),
    pytest.param(
        WATCHDOG, "watchdog timeout: ALLTOALL 31 did not finish in 600 s on rank 7", ["(Worker", "SeqNum=31", "ALLTOALL"], id="torch"
    ),
    pytest.param(SHM, "host:202 could not create a shared memory segment: /dev/shm is full", ["No space left on device"], id="NCCL"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "about", "shown"), LINES)
def test_a_cut_line_keeps_its_beginning_and_the_words_that_decide(line: str, about: str, shown: list[str]) -> None:
    cut = excerpt(line, 66, about, deciding(line, load()))
    assert len(cut) <= 66
    assert all(words in cut for words in shown), cut


@pytest.mark.parametrize(("line", "about", "shown"), LINES)
def test_a_cut_line_is_never_too_wide_and_never_ends_within_a_word(line: str, about: str, shown: list[str]) -> None:
    words = deciding(line, load())
    for width in (*range(30, len(line), 17), len(line)):
        cut = excerpt(line, width, about, words)
        assert len(cut) <= width
        for part in filter(None, (part.strip() for part in cut.split("…"))):
            assert part in line
            at = line.index(part)
            assert not (at and line[at - 1].isalnum() and part[0].isalnum()), (width, cut)
            end = line[at + len(part) :][:1]
            assert not (end.isalnum() and part[-1].isalnum()), (width, cut)


def test_a_cut_never_divides_an_escape() -> None:
    line = "error: " + "\\x1b[0m\\u202e" * 40
    for width in range(12, 90):
        cut = excerpt(line, width, "nothing of it").rstrip("…")
        assert cut.endswith(("error:", "\\x1b", "\\u202e", "[", "0m")), cut


def test_each_value_has_the_words_before_it() -> None:
    assert deciding(PADDLE, load()) == ("Container rank 5", "code 1", "log log/workerlog.5")
    assert deciding(f"é {DEEPSPEED}", load()) == ("return code = -11",)
    assert deciding("nothing that an entry matches", load()) == ()


def test_a_line_that_fits_is_not_cut() -> None:
    assert excerpt(SHM, len(SHM), "x", ("28",)) == SHM


def test_a_line_without_a_deciding_word_keeps_its_beginning() -> None:
    assert excerpt("who says it " + "and more " * 30, 40, "", ()).startswith("who says it and more")


def proof_of(text: str) -> str:
    """The rows of the proof of a text report, joined."""
    rows = text.splitlines()
    at = next(n for n, row in enumerate(rows) if "proof:" in row)
    end = next((n for n in range(at + 1, len(rows)) if not rows[n].startswith(" " * 11)), len(rows))
    return " ".join(row.strip() for row in rows[at:end])


def test_the_proof_of_a_report_shows_the_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"step 1\n{DEEPSPEED}\n", "utf-8")
    report = analyze([log])
    proof = proof_of(render(report, "text", Options(width=100)))
    assert "return code = -11" in proof
    assert "[ERROR]" in proof
    assert '"words"' not in render(report, "json", Options())
    (proof,) = [line for line in render(report, "markdown", Options()).splitlines() if "**proof**" in line]
    assert "return code = -11" in proof


RAY = (
    "(EngineCore pid=31) (raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check "
    "the logs for the dead worker. Lease ID: 0300aa Worker ID: 7ac04f Node ID: 15fdba63ab40 Worker IP address: 10.168.40.17 Worker port: 10002 "
    "Worker PID: 517 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common "
    "causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called."
)


def test_a_proof_shows_how_a_process_ended_rather_than_its_address(tmp_path: Path) -> None:
    log = tmp_path / "ray.log"
    log.write_text(RAY + "\n")
    page = render(analyze([log]), "text", Options(width=100))
    text = page.splitlines()
    assert text[0].endswith("died (Worker unexpectedly exits with a connection error code 2. End of file)")
    assert "exits with a connection error code 2. End of file" in proof_of(page)
    assert "OOM killer" in " ".join(text[:7])


def test_a_proof_keeps_the_words_by_which_the_line_is_known(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "2024-11-22 05:11:48 [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 132.00 MiB. GPU 3 has a total capacity of "
        "79.10 GiB of which 98.00 MiB is free. Process 290115 has 78.89 GiB memory in use.\n"
    )
    proof = proof_of(render(analyze([log]), "text", Options(width=100)))
    assert "out of memory. Tried to allocate 132.00 MiB" in proof


TAG = "(RayWorkerWrapper pid=123456, ip=10.20.30.40) "
STAMP = "2026-03-01T10:00:00.123456789Z [2026-03-01 10:00:00,123] [a-node-with-a-long-name.cluster.example.org] "
WHILE = " while it processed sample shard-00031-of-00512 of dataset /data/corpora/filtered/part-00031.parquet"
ROWS = "ValueError: rows 12 and 16 of the batch do not match"
ENDED = "process 123456 ended by an uncaught exception: "
#: A line, its finding's title, and what the cut has to show in 60 and in 84 characters.
MESSAGES = [
    pytest.param(TAG + ROWS, ENDED + ROWS, "rows 12 and 16 of the batch do not match", ROWS, id="exception"),
    pytest.param(TAG + STAMP + ROWS + WHILE, ENDED + ROWS, ROWS, ROWS, id="behind a tag and times"),
    pytest.param(TAG + STAMP + ROWS, ENDED + TAG + STAMP + ROWS, ROWS, ROWS, id="title with the tag"),
    pytest.param(
        TAG + "KeyError: 'model.layers.31." + "attention_projection_" * 8 + "weight'",
        ENDED + "KeyError:…",
        "KeyError: 'model.",
        "KeyError: 'model.layers.31.",
        id="one long word",
    ),
    pytest.param(
        TAG + "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/projects/" + "checkpoints/" * 9 + "a.pt'",
        ENDED + "FileNotFoundError: [Errno 2] No such file or directory:…",
        "No such file or directory: '/",
        "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/",
        id="a long path",
    ),
    pytest.param(
        f"{STAMP}[trainer/engine.py:1423:backward] fatal: the frobnicator of stage seven exploded{WHILE}",
        "a process printed an error: [trainer/engine.py:1423:backward] fatal: the frobnicator of stage seven exploded",
        "fatal: the frobnicator of stage",
        "fatal: the frobnicator of stage seven exploded",
        id="words that no entry knows",
    ),
]


@pytest.mark.parametrize(("line", "about", "narrow", "wide"), MESSAGES)
def test_a_cut_shows_the_message_and_not_what_stands_before_it(line: str, about: str, narrow: str, wide: str) -> None:
    words = deciding(line, load())
    for width, shown in ((60, narrow), (84, wide)):
        cut = excerpt(line, width, about, words)
        assert len(cut) <= width and shown in cut, cut


def test_a_cut_keeps_the_beginning_where_the_message_leaves_room() -> None:
    line = TAG + STAMP + "KeyError: 'rows of the batch'"
    cut = excerpt(line, 84, "process 123456 ended by an uncaught exception", deciding(line, load()))
    assert cut.startswith("(RayWorkerWrapper") and cut.endswith("KeyError: 'rows of the batch'")
    assert excerpt(TAG + ROWS, 200, ENDED + ROWS, (ROWS,)) == TAG + ROWS


def test_a_page_holds_the_whole_message(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    head = "".join(
        f"{TAG}{line}\n" for line in ("Traceback (most recent call last):", '  File "/app/a.py", line 8, in <module>')
    )
    log.write_text(f"{head}{TAG}    step()\n{TAG}{ROWS}{WHILE}\n")
    report = analyze([log])
    assert ROWS in proof_of(render(report, "text", Options(width=80)))
    assert page(story([log])).count(ROWS + WHILE) >= 2


def test_a_page_of_markdown_counts_the_culprits_that_it_does_not_list(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(f"ssh: connect to host n{n} port 22: Connection refused\n" for n in range(20)))
    text = render(analyze([log]), "markdown", Options())
    assert text.count("**culprit**") == 8 and "- and 12 more\n" in text
