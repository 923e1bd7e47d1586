"""Makes C from api.def, the one list of CUDA functions.

generate.py exports LIBRARY OUT.c   the symbols of libcudart12, libcudart13, libcuda or libnvidia-ml
generate.py map LIBRARY OUT.map     its version script
generate.py impl OUT.h              prototypes of what csrc/hostcuda defines
generate.py nodes OUT.c             functions on nodes of graphs, those that api.def gives a recipe or a type
generate.py table OUT.h OUT.c       numbers and names of all functions
generate.py shim OUT.c OUT.map      the functions that the sanitizer's shim stands in for
generate.py psm-cuda OUT.h          struct psm_cuda: pointers to the functions that psm_cuda.list names
generate.py face OUT.py...          what psmkit.lab.cuda calls libraries by, ready to load: face_LIBRARY.py each
generate.py mark                    writes the provider column of api.def
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
API = HERE / "api.def"
HOSTCUDA = ROOT / "csrc" / "hostcuda"
SONAMES = {"cudart12": ("rt", 12), "cudart13": ("rt", 13), "cuda": ("drv", None), "nvml": ("nvml", None)}
NODES = {"cudart12": "libcudart.so.12", "cudart13": "libcudart.so.13"}
UNSUPPORTED = {"rt": 801, "drv": 801, "nvml": 3}


def load(path: Path) -> Any:
    """A module by its file, so that the build needs no installed psmkit."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


apidef = load(ROOT / "psmkit" / "cudaapi" / "apidef.py")
gen_san = load(HERE / "gen_san.py") if (HERE / "gen_san.py").exists() else None

_DEFINITION = re.compile(r"^[a-zA-Z_][\w \t*]*?\bhc_(_*(?:cuda|cu|nvml)[A-Z]\w*)\(", re.MULTILINE)


def definitions() -> dict[str, str]:
    """The file of csrc/hostcuda that defines each hc_NAME."""
    found: dict[str, str] = {}
    for path in sorted(HOSTCUDA.rglob("*.c")):
        text = path.read_text()
        for match in _DEFINITION.finditer(text):
            end = text.find(")", match.end())
            while text.count("(", match.end() - 1, end + 1) != text.count(")", match.end() - 1, end + 1):
                end = text.find(")", end + 1)
            if text[end + 1 :].lstrip().startswith("{"):
                found[match.group(1)] = path.stem
    return found


def _converted(parameter: Any, kind: str) -> str:
    """The parameter as the function that takes the call has it."""
    if parameter.type == "CUdeviceptr" and kind.endswith("*"):
        return f"({kind})(uintptr_t){parameter.name}"
    return str(parameter.name)


class Api:
    """The list of functions and their definitions."""

    def __init__(self) -> None:
        self.functions = apidef.read(API)
        self.defined = definitions()
        names: dict[tuple[str, str], int] = {}
        for f in self.functions:
            names[f.library, f.name] = names.get((f.library, f.name), 0) + 1
        self.twice = {key for key, n in names.items() if n > 1}
        self.named = {f.name: f for f in self.functions}
        for f in self.functions:
            if f.made:
                if self.symbol(f) in self.defined:
                    raise SystemExit(
                        f"api.def:{f.line}: {f.name} is {f.provider}, and defined in {self.defined[self.symbol(f)]}.c"
                    )
                self.defined[self.symbol(f)] = f.provider
        for f in self.functions:
            if f.forward:
                self.check_forward(f)

    def check_forward(self, f: Any) -> None:
        """A forward names a function that is defined, takes as many arguments, and is not defined itself."""
        target, where = self.named.get(f.forward), f"api.def:{f.line}: {f.name} is forwarded to {f.forward}"
        if target is None or f.forward not in self.defined:
            raise SystemExit(f"{where}, which csrc/hostcuda does not define")
        if self.symbol(f) in self.defined:
            raise SystemExit(f"{where}, and defined in {self.defined[self.symbol(f)]}.c")
        if len(target.parameters) != len(f.parameters) or not f.returns_error:
            raise SystemExit(f"{where}, which has other parameters")

    def symbol(self, f: Any) -> str:
        """NAME of the hc_NAME that serves a function."""
        return f"{f.name}__{f.versions[0]}" if (f.library, f.name) in self.twice else f.name

    def has(self, f: Any) -> bool:
        return f.result is not None and (f.forward is not None or self.symbol(f) in self.defined)

    def call(self, f: Any) -> str:
        """The expression that serves a call of the function by its parameters."""
        if not f.forward:
            return f"hc_{self.symbol(f)}({', '.join(p.name for p in f.parameters)})"
        pairs = zip(f.parameters, self.named[f.forward].parameters, strict=True)
        arguments = ", ".join(_converted(p, q.type) for p, q in pairs)
        return f"hc_{f.forward}({arguments})"

    def of(self, library: str) -> list[Any]:
        kind, soname = SONAMES[library]
        return [f for f in self.functions if f.library == kind and (soname is None or soname in f.versions)]


