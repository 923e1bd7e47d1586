/* Settings from the environment. A wrong value is an error that lists the valid ones: a job that silently runs with
 * another value than its author set is worse than one that does not start. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/internal.h"
#include "psm/psm_share.h"
#include "psm_lib_messages.h"

enum unit { COUNT, BYTES, SECONDS /* kept as milliseconds */, CHOICE };

static const char *const shares[] = {"auto", "same-process", "memfd", "posix", "cumem", "cuda-ipc", NULL};
static const char *const zero_copies[] = {"never", "registered", "always", NULL};
_Static_assert(PSM_SHARE_MEMFD == 2 && PSM_SHARE_POSIX == 3 && PSM_SHARE_CUMEM == 4 && PSM_SHARE_CUDA_IPC == 5,
               "the names are in this order");

struct setting {
    const char *name;
    size_t offset, width;
    enum unit unit;
    uint64_t low, high, otherwise;
    const char *const *names; /* of CHOICE; the index is the value */
};
#define FIELD(member) offsetof(struct psm_settings, member), sizeof(((struct psm_settings *)0)->member)

static const struct setting settings_table[] = {
    {"PSM_TIMEOUT", FIELD(timeout_ms), SECONDS, 1, 86400000, 60000, NULL},
    {"PSM_STALL_REPORT", FIELD(stall_report_ms), SECONDS, 0, 86400000, 10000, NULL},
    {"PSM_STEPS", FIELD(steps), COUNT, 1, 64, 8, NULL},
    {"PSM_BUFFER_SIZE", FIELD(buffer_size), BYTES, 64, UINT64_C(1) << 32, UINT64_C(2) << 20, NULL},
    {"PSM_SHARE", FIELD(share), CHOICE, 0, 5, 0, shares},
    {"PSM_ZERO_COPY", FIELD(zero_copy), CHOICE, 0, 2, 1, zero_copies},
    {"PSM_CHANNELS", FIELD(channels), COUNT, 1, 64, 2, NULL},
    {"PSM_SPIN", FIELD(spin_us), COUNT, 0, 1000000, 50, NULL},
};
enum { SETTINGS = sizeof settings_table / sizeof *settings_table };

/* Digits, with up to three decimal places for seconds. The result is then in milliseconds. */
static bool read_number(const char *text, enum unit unit, uint64_t *value)
{
    uint64_t scale = unit == SECONDS ? 1000 : 1, number = 0;
    const char *p = text;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(number, 10u, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*p - '0'), &number))
            return false;
    if (__builtin_mul_overflow(number, scale, &number)) return false;
    if (unit == SECONDS && *p == '.') {
        p++;
        if (*p < '0' || *p > '9') return false;
        for (scale = 100; *p >= '0' && *p <= '9' && scale > 0; p++, scale /= 10) number += (uint64_t)(*p - '0') * scale;
    }
    if (unit == BYTES && *p) {
        static const char letters[] = "KMG";
        const char *letter = strchr(letters, *p & ~0x20);
        if (!letter || !*letter) return false;
        if (__builtin_mul_overflow(number, UINT64_C(1) << 10 * (letter - letters + 1), &number)) return false;
        p++;
    }
    *value = number;
    return *p == 0;
}

static bool read_value(const struct setting *s, const char *text, uint64_t *value)
{
    for (uint64_t i = 0; s->unit == CHOICE && s->names[i]; i++)
        if (strcasecmp(s->names[i], text) == 0) {
            *value = i;
            return true;
        }
    return read_number(text, s->unit, value) && *value >= s->low && *value <= s->high;
}

static psm_status complain(const struct setting *s, const char *text)
{
    char names[128];
    switch (s->unit) {
    case SECONDS:
        return psm_fail(PSM_ERR_INVALID, "settings", -1, -1, 0,
                        "%s is \"%.60s\"; expected seconds from %g to %g, with up to three decimal places", s->name,
                        text, (double)s->low / 1000, (double)s->high / 1000);
    case BYTES:
        return psm_fail(PSM_ERR_INVALID, "settings", -1, -1, 0,
                        "%s is \"%.60s\"; expected bytes from %llu to %llu, such as 65536, 512K, 4M or 1G", s->name,
                        text, (unsigned long long)s->low, (unsigned long long)s->high);
    case CHOICE:
        names[0] = 0;
        for (size_t i = 0; s->names[i]; i++) {
            if (i) strcat(names, ", ");
            strcat(names, s->names[i]);
        }
        return psm_fail(PSM_ERR_INVALID, "settings", -1, -1, 0,
                        "%s is \"%.60s\"; expected one of %s, or its number counted from 0", s->name, text, names);
    case COUNT:
        break;
    }
    return psm_fail(PSM_ERR_INVALID, "settings", -1, -1, 0, "%s is \"%.60s\"; expected a number from %llu to %llu",
                    s->name, text, (unsigned long long)s->low, (unsigned long long)s->high);
}

psm_status psm_settings_read(struct psm_settings *settings)
{
    psm_log_read_filter();
    if (!settings || settings->size < sizeof(uint32_t) * 2)
        return psm_fail(PSM_ERR_INVALID, "settings", -1, -1, 0,
                        "psm_settings_read: settings->size is %u; set it to sizeof(struct psm_settings), which is %zu",
                        settings ? settings->size : 0, sizeof *settings);
    struct psm_settings found = {.size = settings->size};
    for (size_t i = 0; i < SETTINGS; i++) {
        const struct setting *s = &settings_table[i];
        const char *text = getenv(s->name);
        uint64_t value = s->otherwise;
        if (text && *text) {
            if (!read_value(s, text, &value)) return complain(s, text);
            psm_msg_libpsm_setting_set(s->name, value);
        }
        if (s->width == sizeof(uint64_t))
            memcpy((char *)&found + s->offset, &value, sizeof value);
        else
            memcpy((char *)&found + s->offset, &(uint32_t){(uint32_t)value}, sizeof(uint32_t));
    }
    if (found.buffer_size % found.steps != 0 || found.buffer_size / found.steps < 64)
        return psm_fail(PSM_ERR_INVALID, "settings", -1, -1, 0,
                        "PSM_BUFFER_SIZE is %llu bytes for PSM_STEPS = %u slots; expected a multiple of PSM_STEPS, "
                        "with at least 64 bytes per slot",
                        (unsigned long long)found.buffer_size, found.steps);
    memcpy(settings, &found, settings->size < sizeof found ? settings->size : sizeof found);
    return PSM_OK;
}
