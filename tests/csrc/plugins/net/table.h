/* Any version of a net plugin's table as one set of functions, in the shape of the newest. */
#ifndef TABLE_H
#define TABLE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "psm_abi/net.h"
#include "psm_abi_versions.h"

static int version;
static void *table;
static void *context; /* of v11 and later */

#define T(v) ((const ncclNet_v##v##_t *)table)
/* A call of the versions in which the slot has the signature that came with version `since`. */
#define CALL(v, call)                                                                                                  \
    case v:                                                                                                            \
        return T(v)->call;
#define SINCE(slot, since, call) PSM_ABI_NET_##slot##_V##since(CALL, call)

static ncclResult_t t_init(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    /* The configurations of v11 and later are the same. */
    ncclNetCommConfig_v12_t config = {-1};
    switch (version) {
        SINCE(init, 4, init(logger))
        SINCE(init, 10, init(logger, profiler))
        SINCE(init, 11, init(&context, 77, (void *)&config, logger, profiler))
    }
    return ncclInternalError;
}

static ncclResult_t t_finalize(void)
{
    void *c = context;
    context = NULL;
    switch (version) {
        SINCE(finalize, 11, finalize(c))
    }
    return ncclSuccess;
}

static ncclResult_t t_devices(int *n)
{
    switch (version) {
        SINCE(devices, 4, devices(n))
    }
    return ncclInternalError;
}

/* maxRecvs of v4 is 1. The name is copied. */
static ncclResult_t t_properties(int dev, ncclNetProperties_v12_t *out)
{
    *out = (ncclNetProperties_v12_t){.maxRecvs = 1};
#define GET(member)         out->member = p.member;
#define GET_DEVICES(member) out->member.ndevs = p.member.ndevs, out->member.devs[0] = p.member.devs[0];
#define RECORD(v)                                                                                                      \
    case v: {                                                                                                          \
        ncclNetProperties_v##v##_t p;                                                                                  \
        memset(&p, 0xa5, sizeof p);                                                                                    \
        ncclResult_t result = T(v)->getProperties(dev, &p);                                                            \
        PSM_ABI_NET_PROPERTIES_V##v(GET, GET_DEVICES) return result;                                                   \
    }
    switch (version) {
        PSM_ABI_NET_VERSIONS(RECORD)
    }
    return ncclInternalError;
}

static ncclResult_t t_listen(int dev, void *handle, void **comm)
{
    switch (version) {
        SINCE(listen, 4, listen(dev, handle, comm))
        SINCE(listen, 11, listen(context, dev, handle, comm))
    }
    return ncclInternalError;
}

static ncclResult_t t_connect(int dev, void *handle, void **comm)
{
    ncclNetDeviceHandle_v12_t *device = NULL;
    switch (version) {
        SINCE(connect, 4, connect(dev, handle, comm))
        SINCE(connect, 7, connect(dev, handle, comm, &device))
        SINCE(connect, 10, connect(dev, NULL, handle, comm, &device))
        SINCE(connect, 11, connect(context, dev, handle, comm, &device))
    }
    return ncclInternalError;
}

static ncclResult_t t_accept(void *listener, void **comm)
{
    ncclNetDeviceHandle_v12_t *device = NULL;
    switch (version) {
        SINCE(accept, 4, accept(listener, comm))
        SINCE(accept, 7, accept(listener, comm, &device))
    }
    return ncclInternalError;
}

static ncclResult_t t_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    switch (version) {
        SINCE(regMr, 4, regMr(comm, data, (int)size, type, mhandle))
        SINCE(regMr, 8, regMr(comm, data, size, type, mhandle))
    }
    return ncclInternalError;
}
static ncclResult_t t_dereg(void *comm, void *mhandle)
{
    switch (version) {
        SINCE(deregMr, 4, deregMr(comm, mhandle))
    }
    return ncclInternalError;
}

static ncclResult_t t_isend_p(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                              void **request)
{
    switch (version) {
        SINCE(isend, 4, isend(comm, data, (int)size, mhandle, request))
        SINCE(isend, 5, isend(comm, data, (int)size, tag, mhandle, request))
        SINCE(isend, 9, isend(comm, data, size, tag, mhandle, request))
        SINCE(isend, 10, isend(comm, data, size, tag, mhandle, phandle, request))
    }
    return ncclInternalError;
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
        SINCE(irecv, 4, irecv(comm, data[0], narrow[0], mhandles ? mhandles[0] : NULL, request))
        SINCE(irecv, 5, irecv(comm, n, data, narrow, tags, mhandles, request))
        SINCE(irecv, 9, irecv(comm, n, data, sizes, tags, mhandles, request))
        SINCE(irecv, 10, irecv(comm, n, data, sizes, tags, mhandles, phandles, request))
    }
    return ncclInternalError;
}
static ncclResult_t t_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
    return t_irecv_p(comm, n, data, sizes, tags, mhandles, NULL, request);
}

static ncclResult_t t_iflush(void *comm, void *data, int size, void *mhandle, void **request)
{
    switch (version) {
        SINCE(iflush, 4, iflush(comm, data, size, mhandle, request))
        SINCE(iflush, 5, iflush(comm, 1, &data, &size, &mhandle, request))
    }
    return ncclInternalError;
}

static ncclResult_t t_test(void *request, int *done, int *sizes)
{
    switch (version) {
        SINCE(test, 4, test(request, done, sizes))
    }
    return ncclInternalError;
}
static ncclResult_t t_close_send(void *comm)
{
    switch (version) {
        SINCE(closeSend, 4, closeSend(comm))
    }
    return ncclInternalError;
}
static ncclResult_t t_close_recv(void *comm)
{
    switch (version) {
        SINCE(closeRecv, 4, closeRecv(comm))
    }
    return ncclInternalError;
}
static ncclResult_t t_close_listen(void *comm)
{
    switch (version) {
        SINCE(closeListen, 4, closeListen(comm))
    }
    return ncclInternalError;
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
