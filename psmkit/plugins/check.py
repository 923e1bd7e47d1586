"""Check a plugin library: its tables, the releases that load it, and its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from psmkit.model import CODES, Finding, Severity
from psmkit.plugins import elf, loader, lookup
from psmkit.plugins.abi import KINDS, Table, family, table_of, tables
from psmkit.plugins.elf import Library, Symbol

__all__ = ["Check", "Found", "Use", "check"]

_NEAR = re.compile(r"(?:_ZL?[\w]*?\d+)?nccl(?:Net|CollNet|Tuner|Profiler|Env|Gin|Rma)\w*")
# What a program that uses NCCL always has.
_OF_THE_PROGRAM = re.compile(
    r"(?:cuda[A-Z]|__cuda|cu[A-Z]|nvml[A-Z]|nccl[A-Z]|hip[A-Z]|__hip)\w*$|lib(?:cudart|cuda|nvidia-ml|nccl|amdhip64|rccl)\.so"
)
_NAMES = 12  # symbols that are listed
_TITLE = 3


@dataclass(frozen=True, slots=True)
class Found:
    """A table in the library."""

    table: Table
    name: str | None  # its name member, which NCCL compares with NCCL_NET
    empty: tuple[str, ...] = ()  # slots that must not be NULL
    lacking: tuple[tuple[str, str], ...] = ()  # slots that may be NULL, with the condition under which they are needed
    sound: bool = True  # a table of its kind and size
    resolved: bool = False  # returned by code of the library at look-up (an indirect function)
    known: bool = True  # its layout is known
    by_init: bool = False  # init may fill the rest: all but name and init is NULL, and the table is writable


@dataclass(frozen=True, slots=True)
class Use:
    """What a release does with the library: the tables that it takes, and the settings that make it find the library."""

    release: lookup.Release
    taken: Mapping[str, Table]
    settings: Mapping[str, tuple[tuple[str, str | None], ...]]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check."""

    path: Path
    machine: str
    needed: tuple[str, ...]
    loaded: bool | None  # by a process of this machine; None: not tried
    tables: tuple[Found, ...]
    uses: tuple[Use, ...]
    unresolved: tuple[str, ...]
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def loadable(self) -> bool:
        """Whether no loader would refuse it, as far as checked."""
        return not any(f.code in ("PSM901", "PSM905") and f.severity is Severity.ERROR for f in self.findings)

    @property
    def clean(self) -> bool:
        """Whether the check found no problem."""
        return all(finding.severity is Severity.INFO for finding in self.findings)


def _finding(code: str, title: str, explanation: str, severity: Severity | None = None, sure: float = 1.0) -> Finding:
    kind = CODES[code]
    return Finding(code, title, severity or kind.severity, sure, explanation, kind.next_step)


def check(
    path: Path,
    asked: Sequence[lookup.Release] = (),
    settings: Mapping[str, str] | None = None,
    load: bool = True,
    preload: Sequence[str] = (),
) -> Check:
    """Check a library.

    Args:
        path: path of the library.
        asked: releases that must load it; if empty, all known ones are examined and none is required.
        settings: variables such as NCCL_NET_PLUGIN, if the library must be found through them.
        load: also load it, in a child process.
        preload: libraries of the program that loads NCCL: their symbols are globally visible.

    Raises:
        InputError: the library cannot be read.
    """
    releases = asked or lookup.all_releases()
    try:
        library = elf.read(path)
    except elf.NotLoadable as error:
        return _not_loadable(path, error, releases)

    findings: list[Finding] = []
    found = list(_tables(library, findings))
    unresolved: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    loaded: bool | None = None
    if not library.native:
        findings.append(_foreign(library))
    elif load:
        traced = loader.trace(path, preload)
        if traced is not None:
            unresolved, missing = traced.symbols, (*traced.libraries, *traced.versions)
        seen = loader.load(path, {f.table.symbol: _wanted(f.table) for f in found if f.sound and f.known}, preload)
        loaded = seen.error is None
        if seen.tables is not None:
            found = [
                _refreshed(f, seen.tables[f.table.symbol]) if f.table.symbol in seen.tables else f
                for f in found
                if not f.resolved or f.table.symbol in seen.tables
            ]
        if unresolved or missing:
            findings.append(_unprovided(unresolved, missing, loaded))
        elif seen.error is not None:
            text = f"A process that loaded it as NCCL does: {seen.error}"
            findings.append(_finding("PSM901", "plugin library cannot be loaded", text))
    found = [replace(one, by_init=_by_init(one, library)) for one in found]
    findings += [finding for one in found for finding in _judge(one, library, final=bool(loaded))]
    findings += [*_of_init(found), *_hidden(library, found), *_unused(found)]
    uses = tuple(_use(release, found, path, settings or {}) for release in releases)
    findings += _refused(uses, found, path, settings or {}) if asked else []
    order = {"error": 0, "warning": 1, "info": 2}
    findings.sort(key=lambda f: (order[f.severity.value], f.code))
    return Check(
        path, library.machine, library.needed, loaded, tuple(found), uses, unresolved, missing, tuple(findings)
    )


