/* Values of fields and literals, read in place: by the search through a trie, and by the guesses. */
#ifndef LOGSCAN_VALUES_H
#define LOGSCAN_VALUES_H

#include "catalogue.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* The value of a hex digit plus one, 0 for other bytes. */
static const uint8_t hex_digit[256] = {
    ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
};

#ifdef __SSE2__
/* How many hex digits are at the start of 16 bytes. */
static inline unsigned hex_digits(__m128i c)
{
    __m128i low = _mm_or_si128(c, _mm_set1_epi8(0x20));
    __m128i digit = _mm_and_si128(_mm_cmpgt_epi8(c, _mm_set1_epi8('0' - 1)), _mm_cmplt_epi8(c, _mm_set1_epi8('9' + 1)));
    __m128i letter =
        _mm_and_si128(_mm_cmpgt_epi8(low, _mm_set1_epi8('a' - 1)), _mm_cmplt_epi8(low, _mm_set1_epi8('f' + 1)));
    return (unsigned)__builtin_ctz(~(unsigned)_mm_movemask_epi8(_mm_or_si128(digit, letter)));
}

/* The hex digits at the start of 16 bytes: returns their number, and their value in *value. */
static inline unsigned hex16(__m128i c, uint64_t *value)
{
    __m128i low = _mm_or_si128(c, _mm_set1_epi8(0x20));
    /* Signed comparisons: bytes from 0x80 on are negative, so they are not digits. */
    __m128i digit = _mm_and_si128(_mm_cmpgt_epi8(c, _mm_set1_epi8('0' - 1)), _mm_cmplt_epi8(c, _mm_set1_epi8('9' + 1)));
    __m128i letter =
        _mm_and_si128(_mm_cmpgt_epi8(low, _mm_set1_epi8('a' - 1)), _mm_cmplt_epi8(low, _mm_set1_epi8('f' + 1)));
    unsigned other = ~(unsigned)_mm_movemask_epi8(_mm_or_si128(digit, letter)) & 0xffffu;
    unsigned n = (unsigned)__builtin_ctz(other | 1u << 16);
    __m128i nibble = _mm_or_si128(_mm_and_si128(digit, _mm_sub_epi8(c, _mm_set1_epi8('0'))),
                                  _mm_and_si128(letter, _mm_sub_epi8(low, _mm_set1_epi8('a' - 10))));
    /* A pair of digits is a byte: the first, in the lower half of its lane, is the higher one. */
    __m128i pair =
        _mm_or_si128(_mm_slli_epi16(_mm_and_si128(nibble, _mm_set1_epi16(0xff)), 4), _mm_srli_epi16(nibble, 8));
    uint64_t v = __builtin_bswap64((uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(pair, pair)));
    *value = n ? v >> (64 - 4 * n) : 0;
    return n;
}
#endif

#ifdef __SSE2__
/* Up to 16 hex digits before e, of which at least 8 bytes are there: as hex16, which reads no byte behind e. */
static inline unsigned hex_before(const char *p, const char *e, uint64_t *value)
{
    size_t n = (size_t)(e - p);
    if (n >= 16) return hex16(_mm_loadu_si128((const __m128i *)(const void *)p), value);
    int64_t low, high;
    memcpy(&low, p, 8);
    memcpy(&high, e - 8, 8);
    /* The bytes from the ninth on, followed by zeros. */
    high = n > 8 ? (int64_t)((uint64_t)high >> (128 - 8 * n)) : 0;
    return hex16(_mm_set_epi64x(high, low), value);
}
#endif

static inline const char *read_hex(const char *p, const char *e, uint64_t *value)
{
    uint64_t v = 0;
    const char *s = p;
#ifdef __SSE2__
    if (e - p >= 8) {
        unsigned n = hex_before(p, e, value);
        return n && !(n == 16 && e - p > 16 && hex_digit[(unsigned char)p[16]]) ? p + n : NULL;
    }
#endif
    if (e - p > 17) e = p + 17;
    for (uint64_t d; p < e && (d = hex_digit[(unsigned char)*p]) != 0; p++) v = v << 4 | (d - 1);
    *value = v;
    return p > s && p - s <= 16 ? p : NULL;
}

/* Literals are short: a call of memcmp costs more than the comparison. */
static inline bool ls_equal(const char *a, const unsigned char *b, uint32_t n)
{
    uint64_t x, y;
    for (; n >= 8; a += 8, b += 8, n -= 8) {
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        if (x != y) return false;
    }
    if (n & 4) {
        uint32_t u, v;
        memcpy(&u, a, 4);
        memcpy(&v, b, 4);
        if (u != v) return false;
        a += 4;
        b += 4;
    }
    for (n &= 3; n; n--)
        if (*a++ != (char)*b++) return false;
    return true;
}

static inline const char *read_digits(const char *p, const char *e, uint64_t *value)
{
    enum { SURE = 19 }; /* digits that cannot overflow */
    uint64_t v = 0;
    const char *s = p, *sure = e - p > SURE ? p + SURE : e;
    for (unsigned d; p < sure && (d = (unsigned char)(*p - '0')) < 10; p++) v = v * 10 + d;
    for (unsigned d; p >= sure && p < e && (d = (unsigned char)(*p - '0')) < 10; p++)
        v = v > (UINT64_MAX - d) / 10 ? UINT64_MAX : v * 10 + d;
    *value = v;
    return p > s ? p : NULL;
}

/* Numbers are read in place; floats and addresses are rare and handled separately. */
const char *ls_read_rare(int type, const char *p, const char *e, uint64_t *value);

static inline const char *read_pointer(int type, const char *p, const char *e, uint64_t *value)
{
    if (type == LS_PTR && *p == '(' && e - p >= 5 && memcmp(p, "(nil)", 5) == 0) {
        *value = 0;
        return p + 5;
    }
    if (*p == '0' && e - p > 2 && (p[1] | 32) == 'x') p += 2;
    return read_hex(p, e, value);
}

static inline const char *read_int(const char *p, const char *e, uint64_t *value)
{
    bool minus = *p == '-';
    const char *q = read_digits(p + (minus || *p == '+'), e, value);
    /* A number that is too large stays large and keeps its sign. */
    if (q && *value > (uint64_t)INT64_MAX + minus) *value = (uint64_t)INT64_MAX + minus;
    if (q && minus) *value = 0 - *value;
    return q;
}

/* The value of a field of a narrow type at p, and where it ends; NULL: there is none. */
static inline const char *ls_read_value(int type, const char *p, const char *e, uint64_t *value)
{
    if (p == e) return NULL;
    if (type == LS_PTR || type == LS_HEX) return read_pointer(type, p, e, value);
    if (type == LS_INT) return read_int(p, e, value);
    return type == LS_UINT ? read_digits(p, e, value) : ls_read_rare(type, p, e, value);
}

static inline const struct ls_literal *ls_find_literal(const struct ls_node *node, unsigned char c)
{
    if (node->dispatch) return node->dispatch[c] ? &node->lits[node->dispatch[c] - 1] : NULL;
    for (int i = 0; i < node->nlits; i++)
        if (node->lits[i].s[0] == c) return &node->lits[i];
    return NULL;
}

#endif
