/* NCCL's CollNet tables, v12 to v4. */
#include <limits.h>
#include <string.h>

#include "collnet/collnet.h"
#include "properties.h"
#include "psm_abi/collnet.h"

#define NAME "PSM"

/* ---- one context, that of the process: v10 and before ---- */

static ncclResult_t listen_v10(int dev, void *handle, void **listener)
{
    return coll_listen(NULL, dev, handle, listener);
}

/* ---- parts of a buffer ---- */

enum { PARTS = 64 };

static ncclResult_t allgather_v12(void *comm, void *send, int n, ncclNetSGE_v12_t *parts, size_t share, size_t offset,
                                  size_t bytes, void *mhandle, void **request)
{
    return coll_allgather(comm, send, n, parts, share, offset, bytes, mhandle, request);
}

static ncclResult_t reducescatter_v12(void *comm, int n, ncclNetSGE_v12_t *parts, void *recv, size_t share,
                                      size_t offset, size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *mhandle,
                                      void **request)
{
    return coll_reducescatter(comm, n, parts, recv, share, offset, bytes, type, op, mhandle, request);
}

/* The record has other names in each version, and a narrower size in v8. */
#define PARTS_OF(version)                                                                                              \
    static ncclResult_t allgather_v##version(void *comm, void *send, int n, ncclNetSGE_v##version##_t *parts,          \
                                             size_t share, size_t offset, size_t bytes, void *mhandle, void **request) \
    {                                                                                                                  \
        ncclNetSGE_v12_t wide[PARTS];                                                                                  \
        if (n < 0 || n > PARTS) return net_misuse("iallgather", "so many parts are not taken");                        \
        for (int i = 0; i < n; i++) wide[i] = (ncclNetSGE_v12_t){parts[i].mhandle, parts[i].address, parts[i].size};   \
        return coll_allgather(comm, send, n, wide, share, offset, bytes, mhandle, request);                            \
    }                                                                                                                  \
    static ncclResult_t reducescatter_v##version(void *comm, int n, ncclNetSGE_v##version##_t *parts, void *recv,      \
                                                 size_t share, size_t offset, size_t bytes, ncclDataType_t type,       \
                                                 ncclRedOp_t op, void *mhandle, void **request)                        \
    {                                                                                                                  \
        ncclNetSGE_v12_t wide[PARTS];                                                                                  \
        if (n < 0 || n > PARTS) return net_misuse("ireducescatter", "so many parts are not taken");                    \
        for (int i = 0; i < n; i++) wide[i] = (ncclNetSGE_v12_t){parts[i].mhandle, parts[i].address, parts[i].size};   \
        return coll_reducescatter(comm, n, wide, recv, share, offset, bytes, type, op, mhandle, request);              \
    }
PARTS_OF(11)
PARTS_OF(10)
PARTS_OF(9)
PARTS_OF(8)

/* ---- v8: the count is an int; v7: so is the size of a registration ---- */

static ncclResult_t allreduce_v8(void *comm, void *send, void *recv, int count, ncclDataType_t type, ncclRedOp_t op,
                                 void *send_mhandle, void *recv_mhandle, void **request)
{
    if (count < 0) return net_misuse("iallreduce", "the count is negative");
    return coll_allreduce(comm, send, recv, (size_t)count, type, op, send_mhandle, recv_mhandle, request);
}

static ncclResult_t reg_v7(void *comm, void *data, int size, int type, void **mhandle)
{
    if (size < 0) return net_misuse("regMr", "a size is negative");
    return coll_reg(comm, data, (size_t)size, type, mhandle);
}

/* ---- properties ---- */

NET_PROPERTIES(11, coll_properties)
NET_PROPERTIES(10, coll_properties)
NET_PROPERTIES(9, coll_properties)
NET_PROPERTIES(8, coll_properties)
NET_PROPERTIES(7, coll_properties)
NET_PROPERTIES(6, coll_properties)
NET_PROPERTIES(4, coll_properties)

/* ---- tables: regMrDmaBuf is NULL, since ptrSupport is host; makeVDevice too, since a ring uses one device ---- */

#define COMMON                                                                                                         \
    .name = NAME, .devices = coll_devices, .connect = coll_connect, .reduceSupport = coll_support,                     \
    .deregMr = coll_dereg, .iflush = coll_flush, .test = coll_test, .closeColl = coll_close,                           \
    .closeListen = coll_close_listen
#define OF_V11(version)                                                                                                \
    COMMON, .init = coll_init, .finalize = coll_finalize, .listen = coll_listen, .regMr = coll_reg,                    \
        .iallreduce = coll_allreduce, .iallgather = allgather_v##version, .ireducescatter = reducescatter_v##version
#define OF_V9(version)                                                                                                 \
    COMMON, .init = coll_init_process, .getProperties = properties_v##version, .listen = listen_v10,                   \
        .regMr = coll_reg, .iallreduce = coll_allreduce, .iallgather = allgather_v##version,                           \
        .ireducescatter = reducescatter_v##version
#define OF_V4(version)                                                                                                 \
    COMMON, .init = coll_init_process, .getProperties = properties_v##version, .listen = listen_v10, .regMr = reg_v7,  \
        .iallreduce = allreduce_v8

const ncclCollNet_v12_t ncclCollNetPlugin_v12 = {OF_V11(12), .getProperties = coll_properties};
const ncclCollNet_v11_t ncclCollNetPlugin_v11 = {OF_V11(11), .getProperties = properties_v11};
const ncclCollNet_v10_t ncclCollNetPlugin_v10 = {OF_V9(10)};
const ncclCollNet_v9_t ncclCollNetPlugin_v9 = {OF_V9(9)};
const ncclCollNet_v8_t ncclCollNetPlugin_v8 = {COMMON,
                                               .init = coll_init_process,
                                               .getProperties = properties_v8,
                                               .listen = listen_v10,
                                               .regMr = coll_reg,
                                               .iallreduce = allreduce_v8,
                                               .iallgather = allgather_v8,
                                               .ireducescatter = reducescatter_v8};
const ncclCollNet_v7_t ncclCollNetPlugin_v7 = {OF_V4(7)};
const ncclCollNet_v6_t ncclCollNetPlugin_v6 = {OF_V4(6)};
const ncclCollNet_v5_t ncclCollNetPlugin_v5 = {OF_V4(6)};
const ncclCollNet_v4_t ncclCollNetPlugin_v4 = {OF_V4(4)};
