"""Layouts of NCCL's own structs, as far as csrc/nccl uses them: measured from an object file, and made into declarations.

`python -m tests.nccl.layouts VERSION OBJECT... > facts/NAME.json` measures: the objects are csrc/nccl's, compiled with
-g against a tree. The facts are numbers and names; the declarations that are made of them let the glue be compiled where
there is no tree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

from tests.psm.dwarf import name_of, size_of, type_of

HERE = Path(__file__).parent
HEADERS = ("comm.h", "graph.h", "profiler.h", "proxy.h", "register.h", "shmutils.h", "transport.h", "utils.h")

# What csrc/nccl reads or writes. Members that a release does not have are left out of its facts.
USED = {
    "ncclProxyConnector": "connection proxyProgress",
    "ncclConnInfo": "buffs tail head flags stepSize",
    "ncclConnector": "connected proxyConn transportComm transportResources conn",
    "ncclChannelPeer": "send recv",
    "ncclChannel": "peers",
    "ncclPeerInfo": "rank cudaDev nvmlDev hostHash pidHash busId",
    "ncclConnect": "data",
    "ncclTransportComm": "setup connect free proxySharedInit proxySetup proxyConnect proxyFree proxyProgress proxyRegister"
    " proxyDeregister",
    "ncclTransport": "name canConnect send recv",
    "ncclProxyConnection": "send transport sameProcess proxyAppend proxyAppendPtr transportResources",
    "ncclProxySubArgs": "connection sendMhandle recvMhandle sendbuff recvbuff channelId nbytes peer requests opEventHandle transSize",
    "ncclProxyArgs": "subs nsubs done opCount sliceSteps state reg idle syncCond",
    "ncclProxyOp": "nbytes opCount nsteps channelId reg sendMhandle recvMhandle sendbuff recvbuff",
    "ncclProxyState": "tpRank tpnRanks cudaDev abortFlag stop asyncResult",
    "ncclRegCache": "pageSize",
    "ncclIpcImpInfo": "rmtRegAddr legacyIpcCap offset",
    "ncclIpcRegInfo": "peerRank baseAddr impInfo",
    "ncclPeerRegIpcAddr": "hostPeerRmtAddrs",
    "ncclReg": "pages addr begAddr endAddr state psmRegIpcAddrs psmIpcInfos",
    "ncclDevWorkP2p": "sendAddr recvAddr sendBytes recvBytes sendRank recvRank nSendChannels nRecvChannels",
    "ncclCommCallback": "next fn",
    "ncclKernelPlan": "persistent channelMask cleanupQueue",
    "psmSyncCondition": "proxyOpCount proxyReadyEvent",
    "ncclComm": "rank nRanks localRanks rankToLocalRank topParentRanks topo peerInfo channels buffSizes regCache proxyState",
}
OURS = ("psmSyncCondition",)  # in a plain tree it is ours: psm_hooks.h
Facts = dict[str, Any]


def qualified(die: DIE) -> str:
    parent = die.get_parent()
    inside = parent is not None and parent.tag == "DW_TAG_namespace"
    return f"{name_of(parent)}::{name_of(die)}" if inside and parent is not None else name_of(die)


def declare(die: DIE | None, inner: str) -> str:
    """C++ for something of this type that is called `inner`."""
    if die is None:
        return f"void {inner}"
    match die.tag:
        case "DW_TAG_base_type" | "DW_TAG_typedef":
            return f"{name_of(die)} {inner}"
        case "DW_TAG_structure_type" | "DW_TAG_class_type" | "DW_TAG_union_type":
            plain = "<" not in name_of(die) and die.tag == "DW_TAG_structure_type"
            return f"{'struct ' if plain else ''}{qualified(die)} {inner}"
        case "DW_TAG_enumeration_type":
            return f"{name_of(die) or 'int'} {inner}"
        case "DW_TAG_const_type" | "DW_TAG_volatile_type":
            word = "const" if die.tag == "DW_TAG_const_type" else "volatile"
            inside = declare(type_of(die), inner)
            return inside if inside.startswith(word) else f"{word} {inside}"
        case "DW_TAG_pointer_type":
            to = type_of(die)
            if to is not None and to.tag == "DW_TAG_subroutine_type":
                given = (declare(type_of(c), "") for c in to.iter_children() if c.tag == "DW_TAG_formal_parameter")
                return declare(type_of(to), f"(*{inner})({', '.join(part.strip() for part in given)})")
            return declare(to, f"*{inner}")
        case "DW_TAG_array_type":
            bounds = [c.attributes["DW_AT_upper_bound"].value + 1 for c in die.iter_children()]
            return declare(type_of(die), inner + "".join(f"[{n}]" for n in bounds))
        case _:
            raise ValueError(f"{inner}: {die.tag}")


def structs(path: Path) -> Iterator[DIE]:
    with path.open("rb") as file:
        for unit in ELFFile(file).get_dwarf_info().iter_CUs():
            for die in unit.get_top_DIE().iter_children():
                if die.tag == "DW_TAG_structure_type" and "DW_AT_declaration" not in die.attributes:
                    yield die


def measure(paths: list[Path]) -> Facts:
    """Size, and offset, size and declaration of the used members, of each used struct that the objects know.

    Raises:
        ValueError: a used member has a type that cannot be declared.
    """
    found: Facts = {}
    for die in (die for path in paths for die in structs(path)):
        name = name_of(die)
        if name not in USED or name in found:
            continue
        members = {name_of(child): child for child in die.iter_children() if child.tag == "DW_TAG_member"}
        found[name] = {
            "size": size_of(die),
            "members": {
                field: [
                    int(members[field].attributes["DW_AT_data_member_location"].value),
                    size_of(type_of(members[field])),
                    " ".join(declare(type_of(members[field]), field).split()),
                ]
                for field in USED[name].split()
                if field in members
            },
        }
    return {name: found[name] for name in USED if name in found}


def header(facts: Facts) -> str:
    """C++ that declares the structs with the measured layout; what lies between members is filled."""
    lines = [f"struct {name};" for name in facts["structs"]]
    for name, struct in facts["structs"].items():
        if name in OURS and not facts["hooked"]:
            continue
        at, gap, aligned = 0, 0, 16 if name == "ncclDevWorkP2p" else 1
        lines.append(f"struct {f'alignas({aligned}) ' if aligned > 1 else ''}{name} {{")
        for offset, size, text in sorted(struct["members"].values()):
            if offset > at:
                lines.append(f"    char unused{gap}[{offset - at}];")
                gap += 1
            lines.append(f"    {text};")
            at = offset + size
        if struct["size"] > at:
            lines.append(f"    char unused{gap}[{struct['size'] - at}];")
        lines.append("};")
        lines.append(f'static_assert(sizeof(struct {name}) == {struct["size"]}, "{name}");')
        lines += [
            f'static_assert(__builtin_offsetof(struct {name}, {field}) == {offset}, "{name}.{field}");'
            for field, (offset, _size, _text) in struct["members"].items()
        ]
    return "\n".join(lines) + "\n"


def write_tree(facts: Facts, folder: Path) -> None:
    """Make headers of the tree's names in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "layouts.h").write_text(header(facts))
    for name in HEADERS:
        (folder / name).write_text('#include "declarations.h"\n')
    numbers = facts["numbers"] | {"NCCL_TREE_HOOKED": int(facts["hooked"])}
    (folder / "numbers.h").write_text("".join(f"#define {name} {value}\n" for name, value in numbers.items()))


def facts_of(version: str, objects: list[Path]) -> Facts:
    """What is kept of a tree: its release, whether it has PassSM hooks of its own, and the layouts."""
    major, minor, patch = version.split(".")
    found = measure(objects)
    return {
        "hooked": "syncCond" in found["ncclProxyArgs"]["members"],
        "numbers": {"NCCL_MAJOR": int(major), "NCCL_MINOR": int(minor), "NCCL_PATCH": int(patch)},
        "structs": found,
    }


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(json.dumps(facts_of(sys.argv[1], [Path(name) for name in sys.argv[2:]]), indent=1))
