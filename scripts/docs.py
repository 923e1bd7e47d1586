"""Write the generated parts of docs/: findings, the table of the catalogue, the coverage of hostcuda, plugins, variants,
commands, metrics, tables, rules of plans.

Usage: python scripts/docs.py [--check]

A generated part lies between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``. ``--check`` changes nothing and fails if a part
is not current.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from psmkit import plan
from psmkit.analysis.rules.plan_trace import CODES_OF_RULES
from psmkit.catalogue import Message, load
from psmkit.cli.app import COMMANDS
from psmkit.lab import transfer
from psmkit.lab.coverage import areas
from psmkit.model import CODES
from psmkit.plan import releases as plan_releases
from psmkit.plugins.abi import facts, tables
from psmkit.plugins.drive_checks import CHECKS, Check, Grade, classes
from psmkit.plugins.drive_profiler_checks import PROFILER_CHECKS
from psmkit.plugins.drive_tuner_checks import TUNER_CHECKS
from psmkit.query.schema import TABLES
from psmkit.telemetry.kinds import EVENT_TYPES
from psmkit.telemetry.metrics import METRICS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "csrc" / "abi"))
import versions as generator  # noqa: E402

sys.path.pop(0)

_LINES = 8
#: Why a column is NULL, where that goes without saying.
_SILENT = (
    "the line does not say, the line has no prefix of NCCL, the line has none, no line shows it, there is none, it belongs to no run,"
    " it has none, it is about none, none is known, there is no rank, its number has no name"
).split(", ")


def _cell(text: str) -> str:
    # Escape placeholders such as <name>, which are not HTML, and bars, which would end the cell.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _issue(name: str) -> str:
    """A link to ``owner/name#number``, or the text itself if it has another form."""
    repository, hash_, number = name.partition("#")
    if not hash_ or repository.count("/") != 1 or not number.isdigit():
        return name
    return f"[{name}](https://github.com/{repository}/issues/{number})"


def findings() -> str:
    """All codes, each with an anchor."""
    messages = load().messages
    out: list[str] = []
    family = None
    for code in CODES.values():
        if code.family is not family:
            family = code.family
            out += [f"## PSM{family.digit}xx: {family.title}", ""]
        out += [f'<a id="{code.code.lower()}"></a>', "", f"### {code.code}: {_cell(code.title)}", ""]
        out += [
            f"Severity: usually **{code.severity.value}**. {_cell(code.meaning)}",
            "",
            f"**Next:** {_cell(code.next_step)}",
            "",
        ]
        lines = [message for message in messages if message.finding == code.code]
        issues = sorted({issue for message in lines for issue in message.known_issues})
        if issues:
            out += [f"Known issues: {', '.join(map(_issue, issues))}.", ""]
        if lines:
            names = ", ".join(f"`{message.name}`" for message in lines[:_LINES])
            more = f", and {len(lines) - _LINES} more (`psmkit catalogue {code.code}`)" if len(lines) > _LINES else ""
            out += [f"Messages that support it: {names}{more}.", ""]
    return "\n".join(out).rstrip()


def subsystems() -> str:
    """The numbers of messages and samples of each subsystem."""
    parts: dict[str, list[Message]] = {}
    for message in load().messages:
        parts.setdefault(message.subsystem, []).append(message)
    rows = [_row(f"`{name}`", messages) for name, messages in sorted(parts.items())]
    rows.append(_row("all", list(load().messages)))
    head = "| subsystem | messages | patterns | with a real sample | real samples | constructed samples |"
    return "\n".join([head, "|---|---:|---:|---:|---:|---:|", *rows])


def _row(name: str, messages: list[Message]) -> str:
    real = [sum(sample.kind == "real" for sample in message.samples) for message in messages]
    constructed = sum(sample.kind == "constructed" for message in messages for sample in message.samples)
    patterns = sum(len(message.patterns) for message in messages)
    cells = (len(messages), patterns, sum(count > 0 for count in real), sum(real), constructed)
    return f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |"


def coverage() -> str:
    """How many functions of each area hostcuda provides."""
    rows = ["| library | area | provided | known |", "|---|---|---:|---:|"]
    for area in areas():
        rows.append(f"| {area.library} | {area.area} | {area.provided} | {area.known} |")
    total = [sum(a.provided for a in areas()), sum(a.known for a in areas())]
    rows.append(f"| | **together** | **{total[0]}** | **{total[1]}** |")
    return "\n".join(rows)


