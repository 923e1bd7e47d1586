/* Moving bytes in host memory. */
#ifndef HC_BYTES_H
#define HC_BYTES_H
#include <stddef.h>

/* As memmove; on x86 quicker where another process has had the lines, and where they are more than the caches hold. */
void hc_bytes_move(void *to, const void *from, size_t n);

/* To have a line here for writing by the time it is used. On x86 the compiler takes such a fetch for one for reading
   where it is not told of a processor that has both. */
static inline void hc_fetch_own(void *host)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)host));
#else
    __builtin_prefetch(host, 1);
#endif
}

#endif
