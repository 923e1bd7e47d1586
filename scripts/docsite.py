"""The hooks of mkdocs.yml: pages from outside docs/, links that leave it, and Markdown as GitHub reads it.

The pages are written for the repository. A link between two pages of the site stays a link between them; one to any other file of the
repository leads to that file under the project's URL in pyproject.toml. A link to a file that does not exist is a warning, and with
``mkdocs build --strict`` an error.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import posixpath
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from psmkit.analysis.story import story
from psmkit.report import html, svg
from psmkit.report.options import Options

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from examples.cases.story import tell  # noqa: E402
from scripts import capi  # noqa: E402

sys.path.pop(0)

SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]

# Pages outside docs/: where they are in the repository, and the folder of the site that holds them.
ELSEWHERE = {
    "ARCHITECTURE.md": "",
    "CHANGELOG.md": "",
    "CONTRIBUTING.md": "",
    "benchmarks/*.md": "benchmarks",
    "changelog/README.md": "changelog",
    "examples/cases/README.md": "cases",
}
CASES = ROOT / "examples" / "cases"

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *(```+|~~~+)")
_ITEM = re.compile(r"^( *)([-*+]|\d+[.)])( +)(?=\S)")

log = logging.getLogger("mkdocs.hooks.docsite")


def pages() -> dict[str, str]:
    """The pages outside docs/: the path of each in the repository, and in the site."""
    found = {}
    for pattern, folder in ELSEWHERE.items():
        for path in sorted(ROOT.glob(pattern)):
            found[path.relative_to(ROOT).as_posix()] = posixpath.join(folder, path.name)
    return found | {f"examples/cases/{name}/README.md": f"cases/{name}.md" for name in cases()}


def cases() -> list[str]:
    """The case studies, in the order of the page that lists them."""
    return re.findall(r"^\| \[[^]]*\]\(([^)/]+)/\)", (CASES / "README.md").read_text("utf-8"), re.MULTILINE)


def on_config(config: Any) -> Any:
    """Put each case study into the navigation."""
    (section,) = (entry["Case studies"] for entry in config.nav if "Case studies" in entry)
    section += [f"cases/{name}.md" for name in cases()]
    (section,) = (entry["Reference"] for entry in config.nav if "Reference" in entry)
    section.append({"Python": ["api/psmkit.md", *(f"api/{module}.md" for module in MODULES)]})
    section.append({"C": [f"api/{name}.md" for name in capi.NAMES]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/, the reference, and what is drawn of cases."""
    for path, uri in pages().items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for uri, text in reference().items():
        files.append(File.generated(config, uri, content=text))
    for name in cases():
        for kind, content in drawn(name).items():
            files.append(File.generated(config, f"cases/{name}{kind}", content=content))
    return files


# The Python reference: a page for each module, and the names at the top that are loaded late.
MODULES = ("psmkit.transport", "psmkit.proxy", "psmkit.plan", "psmkit.testing", "psmkit.model", "psmkit.tune")
TOP = ("psmkit.analysis.analyze", "psmkit.report.render", "psmkit.query.load", "psmkit.query.logs.Logs")


def reference() -> dict[str, str]:
    """The pages of the Python and of the C reference."""
    made = {f"api/{name}.md": capi.page(name) for name in capi.NAMES}
    analysis = "# psmkit\n\n" + "".join(f"::: {name}\n    options: {{heading_level: 2}}\n\n" for name in TOP)
    made["api/psmkit.md"] = analysis
    for module in MODULES:
        names = importlib.import_module(module).__all__
        blocks = "".join(f"::: {module}.{name}\n    options: {{heading_level: 2}}\n\n" for name in names)
        made[f"api/{module}.md"] = f"# {module}\n\n{blocks}"
    return made


