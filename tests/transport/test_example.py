"""The examples of transports, and what docs/transport_python.md and docs/transport_guide.md show of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from psmkit import conformance
from psmkit.lab.strangers import find
from psmkit.model.programs import tree

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "python_transport.py"
#: A variant that is declared wrong has one check, which runs its own cases.
SOME = ("connect", "sizes", "copy-error")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("split", "4000000 bytes from rank {peer} over CUMEM, all of them right"),
        ("stubborn", "PSM_ERR_MISMATCH: channel 0/0: the mode is CUMEM (2) at rank {rank} and "),
    ],
)
def test_example_runs(name: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--variant", name], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    for rank in range(2):
        assert f"rank {rank}: {words.format(rank=rank, peer=1 - rank)}" in done.stdout


def test_page_shows_the_example_as_it_is() -> None:
    source = EXAMPLE.read_text()
    body = source[source.index("def run(") : source.index("\n\ndef rank_main")].rstrip()
    assert f"```python\n{body}\n```" in (ROOT / "docs" / "transport_python.md").read_text()


@pytest.mark.parametrize("name", ["my_transport.py", "my_transport.c"])
def test_page_shows_the_variants_as_they_are(name: str) -> None:
    page, source = (ROOT / "docs" / "transport_guide.md").read_text(), (ROOT / "examples" / name).read_text()
    section = page[page.index("**In Python**") : page.index("## 3. ")]
    shown = [
        block.split("```")[0] for block in section.split("```" + ("python\n" if name.endswith(".py") else "c\n"))[1:]
    ]
    assert all(part.strip() in source for part in shown[0].split("\n/* ... */\n"))


def test_python_of_the_page_runs_as_it_is_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "transport_guide.md").read_text()
    section = page[page.index("**In Python**") :]
    file = tmp_path / "my_transport.py"
    file.write_text(section.split("```python\n")[1].split("```")[0])
    assert not find(f"{file}:mine").variant.wrong and find(f"{file}:careless").variant.wrong


@pytest.mark.parametrize(("name", "wrong"), [("c-mine", False), ("c-careless", True)])
def test_example_in_c_is_compiled_and_conforms(tmp_path: Path, name: str, wrong: bool) -> None:
    made = tmp_path / "libmytransport.so"
    flags = ["-shared", "-fPIC", "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{tree() / 'include'}"]
    link = [f"-L{tree() / 'lib'}", f"-Wl,-rpath,{tree() / 'lib'}", "-lpsm"]
    subprocess.run(["cc", *flags, ROOT / "examples" / "my_transport.c", "-o", made, *link], check=True, timeout=120)
    done = conformance.run(find(f"{made}:{name}"), only=() if wrong else SOME, deadline=90)
    assert done.clean and done.wrong == wrong, done.results


@pytest.mark.parametrize(("name", "wrong"), [("mine", False), ("careless", True)])
def test_example_in_python_conforms(name: str, wrong: bool) -> None:
    example = ROOT / "examples" / "my_transport.py"
    done = conformance.run(find(f"{example}:{name}"), only=() if wrong else SOME, deadline=90)
    assert done.clean and done.wrong == wrong, done.results
