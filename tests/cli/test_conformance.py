"""``psmkit conformance``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import strangers as written

FILE = Path(written.__file__)


def test_command_reports_and_keeps_the_evidence(psmkit_cli: Any, tmp_path: Path) -> None:
    done = psmkit_cli("conformance", f"{FILE}:leaks", "--only", "connect", "--out", str(tmp_path / "kept"))
    assert done.status == 1 and "1 failed" in done.out
    assert "connect: leak:" in done.out and "psmkit lab report" in done.out
    assert (tmp_path / "kept" / "connect" / "result.json").exists()
    done = psmkit_cli("conformance", "split", "--only", "connect", "--format", "json")
    told = json.loads(done.out)
    assert done.status == 0 and told["clean"] and told["results"][0]["outcome"] == "passed"
    done = psmkit_cli("conformance", "--list")
    assert done.status == 0 and "death-copy" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing.py:x",), "no such file"),
        (("nobody",), "unknown variant 'nobody'"),
        (("split", "--only", "nothing"), "expected one of connect"),
        (("no-free", "--only", "sizes"), "no-free is declared wrong, its only check is as-declared"),
        (("net/split",), "for variants of the p2p transport"),
        ((), "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_status_2(psmkit_cli: Any, words: tuple[str, ...], said: str) -> None:
    done = psmkit_cli("conformance", *words)
    assert done.status == 2 and said in done.err and len(done.err.splitlines()) == 1


def test_several_checks_that_fail_for_one_reason_are_one_failure(psmkit_cli: Any) -> None:
    done = psmkit_cli("conformance", f"{FILE}:refuses_every_setup", "--only", "connect", "--only", "order")
    assert done.status == 1 and done.out.count("no room for it") < 4
    assert "2 checks fail for the same reason" in done.out and "  connect, order" in done.out
    assert done.out.count("next: look at strangers.py:") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\n\nraise OSError('not here')\n", "OSError: not here; correct mine.py:3"),
        ("from psmkit import transport\n\ntransport.register_variant('', 'x')\n", "; correct mine.py:3"),
        ("x = 1\ndef broken(:\n", "SyntaxError: invalid syntax; correct mine.py:2"),
        ("import no_such_module\n", "No module named 'no_such_module'; correct mine.py:1"),
    ],
)
def test_error_of_the_variant_file_names_its_line(psmkit_cli: Any, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    done = psmkit_cli("conformance", f"{tmp_path / 'mine.py'}:x")
    assert done.status == 2 and said in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize("where", ["junk.log", "no_such_module", "psmkit.no_such_module"])
def test_what_is_no_variant_gets_the_forms_of_one(
    psmkit_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk.log").write_text("a log\n")
    done = psmkit_cli("conformance", f"{where}:x")
    assert done.status == 2 and "expected FILE.py:NAME, MODULE:NAME or libNAME.so[:NAME]" in done.err


def test_lab_runs_the_variant_and_says_whether_it_is_as_declared(psmkit_cli: Any, tmp_path: Path) -> None:
    example = FILE.parents[2] / "examples" / "my_transport.py"
    done = psmkit_cli("lab", "run", "--variant", f"{example}:careless", "--deadline", "90", "--out", tmp_path / "run")
    assert done.status == 1 and "variant careless: as declared for these cases: leaking PSM505" in done.out
    again = psmkit_cli("lab", "report", tmp_path / "run")
    assert again.status == 1 and "variant careless: as declared" in again.out
    done = psmkit_cli("lab", "run", "--variant", f"{example}:nobody", "--out", tmp_path / "other")
    assert done.status == 2 and "no variant 'nobody': it registers mine, careless" in done.err
