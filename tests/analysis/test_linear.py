"""Twice the ranks are twice the work. Lines of psmkit's code are counted, not seconds."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType

import pytest

import psmkit
from psmkit.analysis.facts import proofs
from psmkit.analysis.facts.job import Job, make_job
from psmkit.analysis.inference import process_groups, waits
from psmkit.analysis.inference.sightings import sightings, told_by_errors, untold
from psmkit.analysis.inputs import scanned
from psmkit.analysis.views import ops
from psmkit.analysis.views.diff import compare
from psmkit.catalogue import Catalogue, load
from psmkit.logparse import decode
from psmkit.logparse.types import Call
from psmkit.model import Evidence
from psmkit.report import render
from tests.loggen.crowd import KINDS, write_files, write_merged

ROOT = Path(psmkit.__file__).parent
ROOMS = (str(ROOT / "analysis"), str(ROOT / "report"))
FEW, MANY = 64, 128
#: All functions together may do 2.2 times the work for twice the ranks. A single one may begin its work at some number of lines, so more is
#: allowed, but a scan of all ranks for each rank does four times the work.
TOTAL, EACH = 2.2, 3.0


def executed(work: Callable[[], object]) -> Counter[CodeType]:
    """How many lines of each function of psmkit run. Each turn of a loop counts, also within one line."""
    seen: Counter[CodeType] = Counter()

    def line(frame: FrameType, event: str, _: object) -> object:
        if event == "line":
            seen[frame.f_code] += 1
        return line

    def call(frame: FrameType, _event: str, _: object) -> object:
        return line if frame.f_code.co_filename.startswith(ROOMS) else None

    before = sys.gettrace()
    sys.settrace(call)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(before)
    return seen


def report(path: Path) -> None:
    said = psmkit.analyze([str(path)])
    for form in ("json", "text"):
        render(said, form)


def views(good: Path, bad: Path) -> None:
    with scanned([str(good)], keep_calls=True) as one, scanned([str(bad)], keep_calls=True) as other:
        ours, theirs = make_job(one), make_job(other)
        assert compare(ours, theirs).differs
        assert ops.rows(ours)


def excess(few: Counter[CodeType], many: Counter[CodeType]) -> list[str]:
    """The functions that do the work for each pair of ranks."""
    assert few.total() > 10 * FEW, "nothing was counted"
    found = [
        f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}: {few[code]} -> {lines} lines"
        for code, lines in many.items()
        if lines > 4 * MANY and lines > EACH * few[code]
    ]
    if many.total() > TOTAL * few.total():
        found.append(f"together: {few.total()} -> {many.total()} lines")
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("healthy", "floods")])
def test_an_analysis_does_twice_the_work_for_twice_the_ranks(kind: str, tmp_path: Path) -> None:
    found = []
    for ranks in (FEW, MANY):
        path = tmp_path / f"{ranks}.log"
        write_merged(path, kind, ranks)
        found.append(executed(partial(report, path)))
    assert excess(*found) == []


@pytest.mark.parametrize("kind", ["abort", "crashes"])
def test_a_file_for_each_rank_is_no_different(kind: str, tmp_path: Path) -> None:
    found = []
    for ranks in (FEW, MANY):
        path = tmp_path / str(ranks)
        path.mkdir()
        write_files(path, kind, ranks)
        found.append(executed(partial(report, path)))
    assert excess(*found) == []


def test_an_exception_and_a_crash_of_each_rank_are_no_different(tmp_path: Path) -> None:
    found = []
    for ranks in (FEW, MANY):
        path = tmp_path / f"{ranks}.log"
        write_merged(path, "crashes", ranks)
        with path.open("a") as log:
            for rank in range(ranks):
                tag = f"[rank{rank}]:"
                log.write(f'{tag}Traceback (most recent call last):\n{tag}  File "/app/train.py", line 12, in step\n')
                log.write(f"{tag}KeyError: 'batch {rank}'\n")
        found.append(executed(partial(report, path)))
    assert excess(*found) == []


def test_a_comparison_and_the_table_of_calls_are_no_different(tmp_path: Path) -> None:
    found = []
    for ranks in (FEW, MANY):
        good, bad = tmp_path / f"good{ranks}.log", tmp_path / f"bad{ranks}.log"
        write_merged(good, "healthy-proxy", ranks)
        write_merged(bad, "abort", ranks)
        found.append(executed(partial(views, good, bad)))
    assert excess(*found) == []


def test_a_scan_of_all_ranks_for_each_rank_is_found() -> None:
    namespace: dict[str, Callable[[int], int]] = {}
    source = "def square(n):\n    return sum(len([x for x in range(n)]) for _ in range(n))\n"
    exec(compile(source, f"{ROOMS[0]}/made.py", "exec"), namespace)
    few, many = (executed(partial(namespace["square"], ranks)) for ranks in (FEW, MANY))
    assert any(line.startswith("made.py") for line in excess(few, many))


def test_the_wait_of_a_call_is_found_once_for_all_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Call] = []
    real = waits._caller_of

    def caller_of(job: Job, call: Call) -> int | None:
        asked.append(call)
        return real(job, call)

    monkeypatch.setattr(waits, "_caller_of", caller_of)
    path = tmp_path / "job.log"
    write_merged(path, "unanswered", FEW)
    psmkit.analyze([str(path)])
    assert len(asked) == len({id(call) for call in asked}) == FEW


def test_a_group_of_torch_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str | None] = []
    real = process_groups.Group

    def group(name: str | None) -> process_groups.Group:
        made.append(name)
        return real(name)

    monkeypatch.setattr(process_groups, "Group", group)
    path = tmp_path / "job.log"
    write_merged(path, "watchdog", FEW)
    psmkit.analyze([str(path)])
    assert made == ["0"]


def test_lines_of_errors_that_ended_the_job_are_left_out_without_an_object_for_each(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    write_merged(path, "floods", 16, 1 << 17)
    with scanned([str(path)]) as result:
        job = make_job(result)
        name = "proxy.progress_op_failed"
        rest, procs = untold(job, "PSM107")
        assert len(result.events.rows([name])) > 15 and name not in result.events._made
        told = [told_by_errors(job, event) for event in sightings(job, "PSM107")]
        assert rest == [e for e, inside in zip(sightings(job, "PSM107"), told, strict=True) if not inside]
        assert procs == {e.proc for e, inside in zip(sightings(job, "PSM107"), told, strict=True) if inside}
        assert any(told)


def test_the_deciding_words_of_a_line_are_looked_up_when_a_report_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    real = proofs._parts

    def parts(line: str, known: Catalogue) -> tuple[tuple[str, ...], str]:
        looked.append(line)
        return real(line, known)

    monkeypatch.setattr(proofs, "_parts", parts)
    path = tmp_path / "job.log"
    write_merged(path, "crashes", MANY)
    said = psmkit.analyze([str(path)])
    assert looked == []
    render(said, "text")
    assert 0 < len(looked) < MANY
    line = next(e for f in said.findings for e in f.evidence if "Segmentation" in e.text)
    kept: Evidence = pickle.loads(pickle.dumps(line))
    assert kept.words == tuple(line.words) == proofs.deciding(line.text, load()) != ()


def test_repeated_complaints_share_their_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_PART", 20)
    path = tmp_path / "job.log"
    write_merged(path, "floods", 16, 1 << 17)
    with scanned([str(path)]) as result:
        found = result.events.of("socket.io.failed")
        assert len(found) > 2 * 20, "more than are decoded together"
        assert len({id(event.fields) for event in found}) == len({tuple(event.fields.items()) for event in found})
