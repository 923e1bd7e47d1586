"""``--lang`` and the locale, in real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANG = ROOT / "tests" / "data" / "logs" / "fault_a2_n4_sigstop_rank1_in_setup"
OPEN = ROOT / "tests" / "data" / "logs" / "passsm-8gpu.log"
CHINESE = re.compile("[\u4e00-\u9fff]")
HUNG = "\u5361\u6b7b (hung)"
#: Commands that print words of a report.
SPEAKING = (
    ("analyze", HANG),
    ("analyze", HANG, "--format", "markdown"),
    ("next", OPEN),
    ("explain", "PSM103"),
    ("codes",),
    ("watch", HANG, "--for", "0", "--settle", "0", "--no-inspect"),
)


def psmkit(*arguments: object, encoding: str = "utf-8", **variables: str) -> subprocess.CompletedProcess[str]:
    """A process with no variables of a locale but these."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHONUTF8", "PYTHONIOENCODING"))}
    return subprocess.run(
        [sys.executable, "-m", "psmkit", *map(str, arguments)],
        capture_output=True,
        env={**clean, "NO_COLOR": "1", **variables},
        timeout=120,
        check=False,
        encoding=encoding,
    )


@pytest.mark.parametrize("arguments", SPEAKING, ids=lambda a: " ".join(str(w) for w in a if not isinstance(w, Path)))
def test_a_command_speaks_chinese_when_asked_or_by_locale(arguments: tuple[object, ...]) -> None:
    asked = psmkit(*arguments, "--lang", "zh", PYTHONUTF8="1")
    by_locale = psmkit(*arguments, LANG="zh_CN.UTF-8", PYTHONUTF8="1")
    english = psmkit(*arguments, "--lang", "en", LANG="zh_CN.UTF-8", PYTHONUTF8="1")
    for done in (asked, by_locale, english):
        assert done.returncode in (0, 1) and not done.stderr, done.stderr
    assert CHINESE.search(asked.stdout) and CHINESE.search(by_locale.stdout)
    assert not CHINESE.search(english.stdout)
    if arguments[0] != "watch":  # it prints the time
        assert asked.stdout == by_locale.stdout
        assert english.stdout == psmkit(*arguments, PYTHONUTF8="1").stdout


def test_the_page_is_announced_in_chinese(tmp_path: Path) -> None:
    done = psmkit("report", HANG, "-o", tmp_path / "page.html", "--lang", "zh", PYTHONUTF8="1")
    assert done.returncode == 0 and done.stdout.startswith(HUNG), done.stderr


def test_the_verdict_of_the_first_line_is_chinese_with_its_english_name() -> None:
    first = psmkit("analyze", HANG, LANG="zh_CN.UTF-8", PYTHONUTF8="1").stdout.splitlines()[0]
    assert first.startswith(HUNG) and "rank 1 (vm:20406)" in first and "Setup" in first


@pytest.mark.parametrize("form", ["json", "sarif", "junit", "github"])
def test_formats_for_programs_do_not_depend_on_the_language(form: str) -> None:
    english, chinese = (
        psmkit("analyze", OPEN, "--format", form, "--lang", lang, PYTHONUTF8="1") for lang in ("en", "zh")
    )
    assert english.stdout == chinese.stdout and english.stdout
    assert not chinese.stderr


def test_json_of_codes_and_explanations_is_english() -> None:
    for arguments in (("codes",), ("explain", "PSM103")):
        done = psmkit(*arguments, "--format", "json", "--lang", "zh", PYTHONUTF8="1")
        assert json.loads(done.stdout)[0]["title"] and not CHINESE.search(done.stdout)


def ascii_only(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return psmkit(*arguments, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C", encoding="ascii", **variables)


@pytest.mark.parametrize(
    "arguments", SPEAKING[:5], ids=lambda a: " ".join(str(w) for w in a if not isinstance(w, Path))
)
def test_an_output_without_chinese_gets_english_and_a_note(arguments: tuple[object, ...]) -> None:
    done = ascii_only(*arguments, "--lang", "zh")
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr
    assert "--lang zh" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not re.search(r"\\u[4-9]", done.stdout)  # Chinese, escaped
    assert done.stdout == ascii_only(*arguments, "--lang", "en").stdout


def test_a_file_gets_chinese_whatever_the_output_can_show(tmp_path: Path) -> None:
    done = ascii_only("analyze", HANG, "--lang", "zh", "--output", tmp_path / "report.txt")
    assert not done.stderr and (tmp_path / "report.txt").read_text("utf-8").startswith(HUNG)
    ascii_only("analyze", HANG, "--lang", "zh", "--also", "markdown", tmp_path / "report.md", "--format", "json")
    assert HUNG in (tmp_path / "report.md").read_text("utf-8")


def test_an_encoding_of_china_shows_chinese() -> None:
    done = psmkit("analyze", HANG, LANG="zh_CN.GB18030", PYTHONUTF8="0", PYTHONIOENCODING="gb18030", encoding="gb18030")
    assert done.stdout.startswith(HUNG) and not done.stderr


def test_a_language_that_is_not_known_is_refused() -> None:
    done = psmkit("analyze", HANG, "--lang", "fr")
    assert done.returncode == 2 and "fr" in done.stderr


def test_only_chinese_reads_the_file_of_translations() -> None:
    code = (
        "import sys\nfrom psmkit.cli import main\nstatus = main()\n"
        "import psmkit.report.language as language\nprint('READ', language.words_of.cache_info().currsize, file=sys.stderr)\n"
    )
    for lang, expected in (("en", "READ 0"), ("zh", "READ 1")):
        done = subprocess.run(
            [sys.executable, "-c", code, "analyze", str(OPEN), "--lang", lang],
            capture_output=True, encoding="utf-8", env={**os.environ, "PYTHONUTF8": "1"}, timeout=120, check=False,
        )  # fmt: skip
        assert expected in done.stderr, done.stderr
