/* What ranks send, and what must come of it. For reductions the elements are chosen so that every partial result, in
 * whatever order, is exact in the type: results can then be compared byte by byte. A mean of floats is the sum of
 * elements times the type's nearest to 1/ranks; where that is not exact only one rank has something to give, so that
 * there is one rounding, and no order. */
#include <math.h>
#include <string.h>

#include "nccl_rank.h"

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3, FLOAT8E5M2 };

static const struct {
    size_t size;
    unsigned exponent, mantissa; /* bits; 0: an integer */
} kinds[] = {
    [INT8] = {1, 0, 0},      [UINT8] = {1, 0, 0},    [INT32] = {4, 0, 0},      [UINT32] = {4, 0, 0},
    [INT64] = {8, 0, 0},     [UINT64] = {8, 0, 0},   [FLOAT16] = {2, 5, 10},   [FLOAT32] = {4, 8, 23},
    [FLOAT64] = {8, 11, 52}, [BFLOAT16] = {2, 8, 7}, [FLOAT8E4M3] = {1, 4, 3}, [FLOAT8E5M2] = {1, 5, 2},
};

size_t nccl_type_size(unsigned type)
{
    return kinds[type].size;
}

uint64_t nccl_message(const struct nccl_case *c, int from, int to, uint64_t iter)
{
    uint64_t bytes = lab_message(&c->task, from, to, iter);
    return bytes - bytes % kinds[c->type].size;
}

/* ---- reductions ---- */

/* Integers of this size are exact in the type. */
static uint64_t exact(unsigned type)
{
    if (kinds[type].mantissa) return UINT64_C(1) << (kinds[type].mantissa > 20 ? 20 : kinds[type].mantissa + 1);
    return kinds[type].size == 1 ? 127 : UINT64_C(1) << 20;
}

/* A rank's element. It is a whole number; that of an unsigned type is not negative. Sums and products of integers
 * wrap around, so those may be anything. */
static int64_t element(const struct nccl_case *c, int rank, int ranks, uint64_t iter, uint64_t index)
{
    uint64_t all = lab_mix(lab_key(c->task.seed, 0, 1 << 19, iter) + index); /* the same at all ranks */
    uint64_t mine = lab_mix(all + (uint64_t)rank + 1), limit = exact(c->type), n = (uint64_t)ranks;
    bool integer = kinds[c->type].mantissa == 0,
         is_signed = !integer || c->type == INT8 || c->type == INT32 || c->type == INT64;
    /* Which ranks have the larger of two values, where not all may. */
    uint64_t turn = ((uint64_t)rank + all) % n;
    switch (c->op) {
    case OP_PROD:
        return integer ? (int64_t)mine : 1 + (turn < 3 && (mine & 1));
    case OP_MAX:
    case OP_MIN:
        return is_signed ? (int64_t)(mine % (2 * limit)) - (int64_t)limit + 1 : (int64_t)(mine % limit);
    case OP_SUM:
        if (integer) return (int64_t)mine;
        break;
    case OP_AVG:
        if (!integer && (n & (n - 1))) return turn ? 0 : (int64_t)(mine % (limit + 1));
        break;
    }
    return limit / n >= 1 ? (int64_t)(mine % (limit / n + 1)) : turn < limit;
}

/* A number that the type can hold exactly. */
static void encode(uint8_t *out, unsigned type, double value)
{
    unsigned mantissa = kinds[type].mantissa, exponent = kinds[type].exponent;
    int power;
    uint64_t bits = (uint64_t)signbit(value) << (mantissa + exponent);
    double fraction = frexp(fabs(value), &power); /* in [0.5, 1) */
    int bias = (1 << (exponent - 1)) - 1;
    if (value != 0 && power - 1 < 1 - bias) {
        bits |= (uint64_t)ldexp(fabs(value), (int)mantissa - 1 + bias); /* subnormal */
    } else if (value != 0) {
        bits |= (uint64_t)(power - 1 + bias) << mantissa;
        bits |= (uint64_t)ldexp(fraction * 2 - 1, (int)mantissa);
    }
    memcpy(out, &bits, kinds[type].size); /* little endian, as GPUs are */
}

static void put(uint8_t *out, unsigned type, int64_t value)
{
    if (kinds[type].mantissa)
        encode(out, type, (double)value);
    else
        memcpy(out, &value, kinds[type].size);
}

/* The nearest number that the type has, to even where there are two. None here is too large for its type. */
static double nearest(unsigned type, double value)
{
    int power, least = 2 - (1 << (kinds[type].exponent - 1)); /* of the smallest number that is not subnormal */
    (void)frexp(value, &power);
    int unit = (power - 1 > least ? power - 1 : least) - (int)kinds[type].mantissa;
    return kinds[type].mantissa >= 52 ? value : ldexp(nearbyint(ldexp(value, -unit)), unit);
}

static double mean(unsigned type, double sum, int ranks)
{
    double factor = nearest(type, type == FLOAT64 ? 1.0 / ranks : (double)(float)(1.0 / ranks));
    double product = sum * factor;
    if (kinds[type].size == 1) product = nearest(FLOAT16, product); /* as GPUs multiply those */
    return nearest(type, product);
}

void nccl_fill_part(uint8_t *out, uint64_t n, uint64_t at, const struct nccl_case *c, int rank, int ranks,
                    uint64_t iter)
{
    size_t each = kinds[c->type].size;
    for (uint64_t i = 0; i < n; i += each) put(out + i, c->type, element(c, rank, ranks, iter, (at + i) / each));
}

void nccl_fill_result(uint8_t *out, uint64_t n, uint64_t at, const struct nccl_case *c, int ranks, uint64_t iter)
{
    size_t each = kinds[c->type].size;
    for (uint64_t i = 0; i < n; i += each) {
        int64_t result = element(c, 0, ranks, iter, (at + i) / each);
        for (int r = 1; r < ranks; r++) {
            int64_t value = element(c, r, ranks, iter, (at + i) / each);
            if (c->op == OP_PROD)
                result = (int64_t)((uint64_t)result * (uint64_t)value);
            else if (c->op == OP_MAX)
                result = value > result ? value : result;
            else if (c->op == OP_MIN)
                result = value < result ? value : result;
            else
                result = (int64_t)((uint64_t)result + (uint64_t)value);
        }
        if (c->op != OP_AVG)
            put(out + i, c->type, result);
        else if (kinds[c->type].mantissa)
            encode(out + i, c->type, mean(c->type, (double)result, ranks));
        else
            put(out + i, c->type, result / ranks);
    }
}
