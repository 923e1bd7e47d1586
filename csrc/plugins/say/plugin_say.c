#include "plugin_say.h"

void psm_plugin_say(ncclDebugLogger_t logger, const struct psm_record_message *message, unsigned long subsystems,
                    const char *function, int line, const struct psm_text *text)
{
    if (!logger) {
        psm_log_write(message->level, text->at, text->n);
        return;
    }
    /* NCCL's WARN takes a file name, its INFO a function name; most releases print neither. */
    bool warn = message->level == PSM_LEVEL_WARN;
    logger(warn ? NCCL_LOG_WARN : NCCL_LOG_INFO, warn ? (unsigned long)NCCL_ALL : subsystems, function, line, "%.*s",
           (int)text->n, text->at);
}
