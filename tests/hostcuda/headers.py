"""What NVIDIA's headers say, read by the compiler: the functions and types that api.def and types*.h repeat."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

SITE = Path(sysconfig.get_path("purelib")) / "nvidia"
# The headers of the runtime 12 need crt/host_defines.h, which only a package of 13 has.
INCLUDES = {12: (SITE / "cuda_runtime" / "include", SITE / "cu13" / "include"), 13: (SITE / "cu13" / "include",)}
REAL = {12: SITE / "cuda_runtime" / "lib" / "libcudart.so.12", 13: SITE / "cu13" / "lib" / "libcudart.so.13"}
RUNTIME = "#include <cuda_runtime_api.h>\n"
DRIVER = "#include <cuda.h>\n#include <cudaTypedefs.h>\n"
NVML = "#include <nvml.h>\n"
GCC = shutil.which("gcc") or shutil.which("cc")

there = all(folder.exists() for folders in INCLUDES.values() for folder in folders) and GCC is not None

_generator = c_generator.CGenerator()


def gcc(arguments: list[str], text: str, version: int) -> str:
    """Standard output of the compiler, with the headers of a version."""
    assert GCC
    done = subprocess.run(
        [GCC, *arguments, *(f"-I{folder}" for folder in INCLUDES[version]), "-x", "c", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def parse(version: int, source: str, *defines: str) -> c_ast.FileAST:
    """The declarations of a source that includes headers."""
    plain = ["-D__attribute__(x)=", "-D__extension__=", "-D__restrict=", "-D_Float32x=double", "-D_Float64x=double"]
    text = gcc(["-E", "-P", *plain, *(f"-D{d}" for d in defines)], source, version)
    text = re.sub(r"__inline__|__inline|_Noreturn|__restrict__", "", text)
    text = re.sub(r"__asm__\s*\([^)]*\)", "", text)
    text = text.replace("__builtin_va_list", "int")
    text = re.sub(r"_Float\d+x?|__int128", "double", text)
    text = re.sub(r"static [^;{]*\{[^}]*\}", "", text)
    return c_parser.CParser().parse(text)


def functions(tree: c_ast.FileAST) -> dict[str, c_ast.Decl]:
    """Function declarations by name."""
    return {
        item.name: item for item in tree.ext if isinstance(item, c_ast.Decl) and isinstance(item.type, c_ast.FuncDecl)
    }


def typedefs(tree: c_ast.FileAST) -> dict[str, c_ast.Typedef]:
    """Typedefs by name."""
    return {item.name: item for item in tree.ext if isinstance(item, c_ast.Typedef)}


def spelled(node: c_ast.Node) -> str:
    """A node as C."""
    return str(_generator.visit(node))


@cache
def macros(version: int, source: str) -> dict[str, str]:
    """Macros without parameters after the headers of a source."""
    found: dict[str, str] = {}
    for line in gcc(["-E", "-dM"], source, version).splitlines():
        if match := re.match(r"#define (\w+) (.+)", line):
            found[match[1]] = match[2].strip()
    return found


@cache
def values(version: int, enumeration: str) -> frozenset[str]:
    """The enumerators of an enumeration of the runtime."""
    found: set[str] = set()

    class Visitor(c_ast.NodeVisitor):
        def visit_Enum(self, node: c_ast.Enum) -> None:  # noqa: N802 - pycparser's name
            if node.values and f"enum {node.name}" == enumeration:
                found.update(item.name for item in node.values.enumerators)

    Visitor().visit(parse(version, RUNTIME))
    return frozenset(found)
