/* The list of cases on standard input: one a line, key=value with blanks between. The runner writes it; a person can.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rank.h"
#include "words.h"

static const char *const patterns[] = {"pair", "ring", "alltoall", "random", NULL};
static const char *const streams[] = {"legacy", "blocking", "nonblocking", NULL};
static const char *const skips[] = {"none", "send", "recv", NULL};
static const char *const shares[] = {"auto", "same-process", "memfd", "posix", "cumem", "cuda-ipc", NULL};
static const char *const zero_copies[] = {"never", "registered", "always", NULL};

static bool number32(const char *text, uint64_t low, uint64_t high, uint32_t *value)
{
    uint64_t n;
    if (!lab_number(text, low, high, &n)) return false;
    *value = (uint32_t)n;
    return true;
}

static bool word(const char *text, char *out, size_t size)
{
    if (!*text || strlen(text) >= size) return false;
    strcpy(out, text);
    return true;
}

static bool set(struct lab_case *c, const char *key, const char *value)
{
    struct psm_settings *s = &c->settings;
    unsigned n;
    uint64_t at;
#define IS(name) (strcmp(key, name) == 0)
    if (IS("name")) return word(value, c->name, sizeof c->name);
    if (IS("variant") && strncmp(value, "net/", 4) == 0) return word(value + 4, c->net_variant, sizeof c->net_variant);
    if (IS("variant")) return word(value, c->variant, sizeof c->variant);
    if (IS("pattern")) return lab_choice(value, patterns, &n) && (c->pattern = (enum pattern)n, true);
    if (IS("app_stream")) return lab_choice(value, streams, &n) && (c->stream = (enum app_stream)n, true);
    if (IS("skip")) return lab_choice(value, skips, &n) && (c->skip = (enum skip)n, true);
    if (IS("size")) return lab_number(value, 0, UINT64_C(1) << 36, &c->size);
    if (IS("iters")) return lab_number(value, 1, 1000000, &c->iters);
    if (IS("channels")) {
        if (!lab_number(value, 1, 64, &c->channels)) return false;
        s->channels = (uint32_t)c->channels;
        return true;
    }
    if (IS("seed")) return lab_number(value, 0, UINT64_MAX, &c->seed);
    if (IS("shared_init")) return lab_number(value, 0, 1, &at) && (c->shared_init = at == 1, true);
    if (IS("device")) return lab_number(value, 0, 1023, &c->device);
    if (IS("shorter")) return lab_number(value, 0, UINT64_C(1) << 36, &c->shorter);
    if (IS("steps")) return number32(value, 1, 64, &s->steps);
    if (IS("buffer_size")) return lab_number(value, 64, UINT64_C(1) << 32, &s->buffer_size);
    if (IS("share")) return lab_choice(value, shares, &s->share);
    if (IS("zero_copy")) {
        if (!lab_choice(value, zero_copies, &s->zero_copy)) return false;
        c->registered = s->zero_copy == 1;
        return true;
    }
    if (IS("timeout_ms")) return number32(value, 1, 86400000, &s->timeout_ms);
    if (IS("stall_report_ms")) return number32(value, 0, 86400000, &s->stall_report_ms);
    if (IS("spin_us")) return number32(value, 0, 1000000, &s->spin_us);
#undef IS
    return false;
}

int lab_case_read(struct lab_case *c, char *text, size_t size)
{
    static unsigned count;
    char line[4096];
    do {
        if (!fgets(line, sizeof line, stdin)) return 0;
        if (!strchr(line, '\n') && !feof(stdin)) {
            snprintf(text, size, "a case has more than %zu bytes", sizeof line - 2);
            return -1;
        }
    } while (line[strspn(line, " \t\n")] == 0 || line[0] == '#');
    *c = (struct lab_case){
        .iters = 1, .channels = 1, .stream = STREAM_NONBLOCKING, .variant = "split", .net_variant = "split"};
    snprintf(c->name, sizeof c->name, "%u", count++);
    c->settings.size = sizeof c->settings;
    if (psm_settings_read(&c->settings) != PSM_OK) {
        snprintf(text, size, "%s", psm_last_error()->text);
        return -1;
    }
    char *rest = line;
    for (char *item; (item = strtok_r(rest, " \t\n", &rest));) {
        char *equal = strchr(item, '=');
        if (equal) *equal = 0;
        if (equal && set(c, item, equal + 1)) continue;
        snprintf(text, size, "case %.60s: %.60s%s%.60s: no such key, or a value that it cannot have", c->name, item,
                 equal ? "=" : "", equal ? equal + 1 : "");
        return -1;
    }
    /* What psm_settings_read asks of the environment. */
    if (c->settings.buffer_size % c->settings.steps != 0 || c->settings.buffer_size / c->settings.steps < 64) {
        snprintf(text, size, "case %.60s: buffer_size %llu is no multiple of steps %u with at least 64 bytes a slot",
                 c->name, (unsigned long long)c->settings.buffer_size, c->settings.steps);
        return -1;
    }
    return 1;
}

/* ---- patterns and data ---- */

bool lab_sends(const struct lab_case *c, int from, int to, int ranks)
{
    switch (c->pattern) {
    case PATTERN_PAIR: /* 0 with 1, 2 with 3; who is left over sends to itself */
        return (from ^ 1) < ranks ? to == (from ^ 1) : to == from;
    case PATTERN_RING:
        return to == (from + 1) % ranks;
    case PATTERN_ALLTOALL:
        return true;
    case PATTERN_RANDOM:
        return lab_key(c->seed, from, to, UINT64_MAX) & 1;
    }
    return false;
}

uint64_t lab_part(const struct lab_case *c, int from, int to, uint64_t iter, uint64_t channel, uint64_t *begin)
{
    uint64_t bytes = c->size;
    if (c->pattern == PATTERN_RANDOM) bytes = lab_key(c->seed ^ 1, from, to, iter) % (c->size + 1);
    uint64_t part = (bytes + c->channels - 1) / c->channels;
    *begin = channel * part < bytes ? channel * part : bytes;
    return bytes - *begin < part ? bytes - *begin : part;
}

void lab_fill(uint8_t *out, uint64_t n, uint64_t at, uint64_t seed, int from, int to, uint64_t iter)
{
    uint64_t key = lab_key(seed, from, to, iter);
    for (uint64_t i = 0; i < n; i += 8) {
        uint64_t value = lab_mix(key + (at + i) / 8);
        memcpy(out + i, &value, n - i < 8 ? n - i : 8);
    }
}
