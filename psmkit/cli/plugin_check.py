"""``psmkit plugin check``: what a plugin library holds, which releases load it, and what is wrong with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command
from psmkit.cli.output import show, show_page, width
from psmkit.cli.settings_option import settings_option
from psmkit.model.wording import counted, plural

if TYPE_CHECKING:
    from psmkit.plugins import Check, Found, Use
    from psmkit.plugins.lookup import Release
    from psmkit.report.layout import Page

__all__ = ["command"]

SCHEMA = "psmkit.plugin-check/1"
_SETTINGS = ("NCCL_NET", *(f"NCCL_{kind}_PLUGIN" for kind in ("NET", "TUNER", "PROFILER", "ENV", "GIN", "RMA")))


@click.command(
    "check",
    cls=Command,
    examples=(
        "psmkit plugin check libnccl-net-mine.so",
        "psmkit plugin check libnccl-net-mine.so --nccl 2.26.6 --env NCCL_NET_PLUGIN=mine",
    ),
)
@click.argument("lib", metavar="LIB", type=click.Path(path_type=Path))
@click.option(
    "--nccl",
    metavar="RELEASE|FILE",
    multiple=True,
    help="Show what this release of NCCL, or the libnccl.so in FILE, loads from LIB. Repeatable.",
)
@click.option(
    "--rccl", metavar="RELEASE", multiple=True, help="Show what this release of RCCL loads from LIB. Repeatable."
)
@settings_option("Assume this setting, such as NCCL_NET_PLUGIN=psm or NCCL_NET=PSM.", only=_SETTINGS)
@click.option("--no-load", is_flag=True, help="Only read the file: none of its code runs.")
@click.option(
    "--preload",
    metavar="LIB",
    multiple=True,
    help="Load this library first, such as libcudart.so.12, as the program would. Repeatable.",
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(
    lib: Path,
    nccl: tuple[str, ...],
    rccl: tuple[str, ...],
    settings: dict[str, str],
    no_load: bool,
    preload: tuple[str, ...],
    form: str,
) -> int:
    """Check a plugin library: its tables and their slots, its dependencies, and the table that each release of NCCL and RCCL takes.

    The command reads LIB as a file; then a separate process loads it, as NCCL would. It assumes that LIB's folder is on the loader's path
    and holds no other plugin.

    Exit status: 0 nothing is wrong; 1 there are findings, also if LIB is no library; 2 there is no file LIB, or it
    cannot be read.
    """
    from psmkit import plugins

    asked = [_release(text) for text in nccl] + [plugins.release("RCCL", text) for text in rccl]
    result = plugins.check(lib, asked, settings, load=not no_load, preload=preload)
    if form == "json":
        show(json.dumps(_plain(result, asked, settings), indent=2) + "\n")
    else:
        from psmkit.report.layout import Page

        page = Page(width(sys.stdout))
        _head(page, result, asked)
        _tables(page, result)
        _findings(page, result)
        _uses(page, result, asked, settings)
        show_page(page)
    return 0 if result.clean else 1


def _release(text: str) -> Release:
    """A release of NCCL, or that of a library."""
    from psmkit import plugins
    from psmkit.plugins.nccl_names import release_of

    path = Path(text)
    return release_of("NCCL", path) if "/" in text or path.is_file() else plugins.release("NCCL", text)


def _head(page: Page, result: Check, asked: list[Release]) -> None:
    from psmkit.report.layout import Span

    counts = [(s, sum(f.severity.value == s for f in result.findings)) for s in ("error", "warning")]
    wrong = ", ".join(counted(n, s) for s, n in counts if n)
    style = next((s for s, n in counts if n), "healthy")
    right = "nothing wrong in the file" if any(one.by_init for one in result.tables) else "nothing wrong"
    page.add(Span(wrong or right, style), Span(f": {result.path.name}", "heading"))
    if result.machine:
        loaded = {
            True: "a process on this machine loaded it",
            False: "it could not be loaded",
            None: "it was not loaded",
        }
        needs = f"needs {', '.join(result.needed)}" if result.needed else "needs no library"
        page.wrap(f"{result.machine}; {needs}; {loaded[result.loaded]}")
    if not result.loadable:
        page.wrap("no release can load it")
    elif not asked:
        ranges = list(_ranges(use.release for use in result.uses if use.taken and any(use.settings.values())))
        how = "would be loaded, without the load error, by" if result.loaded is False else "loaded by"
        page.wrap(f"{how} {', '.join(ranges) or 'no release that is known'}")


def _ranges(releases: Iterable[Release]) -> Iterator[str]:
    """``NCCL 2.8.3 - 2.32.3`` of releases that follow one another."""
    from psmkit.plugins import all_releases

    order = [str(one) for one in all_releases()]
    places = sorted({order.index(str(one)) for one in releases if str(one) in order})
    for _, run in groupby(enumerate(places), lambda pair: (pair[1] - pair[0], order[pair[1]].partition(" ")[0])):
        members = [order[place] for _, place in run]
        last = members[-1].partition(" ")[2]
        yield members[0] if len(members) == 1 else f"{members[0]} - {last}"


def _rows(page: Page, head: list[str], rows: list[list[str]], left: tuple[int, ...] = ()) -> None:
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    lines = fit(head, rows, page.width - 2, left=left)
    page.add("  ", Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add("  ", line)


def _state(found: Found) -> str:
    if not found.sound:
        return "not a table"
    if not found.known:
        return "known by name only"
    if found.by_init:
        return "filled by init: only a run can tell"
    n = len(found.empty)
    parts = [f"{counted(n, 'required slot')} {plural(n, 'is', 'are')} NULL"] if n else []
    if found.lacking:
        parts.append(f"without {', '.join(name for name, _ in found.lacking)}")
    return "; ".join(parts) or "complete"


def _tables(page: Page, result: Check) -> None:
    if not result.tables:
        return
    page.blank()
    page.add("tables")
    rows = []
    for one in result.tables:
        table = one.table
        since = f"{table.first} - {table.last}" if table.first else "-"
        rows.append([table.symbol, since, "-" if one.name is None else one.name, _state(one)])
    _rows(page, ["table", "looked for by NCCL", "name", "slots"], rows)


def _findings(page: Page, result: Check) -> None:
    from psmkit.report.layout import Span

    for finding in result.findings:
        page.blank()
        word = "note" if finding.severity.value == "info" else finding.severity.value
        page.wrap(finding.title, "heading", hang="  ", lead=Span(f"{word} {finding.code} ", finding.severity.value))
        page.wrap(finding.explanation, indent="  ")
        if finding.severity.value != "info":
            page.wrap(f"next: {finding.next_step}", indent="  ")


def _way(use: Use, kind: str) -> str:
    ways = use.settings.get(kind, ())
    if not ways:
        return "it has another name"
    # of several, the one that another kind needs anyway
    others = [first for other in use.taken if other != kind for first in use.settings.get(other, ())[:1]]
    name, value = next((way for way in ways if way in others), ways[0])
    return f"{name} not set" if value is None else f"{name}={value}"


def _uses(page: Page, result: Check, asked: list[Release], settings: Mapping[str, str]) -> None:
    if asked:
        for use in result.uses:
            _asked(page, result, use, settings)
        return
    taken = [use for use in result.uses if use.taken]
    if not taken:
        return
    page.blank()
    page.add("releases")
    rows = []
    key = _same
    for _, group in groupby(taken, key):
        members = list(group)
        use = members[0]
        first, last = use.release, members[-1].release
        name = str(first) if len(members) == 1 else f"{first} - {last.name}"
        # CollNet comes with net.
        kinds = [kind for kind in use.taken if kind != "collnet"]
        ways = list(dict.fromkeys(_way(use, kind) for kind in kinds))
        takes = ", ".join(f"{kind} v{table.version}" for kind, table in use.taken.items())
        rows.append([name, takes, ", ".join(ways)])
    _rows(page, ["releases", "take", "when"], rows)


def _same(use: Use) -> tuple[Any, ...]:
    taken = tuple((kind, table.version) for kind, table in use.taken.items())
    return (use.release.vendor, taken, tuple(_way(use, kind) for kind in use.taken if kind != "collnet"))


def _kinds(result: Check, use: Use) -> list[str]:
    from psmkit.plugins.lookup import LIBRARY_KINDS

    kinds = [kind for kind in use.taken if kind != "collnet"]
    by_name = [kind for kind in LIBRARY_KINDS if f"-{kind}" in result.path.name]
    has = [kind for kind in LIBRARY_KINDS if any(one.sound and one.table.kind == kind for one in result.tables)]
    return kinds or has or by_name[:1] or ["net"]


def _lookups(
    result: Check, use: Use, settings: Mapping[str, str]
) -> Iterator[tuple[str, str, str | None, list[str], str, bool]]:
    """Kind, variable, value, the names that are opened, what else is to say, whether this library is opened."""
    from psmkit.plugins import lookup

    path = str(result.path)
    for kind in _kinds(result, use):
        name = lookup.variable(kind)
        values: list[str | None] = [settings[name]] if name in settings else [None]
        if not settings:
            own = [value for variable, value in use.settings.get(kind, ()) if variable == name and value is not None]
            values += [*own, "STATIC_PLUGIN", "none", ""]
            if own and kind in ("net", "gin", "rma"):
                values.insert(2, f"other,{own[0]}")
        for value in values:
            opened = lookup.opening(use.release, kind, value, settings.get("NCCL_NET_PLUGIN"))
            if value is not None and not settings and not lookup.has_variable(use.release, kind):
                continue
            names = [name for plugin in opened.plugins for name in lookup.names(plugin)]
            yield kind, name, value, names, opened.why, lookup.choose(opened, path) is not None


def _asked(page: Page, result: Check, use: Use, settings: Mapping[str, str]) -> None:
    page.blank()
    takes = ", ".join(f"{kind} v{table.version}" for kind, table in use.taken.items())
    page.add(f"{use.release} takes {takes or 'nothing'}")
    if use.release.note:
        page.wrap(use.release.note, indent="  ")
    if use.release.symbols is not None:
        page.wrap(f"by the names in it: {', '.join(sorted(use.release.symbols)) or 'none'}", indent="  ")
    rows = []
    for _, name, value, names, why, hit in _lookups(result, use, settings):
        setting = f"{name} not set" if value is None else f"{name}={value or chr(34) * 2}"
        rows.append([setting, ", ".join(names) or why, "this library" if hit else "-"])
    _rows(page, ["setting", "opens the first there is of", "finds"], rows)


def _plain(result: Check, asked: list[Release], settings: Mapping[str, str]) -> dict[str, Any]:
    from psmkit.report.data import characters, finding_dict

    return {
        "schema": SCHEMA,
        "library": characters(str(result.path)),
        "machine": result.machine or None,
        "needed": [characters(name) for name in result.needed],
        "loaded": result.loaded,
        "clean": result.clean,
        "tables": [
            {
                "kind": one.table.kind,
                "version": one.table.version,
                "symbol": characters(one.table.symbol),
                "name": None if one.name is None else characters(one.name),
                "first_release": one.table.first,
                "last_release": one.table.last,
                "sound": one.sound,
                "layout_known": one.known,
                "null": list(one.empty),
                "null_allowed": dict(one.lacking),
                "filled_by_init": one.by_init,
            }
            for one in result.tables
        ],
        "unresolved_symbols": [characters(name) for name in result.unresolved],
        "missing_libraries": [characters(name) for name in result.missing],
        "releases": [_use_plain(result, use, settings, bool(asked)) for use in result.uses],
        "findings": [finding_dict(finding) for finding in result.findings],
    }


def _use_plain(result: Check, use: Use, settings: Mapping[str, str], asked: bool) -> dict[str, Any]:
    from psmkit.report.data import characters

    data: dict[str, Any] = {
        "vendor": use.release.vendor,
        "release": use.release.name,
        "read_from": characters(use.release.library) or None,
        "judged_as": use.release.facts,
        "takes": {kind: table.version for kind, table in use.taken.items()},
        "settings": {
            kind: [{"variable": name, "value": None if value is None else characters(value)} for name, value in ways]
            for kind, ways in use.settings.items()
        },
    }
    if asked:
        data["lookup"] = [
            {
                "kind": kind,
                "variable": name,
                "value": None if value is None else characters(value),
                "opens": [characters(one) for one in names],
                "note": why or None,
                "finds": hit,
            }
            for kind, name, value, names, why, hit in _lookups(result, use, settings)
        ]
    return data
