/* The rules of plans: their names, and their checker. Needs only libc, so that an analysis of logs and records can
 * check them without libpsm. cffi reads planrules.cdef.h; this header declares the same for C. */
#ifndef PSM_PLANRULES_H
#define PSM_PLANRULES_H

#include <stddef.h>
#include <stdint.h>

#include "psm/psm_plan_events.h"

#include "planrules.cdef.h"

#endif
