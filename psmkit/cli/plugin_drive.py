"""``psmkit plugin drive``: calls a plugin as NCCL does, without NCCL."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command
from psmkit.cli.output import progress_line, show, show_page, width
from psmkit.cli.settings_option import settings_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psmkit.plugins.drive import Drive, Result
    from psmkit.plugins.drive_checks import Check
    from psmkit.report.layout import Page

__all__ = ["command"]

SCHEMA = "psmkit.plugin-drive/1"


def _versions(_ctx: click.Context, _param: click.Parameter, value: str | None) -> list[int] | str | None:
    if value is None or value == "all":
        return value
    from psmkit.plugins.abi import spoken

    words = [word.strip().removeprefix("v") for word in value.split(",")]
    net, tuner, profiler = spoken("net"), spoken("tuner"), spoken("profiler")
    if not all(word.isdecimal() and 1 <= int(word) <= max(net) for word in words):
        raise click.BadParameter(
            f"{value!r}: expected versions such as 8 or 8,12, or all; a net plugin has versions {min(net)} to {max(net)}, a tuner 1 to {max(tuner)}, a profiler 1 to {max(profiler)}"
        )
    return [int(word) for word in words]


@click.command(
    "drive",
    cls=Command,
    examples=(
        "psmkit plugin drive libnccl-net-mine.so --ranks 4",
        "psmkit plugin drive libnccl-net-mine.so --version all --env NCCL_SOCKET_IFNAME=lo",
        "psmkit plugin drive libnccl-tuner-mine.so --format json",
        "psmkit plugin drive --list --kind profiler",
    ),
)
@click.argument("lib", metavar="LIB", required=False, type=click.Path(path_type=Path))
@click.option("--ranks", type=click.IntRange(2, 64), default=2, help="Number of processes.  [2]")
@click.option(
    "--version",
    "versions",
    metavar="N[,...]|all",
    callback=_versions,
    help="Versions of the table to use.  [the newest in LIB]",
)
@click.option("--only", metavar="CHECK", multiple=True, help="Run only this check; --list shows all. Repeatable.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    default=20.0,
    help="Seconds that a call may take, and that a transfer may make no progress.  [20]",
)
@settings_option("Set an environment variable of the processes.")
@click.option(
    "--cuda",
    metavar="LIB",
    help="A CUDA runtime, such as libcudart.so.12, which is loaded before the plugin; 'emulated' is that of the lab.",
)
@click.option(
    "--log",
    metavar="FILE",
    type=click.File("w"),
    help="Write all that the plugin logs and prints to this file; - is standard output.",
)
@click.option(
    "--kind",
    type=click.Choice(("net", "tuner", "profiler")),
    help="The kind to use when LIB has tables of several.  [net, else tuner, else profiler]",
)
@click.option(
    "--stream",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="For profilers: also replay the calls that libnccl-profiler-check.so recorded in FILE.",
)
@click.option("--list", "listing", is_flag=True, help="List the checks: what each requires, and who relies on it.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(
    lib: Path | None,
    ranks: int,
    versions: list[int] | str | None,
    only: tuple[str, ...],
    timeout: float,
    settings: dict[str, str],
    cuda: str | None,
    log: IO[str] | None,
    kind: str | None,
    stream: Path | None,
    listing: bool,
    form: str,
) -> int:
    """Call a plugin as NCCL does, in several processes, and check every call, every byte, and that everything is released.

    A net plugin transfers data. A tuner, if LIB has no net plugin, answers questions: contract, latency, and the same answers on all ranks.
    A profiler, if LIB has nothing else, gets events as NCCL starts, updates and stops them, from several threads.

    This needs no NCCL, no GPU and no network card. psmkit itself never loads the library.

    Exit status: 0 no check failed; 1 there are findings; 2 the library cannot be loaded or called.
    """
    if listing:
        return _list(form, kind)
    if lib is None:
        raise click.UsageError("Missing argument 'LIB'.")
    from psmkit.plugins.drive_profiler import profiler_alone
    from psmkit.plugins.drive_tuner import tuner_alone
    from psmkit.plugins.driven import with_cuda

    if lib.is_file():
        cuda, settings = with_cuda(lib, cuda, settings)
    if kind == "profiler" or (kind is None and profiler_alone(lib)):
        return _profiler(lib, versions, only, timeout, settings, stream, log, form)
    if stream is not None:
        raise click.BadParameter("only a profiler can replay a stream", param_hint="--stream")
    if kind == "tuner" or (kind is None and tuner_alone(lib)):
        return _tuner(lib, ranks, versions, only, 3 * timeout, settings, log, form)
    return _net(lib, ranks, versions, only, timeout, settings, cuda, log, form)


def _net(
    lib: Path,
    ranks: int,
    versions: list[int] | str | None,
    only: tuple[str, ...],
    timeout: float,
    settings: dict[str, str],
    cuda: str | None,
    log: IO[str] | None,
    form: str,
) -> int:
    from psmkit.plugins import drive as driver
    from psmkit.plugins.drive_checks import CHECKS

    if isinstance(versions, list) and min(versions) < min(driver.VERSIONS):
        raise click.BadParameter(
            f"v{min(versions)}: a net plugin has versions {min(driver.VERSIONS)} to {max(driver.VERSIONS)}",
            param_hint="--version",
        )
    _known(only, CHECKS)
    chosen = driver.versions_of(lib, settings) if isinstance(versions, str) else versions
    with progress_line() as tell:
        done = driver.drive(
            lib,
            ranks=ranks,
            versions=chosen,
            only=only,
            timeout=timeout,
            environment=settings,
            cuda=cuda,
            watch=_watch(tell),
            log=log,
        )
    return _present(done, f"net {_names(done)}; {done.ranks} ranks", CHECKS, form)


def _tuner(
    lib: Path,
    ranks: int,
    versions: list[int] | str | None,
    only: tuple[str, ...],
    timeout: float,
    settings: dict[str, str],
    log: IO[str] | None,
    form: str,
) -> int:
    from psmkit.plugins.drive_tuner import drive_tuner, tuner_versions
    from psmkit.plugins.drive_tuner_checks import TUNER_CHECKS

    _known(only, TUNER_CHECKS)
    chosen = tuner_versions(lib) if isinstance(versions, str) else versions
    with progress_line() as tell:
        done = drive_tuner(
            lib,
            ranks=ranks,
            versions=chosen,
            only=only,
            timeout=timeout,
            environment=settings,
            watch=_watch(tell),
            log=log,
        )
    return _present(done, f"tuner {_names(done)}; {done.ranks} ranks", TUNER_CHECKS, form)


def _profiler(
    lib: Path,
    versions: list[int] | str | None,
    only: tuple[str, ...],
    timeout: float,
    settings: dict[str, str],
    stream: Path | None,
    log: IO[str] | None,
    form: str,
) -> int:
    from psmkit.plugins.drive_profiler import PROFILER_VERSIONS, drive_profiler, profiler_versions
    from psmkit.plugins.drive_profiler_checks import PROFILER_CHECKS

    newest = PROFILER_VERSIONS[0]
    if isinstance(versions, list) and max(versions) > newest:
        raise click.BadParameter(f"v{max(versions)}: a profiler has versions 1 to {newest}", param_hint="--version")
    _known(only, PROFILER_CHECKS)
    chosen = profiler_versions(lib, settings) if isinstance(versions, str) else versions
    with progress_line() as tell:
        done = drive_profiler(
            lib,
            versions=chosen,
            only=only,
            timeout=timeout,
            environment=settings,
            stream=stream,
            watch=_watch(tell),
            log=log,
        )
    return _present(done, f"profiler {_names(done)}", PROFILER_CHECKS, form)


def _watch(tell: Callable[[str], None] | None) -> Callable[[int, str], None] | None:
    """What shows the version and the check that runs."""
    return None if tell is None else lambda version, check: tell(f"v{version}: {check}")


def _present(done: Drive, what: str, checks: Sequence[Check], form: str) -> int:
    """Show the findings, and return the exit status."""
    if form == "json":
        show(json.dumps(_plain(done), indent=2) + "\n")
    else:
        from psmkit.report.layout import Page

        page = Page(width(sys.stdout))
        _head(page, done, what)
        _table(page, done, checks)
        _skipped(page, done)
        _findings(page, done)
        show_page(page)
    return 0 if done.clean else 1


def _names(done: Drive) -> str:
    return ", ".join(f"v{version}" for version in done.versions)


def _known(names: tuple[str, ...], checks: Sequence[Check]) -> None:
    known = [check.name for check in checks]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r}; expected one of {', '.join(known)}", param_hint="--only")


def _list(form: str, kind: str | None) -> int:
    from psmkit.plugins.drive_checks import CHECKS, classes
    from psmkit.plugins.drive_profiler_checks import PROFILER_CHECKS
    from psmkit.plugins.drive_tuner_checks import TUNER_CHECKS
    from psmkit.report.layout import Page, Span

    known = {"tuner": (TUNER_CHECKS, 1), "profiler": (PROFILER_CHECKS, 1)}
    checks, first = known.get(kind or "", (CHECKS, 4))
    if form == "json":
        rows = [
            {"check": c.name, "since": c.since, "class": c.grade.text, "text": c.text, "source": c.source}
            for c in checks
        ]
        show(json.dumps(rows, indent=2) + "\n")
        return 0
    page = Page(width(sys.stdout))
    for check in checks:
        page.add(Span(check.name, "heading"), f"  from v{check.since}" if check.since > first else "")
        page.wrap(check.text, indent="  ")
        page.wrap(f"source: {check.source}", indent="  ")
        page.wrap(f"class: {classes(check)}", indent="  ")
    show_page(page)
    return 0


#: The words of the table, in the head: how many, and in which style.
_COUNTS = (
    ("FAILED", "failed", "error"),
    ("by luck", "by luck", "warning"),
    ("weak", "weak", "warning"),
    ("advice", "advice", "healthy"),
)


def _head(page: Page, done: Drive, what: str) -> None:
    from psmkit.report.layout import Span

    words = Counter(_word(result) for result in done.results)
    parts = [(f"{words[word]} {said}", style) for word, said, style in _COUNTS if words[word]]
    bad = next(((text, style) for text, style in parts if style != "healthy"), ("green", "healthy"))
    page.add(Span(*bad), Span(f": {done.path.name}", "heading"))
    more = "".join(f"{text}, " for text, _ in parts[words["FAILED"] > 0 :])
    page.wrap(f"{what}; {words['ok']} passed, {words['FAILED']} failed, {more}{words['-']} skipped")
    page.blank()


#: Checks with the same reason to be skipped that are named; the rest is counted.
_MOST_NAMED = 6
_WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "-"}
_SEVERITIES = {"error": "error", "warning": "warning", "info": "note"}


def _word(result: Result) -> str:
    """The word for a result in the table; for a failure by what it means for a job."""
    if result.outcome != "failed" or result.severity.value == "error":
        return _WORDS[result.outcome]
    return "weak" if result.weak else "by luck" if result.severity.value == "warning" else "advice"


def _table(page: Page, done: Drive, checks: Sequence[Check]) -> None:
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    of = {(result.check, result.version): result for result in done.results}
    one = len(done.versions) == 1
    rows = []
    for check in checks:
        mine = [of.get((check.name, version)) for version in done.versions]
        if not any(mine) or all(r is None or r.follows for r in mine):
            continue
        row = [check.name, *("" if r is None else _word(r) for r in mine)]
        if one and mine[0] is not None:
            row.append(mine[0].text if mine[0].outcome != "failed" or mine[0].weak else _failure(mine[0]))
        rows.append(row)
    lines = fit(["check", *(f"v{version}" for version in done.versions), *([""] if one else [])], rows, page.width - 2)
    page.add("  ", Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add("  ", line)


def _failure(result: Result) -> str:
    if result.kind == "leak":
        return result.kind
    return f"{result.kind} in {result.call}" if result.call else result.kind


def _skipped(page: Page, done: Drive) -> None:
    """The checks that were skipped, those with the same reason together; with one version, the table has the other reasons."""
    checks: dict[tuple[str, str], list[str]] = {}
    for result in done.results:
        if result.outcome == "skipped" and (len(done.versions) > 1 or result.follows):
            checks.setdefault((result.check, result.text), []).append(f"v{result.version}")
    reasons: dict[tuple[str, str], list[str]] = {}
    for (check, why), versions in checks.items():
        reasons.setdefault((why, ", ".join(versions)), []).append(check)
    if reasons:
        page.blank()
        page.add("skipped")
    for (why, with_), names in reasons.items():
        what = (
            ", ".join(names)
            if len(names) <= _MOST_NAMED
            else f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"
        )
        page.wrap(f"{what} with {with_}: {why}", indent="  ", hang="  ")


def _findings(page: Page, done: Drive) -> None:
    """Each fault once, whatever the number of checks that saw it."""
    from psmkit.report.layout import Span

    for fault in done.faults:
        first, severity = fault.first, fault.severity.value
        page.blank()
        where = f"{first.check} (v{first.version})" if len(fault.checks) == 1 else f"{len(fault.checks)} checks"
        page.wrap(
            f"{where}: {first.text}",
            "heading",
            hang="  ",
            lead=Span(f"{_SEVERITIES[severity]} {fault.code} ", severity),
        )
        page.wrap(fault.explanation, indent="  ")
        page.wrap(f"next: {fault.next_step}", indent="  ")


def _plain(done: Drive) -> dict[str, Any]:
    from psmkit.report.data import characters, finding_dict

    return {
        "schema": SCHEMA,
        "library": characters(str(done.path)),
        "ranks": done.ranks,
        "versions": list(done.versions),
        "clean": done.clean,
        "results": [
            {
                "check": result.check,
                "version": result.version,
                "outcome": result.outcome,
                "text": result.text,
                "kind": result.kind or None,
                "class": result.grade.text if result.grade else None,
                "call": result.call or None,
                "rank": result.rank,
                "seconds": result.seconds,
                "warning": result.warning or None,
            }
            for result in done.results
        ],
        "findings": [finding_dict(finding) for finding in done.findings],
        "faults": [
            {
                "code": fault.code,
                "seen": fault.first.text,
                "count": fault.count,
                "class": fault.grade.text if fault.grade else None,
                "checks": {name: list(versions) for name, versions in fault.checks.items()},
                "next_step": fault.next_step,
            }
            for fault in done.faults
        ],
    }
