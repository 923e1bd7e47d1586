"""Advice and quotes fit the log: of one process, of an old release of torch, of a setting, behind a progress bar."""

from __future__ import annotations

from pathlib import Path

from psmkit.model.wording import as_shown
from tests.analysis.texts import analyzed, first_error

RAISED = 'Traceback (most recent call last):\n  File "serve.py", line 3, in <module>\n    main()\nKeyError: 7\n'


def test_a_log_without_ranks_is_not_asked_for_the_output_of_all_ranks(tmp_path: Path) -> None:
    assert "all ranks" not in first_error(tmp_path, "loading\n" + RAISED).next_step


def test_a_log_with_ranks_is_asked_for_the_output_of_all(tmp_path: Path) -> None:
    agent = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded\n"
    assert "all ranks" in first_error(tmp_path, agent + RAISED).next_step


OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 768.00 MiB (GPU 0; 79.35 GiB total capacity; 52.52 GiB already allocated; 552.12 MiB free; 53.97 GiB reserved in total by PyTorch) "
SPLIT = "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n"


def test_an_old_torch_is_given_the_setting_that_it_knows(tmp_path: Path) -> None:
    for text in (RAISED.replace("KeyError: 7\n", OOM + SPLIT), OOM + SPLIT):
        found = first_error(tmp_path, text)
        assert "max_split_size_mb" in found.next_step and "expandable_segments" not in found.next_step
    assert "expandable_segments" in first_error(tmp_path, OOM + "\n").next_step


LARGE = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.31 GiB. GPU 3 has a total capacity of 31.74 GiB of which 3.64 GiB is free. Including non-PyTorch memory, this process has 28.09 GiB memory in use. Of the allocated memory 27.25 GiB is allocated by PyTorch, and 69.27 MiB is reserved by PyTorch but unallocated.\n"


def stack(file: str, source: str) -> str:
    return f'[rank3]: Traceback (most recent call last):\n[rank3]:   File "{file}", line 2158, in prologue\n[rank3]:     {source}\n{LARGE}'


def test_a_bucket_of_deepspeed_is_a_setting(tmp_path: Path) -> None:
    source = "buffer = torch.empty(int(self.reduce_bucket_size),"
    step = first_error(tmp_path, stack("/opt/lib/deepspeed/runtime/zero/stage.py", source)).next_step
    assert step.startswith("Make reduce_bucket_size smaller")
    assert (
        "micro-batch" in first_error(tmp_path, stack("/opt/lib/deepspeed/runtime/engine.py", "x = y.clone()")).next_step
    )


BAR = " {}%|####      | {}/100 [14:03:35<1:41:39, 31.60s/it]"


def test_what_a_bar_is_written_over_with_is_quoted(tmp_path: Path) -> None:
    line = (
        "\r".join(["", *(BAR.format(n, n) for n in range(40))])
        + "\r[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=327, OpType=ALLGATHER, NumelIn=1, NumelOut=5, Timeout(ms)=1800000) ran for 1800341 milliseconds before timing out.\n"
    )
    found = analyzed(tmp_path, line)
    assert all(e.text.startswith("[rank1]:[E ") for f in found.findings for e in f.evidence) and found.findings


def test_words_that_a_bar_is_drawn_behind_stay() -> None:
    assert as_shown(f"0: Error: no room\r{BAR.format(1, 1)}") == f"0: Error: no room\r{BAR.format(1, 1)}"
    assert as_shown(f"{BAR.format(1, 1)}\rError: no room\r{BAR.format(2, 2)}").startswith("Error: no room")
    assert as_shown("plain") == "plain" and as_shown(BAR.format(1, 1)) == BAR.format(1, 1)


def test_settings_are_no_line_that_tells_of_an_error(tmp_path: Path) -> None:
    settings = "[08:14:02] args=ServerArgs(path='x', load='auto', port=8000, mode=None, on_error='error failed to load', level=2)\n"
    quiet = "[08:14:03] Ignore import error when loading models.x: No module named 'y'\n"
    assert "tells of an error" not in analyzed(tmp_path, settings + quiet + "loading\n").reason
    bad = "[08:14:04] error: refused Args(path='x', load='auto', port=8000, mode=None)\n"
    told = analyzed(tmp_path, settings + bad).reason
    assert "error: refused" in told and "ServerArgs" not in told
