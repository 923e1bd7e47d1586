/* Reads time from the TSC if it is invariant: about 8 ns instead of 20 to 60 for a call of clock_gettime. Each thread
 * synchronises its clock with CLOCK_MONOTONIC about a hundred times a second, so that no thread reads what another
 * writes, and an error of 100 ppm in the rate adds up to 1 us at most. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "profiler_plugin.h"

enum { SPAN_NS = 10000000, STRIKES = 8 };

_Atomic int prof_clock_kind;
static _Atomic uint64_t rate; /* ns per cycle, times 2^32 */
static _Atomic unsigned strikes;

#if defined(__x86_64__)
static bool invariant(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
}
#else
static bool invariant(void)
{
    return false;
}
#endif

/* Reads both clocks at nearly the same moment: takes the fastest of several tries. A try that took little more than the
 * best ever seen is good: nothing interrupted it. */
static void read_both(uint64_t *tsc, uint64_t *ns, int tries)
{
    static _Atomic uint64_t best = UINT64_MAX / 2;
    uint64_t least = UINT64_MAX;
    *tsc = *ns = 0;
    while (tries--) {
        uint64_t before = prof_tsc(), now = psm_clock_ns(), took = prof_tsc() - before;
        if (took >= least) continue;
        least = took;
        *tsc = before + took / 2;
        *ns = now;
        uint64_t known = atomic_load_explicit(&best, memory_order_relaxed);
        if (took < known) atomic_store_explicit(&best, took, memory_order_relaxed);
        if (took <= 2 * known && known < UINT64_MAX / 2) break;
    }
}

static uint64_t ratio(uint64_t ns, uint64_t cycles)
{
    return cycles ? (uint64_t)(((unsigned __int128)ns << 32) / cycles) : 0;
}

static bool near(uint64_t a, uint64_t b, uint64_t ppm)
{
    uint64_t apart = a > b ? a - b : b - a;
    return a && b && apart <= b / 1000000 * ppm + 1;
}

/* Two intervals must agree: they do not if the TSC stops or changes its rate. */
static uint64_t measure(void)
{
    uint64_t tsc[3], ns[3];
    for (int i = 0; i < 3; i++) {
        if (i) nanosleep(&(struct timespec){0, 2000000}, NULL);
        read_both(&tsc[i], &ns[i], 20);
    }
    uint64_t first = ratio(ns[1] - ns[0], tsc[1] - tsc[0]), second = ratio(ns[2] - ns[1], tsc[2] - tsc[1]);
    /* A cycle must be between 0.1 and 2 ns, or the product in prof_now would overflow. */
    uint64_t all = ratio(ns[2] - ns[0], tsc[2] - tsc[0]);
    return near(first, second, 500) && all > (uint64_t)1 << 28 && all < (uint64_t)1 << 33 ? all : 0;
}

int prof_clock_prepare(bool tsc)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!tsc) {
        atomic_store(&prof_clock_kind, PROF_CLOCK_MONOTONIC);
    } else if (!atomic_load(&rate) && invariant()) {
        uint64_t found = 0;
        for (int i = 0; i < 3 && !found; i++) found = measure();
        atomic_store(&rate, found);
    }
    if (tsc && atomic_load(&rate) && atomic_load(&strikes) < STRIKES) atomic_store(&prof_clock_kind, PROF_CLOCK_TSC);
    pthread_mutex_unlock(&lock);
    return atomic_load(&prof_clock_kind);
}

uint64_t prof_clock_set(struct prof_clock *clock, bool *tick)
{
    if (atomic_load_explicit(&prof_clock_kind, memory_order_relaxed) != PROF_CLOCK_TSC) {
        uint64_t now = psm_clock_ns();
        if (now - clock->ns > SPAN_NS) {
            clock->ns = now;
            *tick = true;
        }
        return now;
    }
    uint64_t tsc, ns, known = atomic_load_explicit(&rate, memory_order_relaxed);
    read_both(&tsc, &ns, 10);
    *tick = true;
    uint64_t passed = tsc - clock->tsc;
    if (clock->limit && passed <= 8 * clock->limit) {
        /* What the clock would have returned. If it is off by more than 20 us, the rate is not the cause: this core has
         * another clock. */
        int64_t off = (int64_t)(clock->ns + (uint64_t)(((unsigned __int128)passed * clock->mult) >> 32) - ns);
        if ((off > 20000 || off < -20000) && atomic_fetch_add(&strikes, 1) + 1 == STRIKES)
            atomic_store(&prof_clock_kind, PROF_CLOCK_MONOTONIC);
    }
    /* The rate over the last seconds; the system's clock is adjusted, and a machine may have slept. */
    uint64_t since = tsc - clock->anchor_tsc, better = ratio(ns - clock->anchor_ns, since);
    bool good = clock->anchor_ns && ns - clock->anchor_ns > 5 * (uint64_t)SPAN_NS && near(better, known, 1000);
    if (good || !clock->mult) clock->mult = good ? better : known;
    if (!clock->anchor_ns || ns - clock->anchor_ns > 200 * (uint64_t)SPAN_NS) {
        clock->anchor_tsc = tsc;
        clock->anchor_ns = ns;
    }
    clock->tsc = tsc;
    clock->ns = ns;
    clock->limit = ((uint64_t)SPAN_NS << 32) / known;
    return ns;
}
