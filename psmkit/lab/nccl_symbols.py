"""Function names for addresses in a library. The sanitizer's stacks name exported functions only, and NCCL exports few."""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import Path

from psmkit.lab.cuda import LabError
from psmkit.lab.elf import NO_PYELFTOOLS

__all__ = ["Symbols", "crash"]

_FRAME = re.compile(
    r"(?P<file>/[^(]*)\((?P<name>[^+)]*)(?:\+(?P<offset>0x[0-9a-f]+))?\) ?\[(?P<address>0x[0-9a-f]+)\]\Z"
)

_MANGLED = re.compile(r"_Z[NLK]*(\d+)(\w+)")


class Symbols:
    """The functions of an ELF file by address, as long as it is not stripped.

    Args:
        path: the file that the stacks name.
    """

    def __init__(self, path: Path) -> None:
        self._pattern = re.compile(rf"(?<![(\w]){re.escape(path.name)}\+0x([0-9a-f]+)")
        self._starts: list[int] = []
        self._functions: list[tuple[int, str]] = []
        for start, size, name in sorted(_read(path)):
            self._starts.append(start)
            self._functions.append((start + size, name))

    def named(self, text: str) -> str:
        """``text`` with a name in place of each offset in the file that lies in a known function."""
        return self._pattern.sub(lambda match: self.name(int(match[1], 16)) or match[0], text)

    def name(self, offset: int) -> str | None:
        """The function that an offset lies in."""
        # A return address may be the first byte behind a call that does not come back.
        at = bisect_right(self._starts, offset - 1) - 1
        if at < 0 or offset > self._functions[at][0]:
            return None
        return self._functions[at][1]


def _read(path: Path) -> list[tuple[int, int, str]]:
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
        from elftools.elf.sections import SymbolTableSection
    except ImportError:
        raise LabError(NO_PYELFTOOLS) from None
    try:
        with path.open("rb") as file:
            section = ELFFile(file).get_section_by_name(".symtab")
            if not isinstance(section, SymbolTableSection):
                return []
            return [
                (int(s["st_value"]), int(s["st_size"]), _plain(s.name))
                for s in section.iter_symbols()
                if s["st_info"]["type"] == "STT_FUNC" and s["st_size"]
            ]
    except (OSError, ELFError):
        return []


def _plain(name: str) -> str:
    """The last name of a mangled one without its parameters; other names as they are."""
    found = None
    rest = name
    while match := _MANGLED.match(rest):
        length = int(match[1])
        found = match[2][:length]
        rest = "_Z" + match[2][length:]
        if not rest[2:3].isdigit():
            break
    return found or name


def crash(text: str, symbols: Symbols, library: Path, pid: int) -> str:
    """The stack of a crash that a rank wrote down itself, as gdb writes it.

    Args:
        text: what backtrace_symbols_fd(3) wrote.
        symbols: of ``library``, which exports little of what it has.
        library: the NCCL library.
        pid: of the rank.
    """
    lines = [f"Thread 1 (LWP {pid}):"]
    for line in text.splitlines():
        if not (frame := _FRAME.match(line.strip())):
            continue
        name = frame["name"]
        if not name and frame["offset"] and Path(frame["file"]).name == library.name:
            # The first is where the signal handler was called, the second where it crashed: not behind a call.
            name = symbols.name(int(frame["offset"], 16) + (len(lines) == 2)) or ""
        lines.append(
            f"#{len(lines) - 1:<3}{int(frame['address'], 16):#018x} in {_plain(name) or '??'} () from {frame['file']}"
        )
    return "\n".join([*lines, ""])