def _not_loadable(path: Path, error: elf.NotLoadable, releases: Sequence[lookup.Release]) -> Check:
    text = f"{error}: no release can load it."
    finding = _finding("PSM901", f"plugin library cannot be loaded: {error}", text[0].upper() + text[1:])
    uses = tuple(Use(release, {}, {}) for release in releases)
    return Check(path, "", (), False, (), uses, (), (), (finding,))


def _wanted(table: Table) -> tuple[int, list[int]]:
    return table.size, [slot.offset for slot in table.slots]


# STT_GNU_IFUNC: dlsym returns what the library's code returns.
_RESOLVED = ("gnu_ifunc", "loos")


def _tables(library: Library, findings: list[Finding]) -> Iterable[Found]:
    for table in tables():
        symbol = library.symbols.get(table.symbol)
        if symbol is None or not symbol.defined:
            continue
        if symbol.kind in _RESOLVED and table.size:
            yield Found(table, None, resolved=True)
            continue
        wrong, readable = _wrong(library, symbol, table)
        if wrong:
            severity = Severity.WARNING if readable else None
            title = f"{table.symbol} is not the table that its name promises"
            findings.append(_finding("PSM904", title, wrong, severity, 0.5 if readable else 1.0))
        if not readable:
            yield Found(table, None, sound=False, known=bool(table.size))
        elif not table.size:
            yield Found(table, None, known=False)
        else:
            words = [library.word(symbol.value + slot.offset) for slot in table.slots]
            name = library.text(words[0].address) if words[0].address else None
            yield _filled(table, name, [bool(word.address or word.symbol) for word in words])
    # Versions newer than all known ones.
    for name in sorted(library.symbols):
        kind = next((kind for kind in KINDS if family(kind, name)), None)
        if kind is not None and table_of(name) is None and library.symbols[name].defined:
            version = int(name.rpartition("_v")[2][:4])
            yield Found(Table(kind, version, name, 0, (), None, None, None), None, known=False)


def _filled(table: Table, name: str | None, there: Sequence[bool]) -> Found:
    slots = list(zip(table.slots, there, strict=True))
    return Found(
        table,
        name,
        tuple(slot.name for slot, is_there in slots if slot.required and not is_there),
        tuple((slot.name, slot.when) for slot, is_there in slots if not slot.required and not is_there),
    )


def _refreshed(before: Found, seen: tuple[str | None, tuple[bool, ...]]) -> Found:
    name, there = seen
    return _filled(before.table, name, there) if len(there) == len(before.table.slots) else before


