"""``explain``, ``codes`` and ``catalogue``: all from the data of the catalogue and the codes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.model import CODES

from .conftest import Result

Cli = Callable[..., Result]

SERVED = "proxyProgressAsync opId=0x7f0215c09cc0 op.type=1 op.reqBuff=0x7f01c409c740 op.respSize=16 done"


@pytest.mark.parametrize("name", ["PSM102", "psm102", "Psm102", "102"])
def test_a_code_in_any_case(psmkit_cli: Cli, name: str) -> None:
    result = psmkit_cli("explain", name)
    assert result.status == 0
    assert result.out.startswith("PSM102 fd exchange stuck  (error)\n")
    assert "NVIDIA/nccl#2379" in result.out


@pytest.mark.parametrize("name", sorted(CODES))
def test_every_code_is_explained(psmkit_cli: Cli, name: str) -> None:
    (answer,) = json.loads(psmkit_cli("explain", name, "--format", "json").out)
    assert answer["meaning"] == CODES[name].meaning


def test_several_codes_and_names_are_explained_one_after_the_other(psmkit_cli: Cli) -> None:
    answers = json.loads(psmkit_cli("explain", "PSM103", "102", "proxy.call.done", "--format", "json").out)
    assert [answer.get("code") or answer["name"] for answer in answers] == ["PSM103", "PSM102", "proxy.call.done"]


@pytest.mark.parametrize(("given", "seen"), [("", "the argument is empty"), ("-", "standard input has no line")])
def test_nothing_to_explain_is_an_error(
    psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch, given: str, seen: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    result = psmkit_cli("explain", given)
    assert (result.status, result.out) == (2, "")
    assert f"nothing to explain: {seen}" in result.err


def test_a_message_by_its_name(psmkit_cli: Cli) -> None:
    result = psmkit_cli("explain", "proxy.call.done")
    assert result.status == 0
    assert "proxyProgressAsync opId={op:ptr}" in result.out
    line = psmkit_cli("explain", SERVED).out
    assert "op = 0x7f0215c09cc0, type = 1" in line


@pytest.mark.parametrize(
    "line",
    [
        SERVED,
        f"host:1:2 [3] NCCL INFO {SERVED}",
        f"[1,3]<stdout>: host:1:2 [3] NCCL INFO {SERVED}",
        f"NCCL INFO {SERVED}",
        f"[2026-11-21 04:05:06] host:1:2 [3] NCCL INFO {SERVED}\r",
    ],
)
def test_a_pasted_line_with_and_without_its_prefix(psmkit_cli: Cli, line: str) -> None:
    (answer,) = json.loads(psmkit_cli("explain", line, "--format", "json").out)
    assert answer["name"] == "proxy.call.done"
    assert answer["fields"]["op"] == 0x7F0215C09CC0


def test_a_line_that_the_shell_has_split(psmkit_cli: Cli) -> None:
    (answer,) = json.loads(psmkit_cli("explain", "--format", "json", *SERVED.split()).out)
    assert answer["name"] == "proxy.call.done"


def test_glued_records_are_two(psmkit_cli: Cli) -> None:
    glued = f"h:1:2 [0] NCCL INFO {SERVED} h:1:3 [0] NCCL INFO ncclPollProxyResponse Received new opId=0x7f0215c09cc0"
    answers = json.loads(psmkit_cli("explain", glued, "--format", "json").out)
    assert [answer["name"] for answer in answers] == ["proxy.call.done", "proxy.call.received"]


def test_lines_from_standard_input(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SERVED}\n\npsm101\n"))
    answers = json.loads(psmkit_cli("explain", "-", "--format", "json").out)
    assert [answer["kind"] for answer in answers] == ["line", "code"]


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("PSM999", "there is no code PSM999; 'psmkit codes' lists them all"),
        ("599", "there is no code PSM599; 'psmkit codes' lists them all"),
        ("ps102", "did you mean PSM102"),
        ("proxy.cal.done", "did you mean proxy.call.done"),
        ("no message at all says this", "no message of the catalogue matches this line"),
        ("a\x1b[31mb c", "\\x1b[31m"),
    ],
)
def test_what_nobody_knows(psmkit_cli: Cli, what: str, hint: str) -> None:
    result = psmkit_cli("explain", what)
    assert (result.status, result.out) == (2, "")
    assert hint in result.err
    assert result.err.count("\n") == 1


def test_codes_are_listed_whole_in_a_pipe(psmkit_cli: Cli) -> None:
    lines = psmkit_cli("codes").out.splitlines()
    assert [line[:6] for line in lines[1:]] == list(CODES)
    assert all(code.meaning in line for line, code in zip(lines[1:], CODES.values(), strict=True))
    assert [row["code"] for row in json.loads(psmkit_cli("codes", "--format", "json").out)] == list(CODES)


def test_a_search_needs_all_words_in_any_case(psmkit_cli: Cli) -> None:
    hits = json.loads(psmkit_cli("catalogue", "OPID", "proxyProgressAsync", "--format", "json").out)
    assert "proxy.call.done" in [hit["name"] for hit in hits]
    assert all("proxyprogressasync" in json.dumps(hit).lower() for hit in hits)


def test_a_search_by_code_and_by_issue(psmkit_cli: Cli) -> None:
    assert all(
        hit["finding"] == "PSM102" for hit in json.loads(psmkit_cli("catalogue", "PSM102", "--format", "json").out)
    )
    assert json.loads(psmkit_cli("catalogue", "nccl#2379", "--format", "json").out)


def test_few_hits_are_shown_whole_and_many_as_a_table(psmkit_cli: Cli) -> None:
    assert "\n  printed by: NCCL 2.18-" in psmkit_cli("catalogue", "proxyProgressAsync", "done").out
    table = psmkit_cli("catalogue", "proxy").out.splitlines()
    assert table[0].split() == ["name", "level", "code", "versions", "meaning"]
    assert table[-1].endswith("messages; 'psmkit explain NAME' explains one")


def test_without_words_there_is_an_overview(psmkit_cli: Cli) -> None:
    lines = psmkit_cli("catalogue").out.splitlines()
    assert lines[0].split()[:2] == ["subsystem", "messages"]
    assert any(line.startswith("proxy ") for line in lines)


def test_a_search_without_hits(psmkit_cli: Cli) -> None:
    result = psmkit_cli("catalogue", "zebra crossing")
    assert (result.status, result.out) == (2, "")


def test_own_catalogues_can_be_searched_and_errors_in_them_are_one_line(psmkit_cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('subsystem = "mine"\n[[message]]\nname = "mine.one"\npattern = "zebra {n:int}"\nmeaning = "m"\n')
    assert psmkit_cli("catalogue", "zebra", "--catalogue", file).status == 0
    (answer,) = json.loads(psmkit_cli("explain", "zebra 7", "--catalogue", file, "--format", "json").out)
    assert (answer["name"], answer["fields"]) == ("mine.one", {"n": 7})
    file.write_text('[[message]]\nname = "mine.one"\npattern = "zebra {n:nothing}"\nmeaning = "m"\n')
    result = psmkit_cli("catalogue", "--catalogue", file)
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert "mine.one" in result.err
    assert psmkit_cli("catalogue", "--catalogue", tmp_path / "none.toml").status == 2


def test_lines_that_nothing_explains_do_not_hide_the_others(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    given = f"nothing of it\n{SERVED}\nmore of nothing\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    result = psmkit_cli("explain", "-")
    assert result.status == 0
    assert "op = 0x7f0215c09cc0" in result.out
    assert "not known: 2 lines" in result.out
    assert "line 1: nothing of it" in result.out
    assert "line 3: more of nothing" in result.out
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    answers = json.loads(psmkit_cli("explain", "-", "--format", "json").out)
    assert [answer["kind"] for answer in answers] == ["unknown", "line", "unknown"]


def test_standard_input_of_which_nothing_is_known_is_an_error(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("nothing of it\nmore of nothing\n"))
    result = psmkit_cli("explain", "-")
    assert (result.status, result.out) == (2, "")
    assert "no message of the catalogue matches this line: nothing of it" in result.err


MINE = """
[[message]]
name = "trainer.late"
subsystem = "trainer"
level = "NONE"
pattern = "trainer: rank {rank:int} is late"
meaning = "A rank is late."
sample = [{text = "trainer: rank 3 is late", fields = {rank = 3}}]
"""
LATE = "trainer: rank 5 is late"


def mine(folder: Path, text: str = MINE) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_line_that_an_analysis_does_not_match_is_explained_with_a_note(psmkit_cli: Cli, tmp_path: Path) -> None:
    assert 'where = "line"' in psmkit_cli("explain", "--catalogue", mine(tmp_path), LATE).out
    assert 'where = "line"' not in psmkit_cli("explain", "--catalogue", mine(tmp_path), f"NCCL INFO {LATE}").out
    whole = mine(tmp_path, MINE.replace("pattern", 'where = "line"\npattern'))
    assert 'where = "line"' not in psmkit_cli("explain", "--catalogue", whole, LATE).out


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [("rank = 3}", "rank = 4}", "rank is 3, not 4"), ("rank 3 is", "rank x is", "no pattern matches it")],
)
def test_a_wrong_sample_of_a_users_catalogue_is_reported(
    old: str, new: str, why: str, psmkit_cli: Cli, tmp_path: Path
) -> None:
    done = psmkit_cli("explain", "--catalogue", mine(tmp_path, MINE.replace(old, new)), LATE)
    assert done.status == 2
    assert "mine.toml" in done.err and "trainer.late" in done.err and why in done.err


def test_lines_of_a_users_program_are_no_lines_of_nccl(psmkit_cli: Cli, tmp_path: Path) -> None:
    whole = mine(tmp_path, MINE.replace("pattern", 'where = "line"\npattern'))
    log = tmp_path / "out.log"
    log.write_text("".join(f"trainer: rank {n} is late\n" for n in range(4)), "utf-8")
    page = psmkit_cli("analyze", log, "--catalogue", whole).out
    assert "no NCCL line; understood 4 lines" in " ".join(page.split())
    assert "subsystems not logged" not in page


def test_a_broken_catalogue_beside_the_logs_is_noted_and_the_logs_are_analysed(psmkit_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text("n0:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" * 4, "utf-8")
    (tmp_path / "psmkit.toml").write_text("[[message]\n", "utf-8")
    done = psmkit_cli("analyze", tmp_path)
    assert done.status == 0
    assert "are not used" in done.out and "psmkit.toml" in done.out


def test_a_catalogue_that_also_lies_beside_the_logs_is_read_once(psmkit_cli: Cli, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "out.log").write_text("n0:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" * 4, "utf-8")
    (logs / "psmkit.toml").write_text(MINE, "utf-8")
    assert psmkit_cli("analyze", logs, "--catalogue", mine(tmp_path)).status == 0


def test_standard_input_shows_each_line_that_it_explains_and_each_message_once(
    psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.stdin", io.StringIO(f"{SERVED}\n{SERVED.replace('16', '24')}\nNCCL INFO Using network IB\n")
    )
    page = psmkit_cli("explain", "-").out
    assert page.count("line 1: proxyProgressAsync") == 1
    assert "line 2: " not in page and "line 3: NCCL INFO Using network IB" in page
    assert "1 more line of the messages above" in page


def test_empty_fields_are_left_out(psmkit_cli: Cli, tmp_path: Path) -> None:
    text = MINE.replace('is late"\nm', 'is late{why:rest}"\nm')
    assert "why" in text
    assert "why =" not in psmkit_cli("explain", "--catalogue", mine(tmp_path, text), f"NCCL INFO {LATE}").out


def test_an_option_that_is_called_like_a_format_names_the_option(psmkit_cli: Cli) -> None:
    done = psmkit_cli("explain", "PSM102", "--format", "json", "--nosuch")
    assert "--format" not in done.err
    done = psmkit_cli("analyze", "x.log", "--json")
    assert done.status == 2
    assert "Use --format json." in done.err
    assert "--format" not in psmkit_cli("analyze", "x.log", "--yaml").err
