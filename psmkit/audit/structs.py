"""The audit of structs that cross a process boundary: inputs, findings, suppressions."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psmkit.audit.child import AuditError, ask
from psmkit.audit.types import decoded, types_of
from psmkit.model import CODES, Evidence, Finding, Severity
from psmkit.model.errors import InputError
from psmkit.model.structs import Field, Struct
from psmkit.model.wording import counted, plural

__all__ = [
    "Audit",
    "AuditError",
    "Suppression",
    "arguments",
    "audit_structs",
    "headline",
    "leak",
    "summary",
    "suppressions",
]

SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu")
_DEADLINE = 120.0  # seconds
_SHOWN = 12
_NOTHING = "psmkit knows none of its types to cross a process boundary"


@dataclass(frozen=True, slots=True)
class Suppression:
    """A field, or all of a struct, that the user knows to be harmless. ``function``: a copy in that function."""

    reason: str
    struct: str = ""
    member: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        structs: the types that were looked at.
        findings: by severity.
        suppressed: findings that a suppression took out, with its reason.
        notes: what was not looked at, and why.
        entries: tables of functions in the sources: transports, variants; and the findings that can be reached from each, by index.
    """

    structs: tuple[Struct, ...]
    findings: tuple[Finding, ...]
    suppressed: tuple[tuple[Finding, str], ...] = ()
    notes: tuple[str, ...] = ()
    entries: tuple[tuple[str, tuple[int, ...]], ...] = ()


def suppressions(path: Path) -> list[Suppression]:
    """The suppressions of a TOML file: tables ``[[suppress]]`` with ``reason``, and ``struct``, ``member`` or ``function``.

    Raises:
        InputError: it cannot be read, or a suppression has no reason.
    """
    try:
        data = tomllib.loads(path.read_text("utf-8"))
        found = [Suppression(**one) for one in data.get("suppress", [])]
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(str(path), f"no file of suppressions: {error}") from None
    for one in found:
        if not all(isinstance(text, str) for text in (one.reason, one.struct, one.member, one.function)):
            raise InputError(str(path), "a suppression has a value that is no text")
        if not one.reason.strip():
            raise InputError(str(path), f"the suppression of {one.struct or one.function} has no reason")
        if not one.struct and not one.function:
            raise InputError(str(path), "a suppression names neither a struct nor a function")
    return found


def audit_structs(
    paths: Sequence[Path],
    asked: Sequence[str] = (),
    *,
    flags: str = "",
    commands: Path | None = None,
    suppress: Sequence[Suppression] = (),
    deadline: float = _DEADLINE,
) -> Audit:
    """Audit libraries, object files and sources.

    Args:
        paths: of files. Sources (.c, .cc, .cpp, .cxx, .cu) are parsed, of all others the debug information is read.
        asked: further types that cross.
        flags: of the compiler, for sources.
        commands: a compile_commands.json, with the flags of each source.
        suppress: what is known to be harmless.
        deadline: seconds for each library, and for each source.

    Raises:
        InputError: a file cannot be read.
        AuditError: a file cannot be audited.
    """
    sources = [path for path in paths if path.suffix in SOURCES]
    structs: list[Struct] = []
    findings: list[tuple[Finding, Struct | None, dict[str, Any] | None]] = []
    notes: list[str] = []
    for path in paths:
        if path in sources:
            continue
        some, _ = types_of(path, asked, deadline=deadline)
        if not some and not asked:
            raise AuditError(f"{path}: {_NOTHING}: name them with --wire")
        structs += some
        findings += [(leak(one, str(path)), one, None) for one in some if one.local]
    if len(sources) < len(paths):
        notes.append(
            "of a library psmkit knows the types that cross by their names, by PSM_SHAREABLE and by --wire: it did not look at others, and not at what "
            "the code does with them. Give the sources for that"
        )
    entries: list[tuple[str, list[int]]] = []
    if sources:
        answer = ask(
            "sources",
            {"path": str(sources[0]), "sources": arguments(sources, flags, commands), "asked": list(asked)},
            str(sources[0]),
            deadline * len(sources),
        )
        known = {(one.name, one.size) for one in structs}
        some = [decoded(one) for one in answer["structs"]]
        structs += [one for one in some if (one.name, one.size) not in known]
        # A copy says more than its type.
        copied = {flow["struct"] for flow in answer["flows"] if flow["kind"] == "leak"}
        new = [one for one in some if one.local and (one.name, one.size) not in known and one.name not in copied]
        findings += [(leak(one, one.file), one, None) for one in new]
        findings += [(_flow(one), None, one) for one in answer["flows"]]
        entries = [(str(name), []) for name in answer["entries"]]
        if not some and not answer["handlers"]:
            raise AuditError(f"{sources[0]}: {_NOTHING}, and no code that handles messages: name types with --wire")
        notes += [str(one) for one in answer["notes"]]
    names = {name for one in structs for name in (one.name, one.plain)}
    if missing := [name for name in asked if name not in names]:
        raise AuditError(f"{paths[0]}: it has no type {', '.join(missing)}")
    notes += [
        f"{one.name}: {', '.join(one.unknown[:4])} {plural(len(one.unknown), 'is', 'are')} of a type that is only declared here"
        for one in structs
        if one.unknown
    ]
    return _sorted(structs, findings, entries, notes, suppress)


