/* Which functions were called, and how often: table cuda.calls of the record. */
#ifndef HC_CALLS_H
#define HC_CALLS_H

#include <stdint.h>

struct hc_calls_row {
    char function[64];
    uint64_t calls;
    uint32_t library;  /* 0 runtime, 1 driver, 2 NVML */
    uint32_t provided; /* 0: returned "not supported" */
};

/* The row of a function in this process's record, created at its first call. NULL if nothing is recorded:
 * PSM_RECORD_DIR is not set, or the table is full. */
struct hc_calls_row *hc_calls_record(int fn);

#endif
