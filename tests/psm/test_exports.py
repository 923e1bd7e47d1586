"""libpsm exports what its headers declare, and nothing else."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from tests.csrc.psm import ground

HEADERS = sorted((ground.PSM / "include" / "psm").glob("*.h"))


@pytest.fixture(scope="module")
def exports() -> ModuleType:
    spec = importlib.util.spec_from_file_location("psm_exports", ground.PSM / "exports.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def library(installed: Path) -> ELFFile:
    with (installed / "lib" / "libpsm.so").open("rb") as file:
        yield ELFFile(file)


def symbols(library: ELFFile) -> tuple[set[str], set[str]]:
    """Defined and undefined dynamic symbols."""
    table = library.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    defined, undefined = set(), set()
    for symbol in table.iter_symbols():
        if (symbol.name and symbol["st_info"]["type"] != "STT_OBJECT") or symbol["st_shndx"] == "SHN_UNDEF":
            (undefined if symbol["st_shndx"] == "SHN_UNDEF" else defined).add(symbol.name)
    return defined - {""}, undefined - {""}


def test_every_declared_function_is_exported_and_nothing_else(library: ELFFile, exports: ModuleType) -> None:
    declared = {name for header in HEADERS for name in exports.functions(header.read_text())}
    assert len(declared) > 40
    assert symbols(library)[0] == declared


def test_it_needs_no_function_that_it_was_to_define(library: ELFFile) -> None:
    assert [name for name in symbols(library)[1] if re.match(r"_?psm", name)] == []


def test_all_symbols_have_the_version_of_the_library(library: ELFFile, exports: ModuleType) -> None:
    definitions = library.get_section_by_name(".gnu.version_d")
    assert isinstance(definitions, GNUVerDefSection)
    names = {definition["vd_ndx"]: next(auxiliaries).name for definition, auxiliaries in definitions.iter_versions()}
    table, versions = library.get_section_by_name(".dynsym"), library.get_section_by_name(".gnu.version")
    assert isinstance(table, SymbolTableSection) and isinstance(versions, GNUVerSymSection)
    for symbol, version in zip(table.iter_symbols(), versions.iter_symbols(), strict=True):
        if symbol["st_shndx"] not in ("SHN_UNDEF", "SHN_ABS") and symbol.name:
            assert names[version["ndx"]] == exports.NODE, symbol.name


def test_it_is_linked_with_the_c_library_alone(library: ELFFile) -> None:
    dynamic = library.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    assert needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6", "librt.so.1", "ld-linux-x86-64.so.2"}
    assert [tag.soname for tag in dynamic.iter_tags("DT_SONAME")] == ["libpsm.so"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("PSM_API int f(void);", ["f"]),
        ("PSM_API const char *g(int (*h)(int), int x);\nint hidden(void);", ["g"]),
        ("/* PSM_API int no(void); */\nPSM_API psm_status\nlong_one(const struct s *a,\n  int b);", ["long_one"]),
        ("#define PSM_API visible\n", []),
    ],
)
def test_declarations_are_found(exports: ModuleType, text: str, names: list[str]) -> None:
    assert exports.functions(text) == names


def test_a_mark_on_something_else_is_refused(exports: ModuleType) -> None:
    with pytest.raises(ValueError, match="no function"):
        exports.functions("PSM_API extern int variable;")
