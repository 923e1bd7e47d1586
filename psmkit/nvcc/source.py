"""A preprocessed CUDA source as C++ for the host compiler.

Bodies of functions for the device only are dropped, kernels become stubs, launches become calls, and CUDA's attributes are
removed. Everything else stays as it is: the host compiler judges it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from psmkit.nvcc.launches import launches
from psmkit.nvcc.options import NvccError
from psmkit.nvcc.parameters import names
from psmkit.nvcc.tokens import before, close, kept_lines, tokens

__all__ = ["SECTION", "SELF", "host_source"]

#: What a stub contains in the place of its own address: psmkit.nvcc.assembly replaces it.
SELF = "psm_nvcc_self"
#: The section of a device variable: that, a letter for its memory, and its name.
SECTION = ".psm_nvcc."

_FLAGS = """
    host device global shared constant managed grid_constant nv_pure device_builtin device_builtin_texture_type
    device_builtin_surface_type cudart_builtin tile tile_global tile_builtin experimental_foreign_decl nv_weak
""".split()
_CALLS = "launch_bounds cluster_dims block_size maxnreg local_maxnreg experimental_foreign_name".split()
_SIMPLE = re.compile(rf"__attribute__\s*\(\(\s*(?:{'|'.join(_FLAGS)})\s*\)\)")
_ANY = re.compile(rf"__attribute__\s*\(\(\s*({'|'.join(_FLAGS)}|{'|'.join(_CALLS)})\b")
_ANCHOR = re.compile(r"__attribute__\s*\(\(\s*(device|global|shared|constant|managed)\s*\)\)")
_PLACES = re.compile(r'^# \d+ "(?P<file>[^"\n]*)"|^[ \t]*namespace\s+(?:std|__gnu_cxx)\s*\{', re.MULTILINE)
_NOINLINE = re.compile(r"\b__noinline__\b(?!\s*[,)])")  # not within the parentheses of an attribute
_STUB = "__attribute__((__noinline__,__noclone__,__no_icf__))"
# Words before a parenthesis that is not the list of parameters.
_NO_NAME = frozenset(
    "decltype alignas noexcept explicit requires __attribute__ __declspec sizeof typeof __typeof__ _Alignas".split()
)
# What may stand between the parameters of a function and its body.
_TRAILER = frozenset(
    "const volatile noexcept override final & && throw requires __attribute__ __restrict__ __restrict".split()
)


@dataclass
class Edits:
    """Replacements of a text, applied at once."""

    text: str
    parts: list[tuple[int, int, str]] = field(default_factory=list)

    def replace(self, begin: int, end: int, by: str) -> None:
        self.parts.append((begin, end, by))

    def insert(self, at: int, text: str) -> None:
        self.parts.append((at, at, text))

    def apply(self) -> str:
        out: list[str] = []
        at = 0
        for begin, end, by in sorted(self.parts, key=lambda part: (part[0], part[1])):
            if begin < at:
                continue  # within something that was replaced
            out += (self.text[at:begin], by)
            at = end
        out.append(self.text[at:])
        return "".join(out)


@dataclass
class Declaration:
    """What follows the attributes of a declaration, as far as it matters."""

    attributes: set[str]
    first: int  # of its first attribute
    end: int  # where the next declaration may begin
    words: set[str] = field(default_factory=set)
    name: tuple[int, int] = (0, 0)
    parameters: tuple[int, int] | None = None
    body: tuple[int, int] | None = None
    trailing: bool = False  # it has a trailing return type
    initialized: bool = False


def _skip_initializers(text: str, at: int) -> int:
    """The brace that opens a constructor's body, behind the list of initializers that begins at ``at``; -1: none."""
    ready = False  # a name came: the next bracket initializes it
    walk = tokens(text, at)
    skip = at
    for token in walk:
        if token.start() < skip:
            continue
        word = token[0]
        if word == "{" and not ready:
            return token.start()
        if word in "({":
            skip = close(text, token.start())
            if skip < 0:
                return -1
            ready = False
        elif word in (";", "}"):
            return -1
        elif token.lastgroup == "word" or word == ">":
            ready = True
        elif word == ",":
            ready = False
    return -1


