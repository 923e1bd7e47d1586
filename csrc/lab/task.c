/* The part of a case that both rank programs have. This file needs libc only: a test compiles it with nccl_data.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "task.h"

static const char *const patterns[] = {"pair",   "ring",          "alltoall",  "random",        "put-signal",
                                       "tasks",  "allreduce",     "allgather", "reducescatter", "broadcast",
                                       "reduce", "alltoall-coll", "gather",    "scatter",       NULL};
static const char *const streams[] = {"legacy", "blocking", "nonblocking", NULL};
static const char *const skips[] = {"none", "send", "recv", NULL};

/* ---- the list of cases ---- */

bool lab_number(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    char *end;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || *end || n < low || n > high) return false;
    *value = n;
    return true;
}

bool lab_flag(const char *text, bool *value)
{
    uint64_t n;
    if (!lab_number(text, 0, 1, &n)) return false;
    *value = n;
    return true;
}

bool lab_word(const char *text, char *out, size_t size)
{
    if (!*text || strlen(text) >= size) return false;
    strcpy(out, text);
    return true;
}

bool lab_choice(const char *text, const char *const *names, unsigned *value)
{
    for (unsigned i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0) {
            *value = i;
            return true;
        }
    return false;
}

int lab_task_set(struct lab_task *task, const char *key, const char *value, enum lab_pattern last)
{
    unsigned n = 0;
    bool good;
    if (strcmp(key, "name") == 0) {
        good = lab_word(value, task->name, sizeof task->name);
    } else if (strcmp(key, "pattern") == 0) {
        good = lab_choice(value, patterns, &n) && n <= last;
        if (good) task->pattern = (enum lab_pattern)n;
    } else if (strcmp(key, "app_stream") == 0) {
        good = lab_choice(value, streams, &n);
        if (good) task->stream = (enum lab_stream)n;
    } else if (strcmp(key, "skip") == 0) {
        good = lab_choice(value, skips, &n);
        if (good) task->skip = (enum lab_skip)n;
    } else if (strcmp(key, "size") == 0) {
        good = lab_number(value, 0, UINT64_C(1) << 36, &task->size);
    } else if (strcmp(key, "seed") == 0) {
        good = lab_number(value, 0, UINT64_MAX, &task->seed);
    } else if (strcmp(key, "device") == 0) {
        good = lab_number(value, 0, 1023, &task->device);
    } else if (strcmp(key, "shorter") == 0) {
        good = lab_number(value, 0, UINT64_C(1) << 36, &task->shorter);
    } else {
        return 0;
    }
    return good ? 1 : -1;
}

int lab_case_line(char *line, size_t room, struct lab_task *task, char *text, size_t size)
{
    static unsigned count;
    do {
        if (!fgets(line, (int)room, stdin)) return 0;
        if (!strchr(line, '\n') && !feof(stdin)) {
            snprintf(text, size, "a case has more than %zu bytes", room - 2);
            return -1;
        }
    } while (line[strspn(line, " \t\n")] == 0 || line[0] == '#');
    snprintf(task->name, sizeof task->name, "%u", count++);
    return 1;
}

bool lab_case_set(char *line, lab_set *set, void *c, const struct lab_task *task, char *text, size_t size)
{
    char *rest = line;
    for (char *item; (item = strtok_r(rest, " \t\n", &rest));) {
        char *equal = strchr(item, '=');
        if (equal) *equal = 0;
        if (equal && set(c, item, equal + 1)) continue;
        snprintf(text, size, "case %.60s: %.60s%s%.60s: no such key, or a value that it cannot have", task->name, item,
                 equal ? "=" : "", equal ? equal + 1 : "");
        return false;
    }
    return true;
}

/* ---- what goes where ---- */

uint64_t lab_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Of a message's data; iter UINT64_MAX: whether there is one, in the random pattern. */
uint64_t lab_key(uint64_t seed, int from, int to, uint64_t iter)
{
    return lab_mix(lab_mix(seed ^ (uint64_t)from << 40 ^ (uint64_t)to << 20) + iter);
}

bool lab_sends(const struct lab_task *task, int from, int to, int ranks)
{
    switch (task->pattern) {
    case PATTERN_PAIR: /* 0 with 1, 2 with 3; who is left over sends to itself */
        return (from ^ 1) < ranks ? to == (from ^ 1) : to == from;
    case PATTERN_RING:
        return to == (from + 1) % ranks;
    case PATTERN_ALLTOALL:
        return true;
    case PATTERN_RANDOM:
        return lab_key(task->seed, from, to, UINT64_MAX) & 1;
    case PATTERN_PUT_SIGNAL:
        return from != to;
    default:
        return false;
    }
}

uint64_t lab_message(const struct lab_task *task, int from, int to, uint64_t iter)
{
    if (task->pattern != PATTERN_RANDOM) return task->size;
    return lab_key(task->seed ^ 1, from, to, iter) % (task->size + 1);
}

void lab_fill(uint8_t *out, uint64_t n, uint64_t at, uint64_t seed, int from, int to, uint64_t iter)
{
    uint64_t key = lab_key(seed, from, to, iter);
    for (uint64_t i = 0; i < n; i += 8) {
        uint64_t value = lab_mix(key + (at + i) / 8);
        memcpy(out + i, &value, n - i < 8 ? n - i : 8);
    }
}

/* ---- a look at every byte ---- */

void lab_compare(struct lab_check *check, const uint8_t *seen, uint8_t *meant, uint64_t n, uint64_t data, int from,
                 uint64_t iter, uint64_t at)
{
    memset(meant + data, UNTOUCHED, n - data);
    if (memcmp(seen, meant, n) == 0) return;
    for (uint64_t i = 0; i < n; i++) {
        if (seen[i] == meant[i] || check->wrong++ > 0) continue;
        check->from = from;
        check->iter = iter;
        check->offset = at + i;
        check->seen = seen[i];
        check->meant = meant[i];
    }
}

void lab_wrong(const struct lab_check *check, char *text, size_t size)
{
    char whose[48] = "";
    if (check->from >= 0) snprintf(whose, sizeof whose, "from rank %d: ", check->from);
    snprintf(text, size, "%llu wrong byte%s; the first is %sbyte %llu of iteration %llu is 0x%02x, expected 0x%02x",
             (unsigned long long)check->wrong, check->wrong == 1 ? "" : "s", whose, (unsigned long long)check->offset,
             (unsigned long long)check->iter, check->seen, check->meant);
}
