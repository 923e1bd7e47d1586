"""What `analyze --format json` says of every log that the tests have or make, for comparison before and after a change of structure.

    python -m tests.analysis.frozen FILE [FOLDER...]

writes FILE (compressed JSON) where it does not exist, and compares with it where it does. Each entry of FOLDER is one more
input. The inputs are those in tests/data, each scenario of tests/loggen in each dialect (one file, and a file a rank), and damaged
copies of some. FILE is too large for the repository: it is written at one commit and compared at another.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psmkit
from psmkit.model.errors import PsmkitError
from psmkit.report import render
from tests import test_mutilated as damaged
from tests.loggen import generate, scenario_names

DATA = Path(__file__).parents[1] / "data"


def said_of(path: Path) -> str:
    """The JSON report of a file or folder, with the folder that holds it cut from the paths."""
    try:
        report = psmkit.analyze([str(path)])
    except PsmkitError as error:
        return f"{type(error).__name__}: {error}".replace(f"{path.parent}/", "")
    return render(report, "json").replace(f"{path.parent}/", "")


def inputs(folder: Path) -> Iterator[tuple[str, Path]]:
    """The inputs by name; those that are made lie in ``folder``."""
    for parent in (DATA / "logs", DATA / "nccl"):
        for path in sorted(parent.iterdir()):
            if path.suffix not in (".toml", ".md"):
                yield f"{parent.name}/{path.name}", path
    for name, dialect in scenario_names():
        to = folder / f"{name}-{dialect}"
        to.mkdir()
        (to / "job.log").write_text(generate(name, dialect).merged())
        yield f"merged/{to.name}", to / "job.log"
        (to / "ranks").mkdir()
        for file, text in generate(name, dialect, seed=2).files().items():
            (to / "ranks" / file).write_text(text)
        yield f"files/{to.name}", to / "ranks"
    for subject in damaged.SUBJECTS:
        for way, change in {**damaged.DRESS, **damaged.CUTS, **damaged.DAMAGE}.items():
            to = folder / f"{subject.replace('/', '-')}-{way.replace('/', ' ')}"
            to.mkdir()
            for file, data in change(damaged.load(subject), damaged.random.Random(subject)).items():
                (to / file).write_bytes(data)
            yield f"damaged/{to.name}", to


def main(file: Path, more: list[Path]) -> int:
    """Write or compare; the exit status is 1 where something differs."""
    with tempfile.TemporaryDirectory() as made:
        said = {name: said_of(path) for name, path in inputs(Path(made))}
        said |= {f"{at.name}/{path.name}": said_of(path) for at in more for path in sorted(at.iterdir())}
    if not file.exists():
        file.write_bytes(gzip.compress(json.dumps(said).encode(), 6))
        print(f"{file}: wrote what is said of {len(said)} inputs")
        return 0
    before: dict[str, str] = json.loads(gzip.decompress(file.read_bytes()))
    differ = sorted(name for name in before.keys() | said.keys() if before.get(name) != said.get(name))
    for name in differ:
        print(f"--- {name}")
        old, new = before.get(name, "").splitlines(), said.get(name, "").splitlines()
        at = next(
            (i for i, (one, two) in enumerate(zip(old, new, strict=False)) if one != two), min(len(old), len(new))
        )
        print("\n".join([*("- " + line for line in old[at : at + 3]), *("+ " + line for line in new[at : at + 3])]))
    print(f"{len(before.keys() | said.keys())} inputs, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]]))
