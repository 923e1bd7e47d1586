"""The audit of the contract between the two sides of a connection: sizes of messages, resources that Free releases, checks of the sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit.audit.child import AuditError, ask, check_needs
from psmkit.audit.structs import SOURCES, Suppression, arguments
from psmkit.model import CODES, Evidence, Finding, Severity
from psmkit.model.errors import InputError
from psmkit.model.wording import counted, plural

__all__ = ["ContractAudit", "Half", "audit_contract"]

_DEADLINE = 300.0  # seconds for each source
_RELEASED, _LEFT, _MAY, _KEPT, _OPEN, _WRONGLY = "released", "LEFT", "may stay", "shared", "?", "wrongly"


@dataclass(frozen=True, slots=True)
class Half:
    """One direction of a transport.

    Attributes:
        name: of the table and the direction; of each table that has the same functions.
        modes: what each group of modes has in common; modes with the same outcome form a group.
        resources: what Setup and Connect make, where, and what becomes of it in each group: ``released``, ``LEFT``, ``may stay``, ``shared`` (something
            beyond the connection keeps it), ``?`` (a function took it that psmkit does not know), ``wrongly`` (released by a function for something else), ``-`` (it is not made).
        messages: message, who asks, bytes of request and answer, who answers, and ``fits``, or the modes in which it refuses them.
    """

    name: str
    modes: tuple[str, ...]
    resources: tuple[tuple[str, str, tuple[str, ...]], ...]
    messages: tuple[tuple[str, str, str, str, str, str], ...]


@dataclass(frozen=True, slots=True)
class ContractAudit:
    """The result. ``entries``: tables of functions, and the findings that can be reached from each, by index."""

    halves: tuple[Half, ...]
    findings: tuple[Finding, ...]
    suppressed: tuple[tuple[Finding, str], ...] = ()
    notes: tuple[str, ...] = ()
    entries: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(slots=True)
class _Found:
    finding: Finding
    functions: set[str]
    structs: set[str]
    tables: set[str]


def audit_contract(
    paths: Sequence[Path],
    *,
    flags: str = "",
    commands: Path | None = None,
    suppress: Sequence[Suppression] = (),
    modes: Mapping[str, int] | None = None,
    deadline: float = _DEADLINE,
) -> ContractAudit:
    """Audit the sources of transports.

    Args:
        paths: of sources (.c, .cc, .cpp, .cxx, .cu).
        flags: of the compiler.
        commands: a compile_commands.json, with the flags of each source.
        suppress: what is known to be harmless.
        modes: look at these values only, such as ``{"PASS_SM": 1}``.
        deadline: seconds for each source.

    Raises:
        InputError: a file cannot be read.
        AuditError: the sources cannot be audited.
    """
    check_needs("ways")
    for path in paths:
        if path.suffix not in SOURCES:
            raise InputError(str(path), f"not a source: this audit reads {', '.join(SOURCES)}")
    answer = ask(
        "ways",
        {"path": str(paths[0]), "sources": arguments(paths, flags, commands), "modes": dict(modes or {})},
        str(paths[0]),
        deadline * len(paths),
    )
    if not answer["halves"] and not answer["checks"]:
        raise AuditError(f"{paths[0]}: no table with proxySetup and proxyFree, so no transport to audit")
    unknown = set(modes or {}) - {name for one in answer["halves"] for name in one["modes"]}
    if unknown:
        raise AuditError(f"{paths[0]}: no transport depends on {', '.join(sorted(unknown))}")
    groups = _groups(answer["halves"])
    found = [one for name, half, tables in groups for one in _of_half(name, half, tables)]
    found += [_other(one) for one in answer["others"] if one["finds"]]
    found += [_check(one) for one in answer["checks"]]
    notes = [str(one) for one in answer["notes"]]
    notes += [note for name, half, _ in groups for note in _not_followed(name, half)]
    notes += [
        f"{one['message']} of {one['function']} ({Path(one['file']).name}:{one['line']}): no handler is in this source"
        for one in answer["others"]
        if not one["handlers"]
    ]
    return _sorted([_half(name, half) for name, half, _ in groups], found, notes, suppress)


def _groups(halves: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any], set[str]]]:
    """Halves with the same functions are one."""
    out: dict[str, tuple[list[str], dict[str, Any], set[str]]] = {}
    for one in halves:
        names, _, tables = out.setdefault(repr(sorted(one["functions"].items())), ([], one, set()))
        names.append(f"{one['table']} {one['half']}".strip())
        tables.update(one["tables"])
    return [(", ".join(names), half, tables) for names, half, tables in out.values()]


def _sorted(
    halves: list[Half], found: list[_Found], notes: list[str], suppress: Sequence[Suppression]
) -> ContractAudit:
    kept: list[_Found] = []
    suppressed: list[tuple[Finding, str]] = []
    used = set()
    for one in found:
        rules = [rule for rule in suppress if (rule.function in one.functions or rule.struct in one.structs)]
        used.update(rules)
        if rules:
            suppressed.append((one.finding, "; ".join(sorted({rule.reason for rule in rules}))))
        else:
            kept.append(one)
    notes += [
        f"the suppression of {rule.function or rule.struct} matches nothing" for rule in suppress if rule not in used
    ]
    kept.sort(key=lambda one: (-one.finding.severity.weight, one.finding.code, one.finding.title))
    tables = sorted({table for one in kept for table in one.tables})
    return ContractAudit(
        tuple(halves),
        tuple(one.finding for one in kept),
        tuple(suppressed),
        tuple(dict.fromkeys(notes)),
        tuple((name, tuple(i for i, one in enumerate(kept) if name in one.tables)) for name in tables),
    )


# ---- modes ----


def _usable(half: dict[str, Any]) -> list[int]:
    """Modes in which at least one way is not refused."""
    return [at for at, row in enumerate(half["rows"]) if row["ways"] > row["refused"]]


def _modes(half: dict[str, Any], chosen: Iterable[int], among: Iterable[int] | None = None) -> str:
    """``PASS_SM=1 CUMEM=0``, the shortest text that names these modes; ``every mode``."""
    rows = half["rows"]
    names: list[str] = half["modes"]
    wanted = set(chosen)
    everything = set(range(len(rows)) if among is None else among)
    if wanted >= everything:
        return "every mode"
    free = set(range(len(rows))) - everything  # refused modes: the text may include them or not
    terms = {tuple(rows[at]["mode"][name] for name in names) for at in wanted | free}
    terms_: set[tuple[int | None, ...]] = set(terms)
    while True:
        merged: set[tuple[int | None, ...]] = set()
        used: set[tuple[int | None, ...]] = set()
        for one in terms_:
            for at, value in enumerate(one):
                other = (*one[:at], 1 - value, *one[at + 1 :]) if value is not None else None
                if other in terms_:
                    merged.add((*one[:at], None, *one[at + 1 :]))
                    used |= {one, other}
        if not merged:
            break
        terms_ = merged | (terms_ - used)
    exact = {at: tuple(rows[at]["mode"][name] for name in names) for at in wanted}
    left, said = set(wanted), []
    for term in sorted(terms_, key=lambda one: (sum(value is not None for value in one), repr(one))):
        covers = {at for at in left if all(value is None or value == exact[at][i] for i, value in enumerate(term))}
        if covers:
            left -= covers
            said.append(
                " ".join(f"{name}={value}" for name, value in zip(names, term, strict=True) if value is not None)
            )
    return " or ".join(said)


# ---- what becomes of resources ----


def _cell(states: Sequence[str] | None) -> str:
    if not states:
        return "-"
    left = "left" in states
    if left and len(states) == 1:
        return _LEFT
    if left:
        return _MAY
    if "wrong" in states:
        return _WRONGLY
    if any(one.startswith("taken by ") for one in states):
        return _OPEN
    return _KEPT if any(one.startswith("kept in ") for one in states) else _RELEASED


def _half(name: str, half: dict[str, Any]) -> Half:
    columns: dict[tuple[str, ...], list[int]] = {}
    usable = _usable(half)
    for at in usable:
        columns.setdefault(tuple(_cell(one["in"].get(str(at))) for one in half["resources"]), []).append(at)
    cells = list(columns)
    resources = []
    for number, one in enumerate(half["resources"]):
        kind, shown, function, file, line, _ = one["of"]
        what = f"{kind.partition(' ')[2] if kind.startswith(('a ', 'an ')) else kind}{f' {shown}' if shown else ''}"
        resources.append((what, f"{function} ({Path(file).name}:{line})", tuple(column[number] for column in cells)))
    messages = []
    for one in half["messages"]:
        word, asks, file, line, size, room, handler, fits = one["of"]
        said = "fits" if fits else f"REFUSED: {_modes(half, one['in'])}"
        messages.append((word, f"{asks} ({Path(file).name}:{line})", size, room, handler, said))
    groups = tuple(_modes(half, columns[one], usable) for one in cells)
    if all(row["ways"] == row["refused"] + row.get("ended", 0) for row in half["rows"]):
        groups = ("not followed",)
    return Half(name, groups, tuple(resources), tuple(messages))


def _of_half(name: str, half: dict[str, Any], tables: set[str]) -> list[_Found]:
    return [*_left(name, half, tables), *(_wrong(name, half, one, tables) for one in _merged(half["finds"]))]


def _merged(finds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Uses of one object as another in several lines of a function are one finding."""
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in finds:
        key = (
            one["kind"],
            one["function"],
            one["what"],
            repr(one.get("made")),
            one["line"] if one["kind"] in ("size", "beyond") else 0,
        )
        first = out.setdefault(key, {**one, "lines": [], "modes": {}})
        first["lines"].append(one["line"])
        for at, number in one["modes"].items():
            first["modes"][at] = max(number, first["modes"].get(at, 0))
    return list(out.values())


