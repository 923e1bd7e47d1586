#define _GNU_SOURCE
#include "collnet.h"

#include <dlfcn.h>
#include <stdio.h>

#include "psm_abi/collnet.h"

static const void *table;

#define CASE(v, expression)                                                                                            \
    case v: {                                                                                                          \
        const ncclCollNet_v##v##_t *t = table;                                                                         \
        return watch_end(expression);                                                                                  \
    }
#define V4_7(e)  CASE(4, e) CASE(5, e) CASE(6, e) CASE(7, e)
#define V8_10(e) CASE(8, e) CASE(9, e) CASE(10, e)
#define V11_(e)  CASE(11, e) CASE(12, e)
#define VALL(e)  V4_7(e) V8_10(e) V11_(e)
#define CALL(name, cases)                                                                                              \
    watch_begin(name);                                                                                                 \
    switch (d.version) {                                                                                               \
        cases default : return watch_end(ncclInternalError);                                                           \
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

#define NEED(slot)                                                                                                     \
    if (!t->slot) return #slot;
#define NEED_ALL                                                                                                       \
    NEED(name)                                                                                                         \
    NEED(init)                                                                                                         \
    NEED(devices)                                                                                                      \
    NEED(getProperties)                                                                                                \
    NEED(listen)                                                                                                       \
    NEED(connect)                                                                                                      \
    NEED(reduceSupport)                                                                                                \
    NEED(regMr)                                                                                                        \
    NEED(deregMr)                                                                                                      \
    NEED(iallreduce)                                                                                                   \
    NEED(iflush)                                                                                                       \
    NEED(test)                                                                                                         \
    NEED(closeColl)                                                                                                    \
    NEED(closeListen)
#define SLOTS(v, what)                                                                                                 \
    case v: {                                                                                                          \
        const ncclCollNet_v##v##_t *t = table;                                                                         \
        what return NULL;                                                                                              \
    }

/* iallgather and ireducescatter may be NULL: NCCL then uses other algorithms. */
const char *coll_empty(void)
{
    switch (d.version) {
        SLOTS(4, NEED_ALL)
        SLOTS(5, NEED_ALL)
        SLOTS(6, NEED_ALL)
        SLOTS(7, NEED_ALL)
        SLOTS(8, NEED_ALL)
        SLOTS(9, NEED_ALL)
        SLOTS(10, NEED_ALL)
        SLOTS(11, NEED_ALL NEED(finalize))
        SLOTS(12, NEED_ALL NEED(finalize))
    }
    return "table";
}

ncclResult_t coll_init(void **context){
    CALL("collnet init", V4_7(t -> init(logger)) V8_10(t->init(logger)) V11_(t->init(context, 0xc011, logger)))}

ncclResult_t coll_finalize(void *context){CALL("collnet finalize", V11_(t->finalize(context)))}

ncclResult_t coll_devices(int *n){CALL("collnet devices", VALL(t->devices(n)))}

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
    CALL("collnet listen", V4_7(t -> listen(dev, handle, listener)) V8_10(t->listen(dev, handle, listener))
                               V11_(t->listen(context, dev, handle, listener)))}

ncclResult_t coll_connect(void **handles, void *listener, void **comm){
    CALL("collnet connect", VALL(t->connect(handles, d.ranks, d.rank, listener, comm)))}

ncclResult_t coll_support(ncclDataType_t type, ncclRedOp_t op,
                          int *supported){CALL("reduceSupport", VALL(t->reduceSupport(type, op, supported)))}

ncclResult_t coll_reg(void *comm, void *data, size_t size, void **mhandle){
    CALL("collnet regMr", V4_7(t->regMr(comm, data, (int)size, NCCL_PTR_HOST, mhandle))
                              V8_10(t->regMr(comm, data, size, NCCL_PTR_HOST, mhandle))
                                  V11_(t->regMr(comm, data, size, NCCL_PTR_HOST, mhandle)))}

ncclResult_t coll_dereg(void *comm, void *mhandle){CALL("collnet deregMr", VALL(t->deregMr(comm, mhandle)))}

ncclResult_t coll_allreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            void *send_mr, void *recv_mr, void **request)
{
    int n = (int)count;
    CALL("iallreduce",
         V4_7(t->iallreduce(comm, send, recv, n, type, op, send_mr, recv_mr, request))
             CASE(8, t->iallreduce(comm, send, recv, n, type, op, send_mr, recv_mr, request))
                 CASE(9, t->iallreduce(comm, send, recv, count, type, op, send_mr, recv_mr, request))
                     CASE(10, t->iallreduce(comm, send, recv, count, type, op, send_mr, recv_mr, request))
                         V11_(t->iallreduce(comm, send, recv, count, type, op, send_mr, recv_mr, request)))
}

#define WITH_PART(v, call)                                                                                             \
    case v: {                                                                                                          \
        const ncclCollNet_v##v##_t *t = table;                                                                         \
        ncclNetSGE_v##v##_t own = {.mhandle = part.mhandle, .address = part.address};                                  \
        own.size = (__typeof__(own.size))part.size;                                                                    \
        if (!t->call) return watch_end(ncclInProgress);                                                                \
        return watch_end(t->CALLED(call));                                                                             \
    }
#define PARTS(call) WITH_PART(8, call) WITH_PART(9, call) WITH_PART(10, call) WITH_PART(11, call) WITH_PART(12, call)

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

ncclResult_t coll_test(void *request, int *done, int *size){CALL("collnet test", VALL(t -> test(request, done, size)))}

ncclResult_t coll_close(void *comm){CALL("closeColl", VALL(t->closeColl(comm)))}

ncclResult_t coll_close_listen(void *listener)
{
    CALL("collnet closeListen", VALL(t->closeListen(listener)))
}
