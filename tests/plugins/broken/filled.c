/* A plugin whose tables have only name and init until init has run: it then copies those of tables.c, which are renamed
 * when they are compiled for it. FILLED=partly: init leaves isend empty. */
#include <stdlib.h>

#define PSM_ABI_CONST
#include "psm_abi/net.h"

extern ncclNet_v8_t inner_v8;
extern ncclNet_v12_t inner_v12;

static ncclResult_t init_v8(ncclDebugLogger_t logger)
{
    ncclNetPlugin_v8 = inner_v8;
    if (getenv("FILLED")) ncclNetPlugin_v8.isend = NULL;
    return inner_v8.init(logger);
}

static ncclResult_t init_v12(void **context, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t logger,
                             ncclProfilerCallback_t profiler)
{
    ncclNetPlugin_v12 = inner_v12;
    if (getenv("FILLED")) ncclNetPlugin_v12.isend = NULL;
    return inner_v12.init(context, id, config, logger, profiler);
}

ncclNet_v8_t ncclNetPlugin_v8 = {.name = "Filled", .init = init_v8};
ncclNet_v12_t ncclNetPlugin_v12 = {.name = "Filled", .init = init_v12};
