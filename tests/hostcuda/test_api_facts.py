"""api.def and types*.h state what NVIDIA's headers and libraries state: names, prototypes, versions, layouts, values."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from pycparser import c_ast, c_parser

from psmkit.cudaapi import apidef

from . import headers

ROOT = Path(__file__).parents[2]
CUDA = ROOT / "csrc" / "cuda"
API = apidef.read(CUDA / "api.def")
ALL = headers.RUNTIME + headers.DRIVER + headers.NVML

pytestmark = pytest.mark.skipif(not headers.there, reason="the packages with CUDA's headers are not installed")


# ---- functions ----


def plain(kind: str, name: str | None) -> str:
    """A parameter's type without its name, tags and qualifier order."""
    text = re.sub(r"\b(struct|enum|union|extern)\b", "", kind)
    text = re.sub(r"\[[^\]]*\]", "*", text)
    if name:
        text = re.sub(rf"\b{name}\b", "", text)
    text = re.sub(r"\bunsigned(?! int| long| char| short)", "unsigned int", text)
    text = re.sub(r"(\w+)_v12\b", r"\1", text)
    words = re.findall(r"\w+|\*|\(|\)|,", text)
    # `const T *` and `T const *` are the same; so is the order of the words before the first star.
    star = words.index("*") if "*" in words else len(words)
    return " ".join(sorted(words[:star]) + words[star:])


def of_header(declaration: c_ast.Decl) -> tuple[str, list[str]]:
    function = declaration.type
    result = plain(headers.spelled(function).split(declaration.name)[0], None)
    parameters = [] if function.args is None else function.args.params
    kinds = [plain(headers.spelled(p), getattr(p, "name", None)) for p in parameters]
    return result, [] if kinds == ["void"] else kinds


def of_list(f: apidef.Function) -> tuple[str, list[str]]:
    assert f.result is not None
    return plain(f.result, None), [plain(p.type, None) for p in f.parameters]


def listed(library: str, version: int | None = None) -> dict[str, apidef.Function]:
    return {f.name: f for f in API if f.library == library and (version is None or version in f.versions)}


def differences(declared: dict[str, c_ast.Decl], known: dict[str, apidef.Function]) -> Iterator[str]:
    for name, declaration in declared.items():
        if name not in known:
            yield f"{name}: not listed"
        elif known[name].result is None:
            yield f"{name}: listed without the prototype that the header has"
        elif of_header(declaration) != of_list(known[name]):
            yield f"{name}: header {of_header(declaration)}, list {of_list(known[name])}"


@pytest.mark.parametrize("version", [12, 13])
def test_runtime_prototypes_are_those_of_the_header(version: int) -> None:
    declared = headers.functions(headers.parse(version, headers.RUNTIME))
    declared = {name: d for name, d in declared.items() if re.match(r"_*cuda[A-Z]", name)}
    assert len(declared) > 250
    assert not list(differences(declared, listed("rt", version)))


@pytest.mark.parametrize("version", [12, 13])
def test_runtime_symbols_for_the_per_thread_stream_are_those_of_the_header(version: int) -> None:
    declared = headers.functions(headers.parse(version, headers.RUNTIME, "CUDA_API_PER_THREAD_DEFAULT_STREAM"))
    from_header = {name for name in declared if name.endswith(("_ptsz", "_ptds"))}
    assert len(from_header) > 30
    from_list = {f"{f.name}_{f.default_stream}" for f in listed("rt", version).values() if f.default_stream}
    assert from_header <= from_list
    # What the list has beyond that has no declaration in C (`__cudaLaunchKernel`).
    assert {name for name in from_list - from_header if not name.startswith("__")} <= exported(headers.REAL[version])


@pytest.mark.parametrize("version", [12, 13])
def test_driver_prototypes_are_those_of_the_header(version: int) -> None:
    declared = headers.functions(headers.parse(version, headers.DRIVER))
    declared = {name: d for name, d in declared.items() if re.match(r"cu[A-Z]", name)}
    assert len(declared) > 400
    assert not list(differences(declared, listed("drv")))


