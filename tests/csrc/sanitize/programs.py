"""Programs that use the handle sanitizer's tables, compiled with its sources and run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.csrc.base.compiled import BASE, ROOT, compile_c, environment, run

SANITIZE = ROOT / "csrc" / "sanitize"
HERE = Path(__file__).parent


def outcome(folder: Path, name: str, options: Sequence[str], **settings: str) -> str:
    """What a program of this folder prints; its records are in `records`."""
    sources = [*sorted(SANITIZE.glob("*.c")), *sorted(BASE.glob("*.c")), HERE / f"{name}.c"]
    program = compile_c(folder / name, sources, [f"-I{SANITIZE}", *options, "-ldl"])
    records = folder / "records"
    records.mkdir(mode=0o700)
    done = run(program, env=environment(PSM_RECORD_DIR=str(records), PSM_SANITIZE_SEGV="0", **settings), timeout=300)
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
    return done.stdout + done.stderr
