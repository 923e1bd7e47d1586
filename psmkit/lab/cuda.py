"""The emulated CUDA for Python: its location, the environment of a child process that uses it, and a small cffi face for tests.

``Face`` calls the functions of any library with CUDA's ABI, emulated or real, by the prototypes of ``api.def``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from psmkit.cudaapi import apidef
from psmkit.model.errors import PsmkitError

__all__ = ["LIBRARIES", "CudaError", "Face", "LabError", "declarations", "environment", "folder", "functions"]

LIBRARIES = {
    "cudart12": "libcudart.so.12",
    "cudart13": "libcudart.so.13",
    "cuda": "libcuda.so.1",
    "nvml": "libnvidia-ml.so.1",
}
_TREE = Path(__file__).parents[2] / "csrc" / "cuda"


class LabError(PsmkitError):
    """The lab cannot do what the caller asks for."""


class CudaError(Exception):
    """A CUDA call failed. ``code`` is what it returned."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.function, self.code = function, code


def folder() -> Path:
    """The folder of the emulated libraries. PSM_HOSTCUDA_DIR names another build.

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


def declarations(library: str) -> Iterator[str]:
    """C declarations of the functions in one of LIBRARIES whose types are known."""
    return apidef.declarations(functions(), apidef.types(_data), library)


def _made(library: str) -> Any:
    """The declarations that the build compiled, which saves a seventh of a second; None: there are none, or outdated ones."""
    try:
        path = folder() / f"face_{library}.py"
    except LabError:
        return None
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.exists() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi if apidef.digest(_data) == module.DIGEST else None


@cache
def _ffi(library: str) -> Any:
    ffi = _made(library)
    if ffi is None:
        import cffi  # late: it brings its parser of C

        ffi = cffi.FFI()
        ffi.cdef(apidef.types(_data) + "\n" + "\n".join(declarations(library)))
    return ffi


class Face:
    """The functions of one CUDA library as attributes; ``face.ok.cudaMalloc(...)`` raises CudaError unless it returns 0.

    Args:
        library: a key of LIBRARIES; it selects the prototypes.
        path: the library to load, or the emulated one.
    """

    def __init__(self, library: str, path: str | os.PathLike[str] | None = None) -> None:
        self.library = library
        self.ffi = _ffi(library)
        self.path = Path(path) if path else folder() / LIBRARIES[library]
        self._lib = self.ffi.dlopen(str(self.path), self.ffi.RTLD_LAZY | self.ffi.RTLD_LOCAL)
        self.ok = _Checked(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._lib, name)
        except getattr(self.ffi, "error", AttributeError) as error:  # of the build's: declared, and not in the library
            raise AttributeError(str(error)) from None

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
