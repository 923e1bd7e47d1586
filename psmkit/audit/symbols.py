"""The audit of symbols: what libraries export, what collides, and which versions of symbols this machine lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit.audit.child import AuditError
from psmkit.live.machine.facts import Machine
from psmkit.live.machine.libraries import Loader
from psmkit.model import CODES, Finding, Severity
from psmkit.model.wording import counted, plural
from psmkit.plugins import elf, loader
from psmkit.plugins.abi import KINDS, family, table_of

__all__ = ["Exports", "Need", "SymbolAudit", "audit_symbols"]

_SHOWN = 8
# What the linker and the start-up code of each library define.
_COMMON = frozenset({"_init", "_fini", "__bss_start", "_edata", "_end", "__data_start", "data_start", "edata", "end"})
_STDCPP = ("_ZNSt", "_ZNKSt", "_ZSt", "_ZTISt", "_ZTSSt", "_ZTVSt", "_ZN9__gnu_cxx", "_ZNK9__gnu_cxx")


@dataclass(frozen=True, slots=True)
class Need:
    """A library that another one needs, with the versions of its symbols.

    Attributes:
        library: its name.
        versions: that are needed, such as GLIBC_2.34.
        found: the file that the loader of this machine takes; empty: none.
        lacking: of the versions, those that the file does not define.
    """

    library: str
    versions: tuple[str, ...]
    found: str = ""
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exports:
    """What a library exports and needs.

    Attributes:
        kind: ``NCCL``, ``plugin``, ``links PSM``, or empty.
        tables: of plugins.
        symbols: all that it exports.
        others: what it exports that neither NCCL's API nor a table of a plugin has.
        undefined: symbols of no library that this machine's loader finds for it; None: it was not asked.
        bound: it binds its own references to itself (-Bsymbolic).
    """

    path: Path
    machine: str
    native: bool
    kind: str
    tables: tuple[str, ...]
    symbols: tuple[str, ...]
    others: tuple[str, ...]
    needs: tuple[Need, ...]
    undefined: tuple[str, ...] | None
    bound: bool


@dataclass(frozen=True, slots=True)
class SymbolAudit:
    """The result: libraries, findings, and what was not looked at."""

    libraries: tuple[Exports, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


def audit_symbols(paths: Sequence[Path], nccl: Path | None = None) -> SymbolAudit:
    """Look at libraries, without running any of their code.

    Args:
        paths: of libraries that link PSM, of plugins.
        nccl: the NCCL library that loads them, or is loaded with them.

    Raises:
        InputError: a file cannot be read.
        AuditError: a file is no library that a loader accepts.
    """
    machine = Machine()
    libraries = [_library(path, machine) for path in paths]
    every = libraries if nccl is None else [*libraries, _library(nccl, machine)]
    findings = [*_collisions(every), *_lacking(libraries)]
    findings.sort(key=lambda one: (-one.severity.weight, one.code, one.title))
    notes = []
    for one in libraries:
        if not one.native:
            notes.append(
                f"{one.path.name} is built for {one.machine}: which versions this machine has says nothing about it"
            )
    if len(every) == 1 and every[0].kind != "NCCL":
        notes.append("--nccl LIB compares with the symbols of an NCCL library")
    return SymbolAudit(tuple(every), tuple(findings), tuple(notes))


def _library(path: Path, machine: Machine) -> Exports:
    try:
        library = elf.read(path)
    except elf.NotLoadable as error:
        raise AuditError(f"{path}: {error}") from None
    exported = [one for one in library.symbols.values() if one.defined and one.name not in _COMMON]
    names = {one.name for one in exported}
    tables = tuple(sorted(name for name in names if table_of(name) or any(family(kind, name) for kind in KINDS)))
    is_nccl = "ncclCommInitRank" in names
    psm = any(name.startswith("psm") for name in library.symbols)
    kind = "NCCL" if is_nccl else "plugin" if tables else "links PSM" if psm else ""
    others = tuple(
        sorted(name for name in names if name not in tables and not (is_nccl and name.startswith(("nccl", "pnccl"))))
    )
    wanted, bound, run = _dynamic(path)
    undefined = None
    if library.native:
        traced = loader.trace(path)
        undefined = traced.symbols if traced is not None else None
    needs = tuple(
        _needs(library.needed, wanted, run, machine, path) if library.native else _unsought(library.needed, wanted)
    )
    weak = {one.name for one in exported if one.weak}
    return Exports(
        path,
        library.machine,
        library.native,
        kind,
        tables,
        tuple(sorted(names - {name for name in weak if name.startswith(_STDCPP)})),
        others,
        needs,
        undefined,
        bound,
    )


def _dynamic(path: Path) -> tuple[dict[str, list[str]], bool, tuple[list[str], list[str]]]:
    """Versions that are needed by library, whether references are bound to itself, and the folders of DT_RPATH and DT_RUNPATH."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    wanted: dict[str, list[str]] = {}
    bound = False
    run: tuple[list[str], list[str]] = ([], [])
    try:
        with path.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                if isinstance(section, GNUVerNeedSection):
                    for need, versions in section.iter_versions():
                        wanted.setdefault(str(need.name), []).extend(str(one.name) for one in versions)
                elif isinstance(section, DynamicSection):
                    for tag in section.iter_tags():
                        kind = tag.entry.d_tag
                        bound = bound or kind == "DT_SYMBOLIC" or (kind == "DT_FLAGS" and bool(tag.entry.d_val & 2))
                        if kind in ("DT_RPATH", "DT_RUNPATH"):
                            text = str(getattr(tag, "rpath" if kind == "DT_RPATH" else "runpath"))
                            origin = str(path.parent.absolute())
                            folders = [
                                one.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
                                for one in text.split(":")
                                if one
                            ]
                            run[kind == "DT_RUNPATH"].extend(folders)
    except Exception:  # of a damaged table of sections, which a loader ignores
        return {}, False, ([], [])
    return {name: sorted(set(some), key=_order) for name, some in wanted.items()}, bound, run


