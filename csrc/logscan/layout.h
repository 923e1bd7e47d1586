/* The use of a layout: whether a text has it, and the values of its numbers. */
#ifndef LOGSCAN_LAYOUT_H
#define LOGSCAN_LAYOUT_H

#include "catalogue.h"

#ifdef __x86_64__
#include <immintrin.h>

/* A function for processors with AVX2; nearly all that have it have the rest. Clang 22 counts CRC-32 as a feature apart
 * from SSE 4.2, which has it, and old compilers do not know that name. */
#if defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 11
#define LS_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt,sse4.2,crc32")))
#else
#define LS_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt,sse4.2")))
#endif
#define LS_AVX2_INLINE LS_AVX2 static inline __attribute__((always_inline))

static inline bool ls_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("sse4.2");
}
#endif

enum { LS_DIGIT = 1, LS_LETTER = 2, LS_LAYOUT_LANE = 32 }; /* classes of bytes; bytes that are compared at once */

/* By what the layout of a text is found: its length, and the words before its first number. It has eight bytes at
 * least. */
static inline uint32_t ls_layout_key(const char *text, size_t n)
{
    uint64_t head;
    memcpy(&head, text, sizeof head);
    /* The highest bit of each byte that is a digit: exact up to the first one; the bytes before it are kept. */
    uint64_t t = head ^ 0x3030303030303030u, number = (t - 0x0a0a0a0a0a0a0a0au) & ~t & 0x8080808080808080u;
    head &= (number ? (number & (0 - number)) >> 7 : 0) - 1;
    return (uint32_t)((head ^ n) * 0x9e3779b97f4a7c15u >> 32);
}

static inline uint32_t ls_layout_set(uint32_t key)
{
    return key / (UINT32_MAX / LS_LAYOUT_SETS + 1);
}

#ifdef __x86_64__
/* Whether a text has the bytes of a layout. LS_LAYOUT_BEHIND bytes behind it may be read. */
LS_AVX2_INLINE bool ls_same_layout(const struct ls_layout *l, const char *text)
{
    enum { D = LS_DIGIT, L = LS_LETTER, B = D | L };
    /* Of a byte's halves, each looked up in a table: a digit is one of both, so is a letter of hexadecimal digits. */
    const __m256i high_half = _mm256_setr_epi8(0, 0, 0, D, L, 0, L, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* and again */
                                               0, 0, 0, D, L, 0, L, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i low_half = _mm256_setr_epi8(D, B, B, B, B, B, B, D, D, D, 0, 0, 0, 0, 0, 0, /* and again */
                                              D, B, B, B, B, B, B, D, D, D, 0, 0, 0, 0, 0, 0);
    const __m256i half = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
    const struct ls_layout_block *b = l->block, *last = b + l->last;
    __m256i least = _mm256_set1_epi8(-1);
    for (;; b++, text += LS_LAYOUT_LANE) {
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)text);
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(c, 4), half);
        __m256i class = _mm256_and_si256(_mm256_shuffle_epi8(low_half, c), _mm256_shuffle_epi8(high_half, high));
        __m256i right =
            _mm256_or_si256(_mm256_and_si256(class, _mm256_load_si256((const __m256i *)(const void *)b->allowed)),
                            _mm256_cmpeq_epi8(c, _mm256_load_si256((const __m256i *)(const void *)b->same)));
        if (b == last) {
            /* What is behind the text may be anything. */
            uint32_t wrong = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(right, zero)) << l->behind;
            return !wrong && !_mm256_movemask_epi8(_mm256_cmpeq_epi8(least, zero));
        }
        least = _mm256_min_epu8(least, right);
    }
}

/* Up to 16 bytes at the end of as many, with zeros before them. */
LS_AVX2_INLINE __m128i ls_to_the_end(__m128i c, unsigned n)
{
    static const uint8_t places[32] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                                       0x80, 0x80, 0x80, 0x80, 0x80, 0,    1,    2,    3,    4,    5,
                                       6,    7,    8,    9,    10,   11,   12,   13,   14,   15};
    return _mm_shuffle_epi8(c, _mm_loadu_si128((const __m128i *)(const void *)(places + n)));
}

/* The value of 1 to 16 hex digits. 16 bytes may be read. */
LS_AVX2_INLINE uint64_t ls_hex_value(const char *s, unsigned n)
{
    __m128i c = ls_to_the_end(_mm_loadu_si128((const __m128i *)(const void *)s), n);
    /* A letter has bit 6, and is 9 more than the lower half of its byte. */
    __m128i letter = _mm_and_si128(_mm_srli_epi16(c, 6), _mm_set1_epi8(1));
    __m128i nine = _mm_add_epi8(letter, _mm_slli_epi16(letter, 3));
    __m128i digit = _mm_add_epi8(_mm_and_si128(c, _mm_set1_epi8(15)), nine);
    __m128i pair = _mm_maddubs_epi16(digit, _mm_set1_epi16(1 << 8 | 16));
    return __builtin_bswap64((uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(pair, pair)));
}

/* The value of 1 to 16 digits. 16 bytes may be read. */
LS_AVX2_INLINE uint64_t ls_decimal_value(const char *s, unsigned n)
{
    __m128i c = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(const void *)s), _mm_set1_epi8('0'));
    __m128i two = _mm_maddubs_epi16(ls_to_the_end(c, n), _mm_set1_epi16(1 << 8 | 10));
    __m128i four = _mm_madd_epi16(two, _mm_set1_epi32(1 << 16 | 100));
    __m128i eight = _mm_madd_epi16(_mm_packus_epi32(four, four), _mm_set1_epi32(1 << 16 | 10000));
    uint64_t both = (uint64_t)_mm_cvtsi128_si64(eight);
    return (both & UINT32_MAX) * 100000000u + (both >> 32);
}

/* Reads a text of n bytes, eight at least, if it has a known layout; else NULL. */
LS_AVX2_INLINE const struct ls_layout *ls_fit_avx2(const struct ls_layouts *all, const char *text, size_t n,
                                                   struct ls_capture *to)
{
    uint32_t key = ls_layout_key(text, n);
    const struct ls_layout *l = all->layout[ls_layout_set(key)];
    if (l->key != key || l->n != n || !ls_same_layout(l, text)) {
        l++;
        if (l->key != key || l->n != n || !ls_same_layout(l, text)) return NULL;
    }
    for (uint32_t i = 0; i < l->room; i += 2)
        _mm256_storeu_si256((__m256i *)(void *)(to + i),
                            _mm256_load_si256((const __m256i *)(const void *)(l->field + i)));
    const struct ls_number *number = l->number;
    for (const struct ls_number *end = number + l->hexes; number < end; number++)
        to[number->slot].value = ls_hex_value(text + number->start, number->n);
    for (const struct ls_number *end = number + l->decimals; number < end; number++)
        to[number->slot].value = ls_decimal_value(text + number->start, number->n);
    return l;
}
#endif

#endif
