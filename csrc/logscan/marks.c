/* One pass over the bytes of a log: where lines end, and whether there is anything in them that is read with more care.
 * No branch depends on where a line ends: no processor predicts that. */
#include "layout.h"
#include "scanner.h"

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
/* Lines that have a layout are not odd, so that it is cheaper to look at the others one by one. */
LS_AVX2 static void mark_avx2(const char *s, uint32_t blocks, uint32_t base, struct ls_marks *to)
{
    const __m256i line = _mm256_set1_epi8('\n');
    uint32_t *at = to->end + to->n;
    for (const char *e = s + (size_t)blocks * BLOCK; s < e; s += BLOCK, base += BLOCK) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)s);
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(s + 32));
        uint64_t ends = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, line)) |
                        (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, line)) << 32;
        uint32_t *next = at + _mm_popcnt_u64(ends);
        at[0] = base + (uint32_t)_tzcnt_u64(ends);
        ends = _blsr_u64(ends);
        at[1] = base + (uint32_t)_tzcnt_u64(ends);
        for (at += 2; at < next; at++) {
            ends = _blsr_u64(ends);
            *at = base + (uint32_t)_tzcnt_u64(ends);
        }
        at = next;
    }
    to->n = (uint32_t)(at - to->end);
    to->odd = true;
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
    return wide && ls_has_avx2() ? mark_avx2 : mark_sse2;
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
