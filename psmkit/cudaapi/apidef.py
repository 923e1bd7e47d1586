"""Reads csrc/cuda/api.def, the one list of CUDA functions. Imports nothing of psmkit: the build runs it from the tree."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Function", "Parameter", "declarations", "digest", "parse", "read", "types"]

_LINE = re.compile(r"(rt|drv|nvml)\s+(\S+)\s+(-|ptsz|ptds)\s+(\S+)\s+(.+)")
_PROTOTYPE = re.compile(r"(?P<result>.*?[\s*])(?P<name>\w+)\s*\((?P<parameters>.*)\)", re.DOTALL)
_PARAMETER = re.compile(r"(?P<type>.*?[\s*])(?P<name>\w+)(?P<array>\[\w*\])?", re.DOTALL)
_ROLE = re.compile(r"@([\w.+-]+)(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\))?")
_ERROR_TYPES = {"cudaError_t": "rt", "CUresult": "drv", "nvmlReturn_t": "nvml"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: C type, name, and the roles the handle sanitizer gives it, as (role, expression) pairs."""

    type: str
    name: str
    roles: tuple[tuple[str, str], ...] = ()

    @property
    def declaration(self) -> str:
        return self.type + ("" if self.type.endswith("*") else " ") + self.name


@dataclass(frozen=True, slots=True)
class Function:
    """A line of api.def.

    ``versions``: sonames (``12``, ``13``) for the runtime, the version as a number (11030) for the driver, empty for NVML.
    ``result`` is None where only the name is known. ``provider``: a file of csrc/hostcuda, ``=NAME`` or ``ctx=NAME`` of the function
    that takes the call, ``recipe:NAME`` or ``node:TYPE`` of a function on a graph's node that is made from its line, or None.
    """

    library: str
    name: str
    versions: tuple[int, ...]
    default_stream: str | None
    provider: str | None
    result: str | None
    parameters: tuple[Parameter, ...]
    line: int

    @property
    def returns_error(self) -> bool:
        """Whether the function answers with its library's error code."""
        return self.result is None or self.result in _ERROR_TYPES

    @property
    def forward(self) -> str | None:
        """The function that takes its calls, with the same arguments."""
        return self.provider.partition("=")[2] or None if self.provider else None

    @property
    def made(self) -> tuple[str, str] | None:
        """``("recipe", NAME)`` or ``("node", TYPE)`` of a function whose definition is made from its line."""
        how, colon, what = (self.provider or "").partition(":")
        return (how, what) if colon else None

    @property
    def needs_context(self) -> bool:
        """Whether a forwarded call first checks that a context is current."""
        return bool(self.provider and self.provider.startswith("ctx="))

    @property
    def base(self) -> str:
        """The name without ``_v2``: what cuGetProcAddress is asked for."""
        return re.sub(r"_v\d+$", "", self.name) if self.library == "drv" else self.name

    @property
    def prototype(self) -> str:
        if self.result is None:
            return f"{self.name}(?)"
        inside = ", ".join(p.declaration for p in self.parameters) or "void"
        return self.result + ("" if self.result.endswith("*") else " ") + f"{self.name}({inside})"


def _split(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


def _parameter(text: str, where: str) -> Parameter:
    roles = tuple((m.group(1), (m.group(2) or "").strip()) for m in _ROLE.finditer(text))
    plain = _ROLE.sub("", text).strip()
    match = _PARAMETER.fullmatch(plain)
    if not match:
        raise ValueError(f"{where}: cannot read the parameter {text!r}")
    kind = match["type"].strip() + (" *" if match["array"] else "")
    return Parameter(kind, match["name"], roles)


def _function(text: str, where: str, line: int) -> Function:
    match = _LINE.fullmatch(text)
    if not match:
        raise ValueError(f"{where}: expected `library versions default provider prototype`, found {text!r}")
    library, versions, default, provider, prototype = match.groups()
    numbers: tuple[int, ...] = ()
    if library == "rt":
        numbers = tuple(int(v) for v in versions.split(","))
    elif library == "drv":
        major, minor = versions.split(".")
        numbers = (int(major) * 1000 + int(minor) * 10,)
    result: str | None = None
    parameters: tuple[Parameter, ...] = ()
    if prototype.startswith("?"):
        name = prototype[1:].strip()
    else:
        parts = _PROTOTYPE.fullmatch(prototype.strip())
        if not parts:
            raise ValueError(f"{where}: cannot read the prototype {prototype!r}")
        name, result = parts["name"], parts["result"].strip()
        if parts["parameters"].strip() not in ("", "void"):
            parameters = tuple(_parameter(p, where) for p in _split(parts["parameters"]))
    return Function(
        library,
        name,
        numbers,
        None if default == "-" else default,
        None if provider == "-" else provider,
        result,
        parameters,
        line,
    )


def parse(text: str, name: str = "api.def") -> list[Function]:
    """The functions of a list, in its order. A line that cannot be read is a ValueError that names it."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.strip()
        if plain and not plain.startswith("#"):
            found.append(_function(plain, f"{name}:{number}", number))
    return found


def read(path: Path) -> list[Function]:
    """The functions of a file in the format of csrc/cuda/api.def."""
    return parse(path.read_text(), str(path))


_AREAS = ("", "_device", "_device_launch", "_memory", "_copy", "_stream", "_graph", "_nvml")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_BUILTIN = {"void", "int", "unsigned", "char", "long", "short", "float", "double", "const", "size_t", "struct", "enum"} | {
    "union", "signed", "uint64_t", "uint32_t", "int64_t", "int32_t", "uint8_t", "uint16_t", "intptr_t", "uintptr_t",
}  # fmt: skip


def _headers(place: Callable[[str], Path]) -> list[Path]:
    return [place(f"types{area}.h") for area in _AREAS]


def types(place: Callable[[str], Path]) -> str:
    """The C types and constants of the headers beside api.def, as cffi reads them. ``place`` gives the path of a file."""
    lines: list[str] = []
    for path in _headers(place):
        for line in _COMMENT.sub("", path.read_text()).splitlines():
            if not line.startswith("#") or re.fullmatch(r"#define \w+ +-?\w+", line.strip()):
                lines.append(line)
    return "\n".join(line for line in lines if line.strip())


def declarations(functions: Iterable[Function], known_types: str, library: str) -> Iterator[str]:
    """C declarations of what can be called in cudart12, cudart13, cuda or nvml: functions whose types are known."""
    known = set(_WORD.findall(known_types)) | _BUILTIN
    kind = {"cuda": "drv", "nvml": "nvml"}.get(library, "rt")
    soname = int(library.removeprefix("cudart")) if kind == "rt" else None
    for f in functions:
        if f.library != kind or f.result is None or (soname and soname not in f.versions):
            continue
        used = set(_WORD.findall(f.result)) | {word for p in f.parameters for word in _WORD.findall(p.type)}
        if used <= known:
            yield f.prototype + ";"
            if f.default_stream:
                yield f.prototype.replace(f.name + "(", f"{f.name}_{f.default_stream}(", 1) + ";"


def digest(place: Callable[[str], Path]) -> int:
    """Of all that declarations are made of."""
    value = 0
    for path in (place("api.def"), *_headers(place)):
        value = zlib.crc32(path.read_bytes(), value)
    return value
