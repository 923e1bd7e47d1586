"""Process-local fields of structs that cross, out of debug information."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.audit import AuditError, types_of
from psmkit.model.errors import InputError
from psmkit.model.structs import Struct
from tests.audit.build import CUDA, library

INFO = "struct p2pConnectInfo { int rank; %s; };\n"


def _of(path: Path, name: str, *asked: str) -> Struct:
    structs, _ = types_of(path, asked)
    return next(one for one in structs if one.plain == name)


@pytest.mark.parametrize(
    ("member", "path", "kind"),
    [
        ("void *devShm", "devShm", "a pointer"),
        ("int (*call)(void)", "call", "a pointer to a function"),
        ("char *const names[4]", "names[4]", "a pointer"),
        ("cudaStream_t stream", "stream", "a stream"),
        ("cudaEvent_t events[8]", "events[8]", "an event"),
        ("struct CUevent_st *bare", "bare", "an event"),
        ("CUmemGenericAllocationHandle memory", "memory", "a cuMem handle"),
        ("CUdeviceptr address", "address", "a device address"),
        ("pthread_mutex_t lock", "lock", "a mutex or another lock"),
        ("pthread_t thread", "thread", "a thread"),
        ("uintptr_t base", "base", "an address"),
        ("int fd", "fd", "a file descriptor"),
        ("int importFd", "importFd", "a file descriptor"),
        ("struct { struct { long a; union { long b; void *c; } u; } in[2]; } out", "out.in[2].u.c", "a pointer"),
        ("union { long number; void *inside; }", "inside", "a pointer"),
        ("const volatile struct inner pair", "pair.stream", "a stream"),
        ("alias other", "other.stream", "a stream"),
    ],
)
@pytest.mark.parametrize("name", ["lib.so", "unit.o"])
def test_a_local_field_is_found(tmp_path: Path, member: str, path: str, kind: str, name: str) -> None:
    source = (
        f"#include <pthread.h>\n#include <stdint.h>\n{CUDA}struct inner {{ long fine; cudaStream_t stream; }};\n"
        f"typedef struct inner alias;\n{INFO % member}struct p2pConnectInfo one;\n"
    )
    found = _of(library(tmp_path, source, name=name), "p2pConnectInfo")
    assert [(field.path, field.kind) for field in found.local] == [(path, kind)]


@pytest.mark.parametrize("name", ["lib.so", "unit.o"])
@pytest.mark.parametrize("debug", ["-gdwarf-4", "-gdwarf-5"])
def test_a_struct_and_its_fields_have_places(tmp_path: Path, name: str, debug: str) -> None:
    source = f"{CUDA}\nstruct p2pConnectInfo {{\n  int rank;\n  cudaStream_t stream;\n}} one;\n"
    path = library(tmp_path, source, name=name, debug=debug)
    found = _of(path, "p2pConnectInfo")
    first = source[: source.index("struct p2pConnectInfo")].count("\n") + 1
    assert (found.file, found.line) == (str(tmp_path / f"{name}.c"), first)
    assert [field.line for field in found.local] == [first + 2]


def test_compressed_debug_information_is_read(tmp_path: Path) -> None:
    source = f"{CUDA}{INFO % 'cudaStream_t stream'}struct p2pConnectInfo one;\n"
    found = _of(library(tmp_path, source, "-gz=zlib"), "p2pConnectInfo")
    assert found.local and found.line


def test_numbers_and_bytes_are_fine(tmp_path: Path) -> None:
    fields = "unsigned long offset; char name[16]; unsigned char blob[64]; uintptr_t offset_in_page; int steps[4]; struct { long a; } pair"
    found = _of(
        library(tmp_path, f"#include <stdint.h>\n{INFO % fields}struct p2pConnectInfo one;\n"), "p2pConnectInfo"
    )
    assert found.local == ()
    assert [field.path for field in found.opaque] == ["name", "blob"]


def test_a_marked_struct_is_found_by_its_mark(tmp_path: Path) -> None:
    source = (
        "struct mine { void *p; };\ntypedef struct mine psm_shareable_mine;\nstruct mine one; psm_shareable_mine two;\n"
    )
    found = _of(library(tmp_path, source), "mine")
    assert found.basis == "PSM_SHAREABLE" and [field.path for field in found.local] == ["p"]


def test_a_struct_that_the_user_names_is_found(tmp_path: Path) -> None:
    path = library(tmp_path, "struct mine { void *p; } one;\ntypedef struct { void *q; } bare; bare two;\n")
    assert _of(path, "mine", "mine").basis == "--wire"
    assert [field.path for field in _of(path, "bare", "bare").local] == ["q"]
    assert types_of(path, ["absent"])[1] == ["absent"]


def test_a_type_that_is_only_declared_is_said_to_be_unknown(tmp_path: Path) -> None:
    other = "class Hidden;\nstruct p2pConnectInfo { int rank; void *p; };\nstruct p2pConnectInfo one;\n"
    found = _of(library(tmp_path, other.replace("class Hidden;\n", "")), "p2pConnectInfo")
    assert found.unknown == ()


# ---- files that are none ----


def _said(path: Path) -> str:
    with pytest.raises((AuditError, InputError)) as caught:
        types_of(path)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(str(path))
    return text


def test_a_stripped_library_is_one_line(tmp_path: Path) -> None:
    assert "no debug information" in _said(library(tmp_path, "int one;\n", debug="-g0"))


def test_a_text_and_a_missing_file_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    assert "not an ELF file" in _said(tmp_path / "text.so")
    assert "No such file" in _said(tmp_path / "missing.so")
    assert "not a file" in _said(tmp_path)


def test_a_linker_script_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "libpsm.so").write_text("INPUT(libpsm.so.0)")
    assert "give the library that it names" in _said(tmp_path / "libpsm.so")


def test_a_library_of_32_bits_is_one_line(tmp_path: Path) -> None:
    path = library(tmp_path, "int one;\n")
    data = bytearray(path.read_bytes())
    data[4] = 1
    path.write_bytes(data)
    assert "32-bit" in _said(path)
    data[4:6] = b"\x02\x02"
    path.write_bytes(data)
    assert "big-endian" in _said(path)


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_truncated_library_is_one_line(tmp_path: Path, part: int) -> None:
    path = library(tmp_path, f"{INFO % 'void *p'}struct p2pConnectInfo one;\n")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * part // 4])
    assert _said(path)


def test_a_library_for_another_machine_is_read(tmp_path: Path) -> None:
    path = library(tmp_path, f"{INFO % 'void *p'}struct p2pConnectInfo one;\n")
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")  # AArch64
    path.write_bytes(data)
    assert [field.path for field in _of(path, "p2pConnectInfo").local] == ["p"]


def test_of_two_types_of_one_name_each_has_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "two.c").write_text("struct setupReq { void *p; long more; };\nstruct setupReq two;\n")
    source = f'#include "{tmp_path}/one.h"\nstruct setupReq one;\n'
    (tmp_path / "one.h").write_text("\n\nstruct setupReq { void *q; };\n")
    path = library(tmp_path, source, str(tmp_path / "two.c"))
    structs, _ = types_of(path, ["setupReq"])
    (found,) = (one for one in structs if one.plain == "setupReq")
    places = {8: (str(tmp_path / "one.h"), 3), 24: (str(tmp_path / "two.c"), 1), 16: (str(tmp_path / "two.c"), 1)}
    assert (found.file, found.line) == places[found.size]


def test_a_type_that_a_fork_moved_to_another_source_is_found(tmp_path: Path) -> None:
    path = library(tmp_path, "struct connectMap { void *p; } one;\n")
    assert [field.path for field in _of(path, "connectMap").local] == ["p"]
