"""Ranks that torchrun ended because another one had failed."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import analyzed, ranks

_API = "torch/distributed/elastic/multiprocessing/api.py"


def test_a_rank_to_which_torchrun_sent_a_signal_is_a_victim(tmp_path: Path) -> None:
    job = ranks(3)
    text = "".join(line + "\n" for rank in job for line in rank.lines)
    one, two, three = (rank.pid for rank in job)
    text += (
        "[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'labels'\n"
        f"W1123 11:02:15.100000 5100 {_API}:897] Sending process {one} closing signal SIGTERM\n"
        f"E1123 11:02:16.300000 5100 {_API}:869] failed (exitcode: 1) local_rank: 1 (pid: {two}) of binary: /usr/bin/python3\n"
    )
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed"
    assert {row.pid: row.state for row in report.ranks} == {one: "victim", two: "died", three: "open"}


def test_an_exception_is_shown_with_the_deepest_frame_of_the_program(tmp_path: Path) -> None:
    text = (
        "step 1\n[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/u/train.py", line 88, in main\n[rank1]:     step(batch)\n'
        '[rank1]:   File "/opt/lib/python3.11/site-packages/torch/nn/module.py", line 9, in forward\n[rank1]:     return f(x)\n'
        "[rank1]: KeyError: 'labels'\n"
        f"E1123 11:02:16.300000 5100 {_API}:869] failed (exitcode: 1) local_rank: 1 (pid: 5201) of binary: /usr/bin/python3\n"
    )
    report = analyzed(tmp_path, text)
    assert [item.line for item in report.findings[0].evidence][:2] == [7, 3]
