/* Log lines: formatted from the catalogue and passed to NCCL's logger, which adds its prefix and has its own filter. */
#ifndef PSM_NET_SAY_H
#define PSM_NET_SAY_H

#include "limit.h"
#include "psm_abi/common.h"
#include "psm_net_messages.h"
#include "record.h"

/* The logger of the last init; NULL: none yet, then psm_base writes the line. */
void net_say_set(ncclDebugLogger_t logger);
void net_say_put(const struct psm_record_message *message, unsigned long subsystems, const char *function, int line,
                 const struct psm_text *text);

/* Somebody who connected to a listener is turned away. At a limited rate, for all listeners of the process. */
void net_say_refused(int dev, const char *address, const char *why);
/* How many of them were not said. */
void net_say_refused_rest(void);

/* NET_SAY(PSM_NET_CONNECTED, psm_net_connected, NCCL_NET, arguments...) */
#define NET_SAY(MESSAGE, name, subsystems, ...)                                                                        \
    do {                                                                                                               \
        static const struct psm_record_message message_ = PSM_MESSAGE_##MESSAGE;                                       \
        char line_[PSM_LINE_SIZE];                                                                                     \
        struct psm_text text_ = {line_, 0, sizeof line_, 0};                                                           \
        psm_text_of_##name(&text_, __VA_ARGS__);                                                                       \
        net_say_put(&message_, (subsystems), __func__, __LINE__, &text_);                                              \
    } while (0)

#endif