def wrapper(api: Api, f: Any, library: str, per_thread: bool) -> str:
    """One exported symbol: count, look for faults, check handles, call, note the error."""
    kind, _ = SONAMES[library]
    name = f.name + (f"_{f.default_stream}" if per_thread else "")
    symbol = api.symbol(f)
    where = f"HC_API_{library.upper()}"
    if not api.has(f):
        if f.returns_error:
            return f"HC_EXPORT int {name}(void)\n{{\n    return hc_unsupported(HC_FN_{symbol}, {where}, {UNSUPPORTED[kind]});\n}}\n"
        return f"HC_EXPORT void *{name}(void)\n{{\n    hc_unsupported(HC_FN_{symbol}, {where}, 0);\n    return 0;\n}}\n"
    head = f.prototype.replace(f" {f.name}(", f" {name}(").replace(f"*{f.name}(", f"*{name}(")
    call = api.call(f)
    if not f.returns_error:
        back = "" if f.result == "void" else "return "
        return f"HC_EXPORT {head}\n{{\n    hc_count(HC_FN_{symbol});\n    {back}{call};\n}}\n"
    before, after = gen_san.checks(f) if gen_san else ([], [])
    serve = ["if (rc == 0) rc = hc_context_require();"] if f.needs_context else []
    serve += [f"if (rc == 0) rc = (int){call};"]
    body = [f"struct hc_call call = {{HC_FN_{symbol}, {where}, {int(per_thread)}}};", "int rc = hc_enter(&call);"]
    if before or after:
        body += ["if (rc == 0) {"]
        body += [f"    {line}" for line in before]
        body += [f"    {line}" for line in serve]
        body += [f"    {line}" for line in after]
        body += ["}"]
    else:
        body += serve
    body += [f"return ({f.result})hc_leave(&call, rc);"]
    return f"HC_EXPORT {head}\n{{\n" + "".join(f"    {line}\n" for line in body) + "}\n"


def exports(api: Api, library: str) -> str:
    parts = [f"/* Generated from api.def: the symbols of {library}. */\n", '#include "core/hc_exports.h"\n']
    for f in api.of(library):
        parts.append(wrapper(api, f, library, False))
        if f.default_stream:
            parts.append(wrapper(api, f, library, True))
    return "\n".join(parts)


def version_map(api: Api, library: str) -> str:
    names = [f.name for f in api.of(library)]
    names += [f"{f.name}_{f.default_stream}" for f in api.of(library) if f.default_stream]
    return NODES.get(library, "") + " {\nglobal:\n" + "".join(f"    {n};\n" for n in names) + "local:\n    *;\n};\n"


def impl(api: Api) -> str:
    parts = ["/* Generated from api.def: what csrc/hostcuda defines. */\n#ifndef HC_IMPL_H\n#define HC_IMPL_H\n"]
    for f in api.functions:
        if api.has(f) and not f.forward:
            parts.append(f"{definition(api, f)};\n")
    return "".join(parts) + "#endif\n"


def definition(api: Api, f: Any) -> str:
    """The head of the function that hc_impl.h declares."""
    symbol = api.symbol(f)
    return str(f.prototype.replace(f" {f.name}(", f" hc_{symbol}(").replace(f"*{f.name}(", f"*hc_{symbol}("))


