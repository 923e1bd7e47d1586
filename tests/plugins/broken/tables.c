/* The tables of net.c, v12 to v4, and what is broken in tables and properties. */
#include <stdlib.h>
#include <string.h>

#include "net.h"

static ncclResult_t init_v4(ncclDebugLogger_t logger)
{
    return net_init(NULL, logger);
}

static ncclResult_t init_v10(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    net_profiler(profiler);
    return net_init(NULL, logger);
}

static ncclResult_t init_v11(void **context, uint64_t id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t logger,
                             ncclProfilerCallback_t profiler)
{
    (void)id, (void)config;
    net_profiler(profiler);
    return net_init(context, logger);
}

static ncclResult_t init_v12(void **context, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t logger,
                             ncclProfilerCallback_t profiler)
{
    (void)id, (void)config;
    net_profiler(profiler);
    return net_init(context, logger);
}

#define V4(p, dmabuf)                                                                                                  \
    (p)->name = "lo";                                                                                                  \
    (p)->pciPath = getenv("PCI_PATH");                                                                                 \
    (p)->guid = 1;                                                                                                     \
    (p)->ptrSupport = NCCL_PTR_HOST | (getenv("HOST_ONLY") ? 0 : NCCL_PTR_CUDA | dmabuf);                              \
    if (broken("no-host")) (p)->ptrSupport = NCCL_PTR_CUDA;                                                            \
    if (!broken("speed-unset")) (p)->speed = 10000;                                                                    \
    (p)->port = 0;                                                                                                     \
    (p)->maxComms = broken("no-comms") ? 0 : 1024;
#define V5(p, dmabuf)                                                                                                  \
    V4(p, dmabuf)(p)->latency = 0;                                                                                     \
    (p)->maxRecvs = broken("no-recvs") ? 0 : getenv("HOST_ONLY") ? 1 : MAX_RECVS;
#define V7(p)                                                                                                          \
    V5(p, NCCL_PTR_DMABUF)(p)->netDeviceType =                                                                         \
        broken("device-type") ? NCCL_NET_DEVICE_GIN_GDAKI : NCCL_NET_DEVICE_HOST;                                      \
    (p)->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
#define V8(p) V7(p)(p)->regIsGlobal = 1;
#define V9(p)                                                                                                          \
    V8(p)(p)->forceFlush = 0;                                                                                          \
    (p)->vProps.ndevs = net_is_virtual(dev) && !broken("vdevice-props") ? 2 : 1;                                       \
    (p)->vProps.devs[0] = broken("no-such-device") ? 4 : net_is_virtual(dev) ? 0 : dev;                                \
    (p)->vProps.devs[1] = 1;                                                                                           \
    (p)->maxP2pBytes = broken("no-bytes") ? 0 : MAX_NET_SIZE;                                                          \
    (p)->maxCollBytes = MAX_COLLNET_SIZE;
#define V11(p) V9(p)(p)->maxMultiRequestSize = 1;
#define V12(p)                                                                                                         \
    V11(p)(p)->railId = NCCL_NET_ID_UNDEF;                                                                             \
    (p)->planeId = NCCL_NET_ID_UNDEF;
#define PROPERTIES(version, fill)                                                                                      \
    static ncclResult_t properties_v##version(int dev, ncclNetProperties_v##version##_t *p)                            \
    {                                                                                                                  \
        (void)dev;                                                                                                     \
        fill return ncclSuccess;                                                                                       \
    }
PROPERTIES(4, V4(p, 0))
PROPERTIES(5, V5(p, 0))
PROPERTIES(6, V5(p, NCCL_PTR_DMABUF))
PROPERTIES(7, V7(p))
PROPERTIES(8, V8(p))
PROPERTIES(9, V9(p))
PROPERTIES(10, V9(p))
PROPERTIES(11, V11(p))
PROPERTIES(12, V12(p))

static ncclResult_t listen_v4(int dev, void *handle, void **listener)
{
    return net_listen(NULL, dev, handle, listener);
}

