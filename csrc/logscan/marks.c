/* One pass over the bytes of a log: where lines end, and whether there is anything in them that is read with more care.
 * No branch depends on where a line ends: no processor predicts that. */
#include "scanner.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { BLOCK = 64, ESCAPE = 0x1b };

/* Adds the line ends in a block, given as bits. Most blocks have two at most: those are written before it is known. */
#define ADD_ENDS(to, bits, base)                                                                                       \
    do {                                                                                                               \
        uint64_t left_ = (bits);                                                                                       \
        uint32_t n_ = (uint32_t)__builtin_popcountll(left_), *at_ = (to)->end + (to)->n;                               \
        at_[0] = (base) + (uint32_t)__builtin_ctzll(left_ | 1ull << 63);                                               \
        left_ &= left_ - 1;                                                                                            \
        at_[1] = (base) + (uint32_t)__builtin_ctzll(left_ | 1ull << 63);                                               \
        for (uint32_t k_ = 2; k_ < n_; k_++) {                                                                         \
            left_ &= left_ - 1;                                                                                        \
            at_[k_] = (base) + (uint32_t)__builtin_ctzll(left_);                                                       \
        }                                                                                                              \
        (to)->n += n_;                                                                                                 \
    } while (0)

void ls_mark_plain(const char *s, uint32_t blocks, uint32_t base, struct ls_marks *to)
{
    for (uint32_t b = 0; b < blocks; b++, s += BLOCK) {
        uint64_t ends = 0;
        for (int i = 0; i < BLOCK; i++) {
            ends |= (uint64_t)(s[i] == '\n') << i;
            to->odd |= s[i] == ESCAPE || (s[i] == ']' && s[i + 1] == '(');
        }
        ADD_ENDS(to, ends, base + b * BLOCK);
    }
}

#ifdef __x86_64__
__attribute__((target("avx2,popcnt,bmi"))) static void mark_avx2(const char *s, uint32_t blocks, uint32_t base,
                                                                 struct ls_marks *to)
{
    const __m256i line = _mm256_set1_epi8('\n'), escape = _mm256_set1_epi8(ESCAPE), link = _mm256_set1_epi8(']'),
                  address = _mm256_set1_epi8('(');
    __m256i odd = _mm256_setzero_si256();
    for (uint32_t b = 0; b < blocks; b++, s += BLOCK) {
        uint64_t ends = 0;
        for (int i = 0; i < BLOCK; i += 32) {
            __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(s + i));
            __m256i next = _mm256_loadu_si256((const __m256i *)(const void *)(s + i + 1));
            ends |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(c, line)) << i;
            odd = _mm256_or_si256(odd, _mm256_cmpeq_epi8(c, escape));
            odd = _mm256_or_si256(odd, _mm256_and_si256(_mm256_cmpeq_epi8(c, link), _mm256_cmpeq_epi8(next, address)));
        }
        ADD_ENDS(to, ends, base + b * BLOCK);
    }
    to->odd |= !_mm256_testz_si256(odd, odd);
}

static void mark_sse2(const char *s, uint32_t blocks, uint32_t base, struct ls_marks *to)
{
    const __m128i line = _mm_set1_epi8('\n'), escape = _mm_set1_epi8(ESCAPE), link = _mm_set1_epi8(']'),
                  address = _mm_set1_epi8('(');
    __m128i odd = _mm_setzero_si128();
    for (uint32_t b = 0; b < blocks; b++, s += BLOCK) {
        uint64_t ends = 0;
        for (int i = 0; i < BLOCK; i += 16) {
            __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(s + i));
            __m128i next = _mm_loadu_si128((const __m128i *)(const void *)(s + i + 1));
            ends |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(c, line)) << i;
            odd = _mm_or_si128(odd, _mm_cmpeq_epi8(c, escape));
            odd = _mm_or_si128(odd, _mm_and_si128(_mm_cmpeq_epi8(c, link), _mm_cmpeq_epi8(next, address)));
        }
        ADD_ENDS(to, ends, base + b * BLOCK);
    }
    to->odd |= _mm_movemask_epi8(odd) != 0;
}
#endif

ls_marker ls_best_marker(bool wide)
{
#ifdef __x86_64__
    wide = wide && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("bmi");
    return wide ? mark_avx2 : mark_sse2;
#else
    (void)wide;
    return ls_mark_plain;
#endif
}

size_t ls_mark(ls_marker marker, const char *s, size_t n, struct ls_marks *to)
{
    to->n = 0;
    to->odd = false;
    if (n > LS_SPAN) { /* each block is read with the byte behind it */
        marker(s, LS_SPAN / BLOCK, 0, to);
        return LS_SPAN;
    }
    uint32_t whole = n ? (uint32_t)(n - 1) / BLOCK : 0, at = whole * BLOCK;
    char last[2 * BLOCK] = {0};
    marker(s, whole, 0, to);
    if (n) memcpy(last, s + at, n - at);
    marker(last, 1, at, to);
    return n;
}