def node_function(api: Api, f: Any) -> str:
    """Adds a node, changes it in its graph or in an executable graph, or gives its parameters: the first parameter decides."""
    (how, what), names = f.made, [p.name for p in f.parameters]
    first = f.parameters[0].type
    if how == "node":
        body = [f"return hc_node_parameters({names[0]}, {what}, {names[1]}, sizeof *{names[1]});"]
    else:
        if first in ("cudaGraphNode_t *", "CUgraphNode *"):
            use, rest = f"add(error, &recipe, {', '.join(names[:3])}, NULL, {names[3]})", names[4:]
        elif first in ("cudaGraphExec_t", "CUgraphExec"):
            use, rest = f"set_exec(error, &recipe, {', '.join(names[:2])})", names[2:]
        else:
            use, rest = f"set(error, &recipe, {names[0]})", names[1:]
        made = f"int error = hc_recipe_{what}({', '.join(['&recipe', *rest])});"
        body = ["struct hc_recipe recipe;", made, f"return hc_recipe_{use};"]
    return f"{definition(api, f)}\n{{\n" + "".join(f"    {line}\n" for line in body) + "}\n"


def nodes(api: Api) -> str:
    parts = ["/* Generated from api.def: functions on nodes of graphs. */\n", '#include "graph/hc_graph.h"\n']
    return "\n".join(parts + [node_function(api, f) for f in api.functions if f.made])


def table(api: Api) -> tuple[str, str]:
    header = [
        "/* Generated from api.def: a number for every function. */\n#ifndef HC_TABLE_H\n#define HC_TABLE_H\nenum hc_fn {\n"
    ]
    rows = []
    for f in api.functions:
        symbol = api.symbol(f)
        header.append(f"    HC_FN_{symbol},\n")
        mark = {"rt": "HC_LIB_RT", "drv": "HC_LIB_DRV", "nvml": "HC_LIB_NVML"}[f.library]
        since = f.versions[0] if f.library == "drv" else 0
        bits = sum({12: 1, 13: 2}[v] for v in f.versions) if f.library == "rt" else 0
        variant = f'"{f.default_stream}"' if f.default_stream else "0"
        rows.append(f'    {{"{f.name}", "{f.base}", {variant}, {mark}, {bits}, {since}, {int(api.has(f))}}},\n')
    header.append("    HC_FN_COUNT\n};\n#endif\n")
    code = (
        '/* Generated from api.def. */\n#include "core/hc.h"\nconst struct hc_fn_info hc_functions[HC_FN_COUNT] = {\n'
    )
    return "".join(header), code + "".join(rows) + "};\n"


