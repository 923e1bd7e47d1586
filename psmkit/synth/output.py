"""Write logs and their truth."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from psmkit.synth.large import Large
from psmkit.synth.sections import Bytes

__all__ = ["truth_toml", "write_file", "write_folder"]

_LEVEL = 1  # of compression: text of which most repeats


def write_file(path: Path, pieces: Iterable[Bytes]) -> None:
    """Write a log, compressed if the name of the file ends in .gz or .zst.

    Raises:
        OSError: it cannot be written.
        ModuleNotFoundError: it ends in .zst, and zstandard is not installed.
    """
    with path.open("wb") as raw, _packed(raw, path.suffix) as file:
        for piece in pieces:
            file.write(piece.data)


def write_folder(folder: Path, large: Large, by: str, suffix: str = "") -> None:
    """Write a log for each ``rank`` or ``node`` into a folder, and job.out with what is no line of NCCL's.

    Args:
        suffix: ".gz" or ".zst" compresses them.
    """
    for name, pieces in large.files(by):
        write_file(folder / (name + suffix), pieces)


@contextlib.contextmanager
def _packed(raw: IO[bytes], suffix: str) -> Iterator[IO[Any]]:
    if suffix == ".zst":
        import zstandard

        with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(raw, closefd=False) as out:
            yield cast(IO[Any], out)
    elif suffix == ".gz":
        with _gzip(raw) as packed:
            yield packed
    else:
        yield raw


def _gzip(raw: IO[bytes]) -> Any:
    import gzip

    make: Any = gzip.GzipFile
    with contextlib.suppress(ImportError):  # the same format, several times as fast
        from isal import igzip

        make = igzip.IGzipFile
    return make(filename="", fileobj=raw, mode="wb", compresslevel=_LEVEL, mtime=0)


def truth_toml(large: Large, name: str, run: Sequence[str], merged: bool = True) -> str:
    """What an analysis of a log has to say, as the truth of psmkit's own logs is written.

    Args:
        name: the log's.
        run: the command that makes it.
        merged: whether it is one log, not several files.
    """
    truth = large.truth(merged)
    fields = {
        "run": " ".join(run),
        "verdict": truth.verdicts[0],
        "verdicts": list(truth.verdicts),
        "culprits": sorted(int(rank) for rank in truth.culprits),
        "codes": list(truth.codes),
        "stages": list(truth.stages),
        "named": truth.named and bool(truth.culprits),
    }
    # a text or a list of JSON is one of TOML
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    note = (
        "# What happened in a log that psmkit made: `verdicts` and `codes`, the first is the best; `culprits`: nobody else may be blamed; "
        "`named`: one has\n# to be, with the first verdict; `stages`: where a culprit stood.\n"
    )
    return f"{note}\n[{json.dumps(name)}]\n" + "\n".join(lines) + "\n"
