"""Which NCCL a program of this machine would load, and which plugins this NCCL would find with the present settings."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from psmkit.lab.nccl_library import version_of
from psmkit.live.machine import Check, Machine
from psmkit.live.machine.environment import known_since, settings
from psmkit.live.machine.gpus import driver_version
from psmkit.live.machine.libraries import Loader
from psmkit.model.errors import PsmkitError
from psmkit.plugins import check, lookup
from psmkit.plugins.abi import nccl_releases, release_number

__all__ = ["Installed", "checks", "installed"]

_AREA = "NCCL"
_NAMES = ("libnccl.so.2", "librccl.so.1")
_WHEELS = ("nvidia/nccl/lib/libnccl.so.2", "nvidia/cu13/lib/libnccl.so.2")
_WHEEL = "a package of this Python"
_DRIVERS = {"11": 450, "12": 525, "13": 580}  # the first series of the driver for each major version of CUDA
_BUILT_IN = ("ib", "socket")
_NOT_FOUND = ": not found"


@dataclass(frozen=True, slots=True)
class Installed:
    """An NCCL library: who loads it, where it is, and its version; an empty version: it has no text that says it."""

    who: str
    path: str
    version: str
    cuda: str = ""
    vendor: str = "NCCL"
    rpath: tuple[str, ...] = ()  # folders of its own, for what it opens
    runpath: tuple[str, ...] = ()

    def __str__(self) -> str:
        cuda = f", CUDA {self.cuda}" if self.cuda else ""
        return f"{self.vendor} {self.version or 'of unknown version'}{cuda}: {self.path}"


def installed(machine: Machine) -> tuple[list[Installed], list[Installed]]:
    """The libraries that are loaded, by whom; and all others that lie where a loader or a Python looks."""
    loader = Loader(machine)
    loaded: list[Installed] = []
    preloaded = [name for name in loader.preloaded if os.path.basename(name).startswith(("libnccl.", "librccl."))]
    found = {name: loader.find_all(name) for name in _NAMES}
    every = dict.fromkeys((path for paths in found.values() for path in paths), "")
    for name in preloaded:
        paths = loader.find_all(name)
        every |= dict.fromkeys(paths, "")
        loaded += [_made(machine, "every program (LD_PRELOAD)", path) for path in paths[:1]]
    for folder in machine.packages:
        wheels = [str(_inside(machine, folder / wheel)) for wheel in _WHEELS if os.path.exists(folder / wheel)]
        every |= {wheel: _WHEEL for wheel in wheels if wheel not in every}
        if not loaded and (torch := _of_torch(machine, loader, folder / "torch/lib/libtorch_cuda.so")):
            loaded.append(torch)
    if not preloaded:
        for paths in found.values():
            loaded += [_made(machine, "programs linked to it", path) for path in paths[:1]]
    known = {_real(machine, one.path) for one in loaded}
    return loaded, [_made(machine, who, path) for path, who in every.items() if _real(machine, path) not in known]


def _real(machine: Machine, path: str) -> str:
    return os.path.realpath(machine.path(path))


def _inside(machine: Machine, path: Path) -> str:
    """The name of a path within the machine."""
    return str(path) if machine.here else f"/{path.relative_to(machine.root)}"


def _made(machine: Machine, who: str, path: str) -> Installed:
    version, cuda = "", (0, 0)
    with contextlib.suppress(OSError):
        version, cuda = version_of(machine.path(path))
    dynamic = _dynamic(machine.path(path))
    vendor = "RCCL" if os.path.basename(path).startswith("librccl") else "NCCL"
    text = f"{cuda[0]}.{cuda[1]}" if version else ""
    return Installed(who, path, version, text, vendor, *(_folders(dynamic, tag, path) for tag in _TAGS))


_TAGS = ("DT_RPATH", "DT_RUNPATH")


def _of_torch(machine: Machine, loader: Loader, library: Path) -> Installed | None:
    """The NCCL of PyTorch. A folder of DT_RPATH comes before LD_LIBRARY_PATH, one of DT_RUNPATH after it."""
    if not os.path.exists(library):
        return None
    name = _inside(machine, library)
    dynamic = _dynamic(library)
    if not dynamic.get("DT_NEEDED"):
        return None
    wanted = next((n for n in dynamic["DT_NEEDED"] if n.startswith(("libnccl.so", "librccl.so"))), "")
    if not wanted:
        linked = _made(machine, "PyTorch (linked into it)", name)
        return linked if linked.version else None
    run = _folders(dynamic, "DT_RUNPATH", name)
    before = () if run else _folders(dynamic, "DT_RPATH", name)  # DT_RUNPATH makes the loader ignore the other
    paths = loader.find_all(wanted, before, run)
    return _made(machine, "PyTorch of this Python", paths[0]) if paths else None


def _reads_elf() -> bool:
    """Whether there is pyelftools."""
    try:
        import elftools  # noqa: F401
    except ImportError:
        return False
    return True


def _folders(dynamic: Mapping[str, Sequence[str]], tag: str, path: str) -> tuple[str, ...]:
    origin = os.path.dirname(path)
    texts = [folder for text in dynamic.get(tag, ()) for folder in text.split(":") if folder]
    return tuple(os.path.normpath(t.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)) for t in texts)


def _dynamic(path: Path) -> dict[str, list[str]]:
    """The texts of an ELF file's dynamic section by tag; none: it is not such a file, or pyelftools is missing."""
    found: dict[str, list[str]] = {}
    if not _reads_elf():
        return found
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            for segment in ELFFile(file).iter_segments():
                if isinstance(segment, DynamicSegment):
                    for tag in segment.iter_tags():
                        kind = tag.entry.d_tag
                        if kind in ("DT_NEEDED", "DT_RPATH", "DT_RUNPATH"):
                            text = {"DT_NEEDED": "needed", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}[kind]
                            found.setdefault(kind, []).append(getattr(tag, text))
    except (ELFError, OSError, ValueError, LookupError, AttributeError, struct.error):  # damaged
        return {}
    return found


