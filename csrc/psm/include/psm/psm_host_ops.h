/* The p2p transport's interface to its host; it depends on nothing else. Two providers: libpsm's proxy (psm_host_of),
 * and NCCL's (csrc/nccl). */
#ifndef PSM_HOST_OPS_H
#define PSM_HOST_OPS_H

#include "psm_proxy.h"

#ifdef __cplusplus
extern "C" {
#endif

struct psm_cuda; /* the run-time table generated from csrc/cuda/api.def: psm_cuda.h */

struct psm_host_ops {
    uint32_t size;
    /* control plane; the provider owns the connector, which is opaque here */
    psm_status (*connect)(void *host, int transport, int send, int rank, void **connector);
    psm_status (*call)(void *host, void *connector, int type, const void *req, int reqSize, void *resp, int respSize);
    psm_status (*get_fd)(void *host, void *connector, uint64_t id, int *fd);
    psm_status (*query_fd)(void *host, void *connector, int fd, int *remote);
    psm_status (*disconnect)(void *host, void *connector);
    /* on the proxy's side */
    psm_status (*offer_fd)(void *host, uint64_t id, int fd);
    psm_status (*withdraw_fd)(void *host, uint64_t id);
    psm_status (*take_fd)(void *host, int number, int *fd);
    int (*aborted)(void *host);
    int (*peer_alive)(void *host, int rank);                              /* 0: known to be dead; 1: alive or unknown */
    void (*async_error)(void *host, psm_status status, const char *text); /* ends the operation on all ranks */
    int (*rank)(void *host);
    int (*device)(void *host);
    const struct psm_settings *(*settings)(void *host);
    const struct psm_cuda *(*cuda)(void *host);
    uint64_t (*connection)(void *host, void *connector); /* the service's name for it, for psmProxyOp.connection */
    /* For handlers, which must not block: fetches the descriptor that `rank` offers under `id`. Call start, then poll
     * (PSM_IN_PROGRESS; any other status ends the fetch, and the caller owns *fd), or cancel. Meanwhile the handler
     * returns done = 0. */
    psm_status (*fetch_start)(void *host, int rank, uint64_t id, void **fetch);
    psm_status (*fetch_poll)(void *host, void *fetch, int *fd);
    void (*fetch_cancel)(void *host, void *fetch);
    /* As connect, get_fd and disconnect, on the caller's thread, over a connection that the host keeps for each rank,
     * as NCCL does: a pair of ranks needs one Init, not one for each descriptor. NULL: the host has none. */
    psm_status (*fetch_fd)(void *host, int transport, int rank, uint64_t id, int *fd);
};
struct psm_host {
    const struct psm_host_ops *ops;
    void *self;
};
/* libpsm's own proxy as a host. Call psmProxySetAddresses before connect and fetch_start. The state must outlive the
 * host. Handlers derive their host from the state that they receive. */
PSM_API struct psm_host psm_host_of(psmProxyState *state);
/* libpsm's run-time CUDA table, for use in another provider. NULL: no CUDA was found; psm_last_error says why. */
PSM_API const struct psm_cuda *psmCuda(void);
/* Looks in a message for a value that means something in this process only: a pointer into its memory, or one of its
 * CUDA handles, at a multiple of 8 bytes. Returns its offset, with what it is in `what`; -1: there is none. Any thread.
 */
PSM_API int psmLocalValue(const void *message, size_t size, char *what, size_t room);

#ifdef __cplusplus
}
#endif
#endif