def plugin_tables() -> str:
    """Which releases look for which table of a plugin."""
    rows = ["| table | NCCL releases | bytes | members |", "|---|---|---:|---:|"]
    for table in tables():
        since = (
            f"{table.first} to {table.last}" if table.first else "none yet" if table.coming else "none, in headers only"
        )
        if table.first and not table.dropped:
            since = f"{table.first} and later"
        known = (f"{table.size}", f"{len(table.slots)}") if table.size else ("not known", "")
        rows.append(f"| `{table.symbol}` | {since} | {' | '.join(known)} |")
    return "\n".join(rows)


def commands() -> str:
    """What each command does."""
    rows = [f"| `psmkit {name}` | {_cell(summary)} |" for name, summary in COMMANDS.items()]
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def metrics() -> str:
    """The metrics of ``psmkit telemetry``."""
    rows = [
        f"| `{name}` | {m.unit} | {m.kind} | {' '.join(m.attributes)} | {m.meaning} |" for name, m in METRICS.items()
    ]
    return "\n".join(["| metric | unit | kind | attributes | meaning |", "|---|---|---|---|---|", *rows])


def _checks(kind: str, checks: tuple[Check, ...]) -> str:
    """A table of checks. What NCCL does there is in ``psmkit plugin drive --list``."""
    short = {Grade.BREAKS.text: "breaks", Grade.LUCK.text: "luck"}
    rows = []
    for one in checks:
        grades = classes(one)
        for text, word in short.items():
            grades = grades.replace(text, word)
        if kind == "profiler":  # of all of them: the page says so
            grades = grades.removesuffix("; for an error: luck")
        rows.append(f"| `{one.name}` | {one.text} | {grades} |")
    return "\n".join([f"| check | the {kind} must | class |", "|---|---|---|", *rows])


def net_checks() -> str:
    """What ``psmkit plugin drive`` checks of a net plugin."""
    return _checks("plugin", CHECKS)


def profiler_checks() -> str:
    """What it checks of a profiler."""
    return _checks("profiler", PROFILER_CHECKS)


def tuner_checks() -> str:
    """What it checks of a tuner."""
    return _checks("tuner", TUNER_CHECKS)


def profiler_tables() -> str:
    """What our own profiler speaks."""
    known = sorted((table for table in tables() if table.kind == "profiler" and table.slots), key=lambda t: t.version)
    releases = [table for table in known if table.first]
    first, last = releases[0], releases[-1]
    return (
        f"One library has the tables v{known[0].version} to v{known[-1].version}. NCCL {first.first} is the first release that looks for"
        f" one of them; {last.last} is the newest that is known to look for v{last.version}."
    )


def profiler_kinds() -> str:
    """The kinds of events that our own profiler records."""
    kinds = facts()["profiler_kinds"]
    words = {name.removesuffix("Plugin").lower(): name for name in kinds}
    known = generator.known_versions(facts(), "profiler")
    rows = [
        "| name | mask | from | row of the file | what the row has beyond start, stop, thread and parent |",
        "|---|---|---|---|---|",
    ]
    for at, name in enumerate(EVENT_TYPES):
        kind = words[name.replace("_", "")]
        first = generator.first_with(facts(), known, generator.BITS, f"ncclProfile{kind}")
        cells = (f"`{kind.removesuffix('Plugin').lower()}`", f"{1 << at:#x}", f"v{first}", name.replace("_", " "))
        rows.append(f"| {' | '.join(cells)} | {kinds[kind]['about']} |")
    return "\n".join(rows)


