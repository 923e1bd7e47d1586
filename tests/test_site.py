"""The documentation site: every page is in it, its links lead somewhere, and Markdown reads as on the repository's pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import capi
from scripts.docsite import cases, indented, outside_code

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does: a link that leads nowhere fails it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_site_and_can_be_found(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        name = "index" if page.stem == "README" else page.stem
        assert (site / f"{name}.html").exists() and f'"location":"{name}.html"' in index, name


@pytest.mark.slow
def test_every_case_is_told_with_its_answer_and_its_timeline(site: Path) -> None:
    assert len(cases()) >= 12 and cases()[0] == "passsm"
    for name in cases():
        page = (site / "cases" / f"{name}.html").read_text("utf-8")
        assert "psmkit analyze" in re.sub(r"<[^>]*>", "", page)
        if (ROOT / "examples" / "cases" / name / "case.toml").exists():
            assert (site / "cases" / f"{name}-report.html").exists()
    assert len(list((site / "cases").glob("*.svg"))) >= 12


@pytest.mark.slow
def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe)[^>]* src=\"?https?:[^>]*>|<link[^>]*stylesheet[^>]*https?:[^>]*>")
    found = {match for page in site.rglob("*.html") for match in loads.findall(page.read_text("utf-8"))}
    assert found == set()


@pytest.mark.slow
def test_public_names_of_python_and_c_are_in_the_reference(site: Path) -> None:
    transport = (site / "api" / "psmkit.transport.html").read_text("utf-8")
    assert all(f'id="psmkit.transport.{name}"' in transport for name in ("launch", "register_variant", "Memory"))
    assert "psmP2pCanConnect" in (site / "api" / "psm_p2p.html").read_text("utf-8")


def test_the_c_reference_has_every_header_and_every_function() -> None:
    headers = {path.stem for path in capi.HEADERS.glob("*.h")}
    assert headers - set(capi.NAMES) == {"plan_trace"}  # not an interface but code: docs/plan_trace.md
    for name in capi.NAMES:
        declared = re.findall(
            r"^PSM_API [^;]*?\b(psm\w+)\(", (capi.HEADERS / f"{name}.h").read_text("utf-8"), re.MULTILINE
        )
        page = capi.page(name)
        assert [function for function in declared if f"{function}(" not in page] == []


def test_a_comment_becomes_a_paragraph_above_its_declaration() -> None:
    text = "/* Frees *p of psmThing; see `a_b`. */\nPSM_API void psmFree(struct psmThing *p);\n"
    assert list(capi.chunks(text)) == [
        ("/* Frees *p of psmThing; see `a_b`. */", "PSM_API void psmFree(struct psmThing *p);")
    ]
    assert capi.heading("PSM_API void psmFree(struct psmThing *p);") == "psmFree"
    assert (
        capi.prose("/* Frees *p of psmThing; see `a_b`, 2 * 3. */") == "Frees `*p` of `psmThing`; see `a_b`, 2 \\* 3."
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("text\n- a\n  more\n", "text\n\n- a\n    more\n"),
        ("- a\n  - b\n    c\n", "- a\n    - b\n        c\n"),
        ("- a\n\n  | x |\n  |---|\n\nend\n", "- a\n\n    | x |\n    |---|\n\nend\n"),
        ("1. a\n\n       code\n", "1. a\n\n        code\n"),
        ("```\n- no list\n  at all\n```\n", "```\n- no list\n  at all\n```\n"),
        ("| `a\\|b` | c |\n", "| `a|b` | c |\n"),
        ("of\n2026. It\n", "of\n2026. It\n"),
    ],
    ids=["after text", "nested", "table inside", "code inside", "in a block", "bar", "a year"],
)
def test_lists_and_tables_read_as_on_the_repositorys_pages(before: str, after: str) -> None:
    assert indented(before) == after


def test_blocks_of_code_stay_as_they_are() -> None:
    assert outside_code("a\n```sh\na\n```\na\n", lambda part: part.replace("a", "b")) == "b\n```sh\na\n```\nb\n"
