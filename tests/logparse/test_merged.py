"""A file that merges the logs beside it: each line counts once, and nothing is lost."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest

import psmkit
from psmkit.logparse import scan
from psmkit.logparse.result import ScanResult
from tests.analysis.texts import ranks


def _texts(number: int = 3) -> list[str]:
    return ["".join(f"{line}\n" for line in rank.work(4 + rank.rank).lines) for rank in ranks(number)]


def _interleaved(texts: list[str]) -> str:
    rows = itertools.zip_longest(*(text.splitlines(keepends=True) for text in texts), fillvalue="")
    return "".join(itertools.chain.from_iterable(rows))


def _tagged(texts: list[str]) -> str:
    return "".join(
        f"[default{rank}]:{line}" for rank, text in enumerate(texts) for line in text.splitlines(keepends=True)
    )


def _scan(folder: Path, merged: str, texts: list[str], name: str = "all.log") -> ScanResult:
    for rank, text in enumerate(texts):
        (folder / f"nccl.rank{rank}.log").write_text(text)
    data = merged.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return scan([str(folder)])


def _names(result: ScanResult) -> list[str]:
    return sorted(Path(file.path).name for file in result.files)


OWN = ["nccl.rank0.log", "nccl.rank1.log", "nccl.rank2.log"]


@pytest.mark.parametrize("name", ["all.log", "all.log.gz"])
@pytest.mark.parametrize("merge", ["".join, lambda texts: "".join(texts[::-1]), _interleaved])
def test_a_file_that_only_merges_the_others_is_not_read(merge: object, name: str, tmp_path: Path) -> None:
    texts = _texts()
    result = _scan(tmp_path, merge(texts), texts, name)  # type: ignore[operator]
    assert _names(result) == OWN
    assert result.totals.lines == "".join(texts).count("\n")
    (note,) = result.notes
    assert note.startswith(f"{tmp_path / name} only has the lines of ")
    report = psmkit.analyze([tmp_path])
    assert [rank.rank for rank in report.ranks] == [0, 1, 2]


@pytest.mark.parametrize("merge", [lambda texts: "srun: job 7 starts\n" + _interleaved(texts), _tagged])
def test_a_console_that_has_more_than_the_others_is_read_in_their_place(merge: object, tmp_path: Path) -> None:
    texts = _texts()
    result = _scan(tmp_path, merge(texts), texts, "console.log")  # type: ignore[operator]
    assert _names(result) == ["console.log"]
    (note,) = result.notes
    assert note.startswith(f"{tmp_path / 'console.log'} has all lines of ")
    assert [rank.rank for rank in psmkit.analyze([tmp_path]).ranks] == [0, 1, 2]


def test_a_log_whose_lines_the_merged_one_lacks_stays(tmp_path: Path) -> None:
    texts = _texts()
    longer = [*texts[:2], texts[2] + "node0:7201:7201 [2] NCCL INFO cudaDriverVersion 12080\n"]
    result = _scan(tmp_path, "".join(texts), longer)
    assert _names(result) == ["all.log", "nccl.rank2.log"]


def test_two_logs_that_are_alike_in_part_are_no_merged_one(tmp_path: Path) -> None:
    texts = _texts()
    assert len(_scan(tmp_path, texts[0], [texts[0][:-200], texts[1], texts[2]]).files) == 4
    assert not _scan(tmp_path, texts[0] * 2, [texts[0], texts[1], texts[2]]).notes


def test_equal_errors_of_three_ranks_are_three_logs(tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\nRuntimeError: NCCL error: unhandled system error\n"
    assert len(_scan(tmp_path, error * 2, [error, error]).files) == 3


def test_processes_of_containers_with_equal_names_stay_in_their_files(tmp_path: Path) -> None:
    texts = [text.replace(f":{7001 + 100 * rank}:{7001 + 100 * rank}", ":1:1") for rank, text in enumerate(_texts())]
    assert len(_scan(tmp_path, "srun: job 7 starts\n" + "".join(texts), texts).files) == 4
    assert _names(_scan(tmp_path, "".join(texts), texts)) == OWN