def _wrong(library: Library, symbol: Symbol, table: Table) -> tuple[str, bool]:
    """Why a symbol is not a table of its version, and whether it may be one nevertheless."""
    if symbol.kind not in ("object", "notype"):
        kinds = {"func": "a function", "tls": "data of each thread"}
        what = kinds.get(symbol.kind, symbol.kind)
        return f"{symbol.name} is {what}; NCCL takes the address of the symbol for that of the table.", False
    if not library.mapped(symbol.value):
        return f"{symbol.name} has the address 0x{symbol.value:x}, which is outside of the library.", False
    if not table.size or not symbol.size or symbol.size == table.size:
        return "", True
    size = f"{symbol.name} is {symbol.size} bytes long"
    if symbol.size == 8:
        text = f"{size}, as a pointer is, the table {table.size}: NCCL takes the address of the symbol for that of the table."
        return text, False
    same = [t.symbol for t in tables() if t.kind == table.kind and t.size == symbol.size]
    like = f", as {same[-1]} would be" if same else ""
    return f"{size}{like}; a table of version {table.version} has {table.size}.", symbol.size > table.size and not same


def _judge(found: Found, library: Library, final: bool) -> Iterable[Finding]:
    table = found.table
    if not found.known:
        who = f"NCCL {table.first} and later look for it" if table.first else "no release that is known looks for it"
        yield _finding("PSM907", f"{table.symbol} is known by name only", f"{who}; its layout is not known.")
    if not found.empty:
        return
    if found.by_init:
        return  # _of_init
    count = len(found.empty)
    everything = len(table.slots) == count + len(found.lacking)
    what = (
        "all slots are"
        if everything
        else f"{count} slots are"
        if count > _TITLE
        else f"{_list(found.empty)} {'is' if count == 1 else 'are'}"
    )
    text = f"NULL in {table.symbol}: {_list(found.empty)}. NCCL uses {'it' if count == 1 else 'them'} without a check."
    if _older(found):
        text += " A release that knows this version takes it before older ones, which may be complete."
    finding = _finding("PSM903", f"{table.symbol}: {what} NULL", text)
    if _init_may_fill(found, library):
        text += f" The table is writable: init may fill it. {_AFTER_INIT} `psmkit plugin drive` shows whether it does."
        finding = replace(finding, severity=Severity.WARNING, confidence=0.5, explanation=text)
    elif not final and not library.constant(library.symbols[table.symbol].value):
        text += " The table is writable: code that runs when the library is loaded may fill it."
        finding = replace(finding, severity=Severity.WARNING, confidence=0.5, explanation=text)
    yield finding


_AFTER_INIT = "NCCL reads the other slots after init."
_READ_AFTER_INIT = ("net", "collnet", "tuner", "profiler")  # getNcclNet_vN, getNcclTuner_vN, getNcclProfiler_vN


def _init_may_fill(found: Found, library: Library) -> bool:
    if (
        found.table.kind not in _READ_AFTER_INIT
        or not found.empty
        or found.resolved
        or {"name", "init"} & {*found.empty}
    ):
        return False
    return not library.constant(library.symbols[found.table.symbol].value)


def _by_init(found: Found, library: Library) -> bool:
    required = sum(slot.required for slot in found.table.slots)
    return _init_may_fill(found, library) and len(found.empty) == required - 2


def _of_init(found: Sequence[Found]) -> Iterable[Finding]:
    names = [one.table.symbol for one in found if one.by_init]
    if names:
        title = f"{names[0] if len(names) == 1 else f'{len(names)} tables'} filled by init: only a run can tell"
        text = f"Only name and init are set in {_list(names)}, which can be written to. {_AFTER_INIT}"
        finding = _finding("PSM903", title, text, Severity.INFO)
        yield replace(finding, next_step="Run `psmkit plugin drive`: it reads the table after init, as NCCL does.")


def _older(found: Found) -> bool:
    return any(t.kind == found.table.kind and t.version < found.table.version for t in tables())


def _list(names: Sequence[str], most: int = _NAMES) -> str:
    shown = list(names[:most])
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _foreign(library: Library) -> Finding:
    return _finding(
        "PSM901",
        f"plugin library is built for {library.machine}",
        f"The library is built for {library.machine}; this machine is another. Its tables were read, and nothing of it was loaded.",
    )


