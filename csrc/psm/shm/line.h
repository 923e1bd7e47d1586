/* Words shared by two processes, each on its own cache line, so that writing one does not take another's line away. A
 * thread that loads a value sees everything written before its store. */
#ifndef PSM_SHM_LINE_H
#define PSM_SHM_LINE_H

#include <stdatomic.h>
#include <stdint.h>

#include "psm/psm.h"

enum { PSM_LINE = 64 };

struct psm_line {
    _Alignas(PSM_LINE) _Atomic uint64_t value;
    uint8_t unused[PSM_LINE - sizeof(uint64_t)];
};
PSM_SHAREABLE(psm_line, PSM_LINE);
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock would not be shared with the other process");

static inline uint64_t psm_line_load(const struct psm_line *line)
{
    return atomic_load_explicit(&line->value, memory_order_acquire);
}
/* For a word that only the caller writes: reading it back needs no ordering. */
static inline uint64_t psm_line_own(const struct psm_line *line)
{
    return atomic_load_explicit(&line->value, memory_order_relaxed);
}
static inline void psm_line_store(struct psm_line *line, uint64_t value)
{
    atomic_store_explicit(&line->value, value, memory_order_release);
}
/* Take a flag exactly once: returns the old value and stores `value`. */
static inline uint64_t psm_line_swap(struct psm_line *line, uint64_t value)
{
    return atomic_exchange_explicit(&line->value, value, memory_order_acq_rel);
}

/* Prefetch a line: lines that are fetched together take the time of one. */
static inline void psm_line_fetch(const void *line)
{
    __builtin_prefetch(line);
}
/* Prefetch for writing. On x86 the compiler fetches for reading unless the target processor is known to support more.
 */
static inline void psm_line_fetch_own(void *line)
{
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

static inline void psm_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#endif
}

#endif