def _named(of: Sequence[Any]) -> str:
    """A resource for people: with the member that keeps it, or else with the function that makes it."""
    kind, shown, function = of[0], of[1], of[2]
    member = "->" in shown or "." in shown
    return f"{kind} ({shown})" if member else f"{kind} ({function})"


def _left(name: str, half: dict[str, Any], tables: set[str]) -> list[_Found]:
    """Resources that Free does not release: one finding for all that share their modes."""
    usable = _usable(half)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in half["resources"]:
        cells = {at: _cell(one["in"].get(str(at))) for at in usable}
        sure = [at for at, cell in cells.items() if cell == _LEFT and not half["rows"][at]["open"]]
        may = [at for at, cell in cells.items() if cell in (_LEFT, _MAY) and at not in sure]
        if sure or may:
            why = () if sure else tuple(one["if"])
            groups.setdefault((bool(sure), tuple(sure or may), tuple(may) if sure else (), why), []).append(one)
    out = []
    for (proven, some, also, why), resources in groups.items():
        kinds = [_named(one["of"]) for one in resources]
        listed = f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else kinds[0]
        where = _modes(half, some, usable)
        text = f"In {where}, {'every way' if proven else 'a way'} from Setup through Connect to Free leaves {plural(len(kinds), 'it', 'them')}."
        if why:
            text += f" It does so if {', '.join(why)}."
        if also:
            text += f" It may stay in {_modes(half, also, usable)}, too: psmkit did not follow all ways there."
        if any(half["rows"][at]["open"] for at in some):
            text += f" psmkit did not follow all ways: {'; '.join(half['rows'][some[0]]['open'] or ['see the notes'])}."
        frees = [half["functions"][part] for part in ("free", "proxyFree") if part in half["functions"]]
        lines = [
            Evidence(one["of"][3], one["of"][4], f"{one['of'][2]}() makes {kind}")
            for one, kind in zip(resources, kinds, strict=True)
        ]
        lines += [
            Evidence(file, line, f"{function}() does not release {plural(len(kinds), 'it', 'them')}")
            for function, file, line in frees
        ]
        finding = Finding(
            "PSM524",
            f"{name}: Free {'does' if proven else 'may'} not release {listed}",
            Severity.ERROR if proven else Severity.WARNING,
            0.9 if proven else 0.5,
            text,
            CODES["PSM524"].next_step,
            tuple(lines),
            stage=f"{name} Free",
        )
        functions = {one["of"][2] for one in resources} | {function for function, _, _ in frees}
        out.append(_Found(finding, functions, set(), tables))
    return out