/* It may wait until the connection is there. */
static ncclResult_t connect_v4(int dev, void *handle, void **comm)
{
    ncclResult_t result;
    do {
        result = net_connect(NULL, dev, handle, comm);
    } while (result == ncclSuccess && !*comm);
    return result;
}

static ncclResult_t accept_v4(void *listener, void **comm)
{
    ncclResult_t result;
    do {
        result = net_accept(listener, comm);
    } while (result == ncclSuccess && !*comm);
    return result;
}

static ncclResult_t connect_v5(int dev, void *handle, void **comm)
{
    return net_connect(NULL, dev, handle, comm);
}

static ncclResult_t connect_v7(int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **device)
{
    (void)device;
    return net_connect(NULL, dev, handle, comm);
}

static ncclResult_t connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **comm,
                                ncclNetDeviceHandle_v10_t **device)
{
    (void)config, (void)device;
    return net_connect(NULL, dev, handle, comm);
}

static ncclResult_t connect_v11(void *context, int dev, void *handle, void **comm, ncclNetDeviceHandle_v11_t **device)
{
    (void)device;
    return net_connect(context, dev, handle, comm);
}

static ncclResult_t accept_v7(void *listener, void **comm, ncclNetDeviceHandle_v7_t **device)
{
    (void)device;
    return net_accept(listener, comm);
}

static ncclResult_t reg_v4(void *comm, void *data, int size, int type, void **mhandle)
{
    return net_reg(comm, data, (size_t)size, type, mhandle);
}

static ncclResult_t isend_v4(void *comm, void *data, int size, void *mhandle, void **request)
{
    return net_isend(comm, data, (size_t)size, 0, mhandle, request);
}

static ncclResult_t isend_v5(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
    return net_isend(comm, data, (size_t)size, tag, mhandle, request);
}

static ncclResult_t isend_v10(void *comm, void *data, size_t size, int tag, void *mhandle, void *parent, void **request)
{
    ncclResult_t result = net_isend(comm, data, size, tag, mhandle, request);
    if (result == ncclSuccess && *request) net_event(*request, 0, parent);
    return result;
}

static ncclResult_t irecv_v4(void *comm, void *data, int size, void *mhandle, void **request)
{
    size_t wide = (size_t)size;
    *request = NULL;
    return net_irecv(comm, 1, &data, &wide, &(int){0}, &mhandle, request);
}

static ncclResult_t irecv_v5(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
    size_t wide[MAX_RECVS];
    for (int i = 0; i < n; i++) wide[i] = (size_t)sizes[i];
    *request = NULL;
    return net_irecv(comm, n, data, wide, tags, mhandles, request);
}

static ncclResult_t irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
    return net_irecv(comm, n, data, sizes, tags, mhandles, request);
}

static ncclResult_t irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **parents,
                              void **request)
{
    ncclResult_t result = net_irecv(comm, n, data, sizes, tags, mhandles, request);
    for (int i = 0; i < n && result == ncclSuccess && *request && *request != (void *)1; i++)
        net_event(*request, i, parents[i]);
    return result;
}

static ncclResult_t iflush_v4(void *comm, void *data, int size, void *mhandle, void **request)
{
    (void)data, (void)size, (void)mhandle;
    return net_iflush(comm, request);
}

static ncclResult_t iflush_v5(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
    (void)n, (void)data, (void)sizes, (void)mhandles;
    return net_iflush(comm, request);
}

/* MERGES=1 */
static ncclResult_t make_v9(int *dev, ncclNetVDeviceProps_v9_t *props)
{
    return net_make_device(dev, props->ndevs);
}
static ncclResult_t make_v10(int *dev, ncclNetVDeviceProps_v10_t *props)
{
    return net_make_device(dev, props->ndevs);
}
static ncclResult_t make_v11(int *dev, ncclNetVDeviceProps_v11_t *props)
{
    return net_make_device(dev, props->ndevs);
}
static ncclResult_t make_v12(int *dev, ncclNetVDeviceProps_v12_t *props)
{
    return net_make_device(dev, props->ndevs);
}

