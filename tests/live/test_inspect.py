"""A live job of the lab says where it stands, and comes to the right result while it is looked into."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from psmkit.lab.running import RunningJob
from psmkit.live import mapped, procfs, python, tracing
from psmkit.live.inspect import Options, inspect
from psmkit.live.tracing import Refused
from psmkit.model.inspection import Library, from_json, to_json
from tests.lab.hanging import hanging_run
from tests.live.processes import needs_gdb, process, until

DEADLINE = 120.0


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """Rank 1 of 3 has left out its receives, and the others wait for it."""
    with hanging_run(tmp_path_factory.mktemp("inspect") / "run") as job:
        yield job


def test_record_names_the_rank_that_all_wait_for(hanging: RunningJob) -> None:
    for rank in (0, 2):
        found = inspect(hanging.ranks[rank].pid, Options(tool="none"))
        assert (found.rank, found.nranks, found.stopped) == (rank, 3, None)
        first = found.standing[0]
        assert (first.stage, first.peer) == ("data", 1), found.standing
        assert first.text.startswith(f"rank {rank} waits in data for rank 1")


def test_threads_of_libpsm_have_their_roles(hanging: RunningJob) -> None:
    found = inspect(hanging.ranks[0].pid, Options(tool="none"))
    roles = {thread.role for thread in found.threads}
    assert {"proxy UDS service thread", "proxy progress thread", "proxy service thread"} <= roles
    assert any(library.path.endswith("libpsm.so") for library in found.libraries)


@needs_gdb
def test_stacks_show_who_is_idle_and_who_waits(hanging: RunningJob) -> None:
    found = inspect(hanging.ranks[0].pid, Options(tool="gdb"))
    assert found.stopped is not None and found.notes == tuple(n for n in found.notes if "no native" not in n.what)
    kinds = {thread.role: thread.kind for thread in found.threads}
    assert kinds["proxy service thread"] == "idle"
    main = next(thread for thread in found.threads if thread.tid == found.pid)
    assert (main.kind, main.waits.partition(";")[0]) == (
        "collective",
        "waits for the end of its sends and receives",
    )


def test_json_form_survives(hanging: RunningJob) -> None:
    found = inspect(hanging.ranks[2].pid, Options(tool="none"))
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


def inspected_run(out: Path, times: int) -> int:
    """Inspect the ranks of a job in turn until it ends, at most so many times; the job has to come to the right result. How often it was inspected."""
    command = [sys.executable, "-m", "psmkit", "lab", "run", "--ranks", "2", "--pattern", "alltoall", "--size", "1M"]
    command += ["--iters", "2000", "--deadline", "240", "--out", str(out)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    done = 0
    try:
        until(lambda: job.poll() is not None or len(ranks_of(job.pid)) == 2, "no ranks")
        ranks = ranks_of(job.pid)
        while ranks and done < times:
            try:
                found = inspect(ranks[done % 2], Options(tool="gdb"))
            except Refused:  # it has ended
                break
            if found.stopped is None or any("ended" in note.what for note in found.notes):
                break
            done += 1
        text, _ = job.communicate(timeout=DEADLINE)
    finally:
        job.kill()
        job.wait()
    result = json.loads((out / "result.json").read_text())
    assert job.returncode == 0, text.decode()
    assert [rank["state"] for rank in result["ranks"]] == ["good", "good"]
    return done


def ranks_of(runner: int) -> list[int]:
    return sorted(
        p for p, parent in procfs.parents().items() if parent == runner and procfs.program_of(p) == "psm_rank"
    )


@needs_gdb
@pytest.mark.slow
def test_jobs_come_to_the_right_result_while_they_are_inspected_ten_times(tmp_path: Path) -> None:
    """One job on a machine with time to spare, several on a busy one."""
    done = 0
    for run in range(10):
        done += inspected_run(tmp_path / f"run-{run}", 10 - done)
        if done == 10:
            return
    raise AssertionError(f"only {done} inspections in ten jobs")


SLEEPER = """
import time
def outer():
    deepest()
def deepest():
    time.sleep(600)
print("up", flush=True)
outer()
"""


@pytest.mark.skipif(python.available() is None, reason="needs py-spy (pip install 'psmkit[live]')")
def test_python_frames_come_from_py_spy() -> None:
    with process(SLEEPER) as child:
        found = inspect(child.pid, Options(tool="none"))
    (thread,) = found.threads
    assert [frame.function for frame in thread.python] == ["deepest", "outer", "<module>"]
    assert thread.python[0].where is not None and thread.python[0].where.endswith(":6")
    assert thread.waits == "is in deepest; sleeps" and found.standing == ()


def test_missing_py_spy_is_a_note_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "available", lambda: None)
    with process(SLEEPER) as child:
        found = inspect(child.pid, Options(tool="none"))
    (note,) = found.notes
    assert note.what == "no Python frames: py-spy is not installed" and note.remedy == "pip install 'psmkit[live]'"


def test_py_spy_that_fails_is_not_to_be_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: cannot read the process' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(python, "available", lambda: str(program))
    with process(SLEEPER) as child:
        found = inspect(child.pid, Options(tool="none"))
    (note,) = found.notes
    assert note.what == "no Python frames: py-spy: Error: cannot read the process" and "install" not in note.remedy


def test_missing_debugger_is_a_note_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with process(SLEEPER) as child:
        found = inspect(child.pid, Options(python=False))
    (note,) = found.notes
    assert "no native stacks: there is no gdb" in note.what and "install gdb" in note.remedy
    assert found.threads and not found.threads[0].frames


@pytest.mark.parametrize(
    ("prints", "says", "remedy"),
    [
        ("ptrace: Operation not permitted.", "gdb: ptrace: Operation not permitted.", "ptrace_scope"),
        ("warning: bad symbols", "warning: bad symbols", "to see why"),
    ],
)
def test_failing_debugger_is_a_note_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str, says: str, remedy: str
) -> None:
    fake = tmp_path / "gdb"
    fake.write_text(f"#!/bin/sh\necho '{prints}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(tracing, "_scope", lambda _proc: 1)
    monkeypatch.setattr(tracing, "_capable", lambda _proc: False)
    with process(SLEEPER) as child:
        found = inspect(child.pid, Options(python=False))
    (note,) = found.notes
    assert says in note.what and remedy in note.remedy and found.threads


@pytest.mark.parametrize(
    ("symbols", "lost"),
    [("none", "names of functions, arguments and the state"), ("table", "arguments and the state")],
)
def test_stripped_library_says_what_a_debug_package_would_add(
    monkeypatch: pytest.MonkeyPatch, symbols: str, lost: str
) -> None:
    library = Library("/opt/lib/libnccl.so.2", "2.26.2", symbols=symbols)
    monkeypatch.setattr(mapped, "libraries", lambda _files: [library])
    with process(SLEEPER) as child:
        found = inspect(child.pid, Options(tool="none", python=False, state=False))
    (note,) = found.notes
    assert note.what.startswith("libnccl.so.2: no debug information") and "debug package" in note.remedy
    assert ("names of functions" in note.what) == (symbols == "none") and lost in note.what
    assert found.libraries == (library,)
