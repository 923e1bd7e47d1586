/* NCCL's RMA tables, v16 to v13. */
#include <string.h>

#include "psm_abi/gin.h"
#include "rma/rma_comm.h"

#define NAME "PSM"

/* ---- v16, v15: flags of operations are hints ---- */

static ncclResult_t put_v15(void *ctx, int context, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                            void *to_mhandle, uint32_t rank, uint32_t flags, void **request)
{
    (void)flags;
    return rma_put(ctx, context, from, from_mhandle, size, to, to_mhandle, rank, NULL, request);
}

/* All signals are strong: they come after every put that was posted before. */
static ncclResult_t put_signal_v15(void *ctx, int context, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                                   void *to_mhandle, uint32_t rank, uint64_t signal_at, void *signal_mhandle,
                                   uint64_t value, uint32_t op, bool strong, uint32_t flags, void **request)
{
    struct rma_signal signal = {signal_at, value, signal_mhandle, op};
    (void)strong;
    (void)flags;
    return rma_put(ctx, context, from, from_mhandle, size, to, to_mhandle, rank, &signal, request);
}

static ncclResult_t get_v15(void *ctx, int context, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                            void *to_mhandle, uint32_t rank, uint32_t flags, void **request)
{
    (void)flags;
    return rma_get(ctx, context, from, from_mhandle, size, to, to_mhandle, rank, request);
}

static ncclResult_t capabilities(void *comm, ncclRmaProperties_v16_t *props)
{
    if (!rma_comm_of(comm)) return net_misuse("getRmaProperties", "this is not an open comm of RMA");
    /* A signal follows the puts of its own rank only. */
    props->flushesAllPutsOnAnySignal = false;
    return ncclSuccess;
}

/* ---- v14 ---- */

static ncclResult_t context_v14(void *comm, ncclRmaConfig_v14_t *config, void **ctx)
{
    return rma_context_make(comm, config->nContexts, ctx);
}

static ncclResult_t put_signal_v14(void *ctx, int context, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                                   void *to_mhandle, uint32_t rank, uint64_t signal_at, void *signal_mhandle,
                                   uint64_t value, uint32_t op, bool strong, void **request)
{
    return put_signal_v15(ctx, context, from, from_mhandle, size, to, to_mhandle, rank, signal_at, signal_mhandle,
                          value, op, strong, 0, request);
}

static ncclResult_t put_v14(void *ctx, int context, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                            void *to_mhandle, uint32_t rank, void **request)
{
    return rma_put(ctx, context, from, from_mhandle, size, to, to_mhandle, rank, NULL, request);
}

/* The memory is reached through CUDA, so the descriptor is not needed. */
static ncclResult_t reg_dmabuf_v14(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                   uint64_t flags, void **mhandle)
{
    (void)offset;
    (void)fd;
    return rma_reg(comm, data, size, type, flags, mhandle);
}

/* ---- v13: the table of a GIN plugin; what the GPU would get is not used ---- */

static ncclResult_t context_v13(void *comm, ncclGinConfig_v13_t *config, void **ctx, ncclNetDeviceHandle_v11_t **device)
{
    *device = NULL;
    return rma_context_make(comm, config->nContexts, ctx);
}

static ncclResult_t reg_v13(void *comm, void *data, size_t size, int type, uint64_t flags, void **mhandle, void **gpu)
{
    *gpu = NULL;
    return rma_reg(comm, data, size, type, flags, mhandle);
}

static ncclResult_t reg_dmabuf_v13(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                   uint64_t flags, void **mhandle, void **gpu)
{
    *gpu = NULL;
    return reg_dmabuf_v14(comm, data, size, type, offset, fd, flags, mhandle);
}

static ncclResult_t put_signal_v13(void *ctx, int context, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                                   void *to_mhandle, uint32_t rank, uint64_t signal_at, void *signal_mhandle,
                                   uint64_t value, uint32_t op, void **request)
{
    return put_signal_v14(ctx, context, from, from_mhandle, size, to, to_mhandle, rank, signal_at, signal_mhandle,
                          value, op, true, request);
}

/* ---- tables ---- */

#define COMMON                                                                                                         \
    .name = NAME, .init = rma_init, .devices = rma_devices, .getProperties = rma_properties, .listen = rma_listen,     \
    .connect = rma_connect, .deregMrSym = rma_dereg, .destroyContext = rma_context_forget, .closeColl = rma_close,     \
    .closeListen = rma_close_listen, .iflush = rma_flush, .test = rma_test, .queryLastError = rma_last_error,          \
    .finalize = rma_finalize
#define OF_V14                                                                                                         \
    COMMON, .createContext = context_v14, .regMrSym = rma_reg, .regMrSymDmaBuf = reg_dmabuf_v14,                       \
        .rmaProgress = rma_progress
#define OF_V15 OF_V14, .iput = put_v15, .iputSignal = put_signal_v15, .iget = get_v15

const ncclRma_v16_t ncclRmaPlugin_v16 = {OF_V15, .getRmaProperties = capabilities};
const ncclRma_v15_t ncclRmaPlugin_v15 = {OF_V15};
const ncclRma_v14_t ncclRmaPlugin_v14 = {OF_V14, .iput = put_v14, .iputSignal = put_signal_v14, .iget = rma_get};
const ncclRma_v13_t ncclRmaPlugin_v13 = {COMMON,
                                         .createContext = context_v13,
                                         .regMrSym = reg_v13,
                                         .regMrSymDmaBuf = reg_dmabuf_v13,
                                         .ginProgress = rma_progress,
                                         .iput = put_v14,
                                         .iputSignal = put_signal_v13,
                                         .iget = rma_get};
