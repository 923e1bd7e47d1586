"""Tracebacks that the log cuts before their exception: which function they name, and that they are cut."""

from __future__ import annotations

from pathlib import Path

import psmkit
from tests.analysis.texts import analyzed

TAG = "(WorkerProcess pid=7310) ERROR 05-14 02:31:17 [workers.py:238] "


def stack(*frames: tuple[str, str], tag: str = TAG) -> str:
    return "".join(
        f'{tag}  File "/opt/app/{fn.strip("_")}.py", line {n + 30}, in {fn}\n{tag}    {code}\n'
        for n, (fn, code) in enumerate(frames)
    )


def test_a_part_of_a_stack_names_the_innermost_function_that_is_no_constructor(tmp_path: Path) -> None:
    text = stack(
        ("make_groups", "return Coordinator("), ("__init__", "self.comm = cls("), ("__init__", "self.link = FastLink(")
    )
    found = analyzed(tmp_path, text).findings[0]
    assert "process 7310 printed a part of a stack" in found.title
    assert "passes through make_groups() to a call of FastLink()," in found.title
    assert found.evidence[0].text.endswith("in make_groups")


def test_the_code_of_a_wrapper_or_of_a_raise_is_no_call(tmp_path: Path) -> None:
    text = stack(("step", "x = self.layer(x)"), ("_call_impl", "raise Oops("))
    assert "passes through step(), and" in analyzed(tmp_path, text).findings[0].title


def test_a_worker_that_says_it_failed_names_what_its_cut_traceback_shows(tmp_path: Path) -> None:
    text = f"{TAG}WorkerProc hit an exception.\n{TAG}Traceback (most recent call last):\n"
    text += stack(("busy_loop", "out = func(*args)"), ("run_model", "y = self.model(x)"), ("wrapper", "return f(*a)"))
    found = analyzed(tmp_path, text[:-20]).findings[0]
    assert found.title.endswith("process 7310 failed, in or below run_model()")
    assert "cut inside its traceback" in found.explanation
    assert "rest of the log" in found.next_step
    assert any("ends inside a Python traceback" in note for note in analyzed(tmp_path, text[:-20]).coverage.notes)
    whole = text + f"{TAG}RuntimeError: bad shape\n"
    assert not any("ends inside" in note for note in analyzed(tmp_path, whole).coverage.notes)


def test_the_traceback_of_an_engine_is_not_that_of_the_worker_that_it_names(tmp_path: Path) -> None:
    tag = "ERROR 11-08 13:40:12 [core.py:502] "
    text = f"{tag}Worker proc VllmWorker-3 died unexpectedly, shutting down executor.\n{tag}Traceback (most recent call last):\n"
    found = analyzed(tmp_path, text + stack(("poll_queue", "self.handle(x)"), tag=tag)).findings[0]
    assert "rank 3 failed" in found.title
    assert "poll_queue" not in found.title


def test_a_task_of_ray_names_the_function_that_it_shows(tmp_path: Path) -> None:
    text = "ray.exceptions.RayTaskError(NcclError): ray::Actor.compute() (pid=402, ip=10.1.7.14, actor_id=5d20, repr=<Actor>)\n"
    found = analyzed(tmp_path, text + '  File "/srv/job.py", line 21, in compute\n    groups.allr').findings[0]
    assert found.title == "process 402 on 10.1.7.14 raised NcclError in or below compute()"
    assert "NCCL_DEBUG=WARN" in found.next_step


def test_a_last_line_that_ends_within_a_quoted_text_is_said_to_be_cut(tmp_path: Path) -> None:
    line = "n1:61:62 [1] transport/nvls.cc:22 NCCL WARN Cuda failure 999 'unknown error"
    assert any("is not complete" in note for note in analyzed(tmp_path, line).coverage.notes)
    assert not any("is not complete" in note for note in analyzed(tmp_path, line + "'").coverage.notes)


def test_the_empty_exception_of_spawns_parent_is_no_reason(tmp_path: Path) -> None:
    parent = 'Traceback (most recent call last):\n  File "train.py", line 306, in <module>\n    main()\nException: \n\n'
    child = "-- Process 3 terminated with the following error:\nTraceback (most recent call last):\n"
    frame = '  File "train.py", line 265, in work\n    run()\n'
    (tmp_path / "job.log").write_text(parent + child + frame)
    cut = psmkit.analyze([tmp_path / "job.log"])
    assert [c.rank for c in cut.culprits] == [3] and "Exception" not in cut.reason
    (tmp_path / "job.log").write_text(parent + child + frame + "ValueError: no such step\n")
    assert "ValueError: no such step" in psmkit.analyze([tmp_path / "job.log"]).reason


def test_a_function_in_the_last_line_of_a_log_may_be_cut_and_is_shown_so(tmp_path: Path) -> None:
    text = "ray.exceptions.RayTaskError(NcclError): ray::Actor.compute() (pid=402, ip=10.1.7.14, actor_id=5d20, repr=<Actor>)\n"
    found = analyzed(tmp_path, text + '  File "/srv/job.py", line 21, in compu\n').findings[0]
    assert found.title.endswith("in or below compu\N{HORIZONTAL ELLIPSIS}")


def test_a_stack_of_torchs_hook_behind_an_unfinished_line_ended_the_rank(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        'checks passed      [rank3]: Traceback (most recent call last):\n[rank3]:   File "/a/train.py", line 13, in main\n',
    )
    assert (report.verdict, [c.rank for c in report.culprits]) == ("failed", [3])


def test_a_cell_that_an_exception_ended_ends_no_process(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "ProcessExitedException                    Traceback (most recent call last)\n<ipython-input-1> in <module>\n",
    )
    assert "ended a cell" in report.findings[0].title
    assert "ends the process" not in report.findings[0].explanation