def _unprovided(symbols: Sequence[str], libraries: Sequence[str], loaded: bool) -> Finding:
    parts = []
    if libraries:
        parts.append(f"Not found: {_list(libraries)}.")
    if symbols:
        parts.append(f"In no library that it is linked with: {_list(symbols)}.")
    title = f"plugin library needs {_list([*libraries, *symbols], _TITLE)}, which nothing provides"
    finding = _finding("PSM905", title, " ".join(parts))
    if loaded or all(_OF_THE_PROGRAM.match(name) for name in (*libraries, *symbols)):
        # RTLD_LOCAL hides a plugin's own libraries; those of the program are visible to all.
        where = "It loads only where the program has them, as it is linked with them or has loaded them for all"
        parts.append(f"{where}; the process that loaded it here did." if loaded else f"{where}: --preload tries that.")
        finding = replace(finding, severity=Severity.WARNING, confidence=0.5, explanation=" ".join(parts))
    return finding


def _hidden(library: Library, found: Sequence[Found]) -> Iterable[Finding]:
    """Symbols with almost the name of a table."""
    there = {one.table.symbol for one in found}
    for name in sorted(library.local):
        plain = re.sub(r"^_Z\w*?\d+(?=nccl)", "", name)
        plain = plain if table_of(plain) else plain.removesuffix("E")
        if table_of(plain) is not None and plain not in there:
            how = (
                "a constant of C++ has internal linkage"
                if name.startswith("_Z")
                else "it is static, or its visibility is hidden"
            )
            yield _finding(
                "PSM902",
                f"{plain} is not seen outside of the library",
                f"The library has {name}, but not as a dynamic symbol: {how}.",
            )
            there.add(plain)
    for name in sorted(library.symbols):
        symbol = library.symbols[name]
        if not symbol.defined or name in there or table_of(name) or not _NEAR.fullmatch(name):
            continue
        meant = _meant(name)
        if meant is not None and meant not in there:
            yield _finding(
                "PSM902", f"{name} is not a name that NCCL looks for", f"Should it be {meant}?", Severity.WARNING, 0.8
            )
    if not found:
        kinds = "ncclNetPlugin_v8, ncclTunerPlugin_v4, ncclProfiler_v4"
        yield _finding(
            "PSM902",
            "no plugin table in the library",
            f"It has none of the symbols that NCCL looks for, such as {kinds}.",
        )


def _meant(name: str) -> str | None:
    """The table with almost this symbol's name: in other case, with or without "Plugin", or mangled by C++."""
    plain = re.sub(r"^_Z\w*?\d+(?=nccl)", "", name)
    key = _blurred(plain.removesuffix("E") if plain != name else plain)
    return next((table.symbol for table in tables() if _blurred(table.symbol) == key), None)


def _blurred(name: str) -> str:
    return name.lower().replace("plugin", "").replace("_", "")


def _unused(found: Sequence[Found]) -> Iterable[Finding]:
    kinds = {one.table.kind for one in found}
    colls = [one.table.symbol for one in found if one.table.kind == "collnet"]
    if colls and "net" not in kinds:
        yield _finding(
            "PSM908",
            "CollNet tables without a net table",
            f"{_list(colls)}: NCCL looks for CollNet only in a library with a net table.",
        )
    for one in found:
        if one.known and one.table.first is None and not one.table.coming:
            yield _finding(
                "PSM908",
                f"{one.table.symbol} is used by no release",
                "It stands in headers alone: no release that is known looks for it.",
            )


def _use(release: lookup.Release, found: Sequence[Found], path: Path, settings: Mapping[str, str]) -> Use:
    there = {one.table.symbol for one in found}
    taken: dict[str, Table] = {}
    for kind in KINDS:
        first = next((table for table in release.tables(kind) if table.symbol in there), None)
        if first is not None and not (kind == "collnet" and "net" not in taken):
            taken[kind] = first
    # RMA v13 is GIN v13 under another name.
    if "rma" not in taken and release.number >= (2, 30, 3) and "ncclGinPlugin_v13" in there:
        gin = table_of("ncclGinPlugin_v13")
        assert gin is not None
        taken["rma"] = gin
    ways: dict[str, tuple[tuple[str, str | None], ...]] = {}
    for kind in taken:
        if settings:
            name = lookup.variable(kind)
            opened = lookup.opening(release, kind, settings.get(name), settings.get("NCCL_NET_PLUGIN"))
            ways[kind] = ((name, settings.get(name)),) if lookup.choose(opened, str(path)) else ()
        else:
            ways[kind] = tuple(lookup.settings(release, kind, str(path)))
    return Use(release, taken, ways)


