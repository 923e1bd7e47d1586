/* What the programs that time calls of a plugin share. */
#ifndef PSM_BENCHMARKS_CALLS_H
#define PSM_BENCHMARKS_CALLS_H

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "psm_abi/common.h"

/* In ns. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The plugin's logger: warnings only. */
__attribute__((format(printf, 5, 6))) static void quiet(ncclDebugLogLevel level, unsigned long flags, const char *file,
                                                        int line, const char *format, ...)
{
    (void)flags, (void)file, (void)line;
    if (level != NCCL_LOG_WARN) return;
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
}

#endif
