/* Group launch: the application's stream waits in a host function until the proxy has moved the group's data. */
#ifndef PSM_LAUNCH_H
#define PSM_LAUNCH_H

#include "psm_p2p.h"

#ifdef __cplusplus
extern "C" {
#endif

/* proxyReadyEvent: set by the host function, i.e. when the stream has come so far; progress starts only then.
   proxyOpCount: ops (sends and recvs) that have not ended; the host function returns when it is 0, or on abort. */
struct psmSyncCondition {
    PSM_ALIGNED(64) volatile uint32_t proxyReadyEvent;
    PSM_ALIGNED(64) volatile int32_t proxyOpCount;
    volatile uint32_t failed; /* first error of an op: a psm_status, negated */
};

struct psmGroupOp {
    psmP2pConnector *connector; /* NULL: see connection; a copy to self is from sendbuff to recvbuff */
    const void *sendbuff;
    void *recvbuff;
    uint64_t nbytes;
    uint64_t handle; /* registration of the buffer; 0: FIFO */
    int peer, channel;
    /* connector NULL: the connection of another transport, such as psmNetConnection says; 0: a copy to self. */
    uint64_t connection;
    int send; /* of `connection` */
};

typedef struct psmGroup psmGroup;
/* Launches sends and recvs as one group on `stream` (0, blocking or non-blocking; UNSUPPORTED while it is captured into
   a graph, which would run the group more than once). Self-sends are copies on that stream. `ops` are read before it
   returns; buffers and connectors have to stay until the group has ended. Both ends of a connection name its operations
   in the same order. Caller's thread with the device current, one group at a time of a state. INVALID, UNSUPPORTED,
   CUDA, NO_MEMORY: nothing was launched. What fails later is the group's status.
 */
PSM_API psm_status psmGroupLaunch(psmProxyState *state, void *stream, const struct psmGroupOp *ops, size_t nops,
                                  psmGroup **group);
/* PSM_IN_PROGRESS until all ops have ended; then the first error or PSM_OK. Any thread. */
PSM_API psm_status psmGroupQuery(psmGroup *group);
PSM_API psm_status psmGroupWait(psmGroup *group); /* ends by success, abort or the peer's death; no deadline */
/* The same for timeoutMs at most: PSM_IN_PROGRESS then. */
PSM_API psm_status psmGroupWaitFor(psmGroup *group, uint32_t timeoutMs);
/* INVALID while it has not ended. NULL is fine. */
PSM_API psm_status psmGroupFree(psmGroup *group);

#ifdef __cplusplus
}
#endif
#endif
