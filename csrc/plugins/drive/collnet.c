#define _GNU_SOURCE
#include "drive_collnet.h"

#include <dlfcn.h>
#include <stdio.h>

#include "psm_abi/collnet.h"
#include "psm_abi_versions.h"

static const void *table;

#define CASE(v, ...)                                                                                                   \
    case v: {                                                                                                          \
        const ncclCollNet_v##v##_t *t = table;                                                                         \
        return watch_end(__VA_ARGS__);                                                                                 \
    }
#define SINCE(slot, v, ...) PSM_ABI_COLLNET_##slot##_V##v(CASE, t->slot(__VA_ARGS__))
#define CALL(name, ...)                                                                                                \
    watch_begin(name);                                                                                                 \
    switch (d.version) {                                                                                               \
        __VA_ARGS__                                                                                                    \
    default:                                                                                                           \
        return watch_end(ncclInternalError);                                                                           \
    }

bool coll_find(void)
{
    char symbol[40];
    snprintf(symbol, sizeof symbol, "ncclCollNetPlugin_v%d", d.version);
    return (table = dlsym(d.library, symbol)) != NULL;
}

const char *coll_name(void)
{
    return *(const char *const *)table;
}

#define INIT_OF(v)                                                                                                     \
    case v:                                                                                                            \
        return ((const ncclCollNet_v##v##_t *)table)->init != NULL;

bool coll_has_init(void)
{
    switch (d.version) {
        PSM_ABI_COLLNET_VERSIONS(INIT_OF)
    }
    return false;
}

#define NEED(slot)                                                                                                     \
    if (!t->slot) return #slot;
#define NEED_ALL(v)                                                                                                    \
    case v: {                                                                                                          \
        const ncclCollNet_v##v##_t *t = table;                                                                         \
        PSM_ABI_COLLNET_REQUIRED_V##v(NEED) NEED(iflush) return NULL;                                                  \
    }

/* iallgather and ireducescatter may be NULL: NCCL then uses other algorithms. */
const char *coll_empty(void)
{
    switch (d.version) {
        PSM_ABI_COLLNET_VERSIONS(NEED_ALL)
    }
    return "table";
}

ncclResult_t coll_init(void **context){
    CALL("collnet init", SINCE(init, 4, logger) SINCE(init, 11, context, 0xc011, logger))}

ncclResult_t coll_finalize(void *context){CALL("collnet finalize", SINCE(finalize, 11, context))}

ncclResult_t coll_devices(int *n){CALL("collnet devices", SINCE(devices, 4, n))}

#define RECORD(v, net, bytes)                                                                                          \
    case v: {                                                                                                          \
        ncclNetProperties_v##net##_t p = {0};                                                                          \
        const ncclCollNet_v##v##_t *t = table;                                                                         \
        ncclResult_t result = watch_end(t->getProperties(dev, &p));                                                    \
        *ptr_support = p.ptrSupport;                                                                                   \
        *max_bytes = bytes;                                                                                            \
        return result;                                                                                                 \
    }

ncclResult_t coll_properties(int dev, int *ptr_support, size_t *max_bytes)
{
    watch_begin("collnet getProperties");
    switch (d.version) {
        RECORD(4, 4, MAX_COLLNET_SIZE)
        RECORD(5, 6, MAX_COLLNET_SIZE)
        RECORD(6, 6, MAX_COLLNET_SIZE)
        RECORD(7, 7, MAX_COLLNET_SIZE)
        RECORD(8, 8, MAX_COLLNET_SIZE)
        RECORD(9, 9, p.maxCollBytes)
        RECORD(10, 10, p.maxCollBytes)
        RECORD(11, 11, p.maxCollBytes)
        RECORD(12, 12, p.maxCollBytes)
    }
    return watch_end(ncclInternalError);
}

ncclResult_t coll_listen(void *context, int dev, void *handle, void **listener){
    CALL("collnet listen", SINCE(listen, 4, dev, handle, listener) SINCE(listen, 11, context, dev, handle, listener))}

ncclResult_t coll_connect(void **handles, void *listener, void **comm){
    CALL("collnet connect", SINCE(connect, 4, handles, d.ranks, d.rank, listener, comm))}

ncclResult_t coll_support(ncclDataType_t type, ncclRedOp_t op,
                          int *supported){CALL("reduceSupport", SINCE(reduceSupport, 4, type, op, supported))}

ncclResult_t coll_reg(void *comm, void *data, size_t size, void **mhandle){
    CALL("collnet regMr", SINCE(regMr, 4, comm, data, (int)size, NCCL_PTR_HOST, mhandle)
                              SINCE(regMr, 8, comm, data, size, NCCL_PTR_HOST, mhandle))}

ncclResult_t coll_dereg(void *comm, void *mhandle){CALL("collnet deregMr", SINCE(deregMr, 4, comm, mhandle))}

ncclResult_t coll_allreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            void *send_mr, void *recv_mr, void **request){
    CALL("iallreduce", SINCE(iallreduce, 4, comm, send, recv, (int)count, type, op, send_mr, recv_mr, request)
                           SINCE(iallreduce, 9, comm, send, recv, count, type, op, send_mr, recv_mr, request))}

#define WITH_PART(v, call)                                                                                             \
    case v: {                                                                                                          \
        const ncclCollNet_v##v##_t *t = table;                                                                         \
        ncclNetSGE_v##v##_t own = {.mhandle = part.mhandle, .address = part.address};                                  \
        own.size = (__typeof__(own.size))part.size;                                                                    \
        if (!t->call) return watch_end(ncclInProgress);                                                                \
        return watch_end(t->CALLED(call));                                                                             \
    }
#define PARTS(slot) PSM_ABI_COLLNET_##slot##_V8(WITH_PART, slot) PSM_ABI_COLLNET_##slot##_V9(WITH_PART, slot)

/* ncclInProgress: the slot is NULL. */
ncclResult_t coll_allgather(void *comm, void *send, ncclNetSGE_v12_t part, size_t share, size_t offset, size_t bytes,
                            void *send_mr, void **request)
{
    watch_begin("iallgather");
    switch (d.version) {
#define CALLED(call) call(comm, send, 1, &own, share, offset, bytes, send_mr, request)
        PARTS(iallgather)
#undef CALLED
    }
    return watch_end(ncclInternalError);
}

ncclResult_t coll_reducescatter(void *comm, ncclNetSGE_v12_t part, void *recv, size_t share, size_t offset,
                                size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *recv_mr, void **request)
{
    watch_begin("ireducescatter");
    switch (d.version) {
#define CALLED(call) call(comm, 1, &own, recv, share, offset, bytes, type, op, recv_mr, request)
        PARTS(ireducescatter)
#undef CALLED
    }
    return watch_end(ncclInternalError);
}

ncclResult_t coll_test(void *request, int *done, int *size){CALL("collnet test", SINCE(test, 4, request, done, size))}

ncclResult_t coll_close(void *comm){CALL("closeColl", SINCE(closeColl, 4, comm))}

ncclResult_t coll_close_listen(void *listener)
{
    CALL("collnet closeListen", SINCE(closeListen, 4, listener))
}
