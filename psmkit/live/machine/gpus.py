"""GPUs, their driver, and what lets network adapters reach their memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from psmkit.live.machine.check import Check
from psmkit.live.machine.facts import Machine
from psmkit.live.machine.libraries import Loader
from psmkit.model.wording import counted

__all__ = ["checks", "devices", "driver_version"]

_AREA = "GPUs"
_MODULE = "/proc/driver/nvidia/version"
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")
_WHEELS = ("nvidia/cuda_runtime/lib", "nvidia/cu13/lib")
_ACS = 0x0D  # an extended capability of PCI Express
_REDIRECT = 0x0C  # of its control word: requests and completions go up to the root complex


def devices(machine: Machine) -> list[str]:
    """The device nodes of GPUs."""
    return [f"/dev/{name}" for name in machine.names("/dev") if re.fullmatch(r"nvidia\d+", name)]


def driver_version(machine: Machine) -> str:
    """The version of the driver's kernel module; empty: not visible."""
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", machine.read(_MODULE))
    return found[1] if found else ""


def checks(machine: Machine) -> Iterator[Check]:
    module, version = machine.read(_MODULE), driver_version(machine)
    nodes = devices(machine)
    libraries = Loader(machine).find_all("libcuda.so.1")
    if libraries and "hostcuda" in machine.real(libraries[0]):
        seen = f"emulated by psmkit: {libraries[0]}"
        why = "what runs in this environment uses the CPU, not a GPU"
        yield Check(_AREA, "driver", "note", seen, why, "unset LD_LIBRARY_PATH, outside of a lab run")
        return
    if not (module or nodes or libraries):
        seen = f"no NVIDIA driver is visible{' from this container' if machine.container else ''}"
        why = "NCCL needs one; psmkit's lab does not, it runs over emulated CUDA"
        do = "docker run --gpus all ... (with the NVIDIA container toolkit)" if machine.container else ""
        yield Check(_AREA, "driver", "note", seen, why, do)
        return
    yield _kernel(machine, module, version)
    yield _nodes(machine, nodes)
    yield _library(machine, libraries, version)
    yield _runtime(machine)
    smi = machine.program("nvidia-smi")
    if smi:
        yield Check(_AREA, "nvidia-smi", "ok", smi)
    else:
        why = "shows topology and errors of GPUs: nvidia-smi topo -m, nvidia-smi -q"
        yield Check(_AREA, "nvidia-smi", "note", "not on the PATH", why)
    if nodes:
        yield from _direct(machine, module)
        yield from _pci(machine)


def _kernel(machine: Machine, module: str, version: str) -> Check:
    if version:
        kind = "open" if "Open Kernel Module" in module else "proprietary"
        return Check(_AREA, "driver", "ok", f"kernel module {version} ({kind})")
    seen = "the version of the kernel module is not visible (/proc/driver/nvidia/version)"
    why = "CUDA cannot run without the kernel module"
    do = "docker run --gpus all ..." if machine.container else "sudo modprobe nvidia; dmesg | grep -i nvrm"
    return Check(_AREA, "driver", "warning", seen, why, do)


