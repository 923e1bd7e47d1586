"""Variants of the transport from outside psmkit: in Python (FILE.py:NAME, MODULE:NAME) or in a C library (libNAME.so[:NAME])."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from psmkit.lab import programs
from psmkit.lab.cuda import LabError
from psmkit.lab.cuda import environment as emulated
from psmkit.lab.variants import Variant, rows, variant_of, variants

__all__ = ["Stranger", "find", "is_stranger"]


@dataclass(frozen=True, slots=True)
class Stranger:
    """A variant that psmkit does not have.

    Args:
        text: how it was named.
        where: the file or the module, the library; empty: it is one of psmkit's own.
        name: behind the colon; empty: none was given.
        python: it is in Python.
        variant: what it declares; its name is that under which it registers itself.
    """

    text: str
    where: str
    name: str
    python: bool
    variant: Variant

    def command(self) -> list[str]:
        """The program of a rank that has the variant."""
        return _command(self.where, self.python, self.name)

    def environment(self) -> dict[str, str]:
        """Further variables of a rank."""
        return _environment(self.where, self.python)


def is_stranger(text: str) -> bool:
    """Whether the name of a variant is that of a stranger: a file, a library, or a module and a name."""
    return ":" in text or text.endswith((".py", ".so"))


def find(text: str) -> Stranger:
    """Load a stranger's variant in a process of its own, and ask what it declares. One of psmkit's own goes by its name.

    Raises:
        LabError: there is no such file or variant, it cannot be loaded, or it declares nothing that can be run.
    """
    if not is_stranger(text):
        ours = variants()
        if text not in ours:
            raise LabError(f"unknown variant {text!r}, expected FILE.py:NAME, libNAME.so, or one of {', '.join(ours)}")
        return Stranger(text, "", "", False, ours[text])
    where, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    python = not (where.endswith(".so") or ".so." in where)
    if where.endswith(".py") or not python:
        path = Path(where)
        if not path.is_file():
            raise LabError(f"cannot load the variant {text}: no such file; expected FILE.py:NAME or libNAME.so")
        where = str(path.absolute())
    elif Path(where).is_file() or not all(part.isidentifier() for part in where.split(".")) or not name:
        raise LabError(f"bad variant {text!r}, expected FILE.py:NAME, MODULE:NAME or libNAME.so[:NAME]")
    command = [*_command(where, python, name), "variants"]
    try:
        done = subprocess.run(
            command,
            env=emulated() | _environment(where, python),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"cannot load the variant {text}: it takes more than 60 s") from None
    except OSError as error:
        raise LabError(f"cannot load the variant {text}: {error}") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise LabError(f"cannot load the variant {text}: {said[-1].removeprefix('psm_rank: ')}")
    found = {row["name"]: variant_of(row) for row in rows([line for line in lines if '"chosen"' not in line], command)}
    if python:
        chosen = next(json.loads(line)["chosen"] for line in lines if '"chosen"' in line)
        return Stranger(text, where, name, True, found[chosen])
    return Stranger(text, where, name, False, _one(text, name, found))


def _one(text: str, name: str, found: dict[str, Variant]) -> Variant:
    ours = variants()
    own = {key: one for key, one in found.items() if key not in ours}
    known = (
        f"it registers {', '.join(own)}" if own else "it registers none with psmP2pRegisterVariant when it is loaded"
    )
    if name and name not in own:
        raise LabError(f"{text}: no variant {name!r}: {known}")
    if not name and len(own) != 1:
        raise LabError(f"{text}: expected the name of a variant behind a colon; {known}")
    return own[name] if name else next(iter(own.values()))


def _command(where: str, python: bool, name: str) -> list[str]:
    if python:
        return [sys.executable, "-m", "psmkit.lab.variant_rank", where, name]
    return [str(programs.find("psm_rank"))]


def _environment(where: str, python: bool) -> dict[str, str]:
    if not python:
        return {"PSM_LAB_VARIANTS": where} if where else {}
    # The modules that the caller finds, and psmkit itself from wherever it is.
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