@functools.cache
def drawn(name: str) -> dict[str, str]:
    """The report page of a case and its timeline as a picture, by the ends of their names; nothing if it has no log of its own."""
    folder = CASES / name
    if not (folder / "case.toml").exists():
        return {}
    title = (folder / "README.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "job.log"
        log.write_text(tell(folder), "utf-8")
        told = story([str(log)])
    made = {"-report.html": html.render(told, Options())}
    if len(told.timeline.spans):
        made[".svg"] = svg.draw(told.timeline, title)
    return made


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """The text of a page for the site."""
    here = page.file.abs_src_path
    if here is None:
        return markdown
    folder = Path(here).parent.relative_to(ROOT).as_posix()
    markdown = indented(_links(markdown, folder, page.file.src_uri))
    name = page.file.name
    if page.file.src_uri == f"cases/{name}.md" and (made := drawn(name) if name in cases() else {}):
        markdown += "\n## The timeline\n\n"
        if ".svg" in made:
            markdown += f"![What each rank did]({name}.svg)\n\n"
        markdown += f"[The page that `psmkit report job.log` writes]({name}-report.html) has each line, and zooms.\n"
    return markdown


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """The docstrings' ``:func:`` and the like are for readers of the code."""
    return (
        re.sub(r":(func|class|meth|mod|attr|data|exc):(?=<code>)", "", html)
        if page.file.src_uri.startswith("api/")
        else html
    )


def _links(text: str, folder: str, uri: str) -> str:
    """The text with the links of a page, which lies in ``folder`` of the repository and at ``uri`` in the site."""
    # The front page of the repository has its counterpart in that of the site.
    known = (
        pages()
        | {"README.md": "README.md"}
        | {f"docs/{name}": name for name in os.listdir(ROOT / "docs") if name.endswith(".md")}
    )

    def leads(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        if re.match(r"\w+:|#", target):
            return match[0]
        name, hash_, anchor = target.partition("#")
        if words.endswith(".md") and words == target.partition("#")[0]:
            words = title(ROOT / folder / name) or words
        path = posixpath.normpath(posixpath.join(folder, name))
        if path + "/README.md" in known:
            path += "/README.md"
        if path in known:
            name = posixpath.relpath(known[path], posixpath.dirname(uri) or ".")
        elif not (ROOT / path).exists():
            log.warning("%s: no such file: %s", uri, target)
        elif path.startswith("docs/"):
            name = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(uri) or ".")
        else:
            kind = "raw" if picture else "tree" if (ROOT / path).is_dir() else "blob"
            name = f"{SOURCE}/{kind}/main/{path}"
        return f"{picture}[{words}]({name}{hash_}{anchor})"

    return outside_code(text, lambda part: _LINK.sub(leads, part))


@functools.cache
def title(page: Path) -> str:
    """What a page calls itself, before a colon: in the site no page is called ``page.md``."""
    first = page.read_text("utf-8").partition("\n")[0] if page.exists() else ""
    return first.removeprefix("# ").partition(":")[0].replace("`", "") if first.startswith("# ") else ""


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with ``change`` applied to what stands between its fenced blocks."""
    parts = re.split(r"(^ *(`{3,}|~{3,})[^\n]*\n.*?^ *\2 *$)", text, flags=re.MULTILINE | re.DOTALL)
    # A split by two groups yields text, block, fence, text, and so on.
    return "".join(part if at % 3 == 1 else change(part) for at, part in enumerate(parts) if at % 3 != 2)


def indented(text: str) -> str:
    """Lists as Python-Markdown reads them: four columns for each level, and an empty line before the first item.

    For GitHub the text of an item sets the column. A bar in code in a table is ``\\|`` there and here a plain one.
    """
    out: list[str] = []
    levels: list[int] = []  # the columns in which the texts of the open items begin
    fence, blank = "", True
    for line in text.splitlines():
        width = len(line) - len(line.lstrip(" "))
        if not line.strip():
            out.append("")
            blank = True
            continue
        item = None if fence else _ITEM.match(line)
        inside = bool(levels)
        while not fence and levels and width < levels[-1] and (item or blank):
            levels.pop()
        depth = levels[-1] if levels else 0
        if item and width - depth < 4 and (inside or blank or item[2] in "-*+" or item[2][:-1] == "1"):
            if not inside and not blank:
                out.append("")
            out.append("    " * len(levels) + line[width:])
            levels.append(item.end())
        else:
            found = _FENCE.match(line)
            if found and not fence:
                fence = found[1]
            elif found and found[1].startswith(fence):
                fence = ""
            elif not fence and line.lstrip().startswith("|"):
                line = re.sub(r"`[^`]*`", lambda m: m[0].replace("\\|", "|"), line)
            out.append("    " * len(levels) + line[min(depth, width) :])
        blank = False
    return "\n".join(out) + "\n"
