"""The checks of the handle sanitizer, generated from the roles in api.def.

A parameter carries ``@role`` or ``@role(expression)``; the expression may use the names of the other parameters. KIND is one of
stream, event, mem, pool, graph, exec.

``@use.KIND``               the object must be alive and of this process; with an expression, that value in place of the parameter
``@record.event``           a use that records the event, or lets a graph or another process record it
``@query.event @wait.event``  a use that waits for or queries the recorded work
``@end.KIND``               the object ends
``@new.KIND(size)``         *parameter is created if the call succeeds
``@get.KIND``               *parameter belongs to CUDA: known, never a leak
``@alloc(n) @allochost(n) @reserve(n) @map(n, handle) @register(n)``  allocate addresses; the first three through a pointer
``@free @freehost @unreserve @unmap(n) @unregister @close``           free addresses
``@open(bytes, n) @import.KIND(bytes, n) @export(bytes, n)``          objects that cross processes by an opaque handle
``@importfd(fd, type) @exportfd(type)``                               and by a descriptor
``@read(n) @write(n)``      the call accesses n bytes from the address. Whether it is a device address follows from the type
                            of the parameter, or from ``kind``; ``.any``: unknown
``@copy2d @copy3d @parms @fill3d(extent) @alloc3d(extent)``  the same by CUDA's structs: csrc/sanitize/san_copy.h
``@reads(sizes, n) @writes(sizes, n)``  arrays of n addresses and sizes
"""

from __future__ import annotations

import re
from typing import Any

_ALLOCATE = {"alloc": "ALLOC", "allochost": "HOST", "reserve": "RANGE"}
_END = {"free": "ALLOC", "freehost": "HOST", "unreserve": "RANGE", "unregister": "REGISTERED", "close": "IPC"}
_HOW = {"use": "PLAIN", "record": "RECORD", "query": "QUERY", "wait": "QUERY"}
_RESET = {"cudaDeviceReset", "cudaThreadExit", "cuDevicePrimaryCtxReset_v2"}


def _number(text: str) -> str:
    return f"(uint64_t)(uintptr_t)({text})"


