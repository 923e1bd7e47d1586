"""The sources of hostcuda call each other in one direction: no two of them need each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOSTCUDA = ROOT / "csrc" / "hostcuda"
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
_DEFINITION = re.compile(
    r"^(?!static|return|typedef|extern)\w[\w \t*]*?\b((?:psm_)?(?:hostcuda|hc)_\w+)\([^;{]*?\)\s*\{", re.MULTILINE
)
_NAME = re.compile(r"\b(?:hc|psm_hostcuda)_\w+\b")


def circle(sources: Mapping[str, str]) -> list[str]:
    """Files that call each other in a ring, the first one also last; empty: there is none."""
    texts = {name: _COMMENT.sub(" ", text) for name, text in sources.items()}
    home = {found[1]: name for name, text in texts.items() for found in _DEFINITION.finditer(text)}
    calls = {
        name: {home[word] for word in _NAME.findall(text) if word in home} - {name} for name, text in texts.items()
    }
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def test_no_source_calls_one_that_calls_it() -> None:
    sources = {str(path.relative_to(HOSTCUDA)): path.read_text() for path in HOSTCUDA.rglob("*.c")}
    assert len(sources) > 50
    assert not circle(sources), (
        "let the lower one register what it calls (core/hc_life.h), or move what both need below both"
    )


def test_a_circle_through_three_files_is_found() -> None:
    sources = {
        "a.c": "int hc_a(void)\n{\n    return hc_b();\n}\n",
        "b.c": "int hc_b(void)\n{\n    return hc_c();\n}\n",
        "c.c": "struct hc_x *hc_c(int of,\n          int it)\n{\n    run(hc_a);\n}\n",
    }
    assert set(circle(sources)) == set(sources)
    sources["c.c"] = '/* hc_a() comes later */ int hc_c(void)\n{\n    say("hc_a");\n}\n'
    assert not circle(sources)
