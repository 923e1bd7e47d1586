"""The private tables that a statically linked CUDA 11.0 runtime calls: contexts, modules, what is kept with a context."""

from __future__ import annotations

import ctypes
import struct
import uuid
from typing import Any

import pytest

from psmkit.lab.cuda import Face

from .conftest import Child, emulated

pytestmark = emulated

RUNTIME = "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9"
CALLBACKS = "a094798c-2e74-2e74-93f2-0800200c0a66"
STORAGE = "c693336e-1121-df11-a8c3-68f355d89593"
TOOLS = "42d85a81-23f6-cb47-8298-f6e78a3aecdc"
P = ctypes.c_void_p
INVALID_VALUE = 1
INVALID_CONTEXT = 201


def table(drv: Face, name: str) -> Any:
    """The table as an array of pointers."""
    found = drv.new("const void **")
    drv.ok.cuGetExportTable(found, drv.new("CUuuid *", {"bytes": uuid.UUID(name).bytes}))
    return ctypes.cast(int(drv.ffi.cast("uintptr_t", found[0])), ctypes.POINTER(P))


@pytest.mark.parametrize(("name", "size"), [(RUNTIME, 80), (CALLBACKS, 56), (TOOLS, 32)])
def test_a_table_begins_with_its_size(drv: Face, name: str, size: int) -> None:
    assert table(drv, name)[0] == size


def test_the_context_of_a_device_is_its_primary_one(drv: Face) -> None:
    slot = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(P), ctypes.c_int)(table(drv, RUNTIME)[2])
    context, retained = P(), drv.new("CUcontext *")
    assert slot(ctypes.byref(context), 1) == 0
    drv.ok.cuDevicePrimaryCtxRetain(retained, 1)
    try:
        assert context.value == int(drv.ffi.cast("uintptr_t", retained[0]))
    finally:
        drv.ok.cuDevicePrimaryCtxRelease_v2(1)
    assert slot(ctypes.byref(context), 64) == 101
    assert slot(None, 0) == INVALID_VALUE


def test_a_module_of_a_registered_fat_binary_has_what_is_asked_for(rt: Face, drv: Face) -> None:
    rt.ok.cudaFree(rt.ffi.NULL)
    image = ctypes.create_string_buffer(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 32) + bytes(32))
    wrapper = ctypes.create_string_buffer(struct.pack("<IIQQ", 0x466243B1, 1, ctypes.addressof(image), 0))
    slot = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(P), P, P, P, ctypes.c_size_t)(table(drv, RUNTIME)[6])
    made = P()
    assert slot(ctypes.byref(made), ctypes.addressof(wrapper), None, None, 0) == 0
    module = drv.ffi.cast("CUmodule", made.value)
    function = drv.new("CUfunction *")
    drv.ok.cuModuleGetFunction(function, module, b"a_kernel_in_a_compressed_image")
    # A module that is loaded by its name in the API has what its image shows.
    other = drv.new("CUmodule *")
    drv.ok.cuModuleLoadData(other, drv.ffi.cast("void *", ctypes.addressof(wrapper)))
    assert drv.cuModuleGetFunction(function, other[0], b"a_kernel_in_a_compressed_image") == 500
    drv.ok.cuModuleUnload(module)
    drv.ok.cuModuleUnload(other[0])


def test_rooms_for_callbacks_have_a_size(drv: Face) -> None:
    for place in (2, 6):
        slot = ctypes.CFUNCTYPE(None, ctypes.POINTER(P), ctypes.POINTER(ctypes.c_size_t))(table(drv, CALLBACKS)[place])
        room, size = P(), ctypes.c_size_t()
        slot(ctypes.byref(room), ctypes.byref(size))
        assert room.value and size.value


def test_what_is_kept_with_a_context_is_found_there_and_nowhere_else(drv: Face) -> None:
    slots = table(drv, STORAGE)
    keep = ctypes.CFUNCTYPE(ctypes.c_int, P, P, P, P)(slots[0])
    forget = ctypes.CFUNCTYPE(ctypes.c_int, P, P)(slots[1])
    get = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(P), P, P)(slots[2])
    primary = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(P), ctypes.c_int)(table(drv, RUNTIME)[2])
    value, one, two, key = P(), P(), P(), 0x77
    assert (primary(ctypes.byref(one), 0), primary(ctypes.byref(two), 1)) == (0, 0)
    first, second = one.value, two.value
    assert get(ctypes.byref(value), first, key) == INVALID_VALUE
    assert keep(first, key, 0xAAA, None) == 0
    assert keep(second, key, 0xBBB, None) == 0
    assert (get(ctypes.byref(value), first, key), value.value) == (0, 0xAAA)
    assert keep(first, key, 0xCCC, None) == 0
    assert (get(ctypes.byref(value), first, key), value.value) == (0, 0xCCC)
    assert get(ctypes.byref(value), first, key + 1) == INVALID_VALUE
    # 0: of the current context.
    before = drv.new("CUcontext *")
    drv.ok.cuCtxGetCurrent(before)
    drv.ok.cuCtxSetCurrent(drv.ffi.cast("CUcontext", second))
    assert (get(ctypes.byref(value), None, key), value.value) == (0, 0xBBB)
    drv.ok.cuCtxSetCurrent(before[0])
    assert forget(first, key) == 0 and forget(first, key) == INVALID_VALUE
    assert (get(ctypes.byref(value), second, key), value.value) == (0, 0xBBB)
    assert forget(second, key) == 0
    assert keep(0x1000, key, 0xAAA, None) == INVALID_CONTEXT
    assert get(ctypes.byref(value), 0x1000, key) == forget(0x1000, key) == INVALID_CONTEXT


def test_functions_that_are_not_provided_are_refused_and_told_once(child: Child) -> None:
    others = [(RUNTIME, (1, 3, 4, 5, 8, 9)), (CALLBACKS, (1, 3, 4, 5)), (STORAGE, (3,)), (TOOLS, (1, 2, 3))]
    done = child(
        f"""
        import ctypes, uuid
        drv = Face("cuda")
        drv.ok.cuInit(0)
        for name, places in {others}:
            found = drv.new("const void **")
            drv.ok.cuGetExportTable(found, drv.new("CUuuid *", {{"bytes": uuid.UUID(name).bytes}}))
            table = ctypes.cast(int(drv.ffi.cast("uintptr_t", found[0])), ctypes.POINTER(ctypes.c_void_p))
            for place in places:
                print("answer", ctypes.CFUNCTYPE(ctypes.c_int)(table[place])())
        """,
        env={"PSM_LOG": "warn"},
    )
    assert done.stdout.count("answer 801\n") == sum(len(places) for _, places in others)
    assert done.stdout.count("an unsupported private function of the driver was called") == 1


def test_other_tables_are_not_there_which_is_told_once(child: Child) -> None:
    done = child(
        """
        drv = Face("cuda")
        found = drv.new("const void **")
        for byte in 1, 2:
            code = drv.cuGetExportTable(found, drv.new("CUuuid *", {"bytes": bytes([byte]) * 16}))
            print("answer", code, found[0] == drv.ffi.NULL)
        """,
        env={"PSM_LOG": "warn"},
    )
    assert done.stdout.count("answer 500 True\n") == 2
    assert done.stdout.count("private driver table") == 1
    assert f"private driver table {'01' * 16} was requested" in done.stdout
