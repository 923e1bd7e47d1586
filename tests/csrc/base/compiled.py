"""Compiles csrc/base for the tests: programs under sanitizers, and a library of what has no state."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
BASE = ROOT / "csrc" / "base"
CATALOGUE = ROOT / "psmkit" / "catalogue" / "psmkit.toml"
HERE = Path(__file__).parent
WARNINGS = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
# What the driver is not to inherit: the settings of whoever runs the tests.
_SETTINGS = ("NCCL_", "PSM_", "OMPI_", "PMI", "SLURM_", "RANK", "TMPDIR", "LD_PRELOAD")


def environment(**settings: str) -> dict[str, str]:
    """An environment with these settings and none of psmkit's or NCCL's else."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_SETTINGS)}
    return {**env, **settings}


@cache
def compiler() -> str:
    """The C compiler."""
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    assert found, "a C compiler builds csrc/base: install gcc"
    return found


def sanitizing(sanitizers: str) -> list[str]:
    """Options that make the compiler check: `address,undefined` or `thread`."""
    options = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    # The fences order what other processes see; between threads the sequence of a slot does it.
    return [*options, "-Wno-tsan"] if sanitizers == "thread" else options


def messages(catalogue: str, header: Path) -> None:
    """Generate the messages of one catalogue."""
    header.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / "psmkit" / "catalogue" / f"{catalogue}.toml"
    subprocess.run([sys.executable, BASE / "messages.py", source, header], check=True, timeout=60)


def link(output: Path, sources: Iterable[Path], options: Sequence[str | Path], libraries: Sequence[str]) -> Path:
    """Compile C sources, as many at once as there are processors, and link them. The compiler's complaints fail the test."""

    def call(*words: str | Path) -> None:
        done = subprocess.run(
            [compiler(), *options, *words], capture_output=True, text=True, env=environment(), timeout=600
        )
        assert done.returncode == 0, done.stderr

    with (
        tempfile.TemporaryDirectory(dir=output.parent, prefix="objects-") as folder,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        objects = {Path(folder) / f"{n}-{source.stem}.o": source for n, source in enumerate(sorted(sources))}
        list(pool.map(lambda made: call("-c", objects[made], "-o", made), objects))
        call(*objects, "-o", output, *libraries)
    return output


def abi_versions(folder: Path) -> None:
    """Generate the headers about versions of tables for psmkit's own plugins. Those for everybody are in psmkit/psm/include."""
    command = [
        sys.executable,
        ROOT / "csrc" / "abi" / "generate.py",
        "versions",
        ROOT / "psmkit" / "plugins" / "abi.json",
    ]
    subprocess.run([*command, folder], check=True, timeout=60)


def compile_c(output: Path, sources: Sequence[Path], options: Sequence[str]) -> Path:
    """Compile with the generated messages beside the output."""
    generated = output.parent / "generated"
    messages("psmkit", generated / "psm_messages.h")
    return link(output, sources, [*WARNINGS, f"-I{BASE}", f"-I{generated}", *options], ["-lpthread", "-ldl"])


def driver(folder: Path, sanitizers: str) -> Path:
    """The driver program under some sanitizers."""
    sources = [*sorted(BASE.glob("*.c")), HERE / "driver.c"]
    return compile_c(folder / "driver", sources, sanitizing(sanitizers))


def run(
    program: Path, *arguments: str, env: Mapping[str, str], timeout: float = 120, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run the driver to its end; whatever a sanitizer says fails the test."""
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env,
        timeout=timeout,
        errors="replace",
        **options,
    )
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return done
