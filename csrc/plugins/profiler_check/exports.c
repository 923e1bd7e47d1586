/* The symbols that NCCL looks up. Each has a resolver, which dlsym calls: if the wrapped profiler lacks a version it
 * returns NULL, and NCCL tries the next. psm_abi/profiler.h is not included: it declares these symbols as data. */
#include <stdbool.h>

#include "psm_abi_versions.h"

bool check_has(int version);

#define EXPORT(v)                                                                                                      \
    extern const char check_table_v##v[];                                                                              \
    static void (*resolve_v##v(void))(void)                                                                            \
    {                                                                                                                  \
        return check_has(v) ? (void (*)(void))(const void *)check_table_v##v : (void (*)(void))0;                      \
    }                                                                                                                  \
    __attribute__((ifunc("resolve_v" #v), visibility("default"))) void ncclProfiler_v##v(void);

PSM_ABI_PROFILER_VERSIONS(EXPORT)
