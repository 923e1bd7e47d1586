"""Copies in two and three dimensions, runtime and driver, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import DEFAULT, FROM_DEVICE, ON_DEVICE, TO_DEVICE, Buffers
from tests.hostcuda.conftest import differs, driver_stream, emulated, needs_devices

INVALID_VALUE, INVALID_PITCH, INVALID_DIRECTION, INVALID_DEVICE, NOT_SUPPORTED = 1, 12, 21, 101, 801
HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4
MEMORY = st.sampled_from(["pageable", "pinned", "device"])

Bytes = npt.NDArray[np.uint8]


def pattern(n: int, seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8)


@st.composite
def planes(draw: st.DrawFn) -> dict[str, Any]:
    """A rectangle and two planes that hold it."""
    width, height = draw(st.integers(1, 90)), draw(st.integers(1, 12))
    return {
        "width": width,
        "height": height,
        "source": draw(MEMORY),
        "target": draw(MEMORY),
        "spitch": width + draw(st.sampled_from([0, 0, 1, 38])),
        "dpitch": width + draw(st.sampled_from([0, 0, 3, 70])),
        "asynchronous": draw(st.booleans()),
    }


@settings(max_examples=25, deadline=None)
@given(p=planes())
def test_copy_2d_moves_the_rectangle_and_nothing_else(rt: Face, p: dict[str, Any]) -> None:
    with Buffers(rt) as b:
        width, height = p["width"], p["height"]
        data, before = pattern(p["spitch"] * height, 1), pattern(p["dpitch"] * height, 2)
        src, dst = b.of(p["source"], data.size), b.of(p["target"], before.size)
        b.fill(src, data.tobytes())
        b.fill(dst, before.tobytes())
        shape = (b.at(dst), p["dpitch"], b.at(src), p["spitch"], width, height, DEFAULT)
        if p["asynchronous"]:
            stream = b.stream()
            rt.ok.cudaMemcpy2DAsync(*shape, stream)
            rt.ok.cudaStreamSynchronize(stream)
        else:
            rt.ok.cudaMemcpy2D(*shape)
        want = before.reshape(height, p["dpitch"])
        want[:, :width] = data.reshape(height, p["spitch"])[:, :width]
        assert b.read(dst, before.size) == want.tobytes()


@differs("a pitch that is too large is an invalid value: 1")
def test_copy_2d_checks_pitch_kind_and_bounds(rt: Face) -> None:
    with Buffers(rt) as b:
        one, other = b.at(b.device(1000)), b.at(b.device(1000))
        assert rt.cudaMemcpy2D(one, 9, other, 10, 10, 10, DEFAULT) == INVALID_PITCH
        assert rt.cudaMemcpy2D(one, 10, other, 9, 10, 10, DEFAULT) == INVALID_PITCH
        assert rt.cudaMemcpy2D(one, 2**31, other, 10, 10, 10, DEFAULT) == INVALID_PITCH
        assert rt.cudaMemcpy2D(one, 10, other, 10, 10, 10, 7) == INVALID_DIRECTION
        assert rt.cudaMemcpy2D(one, 10, other, 10, 10, 101, DEFAULT) == INVALID_VALUE
        assert rt.cudaMemcpy2D(rt.ffi.NULL, 10, other, 10, 10, 10, DEFAULT) == INVALID_VALUE
        assert rt.cudaMemcpy2DAsync(one, 9, other, 10, 10, 10, DEFAULT, rt.ffi.NULL) == INVALID_PITCH
        assert rt.cudaMemcpy2D(one, 10, other, 10, 0, 10, DEFAULT) == 0
        assert rt.cudaMemcpy2D(one, 10, other, 10, 10, 0, DEFAULT) == 0


def test_copy_2d_ends_with_the_last_row_not_with_its_padding(rt: Face) -> None:
    with Buffers(rt) as b:  # 3 rows of 10 in a pitch of 40: 90 bytes
        src, dst = b.device(90), b.pageable(90)
        data = pattern(90, 3)
        b.fill(src, data.tobytes())
        rt.ok.cudaMemcpy2D(b.at(dst), 40, b.at(src), 40, 10, 3, FROM_DEVICE)
        got = np.frombuffer(b.read(dst, 90), np.uint8)
        assert all((got[r : r + 10] == data[r : r + 10]).all() for r in (0, 40, 80))


def test_staged_rectangle_keeps_its_rows(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(1), b.pageable(4000), b.device(4000)
        data = pattern(4000, 4)
        b.host(src, 4000)[:] = data.tobytes()
        gate = b.gate(stream)
        rt.ok.cudaMemcpy2DAsync(b.at(dst), 50, b.at(src), 40, 40, 80, TO_DEVICE, stream)
        rt.ok.cudaMemcpy2DAsync(b.at(dst + 40), 50, b.at(src + 3200), 10, 2, 80, TO_DEVICE, stream)
        b.host(src, 4000)[:] = bytes(4000)
        gate.open()
        rt.ok.cudaStreamSynchronize(stream)
        got = np.frombuffer(b.read(dst, 4000), np.uint8).reshape(80, 50)
        assert (got[:, :40] == data[:3200].reshape(80, 40)).all()
        assert (got[:, 40:42] == data[3200:].reshape(80, 10)[:, :2]).all()


# ---- three dimensions


@st.composite
def boxes(draw: st.DrawFn) -> dict[str, Any]:
    """A box and two spaces (depth, rows, pitch) that hold it at some position (z, y, x)."""
    extent = (draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 40)))
    box: dict[str, Any] = {"extent": extent, "asynchronous": draw(st.booleans())}
    for side in ("source", "target"):
        at = tuple(draw(st.integers(0, 3)) for _ in range(3))
        box[side] = draw(MEMORY)
        box[side + "_at"] = at
        box[side + "_space"] = tuple(e + a + draw(st.integers(0, 3)) for e, a in zip(extent, at, strict=True))
    return box


def moved(data: Bytes, before: Bytes, box: dict[str, Any]) -> Bytes:
    """What the target holds after the copy."""
    want = before.copy().reshape(box["target_space"])
    spots = [
        tuple(slice(a, a + e) for a, e in zip(box[side + "_at"], box["extent"], strict=True))
        for side in ("source", "target")
    ]
    want[spots[1]] = data.reshape(box["source_space"])[spots[0]]
    return want


def prepared(b: Buffers, box: dict[str, Any]) -> tuple[int, int, Bytes, Bytes]:
    data, before = pattern(int(np.prod(box["source_space"])), 5), pattern(int(np.prod(box["target_space"])), 6)
    src, dst = b.of(box["source"], data.size), b.of(box["target"], before.size)
    b.fill(src, data.tobytes())
    b.fill(dst, before.tobytes())
    return src, dst, data, before


def parameters(rt: Face, kind: str, box: dict[str, Any], src: int, dst: int) -> Any:
    p = rt.new(f"struct {kind} *")
    for side, name, address in (("src", "source", src), ("dst", "target", dst)):
        z, y, x = box[name + "_at"]
        setattr(p, side + "Pos", {"x": x, "y": y, "z": z})
        _, rows, pitch = box[name + "_space"]
        setattr(p, side + "Ptr", {"ptr": rt.ffi.cast("void *", address), "pitch": pitch, "xsize": pitch, "ysize": rows})
    depth, height, width = box["extent"]
    p.extent = {"width": width, "height": height, "depth": depth}
    return p


@settings(max_examples=25, deadline=None)
@given(box=boxes())
def test_copy_3d_moves_the_box_and_nothing_else(rt: Face, box: dict[str, Any]) -> None:
    with Buffers(rt) as b:
        src, dst, data, before = prepared(b, box)
        p = parameters(rt, "cudaMemcpy3DParms", box, src, dst)
        p.kind = DEFAULT
        if box["asynchronous"]:
            stream = b.stream()
            rt.ok.cudaMemcpy3DAsync(p, stream)
            rt.ok.cudaStreamSynchronize(stream)
        else:
            rt.ok.cudaMemcpy3D(p)
            rt.ok.cudaDeviceSynchronize()
        assert b.read(dst, before.size) == moved(data, before, box).tobytes()


@needs_devices(2)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_copy_3d_between_devices(rt: Face, asynchronous: bool) -> None:
    box: dict[str, Any] = {"extent": (2, 3, 16), "source_at": (1, 0, 2), "target_at": (0, 1, 0)}
    box |= {"source_space": (3, 3, 20), "target_space": (2, 4, 16)}
    with Buffers(rt) as b:
        src, dst = b.device(180, on=1), b.device(128, on=2)
        data, before = pattern(180, 7), pattern(128, 8)
        b.fill(src, data.tobytes())
        b.fill(dst, before.tobytes())
        p = parameters(rt, "cudaMemcpy3DPeerParms", box, src, dst)
        p.srcDevice, p.dstDevice = 1, 2
        if asynchronous:
            rt.ok.cudaMemcpy3DPeerAsync(p, rt.ffi.NULL)
        else:
            rt.ok.cudaMemcpy3DPeer(p)
        rt.ok.cudaDeviceSynchronize()
        assert b.read(dst, 128) == moved(data, before, box).tobytes()
        p.dstDevice = 77
        assert rt.cudaMemcpy3DPeer(p) == INVALID_DEVICE
        assert rt.cudaMemcpy3DPeerAsync(p, rt.ffi.NULL) == INVALID_DEVICE


@differs("a pitch that is too large is an invalid value: 1")
def test_copy_3d_checks_its_parameters(rt: Face) -> None:
    box: dict[str, Any] = {"extent": (2, 3, 16), "source_at": (0, 0, 0), "target_at": (0, 0, 0)}
    box |= {"source_space": (2, 3, 16), "target_space": (2, 3, 16)}
    with Buffers(rt) as b:
        src, dst = b.device(96), b.device(96)

        def result(**changes: Any) -> int:
            p = parameters(rt, "cudaMemcpy3DParms", box, src, dst)
            p.kind = ON_DEVICE
            for name, value in changes.items():
                target, path = p, name.split("__")
                for step in path[:-1]:
                    target = getattr(target, step)
                setattr(target, path[-1], value)
            return int(rt.cudaMemcpy3D(p))

        assert result() == 0
        assert result(extent__depth=0) == 0
        assert result(srcPtr__pitch=15) == INVALID_PITCH
        assert result(dstPtr__pitch=2**31) == INVALID_PITCH
        assert result(srcPos__x=1) == INVALID_PITCH
        assert result(srcPtr__ysize=2) == INVALID_VALUE
        assert result(srcPtr__ptr=rt.ffi.NULL) == INVALID_VALUE
        assert result(srcPos__z=1) == INVALID_VALUE
        assert result(kind=9) == INVALID_DIRECTION
        assert result(srcArray=rt.ffi.cast("cudaArray_t", 16)) == INVALID_VALUE  # both an array and a pointer
        assert rt.cudaMemcpy3D(rt.ffi.NULL) == INVALID_VALUE
        assert rt.cudaMemcpy3DAsync(rt.ffi.NULL, rt.ffi.NULL) == INVALID_VALUE


@emulated
def test_copy_3d_with_an_array_is_not_supported(rt: Face) -> None:
    with Buffers(rt) as b:
        p = rt.new("struct cudaMemcpy3DParms *")
        p.srcArray = rt.ffi.cast("cudaArray_t", 16)
        p.dstPtr = {"ptr": b.at(b.device(16)), "pitch": 16, "xsize": 16, "ysize": 1}
        p.extent = {"width": 16, "height": 1, "depth": 1}
        p.kind = ON_DEVICE
        assert rt.cudaMemcpy3D(p) == NOT_SUPPORTED


# ---- the driver


def driver_parameters(drv: Face, kind: str, box: dict[str, Any], src: int, dst: int, types: tuple[int, int]) -> Any:
    p = drv.new(f"{kind} *")
    for side, name, address, memory in (("src", "source", src, types[0]), ("dst", "target", dst, types[1])):
        z, y, x = box[name + "_at"]
        _, rows, pitch = box[name + "_space"]
        setattr(p, side + "XInBytes", x)
        setattr(p, side + "Y", y)
        setattr(p, side + "Pitch", pitch)
        setattr(p, side + "MemoryType", memory)
        if memory == HOST:
            setattr(p, side + "Host", drv.ffi.cast("void *", address))
        else:
            setattr(p, side + "Device", address)
        if kind != "CUDA_MEMCPY2D":
            setattr(p, side + "Z", z)
            setattr(p, side + "Height", rows)
    depth, height, width = box["extent"]
    p.WidthInBytes, p.Height = width, height
    if kind != "CUDA_MEMCPY2D":
        p.Depth = depth
    return p


def flat(box: dict[str, Any]) -> dict[str, Any]:
    """The lowest layer of a box."""
    low = dict(box, extent=(1, *box["extent"][1:]))
    for side in ("source", "target"):
        low[side + "_at"] = (0, *box[side + "_at"][1:])
        low[side + "_space"] = (1, *box[side + "_space"][1:])
    return low


@settings(max_examples=25, deadline=None)
@given(box=boxes(), unified=st.booleans(), form=st.sampled_from(["2D", "2DUnaligned", "2DAsync", "3D", "3DAsync"]))
def test_driver_copies_move_the_box_and_nothing_else(
    rt: Face, drv: Face, box: dict[str, Any], unified: bool, form: str
) -> None:
    if form.startswith("2D"):
        box = flat(box)
    with Buffers(rt) as b:
        src, dst, data, before = prepared(b, box)
        types = [UNIFIED if unified else DEVICE if box[side] == "device" else HOST for side in ("source", "target")]
        kind = "CUDA_MEMCPY2D" if form.startswith("2D") else "CUDA_MEMCPY3D"
        p = driver_parameters(drv, kind, box, src, dst, (types[0], types[1]))
        function = getattr(drv.ok, f"cuMemcpy{form}_v2")
        if form.endswith("Async"):
            stream = b.stream()
            function(p, driver_stream(drv, rt, stream))
            rt.ok.cudaStreamSynchronize(stream)
        else:
            function(p)
            rt.ok.cudaDeviceSynchronize()
        assert b.read(dst, before.size) == moved(data, before, box).tobytes()


def test_driver_copy_without_pitch_takes_rows_side_by_side(rt: Face, drv: Face) -> None:
    box: dict[str, Any] = {"extent": (1, 4, 10), "source_at": (0, 0, 0), "target_at": (0, 0, 0)}
    box |= {"source_space": (1, 4, 0), "target_space": (1, 4, 16)}
    with Buffers(rt) as b:
        src, dst = b.device(40), b.device(58)
        data = pattern(40, 9)
        b.fill(src, data.tobytes())
        drv.ok.cuMemcpy2D_v2(driver_parameters(drv, "CUDA_MEMCPY2D", box, src, dst, (DEVICE, DEVICE)))
        got = np.frombuffer(b.read(dst, 58) + bytes(6), np.uint8).reshape(4, 16)
        assert (got[:, :10] == data.reshape(4, 10)).all()


@differs("a handle or pointer that is none is followed, and the process dies")
def test_driver_copies_check_their_parameters(rt: Face, drv: Face) -> None:
    box: dict[str, Any] = {"extent": (2, 3, 16), "source_at": (0, 0, 0), "target_at": (0, 0, 0)}
    box |= {"source_space": (2, 3, 16), "target_space": (2, 3, 16)}
    with Buffers(rt) as b:
        src, dst = b.device(96), b.device(96)

        def result(**changes: Any) -> int:
            p = driver_parameters(drv, "CUDA_MEMCPY3D", box, src, dst, (DEVICE, DEVICE))
            for name, value in changes.items():
                setattr(p, name, value)
            return int(drv.cuMemcpy3D_v2(p))

        assert result() == 0
        assert result(srcPitch=15) == INVALID_VALUE
        assert result(dstXInBytes=1) == INVALID_VALUE
        assert result(srcHeight=2) == INVALID_VALUE
        assert result(dstHeight=4) == INVALID_VALUE  # beyond the allocation
        assert result(srcMemoryType=9) == INVALID_VALUE
        assert result(srcDevice=0) == INVALID_VALUE
        assert drv.cuMemcpy3D_v2(drv.ffi.NULL) == INVALID_VALUE
        assert drv.cuMemcpy2D_v2(drv.ffi.NULL) == INVALID_VALUE
        assert drv.cuMemcpy3DPeer(drv.ffi.NULL) == INVALID_VALUE


@emulated
def test_driver_copy_with_an_array_is_not_supported(rt: Face, drv: Face) -> None:
    box: dict[str, Any] = {"extent": (1, 1, 16), "source_at": (0, 0, 0), "target_at": (0, 0, 0)}
    box |= {"source_space": (1, 1, 16), "target_space": (1, 1, 16)}
    with Buffers(rt) as b:
        p = driver_parameters(drv, "CUDA_MEMCPY2D", box, 0, b.device(16), (ARRAY, DEVICE))
        assert drv.cuMemcpy2D_v2(p) == NOT_SUPPORTED


@needs_devices(2)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_driver_copy_3d_between_contexts(rt: Face, drv: Face, asynchronous: bool) -> None:
    box: dict[str, Any] = {"extent": (2, 3, 16), "source_at": (0, 0, 0), "target_at": (0, 0, 0)}
    box |= {"source_space": (2, 3, 16), "target_space": (2, 3, 16)}
    with Buffers(rt) as b:
        src, dst = b.device(96, on=1), b.device(96, on=0)
        data = pattern(96, 10)
        b.fill(src, data.tobytes())
        contexts = [drv.new("CUcontext *") for _ in range(2)]
        for device, context in enumerate(contexts):
            drv.ok.cuDevicePrimaryCtxRetain(context, device)
        p = driver_parameters(drv, "CUDA_MEMCPY3D_PEER", box, src, dst, (DEVICE, DEVICE))
        p.srcContext, p.dstContext = contexts[1][0], contexts[0][0]
        if asynchronous:
            drv.ok.cuMemcpy3DPeerAsync(p, drv.ffi.NULL)
        else:
            drv.ok.cuMemcpy3DPeer(p)
        rt.ok.cudaDeviceSynchronize()
        assert b.read(dst, 96) == data.tobytes()
        p.srcContext = drv.ffi.NULL
        assert drv.cuMemcpy3DPeer(p) == 201
        for device in range(2):
            drv.ok.cuDevicePrimaryCtxRelease_v2(device)
