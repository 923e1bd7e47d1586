"""Emulated machines: the topology file of hostcuda (PSM_TOPOLOGY), and the same machine as NCCL's topology XML.

csrc/hostcuda/topology_read.c reads what ``Machine.toml`` writes; docs/hostcuda.md describes the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from psmkit.lab.cuda import LabError

__all__ = ["LINKS", "Gpu", "Kind", "Machine"]

Kind = Literal["nvswitch", "nvlink", "pcie"]
LINKS: tuple[Kind, ...] = ("nvswitch", "nvlink", "pcie")

MAX_GPUS, MAX_NODES, MAX_NVLINKS = 64, 4096, 18
# Bus numbers of a common eight-GPU machine; further GPUs are in further PCI domains.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_SWITCH_BUSES = (5, 6, 7, 8)
# Compute capability -> name, PCI device, NVLinks, PCIe speed as NCCL spells it.
_MODELS = {
    (7, 0): ("Tesla V100-SXM2-32GB", "0x1db5", 6, "8.0 GT/s PCIe"),
    (8, 0): ("NVIDIA A100-SXM4-80GB", "0x20b2", 12, "16.0 GT/s PCIe"),
    (9, 0): ("NVIDIA H100 80GB HBM3", "0x2330", 18, "32.0 GT/s PCIe"),
    (10, 0): ("NVIDIA B200", "0x2901", 18, "32.0 GT/s PCIe"),
}
_SIZE = re.compile(r"[1-9]\d* ?(KiB|MiB|GiB|TiB)")
_PCI_BRIDGE, _GPU_CLASS, _NIC_CLASS, _SWITCH_CLASS = "0x060400", "0x030200", "0x020000", "0x068000"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node: its place on the PCI bus and its NUMA node."""

    index: int
    pci: str
    numa: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Equal nodes of equal GPUs.

    Args:
        gpus: GPUs a node.
        nodes: how many nodes; a process picks its own by PSM_NODE.
        link: what joins the GPUs of a node.
        compute: compute capability.
        memory: of a GPU, as ``80 GiB``.
        numa_nodes: NUMA nodes a node, which share its GPUs out.
        nics: network cards a node, for the XML only.
        rdma: network cards reach the memory of GPUs.

    Raises:
        LabError: hostcuda cannot emulate such a machine.
    """

    gpus: int = 8
    nodes: int = 1
    link: Kind = "nvswitch"
    compute: tuple[int, int] = (9, 0)
    memory: str = "80 GiB"
    numa_nodes: int = 1
    nics: int = 0
    rdma: bool = False
    members: tuple[Gpu, ...] = field(init=False)

    def __post_init__(self) -> None:
        for what, value, least, most in (
            ("GPUs a node", self.gpus, 1, MAX_GPUS),
            ("nodes", self.nodes, 1, MAX_NODES),
            ("NUMA nodes", self.numa_nodes, 1, self.gpus),
            ("network cards", self.nics, 0, MAX_GPUS),
        ):
            if not least <= value <= most:
                raise LabError(f"{value} {what}: expected {least} to {most}")
        if self.compute not in _MODELS:
            known = ", ".join(f"{major}.{minor}" for major, minor in _MODELS)
            raise LabError(f"compute capability {self.compute[0]}.{self.compute[1]}: expected one of {known}")
        if not _SIZE.fullmatch(self.memory):
            raise LabError(f"memory {self.memory!r}: expected a size such as '80 GiB' (KiB, MiB, GiB, TiB)")
        if self.link == "nvlink" and self.gpus > MAX_NVLINKS + 1:
            raise LabError(f"{self.gpus} GPUs with direct links: a GPU has only {MAX_NVLINKS} NVLinks; use nvswitch")
        members = tuple(
            Gpu(i, f"{i // len(_BUSES):04x}:{_BUSES[i % len(_BUSES)]:02x}:00.0", i * self.numa_nodes // self.gpus)
            for i in range(self.gpus)
        )
        object.__setattr__(self, "members", members)

    @property
    def name(self) -> str:
        """The name of the GPUs."""
        return _MODELS[self.compute][0]

    @property
    def links(self) -> int:
        """The number of NVLinks of a GPU, to all peers together."""
        if self.link == "pcie" or self.gpus == 1:
            return 0
        usual = _MODELS[self.compute][2]
        return usual if self.link == "nvswitch" else self.pair_links * (self.gpus - 1)

    @property
    def pair_links(self) -> int:
        """The number of NVLinks of a pair without a switch."""
        usual = _MODELS[self.compute][2]
        return max(usual // (self.gpus - 1), 1) if self.link == "nvlink" and self.gpus > 1 else 0

    def toml(self) -> str:
        """The file that PSM_TOPOLOGY names."""
        lines = [
            "# The GPUs of emulated CUDA (PSM_TOPOLOGY); PSM_NODE selects the node of a process.",
            f"nodes = {self.nodes}",
            f"gpus = {self.gpus}",
            f'link = "{self.link}"',
            f"links = {_MODELS[self.compute][2]}",
            "peer = true",
            f'name = "{self.name}"',
            f'compute = "{self.compute[0]}.{self.compute[1]}"',
            f'memory = "{self.memory}"',
        ]
        if self.rdma:
            lines.append("rdma = true")
        for gpu in self.members:
            lines += ["", "[[gpu]]", f"index = {gpu.index}", f'pci = "{gpu.pci}"', f"numa = {gpu.numa}"]
        return "\n".join(lines) + "\n"

    def xml(self) -> str:
        """One node in the format of NCCL_TOPO_FILE. All nodes are equal, so one file is enough."""
        lines = ['<system version="1">']
        for numa in range(self.numa_nodes):
            lines.append(
                f'  <cpu numaid="{numa}" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
            )
            for gpu in (g for g in self.members if g.numa == numa):
                lines += self._gpu(gpu)
            for nic in (n for n in range(self.nics) if n * self.numa_nodes // self.nics == numa):
                lines += self._nic(nic)
            lines.append("  </cpu>")
        return "\n".join([*lines, "</system>"]) + "\n"

    def _pci(self, busid: str, kind: str, vendor: str, device: str) -> str:
        return (
            f'<pci busid="{busid}" class="{kind}" vendor="{vendor}" device="{device}" subsystem_vendor="0x10de" '
            f'subsystem_device="0x16c1" link_speed="{_MODELS[self.compute][3]}" link_width="16">'
        )

    def _gpu(self, gpu: Gpu) -> list[str]:
        lines = ["    " + self._pci(gpu.pci, _GPU_CLASS, "0x10de", _MODELS[self.compute][1])]
        lines.append(f'      <gpu dev="{gpu.index}" sm="{self.compute[0] * 10 + self.compute[1]}">')
        lines += [
            f'        <nvlink target="{target}" count="{count}" tclass="{kind}"/>'
            for target, count, kind in self._ends(gpu)
        ]
        return [*lines, "      </gpu>", "    </pci>"]

    def _ends(self, gpu: Gpu) -> list[tuple[str, int, str]]:
        if not self.links:
            return []
        if self.link == "nvlink":
            return [(g.pci, self.pair_links, _GPU_CLASS) for g in self.members if g is not gpu]
        return [
            (f"0000:{bus:02x}:00.0", len(range(at, self.links, len(_SWITCH_BUSES))), _SWITCH_CLASS)
            for at, bus in enumerate(_SWITCH_BUSES)
        ]

    def _nic(self, nic: int) -> list[str]:
        # A card has its own PCI domain, so that its bus number differs from those of GPUs.
        busid = f"{0x1000 + nic:04x}:01:00.0"
        return [
            "    " + self._pci(busid, _NIC_CLASS, "0x15b3", "0x1021"),
            "      <nic>",
            f'        <net name="psm{nic}" dev="{nic}" speed="400000" port="1" guid="{nic + 1:#x}" maxconn="131072" gdr="0"/>',
            "      </nic>",
            "    </pci>",
        ]
