"""The C rooms keep their order: which folder of csrc may use which, by its includes and by what its CMake names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"

# Each room and the rooms that it may use. A file belongs to the longest name that begins its path: folders inside a room are its own affair.
LIBPSM = {"base", "cuda", "psm/include", "psm/core"}  # what each part of libpsm stands on
MAY_USE: dict[str, set[str]] = {
    "abi": set(),
    "base": set(),
    "cuda": set(),
    "psm/include": set(),
    "hostcuda/include": set(),
    "planrules": {"psm/include"},
    "logscan": {"planrules", "psm/include"},  # its Python module has the rules of plans
    "telemetry": {"base"},
    "ranks": {"base"},
    "sanitize": {"base", "cuda"},
    "hostcuda": {"base", "cuda", "sanitize", "hostcuda/include"},
    "psm/core": {"base", "cuda", "psm/include"},
    "psm/shm": LIBPSM,
    "psm/proxy": LIBPSM | {"psm/shm"},
    "psm/record": LIBPSM,
    "psm/conn": LIBPSM | {"psm/shm", "psm/record"},
    "psm/p2p": LIBPSM | {"psm/shm", "psm/record", "psm/conn"},
    "psm/net": LIBPSM | {"psm/shm", "psm/record", "psm/conn", "abi"},
    "psm/launch": LIBPSM | {"psm/conn", "psm/p2p", "psm/net"},
    "psm/plan": LIBPSM | {"psm/p2p", "psm/net", "planrules"},
    "psm/cffi": LIBPSM,
    "psm": {"base", "cuda", "planrules"},  # its CMake puts the parts together
    "lab": {"base", "cuda", "ranks", "psm/include"},
    "plugins": {"abi", "base", "cuda", "ranks", "telemetry", "psm/include"},
    "nccl": {"base", "hostcuda/include", "psm/include"},
    "fuzz": {
        "base",
        "psm/include",
        "psm/core",
        "cuda",
        "ranks",
        "telemetry",
        "psm/shm",
        "psm/proxy",
        "psm/p2p",
        "psm/net",
        "psm",
    },  # looks into all
}
# What points against the order, and why. An entry goes when its arrow goes; none comes.
EXCEPTIONS = {
    ("psm/record", "psm/conn"): "the step recorder reads the types of a connection's steps",
    ("psm/plan", "psm/proxy"): "the engine over CUDA asks the proxy thread directly; psm_host_ops has no such call",
    ("plugins", "psm"): "the net plugin compiles libpsm's segments, which libpsm does not export",
    ("plugins", "psm/core"): "the same: they report their errors through it",
    ("plugins", "psm/shm"): "the same",
}
# Headers of NCCL's tree that csrc/nccl includes, and whose names are also here: there the tree's folders come first.
OF_NCCL = {"comm.h", "device.h", "graph.h", "profiler.h", "proxy.h"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
_OF_CMAKE = re.compile(r"^[^#\n]*PROJECT_SOURCE_DIR\}/csrc/([\w/]+)", re.M)


@cache
def sources() -> dict[str, list[Path]]:
    """The C and C++ files below csrc, by their last name."""
    out = defaultdict(list)
    for path in sorted(CSRC.rglob("*")):
        if path.suffix in (".c", ".cc", ".h"):
            out[path.name].append(path)
    return dict(out)


def room(path: str) -> str:
    """The room of a path below csrc."""
    names = [name for name in MAY_USE if path == name or path.startswith(name + "/")]
    return max(names, key=len, default=path.split("/")[0])


def targets(path: Path, name: str) -> set[str]:
    """The rooms whose file an include may mean: of several, the compiler's folders decide. Empty: it is generated, or NCCL's."""
    if (path.parent / name).exists():
        return {room((path.parent / name).resolve().relative_to(CSRC).as_posix())}
    if name in OF_NCCL and room(path.relative_to(CSRC).as_posix()) == "nccl":
        return set()
    found = [p.relative_to(CSRC).as_posix() for p in sources().get(Path(name).name, [])] if "/.." not in name else []
    return {room(p) for p in found if f"/{p}".endswith(f"/{name}")}


def arrows() -> Iterator[tuple[str, str, str]]:
    """Who uses what, and the file: of several rooms that an include may mean, the one that is allowed."""
    for path in (path for paths in sources().values() for path in paths):
        own = room(path.relative_to(CSRC).as_posix())
        for name in _INCLUDE.findall(path.read_text()):
            found = targets(path, name)
            if found and not found & (MAY_USE.get(own, set()) | {own}):
                yield own, min(found), f"{path.relative_to(ROOT)} includes {name}"
            elif found:
                yield own, min(found & (MAY_USE[own] | {own})), ""
    for path in sorted(CSRC.rglob("CMakeLists.txt")):
        own = room(path.parent.relative_to(CSRC).as_posix())
        for name in _OF_CMAKE.findall(path.read_text()):
            yield own, room(name), f"{path.relative_to(ROOT)} names csrc/{name}"


def test_every_c_room_is_known() -> None:
    folders = {room(p.parent.relative_to(CSRC).as_posix()) for paths in sources().values() for p in paths}
    assert folders <= set(MAY_USE), "say in MAY_USE what the new room may use"


def test_the_order_of_c_rooms_has_no_circle() -> None:
    left = {name: set(uses) for name, uses in MAY_USE.items()}
    while done := {name for name, uses in left.items() if not uses & set(left)}:
        left = {name: uses for name, uses in left.items() if name not in done}
    assert not left


def test_c_rooms_use_each_other_one_way() -> None:
    found = list(arrows())
    assert {("psm/p2p", "psm/conn"), ("lab", "ranks"), ("fuzz", "ranks")} <= {(own, to) for own, to, _ in found}
    wrong = [
        what
        for own, to, what in found
        if own != to and to not in MAY_USE[own] and (own, to) not in EXCEPTIONS and not to.startswith(own + "/")
    ]
    assert not wrong


def test_headers_have_names_of_their_own() -> None:
    twice = {
        name: [str(path.relative_to(CSRC)) for path in paths]
        for name, paths in sources().items()
        if name.endswith(".h") and len(paths) > 1
    }
    assert not twice


def test_exceptions_are_needed() -> None:
    used = {(own, to) for own, to, _ in arrows()}
    assert not set(EXCEPTIONS) - used, "delete these entries of EXCEPTIONS"
