"""The emulated libraries load, export what the real ones export, and say what they are."""

from __future__ import annotations

import pytest
from elftools.elf.elffile import ELFFile

from psmkit.lab.cuda import LIBRARIES, Face, folder, functions


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_exports_every_known_name(library: str) -> None:
    with (folder() / LIBRARIES[library]).open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        exported = {s.name for s in symbols.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"}
    kind = {"cuda": "drv", "nvml": "nvml"}.get(library, "rt")
    for f in functions():
        if f.library == kind and (kind != "rt" or int(library.removeprefix("cudart")) in f.versions):
            assert f.name in exported
            if f.default_stream:
                assert f"{f.name}_{f.default_stream}" in exported


@pytest.mark.parametrize("library", LIBRARIES)
def test_face_loads_library(library: str) -> None:
    assert Face(library).path.exists()
