/* Who goes on where threads meet. All atomics are relaxed: ThreadSanitizer sees no edge between the threads in them, so
 * that a race is told although the order of the run was a lucky one. */
#include "permute.h"

#include <sched.h>
#include <stdatomic.h>

enum { WINDOW = 24, MOST = 400, LOGGED = 4096 };

static _Atomic uint64_t seed, step, here;
static _Atomic uint16_t order[LOGGED];
static _Thread_local enum thread_name self;
static _Thread_local uint64_t state;

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t load(_Atomic uint64_t *of)
{
    return atomic_load_explicit(of, memory_order_relaxed);
}

void permute_thread(enum thread_name me)
{
    self = me;
    state = mix(load(&seed) * THREADS + me + 1);
}

uint64_t permute_random(void)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(state);
}

void permute_begin(uint64_t of)
{
    atomic_store_explicit(&seed, of, memory_order_relaxed);
    atomic_store_explicit(&step, 0, memory_order_relaxed);
    for (int i = 0; i < LOGGED; i++) atomic_store_explicit(&order[i], 0, memory_order_relaxed);
}

/* Priorities are dealt anew every few steps. */
static bool is_first(uint64_t waiting)
{
    uint64_t deal = load(&step) / 4, best = 0;
    enum thread_name first = self;
    for (int t = 0; t < THREADS; t++) {
        uint64_t priority = mix(load(&seed) ^ mix(deal * THREADS + (uint64_t)t + 1));
        if ((waiting >> t & 1) && priority >= best) {
            best = priority;
            first = (enum thread_name)t;
        }
    }
    return first == self;
}

void permute_meet(void *unused, int point)
{
    (void)unused;
    uint64_t window = permute_random() % WINDOW;
    atomic_fetch_or_explicit(&here, UINT64_C(1) << self, memory_order_relaxed);
    for (uint64_t i = 0; i < MOST; i++) {
        if (i >= window && is_first(load(&here))) break;
        sched_yield();
    }
    uint64_t now = atomic_fetch_add_explicit(&step, 1, memory_order_relaxed);
    atomic_store_explicit(&order[now % LOGGED], (uint16_t)(self << 8 | point), memory_order_relaxed);
    atomic_fetch_and_explicit(&here, ~(UINT64_C(1) << self), memory_order_relaxed);
}

uint64_t permute_order(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < LOGGED; i++) sum = mix(sum + atomic_load_explicit(&order[i], memory_order_relaxed) + 1);
    return sum;
}

void permute_pause(void)
{
    sched_yield();
}
