#include "say.h"

void prof_say_put(ncclDebugLogger_t logger, const struct psm_record_message *message, const char *function, int line,
                  const struct psm_text *text)
{
    if (!logger) {
        psm_log_write(message->level, text->at, text->n);
        return;
    }
    bool warn = message->level == PSM_LEVEL_WARN;
    /* NCCL prints the subsystem INIT by default. */
    logger(warn ? NCCL_LOG_WARN : NCCL_LOG_INFO, warn ? (unsigned long)NCCL_ALL : (unsigned long)NCCL_INIT, function,
           line, "%.*s", (int)text->n, text->at);
}
