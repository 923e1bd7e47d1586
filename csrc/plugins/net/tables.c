/* NCCL's tables, v12 to v4. Each only adapts its version to the next one; the rest is the front. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "front.h"
#include "say.h"

#define NAME "PSM"

/* ---- v12, v11: one context per communicator ---- */

static ncclResult_t init_v12(void **ctx, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t logger,
                             ncclProfilerCallback_t profiler)
{
    return net_init(ctx, id, config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF, logger, profiler);
}

static ncclResult_t init_v11(void **ctx, uint64_t id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t logger,
                             ncclProfilerCallback_t profiler)
{
    return net_init(ctx, id, config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF, logger, profiler);
}

/* The device handle of connect and accept is for networks that unpack on the GPU: a chained plugin may have one. */
static ncclResult_t connect_v12(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v12_t **device)
{
    return net_connect(ctx, dev, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, comm, (void **)device);
}

static ncclResult_t accept_v12(void *listener, void **comm, ncclNetDeviceHandle_v12_t **device)
{
    return net_accept(listener, comm, (void **)device);
}

/* NCCL 2.30 passes its own, longer record to older tables, too; the size of their own applies. */
#define MAKE(version)                                                                                                  \
    static ncclResult_t make_v##version(int *dev, ncclNetVDeviceProps_v##version##_t *props)                           \
    {                                                                                                                  \
        ncclNetVDeviceProps_v12_t wide = {.ndevs = props->ndevs};                                                      \
        if (props->ndevs > (int)(sizeof props->devs / sizeof *props->devs)) {                                          \
            NET_SAY(PSM_NET_MISUSE, psm_net_misuse, NCCL_NET, "makeVDevice", "too many devices for v" #version);       \
            return ncclInvalidUsage;                                                                                   \
        }                                                                                                              \
        for (int i = 0; i < props->ndevs; i++) wide.devs[i] = props->devs[i];                                          \
        return net_make_device(dev, &wide);                                                                            \
    }
MAKE(12)
MAKE(11)
MAKE(10)
MAKE(9)

static ncclResult_t attributes_v12(void *ctx, ncclNetAttr_v12_t *attributes)
{
    return net_attributes(ctx, attributes);
}

_Static_assert(sizeof(ncclNetAttr_v11_t) == sizeof(ncclNetAttr_v12_t), "one layout");
static ncclResult_t attributes_v11(void *ctx, ncclNetAttr_v11_t *attributes)
{
    ncclNetAttr_v12_t copy;
    memcpy(&copy, attributes, sizeof copy);
    return net_attributes(ctx, &copy);
}

/* ---- v10 and before: one context, that of the process ---- */

static ncclResult_t listen_v10(int dev, void *handle, void **listener)
{
    return net_listen(NULL, dev, handle, listener);
}

static ncclResult_t connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **comm,
                                ncclNetDeviceHandle_v10_t **device)
{
    return net_connect(NULL, dev, config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, comm,
                       (void **)device);
}

/* ---- v9: no profiler, no configuration ---- */

static ncclResult_t init_v9(ncclDebugLogger_t logger)
{
    return net_init_process(logger, NULL);
}

static ncclResult_t connect_v9(int dev, void *handle, void **comm, ncclNetDeviceHandle_v9_t **device)
{
    return connect_v10(dev, NULL, handle, comm, device);
}

static ncclResult_t isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
    return net_isend(comm, data, size, tag, mhandle, NULL, request);
}

static ncclResult_t irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
    return net_irecv(comm, n, data, sizes, tags, mhandles, NULL, request);
}

/* ---- v8: sizes of messages are int ---- */

static ncclResult_t negative(const char *call)
{
    NET_SAY(PSM_NET_MISUSE, psm_net_misuse, NCCL_NET, call, "a size is negative");
    return ncclInternalError;
}

static ncclResult_t isend_v8(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
    if (size < 0) return negative("isend");
    return isend_v9(comm, data, (size_t)size, tag, mhandle, request);
}

static ncclResult_t irecv_v8(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
    size_t wide[NET_RECVS] = {0};
    for (int i = 0; i < n && i < NET_RECVS; i++) {
        if (sizes[i] < 0) return negative("irecv");
        wide[i] = (size_t)sizes[i];
    }
    return irecv_v9(comm, n, data, wide, tags, mhandles, request);
}