def variants() -> str:
    """The variants of both transports with what they declare."""
    rows = ["| variant | what it does | verdict | finding | shows | leaks |", "|---|---|---|---|---|---|"]
    for one in transfer.variants().values():
        s = one.symptoms
        cells = (s.verdict or "", " ".join(s.codes), s.condition or ("always" if one.wrong else ""), s.left)
        rows.append(f"| `{one.name}` | {_cell(one.summary)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def query_tables() -> str:
    """The tables of ``psmkit query`` with their columns. The page says once what holds for most: types, and reasons for NULL."""
    parts = []
    for table in TABLES.values():
        rows: list[tuple[str, str]] = []
        for c in table.columns:
            kind = " (a list)" if c.sql.endswith("[]") else ""
            null = f"; NULL: {c.null}" if c.null and c.null not in _SILENT else ""
            row = (f"`{c.name}`", _cell(c.meaning.removesuffix(", from 1") + kind + null))
            if rows and c.name.endswith("line") and row[1].removeprefix("line") == rows[-1][1].removeprefix("file"):
                row = (f"{rows.pop()[0]}, {row[0]}", f"file and {row[1].removesuffix(' of the line')}")
            rows.append(row)
        body = "\n".join(f"| {name} | {meaning} |" for name, meaning in rows)
        parts.append(f"### `{table.name}`\n\nA row is {table.row}.\n\n| column | meaning |\n|---|---|\n{body}")
    return "\n\n".join(parts)


def plan_rules() -> str:
    """The table of rules, each with the finding that reports it."""
    rows = []
    for r in plan.rules():
        code = CODES_OF_RULES[r.name]
        only = {1: "legacy: ", 2: "planner: ", 3: ""}[r.schedulers]
        rows.append(f"| `{r.name}` | {only}{_cell(r.text)} | [{code}](findings.md#{code.lower()}) |")
    return "\n".join(["| rule | what must hold | finding |", "|---|---|---|", *rows])


def plan_variants() -> str:
    """The table of variants; the name of a broken one leads to its example."""
    rows = []
    for v in plan.variants().values():
        name = f"[`{v.name}`](../examples/plans/{v.name}.tasks)" if v.wrong else f"`{v.name}`"
        rows.append(f"| {name} | {f'`{v.outcome}`' if v.outcome else 'right'} | {_cell(v.summary)} |")
    return "\n".join(["| variant | breaks | what it does |", "|---|---|---|", *rows])


def plan_releases_table() -> str:
    """The table of releases: what each does with sends and recvs."""
    names: dict[str, Callable[[plan_releases.Release], str]] = {
        "next plan begins": lambda r: "at the round of the cut" if r.carries else "at round 0",
        "a batch mixes": lambda r: (
            "all rounds" if not r.round_groups else "8 rounds, no passes" if r.epochs else "8 rounds, passes"
        ),
        "room in the FIFO comes": lambda r: (
            f"behind the group{', or by an abort' if r.abortable else ''}" if r.event_room else "from kernels"
        ),
        "rounds": lambda r: "by groups of ranks" if r.grouped_rounds else "by nodes",
        "first channel of a round": lambda r: "its number, bits reversed" if r.reversed_rounds else "its number",
        "parts of a message": lambda r: "by Simple" if r.simple_parts else "by its protocol",
    }
    rows = []
    for row in plan_releases.releases():
        first, last = plan_releases.version(row.since), plan_releases.version(row.until)
        cells = [
            f"`{row.name}`",
            first if first == last else f"{first} to {last}",
            *(tell(row) for tell in names.values()),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    head = ["scheduler", "NCCL", *names]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "findings": ("findings.md", findings),
    "subsystems": ("catalogue.md", subsystems),
    "coverage": ("hostcuda.md", coverage),
    "plugin-tables": ("plugins.md", plugin_tables),
    "commands": ("operator.md", commands),
    "metrics": ("telemetry.md", metrics),
    "net-checks": ("plugins_drive.md", net_checks),
    "profiler-checks": ("profiler_drive.md", profiler_checks),
    "tuner-checks": ("tuner_drive.md", tuner_checks),
    "profiler-tables": ("profiler.md", profiler_tables),
    "profiler-kinds": ("profiler.md", profiler_kinds),
    "plan-rules": ("plan.md", plan_rules),
    "plan-variants": ("plan.md", plan_variants),
    "plan-releases": ("plan_lint.md", plan_releases_table),
    "query-tables": ("query.md", query_tables),
    "variants": ("transport.md", variants),
}


def current(name: str) -> tuple[Path, str]:
    """The page of a part, and its text with the part regenerated."""
    file, make = PARTS[name]
    path = DOCS / file
    first, last = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->"
    head, found, rest = path.read_text("utf-8").partition(first)
    _, closed, tail = rest.partition(last)
    if not found or not closed:
        raise SystemExit(f"{path}: the marks of {name} are missing")
    return path, f"{head}{first}\n{make()}\n\n{last}{tail}"


def main(args: list[str]) -> int:
    """Write the pages, or check them."""
    stale = []
    for name in PARTS:
        path, text = current(name)
        if path.read_text("utf-8") != text:
            stale.append(path.name)
            if "--check" not in args:
                path.write_text(text, "utf-8")
    if stale and "--check" in args:
        print(f"not current, run python scripts/docs.py: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
