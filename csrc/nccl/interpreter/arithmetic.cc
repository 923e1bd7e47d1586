/* Integers wrap around; floats are rounded to nearest even after each operation, with subnormal numbers, as the GPU's
 * add and mul instructions do. Compiled without contraction: a*b+c is two roundings. */
#include "arithmetic.h"

#include <cmath>
#include <cstring>
#include <type_traits>

namespace psm
{

static const char *const type_names[] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                         "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
static const char *const op_names[] = {"Sum", "Prod", "MinMax", "PreMulSum", "SumPostDiv"};
static const uint8_t type_sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

template <typename T, size_t N> static bool find(const char *const (&names)[N], const char *name, T *out)
{
    for (size_t i = 0; i < N; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = static_cast<T>(i);
        return true;
    }
    return false;
}

bool type_of(const char *name, Type *out)
{
    return find(type_names, name, out);
}

bool op_of(const char *name, Op *out)
{
    return find(op_names, name, out);
}

size_t size_of(Type type)
{
    return type_sizes[static_cast<size_t>(type)];
}

const char *reduction_fault(const Reduction &r)
{
    if (r.op != Op::SumPostDiv) return nullptr;
    if (r.type >= Type::f16) return "a sum of floats is not divided afterwards";
    return r.argument >> 1 ? nullptr : "the divisor of the sum is 0";
}

/* ---- floats of 8 and 16 bits, computed in double, where sums and products of two are exact or rounded innocuously
 * ---- */

struct Format {
    int exponent, mantissa; /* bits */
    bool finite;            /* no infinities: what is too large becomes the largest number */
    uint64_t largest;       /* as bits */
    uint64_t nan;
};

static constexpr Format half = {5, 10, false, 0x7bff, 0x7fff}, bfloat = {8, 7, false, 0x7f7f, 0x7fff};
static constexpr Format e4m3 = {4, 3, true, 0x7e, 0x7f}, e5m2 = {5, 2, true, 0x7b, 0x7f};

static double decode(const Format &f, uint64_t bits)
{
    const int bias = (1 << (f.exponent - 1)) - 1, top = (1 << f.exponent) - 1;
    const uint64_t magnitude = bits & ((UINT64_C(1) << (f.exponent + f.mantissa)) - 1);
    const bool negative = bits >> (f.exponent + f.mantissa) & 1;
    const int exponent = static_cast<int>(magnitude >> f.mantissa);
    const uint64_t fraction = magnitude & ((UINT64_C(1) << f.mantissa) - 1);
    uint64_t out;
    if (&f == &e4m3 ? magnitude == f.nan : exponent == top && fraction) return NAN;
    if (&f != &e4m3 && exponent == top) return negative ? -INFINITY : INFINITY;
    if (exponent == 0) {
        const double value = std::ldexp(static_cast<double>(fraction), 1 - bias - f.mantissa);
        return negative ? -value : value;
    }
    out = static_cast<uint64_t>(negative) << 63 | static_cast<uint64_t>(exponent - bias + 1023) << 52 |
          fraction << (52 - f.mantissa);
    double value;
    memcpy(&value, &out, sizeof value);
    return value;
}

static uint64_t encode(const Format &f, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint64_t sign = bits >> 63 << (f.exponent + f.mantissa);
    const int bias = (1 << (f.exponent - 1)) - 1;
    if (value != value) return f.nan;
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    if (exponent == -1023) return sign; /* less than half of the smallest of any of these */
    /* How many bits fall away; of what is subnormal in the format more do, and the leading one becomes explicit. */
    int drop = 52 - f.mantissa;
    uint64_t out = 0;
    if (exponent < 1 - bias) {
        drop += 1 - bias - exponent;
        if (drop > 54) return sign;
        fraction |= UINT64_C(1) << 52;
    } else if (exponent <= bias + 1) {
        out = static_cast<uint64_t>(exponent + bias) << f.mantissa;
    } else {
        return sign | (f.finite ? f.largest : f.largest + 1);
    }
    const uint64_t rest = fraction & ((UINT64_C(1) << drop) - 1), middle = UINT64_C(1) << (drop - 1);
    out += fraction >> drop;
    if (rest > middle || (rest == middle && (out & 1))) out++;
    if (out > f.largest) out = f.finite ? f.largest : f.largest + 1;
    return sign | out;
}

/* The element types that the templates below work on: what is stored, and how it becomes a number and back. */
struct F16 {
    using Stored = uint16_t;
    static double number(Stored s) { return decode(half, s); }
    static Stored stored(double x) { return static_cast<Stored>(encode(half, x)); }
};
struct BF16 {
    using Stored = uint16_t;
    static double number(Stored s) { return decode(bfloat, s); }
    static Stored stored(double x) { return static_cast<Stored>(encode(bfloat, x)); }
};
/* GPUs have no arithmetic in these: it is done in half precision, and each result is rounded again. */
template <const Format &F> struct F8 {
    using Stored = uint8_t;
    static double number(Stored s) { return decode(F, s); }
    static Stored stored(double x) { return static_cast<Stored>(encode(F, decode(half, encode(half, x)))); }
};
template <typename Real, typename Bits> struct Ieee {
    using Stored = Bits;
    static Real number(Stored s)
    {
        Real x;
        memcpy(&x, &s, sizeof x);
        return x;
    }
    static Stored stored(Real x)
    {
        if (sizeof(Real) == 4 && x != x) return 0x7fffffff; /* a GPU's NaN of single precision */
        Stored s;
        memcpy(&s, &x, sizeof s);
        return s;
    }
};
using F32 = Ieee<float, uint32_t>;
using F64 = Ieee<double, uint64_t>;

/* A number is preferred to NaN, and -0 is less than +0. */
template <typename X> static X least(X a, X b)
{
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}

template <typename F> struct Floats {
    using Stored = typename F::Stored;
    static Stored add(Stored a, Stored b) { return F::stored(F::number(a) + F::number(b)); }
    static Stored multiply(Stored a, Stored b) { return F::stored(F::number(a) * F::number(b)); }
    static Stored choose(Stored a, Stored b, uint64_t argument)
    {
        if (argument & 1) return F::stored(-least(-F::number(a), -F::number(b)));
        return F::stored(least(F::number(a), F::number(b)));
    }
    static Stored divide(Stored a, uint64_t) { return a; } /* reduction_fault refuses it */
};

template <typename U> struct Integers {
    using Stored = U;
    static U add(U a, U b) { return static_cast<U>(a + b); }
    static U multiply(U a, U b) { return static_cast<U>(static_cast<uint64_t>(a) * b); }
    static U choose(U a, U b, uint64_t argument)
    {
        const U mask = static_cast<U>(argument);
        return static_cast<U>(a ^ mask) < static_cast<U>(b ^ mask) ? a : b;
    }
    static U divide(U a, uint64_t argument)
    {
        const bool negative = (argument & 1) && a >> (8 * sizeof(U) - 1);
        const U magnitude = negative ? static_cast<U>(0 - a) : a;
        const U quotient = static_cast<U>(magnitude / (argument >> 1 & 0x7fffffff));
        return negative ? static_cast<U>(0 - quotient) : quotient;
    }
};

/* Elements may lie at any address: they are read and written by memcpy. */
template <typename S, typename Do> static void each(void *out, const void *a, const void *b, size_t n, Do work)
{
    for (size_t i = 0; i < n; i++) {
        S x, y;
        memcpy(&x, static_cast<const char *>(a) + i * sizeof x, sizeof x);
        memcpy(&y, static_cast<const char *>(b) + i * sizeof y, sizeof y);
        x = work(x, y);
        memcpy(static_cast<char *>(out) + i * sizeof x, &x, sizeof x);
    }
}

enum class Stage { input, two, result };

template <typename A>
static void run(Stage stage, const Reduction &r, void *out, const void *a, const void *b, size_t n)
{
    using S = typename A::Stored;
    const uint64_t argument = r.argument;
    const S factor = static_cast<S>(argument);
    if (stage == Stage::input)
        each<S>(out, a, a, n, [factor](S x, S) { return A::multiply(x, factor); });
    else if (stage == Stage::result)
        each<S>(out, a, a, n, [argument](S x, S) { return A::divide(x, argument); });
    else if (r.op == Op::Prod)
        each<S>(out, a, b, n, [](S x, S y) { return A::multiply(x, y); });
    else if (r.op == Op::MinMax)
        each<S>(out, a, b, n, [argument](S x, S y) { return A::choose(x, y, argument); });
    else
        each<S>(out, a, b, n, [](S x, S y) { return A::add(x, y); });
}

static void run(Stage stage, const Reduction &r, void *out, const void *a, const void *b, size_t n)
{
    switch (r.type) {
    case Type::i8:
    case Type::u8:
        return run<Integers<uint8_t>>(stage, r, out, a, b, n);
    case Type::i32:
    case Type::u32:
        return run<Integers<uint32_t>>(stage, r, out, a, b, n);
    case Type::i64:
    case Type::u64:
        return run<Integers<uint64_t>>(stage, r, out, a, b, n);
    case Type::f16:
        return run<Floats<F16>>(stage, r, out, a, b, n);
    case Type::bf16:
        return run<Floats<BF16>>(stage, r, out, a, b, n);
    case Type::f32:
        return run<Floats<F32>>(stage, r, out, a, b, n);
    case Type::f64:
        return run<Floats<F64>>(stage, r, out, a, b, n);
    case Type::f8e4m3:
        return run<Floats<F8<e4m3>>>(stage, r, out, a, b, n);
    case Type::f8e5m2:
        return run<Floats<F8<e5m2>>>(stage, r, out, a, b, n);
    }
}

void reduce_input(const Reduction &r, void *out, const void *in, size_t n)
{
    run(Stage::input, r, out, in, in, n);
}

void reduce_two(const Reduction &r, void *out, const void *a, const void *b, size_t n)
{
    run(Stage::two, r, out, a, b, n);
}

void reduce_result(const Reduction &r, void *out, const void *in, size_t n)
{
    run(Stage::result, r, out, in, in, n);
}

} // namespace psm
