/* Deadlines and random numbers. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sys/random.h>

#include "core/internal.h"

struct psm_deadline psm_deadline_in(uint32_t ms)
{
    return (struct psm_deadline){psm_clock_ns() + (uint64_t)ms * 1000000u};
}

bool psm_deadline_passed(struct psm_deadline deadline)
{
    return deadline.at_ns != 0 && psm_clock_ns() >= deadline.at_ns;
}

int psm_deadline_left_ms(struct psm_deadline deadline)
{
    if (deadline.at_ns == 0) return -1;
    uint64_t now = psm_clock_ns();
    if (now >= deadline.at_ns) return 0;
    uint64_t ms = (deadline.at_ns - now + 999999u) / 1000000u;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

uint64_t psm_random64(void)
{
    for (;;) {
        uint64_t value = 0;
        /* The kernel returns up to 256 bytes in one piece; it blocks only in the first moments of a boot. */
        ssize_t n = getrandom(&value, sizeof value, 0);
        if (n == (ssize_t)sizeof value && value != 0) return value;
        if (n < 0 && errno != EINTR) {
            /* No such system call: these need not be unpredictable, but they must differ. */
            static _Atomic uint64_t count;
            uint64_t x = psm_clock_ns() ^ psm_proc_self()->start_time << 20 ^ (uint64_t)psm_proc_self()->pid << 44;
            x += atomic_fetch_add(&count, 1) * 0x9e3779b97f4a7c15u;
            x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
            x = (x ^ x >> 27) * 0x94d049bb133111ebu;
            x ^= x >> 31;
            return x ? x : 1;
        }
    }
}
