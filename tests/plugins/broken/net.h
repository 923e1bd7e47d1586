/* A small net plugin over TCP of this host, and the ways in which it can be broken: BROKEN=NAME. */
#ifndef BROKEN_NET_H
#define BROKEN_NET_H

#include <stdbool.h>

#define PSM_ABI_CONST /* a table is changed when the library is loaded */
#include "psm_abi/net.h"

enum { MAX_RECVS = 8 };

bool broken(const char *name);

ncclResult_t net_init(void **context, ncclDebugLogger_t logger);
ncclResult_t net_finalize(void *context);
ncclResult_t net_devices(int *n);
ncclResult_t net_listen(void *context, int dev, void *handle, void **listener);
ncclResult_t net_connect(void *context, int dev, void *handle, void **comm);
ncclResult_t net_accept(void *listener, void **comm);
ncclResult_t net_reg(void *comm, void *data, size_t size, int type, void **mhandle);
ncclResult_t net_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
ncclResult_t net_dereg(void *comm, void *mhandle);
ncclResult_t net_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
ncclResult_t net_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **request);
ncclResult_t net_make_device(int *dev, int n);
bool net_is_virtual(int dev);
ncclResult_t net_consumed(void *comm, int n, void *request);
void net_profiler(ncclProfilerCallback_t callback);
void net_event(void *request, int i, void *parent); /* begins one */
ncclResult_t net_iflush(void *comm, void **request);
ncclResult_t net_test(void *request, int *done, int *sizes);
ncclResult_t net_close_send(void *comm);
ncclResult_t net_close_recv(void *comm);
ncclResult_t net_close_listen(void *listener);
/* Reports what failed, and returns the result. */
ncclResult_t net_fail(ncclResult_t result, const char *what);
/* Whether data lies in its registration for a connection. */
ncclResult_t net_within(const void *comm, void *mhandle, uint8_t **data, size_t size);
/* A buffer in place of a GPU's memory, which no kernel reads by itself; NULL: it is memory of the host. */
uint8_t *net_staged(void *mhandle, uint8_t *data, size_t size, bool read_it);
void net_unstage(void *gpu, uint8_t *buffer, size_t size); /* copies to the GPU, and frees the buffer */

#endif
