"""Every word of a report has its Chinese, keeps its commands, and is aligned by columns."""

from __future__ import annotations

import ast
import re
import string
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.model import CODES, Report
from psmkit.report import FORMATS, Options, markdown, ranktable, render, summary, text
from psmkit.report.cells import breadth, head, tail, wrap
from psmkit.report.escape import shorten, shorten_left
from psmkit.report.language import ENGLISH, Translated, Words, by_locale, words_of
from psmkit.report.ranktable import fit
from tests.loggen import generate, scenario_names
from tests.report import samples

ROOT = Path(__file__).parents[2]
DATA: dict[str, Any] = tomllib.loads((ROOT / "psmkit" / "report" / "zh.toml").read_text("utf-8"))
PARTS = ("title", "meaning", "next_step")
CHINESE = re.compile("[\u4e00-\u9fff]")
#: Commands, settings, functions, files and numbers with a dot: a translation keeps them.
KEPT = re.compile(
    r"`[^`]+`|\b[A-Z]{2,}[A-Z0-9]*_[A-Z0-9_]+(?:=\w[\w,%./]*\w)?|\bnccl[A-Z]\w+|\bcuda[A-Z]\w+|(?<![\w-])--?[a-z][\w-]+|/dev/shm"
    r"|\b\d+(?:\.\d+)+|docs/\w+\.md|nccl#\d+"
)
SOURCES = sorted((ROOT / "psmkit" / "report").glob("*.py")) + sorted((ROOT / "psmkit" / "cli").glob("*.py"))
LOGS = ROOT / "tests" / "data" / "logs"


@pytest.fixture(scope="module")
def zh() -> Words:
    return words_of("zh")


def placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


# ---- codes ----


def test_each_code_is_translated_and_no_other() -> None:
    assert DATA["codes"].keys() == CODES.keys()
    assert all(set(entry) == set(PARTS) for entry in DATA["codes"].values())


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("part", PARTS)
def test_a_text_of_a_code_is_chinese_and_keeps_what_is_typed(code: str, part: str) -> None:
    english, chinese = getattr(CODES[code], part), DATA["codes"][code][part]
    assert CHINESE.search(chinese)
    assert [word for word in KEPT.findall(english) if word not in chinese] == []
    assert part == "title" or chinese.endswith("\u3002")
    assert part != "title" or not chinese.endswith("\u3002")


def reports() -> list[Report]:
    logs = [path for path in sorted(LOGS.iterdir()) if path.suffix not in (".toml", ".md")]
    return [*(make() for make in samples.ALL.values()), *(psmkit.analyze([str(path)]) for path in logs)]


# ---- words ----


class Recording(Words):
    """English that notes what it is asked for."""

    def __init__(self) -> None:
        self.said: set[str] = set()
        self.counted: set[str] = set()
        self.states: set[str] = set()

    def say(self, text: str, /, **values: object) -> str:
        self.said.add(text)
        return super().say(text, **values)

    def count(self, number: int, one: str, many: str | None = None) -> str:
        self.counted.add(one)
        return super().count(number, one, many)

    def state(self, value: str) -> str:
        self.states.add(value)
        return super().state(value)


def constants(node: ast.AST) -> Iterator[str]:
    """The texts that an expression can be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*constants(node.body), *constants(node.orelse))


def asked(path: Path) -> Iterator[tuple[str, str]]:
    """(method, text) of the calls of ``say`` and ``count`` in a module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "say":
            yield from (("say", found) for found in constants(node.args[0]))
        elif node.func.attr == "count" and len(node.args) > 1:  # a number and a noun
            yield from (("count", found) for found in constants(node.args[1]))


SAID = {found for path in SOURCES for method, found in asked(path) if method == "say"}
COUNTED = {found for path in SOURCES for method, found in asked(path) if method == "count"}
TABLES = {
    *summary._CONDITIONS.values(),
    *(name for name, _ in summary._EXCHANGES),
    *(words for _, words in ranktable._LEGEND),
    *text._NAMES.values(),
    *text._LABELS,
    *("error", "warning", "info"),
}


def test_the_sources_are_searched_where_the_words_are() -> None:
    assert len(SAID) > 80 and "Ranks: {counts}" in SAID and len(COUNTED) >= 10 and "file" in COUNTED


