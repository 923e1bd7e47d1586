/* A case of psm_rank: its keys beyond those of every case, and the part of a message that a channel carries. */
#include <stdio.h>
#include <string.h>

#include "rank.h"

static const char *const shares[] = {"auto", "same-process", "memfd", "posix", "cumem", "cuda-ipc", NULL};
static const char *const zero_copies[] = {"never", "registered", "always", NULL};

static bool number32(const char *text, uint64_t low, uint64_t high, uint32_t *value)
{
    uint64_t n;
    if (!lab_number(text, low, high, &n)) return false;
    *value = (uint32_t)n;
    return true;
}

static bool set(void *which, const char *key, const char *value)
{
    struct lab_case *c = which;
    struct psm_settings *s = &c->settings;
    int common = lab_task_set(&c->task, key, value, PATTERN_RANDOM);
    if (common != 0) return common > 0;
#define IS(name) (strcmp(key, name) == 0)
    if (IS("variant") && strncmp(value, "net/", 4) == 0)
        return lab_word(value + 4, c->net_variant, sizeof c->net_variant);
    if (IS("variant")) return lab_word(value, c->variant, sizeof c->variant);
    if (IS("iters")) return lab_number(value, 1, 1000000, &c->task.iters);
    if (IS("channels")) {
        if (!lab_number(value, 1, 64, &c->channels)) return false;
        s->channels = (uint32_t)c->channels;
        return true;
    }
    if (IS("via")) return lab_flag(value, &c->via);
    if (IS("shared_init")) return lab_flag(value, &c->shared_init);
    if (IS("steps")) return number32(value, 1, 64, &s->steps);
    if (IS("buffer_size")) return lab_number(value, 64, UINT64_C(1) << 32, &s->buffer_size);
    if (IS("share")) return lab_choice(value, shares, &s->share);
    if (IS("zero_copy")) {
        if (!lab_choice(value, zero_copies, &s->zero_copy)) return false;
        c->task.registered = s->zero_copy == 1;
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
    char line[4096];
    *c = (struct lab_case){
        .task = {.iters = 1, .stream = STREAM_NONBLOCKING}, .channels = 1, .variant = "split", .net_variant = "split"};
    int more = lab_case_line(line, sizeof line, &c->task, text, size);
    if (more <= 0) return more;
    c->settings.size = sizeof c->settings;
    if (psm_settings_read(&c->settings) != PSM_OK) {
        snprintf(text, size, "%s", psm_last_error()->text);
        return -1;
    }
    if (!lab_case_set(line, set, c, &c->task, text, size)) return -1;
    /* What psm_settings_read asks of the environment. */
    if (c->settings.buffer_size % c->settings.steps != 0 || c->settings.buffer_size / c->settings.steps < 64) {
        snprintf(text, size, "case %.60s: buffer_size %llu is no multiple of steps %u with at least 64 bytes a slot",
                 c->task.name, (unsigned long long)c->settings.buffer_size, c->settings.steps);
        return -1;
    }
    return 1;
}

uint64_t lab_part(const struct lab_case *c, int from, int to, uint64_t iter, uint64_t channel, uint64_t *begin)
{
    uint64_t bytes = lab_message(&c->task, from, to, iter);
    uint64_t part = (bytes + c->channels - 1) / c->channels;
    *begin = channel * part < bytes ? channel * part : bytes;
    return bytes - *begin < part ? bytes - *begin : part;
}
