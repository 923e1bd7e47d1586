"""What Ray says of actors: the exception of a creation task names its process, a dead owner its host, and advice of a framework is no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from tests.analysis.texts import analyzed

CREATION = "The actor died because of an error raised in its creation task, ray::Xk1Trainer_0:1:Trainer.__init__() (pid=815, ip=10.2.0.8, actor_id=77aa, repr=<t.Trainer object at 0x7f1c>)\n"
FRAMES = '  File "/srv/trainer.py", line 31, in __init__\n    self.mesh = make_mesh(8)\n  File "/srv/mesh.py", line 12, in make_mesh\n    return Mesh(n)\n'
HYDRA = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
OWNER = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trainer\n\tactor_id: 77aa\n\tpid: 815\n\tip: 10.2.0.8\n"
    "The actor is dead because its owner has died. Owner Id: 0100ff Owner Ip address: 10.2.0.1 Owner worker exit type: {} Worker exit detail: {}\n"
)


def _who(report: Report) -> list[tuple[str | None, int | None]]:
    return [(c.host, c.pid) for c in report.culprits]


@pytest.mark.parametrize(
    "head",
    [
        "(Trainer pid=815) Exception raised in creation task: ",
        "ray.exceptions.ActorDiedError: ",
        "ray.exceptions.RayActorError: ",
    ],
)
def test_an_actor_whose_creation_failed_is_named(head: str, tmp_path: Path) -> None:
    tag = head.partition("Exception")[0] if head.startswith("(") else ""
    report = analyzed(tmp_path, head + CREATION + "".join(tag + line for line in FRAMES.splitlines(keepends=True)))
    assert report.verdict == "failed" and _who(report) == [("10.2.0.8", 815)]
    assert report.reason == "process 815 on 10.2.0.8 raised an exception in or below make_mesh()"


def test_the_exception_of_a_creation_task_is_that_of_its_process(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path, "ray.exceptions.ActorDiedError: " + CREATION + FRAMES + "ValueError: 8 devices asked, 4 present\n"
    )
    assert _who(report) == [("10.2.0.8", 815)] and "ValueError: 8 devices asked" in report.reason
    assert not any("no line of this log names the process" in (f.next_step or "") for f in report.findings)


def test_advice_on_how_to_see_more_is_no_error(tmp_path: Path) -> None:
    report = analyzed(tmp_path, HYDRA + "(Trainer pid=815) Exception raised in creation task: " + CREATION + FRAMES)
    assert "HYDRA" not in report.reason and _who(report) == [("10.2.0.8", 815)]


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ("Owner's node has crashed.", "Ray lost the node 10.2.0.1"),
        (
            "Worker unexpectedly exits with a connection error code 2. End of file.",
            "a process on 10.2.0.1 died (Worker unexpectedly exits with a connection error code 2. End of file)",
        ),
    ],
)
def test_an_actor_follows_its_owner_which_is_named(detail: str, reason: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, OWNER.format("SYSTEM_ERROR", detail))
    assert (report.verdict, report.reason, _who(report)) == ("failed", reason, [("10.2.0.1", None)])


def test_an_owner_that_ended_on_purpose_is_no_culprit(tmp_path: Path) -> None:
    assert _who(analyzed(tmp_path, OWNER.format("INTENDED_USER_EXIT", "Worker exits by an user request."))) == []


CHILD = (
    "Process SpawnProcess-2:\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap\n    self.run()\n'
    '  File "/usr/lib/python3.11/multiprocessing/process.py", line 108, in run\n    self._target(*self._args, **self._kwargs)\n'
)


def test_an_exception_that_reaches_the_first_frame_of_a_child_process_ended_it(tmp_path: Path) -> None:
    report = analyzed(tmp_path, CHILD)
    assert report.verdict == "failed" and "run()" not in report.reason
    caught = CHILD.partition("\n")[2].replace(", in _bootstrap", ", in start")
    assert analyzed(tmp_path, caught).verdict == "inconclusive"
    whole = analyzed(tmp_path, CHILD + '  File "/srv/serve.py", line 9, in serve\nRuntimeError: no free port\n')
    assert whole.reason == "a process ended by an uncaught exception: RuntimeError: no free port"
