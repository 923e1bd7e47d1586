/* Copies of memory. A copy larger than a core's share of the caches does not profit from them: each line it writes is
 * read first, and evicts one that is still to be read. The C library switches to non-temporal stores at three quarters
 * of the whole last-level cache, which in a virtual machine on a large processor is far more than the core's share. */
#include "copy/hc_bytes.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* Measured: at 16 MiB both ways take the same time if the lines are this core's own, and the caches win if another core
 * has just written them; from 32 MiB on they lose in both cases, at 64 MiB they take twice as long. */
#define STREAM_FROM ((size_t)32 << 20)
/* Below this size memcpy is a little faster if the lines are this core's own. */
#define AHEAD_FROM ((size_t)128 << 10)

#if defined(__x86_64__)
enum { LINE = 64, PAGE = 4096, AHEAD = 512, NEAR = 1024 };

/* Pages that are copied in parallel. Intel needs four streams to keep the memory busy. Measured on an EPYC of the third
 * generation at 64 MiB: 13.4 GB/s with one page, 12.4 with two, 3.6 with four, 8.5 by memcpy. */
#ifndef HC_STREAM_PAGES
#define HC_STREAM_PAGES (__builtin_cpu_is("amd") ? 1 : 4)
#endif

/* `to` is line-aligned; n is a multiple of `parallel`, which is one or more pages. */
static void stream(char *to, const char *from, size_t n, size_t parallel)
{
    for (size_t block = 0; block < n; block += parallel) {
        for (size_t at = block; at < block + PAGE; at += LINE) {
            for (size_t page = 0; page < parallel; page += PAGE) {
                const char *in = from + at + page;
                char *out = to + at + page;
                _mm_prefetch(in + AHEAD, _MM_HINT_T0); /* harmless beyond the end of the mapping */
                for (size_t i = 0; i < LINE; i += sizeof(__m128i))
                    _mm_stream_si128((__m128i *)(void *)(out + i), _mm_loadu_si128((const __m128i *)(in + i)));
            }
        }
    }
    _mm_sfence(); /* they are not ordered with the store that publishes the end of the copy */
}

/* Lines last written by another core arrive slowly, and memcpy requests only a few at once. The operands must not
 * overlap. */
static void ahead(char *to, const char *from, size_t n)
{
    for (; n >= LINE; n -= LINE, to += LINE, from += LINE) {
        __builtin_prefetch(from + NEAR);
        hc_fetch_own(to + NEAR);
        memcpy(to, from, LINE);
    }
    memcpy(to, from, n);
}
#endif

void hc_bytes_move(void *to, const void *from, size_t n)
{
#if defined(__x86_64__)
    uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
    bool apart = (a < b ? b - a : a - b) >= n;
    if (n >= STREAM_FROM && apart) {
        size_t parallel = (size_t)HC_STREAM_PAGES * PAGE;
        size_t head = -a % LINE, all = (n - head) / parallel * parallel;
        memcpy(to, from, head);
        stream((char *)to + head, (const char *)from + head, all, parallel);
        to = (char *)to + head + all;
        from = (const char *)from + head + all;
        n -= head + all;
    } else if (n >= AHEAD_FROM && apart) {
        ahead(to, from, n);
        return;
    }
#endif
    memmove(to, from, n); /* as fast as memcpy, and defined if an application's operands overlap */
}
