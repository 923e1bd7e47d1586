/* Which log lines are enabled: level and subsystems, as NCCL reads them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/internal.h"

_Atomic uint32_t psm_log_filter;

static const struct {
    const char *name;
    uint32_t bit;
} subsystems[] = {
    {"INIT", PSM_SUB_INIT},
    {"COLL", PSM_SUB_COLL},
    {"P2P", PSM_SUB_P2P},
    {"SHM", PSM_SUB_SHM},
    {"NET", PSM_SUB_NET},
    {"GRAPH", PSM_SUB_GRAPH},
    {"TUNING", PSM_SUB_TUNING},
    {"ENV", PSM_SUB_ENV},
    {"ALLOC", PSM_SUB_ALLOC},
    {"CALL", PSM_SUB_CALL},
    {"PROXY", PSM_SUB_PROXY},
    {"NVLS", PSM_SUB_NVLS},
    {"BOOTSTRAP", PSM_SUB_BOOTSTRAP},
    {"REG", PSM_SUB_REG},
    {"PROFILE", PSM_SUB_PROFILE},
    {"RAS", PSM_SUB_RAS},
    {"ALL", PSM_SUB_ALL},
};

static uint32_t level_of(const char *text)
{
    /* VERSION enables none of our lines; ABORT ranks between INFO and TRACE. */
    if (strcasecmp(text, "TRACE") == 0) return PSM_LEVEL_TRACE;
    if (strcasecmp(text, "INFO") == 0 || strcasecmp(text, "ABORT") == 0) return PSM_LEVEL_INFO;
    return PSM_LEVEL_WARN;
}

/* "INIT,P2P", or "^P2P" for all but those. Unknown subsystems are ignored, as in NCCL. */
static uint32_t mask_of(const char *text)
{
    bool all_but = *text == '^';
    uint32_t mask = all_but ? PSM_SUB_ALL : 0;
    for (const char *p = text + all_but; *p;) {
        size_t n = strcspn(p, ",");
        for (size_t i = 0; i < sizeof subsystems / sizeof *subsystems; i++) {
            if (strlen(subsystems[i].name) != n || strncasecmp(subsystems[i].name, p, n) != 0) continue;
            mask = all_but ? mask & ~subsystems[i].bit : mask | subsystems[i].bit;
        }
        p += n + (p[n] == ',');
    }
    return mask;
}

static const char *setting(const char *own, const char *nccls)
{
    const char *text = getenv(own);
    return text && *text ? text : getenv(nccls);
}

uint32_t psm_log_read_filter(void)
{
    const char *level = setting("PSM_DEBUG", "NCCL_DEBUG");
    const char *mask = setting("PSM_DEBUG_SUBSYS", "NCCL_DEBUG_SUBSYS");
    uint32_t filter = (level && *level ? level_of(level) : PSM_LEVEL_WARN) << 16;
    filter |= mask && *mask ? mask_of(mask) : PSM_SUB_INIT | PSM_SUB_BOOTSTRAP | PSM_SUB_ENV;
    atomic_store_explicit(&psm_log_filter, filter, memory_order_relaxed);
    return filter;
}
