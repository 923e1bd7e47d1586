/* The net transport's own types: the network, the local info of a connection's proxy end, and the functions of the
 * correct variant, `split`, from which the broken variants are built. */
#ifndef PSM_NET_NET_H
#define PSM_NET_NET_H

#include "conn/conn.h"
#include "net/net_wire.h"
#include "psm/psm_net.h"
#include "psm_abi/net.h"

/* ---- the network: a plugin's table, of any version ---- */

/* Functions with the same signature from v8 to v12 are the plugin's own; the psm_net_... functions below call the
 * others. */
struct psm_net {
    int version;
    const char *name;
    void *context; /* v11 and later */
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*accept)(void *listener, void **comm, ncclNetDeviceHandle_v12_t **device);
    ncclResult_t (*reg)(void *comm, void *data, size_t size, int type, void **registration);
    ncclResult_t (*dereg)(void *comm, void *registration);
    ncclResult_t (*test)(void *request, int *done, int *sizes);
    ncclResult_t (*close_send)(void *comm), (*close_recv)(void *comm), (*close_listen)(void *listener);
    const void *table;
};
/* The device properties that libpsm uses. */
struct psm_net_device {
    char name[32];
    int types;    /* NCCL_PTR_... */
    size_t most;  /* bytes of a message */
    bool unpacks; /* data reaches the GPU in pieces that a kernel must assemble */
};

/* Get the network of this process, initialised; each get needs one put. NOT_FOUND, UNSUPPORTED, SYSTEM. */
psm_status psm_net_get(const struct psm_net **net);
void psm_net_put(const struct psm_net *net); /* accepts NULL */
ncclResult_t psm_net_properties(const struct psm_net *net, int dev, struct psm_net_device *device);
ncclResult_t psm_net_listen(const struct psm_net *net, int dev, void *handle, void **listener);
ncclResult_t psm_net_connect(const struct psm_net *net, int dev, void *handle, void **comm);
/* *request NULL: call again later. */
ncclResult_t psm_net_isend(const struct psm_net *net, void *comm, void *data, size_t size, int tag, void *registration,
                           void **request);
ncclResult_t psm_net_irecv(const struct psm_net *net, void *comm, void *data, size_t size, int tag, void *registration,
                           void **request);
/* Record the failure of a call of the plugin, with its name and the result's name. PEER_DEAD, PROTOCOL, INVALID,
 * TIMEOUT, SYSTEM. */
psm_status psm_net_fail(const struct psm_net *net, ncclResult_t result, const char *call, const char *stage, int rank,
                        int peer);

/* ---- the proxy's end of a connection ---- */

enum { PSM_NET_MODE = 6 /* follows the values of psm_p2p_mode */ };

/* Local: neither it nor any part of it leaves the process. conn.steps: at most the number of requests that a comm can
 * hold. */
struct psmNetLocalInfo {
    struct psm_conn conn;
    const struct psm_net *net;
    void *listener, *to, *from; /* the network's comms; to: the peer, from: the peer */
    void *to_registration, *from_registration;
    uint8_t *memory; /* pinned: slots, the ring of credits, a final message */
    size_t memory_size;

    uint64_t id;
    int dev;
    uint64_t stride;                  /* bytes of a slot */
    uint64_t until_ns, call_until_ns; /* Connect: when it gives up; when this call returns */
    bool to_registered, from_registered, connecting;
    uint8_t peer_handle[PSM_NET_HANDLE];
    struct psm_fault late; /* state of what takes several calls: Connect, posting a step */

    /* progress thread only */
    uint64_t passed;                    /* of the operation. send: passed to the network; recv: received from it */
    void *requests[PSM_CONN_MAX_STEPS]; /* of the slots; NULL: none is open */
    void *credit_requests[PSM_NET_CREDITS];
    uint64_t credits;                /* of the connection. send: received; recv: sent */
    uint64_t credits_posted;         /* send: receives posted for credits */
    uint64_t credits_end;            /* those of the connection when this operation has had all of its own */
    uint64_t tail;                   /* send: the last recvTail received; recv: the last one sent */
    uint64_t offered, offered_bytes; /* send: operation of the newest credit, and the bytes that it expects */
    uint64_t lost;                   /* recv: slots that a fault has dropped in this operation */
    bool told;                       /* recv: the operation was offered */
    bool again;                      /* the network could not accept the next step */
    bool over;                       /* the connection has ended with an error */
    psm_status theirs;               /* the peer's end, as sent by it; 0: none */
    uint32_t theirs_cuda;
    struct psm_error broken; /* the way back is lost; status 0: no */
    void *variant;           /* private data of a broken variant */
};
_Static_assert(offsetof(struct psmNetLocalInfo, conn) == 0, "psm_conn_progress sees the base");

static inline uint8_t *psm_net_slot(const struct psmNetLocalInfo *local, uint64_t step)
{
    return local->memory + step % local->conn.steps * local->stride;
}
static inline struct psm_net_credit *psm_net_ring(const struct psmNetLocalInfo *local, uint64_t n)
{
    return (struct psm_net_credit *)(local->memory + local->conn.steps * local->stride) + n % PSM_NET_CREDITS;
}
static inline uint8_t *psm_net_farewell(const struct psmNetLocalInfo *local)
{
    return (uint8_t *)psm_net_ring(local, 0) + PSM_NET_CREDITS * sizeof(struct psm_net_credit);
}
/* Steps whose receives are posted before the first credit. */
static inline uint64_t psm_net_first(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub)
{
    return sub->nsteps < local->conn.steps ? sub->nsteps : local->conn.steps;
}

/* ---- handlers of `split`, on the service thread ---- */

extern const struct psmTransportComm psm_net_split_send, psm_net_split_recv;
psm_conn_request psm_net_proxy_setup, psm_net_proxy_connect;
psm_conn_free psm_net_proxy_free;
psm_conn_turn psm_net_send_progress, psm_net_recv_progress;
/* proxyAbort: this rank ends its operations, also those that have not started. */
void psm_net_proxy_abort(psmProxyConnection *connection, psmProxyState *state);
#define PSM_NET_COMM(setup, connect, free, progress)                                                                   \
    PSM_CONN_COMM(setup, connect, free, progress, .proxyAbort = psm_net_proxy_abort)

/* ---- progress; as in p2p ---- */

extern const struct psm_conn_ops psm_net_conn_ops;
psm_status psm_net_copy(struct psmNetLocalInfo *local, void *to, const void *from, uint64_t bytes, uint64_t step);
/* 1: the event of the step's slot is complete; 0: not yet; else the failure. */
static inline int psm_net_copied(struct psmNetLocalInfo *local, uint64_t step, psm_status *status)
{
    return psm_conn_copied(&local->conn, (int)(step % local->conn.steps), status);
}
/* psm_net_fail with the context of the operation. */
psm_status psm_net_failed(const struct psmNetLocalInfo *local, ncclResult_t result, const char *call);
/* 1: the request is complete, with *size bytes; 0: not yet; else the failure. */
int psm_net_tested(struct psmNetLocalInfo *local, void *request, const char *call, int *size, psm_status *status);
/* Adds an entry to the step recorder and the log. */
void psm_net_moved(struct psm_conn *conn, const struct psmProxySubArgs *sub, enum psm_step_what what, uint64_t step);

#endif
