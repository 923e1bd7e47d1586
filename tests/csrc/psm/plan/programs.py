"""Programs over the plans of libpsm without CUDA, under ASan and UBSan."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
OTHER_ENGINES = ("engine", "coll")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def _compile(arguments: Sequence[object], folder: Path) -> None:
    done = subprocess.run(
        [compiled.compiler(), *compiled.WARNINGS, *SANITIZERS, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=compiled.environment(),
        timeout=300,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr


@cache
def _parts(folder: Path) -> tuple[list[str], list[Path]]:
    """Where headers are, and the objects of the library."""
    folder.mkdir(parents=True)
    includes = ground.includes(ground.generate(folder / "generated"))
    sources = [*compiled.BASE.glob("*.c"), *ground.PSM.glob("core/*.c"), *ground.RULES.glob("*.c")]
    sources += [path for path in ground.PSM.glob("plan/*.c") if not path.name.startswith(OTHER_ENGINES)]
    objects = []
    for number, source in enumerate(sorted(sources)):  # files of different folders have the same name
        objects.append(folder / f"{number}.o")
        _compile([*includes, "-c", source, "-o", objects[-1]], folder)
    return includes, objects


def build(base: Path, name: str) -> Path:
    """The program whose source is NAME.c; base is the folder of the test session."""
    folder = base / "plan-programs"
    includes, objects = _parts(folder)
    _compile([*includes, HERE / f"{name}.c", *objects, "-o", folder / name, "-lpthread", "-ldl"], folder)
    return folder / name


def run(program: Path, arguments: Sequence[object], **settings: str) -> str:
    """What it prints; whatever a sanitizer says fails the test."""
    done = subprocess.run(
        [program, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=compiled.environment(**settings),
        timeout=120,
    )
    assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout
