/* The recorder that is installed when the library is loaded: it writes to the record file of the process. */
#ifndef PSM_RECORD_STEPS_H
#define PSM_RECORD_STEPS_H

#include "conn/step.h"

extern const struct psm_step_recorder psm_steps_in_record;

#endif