# ---- what a way does wrong ----

_WRONG = {"size": "PSM523", "beyond": "PSM523", "nobody": "PSM523", "twice": "PSM524", "wrong": "PSM524"}


def _wrong(name: str, half: dict[str, Any], one: dict[str, Any], tables: set[str]) -> _Found:
    kind, function = one["kind"], one["function"]
    rows = {int(at): number for at, number in one["modes"].items()}
    sure = [at for at, number in rows.items() if _always(half["rows"][at], number, kind)]
    proven = bool(sure) and kind != "foreign"
    among = range(len(half["rows"])) if kind in ("size", "nobody") else _usable(half)
    where = _modes(half, sure or rows, among)
    made = one.get("made")
    title, text = _said(one, made)
    text = f"{text} This is so in {where}{'' if sure else ', on some ways'}."
    lines = [Evidence(one["file"], line, f"{function}()") for line in sorted(set(one.get("lines", [one["line"]])))]
    if made:
        lines.append(Evidence(made[3], made[4], f"{made[2]}() makes {made[0]}"))
    if one.get("at"):
        lines.append(Evidence(one["at"][0], one["at"][1], f"{one['handler']}()"))
    code = _WRONG.get(kind, "PSM525")
    finding = Finding(
        code,
        title,
        Severity.ERROR if proven else Severity.WARNING,
        0.9 if proven else 0.5,
        text,
        CODES[code].next_step,
        tuple(lines),
        stage=f"{name} {one['stage']}",
    )
    return _Found(
        finding, {function, one.get("handler", function)}, {one["what"], one.get("real", one["what"])}, tables
    )


def _always(row: dict[str, Any], number: int, kind: str) -> bool:
    """Whether it happens on every way of a mode."""
    if row["open"]:
        return False
    return bool(number == row["ways"] if kind in ("size", "nobody") else number >= row["ways"] - row["refused"] > 0)


