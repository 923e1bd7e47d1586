/* Log lines of our plugins: formatted from the catalogue and passed to NCCL's logger, which adds its prefix and has its
 * own filter. */
#ifndef PSM_PLUGIN_SAY_H
#define PSM_PLUGIN_SAY_H

#include "log.h"
#include "psm_abi/common.h"
#include "record.h"

/* logger NULL: psm_base writes the line. subsystems: of a line that is no warning. */
void psm_plugin_say(ncclDebugLogger_t logger, const struct psm_record_message *message, unsigned long subsystems,
                    const char *function, int line, const struct psm_text *text);

/* PSM_PLUGIN_SAY(logger, NCCL_INIT, PSM_PROFILER_USING, psm_profiler_using, arguments...) */
#define PSM_PLUGIN_SAY(logger, subsystems, MESSAGE, name, ...)                                                         \
    do {                                                                                                               \
        static const struct psm_record_message message_ = PSM_MESSAGE_##MESSAGE;                                       \
        char line_[PSM_LINE_SIZE];                                                                                     \
        struct psm_text text_ = {line_, 0, sizeof line_, 0};                                                           \
        psm_text_of_##name(&text_, __VA_ARGS__);                                                                       \
        psm_plugin_say((logger), &message_, (subsystems), __func__, __LINE__, &text_);                                 \
    } while (0)

#endif
