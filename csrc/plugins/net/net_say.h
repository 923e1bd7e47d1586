/* Log lines of the net plugin, to the logger of the last init. */
#ifndef PSM_NET_SAY_H
#define PSM_NET_SAY_H

#include "limit.h"
#include "plugin_say.h"
#include "psm_net_messages.h"

/* The logger of the last init; NULL: none yet, then psm_base writes the line. */
void net_say_set(ncclDebugLogger_t logger);
ncclDebugLogger_t net_say_logger(void);

/* Somebody who connected to a listener is turned away. At a limited rate, for all listeners of the process. */
void net_say_refused(int dev, const char *address, const char *why);
/* How many of them were not said. */
void net_say_refused_rest(void);

/* NET_SAY(PSM_NET_CONNECTED, psm_net_connected, NCCL_NET, arguments...) */
#define NET_SAY(MESSAGE, name, subsystems, ...) PSM_PLUGIN_SAY(net_say_logger(), subsystems, MESSAGE, name, __VA_ARGS__)

#endif
