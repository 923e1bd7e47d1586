"""The driver: what one call of psm-nvcc runs."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from psmkit.model.errors import PsmkitError
from psmkit.nvcc import home
from psmkit.nvcc.assembly import with_table
from psmkit.nvcc.options import Invocation, NvccError, parse
from psmkit.nvcc.source import host_source

__all__ = ["main"]

_HELP = """usage: psm-nvcc [options of nvcc] FILE...
       psm-nvcc --cuda-home DIR

Compiles the host side of CUDA sources with the host compiler, for emulated CUDA. Use it in place of nvcc:
`make NVCC=psm-nvcc`, or `make CUDA_HOME=DIR` with the folder that `psm-nvcc --cuda-home DIR` makes.
Options for device code have no effect; options that nvcc does not have are refused.
"""
# What nvcc defines. The headers need it to declare what sources for the device use.
_DEFINES = (
    "-D__CUDACC__=1 -D__NVCC__=1 -D__NV_NO_HOST_COMPILER_CHECK=1 -D__NVCC_DIAG_PRAGMA_SUPPORT__=1 -DPSM_NVCC=1".split()
)
_QUIET = "-Wno-unknown-pragmas -Wno-attributes -Wno-unused -Wno-unused-parameter -Wno-return-type -fno-lto".split()
_MINE = Path(__file__).parent / "psm_nvcc.h"
_SOURCE = re.compile(r"\.(cu|c|cc|cpp|cxx|C|i|ii)$")


class _FailedError(Exception):
    """A program that the driver started failed, and has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _run(call: Invocation, *command: str) -> None:
    if call.verbose:
        print(shlex.join(command), file=sys.stderr)
    if call.dry:
        return
    try:
        done = subprocess.run(command, check=False)
    except OSError as error:
        raise NvccError(f"the host compiler {command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        raise _FailedError(done.returncode if done.returncode > 0 else 1)


def _is_cuda(call: Invocation, source: str) -> bool:
    return call.language == "cu" or (call.language is None and source.endswith(".cu"))


def _flags(call: Invocation, cuda: home.Headers, source: str) -> list[str]:
    """The options of the preprocessor for a source."""
    folders = [word for folder in cuda.folders for word in ("-isystem", str(folder))]
    if not _is_cuda(call, source):
        return [*call.host, *folders]
    major, minor = cuda.release
    versions = [
        f"-D__CUDACC_VER_MAJOR__={major}",
        f"-D__CUDACC_VER_MINOR__={minor}",
        "-D__CUDACC_VER_BUILD__=0",
        f"-D__CUDA_API_VER_MAJOR__={major}",
        f"-D__CUDA_API_VER_MINOR__={minor}",
    ]
    return [
        *_DEFINES,
        *versions,
        *call.defines,
        *call.host,
        *folders,
        "-isystem",
        str(_MINE.parent),
        "-include",
        _MINE.name,
    ]


def _language(call: Invocation, source: str) -> list[str]:
    if _is_cuda(call, source):
        return ["-x", "c++"]
    return ["-x", call.language] if call.language else []


def _plain(host: list[str]) -> list[str]:
    """Without the options that only the preprocessor may see."""
    rest: list[str] = []
    words = iter(host)
    for word in words:
        if word in ("-MF", "-MT", "-MQ", "-include", "-isystem"):
            next(words, None)
        elif not (word in ("-MD", "-MMD", "-MP") or word.startswith(("-I", "-D", "-U"))):
            rest.append(word)
    return rest


def _compile(call: Invocation, source: str, output: str) -> None:
    cuda = home.headers()
    if not _is_cuda(call, source):
        _run(call, call.compiler, *_flags(call, cuda, source), *_language(call, source), "-c", source, "-o", output)
        return
    plain = _plain(call.host)
    target = ["-MT", output] if any(word in ("-MD", "-MMD") for word in call.host) and "-MT" not in call.host else []
    if target and "-MF" not in call.host:
        target += ["-MF", str(Path(output).with_suffix(".d"))]
    with tempfile.TemporaryDirectory(prefix="psm-nvcc-") as folder:
        stem = str(Path(folder) / Path(source).stem)
        _run(call, call.compiler, *_flags(call, cuda, source), *target, "-x", "c++", "-E", source, "-o", f"{stem}.ii")
        if not call.dry:
            text = Path(f"{stem}.ii").read_text(errors="surrogateescape")
            Path(f"{stem}.cu.ii").write_text(host_source(text), errors="surrogateescape")
        _run(call, call.compiler, *plain, *_QUIET, "-x", "c++-cpp-output", "-S", f"{stem}.cu.ii", "-o", f"{stem}.s")
        if not call.dry:
            assembly = Path(f"{stem}.s").read_text(errors="surrogateescape")
            Path(f"{stem}.s").write_text(with_table(assembly, platform.machine()), errors="surrogateescape")
        _run(call, call.compiler, "-c", f"{stem}.s", "-o", output)


def _object(call: Invocation, source: str) -> str:
    if call.output and call.mode == "compile":
        return call.output
    return str(Path(call.folder or ".") / (Path(source).stem + ".o"))


def _compile_all(call: Invocation) -> None:
    sources = call.inputs
    if call.output and len(sources) > 1:
        raise NvccError(f"-o {call.output} names one file, but there are {len(sources)} sources")
    for source in sources:
        _compile(call, source, _object(call, source))


def _link(call: Invocation) -> None:
    with tempfile.TemporaryDirectory(prefix="psm-nvcc-") as folder:
        objects: list[str] = []
        for i, source in enumerate(call.inputs):
            if _SOURCE.search(source):
                objects.append(str(Path(folder) / f"{i}-{Path(source).stem}.o"))
                _compile(call, source, objects[-1])
        plain = _plain(call.host)
        output = call.output or "a.out"
        shared = ["-shared"] if call.shared else []
        _run(call, call.compiler, *plain, *shared, *objects, "-o", output, *home.libraries(call.link))


def _archive(call: Invocation) -> None:
    if not call.output:
        raise NvccError("-lib needs the name of the library: -o NAME")
    with tempfile.TemporaryDirectory(prefix="psm-nvcc-") as folder:
        objects = []
        for i, source in enumerate(call.inputs):
            if _SOURCE.search(source):
                _compile(call, source, str(Path(folder) / f"{i}-{Path(source).stem}.o"))
                objects.append(str(Path(folder) / f"{i}-{Path(source).stem}.o"))
            else:
                objects.append(source)
        _run(call, shutil.which("ar") or "ar", "crs", call.output, *objects)


def _device_link(call: Invocation) -> None:
    """No device code: an object without anything in it."""
    machine = ["-x", "assembler", os.devnull]
    _run(call, call.compiler, *machine, "-c", "-o", call.output or "a_dlink.o")


def _version() -> str:
    major, minor = home.headers().release
    return (
        "psm-nvcc: the host side of CUDA sources, for emulated CUDA (psmkit)\n"
        f"Cuda compilation tools, release {major}.{minor}, V{major}.{minor}.0"
    )


def _preprocess(call: Invocation, *mode: str) -> None:
    cuda = home.headers()
    for source in call.inputs:
        output = ["-o", call.output] if call.output else []
        _run(call, call.compiler, *_flags(call, cuda, source), *_language(call, source), *mode, source, *output)


def _do(call: Invocation) -> None:
    if call.mode == "version":
        print(_version())
    elif call.mode == "help":
        print(_HELP, end="")
    elif call.mode == "home":
        print(home.make(Path(call.inputs[0] if call.inputs else "cuda")))
    elif not call.inputs:
        raise NvccError("no file to compile is given: psm-nvcc --help")
    elif call.mode in ("-M", "-MM"):
        _preprocess(call, call.mode)
    elif call.mode == "preprocess":
        _preprocess(call, "-E")
    elif call.mode == "compile":
        _compile_all(call)
    elif call.mode == "dlink":
        _device_link(call)
    elif call.mode == "lib":
        _archive(call)
    else:
        _link(call)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line of nvcc. Returns the exit status."""
    try:
        _do(parse(sys.argv[1:] if arguments is None else arguments))
    except _FailedError as error:
        return error.status
    except PsmkitError as error:
        print(f"psm-nvcc: {error}", file=sys.stderr)
        return 2
    return 0
