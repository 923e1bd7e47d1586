"""What the drives of plugins share: their programs, and the versions of a table that a process sees in a library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from psmkit.lab import cuda as lab_cuda
from psmkit.lab.elf import NO_PYELFTOOLS
from psmkit.model.errors import InputError, PsmkitError
from psmkit.plugins.abi import tables
from psmkit.plugins.programs import find_program

__all__ = ["chosen", "kinds_of", "symbols", "tables_in", "tables_of", "with_cuda", "without_path", "write_log"]

_PATIENCE = 60.0  # seconds for code that runs on load


_MOST_LOG = 16 << 20  # bytes of a process


def with_cuda(path: Path, cuda: str | None, environment: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """The CUDA runtime for a plugin, and the variables with which each process has it before the plugin, as programs that use NCCL do.

    Args:
        path: the plugin; a runtime that it is linked to decides which emulated one is taken.
        cuda: a runtime, ``emulated`` or None.
        environment: variables that come before ours.
    """
    if cuda is None:
        return None, dict(environment)
    settings = dict(environment)
    if cuda == "emulated":
        name = "libcudart.so.13" if b"libcudart.so.13" in path.read_bytes() else "libcudart.so.12"
        cuda = str(lab_cuda.folder() / name)
        ours = lab_cuda.environment({**os.environ, **environment})
        settings |= {name: ours[name] for name in ("LD_LIBRARY_PATH", "GLIBC_TUNABLES") if name in ours}
    before = settings.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
    settings["LD_PRELOAD"] = f"{cuda}:{before}" if before else cuda
    return cuda, settings


def write_log(log: IO[str] | None, who: str, output: Path) -> None:
    """Add the lines of a process to the plugin's log, if there is one, each after the process's name."""
    if log is None:
        return
    with open(output, "rb") as file:
        data = file.read(_MOST_LOG)
    for line in data.decode(errors="replace").splitlines():
        log.write(f"[{who}] {line}\n")


def without_path(said: str, path: Path) -> str:
    """The loader's words without the path before them: the error begins with the path already."""
    return said.removeprefix(f"{path.absolute()}: ")


def kinds_of(path: Path) -> set[str]:
    """The symbols of tables in the library without their versions; none of an unreadable file."""
    try:
        names = symbols(path)
    except InputError:
        return set()
    return {name.partition("_v")[0] for name in names}


def tables_in(path: Path) -> str:
    """The tables of the library in words, such as ``net v12, v11; collnet v8``, by its symbols.

    Raises:
        InputError: the file is not a library.
        PsmkitError: pyelftools is missing.
    """
    names = symbols(path)
    kinds: dict[str, list[str]] = {}
    for table in tables():
        if table.symbol in names:
            kinds.setdefault(table.kind, []).append(f"v{table.version}")
    return "; ".join(f"{kind} {', '.join(versions)}" for kind, versions in kinds.items()) or "no table of a plugin"


def symbols(path: Path) -> set[str]:
    """The names of all dynamic symbols that the library defines.

    Raises:
        InputError: the file is not a library.
        PsmkitError: pyelftools is missing.
    """
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise PsmkitError(NO_PYELFTOOLS) from None
    try:
        with path.open("rb") as file:
            table: Any = ELFFile(file).get_section_by_name(".dynsym")
            return {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"} if table else set()
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from None
    except ELFError as error:
        raise InputError(str(path), f"not a shared library: {error}") from None


def tables_of(
    program: str, path: Path, environment: Mapping[str, str] | None, kind: str, known: Sequence[int]
) -> tuple[int, ...]:
    """The versions of a table in the library, newest first, as a separate process sees them.

    Args:
        program: its name; it lists them for ``--tables``.
        kind: such as ``a net plugin``.
        known: the versions that the program looks for, newest first.

    Raises:
        InputError: no process can load the library, or it has no such table.
        LabError: the program does not exist.
    """
    if not path.is_file():
        raise InputError(str(path), "no such file")
    try:
        done = subprocess.run(
            [find_program(program), "--tables", path.absolute()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise InputError(str(path), f"a process that loads it did not end within {_PATIENCE:.0f} s") from None
    lines = done.stdout.decode(errors="replace").splitlines()
    for line in lines:
        if line.startswith("error "):
            raise InputError(str(path), f"{without_path(line[6:], path)}; `psmkit plugin check` says more")
    if "end" not in lines:
        how = f"by signal {-done.returncode}" if done.returncode < 0 else f"with status {done.returncode}"
        raise InputError(str(path), f"a process that loads it ended {how}; `psmkit plugin check` says more")
    found = tuple(int(line[6:]) for line in lines if line.startswith("table "))
    if not found:
        raise InputError(str(path), f"no table of {kind}, v{known[-1]} to v{known[0]}; it has {tables_in(path)}")
    return found


def chosen(path: Path, there: Sequence[int], versions: Sequence[int] | None, table: str) -> tuple[int, ...]:
    """The versions to drive: those that were asked for, else the newest one.

    Raises:
        InputError: the library lacks one.
    """
    wanted = tuple(versions) if versions is not None else tuple(there[:1])
    for version in wanted:
        if version not in there:
            have = ", ".join(f"v{one}" for one in there)
            raise InputError(str(path), f"no {table}_v{version}; it has {have}")
    return wanted
