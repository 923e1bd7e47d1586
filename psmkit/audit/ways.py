"""Every way through the functions of a transport, in every mode: which messages fit, what is made, what is released. Only the child process imports it."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict, deque
from typing import Any

from clang.cindex import CursorKind

from psmkit.audit import layout
from psmkit.audit.calls import HANDLERS
from psmkit.audit.checks import checks
from psmkit.audit.expressions import file_of, is_assignment, line_of, strip
from psmkit.audit.lower import Lowering, evaluated
from psmkit.audit.machine import Machine
from psmkit.audit.sources import Sources
from psmkit.audit.state import Ended, Half, NeedMode, Program
from psmkit.audit.terms import terms

__all__ = ["read"]

_Resources = dict[tuple[Any, ...], dict[int, dict[str, list[dict[str, bool]]]]]
_MOST_WAYS = 250  # of one mode
_MOST_MODES = 64
_FOLLOWED = frozenset(
    (
        "setup",
        "connect",
        "free",
        "proxySharedInit",
        "proxySetup",
        "proxyConnect",
        "proxyFree",
        "proxyRegister",
        "proxyDeregister",
    )
)


def read(request: dict[str, Any]) -> dict[str, Any]:
    """What the functions of each transport in some sources do, and the checks that the sources make themselves."""
    sys.setrecursionlimit(20_000)
    sources = Sources()
    for path, arguments in request["sources"]:
        sources.parse(path, arguments)
    lowering = Lowering()
    program = Program(lowering, {usr: one.cursor for usr, one in sources.functions.items()}, _fixed(sources))
    halves = []
    late = _late(sources, lowering)
    given = dict(request.get("modes", {}))
    followed: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    known: list[Half] = []
    for half, usr in _halves(sources, lowering):
        for member, function in late.get((half.table, half.name), {}).items():
            half.functions.setdefault(member, function)
        key = tuple(sorted((member, function) for member, function in half.functions.items() if member in _FOLLOWED))
        if key not in followed:
            followed[key] = _followed(program, half, given)
        known.append(half)
        halves.append({**followed[key], "table": half.table, "half": half.name, "tables": sources.leading_to(usr)})
    return {
        "halves": halves,
        "checks": checks(sources),
        "others": _others(sources, program, known),
        "notes": list(dict.fromkeys(sources.notes)),
    }


# ---- tables of functions ----


def _halves(sources: Sources, lowering: Lowering) -> list[tuple[Half, str]]:
    """The tables of functions, and the globals that hold them."""
    out: dict[tuple[str, str], tuple[Half, str]] = {}
    for unit in sources.units:
        for cursor in unit.cursor.get_children():
            if cursor.kind != CursorKind.VAR_DECL or cursor.location.is_in_system_header:
                continue
            start = next((one for one in cursor.get_children() if one.kind == CursorKind.INIT_LIST_EXPR), None)
            record = layout.record(cursor.type)
            if start is None or record is None:
                continue
            names = {one.spelling: one.type for one in record.get_fields()}
            entries = lowering.entries(start)
            if "proxySetup" in names:
                out[cursor.get_usr(), ""] = (_half(cursor.spelling, "", entries), cursor.get_usr())
                continue
            for name, value in entries:
                inner = layout.record(names[name]) if name in names else None
                if (
                    inner is not None
                    and value[0] == "list"
                    and any(one.spelling == "proxySetup" for one in inner.get_fields())
                ):
                    out[cursor.get_usr(), str(name)] = (_half(cursor.spelling, str(name), value[1]), cursor.get_usr())
    return list(out.values())


def _late(sources: Sources, lowering: Lowering) -> dict[tuple[str, str], dict[str, str]]:
    """Functions that code puts into a table later: some modes have more of them."""
    out: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for function in sources.functions.values():
        for one in function.look():
            if one.kind != CursorKind.BINARY_OPERATOR or not is_assignment(one):
                continue
            left, right = list(one.get_children())
            if left.kind != CursorKind.MEMBER_REF_EXPR or not left.spelling.startswith(
                ("proxy", "setup", "connect", "free")
            ):
                continue
            to, value = lowering.expression(left), lowering.expression(right)
            if value[0] == "function" and to[1][0] == "member" and to[1][1][0] == "var":
                out[to[1][1][2], to[1][2]][to[2]] = value[1]
    return out


def _half(table: str, name: str, entries: list[Any]) -> Half:
    functions = {}
    for member, value in entries:
        while value[0] in ("cast", "decay") or (value[0] == "un" and value[1] == "&"):
            value = value[1] if value[0] != "un" else value[2]
        if value[0] == "function":
            functions[str(member)] = str(value[1])
    return Half(name, table, functions)


def _fixed(sources: Sources) -> dict[str, int]:
    """Static globals that a mode is named after and nothing changes."""
    names = {mode.variable for mode in terms().modes if mode.variable}
    found: dict[str, int] = {}
    changed = set()
    for unit in sources.units:
        for cursor in unit.cursor.get_children():
            if (
                cursor.kind == CursorKind.VAR_DECL
                and cursor.spelling in names
                and cursor.storage_class.name == "STATIC"
            ):
                values = [one for one in cursor.get_children() if one.kind.is_expression()]
                value = evaluated(values[-1]) if values else 0
                if value is not None:
                    found[cursor.get_usr()] = value
    for function in sources.functions.values():
        for one in function.look():
            if one.kind == CursorKind.BINARY_OPERATOR and is_assignment(one):
                target = strip(next(iter(one.get_children())))
                if target.kind == CursorKind.DECL_REF_EXPR and target.referenced is not None:
                    changed.add(target.referenced.get_usr())
    return {usr: value for usr, value in found.items() if usr not in changed}


def _others(sources: Sources, program: Program, halves: list[Half]) -> list[dict[str, Any]]:
    """Messages that no Setup and no Connect sends: registrations. They go to the handlers of the tables in the same source."""
    out = []
    for function in sources.functions.values():
        for one in function.look():
            entry = next((entry for name, entry in terms().messages if name.fullmatch(one.spelling)), None)
            if one.kind != CursorKind.CALL_EXPR or entry is None:
                continue
            call = program.lowering.expression(one)
            if call[0] != "call" or len(call[4]) <= entry.answer_size:
                continue
            number, sizes = call[4][entry.message], [call[4][at] for at in (entry.request_size, entry.answer_size)]
            word = number[-1].rpartition("Msg")[2] if number[0] == "int" and len(number) > 2 else ""
            if word not in ("Register", "Deregister") or any(size[0] not in ("int", "size") for size in sizes):
                continue
            found = []
            for half in halves:
                usr = half.functions.get(HANDLERS[word], "")
                if usr not in program.cursors or file_of(program.cursors[usr]) != function.file:
                    continue
                machine = Machine(program, half, {}, [])
                finds = machine.receive(
                    word, usr, function.name, (file_of(one), line_of(one)), sizes[0][1], sizes[1][1]
                )
                found.append((program.cursors[usr].spelling, finds))
            out.append({
                "message": word, "function": function.name, "file": file_of(one), "line": line_of(one), "request": sizes[0][1],
                "answer": sizes[1][1], "handlers": sorted({name for name, _ in found}),
                "finds": [one for _, finds in found for one in finds], "certain": bool(found) and all(finds for _, finds in found),
            })  # fmt: skip
    return out


# ---- ways ----


def _followed(program: Program, half: Half, given: dict[str, int]) -> dict[str, Any]:
    """All that happens in one direction of a transport."""
    modes: list[str] = []
    while True:
        try:
            return _in_modes(program, half, modes, given)
        except NeedMode as need:
            modes.append(need.args[0])


def _in_modes(program: Program, half: Half, modes: list[str], given: dict[str, int]) -> dict[str, Any]:
    order = [mode.name for mode in terms().modes]
    modes.sort(key=order.index)
    rows: list[dict[str, Any]] = []
    resources: _Resources = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    finds: dict[tuple[Any, ...], dict[str, Any]] = {}
    notes: dict[str, str] = {}
    messages: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    choices = [(given[name],) if name in given else (0, 1) for name in modes]
    for values in itertools.islice(itertools.product(*choices), _MOST_MODES):
        at = len(rows)
        row: dict[str, Any] = {
            "mode": dict(zip(modes, values, strict=True)),
            "ways": 0,
            "refused": 0,
            "ended": 0,
            "open": [],
        }
        rows.append(row)
        for machine, ended in _ways(program, half, row["mode"]):
            row["ways"] += 1
            for key, one in machine.finds.items():
                kept = finds.setdefault(key, {**one, "modes": {}})
                kept["modes"].setdefault(at, 0)
                kept["modes"][at] += 1
            notes |= machine.notes
            for sent in machine.sent:
                messages[sent].add(at)
            if ended == "refused":
                row["refused"] += 1
            elif ended:
                row["ended"] += 1
                row["open"].append(ended)
            else:
                _settled(machine, resources, at)
        if row["ways"] >= _MOST_WAYS:
            row["open"].append(f"more than {_MOST_WAYS} ways")
        row["open"] = list(dict.fromkeys(row["open"]))
    functions = {}
    for member, usr in half.functions.items():
        if usr in program.cursors:
            cursor = program.cursors[usr]
            functions[member] = [cursor.spelling, file_of(cursor), line_of(cursor)]
    return {
        "functions": functions,
        "modes": modes,
        "rows": rows,
        "resources": [
            {"of": list(key), "in": {str(at): sorted(some) for at, some in where.items()}, "if": _reasons(where)}
            for key, where in resources.items()
        ],
        "finds": [{**one, "modes": {str(at): number for at, number in one["modes"].items()}} for one in finds.values()],
        "messages": [{"of": list(key), "in": sorted(where)} for key, where in messages.items()],
        "notes": [{"what": what, "where": where} for what, where in notes.items()],
    }


def _ways(program: Program, half: Half, mode: dict[str, int]) -> Any:
    """Each way of a mode, with the reason why it ended early: first those on which few questions are answered with no."""
    todo: deque[list[bool]] = deque([[]])
    for _ in range(_MOST_WAYS):
        if not todo:
            return
        answers = todo.popleft()
        machine = Machine(program, half, mode, answers)
        ended = ""
        try:
            machine.run()
        except Ended as end:
            ended = str(end)
        except (RecursionError, LookupError, TypeError, ValueError) as error:  # not as the machine knows it
            ended = f"code that psmkit cannot follow ({type(error).__name__})"
        yield machine, ended
        trail = [answer for _, answer in machine.trail]
        todo.extend([*trail[:at], not trail[at]] for at in range(len(answers), len(trail)))


def _settled(machine: Machine, resources: _Resources, at: int) -> None:
    """What became of each resource on this way."""
    holders = machine.holders()
    for number, token in enumerate(machine.tokens):
        if token.released:
            state = "released"
        elif token.wrong:
            state = "wrong"
        elif token.lost:
            state = f"taken by {token.lost}"
        elif (where := _shared(machine, holders, number)) is not None:
            state = f"kept in {where}"
        else:
            state = "left"
        key = token.kind, token.name, token.function, token.file, token.line, token.stage
        resources[key][at][state].append(dict(machine.trail))


def _reasons(where: dict[int, dict[str, list[dict[str, bool]]]]) -> list[str]:
    """What is so on each way that leaves a resource, and on none that does not."""
    left = [trail for some in where.values() for trail in some.get("left", ())]
    other = [trail for some in where.values() for state, trails in some.items() if state != "left" for trail in trails]
    if not left or not other:
        return []
    shared = set(left[0].items()).intersection(*(trail.items() for trail in left[1:]))
    return sorted(
        f"{'' if answer else 'not '}{what}"
        for what, answer in shared
        if all(trail.get(what) != answer for trail in other)
    )[:3]


def _shared(machine: Machine, holders: dict[int, set[str]], number: int) -> str | None:
    """Memory beyond the connection that still leads to a resource."""
    seen, todo = set(), [number]
    while todo:
        one = todo.pop()
        for root in holders.get(one, ()):
            if root in seen:
                continue
            seen.add(root)
            if root.startswith("o:"):
                todo.append(int(root[2:]))
            elif root.startswith(("g:", "s:")):
                return root.rpartition(":")[2]
    return None
