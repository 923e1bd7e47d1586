"""Elements are reduced as GPUs reduce them: wrapping integers, floats rounded to nearest even after each operation."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from tests.csrc.nccl.compiled import Interpreter

Array = npt.NDArray[np.generic]
INTEGERS = {"i8": np.int8, "u8": np.uint8, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64}
# exponent bits, mantissa bits, whether there are infinities
SMALL = {"f16": (5, 10, True), "bf16": (8, 7, True), "f8e4m3": (4, 3, False), "f8e5m2": (5, 2, False)}
COUNT = 4000


def integers(kind: str, seed: int) -> Array:
    info = np.iinfo(INTEGERS[kind])
    values = np.random.default_rng(seed).integers(info.min, info.max, COUNT, dtype=INTEGERS[kind], endpoint=True)
    values[:3] = info.min, info.max, 0
    return values


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_wrap_around(interpreter: Interpreter, kind: str) -> None:
    a, b = integers(kind, 1), integers(kind, 2)
    assert np.array_equal(interpreter.arithmetic(kind, "Sum", 1, a, b), a + b)
    assert np.array_equal(interpreter.arithmetic(kind, "Prod", 1, a, b), a * b)
    assert np.array_equal(interpreter.arithmetic(kind, "PreMulSum", 0, a, argument=3), a * INTEGERS[kind](3))
    assert np.array_equal(interpreter.arithmetic(kind, "PreMulSum", 1, a, b), a + b)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_are_compared_after_the_mask(interpreter: Interpreter, kind: str) -> None:
    """The host gives the sign bit for signed types, and all bits to turn a minimum into a maximum."""
    a, b = integers(kind, 3), integers(kind, 4)
    bits = a.itemsize * 8
    sign, everything = (1 << bits - 1 if kind[0] == "i" else 0), (1 << bits) - 1
    assert np.array_equal(interpreter.arithmetic(kind, "MinMax", 1, a, b, sign), np.minimum(a, b))
    assert np.array_equal(interpreter.arithmetic(kind, "MinMax", 1, a, b, sign ^ everything), np.maximum(a, b))


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_a_mean_of_integers_is_cut_towards_zero(interpreter: Interpreter, kind: str, ranks: int) -> None:
    a = integers(kind, 5)
    meant = [abs(int(x)) // ranks * (1 if x >= 0 else -1) for x in a]
    out = interpreter.arithmetic(kind, "SumPostDiv", 2, a, argument=ranks << 1 | (kind[0] == "i"))
    assert out is not None
    assert [int(x) for x in out] == meant


def test_what_has_no_meaning_is_refused(interpreter: Interpreter) -> None:
    one = np.ones(1, np.float32)
    assert interpreter.arithmetic("f32", "SumPostDiv", 2, one, argument=4) is None
    assert interpreter.arithmetic("u32", "SumPostDiv", 2, one, argument=1) is None
    assert interpreter.arithmetic("f4", "Sum", 1, one) is None


def real(kind: str, seed: int) -> Array:
    """Bit patterns of all kinds: subnormal, huge, infinite, NaN."""
    size = np.dtype(np.uint32 if kind == "f32" else np.uint64)
    bits = np.random.default_rng(seed).integers(0, np.iinfo(size).max, COUNT, dtype=size, endpoint=True)
    return bits.view(np.float32 if kind == "f32" else np.float64)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_floats_are_what_numpy_has(interpreter: Interpreter, kind: str) -> None:
    a, b = real(kind, 6), real(kind, 7)
    with np.errstate(all="ignore"):
        near = a * a.dtype.type(1.0000001)  # sums that cancel
        for second in (b, near, -near):
            assert np.array_equal(interpreter.arithmetic(kind, "Sum", 1, a, second), a + second, equal_nan=True)  # type: ignore[arg-type]
            assert np.array_equal(interpreter.arithmetic(kind, "Prod", 1, a, second), a * second, equal_nan=True)  # type: ignore[arg-type]
        assert np.array_equal(interpreter.arithmetic(kind, "MinMax", 1, a, b, 0), np.fmin(a, b), equal_nan=True)  # type: ignore[arg-type]
        assert np.array_equal(interpreter.arithmetic(kind, "MinMax", 1, a, b, 1), np.fmax(a, b), equal_nan=True)  # type: ignore[arg-type]
        third = a.dtype.type(1) / a.dtype.type(3)
        factor = int(third.view(np.uint32 if kind == "f32" else np.uint64))
        assert np.array_equal(
            interpreter.arithmetic(kind, "PreMulSum", 0, a, argument=factor), a * third, equal_nan=True
        )  # type: ignore[arg-type]


def test_zeros_are_told_apart_where_two_are_compared(interpreter: Interpreter) -> None:
    plus, minus = np.zeros(1, np.float32), -np.zeros(1, np.float32)
    for a, b in ((plus, minus), (minus, plus)):
        least, most = (
            interpreter.arithmetic("f32", "MinMax", 1, a, b, 0),
            interpreter.arithmetic("f32", "MinMax", 1, a, b, 1),
        )
        assert least is not None and most is not None
        assert np.signbit(least[0]) and not np.signbit(most[0])


# ---- floats of 8 and 16 bits, against the list of all their numbers ----


@cache
def numbers(kind: str) -> npt.NDArray[np.float64]:
    """What each bit pattern means."""
    exponent, mantissa, infinities = SMALL[kind]
    out = np.empty(1 << (1 + exponent + mantissa))
    for bits in range(out.size):
        e, m = bits >> mantissa & (1 << exponent) - 1, bits & (1 << mantissa) - 1
        bias, last = (1 << exponent - 1) - 1, e == (1 << exponent) - 1
        value = float(np.ldexp(m + ((1 << mantissa) if e else 0), max(e, 1) - bias - mantissa))
        if last and (kind != "f8e4m3" or m == (1 << mantissa) - 1):
            value = np.inf if kind != "f8e4m3" and m == 0 else np.nan
        out[bits] = -value if bits >> (exponent + mantissa) else value
    assert infinities or np.nanmax(out[np.isfinite(out)]) in (448.0, 57344.0)
    return out


def nearest(kind: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The bit pattern that is nearest to each number: to even where two are, saturated where the type has no infinities."""
    table = numbers(kind)
    half = table.size // 2
    finite = table[:half][np.isfinite(table[:half])]
    size, high = np.abs(x), np.searchsorted(finite, np.abs(x)).clip(1, finite.size - 1)
    below, above = finite[high - 1], finite[high]
    up = (above - size < size - below) | ((above - size == size - below) & (high % 2 == 0))
    bits = np.where(up, high, high - 1)
    step = finite[-1] - finite[-2]
    if SMALL[kind][2]:
        bits = np.where(size >= finite[-1] + step / 2, finite.size, bits)
    else:
        bits = np.where(size >= finite[-1], finite.size - 1, bits)
    bits = np.where(np.isnan(x), half - 1, bits + np.where(np.signbit(x), half, 0))
    return bits.astype(np.int64)


