"""Build verifiers of the model in csrc/psm/plan/model with spin and a C compiler, cached in the user's cache folder."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from psmkit.model.errors import PsmkitError

__all__ = ["Kind", "ModelError", "find_spin", "folder", "names", "run", "verifier"]

_ROOT = Path(__file__).parents[2]
_SOURCES = ("reclaim.pml", "main.pml", "run.h")
_EVENTS = "psm_plan_events.h"
_ENUMS = ("what", "enqueuer", "toucher", "wait")
_DEADLINE = 1800.0


class ModelError(PsmkitError):
    """The model cannot run: spin or the compiler is missing, or one of them failed. ``str()`` says what to do."""


def find_spin() -> Path:
    """The path of spin: on PATH, or in build/tools, where scripts/debian_tool.sh installs it.

    Raises:
        ModelError: spin is missing.
    """
    asked = os.environ.get("PSM_SPIN")
    places = [Path(asked)] if asked else [_ROOT / "build" / "tools" / "usr" / "bin" / "spin"]
    found = None if asked else shutil.which("spin")
    for place in [*([Path(found)] if found else []), *places]:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    raise ModelError(
        f"no spin at {asked}: set PSM_SPIN to its path"
        if asked
        else "no spin: install Debian's package spin, or run scripts/debian_tool.sh spin, which installs it in build/tools without root"
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of verifier: number of plans, for traces, breadth first, for endless runs."""

    plans: int
    trace: bool = False
    breadth: bool = False
    endless: bool = False


def folder() -> Path:
    """The folder of the model: in the source tree, or installed with libpsm."""
    for place in (
        _ROOT / "csrc" / "psm" / "plan" / "model",
        Path(__file__).parents[1] / "psm" / "share" / "psm" / "model",
    ):
        if (place / _SOURCES[0]).exists():
            return place
    raise ModelError("the model is not installed: psmkit was built without csrc/psm/plan/model")


def _header() -> Path:
    for place in (
        _ROOT / "csrc" / "psm" / "include" / "psm" / _EVENTS,
        Path(__file__).parents[1] / "psm" / "include" / "psm" / _EVENTS,
    ):
        if place.exists():
            return place
    raise ModelError(f"{_EVENTS} is not installed: psmkit was built without libpsm")


@functools.cache
def names() -> Mapping[str, int]:
    """Numbers of events, enqueuers, touchers and waits in C, by their names without PSM_PLAN_."""
    text = re.sub(r"/\*.*?\*/", "", _header().read_text(), flags=re.S)
    found: dict[str, int] = {}
    for enum in _ENUMS:
        body = re.search(rf"enum psm_plan_{enum}\s*\{{(.*?)\}}", text, re.S)
        if not body:
            raise ModelError(f"{_EVENTS} has no enum psm_plan_{enum}")
        number = 0
        for name, value in re.findall(r"PSM_PLAN_(\w+)(?:\s*=\s*(\d+))?", body[1]):
            number = int(value) if value else number + 1
            found[name] = number
    return found


def verifier(kind: Kind) -> Path:
    """The path of the verifier; it is built if none exists for these sources and this spin."""
    spin, compiler, place = find_spin(), shutil.which("cc") or shutil.which("gcc"), folder()
    if not compiler:
        raise ModelError("no C compiler to compile spin's verifier: install gcc")
    sources = {name: (place / name).read_text() for name in _SOURCES}
    sources["names.pml"] = "".join(f"#define {name} {number}\n" for name, number in names().items())
    define = [f"-DPLANS={kind.plans}", *(["-DTRACE"] if kind.trace else [])]
    # NP: a search for cycles without a progress label. The model has no such label, so this finds any endless run.
    flags = ["-O1", "-w", "-DMEMLIM=12000", "-DNP" if kind.endless else "-DSAFETY"]
    flags += ["-DTRACES", "-DNOREDUCE", "-DVECTORSZ=32000"] if kind.trace else ["-DBFS"] if kind.breadth else []
    digest = hashlib.sha256(repr((sorted(sources.items()), define, flags, str(spin), spin.stat().st_mtime_ns)).encode())
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "psmkit" / "model"
    program = cache / digest.hexdigest()[:24]
    if program.exists():
        return program
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot create {cache} ({error.strerror}): set XDG_CACHE_HOME to a writable folder") from None
    with tempfile.TemporaryDirectory(prefix="make-", dir=cache) as work:
        for name, text in sources.items():
            Path(work, name).write_text(text)
        made = run([str(spin), "-a", *define, "reclaim.pml"], Path(work))
        if not Path(work, "pan.c").exists() or "Error" in made:
            raise ModelError(f"spin rejects the model: {made.strip()[:500]}")
        built = run([compiler, *flags, "-o", "pan", "pan.c"], Path(work))
        if not Path(work, "pan").exists():
            raise ModelError(f"the verifier of the model does not compile: {built.strip()[:500]}")
        os.replace(Path(work, "pan"), program)
    return program


def run(command: list[str], work: Path, setting: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, "LC_ALL": "C", **(setting or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{Path(command[0]).name} did not end within {_DEADLINE:.0f} s: choose a smaller scope"
        ) from None
    except OSError as error:
        raise ModelError(f"{command[0]} does not run: {error.strerror}") from None
    return done.stdout
