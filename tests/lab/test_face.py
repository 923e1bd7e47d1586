"""What Python calls the emulated CUDA by: ready from the build, or parsed from the tree's declarations, and the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from psmkit.cudaapi import apidef
from psmkit.lab import cuda


@pytest.fixture(params=list(cuda.LIBRARIES))
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def layouts(ffi: Any) -> dict[str, tuple[int, list[tuple[str, int]]]]:
    """Size and fields of each struct that the declarations define."""
    found = {}
    for name in re.findall(r"^(?:typedef )?(struct \w+)\s*\{", apidef.types(cuda._data), re.MULTILINE):
        kind = ffi.typeof(name)
        found[name] = (ffi.sizeof(kind), [(field, at.offset) for field, at in kind.fields])
    return found


def test_what_the_build_made_is_what_the_tree_declares(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cuda._made(library)
    assert made is not None, "`make setup` makes it"
    monkeypatch.setattr(cuda, "_made", lambda _: None)
    parsed = cuda._ffi.__wrapped__(library)
    assert layouts(made) == layouts(parsed) and len(layouts(made)) > 10


def test_what_was_made_of_other_declarations_is_not_used(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apidef, "digest", lambda _: 1)
    assert cuda._made(library) is None


def test_the_parser_of_c_is_not_loaded(library: str) -> None:
    code = f"import sys; from psmkit.lab.cuda import Face; Face({library!r}); print('pycparser' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    )
    assert done.stdout == "False\n", done.stderr


def test_what_a_library_lacks_is_no_attribute(library: str) -> None:
    face = cuda.Face(library, "libc.so.6")
    name = next(iter(cuda.declarations(library))).partition("(")[0].split()[-1].lstrip("*")
    for missing in (name, "cudaNeverHeardOf"):
        with pytest.raises(AttributeError, match=missing):
            getattr(face, missing)
