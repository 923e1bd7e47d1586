/* The symbols that NCCL looks for. Each is found by a resolver, which dlsym calls: where the wrapped profiler lacks a
   version it gives NULL, NCCL finds nothing and takes the next. psm_abi/profiler.h is not included: it declares these
   as data. */
#include <stdbool.h>

bool check_has(int version);
extern const char check_table_v1[], check_table_v2[], check_table_v3[], check_table_v4[], check_table_v5[],
    check_table_v6[];

#define EXPORT(v)                                                                                                      \
    static void (*resolve_v##v(void))(void)                                                                            \
    {                                                                                                                  \
        return check_has(v) ? (void (*)(void))(const void *)check_table_v##v : (void (*)(void))0;                      \
    }                                                                                                                  \
    __attribute__((ifunc("resolve_v" #v), visibility("default"))) void ncclProfiler_v##v(void);

EXPORT(1)
EXPORT(2)
EXPORT(3)
EXPORT(4)
EXPORT(5)
EXPORT(6)
