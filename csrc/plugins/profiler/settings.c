/* Settings from the environment. If ours is not set, the names that other profilers use for the same thing apply. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "profiler_plugin.h"
#include "profiler_say.h"
#include "psm_abi_versions.h"

/* By the number of their bit. */
static const struct kind {
    const char *word;
    uint32_t bit;
    uint32_t since;
    uint32_t above; /* asked for with it */
} kinds[] = {
#define KIND(word, bit, since, above, by_default) {word, bit, since, above},
    PSM_ABI_PROFILER_EACH_KIND(KIND)
#undef KIND
};
enum { KINDS = sizeof kinds / sizeof *kinds, ALL = (int)((UINT64_C(1) << KINDS) - 1) };

/* proxyCtrl occurs in each turn of an idle proxy thread. With kernelCh NCCL passes each operation to the proxy, even
 * without a network; its phases need it. Network events double the cost of a step. */
#define KIND(word, bit, since, above, by_default) | ((by_default) ? bit : 0)
enum { DEFAULT = 0 PSM_ABI_PROFILER_EACH_KIND(KIND) };
#undef KIND

uint32_t prof_mask_closed(uint32_t mask, uint32_t abi)
{
    uint32_t closed = mask & ALL, known = 0;
    for (int i = 0; i < KINDS; i++) {
        if (mask & kinds[i].bit) closed |= kinds[i].above;
        if (kinds[i].since <= abi) known |= kinds[i].bit;
    }
    return closed & known;
}

static bool wrong(ncclDebugLogger_t logger, const char *name, const char *value, const char *meant)
{
    PROF_SAY(logger, PSM_PROFILER_SETTING, psm_profiler_setting, name, value, meant);
    return false;
}

/* The first of the names that is set. */
static const char *setting(const char **name, const char *other)
{
    const char *value = getenv(*name);
    if (value && *value) return value;
    value = other ? getenv(other) : NULL;
    if (!value || !*value) return NULL;
    *name = other;
    return value;
}

static bool number(ncclDebugLogger_t logger, const char *name, uint64_t least, uint64_t most, const char *meant,
                   uint64_t *value)
{
    const char *text = setting(&name, NULL);
    if (!text) return true;
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (*end || *text < '0' || *text > '9' || n < least || n > most) return wrong(logger, name, text, meant);
    *value = n;
    return true;
}

static bool seconds(ncclDebugLogger_t logger, const char *name, const char *other, uint64_t *ns)
{
    const char *text = setting(&name, other);
    if (!text) return true;
    char *end;
    double n = strtod(text, &end);
    if (*end || end == text || !(n >= 0.001 && n <= 86400))
        return wrong(logger, name, text, "expected seconds from 0.001 to 86400");
    *ns = (uint64_t)(n * 1e9);
    return true;
}

static bool bytes(ncclDebugLogger_t logger, uint64_t *value)
{
    const char *name = "PSM_PROFILER_MAX_BYTES", *text = setting(&name, NULL);
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "", "k", "m", "g"};
    if (!text) return true;
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    for (int i = 0; i < 8; i++)
        if (*text >= '0' && *text <= '9' && strcasecmp(end, units[i]) == 0 && n <= UINT64_MAX >> (10 * (i % 4) + 1)) {
            *value = n << (10 * (i % 4));
            return true;
        }
    return wrong(logger, name, text, "expected a size such as 268435456 or 256MiB");
}

static bool add_kind(const char *word, size_t n, uint32_t *mask)
{
    bool less = n && *word == '-';
    uint32_t bits = 0;
    if (less) word++, n--;
    for (int i = 0; i < KINDS; i++)
        if (strlen(kinds[i].word) == n && strncasecmp(kinds[i].word, word, n) == 0) bits = kinds[i].bit;
    /* Its phases would bring it back. */
    if (less && bits == ncclProfileKernelCh) bits |= ncclProfileKernelPhase;
    if (n == 3 && strncasecmp(word, "all", n) == 0) bits = ALL;
    if (n == 7 && strncasecmp(word, "default", n) == 0) bits = DEFAULT;
    if (!bits && !(n == 4 && strncasecmp(word, "none", n) == 0)) return false;
    *mask = less ? *mask & ~bits : *mask | bits;
    return true;
}

