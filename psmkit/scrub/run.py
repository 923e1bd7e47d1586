"""Scrub inputs: read them twice, first to collect the names, then to write the files."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from psmkit.catalogue import Catalogue, load
from psmkit.logparse.foreign.pickled import PickleError
from psmkit.logparse.inputs import CATALOGUE, Input, discover, natural
from psmkit.model.errors import InputError
from psmkit.names.pseudonyms import Pseudonyms
from psmkit.scrub.check import Check, check
from psmkit.scrub.files import is_pickle_input, json_of_pickle
from psmkit.scrub.keys import Keys
from psmkit.scrub.lines import Lines, vocabulary
from psmkit.scrub.pieces import blocks

__all__ = ["Result", "find", "scrub", "write_mapping"]

Progress = Callable[[int, int], None]
_PACKED = (".gz", ".zst", ".xz", ".bz2", ".tgz")
_PICKLES = (".pkl", ".pickle", ".pt")
_RECORD = ".rec"


@dataclass
class Result:
    """What was written, what was left out and why, what the inputs say of themselves, and what still looks like a name."""

    written: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    mapping: dict[str, dict[str, str]] = field(default_factory=dict)
    checked: Check = field(default_factory=Check)
    size: int = 0


def find(path: str) -> tuple[list[Input], dict[str, str], list[str]]:
    """The inputs in a file, folder or archive; what else is in it, and why it is none; notes.

    Raises:
        InputError: nothing in it can be read.
    """
    notes: list[str] = []
    left_out: dict[str, str] = {}
    catalogues: list[str] = []
    found = discover([path], notes, catalogues, left_out)
    if os.path.isdir(path):
        # A description of messages is part of the evidence.
        beside = [name for name in catalogues if os.path.isfile(name)]
        found += [Input(name, "log", os.path.getsize(name)) for name in beside]
        taken = {item.path for item in found}
        archives = {item.path.partition(":")[0] for item in found if item.place is not None}
        for root, folders, files in os.walk(path):
            for name in (*files, *(f for f in folders if os.path.islink(os.path.join(root, f)))):
                whole = os.path.join(root, name)
                if (
                    whole not in taken
                    and whole not in left_out
                    and whole not in archives
                    and not any(w.startswith(f"{whole}:") for w in taken)
                ):
                    hidden = any(part.startswith(".") for part in os.path.relpath(whole, path).split(os.sep))
                    left_out[whole] = "it is hidden" if hidden else "it is a link, another copy, or no log"
    return (
        found,
        left_out,
        [note for note in notes if not any(note.startswith(f"{name}:") for name in (path, *left_out))],
    )


def scrub(
    path: str,
    out: str,
    *,
    keep: Collection[str] = (),
    catalogue: Catalogue | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write the evidence in ``path`` to ``out`` without names: a file if ``path`` is one log, else a folder.

    Args:
        path: a file, a folder or an archive.
        out: a new file or folder.
        keep: kinds of names that stay.
        catalogue: the messages whose fields are known.
        force: replace what is in ``out``.
        progress: called from time to time with the bytes that were read and the total of both readings.

    Raises:
        InputError: ``path`` holds nothing to read, or ``out`` cannot be written.
    """
    _check_apart(path, out)
    found, left_out, notes = find(path)
    result = Result(left_out=left_out, notes=notes)
    known = catalogue or load()
    names = Pseudonyms(vocabulary(known), keep)
    lines = Lines(names, known)
    with tempfile.TemporaryDirectory(prefix="psmkit-scrub-") as folder:
        usable = _usable(found, result, folder)
        if not usable:
            reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
            raise InputError(path, f"nothing in it can be scrubbed ({reasons})")
        single = not os.path.isdir(path) and len(found) == 1 and found[0].place is None
        _check_free(out, folder=not single, force=force)
        total = 2 * sum(source.size for _, source in usable)
        meter = _Meter(progress, total)
        for item, source in usable:
            for _ in _scrubbed(source, lines, meter, None):
                pass
            for part in _inside(item, path).split("/"):
                names.file_name(part)
        lines.settle()
        targets = _targets([item for item, _ in usable], path, out, single, names)
        for (_, source), target in zip(usable, targets, strict=True):
            _write(target, _scrubbed(source, lines, meter, notes))
            result.written.append(target)
            result.size += source.size
    result.mapping = names.mapping()
    written = [Input(name, "log", os.path.getsize(name)) for name in result.written]
    result.checked = check(written, known, keep, result.mapping)
    return result


class _Meter:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _scrubbed(source: Input, lines: Lines, meter: _Meter, notes: list[str] | None) -> Iterator[bytes]:
    keys = Keys()
    for _, data in blocks(source, notes):
        yield lines.block(keys.block(data))
        meter.add(len(data))