@pytest.mark.parametrize("english", sorted(SAID | TABLES))
def test_each_word_of_the_renderer_is_translated(english: str) -> None:
    assert english in DATA["words"]


@pytest.mark.parametrize("english", sorted(COUNTED | set(text._NAMES.values())))
def test_each_counted_noun_is_translated(english: str) -> None:
    assert "{}" in DATA["counts"][english]


def test_whatever_a_report_asks_for_is_translated() -> None:
    words = Recording()
    for report in reports():
        for verbose in (False, True):
            options = Options(verbose=verbose, words=words)
            assert text.render(report, options)
            assert markdown.render(report, options)
    assert words.said - DATA["words"].keys() == set()
    assert words.counted - DATA["counts"].keys() == set()
    assert words.states - DATA["states"].keys() == set()
    assert len(words.said) > 80 and len(words.states) > 4


def test_no_translation_is_for_a_word_that_nothing_prints() -> None:
    printed = {
        node.value
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert DATA["words"].keys() - printed == set()
    assert DATA["counts"].keys() - printed == set()


@pytest.mark.parametrize("table", ["words", "sentences"])
def test_translations_have_the_placeholders_of_the_english(table: str) -> None:
    for english, chinese in DATA[table].items():
        assert placeholders(chinese) == placeholders(english), english


def test_words_are_chinese_unless_they_are_names_or_signs() -> None:
    plain = {english for english, chinese in DATA["words"].items() if not CHINESE.search(chinese)}
    signs = {": ", ":", ", ", "; "}
    names = {
        "rank",
        "pid",
        "pid {pid}",
        " of {host}",
        "the GPU at {gpu}{where}",
        "communicator {comm}",
        "Ranks",
        "Ranks: {counts}",
    }
    templates = {
        " ({sure})",
        ", {when}:",
        " ({when})",
        "{code}: {rest}.",
        "{ranks} in {processes} on {hosts}",
        "{processes} on {hosts}",
    }
    also = {"Communicators", "trace: {path} ({size:.1f} MB)"}
    assert plain <= signs | names | templates | also


# ---- sentences ----


def test_each_form_of_a_sentence_is_found_again(zh: Words) -> None:
    """No form hides behind an earlier one."""
    assert isinstance(zh, Translated)
    for english, chinese in DATA["sentences"].items():
        values = {name: "7" if name in ("n", "m") else f"X{name}X" for name in placeholders(english)}
        assert zh.sentence(english.format(**values)) == chinese.format(**values), english
        assert CHINESE.search(chinese)


def test_settings_in_sentences_stay() -> None:
    for english, chinese in DATA["sentences"].items():
        assert [word for word in KEPT.findall(english) if word not in chinese] == [], english


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("ranks 0 and 2 stopped in stage setup", "rank 0 \u548c 2 \u505c\u5728 setup \u9636\u6bb5"),
        ("the log of ranks", "the log of ranks"),
        (
            "rank 1 (n0:7) was killed by SIGKILL; so was this",
            "rank 1 (n0:7) \u88ab SIGKILL \u6740\u6b7b\uff1bso was this",
        ),
    ],
)
def test_names_are_translated_and_what_is_not_known_stays(zh: Words, english: str, chinese: str) -> None:
    assert zh.sentence(english) == chinese


@pytest.mark.parametrize("fault", sorted({name for name, dialect in scenario_names() if dialect in ("2.21", "passsm")}))
def test_the_verdict_on_a_simulated_fault_is_chinese(zh: Words, tmp_path: Path, fault: str) -> None:
    """A rule that words its sentence in another way needs another form in zh.toml."""
    dialect = "2.21" if (fault, "2.21") in scenario_names() else "passsm"
    (tmp_path / "job.log").write_text(generate(fault, dialect).merged())
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert zh.knows(report.reason), report.reason
    found = summary.behind(report)
    if found is not None:
        assert zh.knows(found.next_step) or found.next_step == CODES[found.code].next_step, found.next_step


def test_a_reason_without_chinese_stands_behind_the_title_of_its_code(zh: Words) -> None:
    report = samples.hung()
    assert not zh.knows(report.reason)
    lines = text.render(report, Options(words=zh)).splitlines()
    found = summary.behind(report)
    assert found is not None
    assert DATA["codes"][found.code]["title"] in lines[0] and found.code in lines[0]
    assert report.reason[:40] in lines[1]


