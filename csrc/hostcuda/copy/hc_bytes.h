/* Copies of host memory. */
#ifndef HC_BYTES_H
#define HC_BYTES_H
#include <stddef.h>

/* As memmove; on x86 faster if another process owned the lines, or if the copy exceeds the caches. */
void hc_bytes_move(void *to, const void *from, size_t n);

/* Prefetch a line for writing. On x86 the compiler fetches it for reading unless the target processor is known to
 * support more. */
static inline void hc_fetch_own(void *host)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)host));
#else
    __builtin_prefetch(host, 1);
#endif
}

#endif