def _usable(found: list[Input], result: Result, folder: str) -> list[tuple[Input, Input]]:
    """The inputs that can be scrubbed, each with the one that is read for it: a pickle is read as JSON."""
    out = []
    for number, item in enumerate(found):
        if item.kind == "record":
            # Its reader gives the lines that an analysis reads.
            result.notes.append(f"{item.path}: it is a record file, and its lines are written as text")
            out.append((item, item))
        elif is_pickle_input(item):
            try:
                text = json_of_pickle(item)
            except (PickleError, ValueError, RecursionError) as error:
                result.left_out[item.path] = f"a pickle that is no plain data: {error}"
                continue
            path = os.path.join(folder, str(number))
            Path(path).write_text(text)
            result.notes.append(f"{item.path}: it is a pickle, and is written as JSON")
            out.append((item, Input(path, "log", len(text))))
        else:
            out.append((item, item))
    return out


def _inside(item: Input, path: str) -> str:
    """The name of an input in the folder or archive that holds it, without what it was compressed by."""
    if os.path.isdir(path):
        name = os.path.relpath(item.path, path)
    else:
        name = item.path.removeprefix(path) if item.place is not None else os.path.basename(item.path)
    if item.place is not None:
        name = name.replace(":", "/")
    parts = [part for part in name.replace(os.sep, "/").split("/") if part not in ("", ".", "..")]
    name = "/".join(parts) or "stdin.log"
    if item.kind in ("gz", "zst", "xz", "bz2"):
        name = next((name.removesuffix(end) for end in _PACKED if name.endswith(end)), name) or "log"
    if item.kind == "record":
        name = name.removesuffix(_RECORD) + ".log"
    if item.foreign == "flight-recorder":
        ending = next((end for end in _PICKLES if name.endswith(end)), None)
        if ending is not None and is_pickle_input(item):
            name = name.removesuffix(ending) + ".json"
    return name


def _targets(items: list[Input], path: str, out: str, single: bool, names: Pseudonyms) -> list[str]:
    """The file for each input; of two with the same name the second one gets a number."""
    if single:
        return [out]
    taken: set[str] = set()
    targets = []
    for item in items:
        inside = _inside(item, path)
        parts = inside.split("/")
        # psmkit reads this file by its name.
        new = [part if part == CATALOGUE else names.file_name(part) for part in parts]
        name, number = "/".join(new), 1
        stem, dot, ending = new[-1].partition(".")
        while name in taken:
            number += 1
            name = "/".join((*new[:-1], f"{stem}-{number}{dot}{ending}"))
        taken.add(name)
        targets.append(name)
    # Files are read in the order of their names.
    names_before = [_inside(item, path) for item in items]
    if _order(targets) != _order(names_before):
        width = len(str(len(targets)))
        place = {index: number + 1 for number, index in enumerate(_order(names_before))}
        for index, name in enumerate(targets):
            folder, slash, file = name.rpartition("/")
            if file != CATALOGUE:
                targets[index] = f"{folder}{slash}{place[index]:0{width}d}-{file}"
    return [os.path.join(out, *name.split("/")) for name in targets]


def _order(files: list[str]) -> list[int]:
    return sorted(range(len(files)), key=lambda index: (natural(files[index]), files[index]))


def _write(target: str, lines: Iterator[bytes]) -> None:
    try:
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        with open(target, "wb", buffering=1 << 20) as file:
            file.writelines(lines)
    except OSError as error:
        raise InputError(target, f"cannot be written: {(error.strerror or str(error)).lower()}") from None


def _check_apart(path: str, out: str) -> None:
    one, other = os.path.realpath(path), os.path.realpath(out)
    if one == other or other.startswith(one + os.sep) or one.startswith(other + os.sep):
        raise InputError(out, "the input and the output must be apart")


def _check_free(out: str, folder: bool, force: bool) -> None:
    """Raise an error if there is something at ``out`` that would be lost; with ``force`` remove what is in it."""
    if not os.path.lexists(out):
        return
    if folder != os.path.isdir(out) or os.path.islink(out):
        raise InputError(out, f"it exists and is no {'folder' if folder else 'file'}")
    if not (os.listdir(out) if folder else os.path.getsize(out)):
        return
    if not force:
        raise InputError(out, "it exists and is not empty; --force replaces it")
    if folder:
        for name in os.listdir(out):
            whole = os.path.join(out, name)
            if os.path.isdir(whole) and not os.path.islink(whole):
                shutil.rmtree(whole)
            else:
                os.unlink(whole)


def write_mapping(file: str, mapping: dict[str, dict[str, str]], force: bool) -> None:
    """Write the pseudonyms of all names to a file that only its owner can read.

    Raises:
        InputError: the file exists, or cannot be written.
    """
    try:
        if force and os.path.lexists(file):
            os.unlink(file)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", errors="surrogateescape") as out:
            json.dump(mapping, out, indent=1)
            out.write("\n")
    except FileExistsError:
        raise InputError(file, "it exists; --force replaces it") from None
    except OSError as error:
        raise InputError(file, f"cannot be written: {(error.strerror or str(error)).lower()}") from None
