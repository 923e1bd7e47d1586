/* Log lines: formatted from the catalogue and passed to NCCL's logger, which adds its prefix and has its own filter. */
#ifndef PSM_TUNER_SAY_H
#define PSM_TUNER_SAY_H

#include "psm_abi/common.h"
#include "psm_tuner_messages.h"
#include "record.h"

/* logger NULL: psm_base writes the line. */
void tuner_say_put(ncclDebugLogger_t logger, const struct psm_record_message *message, const char *function, int line,
                   const struct psm_text *text);

/* TUNER_SAY(logger, PSM_TUNER_USING, psm_tuner_using, arguments...) */
#define TUNER_SAY(logger, MESSAGE, name, ...)                                                                          \
    do {                                                                                                               \
        static const struct psm_record_message message_ = PSM_MESSAGE_##MESSAGE;                                       \
        char line_[PSM_LINE_SIZE];                                                                                     \
        struct psm_text text_ = {line_, 0, sizeof line_, 0};                                                           \
        psm_text_of_##name(&text_, __VA_ARGS__);                                                                       \
        tuner_say_put((logger), &message_, __func__, __LINE__, &text_);                                                \
    } while (0)

#endif
