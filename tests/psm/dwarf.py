"""What structs hold, from the debug information of a library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

PREFIX = "psm_shareable_"  # of the typedefs that PSM_SHAREABLE makes
# Typedefs that are handles of one process, whatever they are made of.
HANDLES = re.compile(r"cuda\w+_t|CU[a-zA-Z]\w*|FILE|pthread_\w+|ncclComm_t|DIR|sem_t")
FIXED = re.compile(r"_*u?int(8|16|32|64)_t")
DESCRIPTOR = re.compile(r"(^|_)(fd|FD)s?($|_)|[a-z]F[dD]s?($|[A-Z_])|[dD]escriptor")


def name_of(die: DIE | None) -> str:
    found = die.attributes.get("DW_AT_name") if die is not None else None
    return found.value.decode() if found else ""


def type_of(die: DIE) -> DIE | None:
    return die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None


def size_of(die: DIE | None) -> int:
    """Bytes."""
    assert die is not None
    if "DW_AT_byte_size" in die.attributes:
        return int(die.attributes["DW_AT_byte_size"].value)
    if die.tag == "DW_TAG_array_type":
        count = 1
        for child in die.iter_children():
            count *= child.attributes["DW_AT_upper_bound"].value + 1
        return count * size_of(type_of(die))
    return 8 if die.tag == "DW_TAG_pointer_type" else size_of(type_of(die))


def faults(die: DIE | None, where: str) -> Iterator[str]:
    """What in a type cannot be another process's."""
    if die is None:
        yield f"{where}: void"
        return
    name = name_of(die)
    match die.tag:
        case "DW_TAG_typedef":
            if HANDLES.fullmatch(name):
                yield f"{where}: a handle, {name}"
            elif FIXED.fullmatch(name):
                return
            else:
                yield from faults(type_of(die), where)
        case "DW_TAG_pointer_type" | "DW_TAG_reference_type" | "DW_TAG_subroutine_type":
            yield f"{where}: a pointer"
        case "DW_TAG_const_type" | "DW_TAG_volatile_type" | "DW_TAG_atomic_type" | "DW_TAG_array_type":
            yield from faults(type_of(die), where)
        case "DW_TAG_structure_type" | "DW_TAG_union_type":
            members = [child for child in die.iter_children() if child.tag == "DW_TAG_member"]
            if not members:
                yield f"{where}: a struct that is not known"
            for member in members:
                field = name_of(member)
                path = f"{where}.{field}" if field else where
                if DESCRIPTOR.search(field):
                    yield f"{path}: a descriptor, by its name"
                yield from faults(type_of(member), path)
        case "DW_TAG_base_type":
            if name != "char":
                yield f"{where}: {name}, whose width depends on the compiler"
        case "DW_TAG_enumeration_type":
            yield f"{where}: an enum, whose width depends on the compiler"
        case _:
            yield f"{where}: {die.tag}"


def shareable(library: Path) -> dict[str, tuple[int, list[str]]]:
    """The marked structs: size and faults, by name."""
    found: dict[str, tuple[int, list[str]]] = {}
    with library.open("rb") as file:
        dwarf = ELFFile(file).get_dwarf_info()
        for unit in dwarf.iter_CUs():
            for die in unit.get_top_DIE().iter_children():
                if die.tag != "DW_TAG_typedef" or not name_of(die).startswith(PREFIX):
                    continue
                name = name_of(die).removeprefix(PREFIX)
                struct = type_of(die)
                size = struct.attributes["DW_AT_byte_size"].value if struct is not None else -1
                this = (int(size), list(faults(struct, name)))
                # Two units may see a struct with a packing or a macro of their own.
                if found.setdefault(name, this) != this:
                    found[name] = (-1, [f"{name}: not the same in two source files"])
    return found