/* ---- v7: the size of a registration is int ---- */

static ncclResult_t reg_v7(void *comm, void *data, int size, int type, void **mhandle)
{
    if (size < 0) return negative("regMr");
    return net_reg(comm, data, (size_t)size, type, mhandle);
}

/* ---- v6, v5: no device handles ---- */

static ncclResult_t connect_v6(int dev, void *handle, void **comm)
{
    return net_connect(NULL, dev, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, comm, NULL);
}

static ncclResult_t accept_v6(void *listener, void **comm)
{
    return net_accept(listener, comm, NULL);
}

/* ---- v4: connect and accept wait; no tags, no groups ---- */

static ncclResult_t connect_v4(int dev, void *handle, void **comm)
{
    ncclResult_t result;
    while ((result = connect_v6(dev, handle, comm)) == ncclSuccess && !*comm) sched_yield();
    return result;
}

/* NCCL's thread is in here: do not block it for ever. */
static ncclResult_t accept_v4(void *listener, void **comm)
{
    ncclResult_t result;
    uint64_t until = psm_clock_ns() + net_settings.timeout_ms * 1000000u;
    while ((result = accept_v6(listener, comm)) == ncclSuccess && !*comm) {
        if (psm_clock_ns() > until) return net_system("waiting for a peer to connect (PSM_TIMEOUT)", ETIMEDOUT);
        sched_yield();
    }
    return result;
}

static ncclResult_t isend_v4(void *comm, void *data, int size, void *mhandle, void **request)
{
    return isend_v8(comm, data, size, 0, mhandle, request);
}

static ncclResult_t irecv_v4(void *comm, void *data, int size, void *mhandle, void **request)
{
    int tag = 0;
    return irecv_v8(comm, 1, &data, &size, &tag, &mhandle, request);
}

static ncclResult_t iflush_v4(void *comm, void *data, int size, void *mhandle, void **request)
{
    return net_iflush(comm, 1, &data, &size, &mhandle, request);
}

/* ---- properties ---- */

/* Members of all records; each version adds its own. */
#define COMMON_V4                                                                                                      \
    props->name = p.name;                                                                                              \
    props->pciPath = p.pciPath;                                                                                        \
    props->guid = p.guid;                                                                                              \
    props->ptrSupport = p.ptrSupport;                                                                                  \
    props->speed = p.speed;                                                                                            \
    props->port = p.port;                                                                                              \
    props->maxComms = p.maxComms;
#define COMMON_V6                                                                                                      \
    COMMON_V4                                                                                                          \
    props->latency = p.latency;                                                                                        \
    props->maxRecvs = p.maxRecvs;
#define COMMON_V7                                                                                                      \
    COMMON_V6                                                                                                          \
    props->netDeviceType = p.netDeviceType;                                                                            \
    props->netDeviceVersion = p.netDeviceVersion;
#define COMMON_V8                                                                                                      \
    COMMON_V7                                                                                                          \
    props->regIsGlobal = p.regIsGlobal;
/* A virtual device has at most as many as fit: those of this table are created through it. */
#define COMMON_V9                                                                                                      \
    COMMON_V8                                                                                                          \
    props->forceFlush = p.forceFlush;                                                                                  \
    props->vProps.ndevs = p.vProps.ndevs;                                                                              \
    memcpy(props->vProps.devs, p.vProps.devs, sizeof props->vProps.devs);                                              \
    props->maxP2pBytes = p.maxP2pBytes;                                                                                \
    props->maxCollBytes = p.maxCollBytes;
#define COMMON_V11                                                                                                     \
    COMMON_V9                                                                                                          \
    props->maxMultiRequestSize = p.maxMultiRequestSize;

#define PROPERTIES(version, members)                                                                                   \
    static ncclResult_t properties_v##version(int dev, ncclNetProperties_v##version##_t *props)                        \
    {                                                                                                                  \
        ncclNetProperties_v12_t p;                                                                                     \
        ncclResult_t result = net_properties(dev, &p);                                                                 \
        if (result == ncclSuccess) {                                                                                   \
            members                                                                                                    \
        }                                                                                                              \
        return result;                                                                                                 \
    }
