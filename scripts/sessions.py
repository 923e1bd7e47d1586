"""Run the commands that pages show, and update their output and their pictures.

Usage: python scripts/sessions.py [--check] [PAGE...]

A ``console`` block holds commands, each after ``$ ``, and what they print, 100 columns wide. The commands of a page run one after the other in
one folder, which has the files of the repository in it. A comment right above a block says what is shown of it::

    <!-- run: CUT -->           a part of the output (``CUTS``); ``...`` stands for omitted lines
    <!-- run: CUT, words -->    the same, but numbers differ from run to run, so only words are compared
    <!-- not run: REASON -->    these commands cannot run here

A block of any kind under ``<!-- file: NAME -->`` is the file NAME in that folder. A comment ``<!-- picture: COMMAND -->`` stands above a picture that
the command prints as SVG; ``timeline LOGS`` draws that of logs. The speed in README.md is that of
``benchmarks/results.md``. ``--check`` changes nothing, and fails if a page is not current.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from psmkit.analysis.story import story
from psmkit.report import svg

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("cases/*/README.md")))
SPEED = re.compile(r"1,000 MB in [\d.]+ s on one core and needs \d+ MiB")

_BLOCK = re.compile(r"(?:<!-- (run|not run): ([^\n]*) -->\n)?```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n", re.MULTILINE)
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"<!-- picture: ([^\n]*) -->\n!\[([^\]]*)\]\(([^)]+)\)")
# What differs from run to run: numbers with their units, addresses, names of records.
_VARIES = re.compile(r"\b(0x[0-9a-f]+|[0-9a-f]{16}|\d[\d,]*(\.\d+)?( (ns|us|ms|s|min)\b)?)")


def everything(lines: list[str]) -> list[str]:
    """All of it."""
    return lines


def verdict(lines: list[str]) -> list[str]:
    """Verdict, who, proof, what to do."""
    return [*lines[: lines.index("")], "..."]


def cause(lines: list[str]) -> list[str]:
    """The verdict, and the first finding."""
    first = next(n for n, line in enumerate(lines) if line.startswith("Findings:")) + 2
    return [*verdict(lines), *lines[first : lines.index("", first)], "..."]


def ranks(lines: list[str]) -> list[str]:
    """The verdict, and the ranks."""
    return [*lines[: next(n for n, line in enumerate(lines) if line.startswith("Findings:")) - 1], "..."]


def lab(lines: list[str]) -> list[str]:
    """The headline of a run of the lab, and the first paragraph of its analysis."""
    first = next(n for n, line in enumerate(lines) if line.startswith("analysis: "))
    end = next(n for n in range(first, len(lines)) if lines[n].startswith((" ", "evidence: ")))
    return [lines[0], "...", *lines[first:end], "..."]


def first(count: int) -> Callable[[list[str]], list[str]]:
    """The first lines: ``run: first 8``."""
    return lambda lines: [*lines[:count], "..."] if count < len(lines) else lines


CUTS: dict[str, Callable[[list[str]], list[str]]] = {f.__name__: f for f in (everything, verdict, cause, ranks, lab)}


def cutter(name: str) -> Callable[[list[str]], list[str]]:
    """What a comment calls a cut."""
    return first(int(name.removeprefix("first "))) if name.startswith("first ") else CUTS[name]


def output(command: str, folder: Path, cut: str = "everything") -> str:
    """What a command prints in ``folder``, cut, without blanks at line ends."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", "PATH": programs},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    # 3: the data of a run is right, and its analysis is not content.
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"{command}: exit status {done.returncode}\n{done.stderr}")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "".join(f"{line}\n" for line in (cutter(cut)(lines) if lines else []))


def words(text: str) -> str:
    """The text without what differs from run to run: numbers, and where a line breaks."""
    return " ".join(_VARIES.sub("N", text).split())


def blocks(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    """Each block of a page: ``run`` or ``not run``, the rest of its comment, its commands, and the block as it is."""
    for block in _BLOCK.finditer(text):
        yield block[1] or "run", block[2] or "", _COMMAND.findall(block[3]), block[3]


def current(page: Path) -> dict[Path, str]:
    """The page and its pictures as they should be."""
    text, found = page.read_text("utf-8"), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and path.name not in ("build", "out"):
                (folder / path.name).symlink_to(path)

        def renewed(block: re.Match[str]) -> str:
            commands = _COMMAND.findall(block[3])
            if block[1] == "not run" or not commands:
                return block[0]
            cut, _, compared = (block[2] or "everything").partition(", ")
            shown = "".join(f"$ {c}\n{output(c, folder, cut)}" for c in commands)
            if compared == "words" and words(shown) == words(block[3]):
                shown = block[3]
            start, end = block.start(3) - block.start(), block.end(3) - block.start()
            return block[0][:start] + shown + block[0][end:]

        for file, content in _FILE.findall(text):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(content, "utf-8")
        text = _BLOCK.sub(renewed, text)
        for command, title, picture in _PICTURE.findall(text):
            made = (
                timeline(folder / command.removeprefix("timeline "), title)
                if command.startswith("timeline ")
                else output(command, folder)
            )
            found[page.parent / picture] = made
    return {page: SPEED.sub(speed(), text) if page == README else text, **found}


def timeline(logs: Path, title: str) -> str:
    """The timeline of logs as a picture."""
    return svg.draw(story([str(logs)]).timeline, title)


def speed() -> str:
    """Seconds and memory for a log of 1,000 MB, from the last benchmark."""
    rows = (ROOT / "benchmarks" / "results.md").read_text("utf-8").splitlines()
    titles = [cell.strip() for cell in next(row for row in rows if row.startswith("| what |")).split("|")]
    cells = [cell.strip() for cell in next(row for row in rows if row.startswith("| psmkit analyze FILE |")).split("|")]
    row = dict(zip(titles, cells, strict=True))
    return f"1,000 MB in {row['1000 MB s']} s on one core and needs {row['RssAnon 1000 MB MiB']} MiB"


def stale(page: Path) -> dict[Path, str]:
    """What of a page and its pictures is not current, as it should be."""
    files = current(page)
    return {path: text for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text}


def main(args: list[str]) -> int:
    """Write the pages, or check them."""
    status = 0
    for page in [Path(name).resolve() for name in args if name != "--check"] or PAGES:
        for path, text in stale(page).items():
            if "--check" in args:
                print(f"not current, run python scripts/sessions.py: {path.relative_to(ROOT)}", file=sys.stderr)
                status = 1
            else:
                path.write_text(text, "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
