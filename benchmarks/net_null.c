/* A net plugin that moves nothing and answers at once: what a call of the plugin in front of it costs by itself. */
#include <stddef.h>

#include "psm_abi/net.h"

static ncclResult_t init(void **ctx, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t log,
                         ncclProfilerCallback_t profiler)
{
    (void)id, (void)config, (void)log, (void)profiler;
    static char context;
    *ctx = &context;
    return ncclSuccess;
}

static ncclResult_t devices(int *n)
{
    *n = 1;
    return ncclSuccess;
}

static ncclResult_t properties(int dev, ncclNetProperties_v12_t *p)
{
    *p = (ncclNetProperties_v12_t){.name = "null",
                                   .ptrSupport = NCCL_PTR_HOST,
                                   .speed = 1,
                                   .maxComms = 1,
                                   .maxRecvs = 1,
                                   .vProps = {1, {dev}},
                                   .maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES,
                                   .maxCollBytes = NCCL_MAX_NET_SIZE_BYTES,
                                   .maxMultiRequestSize = 1};
    return ncclSuccess;
}

static char thing;
static ncclResult_t listen_null(void *ctx, int dev, void *handle, void **comm)
{
    (void)ctx, (void)dev, (void)handle;
    *comm = &thing;
    return ncclSuccess;
}
static ncclResult_t connect_null(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v12_t **device)
{
    (void)ctx, (void)dev, (void)handle, (void)device;
    *comm = &thing;
    return ncclSuccess;
}
static ncclResult_t accept_null(void *listener, void **comm, ncclNetDeviceHandle_v12_t **device)
{
    (void)listener, (void)device;
    *comm = &thing;
    return ncclSuccess;
}
static ncclResult_t reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    (void)comm, (void)data, (void)size, (void)type;
    *mhandle = &thing;
    return ncclSuccess;
}
static ncclResult_t dereg(void *comm, void *mhandle)
{
    (void)comm, (void)mhandle;
    return ncclSuccess;
}
static ncclResult_t isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request)
{
    (void)comm, (void)data, (void)size, (void)tag, (void)mhandle, (void)phandle;
    *request = &thing;
    return ncclSuccess;
}
static ncclResult_t irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                          void **request)
{
    (void)comm, (void)n, (void)data, (void)sizes, (void)tags, (void)mhandles, (void)phandles;
    *request = &thing;
    return ncclSuccess;
}

/* Every other test says "not yet". */
static ncclResult_t test(void *request, int *done, int *sizes)
{
    static int turn;
    (void)request;
    *done = turn ^= 1;
    if (sizes) *sizes = 8;
    return ncclSuccess;
}

static ncclResult_t close_null(void *comm)
{
    (void)comm;
    return ncclSuccess;
}

const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = "Null",
    .init = init,
    .devices = devices,
    .getProperties = properties,
    .listen = listen_null,
    .connect = connect_null,
    .accept = accept_null,
    .regMr = reg,
    .deregMr = dereg,
    .isend = isend,
    .irecv = irecv,
    .test = test,
    .closeSend = close_null,
    .closeRecv = close_null,
    .closeListen = close_null,
    .finalize = close_null,
};
