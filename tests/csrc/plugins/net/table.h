/* Any version of a net plugin's table as one set of functions, in the shape of the newest. */
#ifndef TABLE_H
#define TABLE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "psm_abi/net.h"

static int version;
static void *table;
static void *context; /* of v11 and later */

#define T(v) ((const ncclNet_v##v##_t *)table)
#define EACH_SAME(call)                                                                                                \
    switch (version) {                                                                                                 \
    case 12:                                                                                                           \
        return T(12)->call;                                                                                            \
    case 11:                                                                                                           \
        return T(11)->call;                                                                                            \
    case 10:                                                                                                           \
        return T(10)->call;                                                                                            \
    case 9:                                                                                                            \
        return T(9)->call;                                                                                             \
    case 8:                                                                                                            \
        return T(8)->call;                                                                                             \
    case 7:                                                                                                            \
        return T(7)->call;                                                                                             \
    case 6:                                                                                                            \
        return T(6)->call;                                                                                             \
    case 5:                                                                                                            \
        return T(5)->call;                                                                                             \
    default:                                                                                                           \
        return T(4)->call;                                                                                             \
    }

static ncclResult_t t_init(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    ncclNetCommConfig_v12_t c12 = {-1};
    ncclNetCommConfig_v11_t c11 = {-1};
    switch (version) {
    case 12:
        return T(12)->init(&context, 77, &c12, logger, profiler);
    case 11:
        return T(11)->init(&context, 77, &c11, logger, profiler);
    case 10:
        return T(10)->init(logger, profiler);
    case 9:
        return T(9)->init(logger);
    case 8:
        return T(8)->init(logger);
    case 7:
        return T(7)->init(logger);
    case 6:
        return T(6)->init(logger);
    case 5:
        return T(5)->init(logger);
    default:
        return T(4)->init(logger);
    }
}

static ncclResult_t t_finalize(void)
{
    void *c = context;
    context = NULL;
    return version == 12 ? T(12)->finalize(c) : version == 11 ? T(11)->finalize(c) : ncclSuccess;
}

static ncclResult_t t_devices(int *n)
{
    EACH_SAME(devices(n))
}

/* maxRecvs of v4 is 1. The name is copied. */
static ncclResult_t t_properties(int dev, ncclNetProperties_v12_t *out)
{
    *out = (ncclNetProperties_v12_t){.maxRecvs = 1};
#define GET(v, record, more)                                                                                           \
    case v: {                                                                                                          \
        record p;                                                                                                      \
        memset(&p, 0xa5, sizeof p);                                                                                    \
        ncclResult_t result = T(v)->getProperties(dev, &p);                                                            \
        out->name = p.name, out->pciPath = p.pciPath, out->guid = p.guid, out->ptrSupport = p.ptrSupport;              \
        out->speed = p.speed, out->port = p.port, out->maxComms = p.maxComms;                                          \
        more return result;                                                                                            \
    }
#define SINCE_5 out->maxRecvs = p.maxRecvs, out->latency = p.latency;
#define SINCE_7 SINCE_5 out->netDeviceType = p.netDeviceType, out->netDeviceVersion = p.netDeviceVersion;
#define SINCE_8 SINCE_7 out->regIsGlobal = p.regIsGlobal;
#define SINCE_9                                                                                                        \
    SINCE_8 out->forceFlush = p.forceFlush, out->vProps.ndevs = p.vProps.ndevs;                                        \
    out->vProps.devs[0] = p.vProps.devs[0], out->maxP2pBytes = p.maxP2pBytes, out->maxCollBytes = p.maxCollBytes;
#define SINCE_11 SINCE_9 out->maxMultiRequestSize = p.maxMultiRequestSize;
    switch (version) {
        GET(12, ncclNetProperties_v12_t, SINCE_11 out->railId = p.railId; out->planeId = p.planeId;)
        GET(11, ncclNetProperties_v11_t, SINCE_11)
        GET(10, ncclNetProperties_v10_t, SINCE_9)
        GET(9, ncclNetProperties_v9_t, SINCE_9)
        GET(8, ncclNetProperties_v8_t, SINCE_8)
        GET(7, ncclNetProperties_v7_t, SINCE_7)
        GET(6, ncclNetProperties_v6_t, SINCE_5)
        GET(5, ncclNetProperties_v5_t, SINCE_5)
        GET(4, ncclNetProperties_v4_t, )
    }
    return ncclInternalError;
}

static ncclResult_t t_listen(int dev, void *handle, void **comm)
{
    if (version == 12) return T(12)->listen(context, dev, handle, comm);
    if (version == 11) return T(11)->listen(context, dev, handle, comm);
    switch (version) {
    case 10:
        return T(10)->listen(dev, handle, comm);
    case 9:
        return T(9)->listen(dev, handle, comm);
    case 8:
        return T(8)->listen(dev, handle, comm);
    case 7:
        return T(7)->listen(dev, handle, comm);
    case 6:
        return T(6)->listen(dev, handle, comm);
    case 5:
        return T(5)->listen(dev, handle, comm);
    default:
        return T(4)->listen(dev, handle, comm);
    }
}

