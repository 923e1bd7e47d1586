/* The symbols that NCCL looks up. Each has a resolver, which dlsym calls: if the wrapped profiler lacks a version it
 * returns NULL, and NCCL tries the next. psm_abi/profiler.h is not included: it declares these symbols as data. */
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
