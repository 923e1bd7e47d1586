/* Whether CollNet is enabled, and its capabilities. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "collnet/collnet.h"
#include "collnet/reduce.h"
#include "net_say.h"

static bool enabled;
static char none; /* the context if it is disabled */

static ncclResult_t read_setting(ncclDebugLogger_t logger)
{
    const char *text = getenv("PSM_NET_COLLNET");
    enabled = text && strcmp(text, "1") == 0;
    if (!text || !*text || enabled || strcmp(text, "0") == 0) return ncclSuccess;
    if (logger) net_say_set(logger);
    NET_SAY(PSM_NET_SETTING_WRONG, psm_net_setting_wrong, NCCL_NET, "PSM_NET_COLLNET", text, "expected 0 or 1");
    return ncclInvalidUsage;
}

ncclResult_t coll_init(void **context, uint64_t comm_id, ncclDebugLogger_t logger)
{
    ncclResult_t result = read_setting(logger);
    *context = &none;
    if (result != ncclSuccess || !enabled) return result;
    return net_init(context, comm_id, NCCL_NET_TRAFFIC_CLASS_UNDEF, logger, NULL);
}

ncclResult_t coll_init_process(ncclDebugLogger_t logger)
{
    ncclResult_t result = read_setting(logger);
    return result != ncclSuccess || !enabled ? result : net_init_process(logger, NULL);
}

ncclResult_t coll_finalize(void *context)
{
    return context == &none ? ncclSuccess : net_finalize(context);
}

/* None if it is disabled: NCCL continues without CollNet. */
ncclResult_t coll_devices(int *ndev)
{
    *ndev = enabled ? net_physical_devices() : 0;
    return ncclSuccess;
}

ncclResult_t coll_properties(int dev, ncclNetProperties_v12_t *props)
{
    if (!enabled) return net_misuse("getProperties", "CollNet is disabled: PSM_NET_COLLNET=1 enables it");
    ncclResult_t result = net_properties(dev, props);
    if (result != ncclSuccess) return result;
    props->ptrSupport = NCCL_PTR_HOST; /* the processor reduces */
    props->regIsGlobal = 0;
    props->maxRecvs = 1;
    props->netDeviceType = NCCL_NET_DEVICE_HOST;
    props->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
    if (props->maxCollBytes > MAX_COLLNET_SIZE) props->maxCollBytes = MAX_COLLNET_SIZE;
    return ncclSuccess;
}

ncclResult_t coll_support(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
    *supported = reduce_supported(type, op);
    return ncclSuccess;
}