static ncclResult_t t_connect(int dev, void *handle, void **comm)
{
    ncclNetDeviceHandle_v12_t *device = NULL;
    switch (version) {
    case 12:
        return T(12)->connect(context, dev, handle, comm, &device);
    case 11:
        return T(11)->connect(context, dev, handle, comm, &device);
    case 10:
        return T(10)->connect(dev, NULL, handle, comm, &device);
    case 9:
        return T(9)->connect(dev, handle, comm, &device);
    case 8:
        return T(8)->connect(dev, handle, comm, &device);
    case 7:
        return T(7)->connect(dev, handle, comm, &device);
    case 6:
        return T(6)->connect(dev, handle, comm);
    case 5:
        return T(5)->connect(dev, handle, comm);
    default:
        return T(4)->connect(dev, handle, comm);
    }
}

static ncclResult_t t_accept(void *listener, void **comm)
{
    ncclNetDeviceHandle_v12_t *device = NULL;
    switch (version) {
    case 12:
        return T(12)->accept(listener, comm, &device);
    case 11:
        return T(11)->accept(listener, comm, &device);
    case 10:
        return T(10)->accept(listener, comm, &device);
    case 9:
        return T(9)->accept(listener, comm, &device);
    case 8:
        return T(8)->accept(listener, comm, &device);
    case 7:
        return T(7)->accept(listener, comm, &device);
    case 6:
        return T(6)->accept(listener, comm);
    case 5:
        return T(5)->accept(listener, comm);
    default:
        return T(4)->accept(listener, comm);
    }
}

static ncclResult_t t_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    EACH_SAME(regMr(comm, data, size, type, mhandle))
}
static ncclResult_t t_dereg(void *comm, void *mhandle)
{
    EACH_SAME(deregMr(comm, mhandle))
}

static ncclResult_t t_isend_p(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                              void **request)
{
    switch (version) {
    case 12:
        return T(12)->isend(comm, data, size, tag, mhandle, phandle, request);
    case 11:
        return T(11)->isend(comm, data, size, tag, mhandle, phandle, request);
    case 10:
        return T(10)->isend(comm, data, size, tag, mhandle, phandle, request);
    case 9:
        return T(9)->isend(comm, data, size, tag, mhandle, request);
    case 8:
        return T(8)->isend(comm, data, (int)size, tag, mhandle, request);
    case 7:
        return T(7)->isend(comm, data, (int)size, tag, mhandle, request);
    case 6:
        return T(6)->isend(comm, data, (int)size, tag, mhandle, request);
    case 5:
        return T(5)->isend(comm, data, (int)size, tag, mhandle, request);
    default:
        return T(4)->isend(comm, data, (int)size, mhandle, request);
    }
}
static ncclResult_t t_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
    return t_isend_p(comm, data, size, tag, mhandle, NULL, request);
}

static ncclResult_t t_irecv_p(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request)
{
    int narrow[8];
    for (int i = 0; i < n && i < 8; i++) narrow[i] = (int)sizes[i];
    if (version >= 9) *request = (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
    switch (version) {
    case 12:
        return T(12)->irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
    case 11:
        return T(11)->irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
    case 10:
        return T(10)->irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
    case 9:
        return T(9)->irecv(comm, n, data, sizes, tags, mhandles, request);
    case 8:
        return T(8)->irecv(comm, n, data, narrow, tags, mhandles, request);
    case 7:
        return T(7)->irecv(comm, n, data, narrow, tags, mhandles, request);
    case 6:
        return T(6)->irecv(comm, n, data, narrow, tags, mhandles, request);
    case 5:
        return T(5)->irecv(comm, n, data, narrow, tags, mhandles, request);
    default:
        return T(4)->irecv(comm, data[0], narrow[0], mhandles ? mhandles[0] : NULL, request);
    }
}
static ncclResult_t t_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
    return t_irecv_p(comm, n, data, sizes, tags, mhandles, NULL, request);
}

static ncclResult_t t_iflush(void *comm, void *data, int size, void *mhandle, void **request)
{
    if (version == 4) return T(4)->iflush(comm, data, size, mhandle, request);
    switch (version) {
    case 12:
        return T(12)->iflush(comm, 1, &data, &size, &mhandle, request);
    case 11:
        return T(11)->iflush(comm, 1, &data, &size, &mhandle, request);
    case 10:
        return T(10)->iflush(comm, 1, &data, &size, &mhandle, request);
    case 9:
        return T(9)->iflush(comm, 1, &data, &size, &mhandle, request);
    case 8:
        return T(8)->iflush(comm, 1, &data, &size, &mhandle, request);
    case 7:
        return T(7)->iflush(comm, 1, &data, &size, &mhandle, request);
    case 6:
        return T(6)->iflush(comm, 1, &data, &size, &mhandle, request);
    default:
        return T(5)->iflush(comm, 1, &data, &size, &mhandle, request);
    }
}

static ncclResult_t t_test(void *request, int *done, int *sizes)
{
    EACH_SAME(test(request, done, sizes))
}
static ncclResult_t t_close_send(void *comm)
{
    EACH_SAME(closeSend(comm))
}
static ncclResult_t t_close_recv(void *comm)
{
    EACH_SAME(closeRecv(comm))
}
static ncclResult_t t_close_listen(void *comm)
{
    EACH_SAME(closeListen(comm))
}

/* "12" or "4"; exits with what dlopen says. */
static void t_load(const char *path, const char *number)
{
    char name[32];
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    version = atoi(number);
    snprintf(name, sizeof name, "ncclNetPlugin_v%d", version);
    if (!library || !(table = dlsym(library, name))) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
}

#endif