def _arguments(text: str) -> list[str]:
    """The parts of an expression, split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _side(f: Any, p: Any, way: str, detail: str) -> str:
    """Whether an address must be on the host or on the device."""
    if detail == "any":
        return "PSM_SAN_ANY"
    if any(q.name == "kind" for q in f.parameters):
        return f"psm_san_{'target' if way == 'write' else 'source'}((int)kind)"
    if f.library == "drv" and p.type.endswith("*"):
        return "PSM_SAN_HOST_SIDE"
    return "PSM_SAN_DEVICE_SIDE"


def _before(f: Any, p: Any, role: str, expression: str) -> str | None:
    name, _, detail = role.partition(".")
    if role == "use.address":
        return f"psm_san_span(&san_call, {_number(p.name)}, 1, PSM_SAN_DEVICE_SIDE, false);"
    if name in _HOW:
        value = expression or p.name
        guard = f"if ({p.name}) " if expression else ""
        return f"{guard}psm_san_use(&san_call, PSM_SAN_{detail.upper()}, {_number(value)}, PSM_SAN_{_HOW[name]});"
    if name == "end":
        return f"psm_san_end(&san_call, PSM_SAN_{detail.upper()}, {_number(p.name)});"
    if name in _END:
        return f"psm_san_end(&san_call, PSM_SAN_{_END[name]}, {_number(p.name)});"
    if name == "unmap":
        return f"psm_san_unmap(&san_call, {_number(p.name)}, {expression});"
    if name in ("read", "write"):
        side, write = _side(f, p, name, detail), "true" if name == "write" else "false"
        return f"psm_san_span(&san_call, {_number(p.name)}, {expression}, {side}, {write});"
    if name in ("copy2d", "copy3d", "parms"):
        return f"if ({p.name}) psm_san_{name}(&san_call, {p.name});"
    if name == "fill3d":
        return f"psm_san_fill3d(&san_call, {p.name}, {expression});"
    if name in ("reads", "writes"):
        return f"psm_san_spans(&san_call, {p.name}, {expression}, {'true' if name == 'writes' else 'false'});"
    return None


def _after(p: Any, role: str, expression: str) -> str | None:
    name, _, detail = role.partition(".")
    pointed = _number(f"*{p.name}")
    if name == "new":
        return f"if ({p.name}) psm_san_new(&san_call, PSM_SAN_{detail.upper()}, {pointed}, {expression or '0'});"
    if name == "get":
        return f"if ({p.name}) psm_san_get(&san_call, PSM_SAN_{detail.upper()}, {pointed});"
    if name in _ALLOCATE:
        return f"if ({p.name}) psm_san_new(&san_call, PSM_SAN_{_ALLOCATE[name]}, {pointed}, {expression});"
    if name == "alloc3d":
        return f"if ({p.name}) psm_san_alloc3d(&san_call, {p.name}, {expression});"
    if name == "register":
        return f"psm_san_new(&san_call, PSM_SAN_REGISTERED, {_number(p.name)}, {expression});"
    if name == "map":
        size, handle = _arguments(expression)
        return f"psm_san_map(&san_call, {_number(p.name)}, {size}, {_number(handle)});"
    if name in ("open", "import"):
        kind = "IPC" if name == "open" else detail.upper()
        return f"if ({p.name}) psm_san_import(&san_call, PSM_SAN_{kind}, {pointed}, {expression});"
    if name == "export":
        return f"psm_san_export(&san_call, {expression});"
    if name == "importfd":
        return f"if ({p.name}) psm_san_import_fd(&san_call, {pointed}, {expression});"
    if name == "exportfd":
        return f"psm_san_export_fd(&san_call, {p.name}, {expression});"
    return None


def has_roles(f: Any) -> bool:
    """Whether a call of this function is checked."""
    return f.name in _RESET or any(p.roles for p in f.parameters)


def checks(f: Any) -> tuple[list[str], list[str]]:
    """Lines of C to put before and after the call in a wrapper, where ``rc`` is its result: see csrc/sanitize/san.h.

    Raises:
        ValueError: a role that does not exist.
    """
    if not has_roles(f):
        return [], []
    before: list[str] = []
    after: list[str] = []
    for p in f.parameters:
        for role, expression in p.roles:
            line, then = _before(f, p, role, expression), _after(p, role, expression)
            if line is None and then is None:
                raise ValueError(f"api.def:{f.line}: the handle sanitizer knows no role @{role}")
            before += [line] if line else []
            after += [then] if then else []
    if f.name in _RESET:
        after.append("psm_san_reset(&san_call);")
    if "StreamBeginCapture" in f.name or "StreamEndCapture" in f.name:
        after.append(f"psm_san_capture(&san_call, {'true' if 'Begin' in f.name else 'false'});")
    head = ["const bool san = psm_san_on();", "struct psm_san_call san_call;", "if (san) {"]
    head += [f'    psm_san_enter(&san_call, "{f.name}");', *(f"    {line}" for line in before)]
    head += ["    rc = psm_san_refuse(&san_call);"] if before else []
    head += ["}"]
    tail = ["if (san) {"]
    if after:
        tail += ["    if (rc == 0) {", *(f"        {line}" for line in after), "    }"]
    tail += ["    psm_san_leave(&san_call, rc);", "}"]
    return head, tail


# ---- the shim ----

_WORD = re.compile(r"[A-Za-z_]\w*")
#: Answered by the shim itself, in csrc/sanitize/shim/shim.c.
BY_HAND = {"cuGetProcAddress", "cuGetProcAddress_v2", "cudaGetDriverEntryPoint", "cudaGetDriverEntryPointByVersion"}

#: Had more parameters before CUDA 12, under the same name.
_CHANGED = {"cudaGraphInstantiate", "cudaGraphExecUpdate"}


def shimmed(functions: list[Any], known: set[str]) -> list[Any]:
    """The functions that the shim interposes: with roles, all types known, one prototype for both sonames."""
    names: dict[str, int] = {}
    for f in functions:
        names[f.name] = names.get(f.name, 0) + 1

    def usable(f: Any) -> bool:
        words = {word for p in f.parameters for word in _WORD.findall(p.type)} if f.result else set()
        return (
            f.result is not None
            and has_roles(f)
            and names[f.name] == 1
            and words <= known
            and f.name not in BY_HAND | _CHANGED
        )

    return [f for f in functions if f.library in ("rt", "drv") and usable(f)]


def _stand_in(f: Any, number: int, variant: str) -> str:
    name = f.name + variant
    before, after = checks(f)
    mine = f"shim_checks({number})"
    if f.library == "drv":
        # what a shared libcudart asks of the driver for a call of its own is no call of the program
        mine += " && !shim_is_runtime(__builtin_return_address(0))"
    before = [line.replace("psm_san_on()", mine) for line in before]
    head = f.prototype.replace(f" {f.name}(", f" {name}(")
    types = ", ".join(p.type for p in f.parameters) or "void"
    arguments = ", ".join(p.name for p in f.parameters)
    body = [
        "int rc = 0;",
        f"{f.result} (*next)({types}) = ({f.result}(*)({types}))shim_next({number});",
        f"if (!next) return ({f.result})SHIM_NO_CUDA;",
        *before,
        f"if (rc == 0) rc = (int)next({arguments});",
        *after,
        f"return ({f.result})rc;",
    ]
    return f"SHIM_EXPORT {head}\n{{\n" + "".join(f"    {line}\n" for line in body) + "}\n"


def shim(functions: list[Any], known: set[str]) -> tuple[str, str]:
    """The C file and the version script of the shim."""
    chosen = shimmed(functions, known)
    rows: list[str] = []
    parts: list[str] = []
    names: list[str] = []
    numbers: dict[str, tuple[int, int]] = {}
    for f in chosen:
        library = "SHIM_DRIVER" if f.library == "drv" else "SHIM_RUNTIME"
        only = f.versions[0] if f.library == "rt" and len(f.versions) == 1 else 0
        numbers[f.name] = (len(rows), len(rows) + 1 if f.default_stream else -1)
        for variant in ["", *([f"_{f.default_stream}"] if f.default_stream else [])]:
            names.append(f.name + variant)
            parts.append(_stand_in(f, len(rows), variant))
            rows.append(
                f'    {{.name = "{f.name}{variant}", .library = {library}, .soname = {only}, .own = (void *){f.name}{variant}}},\n'
            )
    # Every version of a driver function counts, also those that are not stood in for: they have other parameters.
    bases = {f.base for f in chosen if f.library == "drv"}
    driver = [f for f in functions if f.library == "drv"]
    versions = [
        f'    {{"{f.base}", {f.versions[0]}, {{{numbers.get(f.name, (-1, -1))[0]}, {numbers.get(f.name, (-1, -1))[1]}}}}},\n'
        for f in driver
        if f.base in bases
    ]
    code = '/* Generated from api.def: the functions that the shim interposes. */\n#include "shim.h"\n\n' + "\n".join(
        parts
    )
    code += f"\nstruct shim_function shim_functions[] = {{\n{''.join(rows)}}};\nconst int shim_count = {len(rows)};\n"
    code += f"const struct shim_version shim_versions[] = {{\n{''.join(versions)}}};\n"
    code += f"const int shim_version_count = {len(versions)};\n"
    code += f"const int shim_newest = {max(f.versions[0] for f in driver)};\n"
    names += [
        *sorted(BY_HAND),
        "cudaGetDriverEntryPoint_ptsz",
        "cudaGetDriverEntryPointByVersion_ptsz",
        "dlsym",
        "dlvsym",
    ]
    return code, "{\nglobal:\n" + "".join(f"    {n};\n" for n in names) + "local:\n    *;\n};\n"
