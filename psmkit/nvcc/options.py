"""The options of nvcc that psm-nvcc accepts, and what becomes of each."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from psmkit.model.errors import PsmkitError

__all__ = ["Invocation", "NvccError", "parse"]


class NvccError(PsmkitError):
    """psm-nvcc cannot do what it is asked for."""


# Each option: the names without dashes. `-name value`, `-name=value`, and the same with two dashes are one.
# These are for device code, or for intermediate files: they and their values have no effect.
_DEVICE_VALUES = """
    gencode generate-code arch gpu-architecture code gpu-code maxrregcount Xptxas ptxas-options Xnvlink nvlink-options
    Xfatbin fatbin-options Xcudafe cudafe-options Xarchive archive-options rdc relocatable-device-code
    ftz prec-div prec-sqrt fmad dopt t threads split-compile split-compile-extended cudart cudadevrt libdevice-directory ldir
    err-no keep-dir diag-error diag-suppress diag-warn Werror jump-table-density device-stack-protector ofc
    target-directory target-dir idp input-drive-prefix ddp dependency-drive-prefix dp drive-prefix machine m
""".split()
_DEVICE_FLAGS = """
    G device-debug lineinfo generate-line-info keep use_fast_math dlto dlink-time-opt lto extra-device-vectorization
    restrict source-in-ptx res-usage resource-usage expt-relaxed-constexpr expt-extended-lambda extended-lambda
    static-global-template-stub compress-all no-compress nodlink extensible-whole-program ewp m64
    allow-unsupported-compiler display-error-number no-display-error-number den no-den
    Wno-deprecated-gpu-targets Wno-deprecated-declarations Wreorder Wdefault-stream-launch Wmissing-launch-bounds
    Wext-lambda-captures-this
""".split()
# Options of the host compiler, by nvcc's names: what is passed on. {} is the value.
_HOST_VALUES = {
    "I": "-I{}", "include-path": "-I{}", "isystem": "-isystem {}", "system-include": "-isystem {}",
    "D": "-D{}", "define-macro": "-D{}", "U": "-U{}", "undefine-macro": "-U{}",
    "include": "-include {}", "pre-include": "-include {}", "std": "-std={}", "O": "-O{}", "optimize": "-O{}",
    "MF": "-MF {}", "dependency-output": "-MF {}", "MT": "-MT {}", "MQ": "-MQ {}",
}  # fmt: skip
_HOST_FLAGS = {
    "g": "-g", "debug": "-g", "pg": "-pg", "profile": "-pg", "w": "-w", "disable-warnings": "-w",
    "MD": "-MD", "generate-dependencies-with-compile": "-MD", "MMD": "-MMD",
    "generate-nonsystem-dependencies-with-compile": "-MMD", "MP": "-MP", "generate-dependency-targets": "-MP",
}  # fmt: skip
_LINK_VALUES = {"L": "-L{}", "library-path": "-L{}", "l": "-l{}", "library": "-l{}"}
_OWN_VALUES = """
    Xcompiler compiler-options Xlinker linker-options ccbin compiler-bindir o output-file odir output-directory x
    default-stream
""".split()
_OWN_FLAGS = """
    shared v verbose dryrun forward-unknown-to-host-compiler forward-unknown-to-host-linker forward-unknown-opts