def _order(version: str) -> tuple[bool, str, tuple[int, ...]]:
    """Versions with a number last: GLIBC_ABI_DT_RELR is none."""
    name, _, number = version.rpartition("_")
    return number[:1].isdigit(), name, tuple(int(part) if part.isdigit() else 0 for part in number.split("."))


def _unsought(needed: Iterable[str], wanted: Mapping[str, Sequence[str]]) -> Iterator[Need]:
    for name in needed:
        yield Need(name, tuple(wanted.get(name, ())))


def _needs(
    needed: Iterable[str],
    wanted: Mapping[str, Sequence[str]],
    run: tuple[Sequence[str], Sequence[str]],
    machine: Machine,
    path: Path,
) -> Iterator[Need]:
    places = Loader(machine)
    for name in needed:
        before = () if run[1] else run[0]
        found = places.find_all(name, before, run[1])
        versions = tuple(wanted.get(name, ()))
        if not found:
            yield Need(name, versions)
            continue
        defined = _defined(Path(found[0])) if versions else None
        lacking = tuple(one for one in versions if defined is not None and one not in defined)
        yield Need(name, versions, found[0], lacking)


def _defined(path: Path) -> frozenset[str] | None:
    """The versions that a library defines; None: it cannot be read."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerDefSection

    try:
        with path.open("rb") as file:
            sections: Any = ELFFile(file).iter_sections()
            for section in sections:
                if isinstance(section, GNUVerDefSection):
                    return frozenset(str(next(iter(names)).name) for _, names in section.iter_versions())
    except Exception:  # a script of the linker, a damaged file
        return None
    return frozenset()


# ---- findings ----


def _list(names: Sequence[str], most: int = _SHOWN) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _finding(code: str, title: str, text: str, severity: Severity | None = None, sure: float = 1.0) -> Finding:
    kind = CODES[code]
    return Finding(code, title, severity or kind.severity, sure, text, kind.next_step, stage=title)


def _collisions(every: Sequence[Exports]) -> Iterator[Finding]:
    for number, one in enumerate(every):
        for other in every[number + 1 :]:
            # Each plugin has tables: NCCL asks the library for them, and no linker binds to them.
            both = sorted(set(one.symbols) & set(other.symbols) - set(one.tables) - set(other.tables))
            both = [name for name in both if not name.startswith(_STDCPP)]
            if not both:
                continue
            title = f"{one.path.name} and {other.path.name} both export {_list(both, 2)}"
            text = (
                f"{counted(len(both), 'symbol')} {plural(len(both), 'is', 'are')} in both: {_list(both)}. The loader binds a reference to the first library in "
                "its order that has the name: where NCCL or the program has it, a plugin's own call goes there."
            )
            free = [lib for lib in (one, other) if not lib.bound and lib.kind != "NCCL"]
            if not free:
                text += f" {one.path.name} and {other.path.name} bind their own references to themselves (-Bsymbolic), so their own calls are right."
            yield _finding("PSM909", title, text, Severity.WARNING if free else Severity.INFO, 0.8)


def _lacking(libraries: Sequence[Exports]) -> Iterator[Finding]:
    for one in libraries:
        for need in one.needs:
            if need.lacking:
                title = f"{one.path.name} needs {need.lacking[-1]}, which {need.library} of this machine lacks"
                text = f"{need.found} does not define {_list(need.lacking)}: the load fails here. It was built on a newer system."
                yield _finding("PSM905", title, text)
        gone = [need.library for need in one.needs if not need.found] if one.native else []
        if gone:
            title = f"{one.path.name} needs {_list(gone, 3)}, which the loader of this machine does not find"
            text = "A program that has loaded such a library before makes it available, too; LD_LIBRARY_PATH adds its folder."
            yield _finding("PSM905", title, text, Severity.WARNING, 0.7)
        if one.undefined:
            title = f"{one.path.name} needs {_list(one.undefined, 3)}, which none of its libraries has"
            text = f"In no library that it is linked with: {_list(one.undefined)}. It loads only where the program has them."
            yield _finding("PSM905", title, text, Severity.WARNING, 0.7)