def pairs(kind: str) -> tuple[Array, Array]:
    """All pairs of 8 bits; of 16 bits random ones, near ones, and such that cancel."""
    if kind.startswith("f8"):
        grid = np.arange(1 << 16)
        return (grid >> 8).astype(np.uint8), (grid & 255).astype(np.uint8)
    rng = np.random.default_rng(8)
    a = rng.integers(0, 1 << 16, 200_000).astype(np.uint16)
    b = np.concatenate([rng.integers(0, 1 << 16, 100_000), a[100_000:] ^ rng.integers(0, 1 << 11, 100_000) ^ 0x8000])
    return a, b.astype(np.uint16)


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("op", ["Sum", "Prod", "min", "max"])
def test_small_floats_are_the_nearest_numbers(interpreter: Interpreter, kind: str, op: str) -> None:
    a, b = pairs(kind)
    x, y = numbers(kind)[a], numbers(kind)[b]
    with np.errstate(all="ignore"):
        exact = {"Sum": np.add, "Prod": np.multiply, "min": np.fmin, "max": np.fmax}[op](x, y)
    if kind.startswith("f8"):  # computed in half precision first
        exact = numbers("f16")[nearest("f16", exact)]
    meant = nearest(kind, exact)
    name, argument = ("MinMax", int(op == "max")) if op in ("min", "max") else (op, 0)
    out = interpreter.arithmetic(kind, name, 1, a, b, argument)
    assert out is not None
    ours = out.astype(np.int64)
    zero = (numbers(kind)[ours] == 0) & (numbers(kind)[meant] == 0)  # numpy has no order of zeros
    wrong = (ours != meant) & ~(zero if name == "MinMax" else np.zeros_like(zero))
    assert not wrong.any(), [(hex(a[i]), hex(b[i]), hex(ours[i]), hex(meant[i])) for i in np.flatnonzero(wrong)[:5]]


@pytest.mark.parametrize("kind", SMALL)
def test_factors_of_small_floats_are_rounded_once_more(interpreter: Interpreter, kind: str) -> None:
    a, _ = pairs(kind)
    factor = int(nearest(kind, np.array([1 / 3]))[0])
    product = numbers(kind)[a] * numbers(kind)[factor]
    if kind.startswith("f8"):
        product = numbers("f16")[nearest("f16", product)]
    out = interpreter.arithmetic(kind, "PreMulSum", 0, a, argument=factor)
    assert out is not None
    assert np.array_equal(out.astype(np.int64), nearest(kind, product))
