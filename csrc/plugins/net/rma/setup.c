/* Whether RMA is enabled, and its devices. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "net_say.h"
#include "rma/rma.h"

static bool enabled;
static char none; /* the context if it is disabled */

ncclResult_t rma_init(void **context, uint64_t comm_id, ncclDebugLogger_t logger)
{
    const char *text = getenv("PSM_NET_RMA");
    *context = &none;
    enabled = text && strcmp(text, "1") == 0;
    if (enabled) {
        ncclResult_t result = net_init(context, comm_id, NCCL_NET_TRAFFIC_CLASS_UNDEF, logger, NULL);
        if (result == ncclSuccess) ((struct net_context *)*context)->one_sided = true;
        return result;
    }
    if (!text || !*text || strcmp(text, "0") == 0) return ncclSuccess;
    if (logger) net_say_set(logger);
    NET_SAY(PSM_NET_SETTING_WRONG, psm_net_setting_wrong, NCCL_NET, "PSM_NET_RMA", text, "expected 0 or 1");
    return ncclInvalidUsage;
}

ncclResult_t rma_finalize(void *context)
{
    return context == &none ? ncclSuccess : net_finalize(context);
}

/* None if it is disabled: NCCL continues with another RMA plugin, or without. */
ncclResult_t rma_devices(int *ndev)
{
    *ndev = enabled ? net_physical_devices() : 0;
    return ncclSuccess;
}

ncclResult_t rma_properties(int dev, ncclNetProperties_v12_t *props)
{
    if (!enabled) return net_misuse("getProperties", "RMA is disabled: PSM_NET_RMA=1 enables it");
    ncclResult_t result = net_properties(dev, props);
    if (result != ncclSuccess) return result;
    /* GPU memory is registered whatever stands here. NCCL has one entry for a device in its topology, whose table comes
     * first: with NCCL_PTR_CUDA it would give GPU memory to the net table, too. */
    props->ptrSupport = NCCL_PTR_HOST;
    props->regIsGlobal = 0;
    props->maxRecvs = 1;
    props->netDeviceType = NCCL_NET_DEVICE_GIN_PROXY; /* v13 demands it */
    return ncclSuccess;
}
