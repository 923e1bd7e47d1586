/* Any version of a CollNet table, with the interface of the newest. Each call is watched. */
#ifndef PSM_DRIVE_COLLNET_H
#define PSM_DRIVE_COLLNET_H

#include "drive.h"

bool coll_find(void); /* the table of d.version */
const char *coll_name(void);
bool coll_has_init(void);
const char *coll_empty(void); /* the first required slot that is NULL, or NULL */
ncclResult_t coll_init(void **context);
ncclResult_t coll_finalize(void *context);
ncclResult_t coll_devices(int *n);
ncclResult_t coll_properties(int dev, int *ptr_support, size_t *max_bytes);
ncclResult_t coll_listen(void *context, int dev, void *handle, void **listener);
ncclResult_t coll_connect(void **handles, void *listener, void **comm);
ncclResult_t coll_support(ncclDataType_t type, ncclRedOp_t op, int *supported);
ncclResult_t coll_reg(void *comm, void *data, size_t size, void **mhandle);
ncclResult_t coll_dereg(void *comm, void *mhandle);
ncclResult_t coll_allreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            void *send_mr, void *recv_mr, void **request);
ncclResult_t coll_allgather(void *comm, void *send, ncclNetSGE_v12_t part, size_t share, size_t offset, size_t bytes,
                            void *send_mr, void **request);
ncclResult_t coll_reducescatter(void *comm, ncclNetSGE_v12_t part, void *recv, size_t share, size_t offset,
                                size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *recv_mr, void **request);
ncclResult_t coll_test(void *request, int *done, int *size);
ncclResult_t coll_close(void *comm);
ncclResult_t coll_close_listen(void *listener);

#endif
