"""Programs over the plans of libpsm without CUDA, under ASan and UBSan."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
OTHER_ENGINES = ("engine", "coll")


def build(folder: Path, name: str) -> Path:
    """The program whose source is NAME.c."""
    generated = ground.generate(folder / "generated")
    sources = [*compiled.BASE.glob("*.c"), *ground.PSM.glob("core/*.c"), *ground.RULES.glob("*.c")]
    sources += [path for path in ground.PSM.glob("plan/*.c") if not path.name.startswith(OTHER_ENGINES)]
    options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = [compiled.compiler(), *compiled.WARNINGS, *options, *ground.includes(generated), *sorted(sources)]
    done = subprocess.run(
        [*command, HERE / f"{name}.c", "-o", folder / name, "-lpthread", "-ldl"],
        capture_output=True,
        text=True,
        env=compiled.environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
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