# ---- reports ----


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in ("text", "markdown")])
def test_formats_for_programs_are_english_in_every_language(zh: Words, form: str) -> None:
    for report in [make() for make in samples.ALL.values()]:
        assert render(report, form, Options(words=zh)) == render(report, form)


@pytest.mark.parametrize("form", ["text", "markdown"])
@pytest.mark.parametrize("verbose", [False, True])
def test_a_chinese_report_has_no_english_label(zh: Words, form: str, verbose: bool) -> None:
    labels = re.compile(
        r"^(?:#+ |- )?\W*(?:who|proof|do this|suspect|next|note|known issue|versions|Findings|Ranks|Evidence|Communicators|confidence)\b",
        re.MULTILINE,
    )
    for report in [make() for make in samples.ALL.values()]:
        shown = render(report, form, Options(verbose=verbose, words=zh))
        assert CHINESE.search(shown) and not labels.search(shown), shown


@pytest.mark.parametrize("width", [60, 80, 100])
def test_chinese_lines_keep_to_the_columns(zh: Words, width: int) -> None:
    for report in reports():
        shown = text.render(report, Options(width=width, words=zh))
        for line in shown.splitlines()[1:]:
            pasted = "NCCL_DEBUG" in line or "psmkit " in line  # commands are whole, so that they can be pasted
            if breadth(line) > width and not pasted:
                longest = max(line.split(), key=breadth)
                assert breadth(longest) + 11 > width, line  # a word that has no place to break


def test_a_table_with_chinese_is_aligned() -> None:
    lines = fit(["\u4e3b\u673a", "rank"], [["\u8282\u70b9\u4e00", "0"], ["n", "1"]], 40)
    assert [breadth(line[: line.index(mark)]) for line, mark in zip(lines, ("rank", "0", "1"), strict=True)] == [
        8,
        8,
        8,
    ]
    narrow = fit(["\u540d", "\u8bf4\u660e"], [["a", "\u4e2d" * 30]], 20)
    assert max(map(breadth, narrow)) <= 20 and narrow[1].endswith("\u2026")


def test_a_line_does_not_begin_with_a_stop_nor_end_with_an_open_bracket() -> None:
    paragraph = "\u4e2d\u6587\uff08abc\uff09\uff0c\u518d\u6765\u3002" * 20
    for width in range(24, 48):
        lines = wrap(paragraph, width, "", "  ")
        assert "".join(line.strip() for line in lines) == paragraph
        assert max(map(breadth, lines)) <= width
        assert not any(line.strip()[0] in "\uff09\uff0c\u3002" or line[-1] == "\uff08" for line in lines)


def test_wrapping_keeps_words_and_commands_whole() -> None:
    lines = wrap("\u8fd0\u884c `psmkit plan check` \u68c0\u67e5\u65e5\u5fd7" * 3, 24, "", "")
    assert all("psmkit" not in line or re.search(r"`?psmkit", line) for line in lines)
    assert " ".join(lines).count("psmkit") == 3


def test_cuts_count_columns() -> None:
    wide = "\u4e2d\u6587\u65e5\u5fd7abc"
    assert breadth(wide) == 11
    assert shorten(wide, 6) == "\u4e2d\u6587\u2026" and shorten_left(wide, 6) == "\u2026\u5fd7abc"
    assert head(wide, 5) == "\u4e2d\u6587" and tail(wide, 4) == "abc"
    assert breadth("e\u0301") == 1


# ---- which language ----


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),
        ({"LC_CTYPE": "zh_CN.UTF-8"}, "en"),
    ],
)
def test_the_locale_selects_the_language(environment: dict[str, str], language: str) -> None:
    assert by_locale(environment) == language


def test_words_of_no_language_are_refused() -> None:
    assert words_of("en") is ENGLISH
    with pytest.raises(ValueError, match="no such language: xx"):
        words_of("xx")


def test_options_without_a_language_are_english() -> None:
    report = samples.hung()
    assert text.render(report) == text.render(report, replace(Options(), words=ENGLISH))