def _said(one: dict[str, Any], made: Sequence[Any] | None) -> tuple[str, str]:
    kind, function, what = one["kind"], one["function"], one["what"]
    stage = {"proxySetup": "Setup", "setup": "Setup", "proxyConnect": "Connect", "connect": "Connect"}.get(
        one["stage"], "Free"
    )
    thing = f"{made[0]} that {made[2]} makes" if made else ""
    if kind == "size":
        return (
            f"{one['asks']} sends {what} with {_article(one['which'])} of {one['given']} bytes, {one['handler']} expects {one['size']}",
            f"The handler compares with {one['said'].replace('( ', '(').replace(' )', ')').replace('sizeof (', 'sizeof(')} and refuses the message: {what} fails.",
        )
    if kind == "beyond":
        return (
            f"{function} uses {one['size']} bytes of {_article(one['which'])} of {one['given']} bytes",
            f"It takes the {one['which']} for a {what or 'larger object'} and does not compare the sizes: it reads or writes beyond the message.",
        )
    if kind == "nobody":
        return (
            f"{function} sends {what}, and the transport has no handler for it",
            "The proxy refuses the message, or calls a null pointer.",
        )
    if kind == "twice":
        return f"{function} releases {thing} twice", f"{one['first']} has released it before."
    if kind == "wrong":
        return (
            f"{function} passes {thing} to {what}",
            f"{what} takes something else: the call fails, or the memory stays.",
        )
    if kind == "device":
        return (
            f"{function} takes {thing} for a struct {what}",
            f"{stage} reads or writes it on the host, as if the connection's resources were a {what}: in this mode they are device memory.",
        )
    if kind == "confused":
        return (
            f"{function} takes the {thing} for a struct {what}",
            f"In this mode the connection's resources are a struct {one['real']}: the fields that {stage} reads and writes are others.",
        )
    return (
        f"{function} follows the pointer to the proxy's connection",
        "The pointer comes from the proxy. It leads to memory of this process only if the proxy is in it, and the code does not look at sameProcess first.",
    )


def _article(which: str) -> str:
    return f"{'an' if which == 'answer' else 'a'} {which}"


def _other(one: dict[str, Any]) -> _Found:
    """A registration whose sizes do not fit."""
    first = one["finds"][0]
    title, text = _said(first, None)
    lines = [Evidence(one["file"], one["line"], f"{one['function']}()")]
    if first.get("at"):
        lines.append(Evidence(first["at"][0], first["at"][1], f"{first['handler']}()"))
    sure = one["certain"]
    finding = Finding(
        "PSM523",
        title,
        Severity.ERROR if sure else Severity.WARNING,
        0.9 if sure else 0.5,
        text,
        CODES["PSM523"].next_step,
        tuple(lines),
        stage=one["message"],
    )
    return _Found(finding, {one["function"], first.get("handler", "")}, set(), set())


# ---- checks of the sources ----


def _check(one: dict[str, Any]) -> _Found:
    if one["kind"] == "assert":
        checked, names = ", ".join(one["checks"]), ", ".join(one["names"])
        if one["first"]:
            title = f"the static_assert below struct {names} checks {checked}, as line {one['first']} does"
            text = f"It repeats an earlier check. Nothing checks the size of {names}."
        else:
            title = f"a static_assert that names {names} checks {checked}"
            text = f"Its text is about {names}, and its condition about {checked}: the size of {names} can be wrong."
        structs, function = {*one["checks"], *one["names"]}, ""
    else:
        missing = one["missing"]
        shown = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
        title = f"{one['function']}: a switch over {one['enum']} has no case for {shown}"
        text = f"It has no default either: {counted(len(missing), 'value')} of the enum {plural(len(missing), 'does', 'do')} nothing there."
        structs, function = {one["enum"]}, one["function"]
    code = CODES["PSM526"]
    evidence = (Evidence(one["file"], one["line"], title),)
    finding = Finding(
        code.code, title, Severity.WARNING, 0.9, text, code.next_step, evidence, stage=function or "static_assert"
    )
    return _Found(finding, {function} if function else set(), structs, set())


def _not_followed(name: str, half: dict[str, Any]) -> list[str]:
    out = [
        f"{name}: {one['what']} ({Path(one['where'].partition(':')[0]).name}:{one['where'].rpartition(':')[2]}): not followed"
        for one in half["notes"]
    ]
    reasons: dict[str, int] = {}
    for row in half["rows"]:
        for reason in row["open"]:
            reasons[reason] = reasons.get(reason, 0) + 1
    out += [
        f"{name}: not followed to the end in {counted(number, 'mode')}: {reason}" for reason, number in reasons.items()
    ]
    for one in half["resources"]:
        taken = sorted({state for states in one["in"].values() for state in states if state.startswith("taken by ")})
        if taken:
            out.append(
                f"{name}: {one['of'][0]} ({one['of'][1]}) is {taken[0]}, which psmkit does not know: not followed"
            )
    return out