def _refused(uses: Sequence[Use], found: Sequence[Found], path: Path, settings: Mapping[str, str]) -> Iterable[Finding]:
    sound = [one for one in found if one.sound]
    for use in uses:
        if not sound:
            continue
        absent = list(_not_looked_up(use.release, sound))
        yield from absent
        if absent and not use.taken:
            continue
        if not use.taken:
            kinds = list(dict.fromkeys(one.table.kind for one in sound))
            wants = [f"{kind} {_versions(use.release.tables(kind))}" for kind in kinds]
            has = [f"{kind} {_versions([o.table for o in sound if o.table.kind == kind])}" for kind in kinds]
            yield replace(
                _finding(
                    "PSM906",
                    f"{use.release} finds no table of the plugin",
                    f"{use.release} looks for {'; '.join(wants)}. The library has {'; '.join(has)}.",
                ),
                next_step="Add a table of a version that the release looks for. No setting or name of the library helps.",
            )
        elif not any(use.settings.values()):
            if settings:
                shown = " ".join(f"{name}={value}" for name, value in settings.items())
                text = f"With {shown} it opens another name: {_opened(use, settings)}."
            else:
                text = f"It opens {_opened(use, settings)}, and no setting makes it {path.name}."
            yield _finding("PSM906", f"{use.release} does not find the library", text)
        wanted = settings.get("NCCL_NET")
        if wanted is not None and "net" in use.taken and use.release.number >= (2, 12, 7):
            name = next((o.name for o in found if o.table == use.taken["net"]), None)
            if name is not None and name.lower() != wanted.lower():
                yield _finding(
                    "PSM906",
                    f"{use.release} does not choose the plugin: NCCL_NET={wanted}",
                    f"NCCL_NET is compared with the name in the table, which is {name!r}, and not with the name of the library.",
                )


def _not_looked_up(release: lookup.Release, sound: Sequence[Found]) -> Iterable[Finding]:
    """Kinds of the library's tables that this NCCL library does not look for, although its release does."""
    if release.symbols is None:
        return
    usual = replace(release, symbols=None, library="")
    for kind in dict.fromkeys(one.table.kind for one in sound):
        expected = usual.tables(kind)
        if not expected or release.tables(kind):
            continue
        names = f"{expected[0].symbol.rpartition('_v')[0]}_{_versions(expected)}"
        others = sorted(release.symbols)
        text = f"dlsym needs the name of a table as a string. {release.library} holds none of {names}, which NCCL {release.facts} looks for."
        if any(table.symbol in release.mentioned for table in expected):
            text += " Its messages mention them: the look-up itself was taken out."
        text += f" It does hold {_list(others)}." if others else ""
        yield replace(
            _finding("PSM906", f"{release} does not look {kind} plugins up", text),
            next_step="Use an NCCL that looks them up, or restore the calls of dlsym in its plugin loader. No setting or name of the plugin helps.",
        )


def _opened(use: Use, settings: Mapping[str, str]) -> str:
    kind = next(iter(use.taken))
    opened = lookup.opening(use.release, kind, settings.get(lookup.variable(kind)), settings.get("NCCL_NET_PLUGIN"))
    names = [name for plugin in opened.plugins for name in lookup.names(plugin)]
    return _list(names, 4) if names else opened.why or "nothing"


def _versions(some: Iterable[Table]) -> str:
    numbers = sorted({table.version for table in some})
    if not numbers:
        return "in no version"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"v{a}" if a == b else f"v{a} to v{b}" for a, b in runs)
