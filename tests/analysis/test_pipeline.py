"""What is said of inputs that hold nothing to analyse."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

import psmkit
from psmkit.analysis.inputs import kept, scanned, uncollected
from psmkit.model.errors import NothingToAnalyse
from psmkit.report.text import render


def refused(path: Path, *, any_log: bool = True) -> str:
    with pytest.raises(NothingToAnalyse) as error, scanned([path], any_log=any_log):
        pass
    return str(error.value)


def test_log_of_another_kind_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("waiting for the proxy of rank 1\nstill waiting\n")
    told = refused(log, any_log=False)
    assert "no NCCL line in" in told and "PSM_RECORD_DIR" in told
    assert (
        "2 lines read, none of a kind that psmkit knows; the first says 'waiting for the proxy of rank 1'. Give" in told
    )


def test_long_first_line_is_cut_and_what_does_not_print_is_escaped(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"\x1b[31mbinary" + b"x" * 500)
    told = refused(log, any_log=False)
    assert "\x1b" not in told and "1 line read" in told and "it says " in told
    assert len(told) < 500


STRANGE = (
    "Allocated nodes:\nn7\nn8\n"
    "[n7:4711] PMIX ERROR: ERROR in file gds_ds12_lock.c at line 169\n"
    "Started training: process 0 of 4\n"
)


@pytest.mark.parametrize(
    "text",
    [
        STRANGE,
        "[2026-03-01 10:00:00] starting\n[2026-03-01 10:00:01] loading\n[2026-03-01 10:00:02] still loading\n",
        '{"log":"loading","stream":"stdout"}\n' * 4,
        "<6>[   12.1] eth0: up\n<6>[   12.2] eth1: up\n<6>[   12.3] eth2: up\n",
    ],
)
def test_log_of_another_program_is_inconclusive_and_names_the_setting_that_decides(text: str, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(text)
    report = psmkit.analyze([log])
    assert (report.verdict, report.findings, report.culprits) == ("inconclusive", (), ())
    told = ", and the first that tells of an error is '[n7:4711] PMIX ERROR: ERROR in file gds_ds12_lock.c at line 169'"
    assert report.reason == (
        f"psmkit knows none of the {text.count(chr(10))} lines{told if text == STRANGE else ''}: give the whole output of the job, with NCCL_DEBUG=INFO"
    )
    page = render(report)
    assert "; no NCCL line" in page and ", in another run:\n  NCCL_DEBUG=INFO" in page


def test_two_lines_about_collectives_that_psmkit_does_not_know_are_quoted_and_not_refused(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("Cannot make the NCCL clique: it broke\nsee above\n")
    report = psmkit.analyze([log])
    assert report.verdict == "failed" and "Cannot make the NCCL clique: it broke" in report.reason
    assert report.confidence <= 0.4 and not report.culprits


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{\n  "schema": "psmkit.report/1",\n  "verdict": "failed"\n}\n', "a document in JSON"),
        ('[\n  {"rank": 0},\n  {"rank": 1}\n]\n', "a document in JSON"),
        ('<system version="1">\n  <cpu numaid="0">\n  </cpu>\n</system>\n', "a document in XML"),
        ('[[rule]]\nop = ["allreduce"]\nalgorithm = "ring"\n', "a document in TOML"),
        ("#!/bin/sh\nset -e\nmpirun -n 4 ./train\n", "a script"),
    ],
)
def test_document_of_another_kind_is_refused_by_name(text: str, kind: str, tmp_path: Path) -> None:
    log = tmp_path / "x"
    log.write_text(text)
    assert f"it is {kind}." in refused(log)


@pytest.mark.parametrize("text", ["", "\n\n\n\n"])
def test_text_without_a_word_is_no_log(text: str, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(text)
    assert str(log) in refused(log)


@pytest.mark.parametrize("lines", [1, 2, 3, 40])
def test_text_of_any_length_without_a_known_line_is_inconclusive(lines: int, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("waiting for the proxy\n" * lines)
    report = psmkit.analyze([log])
    known = "the only line" if lines == 1 else f"none of the {lines} lines"
    assert (report.verdict, report.findings) == ("inconclusive", ()) and known in report.reason


def test_commands_that_list_calls_refuse_a_log_without_a_line_of_nccl(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(STRANGE)
    with pytest.raises(NothingToAnalyse), scanned([log]):
        pass


def test_empty_log_is_called_empty(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("")
    assert "x.log: it is empty. Give" in refused(log)


def test_first_line_comes_from_the_first_file_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("")
    (tmp_path / "b.log").write_text("here\n")
    assert "it says 'here'" in refused(tmp_path, any_log=False)


@pytest.mark.parametrize(
    "line",
    [
        "[rank1]:[I515 07:06:42.915740178 ProcessGroupNCCL.cpp:835] [Rank 1] words of a later release",
        "[I515 07:06:42.915740178 TCPStore.cpp:282] words of a later release",
        "[1744331142.028115] [node7:4711:3]      ucp_worker.c:1903 UCX  INFO    ucp_context_2 inter-node cfg#3",
        "I0717 07:30:06.719655    4711 nixl_plugin_manager.cpp:219] Discovered and loaded plugin UCX",
    ],
)
def test_lines_of_torch_and_ucx_alone_are_inconclusive(line: str, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(f"starting\n{line}\n")
    report = psmkit.analyze([str(log)])
    assert (report.verdict, report.findings) == ("inconclusive", ())
    log.write_text("starting\nimport of ProcessGroupNCCL.cpp and TCPStore.cpp, UCX INFO\n")
    assert "none of a kind that psmkit knows" in refused(log, any_log=False)


@pytest.mark.parametrize("what", ["it is being destructed", "we destruct ProcessGroupNCCL"])
def test_a_program_that_ends_without_destroying_its_group_has_not_failed(what: str, tmp_path: Path) -> None:
    line = "[rank{0}]:[W515 07:06:42.91574017{0} ProcessGroupNCCL.cpp:1117] WARNING: process group has NOT been destroyed before {1}. On normal program exit, the application should call destroy_process_group\n"
    log = tmp_path / "x.log"
    log.write_text("".join(line.format(r, what) for r in (3, 6)))
    report = psmkit.analyze([str(log)])
    assert (report.verdict, report.culprits) == ("inconclusive", ())
    assert [f.code for f in report.findings] == ["PSM801"]


def test_the_end_of_a_program_does_not_search_through_what_it_made() -> None:
    searched: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        searched.append(phase)

    gc.collect()
    with uncollected(last=True):
        made = [[at] for at in range(5000)]
        gc.callbacks.append(note)
    made += [[at] for at in range(100)]
    gc.callbacks.remove(note)
    assert gc.isenabled() and not searched and not gc.get_freeze_count()


def test_the_end_of_a_program_does_not_take_apart_what_it_made() -> None:
    class Made:
        pass

    ends: list[str] = []
    weakref.finalize(kept(Made()), ends.append, "at once")
    assert ends == ["at once"]
    with uncollected(last=True):
        weakref.finalize(kept(Made()), ends.append, "by a search")
    assert ends == ["at once"]
    gc.collect()
    assert ends == ["at once", "by a search"]