""".split()
_MODES = {
    "c": "compile", "compile": "compile", "dc": "compile", "device-c": "compile", "dw": "compile", "device-w": "compile",
    "dlink": "dlink", "device-link": "dlink", "link": "link", "lib": "lib", "E": "preprocess", "preprocess": "preprocess",
    "M": "-M", "generate-dependencies": "-M", "MM": "-MM", "generate-nonsystem-dependencies": "-MM",
    "V": "version", "version": "version", "h": "help", "help": "help", "cuda-home": "home",
}  # fmt: skip
_REFUSED = {
    **dict.fromkeys(("ptx", "cubin", "fatbin", "optix-ir", "ltoir", "dx"), "device code is not compiled"),
    **dict.fromkeys(("cuda", "gpu", "multi-device"), "intermediate files of nvcc are not made"),
    "run": "start the program yourself, on emulated CUDA",
}
_JOINED = ("I", "D", "U", "L", "l", "O", "o", "x", "std")


@dataclass
class Invocation:
    """One call of psm-nvcc."""

    mode: str = "link"
    inputs: list[str] = field(default_factory=list)
    output: str | None = None
    language: str | None = None
    compiler: str = "g++"
    host: list[str] = field(default_factory=list)
    link: list[str] = field(default_factory=list)
    defines: list[str] = field(default_factory=list)
    verbose: bool = False
    dry: bool = False
    shared: bool = False
    folder: str | None = None
    forward: bool = False  # options that nvcc does not have go to the host compiler


def _list(value: str) -> list[str]:
    """The words of a value of -Xcompiler or -Xlinker: separated by commas or blanks."""
    hidden = value.replace("\\,", "\0")
    return [word.replace("\0", ",") for part in hidden.split(",") for word in shlex.split(part)]


def _expand(words: list[str]) -> list[str]:
    """With the content of option files in the place of their names."""
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        names = None
        if word in ("-optf", "--options-file") and rest:
            names = rest.pop(0)
        elif word.startswith(("-optf=", "--options-file=")):
            names = word.split("=", 1)[1]
        elif word.startswith("@"):
            names = word[1:]
        if names is None:
            out.append(word)
            continue
        for name in names.split(","):
            try:
                out += _expand(shlex.split(Path(name).read_text()))
            except OSError as error:
                raise NvccError(f"the options file {name} cannot be read: {error.strerror}") from error
    return out


def _name_and_value(word: str) -> tuple[str, str | None]:
    """The name of an option, and the value that is part of the word."""
    name = word.lstrip("-")
    if "=" in name and not (word.startswith("-D") and not word.startswith("--")):
        name, value = name.split("=", 1)
        if not _takes(name):
            for letter in _JOINED:
                if name.startswith(letter) and not word.startswith("--"):
                    return letter, f"{name[len(letter) :]}={value}"
        return name, value
    if word.startswith("--") or _known(name):
        return name, None
    for letter in _JOINED:
        if name.startswith(letter) and len(name) > len(letter):
            return letter, name[len(letter) :]
    return name, None


def _takes(name: str) -> bool:
    return any(name in table for table in (_DEVICE_VALUES, _HOST_VALUES, _LINK_VALUES, _OWN_VALUES))


def _known(name: str) -> bool:
    return _takes(name) or any(name in table for table in (_DEVICE_FLAGS, _HOST_FLAGS, _OWN_FLAGS, _MODES, _REFUSED))


def _flag(call: Invocation, name: str, word: str) -> None:
    if name in _REFUSED:
        raise NvccError(f"{word} is refused: {_REFUSED[name]}")
    if name in _MODES:
        # -MM -dc asks for the dependencies of what -dc compiles.
        if call.mode not in ("-M", "-MM"):
            call.mode = _MODES[name]
        if name in ("dc", "device-c"):
            call.defines.append("-D__CUDACC_RDC__")
    elif name in _HOST_FLAGS:
        call.host.append(_HOST_FLAGS[name])
    elif name == "shared":
        call.shared = True
    elif name.startswith("forward-unknown"):
        call.forward = True
    elif name in ("v", "verbose", "dryrun"):
        call.verbose = True
        call.dry = call.dry or name == "dryrun"
    elif "relaxed-constexpr" in name:
        call.defines.append("-D__CUDACC_RELAXED_CONSTEXPR__")
    elif "extended-lambda" in name:
        call.defines.append("-D__CUDACC_EXTENDED_LAMBDA__")


def _value(call: Invocation, name: str, value: str, word: str) -> None:
    if name in ("Xcompiler", "compiler-options"):
        call.host += _list(value)
    elif name in ("Xlinker", "linker-options"):
        call.link += [part for item in _list(value) for part in ("-Xlinker", item)]
    elif name in ("ccbin", "compiler-bindir"):
        call.compiler = str(Path(value) / "g++") if Path(value).is_dir() else value
    elif name in ("o", "output-file"):
        call.output = value
    elif name in ("odir", "output-directory"):
        call.folder = value
    elif name == "x":
        if value not in ("cu", "c", "c++"):
            raise NvccError(f"{word} is refused: psm-nvcc knows the languages cu, c and c++, not {value}")
        call.language = value
    elif name == "default-stream":
        if value == "per-thread":
            call.defines.append("-DCUDA_API_PER_THREAD_DEFAULT_STREAM=1")
    elif name in ("rdc", "relocatable-device-code"):
        if value == "true":
            call.defines.append("-D__CUDACC_RDC__")
    elif name in _HOST_VALUES:
        call.host += _HOST_VALUES[name].format(value).split(" ", 1)
    elif name in _LINK_VALUES:
        call.link.append(_LINK_VALUES[name].format(value))


def parse(words: list[str]) -> Invocation:
    """An invocation from the words of a command line.

    Raises:
        NvccError: an option is unknown, or asks for device code.
    """
    call = Invocation()
    rest = _expand(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            call.inputs.append(word)
            if not word.endswith(_SOURCES) and call.language is None:
                call.link.append(word)  # keeps its place among the libraries
            continue
        name, value = _name_and_value(word)
        if not _known(name):
            if call.forward:
                call.host.append(word)
                continue
            raise NvccError(
                f"unknown option {word}: psm-nvcc accepts the options of nvcc; give one of the host compiler as -Xcompiler {word}"
            )
        if not _takes(name):
            _flag(call, name, word)
            continue
        if value is None:
            if not rest:
                raise NvccError(f"the option {word} needs a value")
            value = rest.pop(0)
        _value(call, name, value, word)
    return call


_SOURCES = (".cu", ".c", ".cc", ".cpp", ".cxx", ".C", ".i", ".ii")
