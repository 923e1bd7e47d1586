/* One-sided operations in software, over the backend's connections: NCCL's RMA tables. PSM_NET_RMA=1 enables them. With
 * the interface of the newest table; tables.c has all.
 *
 * Each rank has a connection to each other one and one from it. A put is cut into messages, which the peer copies into
 * its memory when NCCL calls one of its functions: its thread for one-sided operations calls rmaProgress all the time.
 * GPU memory is copied with CUDA, through host memory, so it needs no GPUDirect RDMA. */
#ifndef PSM_NET_RMA_H
#define PSM_NET_RMA_H

#include "net_plugin.h"

ncclResult_t rma_init(void **context, uint64_t comm_id, ncclDebugLogger_t logger);
ncclResult_t rma_finalize(void *context);
ncclResult_t rma_devices(int *ndev);
ncclResult_t rma_properties(int dev, ncclNetProperties_v12_t *props);
ncclResult_t rma_listen(void *context, int dev, void *handle, void **listener);
ncclResult_t rma_close_listen(void *listener);
/* Waits for all ranks, at most PSM_TIMEOUT. context: of listen; that of connect is not used, because NCCL 2.30 passes
 * another plugin's. */
ncclResult_t rma_connect(void *context, void **handles, int nranks, int rank, void *listener, void **comm);
ncclResult_t rma_close(void *comm);
ncclResult_t rma_context_make(void *comm, int count, void **context);
ncclResult_t rma_context_forget(void *context);
/* Collective: waits for all ranks, at most PSM_TIMEOUT. */
ncclResult_t rma_reg(void *comm, void *data, size_t size, int type, uint64_t flags, void **mhandle);
ncclResult_t rma_dereg(void *comm, void *mhandle);

/* signal NULL: none. */
struct rma_signal {
    uint64_t offset, value;
    void *mhandle;
    uint32_t op;
};
ncclResult_t rma_put(void *context, int index, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                     void *to_mhandle, uint32_t rank, const struct rma_signal *signal, void **request);
ncclResult_t rma_get(void *context, int index, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                     void *to_mhandle, uint32_t rank, void **request);
ncclResult_t rma_flush(void *context, int index, void *mhandle, uint32_t rank, void **request);
ncclResult_t rma_test(void *comm, void *request, int *done);
ncclResult_t rma_progress(void *context);
ncclResult_t rma_last_error(void *context, bool *failed);

#endif
