#define _GNU_SOURCE
#include "say.h"

#include <stdatomic.h>

static _Atomic(ncclDebugLogger_t) current;

void net_say_set(ncclDebugLogger_t logger)
{
    atomic_store(&current, logger);
}

void net_say_put(const struct psm_record_message *message, unsigned long subsystems, const char *function, int line,
                 const struct psm_text *text)
{
    ncclDebugLogger_t logger = atomic_load(&current);
    if (!logger) {
        psm_log_write(message->level, text->at, text->n);
        return;
    }
    /* NCCL's WARN takes a file name, its INFO a function name; most releases print neither. */
    bool warn = message->level == PSM_LEVEL_WARN;
    logger(warn ? NCCL_LOG_WARN : NCCL_LOG_INFO, warn ? (unsigned long)NCCL_ALL : subsystems, function, line, "%.*s",
           (int)text->n, text->at);
}
