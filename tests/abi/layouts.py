"""Layouts and values of NCCL's plugin ABIs: from the fact sheet, and from the debug information of a compiled unit.

`python -m tests.abi.layouts RELEASE HEADER.h [-I...]` measures what a header declares, and adds the types and tables that are not there yet
to psmkit/plugins/abi.json: the first step towards a new version (see CONTRIBUTING.md). RELEASE is the first that has them, and looks for the
tables; "coming": none has.
A layout is {"kind", "size", "alignment", "members"}; a member [path, offset, size, type, type without typedefs], where the path of
what is inside of an anonymous union has no part for that. A member may have more, in a dict: "parameters" (the names of a function's, unless
they are those of the version before), "note" and "dimensions" (names for the numbers of an array).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

from tests.psm.dwarf import name_of, size_of, type_of

Facts = dict[str, Any]
FACTS = Path(__file__).parents[2] / "psmkit" / "plugins" / "abi.json"

# What nccl.h declares for programs, and no plugin sees.
PROGRAMS = (
    "ncclUniqueId ncclConfig_v21400 ncclConfig_v21700 ncclConfig_v22700 ncclConfig_v22800 ncclConfig_v23000 ncclSimInfo_v22200"
    " ncclWaitSignalDesc_t ncclScalarResidence_t ncclCommMemStat_t ncclRedOp_dummy_t NCCL_UNIQUE_ID_BYTES NCCL_COMM_NULL"
    " NCCL_CONFIG_UNDEF_PTR NCCL_CONFIG_UNDEF_INT NCCL_SPLIT_NOCOLOR NCCL_SHRINK_DEFAULT NCCL_SHRINK_ABORT NCCL_WIN_DEFAULT"
    " NCCL_WIN_COLL_SYMMETRIC NCCL_WIN_STRICT_ORDERING NCCL_WIN_REQUIRED_ALIGNMENT NCCL_CTA_POLICY_DEFAULT"
    " NCCL_CTA_POLICY_EFFICIENCY NCCL_CTA_POLICY_ZERO"
).split()


def known_members(members: list[Facts], inside: str = "") -> Iterator[list[Any]]:
    """The members of the fact sheet, flat."""
    for member in members:
        name = member["name"]
        kind = member.get("kind")
        path = f"{inside}{name}" if name else f"{inside}<{kind}>"
        plain = member.get("canonical", member["type"])
        yield [path, member["offset"], member["size"], member["type"], plain]
        if kind:
            yield from known_members(member["members"], f"{path}." if name else inside)


def known(sheet: Facts) -> Facts:
    """What psmkit keeps of the fact sheet."""
    wanted = {name: struct for name, struct in sheet["structs"].items() if name not in PROGRAMS}
    return {
        "structs": {
            name: {
                "kind": struct["kind"],
                "size": struct["size"],
                "alignment": struct["alignment"],
                "headers": struct["defined_in_core_headers"],
                "members": list(known_members(struct["members"])),
            }
            for name, struct in wanted.items()
        },
        "typedefs": {
            name: [[entry["from"], entry["to"], entry["target"]] for entry in history]
            for name, history in sheet["typedefs"].items()
        },
        "enums": {
            name: [[entry["from"], entry["to"], entry["values"]] for entry in enum["history"]]
            for name, enum in sheet["enums"].items()
            if name not in PROGRAMS
        },
        "constants": {
            name: [[entry["from"], entry["to"], entry["value"]] for entry in history]
            for name, history in sheet["constants"].items()
            if name not in PROGRAMS
        },
        "example_constants": sheet["constants_example_headers_only"],
        "tables": {
            kind: {
                str(version["version"]): {
                    "symbol": version["symbol"],
                    "struct": version["struct"],
                }
                for version in plugin["versions"]
            }
            for kind, plugin in sheet["plugins"].items()
        },
        "lookups": {**sheet["symbol_lookup_by_release_source"], **sheet["symbol_lookup_by_release_binary"]},
    }


def unlike(own: Facts, sheet: Facts) -> list[str]:
    """What the package's facts say otherwise than the sheet's. They may know more: types, releases, values."""
    found = []
    for name, struct in sheet["structs"].items():
        mine = own["structs"].get(name, {})
        same = {**mine, "members": [row[:5] for row in mine.get("members", [])]}
        found += [f"structs {name} {key}" for key, value in struct.items() if same.get(key) != value]
    for part in ("typedefs", "enums", "constants"):
        for name, history in sheet[part].items():
            found += [f"{part} {name}"] if own[part].get(name, [])[: len(history)] != history else []
    for kind, entries in sheet["tables"].items():
        for version, entry in entries.items():
            mine = own["tables"][kind].get(version, {})
            found += [f"{kind} v{version} {key}" for key, value in entry.items() if value and mine.get(key) != value]
    for part in ("example_constants", "lookups"):
        found += [f"{part} {name}" for name, value in sheet[part].items() if own[part].get(name) != value]
    return found


def text(facts: Facts) -> str:
    """JSON with a line for each member, enum, ..."""
    parts = []
    for part, entries in facts.items():
        rows = [f"  {json.dumps(name)}: {struct_text(entry)}" for name, entry in entries.items()]
        parts.append(f"{json.dumps(part)}: {{\n" + ",\n".join(rows) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def struct_text(entry: Any) -> str:
    """An entry as JSON; a struct has a line for each member."""
    if not isinstance(entry, dict) or "members" not in entry:
        return json.dumps(entry)
    head = json.dumps({key: value for key, value in entry.items() if key != "members"})[:-1]
    rows = ",\n".join(f"      {json.dumps(row)}" for row in entry["members"])
    return f'{head}, "members": [\n{rows}]}}'


class Unit:
    """The types, enumerators and numbers of an object file that was compiled with -g."""

    def __init__(self, path: Path) -> None:
        self.structs: Facts = {}
        self.typedefs: dict[str, str] = {}
        self.enumerators: dict[str, int] = {}
        self.enums: dict[str, dict[str, int]] = {}
        self.numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}  # of structs and unions that have a name by a typedef only
        with path.open("rb") as file:
            elf = ELFFile(file)
            top = next(iter(elf.get_dwarf_info().iter_CUs())).get_top_DIE()
            dies = list(self._all(top))
            for die in dies:
                self._named(die)
            for die in dies:
                self._read(die)
            self._numbers(elf)

    def _all(self, die: DIE) -> Iterator[DIE]:
        for child in die.iter_children():
            yield child
            if child.tag == "DW_TAG_namespace":
                yield from self._all(child)

    def _named(self, die: DIE) -> None:
        to = type_of(die)
        if die.tag == "DW_TAG_typedef" and to is not None and to.tag in RECORDS and not name_of(to):
            self._names.setdefault(to.offset, name_of(die))

    def _read(self, die: DIE) -> None:
        name = name_of(die)
        if die.tag == "DW_TAG_enumeration_type":
            self._enum(die, name)
        if die.tag != "DW_TAG_typedef" or not name.startswith("nccl"):
            return
        to = type_of(die)
        self.typedefs[name] = self.type(to)
        if to is None:
            return
        if to.tag in RECORDS and self._names.get(to.offset, name_of(to)) == name:
            members = list(self._members(to, "", 0))
            self.structs[name] = {"kind": RECORDS[to.tag], "size": size_of(to), "members": members}
        elif to.tag == "DW_TAG_enumeration_type":
            self._enum(to, name)

    def _enum(self, die: DIE, name: str) -> None:
        values = {name_of(c): int(c.attributes["DW_AT_const_value"].value) for c in die.iter_children()}
        self.enumerators.update(values)
        if name:
            self.enums[name] = values

    def _members(self, die: DIE, inside: str, base: int) -> Iterator[list[Any]]:
        for member in die.iter_children():
            if member.tag != "DW_TAG_member":
                continue
            to = type_of(member)
            assert to is not None
            where = member.attributes.get("DW_AT_data_member_location")
            offset = base + (int(where.value) if where else 0)
            nested = RECORDS.get(to.tag) if not name_of(to) and to.offset not in self._names else None
            name = name_of(member)
            path = f"{inside}{name}" if name else f"{inside}<{nested}>"
            yield [path, offset, size_of(to), nested or self.type(to), nested or self.type(to, plain=True)]
            if nested:
                yield from self._members(to, f"{path}." if name else inside, offset)

    def type(self, die: DIE | None, plain: bool = False) -> str:
        """A type as C writes it, without a name; plain: typedefs followed to their end."""
        if die is None:
            return "void"
        match die.tag:
            case "DW_TAG_base_type":
                return {"_Bool": "bool"}.get(name_of(die), name_of(die))
            case "DW_TAG_typedef":
                return self.type(type_of(die), plain) if plain else name_of(die)
            case "DW_TAG_structure_type" | "DW_TAG_union_type":
                name = self._names.get(die.offset, name_of(die))
                return f"{RECORDS[die.tag]} {name}" if plain else name
            case "DW_TAG_enumeration_type":
                return f"enum:{8 * size_of(die)}" if plain else name_of(die)
            case "DW_TAG_const_type":
                return f"const {self.type(type_of(die), plain)}"
            case "DW_TAG_pointer_type":
                to = type_of(die)
                if to is not None and to.tag == "DW_TAG_subroutine_type":
                    return f"{self._returns(to, plain)}(*)({', '.join(self._parameters(to, plain))})"
                inner = self.type(to, plain)
                return f"{inner}*" if inner.endswith("*") else f"{inner} *"
            case "DW_TAG_array_type":
                bounds = [c.attributes["DW_AT_upper_bound"].value + 1 for c in die.iter_children()]
                return f"{self.type(type_of(die), plain)} {''.join(f'[{n}]' for n in bounds)}"
            case _:
                raise ValueError(f"{die.tag} in a plugin's table")

    def _returns(self, die: DIE, plain: bool) -> str:
        name = self.type(type_of(die), plain)
        return name if name.endswith("*") else f"{name} "

    def _parameters(self, die: DIE, plain: bool) -> Iterator[str]:
        children = list(die.iter_children())
        if not children:
            yield "void"
        for child in children:
            yield "..." if child.tag == "DW_TAG_unspecified_parameters" else self.type(type_of(child), plain)

    def _numbers(self, elf: ELFFile) -> None:
        for symbol in elf.get_section_by_name(".symtab").iter_symbols():
            if symbol.name.startswith(NUMBER):
                data = elf.get_section(symbol["st_shndx"]).data()
                at = symbol["st_value"]
                self.numbers[symbol.name.removeprefix(NUMBER)] = int.from_bytes(
                    data[at : at + 8], "little", signed=True
                )


RECORDS = {"DW_TAG_structure_type": "struct", "DW_TAG_union_type": "union"}
NUMBER = "number_of_"  # variables of the unit: macros, alignments


def measure(header: Path, options: list[str]) -> tuple[Unit, list[str]]:
    """What a header declares, and the names of versions in it, in its order."""
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "unit.c"
        names = list(dict.fromkeys(re.findall(r"\bnccl\w+_v\d+_t\b", header.read_text())))
        lines = [f'#include "{header.absolute()}"']
        lines += [f"const long long {NUMBER}{name} = _Alignof({name});" for name in sorted(names)]
        unit.write_text("\n".join(lines) + "\n")
        command = ["gcc", "-std=c11", "-g", "-gdwarf-4", "-fno-eliminate-unused-debug-types", *options]
        done = subprocess.run(
            [*command, "-c", str(unit), "-o", f"{folder}/unit.o"], capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            known = "redefinition" in done.stderr or "conflicting types" in done.stderr
            hint = "psm_abi/*.h has its types already: take them out of psmkit/plugins/abi.json, and run make setup"
            sys.exit(f"{done.stderr}cannot measure {header}: {hint if known else 'it does not compile'}")
        return Unit(Path(folder) / "unit.o"), names


def parameters(facts: Facts, plain: str, struct: str, slot: str) -> list[str]:
    """The parameters of a slot in a header without comments; none if they are those of the version before."""
    body = re.search(rf"{{([^{{}}]*(?:{{[^{{}}]*(?:{{[^{{}}]*}}[^{{}}]*)*}}[^{{}}]*)*)}}\s*{struct}\s*;", plain)
    found = re.search(rf"\(\s*\*\s*{slot}\s*\)\s*\(([^()]*)\)", body[1]) if body else None
    words = [re.findall(r"\w+", word)[-1] for word in found[1].split(",")] if found else []
    stem, before = struct.rpartition("_v")[0], []
    for name, entry in facts["structs"].items():
        for row in entry["members"] if name.rpartition("_v")[0] == stem else ():
            if row[0] == slot and len(row) > 5 and "parameters" in row[5]:
                before = row[5]["parameters"]
    return [] if words in (["void"], before) else words


def record(facts: Facts, release: str | None, header: Path, options: list[str]) -> list[str]:
    """Add to the facts what a header declares and they do not have: the names of what is new."""
    seen, names = measure(header, options)
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.DOTALL)
    releases = [release, release]
    new = [name for name in names if name not in facts["structs"] and name not in facts["typedefs"]]
    for name in new:
        if name not in seen.structs:
            facts["typedefs"][name] = [[*releases, seen.typedefs[name]]]
            continue
        struct = seen.structs[name]
        for row in struct["members"]:
            if words := parameters(facts, plain, name, row[0]):
                row.append({"parameters": words})
        layout = {"kind": struct["kind"], "size": struct["size"], "alignment": seen.numbers[name], "headers": releases}
        facts["structs"][name] = {**layout, "source": "?", "note": "?", "members": struct["members"]}
        stem, _, version = name.removesuffix("_t").rpartition("_v")
        for tables in facts["tables"].values():
            last = list(tables.values())[-1]
            if last["struct"].rpartition("_v")[0] == stem:
                symbol = f"{last['symbol'].rpartition('_v')[0]}_v{version}"
                tables[version] = {"symbol": symbol, "struct": name, **({} if release else {"coming": True})}
                if release:
                    look_for(facts, release, symbol)
    return new


def look_for(facts: Facts, release: str, symbol: str) -> None:
    """Let a release look for a symbol. A new release gets the row of the one before it, and a "?": it is to be checked."""

    def number(name: str) -> list[int]:
        return [int(part) for part in name.split(".")]

    lookups = facts["lookups"]
    if release not in lookups:
        before = max((one for one in lookups if number(one) < number(release)), key=number)
        lookups[release] = [*lookups[before], "?"]
    if symbol not in lookups[release]:
        lookups[release].insert(0, symbol)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sheet = json.loads(FACTS.read_text())
    added = record(sheet, None if sys.argv[1] == "coming" else sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    FACTS.write_text(text(sheet))
    print(*added, sep="\n")