@cache
def pointers(version: int) -> dict[tuple[str, int], c_ast.Typedef]:
    found = {}
    for name, node in headers.typedefs(headers.parse(version, headers.DRIVER)).items():
        if match := re.fullmatch(r"PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?", name):
            found[match[1] + (match[3] or ""), int(match[2])] = node
    return found


@pytest.mark.parametrize("version", [12, 13])
def test_driver_versions_are_those_of_the_typedefs(version: int) -> None:
    known = {(f.base, f.versions[0]) for f in API if f.library == "drv"}
    plain_names = {key for key in pointers(version) if not key[0].endswith(("_ptsz", "_ptds"))}
    assert len(plain_names) > 400
    assert not plain_names - known


def test_driver_symbols_for_the_per_thread_stream_are_those_of_the_typedefs() -> None:
    variants = {name for name, _ in pointers(13) if name.endswith(("_ptsz", "_ptds"))}
    assert len(variants) > 60
    assert variants == {f"{f.base}_{f.default_stream}" for f in API if f.library == "drv" and f.default_stream}


def test_nvml_prototypes_are_those_of_the_header() -> None:
    declared = headers.functions(headers.parse(13, headers.NVML, "NVML_NO_UNVERSIONED_FUNC_DEFS"))
    declared = {name: d for name, d in declared.items() if name.startswith("nvml")}
    assert len(declared) > 400
    assert not list(differences(declared, listed("nvml")))


def exported(path: Path) -> set[str]:
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynsym")
        return {s.name for s in section.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s["st_value"]}


@pytest.mark.parametrize("version", [12, 13])
def test_every_symbol_of_the_real_runtime_is_listed(version: int) -> None:
    ours = set()
    for f in listed("rt", version).values():
        ours |= {f.name, f"{f.name}_{f.default_stream}"} if f.default_stream else {f.name}
    real = {name for name in exported(headers.REAL[version]) if re.match(r"_*cuda", name)}
    assert len(real) > 300
    assert real == ours


# ---- types ----


@cache
def our_tree() -> c_ast.FileAST:
    text = "typedef unsigned long size_t; typedef unsigned long uint64_t; typedef unsigned int uint32_t; typedef long intptr_t;"
    text += "typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef long int64_t; typedef int int32_t;"
    text += "typedef unsigned long uintptr_t;\n"
    for area in ("", "_device", "_device_launch", "_memory", "_copy", "_stream", "_graph", "_nvml"):
        source = re.sub(r"/\*.*?\*/", "", (CUDA / f"types{area}.h").read_text(), flags=re.DOTALL)
        text += re.sub(r"^\s*#.*$", "", source, flags=re.MULTILINE)
    return c_parser.CParser().parse(text)


@cache
def our_macros() -> dict[str, int]:
    found = {}
    for path in CUDA.glob("types*.h"):
        for match in re.finditer(r"^#define (\w+) +(-?\w+)$", path.read_text(), re.MULTILINE):
            found[match[1]] = int(match[2], 0)
    return found


class Types(c_ast.NodeVisitor):
    """The structs and unions of a tree by how C names them, with the paths of their members; enumerators; typedefs."""

    def __init__(self, tree: c_ast.FileAST) -> None:
        self.records: dict[str, list[str]] = {}
        self.enumerators: set[str] = set()
        self.typedefs: dict[str, c_ast.Node] = {}
        self.visit(tree)

    def visit_Typedef(self, node: c_ast.Typedef) -> None:  # noqa: N802 - pycparser's name
        inner = node.type.type if isinstance(node.type, c_ast.TypeDecl) else None
        self.typedefs[node.name] = node.type
        if isinstance(inner, c_ast.Struct | c_ast.Union) and inner.decls and inner.name is None:
            self.records[node.name] = list(paths(inner))
        self.generic_visit(node)

    def visit_Struct(self, node: c_ast.Struct) -> None:  # noqa: N802
        self._record("struct", node)

    def visit_Union(self, node: c_ast.Union) -> None:  # noqa: N802
        self._record("union", node)

    def _record(self, kind: str, node: c_ast.Struct | c_ast.Union) -> None:
        if node.decls and node.name:
            self.records[f"{kind} {node.name}"] = list(paths(node))
        self.generic_visit(node)

    def visit_Enumerator(self, node: c_ast.Enumerator) -> None:  # noqa: N802
        self.enumerators.add(node.name)


