/* CollNet in software: reductions and gathers over rings of the backend's connections. For tests of NCCL's CollNet
 * code: PSM_NET_COLLNET=1. With the interface of the newest table; tables.c has all. */
#ifndef PSM_NET_COLLNET_H
#define PSM_NET_COLLNET_H

#include "net_plugin.h"

ncclResult_t coll_init(void **context, uint64_t comm_id, ncclDebugLogger_t logger);
ncclResult_t coll_init_process(ncclDebugLogger_t logger); /* up to v10 */
ncclResult_t coll_finalize(void *context);
ncclResult_t coll_devices(int *ndev);
ncclResult_t coll_properties(int dev, ncclNetProperties_v12_t *props);
ncclResult_t coll_listen(void *context, int dev, void *handle, void **listener);
ncclResult_t coll_connect(void **handles, int nranks, int rank, void *listener, void **comm);
ncclResult_t coll_support(ncclDataType_t type, ncclRedOp_t op, int *supported);
ncclResult_t coll_reg(void *comm, void *data, size_t size, int type, void **mhandle);
ncclResult_t coll_dereg(void *comm, void *mhandle);
ncclResult_t coll_allreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            void *send_mhandle, void *recv_mhandle, void **request);
/* The ranks' data, `share` bytes of each, one after the other; the window is the `bytes` bytes of it from `offset` on.
 * send: where this rank's share within the window starts; parts: where the window is. */
ncclResult_t coll_allgather(void *comm, void *send, int n, const ncclNetSGE_v12_t *parts, size_t share, size_t offset,
                            size_t bytes, void *send_mhandle, void **request);
ncclResult_t coll_reducescatter(void *comm, int n, const ncclNetSGE_v12_t *parts, void *recv, size_t share,
                                size_t offset, size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *recv_mhandle,
                                void **request);
ncclResult_t coll_flush(void *comm, void *data, int size, void *mhandle, void **request);
ncclResult_t coll_test(void *request, int *done, int *size);
ncclResult_t coll_close(void *comm);
ncclResult_t coll_close_listen(void *listener);

#endif
