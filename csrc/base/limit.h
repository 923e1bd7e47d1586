/* A limit for the rate of lines that others can cause: some at once, then one a second, a minute apart in the end. */
#ifndef PSM_LIMIT_H
#define PSM_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { PSM_LIMIT_BURST = 8, PSM_LIMIT_LONGEST_S = 64 };

/* All zeros: nothing was said yet. For one thread at a time. */
struct psm_limit {
    uint64_t seen, next; /* psm_clock_ns: the last one; when one may be said again */
    uint64_t skipped;    /* since the last that was said */
    uint32_t said;
};

/* Whether this one may be said; if not it is counted. */
static inline bool psm_limit_pass(struct psm_limit *limit, uint64_t now)
{
    const uint64_t second = UINT64_C(1000000000);
    if (now - limit->seen > PSM_LIMIT_LONGEST_S * second) limit->said = 0;
    limit->seen = now;
    if (limit->said >= PSM_LIMIT_BURST && now < limit->next) {
        limit->skipped++;
        return false;
    }
    uint32_t late = limit->said < PSM_LIMIT_BURST ? 0 : limit->said - PSM_LIMIT_BURST;
    limit->next = now + (late < 6 ? second << late : PSM_LIMIT_LONGEST_S * second);
    limit->said++;
    return true;
}

/* How many were not said since the last one. Forgets them. */
static inline uint64_t psm_limit_take_skipped(struct psm_limit *limit)
{
    uint64_t skipped = limit->skipped;
    limit->skipped = 0;
    return skipped;
}

#endif