# ---- checks ------------------------------------------------------------------------------------------------------------


def checks(machine: Machine) -> Iterator[Check]:
    loaded, others = installed(machine)
    if not loaded and not others:
        seen = "no libnccl.so.2 in LD_PRELOAD, LD_LIBRARY_PATH, the loader's cache or this Python"
        why = "a program that links NCCL statically needs none; the job may run in another Python"
        yield Check(
            _AREA,
            "library",
            "note",
            seen,
            why,
            "LD_LIBRARY_PATH=FOLDER psmkit doctor, or the psmkit of the job's Python",
        )
        yield from _wanted(machine)
        return
    if not _reads_elf():
        why = "the run paths of PyTorch and of NCCL are not followed, and plugins not looked into"
        yield Check(_AREA, "pyelftools", "note", "not installed in this Python", why, "pip install 'psmkit[lab]'")
    for one in loaded:
        yield Check(_AREA, "library", "ok", f"{one.who}: {one}")
    yield from _several(loaded, others)
    yield from _too_new(machine, loaded)
    if loaded:
        yield from _plugins(machine, loaded[0])
    else:
        yield from _wanted(machine)


def _too_new(machine: Machine, loaded: Sequence[Installed]) -> Iterator[Check]:
    """Libraries for a CUDA that the driver does not know."""
    driver = driver_version(machine)
    if any("compat" in machine.real(path) for path in Loader(machine).find_all("libcuda.so.1")[:1]):
        return  # a library of a later driver, made for this case
    for one in loaded:
        least = _DRIVERS.get(one.cuda.partition(".")[0])
        if driver and least and int(driver.partition(".")[0]) < least:
            why = f"{one.path} is made for CUDA {one.cuda}, which needs driver {least} or later, or NVIDIA's package cuda-compat"
            do = f"install driver {least} or later, or an NCCL for an older CUDA"
            yield Check(_AREA, "driver", "warning", f"kernel module {driver}", why, do)


def _several(loaded: Sequence[Installed], others: Sequence[Installed]) -> Iterator[Check]:
    """Libraries of different versions: which is loaded depends on who loads it and on the order of folders."""
    first = loaded[0] if loaded else others[0]
    if len({one.version for one in loaded}) > 1:
        seen = "; ".join(f"{one.who}: {one.version or 'unknown'}" for one in loaded)
        why = "two programs, two versions: ranks of one job must not mix them"
        yield Check(_AREA, "versions", "note", seen, why)
    for one in others:
        name, seen = "one more", str(one)
        if one.version == first.version or not loaded:
            yield Check(_AREA, name, "ok", seen)
        elif one.who == _WHEEL:
            why = "a library of another version, which Python programs load that look for it in its package"
            yield Check(_AREA, name, "note", seen, why)
        else:
            path = "LD_PRELOAD" if "LD_PRELOAD" in first.who else "LD_LIBRARY_PATH"
            why = (
                f"of another version than {first.path}: a rank that starts without this {path} loads it, and ranks of two versions "
                "do not work together"
            )
            do = f"mpirun -x {path} ..., srun --export=ALL ...; LD_DEBUG=libs shows what a rank loads"
            yield Check(_AREA, name, "warning", seen, why, do)


def _plugins(machine: Machine, nccl: Installed) -> Iterator[Check]:
    name = "plugins"
    try:
        release = lookup.release(nccl.vendor, nccl.version)
    except PsmkitError:
        yield Check(_AREA, name, "note", f"which ones it would find depends on its version: {nccl}")
        return
    values = {key: value for key, (value, _) in settings(machine).items()}
    none: list[str] = []
    nets: list[str] = []
    for kind in lookup.LIBRARY_KINDS:
        found = list(_kind(machine, nccl, release, kind, values, nets))
        none += [] if found else [kind]
        yield from found
    if none:
        yield Check(_AREA, name, "ok", f"no plugin of the kinds {', '.join(none)} for {release}")
    yield from _of_other_releases(release, values)
    wanted = values.get("NCCL_NET", "")
    if wanted and wanted.lower() not in (*_BUILT_IN, *(net.lower() for net in nets)):
        seen = f"{wanted}; there is IB, Socket{''.join(f', {net}' for net in nets)}"
        yield Check(_AREA, "NCCL_NET", "warning", seen, "NCCL fails if no network has that name", "unset NCCL_NET")


