#include "collnet/reduce.h"

#include <string.h>

/* ---- half and bfloat16: computed in float, and rounded to nearest, ties to even ---- */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float small = (float)fraction * 0x1p-24f;
    return sign ? -small : small;
}

static uint16_t to_half(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00; /* from halfway above the largest on */
    if (magnitude < 0x38800000) {
        /* No exponent: the sum has the place of the last bit where float has its own. */
        return sign | (uint16_t)(bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return sign | (uint16_t)((magnitude - (112u << 23)) >> 13);
}

static float from_bfloat(uint16_t value)
{
    return float_of((uint32_t)value << 16);
}

static uint16_t to_bfloat(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- */

#define SAME(x) (x)
/* Sums and products of integers wrap, as on the GPU. */
#define LOOP(type, wide, in, out, expression)                                                                          \
    for (size_t i = 0; i + sizeof(type) <= bytes; i += sizeof(type)) {                                                 \
        type a_, b_;                                                                                                   \
        memcpy(&a_, to + i, sizeof a_);                                                                                \
        memcpy(&b_, by + i, sizeof b_);                                                                                \
        wide a = in(a_), b = in(b_);                                                                                   \
        type result = out(expression);                                                                                 \
        memcpy(to + i, &result, sizeof result);                                                                        \
    }
#define LOOPS(type, wide, in, out)                                                                                     \
    switch (op) {                                                                                                      \
    case ncclSum:                                                                                                      \
        LOOP(type, wide, in, out, (a + b))                                                                             \
        break;                                                                                                         \
    case ncclProd:                                                                                                     \
        LOOP(type, wide, in, out, (a * b))                                                                             \
        break;                                                                                                         \
    case ncclMax:                                                                                                      \
        LOOP(type, wide, in, out, (a > b ? a : b))                                                                     \
        break;                                                                                                         \
    default:                                                                                                           \
        LOOP(type, wide, in, out, (a < b ? a : b))                                                                     \
    }
/* Signed sums are those of the unsigned type of the same width; comparisons are not. */
#define SIGNED_LOOPS(type, unsigned_type)                                                                              \
    if (op == ncclSum || op == ncclProd) {                                                                             \
        LOOPS(unsigned_type, unsigned_type, SAME, (unsigned_type))                                                     \
    } else {                                                                                                           \
        LOOPS(type, type, SAME, (type))                                                                                \
    }

#define OPS(which, ...)                                                                                                \
    case which:                                                                                                        \
        LOOPS(__VA_ARGS__)                                                                                             \
        break;
#define SIGNED(which, ...)                                                                                             \
    case which:                                                                                                        \
        SIGNED_LOOPS(__VA_ARGS__)                                                                                      \
        break;

void reduce_into(void *into, const void *from, size_t bytes, ncclDataType_t type, ncclRedOp_t op)
{
    char *to = into;
    const char *by = from;
    switch (type) {
        SIGNED(ncclInt8, int8_t, uint8_t)
        OPS(ncclUint8, uint8_t, uint8_t, SAME, (uint8_t))
        SIGNED(ncclInt32, int32_t, uint32_t)
        OPS(ncclUint32, uint32_t, uint32_t, SAME, SAME)
        SIGNED(ncclInt64, int64_t, uint64_t)
        OPS(ncclUint64, uint64_t, uint64_t, SAME, SAME)
        OPS(ncclFloat16, uint16_t, float, from_half, to_half)
        OPS(ncclFloat32, float, float, SAME, SAME)
        OPS(ncclFloat64, double, double, SAME, SAME)
        OPS(ncclBfloat16, uint16_t, float, from_bfloat, to_bfloat)
    default:
        break;
    }
}

size_t reduce_size(ncclDataType_t type)
{
    static const uint8_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return (unsigned)type < sizeof sizes ? sizes[type] : 0;
}

bool reduce_supported(ncclDataType_t type, ncclRedOp_t op)
{
    return reduce_size(type) && (op == ncclSum || op == ncclProd || op == ncclMax || op == ncclMin);
}
