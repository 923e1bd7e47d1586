"""The emulated CUDA for Python: where it lies, how a child process gets it, and a small cffi face for tests.

``Face`` calls the functions of any library with CUDA's ABI, emulated or real, by the prototypes of ``api.def``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import cffi

from psmkit.lab import apidef
from psmkit.model.errors import PsmkitError

__all__ = ["LIBRARIES", "CudaError", "Face", "LabError", "declarations", "environment", "folder", "functions"]

LIBRARIES = {
    "cudart12": "libcudart.so.12",
    "cudart13": "libcudart.so.13",
    "cuda": "libcuda.so.1",
    "nvml": "libnvidia-ml.so.1",
}
_AREAS = ("", "_device", "_device_launch", "_memory", "_copy", "_stream", "_graph", "_nvml")
_TREE = Path(__file__).parents[2] / "csrc" / "cuda"


class LabError(PsmkitError):
    """The lab cannot do what it was asked for."""


class CudaError(Exception):
    """A CUDA call failed. ``code`` is what it returned."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.function, self.code = function, code


def folder() -> Path:
    """Where the emulated libraries lie. PSM_HOSTCUDA_DIR points elsewhere, for other builds of them.

    Raises:
        LabError: they were not built.
    """
    place = Path(os.environ.get("PSM_HOSTCUDA_DIR") or Path(__file__).parent / "hostcuda")
    if not (place / LIBRARIES["cuda"]).exists():
        raise LabError(
            f"no emulated CUDA in {place}: build it with `make setup`, or install a psmkit wheel for this system"
        )
    return place


def _data(name: str) -> Path:
    installed = Path(__file__).parent / "hostcuda" / name
    return _TREE / name if (_TREE / name).exists() else installed


@cache
def functions() -> tuple[apidef.Function, ...]:
    """All functions of api.def."""
    return tuple(apidef.read(_data("api.def")))


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """``base`` (this process's environment) with the emulated libraries first on the library path."""
    env = dict(os.environ if base is None else base)
    rest = env.get("LD_LIBRARY_PATH")
    env["LD_LIBRARY_PATH"] = str(folder()) + (f":{rest}" if rest else "")
    # These libraries keep thread-local data where the loader has little room for what is loaded late: a net plugin behind them would not
    # fit into an interpreter.
    tunables = env.get("GLIBC_TUNABLES")
    if "glibc.rtld.optional_static_tls" not in (tunables or ""):
        env["GLIBC_TUNABLES"] = (f"{tunables}:" if tunables else "") + "glibc.rtld.optional_static_tls=4096"
    return env


_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_BUILTIN = {"void", "int", "unsigned", "char", "long", "short", "float", "double", "const", "size_t", "struct", "enum"} | {
    "union", "signed", "uint64_t", "uint32_t", "int64_t", "int32_t", "uint8_t", "uint16_t", "intptr_t", "uintptr_t",
}  # fmt: skip


@cache
def _types() -> str:
    lines: list[str] = []
    for area in _AREAS:
        for line in _COMMENT.sub("", _data(f"types{area}.h").read_text()).splitlines():
            if not line.startswith("#") or re.fullmatch(r"#define \w+ +-?\w+", line.strip()):
                lines.append(line)
    return "\n".join(line for line in lines if line.strip())


def declarations(library: str) -> Iterator[str]:
    """C declarations of what can be called in one of LIBRARIES: functions whose types are known."""
    types = _types()
    known = set(_WORD.findall(types)) | _BUILTIN
    kind = {"cuda": "drv", "nvml": "nvml"}.get(library, "rt")
    soname = int(library.removeprefix("cudart")) if kind == "rt" else None
    for f in functions():
        if f.library != kind or f.result is None or (soname and soname not in f.versions):
            continue
        used = set(_WORD.findall(f.result)) | {word for p in f.parameters for word in _WORD.findall(p.type)}
        if used <= known:
            yield f.prototype + ";"
            if f.default_stream:
                yield f.prototype.replace(f.name + "(", f"{f.name}_{f.default_stream}(", 1) + ";"


@cache
def _ffi(library: str) -> Any:
    ffi = cffi.FFI()
    ffi.cdef(_types() + "\n" + "\n".join(declarations(library)))
    return ffi


class Face:
    """The functions of one CUDA library as attributes; ``face.ok.cudaMalloc(...)`` raises CudaError unless it returns 0.

    Args:
        library: a key of LIBRARIES, which says which prototypes hold.
        path: the library to load, or the emulated one.
    """

    def __init__(self, library: str, path: str | os.PathLike[str] | None = None) -> None:
        self.library = library
        self.ffi = _ffi(library)
        self.path = Path(path) if path else folder() / LIBRARIES[library]
        self._lib = self.ffi.dlopen(str(self.path), self.ffi.RTLD_LAZY | self.ffi.RTLD_LOCAL)
        self.ok = _Checked(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def new(self, kind: str, value: Any = None) -> Any:
        """A C object, as ``ffi.new``."""
        return self.ffi.new(kind, value)


class _Checked:
    def __init__(self, face: Face) -> None:
        self._face = face

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._face, name)

        def call(*arguments: Any) -> None:
            code = function(*arguments)
            if code:
                raise CudaError(name, code)

        return call