/* A number, or names separated by commas, with "-" before one to exclude: all,-kernelch */
static bool events(ncclDebugLogger_t logger, uint32_t *mask)
{
    const char *name = "PSM_PROFILER_EVENTS", *text = setting(&name, "NCCL_PROFILE_EVENT_MASK");
    if (!text) return true;
    char *end;
    unsigned long long n = strtoull(text, &end, 0);
    uint32_t found = 0;
    if (!*end && *text >= '0' && *text <= '9') {
        /* Ignores kinds of a later NCCL. */
        *mask = (uint32_t)(n & ALL);
        return true;
    }
    if (*text == '-') found = DEFAULT;
    for (const char *word = text; *word;) {
        size_t length = strcspn(word, ",");
        if (!add_kind(word, length, &found))
            return wrong(logger, name, text,
                         "expected a mask, or names of " PSM_ABI_PROFILER_KIND_WORDS ", all, default, none");
        word += length;
        if (*word) word++;
    }
    *mask = found;
    return true;
}

/* ---- names ---- */

/* Also those of libnccl-profiler-check.so, which may be in front. */
static const char *const known_names[] = {"CLOCK", "EVENTS", "FORCE_MS", "INTERVAL_SEC", "MAX_BYTES",
                                          "SLOTS", "STREAM", "TRIGGER",  "WRAP"};
enum { NAMES = sizeof known_names / sizeof *known_names, LONGEST = 63 };
static const char prefix[] = "PSM_PROFILER_";

/* How many letters to add, drop or replace. */
static size_t edits(const char *a, const char *b)
{
    size_t row[LONGEST + 1], n = strlen(b);
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t corner = row[0]++;
        for (size_t j = 0; j < n; j++) {
            size_t replaced = corner + (a[i] != b[j]), less = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            corner = row[j + 1];
            row[j + 1] = replaced < less ? replaced : less;
        }
    }
    return row[n];
}

/* A misspelt name would be ignored, and the default apply. */
static void report_unknown(ncclDebugLogger_t logger)
{
    for (char **at = environ; at && *at; at++) {
        if (strncmp(*at, prefix, sizeof prefix - 1) != 0) continue;
        char name[LONGEST + 1] = "", nearest[LONGEST + 1], whole[LONGEST + 1];
        const char *rest = *at + sizeof prefix - 1;
        size_t best = 0, fewest = SIZE_MAX;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(rest, "="), rest);
        for (size_t i = 0; i < NAMES; i++) {
            size_t n = edits(name, known_names[i]);
            if (n < fewest) fewest = n, best = i;
        }
        if (fewest == 0) continue;
        snprintf(whole, sizeof whole, "%s%.*s", prefix, (int)(LONGEST - sizeof prefix), name);
        snprintf(nearest, sizeof nearest, "%s%s", prefix, known_names[best]);
        PROF_SAY(logger, PSM_PROFILER_UNKNOWN, psm_profiler_unknown, whole, nearest);
    }
}

bool prof_settings_read(struct prof_settings *settings, ncclDebugLogger_t logger)
{
    uint64_t slots = 100000, trigger = 0, force_ms = 2000;
    report_unknown(logger);
    *settings = (struct prof_settings){
        .mask = DEFAULT, .interval_ns = 5000000000, .most_bytes = (uint64_t)256 << 20, .tsc = true};
    const char *name = "PSM_PROFILER_CLOCK", *clock = setting(&name, NULL);
    if (clock && strcmp(clock, "tsc") != 0 && strcmp(clock, "monotonic") != 0)
        return wrong(logger, name, clock, "expected tsc or monotonic");
    settings->tsc = !clock || *clock == 't';
    if (!number(logger, "PSM_PROFILER_SLOTS", 64, PSM_PROF_MAX_SLOTS, "expected 64 to 262144 slots", &slots) ||
        !number(logger, "PSM_PROFILER_TRIGGER", 1, PSM_PROF_MAX_SLOTS, "expected 1 to 262144 events", &trigger) ||
        !number(logger, "PSM_PROFILER_FORCE_MS", 1, 86400000, "expected milliseconds from 1 to 86400000", &force_ms) ||
        !seconds(logger, "PSM_PROFILER_INTERVAL_SEC", "NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC",
                 &settings->interval_ns) ||
        !bytes(logger, &settings->most_bytes) || !events(logger, &settings->mask))
        return false;
    settings->slots = (uint32_t)slots;
    settings->trigger = trigger && trigger < slots ? (uint32_t)trigger : (uint32_t)(trigger ? slots : slots / 2);
    settings->force_ns = force_ms * 1000000;
    return true;
}