def _function_end(text: str, at: int) -> tuple[int, bool] | None:
    """Behind a list of parameters: the brace of the body (-1: there is none), and whether a return type trails. None: that
    was no list of parameters."""
    skip, trailing = at, False
    for token in tokens(text, at):
        if token.start() < skip:
            continue
        word = token[0]
        if word == "{":
            return token.start(), trailing
        if word in (";", "="):
            return -1, trailing
        if word == ":" and not trailing:
            return _skip_initializers(text, token.end()), trailing
        if word == "->":
            trailing = True
        elif word == "(":
            skip = close(text, token.start())
            if skip < 0:
                return None
        elif not trailing and word not in _TRAILER:
            return None
    return None


def _operator_end(text: str, at: int) -> int:
    """Behind the name of an operator whose keyword ends there: before its parameters."""
    for token in tokens(text, at):
        if token[0] == "(":
            return (
                token.start() if token.start() > at and text[at : token.start()].strip() else close(text, token.start())
            )
    return -1


def _head(text: str, anchor: re.Match[str]) -> Declaration:
    """A declaration with what stands in front of its first anchor."""
    start = max(text.rfind(mark, 0, anchor.start()) for mark in ";}{") + 1
    head = text[start : anchor.start()]
    words = set(re.findall(r"\w+", re.sub(r"\n#[^\n]*", "", head)))
    return Declaration({m[1] for m in _ANY.finditer(head)}, anchor.start(), anchor.end(), words)


def _declaration(text: str, anchor: re.Match[str]) -> Declaration:
    """The declaration that an attribute belongs to."""
    found = _head(text, anchor)
    at = before(text, anchor.start())
    if text[at - 1 : at] == "]" and text[at - 2 : at] != "]]":
        return found  # of a lambda: its body stays
    skip, previous = anchor.start(), ""
    for token in tokens(text, anchor.start()):
        if token.start() < skip:
            continue
        word = token[0]
        found.end = token.end()
        if word == "__attribute__":
            skip = close(text, text.index("(", token.start()))
            if kind := _ANY.match(text, token.start()):
                found.attributes.add(kind[1])
        elif word == "operator":
            skip = _operator_end(text, token.end())
            previous = word
        elif word in "([":
            skip = close(text, token.start())
            named = word == "(" and re.fullmatch(r"[A-Za-z_$]\w*|>", previous) and previous not in _NO_NAME
            if named and skip > 0 and _function(found, text, token.start(), skip):
                return found
            previous = word
        elif word in (";", "{", "=", ",", ")", "}", ":"):
            found.initialized = word in ("=", "{")
            return found
        else:
            if token.lastgroup == "word":
                found.name = token.span()
                found.words.add(word)
            previous = word
        if skip < 0:
            return found
    return found


def _function(found: Declaration, text: str, begin: int, end: int) -> bool:
    """Take a group in brackets as parameters, if what follows allows it."""
    follows = _function_end(text, end)
    if follows is None:
        return False
    brace, found.trailing = follows
    found.parameters, found.end = (begin, end), end
    if brace >= 0 and (stop := close(text, brace)) > 0:
        found.body = (brace, stop)
    return True


def _line_of(text: str, at: int) -> str:
    """FILE:LINE of a position, by the line markers."""
    markers = list(re.finditer(r'^# (\d+) "([^"\n]*)"[^\n]*\n', text[:at], re.MULTILINE))
    if not markers:
        return f"line {text.count(chr(10), 0, at) + 1}"
    marker = markers[-1]
    return f"{marker[2]}:{int(marker[1]) + text.count(chr(10), marker.end(), at)}"


