"""The plans of libpsm over real threads, built with ThreadSanitizer: threads.c, with and without the trace."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
RULES = ground.ROOT / "csrc" / "planrules"
ENGINES = ("engine", "coll", "simulate")  # files that begin so: of other engines


def build(folder: Path, *, traced: bool) -> Path:
    """The program; fences of csrc/base order what other processes see."""
    folder.mkdir(parents=True, exist_ok=True)
    generated = ground.generate(folder / "generated")
    sources = [*compiled.BASE.glob("*.c"), *ground.PSM.glob("core/*.c"), *RULES.glob("*.c")]
    sources += [path for path in ground.PSM.glob("plan/*.c") if not path.name.startswith(ENGINES)]
    sources += [HERE / "threads.c", HERE / "permute.c"]
    options = ["-fsanitize=thread", "-Wno-tsan", f"-I{RULES}", f"-I{HERE}"]
    if not traced:
        # Its lock orders all threads at each event.
        sources[sources.index(ground.PSM / "plan" / "trace.c")] = HERE / "untraced.c"
    program = folder / ("traced" if traced else "untraced")
    options = [*compiled.WARNINGS, *ground.includes(generated), *options]
    return compiled.link(program, sources, options, ["-lpthread", "-ldl"])


if __name__ == "__main__":  # permuted.py FOLDER: for scripts/sanitize.sh
    for kind in (True, False):
        print(build(Path(sys.argv[1]), traced=kind))
