"""Driver functions by name: version, default stream, status."""

from __future__ import annotations

from typing import Any

import pytest

from psmkit.lab.cuda import Face

from .conftest import Child, differs, emulated, number

INVALID_VALUE = 1
FOUND, NOT_FOUND, TOO_OLD = 0, 1, 2
LEGACY, PER_THREAD = 1, 2


def ask(rt: Face, symbol: bytes, version: int, flags: int = 0) -> tuple[int, int, Any]:
    pointer, status = rt.new("void **"), rt.new("enum cudaDriverEntryPointQueryResult *")
    code = rt.cudaGetDriverEntryPointByVersion(symbol, pointer, version, flags, status)
    return code, status[0], pointer[0]


def address(drv: Face, name: str) -> int:
    return int(drv.ffi.cast("uintptr_t", drv.ffi.addressof(drv._lib, name)))


@pytest.mark.parametrize(
    ("symbol", "version", "name"),
    [
        ("cuCtxCreate", 3010, "cuCtxCreate"),
        ("cuCtxCreate", 3020, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11030, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, "cuCtxCreate_v4"),
        ("cuGraphInstantiate", 10000, "cuGraphInstantiate"),
        ("cuGraphInstantiate", 12000, "cuGraphInstantiate_v2"),
        ("cuGraphInstantiateWithFlags", 12000, "cuGraphInstantiateWithFlags"),
        ("cuDeviceGetUuid", 11030, "cuDeviceGetUuid"),
        ("cuDeviceGetUuid", 12000, "cuDeviceGetUuid_v2"),
        ("cuGetProcAddress", 11030, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
    ],
)
def test_version_picks_the_abi_that_the_caller_was_built_for(
    rt: Face, drv: Face, symbol: str, version: int, name: str
) -> None:
    code, status, pointer = ask(rt, symbol.encode(), version)
    assert (code, status) == (0, FOUND)
    assert number(rt, pointer) == address(drv, name)
    ours, result = drv.new("void **"), drv.new("CUdriverProcAddressQueryResult *")
    drv.ok.cuGetProcAddress_v2(symbol.encode(), ours, version, 0, result)
    assert (number(drv, ours[0]), result[0]) == (address(drv, name), FOUND)


def test_pointer_can_be_called(rt: Face) -> None:
    _, _, pointer = ask(rt, b"cuDriverGetVersion", 12000)
    version = rt.new("int *")
    assert rt.ffi.cast("int (*)(int *)", pointer)(version) == 0
    assert version[0] >= 12000


def test_symbol_that_is_not_there_succeeds_with_its_status(rt: Face, drv: Face) -> None:
    code, status, pointer = ask(rt, b"cuNoSuchFunction", 12000)
    assert (code, status, pointer) == (0, NOT_FOUND, rt.ffi.NULL)
    out = drv.new("void **", drv.ffi.cast("void *", 1))
    result = drv.new("CUdriverProcAddressQueryResult *")
    assert drv.cuGetProcAddress_v2(b"cuNoSuchFunction", out, 12000, 0, result) == 0
    assert (out[0], result[0]) == (drv.ffi.NULL, NOT_FOUND)
    assert drv.cuGetProcAddress_v2(b"cuNoSuchFunction", out, 12000, 0, drv.ffi.NULL) == 0


def test_first_form_of_get_proc_address_tells_by_its_result(drv: Face) -> None:
    out = drv.new("void **")
    assert drv.cuGetProcAddress(b"cuNoSuchFunction", out, 11030, 0) == 500
    assert drv.cuGetProcAddress(b"cuInit", out, 11030, 0) == 0
    assert number(drv, out[0]) == address(drv, "cuInit")


def test_version_before_the_function_existed_is_not_sufficient(rt: Face) -> None:
    assert ask(rt, b"cuMemCreate", 10010)[:2] == (0, TOO_OLD)
    assert ask(rt, b"cuMemCreate", 10020)[:2] == (0, FOUND)


def test_runtime_functions_are_no_driver_functions(rt: Face) -> None:
    assert ask(rt, b"cudaMalloc", 12000)[:2] == (0, NOT_FOUND)


def test_flags_choose_the_default_stream(rt: Face, drv: Face) -> None:
    plain, legacy, own = (ask(rt, b"cuMemcpyAsync", 12000, flags)[2] for flags in (0, LEGACY, PER_THREAD))
    assert number(rt, plain) == number(rt, legacy) == address(drv, "cuMemcpyAsync")
    assert number(rt, own) == address(drv, "cuMemcpyAsync_ptsz")
    # Where there is no variant, the plain one.
    assert number(rt, ask(rt, b"cuInit", 12000, PER_THREAD)[2]) == address(drv, "cuInit")


def test_code_built_for_the_per_thread_stream_gets_its_variant_by_default(rt: Face, drv: Face) -> None:
    pointer = rt.new("void **")
    assert rt.cudaGetDriverEntryPointByVersion_ptsz(b"cuMemcpyAsync", pointer, 12000, 0, rt.ffi.NULL) == 0
    assert number(rt, pointer[0]) == address(drv, "cuMemcpyAsync_ptsz")
    assert rt.cudaGetDriverEntryPointByVersion_ptsz(b"cuMemcpyAsync", pointer, 12000, LEGACY, rt.ffi.NULL) == 0
    assert number(rt, pointer[0]) == address(drv, "cuMemcpyAsync")


@differs("of a runtime that is newer than its driver the answer is 1")
def test_entry_point_without_a_version_is_that_of_the_runtime(rt: Face, drv: Face) -> None:
    pointer, status = rt.new("void **"), rt.new("enum cudaDriverEntryPointQueryResult *")
    rt.ok.cudaGetDriverEntryPoint(b"cuCtxCreate", pointer, 0, status)
    assert (number(rt, pointer[0]), status[0]) == (address(drv, "cuCtxCreate_v4"), FOUND)


@differs("unknown flags and an empty name are taken")
@pytest.mark.parametrize(
    ("symbol", "version", "flags"),
    [(b"cuInit", 12000, 3), (b"cuInit", 12000, 8), (b"cuInit", 99000, 0), (b"", 12000, 0)],
)
def test_wrong_arguments_are_an_invalid_value(rt: Face, symbol: bytes, version: int, flags: int) -> None:
    assert ask(rt, symbol, version, flags)[0] == INVALID_VALUE


@differs("NULL is followed, and the process dies")
def test_null_is_an_invalid_value(rt: Face, drv: Face) -> None:
    assert rt.cudaGetDriverEntryPoint(rt.ffi.NULL, rt.new("void **"), 0, rt.ffi.NULL) == INVALID_VALUE
    assert drv.cuGetProcAddress_v2(b"cuInit", drv.ffi.NULL, 12000, 0, drv.ffi.NULL) == INVALID_VALUE


@emulated
def test_older_driver_of_the_topology_hides_what_came_later(child: Child, tmp_path: Any) -> None:
    file = tmp_path / "old.toml"
    file.write_text('gpus = 1\ncuda = "12.2"\n')
    done = child(
        """
        p, s = new('void **'), new('enum cudaDriverEntryPointQueryResult *')
        for name, version in ((b'cuInit', 12020), (b'cuInit', 12030), (b'cuCtxCreate', 12020), (b'cuCtxFromGreenCtx', 12020)):
            print(rt.cudaGetDriverEntryPointByVersion(name, p, version, 0, s), s[0])
        v = new('int *'); ok.cudaDriverGetVersion(v); print(v[0])
        """,
        env={"PSM_TOPOLOGY": str(file)},
    )
    first, newer, ctx, green, version = done.stdout.splitlines()
    assert (first, newer.split()[0], ctx, green, version) == ("0 0", "1", "0 0", "0 1", "12020")


@emulated
def test_private_tables_are_not_there(rt: Face, drv: Face) -> None:
    table, id_ = rt.new("const void **", rt.ffi.cast("void *", 1)), rt.new("cudaUUID_t *")
    assert rt.cudaGetExportTable(table, id_) == 500
    assert table[0] == rt.ffi.NULL
    assert drv.cuGetExportTable(drv.new("const void **"), drv.new("CUuuid *")) == 500