def _kernel(edits: Edits, found: Declaration, anchor: re.Match[str]) -> None:
    text = edits.text
    edits.replace(anchor.start(), anchor.end(), _STUB)
    if not found.parameters or not found.body:
        return
    begin, end = found.parameters
    pointers = []
    for position, name, pack, new in names(text, begin + 1, end - 1):
        if new:
            edits.insert(position, f" {name}")
        pointers.append(f"(void *)__builtin_addressof({name}){'...' if pack else ''}")
    stub = (
        f"{{ const void *psm_nvcc_me; void *psm_nvcc_arguments[] = {{{', '.join([*pointers, '(void *)0'])}}}; "
        f'__asm__ __volatile__("{SELF} %0" : "=r"(psm_nvcc_me)); ::psm_nvcc::launch(psm_nvcc_me, psm_nvcc_arguments); }}'
    )
    edits.replace(*found.body, stub + kept_lines(text[slice(*found.body)]))


def _variable(edits: Edits, found: Declaration, anchor: re.Match[str]) -> None:
    kinds = found.attributes
    if "managed" in kinds:
        name = edits.text[slice(*found.name)]
        raise NvccError(f"{_line_of(edits.text, anchor.start())}: the __managed__ variable {name} is not supported")
    if found.parameters or "extern" in found.words or not found.name[1]:
        return
    if "shared" in kinds:
        # Only device code refers to it.
        if not {"static", "inline", "thread_local"} & found.words and not found.initialized:
            edits.insert(found.first, "extern ")
    elif not {"template", "using", "typedef", "friend"} & found.words:
        letter = "c" if "constant" in kinds else "d"
        name = edits.text[slice(*found.name)]
        edits.insert(found.first, f'__attribute__((__section__("{SECTION}{letter}.{name}"))) ')


def _declarations(edits: Edits) -> None:
    text = edits.text
    done = 0
    for anchor in _ANCHOR.finditer(text):
        if anchor.start() < done:
            continue
        found = _declaration(text, anchor)
        done = found.end
        if "global" in found.attributes:
            for part in _ANCHOR.finditer(text, anchor.start(), found.end):
                if part[1] == "global":
                    _kernel(edits, found, part)
        elif found.body and "device" in found.attributes and "host" not in found.attributes:
            deduced = "auto" in found.words and not found.trailing
            if not deduced and "constexpr" not in found.words and "consteval" not in found.words:
                begin, end = found.body
                edits.replace(begin, end, "{ __builtin_trap(); }" + kept_lines(text[begin:end]))
                done = end
        elif found.attributes & {"device", "constant", "managed", "shared"} and not found.parameters:
            _variable(edits, found, anchor)


def _without_attributes(text: str) -> str:
    text = _SIMPLE.sub("", text)
    edits = Edits(text)
    for match in _ANY.finditer(text):
        edits.replace(match.start(), close(text, text.index("(", match.start())), "")
    return edits.apply()


def _redeclarations(edits: Edits) -> None:
    """CUDA's header of mathematical functions declares functions of namespace std again, in a way that only nvcc accepts."""
    text = edits.text
    inside = 0
    for match in _PLACES.finditer(text):
        if match["file"] is not None:
            inside = match["file"].endswith("crt/math_functions.h")
        elif inside and (end := close(text, match.end() - 1)) > 0:
            edits.replace(match.start(), end, kept_lines(text[match.start() : end]))


def host_source(text: str) -> str:
    """The host side of a preprocessed source.

    Raises:
        NvccError: it holds something that cannot be compiled without device code.
    """
    text = _NOINLINE.sub("__attribute__((noinline))", text)
    edits = Edits(text)
    _redeclarations(edits)
    _declarations(edits)
    text = edits.apply()
    edits = Edits(text)
    for launch in launches(text):
        edits.insert(launch.begin, "(::psm_nvcc::configure(" + text[slice(*launch.configuration)] + ") ? (void)0 : ")
        edits.replace(launch.configuration[0] - 3, launch.configuration[1] + 3, "")
        edits.insert(launch.end, ")")
    return _without_attributes(edits.apply())
