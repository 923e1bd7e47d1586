/* Birth times, from the processor's counter: a system call takes twice as long. */
#include "san_internal.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* PAIR_TICKS: both clocks must be read within so many ticks, or the thread was stopped in between. FIRST_NS: how long
 * the rate of the counter is measured before it is used. */
enum { PAIR_TICKS = 10000, PAIR_TRIES = 3, FIRST_NS = 5000000 };

_Atomic uint64_t san_clock_rate;
_Thread_local struct san_moment san_clock_seen __attribute__((tls_model("initial-exec")));
static struct san_moment first; /* ns 0: the counter is not used */

static bool look(struct san_moment *moment)
{
    for (int i = 0; i < PAIR_TRIES; i++) {
        uint64_t before = __rdtsc();
        moment->ns = psm_clock_ns();
        moment->ticks = __rdtsc();
        if (moment->ticks - before < PAIR_TICKS) return true;
    }
    return false;
}

uint64_t san_clock_look(void)
{
    struct san_moment now;
    if (!first.ns || !look(&now)) return psm_clock_ns();
    if (now.ns - first.ns >= FIRST_NS && now.ticks > first.ticks) {
        double rate = (double)(now.ns - first.ns) / (double)(now.ticks - first.ticks);
        atomic_store_explicit(&san_clock_rate, (uint64_t)(rate * (1u << SAN_CLOCK_SHIFT)), memory_order_relaxed);
        san_clock_seen = now;
    }
    return now.ns;
}

void san_clock_start(void)
{
    unsigned a, b, c, d;
    /* At a constant rate, whatever the processor does to save power. */
    bool even = __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1 << 8;
    if (!even || !look(&first)) first.ns = 0;
}

#else

void san_clock_start(void) {}

#endif
