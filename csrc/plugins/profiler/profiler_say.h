#ifndef PSM_PROFILER_SAY_H
#define PSM_PROFILER_SAY_H

#include "plugin_say.h"
#include "psm_profiler_messages.h"

/* NCCL prints the subsystem INIT by default. */
/* PROF_SAY(logger, PSM_PROFILER_USING, psm_profiler_using, arguments...) */
#define PROF_SAY(logger, ...) PSM_PLUGIN_SAY(logger, NCCL_INIT, __VA_ARGS__)

#endif