def _sorted(
    structs: list[Struct],
    findings: list[tuple[Finding, Struct | None, dict[str, Any] | None]],
    entries: list[tuple[str, list[int]]],
    notes: list[str],
    suppress: Sequence[Suppression],
) -> Audit:
    kept: list[tuple[Finding, dict[str, Any] | None]] = []
    suppressed: list[tuple[Finding, str]] = []
    used: set[Suppression] = set()
    for finding, one, flow in findings:
        left, reasons = _without(one, flow, suppress)
        used |= reasons
        if not reasons:
            kept.append((finding, flow))
            continue
        suppressed.append((finding, "; ".join(sorted(reason.reason for reason in reasons))))
        if one is not None and left:
            kept.append((leak(replace(one, local=left), finding.evidence[0].file), flow))
    for rule in suppress:
        if rule not in used:
            notes.append(
                f"the suppression of {rule.struct or rule.function}{'.' if rule.member else ''}{rule.member} matches nothing"
            )
    kept.sort(key=lambda pair: (-pair[0].severity.weight, pair[0].code, pair[0].title))
    reached = {name: [i for i, (_, flow) in enumerate(kept) if flow and name in flow["reached"]] for name, _ in entries}
    return Audit(
        tuple(structs),
        tuple(finding for finding, _ in kept),
        tuple(suppressed),
        tuple(dict.fromkeys(notes)),
        tuple((name, tuple(some)) for name, some in reached.items()),
    )


def _without(
    one: Struct | None, flow: dict[str, Any] | None, suppress: Sequence[Suppression]
) -> tuple[tuple[Field, ...], set[Suppression]]:
    """The fields that no suppression takes, and those that took the others."""
    if one is not None:
        mine = [rule for rule in suppress if rule.struct and rule.struct in (one.name, one.plain)]
        taken = {field: rule for field in one.local for rule in mine if rule.member in ("", field.path)}
        return tuple(field for field in one.local if field not in taken), set(taken.values())
    assert flow is not None
    return (), {rule for rule in suppress if rule.function and rule.function == flow["function"]}


# ---- findings ----


_PLURAL = {
    "a mutex or another lock": "locks",
    "an address": "addresses",
    "a device address": "device addresses",
    "a pointer to a function": "pointers to functions",
    "a context, graph or module": "contexts, graphs or modules",
}


def summary(fields: Sequence[Field]) -> str:
    """``a stream, events and 3 pointers``."""
    kinds: dict[str, list[Field]] = {}
    for one in fields:
        kinds.setdefault(one.kind, []).append(one)
    words = []
    for kind, some in kinds.items():
        several = _PLURAL.get(kind, kind.partition(" ")[2] + "s")
        if len(some) > 1:
            words.append(f"{len(some)} {several}")
        else:
            words.append(several if some[0].path.endswith("]") else kind)
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def _kind(field: Field) -> str:
    """What a field is; with the reason, where the type does not prove it."""
    if field.sure:
        return field.kind
    return f"{field.kind}, by its {'name' if field.kind == 'a file descriptor' else 'type'}"


def leak(one: Struct, file: str) -> Finding:
    """A type that crosses with local fields."""
    code = CODES["PSM521"]
    known = [field for field in one.local if field.why]
    sure = any(field.sure for field in one.local)
    shown = one.local[:_SHOWN]
    more = f" and {len(one.local) - len(shown)} more" if len(one.local) > len(shown) else ""
    way = f"It crosses as {one.way} (known by {one.basis})." if one.way else f"It crosses: known by {one.basis}."
    listed = ", ".join(f"{field.path} (byte {field.offset}: {_kind(field)})" for field in shown)
    text = f"{way} Of its {one.size} bytes: {listed}{more}."
    for field in known[:4]:
        text += f" {field.path}: in NCCL's own code {field.why}; a fork may differ."
    if not sure:
        text += " The types alone do not prove that these are local."
    place = one.file or file
    lines = [Evidence(place, one.line, f"{one.name}, {one.size} bytes")]
    seen = {one.line}
    for field in shown:
        if field.line and field.line not in seen:
            seen.add(field.line)
            lines.append(Evidence(place, field.line, f"{field.type} {field.path}: {_kind(field)}"))
    return Finding(
        code.code,
        f"{one.name} leaves the process with {summary(one.local)}",
        Severity.INFO if len(known) == len(one.local) else Severity.WARNING,
        0.9 if sure else 0.4,
        text,
        code.next_step,
        tuple(lines),
        stage=one.name,
    )