def _nodes(machine: Machine, nodes: list[str]) -> Check:
    name = "devices"
    if not nodes:
        seen = f"none is visible{' from this container' if machine.container else ''}"
        do = "docker run --gpus all ..." if machine.container else "sudo nvidia-modprobe -c 0 -u"
        return Check(_AREA, name, "warning", seen, "each rank needs a GPU", do)
    missing = [node for node in ("/dev/nvidiactl", "/dev/nvidia-uvm") if not machine.exists(node)]
    if missing:
        why = "CUDA cannot start without it"
        do = "docker run --gpus all ..." if machine.container else "sudo nvidia-modprobe -u"
        return Check(_AREA, name, "warning", f"{counted(len(nodes), 'GPU')}, no {', '.join(missing)}", why, do)
    closed = [node for node in nodes if not machine.opens(node)]
    if closed:
        why = "this user may not open them: CUDA sees fewer GPUs"
        return Check(_AREA, name, "warning", f"no access to {', '.join(closed)}", why, f"ls -l {closed[0]}")
    seen = counted(len(nodes), "GPU")
    if (visible := machine.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        seen += f"; CUDA_VISIBLE_DEVICES={visible}"
    return Check(_AREA, name, "ok", seen)


def _library(machine: Machine, libraries: list[str], version: str) -> Check:
    name = "libcuda"
    if not libraries:
        why = "CUDA cannot run without the library of the driver"
        do = (
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
            if machine.container
            else "ldconfig -p"
        )
        return Check(_AREA, name, "warning", "the loader finds no libcuda.so.1", why, do)
    path = machine.real(libraries[0])
    own = found[1] if (found := re.search(r"libcuda\.so\.(\d+\.[\d.]+)$", path)) else ""
    if own and version and own != version and "compat" not in path:
        why = "the library and the kernel module must be of one version: cudaErrorSystemDriverMismatch, code 803"
        return Check(_AREA, name, "warning", f"{path}, with kernel module {version}", why, "restart after the update")
    return Check(_AREA, name, "ok", path)


def _runtime(machine: Machine) -> Check:
    """The CUDA runtime. NCCL and PyTorch may have one of their own inside."""
    loader = Loader(machine)
    found = [path for name in _RUNTIMES for path in loader.find_all(name)[:1]]
    wheels = [folder / wheel / name for folder in machine.packages for wheel in _WHEELS for name in _RUNTIMES]
    found += [str(path) for path in wheels if os.path.exists(path)]
    seen = ", ".join(found) or "none on the loader's path; NCCL usually has one linked into it"
    return Check(_AREA, "libcudart", "ok", seen)


def _direct(machine: Machine, module: str) -> Iterator[Check]:
    """What lets a network adapter read and write the memory of a GPU."""
    adapters = machine.names("/sys/class/infiniband")
    name = "GPUDirect RDMA"
    release = re.match(r"(\d+)\.(\d+)", machine.read("/proc/sys/kernel/osrelease"))
    kernel = (int(release[1]), int(release[2])) if release else (0, 0)
    if machine.exists("/sys/module/nvidia_peermem"):
        yield Check(_AREA, name, "ok", "nvidia_peermem is loaded")
    elif "Open Kernel Module" in module and kernel >= (5, 12):
        yield Check(_AREA, name, "ok", "by DMA-BUF: the open kernel module; nvidia_peermem is not loaded")
    elif adapters:
        why = "without it, and without DMA-BUF (open kernel module, Linux 5.12), data to other hosts passes through host memory"
        yield Check(_AREA, name, "warning", "nvidia_peermem is not loaded", why, "sudo modprobe nvidia_peermem")
    if machine.exists("/dev/gdrdrv"):
        yield Check(_AREA, "GDRCopy", "ok", "/dev/gdrdrv")
    elif machine.environ.get("NCCL_GDRCOPY_ENABLE", "0") not in ("0", ""):
        why = "NCCL_GDRCOPY_ENABLE is set, and NCCL goes on without GDRCopy"
        yield Check(_AREA, "GDRCopy", "warning", "no /dev/gdrdrv", why, "sudo modprobe gdrdrv")


def _pci(machine: Machine) -> Iterator[Check]:
    """The IOMMU and ACS: both may send traffic between two PCI devices through the CPU."""
    iommu = machine.names("/sys/class/iommu")
    options = [word for word in machine.read("/proc/cmdline").split() if "iommu" in word]
    if not iommu:
        yield Check(_AREA, "IOMMU", "ok", "none is active")
    elif any(word.endswith(("=pt", ".passthrough=1")) for word in options):
        yield Check(_AREA, "IOMMU", "ok", f"on, pass-through ({' '.join(options)})")
    else:
        why = "it may slow down or break copies between GPUs, and between GPUs and network adapters, over PCI Express"
        seen = f"on ({' '.join(options) or 'no option of the kernel'})"
        yield Check(_AREA, "IOMMU", "note", seen, why, "boot with iommu=pt")
    on, unread = [], 0
    for name in machine.names("/sys/bus/pci/devices"):
        if not machine.read(f"/sys/bus/pci/devices/{name}/class").startswith("0x0604"):
            continue
        control = _control(machine, name)
        if control is None:
            unread += 1
        elif control & _REDIRECT:
            on.append(name)
    if on:
        why = "a bridge that redirects sends traffic between the devices below it through the CPU: slow, or hangs"
        seen = f"on at {counted(len(on), 'PCI bridge')}: {', '.join(on[:4])}{', ...' if len(on) > 4 else ''}"
        do = "switch ACS off in the firmware, or: sudo setpci -s BRIDGE ECAP_ACS+6.w=0000"
        yield Check(_AREA, "ACS", "warning", seen, why, do)
    elif unread:
        seen = f"not visible at {counted(unread, 'PCI bridge')}: only root reads it"
        yield Check(_AREA, "ACS", "note", seen, "", "sudo psmkit doctor")
    else:
        yield Check(_AREA, "ACS", "ok", "off at all visible PCI bridges")


def _control(machine: Machine, name: str) -> int | None:
    """The control word of ACS; 0: the bridge has no ACS; None: not readable."""
    try:
        space = machine.path(f"/sys/bus/pci/devices/{name}/config").read_bytes()
    except OSError:
        return None
    if len(space) <= 0x100:  # extended capabilities are for root
        return None
    at, seen = 0x100, set[int]()
    while at >= 0x100 and at + 8 <= len(space) and at not in seen:
        seen.add(at)
        head = int.from_bytes(space[at : at + 4], "little")
        if head & 0xFFFF == _ACS:
            return int.from_bytes(space[at + 6 : at + 8], "little")
        at = head >> 20
    return 0
