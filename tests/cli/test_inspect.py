"""``psmkit inspect``: the answer heads the text; the JSON is what an analysis reads; what cannot be inspected is one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli import inspect_page
from psmkit.lab.running import RunningJob
from psmkit.model.inspection import InspectedFrame, InspectedThread, Inspection, Note, Standing, from_json
from tests.cli.conftest import Result
from tests.lab.hanging import hanging_run
from tests.live.processes import process

QUIET = ("--stacks", "none")


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    with hanging_run(tmp_path_factory.mktemp("inspect") / "run") as job:
        yield job


def test_answer_heads_the_text(psmkit_cli: Callable[..., Result], hanging: RunningJob) -> None:
    pid = hanging.ranks[0].pid
    result = psmkit_cli("inspect", pid, *QUIET)
    assert result.status == 0, result.err
    first = result.out.splitlines()[0]
    assert first.startswith(f"rank 0 (pid {pid}) waits in data for rank 1")
    assert "proof: psm.steps in " in " ".join(result.out.split()) and "the process was not stopped" in result.out


def test_several_processes_have_a_table_first_and_a_folder_of_files(
    psmkit_cli: Callable[..., Result], hanging: RunningJob, tmp_path: Path
) -> None:
    pids = [rank.pid for rank in hanging.ranks]
    folder = tmp_path / "out"
    result = psmkit_cli("inspect", *pids, *QUIET, "-o", folder)
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("3 processes") and lines[1].split() == "rank host pid step for rank stopped what".split()
    files = sorted(folder.iterdir())
    found = [from_json(json.loads(path.read_text())) for path in files]
    assert {one.rank for one in found} == {0, 1, 2} and all(path.name.endswith(".inspect.json") for path in files)


def test_all_finds_the_ranks(
    psmkit_cli: Callable[..., Result], hanging: RunningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psmkit.live import hosts

    pids = {rank.pid for rank in hanging.ranks}
    # Other jobs of this machine stay alone.
    every = hosts.own_processes()
    assert pids <= {target.pid for target in every}
    monkeypatch.setattr(hosts, "own_processes", lambda: [target for target in every if target.pid in pids])
    result = psmkit_cli("inspect", "--all", *QUIET, "--format", "json")
    documents = json.loads(result.out)
    assert [from_json(document).rank for document in documents] == [0, 1, 2]


def test_one_process_as_json_is_one_document(
    psmkit_cli: Callable[..., Result], hanging: RunningJob, tmp_path: Path
) -> None:
    path = tmp_path / "rank-2.json"
    result = psmkit_cli("inspect", hanging.ranks[2].pid, *QUIET, "--format", "json", "-o", path)
    assert from_json(json.loads(result.out)) == from_json(json.loads(path.read_text()))


def test_file_of_ranks_names_what_failed_and_the_status_says_so(
    psmkit_cli: Callable[..., Result], hanging: RunningJob, tmp_path: Path
) -> None:
    path = tmp_path / "ranks.txt"
    path.write_text(f"localhost {hanging.ranks[0].pid} 0\nelsewhere.example 12 1\n")
    result = psmkit_cli("inspect", "--ranks", path, *QUIET)
    assert result.status == 1
    assert (
        "1 could not be inspected" in result.out
        and "elsewhere.example rank 1 (pid 12): it is on another host" in result.out
    )


def test_nothing_inspected_is_status_2(psmkit_cli: Callable[..., Result], tmp_path: Path) -> None:
    with process("input(print('up', flush=True) or '')") as child:
        pass
    result = psmkit_cli("inspect", child.pid)
    assert result.status == 2 and result.err.count("\n") == 1
    assert f"process {child.pid}: there is no such process" in result.err
    path = tmp_path / "ranks.txt"
    path.write_text(f"localhost {child.pid}\n")
    result = psmkit_cli("inspect", "--ranks", path)
    assert result.status == 2
    assert result.out.startswith(f"localhost pid {child.pid}: there is no such process: it has ended")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("1", "--all"),
        ("--all", "--ranks", "x"),
        ("1", "--via", "ssh {host} {pid}"),
        ("--ranks", "x", "--via", "ssh {host}"),
    ],
)
def test_unclear_requests_are_refused(psmkit_cli: Callable[..., Result], arguments: tuple[str, ...]) -> None:
    assert psmkit_cli("inspect", *arguments).status == 2


def test_output_that_cannot_be_written_is_refused_before_anything_is_stopped(
    psmkit_cli: Callable[..., Result], tmp_path: Path
) -> None:
    result = psmkit_cli("inspect", os.getpid(), "-o", tmp_path / "no" / "file")
    assert result.status == 2 and "no such folder" in result.err
    (tmp_path / "file").write_text("")
    result = psmkit_cli("inspect", os.getpid(), os.getppid(), "-o", tmp_path / "file")
    assert result.status == 2 and "cannot make the folder" in result.err


def test_further_looks_keep_the_earlier_ones(
    psmkit_cli: Callable[..., Result], hanging: RunningJob, tmp_path: Path
) -> None:
    """Two looks decide whether a rank hangs."""
    pids = [rank.pid for rank in hanging.ranks]
    folder = tmp_path / "out"
    first = psmkit_cli("inspect", *pids, *QUIET, "-o", folder)
    kept = {path: path.read_text() for path in folder.iterdir()}
    second = psmkit_cli("inspect", *pids, *QUIET, "-o", folder)
    said = [" ".join(result.out.split()) for result in (first, second)]
    assert said[0].endswith(f"wrote 3 files to {folder}")
    assert said[1].endswith(f"wrote 3 files to {folder}, look 2; the earlier ones are kept")
    assert all(path.read_text() == text for path, text in kept.items())
    assert len(list(folder.iterdir())) == 6 and len(list(folder.glob("*.2.inspect.json"))) == 3


def test_folder_is_taken_for_one_process_too(
    psmkit_cli: Callable[..., Result], hanging: RunningJob, tmp_path: Path
) -> None:
    pid = hanging.ranks[0].pid
    result = psmkit_cli("inspect", pid, *QUIET, "-o", tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith(f"-{pid}.inspect.json") and from_json(json.loads(path.read_text())).pid == pid
    assert f"wrote {path.name} to" in " ".join(result.out.split())
    assert psmkit_cli("inspect", pid, *QUIET, "-o", f"{tmp_path}/new/").status == 0


def test_file_that_holds_a_look_is_not_overwritten(psmkit_cli: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "look.json"
    path.write_text("{}")
    result = psmkit_cli("inspect", os.getpid(), *QUIET, "-o", path)
    assert result.status == 2 and "it exists: name another file, or a folder" in result.err
    assert path.read_text() == "{}"


def test_missing_debugger_is_status_1_with_a_note(
    psmkit_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    with process("input(print('up', flush=True) or '')") as child:
        monkeypatch.setattr(shutil, "which", lambda _name: None)
        result = psmkit_cli("inspect", child.pid, "--no-python")
    assert result.status == 1 and (
        "note: no native stacks: there is no gdb and no eu-stack on the path: install gdb, or elfutils for eu-stack"
        in " ".join(result.out.split())
    )


def one(rank: int, stage: str, **more: Any) -> Inspection:
    thread = InspectedThread(rank, "a", "thread", "elsewhere", "sleeps", "S")
    standing = Standing(stage, 0, f"rank {rank} waits in {stage} for rank 0", "frame #0 f", rank)
    return Inspection(100 + rank, "h", ("a",), 1.0, rank=rank, threads=(thread,), standing=(standing,), **more)


def test_odd_one_out_is_named_and_shown() -> None:
    text = inspect_page.page([one(0, "data"), one(1, "data"), one(2, "Setup"), one(3, "data")], 100, full=False).text()
    lines = text.splitlines()
    assert lines[0] == "4 processes: the odd one out is rank 2 (pid 102)"
    assert "rank 2 (pid 102) waits in Setup for rank 0" in text and "rank 0 (pid 100) waits" not in text
    assert lines[-1] == "--full shows the threads of all; -o DIR keeps them"


def test_footer_does_not_ask_for_what_was_done() -> None:
    found = [one(0, "data"), one(1, "data"), one(2, "Setup"), one(3, "data")]
    text = inspect_page.page(found, 100, full=False, kept="wrote 4 files to out").text()
    assert "-o DIR" not in text and text.splitlines()[-1] == "wrote 4 files to out"


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_last_column_of_the_table_is_wrapped(columns: int) -> None:
    """The sentence names whom the rank waits for, and since when: its end counts."""
    long = "rank 3 waits in data for rank 1, with 7 of 8 slots taken since 41 s"
    found = [one(0, "data"), replace(one(3, "data"), standing=(Standing("data", 1, long, "frame #0 f", 3),))]
    text = inspect_page.page(found, columns, full=False).text()
    assert long.removeprefix("rank 3 ") in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= columns


def test_two_halves_have_no_odd_one_out() -> None:
    found = [one(0, "data"), one(1, "data"), one(2, "Setup"), one(3, "Setup")]
    text = inspect_page.page(found, 100, full=False).text()
    assert text.splitlines()[0] == "4 processes" and "odd one" not in text


def test_note_of_many_is_shown_once() -> None:
    note = Note("libnccl.so.2: no debug information", "install it")
    text = inspect_page.page([one(0, "data", notes=(note,)), one(1, "data", notes=(note,))], 100, full=False).text()
    assert text.count("no debug information") == 1


def test_hostile_names_stay_inert() -> None:
    bad = InspectedThread(
        1, "a\x1b[31m", "thread", "elsewhere", "in \x1b]0;x\x07", "S", frames=(InspectedFrame("f\x1b[2J"),)
    )
    text = inspect_page.page([Inspection(1, "h", ("\x1b[1m",), 1.0, threads=(bad,))], 100, full=True).text()
    assert "\x1b" not in text and "\x07" not in text
