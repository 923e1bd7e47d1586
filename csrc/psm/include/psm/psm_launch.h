/* Group launch: the application's stream waits in a host function until the proxy has moved the group's data. */
#ifndef PSM_LAUNCH_H
#define PSM_LAUNCH_H

#include "psm_net.h"

#ifdef __cplusplus
extern "C" {
#endif

/* proxyReadyEvent: set by the host function, i.e. when the stream has reached the group; progress starts only then.
 * proxyOpCount: unfinished ops (sends and recvs); the host function returns when it is 0, or on abort. */
struct psmSyncCondition {
    PSM_ALIGNED(64) volatile uint32_t proxyReadyEvent;
    PSM_ALIGNED(64) volatile int32_t proxyOpCount;
    volatile uint32_t failed; /* first error of an op: a negated psm_status */
};

struct psmGroupOp {
    union {
        psmP2pConnector *connector; /* NULL: use `connection`; a copy to self goes from sendbuff to recvbuff */
        psmNetConnector *net;
    };
    const void *sendbuff;
    void *recvbuff;
    uint64_t nbytes;
    uint64_t handle; /* registration of the buffer; 0: FIFO */
    int peer, channel;
    /* if connector is NULL: the connection of a transport of your own, by the service's name; 0: a copy to self */
    uint64_t connection;
    int send; /* of `connection` */
};

typedef struct psmGroup psmGroup;
/* Launches sends and recvs as one group on `stream`: 0, blocking or non-blocking. UNSUPPORTED while the stream is
 * captured into a graph, because a graph could run the group more than once. Self-sends are copies on that stream. The
 * call copies `ops`; buffers and connectors must stay valid until the group has ended. Both ends of a connection must
 * list its operations in the same order. Call it on the caller's thread with the device current, one group at a time
 * per state. INVALID, UNSUPPORTED, CUDA, NO_MEMORY: nothing was launched. Later failures become the group's status. */
PSM_API psm_status psmGroupLaunch(psmProxyState *state, void *stream, const struct psmGroupOp *ops, size_t nops,
                                  psmGroup **group);
/* PSM_IN_PROGRESS until all ops have ended; then the first error, or PSM_OK. Any thread. */
PSM_API psm_status psmGroupQuery(psmGroup *group);
PSM_API psm_status psmGroupWait(psmGroup *group); /* ends by success, abort or death of the peer; no deadline */
/* The same, for at most timeoutMs; then PSM_IN_PROGRESS. */
PSM_API psm_status psmGroupWaitFor(psmGroup *group, uint32_t timeoutMs);
/* INVALID while the group is running. Accepts NULL. */
PSM_API psm_status psmGroupFree(psmGroup *group);

#ifdef __cplusplus
}
#endif
#endif