def paths(record: c_ast.Struct | c_ast.Union) -> Iterator[str]:
    for member in record.decls:
        inner = member.type.type if isinstance(member.type, c_ast.TypeDecl) else member.type
        nested = inner.decls if isinstance(inner, c_ast.Struct | c_ast.Union) else None
        if member.name:
            if member.bitsize is None:
                yield member.name
            if nested:
                yield from (f"{member.name}.{path}" for path in paths(inner))
        elif nested:
            yield from paths(inner)


@cache
def ours() -> Types:
    return Types(our_tree())


@cache
def theirs(version: int) -> Types:
    return Types(headers.parse(version, ALL))


def complete(node: c_ast.Node, types: Types) -> bool:
    """Whether sizeof works: not void, not a function, not a struct without members."""
    if not isinstance(node, c_ast.TypeDecl):
        return not isinstance(node, c_ast.FuncDecl)
    inner = node.type
    if isinstance(inner, c_ast.Struct | c_ast.Union):
        kind = "struct" if isinstance(inner, c_ast.Struct) else "union"
        return inner.name is None or f"{kind} {inner.name}" in types.records
    return not (isinstance(inner, c_ast.IdentifierType) and inner.names == ["void"])


@cache
def measured() -> dict[str, int]:
    """Sizes and offsets of our declarations, as the compiler has them: `size T`, `size T.path`, `offset T.path`."""
    lines = ['#include "hc_types.h"', "#include <stdio.h>", "int main(void) {"]
    for name, members in ours().records.items():
        lines.append(f'printf("size {name}=%zu\\n", sizeof({name}));')
        for path in members:
            lines.append(f'printf("size {name}.{path}=%zu\\n", sizeof((({name} *)0)->{path}));')
            lines.append(f'printf("offset {name}.{path}=%zu\\n", offsetof({name}, {path}));')
    for name, node in ours().typedefs.items():
        if complete(node, ours()) and not re.fullmatch(r"u?int\d*(ptr)?_t|size_t|u?intptr_t", name):
            lines.append(f'printf("size {name}=%zu\\n", sizeof({name}));')
    for name in ours().enumerators:
        lines.append(f'printf("value {name}=%lld\\n", (long long){name});')
    lines.append("return 0; }")
    text = "\n".join(lines).replace(
        '#include "hc_types.h"',
        "\n".join(
            f'#include "{CUDA}/types{a}.h"'
            for a in ("", "_device", "_device_launch", "_memory", "_copy", "_stream", "_graph", "_nvml")
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "measure"
        headers.gcc(["-w", "-o", str(program)], text, 13)
        out = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=True).stdout
    return {line.rpartition("=")[0]: int(line.rpartition("=")[2]) for line in out.splitlines()}


def sized(theirs_is: str, name: str, version: int) -> str:
    relation = "<" if version == 12 and name in GREW else "=="
    return f'_Static_assert(sizeof({theirs_is}) {relation} {measured()[f"size {name}"]}, "sizeof({name})");'


def assertions(version: int, found: set[str]) -> Iterator[str]:
    """Static assertions about what the headers of a version have under our names; what they have is noted in ``found``."""
    types = theirs(version)
    for name, members in ours().records.items():
        other = name.removesuffix("_v12")
        pinned = {12: name.endswith("_v12"), 13: f"{name}_v12" in ours().records}
        if pinned[25 - version] or (other not in types.records and other not in types.typedefs):
            continue
        found.add(name)
        reach = types.records.get(other)
        if reach is None:  # a typedef of a struct with a tag
            inner = types.typedefs[other].type
            reach = types.records.get(
                f"struct {inner.name}" if isinstance(inner, c_ast.Struct) else f"union {getattr(inner, 'name', '')}", []
            )
        yield sized(other, name, version)
        for path in members:
            if path not in reach:
                continue
            found.add(f"{name}.{path}")
            if path.startswith("reserved"):  # what a newer CUDA took from it is missing here
                continue
            offset = measured()[f"offset {name}.{path}"]
            yield f'_Static_assert(offsetof({other}, {path}) == {offset}, "offset of {name}.{path}");'
            if f"{name}.{path}" not in WIDER:
                yield sized(f"(({other} *)0)->{path}", f"{name}.{path}", version)
    for name in ours().typedefs:
        if f"size {name}" in measured() and name in types.typedefs and complete(types.typedefs[name], types):
            found.add(name)
            if f"{name}_v12" not in ours().records:
                yield f'_Static_assert(sizeof({name}) == {measured()[f"size {name}"]}, "sizeof({name})");'
    known = headers.macros(version, ALL)
    for name in ours().enumerators:
        if name in types.enumerators:
            found.add(name)
            yield f'_Static_assert({name} == {measured()[f"value {name}"]}, "{name}");'
    for name, value in our_macros().items():
        other = error_name(name, types)
        if other in types.enumerators or other in known:
            found.add(name)
            yield f'_Static_assert((long long){other} == {value}, "{name}");'


# Our short names of errors whose CUDA name is not CUDA_ERROR_ and the same.
RENAMED = {
    "PSM_CUDA_SUCCESS": "CUDA_SUCCESS",
    "PSM_CUDA_NO_KERNEL_IMAGE": "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "PSM_CUDA_INSUFFICIENT_DRIVER": "cudaErrorInsufficientDriver",
    "PSM_CUDA_LAUNCH_FAILURE": "CUDA_ERROR_LAUNCH_FAILED",
    "PSM_CUDA_STREAM_LEGACY": "cudaStreamLegacy",
    "PSM_CUDA_STREAM_PER_THREAD": "cudaStreamPerThread",
}
# Ours alone: CUDA writes 0 for the first, and has no name for the second, a member of CUmemAllocationProp.
OWN = {"PSM_CUDA_STREAM_DEFAULT", "struct CUmemAllocationFlags"}
# These are longer in CUDA 13 than in CUDA 12: the code that fills them asks through which library it was called, or they stand
# in a union whose size has not changed. Otherwise a size that differs is an error.
GREW = {
    "struct cudaPointerAttributes",
    "struct cudaKernelNodeParamsV2",
    "struct cudaMemsetParamsV2",
    "struct cudaHostNodeParamsV2",
    "struct cudaEventRecordNodeParams",
    "struct cudaGraphNodeParams.kernel",
    "struct cudaGraphNodeParams.memset",
    "struct cudaGraphNodeParams.host",
    "struct cudaGraphNodeParams.eventRecord",
    "struct CUgraphNodeParams_st.host",
    "struct CUgraphNodeParams_st.eventRecord",
}
# CUDA has an int in a union with a long there.
WIDER = {"struct cudaPointerAttributes.localityDomainOrdinal"}


def error_name(name: str, types: Types) -> str:
    if name in RENAMED:
        return RENAMED[name]
    if not name.startswith("PSM_CUDA_"):
        return name
    rest = name.removeprefix("PSM_CUDA_")
    camel = "cudaError" + "".join(word.capitalize() for word in rest.split("_"))
    return f"CUDA_ERROR_{rest}" if f"CUDA_ERROR_{rest}" in types.enumerators else camel


def check(version: int) -> tuple[set[str], str]:
    found: set[str] = set()
    text = ALL + "#include <stddef.h>\n" + "\n".join(assertions(version, found)) + "\n"
    assert headers.GCC
    done = subprocess.run(
        [
            headers.GCC,
            "-w",
            "-fsyntax-only",
            "-fmax-errors=0",
            *(f"-I{f}" for f in headers.INCLUDES[version]),
            "-x",
            "c",
            "-",
        ],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return found, "\n".join(line for line in done.stderr.splitlines() if "error:" in line)


@pytest.mark.parametrize("version", [12, 13])
def test_layouts_and_values_are_those_of_the_headers(version: int) -> None:
    found, errors = check(version)
    assert not errors
    assert len(found) > 500


def test_every_declared_type_member_and_value_exists_in_a_header() -> None:
    found = check(12)[0] | check(13)[0]
    everything = (
        set(ours().records)
        | ours().enumerators
        | set(our_macros())
        | {n.removeprefix("size ") for n in measured() if n.startswith("size ")}
    )
    assert [name for name in sorted(everything - found) if name.split(".")[0] not in OWN] == []