_HANDLES = ("a stream", "an event", "a mutex or another lock", "a thread", "a context, graph or module", "an open file")


def _flow(flow: dict[str, Any]) -> Finding:
    """A copy in the sources."""
    fields = [Field(**one) for one in flow["fields"]]
    what = summary(fields) or "resources of a type that the sources do not show"
    whose = f" of {flow['struct']}" if flow["struct"] else ""
    part = " A part of it is copied, and which one the sources do not show." if flow["part"] and fields else ""
    listed = (
        f" It holds {', '.join(f'{one.path} ({_kind(one)})' for one in fields[:_SHOWN] if one.path)}." if whose else ""
    )
    reached = flow["reached"]
    from_ = f" Reached from {', '.join(reached[:6])}{' and more' if len(reached) > 6 else ''}." if reached else ""
    name = flow["function"]
    severity = Severity.WARNING
    if flow["kind"] == "leak":
        code = CODES["PSM521"]
        title = f"{name} copies {what}{whose} into {flow['way']}"
        text = f"The copy takes process-local fields to whoever reads the message.{listed}{part}{from_}"
    else:
        code = CODES["PSM522"]
        handles = not fields or any(one.kind in _HANDLES for one in fields)
        if flow["peer"] and handles:
            severity = Severity.ERROR
        if flow["kind"] == "write":
            carries = (
                " that carries the connect info of the peer" if flow["peer"] and flow["way"] != "connect info" else ""
            )
            title = f"{name} writes a message over {what}{whose}"
            text = f"The bytes come from {flow['way']}{carries}, and go over resources that this process made for the connection.{listed}{part}{from_}"
        else:
            title = f"{name} uses {what} out of a peer's message: {fields[0].path}"
            text = f"The handle comes from {flow['way']}: it belongs to the process of the peer.{from_}"
        if not flow["peer"]:
            text += " The sources do not show whether the message comes from another process."
    evidence = [Evidence(flow["file"], flow["line"], f"{name}()")]
    return Finding(
        code.code,
        title,
        severity,
        0.9 if flow["peer"] or flow["kind"] == "leak" else 0.5,
        text,
        code.next_step,
        tuple(evidence),
        stage=f"{name} {flow['kind']}",
    )


# ---- sources ----


def arguments(sources: Sequence[Path], flags: str, commands: Path | None) -> list[tuple[str, list[str]]]:
    """Each source with the flags of its compilation. Errors as `audit_structs`."""
    try:
        own = shlex.split(flags)
    except ValueError as error:
        raise AuditError(f"--cflags: {error}") from None
    found = _compiled(commands) if commands else {}
    own += _builtin()
    out = []
    for path in sources:
        if not path.is_file():
            raise InputError(str(path), "no such file")
        out.append((str(path), [*found.get(path.resolve(), []), *own]))
    return out


def _builtin() -> list[str]:
    """Where the compiler has stddef.h and others: libclang's package has none."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return []
    try:
        done = subprocess.run(
            [*shlex.split(compiler), "-print-file-name=include"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    folder = done.stdout.strip()
    return ["-isystem", folder] if os.path.isabs(folder) else []


def _compiled(path: Path) -> dict[Path, list[str]]:
    """The flags that a compile_commands.json gives, as far as a parser needs them."""
    file = path / "compile_commands.json" if path.is_dir() else path
    try:
        entries = json.loads(file.read_text("utf-8"))
        found = {}
        for entry in entries:
            words = entry.get("arguments") or shlex.split(entry["command"])
            folder = Path(entry["directory"])
            found[(folder / entry["file"]).resolve()] = list(_parser_flags(words[1:], folder))
    except OSError as error:
        raise InputError(str(file), error.strerror or str(error)) from None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise InputError(str(file), "no compile_commands.json") from None
    return found


def _parser_flags(words: Sequence[str], folder: Path) -> Iterable[str]:
    rest = iter(words)
    for word in rest:
        if word in ("-I", "-isystem", "-iquote", "-include", "-D", "-U", "-idirafter"):
            value = next(rest, "")
            yield word
            yield value if word in ("-D", "-U") else str(folder / value)
        elif word.startswith("-I"):
            yield f"-I{folder / word[2:]}"
        elif word.startswith(("-D", "-U", "-std=", "-isystem")):
            yield word


def headline(findings: Sequence[Finding]) -> str:
    """``1 error, 2 warnings``; ``nothing found``."""
    counts = Counter(finding.severity for finding in findings)
    parts = [
        counted(counts[one], word)
        for one, word in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "note"))
        if counts[one]
    ]
    return ", ".join(parts) or "nothing found"
