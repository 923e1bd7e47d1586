/* NCCL's tables, v12 to v4. Each only adapts its version to the next one; the rest is the front. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "front.h"
#include "net_say.h"
#include "properties.h"

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

NET_PROPERTIES(11, net_properties)
NET_PROPERTIES(10, net_properties)
NET_PROPERTIES(9, net_properties)
NET_PROPERTIES(8, net_properties)
NET_PROPERTIES(7, net_properties)
NET_PROPERTIES(6, net_properties)
NET_PROPERTIES(4, net_properties)

/* ---- tables ---- */

/* A slot's function has the name of the slot and the version that its type, or its meaning, came with. */
#define init_v10          net_init_process
#define init_v4           init_v9
#define devices_v4        net_devices
#define getProperties_v12 net_properties
#define getProperties_v11 properties_v11
#define getProperties_v10 properties_v10
#define getProperties_v9  properties_v9
#define getProperties_v8  properties_v8
#define getProperties_v7  properties_v7
#define getProperties_v5  properties_v6
#define getProperties_v4  properties_v4
#define listen_v11        net_listen
#define listen_v4         listen_v10
#define connect_v11       connect_v12
#define connect_v5        connect_v6
#define connect_v7        connect_v9
#define accept_v5         accept_v6
#define accept_v7         accept_v12
#define regMr_v8          net_reg
#define regMr_v4          reg_v7
#define regMrDmaBuf_v6    net_reg_dmabuf
#define deregMr_v4        net_dereg
#define isend_v10         net_isend
#define isend_v5          isend_v8
#define irecv_v10         net_irecv
#define irecv_v5          irecv_v8
#define iflush_v5         net_iflush
#define test_v4           net_test
#define closeSend_v4      net_close_send
#define closeRecv_v4      net_close_recv
#define closeListen_v4    net_close_listen
#define getDeviceMr_v7    net_device_memory
#define irecvConsumed_v7  net_consumed
#define makeVDevice_v12   make_v12
#define makeVDevice_v11   make_v11
#define makeVDevice_v10   make_v10
#define makeVDevice_v9    make_v9
#define finalize_v11      net_finalize
#define setNetAttr_v12    attributes_v12
#define setNetAttr_v11    attributes_v11

#define SLOT(slot, own, signature) .slot = slot##_v##own,
#define TABLE(version)                                                                                                 \
    const ncclNet_v##version##_t ncclNetPlugin_v##version = {.name = NAME, PSM_ABI_NET_SLOTS_V##version(SLOT)};
PSM_ABI_NET_VERSIONS(TABLE)
