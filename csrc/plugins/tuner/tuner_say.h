#ifndef PSM_TUNER_SAY_H
#define PSM_TUNER_SAY_H

#include "plugin_say.h"
#include "psm_tuner_messages.h"

/* TUNER_SAY(logger, PSM_TUNER_USING, psm_tuner_using, arguments...) */
#define TUNER_SAY(logger, ...) PSM_PLUGIN_SAY(logger, NCCL_TUNING, __VA_ARGS__)

#endif
