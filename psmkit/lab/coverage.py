"""The CUDA functions that hostcuda provides, and those that a library needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from psmkit.cudaapi.apidef import Function
from psmkit.lab import elf
from psmkit.lab.cuda import functions

__all__ = ["Area", "Need", "areas", "needs"]

LIBRARY = {"rt": "libcudart", "drv": "libcuda", "nvml": "libnvidia-ml"}
# The first that fits. Names of the runtime and the driver alike, without their cuda or cu.
_AREAS = (
    ("other APIs", r"EGL|GL|VDPAU|D3D|Graphics|NvSci|External|Import|Vulkan"),
    ("arrays, textures", r"Tex|Surf|Array|Mipmap|Channel|Tensor"),
    ("graphs", r"Graph|UserObject|Capture"),
    ("streams", r"Stream|LaunchHostFunc|GreenCtx|DevResource|DevSmResource|ExecutionCtx"),
    ("events", r"Event"),
    ("memory across processes", r"Ipc|Export|Import|Shareable|Fabric"),
    ("copies", r"[Mm]emcpy|[Mm]emset|Prefetch|Discard"),
    ("virtual memory", r"MemCreate|MemRelease|MemMap|MemUnmap|MemAddress|MemSetAccess|MemGetAccess|Granularity|Multicast|MemRetain|LogicalEndpoint"),
    ("memory", r"Mem|Malloc|Free|HostAlloc|HostRegister|HostUnregister|HostGet|Pointer|Symbol"),
    ("kernels, modules", r"Func|Kernel|Launch|Module|Library|Link|Occupancy|__cuda|Param"),
    ("entry points, errors", r"Error|ProcAddress|EntryPoint|Version|Logs"),
    ("devices, contexts", r"Device|Ctx|Context|Init|Peer|Choose|Thread|Flags|P2P"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Area:
    """The number of functions in an area of a library, and how many of them are provided."""

    library: str
    area: str
    known: int
    provided: int


@dataclass(frozen=True, slots=True)
class Need:
    """A CUDA function that a library needs.

    Attributes:
        how: ``linked`` (an undefined symbol) or ``named`` (a text by which it can ask at run time).
        provided: whether hostcuda does more than answer "not supported".
    """

    name: str
    library: str
    how: str
    provided: bool


def area_of(f: Function) -> str:
    """The area of the coverage table that a function belongs to."""
    if f.library == "nvml":
        for name, pattern in (
            ("NVLink, P2P, fabric", r"NvLink|Nvlink|P2P|Fabric|Topology"),
            ("vGPU, MIG", r"[vV]gpu|GpuInstance|ComputeInstance|Mig"),
        ):
            if re.search(pattern, f.name):
                return name
        return "system" if f.name.startswith("nvmlSystem") else "devices" if "Device" in f.name else "other"
    for area, pattern in _AREAS:
        if re.search(pattern, f.name):
            return area
    return "other"


def areas() -> list[Area]:
    """Everything that api.def knows, by library and area."""
    counts: dict[tuple[str, str], list[int]] = {}
    for f in functions():
        count = counts.setdefault((f.library, area_of(f)), [0, 0])
        count[0] += 1
        count[1] += f.provider is not None
    order = [*LIBRARY]
    return [
        Area(LIBRARY[library], area, known, provided)
        for (library, area), (known, provided) in sorted(counts.items(), key=lambda c: (order.index(c[0][0]), c[0][1]))
    ]


def _by_name(sonames: set[int]) -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for f in functions():
        if f.library == "rt" and sonames and not sonames & set(f.versions):
            continue
        names = {f.name, f.base}
        if f.default_stream:
            names.add(f"{f.name}_{f.default_stream}")
        for name in names:
            found.setdefault(name, []).append(f)
    return found


def _need(name: str, how: str, candidates: Iterable[Function]) -> Need:
    some = list(candidates)
    return Need(name, LIBRARY[some[0].library], how, any(f.provider is not None for f in some))


def needs(path: Path) -> list[Need]:
    """What the ELF file at ``path`` needs of CUDA: its undefined symbols, then the names it can ask for.

    Raises:
        LabError: it is no ELF file, or pyelftools is missing.
    """
    binary = elf.read(path)
    sonames = {int(m[1]) for n in binary.needed if (m := re.fullmatch(r"libcudart\.so\.(1[23])", n))}
    known = _by_name(sonames)
    linked = {name for name in binary.undefined if name in known}
    found = [_need(name, "linked", known[name]) for name in sorted(linked)]
    # Programs rarely look up a runtime function by name; its name is also part of messages about it.
    named = {t for t in _words(binary.texts) if t in known and any(f.library != "rt" for f in known[t])}
    found += [_need(name, "named", [f for f in known[name] if f.library != "rt"]) for name in sorted(named - linked)]
    return found


def _words(texts: Iterable[bytes]) -> Iterator[str]:
    for text in texts:
        for word in text.split(b"\0"):
            if word.startswith((b"cu", b"nvml")):
                yield word.decode("ascii", "replace")
