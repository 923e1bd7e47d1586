/* What both rank programs do alike: read a case's words, and make data that depends on who sends it to whom and when.
 */
#ifndef PSM_LAB_WORDS_H
#define PSM_LAB_WORDS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A decimal number from low to high, and nothing behind it. */
static inline bool lab_number(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    char *end;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || *end || n < low || n > high) return false;
    *value = n;
    return true;
}

/* The place of a word among names, which NULL ends. */
static inline bool lab_choice(const char *text, const char *const *names, unsigned *value)
{
    for (unsigned i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0) {
            *value = i;
            return true;
        }
    return false;
}

static inline uint64_t lab_mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Of a message's data; iter UINT64_MAX: whether there is one, in the random pattern. */
static inline uint64_t lab_key(uint64_t seed, int from, int to, uint64_t iter)
{
    return lab_mix(lab_mix(seed ^ (uint64_t)from << 40 ^ (uint64_t)to << 20) + iter);
}

#endif