def _wanted(machine: Machine) -> Iterator[Check]:
    """The plugins that NCCL would open, and those that it would not find, where its release is unknown: by the rules of the newest."""
    release = lookup.release("NCCL", nccl_releases()[-1])
    values = {key: value for key, (value, _) in settings(machine).items()}
    for kind in lookup.LIBRARY_KINDS:
        yield from _kind(machine, Installed("", "", ""), release, kind, values, [])


def _of_other_releases(release: lookup.Release, values: Mapping[str, str]) -> Iterator[Check]:
    """Variables that NCCL reads, but not this release of it."""
    idle = []
    for name in values:
        first, last = known_since(name) or ("", "")
        if first and release.vendor == "NCCL":
            if release_number(release.name) < release_number(first):
                idle.append(f"{name} (since {first})")
            elif last and release_number(release.name) > release_number(last):
                idle.append(f"{name} (up to {last})")
    if idle:
        yield Check(_AREA, "idle settings", "note", ", ".join(idle), f"{release} does not read them")


def _kind(
    machine: Machine,
    nccl: Installed,
    release: lookup.Release,
    kind: str,
    values: Mapping[str, str],
    nets: list[str],
) -> Iterator[Check]:
    """What a release opens for a kind. Names of networks are added to ``nets``."""
    variable = lookup.variable(kind)
    value = values.get(variable) if lookup.has_variable(release, kind) else None
    opened = lookup.opening(release, kind, value, values.get("NCCL_NET_PLUGIN"))
    # Some kinds fall back to the library of the net plugin, which need not have a table for them.
    net = lookup.opening(release, "net", values.get("NCCL_NET_PLUGIN")).tries if kind != "net" else ()
    loader = Loader(machine)
    setting = f"{variable}={value}" if value is not None else f"{variable} not set"
    if value is None and variable in values and not lookup.has_variable(release, kind):
        yield Check(
            _AREA, f"{kind} plugin", "note", f"{variable} is set", f"{release} does not read it", f"unset {variable}"
        )
    for plugin in opened.plugins:
        if any(one.name is None for one in plugin):
            yield Check(_AREA, f"{kind} plugin", "ok", f"{setting}: the program itself")
            continue
        found = [
            (paths[0], one not in net)
            for one in plugin
            if (paths := loader.find_all(one.name or "", nccl.rpath, nccl.runpath))
        ]
        wanted = value and value.lower() != "none" and any(one not in net for one in plugin)
        if wanted and not any(mine for _, mine in found):
            why = f"{release} opens the first there is of {', '.join(lookup.names(plugin))}"
            do = "LD_LIBRARY_PATH=FOLDER, or the path of the library as the value"
            yield Check(_AREA, f"{kind} plugin", "warning", f"{setting}{_NOT_FOUND}", why, do)
        if found and not nccl.version and found[0][1]:
            why = f"by the rules of {release}: the job's release is not known, so whether it takes the tables of this library is not checked"
            do = f"psmkit plugin check {found[0][0]} --nccl RELEASE"
            yield Check(_AREA, f"{kind} plugin", "ok", f"{setting}: NCCL opens {found[0][0]}", why, do)
        elif found and nccl.version:
            path, mine = found[0]
            yield from _library(machine, release, kind, path, setting, mine, nets)


def _library(
    machine: Machine,
    release: lookup.Release,
    kind: str,
    path: str,
    setting: str,
    mine: bool,
    nets: list[str],
) -> Iterator[Check]:
    """A library that is opened for a kind."""
    name = f"{kind} plugin"
    do = f"psmkit plugin check {path} --{release.vendor.lower()} {release.name}"
    if not _reads_elf():
        yield Check(_AREA, name, "ok", f"{setting}: {path}")
        return
    try:
        result = check(machine.path(path), load=machine.here)
    except PsmkitError as error:
        yield Check(_AREA, name, "warning", f"{setting}: {path}", str(error), do)
        return
    wanted = [table.symbol for table in release.tables(kind)]
    tables = {one.table.symbol: one for one in result.tables if one.sound}
    taken = next((tables[symbol] for symbol in wanted if symbol in tables), None)
    if taken is not None and result.loadable:
        label = f" {taken.name!r}" if taken.name else ""
        yield Check(_AREA, name, "ok", f"{setting}: {path}, {kind} v{taken.table.version}{label}")
        if kind == "net" and taken.name:
            nets.append(taken.name)
    elif not result.loadable:
        if mine:
            broken = "; ".join(f.title for f in result.findings if f.severity.value == "error")
            yield Check(_AREA, name, "warning", f"{setting}: {path}: {broken}", f"{release} goes on without it", do)
    elif mine:
        has = ", ".join(f"{one.table.kind} v{one.table.version}" for one in tables.values()) or "no table of a plugin"
        why = f"{release} looks for {', '.join(wanted) or 'none'}, and goes on without it"
        yield Check(_AREA, name, "warning", f"{setting}: {path} has {has}", why, do)
