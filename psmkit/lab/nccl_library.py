"""Finds the NCCL library of a run, and checks whether it can run on emulated CUDA."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from pathlib import Path

from psmkit.lab import coverage, elf
from psmkit.lab.cuda import LabError

__all__ = ["Library", "find", "version_of"]

_MARK = b"CCL version "
_VERSION = re.compile(rb"\w*CCL version (\d+(?:\.\d+){1,3}\w*)\+(?:cuda|hip)(\d+)\.(\d+)")
_CUDART = re.compile(r"libcudart\.so\.(\d+)")
_EMULATED = (12, 13)
# From 11.7 on the static CUDA runtime runs a keyed self-test of the driver, which emulated CUDA does not imitate.
_SELF_TEST = (11, 7)
_HOW = (
    "link NCCL to the shared CUDA runtime: `make -j src.build CUDARTLIB=cudart` in its tree (docs/linking.md), and give its "
    "build/lib to --lib"
)


@dataclass(frozen=True, slots=True)
class Library:
    """An NCCL library that can run on emulated CUDA.

    Attributes:
        path: the file.
        version: of NCCL, as ``2.26.6``; empty if it is unknown.
        cuda: of the CUDA that it was compiled with.
        cudart: how it has its CUDA runtime: ``shared 12``, ``static 11.0``.
        missing: functions that it is linked to, and that answer "not supported".
    """

    path: Path
    version: str
    cuda: str
    cudart: str
    missing: tuple[str, ...]


def find(place: Path) -> Library:
    """The NCCL library at ``place``: a file, or a folder with a libnccl.so.2 or libnccl.so.

    Raises:
        LabError: there is none, or it cannot run on emulated CUDA; the text says what to do.
    """
    path = _file(place)
    binary = elf.read(path)
    if "ncclCommInitRank" not in binary.defined:
        raise LabError(f"{path} is not an NCCL library: it does not define ncclCommInitRank")
    version, cuda = version_of(path)
    about = f"{path} (NCCL {version or 'of unknown version'}, CUDA {_dotted(cuda) if version else 'unknown'})"
    shared = [int(m[1]) for name in binary.needed if (m := _CUDART.match(name))]
    if shared and shared[0] not in _EMULATED:
        raise LabError(
            f"{about} is linked to libcudart.so.{shared[0]}; emulated CUDA has libcudart.so.12 and .13: compile it with CUDA 12 or 13"
        )
    # A library that the loader finds cudart for by other means has its functions undefined.
    if not shared and not any(name.startswith("cudaMalloc") for name in binary.undefined):
        if not version:
            raise LabError(f"{path} links the CUDA runtime statically, and its version is unknown: {_HOW}")
        if cuda >= _SELF_TEST:
            raise LabError(
                f"{about} links the CUDA runtime statically. From CUDA 11.7 on, that runtime runs a self-test of the driver that emulated "
                f"CUDA does not support, so stock binaries for CUDA 12 and 13 cannot run here: {_HOW}. The stock binary that runs is that of "
                "the package nvidia-nccl-cu11 2.21.5"
            )
        return Library(path, version, _dotted(cuda), f"static {_dotted(cuda)}", ())
    missing = tuple(need.name for need in coverage.needs(path) if need.how == "linked" and not need.provided)
    return Library(
        path, version, _dotted(cuda) if version else "", f"shared {shared[0] if shared else ''}".strip(), missing
    )


def version_of(path: Path) -> tuple[str, tuple[int, int]]:
    """The versions of NCCL and of its CUDA in a library, by its string; an empty text and zeros: it has none.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            return "", (0, 0)
        with data:
            at = data.find(_MARK)
            while at >= 0:
                if match := _VERSION.match(data[max(at - 1, 0) : at + 80]):
                    return match[1].decode(), (int(match[2]), int(match[3]))
                at = data.find(_MARK, at + 1)
    return "", (0, 0)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _file(place: Path) -> Path:
    if place.is_file():
        return place.absolute()
    if not place.is_dir():
        raise LabError(f"{place}: no such file or folder, expected a libnccl.so or its folder")
    for folder in (place, place / "lib", place / "build" / "lib"):
        for pattern in ("libnccl.so.2", "libnccl.so", "libnccl.so.*"):
            if found := sorted(folder.glob(pattern)):
                return found[0].absolute()
    raise LabError(f"{place}: no libnccl.so in it, in lib or in build/lib")
