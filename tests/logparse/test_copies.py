"""A log that is given twice is read once, and equal logs of two ranks are read both."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest

from psmkit.logparse import scan

LINES = "".join(f"n0:500:{600 + n} [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" for n in range(300))


def _log(folder: Path, name: str = "job.log", text: str = LINES) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def _copy(log: Path) -> Path:
    return Path(shutil.copy(log, log.with_name("copy of job.log")))


def _hard(log: Path) -> Path:
    os.link(log, log.with_name("z.log"))
    return log.with_name("z.log")


def _soft(log: Path) -> Path:
    log.with_name("z.log").symlink_to(log)
    return log.with_name("z.log")


@pytest.mark.parametrize("again", [_copy, _hard, _soft])
def test_a_log_that_is_given_twice_is_read_once(again: object, tmp_path: Path) -> None:
    log = _log(tmp_path)
    other = again(log)  # type: ignore[operator]
    result = scan([log, other])
    assert len(result.files) == 1
    assert result.totals.lines == 300
    assert result.notes == [f"{other} is the same as {log}: the log is read once"]
    assert len(scan([tmp_path]).files) == 1


def test_a_folder_and_a_file_in_it_are_one_log(tmp_path: Path) -> None:
    log = _log(tmp_path)
    assert len(scan([tmp_path, log]).files) == 1
    copied = _log(tmp_path / "old")
    result = scan([tmp_path, copied])
    assert len(result.files) == 1
    assert result.notes == [f"{copied} is the same as {log}: the log is read once"]


def test_logs_that_differ_in_the_middle_only_are_two(tmp_path: Path) -> None:
    other = LINES.replace(":750 ", ":950 ")
    assert len(other) == len(LINES)
    result = scan([_log(tmp_path), _log(tmp_path, "b.log", other)])
    assert len(result.files) == 2
    assert not result.notes


def test_equal_errors_of_two_ranks_are_two_logs(tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\nRuntimeError: NCCL error: unhandled system error\n"
    result = scan([_log(tmp_path / "0", "stderr.log", error), _log(tmp_path / "1", "stderr.log", error)])
    assert len(result.files) == 2
    assert not result.notes


STAMPED = "".join(f"W1120 14:20:0{n}.51{n}000 4021 torch/distributed/run.py:793] step {n}\n" for n in range(9))


def _gz(log: Path, text: str) -> Path:
    path = log.with_name(f"{log.name}.gz")
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_a_log_and_its_compressed_copy_are_one_log(tmp_path: Path) -> None:
    log = _log(tmp_path)
    packed = _gz(log, LINES)
    for order in ([log, packed], [packed, log]):
        result = scan(order)
        assert [file.path for file in result.files] == [str(log)]
        assert result.totals.lines == 300
        assert result.notes == [f"{packed} is the same as {log}: the log is read once"]


def test_two_compressed_copies_are_one_log(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gz", tmp_path / "b.gz"
    first.write_bytes(gzip.compress(LINES.encode(), 1))
    second.write_bytes(gzip.compress(LINES.encode(), 9))
    assert len(scan([first, second]).files) == 1


@pytest.mark.parametrize(
    "text", [LINES.replace(":750 ", ":950 "), LINES[:-60], LINES * 2], ids=["edit", "cut", "longer"]
)
def test_a_compressed_log_with_another_text_is_another_log(text: str, tmp_path: Path) -> None:
    log = _log(tmp_path)
    assert len(scan([log, _gz(log, text)]).files) == 2


def test_a_damaged_compressed_log_is_no_copy(tmp_path: Path) -> None:
    log = _log(tmp_path)
    packed = _gz(log, LINES)
    packed.write_bytes(packed.read_bytes()[:-20])
    assert len(scan([log, packed]).files) == 2


def test_equal_logs_with_several_times_are_one_log_without_the_name_of_a_process(tmp_path: Path) -> None:
    first, second = _log(tmp_path, "a.log", STAMPED), _log(tmp_path, "b.log", STAMPED)
    assert scan([first, second]).notes == [f"{second} is the same as {first}: the log is read once"]


@pytest.mark.parametrize("form", ["14:20:0{}", "1.512 step {}", "[rank{}]:"])
def test_equal_logs_without_exact_times_are_two_logs(form: str, tmp_path: Path) -> None:
    text = "".join(f"{form.format(n)} RuntimeError\n" for n in range(9))
    assert len(scan([_log(tmp_path, "a.log", text), _log(tmp_path, "b.log", text)]).files) == 2


def test_equal_errors_of_one_time_are_two_logs(tmp_path: Path) -> None:
    text = "".join(f"W1120 14:20:01.512 run.py] line {n}\n" for n in range(9))
    assert len(scan([_log(tmp_path, "a.log", text), _log(tmp_path, "b.log", text)]).files) == 2


def test_many_copies_make_few_notes(tmp_path: Path) -> None:
    result = scan([_log(tmp_path, f"{n}.log") for n in range(9)])
    assert len(result.files) == 1
    assert len(result.notes) == 4
    assert result.notes[-1] == "5 more inputs of the same kind"