PROPERTIES(11, COMMON_V11)
PROPERTIES(10, COMMON_V9)
PROPERTIES(9, COMMON_V9)
PROPERTIES(8, COMMON_V8)
PROPERTIES(7, COMMON_V7)
PROPERTIES(6, COMMON_V6)
PROPERTIES(4, COMMON_V4)

/* ---- tables ---- */

#define CLOSES   .closeSend = net_close_send, .closeRecv = net_close_recv, .closeListen = net_close_listen
#define SINCE_V5 .deregMr = net_dereg, .iflush = net_iflush, .test = net_test, .devices = net_devices, CLOSES
#define SINCE_V6 SINCE_V5, .regMrDmaBuf = net_reg_dmabuf
#define SINCE_V7 SINCE_V6, .getDeviceMr = net_device_memory, .irecvConsumed = net_consumed

const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = NAME,
    .init = init_v12,
    .getProperties = net_properties,
    .listen = net_listen,
    .connect = connect_v12,
    .accept = accept_v12,
    .regMr = net_reg,
    .isend = net_isend,
    .irecv = net_irecv,
    .finalize = net_finalize,
    .setNetAttr = attributes_v12,
    .makeVDevice = make_v12,
    SINCE_V7,
};

const ncclNet_v11_t ncclNetPlugin_v11 = {
    .name = NAME,
    .init = init_v11,
    .getProperties = properties_v11,
    .listen = net_listen,
    .connect = connect_v12,
    .accept = accept_v12,
    .regMr = net_reg,
    .isend = net_isend,
    .irecv = net_irecv,
    .finalize = net_finalize,
    .setNetAttr = attributes_v11,
    .makeVDevice = make_v11,
    SINCE_V7,
};

const ncclNet_v10_t ncclNetPlugin_v10 = {
    .name = NAME,
    .init = net_init_process,
    .getProperties = properties_v10,
    .listen = listen_v10,
    .connect = connect_v10,
    .accept = accept_v12,
    .regMr = net_reg,
    .isend = net_isend,
    .irecv = net_irecv,
    .makeVDevice = make_v10,
    SINCE_V7,
};

const ncclNet_v9_t ncclNetPlugin_v9 = {
    .name = NAME,
    .init = init_v9,
    .getProperties = properties_v9,
    .listen = listen_v10,
    .connect = connect_v9,
    .accept = accept_v12,
    .regMr = net_reg,
    .isend = isend_v9,
    .irecv = irecv_v9,
    .makeVDevice = make_v9,
    SINCE_V7,
};

const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = NAME,
    .init = init_v9,
    .getProperties = properties_v8,
    .listen = listen_v10,
    .connect = connect_v9,
    .accept = accept_v12,
    .regMr = net_reg,
    .isend = isend_v8,
    .irecv = irecv_v8,
    SINCE_V7,
};

const ncclNet_v7_t ncclNetPlugin_v7 = {
    .name = NAME,
    .init = init_v9,
    .getProperties = properties_v7,
    .listen = listen_v10,
    .connect = connect_v9,
    .accept = accept_v12,
    .regMr = reg_v7,
    .isend = isend_v8,
    .irecv = irecv_v8,
    SINCE_V7,
};

const ncclNet_v6_t ncclNetPlugin_v6 = {
    .name = NAME,
    .init = init_v9,
    .getProperties = properties_v6,
    .listen = listen_v10,
    .connect = connect_v6,
    .accept = accept_v6,
    .regMr = reg_v7,
    .isend = isend_v8,
    .irecv = irecv_v8,
    SINCE_V6,
};

const ncclNet_v5_t ncclNetPlugin_v5 = {
    .name = NAME,
    .init = init_v9,
    .getProperties = properties_v6,
    .listen = listen_v10,
    .connect = connect_v6,
    .accept = accept_v6,
    .regMr = reg_v7,
    .isend = isend_v8,
    .irecv = irecv_v8,
    SINCE_V5,
};

const ncclNet_v4_t ncclNetPlugin_v4 = {
    .name = NAME,
    .init = init_v9,
    .devices = net_devices,
    .getProperties = properties_v4,
    .listen = listen_v10,
    .connect = connect_v4,
    .accept = accept_v4,
    .regMr = reg_v7,
    .deregMr = net_dereg,
    .isend = isend_v4,
    .irecv = irecv_v4,
    .iflush = iflush_v4,
    .test = net_test,
    CLOSES,
};