def psm_cuda(api: Api, names: str) -> str:
    """The header with ``struct psm_cuda``: one pointer a function of the list. A trailing ``?`` marks one that may be missing."""
    of_name: dict[str, list[Any]] = {}
    for f in api.functions:
        of_name.setdefault(f.name, []).append(f)
    members, rows, seen = [], [], set()
    for number, line in enumerate(names.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        name, where = words[0], f"psm_cuda.list:{number}: {words[0]}"
        if words[1:] not in ([], ["?"]):
            raise SystemExit(f"{where}: followed by {' '.join(words[1:])!r}; expected only ?")
        if name in seen:
            raise SystemExit(f"{where}: named twice")
        seen.add(name)
        found = of_name.get(name, [])
        if not found or found[0].result is None:
            raise SystemExit(f"{where}: api.def knows no prototype of it")
        # One pointer has to fit whichever library is loaded.
        if len({f.prototype for f in found}) > 1 or (found[0].library == "rt" and set(found[0].versions) != {12, 13}):
            raise SystemExit(f"{where}: not the same function in libcudart.so.12 and libcudart.so.13")
        f = found[0]
        if f.library not in ("rt", "drv"):
            raise SystemExit(f"{where}: of {f.library}; libcudart and libcuda are loaded")
        inside = ", ".join(p.declaration for p in f.parameters) or "void"
        members.append(f"    {f.result}{'' if f.result.endswith('*') else ' '}(*{name})({inside});\n")
        since = f.versions[0] if f.library == "drv" else 0
        rows.append(f'    X({name}, "{f.base}", PSM_CUDA_{f.library.upper()}, {since}, {int(words[1:] != ["?"])})')
    return (
        "/* Generated from api.def and psm_cuda.list: the CUDA functions that libpsm calls. */\n"
        "#ifndef PSM_CUDA_H\n#define PSM_CUDA_H\n"
        + "".join(f'#include "{p.name}"\n' for p in sorted(HERE.glob("types*.h")) if p.name != "types_nvml.h")
        + "\nstruct psm_cuda {\n"
        "    int runtime_version; /* of the library, 12090 for 12.9 */\n"
        "    int driver_version;  /* newest CUDA that the driver serves; 0: no driver */\n"
        "    char path[256];      /* of the runtime library */\n" + "".join(members) + "};\n\n"
        "/* The table, loaded at the first call that finds a library; NULL: none was found, and psm_last_error() says what was tried.\n"
        "   A libcudart that is in the process already is taken first, then what the loader finds. PSM_CUDA_LIBRARY names another. */\n"
        "const struct psm_cuda *psm_cuda_get(void);\n\n"
        "enum { PSM_CUDA_RT, PSM_CUDA_DRV };\n"
        "/* member, symbol name, library, CUDA version of this prototype (driver), whether it is required */\n"
        "#define PSM_CUDA_FUNCTIONS(X) \\\n" + " \\\n".join(rows) + "\n#endif\n"
    )


def known_types() -> set[str]:
    """Words that may occur in a prototype: those of C, and those that our headers declare."""
    words = set("void int unsigned char long short float double const size_t struct enum union signed".split())
    words |= {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    for path in sorted(HERE.glob("types*.h")):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        words |= set(re.findall(r"[A-Za-z_]\w*", text))
    return words


def mark(api: Api) -> None:
    """Write the provider of each function into the list, and report definitions that are not in it."""
    known = {api.symbol(f) for f in api.functions}
    stray = sorted(set(api.defined) - known)
    if stray:
        raise SystemExit(f"defined in csrc/hostcuda but not in api.def: {', '.join(stray)}")
    lines = API.read_text().splitlines()
    for f in api.functions:
        at = f.line - 1
        kind, versions, default, _, rest = re.split(r"\s+", lines[at], maxsplit=4)
        provider = api.defined.get(api.symbol(f), "-") if f.result is not None else "-"
        provider = f.provider if f.forward else provider
        lines[at] = f"{kind:<4} {versions:<5} {default:<4} {provider} {rest}"
    API.write_text("\n".join(lines) + "\n")


def write(path: str, text: str) -> None:
    target = Path(path)
    if not target.exists() or target.read_text() != text:
        target.write_text(text)


def face(api: Api, out: Path) -> None:
    """The declarations as parsed by cffi; valid while api.def and its types are unchanged."""
    import cffi  # what makes C does without

    types = apidef.types(HERE.joinpath)
    ffi = cffi.FFI()
    ffi.cdef("\n".join([types, *apidef.declarations(api.functions, types, out.stem.removeprefix("face_"))]))
    ffi.set_source(out.stem, None)
    ffi.emit_python_code(str(out))
    out.write_text(f"{out.read_text()}\nDIGEST = {apidef.digest(HERE.joinpath)}\n")


def main(arguments: list[str]) -> None:
    api = Api()
    match arguments:
        case ["exports", library, out]:
            write(out, exports(api, library))
        case ["map", library, out]:
            write(out, version_map(api, library))
        case ["impl", out]:
            write(out, impl(api))
        case ["nodes", out]:
            write(out, nodes(api))
        case ["table", header, code]:
            for out, text in zip((header, code), table(api), strict=True):
                write(out, text)
        case ["shim", code, script]:
            for out, text in zip((code, script), gen_san.shim(api.functions, known_types()), strict=True):
                write(out, text)
        case ["psm-cuda", out]:
            write(out, psm_cuda(api, (HERE / "psm_cuda.list").read_text()))
        case ["face", *out]:
            for path in map(Path, out):
                face(api, path)
        case ["mark"]:
            mark(api)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
