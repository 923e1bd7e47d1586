"""Plugins that a process asked for and did not get, with the lines that say why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event
from psmkit.model.late import dataclass, regex

__all__ = ["Unloaded", "Unused", "unloaded", "unused"]

#: The libraries that NCCL and RCCL look for by default, also where the end of a log cuts the name.
_DEFAULT = regex(r"lib(?:nccl|rccl)-(net|tuner|profiler|env|gin|rma)(?:\.(?:s|so(?:\.\d+)*)?)?")
#: The kind of a plugin in the usual name of its library.
_USUAL = regex(r"lib(?:nccl|rccl)-(net|tuner|profiler|env|gin|rma)\b")
_SETTING = regex(r"NCCL_(NET|TUNER|PROFILER|ENV|GIN|RMA)_PLUGIN")
#: Values of a setting that ask for no plugin.
_NONE = frozenset({"", "none"})
#: Lines about a library that does not load, the most telling first.
_FAILURES = (
    "plugin.load_error",
    "plugin.dlopen_failed",
    "plugin.unsupported",
    "plugin.symbol_missing",
    "plugin.profiler.failed",
    "plugin.external_failed",
    "plugin.not_found",
    "plugin.tuner.none",
)
_LOADED = ("plugin.loaded", "plugin.loaded.unversioned")
_ABSENT = "No such file or directory"


@dataclass(frozen=True, slots=True)
class Unused:
    """A plugin that a process does not use.

    ``kind`` is ``NET``, ``TUNER``, ...; ``name`` is what was asked for. ``asked`` is the line of the setting, None if only the
    name of the library shows that it is not the default. ``wanted`` is False for an installed default library that does not load.
    ``lines`` say why, the most telling first. ``network`` is what the process uses for data.
    """

    proc: int
    kind: str
    name: str
    asked: Event | None
    wanted: bool
    lines: tuple[Event, ...]
    network: str | None


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A net plugin that a process unloaded when a communicator ended, and did not load again for the next one."""

    proc: int
    name: str
    before: str
    after: str
    lines: tuple[Event, ...]


@once
def unloaded(job: Job) -> list[Unloaded]:
    """The net plugins that processes lost: NCCL 2.28.3 to 2.29.7 forgets the name of one that it unloads."""
    using: dict[int, Event] = {}
    gone: dict[int, Event] = {}
    out: dict[int, Unloaded] = {}
    for event in job.events("net.using", "plugin.net.unloaded"):
        proc, before = event.proc, using.get(event.proc)
        if event.name == "plugin.net.unloaded":
            gone.setdefault(proc, event)
        elif before is None or proc not in gone:
            using.setdefault(proc, event)
        elif _network(event) != _network(before):
            lines = (event, gone[proc], before)
            out.setdefault(
                proc, Unloaded(proc, str(gone[proc].fields["name"]).strip(), _network(before), _network(event), lines)
            )
    return list(out.values())


def _network(using: Event) -> str:
    return str(using.fields["net"]).strip()


@once
def unused(job: Job) -> list[Unused]:
    """The plugins that processes asked for or have installed, and that NCCL could not load."""
    failures = _by_proc(job, _FAILURES)
    settings = _by_proc(job, ("param.env", "plugin.env_name"))
    loaded = _by_proc(job, _LOADED)
    networks = {proc: str(name or "") for proc, _, name in job.values("name", "plugin.net.initialized")}
    networks |= {proc: str(name or "") for proc, _, name in job.values("net", "net.using")}
    out: list[Unused] = []
    for proc, lines in sorted(failures.items()):
        got = {_kind(e) for e in loaded.get(proc, ())}
        asked = _asked(settings.get(proc, ()))
        for kind, events in sorted(_by_kind(lines, asked).items()):
            if kind in got or None in got:
                continue
            found = _judged(proc, kind, events, asked.get(kind), (networks.get(proc) or "").strip() or None)
            if found is not None:
                out.append(found)
    return out


def _by_proc(job: Job, names: Iterable[str]) -> dict[int, list[Event]]:
    out: dict[int, list[Event]] = defaultdict(list)
    for event in job.events(*names):
        if event.proc >= 0:
            out[event.proc].append(event)
    return out


def _asked(events: Iterable[Event]) -> dict[str, tuple[str, Event]]:
    """What the settings of a process ask for, by kind."""
    out: dict[str, tuple[str, Event]] = {}
    for event in events:
        if event.name == "param.env":
            setting = _SETTING.fullmatch(str(event.fields.get("name", "")))
            kind, value = (setting[1] if setting else ""), str(event.fields.get("value", "")).rstrip(". ")
        else:
            kind, value = _kind(event) or "NET", str(event.fields.get("lib", "")).strip()
        if kind and value.lower() not in _NONE:
            out.setdefault(kind, (value, event))
    return out


def _kind(event: Event) -> str | None:
    """The kind of plugin that a line is about; None if it does not say."""
    kind = str(event.fields.get("kind", ""))
    if kind:
        return kind.upper()
    usual = _USUAL.search(_names(event))
    if usual is not None:
        return usual[1].upper()
    if "what" in event.fields or event.name == "plugin.unsupported":
        return "NET"
    return "PROFILER" if event.name == "plugin.profiler.failed" else None


def _names(event: Event) -> str:
    """The libraries that a line names."""
    return " ".join(str(event.fields[key]) for key in ("names", "lib", "name") if key in event.fields)


def _by_kind(lines: Iterable[Event], asked: Mapping[str, tuple[str, Event]]) -> dict[str, list[Event]]:
    out: dict[str, list[Event]] = defaultdict(list)
    for event in lines:
        kind = _kind(event)
        if kind is None:
            kind = next((k for k, (value, _) in asked.items() if value in _names(event)), None)
        if kind is not None:
            out[kind].append(event)
    return out


def _judged(
    proc: int, kind: str, events: list[Event], asked: tuple[str, Event] | None, network: str | None
) -> Unused | None:
    """What the lines about one kind of plugin show, None if nobody asked for one and none is installed."""
    events = sorted(events, key=lambda e: (_absent(e), _FAILURES.index(e.name), e.ref.seq))
    if asked is not None:
        return Unused(proc, kind, asked[0], asked[1], True, tuple(events), network)
    for event in events:
        special = [name for name in _names(event).split() if _USUAL.match(name) and not _DEFAULT.fullmatch(name)]
        if special:
            return Unused(proc, kind, special[0], None, True, tuple(events), network)
    broken = [e for e in events if e.name in ("plugin.load_error", "plugin.dlopen_failed") and not _absent(e)]
    if kind == "NET" and broken and network == "Socket":
        return Unused(proc, kind, _names(broken[0]) or "libnccl-net.so", None, False, tuple(broken), network)
    return None


def _absent(event: Event) -> bool:
    """Whether a line only says that the library itself is not there."""
    why = str(event.fields.get("err", ""))
    if not why:
        return event.name in ("plugin.not_found", "plugin.tuner.none")
    if not why.endswith(_ABSENT):
        return False
    missing = why.split(":", 1)[0].strip()
    return not _names(event) or missing in _names(event) or _DEFAULT.fullmatch(missing) is not None
