/* One pass over the bytes of a log: where lines end, and what in them decides how they are read. */
#include "scanner.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

/* The bytes that are marked: a line end, an escape character, the bracket in each link, and the L in each NCCL. */
static bool marked(char c)
{
    return c == '\n' || c == 0x1b || c == '(' || c == 'L';
}

void ls_marks_plain(const char *s, size_t blocks, uint64_t *marks)
{
    for (; blocks; blocks--, s += LS_MARKS, marks++) {
        *marks = 0;
        for (int i = 0; i < LS_MARKS; i++) *marks |= (uint64_t)marked(s[i]) << i;
    }
}

#ifdef __x86_64__
/* Their lower halves differ, so that one look-up by them finds the only byte that each could be. */
__attribute__((target("avx2"))) static void marks_avx2(const char *s, size_t blocks, uint64_t *marks)
{
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 0, 0, 0, 0, 0, 0, 0, '(', 0, '\n', 0x1b, 'L', 0, 0, 0));
    for (; blocks; blocks--, s += LS_MARKS, marks++) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)s);
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(s + 32));
        uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, _mm256_shuffle_epi8(bytes, a)));
        uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(b, _mm256_shuffle_epi8(bytes, b)));
        *marks = (uint64_t)high << 32 | low;
    }
}

static void marks_sse2(const char *s, size_t blocks, uint64_t *marks)
{
    const __m128i line = _mm_set1_epi8('\n'), escape = _mm_set1_epi8(0x1b), link = _mm_set1_epi8('('),
                  name = _mm_set1_epi8('L');
    for (; blocks; blocks--, s += LS_MARKS, marks++) {
        *marks = 0;
        for (int i = 0; i < LS_MARKS; i += 16) {
            __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(s + i));
            __m128i found = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(c, line), _mm_cmpeq_epi8(c, escape)),
                                         _mm_or_si128(_mm_cmpeq_epi8(c, link), _mm_cmpeq_epi8(c, name)));
            *marks |= (uint64_t)(uint32_t)_mm_movemask_epi8(found) << i;
        }
    }
}
#endif

ls_marker ls_best_marker(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") ? marks_avx2 : marks_sse2;
#else
    return ls_marks_plain;
#endif
}

size_t ls_mark(ls_marker marker, const char *s, size_t n, uint64_t *marks, size_t most)
{
    size_t whole = n / LS_MARKS, rest = n % LS_MARKS;
    if (whole >= most) {
        marker(s, most, marks);
        return most;
    }
    marker(s, whole, marks);
    if (!rest) return whole;
    char last[LS_MARKS] = {0};
    memcpy(last, s + whole * LS_MARKS, rest);
    marker(last, 1, marks + whole);
    return whole + 1;
}