#define COMMON(version)                                                                                                \
    .name = "Broken", .devices = net_devices, .getProperties = properties_v##version, .deregMr = net_dereg,            \
    .test = net_test, .closeSend = net_close_send, .closeRecv = net_close_recv, .closeListen = net_close_listen
#define SINCE_5(version, ...) COMMON(version), .iflush = iflush_v5, __VA_ARGS__

ncclNet_v4_t ncclNetPlugin_v4 = {COMMON(4),           .init = init_v4, .listen = listen_v4, .connect = connect_v4,
                                 .accept = accept_v4, .regMr = reg_v4, .isend = isend_v4,   .irecv = irecv_v4,
                                 .iflush = iflush_v4};
#define OF_5(version)                                                                                                  \
    SINCE_5(version, .init = init_v4, .listen = listen_v4, .connect = connect_v5, .accept = net_accept,                \
            .regMr = reg_v4, .isend = isend_v5, .irecv = irecv_v5)
ncclNet_v5_t ncclNetPlugin_v5 = {OF_5(5)};
ncclNet_v6_t ncclNetPlugin_v6 = {OF_5(6), .regMrDmaBuf = net_reg_dmabuf};
#define OF_7(version, reg, send, receive)                                                                              \
    SINCE_5(version, .init = init_v4, .listen = listen_v4, .connect = connect_v7, .accept = accept_v7, .regMr = reg,   \
            .isend = send, .irecv = receive, .regMrDmaBuf = net_reg_dmabuf)
ncclNet_v7_t ncclNetPlugin_v7 = {OF_7(7, reg_v4, isend_v5, irecv_v5)};
ncclNet_v8_t ncclNetPlugin_v8 = {OF_7(8, net_reg, isend_v5, irecv_v5)};
ncclNet_v9_t ncclNetPlugin_v9 = {OF_7(9, net_reg, net_isend, irecv_v9)};
ncclNet_v10_t ncclNetPlugin_v10 = {SINCE_5(10, .init = init_v10, .listen = listen_v4, .connect = connect_v10,
                                           .accept = accept_v7, .regMr = net_reg, .isend = isend_v10,
                                           .irecv = irecv_v10, .regMrDmaBuf = net_reg_dmabuf)};
#define OF_11(version)                                                                                                 \
    SINCE_5(version, .init = init_v##version, .listen = net_listen, .connect = connect_v11, .accept = accept_v7,       \
            .regMr = net_reg, .isend = isend_v10, .irecv = irecv_v10, .regMrDmaBuf = net_reg_dmabuf,                   \
            .finalize = net_finalize)
ncclNet_v11_t ncclNetPlugin_v11 = {OF_11(11)};
ncclNet_v12_t ncclNetPlugin_v12 = {OF_11(12)};

__attribute__((constructor)) static void break_tables(void)
{
    if (getenv("MERGES")) {
        ncclNetPlugin_v9.makeVDevice = make_v9, ncclNetPlugin_v10.makeVDevice = make_v10;
        ncclNetPlugin_v11.makeVDevice = make_v11, ncclNetPlugin_v12.makeVDevice = make_v12;
    }
    ncclNetPlugin_v7.irecvConsumed = ncclNetPlugin_v8.irecvConsumed = ncclNetPlugin_v9.irecvConsumed =
        ncclNetPlugin_v10.irecvConsumed = ncclNetPlugin_v11.irecvConsumed = ncclNetPlugin_v12.irecvConsumed =
            net_consumed;
    if (broken("null-slot")) ncclNetPlugin_v12.isend = NULL;
    if (broken("null-flush")) ncclNetPlugin_v12.iflush = NULL;
    if (broken("no-name")) ncclNetPlugin_v12.name = "";
}
